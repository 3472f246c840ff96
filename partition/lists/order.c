/* SPDX-License-Identifier: Apache-2.0 */
/* Times of the schedule's records, on the clock (partition/plan/clock.h): the record that can start
 * first always goes next, over links of fixed times. All ranks begin a mini-batch together, since a
 * step is a barrier; a double-buffered body finds the outputs of its mini-batch's forwards from the
 * body before. */
#include <stdio.h>
#include <string.h>

#include "partition/lists/lists.h"
#include "partition/plan/clock.h"

/* A phase of a micro-batch. */
typedef struct pass {
  uint32_t stage, microbatch, phase;
} pass;

typedef struct replay {
  const opi_piece_plan *plan;
  const opi_cut *cut;
  opi_times *t;
  uint32_t n_pieces; /* of a stage of the schedule */
  pass missing;      /* the input that an action last waited for */
  uint32_t *credit;  /* [n_actions * n_givers] for a forward: the actions whose ends give the credit
                        to start; OPIPE_NONE: none */
  uint32_t n_givers;
  opi_clock clock; /* events: phases, by phase_index */
  uint32_t *next;  /* [n_ranks] action */
  uint32_t n_run;
  uint64_t *free_at_ns; /* [n_ranks] */
  opipe_error *err;
} replay;

static size_t phase_index(const opi_piece_plan *plan, uint32_t stage, uint32_t m, uint32_t phase) {
  return ((size_t)stage * plan->n_microbatches + m) * OPI_PHASES + phase;
}

static const char *pass_letter(uint32_t program) {
  static const char *const letters[] = {"F", "B", "I", "W"};
  return program < OPI_COUNT(letters) ? letters[program] : "?";
}

/* ---- owners of phases ---- */

/* The records are checked (partition/program/records.h): each phase appears once. */
static void note_phases(replay *r, uint32_t a) {
  const opi_piece_plan *plan = r->plan;
  const opipe_action *action = &plan->actions[a];
  const uint32_t phases =
      opi_program_phases(opi_action_program(action)) & r->cut->phases[action->stage];
  const size_t place = (size_t)action->stage * plan->n_microbatches + action->microbatch;
  for (uint32_t phase = 0; phase < OPI_PHASES; ++phase) {
    if ((phases & 1u << phase) != 0)
      r->t->phase_action[place * OPI_PHASES + phase] = a;
  }
  r->t->replica_of[place] = action->replica;
}

/* ---- credits ---- */

uint32_t opi_passes_find(const opi_piece_plan *plan, const uint32_t *replica_of, uint32_t stage,
                         uint32_t replica, uint32_t far, uint32_t other, uint32_t *out) {
  const uint32_t rank = opi_piece_rank(plan, stage, replica);
  uint32_t n = 0;
  for (uint32_t a = plan->rank_first[rank]; a < plan->rank_first[rank + 1]; ++a) {
    const opipe_action *action = &plan->actions[a];
    if (action->stage == stage && action->replica == replica &&
        replica_of[(size_t)far * plan->n_microbatches + action->microbatch] == other)
      out[n++] = a;
  }
  return n;
}

static void note_pair(replay *r, const opi_credit_pair *pair, uint32_t giver, uint32_t *starts,
                      uint32_t *ends) {
  const opi_piece_plan *plan = r->plan;
  const uint32_t first = pair->first_replica, last = pair->last_replica;
  const uint32_t *replica_of = r->t->replica_of;
  if (opi_piece_rank(plan, pair->first, first) == OPIPE_NONE ||
      opi_piece_rank(plan, pair->last, last) == OPIPE_NONE)
    return;
  const uint32_t n =
      opi_passes_find(plan, replica_of, pair->first, first, pair->last, last, starts);
  if (opi_passes_find(plan, replica_of, pair->last, last, pair->first, first, ends) != n)
    return;
  for (uint32_t k = plan->whole->in_flight; k < n; ++k)
    r->credit[(size_t)starts[k] * r->n_givers + giver] = ends[k - plan->whole->in_flight];
}

