/* SPDX-License-Identifier: Apache-2.0 */
/* The one exported function and the table behind it: the border. Each slot sets the floating-point
 * environment that the library computes with and gives the host's back when it returns, and while a
 * sink of the host's writes. (The context's log and allocator do so themselves: context.c.)
 */
#include "abi/api/api.h"
#include "loader/base/fp.h"

/* ---- sinks ---- */

typedef struct sink {
  opipe_write_fn write;
  void *ctx;
} sink;

static opipe_status write_out(void *ctx, const void *data, size_t n_bytes) {
  const sink *to = ctx;
  opi_fp_border *lent = opi_fp_lend();
  const opipe_status status = to->write(to->ctx, data, n_bytes);
  opi_fp_take(lent);
  return status;
}

/* ---- entries ---- */

#define ENTRY(name, params, args)                    \
  static opipe_status name params {                  \
    opi_fp_border border;                            \
    opi_fp_enter(&border);                           \
    const opipe_status status = opi_api_##name args; \
    opi_fp_leave(&border);                           \
    return status;                                   \
  }
#define ENTRY_VOID(name, params, args) \
  static void name params {            \
    opi_fp_border border;              \
    opi_fp_enter(&border);             \
    opi_api_##name args;               \
    opi_fp_leave(&border);             \
  }
/* Of functions that have the host's `write` and `ctx`, which stand as SINK among the arguments. */
#define ENTRY_SINK(name, params, args)               \
  static opipe_status name params {                  \
    sink to = {write, ctx};                          \
    opi_fp_border border;                            \
    opi_fp_enter(&border);                           \
    const opipe_status status = opi_api_##name args; \
    opi_fp_leave(&border);                           \
    return status;                                   \
  }
#define SINK write == NULL ? NULL : write_out, &to

/* clang-format off */
ENTRY(context_create, (const opipe_context_params *params, opipe_context **out_context,
      opipe_error *err),
      (params, out_context, err))
ENTRY_VOID(context_destroy, (opipe_context *context), (context))
ENTRY(context_register_static, (opipe_context *context, const opipe_plugin *plugin,
      opipe_error *err),
      (context, plugin, err))
ENTRY_SINK(context_plugins, (opipe_context *context, uint32_t format, opipe_write_fn write,
      void *ctx, opipe_error *err),
      (context, format, SINK, err))
ENTRY(model_load, (opipe_context *context, const opipe_load_params *params, opipe_model **out_model,
      opipe_error *err),
      (context, params, out_model, err))
ENTRY_VOID(model_destroy, (opipe_model *model), (model))
ENTRY(model_bind, (opipe_model *model, const opipe_bind_options *options, opipe_model **out_bound,
      opipe_error *err),
      (model, options, out_bound, err))
ENTRY(model_info, (opipe_model *model, opipe_model_info *io_info, opipe_error *err),
      (model, io_info, err))
ENTRY(model_input, (opipe_model *model, uint32_t index, opipe_tensor_info *io_info,
      opipe_error *err),
      (model, index, io_info, err))
ENTRY(model_output, (opipe_model *model, uint32_t index, opipe_tensor_info *io_info,
      opipe_error *err),
      (model, index, io_info, err))
ENTRY(model_dim, (opipe_model *model, uint32_t index, opipe_dim_info *io_info, opipe_error *err),
      (model, index, io_info, err))
ENTRY_SINK(model_describe, (opipe_model *model, uint32_t format, opipe_write_fn write, void *ctx,
      opipe_error *err),
      (model, format, SINK, err))
ENTRY(plan_make, (opipe_model *model, const opipe_plan_params *params, opipe_plan **out_plan,
      opipe_error *err),
      (model, params, out_plan, err))
ENTRY(plan_read, (opipe_model *model, const void *json, uint64_t n_bytes, opipe_plan **out_plan,
      opipe_error *err),
      (model, json, n_bytes, out_plan, err))
ENTRY_SINK(plan_write, (opipe_plan *plan, opipe_write_fn write, void *ctx, opipe_error *err),
      (plan, SINK, err))
ENTRY_SINK(plan_describe, (opipe_plan *plan, uint32_t format, opipe_write_fn write, void *ctx,
      opipe_error *err),
      (plan, format, SINK, err))
