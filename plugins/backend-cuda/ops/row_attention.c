/* SPDX-License-Identifier: Apache-2.0 */
/* opipe.RowAttention: keys and values of token rows go into pages, then each row attends to what
 * lies before it. Pages that come out are those that came in with the rows written; where none come
 * out, those that came in are written. */
#include "ops/rule.h"

enum { IN_Q, IN_K, IN_V, IN_POSITION, IN_SEQUENCE, IN_TABLE, IN_KEYS, IN_VALUES, IN_SLOPES };
enum { IN_COPIES = IN_SLOPES + 1, INPUTS };
enum { OUT_Y, OUT_KEYS, OUT_VALUES, OUTPUTS };

/* The extents, from the attributes and the pages. */
static opipe_status read_rows(const cuda_rule *r, cuda_row_attention_args *a) {
  const opipe_value *q = cuda_in(r, IN_Q), *keys = cuda_in(r, IN_KEYS),
                    *values = cuda_in(r, IN_VALUES), *table = cuda_in(r, IN_TABLE),
                    *copies = cuda_in(r, IN_COPIES);
  a->heads = opipe_attr_int(r->node, "num_heads", 0);
  a->kv_heads = opipe_attr_int(r->node, "kv_num_heads", 0);
  if (q->rank != 2 || keys->rank != 4 || values->rank != 4 || table->rank != 2 || a->kv_heads < 1 ||
      a->heads < 1 || a->heads % a->kv_heads != 0) {
    return cuda_refuse(r, OPIPE_E_INVALID, "%lld heads of queries and %lld of keys",
                       (long long)a->heads, (long long)a->kv_heads);
  }
  a->rows = q->shape[0];
  a->page = keys->shape[2];
  a->depth = keys->shape[3];
  a->value_depth = values->shape[3];
  a->sequences = table->shape[0];
  a->pages = table->shape[1];
  a->pool = keys->shape[0];
  a->n_copies = copies != NULL && copies->rank == 2 ? copies->shape[0] : 0;
  a->scale = opipe_attr_float(r->node, "scale", 1.0);
  a->softcap = opipe_attr_float(r->node, "softcap", 0.0);
  a->window = opipe_attr_int(r->node, "left_window_size", -1) + 1;
  return OPIPE_OK;
}

static opipe_status check_shapes(const cuda_rule *r, const cuda_row_attention_args *a) {
  const uint32_t own = cuda_in(r, IN_Q)->dtype;
  const struct {
    int64_t shape[4];
    uint32_t rank, dtype;
  } wanted[INPUTS] = {{{a->rows, a->heads * a->depth}, 2, own},
                      {{a->rows, a->kv_heads * a->depth}, 2, own},
                      {{a->rows, a->kv_heads * a->value_depth}, 2, own},
                      {{a->rows}, 1, OPIPE_INT64},
                      {{a->rows}, 1, OPIPE_INT64},
                      {{a->sequences, a->pages}, 2, OPIPE_INT64},
                      {{a->pool, a->kv_heads, a->page, a->depth}, 4, own},
                      {{a->pool, a->kv_heads, a->page, a->value_depth}, 4, own},
                      {{a->heads}, 1, OPIPE_FLOAT},
                      {{a->n_copies, 3}, 2, OPIPE_INT64}};
  for (uint32_t i = 0; i < r->node->n_in; ++i) {
    const opipe_value *x = cuda_in(r, i);
    if (x == NULL)
      continue;
    if (x->rank != wanted[i].rank ||
        memcmp(x->shape, wanted[i].shape, x->rank * sizeof x->shape[0]) != 0) {
      return cuda_refuse(r, OPIPE_E_INVALID, "'%.80s' does not fit %lld rows of %lld heads",
                         x->name, (long long)a->rows, (long long)a->heads);
    }
    if (x->dtype != wanted[i].dtype) {
      return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "'%.80s' is %s, not %s", x->name,
                         opipe_dtype_name(x->dtype), opipe_dtype_name(wanted[i].dtype));
    }
  }
  const int64_t y[2] = {a->rows, a->heads * a->value_depth};
  CUDA_TRY(cuda_expect(r, OUT_Y, own, y, 2));
  for (uint32_t i = OUT_KEYS; i < OUTPUTS; ++i) {
    if (cuda_out(r, i) != NULL)
      CUDA_TRY(cuda_expect_like(r, i, cuda_in(r, IN_KEYS + i - OUT_KEYS)));
  }
  return OPIPE_OK;
}

/* The pages to write: those that come out, after a copy of those that came in. */
static opipe_status take_pages(cuda_rule *r, uint32_t i, uint32_t *out_value) {
  const opipe_value *from = cuda_in(r, IN_KEYS + i);
  const bool has = cuda_out(r, OUT_KEYS + i) != NULL;
  *out_value = has ? r->node->out[OUT_KEYS + i] : r->node->in[IN_KEYS + i];
  return has ? cuda_emit_copy(r, *out_value, r->node->in[IN_KEYS + i], from->n_bytes) : OPIPE_OK;
}

static opipe_status rule_row_attention(cuda_rule *r) {
  const opipe_value *q = cuda_in(r, IN_Q);
  cuda_row_attention_args args = {.window = 0};
  cuda_launch launches[CUDA_LAUNCHES];
  uint32_t keys = 0, values = 0;
  CUDA_TRY(read_rows(r, &args));
  CUDA_TRY(check_shapes(r, &args));
  if (cuda_plan_row_attention(&args, q->dtype, launches) == 0 && args.rows > 0)
    return cuda_no_kernel(r, q);
  CUDA_TRY(take_pages(r, 0, &keys));
  CUDA_TRY(take_pages(r, 1, &values));
  args.y = cuda_at_out(r, OUT_Y);
  args.q = cuda_at_in(r, IN_Q);
  args.k = cuda_at_in(r, IN_K);
  args.v = cuda_at_in(r, IN_V);
  args.position = cuda_at_in(r, IN_POSITION);
  args.sequence = cuda_at_in(r, IN_SEQUENCE);
  args.table = cuda_at_in(r, IN_TABLE);
  args.slopes = cuda_at_in(r, IN_SLOPES);
  args.copies = cuda_at_in(r, IN_COPIES);
  args.key_pages = cuda_at(r, keys, 0);
  args.value_pages = cuda_at(r, values, 0);
  args.workspace = cuda_at(r, CUDA_AT_WORKSPACE, 0);
  CUDA_TRY(cuda_at_status(r, &args.status, &args.node));
  CUDA_TRY(cuda_emit_all(r, launches, cuda_plan_row_attention(&args, q->dtype, launches)));
  cuda_want_workspace(r, cuda_row_attention_workspace(&args));
  return OPIPE_OK;
}

static const cuda_row rows[] = {{"RowAttention", rule_row_attention, 8, INPUTS, OUTPUTS}};

const cuda_family cuda_row_attention_family = {"opipe", CUDA_ROWS(rows)};
