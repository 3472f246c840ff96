/* SPDX-License-Identifier: Apache-2.0 */
/* The onnx-pipe command: a client of opipe/host.h like any other. Exit status: 0 done, 1 a check
 * failed, 2 usage, 3 refused or failed, 128 + N ended by signal N. Results go to stdout, all else
 * to stderr.
 */
#ifndef CLI_H
#define CLI_H

#include <opipe/host.h>
#include <stdbool.h>
#include <stdio.h>

#include "loader/base/nearest.h"

enum { CLI_DONE = 0, CLI_CHECK_FAILED = 1, CLI_USAGE = 2, CLI_FAILED = 3 };
enum { CLI_SIGNALLED = 128 };          /* + the signal's number */
#define CLI_OPTIMIZER "adamw:lr=0.001" /* the default */
enum { CLI_LIST_MOST = 1024 };         /* how often an option may be given */

/* ---- options ---- */

typedef struct cli_list {
  const char *items[CLI_LIST_MOST];
  uint32_t n;
} cli_list;

/* Stage times, one for all or one for each. */
enum { CLI_COST_KINDS = 3, CLI_COST_STAGES = 1024 };
typedef struct cli_costs {
  opipe_order_costs costs;
  double stages[CLI_COST_KINDS][CLI_COST_STAGES]; /* F, I, W if given per stage */
} cli_costs;
extern const opipe_order_costs cli_unit_costs; /* 1, 1, 1, no communication */
/* "F=1,I=1,W=1,comm=0", any of them; "F=5+5+9": one per stage. Others keep their value. */
int cli_take_costs(const char *value, cli_costs *out);

/* Options of `train`; specs stay texts until they are needed. */
typedef struct cli_train_texts {
  cli_list data, parameters, no_decay;
  cli_list globs;
  bool globs_train[CLI_LIST_MOST]; /* of globs: --trainable, or --frozen */
  const char *loss, *optimizer, *lr_schedule, *recompute, *offload, *compute, *replicas, *shard;
  const char *save, *resume, *save_model, *save_gradients;
  double clip;
  uint64_t n_steps, n_epochs, save_every, offload_bytes;
  uint64_t n_steps_done; /* of these, by the runs of which this is a restart */
  uint32_t batch, tensor;
  bool shuffle, go_on, overwrite;
  bool sequence, scattered; /* of tensor groups */
} cli_train_texts;

/* Options of `schedule`. */
enum { CLI_FORMAT_UNSAID = UINT8_MAX };
enum { CLI_COST_UNSAID = UINT8_MAX }; /* profile's cost, until its kind is known */
enum { CLI_TUNED_ALLOW = 0, CLI_TUNED_REQUIRE = 1 };
enum { CLI_FALLBACK_UNSAID = UINT8_MAX }; /* else an index in "none|cpu" */
typedef struct cli_order_options {
  uint32_t n_replicas;
  uint32_t format; /* OPIPE_FORMAT_*, or CLI_FORMAT_UNSAID */
  uint32_t dialect, from, rule, receive_depth;
  bool aligned, forward;
} cli_order_options;

/* Options of playing on a described cluster. */
typedef struct cli_play_options {
  const char *load;
  uint32_t tensor, copies, collective, flags; /* OPIPE_PLAY_* */
} cli_play_options;

/* Options of planners. */
typedef struct cli_planner_options {
  const char *name;           /* NULL: auto, if a planner is asked at all */
  const char *arch, *profile; /* in place of a model */
  const char *sizes;          /* "1,4,16": sizes of micro-batches to profile */
  double budget_s, within_ms;
  uint32_t objective, flags; /* OPIPE_OBJECTIVE_*, OPIPE_STRATEGY_* */
  uint32_t samples;          /* of a micro-batch */
  bool decides;              /* --auto */
  bool every_node;           /* profile: a layer for each node */
  bool machine;              /* profile --cluster: this machine is described */
} cli_planner_options;

/* Options of launch. */
typedef struct cli_launch_options {
  uint32_t n, restarts;
  uint32_t nodes, node; /* nodes 0: not given */
  uint32_t tag;         /* 1: lines begin with the rank */
  const char *logs, *address;
} cli_launch_options;

