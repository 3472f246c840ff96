/* SPDX-License-Identifier: Apache-2.0 */
/* Which products of bf16 a machine takes, and whether they do what their models say. */
#include "dots.h"

#include <stddef.h>
#include <string.h>

#include "half.h"
#include "table.h"

static const char *const names[CPU_DOTS_COUNT] = {"widen", "pairs-model", "tiles-model", "pairs",
                                                  "tiles"};

const char *cpu_dots_name(cpu_dots_kind kind) {
  return (int)kind >= 0 && kind < CPU_DOTS_COUNT ? names[kind] : NULL;
}

bool cpu_dots_parse(const char *name, cpu_dots_kind *out_kind) {
  const int found = cpu_name_find(name, names, CPU_DOTS_COUNT);
  if (found >= 0)
    *out_kind = (cpu_dots_kind)found;
  return found >= 0;
}

/* Which processors multiply bf16 faster than fp32, and how; the first row that fits. Measured on
 * Zen 4 (1.5 to 1.75 of fp32's peak rate); Zen 5 and AMX by their makers' manuals. Pairs are slower
 * than fp32 on Intel's processors: 0.65 of the speed of widening on a Xeon of model 207. */
static const struct {
  cpu_dots_vendor vendor;
  uint32_t first_family, last_family;
  cpu_dots_kind kind;
} rules[] = {
    {CPU_DOTS_AMD, 0x19, 0x19, CPU_DOTS_PAIRS}, /* Zen 4; Zen 3 lacks the instructions */
    {CPU_DOTS_AMD, 0x1a, 0x1a, CPU_DOTS_PAIRS}, /* Zen 5 */
    {CPU_DOTS_INTEL, 0x06, 0x13, CPU_DOTS_TILES},
};

cpu_dots_kind cpu_dots_rule(const cpu_dots_machine *machine) {
  for (size_t i = 0; i < sizeof rules / sizeof rules[0] && machine->avx512; ++i) {
    const bool has = rules[i].kind == CPU_DOTS_TILES ? machine->tiles : machine->pairs;
    if (has && machine->vendor == rules[i].vendor && machine->family >= rules[i].first_family &&
        machine->family <= rules[i].last_family)
      return rules[i].kind;
  }
  return CPU_DOTS_WIDEN;
}

#if defined(__x86_64__)
#include <stdatomic.h>

enum { PROBE_ROWS = 19, PROBE_STEPS = CPU_CHAIN + 37 }; /* two chains, an odd end, a tile's rest */

typedef struct probe {
  uint16_t a[PROBE_ROWS * PROBE_STEPS];
  uint16_t panel[PROBE_STEPS * CPU_PANEL];
  float buffer[CPU_CHAIN * CPU_PANEL];
  float wanted[PROBE_ROWS * CPU_PANEL], found[PROBE_ROWS * CPU_PANEL];
} probe;

/* Numbers of all sizes that sums of them bear, and some subnormal ones. */
static uint16_t probe_number(uint32_t *state) {
  *state = *state * UINT32_C(1664525) + UINT32_C(1013904223);
  const uint32_t bits = *state >> 16;
  const uint32_t exponent = (bits & 0x780u) == 0 ? 0 : 112 + ((bits >> 7) & 15u);
  return (uint16_t)((bits & 0x8000u) | exponent << 7 | (bits & 0x7fu));
}

/* Do both kinds give the same bits? */
static bool probe_agrees(const cpu_dots *dots, const cpu_dots *model) {
  static probe p;
  static atomic_flag busy = ATOMIC_FLAG_INIT;
  uint32_t state = 1;
  while (atomic_flag_test_and_set_explicit(&busy, memory_order_acquire)) {
  }
  for (int i = 0; i < PROBE_ROWS * PROBE_STEPS; ++i)
    p.a[i] = probe_number(&state);
  for (int i = 0; i < PROBE_STEPS * CPU_PANEL; ++i)
    p.panel[i] = probe_number(&state);
  cpu_half_product h = {.product = {.n = CPU_PANEL, .k = PROBE_STEPS, .a_stride = PROBE_STEPS},
                        .a = p.a,
                        .panels = p.panel,
                        .dtype = CPU_BF16};
  h.product.c_stride = CPU_PANEL;
  h.product.c = p.wanted;
  model->product(&h, (cpu_range){0, 1}, (cpu_range){0, PROBE_ROWS}, p.buffer);
  h.product.c = p.found;
  dots->product(&h, (cpu_range){0, 1}, (cpu_range){0, PROBE_ROWS}, p.buffer);
  const bool same = memcmp(p.wanted, p.found, sizeof p.found) == 0;
  atomic_flag_clear_explicit(&busy, memory_order_release);
  return same;
}

/* Instructions of a kind that are there and agree with their model. */
static const cpu_dots *proven(cpu_dots_kind kind) {
  static _Atomic(unsigned) known[CPU_DOTS_COUNT]; /* 0 not asked, 1 no, 2 yes */
  const cpu_dots *dots = kind == CPU_DOTS_PAIRS ? &cpu_dots_pairs : &cpu_dots_tiles;
  unsigned found = atomic_load_explicit(&known[kind], memory_order_relaxed);
  if (found == 0) {
    cpu_dots_machine machine;
    cpu_dots_detect(&machine);
    const bool there = kind == CPU_DOTS_PAIRS ? machine.pairs : machine.tiles;
    const cpu_dots *model = kind == CPU_DOTS_PAIRS ? &cpu_dots_pairs_model : &cpu_dots_tiles_model;
    found = there && probe_agrees(dots, model) ? 2 : 1;
    atomic_store_explicit(&known[kind], found, memory_order_relaxed);
  }
  return found == 2 ? dots : NULL;
}

#else

static const cpu_dots *proven(cpu_dots_kind kind) {
  (void)kind;
  return NULL;
}

#endif

const cpu_dots *cpu_dots_get(cpu_dots_kind kind) {
  switch (kind) {
    case CPU_DOTS_PAIRS_MODEL:
      return &cpu_dots_pairs_model;
    case CPU_DOTS_TILES_MODEL:
      return &cpu_dots_tiles_model;
    case CPU_DOTS_PAIRS:
    case CPU_DOTS_TILES:
      return proven(kind);
    default:
      return NULL;
  }
}
