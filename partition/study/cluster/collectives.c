/* SPDX-License-Identifier: Apache-2.0 */
/* Times of collectives: rounds of messages that start together, each as long as its slowest
 * message. Messages that pass a port in the same round share it equally, so an algorithm's time
 * depends on the topology and on the placement of a group's ranks in it.
 */
#include <stdlib.h>
#include <string.h>

#include "partition/study/cluster/cluster.h"

/* Sets of devices, possibly of different sizes: set s is devices[first[s]] .. devices[first[s + 1]
 * - 1]. */
typedef struct sets {
  uint32_t *devices, *first;
  uint32_t n, largest;
} sets;

typedef struct meter {
  const opi_cluster *cluster;
  uint32_t *dst;  /* [devices] this round, device i of the sets sends to device dst[i] of the sets;
                     OPIPE_NONE: it sends nothing */
  double *bytes;  /* [devices] bytes of that message */
  uint32_t *load; /* [2 * n_ports] messages that leave by each port, then that enter by it */
  double *use;    /* [2 * n_ports] bytes over all rounds, likewise; NULL: not wanted */
  double total_ns;
} meter;

/* ---- one round ---- */

static void add_load(const meter *m, uint32_t src, uint32_t dst, uint32_t by, bool clear) {
  uint32_t ports[2 * OPI_TIERS_MOST], n_out = 0;
  const uint32_t n = opi_cluster_path(m->cluster, src, dst, ports, &n_out);
  for (uint32_t i = 0; i < n; ++i) {
    uint32_t *load = &m->load[(i < n_out ? 0 : m->cluster->n_ports) + ports[i]];
    *load = clear ? 0 : *load + by;
  }
}

static const opi_tier *tier_of_port(const opi_cluster *c, uint32_t port) {
  uint32_t t = c->n_tiers - 1;
  while (c->tiers[t].first_port > port)
    --t;
  return &c->tiers[t];
}

static double message_ns(const meter *m, uint32_t src, uint32_t dst, double n_bytes) {
  uint32_t ports[2 * OPI_TIERS_MOST], n_out = 0;
  const opi_cluster *c = m->cluster;
  const opi_cluster_link link = opi_cluster_link_of(c, src, dst);
  if (link.tier == OPIPE_NONE)
    return 0;
  const opi_tier *tier = &c->tiers[link.tier];
  const uint32_t n = opi_cluster_path(c, src, dst, ports, &n_out);
  double ns = tier->collective_bytes_per_ns > 0 ? n_bytes / tier->collective_bytes_per_ns : 0;
  for (uint32_t i = 0; i < n; ++i) {
    const opi_tier *t = tier_of_port(c, ports[i]);
    const double rate = t->port_bytes_per_ns[ports[i] - t->first_port];
    const uint32_t load = m->load[(i < n_out ? 0 : c->n_ports) + ports[i]];
    if (rate > 0 && n_bytes * load / rate > ns)
      ns = n_bytes * load / rate;
  }
  return tier->collective_latency_ns + ns;
}

static void add_use(const meter *m, uint32_t src, uint32_t dst, double n_bytes) {
  uint32_t ports[2 * OPI_TIERS_MOST], n_out = 0;
  const uint32_t n = opi_cluster_path(m->cluster, src, dst, ports, &n_out);
  for (uint32_t i = 0; i < n; ++i)
    m->use[(i < n_out ? 0 : m->cluster->n_ports) + ports[i]] += n_bytes;
}

/* Plays the round in m->dst and m->bytes `repeat` times. */
static void play_round(meter *m, const sets *s, uint32_t repeat) {
  const uint32_t n = s->first[s->n];
  double slowest = 0;
  for (uint32_t i = 0; i < n; ++i) {
    if (m->dst[i] != OPIPE_NONE)
      add_load(m, s->devices[i], s->devices[m->dst[i]], 1, false);
  }
  for (uint32_t i = 0; i < n; ++i) {
    if (m->dst[i] == OPIPE_NONE)
      continue;
    const double ns = message_ns(m, s->devices[i], s->devices[m->dst[i]], m->bytes[i]);
    slowest = ns > slowest ? ns : slowest;
  }
  for (uint32_t i = 0; i < n; ++i) {
    if (m->dst[i] != OPIPE_NONE)
      add_load(m, s->devices[i], s->devices[m->dst[i]], 0, true);
    if (m->dst[i] != OPIPE_NONE && m->use != NULL)
      add_use(m, s->devices[i], s->devices[m->dst[i]], repeat * m->bytes[i]);
  }
  m->total_ns += repeat * slowest;
}

