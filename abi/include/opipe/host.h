/* SPDX-License-Identifier: Apache-2.0 */
/* What applications call: one exported function gives a table; the table makes contexts, models,
 * plans and sessions.
 *
 *   opipe_get_api -> context_create -> model_load -> model_bind -> plan_make -> session_open
 *                 -> session_submit, request_wait, ... or session_train_step, request_wait, ...
 *
 * Errors: every function that can fail returns opipe_status and fills a caller-owned opipe_error
 * (NULL allowed): INVALID names what breaks a rule, with both numbers; ABI a struct_size, stride or
 * version that does not fit; NOMEM; others where stated. Outputs are set only on success. In a
 * forked child every handle answers OPIPE_E_STATE "opened in another process".
 *
 * Structs: params and infos start with struct_size, as the caller compiled them; arrays of structs
 * have a stride beside their count, the bytes from element to element, also as the caller compiled
 * them: a count without a stride is refused. TYPE_init() at the end sets both. What the caller
 * fills in is checked whole: unknown flags and choices, reserved fields that are not 0, counts
 * without a list, and what the caller's struct has beyond this library's and is not 0 are refused
 * with the field's name. Info structs are filled in as far as struct_size says, and neither read
 * nor written behind it.
 *
 * Handles are numbers that are looked up, never addresses: NULL, a handle of another kind and what
 * never was one answer INVALID; one that was destroyed, closed or released before answers STATE,
 * whenever that comes and in whatever thread. The functions without a status log it (in the log of
 * the context that the handle belongs to, else on standard error) and do nothing; they accept NULL,
 * and do nothing in a forked child.
 *
 * Lifetimes: objects may be destroyed in any order. What others need stays until they are gone: a
 * bound model keeps the loaded one, a plan its model, a session its plan, all of them the context.
 * Requests end with their session. An object that is destroyed while calls are inside ends with the
 * last of these; session_close and request_release wait for them, so neither may be called from a
 * callback of such a call. Destroy functions are [control]. What a parameter struct points to is
 * borrowed for the call unless stated. Text is handed out through a sink (opipe_write_fn), so
 * nothing needs freeing.
 *
 * Floating point: every call computes with round to nearest, no flushing to zero and no traps,
 * whatever the calling thread has set; it finds its own environment again, flags included, when the
 * call returns and in its callbacks.
 *
 * Threads: tags of abi.h. A function without one is [any-thread] for models, plans and orders,
 * which do not change, and [control] for sessions.
 */
#ifndef OPIPE_HOST_H
#define OPIPE_HOST_H

#include <string.h>

#include "build.h"
#include "models.h"
#include "planning.h"
#include "requests.h"
#include "simulate.h"
#include "state.h"
#include "train.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct opipe_context opipe_context;
typedef struct opipe_model opipe_model;
typedef struct opipe_plan opipe_plan;
typedef struct opipe_session opipe_session;
typedef struct opipe_order opipe_order;

/* ---- context ---- */

/* A cap on what all sessions of the context together may take of one device ("cpu" index 0, ...);
 * two for one device are refused (INVALID).
 * session_open asks whether there is one (NOTFOUND): its plugin may be registered until then. */
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
  const char *const *plugin_paths; /* files or directories searched first, in order; a file that is
                                      no plugin for this library is an error */
  const opipe_device_budget *budgets;
  uint32_t n_plugin_paths;
  uint32_t n_budgets;
  uint32_t budgets_stride; /* bytes from budget to budget */
  uint32_t cores;          /* cores the context may use; 0: those this process is allowed */
  uint32_t flags;          /* OPIPE_CONTEXT_* */
  uint32_t reserved;       /* 0 */
} opipe_context_params;
/* ONLY_STATIC: no file is searched or opened, only registered descriptors are used. */
enum { OPIPE_CONTEXT_ONLY_STATIC = 1u };

enum { OPIPE_FORMAT_TEXT = 0, OPIPE_FORMAT_JSON = 1 };

#if OPIPE_TARGET_MINOR >= 4
/* What is to be written: MODEL, another state of the model, which may replace its own file. */
enum { OPIPE_TARGET_OTHER = 0, OPIPE_TARGET_MODEL = 1 };
#endif

/* ---- plans ---- */

enum { OPIPE_COST_RATES = 0, OPIPE_COST_MEASURED = 1 };

