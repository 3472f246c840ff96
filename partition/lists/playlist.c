/* SPDX-License-Identifier: Apache-2.0 */
/* Turns lists into a playlist: programs with their costs, messages, and items. */
#include <string.h>

#include "partition/lists/playlist_build.h"

/* ---- programs ---- */

/* The number of pieces of a stage's share of a micro-batch that compute a phase. */
static uint32_t alike(const opi_playlist_maker *m, uint32_t piece, uint32_t phase) {
  const uint32_t first = piece / opi_playlist_pieces(m) * opi_playlist_pieces(m);
  const opi_piece *pieces = m->model->pieces[0];
  uint32_t n = 0;
  for (uint32_t s = first; s < first + opi_playlist_pieces(m); ++s) {
    n += pieces[s].variant != OPIPE_NONE && pieces[s].share == pieces[piece].share &&
         (pieces[s].phases & 1u << phase) != 0;
  }
  return n == 0 ? 1 : n;
}

/* The stash of a micro-batch (the first replica's, if replicas share it) is taken by the phase that
 * makes it and given back by the last that reads it. */
static opipe_status sum_stashes(opi_playlist_maker *m) {
  const size_t n = (size_t)opi_playlist_whole_stages(m) * OPI_PHASES;
  m->taken = OPI_ARENA_ARRAY(&m->scratch, double, n);
  m->given = OPI_ARENA_ARRAY(&m->scratch, double, n);
  if (m->taken == NULL || m->given == NULL)
    return opi_fail_nomem(m->err, n * sizeof(double), "a playlist");
  for (uint32_t c = 0; c < m->cut->n_cells && m->plan->trains; ++c) {
    const opi_cell *cell = &m->cut->cells[c];
    const uint32_t stage = cell->stage / opi_playlist_pieces(m);
    uint32_t last = cell->phase;
    if (!cell->stash || m->model->pieces[0][cell->stage].share != 0)
      continue;
    for (uint32_t i = last; i < OPI_PHASES; ++i)
      last = (cell->readers & 1u << i) != 0 ? i : last;
    m->taken[stage * OPI_PHASES + cell->phase] += (double)cell->n_bytes;
    m->given[stage * OPI_PHASES + last] += (double)cell->n_bytes;
  }
  return OPIPE_OK;
}

/* Pieces of a phase share its stash equally. */
static opi_playlist_work make_work(const opi_playlist_maker *m, uint32_t piece, uint32_t pass) {
  const uint32_t phases = opi_program_phases(pass), whole = piece / opi_playlist_pieces(m);
  opi_playlist_work work = {.piece = piece, .pass = pass};
  for (uint32_t i = 0; i < OPI_PHASES; ++i) {
    if ((phases & 1u << i) == 0)
      continue;
    work.ns += opi_phase_ns(m->plan, m->cut, piece, pass, i);
    work.take_bytes += m->taken[whole * OPI_PHASES + i] / alike(m, piece, i);
    work.give_bytes += m->given[whole * OPI_PHASES + i] / alike(m, piece, i);
  }
  return work;
}

static opipe_status make_works(opi_playlist_maker *m) {
  const uint32_t n = m->plan->n_stages * OPI_PROGRAMS;
  for (uint32_t i = 0; i < n; ++i) {
    if (!m->works[i])
      continue; /* the cut of a forward plan has no such program */
    const opi_playlist_work whole = make_work(m, i / OPI_PROGRAMS, i % OPI_PROGRAMS);
    OPI_TRY(opi_playlist_works_add(m, &whole));
  }
  return OPIPE_OK;
}

/* ---- messages ---- */

static opi_playlist_stream make_stream(const opi_playlist_maker *m, uint32_t message) {
  const opi_list_message *sent = &m->lists->messages[message];
  const opi_list_stream *s = &m->lists->streams[sent->stream];
  const bool credit = s->route == OPI_ROUTE_CREDIT;
  const opi_route *route = credit ? NULL : &m->cut->routes[s->route];
  const uint32_t src = s->src_stage, dst = s->dst_stage;
  return (opi_playlist_stream){.src_rank = s->src_rank,
                               .dst_rank = s->dst_rank,
                               .src_stage = src / opi_playlist_pieces(m),
                               .dst_stage = dst / opi_playlist_pieces(m),
                               .src_replica = (uint16_t)s->src_replica,
                               .dst_replica = (uint16_t)s->dst_replica,
                               .src_slice = (uint16_t)opi_playlist_place(m, src).slice,
                               .dst_slice = (uint16_t)opi_playlist_place(m, dst).slice,
                               .backward = !credit && route->phase != OPI_PHASE_F,
                               .n_bytes = credit || sent->direct ? 0 : route->n_bytes};
}

static uint32_t *stream_of(const opi_playlist_maker *m, uint32_t message) {
  const opi_list_message *sent = &m->lists->messages[message];
  return &m->stream_at[2 * sent->stream + sent->direct];
}

