/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers over one parameter or all of them at once, norms of gradients,
 * clipping.
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
  n.gradient_scale = (float)(a.scale != nullptr ? a.gradient_scale * *a.scale : a.gradient_scale);
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

CUDA_FN cuda_update_item chunk_of(const cuda_update_item *items, const cuda_update_chunk *chunks,
                                  const cuda_update_item &own, uint64_t i, int64_t *out_first) {
  if (items == nullptr) {
    *out_first = (int64_t)i * CUDA_UPDATE_CHUNK;
    return own;
  }
  *out_first = chunks[i].first;
  return items[chunks[i].item];
}

CUDA_KERNEL(opipe_update) {
  if (a.skip != nullptr && *a.skip != 0)
    return;
  for (uint64_t chunk = blockIdx.x; chunk < a.n_chunks; chunk += gridDim.x) {
    int64_t first;
    const cuda_update_item p = chunk_of(a.items, a.chunks, a.own, chunk, &first);
    const update_numbers n = numbers_of(a, p.decay);
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
CUDA_KERNEL(opipe_squares_chunks) {
  CUDA_SHARED(block_room<double>, room);
  for (uint64_t part = blockIdx.x; part * a.per_part < a.n_chunks; part += gridDim.x) {
    double sum = 0;
    for (uint64_t k = 0; k < a.per_part && part * a.per_part + k < a.n_chunks; ++k) {
      int64_t first;
      const cuda_update_item p = chunk_of(a.items, a.chunks, a.own, part * a.per_part + k, &first);
      const int64_t end = first + CUDA_UPDATE_CHUNK < p.n ? first + CUDA_UPDATE_CHUNK : p.n;
      for (int64_t i = first + threadIdx.x; i < end; i += CUDA_THREADS)
        sum += (double)p.gradient[i] * (double)p.gradient[i];
    }
    sum = block_all(sum, add_two(), &room);
    if (threadIdx.x == 0)
      static_cast<double *>(a.workspace)[part] = sum;
  }
}

/* One block, a part a thread. */
CUDA_KERNEL(opipe_squares_sum) {
  CUDA_SHARED(block_room<double>, room);
  const bool has = threadIdx.x * a.per_part < a.n_chunks;
  double sum = has ? static_cast<const double *>(a.workspace)[threadIdx.x] : 0.0;
  sum = block_all(sum, add_two(), &room);
  if (threadIdx.x == 0)
    *a.sum = sum;
}

CUDA_KERNEL(opipe_clip) {
  const double norm = sqrt(*a.sum) / a.loss_scale;
  if (a.norm != nullptr)
    *a.norm = norm;
  if (a.scale != nullptr)
    *a.scale = (a.clip > 0 && norm > a.clip ? a.clip / norm : 1.0) / a.loss_scale;
  if (a.skip != nullptr)
    *a.skip = norm - norm != 0;
}
