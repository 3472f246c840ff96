/* SPDX-License-Identifier: Apache-2.0 */
/* The only exported function, and the table behind it. Each slot looks its handle up, keeps the
 * object while the call is inside, and sets the library's floating-point environment; the host's is
 * restored when the call returns and while a sink of the host writes. (The context's log and
 * allocator do so themselves: context.c.)
 */
#include "abi/api/api.h"
#include "abi/api/team/follow.h"
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

/* Inside an on_done only functions of requests may be called, inside a search's progress none. */
static opipe_status enter_object(const void *handle, uint32_t kind, const char *call,
                                 opi_entry *out_entry, opipe_error *err) {
  OPI_TRY(opi_callback_check(call, err));
  OPI_TRY(opi_generation_check_callback(call, err));
  return kind != OPI_HANDLE_REQUEST && opi_session_in_on_done()
             ? opi_refuse_inside(call, err)
             : opi_handle_enter(handle, kind, call, out_entry, err);
}

/* The type of `self` for a handle of each kind. */
#define SELF_CONTEXT opi_context_object
#define SELF_MODEL opi_model_object
#define SELF_PLAN opi_plan_object
#define SELF_SESSION opi_session_object
#define SELF_REQUEST opi_request
#define SELF_ORDER opi_order_object
#define SELF_STATE opi_stream
#define SELF_PROFILE opi_profile_object
#define SELF_STRATEGY opi_strategy_object
#define SELF_TEAM opi_team_object
#define SELF_SEQUENCE opi_host_sequence

