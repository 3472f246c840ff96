/* SPDX-License-Identifier: Apache-2.0 */
/* The search space of `auto`. Private to this folder. */
#ifndef OPI_AUTO_SPACE_H
#define OPI_AUTO_SPACE_H

#include <math.h>

#include "partition/study/auto/auto.h"
#include "partition/study/simulate/order_play.h"

enum { OPI_POINTS_MOST = 1 << 18, OPI_WIDTHS_MOST = 16 };

/* Prefix sums over layers, for one micro-batch on one device of a tensor group. */
typedef struct opi_sums {
  uint32_t class_, samples, width;
  double *forward, *input, *weight;   /* [n_layers + 1] ns */
  double *stash, *params, *sum_bytes; /* [n_layers + 1] */
  double *flops;                      /* [n_layers + 1] of the whole group, forward and backward */
  double *n_sums;                     /* [n_layers + 1] all-reduces per forward */
  double *cut;                        /* [n_layers + 1] bytes that cross before a layer */
} opi_sums;

/* A schedule with options, as it behaves on few ranks. */
typedef struct opi_method {
  const char *spec;
  const char *why; /* why it cannot be used; NULL: it can */
  uint32_t chunks; /* stages per rank */
  bool stale, sliced;
  bool named;  /* only for a planner's answers; no shape is tried with it */
  bool minor;  /* a number that neither changes the layout nor shortens its trial */
  double idle; /* estimated idle time beyond the bound, in stages' work per rank except one */
} opi_method;

/* Cost of token slices over all layers, per device of a tensor group (opi_token_costs). */
typedef struct opi_slice_curve {
  double alone_ns[OPI_TOKEN_COUNTS_MOST];
  double context_ns;
} opi_slice_curve;

/* The layout that a method produces. */
typedef struct opi_method_layout {
  uint32_t n_ranks, n_stages, n_replicas, n_slices, n_parts, versions;
  uint32_t *instance_rank; /* [n_stages * n_replicas] */
  uint32_t *slice_lengths; /* [n_slices]; NULL: equal */
} opi_method_layout;

enum { OPI_POINT_NONE = 0, OPI_POINT_PLAYED, OPI_POINT_REFUSED };

/* A candidate. */
typedef struct opi_point {
  const opi_method_layout *places;
  const uint32_t *ends; /* [n_stages + 1] in layers */
  const uint32_t
      *shares; /* [n_ranks] replicas of each rank that divide micro-batches; NULL: one each */
  const uint32_t *order; /* [ranks * copies * width] devices, numbered by `place` */
  const char *origin;    /* the planner that proposed it; NULL: this one */
  double guess, bound;   /* in the objective's unit; the bound is proven */
  uint32_t method, width, copies;
  uint32_t samples, microbatches; /* of one copy */
  uint32_t index;                 /* breaks ties */
  uint8_t place;                  /* OPI_PLACE_* */
  uint8_t fate;                   /* OPI_POINT_* */
  bool recompute, sharded, scattered;
  bool first; /* has the best guess of its kind */
} opi_point;

typedef struct opi_space {
  const opi_auto *question;
  opi_auto own; /* the question, checked and completed; `question` points here */
  opi_arena arena;
  opi_machine machine;
  bool equal_devices, equal_nodes;
  const uint32_t *identity; /* [n_devices] */
  double *caps;             /* [n_devices]; INFINITY: none */
  opi_schedule_ref *refs;   /* [n_refs] the schedules, looked up once */
  uint32_t n_refs;
  opi_plugins plugins; /* finds `refs` */
  opi_method *methods;
  uint32_t n_methods, room_methods;
  opi_sums *sums;
  uint32_t n_sums, room_sums;
  opi_slice_curve *curves; /* [OPI_WIDTHS_MOST] by width - 1; NULL: slices take their share of the
                              tokens plus slice_ns */
  opi_method_layout *last_places; /* shared by points with the same layout */
  struct opi_collective_memo *memo;
  struct opi_cut_memo *cut_memo;
  opi_point *points;
  uint32_t n_points, room_points;
  uint32_t n_refused;
  uint32_t points_most;    /* current limit on n_points */
  bool complete, overflow; /* overflow: the limit was exceeded */
  uint64_t began_ns;       /* with a budget */
  bool hurried;            /* half of the budget had passed before all shapes were considered */
  char why[OPI_LINE_ROOM]; /* reason of the last refusal */
  opipe_error *err;
} opi_space;

/* ---- space.c ---- */

