/* SPDX-License-Identifier: Apache-2.0 */
/* The decision: the part of a plan on which all ranks must agree.
 *
 * 1. Making (partition/make) or reading a plan writes it, group by group in the order below. After
 *    opi_plan_hash nobody changes it.
 * 2. The hash covers the decision and nothing else. opi_plan_write_decisions writes every field but
 *    three kinds: those that follow from other fields and the model (binding.batch; a state's
 * indices, type and stage), those that only affect speed or capacity (a device's threads, caps and
 * option `kernels`; the link's times), and the allocator.
 * 3. Pointers lead into the plan's arena. A copy of the struct shares them, so it must not outlive
 *    the plan; to change an array in a copy, replace the pointer.
 * 4. Reading a decision asks no device and needs no model.
 */
#ifndef OPI_PLAN_DECISION_H
#define OPI_PLAN_DECISION_H

#include "partition/plan/device.h"
#include "partition/plan/training.h"

/* An output whose content is kept between the requests of a stream, as an input of the next one. */
typedef struct opi_state_pair {
  const char *output, *input; /* names in the model's file */
  uint64_t capacity;          /* elements in each of a stream's two buffers */
  /* Derived from the model and the cut (partition/program/states.h). */
  uint32_t output_index, input_index; /* in the model's file */
  uint32_t dtype;
  uint32_t stage; /* produces the output and reads the input */
  /* Tensor groups: member k has entries [first[k], first[k] + parts[k]) of the `whole` along
   * `axis`; several members may have the same ones. NULL: every member has the whole tensor. */
  int32_t axis;
  int64_t whole;
  const int64_t *first, *parts; /* [width] */
} opi_state_pair;

/* A plan of passes: its graphs are the model's row form (loader/passes/row_model.h), one for each
 * class of rows: 1, 2, 4 ... rows. */
typedef struct opi_generation {
  uint32_t context; /* most tokens of a sequence; 0: the plan is not one of passes */
  uint32_t page, n_pages;
  uint32_t rows;      /* most of a pass */
  uint32_t active;    /* most sequences with pages */
  uint32_t groups;    /* passes in flight */
  uint32_t draft;     /* most drafted ids of a sequence */
  double gap;         /* longest pass with slices of prompts, in passes of `active` rows; or */
  double gap_ms;      /* in milliseconds; both 0: no limit */
  const char *output; /* logits, in the model's file */
} opi_generation;
enum { OPI_GENERATION_CLASSES = 32, OPI_GROUPS_MOST = 1024 };
static inline uint32_t opi_generation_classes(const opi_generation *g) {
  uint32_t n = 0;
  while (n + 1 < OPI_GENERATION_CLASSES && (UINT32_C(1) << n) < g->rows)
    ++n;
  return n + 1;
}
/* Rows of class c; the last has `rows`. */
static inline uint32_t opi_generation_rows(const opi_generation *g, uint32_t c) {
  return c + 1 < opi_generation_classes(g) ? UINT32_C(1) << c : g->rows;
}

/* How the graph is divided among the members of tensor groups. */
typedef struct opi_division {
  uint64_t print[2]; /* opi_shards_print; 0: not yet known. Compared with the model's when a plan is
                        read */
  bool sequence;     /* members have some of the rows of what is not divided */
  bool scattered;    /* members send parts of whole values to other stages (program/members.c) */
} opi_division;

/* How the model is bound; the graph of every micro-batch follows from it. Written before the
 * layout. The batch is chosen first and settled once the number of micro-batches is known. */
typedef struct opi_plan_binding {
  opi_dim_binding *dims; /* [n_dims] shapes of a whole request (batch = its rows) */
  uint32_t n_dims;
  opi_pin *pins; /* [n_pins] */
  uint32_t n_pins;
  uint32_t bind_flags;   /* OPI_BIND_* */
  uint32_t dropout;      /* OPI_DROPOUT_* */
  double dropout_ratio;  /* with OPI_DROPOUT_RATIO */
  const char **barriers; /* [n_barriers] cut tensors that fusion must keep */
  uint32_t n_barriers;
  const char *batch_dim;       /* name(s) of the dimension that micro-batches split
                                  (partition/program/batch.h); NULL: none is free */
  int64_t batch_rows;          /* rows of a whole request; 0: no batch_dim */
  const opi_known_axis *batch; /* how the batch runs through the model (opi_batch_prove); NULL: not
                                  proven. Derived from the model */
  opi_generation generation;   /* a plan of passes: dims are those of its rows */
} opi_plan_binding;