/* For functions whose first parameter is `handle`, of kind `kind`. */
#define ENTRY(kind, name, params, args)                                             \
  static opipe_status name params {                                                 \
    opi_fp_border border;                                                           \
    opi_entry in;                                                                   \
    opi_fp_enter(&border);                                                          \
    opipe_status status = enter_object(handle, OPI_HANDLE_##kind, #name, &in, err); \
    if (status == OPIPE_OK) {                                                       \
      SELF_##kind *self = in.object;                                                \
      status = opi_api_##name args;                                                 \
      opi_handle_leave(&in);                                                        \
    }                                                                               \
    opi_fp_leave(&border);                                                          \
    return status;                                                                  \
  }
/* For functions with the host's `write` and `ctx`, which appear as SINK among the arguments. */
#define ENTRY_SINK(kind, name, params, args)                                                  \
  static opipe_status name params {                                                           \
    sink to = {write, ctx};                                                                   \
    opi_fp_border border;                                                                     \
    opi_entry in;                                                                             \
    opi_fp_enter(&border);                                                                    \
    opipe_status status = enter_object(handle, OPI_HANDLE_##kind, #name, &in, err);           \
    if (status == OPIPE_OK) {                                                                 \
      SELF_##kind *self = in.object;                                                          \
      status = write != NULL ? opi_api_##name args                                            \
                             : opi_fail(err, OPIPE_E_INVALID, "%s: the sink is NULL", #name); \
      opi_handle_leave(&in);                                                                  \
    }                                                                                         \
    opi_fp_leave(&border);                                                                    \
    return status;                                                                            \
  }
#define SINK write_out, &to
#define ENTRY_END(kind, name, type)                       \
  static void name(type *handle) {                        \
    opi_fp_border border;                                 \
    opi_fp_enter(&border);                                \
    opi_handle_destroy(handle, OPI_HANDLE_##kind, #name); \
    opi_fp_leave(&border);                                \
  }

/* clang-format off */
/* Functions without a handle argument. */
static opipe_status context_create(const opipe_context_params *params,
      opipe_context **out_context, opipe_error *err) {
  opi_fp_border border;
  opi_fp_enter(&border);
  opipe_status status = opi_callback_check("context_create", err);
  if (status == OPIPE_OK)
    status = opi_generation_check_callback("context_create", err);
  if (status == OPIPE_OK && opi_session_in_on_done())
    status = opi_refuse_inside("context_create", err);
  if (status == OPIPE_OK)
    status = opi_api_context_create(params, out_context, err);
  opi_fp_leave(&border);
  return status;
}
ENTRY_END(CONTEXT, context_destroy, opipe_context)
ENTRY(CONTEXT, context_register_static, (opipe_context *handle, const opipe_plugin *plugin,
      opipe_error *err),
      (self, plugin, err))
ENTRY_SINK(CONTEXT, context_plugins, (opipe_context *handle, uint32_t format,
      opipe_write_fn write, void *ctx, opipe_error *err),
      (self, format, SINK, err))
ENTRY(CONTEXT, model_load, (opipe_context *handle, const opipe_load_params *params,
      opipe_model **out_model, opipe_error *err),
      (self, params, out_model, err))
ENTRY_END(MODEL, model_destroy, opipe_model)
ENTRY(MODEL, model_bind, (opipe_model *handle, const opipe_bind_options *options,
      opipe_model **out_bound, opipe_error *err),
      (self, options, out_bound, err))
ENTRY(MODEL, model_info, (opipe_model *handle, opipe_model_info *io_info, opipe_error *err),
      (self, io_info, err))
ENTRY(MODEL, model_input, (opipe_model *handle, uint32_t index, opipe_tensor_info *io_info,
      opipe_error *err),
      (self, index, io_info, err))
ENTRY(MODEL, model_output, (opipe_model *handle, uint32_t index, opipe_tensor_info *io_info,
      opipe_error *err),
      (self, index, io_info, err))
ENTRY(MODEL, model_dim, (opipe_model *handle, uint32_t index, opipe_dim_info *io_info,
      opipe_error *err),
      (self, index, io_info, err))
ENTRY_SINK(MODEL, model_describe, (opipe_model *handle, uint32_t format, opipe_write_fn write,
      void *ctx, opipe_error *err),
      (self, format, SINK, err))
ENTRY(MODEL, plan_make, (opipe_model *handle, const opipe_plan_params *params,
      opipe_plan **out_plan, opipe_error *err),
      (self, params, out_plan, err))
ENTRY(MODEL, plan_read, (opipe_model *handle, const void *json, uint64_t n_bytes,
      opipe_plan **out_plan, opipe_error *err),
      (self, json, n_bytes, out_plan, err))
ENTRY_SINK(PLAN, plan_write, (opipe_plan *handle, opipe_write_fn write, void *ctx,
      opipe_error *err),
      (self, SINK, err))
ENTRY_SINK(PLAN, plan_describe, (opipe_plan *handle, uint32_t format, opipe_write_fn write,
      void *ctx, opipe_error *err),
      (self, format, SINK, err))
ENTRY_SINK(PLAN, plan_annotate, (opipe_plan *handle, opipe_write_fn write, void *ctx,
      opipe_error *err),
      (self, SINK, err))
ENTRY(PLAN, plan_info, (opipe_plan *handle, opipe_plan_info *io_info, opipe_error *err),
      (self, io_info, err))
ENTRY(PLAN, plan_memory, (opipe_plan *handle, uint32_t rank, opipe_memory_info *io_info,
      opipe_error *err),
      (self, rank, io_info, err))
ENTRY(PLAN, plan_cut_tensor, (opipe_plan *handle, uint32_t index, const char **out_name,
      uint32_t *out_src_stage, uint32_t *out_dst_stage, opipe_error *err),
      (self, index, out_name, out_src_stage, out_dst_stage, err))
ENTRY_END(PLAN, plan_destroy, opipe_plan)
ENTRY(CONTEXT, session_open, (opipe_context *handle, opipe_plan *plan,
      const opipe_session_params *params, opipe_session **out_session, opipe_error *err),
      (self, plan, params, out_session, err))
ENTRY_END(SESSION, session_close, opipe_session)
ENTRY(SESSION, session_submit, (opipe_session *handle, const opipe_submit_params *params,
      opipe_request **out_request, opipe_error *err),
      (self, params, out_request, err))
ENTRY(REQUEST, request_poll, (opipe_request *handle, opipe_error *err), (self, err))
ENTRY(REQUEST, request_wait, (opipe_request *handle, uint64_t timeout_ns, opipe_error *err),
      (self, timeout_ns, err))
ENTRY(REQUEST, request_queued, (opipe_request *handle, uint64_t timeout_ns, opipe_error *err),
      (self, timeout_ns, err))
ENTRY(REQUEST, request_cancel, (opipe_request *handle, opipe_error *err), (self, err))
ENTRY(REQUEST, request_output, (opipe_request *handle, uint32_t index, opipe_tensor *out_tensor,
      opipe_error *err),
      (self, index, out_tensor, err))
ENTRY_END(REQUEST, request_release, opipe_request)
ENTRY(SESSION, session_drive, (opipe_session *handle, uint32_t rank, uint64_t timeout_ns,
      opipe_error *err),
      (self, rank, timeout_ns, err))
ENTRY(SESSION, session_fd, (opipe_session *handle, uint32_t rank, int32_t *out_fd,
      opipe_error *err),
      (self, rank, out_fd, err))
ENTRY(SESSION, session_memory, (opipe_session *handle, uint32_t rank, opipe_memory_info *io_info,
      opipe_error *err),
      (self, rank, io_info, err))
ENTRY(SESSION, session_info, (opipe_session *handle, opipe_session_info *io_info, opipe_error *err),
      (self, io_info, err))
ENTRY(SESSION, session_train_step, (opipe_session *handle, const opipe_submit_params *params,
      opipe_request **out_ticket, opipe_error *err),
      (self, params, out_ticket, err))
ENTRY(SESSION, session_flush, (opipe_session *handle, opipe_error *err), (self, err))
ENTRY(SESSION, session_evaluate, (opipe_session *handle, const opipe_submit_params *params,
      opipe_request **out_request, opipe_error *err),
      (self, params, out_request, err))
ENTRY(REQUEST, request_report, (opipe_request *handle, opipe_train_report *io_report,
      opipe_error *err),
      (self, io_report, err))
ENTRY(SESSION, session_parameter, (opipe_session *handle, uint32_t index,
      opipe_parameter_info *io_info, opipe_error *err),
      (self, index, io_info, err))
ENTRY(SESSION, session_get, (opipe_session *handle, const char *name, uint32_t state,
      uint32_t version, void *dst, uint64_t n_bytes, opipe_error *err),
      (self, name, state, version, dst, n_bytes, err))
ENTRY(SESSION, session_set, (opipe_session *handle, const char *name, uint32_t state,
      uint32_t version, const void *src, uint64_t n_bytes, opipe_error *err),
      (self, name, state, version, src, n_bytes, err))
ENTRY(SESSION, session_save, (opipe_session *handle, const char *path, const uint64_t *position,
      opipe_error *err),
      (self, path, position, err))
ENTRY(SESSION, session_load, (opipe_session *handle, const char *path, uint64_t *out_position,
      opipe_error *err),
      (self, path, out_position, err))
ENTRY(SESSION, session_save_model, (opipe_session *handle, const char *path, opipe_error *err),
      (self, path, err))
ENTRY(SESSION, session_save_gradients, (opipe_session *handle, const char *path, opipe_error *err),
      (self, path, err))
ENTRY_SINK(MODEL, model_describe_training, (opipe_model *handle,
      const opipe_train_options *options, uint32_t format, opipe_write_fn write, void *ctx,
      opipe_error *err),
      (self, options, format, SINK, err))
ENTRY_SINK(CONTEXT, schedule_list, (opipe_context *handle, uint32_t format, opipe_write_fn write,
      void *ctx, opipe_error *err),
      (self, format, SINK, err))
ENTRY(CONTEXT, order_make, (opipe_context *handle, const opipe_order_params *params,
      opipe_order **out_order, opipe_error *err),
      (self, params, out_order, err))
ENTRY(CONTEXT, order_read, (opipe_context *handle, const void *text, uint64_t n_bytes,
      uint32_t dialect, opipe_order **out_order, opipe_error *err),
      (self, text, n_bytes, dialect, out_order, err))
ENTRY_END(ORDER, order_destroy, opipe_order)
ENTRY(ORDER, order_info, (opipe_order *handle, opipe_order_info *io_info, opipe_error *err),
      (self, io_info, err))
ENTRY(ORDER, order_lower, (opipe_order *handle, uint32_t receive_depth, uint32_t flags,
      opipe_order **out_order, opipe_error *err),
      (self, receive_depth, flags, out_order, err))
ENTRY(ORDER, order_check, (opipe_order *handle, uint32_t rule, opipe_error *err), (self, rule, err))
ENTRY_SINK(ORDER, order_simulate, (opipe_order *handle, const opipe_order_costs *costs,
      uint32_t format, opipe_write_fn write, void *ctx, opipe_error *err),
      (self, costs, format, SINK, err))
ENTRY_SINK(ORDER, order_draw, (opipe_order *handle, const opipe_order_costs *costs,
      opipe_write_fn write, void *ctx, opipe_error *err),
      (self, costs, SINK, err))
ENTRY_SINK(ORDER, order_write, (opipe_order *handle, uint32_t format, uint32_t dialect,
      opipe_write_fn write, void *ctx, opipe_error *err),
      (self, format, dialect, SINK, err))
ENTRY_SINK(SESSION, session_trace, (opipe_session *handle, uint32_t format, opipe_write_fn write,
      void *ctx, opipe_error *err),
      (self, format, SINK, err))
ENTRY(SESSION, session_clock, (opipe_session *handle, opipe_train_clock *io_clock,
      opipe_error *err),
      (self, io_clock, err))
ENTRY(SESSION, session_set_clock, (opipe_session *handle, const opipe_train_clock *clock,
      opipe_error *err),
      (self, clock, err))
ENTRY(SESSION, session_try_save, (opipe_session *handle, uint32_t what, const char *path,
      opipe_error *err),
      (self, what, path, err))
ENTRY(SESSION, session_state_open, (opipe_session *handle, const opipe_state_params *params,
      opipe_state **out_state, opipe_error *err),
      (self, params, out_state, err))
static void state_close(opipe_state *handle) {
  opi_fp_border border;
  opi_fp_enter(&border);
  opi_follow_state_close(handle);
  opi_handle_destroy(handle, OPI_HANDLE_STATE, "state_close");
  opi_fp_leave(&border);
}
ENTRY(STATE, state_reset, (opipe_state *handle, opipe_error *err), (self, err))
ENTRY(STATE, state_copy, (opipe_state *handle, opipe_state *from, opipe_error *err),
      (self, from, err))
ENTRY(STATE, state_get, (opipe_state *handle, uint32_t index, opipe_state_info *io_info, void *dst,
      uint64_t n_bytes, opipe_error *err),
      (self, index, io_info, dst, n_bytes, err))
ENTRY(SESSION, session_wait_room, (opipe_session *handle, uint64_t timeout_ns, opipe_error *err),
      (self, timeout_ns, err))
ENTRY(CONTEXT, model_build, (opipe_context *handle, const opipe_build_params *params,
      opipe_model **out_model, opipe_error *err),
      (self, params, out_model, err))
ENTRY(MODEL, model_write, (opipe_model *handle, const char *path, opipe_error *err),
      (self, path, err))
ENTRY(MODEL, model_check_target, (opipe_model *handle, const char *path, uint32_t what,
      opipe_error *err),
      (self, path, what, err))
ENTRY_SINK(CONTEXT, cluster_find, (opipe_context *handle, const char *spec, opipe_write_fn write,
      void *ctx, opipe_error *err),
      (self, spec, SINK, err))
ENTRY_SINK(ORDER, order_play, (opipe_order *handle, const opipe_order_costs *costs,
      const opipe_play_params *params, uint32_t format, opipe_write_fn write, void *ctx,
      opipe_error *err),
      (self, costs, params, format, SINK, err))
ENTRY_SINK(PLAN, plan_play, (opipe_plan *handle, const opipe_play_params *params, uint32_t format,
      opipe_write_fn write, void *ctx, opipe_error *err),
      (self, params, format, SINK, err))
ENTRY(MODEL, profile_of_model, (opipe_model *handle, const opipe_profile_params *params,
      opipe_profile **out_profile, opipe_error *err),
      (self, params, out_profile, err))
ENTRY(CONTEXT, profile_of_arch, (opipe_context *handle, const char *arch,
      const opipe_profile_params *params, opipe_profile **out_profile, opipe_error *err),
      (self, arch, params, out_profile, err))
ENTRY(CONTEXT, profile_read, (opipe_context *handle, const void *text, uint64_t n_bytes,
      const char *name, uint32_t samples, opipe_profile **out_profile, opipe_error *err),
      (self, text, n_bytes, name, samples, out_profile, err))
ENTRY_END(PROFILE, profile_destroy, opipe_profile)
ENTRY_SINK(PROFILE, profile_describe, (opipe_profile *handle, uint32_t format,
      opipe_write_fn write, void *ctx, opipe_error *err),
      (self, format, SINK, err))
ENTRY(PROFILE, profile_info, (opipe_profile *handle, opipe_profile_info *io_info,
      opipe_error *err),
      (self, io_info, err))
ENTRY(PROFILE, profile_layer, (opipe_profile *handle, uint32_t index, uint32_t samples,
      opipe_layer_info *io_info, opipe_error *err),
      (self, index, samples, io_info, err))
ENTRY(PROFILE, strategy_make, (opipe_profile *handle, const opipe_strategy_params *params,
      opipe_strategy **out_strategy, opipe_error *err),
      (self, params, out_strategy, err))
ENTRY_END(STRATEGY, strategy_destroy, opipe_strategy)
ENTRY_SINK(STRATEGY, strategy_describe, (opipe_strategy *handle, uint32_t format,
      opipe_write_fn write, void *ctx, opipe_error *err),
      (self, format, SINK, err))
ENTRY(STRATEGY, strategy_info, (opipe_strategy *handle, opipe_strategy_info *io_info,
      opipe_error *err),
      (self, io_info, err))
ENTRY(STRATEGY, strategy_stage, (opipe_strategy *handle, uint32_t index,
      opipe_strategy_stage_info *io_info, opipe_error *err),
      (self, index, io_info, err))
ENTRY_SINK(STRATEGY, strategy_play, (opipe_strategy *handle, const opipe_play_params *params,
      uint32_t format, opipe_write_fn write, void *ctx, opipe_error *err),
      (self, params, format, SINK, err))
ENTRY(PLAN, plan_tune, (opipe_plan *handle, const opipe_tuning_params *params,
      opipe_plan **out_plan, opipe_error *err),
      (self, params, out_plan, err))
ENTRY(STRATEGY, strategy_ranked, (opipe_strategy *handle, uint32_t index,
      opipe_strategy **out_strategy, opipe_error *err),
      (self, index, out_strategy, err))
ENTRY(STRATEGY, strategy_plan, (opipe_strategy *handle, opipe_model *model,
      const opipe_plan_params *params, opipe_plan **out_plan, opipe_error *err),
      (self, model, params, out_plan, err))
ENTRY_SINK(CONTEXT, plans_compare, (opipe_context *handle, const void *a, uint64_t a_bytes,
      const char *a_name, const void *b, uint64_t b_bytes, const char *b_name, uint32_t format,
      opipe_write_fn write, void *ctx, opipe_error *err),
      (self, a, a_bytes, a_name, b, b_bytes, b_name, format, SINK, err))
ENTRY_SINK(CONTEXT, cluster_of_machine, (opipe_context *handle,
      const opipe_machine_params *params, opipe_write_fn write, void *ctx, opipe_error *err),
      (self, params, SINK, err))
ENTRY_SINK(CONTEXT, plan_file_play, (opipe_context *handle, const void *json, uint64_t n_bytes,
      const opipe_play_params *params, uint32_t format, opipe_write_fn write, void *ctx,
      opipe_error *err),
      (self, json, n_bytes, params, format, SINK, err))
ENTRY(PLAN, plan_training, (opipe_plan *handle, opipe_train_options *io_options,
      opipe_error *err),
      (self, io_options, err))
ENTRY(SESSION, session_submit_wait, (opipe_session *handle, uint32_t what,
      const opipe_submit_params *params, uint64_t timeout_ns, opipe_request **out_request,
      opipe_error *err),
      (self, what, params, timeout_ns, out_request, err))
ENTRY(SESSION, session_flags_set, (opipe_session *handle, opipe_error *err), (self, err))
ENTRY(SESSION, session_read, (opipe_session *handle, const opipe_read_params *params,
      opipe_train_clock *io_clock, opipe_error *err),
      (self, params, io_clock, err))
ENTRY(CONTEXT, team_open, (opipe_context *handle, const opipe_team_params *params,
      opipe_team **out_team, opipe_error *err),
      (self, params, out_team, err))
ENTRY_END(TEAM, team_close, opipe_team)
ENTRY(TEAM, team_info, (opipe_team *handle, opipe_team_info *io_info, opipe_error *err),
      (self, io_info, err))
ENTRY_SINK(TEAM, team_describe, (opipe_team *handle, uint32_t format, opipe_write_fn write,
      void *ctx, opipe_error *err),
      (self, format, SINK, err))
ENTRY(TEAM, team_gather, (opipe_team *handle, const opipe_gather_params *params,
      opipe_error *err),
      (self, params, err))
ENTRY(TEAM, team_check, (opipe_team *handle, opipe_error *err), (self, err))
ENTRY(TEAM, team_moved, (opipe_team *handle, uint64_t moves, const char *at, opipe_error *err),
      (self, moves, at, err))
ENTRY(TEAM, team_abort, (opipe_team *handle, const char *reason, opipe_error *err),
      (self, reason, err))
ENTRY(TEAM, team_stop, (opipe_team *handle, uint32_t what, opipe_error *err), (self, what, err))
ENTRY(TEAM, team_step, (opipe_team *handle, uint64_t step, uint32_t *out_what, opipe_error *err),
      (self, step, out_what, err))
ENTRY(MODEL, plan_share, (opipe_model *handle, const opipe_share_params *params,
      opipe_plan **out_plan, opipe_error *err),
      (self, params, out_plan, err))
ENTRY(SESSION, session_needs, (opipe_session *handle, const char *name, uint32_t *out_needed,
      opipe_error *err),
      (self, name, out_needed, err))
ENTRY(SESSION, session_follow, (opipe_session *handle, opipe_error *err), (self, err))
ENTRY(SESSION, session_generate, (opipe_session *handle, const opipe_generate_params *params,
      opipe_sequence **out_sequence, opipe_error *err),
      (self, params, out_sequence, err))
ENTRY(SESSION, session_generation, (opipe_session *handle, opipe_generation_info *io_info,
      opipe_error *err),
      (self, io_info, err))
ENTRY(SEQUENCE, sequence_append, (opipe_sequence *handle, const opipe_generate_params *params,
      opipe_error *err),
      (self, params, err))
ENTRY(SEQUENCE, sequence_fork, (opipe_sequence *handle, const uint64_t *seed, void *ctx,
      opipe_sequence **out_sequence, opipe_error *err),
      (self, seed, ctx, out_sequence, err))
ENTRY(SEQUENCE, sequence_truncate, (opipe_sequence *handle, uint32_t n_ids, opipe_error *err),
      (self, n_ids, err))
ENTRY(SEQUENCE, sequence_draft, (opipe_sequence *handle, const uint32_t *ids, uint32_t n_ids,
      opipe_error *err),
      (self, ids, n_ids, err))
ENTRY(SEQUENCE, sequence_cancel, (opipe_sequence *handle, opipe_error *err), (self, err))
ENTRY(SEQUENCE, sequence_wait, (opipe_sequence *handle, uint32_t n_tokens, uint64_t timeout_ns,
      opipe_error *err),
      (self, n_tokens, timeout_ns, err))
ENTRY(SEQUENCE, sequence_info, (opipe_sequence *handle, opipe_sequence_info *io_info,
      opipe_error *err),
      (self, io_info, err))
ENTRY(SEQUENCE, sequence_ids, (opipe_sequence *handle, uint32_t first, uint32_t n_ids,
      uint32_t *out_ids, opipe_error *err),
      (self, first, n_ids, out_ids, err))
ENTRY_END(SEQUENCE, sequence_release, opipe_sequence)
ENTRY_SINK(CONTEXT, genai_describe, (opipe_context *handle, const void *text, uint64_t n_bytes,
      const char *name, opipe_write_fn write, void *ctx, opipe_error *err),
      (self, text, n_bytes, name, SINK, err))
/* clang-format on */

static const opipe_api api = {
    .struct_size = (uint32_t)sizeof(opipe_api),
    .abi_major = OPIPE_ABI_MAJOR,
    .abi_minor = OPIPE_ABI_MINOR,
    .version = OPIPE_VERSION,
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
    .session_fd = session_fd,
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
    .session_state_open = session_state_open,
    .state_close = state_close,
    .state_reset = state_reset,
    .state_copy = state_copy,
    .state_get = state_get,
    .session_try_save = session_try_save,
    .session_wait_room = session_wait_room,
    .model_build = model_build,
    .model_write = model_write,
    .model_check_target = model_check_target,
    .cluster_find = cluster_find,
    .order_play = order_play,
    .plan_play = plan_play,
    .profile_of_model = profile_of_model,
    .profile_of_arch = profile_of_arch,
    .profile_read = profile_read,
    .profile_destroy = profile_destroy,
    .profile_describe = profile_describe,
    .profile_info = profile_info,
    .profile_layer = profile_layer,
    .strategy_make = strategy_make,
    .strategy_destroy = strategy_destroy,
    .strategy_describe = strategy_describe,
    .strategy_info = strategy_info,
    .strategy_stage = strategy_stage,
    .strategy_play = strategy_play,
    .strategy_plan = strategy_plan,
    .strategy_ranked = strategy_ranked,
    .request_queued = request_queued,
    .plans_compare = plans_compare,
    .cluster_of_machine = cluster_of_machine,
    .plan_tune = plan_tune,
    .plan_file_play = plan_file_play,
    .plan_training = plan_training,
    .session_submit_wait = session_submit_wait,
    .session_flags_set = session_flags_set,
    .session_read = session_read,
    .team_open = team_open,
    .team_close = team_close,
    .team_info = team_info,
    .team_describe = team_describe,
    .team_gather = team_gather,
    .team_check = team_check,
    .team_moved = team_moved,
    .team_abort = team_abort,
    .team_stop = team_stop,
    .team_step = team_step,
    .plan_share = plan_share,
    .session_needs = session_needs,
    .session_follow = session_follow,
    .session_generate = session_generate,
    .session_generation = session_generation,
    .sequence_append = sequence_append,
    .sequence_fork = sequence_fork,
    .sequence_truncate = sequence_truncate,
    .sequence_draft = sequence_draft,
    .sequence_cancel = sequence_cancel,
    .sequence_wait = sequence_wait,
    .sequence_info = sequence_info,
    .sequence_ids = sequence_ids,
    .sequence_release = sequence_release,
    .genai_describe = genai_describe,
};

OPIPE_EXPORT opipe_status opipe_get_api(const opipe_view *view, const opipe_api **out_api,
                                        opipe_error *err) {
  static const opi_struct_view own = {.rows = opipe_rows_of_host,
                                      .n = OPI_COUNT(opipe_rows_of_host)};
  if (view == NULL || out_api == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "opipe_get_api: an argument is NULL");
  const uint32_t known = (uint32_t)OPIPE_END(opipe_view, struct_row_bytes);
  if (view->struct_size < known ||
      (view->struct_size > known && view->abi_minor <= OPIPE_ABI_MINOR)) {
    return opi_fail(err, OPIPE_E_ABI,
                    "the host lays struct opipe_view out in %u bytes, this library in %u: rebuild "
                    "it with unmodified headers",
                    view->struct_size, known);
  }
  const uint32_t major = view->abi_major, minor = view->abi_minor;
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
  if (view->structs != NULL || view->n_structs != 0) {
    OPI_TRY(opi_struct_views_check(&(opi_struct_view){"the host", view->structs, view->n_structs,
                                                      view->struct_row_bytes, minor},
                                   &own, err));
  }
  *out_api = &api;
  return OPIPE_OK;
}
