/* SPDX-License-Identifier: Apache-2.0 */
/* Tails: work that products do along, before they round.
 *
 *   product -> Add of a row -> Add of a value of its shape      bias, C
 *   product -> Add of a row -> Gelu (tanh)                      GELU; what it is of is written too
 *                                                               where others read it
 *   product -> ActivationGrad of Gelu (tanh)                    times the derivative
 *   product -> Add of a row -> Split along the last axis        a product for each part, where
 * these are large
 *
 * with views of the same rows between. The product stands in the place of the last of them, where
 * all that it reads is there; values between exist no more. A tail is tried before it is kept: what
 * the library refuses is cut off from its end. Shapes and types alone say what is kept, so that the
 * same nodes have the same bits in every program.
 */
#include "ops/rule.h"

enum {
  SPLIT_LEAST = 1 << 22, /* elements of a part: hundreds of the library's tiles */
  EPILOGUE_COLUMNS = 8   /* distances of aux are multiples of this, by the library's rule */
};

/* A tail as it grows. */
typedef struct walk {
  const opipe_program *program;
  cuda_tail tail;
  uint32_t value; /* made by its last node */
  uint32_t at;    /* that node */
  int64_t n;      /* columns */
  bool has_row;   /* of the product's own, or in the tail */
} walk;

static const opipe_value *value_of(const walk *w, uint32_t value) {
  return &w->program->graph->values[value];
}

static void append(walk *w, uint32_t node) {
  w->tail.nodes[w->tail.n++] = node;
  w->value = w->program->graph->nodes[node].out[0];
  w->at = node;
}

/* The same rows under another shape. */
static bool take_view(walk *w, uint32_t i) {
  const opipe_node *node = &w->program->graph->nodes[i];
  if ((!cuda_named(node, "", "Reshape") && !cuda_named(node, "", "Identity")) || node->n_out != 1)
    return false;
  const opipe_value *x = value_of(w, w->value), *y = value_of(w, node->out[0]);
  if (node->in[0] != w->value || y->dtype != x->dtype || cuda_elems(y) != cuda_elems(x) ||
      y->rank == 0 || y->shape[y->rank - 1] != w->n)
    return false;
  append(w, i);
  return true;
}

static bool take_add(walk *w, uint32_t i) {
  const opipe_node *node = &w->program->graph->nodes[i];
  if (!cuda_named(node, "", "Add") || node->n_in != 2 || node->n_out != 1 ||
      node->out[0] == OPIPE_NONE)
    return false;
  const uint32_t other = node->in[node->in[0] == w->value ? 1 : 0];
  const opipe_value *y = value_of(w, node->out[0]);
  if (other == OPIPE_NONE || !cuda_same_shape(y, value_of(w, w->value)))
    return false;
  const opipe_value *c = value_of(w, other);
  const bool is_row =
      c->rank > 0 && c->shape[c->rank - 1] == w->n && cuda_elems(c) == (uint64_t)w->n;
  if (c->dtype != y->dtype || c->role == OPIPE_VALUE_SCALAR || c->role == OPIPE_VALUE_GRADIENT)
    return false;
  if (is_row && !w->has_row) {
    w->tail.row = other;
    w->has_row = true;
  } else if (cuda_same_shape(c, y) && w->tail.addend == OPIPE_NONE) {
    w->tail.addend = other;
  } else {
    return false;
  }
  append(w, i);
  return true;
}

static bool takes_function(const walk *w) {
  return cuda_is_half(value_of(w, w->value)->dtype) && w->n % EPILOGUE_COLUMNS == 0 &&
         w->tail.addend == OPIPE_NONE;
}

static bool take_gelu(walk *w, uint32_t i, uint32_t aux) {
  const opipe_node *node = &w->program->graph->nodes[i];
  if (!cuda_named(node, "", "Gelu") || node->n_out != 1 || node->out[0] == OPIPE_NONE ||
      strcmp(opipe_attr_string(node, "approximate", "none"), "tanh") != 0 || !takes_function(w))
    return false;
  w->tail.through = CUDA_THROUGH_GELU;
  w->tail.aux = aux;
  append(w, i);
  return true;
}

