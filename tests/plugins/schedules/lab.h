/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of schedules that split backwards or slice micro-batches, and that look at costs: asks
 * a built plugin for an order under given costs, compares it with published tables cell by cell,
 * and replays it with times.
 *
 * The replay is the test's own: ranks work in order, a hop between ranks is a delay, a stash is
 * held from the start of F to the end of B, or of W.
 */
#ifndef TESTS_PLUGINS_SCHEDULES_LAB_H
#define TESTS_PLUGINS_SCHEDULES_LAB_H

#include "tests/plugins/schedules/asked.h"

/* Costs of one whole micro-batch, by stage; NULL: 1 each (hop: 0). memory by rank, NULL: no cap. */
typedef struct lab_costs {
  const uint64_t *ns[3]; /* F, I, W */
  const uint64_t *hop, *stash, *memory;
} lab_costs;

typedef struct lab_request {
  const char *id;
  const char *key, *value; /* a setting, or NULL; key2: another one */
  uint32_t mode, n_ranks, n_stages, m;
  const lab_costs *costs; /* NULL: all of them 1 */
  const char *key2, *value2;
} lab_request;

static inline const uint64_t *lab_given(const uint64_t *given, const uint64_t *otherwise) {
  return given != NULL ? given : otherwise;
}

/* Layout and order. End it with asked_end in any case. */
static inline opipe_status lab_ask(const lab_request *q, asked_order *o) {
  static uint64_t ones[ASKED_INSTANCES], zeros[ASKED_INSTANCES], most[ASKED_INSTANCES];
  static const lab_costs none;
  const opipe_schedule_setting settings[2] = {{q->key, q->value}, {q->key2, q->value2}};
  const opipe_layout_request request = {
      (uint32_t)OPIPE_END(opipe_layout_request, settings), q->mode, q->n_ranks, q->n_stages, q->m,
      q->key == NULL ? 0u : q->key2 == NULL ? 1u : 2u,     settings};
  const lab_costs *c = q->costs != NULL ? q->costs : &none;
  const bool trains = q->mode == OPIPE_MODE_TRAIN;
  for (uint32_t i = 0; i < ASKED_INSTANCES; ++i) {
    ones[i] = 1;
    most[i] = UINT64_MAX;
  }
  opipe_schedule_problem problem = {
      .forward_ns = lab_given(c->ns[0], ones),
      .backward_input_ns = trains ? lab_given(c->ns[1], ones) : zeros,
      .backward_weight_ns = trains ? lab_given(c->ns[2], ones) : zeros,
      .transfer_ns = lab_given(c->hop, zeros),
      .stash_bytes = lab_given(c->stash, ones),
      .rank_memory_bytes = lab_given(c->memory, most)};
  return asked_ask(asked_open(q->id), &request, &problem, o);
}

/* ---- replay ---- */

typedef struct lab_times {
  double makespan, span, bubble;
  double peak[ASKED_RANKS]; /* per rank; in stash units of a whole micro-batch of a stage */
  double peak_most, peak_least;
  uint32_t n_left, n_wrong, n_missing;
} lab_times;

typedef struct lab_replay {
  const asked_order *o;
  const lab_costs *c;
  double *end; /* [stage][micro-batch][slice][F, I, W], below 0: not yet */
} lab_replay;

static inline size_t lab_at(const asked_order *o, const opipe_action *a, uint32_t stage,
                            uint32_t slice, uint32_t pass) {
  return (((size_t)stage * o->n_microbatches + a->microbatch) * o->layout.n_slices + slice) * 3 +
         pass;
}

static inline double lab_cost(const uint64_t *by_stage, uint32_t stage, double otherwise) {
  return by_stage == NULL ? otherwise : (double)by_stage[stage];
}

/* *io_start becomes the later of itself and of that end; false while there is none. */
static inline bool lab_after(const lab_replay *r, size_t at, double hop, double *io_start) {
  if (r->end[at] < 0)
    return false;
  *io_start = r->end[at] + hop > *io_start ? r->end[at] + hop : *io_start;
  return true;
}

static inline double lab_hop(const lab_replay *r, uint32_t from, uint32_t to) {
  const uint32_t low = from < to ? from : to;
  const bool apart = r->o->instance_rank[from] != r->o->instance_rank[to];
  return apart && r->c != NULL ? lab_cost(r->c->hop, low, 0) : 0;
}

