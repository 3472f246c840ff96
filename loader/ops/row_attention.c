/* SPDX-License-Identifier: Apache-2.0 */
/* opipe.RowAttention: shapes, work, emission. */
#include "loader/ops/row_attention.h"

#include <inttypes.h>

#include "loader/ops/common.h"

/* The pages of keys (i = KEY_PAGES) or values: [pages, heads, page, size], beside rows of that
 * many heads. */
static opipe_status check_pages(const opi_builder *b, const opi_node *node, uint32_t i,
                                int64_t heads, opipe_error *err) {
  const uint32_t rows = i == OPI_ROWS_KEY_PAGES ? OPI_ROWS_K : OPI_ROWS_V;
  OPI_TRY(opi_need(b, node, i, i == OPI_ROWS_KEY_PAGES ? "key_pages" : "value_pages", OPI_T_FLOAT,
                   4, 4, err));
  OPI_TRY(opi_need(b, node, rows, rows == OPI_ROWS_K ? "k" : "v", OPI_T_FLOAT, 2, 2, err));
  OPI_TRY(opi_need_same_type(b, node, OPI_ROWS_Q, rows, err));
  OPI_TRY(opi_need_same_type(b, node, OPI_ROWS_Q, i, err));
  const opi_value *pages = opi_input(b, node, i);
  const int64_t shape[2] = {opi_input(b, node, OPI_ROWS_Q)->shape[0], heads * pages->shape[3]};
  OPI_TRY(opi_need_dim(b, node, i, 1, heads, "kv_num_heads", err));
  OPI_TRY(opi_need_shape(b, node, rows, shape, 2, err));
  if (pages->shape[2] >= 1 && pages->shape[3] >= 1)
    return OPIPE_OK;
  return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                       "pages '%s' of %" PRId64 " tokens of size %" PRId64 " hold nothing",
                       pages->name, pages->shape[2], pages->shape[3]);
}

/* Input i, which may be absent, is int64. */
static opipe_status check_whole(const opi_builder *b, const opi_node *node, uint32_t i,
                                opipe_error *err) {
  const opi_value *x = opi_node_in(node, i) == OPIPE_NONE ? NULL : opi_input(b, node, i);
  if (x == NULL || x->dtype == OPIPE_INT64)
    return OPIPE_OK;
  return opi_node_fail(b, node, err, OPIPE_E_INVALID, "input '%s' is of type %s, not int64",
                       x->name, opi_dtype_name(x->dtype));
}

static opipe_status infer_rows(opi_builder *b, const opi_node *node, opipe_error *err) {
  int64_t heads, kv_heads;
  OPI_TRY(opi_need_int(b, node, "num_heads", 1, INT32_MAX, &heads, err));
  OPI_TRY(opi_need_int(b, node, "kv_num_heads", 1, INT32_MAX, &kv_heads, err));
  OPI_TRY(opi_need(b, node, OPI_ROWS_Q, "q", OPI_T_FLOAT, 2, 2, err));
  if (heads % kv_heads != 0) {
    return opi_node_fail(b, node, err, OPIPE_E_INVALID,
                         "%" PRId64 " heads are no multiple of %" PRId64 " heads of keys", heads,
                         kv_heads);
  }
  OPI_TRY(check_pages(b, node, OPI_ROWS_KEY_PAGES, kv_heads, err));
  OPI_TRY(check_pages(b, node, OPI_ROWS_VALUE_PAGES, kv_heads, err));
  const opi_value *q = opi_input(b, node, OPI_ROWS_Q);
  const opi_value *keys = opi_input(b, node, OPI_ROWS_KEY_PAGES);
  const opi_value *values = opi_input(b, node, OPI_ROWS_VALUE_PAGES);
  const int64_t rows = q->shape[0];
  OPI_TRY(opi_need_dim(b, node, OPI_ROWS_Q, 1, heads * keys->shape[3], "all heads' size", err));
  OPI_TRY(opi_need_dim(b, node, OPI_ROWS_VALUE_PAGES, 0, keys->shape[0], "pages of keys", err));
  OPI_TRY(opi_need_dim(b, node, OPI_ROWS_VALUE_PAGES, 2, keys->shape[2], "tokens a page", err));
  OPI_TRY(opi_need(b, node, OPI_ROWS_POSITION, "position", OPI_T_WIDE, 1, 1, err));
  OPI_TRY(opi_need(b, node, OPI_ROWS_SEQUENCE, "sequence", OPI_T_WIDE, 1, 1, err));
  OPI_TRY(opi_need(b, node, OPI_ROWS_TABLE, "table", OPI_T_WIDE, 2, 2, err));
  for (uint32_t i = OPI_ROWS_POSITION; i <= OPI_ROWS_TABLE; ++i)
    OPI_TRY(check_whole(b, node, i, err));
  OPI_TRY(opi_need_dim(b, node, OPI_ROWS_POSITION, 0, rows, "rows", err));
  OPI_TRY(opi_need_dim(b, node, OPI_ROWS_SEQUENCE, 0, rows, "rows", err));
  OPI_TRY(opi_may(b, node, OPI_ROWS_SLOPES, "slopes", OPI_T_FLOAT, 1, 1, err));
  OPI_TRY(opi_need_dim(b, node, OPI_ROWS_SLOPES, 0, heads, "num_heads", err));
  OPI_TRY(opi_may(b, node, OPI_ROWS_COPIES, "copies", OPI_T_WIDE, 2, 2, err));
  OPI_TRY(opi_need_dim(b, node, OPI_ROWS_COPIES, 1, 3, "numbers of a copy", err));
  OPI_TRY(check_whole(b, node, OPI_ROWS_COPIES, err));
  const int64_t y[2] = {rows, heads * values->shape[3]};
  OPI_TRY(opi_b_set(b, node, OPI_ROWS_Y, q->dtype, y, 2, err));
  if (opi_node_out(node, OPI_ROWS_KEYS_OUT) != OPIPE_NONE)
    OPI_TRY(opi_b_set(b, node, OPI_ROWS_KEYS_OUT, q->dtype, keys->shape, 4, err));
  if (opi_node_out(node, OPI_ROWS_VALUES_OUT) != OPIPE_NONE)
    OPI_TRY(opi_b_set(b, node, OPI_ROWS_VALUES_OUT, q->dtype, values->shape, 4, err));
  return OPIPE_OK;
}

