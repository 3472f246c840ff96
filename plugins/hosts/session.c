/* SPDX-License-Identifier: Apache-2.0 */
/* Model -> plan -> session, as the settings say. A plan is made once, before the first request;
 * only where a shape depends on values of inputs that request makes it.
 */
#include <opipe/helpers.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hosts.h"

enum { LOOK_NS = 20000000 }; /* between two questions whether a run is over */

static opipe_status no_memory(opipe_error *err) {
  return opipe_fail(err, OPIPE_E_NOMEM, "out of memory");
}

/* All of a file in the pool; NULL: it cannot be read. */
static char *read_file(const char *path, host_pool *p, size_t *out_n) {
  FILE *file = fopen(path, "rb");
  if (file == NULL)
    return NULL;
  const long n = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
  char *text = n < 0 ? NULL : host_pool_take(p, (size_t)n + 1);
  if (text != NULL &&
      (fseek(file, 0, SEEK_SET) != 0 || fread(text, 1, (size_t)n, file) != (size_t)n))
    text = NULL;
  *out_n = n < 0 ? 0 : (size_t)n;
  (void)fclose(file);
  return text;
}

static opipe_status read_plan(const host_maker *m, opipe_model *model, opipe_plan **out,
                              opipe_error *err) {
  host_pool memory = {NULL};
  size_t n = 0;
  const char *text = read_file(m->set->plan, &memory, &n);
  const opipe_status status =
      text != NULL
          ? m->api->plan_read(model, text, n, out, err)
          : opipe_fail(err, OPIPE_E_IO, "the plan file %.300s cannot be read", m->set->plan);
  host_pool_free(&memory);
  return status;
}

void host_plan_params(const host_maker *m, opipe_device_choice *out_device,
                      opipe_plan_params *out) {
  const host_settings *s = m->set;
  *out_device = (opipe_device_choice){.kind = "cpu", .threads = s->n_threads};
  *out = opipe_plan_params_init();
  out->devices = out_device;
  out->n_devices = 1;
  out->n_stages = s->n_stages;
  out->n_ranks = s->n_ranks;
  out->n_microbatches = s->n_microbatches;
  out->replicas = s->n_replicas;
  out->schedule = s->schedule;
  out->transport = s->transport;
  out->memory_bytes = s->memory_bytes;
  host_plan_for(m->team, out);
}

static opipe_status bind_and_plan(const host_maker *m, opipe_model *model,
                                  const opipe_bind_options *bind, opipe_plan **out,
                                  opipe_error *err) {
  opipe_device_choice device;
  opipe_plan_params params;
  opipe_model *bound = NULL;
  host_plan_params(m, &device, &params);
  opipe_status status = m->api->model_bind(model, bind, &bound, err);
  if (status == OPIPE_OK)
    status = m->api->plan_make(bound, &params, out, err);
  m->api->model_destroy(bound);
  return status;
}

/* The option bind: "batch=1,seq=128". */
static opipe_status read_dims(const char *given, host_pool *p, opipe_bind_options *out,
                              opipe_error *err) {
  char *text = host_pool_text(p, given == NULL ? "" : given), *rest = NULL;
  opipe_dim *dims = host_pool_take(p, text == NULL ? 1 : (strlen(text) + 1) * sizeof *dims);
  if (text == NULL || dims == NULL)
    return no_memory(err);
  for (char *one = strtok_r(text, ",", &rest); one != NULL; one = strtok_r(NULL, ",", &rest)) {
    char *equals = strrchr(one, '='), *end = NULL;
    const int64_t value = equals == NULL ? 0 : strtoll(equals + 1, &end, 10);
    if (equals == NULL || end == equals + 1 || *end != '\0')
      return opipe_fail(err, OPIPE_E_INVALID, "option bind: '%.100s' is no dim=number", one);
    *equals = '\0';
    dims[out->n_dims++] = (opipe_dim){one, value};
  }
  out->dims = dims;
  return OPIPE_OK;
}

