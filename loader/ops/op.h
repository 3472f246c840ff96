/* SPDX-License-Identifier: Apache-2.0 */
/* What the project knows about an operator: one opi_op per operator, one file per family in this
 * folder.
 *
 * Adding an operator: write its rules in the family's file, add it to that family's table, add the
 * kernel to each backend. Nothing else. The canonical form of an operator is that of its newest
 * known ONNX version, with one exception per rule in the family's comment.
 */
#ifndef OPI_OP_H
#define OPI_OP_H

#include "loader/graph/graph.h"

typedef struct opi_builder opi_builder; /* loader/ops/builder.h */
typedef struct opi_grad opi_grad;       /* loader/ops/rules.h */

/* How a value carries one of the special axes (batch, token, feature): dimension `axis` has outer *
 * N * inner elements in row-major factors, N the length of the special axis. axis -1: the value
 * does not carry it (every part sees the same value).
 * count: not 0 for positions that count along the axis, as row * tokens + token does: the entries
 * of element n are n * count more than they are where that element stands first. */
typedef struct opi_carry {
  int32_t axis;
  uint32_t reserved;
  int64_t outer;
  int64_t inner;
  int64_t count;
} opi_carry;

typedef struct opi_work {
  double flops; /* a multiply-add counts 2 */
  double bytes; /* read + written, parameters included */
} opi_work;

typedef struct opi_op {
  const char *name;
  const char *domain;
  uint16_t first,
      last; /* opset versions of the domain whose forms are known (last: newest known) */
  uint8_t min_in, max_in, min_out, max_out; /* max_in 255: any number */
  /* File form -> canonical form. `node` has inputs already mapped to the bound graph's values;
   * emits nodes through the builder, which infers and folds each. NULL: the form is canonical as it
   * is. */
  opipe_status (*lift)(opi_builder *builder, const opi_node *node, opipe_error *err);
  /* Canonical form: sets dtype, rank and shape of every output value. Input shapes are numbers.
   * Inputs whose content decides the shape are read with opi_known_ints(). Checks every input's
   * type and shape; messages name node, tensor and both numbers. */
  opipe_status (*infer)(opi_builder *builder, const opi_node *node, opipe_error *err);
  /* NULL: element-wise, flops = output elements, bytes = all inputs and outputs. */
  void (*work)(const opi_graph *graph, const opi_node *node, opi_work *out_work);
  /* How outputs carry an axis when the inputs carry it as given: in [n_in], out [n_out]. Splitting
   * the axis must commute with the operator: else OPIPE_E_UNSUPPORTED with a reason. NULL: an
   * operator that carries none (refused when an input does). */
  opipe_status (*carry)(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                        opi_carry *out, opipe_error *err);
  /* Emits the gradient of `node` and contributes to its inputs' gradients
   * (loader/ops/rules.h). NULL with stops_gradient 0: not differentiable, an error where a
   * gradient is wanted. */
  opipe_status (*gradient)(opi_grad *g, const opi_node *node, opipe_error *err);
  uint64_t stops_gradient; /* bit i: no gradient ever flows into input i (indices, shapes, masks);
                              bit 63: nor into any input from 63 on. All ones: outputs are constant
                              almost everywhere */
  uint64_t sequences; /* bit i: input i may be a sequence of tensors; bit 63: those from 63 on */
} opi_op;

/* "" and "ai.onnx" are one domain. NULL: unknown operator. */
const opi_op *opi_op_find(const char *domain, const char *name);

/* Each family's table: {ops, n}. registry.c lists the families. */
typedef struct opi_op_family {
  const opi_op *ops;
  uint32_t n;
} opi_op_family;

/* Work of one node, whatever its rule. */
void opi_node_work(const opi_graph *graph, const opi_node *node, opi_work *out_work);

#endif /* OPI_OP_H */
