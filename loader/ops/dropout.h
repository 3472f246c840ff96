/* SPDX-License-Identifier: Apache-2.0 */
/* Dropout for other operators (BiasDropout). */
#ifndef OPI_DROPOUT_H
#define OPI_DROPOUT_H

#include "loader/ops/kit.h"

/* Passes x through the Dropout that `node` describes: its ratio is input `ratio_in` (or an
 * attribute, in old opsets), training_mode the next input. With OPI_DROPOUT_OFF, or if the node
 * does not train, *out = x. *out_mask is OPIPE_NONE unless want_mask. */
opipe_status opi_dropout(opi_builder *b, const opi_node *node, uint32_t x, uint32_t ratio_in,
                         bool want_mask, uint32_t *out, uint32_t *out_mask, opipe_error *err);

#endif /* OPI_DROPOUT_H */
