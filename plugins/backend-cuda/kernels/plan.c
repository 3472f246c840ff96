/* SPDX-License-Identifier: Apache-2.0 */
/* Launches: names, grids, index arithmetic; and those of kernels that need no
 * choice. */
#include "plan.h"

#include <string.h>

typedef struct kernel_row {
  const char *name;
  uint32_t args_bytes, threads;
} kernel_row;

#define KERNEL_ROW(name, type, threads) {#name, sizeof(type), threads},
static const kernel_row kernels[] = {CUDA_KERNELS(KERNEL_ROW)};

#define KERNEL_FITS(name, type, threads) \
  _Static_assert(sizeof(type) <= CUDA_FAR_BYTES, "the argument block of " #name);
CUDA_KERNELS(KERNEL_FITS)

uint32_t cuda_blocks(int64_t n, int64_t per_block) {
  const int64_t blocks = n / per_block + (n % per_block != 0);
  return (uint32_t)(blocks < 1 ? 1 : blocks > CUDA_MAX_BLOCKS ? CUDA_MAX_BLOCKS : blocks);
}

static void make_launch(uint32_t id, uint32_t x, uint32_t y, uint32_t shared_bytes,
                        cuda_launch *out) {
  const kernel_row *row = &kernels[id];
  memset(out, 0, sizeof *out);
  out->kernel = row->name;
  out->grid[0] = x;
  out->grid[1] = y;
  out->grid[2] = 1;
  out->block[0] = row->threads;
  out->block[1] = 1;
  out->block[2] = 1;
  out->shared_bytes = shared_bytes;
  out->args_bytes = row->args_bytes;
}

bool cuda_make_launch(uint32_t id, const void *block, uint32_t x, uint32_t y, uint32_t shared_bytes,
                      cuda_launch *out) {
  make_launch(id, x, y, shared_bytes, out);
  if (out->args_bytes > CUDA_ARGS_BYTES)
    return false;
  memcpy(out->block_args.args, block, out->args_bytes);
  return true;
}

bool cuda_make_far_launch(uint32_t id, const void *block, uint32_t x, cuda_launch *out) {
  make_launch(id, x, 1, 0, out);
  out->far_args = block;
  return true;
}

int cuda_float_place(uint32_t dtype) {
  switch (dtype) {
    case OPIPE_FLOAT:
      return 0;
    case OPIPE_BFLOAT16:
      return 1;
    case OPIPE_FLOAT16:
      return 2;
    case OPIPE_DOUBLE:
      return 3;
    default:
      return -1;
  }
}

int cuda_pair_place(uint32_t dtype, uint32_t second) {
  const int place = cuda_float_place(dtype);
  return place < 0 || dtype == second ? place : second == OPIPE_FLOAT ? place + 3 : -1;
}

uint32_t cuda_element_bytes(uint32_t dtype) {
  const opipe_dtype_row *row = opipe_dtype_row_of(dtype);
  const bool numbers = row->elements == OPIPE_ELEM_FLOAT || row->elements == OPIPE_ELEM_INT ||
                       row->elements == OPIPE_ELEM_UINT || row->elements == OPIPE_ELEM_BOOL;
  return numbers && row->bits >= 8 ? row->bits / 8 : 0;
}

bool cuda_is_integer(uint32_t dtype) {
  const uint16_t elements = opipe_dtype_row_of(dtype)->elements;
  return (elements == OPIPE_ELEM_INT || elements == OPIPE_ELEM_UINT) &&
         cuda_element_bytes(dtype) > 0;
}

static cuda_divisor divisor_of(uint32_t d) {
  cuda_divisor made = {0, 0};
  while (((uint64_t)1 << made.shift) < d)
    ++made.shift;
  const uint64_t over = ((uint64_t)1 << made.shift) - d;
  made.factor = (uint32_t)((over << 32) / d + 1);
  return made;
}

bool cuda_make_axes(const int64_t *shape, uint32_t rank, const int64_t *const *strides,
                    uint32_t n_operands, cuda_axes *out) {
  int64_t n = 1;
  memset(out, 0, sizeof *out);
  if (rank > CUDA_AXES)
    return false;
  out->rank = rank > 0 ? rank : 1;
  out->shape[0] = 1;
  out->divisor[0] = divisor_of(1);
  out->small = 1;
  for (uint32_t i = 0; i < rank; ++i) {
    out->shape[i] = shape[i];
    for (uint32_t k = 0; k < n_operands; ++k)
      out->stride[k][i] = strides[k] == NULL ? 0 : strides[k][i];
    n *= shape[i];
    if (n >= INT64_C(1) << 31 || shape[i] >= INT64_C(1) << 31)
      out->small = 0;
    else
      out->divisor[i] = divisor_of(shape[i] > 0 ? (uint32_t)shape[i] : 1);
  }
  return true;
}

bool cuda_launch_rows(uint32_t warp, uint32_t block, const void *args, int64_t rows, int64_t n,
                      cuda_launch *out) {
  const bool is_short = n <= CUDA_WARP_ROW;
  return cuda_make_launch(is_short ? warp : block, args, cuda_blocks(rows, is_short ? 8 : 1), 1, 0,
                          out);
}

/* ---- runs and checks ---- */

bool cuda_plan_begin(const cuda_begin_args *args, cuda_launch *out) {
  return cuda_make_launch(CUDA_ID_opipe_begin, args, 1, 1, 0, out);
}

bool cuda_plan_report(const cuda_report_args *args, cuda_launch *out) {
  return cuda_make_launch(CUDA_ID_opipe_report, args, 1, 1, 0, out);
}

bool cuda_plan_take(const cuda_take_args *args, cuda_launch *out) {
  return cuda_make_launch(CUDA_ID_opipe_take, args, 1, 1, 0, out);
}

bool cuda_plan_zone(const cuda_zone_args *args, cuda_launch *out) {
  return cuda_make_launch(CUDA_ID_opipe_zone, args, cuda_blocks(args->n, 1024), 1, 0, out);
}

bool cuda_plan_finite(const cuda_finite_args *args, uint32_t dtype, cuda_launch *out) {
  const cuda_finite_block block = {*args, dtype, 0};
  return cuda_float_place(dtype) >= 0 &&
         cuda_make_launch(CUDA_ID_opipe_finite, &block, cuda_blocks(args->n, 1024), 1, 0, out);
}

/* ---- rows ---- */

bool cuda_plan_softmax(const cuda_softmax_args *args, uint32_t dtype, cuda_launch *out) {
  const int place = cuda_float_place(dtype);
  if (place < 0)
    return false;
  if (args->inner != 1 || args->mode == 2) {
    return cuda_make_launch((uint32_t)CUDA_ID_opipe_softmax_line_f32 + (uint32_t)place, args,
                            cuda_blocks(args->outer * args->inner, 256), 1, 0, out);
  }
  return cuda_launch_rows((uint32_t)CUDA_ID_opipe_softmax_warp_f32 + (uint32_t)place,
                          (uint32_t)CUDA_ID_opipe_softmax_block_f32 + (uint32_t)place, args,
                          args->outer, args->n, out);
}

bool cuda_plan_softmax_grad(const cuda_softmax_grad_args *args, uint32_t dtype, cuda_launch *out) {
  const int place = cuda_float_place(dtype);
  if (place < 0)
    return false;
  if (args->inner != 1) {
    return cuda_make_launch((uint32_t)CUDA_ID_opipe_softmax_grad_line_f32 + (uint32_t)place, args,
                            cuda_blocks(args->outer * args->inner, 256), 1, 0, out);
  }
  return cuda_launch_rows((uint32_t)CUDA_ID_opipe_softmax_grad_warp_f32 + (uint32_t)place,
                          (uint32_t)CUDA_ID_opipe_softmax_grad_block_f32 + (uint32_t)place, args,
                          args->outer, args->n, out);
}

bool cuda_plan_norm(const cuda_norm_args *args, uint32_t dtype, uint32_t scale_dtype,
                    cuda_launch *out) {
  const int place = cuda_pair_place(dtype, scale_dtype);
  return place >= 0 && cuda_launch_rows((uint32_t)CUDA_ID_opipe_norm_warp_f32 + (uint32_t)place,
                                        (uint32_t)CUDA_ID_opipe_norm_block_f32 + (uint32_t)place,
                                        args, args->rows, args->n, out);
}

bool cuda_plan_norm_grad(const cuda_norm_grad_args *args, uint32_t dtype, uint32_t scale_dtype,
                         cuda_launch *out) {
  const int place = cuda_pair_place(dtype, scale_dtype);
  return place >= 0 &&
         cuda_launch_rows((uint32_t)CUDA_ID_opipe_norm_grad_warp_f32 + (uint32_t)place,
                          (uint32_t)CUDA_ID_opipe_norm_grad_block_f32 + (uint32_t)place, args,
                          args->rows, args->n, out);
}

bool cuda_plan_group_norm(const cuda_group_norm_args *args, uint32_t dtype, uint32_t scale_dtype,
                          cuda_launch *out) {
  const int place = cuda_pair_place(dtype, scale_dtype);
  return place >= 0 &&
         cuda_make_launch((uint32_t)CUDA_ID_opipe_group_norm_f32 + (uint32_t)place, args,
                          cuda_blocks(args->batch * args->groups, 1), 1, 0, out);
}

/* ---- rotary embedding ---- */

bool cuda_plan_rotary(const cuda_rotary_args *args, uint32_t dtype, uint32_t cache_dtype,
                      cuda_launch *out) {
  const int place = cuda_pair_place(dtype, cache_dtype);
  const int64_t per_row = args->depth - args->turned / 2;
  return place >= 0 &&
         cuda_make_launch((uint32_t)CUDA_ID_opipe_rotary_f32 + (uint32_t)place, args,
                          cuda_blocks(args->batch * args->heads * args->queries * per_row, 256), 1,
                          0, out);
}

/* ---- sums over rows ---- */

static uint32_t chunks_of(int64_t rows) {
  return (uint32_t)((rows + CUDA_CHUNK_ROWS - 1) / CUDA_CHUNK_ROWS);
}

uint64_t cuda_norm_scale_workspace(const cuda_norm_scale_args *args) {
  return (2 * (uint64_t)args->rows + 2 * (uint64_t)chunks_of(args->rows) * (uint64_t)args->n) *
         sizeof(double);
}

/* Chunks lie along y of a grid. */
static bool too_many_chunks(int64_t rows) {
  return rows > INT64_C(65535) * CUDA_CHUNK_ROWS;
}

static uint32_t column_blocks(int64_t n, int64_t per_block) {
  return (uint32_t)(n < 1 ? 1 : (n + per_block - 1) / per_block);
}

/* Columns that a block of 32 packets a row takes. */
static int64_t packet_columns(uint32_t dtype) {
  return 32 * 16 / (int64_t)cuda_element_bytes(dtype);
}

uint32_t cuda_plan_norm_scale(const cuda_norm_scale_args *args, uint32_t dtype, cuda_launch *out) {
  const int place = cuda_float_place(dtype);
  if (place < 0 || too_many_chunks(args->rows))
    return 0;
  const uint32_t chunks = chunks_of(args->rows);
  uint32_t n = 0;
  if (chunks > 0) {
    if (!args->given) {
      cuda_launch_rows((uint32_t)CUDA_ID_opipe_norm_moments_warp_f32 + (uint32_t)place,
                       (uint32_t)CUDA_ID_opipe_norm_moments_block_f32 + (uint32_t)place, args,
                       args->rows, args->n, &out[n++]);
    }
    cuda_make_launch((uint32_t)CUDA_ID_opipe_norm_chunks_f32 + (uint32_t)place, args,
                     column_blocks(args->n, packet_columns(dtype)), chunks, 0, &out[n++]);
  }
  cuda_make_launch(
      dtype == OPIPE_DOUBLE ? CUDA_ID_opipe_norm_sums_f64 : CUDA_ID_opipe_norm_sums_f32, args,
      column_blocks(args->n, 32), 2, 0, &out[n++]);
  return n;
}

uint64_t cuda_columns_workspace(const cuda_columns_args *args) {
  return (uint64_t)chunks_of(args->rows) * (uint64_t)args->n * sizeof(double);
}

uint32_t cuda_plan_columns(const cuda_columns_args *args, uint32_t dtype, cuda_launch *out) {
  const int place = cuda_float_place(dtype);
  const uint32_t first =
      args->distance != 0 ? CUDA_ID_opipe_column_far_f32 : CUDA_ID_opipe_column_chunks_f32;
  if (place < 0 || too_many_chunks(args->rows) ||
      ((args->adds || args->distance != 0) && dtype == OPIPE_DOUBLE))
    return 0;
  const uint32_t chunks = chunks_of(args->rows);
  uint32_t n = 0;
  if (chunks > 0) {
    cuda_make_launch(first + (uint32_t)place, args, column_blocks(args->n, packet_columns(dtype)),
                     chunks, 0, &out[n++]);
  }
  cuda_make_launch((uint32_t)CUDA_ID_opipe_column_sums_f32 + (uint32_t)(args->adds ? 0 : place),
                   args, column_blocks(args->n, 32), 1, 0, &out[n++]);
  return n;
}

/* Rows of a chunk: a multiple of the warps, of the number of rows alone. */
static int64_t norm_chunk(int64_t rows) {
  const int64_t each = (rows + CUDA_NORM_CHUNKS - 1) / CUDA_NORM_CHUNKS;
  const int64_t even = (each + CUDA_NORM_WARPS - 1) / CUDA_NORM_WARPS * CUDA_NORM_WARPS;
  return even > CUDA_NORM_LEAST ? even : CUDA_NORM_LEAST;
}

static int64_t norm_chunks(int64_t rows) {
  return (rows + norm_chunk(rows) - 1) / norm_chunk(rows);
}

static uint32_t count_sums(const cuda_norm_sums_args *args) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < CUDA_NORM_SUMS; ++i)
    n += args->sums[i] != NULL;
  return n;
}

