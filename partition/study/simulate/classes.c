/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds of colouring. A copy's colour is a hash of the colours of the ports that its streams and
 * groups pass and of the copies that its collectives join it with; a port's colour, of the copies
 * that pass it. Ends when no class splits any more. */
#include "partition/study/simulate/classes.h"

#include <stdlib.h>
#include <string.h>

/* Load of one group of copies on one port by a collective. */
typedef struct usage {
  uint32_t port;
  double n_bytes;
} usage;

typedef struct colouring {
  const opi_play *play;
  opi_play_classes *out;
  opi_arena *arena;
  uint32_t n_copies, n_ports; /* ports: of the cluster, both ways */
  uint64_t *copy, *port;      /* colours: [n_copies], [n_ports] */
  uint64_t *next_copy, *next_port;
  uint64_t *sorted; /* [the larger of both] */
  usage *usages;
  uint32_t *usage_first; /* [n_groups * n_copies + 1]: of group g, copy c (the lowest of the copies
                            it joins; the others have none) */
  double *group_ns;      /* [n_groups] the collectives of one kind together */
  uint32_t n_usages, room_usages;
  opipe_error *err;
} colouring;

static uint64_t mix(uint64_t a, uint64_t b) { /* splitmix64 of both */
  uint64_t x = a * UINT64_C(0x9e3779b97f4a7c15) + b;
  x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
  return x ^ x >> 31;
}

