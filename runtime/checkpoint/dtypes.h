/* SPDX-License-Identifier: Apache-2.0 */
/* Names of element types in safetensors. Inside runtime/checkpoint. */
#ifndef OPI_CHECKPOINT_DTYPES_H
#define OPI_CHECKPOINT_DTYPES_H

#include "loader/base/base.h"

const char *opi_tensors_dtype(uint32_t dtype);      /* NULL: the format has none */
uint32_t opi_tensors_dtype_named(const char *name); /* OPIPE_UNDEFINED: unknown */

#endif /* OPI_CHECKPOINT_DTYPES_H */
