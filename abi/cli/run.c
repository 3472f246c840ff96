/* SPDX-License-Identifier: Apache-2.0 */
/* run MODEL: inputs from files or random, the plan, one request or a stream, outputs, and the
 * comparison with the reference. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "planning.h"

enum { OUTPUTS_SHOWN = 4 }; /* elements of each */

static int read_inputs(const cli_options *o, cli_tensor *tensors, uint32_t *out_n) {
  for (uint32_t i = 0; i < o->inputs.n; ++i) {
    const char *text = o->inputs.items[i], *equals = strchr(text, '=');
    cli_tensor *t = &tensors[*out_n];
    if (equals == NULL || equals == text)
      return cli_usage("--input %s: NAME=FILE is needed", text);
    const size_t n_name = (size_t)(equals - text);
    for (uint32_t k = 0; k < *out_n; ++k) {
      if (strlen(tensors[k].name) == n_name && memcmp(tensors[k].name, text, n_name) == 0)
        return cli_usage("--input %s: input '%s' is given already", text, tensors[k].name);
    }
    const size_t n = strlen(equals + 1);
    const bool proto = n > 3 && strcmp(equals + 1 + n - 3, ".pb") == 0;
    const int read = proto ? cli_pb_read(equals + 1, t) : cli_npy_read(equals + 1, t);
    if (read != CLI_DONE)
      return read;
    ++*out_n;
    if (!cli_tensor_name(t, text, n_name))
      return cli_fail("out of memory");
  }
  return CLI_DONE;
}

/* Percent-encodes all but letters, digits, '.', '_', '-', so that any tensor name is a file name;
 * also encodes the dots of "." and "..". */
void cli_encode_name(const char *name, char *out, size_t room) {
  const bool special = strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
  size_t n = 0;
  for (const char *at = name; *at != '\0' && n + 4 < room; ++at) {
    const unsigned char c = (unsigned char)*at;
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '_' || c == '-' || (c == '.' && !special);
    n += (size_t)snprintf(out + n, room - n, plain ? "%c" : "%%%02X", c);
  }
  out[n] = '\0';
}

int cli_write_outputs(const char *directory, const cli_result *result) {
  if (mkdir(directory, 0777) != 0 && errno != EEXIST) {
    (void)fprintf(stderr, "onnx-pipe: cannot make %s: %s\n", directory, strerror(errno));
    return CLI_FAILED;
  }
  for (uint32_t i = 0; i < result->n_outputs; ++i) {
    char name[800], path[4096];
    cli_encode_name(result->outputs[i].name, name, sizeof(name));
    (void)snprintf(path, sizeof(path), "%s/%s.npy", directory, name);
    if (cli_npy_write(path, &result->outputs[i]) != CLI_DONE)
      return CLI_FAILED;
  }
  return CLI_DONE;
}

/* A single request has a single latency. */
static void print_timing(const cli_timing *t) {
  if (t->of_nothing)
    (void)puts("every output is known without a request: no node is left to compute");
  else if (t->n == 1)
    (void)printf("1 request in %.3f s: latency %.3f ms\n", t->total_s, t->mean_ms);
  if (t->of_nothing || t->n == 1)
    return;
  (void)printf(
      "%u requests in %.3f s: %.2f per second; latency mean %.3f ms, median %.3f, 90 %% %.3f, "
      "99 %% %.3f\n",
      t->n, t->total_s, t->n / t->total_s, t->mean_ms, t->p50_ms, t->p90_ms, t->p99_ms);
}

static void print_outputs(const cli_result *result) {
  for (uint32_t i = 0; i < result->n_outputs; ++i) {
    const cli_tensor *t = &result->outputs[i];
    (void)printf("output %-20s %-8s [", t->name, cli_dtype_name(t->dtype));
    for (uint32_t d = 0; d < t->rank; ++d)
      (void)printf(d == 0 ? "%lld" : ", %lld", (long long)t->shape[d]);
    (void)printf("]");
    const size_t n = cli_elems(t);
    char text[CLI_NUMBER_TEXT];
    for (size_t e = 0; e < n && e < OUTPUTS_SHOWN; ++e)
      (void)printf(e == 0 ? "  %s" : " %s", cli_tensor_text(t, e, text));
    (void)printf(n > OUTPUTS_SHOWN ? " ...\n" : "\n");
  }
}

