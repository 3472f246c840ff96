/* SPDX-License-Identifier: Apache-2.0 */
/* Loads of the stages of a layered model, from layers, cuts and widths, for playing orders. */
#ifndef OPI_STAGE_LOADS_H
#define OPI_STAGE_LOADS_H

#include "partition/study/layers/layers.h"
#include "partition/study/simulate/order_play.h"

/* The stash that a stage keeps of a micro-batch between its forward and its backward. */
enum {
  OPI_KEEP_ALL = 0, /* every layer's stash */
  OPI_KEEP_STAGE,   /* its input; the rest is recomputed before the backward */
  OPI_KEEP_LAYERS   /* the input of every layer; one layer's stash at a time is recomputed */
};

/* Borrowed arrays. */
typedef struct opi_stage_question {
  const opi_layers *layers;
  const uint32_t *ends; /* [n_stages + 1] stage s: layers [ends[s], ends[s + 1]) */
  const uint32_t *keep; /* [n_stages] OPI_KEEP_*; NULL: all */
  uint32_t n_stages;
  uint32_t width;        /* devices of a tensor group, at least 1 */
  double samples;        /* of a micro-batch, on each replica */
  double state_bytes;    /* on a device per byte of its parameters: weights, gradients, optimizer's
                            state */
  double gradient_bytes; /* summed over replicas per byte of parameters */
  double update_bytes;   /* bytes that a step reads and writes per byte of parameters */
  double bandwidth;      /* of the device's memory, bytes per second; 0: steps take no time */
} opi_stage_question;

/* Fills out_loads [n_stages]. Each of n tensor ranks has 1 / n of the divided part of a layer
 * (opi_layer.width_share; all of its parameters if it divides any), and all of the rest. Errors:
 * INVALID, a stage without layers, numbers out of range: stage and number. */
opipe_status opi_stage_loads(const opi_stage_question *question, opi_stage_load *out_loads,
                             opipe_error *err);

#endif /* OPI_STAGE_LOADS_H */
