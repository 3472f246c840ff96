/* SPDX-License-Identifier: Apache-2.0 */
/* Handles behind the host's table. Each begins with a head that tells what it is and which process
 * made it; objects that others need are kept by counted references, so that the order in which a
 * host destroys them cannot break what is left.
 */
#ifndef OPI_API_H
#define OPI_API_H

#include <opipe/host.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "abi/registry/registry.h"
#include "partition/make.h"
#include "partition/schedule/order.h"
#include "runtime/budget.h"
#include "runtime/handles.h"
#include "runtime/session.h"
#include "runtime/train/train.h"

typedef struct opi_handle {
  uint32_t magic; /* OPI_MAGIC_* while alive, 0 once destroyed */
  pid_t pid;
  atomic_uint refs;
} opi_handle;

enum {
  OPI_MAGIC_CONTEXT = 0x43504f31,
  OPI_MAGIC_MODEL = 0x4d504f31,
  OPI_MAGIC_PLAN = 0x50504f31,
  OPI_MAGIC_SESSION = 0x53504f31,
  OPI_MAGIC_ORDER = 0x4f504f31
};

struct opipe_context {
  opi_handle head;
  opipe_allocator allocator, host_allocator; /* ours, by way of which the host's is called */
  opi_logger logger;
  void *host_log_ctx;
  void (*host_log)(void *ctx, uint32_t level, const char *file, uint32_t line, const char *msg);
  opi_registry *registry;
  opi_budget *budget;
  opi_evaluator *evaluator; /* made when first needed, under lock */
  opi_plugins plugins;
  pthread_mutex_t lock;
  uint32_t cores;
};

struct opipe_model {
  opi_handle head;
  opipe_context *context;
  opipe_model
      *unbound;     /* bound models: the model that they are made from (a reference); else NULL */
  opi_model *file;  /* owned by the unbound model */
  opi_bound *bound; /* NULL: unbound */
  opi_arena arena;  /* options below */
  opi_bind_options options; /* as bound: all dims, pins, barriers, flags */
};

struct opipe_plan {
  opi_handle head;
  opipe_model *model; /* a reference */
  opi_plan *plan;
};

struct opipe_session {
  opi_handle head;
  opipe_plan *plan; /* a reference */
  opi_session *session;
  opi_backend_ref *backends; /* [n_ranks] */
  uint32_t n_ranks;
};

struct opipe_order {
  opi_handle head;
  opipe_context *context; /* a reference */
  opi_order *order;
};

/* Checks a handle before anything else: kind, life, process. `what` names it in the message. */
opipe_status opi_handle_check(const opi_handle *handle, uint32_t magic, const char *what,
                              opipe_error *err);
void opi_handle_init(opi_handle *handle, uint32_t magic);
/* True when the last reference is gone. */
bool opi_handle_drop(opi_handle *handle);

void opi_model_unref(opipe_model *model);
void opi_plan_unref(opipe_plan *plan);
/* The constant folder of the context: stands on backend "cpu". */
opipe_status opi_context_evaluator(opipe_context *context, const opi_evaluator **out_evaluator,
                                   opipe_error *err);
uint64_t opi_now_ns(void);
opipe_status opi_session_check_handle(const opipe_session *session, opipe_error *err);
/* The host's options as a plan's spec; globs in `arena`, all strings borrowed. */
opipe_status opi_train_options_read(const opipe_train_options *options, opi_arena *arena,
                                    opi_train_spec *out_spec, opipe_error *err);

/* The table's functions, by file. */
opipe_status opi_api_context_create(const opipe_context_params *params, opipe_context **out_context,
                                    opipe_error *err);
void opi_api_context_destroy(opipe_context *context);
opipe_status opi_api_context_register_static(opipe_context *context, const opipe_plugin *plugin,
                                             opipe_error *err);
opipe_status opi_api_context_plugins(opipe_context *context, uint32_t format, opipe_write_fn write,
                                     void *ctx, opipe_error *err);

opipe_status opi_api_model_load(opipe_context *context, const opipe_load_params *params,
                                opipe_model **out_model, opipe_error *err);
void opi_api_model_destroy(opipe_model *model);
opipe_status opi_api_model_bind(opipe_model *model, const opipe_bind_options *options,
                                opipe_model **out_bound, opipe_error *err);
opipe_status opi_api_model_info(opipe_model *model, opipe_model_info *io_info, opipe_error *err);
opipe_status opi_api_model_input(opipe_model *model, uint32_t index, opipe_tensor_info *io_info,
                                 opipe_error *err);
opipe_status opi_api_model_output(opipe_model *model, uint32_t index, opipe_tensor_info *io_info,
                                  opipe_error *err);
opipe_status opi_api_model_dim(opipe_model *model, uint32_t index, opipe_dim_info *io_info,
                               opipe_error *err);
opipe_status opi_api_model_describe(opipe_model *model, uint32_t format, opipe_write_fn write,
                                    void *ctx, opipe_error *err);

opipe_status opi_api_plan_make(opipe_model *model, const opipe_plan_params *params,
                               opipe_plan **out_plan, opipe_error *err);
opipe_status opi_api_plan_read(opipe_model *model, const void *json, uint64_t n_bytes,
                               opipe_plan **out_plan, opipe_error *err);
opipe_status opi_api_plan_write(opipe_plan *plan, opipe_write_fn write, void *ctx,
                                opipe_error *err);
opipe_status opi_api_plan_describe(opipe_plan *plan, uint32_t format, opipe_write_fn write,
                                   void *ctx, opipe_error *err);
opipe_status opi_api_plan_annotate(opipe_plan *plan, opipe_write_fn write, void *ctx,
                                   opipe_error *err);
