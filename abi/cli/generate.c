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
  if (plan->context == 0 && io_options->plan_file == NULL) {
    plan->context = CONTEXT;
    (void)fprintf(stderr, "context: %d tokens, as neither --context nor a folder says\n", CONTEXT);
  }
  if (io_options->generate.drafts == CLI_DRAFTS_NGRAM && plan->draft == 0)
    plan->draft = DRAFT;
  return CLI_DONE;
}

bool cli_asks_generation(const cli_options *o) {
  static const char *const names[] = {"context", "sequences", "groups", "page",
                                      "tokens",  "gap",       "drafts"};
  bool asks = is_folder(o->model);
  for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i)
    asks = asks || cli_was_given(o, names[i]);
  return asks;
}

int cli_plan_generation(const cli_options *given, cli_give_plan give) {
  cli_options own = *given;
  cli_genai folder = {.config = NULL};
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
  int status = cli_ask_generation(&own, &folder);
  if (status != CLI_DONE) {
    json_decref(folder.config);
    return status;
  }
  status = cli_open(&own, &s);
  if (status == CLI_DONE)
    status = check_folder(&folder, &s);
  if (status == CLI_DONE)
    status = cli_make_plan(&own, &s, 0, &s.plan);
  if (status == CLI_DONE)
    status = give(&own, &s);
  cli_close(&s);
  json_decref(folder.config);
  return status;
}

static int open_session(const cli_options *o, cli_generating *g) {
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_session_params params = {
      .struct_size = sizeof params, .flags = cli_session_flags(o), .spin_us = UINT32_MAX};
  cli_progress("loading the weights of the plan's stages");
  const opipe_status status =
      g->s->api->session_open(g->s->context, g->s->plan, &params, &g->session, &err);
  cli_progress_end();
  return status < 0 ? cli_report("session", &err) : CLI_DONE;
}

static int generate(const cli_options *o, cli_session *s, const cli_genai *folder,
                    const cli_json *json) {
  const uint32_t cores = cli_cores();
  cli_tokenizer *tokenizer = NULL;
  cli_asks asks = {NULL, 0, 0, NULL};
  cli_generating g = {.s = s, .lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};
  int status = cli_asks_read(o, json_object_get(folder->config, "sampling"), &asks);
  if (status == CLI_DONE && cli_asks_have_text(&asks)) {
    status =
        folder->config == NULL
            ? cli_usage("a text needs the tokenizer of a folder, %s is a file: give ids", o->model)
            : cli_tokenizer_open(o->operands[0], &tokenizer);
  }
  if (status == CLI_DONE)
    status = cli_asks_encode(&asks, tokenizer);
  if (status == CLI_DONE && o->trace != NULL)
    status = cli_try_file(o->trace);
  if (status == CLI_DONE)
    status = cli_make_plan(o, s, cores < 8 ? cores : 8, &s->plan);
  if (status == CLI_DONE)
    status = cli_show_plan(s, json);
  if (status == CLI_DONE)
    status = open_session(o, &g);
  g.tokenizer = tokenizer;
  g.streams = asks.n == 1 && asks.list[0].n_answers == 1 && json->file == NULL;
  if (status == CLI_DONE) {
    status = cli_generate_all(&g, &asks);
    if (status == CLI_DONE || status == CLI_FAILED)
      cli_print_generated(&g, &asks, json);
  }
  if (status == CLI_DONE && o->trace != NULL)
    status = cli_write_trace(s, g.session, o->trace);
  s->api->session_close(g.session);
  if (status == CLI_DONE && o->reference)
    status = cli_generate_alone(o, s, &asks, json->file);
  cli_asks_free(&asks);
  cli_tokenizer_close(tokenizer);
  return status;
}

int cli_generate(const cli_options *given) {
  cli_options own = *given;
  cli_genai folder = {.config = NULL};
  cli_session s;
  cli_json json;
  int status = cli_ask_generation(&own, &folder);
  if (status != CLI_DONE) {
    json_decref(folder.config);
    return status;
  }
  status = cli_open(&own, &s);
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
  cli_close(&s);
  json_decref(folder.config);
  return cli_json_end(&json, status);
}