/* The schedule by name, and the settings that were given for it. */
typedef struct opi_plan_schedule {
  const char *name;                 /* "gpipe" */
  opipe_schedule_setting *settings; /* [n_settings] */
  uint32_t n_settings;
} opi_plan_schedule;

typedef struct opi_decision {
  const opipe_allocator *allocator; /* scratch memory of readers */
  uint64_t fingerprint[2]; /* XXH3-128 of the model's graph, names, types and shapes, not of its
                              weight values */
  opi_plan_binding binding;
  const opi_train_spec *train; /* NULL: a forward plan */
  opi_state_pair *states;      /* [n_states] forward plans; each stream has two buffers of each */
  uint32_t n_states;
  uint32_t n_microbatches; /* per request or mini-batch, over all replicas */
  /* The schedule and its layout (opi_schedule_layout). */
  opi_plan_schedule schedule;
  uint32_t n_ranks, n_stages, n_replicas;
  uint32_t width; /* members of a tensor group; 0 means 1. Members are consecutive ranks; the
                     schedule is asked for n_ranks / width ranks */
  opi_division division;
  uint32_t *instance_rank; /* [n_stages * n_replicas] of member 0; OPIPE_NONE: no such replica */
  uint32_t *shares; /* [n_stages] if set: the first shares[s] replicas of stage s divide the rows of
                       each micro-batch; n_replicas is the largest */
  uint32_t copies;  /* forward: whole pipelines, each on its own ranks, which divide the
                       micro-batches; 0 means 1. n_replicas counts them. In training: train */
  bool in_turn; /* copies take whole requests in turn, because there are fewer micro-batches than
                   copies; the actions are then those of copy 0 */
  uint32_t in_flight;         /* at most OPI_CREDITS_MOST; 0: no limit */
  uint32_t n_slices, n_parts; /* 0 means 1. Forward plans have no parts */
  uint32_t *slice_lengths;    /* [n_slices] tokens; NULL: equal */
  uint32_t versions, sync;    /* OPIPE_VERSIONS_*, OPIPE_SYNC_* */
  const char **offload; /* [n_offload] training: names of the tensors that wait in the host's memory
                           between forwards and backwards (program/offloads.h) */
  uint32_t n_offload;
  /* Where ranks compute and how they send. */
  opi_device_spec *devices; /* [n_ranks] */
  uint32_t depth;           /* slots per boundary tensor between neighbours */
  const char *transport;    /* plugin id, or "id:key=value,..." */
  opi_link link;            /* as declared by the transport */
  /* The cut. */
  const char **node_keys;  /* [n_nodes] key of every node of the bound graph, in order: the name of
                              its first output that is present */
  uint32_t *stage_of_node; /* [n_nodes] */
  uint32_t n_nodes;
  /* The order, rank by rank (opi_schedule_order). */
  opipe_action *actions; /* [n_actions] */
  uint32_t n_actions;
  uint32_t *rank_first; /* [n_ranks + 1] into actions */
} opi_decision;

enum { OPI_CREDITS_MOST = 65536 }; /* credits are posted in a stream, so OPIPE_DEPTH_MOST applies */

/* True for a training plan, false for one that runs requests. */
static inline bool opi_plan_trains(const opi_decision *plan) {
  return plan->train != NULL;
}
/* OPIPE_MODE_*, as passed to schedules. */
static inline uint32_t opi_plan_mode(const opi_decision *plan) {
  return opi_plan_trains(plan) ? OPIPE_MODE_TRAIN : OPIPE_MODE_FORWARD;
}

/* True if the rows of a micro-batch are ever divided. */
static inline bool opi_plan_cuts_microbatches(const opi_decision *plan) {
  return plan->n_parts > 1 || plan->shares != NULL;
}
/* True if the rows of a batch are ever divided. */
static inline bool opi_plan_cuts_rows(const opi_decision *plan) {
  return plan->n_microbatches > 1 || opi_plan_cuts_microbatches(plan);
}

/* True if messages are matched by the order in which ranks issue them (rules above STREAM). Each
 * rank then issues them one at a time, in the order of its list. */
static inline bool opi_plan_is_strict(const opi_decision *plan) {
  return plan->n_ranks > 1 && plan->link.rule > OPIPE_RULE_STREAM;
}

/* True if a rank's list has no beginning and no end: streams of requests, and double-buffered
 * weights, where each body is followed by the next. */
static inline bool opi_plan_is_periodic(const opi_decision *plan) {
  return opi_plan_trains(plan) ? plan->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED
                               : !opi_plan_is_strict(plan);
}

/* True if a producer on src_rank may write into dst_rank's memory: the transport writes in place,
 * and both devices are of the same kind, in the same domain, with host memory. device.c */
