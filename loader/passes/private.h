/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of a binding, and the expressions of dimensions. Private to loader/passes and its
 * tests. */
#ifndef OPI_PASSES_PRIVATE_H
#define OPI_PASSES_PRIVATE_H

#include "loader/ops/walk.h"
#include "loader/passes/passes.h"

/* One bind with all dimensions solved; opi_bind repeats it while it searches defaults. out_needed
 * (may be NULL): after INVALID what a rule needs of an input, if that is why. */
opipe_status opi_bind_solved(const opi_model *model, const opi_bind_options *options,
                             const opi_dim_binding *dims, uint32_t n_dims, opi_bound **out_bound,
                             opi_needed *out_needed, opipe_error *err);
/* Searches other defaults after `dims` failed to bind; `first` and `needed` say why. */
opipe_status opi_bind_search(const opi_model *model, const opi_bind_options *options,
                             const opi_dim_binding *dims, uint32_t n_dims, const opipe_error *first,
                             const opi_needed *needed, opi_bound **out_bound, opipe_error *err);
/* A dimension whose name says that it is a length or the batch. */
bool opi_is_length_name(const char *name);
bool opi_is_batch_name(const char *name);
/* The key of dimension `axis` of a file input: its name, or "INPUT.axis". NULL: out of memory. */
const char *opi_dim_key(opi_arena *arena, const opi_value *input, uint32_t axis);
/* "INPUT.axis", which takes precedence over the name. */
const char *opi_dim_place(opi_arena *arena, const opi_value *input, uint32_t axis);
/* As opi_solve_dims; in addition the dimension at `place` (NULL: none) gets a number of its own.
 * *out_defaults (may be NULL): some dimension took a default. */
opipe_status opi_solve_with(const opi_model *model, const opi_bind_options *options,
                            const opi_dim_binding *place, opi_arena *arena,
                            opi_dim_binding **out_dims, uint32_t *out_n, bool *out_defaults,
                            opipe_error *err);

/* widen.c: turns half types into float32, for training. `arena`: of the bound graph. */
opipe_status opi_pass_widen(opi_builder *b, const opi_model *model, opi_arena *arena,
                            opipe_error *err);
/* origins.c: fills bound->origins. */
opipe_status opi_find_origins(const opi_model *model, opi_arena *scratch, opi_bound *bound,
                              opipe_error *err);
/* Exclusive upper bounds of the values of integer graph inputs; see passes.h. */
opipe_status opi_index_limits(const opi_graph *graph, opi_arena *arena, int64_t **out_limits,
                              opipe_error *err);

/* -- expressions over dimensions: + - * // / % ( ) integers identifiers, max(a,b) min(a,b) -- */
typedef struct opi_expr opi_expr;
/* *out_expr NULL: `text` is a plain name, not an expression. */
opipe_status opi_expr_parse(opi_arena *arena, const char *text, opi_expr **out_expr,
                            opipe_error *err);
/* Visits each occurrence of a name with its id, which the caller may set; false stops. */
typedef bool (*opi_expr_visitor)(void *ctx, const char *name, uint32_t *io_id);
bool opi_expr_visit(opi_expr *expr, opi_expr_visitor visit, void *ctx);
uint32_t opi_expr_size(const opi_expr *expr); /* names, numbers and operations */
typedef bool (*opi_expr_lookup)(const void *ctx, const char *name, uint32_t id, int64_t *out_value);
/* False: an unknown name, a division by zero or an overflow. */
bool opi_expr_eval(const opi_expr *expr, opi_expr_lookup lookup, const void *ctx,
                   int64_t *out_value);

#endif /* OPI_PASSES_PRIVATE_H */
