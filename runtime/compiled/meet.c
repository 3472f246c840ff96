/* SPDX-License-Identifier: Apache-2.0 */
/* Prepares the meetings of tensor groups: which regions each rank gives and gets, and the groups of
 * the transport, one for each set of ranks. Nothing is allocated later.
 */
#include <string.h>

#include "runtime/compiled/build.h"

/* ---- sizes ---- */

static uint64_t entries_of(const opi_list_meeting *m, const opi_group_value *v) {
  uint64_t n = v->kind == OPI_COLLECTIVE_SUM ? 1 : 0;
  for (uint32_t k = 0; v->kind != OPI_COLLECTIVE_SUM && k < m->n_ranks; ++k)
    n += (uint64_t)v->parts[k];
  return n;
}

uint64_t opi_meet_values(const opi_list_meeting *meeting, const opi_group_value *value) {
  return value->outer * entries_of(meeting, value) * value->inner;
}

static uint64_t elem_bytes(const opi_group_value *v) {
  return opi_dtype_bits(v->dtype) / 8;
}

/* Regions of the value's longer list. */
static uint64_t regions_of(const opi_list_meeting *m, const opi_group_value *v) {
  return v->kind == OPI_COLLECTIVE_SUM || v->outer == 1 ? 1 : v->outer * m->n_ranks;
}

/* ---- lists of regions ---- */

typedef struct meet_maker {
  opi_compiled *t;
  const opi_list_meeting *meeting;
  uint32_t member;
  opipe_error *err;
} meet_maker;

static opipe_status region_of(const meet_maker *k, uint32_t cell, uint64_t n_bytes,
                              opipe_region *out) {
  const opi_compiled *t = k->t;
  const char *name = k->meeting->tensor;
  if (cell == OPIPE_NONE) {
    return opi_fail(k->err, OPIPE_E_INTERNAL, "sum '%s': member %u has no place for it", name,
                    k->member);
  }
  *out = opi_cell_region(t, cell, k->meeting->microbatch);
  if (out->n_bytes != n_bytes) {
    return opi_fail(k->err, OPIPE_E_INTERNAL,
                    "sum '%s': member %u has %llu bytes of '%s', %llu are summed", name, k->member,
                    (unsigned long long)out->n_bytes, t->model->cuts[0]->cells[cell].name,
                    (unsigned long long)n_bytes);
  }
  return OPIPE_OK;
}

/* The whole tensor by member: each member's entries of every outer index. */
static void list_parts(const meet_maker *k, const opi_group_value *v, opipe_region whole,
                       opipe_region *out, uint32_t *out_n) {
  const uint64_t unit = v->inner * elem_bytes(v), row = entries_of(k->meeting, v) * unit;
  uint64_t first = 0;
  *out_n = 1;
  out[0] = whole;
  if (v->outer == 1)
    return;
  *out_n = 0;
  for (uint32_t m = 0; m < k->meeting->n_ranks; ++m) {
    const uint64_t n_bytes = (uint64_t)v->parts[m] * unit;
    for (uint64_t o = 0; o < v->outer && n_bytes != 0; ++o)
      out[(*out_n)++] = (opipe_region){whole.buffer, whole.offset_bytes + o * row + first, n_bytes};
    first += n_bytes;
  }
}

