/* SPDX-License-Identifier: Apache-2.0 */
/* What shapes run, and what a session's ranks are at, of inference and of training; private to
 * runtime/.
 *
 *   opi_session ── opi_engine ── cursors (one per rank: position in its list), training: weights
 *        └─ opi_shape ── opi_compiled ── model (graphs, cuts), lists
 *                            ├─ units   one per (stage instance, row class, program): a program
 *                            ├─ seats   one per rank: boundary buffer, sends that wait
 *                            └─ wires   one per stream: its two ends, message counts
 *
 * A shape is what requests or mini-batches of some number of rows and tokens need: all is made
 * before the first of its steps, every COMPUTE step knows its binding (training: one per set of
 * weights), every message its regions. Weights, optimizer state and the order of the steps are the
 * session's. Who may touch what is as in runtime/state.h.
 */
#ifndef OPI_ENGINE_H
#define OPI_ENGINE_H

#include "partition/lists/lists.h"
#include "partition/program/model.h"
#include "runtime/requests/train.h"
#include "runtime/state.h"
#include "runtime/trace/trace.h"

enum { OPI_TICKET_TRAIN = 0, OPI_TICKET_EVALUATE = 1 };
enum { OPI_WEIGHT_SETS = 2 };

/* What a request is when it trains. */
struct opi_ticket {
  uint32_t kind; /* OPI_TICKET_* */
  double *
      losses; /* [n_microbatches * n_pieces] parts of the loss; written by the rank that has them */
  bool shifted, counted;      /* the labels: they have been there */
  bool wanted;                /* double-buffered: somebody waits for it; submit_lock */
  bool has_lr;                /* its learning rate is the host's, */
  double lr;                  /* this */
  double count;               /* valid labels of the mini-batch */
  double sums[OPI_MOST_SUMS]; /* the other numbers that its loss is made of */
  uint64_t step;              /* double-buffered, and reference: the scalar STEP */
  uint64_t start_ns;
  _Atomic uint64_t end_ns;
  int64_t *labels; /* shifted copy, kept from ticket to ticket */
  uint64_t labels_bytes;
  opi_feed judge;         /* of the labels' port: of that copy; data NULL: they are not shifted */
  opi_step_report report; /* all ranks have the same */
  double loss;
  _Atomic double told_loss; /* where rank 0 is in another session */
};

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
} opi_wire;

/* A message of the lists with all that its steps need. */
typedef struct opi_message_run {
  const opi_wire *wire;
  opipe_region from, to;
  uint32_t src_rank, dst_rank;
  uint32_t sequence, n_messages; /* in its stream, of a body */
  uint32_t stream;
  bool direct;
} opi_message_run;

/* When a step ran last, for which request (its number + 1; 0: never). */
typedef struct opi_ran {
  opi_span span;
  uint64_t request;
} opi_ran;

/* A send that waits for its receive, or for its memory to be free again. */
typedef struct opi_waiting_send {
  uint64_t number;    /* of its stream, since that was opened */
  opipe_event *ready; /* it is sent behind; NULL: its memory is valid */
  uint32_t message;
  bool sent;
} opi_waiting_send;

/* What every rank does next, in the order of submission. A double-buffered session begins with a
 * PROLOGUE, then runs bodies (ALL), and a flush ends it by an EPILOGUE; others know only ALL. */
enum {
  OPI_ITEM_ALL = 0,
  OPI_ITEM_PROLOGUE = 1,
  OPI_ITEM_EPILOGUE = 2,
  OPI_ITEM_EVALUATE = 3,
  OPI_ITEM_REQUEST = 4 /* of inference: one of a body's */
};
typedef struct opi_item {
  opi_request *current, *next; /* mini-batch of steps that are not, that are of the next one */
  struct opi_compiled *shape;  /* of both */
  uint64_t body;               /* REQUEST: of its shape */
  uint32_t kind;
} opi_item;

/* What a shape has on a rank; the rank's own but for the bytes. */
typedef struct opi_seat {
  uint64_t arena_bytes, workspace_bytes; /* of the largest program */
  opi_waiting_send *waiting;             /* [room_waiting] */
  uint32_t n_waiting, room_waiting;
  struct opi_seat *next_busy; /* of those with sends that wait */
  struct opi_compiled *shape;
  bool *wakes;  /* [n_positions] a request begins with something that no message announces:
                   submit rings */
  opi_ran *ran; /* [steps of the rank] when each program or sum ran last; until the session rests
                 */
} opi_seat;

