/* SPDX-License-Identifier: Apache-2.0 */
/* Backend "impaired", for the tests: the device of backend "cpu", with what the environment asks
 * for.
 *   OPIPE_SPOILS=N:NODE  run number N (from 1) of the program that has that node leaves one bit
 *                      wrong in the last tensor that it makes: what compares results must see it.
 *                      A stage runs its requests in their order, so this is request N.
 *   OPIPE_HAS=BYTES    the device says that it has so much memory
 *   OPIPE_REFUSES=OP   nodes of that operator are not supported; !OP: those of all others are not
 * Every slot but those below takes objects of the device, so they are cpu's own.
 */
#include <opipe/helpers.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { BINDINGS_MOST = 256, PROGRAMS_MOST = 64 };

typedef struct bound {
  const opipe_binding *_Atomic binding;
  bool counted; /* of a program that has the node */
  opipe_region last;
} bound;

struct opipe_instance {
  const opipe_host *host;
  opipe_instance *cpu_self;
  opipe_backend table;
};

/* One of them at a time in a process: slots with objects of the device do not say whose. */
static const opipe_backend *cpu;
static bound bindings[BINDINGS_MOST];
static const opipe_program *_Atomic programs[PROGRAMS_MOST]; /* that have the node */
static atomic_uint n_programs, n_bindings, n_runs;
static uint32_t spoils;
static const char *spoiled_node;
static const char *refuses; /* NULL: nothing */

static opipe_status device_count(opipe_instance *self, uint32_t *out_count, opipe_error *err) {
  return cpu->device_count(self->cpu_self, out_count, err);
}

static opipe_status device_query(opipe_instance *self, uint32_t index, opipe_device_info *io_info,
                                 opipe_error *err) {
  const char *has = getenv("OPIPE_HAS");
  const opipe_status status = cpu->device_query(self->cpu_self, index, io_info, err);
  if (status == OPIPE_OK && has != NULL)
    io_info->memory_bytes = strtoull(has, NULL, 10);
  return status;
}

static opipe_status device_open(opipe_instance *self, const opipe_device_params *params,
                                opipe_device **out_device, opipe_error *err) {
  return cpu->device_open(self->cpu_self, params, out_device, err);
}

static bool refused(const opipe_node *node) {
  if (refuses == NULL)
    return false;
  return refuses[0] == '!' ? strcmp(node->op, refuses + 1) != 0 : strcmp(node->op, refuses) == 0;
}

static opipe_status support_others(opipe_device *device, const opipe_graph *graph,
                                   opipe_support *out_support, opipe_error *err) {
  const opipe_status status = cpu->support(device, graph, out_support, err);
  for (uint32_t n = 0; status == OPIPE_OK && n < graph->n_nodes; ++n) {
    if (!refused(&graph->nodes[n]))
      continue;
    out_support[n].status = OPIPE_E_UNSUPPORTED;
    memset(out_support[n].reason, 'x', sizeof out_support[n].reason); /* an end is not promised */
    memcpy(out_support[n].reason, "impaired\n", 9);
  }
  return status;
}

static opipe_status compile_others(opipe_device *device, const opipe_compile_params *params,
                                   opipe_program **out_program, opipe_error *err) {
  bool has_node = false;
  for (uint32_t n = 0; n < params->graph->n_nodes; ++n) {
    const opipe_node *node = &params->graph->nodes[n];
    if (refused(node))
      return opipe_fail(err, OPIPE_E_UNSUPPORTED, "node '%s' (%s): impaired", node->name, node->op);
    has_node = has_node || (spoils != 0 && strcmp(node->name, spoiled_node) == 0);
  }
  const opipe_status status = cpu->compile(device, params, out_program, err);
  if (status != OPIPE_OK)
    return status;
  for (uint32_t i = 0; i < PROGRAMS_MOST; ++i) { /* one that is gone stood where this one stands */
    if (programs[i] == *out_program)
      programs[i] = NULL;
  }
  if (has_node)
    programs[atomic_fetch_add(&n_programs, 1) % PROGRAMS_MOST] = *out_program;
  return status;
}

