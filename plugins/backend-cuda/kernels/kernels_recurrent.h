/* SPDX-License-Identifier: Apache-2.0 */
/* The border of kernels.h, continued: recurrent layers (opipe.LSTM, GRU, RNN). */
#ifndef OPIPE_BACKEND_CUDA_KERNELS_RECURRENT_H_
#define OPIPE_BACKEND_CUDA_KERNELS_RECURRENT_H_

#include "kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A step is a product by the library, sums = h R^T, and a launch behind it; a GRU that resets in
 * front of its last product is two of each. Gates stand in the standard's order: i o f c, z r h. */
typedef enum cuda_recurrent_part {
  CUDA_RECURRENT_BEGIN, /* h, state = h0; cell = c0; lens are looked at */
  CUDA_RECURRENT_LSTM,
  CUDA_RECURRENT_GRU,   /* with linear_before_reset: sums of all gates */
  CUDA_RECURRENT_RESET, /* GRU: sums of z and r; sums of z become z, h becomes r h */
  CUDA_RECURRENT_RENEW, /* and behind it: sums of the last gate, of r h */
  CUDA_RECURRENT_RNN,
  CUDA_RECURRENT_END, /* last_h = state, last_c = cell */
  CUDA_RECURRENT_PARTS
} cuda_recurrent_part;

/* Activations: CUDA_MAP_* of one operand, and these. */
enum {
  CUDA_GATE_AFFINE = CUDA_MAP_COUNT, /* alpha x + beta */
  CUDA_GATE_SCALED_TANH              /* alpha tanh(beta x) */
};

/* Elements of g, extra, h0, c0, h, y and of what is last are of one type; `real` is float, double
 * of double. A row keeps its state once its steps are over, and y is 0 from there on. */
typedef struct cuda_recurrent_args {
  const void *g;       /* [steps, batch, gates, hidden] what the layer's input gives to the gates */
  const void *extra;   /* LSTM: peepholes [3, hidden] of i, o, f; GRU: what is added to the sums of
                          the last gate, [hidden]; NULL: none */
  const void *lens;    /* [batch] steps of each row; NULL: all */
  const void *h0, *c0; /* [batch, hidden]; NULL: 0 */
  void *y;             /* [steps, batch, hidden]; NULL: nobody reads it */
  void *last_h, *last_c; /* [batch, hidden]; NULL */
  void *h;               /* [batch, hidden] what the next product reads */
  void *state, *cell;    /* [batch, hidden] of real */
  void *sums;            /* [batch, gates, hidden] of real */
  cuda_status *status;   /* BEGIN */
  int64_t steps, batch, hidden;
  int64_t step;                   /* how many came before */
  double clip;                    /* of what activations of gates take; 0: none */
  double alpha[3], beta[3];       /* of the activations */
  uint32_t activation[3];         /* f g h of the standard */
  uint32_t part;                  /* CUDA_RECURRENT_* */
  uint32_t gates;                 /* 4, 3, 1 */
  uint32_t lens_bytes;            /* of a length: 4, 8 */
  uint32_t reverse, input_forget; /* 0 or 1 */
  uint32_t node;
  uint32_t reserved;
} cuda_recurrent_args;
bool cuda_plan_recurrent(const cuda_recurrent_args *args, uint32_t dtype, cuda_launch *out);

#ifdef __cplusplus
}
#endif
#endif