/* The rank's own, in a mini-batch or request. */
typedef struct opi_cursor {
  opi_seat *busy;     /* shapes with sends that wait */
  uint32_t *reducing; /* [instances] REDUCE steps whose sums are under way */
  uint32_t n_reducing;
  uint32_t end;  /* step behind the last of the item */
  uint32_t part; /* of the step that is being tried: inputs or results that are through */
  opi_item item;
  opi_request *owed; /* done with but for the norms of its step */
  bool begun;
  bool posting; /* the first receives of a shape */
  bool finite;  /* what the rank has of the mini-batch's loss is */
  bool updated; /* reference: the rank's update of this mini-batch is done */
  bool second;  /* evaluate, double-buffered: the forwards that are not of the next mini-batch */
  /* Not double-buffered: training steps that were begun, ever, and of these the ones before the
   * mini-batch in work (the scalar STEP); those that the rank has done. */
  uint64_t n_steps, number;
  _Atomic uint64_t n_done;
  opipe_error bad; /* what a mini-batch's data is wrong by; status 0: nothing */
  int64_t scalars[OPI_SCALAR_TABLE];
  char pad_[128]; /* the next rank's is its own */
} opi_cursor;

/* Where a graph (of a variant's slice) gets its inputs from. */
typedef struct opi_ports {
  uint32_t *input; /* [graph inputs] the session's; OPIPE_NONE: of another slice */
  int32_t *axis;   /* the same: batch axis, -1: none */
  uint32_t labels; /* port, OPIPE_NONE: none */
} opi_ports;

/* A micro-batch of the lists: of a body, those of one request after the other. */
typedef struct opi_part {
  int64_t first_row;
  uint32_t class, in_request; /* in_request: which of its request's */
} opi_part;

typedef struct opi_compiled {
  opi_session *session;
  opi_shape *shape; /* index, signature, blocks of memory */
  opi_arena arena;
  opi_plan given;               /* the session's, with the dimensions of these requests */
  const opi_piece_plan *pieces; /* of the model: the lists' plan */
  opi_cut_model *model;
  opi_lists *lists;
  opi_part *parts;           /* [plan->n_microbatches] */
  opi_program_unit *units;   /* [(instance * n_classes + class) * OPI_PROGRAMS + program] */
  opi_seat *seats;           /* [n_ranks] */
  opi_wire *wires;           /* [n_streams] */
  opi_message_run *messages; /* [n_messages] */
  opipe_binding **bound;     /* [n_steps] inference, COMPUTE: with what it runs; NULL: nothing to */
  uint32_t *binding_of_step; /* [n_steps] COMPUTE: index in its unit's bindings */
  uint32_t *eval_of_step;    /* the same for evaluate, where a program without dropout runs */
  opi_ports **ports;         /* [n_variants][n_slices] */
  struct opi_train_counter *counters;       /* [n_variants * n_slices]; count.c */
  int32_t token_axis;                       /* training, with slices: of labels and logits */
  opi_carry *output_carry;                  /* [session's outputs] training: 1, the logits */
  uint8_t *made;                            /* [session's outputs] OPI_MADE_* */
  bool *touched;                            /* [n_here][inputs, then outputs] by which ranks */
  bool strict;                              /* opi_plan_is_strict */
  bool draws;                               /* inference: programs read the scalars of the run */
  uint32_t n_classes, n_instances, n_large; /* n_large: micro-batches of the larger class */
  int64_t rows[OPI_ROW_CLASSES];            /* of a whole micro-batch */
} opi_compiled;

typedef struct opi_engine {
  opi_session *session;
  opi_arena arena;
  opi_weights *weights;
  opi_cursor *cursors;         /* [n_ranks] */
  opi_item *items;             /* [session->ring_room] beside the session's ring */
  opi_request *held;           /* double-buffered: its body has not been published; submit_lock */
  uint64_t n_items;            /* published; submit_lock */
  bool periodic;               /* double-buffered, with a schedule */
  uint32_t labels_input;       /* of the session, OPIPE_NONE: none */
  uint32_t n_pieces, n_slices; /* of the plan's own shape; of every shape of training */
  uint32_t loss_stage;         /* of the plan; OPIPE_NONE: no training */
  int64_t units_per_row;       /* of the batch axis as the inputs have it */
  uint64_t n_steps;            /* double-buffered, reference: that ranks have got; submit_lock */
} opi_engine;

