/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of element-wise functions and of moves: which kernel takes which
 * types and strides. */
#include <string.h>

#include "plan.h"

/* ---- element by element ---- */

/* How an operand is read when the result is read in order: 0 in order too, p > 0 it repeats every p
 * elements; -1 neither. */
static int64_t period_of(const cuda_map_args *args, uint32_t operand) {
  int64_t dense = 1;
  bool repeats = false;
  for (uint32_t i = args->rank; i > 0; --i) {
    const int64_t stride = args->stride[operand][i - 1];
    if (args->shape[i - 1] == 1)
      continue;
    if (stride == dense && !repeats)
      dense *= args->shape[i - 1];
    else if (stride == 0)
      repeats = true;
    else
      return -1;
  }
  return repeats ? dense : 0;
}

static bool is_hot(uint32_t op) {
  switch (op) {
    case CUDA_MAP_NEG:
    case CUDA_MAP_SQRT:
    case CUDA_MAP_EXP:
    case CUDA_MAP_RELU:
    case CUDA_MAP_SIGMOID:
    case CUDA_MAP_TANH:
    case CUDA_MAP_GELU:
    case CUDA_MAP_GELU_TANH:
    case CUDA_MAP_SWISH:
    case CUDA_MAP_ADD:
    case CUDA_MAP_SUB:
    case CUDA_MAP_MUL:
    case CUDA_MAP_DIV:
    case CUDA_MAP_GRAD_RELU:
    case CUDA_MAP_GRAD_SIGMOID:
    case CUDA_MAP_GRAD_TANH:
    case CUDA_MAP_GRAD_GELU:
    case CUDA_MAP_GRAD_GELUTANH:
    case CUDA_MAP_GRAD_QUICKGELU:
    case CUDA_MAP_GRAD_SWISH:
      return true;
    default:
      return false;
  }
}

static bool is_binary(uint32_t op) {
  return (op >= CUDA_MAP_ADD && op <= CUDA_MAP_XOR) || op >= CUDA_MAP_GRAD_RELU;
}

/* Blocks of 256 threads, each with 16 bytes of `bytes`-wide elements. */
static uint32_t packet_blocks(int64_t n, uint32_t bytes) {
  return cuda_blocks(n, 256 * 16 / bytes);
}

static bool plan_flat(const cuda_map_args *args, uint32_t dtype, uint32_t place, cuda_launch *out) {
  const uint32_t first = is_binary(args->op) ? CUDA_ID_opipe_two_f32 : CUDA_ID_opipe_one_f32;
  const cuda_flat_block block = {
      .out = args->out,
      .in = {args->in[0], is_binary(args->op) ? args->in[1] : NULL},
      .n = args->n,
      .period = {period_of(args, 0), is_binary(args->op) ? period_of(args, 1) : 0},
      .alpha = args->alpha,
      .op = args->op};
  return cuda_make_launch(first + place, &block, packet_blocks(args->n, cuda_element_bytes(dtype)),
                          1, 0, out);
}

static bool integer_op(uint32_t op) {
  switch (op) {
    case CUDA_MAP_ABS:
    case CUDA_MAP_NEG:
    case CUDA_MAP_SIGN:
    case CUDA_MAP_RELU:
    case CUDA_MAP_CLIP:
      return true;
    default:
      return op >= CUDA_MAP_ADD && op <= CUDA_MAP_PRELU;
  }
}

static bool float_op(uint32_t op) {
  return (op >= CUDA_MAP_ABS && op <= CUDA_MAP_ATANH) ||
         (op >= CUDA_MAP_RELU && op <= CUDA_MAP_PRELU) || op == CUDA_MAP_CLIP ||
         (op >= CUDA_MAP_GRAD_RELU && op < CUDA_MAP_COUNT);
}

