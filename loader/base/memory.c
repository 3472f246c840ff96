/* SPDX-License-Identifier: Apache-2.0 */
/* Allocation behind the host's allocator, and arenas: chunks of doubling size that are freed
 * together. Arena memory is zeroed, so that structures start in a known state even when a file is
 * hostile.
 */
#include "loader/base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *system_realloc(void *ctx, void *ptr, size_t old_size, size_t new_size, size_t align) {
  (void)ctx;
  if (new_size == 0) {
    free(ptr);
    return NULL;
  }
  if (align <= 16)
    return realloc(ptr, new_size);
  void *fresh = NULL;
  if (posix_memalign(&fresh, align, new_size) != 0)
    return NULL;
  if (ptr != NULL) {
    memcpy(fresh, ptr, old_size < new_size ? old_size : new_size);
    free(ptr);
  }
  return fresh;
}

const opipe_allocator *opi_allocator_system(void) {
  static const opipe_allocator allocator = {NULL, system_realloc};
  return &allocator;
}

void *opi_alloc(const opipe_allocator *allocator, size_t n_bytes) {
  if (n_bytes == 0)
    return NULL;
  return allocator->realloc(allocator->ctx, NULL, 0, n_bytes, 16);
}

void *opi_alloc_zero(const opipe_allocator *allocator, size_t n, size_t size) {
  uint64_t n_bytes = 0;
  if (opi_mul_u64(n, size, &n_bytes))
    return NULL;
  void *ptr = opi_alloc(allocator, (size_t)n_bytes);
  if (ptr != NULL)
    memset(ptr, 0, (size_t)n_bytes);
  return ptr;
}

void *opi_resize(const opipe_allocator *allocator, void *ptr, size_t old_bytes, size_t new_bytes) {
  return allocator->realloc(allocator->ctx, ptr, old_bytes, new_bytes, 16);
}

void opi_free(const opipe_allocator *allocator, void *ptr, size_t n_bytes) {
  if (ptr != NULL)
    (void)allocator->realloc(allocator->ctx, ptr, n_bytes, 0, 16);
}

struct opi_arena_chunk {
  opi_arena_chunk *next;
  size_t n_bytes; /* with this header */
};

enum { CHUNK_HEADER = 32, CHUNK_FIRST = 4096, CHUNK_MOST = 1 << 20 };

void opi_arena_init(opi_arena *arena, const opipe_allocator *allocator, uint64_t limit_bytes) {
  memset(arena, 0, sizeof(*arena));
  arena->allocator = allocator;
  arena->limit_bytes = limit_bytes;
}

void opi_arena_release(opi_arena *arena) {
  opi_arena_chunk *chunk = arena->head;
  while (chunk != NULL) {
    opi_arena_chunk *next = chunk->next;
    opi_free(arena->allocator, chunk, chunk->n_bytes);
    chunk = next;
  }
  arena->head = NULL;
  arena->used = arena->room = 0;
  arena->total_bytes = 0;
}

static bool add_chunk(opi_arena *arena, size_t need) {
  size_t n_bytes = arena->head == NULL ? CHUNK_FIRST : arena->head->n_bytes * 2;
  if (n_bytes > CHUNK_MOST)
    n_bytes = CHUNK_MOST;
  if (n_bytes < need + CHUNK_HEADER)
    n_bytes = need + CHUNK_HEADER;
  if (arena->limit_bytes != 0 && arena->total_bytes + n_bytes > arena->limit_bytes)
    return false;
  opi_arena_chunk *chunk = opi_alloc(arena->allocator, n_bytes);
  if (chunk == NULL)
    return false;
  chunk->next = arena->head;
  chunk->n_bytes = n_bytes;
  arena->head = chunk;
  arena->used = CHUNK_HEADER;
  arena->room = n_bytes;
  arena->total_bytes += n_bytes;
  return true;
}

/* n_bytes of which the first `filled` are the caller's to write; the rest is zero. */
static void *arena_take(opi_arena *arena, size_t n_bytes, size_t filled) {
  if (n_bytes > SIZE_MAX - 64)
    return NULL;
  const size_t take = n_bytes == 0 ? 16 : (n_bytes + 15) & ~(size_t)15;
  if (arena->room - arena->used < take && !add_chunk(arena, take))
    return NULL;
  char *ptr = (char *)arena->head + arena->used;
  arena->used += take;
  memset(ptr + filled, 0, take - filled);
  return ptr;
}

void *opi_arena_alloc(opi_arena *arena, size_t n_bytes) {
  return arena_take(arena, n_bytes, 0);
}

void *opi_arena_array(opi_arena *arena, size_t n, size_t size) {
  uint64_t n_bytes = 0;
  if (opi_mul_u64(n, size, &n_bytes))
    return NULL;
  return opi_arena_alloc(arena, (size_t)n_bytes);
}

void *opi_arena_copy(opi_arena *arena, const void *src, size_t n_bytes) {
  void *ptr = arena_take(arena, n_bytes, n_bytes);
  if (ptr != NULL && n_bytes != 0)
    memcpy(ptr, src, n_bytes);
  return ptr;
}

char *opi_arena_strndup(opi_arena *arena, const char *text, size_t n) {
  if (n == SIZE_MAX)
    return NULL;
  char *copy = arena_take(arena, n + 1, n);
  if (copy != NULL && n != 0)
    memcpy(copy, text, n);
  return copy;
}

char *opi_arena_strdup(opi_arena *arena, const char *text) {
  return opi_arena_strndup(arena, text, strlen(text));
}

char *opi_arena_printf(opi_arena *arena, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  const int n = vsnprintf(NULL, 0, fmt, args);
  va_end(args);
  if (n < 0)
    return NULL;
  char *text = opi_arena_alloc(arena, (size_t)n + 1);
  if (text == NULL)
    return NULL;
  va_start(args, fmt);
  (void)vsnprintf(text, (size_t)n + 1, fmt, args);
  va_end(args);
  return text;
}

bool opi_arena_grow(opi_arena *arena, void **io_array, uint32_t *io_room, uint32_t need,
                    size_t elem_size) {
  if (need <= *io_room)
    return true;
  uint32_t room = *io_room == 0 ? 2 : *io_room > UINT32_MAX / 2 ? UINT32_MAX : *io_room * 2;
  if (room < need)
    room = need;
  uint64_t n_bytes = 0;
  if (opi_mul_u64(room, elem_size, &n_bytes))
    return false;
  const size_t filled = *io_room * elem_size;
  void *fresh = arena_take(arena, (size_t)n_bytes, filled);
  if (fresh == NULL)
    return false;
  if (filled != 0)
    memcpy(fresh, *io_array, filled);
  *io_array = fresh;
  *io_room = room;
  return true;
}
