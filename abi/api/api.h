/* SPDX-License-Identifier: Apache-2.0 */
/* Objects behind a host's handles (runtime/base/handles.h). Objects are reference-counted, so the
 * order in which a host destroys them cannot break the rest. A handle holds one reference, from its
 * making until it is destroyed and no call is inside. table.c takes handles, all other files take
 * objects. */
#ifndef OPI_API_H
#define OPI_API_H

#include <opipe/host.h>
#include <pthread.h>
#include <stdatomic.h>

#include "abi/api/params.h"
#include "abi/registry/registry.h"
#include "partition/make/make.h"
#include "partition/schedule/order.h"
#include "partition/study/auto/auto.h"
#include "partition/study/planners/apply.h"
#include "runtime/generate/generate.h"
#include "runtime/launch/launch.h"
#include "runtime/session/session.h"

typedef struct opi_context_object opi_context_object;
typedef struct opi_model_object opi_model_object;
typedef struct opi_plan_object opi_plan_object;
typedef struct opi_session_object opi_session_object;
typedef struct opi_order_object opi_order_object;
typedef struct opi_profile_object opi_profile_object;
typedef struct opi_strategy_object opi_strategy_object;
typedef struct opi_team_object opi_team_object;

struct opi_context_object {
  atomic_uint refs;
  uint64_t handle;
  opipe_allocator allocator, host_allocator; /* ours, which calls the host's */
  opi_logger logger;
  void *host_log_ctx;
  void (*host_log)(void *ctx, uint32_t level, const char *file, uint32_t line, const char *msg);
  opi_registry *registry;
  opi_budget *budget;
  opi_evaluator *evaluator; /* made on first use, under lock */
  opi_plugins plugins;
  pthread_mutex_t lock;
  uint32_t cores;
};

struct opi_model_object {
  atomic_uint refs;
  opi_context_object *context;
  opi_model_object
      *unbound;     /* bound models: the model that they are made from (a reference); else NULL */
  opi_model *file;  /* owned by the unbound model */
  opi_bound *bound; /* NULL: unbound */
  opi_arena arena;  /* options below */
  opi_bind_options options;      /* as bound: all dims, pins, barriers, flags */
  void (*on_release)(void *ctx); /* loaded from memory: the host's bytes are no longer needed */
  void *release_ctx;
};

struct opi_plan_object {
  atomic_uint refs;
  opi_model_object *model; /* a reference */
  opi_plan *plan;
  uint32_t *places; /* [n_places] of a team's plan: process of each rank; NULL: of none */
  uint32_t n_places;
};

/* How the processes of a team open a session together; team NULL: there is none. */
typedef struct opi_following opi_following;
typedef struct opi_meeting {
  opi_team_object *team; /* a reference */
  opi_following *follow; /* team/follow.h; NULL: every process makes its calls itself */
  opipe_board board;     /* the team's, with keys of this session */
  opi_teller teller;
  char lane[64]; /* "session NAME #number": sessions with the same one meet */
  opipe_team_info info;
} opi_meeting;

struct opi_session_object {
  atomic_uint refs;
  opi_plan_object *plan;    /* a reference */
  opi_plan own;             /* the same decisions, with the devices that ranks have here */
  opi_device_spec *devices; /* [n_ranks] of `own` */
  opi_session *session;
  opi_pass_runner *runners; /* [n_runners] of a plan that generates, one for each replica */
  uint32_t n_runners;
  opi_generator *generator;  /* over them; NULL: none */
  opi_backend_ref *backends; /* [n_ranks] of ranks here */
  bool *local;               /* [n_ranks] the rank is in this process */
  uint32_t *owners;          /* [n_ranks] in a team: process of the rank */
  uint32_t n_ranks;
  int32_t pid;
  atomic_bool warned_of_rate; /* about steps by a learning rate of 0 */
  opi_meeting meeting;
};

struct opi_order_object {
  atomic_uint refs;
  opi_context_object *context; /* a reference */
  opi_order *order;
};

