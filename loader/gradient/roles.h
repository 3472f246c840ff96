/* SPDX-License-Identifier: Apache-2.0 */
/* How a constant meets activations on its way to the loss. Private to loader/gradient. */
#ifndef OPI_GRADIENT_ROLES_H
#define OPI_GRADIENT_ROLES_H

#include "loader/gradient/state.h"

enum {
  OPI_ROLE_WEIGHT = 1u, /* factor of a product or a convolution */
  OPI_ROLE_NORM = 2u,   /* scale or bias of a norm, bias of a Gemm or Conv */
  OPI_ROLE_ROWS = 4u,   /* rows taken by indices */
  OPI_ROLE_SHIFT = 8u,  /* added to an activation with dimensions; SCALE multiplies one */
  OPI_ROLE_SCALE = 16u,
  OPI_ROLE_COUNT = 32u,    /* factor of values made from integer inputs alone */
  OPI_ROLE_SCORE = 64u,    /* added to scores of attention, or its mask */
  OPI_ROLE_LEFT = 128u,    /* operand to which a weight is applied: latents, queries, coordinates */
  OPI_ROLE_INPUT = 256u,   /* scales or shifts a graph input itself */
  OPI_ROLE_JUDGED = 512u,  /* added to the input of the loss */
  OPI_ROLE_HALF = 1024u,   /* of a half type, cast to another */
  OPI_ROLE_PLACES = 2048u, /* rows taken by positions: indices that are not a graph input */
  OPI_ROLE_GROUP = 4096u,  /* scale or bias of a group norm, which exporters set to 1 and 0 */
  OPI_ROLE_TERM = 8192u,   /* scales or shifts an activation of rank 0: a term of the loss */
  OPI_ROLE_OTHER = 16384u,
  OPI_ROLE_NUMBER = 32768u, /* a number of the operator itself: an exponent, a bound */
  OPI_ROLE_MEAN = 65536u,   /* subtracted from a graph input itself, or divides it */
  OPI_ROLE_IMAGE = 131072u  /* with INPUT: that input has four dimensions */
};

typedef struct opi_roles {
  opi_grad_state *s;
  opi_uses uses;
  uint8_t *kinds;    /* [n_values] private bits */
  uint32_t *seen;    /* [n_values] */
  uint32_t *todo;    /* [n_values] */
  uint32_t judged;   /* input of the loss; OPIPE_NONE: unknown */
  uint32_t n_layers; /* nodes that read the last queried initializer as a parameter */
  opi_map *origins;  /* initializer -> index in bound->origins; freed by opi_roles_close */
  bool dotted;       /* parameters of this file are named by modules: "h.0.weight" */
  bool half;         /* most float elements of initializers are of a half type */
} opi_roles;

/* Scans the forward part of the training graph once. */
opipe_status opi_roles_open(opi_roles *roles, opi_grad_state *s, opipe_error *err);
void opi_roles_close(opi_roles *roles);
/* Evidence of the file's nodes about an initializer; NULL: none. */
const opi_origin *opi_roles_origin(const opi_roles *roles, const char *name);
/* OPI_ROLE_* of initializer v, followed through everything made from constants alone. */
uint32_t opi_roles_of(opi_roles *roles, uint32_t v);

#endif /* OPI_GRADIENT_ROLES_H */
