/* SPDX-License-Identifier: Apache-2.0 */
/* A cluster as a value: devices, the nodes that they stand in, and the tiers of links between them.
 *
 * Devices are numbered in the order of the file, node after node. A *tier* joins groups of devices:
 * some neighbours in a node, a whole node, some neighbouring nodes, all. Two devices talk over the
 * first tier that joins them. What a tier joins are its *members*: devices, in a tier inside nodes;
 * in one between nodes the groups of the tier before (nodes, where that is inside them). A member
 * has a *port* into the tier, of so many bytes per second each way, which all that goes through it
 * at one time shares in equal parts. Traffic inside a node passes the ports of its own tier alone;
 * between nodes those of every tier between nodes up to where the two meet. A message has no more
 * than the tier's bandwidth, and comes the tier's latency later.
 *
 * A value that was read is not changed any more: any thread may ask. All of it lies in the arena
 * that it was read into.
 */
#ifndef OPI_CLUSTER_H
#define OPI_CLUSTER_H

#include <opipe/host.h>

#include "partition/plan/plan.h"

#define OPI_CLUSTER_FORMAT "onnx-pipe cluster 1"

enum { OPI_CLUSTER_DEVICES_MOST = 4096, OPI_TIERS_MOST = 8 };

/* How fast a device multiplies matrices of one type, of a class of shapes: those whose smallest
 * extent (of rows, columns and what is summed over) is at least `least`. */
typedef struct opi_rate {
  uint32_t dtype; /* OPIPE_FLOAT ... */
  uint64_t least;
  double flops; /* operations per second */
} opi_rate;

/* An entry of "devices". */
typedef struct opi_device_class {
  const char *name;      /* NULL: none */
  const opi_rate *rates; /* [n_rates] by dtype, then rising `least` */
  double host_bandwidth; /* bytes per second each way between its memory and its host's; 0: there is
                            no way */
  uint32_t n_rates;
} opi_device_class;

/* By which algorithm a tier's groups sum and gather. */
enum {
  OPI_COLLECTIVE_AUTO = 0,     /* the one that takes least */
  OPI_COLLECTIVE_RING,         /* bandwidth-optimal (Patarasu and Yuan 2009) */
  OPI_COLLECTIVE_RABENSEIFNER, /* recursive halving, then doubling (Thakur et al. 2005) */
  OPI_COLLECTIVE_TREE,         /* binomial: to the root, and back (the same) */
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
  uint32_t collective;            /* OPI_COLLECTIVE_* of groups that it is the first to join */
  bool in_node;
  uint32_t n_members, n_groups;
  uint32_t *member_of, *group_of; /* [n_devices] */
  double *port_bytes_per_ns;      /* [n_members] each way; 0: no limit */
  uint32_t first_port;            /* port of member i: first_port + i */
} opi_tier;

/* What a message occupies while it is on its way. */
enum {
  OPI_OCCUPIES_LINK = 0, /* ranks go on */
  OPI_OCCUPIES_RANK = 1  /* sender and receiver stand still (copies by the ranks' own threads) */
};

typedef struct opi_cluster {
  const char *name; /* NULL: none */
  uint32_t n_devices, n_classes, n_nodes, n_tiers, n_ports;
  opipe_device_choice *devices;           /* [n_devices] */
  opipe_device_description *descriptions; /* [n_devices] */
  uint32_t *class_of, *node_of;           /* [n_devices] */
  opi_device_class *classes;              /* [n_classes] */
  opi_tier *tiers; /* [n_tiers] from the nearest; at least one, the last joins all */
  opipe_link_description link;
  const char *transport; /* of the link; NULL: the file has none */
  uint32_t occupies;     /* OPI_OCCUPIES_* */
} opi_cluster;

/* ---- read.c, tiers.c ---- */

/* name: of the text, in messages. Errors: INVALID and LIMIT name entry, field and both values;
 * UNSUPPORTED, another version. */
opipe_status opi_cluster_read(const char *name, const void *json, uint64_t n_bytes,
                              opi_arena *arena, opi_cluster *out_cluster, opipe_error *err);

/* ---- ready.c ---- */

/* The text of a cluster, "PATH", "NAME", either with ":nodes=N" behind it; NAME.json is looked for
 * in `folders` [n_folders], in order. Checked by reading it; appended to `out_text`. Errors:
 * NOTFOUND lists the names that there are; IO; INVALID, nodes of a cluster whose nodes differ;
 * those of opi_cluster_read. */
opipe_status opi_cluster_find(const char *spec, const char *const *folders, uint32_t n_folders,
                              opi_text *out_text, opipe_error *err);

/* ---- links.c ---- */

/* Operations per second of products of `dtype` whose smallest extent is `least`: of the class that
 * they fall in; without rates of that type the device's `flops`. 0: unknown. */
double opi_cluster_flops(const opi_cluster *cluster, uint32_t device, uint32_t dtype,
                         uint64_t least);

/* The link between two devices, alone on it. */
typedef struct opi_cluster_link {
  uint32_t tier; /* OPIPE_NONE: they are one device; nothing takes time */
  double latency_ns;
  double bytes_per_ns; /* of one message, the tightest port counted; 0: no limit */
} opi_cluster_link;
opi_cluster_link opi_cluster_link_of(const opi_cluster *cluster, uint32_t src, uint32_t dst);
/* Time of one message of n_bytes, alone. */
double opi_cluster_message_ns(const opi_cluster *cluster, uint32_t src, uint32_t dst,
                              uint64_t n_bytes);
/* The ports that it passes: out of src, then into dst, each a number below n_ports.
 * out_ports [2 * OPI_TIERS_MOST]; *out_n_out of them are passed outwards. Returns how many. */
uint32_t opi_cluster_path(const opi_cluster *cluster, uint32_t src, uint32_t dst,
                          uint32_t *out_ports, uint32_t *out_n_out);

/* ---- collectives.c ---- */

enum {
  OPI_OP_ALL_REDUCE = 0,
  OPI_OP_REDUCE_SCATTER,
  OPI_OP_ALL_GATHER,
  OPI_OP_BROADCAST, /* from the group's first */
  OPI_OPS
};

/* Groups of devices that do the same at the same time. */
typedef struct opi_groups {
  const uint32_t *devices; /* [n_groups * n] group by group, in the order of their ranks */
  uint32_t n;              /* devices of each */
  uint32_t n_groups;       /* 1: one alone */
} opi_groups;

/* Time of `op` over n_bytes (all of what is summed; of gathers and scatters: the whole, of which
 * each has 1 / n) in each of the groups at once: rounds of messages, each as long as its slowest,
 * where those that pass one port in a round share it. algorithm: OPI_COLLECTIVE_*; AUTO takes the
 * tier's own, and where that is AUTO too the fastest. Costs O(n_groups n log n). Errors: INVALID, a
 * device out of range or twice; NOMEM. */
opipe_status opi_cluster_collective_ns(const opi_cluster *cluster, uint32_t op, uint32_t algorithm,
                                       const opi_groups *groups, uint64_t n_bytes,
                                       const opipe_allocator *allocator, double *out_ns,
                                       opipe_error *err);
/* The same; adds the bytes that leave by every port, and behind those of all ports the bytes that
 * come in: io_use [2 * n_ports], or NULL. */
opipe_status opi_cluster_collective_use(const opi_cluster *cluster, uint32_t op, uint32_t algorithm,
                                        const opi_groups *groups, uint64_t n_bytes,
                                        const opipe_allocator *allocator, double *out_ns,
                                        double *io_use, opipe_error *err);

#endif /* OPI_CLUSTER_H */
