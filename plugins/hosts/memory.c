/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of adapters: the one place that takes it. A pool is a list of blocks that end together. */
#include <stdlib.h>
#include <string.h>

#include "hosts.h"

void *host_take(size_t n_bytes) {
  return calloc(1, n_bytes);
}

void host_give(void *memory) {
  free(memory);
}

struct host_pool_block {
  struct host_pool_block *next;
  max_align_t data[];
};

void *host_pool_take(host_pool *p, size_t n_bytes) {
  struct host_pool_block *block =
      n_bytes > SIZE_MAX - sizeof *block ? NULL : host_take(sizeof *block + n_bytes);
  if (block == NULL)
    return NULL;
  block->next = p->blocks;
  p->blocks = block;
  return block->data;
}

char *host_pool_text(host_pool *p, const char *text) {
  const size_t n = strlen(text) + 1;
  char *copy = host_pool_take(p, n);
  if (copy != NULL)
    memcpy(copy, text, n);
  return copy;
}

void host_pool_free(host_pool *p) {
  while (p->blocks != NULL) {
    struct host_pool_block *next = p->blocks->next;
    host_give(p->blocks);
    p->blocks = next;
  }
}
