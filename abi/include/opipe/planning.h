/* SPDX-License-Identifier: Apache-2.0 */
/* Plans, layer profiles of models, and planners that use them; part of host.h (guide: planners).
 *
 *   profile_of_model, _of_arch, _read -> strategy_make (a planner, on a cluster) -> strategy_play
 *                                                                                -> strategy_plan
 *
 * A profile says how long forward and backward of every layer take and how much they keep and send,
 * for some numbers of samples in a micro-batch. A strategy says which layers are placed where, with
 * how many copies and pieces, and under which schedule. Both are immutable, and the same question
 * always gives the same answer (except measured profiles and planners with a time budget). Neither
 * needs the devices it is for. Times that end in _ns are nanoseconds; sizes are bytes.
 *
 * Planner "auto" searches all that the installed schedules can do under the memory caps of the
 * cluster's devices, and returns the best candidate that it simulated. The JSON of
 * strategy_describe (its file) then also reports the search, and the best ten with the reason why
 * each is behind; strategy_ranked returns those as strategies. If the cluster has devices of
 * several kinds, a profile made from a model or a description at nominal rates is made again for
 * each kind; any other profile is scaled by the kinds' rates. A profile keeps the model that it was
 * made from.
 */
#ifndef OPIPE_PLANNING_H
#define OPIPE_PLANNING_H

#include "simulate.h"
#include "state.h"
#include "team.h"
#include "train.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct opipe_plan opipe_plan;
typedef struct opipe_profile opipe_profile;
typedef struct opipe_strategy opipe_strategy;

/* A device of this process. */
typedef struct opipe_device_choice {
  const char *kind;      /* backend id: "cpu"; 1.3: "cuda:GPU-5a..", a device by its uuid */
  const char *options;   /* for the backend, NULL: none */
  uint64_t memory_bytes; /* 0: all that the device has */
  uint32_t index;
  uint32_t threads; /* 0: backend's choice */
} opipe_device_choice;

/* ---- plans ---- */

#if OPIPE_TARGET_MINOR >= 5
/* A plan for generation: its graphs work on token rows of any number of sequences, whose keys and
 * values lie in pages on the ranks. A session of it computes passes of at most `rows` rows. It has
 * programs for 1, 2, 4 ... `rows` rows, all compiled when it opens. With replicas, each has all
 * that is given here; in a tensor group each member has the pages of its heads. */
typedef struct opipe_generation_params {
  uint32_t struct_size;
  uint32_t context;   /* most tokens of a sequence, 2 at least */
  uint64_t n_tokens;  /* whose keys and values are held, in whole pages; 0: as many as the caps
                         leave room for, and at most `active` whole contexts */
  uint32_t page;      /* tokens of a page: a multiple of the backends' unit; 0: 64 */
  uint32_t rows;      /* most of a pass; 0: 64 */
  uint32_t active;    /* most sequences with pages at a time; 0: 16 */
  uint32_t groups;    /* most passes in flight; 0: as many as give most tokens by simulation */
  uint32_t draft;     /* most drafted ids of a sequence in a pass; 0: none */
  uint32_t reserved;  /* 0 */
  double gap_passes;  /* longest pass with slices of prompts, in passes of one row for each active
                         sequence; 0: see gap_ms */
  double gap_ms;      /* the same in milliseconds, as predicted; 0, both: no limit */
  const char *output; /* logits; NULL: the output before which most attentions stand */
} opipe_generation_params;
#endif

enum { OPIPE_COST_RATES = 0, OPIPE_COST_MEASURED = 1 };

