/* SPDX-License-Identifier: Apache-2.0 */
/* Cross entropy of one member's part of the classes: statistics of its scores, a block a row; the
 * loss from the statistics of all members, in rising order; the gradient by its scores. Formulas
 * are the CPU backend's (ops/parts.c). */
#include "loss.cuh"

CUDA_FN int64_t label_of_row(const cuda_entropy_labels &of, int64_t i, bool *out_counts) {
  return label_of(of.labels, of.bytes, i, of.whole, of.ignores, of.ignored, of.status, of.node,
                  out_counts);
}

template <class T>
CUDA_FN void entropy_part(const cuda_entropy_args &a) {
  typedef typename real_of<T>::type R;
  CUDA_SHARED(block_room<R>, room);
  R *statistics = static_cast<R *>(a.statistics);
  for (int64_t i = blockIdx.x; i < a.rows * a.inner; i += gridDim.x) {
    const T *x = static_cast<const T *>(a.scores) + i / a.inner * a.own * a.inner + i % a.inner;
    R top = (R)-INFINITY, sum = 0, all = 0;
    for (int64_t c = threadIdx.x; c < a.own; c += CUDA_THREADS) {
      const R score = get(x, c * a.inner);
      top = max_two()(top, score);
      all += score;
    }
    top = block_all(top, max_two(), &room);
    for (int64_t c = threadIdx.x; c < a.own && top != (R)-INFINITY; c += CUDA_THREADS)
      sum += exp_of((R)get(x, c * a.inner) - top);
    sum = block_all(sum, add_two(), &room);
    if (a.columns > 3)
      all = block_all(all, add_two(), &room);
    if (threadIdx.x != 0)
      continue;
    bool counts;
    const int64_t c = label_of_row(a.of, i, &counts) - a.first;
    R *to = statistics + i * a.columns;
    to[0] = top;
    to[1] = sum;
    to[2] = counts && c >= 0 && c < a.own ? (R)get(x, c * a.inner) : (R)0;
    if (a.columns > 3)
      to[3] = all;
  }
}

template <class T>
CUDA_FN void entropy_merge(const cuda_entropy_merge_args &a) {
  typedef typename real_of<T>::type R;
  const R *statistics = static_cast<const R *>(a.statistics);
  double *workspace = static_cast<double *>(a.workspace);
  for (int64_t i = first_element(); i < a.rows; i += element_step()) {
    R top = (R)-INFINITY, sum = 0, picked = 0, all = 0;
    for (int64_t k = 0; k < a.members; ++k)
      top = max_two()(top, statistics[(k * a.rows + i) * a.columns]);
    for (int64_t k = 0; k < a.members; ++k) {
      const R *from = statistics + (k * a.rows + i) * a.columns;
      sum += from[1] * exp_of(from[0] - top);
      picked += from[2];
      all += a.columns > 3 ? from[3] : (R)0;
    }
    const R log_sum = log_of(sum) + top;
    bool counts;
    const int64_t label = label_of_row(a.of, i, &counts);
    double loss = 0, weight = 0;
    if (counts) {
      weight = a.weights != nullptr ? (double)get(static_cast<const T *>(a.weights), label) : 1.0;
      loss = weight * (1 - a.smoothing) * ((double)log_sum - (double)picked) +
             a.smoothing * ((double)log_sum - (double)all / (double)a.of.whole);
    }
    workspace[2 * i] = loss;
    workspace[2 * i + 1] = weight;
    if (a.log_sum != nullptr)
      static_cast<R *>(a.log_sum)[i] = log_sum;
    if (a.reduction == 0)
      put(static_cast<T *>(a.loss), i, (R)loss);
  }
}

/* d = dl ((own + smoothing) p - smoothing / whole - own [c == label]); a row that does not count
 * gives 0. */
template <class T>
CUDA_FN void entropy_grad(const cuda_entropy_grad_args &a) {
  typedef typename real_of<T>::type R;
  const R even = (R)(a.smoothing / (double)a.of.whole);
  for (int64_t i = blockIdx.x; i < a.rows * a.inner; i += gridDim.x) {
    const int64_t first = i / a.inner * a.own * a.inner + i % a.inner;
    const T *x = static_cast<const T *>(a.scores) + first;
    T *dx = static_cast<T *>(a.dx) + first;
    bool counts;
    const int64_t label = label_of_row(a.of, i, &counts);
    const R dl = (R)get(static_cast<const T *>(a.dl), a.dl_rows ? i : 0);
    const R weight =
        counts && a.weights != nullptr ? (R)get(static_cast<const T *>(a.weights), label) : (R)1;
    const R own = weight * (R)(1 - a.smoothing), scale = own + (R)a.smoothing;
    const R log_sum = static_cast<const R *>(a.log_sum)[i];
    for (int64_t c = threadIdx.x; c < a.own; c += CUDA_THREADS) {
      R d = exp_of((R)get(x, c * a.inner) - log_sum) * scale - even;
      d -= c + a.first == label ? own : (R)0;
      put(dx, c * a.inner, counts ? dl * d : (R)0);
    }
  }
}

#define CUDA_ENTROPY(SUFFIX, TYPE)                  \
  CUDA_ROOMY_KERNEL(opipe_entropy_part_##SUFFIX) {  \
    entropy_part<TYPE>(a);                          \
  }                                                 \
  CUDA_ROOMY_KERNEL(opipe_entropy_merge_##SUFFIX) { \
    entropy_merge<TYPE>(a);                         \
  }                                                 \
  CUDA_ROOMY_KERNEL(opipe_entropy_grad_##SUFFIX) {  \
    entropy_grad<TYPE>(a);                          \
  }
CUDA_ENTROPY(f32, float)
CUDA_ENTROPY(bf16, bf16)
CUDA_ENTROPY(f16, f16)
CUDA_ENTROPY(f64, double)