static inline bool lab_ready(const lab_replay *r, const opipe_action *a, double *io_start) {
  const asked_order *o = r->o;
  const uint32_t s = a->stage, k = a->slice;
  if (a->pass == OPIPE_PASS_FORWARD) {
    return (k == 0 || lab_after(r, lab_at(o, a, s, k - 1, 0), 0, io_start)) &&
           (s == 0 || lab_after(r, lab_at(o, a, s - 1, k, 0), lab_hop(r, s - 1, s), io_start));
  }
  if (a->pass == OPIPE_PASS_BACKWARD_WEIGHT)
    return lab_after(r, lab_at(o, a, s, k, 1), 0, io_start);
  return lab_after(r, lab_at(o, a, s, k, 0), 0, io_start) &&
         (k + 1 == o->layout.n_slices || lab_after(r, lab_at(o, a, s, k + 1, 1), 0, io_start)) &&
         (s + 1 == o->layout.n_stages ||
          lab_after(r, lab_at(o, a, s + 1, k, 1), lab_hop(r, s + 1, s), io_start));
}

static inline bool lab_wrong(const lab_replay *r, const opipe_action *a) {
  const asked_order *o = r->o;
  static const uint32_t of_pass[] = {0, 1, 2, 0, 1};
  if (a->pass > OPIPE_PASS_BACKWARD || a->pass == OPIPE_PASS_UPDATE ||
      a->stage >= o->layout.n_stages || a->microbatch >= o->n_microbatches ||
      a->slice >= o->layout.n_slices || a->replica != 0 || a->part != 0 || a->reserved != 0 ||
      o->instance_rank[a->stage] != a->rank)
    return true;
  return r->end[lab_at(o, a, a->stage, a->slice, of_pass[a->pass])] >= 0;
}

typedef struct lab_rank {
  uint32_t next;
  double now, first, kept;
} lab_rank;

static inline void lab_do(lab_replay *r, lab_rank *rank, const opipe_action *a, double start,
                          lab_times *t, double *io_busy) {
  const asked_order *o = r->o;
  const double share = 1.0 / o->layout.n_slices;
  const bool whole = a->pass == OPIPE_PASS_BACKWARD;
  const uint32_t from = whole ? 1 : a->pass, to = whole ? 2 : a->pass;
  double cost = 0;
  for (uint32_t pass = from; pass <= to; ++pass) {
    cost += share * lab_cost(r->c == NULL ? NULL : r->c->ns[pass], a->stage, 1);
    r->end[lab_at(o, a, a->stage, a->slice, pass)] = start + cost;
  }
  if (whole) /* the gradient is passed on when the whole backward has ended */
    r->end[lab_at(o, a, a->stage, a->slice, 1)] = start + cost;
  const double stash = share * lab_cost(r->c == NULL ? NULL : r->c->stash, a->stage, 1);
  rank->kept += a->pass == OPIPE_PASS_FORWARD ? stash : to == 2 ? -stash : 0;
  rank->first = rank->next == 0 ? start : rank->first;
  rank->now = start + cost;
  *io_busy += cost;
  t->peak[a->rank] = rank->kept > t->peak[a->rank] ? rank->kept : t->peak[a->rank];
}

static inline void lab_sum_up(const asked_order *o, const lab_rank *ranks, double busy,
                              lab_times *t) {
  t->peak_least = 1e300;
  for (uint32_t k = 0; k < o->layout.n_ranks; ++k) {
    const double span = ranks[k].now - ranks[k].first;
    t->makespan = ranks[k].now > t->makespan ? ranks[k].now : t->makespan;
    t->span = span > t->span ? span : t->span;
    t->n_left += o->first[k + 1] - o->first[k] - ranks[k].next;
    t->peak_most = t->peak[k] > t->peak_most ? t->peak[k] : t->peak_most;
    t->peak_least = t->peak[k] < t->peak_least ? t->peak[k] : t->peak_least;
  }
  t->bubble = 1 - busy / (o->layout.n_ranks * t->makespan);
}

