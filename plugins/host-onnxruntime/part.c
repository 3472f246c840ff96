/* SPDX-License-Identifier: Apache-2.0 */
/* A fused node: its model is made when ORT compiles it, and so are plan and session, with the
 * dimensions that the graph has, or where they are free with those of the option `bind` and the
 * library's defaults: a cap that parameters exceed fails the ORT session. Only where a shape
 * depends on values of inputs the first run opens the session. The stages stay; shapes come and go.
 */
#include <string.h>

#include "adapter.h"

/* ---- what goes in and out ---- */

static size_t find(const char *const *names, size_t n, const char *name) {
  size_t i = 0;
  while (i < n && strcmp(names[i], name) != 0)
    ++i;
  return i;
}

static ort_status *not_there(const part *p, const char *name) {
  return ep_fail_text(p->owner->f, ORT_FAIL, "onnx-pipe: the fused node has no value '%s'", name);
}

static ort_status *list_ports(part *p, const ort_node *fused) {
  const factory *f = p->owner->f;
  const opipe_api *api = p->owner->maker.api;
  const ort_value_info **list[2] = {NULL, NULL};
  const char **names[2] = {NULL, NULL};
  size_t n[2] = {0, 0};
  opipe_model_info info = opipe_model_info_init();
  opipe_tensor_info tensor = opipe_tensor_info_init();
  opipe_error err = OPIPE_ERROR_INIT;
  ORT_TRY(ORT(f->ort, Node_GetNumInputs)(fused, &n[0]));
  ORT_TRY(ORT(f->ort, Node_GetNumOutputs)(fused, &n[1]));
  for (int i = 0; i < 2; ++i) {
    list[i] = host_pool_take(&p->t.memory, (n[i] + 1) * sizeof *list[i]);
    if (list[i] == NULL)
      return ep_no_memory(f);
    ORT_TRY(i == 0 ? ORT(f->ort, Node_GetInputs)(fused, list[i], n[i])
                   : ORT(f->ort, Node_GetOutputs)(fused, list[i], n[i]));
    ORT_TRY(tables_names(f, &p->t.memory, list[i], n[i], &names[i]));
  }
  if (api->model_info(p->model, &info, &err) < 0)
    return ep_fail(f, NULL, &err);
  p->n_inputs = info.n_inputs;
  p->n_outputs = info.n_outputs;
  p->inputs = host_pool_take(&p->t.memory, (p->n_inputs + 1) * sizeof *p->inputs);
  p->outputs = host_pool_take(&p->t.memory, (p->n_outputs + 1) * sizeof *p->outputs);
  p->lent_at = host_pool_take(&p->t.memory, (p->t.n_lent + 1) * sizeof *p->lent_at);
  if (p->inputs == NULL || p->outputs == NULL || p->lent_at == NULL)
    return ep_no_memory(f);
  for (uint32_t i = 0; i < p->n_inputs + p->n_outputs; ++i) {
    const bool in = i < p->n_inputs;
    const uint32_t at = in ? i : i - p->n_inputs;
    port *to = in ? &p->inputs[at] : &p->outputs[at];
    if ((in ? api->model_input(p->model, at, &tensor, &err)
            : api->model_output(p->model, at, &tensor, &err)) < 0)
      return ep_fail(f, NULL, &err);
    *to = (port){tensor.name, find(names[in ? 0 : 1], n[in ? 0 : 1], tensor.name), tensor.dtype, 0};
    if (to->index == n[in ? 0 : 1])
      return not_there(p, to->name);
  }
  for (size_t i = 0; i < p->t.n_lent; ++i) {
    p->lent_at[i] = find(names[0], n[0], p->t.lent[i].name);
    if (p->lent_at[i] == n[0])
      return not_there(p, p->t.lent[i].name);
  }
  return NULL;
}

/* ---- compile ---- */

static void free_part(part *p) {
  const host_maker *m = &p->owner->maker;
  opipe_session *session = atomic_load(&p->session);
  opipe_error err = OPIPE_ERROR_INIT;
  if (host_write_trace(m, session, &err) < 0)
    ep_log(p->owner, ORT_LOG_WARNING, "onnx-pipe: no trace in %s: %s", m->set->trace, err.message);
  m->api->session_close(session);
  m->api->model_destroy(p->model);
  host_pool_free(&p->t.memory); /* nothing reads it any more */
  (void)pthread_mutex_destroy(&p->opening);
  host_give(p);
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
  const host_maker *m = &e->maker;
  opipe_session *session = NULL;
  opipe_plan *plan = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  ORT_TRY(tables_read(e->f, graph, NULL, 0, &p->t));
  if (m->api->model_build(m->context, &p->t.params, &p->model, &err) < 0)
    return ep_fail(e->f, "model_build", &err);
  if (e->set.model != NULL && m->api->model_write(p->model, e->set.model, &err) < 0)
    return ep_fail(e->f, "option model", &err);
  ORT_TRY(list_ports(p, fused));
  opipe_status status = host_make_plan(m, p->model, &plan, &err);
  if (status == OPIPE_E_INVALID && e->set.in_parts)
    status = OPIPE_OK; /* no names say which dimensions are one: those of the first run are right */
  if (status == OPIPE_OK && plan != NULL)
    status = host_open(m, plan, &session, &err);
  m->api->plan_destroy(plan); /* the session keeps it */
  atomic_store(&p->session, session);
  return status < 0 ? ep_fail(e->f, NULL, &err) : NULL;
}

static ort_status *make_part(ep *e, const ort_graph *graph, const ort_node *fused, part **out) {
  part *p = host_take(sizeof *p);
  if (p == NULL)
    return ep_no_memory(e->f);
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
