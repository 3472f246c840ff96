/* SPDX-License-Identifier: Apache-2.0 */
/* Profiles nodes by compiling each as a program of its own. This gives exact parameter layouts and
 * workspaces (estimates for a described device), and a time from the device's rates or from a
 * measurement. A layout depends only on the parameter and its consumer, so what holds for one node
 * holds in any stage.
 */
#include "partition/cost/profile.h"

#include <stdio.h>
#include <string.h>

#include "partition/cost/measure.h"
#include "partition/plan/estimate.h"

enum { REPORT_MOST = 6 };

static bool is_wanted(const bool *wanted, uint32_t node) {
  return wanted == NULL || wanted[node];
}

static bool is_refused(const opipe_support *support, uint32_t node) {
  return support != NULL && support[node].status != OPIPE_OK;
}

/* The backend's reason, as one terminated line. */
static const char *reason_of(const opipe_support *support, char line[OPI_LINE_ROOM]) {
  char reason[sizeof support->reason + 1] = "";
  memcpy(reason, support->reason, sizeof support->reason);
  return opi_text_line(line, reason);
}

static opipe_status ask_support(const opi_graph *graph, const opi_backend_ref *backend,
                                opipe_device *device, opi_arena *arena, opipe_support **out_support,
                                opipe_error *err) {
  opipe_graph abi;
  OPI_TRY(opi_graph_to_abi(graph, arena, &abi, err));
  *out_support = OPI_ARENA_ARRAY(arena, opipe_support, graph->n_nodes);
  if (*out_support == NULL)
    return opi_fail_nomem(err, graph->n_nodes * sizeof **out_support, "a support query");
  return OPI_ASK("backend", backend, support, err, device, &abi, *out_support);
}

static opipe_status report(const opi_graph *graph, const opipe_support *support, const bool *wanted,
                           const char *kind, const opipe_allocator *allocator, opipe_error *err) {
  opi_text text;
  uint32_t n_refused = 0, n_wanted = 0;
  opi_text_init(&text, allocator);
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    char line[OPI_LINE_ROOM];
    n_wanted += is_wanted(wanted, n);
    if (!is_refused(support, n) || !is_wanted(wanted, n) || ++n_refused > REPORT_MOST)
      continue;
    opi_text_printf(&text, "%s'%s' (%s): %s", n_refused == 1 ? "" : "; ", graph->nodes[n].name,
                    graph->nodes[n].op, reason_of(&support[n], line));
  }
  opipe_status status = OPIPE_OK;
  if (n_refused != 0) {
    status = opi_fail(err, OPIPE_E_UNSUPPORTED, "backend '%s' refuses %u of %u nodes: %s", kind,
                      n_refused, n_wanted, text.data == NULL ? "" : text.data);
  }
  opi_text_release(&text);
  return status;
}

opipe_status opi_profile_support(const opi_graph *graph, const bool *wanted,
                                 const opi_backend_ref *backend, opipe_device *device,
                                 const opipe_allocator *allocator, opipe_error *err) {
  opi_arena scratch;
  opipe_support *support = NULL;
  opi_arena_init(&scratch, allocator, 0);
  opipe_status status = ask_support(graph, backend, device, &scratch, &support, err);
  if (status == OPIPE_OK)
    status = report(graph, support, wanted, backend->id, allocator, err);
  opi_arena_release(&scratch);
  return status;
}

opipe_status opi_profile_refusal(const opi_profile *profile, const opi_graph *graph,
                                 const bool *wanted, const char *kind, opipe_error *err) {
  return report(graph, profile->support, wanted, kind, profile->arena.allocator, err);
}

/* Appends a layout to node `n`, which must be the last one so far. */
static opipe_status add_param(opi_profile *profile, const opipe_param_layout *layout, uint32_t n,
                              uint32_t *io_room, opipe_error *err) {
  const uint32_t used = profile->param_first[n + 1];
  if (!opi_arena_grow(&profile->arena, (void **)&profile->params, io_room, used + 1,
                      sizeof(*profile->params)))
    return opi_fail_nomem(err, sizeof(*profile->params), "parameter layouts");
  profile->params[used] =
      (opi_node_param){.param = layout->slot, .key = layout->key, .n_bytes = layout->n_bytes};
  profile->param_first[n + 1] = used + 1;
  return OPIPE_OK;
}

