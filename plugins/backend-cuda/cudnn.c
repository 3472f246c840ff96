/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of cuDNN on an opening of a GPU: kept by their form, bound to addresses, run.
 *
 * The library's handle is made with the first plan. It belongs to the opening and is told the
 * stream before every run, under a lock: the library's handles serve one thread at a time. Refusals
 * are kept as plans are, so that a form is asked for once. Failures are not: what a form runs on is
 * the same on every rank, or an error.
 */
#include "cudnn.h"

struct cuda_dnn {
  pthread_mutex_t lock;
  cudnnHandle_t handle; /* NULL: none yet */
  cuda_dnn_plan *plans;
};

struct cuda_bound_plan {
  const cuda_dnn_plan *plan;
  cudnnBackendDescriptor_t pack;
};

static opipe_status fail_as(const opipe_device *device, opipe_status as, cudnnStatus_t status,
                            const char *what, opipe_error *err) {
  const cuda_dnn_functions *dnn = &device->place->libraries->dnn;
  char why[200] = "";
  if (as >= 0)
    return as;
  dnn->last_error(why, sizeof why);
  why[sizeof why - 1] = '\0';
  (void)opipe_fail(err, as, "%s answers %s (%d)%s%s", what, dnn->error_name(status), (int)status,
                   why[0] != '\0' ? ": " : "", why);
  if (err != NULL) {
    err->domain = OPIPE_DOMAIN_CUDNN;
    err->native = (int32_t)status;
  }
  return as == OPIPE_E_DEVICE ? cuda_library_failed(device, what, err) : as;
}

/* For a plan that was made: a refusal now is an error too. */
static opipe_status answer(const opipe_device *device, cudnnStatus_t status, const char *what,
                           opipe_error *err) {
  const opipe_status as = cuda_dnn_status(status);
  return fail_as(device, as == OPIPE_E_UNSUPPORTED ? OPIPE_E_DEVICE : as, status, what, err);
}

opipe_status cuda_dnn_open(opipe_device *device, opipe_error *err) {
  if (!device->cudnn || !device->place->libraries->has_dnn)
    return OPIPE_OK;
  cuda_dnn *dnn =
      opipe_zeroed(device->host, "plans of cuDNN", sizeof *dnn, _Alignof(cuda_dnn), err);
  if (dnn == NULL)
    return OPIPE_E_NOMEM;
  if (pthread_mutex_init(&dnn->lock, NULL) != 0) {
    opipe_free(device->host, dnn, sizeof *dnn, _Alignof(cuda_dnn));
    return opipe_fail(err, OPIPE_E_NOMEM, "no lock for plans of cuDNN");
  }
  device->dnn = dnn;
  return OPIPE_OK;
}

void cuda_dnn_close(opipe_device *device, bool entered) {
  cuda_dnn *dnn = device->dnn;
  if (dnn == NULL)
    return;
  const cuda_dnn_functions *functions = &device->place->libraries->dnn;
  for (cuda_dnn_plan *plan = dnn->plans, *next = NULL; plan != NULL; plan = next) {
    next = plan->next;
    if (entered)
      cuda_dnn_plan_end(functions, plan);
    opipe_free(device->host, plan, sizeof *plan, _Alignof(cuda_dnn_plan));
  }
  if (entered && dnn->handle != NULL)
    (void)functions->destroy(dnn->handle);
  (void)pthread_mutex_destroy(&dnn->lock);
  opipe_free(device->host, dnn, sizeof *dnn, _Alignof(cuda_dnn));
  device->dnn = NULL;
}

/* ---- finding ---- */

static void tell(const opipe_device *device, const cuda_dnn_plan *plan) {
  const cuda_dnn_form *f = &plan->form;
  char text[CUDA_DNN_WHY + 200], how[CUDA_DNN_WHY];
  if (device->host->log == NULL)
    return;
  if (plan->plan == NULL) {
    (void)snprintf(how, sizeof how, "our own kernels, %.*s", CUDA_DNN_WHY - 40, plan->why);
  } else {
    (void)snprintf(how, sizeof how, "cuDNN's engine %lld with a workspace of %llu bytes",
                   (long long)plan->engine, (unsigned long long)plan->workspace_bytes);
  }
  (void)snprintf(
      text, sizeof text,
      "cuda:%u: %s of %lld x %lld heads (%lld of keys) of %lld, %lld queries, %lld keys, "
      "%s%s%s: %s",
      device->place->index, f->what == CUDA_DNN_GRADIENTS ? "gradients of attention" : "attention",
      (long long)f->batch, (long long)f->heads, (long long)f->kv_heads, (long long)f->depth,
      (long long)f->queries, (long long)f->keys, opipe_dtype_name(f->dtype),
      f->causal != 0 ? ", causal" : "", f->mask_dtype != 0 ? ", masked" : "", how);
  device->host->log(device->host->ctx, plan->plan == NULL ? OPIPE_LOG_WARN : OPIPE_LOG_INFO, NULL,
                    0, text);
}

