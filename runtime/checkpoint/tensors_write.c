/* SPDX-License-Identifier: Apache-2.0 */
/* Writes safetensors: the header is made from the declared entries, the bytes stream behind it. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "runtime/checkpoint/safetensors.h"

enum { LENGTH_BYTES = 8, HEADER_ALIGN = 8 };

struct opi_tensors_writer {
  const opipe_allocator *allocator;
  uint64_t *sizes; /* [n] */
  uint64_t n_bytes, header_hash;
  uint32_t n, next;
  int fd;
};

static void put_header(opi_text *text, const opi_tensor_entry *entries, uint32_t n) {
  uint64_t at = 0;
  opi_text_puts(text, "{\"__metadata__\":{\"format\":\"pt\"}");
  for (uint32_t i = 0; i < n; ++i) {
    opi_text_puts(text, ",");
    opi_text_json(text, entries[i].name);
    opi_text_printf(text, ":{\"dtype\":\"%s\",\"shape\":[",
                    opipe_dtype_row_of(entries[i].dtype)->safetensors);
    for (uint32_t d = 0; d < entries[i].rank; ++d)
      opi_text_printf(text, d == 0 ? "%lld" : ",%lld", (long long)entries[i].shape[d]);
    opi_text_printf(text, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
                    (unsigned long long)(at + entries[i].n_bytes));
    at += entries[i].n_bytes;
  }
  opi_text_puts(text, "}");
  while (text->n % HEADER_ALIGN != 0 && !text->failed)
    opi_text_puts(text, " ");
}

static opipe_status write_header(opi_tensors_writer *w, const opi_tensor_entry *entries, uint32_t n,
                                 opipe_error *err) {
  opi_text text;
  opi_text_init(&text, w->allocator);
  opi_text_puts(&text, "LENGTH: "); /* its place */
  put_header(&text, entries, n);
  opipe_status status = OPIPE_OK;
  if (text.failed)
    status = opi_fail_nomem(err, text.n, "a safetensors header");
  for (uint32_t i = 0; i < LENGTH_BYTES && status == OPIPE_OK; ++i)
    text.data[i] = (char)(unsigned char)((uint64_t)(text.n - LENGTH_BYTES) >> (8 * i));
  if (status == OPIPE_OK) {
    w->header_hash = opi_tensors_hash(text.data, text.n);
    status = opi_write_all(w->fd, text.data, text.n, err);
  }
  w->n_bytes = text.n;
  opi_text_release(&text);
  return status;
}

static opipe_status check_entry(const opi_tensor_entry *e, opipe_error *err) {
  uint64_t n_bytes = 0;
  if (opipe_dtype_row_of(e->dtype)->safetensors != NULL &&
      opi_tensor_bytes(e->dtype, e->shape, e->rank, &n_bytes) && n_bytes == e->n_bytes)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_UNSUPPORTED,
                  "tensor '%s': %llu bytes of %s cannot be written as safetensors", e->name,
                  (unsigned long long)e->n_bytes, opi_dtype_name(e->dtype));
}

opipe_status opi_tensors_create(const opipe_allocator *allocator, int dir, const char *path,
                                const opi_tensor_entry *entries, uint32_t n,
                                opi_tensors_writer **out_writer, opipe_error *err) {
  for (uint32_t i = 0; i < n; ++i)
    OPI_TRY(check_entry(&entries[i], err));
  opi_tensors_writer *w = opi_alloc_zero(allocator, 1, sizeof *w);
  if (w == NULL)
    return opi_fail_nomem(err, sizeof *w, "a safetensors file");
  *w = (opi_tensors_writer){.allocator = allocator, .n = n, .fd = -1};
  w->sizes = opi_alloc_zero(allocator, (size_t)n + 1, sizeof *w->sizes);
  opipe_status status = OPIPE_OK;
  if (w->sizes == NULL)
    status = opi_fail_nomem(err, n * sizeof *w->sizes, "a safetensors file");
  for (uint32_t i = 0; i < n && status == OPIPE_OK; ++i)
    w->sizes[i] = entries[i].n_bytes;
  bool made = false;
  if (status == OPIPE_OK)
    w->fd = openat(dir, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (status == OPIPE_OK && w->fd < 0)
    status = opi_fail_errno(err, errno, "making %s", path);
  made = status == OPIPE_OK;
  if (made)
    status = write_header(w, entries, n, err);
  if (status < 0) {
    if (made)
      (void)unlinkat(dir, path, 0);
    opi_tensors_cancel(w);
    return status;
  }
  *out_writer = w;
  return OPIPE_OK;
}

opipe_status opi_tensors_add(opi_tensors_writer *w, const void *data, uint64_t n_bytes,
                             opipe_error *err) {
  if (w->next == w->n || w->sizes[w->next] != n_bytes) {
    return opi_fail(err, OPIPE_E_INTERNAL, "tensor %u of %u: %llu bytes, %llu were declared",
                    w->next, w->n, (unsigned long long)n_bytes,
                    (unsigned long long)(w->next == w->n ? 0 : w->sizes[w->next]));
  }
  ++w->next;
  w->n_bytes += n_bytes;
  return opi_write_all(w->fd, data, n_bytes, err);
}

uint64_t opi_tensors_header_hash(const opi_tensors_writer *w) {
  return w->header_hash;
}

opipe_status opi_tensors_finish(opi_tensors_writer *w, uint64_t *out_bytes, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  if (w->next != w->n)
    status = opi_fail(err, OPIPE_E_INTERNAL, "%u tensors of %u were written", w->next, w->n);
  else if (fsync(w->fd) != 0)
    status = opi_fail_errno(err, errno, "flushing %llu bytes", (unsigned long long)w->n_bytes);
  if (out_bytes != NULL)
    *out_bytes = w->n_bytes;
  const int fd = w->fd;
  w->fd = -1;
  if (close(fd) != 0 && status == OPIPE_OK)
    status = opi_fail_errno(err, errno, "closing a safetensors file");
  opi_tensors_cancel(w);
  return status;
}

void opi_tensors_cancel(opi_tensors_writer *w) {
  if (w == NULL)
    return;
  if (w->fd >= 0)
    (void)close(w->fd);
  opi_free(w->allocator, w->sizes, ((size_t)w->n + 1) * sizeof *w->sizes);
  opi_free(w->allocator, w, sizeof *w);
}
