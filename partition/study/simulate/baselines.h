/* SPDX-License-Identifier: Apache-2.0 */
/* Orders of other systems that papers compare with, for simulation only (`schedule simulate`): no
 * plugin makes them and no session runs them. */
#ifndef OPI_BASELINES_H
#define OPI_BASELINES_H

#include "partition/schedule/order_search.h"

/* GEMS (Jain et al., SC'20): two replicas in opposite directions over an even number of ranks.
 * Micro-batches take turns, and the forward of the next follows the backward of the one before down
 * the ranks, so that each rank keeps one micro-batch at a time. Bubble (D - 1) / (D + 1/2) if a
 * backward takes two forwards. Errors: INVALID, an odd number; NOMEM. */
opipe_status opi_order_gems(uint32_t n_ranks, uint32_t n_microbatches,
                            const opipe_allocator *allocator, opi_order **out_order,
                            opipe_error *err);
/* PipeDream (Narayanan et al., SOSP'19): one forward, one backward, without a flush. Every
 * micro-batch is a mini-batch of its own, with as many versions of weights as there are stages to
 * come. The action language cannot express that: the order says two versions, as PipeDream-2BW's
 * does, and is played with opi_order_play.updates_each. The body has one micro-batch per stage. */
opipe_status opi_order_pipedream(uint32_t n_ranks, const opipe_allocator *allocator,
                                 opi_order **out_order, opipe_error *err);

#endif /* OPI_BASELINES_H */
