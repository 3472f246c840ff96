/* SPDX-License-Identifier: Apache-2.0 */
/* A whole backend in under 200 lines: id "example", one device in host memory, float32 Add, Mul and
 * Relu of equal shapes.
 *
 * Built against the installed headers alone:
 *   cc -std=c11 -shared -fPIC -fvisibility=hidden -I<prefix>/include plugin.c
 *      -o opipe-backend-example.so
 * opipe/helpers.h brings memory, queues, events and parameters of host-memory devices; what makes
 * this backend its own is below. Every temporary value has a place of its own in the arena; a
 * larger backend would place them by lifetime.
 */
#define OPIPE_HELPERS_HOST_DEVICE
#include <opipe/helpers.h>

struct opipe_instance {
  const opipe_host *host;
};
/* ---- devices ---- */

static opipe_status device_count(opipe_instance *self, uint32_t *out_count, opipe_error *err) {
  (void)self;
  (void)err;
  *out_count = 1;
  return OPIPE_OK;
}

static opipe_status device_query(opipe_instance *self, uint32_t index, opipe_device_info *io_info,
                                 opipe_error *err) {
  const opipe_device_info info = {.struct_size = io_info->struct_size,
                                  .flags = OPIPE_DEVICE_HOST_MEMORY | OPIPE_DEVICE_SYNCHRONOUS,
                                  .memory_bytes = UINT64_C(1) << 30,
                                  .peak_flops = 1e9,
                                  .bandwidth = 1e10,
                                  .launch_ns = 100,
                                  .max_threads = 1,
                                  .alignment = OPIPE_HOST_ALIGN,
                                  .name = "example"};
  (void)self;
  if (index != 0)
    return opipe_fail(err, OPIPE_E_NOTFOUND, "there is no device %u, there is 1", index);
  memcpy(io_info, &info, io_info->struct_size < sizeof info ? io_info->struct_size : sizeof info);
  return OPIPE_OK;
}

static opipe_status device_open(opipe_instance *self, const opipe_device_params *params,
                                opipe_device **out_device, opipe_error *err) {
  return opipe_host_device_open(self->host, params, out_device, err);
}

/* ---- programs ---- */

/* Why a node is refused, NULL: it is not. */
static const char *refusal(const opipe_graph *graph, const opipe_node *node) {
  const bool relu = strcmp(node->op, "Relu") == 0;
  const opipe_value *out = &graph->values[node->out[0]];
  if (node->domain[0] != '\0')
    return "only the default domain";
  if (!relu && strcmp(node->op, "Add") != 0 && strcmp(node->op, "Mul") != 0)
    return "only Add, Mul and Relu";
  for (uint32_t i = 0; i < node->n_in; ++i) {
    const opipe_value *in = &graph->values[node->in[i]];
    if (in->dtype != OPIPE_FLOAT)
      return "only float32";
    if (in->n_bytes != out->n_bytes || in->rank != out->rank)
      return "no broadcasting";
    if (in->rank != 0 && memcmp(in->shape, out->shape, in->rank * sizeof(int64_t)) != 0)
      return "no broadcasting";
  }
  return NULL;
}

static opipe_status support(opipe_device *device, const opipe_graph *graph,
                            opipe_support *out_support, opipe_error *err) {
  (void)device;
  (void)err;
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    const char *why = refusal(graph, &graph->nodes[n]);
    out_support[n].status = why == NULL ? OPIPE_OK : OPIPE_E_UNSUPPORTED;
    (void)snprintf(out_support[n].reason, sizeof out_support[n].reason, "%s",
                   why == NULL ? "" : why);
  }
  return OPIPE_OK;
}

static opipe_status compile(opipe_device *device, const opipe_compile_params *params,
                            opipe_program **out_program, opipe_error *err) {
  const opipe_graph *graph = params->graph;
  const opipe_status known =
      opipe_check_flags(params->flags, OPIPE_COMPILE_NO_FUSE, "compile: flags", err);
  if (known < 0)
    return known;
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    const opipe_node *node = &graph->nodes[n];
    const char *why = refusal(graph, node);
    if (why != NULL)
      return opipe_fail(err, OPIPE_E_UNSUPPORTED, "node '%s' (%s): %s", node->name, node->op, why);
  }
  return opipe_host_program_new(device, graph, out_program, err);
}

/* ---- running ---- */

static opipe_status run(opipe_binding *binding, opipe_queue *queue, const int64_t *scalars,
                        uint32_t n_scalars, opipe_error *err) {
  (void)queue;
  (void)scalars;
  (void)n_scalars;
  (void)err;
  for (uint32_t n = 0; n < binding->graph->n_nodes; ++n) {
    const opipe_node *node = &binding->graph->nodes[n];
    const uint64_t count = binding->graph->values[node->out[0]].n_bytes / sizeof(float);
    const float *x = (const float *)binding->values[node->in[0]];
    const float *y = (const float *)binding->values[node->in[node->n_in - 1]];
    float *z = (float *)binding->values[node->out[0]];
    for (uint64_t i = 0; i < count; ++i) {
      z[i] = node->op[0] == 'A'   ? x[i] + y[i]
             : node->op[0] == 'M' ? x[i] * y[i]
             : x[i] > 0           ? x[i]
                                  : 0;
    }
  }
  return OPIPE_OK;
}

/* ---- the plugin ---- */

static const opipe_backend table = {(uint32_t)OPIPE_END(opipe_backend, run),
                                    0,
                                    device_count,
                                    device_query,
                                    device_open,
                                    OPIPE_HOST_MEMORY_SLOTS,
                                    support,
                                    compile,
                                    opipe_host_program_free,
                                    opipe_host_program_info,
                                    opipe_host_program_params,
                                    OPIPE_HOST_PARAMS_SLOTS,
                                    opipe_host_bind,
                                    opipe_host_binding_free,
                                    run,
                                    OPIPE_HOST_NO_TRAINING_SLOTS};

static opipe_status open_plugin(const opipe_host *host, opipe_instance **out_self,
                                opipe_error *err) {
  opipe_instance *self = (opipe_instance *)opipe_host_new(host, sizeof *self);
  if (self == NULL)
    return opipe_host_no_memory(err, "an instance");
  self->host = host;
  *out_self = self;
  return OPIPE_OK;
}

static void close_plugin(opipe_instance *self) {
  if (self != NULL)
    opipe_host_delete(self->host, self, sizeof *self);
}

static const void *find_interface(opipe_instance *self, const char *id) {
  (void)self;
  return strcmp(id, OPIPE_BACKEND_ID) == 0 ? &table : NULL;
}

extern OPIPE_EXPORT const opipe_plugin OPIPE_PLUGIN_SYMBOL;
const opipe_plugin OPIPE_PLUGIN_SYMBOL = {
    OPIPE_PLUGIN_HEAD(OPIPE_KIND_BACKEND, 0),   "example",   "1.0",        "Apache-2.0",
    "float32 Add, Mul and Relu in host memory", open_plugin, close_plugin, find_interface};
