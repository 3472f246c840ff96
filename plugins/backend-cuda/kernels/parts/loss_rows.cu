/* SPDX-License-Identifier: Apache-2.0 */
/* Cross entropy of rows whose classes lie side by side, and its gradient in the place of the
 * scores. A block takes a row, 16 bytes a thread at a time; probabilities are never stored.
 *
 * A row is read once: every thread keeps the largest score so far and the sum of powers below it,
 * which is scaled when a larger one comes (Milakov and Gimelshein 2018, "Online normalizer
 * calculation for softmax"). The gradient keeps what it read in shared memory, as much as fits,
 * and reads the rest again. Scores of a half type may have losses, weights and factors of fp32. */
#include "loss.cuh"
#include "tensor.cuh"

enum { LOSS_WARPS = CUDA_LOSS_THREADS / 32 };

/* Packets under way, by what two blocks on a processor leave of registers without spills. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
enum { LOSS_AHEAD = 2, LOSS_GRAD_AHEAD = 1 };
#else
enum { LOSS_AHEAD = 4, LOSS_GRAD_AHEAD = 2 };
#endif

CUDA_FN double power_of_two(double x) {
  return exp2(x);
}
CUDA_FN float larger(float a, float b) {
  return fmaxf(a, b);
}
CUDA_FN double larger(double a, double b) {
  return fmax(a, b);
}

/* base: the largest score, 0 before there is one above -infinity; sum: of exponentials of scores
 * less the base. A score that is none makes the sum none. */
template <class R>
struct power_sum {
  R top, base, sum;
};

template <class R>
CUDA_FN R power_above(R x, R base) {
  return power_of_two((x - base) * (R)1.44269504088896340736);
}

template <class R>
CUDA_FN void raise_top(power_sum<R> *io, R top) {
  if (!(top > io->top))
    return;
  io->sum *= power_above(io->top, top);
  io->top = top;
  io->base = top;
}

template <class R>
CUDA_FN void join_powers(power_sum<R> *io, power_sum<R> other) {
  raise_top(io, other.top);
  raise_top(&other, io->top);
  io->sum += other.sum;
}

template <class R>
struct power_room {
  power_sum<R> part[LOSS_WARPS];
};

/* Lanes by a butterfly, warps in rising order; every thread gets the result. */
template <class R>
CUDA_FN power_sum<R> block_powers(power_sum<R> own, power_room<R> *room) {
  CUDA_UNROLL
  for (int d = 16; d > 0; d /= 2) {
    const power_sum<R> other = {__shfl_xor_sync(0xffffffffu, own.top, d),
                                __shfl_xor_sync(0xffffffffu, own.base, d),
                                __shfl_xor_sync(0xffffffffu, own.sum, d)};
    join_powers(&own, other);
  }
  __syncthreads(); /* the room may still be read */
  if (threadIdx.x % 32 == 0)
    room->part[threadIdx.x / 32] = own;
  __syncthreads();
  own = room->part[0];
  for (int w = 1; w < LOSS_WARPS; ++w)
    join_powers(&own, room->part[w]);
  return own;
}

/* Do rows at this distance begin and end with packets, of which the last may reach beyond? */
template <class S>
CUDA_FN bool has_packets(int64_t classes, int64_t distance) {
  const int V = lanes<S>::n;
  return distance % V == 0 && distance >= (classes + V - 1) / V * V;
}

/* A row of n scores in packets; whole: all of them may be read, whatever lies behind the row. */
template <class S>
struct score_row {
  const S *x;
  int n, packets;
  bool whole;
};

template <class S>
CUDA_FN score_row<S> score_row_of(const void *scores, int64_t row, int64_t classes,
                                  int64_t distance) {
  const int packets = (int)((classes + lanes<S>::n - 1) / lanes<S>::n);
  const score_row<S> made = {static_cast<const S *>(scores) + row * distance, (int)classes, packets,
                             aligned16(scores) && has_packets<S>(classes, distance)};
  return made;
}

/* Beyond the row: -infinity. */
template <class S>
CUDA_FN packet<S> packet_at(const score_row<S> &row, bool whole, int p) {
  const int V = lanes<S>::n;
  packet<S> made;
  if (whole) {
    made = *reinterpret_cast<const packet<S> *>(row.x + (int64_t)p * V);
    if ((p + 1) * V <= row.n)
      return made;
  }
  CUDA_UNROLL
  for (int k = 0; k < V; ++k) {
    const int64_t i = (int64_t)p * V + k;
    narrow((typename real_of<S>::type)(-INFINITY), &made.v[k]);
    if (i < row.n)
      made.v[k] = row.x[i];
  }
  return made;
}

