/* SPDX-License-Identifier: Apache-2.0 */
/* Dropout as other operators use it (BiasDropout). */
#ifndef OPI_DROPOUT_H
#define OPI_DROPOUT_H

#include "loader/ops/kit.h"

/* x through the Dropout that `node` describes: ratio is its input `ratio_in` (or attribute, old
 * opsets), training_mode the next one. With OPI_DROPOUT_OFF, or where the node does not train, *out
 * = x. out_mask OPIPE_NONE unless want_mask. */
opipe_status opi_dropout(opi_builder *b, const opi_node *node, uint32_t x, uint32_t ratio_in,
                         bool want_mask, uint32_t *out, uint32_t *out_mask, opipe_error *err);

#endif /* OPI_DROPOUT_H */