opipe_status host_make_plan(const host_maker *m, opipe_model *model, opipe_plan **out_plan,
                            opipe_error *err) {
  host_pool memory = {NULL};
  opipe_error own = OPIPE_ERROR_INIT;
  opipe_bind_options bind = opipe_bind_options_init();
  opipe_status status = OPIPE_OK;
  *out_plan = NULL;
  bind.flags = OPIPE_BIND_DEFAULTS;
  if (m->set->plan != NULL) {
    status = read_plan(m, model, out_plan, &own);
  } else {
    status = read_dims(m->set->bind, &memory, &bind, &own);
    if (status == OPIPE_OK)
      status = bind_and_plan(m, model, &bind, out_plan, &own);
  }
  host_pool_free(&memory);
  if (status < 0 && own.domain == OPIPE_DOMAIN_INPUT)
    return OPIPE_OK; /* with its values */
  if (status < 0 && err != NULL)
    *err = own;
  return status;
}

opipe_status host_open(const host_maker *m, opipe_plan *plan, opipe_session **out_session,
                       opipe_error *err) {
  opipe_session_params params = opipe_session_params_init();
  params.max_shapes = m->set->max_shapes;
  if (m->team != NULL)
    return host_open_in_team(m, plan, &params, out_session, err);
  return m->api->session_open(m->context, plan, &params, out_session, err);
}

/* The free dimensions of the inputs as io has them, "INPUT.axis". */
static opipe_status dims_of(const host_maker *m, opipe_model *model, const opipe_binding_io *io,
                            uint32_t n, host_pool *p, opipe_bind_options *out, opipe_error *err) {
  opipe_dim *dims = host_pool_take(p, ((size_t)n * OPIPE_MAX_RANK + 1) * sizeof *dims);
  opipe_tensor_info info = opipe_tensor_info_init();
  if (dims == NULL)
    return no_memory(err);
  for (uint32_t i = 0; i < n; ++i) {
    const opipe_status status = m->api->model_input(model, i, &info, err);
    if (status < 0)
      return status;
    for (int32_t d = 0; d < io[i].tensor.rank; ++d) {
      if ((uint32_t)d < info.rank && info.shape[d] >= 0)
        continue;
      const size_t room = strlen(io[i].name) + 16;
      char *name = host_pool_take(p, room);
      if (name == NULL)
        return no_memory(err);
      (void)snprintf(name, room, "%s.%d", io[i].name, d);
      dims[out->n_dims++] = (opipe_dim){name, io[i].tensor.shape[d]};
    }
  }
  out->dims = dims;
  return OPIPE_OK;
}

opipe_status host_open_with(const host_maker *m, opipe_model *model, const opipe_binding_io *io,
                            uint32_t n, opipe_session **out_session, opipe_error *err) {
  host_pool memory = {NULL};
  opipe_error own = OPIPE_ERROR_INIT;
  opipe_plan *plan = NULL;
  opipe_bind_options bind = opipe_bind_options_init();
  opipe_pin *pins = host_pool_take(&memory, ((size_t)n + 1) * sizeof *pins);
  opipe_status status = pins == NULL ? no_memory(&own) : OPIPE_OK;
  if (status == OPIPE_OK)
    status = dims_of(m, model, io, n, &memory, &bind, &own);
  bind.pins = pins;
  while (status == OPIPE_OK) { /* once more for every input whose value turns out to be needed */
    status = bind_and_plan(m, model, &bind, &plan, &own);
    if (status == OPIPE_OK || own.domain != OPIPE_DOMAIN_INPUT || own.native < 0 ||
        (uint32_t)own.native >= n || bind.n_pins == n)
      break;
    pins[bind.n_pins++] = (opipe_pin){io[own.native].name, io[own.native].tensor};
    own = (opipe_error)OPIPE_ERROR_INIT;
    status = OPIPE_OK;
  }
  if (status == OPIPE_OK)
    status = host_open(m, plan, out_session, &own);
  m->api->plan_destroy(plan); /* the session keeps it */
  host_pool_free(&memory);
  if (status < 0 && err != NULL)
    *err = own;
  return status;
}

opipe_status host_open_late(const host_maker *m, opipe_model *model, const opipe_binding_io *io,
                            uint32_t n, host_late *late, opipe_error *err) {
  opipe_session *session = NULL;
  opipe_status status = OPIPE_OK;
  if (atomic_load_explicit(&late->session, memory_order_acquire) != NULL)
    return OPIPE_OK;
  (void)pthread_mutex_lock(&late->lock);
  if (atomic_load(&late->session) == NULL) {
    status = host_open_with(m, model, io, n, &session, err);
    atomic_store(&late->session, session);
  }
  (void)pthread_mutex_unlock(&late->lock);
  return status;
}

