/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of schedule plugins: asks a built plugin for its layout and order, writes orders as
 * text, and replays them on ranks that each follow their own list, with times.
 *
 * The replay is the test's own and knows nothing of the library's: it follows the papers' model,
 * where a message is a delay and a rank is never busy with one.
 */
#ifndef TESTS_PLUGINS_SCHEDULES_KIT_H
#define TESTS_PLUGINS_SCHEDULES_KIT_H

#include "tests/plugins/schedules/asked.h"

enum { KIT_SETTINGS = 8 };

typedef struct kit_request {
  const char *schedule; /* "id:key=value,..." */
  uint32_t mode;        /* OPIPE_MODE_* */
  uint32_t n_ranks, n_stages, n_microbatches;
  uint64_t stash_bytes, memory_bytes; /* of every instance, of every rank; 0: none, no cap */
} kit_request;

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

/* Layout and order, every pass taking 1 ns. End it with asked_end in any case. */
static inline opipe_status kit_ask(const kit_request *q, asked_order *o) {
  static uint64_t ones[ASKED_INSTANCES], zeros[ASKED_INSTANCES], stash[ASKED_INSTANCES];
  static uint64_t memory[ASKED_INSTANCES];
  static char text[256];
  opipe_schedule_setting settings[KIT_SETTINGS];
  const uint32_t n_settings = kit_split(q->schedule, text, sizeof text, settings);
  const opipe_layout_request request = {(uint32_t)OPIPE_END(opipe_layout_request, settings),
                                        q->mode,
                                        q->n_ranks,
                                        q->n_stages,
                                        q->n_microbatches,
                                        n_settings,
                                        settings};
  for (uint32_t i = 0; i < ASKED_INSTANCES; ++i) {
    ones[i] = 1;
    stash[i] = q->stash_bytes;
    memory[i] = q->memory_bytes == 0 ? UINT64_MAX : q->memory_bytes;
  }
  const uint64_t *backward = q->mode == OPIPE_MODE_TRAIN ? ones : zeros;
  opipe_schedule_problem problem = {.forward_ns = ones,
                                    .backward_input_ns = backward,
                                    .backward_weight_ns = backward,
                                    .transfer_ns = zeros,
                                    .stash_bytes = stash,
                                    .rank_memory_bytes = memory};
  return asked_ask(asked_open_n(q->schedule, strcspn(q->schedule, ":")), &request, &problem, o);
}

/* ---- text ---- */

/* "0F0 0F1 0B0.1": stage, pass, micro-batch, and the part where backwards have several. */
static inline void kit_text(const asked_order *o, uint32_t rank, char *out, size_t room) {
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
  double bubble;            /* 1 - busy / (ranks x makespan) */
  double peak[ASKED_RANKS]; /* stage activations from the start of F to the end of B */
  uint32_t n_left;          /* actions that can never run */
  uint32_t n_wrong;         /* twice, out of range, or on another rank than the layout has it */
  uint32_t n_missing;       /* passes that nobody computes */
} kit_times;

typedef struct kit_replay {
  const asked_order *o;
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
static inline kit_times kit_replay_order(const asked_order *o, const kit_costs *costs) {
  const opipe_layout *l = &o->layout;
  kit_times t;
  kit_rank ranks[ASKED_RANKS];
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
  static asked_order o;
  const kit_costs costs = {forward, backward, hop};
  const kit_request q = {schedule, OPIPE_MODE_TRAIN, n_ranks, 0, n_microbatches, 0, 0};
  kit_times t;
  memset(&t, 0, sizeof t);
  const opipe_status status = kit_ask(&q, &o);
  if (status < 0) {
    OPI_FAIL("%s, %u ranks, %u micro-batches: %s", schedule, n_ranks, n_microbatches,
             asked_err.message);
  } else {
    t = kit_replay_order(&o, &costs);
    if (t.n_left + t.n_wrong + t.n_missing != 0) {
      OPI_FAIL("%s, %u ranks, %u micro-batches: %u cannot run, %u wrong, %u missing", schedule,
               n_ranks, n_microbatches, t.n_left, t.n_wrong, t.n_missing);
    }
  }
  asked_end(&o);
  return t;
}

#endif /* TESTS_PLUGINS_SCHEDULES_KIT_H */
