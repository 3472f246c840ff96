/* SPDX-License-Identifier: Apache-2.0 */
/* Turns a list of computes into numbers, streams and links. */
#include "partition/study/improve/works.h"

#include <math.h>
#include <string.h>

#include "partition/schedule/passes.h"

typedef struct builder {
  const opi_problem *problem;
  const opi_do_list *list;
  const opi_costs *costs;
  opi_works *w;
  opi_index index;
  uint32_t *maker; /* [n_units * OPI_PHASES] work + 1; 0: none */
  uint32_t work;   /* current work */
  uint32_t n_links;
  bool count; /* count links instead of writing them */
  opi_arena *arena;
  opipe_error *err;
} builder;

static uint64_t event(const builder *b, uint32_t stage, uint32_t replica, const opi_do *a,
                      uint32_t slice, uint32_t part, uint32_t phase) {
  return opi_unit(&b->index, stage, replica, a->microbatch, slice, part) * OPI_PHASES + phase;
}

static opipe_status check(const builder *b) {
  if (b->problem->versions != OPIPE_VERSIONS_ONE) {
    return opi_fail(b->err, OPIPE_E_UNSUPPORTED,
                    "an order with double-buffered weights is not improved");
  }
  for (uint32_t rank = 0; rank < b->list->n_ranks; ++rank) {
    for (uint32_t i = b->list->rank_first[rank]; i < b->list->rank_first[rank + 1]; ++i) {
      const uint32_t kind = b->list->items[i].kind;
      if (opi_do_is_compute(kind) && kind != OPI_DO_R)
        continue;
      const opi_do_place place = opi_place_of(b->problem, b->list, rank, i);
      return opi_fail(b->err, OPIPE_E_UNSUPPORTED, "%s: orders of F, B, I, W alone are improved",
                      place.text);
    }
  }
  return OPIPE_OK;
}

static opipe_status make_room(builder *b) {
  opi_works *w = b->w;
  const size_t n = b->list->n_items, n_ranks = b->list->n_ranks;
  w->n = b->list->n_items;
  w->n_ranks = b->list->n_ranks;
  w->items = b->list->items;
  w->rank_first = b->list->rank_first;
  w->rank = OPI_ARENA_ARRAY(b->arena, uint32_t, n);
  w->stream = OPI_ARENA_ARRAY(b->arena, uint32_t, n);
  w->place = OPI_ARENA_ARRAY(b->arena, uint32_t, n);
  w->ns = OPI_ARENA_ARRAY(b->arena, double, n);
  w->takes = OPI_ARENA_ARRAY(b->arena, int64_t, n);
  w->cap = OPI_ARENA_ARRAY(b->arena, int64_t, n_ranks);
  w->before.first = OPI_ARENA_ARRAY(b->arena, uint32_t, n + 1);
  w->after.first = OPI_ARENA_ARRAY(b->arena, uint32_t, n + 2);
  w->stream_work = OPI_ARENA_ARRAY(b->arena, uint32_t, n);
  w->rank_stream = OPI_ARENA_ARRAY(b->arena, uint32_t, n_ranks + 1);
  b->maker = OPI_ARENA_ARRAY(b->arena, uint32_t, (size_t)b->index.n_units * OPI_PHASES);
  return w->rank == NULL || w->stream == NULL || w->place == NULL || w->ns == NULL ||
                 w->takes == NULL || w->cap == NULL || w->before.first == NULL ||
                 w->after.first == NULL || w->stream_work == NULL || w->rank_stream == NULL ||
                 b->maker == NULL
             ? opi_fail_nomem(b->err, n * sizeof(opi_do), "an order to improve")
             : OPIPE_OK;
}

/* ---- works ---- */

static int64_t bytes_of(const builder *b, const opi_do *a) {
  const opi_problem *p = b->problem;
  const uint64_t *bytes = p->stash_bytes;
  return bytes == NULL ? 1 : (int64_t)bytes[a->stage * p->n_replicas + a->replica];
}

/* Caps in parts of a slice, the unit that a backward frees, if stashes have no bytes. The proof
 * rounds up the stash of each instance. */
static void set_caps(builder *b) {
  const opi_problem *p = b->problem;
  const int64_t scale = p->stash_bytes == NULL ? 1 : (int64_t)p->n_slices * p->n_parts;
  for (uint32_t r = 0; r < b->w->n_ranks; ++r) {
    const uint64_t cap = p->rank_stash_bytes == NULL ? UINT64_MAX : p->rank_stash_bytes[r];
    b->w->cap[r] = cap > (uint64_t)(INT64_MAX / scale) ? INT64_MAX : (int64_t)cap * scale;
  }
  for (uint32_t i = 0; scale > 1 && i < p->n_stages * p->n_replicas; ++i) {
    const uint32_t rank = p->instance_rank[i];
    if (rank != OPIPE_NONE && b->w->cap[rank] != INT64_MAX)
      b->w->cap[rank] -= scale - 1;
  }
}