opipe_status host_can_have(const host_maker *m, const opipe_build_params *params,
                           opipe_error *err) {
  opipe_model *model = NULL, *bound = NULL;
  opipe_bind_options bind = opipe_bind_options_init();
  bind.flags = OPIPE_BIND_DEFAULTS;
  opipe_status status = m->api->model_build(m->context, params, &model, err);
  if (status == OPIPE_OK)
    status = m->api->model_bind(model, &bind, &bound, err);
  m->api->model_destroy(bound);
  m->api->model_destroy(model);
  if (status < 0 && err->domain == OPIPE_DOMAIN_INPUT && host_is_shape(params->graph, err->native))
    status = OPIPE_OK;
  return status;
}

opipe_status host_submit(const opipe_api *api, opipe_session *session,
                         const opipe_submit_params *params, opipe_request **out_request,
                         opipe_error *err) {
  opipe_status status = OPIPE_PENDING;
  while (status == OPIPE_PENDING) {
    status = api->session_submit(session, params, out_request, err);
    if (status != OPIPE_PENDING)
      break;
    const opipe_status waited = api->session_wait_room(session, UINT64_MAX, err);
    status = waited < 0 ? waited : OPIPE_PENDING;
  }
  return status;
}

/* Waits for room, as host_submit, but looks whether it is over. */
static opipe_status submit_unless(const opipe_api *api, opipe_session *session,
                                  const opipe_submit_params *params, bool (*is_over)(void *ctx),
                                  void *ctx, opipe_request **out_request, opipe_error *err) {
  opipe_status status = OPIPE_PENDING;
  while (status == OPIPE_PENDING) {
    status = api->session_submit(session, params, out_request, err);
    if (status != OPIPE_PENDING)
      break;
    status = api->session_wait_room(session, LOOK_NS, err);
    if (status == OPIPE_E_TIMEOUT && is_over(ctx))
      return opipe_fail(err, OPIPE_E_CANCELLED, "the run was ended before it began");
    status = status == OPIPE_E_TIMEOUT || status >= 0 ? OPIPE_PENDING : status;
  }
  return status;
}

opipe_status host_run(const opipe_api *api, opipe_session *session,
                      const opipe_submit_params *params, bool (*is_over)(void *ctx), void *ctx,
                      opipe_error *err) {
  opipe_request *request = NULL;
  uint64_t patience_ns = is_over == NULL ? UINT64_MAX : LOOK_NS;
  opipe_status status = is_over == NULL
                            ? host_submit(api, session, params, &request, err)
                            : submit_unless(api, session, params, is_over, ctx, &request, err);
  if (status != OPIPE_OK)
    return status;
  while ((status = api->request_poll(request, err)) == OPIPE_PENDING) {
    if (api->request_wait(request, patience_ns, NULL) == OPIPE_E_TIMEOUT &&
        patience_ns == LOOK_NS && is_over(ctx)) {
      (void)api->request_cancel(request, NULL);
      patience_ns = UINT64_MAX; /* it ends as soon as the ranks have passed it */
    }
  }
  api->request_release(request);
  return status;
}

static opipe_status write_to_file(void *ctx, const void *data, size_t n_bytes) {
  return fwrite(data, 1, n_bytes, ctx) == n_bytes ? OPIPE_OK : OPIPE_E_IO;
}

opipe_status host_write_trace(const host_maker *m, opipe_model *model, opipe_session *session,
                              opipe_error *err) {
  const char *path = m->set->trace;
  const char *dot = path == NULL ? NULL : strrchr(path, '.');
  if (path == NULL || session == NULL)
    return OPIPE_OK;
  const uint32_t format =
      dot != NULL && strcmp(dot, ".svg") == 0 ? OPIPE_TRACE_SVG : OPIPE_TRACE_CHROME;
  if (OPIPE_HAS(m->api, opipe_api, model_check_target)) { /* since 1.4 */
    const opipe_status status = m->api->model_check_target(model, path, OPIPE_TARGET_OTHER, err);
    if (status < 0)
      return status;
  }
  FILE *file = fopen(path, "wb");
  if (file == NULL)
    return opipe_fail(err, OPIPE_E_IO, "the trace file %.300s cannot be written", path);
  opipe_status status = m->api->session_trace(session, format, write_to_file, file, err);
  if (fclose(file) != 0 && status == OPIPE_OK)
    status = opipe_fail(err, OPIPE_E_IO, "the trace file %.300s cannot be written", path);
  return status;
}
