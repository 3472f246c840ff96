/* SPDX-License-Identifier: Apache-2.0 */
/* Operators along a divided axis: what picks, repeats or joins its entries, and what sums over
 * them.
 */
#include <string.h>

#include "loader/shard/rules.h"

/* Split, or entries picked along an axis: list of input entries for output o. */
static const int64_t *picked(opi_sharder *s, const opi_node *node, uint32_t o, uint32_t *out_axis,
                             uint64_t *out_n) {
  const uint32_t takes = opi_op_of(node)->takes;
  const opi_value *x = opi_sh_value(s, node->in[0]);
  uint64_t n = 0, n_axes = 0;
  if (takes == OPI_TAKES_ROWS) {
    *out_axis = (uint32_t)opi_attr_int(node, "axis", 0);
    int64_t *list = (int64_t *)(uintptr_t)opi_sh_ints(s, node->in[1], out_n);
    for (uint64_t i = 0; list != NULL && i < *out_n; ++i)
      list[i] += list[i] < 0 ? x->shape[*out_axis] : 0;
    return list;
  }
  int64_t first = 0, step = 1;
  if (takes == OPI_TAKES_PARTS) {
    const int64_t *sizes = opi_sh_ints(s, node->in[1], &n);
    *out_axis = (uint32_t)opi_attr_int(node, "axis", 0);
    for (uint32_t k = 0; sizes != NULL && k < o; ++k)
      first += sizes[k];
    *out_n = sizes != NULL && o < n ? (uint64_t)sizes[o] : 0;
  } else {
    const int64_t *starts = opi_sh_ints(s, node->in[1], &n),
                  *axes = opi_sh_ints(s, node->in[3], &n_axes),
                  *steps = opi_sh_ints(s, node->in[4], &n);
    uint64_t k = 0;
    while (axes != NULL && k < n_axes && axes[k] != (int64_t)*out_axis)
      ++k;
    if (axes == NULL || starts == NULL || steps == NULL || k == n_axes)
      return NULL;
    first = starts[k];
    step = steps[k];
    *out_n = (uint64_t)opi_sh_value(s, node->out[0])->shape[*out_axis];
  }
  int64_t *list = OPI_ARENA_ARRAY(&s->scratch, int64_t, *out_n);
  for (uint64_t i = 0; list != NULL && i < *out_n; ++i)
    list[i] = first + (int64_t)i * step;
  return list;
}

/* Along the axis of Split, Slice and Gather; *out_done false: labels lie elsewhere. */
static opipe_status pick(opi_sharder *s, uint32_t n, opi_labels **in, opi_labels **out,
                         bool *out_done) {
  const opi_node *node = &s->g->nodes[n];
  const opi_value *x = opi_sh_value(s, node->in[0]);
  const uint32_t takes = opi_op_of(node)->takes;
  opi_labels *l = in[0];
  *out_done = false;
  for (uint32_t k = 0; l != NULL && k < l->n_dims; ++k) {
    uint32_t axis = takes == OPI_TAKES_PART ? l->dims[k] : (uint32_t)opi_attr_int(node, "axis", 0);
    if (l->dims[k] != axis)
      continue;
    opi_labels *made = l;
    for (uint32_t o = 0; o < node->n_out; ++o) {
      uint64_t count = 0;
      const int64_t *list = picked(s, node, o, &axis, &count);
      if (list == NULL && takes == OPI_TAKES_PART)
        break; /* not sliced along it */
      if (takes == OPI_TAKES_PART && count > 1 && list[1] != list[0] + 1)
        return opi_sh_refuse(s, node, "it picks entries of the divided axis by steps");
      if (list == NULL)
        return opi_sh_refuse(s, node, "it picks entries that are not known");
      made = opi_sh_select(s, l, x, axis, list, count);
      if (made == NULL)
        return opi_fail_nomem(&s->why, 64, "labels");
      const opi_value *y = node->out[o] == OPIPE_NONE ? NULL : opi_sh_value(s, node->out[o]);
      if (y == NULL)
        continue;
      if (takes == OPI_TAKES_ROWS) { /* indices of any shape take the axis' place */
        opi_value from = *x;
        int64_t shape[OPIPE_MAX_RANK];
        memcpy(shape, x->shape, (size_t)x->rank * sizeof(*shape));
        shape[axis] = (int64_t)count;
        from.shape = shape;
        made = opi_sh_reshape(s, made, &from, y);
      }
      if (made == NULL || y->shape == NULL)
        return opi_sh_refuse(s, node, "its shape");
      opi_sh_reduce(s, made, y->shape);
      if (made->n_dims == 0)
        return opi_sh_refuse(s, node, "it leaves one unit of '%s'", x->name);
      out[o] = made;
      *out_done = true;
    }
  }
  return OPIPE_OK;
}