/* Options of the processes of a team. */
typedef struct cli_team_options {
  const char *launcher, *place;
  double silence_s;  /* < 0: not given */
  bool numbered[64]; /* the device's option says which of its kind */
} cli_team_options;

/* Options of generate. */
enum { CLI_DRAFTS_NONE = 0, CLI_DRAFTS_NGRAM = 1 };
typedef struct cli_generate_options {
  cli_list prompts, ids;
  const char *requests, *stop, *sampling;
  double temperature, top_p, min_p;
  uint32_t top_k, max_tokens;
  uint32_t drafts;              /* CLI_DRAFTS_* */
  opipe_generation_params plan; /* struct_size 0: another command */
} cli_generate_options;

/* How a model becomes a graph. */
typedef struct cli_binding_options {
  cli_list bind;
  uint32_t load_flags, noise; /* OPIPE_BIND_NOISE */
  bool no_fuse, ignore_annotations;
  bool graph_dropout, ratio_dropout, says_dropout;
  double dropout_ratio;
} cli_binding_options;

/* Devices, their caps and kernels. */
typedef struct cli_device_options {
  opipe_device_choice devices[64];
  char device_text[64][2048];
  uint32_t n_devices, n_threads;
  uint32_t fallback; /* CLI_FALLBACK_UNSAID, or none, cpu */
  uint32_t tuned;    /* CLI_TUNED_*: whether a plan must have a table of kernels that fits */
  uint64_t memory_bytes;
} cli_device_options;

/* The plan that is asked for. */
typedef struct cli_cut_options {
  uint32_t n_stages, n_ranks, n_microbatches, depth, cost;
  const char *cut, *plan_file, *cluster, *schedule, *batch, *transport;
  cli_costs stage_costs; /* costs.struct_size 0: not given */
  cli_list pins;
  bool improve;
} cli_cut_options;

/* Requests, and how their results are judged. */
typedef struct cli_run_options {
  uint32_t n_requests;
  const char *check; /* NULL, "max" or "element" */
  double rtol, atol; /* < 0: preset */
  bool reference, check_finite;
} cli_run_options;

/* Where answers go, and in which form. */
typedef struct cli_output_options {
  const char *output, *annotate; /* of plan */
  const char *trace;             /* of run, train and simulate */
  const char *html;              /* of plan and simulate */
  bool json, quiet;              /* quiet: does not print why a plan cannot be made */
  bool why;                      /* of plugins */
} cli_output_options;

typedef struct cli_options {
  uint64_t given[3]; /* given rows of tables.c, one bit each: cli_was_given */
  const char *model;
  char **operands;
  uint32_t n_operands;
  const char *settled; /* first option that a plan's file would settle; NULL: none */
  bool train;          /* inspect --train, or the command train */
  bool measures;       /* plan --measure */
  uint64_t seed;
  cli_list plugins, inputs;
  cli_binding_options graph;
  cli_device_options on;
  cli_cut_options plan;
  cli_run_options run;
  cli_output_options out;
  cli_train_texts t;
  cli_team_options team;
  cli_order_options order;
  cli_play_options play;
  cli_planner_options planner;
  cli_launch_options launch;
  cli_generate_options generate;
  struct {
    uint32_t n_candidates, n_runs;
  } tune;
} cli_options;

typedef struct cli_command cli_command; /* tables.h */
/* Parses argv[1..] (argv[0] is for messages). CLI_DONE: go on; otherwise the exit status, or -1:
 * --help was printed. */
int cli_parse(const cli_command *command, int argc, char **argv, cli_options *out);
bool cli_was_given(const cli_options *o, const char *name);

/* Takes numbers from --schedule file:PATH that were not given. schedule_file.c */
int cli_schedule_numbers(cli_options *io_options);

/* ---- errors ---- */

