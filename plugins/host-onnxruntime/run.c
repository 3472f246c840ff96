/* SPDX-License-Identifier: Apache-2.0 */
/* One call of a fused node: ORT's tensors are the request's, where they lie, and its outputs are
 * made when the library knows their shapes. Calls of many threads stream through the stages; one
 * that finds no room sleeps until there is.
 */
#include <stdio.h>
#include <string.h>

#include "adapter.h"

enum { PORTS = 64 /* inputs of one call without memory of its own */ };

typedef struct call {
  part *p;
  ort_kernel *kernel;
  ort_status *status; /* why an output could not be made */
  pool memory;
  opipe_binding_io *io; /* [n_inputs] */
  int64_t (*shapes)[OPIPE_MAX_RANK];
  opipe_binding_io own_io[PORTS];
  int64_t own_shapes[PORTS][OPIPE_MAX_RANK];
} call;

static opipe_dtype dl_type(uint32_t dtype) {
  const opipe_dtype_row *row = opipe_dtype_row_of(dtype);
  return (opipe_dtype){(uint8_t)row->dl, (uint8_t)row->bits, 1};
}

/* ---- inputs ---- */

static ort_status *read_shape(const factory *f, const ort_value *value, port *to, int64_t *shape,
                              size_t *out_rank) {
  const ort_table *ort = f->ort;
  ort_shape_info *info = NULL;
  int dtype = 0;
  ORT_TRY(ORT(ort, GetTensorTypeAndShape)(value, &info));
  ort_status *status = ORT(ort, GetTensorElementType)(info, &dtype);
  if (status == NULL)
    status = ORT(ort, GetDimensionsCount)(info, out_rank);
  if (status == NULL && *out_rank > OPIPE_MAX_RANK) {
    status = ep_fail_text(f, ORT_INVALID_ARGUMENT,
                          "onnx-pipe: input '%s' has %zu dimensions; the limit is %d", to->name,
                          *out_rank, OPIPE_MAX_RANK);
  }
  if (status == NULL)
    status = ORT(ort, GetDimensions)(info, shape, *out_rank);
  ORT(ort, ReleaseTensorTypeAndShapeInfo)(info);
  if (status == NULL && (uint32_t)dtype != to->dtype) {
    status = ep_fail_text(f, ORT_INVALID_ARGUMENT,
                          "onnx-pipe: input '%s' is of ONNX type %d, the graph says %u", to->name,
                          dtype, to->dtype);
  }
  return status;
}

static ort_status *read_inputs(call *c) {
  part *p = c->p;
  const factory *f = p->owner->f;
  for (uint32_t i = 0; i < p->n_inputs; ++i) {
    const ort_value *value = NULL;
    void *data = NULL;
    size_t rank = 0;
    ORT_TRY(ORT(f->ort, KernelContext_GetInput)(c->kernel, p->inputs[i].index, &value));
    if (value == NULL) {
      return ep_fail_text(f, ORT_INVALID_ARGUMENT, "onnx-pipe: input '%s' is missing",
                          p->inputs[i].name);
    }
    ORT_TRY(read_shape(f, value, &p->inputs[i], c->shapes[i], &rank));
    ORT_TRY(ORT(f->ort, GetTensorMutableData)((ort_value *)(uintptr_t)value, &data));
    c->io[i] = (opipe_binding_io){.name = p->inputs[i].name,
                                  .tensor = {.data = data,
                                             .device_type = OPIPE_DL_CPU,
                                             .rank = (int32_t)rank,
                                             .dtype = dl_type(p->inputs[i].dtype),
                                             .shape = c->shapes[i]}};
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
          f, ORT_EP_FAIL,
          "onnx-pipe: ONNX Runtime has moved initializer '%s' since the session was "
          "made: set option weights=copy",
          p->t.lent[i].name);
    }
  }
  atomic_store_explicit(&p->verified, true, memory_order_release);
  return NULL;
}

/* ---- a session whose shapes need values ---- */

