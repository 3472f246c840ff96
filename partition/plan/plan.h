/* SPDX-License-Identifier: Apache-2.0 */
/* The plan: a value that says which node runs in which stage, which stage on which rank, in which
 * order, and what that costs.
 *
 * Made by partition/search, read from JSON, or given as cuts; proven before anything runs; the
 * runtime only executes it. A plan does not depend on weight values: its fingerprint covers graph,
 * names, types and shapes. Same inputs, same bytes.
 */
#ifndef OPI_PLAN_H
#define OPI_PLAN_H

#include <string.h>

#include "loader/gradient/gradient.h"
#include "loader/passes/passes.h"

#include <opipe/schedule.h>
#include <opipe/transport.h>

/* Opened plugins, as the caller (abi/api) resolved them. Borrowed. */
typedef struct opi_backend_ref {
  const opipe_backend *table;
  opipe_instance *self;
  const char *id;
} opi_backend_ref;
typedef struct opi_schedule_ref {
  const opipe_schedule *table;
  const opipe_schedule_cells *cells; /* of its published table; NULL: there is none */
  opipe_instance *self;
  const char *id;
} opi_schedule_ref;
typedef struct opi_transport_ref {
  const opipe_transport *table;
  opipe_instance *self;
  const char *id;
} opi_transport_ref;

/* What a backend says, checked; nothing else may believe its numbers. Errors: the plugin's,
 * INVALID. device: an alignment that is a power of two (at least 1), rates that are numbers (0:
 * unknown). program: an arena below 2^48 bytes with the workspace in it. layouts, in the arena: of
 * parameters below n_params, sizes below 2^48 bytes; gradients: those of its accumulators. */
opipe_status opi_device_ask(const opi_backend_ref *backend, uint32_t index,
                            opipe_device_info *out_info, opipe_error *err);
opipe_status opi_program_ask(const opi_backend_ref *backend, const opipe_program *program,
                             opipe_program_info *out_info, opipe_error *err);
opipe_status opi_layouts_ask(const opi_backend_ref *backend, const opipe_program *program,
                             uint32_t n_params, bool gradients, opi_arena *arena,
                             opipe_param_layout **out_list, uint32_t *out_count, opipe_error *err);

/* Whoever is to see each program of a plan once it is compiled; the program is the caller's. */
typedef struct opi_program_visitor {
  opipe_status (*visit)(void *ctx, uint32_t rank, const opi_backend_ref *backend,
                        opipe_device *device, opipe_program *program, opipe_error *err);
  void *ctx;
} opi_program_visitor;

/* A rank's device, as the user asked for it ("cpu,memory=300MiB,threads=1"), and what of it the
 * plan decides by: a device that differs there cannot run the plan. */
typedef struct opi_device_spec {
  const char *kind;      /* plugin id */
  const char *options;   /* for the backend, "" */
  uint64_t memory_bytes; /* 0: what the device has */
  uint32_t index;        /* device of that backend */
  uint32_t threads;      /* 0: backend's choice */
  uint32_t alignment;    /* of regions, a power of two; 0: not known, any will do */
  uint32_t flags;        /* OPIPE_DEVICE_* */
  uint32_t domain;       /* devices with host memory share it within a domain */
  uint32_t memory_with;  /* memory_bytes is one cap for this rank and an earlier one together: that
                            rank's number + 1; 0: no earlier rank has it */
} opi_device_spec;

/* Are two devices one, with one memory? */
static inline bool opi_is_one_device(const opi_device_spec *a, const opi_device_spec *b) {
  return a->index == b->index && a->domain == b->domain && strcmp(a->kind, b->kind) == 0;
}

/* The first of the ranks that have one cap together with rank `rank`. */
static inline uint32_t opi_cap_holder(const opi_device_spec *devices, uint32_t rank) {
  return devices[rank].memory_with == 0 ? rank : devices[rank].memory_with - 1;
}

