/* SPDX-License-Identifier: Apache-2.0 */
/* A model of the repository: its file, its plan. Instances share both, and the weights. */
#include "adapter.h"

static tri_error *read_ports(served *s, bool in, uint32_t n, port **out) {
  const opipe_api *api = s->maker.api;
  port *ports = host_pool_take(&s->memory, (n + 1) * sizeof *ports);
  opipe_tensor_info info = opipe_tensor_info_init();
  opipe_error err = OPIPE_ERROR_INIT;
  const char *type = NULL;
  if (ports == NULL)
    return tri_no_memory();
  for (uint32_t i = 0; i < n; ++i) {
    if ((in ? api->model_input(s->model, i, &info, &err)
            : api->model_output(s->model, i, &info, &err)) < 0)
      return tri_fail_with(NULL, &err);
    ports[i] =
        (port){.name = info.name, .shape = info.shape, .dtype = info.dtype, .rank = info.rank};
    ports[i].type = tri_type_of(info.dtype, &type);
    ports[i].type_name = type;
    if (type == NULL) {
      return tri_fail(TRI_ERROR_UNSUPPORTED, "onnx-pipe: %s '%s' is of ONNX type %u (%s)",
                      in ? "input" : "output", info.name, info.dtype,
                      opipe_dtype_row_of(info.dtype)->name);
    }
  }
  *out = ports;
  return NULL;
}

static tri_error *fill_model(tri_model *handle, served *s) {
  const opipe_api *api = s->maker.api;
  opipe_load_params load = opipe_load_params_init();
  opipe_model_info info = opipe_model_info_init();
  opipe_error err = OPIPE_ERROR_INIT;
  TRI_TRY(config_read_model(handle, s, &load.path));
  if (api->model_load(s->maker.context, &load, &s->model, &err) < 0 ||
      api->model_info(s->model, &info, &err) < 0)
    return tri_fail_with(s->name, &err);
  if (s->set.n_context > 0) {
    TRI_TRY(generate_ports(s));
    TRI_TRY(config_complete(handle, s));
    return generate_open(s);
  }
  s->n_inputs = info.n_inputs;
  s->n_outputs = info.n_outputs;
  TRI_TRY(read_ports(s, true, s->n_inputs, &s->inputs));
  TRI_TRY(read_ports(s, false, s->n_outputs, &s->outputs));
  TRI_TRY(config_complete(handle, s));
  if (s->set.common.max_shapes == 0 && s->n_rows > 8)
    s->set.common.max_shapes = s->n_rows; /* a shape for every number of rows */
  return host_join(&s->maker, s->model, &err) < 0 ||
                 host_make_plan(&s->maker, s->model, &s->plan, &err) < 0
             ? tri_fail_with(s->name, &err)
             : NULL;
}

bool model_has_batch(const served *s) {
  const opipe_api *api = s->maker.api;
  const opipe_device_choice device = {.kind = "cpu"};
  opipe_bind_options bind = opipe_bind_options_init();
  opipe_plan_params params = opipe_plan_params_init();
  opipe_model *bound = NULL;
  opipe_plan *plan = NULL;
  bool has = s->n_inputs > 0;
  for (uint32_t i = 0; i < s->n_inputs + s->n_outputs; ++i) {
    const port *p = i < s->n_inputs ? &s->inputs[i] : &s->outputs[i - s->n_inputs];
    has = has && p->rank > 0 && p->shape[0] < 0;
  }
  /* Rows that can be cut apart can be joined. */
  bind.flags = OPIPE_BIND_DEFAULTS;
  bind.default_batch = 2;
  params.devices = &device;
  params.n_devices = 1;
  params.n_stages = 1;
  params.n_microbatches = 2;
  has = has && api->model_bind(s->model, &bind, &bound, NULL) == OPIPE_OK &&
        api->plan_make(bound, &params, &plan, NULL) == OPIPE_OK;
  api->plan_destroy(plan);
  api->model_destroy(bound);
  return has;
}

tri_error *model_open(tri_model *handle, backend *b, served **out) {
  served *s = host_take(sizeof *s);
  if (s == NULL)
    return tri_no_memory();
  s->owner = b;
  s->name = "";
  s->maker = (host_maker){b->api, b->context, &s->set.common, NULL};
  tri_error *error = fill_model(handle, s);
  if (error != NULL)
    model_close(s);
  else
    *out = s;
  return error;
}

void model_close(served *s) {
  if (s == NULL)
    return;
  s->maker.api->plan_destroy(s->plan);
  host_leave(&s->maker);
  s->maker.api->model_destroy(s->model);
  host_pool_free(&s->memory);
  host_give(s);
}