uint64_t cuda_norm_sums_workspace(const cuda_norm_sums_args *args) {
  return (uint64_t)norm_chunks(args->grad.rows) * count_sums(args) * (uint64_t)args->grad.n *
         sizeof(float);
}

_Static_assert((int)opipe_norm_grad_sums_f32_threads == (int)CUDA_NORM_THREADS,
               "parts/norm_sums.cu counts on it");

uint32_t cuda_plan_norm_sums(const cuda_norm_sums_args *args, uint32_t dtype, uint32_t scale_dtype,
                             cuda_launch *out) {
  const int place = dtype == OPIPE_DOUBLE ? -1 : cuda_pair_place(dtype, scale_dtype);
  const int64_t n = args->grad.n, rows = args->grad.rows;
  cuda_norm_sums_block block = {.g = args->grad,
                                .partial = args->workspace,
                                .chunk = norm_chunk(rows),
                                .chunks = norm_chunks(rows)};
  if (place < 0 || count_sums(args) == 0 || rows < 1 || n < 1 || n > CUDA_WARP_ROW)
    return 0;
  const int64_t strip = packet_columns(dtype), each = (n + strip - 1) / strip * strip;
  block.g.statistics = NULL;
  for (uint32_t i = 0; i < CUDA_NORM_SUMS; ++i) {
    block.place[i] = args->sums[i] != NULL ? (int32_t)(block.n_sums * each) : -1;
    block.n_sums += args->sums[i] != NULL;
  }
  /* kernels without a double form follow each other */
  cuda_make_launch(
      (uint32_t)CUDA_ID_opipe_norm_grad_sums_f32 + (uint32_t)(place > 3 ? place - 1 : place),
      &block, (uint32_t)block.chunks, 1,
      (uint32_t)(CUDA_NORM_WARPS * block.n_sums * each) * sizeof(float), &out[0]);
  block.g = (cuda_norm_grad_args){.n = n}; /* nothing that it does not touch: values die early */
  block.n_sums = 0;
  for (uint32_t i = 0; i < CUDA_NORM_SUMS; ++i) {
    if (args->sums[i] == NULL)
      continue;
    block.adds |= (args->adds >> i & 1u) << block.n_sums;
    block.sums[block.n_sums++] = args->sums[i];
  }
  cuda_make_launch(CUDA_ID_opipe_norm_grad_totals, &block, column_blocks(n, 32), block.n_sums, 0,
                   &out[1]);
  return 2;
}

