/* SPDX-License-Identifier: Apache-2.0 */
/* One call of a fused node: ORT's tensors are the request's, where they lie, and its outputs are
 * made when the library knows their shapes. Calls of many threads stream through the stages; one
 * that finds no room sleeps until there is; one that the application ends is cancelled.
 */
#include <string.h>

#include "adapter.h"

typedef struct call {
  part *p;
  ort_kernel *kernel;
  const ort_run_options *how; /* NULL: not known */
  ort_status *status;         /* why an output could not be made */
  host_pool memory;
  opipe_binding_io *io; /* [n_inputs] */
  int64_t (*shapes)[OPIPE_MAX_RANK];
} call;

/* ---- inputs ---- */

static ort_status *read_inputs(call *c) {
  part *p = c->p;
  const factory *f = p->owner->f;
  for (uint32_t i = 0; i < p->n_inputs; ++i) {
    const port *to = &p->inputs[i];
    const opipe_dtype_row *row = opipe_dtype_row_of(to->dtype);
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
                                             .dtype = {(uint8_t)row->dl, (uint8_t)row->bits, 1},
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
    ORT_TRY(ORT(f->ort, KernelContext_GetInput)(kernel, p->t.lent[i].index, &value));
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

static bool is_over(void *ctx) {
  const call *c = ctx;
  return ep_is_ended(c->p->owner, c->how);
}

static ort_status *run(call *c) {
  part *p = c->p;
  const ep *e = p->owner;
  opipe_submit_params params = opipe_submit_params_init();
  opipe_error err = OPIPE_ERROR_INIT;
  c->io = host_pool_take(&c->memory, (p->n_inputs + 1) * sizeof *c->io);
  c->shapes = host_pool_take(&c->memory, (p->n_inputs + 1) * sizeof *c->shapes);
  if (c->io == NULL || c->shapes == NULL)
    return ep_no_memory(e->f);
  ORT_TRY(verify(p, c->kernel));
  ORT_TRY(read_inputs(c));
  params.inputs = c->io;
  params.n_inputs = p->n_inputs;
  params.on_output = make_output;
  params.on_output_ctx = c;
  opipe_status status = host_open_late(&e->maker, p->model, c->io, p->n_inputs, &p->late, &err);
  if (status < 0)
    return ep_fail(e->f, "at the first run", &err);
  status = host_run(e->maker.api, atomic_load(&p->late.session), &params,
                    c->how == NULL ? NULL : is_over, c, &err);
  if (c->status != NULL)
    return c->status; /* ORT's own reason */
  return status < 0 ? ep_fail(e->f, status == OPIPE_E_CANCELLED ? "terminate is set" : NULL, &err)
                    : NULL;
}

ort_status *part_compute(ort_compute *self, void *state, ort_kernel *kernel) {
  call c = {.p = (part *)self, .kernel = kernel, .how = ep_running};
  (void)state;
  ort_status *status = run(&c);
  host_pool_free(&c.memory);
  return status;
}