static void clear_round(const meter *m, const sets *s) {
  for (uint32_t i = 0; i < s->first[s->n]; ++i)
    m->dst[i] = OPIPE_NONE;
}

static uint32_t size_of(const sets *s, uint32_t set) {
  return s->first[set + 1] - s->first[set];
}

/* ---- patterns ---- */

/* Each device passes 1 / r to its neighbour, r - 1 times: half of an all-reduce. */
static void ring(meter *m, const sets *s, double n_bytes) {
  for (uint32_t round = 0, next = 0; round + 1 < s->largest; round = next) {
    next = s->largest - 1; /* until the next smaller set is done */
    clear_round(m, s);
    for (uint32_t k = 0; k < s->n; ++k) {
      const uint32_t r = size_of(s, k), first = s->first[k];
      for (uint32_t i = 0; i < r && round + 1 < r; ++i) {
        m->dst[first + i] = first + (i + 1) % r;
        m->bytes[first + i] = n_bytes / r;
      }
      if (r > round + 1 && r - 1 < next)
        next = r - 1;
    }
    play_round(m, s, next - round);
  }
}

/* Pairs at distance 1, 2, 4, ... exchange 1/2, 1/4, ... (halving; doubling is the same backwards).
 * Devices beyond the largest power of two send to a partner below it first, or receive from it
 * last. */
static void halve(meter *m, const sets *s, double n_bytes) {
  uint32_t power = 1;
  clear_round(m, s);
  for (uint32_t k = 0; k < s->n; ++k) {
    const uint32_t r = size_of(s, k), first = s->first[k];
    uint32_t below = 1;
    while (2 * below <= r)
      below *= 2;
    for (uint32_t i = below; i < r; ++i) {
      m->dst[first + i] = first + i - below;
      m->bytes[first + i] = n_bytes;
    }
  }
  play_round(m, s, 1);
  for (uint32_t distance = 1; distance < s->largest; distance *= 2, power *= 2) {
    clear_round(m, s);
    for (uint32_t k = 0; k < s->n; ++k) {
      const uint32_t r = size_of(s, k), first = s->first[k];
      uint32_t below = 1;
      while (2 * below <= r)
        below *= 2;
      for (uint32_t i = 0; i < below && distance < below; ++i) {
        m->dst[first + i] = first + (i ^ (below / 2 / distance));
        m->bytes[first + i] = n_bytes * distance / below;
      }
    }
    play_round(m, s, 1);
  }
}

/* From the first device to all, or back: everything in each round or, with `parts`, half of the
 * previous round. */
static void binomial(meter *m, const sets *s, double n_bytes, bool parts) {
  uint32_t top = 1;
  while (top < s->largest)
    top *= 2;
  double bytes = n_bytes;
  for (uint32_t distance = top / 2; distance > 0; distance /= 2) {
    bytes = parts ? bytes / 2 : bytes;
    clear_round(m, s);
    for (uint32_t k = 0; k < s->n; ++k) {
      const uint32_t r = size_of(s, k), first = s->first[k];
      for (uint32_t i = 0; i + distance < r; i += 2 * distance) {
        m->dst[first + i] = first + i + distance;
        m->bytes[first + i] = bytes;
      }
    }
    play_round(m, s, 1);
  }
}

/* ---- algorithms ---- */

static void play_ring(meter *m, const sets *s, uint32_t op, double n_bytes) {
  if (op == OPI_OP_BROADCAST)
    binomial(m, s, n_bytes, true);
  ring(m, s, n_bytes);
  if (op == OPI_OP_ALL_REDUCE)
    ring(m, s, n_bytes);
}

static void play_rabenseifner(meter *m, const sets *s, uint32_t op, double n_bytes) {
  if (op == OPI_OP_BROADCAST)
    binomial(m, s, n_bytes, true);
  halve(m, s, n_bytes);
  if (op == OPI_OP_ALL_REDUCE)
    halve(m, s, n_bytes);
}

static void play_tree(meter *m, const sets *s, uint32_t op, double n_bytes) {
  if (op != OPI_OP_BROADCAST)
    binomial(m, s, n_bytes, op == OPI_OP_ALL_GATHER);
  if (op != OPI_OP_BROADCAST)
    binomial(m, s, n_bytes, op == OPI_OP_REDUCE_SCATTER);
  else
    binomial(m, s, n_bytes, false);
}

/* ---- inside nodes, and between them ---- */

typedef struct split {
  sets inside, between;
  bool equal; /* every node has the same number of devices of each group that it holds part of */
} split;

