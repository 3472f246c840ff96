/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of schedule plugins: asks a built plugin for its layout and order, writes orders as
 * text, and replays them on ranks that each follow their own list, with times.
 *
 * The replay is the test's own and knows nothing of the library's: it follows the papers' model,
 * where a message is a delay and a rank is never busy with one.
 */
#ifndef TESTS_PLUGINS_SCHEDULES_KIT_H
#define TESTS_PLUGINS_SCHEDULES_KIT_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "opipe/schedule.h"
#include "tests/support/support.h"

enum { KIT_RANKS = 64, KIT_INSTANCES = 1 << 14, KIT_SETTINGS = 8 };

/* What a plugin answered, and what it was asked. */
typedef struct kit_order {
  opipe_layout layout;
  uint32_t instance_rank[KIT_INSTANCES];
  uint32_t n_microbatches;
  opipe_action *actions; /* sorted by rank, each rank's in its own order */
  uint32_t n, room;
  uint32_t first[KIT_RANKS + 1]; /* of each rank's actions */
} kit_order;

typedef struct kit_request {
  const char *schedule; /* "id:key=value,..." */
  uint32_t mode;        /* OPIPE_MODE_* */
  uint32_t n_ranks, n_stages, n_microbatches;
  uint64_t stash_bytes, memory_bytes; /* of every instance, of every rank; 0: none, no cap */
} kit_request;

/* ---- the plugin ---- */

static opipe_error kit_err = OPIPE_ERROR_INIT;

static inline void *kit_realloc(void *ctx, void *ptr, size_t old_size, size_t new_size,
                                size_t align) {
  void *fresh = NULL;
  (void)ctx;
  if (new_size > 0 &&
      posix_memalign(&fresh, align < sizeof(void *) ? sizeof(void *) : align, new_size) != 0)
    return NULL;
  if (fresh != NULL && ptr != NULL)
    memcpy(fresh, ptr, old_size < new_size ? old_size : new_size);
  free(ptr);
  return fresh;
}

static inline void kit_log(void *ctx, uint32_t level, const char *file, uint32_t line,
                           const char *message) {
  (void)ctx;
  (void)level;
  (void)file;
  (void)line;
  (void)message;
}

static inline uint64_t kit_now(void *ctx) {
  (void)ctx;
  return 0;
}

static inline const void *kit_interface(void *ctx, const char *id) {
  (void)ctx;
  (void)id;
  return NULL;
}

typedef struct kit_plugin {
  char id[64];
  opipe_instance *self;
  const opipe_schedule *table;
} kit_plugin;

