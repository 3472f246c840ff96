/* SPDX-License-Identifier: Apache-2.0 */
/* A fused node: its model is made when ORT compiles it, and so are plan and session, with the
 * dimensions that the graph has, or where they are free with those of the option `bind` and the
 * library's defaults: a cap that parameters exceed fails the ORT session. Only where a shape
 * depends on values of inputs the first run opens the session. The stages stay; shapes come and go.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapter.h"

/* ---- plan and session ---- */

/* All of a file in the pool. */
static opipe_status read_file(const char *path, pool *p, char **out, size_t *out_n) {
  FILE *file = fopen(path, "rb");
  opipe_status status = OPIPE_E_IO;
  if (file == NULL)
    return status;
  const long n = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
  *out = n < 0 ? NULL : pool_take(p, (size_t)n + 1);
  if (*out != NULL && fseek(file, 0, SEEK_SET) == 0 && fread(*out, 1, (size_t)n, file) == (size_t)n)
    status = OPIPE_OK;
  *out_n = n < 0 ? 0 : (size_t)n;
  (void)fclose(file);
  return status;
}

static opipe_status read_plan(const part *p, opipe_plan **out, opipe_error *err) {
  const ep *e = p->owner;
  pool memory = {NULL};
  char *text = NULL;
  size_t n = 0;
  opipe_status status = read_file(e->set.plan, &memory, &text, &n);
  if (status == OPIPE_OK) {
    status = e->api->plan_read(p->model, text, n, out, err);
  } else {
    (void)snprintf(err->message, sizeof err->message, "the plan file %.300s cannot be read",
                   e->set.plan);
  }
  pool_free(&memory);
  return status;
}

static opipe_status make_plan(const part *p, const opipe_bind_options *bind, opipe_plan **out,
                              opipe_error *err) {
  const settings *s = &p->owner->set;
  const opipe_api *api = p->owner->api;
  const opipe_device_choice device = {.kind = "cpu", .threads = s->n_threads};
  opipe_plan_params params = opipe_plan_params_init();
  opipe_model *bound = NULL;
  params.devices = &device;
  params.n_devices = 1;
  params.n_stages = s->n_stages;
  params.n_ranks = s->n_ranks;
  params.n_microbatches = s->n_microbatches;
  params.replicas = s->n_replicas;
  params.schedule = s->schedule;
  params.transport = s->transport;
  params.memory_bytes = s->memory_bytes;
  opipe_status status = api->model_bind(p->model, bind, &bound, err);
  if (status == OPIPE_OK)
    status = api->plan_make(bound, &params, out, err);
  api->model_destroy(bound);
  return status;
}

opipe_status part_open(part *p, const opipe_bind_options *bind, opipe_error *err) {
  const ep *e = p->owner;
  opipe_session_params params = opipe_session_params_init();
  opipe_session *session = NULL;
  opipe_plan *plan = NULL;
  params.max_shapes = e->set.max_shapes;
  opipe_status status =
      e->set.plan != NULL ? read_plan(p, &plan, err) : make_plan(p, bind, &plan, err);
  if (status == OPIPE_OK)
    status = e->api->session_open(e->context, plan, &params, &session, err);
  e->api->plan_destroy(plan); /* the session keeps it */
  if (status == OPIPE_OK)
    atomic_store(&p->session, session);
  return status;
}

/* The option bind: "batch=1,seq=128". */
static opipe_status read_dims(part *p, opipe_bind_options *out, opipe_error *err) {
  const char *text = p->owner->set.bind;
  opipe_dim *dims = pool_take(&p->t.memory, (text == NULL ? 1 : strlen(text) + 1) * sizeof *dims);
  char *at = text == NULL ? NULL : pool_text(&p->t.memory, text), *rest = NULL;
  if (dims == NULL || (text != NULL && at == NULL))
    return OPIPE_E_NOMEM;
  for (char *one = at == NULL ? NULL : strtok_r(at, ",", &rest); one != NULL;
       one = strtok_r(NULL, ",", &rest)) {
    char *equals = strrchr(one, '='), *end = NULL;
    const int64_t value = equals == NULL ? 0 : strtoll(equals + 1, &end, 10);
    if (equals == NULL || end == equals + 1 || *end != '\0') {
      (void)snprintf(err->message, sizeof err->message, "option bind: '%.100s' is no dim=number",
                     one);
      return OPIPE_E_INVALID;
    }
    *equals = '\0';
    dims[out->n_dims++] = (opipe_dim){one, value};
  }
  out->dims = dims;
  out->dims_stride = sizeof *dims;
  return OPIPE_OK;
}