static opipe_status new_sets(opi_arena *arena, uint32_t n_devices, sets *out, opipe_error *err) {
  *out = (sets){.devices = OPI_ARENA_ARRAY(arena, uint32_t, n_devices),
                .first = OPI_ARENA_ARRAY(arena, uint32_t, (size_t)n_devices + 1)};
  return out->devices != NULL && out->first != NULL
             ? OPIPE_OK
             : opi_fail_nomem(err, n_devices * sizeof(uint32_t), "a collective");
}

static void end_set(sets *s, uint32_t n_devices) {
  s->first[++s->n] = n_devices;
  s->largest = size_of(s, s->n - 1) > s->largest ? size_of(s, s->n - 1) : s->largest;
}

/* Sets within one node, devices in rising order. */
static void split_inside(const opi_cluster *c, const sets *s, split *out) {
  memcpy(out->inside.devices, s->devices, s->first[s->n] * sizeof *s->devices);
  for (uint32_t k = 0; k < s->n; ++k) {
    for (uint32_t i = s->first[k]; i < s->first[k + 1]; ++i) {
      if (i + 1 == s->first[k + 1] || c->node_of[s->devices[i]] != c->node_of[s->devices[i + 1]])
        end_set(&out->inside, i + 1);
    }
  }
  out->equal = true;
  for (uint32_t k = 0; k < out->inside.n; ++k)
    out->equal = out->equal && size_of(&out->inside, k) == out->inside.largest;
}

/* Joins the j-th devices of all nodes or, if nodes have different numbers, the first of each.
 */
static void split_between(const sets *s, split *out) {
  const sets *in = &out->inside;
  const uint32_t n_local = out->equal ? in->largest : 1;
  uint32_t n = 0, from = 0, to = 0;
  for (uint32_t k = 0; k < s->n; ++k, from = to) {
    while (to < in->n && in->first[to] < s->first[k + 1])
      ++to;
    for (uint32_t j = 0; j < n_local; ++j) {
      for (uint32_t node = from; node < to; ++node)
        out->between.devices[n++] = in->devices[in->first[node] + j];
      end_set(&out->between, n);
    }
  }
}

static void play_hierarchical(meter *m, const split *s, uint32_t op, double n_bytes) {
  if (op == OPI_OP_BROADCAST) {
    binomial(m, &s->between, n_bytes, false);
    binomial(m, &s->inside, n_bytes, false);
  } else if (!s->equal) { /* the first device of every node for all of it */
    binomial(m, &s->inside, n_bytes, op == OPI_OP_ALL_GATHER);
    ring(m, &s->between, n_bytes);
    if (op == OPI_OP_ALL_REDUCE)
      ring(m, &s->between, n_bytes);
    binomial(m, &s->inside, n_bytes, op == OPI_OP_REDUCE_SCATTER);
  } else {
    ring(m, &s->inside, n_bytes);
    ring(m, &s->between, n_bytes / s->inside.largest);
    if (op == OPI_OP_ALL_REDUCE) {
      ring(m, &s->between, n_bytes / s->inside.largest);
      ring(m, &s->inside, n_bytes);
    }
  }
}

/* ---- all of it ---- */

static int compare_devices(const void *left, const void *right) {
  const uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
  return a < b ? -1 : a > b;
}

/* Sorts each group's devices, so that neighbours are near; a broadcast's starting at its root. */
static opipe_status sort_groups(const opi_cluster *c, uint32_t op, const opi_groups *groups,
                                opi_arena *arena, sets *out, opipe_error *err) {
  const uint32_t n = groups->n, total = n * groups->n_groups;
  OPI_TRY(new_sets(arena, 2 * total, out, err));
  uint32_t *sorted = out->devices + total;
  for (uint32_t k = 0; k < groups->n_groups; ++k) {
    const uint32_t *given = &groups->devices[(size_t)k * n];
    uint32_t root = 0;
    memcpy(sorted, given, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, compare_devices);
    for (uint32_t i = 0; i < n; ++i) {
      if (sorted[i] >= c->n_devices || (i > 0 && sorted[i] == sorted[i - 1])) {
        return opi_fail(err, OPIPE_E_INVALID,
                        "a collective over device %u, %s (the cluster has %u)", sorted[i],
                        sorted[i] >= c->n_devices ? "which does not exist" : "twice", c->n_devices);
      }
      root = sorted[i] == given[0] ? i : root;
    }
    root = op == OPI_OP_BROADCAST ? root : 0;
    for (uint32_t i = 0; i < n; ++i)
      out->devices[k * n + i] = sorted[(root + i) % n];
    end_set(out, (k + 1) * n);
  }
  return OPIPE_OK;
}

