/* SPDX-License-Identifier: Apache-2.0 */
/* The application's interface: one exported function returns a table; the table makes contexts,
 * models, plans and sessions.
 *
 *   opipe_get_api -> context_create -> model_load -> model_bind -> plan_make -> session_open
 *                 -> session_submit, request_wait, ... or session_train_step, request_wait, ...
 *
 * Errors: every function that can fail returns opipe_status and fills a caller-owned opipe_error
 * (NULL allowed). INVALID names the broken rule, with both numbers; ABI reports a struct_size,
 * stride or version that does not fit; NOMEM; others where stated. Outputs are set only on success.
 * In a forked child every handle answers OPIPE_E_STATE "opened in another process".
 *
 * Structs: params and infos start with struct_size, as the caller compiled them. Arrays of structs
 * have a stride beside their count: the bytes from element to element, also as the caller compiled
 * them; a count without a stride is refused. TYPE_init() at the end sets both. Params are checked
 * whole: unknown flags and choices, reserved fields that are not 0, counts without a list, and
 * non-zero bytes beyond the fields this library knows are refused with the field's name. Infos are
 * filled in up to struct_size; nothing beyond it is read or written.
 *
 * Handles are numbers that are looked up, never addresses. NULL, a handle of another kind and a
 * value that never was a handle answer INVALID; a handle that was destroyed, closed or released
 * answers STATE, at any later time and on any thread. Functions without a status log the mistake
 * (in the log of the handle's context, else on standard error) and do nothing; they accept NULL and
 * do nothing in a forked child.
 *
 * Lifetimes: objects may be destroyed in any order, since each keeps what it needs: a bound model
 * keeps the loaded one, a plan its model, a session its plan, and all of them the context. Requests
 * end with their session. An object that is destroyed while calls are inside lives until the last
 * of them returns; session_close and request_release wait for those calls, so neither may be called
 * from a callback of one. Destroy functions are [control]. Memory that a parameter struct points to
 * is borrowed for the call unless stated. Text is handed out through a sink (opipe_write_fn), so
 * there is nothing to free.
 *
 * Floating point: every call computes with round to nearest, no flushing to zero and no traps,
 * whatever the calling thread has set. The thread's own environment, flags included, is restored
 * when the call returns and while callbacks run.
 *
 * Threads: see the tags in abi.h. Untagged functions are [any-thread] for models, plans and orders,
 * which do not change, and [control] for sessions.
 */
#ifndef OPIPE_HOST_H
#define OPIPE_HOST_H

#include <string.h>

#include "build.h"
#include "generate.h"
#include "models.h"
#include "planning.h"
#include "requests.h"
#include "simulate.h"
#include "state.h"
#include "team.h"
#include "train.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct opipe_context opipe_context;
typedef struct opipe_model opipe_model;
typedef struct opipe_session opipe_session;
typedef struct opipe_order opipe_order;

/* Cap on the bytes that all sessions of the context together may take of one device, e.g. "cpu"
 * index 0. Two budgets for one device are refused (INVALID). session_open looks the device up
 * (NOTFOUND), so its plugin may be registered after the context is created. */
typedef struct opipe_device_budget {
  const char *kind; /* plugin id */
  uint32_t index;
  uint32_t reserved;
  uint64_t memory_bytes;
} opipe_device_budget;

typedef struct opipe_context_params {
  uint32_t struct_size;
  uint32_t log_level; /* OPIPE_LOG_*: messages above it are dropped */
  const opipe_allocator
      *allocator; /* NULL: the system's. Copied; its ctx must outlive the context */
  void *log_ctx;
  /* NULL: errors and warnings go to stderr. [callback: any thread] */
  void (*log)(void *ctx, uint32_t level, const char *file, uint32_t line, const char *msg);
  const char *const *plugin_paths; /* files or directories searched first, in order; a file that
                                      is not a plugin for this library is an error */
  const opipe_device_budget *budgets;
  uint32_t n_plugin_paths;
  uint32_t n_budgets;
  uint32_t budgets_stride; /* bytes from budget to budget */
  uint32_t cores;          /* cores the context may use; 0: those this process is allowed */
  uint32_t flags;          /* OPIPE_CONTEXT_* */
  uint32_t reserved;       /* 0 */
} opipe_context_params;
/* ONLY_STATIC: searches and opens no file; only registered descriptors are used. */
enum { OPIPE_CONTEXT_ONLY_STATIC = 1u };

enum { OPIPE_FORMAT_TEXT = 0, OPIPE_FORMAT_JSON = 1 };

#if OPIPE_TARGET_MINOR >= 4
/* Kind of the file to be written. MODEL: another state of the model, which may replace its file. */
enum { OPIPE_TARGET_OTHER = 0, OPIPE_TARGET_MODEL = 1 };
#endif

/* ---- the table ---- */

