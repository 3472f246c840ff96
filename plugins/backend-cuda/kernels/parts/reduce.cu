/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions: Reduce*, ArgMax, ArgMin, TopK, CumSum, sums of columns.
 *
 * The elements of one result are taken by a thread, a warp or a block, as their
 * number and stride say; a thread adds runs of CUDA_RUN elements to a total, so
 * that long sums stay exact enough in float. */
#include "columns.cuh"
#include "numbers.cuh"

enum { CUDA_RUN = 128 };

/* ---- how elements of a kind are joined ---- */

template <class N>
CUDA_FN N start_of(uint32_t op, N lowest, N highest) {
  return op == CUDA_REDUCE_PROD  ? (N)1
         : op == CUDA_REDUCE_MAX ? lowest
         : op == CUDA_REDUCE_MIN ? highest
                                 : (N)0;
}

template <class N>
CUDA_FN N join(uint32_t op, N a, N b) {
  switch (op) {
    case CUDA_REDUCE_PROD:
      return a * b;
    case CUDA_REDUCE_MAX:
      return b != b ? b : a != a ? a : b > a ? b : a;
    case CUDA_REDUCE_MIN:
      return b != b ? b : a != a ? a : b < a ? b : a;
    default:
      return a + b;
  }
}

template <class N>
CUDA_FN N element_of(uint32_t op, N x, N shift) {
  switch (op) {
    case CUDA_REDUCE_L1:
      return x < 0 ? (N)0 - x : x;
    case CUDA_REDUCE_L2:
    case CUDA_REDUCE_SUMSQUARE:
      return x * x;
    case CUDA_REDUCE_LOGSUMEXP:
      return (N)exp_of(x - shift);
    default:
      return x;
  }
}

struct join_by {
  uint32_t op;
  template <class N>
  CUDA_FN N operator()(N a, N b) const {
    return join(op, a, b);
  }
};

/* Where element k of a result lies behind its first one. */
CUDA_FN int64_t reduced_offset(const cuda_reduce_block &a, int64_t k) {
  int64_t at[1];
  offsets<1>(a.reduced, k, at);
  return at[0];
}

/* All elements of one result that this thread of `size` takes, in rising order.
 */
template <class T, class R>
CUDA_FN R gather_float(const cuda_reduce_block &a, uint32_t op, const T *from, int rank, int size,
                       R shift) {
  const R none = start_of(op, (R)-INFINITY, (R)INFINITY);
  R total = none, run = none;
  int in_run = 0;
  for (int64_t k = rank; k < a.n_in; k += size) {
    run = join(op, run, element_of(op, (R)widen(from[reduced_offset(a, k)]), shift));
    if (++in_run == CUDA_RUN) {
      total = join(op, total, run);
      run = none;
      in_run = 0;
    }
  }
  return join(op, total, run);
}

template <class R>
CUDA_FN R finish_float(const cuda_reduce_block &a, R x, R shift) {
  switch (a.op) {
    case CUDA_REDUCE_MEAN:
      return x / (R)a.n_in;
    case CUDA_REDUCE_L2:
      return root_of(x);
    case CUDA_REDUCE_LOGSUM:
      return log_of(x);
    case CUDA_REDUCE_LOGSUMEXP:
      return log_of(x) + shift;
    default:
      return x;
  }
}

/* TEAM: row_team, or alone. */
template <class T, class R, class TEAM>
CUDA_FN void reduce_floats(const cuda_reduce_block &a, const TEAM &team) {
  for (int64_t i = team.first_row(); i < a.n_out; i += team.row_step()) {
    int64_t at[1];
    offsets<1>(a.kept, i, at);
    const T *from = static_cast<const T *>(a.in) + at[0];
    R shift = 0;
    if (a.op == CUDA_REDUCE_LOGSUMEXP) {
      const join_by top = {CUDA_REDUCE_MAX};
      shift = team.all(gather_float<T, R>(a, CUDA_REDUCE_MAX, from, team.rank(), team.size(), (R)0),
                       top);
      shift = shift - shift == 0 ? shift : (R)0;
    }
    const join_by same = {a.op};
    const R x = team.all(gather_float<T, R>(a, a.op, from, team.rank(), team.size(), shift), same);
    if (team.rank() == 0)
      put(static_cast<T *>(a.out), i, finish_float(a, x, shift));
  }
}

