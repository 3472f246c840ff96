/* SPDX-License-Identifier: Apache-2.0 */
/* From the labels of a node's output to those of its inputs: how a value that is made from
 * parameters, or a table's rows, is computed in parts.
 */
#include <string.h>

#include "loader/ops/quantize.h"
#include "loader/shard/sharder.h"

/* Labels `l` of y as those of input x, whose dimension d is y's map[d] (-1: none). Sets *out NULL
 * if x has none of them. False: they depend on others, too. */
static bool restrict_to(opi_sharder *s, const opi_labels *l, const opi_value *x, const opi_value *y,
                        const int32_t *map, opi_labels **out) {
  uint8_t dims[OPIPE_MAX_RANK];
  uint32_t n = 0;
  *out = NULL;
  for (int32_t d = 0; d < x->rank; ++d) {
    if (map[d] >= 0 && opi_sh_has(l, (uint32_t)map[d]) && x->shape[d] == y->shape[map[d]] &&
        x->shape[d] != 1)
      dims[n++] = (uint8_t)d;
  }
  if (n == 0)
    return true;
  opi_labels *made = n == l->n_dims ? opi_sh_labels(s, x->shape, dims, n) : NULL;
  if (made == NULL)
    return false;
  bool rising = true;
  for (uint32_t k = 0; k < n; ++k)
    rising = rising && map[dims[k]] == (int32_t)l->dims[k];
  if (!rising && n > 1)
    return false;
  memcpy(made->atoms, l->atoms, l->n * sizeof(*l->atoms));
  *out = made;
  return true;
}

static bool aligned(opi_sharder *s, const opi_node *node, const opi_labels *out, opi_labels **in) {
  const opi_value *y = &s->g->values[node->out[0]];
  const uint32_t n = opi_op_of(node)->takes == OPI_TAKES_STRETCHED ? 1 : node->n_in;
  for (uint32_t i = 0; i < n; ++i) {
    const opi_value *x = node->in[i] == OPIPE_NONE ? NULL : &s->g->values[node->in[i]];
    int32_t map[OPIPE_MAX_RANK];
    for (int32_t d = 0; x != NULL && d < x->rank; ++d)
      map[d] = d + y->rank - x->rank;
    if (x != NULL && !restrict_to(s, out, x, y, map, &in[i]))
      return false;
  }
  return true;
}

static bool turned(opi_sharder *s, const opi_node *node, const opi_labels *out, opi_labels **in) {
  const opi_value *x = &s->g->values[node->in[0]], *y = &s->g->values[node->out[0]];
  uint32_t n = 0;
  const int64_t *perm = opi_attr_ints(node, "perm", &n);
  int32_t map[OPIPE_MAX_RANK];
  for (int32_t d = 0; d < x->rank; ++d)
    map[d] = -1;
  for (uint32_t d = 0; d < n; ++d)
    map[perm[d]] = (int32_t)d;
  return restrict_to(s, out, x, y, map, &in[0]);
}

static bool rows(opi_sharder *s, const opi_node *node, const opi_labels *out, opi_labels **in) {
  const opi_value *x = &s->g->values[node->in[0]], *at = &s->g->values[node->in[1]];
  const opi_value *y = &s->g->values[node->out[0]];
  const int32_t axis = (int32_t)opi_attr_int(node, "axis", 0);
  int32_t map[OPIPE_MAX_RANK], own[OPIPE_MAX_RANK];
  for (int32_t d = 0; d < x->rank; ++d)
    map[d] = d < axis ? d : d == axis ? -1 : d + at->rank - 1;
  for (int32_t d = 0; d < at->rank; ++d)
    own[d] = axis + d;
  return restrict_to(s, out, x, y, map, &in[0]) && restrict_to(s, out, at, y, own, &in[1]) &&
         (in[0] == NULL) != (in[1] == NULL);
}

static bool product(opi_sharder *s, const opi_node *node, const opi_labels *out, opi_labels **in) {
  const opi_value *y = &s->g->values[node->out[0]];
  const opi_product_axes x = opi_sh_product_axes(s->g, node);
  if (out->n_dims != 1 || x.m < 0 || x.n < 0 || !s->weight[node->out[0]])
    return false;
  const bool columns = (int32_t)out->dims[0] == y->rank - 1;
  if (!columns && (int32_t)out->dims[0] != y->rank - 2)
    return false;
  const uint32_t i = columns ? 1 : 0;
  in[i] = opi_sh_copy(s, out);
  if (in[i] == NULL)
    return false;
  in[i]->dims[0] = (uint8_t)(columns ? x.n : x.m);
  const opi_value *c =
      node->n_in > 2 && node->in[2] != OPIPE_NONE ? &s->g->values[node->in[2]] : NULL;
  int32_t map[OPIPE_MAX_RANK];
  for (int32_t d = 0; c != NULL && d < c->rank; ++d)
    map[d] = d + y->rank - c->rank;
  return c == NULL || restrict_to(s, out, c, y, map, &in[2]);
}