/* "onnx-pipe: what: message"; returns CLI_FAILED, or CLI_USAGE if the caller left something out. */
int cli_report(const char *what, const opipe_error *err);
int cli_usage(const char *fmt, ...) OPIPE_PRINTF(1, 2);
int cli_fail(const char *fmt, ...) OPIPE_PRINTF(1, 2); /* the same; CLI_FAILED */
/* The last error that was printed, for other processes. */
const char *cli_last_said(void);
/* cli_report for a call that looks names up: CLI_USAGE if the error is an unknown name. */
int cli_report_name(const char *what, const opipe_error *err);
bool cli_is_missing(int number); /* errno of opening a file: no such file */
bool cli_is_there(const char *path);
/* The log of the command's contexts. Any thread. warnings.c */
void cli_warn(void *ctx, uint32_t level, const char *file, uint32_t line, const char *msg);
/* Adds "key=value" to the backend options of device number `device`. */
void cli_add_device_option(cli_options *o, uint32_t device, const char *word);
int cli_write_stdout(void *ctx, const void *data, size_t n_bytes); /* an opipe_write_fn */
int cli_write_stream(void *ctx, const void *data, size_t n_bytes); /* the same, into a FILE */
/* A JSON document, gathered and printed when it is complete. */
typedef struct cli_json {
  FILE *file; /* NULL: text output */
  char *data;
  size_t n;
} cli_json;
int cli_json_begin(const cli_options *o, cli_json *json); /* only with --json */
/* Prints it if the command has an answer: it is done, or a check failed. */
int cli_json_end(cli_json *json, int status);
void cli_json_text(FILE *json, const char *text);
void cli_json_number(FILE *json, double value); /* null: not finite */
/* Gathers a sink's bytes, so that a file is only created on success. */
typedef struct cli_gathered {
  char *data;
  size_t n, room;
} cli_gathered;
int cli_gather(void *ctx, const void *data, size_t n); /* an opipe_write_fn */
/* Writes the file or prints the error; frees the gathered bytes. */
int cli_write_gathered(opipe_status status, const char *path, cli_gathered *g,
                       const opipe_error *err);
/* The same for a model, which may replace the file that it was read from. */
int cli_write_model(opipe_status status, const char *path, cli_gathered *g, const opipe_error *err);
/* Writes a file. A regular file is replaced when the new one is complete, keeping its permissions,
 * at the end of links; on failure nothing is left. Anything else is written to. */
int cli_write_file(const char *path, const void *data, size_t n_bytes);
int cli_try_file(const char *path); /* tests whether it could be written; leaves nothing */
/* From now on no file of this model (NULL: of none) is overwritten. */
void cli_guard(const opipe_api *api, opipe_model *model);
/* Checks that a file at `path`, a target of kind `what` (OPIPE_TARGET_*), would not replace a file
 * of the guarded model. */
int cli_check_target(const char *path, uint32_t what);
int cli_try_folder(const char *path); /* the same for files in a folder */
/* True if writing to both would write one file, or one folder. */
bool cli_same_place(const char *a, const char *b);
bool cli_is_stream(const char *path); /* true for the command's standard output or error */
/* Session flags from options of run and train. */
static inline uint32_t cli_session_flags(const cli_options *o) {
  return (o->run.check_finite ? OPIPE_SESSION_CHECK_FINITE : 0u) |
         (o->on.tuned == CLI_TUNED_REQUIRE ? OPIPE_SESSION_TUNED : 0u) |
         (o->out.trace != NULL ? OPIPE_SESSION_TRACE : 0u);
}

/* ---- tensors that the command owns ---- */

typedef struct cli_tensor {
  char *name;     /* malloc'ed; NULL: none */
  uint32_t dtype; /* OPIPE_FLOAT ... */
  uint32_t rank;
  int64_t shape[OPIPE_MAX_RANK];
  void *data; /* malloc'ed, dense */
  size_t n_bytes;
} cli_tensor;

size_t cli_dtype_bytes(uint32_t dtype); /* 0: unknown or sub-byte */
const char *cli_dtype_name(uint32_t dtype);
size_t cli_elems(const cli_tensor *tensor);
bool cli_tensor_alloc(
    cli_tensor *tensor); /* data for dtype and shape, zeroed; false: too large or no memory */