/* Entries repeated along divided axes. */
static opipe_status repeat(opi_sharder *s, uint32_t n, opi_labels **in, opi_labels **out) {
  const opi_node *node = &s->g->nodes[n];
  const opi_value *y = opi_sh_value(s, node->out[0]);
  opi_value x = *opi_sh_value(s, node->in[0]);
  int64_t shape[OPIPE_MAX_RANK];
  memcpy(shape, x.shape, (size_t)x.rank * sizeof(*shape));
  x.shape = shape;
  out[0] = in[0];
  for (uint32_t k = 0; k < in[0]->n_dims; ++k) {
    const uint32_t axis = in[0]->dims[k];
    const uint64_t count = (uint64_t)y->shape[axis];
    int64_t *list = OPI_ARENA_ARRAY(&s->scratch, int64_t, (size_t)count + 1);
    for (uint64_t i = 0; list != NULL && i < count; ++i)
      list[i] = (int64_t)(i % (uint64_t)shape[axis]);
    out[0] = list == NULL ? NULL : opi_sh_select(s, out[0], &x, axis, list, count);
    if (out[0] == NULL)
      return opi_fail_nomem(&s->why, 64, "labels");
    shape[axis] = (int64_t)count;
  }
  return OPIPE_OK;
}

/* Concat along a divided axis. */
static opipe_status concat(opi_sharder *s, uint32_t n, opi_labels **in, opi_labels **out) {
  const opi_node *node = &s->g->nodes[n];
  const opi_value *y = opi_sh_value(s, node->out[0]);
  const uint32_t axis = (uint32_t)opi_attr_int(node, "axis", 0);
  uint8_t dims[OPIPE_MAX_RANK];
  uint32_t n_dims = 0;
  for (uint32_t d = 0; d < (uint32_t)y->rank; ++d) {
    bool any = false;
    for (uint32_t i = 0; i < node->n_in; ++i)
      any = any || opi_sh_has(in[i], d);
    if (any)
      dims[n_dims++] = (uint8_t)d;
  }
  opi_labels *made = opi_sh_labels(s, y->shape, dims, n_dims);
  if (made == NULL)
    return opi_fail_nomem(&s->why, 64, "labels");
  uint64_t stride = 1, first = 0;
  for (uint32_t k = n_dims; k-- > 0 && dims[k] != axis;)
    stride *= (uint64_t)y->shape[dims[k]];
  for (uint32_t i = 0; i < node->n_in; ++i) {
    const opi_value *x = opi_sh_value(s, node->in[i]);
    const uint64_t own = (uint64_t)x->shape[axis], whole = (uint64_t)y->shape[axis];
    if (in[i] == NULL)
      return opi_sh_refuse(s, node, "'%s' is joined to it and is whole", x->name);
    opi_dim_map same;
    for (int32_t d = 0; d < OPIPE_MAX_RANK; ++d)
      same.to[d] = (int8_t)d;
    for (uint64_t k = 0; k < made->n; ++k) {
      const uint64_t at = k / stride % whole;
      if (at < first || at >= first + own)
        continue;
      opi_value shifted = *y; /* coordinates of y, moved to x */
      const uint64_t moved = k - first * stride;
      made->atoms[k] = in[i]->atoms[opi_sh_place(made, &shifted, moved, in[i], x, &same)];
    }
    first += own;
  }
  opi_sh_reduce(s, made, y->shape);
  if (made->n_dims == 0)
    return opi_sh_refuse(s, node, "it needs all entries at once");
  out[0] = made;
  return OPIPE_OK;
}

static bool only_along(const opi_labels *l, int32_t d) {
  return l != NULL && l->n_dims == 1 && (int32_t)l->dims[0] == d;
}

