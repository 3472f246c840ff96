/* SPDX-License-Identifier: Apache-2.0 */
/* A fused node: model and plan are made when ORT compiles it, with the dimensions that the graph
 * has, or where they are free those of the option `bind` and the library's defaults: a cap that
 * parameters exceed fails the ORT session. The session is opened then if it reads weights where ORT
 * has them, else when ORT makes its kernels; where shapes depend on values, at the first run. */
#include <string.h>

#include "adapter.h"

/* ---- inputs and outputs ---- */

static size_t find(const char *const *names, size_t n, const char *name) {
  size_t i = 0;
  while (i < n && strcmp(names[i], name) != 0)
    ++i;
  return i;
}

static ort_status *not_there(const part *p, const char *name) {
  return ep_fail_text(p->owner->f, ORT_FAIL, "onnx-pipe: the fused node has no value '%s'", name);
}

/* Inputs, or outputs: where the model's are among the fused node's; and what was lent. */
static ort_status *list_ports(part *p, const ort_node *fused, bool in, uint32_t n_ports,
                              port **out) {
  const factory *f = p->owner->f;
  const opipe_api *api = p->owner->maker.api;
  const char **names = NULL;
  size_t n = 0;
  opipe_tensor_info tensor = opipe_tensor_info_init();
  opipe_error err = OPIPE_ERROR_INIT;
  ORT_TRY(in ? ORT(f->ort, Node_GetNumInputs)(fused, &n)
             : ORT(f->ort, Node_GetNumOutputs)(fused, &n));
  const ort_value_info **list = host_pool_take(&p->t.memory, (n + 1) * sizeof *list);
  port *ports = host_pool_take(&p->t.memory, (n_ports + 1) * sizeof *ports);
  if (list == NULL || ports == NULL)
    return ep_no_memory(f);
  ORT_TRY(in ? ORT(f->ort, Node_GetInputs)(fused, list, n)
             : ORT(f->ort, Node_GetOutputs)(fused, list, n));
  ORT_TRY(tables_names(f, &p->t.memory, list, n, &names));
  for (uint32_t i = 0; i < n_ports; ++i) {
    if ((in ? api->model_input : api->model_output)(p->model, i, &tensor, &err) < 0)
      return ep_fail(f, NULL, &err);
    ports[i] = (port){tensor.name, find(names, n, tensor.name), tensor.dtype, 0};
    if (ports[i].index == n)
      return not_there(p, tensor.name);
  }
  for (size_t i = 0; in && i < p->t.n_lent; ++i) {
    p->t.lent[i].index = find(names, n, p->t.lent[i].name);
    if (p->t.lent[i].index == n)
      return not_there(p, p->t.lent[i].name);
  }
  *out = ports;
  return NULL;
}

/* ---- compile ---- */

static void free_part(part *p) {
  const host_maker *m = &p->owner->maker;
  opipe_session *session = atomic_load(&p->late.session);
  opipe_error err = OPIPE_ERROR_INIT;
  if (host_write_trace(m, p->model, session, &err) < 0)
    ep_log(p->owner, ORT_LOG_WARNING, "onnx-pipe: no trace in %s: %s", m->set->trace, err.message);
  m->api->session_close(session);
  m->api->plan_destroy(p->plan);
  m->api->model_destroy(p->model);
  host_pool_free(&p->t.memory); /* nothing reads it any more */
  (void)pthread_mutex_destroy(&p->late.lock);
  host_give(p);
}

/* Opens the session of the plan, if there is one: weights are packed. */
static ort_status *open_planned(part *p) {
  const host_maker *m = &p->owner->maker;
  opipe_session *session = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_status status = p->plan == NULL ? OPIPE_OK : host_open(m, p->plan, &session, &err);
  m->api->plan_destroy(p->plan); /* the session keeps it */
  p->plan = NULL;
  if (session != NULL)
    atomic_store(&p->late.session, session);
  return status < 0 ? ep_fail(p->owner->f, NULL, &err) : NULL;
}

/* When ORT makes its kernels it has let go of constants that nothing reads any more: with nothing
 * lent it is only now that weights are packed. */
static ort_status *create_state(ort_compute *self, void *context, void **out) {
  (void)context;
  *out = self;
  return open_planned((part *)self);
}

static void release_state(ort_compute *self, void *state) {
  (void)self, (void)state;
}

static ort_status *fill_part(part *p, const ort_graph *graph, const ort_node *fused) {
  const ep *e = p->owner;
  const host_maker *m = &e->maker;
  opipe_model_info info = opipe_model_info_init();
  opipe_error err = OPIPE_ERROR_INIT;
  ORT_TRY(tables_read(e->f, graph, NULL, 0, &p->t));
  if (m->api->model_build(m->context, &p->t.params, &p->model, &err) < 0)
    return ep_fail(e->f, "model_build", &err);
  if (e->set.model != NULL && m->api->model_write(p->model, e->set.model, &err) < 0)
    return ep_fail(e->f, "option model", &err);
  if (m->api->model_info(p->model, &info, &err) < 0)
    return ep_fail(e->f, NULL, &err);
  p->n_inputs = info.n_inputs;
  p->n_outputs = info.n_outputs;
  ORT_TRY(list_ports(p, fused, true, p->n_inputs, &p->inputs));
  ORT_TRY(list_ports(p, fused, false, p->n_outputs, &p->outputs));
  const opipe_status status = host_make_plan(m, p->model, &p->plan, &err);
  if (status == OPIPE_E_INVALID && e->set.in_parts)
    return NULL; /* no names say which dimensions are one: those of the first run are right */
  if (status < 0)
    return ep_fail(e->f, NULL, &err);
  return p->t.n_lent == 0 ? NULL : open_planned(p);
}

static ort_status *make_part(ep *e, const ort_graph *graph, const ort_node *fused, part **out) {
  part *p = host_take(sizeof *p);
  if (p == NULL)
    return ep_no_memory(e->f);
  p->base = (ort_compute){e->f->version, create_state, part_compute, release_state};
  p->owner = e;
  p->t.copies = e->set.copies;
  (void)pthread_mutex_init(&p->late.lock, NULL);
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
    return ep_fail_text(e->f, ORT_FAIL, "%s", e->broken);
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
