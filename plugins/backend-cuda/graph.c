/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of a binding as one graph of the driver: captured once, when it is bound, and launched
 * in every run by one call.
 *
 * It has nothing that changes between runs: scalars and reports go through the run's block, which
 * the launch before the steps writes (in the graph, where a program has no scalars) and the one
 * behind them reads, so a graph is never captured again. Its bits are those of the single launches:
 * the same kernels with the same arguments. Programs with nodes on the CPU, with poison, and
 * devices that wait for every launch have none. If the driver or a library refuses to capture it, a
 * warning is logged and the steps are launched one by one.
 */
#include "binding.h"

static bool is_wanted(const opipe_binding *binding) {
  const opipe_program *program = binding->program;
  const opipe_device *device = program->device;
  return device->graphs && !device->blocking && program->sections == NULL &&
         (program->flags & OPIPE_COMPILE_POISON) == 0 && binding->n_steps > 0;
}

/* Ends the capture however the steps went. */
static opipe_status capture(const opipe_binding *binding, CUstream stream, CUgraph *out_graph,
                            opipe_error *err) {
  cuda_place *place = binding->program->device->place;
  const cuda_driver *driver = place->driver;
  CUDA_TRY(cuda_result(place, driver->capture_begin(stream, CUDA_CAPTURE_THREAD_LOCAL),
                       "bind: the beginning of a graph", err));
  opipe_status status = OPIPE_OK;
  const bool begins = binding->program->graph->n_scalars == 0;
  if (begins)
    status = cuda_run_begin(binding, stream, NULL, 0, err);
  if (status >= 0)
    status = cuda_run_steps(binding, stream, begins, err);
  const CUresult ended = driver->capture_end(stream, out_graph);
  if (status >= 0)
    status = cuda_result(place, ended, "bind: the end of a graph", err);
  return status;
}

static opipe_status make(opipe_binding *binding, opipe_error *err) {
  cuda_place *place = binding->program->device->place;
  const cuda_driver *driver = place->driver;
  CUstream stream = NULL;
  CUgraph graph = NULL;
  CUDA_TRY(cuda_result(place, driver->stream_create(&stream, CUDA_STREAM_NON_BLOCKING),
                       "bind: a stream for a graph", err));
  opipe_status status = capture(binding, stream, &graph, err);
  if (status >= 0) {
    status = cuda_result(place, driver->graph_make(&binding->graph, graph, 0),
                         "bind: making a graph", err);
  }
  if (status < 0)
    binding->graph = NULL;
  if (graph != NULL)
    (void)driver->graph_destroy(graph);
  (void)driver->stream_destroy(stream);
  return status;
}

opipe_status cuda_graph_make(opipe_binding *binding, opipe_error *err) {
  const opipe_device *device = binding->program->device;
  const opipe_host *host = device->host;
  opipe_error why = OPIPE_ERROR_INIT;
  char text[sizeof why.message + 80];
  if (!is_wanted(binding))
    return OPIPE_OK;
  const opipe_status status = make(binding, &why);
  if (status < 0 && cuda_place_is_lost(device->place)) {
    if (err != NULL)
      *err = why;
    return status;
  }
  if (status < 0 && host->log != NULL) {
    (void)snprintf(text, sizeof text, "%s; no graph: the binding's %u steps are a launch each",
                   why.message, binding->n_steps);
    host->log(host->ctx, OPIPE_LOG_WARN, NULL, 0, text);
  }
  return OPIPE_OK;
}

void cuda_graph_free(opipe_binding *binding) {
  if (binding->graph != NULL)
    (void)binding->program->device->place->driver->graph_free(binding->graph);
  binding->graph = NULL;
}
