/* SPDX-License-Identifier: Apache-2.0 */
/* Functions shared by operator families: checks of types and attributes, common axis rules. Private
 * to loader/ops (and loader/passes/carry.c).
 *
 * Axis rules ("carry"): a value whose carry has axis >= 0 holds the special axis, of length N, in
 * that dimension as outer * N * inner elements. A graph has a single N at any time.
 */
#ifndef OPI_OPS_COMMON_H
#define OPI_OPS_COMMON_H

#include "loader/ops/builder.h"

#include <inttypes.h>

/* -- inputs in infer and lift rules -- */
/* The value of input i. Errors: INVALID if it is absent. */
opipe_status opi_in(opi_builder *b, const opi_node *node, uint32_t i, const opi_value **out_value,
                    opipe_error *err);
/* The value of an optional input; NULL if absent. */
const opi_value *opi_in_optional(const opi_builder *b, const opi_node *node, uint32_t i);
/* Type classes. Messages name input, actual and allowed types. */
enum {
  OPI_TYPES_FLOAT = 1u,
  OPI_TYPES_INTEGER = 2u,
  OPI_TYPES_BOOL = 4u,
  OPI_TYPES_INDEX = 8u /* int32, int64 */
};
opipe_status opi_check_type(const opi_builder *b, const opi_node *node, const opi_value *value,
                            uint32_t types, opipe_error *err);
/* Checks that all present inputs from `first` on have the type of input `first`. */
opipe_status opi_check_same_type(opi_builder *b, const opi_node *node, uint32_t first,
                                 opipe_error *err);
/* Attribute `name`; `fallback` if absent. Errors: INVALID, another kind. */
opipe_status opi_int_attr(const opi_builder *b, const opi_node *node, const char *name,
                          int64_t fallback, int64_t *out_value, opipe_error *err);
/* Attribute `name` as an axis of rank `rank`. */
opipe_status opi_axis_attr(const opi_builder *b, const opi_node *node, const char *name,
                           int64_t fallback, uint32_t rank, uint32_t *out_axis, opipe_error *err);
/* Adds an int64 constant to the bound graph. Errors: NOMEM. */
opipe_status opi_ints_value(opi_builder *b, const int64_t *ints, uint32_t n, uint32_t *out_value,
                            opipe_error *err);
/* Reads the int64 list of attribute `name` or, if absent, of input i. *out_ints NULL: neither
 * exists. */
opipe_status opi_attr_or_input(opi_builder *b, const opi_node *node, const char *name, uint32_t i,
                               const int64_t **out_ints, uint32_t *out_n, opipe_error *err);
static inline const int64_t *opi_shape_of(const opi_builder *b, uint32_t v) {
  return b->graph->values[v].shape;
}
static inline uint32_t opi_rank_of(const opi_builder *b, uint32_t v) {
  return (uint32_t)b->graph->values[v].rank;
}
/* Element i of a known int32 or int64 tensor. */
int64_t opi_index_at(const opi_value *value, uint64_t i);
/* Elements of a bound value. */
uint64_t opi_elems(const opi_value *value);

/* Output 0 has the type and shape of input 0. */
opipe_status opi_infer_same(opi_builder *b, const opi_node *node, opipe_error *err);
/* Reshapes `value` to the same number of elements: the value itself if the shape is the same, no
 * copy of known data, else a Reshape node. kept [rank of value], or NULL: target dimension of each
 * dimension, -1 if dropped; axis rules need it if the axis has length 1. */
opipe_status opi_emit_reshape(opi_builder *b, uint32_t value, const int64_t *shape, uint32_t rank,
                              const int64_t *kept, uint32_t *out_value, opipe_error *err);
/* The same for the file node's input 0, as its output 0. Checks the number of elements. */
opipe_status opi_lift_reshape(opi_builder *b, const opi_node *node, const int64_t *shape,
                              uint32_t rank, const int64_t *kept, opipe_error *err);

/* -- work rules -- */
void opi_work_move(const opi_graph *graph, const opi_node *node,
                   opi_work *out_work); /* no flops; outputs read and written */

/* -- carry rules -- */
#define OPI_CARRY_NONE ((opi_carry){-1, 0, 1, 1})
static inline bool opi_carries(const opi_carry *carry) {
  return carry->axis >= 0;
}
/* Length of the special axis, from a value that carries it. */
int64_t opi_carry_length(const opi_value *value, const opi_carry *carry);
opipe_status opi_carry_fail(const opi_graph *graph, const opi_node *node, opipe_error *err,
                            const char *fmt, ...) OPIPE_PRINTF(4, 5);
/* For a value without the axis that is read beside one with it in dimension `axis`: true if all N
 * parts along it are equal. */
bool opi_is_uniform(const opi_graph *graph, uint32_t value, uint32_t axis, int64_t outer,
                    int64_t length, int64_t inner);
/* For known indices [.., n] (GatherND, ScatterND): true if component c always equals the coordinate
 * along their dimension d; true if the other components do not depend on that coordinate. */
bool opi_index_is_coordinate(const opi_value *at, uint32_t d, uint32_t c);
bool opi_index_others_are_uniform(const opi_value *at, uint32_t d, uint32_t c);
/* Element-wise with broadcasting over all inputs; every output has the shape of output 0. */
opipe_status opi_carry_broadcast(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                                 opi_carry *out, opipe_error *err);
/* Outputs carry what input 0 carries; other inputs must not carry anything. */
opipe_status opi_carry_same(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                            opi_carry *out, opipe_error *err);
/* As opi_carry_same, but the dimensions [first, last) mix and must not carry the axis. Messages say
 * that they are `what`: "normalised" ... */
opipe_status opi_carry_mixing(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                              opi_carry *out, uint32_t first, uint32_t last, const char *what,
                              opipe_error *err);
/* The carry of `to` when it has the elements of `from` in row-major order; axis -1 if no dimension
 * keeps the factor. */
opi_carry opi_carry_reshape(const opi_value *from, const opi_carry *carry, const opi_value *to);

#endif /* OPI_OPS_COMMON_H */