typedef struct opipe_api {
  uint32_t struct_size;
  uint16_t abi_major;
  uint16_t abi_minor;
  const char *version; /* the library's, "MAJOR.MINOR.PATCH" */

  /* -- context -- */
  /* params NULL: no plugin paths, warnings to stderr, all cores. [any-thread] */
  opipe_status (*context_create)(const opipe_context_params *params, opipe_context **out_context,
                                 opipe_error *err);
  void (*context_destroy)(opipe_context *context); /* [control] */
  /* Adds a plugin that is linked into the host. Its descriptor must outlive the context. [control]
   */
  opipe_status (*context_register_static)(opipe_context *context, const opipe_plugin *plugin,
                                          opipe_error *err);
  /* Lists every plugin found and every candidate refused, with the reason. [control] */
  opipe_status (*context_plugins)(opipe_context *context, uint32_t format, opipe_write_fn write,
                                  void *ctx, opipe_error *err);

  /* -- models -- */
  /* Reads, checks and maps a file; weights stay in the file. Errors: IO, NOTFOUND, LIMIT (the
   * memory budget), UNSUPPORTED names node and operator. [any-thread] */
  opipe_status (*model_load)(opipe_context *context, const opipe_load_params *params,
                             opipe_model **out_model, opipe_error *err);
  void (*model_destroy)(opipe_model *model);
  /* Makes a bound model: every dimension has a number, constants are folded, patterns recognised.
   * Errors: INVALID names a dimension that is still free or contradicts another; UNSUPPORTED
   * reports all nodes that cannot run, or the input whose value is needed. [any-thread] */
  opipe_status (*model_bind)(opipe_model *model, const opipe_bind_options *options,
                             opipe_model **out_bound, opipe_error *err);
  opipe_status (*model_info)(opipe_model *model, opipe_model_info *io_info, opipe_error *err);
  /* Input or output `index`, in the file's order; OPIPE_E_NOTFOUND past the last. */
  opipe_status (*model_input)(opipe_model *model, uint32_t index, opipe_tensor_info *io_info,
                              opipe_error *err);
  opipe_status (*model_output)(opipe_model *model, uint32_t index, opipe_tensor_info *io_info,
                               opipe_error *err);
  /* Dimension `index` that was free before binding, and its number. */
  opipe_status (*model_dim)(opipe_model *model, uint32_t index, opipe_dim_info *io_info,
                            opipe_error *err);
  /* Writes inputs, outputs, dimensions, operators before and after binding, patterns, parameters,
   * ties and work. [any-thread] */
  opipe_status (*model_describe)(opipe_model *model, uint32_t format, opipe_write_fn write,
                                 void *ctx, opipe_error *err);

  /* -- plans -- */
  /* Cuts a bound model and proves the result. Errors: LIMIT says what does not fit, at which
   * stage and by how much. [any-thread] */
  opipe_status (*plan_make)(opipe_model *model, const opipe_plan_params *params,
                            opipe_plan **out_plan, opipe_error *err);
  /* Reads a plan (JSON) for `model`, unbound or bound, and proves it. A plan with another
   * fingerprint is refused, naming both. No plugin is asked: session_open checks the plan against
   * the devices and plugins that are there. */
  opipe_status (*plan_read)(opipe_model *model, const void *json, uint64_t n_bytes,
                            opipe_plan **out_plan, opipe_error *err);
  /* The plan as JSON: same plan, same bytes. */
  opipe_status (*plan_write)(opipe_plan *plan, opipe_write_fn write, void *ctx, opipe_error *err);
  /* Describes the plan for people, or for programs (OPIPE_FORMAT_JSON). */
  opipe_status (*plan_describe)(opipe_plan *plan, uint32_t format, opipe_write_fn write, void *ctx,
                                opipe_error *err);
  /* Writes the model file with the plan as IR-11 annotations; all other bytes survive. Sharding
   * specs say how tensor groups divide parameters into equal parts; what they cannot say is logged
   * by name. */
  opipe_status (*plan_annotate)(opipe_plan *plan, opipe_write_fn write, void *ctx,
                                opipe_error *err);
  opipe_status (*plan_info)(opipe_plan *plan, opipe_plan_info *io_info, opipe_error *err);
  opipe_status (*plan_memory)(opipe_plan *plan, uint32_t rank, opipe_memory_info *io_info,
                              opipe_error *err); /* predicted, or estimated: see flags */
  /* Tensors that cross stages, one call for each; OPIPE_E_NOTFOUND past the last. */
  opipe_status (*plan_cut_tensor)(opipe_plan *plan, uint32_t index, const char **out_name,
                                  uint32_t *out_src_stage, uint32_t *out_dst_stage,
                                  opipe_error *err);
  void (*plan_destroy)(opipe_plan *plan);

  /* -- sessions -- */
  /* Opens devices, packs weights, starts a thread per rank (OPIPE_THREADS_LIBRARY). params NULL:
   * all defaults. Errors: LIMIT (a cap, a budget), DEVICE. [any-thread] */
  opipe_status (*session_open)(opipe_context *context, opipe_plan *plan,
                               const opipe_session_params *params, opipe_session **out_session,
                               opipe_error *err);
  /* Cancels all requests in flight, joins threads, frees. Requests that were not released become
   * invalid. [control] */
  void (*session_close)(opipe_session *session);
  /* Starts a request. OPIPE_PENDING is above 0 but not success: nothing was started and
   * *out_request is NULL, because
   *   - max_in_flight requests are unfinished;
   *   - the shape is new, and all max_shapes compiled shapes are in use;
   *   - all bindings of the state are in use; or
   *   - a value that decides shapes is behind a `ready` flag that is not set yet. The flag must
   *     stay valid until the next submit, or until session_wait_room has answered OPIPE_OK.
   * Submit again after session_wait_room, or use session_submit_wait. A request that waits for any
   * other fence is accepted and held until the fence is set. A request of a new shape is compiled
   * first (cold). [any-thread] */
  opipe_status (*session_submit)(opipe_session *session, const opipe_submit_params *params,
                                 opipe_request **out_request, opipe_error *err);
  /* OK | PENDING | < 0: how the request failed. [any-thread] */
  opipe_status (*request_poll)(opipe_request *request, opipe_error *err);
  /* Blocks. After timeout_ns (UINT64_MAX: no limit) it returns OPIPE_E_TIMEOUT and the request
   * goes on. One waiter at a time. Errors: how the request failed; PEER: the session failed in
   * another request. */
  opipe_status (*request_wait)(opipe_request *request, uint64_t timeout_ns, opipe_error *err);
  /* The request finishes with OPIPE_E_CANCELLED: at once if no rank has begun it, else when the
   * ranks have passed it. A training step can be cancelled only before a rank has begun it (else
   * STATE); with double-buffered weights, only while it waits for fences and in a session that
   * has all ranks. [any-thread] */
  opipe_status (*request_cancel)(opipe_request *request, opipe_error *err);
  /* View of output `index` (in the model's order) of a finished request; valid until
   * request_release. [any-thread] */
  opipe_status (*request_output)(opipe_request *request, uint32_t index, opipe_tensor *out_tensor,
                                 opipe_error *err);
  /* Releases the handle. Waits for an unfinished request; with threads=HOST it never waits, and
   * an unfinished request keeps running, and keeps what it borrowed, until its on_done or at the
   * latest session_close. Accepts NULL. */
  void (*request_release)(opipe_request *request);
  /* threads=HOST: runs rank `rank` as far as it goes. If there is nothing to run it sleeps until
   * there is, at most timeout_ns (0: not at all). OPIPE_PENDING: nothing ran in that time.
   * Errors: how the session failed. [step:rank] */
  opipe_status (*session_drive)(opipe_session *session, uint32_t rank, uint64_t timeout_ns,
                                opipe_error *err);
  /* A file descriptor (eventfd) for poll, epoll, ... It belongs to the session, which closes it; it
   * is the same at every call and readable at first. Spurious readiness is possible.
   *   rank < n_ranks  threads=HOST: readable when session_drive(rank) may have something to do;
   *                   driving with timeout_ns 0 drains it. (Setting a host flag fence does not make
   *                   it readable: call session_flags_set, or drive, after setting one.)
   *   OPIPE_NONE      readable when a request has finished since it was last read; the host reads
   *                   it (8 bytes), then polls its requests.
   * Deadlines and the watchdog take effect only in a call of poll or wait at or after their time.
   * Errors: STATE (a rank of a session with threads of its own), INVALID, UNSUPPORTED (the
   * transport cannot notify), IO. [control] */
  opipe_status (*session_fd)(opipe_session *session, uint32_t rank, int32_t *out_fd,
                             opipe_error *err);
  opipe_status (*session_memory)(opipe_session *session, uint32_t rank, opipe_memory_info *io_info,
                                 opipe_error *err); /* measured */
  opipe_status (*session_info)(opipe_session *session, opipe_session_info *io_info,
                               opipe_error *err);

  /* -- training: sessions of plans with `train` -- */
  /* Starts one mini-batch: forward, backward, update. Inputs: every graph input and the labels of
   * the whole mini-batch, in the plan's shape or with other rows and tokens. The ticket is a
   * request with one output, "loss" (fp32, rank 0); request_report says more. Steps run in the
   * order of submission. With double-buffered weights a ticket finishes only with the next step
   * or a flush; request_wait on the newest ticket flushes, and so does a new shape.
   * OPIPE_PENDING: as for session_submit. A step begins when the fences of all its tensors,
   * labels included, are set; later steps wait behind it. Data that a program refuses (an index
   * out of range) ends the session: functions that only read its parameters (session_get, _save,
   * _save_model, _clock) then see them as the step before left them, or answer STATE if ranks
   * hold them at different steps. [any-thread] */
  opipe_status (*session_train_step)(opipe_session *session, const opipe_submit_params *params,
                                     opipe_request **out_ticket, opipe_error *err);
  /* Waits until no step is under way and runs what a double-buffered schedule has left over.
   * threads=HOST: does not wait; OPIPE_PENDING while there are steps to drive, and calls that
   * need a flush answer STATE until then. */
  opipe_status (*session_flush)(opipe_session *session, opipe_error *err);
  /* Runs the forward alone, with the parameters that earlier steps leave; work that a
   * double-buffered schedule has left over runs first. Does not block, and is accepted while
   * steps are under way, also in sessions that the host drives. Inputs: as for a step. Outputs:
   * "loss" and the tensors that the loss reads. Data that a program refuses fails only the
   * evaluation. OPIPE_PENDING: as for session_submit. */
  opipe_status (*session_evaluate)(opipe_session *session, const opipe_submit_params *params,
                                   opipe_request **out_request, opipe_error *err);
  /* The report of a finished ticket or evaluation. */
  opipe_status (*request_report)(opipe_request *request, opipe_train_report *io_report,
                                 opipe_error *err);
  /* Parameter `index`, in the plan's order; OPIPE_E_NOTFOUND past the last. */
  opipe_status (*session_parameter)(opipe_session *session, uint32_t index,
                                    opipe_parameter_info *io_info, opipe_error *err);
  /* session_get and session_set copy a parameter's state by initializer name, dense row-major.
   * version: 0 is the newest, 1 the one before it (double-buffered weights). session_set changes
   * every copy; a parameter that is not trained but was set is among those that session_save and
   * _save_model write.
   *   All functions that read or write parameters (from here to session_save_gradients, and
   * session_clock, _set_clock, _try_save, _read) run between steps, whatever other threads do:
   * they wait for the steps submitted before the call; later steps are accepted and begin after
   * it returns. Such calls run one after the other; one made from a callback of another answers
   * STATE. threads=HOST: STATE while there are steps to drive. [any-thread] */
  opipe_status (*session_get)(opipe_session *session, const char *name, uint32_t state,
                              uint32_t version, void *dst, uint64_t n_bytes, opipe_error *err);
  opipe_status (*session_set)(opipe_session *session, const char *name, uint32_t state,
                              uint32_t version, const void *src, uint64_t n_bytes,
                              opipe_error *err);
  /* Writes a checkpoint to the folder `path`: parameters, optimizer state, steps, and `position`
   * [OPIPE_POSITION] (numbers of the host's own; NULL: zeros). If the process dies meanwhile,
   * either the old checkpoint or the new one is there; after an error, the old one. INVALID: a
   * file of the model would be replaced. Flushes. [any-thread] */
  opipe_status (*session_save)(opipe_session *session, const char *path, const uint64_t *position,
                               opipe_error *err);
  /* Continues from a checkpoint that was made under any plan. out_position [OPIPE_POSITION] may
   * be NULL. Errors: INVALID names the tensor and both numbers (shapes, or hashes if it is
   * damaged); nothing has changed then. Flushes. [any-thread] */
  opipe_status (*session_load)(opipe_session *session, const char *path, uint64_t *out_position,
                               opipe_error *err);
  /* Writes the model file with the newest parameters to `path`, embedded or external as in the
   * original; all other bytes stay as they are. INVALID: weights that are not this model's
   * lie where its own would go. Flushes. [any-thread] */
  opipe_status (*session_save_model)(opipe_session *session, const char *path, opipe_error *err);
  /* Writes the gradients of the last step to one safetensors file. INVALID: `path` is one of the
   * model's files. [any-thread] */
  opipe_status (*session_save_gradients)(opipe_session *session, const char *path,
                                         opipe_error *err);
  /* Lists which initializers of a model bound with OPIPE_BIND_TRAIN are trained and which are
   * not, why, and which of these decisions are doubtful. A plan lists them as they were when it
   * was made.
   */
  opipe_status (*model_describe_training)(opipe_model *model, const opipe_train_options *options,
                                          uint32_t format, opipe_write_fn write, void *ctx,
                                          opipe_error *err);

  /* -- schedules without a model -- */
  /* Lists every schedule found, with its options. */
  opipe_status (*schedule_list)(opipe_context *context, uint32_t format, opipe_write_fn write,
                                void *ctx, opipe_error *err);
  /* Makes the compute order of a schedule. The order keeps its context. Errors: INVALID names a
   * constraint of the schedule, with both numbers. */
  opipe_status (*order_make)(opipe_context *context, const opipe_order_params *params,
                             opipe_order **out_order, opipe_error *err);
  /* Errors: INVALID gives row, column and text. */
  opipe_status (*order_read)(opipe_context *context, const void *text, uint64_t n_bytes,
                             uint32_t dialect, opipe_order **out_order, opipe_error *err);
  void (*order_destroy)(opipe_order *order); /* accepts NULL */
  opipe_status (*order_info)(opipe_order *order, opipe_order_info *io_info, opipe_error *err);
  /* Makes a new order with messages, reductions, frees and steps. receive_depth: how many
   * computes ahead of its consumer a receive is placed, 1: just before it; 0: as early as its
   * send. flags: OPIPE_LOWER_*. */
  opipe_status (*order_lower)(opipe_order *order, uint32_t receive_depth, uint32_t flags,
                              opipe_order **out_order, opipe_error *err);
  /* Proves the order under a transport's rule (OPIPE_RULE_* of transport.h); an order without
   * messages is lowered first. Errors: INVALID gives rank, step and action, and for a deadlock
   * the cycle. */
  opipe_status (*order_check)(opipe_order *order, uint32_t rule, opipe_error *err);
  /* Modelled times, as text, JSON or HTML: makespan, span (the largest of any rank: last end
   * minus first start), bubble (1 - busy / (ranks x makespan)), peak_stash by rank. costs NULL:
   * 1, 1, 1, 0. */
  opipe_status (*order_simulate)(opipe_order *order, const opipe_order_costs *costs,
                                 uint32_t format, opipe_write_fn write, void *ctx,
                                 opipe_error *err);
  /* Draws the modelled times as SVG. */
  opipe_status (*order_draw)(opipe_order *order, const opipe_order_costs *costs,
                             opipe_write_fn write, void *ctx, opipe_error *err);
  opipe_status (*order_write)(opipe_order *order, uint32_t format, uint32_t dialect,
                              opipe_write_fn write, void *ctx, opipe_error *err);
  /* -- training -- */
  /* Writes the last step of a training session, or the last request of another, one lane per
   * rank, measured and planned. format: OPIPE_TRACE_*. Programs are timed by the host, which
   * notices their end late, or with OPIPE_SESSION_TRACE by the devices; the output says for every
   * rank which it was. Training flushes; finished requests are waited for until all ranks have
   * passed them. In a team (1.5) all processes call it, and each writes all ranks. Errors: STATE:
   * nothing has run yet, or requests are unfinished. [control] */
  opipe_status (*session_trace)(opipe_session *session, uint32_t format, opipe_write_fn write,
                                void *ctx, opipe_error *err);
  /* Run between steps, as session_get does. session_set_clock ends a hold; for the loss scale see
   * opipe_train_clock. Errors: INVALID, with the number. [any-thread] */
  opipe_status (*session_clock)(opipe_session *session, opipe_train_clock *io_clock,
                                opipe_error *err);
  opipe_status (*session_set_clock)(opipe_session *session, const opipe_train_clock *clock,
                                    opipe_error *err);
  /* Tests whether session_save, _save_model or _save_gradients (what: OPIPE_SAVE_*) could write
   * to `path`, so that a host can find out before it trains. Removes whatever it creates. Errors:
   * as the function tested. */
  opipe_status (*session_try_save)(opipe_session *session, uint32_t what, const char *path,
                                   opipe_error *err);
#if OPIPE_TARGET_MINOR >= 2
  /* -- states (state.h); [any-thread] -- */
  /* Takes the memory of a stream. params NULL: the plan's capacities. Streams are assigned to
   * replicas in turn and stay there. Errors: LIMIT (a cap, a budget), STATE (the plan has no
   * pairs).
   */
  opipe_status (*session_state_open)(opipe_session *session, const opipe_state_params *params,
                                     opipe_state **out_state, opipe_error *err);
  /* Frees its memory, at the latest when its last request has passed. Accepts NULL. */
  void (*state_close)(opipe_state *state);
  /* Returns the state to how it was opened. Errors: STATE: requests of it are unfinished; wait
   * for them first. */
  opipe_status (*state_reset)(opipe_state *state, opipe_error *err);
  /* Copies `from`, another state of the session, to `state` (copying a state to itself changes
   * nothing). Errors: LIMIT, its capacity; STATE: requests of one of them are unfinished, or
   * `from` is broken; UNSUPPORTED: they are on replicas and this session does not have all ranks
   * of both. */
  opipe_status (*state_copy)(opipe_state *state, opipe_state *from, opipe_error *err);
  /* Pair `index` of the plan: fills io_info (may be NULL), then copies its content to dst
   * [n_bytes] (NULL: not copied), dense, row-major, host memory. Errors: NOTFOUND: past the last,
   * or the content is in another session; INVALID: n_bytes. For the content also STATE: empty,
   * broken, or requests of it are unfinished. */
  opipe_status (*state_get)(opipe_state *state, uint32_t index, opipe_state_info *io_info,
                            void *dst, uint64_t n_bytes, opipe_error *err);
#endif
#if OPIPE_TARGET_MINOR >= 3
  /* Sleeps until submit may find room: fewer than max_in_flight requests are unfinished, and if a
   * submit failed for its shape or for a flag, a request has finished since (or the flag is set).
   * Another thread may take the room first; submit then answers OPIPE_PENDING again. Errors:
   * TIMEOUT, after timeout_ns (UINT64_MAX: no limit); how the session failed; STATE, inside an
   * on_done. [any-thread] */
  opipe_status (*session_wait_room)(opipe_session *session, uint64_t timeout_ns, opipe_error *err);
  /* Makes a model from tables (build.h). Errors: as model_load; INVALID for anything that no file
   * could say. [any-thread] */
  opipe_status (*model_build)(opipe_context *context, const opipe_build_params *params,
                              opipe_model **out_model, opipe_error *err);
  /* Writes a model, as it was loaded or built (also if bound), to `path` as an ONNX file. A
   * loaded file keeps its own bytes, with copies of its external files beside it; parameters that
   * were passed in, and built models, have their content in the file, or in PATH.data if the file
   * would reach 2 GiB. A failed write leaves nothing. Errors: IO; INVALID: a file in use would be
   * overwritten. */
  opipe_status (*model_write)(opipe_model *model, const char *path, opipe_error *err);
  /* -- described clusters (simulate.h); [any-thread] -- */
  /* Writes the text of a cluster. spec: the name of an installed cluster, or a path; either may
   * be followed by ":nodes=N". Errors: NOTFOUND lists the names; IO; as plan_make for a cluster.
   */
  opipe_status (*cluster_find)(opipe_context *context, const char *spec, opipe_write_fn write,
                               void *ctx, opipe_error *err);
  /* Plays an order on a cluster; an order that is not lowered and proven is made so first. Times
   * are in milliseconds. format: OPIPE_PLAY_*. costs NULL: 1, 1, 1; its comm must be 0. Errors:
   * INVALID: the proof's answer, fewer devices than ranks, numbers out of range; LIMIT: too long
   * to draw. */
  opipe_status (*order_play)(opipe_order *order, const opipe_order_costs *costs,
                             const opipe_play_params *params, uint32_t format, opipe_write_fn write,
                             void *ctx, opipe_error *err);
  /* Plays the lists that sessions of the plan execute on the first devices of a cluster, with the
   * plan's own program times and bytes. Errors: as order_play; INVALID: flags that do not apply
   * to a plan's lists. */
  opipe_status (*plan_play)(opipe_plan *plan, const opipe_play_params *params, uint32_t format,
                            opipe_write_fn write, void *ctx, opipe_error *err);
  /* -- profiles and planners (planning.h); [any-thread] -- */
  /* Profiles the layers of a bound model. Errors: STATE: it is not bound, or not for training;
   * UNSUPPORTED: a described device to be measured, or nodes that change with the samples;
   * INVALID: numbers of samples that the batch cannot have; those of binding and of gradients. */
  opipe_status (*profile_of_model)(opipe_model *model, const opipe_profile_params *params,
                                   opipe_profile **out_profile, opipe_error *err);
  /* Profiles a described architecture, without a model file:
   * "gpt:layers=96,hidden=12288,heads=96,vocab=51200,seq=2048", also llama and bert (guide:
   * planners). Errors: INVALID names key, value and what is allowed. */
  opipe_status (*profile_of_arch)(opipe_context *context, const char *arch,
                                  const opipe_profile_params *params, opipe_profile **out_profile,
                                  opipe_error *err);
  /* Reads a profile: the JSON of profile_describe, or a file as PipeDream and DAPPLE write
   * theirs. samples: per micro-batch, which those files do not state; 0: 1. name: for messages;
   * NULL: "the profile". Errors: INVALID names layer or line, and field; UNSUPPORTED: another
   * version. */
  opipe_status (*profile_read)(opipe_context *context, const void *text, uint64_t n_bytes,
                               const char *name, uint32_t samples, opipe_profile **out_profile,
                               opipe_error *err);
  void (*profile_destroy)(opipe_profile *profile); /* accepts NULL */
  /* TEXT: a table. JSON: the file that profile_read takes; the same profile gives the same bytes.
   */
  opipe_status (*profile_describe)(opipe_profile *profile, uint32_t format, opipe_write_fn write,
                                   void *ctx, opipe_error *err);
  opipe_status (*profile_info)(opipe_profile *profile, opipe_profile_info *io_info,
                               opipe_error *err);
  /* Layer `index` for micro-batches of `samples` (at least 1). Errors: NOTFOUND past the last. */
  opipe_status (*profile_layer)(opipe_profile *profile, uint32_t index, uint32_t samples,
                                opipe_layer_info *io_info, opipe_error *err);
  /* Runs a planner. The strategy keeps its profile. Errors: NOTFOUND lists the planners; INVALID:
   * the parameters contradict; UNSUPPORTED: no schedule may be used; LIMIT: nothing fits; the
   * message says by how much and names the nearest change that would fit. */
  opipe_status (*strategy_make)(opipe_profile *profile, const opipe_strategy_params *params,
                                opipe_strategy **out_strategy, opipe_error *err);
  void (*strategy_destroy)(opipe_strategy *strategy); /* accepts NULL */
  opipe_status (*strategy_describe)(opipe_strategy *strategy, uint32_t format, opipe_write_fn write,
                                    void *ctx, opipe_error *err);
  opipe_status (*strategy_info)(opipe_strategy *strategy, opipe_strategy_info *io_info,
                                opipe_error *err);
  /* Errors: NOTFOUND past the last. */
  opipe_status (*strategy_stage)(opipe_strategy *strategy, uint32_t index,
                                 opipe_strategy_stage_info *io_info, opipe_error *err);
  /* Plays the strategy's schedule with its profile's times on the cluster of `params`. `stages`,
   * `tensor` and `copies` are the strategy's and must be 0. format: OPIPE_PLAY_*. Errors:
   * NOTFOUND: the schedule is not installed; as order_play. */
  opipe_status (*strategy_play)(opipe_strategy *strategy, const opipe_play_params *params,
                                uint32_t format, opipe_write_fn write, void *ctx, opipe_error *err);
  /* Makes a plan from the strategy for `model`, the one that its profile was made from or another
   * binding of it. Cut, replicas, schedule, micro-batches, recomputation and slices are the
   * strategy's and must be 0 in `params`; all else is as in plan_make. Errors: UNSUPPORTED: no
   * session executes it; INVALID: the model has no node for a layer; as plan_make. */
  opipe_status (*strategy_plan)(opipe_strategy *strategy, opipe_model *model,
                                const opipe_plan_params *params, opipe_plan **out_plan,
                                opipe_error *err);
  /* Compares the files of two plans or strategies: what differs and what each costs. Needs
   * neither model nor devices. TEXT also says which is faster per sample for the same work.
   * names: for the output. Errors: INVALID, UNSUPPORTED name file and member. */
  opipe_status (*plans_compare)(opipe_context *context, const void *a, uint64_t a_bytes,
                                const char *a_name, const void *b, uint64_t b_bytes,
                                const char *b_name, uint32_t format, opipe_write_fn write,
                                void *ctx, opipe_error *err);
  /* Writes this machine as the text of a cluster. params NULL: one device per core, declared
   * links, nominal rates. Errors: NOTFOUND: a backend or transport; those of opening devices.
   * [control] */
  opipe_status (*cluster_of_machine)(opipe_context *context, const opipe_machine_params *params,
                                     opipe_write_fn write, void *ctx, opipe_error *err);
  /* Strategy `index` of those that planner auto ranked; 0 is the best. Errors: NOTFOUND past the
   * last. [any-thread] */
  opipe_status (*strategy_ranked)(opipe_strategy *strategy, uint32_t index,
                                  opipe_strategy **out_strategy, opipe_error *err);
  /* -- devices that the host uses too -- */
  /* Sleeps until the request is queued: all its native `done` fences are set, and work that the
   * host gives its streams from then on runs after it, though devices may still be busy with it.
   * A request without device tensors or device fences is queued when it has finished. Errors:
   * TIMEOUT after timeout_ns (UINT64_MAX: no limit; 0: only asks); for a finished request as
   * request_poll. [any-thread] */
  opipe_status (*request_queued)(opipe_request *request, uint64_t timeout_ns, opipe_error *err);

  /* Measures the kernels that the plan's programs can choose, and makes a plan with a table of
   * the choices (planning.h); memory is recounted with them, decisions and hash stay the same.
   * Errors: INVALID: no rank is on such a device; UNSUPPORTED: the backend has no such choice;
   * LIMIT: the plan no longer fits. [control] */
  opipe_status (*plan_tune)(opipe_plan *plan, const opipe_tuning_params *params,
                            opipe_plan **out_plan, opipe_error *err);

  /* plan_play for the output of plan_write (n_bytes), without the model; the result is the same
   * to the byte. The file's predictions are taken as they are, its hash is checked. Errors:
   * NOTFOUND: a file from an older version, which lacks the times of its lists (plan_read and
   * plan_write add them); INVALID names the member; as plan_play. [any-thread] */
  opipe_status (*plan_file_play)(opipe_context *context, const void *json, uint64_t n_bytes,
                                 const opipe_play_params *params, uint32_t format,
                                 opipe_write_fn write, void *ctx, opipe_error *err);

  /* The training options stored in a plan, whoever made it: loss, optimizer, types, seed. Strings
   * and arrays belong to the plan. Passing the options unchanged to plan_make makes a plan that
   * trains the same. Errors: NOTFOUND: a plan for inference. [any-thread] */
  opipe_status (*plan_training)(opipe_plan *plan, opipe_train_options *io_options,
                                opipe_error *err);
#endif
#if OPIPE_TARGET_MINOR >= 4
  /* Checks whether writing a file to `path` would replace a file that the model was read from,
   * its own or one of its weights, also through links; `what` is OPIPE_TARGET_*. The library's own
   * writers call it. Errors: INVALID names the file. [any-thread] */
  opipe_status (*model_check_target)(opipe_model *model, const char *path, uint32_t what,
                                     opipe_error *err);
  /* As session_submit, _train_step or _evaluate (what: OPIPE_START_*), but sleeps until there is
   * room and until the flag of any value that decides shapes is set. On failure nothing was
   * started. threads=HOST: other threads must drive meanwhile. Errors: TIMEOUT, after timeout_ns
   * (UINT64_MAX: no limit); those of the function. [any-thread] */
  opipe_status (*session_submit_wait)(opipe_session *session, uint32_t what,
                                      const opipe_submit_params *params, uint64_t timeout_ns,
                                      opipe_request **out_request, opipe_error *err);
  /* Tells the session that host flags of `ready` fences were set, so that it looks at them now.
   * Otherwise it looks again after a sixteenth of the time waited so far, between 50 microseconds
   * and 5 milliseconds. threads=HOST: makes each rank's file descriptor readable and wakes
   * session_drive. [any-thread] */
  opipe_status (*session_flags_set)(opipe_session *session, opipe_error *err);
  /* Reads several tensors (as session_get) and the clock (io_clock may be NULL), all of the same
   * step, whatever other threads submit. If one tensor is refused nothing is written.
   * [any-thread] */
  opipe_status (*session_read)(opipe_session *session, const opipe_read_params *params,
                               opipe_train_clock *io_clock, opipe_error *err);
#endif
#if OPIPE_TARGET_MINOR >= 5
  /* -- teams (team.h) --
   * Sleeps until all processes of the job have joined. params NULL: the launcher's variables
   * decide; without them, a team of one. Errors: INVALID: params, variables or processes do not fit
   * each other, or the token is not the others'; NOTFOUND: no such launcher; UNSUPPORTED: no
   * library to prove a token; STATE: another job has the name; ABI; TIMEOUT names who has not
   * come; PEER. [any-thread] */
  opipe_status (*team_open)(opipe_context *context, const opipe_team_params *params,
                            opipe_team **out_team, opipe_error *err);
  /* Leaves the team; calls inside return OPIPE_E_CANCELLED. Others that wait for this process then
   * fail, so the last call before it should be collective. [control] */
  void (*team_close)(opipe_team *team);
  opipe_status (*team_info)(opipe_team *team, opipe_team_info *io_info, opipe_error *err);
  /* Who is in the team, and how far each has come as far as this process hears. [any-thread] */
  opipe_status (*team_describe)(opipe_team *team, uint32_t format, opipe_write_fn write, void *ctx,
                                opipe_error *err);
  /* A collective call: barrier, all-gather, broadcast, common refusal (team.h). Errors: STATE:
   * others are in calls of other names; LIMIT; TIMEOUT: the team has failed; PEER; a refusal's. */
  opipe_status (*team_gather)(opipe_team *team, const opipe_gather_params *params,
                              opipe_error *err);
  /* OPIPE_OK, or PEER with the process that failed and the reason; asks nobody. [any-thread] */
  opipe_status (*team_check)(opipe_team *team, opipe_error *err);
  /* Says how far this process has come: a count, and the work (at most 63 bytes; NULL: as before),
   * which messages about this process name. [any-thread] */
  opipe_status (*team_moved)(opipe_team *team, uint64_t moves, const char *at, opipe_error *err);
  /* The team fails on all processes, because of this one. [any-thread] */
  opipe_status (*team_abort)(opipe_team *team, const char *reason, opipe_error *err);
  /* Asks that all do `what` (not 0) before one and the same step. [any-thread] */
  opipe_status (*team_stop)(opipe_team *team, uint32_t what, opipe_error *err);
  /* Every process calls it before each step; steps rise, numbered alike everywhere. *out_what: what
   * all do before this step, or 0. Waits only for an agreement. Errors: INVALID; PEER. */
  opipe_status (*team_step)(opipe_team *team, uint64_t step, uint32_t *out_what, opipe_error *err);
  /* Collective, in the order of plan_make's calls: gives all processes the plan that process 0 has
   * made (from a file, a strategy), each for its own model, or process 0's refusal. Errors: as
   * plan_read, the same for all; PEER. */
  opipe_status (*plan_share)(opipe_model *model, const opipe_share_params *params,
                             opipe_plan **out_plan, opipe_error *err);
  /* *out_needed 1: a rank here reads input (or labels) `name`, in the plan's own shape, or its
   * value decides shapes; 0: `data` of its tensor may be NULL, its shape must be given. Errors:
   * NOTFOUND. [any-thread] */
  opipe_status (*session_needs)(opipe_session *session, const char *name, uint32_t *out_needed,
                                opipe_error *err);
  /* In a process other than 0 of a team, in a session with OPIPE_SESSION_FOLLOWED: repeats the
   * calls that process 0 makes on it, and returns OPIPE_OK when process 0 closes it; close it then,
   * too. Errors: INVALID: no such session; STATE: the session has failed, or what process 0 could
   * do failed here, which fails it; PEER: the team has failed; CANCELLED. [control] */
  opipe_status (*session_follow)(opipe_session *session, opipe_error *err);
  /* -- generation (generate.h): sessions of plans with `generation`; [any-thread] --
   * Opens a sequence and begins its first turn. Its callbacks may be called before this returns.
   * Errors: INVALID: no ids, an id outside the vocabulary, sampling by key and value; LIMIT, with
   * both numbers: the prompt and one more id exceed the context or all pages, or too many sequences
   * are open; STATE: the plan has no generation. */
  opipe_status (*session_generate)(opipe_session *session, const opipe_generate_params *params,
                                   opipe_sequence **out_sequence, opipe_error *err);
  opipe_status (*session_generation)(opipe_session *session, opipe_generation_info *io_info,
                                     opipe_error *err);
  /* A further turn of an idle sequence: params->ids go behind its ids, callbacks and deadline take
   * the place of the earlier ones. Errors: as session_generate; STATE: a turn is under way. */
  opipe_status (*sequence_append)(opipe_sequence *sequence, const opipe_generate_params *params,
                                  opipe_error *err);
  /* Opens another sequence with the same ids, turn and callbacks, which goes on by itself: with the
   * next branch number (seed NULL), or as branch 0 of *seed. ctx: of its callbacks. Never waits:
   * rows of the sequence that are under way are computed again. Errors: LIMIT: too many are open.
   */
  opipe_status (*sequence_fork)(opipe_sequence *sequence, const uint64_t *seed, void *ctx,
                                opipe_sequence **out_sequence, opipe_error *err);
  /* Leaves the first n_ids, at least 1, of an idle sequence. Errors: INVALID, with both numbers;
   * STATE: a turn is under way. */
  opipe_status (*sequence_truncate)(opipe_sequence *sequence, uint32_t n_ids, opipe_error *err);
  /* Ids that may come next: one pass computes them all, and as many are kept as are the tokens that
   * are sampled anyway. Counts once; a session whose plan has drafts makes its own otherwise.
   * Errors: LIMIT: more than the plan's drafts; INVALID; STATE: its rows are under way. */
  opipe_status (*sequence_draft)(opipe_sequence *sequence, const uint32_t *ids, uint32_t n_ids,
                                 opipe_error *err);
  /* Ends the turn, if there is one; the ids so far stay. Never waits: while callbacks run, it ends
   * when they have returned (generate.h). */
  opipe_status (*sequence_cancel)(opipe_sequence *sequence, opipe_error *err);
  /* Sleeps until the latest answer has n_tokens (UINT32_MAX: all), or the turn has ended. Errors:
   * TIMEOUT after timeout_ns (UINT64_MAX: no limit), the turn goes on; if it ended with fewer
   * tokens, how it failed, or CANCELLED. threads=HOST: other threads must drive meanwhile. */
  opipe_status (*sequence_wait)(opipe_sequence *sequence, uint32_t n_tokens, uint64_t timeout_ns,
                                opipe_error *err);
  opipe_status (*sequence_info)(opipe_sequence *sequence, opipe_sequence_info *io_info,
                                opipe_error *err);
  /* Copies the ids from position `first` on to out_ids [n_ids]. Errors: INVALID: it has not that
   * many. */
  opipe_status (*sequence_ids)(opipe_sequence *sequence, uint32_t first, uint32_t n_ids,
                               uint32_t *out_ids, opipe_error *err);
  /* Ends its turn and gives its handle back; calls inside return. Waits for callbacks that run,
   * except inside one (generate.h). Accepts NULL. */
  void (*sequence_release)(opipe_sequence *sequence);
  /* Reads the text of a genai_config.json, of a folder of ONNX Runtime GenAI, and writes it as JSON
   * with every default and every name by layer: "files" below the folder, "layers", "context",
   * "vocab", "input_ids", ..., "past_keys", ..., and "sampling", which session_generate takes as it
   * is. name: for messages; NULL: "genai_config.json". Errors: LIMIT: depth or size; INVALID names
   * the member; UNSUPPORTED: another kind of model, or of search. [any-thread] */
  opipe_status (*genai_describe)(opipe_context *context, const void *text, uint64_t n_bytes,
                                 const char *name, opipe_write_fn write, void *ctx,
                                 opipe_error *err);
#endif
} opipe_api;

