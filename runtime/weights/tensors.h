/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of the weights by name, and the other state that a run continues from, for get, set, save
 * and load. Only between steps. [control] */
#ifndef OPI_WEIGHTS_TENSORS_H
#define OPI_WEIGHTS_TENSORS_H

#include "partition/memory/weights.h"
#include "runtime/device/device.h"

typedef struct opi_weights opi_weights;

enum {
  OPI_TENSOR_WEIGHT = 0,   /* the initializer's own type */
  OPI_TENSOR_GRADIENT = 1, /* of the last mini-batch, summed, before clipping, loss scale taken out;
                             needs keep_gradients */
  OPI_TENSOR_FIRST = 2,    /* momentum or first moment; the optimizer's other moments follow */
  OPI_TENSOR_SECOND = 3,
  OPI_TENSOR_MASTER = 4 /* the optimizer's fp32 copy of the weight */
};
/* Tensors are dense, row-major and fp32, except WEIGHT. `version`: of double-buffered weights, else
 * 0. `set` changes every copy. Errors: NOTFOUND names the missing tensor; INVALID both sizes. */
opipe_status opi_weights_get(opi_weights *weights, const char *name, uint32_t state,
                             uint32_t version, void *dst, uint64_t n_bytes, opipe_error *err);
/* Checks whether get would succeed, with its errors. */
opipe_status opi_weights_find(const opi_weights *weights, const char *name, uint32_t state,
                              uint32_t version, uint64_t n_bytes, opipe_error *err);
/* Gets a parameter that this session owns without the other sessions, which need not call. */
opipe_status opi_weights_get_own(opi_weights *weights, const char *name, uint32_t state,
                                 uint32_t version, void *dst, uint64_t n_bytes, opipe_error *err);
/* Do several sessions have parts of it? Then all of them make the same gets. */
bool opi_weights_in_parts(const opi_weights *weights, const char *name, uint32_t state);
opipe_status opi_weights_set(opi_weights *weights, const char *name, uint32_t state,
                             uint32_t version, const void *src, uint64_t n_bytes, opipe_error *err);
/* Parameter `index` of those that a stage reads, in the table's order. False: there are no more. */
typedef struct opi_weight_info {
  const opipe_param_source *source;
  uint32_t trained;     /* 1: it is trained */
  uint32_t changed;     /* 1: it is not trained, and was set */
  uint32_t n_copies;    /* ranks that hold it */
  uint32_t n_here;      /* of these in this session */
  uint32_t owner;       /* the first of these */
  uint32_t owned;       /* 1: the first of these is in this session; one session owns each */
  double gradient_norm; /* of the last step, before clipping */
} opi_weight_info;
bool opi_weights_info(const opi_weights *weights, uint32_t index, opi_weight_info *out_info);
uint32_t opi_weights_moments(const opi_weights *weights); /* of the optimizer */
uint32_t opi_weights_versions(const opi_weights *weights);

/* The numbers that a run continues from, besides the tensors. */
typedef struct opi_weights_clock {
  uint64_t n_steps;   /* mini-batches */
  uint64_t n_updates; /* steps that were not skipped: the t of Adam and of the learning rate */
  uint64_t n_good;    /* good steps since the loss scale last changed */
  double loss_scale;  /* 1 without loss scaling */
  uint32_t scales;    /* 1: the session scales the loss */
  uint32_t reserved;
} opi_weights_clock;
/* `scales` of a clock that was stored without it: a session without loss scaling has scale 1 and no
 * good steps. */
static inline bool opi_weights_clock_scales(const opi_weights_clock *clock) {
  return clock->loss_scale != 1 || clock->n_good != 0;
}
void opi_weights_get_clock(const opi_weights *weights, opi_weights_clock *out_clock);
/* Can gradients be read between steps? */
bool opi_weights_keep_gradients(const opi_weights *weights);
/* Do all ranks here have the weights of the same step? False if an update did not end. */
bool opi_weights_whole(const opi_weights *weights);
/* Also ends a hold. The loss scale is taken over only from a session that scales to one that does.
 * Otherwise a session that scales begins with its first scale, and one that does not has 1. */
void opi_weights_set_clock(opi_weights *weights, const opi_weights_clock *clock);
/* Learning rate of update number `update` (0: the first). It warms up by lr (update + 1) / warmup
 * for `warmup` updates, then is constant or falls to 0 at `total`, linearly or by half a cosine. */
double opi_optimizer_lr(const opi_optimizer *optimizer, uint64_t update);
/* Does this session write files for all, because rank 0 is here? If other sessions hold instances
 * too, all of them make the same gets in the same order. */
bool opi_weights_leads(const opi_weights *weights);
/* Brings `data` of rank `holder`, which one session has, to all sessions. had: its status there,
 * with the reason in *io_err. All sessions make the same calls. */
opipe_status opi_weights_bring(opi_weights *weights, uint32_t holder, void *data, uint64_t n_bytes,
                               opipe_status had, opipe_error *io_err);
/* Gives all sessions the status of the one that leads, with its reason in *io_err. */
opipe_status opi_weights_agree(opi_weights *weights, opipe_status status, opipe_error *io_err);
/* Bytes of a rank by category; equal to those of opi_predict_weights. */
void opi_weights_bytes(const opi_weights *weights, uint32_t rank, opi_weight_bytes *out_bytes);

#endif /* OPI_WEIGHTS_TENSORS_H */
