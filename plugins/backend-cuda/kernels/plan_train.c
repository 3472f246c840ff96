/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of losses, dropout, writing and reading by index, optimizers,
 * products of few rows. */
#include <string.h>

#include "opipe/backend.h"
#include "plan.h"

/* ---- losses ---- */

uint64_t cuda_loss_workspace(const cuda_loss_args *args) {
  return (uint64_t)(args->rows * args->inner) * 2 * sizeof(double);
}

_Static_assert((int)opipe_loss_block_f32_threads == (int)CUDA_LOSS_THREADS &&
                   (int)opipe_loss_grad_block_f32_threads == (int)CUDA_LOSS_THREADS,
               "parts/loss_rows.cu counts on it");

/* Place of a type of scores with its losses' among the kernels of rows; -1: none. */
static int loss_place(uint32_t dtype, uint32_t loss_dtype, bool is_row) {
  const int place =
      dtype == OPIPE_DOUBLE && loss_dtype != dtype ? -1 : cuda_pair_place(dtype, loss_dtype);
  return is_row || dtype == loss_dtype ? place : -1;
}

/* A block a row of classes that lie side by side, else a thread a line. */
static bool is_row(int64_t classes, int64_t inner) {
  return inner == 1 && classes <= INT32_MAX - CUDA_LOSS_KEPT;
}

static void launch_classes(uint32_t block, uint32_t line, const void *args, int64_t rows,
                           int64_t inner, uint32_t kept, bool row, cuda_launch *out) {
  if (row)
    cuda_make_launch(block, args, cuda_blocks(rows, 1), 1, kept, out);
  else
    cuda_make_launch(line, args, cuda_blocks(rows * inner, 256), 1, 0, out);
}

uint32_t cuda_plan_loss(const cuda_loss_args *args, uint32_t dtype, uint32_t loss_dtype,
                        cuda_launch *out) {
  const bool row = is_row(args->classes, args->inner);
  const int place = loss_place(dtype, loss_dtype, row);
  uint32_t n = 0;
  if (place < 0 || args->reduction > 2 || (args->label_bytes != 4 && args->label_bytes != 8) ||
      (args->distance != 0 && !row) || (args->log_prob != NULL && dtype != loss_dtype))
    return 0;
  launch_classes((uint32_t)CUDA_ID_opipe_loss_block_f32 + (uint32_t)place,
                 (uint32_t)CUDA_ID_opipe_loss_line_f32 + (uint32_t)place, args, args->rows,
                 args->inner, 0, row, &out[n++]);
  if (args->reduction != 0) {
    cuda_make_launch((uint32_t)CUDA_ID_opipe_loss_sum_f32 + (uint32_t)cuda_float_place(loss_dtype),
                     args, 1, 1, 0, &out[n++]);
  }
  return n;
}

bool cuda_plan_loss_grad(const cuda_loss_grad_args *args, uint32_t dtype, uint32_t loss_dtype,
                         cuda_launch *out) {
  const bool row = is_row(args->classes, args->inner);
  const int place = loss_place(dtype, loss_dtype, row);
  if (place < 0 || (args->label_bytes != 4 && args->label_bytes != 8) ||
      ((args->x_distance != 0 || args->dx_distance != 0) && !row))
    return false;
  const int64_t bytes = (args->classes * cuda_element_bytes(dtype) + 15) / 16 * 16;
  launch_classes((uint32_t)CUDA_ID_opipe_loss_grad_block_f32 + (uint32_t)place,
                 (uint32_t)CUDA_ID_opipe_loss_grad_line_f32 + (uint32_t)place, args, args->rows,
                 args->inner, (uint32_t)(bytes < CUDA_LOSS_KEPT ? bytes : CUDA_LOSS_KEPT), row,
                 out);
  return true;
}

/* ---- dropout ---- */

