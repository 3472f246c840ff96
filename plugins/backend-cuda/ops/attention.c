/* SPDX-License-Identifier: Apache-2.0 */
/* Attention and RotaryEmbedding. See abi/guide/operators.md for both.
 *
 * Keys and values of the past are read where they lie, before those of this call; they are put
 * together only where present_key or present_value is asked for, or for cuDNN.
 */
#include "ops/attention.h"

enum { OUT_SCORES = OUT_PRESENT_V + 1, OUT_FOUND, OUTPUTS };

void cuda_head_strides(bool by_rows, int64_t heads, int64_t rows, int64_t depth, int64_t *out) {
  out[0] = heads * rows * depth;
  out[1] = by_rows ? depth : rows * depth;
  out[2] = by_rows ? heads * depth : depth;
}

void cuda_attention_strides(const cuda_rule *r, uint32_t value, bool by_rows, int64_t heads,
                            int64_t rows, int64_t depth, int64_t *out) {
  const cuda_part *parts = r->program->matched.parts;
  cuda_head_strides(by_rows, heads, rows, depth, out);
  if (value != OPIPE_NONE && parts != NULL && parts[value].whole != OPIPE_NONE) {
    out[0] = rows * parts[value].row;
    out[2] = parts[value].row;
  }
}

/* Heads, rows and depth of one of Q, K, V; heads are known for rank 3. */
static opipe_status read_operand(const cuda_rule *r, uint32_t base, uint32_t i, int64_t *io_heads,
                                 int64_t *out_rows, int64_t *out_depth, int64_t *out_strides) {
  const opipe_value *value = cuda_in(r, base + i), *q = cuda_in(r, base + IN_Q);
  if (value->rank != q->rank || value->dtype != q->dtype || value->shape[0] != q->shape[0])
    return cuda_refuse(r, OPIPE_E_INVALID, "input %u differs from Q in rank, type or batch", i);
  if (value->rank == 4) {
    *io_heads = value->shape[1];
    *out_rows = value->shape[2];
    *out_depth = value->shape[3];
  } else if (*io_heads > 0 && value->shape[2] % *io_heads == 0) {
    *out_rows = value->shape[1];
    *out_depth = value->shape[2] / *io_heads;
  } else {
    return cuda_refuse(r, OPIPE_E_INVALID, "input %u has %lld features for %lld heads", i,
                       (long long)value->shape[2], (long long)*io_heads);
  }
  cuda_attention_strides(r, r->node->in[base + i], value->rank == 3, *io_heads, *out_rows,
                         *out_depth, out_strides);
  return OPIPE_OK;
}

static opipe_status read_sizes(const cuda_rule *r, uint32_t base, cuda_attention_args *a,
                               int64_t *out_fresh) {
  const opipe_value *q = cuda_in(r, base + IN_Q);
  int64_t v_heads = opipe_attr_int(r->node, "kv_num_heads", 0), v_rows = 0, k_depth = 0;
  if (!cuda_is_float(q->dtype) || (q->rank != 3 && q->rank != 4)) {
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "%s of rank %u", opipe_dtype_name(q->dtype),
                       q->rank);
  }
  a->batch = q->shape[0];
  a->heads = opipe_attr_int(r->node, "q_num_heads", 0);
  a->kv_heads = v_heads;
  CUDA_TRY(read_operand(r, base, IN_Q, &a->heads, &a->queries, &a->depth, a->q_stride));
  CUDA_TRY(read_operand(r, base, IN_K, &a->kv_heads, out_fresh, &k_depth, a->k_stride));
  CUDA_TRY(read_operand(r, base, IN_V, &v_heads, &v_rows, &a->value_depth, a->v_stride));
  if (k_depth != a->depth || v_heads != a->kv_heads || v_rows != *out_fresh || a->kv_heads == 0 ||
      a->heads % a->kv_heads != 0) {
    return cuda_refuse(
        r, OPIPE_E_INVALID, "Q has %lld heads of %lld, K %lld of %lld, V %lld; %lld and %lld rows",
        (long long)a->heads, (long long)a->depth, (long long)a->kv_heads, (long long)k_depth,
        (long long)v_heads, (long long)*out_fresh, (long long)v_rows);
  }
  cuda_head_strides(q->rank == 3, a->heads, a->queries, a->value_depth, a->y_stride);
  return OPIPE_OK;
}

