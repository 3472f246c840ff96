/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers, one row each: the only place that says what one is called, takes and keeps. A new one
 * needs a row here and arithmetic in the backends.
 *
 * The numbers are part of the ABI. The other columns are not: as with helpers.h, every user gets a
 * copy.
 */
#ifndef OPIPE_OPTIMIZERS_H
#define OPIPE_OPTIMIZERS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Largest learning rate, of options and of a single step (OPIPE_SUBMIT_LR). */
#define OPIPE_LR_MOST 1e30

/* Settings of optimizers, in the order in which they are listed.
 *   NUMBER(KEY, field, key, most)    a number from 0 to `most`
 *   SWITCH(KEY, field, key, off, on) a flag (OPIPE_TRAIN_KEY, OPIPE_UPDATE_KEY) and its two words
 * field: in opipe_train_options, opipe_update and plan files; key: in texts ("eps=1e-8") */
/* clang-format off */
#define OPIPE_TAKES(NUMBER, SWITCH) \
  NUMBER(LR, lr, "lr", OPIPE_LR_MOST) \
  NUMBER(MOMENTUM, momentum, "momentum", 1.0) \
  SWITCH(NESTEROV, nesterov, "nesterov", "0", "1") \
  NUMBER(BETA1, beta1, "beta1", 1.0 - 1e-12) \
  NUMBER(BETA2, beta2, "beta2", 1.0 - 1e-12) \
  NUMBER(EPSILON, epsilon, "eps", 1e30) \
  NUMBER(DECAY, decay, "decay", 1e30) \
  SWITCH(EPS_INNER, eps_inner, "eps-mode", "torch", "hf")

/* X(KEY, number, name, title, takes, moments, with_momentum, decoupled, usual...), in the order of
 * numbers:
 *   KEY, number    OPIPE_OPTIMIZER_KEY, OPIPE_UPDATE_KEY; the formulas are in backend.h
 *   name, title    name: in texts and plan files; title: in descriptions
 *   takes          OPIPE_TAKES_* of the settings that it uses
 *   moments        fp32 tensors of state for each parameter: first, second
 *   with_momentum  the same if its momentum is not 0
 *   decoupled      1: decay is subtracted from the weight; 0: it is added to the gradient
 *   usual          default of each number, in order; -1: texts must state it */
#define OPIPE_OPTIMIZERS(X) \
  X(SGD, 0, "sgd", "SGD", OPIPE_TAKES_OF_SGD, 0, 1, 0, -1, 0, 0.9, 0.999, 1e-8, 0) \
  X(ADAM, 1, "adam", "Adam", OPIPE_TAKES_OF_ADAM, 2, 2, 0, -1, 0, 0.9, 0.999, 1e-8, 0) \
  X(ADAMW, 2, "adamw", "AdamW", OPIPE_TAKES_OF_ADAM, 2, 2, 1, -1, 0, 0.9, 0.999, 1e-8, 0.01)
#define OPIPE_TAKES_OF_SGD \
  (OPIPE_TAKES_LR | OPIPE_TAKES_MOMENTUM | OPIPE_TAKES_NESTEROV | OPIPE_TAKES_DECAY)
#define OPIPE_TAKES_OF_ADAM \
  (OPIPE_TAKES_LR | OPIPE_TAKES_BETA1 | OPIPE_TAKES_BETA2 | OPIPE_TAKES_EPSILON | \
   OPIPE_TAKES_DECAY | OPIPE_TAKES_EPS_INNER)
/* clang-format on */

#define OPIPE_LEFT_OUT(...) /* for users of only one kind of row */
#define OPIPE_COUNT_(...) +1
#define OPIPE_TAKES_PLACE_(KEY, ...) OPIPE_TAKES_PLACE_##KEY,
#define OPIPE_TAKES_BIT_(KEY, ...) OPIPE_TAKES_##KEY = 1 << OPIPE_TAKES_PLACE_##KEY,
#define OPIPE_OPTIMIZER_(KEY, number, ...) OPIPE_OPTIMIZER_##KEY = number,
#define OPIPE_UPDATE_(KEY, number, ...) OPIPE_UPDATE_##KEY = number,
enum { OPIPE_TAKES(OPIPE_TAKES_PLACE_, OPIPE_TAKES_PLACE_) };
enum { OPIPE_TAKES(OPIPE_TAKES_BIT_, OPIPE_TAKES_BIT_) };
enum { OPIPE_OPTIMIZERS(OPIPE_OPTIMIZER_) OPIPE_N_OPTIMIZERS = OPIPE_OPTIMIZERS(OPIPE_COUNT_) };
enum { OPIPE_OPTIMIZERS(OPIPE_UPDATE_) };
enum { OPIPE_N_OPTIMIZER_NUMBERS = OPIPE_TAKES(OPIPE_COUNT_, OPIPE_LEFT_OUT) };
enum { OPIPE_MOMENTS_MOST = 2 }; /* opipe_update has fields for so many */

typedef struct opipe_optimizer_row {
  const char *name, *title;
  uint32_t takes;
  uint32_t moments, with_momentum, decoupled;
  double usual[OPIPE_N_OPTIMIZER_NUMBERS];
} opipe_optimizer_row;

#ifndef OPIPE_CDEF
/* number: below OPIPE_N_OPTIMIZERS. */
static inline const opipe_optimizer_row *opipe_optimizer_row_of(uint32_t number) {
#define OPIPE_OPTIMIZER_ROW_(KEY, number, name, title, takes, moments, with, decoupled, ...) \
  {name, title, takes, moments, with, decoupled, {__VA_ARGS__}},
  static const opipe_optimizer_row rows[] = {OPIPE_OPTIMIZERS(OPIPE_OPTIMIZER_ROW_)};
  return &rows[number];
}
#endif

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_OPTIMIZERS_H */