typedef struct opipe_plan_params {
  uint32_t struct_size;
  uint32_t n_stages; /* 0: as many as there are devices, or 1 */
  const opipe_device_choice
      *devices; /* one per rank, in order; if fewer than ranks, the last repeats; none: "cpu" */
  uint32_t n_devices;
  uint32_t devices_stride; /* bytes from device to device */
  uint32_t n_microbatches; /* per request; training: per mini-batch, over all replicas; 0: 1 */
  uint32_t replicas;     /* data-parallel copies of the whole pipeline. They share the micro-batches
                            of a request; in inference with fewer micro-batches than copies they
                            take requests in turn. 0: 1 */
  const char *schedule;  /* "gpipe", "name:key=value,..."; NULL: "gpipe" */
  const char *cut;       /* tensors by boundary, with the stages they are for: "t1,t2:c1+c2;t3"; '\'
                            quotes; NULL: the library chooses */
  const char *batch_dim; /* free dimensions that micro-batches split, "a" or "a,b", all of one
                            length; NULL: the first dimension of every input that has as many rows
                            as the first input, as far as the graph carries it */
  uint64_t memory_bytes; /* cap of every device that has none of its own; 0: none */
  uint32_t depth;        /* slots of a boundary tensor, 0: 2; more for tensors that skip stages */
  uint32_t cost;         /* OPIPE_COST_* */
  uint32_t flags;        /* OPIPE_PLAN_* */
  uint32_t n_ranks;      /* 0: as the schedule's layout needs */
  const char *transport; /* "id" or "id:key=value,...", NULL: "local" */
  const opipe_train_options *train; /* makes a plan for training; the model must have been bound
                                       with OPIPE_BIND_TRAIN; NULL: a plan for inference */
  const opipe_order_costs *costs;   /* stage times in milliseconds that replace the estimate from
                                       the nodes; comm must be 0: the transport states it. They do
                                       not decide the cut. NULL: none */
  /* [n_stage_replicas] Replicas of each stage (or each rank of the schedule), on ranks of their
   * own, which split each micro-batch between them. Only for schedules with one replica of each
   * stage. n 0: `replicas` applies. Plans for inference that use it keep no states; up to 1.2
   * they accepted only 1 for each. */
  const uint32_t *stage_replicas;
  uint32_t n_stage_replicas;
  uint32_t reserved; /* 0 */
#if OPIPE_TARGET_MINOR >= 1
  const opipe_device_description *descriptions; /* of `devices`; no plugin is asked. NULL: ask */
  uint32_t n_descriptions, descriptions_stride; /* 0 or n_devices; bytes from one to the next */
  const opipe_link_description *link; /* of `transport`; its plugin is not asked. NULL: ask */
  /* Devices and links as text (guide: clusters), borrowed, or NULL. A text that has a link
   * excludes `transport`. */
  const void *cluster;
  uint64_t cluster_bytes;
  const char *cluster_name; /* for messages; NULL: "the cluster" */
#endif
#if OPIPE_TARGET_MINOR >= 2
  const opipe_state_pair *states; /* [n_states] state kept by streams (state.h); only for inference
                                     with one micro-batch per request and no token slices */
  uint32_t n_states, states_stride; /* bytes from pair to pair */
  uint32_t n_streams; /* streams whose states count in the plan's bytes and caps; 0: none */
  uint32_t reserved2; /* 0 */
#endif
#if OPIPE_TARGET_MINOR >= 5
  /* A team makes one plan: all its processes make the call, with the same params and the same
   * model. Each tells of the devices of its own ranks, as it sees them (its own `devices`, of which
   * index OPIPE_NONE is its local rank modulo the devices that it has); process 0 makes the plan,
   * and all get it, or the same refusal. One such call at a time. NULL: this process alone. */
  opipe_team *team;
  const uint32_t *places; /* [n_places] with team: process of each rank, each with one at least;
                             n_places 0: ranks are dealt out in blocks of one size */
  uint32_t n_places;
  uint32_t tensor; /* members of a tensor group: each stage's products, tables and heads are divided
                      among so many ranks that follow each other. Ranks, which it must divide, count
                      all of them. 0: 1 */
  /* Training: stashes that wait in the host's memory between forwards and backwards. NULL or
   * "none": none; a glob: the tensors whose names match; "auto": as few as the caps of the devices
   * demand, or, with recomputation, all in its place if that is faster by the plan's clock.
   * Tensors that a tensor group makes together stay. UNSUPPORTED for devices that compute in the
   * host's memory or wait for every copy, and with backwards in halves. */
  const char *offload;
  uint64_t offload_bytes; /* most host memory that a rank may use for it; 0: no limit */
  /* Makes a plan for generation (decoders); UNSUPPORTED with training, states, micro-batches, token
   * slices and replicas of single stages. The model need not be bound: dimensions of its binding
   * are not read. NULL: a plan for requests. */
  const opipe_generation_params *generation;
#endif
} opipe_plan_params;
enum {
  OPIPE_PLAN_IGNORE_ANNOTATIONS = 1u,
  OPIPE_PLAN_IMPROVE = 2u,  /* 1.3: search:from=NAME */
  OPIPE_PLAN_SEQUENCE = 4u, /* 1.5: with `tensor` above 1: what members would all compute alike
                               (norms, Dropout, residuals) each does for some of the rows (samples x
                               tokens) alone (Korthikanti et al. 2022) */
  OPIPE_PLAN_SCATTERED = 8u /* 1.5: with `tensor` above 1: as if the transport had
                               OPIPE_TRANSPORT_SCATTERED. A tensor that goes to another stage over a
                               link that does not write in place is sent in the members' parts
                               (Narayanan et al. 2021). Not with SEQUENCE, which sends rows */
};

