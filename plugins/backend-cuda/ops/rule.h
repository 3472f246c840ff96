/* SPDX-License-Identifier: Apache-2.0 */
/* The interface of operators: a rule looks at its node, checks types and shapes, and emits steps.
 * `support` runs the same rules and throws the steps away.
 *
 *   cuda_row  an operator's row: name, rule, counts; ops/registry.c lists the families
 */
#ifndef OPIPE_BACKEND_CUDA_OPS_RULE_H_
#define OPIPE_BACKEND_CUDA_OPS_RULE_H_

#include "../program.h"

enum { CUDA_TAGS = 48 };

typedef struct cuda_rule {
  opipe_program *program; /* steps go here */
  const opipe_node *node;
  cuda_step *step;          /* the last one emitted */
  uint32_t tags[CUDA_TAGS]; /* values that the next launch's arguments point at */
  uint32_t n_tags;
  opipe_error *err;
} cuda_rule;

/* A rule that refuses (UNSUPPORTED: another device may do it) has made no view: its steps are
 * dropped. */
typedef opipe_status (*cuda_rule_fn)(cuda_rule *r);
typedef struct cuda_row {
  const char *op;
  cuda_rule_fn rule;
  uint8_t least_in, most_in, most_out; /* most 255: no limit */
} cuda_row;
typedef struct cuda_family {
  const char *domain;
  const cuda_row *rows;
  uint32_t n;
} cuda_family;

extern const cuda_family cuda_attention_family, cuda_einsum_family, cuda_elementwise_family,
    cuda_gradient_family, cuda_index_family, cuda_linear_family, cuda_loss_family,
    cuda_loss_gradient_family, cuda_movement_family, cuda_norm_gradient_family,
    cuda_recurrent_family, cuda_reduce_family, cuda_rows_family, cuda_contrib_family,
    cuda_dropout_family, cuda_parts_family, cuda_row_attention_family, cuda_window_family,
    cuda_window_gradient_family;

/* registry.c: checks counts and runs the node's rule. Errors name the node. */
opipe_status cuda_rule_run(cuda_rule *r);
bool cuda_is_accumulate(const opipe_node *node);

/* ---- the node that a rule looks at ---- */

/* NULL: absent */
const opipe_value *cuda_in(const cuda_rule *r, uint32_t i);
const opipe_value *cuda_out(const cuda_rule *r, uint32_t i);
uint64_t cuda_elems(const opipe_value *value);
uint32_t cuda_size(const opipe_value *value); /* bytes of an element, 0 below a byte */
bool cuda_is_float(uint32_t dtype);           /* fp16, bf16, fp32, fp64 */
bool cuda_is_half(uint32_t dtype);            /* fp16, bf16: what is trained has a master of fp32 */
bool cuda_same_shape(const opipe_value *a, const opipe_value *b);
bool cuda_named(const opipe_node *node, const char *domain, const char *op);
/* Fails with "node 'n' (Op): " before the text. */
opipe_status cuda_refuse(const cuda_rule *r, opipe_status status, const char *fmt, ...)
    OPIPE_PRINTF(3, 4);
opipe_status cuda_nomem(const cuda_rule *r);
/* No kernel for these types: UNSUPPORTED. */
opipe_status cuda_no_kernel(const cuda_rule *r, const opipe_value *value);
/* Elements of a known input of int64 (rank 0 or 1). */
opipe_status cuda_known_ints(const cuda_rule *r, uint32_t i, const int64_t **out, uint32_t *out_n);
/* axis within [0, rank) */
opipe_status cuda_axis(const cuda_rule *r, int64_t axis, uint32_t rank, uint32_t *out);
/* Product of shape[from, to). */
int64_t cuda_extent(const opipe_value *value, uint32_t from, uint32_t to);
/* Output i must be there, of this type and shape. */
opipe_status cuda_expect(const cuda_rule *r, uint32_t i, uint32_t dtype, const int64_t *shape,
                         uint32_t rank);
opipe_status cuda_expect_like(const cuda_rule *r, uint32_t i, const opipe_value *like);

/* Attributes `first` and `whole` of a member that has `own` of the entries (parts.c). */
opipe_status cuda_read_range(const cuda_rule *r, int64_t own, int64_t *out_first,
                             int64_t *out_whole);

/* ---- losses of half types (fuse_loss.c, loss.c) ---- */

/* Is there a kernel for the loss, or its gradient, of scores of `dtype` that the graph widens to
 * fp32 for it? The node's inputs are there. */
bool cuda_loss_reads(opipe_program *program, const opipe_node *node, uint32_t dtype);

/* ---- strided loops ---- */

/* A loop over `rank` axes with up to four operands; merging axes that all operands walk evenly. */
typedef struct cuda_loop {
  int64_t shape[OPIPE_MAX_RANK];
  int64_t stride[4][OPIPE_MAX_RANK];
  uint32_t rank;
  uint32_t n_operands;
} cuda_loop;
/* Drops axes of one element and merges neighbours; UNSUPPORTED where more than CUDA_AXES are left.
 */