template <class S, class R>
CUDA_FN void add_packet(const packet<S> &of, power_sum<R> *io) {
  const int V = lanes<S>::n;
  R top = (R)-INFINITY;
  CUDA_UNROLL
  for (int k = 0; k < V; ++k)
    top = larger(top, (R)widen(of.v[k]));
  raise_top(io, top);
  CUDA_UNROLL
  for (int k = 0; k < V; ++k)
    io->sum += power_above((R)widen(of.v[k]), io->base);
}

/* The sum of this thread's packets; the first n_kept of the row's go to `kept`, each thread its
 * own. AHEAD: packets under way; whole: the row's, known where this is expanded. */
template <int AHEAD, class S, class R>
CUDA_FN power_sum<R> thread_powers(const score_row<S> &row, bool whole, packet<S> *kept,
                                   int n_kept) {
  power_sum<R> sum = {(R)-INFINITY, 0, 0};
  for (int first = (int)threadIdx.x; first < row.packets; first += AHEAD * CUDA_LOSS_THREADS) {
    packet<S> ahead[AHEAD];
    CUDA_UNROLL
    for (int k = 0; k < AHEAD; ++k) {
      if (first + k * CUDA_LOSS_THREADS < row.packets)
        ahead[k] = packet_at(row, whole, first + k * CUDA_LOSS_THREADS);
    }
    CUDA_UNROLL
    for (int k = 0; k < AHEAD; ++k) {
      const int p = first + k * CUDA_LOSS_THREADS;
      if (p >= row.packets)
        break;
      add_packet(ahead[k], &sum);
      if (p < n_kept)
        kept[p] = ahead[k];
    }
  }
  return sum;
}

/* The sum over the row, for all threads. */
template <int AHEAD, class S, class R>
CUDA_FN power_sum<R> row_powers(const score_row<S> &row, packet<S> *kept, int n_kept,
                                power_room<R> *room) {
  const power_sum<R> own = row.whole ? thread_powers<AHEAD, S, R>(row, true, kept, n_kept)
                                     : thread_powers<AHEAD, S, R>(row, false, kept, n_kept);
  power_sum<R> sum = block_powers(own, room);
  if (sum.top == (R)-INFINITY) /* nothing to divide by: as exp(x - top) says */
    sum.sum = (R)NAN;
  return sum;
}

/* S: scores; T: losses and weights. */
template <class S, class T, class R>
CUDA_FN void loss_of_rows(const cuda_loss_args &a, power_room<R> *room) {
  const int V = lanes<S>::n;
  const int distance = (int)(a.distance != 0 ? a.distance : a.classes);
  for (int64_t i = blockIdx.x; i < a.rows; i += gridDim.x) {
    const score_row<S> row = score_row_of<S>(a.scores, i, a.classes, distance);
    bool counts;
    const int64_t label = label_of(a.labels, a.label_bytes, i, a.classes, a.ignores, a.ignored,
                                   a.status, a.node, &counts);
    R shift = 0;
    if (a.softmax) {
      const power_sum<R> sum = row_powers<LOSS_AHEAD>(row, (packet<S> *)nullptr, 0, room);
      shift = log_of(sum.sum) + sum.base;
    }
    if (a.log_prob != nullptr) {
      S *to = static_cast<S *>(a.log_prob) + i * a.classes;
      for (int p = (int)threadIdx.x; p < row.packets; p += CUDA_LOSS_THREADS) {
        const packet<S> from = packet_at(row, row.whole, p);
        R y[V];
        CUDA_UNROLL
        for (int k = 0; k < V; ++k)
          y[k] = (R)widen(from.v[k]) - shift;
        store_packet(to, (int64_t)p * V, row.n, a.classes % V == 0 && aligned16(to), y);
      }
    }
    if (threadIdx.x == 0)
      write_loss<T, R>(a, i, counts, label, (R)get(row.x, label), shift);
  }
}

/* ---- gradient ---- */

/* Factors of a row's gradient: d[c] = dl (power[c] scale - each weight[c] - own [c == label]). */
template <class R>
struct loss_factors {
  R dl, scale, each, own;
  int64_t label;
};

/* The sum of the weights, for all threads; of no weights: their number. */
template <class T, class R>
CUDA_FN R weights_total(const T *weights, int64_t classes, power_room<R> *room) {
  R total = 0;
  if (weights == nullptr)
    return (R)classes;
  for (int64_t c = threadIdx.x; c < classes; c += CUDA_LOSS_THREADS)
    total += (R)get(weights, c);
  total = warp_all(total, add_two());
  __syncthreads();
  if (threadIdx.x % 32 == 0)
    room->part[threadIdx.x / 32].sum = total;
  __syncthreads();
  total = 0;
  for (int w = 0; w < LOSS_WARPS; ++w)
    total += room->part[w].sum;
  return total;
}