static uint64_t bits_of(double value) {
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static uint32_t device_of(const colouring *c, uint32_t list, uint32_t copy) {
  return c->play->device[(size_t)list * c->n_copies + copy];
}

/* The copies that a group joins with `copy`: every `*out_step`-th, starting with the first. */
static uint32_t joined_by(const opi_play *p, uint32_t kind, uint32_t copy, uint32_t *out_step,
                          uint32_t *out_n) {
  const uint32_t tensor = copy % p->n_tensor, data = copy / p->n_tensor;
  static const bool over[4][2] = {{false, false}, {true, false}, {false, true}, {true, true}};
  *out_step = over[kind][0] ? 1 : p->n_tensor;
  *out_n = (over[kind][0] ? p->n_tensor : 1) * (over[kind][1] ? p->n_data : 1);
  return (over[kind][1] ? 0 : data * p->n_tensor) + (over[kind][0] ? 0 : tensor);
}

static uint32_t kind_of(const opi_play_group *g) {
  return (g->over_tensor ? 1u : 0u) + (g->over_data ? 2u : 0u);
}

/* Lists the ports that one copy's stream passes: out of src, into dst; inward ports start at
 * n_ports / 2. Returns how many. */
static uint32_t path_of(const colouring *c, uint32_t stream, uint32_t copy, uint32_t *out_ports) {
  const opi_play_stream *s = &c->play->streams[stream];
  uint32_t n_out = 0;
  const uint32_t n = opi_cluster_path(c->play->cluster, device_of(c, s->src, copy),
                                      device_of(c, s->dst, copy), out_ports, &n_out);
  for (uint32_t i = n_out; i < n; ++i)
    out_ports[i] += c->n_ports / 2;
  return n;
}

/* ---- loads of collectives ---- */

static opipe_status add_usage(colouring *c, uint32_t port, double n_bytes) {
  if (!opi_arena_grow(c->arena, (void **)&c->usages, &c->room_usages, c->n_usages + 1,
                      sizeof *c->usages))
    return opi_fail_nomem(c->err, c->n_usages * sizeof *c->usages, "a simulation");
  c->usages[c->n_usages++] = (usage){port, n_bytes};
  return OPIPE_OK;
}

/* Lists the devices of a group's collective in `out`. Returns how many. */
static uint32_t members_of(const colouring *c, const opi_play_group *g, uint32_t copy,
                           uint32_t *out) {
  uint32_t step = 0, n_joined = 0, n = 0;
  const uint32_t first = joined_by(c->play, kind_of(g), copy, &step, &n_joined);
  for (uint32_t l = 0; l < g->n_lists; ++l) {
    for (uint32_t i = 0; i < n_joined; ++i)
      out[n++] = device_of(c, c->play->group_lists[g->first + l], first + i * step);
  }
  return n;
}

/* A copy to or from a host takes as long as that of the slowest copy of the list. */
static opipe_status use_host(colouring *c, uint32_t group) {
  const opi_play *p = c->play;
  const opi_play_group *g = &p->groups[group];
  for (uint32_t copy = 0; copy < c->n_copies; ++copy) {
    const uint32_t device = device_of(c, p->group_lists[g->first], copy);
    const opi_device_class *class_ = &p->cluster->classes[p->cluster->class_of[device]];
    const double own =
        p->host_bytes_per_ns == NULL ? 0 : p->host_bytes_per_ns[p->group_lists[g->first]];
    const double rate = class_->host_bandwidth > 0 ? class_->host_bandwidth * 1e-9 : own;
    const double ns = rate > 0 ? (double)g->n_bytes / rate : 0;
    c->usage_first[group * c->n_copies + copy] = c->n_usages;
    c->group_ns[group] = ns > c->group_ns[group] ? ns : c->group_ns[group];
    if (rate <= 0) {
      return opi_fail(c->err, OPIPE_E_INVALID,
                      "device %u (%s) of rank %u offloads %llu bytes, but the cluster gives no "
                      "\"host_bandwidth\" of it",
                      device, class_->name == NULL ? "without a name" : class_->name,
                      p->group_lists[g->first], (unsigned long long)g->n_bytes);
    }
  }
  return OPIPE_OK;
}

static opipe_status use_group(colouring *c, uint32_t group, uint32_t *devices, double *use) {
  const opi_play *p = c->play;
  const opi_play_group *g = &p->groups[group];
  if (g->op >= OPI_OPS)
    return use_host(c, group);
  if (g->times == 0) { /* a barrier moves nothing */
    for (uint32_t copy = 0; copy < c->n_copies; ++copy)
      c->usage_first[group * c->n_copies + copy] = c->n_usages;
    return OPIPE_OK;
  }
  uint32_t n = 0, n_groups = 0, step = 0, n_joined = 0;
  for (uint32_t copy = 0; copy < c->n_copies; ++copy) {
    c->usage_first[group * c->n_copies + copy] = c->n_usages;
    if (joined_by(p, kind_of(g), copy, &step, &n_joined) != copy)
      continue;
    n = members_of(c, g, copy, devices + (size_t)n_groups * g->n_lists * n_joined);
    const opi_groups one = {devices + (size_t)n_groups * n, n, 1};
    ++n_groups;
    memset(use, 0, c->n_ports * sizeof *use);
    double alone_ns = 0;
    OPI_TRY(opi_cluster_collective_use(p->cluster, g->op, g->algorithm, &one, g->n_bytes,
                                       c->arena->allocator, &alone_ns, use, c->err));
    for (uint32_t i = 0; i < c->n_ports; ++i) {
      if (use[i] > 0)
        OPI_TRY(add_usage(c, i, use[i] * g->times));
    }
  }
  const opi_groups all = {devices, n, n_groups};
  OPI_TRY(opi_cluster_collective_ns(p->cluster, g->op, g->algorithm, &all, g->n_bytes,
                                    c->arena->allocator, &c->group_ns[group], c->err));
  c->group_ns[group] *= g->times;
  return OPIPE_OK;
}

static opipe_status use_groups(colouring *c) {
  const opi_play *p = c->play;
  const size_t n = (size_t)p->n_groups * c->n_copies;
  uint32_t *devices = OPI_ARENA_ARRAY(c->arena, uint32_t, (size_t)p->n_lists * c->n_copies);
  double *use = OPI_ARENA_ARRAY(c->arena, double, c->n_ports);
  c->usage_first = OPI_ARENA_ARRAY(c->arena, uint32_t, n + 1);
  c->group_ns = OPI_ARENA_ARRAY(c->arena, double, p->n_groups);
  if (devices == NULL || use == NULL || c->usage_first == NULL || c->group_ns == NULL)
    return opi_fail_nomem(c->err, n * sizeof(uint32_t), "a simulation");
  for (uint32_t g = 0; g < p->n_groups; ++g)
    OPI_TRY(use_group(c, g, devices, use));
  c->usage_first[n] = c->n_usages;
  return OPIPE_OK;
}

/* ---- colours ---- */

static void colour_streams(const colouring *c) {
  uint32_t ports[2 * OPI_TIERS_MOST];
  for (uint32_t s = 0; s < c->play->n_streams; ++s) {
    for (uint32_t copy = 0; copy < c->n_copies; ++copy) {
      const uint32_t n = path_of(c, s, copy, ports);
      uint64_t path = mix(s, n);
      for (uint32_t i = 0; i < n; ++i) {
        path = mix(path, c->port[ports[i]]);
        c->next_port[ports[i]] += mix(mix(s, c->copy[copy]), i);
      }
      c->next_copy[copy] += path;
    }
  }
}

static void colour_groups(const colouring *c) {
  const opi_play *p = c->play;
  for (uint32_t g = 0; g < p->n_groups; ++g) {
    for (uint32_t copy = 0; copy < c->n_copies; ++copy) {
      const uint32_t at = g * c->n_copies + copy;
      uint32_t step = 0, n = 0;
      uint64_t together = 0, passed = 0;
      if (joined_by(p, kind_of(&p->groups[g]), copy, &step, &n) != copy)
        continue;
      for (uint32_t i = 0; i < n; ++i)
        together += mix(g, c->copy[copy + i * step]);
      for (uint32_t u = c->usage_first[at]; u < c->usage_first[at + 1]; ++u) {
        const usage *x = &c->usages[u];
        passed += mix(c->port[x->port], bits_of(x->n_bytes));
        c->next_port[x->port] += mix(together, bits_of(x->n_bytes));
      }
      for (uint32_t i = 0; i < n; ++i)
        c->next_copy[copy + i * step] += mix(mix(g, together), passed);
    }
  }
}

static int compare_colours(const void *left, const void *right) {
  const uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
  return a < b ? -1 : a > b;
}

static uint32_t count_colours(const colouring *c, const uint64_t *colours, uint32_t n) {
  uint32_t n_colours = 0;
  memcpy(c->sorted, colours, n * sizeof *colours);
  qsort(c->sorted, n, sizeof *c->sorted, compare_colours);
  for (uint32_t i = 0; i < n; ++i)
    n_colours += i == 0 || c->sorted[i] != c->sorted[i - 1];
  return n_colours;
}

static void first_colours(const colouring *c) {
  const opi_cluster *k = c->play->cluster;
  const uint32_t half = c->n_ports / 2;
  for (uint32_t t = 0; t < k->n_tiers; ++t) {
    for (uint32_t m = 0; m < k->tiers[t].n_members; ++m) {
      const uint64_t colour = mix(t, bits_of(k->tiers[t].port_bytes_per_ns[m]));
      c->port[k->tiers[t].first_port + m] = mix(colour, 1);
      c->port[k->tiers[t].first_port + m + half] = mix(colour, 2);
    }
  }
  for (uint32_t copy = 0; copy < c->n_copies; ++copy)
    c->copy[copy] = c->play->apart ? mix(copy, 3) : 0;
}

static void colour(colouring *c) {
  uint32_t n_copies = 0, n_ports = 0;
  first_colours(c);
  for (;;) {
    const uint32_t copies = count_colours(c, c->copy, c->n_copies);
    const uint32_t ports = count_colours(c, c->port, c->n_ports);
    if (copies == n_copies && ports == n_ports)
      return;
    n_copies = copies;
    n_ports = ports;
    memset(c->next_copy, 0, c->n_copies * sizeof *c->next_copy);
    memset(c->next_port, 0, c->n_ports * sizeof *c->next_port);
    colour_streams(c);
    colour_groups(c);
    for (uint32_t i = 0; i < c->n_copies; ++i)
      c->copy[i] = mix(c->copy[i], c->next_copy[i]);
    for (uint32_t i = 0; i < c->n_ports; ++i)
      c->port[i] = mix(c->port[i], c->next_port[i]);
  }
}

/* ---- classes ---- */

static opipe_status number_classes(const colouring *c) {
  opi_play_classes *out = c->out;
  out->class_of = OPI_ARENA_ARRAY(c->arena, uint32_t, c->n_copies);
  out->class_size = OPI_ARENA_ARRAY(c->arena, uint32_t, c->n_copies);
  out->first_copy = OPI_ARENA_ARRAY(c->arena, uint32_t, c->n_copies);
  out->joined = OPI_ARENA_ARRAY(c->arena, uint32_t, 4 * (size_t)c->n_copies);
  if (out->class_of == NULL || out->class_size == NULL || out->first_copy == NULL ||
      out->joined == NULL)
    return opi_fail_nomem(c->err, c->n_copies * sizeof(uint32_t), "a simulation");
  for (uint32_t copy = 0; copy < c->n_copies; ++copy) {
    uint32_t k = 0;
    while (k < out->n_classes && c->copy[out->first_copy[k]] != c->copy[copy])
      ++k;
    if (k == out->n_classes)
      out->first_copy[out->n_classes++] = copy;
    out->class_of[copy] = k;
    ++out->class_size[k];
  }
  for (uint32_t kind = 0; kind < 4; ++kind) {
    for (uint32_t k = 0; k < out->n_classes; ++k) {
      uint32_t step = 0, n = 0, least = k;
      const uint32_t first = joined_by(c->play, kind, out->first_copy[k], &step, &n);
      for (uint32_t i = 0; i < n; ++i) {
        const uint32_t other = out->class_of[first + i * step];
        least = other < least ? other : least;
      }
      out->joined[kind * out->n_classes + k] = least;
    }
  }
  return OPIPE_OK;
}

/* ---- flows ---- */

typedef struct flows {
  const colouring *c;
  uint32_t *same;  /* [n_ports] number of ports of this port's colour */
  uint32_t *first; /* [n_ports] the lowest of them, which represents all */
  uint32_t n_uses, room_uses;
} flows;

typedef struct sorted_port {
  uint64_t colour;
  uint32_t port;
} sorted_port;

static int compare_ports(const void *left, const void *right) {
  const sorted_port *a = left, *b = right;
  return a->colour != b->colour ? (a->colour < b->colour ? -1 : 1)
         : a->port < b->port    ? -1
                                : a->port > b->port;
}

static opipe_status count_ports(flows *f) {
  const colouring *c = f->c;
  sorted_port *sorted = OPI_ARENA_ARRAY(c->arena, sorted_port, c->n_ports);
  f->same = OPI_ARENA_ARRAY(c->arena, uint32_t, c->n_ports);
  f->first = OPI_ARENA_ARRAY(c->arena, uint32_t, c->n_ports);
  if (f->same == NULL || f->first == NULL || sorted == NULL)
    return opi_fail_nomem(c->err, c->n_ports * sizeof *sorted, "a simulation");
  for (uint32_t i = 0; i < c->n_ports; ++i)
    sorted[i] = (sorted_port){c->port[i], i};
  qsort(sorted, c->n_ports, sizeof *sorted, compare_ports);
  for (uint32_t i = 0, next = 0; i < c->n_ports; i = next) {
    while (next < c->n_ports && sorted[next].colour == sorted[i].colour)
      ++next;
    for (uint32_t k = i; k < next; ++k) {
      f->same[sorted[k].port] = next - i;
      f->first[sorted[k].port] = sorted[i].port;
    }
  }
  return OPIPE_OK;
}

static opipe_status add_use(flows *f, opi_play_flow *flow, uint32_t port, double demand) {
  opi_play_classes *out = f->c->out;
  if (out->capacity[port] <= 0 || demand <= 0)
    return OPIPE_OK;
  for (uint32_t i = flow->first; i < f->n_uses; ++i) {
    if (out->uses[i].port == port) {
      out->uses[i].demand += demand;
      return OPIPE_OK;
    }
  }
  if (!opi_arena_grow(f->c->arena, (void **)&out->uses, &f->room_uses, f->n_uses + 1,
                      sizeof *out->uses))
    return opi_fail_nomem(f->c->err, f->n_uses * sizeof *out->uses, "a simulation");
  out->uses[f->n_uses++] = (opi_play_use){port, demand};
  ++flow->n_uses;
  return OPIPE_OK;
}

static uint32_t rank_port(const colouring *c, uint32_t list, uint32_t class_, bool inwards) {
  return c->n_ports + 2 * (list * c->out->n_classes + class_) + inwards;
}

static uint32_t host_port(const colouring *c, uint32_t list, uint32_t class_, bool inwards) {
  return rank_port(c, list, class_, inwards) + 2 * c->play->n_lists * c->out->n_classes;
}

static uint32_t tier_of(const colouring *c, uint32_t port) {
  uint32_t t = c->play->cluster->n_tiers - 1;
  while (c->play->cluster->tiers[t].first_port > port)
    --t;
  return t;
}

static opipe_status make_stream(flows *f, uint32_t stream, uint32_t class_, opi_play_flow *flow) {
  const colouring *c = f->c;
  const opi_play_stream *s = &c->play->streams[stream];
  const uint32_t copy = c->out->first_copy[class_];
  uint32_t ports[2 * OPI_TIERS_MOST];
  const opi_cluster_link link =
      opi_cluster_link_of(c->play->cluster, device_of(c, s->src, copy), device_of(c, s->dst, copy));
  const uint32_t n = path_of(c, stream, copy, ports);
  *flow = (opi_play_flow){.latency_ns = link.latency_ns,
                          .work_ns = link.bytes_per_ns > 0 ? s->n_bytes / link.bytes_per_ns : 0,
                          .first = f->n_uses};
  bool limited = false;
  for (uint32_t i = 0; i < n; ++i) {
    const double share = (double)c->out->class_size[class_] / f->same[ports[i]];
    limited = limited || c->out->capacity[ports[i]] > 0;
    if (ports[i] < c->n_ports / 2)
      flow->tier_bytes[tier_of(c, ports[i])] += s->n_bytes * c->out->class_size[class_];
    OPI_TRY(add_use(f, flow, f->first[ports[i]], link.bytes_per_ns * share));
  }
  if (!limited || flow->work_ns <= 0)
    return OPIPE_OK;
  OPI_TRY(add_use(f, flow, rank_port(c, s->src, class_, false), 1));
  return add_use(f, flow, rank_port(c, s->dst, class_, true), 1);
}

/* The lowest of the joined copies makes the flow, for its class. */
static opipe_status make_group(flows *f, uint32_t group, uint32_t class_, opi_play_flow *flow) {
  const colouring *c = f->c;
  const opi_play *p = c->play;
  const opi_play_group *g = &p->groups[group];
  const uint32_t kind = kind_of(g), n_classes = c->out->n_classes;
  uint32_t step = 0, n_joined = 0, n_alike = 0;
  *flow = (opi_play_flow){.work_ns = c->group_ns[group], .first = f->n_uses};
  if (g->op >= OPI_OPS && flow->work_ns > 0) {
    return add_use(f, flow, host_port(c, p->group_lists[g->first], class_, g->op == OPI_STASH_IN),
                   1);
  }
  if (c->out->joined[kind * n_classes + class_] != class_)
    return OPIPE_OK; /* another class makes it */
  const uint32_t first = joined_by(p, kind, c->out->first_copy[class_], &step, &n_joined);
  for (uint32_t copy = 0; copy < c->n_copies; ++copy) {
    uint32_t s = 0, n = 0;
    n_alike += joined_by(p, kind, copy, &s, &n) == copy &&
               c->out->joined[kind * n_classes + c->out->class_of[copy]] == class_;
  }
  const uint32_t at = group * c->n_copies + first;
  for (uint32_t u = c->usage_first[at]; u < c->usage_first[at + 1] && flow->work_ns > 0; ++u) {
    const usage *x = &c->usages[u];
    const double n_bytes = x->n_bytes * n_alike / f->same[x->port];
    OPI_TRY(add_use(f, flow, f->first[x->port], n_bytes / flow->work_ns));
    if (x->port < c->n_ports / 2)
      flow->tier_bytes[tier_of(c, x->port)] += x->n_bytes * n_alike;
  }
  for (uint32_t l = 0; l < g->n_lists && flow->work_ns > 0; ++l) {
    for (uint32_t k = 0; k < n_classes; ++k) {
      if (c->out->joined[kind * n_classes + k] != class_)
        continue;
      OPI_TRY(add_use(f, flow, rank_port(c, p->group_lists[g->first + l], k, false), 1));
      OPI_TRY(add_use(f, flow, rank_port(c, p->group_lists[g->first + l], k, true), 1));
    }
  }
  return OPIPE_OK;
}

static opipe_status make_flows(const colouring *c) {
  const opi_play *p = c->play;
  opi_play_classes *out = c->out;
  flows f = {.c = c};
  const uint32_t n_ranks = p->n_lists * out->n_classes, half = c->n_ports / 2;
  out->n_copies = c->n_copies;
  out->n_ports = c->n_ports + 4 * n_ranks;
  out->capacity = OPI_ARENA_ARRAY(c->arena, double, out->n_ports);
  out->flows = OPI_ARENA_ARRAY(c->arena, opi_play_flow,
                               (size_t)(p->n_streams + p->n_groups) * out->n_classes);
  if (out->capacity == NULL || out->flows == NULL)
    return opi_fail_nomem(c->err, out->n_ports * sizeof(double), "a simulation");
  for (uint32_t t = 0; t < p->cluster->n_tiers; ++t) {
    const opi_tier *tier = &p->cluster->tiers[t];
    for (uint32_t m = 0; m < tier->n_members; ++m) {
      out->capacity[tier->first_port + m] = tier->port_bytes_per_ns[m];
      out->capacity[tier->first_port + m + half] = tier->port_bytes_per_ns[m];
    }
  }
  for (uint32_t i = 0; i < 4 * n_ranks; ++i)
    out->capacity[c->n_ports + i] = 1;
  OPI_TRY(count_ports(&f));
  for (uint32_t k = 0; k < out->n_classes; ++k) {
    for (uint32_t s = 0; s < p->n_streams; ++s)
      OPI_TRY(make_stream(&f, s, k, &out->flows[s * out->n_classes + k]));
    for (uint32_t g = 0; g < p->n_groups; ++g)
      OPI_TRY(make_group(&f, g, k, &out->flows[(p->n_streams + g) * out->n_classes + k]));
  }
  return OPIPE_OK;
}

/* ---- all of it ---- */

static opipe_status check_devices(const colouring *c) {
  const opi_play *p = c->play;
  const uint32_t n = p->n_lists * c->n_copies;
  bool *taken = OPI_ARENA_ARRAY(c->arena, bool, p->cluster->n_devices);
  if (taken == NULL)
    return opi_fail_nomem(c->err, p->cluster->n_devices, "a simulation");
  for (uint32_t i = 0; i < n; ++i) {
    if (p->device[i] >= p->cluster->n_devices || taken[p->device[i]]) {
      return opi_fail(c->err, OPIPE_E_INVALID,
                      "device %u of rank %u, copy %u: the cluster has %u, each for one rank",
                      p->device[i], i / c->n_copies, i % c->n_copies, p->cluster->n_devices);
    }
    taken[p->device[i]] = true;
  }
  return OPIPE_OK;
}

opipe_status opi_play_classify(const opi_play *play, opi_arena *arena, opi_play_classes *out,
                               opipe_error *err) {
  colouring c = {.play = play,
                 .out = out,
                 .arena = arena,
                 .n_copies = play->n_tensor * play->n_data,
                 .n_ports = 2 * play->cluster->n_ports,
                 .err = err};
  const uint32_t larger = c.n_copies > c.n_ports ? c.n_copies : c.n_ports;
  *out = (opi_play_classes){.n_classes = 0};
  OPI_TRY(check_devices(&c));
  c.copy = OPI_ARENA_ARRAY(arena, uint64_t, c.n_copies);
  c.port = OPI_ARENA_ARRAY(arena, uint64_t, c.n_ports);
  c.next_copy = OPI_ARENA_ARRAY(arena, uint64_t, c.n_copies);
  c.next_port = OPI_ARENA_ARRAY(arena, uint64_t, c.n_ports);
  c.sorted = OPI_ARENA_ARRAY(arena, uint64_t, larger);
  if (c.copy == NULL || c.port == NULL || c.next_copy == NULL || c.next_port == NULL ||
      c.sorted == NULL)
    return opi_fail_nomem(err, larger * sizeof(uint64_t), "a simulation");
  OPI_TRY(use_groups(&c));
  colour(&c);
  OPI_TRY(number_classes(&c));
  return make_flows(&c);
}
