/* SPDX-License-Identifier: Apache-2.0 */
/* Recurrent layers: what their lifting and their canonical operators share. Private to loader/ops.
 */
#ifndef OPI_OPS_RECURRENT_H
#define OPI_OPS_RECURRENT_H

#include "loader/ops/kit.h"

/* Inputs of opipe.LSTM, GRU, RNN; of their gradients: G, R, Y, then these from LENS on, then dY,
 * dY_h, dY_c. */
enum {
  OPI_REC_G = 0,
  OPI_REC_R = 1,
  OPI_REC_LENS = 2,
  OPI_REC_H0 = 3,
  OPI_REC_C0 = 4,
  OPI_REC_EXTRA = 5,
  OPI_REC_GRAD_Y = 2,
  OPI_REC_GRAD_LENS = 3,
  OPI_REC_GRAD_DY = 7
};

typedef enum opi_cell { OPI_CELL_LSTM = 0, OPI_CELL_GRU, OPI_CELL_RNN } opi_cell;

/* By the first letter of the operator's name. */
static inline opi_cell opi_cell_of(const opi_node *node) {
  return node->op[0] == 'L' ? OPI_CELL_LSTM : node->op[0] == 'G' ? OPI_CELL_GRU : OPI_CELL_RNN;
}
static inline int64_t opi_cell_gates(opi_cell cell) {
  return cell == OPI_CELL_LSTM ? 4 : cell == OPI_CELL_GRU ? 3 : 1;
}
static inline uint32_t opi_cell_functions(opi_cell cell) {
  return cell == OPI_CELL_LSTM ? 3 : cell == OPI_CELL_GRU ? 2 : 1;
}

#endif /* OPI_OPS_RECURRENT_H */
