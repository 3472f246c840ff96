/* SPDX-License-Identifier: Apache-2.0 */
/* From a plan and a model to the graphs of its row classes, cut: shared by the planner, which
 * predicts with them, and the runtime, which compiles them. A forward plan's are the bound graphs.
 */
#ifndef OPI_TRAIN_MODEL_H
#define OPI_TRAIN_MODEL_H

#include "partition/cost/profile.h"
#include "partition/make.h"
#include "partition/memory/caps.h"
#include "partition/schedule/actions.h"
#include "partition/train/lists.h"

enum { OPI_TRAIN_CLASSES = 2 /* micro-batches have at most two row counts */ };

/* One token slice of one number of rows; without slices there is one, the whole. */
typedef struct opi_train_slice {
  opi_token_slice *tokens; /* NULL: whole sequences */
  opi_training *training;  /* NULL: a forward plan */
  const opi_graph *graph;  /* of the training, or the bound graph itself */
  const uint32_t *stage;   /* [graph->n_nodes] */
  opi_cut *cut;
  int64_t first, length; /* tokens */
} opi_train_slice;

/* The inputs of Dropout that have a token axis, by the node's name: slices drop what the whole
 * sequence drops. */
typedef struct opi_token_axis {
  const char *node;
  int32_t axis;
} opi_token_axis;
typedef struct opi_token_axes {
  opi_token_axis *list;
  uint32_t n;
} opi_token_axes;

/* The graphs of one number of rows: of whole micro-batches of a class, or of pieces of them. All
 * have the same nodes and values. */
typedef struct opi_train_variant {
  int64_t rows;            /* 1 where the batch has no name */
  const opi_bound *bound;  /* of the model's base, NULL: made of that and another (variants.c) */
  opi_bound *own;          /* the same where the model bound it */
  opi_train_slice *slices; /* [n_slices] */
} opi_train_variant;

/* What a stage of the view computes of a micro-batch. */
typedef struct opi_train_piece {
  uint32_t variant, slice; /* variant OPIPE_NONE: nothing, the stage has fewer pieces */
  uint32_t share;          /* which of the stage's replicas, where they cut micro-batches */
  uint32_t phases;         /* bits */
  int64_t first, rows;     /* of the micro-batch's rows */
} opi_train_piece;

typedef struct opi_train_model {
  const opipe_allocator *allocator;
  opi_arena arena;
  const opi_cut *master; /* whose parameter table the cuts have; NULL: the base's first slice's */
  opi_train_variant *variants;
  uint32_t n_variants, room_variants;
  uint32_t base;                              /* the variant that was bound, with the most rows */
  opi_train_piece *pieces[OPI_TRAIN_CLASSES]; /* [n_stages * n_views] */
  opi_cut *cuts[OPI_TRAIN_CLASSES];           /* of all pieces together */
  uint32_t n_classes, n_slices;
  uint32_t n_views; /* pieces of a stage: token slices, or rows and phases */
  int64_t n_tokens; /* of a sequence; 0 without slices */
  opi_token_axes token_axes;
  /* The plan as the lists see it: piece k of stage s is stage s * n_views + k. */
  opi_plan view;
  uint32_t *whole_of; /* [instances of the view] instance of the plan; OPIPE_NONE: there is none */
  uint32_t *reduce_after; /* [instances of the plan] action behind which the sum over replicas
                             stands; OPIPE_NONE: at the end of its rank */
} opi_train_model;

static inline const opi_train_slice *opi_train_slice_of(const opi_train_model *model,
                                                        uint32_t class, uint32_t view_stage) {
  const opi_train_piece *piece = &model->pieces[class][view_stage];
  return &model->variants[piece->variant].slices[piece->slice];
}

/* What a model is made of. All borrowed; bound and master must outlive it. */
typedef struct opi_train_sources {
  const opi_plan *plan; /* stage_of_node and actions must be there (actions NULL: every stage of a
                           training plan uses F and B) */
  const opi_model *file;
  const opi_bind_options *base; /* evaluator and logger */
  const opi_cut *master;  /* of the same plan with other dimensions: its parameter table is taken;
                             NULL: a table of its own */
  const opi_bound *bound; /* forward: the graph of the most rows, whose nodes the plan's
                             stage_of_node counts; NULL: it is bound here */
  opi_bind_fn bind;       /* NULL: opi_bind */
} opi_train_sources;
opipe_status opi_train_model_build(const opi_train_sources *from, opi_train_model **out_model,
                                   opipe_error *err);
void opi_train_model_free(opi_train_model *model); /* accepts NULL */

/* Slots of the parameter table that the programs of `stage` read or accumulate, rising. In `arena`.
 */
opipe_status opi_train_stage_params(const opi_train_model *model, uint32_t stage, opi_arena *arena,
                                    uint32_t **out_params, uint32_t *out_n, opipe_error *err);

/* How many of a bound graph's nodes must carry the batch: all, but where training's loss is a
 * scalar of the graph only those before the first float scalar. */
uint32_t opi_train_batch_nodes(const opi_plan *plan, const opi_graph *g);

/* Training graph of a bound micro-batch under the plan's spec. stage_of_node NULL: one stage; slice
 * NULL: whole sequences; axes NULL: masks are not wanted to be those of slices. */
