/* SPDX-License-Identifier: Apache-2.0 */
/* What `auto` searches: of this folder alone. */
#ifndef OPI_AUTO_SPACE_H
#define OPI_AUTO_SPACE_H

#include <math.h>

#include "partition/study/auto/auto.h"
#include "partition/study/simulate/order_play.h"

enum { OPI_POINTS_MOST = 1 << 18, OPI_WIDTHS_MOST = 16 };

/* Sums over the layers before each, of one micro-batch on one device of a tensor group. */
typedef struct opi_sums {
  uint32_t class_, samples, width;
  double *forward, *input, *weight;   /* [n_layers + 1] ns */
  double *stash, *params, *sum_bytes; /* [n_layers + 1] */
  double *flops;                      /* [n_layers + 1] of the whole group, forward and backward */
  double *n_sums;                     /* [n_layers + 1] all-reduces of a forward */
  double *cut;                        /* [n_layers + 1] bytes that cross in front of a layer */
} opi_sums;

/* A schedule with its options, as it answers for few ranks. */
typedef struct opi_method {
  const char *spec;
  const char *why; /* it cannot be used; NULL: it can */
  uint32_t chunks; /* stages of a rank */
  bool stale, sliced;
  bool named;  /* of a planner's answers alone, no shape is tried with it */
  bool minor;  /* a number that changes neither the layout nor makes its trial shorter */
  double idle; /* beside its bound: in stages' work, for every rank but one. A guess */
} opi_method;

/* What token slices take of all layers, of one of a tensor group's devices (opi_token_costs). */
typedef struct opi_slice_curve {
  double alone_ns[OPI_TOKEN_COUNTS_MOST];
  double context_ns;
} opi_slice_curve;

/* What a method lays out. */
typedef struct opi_places {
  uint32_t n_ranks, n_stages, n_replicas, n_slices, n_parts, versions;
  uint32_t *instance_rank; /* [n_stages * n_replicas] */
  uint32_t *slice_lengths; /* [n_slices]; NULL: equal */
} opi_places;

enum { OPI_FATE_NONE = 0, OPI_FATE_PLAYED, OPI_FATE_REFUSED };

/* A candidate. */
typedef struct opi_point {
  const opi_places *places;
  const uint32_t *ends;   /* [n_stages + 1] layers */
  const uint32_t *shares; /* [n_ranks] replicas of each rank, which cut micro-batches; NULL: one */
  const uint32_t *order;  /* [ranks * copies * width] devices, as `place` numbers them */
  const char *origin;     /* the planner that said so; NULL: this one */
  double guess, bound;    /* in the objective's unit; the bound is proven */
  uint32_t method, width, copies;
  uint32_t samples, microbatches; /* of one copy */
  uint32_t index;                 /* ties are broken by it */
  uint8_t place;                  /* OPI_PLACE_* */
  uint8_t fate;                   /* OPI_FATE_* */
  bool recompute, sharded, scattered;
  bool first; /* has the best guess of its kind */
} opi_point;

typedef struct opi_space {
  const opi_auto *question;
  opi_auto own; /* checked and filled in; `question` points here */
  opi_arena arena;
  opi_machine machine;
  bool equal_devices, equal_nodes;
  const uint32_t *identity; /* [n_devices] */
  double *caps;             /* [n_devices]; INFINITY: none */
  opi_schedule_ref *refs;   /* [n_refs] of the schedules, looked up once */
  uint32_t n_refs;
  opi_plugins plugins; /* which finds these */
  opi_method *methods;
  uint32_t n_methods, room_methods;
  opi_sums *sums;
  uint32_t n_sums, room_sums;
  opi_slice_curve *curves; /* [OPI_WIDTHS_MOST] by width - 1; NULL: slices take their share of the
                              tokens, and slice_ns beside it */
  opi_places *last_places; /* to be shared */
  struct opi_collective_memo *memo;
  struct opi_cut_memo *cut_memo;
  opi_point *points;
  uint32_t n_points, room_points;
  uint32_t n_refused;
  uint32_t points_most;    /* as many may be there now */
  bool complete, overflow; /* overflow: more points than that */
  uint64_t began_ns;       /* with a budget */
  bool hurried;            /* half of the budget was over before all shapes were looked at */
  char why[OPI_LINE_ROOM]; /* of what was refused last */
  opipe_error *err;
} opi_space;