/* Limits the micro-batches between the first stage and the last. */
static opipe_status note_credits(replay *r, opi_arena *arena) {
  const opi_piece_plan *plan = r->plan;
  const uint32_t n = opi_credit_pairs(plan);
  r->n_givers = plan->apart ? plan->whole->n_replicas : 1;
  const size_t n_credits = (size_t)plan->n_actions * r->n_givers;
  uint32_t *starts = OPI_ARENA_ARRAY(arena, uint32_t, plan->n_microbatches);
  uint32_t *ends = OPI_ARENA_ARRAY(arena, uint32_t, plan->n_microbatches);
  r->credit = OPI_ARENA_ARRAY(arena, uint32_t, n_credits);
  if (starts == NULL || ends == NULL || r->credit == NULL)
    return opi_fail_nomem(r->err, n_credits * sizeof *ends, "credits");
  memset(r->credit, 0xff, n_credits * sizeof *r->credit);
  for (uint32_t i = 0; i < n && !plan->trains && plan->whole->in_flight != 0; ++i) {
    const opi_credit_pair pair = opi_credit_pair_at(plan, i);
    note_pair(r, &pair, i % r->n_givers, starts, ends);
  }
  return OPIPE_OK;
}

/* ---- times ---- */

/* When a phase's output is ready for a reader; 0: since the body before. */
static uint64_t made_at(replay *r, const opipe_action *reader, uint32_t stage, uint32_t m,
                        uint32_t phase) {
  const size_t i = phase_index(r->plan, stage, m, phase);
  const uint32_t maker = r->t->phase_action[i];
  const bool before = maker != OPIPE_NONE && opi_action_is_next(&r->plan->actions[maker]) &&
                      !opi_action_is_next(reader);
  if (!before && r->t->phase_end[i] == UINT64_MAX)
    r->missing = (pass){stage, m, phase};
  return before ? 0 : r->t->phase_end[i];
}

/* When a route's tensor is ready. */
static uint64_t arrives_at(replay *r, const opipe_action *reader, const opi_route *route) {
  const opi_piece_plan *plan = r->plan;
  const uint32_t m = reader->microbatch;
  const uint64_t made = made_at(r, reader, route->src_stage, m, route->phase);
  const uint32_t *replicas = r->t->replica_of;
  const uint32_t src = opi_piece_rank(
      plan, route->src_stage, replicas[(size_t)route->src_stage * plan->n_microbatches + m]);
  const uint32_t dst = opi_piece_rank(
      plan, route->dst_stage, replicas[(size_t)route->dst_stage * plan->n_microbatches + m]);
  if (made == UINT64_MAX || made == 0 || src == dst)
    return made;
  return made + opi_link_ns(&plan->whole->link, route->n_bytes);
}

/* When the cell is ready for a reader; UINT64_MAX: not yet known. */
static uint64_t ready_at(replay *r, const opipe_action *reader, const opi_cell *cell) {
  uint64_t at = 0;
  if (cell->source == OPI_CELL_REQUEST)
    return 0;
  if (cell->source == OPI_CELL_MADE)
    return made_at(r, reader, cell->stage, reader->microbatch, cell->phase);
  for (uint32_t i = cell->route; i < cell->route + cell->n_routes; ++i) {
    const uint64_t arrived = arrives_at(r, reader, &r->cut->routes[i]);
    at = arrived > at ? arrived : at;
  }
  return at;
}

/* When everything that the phases read and do not make is ready; UINT64_MAX: r->missing is not
 * ready. */
static uint64_t inputs_at(replay *r, const opipe_action *action) {
  const uint32_t phases = opi_program_phases(opi_action_program(action));
  const uint32_t m = action->microbatch;
  uint64_t at = 0;
  if ((phases & 1u << OPI_PHASE_F) == 0) { /* the action's own forward, however much of it is read
                                            */
    at = made_at(r, action, r->cut->forward_of[action->stage], m, OPI_PHASE_F);
    if (phases == 1u << OPI_PHASE_W) {
      const uint64_t input = made_at(r, action, action->stage, m, OPI_PHASE_I);
      at = input > at ? input : at;
    }
    if (at == UINT64_MAX)
      return at;
  }
  const uint32_t end = r->cut->cell_first[action->stage + 1];
  for (uint32_t c = r->cut->cell_first[action->stage]; c < end && at != UINT64_MAX; ++c) {
    const opi_cell *cell = &r->cut->cells[c];
    if ((cell->readers & phases) == 0 ||
        (cell->source == OPI_CELL_MADE && (phases & 1u << cell->phase) != 0))
      continue;
    const uint64_t ready = ready_at(r, action, cell);
    at = ready > at ? ready : at;
  }
  return at;
}

