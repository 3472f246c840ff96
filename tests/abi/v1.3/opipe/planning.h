/* SPDX-License-Identifier: Apache-2.0 */
/* Models by their layers, and planners that decide by these; part of host.h (guide: planners).
 *
 *   profile_of_model, _of_arch, _read -> strategy_make (a planner, on a cluster) -> strategy_play
 *                                                                                -> strategy_plan
 *
 * A profile says of every layer what its forward and backward take, keep and send, for some numbers
 * of samples in a micro-batch; a strategy which layers stand where, in which copies and pieces, and
 * under which schedule. Both are values: they do not change, and are the same for the same question
 * (measured profiles and planners with a budget of time apart). Neither needs the devices that it
 * is for. Times in structs are nanoseconds where they end in _ns, sizes bytes.
 *
 * Planner "auto" searches all that the installed schedules can do, under the caps of the cluster's
 * devices, and answers with the best of what it simulated; strategy_describe (JSON: its file) then
 * also says what the search did, and the best ten with the reason why each is behind, which
 * strategy_ranked hands out as strategies of their own. Where the cluster has devices of several
 * kinds, a profile of a model or a description that was made by rates is made again for each of
 * them; another one is scaled by their rates. A profile keeps the model that it was made from.
 */
#ifndef OPIPE_PLANNING_H
#define OPIPE_PLANNING_H

#include "train.h"
#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct opipe_profile opipe_profile;
typedef struct opipe_strategy opipe_strategy;

/* A device of this process. */
typedef struct opipe_device_choice {
  const char *kind;      /* backend id: "cpu"; 1.3: "cuda:GPU-5a..", a device by its uuid */
  const char *options;   /* for the backend, NULL: none */
  uint64_t memory_bytes; /* 0: what the device has */
  uint32_t index;
  uint32_t threads; /* 0: backend's choice */
} opipe_device_choice;

/* NODES: a layer for every node; else blocks that repeat are one layer each, and what stands before
 * and behind them is cut at narrow places. WHOLE: where the batch of a model cannot be cut, the
 * profile is of the model as it is bound, and says why; planner auto then has one micro-batch. */
enum { OPIPE_PROFILE_NODES = 1u, OPIPE_PROFILE_WHOLE = 2u };

/* Where and for what a profile is made. All borrowed for the call. */
typedef struct opipe_profile_params {
  uint32_t struct_size;
  uint32_t flags;          /* OPIPE_PROFILE_*; of models */
  const uint32_t *samples; /* [n_samples] of a micro-batch, rising from 1; none: a model's as it is
                              bound, 1 of an arch */
  uint32_t n_samples;      /* at most 64 */
  uint32_t cost;           /* OPIPE_COST_RATES, or of models OPIPE_COST_MEASURED: best of 3 runs of
                              every node alone */
  const char *batch_dim;   /* of models, as in opipe_plan_params */
  const opipe_train_options *train; /* of models bound with OPIPE_BIND_TRAIN; NULL: forwards alone,
                                       backward times and kept bytes are 0 */
  /* The device: of a cluster, or of this process; none of both: a model's is "cpu", an arch has no
   * times. */
  const void *cluster; /* its text, cluster_bytes of it */
  uint64_t cluster_bytes;
  const char *cluster_name;   /* in messages; NULL: "the cluster" */
  const char *device;         /* backend id; NULL: "cpu" */
  const char *device_options; /* for the backend, NULL: none */
  uint32_t device_index;      /* of the backend, or of the cluster's devices */
  uint32_t threads;           /* 0: backend's choice; of a cluster: as it says */
} opipe_profile_params;

typedef struct opipe_profile_info {
  uint32_t struct_size;
  uint32_t n_layers, n_sizes; /* numbers of samples that are known */
  uint32_t tokens;            /* of a sample; 0: has none, or not known */
  uint32_t weight_bytes;      /* of one parameter; 0: not known */
  uint32_t reserved;
  const char *name; /* the profile's, as long as it lives */
} opipe_profile_info;

/* A layer at a number of samples: as it was given, else in proportion. */
typedef struct opipe_layer_info {
  uint32_t struct_size;
  uint32_t reserved;
  const char *name; /* of its last node where it was made from a model; the profile's */
  double flops;     /* of its forward; 0: not known */
  double forward_ns, input_ns, weight_ns;
  uint64_t output_bytes; /* of all that it makes for others */
  uint64_t cut_bytes;    /* of all that crosses a cut behind it */
  uint64_t stash_bytes;  /* kept from its forward to its backward */
  uint64_t param_bytes;
  double width_share;   /* 0 to 1: so much of it is divided over a tensor group */
  uint64_t width_bytes; /* summed over the group in a forward, as many in a backward */
} opipe_layer_info;

