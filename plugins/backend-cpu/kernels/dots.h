/* SPDX-License-Identifier: Apache-2.0 */
/* Products of bf16 by bf16 through instructions that multiply pairs and sum them in fp32: which
 * there are, how they add, which a machine takes.
 *
 * Where both operands are bf16, nothing is lost by multiplying them as such: products are exact,
 * and sums are kept in fp32. It differs from the fp32 kernels (matmul.h) in the order of additions,
 * and in that subnormal operands and sums count as zero. In detail, for one element of C, per chain
 * of CPU_CHAIN steps of K, padded with zeros to a multiple of CPU_DOTS_STEPS, all sums by fused
 * multiply-adds:
 *
 *   pairs   (VDPBF16PS) one sum from 0; for each two steps, the second first, then the first.
 *   tiles   (TDPBF16PS) per CPU_DOTS_STEPS steps two sums from 0, one of the even steps and one of
 *           the odd; their sum is added to the chain's.
 *
 * Chains are added in rising order, as everywhere; then comes the epilogue. An element therefore
 * depends on neither rows, tiling nor threads, but the two kinds and the fp32 kernels differ in the
 * last bits. A kind's model is the same arithmetic in C: slow, on every machine. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_DOTS_H_
#define OPIPE_BACKEND_CPU_KERNELS_DOTS_H_

#include <stdbool.h>
#include <stdint.h>

#include "isa.h"

enum { CPU_DOTS_STEPS = 32 }; /* of K: a row of a tile, 64 bytes */

typedef enum cpu_dots_kind {
  CPU_DOTS_WIDEN = 0, /* no such product: bf16 becomes fp32 */
  CPU_DOTS_PAIRS_MODEL = 1,
  CPU_DOTS_TILES_MODEL = 2,
  CPU_DOTS_PAIRS = 3, /* AVX512-BF16 */
  CPU_DOTS_TILES = 4, /* AMX-BF16 */
  CPU_DOTS_COUNT = 5
} cpu_dots_kind;

typedef enum cpu_dots_vendor {
  CPU_DOTS_OTHER = 0,
  CPU_DOTS_AMD = 1,
  CPU_DOTS_INTEL = 2
} cpu_dots_vendor;

/* A processor's own description. */
typedef struct cpu_dots_machine {
  cpu_dots_vendor vendor;
  uint32_t family;   /* with the extended family added, as its maker counts */
  bool avx512;       /* its kernels of CPU_ISA_AVX512 run */
  bool pairs, tiles; /* has the instructions, and the system lets this process use them */
} cpu_dots_machine;

/* The kernels of one kind; see table.h. Immutable, never freed. */
typedef struct cpu_dots cpu_dots;

/* Asks processor and system; for tiles this asks the system for their registers, which holds for
 * the process. The answer is kept. Thread: any. */
void cpu_dots_detect(cpu_dots_machine *out);

/* The kind that a machine takes where nothing is said, by the table in dots.c and never by the
 * clock; CPU_DOTS_WIDEN for a machine that the table does not know. Thread: any. */
cpu_dots_kind cpu_dots_rule(const cpu_dots_machine *machine);

/* Kernels of a kind; NULL: CPU_DOTS_WIDEN, or this machine or build lacks it. Before kernels of
 * instructions are given out the first time, a small product of theirs is compared with their
 * model's: where a bit differs, the machine counts as one without them. Thread: any. */
const cpu_dots *cpu_dots_get(cpu_dots_kind kind);

/* "widen", "pairs-model", "tiles-model", "pairs", "tiles"; NULL for other values. */
const char *cpu_dots_name(cpu_dots_kind kind);

/* Reads such a name; false when it is none, and *out_kind is left alone. */
bool cpu_dots_parse(const char *name, cpu_dots_kind *out_kind);

#endif