static bool has_node(const opipe_program *program) {
  uint32_t i = 0;
  while (i < PROGRAMS_MOST && programs[i] != program)
    ++i;
  return i < PROGRAMS_MOST;
}

static opipe_status bind_and_note(opipe_device *device, const opipe_bind_params *params,
                                  opipe_binding **out_binding, opipe_error *err) {
  const opipe_status status = cpu->bind(device, params, out_binding, err);
  for (uint32_t i = 0; status == OPIPE_OK && i < BINDINGS_MOST; ++i) { /* as above */
    if (bindings[i].binding == *out_binding)
      bindings[i].binding = NULL;
  }
  if (status == OPIPE_OK && params->n_boundaries != 0) {
    const uint32_t at = atomic_fetch_add(&n_bindings, 1) % BINDINGS_MOST;
    bindings[at].counted = has_node(params->program);
    bindings[at].last = params->boundaries[params->n_boundaries - 1];
    bindings[at].binding = *out_binding;
  }
  return status;
}

static void spoil(const bound *b) {
  opipe_error err = OPIPE_ERROR_INIT;
  void *data = NULL;
  if (b->last.n_bytes != 0 && cpu->buffer_host(b->last.buffer, &data, &err) == OPIPE_OK)
    ((unsigned char *)data)[b->last.offset_bytes + 2] ^= 1;
}

static opipe_status run_and_spoil(opipe_binding *binding, opipe_queue *queue,
                                  const int64_t *scalars, uint32_t n_scalars, opipe_error *err) {
  const opipe_status status = cpu->run(binding, queue, scalars, n_scalars, err);
  for (uint32_t i = 0; spoils != 0 && i < BINDINGS_MOST; ++i) {
    if (bindings[i].binding == binding && bindings[i].counted &&
        atomic_fetch_add(&n_runs, 1) + 1 == spoils)
      spoil(&bindings[i]);
  }
  return status;
}

static opipe_status open_plugin(const opipe_host *host, opipe_instance **out_self,
                                opipe_error *err) {
  const char *which = getenv("OPIPE_SPOILS");
  const opipe_backend_lookup *lookup =
      (const opipe_backend_lookup *)host->get_interface(host->ctx, OPIPE_BACKEND_LOOKUP_ID);
  if (lookup == NULL)
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "this host has no %s", OPIPE_BACKEND_LOOKUP_ID);
  opipe_instance *self = (opipe_instance *)host->realloc(host->ctx, NULL, 0, sizeof *self, 16);
  if (self == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for the plugin");
  self->host = host;
  const opipe_status status = lookup->find(host->ctx, "cpu", &cpu, &self->cpu_self, err);
  if (status < 0) {
    host->realloc(host->ctx, self, sizeof *self, 0, 16);
    return status;
  }
  char *node = NULL;
  spoils = which == NULL ? 0 : (uint32_t)strtoul(which, &node, 10);
  spoiled_node = node != NULL && node[0] == ':' ? node + 1 : "";
  refuses = getenv("OPIPE_REFUSES");
  self->table = *cpu;
  self->table.device_count = device_count;
  self->table.device_query = device_query;
  self->table.device_open = device_open;
  self->table.support = support_others;
  self->table.compile = compile_others;
  self->table.bind = bind_and_note;
  self->table.run = run_and_spoil;
  *out_self = self;
  return OPIPE_OK;
}

static void close_plugin(opipe_instance *self) {
  if (self != NULL)
    self->host->realloc(self->host->ctx, self, sizeof *self, 0, 16);
}

static const void *get_interface(opipe_instance *self, const char *id) {
  return strcmp(id, OPIPE_BACKEND_ID) == 0 ? &self->table : NULL;
}

extern OPIPE_EXPORT const opipe_plugin OPIPE_PLUGIN_SYMBOL;
const opipe_plugin OPIPE_PLUGIN_SYMBOL = {
    OPIPE_PLUGIN_HEAD(OPIPE_KIND_BACKEND, 0), "impaired",  "1.0",        "Apache-2.0",
    "backend cpu that lacks something",       open_plugin, close_plugin, get_interface};