opipe_status opi_space_open(const opi_auto *question, opi_space *out_space, opipe_error *err);
void opi_space_close(opi_space *space);
static inline bool opi_space_trains(const opi_space *space) {
  return space->question->mode == OPIPE_MODE_TRAIN;
}
/* Index into space->sums; computed on first use. */
opipe_status opi_space_sums(opi_space *space, uint32_t class_, uint32_t samples, uint32_t width,
                            uint32_t *out_index);
/* Looks up existing sums. */
const opi_sums *opi_sums_of(const opi_space *space, const opi_point *point, uint32_t class_);
/* Asks the method for its layout; *out_places is NULL if it refuses (space->why). */
opipe_status opi_space_lay_out(opi_space *space, uint32_t method, uint32_t n_ranks,
                               uint32_t n_stages, uint32_t microbatches,
                               const opi_method_layout **out_places);
/* True if the given share, 0 to 1, of the question's time budget has passed. */
bool opi_space_spent(const opi_space *space, double share);
/* Adds a point with its bound and guess, unless it cannot fit or there are too many. */
opipe_status opi_space_add(opi_space *space, opi_point point);

/* Ranks of one copy, including replicas that divide micro-batches. */
static inline uint32_t opi_point_ranks(const opi_point *p) {
  uint32_t n = 0;
  for (uint32_t r = 0; p->shares != NULL && r < p->places->n_ranks; ++r)
    n += p->shares[r];
  return p->shares == NULL ? p->places->n_ranks : n;
}
/* rank: within one copy. */
static inline uint32_t opi_point_device(const opi_point *p, uint32_t n_ranks, uint32_t rank,
                                        uint32_t copy, uint32_t tensor) {
  const uint32_t outer =
      p->place == OPI_PLACE_TENSOR_DATA_PIPELINE ? rank * p->copies + copy : copy * n_ranks + rank;
  return p->order[outer * p->width + tensor];
}
/* Samples of the smallest micro-batch (they differ by at most one). 0: some have none. A batch that
 * cannot be split counts as one. */
static inline uint32_t opi_point_rows(const opi_space *space, const opi_point *p) {
  const opi_planning *q = &space->question->planning;
  const uint64_t batch = q->layers->whole == NULL ? q->batch : 1;
  return (uint32_t)(batch / ((uint64_t)p->microbatches * p->copies));
}
/* Speedup of a rank by replicas that divide micro-batches, limited by the replica with the most
 * samples. */
static inline double opi_point_speed(const opi_point *p, uint32_t rank) {
  const uint32_t n = p->shares == NULL ? 1 : p->shares[rank];
  return (double)p->samples / ((p->samples - 1) / n + 1);
}
/* True if an earlier replica of the stage is on the same rank; the weights are there once. */
static inline bool opi_places_repeat(const opi_method_layout *l, uint32_t stage, uint32_t replica) {
  for (uint32_t k = 0; replica < l->n_replicas && k < replica; ++k) {
    if (l->instance_rank[stage * l->n_replicas + k] ==
        l->instance_rank[stage * l->n_replicas + replica])
      return true;
  }
  return false;
}
/* The cap of a device, even in a search without caps; INFINITY: none. */
static inline double opi_space_own_cap(const opi_space *space, uint32_t device) {
  const opi_auto *q = space->question;
  const uint64_t own = q->planning.cluster->descriptions[device].memory_bytes;
  const uint64_t cap =
      own == 0 || (q->memory_bytes != 0 && q->memory_bytes < own) ? q->memory_bytes : own;
  return cap == 0 ? INFINITY : (double)cap - (double)q->spare_bytes;
}
/* The first token slice's share of the tokens; it fills the pipeline. */
double opi_places_first_slice(const opi_method_layout *places);

/* ---- slices.c ---- */

/* Fills space->curves if the layers state the costs of slices. */
opipe_status opi_slices_know(opi_space *space);
/* Checks that every token slice has a token and every token a slice. Errors: INVALID with both
 * numbers. */
opipe_status opi_slices_check(const opi_space *space, const opi_decision *plan, opipe_error *err);
/* Shares of a stage's time that the token slices of a point take: out_times [n_slices], or NULL.
 * *out_sum is their sum, at least 1; *out_first is the first slice's part of it, 0 to 1. */
void opi_point_slices(const opi_space *space, const opi_point *point, double *out_times,
                      double *out_sum, double *out_first);

/* ---- methods.c ---- */