/* What plan making knows of a device beside its spec: asked of its backend, or described by the
 * caller, and then no plugin is opened and bytes are estimates. Rates are nominal. */
typedef struct opi_device_facts {
  double flops; /* fp32 operations per second of the whole device; 0: unknown */
  double fp64_flops, fp16_flops, bf16_flops; /* of these types; 0: as `flops` */
  double bandwidth;                          /* bytes per second of its memory; 0: unknown */
  double launch_ns;                          /* fixed cost of one node */
  uint64_t memory_bytes;                     /* that it says to have; 0: unknown, or described */
  uint32_t max_threads; /* compute threads that make sense; 0: not applicable */
  bool described;
} opi_device_facts;

/* Appends a device's options but `kernels`: which kernels compute is no decision, since results and
 * layouts are the same. device.c */
void opi_options_decided(const char *options, opi_text *out_text);
/* Operations per second of a type; 0: unknown. device.c */
double opi_device_rate(const opi_device_facts *facts, uint32_t dtype);
/* The type that a node computes in, as far as rates go: its first input of floats'. device.c */
uint32_t opi_node_type(const opi_graph *graph, const opi_node *node);
/* Modelled time of a node of a type on `threads` (0: all) of the device's threads. device.c */
double opi_device_ns(const opi_device_facts *facts, uint32_t threads, uint32_t dtype, double flops,
                     double bytes);

/* An output whose content a stream of requests keeps for an input of its next one. */
typedef struct opi_state_pair {
  const char *output, *input; /* as the model's file names them */
  uint64_t capacity;          /* elements of each of a stream's two buffers */
  /* what follows from the model and the cut (partition/program/states.h) */
  uint32_t output_index, input_index; /* of the model's file */
  uint32_t dtype;
  uint32_t stage; /* that makes the one and reads the other */
} opi_state_pair;

/* Bytes of one rank by category. */
typedef struct opi_memory {
  uint64_t params_bytes;     /* in the backend's layouts */
  uint64_t activation_bytes; /* temporaries of programs */
  uint64_t workspace_bytes;  /* scratch of kernels */
  uint64_t boundary_bytes;   /* of received tensors, request inputs and results: in a packed buffer
                                what it has beside the stashes */
  uint64_t gradient_bytes, optimizer_bytes, version_bytes, stash_bytes; /* training */
  uint64_t state_bytes;  /* of the plan's n_streams */
  uint64_t stream_bytes; /* of one of them, where its home is; not in total */
  uint64_t total_bytes;  /* sum, each piece rounded as it is allocated */
  uint64_t cap_bytes;    /* that was given, maybe for several ranks together (memory_with);
                            UINT64_MAX: none */
  uint64_t device_bytes; /* that the device has in all, for all ranks on it; 0: not known. Not
                            written */
  uint64_t mapped_bytes; /* of weight files used in place; not in total */
  uint64_t host_bytes;   /* of the host, for nodes that the device lacks; not in total */
  uint64_t n_fallback;   /* such nodes, in all programs of the rank */
  uint64_t n_rounded;    /* products of its stages that round the rows they multiply to 8 bits a
                            block: opipe_program_info */
  bool estimated;        /* the device was described, not asked */
} opi_memory;

/* The cap of a rank: the one that was given, else what its device has; UINT64_MAX: not known. */
static inline uint64_t opi_memory_cap(const opi_memory *memory) {
  return memory->cap_bytes != UINT64_MAX || memory->device_bytes == 0 ? memory->cap_bytes
                                                                      : memory->device_bytes;
}

