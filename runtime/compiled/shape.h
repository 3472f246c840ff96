/* SPDX-License-Identifier: Apache-2.0 */
/* A compiled shape: graphs, programs, lists, bindings, streams of messages.
 *
 *   opi_shapes ── opi_shape ── opi_compiled ── model (graphs, cuts), lists
 *                                  ├─ units   one per (stage instance, row class, program)
 *                                  ├─ seats   one per rank: sizes, sends that wait, times
 *                                  ├─ meets   sums over tensor groups (meet.h)
 *                                  └─ wires   one per stream: its two ends, message counts
 *
 * A shape serves requests or mini-batches with the same number of rows and tokens. It is complete
 * before the first of its steps runs: every COMPUTE step knows its binding (in training one per set
 * of weights), every message its regions.
 */
#ifndef OPI_SHAPE_H
#define OPI_SHAPE_H

#include "partition/lists/lists.h"
#include "partition/program/cut.h"
#include "partition/program/model.h"
#include "runtime/compiled/meet.h"
#include "runtime/compiled/request.h"

enum { OPI_WEIGHT_SETS = 2 };

/* A pinned value that is part of a shape's signature. */
typedef struct opi_shape_pin {
  uint32_t input; /* of the session */
  void *data;
  uint64_t n_bytes;
} opi_shape_pin;

typedef struct opi_shape {
  opi_setup *setup;
  /* The shape whose lists, boundary buffers, streams and places in bodies it uses: itself, or
   * (passes of fewer rows) the plan's own. */
  struct opi_shape *lead;
  struct opi_compiled *compiled; /* run by its requests */
  opi_arena arena;               /* the tables below */
  uint32_t index;                /* in opi_shapes; part of its streams' names */
  bool keep;     /* the plan's own: never evicted; its constants are the parameter sets' sources */
  int64_t rows;  /* of a request or mini-batch along the batch axis; 0 without one */
  int64_t *dims; /* all dimensions of all inputs, in order */
  opi_shape_pin *pins;
  uint32_t n_pins;
  uint64_t last_used;       /* request number */
  uint64_t n_requests;      /* so far; submit_lock */
  _Atomic uint32_t n_users; /* unfinished requests, ranks with sends that wait */
  opi_block *boundary;      /* [n_ranks] */
  uint32_t *arena_of_rank;  /* [n_ranks] index in the rank's arenas */
} opi_shape;

typedef struct opi_unit_binding {
  opipe_binding *sets[OPI_WEIGHT_SETS];
  uint64_t *key; /* [n_boundaries] offsets */
} opi_unit_binding;

typedef struct opi_program_unit {
  const opi_program *cut;
  opipe_program *program; /* NULL: nothing to do */
  opi_unit_binding *bindings;
  uint32_t n_bindings, room_bindings;
} opi_program_unit;

typedef struct opi_wire {
  opipe_stream *src, *dst;
  uint64_t src_base; /* training: messages of earlier mini-batches; the source rank's */
  char pad_[64];
  uint64_t dst_base; /* the destination rank's */
  /* known once the ranks' endpoints are ready (ways.c); NONE: credits, or nobody knows */
  bool counted;                    /* in streams_by_way */
  uint32_t way;                    /* OPIPE_WAY_* */
  uint64_t src_staged, dst_staged; /* pinned host memory of the ends that are here */
} opi_wire;

/* Events of a message's end, where batches are queued on the rank's device; NULL: they are not. */
typedef struct opi_message_end {
  opipe_event *ready; /* the region's queued users before */
  opipe_event *done;  /* recorded by the transport */
} opi_message_end;

/* A message of the lists, with everything that its steps read. */
typedef struct opi_message_run {
  const opi_wire *wire;
  opipe_region from, to;
  opi_message_end src, dst;
  uint32_t src_rank, dst_rank;
  uint32_t sequence, n_messages; /* in its stream, of a body */
  uint32_t stream;
  bool direct;
} opi_message_run;

/* When a step ran last, and for which request (its number + 1; 0: never). */
typedef struct opi_ran {
  opi_span span;
  uint64_t request;
} opi_ran;

/* A send that waits for its receive, or until its memory is free again. */
typedef struct opi_waiting_send {
  const opi_message_run *of; /* of the shape that sends it */
  uint64_t number;           /* in its stream, since that was opened */
  opipe_event *ready;        /* to be waited for first; NULL: its memory is valid */
  opipe_event *done; /* of a batch that is queued: its memory is free then; NULL: test tells */
  uint32_t message;
  bool sent;
} opi_waiting_send;

