/* SPDX-License-Identifier: Apache-2.0 */
/* The planner that decides everything: which layers run on which devices, in which copies and
 * pieces, under which of the installed schedules.
 *
 * A pure function. Candidates are ordered by lower bounds and judged by the simulator
 * (partition/study/simulate), never by a formula. Work is counted, not timed, so the same question
 * gives the same bytes on any number of threads. The mini-batch, the compute type and the meaning
 * of the training are never changed. The answers of the papers' planners are among the candidates.
 */
#ifndef OPI_AUTO_H
#define OPI_AUTO_H

#include "partition/schedule/ask.h"
#include "partition/study/planners/strategy.h"
#include "partition/study/simulate/order_play.h"

/* The objective to minimise. */
enum {
  OPI_AUTO_STEP = 0,   /* time of a mini-batch; forward: of a request, as LATENCY */
  OPI_AUTO_THROUGHPUT, /* time per mini-batch or request of a stream, under the memory caps */
  OPI_AUTO_MEMORY,     /* bytes of the fullest device, under the time limit */
  OPI_AUTO_LATENCY,    /* time of one request; forward only */
  OPI_AUTO_OBJECTIVES
};
/* "step", "throughput", "memory", "latency" */
const char *opi_auto_objective_name(uint32_t objective);

enum { OPI_RECOMPUTES_FREE = 0, OPI_RECOMPUTES_NEVER, OPI_RECOMPUTES_ALWAYS };

/* Choices that the caller has made. 0, NULL: free. */
typedef struct opi_auto_fixed {
  const char *schedule; /* with or without options */
  uint32_t n_stages, n_ranks;
  uint32_t microbatches; /* of the whole mini-batch, over all copies */
  uint32_t pipelines;    /* copies */
  uint32_t width;
  uint32_t recompute; /* OPI_RECOMPUTES_* */
} opi_auto_fixed;

typedef struct opi_auto_progress {
  uint32_t n_candidates, n_bounded, n_simulated;
  double best, bound; /* in the objective's unit, ns or bytes; INFINITY: none yet */
  double best_ns;     /* of a mini-batch or request of the best plan; INFINITY: none yet */
} opi_auto_progress;

/* The question. All borrowed for the call; zeros stand for defaults. */
typedef struct opi_auto {
  opi_planning planning; /* `samples` is for dapple and pipedream; state_bytes 0: 4 */
  const opi_layers *const
      *class_layers;            /* [cluster->n_classes] the layers as measured on each class; NULL:
                                   planning.layers, scaled by the classes' rates */
  const opi_plugins *plugins;   /* only schedules are asked for */
  const char *const *schedules; /* [n_schedules] "NAME": try its options; "NAME:...": as given */
  uint32_t n_schedules;
  uint32_t mode;         /* OPIPE_MODE_* */
  uint32_t objective;    /* OPI_AUTO_* */
  uint32_t dtype;        /* of products, for rates and utilisation; 0: OPIPE_FLOAT */
  double limit_ns;       /* of a step, with OPI_AUTO_MEMORY; 0: none */
  uint64_t memory_bytes; /* cap of every device, in addition to its own; 0: none */
  uint64_t spare_bytes;  /* left free on every device that has a cap */
  bool allow_stale;      /* allows schedules with delayed weights */
  bool groups;       /* sessions divide the layers' model among tensor groups: widths above 1 and
                        sharded optimizers are candidates, too */
  bool widens;       /* they are: set by the search */
  bool hypothetical; /* allows plans that no session executes: tensor groups with slices, halves or
                        replicas of single stages, or without a model */
  bool causal;       /* no token depends on later ones, so token slices keep the meaning */
  double slice_ns; /* cost of a layer's pass over one token slice beyond its share of the tokens. 0:
                      as the layers state (opi_layers.slices); if they do not, slices are only tried
                      if a schedule was given options */
  bool uncapped;   /* ignore caps: finds what would be needed */
  bool nearest;    /* with `uncapped`: minimise the largest excess over a device's cap */
  bool no_help;    /* if nothing fits, report only that, not what would help */
  opi_auto_fixed fixed;
  uint32_t n_threads; /* 0: 1 */
  uint64_t work_most; /* operations to play; 0: a default */
  double budget_s;    /* also stop by now_ns; 0: no budget */
  uint64_t (*now_ns)(void);
  void (*progress)(void *ctx,
                   const opi_auto_progress *progress); /* called on the caller's thread */
  void *progress_ctx;
} opi_auto;

enum { OPI_AUTO_RANKED_MOST = 10 };
enum { OPI_STOPPED_NOT = 0, OPI_STOPPED_WORK, OPI_STOPPED_CLOCK };

