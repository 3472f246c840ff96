/* SPDX-License-Identifier: Apache-2.0 */
/* Transforms of one line; see fft.h. */
#include "fft.h"

#include <math.h>

static cpu_complex times(cpu_complex a, cpu_complex b) {
  return (cpu_complex){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

static cpu_complex plus(cpu_complex a, cpu_complex b) {
  return (cpu_complex){a.re + b.re, a.im + b.im};
}

static cpu_complex minus(cpu_complex a, cpu_complex b) {
  return (cpu_complex){a.re - b.re, a.im - b.im};
}

/* exp(-2 pi i k / n) with the angle brought into the first eighth, where it is most exact. */
static cpu_complex unit(int64_t k, int64_t n) {
  const double pi = 3.14159265358979323846;
  const int64_t eighth = 8 * k / n; /* 0 .. 7; n < 2^29 */
  const int64_t half = (eighth + 1) / 2;
  const double angle = 2 * pi * ((double)k / (double)n - (double)half / 4);
  const double c = cos(angle);
  const double s = sin(angle);
  switch (half % 4) {
    case 0:
      return (cpu_complex){c, -s};
    case 1:
      return (cpu_complex){-s, -c};
    case 2:
      return (cpu_complex){-c, s};
    default:
      return (cpu_complex){s, c};
  }
}

/* ---- one pass: x[j + l (k + m q)] -> y[j + l (s + p k)], n = l p m ---- */

static void pass_2(const cpu_fft *fft, int64_t l, int64_t m, const cpu_complex *x, cpu_complex *y) {
  for (int64_t k = 0; k < m; ++k) {
    const cpu_complex w = fft->turn[k * l];
    const cpu_complex *a = x + k * l;
    cpu_complex *to = y + 2 * k * l;
    for (int64_t j = 0; j < l; ++j) {
      const cpu_complex u = a[j];
      const cpu_complex v = a[j + l * m];
      to[j] = plus(u, v);
      to[j + l] = times(minus(u, v), w);
    }
  }
}

static void pass_4(const cpu_fft *fft, int64_t l, int64_t m, const cpu_complex *x, cpu_complex *y) {
  for (int64_t k = 0; k < m; ++k) {
    const cpu_complex w1 = fft->turn[k * l];
    const cpu_complex w2 = fft->turn[2 * k * l];
    const cpu_complex w3 = fft->turn[3 * k * l];
    const cpu_complex *a = x + k * l;
    cpu_complex *to = y + 4 * k * l;
    for (int64_t j = 0; j < l; ++j) {
      const cpu_complex even = plus(a[j], a[j + 2 * l * m]);
      const cpu_complex even_less = minus(a[j], a[j + 2 * l * m]);
      const cpu_complex odd = plus(a[j + l * m], a[j + 3 * l * m]);
      const cpu_complex d = minus(a[j + l * m], a[j + 3 * l * m]);
      const cpu_complex odd_less = {d.im, -d.re}; /* by -i */
      to[j] = plus(even, odd);
      to[j + l] = times(plus(even_less, odd_less), w1);
      to[j + 2 * l] = times(minus(even, odd), w2);
      to[j + 3 * l] = times(minus(even_less, odd_less), w3);
    }
  }
}

static void pass_any(const cpu_fft *fft, int64_t p, int64_t l, int64_t m, const cpu_complex *x,
                     cpu_complex *y) {
  const int64_t step = fft->n / p;
  for (int64_t k = 0; k < m; ++k) {
    for (int64_t j = 0; j < l; ++j) {
      for (int64_t s = 0; s < p; ++s) {
        cpu_complex sum = x[j + l * k];
        for (int64_t q = 1; q < p; ++q)
          sum = plus(sum, times(x[j + l * (k + m * q)], fft->turn[q * s % p * step]));
        y[j + l * (s + p * k)] = times(sum, fft->turn[k * s * l]);
      }
    }
  }
}

static void run_passes(const cpu_fft *fft, cpu_complex *x, cpu_complex *scratch) {
  cpu_complex *from = x;
  cpu_complex *to = scratch;
  int64_t l = 1;
  for (uint32_t f = 0; f < fft->n_factors; ++f) {
    const int64_t p = fft->factors[f];
    const int64_t m = fft->n / l / p;
    if (p == 2)
      pass_2(fft, l, m, from, to);
    else if (p == 4)
      pass_4(fft, l, m, from, to);
    else
      pass_any(fft, p, l, m, from, to);
    cpu_complex *held = from;
    from = to;
    to = held;
    l *= p;
  }
  if (from != x)
    memcpy(x, from, (size_t)fft->n * sizeof *x);
}

/* ---- any length ---- */

/* jk = (j^2 + k^2 - (k - j)^2) / 2: chirp, convolve with the conjugated chirp, chirp. The inverse
 * transform is the forward one of the conjugate. */
static void run_convolution(const cpu_fft *fft, cpu_complex *x, cpu_complex *scratch) {
  const int64_t n = fft->n;
  const int64_t m = fft->inner->n;
  cpu_complex *a = scratch;
  for (int64_t j = 0; j < n; ++j)
    a[j] = times(x[j], fft->chirp[j]);
  memset(a + n, 0, (size_t)(m - n) * sizeof *a);
  run_passes(fft->inner, a, scratch + m);
  for (int64_t j = 0; j < m; ++j) {
    const cpu_complex v = times(a[j], fft->spectrum[j]);
    a[j] = (cpu_complex){v.re, -v.im};
  }
  run_passes(fft->inner, a, scratch + m);
  for (int64_t k = 0; k < n; ++k)
    x[k] = times((cpu_complex){a[k].re, -a[k].im}, fft->chirp[k]);
}

int64_t cpu_fft_scratch(const cpu_fft *fft) {
  return fft->inner != NULL ? 2 * fft->inner->n : fft->n;
}

void cpu_fft_run(const cpu_fft *fft, cpu_complex *x, cpu_complex *scratch) {
  if (fft->inner != NULL)
    run_convolution(fft, x, scratch);
  else
    run_passes(fft, x, scratch);
}

/* ---- tables ---- */

/* False where a prime factor is too large. */
static bool factorise(cpu_fft *fft) {
  int64_t rest = fft->n;
  fft->n_factors = 0;
  for (; rest % 4 == 0; rest /= 4)
    fft->factors[fft->n_factors++] = 4;
  for (int32_t p = 2; p <= FFT_MAX_RADIX; ++p) {
    for (; rest % p == 0; rest /= p)
      fft->factors[fft->n_factors++] = p;
  }
  return rest == 1;
}

static opipe_status init_passes(cpu_prep *p, cpu_fft *fft) {
  fft->turn = CPU_POOL_ARRAY(p->pool, cpu_complex, (uint64_t)fft->n);
  if (fft->turn == NULL)
    return cpu_nomem(p);
  for (int64_t k = 0; k < fft->n; ++k)
    fft->turn[k] = unit(k, fft->n);
  return OPIPE_OK;
}

static opipe_status init_convolution(cpu_prep *p, cpu_fft *fft) {
  cpu_fft *inner = CPU_POOL_ARRAY(p->pool, cpu_fft, 1);
  const int64_t n = fft->n;
  if (inner == NULL)
    return cpu_nomem(p);
  for (inner->n = 1; inner->n < 2 * n - 1;)
    inner->n *= 2;
  (void)factorise(inner);
  CPU_TRY(init_passes(p, inner));
  fft->inner = inner;
  fft->chirp = CPU_POOL_ARRAY(p->pool, cpu_complex, (uint64_t)n);
  fft->spectrum = CPU_POOL_ARRAY(p->pool, cpu_complex, (uint64_t)inner->n);
  cpu_complex *scratch = CPU_POOL_ARRAY(p->pool, cpu_complex, (uint64_t)inner->n);
  if (fft->chirp == NULL || fft->spectrum == NULL || scratch == NULL)
    return cpu_nomem(p);
  for (int64_t k = 0; k < n; ++k)
    fft->chirp[k] = unit((int64_t)((uint64_t)k * (uint64_t)k % (uint64_t)(2 * n)), 2 * n);
  const double by = 1 / (double)inner->n;
  for (int64_t k = 0; k < n; ++k) {
    const cpu_complex c = {fft->chirp[k].re * by, -fft->chirp[k].im * by};
    fft->spectrum[k] = c;
    if (k > 0)
      fft->spectrum[inner->n - k] = c;
  }
  run_passes(inner, fft->spectrum, scratch);
  return OPIPE_OK;
}

opipe_status cpu_fft_init(cpu_prep *p, cpu_fft *fft, int64_t n) {
  *fft = (cpu_fft){.n = n};
  return factorise(fft) ? init_passes(p, fft) : init_convolution(p, fft);
}
