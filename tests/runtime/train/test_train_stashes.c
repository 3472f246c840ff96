/* SPDX-License-Identifier: Apache-2.0 */
/* How many micro-batches a training plan keeps: what it has room for is the most that the
 * schedule's records hold at once, and these are what the papers say, rank by rank, over ranks and
 * micro-batches; and no tensor lies where another is still read. (The closed formulas over wide
 * grids, without a model: tests/plugins/schedules.) ctest: timeout=300 */
#include <stdio.h>
#include <stdlib.h>

#include "partition/lists/lists.h"
#include "partition/program/model.h"
#include "tests/runtime/train/kit.h"

enum { ROWS = 8, TOKENS = 8, ALIGNMENT = 64 };

typedef uint32_t formula_fn(uint32_t rank, uint32_t p, uint32_t m);

static uint32_t least(uint32_t a, uint32_t b) {
  return a < b ? a : b;
}
static uint32_t one(uint32_t r, uint32_t p, uint32_t m) {
  (void)r;
  (void)p;
  (void)m;
  return 1;
}
static uint32_t all(uint32_t r, uint32_t p, uint32_t m) {
  (void)r;
  (void)p;
  return m;
}
static uint32_t all_of_two(uint32_t r, uint32_t p, uint32_t m) {
  (void)r;
  (void)p;
  return 2 * m;
}
static uint32_t in_flight(uint32_t r, uint32_t p, uint32_t m) {
  return least(m, p - r);
}
static uint32_t policy_b(uint32_t r, uint32_t p, uint32_t m) {
  return least(m, 2 * (p - r) - 1);
}
static uint32_t at_most_two(uint32_t r, uint32_t p, uint32_t m) {
  return least(2, in_flight(r, p, m));
}
/* N = D, units of N = D, fewer: held against the formula of one full unit only */
static uint32_t two_directions(uint32_t r, uint32_t p, uint32_t m) {
  return m == p ? (r < p / 2 ? p / 2 + 1 + r : 3 * p / 2 - r) : 0;
}
static uint32_t megatron(uint32_t r, uint32_t p, uint32_t m) {
  return m == p ? 2 * m : least(2 * m, 2 * (p - r - 1) + p + 1);
}
static uint32_t h1(uint32_t r, uint32_t p, uint32_t m) {
  (void)r;
  return m >= 2 * p ? p : 0;
}
static uint32_t h2(uint32_t r, uint32_t p, uint32_t m) {
  (void)r;
  return m >= 2 * p ? 2 * p - 1 : 0;
}
static uint32_t slices_all(uint32_t r, uint32_t p, uint32_t m) {
  (void)r;
  (void)p;
  return 4 * m;
}
static uint32_t slices_few(uint32_t r, uint32_t p, uint32_t m) {
  return least(4 * m, p - r - 1 + 4);
}

/* 0: no formula for this size; slots are compared with the records all the same. */
static const struct {
  const char *schedule;
  formula_fn *formula; /* NULL: none closed */
  bool even;           /* micro-batches in multiples of the ranks */
} rows[] = {{"sequential", one, false},
            {"gpipe", all, false},
            {"1f1b", in_flight, false},
            {"1f1b:policy=pb", policy_b, false},
            {"1f1b:eager=1", policy_b, false},
            {"1f1b:depth=2", at_most_two, false},
            {"2bw", in_flight, true},
            {"looped-bfs", all_of_two, false},
            {"interleaved", megatron, true},
            {"chimera", two_directions, false},
            {"zb-h1", h1, false},
            {"zb-h2", h2, false},
            {"zb-auto", NULL, false},
            {"zb-interleaved", NULL, true},
            {"zbv", NULL, false},
            {"v-half", NULL, false},
            {"v-min", NULL, false},
            {"dualpipev", NULL, false},
            {"terapipe:slices=4", slices_all, false},
            {"seq1f1b:slices=4", slices_few, false}};

/* ---- stashes of the records ---- */

static bool releases(const opipe_action *a, bool until_weights) {
  return a->pass == OPIPE_PASS_BACKWARD ||
         a->pass == (until_weights ? OPIPE_PASS_BACKWARD_WEIGHT : OPIPE_PASS_BACKWARD_INPUT);
}

/* The most forwards of a rank, of one instance (stage OPIPE_NONE: of all), whose release is still
 * to come; double-buffered bodies begin with those of the body before. */
