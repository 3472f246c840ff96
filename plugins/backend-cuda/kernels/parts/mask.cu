/* SPDX-License-Identifier: Apache-2.0 */
/* Masks for kernels that add a number to every score and know neither minus infinity nor rows that
 * see nothing.
 *
 *   prepare   copies of a mask, all finite, a warp a row, and of each row notes of where it begins
 *             to be seen and to be no number
 *   settle    rows that see nothing are 0, as are their dY, and the logarithms of their sums
 *             infinite; rows of what is no number are none; or dY alone, behind rows that are so
 *
 * Numbers so low that scores vanish beside them leave equal weights in rows that see nothing else,
 * whose logarithms of sums should vanish too. cuDNN takes exponentials of two: it multiplies the
 * largest score by log2(e), the logarithm by ln(2), and is off by a unit of the number, by which
 * exponentials of scores above it are 0 or infinite. So the logarithm becomes the largest number
 * itself, the exponentials 1 where they should be 1 / n, and dY is divided by n instead: gradients
 * are their product. */
#include "map_math.cuh"

/* Apart by more than any scores; and times log2(e) still finite. */
#define MASK_HIDDEN -0x1p127f
#define MASK_LOWEST -0x1p126f
/* From here on the unit is 8, and scores of up to 4 vanish in sums of float: all do beside a number
 * that is 2^16 times as low. */
#define MASK_LOW -0x1p26f
/* Between what is so low and all else, whatever scores add. */
#define MASK_LOW_SUM -0x1p34f

enum { MASK_AHEAD = 4 };

/* A number of the mask as it is added. Half types round sums: from where their unit is 8, too,
 * scores of up to 4 vanish as they do in float beside a number that is 2^80 times as low. */
CUDA_FN float mask_number(float x) {
  return x <= MASK_LOW ? x * 0x1p16f : x;
}
CUDA_FN float mask_number(bf16 x) {
  const float number = widen(x);
  return number <= -1024 ? number * 0x1p80f : number;
}
CUDA_FN float mask_number(f16 x) {
  const float number = widen(x);
  return number <= -8192 && number > -INFINITY ? number * 0x1p80f : number;
}
CUDA_FN float mask_number(uint8_t x) {
  return x != 0 ? 0.0f : -INFINITY;
}

/* True for -infinity as it was given, not as a product has made it. */
CUDA_FN bool mask_hides(float x) {
  return x == -INFINITY;
}
CUDA_FN bool mask_hides(bf16 x) {
  return x.bits == 0xff80u;
}
CUDA_FN bool mask_hides(f16 x) {
  return x.bits == 0xfc00u;
}
CUDA_FN bool mask_hides(uint8_t x) {
  return x == 0;
}

struct min_two {
  CUDA_FN int operator()(int a, int b) const {
    return a < b ? a : b;
  }
};

template <class In, class Out>
CUDA_FN void prepare_mask(const cuda_mask_args &a) {
  const int lane = (int)threadIdx.x % 32, keys = (int)a.keys;
  const int64_t step = (int64_t)gridDim.x * (blockDim.x / 32);
  for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
       i < a.batch * a.heads * a.rows; i += step) {
    const int64_t row = i % a.rows, h = i / a.rows % a.heads, b = i / a.rows / a.heads;
    const In *from = static_cast<const In *>(a.mask) + b * a.stride[0] + h * a.stride[1] +
                     row * a.stride[2];
    Out *to = static_cast<Out *>(a.out) + i * keys;
    const int64_t limit = a.shift < 0 ? keys : row + a.shift + 1;
    int first = keys, bad = keys;
    for (int j = lane; j < keys; j += 32 * MASK_AHEAD) {
      In x[MASK_AHEAD];
      CUDA_UNROLL
      for (int k = 0; k < MASK_AHEAD; ++k) {
        if (j + 32 * k < keys)
          x[k] = from[(j + 32 * k) * a.stride[3]];
      }
      CUDA_UNROLL
      for (int k = 0; k < MASK_AHEAD; ++k) {
        const int t = j + 32 * k;
        if (t >= keys)
          break;
        const bool hidden = t >= limit || mask_hides(x[k]);
        const float number = mask_number(x[k]);
        const bool wrong = !hidden && !(number < INFINITY);
        first = !hidden && t < first ? t : first;
        bad = wrong && t < bad ? t : bad;
        put(to, t,
            hidden                  ? MASK_HIDDEN
            : wrong                 ? 0.0f
            : number < MASK_LOWEST  ? MASK_LOWEST
            : number > -MASK_LOWEST ? -MASK_LOWEST
                                    : number);
      }
    }
    first = warp_all(first, min_two());
    bad = warp_all(bad, min_two());
    if (lane == 0) {
      a.notes[2 * i] = first;
      a.notes[2 * i + 1] = bad;
    }
  }
}

CUDA_KERNEL(opipe_mask_bool_bf16) {
  prepare_mask<uint8_t, bf16>(a);
}
CUDA_KERNEL(opipe_mask_bool_f32) {
  prepare_mask<uint8_t, float>(a);
}
CUDA_KERNEL(opipe_mask_bf16) {
  prepare_mask<bf16, bf16>(a);
}
CUDA_KERNEL(opipe_mask_f16) {
  prepare_mask<f16, float>(a);
}
CUDA_KERNEL(opipe_mask_f32) {
  prepare_mask<float, float>(a);
}

