/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of nodes that the kernels compute in one go:
 *
 *   - A product with packed weights, then bias, activation, times a gate, plus a residual, whatever
 *     views stand between them; of a convolution with channels last, a relu of the sum with the
 *     residual. Its step stands where the last of its nodes stood.
 *   - The same of 8-bit integers, whose sums become fp32 and are multiplied by a scale first, and
 *     may be quantized to 8 bits again in the end; of convolutions without gate and residual.
 *   - A sum of two tensors, then a layer or RMS norm. Stands where the sum stood.
 *   - Split of packed queries, keys and values, views, Attention: the step reads the packed rows.
 *
 * A value that disappears must be a temporary without other readers: a value at the border (a cut
 * tensor) is never swallowed.
 */
#include "fuse.h"

/* The one node that reads a temporary; NULL when there are more, or it is seen from outside. */
static const opipe_node *only_user(const cpu_fuser *f, uint32_t value) {
  return f->graph->values[value].role == OPIPE_VALUE_TEMP &&
                 f->first[value + 1] - f->first[value] == 1 && !f->taken[f->users[f->first[value]]]
             ? &f->graph->nodes[f->users[f->first[value]]]
             : NULL;
}

static uint32_t node_index(const cpu_fuser *f, const opipe_node *node) {
  return (uint32_t)(node - f->graph->nodes);
}

static bool is_op(const opipe_node *node, const char *name) {
  return strcmp(node->op, name) == 0 &&
         (node->domain == NULL || node->domain[0] == '\0' || strcmp(node->domain, "ai.onnx") == 0);
}

static bool same_tensor(const opipe_value *a, const opipe_value *b) {
  return a->dtype == b->dtype && a->rank == b->rank &&
         (a->rank == 0 || memcmp(a->shape, b->shape, a->rank * sizeof a->shape[0]) == 0);
}

/* The other operand of a node of two inputs that reads `value` once and keeps its shape; OPIPE_NONE
 * when it is not that. */
static uint32_t other_operand(const cpu_fuser *f, const opipe_node *node, uint32_t value) {
  const opipe_value *in = &f->graph->values[value];
  if (node->n_in != 2 || node->n_out != 1 || node->out[0] == OPIPE_NONE ||
      node->in[0] == node->in[1] || node->in[0] == OPIPE_NONE || node->in[1] == OPIPE_NONE ||
      !same_tensor(in, &f->graph->values[node->out[0]]))
    return OPIPE_NONE;
  return node->in[0] == value ? node->in[1] : node->in[0];
}

/* ---- products ---- */

/* True when the product will use packed weights: see cpu_linear_fast. */
static bool is_packed_product(const cpu_fuser *f, const opipe_node *node) {
  const bool fused = strcmp(node->op, "FusedMatMul") == 0;
  if ((!fused && !is_op(node, "MatMul") && !is_op(node, "Gemm")) || node->n_in < 2 ||
      node->n_out != 1 || node->in[0] == OPIPE_NONE || node->in[1] == OPIPE_NONE ||
      node->out[0] == OPIPE_NONE || (fused && opipe_attr_int(node, "transA", 0) != 0))
    return false;
  const opipe_value *a = &f->graph->values[node->in[0]];
  if (f->unpacked[node->in[1]] != OPIPE_NONE)
    return true;
  const bool wide = f->wide[node->in[1]] != OPIPE_NONE;
  const opipe_value *b = &f->graph->values[wide ? f->wide[node->in[1]] : node->in[1]];
  const opipe_value *y = &f->graph->values[node->out[0]];
  return b->role == OPIPE_VALUE_PARAMETER && b->rank == 2 && a->rank >= 2 && y->rank >= 2 &&
         (a->dtype == OPIPE_FLOAT || cpu_is_half(a->dtype)) && (wide || a->dtype == b->dtype);
}

/* A convolution whose channels stand last: its epilogue is a product's, its bias an input. */
static bool is_last_conv(const cpu_fuser *f, const opipe_node *node) {
  return is_op(node, "Conv") && opipe_attr_int(node, "channels_last", 0) != 0 && node->n_out == 1 &&
         node->out[0] != OPIPE_NONE && f->graph->values[node->out[0]].dtype == OPIPE_FLOAT;
}

