/* SPDX-License-Identifier: Apache-2.0 */
/* From nodes to steps: consumers are counted, groups found (fuse_match.c; not for reference
 * kernels, not with OPIPE_COMPILE_NO_FUSE), and a step is prepared for each group and each node
 * left.
 */
#include "fuse.h"
#include "codes.h"

static opipe_status out_of_memory(cpu_fuser *f) {
  return opipe_fail(f->err, OPIPE_E_NOMEM, "no memory for the steps of %u nodes",
                    f->graph->n_nodes);
}

/* ---- consumers ---- */

static opipe_status find_users(cpu_fuser *f) {
  const opipe_graph *graph = f->graph;
  cpu_pool *pool = &f->program->pool;
  uint64_t n_uses = 0;
  for (uint32_t i = 0; i < graph->n_nodes; ++i)
    n_uses += graph->nodes[i].n_in;
  uint32_t *next = CPU_POOL_ARRAY(pool, uint32_t, graph->n_values);
  f->first = CPU_POOL_ARRAY(pool, uint32_t, (uint64_t)graph->n_values + 1);
  f->users = CPU_POOL_ARRAY(pool, uint32_t, n_uses);
  f->made = CPU_POOL_ARRAY(pool, uint32_t, graph->n_values);
  f->taken = CPU_POOL_ARRAY(pool, bool, graph->n_nodes);
  f->redirect = CPU_POOL_ARRAY(pool, uint32_t, graph->n_values);
  f->wide = CPU_POOL_ARRAY(pool, uint32_t, graph->n_values);
  f->unpacked = CPU_POOL_ARRAY(pool, uint32_t, graph->n_values);
  f->turned = CPU_POOL_ARRAY(pool, uint32_t, graph->n_values);
  f->at = CPU_POOL_ARRAY(pool, cpu_group *, graph->n_nodes);
  if (next == NULL || f->redirect == NULL || f->wide == NULL || f->unpacked == NULL ||
      f->turned == NULL || f->first == NULL || f->users == NULL || f->made == NULL ||
      f->taken == NULL || f->at == NULL)
    return out_of_memory(f);
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    f->made[v] = OPIPE_NONE;
    f->redirect[v] = OPIPE_NONE;
    f->wide[v] = OPIPE_NONE;
    f->unpacked[v] = OPIPE_NONE;
    f->turned[v] = OPIPE_NONE;
  }
  for (uint32_t i = 0; i < graph->n_nodes; ++i) {
    const opipe_node *node = &graph->nodes[i];
    for (uint32_t k = 0; k < node->n_in; ++k)
      f->first[node->in[k] == OPIPE_NONE ? 0 : node->in[k] + 1] += node->in[k] != OPIPE_NONE;
    for (uint32_t k = 0; k < node->n_out; ++k) {
      if (node->out[k] != OPIPE_NONE)
        f->made[node->out[k]] = i;
    }
  }
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    next[v] = f->first[v];
    f->first[v + 1] += f->first[v];
  }
  for (uint32_t i = 0; i < graph->n_nodes; ++i) {
    const opipe_node *node = &graph->nodes[i];
    for (uint32_t k = 0; k < node->n_in; ++k) {
      if (node->in[k] != OPIPE_NONE)
        f->users[next[node->in[k]]++] = i;
    }
  }
  return OPIPE_OK;
}

/* ---- steps ---- */

/* For a product whose second operand is unpacked in registers. */
static opipe_status take_matrix(cpu_fuser *f, const opipe_node *node, cpu_step *step) {
  const opipe_graph *graph = f->graph;
  if (!cpu_takes_wide(node) || step->in[1].value == OPIPE_NONE ||
      f->unpacked[step->in[1].value] == OPIPE_NONE)
    return OPIPE_OK;
  cpu_matrix *matrix = CPU_POOL_ARRAY(&f->program->pool, cpu_matrix, 1);
  if (matrix == NULL)
    return out_of_memory(f);
  const opipe_node *unpack = &graph->nodes[f->unpacked[step->in[1].value]];
  const uint32_t k_axis = opipe_attr_int(node, "transB", 0) != 0;
  if (!cpu_matrix_of(graph, unpack, k_axis, matrix)) {
    return opipe_fail(f->err, OPIPE_E_INTERNAL, "node '%.80s': '%.80s' is no packed matrix",
                      node->name, unpack->name);
  }
  step->matrix = matrix;
  return OPIPE_OK;
}