typedef struct opipe_plan_params {
  uint32_t struct_size;
  uint32_t n_stages; /* 0: as many as there are devices, or 1 */
  const opipe_device_choice
      *devices; /* one per rank in order; fewer than ranks: the last repeats; none: "cpu" */
  uint32_t n_devices;
  uint32_t devices_stride; /* bytes from device to device */
  uint32_t n_microbatches; /* of a whole request; training: of the whole mini-batch, over all
                              replicas; 0: 1 */
  uint32_t replicas;       /* data-parallel copies of the whole pipeline, which share out the micro-
                              batches, or where inference has fewer take requests in turn; 0: 1 */
  const char *schedule;    /* "gpipe", "name:key=value,..."; NULL: "gpipe" */
  const char *cut; /* "t1,t2:c1+c2;t3": tensors by boundary, for whom; '\' quotes; NULL: chosen */
  const char *batch_dim; /* the free dimensions that micro-batches split, "a" or "a,b", all of one
                            length; NULL: the first dimensions of all inputs that have as many rows
                            as the first input, as far as the graph carries them */
  uint64_t memory_bytes; /* cap of every device that has none of its own; 0: none */
  uint32_t depth;        /* slots of a boundary tensor, 0: 2; more where it skips stages */
  uint32_t cost;         /* OPIPE_COST_* */
  uint32_t flags;        /* OPIPE_PLAN_* */
  uint32_t n_ranks;      /* 0: as the schedule's layout needs */
  const char *transport; /* "id" or "id:key=value,...", NULL: "local" */
  const opipe_train_options *train; /* a plan for training, of a model that was bound with
                                       OPIPE_BIND_TRAIN; NULL: for inference */
  const opipe_order_costs *costs;   /* milliseconds of the stages, in place of what nodes would
                                       cost; comm 0: the transport says it. NULL: none. No cut */
  /* [n_stage_replicas] Replicas of every stage, or rank of the schedule, on ranks of their own,
   * which cut each micro-batch between them. For schedules with one replica of each stage. 0:
   * `replicas` holds. Plans for inference (which up to 1.2 took 1 each alone) keep no states. */
  const uint32_t *stage_replicas;
  uint32_t n_stage_replicas;
  uint32_t reserved; /* 0 */
#if OPIPE_TARGET_MINOR >= 1
  const opipe_device_description *descriptions; /* of `devices`, in place of asking; or NULL */
  uint32_t n_descriptions, descriptions_stride; /* 0 or n_devices; bytes from one to the next */
  const opipe_link_description *link; /* of `transport`, in place of asking its plugin; or NULL */
  /* All that as a text (guide: clusters), borrowed, or NULL; with a link not beside transport. */
  const void *cluster;
  uint64_t cluster_bytes;
  const char *cluster_name; /* in messages; NULL: "the cluster" */
#endif
#if OPIPE_TARGET_MINOR >= 2
  const opipe_state_pair *states; /* [n_states] what streams keep (state.h); inference, requests of
                                     one micro-batch, no token slices */
  uint32_t n_states, states_stride; /* bytes from pair to pair */
  uint32_t n_streams; /* whose states the plan's bytes count and its caps hold; 0: none */
  uint32_t reserved2; /* 0 */
#endif
} opipe_plan_params;
enum { OPIPE_PLAN_IGNORE_ANNOTATIONS = 1u, OPIPE_PLAN_IMPROVE = 2u /* 1.3: search:from=NAME */ };

typedef struct opipe_plan_info {
  uint32_t struct_size;
  uint32_t n_ranks;
  uint32_t n_stages;
  uint32_t n_microbatches;
  double request_ns;  /* simulated time of one request, or mini-batch, alone */
  double interval_ns; /* simulated time between requests of a stream, or mini-batches */
  double bound_ns;    /* lower bound on interval_ns */
#if OPIPE_TARGET_MINOR >= 3
  /* Of the model, in a request or mini-batch, forward and backward, nothing that is computed again;
   * what that is of what the plan's devices could do in interval_ns by their nominal rates. 0: not
   * known (a plan that was read says no rates). */
  double flops, utilisation;
#endif
} opipe_plan_info;

/* ESTIMATED: the numbers are no exact prediction (the rank's device cannot be asked from here). */
enum { OPIPE_MEMORY_ESTIMATED = 1u };

/* Bytes of one rank. */
typedef struct opipe_memory_info {
  uint32_t struct_size;
  uint32_t rank;
  uint32_t flags; /* OPIPE_MEMORY_* */
  uint32_t reserved;
  uint64_t params_bytes;
  uint64_t activation_bytes;
  uint64_t workspace_bytes;
  uint64_t boundary_bytes;
  uint64_t gradient_bytes;
  uint64_t optimizer_bytes;
  uint64_t version_bytes;
  uint64_t stash_bytes;
  uint64_t total_bytes;
  uint64_t cap_bytes;    /* UINT64_MAX: none */
  uint64_t mapped_bytes; /* weight files used in place, not in total */
#if OPIPE_TARGET_MINOR >= 2
  uint64_t state_bytes;  /* what streams keep: of the plan's n_streams; of those that are open */
  uint64_t stream_bytes; /* of one stream with the plan's capacities, where its replica is */
#endif
#if OPIPE_TARGET_MINOR >= 3
  uint64_t host_bytes; /* of the host, for nodes that the device lacks; not in total */
#endif
} opipe_memory_info;

/* ---- the table ---- */