static bool take_gelu_grad(walk *w, uint32_t i) {
  const opipe_node *node = &w->program->graph->nodes[i];
  if (!cuda_named(node, "opipe", "ActivationGrad") || node->n_in != 2 || node->n_out != 1 ||
      node->in[0] != w->value || node->in[1] == OPIPE_NONE || node->out[0] == OPIPE_NONE ||
      strcmp(opipe_attr_string(node, "activation", ""), "GeluTanh") != 0 || !takes_function(w) ||
      w->has_row)
    return false;
  const opipe_value *x = value_of(w, node->in[1]);
  if (!cuda_same_shape(x, value_of(w, w->value)) || x->dtype != value_of(w, w->value)->dtype)
    return false;
  w->tail.through = CUDA_THROUGH_DGELU;
  w->tail.aux = node->in[1];
  append(w, i);
  return true;
}

static bool take_split(walk *w, uint32_t i) {
  const opipe_graph *graph = w->program->graph;
  const opipe_node *node = &graph->nodes[i];
  const opipe_value *x = value_of(w, w->value);
  const uint32_t size = cuda_size(x);
  int64_t columns = 0;
  if (!cuda_named(node, "", "Split") || w->tail.addend != OPIPE_NONE || node->n_out < 1 ||
      opipe_attr_int(node, "axis", 0) != (int64_t)x->rank - 1)
    return false;
  if (w->program->device->invariant) /* how large a part is depends on the rows */
    return false;
  for (uint32_t k = 0; k < node->n_out; ++k) {
    const opipe_value *y = node->out[k] != OPIPE_NONE ? value_of(w, node->out[k]) : NULL;
    const int64_t n = y != NULL && y->rank == x->rank ? y->shape[y->rank - 1] : 0;
    if (n <= 0 || y->dtype != x->dtype || n * size % 16 != 0 || cuda_elems(y) < SPLIT_LEAST ||
        cuda_elems(y) != cuda_elems(x) / (uint64_t)w->n * (uint64_t)n)
      return false;
    columns += n;
  }
  if (columns != w->n)
    return false;
  w->tail.splits = true;
  append(w, i);
  return true;
}

/* Does the first reader of the value take GELU of it? The value is then written beside. */
static bool take_gelu_and_keep(walk *w) {
  const opipe_graph *graph = w->program->graph;
  const uint32_t role = value_of(w, w->value)->role;
  if (role != OPIPE_VALUE_TEMP && role != OPIPE_VALUE_OUTPUT)
    return false;
  for (uint32_t i = w->at + 1; i < graph->n_nodes; ++i) {
    for (uint32_t k = 0; k < graph->nodes[i].n_in; ++k) {
      if (graph->nodes[i].in[k] == w->value)
        return !w->program->matched.taken[i] && take_gelu(w, i, w->value);
    }
  }
  return false;
}

/* One node more. False: the tail has its end. */
static bool grow(walk *w) {
  if (w->tail.n == CUDA_TAIL_NODES || w->tail.through != CUDA_THROUGH_NOTHING || w->tail.splits)
    return false;
  const uint32_t i = w->program->matched.reader[w->value];
  if (value_of(w, w->value)->role != OPIPE_VALUE_TEMP || i >= w->program->graph->n_nodes)
    return take_gelu_and_keep(w);
  return !w->program->matched.taken[i] && w->program->matched.hosts[i] == OPIPE_NONE &&
         (take_view(w, i) || take_add(w, i) || take_gelu(w, i, OPIPE_NONE) ||
          take_gelu_grad(w, i) || take_split(w, i));
}