typedef struct opipe_plan_info {
  uint32_t struct_size;
  uint32_t n_ranks;
  uint32_t n_stages;
  uint32_t n_microbatches;
  double request_ns;  /* simulated time of one request, or mini-batch, running alone */
  double interval_ns; /* simulated time between requests of a stream, or between mini-batches */
  double bound_ns;    /* lower bound on interval_ns */
#if OPIPE_TARGET_MINOR >= 3
  /* flops: the model's operations in one request or mini-batch, forward and backward, without
   * recomputation. utilisation: flops divided by what the plan's devices could do in interval_ns
   * at their nominal rates. 0: not known (a plan that was read carries no rates). */
  double flops, utilisation;
#endif
#if OPIPE_TARGET_MINOR >= 5
  uint32_t flags; /* OPIPE_PLAN_* */
  uint32_t reserved2;
#endif
} opipe_plan_info;

#if OPIPE_TARGET_MINOR >= 5
/* UNORDERED: values of several ranks are added in an order of the transport's own
 * (OPIPE_TRANSPORT_UNORDERED): results are close to those of OPIPE_SESSION_REFERENCE, and need not
 * have their bits. */
enum { OPIPE_PLAN_UNORDERED = 1u };
#endif

#if OPIPE_TARGET_MINOR >= 5
/* A plan that process 0 has made, for all processes of a team. */
typedef struct opipe_share_params {
  uint32_t struct_size;
  int32_t refused; /* process 0: OPIPE_OK, or why there is no plan; others: OPIPE_OK */
  opipe_team *team;
  opipe_plan *plan;   /* process 0's; NULL with `refused`, and of others */
  const char *reason; /* with `refused`: why */
} opipe_share_params;
#endif

/* ---- profiles ---- */

/* NODES: every node is a layer; otherwise each repeated block is one layer, and the nodes before
 * and after the blocks are cut at narrow places. WHOLE: if the model's batch cannot be cut, the
 * profile is made of the model as bound and says why; planner auto then uses one micro-batch. */
enum { OPIPE_PROFILE_NODES = 1u, OPIPE_PROFILE_WHOLE = 2u };

/* Device and sizes of a profile. All borrowed for the call. */
typedef struct opipe_profile_params {
  uint32_t struct_size;
  uint32_t flags;          /* OPIPE_PROFILE_*; of models */
  const uint32_t *samples; /* [n_samples] of a micro-batch, rising from 1; none: as bound (models),
                              1 (arch) */
  uint32_t n_samples;      /* at most 64 */
  uint32_t cost;           /* OPIPE_COST_RATES; for models also OPIPE_COST_MEASURED: best of 3 runs
                              of every node alone */
  const char *batch_dim;   /* for models, as in opipe_plan_params */
  const opipe_train_options *train; /* for models bound with OPIPE_BIND_TRAIN; NULL: forwards only,
                                       backward times and kept bytes are 0 */
  /* The device, of a cluster or of this process. With neither, a model uses "cpu", and an arch has
   * no times. */
  const void *cluster; /* its text, cluster_bytes long */
  uint64_t cluster_bytes;
  const char *cluster_name;   /* in messages; NULL: "the cluster" */
  const char *device;         /* backend id; NULL: "cpu" */
  const char *device_options; /* for the backend, NULL: none */
  uint32_t device_index;      /* in the backend, or in the cluster */
  uint32_t threads;           /* 0: backend's choice; in a cluster: as stated there */
} opipe_profile_params;

typedef struct opipe_profile_info {
  uint32_t struct_size;
  uint32_t n_layers, n_sizes; /* n_sizes: numbers of samples with data */
  uint32_t tokens;            /* of a sample; 0: none, or not known */
  uint32_t weight_bytes;      /* of one parameter; 0: not known */
  uint32_t reserved;
  const char *name; /* belongs to the profile */
} opipe_profile_info;

/* A layer at a number of samples: as profiled, or in proportion. */
typedef struct opipe_layer_info {
  uint32_t struct_size;
  uint32_t reserved;
  const char *name; /* of its last node if made from a model; belongs to the profile */
  double flops;     /* of its forward; 0: not known */
  double forward_ns, input_ns, weight_ns;
  uint64_t output_bytes; /* of all its outputs */
  uint64_t cut_bytes;    /* of everything that crosses a cut after it */
  uint64_t stash_bytes;  /* kept from its forward to its backward */
  uint64_t param_bytes;
  double width_share;   /* 0 to 1: share of it that a tensor group divides */
  uint64_t width_bytes; /* all-reduced over the group in a forward, and again in a backward */
} opipe_layer_info;