/* "no", "work", "clock"; static memory */
const char *opi_auto_stop_name(uint32_t stopped);

/* Result of the simulator. Times: ns of a mini-batch or request. */
typedef struct opi_judged {
  double step_ns;     /* with double-buffered weights, in the steady state */
  double interval_ns; /* per mini-batch or request of a stream, over all copies */
  double compute_ns;  /* of the busiest rank, without sums over tensor groups */
  double exposed_ns;  /* from the last backward or forward to the end: reductions, updates */
  double bubble, utilisation;
  double bytes, cap_bytes; /* of the fullest device; INFINITY: no cap */
  double over_bytes; /* largest excess of a device over its cap; below 0: bytes left, -INFINITY: no
                        device has a cap. Above 0 the plan does not fit */
  uint32_t device;   /* the fullest device */
  uint32_t over_device; /* the device of over_bytes */
  uint32_t n_over;      /* devices over their caps */
  uint64_t n_ops;       /* operations played */
} opi_judged;

typedef struct opi_auto_ranked {
  opi_strategy *strategy; /* owned by the answer */
  opi_judged judged;
  double bound_ns;    /* lower bound of this candidate; 0: none */
  const char *reason; /* why it is not the first; NULL: it is the first */
} opi_auto_ranked;

/* The alternative to stages: copies of the whole model that take the requests of a stream in turn.
 */
typedef struct opi_auto_turns {
  uint32_t n_copies;  /* one per device that holds the model; 0: none does, or not asked */
  double interval_ns; /* between requests; INFINITY: no device holds the model; 0: not asked */
  double weights_bytes,
      stage_weights_bytes; /* read per request by a copy, and by the largest stage */
} opi_auto_turns;

typedef struct opi_auto_answer {
  opi_arena arena;
  uint32_t objective;
  opi_auto_ranked ranked[OPI_AUTO_RANKED_MOST]; /* best first; at least one */
  uint32_t n_ranked;
  uint32_t n_candidates;
  uint32_t n_bounded;   /* not simulated, because their bounds are no better than the best */
  uint32_t n_simulated; /* including refined ones */
  uint32_t n_refused;   /* by their schedules, or over a cap */
  uint32_t n_left;      /* neither, because the work or the time was used up */
  bool forward;         /* requests, not mini-batches */
  bool complete;        /* every cut of every shape was a candidate */
  double bound;         /* no plan is better; in the objective's unit */
  double gap;           /* best / bound - 1 */
  uint32_t stopped;     /* OPI_STOPPED_* */
  opi_auto_turns turns; /* only for throughput of requests */
  const char *whole;    /* why the batch must be one micro-batch; NULL: it may be split */
} opi_auto_answer;

/* Errors: INVALID, a number out of range, unknown schedules, an objective of the other mode; LIMIT,
 * nothing fits: says what is missing on which device, and the smallest change found to help; NOMEM;
 * those of plugins->schedule. */
opipe_status opi_auto_search(const opi_auto *question, opi_auto_answer **out_answer,
                             opipe_error *err);
void opi_auto_free(opi_auto_answer *answer); /* accepts NULL */

/* Plays any strategy, of a planner or made by hand. A strategy over a cap is judged nevertheless.
 * Errors: UNSUPPORTED, a schedule that is not among the question's, or that cannot lay it out;
 * LIMIT, a stage does not fit in its schedule; as opi_order_play_run. */
opipe_status opi_strategy_judge(const opi_auto *question, const opi_strategy *strategy,
                                opi_judged *out_judged, opipe_error *err);

/* The same, and returns what was played. `more`: collective and flags (sharding, scattering,
 * waiting) in addition to the strategy's own; NULL: none. Errors: the same. Release the result with
 * opi_shown_release. */
typedef struct opi_shown {
  opi_arena arena;
  opi_order *order;
  opi_do_list *list;
  opi_order_played played;
} opi_shown;
opipe_status opi_strategy_show(const opi_auto *question, const opi_strategy *strategy,
                               const opi_order_play *more, opi_shown *out_shown, opipe_error *err);
void opi_shown_release(opi_shown *shown);

/* Describes the strategy at `index` (below n_ranked) and the search's figures, for people, or as
 * JSON: a strategy file with a member "search". Equal answers give equal bytes. */
void opi_auto_describe(const opi_auto_answer *answer, uint32_t index, const opi_layers *layers,
                       opi_text *text);
void opi_auto_write(const opi_auto_answer *answer, uint32_t index, opi_text *text);

#endif /* OPI_AUTO_H */