static opipe_status open_early(part *p, opipe_error *err) {
  opipe_bind_options bind = opipe_bind_options_init();
  bind.flags = OPIPE_BIND_DEFAULTS;
  opipe_status status = read_dims(p, &bind, err);
  if (status == OPIPE_OK)
    status = part_open(p, &bind, err);
  return status < 0 && err->domain == OPIPE_DOMAIN_INPUT ? OPIPE_OK /* with its values */ : status;
}

/* ---- what goes in and out ---- */

static size_t find(const char *const *names, size_t n, const char *name) {
  size_t i = 0;
  while (i < n && strcmp(names[i], name) != 0)
    ++i;
  return i;
}

static ort_status *not_there(const part *p, const char *what, const char *name) {
  return ep_fail_text(p->owner->f, ORT_EP_FAIL, "onnx-pipe: the fused node has no %s '%s'", what,
                      name);
}

static ort_status *list_ports(part *p, const ort_node *fused) {
  const ep *e = p->owner;
  const factory *f = e->f;
  const ort_value_info **list[2] = {NULL, NULL};
  const char **names[2] = {NULL, NULL};
  size_t n[2] = {0, 0};
  opipe_model_info info = opipe_model_info_init();
  opipe_tensor_info tensor = opipe_tensor_info_init();
  opipe_error err = OPIPE_ERROR_INIT;
  ORT_TRY(ORT(f->ort, Node_GetNumInputs)(fused, &n[0]));
  ORT_TRY(ORT(f->ort, Node_GetNumOutputs)(fused, &n[1]));
  for (int i = 0; i < 2; ++i) {
    list[i] = pool_take(&p->t.memory, (n[i] + 1) * sizeof *list[i]);
    if (list[i] == NULL)
      return ep_fail_text(f, ORT_FAIL, "onnx-pipe: out of memory");
    ORT_TRY(i == 0 ? ORT(f->ort, Node_GetInputs)(fused, list[i], n[i])
                   : ORT(f->ort, Node_GetOutputs)(fused, list[i], n[i]));
    ORT_TRY(tables_names(f, &p->t.memory, list[i], n[i], &names[i]));
  }
  if (e->api->model_info(p->model, &info, &err) < 0)
    return ep_fail(f, NULL, &err);
  p->n_inputs = info.n_inputs;
  p->n_outputs = info.n_outputs;
  p->inputs = pool_take(&p->t.memory, (p->n_inputs + 1) * sizeof *p->inputs);
  p->outputs = pool_take(&p->t.memory, (p->n_outputs + 1) * sizeof *p->outputs);
  p->lent_at = pool_take(&p->t.memory, (p->t.n_lent + 1) * sizeof *p->lent_at);
  if (p->inputs == NULL || p->outputs == NULL || p->lent_at == NULL)
    return ep_fail_text(f, ORT_FAIL, "onnx-pipe: out of memory");
  for (uint32_t i = 0; i < p->n_inputs + p->n_outputs; ++i) {
    const bool in = i < p->n_inputs;
    const uint32_t at = in ? i : i - p->n_inputs;
    port *to = in ? &p->inputs[at] : &p->outputs[at];
    if ((in ? e->api->model_input(p->model, at, &tensor, &err)
            : e->api->model_output(p->model, at, &tensor, &err)) < 0)
      return ep_fail(f, NULL, &err);
    *to = (port){tensor.name, find(names[in ? 0 : 1], n[in ? 0 : 1], tensor.name), tensor.dtype, 0};
    if (to->index == n[in ? 0 : 1])
      return not_there(p, in ? "input" : "output", to->name);
  }
  for (size_t i = 0; i < p->t.n_lent; ++i) {
    p->lent_at[i] = find(names[0], n[0], p->t.lent[i].name);
    if (p->lent_at[i] == n[0])
      return not_there(p, "constant input", p->t.lent[i].name);
  }
  return NULL;
}