/* [N] of the product's type, whatever the leading ones, while the product still has rows of N. */
static bool is_bias(const opipe_value *bias, const opipe_value *product, int64_t n) {
  return bias->dtype == product->dtype && bias->rank >= 1 && bias->rank <= product->rank &&
         product->shape[product->rank - 1] == n && bias->shape[bias->rank - 1] == n &&
         cpu_elems(bias) == (uint64_t)n;
}

static int add_extra(cpu_group *g, uint32_t value) {
  g->extra[g->n_extra] = value;
  return (int)(g->main->n_in + g->n_extra++);
}

/* Takes `node` into the group if it is the next stage that fits; *io_stage counts bias, activation,
 * gate, residual. */
static bool absorb(const cpu_fuser *f, cpu_group *g, const opipe_node *node, int *io_stage) {
  const opipe_value *product = &f->graph->values[g->out];
  const uint32_t other = other_operand(f, node, g->out);
  const bool sum = is_op(node, "Add");
  if (node->n_in == 1 && *io_stage < 2 && cpu_activation_of(node) != CPU_ACT_NONE &&
      node->n_out == 1 && node->out[0] != OPIPE_NONE &&
      same_tensor(product, &f->graph->values[node->out[0]])) {
    g->fusion.activation = cpu_activation_of(node);
    *io_stage = 2;
    return true;
  }
  if (other == OPIPE_NONE)
    return false;
  const opipe_value *value = &f->graph->values[other];
  const opipe_value *made = &f->graph->values[g->main->out[0]];
  const bool whole = same_tensor(value, product);
  if (sum && *io_stage < 1 && is_bias(value, product, made->shape[made->rank - 1])) {
    g->fusion.bias = add_extra(g, other);
    *io_stage = 1;
    return true;
  }
  if (is_op(node, "Mul") && *io_stage == 2 && whole) {
    g->fusion.multiplier = add_extra(g, other);
    *io_stage = 3;
    return true;
  }
  if (sum && *io_stage < 4 && whole) {
    g->fusion.residual = add_extra(g, other);
    *io_stage = 4;
    return true;
  }
  return false;
}

/* The relu behind the residual of a convolution with channels last, as residual networks have it.
 */
static bool absorb_relu(const cpu_fuser *f, cpu_group *g, const opipe_node *node, int *io_stage) {
  if (*io_stage != 4 || !is_op(node, "Relu") || !is_last_conv(f, g->main) || node->n_out != 1 ||
      node->out[0] == OPIPE_NONE ||
      !same_tensor(&f->graph->values[g->out], &f->graph->values[node->out[0]]))
    return false;
  g->fusion.relu_last = true;
  *io_stage = 5;
  return true;
}

/* The scale that turns sums of products of integers into numbers: one factor, or one for each
 * column. */
static bool absorb_scale(const cpu_fuser *f, cpu_group *g, const opipe_node *node, int *io_stage) {
  const uint32_t other = *io_stage == -1 ? other_operand(f, node, g->out) : OPIPE_NONE;
  if (other == OPIPE_NONE || !is_op(node, "Mul"))
    return false;
  const opipe_value *made = &f->graph->values[g->main->out[0]];
  const opipe_value *scale = &f->graph->values[other], *product = &f->graph->values[g->out];
  if (scale->dtype != OPIPE_FLOAT ||
      (cpu_elems(scale) != 1 && !is_bias(scale, product, made->shape[made->rank - 1])))
    return false;
  g->fusion.scale = add_extra(g, other);
  *io_stage = 0;
  return true;
}

/* One number for each channel of `product`, along axis 1, or one for all. */
static bool is_channels(const opipe_value *v, const opipe_value *product) {
  const uint64_t channels = (uint64_t)product->shape[1];
  if (v->dtype != OPIPE_FLOAT || v->rank > product->rank || cpu_elems(v) != channels)
    return false;
  const uint32_t at = product->rank - v->rank;
  return at <= 1 && v->shape[1 - at] == (int64_t)channels;
}

/* Numbers of a convolution of integers: a scale (stage -1), a bias, an activation. */
static bool absorb_channels(const cpu_fuser *f, cpu_group *g, const opipe_node *node,
                            int *io_stage) {
  const opipe_value *product = &f->graph->values[g->out];
  const uint32_t other = other_operand(f, node, g->out);
  if (node->n_in == 1 && *io_stage >= 0 && *io_stage < 2)
    return absorb(f, g, node, io_stage);
  const opipe_value *v = other == OPIPE_NONE ? NULL : &f->graph->values[other];
  if (v != NULL && *io_stage == -1 && is_op(node, "Mul") && v->dtype == OPIPE_FLOAT &&
      (cpu_elems(v) == 1 || is_channels(v, product))) {
    g->fusion.scale = add_extra(g, other);
    *io_stage = 0;
    return true;
  }
  if (v != NULL && *io_stage == 0 && is_op(node, "Add") && is_channels(v, product)) {
    g->fusion.bias = add_extra(g, other);
    *io_stage = 1;
    return true;
  }
  return false;
}

