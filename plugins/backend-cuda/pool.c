/* SPDX-License-Identifier: Apache-2.0 */
/* Metadata that lives and dies together: zeroed, 16-byte aligned blocks out of chunks. */
#include "cuda.h"

enum { CHUNK_BYTES = 16384, BLOCK_ALIGN = 16 };

struct cuda_chunk {
  cuda_chunk *next;
  size_t room; /* bytes behind the head */
  size_t used;
  size_t unused;
};

void *cuda_pool_array(cuda_pool *pool, uint64_t n, size_t size) {
  uint64_t want = 0;
  cuda_chunk *chunk = pool->head;
  if (__builtin_mul_overflow(n, (uint64_t)size, &want) || want > SIZE_MAX / 2)
    return NULL;
  const size_t bytes = ((size_t)want + BLOCK_ALIGN) & ~(size_t)(BLOCK_ALIGN - 1);
  if (chunk == NULL || chunk->room - chunk->used < bytes) {
    const size_t room = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
    chunk = opipe_zeroed(pool->host, "metadata", sizeof *chunk + room, BLOCK_ALIGN, NULL);
    if (chunk == NULL)
      return NULL;
    chunk->room = room;
    chunk->next = pool->head;
    pool->head = chunk;
  }
  void *block = (char *)(chunk + 1) + chunk->used;
  chunk->used += bytes;
  return block;
}

void cuda_pool_release(cuda_pool *pool) {
  while (pool->head != NULL) {
    cuda_chunk *chunk = pool->head;
    pool->head = chunk->next;
    opipe_free(pool->host, chunk, sizeof *chunk + chunk->room, BLOCK_ALIGN);
  }
}
