/* SPDX-License-Identifier: Apache-2.0 */
/* generate FOLDER|MODEL: prompts in, tokens out. */
#include "generate.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "progress.h"

enum { CONTEXT = 1024, DRAFT = 8 }; /* if neither option nor folder says it */

/* ---- folders of ONNX Runtime GenAI ---- */

static int describe(const cli_options *o, const opipe_api *api, const char *path,
                    cli_gathered *out) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_context *context = NULL;
  void *text = NULL;
  size_t n = 0;
  (void)o;
  int status = cli_file_read(path, &text, &n);
  if (status != CLI_DONE)
    return status;
  if (api->context_create(NULL, &context, &err) < 0)
    status = cli_report("context", &err);
  else if (api->genai_describe(context, text, n, path, cli_gather, out, &err) < 0)
    status = cli_report(path, &err);
  api->context_destroy(context);
  free(text);
  return status;
}

/* Reads the folder's config: its model's path and its context. */
static int read_folder(const cli_options *o, cli_genai *out) {
  const opipe_api *api = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  char path[4096];
  cli_gathered text = {NULL, 0, 0};
  json_error_t error;
  (void)snprintf(path, sizeof path, "%s/genai_config.json", o->model);
  if (!cli_is_there(path)) {
    return cli_usage(
        "%s has no genai_config.json: a folder of ONNX Runtime GenAI or a model's file is needed",
        o->model);
  }
  if (opipe_get_api(OPIPE_VIEW, &api, &err) < 0)
    return cli_report("opipe_get_api", &err);
  const int status = describe(o, api, path, &text);
  out->config = status == CLI_DONE ? json_loadb(text.data, text.n, 0, &error) : NULL;
  free(text.data);
  if (status != CLI_DONE)
    return status;
  if (out->config == NULL)
    return cli_fail("%s: %s", path, error.text);
  const json_t *files = json_object_get(out->config, "files");
  if (json_array_size(files) != 1)
    return cli_fail("%s: the decoder is in %zu files, one is needed", path, json_array_size(files));
  (void)snprintf(out->model, sizeof out->model, "%s/%s", o->model,
                 json_string_value(json_array_get(files, 0)));
  out->context = (uint32_t)json_integer_value(json_object_get(out->config, "max_length"));
  return CLI_DONE;
}

typedef opipe_status (*tensor_of)(opipe_model *model, uint32_t index, opipe_tensor_info *io_info,
                                  opipe_error *err);

/* The first of the folder's names, one for each layer, that no tensor of the model has; NULL: all
 * are there. *out_n: how many are. */
static const char *find_missing(const cli_session *s, tensor_of tensor, const json_t *names,
                                size_t *out_n) {
  const char *missing = NULL;
  *out_n = 0;
  for (size_t k = 0; k < json_array_size(names); ++k) {
    const char *name = json_string_value(json_array_get(names, k));
    opipe_tensor_info info = opipe_tensor_info_init();
    bool there = false;
    for (uint32_t i = 0; !there && tensor(s->file, i, &info, NULL) == OPIPE_OK; ++i)
      there = strcmp(info.name, name) == 0;
    *out_n += there;
    missing = missing == NULL && !there ? name : missing;
  }
  return missing;
}

/* A folder's layers are the model's. */
static int check_folder(const cli_genai *folder, const cli_session *s) {
  const struct {
    const char *key, *what;
    tensor_of tensor;
  } rows[] = {{"past_keys", "input", s->api->model_input},
              {"past_values", "input", s->api->model_input},
              {"present_keys", "output", s->api->model_output},
              {"present_values", "output", s->api->model_output}};
  for (size_t i = 0; folder->config != NULL && i < sizeof rows / sizeof rows[0]; ++i) {
    const json_t *names = json_object_get(folder->config, rows[i].key);
    size_t n = 0;
    const char *missing = find_missing(s, rows[i].tensor, names, &n);
    if (missing != NULL) {
      return cli_fail("%s: genai_config.json names %zu layers, %zu are there: no %s is named '%s'",
                      folder->model, json_array_size(names), n, rows[i].what, missing);
    }
  }
  return CLI_DONE;
}

