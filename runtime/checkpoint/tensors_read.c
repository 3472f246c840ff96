/* SPDX-License-Identifier: Apache-2.0 */
/* Reads safetensors: a file is mapped, its header bounded, parsed and checked before any tensor is
 * handed out. Offsets must tile the data exactly, in any order.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loader/base/json.h"
#include "runtime/checkpoint/safetensors.h"

static const uint64_t HEADER_MOST = UINT64_C(100) << 20;

static uint32_t dtype_named(const char *name) {
  for (uint32_t dtype = 0; dtype < OPIPE_N_DTYPES; ++dtype) {
    const char *known = opipe_dtype_row_of(dtype)->safetensors;
    if (known != NULL && strcmp(known, name) == 0)
      return dtype;
  }
  return OPIPE_UNDEFINED;
}

/* ---- one entry ---- */

static opipe_status read_shape(opi_tensors *t, opi_tensor_entry *e, const json_t *object,
                               opipe_error *err) {
  const json_t *shape = NULL;
  OPI_TRY(opi_json_get_array(object, e->name, "shape", &shape, err));
  const size_t rank = json_array_size(shape);
  if (rank > OPIPE_MAX_RANK) {
    return opi_fail(err, OPIPE_E_INVALID, "%s: tensor '%s' has rank %zu, at most %d", t->what,
                    e->name, rank, OPIPE_MAX_RANK);
  }
  int64_t *dims = OPI_ARENA_ARRAY(&t->arena, int64_t, rank);
  if (dims == NULL)
    return opi_fail_nomem(err, rank * sizeof *dims, "a shape");
  for (size_t d = 0; d < rank; ++d) {
    const json_t *dim = json_array_get(shape, d);
    if (!json_is_integer(dim) || json_integer_value(dim) < 0) {
      return opi_fail(err, OPIPE_E_INVALID, "%s: tensor '%s': dimension %zu is not a number >= 0",
                      t->what, e->name, d);
    }
    dims[d] = json_integer_value(dim);
  }
  e->shape = dims;
  e->rank = (uint32_t)rank;
  return OPIPE_OK;
}

static opipe_status read_offsets(const opi_tensors *t, opi_tensor_entry *e, const json_t *object,
                                 const char *data, uint64_t room, opipe_error *err) {
  const json_t *pair = NULL;
  uint64_t want = 0;
  OPI_TRY(opi_json_get_array(object, e->name, "data_offsets", &pair, err));
  const json_t *from = json_array_get(pair, 0), *to = json_array_get(pair, 1);
  if (json_array_size(pair) != 2 || !json_is_integer(from) || !json_is_integer(to) ||
      json_integer_value(from) < 0 || json_integer_value(to) < json_integer_value(from)) {
    return opi_fail(err, OPIPE_E_INVALID, "%s: tensor '%s': its data_offsets are not a range",
                    t->what, e->name);
  }
  const uint64_t start = (uint64_t)json_integer_value(from), end = (uint64_t)json_integer_value(to);
  if (end > room) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "%s: tensor '%s' ends at byte %llu, the file has %llu bytes of data", t->what,
                    e->name, (unsigned long long)end, (unsigned long long)room);
  }
  if (!opi_tensor_bytes(e->dtype, e->shape, e->rank, &want) || want != end - start) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "%s: tensor '%s' has %llu bytes, its shape and type make %llu", t->what,
                    e->name, (unsigned long long)(end - start), (unsigned long long)want);
  }
  e->data = data + start;
  e->n_bytes = end - start;
  return OPIPE_OK;
}

static opipe_status read_entry(opi_tensors *t, const char *name, const json_t *object,
                               const char *data, uint64_t room, opipe_error *err) {
  opi_tensor_entry *e = &t->entries[t->n];
  const char *dtype = NULL;
  e->name = opi_arena_strdup(&t->arena, name);
  if (e->name == NULL)
    return opi_fail_nomem(err, strlen(name), "a name");
  if (!json_is_object(object))
    return opi_fail(err, OPIPE_E_INVALID, "%s: entry '%s' is not an object", t->what, name);
  OPI_TRY(opi_json_get_string(object, name, "dtype", &dtype, err));
  e->dtype = dtype_named(dtype);
  if (e->dtype == OPIPE_UNDEFINED) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED, "%s: tensor '%s' has type %s, which is not read",
                    t->what, name, dtype);
  }
  OPI_TRY(read_shape(t, e, object, err));
  OPI_TRY(read_offsets(t, e, object, data, room, err));
  OPI_TRY(opi_map_set(t->names, name, t->n, err));
  ++t->n;
  return OPIPE_OK;
}

/* ---- all of them ---- */

static int by_place(const void *a, const void *b) {
  const opi_tensor_entry *x = *(opi_tensor_entry *const *)a, *y = *(opi_tensor_entry *const *)b;
  const char *dx = x->data, *dy = y->data;
  if (dx != dy)
    return dx < dy ? -1 : 1;
  return x->n_bytes < y->n_bytes ? -1 : x->n_bytes > y->n_bytes ? 1 : 0;
}

/* The tensors must cover the data without gap or overlap. */
static opipe_status check_tiles(opi_tensors *t, const char *data, uint64_t room, opipe_error *err) {
  opi_tensor_entry **order = OPI_ARENA_ARRAY(&t->arena, opi_tensor_entry *, t->n);
  const char *at = data;
  if (order == NULL)
    return opi_fail_nomem(err, t->n * sizeof *order, "safetensors entries");
  for (uint32_t i = 0; i < t->n; ++i)
    order[i] = &t->entries[i];
  qsort(order, t->n, sizeof(void *), by_place);
  for (uint32_t i = 0; i < t->n; ++i) {
    const char *start = order[i]->data;
    if (start != at) {
      return opi_fail(
          err, OPIPE_E_INVALID,
          "%s: tensor '%s' begins at byte %llu of the data, the one before ends at %llu", t->what,
          order[i]->name, (unsigned long long)(start - data), (unsigned long long)(at - data));
    }
    at += order[i]->n_bytes;
  }
  if ((uint64_t)(at - data) == room)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID, "%s: its tensors have %llu bytes, the file has %llu",
                  t->what, (unsigned long long)(at - data), (unsigned long long)room);
}