#ifndef OPIPE_CDEF
/* TYPE_init(): initialised structs. */
#include "beginnings.h"
#endif

/* ---- entry point ---- */

/* The ABI that a host was compiled with. */
typedef struct opipe_view {
  uint32_t struct_size;
  uint16_t abi_major;
  uint16_t abi_minor;              /* lowest minor of the table that the host accepts */
  const opipe_struct_row *structs; /* [n_structs] layout fingerprints; NULL: not checked (hosts
                                      that are not compiled from these headers) */
  uint32_t n_structs;
  uint32_t struct_row_bytes; /* sizeof(opipe_struct_row) */
} opipe_view;

#include "frozen/host.h"
#ifndef OPIPE_CDEF
static const opipe_struct_row opipe_rows_of_host[] OPIPE_UNUSED = {
    OPIPE_ROWS_ABI,      OPIPE_ROWS_TYPES,
    OPIPE_ROWS_TRAIN,    OPIPE_ROWS_STATE,
    OPIPE_ROWS_MODELS,   OPIPE_ROWS_BUILD,
    OPIPE_ROWS_SIMULATE, OPIPE_ROWS_PLANNING,
    OPIPE_ROWS_REQUESTS, OPIPE_ROWS_HOST OPIPE_ROWS_TEAM OPIPE_ROWS_GENERATE};
static const opipe_view opipe_view_of_host OPIPE_UNUSED = {
    (uint32_t)sizeof(opipe_view),
    OPIPE_ABI_MAJOR,
    OPIPE_TARGET_MINOR,
    opipe_rows_of_host,
    (uint32_t)(sizeof opipe_rows_of_host / sizeof(opipe_struct_row)),
    (uint32_t)sizeof(opipe_struct_row)};
/* For this compilation unit: opipe_get_api(OPIPE_VIEW, &api, &err). */
#define OPIPE_VIEW (&opipe_view_of_host)
#endif

/* The only exported function. Errors: OPIPE_E_ABI names both versions and which side to change,
 * or the struct whose layout differs. [any-thread] */
OPIPE_EXPORT opipe_status opipe_get_api(const opipe_view *view, const opipe_api **out_api,
                                        opipe_error *err);
typedef opipe_status (*opipe_get_api_fn)(const opipe_view *view, const opipe_api **out_api,
                                         opipe_error *err);

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_HOST_H */