void cli_tensor_free(cli_tensor *tensor);
/* Sets the name to the first n bytes of a text; false: no memory. */
bool cli_tensor_name(cli_tensor *io_tensor, const char *text, size_t n);
opipe_tensor cli_tensor_view(const cli_tensor *tensor);
/* Converts an integer tensor to the type of the model's input: ids in files are often int32 when
 * the graph reads int64. The library checks any other type. */
bool cli_tensor_widen(cli_tensor *io_tensor, uint32_t dtype);
/* n integers of type `from`, as int64. */
void cli_widen(uint32_t from, const void *in, size_t n, int64_t *out);
bool cli_can_widen(uint32_t from, uint32_t to); /* a narrower integer to int64 */
/* Copies a dense view (shape and data). */
bool cli_tensor_copy(const char *name, const opipe_tensor *view, cli_tensor *out);
double cli_tensor_get(const cli_tensor *tensor, size_t i); /* as double; the real part */
/* Imaginary part of a complex number; 0 for any other. */
double cli_tensor_imaginary(const cli_tensor *tensor, size_t i);
enum { CLI_NUMBER_TEXT = 64 };
/* "1.5", "1.5-2i": for people; returns `out`. */
const char *cli_tensor_text(const cli_tensor *tensor, size_t i, char out[CLI_NUMBER_TEXT]);

/* Readers print errors and return CLI_FAILED. */
int cli_npy_read(const char *path, cli_tensor *out);
/* Reads type and shape (not data) from the beginning of a .npy file of n bytes, and where its data
 * begins. NULL, or an error text that is valid until the next one. */
const char *cli_npy_header(const uint8_t *bytes, size_t n, cli_tensor *out, size_t *out_start);
/* NULL if it has as many bytes as type and shape require, else an error text. */
const char *cli_npy_misfit(const cli_tensor *form, size_t n_bytes);
int cli_npy_write(const char *path, const cli_tensor *tensor);
int cli_pb_read(const char *path, cli_tensor *out); /* one serialised ONNX TensorProto */
int cli_file_read(const char *path, void **out_data, size_t *out_n); /* malloc'ed, NUL-terminated */
/* True for a plan's file: plans are JSON, models are not. False for NULL and unreadable files. */
bool cli_is_plan_file(const char *path);

/* ---- the steps that commands share ---- */

typedef struct cli_session {
  const opipe_api *api;
  opipe_context *context;
  opipe_model *file; /* as loaded */
  opipe_model *bound;
  opipe_plan *plan;
  void *outline; /* file of a plan played without its model; malloc'ed */
  size_t outline_bytes;
  char pinned[256]; /* first input that binding pinned to a given tensor; "": none */
  opipe_team *team; /* of the processes that run this command together; NULL: this one alone */
  uint32_t team_rank;
  uint64_t watchdog_ns; /* of sessions in a team: --silence; 0: the library's */
  uint32_t *places; /* [n_places] process of each rank, as --place says; malloc'ed; NULL: blocks */
  uint32_t n_places;
  uint32_t *here; /* [n_here] with places: the ranks of this process */
  uint32_t n_here;
  int printed; /* standard output of a process that does not print; < 0: none */
  uint64_t n_steps_begun;
  int stopped_by; /* signal at which the steps ended; 0: none */
  bool told_to_stop;
} cli_session;

/* Writes the session's last request or step: a picture or a page if the path ends in .svg or .html,
 * else JSON. In a team all call it, and process 0 writes. */
int cli_write_trace(const cli_session *s, opipe_session *session, const char *path);
int cli_open(const cli_options *options, cli_session *s);
/* team.c: after cli_open. Joins the other processes of a launcher, and gives options their presets
 * for so many. */
int cli_join(cli_options *io_options, cli_session *s);
/* True if it is in any of the processes, which call it together. Alone, or once the team has
 * failed: `own`. */
