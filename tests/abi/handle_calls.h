/* SPDX-License-Identifier: Apache-2.0 */
/* Every function of the host's table that takes a handle, as a call with that handle and otherwise
 * good arguments. The test that uses it fails when the table has a slot without a row here.
 */
#ifndef TESTS_ABI_HANDLE_CALLS_H
#define TESTS_ABI_HANDLE_CALLS_H

#include "tests/abi/host_kit.h"

enum {
  CONTEXT,
  MODEL,
  PLAN,
  SESSION,
  REQUEST,
  ORDER,
  STATE,
  PROFILE,
  STRATEGY,
  TEAM,
  SEQUENCE,
  KINDS
};

typedef struct bench {
  host_kit k;    /* for training */
  host_kit past; /* for inference, with a state */
  host_kit generating;
  void *live[KINDS], *dead[KINDS];
} bench;

typedef struct handle_call {
  const char *name;
  size_t slot;   /* offset in the table */
  uint32_t kind; /* of the handle */
  bool is_void;
  opipe_status (*call)(const bench *b, void *h, opipe_error *err);
} handle_call;

static opipe_status swallow(void *ctx, const void *data, size_t n_bytes) {
  (void)ctx;
  (void)data;
  (void)n_bytes;
  return OPIPE_OK;
}

#define CALL(name, tag, ...)                                                        \
  static opipe_status call_##name##tag(const bench *b, void *h, opipe_error *err) { \
    const opipe_api *api = b->k.api;                                                \
    (void)api;                                                                      \
    __VA_ARGS__                                                                     \
  }
/* A struct that the library fills in. */
#define INFO(name, type, ...)                            \
  CALL(name, , type info = {.struct_size = sizeof info}; \
       return api->name(h, __VA_ARGS__ & info, err);)
#define SINK(name, ...) CALL(name, , return api->name(h, __VA_ARGS__ swallow, NULL, err);)
#define MAKES(name, type, ...) \
  CALL(name, , type *made = NULL; return api->name(h, __VA_ARGS__ & made, err);)
#define ENDS(name) CALL(name, , (void)err; api->name(h); return OPIPE_OK;)

static const opipe_load_params load_nothing = {.struct_size = sizeof load_nothing, .path = "none"};
static const opipe_build_graph build_empty = {.struct_size = sizeof build_empty};
static const opipe_build_params build_nothing = {.struct_size = sizeof build_nothing,
                                                 .graph = &build_empty};
static const opipe_submit_params submit_nothing = {.struct_size = sizeof submit_nothing};
static const opipe_order_params order_small = {
    .struct_size = sizeof order_small, .schedule = "1f1b", .n_ranks = 2, .n_microbatches = 2};
static const opipe_strategy_params strategy_nothing = {.struct_size = sizeof strategy_nothing};
static const opipe_tuning_params tuning_nothing = {.struct_size = sizeof tuning_nothing,
                                                   .kind = "nobody"};
static const opipe_play_params play_nothing = {.struct_size = sizeof play_nothing};
static const opipe_train_options train_simple = {.struct_size = sizeof train_simple,
                                                 .loss = OPIPE_LOSS_CROSS_ENTROPY,
                                                 .labels = "labels",
                                                 .optimizer = OPIPE_OPTIMIZER_SGD,
                                                 .lr = 0.01};
static const opipe_generate_params generate_nothing = {.struct_size = sizeof generate_nothing};
static const opipe_train_clock clock_zero = {.struct_size = sizeof clock_zero, .loss_scale = 1};

ENDS(context_destroy)
CALL(context_register_static, , return api->context_register_static(h, NULL, err);)
SINK(context_plugins, OPIPE_FORMAT_TEXT, )
MAKES(model_load, opipe_model, &load_nothing, )
ENDS(model_destroy)
MAKES(model_bind, opipe_model, NULL, )
INFO(model_info, opipe_model_info, )
INFO(model_input, opipe_tensor_info, 0, )
INFO(model_output, opipe_tensor_info, 0, )
INFO(model_dim, opipe_dim_info, 0, )
SINK(model_describe, OPIPE_FORMAT_TEXT, )
MAKES(plan_make, opipe_plan, NULL, )
MAKES(plan_read, opipe_plan, "{}", 2, )
SINK(plan_write, )
SINK(plan_describe, OPIPE_FORMAT_TEXT, )
SINK(plan_annotate, )
INFO(plan_info, opipe_plan_info, )
INFO(plan_memory, opipe_memory_info, 0, )
CALL(plan_cut_tensor, , const char *tensor = NULL; uint32_t from = 0, to = 0;
     return api->plan_cut_tensor(h, 0, &tensor, &from, &to, err);)