/* A shape's part on a rank. The rank's thread writes it, except the bytes. */
typedef struct opi_seat {
  uint64_t arena_bytes, workspace_bytes; /* of the largest program */
  struct opi_seat *sends;                /* where its sends wait: the lead's */
  opi_waiting_send *waiting;             /* [room_waiting] */
  uint32_t n_waiting, room_waiting;
  opi_comings comings;        /* sums over tensor groups */
  struct opi_seat *next_busy; /* the next seat with sends that wait */
  struct opi_compiled *shape;
  bool *wakes; /* [n_positions] the request's first step is announced by no message: submit rings */
  opi_ran *ran; /* [steps of the rank] when each program or sum ran last; others read at rest */
} opi_seat;

/* Where a graph (of a variant's slice) gets its inputs from. */
typedef struct opi_ports {
  uint32_t *input; /* [graph inputs] the session's; OPIPE_NONE: of another slice */
  int32_t *axis;   /* the same: batch axis, -1: none */
  uint32_t labels; /* the labels' port; OPIPE_NONE: none */
} opi_ports;

/* A micro-batch of the lists. A body has the micro-batches of one request after the other. */
typedef struct opi_microbatch {
  int64_t first_row;
  uint32_t class, in_request; /* in_request: its number within its request */
} opi_microbatch;

/* Stashes on their way (opi_list_move). The rank's thread writes it. */
typedef struct opi_move_run {
  opipe_event *left, *returned;           /* of the queues to the host and back */
  opipe_event *left_begun, *return_begun; /* NULL: the rank has no stamps */
  opi_ran *out_ran, *in_ran;              /* records of its latest copies' times */
  uint32_t n_awaited;                     /* entries of it among the work queued ahead */
} opi_move_run;

/* A point of a program at which gradients are complete (partition/lists/passed.h). */
typedef struct opi_sum_point {
  uint32_t instance; /* of the weights */
  uint32_t place;    /* of its program; 0: before it */
  uint32_t n;        /* gradients that are complete */
} opi_sum_point;
typedef struct opi_sum_points {
  opi_sum_point *list; /* by step, then place; the last of a step is the program's end, with n 0 */
  uint32_t *first;     /* [n_steps + 1]; NULL: programs run as a whole */
} opi_sum_points;

typedef struct opi_compiled {
  opi_setup *setup;
  opi_shape *shape; /* index, signature, blocks of memory */
  opi_arena arena;
  opi_decision given;           /* the session's decision with this shape's dimensions */
  const opi_piece_plan *pieces; /* of the model: the lists' plan */
  opi_cut_model *model;
  opi_lists *lists;
  opi_microbatch *parts;     /* [plan->n_microbatches] */
  opi_program_unit *units;   /* [(instance * n_classes + class) * OPI_PROGRAMS + program] */
  opi_seat *seats;           /* [n_ranks] */
  opi_wire *wires;           /* [n_streams] */
  opi_message_run *messages; /* [n_messages] */
  opi_meets meets;
  opi_move_run *move_runs; /* [n_moves] */
  opi_sum_points passed;
  opi_pinned *offloads;      /* [n_ranks] host memory in which stashes wait */
  opipe_binding **bound;     /* [n_steps] COMPUTE: inference runs it so; NULL: nothing to run */
  uint32_t *binding_of_step; /* [n_steps] COMPUTE: index in its unit's bindings */
  uint32_t *eval_of_step;    /* the same for evaluations, where programs without dropout run */
  uint32_t *resident_of;     /* [cells * microbatches] index in opi_shapes.residents; OPIPE_NONE: it
                            lies     in the boundary buffer. NULL: all do */
  opi_ports **ports;         /* [n_variants][n_slices * members of a tensor group] */
  struct opi_train_counter *counters; /* [n_variants * n_slices]; count.c */
  int32_t token_axis;                 /* training, with slices: of labels and logits */
  opi_carry *output_carry;            /* [session's outputs] training: 1, the logits */
  uint8_t *made;                      /* [session's outputs] OPI_MADE_* */
  bool *touched;                      /* [n_here][inputs, then outputs] by that rank */
  bool *needed;                       /* [inputs] this session's host gives their data */
  bool *reads; /* parcels.c: micro-batches of inputs that processes read; NULL: nothing travels */
  bool counts; /* training: programs here read the labels' count */
  bool strict; /* opi_plan_is_strict */
  bool draws;  /* inference: programs read scalars (dropout) */
  uint32_t n_classes, n_instances, n_large; /* n_large: micro-batches of the larger class */
  int64_t rows[OPI_ROW_CLASSES];            /* of a whole micro-batch */
} opi_compiled;