/* What is made best: the time of a step; samples per second under the caps of memory; the fullest
 * device's bytes, within limit_ms; the time of one request (forward only). */
enum {
  OPIPE_OBJECTIVE_STEP = 0,
  OPIPE_OBJECTIVE_THROUGHPUT = 1,
  OPIPE_OBJECTIVE_MEMORY = 2,
  OPIPE_OBJECTIVE_LATENCY = 3
};
/* HYPOTHETICAL: also what no session executes here (tensor groups, sharded optimizers).
 * ALLOW_STALE: also schedules that compute with delayed weights. FORWARD: for requests, not for
 * training. CAUSAL: a token depends on those before it alone, so that sequences may be cut. All
 * four are planner auto's. */
enum {
  OPIPE_STRATEGY_HYPOTHETICAL = 1u,
  OPIPE_STRATEGY_ALLOW_STALE = 2u,
  OPIPE_STRATEGY_FORWARD = 4u,
  OPIPE_STRATEGY_CAUSAL = 8u
};

/* Is the forward computed again before the backward? */
enum {
  OPIPE_STRATEGY_RECOMPUTES_FREE = 0,
  OPIPE_STRATEGY_RECOMPUTES_NEVER = 1,
  OPIPE_STRATEGY_RECOMPUTES_ALWAYS = 2
};

/* The question to a planner. All borrowed for the call. */
typedef struct opipe_strategy_params {
  uint32_t struct_size;
  uint32_t flags;      /* OPIPE_STRATEGY_* */
  const char *planner; /* "auto", "dapple", "pipedream", "2bw", "chimera", "megatron", ...; NULL:
                          "auto" */
  const void *cluster; /* its text (guide: clusters), cluster_bytes of it */
  uint64_t cluster_bytes;
  const char *cluster_name; /* in messages; NULL: "the cluster" */
  uint64_t batch;           /* samples of a mini-batch, or request */
  uint64_t memory_bytes;    /* cap of every device that has none of its own; 0: none */
  double state_bytes; /* of device memory per byte of parameters: weights, gradients, optimizer's
                         state; 0: by the optimizer that the profile was made with, else 4 (Adam in
                         one type), of forwards 1 */
  double limit_ms;    /* OBJECTIVE_MEMORY: of a step; 0: none */
  double budget_s; /* auto: a stop by the clock beside that by counted work, marked in the answer;
                      0: none */
  uint32_t n_devices; /* the cluster's first so many; 0: all */
  uint32_t samples;   /* of a micro-batch, for planners that are told it (dapple, pipedream); 0: the
                         profile's smallest */
  uint32_t objective; /* OPIPE_OBJECTIVE_*; all but STEP are planner auto's */
  uint32_t n_threads; /* auto: that search; the answer is the same for any number. 0: 1 */
  /* What is given and not searched, by planner auto; 0, NULL: free. */
  const char *schedule;    /* "name:key=value,..." */
  uint32_t n_stages;       /* of one pipeline */
  uint32_t n_microbatches; /* of the whole mini-batch */
  /* auto; NULL: none. Now and then while it searches: candidates that a bound ruled out, those that
   * were simulated, the best one's time so far (infinite: none yet). [callback: inside
   * strategy_make; all functions of the table answer OPIPE_E_STATE there] */
  void (*progress)(void *ctx, uint64_t n_bounded, uint64_t n_simulated, double best_ns);
  void *progress_ctx;
  /* auto: given and not searched, as above; 0: free */
  uint32_t n_ranks;     /* devices of all copies, tensor groups counted once */
  uint32_t replicas;    /* copies of the whole pipeline */
  uint32_t width;       /* devices of a tensor group; above 1 with HYPOTHETICAL alone */
  uint32_t recompute;   /* OPIPE_STRATEGY_RECOMPUTES_* */
  uint64_t spare_bytes; /* auto: of every device that has a cap: left free, for what only the exact
                           count of a plan knows */
  double slice_ns; /* auto: what a pass of a layer over one token slice takes beside its share of
                      the tokens; 0: as the profile says (of described models), else slices only
                      where `schedule` says so */
} opipe_strategy_params;

/* EXECUTABLE: strategy_plan takes it, as far as can be told without the model: its schedule is
 * installed and lays it out. STOPPED: the search ended by its counted work or its budget before it
 * was through. */