ENDS(plan_destroy)
MAKES(session_open, opipe_session, b->live[PLAN], NULL, )
CALL(session_open, _plan, opipe_session *made = NULL;
     return api->session_open(b->live[CONTEXT], h, NULL, &made, err);)
ENDS(session_close)
MAKES(session_submit, opipe_request, &submit_nothing, )
CALL(request_poll, , return api->request_poll(h, err);)
CALL(request_wait, , return api->request_wait(h, 1000, err);)
CALL(request_queued, , return api->request_queued(h, 1000, err);)
CALL(request_cancel, , return api->request_cancel(h, err);)
CALL(request_output, , opipe_tensor out; return api->request_output(h, 0, &out, err);)
ENDS(request_release)
CALL(session_drive, , return api->session_drive(h, 0, 0, err);)
CALL(session_fd, , int32_t fd; return api->session_fd(h, OPIPE_NONE, &fd, err);)
INFO(session_memory, opipe_memory_info, 0, )
INFO(session_info, opipe_session_info, )
MAKES(session_train_step, opipe_request, &submit_nothing, )
CALL(session_flush, , return api->session_flush(h, err);)
MAKES(session_evaluate, opipe_request, &submit_nothing, )
INFO(request_report, opipe_train_report, )
INFO(session_parameter, opipe_parameter_info, 0, )
CALL(session_get, , char to[4]; return api->session_get(h, "nobody", 0, 0, to, sizeof to, err);)
CALL(session_set, , const char from[4] = {0};
     return api->session_set(h, "nobody", 0, 0, from, sizeof from, err);)
CALL(session_save, , return api->session_save(h, "", NULL, err);)
CALL(session_load, , return api->session_load(h, "", NULL, err);)
CALL(session_save_model, , return api->session_save_model(h, "", err);)
CALL(session_save_gradients, , return api->session_save_gradients(h, "", err);)
SINK(model_describe_training, &train_simple, OPIPE_FORMAT_TEXT, )
SINK(schedule_list, OPIPE_FORMAT_TEXT, )
MAKES(order_make, opipe_order, &order_small, )
MAKES(order_read, opipe_order, "", 0, OPIPE_DIALECT_OPIPE, )
ENDS(order_destroy)
INFO(order_info, opipe_order_info, )
MAKES(order_lower, opipe_order, 0, 0, )
CALL(order_check, , return api->order_check(h, 0, err);)
SINK(order_simulate, NULL, OPIPE_FORMAT_TEXT, )
SINK(order_draw, NULL, )
SINK(order_write, OPIPE_FORMAT_TEXT, OPIPE_DIALECT_OPIPE, )
SINK(session_trace, OPIPE_TRACE_CHROME, )
INFO(session_clock, opipe_train_clock, )
CALL(session_try_save, , return api->session_try_save(h, OPIPE_SAVE_MODEL, "", err);)
CALL(session_set_clock, , return api->session_set_clock(h, &clock_zero, err);)
MAKES(session_state_open, opipe_state, NULL, )
ENDS(state_close)
CALL(state_reset, , return api->state_reset(h, err);)
CALL(state_copy, , return api->state_copy(h, b->live[STATE], err);)
CALL(state_copy, _from, return api->state_copy(b->live[STATE], h, err);)
CALL(state_get, , return api->state_get(h, 0, NULL, NULL, 0, err);)
CALL(session_wait_room, , return api->session_wait_room(h, 1000, err);)
CALL(session_submit_wait, , opipe_request *made = NULL;
     return api->session_submit_wait(h, OPIPE_START_REQUEST, &submit_nothing, 1000, &made, err);)
CALL(session_flags_set, , return api->session_flags_set(h, err);)
CALL(session_read, , const opipe_read_params none = opipe_read_params_init();
     return api->session_read(h, &none, NULL, err);)
MAKES(team_open, opipe_team, NULL, )
ENDS(team_close)
INFO(team_info, opipe_team_info, )
SINK(team_describe, OPIPE_FORMAT_TEXT, )
CALL(team_gather, , opipe_gather_params barrier = opipe_gather_params_init(); barrier.name = "here";
     return api->team_gather(h, &barrier, err);)
CALL(team_check, , return api->team_check(h, err);)
CALL(team_moved, , return api->team_moved(h, 1, "here", err);)
CALL(team_abort, , return api->team_abort(h, "no reason", err);)
CALL(team_stop, , return api->team_stop(h, 1, err);)
CALL(team_step, , uint32_t what = 0; return api->team_step(h, 1, &what, err);)
CALL(plan_share, , opipe_share_params give = opipe_share_params_init(); give.team = b->live[TEAM];
     give.plan = b->live[PLAN]; opipe_plan *plan = NULL;
     const opipe_status status = api->plan_share(h, &give, &plan, err); api->plan_destroy(plan);
     return status;)
