/* SPDX-License-Identifier: Apache-2.0 */
/* Recurrent layers of one direction (opipe.LSTM, GRU, RNN) and their gradients: what the forward
 * and the backward files share. S steps, B rows of the batch, H hidden units, N gates (LSTM 4, GRU
 * 3, RNN 1).
 */
#ifndef OPIPE_BACKEND_CPU_OPS_RECURRENT_H_
#define OPIPE_BACKEND_CPU_OPS_RECURRENT_H_

#include <math.h>

#include "loop.h"

typedef enum cpu_cell { CPU_CELL_LSTM = 0, CPU_CELL_GRU = 1, CPU_CELL_RNN = 2 } cpu_cell;

/* The standard's activations of recurrent layers. */
typedef enum cpu_gate_kind {
  CPU_GATE_SIGMOID = 0,
  CPU_GATE_TANH,
  CPU_GATE_RELU,
  CPU_GATE_AFFINE,           /* alpha x + beta */
  CPU_GATE_LEAKY_RELU,       /* x, alpha x below 0 */
  CPU_GATE_THRESHOLDED_RELU, /* x above alpha, else 0 */
  CPU_GATE_SCALED_TANH,      /* alpha tanh(beta x) */
  CPU_GATE_HARD_SIGMOID,     /* alpha x + beta within 0 .. 1 */
  CPU_GATE_ELU,              /* x, alpha (exp(x) - 1) below 0 */
  CPU_GATE_SOFTSIGN,
  CPU_GATE_SOFTPLUS,
  CPU_GATE_COUNT
} cpu_gate_kind;

typedef struct cpu_gate {
  cpu_gate_kind kind;
  double alpha, beta;
} cpu_gate;

/* f(x) */
double cpu_gate_value(const cpu_gate *f, double x);

/* Inputs of the forward operator; of the gradient, whose inputs begin with G, R, Y, from 3 on those
 * from 2 on here, then dY, dY_h, dY_c. */
enum {
  CPU_REC_G = 0,     /* [S,B,N*H] what the layer's input gives to the gates, biases added */
  CPU_REC_R = 1,     /* [N*H,H] */
  CPU_REC_LENS = 2,  /* [B] steps of each row; absent: S */
  CPU_REC_H0 = 3,    /* [B,H]; absent: 0 */
  CPU_REC_C0 = 4,    /* the same, LSTM */
  CPU_REC_EXTRA = 5, /* LSTM: peepholes [3H]; GRU, linear_before_reset: what is added to h R^T of
                        the last gate, [H] */
  CPU_REC_GRAD_Y = 2,
  CPU_REC_GRAD_LENS = 3,
  CPU_REC_GRAD_H0 = 4,
  CPU_REC_GRAD_C0 = 5,
  CPU_REC_GRAD_EXTRA = 6,
  CPU_REC_GRAD_DY = 7,
  CPU_REC_GRAD_DYH = 8,
  CPU_REC_GRAD_DYC = 9
};

/* A part of R that is multiplied by at once: gates [first, first + n). */
typedef struct cpu_rec_block {
  int64_t first, n;
} cpu_rec_block;

typedef struct cpu_rec_plan {
  cpu_cell cell;
  int64_t steps, batch, hidden, gates;
  bool reverse, input_forget, linear_before_reset;
  double clip; /* of what activations of gates take; 0: none */
  cpu_gate gate[3];
  uint32_t n_blocks;
  cpu_rec_block block[2];
  bool fast; /* in fp32 by packed products */
} cpu_rec_plan;

/* Reads attributes, checks shapes of G, R and of the four inputs from `lens` on, and asks for
 * layouts.
 */
opipe_status cpu_rec_init(cpu_prep *p, cpu_rec_plan *plan, uint32_t lens);
/* Operands, where trailing ones may be left out. */
const cpu_tensor *cpu_rec_in(const cpu_call *call, uint32_t i);
const cpu_tensor *cpu_rec_out(const cpu_call *call, uint32_t i);
/* Where step i of a row of `length` steps stands. */
static inline int64_t cpu_rec_step(const cpu_rec_plan *plan, int64_t i, int64_t length) {
  return plan->reverse ? length - 1 - i : i;
}
/* Checks the lengths at a run. */
opipe_status cpu_rec_check_lens(const cpu_call *call, const cpu_tensor *lens,
                                const cpu_rec_plan *plan, opipe_error *err);
static inline int64_t cpu_rec_length(const cpu_tensor *lens, const cpu_rec_plan *plan,
                                     int64_t row) {
  return lens->data == NULL ? plan->steps : cpu_index(lens, (uint64_t)row);
}

/* Runs `inner` with all floats in fp64, in the workspace: the reference for fp32.
 * cpu_rec_double_bytes: what that takes before inner's own workspace; 0 for fp64. */
opipe_status cpu_rec_in_double(const cpu_call *call, cpu_kernel inner, opipe_error *err);
uint64_t cpu_rec_double_bytes(const cpu_prep *p);

#endif
