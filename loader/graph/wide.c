/* SPDX-License-Identifier: Apache-2.0 */
/* Contents of half types as float32: see wide.h. */
#include "loader/graph/wide.h"

#include <pthread.h>

#include "loader/base/halves.h"

struct opi_wide {
  const opipe_allocator *allocator;
  opi_arena arena;
  const float **data; /* [values of the main graph] NULL: not asked for yet */
  pthread_mutex_t lock;
};

void opi_widen(uint32_t dtype, const void *from, uint64_t n, float *to) {
  const uint8_t *bytes = from; /* of a file: at any address */
  for (uint64_t i = 0; i < n; ++i) {
    uint16_t half;
    memcpy(&half, bytes + i * sizeof half, sizeof half);
    to[i] = dtype == OPIPE_FLOAT16 ? opi_half_to_float(half) : opi_bfloat_to_float(half);
  }
}

void opi_narrow(uint32_t dtype, const float *from, uint64_t n, void *to) {
  uint8_t *bytes = to;
  for (uint64_t i = 0; i < n; ++i) {
    const uint16_t half = dtype == OPIPE_FLOAT16 ? opi_half_of(from[i]) : opi_bfloat_of(from[i]);
    memcpy(bytes + i * sizeof half, &half, sizeof half);
  }
}

opipe_status opi_wide_new(const opipe_allocator *allocator, opi_wide **out_wide, opipe_error *err) {
  opi_wide *wide = opi_alloc_zero(allocator, 1, sizeof *wide);
  if (wide == NULL || pthread_mutex_init(&wide->lock, NULL) != 0) {
    opi_free(allocator, wide, sizeof *wide);
    return opi_fail_nomem(err, sizeof *wide, "a model");
  }
  wide->allocator = allocator;
  opi_arena_init(&wide->arena, allocator, 0);
  *out_wide = wide;
  return OPIPE_OK;
}

void opi_wide_free(opi_wide *wide) {
  if (wide == NULL)
    return;
  (void)pthread_mutex_destroy(&wide->lock);
  opi_arena_release(&wide->arena);
  opi_free(wide->allocator, wide, sizeof *wide);
}

static opipe_status make(opi_wide *wide, const opi_graph *graph, uint32_t index, opipe_error *err) {
  const opi_value *value = &graph->values[index];
  const uint64_t n = value->n_bytes / sizeof(uint16_t);
  float *data = NULL;
  if (wide->data == NULL)
    wide->data = OPI_ARENA_ARRAY(&wide->arena, const float *, graph->n_values);
  if (wide->data != NULL && wide->data[index] == NULL)
    data = opi_arena_alloc(&wide->arena, (size_t)n * sizeof *data);
  if (wide->data == NULL || (wide->data[index] == NULL && data == NULL))
    return opi_fail_nomem(err, n * sizeof *data, value->name);
  if (data == NULL)
    return OPIPE_OK;
  opi_widen(value->dtype, value->data, n, data);
  wide->data[index] = data;
  return OPIPE_OK;
}

opipe_status opi_model_widened(const opi_model *model, uint32_t index, const float **out_data,
                               opipe_error *err) {
  opi_wide *wide = model->wide;
  (void)pthread_mutex_lock(&wide->lock);
  const opipe_status status = make(wide, model->graph, index, err);
  *out_data = status == OPIPE_OK ? wide->data[index] : NULL;
  (void)pthread_mutex_unlock(&wide->lock);
  return status;
}