ENTRY_SINK(plan_annotate, (opipe_plan *plan, opipe_write_fn write, void *ctx, opipe_error *err),
      (plan, SINK, err))
ENTRY(plan_info, (opipe_plan *plan, opipe_plan_info *io_info, opipe_error *err),
      (plan, io_info, err))
ENTRY(plan_memory, (opipe_plan *plan, uint32_t rank, opipe_memory_info *io_info, opipe_error *err),
      (plan, rank, io_info, err))
ENTRY(plan_cut_tensor, (opipe_plan *plan, uint32_t index, const char **out_name,
      uint32_t *out_src_stage, uint32_t *out_dst_stage, opipe_error *err),
      (plan, index, out_name, out_src_stage, out_dst_stage, err))
ENTRY_VOID(plan_destroy, (opipe_plan *plan), (plan))
ENTRY(session_open, (opipe_context *context, opipe_plan *plan, const opipe_session_params *params,
      opipe_session **out_session, opipe_error *err),
      (context, plan, params, out_session, err))
ENTRY_VOID(session_close, (opipe_session *session), (session))
ENTRY(session_submit, (opipe_session *session, const opipe_submit_params *params,
      opipe_request **out_request, opipe_error *err),
      (session, params, out_request, err))
ENTRY(request_poll, (opipe_request *request, opipe_error *err), (request, err))
ENTRY(request_wait, (opipe_request *request, uint64_t timeout_ns, opipe_error *err),
      (request, timeout_ns, err))
ENTRY(request_cancel, (opipe_request *request, opipe_error *err), (request, err))
ENTRY(request_output, (opipe_request *request, uint32_t index, opipe_tensor *out_tensor,
      opipe_error *err),
      (request, index, out_tensor, err))
ENTRY_VOID(request_release, (opipe_request *request), (request))
ENTRY(session_drive, (opipe_session *session, uint32_t rank, uint64_t timeout_ns, opipe_error *err),
      (session, rank, timeout_ns, err))
ENTRY(session_memory, (opipe_session *session, uint32_t rank, opipe_memory_info *io_info,
      opipe_error *err),
      (session, rank, io_info, err))
ENTRY(session_info, (opipe_session *session, opipe_session_info *io_info, opipe_error *err),
      (session, io_info, err))
ENTRY(session_train_step, (opipe_session *session, const opipe_submit_params *params,
      opipe_request **out_ticket, opipe_error *err),
      (session, params, out_ticket, err))
ENTRY(session_flush, (opipe_session *session, opipe_error *err), (session, err))
ENTRY(session_evaluate, (opipe_session *session, const opipe_submit_params *params,
      opipe_request **out_request, opipe_error *err),
      (session, params, out_request, err))
ENTRY(request_report, (opipe_request *request, opipe_train_report *io_report, opipe_error *err),
      (request, io_report, err))
ENTRY(session_parameter, (opipe_session *session, uint32_t index, opipe_parameter_info *io_info,
      opipe_error *err),
      (session, index, io_info, err))
ENTRY(session_get, (opipe_session *session, const char *name, uint32_t state, uint32_t version,
      void *dst, uint64_t n_bytes, opipe_error *err),
      (session, name, state, version, dst, n_bytes, err))
ENTRY(session_set, (opipe_session *session, const char *name, uint32_t state, uint32_t version,
      const void *src, uint64_t n_bytes, opipe_error *err),
      (session, name, state, version, src, n_bytes, err))
ENTRY(session_save, (opipe_session *session, const char *path, const uint64_t *position,
      opipe_error *err),
      (session, path, position, err))
ENTRY(session_load, (opipe_session *session, const char *path, uint64_t *out_position,
      opipe_error *err),
      (session, path, out_position, err))
ENTRY(session_save_model, (opipe_session *session, const char *path, opipe_error *err),
      (session, path, err))
ENTRY(session_save_gradients, (opipe_session *session, const char *path, opipe_error *err),
      (session, path, err))
ENTRY_SINK(model_describe_training, (opipe_model *model, const opipe_train_options *options,
      uint32_t format, opipe_write_fn write, void *ctx, opipe_error *err),
      (model, options, format, SINK, err))
ENTRY_SINK(schedule_list, (opipe_context *context, uint32_t format, opipe_write_fn write, void *ctx,
      opipe_error *err),
      (context, format, SINK, err))
