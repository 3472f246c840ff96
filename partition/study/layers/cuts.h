/* SPDX-License-Identifier: Apache-2.0 */
/* Crossings between stages as a plan's file records them. */
#ifndef OPI_LAYERS_CUTS_H
#define OPI_LAYERS_CUTS_H

#include <jansson.h>

#include "loader/base/base.h"

/* All activations between two stages. */
typedef struct opi_plan_cut {
  uint32_t src_stage, dst_stage;
  uint32_t n_tensors;
  uint64_t n_bytes;       /* per micro-batch */
  uint64_t message_bytes; /* of the largest message */
} opi_plan_cut;

/* Crossings of a plan's file, by src, dst; in `arena`. *out_known: the file records them; older
 * files do not. Errors: INVALID names `what` and the entry. */
opipe_status opi_plan_cuts_read(const json_t *root, const char *what, uint32_t n_stages,
                                opi_arena *arena, opi_plan_cut **out_cuts, uint32_t *out_n,
                                bool *out_known, opipe_error *err);

/* Crossings of one plan in a comparison. known: as above; cuts [n]. */
typedef struct opi_plan_cuts {
  const opi_plan_cut *cuts;
  uint32_t n;
  bool known;
} opi_plan_cuts;
void opi_plan_cuts_print(const opi_plan_cuts sides[2], int width, opi_text *text);
/* An array of {"from", "to", "bytes": {"a", "b"}, "tensors": {"a", "b"}}: null if the file does not
 * record crossings, 0 if nothing crosses. */
void opi_plan_cuts_put(const opi_plan_cuts sides[2], opi_text *text);

#endif /* OPI_LAYERS_CUTS_H */