/* Numbers that become integers of 8 bits with one scale: nothing follows. */
static bool absorb_quantize(const cpu_fuser *f, cpu_group *g, const opipe_node *node,
                            int *io_stage) {
  if (!g->fusion.numbers || *io_stage >= 5 || !is_op(node, "QuantizeLinear") || node->n_in < 2 ||
      node->in[0] != g->out || node->in[1] == OPIPE_NONE || node->in[1] == g->out ||
      node->n_out != 1 || node->out[0] == OPIPE_NONE)
    return false;
  const uint32_t zero = node->n_in > 2 ? node->in[2] : OPIPE_NONE;
  const opipe_value *scale = &f->graph->values[node->in[1]];
  const opipe_value *y = &f->graph->values[node->out[0]];
  if (scale->dtype != OPIPE_FLOAT || cpu_elems(scale) != 1 ||
      (y->dtype != OPIPE_INT8 && y->dtype != OPIPE_UINT8) ||
      (zero != OPIPE_NONE &&
       (f->graph->values[zero].dtype != y->dtype || cpu_elems(&f->graph->values[zero]) != 1)))
    return false;
  g->fusion.y_scale = add_extra(g, node->in[1]);
  g->fusion.y_zero = zero == OPIPE_NONE ? -1 : add_extra(g, zero);
  *io_stage = 5;
  return true;
}

/* A node that only gives its input another shape: products are fused through it. */
static bool is_view_of(const cpu_fuser *f, const opipe_node *node, uint32_t value) {
  static const char *const views[] = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"};
  for (uint32_t i = 0; i < CPU_COUNT_OF(views); ++i) {
    if (is_op(node, views[i])) {
      return node->n_in >= 1 && node->in[0] == value && node->n_out == 1 &&
             node->out[0] != OPIPE_NONE &&
             f->graph->values[node->out[0]].n_bytes == f->graph->values[value].n_bytes;
    }
  }
  return false;
}

static opipe_status new_group(cpu_fuser *f, const opipe_node *main, uint32_t out,
                              cpu_group **out_group) {
  cpu_group *g = CPU_POOL_ARRAY(&f->program->pool, cpu_group, 1);
  if (g == NULL)
    return opipe_fail(f->err, OPIPE_E_NOMEM, "node '%.80s': no memory for a group", main->name);
  g->main = main;
  g->fusion = (cpu_fusion)CPU_FUSION_NONE;
  g->out = out;
  g->sum = OPIPE_NONE;
  for (uint32_t i = 0; i < CPU_GROUP_REPLACED; ++i)
    g->replaced[i] = OPIPE_NONE;
  *out_group = g;
  return OPIPE_OK;
}

/* Takes what follows the main node `i` into the group, which stands at node `last` by now, from
 * `stage` of it on. Where the channels of a convolution stand is said by its result's shape alone,
 * which no view may take the place of. */
static void extend_group(cpu_fuser *f, cpu_group *g, uint32_t i, uint32_t last, int stage) {
  for (;;) {
    const opipe_node *next = only_user(f, g->out);
    const bool conv = is_op(g->main, "ConvInteger");
    const bool view =
        next != NULL && is_view_of(f, next, g->out) && !conv && !is_last_conv(f, g->main);
    const bool numbers = next != NULL && !view && stage < 5 &&
                         (conv ? absorb_channels(f, g, next, &stage)
                               : absorb_scale(f, g, next, &stage) || absorb(f, g, next, &stage) ||
                                     absorb_relu(f, g, next, &stage));
    if (next == NULL || !(view || numbers || absorb_quantize(f, g, next, &stage)))
      break;
    last = node_index(f, next);
    f->taken[last] = true;
    g->out = next->out[0];
  }
  if (last != i) {
    f->taken[i] = true;
    f->at[last] = g;
  }
}