static uint64_t mixed(uint64_t x) {
  x ^= x >> 30;
  x *= UINT64_C(0xbf58476d1ce4e5b9);
  x ^= x >> 27;
  x *= UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

uint64_t cuda_dropout_key(const char *key) {
  uint64_t mix = mixed(UINT64_C(0x9e3779b97f4a7c15));
  for (const char *c = key; *c != '\0'; ++c)
    mix = mixed(mix ^ (unsigned char)*c);
  return mix;
}

bool cuda_plan_dropout(const cuda_dropout_args *args, uint32_t dtype, cuda_launch *out) {
  const int place = cuda_float_place(dtype);
  return place >= 0 && args->rank <= CUDA_AXES && args->ratio >= 0 && args->ratio < 1 &&
         args->n_runs <= CUDA_DROPOUT_RUNS &&
         cuda_make_launch((uint32_t)CUDA_ID_opipe_dropout_f32 + (uint32_t)place, args,
                          cuda_blocks(args->n, 1024), 1, 0, out);
}

/* ---- writing by index ---- */

enum { SORT_TILE = 2048, SORT_DIGITS = 256, SORT_BITS = 8 };

static uint64_t tiles_of(int64_t n) {
  return ((uint64_t)n + SORT_TILE - 1) / SORT_TILE;
}

static uint64_t aligned(uint64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

/* Places that updates may go to; 0: more than can be counted. */
static uint64_t places_of(const cuda_scatter_args *args) {
  uint64_t n = 1;
  if (args->form == CUDA_SCATTER_AXIS)
    return (uint64_t)args->extent;
  for (uint32_t i = 0; i < args->rank && i < CUDA_AXES; ++i) {
    if (__builtin_mul_overflow(n, (uint64_t)args->out_shape[i], &n))
      return 0;
  }
  return n;
}

uint64_t cuda_scatter_workspace(const cuda_scatter_args *args) {
  return 4 * aligned((uint64_t)args->n * sizeof(uint32_t)) +
         aligned(tiles_of(args->n) * SORT_DIGITS * sizeof(uint32_t));
}

static uint32_t scatter_kernel(const cuda_scatter_args *args, uint32_t dtype, uint32_t out_dtype) {
  const int place = cuda_float_place(dtype);
  const bool sums = args->form == CUDA_SCATTER_AXIS && args->kind == 1 && out_dtype == OPIPE_FLOAT;
  if (args->kind > 4 || cuda_element_bytes(dtype) == 0 ||
      (dtype != out_dtype && !(sums && place >= 0 && place < 3)))
    return 0;
  if (args->kind == 0)
    return CUDA_ID_opipe_scatter_copy;
  if (place < 0)
    return cuda_is_integer(dtype) ? CUDA_ID_opipe_scatter_int : 0;
  return (uint32_t)CUDA_ID_opipe_scatter_f32 + (uint32_t)place + (dtype != out_dtype ? 3u : 0u);
}

uint32_t cuda_plan_scatter(const cuda_scatter_args *args, uint32_t dtype, uint32_t out_dtype,
                           cuda_launch *out) {
  const uint64_t places = places_of(args), bytes = aligned((uint64_t)args->n * sizeof(uint32_t));
  const uint32_t id = scatter_kernel(args, dtype, out_dtype);
  uint32_t n = 0, bits = 1;
  if (id == 0 || places == 0 || places >= UINT32_MAX || args->rank > CUDA_AXES ||
      args->n >= INT64_C(1) << 31 || (args->index_bytes != 4 && args->index_bytes != 8))
    return 0;
  cuda_scatter_block block = {.s = *args, .dtype = dtype, .size = cuda_element_bytes(dtype)};
  char *workspace = args->workspace;
  for (int side = 0; side < 2; ++side) {
    block.keys[side] = (uint32_t *)(void *)(workspace + (uint64_t)side * bytes);
    block.positions[side] = (uint32_t *)(void *)(workspace + (uint64_t)(2 + side) * bytes);
  }
  block.counts = (uint32_t *)(void *)(workspace + 4 * bytes);
  if (args->form == CUDA_SCATTER_AXIS && args->outer == 0)
    block.s.outer = 0;
  else if (args->form != CUDA_SCATTER_AXIS)
    block.s.outer = 1;
  block.s.inner = args->form == CUDA_SCATTER_ELEMENTS ? 1 : args->inner;
  cuda_make_launch(CUDA_ID_opipe_sort_keys, &block, cuda_blocks(args->n, 256), 1, 0, &out[n++]);
  while (bits < 32 && places + 1 > UINT64_C(1) << bits) /* and that of a bad index */
    ++bits;
  for (uint32_t shift = 0; shift < bits; shift += SORT_BITS) {
    block.shift = shift;
    cuda_make_launch(CUDA_ID_opipe_sort_count, &block, cuda_blocks((int64_t)tiles_of(args->n), 1),
                     1, 0, &out[n++]);
    cuda_make_launch(CUDA_ID_opipe_sort_scan, &block, 1, 1, 0, &out[n++]);
    cuda_make_launch(CUDA_ID_opipe_sort_place, &block, cuda_blocks((int64_t)tiles_of(args->n), 1),
                     1, 0, &out[n++]);
    block.from ^= 1;
  }
  cuda_make_launch(id, &block, cuda_blocks(block.s.outer * args->n * block.s.inner, 256), 1, 0,
                   &out[n++]);
  return n;
}

/* ---- reading by index ---- */

static bool whole_size(uint32_t size) {
  return size == 1 || size == 2 || size == 4 || size == 8;
}

bool cuda_plan_pick(const cuda_pick_args *args, cuda_launch *out) {
  cuda_pick_args block = *args;
  if (args->form == CUDA_SCATTER_ELEMENTS) {
    block.outer = 1;
    block.inner = 1;
  }
  return args->form != CUDA_SCATTER_AXIS && args->rank <= CUDA_AXES && whole_size(args->size) &&
         (args->index_bytes == 4 || args->index_bytes == 8) &&
         cuda_make_launch(CUDA_ID_opipe_pick, &block,
                          cuda_blocks(block.outer * block.n * block.inner, 512), 1, 0, out);
}

bool cuda_plan_one_hot(const cuda_one_hot_args *args, uint32_t dtype, cuda_launch *out) {
  cuda_one_hot_args block = *args;
  block.dtype = dtype;
  return whole_size(args->size) && (cuda_float_place(dtype) >= 0 || cuda_is_integer(dtype)) &&
         cuda_make_launch(CUDA_ID_opipe_one_hot, &block,
                          cuda_blocks(args->outer * args->depth * args->inner, 512), 1, 0, out);
}

bool cuda_plan_pad(const cuda_pad_args *args, cuda_launch *out) {
  return args->rank <= CUDA_AXES && whole_size(args->size) && args->mode <= CUDA_PAD_WRAP &&
         cuda_make_launch(CUDA_ID_opipe_pad, args, cuda_blocks(args->n, 512), 1, 0, out);
}

/* ---- products of few rows ---- */

static int64_t parts_of(int64_t k, int64_t depth) {
  return (k + depth - 1) / depth;
}

/* Blocks side by side, of 32 packets of columns each. */
static int64_t few_strips(int64_t n, uint32_t dtype) {
  const int64_t strip = 32 * 16 / (int64_t)cuda_element_bytes(dtype);
  return n > 0 ? (n + strip - 1) / strip : 1;
}

/* Rows of w that a block takes: by n and k alone. */
static int64_t few_depth(const cuda_few_rows_args *args, uint32_t dtype) {
  const int64_t strips = few_strips(args->n, dtype);
  int64_t depth = CUDA_FEW_LEAST;
  while (depth < CUDA_FEW_DEPTH && strips * parts_of(args->k, 2 * depth) >= CUDA_FEW_BLOCKS)
    depth *= 2;
  return depth;
}

uint64_t cuda_few_rows_workspace(const cuda_few_rows_args *args, uint32_t dtype) {
  return args->turned ? 0
                      : (uint64_t)parts_of(args->k, few_depth(args, dtype)) *
                            (uint64_t)(args->m * args->n) * sizeof(float);
}

/* One for each strip: the last of its blocks to arrive adds up what all of them found. */
uint32_t cuda_few_rows_counters(const cuda_few_rows_args *args, uint32_t dtype) {
  const int64_t strips = few_strips(args->n, dtype);
  const bool by_packets = args->n % 4 == 0; /* of float */
  return !args->turned && args->k > 0 && by_packets && strips <= CUDA_COUNTERS ? (uint32_t)strips
                                                                               : 0;
}

/* The kernel with room for m rows, of one, four and eight that follow each other. */
static uint32_t few_kernel(uint32_t first, int64_t m, int place) {
  return first + (m > 4 ? 6u : m > 1 ? 3u : 0u) + (uint32_t)place;
}

uint32_t cuda_plan_few_rows(const cuda_few_rows_args *args, uint32_t dtype, cuda_launch *out) {
  const int place = cuda_float_place(dtype);
  uint32_t n = 0;
  if (place < 0 || place > 2 || args->m > CUDA_FEW_ROWS ||
      args->k >= INT64_C(65535) * CUDA_FEW_LEAST || args->n >= INT32_MAX)
    return 0;
  cuda_few_rows_block block = {.f = *args, .depth = few_depth(args, dtype)};
  if (args->turned) {
    cuda_make_launch(few_kernel(CUDA_ID_opipe_few_turned_1_f32, args->m, place), &block,
                     cuda_blocks(args->n, 2 * 8), 1, 0, &out[n++]);
    return n;
  }
  const bool at_once = args->counters != NULL && cuda_few_rows_counters(args, dtype) > 0;
  if (!at_once) { /* nothing that a launch does not touch: values die as early as they can */
    block.f.y = block.f.aux = NULL;
    block.f.bias = block.f.residual = NULL;
    block.f.counters = NULL;
  }
  if (args->k > 0) {
    cuda_make_launch(few_kernel(CUDA_ID_opipe_few_columns_1_f32, args->m, place), &block,
                     (uint32_t)few_strips(args->n, dtype), (uint32_t)parts_of(args->k, block.depth),
                     0, &out[n++]);
  }
  if (at_once)
    return n;
  block.f = *args;
  block.f.x = block.f.w = NULL;
  block.f.counters = NULL;
  cuda_make_launch((uint32_t)CUDA_ID_opipe_few_sums_f32 + (uint32_t)place, &block,
                   (uint32_t)(args->n > 0 ? (args->n + 31) / 32 : 1),
                   (uint32_t)(args->m > 0 ? args->m : 1), 0, &out[n++]);
  return n;
}

/* ---- optimizers ---- */

_Static_assert(OPIPE_UPDATE_SGD == 0 && OPIPE_UPDATE_ADAM == 1 && OPIPE_UPDATE_ADAMW == 2 &&
                   OPIPE_N_OPTIMIZERS == 3,
               "parts/update.cu knows the kinds by number");
_Static_assert(OPIPE_UPDATE_NESTEROV == 1 && OPIPE_UPDATE_EPS_INNER == 2 && OPIPE_UPDATE_CLEAR == 4,
               "parts/update.cu knows the flags by number");
_Static_assert(OPIPE_FLOAT == 1 && OPIPE_UINT8 == 2 && OPIPE_INT8 == 3 && OPIPE_UINT16 == 4 &&
                   OPIPE_INT16 == 5 && OPIPE_INT32 == 6 && OPIPE_INT64 == 7 && OPIPE_BOOL == 9 &&
                   OPIPE_FLOAT16 == 10 && OPIPE_DOUBLE == 11 && OPIPE_UINT32 == 12 &&
                   OPIPE_UINT64 == 13 && OPIPE_BFLOAT16 == 16,
               "parts/numbers.cuh knows the types by number");

static uint64_t chunks_of(int64_t n) {
  return ((uint64_t)n + CUDA_UPDATE_CHUNK - 1) / CUDA_UPDATE_CHUNK;
}

bool cuda_plan_update(cuda_update_args *io_args, cuda_launch *out) {
  uint64_t n = 0;
  if (io_args->kind >= OPIPE_N_OPTIMIZERS || io_args->n_items == 0 || io_args->n_items > CUDA_MANY)
    return false;
  for (uint32_t i = 0; i < io_args->n_items; ++i)
    io_args->ends[i] = n += chunks_of(io_args->items[i].n);
  return cuda_make_far_launch(CUDA_ID_opipe_update, io_args, cuda_blocks((int64_t)n, 1), out);
}

/* Chunks of a part. */
static uint64_t chunks_of_part(int64_t n) {
  return chunks_of(n) > CUDA_SUMS ? (chunks_of(n) + CUDA_SUMS - 1) / CUDA_SUMS : 1;
}

uint32_t cuda_squares_parts(int64_t n) {
  return (uint32_t)((chunks_of(n) + chunks_of_part(n) - 1) / chunks_of_part(n));
}

uint32_t cuda_plan_squares(cuda_squares_args *io_args, cuda_launch *out) {
  uint64_t n = 0;
  if (io_args->n_items == 0 || io_args->n_items > CUDA_MANY)
    return 0;
  for (uint32_t i = 0; i < io_args->n_items; ++i) {
    io_args->items[i].per_part = chunks_of_part(io_args->items[i].n);
    io_args->ends[i] = n += cuda_squares_parts(io_args->items[i].n);
  }
  cuda_make_far_launch(CUDA_ID_opipe_squares_parts, io_args, cuda_blocks((int64_t)n, 1), &out[0]);
  cuda_make_far_launch(CUDA_ID_opipe_squares_sum, io_args, io_args->n_items, &out[1]);
  return 2;
}

/* ---- sums of regions ---- */

bool cuda_plan_sum(const cuda_sum_args *args, uint32_t dtype, cuda_launch *out) {
  const int place = cuda_float_place(dtype);
  return place >= 0 && args->n_src > 0 && args->n_src <= CUDA_SUM_REGIONS &&
         cuda_make_far_launch((uint32_t)CUDA_ID_opipe_sum_f32 + (uint32_t)place, args,
                              cuda_blocks(args->n * (int64_t)cuda_element_bytes(dtype), 16 * 256),
                              out);
}