/* Objective: the time of a step; samples per second under the memory caps; the bytes of the fullest
 * device, within limit_ms; the time of one request (forward only). */
enum {
  OPIPE_OBJECTIVE_STEP = 0,
  OPIPE_OBJECTIVE_THROUGHPUT = 1,
  OPIPE_OBJECTIVE_MEMORY = 2,
  OPIPE_OBJECTIVE_LATENCY = 3
};
/* For planner auto only. HYPOTHETICAL: allows strategies that no session executes (tensor
 * groups of layers without a model, or with slices). ALLOW_STALE: allows schedules
 * with delayed weights. FORWARD: for requests, not for training. CAUSAL: a token
 * depends only on earlier ones, so sequences may be cut. */
enum {
  OPIPE_STRATEGY_HYPOTHETICAL = 1u,
  OPIPE_STRATEGY_ALLOW_STALE = 2u,
  OPIPE_STRATEGY_FORWARD = 4u,
  OPIPE_STRATEGY_CAUSAL = 8u
};

/* Whether the forward is computed again before the backward. */
enum {
  OPIPE_STRATEGY_RECOMPUTES_FREE = 0,
  OPIPE_STRATEGY_RECOMPUTES_NEVER = 1,
  OPIPE_STRATEGY_RECOMPUTES_ALWAYS = 2
};

/* Arguments of a planner. All borrowed for the call. */
typedef struct opipe_strategy_params {
  uint32_t struct_size;
  uint32_t flags;      /* OPIPE_STRATEGY_* */
  const char *planner; /* "auto", "dapple", "pipedream", "2bw", "chimera", "megatron", ...; NULL:
                          "auto" */
  const void *cluster; /* its text (guide: clusters), cluster_bytes long */
  uint64_t cluster_bytes;
  const char *cluster_name; /* in messages; NULL: "the cluster" */
  uint64_t batch;           /* samples of a mini-batch or request */
  uint64_t memory_bytes;    /* cap of every device that has none of its own; 0: none */
  double state_bytes; /* of device memory per byte of parameters: weights, gradients, optimizer
                         state; 0: as the profile's optimizer needs, else 4 (Adam in one type), or 1
                         for forwards */
  double limit_ms;    /* OBJECTIVE_MEMORY: limit of a step; 0: none */
  double budget_s; /* auto: stops the search by the clock, besides counted work; the answer says so;
                      0: no limit */
  uint32_t n_devices; /* uses only the cluster's first so many; 0: all */
  uint32_t samples;   /* of a micro-batch, for planners that take it (dapple, pipedream); 0: the
                         profile's smallest */
  uint32_t objective; /* OPIPE_OBJECTIVE_*; only planner auto takes others than STEP */
  uint32_t n_threads; /* auto: search threads; the answer does not depend on them. 0: 1 */
  /* auto: fixed values that are not searched; 0, NULL: free */
  const char *schedule;    /* "name:key=value,..." */
  uint32_t n_stages;       /* of one pipeline */
  uint32_t n_microbatches; /* of the whole mini-batch */
  /* auto; NULL: none. Called now and then during the search with the numbers of candidates ruled
   * out by a bound and of those simulated, and the best time so far (infinite: none yet).
   * [callback: inside strategy_make; all functions of the table answer OPIPE_E_STATE there] */
  void (*progress)(void *ctx, uint64_t n_bounded, uint64_t n_simulated, double best_ns);
  void *progress_ctx;
  /* auto: more fixed values, as above; 0: free */
  uint32_t n_ranks;     /* devices of all copies, a tensor group counted once */
  uint32_t replicas;    /* copies of the whole pipeline */
  uint32_t width;       /* devices of a tensor group; above 1 of layers without a model only with
                           HYPOTHETICAL */
  uint32_t recompute;   /* OPIPE_STRATEGY_RECOMPUTES_* */
  uint64_t spare_bytes; /* auto: left free on every device with a cap, for memory that only an exact
                           plan knows */
  double slice_ns;      /* auto: time of a layer's pass over one token slice beyond its share of the
                           tokens; 0: as the profile says (described models), else slices only if
                           `schedule` asks for them */
} opipe_strategy_params;

/* EXECUTABLE: strategy_plan accepts it, as far as can be told without the model: its schedule is
 * installed and can lay it out. STOPPED: the search ended by counted work or budget before it was
 * complete. */
enum { OPIPE_STRATEGY_EXECUTABLE = 1u, OPIPE_STRATEGY_STOPPED = 2u };