static uint32_t held_most(const opi_piece_plan *plan, uint32_t rank, uint32_t stage,
                          uint32_t replica, bool until_weights) {
  uint32_t held = 0, most = 0;
  for (uint32_t round = 0; round < 2; ++round) {
    for (uint32_t i = plan->rank_first[rank]; i < plan->rank_first[rank + 1]; ++i) {
      const opipe_action *a = &plan->actions[i];
      if (stage != OPIPE_NONE && (a->stage != stage || a->replica != replica))
        continue;
      if (round == 0) {
        held += opi_action_is_next(a);
        continue;
      }
      held += a->pass == OPIPE_PASS_FORWARD;
      most = held > most ? held : most;
      held -= releases(a, until_weights);
    }
  }
  return most;
}

/* ---- room of the lists ---- */

typedef struct stashes {
  const opi_cut_model *model;
  const opi_piece_plan *plan; /* slices are stages */
  opi_lists *lists;
  const char *what;
  uint32_t n_checked;
} stashes;

/* Made by the forward for a backward of the same stage, and for nobody else. */
static bool is_own(const opi_cut *cut, uint32_t c) {
  const opi_cell *cell = &cut->cells[c];
  if (cell->source != OPI_CELL_MADE || cell->phase != OPI_PHASE_F || (cell->readers & ~1u) == 0 ||
      cell->state != 0 || cell->output != OPIPE_NONE)
    return false;
  for (uint32_t r = 0; r < cut->n_routes; ++r) {
    if (cut->routes[r].src_cell == c)
      return false;
  }
  return true;
}

static uint32_t count_slots(const stashes *s, uint32_t c, uint32_t replica) {
  const uint32_t n = s->plan->n_microbatches, stage = s->model->cuts[0]->cells[c].stage;
  const uint64_t *offsets = &s->lists->offsets[(size_t)c * n];
  const uint32_t *of = &s->lists->replica_of[(size_t)stage * n];
  uint32_t slots = 0;
  for (uint32_t m = 0; m < n; ++m) {
    uint32_t k = 0;
    while (k < m && (of[k] != replica || offsets[k] != offsets[m]))
      ++k;
    slots += of[m] == replica && k == m;
  }
  return slots;
}

/* Double-buffered: a micro-batch has its slot in every body, so that slots come round in turns of
 * as many as are held, or more where that does not divide. */
static uint32_t round_the_circle(const opi_piece_plan *plan, uint32_t held) {
  const uint32_t m = plan->n_microbatches, turns = m / held;
  return plan->whole->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED ? (m + turns - 1) / turns : held;
}

static void check_cells(stashes *s) {
  const opi_cut *cut = s->model->cuts[0];
  for (uint32_t c = 0; c < cut->n_cells; ++c) {
    for (uint32_t replica = 0; is_own(cut, c) && replica < s->plan->n_replicas; ++replica) {
      const uint32_t stage = cut->cells[c].stage;
      uint32_t wanted = held_most(s->plan, opi_piece_rank(s->plan, stage, replica), stage, replica,
                                  (cut->cells[c].readers & 1u << OPI_PHASE_W) != 0);
      const uint32_t found = count_slots(s, c, replica);
      wanted = round_the_circle(s->plan, wanted);
      ++s->n_checked;
      if (found != wanted) {
        OPI_FAIL("%s: '%s' of stage %u, replica %u has %u slots, the records hold %u", s->what,
                 cut->cells[c].name, stage, replica, found, wanted);
      }
    }
  }
}

/* ---- bodies that end: packed ---- */

/* One micro-batch of a tensor, by the records: from the action that makes it to its last reader. */
typedef struct life {
  uint32_t rank, first, last, cell, microbatch;
  uint64_t at, end; /* bytes */
} life;

static uint64_t bytes_of(const stashes *s, uint32_t c, uint32_t m) {
  return s->model->cuts[opi_row_class_of(s->plan->whole, m)]->cells[c].n_bytes;
}

static life life_of(const stashes *s, uint32_t c, uint32_t m) {
  const opi_cell *cell = &s->model->cuts[0]->cells[c];
  const uint64_t at = s->lists->offsets[(size_t)c * s->plan->n_microbatches + m];
  const uint32_t made = cell->source == OPI_CELL_MADE ? 1u << cell->phase : 0;
  life l = {.first = UINT32_MAX, .cell = c, .microbatch = m, .at = at};
  l.end = at + bytes_of(s, c, m);
  for (uint32_t i = 0; i < s->plan->n_actions; ++i) {
    const opipe_action *a = &s->plan->actions[i];
    const uint32_t phases = opi_program_phases(opi_action_program(a));
    if (a->stage != cell->stage || a->microbatch != m || (phases & (cell->readers | made)) == 0)
      continue;
    l.first = i < l.first ? i : l.first;
    l.last = i > l.last ? i : l.last;
    l.rank = a->rank;
  }
  return l;
}

