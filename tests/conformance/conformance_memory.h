/* SPDX-License-Identifier: Apache-2.0 */
/* The host's memory as the conformance programs give it to a plugin: counted, never zeroed, with a
 * head and a tail around every block that show whether it was given back as it was taken.
 */
#ifndef CONFORMANCE_MEMORY_H
#define CONFORMANCE_MEMORY_H

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"

enum { MEM_FRESH = 0x5a, MEM_TAIL = 0xc7, MEM_TAIL_BYTES = 16, MEM_FILL_MOST = 1 << 20 };
#define MEM_LIVE UINT64_C(0x0b10c0c0ffee0001)
#define MEM_DEAD UINT64_C(0x0b10c0dead0dead1)

/* In front of what the plugin gets. */
typedef struct mem_head {
  void *base;
  uint64_t n_bytes, align, state;
} mem_head;

static atomic_ullong mem_allocations, mem_live;
static atomic_uint mem_odd_sizes, mem_odd_aligns, mem_overruns, mem_strangers;

static mem_head *mem_head_of(void *data) {
  return (mem_head *)data - 1;
}

static void *mem_new(size_t n_bytes, size_t align) {
  const bool odd = align == 0 || (align & (align - 1)) != 0;
  const size_t unit = odd || align < sizeof(mem_head) ? sizeof(mem_head) : align;
  void *base = NULL;
  if (odd)
    atomic_fetch_add(&mem_odd_aligns, 1);
  if (n_bytes > SIZE_MAX / 2 || posix_memalign(&base, unit, unit + n_bytes + MEM_TAIL_BYTES) != 0)
    return NULL;
  unsigned char *data = (unsigned char *)base + unit;
  *mem_head_of(data) = (mem_head){base, n_bytes, align, MEM_LIVE};
  memset(data, MEM_FRESH, n_bytes < MEM_FILL_MOST ? n_bytes : MEM_FILL_MOST);
  memset(data + n_bytes, MEM_TAIL, MEM_TAIL_BYTES);
  atomic_fetch_add(&mem_allocations, 1);
  atomic_fetch_add(&mem_live, n_bytes);
  return data;
}

/* Is it one of ours? Counts what is wrong with the call, and with what was written behind it. */
static bool mem_known(void *data, size_t old_size, size_t align) {
  const mem_head *head = mem_head_of(data);
  if (head->state != MEM_LIVE) {
    atomic_fetch_add(&mem_strangers, 1);
    return false;
  }
  if (head->n_bytes != old_size)
    atomic_fetch_add(&mem_odd_sizes, 1);
  if (head->align != align)
    atomic_fetch_add(&mem_odd_aligns, 1);
  const unsigned char *tail = (const unsigned char *)data + head->n_bytes;
  for (uint32_t i = 0; i < MEM_TAIL_BYTES; ++i) {
    if (tail[i] != MEM_TAIL) {
      atomic_fetch_add(&mem_overruns, 1);
      break;
    }
  }
  return true;
}

static void mem_delete(void *data) {
  mem_head *head = mem_head_of(data);
  atomic_fetch_sub(&mem_live, head->n_bytes);
  head->state = MEM_DEAD;
  free(head->base);
}

static void *mem_realloc(void *ctx, void *ptr, size_t old_size, size_t new_size, size_t align) {
  (void)ctx;
  if (ptr != NULL && !mem_known(ptr, old_size, align))
    return NULL;
  void *fresh = new_size == 0 ? NULL : mem_new(new_size, align);
  if (ptr == NULL || (new_size != 0 && fresh == NULL))
    return fresh;
  if (fresh != NULL) {
    const uint64_t had = mem_head_of(ptr)->n_bytes;
    memcpy(fresh, ptr, had < new_size ? (size_t)had : new_size);
  }
  mem_delete(ptr);
  return fresh;
}

/* Checks the counts of all calls so far. */
static void mem_check(void) {
  conf_check(atomic_load(&mem_odd_sizes) == 0,
             "%u blocks of the host's memory were given back with another size than they have",
             atomic_load(&mem_odd_sizes));
  conf_check(atomic_load(&mem_odd_aligns) == 0,
             "%u calls of the host's realloc had another alignment than the block, or none",
             atomic_load(&mem_odd_aligns));
  conf_check(atomic_load(&mem_overruns) == 0,
             "behind the end of %u blocks of the host's memory something was written",
             atomic_load(&mem_overruns));
  conf_check(atomic_load(&mem_strangers) == 0,
             "%u blocks were given back twice, or are none of the host's",
             atomic_load(&mem_strangers));
}

#endif /* CONFORMANCE_MEMORY_H */
