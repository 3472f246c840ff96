/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients that are added straight into their accumulator.
 *
 *   product, column sum, GatherGrad, norm's GradScale -> views -> Accumulate
 *
 * becomes the producer alone, its output redirected to the accumulator; a sum of two such producers
 * becomes both of them. The producer's rule sees a GRADIENT as its output and takes a kernel that
 * adds. Only temporaries with one reader disappear.
 */
#include "codes.h"
#include "fuse.h"

static bool named(const opipe_node *node, const char *domain, const char *name) {
  const char *own =
      node->domain != NULL && strcmp(node->domain, "ai.onnx") != 0 ? node->domain : "";
  return strcmp(node->op, name) == 0 && strcmp(own, domain) == 0;
}

static bool is_f32(const cpu_fuser *f, uint32_t value) {
  return value != OPIPE_NONE && f->graph->values[value].dtype == OPIPE_FLOAT;
}

/* ---- weights of half type ---- */

bool cpu_takes_wide(const opipe_node *node) {
  return named(node, "", "MatMul") || named(node, "", "Gemm") ||
         named(node, "com.microsoft", "FusedMatMul");
}

void cpu_match_casts(cpu_fuser *f) {
  const opipe_graph *graph = f->graph;
  for (uint32_t i = 0; i < graph->n_nodes; ++i) {
    const opipe_node *cast = &graph->nodes[i];
    if (!named(cast, "", "Cast") || cast->n_in != 1 || cast->n_out != 1 ||
        cast->in[0] == OPIPE_NONE || cast->out[0] == OPIPE_NONE)
      continue;
    const opipe_value *in = &graph->values[cast->in[0]];
    const opipe_value *out = &graph->values[cast->out[0]];
    if (in->role != OPIPE_VALUE_PARAMETER || in->dtype != OPIPE_FLOAT || in->rank != 2 ||
        out->role != OPIPE_VALUE_TEMP || !cpu_is_half(out->dtype))
      continue;
    bool all = true;
    for (uint32_t u = f->first[cast->out[0]]; u < f->first[cast->out[0] + 1]; ++u) {
      const opipe_node *user = &graph->nodes[f->users[u]];
      all = all && cpu_takes_wide(user) && user->in[1] == cast->out[0] &&
            user->in[0] != cast->out[0] && (user->n_in < 3 || user->in[2] == OPIPE_NONE);
    }
    f->wide[cast->out[0]] = all ? cast->in[0] : OPIPE_NONE;
    f->taken[i] = all;
  }
}

/* ---- weights of few bits ---- */

/* True when cpu_linear_fast takes the product `user` with the matrix that `unpack` makes. */
static bool reads_codes(const cpu_fuser *f, const opipe_node *user, const opipe_node *unpack) {
  const uint32_t w = unpack->out[0];
  cpu_matrix matrix;
  if (!cpu_takes_wide(user) || user->n_in < 2 || user->n_out != 1 || user->in[1] != w ||
      user->in[0] == w || user->in[0] == OPIPE_NONE || user->out[0] == OPIPE_NONE ||
      (user->n_in > 2 && user->in[2] == w) || opipe_attr_int(user, "transA", 0) != 0)
    return false;
  const opipe_value *a = &f->graph->values[user->in[0]];
  return a->rank >= 2 && a->dtype == f->graph->values[w].dtype &&
         cpu_matrix_of(f->graph, unpack, opipe_attr_int(user, "transB", 0) != 0, &matrix);
}

void cpu_match_unpacked(cpu_fuser *f) {
  const opipe_graph *graph = f->graph;
  if ((f->program->flags & OPIPE_COMPILE_OWNED) != 0)
    return; /* gradients multiply by the transpose, which the kernels do not know */
  for (uint32_t i = 0; i < graph->n_nodes; ++i) {
    const opipe_node *node = &graph->nodes[i];
    if (!cpu_unpacks(node) || node->n_out != 1 || node->out[0] == OPIPE_NONE ||
        graph->values[node->out[0]].role != OPIPE_VALUE_TEMP)
      continue;
    const uint32_t w = node->out[0];
    bool all = graph->values[w].dtype == OPIPE_FLOAT || cpu_is_half(graph->values[w].dtype);
    for (uint32_t u = f->first[w]; all && u < f->first[w + 1]; ++u)
      all = reads_codes(f, &graph->nodes[f->users[u]], node);
    f->unpacked[w] = all ? i : OPIPE_NONE;
    f->taken[i] = all;
  }
}

