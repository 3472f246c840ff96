/* SPDX-License-Identifier: Apache-2.0 */
/* Models from files for tests of the fusions: load, bind to a data set's shapes, run the whole
 * bound graph through the evaluator.
 *
 *   test_model m; if (test_load(&m, path)) { test_read_set(&m, path, 0); test_bind(&m, flags,
 * &bound, &err); ... } test_unload(&m);
 */
#ifndef TESTS_LOADER_FUSION_MODELS_H
#define TESTS_LOADER_FUSION_MODELS_H

#include <stdio.h>
#include <stdlib.h>

#include "tests/loader/backend_evaluator.h"

enum { TEST_MAX_TENSORS = 128 };

typedef struct test_model {
  opi_arena arena; /* tensors of the data set */
  opi_model *model;
  opi_value inputs[TEST_MAX_TENSORS], outputs[TEST_MAX_TENSORS];
  uint32_t n_inputs, n_outputs;
} test_model;

static inline bool test_load(test_model *m, const char *path, opipe_error *err) {
  const opi_load_params params = {.path = path,
                                  .allocator = opi_allocator_system(),
                                  .flags = OPI_LOAD_ALLOW_SYMLINKS | OPI_LOAD_ALLOW_HARDLINKS};
  memset(m, 0, sizeof(*m));
  opi_arena_init(&m->arena, opi_allocator_system(), 0);
  return opi_model_load(&params, &m->model, err) >= 0;
}

static inline void test_unload(test_model *m) {
  opi_model_free(m->model);
  opi_arena_release(&m->arena);
}

/* One serialised tensor; false when the file is not there or is none. */
static inline bool test_read_tensor(test_model *m, const char *path, opi_value *out) {
  FILE *file = fopen(path, "rb");
  opipe_error err = OPIPE_ERROR_INIT;
  if (file == NULL)
    return false;
  (void)fseek(file, 0, SEEK_END);
  const long n = ftell(file);
  (void)fseek(file, 0, SEEK_SET);
  void *bytes = n >= 0 ? opi_arena_alloc(&m->arena, (size_t)n) : NULL;
  const bool read = bytes != NULL && fread(bytes, 1, (size_t)n, file) == (size_t)n;
  (void)fclose(file);
  return read && opi_tensor_parse(bytes, (uint64_t)n, &m->arena, out, &err) >= 0;
}

/* Reads test_data_set_<set> beside the model file; false when there is none. */
static inline bool test_read_set(test_model *m, const char *folder, uint32_t set) {
  char path[1024];
  m->n_inputs = m->n_outputs = 0;
  for (uint32_t i = 0; i < TEST_MAX_TENSORS; ++i) {
    (void)snprintf(path, sizeof(path), "%s/test_data_set_%u/input_%u.pb", folder, set, i);
    if (!test_read_tensor(m, path, &m->inputs[i]))
      break;
    ++m->n_inputs;
  }
  for (uint32_t i = 0; i < TEST_MAX_TENSORS; ++i) {
    (void)snprintf(path, sizeof(path), "%s/test_data_set_%u/output_%u.pb", folder, set, i);
    if (!test_read_tensor(m, path, &m->outputs[i]))
      break;
    ++m->n_outputs;
  }
  return m->n_outputs > 0;
}

static inline opipe_status test_bind(const test_model *m, uint32_t flags,
                                     const opi_evaluator *evaluator, opi_bound **out_bound,
                                     opipe_error *err) {
  opi_input_shape shapes[TEST_MAX_TENSORS];
  for (uint32_t i = 0; i < m->n_inputs; ++i) {
    shapes[i] =
        (opi_input_shape){m->inputs[i].name, m->inputs[i].shape, (uint32_t)m->inputs[i].rank};
  }
  const opi_bind_options options = {.flags = flags | OPI_BIND_DEFAULTS,
                                    .shapes = shapes,
                                    .n_shapes = m->n_inputs,
                                    .evaluator = evaluator,
                                    .allocator = opi_allocator_system()};
  return opi_bind(m->model, &options, out_bound, err);
}

/* Small numbers for an input without data: integers 0 or 1, floats in [-1, 1). */
static inline void *test_fill(opi_arena *arena, const opi_value *v, uint64_t seed) {
  opi_test_random random = {seed};
  const size_t size = opi_test_dtype_bytes(v->dtype);
  uint8_t *data = opi_arena_alloc(arena, v->n_bytes);
  for (uint64_t i = 0; data != NULL && size != 0 && i < v->n_bytes / size; ++i) {
    const double x = opi_test_uniform(&random, -1, 1);
    const float f = (float)x;
    const int64_t whole = x > 0;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    const uint16_t brain = (uint16_t)(bits >> 16);
    const uint16_t half =
        (uint16_t)((bits >> 16 & 0x8000u) |
                   ((((bits >> 23 & 0xffu) < 113 ? 113 : bits >> 23 & 0xffu) - 112) << 10) |
                   (bits >> 13 & 0x3ffu));
    if (v->dtype == OPIPE_FLOAT)
      memcpy(data + i * size, &f, size);
    else if (v->dtype == OPIPE_DOUBLE)
      memcpy(data + i * size, &x, size);
    else if (v->dtype == OPIPE_FLOAT16)
      memcpy(data + i * size, &half, size);
    else if (v->dtype == OPIPE_BFLOAT16)
      memcpy(data + i * size, &brain, size);
    else
      memcpy(data + i * size, &whole, size);
  }
  return data;
}

static inline const opi_value *test_input_of(const test_model *m, const char *name) {
  for (uint32_t i = 0; i < m->n_inputs; ++i) {
    if (strcmp(m->inputs[i].name, name) == 0)
      return &m->inputs[i];
  }
  return NULL;
}

/* Runs the whole bound graph with the data set's inputs (made-up ones where there is none) as
 * constants; outs [n_outputs] in `arena`. */
static inline opipe_status test_run(const test_model *m, const opi_bound *bound,
                                    const opi_evaluator *evaluator, opi_arena *arena, void **outs,
                                    opipe_error *err) {
  const opi_graph *g = bound->graph;
  opipe_graph abi;
  OPI_TRY(opi_graph_to_abi(g, arena, &abi, err));
  opipe_value *values = opi_arena_copy(arena, abi.values, abi.n_values * sizeof(*values));
  if (values == NULL)
    return OPIPE_E_NOMEM;
  for (uint32_t i = 0; i < g->n_inputs; ++i) {
    const opi_value *in = test_input_of(m, g->values[g->inputs[i]].name);
    opipe_value *v = &values[g->inputs[i]];
    v->role = OPIPE_VALUE_CONSTANT;
    v->data = in != NULL ? in->data : test_fill(arena, &g->values[g->inputs[i]], i + 1);
    if (in != NULL && in->n_bytes != v->n_bytes)
      return opi_fail(err, OPIPE_E_INVALID, "input '%s' has another size", v->name);
  }
  for (uint32_t o = 0; o < g->n_outputs; ++o) {
    values[g->outputs[o]].slot = o;
    outs[o] = opi_arena_alloc(arena, values[g->outputs[o]].n_bytes + 1);
  }
  abi.values = values;
  abi.n_boundaries = g->n_outputs;
  return evaluator->run(evaluator->ctx, &abi, outs, err);
}

#endif /* TESTS_LOADER_FUSION_MODELS_H */
