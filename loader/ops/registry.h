/* SPDX-License-Identifier: Apache-2.0 */
/* All rows, for whoever looks at every operator. */
#ifndef OPI_REGISTRY_H
#define OPI_REGISTRY_H

#include "loader/ops/op.h"

/* Row i over all families; NULL behind the last. */
const opi_op *opi_op_at(uint32_t i);

#endif /* OPI_REGISTRY_H */
