/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out what the processor and the kernel's saved state allow, by CPUID and XGETBV. Nothing
 * here runs an instruction that an older processor lacks. */
#include "isa.h"

#include <stddef.h>
#include <string.h>

#include "table.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
  STATE_AVX = 0x6,     /* XMM and YMM */
  STATE_AVX512 = 0xe6, /* and opmask, upper ZMM, ZMM 16-31 */
};

static uint64_t saved_state(void) {
  uint32_t low = 0;
  uint32_t high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return ((uint64_t)high << 32) | low;
}

static cpu_isa detect_isa(void) {
  const unsigned osxsave = 1u << 27;
  const unsigned leaf1_avx2 = osxsave | (1u << 12) | (1u << 28) | (1u << 29); /* FMA AVX F16C */
  const unsigned leaf7_avx2 = 1u << 5;
  const unsigned leaf7_avx512 = (1u << 16) | (1u << 17) | (1u << 30) | (1u << 31); /* F DQ BW VL */
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & leaf1_avx2) != leaf1_avx2)
    return CPU_ISA_PORTABLE;
  uint64_t state = saved_state();
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (b & leaf7_avx2) != leaf7_avx2 ||
      (state & STATE_AVX) != STATE_AVX)
    return CPU_ISA_PORTABLE;
  if ((b & leaf7_avx512) != leaf7_avx512 || (state & STATE_AVX512) != STATE_AVX512)
    return CPU_ISA_AVX2;
  return CPU_ISA_AVX512;
}

/* Tiles: the processor has them for this, the system keeps them, and lets this process have their
 * 8 KiB. */
static bool tiles_allowed(unsigned use) {
  const unsigned leaf7 = 1u << 24 | use;    /* AMX-TILE */
  const uint64_t state = UINT64_C(3) << 17; /* their configuration and data */
  const long ask = 0x1023, data = 18;       /* ARCH_REQ_XCOMP_PERM */
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & leaf7) == leaf7 &&
         (saved_state() & state) == state && syscall(SYS_arch_prctl, ask, data) == 0;
}

/* The answer is kept: in a guest CPUID costs tens of microseconds. */
cpu_isa cpu_isa_detect(void) {
  static _Atomic(unsigned) known; /* 1 more than the answer */
  unsigned found = atomic_load_explicit(&known, memory_order_relaxed);
  if (found == 0) {
    found = 1 + (unsigned)detect_isa();
    atomic_store_explicit(&known, found, memory_order_relaxed);
  }
  return (cpu_isa)(found - 1);
}

enum { TILES_BF16 = 1 << 22, TILES_BYTES = 1 << 25 };
enum { BYTES_ASKED = 1 << 8, BYTES_TILES = 1 << 9 };

/* Bit `isa`: sums of four products of bytes for that instruction set. */
static unsigned byte_sums(void) {
  unsigned a = 0, b = 0, c = 0, d = 0, found = 0;
  const cpu_isa isa = cpu_isa_detect();
  if (isa >= CPU_ISA_AVX512 && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c & 1u << 11) != 0)
    found |= 1u << CPU_ISA_AVX512;
  if (isa >= CPU_ISA_AVX2 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4) != 0)
    found |= 1u << CPU_ISA_AVX2;
  if ((found & 1u << CPU_ISA_AVX512) != 0 && tiles_allowed(TILES_BYTES))
    found |= BYTES_TILES;
  return found;
}

static unsigned known_byte_sums(void) {
  static _Atomic(unsigned) known;
  unsigned found = atomic_load_explicit(&known, memory_order_relaxed);
  if (found == 0) {
    found = byte_sums() | BYTES_ASKED;
    atomic_store_explicit(&known, found, memory_order_relaxed);
  }
  return found;
}

bool cpu_isa_sums_bytes(cpu_isa isa) {
  return (int)isa >= 0 && isa < CPU_ISA_COUNT && (known_byte_sums() >> isa & 1u) != 0;
}