#define CUDA_REDUCE(SUFFIX, TYPE, REAL)                           \
  CUDA_KERNEL(opipe_reduce_thread_##SUFFIX) {                     \
    reduce_floats<TYPE, REAL>(a, alone<REAL>());                  \
  }                                                               \
  CUDA_KERNEL(opipe_reduce_warp_##SUFFIX) {                       \
    reduce_floats<TYPE, REAL>(a, row_team<false, REAL>{nullptr}); \
  }                                                               \
  CUDA_KERNEL(opipe_reduce_block_##SUFFIX) {                      \
    CUDA_SHARED(block_room<REAL>, room);                          \
    reduce_floats<TYPE, REAL>(a, row_team<true, REAL>{&room});    \
  }
CUDA_REDUCE(f32, float, float)
CUDA_REDUCE(bf16, bf16, float)
CUDA_REDUCE(f16, f16, float)
CUDA_REDUCE(f64, double, double)

/* ---- integers: a thread a result; sums wrap ---- */

CUDA_FN bool above(const cuda_reduce_block &a, int64_t x, int64_t y) {
  return a.is_u64 ? (uint64_t)x > (uint64_t)y : x > y;
}

CUDA_FN int64_t join_integers(const cuda_reduce_block &a, int64_t sum, int64_t x) {
  switch (a.op) {
    case CUDA_REDUCE_MAX:
      return above(a, x, sum) ? x : sum;
    case CUDA_REDUCE_MIN:
      return above(a, sum, x) ? x : sum;
    case CUDA_REDUCE_PROD:
      return (int64_t)((uint64_t)sum * (uint64_t)x);
    case CUDA_REDUCE_L1:
      return (int64_t)((uint64_t)sum +
                       (uint64_t)(!a.is_u64 && x < 0 ? 0 - (uint64_t)x : (uint64_t)x));
    case CUDA_REDUCE_L2:
    case CUDA_REDUCE_SUMSQUARE:
      return (int64_t)((uint64_t)sum + (uint64_t)x * (uint64_t)x);
    default:
      return (int64_t)((uint64_t)sum + (uint64_t)x);
  }
}

CUDA_FN int64_t finish_integer(const cuda_reduce_block &a, int64_t sum) {
  switch (a.op) {
    case CUDA_REDUCE_MEAN:
      return a.n_in == 0 ? 0
             : a.is_u64  ? (int64_t)((uint64_t)sum / (uint64_t)a.n_in)
                         : sum / a.n_in;
    case CUDA_REDUCE_L2:
      return to_integer(sqrt((double)sum), TYPE_I64);
    case CUDA_REDUCE_LOGSUM:
    case CUDA_REDUCE_LOGSUMEXP:
      return to_integer(log((double)sum), TYPE_I64);
    default:
      return sum;
  }
}

CUDA_KERNEL(opipe_reduce_int) {
  for (int64_t i = first_element(); i < a.n_out; i += element_step()) {
    int64_t at[1];
    offsets<1>(a.kept, i, at);
    int64_t sum =
        a.is_u64 ? start_of<int64_t>(a.op, 0, -1) : start_of<int64_t>(a.op, INT64_MIN, INT64_MAX);
    for (int64_t k = 0; k < a.n_in; ++k)
      sum = join_integers(a, sum, load_integer(a.in, a.dtype, at[0] + reduced_offset(a, k)));
    store_integer(a.out, a.dtype, i, finish_integer(a, sum));
  }
}

/* ---- positions: a number that is none counts as the largest; of equals the
 * lower index is first
 * ---- */

struct candidate {
  double number;
  int64_t integer, at; /* at < 0: none */
};

/* 1, 0, -1 */
CUDA_FN int order_of(bool floats, bool is_u64, const candidate &x, const candidate &y) {
  if (floats) {
    const int no_x = x.number != x.number, no_y = y.number != y.number;
    return no_x || no_y ? no_x - no_y : (x.number > y.number) - (x.number < y.number);
  }
  if (is_u64) {
    return ((uint64_t)x.integer > (uint64_t)y.integer) -
           ((uint64_t)x.integer < (uint64_t)y.integer);
  }
  return (x.integer > y.integer) - (x.integer < y.integer);
}

CUDA_FN candidate candidate_at(const void *in, uint32_t dtype, int64_t offset, int64_t at) {
  candidate c = {0, 0, at};
  if (is_float(dtype))
    c.number = load_number(in, dtype, offset);
  else
    c.integer = load_integer(in, dtype, offset);
  return c;
}