/* Comparisons of floats and integers, Equal also of bools; logic of bools. */
static bool test_op(uint32_t op, uint32_t dtype) {
  const bool floats = cuda_float_place(dtype) >= 0, numbers = floats || cuda_is_integer(dtype);
  switch (op) {
    case CUDA_MAP_ISNAN:
    case CUDA_MAP_ISINF:
      return floats;
    case CUDA_MAP_NOT:
    case CUDA_MAP_AND:
    case CUDA_MAP_OR:
    case CUDA_MAP_XOR:
      return dtype == OPIPE_BOOL;
    case CUDA_MAP_EQUAL:
      return numbers || dtype == OPIPE_BOOL;
    default:
      return numbers && op >= CUDA_MAP_GREATER && op <= CUDA_MAP_LESSOREQUAL;
  }
}

/* Dense conversions among fp32, bf16 and fp16. */
static bool plan_convert(const cuda_map_args *args, uint32_t from, uint32_t to, cuda_launch *out) {
  static const uint32_t ids[3][3] = {
      {0, CUDA_ID_opipe_convert_f32_bf16, CUDA_ID_opipe_convert_f32_f16},
      {CUDA_ID_opipe_convert_bf16_f32, 0, CUDA_ID_opipe_convert_bf16_f16},
      {CUDA_ID_opipe_convert_f16_f32, CUDA_ID_opipe_convert_f16_bf16, 0},
  };
  const int a = cuda_float_place(from), b = cuda_float_place(to);
  const cuda_convert_block block = {args->out, args->in[0], args->n};
  return a >= 0 && a < 3 && b >= 0 && b < 3 && a != b && period_of(args, 0) == 0 &&
         cuda_make_launch(ids[a][b], &block, cuda_blocks(args->n, 2048), 1, 0, out);
}

static bool plan_copy(const cuda_map_args *args, uint32_t dtype, cuda_launch *out) {
  cuda_move_args move = {.out = args->out,
                         .in = args->in[0],
                         .n = args->n,
                         .rank = args->rank,
                         .size = cuda_element_bytes(dtype)};
  int64_t dense = 1;
  if (move.size == 0 || args->rank > CUDA_AXES)
    return false;
  for (uint32_t i = args->rank; i > 0; --i) {
    move.shape[i - 1] = args->shape[i - 1];
    move.in_stride[i - 1] = args->stride[0][i - 1];
    move.out_stride[i - 1] = dense;
    dense *= args->shape[i - 1];
  }
  return cuda_plan_move(&move, out);
}

/* The kernel for any strides, 0: none for these types. */
static uint32_t strided_kernel(const cuda_map_args *args, uint32_t in_dtype, uint32_t out_dtype) {
  const int place = cuda_float_place(in_dtype);
  if (args->op == CUDA_MAP_CAST) {
    return cuda_element_bytes(in_dtype) > 0 && cuda_element_bytes(out_dtype) > 0
               ? CUDA_ID_opipe_map_cast
               : 0;
  }
  if (test_op(args->op, in_dtype))
    return out_dtype == OPIPE_BOOL ? CUDA_ID_opipe_map_test : 0;
  if (out_dtype != in_dtype)
    return 0;
  if (args->op == CUDA_MAP_WHERE)
    return cuda_element_bytes(in_dtype) > 0 ? CUDA_ID_opipe_map_where : 0;
  if (place >= 0)
    return float_op(args->op) ? (uint32_t)CUDA_ID_opipe_map_f32 + (uint32_t)place : 0;
  return cuda_is_integer(in_dtype) && integer_op(args->op) ? CUDA_ID_opipe_map_int : 0;
}

