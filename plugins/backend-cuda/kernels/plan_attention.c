/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of attention and its gradients: of few rows by parts of the keys, of more by tiles on
 * the matrix instructions, where the form and its types let them; else plainly. */
#include "opipe/backend.h"
#include "plan.h"

/* A block a row: a thread for each element of a head, and for each key. */
static void launch_attention(uint32_t id, const cuda_attention_args *f, const void *args,
                             int64_t rows, cuda_launch *out) {
  const int64_t widest = f->depth > f->value_depth ? f->depth : f->value_depth;
  const int64_t wanted = f->keys > widest ? f->keys : widest;
  cuda_make_launch(id, args, cuda_blocks(rows, 1), 1, 0, out);
  while (out->block[0] > 32 && (int64_t)out->block[0] / 2 >= wanted)
    out->block[0] /= 2;
}

/* ---- by tiles (parts/flash.cuh) ---- */

enum {
  LEAST_KEYS = 32,    /* below, tiles are mostly empty */
  MOST_ROWS = 1 << 24 /* of queries and of keys */
};

/* By packets of n elements: 16 bytes at a multiple of 16. */
static bool by_packets(const void *at, const int64_t *stride, int64_t n) {
  return (uintptr_t)at % 16 == 0 && stride[0] % n == 0 && stride[1] % n == 0 && stride[2] % n == 0;
}
static bool by_eights(const void *at, const int64_t *stride) {
  return by_packets(at, stride, 8);
}

/* Rows of packets of n elements that are short enough, and sizes that tiles count. */
static bool fits_tiles(const cuda_attention_args *f, int64_t n) {
  return f->scores == NULL && f->depth % n == 0 && f->value_depth % n == 0 &&
         f->depth <= CUDA_FLASH_DEPTH && f->value_depth <= CUDA_FLASH_DEPTH &&
         f->keys >= LEAST_KEYS && f->keys <= MOST_ROWS && f->queries > 0 &&
         f->queries <= MOST_ROWS && by_packets(f->q, f->q_stride, n) &&
         by_packets(f->k, f->k_stride, n) && by_packets(f->v, f->v_stride, n) &&
         by_packets(f->past_k, f->past_k_stride, n) && by_packets(f->past_v, f->past_v_stride, n);
}

static bool is_flash(const cuda_attention_args *f, uint32_t dtype) {
  return (dtype == OPIPE_BFLOAT16 || dtype == OPIPE_FLOAT16) && fits_tiles(f, 8);
}

/* Depth of a row in tiles. */
static int64_t tile_depth(const cuda_attention_args *f) {
  return f->depth <= 64 && f->value_depth <= 64 ? 64 : 128;
}

/* Nothing but its place says what a row sees, and scores are products with a factor above 0. */
static bool is_bare(const cuda_attention_args *f) {
  return f->mask_kind == 0 && !(f->softcap > 0) && f->scale > 0;
}

static int64_t tiles_of(int64_t n, int64_t tile) {
  return (n + tile - 1) / tile;
}

/* The kernel of a family, which begins with depth 64 and bf16, of which those with masks are the
 * second half: a block for each own tile of n rows in each of `heads`, with `rows` other rows of
 * tiles and `more` bytes behind them. */
static bool launch_flash(uint32_t family, const cuda_attention_args *f, uint32_t dtype,
                         const void *args, int64_t heads, int64_t n, int64_t own, int64_t rows,
                         uint32_t more, cuda_launch *out) {
  const int64_t depth = tile_depth(f), size = CUDA_FLASH_ROWS(depth, is_bare(f));
  const uint32_t id = family + (is_bare(f) ? 0u : 4u) + (depth == 64 ? 0u : 2u) +
                      (dtype == OPIPE_BFLOAT16 ? 0u : 1u);
  return cuda_make_launch(id, args, cuda_blocks(heads * tiles_of(n, size), 1), 1,
                          (uint32_t)((own * size + rows) * depth * 2) + more, out);
}

static bool plan_flash(const cuda_attention_args *f, uint32_t dtype, cuda_launch *out) {
  return launch_flash((uint32_t)CUDA_ID_opipe_flash_64_bf16, f, dtype, f, f->batch * f->heads,
                      f->queries, 1, 4 * CUDA_FLASH_KEYS, 0, out);
}

/* fp32, on plain products (parts/flash_f32.cu). */
static bool plan_flash_plain(const cuda_attention_args *f, cuda_launch *out) {
  const int64_t depth = tile_depth(f), tasks = tiles_of(f->queries, CUDA_FLASH_PLAIN_ROWS);
  const int64_t floats = (CUDA_FLASH_PLAIN_ROWS + CUDA_FLASH_PLAIN_KEYS) * (depth + 4) +
                         CUDA_FLASH_PLAIN_KEYS * depth +
                         CUDA_FLASH_PLAIN_ROWS * (CUDA_FLASH_PLAIN_KEYS + 4);
  const uint32_t id =
      (uint32_t)(depth == 64 ? CUDA_ID_opipe_flash_64_f32 : CUDA_ID_opipe_flash_128_f32);
  return cuda_make_launch(id, f, cuda_blocks(f->batch * f->heads * tasks, 1), 1,
                          (uint32_t)(floats * (int64_t)sizeof(float)), out);
}