/* ---- plans ---- */

static bool is_folder(const char *path) {
  struct stat st;
  return path != NULL && stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

int cli_ask_generation(cli_options *io_options, cli_genai *out_folder) {
  opipe_generation_params *plan = &io_options->generate.plan;
  if (is_folder(io_options->model)) {
    const int status = read_folder(io_options, out_folder);
    if (status != CLI_DONE)
      return status;
    io_options->model = out_folder->model;
  }
  plan->struct_size = (uint32_t)sizeof *plan;
  plan->output = json_string_value(json_object_get(out_folder->config, "logits"));
  if (plan->context == 0)
    plan->context = out_folder->context;
  if (plan->context == 0 && io_options->plan.plan_file == NULL) {
    plan->context = CONTEXT;
    (void)fprintf(stderr, "context: %d tokens, as neither --context nor a folder says\n", CONTEXT);
  }
  if (io_options->generate.drafts == CLI_DRAFTS_NGRAM && plan->draft == 0)
    plan->draft = DRAFT;
  return CLI_DONE;
}

bool cli_asks_generation(const cli_options *o) {
  static const char *const names[] = {"context", "sequences", "groups", "page",
                                      "tokens",  "gap",       "gap-ms", "drafts"};
  bool asks = is_folder(o->model);
  for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i)
    asks = asks || cli_was_given(o, names[i]);
  return asks;
}

/* Reads what is asked for, before there is a session; `end` it in any case. */
static int begin(cli_options *io_options, cli_genai *out_folder, cli_session *out_session) {
  *out_folder = (cli_genai){.config = NULL};
  memset(out_session, 0, sizeof *out_session);
  return cli_ask_generation(io_options, out_folder);
}

static int end(const cli_genai *folder, cli_session *s, int status) {
  cli_close(s);
  json_decref(folder->config);
  return status;
}

int cli_plan_generation(const cli_options *given, cli_give_plan give) {
  cli_options own = *given;
  cli_genai folder;
  cli_session s;
  if (own.planner.name != NULL || own.planner.decides || own.train || own.measures ||
      own.model == NULL) {
    return cli_usage("a plan for generation: %s is not allowed",
                     own.train                  ? "--train"
                     : own.measures             ? "--measure"
                     : own.planner.name != NULL ? "--planner"
                     : own.model == NULL        ? "a description in place of a model"
                                                : "--auto");
  }
  own.generate.plan.rows = own.planner.samples;
  int status = begin(&own, &folder, &s);
  if (status == CLI_DONE)
    status = cli_open(&own, &s);
  if (status == CLI_DONE)
    status = check_folder(&folder, &s);
  if (status == CLI_DONE)
    status = cli_make_plan(&own, &s, 0, &s.plan);
  if (status == CLI_DONE)
    status = give(&own, &s);
  return end(&folder, &s, status);
}

static int open_session(const cli_options *o, cli_generating *g) {
  const cli_session *s = g->s;
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_session_params params = {.struct_size = sizeof params,
                                       .flags = cli_session_flags(o),
                                       .watchdog_ns = s->team == NULL ? 0 : s->watchdog_ns,
                                       .spin_us = UINT32_MAX,
                                       .local_ranks = s->here,
                                       .n_local_ranks = s->n_here,
                                       .team = s->team};
  cli_progress("loading the weights of the plan's stages");
  const opipe_status status = s->api->session_open(s->context, s->plan, &params, &g->session, &err);
  cli_progress_end();
  return status < 0 ? cli_report("session", &err) : CLI_DONE;
}

/* ---- requests ---- */

/* The requests as ids. In a team process 0 has them. */
static int read_asks(const cli_options *o, const cli_genai *folder, cli_tokenizer **io_tokenizer,
                     cli_asks *out) {
  int status = cli_asks_read(o, json_object_get(folder->config, "sampling"), out);
  if (status == CLI_DONE && cli_asks_have_text(out)) {
    status =
        folder->config == NULL
            ? cli_usage("a text needs the tokenizer of a folder, %s is a file: give ids", o->model)
            : cli_tokenizer_open(o->operands[0], io_tokenizer);
  }
  if (status == CLI_DONE)
    status = cli_asks_encode(out, *io_tokenizer);
  return status == CLI_DONE && o->out.trace != NULL ? cli_try_file(o->out.trace) : status;
}

