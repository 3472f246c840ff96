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

void *host_pool_copy(host_pool *p, const void *data, size_t n_bytes) {
  void *copy = host_pool_take(p, n_bytes + 1);
  if (copy != NULL && n_bytes != 0)
    memcpy(copy, data, n_bytes);
  return copy;
}

char *host_pool_text(host_pool *p, const char *text) {
  return host_pool_copy(p, text, strlen(text));
}

char *host_pool_beside(host_pool *p, const char *path, const char *file) {
  const char *slash = path == NULL || file[0] == '/' ? NULL : strrchr(path, '/');
  const size_t n = slash == NULL ? 0 : (size_t)(slash - path) + 1;
  const size_t size = strlen(file) + 1; /* its end too */
  char *whole = host_pool_take(p, n + size);
  if (whole != NULL && n != 0)
    memcpy(whole, path, n);
  if (whole != NULL)
    memcpy(whole + n, file, size);
  return whole;
}

void host_pool_free(host_pool *p) {
  while (p->blocks != NULL) {
    struct host_pool_block *next = p->blocks->next;
    host_give(p->blocks);
    p->blocks = next;
  }
}
