/* SPDX-License-Identifier: Apache-2.0 */
/* A model bound to a sequence of tokens, cut into slices that are run one after the other. */
#ifndef TESTS_LOADER_PASSES_SEQUENCE_H
#define TESTS_LOADER_PASSES_SEQUENCE_H

#include <math.h>

#include "tests/loader/fusion/models.h"

#include "loader/passes/tokens.h"

typedef struct sequence {
  test_model m;
  opi_bound *whole, *other;
  opi_tokens *tokens;
  const opi_evaluator *evaluator;
  opi_arena arena;
  int64_t n_tokens;
} sequence;

static inline opipe_status bind_length(const sequence *q, int64_t rows, int64_t n_tokens,
                                       uint32_t flags, opi_bound **out_bound, opipe_error *err) {
  const opi_dim_binding dims[] = {{"batch", rows}, {"seq", n_tokens}};
  const opi_bind_options options = {.flags = flags | OPI_BIND_KEEP_PARAMETERS,
                                    .dims = dims,
                                    .n_dims = 2,
                                    .evaluator = q->evaluator,
                                    .allocator = opi_allocator_system()};
  return opi_bind(q->m.model, &options, out_bound, err);
}

static inline void close_sequence(sequence *q) {
  opi_tokens_free(q->tokens);
  opi_bound_free(q->whole);
  opi_bound_free(q->other);
  test_unload(&q->m);
  opi_arena_release(&q->arena);
}

/* Binds the rows and tokens of the model's first input. */
static inline bool bind_sequence(sequence *q, const char *what, uint32_t flags) {
  opipe_error err = OPIPE_ERROR_INIT;
  const int64_t rows = q->m.inputs[0].shape[0];
  q->n_tokens = q->m.inputs[0].shape[1];
  if (bind_length(q, rows, q->n_tokens, flags, &q->whole, &err) < 0 ||
      bind_length(q, rows, q->n_tokens - 1, flags, &q->other, &err) < 0 ||
      opi_tokens_find(q->whole, q->n_tokens, q->other, q->n_tokens - 1, opi_allocator_system(),
                      &q->tokens, &err) < 0) {
    OPI_FAIL("%s: %s", what, err.message);
    return false;
  }
  return true;
}

static inline bool open_sequence(sequence *q, const char *folder, uint32_t flags) {
  char path[1024];
  opipe_error err = OPIPE_ERROR_INIT;
  memset(q, 0, sizeof(*q));
  opi_arena_init(&q->arena, opi_allocator_system(), 0);
  (void)snprintf(path, sizeof(path), "%s/model.onnx", folder);
  q->evaluator = test_backend_evaluator();
  if (!test_load(&q->m, path, &err) || !test_read_set(&q->m, folder, 0)) {
    OPI_FAIL("%s: %s", folder, err.message);
    return false;
  }
  return bind_sequence(q, folder, flags);
}

/* Feeds of one slice: the data set's inputs, and what the slice before left. */
typedef struct kept {
  const char *name;
  void *data;
} kept;

static inline opipe_status run_slice(sequence *q, const opi_token_slice *slice, kept *states,
                                     void **outs, opipe_error *err) {
  test_model m = q->m;
  for (uint32_t i = 0; i < slice->n_states; ++i) {
    if (slice->states[i].past == OPIPE_NONE)
      continue;
    opi_value v = slice->bound->graph->values[slice->states[i].past];
    v.data = states[i].data;
    m.inputs[m.n_inputs++] = v;
  }
  OPI_TRY(test_run(&m, slice->bound, q->evaluator, &q->arena, outs, err));
  for (uint32_t i = 0, at = 1; i < slice->n_states; ++i) {
    if (slice->states[i].present != OPIPE_NONE)
      states[i].data = outs[at++];
  }
  return OPIPE_OK;
}

/* Largest difference between the slice's rows and those of the whole output [batch, tokens, n]. */
static inline double difference(const sequence *q, const float *whole, const opi_token_slice *slice,
                                const float *part, int64_t first, double *io_largest) {
  const opi_value *y = &slice->bound->graph->values[slice->outputs[0].value];
  const int64_t batch = y->shape[0], length = y->shape[1], n = y->shape[2];
  double worst = 0;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t i = 0; i < length * n; ++i) {
      const double want = (double)whole[(b * q->n_tokens + first) * n + i];
      worst = fmax(worst, fabs(want - (double)part[b * length * n + i]));
      *io_largest = fmax(*io_largest, fabs(want));
    }
  }
  return worst;
}

/* The slices give the rows of the whole; the last takes what is left. */
static inline void check_slices(sequence *q, const char *folder, const int64_t *lengths,
                                uint32_t n) {
  opipe_error err = OPIPE_ERROR_INIT;
  kept states[64] = {{0}};
  void *whole[TEST_MAX_TENSORS], *outs[TEST_MAX_TENSORS];
  int64_t first = 0;
  double worst = 0, largest = 0;
  if (test_run(&q->m, q->whole, q->evaluator, &q->arena, whole, &err) < 0) {
    OPI_FAIL("%s: %s", folder, err.message);
    return;
  }
  const opi_graph *g = q->whole->graph;
  for (uint32_t i = 0; i < n && first < q->n_tokens; ++i) {
    opi_token_slice *slice = NULL;
    int64_t length = i + 1 == n ? q->n_tokens - first : lengths[i];
    if (length > q->n_tokens - first)
      length = q->n_tokens - first;
    const opi_token_wish wish = {&g->values[g->outputs[0]].name, 1, first, length};
    opipe_status status =
        opi_slice_tokens(q->tokens, &wish, q->evaluator, opi_allocator_system(), &slice, &err);
    if (status >= 0)
      status = run_slice(q, slice, states, outs, &err);
    if (status < 0) {
      OPI_FAIL("%s: tokens %ld to %ld: %s", folder, (long)first, (long)(first + length),
               err.message);
    }
    if (status >= 0)
      worst = fmax(worst, difference(q, whole[0], slice, outs[0], first, &largest));
    opi_token_slice_free(slice);
    first += length;
    if (status < 0)
      break;
  }
  (void)opi_test_check(worst <= 1e-5 * largest && largest != 0, __FILE__, __LINE__, false,
                       "%s: slices differ by %g of %g", folder, worst, largest);
}

#endif /* TESTS_LOADER_PASSES_SEQUENCE_H */