/* Lowered actions: what a rank's interpreter executes. */
enum {
  OPI_ACT_COMPUTE = 0,
  OPI_ACT_RECV = 1,
  OPI_ACT_SEND = 2,
  OPI_ACT_LOAD = 3,
  OPI_ACT_STORE = 4,
  /* training */
  OPI_ACT_POST = 5,    /* the receive of a message is posted */
  OPI_ACT_DRAIN = 6,   /* a message that was sent has left its memory */
  OPI_ACT_REDUCE = 7,  /* gradients of an instance: over its replicas */
  OPI_ACT_UPDATE = 8,  /* ties, norm, clip, optimizer of all instances of the rank */
  OPI_ACT_COPY = 9,    /* rows of a tensor, from one place of the rank to another */
  OPI_ACT_RESERVE = 10 /* a message that its maker writes in place may be written */
};
/* Programs. E: the forward of an evaluation, where it is not F: dropout is off, or an output of the
 * model is made that a training step does not return; there nothing is kept for a backward. */
enum {
  OPI_PROGRAM_F = 0,
  OPI_PROGRAM_B = 1,
  OPI_PROGRAM_I = 2,
  OPI_PROGRAM_W = 3,
  OPI_PROGRAM_E = 4,
  OPI_PROGRAMS = 5
};

typedef struct opi_step {
  uint32_t kind; /* OPI_ACT_* */
  uint32_t stage;
  uint32_t replica;
  uint32_t microbatch;
  uint32_t route;   /* of messages: which one; COPY: route; COMPUTE: action */
  uint32_t pass;    /* COMPUTE */
  uint32_t batch;   /* POST, SEND under the rule GROUPED: so many of them, from this one on, start
                       together; 0: it starts alone, or with one before */
  int32_t lap;      /* a message of a later body (above 0), or of one before (below); training:
                       DRAIN, in mini-batches from that of `next` */
  uint16_t next;    /* training: 1: of the next mini-batch (double-buffered weights) */
  uint16_t version; /* training, COMPUTE: of the weights */
} opi_step;
/* A message's route where it is the schedule's in-flight credit: no bytes, from the last stage to
 * the first. */
#define OPI_ROUTE_CREDIT (UINT32_MAX - 1)

/* A tensor that crosses stages. */
typedef struct opi_crossing {
  const char *name;
  uint32_t src_stage, dst_stage;
  uint64_t n_bytes;       /* of a whole micro-batch, of the most rows */
  uint64_t message_bytes; /* of the largest of its messages: slices and pieces of rows are sent by
                             themselves */
} opi_crossing;

/* ---- training ---- */

enum { OPI_LR_CONSTANT = 0, OPI_LR_LINEAR = 1, OPI_LR_COSINE = 2 };

typedef struct opi_optimizer {
  uint32_t kind; /* OPIPE_OPTIMIZER_* */
  uint32_t nesterov;
  uint32_t eps_inner;   /* eps-mode=hf */
  uint32_t lr_schedule; /* OPI_LR_* */
  double lr, momentum, beta1, beta2, epsilon, decay;
  uint64_t warmup_steps, total_steps;
  double clip_norm;            /* 0: none */
  const char *const *no_decay; /* [n_no_decay] globs */
  uint32_t n_no_decay;
  uint32_t loss_scaling; /* 1: dynamic loss scale, under compute OPIPE_FLOAT16 alone */
} opi_optimizer;

/* Errors: INVALID names what is out of range, with both numbers. */
opipe_status opi_optimizer_check(const opi_optimizer *optimizer, opipe_error *err);
/* Tensors of state per parameter beside the weights: 0, 1 or 2. */
uint32_t opi_optimizer_moments(const opi_optimizer *optimizer);
/* Has the session a loss scale? Everywhere else gradients come as they are: a spec that scales
 * where nothing is fp16 is no plan's (opi_train_spec_copy). */
static inline bool opi_optimizer_scales(const opi_optimizer *optimizer) {
  return optimizer->loss_scaling != 0;
}
/* Does a step need nothing of other ranks but sums of its own gradients: neither a norm to clip by
 * nor a loss scale to judge? */
static inline bool opi_optimizer_steps_alone(const opi_optimizer *optimizer) {
  return optimizer->clip_norm == 0 && !opi_optimizer_scales(optimizer);
}

/* What a training plan is made for. The loss, the globs, recompute and compute shape the graph; the
 * optimizer its memory; all of it is written into the plan, so that a plan alone can be trained. */
