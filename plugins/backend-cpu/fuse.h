/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of nodes that become one step: what fuse.c (steps) and fuse_match.c (patterns) share.
 */
#ifndef OPIPE_BACKEND_CPU_FUSE_H_
#define OPIPE_BACKEND_CPU_FUSE_H_

#include "ops/op.h"

enum { CPU_GROUP_EXTRA = 6, CPU_GROUP_REPLACED = 3 };

typedef struct cpu_group {
  const opipe_node *main; /* whose rule is asked */
  cpu_fusion fusion;
  uint32_t extra[CPU_GROUP_EXTRA];       /* values appended to the main node's inputs */
  uint32_t replaced[CPU_GROUP_REPLACED]; /* instead of its first inputs, OPIPE_NONE: as they are */
  uint32_t n_extra;
  uint32_t out; /* the group's result: in place of the main node's first output */
  uint32_t sum; /* further output, OPIPE_NONE */
} cpu_group;

typedef struct cpu_fuser {
  opipe_program *program;
  const opipe_graph *graph;
  uint32_t *first;    /* [n_values + 1] into users */
  uint32_t *users;    /* node indices, one entry per use */
  uint32_t *made;     /* [n_values] node that makes it, OPIPE_NONE */
  bool *taken;        /* [n_nodes] part of a group */
  uint32_t *wide;     /* [n_values] fp32 parameter of which it is a half copy, OPIPE_NONE */
  uint32_t *unpacked; /* [n_values] node that unpacks it in registers of its readers, OPIPE_NONE */
  uint32_t *turned;   /* [n_values] parameter of integers whose transposition it is, OPIPE_NONE */
  uint32_t *redirect; /* [n_values] accumulator that takes the value's place, OPIPE_NONE */
  cpu_group **at;     /* [n_nodes] group whose step stands here */
  opipe_error *err;
} cpu_fuser;

/* Finds groups: marks nodes as taken and puts groups where their steps stand. */
opipe_status cpu_match_groups(cpu_fuser *f);

/* Products read an fp32 weight where the graph gives them its cast: fills `wide`, marks casts that
 * nobody else reads. True for a product whose second operand may be replaced so. */
void cpu_match_casts(cpu_fuser *f);
bool cpu_takes_wide(const opipe_node *node);
/* Products read weights of few bits where the graph gives them the unpacked matrix: fills
 * `unpacked`, marks nodes that nobody else reads. */
void cpu_match_unpacked(cpu_fuser *f);
/* Products of integers read a parameter where the graph gives them its transposition: fills
 * `turned`, marks nodes that nobody else reads. */
void cpu_match_turned(cpu_fuser *f);
/* Finds gradients that go straight into accumulators: fills `redirect`, marks nodes as taken. */
opipe_status cpu_match_accumulate(cpu_fuser *f);

#endif