/* Sums, norms and losses over divided axes; *out_done: it is one. */
static opipe_status along_axes(opi_sharder *s, uint32_t n, opi_labels **in, bool *out_done) {
  const opi_node *node = &s->g->nodes[n];
  const opi_op *op = opi_op_of(node);
  opi_shard_decision *decision = &s->decisions[n];
  *out_done = false;
  if (in[0] == NULL)
    return OPIPE_OK;
  if (op->sums == OPI_SUMS_AXES) {
    uint64_t n_axes = 0;
    const int64_t *axes = opi_sh_ints(s, opi_node_in(node, 1), &n_axes);
    uint32_t found = 0;
    for (uint64_t k = 0; axes != NULL && k < n_axes; ++k)
      found += opi_sh_has(in[0], (uint32_t)axes[k]);
    if (axes != NULL && found == in[0]->n_dims) {
      decision->mode = OPI_MODE_SUM;
      *out_done = true;
    }
  } else if (op->kind == OPI_KIND_LOSS && only_along(in[0], 1) && in[1] == NULL &&
             opi_node_out(node, 1) == OPIPE_NONE) {
    decision->mode = OPI_MODE_LOSS;
    *out_done = true;
  }
  return OPIPE_OK;
}

/* A norm over the divided axis: its scale is cut, its statistics are summed. */
static opipe_status norm(opi_sharder *s, uint32_t n, opi_labels **in, opi_labels **out) {
  const opi_node *node = &s->g->nodes[n];
  const opi_value *x = opi_sh_value(s, node->in[0]);
  for (uint32_t i = 1; i < node->n_in; ++i) {
    if (node->in[i] == OPIPE_NONE)
      continue;
    const opi_value *scale = opi_sh_value(s, node->in[i]);
    const int32_t d = (int32_t)in[0]->dims[0] - (x->rank - scale->rank);
    opi_labels *cut = opi_sh_copy(s, in[0]);
    if (d < 0 || scale->shape[d] != x->shape[in[0]->dims[0]] || cut == NULL)
      return opi_sh_refuse(s, node, "the form of its scale");
    cut->dims[0] = (uint8_t)d;
    if (!opi_sh_demand(s, node->in[i], cut))
      return opi_sh_refuse(s, node, "'%s' is whole", scale->name);
    s->decisions[n].reads[i] = (opi_read){OPI_READ_CUT, cut};
  }
  s->decisions[n].mode = OPI_MODE_NORM;
  out[0] = in[0];
  return OPIPE_OK;
}

static bool is_norm_over(const opi_sharder *s, uint32_t n, const opi_labels *l) {
  const opi_node *node = &s->g->nodes[n];
  const uint32_t kind = opi_op_of(node)->kind;
  const opi_value *x = opi_sh_value(s, node->in[0]);
  return (kind == OPI_KIND_RMS_NORM || kind == OPI_KIND_LAYER_NORM) && !s->plain[n] && l != NULL &&
         l->n_dims == 1 && x->dtype == OPIPE_FLOAT && opi_node_out(node, 1) == OPIPE_NONE &&
         opi_node_out(node, 2) == OPIPE_NONE &&
         (int64_t)l->dims[0] >= opi_attr_int(node, "axis", x->rank - 1);
}

opipe_status opi_sh_along(opi_sharder *s, uint32_t n, opi_labels **in, opi_labels **out,
                          bool *out_done) {
  const opi_node *node = &s->g->nodes[n];
  const uint32_t takes = opi_op_of(node)->takes;
  OPI_TRY(along_axes(s, n, in, out_done));
  if (*out_done)
    return OPIPE_OK;
  *out_done = true;
  if (is_norm_over(s, n, in[0]))
    return norm(s, n, in, out);
  if (takes == OPI_TAKES_REPEATED && in[0] != NULL)
    return repeat(s, n, in, out);
  if (takes == OPI_TAKES_JOINED) {
    for (uint32_t i = 0; i < node->n_in; ++i) {
      if (opi_sh_has(in[i], (uint32_t)opi_attr_int(node, "axis", 0)))
        return concat(s, n, in, out);
    }
  }
  *out_done = false;
  if ((takes & (OPI_TAKES_PART | OPI_TAKES_PARTS | OPI_TAKES_ROWS)) != 0)
    return pick(s, n, in, out, out_done);
  return OPIPE_OK;
}
