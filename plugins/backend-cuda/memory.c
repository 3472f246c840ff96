/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory, counted by the opening's meter, and words of pinned memory that kernels report to.
 */
#include "cuda.h"

opipe_status cuda_memory_take(opipe_device *device, uint32_t kind, const char *what,
                              uint64_t *io_bytes, CUdeviceptr *out_address, opipe_error *err) {
  if (*io_bytes > (uint64_t)INT64_MAX - CUDA_ALIGN) {
    return opipe_fail(err, OPIPE_E_INVALID, "%s of %llu bytes: more than can be addressed", what,
                      (unsigned long long)*io_bytes);
  }
  const uint64_t n_bytes = cuda_align_up(*io_bytes != 0 ? *io_bytes : 1);
  CUDA_TRY(opipe_meter_take(&device->meter, kind, n_bytes, what, err));
  const opipe_status status = cuda_result(
      device->place, device->place->driver->memory_alloc(out_address, (size_t)n_bytes), what, err);
  if (status < 0)
    opipe_meter_give(&device->meter, kind, n_bytes);
  else
    *io_bytes = n_bytes;
  return status;
}

void cuda_memory_give(opipe_device *device, uint32_t kind, CUdeviceptr address, uint64_t n_bytes) {
  if (address == 0)
    return;
  if (cuda_may_give(device))
    (void)device->place->driver->memory_free(address);
  else
    (void)__atomic_add_fetch(&device->kept_bytes, n_bytes, __ATOMIC_RELAXED);
  opipe_meter_give(&device->meter, kind, n_bytes);
}

/* ---- buffers ---- */

opipe_status cuda_buffer_alloc(opipe_device *device, uint64_t n_bytes, uint32_t kind,
                               opipe_buffer **out_buffer, opipe_error *err) {
  CUDA_TRY(cuda_enter(device, "buffer_alloc", err));
  opipe_buffer *buffer =
      opipe_zeroed(device->host, "buffer", sizeof *buffer, _Alignof(opipe_buffer), err);
  opipe_status status = buffer == NULL ? OPIPE_E_NOMEM : OPIPE_OK;
  if (status >= 0) {
    buffer->device = device;
    buffer->kind = kind;
    buffer->n_bytes = n_bytes;
    status =
        cuda_memory_take(device, kind, "device memory", &buffer->n_bytes, &buffer->address, err);
    if (status < 0)
      opipe_free(device->host, buffer, sizeof *buffer, _Alignof(opipe_buffer));
    else
      *out_buffer = buffer;
  }
  cuda_leave(device);
  return status;
}

void cuda_buffer_free(opipe_buffer *buffer) {
  if (buffer == NULL)
    return;
  opipe_device *device = buffer->device;
  const bool entered = cuda_enter(device, "buffer_free", NULL) >= 0;
  if (buffer->opened) {
    if (entered && cuda_may_give(device))
      (void)device->place->driver->ipc_memory_close(buffer->address);
  } else if (buffer->kept) {
    opipe_meter_give(&device->meter, buffer->kind, buffer->n_bytes);
  } else if (!buffer->imported) {
    cuda_memory_give(device, buffer->kind, buffer->address, buffer->n_bytes);
  }
  if (entered)
    cuda_leave(device);
  opipe_free(device->host, buffer, sizeof *buffer, _Alignof(opipe_buffer));
}

opipe_status cuda_buffer_host(opipe_buffer *buffer, void **out_data, opipe_error *err) {
  (void)out_data;
  return opipe_fail(err, OPIPE_E_UNSUPPORTED, "cuda:%u: its memory has no address on the host",
                    buffer->device->place->index);
}

opipe_status cuda_region(const opipe_device *device, const opipe_region *region, const char *what,
                         CUdeviceptr *out_address, opipe_error *err) {
  const opipe_buffer *buffer = region->buffer;
  if (buffer == NULL || buffer->device != device)
    return opipe_fail(err, OPIPE_E_INVALID, "%s: no buffer, or one of another device", what);
  if (region->offset_bytes > buffer->n_bytes ||
      region->n_bytes > buffer->n_bytes - region->offset_bytes) {
    return opipe_fail(err, OPIPE_E_INVALID, "%s: bytes [%llu, +%llu) of a buffer of %llu", what,
                      (unsigned long long)region->offset_bytes, (unsigned long long)region->n_bytes,
                      (unsigned long long)buffer->n_bytes);
  }
  *out_address = buffer->address + region->offset_bytes;
  return OPIPE_OK;
}

/* ---- pinned words ---- */

enum { WORDS = 120 }; /* in a page */

struct cuda_words {
  cuda_words *next;
  cuda_status *words; /* [WORDS], pinned */
  uint8_t taken[WORDS];
};

static cuda_words *more_words(opipe_device *device, opipe_error *err) {
  void *data = NULL;
  cuda_words *words =
      opipe_zeroed(device->host, "pinned words", sizeof *words, _Alignof(cuda_words), err);
  if (words == NULL)
    return NULL;
  if (cuda_result(device->place,
                  device->place->driver->host_alloc(&data, WORDS * sizeof(cuda_status),
                                                    CUDA_HOST_PORTABLE | CUDA_HOST_DEVICEMAP),
                  "pinned memory", err) < 0) {
    opipe_free(device->host, words, sizeof *words, _Alignof(cuda_words));
    return NULL;
  }
  words->words = data;
  words->next = device->words;
  device->words = words;
  return words;
}

/* NULL: all are taken. */
static cuda_status *take_free(cuda_words *words) {
  for (uint32_t i = 0; i < WORDS; ++i) {
    if (!words->taken[i]) {
      words->taken[i] = 1;
      memset(&words->words[i], 0, sizeof words->words[i]);
      return &words->words[i];
    }
  }
  return NULL;
}

cuda_status *cuda_word_take(opipe_device *device, opipe_error *err) {
  cuda_status *word = NULL;
  (void)pthread_mutex_lock(&device->small_lock);
  for (cuda_words *words = device->words; words != NULL && word == NULL; words = words->next)
    word = take_free(words);
  if (word == NULL) {
    cuda_words *words = more_words(device, err);
    word = words == NULL ? NULL : take_free(words);
  }
  (void)pthread_mutex_unlock(&device->small_lock);
  return word;
}

void cuda_word_give(opipe_device *device, cuda_status *word) {
  (void)pthread_mutex_lock(&device->small_lock);
  for (cuda_words *words = device->words; word != NULL && words != NULL; words = words->next) {
    if (word >= words->words && word < words->words + WORDS)
      words->taken[word - words->words] = 0;
  }
  (void)pthread_mutex_unlock(&device->small_lock);
}

void cuda_words_free(opipe_device *device) {
  const bool give = cuda_may_give(device);
  while (device->words != NULL) {
    cuda_words *words = device->words;
    device->words = words->next;
    if (give)
      (void)device->place->driver->host_free(words->words);
    opipe_free(device->host, words, sizeof *words, _Alignof(cuda_words));
  }
}