/* The source of a profile. A profile by rates can be made again for other devices. */
typedef struct opi_profile_source {
  const char *arch;        /* in the profile's arena, as all below; arch and model both NULL: the
                              profile was read */
  opi_model_object *model; /* a reference */
  opi_plan *trained;       /* the model's plan, which holds train options; owned; NULL: forwards
                              alone */
  const char *batch_dim;
  const uint32_t *samples; /* [n_samples] */
  uint32_t n_samples;
  bool every_node, measured, may_be_whole;
} opi_profile_source;

struct opi_profile_object {
  atomic_uint refs;
  opi_context_object *context; /* a reference */
  opi_arena arena;
  opi_layers *layers;
  opi_profile_source source;
  bool forward; /* of an untrained model: no backward times */
};

struct opi_strategy_object {
  atomic_uint refs;
  opi_profile_object *profile;   /* a reference */
  opi_strategy_object *found_by; /* a reference to the strategy whose answer holds this one; NULL:
                                    itself, or none */
  const opi_auto_answer *answer; /* planner auto's, else NULL; owned if found_by is NULL */
  uint32_t index;                /* in the answer */
  const opi_strategy *strategy;  /* the answer's; owned if there is no answer */
  double state_bytes;            /* of the question */
  uint64_t batch;                /* the same */
  bool forward;                  /* the same */
};

/* Sessions of one name; each has a number. */
typedef struct opi_session_name {
  struct opi_session_name *next;
  char text[48];
  uint32_t n; /* opened so far, also those that failed */
} opi_session_name;

struct opi_team_object {
  atomic_uint refs;
  opi_context_object *context; /* a reference */
  opi_team *team;
  pthread_mutex_t lock;
  opi_session_name *names; /* of sessions that were opened; lock */
};

void opi_ref(atomic_uint *refs);
bool opi_unref(atomic_uint *refs); /* true: it was the last */

/* Drop a reference when a handle's making or end gives it up: void * for all kinds. Accept NULL. */
void opi_context_unref(void *context);
void opi_model_unref(void *model);
void opi_plan_unref(void *plan);
void opi_session_unref(void *session);
void opi_team_unref(void *team);
void opi_order_unref(void *order);
void opi_profile_unref(void *profile);
void opi_strategy_unref(void *strategy);
/* Ends a handle, for functions that return nothing: waits for calls inside a session or request. A
 * handle of another kind than `call` wants is logged: to its context's log if known, else to
 * standard error. Does nothing for NULL or in a forked child. */
void opi_handle_destroy(const void *handle, uint32_t kind, const char *call);
/* Calls a callback that has only its context, with the host's floating-point environment. */
void opi_host_call(void (*call)(void *ctx), void *ctx);
void opi_log_to_stderr(void *ctx, uint32_t level, const char *file, uint32_t line, const char *msg);

/* The context's constant folder, which uses backend "cpu". */
opipe_status opi_context_evaluator(opi_context_object *context, const opi_evaluator **out_evaluator,
                                   opipe_error *err);
uint64_t opi_now_ns(void);
/* The host's options as a plan's spec; globs in `arena`, all strings borrowed. */
opipe_status opi_train_options_read(const opipe_train_options *options, const char *call,
                                    opi_arena *arena, opi_train_spec *out_spec, opipe_error *err);

/* The error of `call` inside an on_done, where it is forbidden: it would wait for its own thread.
 */
opipe_status opi_refuse_inside(const char *call, opipe_error *err);
/* Surround a callback of the host that may not call functions of the table: they return STATE. */
void opi_callback_enter(void);
void opi_callback_leave(void);
opipe_status opi_callback_check(const char *call, opipe_error *err);
/* The same for callbacks of generation. */
opipe_status opi_generation_check_callback(const char *call, opipe_error *err);

/* The table's functions, by file. */
opipe_status opi_api_context_create(const opipe_context_params *params, opipe_context **out_context,
                                    opipe_error *err);
opipe_status opi_api_context_register_static(opi_context_object *context,
                                             const opipe_plugin *plugin, opipe_error *err);
opipe_status opi_api_context_plugins(opi_context_object *context, uint32_t format,
                                     opipe_write_fn write, void *ctx, opipe_error *err);