/* ---- space.c ---- */

opipe_status opi_space_open(const opi_auto *question, opi_space *out_space, opipe_error *err);
void opi_space_close(opi_space *space);
static inline bool opi_space_trains(const opi_space *space) {
  return space->question->mode == OPIPE_MODE_TRAIN;
}
/* Index in space->sums, made where it is not there yet. */
opipe_status opi_space_sums(opi_space *space, uint32_t class_, uint32_t samples, uint32_t width,
                            uint32_t *out_index);
/* One that is there. */
const opi_sums *opi_sums_of(const opi_space *space, const opi_point *point, uint32_t class_);
/* What the method lays out; *out_places is NULL where it refuses (space->why). */
opipe_status opi_space_lay_out(opi_space *space, uint32_t method, uint32_t n_ranks,
                               uint32_t n_stages, uint32_t microbatches,
                               const opi_places **out_places);
/* Has so much of the question's budget, 0 to 1, passed? */
bool opi_space_spent(const opi_space *space, double share);
/* Adds one with its bound and guess, unless it cannot fit; nothing once there are too many. */
opipe_status opi_space_add(opi_space *space, opi_point point);

/* Ranks of one copy with the replicas that cut micro-batches. */
static inline uint32_t opi_point_ranks(const opi_point *p) {
  uint32_t n = 0;
  for (uint32_t r = 0; p->shares != NULL && r < p->places->n_ranks; ++r)
    n += p->shares[r];
  return p->shares == NULL ? p->places->n_ranks : n;
}
/* rank: of those of one copy. */
static inline uint32_t opi_point_device(const opi_point *p, uint32_t n_ranks, uint32_t rank,
                                        uint32_t copy, uint32_t tensor) {
  const uint32_t outer =
      p->place == OPI_PLACE_TENSOR_DATA_PIPELINE ? rank * p->copies + copy : copy * n_ranks + rank;
  return p->order[outer * p->width + tensor];
}
/* Samples of its smallest micro-batch: they differ by one at most. 0: not every one has a sample.
 * A batch that cannot be cut counts as one. */
static inline uint32_t opi_point_rows(const opi_space *space, const opi_point *p) {
  const opi_planning *q = &space->question->planning;
  const uint64_t batch = q->layers->whole == NULL ? q->batch : 1;
  return (uint32_t)(batch / ((uint64_t)p->microbatches * p->copies));
}
/* How many times less a rank's replicas, which cut micro-batches, have than one would: the one with
 * the most samples counts. */
static inline double opi_point_speed(const opi_point *p, uint32_t rank) {
  const uint32_t n = p->shares == NULL ? 1 : p->shares[rank];
  return (double)p->samples / ((p->samples - 1) / n + 1);
}
/* Is an earlier replica of the stage on the same rank? Its weights are there once. */
static inline bool opi_places_repeat(const opi_places *l, uint32_t stage, uint32_t replica) {
  for (uint32_t k = 0; replica < l->n_replicas && k < replica; ++k) {
    if (l->instance_rank[stage * l->n_replicas + k] ==
        l->instance_rank[stage * l->n_replicas + replica])
      return true;
  }
  return false;
}
/* The cap of a device, in a search without caps, too; INFINITY: it has none. */
static inline double opi_space_own_cap(const opi_space *space, uint32_t device) {
  const opi_auto *q = space->question;
  const uint64_t own = q->planning.cluster->descriptions[device].memory_bytes;
  const uint64_t cap =
      own == 0 || (q->memory_bytes != 0 && q->memory_bytes < own) ? q->memory_bytes : own;
  return cap == 0 ? INFINITY : (double)cap - (double)q->spare_bytes;
}
/* Share of the first token slice, which is what fills a pipeline. */
double opi_places_first_slice(const opi_places *places);