typedef struct opi_train_spec {
  opi_loss loss; /* kind OPI_LOSS_OUTPUT with output NULL: the only scalar float output */
  const opi_train_glob *globs; /* [n_globs] */
  uint32_t n_globs;
  uint32_t recompute; /* OPI_RECOMPUTE_* */
  uint32_t compute;   /* OPIPE_FLOAT, OPIPE_BFLOAT16, OPIPE_FLOAT16; 0: OPIPE_FLOAT */
  uint32_t replicas;  /* data parallel copies of the whole pipeline, each on ranks of its own; 0: 1.
                         Multiplies what the schedule lays out */
  uint32_t n_rank_replicas;
  const uint32_t *rank_replicas; /* [n_rank_replicas] replicas of every rank of the schedule (or of
                                    every stage), which cut each micro-batch between them; none:
                                    `replicas` holds */
  uint64_t seed;                 /* of dropout */
  opi_train_choice choice;       /* what is trained: found when the plan is made, never again */
  opi_optimizer optimizer;
} opi_train_spec;

/* What the transport of a plan declares with the plan's options. */
typedef struct opi_link {
  double latency_ns;
  double bytes_per_ns; /* 0: by address, or no limit */
  uint32_t rule;       /* OPIPE_RULE_* */
  uint32_t thread_rule, flags, max_ranks;
} opi_link;
/* Modelled time of one message between ranks. */
uint64_t opi_link_ns(const opi_link *link, uint64_t n_bytes);

/* Products that read weights of few bits, as the model's file has them. */
typedef struct opi_few_bits {
  int64_t level; /* the accuracy_level that they ask for; 0: none */
  uint32_t bits; /* of a weight: 2, 4, 8 */
  uint32_t n;    /* products */
} opi_few_bits;

/* What a search for its order came to (partition/study/improve). */
typedef struct opi_searched {
  double start_ns; /* predicted of the order that it began with: a mini-batch, or a request */
  double bound_ns; /* no order of the stages on their ranks takes less */
  uint64_t moves;  /* orders that were looked at; 0: it was not searched */
} opi_searched;

/* Decisions, and a prediction of what they come to. Decided is what ranks must have in common; the
 * hash is of that alone. Predicted are times and bytes, from devices at hand or from descriptions
 * of them, and what only chooses how fast a device computes (threads, kernels). */