static opipe_status make_parted(const meet_maker *k, const opi_group_value *v,
                                opipe_collect *call) {
  opi_arena *arena = &k->t->arena;
  const uint32_t n = k->meeting->n_ranks, m = k->member;
  const uint64_t all = opi_meet_values(k->meeting, v) * elem_bytes(v);
  const uint64_t part = v->outer * (uint64_t)v->parts[m] * v->inner * elem_bytes(v);
  const bool gathers = v->kind == OPI_COLLECTIVE_GATHER;
  opipe_region *parts = OPI_ARENA_ARRAY(arena, opipe_region, regions_of(k->meeting, v));
  opipe_region *own = OPI_ARENA_NEW(arena, opipe_region);
  uint64_t *values = OPI_ARENA_ARRAY(arena, uint64_t, n);
  opipe_region whole;
  if (parts == NULL || own == NULL || values == NULL)
    return opi_fail_nomem(k->err, n * sizeof *parts, "sums");
  const uint32_t in = v->in_cell[m], out = v->out_cell[m];
  OPI_TRY(region_of(k, gathers ? out : in, all, &whole));
  if (part != 0)
    OPI_TRY(region_of(k, gathers ? in : out, part, own));
  for (uint32_t i = 0; i < n; ++i)
    values[i] = v->outer * (uint64_t)v->parts[i] * v->inner;
  uint32_t n_parts = 0;
  const uint32_t n_own = part == 0 ? 0 : 1;
  list_parts(k, v, whole, parts, &n_parts);
  call->kind =
      gathers ? (uint32_t)OPIPE_COLLECT_ALL_GATHER : (uint32_t)OPIPE_COLLECT_REDUCE_SCATTER;
  call->from = gathers ? own : parts;
  call->n_from = gathers ? n_own : n_parts;
  call->to = gathers ? parts : own;
  call->n_to = gathers ? n_parts : n_own;
  call->parts = values;
  return OPIPE_OK;
}

/* Sums values [n] that are alike. */
static opipe_status make_summed(const meet_maker *k, const opi_group_value *v, uint32_t n,
                                opipe_collect *call) {
  opipe_region *from = OPI_ARENA_ARRAY(&k->t->arena, opipe_region, n);
  opipe_region *to = OPI_ARENA_ARRAY(&k->t->arena, opipe_region, n);
  if (from == NULL || to == NULL)
    return opi_fail_nomem(k->err, n * sizeof *from, "sums");
  for (uint32_t i = 0; i < n; ++i) {
    const uint64_t n_bytes = opi_meet_values(k->meeting, &v[i]) * elem_bytes(v);
    OPI_TRY(region_of(k, v[i].in_cell[k->member], n_bytes, &from[i]));
    OPI_TRY(region_of(k, v[i].out_cell[k->member], n_bytes, &to[i]));
  }
  call->kind = OPIPE_COLLECT_ALL_REDUCE;
  call->from = from;
  call->to = to;
  call->n_from = call->n_to = n;
  return OPIPE_OK;
}

static opipe_status make_calls(const meet_maker *k, opi_meet *meet) {
  const opi_list_meeting *m = k->meeting;
  meet->calls = OPI_ARENA_ARRAY(&k->t->arena, opipe_collect, m->n_values);
  if (meet->calls == NULL)
    return opi_fail_nomem(k->err, m->n_values * sizeof *meet->calls, "sums");
  for (uint32_t i = 0; i < m->n_values;) {
    opipe_collect *call = &meet->calls[meet->n_calls++];
    const uint32_t n = opi_meeting_call_at(m, i).n;
    *call = (opipe_collect){.struct_size = (uint32_t)OPIPE_END(opipe_collect, done),
                            .dtype = m->values[i].dtype};
    OPI_TRY(m->values[i].kind == OPI_COLLECTIVE_SUM ? make_summed(k, &m->values[i], n, call)
                                                    : make_parted(k, &m->values[i], call));
    i += n;
  }
  return OPIPE_OK;
}

/* ---- groups ---- */

static bool same_ranks(const opi_group_end *end, const opi_list_meeting *m) {
  return end->n_ranks == m->n_ranks &&
         memcmp(end->ranks, m->ranks, m->n_ranks * sizeof *m->ranks) == 0;
}

/* The rank's end of the meeting's group, which is made if it is new. */
static opi_group_end *end_of(opi_compiled *t, const opi_list_meeting *m, uint32_t rank) {
  opi_meets *meets = &t->meets;
  uint32_t i = 0;
  while (i < meets->n_ends && (meets->rank_of[i] != rank || !same_ranks(&meets->ends[i], m)))
    ++i;
  if (i == meets->n_ends) {
    meets->ends[i].ranks = m->ranks;
    meets->ends[i].n_ranks = m->n_ranks;
    meets->rank_of[i] = rank;
    ++meets->n_ends;
  }
  return &meets->ends[i];
}