opipe_status cuda_loop_merge(const cuda_rule *r, cuda_loop *loop);

/* ---- steps that a rule emits ----
 *
 * A rule fills an argument block whose pointers are not known yet: cuda_at_in and its kin give
 * stand-ins, as well aligned as the address will be. The plan puts them where its kernel wants
 * them, and cuda_emit finds them there. */

/* The gradient that the rule is to add output i to, and not to write it; OPIPE_NONE: none. */
uint32_t cuda_accumulator(const cuda_rule *r, uint32_t i);
/* NULL: absent. An output's accumulator where there is one. */
void *cuda_at_in(cuda_rule *r, uint32_t i);
void *cuda_at_out(cuda_rule *r, uint32_t i);
/* A value of the graph (OPIPE_NONE: NULL), a part of one, or CUDA_AT_WORKSPACE; bytes behind its
 * address, >= 0. */
void *cuda_at(cuda_rule *r, uint32_t value, int64_t bytes);
/* Where the launch reports bad data, and the node's number for that. */
opipe_status cuda_at_status(cuda_rule *r, cuda_status **out_status, uint32_t *out_node);
/* The run's counters [CUDA_COUNTERS]. */
void *cuda_at_counters(cuda_rule *r);
/* Appends a launch: r->step. */
opipe_status cuda_emit(cuda_rule *r, const cuda_launch *launch);
/* Appends a step that is no launch: r->step. */
opipe_status cuda_emit_step(cuda_rule *r, uint32_t kind);
/* Appends n launches of one block of arguments. */
opipe_status cuda_emit_all(cuda_rule *r, const cuda_launch *launches, uint32_t n);
/* For steps that are no launches: the pointer at `offset` of the last step's arguments. */
opipe_status cuda_point(cuda_rule *r, size_t offset, uint32_t value, int64_t bytes);
/* The last step may write out[0] over input i. */
void cuda_may_overwrite(cuda_rule *r, uint32_t i);
void cuda_want_workspace(cuda_rule *r, uint64_t n_bytes);
/* out[i] has the bytes of value `of`: no step, or a copy where it cannot share them. */
opipe_status cuda_view(cuda_rule *r, uint32_t i, uint32_t of);
/* to = from, n_bytes of both, on the device. */
opipe_status cuda_emit_copy(cuda_rule *r, uint32_t to, uint32_t from, uint64_t n_bytes);
/* A map over out[0] of the first n_in inputs, which broadcast to it; an operand that args has lies
 * there in its place. in_dtype as cuda_plan_map. */
opipe_status cuda_emit_map(cuda_rule *r, cuda_map_args *args, uint32_t n_in, uint32_t in_dtype);
/* Sorts indices and writes by them; args without workspace and status. */
opipe_status cuda_emit_scatter(cuda_rule *r, cuda_scatter_args *args, uint32_t dtype,
                               uint32_t out_dtype);
/* out[0] of zero bytes. */
opipe_status cuda_emit_zeros(cuda_rule *r);
opipe_status cuda_emit_product(cuda_rule *r, const cuda_product *product);
/* Where the arguments of a product are: values (OPIPE_NONE: absent) or CUDA_AT_WORKSPACE, and bytes
 * behind their addresses. */
typedef struct cuda_spot {
  uint32_t value;
  int64_t bytes;
} cuda_spot;
typedef struct cuda_spots {
  cuda_spot a, b, c, d, bias, aux;
} cuda_spots;
/* ops/even.c: the product, or where its extents are no whole vectors and it is large, its parts.
 * The offsets of `product` are among the spots' bytes. */
opipe_status cuda_emit_even(cuda_rule *r, const cuda_product *product, const cuda_spots *at);
/* Values that the arguments of a product lie in, from its offsets on; OPIPE_NONE: absent. */
typedef struct cuda_ends {
  uint32_t a, b, bias, c, aux, d;
  int64_t bias_bytes; /* where the bias begins */
} cuda_ends;
/* ops/padded.c: the product in pieces whose rows are whole vectors. *out_done false: it is emitted
 * as it is. */
opipe_status cuda_emit_padded(cuda_rule *r, const cuda_product *product, const cuda_ends *ends,
                              bool *out_done);
/* A plan of the device's; workspace_bytes: that the step needs at CUDA_AT_WORKSPACE. Stand-ins stay
 * good for another one. */
opipe_status cuda_emit_plan(cuda_rule *r, const cuda_dnn_plan *plan, const cuda_dnn_args *args,
                            uint64_t workspace_bytes);

#define CUDA_ROWS(array) array, (uint32_t)(sizeof(array) / sizeof((array)[0]))

#endif /* OPIPE_BACKEND_CUDA_OPS_RULE_H_ */
