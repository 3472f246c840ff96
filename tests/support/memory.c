/* SPDX-License-Identifier: Apache-2.0 */
/* An allocator for tests: fails the nth allocation, counts, and checks what is given back.
 *
 * Every block carries a header in front of it with its size and alignment, so that a wrong old_size
 * or align, a double free and a leak are all seen. Blocks are poisoned when they come and when they
 * go: code that reads memory before writing it, or after giving it back, gets nonsense instead of
 * zeros.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/support/support.h"

#define LIVE_MARK UINT64_C(0x6f70695f6c697665)
#define FREED_MARK UINT64_C(0x6f70695f676f6e65)

typedef struct block_head {
  uint64_t mark;
  size_t size;
  size_t align;
  void *start; /* as malloc returned it */
} block_head;

static block_head *head_of(void *ptr) {
  return (block_head *)((char *)ptr - sizeof(block_head));
}

static void *new_block(size_t size, size_t align) {
  size_t step = align < _Alignof(max_align_t) ? _Alignof(max_align_t) : align;
  size_t extra = sizeof(block_head) + step;
  char *start = size <= SIZE_MAX - extra ? malloc(size + extra) : NULL;
  if (!start)
    return NULL;
  uintptr_t at = ((uintptr_t)start + extra - 1) / step * step;
  char *ptr = start + (at - (uintptr_t)start);
  block_head *head = head_of(ptr);
  *head = (block_head){.mark = LIVE_MARK, .size = size, .align = align, .start = start};
  memset(ptr, 0xa5, size);
  return ptr;
}

static void misuse(opi_test_memory *memory, const char *what, size_t found, size_t wanted) {
  ++memory->n_misused;
  fprintf(stderr, "allocator misused: %s is %zu, wanted %zu\n", what, found, wanted);
}

static bool check_block(opi_test_memory *memory, void *ptr, size_t old_size, size_t align) {
  block_head *head = head_of(ptr);
  if (head->mark != LIVE_MARK) {
    misuse(memory, "mark of a block given back", (size_t)head->mark, (size_t)LIVE_MARK);
    return false;
  }
  if (head->size != old_size)
    misuse(memory, "old_size", old_size, head->size);
  if (head->align != align)
    misuse(memory, "align", align, head->align);
  return true;
}

static void end_block(opi_test_memory *memory, void *ptr) {
  block_head *head = head_of(ptr);
  --memory->live_blocks;
  memory->live_bytes -= head->size;
  memset(ptr, 0x5a, head->size);
  head->mark = FREED_MARK;
  free(head->start);
}

/* True when this allocation is the one that has to fail. */
static bool fails_now(opi_test_memory *memory) {
  ++memory->n_calls;
  if (memory->fail_at == 0)
    return false;
  if (memory->fail_at > 1) {
    --memory->fail_at;
    return false;
  }
  memory->fail_at = memory->fail_after ? 1 : 0;
  ++memory->n_failed;
  return true;
}

static void *grow(opi_test_memory *memory, void *ptr, size_t old_size, size_t new_size,
                  size_t align) {
  if (align == 0 || (align & (align - 1)) != 0) {
    misuse(memory, "align (a power of two)", align, 1);
    align = 1;
  }
  if (fails_now(memory))
    return NULL;
  void *fresh = new_block(new_size, align);
  if (!fresh)
    return NULL;
  ++memory->live_blocks;
  memory->live_bytes += new_size;
  if (memory->live_bytes > memory->peak_bytes)
    memory->peak_bytes = memory->live_bytes;
  if (ptr) {
    size_t kept = head_of(ptr)->size;
    memcpy(fresh, ptr, kept < new_size ? kept : new_size);
    end_block(memory, ptr);
  } else if (old_size != 0) {
    misuse(memory, "old_size of a new block", old_size, 0);
  }
  return fresh;
}

static void *test_realloc(void *ctx, void *ptr, size_t old_size, size_t new_size, size_t align) {
  opi_test_memory *memory = ctx;
  void *result = NULL;
  pthread_mutex_lock(memory->lock);
  bool usable = !ptr || check_block(memory, ptr, old_size, align);
  if (usable && new_size > 0)
    result = grow(memory, ptr, old_size, new_size, align);
  else if (usable && ptr)
    end_block(memory, ptr);
  pthread_mutex_unlock(memory->lock);
  return result;
}

void opi_test_memory_init(opi_test_memory *memory) {
  pthread_mutex_t *lock = malloc(sizeof *lock);
  if (!lock || pthread_mutex_init(lock, NULL) != 0) {
    fprintf(stderr, "no memory for a lock\n");
    exit(1);
  }
  *memory = (opi_test_memory){.allocator = {memory, test_realloc}, .lock = lock};
}

bool opi_test_memory_end(opi_test_memory *memory) {
  bool clean = memory->live_blocks == 0 && memory->n_misused == 0;
  if (!clean) {
    fprintf(stderr, "allocator: %llu blocks with %llu bytes leaked, %llu misuses\n",
            (unsigned long long)memory->live_blocks, (unsigned long long)memory->live_bytes,
            (unsigned long long)memory->n_misused);
  }
  pthread_mutex_destroy(memory->lock);
  free(memory->lock);
  memory->lock = NULL;
  return clean;
}

uint64_t opi_test_every_allocation(opipe_status (*body)(opi_test_memory *memory, void *arg),
                                   void *arg, uint64_t max_runs) {
  uint64_t n_runs = 0;
  bool more = true;
  while (more && n_runs < max_runs) {
    opi_test_memory memory;
    opi_test_memory_init(&memory);
    memory.fail_at = ++n_runs;
    opipe_status status = body(&memory, arg);
    more = memory.n_failed > 0;
    bool right = status == OPIPE_OK || (more && status == OPIPE_E_NOMEM);
    opi_test_check(right, __FILE__, __LINE__, false, "status %d with allocation %llu failing (%s)",
                   (int)status, (unsigned long long)n_runs,
                   more ? "it was reached" : "there were fewer");
    opi_test_check(opi_test_memory_end(&memory), __FILE__, __LINE__, false,
                   "memory after allocation %llu failed", (unsigned long long)n_runs);
  }
  return n_runs;
}
