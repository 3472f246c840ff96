/* SPDX-License-Identifier: Apache-2.0 */
/* All rows, for code that enumerates operators. */
#ifndef OPI_REGISTRY_H
#define OPI_REGISTRY_H

#include "loader/ops/op.h"

/* Row i over all families; NULL after the last. */
const opi_op *opi_op_at(uint32_t i);

#endif /* OPI_REGISTRY_H */