/* Makes a model for the host; takes `file` over, even on failure. on_release: called once the lent
 * bytes are no longer needed; never if this fails. */
opipe_status opi_model_hand_out(opi_context_object *context, opi_model *file,
                                void (*on_release)(void *ctx), void *release_ctx,
                                opipe_model **out_model, opipe_error *err);
opipe_status opi_api_model_build(opi_context_object *context, const opipe_build_params *params,
                                 opipe_model **out_model, opipe_error *err);
opipe_status opi_api_model_write(opi_model_object *model, const char *path, opipe_error *err);
opipe_status opi_api_model_check_target(opi_model_object *model, const char *path, uint32_t what,
                                        opipe_error *err);
opipe_status opi_api_model_load(opi_context_object *context, const opipe_load_params *params,
                                opipe_model **out_model, opipe_error *err);
opipe_status opi_api_model_bind(opi_model_object *model, const opipe_bind_options *options,
                                opipe_model **out_bound, opipe_error *err);
opipe_status opi_api_model_info(opi_model_object *model, opipe_model_info *io_info,
                                opipe_error *err);
opipe_status opi_api_model_input(opi_model_object *model, uint32_t index,
                                 opipe_tensor_info *io_info, opipe_error *err);
opipe_status opi_api_model_output(opi_model_object *model, uint32_t index,
                                  opipe_tensor_info *io_info, opipe_error *err);
opipe_status opi_api_model_dim(opi_model_object *model, uint32_t index, opipe_dim_info *io_info,
                               opipe_error *err);
opipe_status opi_api_model_describe(opi_model_object *model, uint32_t format, opipe_write_fn write,
                                    void *ctx, opipe_error *err);

opipe_status opi_api_plan_make(opi_model_object *model, const opipe_plan_params *params,
                               opipe_plan **out_plan, opipe_error *err);
/* The same with checked params; the strategy decides cut, recomputation and the device of each
 * rank, the params hold the rest. */
opipe_status opi_plan_make_as(opi_model_object *model, const opipe_plan_params *params,
                              const opi_applied *as, opipe_plan **out_plan, opipe_error *err);
/* The environment of plan making: a model that is bound as `bind` says. */
opi_plan_env opi_api_plan_env(opi_model_object *model, const opi_bind_options *bind);
opipe_status opi_api_plan_read(opi_model_object *model, const void *json, uint64_t n_bytes,
                               opipe_plan **out_plan, opipe_error *err);
opipe_status opi_api_plan_write(opi_plan_object *plan, opipe_write_fn write, void *ctx,
                                opipe_error *err);
opipe_status opi_api_plan_describe(opi_plan_object *plan, uint32_t format, opipe_write_fn write,
                                   void *ctx, opipe_error *err);
opipe_status opi_api_plan_annotate(opi_plan_object *plan, opipe_write_fn write, void *ctx,
                                   opipe_error *err);
opipe_status opi_api_plan_info(opi_plan_object *plan, opipe_plan_info *io_info, opipe_error *err);
opipe_status opi_api_plan_memory(opi_plan_object *plan, uint32_t rank, opipe_memory_info *io_info,
                                 opipe_error *err);
opipe_status opi_api_plan_cut_tensor(opi_plan_object *plan, uint32_t index, const char **out_name,
                                     uint32_t *out_src_stage, uint32_t *out_dst_stage,
                                     opipe_error *err);

opipe_status opi_api_session_open(opi_context_object *context, opipe_plan *plan,
                                  const opipe_session_params *params, opipe_session **out_session,
                                  opipe_error *err);
opipe_status opi_api_session_submit(opi_session_object *session, const opipe_submit_params *params,
                                    opipe_request **out_request, opipe_error *err);
opipe_status opi_api_request_poll(opi_request *request, opipe_error *err);
opipe_status opi_api_request_wait(opi_request *request, uint64_t timeout_ns, opipe_error *err);
opipe_status opi_api_request_queued(opi_request *request, uint64_t timeout_ns, opipe_error *err);
opipe_status opi_api_request_cancel(opi_request *request, opipe_error *err);
opipe_status opi_api_request_output(opi_request *request, uint32_t index, opipe_tensor *out_tensor,
                                    opipe_error *err);