opipe_status opi_train_gradient(const opi_plan *plan, const opi_model *model,
                                const opi_bound *bound, const uint32_t *stage_of_node,
                                const opi_token_slice *slice, const opi_token_axes *axes,
                                const opi_bind_options *base, opi_training **out_training,
                                opipe_error *err);

/* Backward time of every node of a bound graph, input and weight part: of the nodes that it
 * anchors, as measured (measured_ns of the training graph's nodes), or by the device's rates
 * (NULL). out [n_nodes]. */
opipe_status opi_train_costs(const opi_training *training, const opi_bound *bound,
                             const double *measured_ns, const opi_device_facts *device,
                             uint32_t threads, double *out_input_ns, double *out_weight_ns,
                             opipe_error *err);
/* measure.c: times of the training graph's backward nodes, each run alone on an open device; below
 * 0 where one cannot be: forwards, and sums into accumulators, which backends join with what makes
 * them. out_ns [graph->n_nodes]. */
opipe_status opi_train_measure(const opi_training *training, const opi_backend_ref *backend,
                               opipe_device *device, const opipe_allocator *allocator,
                               uint64_t (*now_ns)(void), double *out_ns, opipe_error *err);

/* slices.c: cuts the sequences of a variant, whose whole graph is bound, as the plan's layout says.
 */
opipe_status opi_train_slices(const opi_plan *plan, const opi_model *file,
                              const opi_bind_options *base, opi_train_variant *variant,
                              opi_train_model *model, opipe_error *err);
/* slices.c: given lengths of slices, made for sequences of another number of tokens than the plan's
 * dimensions say, in the same proportions. In `arena`. */
opipe_status opi_train_scale_slices(const opi_model *file, opi_plan *plan, opi_arena *arena,
                                    opipe_error *err);
/* slices.c: fills model->token_axes for `whole`, a graph of `rows` rows. None where nothing drops,
 * or where the model has no token dimension that could be sliced. */
opipe_status opi_train_token_axes(const opi_plan *plan, const opi_model *file,
                                  const opi_bind_options *base, int64_t rows,
                                  const opi_bound *whole, opi_train_model *model, opipe_error *err);
/* variants.c. The variant of so many rows (0: the batch has no name), noted where there is none. */
opipe_status opi_train_variant_note(opi_train_model *model, int64_t rows, uint32_t *out_variant,
                                    opipe_error *err);
/* Makes the graphs and cuts of all that are noted; used [n_stages]: OPI_PROGRAM_* as bits. Errors:
 * those of binding and differentiating; UNSUPPORTED, a graph that changes with the rows. */
opipe_status opi_train_variants_build(const opi_train_sources *from, const uint32_t *used,
                                      opi_train_model *model, opipe_error *err);
void opi_train_variants_free(opi_train_model *model);
/* pieces.c: which rows of a micro-batch of class `c` each piece has, and of which variant it is.
 * Errors: INVALID, fewer rows than pieces. */
opipe_status opi_train_pieces(const opi_plan *plan, uint32_t c, int64_t rows,
                              opi_train_model *model, opipe_error *err);
/* pieces.c: the cut of class `c` with every piece of a stage as a stage. carry, mixed: of the
 * values of the first variant's training graph. Errors: UNSUPPORTED names the tensor whose rows do
 * not lie one after the other. */
opipe_status opi_train_compose(const opi_plan *plan, uint32_t c, const opi_carry *carry,
                               const bool *mixed, opi_train_model *model, opipe_error *err);
/* view.c: fills model->view and model->whole_of. A forward plan's view has its records only from
 * the first call after opi_train_model_build on: how many requests it holds follows from the cut.
 */
opipe_status opi_train_view(const opi_plan *plan, opi_train_model *model, opipe_error *err);
/* spec.c: writes into the plan's spec what a training graph made without a choice trains. */
opipe_status opi_train_choose(opi_plan *plan, const opi_training *training, opipe_error *err);
/* spec.c: is all that the plan trains there? */
opipe_status opi_train_check_choice(const opi_plan *plan, const opi_graph *graph, opipe_error *err);
/* Copies a spec, whose optimizer is checked, into the plan. */
opipe_status opi_train_spec_copy(opi_plan *plan, const opi_train_spec *spec, opipe_error *err);

/* Bytes of every rank of a training plan; every program of every class is compiled, or estimated
 * where the device is described. out_memory [n_ranks]. */
opipe_status opi_train_predict(const opi_plan *plan, const opi_train_model *model,
                               const opi_train_lists *lists, const opi_rank_device *devices,
                               uint32_t compile_flags, opi_memory *out_memory, opipe_error *err);

/* Fills model->reduce_after by the plan's sync. Errors: INVALID, records. */
opipe_status opi_train_reductions(const opi_plan *plan, opi_train_model *model, opipe_error *err);
/* A double-buffered body as simulated behind its prologue: [n_actions], from its own beginning. */
opipe_status opi_train_timeline(const opi_plan *plan, const opi_train_model *model,
                                opi_arena *arena, double *out_start_ns, double *out_end_ns,
                                opipe_error *err);

/* The rest of opi_plan_finish. devices [n_ranks] are open, or described; NULL: the plan was read,
 * and its memory stays as it is. bound: the graph of the most rows. */
opipe_status opi_train_finish(const opi_plan_env *env, opi_plan *plan, const opi_bound *bound,
                              const opi_rank_device *devices, opipe_error *err);

#endif /* OPI_TRAIN_MODEL_H */