/* A complex number: [real, imaginary]. */
static void put_number(FILE *json, const cli_tensor *t, size_t e) {
  const bool complex = opipe_dtype_row_of(t->dtype)->elements == OPIPE_ELEM_COMPLEX;
  (void)fputs(complex ? "[" : "", json);
  cli_json_number(json, cli_tensor_get(t, e));
  (void)fputs(complex ? ", " : "", json);
  if (complex)
    cli_json_number(json, cli_tensor_imaginary(t, e));
  (void)fputs(complex ? "]" : "", json);
}

static void put_output(const cli_tensor *t, FILE *json) {
  (void)fputs("{\"name\": ", json);
  cli_json_text(json, t->name);
  (void)fprintf(json, ", \"type\": \"%s\", \"shape\": [", cli_dtype_name(t->dtype));
  for (uint32_t d = 0; d < t->rank; ++d)
    (void)fprintf(json, d == 0 ? "%lld" : ", %lld", (long long)t->shape[d]);
  (void)fputs("], \"first\": [", json);
  for (size_t e = 0; e < cli_elems(t) && e < OUTPUTS_SHOWN; ++e) {
    (void)fputs(e == 0 ? "" : ", ", json);
    put_number(json, t, e);
  }
  (void)fputs("]}", json);
}

/* A line for each output that this process has: its number among the model's, and the object. */
static bool list_outputs(const cli_session *s, const cli_result *result, cli_gathered *out) {
  opipe_tensor_info info = opipe_tensor_info_init();
  FILE *lines = open_memstream(&out->data, &out->n);
  for (uint32_t i = 0; lines != NULL && s->api->model_output(s->bound, i, &info, NULL) >= 0; ++i) {
    for (uint32_t k = 0; k < result->n_outputs; ++k) {
      if (strcmp(result->outputs[k].name, info.name) != 0)
        continue;
      (void)fprintf(lines, "%u ", i);
      put_output(&result->outputs[k], lines);
      (void)fputc('\n', lines);
      break;
    }
  }
  return lines != NULL && fclose(lines) == 0;
}

/* The lines of all processes in the order of the model's outputs. */
static int put_outputs(const cli_session *s, const cli_result *result, FILE *json) {
  cli_gathered own = {NULL, 0, 0}, all = {NULL, 0, 0};
  opipe_model_info info = opipe_model_info_init();
  (void)s->api->model_info(s->bound, &info, NULL);
  const bool listed = list_outputs(s, result, &own);
  const int status = cli_lines_of_all(s, listed ? &own : NULL, &all);
  (void)fputs(", \"outputs\": [", json);
  bool first = true;
  for (uint32_t i = 0; i < info.n_outputs && status == CLI_DONE; ++i) {
    const char *line = cli_line_of(&all, i);
    if (line == NULL)
      continue;
    (void)fprintf(json, "%s%.*s", first ? "" : ", ", (int)strcspn(line, "\n"), line);
    first = false;
  }
  (void)fputs("]", json);
  free(own.data);
  free(all.data);
  return status;
}

int cli_print_result(const cli_session *s, const cli_result *result, const cli_timing *t,
                     bool shows, const cli_json *json) {
  if (json->file == NULL) {
    if (shows)
      print_outputs(result);
    print_timing(t);
    return CLI_DONE;
  }
  (void)fprintf(json->file,
                ", \"requests\": %u, \"seconds\": %.6f, \"requests_per_s\": %.4f, "
                "\"latency_ms\": {\"mean\": %.4f, \"p50\": %.4f, \"p90\": %.4f, \"p99\": %.4f}",
                t->n, t->total_s, t->n / t->total_s, t->mean_ms, t->p50_ms, t->p90_ms, t->p99_ms);
  return put_outputs(s, result, json->file);
}