typedef struct opipe_api {
  uint32_t struct_size;
  uint16_t abi_major;
  uint16_t abi_minor;
  const char *version; /* of the library, "MAJOR.MINOR.PATCH" */

  /* -- context -- */
  /* params NULL: no plugin paths, warnings to stderr, all cores. [any-thread] */
  opipe_status (*context_create)(const opipe_context_params *params, opipe_context **out_context,
                                 opipe_error *err);
  void (*context_destroy)(opipe_context *context); /* [control] */
  /* Adds a plugin that is linked into the host. The descriptor must outlive the context. [control]
   */
  opipe_status (*context_register_static)(opipe_context *context, const opipe_plugin *plugin,
                                          opipe_error *err);
  /* Every plugin found and every candidate refused, with the reason. [control] */
  opipe_status (*context_plugins)(opipe_context *context, uint32_t format, opipe_write_fn write,
                                  void *ctx, opipe_error *err);

  /* -- models -- */
  /* Reads, checks and maps a file; weights stay in it. Errors: IO, NOTFOUND, LIMIT (the budget),
   * UNSUPPORTED names node and operator. [any-thread] */
  opipe_status (*model_load)(opipe_context *context, const opipe_load_params *params,
                             opipe_model **out_model, opipe_error *err);
  void (*model_destroy)(opipe_model *model);
  /* A bound model: every dimension a number, constants folded, patterns recognised. [any-thread]
   * Errors: INVALID names the dimension left free or contradicting; UNSUPPORTED reports all nodes,
   * or the input whose value is needed. */
  opipe_status (*model_bind)(opipe_model *model, const opipe_bind_options *options,
                             opipe_model **out_bound, opipe_error *err);
  opipe_status (*model_info)(opipe_model *model, opipe_model_info *io_info, opipe_error *err);
  /* Input or output `index`, in the file's order; OPIPE_E_NOTFOUND past the last. */
  opipe_status (*model_input)(opipe_model *model, uint32_t index, opipe_tensor_info *io_info,
                              opipe_error *err);
  opipe_status (*model_output)(opipe_model *model, uint32_t index, opipe_tensor_info *io_info,
                               opipe_error *err);
  /* Dimension `index` of a bound model that was free, and its number. */
  opipe_status (*model_dim)(opipe_model *model, uint32_t index, opipe_dim_info *io_info,
                            opipe_error *err);
  /* Inputs, outputs, dimensions, operators before and after, patterns, parameters, ties, work.
   * [any-thread] */
  opipe_status (*model_describe)(opipe_model *model, uint32_t format, opipe_write_fn write,
                                 void *ctx, opipe_error *err);

  /* -- plans -- */
  /* Cuts a bound model; proves the result. Errors: LIMIT says what does not fit, at which stage and
   * by how much. [any-thread] */
  opipe_status (*plan_make)(opipe_model *model, const opipe_plan_params *params,
                            opipe_plan **out_plan, opipe_error *err);
  /* Reads a plan (JSON) for `model`, unbound or bound, and proves it; one for another fingerprint
   * is refused, naming both. Asks no plugin: session_open judges the plan by what is there. */
  opipe_status (*plan_read)(opipe_model *model, const void *json, uint64_t n_bytes,
                            opipe_plan **out_plan, opipe_error *err);
  /* The plan as JSON: same plan, same bytes. */
  opipe_status (*plan_write)(opipe_plan *plan, opipe_write_fn write, void *ctx, opipe_error *err);
  /* For people, or (OPIPE_FORMAT_JSON) programs. */
  opipe_status (*plan_describe)(opipe_plan *plan, uint32_t format, opipe_write_fn write, void *ctx,
                                opipe_error *err);
  /* The model file with the plan as IR-11 annotations; all other bytes survive. */
  opipe_status (*plan_annotate)(opipe_plan *plan, opipe_write_fn write, void *ctx,
                                opipe_error *err);
  opipe_status (*plan_info)(opipe_plan *plan, opipe_plan_info *io_info, opipe_error *err);
  opipe_status (*plan_memory)(opipe_plan *plan, uint32_t rank, opipe_memory_info *io_info,
                              opipe_error *err); /* predicted, or estimated: flags */
  /* Tensors that cross stages, one call per boundary tensor; OPIPE_E_NOTFOUND past the last. */
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
  /* Cancels what is in flight, joins threads, frees. Requests not released become invalid.
   * [control] */
  void (*session_close)(opipe_session *session);
  /* Starts a request. OPIPE_PENDING, above 0 and yet no success: nothing was started, *out_request
   * is NULL. Its reasons: max_in_flight requests are unfinished; the shape is new, and all that are
   * kept (max_shapes) are in use; so are all bindings of a state; a value on which shapes depend
   * lies behind a `ready` flag that is not set (it must stay until the next submit, or until
   * session_wait_room has answered OPIPE_OK). Submit again after session_wait_room, or use
   * session_submit_wait. Whatever else waits for fences is taken, and held until they are set.
   * A request of another shape than the plan's is compiled first (cold). [any-thread] */
  opipe_status (*session_submit)(opipe_session *session, const opipe_submit_params *params,
                                 opipe_request **out_request, opipe_error *err);
  /* OK | PENDING | < 0 how it failed. [any-thread] */
  opipe_status (*request_poll)(opipe_request *request, opipe_error *err);
  /* Blocks; OPIPE_E_TIMEOUT after timeout_ns (UINT64_MAX: for ever), the request goes on. One
   * waiter at a time. Errors: how the request failed; PEER, the session failed in another one. */
  opipe_status (*request_wait)(opipe_request *request, uint64_t timeout_ns, opipe_error *err);
  /* It then finishes with OPIPE_E_CANCELLED: at once if no rank has begun it, else when the ranks
   * have passed it. Training steps: only before a rank has begun (else STATE), with double-buffered
   * weights only while it waits for fences, in a session with all ranks. [any-thread] */
  opipe_status (*request_cancel)(opipe_request *request, opipe_error *err);
  /* View of output `index` (model order) of a finished request; valid until request_release.
   * [any-thread] */
  opipe_status (*request_output)(opipe_request *request, uint32_t index, opipe_tensor *out_tensor,
                                 opipe_error *err);
  /* Waits for an unfinished one; accepts NULL. threads=HOST: never waits. An unfinished request
   * goes on, with what it borrows, until its on_done, at the latest session_close. */
  void (*request_release)(opipe_request *request);
  /* threads=HOST: runs rank `rank` as far as it goes; nothing to run: sleeps until there is, at
   * most timeout_ns (0: not at all). OPIPE_PENDING: nothing ran in that time. Errors: how the
   * session failed. [step:rank] */
  opipe_status (*session_drive)(opipe_session *session, uint32_t rank, uint64_t timeout_ns,
                                opipe_error *err);
  /* A file descriptor (eventfd) for poll, epoll, ... The session's: closed by session_close; the
   * same at every call; readable at first. Spurious readiness is possible.
   *   rank < n_ranks  threads=HOST: readable when session_drive(rank) may have something to do;
   *                   drive with timeout_ns 0 reads it. (A host flag fence rings nothing: call
   *                   session_flags_set, or drive, after setting it.)
   *   OPIPE_NONE      readable when a request has finished since it was read; the host reads it (8
   *                   bytes), then polls its requests.
   * Deadlines and the watchdog need a call of poll or wait when their time comes. Errors: STATE (a
   * rank of a session with threads of its own), INVALID, UNSUPPORTED (the transport cannot tell),
   * IO. [control] */
  opipe_status (*session_fd)(opipe_session *session, uint32_t rank, int32_t *out_fd,
                             opipe_error *err);
  opipe_status (*session_memory)(opipe_session *session, uint32_t rank, opipe_memory_info *io_info,
                                 opipe_error *err); /* measured */
  opipe_status (*session_info)(opipe_session *session, opipe_session_info *io_info,
                               opipe_error *err);

  /* -- training: sessions of plans with `train` -- */
  /* Starts one mini-batch: forward, backward, update. Inputs: every graph input and the labels,
   * whole mini-batch, of the plan's shape or of other rows and tokens. The ticket is a request with
   * one output, "loss" (fp32, rank 0); request_report says more. In the order of submission; with
   * double-buffered weights a ticket finishes only with the next step or a flush; request_wait on
   * the newest ticket flushes, a new shape too. OPIPE_PENDING as session_submit. A step begins when
   * the fences of all its tensors are set, labels too; those behind it wait. Data that a program
   * refuses (an index out of range) ends the session; what only reads its parameters
   * (session_get, _save, _save_model, _clock) then has them as the step before left them, or
   * answers STATE where ranks have them of different steps. [any-thread] */
  opipe_status (*session_train_step)(opipe_session *session, const opipe_submit_params *params,
                                     opipe_request **out_ticket, opipe_error *err);
  /* Waits until no step is under way; runs what a double-buffered schedule has left over.
   * threads=HOST: does not wait, OPIPE_PENDING as long as there are steps to drive; what needs a
   * flush answers STATE then. */
  opipe_status (*session_flush)(opipe_session *session, opipe_error *err);
  /* Forward only, with the parameters that the steps before leave; what a double-buffered schedule
   * has left over runs first. Waits for nothing, and is taken while steps are under way, those that
   * the host drives too. Inputs as a step's. Outputs "loss" and what the loss judges. Data that a
   * program refuses fails the evaluation alone. OPIPE_PENDING as session_submit. */
  opipe_status (*session_evaluate)(opipe_session *session, const opipe_submit_params *params,
                                   opipe_request **out_request, opipe_error *err);
  /* Of a finished ticket or evaluation. */
  opipe_status (*request_report)(opipe_request *request, opipe_train_report *io_report,
                                 opipe_error *err);
  /* Parameter `index`, in the plan's order; OPIPE_E_NOTFOUND past the last. */
  opipe_status (*session_parameter)(opipe_session *session, uint32_t index,
                                    opipe_parameter_info *io_info, opipe_error *err);
  /* What reads or writes parameters (from here to session_save_gradients, session_clock,
   * _set_clock, _try_save, _read) does it between steps, whatever other threads do: it waits for
   * the steps that were submitted before it; later ones are accepted, and begin when it has
   * returned. One such call after the other; one from a callback of another answers STATE.
   * threads=HOST: STATE, as long as there are steps to drive. A parameter's state by initializer
   * name, dense row-major. version: 0 newest, 1 one older, of double-buffered weights. set changes
   * every copy; what is not trained, and was set, is among what session_save and _save_model write.
   * [any-thread] */
  opipe_status (*session_get)(opipe_session *session, const char *name, uint32_t state,
                              uint32_t version, void *dst, uint64_t n_bytes, opipe_error *err);
  opipe_status (*session_set)(opipe_session *session, const char *name, uint32_t state,
                              uint32_t version, const void *src, uint64_t n_bytes,
                              opipe_error *err);
  /* A checkpoint: parameters, optimizer state, steps, `position` [OPIPE_POSITION] (the host's own
   * numbers, NULL: zeros) in the folder `path`. A process that dies meanwhile leaves the old one or
   * the new one, an error the old one. INVALID: a file of the model would be replaced. Flushes.
   * [any-thread] */
  opipe_status (*session_save)(opipe_session *session, const char *path, const uint64_t *position,
                               opipe_error *err);
  /* Continues from a checkpoint, made under any plan. out_position [OPIPE_POSITION] may be NULL.
   * Errors: INVALID names the tensor and both numbers (shapes, or the hashes of damaged ones),
   * nothing is changed then. Flushes. [any-thread] */
  opipe_status (*session_load)(opipe_session *session, const char *path, uint64_t *out_position,
                               opipe_error *err);
  /* Writes the model file with the newest parameters to `path`, embedded or external as they are in
   * the file; all other bytes survive. INVALID: other weights lie there. Flushes. [any-thread] */
  opipe_status (*session_save_model)(opipe_session *session, const char *path, opipe_error *err);
  /* Gradients of the last step into one safetensors file. INVALID: one of the model's.
   * [any-thread] */
  opipe_status (*session_save_gradients)(opipe_session *session, const char *path,
                                         opipe_error *err);
  /* Which initializers of a model bound with OPIPE_BIND_TRAIN are trained, which not, and why;
   * which answers are doubtful. A plan lists them as they were when it was made. */
  opipe_status (*model_describe_training)(opipe_model *model, const opipe_train_options *options,
                                          uint32_t format, opipe_write_fn write, void *ctx,
                                          opipe_error *err);

  /* -- schedules without a model -- */
  /* Every schedule found, with its options. */
  opipe_status (*schedule_list)(opipe_context *context, uint32_t format, opipe_write_fn write,
                                void *ctx, opipe_error *err);
  /* The compute order that a schedule gives. Errors: INVALID, a constraint of the schedule with
   * both numbers. An order holds a reference to its context. */
  opipe_status (*order_make)(opipe_context *context, const opipe_order_params *params,
                             opipe_order **out_order, opipe_error *err);
  /* Errors: INVALID with row, column and text. */
  opipe_status (*order_read)(opipe_context *context, const void *text, uint64_t n_bytes,
                             uint32_t dialect, opipe_order **out_order, opipe_error *err);
  void (*order_destroy)(opipe_order *order); /* accepts NULL */
  opipe_status (*order_info)(opipe_order *order, opipe_order_info *io_info, opipe_error *err);
  /* A new order with messages, reductions, frees and steps. receive_depth 0: receives as early as
   * their sends; else that many computes of lead, 1: just before their consumer. flags:
   * OPIPE_LOWER_*. */
  opipe_status (*order_lower)(opipe_order *order, uint32_t receive_depth, uint32_t flags,
                              opipe_order **out_order, opipe_error *err);
  /* The proof under a transport's rule (OPIPE_RULE_* of transport.h); an order without messages is
   * lowered first. Errors: INVALID with rank, step, action and, for a deadlock, the cycle. */
  opipe_status (*order_check)(opipe_order *order, uint32_t rule, opipe_error *err);
  /* Modelled times, text, JSON or HTML: makespan, span (most of a rank, last end minus first
   * start), bubble (1 - busy / (ranks x makespan)), peak_stash by rank. costs NULL: 1, 1, 1, 0. */
  opipe_status (*order_simulate)(opipe_order *order, const opipe_order_costs *costs,
                                 uint32_t format, opipe_write_fn write, void *ctx,
                                 opipe_error *err);
  /* An SVG picture of the modelled times. */
  opipe_status (*order_draw)(opipe_order *order, const opipe_order_costs *costs,
                             opipe_write_fn write, void *ctx, opipe_error *err);
  opipe_status (*order_write)(opipe_order *order, uint32_t format, uint32_t dialect,
                              opipe_write_fn write, void *ctx, opipe_error *err);
  /* -- training -- */
  /* The last step of a training session, or the last request of another, one lane per rank,
   * measured and planned. format: OPIPE_TRACE_*. Programs are timed by the host, which sees late
   * that a device has done one; with OPIPE_SESSION_TRACE by the devices. Which it was is said of
   * every rank. Training flushes; requests that have ended are waited for until all ranks have
   * passed them. Errors: STATE, nothing has run yet, or requests are unfinished. [control] */
  opipe_status (*session_trace)(opipe_session *session, uint32_t format, opipe_write_fn write,
                                void *ctx, opipe_error *err);
  /* Between steps, as session_get. Set ends a hold; of a loss scale see opipe_train_clock. Errors:
   * INVALID, with the number. [any-thread] */
  opipe_status (*session_clock)(opipe_session *session, opipe_train_clock *io_clock,
                                opipe_error *err);
  opipe_status (*session_set_clock)(opipe_session *session, const opipe_train_clock *clock,
                                    opipe_error *err);
  /* Could session_save, _save_model or _save_gradients (what: OPIPE_SAVE_*) write to `path`? Before
   * training, so that it is not done for nothing; what it makes it removes. Errors: as theirs. */
  opipe_status (*session_try_save)(opipe_session *session, uint32_t what, const char *path,
                                   opipe_error *err);
#if OPIPE_TARGET_MINOR >= 2
  /* -- states (state.h); [any-thread] -- */
  /* Takes the memory of a stream. params NULL: the plan's capacities. Replicas get streams in turn,
   * and keep them. Errors: LIMIT (a cap, a budget), STATE (the plan has no pairs). */
  opipe_status (*session_state_open)(opipe_session *session, const opipe_state_params *params,
                                     opipe_state **out_state, opipe_error *err);
  /* Its memory is free again, at the latest when its last request has passed. Accepts NULL. */
  void (*state_close)(opipe_state *state);
  /* As it was opened. Errors: STATE, requests of it are unfinished: wait for them. */
  opipe_status (*state_reset)(opipe_state *state, opipe_error *err);
  /* `state` becomes what `from` is, another one of the session (itself: it stays as it is). Errors:
   * LIMIT, its capacity; STATE, requests of one of them are unfinished, or `from` is broken;
   * UNSUPPORTED, they are on replicas of which this session has not all ranks. */
  opipe_status (*state_copy)(opipe_state *state, opipe_state *from, opipe_error *err);
  /* Pair `index` of the plan: io_info (may be NULL), then its content into dst [n_bytes] (NULL:
   * none), dense, row-major, in host memory. Errors: NOTFOUND (past the last; content that is in
   * another session), INVALID (n_bytes); for the content STATE: empty, broken, requests of it
   * are unfinished. */
  opipe_status (*state_get)(opipe_state *state, uint32_t index, opipe_state_info *io_info,
                            void *dst, uint64_t n_bytes, opipe_error *err);
#endif
#if OPIPE_TARGET_MINOR >= 3
  /* Sleeps until submit may find room: fewer than max_in_flight requests are unfinished, and where
   * a submit found none for its shape one has passed since, where it found a flag not set that is
   * set (or one has passed). Another thread may be faster: then
   * submit answers OPIPE_PENDING again. Errors: TIMEOUT, after timeout_ns (UINT64_MAX: for ever);
   * how the session failed; STATE, inside an on_done. [any-thread] */
  opipe_status (*session_wait_room)(opipe_session *session, uint64_t timeout_ns, opipe_error *err);
  /* A model from tables (build.h). Errors: as model_load, and INVALID for what no file could say.
   * [any-thread] */
  opipe_status (*model_build)(opipe_context *context, const opipe_build_params *params,
                              opipe_model **out_model, opipe_error *err);
  /* Writes what was loaded or built (of a bound model too) to `path` as an ONNX file: a file's own
   * bytes, with copies of its external files beside it; parameters that were given, and what was
   * built, with content in the file, or where that would be 2 GiB and more in PATH.data. What fails
   * leaves nothing. Errors: IO; INVALID, a file that is in use would be written over. */
  opipe_status (*model_write)(opipe_model *model, const char *path, opipe_error *err);
  /* -- described clusters (simulate.h); [any-thread] -- */
  /* The text of a cluster: "NAME" of one that was installed, or a file's path, either with
   * ":nodes=N" behind it. Errors: NOTFOUND lists the names; IO; as plan_make for a cluster. */
  opipe_status (*cluster_find)(opipe_context *context, const char *spec, opipe_write_fn write,
                               void *ctx, opipe_error *err);
  /* An order (lowered and proven here, where it is not) with times in milliseconds, on a cluster.
   * format: OPIPE_PLAY_*. costs NULL: 1, 1, 1; its comm must be 0. Errors: INVALID: what
   * the proof says; fewer devices than ranks; numbers out of range. LIMIT: too long to be drawn. */
  opipe_status (*order_play)(opipe_order *order, const opipe_order_costs *costs,
                             const opipe_play_params *params, uint32_t format, opipe_write_fn write,
                             void *ctx, opipe_error *err);
  /* What sessions of a plan execute, on the first devices of a cluster, with the plan's own times
   * of programs and bytes. Errors: the same; INVALID, flags that lists of a plan do not have. */
  opipe_status (*plan_play)(opipe_plan *plan, const opipe_play_params *params, uint32_t format,
                            opipe_write_fn write, void *ctx, opipe_error *err);
  /* -- profiles and planners (planning.h); [any-thread] -- */
  /* The layers of a bound model. Errors: STATE, it is not bound, or not for training; UNSUPPORTED,
   * a described device that should be measured, nodes that change with the samples; INVALID,
   * numbers of samples that the batch cannot have; those of binding and of gradients. */
  opipe_status (*profile_of_model)(opipe_model *model, const opipe_profile_params *params,
                                   opipe_profile **out_profile, opipe_error *err);
  /* Of a model that one does not have: "gpt:layers=96,hidden=12288,heads=96,vocab=51200,seq=2048",
   * also llama and bert (guide: planners). Errors: INVALID names key, value and what can be. */
  opipe_status (*profile_of_arch)(opipe_context *context, const char *arch,
                                  const opipe_profile_params *params, opipe_profile **out_profile,
                                  opipe_error *err);
  /* A file's text: what profile_describe writes as JSON, or a profile as PipeDream and DAPPLE write
   * theirs, of micro-batches of `samples` (which those do not say; 0: 1). name: in messages, NULL:
   * "the profile". Errors: INVALID names layer or line, and field; UNSUPPORTED, another version. */
  opipe_status (*profile_read)(opipe_context *context, const void *text, uint64_t n_bytes,
                               const char *name, uint32_t samples, opipe_profile **out_profile,
                               opipe_error *err);
  void (*profile_destroy)(opipe_profile *profile); /* accepts NULL */
  /* Text, a table; JSON, the file that profile_read takes: the same profile, the same bytes. */
  opipe_status (*profile_describe)(opipe_profile *profile, uint32_t format, opipe_write_fn write,
                                   void *ctx, opipe_error *err);
  opipe_status (*profile_info)(opipe_profile *profile, opipe_profile_info *io_info,
                               opipe_error *err);
  /* Layer `index` in micro-batches of `samples` (at least 1). Errors: NOTFOUND past the last. */
  opipe_status (*profile_layer)(opipe_profile *profile, uint32_t index, uint32_t samples,
                                opipe_layer_info *io_info, opipe_error *err);
  /* What a planner answers. A strategy keeps its profile. Errors: NOTFOUND lists the planners;
   * INVALID, a wrong question; UNSUPPORTED, no schedule may be used; LIMIT, nothing fits: what is
   * missing, and the nearest change that would do. */
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
  /* The strategy's schedule with its profile's times, on the cluster of `params`, of which
   * `stages`, `tensor` and `copies` are the strategy's own: 0. format: OPIPE_PLAY_*. Errors:
   * NOTFOUND, a schedule that is not installed; as order_play. */
  opipe_status (*strategy_play)(opipe_strategy *strategy, const opipe_play_params *params,
                                uint32_t format, opipe_write_fn write, void *ctx, opipe_error *err);
  /* The strategy as a plan for `model`, which its profile was made from, or another binding of it:
   * cut, replicas, schedule, micro-batches, recomputation and slices are the strategy's (in
   * `params` 0), all else as in plan_make. Errors: UNSUPPORTED, what no session executes; INVALID,
   * a layer that the model has no node for; as plan_make. */
  opipe_status (*strategy_plan)(opipe_strategy *strategy, opipe_model *model,
                                const opipe_plan_params *params, opipe_plan **out_plan,
                                opipe_error *err);
  /* What differs between two plans, or strategies, in the form of their files, and what each costs.
   * Neither model nor devices are needed. Text says which of the same work is faster, by the
   * sample. names: in the answer. Errors: INVALID, UNSUPPORTED name file and member. */
  opipe_status (*plans_compare)(opipe_context *context, const void *a, uint64_t a_bytes,
                                const char *a_name, const void *b, uint64_t b_bytes,
                                const char *b_name, uint32_t format, opipe_write_fn write,
                                void *ctx, opipe_error *err);
  /* The text of this machine as a cluster. params NULL: one device per core, declared links,
   * nominal rates. Errors: NOTFOUND, a backend or transport; those of opening devices. [control] */
  opipe_status (*cluster_of_machine)(opipe_context *context, const opipe_machine_params *params,
                                     opipe_write_fn write, void *ctx, opipe_error *err);
  /* Number `index` of those that planner auto ranked, 0 the best; else NOTFOUND. [any-thread] */
  opipe_status (*strategy_ranked)(opipe_strategy *strategy, uint32_t index,
                                  opipe_strategy **out_strategy, opipe_error *err);
  /* -- devices that are the host's too -- */
  /* Sleeps until the request is queued: all native `done` fences are set, so that work which the
   * host gives its streams from now on comes behind it, while devices are still at it. Of one
   * without tensors and fences of a device: until it has finished. Errors: TIMEOUT after timeout_ns
   * (UINT64_MAX: for ever; 0: asks); of a finished one as request_poll.
   * [any-thread] */
  opipe_status (*request_queued)(opipe_request *request, uint64_t timeout_ns, opipe_error *err);

  /* The plan with a table of kernels (planning.h): those that its programs have a choice for are
   * measured here, and its memory is counted with them. Decisions and hash are the plan's. Errors:
   * INVALID, no rank on such a device; UNSUPPORTED, a backend that has no such choice; LIMIT, it
   * does not fit any more. [control] */
  opipe_status (*plan_tune)(opipe_plan *plan, const opipe_tuning_params *params,
                            opipe_plan **out_plan, opipe_error *err);

  /* plan_play of what plan_write wrote, n_bytes of it, without its model: the same bytes. What the
   * file predicts is believed, its hash is checked. Errors: NOTFOUND, a file of before, which lacks
   * what its lists take: plan_read and plan_write add it; INVALID names the member; as plan_play.
   * [any-thread] */
  opipe_status (*plan_file_play)(opipe_context *context, const void *json, uint64_t n_bytes,
                                 const opipe_play_params *params, uint32_t format,
                                 opipe_write_fn write, void *ctx, opipe_error *err);

  /* What a training plan was made for, as it stands in the plan, whoever made it: loss, optimizer,
   * types, seed. Strings and arrays are the plan's, until its plan_destroy. Options that are given
   * to plan_make as they came make a plan that trains the same. Errors: NOTFOUND, a plan for
   * inference. [any-thread] */
  opipe_status (*plan_training)(opipe_plan *plan, opipe_train_options *io_options,
                                opipe_error *err);
#endif
#if OPIPE_TARGET_MINOR >= 4
  /* Before a file is put to `path`: would it take the place of one that the model was read from,
   * its own or one of its weights, also by way of links? what: OPIPE_TARGET_*. The library's own
   * writers ask it. Errors: INVALID names the file. [any-thread] */
  opipe_status (*model_check_target)(opipe_model *model, const char *path, uint32_t what,
                                     opipe_error *err);
  /* session_submit, _train_step or _evaluate (what: OPIPE_START_*) that sleeps until there is room,
   * and until the flag is set behind which lies a value on which shapes depend. Where it fails
   * nothing was started. threads=HOST: other threads drive meanwhile. Errors: TIMEOUT, after
   * timeout_ns (UINT64_MAX: for ever); as theirs. [any-thread] */
  opipe_status (*session_submit_wait)(opipe_session *session, uint32_t what,
                                      const opipe_submit_params *params, uint64_t timeout_ns,
                                      opipe_request **out_request, opipe_error *err);
  /* Host flags that `ready` fences name were set: they are looked at now. Without it that is done
   * after a sixteenth of the time for which they have been waited for, 50 microseconds to 5
   * milliseconds. threads=HOST: a rank's file descriptor becomes readable, session_drive returns
   * from its sleep. [any-thread] */
  opipe_status (*session_flags_set)(opipe_session *session, opipe_error *err);
  /* Many tensors (session_get) and the clock (io_clock, may be NULL), all of one and the same step,
   * whatever other threads submit. Nothing is written when a tensor is refused. [any-thread] */
  opipe_status (*session_read)(opipe_session *session, const opipe_read_params *params,
                               opipe_train_clock *io_clock, opipe_error *err);
#endif
} opipe_api;