/* Whether x stands before y: larger (or smaller), among equals the lower (or
 * higher) index. */
CUDA_FN bool stands_before(bool floats, bool is_u64, bool largest, bool last, const candidate &x,
                           const candidate &y) {
  if (x.at < 0 || y.at < 0)
    return y.at < 0 && x.at >= 0;
  const int order = order_of(floats, is_u64, x, y);
  return order == 0 ? (last ? x.at > y.at : x.at < y.at) : (order > 0) == largest;
}

CUDA_FN candidate shuffled(candidate c, int d) {
  c.number = __shfl_xor_sync(0xffffffffu, c.number, d);
  c.integer = __shfl_xor_sync(0xffffffffu, c.integer, d);
  c.at = __shfl_xor_sync(0xffffffffu, c.at, d);
  return c;
}

/* The first of the block's candidates, for all threads. */
CUDA_FN candidate first_of_block(bool floats, bool is_u64, bool largest, bool last, candidate best,
                                 candidate *room) {
  CUDA_UNROLL
  for (int d = 16; d > 0; d /= 2) {
    const candidate other = shuffled(best, d);
    best = stands_before(floats, is_u64, largest, last, other, best) ? other : best;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0)
    room[threadIdx.x / 32] = best;
  __syncthreads();
  best = room[0];
  for (int w = 1; w < CUDA_WARPS; ++w)
    best = stands_before(floats, is_u64, largest, last, room[w], best) ? room[w] : best;
  return best;
}

struct order_room {
  candidate part[CUDA_WARPS];
};

/* A block a line of [outer, n, inner]; flag: the last of equals. */
CUDA_ROOMY_KERNEL(opipe_arg) {
  CUDA_SHARED(order_room, room);
  const bool floats = is_float(a.dtype), is_u64 = a.dtype == TYPE_U64;
  for (int64_t i = blockIdx.x; i < a.outer * a.inner; i += gridDim.x) {
    const int64_t first = i / a.inner * a.n * a.inner + i % a.inner;
    candidate best = {0, 0, -1};
    for (int64_t k = threadIdx.x; k < a.n; k += CUDA_THREADS) {
      const candidate c = candidate_at(a.x, a.dtype, first + k * a.inner, k);
      best = stands_before(floats, is_u64, a.largest, a.last, c, best) ? c : best;
    }
    best = first_of_block(floats, is_u64, a.largest, a.last, best, room.part);
    if (threadIdx.x == 0)
      static_cast<int64_t *>(a.indices)[i] = best.at;
  }
}

/* The k first in their order: each time the first one behind the one before. */
CUDA_KERNEL(opipe_topk) {
  CUDA_SHARED(order_room, room);
  const bool floats = is_float(a.dtype), is_u64 = a.dtype == TYPE_U64;
  for (int64_t i = blockIdx.x; i < a.outer * a.inner; i += gridDim.x) {
    const int64_t first = i / a.inner * a.n * a.inner + i % a.inner;
    candidate before = {0, 0, -1};
    for (int64_t taken = 0; taken < a.k; ++taken) {
      candidate best = {0, 0, -1};
      for (int64_t k = threadIdx.x; k < a.n; k += CUDA_THREADS) {
        const candidate c = candidate_at(a.x, a.dtype, first + k * a.inner, k);
        const bool left =
            before.at < 0 || stands_before(floats, is_u64, a.largest, false, before, c);
        best = left && stands_before(floats, is_u64, a.largest, false, c, best) ? c : best;
      }
      before = first_of_block(floats, is_u64, a.largest, false, best, room.part);
      const int64_t to = (i / a.inner * a.k + taken) * a.inner + i % a.inner;
      if (threadIdx.x == 0 && a.values != nullptr) {
        if (floats)
          store_number(a.values, a.dtype, to, before.number);
        else
          store_integer(a.values, a.dtype, to, before.integer);
      }
      if (threadIdx.x == 0 && a.indices != nullptr)
        static_cast<int64_t *>(a.indices)[to] = before.at;
    }
  }
}

/* ---- CumSum: a thread a line, elements in order ---- */

