/* SPDX-License-Identifier: Apache-2.0 */
/* schedule list|show|lower|check|simulate|draw|convert: schedules without a model. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "page.h"
#include "schedule_verdict.h"

typedef struct job {
  const cli_options *o;
  const char *verb, *what;
  const opipe_order_costs *costs;
  cli_session session;
  opipe_order *order;
  cli_play *play; /* with --cluster */
} job;

/* Refuses options about a cluster if there is none. */
static int check_played(const cli_options *o) {
  const struct {
    const char *name;
    bool given;
  } rows[] = {{"load", o->play.load != NULL},
              {"tensor", o->play.tensor != 0},
              {"copies", o->play.copies != 0},
              {"collective", o->play.collective != 0},
              {"sharded", (o->play.flags & OPIPE_PLAY_SHARDED) != 0},
              {"scattered", (o->play.flags & OPIPE_PLAY_SCATTERED) != 0},
              {"pipeline-first", (o->play.flags & OPIPE_PLAY_PIPELINE_FIRST) != 0}};
  for (size_t i = 0; o->plan.cluster == NULL && i < sizeof(rows) / sizeof(rows[0]); ++i) {
    if (rows[i].given) {
      return cli_usage("schedule: --%s applies to a described cluster: add --cluster",
                       rows[i].name);
    }
  }
  return CLI_DONE;
}

static int take_operands(job *j) {
  const cli_options *o = j->o;
  if (o->n_operands == 0)
    return cli_usage("schedule takes list, show, lower, check, simulate, draw or convert");
  j->verb = o->operands[0];
  if (cli_check_verb(j->verb) != CLI_DONE)
    return CLI_USAGE;
  const uint32_t wanted = strcmp(j->verb, "list") != 0, n = o->n_operands - 1;
  if (n != wanted) {
    return cli_usage("schedule %s takes %s, %u operands were given", j->verb,
                     wanted ? "one FILE or NAME" : "no operand", n);
  }
  j->what = wanted ? o->operands[1] : NULL;
  return CLI_DONE;
}

/* ---- orders ---- */

/* The file, or NULL for a schedule's name, which has neither folders nor endings. A file that
 * cannot be read, or is missing, is reported when it is read. */
static const char *file_of(const char *what) {
  struct stat info;
  if (strncmp(what, "file:", 5) == 0)
    return what + 5;
  if (stat(what, &info) == 0)
    return what;
  const size_t n = strcspn(what, ":");
  return memchr(what, '/', n) != NULL || memchr(what, '.', n) != NULL ? what : NULL;
}

/* `convert` takes no names. */
static int check_options(const job *j) {
  const bool is_file =
      j->what != NULL && (strcmp(j->verb, "convert") == 0 || file_of(j->what) != NULL);
  return cli_check_verb_options(j->o, j->verb, j->what, is_file);
}

/* Given options must agree with the file. */
static int check_numbers(const job *j) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_order_info info = {.struct_size = sizeof(info)};
  if (j->session.api->order_info(j->order, &info, &err) < 0)
    return cli_report(j->what, &err);
  const struct {
    const char *name;
    uint32_t given, found;
  } numbers[] = {{"ranks", j->o->plan.n_ranks, info.n_ranks},
                 {"stages", j->o->plan.n_stages, info.n_stages},
                 {"microbatches", j->o->plan.n_microbatches, info.n_microbatches}};
  for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); ++i) {
    if (numbers[i].given != 0 && numbers[i].given != numbers[i].found) {
      return cli_usage("--%s %u: the file has %u", numbers[i].name, numbers[i].given,
                       numbers[i].found);
    }
  }
  return CLI_DONE;
}

static const char *rule_of(const job *j) {
  static const char *const rules[] = {"tag", "stream", "edge", "pair", "blocking", "grouped"};
  return rules[j->o->order.rule];
}

/* Output of `check` for a refused order. */
static int answer_no(const job *j, const opipe_error *err) {
  if (j->o->out.json)
    cli_put_verdict(stdout, rule_of(j), err->message);
  (void)cli_report(j->what, err);
  return CLI_CHECK_FAILED;
}

/* Reports that there is no order. If `check` learns what is wrong with it, that is its answer,
 * whoever found it: reading and making already check some of what the proof does. */
