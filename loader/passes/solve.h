/* SPDX-License-Identifier: Apache-2.0 */
/* State of solving one model's free dimensions. Private to solve_dims.c and solve_names.c. Names
 * are looked up once, when a dimension is collected; from then on they are indices.
 */
#ifndef OPI_SOLVE_H
#define OPI_SOLVE_H

#include "loader/passes/private.h"

typedef struct opi_unknown {
  const char *name;
  int64_t value;               /* -1: unknown */
  bool first_axis, other_axis; /* where it occurs in inputs */
  bool whole;                  /* the name is an expression over others */
  bool handed;                 /* part of the result */
  uint32_t first_use, n_uses;  /* in uses: dimensions whose expressions involve it */
} opi_unknown;

/* One free dimension. */
typedef struct opi_dimension {
  const char *key;
  opi_expr *expr;       /* NULL: the key is the unknown itself */
  uint32_t size;        /* of the expression */
  uint32_t unknown;     /* of the key */
  uint32_t input, axis; /* a file value, and its axis */
  int64_t own;          /* a number of its own that overrides its name; -1: none */
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
  bool took_default;             /* for an unknown that nothing determines */
  uint64_t work;                 /* names, numbers and operations evaluated so far */
  opi_map *names;                /* of unknowns */
  opi_map *places;               /* "INPUT.axis" of dims; NULL: not built yet */
  opi_map *pins, *shapes;        /* of the options */
} opi_solver;

/* Limit on the work for one model; exporters' files take a few thousand. */
enum { OPI_SOLVE_BUDGET = 1 << 26 };

uint32_t opi_solver_find(const opi_solver *s, const char *name); /* OPIPE_NONE: no such unknown */
/* Adds a dimension of input `input` (a file value) and its unknowns. */
opipe_status opi_solver_add(opi_solver *s, uint32_t input, uint32_t axis, opipe_error *err);
/* Call after the last opi_solver_add and before the first opi_solver_assign. */
opipe_status opi_solver_link(opi_solver *s, opipe_error *err);
/* Assigns a number. The message about a contradiction contains `why`. */
opipe_status opi_solver_assign(opi_solver *s, uint32_t u, int64_t value, const char *why,
                               opipe_error *err);
/* Evaluates expressions, or solves them for a single unknown name, until nothing changes. */
opipe_status opi_solver_propagate(opi_solver *s, opipe_error *err);

#endif /* OPI_SOLVE_H */