typedef struct opi_plan {
  const opipe_allocator *allocator;
  opi_arena arena; /* everything below */
  uint64_t
      fingerprint[2]; /* of the model, XXH3-128: graph, names, types, shapes; not weight values */
  uint64_t hash[2];   /* of the decisions as they are written, XXH3-128; ranks compare it */
  /* binding of the micro-batch graph */
  opi_dim_binding *dims; /* shape signature of the whole request (batch = rows of the request) */
  uint32_t n_dims;
  opi_pin *pins;
  uint32_t n_pins;
  uint32_t bind_flags;   /* OPI_BIND_* */
  uint32_t dropout;      /* OPI_DROPOUT_* */
  double dropout_ratio;  /* of OPI_DROPOUT_RATIO */
  const char **barriers; /* cut tensors that fusion keeps */
  uint32_t n_barriers;
  const char *batch_dim;       /* name(s) of the dimension that micro-batches split
                                  (partition/program/batch.h); NULL: none is free */
  int64_t batch_rows;          /* rows of a whole request; 0 without batch_dim */
  const opi_known_axis *batch; /* how the batch runs through the model (opi_batch_prove); NULL: not
                                  proven. Not written */
  uint32_t n_microbatches;
  uint32_t n_positions; /* of a view of a forward plan (partition/program/model.h): the requests
                           that its lists hold, one after the other; each has n_microbatches /
                           n_positions. 0: one */
  uint32_t n_pieces;    /* of such a view: of each stage of the plan (token slices, replicas that
                           cut micro-batches). 0: one */
  bool pieces_apart;    /* of which each is on a rank of its own */
  /* who */
  uint32_t n_ranks, n_stages, n_replicas;
  opi_device_spec *devices;      /* [n_ranks] */
  const opi_device_facts *facts; /* [n_ranks] while the plan is made; NULL: it was read */
  uint32_t *instance_rank;       /* [n_stages * n_replicas]; OPIPE_NONE: no such replica */
  uint32_t *shares;     /* [n_stages] not NULL: each micro-batch is cut along its rows between
                           the first so many replicas of the stage; n_replicas is the most */
  const char *schedule; /* "gpipe" */
  opipe_schedule_setting *settings;
  uint32_t n_settings;
  uint32_t in_flight; /* of the layout, at most OPI_CREDITS_MOST; 0: no limit */
  uint32_t copies; /* forward: of the whole pipeline, each on ranks of its own, which share out the
                      micro-batches; 0: 1. n_replicas counts them. Training: train->replicas */
  const uint32_t *rank_replicas; /* [n_rank_replicas] forward, while the plan is made: as of a
                                    training spec */
  uint32_t n_rank_replicas;
  bool in_turn; /* of which each takes a whole request, one copy after the other: where there are
                   fewer    micro-batches than copies. The actions are then those of copy 0 */
  const opi_train_spec *train; /* NULL: a forward plan */
  uint32_t n_slices, n_parts;  /* of the layout; 0 as 1. Forward plans have no parts */
  uint32_t versions, sync;     /* OPIPE_VERSIONS_*, OPIPE_SYNC_* */
  uint32_t *slice_lengths;     /* [n_slices] tokens; NULL: equal */
  opi_state_pair *states;      /* [n_states] forward plans; a stream has a buffer of each twice */
  uint32_t n_states;
  uint32_t n_streams;    /* whose states the predicted bytes count; no decision */
  uint32_t depth;        /* slots of a boundary tensor between neighbours */
  const char *transport; /* plugin id, or "id:key=value,..." */
  opi_link link;         /* what it declares */
  /* where */
  const char **node_keys; /* [n_nodes] first present output's name of every node of the bound graph,
                             in order */
  uint32_t *stage_of_node; /* [n_nodes] */
  uint32_t n_nodes;
  struct opi_crossing *crossings; /* [n_crossings] tensors that cross stages, by src, dst */
  uint32_t n_crossings;
  /* when */
  opipe_action *actions; /* compute order, rank by rank */
  uint32_t n_actions;
  uint32_t *rank_first; /* [n_ranks + 1] into actions */
  /* predictions */
  opi_memory *memory; /* [n_ranks] */
  bool counted;       /* memory is exact: the devices were asked here. Not written */
  double *stage_ns;   /* [n_stages] one micro-batch; training: its forward */
  double *input_ns,
      *weight_ns; /* [n_stages] training: backward of one micro-batch, its two halves */
  uint64_t *stage_stash_bytes;     /* [n_stages] training: kept from F to B, one micro-batch */
  const struct opi_playlist *play; /* what playing its lists takes (playlist.h) */
  uint64_t *free_bytes; /* [n_ranks] training, while the schedule is asked: left for stashes */
  const uint64_t *told_bytes; /* [n_ranks] training, while the plan is made: caps that it is asked
                                 for where they are not the devices', UINT64_MAX: none; or NULL */
  /* training, while the plan is made: the schedule was told that; it found no order in it */
  bool order_bounded, order_refused;
  /* Tensors between ranks in a mini-batch or request: made where they are read, and sent there. */
  uint32_t n_made_in_place, n_copied;
  uint64_t copied_bytes;
  double request_ns; /* simulated time of one request, or mini-batch, alone */
  double
      interval_ns; /* simulated steady-state time between requests of a stream, or mini-batches */
  double bound_ns; /* lower bound max(sum / p, largest node) on the interval of one micro-batch */
  uint32_t cost_kind; /* OPI_COST_* */
  opi_searched searched;
  const struct opi_kernels *kernels; /* kernels.h: chosen by measuring; NULL: none. No decision */
  const char *planner;               /* who decided; NULL: no planner */
  uint32_t *cluster_devices; /* [n_ranks] of the planner's cluster, by rank; NULL: rank r is device
                                r. For playing alone */
  const char *stopped; /* what ended its search before it was through: "work", "clock"; NULL: no */
  /* work.h. Of a request or mini-batch, nothing that is computed again; of all devices together, by
   * their nominal rates, 0: not known */
  double flops, peak_flops;
  opi_few_bits *few_bits; /* [n_few_bits] work.h. By bits, then level */
  uint32_t n_few_bits;
} opi_plan;

