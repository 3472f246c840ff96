/* SPDX-License-Identifier: Apache-2.0 */
/* Values whose rows are no whole vectors and that products read or make: they lie in rows of whole
 * lines of memory, so that these products take the library's fast kernels and nothing is copied.
 *
 *   product, the loss' gradient -> views of the same rows -> products, losses, sums of columns
 *
 * Only those walk their operands by rows of any distance, so they alone may touch such a value: a
 * temporary. Others' rows are copied where a product wants them so (ops/padded.c). Shapes and types
 * alone decide, and what else reads the value.
 */
#include "ops/rule.h"

enum {
  VECTOR_BYTES = 16,
  LINE_BYTES = 128,
  LEAST_REUSE = 64 /* pairs of operations for each byte that is moved: several times what a chip
                      does in the same time */
};

int64_t cuda_pitch(uint32_t dtype, int64_t n) {
  const int64_t per_line = LINE_BYTES / (int64_t)(opipe_dtype_bits(dtype) / 8);
  return (n + per_line - 1) / per_line * per_line;
}

bool cuda_is_odd_row(uint32_t dtype, int64_t distance) {
  return distance * (int64_t)(opipe_dtype_bits(dtype) / 8) % VECTOR_BYTES != 0;
}

bool cuda_takes_vectors(const opipe_device *device, uint32_t dtype) {
  return cuda_is_half(dtype) || (dtype == OPIPE_FLOAT && device->tf32);
}

bool cuda_is_large_product(const opipe_device *device, int64_t m, int64_t n, int64_t k) {
  return device->pad > 0 &&
         2.0 * (double)m * (double)n * (double)k >= (double)(UINT64_C(1) << device->pad);
}

bool cuda_repays_moves(int64_t other, int64_t moved_bytes) {
  return other >= LEAST_REUSE * moved_bytes;
}

int64_t cuda_row_distance(const opipe_program *program, uint32_t value) {
  const opipe_value *v = &program->graph->values[value];
  const int64_t pitch = program->matched.pitches != NULL ? program->matched.pitches[value] : 0;
  return pitch != 0 ? pitch : v->rank > 0 ? v->shape[v->rank - 1] : 1;
}

uint64_t cuda_stored_bytes(const opipe_program *program, uint32_t value) {
  const opipe_value *v = &program->graph->values[value];
  if (program->matched.pitches == NULL || program->matched.pitches[value] == 0)
    return v->n_bytes;
  return cuda_elems(v) / (uint64_t)v->shape[v->rank - 1] *
         (uint64_t)program->matched.pitches[value] * cuda_size(v);
}

/* ---- who touches a value ---- */

/* Values that are one: views of the same rows. */
typedef struct family {
  opipe_program *program;
  uint32_t *values; /* [n_values] */
  uint32_t n;
  int64_t row;   /* elements */
  bool is_large; /* a product of it is */
} family;

/* False: it cannot be one of them. */
static bool join(family *f, uint32_t value) {
  const opipe_program *program = f->program;
  const opipe_value *v = &program->graph->values[value], *first;
  for (uint32_t i = 0; i < f->n; ++i) {
    if (f->values[i] == value)
      return true;
  }
  first = &program->graph->values[f->n > 0 ? f->values[0] : value];
  if (v->role != OPIPE_VALUE_TEMP || v->rank < 2 || v->shape[v->rank - 1] != f->row ||
      v->dtype != first->dtype || cuda_elems(v) != cuda_elems(first) ||
      program->matched.adds_to[value] != OPIPE_NONE ||
      program->matched.parts[value].whole != OPIPE_NONE)
    return false;
  f->values[f->n++] = value;
  return true;
}

static bool is_view(const opipe_node *node) {
  return (cuda_named(node, "", "Reshape") || cuda_named(node, "", "Identity")) && node->n_in > 0 &&
         node->in[0] != OPIPE_NONE && node->n_out == 1 && node->out[0] != OPIPE_NONE;
}