/* Codes [N, blocks, bytes], scales [N * blocks]; y is [N, K]. A block of K stays together. */
static bool blocks(opi_sharder *s, const opi_node *node, const opi_labels *out, opi_labels **in) {
  const opi_value *y = &s->g->values[node->out[0]];
  const int64_t n = opi_attr_int(node, "N", 1), block = opi_attr_int(node, "block_size", 16);
  if (out->n_dims != 1)
    return false;
  const bool by_k = out->dims[0] == 1;
  const int64_t n_blocks = (y->shape[1] + block - 1) / block;
  const int64_t in_byte =
      node->n_in > 2 && node->in[2] != OPIPE_NONE && s->g->values[node->in[2]].dtype == OPIPE_UINT8
          ? 8 / opi_attr_int(node, "bits", 4)
          : 1;
  const uint64_t unit = (uint64_t)(block * in_byte); /* zero points of a byte stay together */
  for (uint64_t i = 0; by_k && i < out->n; ++i)
    opi_sh_unite(s, out->atoms[i], out->atoms[i / unit * unit]);
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (node->in[i] == OPIPE_NONE)
      continue;
    const opi_value *x = &s->g->values[node->in[i]];
    const uint8_t first = i == 0 && by_k ? 1 : 0;
    const int64_t each = i == 0 ? 1 : (int64_t)(opi_elems(x) / (uint64_t)n); /* of a row */
    if (i > 0 && x->rank != 1)
      return false;
    in[i] = opi_sh_labels(s, x->shape, &first, 1);
    if (in[i] == NULL)
      return false;
    for (uint64_t k = 0; k < in[i]->n; ++k) {
      const int64_t row = (int64_t)k / each, at = (int64_t)k % each;
      const int64_t b = i == 0 ? (int64_t)k : each == n_blocks ? at : at * in_byte;
      in[i]->atoms[k] = by_k ? out->atoms[b * block] : out->atoms[i == 0 ? (int64_t)k : row];
    }
  }
  return true;
}

/* Codes with scales along one axis, by blocks, or one for all. */
static bool scaled(opi_sharder *s, const opi_node *node, const opi_labels *out, opi_labels **in) {
  const opi_value *y = &s->g->values[node->out[0]];
  const int64_t axis = opi_attr_int(node, "axis", 0), block = opi_attr_int(node, "block_size", 0);
  if (out->n_dims != 1)
    return false;
  in[0] = opi_sh_copy(s, out);
  for (uint32_t i = 1; in[0] != NULL && i < node->n_in; ++i) {
    const opi_value *x = node->in[i] == OPIPE_NONE ? NULL : &s->g->values[node->in[i]];
    if (x == NULL || opi_elems(x) == 1 || (block == 0 && (int64_t)out->dims[0] != axis))
      continue;
    in[i] = opi_sh_copy(s, out);
    if (in[i] == NULL)
      return false;
    if (block == 0)
      in[i]->dims[0] = 0;
    if (block == 0 || (int64_t)out->dims[0] != axis)
      continue;
    in[i]->n = (uint64_t)x->shape[axis];
    for (uint64_t k = 0; k < out->n; ++k)
      opi_sh_unite(s, out->atoms[k], out->atoms[k / (uint64_t)block * (uint64_t)block]);
    for (uint64_t k = 0; k < in[i]->n; ++k)
      in[i]->atoms[k] = out->atoms[k * (uint64_t)block];
  }
  return in[0] != NULL && y->rank > 0;
}

bool opi_sh_back(opi_sharder *s, const opi_node *node, const opi_labels *out, opi_labels **in) {
  const opi_op *op = opi_op_of(node);
  const opi_value *x = &s->g->values[node->in[0]], *y = &s->g->values[node->out[0]];
  memset(in, 0, node->n_in * sizeof(opi_labels *));
  if (node->n_out != 1)
    return false;
  if (op->takes == OPI_TAKES_FORM) {
    in[0] = opi_sh_reshape(s, out, y, x);
    return in[0] != NULL;
  }
  if (op->takes == OPI_TAKES_TURNED)
    return turned(s, node, out, in);
  if (op->takes == OPI_TAKES_ROWS)
    return rows(s, node, out, in);
  if (op->carry == opi_carry_broadcast || op->takes == OPI_TAKES_STRETCHED)
    return aligned(s, node, out, in);
  if (opi_sh_is_product(node))
    return product(s, node, out, in);
  if (op->kind == OPI_KIND_UNPACK)
    return node->domain[0] == '\0' ? scaled(s, node, out, in) : blocks(s, node, out, in);
  return false;
}