CALL(session_needs, , uint32_t needed = 0; return api->session_needs(h, "input_ids", &needed, err);)
CALL(session_follow, , return api->session_follow(h, err);)
MAKES(session_generate, opipe_sequence, &generate_nothing, )
INFO(session_generation, opipe_generation_info, )
CALL(sequence_append, , return api->sequence_append(h, &generate_nothing, err);)
MAKES(sequence_fork, opipe_sequence, NULL, NULL, )
CALL(sequence_truncate, , return api->sequence_truncate(h, 1, err);)
CALL(sequence_draft, , return api->sequence_draft(h, NULL, 0, err);)
CALL(sequence_cancel, , return api->sequence_cancel(h, err);)
CALL(sequence_wait, , return api->sequence_wait(h, 1, 1000, err);)
INFO(sequence_info, opipe_sequence_info, )
CALL(sequence_ids, , uint32_t id = 0; return api->sequence_ids(h, 0, 1, &id, err);)
ENDS(sequence_release)
SINK(genai_describe, "", 0, NULL, )
MAKES(model_build, opipe_model, &build_nothing, )
CALL(model_write, , return api->model_write(h, "", err);)
CALL(model_check_target, , return api->model_check_target(h, "", OPIPE_TARGET_OTHER, err);)
SINK(cluster_find, "nobody", )
SINK(order_play, NULL, &play_nothing, OPIPE_PLAY_TEXT, )
SINK(plan_play, &play_nothing, OPIPE_PLAY_TEXT, )
MAKES(profile_of_model, opipe_profile, NULL, )
MAKES(profile_of_arch, opipe_profile, "gpt:layers=2,hidden=8,heads=2,vocab=16,seq=4", NULL, )
MAKES(profile_read, opipe_profile, "", 0, NULL, 0, )
ENDS(profile_destroy)
SINK(profile_describe, OPIPE_FORMAT_TEXT, )
INFO(profile_info, opipe_profile_info, )
INFO(profile_layer, opipe_layer_info, 0, 1, )
MAKES(strategy_make, opipe_strategy, &strategy_nothing, )
ENDS(strategy_destroy)
SINK(strategy_describe, OPIPE_FORMAT_TEXT, )
INFO(strategy_info, opipe_strategy_info, )
INFO(strategy_stage, opipe_strategy_stage_info, 0, )
SINK(strategy_play, &play_nothing, OPIPE_PLAY_TEXT, )
MAKES(strategy_plan, opipe_plan, b->live[MODEL], NULL, )
MAKES(strategy_ranked, opipe_strategy, 0, )
MAKES(plan_tune, opipe_plan, &tuning_nothing, )
CALL(strategy_plan, _model, opipe_plan *made = NULL;
     return api->strategy_plan(b->live[STRATEGY], h, NULL, &made, err);)
SINK(plans_compare, "", 0, NULL, "", 0, NULL, OPIPE_FORMAT_TEXT, )
SINK(cluster_of_machine, NULL, )
SINK(plan_file_play, "", 0, &play_nothing, OPIPE_PLAY_TEXT, )
INFO(plan_training, opipe_train_options, )