static uint32_t plan_flash_grad(const cuda_attention_grad_args *args, uint32_t dtype,
                                cuda_launch *out) {
  const cuda_attention_args *f = &args->forward;
  launch_flash((uint32_t)CUDA_ID_opipe_flash_grad_rows_64_bf16, f, dtype, args, f->batch * f->heads,
               f->queries, 2, 4 * CUDA_FLASH_KEYS, 0, &out[0]);
  launch_flash((uint32_t)CUDA_ID_opipe_flash_grad_keys_64_bf16, f, dtype, args,
               f->batch * f->kv_heads, f->keys, 2, 4 * CUDA_FLASH_QUERIES,
               4 * CUDA_FLASH_QUERIES * sizeof(float) + CUDA_FLASH_TASK_BYTES, &out[1]);
  return 2;
}

static bool is_flash_grad(const cuda_attention_grad_args *g, uint32_t dtype) {
  return is_flash(&g->forward, dtype) && by_eights(g->dy, g->dy_stride) &&
         by_eights(g->dq, g->dq_stride) && by_eights(g->dk, g->dk_stride) &&
         by_eights(g->dv, g->dv_stride) && by_eights(g->dpast_k, g->dpast_k_stride) &&
         by_eights(g->dpast_v, g->dpast_v_stride);
}

/* ---- of few rows (parts/attention_few.cu) ---- */

/* Parts of all key-value heads: a grid has a block for each. */
static int64_t few_blocks(const cuda_attention_args *f) {
  return f->batch * f->kv_heads * tiles_of(f->keys, CUDA_FEW_KEYS);
}

/* By packets, like tiles, with no more rows that read a key-value head than a block has warps: as
 * plain products, so many take about as long as the keys and values do to arrive (2 * 64 keys * 128
 * * 8 rows at 128 a clock, 32 KiB at some 20 bytes a clock and processor). Tiles would be a block a
 * head, of whose rows most are empty. */
static bool is_few(const cuda_attention_args *f, uint32_t dtype) {
  return !f->no_few && few_blocks(f) > 0 && few_blocks(f) <= INT32_MAX && f->found == NULL &&
         f->queries * (f->heads / f->kv_heads) <= CUDA_FEW_QUERIES &&
         (is_flash(f, dtype) || (dtype == OPIPE_FLOAT && fits_tiles(f, 4)));
}

/* With several parts: does the last block to arrive join those of its rows? It takes one row after
 * the other, so that of more than two a launch is sooner done, with a block for each. */
static bool has_counters(const cuda_attention_args *f) {
  return tiles_of(f->keys, CUDA_FEW_KEYS) > 1 && f->queries * (f->heads / f->kv_heads) <= 2 &&
         f->batch * f->kv_heads <= CUDA_COUNTERS;
}

/* A block a part of a key-value head; then, where there are several and no block of them is to go
 * on alone, a block a row. A launch names only the memory that it touches: values die as early as
 * they can. */
static uint32_t plan_few(const cuda_attention_args *args, uint32_t place, cuda_launch *out) {
  const int64_t parts = tiles_of(args->keys, CUDA_FEW_KEYS);
  const uint32_t first = tile_depth(args) == 64 ? (uint32_t)CUDA_ID_opipe_attention_few_64_f32
                                                : (uint32_t)CUDA_ID_opipe_attention_few_128_f32;
  const bool at_once = parts == 1 || (args->counters != NULL && has_counters(args));
  cuda_attention_args few = *args, join = *args;
  if (!at_once)
    few.y = NULL;
  if (parts == 1 || !at_once)
    few.counters = NULL;
  cuda_make_launch(first + place, &few, (uint32_t)few_blocks(args), 1, 0, &out[0]);
  if (at_once)
    return 1;
  join.counters = NULL;
  join.q = join.k = join.v = join.past_k = join.past_v = join.mask = NULL;
  cuda_make_launch((uint32_t)CUDA_ID_opipe_attention_join_f32 + place, &join,
                   cuda_blocks(args->batch * args->heads * args->queries, 1), 1, 0, &out[1]);
  return 2;
}

/* ---- either way ---- */

static uint32_t plan_plain_grad(const cuda_attention_grad_args *args, uint32_t place,
                                cuda_launch *out) {
  const cuda_attention_args *f = &args->forward;
  launch_attention((uint32_t)CUDA_ID_opipe_attention_grad_rows_f32 + place, f, args,
                   f->batch * f->heads * f->queries, &out[0]);
  launch_attention((uint32_t)CUDA_ID_opipe_attention_grad_keys_f32 + place, f, args,
                   f->batch * f->kv_heads * f->keys, &out[1]);
  return 2;
}

