/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of the weights by name, and what else continues a run: for get, set, save and load.
 * Between steps alone. [control] */
#ifndef OPI_WEIGHTS_TENSORS_H
#define OPI_WEIGHTS_TENSORS_H

#include "partition/memory/weights.h"
#include "runtime/device/device.h"

typedef struct opi_weights opi_weights;

enum {
  OPI_TENSOR_WEIGHT = 0,   /* the initializer's own type */
  OPI_TENSOR_GRADIENT = 1, /* of the last mini-batch, summed, before clipping, loss scale taken out;
                             needs keep_gradients */
  OPI_TENSOR_FIRST = 2,    /* momentum, first moment; the others of the optimizer follow */
  OPI_TENSOR_SECOND = 3,
  OPI_TENSOR_MASTER = 4 /* the weight in fp32, as the optimizer has it */
};
/* Dense row-major fp32 but for WEIGHT. `version` of double-buffered weights, else 0. `set` changes
 * every copy. Errors: NOTFOUND says what is missing; INVALID both byte counts. */
opipe_status opi_weights_get(opi_weights *weights, const char *name, uint32_t state,
                             uint32_t version, void *dst, uint64_t n_bytes, opipe_error *err);
/* Would it be read? The same errors. */
opipe_status opi_weights_find(const opi_weights *weights, const char *name, uint32_t state,
                              uint32_t version, uint64_t n_bytes, opipe_error *err);
opipe_status opi_weights_set(opi_weights *weights, const char *name, uint32_t state,
                             uint32_t version, const void *src, uint64_t n_bytes, opipe_error *err);
/* Parameter `index` that some stage reads, in the table's order; false past the last. */
typedef struct opi_weight_info {
  const opipe_param_source *source;
  uint32_t trained;     /* 1 */
  uint32_t changed;     /* not trained, and not what its initializer says: it was set */
  uint32_t n_copies;    /* ranks that hold it */
  double gradient_norm; /* of the last step, before clipping */
} opi_weight_info;
bool opi_weights_info(const opi_weights *weights, uint32_t index, opi_weight_info *out_info);
uint32_t opi_weights_moments(const opi_weights *weights); /* of the optimizer */
uint32_t opi_weights_versions(const opi_weights *weights);

/* What continues a run besides the tensors. */
typedef struct opi_weights_clock {
  uint64_t n_steps;   /* mini-batches */
  uint64_t n_updates; /* those that were not skipped: the t of Adam and of the learning rate */
  uint64_t n_good;    /* since the loss scale last changed */
  double loss_scale;  /* 1 where there is none */
  uint32_t scales;    /* 1: of a session that scales the loss */
  uint32_t reserved;
} opi_weights_clock;
/* `scales` of a clock from somewhere that does not keep it: all that a session without a loss scale
 * has is 1, and it counts nothing. */
static inline bool opi_weights_clock_scales(const opi_weights_clock *clock) {
  return clock->loss_scale != 1 || clock->n_good != 0;
}
void opi_weights_get_clock(const opi_weights *weights, opi_weights_clock *out_clock);
/* Can gradients be read between steps? */
bool opi_weights_keep_gradients(const opi_weights *weights);
/* Are the weights of all ranks here those of one step? False where an update did not end. */
bool opi_weights_whole(const opi_weights *weights);
/* Ends a hold too. The loss scale of a session is taken over only by another that scales: one that
 * does not has 1, and one that finds none begins with its first. */
void opi_weights_set_clock(opi_weights *weights, const opi_weights_clock *clock);
/* Learning rate of update number `update` (0: the first). Warm-up: lr (update + 1) / warmup for the
 * first `warmup` updates; then constant, or falling to 0 at `total`: linear, or half a cosine. */
double opi_optimizer_lr(const opi_optimizer *optimizer, uint64_t update);
/* Where other sessions hold instances too, all of them make every get, in one order. Does this one
 * write files for all: is rank 0 here? */
bool opi_weights_leads(const opi_weights *weights);
/* How it went in the session that leads, for all: its status, with its reason in *io_err. */
opipe_status opi_weights_agree(opi_weights *weights, opipe_status status, opipe_error *io_err);
/* Bytes of a rank by category, as made; opi_predict_weights says the same before. */
void opi_weights_bytes(const opi_weights *weights, uint32_t rank, opi_weight_bytes *out_bytes);

#endif /* OPI_WEIGHTS_TENSORS_H */
