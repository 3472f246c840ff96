/* SPDX-License-Identifier: Apache-2.0 */
/* What is on its way at one time, and how ports slow it down. */
#ifndef OPI_FLOWS_H
#define OPI_FLOWS_H

#include "partition/study/simulate/classes.h"

/* Events by time; those of one time in the order in which they were put. */
typedef struct opi_event {
  double at;
  uint64_t sequence;
  uint32_t what, version; /* what: a rank, or the number of ranks and a flow */
} opi_event;

typedef struct opi_events {
  opi_arena *arena;
  opi_event *heap;
  uint32_t n, room;
  uint64_t n_put;
} opi_events;
bool opi_events_put(opi_events *events, double at, uint32_t what, uint32_t version);
bool opi_events_take(opi_events *events, opi_event *out_event); /* false: there is none */

typedef struct opi_active {
  double left_ns, factor, at; /* of its work, at the time `at`, at which it is done `factor` as fast
                                 as alone */
  uint32_t version;           /* of its end's event */
  bool on;
  uint64_t looked_at; /* in which change it was timed anew */
} opi_active;

/* A flow that passes a port. */
typedef struct opi_passing {
  uint32_t flow;
  double demand;
} opi_passing;

typedef struct opi_flows {
  const opi_play_classes *classes;
  opi_active *active;       /* [flows] */
  opi_passing **on_port;    /* [n_ports] flows that pass it now, by their numbers */
  uint32_t *n_on, *room_on; /* [n_ports] */
  double *factor;           /* [n_ports] at which everything on it goes */
  double *moved;            /* [n_ports] demand x time, of those that ended */
  opi_events *events;
  uint32_t first_event; /* of flow 0 */
  uint64_t n_changes;
} opi_flows;
opipe_status opi_flows_open(const opi_play_classes *classes, uint32_t n_flows, opi_events *events,
                            uint32_t first_event, opi_flows *out_flows, opipe_error *err);
/* It must not be on. False: out of memory. */
bool opi_flows_start(opi_flows *flows, uint32_t flow, double now);
/* An event of it: has it ended (then it is off), or does it take longer by now? */
bool opi_flows_end(opi_flows *flows, uint32_t flow, uint32_t version, double now, bool *out_failed);

#endif /* OPI_FLOWS_H */