/* Pointers belong to the strategy. */
typedef struct opipe_strategy_info {
  uint32_t struct_size;
  uint32_t flags; /* OPIPE_STRATEGY_EXECUTABLE, _STOPPED */
  const char *planner, *schedule;
  uint32_t n_stages;     /* of the model, chunks of one device counted separately */
  uint32_t chunks;       /* stages per device */
  uint32_t pipelines;    /* copies of the whole pipeline, which share the mini-batch */
  uint32_t width;        /* devices of a tensor group */
  uint32_t samples;      /* of a micro-batch */
  uint32_t microbatches; /* of one pipeline in a mini-batch */
  uint32_t recompute;    /* 1: the forward runs again before the backward */
  uint32_t n_slices;     /* groups of token slices; 0: whole sequences */
  double objective;      /* value that the planner minimised, in its paper's unit */
  double step_ns;        /* of a mini-batch or request; auto: simulated, with updates; others: by
                            their papers' formulas, without */
  uint64_t memory_bytes; /* of the fullest device */
  /* Set by planner auto; others: 0. */
  double bound; /* lower bound on the objective of any strategy (ns, bytes); 0: none known */
  double gap;   /* objective / bound - 1 of the best; 0 if there is no bound */
  uint64_t n_candidates, n_bounded, n_simulated; /* bounded: ruled out by a proven bound */
  uint64_t n_left;                               /* not reached by the search */
  uint32_t rank;                                 /* place in the ranking; 0: the best */
  uint32_t n_ranked;                             /* number that strategy_ranked returns */
  const char *reason;                            /* why it is behind the best; NULL: it is the best
                                                  */
} opipe_strategy_info;

typedef struct opipe_strategy_stage_info {
  uint32_t struct_size;
  uint32_t first, end;            /* layers [first, end) */
  uint32_t n_devices;             /* in one pipeline: replicas x width */
  const uint32_t *devices;        /* [n_devices] of the cluster, for the first pipeline, replica by
                                     replica; belongs to the strategy */
  double forward_ns, backward_ns; /* of one micro-batch, with all replicas at work */
  uint64_t memory_bytes;          /* of the fullest of its devices */
} opipe_strategy_stage_info;

/* This machine as a cluster; measuring takes a second or two on all devices. LINKS: measures
 * latency and bandwidth between two threads, or the processes of `team`; otherwise as the transport
 * declares. RATES: times
 * products of several sizes; otherwise the device's nominal rates. */
enum { OPIPE_MACHINE_LINKS = 1u, OPIPE_MACHINE_RATES = 2u };

typedef struct opipe_machine_params {
  uint32_t struct_size;
  uint32_t flags;                     /* OPIPE_MACHINE_* */
  const char *transport;              /* "id" or "id:key=value,...", NULL: "local" */
  const opipe_device_choice *devices; /* [n_devices]; none: one "cpu" with one thread for each core.
                                         threads 0: one; memory_bytes 0: an equal share of the
                                         memory of the backend's device */
  uint32_t n_devices, devices_stride; /* bytes from device to device */
#if OPIPE_TARGET_MINOR >= 5
  opipe_team *team; /* LINKS: its processes, which all make the call, hand each other messages over
                       `transport`; the answer has the slowest link of process 0. NULL: none */
#endif
} opipe_machine_params;

/* ---- kernels ----
 *
 * A backend may have several algorithms for the same kernel, and only measuring tells which is the
 * fastest. plan_tune measures them for a plan's programs. The table of choices is written to the
 * plan's file beside the decisions, with a hash of its own that ranks compare. It applies to
 * devices that describe themselves as the measured one did (chip, processors, versions of
 * libraries); on any other a session warns and leaves the choice to the backend, or is refused with
 * OPIPE_SESSION_TUNED. */

/* One choice; pointers are valid during the call. */
typedef struct opipe_tuned {
  uint32_t struct_size;
  uint32_t n_tried, n_dropped; /* n_dropped: candidates whose bits were not the same in every run */
  uint32_t reserved;
  double own_ns, ns; /* with the backend's own choice, and with this one */
  const char *what, *choice;
} opipe_tuned;

typedef struct opipe_tuning_params {
  uint32_t struct_size;
  uint32_t index;        /* of the device, which represents all of its kind in the plan */
  const char *kind;      /* id of its backend */
  uint32_t n_candidates; /* at most; 0: the backend's choice (8 to 16) */
  uint32_t n_runs;       /* of each; 0: the backend's choice (20) */
  /* NULL: none. Called after each measurement. [callback: inside plan_tune; all functions of the
   * table answer OPIPE_E_STATE there] */
  void (*measured)(void *ctx, const opipe_tuned *tuned);
  void *measured_ctx;
} opipe_tuning_params;

#include "frozen/planning.h"

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_PLANNING_H */
