/* SPDX-License-Identifier: Apache-2.0 */
/* Stashes that wait in the host's memory: which tensors can, and the cut in which they do.
 *
 *   before   F ──cell──────────────────────────────► B
 *   after    F ──cell ─ route (offload) ─► cell' ──► B
 *
 * A tensor that a stage's forward makes or receives and its backward reads is two cells: one that
 * the forward has, one that the backward reads. The route between them is a move by way of the
 * host's memory. Where a backward follows its forward too soon for that, both are one place
 * (lists/offloads.h decides for each micro-batch). Numbers are the same either way. */
#ifndef OPI_OFFLOADS_H
#define OPI_OFFLOADS_H

#include "partition/program/model.h"

/* Refuses what offloads cannot be combined with, and devices for which they are of no use, by name.
 * Errors: UNSUPPORTED. */
opipe_status opi_offload_check(const opi_decision *plan, opipe_error *err);
/* Lists the names of the tensors of a model, not split yet, that match the glob, those with most
 * bytes first, in `arena`. Errors: NOTFOUND: there is none. */
opipe_status opi_offload_match(const opi_decision *plan, const opi_cut_model *model,
                               const char *glob, opi_arena *arena, const char ***out_names,
                               uint32_t *out_n, opipe_error *err);
/* Splits the cells of the plan's tensors in all row classes. Errors: INVALID: a name that is no
 * such tensor's. */
opipe_status opi_offload_split(const opi_decision *plan, opi_cut_model *model, opipe_error *err);

#endif /* OPI_OFFLOADS_H */
