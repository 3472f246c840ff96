/* SPDX-License-Identifier: Apache-2.0 */
/* Finds an operator's rules by domain and name: large graphs ask millions of times, so that the
 * families' rows are hashed once. The families are listed here and nowhere else.
 */
#include "loader/ops/registry.h"

#include <pthread.h>
#include <string.h>

extern const opi_op_family opi_ops_shape, opi_ops_movement, opi_ops_elementwise, opi_ops_logic,
    opi_ops_reduce, opi_ops_slice, opi_ops_index, opi_ops_gather_nd, opi_ops_scatter,
    opi_ops_generate, opi_ops_control, opi_ops_resize, opi_ops_interpolate, opi_ops_dft,
    opi_ops_recurrent, opi_ops_recurrent_layer, opi_ops_conv_transpose, opi_ops_col2im,
    opi_ops_blocks, opi_ops_grid_sample, opi_ops_group, opi_ops_parts;
extern const opi_op_family opi_ops_linear, opi_ops_conv, opi_ops_norm, opi_ops_softmax,
    opi_ops_activation, opi_ops_attention, opi_ops_contrib, opi_ops_loss, opi_ops_train,
    opi_ops_quantize, opi_ops_scan, opi_ops_qlinear, opi_ops_row_attention;

static const opi_op_family *const families[] = {
    &opi_ops_shape,          &opi_ops_movement,
    &opi_ops_slice,          &opi_ops_elementwise,
    &opi_ops_logic,          &opi_ops_reduce,
    &opi_ops_index,          &opi_ops_scatter,
    &opi_ops_generate,       &opi_ops_control,
    &opi_ops_gather_nd,      &opi_ops_linear,
    &opi_ops_quantize,       &opi_ops_conv,
    &opi_ops_norm,           &opi_ops_softmax,
    &opi_ops_activation,     &opi_ops_attention,
    &opi_ops_contrib,        &opi_ops_loss,
    &opi_ops_train,          &opi_ops_resize,
    &opi_ops_interpolate,    &opi_ops_dft,
    &opi_ops_recurrent,      &opi_ops_recurrent_layer,
    &opi_ops_conv_transpose, &opi_ops_col2im,
    &opi_ops_blocks,         &opi_ops_grid_sample,
    &opi_ops_scan,           &opi_ops_qlinear,
    &opi_ops_group,          &opi_ops_parts,
    &opi_ops_row_attention,
};

enum { BUCKETS = 1024 }; /* a power of two, several times as many as there are rows */
static const opi_op *index_of_rows[BUCKETS];
static pthread_once_t index_is_made = PTHREAD_ONCE_INIT;

static const char *plain_domain(const char *domain) {
  return domain == NULL || strcmp(domain, "ai.onnx") == 0 ? "" : domain;
}

/* FNV-1a */
static uint32_t bucket_of(const char *name) {
  uint32_t hash = 2166136261u;
  for (; *name != '\0'; ++name)
    hash = (hash ^ (unsigned char)*name) * 16777619u;
  return hash % BUCKETS;
}

/* The row, or the free bucket where it would stand. */
static const opi_op **find_bucket(const char *domain, const char *name) {
  const opi_op **bucket = &index_of_rows[bucket_of(name)];
  while (*bucket != NULL && (strcmp((*bucket)->name, name) != 0 ||
                             strcmp(plain_domain((*bucket)->domain), domain) != 0))
    bucket = bucket == &index_of_rows[BUCKETS - 1] ? index_of_rows : bucket + 1;
  return bucket;
}

static void make_index(void) {
  uint32_t n = 0;
  for (size_t f = 0; f < OPI_COUNT(families); ++f) {
    for (uint32_t i = 0; i < families[f]->n && ++n < BUCKETS; ++i) {
      const opi_op *op = &families[f]->ops[i];
      const opi_op **bucket = find_bucket(plain_domain(op->domain), op->name);
      if (*bucket == NULL) /* the first of a name counts */
        *bucket = op;
    }
  }
}

const opi_op *opi_op_find(const char *domain, const char *name) {
  (void)pthread_once(&index_is_made, make_index);
  return *find_bucket(plain_domain(domain), name);
}

const opi_op *opi_op_at(uint32_t i) {
  for (size_t f = 0; f < OPI_COUNT(families); ++f) {
    if (i < families[f]->n)
      return &families[f]->ops[i];
    i -= families[f]->n;
  }
  return NULL;
}

const opi_op *opi_op_row(const char *domain, const char *name) {
  static const opi_op unknown = {OPI_COLUMNS(NONE, COMMON, OTHER, ANY, NONE, PLAIN, NEVER)};
  const opi_op *op = opi_op_find(domain, name);
  return op != NULL ? op : &unknown;
}

void opi_node_work(const opi_graph *graph, const opi_node *node, opi_work *out_work) {
  const opi_op *op = opi_op_find(node->domain, node->op);
  *out_work = (opi_work){0};
  if (op != NULL && op->work != NULL) {
    op->work(graph, node, out_work);
    return;
  }
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (node->in[i] != OPIPE_NONE)
      out_work->bytes += (double)graph->values[node->in[i]].n_bytes;
  }
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] == OPIPE_NONE)
      continue;
    const opi_value *value = &graph->values[node->out[o]];
    const uint32_t bits = opi_dtype_bits(value->dtype);
    out_work->bytes += (double)value->n_bytes;
    if (bits != 0)
      out_work->flops += (double)value->n_bytes * 8.0 / (double)bits;
  }
}
