/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a training graph as one program of the CPU backend: forward, loss, backward. Inputs and
 * per-run scalars are constants; what an Accumulate would add is an output instead.
 */
#ifndef TESTS_LOADER_GRADIENT_TRAINING_H
#define TESTS_LOADER_GRADIENT_TRAINING_H

#include <math.h>

#include "loader/gradient/gradient.h"
#include "tests/loader/fusion/models.h"

typedef struct test_feed {
  const char *name;
  const void *data;
  uint64_t n_bytes;
} test_feed;

typedef struct test_step {
  const opi_training *t;
  const test_feed *feeds;
  uint32_t n_feeds;
  int64_t scalars[OPI_SCALAR_TABLE]; /* doubles by their bits */
  double count;                      /* COUNT; 0: this micro-batch's own */
  opi_arena *arena;
} test_step;

static inline int64_t test_double_bits(double x) {
  int64_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}

static inline opipe_status test_feed_all(const test_step *s, const opi_graph *g,
                                         opipe_value *values, opipe_error *err) {
  for (uint32_t i = 0; i < g->n_inputs; ++i) {
    opipe_value *v = &values[g->inputs[i]];
    v->role = OPIPE_VALUE_CONSTANT;
    for (uint32_t f = 0; f < s->n_feeds; ++f) {
      if (strcmp(s->feeds[f].name, v->name) != 0)
        continue;
      if (s->feeds[f].n_bytes != v->n_bytes)
        return opi_fail(err, OPIPE_E_INVALID, "input '%s' has another size", v->name);
      v->data = s->feeds[f].data;
    }
    if (v->data == NULL)
      v->data = test_fill(s->arena, &g->values[g->inputs[i]], i + 1);
  }
  return OPIPE_OK;
}

/* Values `wanted` of graph g; out [n] point to dense data. At most 60 at a time go through one run.
 */
static inline opipe_status test_values(const test_step *s, const opi_graph *g,
                                       const uint32_t *wanted, uint32_t n, const void **out,
                                       opipe_error *err) {
  const opi_evaluator *evaluator = test_backend_evaluator();
  for (uint32_t first = 0; first < n; first += 60) {
    opipe_graph abi;
    void *data[60];
    uint32_t n_out = 0, n_nodes = 0;
    OPI_TRY(opi_graph_to_abi(g, s->arena, &abi, err));
    opipe_value *values = opi_arena_copy(s->arena, abi.values, abi.n_values * sizeof(*values));
    opipe_node *nodes = opi_arena_copy(s->arena, abi.nodes, abi.n_nodes * sizeof(*nodes));
    OPI_TRY(test_feed_all(s, g, values, err));
    for (uint32_t o = 0; o < g->n_outputs; ++o)
      values[g->outputs[o]].role = OPIPE_VALUE_TEMP;
    for (uint32_t k = 0; k < OPI_SCALAR_TABLE; ++k) {
      if (g != s->t->graph || s->t->scalars[k] == OPIPE_NONE)
        continue;
      values[s->t->scalars[k]].role = OPIPE_VALUE_CONSTANT;
      values[s->t->scalars[k]].data = &s->scalars[k];
    }
    for (uint32_t i = 0; i < abi.n_nodes; ++i) {
      if (strcmp(abi.nodes[i].op, "Accumulate") != 0)
        nodes[n_nodes++] = abi.nodes[i];
    }
    for (uint32_t i = first; i < n && i < first + 60; ++i) {
      opipe_value *v = &values[wanted[i]];
      if (v->role == OPIPE_VALUE_TEMP) {
        v->role = OPIPE_VALUE_OUTPUT;
        v->slot = n_out;
        data[n_out++] = opi_arena_alloc(s->arena, v->n_bytes + 1);
      }
      out[i] = v->role == OPIPE_VALUE_OUTPUT ? data[v->slot] : v->data;
    }
    abi.values = values;
    abi.nodes = nodes;
    abi.n_nodes = n_nodes;
    abi.n_boundaries = n_out;
    if (n_out != 0)
      OPI_TRY(evaluator->run(evaluator->ctx, &abi, data, err));
  }
  return OPIPE_OK;
}

/* COUNT of this micro-batch. */
static inline opipe_status test_count_of(const test_step *s, double *out, opipe_error *err) {
  const void *data;
  *out = s->t->count;
  if (s->t->count_graph == NULL)
    return OPIPE_OK;
  OPI_TRY(test_values(s, s->t->count_graph, s->t->count_graph->outputs, 1, &data, err));
  memcpy(out, data, sizeof(*out));
  return OPIPE_OK;
}

/* The addend of the Accumulate node of `gradient`. */
static inline uint32_t test_addend(const opi_training *t, uint32_t gradient) {
  return t->graph->nodes[t->graph->values[gradient].producer].in[0];
}

/* The gradient of a parameter over all stages, as doubles in `arena`; NULL: none. */
static inline double *test_gradient(const test_step *s, const opi_train_param *p,
                                    const void *const *addends, size_t *out_n) {
  const opi_value *v = &s->t->graph->values[p->value];
  const size_t size = opi_test_dtype_bytes(v->dtype);
  const size_t n = size != 0 ? v->n_bytes / size : 0;
  double *sum = opi_arena_array(s->arena, n + 1, sizeof(double));
  for (uint32_t k = 0; k < p->n_gradients; ++k) {
    const uint32_t dtype = s->t->graph->values[test_addend(s->t, p->gradients[k])].dtype;
    for (size_t i = 0; i < n; ++i)
      sum[i] += opi_test_element(addends[k], i, dtype);
  }
  *out_n = n;
  return sum;
}

/* Loss and all gradients, params in order; gradients[p] NULL where a parameter has none. */
static inline opipe_status test_run_step(test_step *s, double *out_loss, double **gradients,
                                         size_t *sizes, opipe_error *err) {
  const opi_training *t = s->t;
  uint32_t n = 1, at = 1;
  for (uint32_t p = 0; p < t->n_params; ++p)
    n += t->params[p].n_gradients;
  uint32_t *wanted = opi_arena_array(s->arena, n, sizeof(*wanted));
  const void **out = opi_arena_array(s->arena, n, sizeof(*out));
  double count = s->count;
  if (count == 0)
    OPI_TRY(test_count_of(s, &count, err));
  s->scalars[OPI_SCALAR_COUNT] = test_double_bits(count);
  if (s->scalars[OPI_SCALAR_SCALE] == 0)
    s->scalars[OPI_SCALAR_SCALE] = test_double_bits(1);
  wanted[0] = t->loss;
  for (uint32_t p = 0; p < t->n_params; ++p) {
    for (uint32_t k = 0; k < t->params[p].n_gradients; ++k)
      wanted[at++] = test_addend(t, t->params[p].gradients[k]);
  }
  OPI_TRY(test_values(s, t->graph, wanted, n, out, err));
  *out_loss = opi_test_element(out[0], 0, OPIPE_FLOAT);
  at = 1;
  for (uint32_t p = 0; p < t->n_params; ++p) {
    gradients[p] =
        t->params[p].n_gradients == 0 ? NULL : test_gradient(s, &t->params[p], out + at, &sizes[p]);
    at += t->params[p].n_gradients;
  }
  return OPIPE_OK;
}

#endif /* TESTS_LOADER_GRADIENT_TRAINING_H */