bool cli_team_any(const cli_session *s, bool own);
/* Waits for the others; returns the status with which all end. Before cli_close. */
int cli_part(cli_session *s, int status);
/* Tells the others how this process has fared so far; where one has failed, all fail. */
int cli_agree(const cli_session *s, const char *where, int status);
/* Replaces each of n numbers by the largest of all processes. */
int cli_worst(const cli_session *s, uint8_t *io_list, uint32_t n);
/* Do ranks of this process read input `name`? */
bool cli_needs(const cli_session *s, opipe_session *session, const char *name);
/* Gives all processes the plan that process 0 has made, or its failure `made`. */
int cli_share_plan(cli_session *s, int made);
/* launch_again.c: in a restart by launch, --save DIR is resumed if the job has saved there. */
void cli_resume_restarted(cli_options *io_options);
void cli_team_print(cli_session *s); /* from now on this process prints, too */
/* Are some rows of an output made in one process, others in another? */
int cli_outputs_are_split(const cli_session *s, bool *out_split);
/* Lines of all processes, "NUMBER text", one after the other; own NULL: this one has failed. */
int cli_lines_of_all(const cli_session *s, const cli_gathered *own, cli_gathered *out);
/* The text of the first line with this number; NULL: there is none. */
const char *cli_line_of(const cli_gathered *lines, uint32_t number);
/* The session's objects for what process 0 does without the others: nothing in it is shared. */
cli_session cli_alone(const cli_session *s);
/* The status of what process 0 did alone, for all, which call it together. */
int cli_status_of_0(const cli_session *s, int status);
/* Before step or request number `step`: the signal at which to stop here, which is the same in all
 * processes; 0: go on. *out_save: all
 * save a checkpoint here; NULL: the command has none. */
int cli_stop_before(cli_session *s, uint64_t step, bool *out_save);
void cli_close(cli_session *s);
/* Binds to --bind, --pin and the given tensors; free dimensions get defaults. A tensor whose value
 * decides shapes is pinned. */
int cli_bind(const cli_options *options, cli_session *s, const cli_tensor *tensors,
             uint32_t n_tensors);
/* True if nothing of the bound model is left for a request to compute. */
bool cli_computes_nothing(const cli_session *s);
/* One number of a --bind text: "batch=2,seq=16". A comma separates only if a '=' follows, since
 * names may be expressions. */
typedef struct cli_dim_text {
  const char *next, *name; /* name NULL: the end */
  size_t n_name;
  int64_t value;
} cli_dim_text;
int cli_bind_next(const char *text, cli_dim_text *io);
/* --plan FILE, or a new plan. n_stages 0: defaults of `run`. */
int cli_make_plan(const cli_options *options, cli_session *s, uint32_t n_stages,
                  opipe_plan **out_plan);
/* The same with training options (NULL: for inference). */
int cli_make_train_plan(const cli_options *options, cli_session *s, uint32_t n_stages,
                        const opipe_train_options *train, opipe_plan **out_plan);
/* Changes the options to those of the uncut model: one stage, one rank, one micro-batch, no copies,
 * no caps; on the first device, or on backend cpu if several kinds are given. */
void cli_cut_nothing(cli_options *io_options);
/* True if --pin fixes the input. pins.c */
bool cli_is_pinned(const cli_options *o, const char *input);
/* Reads numbers from text, or a .npy file, in the type of the model's input. pins.c */
int cli_pin_read(const opipe_tensor_info *info, const char *value, cli_tensor *out);
/* Reports why there is no plan, with the shape asked for if that may be the reason. asked.c */
void cli_report_plan(const cli_options *o, bool of_shape, const opipe_error *err);
/* Reports that `where` names an input that the model lacks, and lists its inputs. asked.c */
int cli_no_input(const cli_session *s, const char *where, const char *name);
/* Reports two different sizes given for one dimension, by tensors or --bind: "a has 20 rows, b 7:
 * both are dimension 'batch'". False: there are none. asked.c */
bool cli_contradiction(const cli_options *o, const cli_session *s, const cli_tensor *tensors,
                       uint32_t n, char *out, size_t room);
/* Finds the model's input by a name of n bytes; false: none. */
bool cli_input_info(const cli_session *s, const char *name, size_t n, opipe_tensor_info *out);
/* True if the message names a key=value of NAME:key=value,... asked.c */
bool cli_is_wrong_setting(const char *spec, const char *message);
uint32_t cli_cores(void);
bool cli_is_terminal(void); /* Digits after the decimal point of a rate, printed as "%.*f": three or
                               four significant ones, whole numbers from 100 on. */