/* ---- reductions and orders ---- */

/* A thread, a warp or a block takes a result: by the number and the stride of
 * its elements. */
static uint32_t reduce_kernel(const cuda_reduce_args *args, uint32_t place) {
  const bool dense = args->reduced_rank == 0 || args->reduced_stride[args->reduced_rank - 1] == 1;
  if (args->n_in >= (dense ? 2048 : 4096))
    return CUDA_ID_opipe_reduce_block_f32 + place;
  return (dense && args->n_in >= 32 ? (uint32_t)CUDA_ID_opipe_reduce_warp_f32
                                    : (uint32_t)CUDA_ID_opipe_reduce_thread_f32) +
         place;
}

bool cuda_plan_reduce(const cuda_reduce_args *args, uint32_t dtype, cuda_launch *out) {
  const int place = cuda_float_place(dtype);
  const int64_t *kept = args->kept_stride, *reduced = args->reduced_stride;
  cuda_reduce_block block = {.out = args->out,
                             .in = args->in,
                             .n_out = args->n_out,
                             .n_in = args->n_in,
                             .op = args->op,
                             .dtype = dtype,
                             .is_u64 = dtype == OPIPE_UINT64};
  const bool ordered = args->op == CUDA_REDUCE_MAX || args->op == CUDA_REDUCE_MIN;
  if (place < 0 && !cuda_is_integer(dtype) && !(dtype == OPIPE_BOOL && ordered))
    return false;
  if (args->op >= CUDA_REDUCE_COUNT ||
      !cuda_make_axes(args->kept_shape, args->kept_rank, &kept, 1, &block.kept) ||
      !cuda_make_axes(args->reduced_shape, args->reduced_rank, &reduced, 1, &block.reduced))
    return false;
  if (place < 0) {
    return cuda_make_launch(CUDA_ID_opipe_reduce_int, &block, cuda_blocks(args->n_out, 256), 1, 0,
                            out);
  }
  const uint32_t id = reduce_kernel(args, (uint32_t)place);
  const int64_t per_block = id >= CUDA_ID_opipe_reduce_block_f32  ? 1
                            : id >= CUDA_ID_opipe_reduce_warp_f32 ? 8
                                                                  : 256;
  return cuda_make_launch(id, &block, cuda_blocks(args->n_out, per_block), 1, 0, out);
}