ENTRY(order_make, (opipe_context *context, const opipe_order_params *params,
      opipe_order **out_order, opipe_error *err),
      (context, params, out_order, err))
ENTRY(order_read, (opipe_context *context, const void *text, uint64_t n_bytes, uint32_t dialect,
      opipe_order **out_order, opipe_error *err),
      (context, text, n_bytes, dialect, out_order, err))
ENTRY_VOID(order_destroy, (opipe_order *order), (order))
ENTRY(order_info, (opipe_order *order, opipe_order_info *io_info, opipe_error *err),
      (order, io_info, err))
ENTRY(order_lower, (opipe_order *order, uint32_t receive_depth, uint32_t flags,
      opipe_order **out_order, opipe_error *err),
      (order, receive_depth, flags, out_order, err))
ENTRY(order_check, (opipe_order *order, uint32_t rule, opipe_error *err), (order, rule, err))
ENTRY_SINK(order_simulate, (opipe_order *order, const opipe_order_costs *costs, uint32_t format,
      opipe_write_fn write, void *ctx, opipe_error *err),
      (order, costs, format, SINK, err))
ENTRY_SINK(order_draw, (opipe_order *order, const opipe_order_costs *costs, opipe_write_fn write,
      void *ctx, opipe_error *err),
      (order, costs, SINK, err))
ENTRY_SINK(order_write, (opipe_order *order, uint32_t format, uint32_t dialect,
      opipe_write_fn write, void *ctx, opipe_error *err),
      (order, format, dialect, SINK, err))
ENTRY_SINK(session_trace, (opipe_session *session, uint32_t format, opipe_write_fn write, void *ctx,
      opipe_error *err),
      (session, format, SINK, err))
ENTRY(session_clock, (opipe_session *session, opipe_train_clock *io_clock, opipe_error *err),
      (session, io_clock, err))
ENTRY(session_set_clock, (opipe_session *session, const opipe_train_clock *clock, opipe_error *err),
      (session, clock, err))
ENTRY(session_try_save, (opipe_session *session, uint32_t what, const char *path, opipe_error *err),
      (session, what, path, err))
/* clang-format on */

static const opipe_api api = {
    .struct_size = (uint32_t)OPIPE_END(opipe_api, session_try_save),
    .abi_major = OPIPE_ABI_MAJOR,
    .abi_minor = OPIPE_ABI_MINOR,
    .version = "0.1.0",
    .context_create = context_create,
    .context_destroy = context_destroy,
    .context_register_static = context_register_static,
    .context_plugins = context_plugins,
    .model_load = model_load,
    .model_destroy = model_destroy,
    .model_bind = model_bind,
    .model_info = model_info,
    .model_input = model_input,
    .model_output = model_output,
    .model_dim = model_dim,
    .model_describe = model_describe,
    .plan_make = plan_make,
    .plan_read = plan_read,
    .plan_write = plan_write,
    .plan_describe = plan_describe,
    .plan_annotate = plan_annotate,
    .plan_info = plan_info,
    .plan_memory = plan_memory,
    .plan_cut_tensor = plan_cut_tensor,
    .plan_destroy = plan_destroy,
    .session_open = session_open,
    .session_close = session_close,
    .session_submit = session_submit,
    .request_poll = request_poll,
    .request_wait = request_wait,
    .request_cancel = request_cancel,
    .request_output = request_output,
    .request_release = request_release,
    .session_drive = session_drive,
    .session_memory = session_memory,
    .session_info = session_info,
    .session_train_step = session_train_step,
    .session_flush = session_flush,
    .session_evaluate = session_evaluate,
    .request_report = request_report,
    .session_parameter = session_parameter,
    .session_get = session_get,
    .session_set = session_set,
    .session_save = session_save,
    .session_load = session_load,
    .session_save_model = session_save_model,
    .session_save_gradients = session_save_gradients,
    .model_describe_training = model_describe_training,
    .schedule_list = schedule_list,
    .order_make = order_make,
    .order_read = order_read,
    .order_destroy = order_destroy,
    .order_info = order_info,
    .order_lower = order_lower,
    .order_check = order_check,
    .order_simulate = order_simulate,
    .order_draw = order_draw,
    .order_write = order_write,
    .session_trace = session_trace,
    .session_clock = session_clock,
    .session_set_clock = session_set_clock,
    .session_try_save = session_try_save,
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
