/* SPDX-License-Identifier: Apache-2.0 */
/* Recurrent layers, but for their products: a thread an element of the state. Nothing is summed
 * here, and no row sees another one. */
#include "map_math.cuh"

template <class R>
CUDA_FN R recurrent_activation(const cuda_recurrent_args &a, int f, R x) {
  const R p = (R)a.alpha[f], q = (R)a.beta[f];
  switch (a.activation[f]) {
    case CUDA_GATE_AFFINE:
      return p * x + q;
    case CUDA_GATE_SCALED_TANH:
      return p * tanh_of(q * x);
    default:
      return activation(a.activation[f], x, p, q);
  }
}

/* The activation of a gate, which is clipped before. */
template <class R>
CUDA_FN R recurrent_gate(const cuda_recurrent_args &a, int f, R x) {
  const R limit = (R)a.clip;
  if (limit > 0)
    x = x < -limit ? -limit : x > limit ? limit : x;
  return recurrent_activation(a, f, x);
}

/* Steps of a row; what is none is reported once, at the beginning, and cut. */
CUDA_FN int64_t recurrent_length(const cuda_recurrent_args &a, int64_t row) {
  if (a.lens == nullptr)
    return a.steps;
  const int64_t length = index_at(a.lens, a.lens_bytes, row);
  if (length < 0 || length > a.steps)
    report(a.status, CUDA_STATUS_LENGTH, a.node, length, a.steps);
  return length < 0 ? 0 : length > a.steps ? a.steps : length;
}

/* One unit of one row at one step. */
template <class T>
struct recurrent_unit {
  typedef typename real_of<T>::type R;
  const cuda_recurrent_args &a;
  const T *from;  /* of the unit's first gate: what comes from the input */
  R *sums;        /* the same: what comes from the state */
  const T *extra; /* of the unit; nullptr: none */
  R h;            /* the state before */

  CUDA_FN R input(int gate) const {
    return (R)get(from, gate * a.hidden);
  }
  CUDA_FN R taken(int gate) const {
    return input(gate) + sums[gate * a.hidden];
  }
  CUDA_FN R peephole(int k, R cell) const {
    return extra != nullptr ? (R)get(extra, k * a.hidden) * cell : (R)0;
  }
  /* The state behind. */
  CUDA_FN R lstm(R *io_cell) const {
    const R in = recurrent_gate(a, 0, taken(0) + peephole(0, *io_cell));
    const R keep =
        a.input_forget ? (R)1 - in : recurrent_gate(a, 0, taken(2) + peephole(2, *io_cell));
    const R cell = keep * *io_cell + in * recurrent_gate(a, 1, taken(3));
    *io_cell = cell;
    return recurrent_gate(a, 0, taken(1) + peephole(1, cell)) * recurrent_activation(a, 2, cell);
  }
  CUDA_FN R renewed(R z, R last) const {
    return ((R)1 - z) * recurrent_gate(a, 1, last) + z * h;
  }
  CUDA_FN R gru(void) const {
    const R z = recurrent_gate(a, 0, taken(0)), r = recurrent_gate(a, 0, taken(1));
    return renewed(z, input(2) + r * (sums[2 * a.hidden] + peephole(0, (R)1)));
  }
};

template <class T>
CUDA_FN void recurrent_begin(const cuda_recurrent_args &a, int64_t i) {
  typedef typename real_of<T>::type R;
  const T *h0 = static_cast<const T *>(a.h0), *c0 = static_cast<const T *>(a.c0);
  const R h = h0 != nullptr ? (R)get(h0, i) : (R)0;
  static_cast<R *>(a.state)[i] = h;
  static_cast<R *>(a.cell)[i] = c0 != nullptr ? (R)get(c0, i) : (R)0;
  put(static_cast<T *>(a.h), i, h);
  (void)recurrent_length(a, i / a.hidden);
}

template <class T>
CUDA_FN void recurrent_end(const cuda_recurrent_args &a, int64_t i) {
  typedef typename real_of<T>::type R;
  if (a.last_h != nullptr)
    put(static_cast<T *>(a.last_h), i, static_cast<const R *>(a.state)[i]);
  if (a.last_c != nullptr)
    put(static_cast<T *>(a.last_c), i, static_cast<const R *>(a.cell)[i]);
}

/* h becomes r h; of a row whose steps are over it is the state. */
template <class T>
CUDA_FN void recurrent_reset(const recurrent_unit<T> &u, int64_t i) {
  typedef typename real_of<T>::type R;
  const R r = recurrent_gate(u.a, 0, u.taken(1));
  u.sums[0] = recurrent_gate(u.a, 0, u.taken(0));
  put(static_cast<T *>(u.a.h), i, r * u.h);
}

template <class T>
CUDA_FN void recurrent_step(const cuda_recurrent_args &a, int64_t i) {
  typedef typename real_of<T>::type R;
  const int64_t row = i / a.hidden, k = i % a.hidden, length = recurrent_length(a, row);
  T *y = static_cast<T *>(a.y);
  if (a.step >= length) {
    if (y != nullptr && a.part != CUDA_RECURRENT_RESET)
      put(y, a.step * a.batch * a.hidden + i, (R)0);
    return;
  }
  const int64_t at = a.reverse ? length - 1 - a.step : a.step;
  const int64_t gates = a.gates * a.hidden;
  R *state = static_cast<R *>(a.state), *cell = static_cast<R *>(a.cell);
  const T *extra = static_cast<const T *>(a.extra);
  const recurrent_unit<T> u = {a, static_cast<const T *>(a.g) + (at * a.batch + row) * gates + k,
                               static_cast<R *>(a.sums) + row * gates + k,
                               extra != nullptr ? extra + k : nullptr, state[i]};
  R h;
  switch (a.part) {
    case CUDA_RECURRENT_LSTM:
      h = u.lstm(&cell[i]);
      break;
    case CUDA_RECURRENT_GRU:
      h = u.gru();
      break;
    case CUDA_RECURRENT_RESET:
      recurrent_reset(u, i);
      return;
    case CUDA_RECURRENT_RENEW:
      h = u.renewed(u.sums[0], u.taken(2));
      break;
    default:
      h = recurrent_gate(a, 0, u.taken(0));
  }
  state[i] = h;
  put(static_cast<T *>(a.h), i, h);
  if (y != nullptr)
    put(y, (at * a.batch + row) * a.hidden + k, h);
}

template <class T>
CUDA_FN void recurrent(const cuda_recurrent_args &a) {
  for (int64_t i = first_element(); i < a.batch * a.hidden; i += element_step()) {
    if (a.part == CUDA_RECURRENT_BEGIN)
      recurrent_begin<T>(a, i);
    else if (a.part == CUDA_RECURRENT_END)
      recurrent_end<T>(a, i);
    else
      recurrent_step<T>(a, i);
  }
}

CUDA_KERNEL(opipe_recurrent_f32) {
  recurrent<float>(a);
}
CUDA_KERNEL(opipe_recurrent_bf16) {
  recurrent<bf16>(a);
}
CUDA_KERNEL(opipe_recurrent_f16) {
  recurrent<f16>(a);
}
CUDA_ROOMY_KERNEL(opipe_recurrent_f64) {
  recurrent<double>(a);
}