static opipe_status read_past(const cuda_rule *r, uint32_t base, cuda_attention_args *a,
                              int64_t fresh) {
  const opipe_value *k = cuda_in(r, base + IN_PAST_K), *v = cuda_in(r, base + IN_PAST_V);
  if ((k == NULL) != (v == NULL))
    return cuda_refuse(r, OPIPE_E_INVALID, "only one of past_key and past_value");
  if (k != NULL) {
    const int64_t past = k->rank == 4 ? k->shape[2] : 0;
    const int64_t of_k[4] = {a->batch, a->kv_heads, past, a->depth};
    const int64_t of_v[4] = {a->batch, a->kv_heads, past, a->value_depth};
    if (k->rank != 4 || v->rank != 4 || memcmp(k->shape, of_k, sizeof of_k) != 0 ||
        memcmp(v->shape, of_v, sizeof of_v) != 0 || k->dtype != cuda_in(r, base + IN_Q)->dtype ||
        v->dtype != k->dtype)
      return cuda_refuse(r, OPIPE_E_INVALID, "past_key or past_value do not fit K and V");
    a->past = past;
    cuda_head_strides(false, a->kv_heads, past, a->depth, a->past_k_stride);
    cuda_head_strides(false, a->kv_heads, past, a->value_depth, a->past_v_stride);
  }
  a->keys = a->past + fresh;
  return OPIPE_OK;
}

/* Where keys or values lie in two pieces, by their strides. Returns rows of the first; 0: in one.
 */
static int64_t read_pieces(const cuda_rule *r, uint32_t value, int64_t heads, int64_t rows,
                           int64_t depth, int64_t *out_past_stride, int64_t *out_stride) {
  const opipe_node *join = cuda_join_of(r->program, value);
  if (join == NULL)
    return 0;
  const opipe_value *first = &r->program->graph->values[join->in[0]];
  const int64_t past = first->shape[first->rank - 2];
  const bool by_rows = first->rank == 3;
  cuda_attention_strides(r, join->in[0], by_rows, heads, past, depth, out_past_stride);
  cuda_attention_strides(r, join->in[1], by_rows, heads, rows - past, depth, out_stride);
  return past;
}

static opipe_status read_joined(const cuda_rule *r, uint32_t base, cuda_attention_args *a) {
  const uint32_t k = r->node->in[base + IN_K], v = r->node->in[base + IN_V];
  const int64_t past =
      read_pieces(r, k, a->kv_heads, a->keys, a->depth, a->past_k_stride, a->k_stride);
  a->past = past > 0 ? past : a->past;
  return read_pieces(r, v, a->kv_heads, a->keys, a->value_depth, a->past_v_stride, a->v_stride) ==
                 past
             ? OPIPE_OK
             : cuda_refuse(r, OPIPE_E_UNSUPPORTED, "pieces of K and V differ");
}

static opipe_status read_mask(const cuda_rule *r, uint32_t base, cuda_attention_args *a) {
  const opipe_value *mask = cuda_in(r, base + IN_MASK), *nonpad = cuda_in(r, base + IN_NONPAD);
  const uint32_t type = cuda_in(r, base + IN_Q)->dtype;
  a->mask_keys = a->keys;
  if (nonpad != NULL && (nonpad->dtype != OPIPE_INT64 || (int64_t)cuda_elems(nonpad) != a->batch)) {
    return cuda_refuse(r, OPIPE_E_INVALID, "nonpad_kv_seqlen is not int64 [%lld]",
                       (long long)a->batch);
  }
  if (mask == NULL)
    return OPIPE_OK;
  a->mask_kind = mask->dtype == OPIPE_BOOL    ? 1u
                 : mask->dtype == type        ? 2u
                 : mask->dtype == OPIPE_FLOAT ? 3u
                                              : 0u;
  if (a->mask_kind == 0 || mask->rank < 1 || mask->rank > 4) {
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "a mask of %s of rank %u",
                       opipe_dtype_name(mask->dtype), mask->rank);
  }
  const int64_t n = mask->shape[mask->rank - 1];
  a->mask_keys = n != 1 && n < a->keys ? n : a->keys;
  const int64_t full[4] = {a->batch, a->heads, a->queries, a->mask_keys};
  if (!opipe_broadcast_strides(mask->shape, mask->rank, full, 4, a->mask_stride)) {
    return cuda_refuse(
        r, OPIPE_E_INVALID, "its mask does not broadcast to [%lld, %lld, %lld, %lld]",
        (long long)full[0], (long long)full[1], (long long)full[2], (long long)full[3]);
  }
  return OPIPE_OK;
}

