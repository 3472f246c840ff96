/* SPDX-License-Identifier: Apache-2.0 */
/* State of one cut under construction, shared by cut.c, params.c and program.c only. */
#ifndef OPI_CUT_BUILD_H
#define OPI_CUT_BUILD_H

#include "partition/program/cut.h"

/* A value that a stage reads or makes. */
typedef struct opi_cut_use {
  uint32_t value;
  uint32_t readers; /* phases of the stage that read it, as bits */
} opi_cut_use;

typedef struct opi_cut_builder {
  const opi_cut_source *source;
  const opi_graph *graph;
  const opi_training *training; /* NULL: forward only */
  opi_cut *cut;
  opi_arena scratch;
  uint32_t *node_first, *nodes; /* nodes of stage s: nodes[node_first[s]] ... */
  opi_cut_use *uses;            /* by stage, then by value */
  uint32_t *use_first;          /* [n_stages + 1] */
  bool *elsewhere;              /* [n_values] read in a stage other than its maker's */
  uint32_t *param_of_value;     /* [n_values] slot in the parameter table, OPIPE_NONE */
  uint32_t *scalar_of_value;    /* [n_values] OPI_SCALAR_*, OPIPE_NONE */
  uint32_t *gradient_of_value;  /* [n_values] slot of the parameter of which it is the gradient */
  uint32_t *state_of_value;     /* [n_values] 8 * state's index + OPI_STATE_*, 0: none */
  uint32_t *port_of_value;      /* [n_values] index in the graph's inputs, OPIPE_NONE */
  uint32_t *output_of_value;    /* [n_values] the first in the graph's outputs, OPIPE_NONE */
  uint32_t *home_cell;          /* [n_values] cell in its maker's stage, OPIPE_NONE */
  uint32_t *relay;              /* [cells] of the same stage, which has received the tensor already,
                                   OPIPE_NONE */
  uint32_t *here;               /* [n_values] use or cell in the current stage, OPIPE_NONE */
  uint32_t *local;              /* [n_values] index in the current program, OPIPE_NONE */
  uint32_t *wanted;             /* [n_values] number of the last program that reads it */
  bool *runs;                   /* [n_nodes] by nodes: it is in the current program */
  opi_map *master_slots;        /* by name; NULL: not needed yet */
  uint32_t *seen_param;         /* [n_params] number of the last program that uses it */
  uint32_t n_programs;          /* made so far */
  uint32_t n_uses, room_uses, room_sources, room_trained, room_cells, room_routes;
  opipe_error *err;
} opi_cut_builder;

static inline uint32_t opi_phase_of(const opi_node *node) {
  return node->pass == OPIPE_PASS_BACKWARD_INPUT    ? OPI_PHASE_I
         : node->pass == OPIPE_PASS_BACKWARD_WEIGHT ? OPI_PHASE_W
                                                    : OPI_PHASE_F;
}

/* Makes [n] entries of OPIPE_NONE in the builder's scratch memory; NULL: out of memory. */
uint32_t *opi_cut_table(opi_cut_builder *build, size_t n);
/* Makes the parameter table, and marks values that are parameters or gradients of one. params.c */
opipe_status opi_cut_params(opi_cut_builder *build);
/* Fills the programs of one stage. program.c */
opipe_status opi_programs_build(opi_cut_builder *build, uint32_t stage);

#endif /* OPI_CUT_BUILD_H */