/* ---- integers ---- */

/* A matrix of bytes, its two axes swapped. */
static bool is_turned_bytes(const cpu_fuser *f, const opipe_node *node) {
  if (!named(node, "", "Transpose") || node->n_in != 1 || node->n_out != 1 ||
      node->in[0] == OPIPE_NONE || node->out[0] == OPIPE_NONE)
    return false;
  const opipe_value *in = &f->graph->values[node->in[0]];
  uint32_t n = 0;
  const int64_t *perm = opipe_attr_ints(node, "perm", &n);
  return cpu_integer_packs(in, f->program->flags) &&
         f->graph->values[node->out[0]].role == OPIPE_VALUE_TEMP && perm != NULL && n == 2 &&
         perm[0] == 1 && perm[1] == 0;
}

void cpu_match_turned(cpu_fuser *f) {
  const opipe_graph *graph = f->graph;
  for (uint32_t i = 0; i < graph->n_nodes; ++i) {
    const opipe_node *node = &graph->nodes[i];
    if (!is_turned_bytes(f, node))
      continue;
    const uint32_t w = node->out[0];
    bool all = true;
    for (uint32_t u = f->first[w]; all && u < f->first[w + 1]; ++u) {
      const opipe_node *user = &graph->nodes[f->users[u]];
      all = named(user, "", "MatMulInteger") && user->n_in > 1 && user->in[1] == w &&
            user->in[0] != w;
    }
    f->turned[w] = all ? node->in[0] : OPIPE_NONE;
    f->taken[i] = all;
  }
}

/* ---- gradients ---- */

static bool is_f32_or_half(const cpu_fuser *f, uint32_t value) {
  return is_f32(f, value) || (value != OPIPE_NONE && cpu_is_half(f->graph->values[value].dtype));
}

/* A^T B of two matrices, A stored as it was in the forward pass. */
static bool is_weight_product(const cpu_fuser *f, const opipe_node *node, const opipe_value *g) {
  const bool gemm = named(node, "", "Gemm");
  if ((!gemm && !named(node, "com.microsoft", "FusedMatMul")) || node->n_in < 2 ||
      (node->n_in > 2 && node->in[2] != OPIPE_NONE) || !is_f32_or_half(f, node->in[0]) ||
      !is_f32_or_half(f, node->in[1]))
    return false;
  const opipe_value *a = &f->graph->values[node->in[0]];
  const opipe_value *b = &f->graph->values[node->in[1]];
  return a->rank == 2 && b->rank == 2 && g->rank == 2 && a->shape[0] == b->shape[0] &&
         opipe_attr_int(node, "transA", 0) == 1 && opipe_attr_int(node, "transB", 0) == 0 &&
         opipe_attr_float(node, "alpha", 1.0) == 1.0 && g->shape[0] == a->shape[1] &&
         g->shape[1] == b->shape[1];
}

/* ReduceSum over the leading axes. */
static bool is_column_sum(const cpu_fuser *f, const opipe_node *node, const opipe_value *g) {
  if (!named(node, "", "ReduceSum") || node->n_in < 2 || !is_f32_or_half(f, node->in[0]) ||
      node->in[1] == OPIPE_NONE)
    return false;
  const opipe_value *in = &f->graph->values[node->in[0]];
  const opipe_value *axes = &f->graph->values[node->in[1]];
  const uint64_t n = cpu_elems(axes);
  uint64_t columns = 1;
  if (axes->role != OPIPE_VALUE_CONSTANT || axes->dtype != OPIPE_INT64 || n == 0 || n >= in->rank)
    return false;
  for (uint64_t i = 0; i < n; ++i) {
    int64_t axis = 0;
    memcpy(&axis, (const char *)axes->data + i * sizeof axis, sizeof axis);
    if (axis != (int64_t)i && axis != (int64_t)i - (int64_t)in->rank)
      return false;
  }
  for (uint64_t i = n; i < in->rank; ++i)
    columns *= (uint64_t)in->shape[i];
  return cpu_elems(g) == columns;
}

