/* SPDX-License-Identifier: Apache-2.0 */
/* Functions shared by operator rules: checks of inputs that write the whole error message,
 * attribute lists, short forms of emission.
 *
 * The checks never trust a file: every rule calls opi_need() before it looks at an input. Messages
 * name node, input and both numbers.
 */
#ifndef OPI_KIT_H
#define OPI_KIT_H

#include "loader/ops/builder.h"
#include "loader/ops/op.h"

/* -- inputs ------------------------------------------------------------------------------------ */

/* Classes of element types. */
enum {
  OPI_T_FLOAT = 1u,   /* fp16, bf16, fp32, fp64 */
  OPI_T_WIDE = 2u,    /* int32, int64 */
  OPI_T_UWIDE = 4u,   /* uint32, uint64 */
  OPI_T_SMALL = 8u,   /* int8, int16 */
  OPI_T_USMALL = 16u, /* uint8, uint16 */
  OPI_T_BOOL = 32u
};

/* Input `i`; NULL if absent. */
const opi_value *opi_input(const opi_builder *b, const opi_node *node, uint32_t i);
/* True if output `i` is requested. */
static inline bool opi_wants(const opi_node *node, uint32_t i) {
  return opi_node_out(node, i) != OPIPE_NONE;
}

/* Requires input `i` to be present, of one of the classes, with a rank in [min_rank, max_rank].
 * `role` is the input's name in the operator's specification. */
opipe_status opi_need(const opi_builder *b, const opi_node *node, uint32_t i, const char *role,
                      uint32_t classes, int32_t min_rank, int32_t max_rank, opipe_error *err);
/* The same for an optional input; does nothing if absent. */
opipe_status opi_may(const opi_builder *b, const opi_node *node, uint32_t i, const char *role,
                     uint32_t classes, int32_t min_rank, int32_t max_rank, opipe_error *err);
/* Requires inputs `i` and `j`, both present, to have the same type. */
opipe_status opi_need_same_type(const opi_builder *b, const opi_node *node, uint32_t i, uint32_t j,
                                opipe_error *err);
/* Requires input `i` to be present, of int8 or uint8. */
opipe_status opi_need_bytes(const opi_builder *b, const opi_node *node, uint32_t i,
                            const char *role, int32_t min_rank, int32_t max_rank, opipe_error *err);
/* Requires input `i`, if present, to be the zero point of input `i - 2`: of its type, with one
 * number or `n`, one for each `unit`; with n 1 only one. */
opipe_status opi_need_zero_point(const opi_builder *b, const opi_node *node, uint32_t i, int64_t n,
                                 const char *unit, opipe_error *err);
/* Requires axis `axis` of input `i` to be `want`; `what` describes it ("the hidden size"). Does
 * nothing if the input is absent. */
opipe_status opi_need_dim(const opi_builder *b, const opi_node *node, uint32_t i, uint32_t axis,
                          int64_t want, const char *what, opipe_error *err);
/* Requires input `i` to have exactly this shape. Does nothing if the input is absent. */
opipe_status opi_need_shape(const opi_builder *b, const opi_node *node, uint32_t i,
                            const int64_t *shape, uint32_t rank, opipe_error *err);
/* Attribute `axis` as an axis of input 0 in [0, rank). */
opipe_status opi_need_axis(const opi_builder *b, const opi_node *node, int64_t fallback,
                           uint32_t *out_axis, opipe_error *err);
/* A required integer attribute within [min, max]. */
opipe_status opi_need_int(const opi_builder *b, const opi_node *node, const char *name, int64_t min,
                          int64_t max, int64_t *out_value, opipe_error *err);
/* The first element of a known tensor as double; false if unknown, empty, or neither number nor
 * bool. */
bool opi_known_scalar(const opi_value *value, double *out_value);
/* Element i of a value with known content, as double; NaN if it is neither number nor bool. */
double opi_known_element(const opi_value *value, uint64_t i);
/* Elements of a value. */
double opi_k_elems(const opi_value *value);
double opi_k_elems_of(const opi_graph *graph, uint32_t value); /* 0 for OPIPE_NONE */

/* -- emission ---------------------------------------------------------------------------------- */