static void set_work(builder *b, uint32_t rank, uint32_t i, double n_tokens) {
  const opi_do *a = &b->list->items[i];
  opi_works *w = b->w;
  w->rank[i] = rank;
  w->ns[i] = opi_compute_takes(b->problem, b->costs, n_tokens, a);
  if (a->kind == OPI_DO_F)
    w->takes[i] = bytes_of(b, a) * b->problem->n_parts;
  else if (a->kind != OPI_DO_I)
    w->takes[i] = -bytes_of(b, a);
  if (b->problem->mode == OPIPE_MODE_FORWARD)
    w->takes[i] = 0;
  if (a->kind == OPI_DO_F)
    b->maker[event(b, a->stage, a->replica, a, a->slice, 0, OPI_PHASE_F)] = i + 1;
  else if (a->kind != OPI_DO_W)
    b->maker[event(b, a->stage, a->replica, a, a->slice, a->part, OPI_PHASE_I)] = i + 1;
}

/* ---- links ---- */

static void link_to(builder *b, uint32_t maker, double delay) {
  opi_works *w = b->w;
  if (!b->count) {
    w->before.other[b->n_links] = maker;
    w->before.delay[b->n_links] = delay;
    const uint32_t at = w->after.first[maker + 1]++;
    w->after.other[at] = b->work;
    w->after.delay[at] = delay;
  } else {
    ++w->after.first[maker + 2];
  }
  ++b->n_links;
}

static bool needs(void *ctx, const opi_do *a, const opi_need *need) {
  builder *b = ctx;
  if (need->replica == OPIPE_NONE)
    return false;
  const uint32_t maker =
      b->maker[event(b, need->stage, need->replica, a, need->slice, need->part, need->phase)];
  if (maker == 0)
    return false;
  const bool here = b->w->rank[maker - 1] == b->w->rank[b->work];
  link_to(b, maker - 1, here ? 0 : opi_edge_comm(b->costs, need->edge));
  return true;
}

/* The list is complete, so every compute that is read has a producer in it. */
static opipe_status link_all(builder *b, bool count) {
  opi_works *w = b->w;
  b->count = count;
  b->n_links = 0;
  for (b->work = 0; b->work < w->n; ++b->work) {
    const opi_do *a = &w->items[b->work];
    w->before.first[b->work] = b->n_links;
    bool whole = true;
    if (a->kind == OPI_DO_W) {
      const uint32_t input =
          b->maker[event(b, a->stage, a->replica, a, a->slice, a->part, OPI_PHASE_I)];
      whole = input != 0;
      if (whole)
        link_to(b, input - 1, 0);
    } else {
      whole = opi_each_need(&b->index, a, needs, b);
    }
    if (!whole) {
      const opi_do_place place = opi_place_of(b->problem, b->list, w->rank[b->work], b->work);
      return opi_fail(b->err, OPIPE_E_INVALID, "%s: nothing produces what it reads", place.text);
    }
  }
  w->before.first[w->n] = b->n_links;
  return OPIPE_OK;
}

static opipe_status make_links(builder *b) {
  opi_works *w = b->w;
  OPI_TRY(link_all(b, true));
  const size_t n = b->n_links;
  w->before.other = OPI_ARENA_ARRAY(b->arena, uint32_t, n);
  w->before.delay = OPI_ARENA_ARRAY(b->arena, double, n);
  w->after.other = OPI_ARENA_ARRAY(b->arena, uint32_t, n);
  w->after.delay = OPI_ARENA_ARRAY(b->arena, double, n);
  if (w->before.other == NULL || w->before.delay == NULL || w->after.other == NULL ||
      w->after.delay == NULL)
    return opi_fail_nomem(b->err, n * 2 * sizeof(double), "an order to improve");
  for (uint32_t i = 0; i < w->n; ++i)
    w->after.first[i + 2] += w->after.first[i + 1];
  return link_all(b, false); /* after.first [i + 1] moves from the start of i to its end */
}

/* ---- streams ---- */

static bool same_stream(const opi_do *a, const opi_do *b) {
  return a->stage == b->stage && a->replica == b->replica && a->kind == b->kind;
}

