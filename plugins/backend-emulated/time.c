/* SPDX-License-Identifier: Apache-2.0 */
/* Modelled time of a program: given, for any run or by the passes that it has nodes of, or the sum
 * over its nodes of max(operations / flops, bytes / bandwidth). Operations are counted for products
 * (MatMul, Gemm, Conv, Attention); other nodes are taken at the speed of memory.
 */
#include "emulated.h"

static double elems_of(const opipe_value *value) {
  double n = 1;
  for (uint32_t d = 0; d < value->rank; ++d) {
    n *= (double)value->shape[d];
  }
  return n;
}

static double dim_from_end(const opipe_value *value, uint32_t back) {
  return value->rank >= back ? (double)value->shape[value->rank - back] : 1;
}

/* Multiplications and additions of a product; 0 for other operators. */
static double operations(const opipe_graph *graph, const opipe_node *node) {
  if (node->n_in < 2 || node->n_out < 1 || node->in[0] == OPIPE_NONE || node->in[1] == OPIPE_NONE ||
      node->out[0] == OPIPE_NONE) {
    return 0;
  }
  const opipe_value *a = &graph->values[node->in[0]], *b = &graph->values[node->in[1]],
                    *y = &graph->values[node->out[0]];
  if (strcmp(node->op, "MatMul") == 0 || strcmp(node->op, "FusedMatMul") == 0) {
    return 2 * elems_of(y) * dim_from_end(a, 1);
  }
  if (strcmp(node->op, "Gemm") == 0) {
    return 2 * elems_of(y) * dim_from_end(a, opipe_attr_int(node, "transA", 0) != 0 ? 2 : 1);
  }
  if (strcmp(node->op, "Conv") == 0 && b->rank > 0 && b->shape[0] > 0) {
    return 2 * elems_of(y) * elems_of(b) / (double)b->shape[0];
  }
  if (strcmp(node->op, "Attention") == 0) {
    return 4 * elems_of(y) * dim_from_end(b, 2);
  }
  return 0;
}

static double bytes_of(const opipe_graph *graph, const opipe_node *node) {
  double n = 0;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    n += node->in[i] == OPIPE_NONE ? 0 : (double)graph->values[node->in[i]].n_bytes;
  }
  for (uint32_t i = 0; i < node->n_out; ++i) {
    n += node->out[i] == OPIPE_NONE ? 0 : (double)graph->values[node->out[i]].n_bytes;
  }
  return n;
}

/* Sum of the times given for the passes of the program's nodes; false when none is given. */
static bool passes_ns(const options *o, const opipe_graph *graph, uint64_t *out_ns) {
  bool has[OPIPE_PASS_UPDATE] = {false};
  bool given = false;
  *out_ns = 0;
  for (uint32_t i = 0; i < graph->n_nodes; ++i) {
    const uint32_t pass = graph->nodes[i].pass;
    if (pass < OPIPE_PASS_UPDATE) {
      has[pass] = true;
    } else if (pass == OPIPE_PASS_BACKWARD) {
      has[OPIPE_PASS_BACKWARD_INPUT] = true;
      has[OPIPE_PASS_BACKWARD_WEIGHT] = true;
    }
  }
  for (uint32_t pass = 0; pass < OPIPE_PASS_UPDATE; ++pass) {
    given = given || o->pass_ns[pass] != 0;
    *out_ns += has[pass] ? o->pass_ns[pass] : 0;
  }
  return given;
}

uint64_t emudev_graph_ns(const options *o, const opipe_graph *graph) {
  double ns = 0;
  uint64_t passes = 0;
  if (o->time_ns != 0) {
    return o->time_ns;
  }
  if (passes_ns(o, graph, &passes)) {
    return passes;
  }
  for (uint32_t i = 0; i < graph->n_nodes; ++i) {
    const double compute = o->flops > 0 ? operations(graph, &graph->nodes[i]) / o->flops : 0;
    const double memory = o->bandwidth > 0 ? bytes_of(graph, &graph->nodes[i]) / o->bandwidth : 0;
    ns += (compute > memory ? compute : memory) * 1e9;
  }
  return ns > 1e15 ? (uint64_t)1e15 : (uint64_t)ns;
}