/* A product of two operands and nothing else. */
static bool is_product(const opipe_node *node) {
  const bool gemm = cuda_named(node, "", "Gemm");
  return (gemm || cuda_named(node, "", "MatMul") ||
          cuda_named(node, "com.microsoft", "FusedMatMul")) &&
         (!gemm || node->n_in < 3 || node->in[2] == OPIPE_NONE) && node->n_in >= 2 &&
         node->in[0] != OPIPE_NONE && node->in[1] != OPIPE_NONE && node->n_out == 1 &&
         node->out[0] != OPIPE_NONE;
}

/* Is it sums of columns that are added to an accumulator, and the value what is summed? */
static bool is_column_sum(const opipe_program *program, const opipe_node *node, uint32_t i,
                          int64_t row) {
  return cuda_named(node, "", "ReduceSum") && i == 0 && node->n_out == 1 &&
         node->out[0] != OPIPE_NONE && program->matched.adds_to[node->out[0]] != OPIPE_NONE &&
         cuda_elems(&program->graph->values[node->out[0]]) == (uint64_t)row;
}

/* Is it a loss whose scores, or the scores' gradient, are input or output `i`, classes last? */
static bool is_loss(const opipe_graph *graph, const opipe_node *node, uint32_t i, bool out) {
  const bool grad = cuda_named(node, "opipe", "SoftmaxCrossEntropyLossGrad");
  const bool known = grad || cuda_named(node, "", "SoftmaxCrossEntropyLoss") ||
                     cuda_named(node, "", "NegativeLogLikelihoodLoss");
  const uint32_t value = known ? (out ? node->out[i] : node->in[i]) : OPIPE_NONE;
  return known && i == (grad && !out ? 1u : 0u) && (grad || !out) && value != OPIPE_NONE &&
         graph->values[value].rank == 2;
}

/* Is the product large, so that what is moved once for its operand `i` (2: its result) pays? */
static bool is_large(const opipe_program *program, const opipe_node *node, uint32_t i) {
  const opipe_graph *graph = program->graph;
  const opipe_value *a = &graph->values[node->in[0]], *b = &graph->values[node->in[1]];
  const opipe_value *y = &graph->values[node->out[0]];
  if (a->rank < 2 || b->rank < 2 || y->rank < 2 || cuda_elems(y) == 0)
    return false;
  const bool turned = opipe_attr_int(node, "transA", 0) != 0;
  const int64_t k = a->shape[a->rank - (turned ? 2 : 1)], m = y->shape[y->rank - 1];
  const int64_t n = (int64_t)cuda_elems(y) / m;
  const int64_t other = i == 0 ? m : i == 1 ? (b->rank == 2 ? n : y->shape[y->rank - 2]) : k;
  return cuda_is_large_product(program->device, m, n, k) &&
         cuda_repays_moves(other, 2 * (int64_t)cuda_size(a));
}

/* Does the node take the value by rows of any distance, or not touch it? */
static bool suits(family *f, uint32_t i, uint32_t value) {
  const opipe_graph *graph = f->program->graph;
  const opipe_node *node = &graph->nodes[i];
  for (uint32_t k = 0; k < node->n_in; ++k) {
    if (node->in[k] == OPIPE_NONE || cuda_narrow(f->program, node->in[k]) != value)
      continue;
    if (is_view(node) && k == 0) {
      if (!join(f, node->out[0]))
        return false;
    } else if (is_product(node) && node->in[k] == value) {
      f->is_large |= is_large(f->program, node, k);
    } else if (!is_column_sum(f->program, node, k, f->row) &&
               (!is_loss(graph, node, k, false) || graph->values[node->in[k]].shape[1] != f->row)) {
      return false;
    }
  }
  for (uint32_t k = 0; k < node->n_out; ++k) {
    if (node->out[k] == OPIPE_NONE || cuda_narrow(f->program, node->out[k]) != value)
      continue;
    if (is_view(node)) {
      if (!join(f, node->in[0]))
        return false;
    } else if (is_product(node)) {
      f->is_large |= is_large(f->program, node, 2);
    } else if (!is_loss(graph, node, k, true) || graph->values[node->out[k]].shape[1] != f->row) {
      return false;
    }
  }
  return true;
}

