/* SPDX-License-Identifier: Apache-2.0 */
/* optimizers over many parameters at once, norms of gradients, sums of regions. The
 * parameters are a table in the argument block.
 *
 * The formulas are backend.h's, operation by operation those of the CPU
 * backend: the same bits. A block takes a chunk of CUDA_UPDATE_CHUNK elements
 * of one parameter. */
#include "map_math.cuh"
#include "numbers.cuh"

struct update_numbers {
  float gradient_scale, l2, momentum, beta1, beta2, rest1, rest2, keep, step, root, epsilon;
};

/* KIND: 0 SGD, 1 ADAM, 2 ADAMW; flags 1 NESTEROV, 2 EPS_INNER, 4 CLEAR
 * (opipe/backend.h). */
CUDA_FN update_numbers numbers_of(const cuda_update_args &a, double decay) {
  update_numbers n;
  const bool decoupled = a.kind == 2;
  const double root = sqrt(a.correction2);
  n.gradient_scale = (float)a.gradient_scale;
  n.l2 = decoupled ? 0.0f : (float)decay;
  n.momentum = (float)a.momentum;
  n.beta1 = (float)a.beta1;
  n.beta2 = (float)a.beta2;
  n.rest1 = (float)(1.0 - a.beta1);
  n.rest2 = (float)(1.0 - a.beta2);
  n.keep = decoupled ? (float)(1.0 - a.lr * decay) : 1.0f;
  n.epsilon = (float)a.epsilon;
  if (a.kind == 0)
    n.step = (float)a.lr;
  else
    n.step = (float)((a.flags & 2u) != 0 ? a.lr * root / a.correction1 : a.lr / a.correction1);
  n.root = (a.flags & 2u) != 0 ? 1.0f : (float)(1.0 / root);
  return n;
}

/* The new weight; moments are changed in place. A product and a sum are joined
 * where the CPU's are. */
CUDA_FN float adam(const update_numbers &n, float w, float g, float *m, float *v) {
  const float d = fmaf(n.l2, w, __fmul_rn(g, n.gradient_scale));
  *m = fmaf(n.beta1, *m, __fmul_rn(n.rest1, d));
  *v = fmaf(n.beta2, *v, __fmul_rn(__fmul_rn(n.rest2, d), d));
  const float below = fmaf(sqrtf(*v), n.root, n.epsilon);
  const float step = below == 0.0f ? 0.0f : __fmul_rn(n.step, *m) / below;
  return __fsub_rn(__fmul_rn(w, n.keep), step);
}

CUDA_FN float sgd(const update_numbers &n, bool nesterov, float w, float g, float *m) {
  const float d = fmaf(n.l2, w, __fmul_rn(g, n.gradient_scale));
  float step = d;
  if (m != nullptr) {
    *m = fmaf(n.momentum, *m, d);
    step = nesterov ? fmaf(n.momentum, *m, d) : *m;
  }
  return __fsub_rn(w, __fmul_rn(n.step, step));
}

/* The item that block `i` of all belongs to; *io_i becomes its number within the item. */
CUDA_FN uint32_t item_of(const uint64_t *ends, uint32_t n, uint64_t *io_i) {
  uint32_t low = 0, high = n - 1;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (ends[middle] > *io_i)
      high = middle;
    else
      low = middle + 1;
  }
  *io_i -= low > 0 ? ends[low - 1] : 0;
  return low;
}