/* The algorithm of the first tier that joins a whole group. */
static uint32_t algorithm_of(const opi_cluster *c, const sets *s) {
  uint32_t t = 0;
  for (uint32_t i = 0; i < s->first[1]; ++i) {
    while (t + 1 < c->n_tiers &&
           c->tiers[t].group_of[s->devices[0]] != c->tiers[t].group_of[s->devices[i]])
      ++t;
  }
  return c->tiers[t].collective;
}

static double play(meter *m, const sets *s, const split *parts, uint32_t op, uint32_t algorithm,
                   double n_bytes) {
  m->total_ns = 0;
  switch (algorithm) {
    case OPI_COLLECTIVE_RING:
      play_ring(m, s, op, n_bytes);
      break;
    case OPI_COLLECTIVE_RABENSEIFNER:
      play_rabenseifner(m, s, op, n_bytes);
      break;
    case OPI_COLLECTIVE_TREE:
      play_tree(m, s, op, n_bytes);
      break;
    default:
      play_hierarchical(m, parts, op, n_bytes);
  }
  return m->total_ns;
}

static opipe_status run(meter *m, uint32_t op, uint32_t algorithm, const opi_groups *groups,
                        double n_bytes, opi_arena *arena, double *out_ns, opipe_error *err) {
  const uint32_t total = groups->n * groups->n_groups;
  sets all;
  split parts;
  OPI_TRY(sort_groups(m->cluster, op, groups, arena, &all, err));
  OPI_TRY(new_sets(arena, total, &parts.inside, err));
  OPI_TRY(new_sets(arena, total, &parts.between, err));
  m->dst = OPI_ARENA_ARRAY(arena, uint32_t, total);
  m->bytes = OPI_ARENA_ARRAY(arena, double, total);
  m->load = OPI_ARENA_ARRAY(arena, uint32_t, 2 * (size_t)m->cluster->n_ports);
  if (m->dst == NULL || m->bytes == NULL || m->load == NULL)
    return opi_fail_nomem(err, total * sizeof(double), "a collective");
  split_inside(m->cluster, &all, &parts);
  split_between(&all, &parts);
  if (algorithm == OPI_COLLECTIVE_AUTO)
    algorithm = algorithm_of(m->cluster, &all);
  if (algorithm != OPI_COLLECTIVE_AUTO) {
    *out_ns = play(m, &all, &parts, op, algorithm, n_bytes);
    return OPIPE_OK;
  }
  double *use = m->use;
  m->use = NULL;
  for (uint32_t a = OPI_COLLECTIVE_RING; a < OPI_COLLECTIVES; ++a) {
    const double ns = play(m, &all, &parts, op, a, n_bytes);
    algorithm = a == OPI_COLLECTIVE_RING || ns < *out_ns ? a : algorithm;
    *out_ns = algorithm == a ? ns : *out_ns;
  }
  m->use = use;
  if (use != NULL)
    (void)play(m, &all, &parts, op, algorithm, n_bytes);
  return OPIPE_OK;
}

opipe_status opi_cluster_collective_ns(const opi_cluster *cluster, uint32_t op, uint32_t algorithm,
                                       const opi_groups *groups, uint64_t n_bytes,
                                       const opipe_allocator *allocator, double *out_ns,
                                       opipe_error *err) {
  return opi_cluster_collective_use(cluster, op, algorithm, groups, n_bytes, allocator, out_ns,
                                    NULL, err);
}

opipe_status opi_cluster_collective_use(const opi_cluster *cluster, uint32_t op, uint32_t algorithm,
                                        const opi_groups *groups, uint64_t n_bytes,
                                        const opipe_allocator *allocator, double *out_ns,
                                        double *io_use, opipe_error *err) {
  meter m = {.cluster = cluster, .use = io_use};
  opi_arena arena;
  *out_ns = 0;
  if (op >= OPI_OPS || algorithm >= OPI_COLLECTIVES) {
    return opi_fail(err, OPIPE_E_INVALID, "collective %u (of %d) by algorithm %u (of %d)", op,
                    OPI_OPS, algorithm, OPI_COLLECTIVES);
  }
  if (groups->n <= 1 || groups->n_groups == 0)
    return OPIPE_OK;
  if (groups->n > cluster->n_devices ||
      (uint64_t)groups->n * groups->n_groups > OPI_CLUSTER_DEVICES_MOST) {
    return opi_fail(err, OPIPE_E_INVALID, "%u groups of %u devices, the cluster has %u",
                    groups->n_groups, groups->n, cluster->n_devices);
  }
  opi_arena_init(&arena, allocator, 0);
  const opipe_status status = run(&m, op, algorithm, groups, (double)n_bytes, &arena, out_ns, err);
  opi_arena_release(&arena);
  return status;
}