/* Told upwards; the requests layer fills it in. */
typedef struct opi_shapes_above {
  void *ctx;
  /* A submit answers OPIPE_PENDING for a value behind this flag of the host's; NULL: for none. */
  void (*await_value)(void *ctx, const uint32_t *flag);
  /* opi_weights_options.share, if there are ranks in other sessions. */
  opipe_status (*share)(void *ctx, uint32_t holder, void *data, uint64_t n_bytes, opipe_status had,
                        opipe_error *io_err);
} opi_shapes_above;

/* A tensor that a rank holds for all shapes (opi_cell.held). */
typedef struct opi_resident {
  const char *name;
  uint32_t stage, replica; /* of the plan */
  uint32_t rank;
  uint64_t offset_bytes, n_bytes; /* in the rank's block */
} opi_resident;

struct opi_streams;
struct opi_lent_places;

/* All shapes of a session, and what they share. */
typedef struct opi_shapes {
  opi_setup *setup;
  const struct opi_shape_kind *kind; /* of requests, or of mini-batches */
  opi_shapes_above above;
  /* Taken to accept requests, to build and evict shapes, for streams and lent tensors. This is the
   * lock that comments call submit_lock. */
  opi_lock submit_lock;
  opi_lock lock;    /* the list, for readers that do not hold submit_lock */
  opi_shape **list; /* [n_places] NULL: empty */
  uint32_t n_places;
  _Atomic uint32_t version; /* counts shapes that were added */
  _Atomic uint64_t n_compiled;
  _Atomic uint32_t streams_by_way[OPIPE_WAY_KINDS]; /* of messages, with an end here */
  uint64_t n_numbered;               /* requests so far; orders uses, for eviction; submit_lock */
  _Atomic(const uint32_t *) awaited; /* flag of a value that the last submit needed; NULL: none */
  struct opi_streams *streams;       /* NULL: the plan has no pairs */
  opi_resident *residents;           /* [n_residents] of a plan of passes */
  opi_block *resident_blocks;        /* [n_ranks] where they lie */
  uint32_t n_residents;
  bool fixed;                     /* no shape is added any more */
  struct opi_lent_places *places; /* programs bound to tensors of hosts; submit_lock */
  /* written by open, with the plan's own shape */
  const opi_cut *master;       /* whose parameter table all shapes use */
  opi_weights *weights;        /* NULL: no training session */
  bool periodic;               /* double-buffered, with a schedule */
  uint32_t labels_input;       /* of the session, OPIPE_NONE: none */
  uint32_t n_pieces, n_slices; /* of the plan's own shape; of every shape of training */
  uint32_t loss_stage;         /* of the plan; OPIPE_NONE: no training */
  int64_t units_per_row;       /* of the batch axis as the inputs have it */
} opi_shapes;