static opipe_status match_product(cpu_fuser *f, uint32_t i) {
  const opipe_node *node = &f->graph->nodes[i];
  cpu_group *g = NULL;
  const bool conv = is_last_conv(f, node);
  if (!conv && !is_packed_product(f, node))
    return OPIPE_OK;
  CPU_TRY(new_group(f, node, node->out[0], &g));
  const bool has_c = is_op(node, "Gemm") && node->n_in > 2 && node->in[2] != OPIPE_NONE;
  if (has_c &&
      cpu_elems(&f->graph->values[node->in[2]]) != (uint64_t)f->graph->values[g->out].shape[1])
    return OPIPE_OK; /* C is more than a bias: it takes the residual's place */
  extend_group(f, g, i, i, has_c || conv ? 1 : 0);
  return OPIPE_OK;
}

/* ---- products of integers ---- */

/* Sums of products with packed codes that become fp32 at once, and nothing else. */
static opipe_status match_integer(cpu_fuser *f, uint32_t i) {
  const opipe_node *node = &f->graph->nodes[i];
  const bool conv = is_op(node, "ConvInteger");
  const bool integer = (conv || is_op(node, "MatMulInteger")) && node->n_in >= 2 &&
                       node->in[1] != OPIPE_NONE && node->n_out == 1 && node->out[0] != OPIPE_NONE;
  const opipe_node *cast = integer ? only_user(f, node->out[0]) : NULL;
  cpu_group *g = NULL;
  if (cast == NULL || !is_op(cast, "Cast") || cast->n_out != 1 || cast->out[0] == OPIPE_NONE ||
      f->graph->values[cast->out[0]].dtype != OPIPE_FLOAT)
    return OPIPE_OK;
  const uint32_t turned = f->turned[node->in[1]];
  const opipe_value *b = &f->graph->values[turned != OPIPE_NONE ? turned : node->in[1]];
  if (!(conv ? cpu_conv_integer_packs(node, b, f->program->flags)
             : cpu_integer_packs(b, f->program->flags)))
    return OPIPE_OK;
  CPU_TRY(new_group(f, node, cast->out[0], &g));
  g->fusion.numbers = true;
  f->taken[node_index(f, cast)] = true;
  extend_group(f, g, i, node_index(f, cast), -1);
  return OPIPE_OK;
}

/* ---- sums before norms ---- */

/* A norm of the sum that can stand where the sum stands: it reads no other made value. */
static const opipe_node *norm_of(const cpu_fuser *f, uint32_t sum) {
  for (uint32_t u = f->first[sum]; u < f->first[sum + 1]; ++u) {
    const opipe_node *node = &f->graph->nodes[f->users[u]];
    const bool norm = is_op(node, "LayerNormalization") || is_op(node, "RMSNormalization") ||
                      is_op(node, "SimplifiedLayerNormalization");
    bool ready = norm && opipe_attr_int(node, "stash_type", OPIPE_FLOAT) == OPIPE_FLOAT &&
                 node->n_in >= 2 && node->in[0] == sum && node->out[0] != OPIPE_NONE &&
                 !f->taken[f->users[u]];
    for (uint32_t k = 1; ready && k < node->n_in; ++k) {
      ready = node->in[k] == OPIPE_NONE || (f->made[node->in[k]] == OPIPE_NONE &&
                                            f->graph->values[node->in[k]].dtype == OPIPE_FLOAT);
    }
    for (uint32_t k = 0; ready && k < node->n_out; ++k)
      ready = node->out[k] == OPIPE_NONE || f->graph->values[node->out[k]].dtype == OPIPE_FLOAT;
    if (ready)
      return node;
  }
  return NULL;
}

static opipe_status match_norm(cpu_fuser *f, uint32_t i) {
  const opipe_node *add = &f->graph->nodes[i];
  cpu_group *g = NULL;
  if (!is_op(add, "Add") || add->n_in != 2 || other_operand(f, add, add->in[0]) == OPIPE_NONE ||
      !same_tensor(&f->graph->values[add->in[0]], &f->graph->values[add->in[1]]) ||
      f->graph->values[add->out[0]].dtype != OPIPE_FLOAT)
    return OPIPE_OK;
  const uint32_t sum = add->out[0];
  const opipe_node *norm = norm_of(f, sum);
  if (norm == NULL)
    return OPIPE_OK;
  CPU_TRY(new_group(f, norm, norm->out[0], &g));
  g->fusion.skip = add_extra(g, add->in[1]);
  g->replaced[0] = add->in[0];
  if (f->first[sum + 1] - f->first[sum] > 1 || f->graph->values[sum].role != OPIPE_VALUE_TEMP) {
    g->sum = sum;
    g->fusion.sum = (int)norm->n_out;
  }
  f->taken[i] = true;
  f->taken[node_index(f, norm)] = true;
  f->at[i] = g;
  return OPIPE_OK;
}