/* ---- slices.c ---- */

/* space->curves, where the layers say what slices take. */
opipe_status opi_slices_know(opi_space *space);
/* Has every token slice of a layout a token, and every token a slice? Errors: INVALID with both
 * numbers. */
opipe_status opi_slices_check(const opi_space *space, const opi_plan *plan, opipe_error *err);
/* What part of the times of a stage each token slice of a point takes: out_times [n_slices]; NULL:
 * not wanted. Together they take as much as the whole, or more; *out_sum of it, and *out_first the
 * first of that, 0 to 1. */
void opi_point_slices(const opi_space *space, const opi_point *point, double *out_times,
                      double *out_sum, double *out_first);

/* ---- methods.c ---- */

/* Schedules with their options, each tried on a few ranks. */
opipe_status opi_methods_find(opi_space *space);
/* One more, for a planner's answers, or the one that is there; OPIPE_NONE: it may not be used. */
opipe_status opi_method_add(opi_space *space, const char *spec, uint32_t *out_method);

/* ---- cuts.c ---- */

/* The cut whose slowest rank is fastest, heads and tails of the pipeline counted, where every rank
 * has one stage; else whose slowest stage is. `held`: stages hold as 1F1B does, and have to fit.
 * *out_ends [n_stages + 1]; NULL: none fits. */
opipe_status opi_cut_balanced(opi_space *space, const opi_point *point, bool held,
                              const uint32_t **out_ends);

/* ---- shapes.c ---- */

/* All candidates: every cut of every shape where these are few enough, else chosen ones. */
opipe_status opi_shapes_all(opi_space *space);

/* ---- bound.c ---- */

typedef struct opi_bounds {
  double ns;    /* of a step; no order of this point is faster */
  double guess; /* the same with what bounds leave out */
  double bytes; /* beyond the cap on any device; > 0: it does not fit */
} opi_bounds;
opipe_status opi_point_bound(opi_space *space, const opi_point *point, opi_bounds *out);
/* No plan on these devices is faster, whatever its cut and schedule: ns of a step. */
double opi_space_bound(opi_space *space);
/* Device bytes of one stage beside what micro-batches keep. */
double opi_point_fixed_bytes(const opi_space *space, const opi_point *p, double params);

/* ---- judge.c ---- */

/* Plays a point. Thread-safe: reads the space. must_fit: one whose order keeps more than a device
 * has left is not played. Errors: NOMEM; LIMIT, it was not played for that; what schedule and play
 * say. */
opipe_status opi_point_judge(const opi_space *space, const opi_point *point, bool must_fit,
                             opi_judged *out_judged, opipe_error *err);
/* Plays it, and hands out what was played; `more` as in opi_strategy_show. Release it, not on
 * failure. */
opipe_status opi_point_show(const opi_space *space, const opi_point *point,
                            const opi_order_play *more, opi_shown *out_shown, opipe_error *err);
/* What the objective makes least; INFINITY: over a cap or a limit. */
double opi_judged_key(const opi_space *space, const opi_judged *judged);

/* ---- kept.c ---- */

/* Does a rank keep more, however long things take, than it has left? stages [stages of the order],
 * instances NULL or [instances]; slack: bytes, of rank r [r mod n_slack]. */
bool opi_order_must_exceed(const opi_order *order, const opi_stage_load *stages,
                           const opi_stage_load *instances, bool recompute, const double *slack,
                           uint32_t n_slack);

/* ---- named.c ---- */

/* The answers of the papers' planners. */
opipe_status opi_named_add(opi_space *space);
/* As a point. UNSUPPORTED: its schedule is not there. by_copies: replicas that all stages have
 * alike become copies. */
opipe_status opi_point_of_strategy(opi_space *space, const opi_strategy *strategy, bool by_copies,
                                   opi_point *out_point);

/* ---- answer.c ---- */

/* The point as a strategy. */
opipe_status opi_point_strategy(const opi_space *space, const opi_point *point,
                                const opi_judged *judged, opi_strategy **out_strategy);

#endif /* OPI_AUTO_SPACE_H */
