/* SPDX-License-Identifier: Apache-2.0 */
/* Which products of bytes a machine takes, and whether those of tiles are right. */
#include "bytes.h"

#include <stddef.h>
#include <string.h>

#include "table.h"

static const char *const names[CPU_BYTES_COUNT] = {"plain", "tiles-model", "vnni", "tiles"};

const char *cpu_bytes_name(cpu_bytes_kind kind) {
  return (int)kind >= 0 && kind < CPU_BYTES_COUNT ? names[kind] : NULL;
}

bool cpu_bytes_parse(const char *name, cpu_bytes_kind *out_kind) {
  const int found = cpu_name_find(name, names, CPU_BYTES_COUNT);
  if (found >= 0)
    *out_kind = (cpu_bytes_kind)found;
  return found >= 0;
}

#if defined(__x86_64__)
#include <stdatomic.h>

/* Rows of both halves of a block, more than one panel, steps that leave a rest of a tile. */
enum { PROBE_M = 21, PROBE_K = 100, PROBE_N = 70, PROBE_BYTES = 1 << 14 };

typedef struct probe {
  _Alignas(CPU_ALIGN_BYTES) char packed[PROBE_BYTES], workspace[PROBE_BYTES];
  uint8_t a[PROBE_M * PROBE_K], b[PROBE_K * PROBE_N];
  int32_t wanted[PROBE_M * PROBE_N], found[PROBE_M * PROBE_N];
} probe;

/* Do they give the sums of the portable kernels? */
static bool probe_agrees(const cpu_byte_kernels *bytes) {
  static probe p;
  static atomic_flag busy = ATOMIC_FLAG_INIT;
  const cpu_codes form = {.k = PROBE_K, .n = PROBE_N, .block = PROBE_K, .bits = 8};
  cpu_exec x = {.kernels = &cpu_kernels_portable, .bytes = &cpu_kernels_portable.bytes};
  uint64_t packed = 0, workspace = 0;
  uint32_t state = 1;
  if (!cpu_codes_bytes(&form, &packed) || packed > PROBE_BYTES ||
      !cpu_codes_integer_workspace(&form, PROBE_M, &workspace) || workspace > PROBE_BYTES)
    return false;
  while (atomic_flag_test_and_set_explicit(&busy, memory_order_acquire)) {
  }
  for (int i = 0; i < PROBE_M * PROBE_K; ++i)
    p.a[i] = (uint8_t)((state = state * UINT32_C(1664525) + UINT32_C(1013904223)) >> 24);
  for (int i = 0; i < PROBE_K * PROBE_N; ++i)
    p.b[i] = (uint8_t)((state = state * UINT32_C(1664525) + UINT32_C(1013904223)) >> 24);
  const cpu_codes_source source = {.codes = {p.b, 8, false, CPU_F32, PROBE_N, 1}};
  cpu_codes_pack(&x, &form, &source, 0, cpu_codes_panels(&form), p.packed);
  cpu_codes_integer_args args = {.m = PROBE_M,
                                 .a = p.a,
                                 .a_zero = 7,
                                 .form = &form,
                                 .packed = p.packed,
                                 .c = p.wanted,
                                 .workspace = p.workspace};
  cpu_codes_integer(&x, &args);
  x.bytes = bytes;
  args.c = p.found;
  cpu_codes_integer(&x, &args);
  const bool same = memcmp(p.wanted, p.found, sizeof p.found) == 0;
  atomic_flag_clear_explicit(&busy, memory_order_release);
  return same;
}

/* Tiles that are there and sum rightly. */
static const cpu_byte_kernels *proven_tiles(void) {
  static _Atomic(unsigned) known; /* 0 not asked, 1 no, 2 yes */
  unsigned found = atomic_load_explicit(&known, memory_order_relaxed);
  if (found == 0) {
    found = cpu_isa_tiles_bytes() && probe_agrees(&cpu_bytes_tiles) ? 2 : 1;
    atomic_store_explicit(&known, found, memory_order_relaxed);
  }
  return found == 2 ? &cpu_bytes_tiles : NULL;
}

static const cpu_byte_kernels *vnni(cpu_isa isa) {
  if (!cpu_isa_sums_bytes(isa))
    return NULL;
  return isa == CPU_ISA_AVX512 ? &cpu_bytes_avx512_vnni : &cpu_bytes_avx2_vnni;
}

#else

static const cpu_byte_kernels *proven_tiles(void) {
  return NULL;
}

static const cpu_byte_kernels *vnni(cpu_isa isa) {
  (void)isa;
  return NULL;
}

#endif

cpu_bytes_kind cpu_bytes_rule(cpu_isa isa) {
  if (cpu_bytes_get(CPU_BYTES_TILES, isa) != NULL)
    return CPU_BYTES_TILES;
  return vnni(isa) != NULL ? CPU_BYTES_VNNI : CPU_BYTES_PLAIN;
}

const cpu_byte_kernels *cpu_bytes_get(cpu_bytes_kind kind, cpu_isa isa) {
  const cpu_kernels *kernels = cpu_kernels_get(isa);
  if (kernels == NULL)
    return NULL;
  switch (kind) {
    case CPU_BYTES_PLAIN:
      return &kernels->bytes;
    case CPU_BYTES_TILES_MODEL:
      return &cpu_bytes_tiles_model;
    case CPU_BYTES_VNNI:
      return vnni(isa);
    case CPU_BYTES_TILES:
      return isa == CPU_ISA_AVX512 ? proven_tiles() : NULL;
    default:
      return NULL;
  }
}

const cpu_byte_kernels *cpu_bytes_of(const cpu_exec *x) {
  const cpu_isa isa = x->kernels->isa;
  return x->bytes != NULL ? x->bytes : cpu_bytes_get(cpu_bytes_rule(isa), isa);
}