opipe_status cuda_attention_read(const cuda_rule *r, uint32_t base, cuda_attention_args *out) {
  int64_t fresh = 0;
  memset(out, 0, sizeof *out);
  CUDA_TRY(read_sizes(r, base, out, &fresh));
  CUDA_TRY(read_past(r, base, out, fresh));
  CUDA_TRY(read_joined(r, base, out));
  CUDA_TRY(read_mask(r, base, out));
  const double root = __builtin_sqrt((double)out->depth);
  out->scale = opipe_attr_float(r->node, "scale", root > 0 ? 1.0 / root : 1.0);
  out->softcap = opipe_attr_float(r->node, "softcap", 0.0);
  out->causal = opipe_attr_int(r->node, "is_causal", 0) != 0;
  if (opipe_attr_int(r->node, "left_window_size", -1) >= 0 ||
      opipe_attr_int(r->node, "right_window_size", -1) >= 0)
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "windows are not supported");
  if (out->causal && cuda_in(r, base + IN_NONPAD) != NULL) { /* the offset is each sequence's own */
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED,
                       "causal masks beside nonpad_kv_seqlen are not supported");
  }
  return OPIPE_OK;
}

/* K or V, and what stands before it. */
static void point_pieces(cuda_rule *r, uint32_t i, uint32_t past, const void **out_past,
                         const void **out) {
  const opipe_node *join = cuda_join_of(r->program, r->node->in[i]);
  *out = join != NULL ? cuda_at(r, join->in[1], 0) : cuda_at_in(r, i);
  *out_past = join != NULL ? cuda_at(r, join->in[0], 0) : cuda_at_in(r, past);
}

void cuda_attention_point(cuda_rule *r, uint32_t base, cuda_attention_args *a) {
  a->q = cuda_at_in(r, base + IN_Q);
  point_pieces(r, base + IN_K, base + IN_PAST_K, &a->past_k, &a->k);
  point_pieces(r, base + IN_V, base + IN_PAST_V, &a->past_v, &a->v);
  a->mask = cuda_at_in(r, base + IN_MASK);
  a->nonpad = cuda_at_in(r, base + IN_NONPAD);
}

static opipe_status check_outputs(const cuda_rule *r, const cuda_attention_args *a) {
  const opipe_value *q = cuda_in(r, IN_Q);
  const int64_t four[4] = {a->batch, a->heads, a->queries, a->value_depth};
  const int64_t three[3] = {a->batch, a->queries, a->heads * a->value_depth};
  const int64_t present_k[4] = {a->batch, a->kv_heads, a->keys, a->depth};
  const int64_t present_v[4] = {a->batch, a->kv_heads, a->keys, a->value_depth};
  const int64_t scores[4] = {a->batch, a->heads, a->queries, a->keys};
  CUDA_TRY(cuda_expect(r, OUT_Y, q->dtype, q->rank == 4 ? four : three, q->rank));
  if (cuda_out(r, OUT_PRESENT_K) != NULL)
    CUDA_TRY(cuda_expect(r, OUT_PRESENT_K, q->dtype, present_k, 4));
  if (cuda_out(r, OUT_PRESENT_V) != NULL)
    CUDA_TRY(cuda_expect(r, OUT_PRESENT_V, q->dtype, present_v, 4));
  if (cuda_out(r, OUT_FOUND) != NULL)
    CUDA_TRY(cuda_expect(r, OUT_FOUND, OPIPE_FLOAT, scores, 3));
  return cuda_out(r, OUT_SCORES) != NULL ? cuda_expect(r, OUT_SCORES, q->dtype, scores, 4)
                                         : OPIPE_OK;
}

opipe_status cuda_attention_emit(cuda_rule *r, const cuda_launch *launches, uint32_t n) {
  const uint32_t n_tags = r->n_tags;
  const opipe_status status = cuda_emit_all(r, launches, n);
  r->n_tags = n_tags;
  return status;
}