static bool touches(const family *f, const opipe_node *node) {
  for (uint32_t v = 0; v < f->n; ++v) {
    for (uint32_t k = 0; k < node->n_in; ++k) {
      if (node->in[k] != OPIPE_NONE && cuda_narrow(f->program, node->in[k]) == f->values[v])
        return true;
    }
    for (uint32_t k = 0; k < node->n_out; ++k) {
      if (node->out[k] != OPIPE_NONE && cuda_narrow(f->program, node->out[k]) == f->values[v])
        return true;
    }
  }
  return false;
}

/* ---- matching ---- */

/* The family of a value that the node makes. False: there is none. */
static bool gather(family *f, uint32_t i) {
  const opipe_program *program = f->program;
  const opipe_graph *graph = program->graph;
  const opipe_node *node = &graph->nodes[i];
  f->n = 0;
  f->is_large = false;
  if (node->n_out < 1 || node->out[0] == OPIPE_NONE ||
      (!is_product(node) && !is_loss(graph, node, 0, true)))
    return false;
  const uint32_t value = cuda_narrow(program, node->out[0]);
  const opipe_value *v = &graph->values[value];
  f->row = v->rank > 0 ? v->shape[v->rank - 1] : 0;
  if (!cuda_takes_vectors(program->device, v->dtype) || !cuda_is_odd_row(v->dtype, f->row) ||
      program->matched.pitches[value] != 0 || cuda_elems(v) == 0 || !join(f, value))
    return false;
  for (uint32_t at = 0; at < f->n; ++at) {
    for (uint32_t k = 0; k < graph->n_nodes; ++k) {
      if (!program->matched.taken[k] && !suits(f, k, f->values[at]))
        return false;
    }
  }
  return f->is_large;
}

/* Asks those that are to touch the values. */
static opipe_status ask(const family *f, opipe_program *probe, bool *out_taken, opipe_error *err) {
  const opipe_program *program = f->program;
  *out_taken = true;
  for (uint32_t i = 0; *out_taken && i < program->graph->n_nodes; ++i) {
    const opipe_node *node = &program->graph->nodes[i];
    opipe_error why = OPIPE_ERROR_INIT;
    if (program->matched.taken[i] || is_view(node) || !touches(f, node))
      continue;
    const opipe_status status = cuda_probe(probe, i, &why);
    if (status == OPIPE_E_NOMEM || status == OPIPE_E_DEVICE)
      return opipe_fail(err, status, "%s", why.message);
    *out_taken = status >= 0;
  }
  return OPIPE_OK;
}

opipe_status cuda_match_pitches(opipe_program *program, opipe_error *err) {
  const opipe_graph *graph = program->graph;
  family f = {.program = program};
  opipe_program probe;
  program->matched.pitches = CUDA_POOL_ARRAY(&program->pool, int64_t, graph->n_values);
  f.values = CUDA_POOL_ARRAY(&program->pool, uint32_t, graph->n_values);
  if (program->matched.pitches == NULL || f.values == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for %u values", graph->n_values);
  opipe_status status = cuda_probe_make(program, &probe, err);
  for (uint32_t i = 0; status >= 0 && i < graph->n_nodes; ++i) {
    bool taken = false;
    if (program->matched.taken[i] || !gather(&f, i))
      continue;
    for (uint32_t k = 0; k < f.n; ++k)
      program->matched.pitches[f.values[k]] = cuda_pitch(graph->values[f.values[k]].dtype, f.row);
    status = ask(&f, &probe, &taken, err);
    for (uint32_t k = 0; !taken && k < f.n; ++k)
      program->matched.pitches[f.values[k]] = 0;
  }
  cuda_pool_release(&probe.pool);
  return status;
}
