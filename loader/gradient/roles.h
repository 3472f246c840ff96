/* SPDX-License-Identifier: Apache-2.0 */
/* How a constant meets activations on its way to the loss; private to loader/gradient. */
#ifndef OPI_GRADIENT_ROLES_H
#define OPI_GRADIENT_ROLES_H

#include "loader/gradient/state.h"

enum {
  OPI_ROLE_WEIGHT = 1u, /* factor of a product or a convolution */
  OPI_ROLE_NORM = 2u,   /* scale or bias of a norm, bias of a Gemm or Conv */
  OPI_ROLE_ROWS = 4u,   /* rows taken by indices */
  OPI_ROLE_SHIFT = 8u,  /* of an activation with dimensions, as SCALE */
  OPI_ROLE_SCALE = 16u,
  OPI_ROLE_COUNT = 32u,    /* factor of what is made of integer inputs alone */
  OPI_ROLE_SCORE = 64u,    /* added to scores of attention, or its mask */
  OPI_ROLE_LEFT = 128u,    /* what a weight is applied to: latents, queries, coordinates */
  OPI_ROLE_INPUT = 256u,   /* scales or shifts a graph input itself */
  OPI_ROLE_JUDGED = 512u,  /* added to what the loss judges */
  OPI_ROLE_HALF = 1024u,   /* of a half type, cast to another */
  OPI_ROLE_PLACES = 2048u, /* rows taken by places: indices that are no graph input */
  OPI_ROLE_GROUP = 4096u,  /* scale or bias of a norm by groups, which exporters give 1 and 0 */
  OPI_ROLE_TERM = 8192u,   /* scales or shifts an activation of no dimension: a term of the loss */
  OPI_ROLE_OTHER = 16384u,
  OPI_ROLE_NUMBER = 32768u, /* a number of the operator's own: an exponent, a bound */
  OPI_ROLE_MEAN = 65536u,   /* subtracted from a graph input itself, or divides it */
  OPI_ROLE_IMAGE = 131072u  /* beside INPUT: that has four dimensions */
};

typedef struct opi_roles {
  opi_grad_state *s;
  opi_uses uses;
  uint8_t *kinds;    /* [n_values] private bits */
  uint32_t *seen;    /* [n_values] */
  uint32_t *todo;    /* [n_values] */
  uint32_t judged;   /* value that the loss judges, OPIPE_NONE: unknown */
  uint32_t n_layers; /* of the initializer asked for last: nodes that read it as a parameter */
  opi_map *origins;  /* initializer -> index in bound->origins; freed by opi_roles_close */
  bool dotted;       /* parameters of this file are named by modules: "h.0.weight" */
  bool half;         /* most float elements of initializers are of a half type */
} opi_roles;

/* Looks at the forward part of the training graph once. */
opipe_status opi_roles_open(opi_roles *roles, opi_grad_state *s, opipe_error *err);
void opi_roles_close(opi_roles *roles);
/* What the file's nodes tell of an initializer; NULL: nothing. */
const opi_origin *opi_roles_origin(const opi_roles *roles, const char *name);
/* OPI_ROLE_* of initializer v, by way of everything that is made of constants. */
uint32_t opi_roles_of(opi_roles *roles, uint32_t v);

#endif /* OPI_GRADIENT_ROLES_H */
