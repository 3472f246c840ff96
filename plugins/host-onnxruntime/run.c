/* SPDX-License-Identifier: Apache-2.0 */
/* One call of a fused node: ORT's tensors are the request's, where they lie, and its outputs are
 * made when the library knows their shapes. Calls of many threads stream through the stages; one
 * that finds no room sleeps until there is.
 */
#include <string.h>

#include "adapter.h"

typedef struct call {
  part *p;
  ort_kernel *kernel;
  ort_status *status; /* why an output could not be made */
  host_pool memory;
  opipe_binding_io *io; /* [n_inputs] */
  int64_t (*shapes)[OPIPE_MAX_RANK];
} call;

static opipe_dtype dl_type(uint32_t dtype) {
  const opipe_dtype_row *row = opipe_dtype_row_of(dtype);
  return (opipe_dtype){(uint8_t)row->dl, (uint8_t)row->bits, 1};
}

/* ---- inputs ---- */

static ort_status *read_inputs(call *c) {
  part *p = c->p;
  const factory *f = p->owner->f;
  for (uint32_t i = 0; i < p->n_inputs; ++i) {
    const port *to = &p->inputs[i];
    const ort_value *value = NULL;
    void *data = NULL;
    tensor_type is = {0};
    ORT_TRY(ORT(f->ort, KernelContext_GetInput)(c->kernel, to->index, &value));
    if (value == NULL)
      return ep_fail_text(f, ORT_INVALID_ARGUMENT, "onnx-pipe: input '%s' is missing", to->name);
    ORT_TRY(tables_type(f, value, &c->memory, c->shapes[i], &is));
    if (is.rank > OPIPE_MAX_RANK) {
      return ep_fail_text(f, ORT_INVALID_ARGUMENT,
                          "onnx-pipe: input '%s' has %zu dimensions; the limit is %d", to->name,
                          is.rank, OPIPE_MAX_RANK);
    }
    if ((uint32_t)is.dtype != to->dtype) {
      return ep_fail_text(f, ORT_INVALID_ARGUMENT,
                          "onnx-pipe: input '%s' is of ONNX type %d, the graph says %u", to->name,
                          is.dtype, to->dtype);
    }
    ORT_TRY(ORT(f->ort, GetTensorMutableData)((ort_value *)(uintptr_t)value, &data));
    c->io[i] = (opipe_binding_io){.name = to->name,
                                  .tensor = {.data = data,
                                             .device_type = OPIPE_DL_CPU,
                                             .rank = (int32_t)is.rank,
                                             .dtype = dl_type(to->dtype),
                                             .shape = is.shape}};
  }
  return NULL;
}

/* Before a run reads weights again: is what was lent still where it was? */
static ort_status *verify(part *p, const ort_kernel *kernel) {
  const factory *f = p->owner->f;
  if (atomic_load_explicit(&p->verified, memory_order_acquire))
    return NULL;
  for (size_t i = 0; i < p->t.n_lent; ++i) {
    const ort_value *value = NULL;
    void *data = NULL;
    ORT_TRY(ORT(f->ort, KernelContext_GetInput)(kernel, p->lent_at[i], &value));
    if (value != NULL)
      ORT_TRY(ORT(f->ort, GetTensorMutableData)((ort_value *)(uintptr_t)value, &data));
    if (data != p->t.lent[i].data) {
      return ep_fail_text(
          f, ORT_FAIL,
          "onnx-pipe: ONNX Runtime has moved initializer '%s' since the session was "
          "made: set option weights=copy",
          p->t.lent[i].name);
    }
  }
  atomic_store_explicit(&p->verified, true, memory_order_release);
  return NULL;
}

/* A session whose shapes need values: the first run opens it. */
static ort_status *open_late(call *c) {
  part *p = c->p;
  opipe_session *session = NULL;
  opipe_status status = OPIPE_OK;
  opipe_error err = OPIPE_ERROR_INIT;
  (void)pthread_mutex_lock(&p->opening);
  if (atomic_load(&p->session) == NULL) {
    status = host_open_with(&p->owner->maker, p->model, c->io, p->n_inputs, &session, &err);
    atomic_store(&p->session, session);
  }
  (void)pthread_mutex_unlock(&p->opening);
  return status < 0 ? ep_fail(p->owner->f, "at the first run", &err) : NULL;
}

/* ---- outputs, and the run ---- */

static opipe_status make_output(void *ctx, uint32_t index, const opipe_tensor *tensor,
                                uint64_t n_bytes, void **out_data) {
  call *c = ctx;
  const ort_table *ort = c->p->owner->f->ort;
  ort_value *value = NULL;
  c->status = ORT(ort, KernelContext_GetOutput)(c->kernel, c->p->outputs[index].index,
                                                tensor->shape, (size_t)tensor->rank, &value);
  if (c->status == NULL && value != NULL && n_bytes != 0)
    c->status = ORT(ort, GetTensorMutableData)(value, out_data);
  return c->status == NULL ? OPIPE_OK : OPIPE_E_NOMEM;
}

static ort_status *run(call *c) {
  const ep *e = c->p->owner;
  const opipe_api *api = e->maker.api;
  opipe_session *session = atomic_load_explicit(&c->p->session, memory_order_acquire);
  opipe_submit_params params = opipe_submit_params_init();
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_request *request = NULL;
  params.inputs = c->io;
  params.n_inputs = c->p->n_inputs;
  params.on_output = make_output;
  params.on_output_ctx = c;
  opipe_status status = host_submit(api, session, &params, &request, &err);
  if (status == OPIPE_OK) {
    status = api->request_wait(request, UINT64_MAX, &err);
    api->request_release(request);
  }
  if (c->status != NULL)
    return c->status; /* ORT's own reason */
  return status < 0 ? ep_fail(e->f, NULL, &err) : NULL;
}

static ort_status *run_all(call *c) {
  part *p = c->p;
  c->io = host_pool_take(&c->memory, (p->n_inputs + 1) * sizeof *c->io);
  c->shapes = host_pool_take(&c->memory, (p->n_inputs + 1) * sizeof *c->shapes);
  if (c->io == NULL || c->shapes == NULL)
    return ep_no_memory(p->owner->f);
  ORT_TRY(verify(p, c->kernel));
  ORT_TRY(read_inputs(c));
  if (atomic_load_explicit(&p->session, memory_order_acquire) == NULL)
    ORT_TRY(open_late(c));
  return run(c);
}

ort_status *part_compute(ort_compute *self, void *state, ort_kernel *kernel) {
  call c = {.p = (part *)self, .kernel = kernel};
  (void)state;
  ort_status *status = run_all(&c);
  host_pool_free(&c.memory);
  return status;
}
