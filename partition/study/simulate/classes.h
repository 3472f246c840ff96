/* SPDX-License-Identifier: Apache-2.0 */
/* Copies that are equal up to names, and the load of each played stream and group on every port. */
#ifndef OPI_CLASSES_H
#define OPI_CLASSES_H

#include "partition/study/simulate/play.h"

/* A port that a flow passes, and the flow's load on it. Ports: those of the cluster outwards,
 * inwards (bytes per ns), then two of every played rank (1 is all of its device), then its two
 * directions to its host (the same). */
typedef struct opi_play_use {
  uint32_t port;
  double demand;
} opi_play_use;

/* A stream, or a kind of collective, of one class of copies. */
typedef struct opi_play_flow {
  double work_ns;                    /* of one message or collective, alone */
  double latency_ns;                 /* from the end of the flow to the arrival */
  double tier_bytes[OPI_TIERS_MOST]; /* bytes that one of it moves out through ports of each tier,
                                        over all copies of its class */
  uint32_t first, n_uses;
} opi_play_flow;

typedef struct opi_play_classes {
  uint32_t n_classes, n_copies, n_ports;        /* ports: as above */
  uint32_t *class_of, *class_size, *first_copy; /* [copies]; [n_classes]; [n_classes] */
  uint32_t *joined;     /* [4 * n_classes] kind of group (over_tensor + 2 * over_data), class: the
                           lowest class that collectives of that kind join it with */
  opi_play_flow *flows; /* [(n_streams + n_groups) * n_classes] */
  opi_play_use *uses;
  double *capacity; /* [n_ports] */
} opi_play_classes;

/* Allocates in `arena`. Two copies are in one class if, in the coarsest equitable partition of
 * ranks and ports, all of their ranks are in the same classes: all members of a class then see the
 * same at the same time, and one can be played for all (Paige and Tarjan 1987: relational coarsest
 * partition; here by rounds of hashes). Errors: INVALID, devices; NOMEM. */
opipe_status opi_play_classify(const opi_play *play, opi_arena *arena,
                               opi_play_classes *out_classes, opipe_error *err);

#endif /* OPI_CLASSES_H */
