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

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "opipe/schedule.h"
#include "tests/support/support.h"

enum { LAB_STAGES = 512, LAB_SETTINGS = 4 };

/* Of one whole micro-batch, by stage; NULL: 1 each (hop: 0). memory by rank, NULL: no cap. */
typedef struct lab_costs {
  const uint64_t *ns[3]; /* F, I, W */
  const uint64_t *hop, *stash, *memory;
} lab_costs;

typedef struct lab_request {
  const char *id;
  const char *key, *value; /* one setting, or NULL */
  uint32_t mode, n_ranks, n_stages, m;
  const lab_costs *costs; /* NULL: all of them 1 */
} lab_request;

typedef struct lab_order {
  opipe_layout layout;
  uint32_t rank_of[LAB_STAGES];
  uint32_t mode, m;
  opipe_action *actions; /* sorted by rank */
  uint32_t n, room;
  uint32_t first[LAB_STAGES + 1];
} lab_order;

static opipe_error lab_err = OPIPE_ERROR_INIT;
static uint64_t lab_live_bytes; /* of plugins, so that what they leave behind is seen */
static uint64_t lab_fail_at;    /* that allocation from now fails; 0: none */

static inline void *lab_realloc(void *ctx, void *ptr, size_t old_size, size_t size, size_t align) {
  (void)ctx;
  (void)align;
  if (size > 0 && lab_fail_at > 0 && --lab_fail_at == 0)
    return NULL;
  (void)__atomic_add_fetch(&lab_live_bytes, size - (ptr == NULL ? 0 : old_size), __ATOMIC_RELAXED);
  if (size == 0) {
    free(ptr);
    return NULL;
  }
  return realloc(ptr, size);
}

typedef struct lab_plugin {
  char id[48];
  const opipe_plugin *plugin;
  opipe_instance *self;
  const opipe_schedule *table;
} lab_plugin;