static int widen_inputs(const cli_session *s, cli_tensor *tensors, uint32_t n) {
  opipe_tensor_info info = {.struct_size = sizeof(info)};
  for (uint32_t i = 0; s->api->model_input(s->file, i, &info, NULL) == OPIPE_OK; ++i) {
    for (uint32_t t = 0; t < n; ++t) {
      if (strcmp(tensors[t].name, info.name) == 0 && !cli_tensor_widen(&tensors[t], info.dtype))
        return cli_fail("out of memory");
    }
  }
  return CLI_DONE;
}

static int plan_by_planner(const cli_options *o, cli_session *s) {
  cli_strategy strategy = {.api = NULL};
  int status = CLI_DONE;
  if (s->team_rank == 0)
    status = cli_planner_plan(o, s, NULL, cli_bound_batch(s), &strategy, &s->plan);
  if (status == CLI_DONE && s->team_rank == 0 && s->plan == NULL)
    status = cli_usage("--hypothetical: there is no plan to run");
  status = cli_share_plan(s, status);
  if (status == CLI_DONE && strategy.api != NULL)
    status = cli_give_strategy(o, &strategy, false);
  cli_strategy_end(&strategy);
  return status;
}

/* A plan for training cannot run requests. */
static int check_is_of_requests(const cli_options *o, const cli_session *s) {
  opipe_train_options training = opipe_train_options_init();
  if (o->plan.plan_file == NULL || s->api->plan_training(s->plan, &training, NULL) < 0)
    return CLI_DONE;
  (void)cli_usage("--plan %s is a plan for training: 'onnx-pipe train' takes it",
                  o->plan.plan_file);
  return CLI_FAILED;
}

int cli_show_plan(const cli_session *s, const cli_json *json) {
  opipe_error err = OPIPE_ERROR_INIT;
  const bool people = json->file == NULL;
  if (!people)
    (void)fputs("\"plan\": ", json->file);
  const uint32_t format = people ? OPIPE_FORMAT_TEXT : OPIPE_FORMAT_JSON;
  return s->api->plan_describe(s->plan, format, cli_write_stream, people ? stdout : json->file,
                               &err) < 0
             ? cli_report("plan", &err)
             : CLI_DONE;
}

/* A stream over a model with nothing left to compute measures nothing. */
static int check_requests(const cli_options *o, const cli_session *s) {
  if (o->run.n_requests == 0 || !cli_computes_nothing(s))
    return CLI_DONE;
  if (s->pinned[0] == '\0' && o->plan.pins.n == 0) {
    return cli_usage("--requests %u: the model has no node to compute, whatever the inputs are",
                     o->run.n_requests);
  }
  return cli_usage(
      "--requests %u: with %s%s%s pinned, every output is a constant and no node is left to "
      "compute: run without --requests",
      o->run.n_requests, s->pinned[0] == '\0' ? "the inputs of --pin" : "input '", s->pinned,
      s->pinned[0] == '\0' ? "" : "'");
}

/* In a team process 0 gets all outputs, where they are written or compared, or rows of one are made
 * in several processes. */
static int want_outputs(const cli_options *o, const cli_session *s, cli_streaming *io_how) {
  bool split = false;
  const int status = cli_outputs_are_split(s, &split);
  io_how->gathers = s->team != NULL && (split || o->out.output != NULL || o->run.check != NULL ||
                                        o->run.reference || o->out.json);
  io_how->session_flags |= io_how->gathers ? OPIPE_SESSION_OUTPUTS_TO_0 : 0u;
  return status;
}

