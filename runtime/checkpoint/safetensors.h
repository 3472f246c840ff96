/* SPDX-License-Identifier: Apache-2.0 */
/* The safetensors format: 8 bytes with the header's length, a JSON header {name: {dtype, shape,
 * data_offsets}}, the tensors' bytes. The writer declares all tensors, then streams them; the
 * reader maps the file and trusts nothing in it.
 */
#ifndef OPI_SAFETENSORS_H
#define OPI_SAFETENSORS_H

#include "loader/base/base.h"

typedef struct opi_tensor_entry {
  const char *name;
  const int64_t *shape;
  const void *data; /* reader: inside the mapped file, any alignment */
  uint64_t n_bytes;
  uint32_t dtype; /* OPIPE_FLOAT ... */
  uint32_t rank;
} opi_tensor_entry;

/* XXH3 of 64 bits, by which a manifest knows tensors and headers. */
uint64_t opi_tensors_hash(const void *data, uint64_t n_bytes);

/* ---- writing ---- */

typedef struct opi_tensors_writer opi_tensors_writer;

/* Makes `path`, which must not exist, in the folder `dir` with a header of `entries` [n] (`data` is
 * not read). Their bytes follow by _add in the same order. A failure leaves no file. Errors: IO. */
opipe_status opi_tensors_create(const opipe_allocator *allocator, int dir, const char *path,
                                const opi_tensor_entry *entries, uint32_t n,
                                opi_tensors_writer **out_writer, opipe_error *err);
/* n_bytes must be the size of the next entry. */
opipe_status opi_tensors_add(opi_tensors_writer *writer, const void *data, uint64_t n_bytes,
                             opipe_error *err);
/* The hash of the file's bytes before the first tensor. */
uint64_t opi_tensors_header_hash(const opi_tensors_writer *writer);
/* Flushes to the disk and frees the writer, whatever the status. A file that lacks tensors is an
 * error. */
opipe_status opi_tensors_finish(opi_tensors_writer *writer, uint64_t *out_bytes, opipe_error *err);
void opi_tensors_cancel(opi_tensors_writer *writer); /* leaves the file behind; accepts NULL */

/* ---- reading ---- */

typedef struct opi_tensors {
  opi_arena arena;
  opi_tensor_entry *entries; /* [n] in the header's order */
  opi_map *names;            /* -> index */
  const char *what;          /* the file's name, for messages */
  void *bytes;
  uint64_t n_bytes;
  uint64_t header_hash;
  uint32_t n;
} opi_tensors;

/* Maps `path` below `dir` and checks it: header length, JSON, types, shapes, offsets that fit,
 * do not overlap and leave nothing out. Errors: NOTFOUND, IO, INVALID names the tensor and both
 * numbers, LIMIT. */
opipe_status opi_tensors_open(const opipe_allocator *allocator, int dir, const char *path,
                              opi_tensors **out_tensors, opipe_error *err);
/* The same for bytes that the caller owns. */
opipe_status opi_tensors_parse(const opipe_allocator *allocator, const void *bytes,
                               uint64_t n_bytes, const char *what, opi_tensors **out_tensors,
                               opipe_error *err);
void opi_tensors_close(opi_tensors *tensors); /* accepts NULL */
/* NULL: not there. */
const opi_tensor_entry *opi_tensors_find(const opi_tensors *tensors, const char *name);

#endif /* OPI_SAFETENSORS_H */