/* As if every row saw all that the table has room for: no more is known before the run. */
static void work_rows(const opi_graph *graph, const opi_node *node, opi_work *out_work) {
  const opi_value *table = &graph->values[node->in[OPI_ROWS_TABLE]];
  const opi_value *pages = &graph->values[node->in[OPI_ROWS_KEY_PAGES]];
  const double keys = (double)table->shape[1] * (double)pages->shape[2];
  const double q = opi_k_elems_of(graph, node->in[OPI_ROWS_Q]);
  const double y = opi_k_elems_of(graph, node->out[OPI_ROWS_Y]);
  const double rows = q / (double)pages->shape[3]; /* times heads */
  out_work->flops = 2.0 * keys * (q + y) + 5.0 * rows * keys;
  out_work->bytes =
      4.0 * (q + y) + 4.0 * keys * (q + y) / (double)opi_attr_int(node, "num_heads", 1);
}

opipe_status opi_row_attention_emit(opi_builder *b, const opi_row_attention *how,
                                    const uint32_t *in, uint32_t *out, opipe_error *err) {
  const uint32_t n_out = how->in_place ? 1 : OPI_ROWS_OUTPUTS;
  uint32_t n_in = OPI_ROWS_INPUTS;
  while (in[n_in - 1] == OPIPE_NONE)
    --n_in;
  opi_attrs attrs = {.n = 0};
  opi_attrs_int(&attrs, "num_heads", how->heads);
  opi_attrs_int(&attrs, "kv_num_heads", how->kv_heads);
  opi_attrs_float(&attrs, "scale", how->scale);
  opi_attrs_float(&attrs, "softcap", how->softcap);
  if (how->window > 0)
    opi_attrs_int(&attrs, "left_window_size", how->window - 1);
  for (uint32_t o = 0; o < OPI_ROWS_OUTPUTS; ++o)
    out[o] = OPIPE_NONE;
  return opi_k_node(b, "RowAttention", "opipe", 1, in, n_in, (1u << n_out) - 1, &attrs, out, err);
}

typedef struct place_row {
  const char *op, *domain;
  uint32_t input, places;
} place_row;

uint32_t opi_places_of(const opi_node *file_node, uint32_t input) {
  static const place_row list[] = {
      {"GroupQueryAttention", "com.microsoft", 5, OPI_PLACES_LAST},
      {"GroupQueryAttention", "com.microsoft", 6, OPI_PLACES_KEYS},
      {"GroupQueryAttention", "com.microsoft", 9, OPI_PLACES_COUNTED},
      {"MultiHeadAttention", "com.microsoft", 4, OPI_PLACES_ONES},
      {"MultiHeadAttention", "com.microsoft", 8, OPI_PLACES_BEFORE},
      {"Attention", "com.microsoft", 3, OPI_PLACES_ONES},
      {"Attention", "com.microsoft", 6, OPI_PLACES_BEFORE},
      {"RotaryEmbedding", "com.microsoft", 1, OPI_PLACES_COUNTED},
      {"EmbedLayerNormalization", "com.microsoft", 7, OPI_PLACES_ONES},
      {"EmbedLayerNormalization", "com.microsoft", 8, OPI_PLACES_COUNTED},
      {"RotaryEmbedding", "", 3, OPI_PLACES_COUNTED},
      {"Attention", "", 6, OPI_PLACES_KEYS},
      {"TensorScatter", "", 2, OPI_PLACES_BEFORE},
  };
  for (uint32_t i = 0; i < OPI_COUNT(list); ++i) {
    const char *domain = file_node->domain == NULL ? "" : file_node->domain;
    if (list[i].input == input && strcmp(list[i].op, file_node->op) == 0 &&
        strcmp(list[i].domain, domain) == 0)
      return list[i].places;
  }
  return OPI_PLACES_NONE;
}

int64_t opi_least_past(const opi_node *file_node, uint32_t input) {
  const bool keys = input == 3 || input == 4;
  if (!keys || strcmp(file_node->op, "GroupQueryAttention") != 0 ||
      opi_attr_int(file_node, "sliding_window_cache", 0) == 0)
    return 0;
  return opi_attr_int(file_node, "local_window_size", 0);
}

static const opi_op ops[] = {
    {OPI_OP("RowAttention", "opipe", 1, 1, OPI_ROWS_SLOPES, OPI_ROWS_INPUTS, 1, OPI_ROWS_OUTPUTS),
     .infer = infer_rows, .work = work_rows,
     OPI_COLUMNS(NONE, NARROW, OTHER, ANY, NONE, ROW_ATTENTION, NEVER)},
};
extern const opi_op_family opi_ops_row_attention;
const opi_op_family opi_ops_row_attention = {ops, OPI_COUNT(ops)};