/* Makes the streams that are used, in the order of the lists. */
static opipe_status make_streams(opi_playlist_maker *m) {
  const opi_lists *l = m->lists;
  const size_t n = 2 * (size_t)l->n_streams;
  uint32_t *first = OPI_ARENA_ARRAY(&m->scratch, uint32_t, n); /* first message of each */
  m->out->streams = OPI_ARENA_ARRAY(m->arena, opi_playlist_stream, n);
  if (first == NULL || m->out->streams == NULL)
    return opi_fail_nomem(m->err, n * sizeof *m->out->streams, "a playlist");
  for (uint32_t i = 0; i < l->n_messages; ++i) {
    uint32_t *at = stream_of(m, i);
    if (m->travels[i] && *at == OPIPE_NONE) {
      *at = 0;
      first[at - m->stream_at] = i;
    }
  }
  for (size_t s = 0; s < n; ++s) {
    if (m->stream_at[s] == OPIPE_NONE)
      continue;
    m->stream_at[s] = m->out->n_streams;
    m->out->streams[m->out->n_streams++] = make_stream(m, first[s]);
  }
  return OPIPE_OK;
}

/* ---- items ---- */

/* The operation of a message's end; OPI_PLAY_KINDS: none. */
static uint32_t message_kind(uint32_t kind) {
  switch (kind) {
    case OPI_ACT_SEND:
      return OPI_PLAY_SEND;
    case OPI_ACT_POST:
      return OPI_PLAY_POST;
    case OPI_ACT_RECV:
      return OPI_PLAY_WAIT;
    case OPI_ACT_DRAIN:
      return OPI_PLAY_DRAIN;
    case OPI_ACT_RESERVE:
      return OPI_PLAY_RESERVE;
    default:
      return OPI_PLAY_KINDS;
  }
}

static uint32_t request_end(const opi_playlist_maker *m, uint32_t rank) {
  const opi_lists *l = m->lists;
  return m->plan->trains ? l->rank_first[rank + 1] : l->request_first[rank * l->n_positions + 1];
}

/* Finds the messages that are sent and the programs that run, before items are listed. */
static void find_used(opi_playlist_maker *m) {
  for (uint32_t rank = 0; rank < m->plan->n_ranks; ++rank) {
    for (uint32_t i = m->lists->rank_first[rank]; i < request_end(m, rank); ++i) {
      const opi_step *step = &m->lists->steps[i];
      if (step->kind == OPI_ACT_SEND && (m->twice || step->lap == 0))
        m->travels[step->route] = true;
      if (step->kind == OPI_ACT_COMPUTE)
        m->works[step->stage * OPI_PROGRAMS + step->pass] = true;
    }
  }
}

opipe_status opi_playlist_add(opi_playlist_maker *m, const opi_playlist_item *item) {
  if (!opi_arena_grow(&m->scratch, (void **)&m->out->items, &m->room_items, m->n_items + 1,
                      sizeof *item))
    return opi_fail_nomem(m->err, (uint64_t)m->n_items * sizeof *item, "a playlist");
  m->out->items[m->n_items++] = *item;
  return OPIPE_OK;
}

/* Whether the end of a message is played. A single request leaves out other requests' messages. */
static bool is_played(const opi_playlist_maker *m, const opi_step *step) {
  return message_kind(step->kind) != OPI_PLAY_KINDS && (m->twice || step->lap == 0) &&
         m->travels[step->route];
}

static opipe_status add_message(opi_playlist_maker *m, const opi_step *step) {
  const uint32_t per_request = m->plan->n_microbatches / m->lists->n_positions;
  const opi_playlist_item item = {
      .kind = (uint8_t)message_kind(step->kind),
      .next = (uint8_t)(m->twice ? step->next : 0),
      .lap = (int16_t)(m->twice ? step->lap : 0),
      .at = *stream_of(m, step->route),
      .microbatch = m->lists->messages[step->route].microbatch % per_request};
  return opi_playlist_add(m, &item);
}

static opipe_status add_compute(opi_playlist_maker *m, const opi_step *step) {
  const uint32_t per_request = m->plan->n_microbatches / m->lists->n_positions;
  const opi_playlist_item item = {.kind = OPI_PLAY_COMPUTE,
                                  .pass = (uint8_t)step->pass,
                                  .next = (uint8_t)(m->twice ? step->next : 0),
                                  .replica = (uint16_t)step->replica,
                                  .at = step->stage,
                                  .microbatch = step->microbatch % per_request};
  return opi_playlist_compute(m, step, &item);
}

static opipe_status add_step(opi_playlist_maker *m, uint32_t rank, const opi_step *step) {
  switch (step->kind) {
    case OPI_ACT_COMPUTE:
      return add_compute(m, step);
    case OPI_ACT_REDUCE:
      return opi_playlist_sums_reduce(m, rank, step);
    case OPI_ACT_UPDATE:
      return opi_playlist_sums_update(m, rank);
    case OPI_ACT_SUM:
    case OPI_ACT_AWAIT:
      return opi_playlist_groups_step(m, step);
    case OPI_ACT_OFFLOAD:
    case OPI_ACT_LEAVE:
    case OPI_ACT_RELOAD:
    case OPI_ACT_RETURN:
      return opi_playlist_move(m, step);
    default: /* LOAD, STORE, COPY: no time of their own */
      return is_played(m, step) ? add_message(m, step) : OPIPE_OK;
  }
}

