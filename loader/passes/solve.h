/* SPDX-License-Identifier: Apache-2.0 */
/* Private to solve_dims.c and solve_names.c: the free dimensions of one model while they are given
 * numbers. Names are looked up once, when a dimension is collected; from then on they are indices.
 */
#ifndef OPI_SOLVE_H
#define OPI_SOLVE_H

#include "loader/passes/private.h"

typedef struct opi_unknown {
  const char *name;
  int64_t value;               /* -1: not known */
  bool first_axis, other_axis; /* where it stands in inputs */
  bool whole;                  /* the name is an expression over others */
  bool handed;                 /* stands in the result */
  uint32_t first_use, n_uses;  /* in uses: dimensions whose expression has to do with it */
} opi_unknown;

/* One free dimension. */
typedef struct opi_dimension {
  const char *key;
  opi_expr *expr;       /* NULL: the key is the unknown itself */
  uint32_t size;        /* of the expression */
  uint32_t unknown;     /* of the key */
  uint32_t input, axis; /* a file value, and where */
  int64_t own;          /* a number of its own, against its name; -1: none */
} opi_dimension;

/* An expression's dimension and one of its unknowns. */
typedef struct opi_use {
  uint32_t unknown, dim;
} opi_use;

typedef struct opi_solver {
  const opi_model *model;
  const opi_bind_options *options;
  opi_arena *arena;
  opi_unknown *unknowns;
  opi_dimension *dims;
  opi_use *pairs; /* as collected */
  uint32_t *uses; /* the dimensions of `pairs`, by unknown */
  uint32_t *queue;
  bool *queued; /* [n_dims] */
  uint32_t n_unknowns, room_unknowns, n_dims, room_dims, n_pairs, room_pairs;
  uint32_t queue_first, n_queue; /* a ring of n_dims */
  bool took_default;             /* for an unknown that nothing says */
  uint64_t work;                 /* names, numbers and operations evaluated so far */
  opi_map *names;                /* of unknowns */
  opi_map *places;               /* "INPUT.axis" of dims; NULL: not asked for yet */
  opi_map *pins, *shapes;        /* of the options */
} opi_solver;

/* The most work of one model: exporters' files take some thousands. */
enum { OPI_SOLVE_BUDGET = 1 << 26 };

uint32_t opi_solver_find(const opi_solver *s, const char *name); /* OPIPE_NONE: no such unknown */
/* A dimension of input `input` (a file value) with its unknowns. */
opipe_status opi_solver_add(opi_solver *s, uint32_t input, uint32_t axis, opipe_error *err);
/* After the last opi_solver_add, before the first opi_solver_assign. */
opipe_status opi_solver_link(opi_solver *s, opipe_error *err);
/* `why` stands in the message when it contradicts. */
opipe_status opi_solver_assign(opi_solver *s, uint32_t u, int64_t value, const char *why,
                               opipe_error *err);
/* Evaluates expressions, or solves them for their only unknown name, until nothing moves. */
opipe_status opi_solver_propagate(opi_solver *s, opipe_error *err);

#endif /* OPI_SOLVE_H */