bool opi_plan_edge_is_direct(const opi_decision *plan, uint32_t src_rank, uint32_t dst_rank);
/* True if any two ranks have such an edge. */
bool opi_plan_is_direct(const opi_decision *plan);

/* Members of a tensor group. */
static inline uint32_t opi_plan_width(const opi_decision *plan) {
  return plan->width == 0 ? 1 : plan->width;
}
/* True if values of several ranks may be added in an order of the transport's own: results are
 * close to the reference's, and need not have its bits. Norms alone would keep them: of a norm's
 * parts all but one are 0. But parameters that stages share are summed too, which a decision does
 * not show, so all training on several ranks counts. */
static inline bool opi_plan_is_unordered(const opi_decision *plan) {
  return (plan->link.flags & OPIPE_TRANSPORT_UNORDERED) != 0 && plan->n_ranks > 1 &&
         (opi_plan_width(plan) > 1 || opi_plan_mode(plan) == OPIPE_MODE_TRAIN);
}
/* True if ranks that hold two versions of weights step without each other's norms. Members of a
 * tensor group do not: they have copies of whole parameters, which must stay equal. */
static inline bool opi_plan_steps_alone(const opi_decision *plan) {
  return opi_plan_width(plan) == 1 && opi_optimizer_steps_alone(&plan->train->optimizer);
}
/* Rank of instance (stage, replica); member m's is m more. */
static inline uint32_t opi_plan_rank(const opi_decision *plan, uint32_t stage, uint32_t replica) {
  return plan->instance_rank[stage * plan->n_replicas + replica];
}

/* ---- pieces of a stage ---- */

static inline uint32_t opi_plan_slices(const opi_decision *plan) {
  return plan->n_slices == 0 ? 1 : plan->n_slices;
}
/* Pieces of one token slice: the forward and every part of the backward; 1 if backwards run whole.
 */
static inline uint32_t opi_plan_pieces_of_slice(const opi_decision *plan) {
  return plan->n_parts > 1 ? plan->n_parts + 1 : 1;
}
/* Pieces of every stage, but for those that tensor groups make of each, whose number follows from
 * the graph (program/stretches.h). A stage with fewer replicas than others lacks some. */
static inline uint64_t opi_plan_pieces(const opi_decision *plan) {
  const uint64_t n_shares = plan->shares == NULL ? 1 : plan->n_replicas;
  return n_shares * opi_plan_slices(plan) * opi_plan_pieces_of_slice(plan);
}

/* The part of a micro-batch that a piece computes. Pieces of a stage are numbered by place, then by
 * share, slice, part and member.
 */
typedef struct opi_piece_place {
  uint32_t share;  /* replica, if replicas share micro-batches; else 0 */
  uint32_t slice;  /* of tokens */
  uint32_t part;   /* 0: the forward, or all passes; k: part k - 1 of the backward */
  uint32_t member; /* of the stage's tensor group */
  uint32_t place;  /* even: a stretch of the stage's program; odd: the sums behind it
                      (program/stretches.h); 0 without tensor groups */
} opi_piece_place;
static inline opi_piece_place opi_piece_place_of(const opi_decision *plan, uint32_t piece) {
  const uint32_t n_parts = opi_plan_pieces_of_slice(plan), n_slices = opi_plan_slices(plan);
  const uint32_t width = opi_plan_width(plan), n = (uint32_t)opi_plan_pieces(plan);
  const uint32_t at = piece / width % n;
  return (opi_piece_place){.share = at / n_parts / n_slices,
                           .slice = at / n_parts % n_slices,
                           .part = at % n_parts,
                           .member = piece % width,
                           .place = piece / width / n};
}
static inline uint32_t opi_piece_at_place(const opi_decision *plan, opi_piece_place at) {
  const uint32_t n = (uint32_t)opi_plan_pieces(plan);
  const uint32_t slice = at.share * opi_plan_slices(plan) + at.slice;
  return (at.place * n + slice * opi_plan_pieces_of_slice(plan) + at.part) * opi_plan_width(plan) +
         at.member;
}

/* Slots of a boundary tensor of a forward plan between neighbouring stages: plan->depth; or, if a
 * rank has several stages and may run all of one before the next, one per micro-batch of a request
 * (and slice). */
uint32_t opi_route_depth(const opi_decision *plan);
/* The same for stages `distance` apart. Each stage in between adds at least one slot, because that
 * many more micro-batches of a stream are in flight between the ends. The number is doubled until
 * it suffices, so that all tensors of a stage wrap around together. */
uint32_t opi_forward_slots(const opi_decision *plan, uint32_t distance);

#endif /* OPI_PLAN_DECISION_H */
