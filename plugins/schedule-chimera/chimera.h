/* SPDX-License-Identifier: Apache-2.0 */
/* Where Chimera's pipelines lie, and the order of every rank. */
#ifndef CHIMERA_H
#define CHIMERA_H

#include <opipe/orders.h>

typedef struct chimera {
  uint32_t n_stages;    /* D, even: as many ranks */
  uint32_t n_pipelines; /* 2 f, divides D */
  uint32_t n_microbatches;
  uint32_t per_slot; /* micro-batches of a forward slot: 1, or 2 (doubling) */
  uint32_t n_parts;  /* backward slots of a micro-batch: 1, or 2 (halving) */
} chimera;

/* Rank of `stage` in `pipeline`; even pipelines go down, odd ones up. */
uint32_t chimera_rank(const chimera *c, uint32_t stage, uint32_t pipeline);

opipe_status chimera_emit(const chimera *c, opipe_emit_fn emit, void *emit_ctx, opipe_error *err);

#endif /* CHIMERA_H */
