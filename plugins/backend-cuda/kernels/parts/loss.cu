/* SPDX-License-Identifier: Apache-2.0 */
/* Cross entropy where the classes are not the last axis, forward and with its gradient in the place
 * of the scores: a thread takes a line (rows: loss_rows.cu). Sums of losses, in fp64 and in the
 * order of rows. Dropout. */
#include "loss.cuh"

/* Top and sum of exponentials of a line's classes. */
template <class T, class R>
CUDA_FN R sum_of_line(const T *x, int64_t classes, int64_t step, R *out_top) {
  R top = (R)-INFINITY, sum = 0;
  for (int64_t c = 0; c < classes; ++c)
    top = max_two()(top, (R)get(x, c * step));
  for (int64_t c = 0; c < classes; ++c)
    sum += exp_of((R)get(x, c * step) - top);
  *out_top = top;
  return sum;
}

template <class T, class R>
CUDA_FN void loss_lines(const cuda_loss_args &a) {
  for (int64_t i = first_element(); i < a.rows * a.inner; i += element_step()) {
    const int64_t first = i / a.inner * a.classes * a.inner + i % a.inner;
    const T *x = static_cast<const T *>(a.scores) + first;
    bool counts;
    const int64_t label = label_of(a.labels, a.label_bytes, i, a.classes, a.ignores, a.ignored,
                                   a.status, a.node, &counts);
    R shift = 0;
    if (a.softmax) {
      R top;
      const R sum = sum_of_line<T, R>(x, a.classes, a.inner, &top);
      shift = log_of(sum) + top;
    }
    if (a.log_prob != nullptr) {
      for (int64_t c = 0; c < a.classes; ++c)
        put(static_cast<T *>(a.log_prob) + first, c * a.inner, (R)get(x, c * a.inner) - shift);
    }
    write_loss<T, R>(a, i, counts, label, (R)get(x, label * a.inner), shift);
  }
}

struct loss_room {
  double loss[CUDA_THREADS], weight[CUDA_THREADS];
};

/* One block: threads take consecutive runs of rows, the runs are added in
 * order. */
template <class T>
CUDA_FN void loss_sum(const cuda_loss_args &a) {
  CUDA_SHARED(loss_room, room);
  const double *from = static_cast<const double *>(a.workspace);
  const int64_t n = a.rows * a.inner, each = (n + CUDA_THREADS - 1) / CUDA_THREADS;
  double loss = 0, weight = 0;
  for (int64_t i = threadIdx.x * each; i < n && i < (threadIdx.x + 1) * each; ++i) {
    loss += from[2 * i];
    weight += from[2 * i + 1];
  }
  room.loss[threadIdx.x] = loss;
  room.weight[threadIdx.x] = weight;
  __syncthreads();
  if (threadIdx.x != 0)
    return;
  loss = 0;
  weight = 0;
  for (int i = 0; i < CUDA_THREADS; ++i) {
    loss += room.loss[i];
    weight += room.weight[i];
  }
  typedef typename real_of<T>::type R;
  put(static_cast<T *>(a.loss), 0, (R)(a.reduction == 2 ? loss / weight : loss));
}

/* d = dl (p (own + each total) - each weight[c] - own [c == label]); a line that
 * does not count gives 0. */
template <class T, class R>
CUDA_FN void loss_grad_lines(const cuda_loss_grad_args &a) {
  const T *weights = static_cast<const T *>(a.weights);
  const R each = (R)(a.smoothing / (double)a.classes);
  for (int64_t i = first_element(); i < a.rows * a.inner; i += element_step()) {
    const int64_t first = i / a.inner * a.classes * a.inner + i % a.inner;
    const T *x = static_cast<const T *>(a.x) + first;
    T *dx = static_cast<T *>(a.dx) + first;
    bool counts;
    const int64_t label = label_of(a.labels, a.label_bytes, i, a.classes, a.ignores, a.ignored,
                                   a.status, a.node, &counts);
    if (!counts) {
      for (int64_t c = 0; c < a.classes; ++c)
        put(dx, c * a.inner, (R)0);
      continue;
    }
    R top, total = (R)a.classes;
    if (weights != nullptr) {
      total = 0;
      for (int64_t c = 0; c < a.classes; ++c)
        total += (R)get(weights, c);
    }
    const R sum = sum_of_line<T, R>(x, a.classes, a.inner, &top);
    const R own = (R)(1.0 - a.smoothing) * (weights != nullptr ? (R)get(weights, label) : (R)1);
    const R dl = (R)get(static_cast<const T *>(a.dl), a.dl_rows ? i : 0);
    const R scale = (own + each * total) / sum;
    for (int64_t c = 0; c < a.classes; ++c) {
      R d = exp_of((R)get(x, c * a.inner) - top) * scale -
            each * (weights != nullptr ? (R)get(weights, c) : (R)1);
      d -= c == label ? own : (R)0;
      put(dx, c * a.inner, dl * d);
    }
  }
}

#define CUDA_LOSS(SUFFIX, TYPE, REAL)           \
  CUDA_ROOMY_KERNEL(opipe_loss_line_##SUFFIX) { \
    loss_lines<TYPE, REAL>(a);                  \
  }                                             \
  CUDA_KERNEL(opipe_loss_sum_##SUFFIX) {        \
    loss_sum<TYPE>(a);                          \
  }                                             \
  CUDA_KERNEL(opipe_loss_grad_line_##SUFFIX) {  \
    loss_grad_lines<TYPE, REAL>(a);             \
  }