/* Finishes a submit: OPIPE_PENDING leaves no handle. */
opipe_status opi_started(opipe_status status, opipe_request **out_request);
opipe_status opi_api_session_submit_wait(opi_session_object *session, uint32_t what,
                                         const opipe_submit_params *params, uint64_t timeout_ns,
                                         opipe_request **out_request, opipe_error *err);
opipe_status opi_api_session_flags_set(opi_session_object *session, opipe_error *err);
opipe_status opi_api_session_wait_room(opi_session_object *session, uint64_t timeout_ns,
                                       opipe_error *err);
opipe_status opi_api_session_drive(opi_session_object *session, uint32_t rank, uint64_t timeout_ns,
                                   opipe_error *err);
opipe_status opi_api_session_fd(opi_session_object *session, uint32_t rank, int32_t *out_fd,
                                opipe_error *err);
opipe_status opi_api_session_memory(opi_session_object *session, uint32_t rank,
                                    opipe_memory_info *io_info, opipe_error *err);
opipe_status opi_api_session_trace(opi_session_object *session, uint32_t format,
                                   opipe_write_fn write, void *ctx, opipe_error *err);
opipe_status opi_api_session_info(opi_session_object *session, opipe_session_info *io_info,
                                  opipe_error *err);
opipe_status opi_api_session_needs(opi_session_object *session, const char *name,
                                   uint32_t *out_needed, opipe_error *err);
/* generate.c */
opipe_status opi_generation_refuse(const opi_session_object *session, const char *call,
                                   opipe_error *err); /* requests of the host's own */
opipe_status opi_api_session_generate(opi_session_object *session,
                                      const opipe_generate_params *params,
                                      opipe_sequence **out_sequence, opipe_error *err);
opipe_status opi_api_session_generation(opi_session_object *session, opipe_generation_info *io_info,
                                        opipe_error *err);
opipe_status opi_api_sequence_append(opi_host_sequence *sequence,
                                     const opipe_generate_params *params, opipe_error *err);
opipe_status opi_api_sequence_fork(opi_host_sequence *sequence, const uint64_t *seed, void *ctx,
                                   opipe_sequence **out_sequence, opipe_error *err);
opipe_status opi_api_sequence_truncate(opi_host_sequence *sequence, uint32_t n_ids,
                                       opipe_error *err);
opipe_status opi_api_sequence_draft(opi_host_sequence *sequence, const uint32_t *ids,
                                    uint32_t n_ids, opipe_error *err);
opipe_status opi_api_sequence_cancel(opi_host_sequence *sequence, opipe_error *err);
opipe_status opi_api_sequence_wait(opi_host_sequence *sequence, uint32_t n_tokens,
                                   uint64_t timeout_ns, opipe_error *err);
opipe_status opi_api_sequence_info(opi_host_sequence *sequence, opipe_sequence_info *io_info,
                                   opipe_error *err);
opipe_status opi_api_sequence_ids(opi_host_sequence *sequence, uint32_t first, uint32_t n_ids,
                                  uint32_t *out_ids, opipe_error *err);
/* genai.c */
opipe_status opi_api_genai_describe(opi_context_object *context, const void *text, uint64_t n_bytes,
                                    const char *name, opipe_write_fn write, void *ctx,
                                    opipe_error *err);
/* state.c */
opipe_status opi_submit_to_state(opi_session_object *session, opipe_submit_params *params,
                                 opipe_request **out_request, opipe_error *err);
opipe_status opi_api_session_state_open(opi_session_object *session,
                                        const opipe_state_params *params, opipe_state **out_state,
                                        opipe_error *err);
opipe_status opi_api_state_reset(opi_stream *stream, opipe_error *err);
opipe_status opi_api_state_copy(opi_stream *stream, opipe_state *from, opipe_error *err);
opipe_status opi_api_state_get(opi_stream *stream, uint32_t index, opipe_state_info *io_info,
                               void *dst, uint64_t n_bytes, opipe_error *err);
opipe_status opi_api_session_train_step(opi_session_object *session,
                                        const opipe_submit_params *params,
                                        opipe_request **out_ticket, opipe_error *err);
