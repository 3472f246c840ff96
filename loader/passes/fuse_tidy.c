/* SPDX-License-Identifier: Apache-2.0 */
/* Movements that say nothing, taken away before patterns are looked for.
 *
 *   Reshape(Reshape(x))            becomes one Reshape, or x itself
 *   Transpose of rank 5 and more   loses axes of length 1 until four are left (einsums written by
 * exporters)
 */
#include "loader/passes/fuse.h"

static bool inner(const opi_fuse *f, uint32_t v) {
  return (opi_f_value(f, v)->flags & (OPI_VALUE_OUTPUT | OPI_VALUE_BARRIER)) == 0;
}

static opipe_status tidy_reshape(opi_fuse *f, const opi_node *node, opipe_error *err) {
  const uint32_t y = node->out[0];
  const opi_value shape = *opi_f_value(f, y);
  uint32_t x = node->in[0], fresh;
  bool merged = false;
  for (const opi_node *made = opi_f_made(f, x, "Reshape"); made != NULL && inner(f, x);
       made = opi_f_made(f, x, "Reshape")) {
    x = made->in[0];
    merged = true;
  }
  if (!merged)
    return OPIPE_OK;
  if (opi_f_same_shape(f, x, y)) {
    if (inner(f, y))
      opi_f_forward(f, y, x);
    return OPIPE_OK;
  }
  OPI_TRY(opi_k_reshape(f->b, x, shape.shape, (uint32_t)shape.rank, &fresh, err));
  if (opi_f_value(f, fresh)->producer == OPIPE_NONE) { /* known: nothing to compute */
    if (inner(f, y))
      opi_f_forward(f, y, fresh);
    return OPIPE_OK;
  }
  return opi_f_replace(f, y, fresh, OPI_PATTERN_NONE, err);
}

static opipe_status tidy_transpose(opi_fuse *f, const opi_node *node, opipe_error *err) {
  const opi_value x = *opi_f_value(f, node->in[0]), y = *opi_f_value(f, node->out[0]);
  const uint32_t in = node->in[0], out = node->out[0];
  int64_t shape[OPIPE_MAX_RANK], perm[OPIPE_MAX_RANK], place[OPIPE_MAX_RANK];
  uint32_t n = 0, rank = 0, kept = 0, spare, v;
  const int64_t *old = opi_attr_ints(node, "perm", &n);
  if (x.rank < 5 || old == NULL || n != (uint32_t)x.rank)
    return OPIPE_OK;
  spare = n - 4;
  for (uint32_t a = 0; a < n; ++a) {
    const bool drop = a > 0 && x.shape[a] == 1 && spare > 0;
    place[a] = drop ? -1 : (int64_t)rank;
    if (!drop)
      shape[rank++] = x.shape[a];
    spare -= drop ? 1 : 0;
  }
  if (rank == n)
    return OPIPE_OK;
  for (uint32_t a = 0; a < n; ++a) {
    if (place[old[a]] >= 0)
      perm[kept++] = place[old[a]];
  }
  OPI_TRY(opi_k_reshape(f->b, in, shape, rank, &v, err));
  OPI_TRY(opi_k_transpose(f->b, v, perm, rank, &v, err));
  OPI_TRY(opi_k_reshape(f->b, v, y.shape, (uint32_t)y.rank, &v, err));
  if (v < f->n_values || opi_f_value(f, v)->producer == OPIPE_NONE) { /* nothing is left to do */
    if (inner(f, out))
      opi_f_forward(f, out, v);
    return OPIPE_OK;
  }
  return opi_f_replace(f, out, v, OPI_PATTERN_NONE, err);
}

opipe_status opi_fuse_tidy(opi_fuse *f, uint32_t n, opipe_error *err) {
  const opi_node *node = opi_f_node(f, n);
  if (opi_f_is(node, "Reshape"))
    return tidy_reshape(f, node, err);
  if (opi_f_is(node, "Transpose"))
    return tidy_transpose(f, node, err);
  return OPIPE_OK;
}