/* rows [first, first + rows) of `to` [batch, kv_heads, keys, depth] = a piece. */
static opipe_status emit_piece(cuda_rule *r, const cuda_attention_args *a, void *to,
                               const void *from, const int64_t *from_stride, int64_t first,
                               int64_t rows, int64_t depth) {
  const uint32_t size = cuda_size(cuda_in(r, IN_Q));
  cuda_loop loop = {.shape = {a->batch, a->kv_heads, rows, depth}, .rank = 4, .n_operands = 2};
  cuda_move_args args = {.n = a->batch * a->kv_heads * rows * depth, .size = size};
  cuda_launch launch;
  if (args.n == 0)
    return OPIPE_OK;
  memcpy(loop.stride[0], from_stride, 3 * sizeof from_stride[0]);
  cuda_head_strides(false, a->kv_heads, a->keys, depth, loop.stride[1]);
  loop.stride[0][3] = loop.stride[1][3] = 1;
  CUDA_TRY(cuda_loop_merge(r, &loop));
  args.rank = loop.rank;
  for (uint32_t i = 0; i < loop.rank; ++i) {
    args.shape[i] = loop.shape[i];
    args.in_stride[i] = loop.stride[0][i];
    args.out_stride[i] = loop.stride[1][i];
  }
  args.in = from;
  args.out = (void *)((uintptr_t)to + (uintptr_t)(first * depth) * size);
  return cuda_plan_move(&args, &launch) ? cuda_attention_emit(r, &launch, 1)
                                        : cuda_no_kernel(r, cuda_in(r, IN_Q));
}

opipe_status cuda_attention_join(cuda_rule *r, const cuda_attention_args *a, void *k, void *v) {
  const int64_t fresh = a->keys - a->past;
  if (k != NULL) {
    CUDA_TRY(emit_piece(r, a, k, a->past_k, a->past_k_stride, 0, a->past, a->depth));
    CUDA_TRY(emit_piece(r, a, k, a->k, a->k_stride, a->past, fresh, a->depth));
  }
  if (v != NULL) {
    CUDA_TRY(emit_piece(r, a, v, a->past_v, a->past_v_stride, 0, a->past, a->value_depth));
    CUDA_TRY(emit_piece(r, a, v, a->v, a->v_stride, a->past, fresh, a->value_depth));
  }
  return OPIPE_OK;
}

static opipe_status emit_own(cuda_rule *r, cuda_attention_args *args, uint32_t dtype) {
  args->no_few = !r->program->device->few_attention;
  const uint64_t n_bytes = cuda_attention_workspace(args, dtype);
  cuda_launch launches[CUDA_ATTENTION_LAUNCHES];
  args->workspace = n_bytes > 0 ? cuda_at(r, CUDA_AT_WORKSPACE, 0) : NULL;
  args->counters = cuda_attention_counters(args, dtype) > 0 ? cuda_at_counters(r) : NULL;
  const uint32_t n = cuda_plan_attention(args, dtype, launches);
  if (n == 0)
    return cuda_no_kernel(r, cuda_in(r, IN_Q));
  CUDA_TRY(cuda_attention_emit(r, launches, n));
  cuda_want_workspace(r, n_bytes);
  return OPIPE_OK;
}

static opipe_status rule_attention(cuda_rule *r) {
  const opipe_value *q = cuda_in(r, IN_Q);
  cuda_attention_args args;
  bool done = false;
  CUDA_TRY(cuda_attention_read(r, 0, &args));
  CUDA_TRY(check_outputs(r, &args));
  const int64_t mode = opipe_attr_int(r->node, "qk_matmul_output_mode", 0);
  args.scores_mode = (uint32_t)mode;
  if (mode < 0 || mode > 3)
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "qk_matmul_output_mode %lld", (long long)mode);
  cuda_attention_point(r, 0, &args);
  args.y = cuda_at_out(r, OUT_Y);
  args.scores = cuda_at_out(r, OUT_SCORES);
  args.found = cuda_at_out(r, OUT_FOUND);
  CUDA_TRY(cuda_attention_by_dnn(r, &args, q->dtype, &done));
  if (!done)
    CUDA_TRY(emit_own(r, &args, q->dtype));
  return done && args.past > 0 ? OPIPE_OK
                               : cuda_attention_join(r, &args, cuda_at_out(r, OUT_PRESENT_K),
                                                     cuda_at_out(r, OUT_PRESENT_V));
}

/* ---- rotary ---- */