static int refuse(const job *j, const char *what, opipe_status status, const opipe_error *err) {
  if (status == OPIPE_E_INVALID && strcmp(j->verb, "check") == 0 && cli_is_verdict(err->message))
    return answer_no(j, err);
  const int answer = cli_report_name(what, err);
  return status == OPIPE_E_INVALID && cli_is_wrong_setting(what, err->message) ? CLI_USAGE : answer;
}

static int read_file(job *j, const char *path) {
  opipe_error err = OPIPE_ERROR_INIT;
  void *text = NULL;
  size_t n = 0;
  int status = cli_file_read(path, &text, &n);
  if (status != CLI_DONE)
    return status;
  const opipe_status read =
      j->session.api->order_read(j->session.context, text, n, j->o->order.from, &j->order, &err);
  if (read < 0)
    status = refuse(j, path, read, &err);
  free(text);
  return status == CLI_DONE ? check_numbers(j) : status;
}

static int open_order(job *j) {
  opipe_error err = OPIPE_ERROR_INIT;
  const char *path = file_of(j->what);
  if (path != NULL && j->o->plan.improve)
    return cli_usage("--improve: %s is a file; NAME is needed, or search:from=file:%s", path, path);
  if (path != NULL)
    return read_file(j, path);
  if (strcmp(j->verb, "convert") == 0)
    return cli_usage("convert %s: there is no such file", j->what);
  if ((j->o->plan.n_ranks == 0 && j->o->plan.n_stages == 0) || j->o->plan.n_microbatches == 0) {
    return cli_usage("%s %s: --ranks and --microbatches are needed (there is no file of that name)",
                     j->verb, j->what);
  }
  const opipe_order_params params = {.struct_size = sizeof(params),
                                     .flags = (j->o->order.forward ? OPIPE_ORDER_FORWARD : 0) |
                                              (j->o->order.aligned ? OPIPE_ORDER_ALIGNED : 0) |
                                              (j->o->plan.improve ? OPIPE_ORDER_IMPROVE : 0),
                                     .schedule = j->what,
                                     .n_ranks = j->o->plan.n_ranks,
                                     .n_stages = j->o->plan.n_stages,
                                     .n_microbatches = j->o->plan.n_microbatches,
                                     .replicas = j->o->order.n_replicas,
                                     .costs = j->costs};
  const opipe_status made =
      j->session.api->order_make(j->session.context, &params, &j->order, &err);
  return made < 0 ? refuse(j, j->what, made, &err) : CLI_DONE;
}

/* ---- output ---- */

/* Output of a subcommand, gathered so that a file is only created on success. */
static opipe_status produce(job *j, opipe_order *order, FILE *out, opipe_error *err) {
  const opipe_api *api = j->session.api;
  const bool is_page = cli_ends_in(j->o->out.output, ".html");
  if (j->o->plan.cluster != NULL) {
    const uint32_t figures = j->o->out.json ? OPIPE_PLAY_JSON : OPIPE_PLAY_TEXT;
    const uint32_t picture = is_page ? OPIPE_PLAY_HTML : OPIPE_PLAY_SVG;
    j->play->params.title = j->what;
    return api->order_play(order, j->costs, &j->play->params,
                           strcmp(j->verb, "draw") == 0 ? picture : figures, cli_write_stream, out,
                           err);
  }
  if (strcmp(j->verb, "simulate") == 0) {
    return api->order_simulate(order, j->costs,
                               j->o->out.json ? OPIPE_FORMAT_JSON : OPIPE_FORMAT_TEXT,
                               cli_write_stream, out, err);
  }
  if (strcmp(j->verb, "draw") == 0 && is_page)
    return api->order_simulate(order, j->costs, OPIPE_FORMAT_HTML, cli_write_stream, out, err);
  if (strcmp(j->verb, "draw") == 0)
    return api->order_draw(order, j->costs, cli_write_stream, out, err);
  const uint32_t said = j->o->order.format;
  const uint32_t format = said != CLI_FORMAT_UNSAID ? said
                          : j->o->out.json          ? OPIPE_FORMAT_JSON
                                                    : OPIPE_FORMAT_CSV;
  return api->order_write(order, format, j->o->order.dialect, cli_write_stream, out, err);
}

