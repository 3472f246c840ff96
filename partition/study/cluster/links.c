/* SPDX-License-Identifier: Apache-2.0 */
/* Links between devices, and rates of devices. */
#include "partition/study/cluster/cluster.h"

double opi_cluster_flops(const opi_cluster *cluster, uint32_t device, uint32_t dtype,
                         uint64_t least) {
  const opi_device_class *c = &cluster->classes[cluster->class_of[device]];
  double flops = 0;
  for (uint32_t i = 0; i < c->n_rates; ++i) {
    const opi_rate *r = &c->rates[i];
    if (r->dtype == dtype && (flops == 0 || r->least <= least))
      flops = r->flops;
  }
  return flops > 0 ? flops : cluster->descriptions[device].flops;
}

/* The first tier that joins both. */
static uint32_t tier_between(const opi_cluster *c, uint32_t src, uint32_t dst) {
  uint32_t t = 0;
  while (t + 1 < c->n_tiers && c->tiers[t].group_of[src] != c->tiers[t].group_of[dst])
    ++t;
  return t;
}

static uint32_t add_ports(const opi_cluster *c, uint32_t tier, uint32_t device,
                          uint32_t *out_ports) {
  const opi_tier *last = &c->tiers[tier];
  uint32_t n = 0;
  for (uint32_t t = 0; !last->in_node && t < tier; ++t) {
    if (!c->tiers[t].in_node)
      out_ports[n++] = c->tiers[t].first_port + c->tiers[t].member_of[device];
  }
  out_ports[n++] = last->first_port + last->member_of[device];
  return n;
}

uint32_t opi_cluster_path(const opi_cluster *cluster, uint32_t src, uint32_t dst,
                          uint32_t *out_ports, uint32_t *out_n_out) {
  const uint32_t tier = tier_between(cluster, src, dst);
  *out_n_out = 0;
  if (src == dst)
    return 0;
  *out_n_out = add_ports(cluster, tier, src, out_ports);
  return *out_n_out + add_ports(cluster, tier, dst, out_ports + *out_n_out);
}

static double port_rate(const opi_cluster *c, uint32_t port) {
  uint32_t t = c->n_tiers - 1;
  while (c->tiers[t].first_port > port)
    --t;
  return c->tiers[t].port_bytes_per_ns[port - c->tiers[t].first_port];
}

opi_cluster_link opi_cluster_link_of(const opi_cluster *cluster, uint32_t src, uint32_t dst) {
  uint32_t ports[2 * OPI_TIERS_MOST], n_out = 0;
  if (src == dst)
    return (opi_cluster_link){.tier = OPIPE_NONE};
  const uint32_t tier = tier_between(cluster, src, dst);
  const opi_tier *t = &cluster->tiers[tier];
  opi_cluster_link link = {tier, t->latency_ns, t->bytes_per_ns};
  const uint32_t n = opi_cluster_path(cluster, src, dst, ports, &n_out);
  for (uint32_t i = 0; i < n; ++i) {
    const double rate = port_rate(cluster, ports[i]);
    if (rate > 0 && (link.bytes_per_ns == 0 || rate < link.bytes_per_ns))
      link.bytes_per_ns = rate;
  }
  return link;
}

double opi_cluster_message_ns(const opi_cluster *cluster, uint32_t src, uint32_t dst,
                              uint64_t n_bytes) {
  const opi_cluster_link link = opi_cluster_link_of(cluster, src, dst);
  return link.latency_ns + (link.bytes_per_ns > 0 ? (double)n_bytes / link.bytes_per_ns : 0);
}