enum { OPIPE_STRATEGY_EXECUTABLE = 1u, OPIPE_STRATEGY_STOPPED = 2u };

/* Pointers are the strategy's. */
typedef struct opipe_strategy_info {
  uint32_t struct_size;
  uint32_t flags; /* OPIPE_STRATEGY_EXECUTABLE, _STOPPED */
  const char *planner, *schedule;
  uint32_t n_stages;     /* of the model; with chunks, of all of them */
  uint32_t chunks;       /* stages of a device */
  uint32_t pipelines;    /* copies of the whole, which share out the mini-batch */
  uint32_t width;        /* devices of a tensor group */
  uint32_t samples;      /* of a micro-batch */
  uint32_t microbatches; /* of one pipeline in a mini-batch */
  uint32_t recompute;    /* 1: the forward runs again before the backward */
  uint32_t n_slices;     /* groups of token slices; 0: whole sequences */
  double objective;      /* what the planner made least, in its paper's unit */
  double step_ns;        /* of a mini-batch, or request; auto's: played, with updates; others': by
                            their papers' formulas, without */
  uint64_t memory_bytes; /* of the fullest device */
  /* Of planner auto; of others 0. */
  double bound; /* no strategy's objective is below (ns, bytes); 0: none is known */
  double gap;   /* objective / bound - 1 of the best one; 0 where there is no bound */
  uint64_t n_candidates, n_bounded, n_simulated; /* bounded: ruled out by a proven bound */
  uint64_t n_left;                               /* that the search had no time for */
  uint32_t rank;                                 /* among those that were ranked; 0: the best */
  uint32_t n_ranked;                             /* as many can be had of strategy_ranked */
  const char *reason;                            /* why it is behind the best; NULL: it is not */
} opipe_strategy_info;

typedef struct opipe_strategy_stage_info {
  uint32_t struct_size;
  uint32_t first, end;     /* layers [first, end) */
  uint32_t n_devices;      /* in one pipeline: replicas x width */
  const uint32_t *devices; /* [n_devices] of the cluster, of the first pipeline, replica by replica;
                              the strategy's */
  double forward_ns, backward_ns; /* of one micro-batch, all replicas at work */
  uint64_t memory_bytes;          /* of the fullest of its devices */
} opipe_strategy_stage_info;

/* This machine as a cluster; measuring takes a second or two of all devices. LINKS: latency and
 * bandwidth between two of its threads are measured; else those that the transport declares. RATES:
 * products are timed in several sizes; else the device's nominal rates. */
enum { OPIPE_MACHINE_LINKS = 1u, OPIPE_MACHINE_RATES = 2u };

typedef struct opipe_machine_params {
  uint32_t struct_size;
  uint32_t flags;                     /* OPIPE_MACHINE_* */
  const char *transport;              /* "id" or "id:key=value,...", NULL: "local" */
  const opipe_device_choice *devices; /* [n_devices]; none: one "cpu" with one thread for each core.
                                         threads 0: one; memory_bytes 0: an equal share of what the
                                         backend's device has */
  uint32_t n_devices, devices_stride; /* bytes from device to device */
} opipe_machine_params;

/* ---- kernels ----
 *
 * A backend may compute the same thing by several algorithms, and tell which is the fastest only by
 * measuring. plan_tune does so for a plan's programs; the table is written into the plan's file
 * beside the decisions, with a hash of its own that ranks compare. It holds for devices that say of
 * themselves what the one that was measured said (chip, processors, versions of libraries); on
 * others a session warns and leaves the choice to the backend, or with OPIPE_SESSION_TUNED is
 * refused. */

/* One choice; pointers are valid inside the call. */
typedef struct opipe_tuned {
  uint32_t struct_size;
  uint32_t n_tried, n_dropped; /* candidates; of these, whose bits were not the same in every run */
  uint32_t reserved;
  double own_ns, ns; /* by the backend's own choice, and by this one */
  const char *what, *choice;
} opipe_tuned;

typedef struct opipe_tuning_params {
  uint32_t struct_size;
  uint32_t index;        /* of the device, which stands for all of its kind in the plan */
  const char *kind;      /* id of its backend */
  uint32_t n_candidates; /* at most; 0: the backend's choice (8 to 16) */
  uint32_t n_runs;       /* of each; 0: the backend's choice (20) */
  /* NULL: none. After each measurement. [callback: inside plan_tune; all functions of the table
   * answer OPIPE_E_STATE there] */
  void (*measured)(void *ctx, const opipe_tuned *tuned);
  void *measured_ctx;
} opipe_tuning_params;

#include "frozen/planning.h"

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_PLANNING_H */