enum { OPI_CREDITS_MOST = 65536 }; /* they are posted in a stream: OPIPE_DEPTH_MOST */
enum { OPI_COST_RATES = 0, OPI_COST_MEASURED = 1, OPI_COST_GIVEN = 2 };
/* "rates", "measured", "given" */
const char *opi_cost_name(uint32_t kind);

opipe_status opi_plan_new(const opipe_allocator *allocator, opi_plan **out_plan, opipe_error *err);
void opi_plan_free(opi_plan *plan); /* accepts NULL */

/* Are the rows of the batch ever cut? */
static inline bool opi_plan_cuts_rows(const opi_plan *plan) {
  return plan->n_microbatches > 1 || plan->n_parts > 1 || plan->shares != NULL;
}

/* Are messages matched by the order in which ranks issue them (rules above STREAM)? Then every rank
 * issues them in the order of its list, one after the other. */
static inline bool opi_plan_is_strict(const opi_plan *plan) {
  return plan->n_ranks > 1 && plan->link.rule > OPIPE_RULE_STREAM;
}

/* Has the list of a rank no beginning and no end? Streams of requests, and weights in two versions:
 * what follows a body is the body. */
static inline bool opi_plan_is_periodic(const opi_plan *plan) {
  return plan->train == NULL ? !opi_plan_is_strict(plan)
                             : plan->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED;
}

/* A node's key in plans: the name of its first present output. */
const char *opi_node_key(const opi_graph *graph, const opi_node *node);
/* Is `key` one of the names in `batch_dim` ("ids.0,mask.0")? */
bool opi_is_batch_dim(const char *batch_dim, const char *key);

/* Model-flops utilisation in the steady state: flops over what the plan's devices could do in
 * interval_ns. 0: not known. */
static inline double opi_plan_utilisation(const opi_plan *plan) {
  return plan->peak_flops > 0 && plan->interval_ns > 0
             ? plan->flops / (plan->peak_flops * plan->interval_ns * 1e-9)
             : 0;
}

/* May a producer on one of two ranks write into the other's memory? Only over a transport that
 * writes in place, and where both devices are of one kind, in one domain, and have host memory.
 * device.c */
bool opi_plan_edge_is_direct(const opi_plan *plan, uint32_t src_rank, uint32_t dst_rank);
/* Between any two of its ranks? */
bool opi_plan_is_direct(const opi_plan *plan);

/* Rank of instance (stage, replica). */
static inline uint32_t opi_plan_rank(const opi_plan *plan, uint32_t stage, uint32_t replica) {
  return plan->instance_rank[stage * plan->n_replicas + replica];
}

/* Slots of a boundary tensor of a forward plan between neighbouring stages: plan->depth, or one per
 * micro-batch of a request (and slice) where a rank has several stages and may compute all of one
 * before the next. */
uint32_t opi_route_depth(const opi_plan *plan);
/* The same between stages of the plan that lie `distance` apart: at least one more for each between
 * them, since in a stream that many micro-batches lie between its ends; doubled until there are
 * enough, so that the slots of all of a stage's tensors come round together. */
uint32_t opi_forward_slots(const opi_plan *plan, uint32_t distance);

#endif /* OPI_PLAN_H */
