/* SPDX-License-Identifier: Apache-2.0 */
/* A training export of ../shared/models/modern, bound, cut into stages at every n-th node, built
 * and run.
 */
#ifndef TESTS_LOADER_GRADIENT_CUT_H
#define TESTS_LOADER_GRADIENT_CUT_H

#include "tests/loader/gradient/training.h"

enum { MOST = 1024 };

typedef struct cut_case {
  test_model m;
  const char *name; /* "gpt2/train" */
  opi_bound *bound;
  opi_training *training;
  uint32_t *stages;
  uint32_t compute;           /* 0: fp32 */
  bool hands_on;              /* OPIPE_DEVICE_HANDS_ON */
  double scale;               /* of the loss, 0: 1; gradients are divided by it here */
  int64_t seed, step, sample; /* of Dropout */
  test_feed feeds[TEST_MAX_TENSORS];
  uint32_t n_feeds;
  double loss;
  double *gradients[MOST];
  size_t sizes[MOST];
} cut_case;

/* `dropout` OPI_DROPOUT_*. */
static inline opipe_status bind_model(cut_case *c, uint32_t flags, uint32_t dropout,
                                      opipe_error *err) {
  opi_input_shape shapes[TEST_MAX_TENSORS];
  for (uint32_t i = 0; i < c->m.n_inputs; ++i) {
    shapes[i] =
        (opi_input_shape){c->m.inputs[i].name, c->m.inputs[i].shape, (uint32_t)c->m.inputs[i].rank};
  }
  const opi_bind_options options = {.flags = flags | OPI_BIND_KEEP_PARAMETERS,
                                    .shapes = shapes,
                                    .n_shapes = c->m.n_inputs,
                                    .dropout = dropout,
                                    .evaluator = test_backend_evaluator(),
                                    .allocator = opi_allocator_system()};
  return opi_bind(c->m.model, &options, &c->bound, err);
}

static inline bool open_model(cut_case *c, const char *name, uint32_t flags, uint32_t dropout) {
  opipe_error err = OPIPE_ERROR_INIT;
  char path[700];
  static opi_value labels; /* name and data are in the model's arena */
  memset(c, 0, sizeof(*c));
  c->name = name;
  (void)snprintf(path, sizeof(path), "models/modern/%s", name);
  const char *folder = opi_test_shared(path);
  if (folder == NULL || test_backend_evaluator() == NULL)
    return false;
  (void)snprintf(path, sizeof(path), "%s/model.onnx", folder);
  if (!OPI_ASSERT(test_load(&c->m, path, &err) && test_read_set(&c->m, folder, 0)))
    return false;
  for (uint32_t i = 0; i < c->m.n_inputs; ++i) {
    c->feeds[c->n_feeds++] =
        (test_feed){c->m.inputs[i].name, c->m.inputs[i].data, c->m.inputs[i].n_bytes};
  }
  (void)snprintf(path, sizeof(path), "%s/labels.pb", folder);
  if (OPI_ASSERT(test_read_tensor(&c->m, path, &labels)))
    c->feeds[c->n_feeds++] = (test_feed){"train_labels", labels.data, labels.n_bytes};
  return OPI_ASSERT_OK(bind_model(c, flags, dropout, &err), &err);
}

static inline void close_model(cut_case *c) {
  opi_training_free(c->training);
  opi_bound_free(c->bound);
  test_unload(&c->m);
}

/* The batch axis of every value; NULL where it is not carried. */
static inline const opi_carry *carry_of(cut_case *c) {
  opipe_error err = OPIPE_ERROR_INIT;
  const opi_graph *g = c->bound->graph;
  opi_carry *in = opi_arena_array(&c->m.arena, g->n_inputs, sizeof(*in));
  opi_carry *out = opi_arena_array(&c->m.arena, g->n_values, sizeof(*out));
  for (uint32_t i = 0; i < g->n_inputs; ++i)
    in[i] = (opi_carry){0, 0, 1, 1};
  return opi_carry_axis(g, NULL, in, out, &err) >= 0 ? out : NULL;
}

static inline bool build(cut_case *c, uint32_t n_stages, uint32_t recompute) {
  opipe_error err = OPIPE_ERROR_INIT;
  const uint32_t n = c->bound->graph->n_nodes;
  c->stages = opi_arena_array(&c->m.arena, n, sizeof(uint32_t));
  for (uint32_t i = 0; i < n; ++i)
    c->stages[i] = i * n_stages / n;
  const opi_loss loss = {.kind = OPI_LOSS_CROSS_ENTROPY,
                         .output = c->m.outputs[0].name,
                         .labels = "train_labels",
                         .ignore = -100};
  const opi_gradient_options options = {.loss = &loss,
                                        .stage_of_node = c->stages,
                                        .carry = carry_of(c),
                                        .recompute = recompute,
                                        .compute = c->compute,
                                        .hands_on = c->hands_on,
                                        .evaluator = test_backend_evaluator(),
                                        .allocator = opi_allocator_system()};
  opi_training_free(c->training);
  c->training = NULL;
  return OPI_ASSERT_OK(opi_gradient_build(c->bound, &options, &c->training, &err), &err);
}

static inline bool run(cut_case *c) {
  opipe_error err = OPIPE_ERROR_INIT;
  const double scale = c->scale != 0 ? c->scale : 1;
  test_step step = {.t = c->training,
                    .feeds = c->feeds,
                    .n_feeds = c->n_feeds,
                    .scalars = {c->seed, c->step, c->sample, 0, 0, test_double_bits(scale)},
                    .arena = &c->m.arena};
  memset(c->gradients, 0, sizeof(c->gradients));
  if (!OPI_ASSERT_OK(test_run_step(&step, &c->loss, c->gradients, c->sizes, &err), &err))
    return false;
  for (uint32_t p = 0; p < c->training->n_params; ++p) {
    for (size_t k = 0; c->gradients[p] != NULL && k < c->sizes[p]; ++k)
      c->gradients[p][k] /= scale;
  }
  return true;
}

#endif /* TESTS_LOADER_GRADIENT_CUT_H */
