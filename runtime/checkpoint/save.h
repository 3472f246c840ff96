/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by both ways of saving. Inside runtime/checkpoint. */
#ifndef OPI_CHECKPOINT_SAVE_H
#define OPI_CHECKPOINT_SAVE_H

#include "runtime/checkpoint/manifest.h"

/* A manifest of this session's numbers, without shards. */
void opi_checkpoint_begin(const opi_weights *weights, uint64_t generation,
                          const uint64_t position[OPI_POSITION], opi_manifest *out);

#endif /* OPI_CHECKPOINT_SAVE_H */