/* Its class, and the first of its rows, counted over the request or mini-batch. */
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
  const opi_plan *plan = &t->pieces->plan;
  return stage * plan->n_replicas +
         t->lists->replica_of[(size_t)stage * plan->n_microbatches + microbatch];
}
/* What a stage of the view computes of a micro-batch, and the graphs that it does it with. */
static inline const opi_piece *opi_piece_at(const opi_compiled *t, uint32_t stage,
                                            uint32_t microbatch) {
  return &t->model->pieces[opi_class_at(t, microbatch)][stage];
}
static inline const opi_variant_slice *opi_graphs_at(const opi_compiled *t, uint32_t stage,
                                                     uint32_t microbatch) {
  return opi_variant_slice_of(t->model, opi_class_at(t, microbatch), stage);
}
static inline const opi_ports *opi_ports_at(const opi_compiled *t, const opi_piece *piece) {
  return &t->ports[piece->variant][piece->slice];
}
/* The first of its rows, counted over the mini-batch. */
static inline int64_t opi_piece_row(const opi_compiled *t, const opi_piece *piece,
                                    uint32_t microbatch) {
  return opi_row_at(t, microbatch) + piece->first;
}
/* Does it begin the request? What is the same for all rows is taken from there. */
static inline bool opi_has_first_rows(const opi_compiled *t, uint32_t stage, uint32_t microbatch) {
  return t->parts[microbatch].in_request == 0 && opi_piece_at(t, stage, microbatch)->first == 0;
}
/* A route as it is for a micro-batch. */
static inline const opi_route *opi_route_at(const opi_compiled *t, uint32_t route,
                                            uint32_t microbatch) {
  return &t->model->cuts[opi_class_at(t, microbatch)]->routes[route];
}
/* The stage instance that an instance of the view belongs to; OPIPE_NONE: there is none. */
static inline uint32_t opi_whole_instance(const opi_compiled *t, uint32_t instance) {
  return t->pieces->whole_of[instance];
}
/* When step `index` of the rank's list ran last; the reference has one list. */
static inline opi_ran *opi_ran_at(const opi_compiled *t, uint32_t rank, uint32_t index) {
  const uint32_t r = t->session->reference ? 0 : rank;
  return &t->seats[r].ran[index - t->lists->rank_first[r]];
}
/* Where a cell lies for a micro-batch. */
opipe_region opi_cell_region(const opi_compiled *t, uint32_t cell, uint32_t microbatch);
char *opi_cell_host(const opi_compiled *t, uint32_t cell, uint32_t microbatch); /* NULL: none */
/* What a route takes from, and where it brings it. */
void opi_route_regions(const opi_compiled *t, uint32_t route, uint32_t microbatch,
                       opipe_region *out_from, opipe_region *out_to);

/* open.c */
opipe_status opi_engine_prepare(opi_session *session,
                                opipe_error *err); /* before devices are open */
opipe_status opi_engine_build(opi_session *session,
                              opipe_error *err); /* the plan's shape, weights */
void opi_engine_stop(opi_session *session);      /* what is the transport's and the backends' */
void opi_engine_free(opi_session *session);
opipe_status opi_train_open_weights(opi_compiled *own, opipe_error *err);
/* graphs.c: a shape's graphs, ports and signature, by the session's plan (shape->keep) or the
 * signature that it has. The plan's own also names the session's outputs and adds the labels. */
opipe_status opi_compiled_graphs(opi_shape *shape, opipe_error *err);
/* shape.c: lists, programs, memory, bindings, streams */
opipe_status opi_compiled_build(opi_shape *shape, opipe_error *err);
void opi_compiled_stop(opi_shape *shape);
void opi_compiled_free(opi_shape *shape);
/* made.c: what of every result is made here */
opipe_status opi_results_find(opi_compiled *shape, opipe_error *err);
/* Which ranks here touch which inputs and outputs of its requests. */
opipe_status opi_touches_find(opi_compiled *shape, opipe_error *err);
/* bind.c */
/* A program of inference with its boundaries in `regions`. */
opipe_status opi_unit_bind(const opi_compiled *shape, const opi_program_unit *unit,
                           uint32_t instance, const opipe_region *regions,
                           opipe_binding **out_binding, opipe_error *err);
opipe_status opi_bindings_make(opi_compiled *shape, opipe_error *err);
/* feed.c: what a port is fed from: the request's tensor, or the shifted labels */
const opi_feed *opi_port_feed(const opi_request *request, const opi_ports *ports, uint32_t port);
/* The rows that a stage's piece has of what feeds port `port`; borrows dims [rank]. */
opi_view opi_step_part(const opi_compiled *shape, const opi_request *request, uint32_t stage,
                       uint32_t port, uint32_t microbatch, int64_t *dims);
