/* SPDX-License-Identifier: Apache-2.0 */
/* Private to loader/passes: the steps of a binding, the expressions of dimensions. Included by
 * nothing outside this folder and its tests. */
#ifndef OPI_PASSES_PRIVATE_H
#define OPI_PASSES_PRIVATE_H

#include "loader/ops/walk.h"
#include "loader/passes/passes.h"

/* One bind with every dimension solved; what opi_bind repeats while it searches defaults. */
opipe_status opi_bind_solved(const opi_model *model, const opi_bind_options *options,
                             const opi_dim_binding *dims, uint32_t n_dims, opi_bound **out_bound,
                             opipe_error *err);
/* Called when the defaults `dims` did not bind: `first` says why. */
opipe_status opi_bind_search(const opi_model *model, const opi_bind_options *options,
                             const opi_dim_binding *dims, uint32_t n_dims, const opipe_error *first,
                             opi_bound **out_bound, opipe_error *err);
/* The key of dimension `axis` of a file input: its name, or its place. NULL: out of memory. */
const char *opi_dim_key(opi_arena *arena, const opi_value *input, uint32_t axis);
/* "INPUT.axis": beats the name where both have a number. */
const char *opi_dim_place(opi_arena *arena, const opi_value *input, uint32_t axis);
/* As opi_solve_dims; at the end the dimension at `place` (NULL: none) takes a number of its own.
 * *out_defaults (NULL: nobody asks): some dimension took a default. */
opipe_status opi_solve_with(const opi_model *model, const opi_bind_options *options,
                            const opi_dim_binding *place, opi_arena *arena,
                            opi_dim_binding **out_dims, uint32_t *out_n, bool *out_defaults,
                            opipe_error *err);

/* widen.c: half types become float32, for training. `arena`: of the bound graph. */
opipe_status opi_pass_widen(opi_builder *b, const opi_model *model, opi_arena *arena,
                            opipe_error *err);
/* origins.c: fills bound->origins. */
opipe_status opi_find_origins(const opi_model *model, opi_arena *scratch, opi_bound *bound,
                              opipe_error *err);
/* What a value of each integer graph input must stay below; see passes.h. */
opipe_status opi_index_limits(const opi_graph *graph, opi_arena *arena, int64_t **out_limits,
                              opipe_error *err);
/* Copies what is reachable into `arena`: garbage of the passes stays behind. */
opipe_status opi_graph_copy(const opi_graph *graph, opi_arena *arena, opi_graph **out_graph,
                            opipe_error *err);

/* -- expressions over dimensions: + - * // / % ( ) integers identifiers, max(a,b) min(a,b) -- */
typedef struct opi_expr opi_expr;
/* *out_expr NULL: `text` is no expression, but a plain name. */
opipe_status opi_expr_parse(opi_arena *arena, const char *text, opi_expr **out_expr,
                            opipe_error *err);
/* Each name where it stands, with its id, which is the caller's to set; false ends it. */
typedef bool (*opi_expr_visitor)(void *ctx, const char *name, uint32_t *io_id);
bool opi_expr_visit(opi_expr *expr, opi_expr_visitor visit, void *ctx);
uint32_t opi_expr_size(const opi_expr *expr); /* names, numbers and operations */
typedef bool (*opi_expr_lookup)(const void *ctx, const char *name, uint32_t id, int64_t *out_value);
/* False: a name is unknown, a division by zero or an overflow. */
bool opi_expr_eval(const opi_expr *expr, opi_expr_lookup lookup, const void *ctx,
                   int64_t *out_value);

#endif /* OPI_PASSES_PRIVATE_H */