static pass first_pass(const opipe_action *action) {
  const uint32_t phases = opi_program_phases(opi_action_program(action));
  uint32_t phase = 0;
  while ((phases & 1u << phase) == 0)
    ++phase;
  return (pass){action->stage, action->microbatch, phase};
}

/* When all members of a tensor group have come to a record at which they make results together: all
 * have the same records. UINT64_MAX: r->missing has not run. */
static uint64_t meet_at(replay *r, uint32_t a) {
  const opi_piece_plan *plan = r->plan;
  const uint32_t width = opi_plan_width(plan->whole), rank = plan->actions[a].rank;
  const uint32_t behind = a - plan->rank_first[rank];
  uint64_t at = 0;
  if (width == 1 || behind == 0 || !opi_piece_sums(plan, plan->actions[a].stage))
    return 0;
  for (uint32_t k = rank - rank % width; k < rank - rank % width + width; ++k) {
    const uint32_t before = plan->rank_first[k] + behind - 1;
    if (r->next[k] <= before) {
      r->missing = first_pass(&plan->actions[before]);
      return UINT64_MAX;
    }
    at = r->t->end[before] > at ? r->t->end[before] : at;
  }
  return at;
}

/* When an action's inputs and its credit are ready. *out_stopped: the action that waits, itself or
 * the second of its pair; both run at once, so neither feeds the other. */
static uint64_t startable_at(replay *r, uint32_t a, uint32_t *out_stopped) {
  const opipe_action *action = &r->plan->actions[a];
  uint64_t at = inputs_at(r, action);
  *out_stopped = a;
  const uint64_t met = at == UINT64_MAX ? at : meet_at(r, a);
  at = met > at ? met : at;
  for (uint32_t i = 0; i < r->n_givers; ++i) {
    const uint32_t credit = r->credit[(size_t)a * r->n_givers + i];
    if (credit != OPIPE_NONE && at != UINT64_MAX && r->t->end[credit] == 0) {
      const opipe_action *giver = &r->plan->actions[credit];
      r->missing = (pass){giver->stage, giver->microbatch, OPI_PHASE_F};
      return UINT64_MAX;
    }
    if (credit != OPIPE_NONE && at < r->t->end[credit])
      at = r->t->end[credit];
  }
  if (at != UINT64_MAX && (action->flags & OPIPE_ACTION_OVERLAP_NEXT) != 0) {
    *out_stopped = a + 1;
    at = inputs_at(r, action + 1) == UINT64_MAX ? UINT64_MAX : at;
  }
  return at;
}

static uint64_t whole_ns(double x) {
  return x < 1 ? 1 : x > 1e15 ? (uint64_t)1e15 : (uint64_t)x;
}

static void run_action(replay *r, uint32_t a, uint64_t start) {
  const opi_piece_plan *plan = r->plan;
  const opipe_action *action = &plan->actions[a];
  static const uint32_t count = OPI_PHASES;
  const uint32_t program = opi_action_program(action), phases = opi_program_phases(program);
  uint64_t end = start;
  for (uint32_t p = 0; p < count; ++p) {
    end += (phases & 1u << p) != 0 ? whole_ns(opi_phase_ns(plan, r->cut, action->stage, program, p))
                                   : 0;
  }
  r->t->start[a] = start;
  r->t->end[a] = end;
  for (uint32_t p = 0; p < count; ++p) {
    if ((phases & 1u << p) == 0)
      continue;
    r->t->phase_start[phase_index(plan, action->stage, action->microbatch, p)] = start;
    r->t->phase_end[phase_index(plan, action->stage, action->microbatch, p)] = end;
    /* its end is now known, and with it the start of readers */
    opi_clock_happen(&r->clock, phase_index(plan, action->stage, action->microbatch, p), 0);
  }
  r->free_at_ns[action->rank] = end;
  r->t->sequence[r->n_run++] = a;
  ++r->next[action->rank];
}