bool cuda_plan_einsum(const cuda_einsum_args *args, uint32_t dtype, cuda_launch *out) {
  const int64_t *kept[CUDA_EINSUM_OPERANDS], *summed[CUDA_EINSUM_OPERANDS];
  cuda_einsum_block block = {.out = args->out,
                             .n_out = args->n_out,
                             .n_summed = args->n_summed,
                             .n_operands = args->n_operands,
                             .dtype = dtype};
  for (uint32_t i = 0; i < CUDA_EINSUM_OPERANDS; ++i) {
    block.in[i] = args->in[i];
    kept[i] = args->kept_stride[i];
    summed[i] = args->summed_stride[i];
  }
  return (cuda_float_place(dtype) >= 0 || cuda_is_integer(dtype)) && args->n_operands > 0 &&
         args->n_operands <= CUDA_EINSUM_OPERANDS &&
         cuda_make_axes(args->kept_shape, args->kept_rank, kept, CUDA_EINSUM_OPERANDS,
                        &block.kept) &&
         cuda_make_axes(args->summed_shape, args->summed_rank, summed, CUDA_EINSUM_OPERANDS,
                        &block.summed) &&
         cuda_make_launch(CUDA_ID_opipe_einsum, &block, cuda_blocks(args->n_out, 256), 1, 0, out);
}

bool cuda_plan_cumsum(const cuda_cumsum_args *args, uint32_t dtype, cuda_launch *out) {
  const cuda_typed_block block = {args->y,
                                  args->x,
                                  args->outer,
                                  args->n,
                                  args->inner,
                                  dtype,
                                  (args->exclusive ? 1u : 0u) | (args->reverse ? 2u : 0u)};
  return (cuda_float_place(dtype) >= 0 || cuda_is_integer(dtype)) &&
         cuda_make_launch(CUDA_ID_opipe_cumsum, &block, cuda_blocks(args->outer * args->inner, 256),
                          1, 0, out);
}