typedef struct opi_attrs {
  opipe_attr list[16];
  uint32_t n;
} opi_attrs;
void opi_attrs_int(opi_attrs *attrs, const char *name, int64_t value);
void opi_attrs_float(opi_attrs *attrs, const char *name, double value);
void opi_attrs_string(opi_attrs *attrs, const char *name, const char *value);
void opi_attrs_ints(opi_attrs *attrs, const char *name, const int64_t *ints, uint32_t n);

/* Emits a canonical node with any outputs; out [n_out]. domain NULL: "". Outputs not in `want` (one
 * bit per output) are absent. */
opipe_status opi_k_node(opi_builder *b, const char *op, const char *domain, uint32_t version,
                        const uint32_t *in, uint32_t n_in, uint32_t want, const opi_attrs *attrs,
                        uint32_t *out, opipe_error *err);
/* One output. attrs may be NULL. */
opipe_status opi_k_one(opi_builder *b, const char *op, uint32_t version, const uint32_t *in,
                       uint32_t n_in, const opi_attrs *attrs, uint32_t *out, opipe_error *err);
/* Emits the file node's single output and binds it. */
opipe_status opi_k_lift(opi_builder *b, const opi_node *node, const char *op, const char *domain,
                        uint32_t version, const opi_attrs *attrs, opipe_error *err);

opipe_status opi_k_reshape(opi_builder *b, uint32_t x, const int64_t *shape, uint32_t rank,
                           uint32_t *out, opipe_error *err);
opipe_status opi_k_transpose(opi_builder *b, uint32_t x, const int64_t *perm, uint32_t rank,
                             uint32_t *out, opipe_error *err);
/* Pads zeros before and after each axis, pads [2 * rank]; negative numbers crop. */
opipe_status opi_k_pad(opi_builder *b, uint32_t x, const int64_t *pads, uint32_t *out,
                       opipe_error *err);
opipe_status opi_k_cast(opi_builder *b, uint32_t x, uint32_t dtype, uint32_t *out,
                        opipe_error *err);
opipe_status opi_k_expand(opi_builder *b, uint32_t x, const int64_t *shape, uint32_t rank,
                          uint32_t *out, opipe_error *err);
opipe_status opi_k_slice(opi_builder *b, uint32_t x, int64_t axis, int64_t begin, int64_t end,
                         uint32_t *out, opipe_error *err);
opipe_status opi_k_concat(opi_builder *b, const uint32_t *in, uint32_t n_in, int64_t axis,
                          uint32_t *out, opipe_error *err);
opipe_status opi_k_reduce(opi_builder *b, const char *op, uint32_t version, uint32_t x,
                          const int64_t *axes, uint32_t n_axes, bool keepdims, uint32_t *out,
                          opipe_error *err);
opipe_status opi_k_where(opi_builder *b, uint32_t cond, uint32_t yes, uint32_t no, uint32_t *out,
                         opipe_error *err);
/* Reports out of memory if the constant could not be made. */
opipe_status opi_k_const(uint32_t value, opipe_error *err);
/* A bool constant [rows, cols]: a row may see key col if lo <= col - row - offset <= hi. */
opipe_status opi_k_band(opi_builder *b, int64_t rows, int64_t cols, int64_t offset, int64_t lo,
                        int64_t hi, uint32_t *out, opipe_error *err);

/* -- common rules -- */

opipe_status opi_k_infer_same(opi_builder *b, const opi_node *node, uint32_t classes,
                              opipe_error *err); /* output like input 0 */
opipe_status opi_infer_float(opi_builder *b, const opi_node *node,
                             opipe_error *err); /* the same, F only */
/* Outputs carry what input 0 carries; the other inputs must not carry anything. */
opipe_status opi_carry_first(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                             opi_carry *out, opipe_error *err);
/* As opi_carry_first, but refused if the carried dimension is `from` or later (only_that: exactly
 * `from`). */
opipe_status opi_carry_not(const opi_graph *graph, const opi_node *node, uint32_t from,
                           bool only_that, const opi_carry *in, opi_carry *out, opipe_error *err);
opipe_status opi_carry_refuse(const opi_graph *graph, const opi_node *node, uint32_t i,
                              const char *why, opipe_error *err);
/* flops per output element; bytes of all inputs and outputs. */
void opi_work_each(const opi_graph *graph, const opi_node *node, double flops, opi_work *out_work);
double opi_work_bytes(const opi_graph *graph, const opi_node *node);

#endif /* OPI_KIT_H */