static opipe_status open_with(call *c, opipe_error *err) {
  part *p = c->p;
  opipe_dim *dims =
      pool_take(&c->memory, ((size_t)p->n_inputs * OPIPE_MAX_RANK + 1) * sizeof *dims);
  opipe_pin *pins = pool_take(&c->memory, (p->n_inputs + 1) * sizeof *pins);
  opipe_bind_options bind = opipe_bind_options_init();
  if (dims == NULL || pins == NULL)
    return OPIPE_E_NOMEM;
  for (uint32_t i = 0; i < p->n_inputs; ++i) {
    for (int32_t d = 0; d < c->io[i].tensor.rank; ++d) {
      const size_t n = strlen(p->inputs[i].name) + 16;
      char *name = pool_take(&c->memory, n);
      if (name == NULL)
        return OPIPE_E_NOMEM;
      (void)snprintf(name, n, "%s.%d", p->inputs[i].name, d);
      dims[bind.n_dims++] = (opipe_dim){name, c->shapes[i][d]};
    }
  }
  bind.dims = dims;
  bind.pins = pins;
  for (;;) { /* once more for every input whose value turns out to be needed */
    const opipe_status status = part_open(p, &bind, err);
    if (status == OPIPE_OK || err->domain != OPIPE_DOMAIN_INPUT || err->native < 0 ||
        (uint32_t)err->native >= p->n_inputs || bind.n_pins == p->n_inputs)
      return status;
    const opipe_binding_io *io = &c->io[err->native];
    pins[bind.n_pins++] = (opipe_pin){io->name, io->tensor};
    *err = (opipe_error)OPIPE_ERROR_INIT;
  }
}

static ort_status *open_late(call *c) {
  part *p = c->p;
  opipe_error err = OPIPE_ERROR_INIT;
  (void)pthread_mutex_lock(&p->opening);
  const opipe_status status = atomic_load(&p->session) != NULL ? OPIPE_OK : open_with(c, &err);
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
  opipe_session *session = atomic_load_explicit(&c->p->session, memory_order_acquire);
  opipe_submit_params params = opipe_submit_params_init();
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_request *request = NULL;
  params.inputs = c->io;
  params.n_inputs = c->p->n_inputs;
  params.on_output = make_output;
  params.on_output_ctx = c;
  opipe_status status = OPIPE_PENDING;
  while (status == OPIPE_PENDING) {
    status = e->api->session_submit(session, &params, &request, &err);
    if (status == OPIPE_PENDING && e->api->session_wait_room(session, UINT64_MAX, &err) < 0)
      status = err.status;
  }
  if (status == OPIPE_OK) {
    status = e->api->request_wait(request, UINT64_MAX, &err);
    e->api->request_release(request);
  }
  if (c->status != NULL)
    return c->status; /* ORT's own reason */
  return status < 0 ? ep_fail(e->f, NULL, &err) : NULL;
}

static ort_status *run_all(call *c) {
  part *p = c->p;
  c->io = c->own_io;
  c->shapes = c->own_shapes;
  if (p->n_inputs > PORTS) {
    c->io = pool_take(&c->memory, p->n_inputs * sizeof *c->io);
    c->shapes = pool_take(&c->memory, p->n_inputs * sizeof *c->shapes);
    if (c->io == NULL || c->shapes == NULL)
      return ep_fail_text(p->owner->f, ORT_FAIL, "onnx-pipe: out of memory");
  }
  ORT_TRY(verify(p, c->kernel));
  ORT_TRY(read_inputs(c));
  if (atomic_load_explicit(&p->session, memory_order_acquire) == NULL)
    ORT_TRY(open_late(c));
  return run(c);
}

ort_status *part_compute(ort_compute *self, void *state, ort_kernel *kernel) {
  call c;
  (void)state;
  c.p = (part *)self;
  c.kernel = kernel;
  c.status = NULL;
  c.memory.blocks = NULL;
  ort_status *status = run_all(&c);
  pool_free(&c.memory);
  return status;
}