/* Are the labels shifted by a token before anything is compared with them? */
static inline bool opi_labels_are_shifted(const opi_setup *s) {
  return s->shapes->labels_input != OPIPE_NONE && s->plan->decided.train->loss.shift != 0 &&
         s->plan->decided.train->loss.kind == OPI_LOSS_CROSS_ENTROPY;
}
/* A micro-batch's class and first row, counted over the request or mini-batch. */
static inline uint32_t opi_class_at(const opi_compiled *t, uint32_t microbatch) {
  return t->parts[microbatch].class;
}
static inline int64_t opi_row_at(const opi_compiled *t, uint32_t microbatch) {
  return t->parts[microbatch].first_row;
}
static inline opi_program_unit *opi_unit_at(const opi_compiled *t, uint32_t instance,
                                            uint32_t class, uint32_t program) {
  return &t->units[(instance * t->n_classes + class) * OPI_PROGRAMS + program];
}
static inline uint32_t opi_instance_at(const opi_compiled *t, uint32_t stage, uint32_t microbatch) {
  const opi_piece_plan *pieces = t->pieces;
  return stage * pieces->n_replicas +
         t->lists->replica_of[(size_t)stage * pieces->n_microbatches + microbatch];
}
/* The piece that a stage of the view computes of a micro-batch, and its graphs. */
static inline const opi_piece *opi_piece_at(const opi_compiled *t, uint32_t stage,
                                            uint32_t microbatch) {
  return &t->model->pieces[opi_class_at(t, microbatch)][stage];
}
static inline const opi_variant_slice *opi_graphs_at(const opi_compiled *t, uint32_t stage,
                                                     uint32_t microbatch) {
  return opi_variant_slice_of(t->model, opi_class_at(t, microbatch), stage);
}
static inline const opi_ports *opi_ports_at(const opi_compiled *t, const opi_piece *piece) {
  return &t->ports[piece->variant][piece->graph];
}
/* The piece's first row, counted over the mini-batch. */
static inline int64_t opi_piece_row(const opi_compiled *t, const opi_piece *piece,
                                    uint32_t microbatch) {
  return opi_row_at(t, microbatch) + piece->first;
}
/* Has the piece the request's first rows? Values that are the same for all rows are taken there. */
static inline bool opi_has_first_rows(const opi_compiled *t, uint32_t stage, uint32_t microbatch) {
  return t->parts[microbatch].in_request == 0 && opi_piece_at(t, stage, microbatch)->first == 0;
}
/* Does the host's result take what the stage makes of an output for a micro-batch? If all rows,
 * slices or members have the same, it takes the first. */
static inline bool opi_result_takes(const opi_compiled *t, uint32_t stage, uint32_t microbatch,
                                    uint32_t output) {
  const opi_variant_slice *slice = opi_graphs_at(t, stage, microbatch);
  const uint32_t member = opi_piece_at(t, stage, microbatch)->graph % t->model->n_members;
  const bool tokens = output < slice->n_outputs && slice->outputs[output].carry.axis < 0;
  return (t->output_carry[output].axis >= 0 || opi_has_first_rows(t, stage, microbatch)) &&
         (slice->first == 0 || !tokens) && (member == 0 || slice->output_parts[output].axis >= 0);
}
/* A route in the micro-batch's row class. */
static inline const opi_route *opi_route_at(const opi_compiled *t, uint32_t route,
                                            uint32_t microbatch) {
  return &t->model->cuts[opi_class_at(t, microbatch)]->routes[route];
}
/* The stage instance that an instance of the view belongs to; OPIPE_NONE: none. */
static inline uint32_t opi_whole_instance(const opi_compiled *t, uint32_t instance) {
  return t->pieces->whole_of[instance];
}
/* The instance of the weights (opi_weights_options) that it reads and accumulates in. */
static inline uint32_t opi_weights_instance_at(const opi_compiled *t, uint32_t instance) {
  const uint32_t piece = instance / t->pieces->n_replicas % t->model->n_pieces;
  return opi_whole_instance(t, instance) * t->model->n_members +
         opi_piece_place_of(&t->given, piece).member;
}
/* The member of a tensor group that a stage of the view belongs to; 0: no groups. */
static inline uint32_t opi_member_of(const opi_compiled *t, uint32_t stage) {
  return opi_piece_place_of(&t->given, stage % t->model->n_pieces).member;
}
/* When step `index` of the rank's list ran last; the reference has one list. */
static inline opi_ran *opi_ran_at(const opi_compiled *t, uint32_t rank, uint32_t index) {
  const uint32_t r = t->setup->reference ? 0 : rank;
  return &t->seats[r].ran[index - t->lists->rank_first[r]];
}
/* The region of a cell for a micro-batch. */
opipe_region opi_cell_region(const opi_compiled *t, uint32_t cell, uint32_t microbatch);
char *opi_cell_host(const opi_compiled *t, uint32_t cell, uint32_t microbatch); /* NULL: none */
/* The part of a rank, which is a member, in a meeting; values of a whole tensor that is summed. */
opi_meet *opi_meet_at(const opi_compiled *t, uint32_t meeting, uint32_t rank);
uint64_t opi_meet_values(const opi_list_meeting *meeting, const opi_group_value *value);
/* The regions that a route copies from and to. */
void opi_route_regions(const opi_compiled *t, uint32_t route, uint32_t microbatch,
                       opipe_region *out_from, opipe_region *out_to);

#endif /* OPI_SHAPE_H */