static inline const lab_plugin *lab_open(const char *id) {
  static const opipe_host host = {.struct_size = (uint32_t)OPIPE_END(opipe_host, get_interface),
                                  .abi_major = OPIPE_ABI_MAJOR,
                                  .abi_minor = OPIPE_ABI_MINOR,
                                  .realloc = lab_realloc};
  static lab_plugin opened[24];
  static uint32_t n;
  char path[128];
  for (uint32_t i = 0; i < n; ++i) {
    if (strcmp(opened[i].id, id) == 0)
      return &opened[i];
  }
  lab_plugin *p = &opened[n];
  (void)snprintf(p->id, sizeof p->id, "%s", id);
  (void)snprintf(path, sizeof path, "lib/onnx-pipe/opipe-schedule-%.47s.so", p->id);
  void *library = dlopen(opi_test_build(path), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  p->plugin = library == NULL ? NULL : dlsym(library, "opipe_plugin_v1");
  if (p->plugin == NULL || p->plugin->open(&host, &p->self, &lab_err) < 0) {
    fprintf(stderr, "%s: %s\n", path, library == NULL ? dlerror() : lab_err.message);
    exit(1);
  }
  OPI_ASSERT_STR(p->plugin->id, id);
  p->table = p->plugin->get_interface(p->self, OPIPE_SCHEDULE_ID);
  ++n;
  return p;
}

static inline opipe_status lab_take(void *ctx, const opipe_action *actions, uint32_t n,
                                    opipe_error *err) {
  lab_order *o = ctx;
  (void)err;
  if (o->n + n > o->room) {
    o->room = 2 * (o->n + n);
    o->actions = realloc(o->actions, o->room * sizeof *actions);
    if (o->actions == NULL)
      exit(1);
  }
  memcpy(o->actions + o->n, actions, n * sizeof *actions);
  o->n += n;
  return OPIPE_OK;
}

/* By rank, keeping each rank's order. */
static inline void lab_sort(lab_order *o) {
  opipe_action *sorted = malloc((o->n + 1) * sizeof *sorted);
  uint32_t n = 0;
  for (uint32_t r = 0; sorted != NULL && r < o->layout.n_ranks; ++r) {
    o->first[r] = n;
    for (uint32_t i = 0; i < o->n; ++i) {
      if (o->actions[i].rank == r)
        sorted[n++] = o->actions[i];
    }
  }
  o->first[o->layout.n_ranks] = n;
  OPI_ASSERT_INT(n, o->n);
  free(o->actions);
  o->actions = sorted;
}

static inline void lab_end(lab_order *o) {
  free(o->actions);
  o->actions = NULL;
}

/* lab_err has the message of a failure. End it with lab_end in any case. */
static inline opipe_status lab_ask(const lab_request *q, lab_order *o) {
  static uint64_t ones[LAB_STAGES], zeros[LAB_STAGES], most[LAB_STAGES];
  const lab_plugin *p = lab_open(q->id);
  const opipe_schedule_setting setting = {q->key, q->value};
  const uint32_t n_settings = q->key != NULL;
  const opipe_layout_request request = {(uint32_t)OPIPE_END(opipe_layout_request, settings),
                                        q->mode,
                                        q->n_ranks,
                                        q->n_stages,
                                        q->m,
                                        n_settings,
                                        &setting};
  const lab_costs *c = q->costs;
  for (uint32_t i = 0; i < LAB_STAGES; ++i) {
    ones[i] = 1;
    most[i] = UINT64_MAX;
  }
  memset(o, 0, sizeof *o);
  lab_err.message[0] = '\0';
  o->mode = q->mode;
  o->m = q->m;
  o->layout.struct_size = (uint32_t)OPIPE_END(opipe_layout, slice_lengths);
  o->layout.instance_rank = o->rank_of;
  o->layout.instance_room = LAB_STAGES;
  opipe_status status = p->table->layout(p->self, &request, &o->layout, &lab_err);
  const bool trains = q->mode == OPIPE_MODE_TRAIN;
  const opipe_schedule_problem problem = {
      .struct_size = (uint32_t)OPIPE_END(opipe_schedule_problem, rank_memory_bytes),
      .mode = q->mode,
      .n_microbatches = q->m,
      .n_settings = n_settings,
      .settings = &setting,
      .layout = &o->layout,
      .forward_ns = c != NULL && c->ns[0] != NULL ? c->ns[0] : ones,
      .backward_input_ns = !trains                         ? zeros
                           : c != NULL && c->ns[1] != NULL ? c->ns[1]
                                                           : ones,
      .backward_weight_ns = !trains                         ? zeros
                            : c != NULL && c->ns[2] != NULL ? c->ns[2]
                                                            : ones,
      .transfer_ns = c != NULL && c->hop != NULL ? c->hop : zeros,
      .stash_bytes = c != NULL && c->stash != NULL ? c->stash : ones,
      .rank_memory_bytes = c != NULL && c->memory != NULL ? c->memory : most};
  if (status >= 0)
    status = p->table->plan(p->self, &problem, lab_take, o, &lab_err);
  if (status >= 0)
    lab_sort(o);
  return status;
}

/* ---- replay ---- */

typedef struct lab_times {
  double makespan, span, bubble;
  double peak[LAB_STAGES]; /* per rank; in stash units of a whole micro-batch of a stage */
  double peak_most, peak_least;
  uint32_t n_left, n_wrong, n_missing;
} lab_times;

typedef struct lab_replay {
  const lab_order *o;
  const lab_costs *c;
  double *end; /* [stage][micro-batch][slice][F, I, W], below 0: not yet */
} lab_replay;

static inline size_t lab_at(const lab_order *o, const opipe_action *a, uint32_t stage,
                            uint32_t slice, uint32_t pass) {
  return (((size_t)stage * o->m + a->microbatch) * o->layout.n_slices + slice) * 3 + pass;
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
  const bool apart = r->o->rank_of[from] != r->o->rank_of[to];
  return apart && r->c != NULL ? lab_cost(r->c->hop, low, 0) : 0;
}

static inline bool lab_ready(const lab_replay *r, const opipe_action *a, double *io_start) {
  const lab_order *o = r->o;
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
  const lab_order *o = r->o;
  static const uint32_t of_pass[] = {0, 1, 2, 0, 1};
  if (a->pass > OPIPE_PASS_BACKWARD || a->pass == OPIPE_PASS_UPDATE ||
      a->stage >= o->layout.n_stages || a->microbatch >= o->m || a->slice >= o->layout.n_slices ||
      a->replica != 0 || a->part != 0 || a->reserved != 0 || o->rank_of[a->stage] != a->rank)
    return true;
  return r->end[lab_at(o, a, a->stage, a->slice, of_pass[a->pass])] >= 0;
}

typedef struct lab_rank {
  uint32_t next;
  double now, first, kept;
} lab_rank;

static inline void lab_do(lab_replay *r, lab_rank *rank, const opipe_action *a, double start,
                          lab_times *t, double *io_busy) {
  const lab_order *o = r->o;
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

static inline void lab_sum_up(const lab_order *o, const lab_rank *ranks, double busy,
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

static inline lab_times lab_run(const lab_order *o, const lab_costs *costs) {
  static lab_rank ranks[LAB_STAGES];
  lab_times t;
  lab_replay r = {o, costs, NULL};
  double busy = 0;
  const size_t n = (size_t)o->layout.n_stages * o->m * o->layout.n_slices * 3;
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
  static lab_order o;
  lab_times t;
  memset(&t, 0, sizeof t);
  const opipe_status status = lab_ask(q, &o);
  if (status < 0) {
    OPI_FAIL("%s %s, %u ranks, %u micro-batches: %s", q->id, q->key == NULL ? "" : q->value,
             q->n_ranks, q->m, lab_err.message);
  } else {
    t = lab_run(&o, q->costs);
    if (t.n_left + t.n_wrong + t.n_missing != 0)
      OPI_FAIL("%s %s, %u ranks, %u micro-batches: %u cannot run, %u wrong, %u missing", q->id,
               q->key == NULL ? "" : q->value, q->n_ranks, q->m, t.n_left, t.n_wrong, t.n_missing);
  }
  lab_end(&o);
  return t;
}

/* ---- published tables ---- */

/* "2F0", "(0F7;7B3)OVERLAP_F_B"; returns how many actions that was. */
static inline uint32_t lab_cell(const lab_order *o, uint32_t at, uint32_t end, char *out,
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

static inline void lab_compare_row(const lab_order *o, uint32_t rank, char *row, const char *name) {
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
  static lab_order o;
  static char row[1 << 16];
  char path[160];
  (void)snprintf(path, sizeof path, "oracles/schedules/%s", name);
  const char *file = opi_test_shared(path);
  FILE *stream = file == NULL ? NULL : fopen(file, "r");
  if (stream == NULL)
    return; /* said why */
  uint32_t rank = 0;
  if (lab_ask(q, &o) < 0) {
    OPI_FAIL("%s: %s", q->id, lab_err.message);
  } else {
    for (; fgets(row, sizeof row, stream) != NULL && rank < o.layout.n_ranks; ++rank) {
      row[strcspn(row, "\r\n")] = '\0';
      lab_compare_row(&o, rank, row, name);
    }
    OPI_ASSERT_INT(rank, o.layout.n_ranks);
  }
  lab_end(&o);
  (void)fclose(stream);
}

#endif /* TESTS_PLUGINS_SCHEDULES_LAB_H */