/* ---- attention on packed rows ---- */

/* Follows views back from `value` to the Split that made it, marking nothing. Every value on the
 * way is a temporary with one reader, and the shape at the end is that of the Split's output. */
static const opipe_node *split_behind(const cpu_fuser *f, uint32_t value, uint32_t *out_part) {
  const opipe_value *seen = &f->graph->values[value];
  for (;;) {
    if (f->graph->values[value].role != OPIPE_VALUE_TEMP || f->made[value] == OPIPE_NONE ||
        f->first[value + 1] - f->first[value] != 1 || f->taken[f->made[value]])
      return NULL;
    const opipe_node *node = &f->graph->nodes[f->made[value]];
    if (is_op(node, "Split")) {
      *out_part = value;
      return same_tensor(seen, &f->graph->values[value]) ? node : NULL;
    }
    if (node->n_in < 1 || node->in[0] == OPIPE_NONE || !is_view_of(f, node, node->in[0]))
      return NULL;
    value = node->in[0];
  }
}

/* Column in the packed rows at which a part of the Split begins; -1 when it is none of them. */
static int64_t part_begin(const cpu_fuser *f, const opipe_node *split, uint32_t part) {
  int64_t at = 0;
  for (uint32_t i = 0; i < split->n_out && split->out[i] != OPIPE_NONE; ++i) {
    if (split->out[i] == part)
      return at;
    at += f->graph->values[split->out[i]].shape[2];
  }
  return -1;
}

static void take_views(cpu_fuser *f, uint32_t value, const opipe_node *split) {
  while (&f->graph->nodes[f->made[value]] != split) {
    const opipe_node *view = &f->graph->nodes[f->made[value]];
    f->taken[f->made[value]] = true;
    value = view->in[0];
  }
}

static opipe_status match_attention(cpu_fuser *f, uint32_t i) {
  const opipe_node *node = &f->graph->nodes[i];
  const opipe_node *split = NULL;
  cpu_group *g = NULL;
  int64_t column[3];
  if (!is_op(node, "Attention") || node->n_in < 3 || node->out[0] == OPIPE_NONE ||
      (node->n_out > 3 && node->out[3] != OPIPE_NONE))
    return OPIPE_OK;
  for (uint32_t k = 0; k < 3; ++k) {
    uint32_t part = OPIPE_NONE;
    const opipe_node *made = node->in[k] == OPIPE_NONE ? NULL : split_behind(f, node->in[k], &part);
    if (made == NULL || (split != NULL && made != split) || made->in[0] == OPIPE_NONE ||
        made->n_out != 3 || f->graph->values[made->in[0]].rank != 3 ||
        f->graph->values[made->in[0]].dtype != OPIPE_FLOAT ||
        f->graph->values[made->in[0]].role == OPIPE_VALUE_PARAMETER)
      return OPIPE_OK;
    const int64_t axis = opipe_attr_int(made, "axis", 0);
    split = made;
    column[k] = part_begin(f, split, part);
    if ((axis != 2 && axis != -1) || column[k] < 0)
      return OPIPE_OK;
  }
  CPU_TRY(new_group(f, node, node->out[0], &g));
  for (uint32_t k = 0; k < 3; ++k) {
    take_views(f, node->in[k], split);
    g->replaced[k] = split->in[0];
    g->fusion.column[k] = column[k];
  }
  g->fusion.packed_rows = true;
  f->taken[node_index(f, split)] = true;
  f->taken[i] = true;
  f->at[i] = g;
  return OPIPE_OK;
}

opipe_status cpu_match_groups(cpu_fuser *f) {
  static opipe_status (*const matchers[])(cpu_fuser *, uint32_t) = {match_product, match_integer,
                                                                    match_norm, match_attention};
  for (uint32_t k = 0; k < CPU_COUNT_OF(matchers); ++k) {
    for (uint32_t i = 0; i < f->graph->n_nodes; ++i)
      CPU_TRY(f->taken[i] ? OPIPE_OK : matchers[k](f, i));
  }
  return OPIPE_OK;
}
