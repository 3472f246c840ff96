/* SPDX-License-Identifier: Apache-2.0 */
/* The fast Fourier transform of any length, in fp64.
 *
 * Stockham's self-sorting form (decimation in frequency) with the prime factors of the length, twos
 * taken in pairs; a length with a prime factor above FFT_MAX_RADIX by Bluestein's convolution.
 * (Van Loan, Computational Frameworks for the Fast Fourier Transform, 1.7 and 4.2.)
 */
#ifndef OPIPE_BACKEND_CPU_OPS_FFT_H_
#define OPIPE_BACKEND_CPU_OPS_FFT_H_

#include "op.h"

enum { FFT_MAX_RADIX = 31, FFT_MAX_FACTORS = 32 };

typedef struct cpu_complex {
  double re, im;
} cpu_complex;

typedef struct cpu_fft {
  int64_t n;
  cpu_complex *turn; /* [n] exp(-2 pi i k / n); NULL: by convolution */
  int32_t factors[FFT_MAX_FACTORS];
  uint32_t n_factors;
  const struct cpu_fft *inner; /* of the convolution: a power of two >= 2 n - 1 */
  cpu_complex *chirp;          /* [n] exp(-pi i k^2 / n) */
  cpu_complex *spectrum;       /* [inner->n] of the conjugated chirp, by 1 / inner->n */
} cpu_fft;

/* Tables in p's pool. n >= 1. */
opipe_status cpu_fft_init(cpu_prep *p, cpu_fft *fft, int64_t n);
/* Complex numbers of scratch that a transform takes. */
int64_t cpu_fft_scratch(const cpu_fft *fft);
/* x [n] to its spectrum, in place: sum over j of x[j] exp(-2 pi i j k / n). */
void cpu_fft_run(const cpu_fft *fft, cpu_complex *x, cpu_complex *scratch);

#endif