#define ROW(name, kind) \
  { #name, offsetof(opipe_api, name), kind, false, call_##name }
#define ROW_VOID(name, kind) \
  { #name, offsetof(opipe_api, name), kind, true, call_##name }

static const handle_call handle_calls[] = {
    ROW_VOID(context_destroy, CONTEXT),
    ROW(context_register_static, CONTEXT),
    ROW(context_plugins, CONTEXT),
    ROW(model_load, CONTEXT),
    ROW_VOID(model_destroy, MODEL),
    ROW(model_bind, MODEL),
    ROW(model_info, MODEL),
    ROW(model_input, MODEL),
    ROW(model_output, MODEL),
    ROW(model_dim, MODEL),
    ROW(model_describe, MODEL),
    ROW(plan_make, MODEL),
    ROW(plan_read, MODEL),
    ROW(plan_write, PLAN),
    ROW(plan_describe, PLAN),
    ROW(plan_annotate, PLAN),
    ROW(plan_info, PLAN),
    ROW(plan_memory, PLAN),
    ROW(plan_cut_tensor, PLAN),
    ROW_VOID(plan_destroy, PLAN),
    ROW(session_open, CONTEXT),
    {"session_open", offsetof(opipe_api, session_open), PLAN, false, call_session_open_plan},
    ROW_VOID(session_close, SESSION),
    ROW(session_submit, SESSION),
    ROW(request_poll, REQUEST),
    ROW(request_wait, REQUEST),
    ROW(request_queued, REQUEST),
    ROW(request_cancel, REQUEST),
    ROW(request_output, REQUEST),
    ROW_VOID(request_release, REQUEST),
    ROW(session_drive, SESSION),
    ROW(session_fd, SESSION),
    ROW(session_memory, SESSION),
    ROW(session_info, SESSION),
    ROW(session_train_step, SESSION),
    ROW(session_flush, SESSION),
    ROW(session_evaluate, SESSION),
    ROW(request_report, REQUEST),
    ROW(session_parameter, SESSION),
    ROW(session_get, SESSION),
    ROW(session_set, SESSION),
    ROW(session_save, SESSION),
    ROW(session_load, SESSION),
    ROW(session_save_model, SESSION),
    ROW(session_save_gradients, SESSION),
    ROW(model_describe_training, MODEL),
    ROW(schedule_list, CONTEXT),
    ROW(order_make, CONTEXT),
    ROW(order_read, CONTEXT),
    ROW_VOID(order_destroy, ORDER),
    ROW(order_info, ORDER),
    ROW(order_lower, ORDER),
    ROW(order_check, ORDER),
    ROW(order_simulate, ORDER),
    ROW(order_draw, ORDER),
    ROW(order_write, ORDER),
    ROW(session_trace, SESSION),
    ROW(session_clock, SESSION),
    ROW(session_set_clock, SESSION),
    ROW(session_try_save, SESSION),
    ROW(session_state_open, SESSION),
    ROW_VOID(state_close, STATE),
    ROW(state_reset, STATE),
    ROW(state_copy, STATE),
    {"state_copy", offsetof(opipe_api, state_copy), STATE, false, call_state_copy_from},
    ROW(state_get, STATE),
    ROW(session_wait_room, SESSION),
    ROW(model_build, CONTEXT),
    ROW(model_write, MODEL),
    ROW(model_check_target, MODEL),
    ROW(cluster_find, CONTEXT),
    ROW(order_play, ORDER),
    ROW(plan_play, PLAN),
    ROW(profile_of_model, MODEL),
    ROW(profile_of_arch, CONTEXT),
    ROW(profile_read, CONTEXT),
    ROW_VOID(profile_destroy, PROFILE),
    ROW(profile_describe, PROFILE),
    ROW(profile_info, PROFILE),
    ROW(profile_layer, PROFILE),
    ROW(strategy_make, PROFILE),
    ROW_VOID(strategy_destroy, STRATEGY),
    ROW(strategy_describe, STRATEGY),
    ROW(strategy_info, STRATEGY),
    ROW(strategy_stage, STRATEGY),
    ROW(strategy_play, STRATEGY),
    ROW(strategy_plan, STRATEGY),
    ROW(strategy_ranked, STRATEGY),
    ROW(plan_tune, PLAN),
    {"strategy_plan", offsetof(opipe_api, strategy_plan), MODEL, false, call_strategy_plan_model},
    ROW(plans_compare, CONTEXT),
    ROW(cluster_of_machine, CONTEXT),
    ROW(plan_file_play, CONTEXT),
    ROW(plan_training, PLAN),
    ROW(session_submit_wait, SESSION),
    ROW(session_flags_set, SESSION),
    ROW(session_read, SESSION),
    ROW(team_open, CONTEXT),
    ROW_VOID(team_close, TEAM),
    ROW(team_info, TEAM),
    ROW(team_describe, TEAM),
    ROW(team_gather, TEAM),
    ROW(team_check, TEAM),
    ROW(team_moved, TEAM),
    ROW(team_abort, TEAM),
    ROW(team_stop, TEAM),
    ROW(team_step, TEAM),
    ROW(plan_share, MODEL),
    ROW(session_needs, SESSION),
    ROW(session_follow, SESSION),
    ROW(session_generate, SESSION),
    ROW(session_generation, SESSION),
    ROW(sequence_append, SEQUENCE),
    ROW(sequence_fork, SEQUENCE),
    ROW(sequence_truncate, SEQUENCE),
    ROW(sequence_draft, SEQUENCE),
    ROW(sequence_cancel, SEQUENCE),
    ROW(sequence_wait, SEQUENCE),
    ROW(sequence_info, SEQUENCE),
    ROW(sequence_ids, SEQUENCE),
    ROW_VOID(sequence_release, SEQUENCE),
    ROW(genai_describe, CONTEXT)};
enum { HANDLE_CALLS = sizeof handle_calls / sizeof handle_calls[0] };

#endif /* TESTS_ABI_HANDLE_CALLS_H */
