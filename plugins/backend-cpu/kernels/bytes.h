/* SPDX-License-Identifier: Apache-2.0 */
/* By which instructions products of bytes are summed: which there are, which a machine takes. Sums
 * are exact integers: all kinds give the same bits, and the choice is about speed alone. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_BYTES_H_
#define OPIPE_BACKEND_CPU_KERNELS_BYTES_H_

#include <stdbool.h>

#include "isa.h"

typedef enum cpu_bytes_kind {
  CPU_BYTES_PLAIN = 0,       /* of the instruction set itself */
  CPU_BYTES_TILES_MODEL = 1, /* tiles in C: slow, on every machine */
  CPU_BYTES_VNNI = 2,        /* four products at once: AVX512-VNNI, AVX-VNNI */
  CPU_BYTES_TILES = 3,       /* AMX-INT8; few rows by VNNI */
  CPU_BYTES_COUNT = 4
} cpu_bytes_kind;

/* The kernels of one kind; see table.h. Immutable, never freed. */
typedef struct cpu_byte_kernels cpu_byte_kernels;

/* The best kind that this machine has beside kernels of `isa`, by what processor and system say and
 * never by the clock. Thread: any. */
cpu_bytes_kind cpu_bytes_rule(cpu_isa isa);

/* Kernels of a kind beside those of `isa`; NULL: this machine or build lacks them. Before kernels
 * of tiles are given out the first time, a small product of theirs is compared with a plain one:
 * where they differ, the machine counts as one without them. Thread: any. */
const cpu_byte_kernels *cpu_bytes_get(cpu_bytes_kind kind, cpu_isa isa);

/* "plain", "tiles-model", "vnni", "tiles"; NULL for other values. */
const char *cpu_bytes_name(cpu_bytes_kind kind);

/* Reads such a name; false when it is none, and *out_kind is left alone. */
bool cpu_bytes_parse(const char *name, cpu_bytes_kind *out_kind);

#endif