/* The action that makes the rank's missing input; *out_stopped: the rank's action that waits for
 * it. */
static uint32_t awaited(replay *r, uint32_t rank, uint32_t *out_stopped) {
  const opi_piece_plan *plan = r->plan;
  uint32_t a = 0;
  (void)startable_at(r, r->next[rank], out_stopped);
  while (a + 1 < plan->n_actions && (plan->actions[a].stage != r->missing.stage ||
                                     plan->actions[a].microbatch != r->missing.microbatch ||
                                     (opi_program_phases(opi_action_program(&plan->actions[a])) &
                                      1u << r->missing.phase) == 0))
    ++a;
  return a;
}

static int describe(const replay *r, uint32_t a, char *text, size_t room) {
  const opipe_action *action = &r->plan->actions[a];
  const uint32_t piece = action->stage % r->n_pieces;
  char of[24] = "";
  if (piece > 0)
    (void)snprintf(of, sizeof of, " (piece %u)", piece);
  return snprintf(text, room, "rank %u, action %u: %u%s%u%s", action->rank,
                  a - r->plan->rank_first[action->rank], action->stage / r->n_pieces,
                  pass_letter(opi_action_program(action)), action->microbatch, of);
}

/* Follows "waits for" from a stopped rank until a rank repeats, and reports that cycle. */
static opipe_status stuck(replay *r) {
  const opi_piece_plan *plan = r->plan;
  char text[460] = "";
  int at = 0;
  uint32_t rank = 0, waits = 0;
  while (r->next[rank] == plan->rank_first[rank + 1])
    ++rank;
  for (uint32_t i = 0; i < plan->n_ranks; ++i)
    rank = plan->actions[awaited(r, rank, &waits)].rank;
  const uint32_t first = rank;
  do {
    const uint32_t on = awaited(r, rank, &waits);
    if (at > 0)
      at += snprintf(text + at, sizeof text - (size_t)at, "; ");
    at += describe(r, waits, text + at, sizeof text - (size_t)at);
    at += snprintf(text + at, sizeof text - (size_t)at, " waits for ");
    at += describe(r, on, text + at, sizeof text - (size_t)at);
    rank = plan->actions[on].rank;
  } while (rank != first && (size_t)at + 180 < sizeof text);
  return opi_fail(r->err, OPIPE_E_INVALID, "schedule '%s' deadlocks: %s%s",
                  plan->whole->schedule.name, text, rank == first ? "" : "; and so on");
}

/* The rank's next record on the clock. A record whose start is known but later is looked at again
 * then, so that records begin in the order of their starts. */
static double act(void *ctx, uint32_t rank, double now) {
  replay *r = ctx;
  const uint32_t a = r->next[rank];
  uint32_t stopped = 0;
  if (a == r->plan->rank_first[rank + 1])
    return OPI_CLOCK_STANDS;
  uint64_t at = startable_at(r, a, &stopped);
  if (at == UINT64_MAX) {
    return opi_clock_wait(
        &r->clock, rank,
        phase_index(r->plan, r->missing.stage, r->missing.microbatch, r->missing.phase));
  }
  at = at < r->free_at_ns[rank] ? r->free_at_ns[rank] : at;
  if ((double)at > now)
    return opi_clock_again(&r->clock, rank, (double)at);
  run_action(r, a, at);
  return (double)r->free_at_ns[rank];
}

static opipe_status run_all(replay *r, opi_arena *arena) {
  const opi_clock_rules rules = {act, NULL, r, OPI_CLOCK_STARTS};
  OPI_TRY(opi_clock_open(r->plan->n_ranks, &rules, arena, &r->clock, r->err));
  OPI_TRY(opi_clock_run(&r->clock, r->err));
  return r->n_run == r->plan->n_actions ? OPIPE_OK : stuck(r);
}