static uint32_t turned_operand(const cpu_fuser *f, const opipe_node *node) {
  return node->n_in > 1 && node->in[1] != OPIPE_NONE ? f->turned[node->in[1]] : OPIPE_NONE;
}

static opipe_status make_step(cpu_fuser *f, const opipe_node *node, const cpu_group *g,
                              cpu_step *step) {
  opipe_program *program = f->program;
  cpu_pool *pool = &program->pool;
  const uint32_t n_extra = g == NULL ? 0 : g->n_extra;
  cpu_prep p = {.device = program->device,
                .pool = pool,
                .graph = program->graph,
                .node = node,
                .step = step,
                .fusion = g != NULL ? &g->fusion : NULL,
                .fast = program->device->mode == CPU_MODE_FAST,
                .flags = program->flags,
                .err = f->err};
  step->node = node;
  step->n_in = node->n_in + n_extra;
  step->n_out = node->n_out + (g != NULL && g->sum != OPIPE_NONE);
  step->in = CPU_POOL_ARRAY(pool, cpu_operand, step->n_in);
  step->out = CPU_POOL_ARRAY(pool, cpu_operand, step->n_out);
  if (step->in == NULL || step->out == NULL)
    return out_of_memory(f);
  for (uint32_t i = 0; i < step->n_in; ++i)
    step->in[i].value = i < node->n_in ? node->in[i] : g->extra[i - node->n_in];
  if (cpu_takes_wide(node) && step->in[1].value != OPIPE_NONE &&
      f->wide[step->in[1].value] != OPIPE_NONE)
    step->in[1].value = f->wide[step->in[1].value];
  CPU_TRY(take_matrix(f, node, step));
  const uint32_t turned = turned_operand(f, node);
  if (turned != OPIPE_NONE)
    p.turned = &program->graph->values[turned];
  for (uint32_t i = 0; i < node->n_out; ++i) {
    const uint32_t v = node->out[i];
    step->out[i].value = v != OPIPE_NONE && f->redirect[v] != OPIPE_NONE ? f->redirect[v] : v;
  }
  if (g != NULL) {
    step->out[0].value = g->out;
    for (uint32_t i = 0; i < CPU_GROUP_REPLACED && i < node->n_in; ++i)
      step->in[i].value = g->replaced[i] != OPIPE_NONE ? g->replaced[i] : step->in[i].value;
    if (g->sum != OPIPE_NONE)
      step->out[node->n_out].value = g->sum;
  }
  CPU_TRY(cpu_op_prepare(&p));
  if (step->matrix != NULL && step->in[1].layout != CPU_LAYOUT_CODES) {
    return opipe_fail(f->err, OPIPE_E_INTERNAL, "node '%.80s': no kernel for its packed matrix",
                      node->name);
  }
  if (turned != OPIPE_NONE)
    step->in[1].value = turned;
  if (step->matrix != NULL && f->unpacked[step->in[1].value] != OPIPE_NONE)
    step->in[1].value = program->graph->nodes[f->unpacked[step->in[1].value]].in[0];
  return OPIPE_OK;
}

opipe_status cpu_build_steps(opipe_program *program, opipe_error *err) {
  const opipe_graph *graph = program->graph;
  cpu_fuser f = {.program = program, .graph = graph, .err = err};
  program->steps = CPU_POOL_ARRAY(&program->pool, cpu_step, graph->n_nodes);
  if (program->steps == NULL)
    return out_of_memory(&f);
  CPU_TRY(find_users(&f));
  if (program->device->mode == CPU_MODE_FAST && (program->flags & OPIPE_COMPILE_NO_FUSE) == 0) {
    cpu_match_casts(&f);
    cpu_match_unpacked(&f);
    cpu_match_turned(&f);
    CPU_TRY(cpu_match_accumulate(&f));
    CPU_TRY(cpu_match_groups(&f));
  }
  for (uint32_t i = 0; i < graph->n_nodes; ++i) {
    const cpu_group *g = f.at[i];
    if (g == NULL && f.taken[i])
      continue;
    const opipe_node *node = g != NULL ? g->main : &graph->nodes[i];
    CPU_TRY(make_step(&f, node, g, &program->steps[program->n_steps++]));
  }
  return OPIPE_OK;
}
