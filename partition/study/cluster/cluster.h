/* SPDX-License-Identifier: Apache-2.0 */
/* A cluster as a value: devices, their nodes, and the tiers of links between them.
 *
 * Devices are numbered in the order of the file, node by node. A *tier* joins groups of devices:
 * neighbours within a node, a whole node, neighbouring nodes, or all. Two devices communicate over
 * the first tier that joins them. The *members* of a tier are devices if it is inside nodes;
 * otherwise they are the groups of the previous tier, or whole nodes if the previous tier is inside
 * nodes. Each member has a *port* into the tier with a rate per direction, which concurrent traffic
 * shares equally. Traffic inside a node uses the ports of its own tier only; traffic between nodes
 * uses those of every tier between nodes, up to the tier where the two meet. A message gets at most
 * the tier's bandwidth and arrives the tier's latency later.
 *
 * A value that has been read is immutable, so any thread may use it. It lies entirely in the arena
 * that it was read into.
 */
#ifndef OPI_CLUSTER_H
#define OPI_CLUSTER_H

#include <opipe/host.h>

#include "partition/plan/plan.h"

#define OPI_CLUSTER_FORMAT "onnx-pipe cluster 1"

enum { OPI_CLUSTER_DEVICES_MOST = 4096, OPI_TIERS_MOST = 8 };

/* Rate of a device for matrix products of one type and shape class: products whose smallest extent
 * (rows, columns, summed dimension) is at least `least`. */
typedef struct opi_rate {
  uint32_t dtype; /* OPIPE_FLOAT ... */
  uint64_t least;
  double flops; /* operations per second */
} opi_rate;

/* An entry of "devices". */
typedef struct opi_device_class {
  const char *name;      /* NULL: none */
  const opi_rate *rates; /* [n_rates] by dtype, then rising `least` */
  double host_bandwidth; /* bytes per second each way between device and host memory; 0: no path */
  uint32_t n_rates;
} opi_device_class;

/* Algorithm by which a tier's groups sum and gather. */
enum {
  OPI_COLLECTIVE_AUTO = 0,     /* the fastest */
  OPI_COLLECTIVE_RING,         /* bandwidth-optimal (Patarasu and Yuan 2009) */
  OPI_COLLECTIVE_RABENSEIFNER, /* recursive halving, then doubling (Thakur et al. 2005) */
  OPI_COLLECTIVE_TREE,         /* binomial: to the root and back (Thakur et al. 2005) */
  OPI_COLLECTIVE_HIERARCHICAL, /* inside nodes, between nodes, inside nodes */
  OPI_COLLECTIVES
};
/* "auto", "ring", "rabenseifner", "tree", "hierarchical" */
bool opi_collective_parse(const char *text, uint32_t *out_algorithm);

typedef struct opi_tier {
  const char *name;
  double latency_ns;
  double bytes_per_ns;            /* of one message; 0: no limit */
  double collective_latency_ns;   /* of one message of a collective */
  double collective_bytes_per_ns; /* 0: no limit */
  uint32_t collective; /* OPI_COLLECTIVE_* of groups that this tier is the first to join */
  bool in_node;
  uint32_t n_members, n_groups;
  uint32_t *member_of, *group_of; /* [n_devices] */
  double *port_bytes_per_ns;      /* [n_members] each way; 0: no limit */
  uint32_t first_port;            /* port of member i is first_port + i */
} opi_tier;

/* Resources that a message occupies while under way. */
enum {
  OPI_OCCUPIES_LINK = 0, /* the link only; ranks go on */
  OPI_OCCUPIES_RANK = 1  /* both ranks, which block (copies by the ranks' own threads) */
};

typedef struct opi_cluster {
  const char *name; /* NULL: none */
  uint32_t n_devices, n_classes, n_nodes, n_tiers, n_ports;
  opipe_device_choice *devices;           /* [n_devices] */
  opipe_device_description *descriptions; /* [n_devices] */
  uint32_t *class_of, *node_of;           /* [n_devices] */
  opi_device_class *classes;              /* [n_classes] */
  opi_tier *tiers; /* [n_tiers] nearest first; at least one, and the last joins all */
  opipe_link_description link;
  const char *transport; /* of the link; NULL: not in the file */
  uint32_t occupies;     /* OPI_OCCUPIES_* */
} opi_cluster;