bool cuda_plan_map(const cuda_map_args *args, uint32_t in_dtype, uint32_t out_dtype,
                   cuda_launch *out) {
  const int place = cuda_float_place(in_dtype);
  if (args->op == CUDA_MAP_COPY || (args->op == CUDA_MAP_CAST && in_dtype == out_dtype))
    return in_dtype == out_dtype && plan_copy(args, in_dtype, out);
  const uint32_t id = strided_kernel(args, in_dtype, out_dtype);
  if (id == 0)
    return false;
  if (args->op == CUDA_MAP_CAST && plan_convert(args, in_dtype, out_dtype, out))
    return true;
  if (place >= 0 && place < 3 && is_hot(args->op) && period_of(args, 0) >= 0 &&
      (!is_binary(args->op) || period_of(args, 1) >= 0))
    return plan_flat(args, in_dtype, (uint32_t)place, out);
  const int64_t *strides[CUDA_OPERANDS] = {args->stride[0], args->stride[1], args->stride[2]};
  cuda_map_block block = {.out = args->out,
                          .in = {args->in[0], args->in[1], args->in[2]},
                          .n = args->n,
                          .alpha = args->alpha,
                          .beta = args->beta,
                          .gamma = args->gamma,
                          .status = args->status,
                          .node = args->node,
                          .op = args->op,
                          .in_dtype = in_dtype,
                          .out_dtype = out_dtype,
                          .size = cuda_element_bytes(in_dtype),
                          .is_u64 = in_dtype == OPIPE_UINT64};
  return cuda_make_axes(args->shape, args->rank, strides, CUDA_OPERANDS, &block.axes) &&
         cuda_make_launch(id, &block, cuda_blocks(args->n, 512), 1, 0, out);
}

bool cuda_plan_gate(const cuda_gate_args *args, uint32_t dtype, cuda_launch *out) {
  const int place = cuda_float_place(dtype);
  const bool known = args->op == CUDA_MAP_SIGMOID || args->op == CUDA_MAP_RELU ||
                     args->op == CUDA_MAP_GELU || args->op == CUDA_MAP_GELU_TANH ||
                     args->op == CUDA_MAP_SWISH;
  return known && place >= 0 && place < 3 &&
         cuda_make_launch((uint32_t)CUDA_ID_opipe_gate_f32 + (uint32_t)place, args,
                          packet_blocks(args->n, cuda_element_bytes(dtype)), 1, 0, out);
}

bool cuda_plan_gate_grad(const cuda_gate_grad_args *args, uint32_t dtype, cuda_launch *out) {
  const int place = cuda_float_place(dtype);
  const bool known = args->op == CUDA_MAP_GRAD_RELU || args->op == CUDA_MAP_GRAD_GELU ||
                     args->op == CUDA_MAP_GRAD_GELUTANH || args->op == CUDA_MAP_GRAD_SWISH ||
                     args->op == CUDA_MAP_GRAD_QUICKGELU;
  return known && place >= 0 && place < 3 &&
         cuda_make_launch((uint32_t)CUDA_ID_opipe_gate_grad_f32 + (uint32_t)place, args,
                          packet_blocks(args->n, cuda_element_bytes(dtype)), 1, 0, out);
}

bool cuda_plan_accumulate(const cuda_accumulate_args *args, uint32_t dtype, cuda_launch *out) {
  const int place = cuda_float_place(dtype);
  const cuda_convert_block block = {args->to, args->x, args->n};
  return place >= 0 && place < 3 &&
         cuda_make_launch((uint32_t)CUDA_ID_opipe_accumulate_f32 + (uint32_t)place, &block,
                          cuda_blocks(args->n, place == 0 ? 1024 : 2048), 1, 0, out);
}

/* ---- moves ---- */

/* A swap of two axes, at most one more axis around them, that tiles are worth
 * while for. */
static bool plan_transpose(const cuda_move_args *args, cuda_launch *out) {
  cuda_transpose_block block = {.out = args->out, .in = args->in, .batch = 1, .size = args->size};
  int from = -1, to = -1;
  for (uint32_t i = 0; i < args->rank; ++i) {
    from = args->in_stride[i] == 1 && args->shape[i] > 1 ? (int)i : from;
    to = args->out_stride[i] == 1 && args->shape[i] > 1 ? (int)i : to;
  }
  if (from < 0 || to < 0 || from == to || args->shape[from] < 8 || args->shape[to] < 8)
    return false;
  for (uint32_t i = 0; i < args->rank; ++i) {
    if ((int)i == from || (int)i == to || args->shape[i] == 1)
      continue;
    if (block.batch != 1)
      return false;
    block.batch = args->shape[i];
    block.in_batch = args->in_stride[i];
    block.out_batch = args->out_stride[i];
  }
  block.columns = args->shape[from];
  block.rows = args->shape[to];
  block.in_row = args->in_stride[to];
  block.out_row = args->out_stride[from];
  const int64_t tiles = (block.columns + 31) / 32 * ((block.rows + 31) / 32) * block.batch;
  return cuda_make_launch(CUDA_ID_opipe_transpose, &block, cuda_blocks(tiles, 1), 1, 0, out);
}

