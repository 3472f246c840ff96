/* SPDX-License-Identifier: Apache-2.0 */
/* The planner that decides everything: which layers on which devices, in which copies and pieces,
 * under which of the installed schedules.
 *
 * A pure function: candidates are ordered by lower bounds and judged by the simulator
 * (partition/study/simulate), never by a formula; work is counted, not timed, so that the same
 * question gives the same bytes on any number of threads. The mini-batch, the type of computing and
 * the meaning of the training stay what they were. Whatever the planners of the papers answer is
 * among the candidates.
 */
#ifndef OPI_AUTO_H
#define OPI_AUTO_H

#include "partition/schedule/ask.h"
#include "partition/study/planners/strategy.h"
#include "partition/study/simulate/order_play.h"

/* What is made least. */
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

/* What is not to be decided any more. 0, NULL: free. */
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
  double best_ns;     /* what a mini-batch or request of the best one takes; INFINITY: none yet */
} opi_auto_progress;

/* The question. All borrowed for the call; zeros are presets. */
typedef struct opi_auto {
  opi_planning planning; /* `samples` is what dapple and pipedream are told; state_bytes 0: 4 */
  const opi_layers *const *class_layers; /* [cluster->n_classes] as the devices of each class take
                                            them; NULL: planning.layers, by the classes' rates */
  const opi_plugins *plugins;            /* schedules alone are asked for */
  const char *const *schedules; /* [n_schedules] "NAME": with the options that it lists; "NAME:..."
                                   as it is */
  uint32_t n_schedules;
  uint32_t mode;         /* OPIPE_MODE_* */
  uint32_t objective;    /* OPI_AUTO_* */
  uint32_t dtype;        /* of products, for rates and utilisation; 0: OPIPE_FLOAT */
  double limit_ns;       /* of a step, with OPI_AUTO_MEMORY; 0: none */
  uint64_t memory_bytes; /* cap of every device, beside its own; 0: none */
  uint64_t spare_bytes;  /* of every device that has a cap: left free */
  bool allow_stale;      /* schedules with delayed weights */
  bool hypothetical;     /* what no session executes: tensor width, sharded optimizers */
  bool causal;           /* a token does not depend on later ones: token slices keep the meaning */
  double slice_ns; /* what a pass of a layer over one token slice takes beside its share of the
                      tokens. 0: as the layers say (opi_layers.slices); where they do not, slices
                      are only tried where a schedule was given options */
  bool uncapped;   /* as if no device had a cap: what would be needed */
  bool nearest;    /* with `uncapped`: least is what a device is over its cap by, of all devices */
  bool no_help;    /* where nothing fits, that alone is said, not what would help */
  opi_auto_fixed fixed;
  uint32_t n_threads; /* 0: 1 */
  uint64_t work_most; /* operations to play; 0: a preset */
  double budget_s;    /* stops by now_ns as well; 0: no budget */
  uint64_t (*now_ns)(void);
  void (*progress)(void *ctx, const opi_auto_progress *progress); /* caller's thread */
  void *progress_ctx;
} opi_auto;

enum { OPI_AUTO_RANKED_MOST = 10 };
enum { OPI_STOPPED_NOT = 0, OPI_STOPPED_WORK, OPI_STOPPED_CLOCK };

/* "no", "work", "clock"; static memory */
const char *opi_auto_stop_name(uint32_t stopped);

/* What the simulator says. Times: ns of a mini-batch or request. */
typedef struct opi_judged {
  double step_ns;     /* double-buffered weights: in the steady state */
  double interval_ns; /* per mini-batch or request of a stream, all copies */
  double compute_ns;  /* of the busiest rank, sums over tensor groups left out */
  double exposed_ns;  /* from the last backward or forward to the end: reductions, updates */
  double bubble, utilisation;
  double bytes, cap_bytes; /* of the fullest device; INFINITY: no cap */
  double over_bytes;       /* of the device that is farthest over its cap; below 0: what that has
                              left, -INFINITY: no device has a cap. Above 0 it does not fit */
  uint32_t device;         /* the fullest one */
  uint32_t over_device;    /* that one */
  uint32_t n_over;         /* devices that are over their caps */
  uint64_t n_ops;          /* played */
} opi_judged;

typedef struct opi_auto_ranked {
  opi_strategy *strategy; /* the answer's */
  opi_judged judged;
  double bound_ns;    /* proven, of this candidate; 0: none */
  const char *reason; /* why it is not the first; NULL: it is */
} opi_auto_ranked;

/* Copies of the whole model that take the requests of a stream in turn, in place of stages. */
typedef struct opi_auto_turns {
  uint32_t n_copies;  /* one on each of so many devices; 0: it fits on none, or it was not asked */
  double interval_ns; /* between requests; INFINITY: it fits on none; 0: it was not asked */
  double weights_bytes, stage_weights_bytes; /* that a copy, and the largest stage, reads */
} opi_auto_turns;

typedef struct opi_auto_answer {
  opi_arena arena;
  uint32_t objective;
  opi_auto_ranked ranked[OPI_AUTO_RANKED_MOST]; /* from the best; at least one */
  uint32_t n_ranked;
  uint32_t n_candidates;
  uint32_t n_bounded;   /* of them not simulated, as their bounds are no better than the best */
  uint32_t n_simulated; /* refined ones too */
  uint32_t n_refused;   /* by their schedules, or over a cap */
  uint32_t n_left;      /* neither: the work or the time was spent */
  bool forward;         /* of requests, not of mini-batches */
  bool complete;        /* every cut of every shape was a candidate */
  double bound;         /* no plan is better, in the objective's unit */
  double gap;           /* best / bound - 1 */
  uint32_t stopped;     /* OPI_STOPPED_* */
  opi_auto_turns turns; /* objective throughput of requests */
  const char *whole;    /* why the batch is one micro-batch; NULL: it may be cut */
} opi_auto_answer;

/* Errors: INVALID, a number out of range, unknown schedules, an objective of the other mode; LIMIT,
 * nothing fits: what is missing on which device, and the smallest change that was found to help;
 * NOMEM; those of plugins->schedule. */
opipe_status opi_auto_search(const opi_auto *question, opi_auto_answer **out_answer,
                             opipe_error *err);
void opi_auto_free(opi_auto_answer *answer); /* accepts NULL */

/* Any strategy, played: of a planner or by hand. Errors: UNSUPPORTED, a schedule that is not among
 * the question's, or what it cannot lay out; LIMIT, a stage does not fit in its schedule; as
 * opi_order_play_run. A strategy that is over a cap is judged all the same. */
opipe_status opi_strategy_judge(const opi_auto *question, const opi_strategy *strategy,
                                opi_judged *out_judged, opipe_error *err);

/* The same, with what was played. `more`: collective, flags of sharding, scattering and waiting
 * beside the strategy's own; NULL: none. Errors: the same. Release it. */
typedef struct opi_shown {
  opi_arena arena;
  opi_order *order;
  opi_do_list *list;
  opi_order_played played;
} opi_shown;
opipe_status opi_strategy_show(const opi_auto *question, const opi_strategy *strategy,
                               const opi_order_play *more, opi_shown *out_shown, opipe_error *err);
void opi_shown_release(opi_shown *shown);

/* The strategy at `index` (below n_ranked) with what the search found beside it. For people, and
 * for machines: JSON, a strategy's file with a member "search"; the same value the same bytes. */
void opi_auto_describe(const opi_auto_answer *answer, uint32_t index, const opi_layers *layers,
                       opi_text *text);
void opi_auto_write(const opi_auto_answer *answer, uint32_t index, opi_text *text);

#endif /* OPI_AUTO_H */
