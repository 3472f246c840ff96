/* SPDX-License-Identifier: Apache-2.0 */
/* Flows in progress, and how ports slow them down. */
#ifndef OPI_FLOWS_H
#define OPI_FLOWS_H

#include "partition/plan/clock.h"
#include "partition/study/simulate/classes.h"

typedef struct opi_active {
  double left_ns, factor, at; /* remaining work at time `at`, and speed relative to the flow alone
                               */
  uint32_t version;           /* of its end */
  bool on;
  uint64_t looked_at; /* the change in which it was last retimed */
} opi_active;

/* A flow that passes a port. */
typedef struct opi_passing {
  uint32_t flow;
  double demand;
} opi_passing;

typedef struct opi_flows {
  const opi_play_classes *classes;
  opi_active *active;       /* [flows] */
  opi_passing **on_port;    /* [n_ports] flows on it now, by number */
  uint32_t *n_on, *room_on; /* [n_ports] */
  double *factor;           /* [n_ports] speed of everything on it */
  double *moved;            /* [n_ports] demand x time of flows that ended */
  opi_clock *clock;         /* has a flow's end due under the flow's number */
  uint64_t n_changes;
} opi_flows;
opipe_status opi_flows_open(const opi_play_classes *classes, uint32_t n_flows, opi_clock *clock,
                            opi_flows *out_flows, opipe_error *err);
/* The flow must not be in progress. If memory runs out, the clock fails, here and in opi_flows_end.
 */
void opi_flows_start(opi_flows *flows, uint32_t flow, double now);
/* An end of the flow is due. Returns whether the flow has ended and left its ports; an end
 * scheduled before its factor changed does not count. */
bool opi_flows_end(opi_flows *flows, uint32_t flow, uint32_t version, double now);

#endif /* OPI_FLOWS_H */
