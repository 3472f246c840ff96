/* SPDX-License-Identifier: Apache-2.0 */
/* Compile and the support query: checks the graph that came over the border, then builds the
 * program (see program.h for the steps).
 *
 * The graph is hostile until checked here: afterwards indices, ranks, sizes and roles can be relied
 * on. Operators check their own shapes.
 */
#include "channels_last.h"
#include "program.h"

#include "codes.h"

/* Products of extents must stay small even where another extent is 0: strides are made of them. */
static bool extents_fit(const opipe_value *value) {
  int64_t n = 1;
  for (uint32_t i = 0; i < value->rank; ++i) {
    const int64_t extent = value->shape[i] > 1 ? value->shape[i] : 1;
    if (value->shape[i] < 0 || __builtin_mul_overflow(n, extent, &n) || n > INT64_MAX / 128)
      return false;
  }
  return true;
}

static opipe_status check_value(const opipe_graph *graph, uint32_t v, opipe_error *err) {
  const opipe_value *value = &graph->values[v];
  uint64_t n_bytes = 0;
  if (value->name == NULL || value->rank > OPIPE_MAX_RANK ||
      (value->rank > 0 && value->shape == NULL)) {
    return opipe_fail(err, OPIPE_E_INVALID, "value %u: no name, no shape or rank %u above %d", v,
                      value->rank, OPIPE_MAX_RANK);
  }
  if (!opipe_tensor_bytes(value->dtype, value->shape, value->rank, &n_bytes) ||
      !extents_fit(value)) {
    return opipe_fail(err, OPIPE_E_INVALID, "value '%.80s': shape or type %u has no size",
                      value->name, value->dtype);
  }
  if (n_bytes != value->n_bytes) {
    return opipe_fail(err, OPIPE_E_INVALID, "value '%.80s': says %llu bytes, its shape %llu",
                      value->name, (unsigned long long)value->n_bytes, (unsigned long long)n_bytes);
  }
  const uint32_t slots[] = {1,
                            1,
                            graph->n_params,
                            graph->n_boundaries,
                            graph->n_boundaries,
                            0,
                            graph->n_scalars,
                            graph->n_params};
  if (value->role >= CPU_COUNT_OF(slots) || value->role == OPIPE_VALUE_STATE) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "value '%.80s': role %u is not known", value->name,
                      value->role);
  }
  if (value->role >= OPIPE_VALUE_PARAMETER && value->slot >= slots[value->role]) {
    return opipe_fail(err, OPIPE_E_INVALID, "value '%.80s': slot %u, there are %u", value->name,
                      value->slot, slots[value->role]);
  }
  if (value->role == OPIPE_VALUE_CONSTANT && value->data == NULL && n_bytes > 0)
    return opipe_fail(err, OPIPE_E_INVALID, "constant '%.80s' has no data", value->name);
  if (value->role == OPIPE_VALUE_SCALAR &&
      (value->rank != 0 || (value->dtype != OPIPE_INT64 && value->dtype != OPIPE_DOUBLE))) {
    return opipe_fail(err, OPIPE_E_INVALID, "scalar '%.80s' is %s of rank %u, not int64 or double",
                      value->name, opipe_dtype_name(value->dtype), value->rank);
  }
  if (value->role == OPIPE_VALUE_GRADIENT && value->dtype != OPIPE_FLOAT) {
    return opipe_fail(err, OPIPE_E_INVALID, "gradient '%.80s' is %s, not float32", value->name,
                      opipe_dtype_name(value->dtype));
  }
  return OPIPE_OK;
}

/* Every index in range; every value made once, before it is read. made [n_values], zeroed */
static opipe_status check_node(const opipe_graph *graph, const opipe_node *node, uint8_t *made,
                               opipe_error *err) {
  if (node->name == NULL || node->op == NULL)
    return opipe_fail(err, OPIPE_E_INVALID, "a node without name or operator");
  for (uint32_t i = 0; i < node->n_in; ++i) {
    const uint32_t v = node->in[i];
    if (v == OPIPE_NONE)
      continue;
    if (v >= graph->n_values) {
      return opipe_fail(err, OPIPE_E_INVALID, "node '%.80s': input %u is value %u of %u",
                        node->name, i, v, graph->n_values);
    }
    const uint32_t role = graph->values[v].role;
    if (role == OPIPE_VALUE_GRADIENT) {
      return opipe_fail(err, OPIPE_E_INVALID, "node '%.80s': reads the gradient '%.80s'",
                        node->name, graph->values[v].name);
    }
    if ((role == OPIPE_VALUE_TEMP || role == OPIPE_VALUE_OUTPUT) && !made[v]) {
      return opipe_fail(err, OPIPE_E_INVALID, "node '%.80s': '%.80s' is read before it is made",
                        node->name, graph->values[v].name);
    }
  }
  for (uint32_t i = 0; i < node->n_out; ++i) {
    const uint32_t v = node->out[i];
    if (v == OPIPE_NONE)
      continue;
    if (v >= graph->n_values) {
      return opipe_fail(err, OPIPE_E_INVALID, "node '%.80s': output %u is value %u of %u",
                        node->name, i, v, graph->n_values);
    }
    const uint32_t role = graph->values[v].role;
    if (role == OPIPE_VALUE_GRADIENT && cpu_is_accumulate(node))
      continue; /* several nodes may add to one accumulator */
    if ((role != OPIPE_VALUE_TEMP && role != OPIPE_VALUE_OUTPUT) || made[v]) {
      return opipe_fail(err, OPIPE_E_INVALID,
                        "node '%.80s': '%.80s' is made twice or cannot be written", node->name,
                        graph->values[v].name);
    }
    made[v] = 1;
  }
  return OPIPE_OK;
}