static opipe_status read_header(opi_tensors *t, const char *bytes, uint64_t n_bytes,
                                opipe_error *err) {
  uint64_t length = 0;
  json_t *root = NULL;
  if (n_bytes < 8) {
    return opi_fail(err, OPIPE_E_INVALID, "%s: %llu bytes are not a safetensors file", t->what,
                    (unsigned long long)n_bytes);
  }
  for (uint32_t i = 0; i < 8; ++i)
    length |= (uint64_t)(unsigned char)bytes[i] << (8 * i);
  if (length > n_bytes - 8 || length > HEADER_MOST) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "%s: a header of %llu bytes in a file of %llu (at most %llu are read)", t->what,
                    (unsigned long long)length, (unsigned long long)n_bytes,
                    (unsigned long long)HEADER_MOST);
  }
  OPI_TRY(opi_json_parse(bytes + 8, length, t->what, &root, err));
  const char *data = bytes + 8 + length;
  t->header_hash = opi_tensors_hash(bytes, 8 + length);
  const uint64_t room = n_bytes - 8 - length;
  t->entries = OPI_ARENA_ARRAY(&t->arena, opi_tensor_entry, json_object_size(root));
  opipe_status status = t->entries == NULL
                            ? opi_fail_nomem(err, json_object_size(root), "safetensors entries")
                            : OPIPE_OK;
  for (void *it = json_object_iter(root); it != NULL && status == OPIPE_OK;
       it = json_object_iter_next(root, it)) {
    if (strcmp(json_object_iter_key(it), "__metadata__") != 0)
      status = read_entry(t, json_object_iter_key(it), json_object_iter_value(it), data, room, err);
  }
  json_decref(root);
  return status == OPIPE_OK ? check_tiles(t, data, room, err) : status;
}

static opipe_status new_tensors(const opipe_allocator *allocator, const char *what,
                                opi_tensors **out, opipe_error *err) {
  opi_tensors *t = opi_alloc_zero(allocator, 1, sizeof *t);
  if (t == NULL)
    return opi_fail_nomem(err, sizeof *t, "a safetensors file");
  opi_arena_init(&t->arena, allocator, 0);
  t->what = opi_arena_strdup(&t->arena, what);
  opipe_status status = t->what == NULL ? opi_fail_nomem(err, strlen(what), "a name") : OPIPE_OK;
  if (status == OPIPE_OK)
    status = opi_map_create(allocator, &t->names, err);
  if (status < 0) {
    opi_tensors_close(t);
    return status;
  }
  *out = t;
  return OPIPE_OK;
}

opipe_status opi_tensors_parse(const opipe_allocator *allocator, const void *bytes,
                               uint64_t n_bytes, const char *what, opi_tensors **out_tensors,
                               opipe_error *err) {
  opi_tensors *t = NULL;
  OPI_TRY(new_tensors(allocator, what, &t, err));
  const opipe_status status = read_header(t, bytes, n_bytes, err);
  if (status < 0) {
    opi_tensors_close(t);
    return status;
  }
  *out_tensors = t;
  return OPIPE_OK;
}

static opipe_status map_file(opi_tensors *t, int dir, const char *path, opipe_error *err) {
  struct stat st;
  opipe_status status = OPIPE_OK;
  const int fd = openat(dir, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0)
    return opi_fail_errno(err, errno, "opening %s", path);
  if (fstat(fd, &st) != 0) {
    status = opi_fail_errno(err, errno, "looking at %s", path);
  } else if (!S_ISREG(st.st_mode) || st.st_size < 8) {
    status = opi_fail(err, OPIPE_E_INVALID, "%s: no regular file of at least 8 bytes", path);
  } else {
    void *bytes = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED) {
      status =
          opi_fail_errno(err, errno, "mapping the %lld bytes of %s", (long long)st.st_size, path);
    } else {
      t->bytes = bytes;
      t->n_bytes = (uint64_t)st.st_size;
    }
  }
  (void)close(fd);
  return status;
}

opipe_status opi_tensors_open(const opipe_allocator *allocator, int dir, const char *path,
                              opi_tensors **out_tensors, opipe_error *err) {
  opi_tensors *t = NULL;
  OPI_TRY(new_tensors(allocator, path, &t, err));
  opipe_status status = map_file(t, dir, path, err);
  if (status == OPIPE_OK)
    status = read_header(t, t->bytes, t->n_bytes, err);
  if (status < 0) {
    opi_tensors_close(t);
    return status;
  }
  *out_tensors = t;
  return OPIPE_OK;
}

void opi_tensors_close(opi_tensors *t) {
  if (t == NULL)
    return;
  const opipe_allocator *allocator = t->arena.allocator;
  if (t->bytes != NULL)
    (void)munmap(t->bytes, (size_t)t->n_bytes);
  opi_map_free(t->names);
  opi_arena_release(&t->arena);
  opi_free(allocator, t, sizeof *t);
}

const opi_tensor_entry *opi_tensors_find(const opi_tensors *t, const char *name) {
  uint32_t index = 0;
  return opi_map_get(t->names, name, &index) ? &t->entries[index] : NULL;
}