/* Opened once per id, open until the process ends. */
static inline const kit_plugin *kit_open(const char *spec) {
  static const opipe_host host = {(uint32_t)OPIPE_END(opipe_host, get_interface),
                                  OPIPE_ABI_MAJOR,
                                  OPIPE_ABI_MINOR,
                                  NULL,
                                  kit_realloc,
                                  kit_log,
                                  kit_now,
                                  kit_interface};
  static kit_plugin opened[32];
  static uint32_t n_opened;
  char path[128];
  const int n = (int)strcspn(spec, ":");
  for (uint32_t i = 0; i < n_opened; ++i) {
    if (strncmp(opened[i].id, spec, (size_t)n) == 0 && opened[i].id[n] == '\0')
      return &opened[i];
  }
  kit_plugin *p = &opened[n_opened];
  (void)snprintf(p->id, sizeof p->id, "%.*s", n, spec);
  (void)snprintf(path, sizeof path, "lib/onnx-pipe/opipe-schedule-%.63s.so", p->id);
  void *library = dlopen(opi_test_build(path), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  const opipe_plugin *plugin = library == NULL ? NULL : dlsym(library, "opipe_plugin_v1");
  if (plugin == NULL || plugin->open(&host, &p->self, &kit_err) < 0) {
    fprintf(stderr, "%s: %s\n", path, library == NULL ? dlerror() : kit_err.message);
    exit(1);
  }
  p->table = plugin->get_interface(p->self, OPIPE_SCHEDULE_ID);
  ++n_opened;
  return p;
}

static inline uint32_t kit_split(const char *spec, char *room, size_t n_room,
                                 opipe_schedule_setting *out) {
  uint32_t n = 0;
  const char *colon = strchr(spec, ':');
  (void)snprintf(room, n_room, "%s", colon == NULL ? "" : colon + 1);
  for (char *at = room; *at != '\0';) {
    char *end = at + strcspn(at, ",");
    char *next = *end == '\0' ? end : end + 1;
    *end = '\0';
    char *equals = strchr(at, '=');
    if (equals == NULL || n == KIT_SETTINGS) {
      fprintf(stderr, "a test asks for '%s'\n", spec);
      exit(1);
    }
    *equals = '\0';
    out[n++] = (opipe_schedule_setting){at, equals + 1};
    at = next;
  }
  return n;
}

static inline opipe_status kit_take(void *ctx, const opipe_action *actions, uint32_t n,
                                    opipe_error *err) {
  kit_order *o = ctx;
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

static inline void kit_sort(kit_order *o) {
  opipe_action *sorted = malloc((o->n + 1) * sizeof *sorted);
  uint32_t n = 0;
  if (sorted == NULL)
    exit(1);
  for (uint32_t rank = 0; rank < o->layout.n_ranks; ++rank) {
    o->first[rank] = n;
    for (uint32_t i = 0; i < o->n; ++i) {
      if (o->actions[i].rank == rank)
        sorted[n++] = o->actions[i];
    }
  }
  o->first[o->layout.n_ranks] = n;
  free(o->actions);
  o->actions = sorted;
  o->room = o->n + 1;
  OPI_ASSERT_INT(n, o->n); /* every rank is in range */
}

/* Frees what an order holds; it may be used again. */
static inline void kit_end(kit_order *o) {
  free(o->actions);
  o->actions = NULL;
}

/* Layout and order; kit_err has the message of a failure. End it with kit_end in any case. */
static inline opipe_status kit_ask(const kit_request *q, kit_order *o) {
  static uint64_t ones[KIT_INSTANCES], zeros[KIT_INSTANCES], stash[KIT_INSTANCES];
  static uint64_t memory[KIT_INSTANCES];
  static char text[256];
  opipe_schedule_setting settings[KIT_SETTINGS];
  const kit_plugin *p = kit_open(q->schedule);
  const uint32_t n_settings = kit_split(q->schedule, text, sizeof text, settings);
  const opipe_layout_request request = {(uint32_t)OPIPE_END(opipe_layout_request, settings),
                                        q->mode,
                                        q->n_ranks,
                                        q->n_stages,
                                        q->n_microbatches,
                                        n_settings,
                                        settings};
  memset(o, 0, sizeof *o);
  kit_err.message[0] = '\0';
  o->n_microbatches = q->n_microbatches;
  o->layout.struct_size = (uint32_t)OPIPE_END(opipe_layout, slice_lengths);
  o->layout.instance_rank = o->instance_rank;
  o->layout.instance_room = KIT_INSTANCES;
  opipe_status status = p->table->layout(p->self, &request, &o->layout, &kit_err);
  if (status < 0)
    return status;
  for (uint32_t i = 0; i < KIT_INSTANCES; ++i) {
    ones[i] = 1;
    stash[i] = q->stash_bytes;
    memory[i] = q->memory_bytes == 0 ? UINT64_MAX : q->memory_bytes;
  }
  const uint64_t *backward = q->mode == OPIPE_MODE_TRAIN ? ones : zeros;
  const opipe_schedule_problem problem = {
      (uint32_t)OPIPE_END(opipe_schedule_problem, rank_memory_bytes),
      q->mode,
      q->n_microbatches,
      n_settings,
      settings,
      &o->layout,
      ones,
      backward,
      backward,
      zeros,
      stash,
      memory};
  status = p->table->plan(p->self, &problem, kit_take, o, &kit_err);
  if (status >= 0)
    kit_sort(o);
  return status;
}

/* ---- text ---- */

/* "0F0 0F1 0B0.1": stage, pass, micro-batch, and the part where backwards have several. */
static inline void kit_text(const kit_order *o, uint32_t rank, char *out, size_t room) {
  static const char *const names[] = {"F", "I", "W", "U", "B"};
  size_t n = 0;
  out[0] = '\0';
  for (uint32_t i = o->first[rank]; i < o->first[rank + 1] && n + 32 < room; ++i) {
    const opipe_action *a = &o->actions[i];
    n += (size_t)snprintf(out + n, room - n, "%s%u%s%u", n == 0 ? "" : " ", a->stage,
                          names[a->pass], a->microbatch);
    if (o->layout.n_parts > 1 && a->pass != OPIPE_PASS_FORWARD)
      n += (size_t)snprintf(out + n, room - n, ".%u", a->part);
  }
}

/* ---- replay ---- */

typedef struct kit_costs {
  double forward, backward, hop; /* of one stage and a whole micro-batch; of a message */
} kit_costs;

typedef struct kit_times {
  double makespan;
  double bubble;          /* 1 - busy / (ranks x makespan) */
  double peak[KIT_RANKS]; /* stage activations from the start of F to the end of B */
  uint32_t n_left;        /* actions that can never run */
  uint32_t n_wrong;       /* twice, out of range, or on another rank than the layout has it */
  uint32_t n_missing;     /* passes that nobody computes */
} kit_times;

typedef struct kit_replay {
  const kit_order *o;
  const kit_costs *c;
  uint32_t n_parts, n_units;
  double *end;     /* [stage][micro-batch][1 + part]: end of F, of B; below 0: not yet */
  uint32_t *where; /* rank that did it */
} kit_replay;

static inline size_t kit_at(const kit_replay *r, uint32_t stage, uint32_t m, uint32_t which) {
  return ((size_t)stage * r->n_units + m) * (1 + r->n_parts) + which;
}

/* When what `at` made is on `rank`; below 0: never so far. */
static inline double kit_there(const kit_replay *r, size_t at, uint32_t rank) {
  return r->end[at] < 0 ? -1 : r->end[at] + (r->where[at] == rank ? 0 : r->c->hop);
}

/* Earliest start by its inputs; below 0: not ready. */
static inline double kit_ready(const kit_replay *r, const opipe_action *a) {
  if (a->pass == OPIPE_PASS_FORWARD)
    return a->stage == 0 ? 0 : kit_there(r, kit_at(r, a->stage - 1, a->microbatch, 0), a->rank);
  const double kept = kit_there(r, kit_at(r, a->stage, a->microbatch, 0), a->rank);
  const double gradient =
      a->stage + 1 == r->o->layout.n_stages
          ? 0
          : kit_there(r, kit_at(r, a->stage + 1, a->microbatch, 1u + a->part), a->rank);
  return kept < 0 || gradient < 0 ? -1 : kept > gradient ? kept : gradient;
}

static inline bool kit_is_wrong(const kit_replay *r, const opipe_action *a) {
  const opipe_layout *l = &r->o->layout;
  const bool pass = a->pass == OPIPE_PASS_FORWARD || a->pass == OPIPE_PASS_BACKWARD;
  if (!pass || a->stage >= l->n_stages || a->replica >= l->n_replicas ||
      a->microbatch >= r->n_units || a->part >= r->n_parts || a->slice != 0 || a->reserved != 0)
    return true;
  const uint32_t which = a->pass == OPIPE_PASS_FORWARD ? 0 : 1u + a->part;
  return l->instance_rank[a->stage * l->n_replicas + a->replica] != a->rank ||
         r->end[kit_at(r, a->stage, a->microbatch, which)] >= 0;
}

/* Time and stash of one rank as it goes on. */
typedef struct kit_rank {
  uint32_t next;
  double free_at, kept;
} kit_rank;

static inline void kit_run(kit_replay *r, kit_rank *rank, const opipe_action *a, double start,
                           kit_times *t, double *io_busy) {
  const bool forward = a->pass == OPIPE_PASS_FORWARD;
  const double cost = forward ? r->c->forward : r->c->backward / r->n_parts;
  const size_t at = kit_at(r, a->stage, a->microbatch, forward ? 0 : 1u + a->part);
  r->end[at] = start + cost;
  r->where[at] = a->rank;
  rank->free_at = start + cost;
  rank->kept += forward ? 1 : -1.0 / r->n_parts;
  *io_busy += cost;
  t->peak[a->rank] = rank->kept > t->peak[a->rank] ? rank->kept : t->peak[a->rank];
  t->makespan = rank->free_at > t->makespan ? rank->free_at : t->makespan;
}

/* Every rank follows its list. Forward orders: n_missing counts forwards only. */
static inline kit_times kit_replay_order(const kit_order *o, const kit_costs *costs) {
  const opipe_layout *l = &o->layout;
  kit_times t;
  kit_rank ranks[KIT_RANKS];
  double busy = 0;
  bool trains = false;
  kit_replay r = {o, costs, l->n_parts, o->n_microbatches, NULL, NULL};
  const size_t n = (size_t)l->n_stages * r.n_units * (1 + r.n_parts);
  memset(&t, 0, sizeof t);
  memset(ranks, 0, sizeof ranks);
  r.end = malloc(n * sizeof *r.end);
  r.where = calloc(n, sizeof *r.where);
  if (r.end == NULL || r.where == NULL)
    exit(1);
  for (size_t i = 0; i < n; ++i)
    r.end[i] = -1;
  for (bool moved = true; moved;) {
    moved = false;
    for (uint32_t k = 0; k < l->n_ranks; ++k) {
      for (; o->first[k] + ranks[k].next < o->first[k + 1]; ++ranks[k].next) {
        const opipe_action *a = &o->actions[o->first[k] + ranks[k].next];
        if (kit_is_wrong(&r, a)) {
          ++t.n_wrong;
          break;
        }
        const double ready = kit_ready(&r, a);
        if (ready < 0)
          break;
        trains = trains || a->pass != OPIPE_PASS_FORWARD;
        kit_run(&r, &ranks[k], a, ready > ranks[k].free_at ? ready : ranks[k].free_at, &t, &busy);
        moved = true;
      }
    }
  }
  for (uint32_t k = 0; k < l->n_ranks; ++k)
    t.n_left += o->first[k + 1] - o->first[k] - ranks[k].next;
  for (size_t i = 0; i < n; ++i)
    t.n_missing += r.end[i] < 0 && (trains || i % (1 + r.n_parts) == 0);
  t.bubble = t.makespan > 0 ? 1 - busy / (l->n_ranks * t.makespan) : 0;
  free(r.end);
  free(r.where);
  return t;
}

/* Asks for a training order and replays it; an order that does not run through fails the test. */
static inline kit_times kit_simulate(const char *schedule, uint32_t n_ranks,
                                     uint32_t n_microbatches, double forward, double backward,
                                     double hop) {
  static kit_order o;
  const kit_costs costs = {forward, backward, hop};
  const kit_request q = {schedule, OPIPE_MODE_TRAIN, n_ranks, 0, n_microbatches, 0, 0};
  kit_times t;
  memset(&t, 0, sizeof t);
  const opipe_status status = kit_ask(&q, &o);
  if (status < 0) {
    OPI_FAIL("%s, %u ranks, %u micro-batches: %s", schedule, n_ranks, n_microbatches,
             kit_err.message);
  } else {
    t = kit_replay_order(&o, &costs);
    if (t.n_left + t.n_wrong + t.n_missing != 0)
      OPI_FAIL("%s, %u ranks, %u micro-batches: %u cannot run, %u wrong, %u missing", schedule,
               n_ranks, n_microbatches, t.n_left, t.n_wrong, t.n_missing);
  }
  kit_end(&o);
  return t;
}

#endif /* TESTS_PLUGINS_SCHEDULES_KIT_H */