/* ---- behind attention ---- */

struct mask_place { /* of a query row */
  int64_t b, h, s, mask_row;
  int seen; /* keys [0, seen), but for the mask */
};

CUDA_FN mask_place place_in_mask(const cuda_settle_args &a, int64_t i) {
  mask_place at;
  at.s = i % a.queries;
  at.h = i / a.queries % a.heads;
  at.b = i / a.queries / a.heads;
  at.mask_row = at.b * a.row_stride[0] + at.h * a.row_stride[1] + at.s * a.row_stride[2];
  at.seen = (int)(a.causal != 0 && at.s + 1 < a.keys ? at.s + 1 : a.keys);
  return at;
}

CUDA_FN float prepared(const cuda_settle_args &a, int64_t mask_row, int t) {
  const int64_t i = mask_row * a.keys + t;
  return a.half_mask != 0 ? widen(static_cast<const bf16 *>(a.mask)[i])
                          : static_cast<const float *>(a.mask)[i];
}

/* A row that sees nothing but low numbers. */
struct low_row {
  float top, share; /* the largest; 1 / sum of the exponentials of all above it */
};

CUDA_FN low_row look_at_low(const cuda_settle_args &a, const mask_place &at) {
  const int lane = (int)threadIdx.x % 32;
  float top = MASK_HIDDEN, sum = 0;
  for (int t = lane; t < at.seen; t += 32)
    top = max_two()(top, prepared(a, at.mask_row, t));
  top = warp_all(top, max_two());
  for (int t = lane; t < at.seen; t += 32)
    sum += exp_of(prepared(a, at.mask_row, t) - top);
  low_row row;
  row.top = top;
  row.share = 1.0f / warp_all(sum, add_two());
  return row;
}

enum { SETTLE_HIDDEN = 1, SETTLE_WRONG = 2, SETTLE_LOW = 4 };

/* A row by a warp. */
template <class T>
CUDA_FN void settle_row(const cuda_settle_args &a, int64_t i, int what) {
  const mask_place at = place_in_mask(a, i);
  const int lane = (int)threadIdx.x % 32;
  low_row low = {0.0f, 1.0f};
  if ((what & SETTLE_LOW) != 0)
    low = look_at_low(a, at);
  const float nothing = (what & SETTLE_WRONG) != 0 ? NAN : 0.0f;
  const int64_t y = at.b * a.y_stride[0] + at.h * a.y_stride[1] + at.s * a.y_stride[2];
  const int64_t dy = at.b * a.dy_stride[0] + at.h * a.dy_stride[1] + at.s * a.dy_stride[2];
  const bool none = (what & (SETTLE_HIDDEN | SETTLE_WRONG)) != 0;
  for (int64_t d = lane; d < a.value_depth; d += 32) {
    if (none && a.y != nullptr)
      put(static_cast<T *>(a.y), y + d, nothing);
    if (a.dy != nullptr) {
      put(static_cast<T *>(a.dy_out), i * a.value_depth + d,
          none ? nothing : get(static_cast<const T *>(a.dy), dy + d) * low.share);
    }
  }
  if (what != 0 && a.y != nullptr && a.stats != nullptr && lane == 0) {
    a.stats[i] = (what & SETTLE_WRONG) != 0    ? NAN
                 : (what & SETTLE_HIDDEN) != 0 ? INFINITY
                                               : low.top;
  }
}

/* A warp takes 32 rows: each lane looks at one, all write those that need it. */
template <class T>
CUDA_FN void settle(const cuda_settle_args &a) {
  const int64_t rows = a.batch * a.heads * a.queries;
  const int64_t step = (int64_t)gridDim.x * blockDim.x;
  const int64_t start = (int64_t)blockIdx.x * blockDim.x + threadIdx.x / 32 * 32;
  for (int64_t first = start; first < rows; first += step) {
    const int64_t i = first + threadIdx.x % 32;
    int what = 0;
    if (i < rows) {
      const mask_place at = place_in_mask(a, i);
      const int *note = a.notes + 2 * at.mask_row;
      what = note[1] < at.seen ? SETTLE_WRONG : note[0] >= at.seen ? SETTLE_HIDDEN : 0;
      if (what == 0 && a.stats != nullptr && a.stats[i] < MASK_LOW_SUM)
        what = SETTLE_LOW;
    }
    const unsigned those =
        __ballot_sync(0xffffffffu, i < rows && (what != 0 || a.dy != nullptr));
    for (int of = 0; of < 32 && those >> of != 0; ++of) {
      const int its = __shfl_sync(0xffffffffu, what, of);
      if ((those >> of & 1u) != 0)
        settle_row<T>(a, first + of, its);
    }
  }
}

CUDA_KERNEL(opipe_settle_bf16) {
  settle<bf16>(a);
}
CUDA_KERNEL(opipe_settle_f16) {
  settle<f16>(a);
}
