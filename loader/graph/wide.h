/* SPDX-License-Identifier: Apache-2.0 */
/* Contents of half types as float32, and back. Training computes from float32 masters, whatever the
 * file stores. */
#ifndef OPI_WIDE_H
#define OPI_WIDE_H

#include "loader/graph/model.h"

static inline bool opi_dtype_is_half(uint32_t dtype) {
  return dtype == OPIPE_FLOAT16 || dtype == OPIPE_BFLOAT16;
}

/* `dtype`: OPIPE_FLOAT16 or OPIPE_BFLOAT16; n elements, dense. */
void opi_widen(uint32_t dtype, const void *from, uint64_t n, float *to);
void opi_narrow(uint32_t dtype, const float *from, uint64_t n, void *to); /* to may equal from */

/* A model's initializers in float32, each made on first use. */
typedef struct opi_wide opi_wide;
opipe_status opi_wide_new(const opipe_allocator *allocator, opi_wide **out_wide, opipe_error *err);
void opi_wide_free(opi_wide *wide); /* accepts NULL */
/* The content in float32 of value `index` of the model's main graph, which has a half type and
 * data. It lives as long as the model. [any-thread] */
opipe_status opi_model_widened(const opi_model *model, uint32_t index, const float **out_data,
                               opipe_error *err);

#endif /* OPI_WIDE_H */