opipe_status opi_api_session_flush(opi_session_object *session, opipe_error *err);
/* save_model.c: could the model be saved there? Between steps. */
opipe_status opi_try_save_model(const opi_session_object *session, opi_weights *weights,
                                const char *path, opipe_error *err);
/* train.c: runs between steps. Nothing is under way when it returns, until opi_train_go_on. */
opipe_status opi_session_rest(opi_session_object *session, opi_weights **out_weights,
                              opipe_error *err);
/* The same for calls that only read parameters: a session that has failed still has them. */
opipe_status opi_session_rest_to_read(opi_session_object *session, opi_weights **out_weights,
                                      opipe_error *err);
/* train.c: checks a submit's learning rate for any call: with its flag, in a struct that has it, in
 * a call that uses it, 0 to OPIPE_LR_MOST. given: the host's own struct, of its size. */
opipe_status opi_lr_check(const opipe_submit_params *given, const char *call, bool learns,
                          opipe_error *err);
opipe_status opi_api_session_evaluate(opi_session_object *session,
                                      const opipe_submit_params *params,
                                      opipe_request **out_request, opipe_error *err);
opipe_status opi_api_request_report(opi_request *request, opipe_train_report *io_report,
                                    opipe_error *err);
opipe_status opi_api_session_parameter(opi_session_object *session, uint32_t index,
                                       opipe_parameter_info *io_info, opipe_error *err);
opipe_status opi_api_session_get(opi_session_object *session, const char *name, uint32_t state,
                                 uint32_t version, void *dst, uint64_t n_bytes, opipe_error *err);
opipe_status opi_api_session_set(opi_session_object *session, const char *name, uint32_t state,
                                 uint32_t version, const void *src, uint64_t n_bytes,
                                 opipe_error *err);
opipe_status opi_api_session_save(opi_session_object *session, const char *path,
                                  const uint64_t *position, opipe_error *err);
opipe_status opi_api_session_load(opi_session_object *session, const char *path,
                                  uint64_t *out_position, opipe_error *err);
opipe_status opi_api_session_read(opi_session_object *session, const opipe_read_params *params,
                                  opipe_train_clock *io_clock, opipe_error *err);
opipe_status opi_api_session_clock(opi_session_object *session, opipe_train_clock *io_clock,
                                   opipe_error *err);
opipe_status opi_api_session_set_clock(opi_session_object *session, const opipe_train_clock *clock,
                                       opipe_error *err);
opipe_status opi_api_session_try_save(opi_session_object *session, uint32_t what, const char *path,
                                      opipe_error *err);
opipe_status opi_api_session_save_model(opi_session_object *session, const char *path,
                                        opipe_error *err);
opipe_status opi_api_session_save_gradients(opi_session_object *session, const char *path,
                                            opipe_error *err);
opipe_status opi_api_model_describe_training(opi_model_object *model,
                                             const opipe_train_options *options, uint32_t format,
                                             opipe_write_fn write, void *ctx, opipe_error *err);

opipe_status opi_api_schedule_list(opi_context_object *context, uint32_t format,
                                   opipe_write_fn write, void *ctx, opipe_error *err);
/* The host's costs, with its arrays borrowed; NULL: 1, 1, 1, 0. */
opipe_status opi_costs_from_host(const opipe_order_costs *given, const char *call, opi_costs *out,
                                 opipe_error *err);
opipe_status opi_api_order_make(opi_context_object *context, const opipe_order_params *params,
                                opipe_order **out_order, opipe_error *err);
opipe_status opi_api_order_read(opi_context_object *context, const void *text, uint64_t n_bytes,
                                uint32_t dialect, opipe_order **out_order, opipe_error *err);
opipe_status opi_api_order_info(opi_order_object *order, opipe_order_info *io_info,
                                opipe_error *err);
opipe_status opi_api_order_lower(opi_order_object *order, uint32_t receive_depth, uint32_t flags,
                                 opipe_order **out_order, opipe_error *err);