/* Elements of `unit` bytes instead of `size`, where the last axis is dense on
 * both sides. */
static bool widen_elements(cuda_move_args *io, uint32_t unit) {
  const uint32_t last = io->rank - 1;
  const int64_t by = unit / io->size;
  bool fits = io->rank > 0 && io->in_stride[last] == 1 && io->out_stride[last] == 1 &&
              io->shape[last] % by == 0 && ((uintptr_t)io->in | (uintptr_t)io->out) % unit == 0;
  for (uint32_t i = 0; fits && i < last; ++i)
    fits = io->shape[i] == 1 || (io->in_stride[i] % by == 0 && io->out_stride[i] % by == 0);
  if (!fits)
    return false;
  for (uint32_t i = 0; i < last; ++i) {
    io->in_stride[i] /= by;
    io->out_stride[i] /= by;
  }
  io->shape[last] /= by;
  io->n /= by;
  io->size = unit;
  return true;
}

bool cuda_plan_move(const cuda_move_args *args, cuda_launch *out) {
  cuda_move_args wide = *args;
  if (args->rank > CUDA_AXES ||
      (args->size != 1 && args->size != 2 && args->size != 4 && args->size != 8))
    return false;
  if (plan_transpose(args, out))
    return true;
  for (uint32_t unit = 16; unit > args->size && !widen_elements(&wide, unit); unit /= 2)
    continue;
  const int64_t *strides[2] = {wide.in_stride, wide.out_stride};
  cuda_move_block block = {.out = args->out, .in = args->in, .n = wide.n, .size = wide.size};
  return cuda_make_axes(wide.shape, wide.rank, strides, 2, &block.axes) &&
         cuda_make_launch(CUDA_ID_opipe_move, &block, cuda_blocks(wide.n, 512), 1, 0, out);
}

bool cuda_plan_fill(const cuda_fill_args *args, cuda_launch *out) {
  return (args->size == 1 || args->size == 2 || args->size == 4 || args->size == 8) &&
         cuda_make_launch(CUDA_ID_opipe_fill, args, cuda_blocks(args->n, 1024), 1, 0, out);
}

bool cuda_plan_gather(const cuda_gather_args *args, cuda_launch *out) {
  cuda_gather_block block = {*args, args->size, 0};
  if ((args->size & (args->size - 1)) != 0 || args->size == 0 || args->size > 8 ||
      (args->index_bytes != 4 && args->index_bytes != 8))
    return false;
  while (block.unit < 16 && block.g.inner % 2 == 0 &&
         ((uintptr_t)args->data | (uintptr_t)args->out) % (2 * block.unit) == 0) {
    block.unit *= 2;
    block.g.inner /= 2;
  }
  return cuda_make_launch(CUDA_ID_opipe_gather, &block,
                          cuda_blocks(args->outer * args->n_indices * block.g.inner, 256), 1, 0,
                          out);
}

bool cuda_plan_trilu(const cuda_trilu_args *args, cuda_launch *out) {
  return (args->size == 1 || args->size == 2 || args->size == 4 || args->size == 8) &&
         cuda_make_launch(CUDA_ID_opipe_trilu, args,
                          cuda_blocks(args->matrices * args->rows * args->columns, 512), 1, 0, out);
}

bool cuda_plan_relay(const cuda_relay_args *args, cuda_launch *out) {
  const int64_t run_bytes = 4096, n_runs = (args->n * args->size + run_bytes - 1) / run_bytes;
  return (args->size == 2 || args->size == 4) && args->rows > 0 && args->n > 0 &&
         cuda_make_launch(CUDA_ID_opipe_relay, args, cuda_blocks(args->rows * n_runs, 8), 1, 0,
                          out);
}
