/* SPDX-License-Identifier: Apache-2.0 */
/* Member "tiers": how devices are joined, from the nearest tier to the one that joins all. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "partition/study/cluster/read.h"

static const char *const NAMES[OPI_COLLECTIVES] = {"auto", "ring", "rabenseifner", "tree",
                                                   "hierarchical"};

bool opi_collective_parse(const char *text, uint32_t *out_algorithm) {
  for (uint32_t i = 0; i < OPI_COLLECTIVES; ++i) {
    if (strcmp(NAMES[i], text) == 0) {
      *out_algorithm = i;
      return true;
    }
  }
  return false;
}

/* The extent of a tier as the file states it. */
typedef struct extent {
  uint64_t devices, nodes; /* 0: not stated; neither stated: everything */
  double port;             /* bytes per second; 0: no limit, -1: not stated */
  double oversubscription; /* 0: not stated */
} extent;

/* ---- one tier's members ---- */

static opipe_status read_collective(const opi_cluster_reader *r, const json_t *object,
                                    opi_tier *tier) {
  const char *text = NULL;
  double bandwidth = 0;
  OPI_TRY(opi_cluster_get_number(r, object, "collective_latency_ns", 0, 1e15, tier->latency_ns,
                                 &tier->collective_latency_ns));
  OPI_TRY(opi_cluster_get_number(r, object, "collective_bandwidth", 1, 1e18,
                                 tier->bytes_per_ns * 1e9, &bandwidth));
  tier->collective_bytes_per_ns = bandwidth * 1e-9;
  OPI_TRY(opi_cluster_get_text(r, object, "collective", &text));
  if (text == NULL || opi_collective_parse(text, &tier->collective))
    return OPIPE_OK;
  return opi_fail(r->err, OPIPE_E_INVALID,
                  "%s: \"collective\" is '%.40s'; it must be auto, ring, rabenseifner, tree or "
                  "hierarchical",
                  r->what, text);
}

static opipe_status read_tier(const opi_cluster_reader *r, json_t *object, opi_tier *tier,
                              extent *out) {
  static const char *const fields[] = {"name",
                                       "devices",
                                       "nodes",
                                       "latency_ns",
                                       "bandwidth",
                                       "port",
                                       "oversubscription",
                                       "collective",
                                       "collective_latency_ns",
                                       "collective_bandwidth",
                                       NULL};
  double bandwidth = 0;
  OPI_TRY(opi_cluster_check_fields(r, object, fields));
  OPI_TRY(opi_cluster_get_text(r, object, "name", &tier->name));
  OPI_TRY(opi_cluster_get_count(r, object, "devices", OPI_CLUSTER_DEVICES_MOST, 0, &out->devices));
  OPI_TRY(opi_cluster_get_count(r, object, "nodes", OPI_CLUSTER_DEVICES_MOST, 0, &out->nodes));
  if (out->devices > 0 && out->nodes > 0) {
    return opi_fail(r->err, OPIPE_E_INVALID,
                    "%s: it joins %" PRIu64 " \"devices\" and %" PRIu64
                    " \"nodes\"; only one is allowed",
                    r->what, out->devices, out->nodes);
  }
  OPI_TRY(opi_cluster_get_number(r, object, "latency_ns", 0, 1e15, 0, &tier->latency_ns));
  OPI_TRY(opi_cluster_get_number(r, object, "bandwidth", 1, 1e18, 0, &bandwidth));
  OPI_TRY(opi_cluster_get_number(r, object, "port", 0, 1e18, -1, &out->port));
  OPI_TRY(
      opi_cluster_get_number(r, object, "oversubscription", 1e-3, 1e6, 0, &out->oversubscription));
  if (bandwidth == 0)
    return opi_fail(r->err, OPIPE_E_INVALID, "%s: \"bandwidth\" is missing", r->what);
  if (out->port >= 0 && out->oversubscription > 0) {
    return opi_fail(r->err, OPIPE_E_INVALID,
                    "%s: \"port\" is %g and \"oversubscription\" %g; only one is allowed", r->what,
                    out->port, out->oversubscription);
  }
  tier->bytes_per_ns = bandwidth * 1e-9;
  return read_collective(r, object, tier);
}

/* Forms groups of n neighbouring devices of a node, or of n neighbouring nodes. */
static void join(const opi_cluster *c, opi_tier *tier, uint64_t n) {
  uint32_t in_group = 0;
  for (uint32_t i = 0; i < c->n_devices; ++i) {
    const bool new_node = i == 0 || c->node_of[i] != c->node_of[i - 1];
    const bool full = in_group == n && (!tier->in_node || !new_node);
    const bool begins = i == 0 || (tier->in_node ? new_node || full : new_node && full);
    tier->n_groups += begins;
    in_group = begins ? 0 : in_group;
    in_group += tier->in_node || new_node;
    tier->group_of[i] = tier->n_groups - 1;
  }
}

/* Members are devices, or the groups of the previous tier, at least whole nodes. */
static void find_members(const opi_cluster *c, const opi_tier *before, opi_tier *tier) {
  for (uint32_t i = 0; i < c->n_devices; ++i) {
    tier->member_of[i] = tier->in_node                        ? i
                         : before != NULL && !before->in_node ? before->group_of[i]
                                                              : c->node_of[i];
    if (tier->member_of[i] + 1 > tier->n_members)
      tier->n_members = tier->member_of[i] + 1;
  }
}