/* Does it lie on its stage's rank, in bytes of its own? */
static bool is_placed(const stashes *s, uint32_t c, uint32_t m) {
  const opi_cell *cell = &s->model->cuts[0]->cells[c];
  const uint32_t n_mb = s->plan->n_microbatches, *of = s->lists->replica_of;
  const uint32_t rank = opi_piece_rank(s->plan, cell->stage, of[cell->stage * n_mb + m]);
  if (cell->source == OPI_CELL_RECEIVED) {
    const uint32_t src = s->model->cuts[0]->routes[cell->route].src_stage;
    if (opi_piece_rank(s->plan, src, of[src * n_mb + m]) == rank)
      return false;
  }
  return s->lists->lies_on[(size_t)c * n_mb + m] == rank;
}

/* Values of evaluations may share memory with a step's values that they do not touch: those that
 * the same stage keeps for its backward, and gradients. */
static bool may_meet(const opi_cut *cut, uint32_t evaluated, uint32_t c) {
  const opi_cell *cell = &cut->cells[c];
  return opi_cell_is_evaluated(cut, &cut->cells[evaluated]) &&
         (opi_cell_is_evaluated(cut, cell) || cell->phase != OPI_PHASE_F ||
          (is_own(cut, c) && opi_stage_evaluates(cut, cell->stage)));
}

static void check_disjoint(const stashes *s, const life *a, const life *b) {
  const opi_cut *cut = s->model->cuts[0];
  if (may_meet(cut, a->cell, b->cell) || may_meet(cut, b->cell, a->cell))
    return;
  if (a->rank == b->rank && a->first <= b->last && b->first <= a->last && a->at < b->end &&
      b->at < a->end) {
    OPI_FAIL("%s, rank %u: '%s' of micro-batch %u lies in '%s' of micro-batch %u", s->what, a->rank,
             cut->cells[a->cell].name, a->microbatch, cut->cells[b->cell].name, b->microbatch);
  }
}

/* At every record what is live has bytes of its own. */
static void check_lives(stashes *s) {
  const opi_cut *cut = s->model->cuts[0];
  const uint32_t n_mb = s->plan->n_microbatches;
  life *lives = calloc((size_t)cut->n_cells * n_mb, sizeof *lives);
  uint32_t n = 0;
  OPI_ASSERT_FATAL(lives != NULL);
  for (uint32_t c = 0; c < cut->n_cells; ++c) {
    for (uint32_t m = 0; m < n_mb; ++m) {
      if (is_placed(s, c, m))
        lives[n++] = life_of(s, c, m);
    }
  }
  for (uint32_t i = 0; i < n; ++i) {
    for (uint32_t k = 0; k < i; ++k)
      check_disjoint(s, &lives[i], &lives[k]);
  }
  s->n_checked += n;
  free(lives);
}

/* Every kept tensor has room for no more micro-batches than the rank holds of its stage, and for
 * one more that is on its way to it; values that slices hand on may wait for all of them. */