CUDA_LOSS(f32, float, float)
CUDA_LOSS(bf16, bf16, float)
CUDA_LOSS(f16, f16, float)
CUDA_LOSS(f64, double, double)

/* ---- dropout: the counter of backend-cpu's (dropout_train.c), bit for bit
 * ---- */

CUDA_FN uint64_t mixed(uint64_t x) {
  x ^= x >> 30;
  x *= UINT64_C(0xbf58476d1ce4e5b9);
  x ^= x >> 27;
  x *= UINT64_C(0x94d049bb133111eb);
  return x ^ x >> 31;
}

#define CUDA_GOLDEN UINT64_C(0x9e3779b97f4a7c15)

struct dropout_place {
  int64_t sample, token, rest;
};

/* Takes the counted factor out of index i of its axis; the result is the rest.
 */
CUDA_FN int64_t take_factor(const cuda_dropout_factor &f, int64_t i, int64_t *out_n) {
  *out_n = i / f.inner % f.n;
  return i / (f.inner * f.n) * f.inner + i % f.inner;
}

/* Both in one axis: the one with the larger stride first. */
CUDA_FN int64_t take_both(const cuda_dropout_args &a, int64_t i, dropout_place *io) {
  const bool batch_first = a.batch_part.inner >= a.token_part.inner;
  const cuda_dropout_factor &high = batch_first ? a.batch_part : a.token_part;
  const cuda_dropout_factor &low = batch_first ? a.token_part : a.batch_part;
  io->sample = i / a.batch_part.inner % a.batch_part.n;
  io->token = i / a.token_part.inner % a.token_part.n;
  const int64_t above = i / (high.inner * high.n), middle = i % high.inner / (low.inner * low.n);
  return (above * (high.inner / (low.inner * low.n)) + middle) * low.inner + i % low.inner;
}

/* Index i of the part's axis as one of the whole tensor's. */
CUDA_FN int64_t whole_index(const cuda_dropout_args &a, int64_t i) {
  uint32_t r = 0;
  for (; r + 1 < a.n_runs && i >= a.part_runs[2 * r + 1]; ++r)
    i -= a.part_runs[2 * r + 1];
  return a.part_runs[2 * r] + i;
}

CUDA_FN dropout_place dropout_place_of(const cuda_dropout_args &a, int64_t i) {
  dropout_place at = {0, 0, 0};
  int64_t weight = 1; /* of this axis' rest */
  for (int axis = (int)a.rank - 1; axis >= 0; --axis) {
    const int64_t extent = a.shape[axis];
    int64_t rest = i % extent, left = extent;
    const bool is_batch = a.batch_part.axis == axis, is_token = a.token_part.axis == axis;
    i /= extent;
    if (a.n_runs > 0 && (int)a.part_axis == axis) {
      rest = whole_index(a, rest);
      left = a.part_whole;
    }
    left /= (is_batch ? a.batch_part.n : 1) * (is_token ? a.token_part.n : 1);
    if (is_batch && is_token)
      rest = take_both(a, rest, &at);
    else if (is_batch)
      rest = take_factor(a.batch_part, rest, &at.sample);
    else if (is_token)
      rest = take_factor(a.token_part, rest, &at.token);
    at.rest += rest * weight;
    weight *= left;
  }
  return at;
}

/* NULL: 0. */
CUDA_FN uint64_t counter_at(const int64_t *at) {
  return at != nullptr ? (uint64_t)*at : 0;
}

/* A thread draws for up to four elements that follow each other in the rest. */
template <class T>
CUDA_FN void dropout(const cuda_dropout_args &a) {
  typedef typename real_of<T>::type R;
  const int last = (int)a.rank - 1;
  const bool is_cut = a.n_runs > 1 && (int)a.part_axis == last;
  const bool plain = last >= 0 && a.batch_part.axis != last && a.token_part.axis != last &&
                     a.shape[last] % 4 == 0 && !is_cut;
  const int run = plain ? 4 : 1;
  const uint64_t base =
      mixed(mixed(a.key + counter_at(a.seed) * CUDA_GOLDEN) + counter_at(a.step) * CUDA_GOLDEN);
  const uint64_t bound = (uint64_t)(a.ratio * 0x1p53);
  const R scale = (R)(1.0 / (1.0 - a.ratio));
  for (int64_t i = first_element() * run; i < a.n; i += element_step() * run) {
    const dropout_place at = dropout_place_of(a, i);
    const uint64_t sample = counter_at(a.sample) + (uint64_t)at.sample,
                   token = counter_at(a.token) + (uint64_t)at.token;
    const uint64_t key = mixed(mixed(base + sample * CUDA_GOLDEN) + token * CUDA_GOLDEN);
    for (int c = 0; c < run; ++c) {
      const bool keep = mixed(key + (uint64_t)(at.rest + c + 1) * CUDA_GOLDEN) >> 11 >= bound;
      put(static_cast<T *>(a.y), i + c,
          keep ? (R)get(static_cast<const T *>(a.x), i + c) * scale : (R)0);
      if (a.mask != nullptr)
        a.mask[i + c] = keep;
    }
  }
}

#define CUDA_DROPOUT(SUFFIX, TYPE)            \
  CUDA_ROOMY_KERNEL(opipe_dropout_##SUFFIX) { \
    dropout<TYPE>(a);                         \
  }
CUDA_DROPOUT(f32, float)
CUDA_DROPOUT(bf16, bf16)
CUDA_DROPOUT(f16, f16)
CUDA_DROPOUT(f64, double)
