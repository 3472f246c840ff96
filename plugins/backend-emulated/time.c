/* SPDX-License-Identifier: Apache-2.0 */
/* Modelled time of a program: given, for any run or by the passes that it has nodes of, of all
 * stages alike or by stage; or the sum over its nodes of max(operations / flops, bytes /
 * bandwidth). Operations are counted for products (MatMul, Gemm, Conv, Attention); other nodes are
 * taken at the speed of memory.
 */
#include "emulated.h"

static double elems_of(const opipe_value *value) {
  double n = 1;
  for (uint32_t d = 0; d < value->rank; ++d)
    n *= (double)value->shape[d];
  return n;
}

static double dim_from_end(const opipe_value *value, uint32_t back) {
  return value->rank >= back ? (double)value->shape[value->rank - back] : 1;
}

/* Multiplications and additions of a product; 0 for other operators. */
static double operations(const opipe_graph *graph, const opipe_node *node) {
  if (node->n_in < 2 || node->n_out < 1 || node->in[0] == OPIPE_NONE || node->in[1] == OPIPE_NONE ||
      node->out[0] == OPIPE_NONE)
    return 0;
  const opipe_value *a = &graph->values[node->in[0]], *b = &graph->values[node->in[1]],
                    *y = &graph->values[node->out[0]];
  if (strcmp(node->op, "MatMul") == 0 || strcmp(node->op, "FusedMatMul") == 0)
    return 2 * elems_of(y) * dim_from_end(a, 1);
  if (strcmp(node->op, "Gemm") == 0)
    return 2 * elems_of(y) * dim_from_end(a, opipe_attr_int(node, "transA", 0) != 0 ? 2 : 1);
  if (strcmp(node->op, "Conv") == 0 && b->rank > 0 && b->shape[0] > 0)
    return 2 * elems_of(y) * elems_of(b) / (double)b->shape[0];
  if (strcmp(node->op, "Attention") == 0)
    return 4 * elems_of(y) * dim_from_end(b, 2);
  return 0;
}

static double bytes_of(const opipe_graph *graph, const opipe_node *node) {
  double n = 0;
  for (uint32_t i = 0; i < node->n_in; ++i)
    n += node->in[i] == OPIPE_NONE ? 0 : (double)graph->values[node->in[i]].n_bytes;
  for (uint32_t i = 0; i < node->n_out; ++i)
    n += node->out[i] == OPIPE_NONE ? 0 : (double)graph->values[node->out[i]].n_bytes;
  return n;
}

static opipe_status time_of(const times *t, uint32_t stage, const char *option, uint64_t *io_ns,
                            opipe_error *err) {
  const uint32_t i = t->n == 1 || stage == OPIPE_NONE ? 0 : stage;
  if (t->n == 0)
    return OPIPE_OK;
  if (i >= t->n) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "backend 'emulated': %s lists %u stages, there is a program of stage %u",
                      option, t->n, stage);
  }
  *io_ns += t->ns[i];
  return OPIPE_OK;
}

/* Adds the times given for the passes of the program's nodes. */
static opipe_status passes_ns(const options *o, const opipe_graph *graph, uint32_t stage,
                              uint64_t *io_ns, opipe_error *err) {
  static const char *const names[OPIPE_PASS_UPDATE] = {
      [OPIPE_PASS_FORWARD] = "forward_us",
      [OPIPE_PASS_BACKWARD_INPUT] = "backward_input_us",
      [OPIPE_PASS_BACKWARD_WEIGHT] = "backward_weight_us"};
  bool has[OPIPE_PASS_UPDATE] = {false};
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
    const opipe_status status =
        has[pass] ? time_of(&o->pass[pass], stage, names[pass], io_ns, err) : OPIPE_OK;
    if (status < 0)
      return status;
  }
  return OPIPE_OK;
}