opipe_status opi_api_order_check(opi_order_object *order, uint32_t rule, opipe_error *err);
opipe_status opi_api_order_simulate(opi_order_object *order, const opipe_order_costs *costs,
                                    uint32_t format, opipe_write_fn write, void *ctx,
                                    opipe_error *err);
opipe_status opi_api_order_draw(opi_order_object *order, const opipe_order_costs *costs,
                                opipe_write_fn write, void *ctx, opipe_error *err);
opipe_status opi_api_order_write(opi_order_object *order, uint32_t format, uint32_t dialect,
                                 opipe_write_fn write, void *ctx, opipe_error *err);
/* simulate.c */
opipe_status opi_api_cluster_find(opi_context_object *context, const char *spec,
                                  opipe_write_fn write, void *ctx, opipe_error *err);
opipe_status opi_api_order_play(opi_order_object *order, const opipe_order_costs *costs,
                                const opipe_play_params *params, uint32_t format,
                                opipe_write_fn write, void *ctx, opipe_error *err);
opipe_status opi_api_plan_file_play(opi_context_object *context, const void *json, uint64_t n_bytes,
                                    const opipe_play_params *params, uint32_t format,
                                    opipe_write_fn write, void *ctx, opipe_error *err);
opipe_status opi_api_plan_play(opi_plan_object *plan, const opipe_play_params *params,
                               uint32_t format, opipe_write_fn write, void *ctx, opipe_error *err);
/* profile.c */
opipe_status opi_api_profile_of_model(opi_model_object *model, const opipe_profile_params *params,
                                      opipe_profile **out_profile, opipe_error *err);
opipe_status opi_api_profile_of_arch(opi_context_object *context, const char *arch,
                                     const opipe_profile_params *params,
                                     opipe_profile **out_profile, opipe_error *err);
opipe_status opi_api_profile_read(opi_context_object *context, const void *text, uint64_t n_bytes,
                                  const char *name, uint32_t samples, opipe_profile **out_profile,
                                  opipe_error *err);
opipe_status opi_api_profile_describe(opi_profile_object *profile, uint32_t format,
                                      opipe_write_fn write, void *ctx, opipe_error *err);
opipe_status opi_api_profile_info(opi_profile_object *profile, opipe_profile_info *io_info,
                                  opipe_error *err);
opipe_status opi_api_profile_layer(opi_profile_object *profile, uint32_t index, uint32_t samples,
                                   opipe_layer_info *io_info, opipe_error *err);
/* strategy.c */
opipe_status opi_api_strategy_make(opi_profile_object *profile, const opipe_strategy_params *params,
                                   opipe_strategy **out_strategy, opipe_error *err);
opipe_status opi_api_strategy_describe(opi_strategy_object *strategy, uint32_t format,
                                       opipe_write_fn write, void *ctx, opipe_error *err);
opipe_status opi_api_strategy_info(opi_strategy_object *strategy, opipe_strategy_info *io_info,
                                   opipe_error *err);
opipe_status opi_api_strategy_stage(opi_strategy_object *strategy, uint32_t index,
                                    opipe_strategy_stage_info *io_info, opipe_error *err);
opipe_status opi_api_strategy_play(opi_strategy_object *strategy, const opipe_play_params *params,
                                   uint32_t format, opipe_write_fn write, void *ctx,
                                   opipe_error *err);
opipe_status opi_api_strategy_plan(opi_strategy_object *strategy, opipe_model *model,
                                   const opipe_plan_params *params, opipe_plan **out_plan,
                                   opipe_error *err);
opipe_status opi_api_strategy_ranked(opi_strategy_object *strategy, uint32_t index,
                                     opipe_strategy **out_strategy, opipe_error *err);
opipe_status opi_api_plan_training(opi_plan_object *plan, opipe_train_options *io_options,
                                   opipe_error *err);
opipe_status opi_api_plan_tune(opi_plan_object *plan, const opipe_tuning_params *params,
                               opipe_plan **out_plan, opipe_error *err);
opipe_status opi_api_plans_compare(opi_context_object *context, const void *a, uint64_t a_bytes,
                                   const char *a_name, const void *b, uint64_t b_bytes,
                                   const char *b_name, uint32_t format, opipe_write_fn write,
                                   void *ctx, opipe_error *err);