/* Finds schedules with their options and tries each on a few ranks. */
opipe_status opi_methods_find(opi_space *space);
/* Finds or adds the method of a planner's answer; OPIPE_NONE: it may not be used. */
opipe_status opi_method_add(opi_space *space, const char *spec, uint32_t *out_method);

/* ---- cuts.c ---- */

/* The cut with the fastest slowest rank, including fill and drain of the pipeline, if every rank
 * has one stage; otherwise the one with the fastest slowest stage. `held`: stages must fit with
 * stashes as in 1F1B. *out_ends [n_stages + 1]; NULL: none fits. */
opipe_status opi_cut_balanced(opi_space *space, const opi_point *point, bool held,
                              const uint32_t **out_ends);

/* ---- shapes.c ---- */

/* Adds all candidates: every cut of every shape if these are few, otherwise chosen ones. */
opipe_status opi_shapes_all(opi_space *space);

/* ---- bound.c ---- */

typedef struct opi_bounds {
  double ns;    /* of a step; no order of this point is faster */
  double guess; /* the same plus estimates of what the bound omits */
  double bytes; /* largest excess over a device's cap; above 0 it does not fit */
} opi_bounds;
opipe_status opi_point_bound(opi_space *space, const opi_point *point, opi_bounds *out);
/* A lower bound, in ns of a step, on every plan for these devices, whatever its cut and schedule.
 */
double opi_space_bound(opi_space *space);
/* Device bytes of one stage without stashes. */
double opi_point_fixed_bytes(const opi_space *space, const opi_point *p, double params);

/* ---- judge.c ---- */

/* Plays a point. Thread-safe: only reads the space. must_fit: do not play it if its order keeps
 * more than a device has left. Errors: NOMEM; LIMIT, not played for that reason; those of schedule
 * and play. */
opipe_status opi_point_judge(const opi_space *space, const opi_point *point, bool must_fit,
                             opi_judged *out_judged, opipe_error *err);
/* Plays it and returns what was played; `more` as in opi_strategy_show. Release the result unless
 * this fails. */
opipe_status opi_point_show(const opi_space *space, const opi_point *point,
                            const opi_order_play *more, opi_shown *out_shown, opipe_error *err);
/* The value to minimise; INFINITY: over a cap or a limit. */
double opi_judged_key(const opi_space *space, const opi_judged *judged);

/* ---- kept.c ---- */

/* True if some rank must keep more than it has left, whatever the times. stages [stages of the
 * order], instances NULL or [instances]; slack: bytes of rank r, [r mod n_slack]. */
bool opi_order_must_exceed(const opi_order *order, const opi_stage_load *stages,
                           const opi_stage_load *instances, bool recompute, const double *slack,
                           uint32_t n_slack);

/* ---- named.c ---- */

/* Adds the answers of the papers' planners. */
opipe_status opi_named_add(opi_space *space);
/* Converts a strategy into a point. by_copies: replicas become copies if all stages have the same
 * number. Errors: UNSUPPORTED, its schedule is not available. */
opipe_status opi_point_of_strategy(opi_space *space, const opi_strategy *strategy, bool by_copies,
                                   opi_point *out_point);

/* ---- answer.c ---- */

/* Converts a point into a strategy. */
opipe_status opi_point_strategy(const opi_space *space, const opi_point *point,
                                const opi_judged *judged, opi_strategy **out_strategy);

/* Whether widths above 1 and sharded optimizers are candidates. */
static inline bool opi_auto_widens(const opi_auto *question) {
  return question->hypothetical || question->widens;
}
/* Whether sessions send parts between stages: not where tensors are produced in the receiver's
 * memory. */
static inline bool opi_auto_scatters(const opi_auto *question) {
  const opi_cluster *c = question->planning.cluster;
  const bool direct = (c->link.flags & OPIPE_TRANSPORT_DIRECT) != 0 &&
                      (c->descriptions[0].flags & OPIPE_DEVICE_HOST_MEMORY) != 0;
  return question->widens && !direct;
}
/* Whether sessions execute the point, as far as tensor groups decide. */
static inline bool opi_point_runs(const opi_auto *question, const opi_point *p) {
  const opi_method_layout *l = p->places;
  const bool plain = p->shares == NULL && l->n_slices <= 1 && l->n_parts <= 1;
  return (!p->scattered || opi_auto_scatters(question)) &&
         (p->width == 1 || (question->widens && plain)) && (!p->sharded || question->widens);
}

#endif /* OPI_AUTO_SPACE_H */