/* Uses positions as times, see lists.h. */
static opipe_status place_all(replay *r, opi_arena *arena) {
  const opi_piece_plan *plan = r->plan;
  r->t->start = OPI_ARENA_ARRAY(arena, uint64_t, plan->n_actions);
  r->t->end = OPI_ARENA_ARRAY(arena, uint64_t, plan->n_actions);
  if (r->t->start == NULL || r->t->end == NULL)
    return opi_fail_nomem(r->err, plan->n_actions * sizeof(uint64_t), "a schedule's times");
  r->t->periodic = true;
  for (uint32_t rank = 0; rank < plan->n_ranks; ++rank) {
    const uint32_t first = plan->rank_first[rank], n = plan->rank_first[rank + 1] - first;
    for (uint32_t a = first; a < first + n; ++a) {
      const opipe_action *action = &plan->actions[a];
      const uint32_t phases = opi_program_phases(opi_action_program(action));
      r->t->start[a] = a - first + (opi_action_is_next(action) ? 0 : n);
      r->t->end[a] = r->t->start[a] + 1;
      for (uint32_t p = 0; p < OPI_PHASES; ++p) {
        if ((phases & 1u << p) == 0)
          continue;
        const size_t i = phase_index(plan, action->stage, action->microbatch, p);
        r->t->phase_start[i] = r->t->start[a];
        r->t->phase_end[i] = r->t->end[a];
      }
    }
  }
  return OPIPE_OK;
}

opipe_status opi_times_build(const opi_piece_plan *plan, const opi_cut *cut, opi_arena *arena,
                             opi_times *t, opipe_error *err) {
  const size_t places = (size_t)plan->n_stages * plan->n_microbatches;
  replay r = {.plan = plan, .cut = cut, .t = t, .n_pieces = plan->n_pieces, .err = err};
  *t = (opi_times){.periodic = false};
  t->start = OPI_ARENA_ARRAY(arena, uint64_t, plan->n_actions);
  t->end = OPI_ARENA_ARRAY(arena, uint64_t, plan->n_actions);
  t->phase_start = opi_arena_array(arena, places * OPI_PHASES, sizeof(uint64_t));
  t->phase_end = opi_arena_array(arena, places * OPI_PHASES, sizeof(uint64_t));
  t->phase_action = opi_arena_array(arena, places * OPI_PHASES, sizeof(uint32_t));
  t->replica_of = OPI_ARENA_ARRAY(arena, uint32_t, places);
  t->sequence = OPI_ARENA_ARRAY(arena, uint32_t, plan->n_actions);
  r.next = OPI_ARENA_ARRAY(arena, uint32_t, plan->n_ranks);
  r.free_at_ns = OPI_ARENA_ARRAY(arena, uint64_t, plan->n_ranks);
  if (t->start == NULL || t->end == NULL || t->phase_start == NULL || t->phase_end == NULL ||
      t->phase_action == NULL || t->replica_of == NULL || t->sequence == NULL || r.next == NULL ||
      r.free_at_ns == NULL)
    return opi_fail_nomem(err, places * OPI_PHASES * sizeof(uint64_t), "a schedule's times");
  memset(t->phase_end, 0xff, places * OPI_PHASES * sizeof(uint64_t));
  memset(t->phase_action, 0xff, places * OPI_PHASES * sizeof(uint32_t));
  memset(t->replica_of, 0xff, places * sizeof(uint32_t));
  for (uint32_t rank = 0; rank < plan->n_ranks; ++rank)
    r.next[rank] = plan->rank_first[rank];
  for (uint32_t a = 0; a < plan->n_actions; ++a)
    note_phases(&r, a);
  const bool periodic = opi_plan_is_periodic(plan->whole);
  if (!periodic || plan->trains) {
    OPI_TRY(note_credits(&r, arena));
    OPI_TRY(run_all(&r, arena));
  }
  t->clock_start = t->start;
  t->clock_end = t->end;
  OPI_TRY(opi_times_await(plan, cut, arena, t, err));
  return periodic ? place_all(&r, arena) : OPIPE_OK;
}
