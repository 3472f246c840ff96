/* SPDX-License-Identifier: Apache-2.0 */
/* Which instruction set the kernels use.
 *
 * Every kernel exists three times, built from one source: plain C, AVX2 and AVX-512. All three give
 * the same bits, so the choice is about speed alone and may be forced for tests. It is made when a
 * device is opened and never afterwards; nothing here reads the clock. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_ISA_H_
#define OPIPE_BACKEND_CPU_KERNELS_ISA_H_

#include <stdbool.h>

typedef enum cpu_isa {
  CPU_ISA_PORTABLE = 0, /* C11 with fmaf() and fma() */
  CPU_ISA_AVX2 = 1,     /* AVX2, FMA, F16C */
  CPU_ISA_AVX512 = 2,   /* AVX-512 F, BW, VL, DQ, with FMA and F16C */
  CPU_ISA_COUNT = 3
} cpu_isa;

/* The function table of one instruction set; see table.h. Immutable, never freed. */
typedef struct cpu_kernels cpu_kernels;

/* The best instruction set that processor and kernel support (CPUID and XGETBV). Thread: any. */
cpu_isa cpu_isa_detect(void);

/* Kernels of `isa`; NULL when this machine or this build lacks it. Thread: any. */
const cpu_kernels *cpu_kernels_get(cpu_isa isa);

/* Has this machine instructions beside `isa` that sum four products of bytes (AVX512-VNNI,
 * AVX-VNNI)? Kernels of bytes then use them; the bits are the same. Thread: any. */
bool cpu_isa_sums_bytes(cpu_isa isa);

/* Has it tiles that sum products of bytes (AMX-INT8), and VNNI beside them for few rows? Asks the
 * system for their registers, which holds for the process. Thread: any. */
bool cpu_isa_tiles_bytes(void);

/* The place of a name among `n` names; -1 when it is none of them. Thread: any. */
int cpu_name_find(const char *name, const char *const *names, int n);

/* "portable", "avx2", "avx512"; NULL for other values. */
const char *cpu_isa_name(cpu_isa isa);

/* Reads such a name; false when it is none, and *out_isa is left alone. */
bool cpu_isa_parse(const char *name, cpu_isa *out_isa);

#endif