static void check_room(const stashes *s) {
  const opi_cut *cut = s->model->cuts[0];
  uint64_t most[8] = {0};
  for (uint32_t c = 0; c < cut->n_cells; ++c) {
    const opi_cell *cell = &cut->cells[c];
    const uint64_t n_bytes = (bytes_of(s, c, 0) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    for (uint32_t replica = 0; cell->stash && replica < s->plan->n_replicas; ++replica) {
      const uint32_t rank = opi_piece_rank(s->plan, cell->stage, replica);
      const uint32_t held = held_most(s->plan, rank, cell->stage, replica, true);
      const bool travels =
          cell->state != 0 || cell->source == OPI_CELL_RECEIVED || cell->first_out != OPIPE_NONE;
      most[rank] += n_bytes * (travels ? s->plan->n_microbatches : held);
    }
  }
  for (uint32_t r = 0; r < s->plan->n_ranks; ++r) {
    if (s->lists->stash_bytes[r] == 0 || s->lists->stash_bytes[r] > most[r]) {
      OPI_FAIL("%s, rank %u: room for %llu bytes, the records hold %llu at most", s->what, r,
               (unsigned long long)s->lists->stash_bytes[r], (unsigned long long)most[r]);
    }
  }
}

/* Read by one other stage, whole, and by nobody else. */
static bool is_only_sent(const opi_cut *cut, uint32_t r) {
  const opi_route *route = &cut->routes[r];
  const opi_cell *cell = &cut->cells[route->src_cell], *to = &cut->cells[route->dst_cell];
  return cell->source == OPI_CELL_MADE && cell->first_out == r && route->next_out == OPIPE_NONE &&
         (cell->readers & ~(1u << cell->phase)) == 0 && cell->state == 0 &&
         cell->output == OPIPE_NONE && to->n_routes == 1 && route->n_bytes == cell->n_bytes;
}

/* Over a transport that writes in place, what is only sent is not copied. */
static void check_copies(const stashes *s) {
  const opi_cut *cut = s->model->cuts[0];
  uint32_t n_direct = 0;
  OPI_ASSERT(opi_plan_is_direct(s->plan->whole));
  for (uint32_t i = 0; i < s->lists->n_messages; ++i) {
    const opi_list_message *m = &s->lists->messages[i];
    n_direct += m->direct;
    if (!m->direct && is_only_sent(cut, m->route))
      OPI_FAIL("%s: '%s' is copied", s->what, cut->cells[cut->routes[m->route].src_cell].name);
  }
  OPI_ASSERT(n_direct > 0);
  OPI_ASSERT_INT(s->lists->n_made_in_place, n_direct);
  OPI_ASSERT_INT(s->lists->n_made_in_place + s->lists->n_copied, s->lists->n_messages);
}

static void check_formula(const stashes *s, formula_fn *formula) {
  for (uint32_t rank = 0; formula != NULL && rank < s->plan->n_ranks; ++rank) {
    const uint32_t wanted = formula(rank, s->plan->n_ranks, s->plan->n_microbatches);
    const uint32_t found = held_most(s->plan, rank, OPIPE_NONE, 0, true);
    if (wanted != 0 && found != wanted)
      OPI_FAIL("%s, rank %u: %u are kept, the formula says %u", s->what, rank, found, wanted);
  }
}

static void check(kit *k, size_t row, uint32_t n_ranks, uint32_t m) {
  char what[120];
  uint32_t alignment[8];
  opi_cut_model *model = NULL;
  stashes s = {.what = what};
  const kit_case c = {
      .schedule = rows[row].schedule,
      .n_ranks = n_ranks,
      .n_microbatches = m,
      .spec = {.loss = {.kind = OPI_LOSS_CROSS_ENTROPY, .labels = "labels", .ignore = -100},
               .optimizer = {.kind = OPIPE_OPTIMIZER_SGD, .lr = 0.01}}};
  const opi_bind_options base = {.evaluator = k->evaluator, .allocator = opi_allocator_system()};
  (void)snprintf(what, sizeof what, "%s, %u ranks, %u micro-batches", c.schedule, n_ranks, m);
  for (uint32_t r = 0; r < OPI_COUNT(alignment); ++r)
    alignment[r] = ALIGNMENT;
  OPI_ASSERT_OK_FATAL(kit_plan(k, &c), &k->err);
  const opi_cut_sources from = {.plan = &k->plan->decided,
                                .times = &k->plan->predicted.times,
                                .file = k->model,
                                .base = &base};
  OPI_ASSERT_OK_FATAL(opi_cut_model_build(&from, &model, &k->err), &k->err);
  s.model = model;
  s.plan = &model->piece_plan;
  OPI_ASSERT_OK_FATAL(
      opi_lists_build(model, alignment, false, opi_allocator_system(), &s.lists, &k->err), &k->err);
  if (s.plan->whole->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED) {
    check_cells(&s);
  } else {
    check_lives(&s);
    check_room(&s);
  }
  check_copies(&s);
  check_formula(&s, rows[row].formula);
  OPI_ASSERT(s.n_checked > 0);
  opi_lists_free(s.lists);
  opi_cut_model_free(model);
}

static void test_slots_are_what_the_papers_say(void) {
  kit k;
  OPI_ASSERT_OK_FATAL(
      kit_open(&k, opi_test_source("tests/data/gpt_8block/model.onnx"), ROWS, TOKENS), &k.err);
  for (size_t row = 0; row < OPI_COUNT(rows); ++row) {
    for (uint32_t n_ranks = 2; n_ranks <= 4; n_ranks += 2) {
      for (uint32_t m = rows[row].even ? n_ranks : 3; m <= ROWS; m += rows[row].even ? n_ranks
                                                                      : m == 3       ? 1
                                                                                     : 4) {
        if (opi_test_covers(row + n_ranks / 2 + m, 3))
          check(&k, row, n_ranks, m);
      }
    }
  }
  kit_close(&k);
}

OPI_TEST_MAIN("training stashes", OPI_TEST(test_slots_are_what_the_papers_say))