/* An output's region belongs to one value. */
static opipe_status check_boundaries(const opipe_graph *graph, cpu_pool *pool, opipe_error *err) {
  const opipe_value **owner = CPU_POOL_ARRAY(pool, const opipe_value *, graph->n_boundaries);
  if (owner == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for %u boundaries", graph->n_boundaries);
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    const opipe_value *value = &graph->values[v];
    if (value->role != OPIPE_VALUE_INPUT && value->role != OPIPE_VALUE_OUTPUT)
      continue;
    const opipe_value *other = owner[value->slot];
    if (other != NULL && (other->role == OPIPE_VALUE_OUTPUT || value->role == OPIPE_VALUE_OUTPUT)) {
      return opipe_fail(err, OPIPE_E_INVALID, "'%.80s' and '%.80s' share boundary %u", value->name,
                        other->name, value->slot);
    }
    owner[value->slot] = value;
  }
  return OPIPE_OK;
}

static opipe_status check_graph(const opipe_graph *graph, cpu_pool *pool, opipe_error *err) {
  if (graph == NULL || !OPIPE_HAS(graph, opipe_graph, n_scalars))
    return opipe_fail(err, OPIPE_E_ABI, "the graph's struct_size is too small");
  uint8_t *made = CPU_POOL_ARRAY(pool, uint8_t, graph->n_values);
  if (made == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for %u values", graph->n_values);
  for (uint32_t v = 0; v < graph->n_values; ++v)
    CPU_TRY(check_value(graph, v, err));
  CPU_TRY(check_boundaries(graph, pool, err));
  for (uint32_t i = 0; i < graph->n_nodes; ++i)
    CPU_TRY(check_node(graph, &graph->nodes[i], made, err));
  return OPIPE_OK;
}

/* A step of one node by itself. */
static opipe_status node_step(cpu_prep *p) {
  const opipe_node *node = p->node;
  cpu_step *step = p->step;
  step->node = node;
  step->n_in = node->n_in;
  step->n_out = node->n_out;
  step->in = CPU_POOL_ARRAY(p->pool, cpu_operand, node->n_in);
  step->out = CPU_POOL_ARRAY(p->pool, cpu_operand, node->n_out);
  if (step->in == NULL || step->out == NULL)
    return cpu_nomem(p);
  for (uint32_t i = 0; i < node->n_in; ++i)
    step->in[i].value = node->in[i];
  for (uint32_t i = 0; i < node->n_out; ++i)
    step->out[i].value = node->out[i];
  return cpu_op_prepare(p);
}

opipe_status cpu_support(opipe_device *device, const opipe_graph *graph, opipe_support *out_support,
                         opipe_error *err) {
  cpu_pool pool;
  cpu_pool_init(&pool, device->host);
  opipe_status status = check_graph(graph, &pool, err);
  for (uint32_t i = 0; status >= 0 && i < graph->n_nodes; ++i) {
    opipe_error why = OPIPE_ERROR_INIT;
    cpu_step step = {0};
    const cpu_mark mark = cpu_pool_mark(&pool);
    cpu_prep p = {.device = device,
                  .pool = &pool,
                  .graph = graph,
                  .node = &graph->nodes[i],
                  .step = &step,
                  .fast = device->mode == CPU_MODE_FAST,
                  .err = &why};
    const opipe_status answer = node_step(&p);
    cpu_pool_rewind(&pool, mark);
    if (answer == OPIPE_E_NOMEM) {
      status = opipe_fail(err, answer, "%s", why.message);
      break;
    }
    memset(&out_support[i], 0, sizeof out_support[i]);
    if (answer < 0) {
      out_support[i].status = OPIPE_E_UNSUPPORTED;
      (void)snprintf(out_support[i].reason, sizeof out_support[i].reason, "%.119s", why.message);
    }
  }
  cpu_pool_release(&pool);
  return status;
}

opipe_status cpu_compile(opipe_device *device, const opipe_compile_params *params,
                         opipe_program **out_program, opipe_error *err) {
  if (!OPIPE_HAS(params, opipe_compile_params, graph)) {
    return opipe_fail(err, OPIPE_E_ABI, "compile: struct_size %u is too small",
                      params->struct_size);
  }
  const uint32_t known = OPIPE_COMPILE_CHECK_FINITE | OPIPE_COMPILE_POISON | OPIPE_COMPILE_NO_FUSE |
                         OPIPE_COMPILE_OWNED;
  opipe_status status = opipe_check_flags(params->flags, known, "compile: flags", err);
  if (status >= 0)
    status = opipe_check_graph(params->graph, err);
  if (status < 0)
    return status;
  opipe_program *program = cpu_acquire(device->host, sizeof *program, "program", err);
  if (program == NULL)
    return OPIPE_E_NOMEM;
  program->device = device;
  program->graph = params->graph;
  program->flags = params->flags;
  cpu_pool_init(&program->pool, device->host);
  status = check_graph(params->graph, &program->pool, err);
  if (status >= 0 && device->mode == CPU_MODE_FAST && (params->flags & OPIPE_COMPILE_OWNED) == 0)
    status = cpu_channels_last(program, err);
  if (status >= 0)
    status = cpu_build_steps(program, err);
  if (status >= 0)
    status = cpu_place(program, err);
  if (status >= 0)
    status = cpu_collect_layouts(program, err);
  if (status < 0) {
    cpu_program_free(program);
    return status;
  }
  *out_program = program;
  return OPIPE_OK;
}

void cpu_program_free(opipe_program *program) {
  if (program != NULL) {
    cpu_pool_release(&program->pool);
    cpu_release(program->device->host, program, sizeof *program);
  }
}

opipe_status cpu_program_info(const opipe_program *program, opipe_program_info *io_info,
                              opipe_error *err) {
  opipe_program_info full;
  const uint32_t size = io_info->struct_size;
  const uint32_t known = (uint32_t)OPIPE_END(opipe_program_info, n_rounded);
  if (size < OPIPE_END(opipe_program_info, n_kernels))
    return opipe_fail(err, OPIPE_E_ABI, "program_info: struct_size %u is too small", size);
  memset(&full, 0, sizeof full);
  full.struct_size = size;
  full.n_kernels = program->n_kernels;
  full.temp_bytes = program->temp_bytes;
  full.workspace_bytes = program->workspace_bytes;
  full.arena_bytes = program->arena_bytes;
  full.n_rounded = program->n_rounded;
  memcpy(io_info, &full, size < known ? size : known);
  return OPIPE_OK;
}

static opipe_status list_layouts(const opipe_program *program, const cpu_layout *layouts,
                                 uint32_t n, bool master, opipe_param_layout *out_layouts,
                                 uint32_t *io_count, opipe_error *err) {
  const uint32_t room = out_layouts != NULL ? *io_count : 0;
  if (n != 0 && room != 0 && !OPIPE_HAS(out_layouts, opipe_param_layout, mapped_bytes)) {
    return opipe_fail(err, OPIPE_E_ABI, "layouts of a program: struct_size %u is too small",
                      out_layouts->struct_size);
  }
  for (uint32_t i = 0; i < n && i < room; ++i) {
    const cpu_layout *layout = &layouts[i];
    const bool raw = layout->kind == CPU_LAYOUT_RAW, copied = raw && program->device->copies;
    const uint64_t dense_bytes = program->graph->values[layout->value].n_bytes;
    /* another program may read the parameter; a copy is what opipe_host_alloc takes */
    opipe_param_layout_put(out_layouts, i, layout->slot,
                           master || layout->kind == CPU_LAYOUT_MASTER ? OPIPE_LAYOUT_MASTER
                           : layout->kind == CPU_LAYOUT_CODES          ? layout->matrix->key
                                                                       : layout->kind,
                           copied
                               ? cpu_align_up(dense_bytes != 0 ? dense_bytes : 1, CPU_ALIGN_BYTES)
                               : layout->n_bytes,
                           raw && !copied ? dense_bytes : 0);
  }
  *io_count = n;
  return OPIPE_OK;
}

opipe_status cpu_program_params(const opipe_program *program, opipe_param_layout *out_layouts,
                                uint32_t *io_count, opipe_error *err) {
  return list_layouts(program, program->layouts, program->n_layouts, false, out_layouts, io_count,
                      err);
}

opipe_status cpu_program_gradients(const opipe_program *program, opipe_param_layout *out_layouts,
                                   uint32_t *io_count, opipe_error *err) {
  return list_layouts(program, program->gradients, program->n_gradients, true, out_layouts,
                      io_count, err);
}