/* ---- compile ---- */

static opipe_status write_to_file(void *ctx, const void *data, size_t n_bytes) {
  return fwrite(data, 1, n_bytes, ctx) == n_bytes ? OPIPE_OK : OPIPE_E_IO;
}

static void write_trace(const part *p) {
  const ep *e = p->owner;
  const char *dot = e->set.trace == NULL ? NULL : strrchr(e->set.trace, '.');
  opipe_session *session = atomic_load(&p->session);
  opipe_error err = OPIPE_ERROR_INIT;
  if (e->set.trace == NULL || session == NULL)
    return;
  FILE *file = fopen(e->set.trace, "wb");
  const bool picture = dot != NULL && strcmp(dot, ".svg") == 0;
  const opipe_status status =
      file == NULL ? OPIPE_E_IO
                   : e->api->session_trace(session, picture ? OPIPE_TRACE_SVG : OPIPE_TRACE_CHROME,
                                           write_to_file, file, &err);
  if ((file != NULL && fclose(file) != 0) || status < 0)
    ep_log(e, ORT_LOG_WARNING, "onnx-pipe: no trace in %s: %s", e->set.trace, err.message);
}

static void free_part(part *p) {
  const opipe_api *api = p->owner->api;
  write_trace(p);
  api->session_close(atomic_load(&p->session));
  api->model_destroy(p->model);
  pool_free(&p->t.memory); /* nothing reads it any more */
  (void)pthread_mutex_destroy(&p->opening);
  ep_give(p);
}

static ort_status *create_state(ort_compute *self, void *context, void **out) {
  (void)context;
  *out = self;
  return NULL;
}

static void release_state(ort_compute *self, void *state) {
  (void)self, (void)state;
}

static ort_status *fill_part(part *p, const ort_graph *graph, const ort_node *fused) {
  const ep *e = p->owner;
  opipe_error err = OPIPE_ERROR_INIT;
  ORT_TRY(tables_read(e->f, graph, NULL, &p->t));
  if (e->api->model_build(e->context, &p->t.params, &p->model, &err) < 0)
    return ep_fail(e->f, "model_build", &err);
  ORT_TRY(list_ports(p, fused));
  return open_early(p, &err) < 0 ? ep_fail(e->f, NULL, &err) : NULL;
}

static ort_status *make_part(ep *e, const ort_graph *graph, const ort_node *fused, part **out) {
  part *p = ep_take(sizeof *p);
  if (p == NULL)
    return ep_fail_text(e->f, ORT_FAIL, "onnx-pipe: out of memory");
  p->base = (ort_compute){e->f->version, create_state, part_compute, release_state};
  p->owner = e;
  p->t.copies = e->set.copies;
  (void)pthread_mutex_init(&p->opening, NULL);
  ort_status *status = fill_part(p, graph, fused);
  if (status != NULL)
    free_part(p);
  else
    *out = p;
  return status;
}

ort_status *ep_compile(ort_ep *self, const ort_graph **graphs, const ort_node **fused, size_t n,
                       ort_compute **out, ort_node **context_nodes) {
  const ep *e = (const ep *)self;
  (void)context_nodes;
  if (e->broken != NULL)
    return ep_fail_text(e->f, ORT_EP_FAIL, "%s", e->broken);
  for (size_t i = 0; i < n; ++i) {
    part *p = NULL;
    ort_status *status = make_part((ep *)self, graphs[i], fused[i], &p);
    if (status != NULL) {
      ep_release_computes(self, out, i);
      return status;
    }
    out[i] = &p->base;
  }
  return NULL;
}

void ep_release_computes(ort_ep *self, ort_compute **computes, size_t n) {
  (void)self;
  for (size_t i = 0; i < n; ++i) {
    if (computes[i] != NULL)
      free_part((part *)computes[i]);
    computes[i] = NULL;
  }
}