static opipe_status open_ports(const opi_cluster_reader *r, const extent *e, opi_tier *tier) {
  opi_cluster *c = r->out;
  const double factor = e->oversubscription > 0 ? e->oversubscription : 1;
  const double rate = tier->collective_bytes_per_ns > tier->bytes_per_ns
                          ? tier->collective_bytes_per_ns
                          : tier->bytes_per_ns;
  tier->port_bytes_per_ns = OPI_ARENA_ARRAY(r->arena, double, tier->n_members);
  if (tier->port_bytes_per_ns == NULL)
    return opi_fail_nomem(r->err, tier->n_members * sizeof(double), "a cluster");
  for (uint32_t i = 0; i < c->n_devices; ++i)
    tier->port_bytes_per_ns[tier->member_of[i]] += rate / factor;
  for (uint32_t i = 0; i < tier->n_members && e->port >= 0; ++i)
    tier->port_bytes_per_ns[i] = e->port * 1e-9;
  tier->first_port = c->n_ports;
  c->n_ports += tier->n_members;
  return OPIPE_OK;
}

static opipe_status new_tier(const opi_cluster_reader *r, opi_tier *tier) {
  const uint32_t n = r->out->n_devices;
  tier->member_of = OPI_ARENA_ARRAY(r->arena, uint32_t, n);
  tier->group_of = OPI_ARENA_ARRAY(r->arena, uint32_t, n);
  return tier->member_of != NULL && tier->group_of != NULL
             ? OPIPE_OK
             : opi_fail_nomem(r->err, n * sizeof(uint32_t), "a cluster");
}

/* ---- all of them ---- */

/* Tiers are listed nearest first: each must join more devices or nodes than the one before. */
static opipe_status check_order(const opi_cluster_reader *r, const extent *before,
                                const extent *e) {
  const bool all = before->devices == 0 && before->nodes == 0;
  const bool rising = e->devices > 0 ? before->devices > 0 && e->devices > before->devices
                      : e->nodes > 0 ? e->nodes > before->nodes
                                     : true;
  if (!all && rising)
    return OPIPE_OK;
  return opi_fail(r->err, OPIPE_E_INVALID,
                  "%s: it joins %" PRIu64 " devices or %" PRIu64
                  " nodes (0 and 0: all) after a "
                  "tier that joins %" PRIu64 " devices or %" PRIu64 " nodes; each must join more",
                  r->what, e->devices, e->nodes, before->devices, before->nodes);
}

static opipe_status add_tier(opi_cluster_reader *r, json_t *object, extent *io_before) {
  opi_cluster *c = r->out;
  opi_tier *tier = &c->tiers[c->n_tiers];
  const opi_tier *before = c->n_tiers == 0 ? NULL : tier - 1;
  extent e = {.port = 0};
  OPI_TRY(read_tier(r, object, tier, &e));
  if (before != NULL)
    OPI_TRY(check_order(r, io_before, &e));
  *io_before = e;
  tier->in_node =
      e.devices > 0 || e.nodes == 1 || (e.nodes == 0 && before == NULL && c->n_nodes == 1);
  OPI_TRY(new_tier(r, tier));
  join(c, tier, e.devices > 0 ? e.devices : e.nodes > 0 && !tier->in_node ? e.nodes : UINT32_MAX);
  find_members(c, before, tier);
  ++c->n_tiers;
  return open_ports(r, &e, tier);
}

/* Joins all devices by the transport's declared link, without sharing. */
static opipe_status make_only_tier(opi_cluster_reader *r) {
  opi_cluster *c = r->out;
  opi_tier *tier = &c->tiers[0];
  *tier = (opi_tier){.name = "link",
                     .in_node = c->n_nodes == 1,
                     .latency_ns = c->link.latency_ns,
                     .bytes_per_ns = c->link.bandwidth * 1e-9,
                     .collective_latency_ns = c->link.latency_ns,
                     .collective_bytes_per_ns = c->link.bandwidth * 1e-9};
  OPI_TRY(new_tier(r, tier));
  join(c, tier, UINT32_MAX);
  find_members(c, NULL, tier);
  tier->port_bytes_per_ns = OPI_ARENA_ARRAY(r->arena, double, tier->n_members);
  if (tier->port_bytes_per_ns == NULL)
    return opi_fail_nomem(r->err, tier->n_members * sizeof(double), "a cluster");
  c->n_ports = tier->n_members;
  c->n_tiers = 1;
  return OPIPE_OK;
}

opipe_status opi_cluster_read_tiers(opi_cluster_reader *r, const json_t *root) {
  opi_cluster *c = r->out;
  const json_t *list = NULL;
  extent last = {.port = 0};
  c->tiers = OPI_ARENA_ARRAY(r->arena, opi_tier, OPI_TIERS_MOST);
  if (c->tiers == NULL)
    return opi_fail_nomem(r->err, OPI_TIERS_MOST * sizeof *c->tiers, "a cluster");
  if (json_object_get(root, "tiers") == NULL)
    return make_only_tier(r);
  OPI_TRY(opi_json_get_array(root, r->name, "tiers", &list, r->err));
  const size_t n = json_array_size(list);
  if (n == 0 || n > OPI_TIERS_MOST) {
    return opi_fail(r->err, OPIPE_E_INVALID, "%s: \"tiers\" has %zu entries; it must have 1 to %d",
                    r->name, n, OPI_TIERS_MOST);
  }
  for (size_t i = 0; i < n; ++i) {
    (void)snprintf(r->what, sizeof r->what, "%.150s: tiers[%zu]", r->name, i);
    OPI_TRY(add_tier(r, json_array_get(list, i), &last));
  }
  const opi_tier *t = &c->tiers[c->n_tiers - 1];
  if (t->n_groups == 1)
    return OPIPE_OK;
  return opi_fail(
      r->err, OPIPE_E_INVALID,
      "%s: it leaves %u separate groups of %u devices in %u nodes, but the last tier must join "
      "all: omit its \"devices\" and \"nodes\"",
      r->what, t->n_groups, c->n_devices, c->n_nodes);
}