/* Appends the layouts that the node's program wants. */
static opipe_status add_params(opi_profile *profile, const opi_backend_ref *backend,
                               opipe_program *program, uint32_t n, uint32_t *io_room,
                               opipe_error *err) {
  opipe_param_layout *list = NULL;
  uint32_t count = 0;
  OPI_TRY(opi_layouts_ask(backend, program, profile->single->n_params, false, &profile->arena,
                          &list, &count, err));
  for (uint32_t i = 0; i < count; ++i)
    OPI_TRY(add_param(profile, &list[i], n, io_room, err));
  return OPIPE_OK;
}

static opipe_status compile_node(opi_profile *profile, const opi_profile_place *place, uint32_t n,
                                 uint32_t *io_room, opipe_error *err) {
  const opi_backend_ref *backend = place->backend;
  const opipe_graph *graph = &opi_forward_of(profile->single, n)->graph;
  opipe_program *program = NULL;
  const opipe_compile_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_compile_params, graph), .graph = graph};
  OPI_TRY(OPI_MAKE("backend", backend, compile, &program, err, place->device, &params));
  opipe_program_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_program_info, arena_bytes)};
  opipe_status status = opi_program_ask(backend, program, &info, err);
  if (status == OPIPE_OK)
    status = add_params(profile, backend, program, n, io_room, err);
  backend->table->program_free(program);
  profile->workspace_bytes[n] = info.workspace_bytes;
  return status;
}

static opipe_status estimate_node(opi_profile *profile, uint32_t n, uint32_t *io_room,
                                  opipe_error *err) {
  const opi_program *program = opi_forward_of(profile->single, n);
  for (uint32_t i = 0; i < program->n_params; ++i) {
    const uint32_t slot = program->params[i];
    const opipe_param_layout layout =
        opi_estimate_layout(&profile->single->sources[slot], slot, false);
    OPI_TRY(add_param(profile, &layout, n, io_room, err));
  }
  return OPIPE_OK;
}

static opipe_status profile_node(opi_profile *profile, const opi_graph *model,
                                 const opi_profile_place *place, uint32_t n, uint32_t *io_room,
                                 opipe_error *err) {
  const opi_program *program = opi_forward_of(profile->single, n);
  const opipe_graph *graph = &program->graph;
  profile->param_first[n + 1] = profile->param_first[n];
  const bool refused = is_refused(profile->support, n);
  OPI_TRY(place->backend == NULL || refused ? estimate_node(profile, n, io_room, err)
                                            : compile_node(profile, place, n, io_room, err));
  profile->node_ns[n] =
      refused ? OPI_REFUSED_NS
              : opi_device_ns(place->facts, place->threads, opi_node_type(model, &model->nodes[n]),
                              program->flops, program->bytes);
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    const uint32_t role = graph->values[v].role;
    if (role == OPIPE_VALUE_OUTPUT || role == OPIPE_VALUE_TEMP)
      profile->output_bytes[n] += graph->values[v].n_bytes;
  }
  return OPIPE_OK;
}

static opipe_status make_single(opi_profile *profile, const opi_graph *graph,
                                const opipe_allocator *allocator, opipe_error *err) {
  uint32_t *stages = OPI_ARENA_ARRAY(&profile->arena, uint32_t, graph->n_nodes);
  profile->node_ns = OPI_ARENA_ARRAY(&profile->arena, double, graph->n_nodes);
  profile->workspace_bytes = OPI_ARENA_ARRAY(&profile->arena, uint64_t, graph->n_nodes);
  profile->output_bytes = OPI_ARENA_ARRAY(&profile->arena, uint64_t, graph->n_nodes);
  profile->param_first = OPI_ARENA_ARRAY(&profile->arena, uint32_t, (size_t)graph->n_nodes + 1);
  if (stages == NULL || profile->node_ns == NULL || profile->workspace_bytes == NULL ||
      profile->output_bytes == NULL || profile->param_first == NULL)
    return opi_fail_nomem(err, graph->n_nodes * sizeof(double), "a profile");
  for (uint32_t n = 0; n < graph->n_nodes; ++n)
    stages[n] = n;
  profile->n_nodes = graph->n_nodes;
  const opi_cut_source source = {
      .graph = graph, .stage = stages, .n_stages = graph->n_nodes == 0 ? 1 : graph->n_nodes};
  return opi_cut_build(&source, allocator, &profile->single, err);
}