#ifndef OPIPE_CDEF
/* TYPE_init(): structs to begin with. */
#include "beginnings.h"
#endif

/* ---- the way in ---- */

/* What a host was compiled with. */
typedef struct opipe_view {
  uint32_t struct_size;
  uint16_t abi_major;
  uint16_t abi_minor;              /* the lowest table minor that it can live with */
  const opipe_struct_row *structs; /* [n_structs] layout fingerprints; NULL: the host vouches for
                                      its structs (what is not compiled from these headers) */
  uint32_t n_structs;
  uint32_t struct_row_bytes; /* sizeof(opipe_struct_row) */
} opipe_view;

#include "frozen/host.h"
#ifndef OPIPE_CDEF
static const opipe_struct_row opipe_rows_of_host[] OPIPE_UNUSED = {
    OPIPE_ROWS_ABI,      OPIPE_ROWS_TYPES, OPIPE_ROWS_TRAIN,    OPIPE_ROWS_STATE,
    OPIPE_ROWS_MODELS,   OPIPE_ROWS_BUILD, OPIPE_ROWS_SIMULATE, OPIPE_ROWS_PLANNING,
    OPIPE_ROWS_REQUESTS, OPIPE_ROWS_HOST};
static const opipe_view opipe_view_of_host OPIPE_UNUSED = {
    (uint32_t)sizeof(opipe_view),
    OPIPE_ABI_MAJOR,
    OPIPE_TARGET_MINOR,
    opipe_rows_of_host,
    (uint32_t)(sizeof opipe_rows_of_host / sizeof(opipe_struct_row)),
    (uint32_t)sizeof(opipe_struct_row)};
/* This compilation's: opipe_get_api(OPIPE_VIEW, &api, &err). */
#define OPIPE_VIEW (&opipe_view_of_host)
#endif

/* The one exported function. Errors: OPIPE_E_ABI names both versions and which side to change, or
 * the struct that the host lays out otherwise. [any-thread] */
OPIPE_EXPORT opipe_status opipe_get_api(const opipe_view *view, const opipe_api **out_api,
                                        opipe_error *err);
typedef opipe_status (*opipe_get_api_fn)(const opipe_view *view, const opipe_api **out_api,
                                         opipe_error *err);

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_HOST_H */