/* Room for the values, the largest score and the sum of each row and part. */
uint64_t cuda_attention_workspace(const cuda_attention_args *args, uint32_t dtype) {
  const int64_t parts = tiles_of(args->keys, CUDA_FEW_KEYS);
  return is_few(args, dtype) && parts > 1
             ? (uint64_t)(args->batch * args->heads * args->queries * parts) *
                   (uint64_t)(args->value_depth + 2) * sizeof(float)
             : 0;
}

uint32_t cuda_attention_counters(const cuda_attention_args *args, uint32_t dtype) {
  return is_few(args, dtype) && has_counters(args) ? (uint32_t)(args->batch * args->kv_heads) : 0;
}

uint32_t cuda_plan_attention(const cuda_attention_args *args, uint32_t dtype, cuda_launch *out) {
  const int place = cuda_float_place(dtype);
  if (place < 0 || args->depth > CUDA_DEPTH || args->value_depth > CUDA_DEPTH)
    return 0;
  if (is_few(args, dtype))
    return plan_few(args, (uint32_t)place, out);
  if (is_flash(args, dtype) && by_eights(args->y, args->y_stride))
    return plan_flash(args, dtype, out) ? 1 : 0;
  if (dtype == OPIPE_FLOAT && args->found == NULL && fits_tiles(args, 4) &&
      by_packets(args->y, args->y_stride, 4))
    return plan_flash_plain(args, out) ? 1 : 0;
  launch_attention((uint32_t)CUDA_ID_opipe_attention_f32 + (uint32_t)place, args, args,
                   args->batch * args->heads * args->queries, out);
  return 1;
}

uint64_t cuda_attention_grad_workspace(const cuda_attention_grad_args *args) {
  const cuda_attention_args *f = &args->forward;
  return (uint64_t)(f->batch * f->heads * f->queries) * 3 * sizeof(double);
}

uint32_t cuda_plan_attention_grad(const cuda_attention_grad_args *args, uint32_t dtype,
                                  cuda_launch *out) {
  const cuda_attention_args *f = &args->forward;
  const int place = cuda_float_place(dtype);
  uint32_t n = 0;
  if (place < 0 || f->depth > CUDA_DEPTH || f->value_depth > CUDA_DEPTH)
    return 0;
  if (is_flash_grad(args, dtype))
    n = plan_flash_grad(args, dtype, out);
  else
    n = plan_plain_grad(args, (uint32_t)place, out);
  if (args->dmask != NULL) {
    const int64_t *stride = f->mask_stride;
    const int64_t elements = (stride[0] != 0 ? f->batch : 1) * (stride[1] != 0 ? f->heads : 1) *
                             (stride[2] != 0 ? f->queries : 1) *
                             (stride[3] != 0 ? f->mask_keys : 1);
    cuda_make_launch((uint32_t)CUDA_ID_opipe_attention_grad_mask_f32 + (uint32_t)place, args,
                     cuda_blocks(elements, 256), 1, 0, &out[n++]);
  }
  return n;
}

/* ---- masks for cuDNN (parts/mask.cu) ---- */

uint32_t cuda_mask_type(uint32_t mask_dtype, uint32_t dtype) {
  return dtype == OPIPE_BFLOAT16 && mask_dtype != OPIPE_FLOAT ? OPIPE_BFLOAT16 : OPIPE_FLOAT;
}

bool cuda_plan_mask(const cuda_mask_args *args, uint32_t mask_dtype, uint32_t dtype,
                    cuda_launch *out) {
  const bool half = cuda_mask_type(mask_dtype, dtype) == OPIPE_BFLOAT16;
  const int64_t rows = args->batch * args->heads * args->rows;
  uint32_t id = (uint32_t)CUDA_ID_opipe_mask_f32;
  if (mask_dtype == OPIPE_BOOL)
    id = (uint32_t)(half ? CUDA_ID_opipe_mask_bool_bf16 : CUDA_ID_opipe_mask_bool_f32);
  else if (mask_dtype == OPIPE_BFLOAT16 && half)
    id = (uint32_t)CUDA_ID_opipe_mask_bf16;
  else if (mask_dtype == OPIPE_FLOAT16)
    id = (uint32_t)CUDA_ID_opipe_mask_f16;
  else if (mask_dtype != OPIPE_FLOAT)
    return false;
  return rows > 0 && args->keys > 0 && args->keys <= INT32_MAX &&
         cuda_make_launch(id, args, cuda_blocks(rows, 8), 1, 0, out);
}

/* A thread a row. */
bool cuda_plan_settle(const cuda_settle_args *args, uint32_t dtype, cuda_launch *out) {
  const int64_t rows = args->batch * args->heads * args->queries;
  if ((dtype != OPIPE_BFLOAT16 && dtype != OPIPE_FLOAT16) || rows <= 0)
    return false;
  return cuda_make_launch(
      (uint32_t)(dtype == OPIPE_BFLOAT16 ? CUDA_ID_opipe_settle_bf16 : CUDA_ID_opipe_settle_f16),
      args, cuda_blocks(rows, 256), 1, 0, out);
}