/* ---- read.c, tiers.c ---- */

/* name: of the text, for messages. Errors: INVALID and LIMIT name entry, field and both values;
 * UNSUPPORTED, another version. */
opipe_status opi_cluster_read(const char *name, const void *json, uint64_t n_bytes,
                              opi_arena *arena, opi_cluster *out_cluster, opipe_error *err);

/* ---- ready.c ---- */

/* Finds the text of a cluster, given as "PATH" or "NAME", optionally followed by ":nodes=N".
 * NAME.json is looked up in `folders` [n_folders], in order. The text is checked by reading it,
 * then appended to `out_text`. Errors: NOTFOUND lists the known names; IO; INVALID, N for a cluster
 * whose nodes differ; those of opi_cluster_read. */
opipe_status opi_cluster_find(const char *spec, const char *const *folders, uint32_t n_folders,
                              opi_text *out_text, opipe_error *err);

/* ---- links.c ---- */

/* Operations per second of products of `dtype` whose smallest extent is `least`, by their shape
 * class; the device's `flops` if it has no rates of that type. 0: unknown. */
double opi_cluster_flops(const opi_cluster *cluster, uint32_t device, uint32_t dtype,
                         uint64_t least);

/* The link between two devices when nothing else uses it. */
typedef struct opi_cluster_link {
  uint32_t tier; /* OPIPE_NONE: the same device; nothing takes time */
  double latency_ns;
  double bytes_per_ns; /* of one message, including the tightest port; 0: no limit */
} opi_cluster_link;
opi_cluster_link opi_cluster_link_of(const opi_cluster *cluster, uint32_t src, uint32_t dst);
/* Time of one message of n_bytes on an idle link. */
double opi_cluster_message_ns(const opi_cluster *cluster, uint32_t src, uint32_t dst,
                              uint64_t n_bytes);
/* The ports that a message passes: out of src, then into dst, each a number below n_ports.
 * out_ports [2 * OPI_TIERS_MOST]; the first *n_out of them are outward. Returns their number. */
uint32_t opi_cluster_path(const opi_cluster *cluster, uint32_t src, uint32_t dst,
                          uint32_t *out_ports, uint32_t *out_n_out);

/* ---- collectives.c ---- */

enum {
  OPI_OP_ALL_REDUCE = 0,
  OPI_OP_REDUCE_SCATTER,
  OPI_OP_ALL_GATHER,
  OPI_OP_BROADCAST, /* from the first device of the group */
  OPI_OPS
};

/* Groups of devices that run the same collective at the same time. */
typedef struct opi_groups {
  const uint32_t *devices; /* [n_groups * n] group by group, in rank order */
  uint32_t n;              /* devices per group */
  uint32_t n_groups;
} opi_groups;

/* Time of `op` over n_bytes in all groups at once. n_bytes is the size of the whole: of the sum or,
 * for gathers and scatters, of all n shares. The collective runs in rounds of messages; a round
 * lasts as long as its slowest message, and messages that pass a port in the same round share it.
 * algorithm: OPI_COLLECTIVE_*; AUTO takes the tier's own, or the fastest if that is AUTO too.
 * O(n_groups n log n). Errors: INVALID, a device out of range or twice; NOMEM. */
opipe_status opi_cluster_collective_ns(const opi_cluster *cluster, uint32_t op, uint32_t algorithm,
                                       const opi_groups *groups, uint64_t n_bytes,
                                       const opipe_allocator *allocator, double *out_ns,
                                       opipe_error *err);
/* The same; also adds up traffic by port. io_use [2 * n_ports], or NULL: bytes that leave by each
 * port, then bytes that enter by each. */
opipe_status opi_cluster_collective_use(const opi_cluster *cluster, uint32_t op, uint32_t algorithm,
                                        const opi_groups *groups, uint64_t n_bytes,
                                        const opipe_allocator *allocator, double *out_ns,
                                        double *io_use, opipe_error *err);

#endif /* OPI_CLUSTER_H */
