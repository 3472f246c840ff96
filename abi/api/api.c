/* SPDX-License-Identifier: Apache-2.0 */
/* The one exported function and the table behind it. */
#include "abi/api/api.h"

#include <time.h>
#include <unistd.h>

void opi_handle_init(opi_handle *handle, uint32_t magic) {
  handle->magic = magic;
  handle->pid = getpid();
  atomic_init(&handle->refs, 1);
}

bool opi_handle_drop(opi_handle *handle) {
  if (atomic_fetch_sub_explicit(&handle->refs, 1, memory_order_acq_rel) != 1)
    return false;
  handle->magic = 0;
  return true;
}

opipe_status opi_handle_check(const opi_handle *handle, uint32_t magic, const char *what,
                              opipe_error *err) {
  if (handle == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "the %s is NULL", what);
  if (handle->magic != magic)
    return opi_fail(err, OPIPE_E_STATE, "this is no %s (or it was destroyed)", what);
  if (handle->pid != getpid()) {
    return opi_fail(err, OPIPE_E_STATE, "the %s was opened in another process (%d, this is %d)",
                    what, (int)handle->pid, (int)getpid());
  }
  return OPIPE_OK;
}

uint64_t opi_now_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static const opipe_api api = {
    .struct_size = (uint32_t)OPIPE_END(opipe_api, session_set_clock),
    .abi_major = OPIPE_ABI_MAJOR,
    .abi_minor = OPIPE_ABI_MINOR,
    .version = "0.1.0",
    .context_create = opi_api_context_create,
    .context_destroy = opi_api_context_destroy,
    .context_register_static = opi_api_context_register_static,
    .context_plugins = opi_api_context_plugins,
    .model_load = opi_api_model_load,
    .model_destroy = opi_api_model_destroy,
    .model_bind = opi_api_model_bind,
    .model_info = opi_api_model_info,
    .model_input = opi_api_model_input,
    .model_output = opi_api_model_output,
    .model_dim = opi_api_model_dim,
    .model_describe = opi_api_model_describe,
    .plan_make = opi_api_plan_make,
    .plan_read = opi_api_plan_read,
    .plan_write = opi_api_plan_write,
    .plan_describe = opi_api_plan_describe,
    .plan_annotate = opi_api_plan_annotate,
    .plan_info = opi_api_plan_info,
    .plan_memory = opi_api_plan_memory,
    .plan_cut_tensor = opi_api_plan_cut_tensor,
    .plan_destroy = opi_api_plan_destroy,
    .session_open = opi_api_session_open,
    .session_close = opi_api_session_close,
    .session_submit = opi_api_session_submit,
    .request_poll = opi_api_request_poll,
    .request_wait = opi_api_request_wait,
    .request_cancel = opi_api_request_cancel,
    .request_output = opi_api_request_output,
    .request_release = opi_api_request_release,
    .session_drive = opi_api_session_drive,
    .session_memory = opi_api_session_memory,
    .session_info = opi_api_session_info,
    .session_bind_state = opi_api_session_bind_state,
    .session_train_step = opi_api_session_train_step,
    .session_flush = opi_api_session_flush,
    .session_evaluate = opi_api_session_evaluate,
    .request_report = opi_api_request_report,
    .session_parameter = opi_api_session_parameter,
    .session_get = opi_api_session_get,
    .session_set = opi_api_session_set,
    .session_save = opi_api_session_save,
    .session_load = opi_api_session_load,
    .session_save_model = opi_api_session_save_model,
    .session_save_gradients = opi_api_session_save_gradients,
    .model_describe_training = opi_api_model_describe_training,
    .schedule_list = opi_api_schedule_list,
    .order_make = opi_api_order_make,
    .order_read = opi_api_order_read,
    .order_destroy = opi_api_order_destroy,
    .order_info = opi_api_order_info,
    .order_lower = opi_api_order_lower,
    .order_check = opi_api_order_check,
    .order_simulate = opi_api_order_simulate,
    .order_draw = opi_api_order_draw,
    .order_write = opi_api_order_write,
    .session_trace = opi_api_session_trace,
    .session_clock = opi_api_session_clock,
    .session_set_clock = opi_api_session_set_clock,
};

OPIPE_EXPORT opipe_status opipe_get_api(uint32_t major, uint32_t minor, const opipe_api **out_api,
                                        opipe_error *err) {
  if (out_api == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "opipe_get_api: out_api is NULL");
  if (major != OPIPE_ABI_MAJOR) {
    return opi_fail(err, OPIPE_E_ABI, "the host asks for ABI major %u, this library has %u: %s",
                    major, OPIPE_ABI_MAJOR,
                    major > OPIPE_ABI_MAJOR ? "use a newer library"
                                            : "rebuild the host with this library's headers");
  }
  if (minor > OPIPE_ABI_MINOR) {
    return opi_fail(err, OPIPE_E_ABI,
                    "the host needs ABI %u.%u, this library has %u.%u: use a newer library, or "
                    "build the host with "
                    "OPIPE_TARGET_MINOR=%u",
                    major, minor, OPIPE_ABI_MAJOR, OPIPE_ABI_MINOR, OPIPE_ABI_MINOR);
  }
  *out_api = &api;
  return OPIPE_OK;
}
