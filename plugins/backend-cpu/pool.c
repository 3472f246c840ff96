/* SPDX-License-Identifier: Apache-2.0 */
/* Pools: memory of metadata that lives and dies together.
 *
 * Every block is a chunk of its own: programs hold thousands of small arrays at most, and single
 * chunks let the sanitizers see each overrun. Freed newest first.
 */
#include "cpu.h"

struct cpu_chunk {
  cpu_chunk *next;
  size_t n_bytes; /* with this head */
};

enum { CHUNK_HEAD = CPU_ALIGN_BYTES };
OPIPE_STATIC_ASSERT(sizeof(struct cpu_chunk) <= CHUNK_HEAD, "a chunk's head fits its room");

void cpu_pool_init(cpu_pool *pool, const opipe_host *host) {
  pool->host = host;
  pool->head = NULL;
}

cpu_chunk *cpu_pool_mark(const cpu_pool *pool) {
  return pool->head;
}

void cpu_pool_rewind(cpu_pool *pool, cpu_chunk *mark) {
  while (pool->head != mark) {
    cpu_chunk *chunk = pool->head;
    pool->head = chunk->next;
    pool->host->realloc(pool->host->ctx, chunk, chunk->n_bytes, 0, CPU_ALIGN_BYTES);
  }
}

void cpu_pool_release(cpu_pool *pool) {
  cpu_pool_rewind(pool, NULL);
}

void *cpu_pool_array(cpu_pool *pool, uint64_t n, size_t size) {
  uint64_t n_bytes = 0;
  if (__builtin_mul_overflow(n, (uint64_t)size, &n_bytes) || n_bytes > INT64_MAX - CHUNK_HEAD) {
    return NULL;
  }
  n_bytes += CHUNK_HEAD;
  cpu_chunk *chunk =
      pool->host->realloc(pool->host->ctx, NULL, 0, (size_t)n_bytes, CPU_ALIGN_BYTES);
  if (chunk == NULL) {
    return NULL;
  }
  memset(chunk, 0, (size_t)n_bytes);
  chunk->next = pool->head;
  chunk->n_bytes = (size_t)n_bytes;
  pool->head = chunk;
  return (char *)chunk + CHUNK_HEAD;
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
  if (object != NULL) {
    host->realloc(host->ctx, object, n_bytes, 0, CPU_ALIGN_BYTES);
  }
}
