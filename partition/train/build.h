/* SPDX-License-Identifier: Apache-2.0 */
/* State of one cut under construction, shared by cut.c and program.c only. */
#ifndef OPI_TRAIN_BUILD_H
#define OPI_TRAIN_BUILD_H

#include "partition/train/cut.h"

typedef struct opi_train_build {
  const opi_training *training;
  const opi_graph *graph;
  const opi_train_cut *master; /* NULL: the own parameter table */
  opi_train_cut *cut;
  opi_arena scratch;
  uint32_t *param_of_value;    /* [n_values] slot in the parameter table, OPIPE_NONE */
  uint32_t *scalar_of_value;   /* [n_values] OPI_SCALAR_*, OPIPE_NONE */
  uint32_t *gradient_of_value; /* [n_values] slot of the parameter that it is the gradient of */
  uint32_t *state_of_value;    /* [n_values] 8 * state's index + OPI_STATE_*, 0: none */
  uint8_t *readers;            /* [n_values * n_stages] phases that read it, as bits */
  uint32_t *cell_of;           /* [n_values * n_stages] */
  uint32_t *local;             /* [n_values] index in the program under construction */
  uint32_t room_sources, room_trained, room_cells, room_routes;
  opipe_error *err;
} opi_train_build;

/* Fills the programs of one stage. program.c */
opipe_status opi_train_programs_build(opi_train_build *build, uint32_t stage);

#endif /* OPI_TRAIN_BUILD_H */