static inline int cli_rate_digits(double per_second) {
  return per_second < 1 ? 4 : per_second < 10 ? 3 : per_second < 100 ? 2 : 0;
}
/* standard error: where progress is shown */
void cli_progress_end(void); /* removes the line of progress before another line. progress.c */

/* Makes random values for every input of the bound model that is not given: integers below the
 * smallest extent that they index, masks 1, floats normal. Appends to tensors [room]. */
int cli_draw_inputs(const cli_session *s, uint64_t seed, cli_tensor *tensors, uint32_t *io_n,
                    uint32_t room);

/* ---- running ---- */

typedef struct cli_result {
  cli_tensor *outputs; /* [n_outputs] malloc'ed; of the last request */
  uint32_t n_outputs;
  uint64_t *digests; /* [n_requests * n_outputs] digests of every request's outputs; NULL: not asked
                        for */
  uint32_t n_requests;
} cli_result;
void cli_result_free(cli_result *result);

typedef struct cli_timing {
  uint32_t n;
  double total_s, mean_ms, p50_ms, p90_ms, p99_ms;
  double interval_ms;     /* between ends of requests in the later half; for one request: its
                             latency */
  uint64_t fullest_bytes; /* of the fullest rank, as measured by the session */
  bool of_nothing;        /* every output is known without a request */
} cli_timing;
typedef struct cli_streaming {
  uint32_t n;             /* requests, at least 1, all with the same inputs */
  uint32_t at_once;       /* in flight; 0: twice as many as stages */
  uint32_t session_flags; /* OPIPE_SESSION_* */
  const char *trace;      /* file for the last request; NULL: none */
  bool digests;           /* make digests of all outputs, to compare with another run */
  bool gathers;           /* in a team: process 0 gets all outputs */
} cli_streaming;
/* Runs requests in a session of their own; keeps the last one's outputs, and digests if asked for.
 */
int cli_stream(cli_session *s, opipe_plan *plan, const cli_streaming *how, const cli_tensor *inputs,
               uint32_t n_inputs, cli_result *out, cli_timing *timing);
/* Bytes of the fullest rank of an open session. */
uint64_t cli_fullest_rank(const opipe_api *api, opipe_session *session);
/* All of `run`: binds, makes random values for missing inputs (tensors [room], *io_n of them),
 * makes and prints the plan, streams the requests. In JSON the plan is the first member of an
 * object; the caller adds others. */
int cli_stream_model(const cli_options *options, cli_session *s, cli_tensor *tensors,
                     uint32_t *io_n, uint32_t room, const cli_json *json, cli_result *out,
                     cli_timing *timing);

/* How much correct results may differ if numbers are rounded to few bits on the way; one per
 * output. rounding.c */
typedef struct cli_rounding {
  double largest, rms; /* 0: nothing is rounded */
} cli_rounding;
/* Finds it by running the uncut model with noise before everything that rounds; out [n_outputs] of
 * `result`. */
int cli_find_rounding(const cli_options *options, const cli_session *s, const cli_tensor *inputs,
                      uint32_t n_inputs, const cli_result *result, cli_rounding *out);
/* True if `a` and `b` differ by no more than this plus `allowed` for each element. */
bool cli_within_rounding(const cli_rounding *rounding, const cli_tensor *a, const cli_tensor *b,
                         double allowed);

/* Differences of two tensors: max|a-b|, max|b|, and whether bits are equal. -1: type or shape
 * differ (printed). */
typedef struct cli_difference {
  double largest, scale; /* max |a - b|, max |b| */
  size_t at;             /* where */
  bool bit_equal, shapes_differ, finite;
} cli_difference;
void cli_compare(const cli_tensor *a, const cli_tensor *b, cli_difference *out);
/* Distance of elements i, for complex ones in the plane; 0 if both are NaN, or the same infinity.
 */