opipe_status opi_api_plan_info(opipe_plan *plan, opipe_plan_info *io_info, opipe_error *err);
opipe_status opi_api_plan_memory(opipe_plan *plan, uint32_t rank, opipe_memory_info *io_info,
                                 opipe_error *err);
opipe_status opi_api_plan_cut_tensor(opipe_plan *plan, uint32_t index, const char **out_name,
                                     uint32_t *out_src_stage, uint32_t *out_dst_stage,
                                     opipe_error *err);
void opi_api_plan_destroy(opipe_plan *plan);

opipe_status opi_api_session_open(opipe_context *context, opipe_plan *plan,
                                  const opipe_session_params *params, opipe_session **out_session,
                                  opipe_error *err);
void opi_api_session_close(opipe_session *session);
opipe_status opi_api_session_submit(opipe_session *session, const opipe_submit_params *params,
                                    opipe_request **out_request, opipe_error *err);
opipe_status opi_api_request_poll(opipe_request *request, opipe_error *err);
opipe_status opi_api_request_wait(opipe_request *request, uint64_t timeout_ns, opipe_error *err);
opipe_status opi_api_request_cancel(opipe_request *request, opipe_error *err);
opipe_status opi_api_request_output(opipe_request *request, uint32_t index,
                                    opipe_tensor *out_tensor, opipe_error *err);
void opi_api_request_release(opipe_request *request);
opipe_status opi_api_session_drive(opipe_session *session, uint32_t rank, uint64_t timeout_ns,
                                   opipe_error *err);
opipe_status opi_api_session_memory(opipe_session *session, uint32_t rank,
                                    opipe_memory_info *io_info, opipe_error *err);
opipe_status opi_api_session_info(opipe_session *session, opipe_session_info *io_info,
                                  opipe_error *err);
opipe_status opi_api_session_train_step(opipe_session *session, const opipe_submit_params *params,
                                        opipe_request **out_ticket, opipe_error *err);
opipe_status opi_api_session_flush(opipe_session *session, opipe_error *err);
opipe_status opi_api_session_evaluate(opipe_session *session, const opipe_submit_params *params,
                                      opipe_request **out_request, opipe_error *err);
opipe_status opi_api_request_report(opipe_request *request, opipe_train_report *io_report,
                                    opipe_error *err);
opipe_status opi_api_session_parameter(opipe_session *session, uint32_t index,
                                       opipe_parameter_info *io_info, opipe_error *err);
opipe_status opi_api_session_get(opipe_session *session, const char *name, uint32_t state,
                                 uint32_t version, void *dst, uint64_t n_bytes, opipe_error *err);
opipe_status opi_api_session_set(opipe_session *session, const char *name, uint32_t state,
                                 uint32_t version, const void *src, uint64_t n_bytes,
                                 opipe_error *err);
opipe_status opi_api_session_save(opipe_session *session, const char *path,
                                  const uint64_t *position, opipe_error *err);
opipe_status opi_api_session_load(opipe_session *session, const char *path, uint64_t *out_position,
                                  opipe_error *err);
opipe_status opi_api_session_clock(opipe_session *session, opipe_train_clock *io_clock,
                                   opipe_error *err);
opipe_status opi_api_session_set_clock(opipe_session *session, const opipe_train_clock *clock,
                                       opipe_error *err);
opipe_status opi_api_session_try_save(opipe_session *session, uint32_t what, const char *path,
                                      opipe_error *err);
opipe_status opi_api_session_trace(opipe_session *session, uint32_t format, opipe_write_fn write,
                                   void *ctx, opipe_error *err);
opipe_status opi_api_session_save_model(opipe_session *session, const char *path, opipe_error *err);
opipe_status opi_api_session_save_gradients(opipe_session *session, const char *path,
                                            opipe_error *err);
opipe_status opi_api_model_describe_training(opipe_model *model, const opipe_train_options *options,
                                             uint32_t format, opipe_write_fn write, void *ctx,
                                             opipe_error *err);

opipe_status opi_api_schedule_list(opipe_context *context, uint32_t format, opipe_write_fn write,
                                   void *ctx, opipe_error *err);
/* Costs as the host gives them, its arrays borrowed; NULL: 1, 1, 1, 0. */
opipe_status opi_costs_from_host(const opipe_order_costs *costs, opi_costs *out, opipe_error *err);
opipe_status opi_api_order_make(opipe_context *context, const opipe_order_params *params,
                                opipe_order **out_order, opipe_error *err);
opipe_status opi_api_order_read(opipe_context *context, const void *text, uint64_t n_bytes,
                                uint32_t dialect, opipe_order **out_order, opipe_error *err);
void opi_api_order_destroy(opipe_order *order);
opipe_status opi_api_order_info(opipe_order *order, opipe_order_info *io_info, opipe_error *err);
opipe_status opi_api_order_lower(opipe_order *order, uint32_t receive_depth, uint32_t flags,
                                 opipe_order **out_order, opipe_error *err);
opipe_status opi_api_order_check(opipe_order *order, uint32_t rule, opipe_error *err);
opipe_status opi_api_order_simulate(opipe_order *order, const opipe_order_costs *costs,
                                    uint32_t format, opipe_write_fn write, void *ctx,
                                    opipe_error *err);
opipe_status opi_api_order_draw(opipe_order *order, const opipe_order_costs *costs,
                                opipe_write_fn write, void *ctx, opipe_error *err);
opipe_status opi_api_order_write(opipe_order *order, uint32_t format, uint32_t dialect,
                                 opipe_write_fn write, void *ctx, opipe_error *err);

#endif /* OPI_API_H */
