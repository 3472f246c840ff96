/* SPDX-License-Identifier: Apache-2.0 */
/* Pools: memory of metadata that lives and dies together.
 *
 * Blocks lie side by side in chunks of growing size: the program of a large graph has several
 * small arrays for every node. Under a sanitizer each block is a chunk of its own, so that every
 * overrun is seen. Freed newest first.
 */
#include "cpu.h"

struct cpu_chunk {
  cpu_chunk *next;
  size_t n_bytes; /* with this head */
  size_t used;
};

enum { CHUNK_HEAD = CPU_ALIGN_BYTES, CHUNK_FIRST = 4096, CHUNK_MOST = 1 << 20 };
OPIPE_STATIC_ASSERT(sizeof(struct cpu_chunk) <= CHUNK_HEAD, "a chunk's head fits its room");

void cpu_pool_init(cpu_pool *pool, const opipe_host *host) {
  pool->host = host;
  pool->head = NULL;
}

cpu_mark cpu_pool_mark(const cpu_pool *pool) {
  return (cpu_mark){pool->head, pool->head != NULL ? pool->head->used : 0};
}

void cpu_pool_rewind(cpu_pool *pool, cpu_mark mark) {
  while (pool->head != mark.head) {
    cpu_chunk *chunk = pool->head;
    pool->head = chunk->next;
    pool->host->realloc(pool->host->ctx, chunk, chunk->n_bytes, 0, CPU_ALIGN_BYTES);
  }
  if (pool->head != NULL)
    pool->head->used = mark.used;
}

void cpu_pool_release(cpu_pool *pool) {
  cpu_pool_rewind(pool, (cpu_mark){NULL, 0});
}

static bool add_chunk(cpu_pool *pool, size_t need) {
  size_t n_bytes = pool->head == NULL ? CHUNK_FIRST : 2 * pool->head->n_bytes;
  n_bytes = n_bytes < CHUNK_MOST ? n_bytes : CHUNK_MOST;
  if (n_bytes < need + CHUNK_HEAD || OPIPE_BUILD_FLAGS != 0)
    n_bytes = need + CHUNK_HEAD;
  cpu_chunk *chunk = pool->host->realloc(pool->host->ctx, NULL, 0, n_bytes, CPU_ALIGN_BYTES);
  if (chunk == NULL)
    return false;
  *chunk = (cpu_chunk){pool->head, n_bytes, CHUNK_HEAD};
  pool->head = chunk;
  return true;
}

void *cpu_pool_array(cpu_pool *pool, uint64_t n, size_t size) {
  uint64_t n_bytes = 0;
  if (__builtin_mul_overflow(n, (uint64_t)size, &n_bytes) || n_bytes > INT64_MAX - 2 * CHUNK_HEAD)
    return NULL;
  const size_t take = OPIPE_BUILD_FLAGS != 0
                          ? (size_t)n_bytes
                          : (size_t)cpu_align_up(n_bytes > 0 ? n_bytes : 1, CPU_ALIGN_BYTES);
  if ((pool->head == NULL || pool->head->n_bytes - pool->head->used < take ||
       OPIPE_BUILD_FLAGS != 0) &&
      !add_chunk(pool, take))
    return NULL;
  void *block = (char *)pool->head + pool->head->used;
  pool->head->used += take;
  return memset(block, 0, (size_t)n_bytes);
}

void *cpu_acquire(const opipe_host *host, size_t n_bytes, const char *what, opipe_error *err) {
  void *object = host->realloc(host->ctx, NULL, 0, n_bytes, CPU_ALIGN_BYTES);
  if (object == NULL) {
    opipe_fail(err, OPIPE_E_NOMEM, "%s: no memory for %zu bytes", what, n_bytes);
    return NULL;
  }
  memset(object, 0, n_bytes);
  return object;
}

void cpu_release(const opipe_host *host, void *object, size_t n_bytes) {
  if (object != NULL)
    host->realloc(host->ctx, object, n_bytes, 0, CPU_ALIGN_BYTES);
}
