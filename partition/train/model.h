/* SPDX-License-Identifier: Apache-2.0 */
/* From a plan and a model to the training graphs of its row classes, cut: shared by the planner,
 * which predicts with them, and the runtime, which compiles them. */
#ifndef OPI_TRAIN_MODEL_H
#define OPI_TRAIN_MODEL_H

#include "partition/cost/profile.h"
#include "partition/make.h"
#include "partition/memory/predict.h"
#include "partition/train/lists.h"

enum { OPI_TRAIN_CLASSES = 2 /* micro-batches have at most two row counts */ };

/* One token slice of one row class; without slices there is one, the whole. */
typedef struct opi_train_slice {
  opi_token_slice *tokens; /* NULL: whole sequences */
  opi_training *training;
  opi_train_cut *cut;
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

typedef struct opi_train_model {
  const opipe_allocator *allocator;
  opi_arena arena;
  opi_bound *bounds[OPI_TRAIN_CLASSES];
  opi_train_slice *slices[OPI_TRAIN_CLASSES]; /* [n_slices] */
  opi_training *trainings[OPI_TRAIN_CLASSES]; /* the first slice's */
  opi_train_cut *cuts[OPI_TRAIN_CLASSES];     /* of all slices together */
  uint32_t n_classes, n_slices;
  int64_t n_tokens; /* of a sequence; 0 without slices */
  opi_token_axes token_axes;
  /* The plan as the lists see it: slice k of stage s is stage s * n_slices + k. */
  opi_plan view;
} opi_train_model;

/* The plan's stage_of_node and actions must be there (actions NULL: every stage uses F and B). base
 * gives evaluator and logger. */
opipe_status opi_train_model_build(const opi_plan *plan, const opi_model *model,
                                   const opi_bind_options *base, opi_train_model **out_model,
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

/* Backward time of every node of a bound graph by the device's rates, input and weight part; of a
 * measured profile in proportion to the forward. out [n_nodes]. */
opipe_status opi_train_costs(const opi_training *training, const opi_bound *bound,
                             const opi_profile *profile, const opipe_device_info *device,
                             uint32_t threads, double *out_input_ns, double *out_weight_ns,
                             opipe_error *err);

/* slices.c: cuts the sequences of class `c`, whose whole graph is bound, as the plan's layout says.
 */
opipe_status opi_train_slices(const opi_plan *plan, const opi_model *file,
                              const opi_bind_options *base, uint32_t c, int64_t rows,
                              opi_train_model *model, opipe_error *err);
/* slices.c: fills model->token_axes for `whole`, a graph of `rows` rows. None where nothing drops,
 * or where the model has no token dimension that could be sliced. */
opipe_status opi_train_token_axes(const opi_plan *plan, const opi_model *file,
                                  const opi_bind_options *base, int64_t rows,
                                  const opi_bound *whole, opi_train_model *model, opipe_error *err);
/* slices.c: fills model->view. */
opipe_status opi_train_view(const opi_plan *plan, opi_train_model *model, opipe_error *err);
/* Copies a spec into the plan. */
opipe_status opi_train_spec_copy(opi_plan *plan, const opi_train_spec *spec, opipe_error *err);

/* Exact bytes of every rank of a training plan; every program of every class is compiled.
 * out_memory [n_ranks]. */
opipe_status opi_train_predict(const opi_plan *plan, const opi_train_model *model,
                               const opi_train_lists *lists, const opi_rank_device *devices,
                               uint32_t compile_flags, opi_memory *out_memory, opipe_error *err);

/* Checks and proves the plan's records in the action language (partition/schedule/actions.h).
 * Errors: INVALID with rank, step, action, or the cycle. */
opipe_status opi_train_check(const opi_plan *plan, const opi_train_model *model, opipe_error *err);

/* opi_plan_finish for plans with a training part. devices [n_ranks] are open. */
opipe_status opi_train_finish(const opi_plan_env *env, opi_plan *plan,
                              const opi_rank_device *devices, opipe_error *err);

#endif /* OPI_TRAIN_MODEL_H */