CUDA_KERNEL(opipe_update) {
  const uint64_t n_chunks = a.ends[a.n_items - 1];
  for (uint64_t block = blockIdx.x; block < n_chunks; block += gridDim.x) {
    uint64_t chunk = block;
    const cuda_update_item &p = a.items[item_of(a.ends, a.n_items, &chunk)];
    const update_numbers n = numbers_of(a, p.decay);
    const int64_t first = (int64_t)chunk * CUDA_UPDATE_CHUNK;
    const int64_t end = first + CUDA_UPDATE_CHUNK < p.n ? first + CUDA_UPDATE_CHUNK : p.n;
    for (int64_t i = first + threadIdx.x; i < end; i += CUDA_THREADS) {
      float w = p.weight[i];
      if (a.kind == 0) {
        w = sgd(n, (a.flags & 1u) != 0, w, p.gradient[i],
                p.first != nullptr ? p.first + i : nullptr);
      } else {
        float m = p.first[i], v = p.second[i];
        w = adam(n, w, p.gradient[i], &m, &v);
        p.first[i] = m;
        p.second[i] = v;
      }
      p.weight[i] = w;
      if (p.half != nullptr && p.half_dtype == TYPE_BF16)
        put(static_cast<bf16 *>(p.half), i, w);
      else if (p.half != nullptr)
        put(static_cast<f16 *>(p.half), i, w);
      if ((a.flags & 4u) != 0)
        p.gradient[i] = 0.0f;
    }
  }
}

/* workspace [parts]: sums of squares of per_part chunks each. */
CUDA_KERNEL(opipe_squares_parts) {
  CUDA_SHARED(block_room<double>, room);
  const uint64_t n_parts = a.ends[a.n_items - 1];
  for (uint64_t block = blockIdx.x; block < n_parts; block += gridDim.x) {
    uint64_t part = block;
    const cuda_squares_item &item = a.items[item_of(a.ends, a.n_items, &part)];
    double sum = 0;
    for (uint64_t k = 0; k < item.per_part; ++k) {
      const int64_t first = (int64_t)(part * item.per_part + k) * CUDA_UPDATE_CHUNK;
      const int64_t end = first + CUDA_UPDATE_CHUNK < item.n ? first + CUDA_UPDATE_CHUNK : item.n;
      for (int64_t i = first + threadIdx.x; i < end; i += CUDA_THREADS)
        sum += (double)item.x[i] * (double)item.x[i];
    }
    sum = block_all(sum, add_two(), &room);
    if (threadIdx.x == 0)
      a.workspace[block] = sum;
  }
}

/* A block an item, a part a thread. */
CUDA_KERNEL(opipe_squares_sum) {
  CUDA_SHARED(block_room<double>, room);
  const uint32_t item = blockIdx.x;
  const uint64_t first = item > 0 ? a.ends[item - 1] : 0;
  const bool has = threadIdx.x < a.ends[item] - first;
  double sum = has ? a.workspace[first + threadIdx.x] : 0.0;
  sum = block_all(sum, add_two(), &room);
  if (threadIdx.x == 0)
    *a.items[item].sum = sum;
}

/* ---- sums of regions ---- */

/* A thread takes 16 bytes of every region. */
template <class T>
CUDA_FN void sum_regions(const cuda_sum_args &a) {
  typedef typename real_of<T>::type R;
  const int V = lanes<T>::n;
  T *dst = static_cast<T *>(a.dst);
  for (int64_t i = first_element() * V; i < a.n; i += element_step() * V) {
    const bool whole = i + V <= a.n;
    R sum[V] = {};
    for (uint32_t s = 0; s < a.n_src; ++s) {
      const T *src = static_cast<const T *>(a.src[s]);
      R x[V];
      load_packet(src, i, a.n, whole && aligned16(src), x);
      CUDA_UNROLL
      for (int v = 0; v < V; ++v)
        sum[v] = s == 0 ? x[v] : plain_sum(sum[v], x[v]);
    }
    store_packet(dst, i, a.n, whole && aligned16(dst), sum);
  }
}

#define CUDA_SUM(SUFFIX, TYPE)      \
  CUDA_KERNEL(opipe_sum_##SUFFIX) { \
    sum_regions<TYPE>(a);           \
  }
CUDA_SUM(f32, float)
CUDA_SUM(bf16, bf16)
CUDA_SUM(f16, f16)
CUDA_SUM(f64, double)
