/* SPDX-License-Identifier: Apache-2.0 */
/* Recurrent layers: definitions for their lifting and their canonical operators. Private to
 * loader/ops.
 */
#ifndef OPI_OPS_RECURRENT_H
#define OPI_OPS_RECURRENT_H

#include "loader/ops/kit.h"

/* Inputs of opipe.LSTM, GRU, RNN. Their gradients have G, R, Y, then the inputs from LENS on, then
 * dY, dY_h, dY_c. */
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

typedef enum opi_recurrence {
  OPI_RECURRENCE_LSTM = 0,
  OPI_RECURRENCE_GRU,
  OPI_RECURRENCE_RNN
} opi_recurrence;

/* By the first letter of the operator's name. */
static inline opi_recurrence opi_recurrence_of(const opi_node *node) {
  return node->op[0] == 'L'   ? OPI_RECURRENCE_LSTM
         : node->op[0] == 'G' ? OPI_RECURRENCE_GRU
                              : OPI_RECURRENCE_RNN;
}
static inline int64_t opi_recurrence_gates(opi_recurrence cell) {
  return cell == OPI_RECURRENCE_LSTM ? 4 : cell == OPI_RECURRENCE_GRU ? 3 : 1;
}
static inline uint32_t opi_recurrence_functions(opi_recurrence cell) {
  return cell == OPI_RECURRENCE_LSTM ? 3 : cell == OPI_RECURRENCE_GRU ? 2 : 1;
}

#endif /* OPI_OPS_RECURRENT_H */
