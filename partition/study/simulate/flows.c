/* SPDX-License-Identifier: Apache-2.0 */
/* Ports: a flow is as slow as the tightest of those that it passes; where flows come or go, those
 * beside them are timed anew. */
#include "partition/study/simulate/flows.h"

/* ---- events: a binary heap ---- */

static bool comes_first(const opi_event *a, const opi_event *b) {
  return a->at != b->at ? a->at < b->at : a->sequence < b->sequence;
}

bool opi_events_put(opi_events *e, double at, uint32_t what, uint32_t version) {
  const opi_event event = {at, e->n_put++, what, version};
  if (!opi_arena_grow(e->arena, (void **)&e->heap, &e->room, e->n + 1, sizeof *e->heap))
    return false;
  uint32_t i = e->n++;
  for (; i > 0 && comes_first(&event, &e->heap[(i - 1) / 2]); i = (i - 1) / 2)
    e->heap[i] = e->heap[(i - 1) / 2];
  e->heap[i] = event;
  return true;
}

bool opi_events_take(opi_events *e, opi_event *out_event) {
  if (e->n == 0)
    return false;
  *out_event = e->heap[0];
  const opi_event last = e->heap[--e->n];
  uint32_t i = 0;
  for (uint32_t child = 1; child < e->n; child = 2 * i + 1) {
    child += child + 1 < e->n && comes_first(&e->heap[child + 1], &e->heap[child]);
    if (!comes_first(&e->heap[child], &last))
      break;
    e->heap[i] = e->heap[child];
    i = child;
  }
  e->heap[i] = last;
  return true;
}

/* ---- flows ---- */

opipe_status opi_flows_open(const opi_play_classes *classes, uint32_t n_flows, opi_events *events,
                            uint32_t first_event, opi_flows *out, opipe_error *err) {
  opi_arena *arena = events->arena;
  *out = (opi_flows){.classes = classes,
                     .active = OPI_ARENA_ARRAY(arena, opi_active, n_flows),
                     .on_port = OPI_ARENA_ARRAY(arena, opi_passing *, classes->n_ports),
                     .n_on = OPI_ARENA_ARRAY(arena, uint32_t, classes->n_ports),
                     .room_on = OPI_ARENA_ARRAY(arena, uint32_t, classes->n_ports),
                     .factor = OPI_ARENA_ARRAY(arena, double, classes->n_ports),
                     .moved = OPI_ARENA_ARRAY(arena, double, classes->n_ports),
                     .events = events,
                     .first_event = first_event};
  return out->active != NULL && out->on_port != NULL && out->n_on != NULL && out->room_on != NULL &&
                 out->factor != NULL && out->moved != NULL
             ? OPIPE_OK
             : opi_fail_nomem(err, n_flows * sizeof *out->active, "a simulation");
}

/* The factor at which everything on a port goes, told anew when a flow comes or goes. In the order
 * of the flows' numbers, so that the same flows always come to the same sum. */
static void share_port(const opi_flows *f, uint32_t port) {
  static const double rounding = 1e-12;
  double demand = 0;
  for (uint32_t i = 0; i < f->n_on[port]; ++i)
    demand += f->on_port[port][i].demand;
  const double capacity = f->classes->capacity[port];
  f->factor[port] = demand > capacity * (1 + rounding) ? capacity / demand : 1;
}

static bool retime(opi_flows *f, uint32_t flow, double now) {
  opi_active *a = &f->active[flow];
  const opi_play_flow *w = &f->classes->flows[flow];
  double factor = 1;
  a->looked_at = f->n_changes;
  for (uint32_t i = 0; i < w->n_uses; ++i) {
    const double port = f->factor[f->classes->uses[w->first + i].port];
    factor = port < factor ? port : factor;
  }
  if (a->factor == factor)
    return true;
  a->left_ns -= (now - a->at) * a->factor;
  a->left_ns = a->left_ns > 0 ? a->left_ns : 0;
  a->at = now;
  a->factor = factor;
  return opi_events_put(f->events, now + a->left_ns / factor, f->first_event + flow, ++a->version);
}

/* Those that share a port with the flow, each once. */
static bool retime_others(opi_flows *f, uint32_t flow, double now) {
  const opi_play_flow *w = &f->classes->flows[flow];
  for (uint32_t i = 0; i < w->n_uses; ++i) {
    const uint32_t port = f->classes->uses[w->first + i].port;
    for (uint32_t k = 0; k < f->n_on[port]; ++k) {
      const uint32_t other = f->on_port[port][k].flow;
      if (other != flow && f->active[other].looked_at != f->n_changes && !retime(f, other, now))
        return false;
    }
  }
  return true;
}

static bool enter(opi_flows *f, uint32_t flow, const opi_play_use *use) {
  const uint32_t port = use->port;
  if (!opi_arena_grow(f->events->arena, (void **)&f->on_port[port], &f->room_on[port],
                      f->n_on[port] + 1, sizeof **f->on_port))
    return false;
  uint32_t at = f->n_on[port]++;
  for (; at > 0 && f->on_port[port][at - 1].flow > flow; --at)
    f->on_port[port][at] = f->on_port[port][at - 1];
  f->on_port[port][at] = (opi_passing){flow, use->demand};
  share_port(f, port);
  return true;
}

static void leave(opi_flows *f, uint32_t flow, uint32_t port) {
  uint32_t at = 0;
  while (f->on_port[port][at].flow != flow)
    ++at;
  for (--f->n_on[port]; at < f->n_on[port]; ++at)
    f->on_port[port][at] = f->on_port[port][at + 1];
  share_port(f, port);
}

bool opi_flows_start(opi_flows *f, uint32_t flow, double now) {
  const opi_play_flow *w = &f->classes->flows[flow];
  opi_active *a = &f->active[flow];
  a->left_ns = w->work_ns;
  a->at = now;
  a->factor = 0; /* none yet */
  a->on = true;
  ++f->n_changes;
  for (uint32_t i = 0; i < w->n_uses; ++i) {
    if (!enter(f, flow, &f->classes->uses[w->first + i]))
      return false;
  }
  return retime(f, flow, now) && retime_others(f, flow, now);
}

bool opi_flows_end(opi_flows *f, uint32_t flow, uint32_t version, double now, bool *out_failed) {
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
  *out_failed = !retime_others(f, flow, now);
  return true;
}