/* session_team.c */
opipe_status opi_meeting_begin(opi_session_object *session, const opipe_session_params *params,
                               opipe_error *err);
/* Waits until all processes close the session, whose ranks work on meanwhile, or one is gone. A
 * session that has failed does not wait. */
void opi_meeting_part(opi_session_object *session);
void opi_meeting_end(opi_meeting *meeting); /* accepts one that has not begun */
/* The ranks of this process, where the host names none. */
opipe_status opi_meeting_share(const opi_session_object *session, opipe_error *err);
/* Can the transport join the team's processes? Errors: UNSUPPORTED, with machines and processes. */
opipe_status opi_team_check_transport(opi_team *team, const opipe_team_info *info,
                                      const opi_transport_ref *transport, opipe_error *err);
/* Tells all processes whether this one is ready (`own`), its plan, flags (OPIPE_SESSION_*) and its
 * ranks, and returns the answer of all; session->owners is known then. *out_threads: compute
 * threads of other processes that have the same cores. */
opipe_status opi_meeting_compare(const opi_session_object *session, uint32_t flags,
                                 opipe_status own, uint32_t *out_threads, opipe_error *err);
uint32_t opi_meeting_number(const opi_meeting *meeting); /* the same in all processes */
/* follow_repeat.c */
opipe_status opi_api_session_follow(opi_session_object *session, opipe_error *err);
/* Callbacks of opi_session_env; ctx: opi_meeting. */
opipe_status opi_meeting_agree(void *meeting, const char *what, opipe_status own, opipe_error *err);
opipe_status opi_meeting_check(void *meeting, opipe_error *err);
void opi_meeting_told(void *meeting, opi_tell_fn tell, void *tell_ctx);
opipe_status opi_meeting_box_open(void *meeting, uint64_t *io_key, void (*ring)(void *ring_ctx),
                                  void *ring_ctx, opi_box **out_box, opipe_error *err);
void opi_meeting_box_close(void *meeting, opi_box *box);
opipe_status opi_meeting_letter(void *meeting, const opi_envelope *letter, uint64_t n_bytes,
                                opipe_error *err);
opipe_status opi_meeting_letter_take(void *meeting, opi_box *box, void *out, uint64_t room,
                                     uint64_t *out_n, opipe_error *err);
/* A collective call of this session; params have all fields. */
opipe_status opi_meeting_gather(void *meeting, const opipe_gather_params *params, opipe_error *err);
opipe_status opi_meeting_alike(void *meeting, const opi_held_param *params, uint32_t n,
                               opipe_status own, opipe_error *err); /* session_alike.c */

/* team.c */
opipe_status opi_api_team_open(opi_context_object *context, const opipe_team_params *params,
                               opipe_team **out_team, opipe_error *err);
opipe_status opi_api_team_info(opi_team_object *team, opipe_team_info *io_info, opipe_error *err);
opipe_status opi_api_team_describe(opi_team_object *team, uint32_t format, opipe_write_fn write,
                                   void *ctx, opipe_error *err);
opipe_status opi_api_team_gather(opi_team_object *team, const opipe_gather_params *params,
                                 opipe_error *err);
opipe_status opi_api_team_check(opi_team_object *team, opipe_error *err);
opipe_status opi_api_team_moved(opi_team_object *team, uint64_t moves, const char *at,
                                opipe_error *err);
opipe_status opi_api_team_abort(opi_team_object *team, const char *reason, opipe_error *err);
opipe_status opi_api_team_stop(opi_team_object *team, uint32_t what, opipe_error *err);
opipe_status opi_api_team_step(opi_team_object *team, uint64_t step, uint32_t *out_what,
                               opipe_error *err);
/* plan_team.c */
opipe_status opi_api_plan_share(opi_model_object *model, const opipe_share_params *params,
                                opipe_plan **out_plan, opipe_error *err);
/* machine.c */
opipe_status opi_api_cluster_of_machine(opi_context_object *context,
                                        const opipe_machine_params *params, opipe_write_fn write,
                                        void *ctx, opipe_error *err);

#endif /* OPI_API_H */