static int write_order(job *j, opipe_order *order) {
  opipe_error err = OPIPE_ERROR_INIT;
  char *data = NULL;
  size_t n = 0;
  FILE *out = open_memstream(&data, &n);
  if (out == NULL)
    return cli_fail("out of memory");
  int status = produce(j, order, out, &err) < 0 ? cli_report(j->what, &err) : CLI_DONE;
  if (fclose(out) != 0 && status == CLI_DONE)
    status = cli_fail("out of memory");
  if (status == CLI_DONE && j->o->out.output != NULL)
    status = cli_write_file(j->o->out.output, data, n);
  else if (status == CLI_DONE && fwrite(data, 1, n, stdout) != n)
    status = CLI_FAILED;
  free(data);
  return status;
}

/* Status 1 when the proof refuses. */
static int prove(job *j) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_order_info info = {.struct_size = sizeof(info)};
  opipe_order *lowered = NULL;
  const opipe_api *api = j->session.api;
  if (api->order_info(j->order, &info, &err) < 0)
    return cli_report(j->what, &err);
  if (info.lowered != 0 && cli_was_given(j->o, "receives"))
    return cli_usage("--receives: %s has its messages already", j->what);
  opipe_status status = OPIPE_OK;
  if (info.lowered == 0)
    status = api->order_lower(j->order, j->o->order.receive_depth, 0, &lowered, &err);
  if (status == OPIPE_OK)
    status = api->order_check(lowered != NULL ? lowered : j->order, j->o->order.rule, &err);
  api->order_destroy(lowered);
  if (status == OPIPE_E_NOMEM || status == OPIPE_E_LIMIT)
    return cli_report(j->what, &err);
  if (status < 0)
    return answer_no(j, &err);
  if (j->o->out.json) {
    cli_put_verdict(stdout, rule_of(j), NULL);
  } else {
    (void)printf("proven: %u ranks, %u stages, %u micro-batches, rule %s\n", info.n_ranks,
                 info.n_stages, info.n_microbatches, rule_of(j));
  }
  return CLI_DONE;
}

static int lower(job *j) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_order *lowered = NULL;
  /* PyTorch's runtime reduces, frees and steps by itself: its tables have only messages. */
  const uint32_t flags = j->o->order.dialect == OPIPE_DIALECT_OPIPE ? 0 : OPIPE_LOWER_MESSAGES;
  if (j->session.api->order_lower(j->order, j->o->order.receive_depth, flags, &lowered, &err) < 0)
    return cli_report(j->what, &err);
  j->session.api->order_destroy(j->order); /* frees its memory for the text */
  j->order = NULL;
  const int status = write_order(j, lowered);
  j->session.api->order_destroy(lowered);
  return status;
}

static int list(job *j) {
  opipe_error err = OPIPE_ERROR_INIT;
  const uint32_t format = j->o->out.json ? OPIPE_FORMAT_JSON : OPIPE_FORMAT_TEXT;
  if (j->session.api->schedule_list(j->session.context, format, cli_write_stdout, NULL, &err) < 0)
    return cli_report("schedule list", &err);
  return CLI_DONE;
}

static int run_verb(job *j) {
  static const struct {
    const char *verb;
    int (*run)(job *j);
  } verbs[] = {{"list", list}, {"lower", lower}, {"check", prove}};
  for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); ++i) {
    if (strcmp(j->verb, verbs[i].verb) != 0)
      continue;
    const int status = j->what == NULL ? CLI_DONE : open_order(j);
    return status == CLI_DONE ? verbs[i].run(j) : status;
  }
  int status = open_order(j); /* the others write it */
  if (status == CLI_DONE && j->o->plan.cluster != NULL)
    status = cli_play_begin(j->o, &j->session, j->play);
  return status == CLI_DONE ? write_order(j, j->order) : status;
}

int cli_schedule(const cli_options *o) {
  const bool has_costs = o->plan.stage_costs.costs.struct_size != 0;
  cli_play play = {.load = {0}};
  job j = {
      .o = o, .play = &play, .costs = has_costs ? &o->plan.stage_costs.costs : &cli_unit_costs};
  int status = take_operands(&j);
  if (status == CLI_DONE)
    status = check_options(&j);
  if (status == CLI_DONE)
    status = check_played(o);
  if (status != CLI_DONE)
    return status;
  if (cli_ends_in(o->out.output, ".html") && cli_try_file(o->out.output) != CLI_DONE)
    return CLI_FAILED;
  status = cli_open(o, &j.session);
  if (status == CLI_DONE)
    status = run_verb(&j);
  if (j.session.api != NULL)
    j.session.api->order_destroy(j.order);
  free(play.text.data);
  cli_close(&j.session);
  return status;
}
