/* SPDX-License-Identifier: Apache-2.0 */
/* Ports: a flow is as slow as the tightest port it passes. When flows start or end, those that
 * share a port are timed anew. */
#include "partition/study/simulate/flows.h"

opipe_status opi_flows_open(const opi_play_classes *classes, uint32_t n_flows, opi_clock *clock,
                            opi_flows *out, opipe_error *err) {
  opi_arena *arena = clock->arena;
  *out = (opi_flows){.classes = classes,
                     .active = OPI_ARENA_ARRAY(arena, opi_active, n_flows),
                     .on_port = OPI_ARENA_ARRAY(arena, opi_passing *, classes->n_ports),
                     .n_on = OPI_ARENA_ARRAY(arena, uint32_t, classes->n_ports),
                     .room_on = OPI_ARENA_ARRAY(arena, uint32_t, classes->n_ports),
                     .factor = OPI_ARENA_ARRAY(arena, double, classes->n_ports),
                     .moved = OPI_ARENA_ARRAY(arena, double, classes->n_ports),
                     .clock = clock};
  return out->active != NULL && out->on_port != NULL && out->n_on != NULL && out->room_on != NULL &&
                 out->factor != NULL && out->moved != NULL
             ? OPIPE_OK
             : opi_fail_nomem(err, n_flows * sizeof *out->active, "a simulation");
}

/* Recomputes the factor at which everything on a port proceeds, when a flow starts or ends. Sums in
 * the order of the flows' numbers, so that equal flows give equal sums. */
static void share_port(const opi_flows *f, uint32_t port) {
  static const double rounding = 1e-12;
  double demand = 0;
  for (uint32_t i = 0; i < f->n_on[port]; ++i)
    demand += f->on_port[port][i].demand;
  const double capacity = f->classes->capacity[port];
  f->factor[port] = demand > capacity * (1 + rounding) ? capacity / demand : 1;
}

static void retime(opi_flows *f, uint32_t flow, double now) {
  opi_active *a = &f->active[flow];
  const opi_play_flow *w = &f->classes->flows[flow];
  double factor = 1;
  a->looked_at = f->n_changes;
  for (uint32_t i = 0; i < w->n_uses; ++i) {
    const double port = f->factor[f->classes->uses[w->first + i].port];
    factor = port < factor ? port : factor;
  }
  if (a->factor == factor)
    return;
  a->left_ns -= (now - a->at) * a->factor;
  a->left_ns = a->left_ns > 0 ? a->left_ns : 0;
  a->at = now;
  a->factor = factor;
  opi_clock_put(f->clock, now + a->left_ns / factor, flow, ++a->version);
}

/* Retimes the flows that share a port with this one, each once. */
static void retime_others(opi_flows *f, uint32_t flow, double now) {
  const opi_play_flow *w = &f->classes->flows[flow];
  for (uint32_t i = 0; i < w->n_uses; ++i) {
    const uint32_t port = f->classes->uses[w->first + i].port;
    for (uint32_t k = 0; k < f->n_on[port]; ++k) {
      const uint32_t other = f->on_port[port][k].flow;
      if (other != flow && f->active[other].looked_at != f->n_changes)
        retime(f, other, now);
    }
  }
}

static void enter(opi_flows *f, uint32_t flow, const opi_play_use *use) {
  const uint32_t port = use->port;
  if (!opi_arena_grow(f->clock->arena, (void **)&f->on_port[port], &f->room_on[port],
                      f->n_on[port] + 1, sizeof **f->on_port)) {
    f->clock->failed = true;
    return;
  }
  uint32_t at = f->n_on[port]++;
  for (; at > 0 && f->on_port[port][at - 1].flow > flow; --at)
    f->on_port[port][at] = f->on_port[port][at - 1];
  f->on_port[port][at] = (opi_passing){flow, use->demand};
  share_port(f, port);
}

static void leave(opi_flows *f, uint32_t flow, uint32_t port) {
  uint32_t at = 0;
  while (f->on_port[port][at].flow != flow)
    ++at;
  for (--f->n_on[port]; at < f->n_on[port]; ++at)
    f->on_port[port][at] = f->on_port[port][at + 1];
  share_port(f, port);
}

void opi_flows_start(opi_flows *f, uint32_t flow, double now) {
  const opi_play_flow *w = &f->classes->flows[flow];
  opi_active *a = &f->active[flow];
  a->left_ns = w->work_ns;
  a->at = now;
  a->factor = 0; /* none yet */
  a->on = true;
  ++f->n_changes;
  for (uint32_t i = 0; i < w->n_uses && !f->clock->failed; ++i)
    enter(f, flow, &f->classes->uses[w->first + i]);
  if (f->clock->failed)
    return;
  retime(f, flow, now);
  retime_others(f, flow, now);
}

bool opi_flows_end(opi_flows *f, uint32_t flow, uint32_t version, double now) {
  const opi_play_flow *w = &f->classes->flows[flow];
  opi_active *a = &f->active[flow];
  if (!a->on || version != a->version)
    return false;
  a->on = false;
  ++f->n_changes;
  for (uint32_t i = 0; i < w->n_uses; ++i) {
    const opi_play_use *use = &f->classes->uses[w->first + i];
    leave(f, flow, use->port);
    f->moved[use->port] += use->demand * w->work_ns;
  }
  retime_others(f, flow, now);
  return true;
}
