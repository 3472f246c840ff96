/* SPDX-License-Identifier: Apache-2.0 */
/* For hosts: functions that each of them would otherwise write. Header only, for C and C++; as with
 * helpers.h nothing here is part of the ABI, and every user gets a copy.
 *
 *   opipe_open_library   the table of a library, by dlopen
 *   opipe_dl_dtype       an element type in DLPack's form
 *   opipe_dense          a dense tensor in host memory
 *   opipe_dense_bytes    the size of such a tensor
 *   opipe_named          a tensor with the name of an input or output, without fences
 *   opipe_output_index   the index of an output, by name
 *   opipe_output_named   a finished request's output, by name
 *   opipe_warm_up        compiles for given input shapes before the first request needs them
 *
 * Errors: those of the table's functions, in the caller's opipe_error (NULL allowed).
 */
#ifndef OPIPE_HOST_HELPERS_H
#define OPIPE_HOST_HELPERS_H

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "host.h"

#ifdef __cplusplus
extern "C" {
#endif

OPIPE_PRINTF(3, 4)
static inline opipe_status opipe_host_fail(opipe_error *err, opipe_status status,
                                           const char *format, ...) {
  va_list arguments;
  if (err == NULL)
    return status;
  err->status = status;
  err->domain = OPIPE_DOMAIN_NONE;
  err->native = 0;
  va_start(arguments, format);
  (void)vsnprintf(err->message, sizeof err->message, format, arguments);
  va_end(arguments);
  return status;
}

/* Opens libonnxpipe.so at `path` and gets its table; the library stays open until the process ends.
 * Errors: NOTFOUND: no such library, or no such function in it; ABI. [any-thread] */
static inline opipe_status opipe_open_library(const char *path, const opipe_api **out_api,
                                              opipe_error *err) {
  opipe_get_api_fn get_api;
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  void *symbol = library == NULL ? NULL : dlsym(library, "opipe_get_api");
  if (symbol == NULL) {
    const char *why = dlerror();
    return opipe_host_fail(err, OPIPE_E_NOTFOUND, "%s", why == NULL ? path : why);
  }
  memcpy(&get_api, &symbol, sizeof get_api);
  return get_api(OPIPE_VIEW, out_api, err);
}

/* dtype: OPIPE_FLOAT ...; bits 0: the type cannot be in a tensor. */
static inline opipe_dtype opipe_dl_dtype(uint32_t dtype) {
  const opipe_dtype_row *row = opipe_dtype_row_of(dtype);
  opipe_dtype own;
  own.code = (uint8_t)(row->dl < 0 ? 0 : row->dl);
  own.bits = (uint8_t)(row->dl < 0 ? 0 : row->bits);
  own.lanes = 1;
  return own;
}

/* data: dense, row-major, host memory; shape [rank]; both borrowed as long as the tensor is used.
 */
static inline opipe_tensor opipe_dense(uint32_t dtype, const void *data, const int64_t *shape,
                                       uint32_t rank) {
  opipe_tensor own;
  memset(&own, 0, sizeof own);
  own.data = (void *)(uintptr_t)data; /* inputs are only read */
  own.device_type = OPIPE_DL_CPU;
  own.rank = (int32_t)rank;
  own.dtype = opipe_dl_dtype(dtype);
  own.shape = shape;
  return own;
}

/* Elements below 8 bits are packed. UINT64_MAX: a negative dimension, or overflow. */
static inline uint64_t opipe_dense_bytes(const opipe_tensor *tensor) {
  uint64_t n = tensor->dtype.bits;
  for (int32_t d = 0; d < tensor->rank; ++d) {
    if (tensor->shape[d] == 0)
      return 0;
  }
  for (int32_t d = 0; d < tensor->rank; ++d) {
    if (tensor->shape[d] < 0 || n > (UINT64_MAX - 7) / (uint64_t)tensor->shape[d])
      return UINT64_MAX;
    n *= (uint64_t)tensor->shape[d];
  }
  return (n + 7) / 8;
}

static inline opipe_binding_io opipe_named(const char *name, opipe_tensor tensor) {
  opipe_binding_io own;
  memset(&own, 0, sizeof own);
  own.name = name;
  own.tensor = tensor;
  return own;
}

/* Index of `model`'s output `name` for request_output, in sessions of plans for inference. (In
 * training sessions "loss" is 0, and the tensor that the loss reads is 1.) Errors: NOTFOUND. */
static inline opipe_status opipe_output_index(const opipe_api *api, opipe_model *model,
                                              const char *name, uint32_t *out_index,
                                              opipe_error *err) {
  opipe_tensor_info info = opipe_tensor_info_init();
  opipe_status status = OPIPE_OK;
  uint32_t i;
  for (i = 0; status == OPIPE_OK; ++i) {
    status = api->model_output(model, i, &info, err);
    if (status == OPIPE_OK && strcmp(info.name, name) == 0) {
      *out_index = i;
      return OPIPE_OK;
    }
  }
  return status != OPIPE_E_NOTFOUND
             ? status
             : opipe_host_fail(err, status, "the model has %u outputs, and none is '%s'", i - 1,
                               name);
}

/* Output `name` of a finished request; valid until request_release. Errors: NOTFOUND; as
 * request_output. [any-thread] */
static inline opipe_status opipe_output_named(const opipe_api *api, opipe_model *model,
                                              opipe_request *request, const char *name,
                                              opipe_tensor *out_tensor, opipe_error *err) {
  uint32_t index = 0;
  const opipe_status status = opipe_output_index(api, model, name, &index, err);
  return status < 0 ? status : api->request_output(request, index, out_tensor, err);
}

/* ---- warming up ---- */

/* Runs one request to its end. `own` holds copies of the caller's inputs. */
static inline opipe_status opipe_run_zeros_(const opipe_api *api, opipe_session *session,
                                            const opipe_binding_io *own, uint32_t n_inputs,
                                            opipe_error *err) {
  opipe_submit_params params = opipe_submit_params_init();
  opipe_request *request = NULL;
  opipe_status status;
  params.inputs = own;
  params.n_inputs = n_inputs;
  status = api->session_submit(session, &params, &request, err);
#if OPIPE_TARGET_MINOR >= 3
  while (status == OPIPE_PENDING) {
    status = api->session_wait_room(session, UINT64_MAX, err);
    if (status == OPIPE_OK)
      status = api->session_submit(session, &params, &request, err);
  }
#endif
  if (status != OPIPE_OK)
    return status;
  status = api->request_wait(request, UINT64_MAX, err);
  api->request_release(request);
  return status;
}

/* Compiles an inference session's programs for inputs of these shapes, so that the first request of
 * such shapes does not wait: it sends a request whose elements are all 0. `inputs` [n_inputs] lists
 * all the model's inputs; names, types and shapes count, data may be NULL.
 * opipe_session_params.max_shapes limits how many shapes stay compiled. PENDING (before 1.3 only):
 * there is no room, call again. Errors: as session_submit and request_wait; NOMEM. [any-thread] */
static inline opipe_status opipe_warm_up(const opipe_api *api, opipe_session *session,
                                         const opipe_binding_io *inputs, uint32_t n_inputs,
                                         opipe_error *err) {
  opipe_status status = OPIPE_OK;
  uint32_t i, n_made = 0;
  opipe_binding_io *own = (opipe_binding_io *)calloc((size_t)n_inputs + 1, sizeof *own);
  if (own == NULL)
    return opipe_host_fail(err, OPIPE_E_NOMEM, "no memory for %u inputs", n_inputs);
  for (i = 0; i < n_inputs && status == OPIPE_OK; ++i) {
    const uint64_t n_bytes = opipe_dense_bytes(&inputs[i].tensor);
    own[i].name = inputs[i].name;
    own[i].tensor = inputs[i].tensor;
    own[i].tensor.strides = NULL;
    own[i].tensor.byte_offset = 0;
    own[i].tensor.device_type = OPIPE_DL_CPU;
    own[i].tensor.device_id = 0;
    own[i].tensor.data = n_bytes > SIZE_MAX - 1 ? NULL : calloc((size_t)n_bytes + 1, 1);
    n_made = i + 1;
    if (own[i].tensor.data == NULL) {
      status = opipe_host_fail(err, OPIPE_E_NOMEM, "no memory for the %llu bytes of input '%s'",
                               (unsigned long long)n_bytes,
                               inputs[i].name == NULL ? "(NULL)" : inputs[i].name);
    }
  }
  if (status == OPIPE_OK)
    status = opipe_run_zeros_(api, session, own, n_inputs, err);
  for (i = 0; i < n_made; ++i)
    free(own[i].tensor.data);
  free(own);
  return status;
}

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_HOST_HELPERS_H */