template <class S, class T, class R>
CUDA_FN void put_gradient(const score_row<S> &row, const packet<S> &of, int p,
                          const loss_factors<R> &by, R base, const T *weights, S *dx, bool whole) {
  const int V = lanes<S>::n;
  const int64_t first = (int64_t)p * V;
  R d[V];
  CUDA_UNROLL
  for (int k = 0; k < V; ++k)
    d[k] = power_above((R)widen(of.v[k]), base) * by.scale;
  if (by.each != 0) {
    CUDA_UNROLL
    for (int k = 0; k < V; ++k) {
      if (first + k < row.n)
        d[k] -= weights != nullptr ? by.each * (R)get(weights, first + k) : by.each;
    }
  }
  if (by.label >= first && by.label < first + V) {
    CUDA_UNROLL
    for (int k = 0; k < V; ++k)
      d[k] -= first + k == by.label ? by.own : (R)0;
  }
  CUDA_UNROLL
  for (int k = 0; k < V; ++k)
    d[k] *= by.dl;
  store_packet(dx, first, row.n, whole, d);
}

/* A row that does not count gives 0. */
template <class S, class R>
CUDA_FN void put_zeros(const score_row<S> &row, S *dx, bool whole) {
  const int V = lanes<S>::n;
  R zeros[V];
  CUDA_UNROLL
  for (int k = 0; k < V; ++k)
    zeros[k] = 0;
  for (int p = (int)threadIdx.x; p < row.packets; p += CUDA_LOSS_THREADS)
    store_packet(dx, (int64_t)p * V, row.n, whole, zeros);
}

template <class S, class T, class R>
CUDA_FN void loss_grad_of_rows(const cuda_loss_grad_args &a, packet<S> *kept, power_room<R> *room) {
  const T *weights = static_cast<const T *>(a.weights);
  const R each = (R)(a.smoothing / (double)a.classes);
  const int n_kept = CUDA_LOSS_KEPT / (int)sizeof(packet<S>);
  const int64_t x_distance = a.x_distance != 0 ? a.x_distance : a.classes;
  const int64_t dx_distance = a.dx_distance != 0 ? a.dx_distance : a.classes;
  for (int64_t i = blockIdx.x; i < a.rows; i += gridDim.x) {
    const score_row<S> row = score_row_of<S>(a.x, i, a.classes, x_distance);
    S *dx = static_cast<S *>(a.dx) + i * dx_distance;
    const bool whole = aligned16(dx) && has_packets<S>(a.classes, dx_distance);
    bool counts;
    const int64_t label = label_of(a.labels, a.label_bytes, i, a.classes, a.ignores, a.ignored,
                                   a.status, a.node, &counts);
    if (!counts) {
      put_zeros<S, R>(row, dx, whole);
      continue;
    }
    const R total = each != 0 ? weights_total<T, R>(weights, a.classes, room) : (R)0;
    const R own = (R)(1.0 - a.smoothing) * (weights != nullptr ? (R)get(weights, label) : (R)1);
    const R dl = (R)get(static_cast<const T *>(a.dl), a.dl_rows ? i : 0);
    const power_sum<R> sum = row_powers<LOSS_GRAD_AHEAD>(row, kept, n_kept, room);
    const loss_factors<R> by = {dl, (own + each * total) / sum.sum, each, own, label};
    for (int p = (int)threadIdx.x; p < row.packets; p += CUDA_LOSS_THREADS) {
      const packet<S> of = p < n_kept ? kept[p] : packet_at(row, row.whole, p);
      put_gradient<S, T, R>(row, of, p, by, sum.base, weights, dx, whole);
    }
  }
}

/* PAIR: scores of type S with losses of type T. */
#define CUDA_LOSS_ROWS(KERNEL, PAIR, S, T, R)                                  \
  KERNEL(opipe_loss_block_##PAIR) {                                            \
    CUDA_SHARED(power_room<R>, room);                                          \
    loss_of_rows<S, T, R>(a, &room);                                           \
  }                                                                            \
  KERNEL(opipe_loss_grad_block_##PAIR) {                                       \
    CUDA_DYNAMIC(kept);                                                        \
    CUDA_SHARED(power_room<R>, room);                                          \
    loss_grad_of_rows<S, T, R>(a, reinterpret_cast<packet<S> *>(kept), &room); \
  }
CUDA_LOSS_ROWS(CUDA_TWICE_KERNEL, f32, float, float, float)
CUDA_LOSS_ROWS(CUDA_TWICE_KERNEL, bf16, bf16, bf16, float)
CUDA_LOSS_ROWS(CUDA_TWICE_KERNEL, f16, f16, f16, float)
CUDA_LOSS_ROWS(CUDA_ROOMY_KERNEL, f64, double, double, double)
CUDA_LOSS_ROWS(CUDA_TWICE_KERNEL, bf16_f32, bf16, float, float)
CUDA_LOSS_ROWS(CUDA_TWICE_KERNEL, f16_f32, f16, float, float)