/* Which rows and tokens of output `index` of its graph a stage makes of a micro-batch. */
void opi_step_rows(const opi_compiled *shape, const opi_request *request, uint32_t stage,
                   uint32_t microbatch, uint32_t index, const opi_carry *carry,
                   opi_result_part *out_rows, opi_result_part *out_tokens);
opipe_status opi_step_load(opi_rank *rank, const opi_step *step, opipe_error *err);
opipe_status opi_step_store(opi_rank *rank, const opi_step *step, opipe_error *err);
opipe_status opi_train_shift(opi_engine *engine, opi_request *request, opipe_error *err);
/* Is what a rank has of the mini-batch's loss a number? On its thread, before its update. */
bool opi_train_is_finite(const opi_compiled *shape, const opi_request *request, uint32_t rank);
/* count.c: the number of valid labels of the whole mini-batch; and its other sums
 * [OPI_MOST_SUMS], 0 where there is none */
opipe_status opi_train_open_counters(opi_compiled *shape, opipe_error *err);
void opi_train_close_counters(opi_compiled *shape);
opipe_status opi_train_count(opi_compiled *shape, const opi_request *request, double *out_count,
                             double *out_sums, opipe_error *err);
static inline opi_cursor *opi_cursor_of(const opi_rank *rank) {
  return rank->cursor;
}
/* The shape that the rank is at work with. */
static inline opi_compiled *opi_compiled_at(const opi_rank *rank) {
  return opi_cursor_of(rank)->item.shape;
}
/* The mini-batch that a step of the rank works for. */
static inline opi_request *opi_step_request(const opi_rank *rank, const opi_step *step) {
  const opi_item *item = &opi_cursor_of(rank)->item;
  return step->next != 0 ? item->next : item->current;
}
/* interpret.c: moves on what lags behind the rank's last step, and ends the ticket that waits for
 * its report. OPIPE_PENDING: not there yet. */
opipe_status opi_rank_settle(opi_rank *rank, opipe_error *err);
/* step.c: runs the rank's list of its request; OPIPE_PENDING: blocked */
opipe_status opi_list_run(opi_rank *rank, opipe_error *err);
/* Nothing to run: sends that still wait are tried; OPIPE_PENDING: some still do. */
opipe_status opi_list_idle(opi_rank *rank, opipe_error *err);
opipe_status opi_step_compute(opi_rank *rank, const opi_step *step, uint32_t index,
                              opipe_error *err);
/* Does the step belong to what the rank does now? */
bool opi_step_takes_part(const opi_compiled *t, const opi_cursor *cursor, const opi_step *step);
opipe_status opi_step_copy(opi_rank *rank, const opi_step *step, opipe_error *err);
/* messages.c: the steps of messages; OPIPE_PENDING: not yet */
opipe_status opi_message_post(opi_rank *rank, const opi_step *step, opipe_error *err);
opipe_status opi_message_receive(opi_rank *rank, const opi_step *step, opipe_error *err);
opipe_status opi_message_reserve(opi_rank *rank, const opi_step *step, opipe_error *err);
opipe_status opi_message_send(opi_rank *rank, const opi_step *step, opipe_error *err);
opipe_status opi_message_drain(opi_rank *rank, const opi_step *step, opipe_error *err);
/* steps [n]. OPIPE_PENDING: none has begun */
opipe_status opi_messages_batch(opi_rank *rank, const opi_step *steps, uint32_t n,
                                opipe_error *err);
/* Tries the sends that wait. */
opipe_status opi_messages_try(opi_rank *rank, opipe_error *err);
static inline opipe_status opi_messages_flush(opi_rank *rank, opipe_error *err) {
  return rank->cursor->busy == NULL ? OPIPE_OK : opi_messages_try(rank, err);
}
/* reference.c */
opipe_status opi_reference_run(opi_session *session, opi_request *request, opipe_error *err);
/* A double-buffered ticket that is held back for the next step goes out: the caller waits for it,
 * or lets go of it. */
void opi_train_let_finish(opi_request *request);
void opi_train_leave_none(opi_session *session); /* whichever is */
/* Its labels are there: shifts and counts them, where that has not been done. OPIPE_PENDING: they
 * are not. submit_lock */
opipe_status opi_train_look(opi_request *request, opipe_error *err);
/* The ranks get it, in its turn. submit_lock */
void opi_train_publish(opi_request *request);
/* The last rank is done. */
void opi_train_finished(opi_request *request);
double opi_train_loss(const opi_request *request); /* of all micro-batches, in their order */
opipe_status opi_ticket_make(opi_request *request, opipe_error *err); /* of a training session */
void opi_ticket_free(opi_request *request);

#endif /* OPI_ENGINE_H */