static opipe_status make_handle(const opipe_device *device, opipe_error *err) {
  cuda_dnn *dnn = device->dnn;
  cudnnHandle_t made = NULL;
  if (dnn->handle != NULL)
    return OPIPE_OK;
  const cudnnStatus_t status = device->place->libraries->dnn.create(&made);
  if (status == CUDA_DNN_SUCCESS)
    dnn->handle = made;
  return fail_as(device, cuda_dnn_status(status), status, "cudnnCreate", err);
}

/* A plan that is not of the list yet, or why there is none. Under the lock. */
static opipe_status make_plan(opipe_device *device, cuda_dnn_plan *plan, opipe_error *err) {
  const cuda_dnn_functions *functions = &device->place->libraries->dnn;
  opipe_error why = OPIPE_ERROR_INIT;
  opipe_status status = make_handle(device, &why);
  if (status >= 0)
    status = cuda_dnn_plan_make(functions, device->dnn->handle, NULL, plan, &why);
  if (status >= 0)
    return OPIPE_OK;
  cuda_dnn_plan_end(functions, plan);
  (void)snprintf(plan->why, sizeof plan->why, "%.*s", CUDA_DNN_WHY - 1, why.message);
  return status == OPIPE_E_UNSUPPORTED
             ? OPIPE_OK
             : opipe_fail(err, status, "%.400s (cudnn=0: without cuDNN)", why.message);
}

/* The plan of a form that is not of the list yet. lack: NULL, or why the library is not asked for
 * one. Under the lock. */
static opipe_status add_plan(opipe_device *device, const cuda_dnn_form *form, const char *lack,
                             cuda_dnn_plan **out, opipe_error *err) {
  cuda_dnn *dnn = device->dnn;
  cuda_dnn_plan *plan =
      opipe_zeroed(device->host, "a plan of cuDNN", sizeof *plan, _Alignof(cuda_dnn_plan), err);
  if (plan == NULL)
    return OPIPE_E_NOMEM;
  opipe_status status = OPIPE_OK;
  plan->form = *form;
  plan->lack = lack;
  if (lack != NULL)
    (void)snprintf(plan->why, sizeof plan->why, "cuDNN: %s", lack);
  else
    status = make_plan(device, plan, err);
  if (status < 0) {
    opipe_free(device->host, plan, sizeof *plan, _Alignof(cuda_dnn_plan));
    return status;
  }
  plan->next = dnn->plans;
  dnn->plans = plan;
  tell(device, plan);
  *out = plan;
  return OPIPE_OK;
}

/* The plan kept for a form, made now if the form is the first of its kind. */
static opipe_status keep(opipe_device *device, const cuda_dnn_form *form, const char *lack,
                         cuda_dnn_plan **out, opipe_error *err) {
  cuda_dnn *dnn = device->dnn;
  opipe_status status = OPIPE_OK;
  (void)pthread_mutex_lock(&dnn->lock);
  cuda_dnn_plan *plan = dnn->plans;
  while (plan != NULL && (plan->lack != lack || memcmp(&plan->form, form, sizeof *form) != 0))
    plan = plan->next;
  if (plan == NULL)
    status = add_plan(device, form, lack, &plan, err);
  (void)pthread_mutex_unlock(&dnn->lock);
  *out = plan;
  return status;
}

opipe_status cuda_dnn_find(opipe_device *device, const cuda_dnn_form *form,
                           const cuda_dnn_plan **out, opipe_error *err) {
  cuda_dnn_plan *plan = NULL;
  *out = NULL;
  if (device->dnn == NULL)
    return OPIPE_OK;
  CUDA_TRY(keep(device, form, NULL, &plan, err));
  *out = plan->plan != NULL ? plan : NULL;
  return OPIPE_OK;
}

opipe_status cuda_dnn_pass(opipe_device *device, const cuda_dnn_form *form, const char *why,
                           opipe_error *err) {
  cuda_dnn_plan *plan = NULL;
  return keep(device, form, why, &plan, err);
}

/* ---- binding and running ---- */