int cli_stream_model(const cli_options *o, cli_session *s, cli_tensor *tensors, uint32_t *io_n,
                     uint32_t room, const cli_json *json, cli_result *out, cli_timing *timing) {
  const uint32_t cores = cli_cores();
  cli_streaming how = {.n = o->run.n_requests == 0 ? 1 : o->run.n_requests,
                       .session_flags = cli_session_flags(o),
                       .trace = o->out.trace,
                       .digests = o->run.reference && s->team_rank == 0};
  timing->n = 0;
  int status = widen_inputs(s, tensors, *io_n);
  if (status == CLI_DONE && o->out.trace != NULL && s->team_rank == 0)
    status = cli_try_file(o->out.trace);
  if (status == CLI_DONE && o->out.output != NULL && s->team_rank == 0)
    status = cli_try_folder(o->out.output);
  if (status == CLI_DONE)
    status = cli_bind(o, s, tensors, *io_n);
  if (status == CLI_DONE)
    status = check_requests(o, s);
  if (status == CLI_DONE)
    status = cli_draw_inputs(s, o->seed, tensors, io_n, room);
  if (status == CLI_DONE)
    status = cli_check_planner(o, s);
  if (status == CLI_DONE && cli_asks_planner(o, s))
    status = plan_by_planner(o, s);
  else if (status == CLI_DONE)
    status = cli_make_plan(o, s, cores < 8 ? cores : 8, &s->plan);
  if (status == CLI_DONE)
    status = check_is_of_requests(o, s);
  if (status == CLI_DONE)
    status = want_outputs(o, s, &how);
  if (status == CLI_DONE)
    status = cli_show_plan(s, json);
  if (status == CLI_DONE)
    status = cli_stream(s, s->plan, &how, tensors, *io_n, out, timing);
  timing->of_nothing = status == CLI_DONE && cli_computes_nothing(s);
  return status;
}

static int run_model(const cli_options *o, cli_session *s, cli_tensor *tensors, uint32_t *io_n,
                     uint32_t room) {
  cli_result result = {NULL};
  cli_timing timing;
  cli_json json;
  int status = cli_json_begin(o, &json);
  if (json.file != NULL)
    (void)fputc('{', json.file);
  if (status == CLI_DONE)
    status = cli_stream_model(o, s, tensors, io_n, room, &json, &result, &timing);
  if (status == CLI_DONE && s->team_rank != 0 && result.n_outputs != 0 && json.file == NULL) {
    cli_team_print(s); /* no other process has them */
    print_outputs(&result);
  } else if (status == CLI_DONE || (status >= CLI_SIGNALLED && timing.n != 0)) {
    const int printed = cli_print_result(s, &result, &timing, status == CLI_DONE, &json);
    status = status == CLI_DONE ? printed : status;
  }
  if (status == CLI_DONE && o->out.output != NULL && s->team_rank == 0)
    status = cli_write_outputs(o->out.output, &result);
  if (o->run.reference)
    status = cli_compare_with_reference(o, s, tensors, *io_n, status, &result, &json);
  cli_result_free(&result);
  if (json.file != NULL)
    (void)fputs("}\n", json.file);
  return cli_json_end(&json, status);
}

int cli_run(const cli_options *given) {
  cli_options own = *given;
  const cli_options *o = &own;
  struct stat st;
  cli_session s;
  uint32_t n = 0;
  const bool there = stat(o->model, &st) == 0; /* otherwise opening it reports the error */
  if (there && S_ISDIR(st.st_mode))
    return cli_run_folder(o);
  if (there && o->run.check != NULL)
    return cli_usage("--check needs a model folder with data sets, %s is a file", o->model);
  int status = cli_open(o, &s);
  if (status == CLI_DONE)
    status = cli_join(&own, &s);
  opipe_model_info info = {.struct_size = sizeof(info)};
  if (status == CLI_DONE)
    (void)s.api->model_info(s.file, &info, NULL);
  const uint32_t room = info.n_inputs + o->inputs.n;
  cli_tensor *tensors = calloc(room + 1, sizeof(*tensors));
  if (status == CLI_DONE && tensors == NULL)
    status = cli_fail("out of memory");
  if (status == CLI_DONE)
    status = read_inputs(o, tensors, &n);
  if (status == CLI_DONE)
    status = run_model(o, &s, tensors, &n, room);
  status = cli_part(&s, status);
  cli_close(&s);
  for (uint32_t i = 0; tensors != NULL && i < room; ++i)
    cli_tensor_free(&tensors[i]);
  free(tensors);
  return status;
}