/* The most that a collect of the meeting has, equal on all members. */
static void note_most(opi_meets *meets, const opi_group_end *end, const opi_list_meeting *m) {
  const uint32_t at = (uint32_t)(end - meets->ends);
  for (uint32_t i = 0; i < m->n_values;) {
    uint64_t n_bytes = 0, n_regions = 0;
    for (const uint32_t stop = i + opi_meeting_call_at(m, i).n; i < stop; ++i) {
      n_bytes += opi_meet_values(m, &m->values[i]) * elem_bytes(&m->values[i]);
      n_regions += regions_of(m, &m->values[i]);
    }
    meets->n_bytes[at] = n_bytes > meets->n_bytes[at] ? n_bytes : meets->n_bytes[at];
    if (n_regions > meets->n_regions[at])
      meets->n_regions[at] = n_regions < UINT32_MAX ? (uint32_t)n_regions : UINT32_MAX;
  }
}

/* The number of a set of ranks: its first meeting, which is the same in all processes. */
static uint32_t number_of(const opi_compiled *t, const opi_group_end *end) {
  uint32_t i = 0;
  while (t->lists->meetings[i].n_values == 0 || !same_ranks(end, &t->lists->meetings[i]))
    ++i;
  return i;
}

static opipe_status open_end(opi_compiled *t, uint32_t at, opipe_error *err) {
  const opi_setup *s = t->setup;
  opi_group_end *end = &t->meets.ends[at];
  const opi_rank *rank = &s->ranks[t->meets.rank_of[at]];
  const opipe_collective_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_collective_params, n_regions),
      .n_ranks = end->n_ranks,
      .ranks = end->ranks,
      .id = (uint64_t)(t->shape->index + 1) << 32 | number_of(t, end),
      .n_bytes = t->meets.n_bytes[at],
      .n_regions = t->meets.n_regions[at] == 0 ? 1 : t->meets.n_regions[at]};
  if (rank->event != NULL) {
    OPI_TRY(OPI_MAKE_RANK(rank, event_create, &end->ready, err, rank->device));
    for (uint32_t i = 0; i < OPI_COUNT(end->done); ++i)
      OPI_TRY(OPI_MAKE_RANK(rank, event_create, &end->done[i], err, rank->device));
  }
  return OPI_MAKE_WIRE(s, collective_open, &end->collective, err, rank->endpoint, &params);
}

static opipe_status open_ends(opi_compiled *t, opipe_error *err) {
  const opi_setup *s = t->setup;
  const opipe_transport *w = s->transport;
  if (t->meets.n_ends == 0 || s->reference)
    return OPIPE_OK;
  if (!OPIPE_HAS(w, opipe_transport, collect_test) || w->collect == NULL) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "transport '%s' has no collectives (OPIPE_TRANSPORT_COLLECTIVES): the plan "
                    "sums over tensor groups of %u ranks",
                    s->env.transport.id, t->meets.ends[0].n_ranks);
  }
  for (uint32_t i = 0; i < t->meets.n_ends; ++i) {
    const opipe_status status = open_end(t, i, err);
    if (status < 0)
      return opi_error_prefix(err, "rank %u, its tensor group: ", t->meets.rank_of[i]);
  }
  return OPIPE_OK;
}

/* ---- all of it ---- */

/* Counts what is here: ends at most, comings of each rank. */
static opipe_status make_tables(opi_compiled *t, opipe_error *err) {
  const opi_setup *s = t->setup;
  const opi_lists *lists = t->lists;
  opi_meets *meets = &t->meets;
  uint32_t n_ends = 0;
  meets->first = OPI_ARENA_ARRAY(&t->arena, uint32_t, (size_t)lists->n_meetings + 1);
  if (meets->first == NULL)
    return opi_fail_nomem(err, lists->n_meetings * sizeof(uint32_t), "sums");
  for (uint32_t i = 0; i < lists->n_meetings; ++i) {
    const opi_list_meeting *m = &lists->meetings[i];
    const uint32_t n = m->n_values == 0 ? 0 : m->n_ranks;
    meets->first[i + 1] = meets->first[i] + n;
    for (uint32_t k = 0; k < n; ++k)
      ++t->seats[m->ranks[k]].comings.room;
  }
  for (uint32_t r = 0; r < s->plan->decided.n_ranks; ++r) {
    opi_comings *c = &t->seats[r].comings;
    c->list = c->room == 0 ? NULL : OPI_ARENA_ARRAY(&t->arena, opi_coming, c->room);
    if (c->room != 0 && c->list == NULL)
      return opi_fail_nomem(err, c->room * sizeof *c->list, "sums");
    n_ends += c->room;
  }
  meets->list = OPI_ARENA_ARRAY(&t->arena, opi_meet, meets->first[lists->n_meetings]);
  meets->ends = OPI_ARENA_ARRAY(&t->arena, opi_group_end, n_ends);
  meets->rank_of = OPI_ARENA_ARRAY(&t->arena, uint32_t, n_ends);
  meets->n_bytes = OPI_ARENA_ARRAY(&t->arena, uint64_t, n_ends);
  meets->n_regions = OPI_ARENA_ARRAY(&t->arena, uint32_t, n_ends);
  if (meets->list == NULL || meets->ends == NULL || meets->rank_of == NULL ||
      meets->n_bytes == NULL || meets->n_regions == NULL)
    return opi_fail_nomem(err, n_ends * sizeof *meets->ends, "sums");
  return OPIPE_OK;
}

