/* SPDX-License-Identifier: Apache-2.0 */
/* From nodes to steps: one step per node.
 */
#include "ops/op.h"

static opipe_status node_step(opipe_program *program, const opipe_node *node, cpu_step *step,
                              opipe_error *err) {
  cpu_pool *pool = &program->pool;
  cpu_prep p = {.device = program->device,
                .pool = pool,
                .graph = program->graph,
                .node = node,
                .step = step,
                .fast = program->device->mode == CPU_MODE_FAST,
                .err = err};
  step->node = node;
  step->n_in = node->n_in;
  step->n_out = node->n_out;
  step->in = CPU_POOL_ARRAY(pool, cpu_operand, node->n_in);
  step->out = CPU_POOL_ARRAY(pool, cpu_operand, node->n_out);
  if (step->in == NULL || step->out == NULL) {
    return cpu_nomem(&p);
  }
  for (uint32_t i = 0; i < node->n_in; ++i) {
    step->in[i].value = node->in[i];
  }
  for (uint32_t i = 0; i < node->n_out; ++i) {
    step->out[i].value = node->out[i];
  }
  return cpu_op_prepare(&p);
}

opipe_status cpu_build_steps(opipe_program *program, opipe_error *err) {
  const opipe_graph *graph = program->graph;
  program->steps = CPU_POOL_ARRAY(&program->pool, cpu_step, graph->n_nodes);
  if (program->steps == NULL) {
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for %u steps", graph->n_nodes);
  }
  for (uint32_t i = 0; i < graph->n_nodes; ++i) {
    CPU_TRY(node_step(program, &graph->nodes[i], &program->steps[program->n_steps++], err));
  }
  return OPIPE_OK;
}