/* Streams of a rank are in order of first appearance. */
static opipe_status make_streams(builder *b) {
  opi_works *w = b->w;
  uint32_t *last =
      OPI_ARENA_ARRAY(b->arena, uint32_t, w->n); /* [n_streams] the latest work of each */
  uint32_t *length = OPI_ARENA_ARRAY(b->arena, uint32_t, (size_t)w->n + 1);
  if (last == NULL || length == NULL)
    return opi_fail_nomem(b->err, w->n * sizeof *last, "an order to improve");
  for (uint32_t rank = 0; rank < w->n_ranks; ++rank) {
    const uint32_t own = w->n_streams;
    w->rank_stream[rank] = own;
    for (uint32_t i = w->rank_first[rank]; i < w->rank_first[rank + 1]; ++i) {
      uint32_t s = own;
      while (s < w->n_streams && !same_stream(&w->items[last[s]], &w->items[i]))
        ++s;
      w->n_streams += s == w->n_streams;
      last[s] = i;
      w->stream[i] = s;
      w->place[i] = length[s]++;
    }
  }
  w->rank_stream[w->n_ranks] = w->n_streams;
  w->stream_first = OPI_ARENA_ARRAY(b->arena, uint32_t, (size_t)w->n_streams + 1);
  if (w->stream_first == NULL)
    return opi_fail_nomem(b->err, w->n_streams * sizeof *last, "an order to improve");
  for (uint32_t s = 0; s < w->n_streams; ++s)
    w->stream_first[s + 1] = w->stream_first[s] + length[s];
  for (uint32_t i = 0; i < w->n; ++i)
    w->stream_work[w->stream_first[w->stream[i]] + w->place[i]] = i;
  return OPIPE_OK;
}

opipe_status opi_works_build(const opi_problem *problem, const opi_do_list *list,
                             const opi_costs *costs, opi_arena *arena, opi_works *out,
                             opi_works_order *sequence, opipe_error *err) {
  builder b = {
      .problem = problem, .list = list, .costs = costs, .w = out, .arena = arena, .err = err};
  *out = (opi_works){.n = 0};
  OPI_TRY(opi_costs_check(costs, problem->n_stages, err));
  OPI_TRY(check(&b));
  OPI_TRY(opi_index_build(problem, list, arena, &b.index, err));
  OPI_TRY(make_room(&b));
  set_caps(&b);
  const double n_tokens = opi_order_tokens(problem);
  for (uint32_t rank = 0; rank < list->n_ranks; ++rank) {
    for (uint32_t i = list->rank_first[rank]; i < list->rank_first[rank + 1]; ++i)
      set_work(&b, rank, i, n_tokens);
  }
  OPI_TRY(make_links(&b));
  OPI_TRY(make_streams(&b));
  if (!opi_works_order_make(out, arena, sequence))
    return opi_fail_nomem(err, out->n * sizeof(double), "an order to improve");
  for (uint32_t i = 0; i < out->n; ++i)
    sequence->work[i] = i;
  return OPIPE_OK;
}

bool opi_works_reverse(const opi_works *w, opi_arena *arena, opi_works *out) {
  *out = *w;
  out->before = w->after;
  out->after = w->before;
  out->place = OPI_ARENA_ARRAY(arena, uint32_t, w->n);
  out->takes = OPI_ARENA_ARRAY(arena, int64_t, w->n);
  out->stream_work = OPI_ARENA_ARRAY(arena, uint32_t, w->n);
  if (out->place == NULL || out->takes == NULL || out->stream_work == NULL)
    return false;
  for (uint32_t i = 0; i < w->n; ++i) {
    const uint32_t first = w->stream_first[w->stream[i]], end = w->stream_first[w->stream[i] + 1];
    out->takes[i] = -w->takes[i];
    out->place[i] = end - first - 1 - w->place[i];
    out->stream_work[first + out->place[i]] = i;
  }
  return true;
}

/* ---- sequences ---- */

bool opi_works_order_make(const opi_works *w, opi_arena *arena, opi_works_order *out) {
  *out = (opi_works_order){.work = OPI_ARENA_ARRAY(arena, uint32_t, w->n),
                           .start = OPI_ARENA_ARRAY(arena, double, w->n),
                           .end = OPI_ARENA_ARRAY(arena, double, w->n),
                           .makespan = INFINITY};
  return out->work != NULL && out->start != NULL && out->end != NULL;
}

void opi_works_order_copy(const opi_works *w, const opi_works_order *from, opi_works_order *to) {
  memcpy(to->work, from->work, w->n * sizeof *to->work);
  memcpy(to->start, from->start, w->n * sizeof *to->start);
  memcpy(to->end, from->end, w->n * sizeof *to->end);
  to->makespan = from->makespan;
}

bool opi_works_fits(const opi_works *w, const opi_works_order *sequence, uint32_t *out_rank,
                    int64_t *out_most) {
  for (uint32_t rank = 0; rank < w->n_ranks; ++rank) {
    int64_t held = 0;
    for (uint32_t i = w->rank_first[rank]; i < w->rank_first[rank + 1]; ++i) {
      held += w->takes[sequence->work[i]];
      if (held <= w->cap[rank])
        continue;
      *out_rank = rank;
      *out_most = held;
      return false;
    }
  }
  return true;
}
