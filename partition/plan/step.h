/* SPDX-License-Identifier: Apache-2.0 */
/* Steps: lowered actions, which make up the list of every rank (partition/lists). */
#ifndef OPI_PLAN_STEP_H
#define OPI_PLAN_STEP_H

#include <stdint.h>

/* Kinds of steps, as a rank's interpreter executes them. */
enum {
  OPI_ACT_COMPUTE = 0,
  OPI_ACT_RECV = 1,
  OPI_ACT_SEND = 2,
  OPI_ACT_LOAD = 3,
  OPI_ACT_STORE = 4,
  /* training */
  OPI_ACT_POST = 5,     /* posts the receive of a message */
  OPI_ACT_DRAIN = 6,    /* waits until a sent message has left its memory */
  OPI_ACT_REDUCE = 7,   /* sums an instance's gradients over its replicas */
  OPI_ACT_UPDATE = 8,   /* ties, norm, clip and optimizer of all instances of the rank */
  OPI_ACT_COPY = 9,     /* copies rows of a tensor from one place of the rank to another */
  OPI_ACT_RESERVE = 10, /* allows the producer of a message to write it in place */
  /* sums over a group of ranks inside a stage, between stretches (program/stretches.h) */
  OPI_ACT_SUM = 11,   /* comes to a sum */
  OPI_ACT_AWAIT = 12, /* waits for its result */
  /* stashes in the host's memory (lists/offloads.h) */
  OPI_ACT_OFFLOAD = 13, /* begins to copy the tensors of a move to the host's memory */
  OPI_ACT_LEAVE = 14,   /* waits until they have left the device's */
  OPI_ACT_RELOAD = 15,  /* begins to copy them back */
  OPI_ACT_RETURN = 16   /* waits until they have returned */
};
/* Programs. E is the forward of an evaluation where it differs from F, because dropout is off or
 * the model has outputs that a training step does not return; it keeps nothing for a backward. */
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
  uint32_t route; /* messages: index of the message; COPY: route; COMPUTE: action; REDUCE, SUM,
                     AWAIT: meeting, OPIPE_NONE: of one rank alone; OFFLOAD .. RETURN: move */
  uint32_t pass;  /* COMPUTE */
  uint32_t batch; /* POST, SEND under GROUPED: number of messages that start together, from this one
                     on; 0: starts alone, or with an earlier one */
  int32_t lap;    /* messages of a later body (above 0) or an earlier one (below); training DRAIN:
                     offset in mini-batches from `next` */
  uint16_t next;  /* training: 1: belongs to the next mini-batch (double-buffered weights) */
  uint16_t version; /* training COMPUTE: version of the weights */
} opi_step;
/* Route of the schedule's in-flight credits: messages without bytes from the last stage to the
 * first. */
#define OPI_ROUTE_CREDIT (UINT32_MAX - 1)

#endif /* OPI_PLAN_STEP_H */