static opipe_status read_rotary(const cuda_rule *r, cuda_rotary_args *a) {
  const opipe_value *x = cuda_in(r, 0);
  if (!cuda_is_float(x->dtype) || (x->rank != 3 && x->rank != 4)) {
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "%s of rank %u", opipe_dtype_name(x->dtype),
                       x->rank);
  }
  a->batch = x->shape[0];
  a->heads = x->rank == 4 ? x->shape[1] : opipe_attr_int(r->node, "num_heads", 0);
  a->queries = x->rank == 4 ? x->shape[2] : x->shape[1];
  if (x->rank == 3 && (a->heads <= 0 || x->shape[2] % a->heads != 0)) {
    return cuda_refuse(r, OPIPE_E_INVALID, "%lld features in %lld heads", (long long)x->shape[2],
                       (long long)a->heads);
  }
  a->depth = x->rank == 4 ? x->shape[3] : x->shape[2] / a->heads;
  a->turned = opipe_attr_int(r->node, "rotary_embedding_dim", 0);
  a->turned = a->turned == 0 ? a->depth : a->turned;
  a->interleaved = opipe_attr_int(r->node, "interleaved", 0) != 0;
  if (a->turned < 2 || a->turned > a->depth || a->turned % 2 != 0) {
    return cuda_refuse(r, OPIPE_E_INVALID, "it turns %lld of %lld elements", (long long)a->turned,
                       (long long)a->depth);
  }
  cuda_head_strides(x->rank == 3, a->heads, a->queries, a->depth, a->x_stride);
  memcpy(a->y_stride, a->x_stride, sizeof a->y_stride);
  return OPIPE_OK;
}

static opipe_status read_caches(const cuda_rule *r, cuda_rotary_args *a) {
  const opipe_value *c = cuda_in(r, 1), *s = cuda_in(r, 2), *ids = cuda_in(r, 3);
  const uint32_t rank = ids != NULL ? 2 : 3;
  if (c->rank != rank || !cuda_same_shape(c, s) || c->dtype != s->dtype ||
      c->shape[rank - 1] != a->turned / 2) {
    return cuda_refuse(r, OPIPE_E_INVALID, "its caches do not fit %lld angles",
                       (long long)a->turned / 2);
  }
  if (ids != NULL) {
    const int64_t wanted[2] = {a->batch, a->queries};
    a->positions = c->shape[0];
    if (ids->dtype != OPIPE_INT64 || ids->rank != 2 ||
        memcmp(ids->shape, wanted, sizeof wanted) != 0) {
      return cuda_refuse(r, OPIPE_E_INVALID, "position_ids is not int64 [%lld, %lld]",
                         (long long)wanted[0], (long long)wanted[1]);
    }
    return OPIPE_OK;
  }
  a->positions = c->shape[0] * c->shape[1];
  a->per_batch = c->shape[0] != 1;
  return c->shape[1] == a->queries && (c->shape[0] == 1 || c->shape[0] == a->batch)
             ? OPIPE_OK
             : cuda_refuse(r, OPIPE_E_INVALID, "its caches are [%lld, %lld, ...] for [%lld, %lld]",
                           (long long)c->shape[0], (long long)c->shape[1], (long long)a->batch,
                           (long long)a->queries);
}

static opipe_status rule_rotary(cuda_rule *r) {
  const opipe_value *x = cuda_in(r, 0);
  cuda_rotary_args args = {.batch = 0};
  cuda_launch launch;
  CUDA_TRY(cuda_expect_like(r, 0, x));
  CUDA_TRY(read_rotary(r, &args));
  CUDA_TRY(read_caches(r, &args));
  args.x = cuda_at_in(r, 0);
  args.cosines = cuda_at_in(r, 1);
  args.sines = cuda_at_in(r, 2);
  args.ids = cuda_at_in(r, 3);
  args.y = cuda_at_out(r, 0);
  if (args.ids != NULL)
    CUDA_TRY(cuda_at_status(r, &args.status, &args.node));
  return cuda_plan_rotary(&args, x->dtype, cuda_in(r, 1)->dtype, &launch) ? cuda_emit(r, &launch)
                                                                          : cuda_no_kernel(r, x);
}

static const cuda_row rows[] = {{"Attention", rule_attention, 3, 7, OUTPUTS},
                                {"RotaryEmbedding", rule_rotary, 3, 4, 1}};

const cuda_family cuda_attention_family = {"", CUDA_ROWS(rows)};