/* Numbers and addresses of a plan's tensors and scalars. */
static int64_t list_addresses(const cuda_dnn_plan *plan, const cuda_dnn_args *args, int64_t *ids,
                              const void **addresses) {
  int64_t n = 0;
  for (uint32_t i = 0; i < CUDA_DNN_TENSORS; ++i) {
    if (!cuda_dnn_has(&plan->form, i))
      continue;
    ids[n] = cuda_dnn_tensor_id(i);
    addresses[n++] = args->at[i];
  }
  for (uint32_t i = 0; i < CUDA_DNN_SCALARS; ++i) {
    if (!cuda_dnn_has_scalar(&plan->form, i))
      continue;
    ids[n] = cuda_dnn_scalar_id(i);
    addresses[n++] = &plan->scalars[i];
  }
  return n;
}

static cudnnStatus_t fill_pack(const cuda_dnn_functions *dnn, cudnnBackendDescriptor_t pack,
                               const cuda_dnn_plan *plan, const cuda_dnn_args *args) {
  int64_t ids[CUDA_DNN_TENSORS + CUDA_DNN_SCALARS];
  const void *addresses[CUDA_DNN_TENSORS + CUDA_DNN_SCALARS];
  const int64_t n = list_addresses(plan, args, ids, addresses);
  cudnnStatus_t status = dnn->set(pack, (cudnnBackendAttributeName_t)CUDA_DNN_PACK_IDS,
                                  (cudnnBackendAttributeType_t)CUDA_DNN_T_INT64, n, ids);
  if (status == CUDA_DNN_SUCCESS) {
    status = dnn->set(pack, (cudnnBackendAttributeName_t)CUDA_DNN_PACK_POINTERS,
                      (cudnnBackendAttributeType_t)CUDA_DNN_T_POINTER, n, addresses);
  }
  if (status == CUDA_DNN_SUCCESS) {
    status = dnn->set(pack, (cudnnBackendAttributeName_t)CUDA_DNN_PACK_WORKSPACE,
                      (cudnnBackendAttributeType_t)CUDA_DNN_T_POINTER, 1, &args->workspace);
  }
  return status == CUDA_DNN_SUCCESS ? dnn->finalize(pack) : status;
}

opipe_status cuda_dnn_bind(opipe_device *device, const cuda_dnn_plan *plan,
                           const unsigned char *args, cuda_bound_plan **out, opipe_error *err) {
  const cuda_dnn_functions *dnn = &device->place->libraries->dnn;
  cuda_dnn_args all;
  cuda_bound_plan *bound =
      opipe_zeroed(device->host, "a bound plan", sizeof *bound, _Alignof(cuda_bound_plan), err);
  if (bound == NULL)
    return OPIPE_E_NOMEM;
  memcpy(&all, args, sizeof all);
  bound->plan = plan;
  cudnnStatus_t status = dnn->make((cudnnBackendDescriptorType_t)CUDA_DNN_PACK, &bound->pack);
  if (status == CUDA_DNN_SUCCESS)
    status = fill_pack(dnn, bound->pack, plan, &all);
  if (status != CUDA_DNN_SUCCESS) {
    const opipe_status failed = answer(device, status, "addresses for a plan of cuDNN", err);
    cuda_dnn_unbind(device, bound);
    return failed;
  }
  *out = bound;
  return OPIPE_OK;
}

void cuda_dnn_unbind(opipe_device *device, cuda_bound_plan *bound) {
  if (bound == NULL)
    return;
  if (bound->pack != NULL && cuda_check_owner(device->owner, "", NULL) >= 0)
    (void)device->place->libraries->dnn.free(bound->pack);
  opipe_free(device->host, bound, sizeof *bound, _Alignof(cuda_bound_plan));
}

opipe_status cuda_dnn_run(opipe_device *device, const cuda_bound_plan *bound, CUstream stream,
                          opipe_error *err) {
  const cuda_dnn_functions *functions = &device->place->libraries->dnn;
  cuda_dnn *dnn = device->dnn;
  (void)pthread_mutex_lock(&dnn->lock);
  cudnnStatus_t status = functions->stream_set(dnn->handle, (cudaStream_t)stream);
  if (status == CUDA_DNN_SUCCESS)
    status = functions->execute(dnn->handle, bound->plan->plan, bound->pack);
  const opipe_status answered = answer(device, status, "cudnnBackendExecute", err);
  (void)pthread_mutex_unlock(&dnn->lock);
  if (answered >= 0 && device->blocking) {
    return cuda_result(device->place, device->place->driver->stream_sync(stream),
                       "cudnnBackendExecute", err);
  }
  return answered;
}