/* Adds a batch: its played operations begin together. */
static opipe_status add_batch(opi_playlist_maker *m, const opi_step *steps) {
  opi_playlist_item item = {.kind = OPI_PLAY_BATCH};
  for (uint32_t i = 0; i < steps->batch; ++i)
    item.at += is_played(m, &steps[i]);
  return item.at == 0 ? OPIPE_OK : opi_playlist_add(m, &item);
}

/* A stream's receives posted before its first request come first. */
static opipe_status list_rank(opi_playlist_maker *m, uint32_t rank) {
  const opi_lists *l = m->lists;
  m->out->rank_first[rank] = m->n_items;
  for (uint32_t i = l->rank_first[rank]; !m->plan->trains && i < l->rank_first[rank + 1]; ++i) {
    if (l->steps[i].kind == OPI_ACT_POST && l->steps[i].lap > 0 && m->travels[l->steps[i].route])
      OPI_TRY(add_message(m, &l->steps[i]));
  }
  for (uint32_t i = l->rank_first[rank]; i < request_end(m, rank); ++i) {
    if (l->steps[i].batch != 0)
      OPI_TRY(add_batch(m, &l->steps[i]));
    OPI_TRY(add_step(m, rank, &l->steps[i]));
  }
  m->out->rank_first[rank + 1] = m->n_items;
  return OPIPE_OK;
}

static opipe_status list_ranks(opi_playlist_maker *m) {
  for (uint32_t rank = 0; rank < m->plan->n_ranks; ++rank)
    OPI_TRY(list_rank(m, rank));
  m->out->items = opi_arena_copy(m->arena, m->n_items == 0 ? (const void *)"" : m->out->items,
                                 m->n_items * sizeof *m->out->items);
  return m->out->items == NULL
             ? opi_fail_nomem(m->err, m->n_items * sizeof *m->out->items, "a playlist")
             : OPIPE_OK;
}

/* ---- all of it ---- */

static opipe_status allocate(opi_playlist_maker *m) {
  const size_t n_streams = 2 * (size_t)m->lists->n_streams;
  m->out->n_pieces = opi_playlist_pieces(m);
  m->out->rank_first = OPI_ARENA_ARRAY(m->arena, uint32_t, (size_t)m->plan->n_ranks + 1);
  m->stream_at = OPI_ARENA_ARRAY(&m->scratch, uint32_t, n_streams);
  m->travels = OPI_ARENA_ARRAY(&m->scratch, bool, m->lists->n_messages);
  m->works = OPI_ARENA_ARRAY(&m->scratch, bool, (size_t)m->plan->n_stages *OPI_PROGRAMS);
  if (m->out->rank_first == NULL || m->stream_at == NULL || m->travels == NULL || m->works == NULL)
    return opi_fail_nomem(m->err, m->lists->n_messages, "a playlist");
  if (n_streams != 0)
    memset(m->stream_at, 0xff, n_streams * sizeof *m->stream_at);
  return OPIPE_OK;
}

static opipe_status make_all(opi_playlist_maker *m) {
  OPI_TRY(allocate(m));
  find_used(m);
  OPI_TRY(sum_stashes(m));
  OPI_TRY(make_streams(m));
  if (m->plan->trains)
    OPI_TRY(opi_playlist_sums_make(m));
  OPI_TRY(opi_playlist_points_find(m));
  OPI_TRY(make_works(m));
  OPI_TRY(opi_playlist_groups_make(m));
  OPI_TRY(opi_playlist_moves_make(m));
  return list_ranks(m);
}

/* Whether last backwards run in parts, by the file of a plan that was read. */
static bool has_parts(const opi_playlist *file) {
  uint32_t i = 0;
  while (i < file->n_works && file->works[i].part == 0)
    ++i;
  return i < file->n_works;
}

opipe_status opi_playlist_build(const opi_cut_model *model, const opi_lists *lists,
                                const opi_playlist_facts *facts, opi_arena *arena,
                                opi_playlist **out_playlist, opipe_error *err) {
  const opi_piece_plan *plan = &model->piece_plan;
  opi_playlist_maker m = {
      .model = model,
      .plan = plan,
      .lists = lists,
      .cut = model->cuts[0],
      .sum_bytes = facts->sums,
      .file = facts->file,
      .in_parts = facts->file == NULL ? facts->in_parts : has_parts(facts->file),
      .out = OPI_ARENA_NEW(arena, opi_playlist),
      .arena = arena,
      .twice = plan->whole->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED,
      .err = err};
  if (m.out == NULL)
    return opi_fail_nomem(err, sizeof *m.out, "a playlist");
  opi_arena_init(&m.scratch, arena->allocator, 0);
  const opipe_status status = make_all(&m);
  opi_arena_release(&m.scratch);
  if (status == OPIPE_OK)
    *out_playlist = m.out;
  return status;
}
