/* SPDX-License-Identifier: Apache-2.0 */
/* Steps: lowered actions, of which the list of every rank is made (partition/lists). */
#ifndef OPI_PLAN_STEP_H
#define OPI_PLAN_STEP_H

#include <stdint.h>

/* Lowered actions: what a rank's interpreter executes. */
enum {
  OPI_ACT_COMPUTE = 0,
  OPI_ACT_RECV = 1,
  OPI_ACT_SEND = 2,
  OPI_ACT_LOAD = 3,
  OPI_ACT_STORE = 4,
  /* training */
  OPI_ACT_POST = 5,    /* the receive of a message is posted */
  OPI_ACT_DRAIN = 6,   /* a message that was sent has left its memory */
  OPI_ACT_REDUCE = 7,  /* gradients of an instance: over its replicas */
  OPI_ACT_UPDATE = 8,  /* ties, norm, clip, optimizer of all instances of the rank */
  OPI_ACT_COPY = 9,    /* rows of a tensor, from one place of the rank to another */
  OPI_ACT_RESERVE = 10 /* a message that its maker writes in place may be written */
};
/* Programs. E: the forward of an evaluation, where it is not F: dropout is off, or an output of the
 * model is made that a training step does not return; there nothing is kept for a backward. */
enum {
  OPI_PROGRAM_F = 0,
  OPI_PROGRAM_B = 1,
  OPI_PROGRAM_I = 2,
  OPI_PROGRAM_W = 3,
  OPI_PROGRAM_E = 4,
  OPI_PROGRAMS = 5
};

typedef struct opi_step {
  uint32_t kind; /* OPI_ACT_* */
  uint32_t stage;
  uint32_t replica;
  uint32_t microbatch;
  uint32_t route;   /* of messages: which one; COPY: route; COMPUTE: action */
  uint32_t pass;    /* COMPUTE */
  uint32_t batch;   /* POST, SEND under the rule GROUPED: so many of them, from this one on, start
                       together; 0: it starts alone, or with one before */
  int32_t lap;      /* a message of a later body (above 0), or of one before (below); training:
                       DRAIN, in mini-batches from that of `next` */
  uint16_t next;    /* training: 1: of the next mini-batch (double-buffered weights) */
  uint16_t version; /* training, COMPUTE: of the weights */
} opi_step;
/* A message's route where it is the schedule's in-flight credit: no bytes, from the last stage to
 * the first. */
#define OPI_ROUTE_CREDIT (UINT32_MAX - 1)

#endif /* OPI_PLAN_STEP_H */
