/* SPDX-License-Identifier: Apache-2.0 */
/* Steps that the processes of a group take together. Inside runtime/checkpoint. */
#ifndef OPI_CHECKPOINT_GROUP_H
#define OPI_CHECKPOINT_GROUP_H

#include "runtime/checkpoint/checkpoint.h"

/* A process's part in a step, and its use of the others' parts. */
typedef struct opi_together_part {
  const char *name; /* of the step */
  uint32_t flags;   /* OPIPE_GATHER_* */
  const void *data;
  uint64_t n_bytes;
  opipe_status (*take)(void *ctx, uint32_t rank, const void *data, uint64_t n_bytes);
  void *take_ctx;
} opi_together_part;

/* own: this process's status, with its reason in *io_err. Returns the answer of all. */
static inline opipe_status opi_group_meet(const opi_checkpoint_group *group,
                                          const opi_together_part *part, opipe_status own,
                                          opipe_error *io_err) {
  const opipe_error why = *io_err;
  const opipe_gather_params call = {.struct_size = (uint32_t)sizeof call,
                                    .flags = part->flags,
                                    .name = part->name,
                                    .data = own < 0 ? NULL : part->data,
                                    .n_bytes = own < 0 ? 0 : part->n_bytes,
                                    .timeout_ns = UINT64_MAX,
                                    .reason = own < 0 ? why.message : NULL,
                                    .refused = own < 0 ? own : OPIPE_OK,
                                    .part = part->take,
                                    .part_ctx = part->take_ctx};
  return group->gather(group->ctx, &call, io_err);
}

#endif /* OPI_CHECKPOINT_GROUP_H */