/* The reference adds up one value at a time. */
static opipe_status make_scratch(opi_compiled *t, opipe_error *err) {
  uint64_t most = 0, most_bytes = 0;
  for (uint32_t i = 0; i < t->lists->n_meetings; ++i) {
    const opi_list_meeting *m = &t->lists->meetings[i];
    for (uint32_t k = 0; k < m->n_values; ++k) {
      const uint64_t n = opi_meet_values(m, &m->values[k]), size = elem_bytes(&m->values[k]);
      most = n > most ? n : most;
      most_bytes = n * size > most_bytes ? n * size : most_bytes;
    }
  }
  if (most == 0 || !t->setup->reference)
    return OPIPE_OK;
  if (most > SIZE_MAX / 8)
    return opi_fail_nomem(err, most, "sums");
  t->meets.sums = opi_arena_alloc(&t->arena, (size_t)most * sizeof(double));
  t->meets.whole = opi_arena_alloc(&t->arena, (size_t)most_bytes);
  t->meets.part = opi_arena_alloc(&t->arena, (size_t)most_bytes);
  return t->meets.sums == NULL || t->meets.whole == NULL || t->meets.part == NULL
             ? opi_fail_nomem(err, most * sizeof(double), "sums")
             : OPIPE_OK;
}

opipe_status opi_meets_make(opi_compiled *t, opipe_error *err) {
  const opi_setup *s = t->setup;
  OPI_TRY(make_tables(t, err));
  OPI_TRY(make_scratch(t, err));
  for (uint32_t i = 0; i < t->lists->n_meetings && !s->reference; ++i) {
    const opi_list_meeting *m = &t->lists->meetings[i];
    for (uint32_t k = 0; m->n_values != 0 && k < m->n_ranks; ++k) {
      const meet_maker one = {.t = t, .meeting = m, .member = k, .err = err};
      opi_meet *meet = &t->meets.list[t->meets.first[i] + k];
      if (!opi_rank_is_here(s, m->ranks[k]))
        continue;
      meet->end = end_of(t, m, m->ranks[k]);
      OPI_TRY(make_calls(&one, meet));
      note_most(&t->meets, meet->end, m);
    }
  }
  return open_ends(t, err);
}

void opi_meets_stop(opi_compiled *t) {
  const opi_setup *s = t->setup;
  for (uint32_t i = 0; i < t->meets.n_ends; ++i) {
    const opi_group_end *end = &t->meets.ends[i];
    const opi_rank *rank = &s->ranks[t->meets.rank_of[i]];
    if (end->collective != NULL)
      s->transport->collective_close(end->collective);
    rank->backend->event_destroy(end->ready);
    for (uint32_t k = 0; k < OPI_COUNT(end->done); ++k)
      rank->backend->event_destroy(end->done[k]);
  }
  t->meets.n_ends = 0;
}

opi_meet *opi_meet_at(const opi_compiled *t, uint32_t meeting, uint32_t rank) {
  const opi_list_meeting *m = &t->lists->meetings[meeting];
  uint32_t k = 0;
  while (m->ranks[k] != rank)
    ++k;
  return &t->meets.list[t->meets.first[meeting] + k];
}
