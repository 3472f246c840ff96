/* SPDX-License-Identifier: Apache-2.0 */
/* Matrices that a host has transposed in memory while the original lies in a file: frameworks that
 * fold constants make them of tied embeddings. Each is found by its content, all of it, and becomes
 * a Transpose of the original, which the library reads where it lies; then nobody needs the copy.
 */
#include <fcntl.h>
#include <opipe/helpers.h>
#include <string.h>
#include <unistd.h>

#include "hosts.h"

enum { BLOCK = 32 /* rows and columns that are compared at a time: what a cache holds */ };

/* Columns `left` on, `n` of them, of a [rows, columns]: are they the rows b [n, rows]? */
static inline bool is_turned(const char *a, const char *b, const int64_t shape[2], int64_t left,
                             int64_t n, size_t size) {
  const int64_t rows = shape[0], columns = shape[1];
  for (int64_t top = 0; top < rows; top += BLOCK) {
    const int64_t bottom = top + BLOCK < rows ? top + BLOCK : rows;
    for (int64_t r = top; r < bottom; ++r) {
      for (int64_t c = 0; c < n; ++c) {
        if (memcmp(a + (size_t)(r * columns + left + c) * size, b + (size_t)(c * rows + r) * size,
                   size) != 0)
          return false;
      }
    }
  }
  return true;
}

static bool is_turned_of(const char *a, const char *b, const int64_t shape[2], int64_t left,
                         int64_t n, size_t size) {
  switch (size) { /* the compiler knows each */
    case 1:
      return is_turned(a, b, shape, left, n, 1);
    case 2:
      return is_turned(a, b, shape, left, n, 2);
    case 4:
      return is_turned(a, b, shape, left, n, 4);
    default:
      return is_turned(a, b, shape, left, n, 8);
  }
}

static bool read_all(int file, char *to, size_t n, uint64_t offset) {
  while (n != 0) {
    const ssize_t got = pread(file, to, n, (off_t)offset);
    if (got <= 0)
      return false;
    to += got;
    n -= (size_t)got;
    offset += (uint64_t)got;
  }
  return true;
}

/* Has `from`, in its file, what `t` has in memory? A few rows of it are read at a time. A file that
 * cannot be read has not. */
static bool is_copy_of(const opipe_build_tensor *t, const opipe_build_tensor *from) {
  const opipe_dtype_row *row = opipe_dtype_row_of(t->dtype);
  const size_t size = row == NULL || row->bits % 8 != 0 || row->bits > 64 ? 0 : row->bits / 8;
  const size_t row_bytes = (size_t)t->shape[0] * size;
  const int64_t columns = t->shape[1];
  char *rows = size == 0 || size == 3 ? NULL : host_take(BLOCK * row_bytes);
  const int file = rows == NULL ? -1 : open(from->file, O_RDONLY | O_CLOEXEC);
  bool same = file >= 0;
  for (int64_t left = 0; same && left < columns; left += BLOCK) {
    const int64_t n = columns - left < BLOCK ? columns - left : BLOCK;
    same = read_all(file, rows, (size_t)n * row_bytes,
                    from->offset_bytes + (uint64_t)left * row_bytes) &&
           is_turned_of(t->data, rows, t->shape, left, n, size);
  }
  if (file >= 0)
    (void)close(file);
  host_give(rows);
  return same;
}

static bool is_read(const opipe_build_graph *g, const char *name) {
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    for (uint32_t i = 0; i < g->nodes[n].n_inputs; ++i) {
      if (strcmp(g->nodes[n].inputs[i], name) == 0)
        return true;
    }
  }
  return false;
}

/* The matrix in a file that t is the transpose of; NULL: none. */
static const opipe_build_tensor *original_of(const opipe_build_graph *g,
                                             const opipe_build_tensor *t) {
  for (uint32_t i = 0; i < g->n_tensors; ++i) {
    const opipe_build_tensor *from = &g->tensors[i];
    if (from->file != NULL && from->rank == 2 && from->dtype == t->dtype &&
        from->n_bytes == t->n_bytes && from->shape[0] == t->shape[1] &&
        from->shape[1] == t->shape[0] && is_read(g, from->name) && is_copy_of(t, from))
      return from;
  }
  return NULL;
}

static bool make_node(const opipe_build_tensor *t, const opipe_build_tensor *from, host_pool *p,
                      opipe_build_node *out) {
  static const int64_t turn[] = {1, 0};
  static const opipe_attr perm = {.name = "perm", .kind = OPIPE_ATTR_INTS, .n = 2, .data = turn};
  const char **names = host_pool_take(p, 2 * sizeof *names);
  if (names == NULL)
    return false;
  names[0] = from->name;
  names[1] = t->name;
  *out = (opipe_build_node){.name = t->name,
                            .op = "Transpose",
                            .inputs = names,
                            .outputs = names + 1,
                            .attrs = &perm,
                            .n_inputs = 1,
                            .n_outputs = 1,
                            .n_attrs = 1};
  return true;
}

bool host_find_turned(opipe_build_graph *g, host_pool *p, uint64_t least_bytes, uint32_t *out_n) {
  opipe_build_tensor *tensors = (opipe_build_tensor *)(uintptr_t)g->tensors; /* the pool's */
  opipe_build_node *nodes =
      host_pool_take(p, ((size_t)g->n_nodes + g->n_tensors + 1) * sizeof *nodes);
  uint32_t n = 0;
  *out_n = 0;
  if (nodes == NULL)
    return false;
  for (uint32_t i = 0; i < g->n_tensors; ++i) {
    const opipe_build_tensor *t = &g->tensors[i];
    const opipe_build_tensor *from =
        t->data == NULL || t->rank != 2 || t->n_bytes < least_bytes ? NULL : original_of(g, t);
    if (from != NULL && !make_node(t, from, p, &nodes[(*out_n)++]))
      return false;
  }
  for (uint32_t i = 0; i < g->n_tensors; ++i) {
    bool turned = false;
    for (uint32_t k = 0; k < *out_n; ++k)
      turned = turned || nodes[k].outputs[0] == tensors[i].name;
    if (!turned)
      tensors[n++] = tensors[i];
  }
  g->n_tensors = n;
  if (*out_n == 0)
    return true;
  if (g->n_nodes != 0)
    memcpy(nodes + *out_n, g->nodes, g->n_nodes * sizeof *nodes);
  g->nodes = nodes;
  g->n_nodes += *out_n;
  return true;
}