double cli_distance(const cli_tensor *a, const cli_tensor *b, size_t i);
/* Element-wise |a - b| <= atol + rtol |b|; NaN equals NaN. Returns the number of elements outside.
 */
size_t cli_compare_elements(const cli_tensor *a, const cli_tensor *b, double rtol, double atol,
                            size_t *out_first);

/* ---- training ---- */

/* Makes a training plan's options from the command's texts; `out` points into `o` and `own`.
 * n_steps: at the end of this run, for learning rates. shift: of cross entropy if --loss does not
 * state it. */
typedef struct cli_train_own {
  char text[3][1024];
  opipe_train_glob globs[CLI_LIST_MOST];
} cli_train_own;
int cli_train_read(const cli_options *o, uint64_t n_steps, uint32_t shift, cli_train_own *own,
                   opipe_train_options *out);
/* --replicas: copies of the whole pipeline, or of single stages with numbers in `list`; several
 * numbers give the number of stages. */
int cli_read_replicas(const char *text, uint32_t n_stages, uint32_t list[CLI_LIST_MOST],
                      opipe_plan_params *out);
/* Rows of a batch that was not given: --batch, or one for every micro-batch and, within it, for
 * every replica of the stage that most replicas split (--replicas or --plan); 0: one. */
int cli_rows_chosen(const cli_options *o, uint32_t *out_rows);
/* --parameter: graph inputs to turn into initializers. `tensors` [CLI_LIST_MOST] own the data. */
int cli_train_parameters(const cli_options *o, cli_tensor *tensors, opipe_pin *pins,
                         uint32_t *out_n);

/* Commands. */
int cli_inspect(const cli_options *options);
int cli_plan(const cli_options *options);
int cli_simulate(const cli_options *options);
int cli_profile(const cli_options *options);
int cli_tune(const cli_options *options);
int cli_run(const cli_options *options);
int cli_train(const cli_options *options);
int cli_plugins(const cli_options *options);
int cli_schedule(const cli_options *options);
int cli_launch(const cli_options *options);
int cli_follow(const cli_options *options);
/* plan: whether the model is a folder, or an option of generation was given; the plan, shown by
 * `give`. generate.c */
bool cli_asks_generation(const cli_options *o);
typedef int (*cli_give_plan)(const cli_options *o, const cli_session *s);
int cli_plan_generation(const cli_options *o, cli_give_plan give);
int cli_generate(const cli_options *options);
/* run DIR: every data set of a folder in the ONNX backend-test layout. */
int cli_run_folder(const cli_options *options);
/* Percent-encodes all but letters, digits, '.', '_', '-'. */
void cli_encode_name(const char *name, char *out, size_t room);
int cli_write_outputs(const char *directory, const cli_result *result);
/* Are values of the plan's ranks added in an order of the transport's own? */
bool cli_is_unordered(const cli_session *session, opipe_plan *plan);
/* --reference: the plan's stages run one by one, and the uncut model; in a team by process 0, with
 * one status for all. status: how this process has fared so far. */
int cli_compare_with_reference(const cli_options *options, const cli_session *s,
                               const cli_tensor *inputs, uint32_t n_inputs, int status,
                               const cli_result *result, const cli_json *json);
/* Prints the plan, or begins the JSON document with it. run.c */
int cli_show_plan(const cli_session *s, const cli_json *json);
/* Prints the outputs (as text only if `shows`) and the timing. */
int cli_print_result(const cli_session *s, const cli_result *result, const cli_timing *timing,
                     bool shows, const cli_json *json);

/* ---- described clusters: play.c ---- */

/* The text of --cluster, a file or a name; to be freed. */
int cli_cluster_text(const cli_options *o, const cli_session *s, cli_gathered *out_text);
typedef struct cli_play {
  opipe_play_params params; /* points into the two below: do not move */
  opipe_stage_load load;
  cli_gathered text;
} cli_play;
/* Reads the options. Without --cluster none is set, and a plan is played on its own devices and
 * link. out->text.data is to be freed, on failure too. */
int cli_play_begin(const cli_options *o, const cli_session *s, cli_play *out);

#endif /* CLI_H */