template <class R>
CUDA_FN void running_sum(const cuda_typed_block &a, int64_t first) {
  const bool exclusive = (a.flags & 1u) != 0, reverse = (a.flags & 2u) != 0;
  R sum = 0;
  for (int64_t k = 0; k < a.n; ++k) {
    const int64_t at = first + (reverse ? a.n - 1 - k : k) * a.inner;
    const R before = sum;
    if (is_float(a.dtype)) {
      sum += (R)load_number(a.in, a.dtype, at);
      store_number(a.out, a.dtype, at, (double)(exclusive ? before : sum));
    } else {
      sum = (R)((uint64_t)sum + (uint64_t)load_integer(a.in, a.dtype, at));
      store_integer(a.out, a.dtype, at, (int64_t)(exclusive ? before : sum));
    }
  }
}

CUDA_KERNEL(opipe_cumsum) {
  for (int64_t i = first_element(); i < a.outer * a.inner; i += element_step()) {
    const int64_t first = i / a.inner * a.n * a.inner + i % a.inner;
    if (is_float(a.dtype))
      running_sum<double>(a, first);
    else
      running_sum<int64_t>(a, first);
  }
}

/* ---- sums of columns: chunks of rows, then the chunks in order ---- */

/* x [rows, n]; partial [chunks][n]. FAR: rows lie at a.distance. */
template <class T, class R, bool FAR>
CUDA_FN void column_chunks(const cuda_columns_args &a, slice_room<R, lanes<T>::n> *room) {
  const int V = lanes<T>::n;
  const int64_t i = ((int64_t)blockIdx.x * 32 + threadIdx.x % 32) * V;
  const int64_t first = (int64_t)blockIdx.y * CUDA_CHUNK_ROWS;
  const int64_t end = first + CUDA_CHUNK_ROWS < a.rows ? first + CUDA_CHUNK_ROWS : a.rows;
  const bool whole =
      (FAR ? a.distance % V == 0 && i + V <= a.distance : a.n % V == 0) && aligned16(a.x);
  const T *x = static_cast<const T *>(a.x);
  R sum[V];
  CUDA_UNROLL
  for (int k = 0; k < V; ++k)
    sum[k] = 0;
  if (i < a.n) {
    CUDA_UNROLL_BY(4)
    for (int64_t row = first + threadIdx.x / 32; row < end; row += COLUMN_SLICES) {
      R v[V];
      load_packet(x + row * (FAR ? a.distance : a.n), i, a.n, whole, v);
      CUDA_UNROLL
      for (int k = 0; k < V; ++k)
        sum[k] += v[k];
    }
  }
  add_slices<R, V>(sum, room, static_cast<R *>(a.workspace) + (int64_t)blockIdx.y * a.n, a.n);
}

template <class T, class R>
CUDA_FN void column_sums(const cuda_columns_args &a, run_room<R> *room) {
  const int64_t chunks = (a.rows + CUDA_CHUNK_ROWS - 1) / CUDA_CHUNK_ROWS;
  int64_t column;
  R sum;
  if (!add_chunks(static_cast<const R *>(a.workspace), a.n, chunks, a.n, room, &column, &sum))
    return;
  put(static_cast<T *>(a.out), column,
      a.adds ? (R)get(static_cast<const T *>(a.out), column) + sum : sum);
}

#define CUDA_COLUMNS(SUFFIX, TYPE, REAL)               \
  CUDA_KERNEL(opipe_column_chunks_##SUFFIX) {          \
    typedef slice_room<REAL, lanes<TYPE>::n> all_sums; \
    CUDA_SHARED(all_sums, room);                       \
    column_chunks<TYPE, REAL, false>(a, &room);        \
  }                                                    \
  CUDA_KERNEL(opipe_column_sums_##SUFFIX) {            \
    CUDA_SHARED(run_room<REAL>, room);                 \
    column_sums<TYPE, REAL>(a, &room);                 \
  }
CUDA_COLUMNS(f32, float, float)
CUDA_COLUMNS(bf16, bf16, float)
CUDA_COLUMNS(f16, f16, float)
CUDA_COLUMNS(f64, double, double)

#define CUDA_FAR_COLUMNS(SUFFIX, TYPE)                  \
  CUDA_KERNEL(opipe_column_far_##SUFFIX) {              \
    typedef slice_room<float, lanes<TYPE>::n> all_sums; \
    CUDA_SHARED(all_sums, room);                        \
    column_chunks<TYPE, float, true>(a, &room);         \
  }
CUDA_FAR_COLUMNS(f32, float)
CUDA_FAR_COLUMNS(bf16, bf16)
CUDA_FAR_COLUMNS(f16, f16)