static bool are_passes_given(const options *o) {
  bool given = false;
  for (uint32_t pass = 0; pass < OPIPE_PASS_UPDATE; ++pass)
    given = given || o->pass[pass].n != 0;
  return given;
}

opipe_status emudev_graph_ns(const options *o, const opipe_graph *graph, uint32_t stage,
                             uint64_t *out_ns, opipe_error *err) {
  double ns = 0;
  *out_ns = 0;
  if (o->run.n != 0)
    return time_of(&o->run, stage, "time_us", out_ns, err);
  if (are_passes_given(o))
    return passes_ns(o, graph, stage, out_ns, err);
  for (uint32_t i = 0; i < graph->n_nodes; ++i) {
    const double compute = o->flops > 0 ? operations(graph, &graph->nodes[i]) / o->flops : 0;
    const double memory = o->bandwidth > 0 ? bytes_of(graph, &graph->nodes[i]) / o->bandwidth : 0;
    ns += (compute > memory ? compute : memory) * 1e9;
  }
  *out_ns = ns > 1e15 ? (uint64_t)1e15 : (uint64_t)ns;
  return OPIPE_OK;
}

/* ---- parts ---- */

/* Weight of a node among those of its pass, as far as no times of nodes are given: operations and 8
 * for each byte, as in the plans' own clock. */
static double weight_of(const options *o, const opipe_graph *graph, const opipe_node *node) {
  enum { OPERATIONS_OF_BYTE = 8 };
  if (o->run.n != 0 || are_passes_given(o))
    return operations(graph, node) + OPERATIONS_OF_BYTE * bytes_of(graph, node);
  const double compute = o->flops > 0 ? operations(graph, node) / o->flops : 0;
  const double memory = o->bandwidth > 0 ? bytes_of(graph, node) / o->bandwidth : 0;
  return compute > memory ? compute : memory;
}

/* The pass whose given time a node shares; without such times all nodes are of one. */
static uint32_t pass_of(const options *o, const opipe_node *node) {
  return o->run.n == 0 && are_passes_given(o) && node->pass < OPIPE_PASS_UPDATE ? node->pass : 0;
}

static void sum_passes(const options *o, const opipe_graph *graph, uint32_t n_nodes,
                       double sums[OPIPE_PASS_UPDATE]) {
  for (uint32_t i = 0; i < n_nodes; ++i)
    sums[pass_of(o, &graph->nodes[i])] += weight_of(o, graph, &graph->nodes[i]);
}

void emudev_spread_ns(const options *o, const opipe_graph *graph, uint32_t stage,
                      opipe_program *program) {
  const bool given = o->run.n == 0 && are_passes_given(o);
  double all[OPIPE_PASS_UPDATE] = {0}, sums[OPIPE_PASS_UPDATE] = {0};
  sum_passes(o, graph, graph->n_nodes, all);
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    const opipe_node *node = &graph->nodes[n];
    double ns = 0;
    sums[pass_of(o, node)] += weight_of(o, graph, node);
    for (uint32_t p = 0; p < OPIPE_PASS_UPDATE; ++p) {
      uint64_t time = given ? 0 : program->time_ns;
      if (given)
        (void)time_of(&o->pass[p], stage, "", &time, NULL);
      ns += all[p] > 0 ? sums[p] / all[p] * (double)time : 0;
    }
    for (uint32_t k = 0; k < node->n_out; ++k) {
      const opipe_value *v = node->out[k] == OPIPE_NONE ? NULL : &graph->values[node->out[k]];
      if (v != NULL && v->role == OPIPE_VALUE_GRADIENT)
        program->places_ns[program->ends[v->slot]] = (uint64_t)ns;
    }
  }
  for (uint32_t at = 1; at <= program->n_places; ++at) {
    if (program->places_ns[at] < program->places_ns[at - 1])
      program->places_ns[at] = program->places_ns[at - 1];
  }
  program->places_ns[program->n_places] = program->time_ns;
}