bool cpu_isa_tiles_bytes(void) {
  return (known_byte_sums() & BYTES_TILES) != 0;
}

static void detect_dots(cpu_dots_machine *out) {
  unsigned a = 0, b = 0, c = 0, d = 0;
  memset(out, 0, sizeof *out);
  if (__get_cpuid(0, &a, &b, &c, &d)) {
    if (b == signature_AMD_ebx && c == signature_AMD_ecx && d == signature_AMD_edx)
      out->vendor = CPU_DOTS_AMD;
    if (b == signature_INTEL_ebx && c == signature_INTEL_ecx && d == signature_INTEL_edx)
      out->vendor = CPU_DOTS_INTEL;
  }
  if (__get_cpuid(1, &a, &b, &c, &d)) {
    const uint32_t family = a >> 8 & 0xfu;
    out->family = family == 0xf ? family + (a >> 20 & 0xffu) : family;
  }
  out->avx512 = cpu_isa_detect() >= CPU_ISA_AVX512;
  if (!out->avx512)
    return;
  out->pairs = __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 5) != 0;
  out->tiles = tiles_allowed(TILES_BF16);
}

void cpu_dots_detect(cpu_dots_machine *out) {
  enum { ASKED = 1, AVX512 = 2, PAIRS = 4, TILES = 8, VENDOR_AT = 4, FAMILY_AT = 8 };
  static _Atomic(unsigned) known;
  unsigned found = atomic_load_explicit(&known, memory_order_relaxed);
  if (found == 0) {
    detect_dots(out);
    found = ASKED | (out->avx512 ? AVX512 : 0u) | (out->pairs ? PAIRS : 0u) |
            (out->tiles ? TILES : 0u) | (unsigned)out->vendor << VENDOR_AT |
            out->family << FAMILY_AT;
    atomic_store_explicit(&known, found, memory_order_relaxed);
  }
  *out = (cpu_dots_machine){.vendor = (cpu_dots_vendor)(found >> VENDOR_AT & 0xfu),
                            .family = found >> FAMILY_AT,
                            .avx512 = (found & AVX512) != 0,
                            .pairs = (found & PAIRS) != 0,
                            .tiles = (found & TILES) != 0};
}

const cpu_kernels *cpu_kernels_get(cpu_isa isa) {
  if ((int)isa < 0 || isa >= CPU_ISA_COUNT || isa > cpu_isa_detect())
    return NULL;
  return isa == CPU_ISA_AVX512 ? &cpu_kernels_avx512
         : isa == CPU_ISA_AVX2 ? &cpu_kernels_avx2
                               : &cpu_kernels_portable;
}

#else

cpu_isa cpu_isa_detect(void) {
  return CPU_ISA_PORTABLE;
}

void cpu_dots_detect(cpu_dots_machine *out) {
  memset(out, 0, sizeof *out);
}

bool cpu_isa_sums_bytes(cpu_isa isa) {
  (void)isa;
  return false;
}

bool cpu_isa_tiles_bytes(void) {
  return false;
}

const cpu_kernels *cpu_kernels_get(cpu_isa isa) {
  return isa == CPU_ISA_PORTABLE ? &cpu_kernels_portable : NULL;
}

#endif

int cpu_name_find(const char *name, const char *const *names, int n) {
  while (n-- > 0 && strcmp(name, names[n]) != 0) {
  }
  return n;
}

static const char *const isa_names[CPU_ISA_COUNT] = {"portable", "avx2", "avx512"};

const char *cpu_isa_name(cpu_isa isa) {
  return (int)isa >= 0 && isa < CPU_ISA_COUNT ? isa_names[isa] : NULL;
}

bool cpu_isa_parse(const char *name, cpu_isa *out_isa) {
  const int found = cpu_name_find(name, isa_names, CPU_ISA_COUNT);
  if (found >= 0)
    *out_isa = (cpu_isa)found;
  return found >= 0;
}