/* Measures the nodes that the device supports. */
static opipe_status measure(opi_profile *profile, const opi_profile_place *place,
                            const opipe_allocator *allocator, uint64_t (*now_ns)(void),
                            opipe_error *err) {
  const opi_cut *c = profile->single;
  const opipe_graph **graphs = OPI_ARENA_ARRAY(&profile->arena, const opipe_graph *, c->n_stages);
  double *ns = OPI_ARENA_ARRAY(&profile->arena, double, c->n_stages);
  uint32_t n_taken = 0;
  if (graphs == NULL || ns == NULL)
    return opi_fail_nomem(err, c->n_stages * sizeof *graphs, "a profile");
  for (uint32_t n = 0; n < c->n_stages; ++n) {
    if (n >= profile->n_nodes || !is_refused(profile->support, n))
      graphs[n_taken++] = &opi_forward_of(c, n)->graph;
  }
  OPI_TRY(opi_measure_programs(graphs, n_taken, c->sources, c->n_params, place->backend,
                               place->device, allocator, now_ns, ns, err));
  n_taken = 0;
  for (uint32_t n = 0; n < profile->n_nodes; ++n) {
    if (!is_refused(profile->support, n))
      profile->node_ns[n] = ns[n_taken++];
  }
  return OPIPE_OK;
}

/* Asks which nodes the device supports. */
static opipe_status support(opi_profile *profile, const opi_graph *graph,
                            const opi_profile_place *place, opipe_error *err) {
  opipe_support *answers = NULL;
  OPI_TRY(ask_support(graph, place->backend, place->device, &profile->arena, &answers, err));
  profile->support = answers;
  return place->may_refuse ? OPIPE_OK
                           : opi_profile_refusal(profile, graph, NULL, place->backend->id, err);
}

static opipe_status fill(opi_profile *profile, const opi_graph *graph,
                         const opi_profile_place *place, uint32_t kind,
                         const opipe_allocator *allocator, uint64_t (*now_ns)(void),
                         opipe_error *err) {
  const opi_device_facts *facts = place->facts;
  uint32_t room = 0;
  if (place->backend == NULL && kind == OPI_COST_MEASURED) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "measured costs need real devices, these are only described");
  }
  if (place->backend != NULL)
    OPI_TRY(support(profile, graph, place, err));
  OPI_TRY(make_single(profile, graph, allocator, err));
  for (uint32_t n = 0; n < graph->n_nodes; ++n)
    OPI_TRY(profile_node(profile, graph, place, n, &room, err));
  /* A boundary tensor is written by one core and read cold by another, at about half the memory's
   * rate. */
  profile->transfer_bytes_per_ns = facts->bandwidth > 0 ? facts->bandwidth * 0.5e-9 : 10.0;
  profile->transfer_ns = 1000.0;
  return kind == OPI_COST_MEASURED ? measure(profile, place, allocator, now_ns, err) : OPIPE_OK;
}

opipe_status opi_profile_make(const opi_graph *graph, const opi_profile_place *place, uint32_t kind,
                              const opipe_allocator *allocator, uint64_t (*now_ns)(void),
                              opi_profile **out_profile, opipe_error *err) {
  opi_profile *profile = opi_alloc_zero(allocator, 1, sizeof(*profile));
  if (profile == NULL)
    return opi_fail_nomem(err, sizeof(*profile), "a profile");
  opi_arena_init(&profile->arena, allocator, 0);
  const opipe_status status = fill(profile, graph, place, kind, allocator, now_ns, err);
  if (status < 0) {
    opi_profile_free(profile);
    return status;
  }
  *out_profile = profile;
  return OPIPE_OK;
}

void opi_profile_free(opi_profile *profile) {
  if (profile == NULL)
    return;
  const opipe_allocator *allocator = profile->arena.allocator;
  opi_cut_free(profile->single);
  opi_arena_release(&profile->arena);
  opi_free(allocator, profile, sizeof(*profile));
}