/* One product whose rows are those of its result. */
static bool is_host(const opipe_program *program, const opipe_node *node, bool *out_has_row) {
  const opipe_graph *graph = program->graph;
  const bool gemm = cuda_named(node, "", "Gemm");
  if (!(gemm || cuda_named(node, "", "MatMul") || cuda_named(node, "com.microsoft", "FusedMatMul")))
    return false;
  if (node->n_out != 1 || node->out[0] == OPIPE_NONE || node->n_in < 2 ||
      node->in[1] == OPIPE_NONE || program->matched.adds_to[node->out[0]] != OPIPE_NONE)
    return false;
  const opipe_value *y = &graph->values[node->out[0]], *b = &graph->values[node->in[1]];
  *out_has_row = gemm && node->n_in > 2 && node->in[2] != OPIPE_NONE;
  return y->rank > 0 && b->rank >= 2 && cuda_elems(y) > 0 &&
         (y->dtype == OPIPE_FLOAT || cuda_is_half(y->dtype));
}

/* The tail of up to `most` nodes; views at its end are left to themselves. */
static cuda_tail tail_of(const opipe_program *program, uint32_t host, uint32_t most) {
  const opipe_node *node = &program->graph->nodes[host];
  walk w = {.program = program,
            .tail = {.row = OPIPE_NONE, .addend = OPIPE_NONE, .aux = OPIPE_NONE},
            .at = host};
  if (!is_host(program, node, &w.has_row))
    return w.tail;
  const opipe_value *y = &program->graph->values[node->out[0]];
  uint32_t n = 0;
  w.value = node->out[0];
  w.n = y->shape[y->rank - 1];
  while (w.tail.n < most && grow(&w)) {
    const opipe_node *last = &program->graph->nodes[w.at];
    n = cuda_named(last, "", "Reshape") || cuda_named(last, "", "Identity") ? n : w.tail.n;
  }
  w.tail.n = n;
  return w.tail;
}

/* The longest tail that the host's rule takes. */
static opipe_status settle(opipe_program *program, opipe_program *probe, uint32_t host,
                           opipe_error *err) {
  cuda_tail *tail = NULL;
  opipe_status status = OPIPE_OK;
  cuda_tail tried = tail_of(program, host, CUDA_TAIL_NODES);
  if (tried.n == 0)
    return OPIPE_OK;
  tail = CUDA_POOL_ARRAY(&program->pool, cuda_tail, 1);
  if (tail == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for %u nodes", program->graph->n_nodes);
  for (program->matched.tails[host] = tail; tried.n > 0;
       tried = tail_of(program, host, tried.n - 1)) {
    opipe_error why = OPIPE_ERROR_INIT;
    *tail = tried;
    status = cuda_probe(probe, host, &why);
    if (status >= 0)
      break;
    if (status == OPIPE_E_NOMEM || status == OPIPE_E_DEVICE)
      return opipe_fail(err, status, "%s", why.message);
  }
  if (tried.n == 0) {
    program->matched.tails[host] = NULL;
    return OPIPE_OK;
  }
  program->matched.taken[host] = true;
  for (uint32_t i = 0; i + 1 < tail->n; ++i)
    program->matched.taken[tail->nodes[i]] = true;
  program->matched.hosts[tail->nodes[tail->n - 1]] = host;
  return OPIPE_OK;
}

opipe_status cuda_match_tails(opipe_program *program, opipe_error *err) {
  const uint32_t n = program->graph->n_nodes;
  opipe_program probe;
  program->matched.tails = CUDA_POOL_ARRAY(&program->pool, cuda_tail *, n);
  program->matched.hosts = CUDA_POOL_ARRAY(&program->pool, uint32_t, n);
  if (program->matched.tails == NULL || program->matched.hosts == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for %u nodes", n);
  for (uint32_t i = 0; i < n; ++i)
    program->matched.hosts[i] = OPIPE_NONE;
  opipe_status status = cuda_probe_make(program, &probe, err);
  for (uint32_t i = 0; status >= 0 && i < n; ++i) {
    if (!program->matched.taken[i])
      status = settle(program, &probe, i, err);
  }
  cuda_pool_release(&probe.pool);
  return status;
}

const cuda_tail *cuda_tail_of(const opipe_program *program, const opipe_node *node) {
  return program->matched.tails != NULL ? program->matched.tails[node - program->graph->nodes]
                                        : NULL;
}