static inline lab_times lab_run(const asked_order *o, const lab_costs *costs) {
  static lab_rank ranks[ASKED_RANKS];
  lab_times t;
  lab_replay r = {o, costs, NULL};
  double busy = 0;
  const size_t n = (size_t)o->layout.n_stages * o->n_microbatches * o->layout.n_slices * 3;
  memset(&t, 0, sizeof t);
  memset(ranks, 0, sizeof ranks);
  r.end = malloc(n * sizeof *r.end);
  if (r.end == NULL)
    exit(1);
  for (size_t i = 0; i < n; ++i)
    r.end[i] = -1;
  for (bool moved = true; moved;) {
    moved = false;
    for (uint32_t k = 0; k < o->layout.n_ranks; ++k) {
      for (; o->first[k] + ranks[k].next < o->first[k + 1]; ++ranks[k].next, moved = true) {
        const opipe_action *a = &o->actions[o->first[k] + ranks[k].next];
        double start = ranks[k].now;
        if (lab_wrong(&r, a)) {
          ++t.n_wrong;
          break;
        }
        if (!lab_ready(&r, a, &start))
          break;
        lab_do(&r, &ranks[k], a, start, &t, &busy);
      }
    }
  }
  for (size_t i = 0; i < n; ++i)
    t.n_missing += r.end[i] < 0 && (o->mode == OPIPE_MODE_TRAIN || i % 3 == 0);
  lab_sum_up(o, ranks, busy, &t);
  free(r.end);
  return t;
}

/* Asks and replays; what does not run through fails the test. */
static inline lab_times lab_simulate(const lab_request *q) {
  static asked_order o;
  lab_times t;
  memset(&t, 0, sizeof t);
  const opipe_status status = lab_ask(q, &o);
  if (status < 0) {
    OPI_FAIL("%s %s, %u ranks, %u micro-batches: %s", q->id, q->key == NULL ? "" : q->value,
             q->n_ranks, q->m, asked_err.message);
  } else {
    t = lab_run(&o, q->costs);
    if (t.n_left + t.n_wrong + t.n_missing != 0) {
      OPI_FAIL("%s %s, %u ranks, %u micro-batches: %u cannot run, %u wrong, %u missing", q->id,
               q->key == NULL ? "" : q->value, q->n_ranks, q->m, t.n_left, t.n_wrong, t.n_missing);
    }
  }
  asked_end(&o);
  return t;
}

/* ---- published tables ---- */

/* "2F0", "(0F7;7B3)OVERLAP_F_B"; returns how many actions that was. */
static inline uint32_t lab_cell(const asked_order *o, uint32_t at, uint32_t end, char *out,
                                size_t room) {
  static const char *const names[] = {"F", "I", "W", "?", "B"};
  const opipe_action *a = &o->actions[at];
  const int n = snprintf(out, room, "%s%u%s%u", a->flags & OPIPE_ACTION_OVERLAP_NEXT ? "(" : "",
                         a->stage, names[a->pass], a->microbatch);
  if ((a->flags & OPIPE_ACTION_OVERLAP_NEXT) == 0 || at + 1 == end)
    return 1;
  (void)snprintf(out + n, room - (size_t)n, ";%u%s%u)OVERLAP_F_B", a[1].stage, names[a[1].pass],
                 a[1].microbatch);
  return 2;
}

static inline void lab_compare_row(const asked_order *o, uint32_t rank, char *row,
                                   const char *name) {
  uint32_t at = o->first[rank], step = 0;
  char *rest = row;
  for (char *cell = strsep(&rest, ","); cell != NULL; cell = strsep(&rest, ","), ++step) {
    char found[64] = "nothing";
    if (*cell == '\0')
      continue; /* idle */
    if (at < o->first[rank + 1])
      at += lab_cell(o, at, o->first[rank + 1], found, sizeof found);
    if (strcmp(found, cell) != 0) {
      OPI_FAIL("%s, rank %u, cell %u: %s, the table has %s", name, rank, step, found, cell);
      return;
    }
  }
  OPI_ASSERT_INT(at, o->first[rank + 1]);
}

/* The order against a table below shared/oracles/schedules, idle cells apart. */
static inline void lab_compare(const lab_request *q, const char *name) {
  static asked_order o;
  static char row[1 << 16];
  char path[160];
  (void)snprintf(path, sizeof path, "oracles/schedules/%s", name);
  const char *file = opi_test_shared(path);
  FILE *stream = file == NULL ? NULL : fopen(file, "r");
  if (stream == NULL)
    return; /* said why */
  uint32_t rank = 0;
  if (lab_ask(q, &o) < 0) {
    OPI_FAIL("%s: %s", q->id, asked_err.message);
  } else {
    for (; fgets(row, sizeof row, stream) != NULL && rank < o.layout.n_ranks; ++rank) {
      row[strcspn(row, "\r\n")] = '\0';
      lab_compare_row(&o, rank, row, name);
    }
    OPI_ASSERT_INT(rank, o.layout.n_ranks);
  }
  asked_end(&o);
  (void)fclose(stream);
}

#endif /* TESTS_PLUGINS_SCHEDULES_LAB_H */