/* Process 0 answers the requests; the others compute their part of its passes. */
static int answer(const cli_options *o, cli_generating *g, const cli_asks *asks,
                  const cli_json *json) {
  opipe_error err = OPIPE_ERROR_INIT;
  if (g->s->team_rank != 0) {
    return g->s->api->session_follow(g->session, &err) < 0 ? cli_report("following process 0", &err)
                                                           : CLI_DONE;
  }
  const int status = cli_generate_all(g, asks);
  if (status == CLI_DONE || status == CLI_FAILED)
    cli_print_generated(g, asks, json);
  return status == CLI_DONE && o->out.trace != NULL
             ? cli_write_trace(g->s, g->session, o->out.trace)
             : status;
}

static int compare(const cli_options *o, cli_session *s, const cli_asks *asks, int status,
                   const cli_json *json) {
  cli_session alone = cli_alone(s);
  status = cli_agree(s, "before the reference", status);
  if (status == CLI_DONE && s->team_rank == 0)
    status = cli_generate_alone(o, &alone, asks, json->file);
  return cli_status_of_0(s, status);
}

static int generate(const cli_options *o, cli_session *s, const cli_genai *folder,
                    const cli_json *json) {
  const uint32_t cores = cli_cores();
  cli_tokenizer *tokenizer = NULL;
  cli_asks asks = {NULL, 0, 0, NULL};
  cli_generating g = {.s = s, .lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};
  int status = s->team_rank == 0 ? read_asks(o, folder, &tokenizer, &asks) : CLI_DONE;
  status = cli_agree(s, "the requests", status);
  if (status == CLI_DONE)
    status = cli_make_plan(o, s, cores < 8 ? cores : 8, &s->plan);
  if (status == CLI_DONE)
    status = cli_show_plan(s, json);
  status = cli_agree(s, "before the session", status);
  if (status == CLI_DONE)
    status = open_session(o, &g);
  g.tokenizer = tokenizer;
  g.streams = asks.n == 1 && asks.list[0].n_answers == 1 && json->file == NULL;
  if (status == CLI_DONE)
    status = answer(o, &g, &asks, json);
  s->api->session_close(g.session);
  if (o->run.reference)
    status = compare(o, s, &asks, status, json);
  cli_asks_free(&asks);
  cli_tokenizer_close(tokenizer);
  return status;
}

/* Options of the model, or of several processes, that have no meaning here. */
static int check_options(const cli_options *o, const cli_session *s) {
  const char *name = o->graph.bind.n != 0    ? "bind"
                     : o->plan.pins.n != 0   ? "pin"
                     : o->graph.no_fuse      ? "no-fuse"
                     : o->graph.says_dropout ? "dropout"
                                             : NULL;
  if (name != NULL)
    return cli_usage("--%s: a plan for generation binds the model in its own way", name);
  return s->team == NULL || o->out.trace == NULL
             ? CLI_DONE
             : cli_usage("--trace %s: passes that several processes compute have none",
                         o->out.trace);
}

int cli_generate(const cli_options *given) {
  cli_options own = *given;
  cli_genai folder;
  cli_session s;
  cli_json json;
  int status = begin(&own, &folder, &s);
  if (status != CLI_DONE)
    return end(&folder, &s, status);
  status = cli_open(&own, &s);
  if (status == CLI_DONE)
    status = cli_join(&own, &s);
  if (status == CLI_DONE)
    status = check_options(&own, &s);
  const int begun = cli_json_begin(&own, &json);
  status = status == CLI_DONE ? begun : status;
  if (json.file != NULL)
    (void)fputc('{', json.file);
  if (status == CLI_DONE)
    status = check_folder(&folder, &s);
  if (status == CLI_DONE)
    status = generate(&own, &s, &folder, &json);
  if (json.file != NULL)
    (void)fputs("}\n", json.file);
  return end(&folder, &s, cli_part(&s, cli_json_end(&json, status)));
}