/* True when the rule of `node` can add output `out` to the accumulator `g`. */
static bool can_add(const cpu_fuser *f, const opipe_node *node, uint32_t out,
                    const opipe_value *g) {
  const bool norm = named(node, "opipe", "LayerNormalizationGradScale") ||
                    named(node, "opipe", "RMSNormalizationGradScale");
  const opipe_value *value = &f->graph->values[out];
  if (norm) {
    return is_f32(f, node->in[0]) && is_f32(f, node->in[1]) && is_f32(f, out) &&
           cpu_elems(value) == cpu_elems(g);
  }
  if (named(node, "opipe", "GatherGrad")) {
    return is_f32(f, node->in[0]) && opipe_attr_int(node, "axis", 0) == 0 && g->rank == 2 &&
           value->rank == 2 && memcmp(g->shape, value->shape, 2 * sizeof g->shape[0]) == 0;
  }
  return is_weight_product(f, node, g) || is_column_sum(f, node, g);
}

/* The node that makes `value`, a temporary with one reader; NULL otherwise. */
static const opipe_node *sole_maker(const cpu_fuser *f, uint32_t value) {
  return f->graph->values[value].role == OPIPE_VALUE_TEMP && f->made[value] != OPIPE_NONE &&
                 f->first[value + 1] - f->first[value] == 1 && !f->taken[f->made[value]]
             ? &f->graph->nodes[f->made[value]]
             : NULL;
}

static bool is_view(const opipe_node *node) {
  static const char *const views[] = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"};
  for (uint32_t i = 0; i < CPU_COUNT_OF(views); ++i) {
    if (named(node, "", views[i]))
      return node->n_in >= 1 && node->in[0] != OPIPE_NONE;
  }
  return false;
}

/* Follows `value` back to producers that can add to g; with `apply`, redirects them. */
static bool redirect(cpu_fuser *f, uint32_t value, uint32_t g, int depth, bool apply) {
  const opipe_value *gradient = &f->graph->values[g];
  const opipe_node *node = sole_maker(f, value);
  if (node == NULL || depth > 64)
    return false;
  const uint32_t index = (uint32_t)(node - f->graph->nodes);
  const bool sum = named(node, "", "Add") && node->n_in == 2 && node->in[0] != node->in[1] &&
                   f->graph->values[node->in[0]].n_bytes == f->graph->values[value].n_bytes &&
                   f->graph->values[node->in[1]].n_bytes == f->graph->values[value].n_bytes;
  const bool widens = named(node, "", "Cast") && node->n_in == 1 && is_f32(f, value) &&
                      node->in[0] != OPIPE_NONE && is_f32_or_half(f, node->in[0]);
  if (is_view(node) || sum || widens) {
    const bool ok = redirect(f, node->in[0], g, depth + 1, apply) &&
                    (!sum || redirect(f, node->in[1], g, depth + 1, apply));
    f->taken[index] = f->taken[index] || (apply && ok);
    return ok;
  }
  if (!can_add(f, node, value, gradient))
    return false;
  if (apply)
    f->redirect[value] = g;
  return true;
}

opipe_status cpu_match_accumulate(cpu_fuser *f) {
  for (uint32_t i = 0; i < f->graph->n_nodes; ++i) {
    const opipe_node *node = &f->graph->nodes[i];
    if (cpu_is_accumulate(node) && node->n_in == 1 && node->n_out == 1 &&
        node->in[0] != OPIPE_NONE && node->out[0] != OPIPE_NONE &&
        redirect(f, node->in[0], node->out[0], 0, false)) {
      (void)redirect(f, node->in[0], node->out[0], 0, true);
      f->taken[i] = true;
    }
  }
  return OPIPE_OK;
}
