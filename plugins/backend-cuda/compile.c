/* SPDX-License-Identifier: Apache-2.0 */
/* Compile and the support query: both check the graph and run the operators' rules. */
#include "ops/rule.h"

static opipe_status prepare(opipe_program *program, opipe_error *err) {
  const opipe_graph *graph = program->graph;
  program->last_step = &program->steps;
  program->alias = CUDA_POOL_ARRAY(&program->pool, uint32_t, graph->n_values);
  program->storages = CUDA_POOL_ARRAY(&program->pool, cuda_storage, graph->n_values);
  if (program->alias == NULL || program->storages == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for %u values", graph->n_values);
  for (uint32_t v = 0; v < graph->n_values; ++v)
    program->alias[v] = v;
  return OPIPE_OK;
}

/* One node's answer. *out_lacks: another device may do it. */
static opipe_status ask_rule(opipe_program *program, const opipe_node *node,
                             opipe_support *out_support, bool *out_lacks, opipe_error *err) {
  opipe_error why = OPIPE_ERROR_INIT;
  cuda_rule r = {.program = program, .node = node, .err = &why};
  const bool known = node->flags == 0 && node->pass <= OPIPE_PASS_BACKWARD;
  const opipe_status answer =
      known ? cuda_rule_run(&r)
            : opipe_fail(&why, OPIPE_E_UNSUPPORTED, "node '%.60s' has pass %u and flags 0x%x",
                         node->name, node->pass, node->flags);
  if (answer == OPIPE_E_NOMEM || answer == OPIPE_E_DEVICE)
    return opipe_fail(err, answer, "%s", why.message);
  memset(out_support, 0, sizeof *out_support);
  *out_lacks = known && answer == OPIPE_E_UNSUPPORTED;
  if (answer < 0) {
    out_support->status = OPIPE_E_UNSUPPORTED;
    (void)snprintf(out_support->reason, sizeof out_support->reason, "%.119s", why.message);
  }
  return OPIPE_OK;
}

opipe_status cuda_support(opipe_device *device, const opipe_graph *graph,
                          opipe_support *out_support, opipe_error *err) {
  opipe_program program = {.device = device, .graph = graph, .pool = {device->host, NULL}};
  bool *lacks = NULL;
  CUDA_TRY(cuda_enter(device, "support", err));
  opipe_status status = cuda_check_graph(graph, &program.pool, err);
  if (status >= 0)
    status = prepare(&program, err);
  if (status >= 0) {
    lacks = CUDA_POOL_ARRAY(&program.pool, bool, graph->n_nodes);
    if (lacks == NULL)
      status = opipe_fail(err, OPIPE_E_NOMEM, "no memory for %u answers", graph->n_nodes);
  }
  for (uint32_t i = 0; status >= 0 && i < graph->n_nodes; ++i)
    status = ask_rule(&program, &graph->nodes[i], &out_support[i], &lacks[i], err);
  if (status >= 0 && cuda_may_fall_back(device, 0))
    status = cuda_support_inner(device, graph, lacks, &program.pool, out_support, err);
  cuda_pool_release(&program.pool);
  cuda_leave(device);
  return status;
}

/* Is a value of floating-point numbers in the arena, or a boundary, by itself? */
static bool is_looked_at(const opipe_program *program, uint32_t value) {
  const opipe_value *v = &program->graph->values[value];
  return cuda_is_float(v->dtype) && v->role != OPIPE_VALUE_GRADIENT && cuda_elems(v) > 0 &&
         program->alias[value] == value;
}

static opipe_status look_at(cuda_rule *r, uint32_t value) {
  const opipe_value *v = &r->program->graph->values[value];
  cuda_finite_args args = {.x = cuda_at(r, value, 0), .n = (int64_t)cuda_elems(v)};
  if (v->rank > 0 && cuda_row_distance(r->program, value) != v->shape[v->rank - 1]) {
    args.row = v->shape[v->rank - 1];
    args.distance = cuda_row_distance(r->program, value);
  }
  cuda_launch launch;
  if (!is_looked_at(r->program, value))
    return OPIPE_OK;
  CUDA_TRY(cuda_at_status(r, &args.status, &args.node));
  return cuda_plan_finite(&args, v->dtype, &launch) ? cuda_emit(r, &launch) : cuda_no_kernel(r, v);
}

/* The value that the node writes for output i. */
static uint32_t made_as(const cuda_rule *r, uint32_t i) {
  const uint32_t value = r->node->out[i];
  return value != OPIPE_NONE && cuda_named(r->node, "opipe", "SoftmaxCrossEntropyLossGrad")
             ? cuda_narrow(r->program, value)
             : value;
}

static opipe_status look_at_results(cuda_rule *r) {
  const opipe_program *program = r->program;
  for (uint32_t i = 0; i < r->node->n_out; ++i) {
    const uint32_t value = made_as(r, i);
    const cuda_part *part = value != OPIPE_NONE && program->matched.parts != NULL
                                ? &program->matched.parts[value]
                                : NULL;
    const bool is_part = part != NULL && part->whole != OPIPE_NONE;
    if (value == OPIPE_NONE || cuda_accumulator(r, i) != OPIPE_NONE ||
        (is_part && part->first != 0))
      continue;
    CUDA_TRY(look_at(r, is_part ? part->whole : value));
  }
  return OPIPE_OK;
}

/* CHECK_FINITE: what a node writes is looked at right behind it: all parts of a value at the first
 * one; of a tail what its end makes, and what GELU is of; what it does along and writes, too. */
static opipe_status check_results(cuda_rule *r) {
  const opipe_program *program = r->program;
  const cuda_tail *tail = cuda_tail_of(program, r->node);
  const opipe_node *front = cuda_front_of(program, r->node);
  const opipe_node *scale = cuda_scale_of(program, r->node);
  cuda_rule end = *r;
  if (front != NULL && cuda_keeps_front(program, r->node)) {
    end.node = front;
    CUDA_TRY(look_at_results(&end));
  }
  if (scale != NULL) {
    end.node = scale;
    CUDA_TRY(look_at_results(&end));
  }
  end.node = tail != NULL ? &program->graph->nodes[tail->nodes[tail->n - 1]] : r->node;
  if (tail != NULL && tail->through == CUDA_THROUGH_GELU && tail->aux != OPIPE_NONE)
    CUDA_TRY(look_at(&end, tail->aux));
  return look_at_results(&end);
}

/* Constants that kernels read, in pinned memory: every run copies them to the arena slot. */
static opipe_status stage_constants(opipe_program *program, opipe_error *err) {
  cuda_place *place = program->device->place;
  if (program->constant_bytes == 0)
    return OPIPE_OK;
  CUDA_TRY(
      cuda_result(place,
                  place->driver->host_alloc(&program->constants, (size_t)program->constant_bytes,
                                            CUDA_HOST_PORTABLE),
                  "pinned memory for constants", err));
  memset(program->constants, 0, (size_t)program->constant_bytes);
  for (uint32_t v = 0; v < program->graph->n_values; ++v) {
    const cuda_storage *storage = &program->storages[v];
    const opipe_value *value = &program->graph->values[v];
    if (storage->kind == CUDA_PLACE_CONSTANT && storage->first != UINT32_MAX &&
        value->n_bytes > 0) {
      memcpy((char *)program->constants + (storage->offset - program->block_bytes), value->data,
             (size_t)value->n_bytes);
    }
  }
  return OPIPE_OK;
}

/* The node whose rule makes the steps that stand there: a product's, in the place of its tail's
 * end. */
static uint32_t host_of(const opipe_program *program, uint32_t node) {
  const uint32_t host = program->matched.hosts != NULL ? program->matched.hosts[node] : OPIPE_NONE;
  return host != OPIPE_NONE ? host : node;
}

static opipe_status emit_node(opipe_program *program, uint32_t node, opipe_error *err) {
  cuda_rule r = {.program = program, .node = &program->graph->nodes[node], .err = err};
  CUDA_TRY(cuda_rule_run(&r));
  return (program->flags & OPIPE_COMPILE_CHECK_FINITE) != 0 ? check_results(&r) : OPIPE_OK;
}

opipe_status cuda_probe_make(const opipe_program *program, opipe_program *out_probe,
                             opipe_error *err) {
  *out_probe = (opipe_program){.device = program->device,
                               .graph = program->graph,
                               .flags = program->flags,
                               .pool = {program->device->host, NULL},
                               .matched = program->matched};
  out_probe->matched.taken = NULL; /* each node by itself */
  out_probe->matched.hosts = NULL;
  out_probe->matched.rounded = NULL;
  return prepare(out_probe, err);
}

opipe_status cuda_probe(opipe_program *probe, uint32_t node, opipe_error *err) {
  return emit_node(probe, node, err);
}

opipe_status cuda_probe_takes(opipe_program *probe, uint32_t node, bool *out_taken,
                              opipe_error *err) {
  opipe_error why = OPIPE_ERROR_INIT;
  const opipe_status status = cuda_probe(probe, node, &why);
  *out_taken = status >= 0;
  return status == OPIPE_E_NOMEM || status == OPIPE_E_DEVICE
             ? opipe_fail(err, status, "%s", why.message)
             : OPIPE_OK;
}

/* How many nodes from `first` on the device lacks: their steps are tried in a program that is
 * thrown away. */
static opipe_status count_lacking(const opipe_program *program, uint32_t first, uint32_t *out_n,
                                  opipe_error *err) {
  opipe_program probe;
  opipe_error why = OPIPE_ERROR_INIT;
  uint32_t i = first;
  opipe_status status = cuda_probe_make(program, &probe, err);
  while (status >= 0 && i < program->graph->n_nodes && !program->matched.taken[i] &&
         host_of(program, i) == i && cuda_probe(&probe, i, &why) == OPIPE_E_UNSUPPORTED)
    ++i;
  cuda_pool_release(&probe.pool);
  *out_n = i - first;
  return status;
}

/* Node `first` was refused, as `why` says: it goes to the CPU, with its neighbours that are. */
static opipe_status fall_back(opipe_program *program, uint32_t first, const opipe_error *why,
                              uint32_t *out_n, opipe_error *err) {
  const opipe_device *device = program->device;
  opipe_error inner = OPIPE_ERROR_INIT;
  uint32_t more = 0;
  if (why->status != OPIPE_E_UNSUPPORTED)
    return opipe_fail(err, why->status, "%s", why->message);
  if (!cuda_may_fall_back(device, program->flags)) {
    return opipe_fail(err, why->status, "%s; nothing runs it instead: %s", why->message,
                      device->inner.device == NULL ? device->inner.why
                                                   : "training does not fall back unasked "
                                                     "(fallback=cpu)");
  }
  CUDA_TRY(count_lacking(program, first + 1, &more, err));
  const opipe_status status = cuda_section_emit(program, first, more + 1, &inner);
  *out_n = more + 1;
  return status >= 0
             ? OPIPE_OK
             : opipe_fail(err, status, "%.230s; on the CPU: %.240s", why->message, inner.message);
}

/* Steps of every node, its own or a section's. A rule that refuses leaves steps behind, but no view
 * (ops/rule.h). */
static opipe_status emit_all(opipe_program *program, opipe_error *err) {
  const opipe_graph *graph = program->graph;
  uint32_t n = 1;
  for (uint32_t i = 0; i < graph->n_nodes; i += n) {
    cuda_step **last = program->last_step;
    const uint32_t n_steps = program->n_steps, n_kernels = program->n_kernels;
    opipe_error why = OPIPE_ERROR_INIT;
    n = 1;
    const uint32_t node = host_of(program, i);
    if ((program->matched.taken[i] && node == i) || emit_node(program, node, &why) >= 0)
      continue;
    if (node != i) /* its rule took the tail before */
      return opipe_fail(err, why.status, "%s", why.message);
    *last = NULL;
    program->last_step = last;
    program->n_steps = n_steps;
    program->n_kernels = n_kernels;
    cuda_masks_forget(program, n_steps);
    CUDA_TRY(fall_back(program, i, &why, &n, err));
  }
  return OPIPE_OK;
}

static opipe_status build(opipe_program *program, opipe_error *err) {
  const opipe_graph *graph = program->graph;
  CUDA_TRY(cuda_check_graph(graph, &program->pool, err));
  CUDA_TRY(prepare(program, err));
  CUDA_TRY(cuda_match(program, err));
  program->has_block = graph->n_scalars > 0;
  CUDA_TRY(emit_all(program, err));
  CUDA_TRY(cuda_arrange(program, err));
  return stage_constants(program, err);
}

opipe_status cuda_compile(opipe_device *device, const opipe_compile_params *params,
                          opipe_program **out_program, opipe_error *err) {
  const uint32_t known = OPIPE_COMPILE_CHECK_FINITE | OPIPE_COMPILE_POISON | OPIPE_COMPILE_NO_FUSE |
                         OPIPE_COMPILE_OWNED;
  if (!OPIPE_HAS(params, opipe_compile_params, graph)) {
    return opipe_fail(err, OPIPE_E_ABI, "compile: struct_size %u is too small",
                      params->struct_size);
  }
  CUDA_TRY(opipe_check_flags(params->flags, known, "compile: flags", err));
  if (params->graph == NULL || !OPIPE_HAS(params->graph, opipe_graph, n_scalars))
    return opipe_fail(err, OPIPE_E_ABI, "the graph's struct_size is too small");
  CUDA_TRY(opipe_check_graph(params->graph, err));
  CUDA_TRY(cuda_enter(device, "compile", err));
  opipe_program *program =
      opipe_zeroed(device->host, "program", sizeof *program, _Alignof(opipe_program), err);
  opipe_status status = program == NULL ? OPIPE_E_NOMEM : OPIPE_OK;
  if (status >= 0) {
    program->device = device;
    program->graph = params->graph;
    program->flags = params->flags;
    program->pool.host = device->host;
    status = build(program, err);
  }
  cuda_leave(device);
  if (status < 0)
    cuda_program_free(program);
  else
    *out_program = program;
  return status;
}

void cuda_program_free(opipe_program *program) {
  if (program == NULL)
    return;
  opipe_device *device = program->device;
  cuda_sections_free(program);
  if (program->constants != NULL && cuda_enter(device, "program_free", NULL) >= 0) {
    if (cuda_may_give(device))
      (void)device->place->driver->host_free(program->constants);
    cuda_leave(device);
  }
  cuda_pool_release(&program->pool);
  opipe_free(device->host, program, sizeof *program, _Alignof(opipe_program));
}

opipe_status cuda_program_info(const opipe_program *program, opipe_program_info *io_info,
                               opipe_error *err) {
  const uint32_t size = io_info->struct_size;
  const uint32_t known = (uint32_t)OPIPE_END(opipe_program_info, n_rounded);
  const opipe_program_info full = {.struct_size = size,
                                   .n_kernels = program->n_kernels,
                                   .temp_bytes = program->temp_bytes,
                                   .workspace_bytes = program->workspace_bytes,
                                   .arena_bytes = program->arena_bytes,
                                   .host_bytes = program->host_bytes,
                                   .n_fallback = program->n_fallback};
  if (size < OPIPE_END(opipe_program_info, n_kernels))
    return opipe_fail(err, OPIPE_E_ABI, "program_info: struct_size %u is too small", size);
  memcpy(io_info, &full, size < known ? size : known);
  return OPIPE_OK;
}

opipe_status cuda_put_layouts(const opipe_program *program, const cuda_layout *layouts, uint32_t n,
                              const char *what, opipe_param_layout *out_layouts, uint32_t *io_count,
                              opipe_error *err) {
  const uint32_t room = out_layouts != NULL ? *io_count : 0;
  if (room != 0 && n != 0 && !OPIPE_HAS(out_layouts, opipe_param_layout, mapped_bytes)) {
    return opipe_fail(err, OPIPE_E_ABI, "%s: struct_size %u is too small", what,
                      out_layouts->struct_size);
  }
  for (uint32_t i = 0; i < n && i < room; ++i) {
    const opipe_value *value = &program->graph->values[layouts[i].value];
    const bool is_gradient = value->role == OPIPE_VALUE_GRADIENT;
    const uint64_t n_bytes = layouts[i].key == CUDA_LAYOUT_OWN ? value->n_bytes
                             : layouts[i].key == CUDA_LAYOUT_F32
                                 ? cuda_elems(value) * sizeof(float)
                                 : cuda_elems(value) * sizeof(uint16_t);
    const uint64_t key =
        layouts[i].key + (layouts[i].key > CUDA_LAYOUT_F32 ? OPIPE_LAYOUT_DERIVED : 0);
    opipe_param_layout_put(out_layouts, i, layouts[i].slot, is_gradient ? OPIPE_LAYOUT_MASTER : key,
                           cuda_align_up(n_bytes != 0 ? n_bytes : 1), 0);
  }
  *io_count = n;
  return room != 0 && room < n
             ? opipe_fail(err, OPIPE_E_LIMIT, "%s: room for %u of %u layouts", what, room, n)
             : OPIPE_OK;
}

opipe_status cuda_program_params(const opipe_program *program, opipe_param_layout *out_layouts,
                                 uint32_t *io_count, opipe_error *err) {
  return cuda_put_layouts(program, program->layouts, program->n_layouts, "program_params",
                          out_layouts, io_count, err);
}
