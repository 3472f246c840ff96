/* SPDX-License-Identifier: Apache-2.0 */
/* inspect, plan, plugins. */
#include <stdlib.h>
#include <string.h>

#include "measure.h"
#include "page.h"
#include "train.h"

/* --train: lists trainable initializers, and why. */
static int describe_training(const cli_options *o, const cli_session *s, uint32_t format) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_train_options options;
  cli_train_own *own = calloc(1, sizeof(*own));
  if (own == NULL)
    return cli_fail("out of memory");
  int status = cli_train_read(o, 1, 0, own, &options);
  if (status == CLI_DONE)
    status = cli_check_globs(o, s, &options);
  if (status == CLI_DONE &&
      s->api->model_describe_training(s->bound, &options, format, cli_write_stdout, NULL, &err) < 0)
    status = cli_report(o->model, &err);
  free(own);
  return status;
}

int cli_inspect(const cli_options *o) {
  cli_session s;
  opipe_error err = OPIPE_ERROR_INIT;
  cli_options own = *o;
  if (!o->train) /* a graph can be inspected without its weights */
    own.graph.load_flags |= OPIPE_LOAD_GRAPH_ONLY;
  int status = cli_open(&own, &s);
  if (status == CLI_DONE)
    status = cli_bind(&own, &s, NULL, 0);
  if (s.file != NULL) {
    /* A model that could not be bound is still described, as it is in the file. */
    opipe_model *model = s.bound != NULL ? s.bound : s.file;
    const uint32_t format = o->out.json ? OPIPE_FORMAT_JSON : OPIPE_FORMAT_TEXT;
    if (o->train && status == CLI_DONE)
      status = describe_training(o, &s, format);
    else if (s.api->model_describe(model, format, cli_write_stdout, NULL, &err) < 0)
      status = cli_report(o->model, &err);
  }
  cli_close(&s);
  return status;
}

/* Prints the plan and writes the files asked for. */
static int give_plan(const cli_options *o, const cli_session *s) {
  opipe_error err = OPIPE_ERROR_INIT;
  cli_gathered g = {NULL, 0, 0};
  const uint32_t format = o->out.json ? OPIPE_FORMAT_JSON : OPIPE_FORMAT_TEXT;
  int status = CLI_DONE;
  if (s->api->plan_describe(s->plan, format, cli_write_stdout, NULL, &err) < 0)
    return cli_report("plan", &err);
  if (o->measures && o->out.json)
    (void)puts("}"); /* ends the object that --measure began */
  if (o->out.output != NULL) {
    status = cli_write_gathered(s->api->plan_write(s->plan, cli_gather, &g, &err), o->out.output,
                                &g, &err);
  }
  if (status == CLI_DONE && o->out.annotate != NULL) {
    g = (cli_gathered){NULL, 0, 0};
    status = cli_write_model(s->api->plan_annotate(s->plan, cli_gather, &g, &err), o->out.annotate,
                             &g, &err);
  }
  return status;
}

/* A plan may be trained for any number of steps, so the end of a learning rate schedule is not
 * guessed from one epoch. */
static int check_rates(const cli_options *o) {
  const char *rates = o->t.lr_schedule;
  if (rates == NULL || strncmp(rates, "constant", 8) == 0 || strstr(rates, "total=") != NULL ||
      o->t.n_steps != 0 || o->t.n_epochs != 0)
    return CLI_DONE;
  return cli_usage(
      "--lr-schedule %s: a plan does not know how many steps it is for: total=N or "
      "--steps N is needed",
      rates);
}

/* Makes the plan that train would run. */
static int plan_training(const cli_options *o) {
  train_setup *t = calloc(1, sizeof(*t));
  if (t == NULL)
    return cli_fail("out of memory");
  int status = check_rates(o);
  if (status == CLI_DONE)
    status = train_setup_open(t, o, o->measures);
  if (status == CLI_DONE && o->measures)
    status = cli_measure(&t->o, &t->s, &t->strategy, &t->run);
  if (status == CLI_DONE && t->strategy.api != NULL)
    status = cli_give_strategy(o, &t->strategy, t->s.plan == NULL);
  if (status == CLI_DONE && t->s.plan != NULL)
    status = give_plan(&t->o, &t->s);
  if (status == CLI_DONE)
    status = cli_give_page(&t->o, &t->s, &t->strategy);
  train_setup_close(t);
  free(t);
  return status;
}

/* Prints a planner's answer, and makes the plan if there is a model. */
static int plan_by_planner(const cli_options *o, cli_session *s) {
  cli_strategy strategy = {.api = NULL};
  const uint64_t batch = o->t.batch != 0 ? o->t.batch : cli_bound_batch(s);
  int status = cli_planner_plan(o, s, NULL, batch, &strategy, &s->plan);
  if (status == CLI_DONE && o->measures)
    status = cli_measure(o, s, &strategy, NULL);
  if (status == CLI_DONE)
    status = cli_give_strategy(o, &strategy, s->plan == NULL);
  if (status == CLI_DONE)
    status = cli_give_page(o, s, &strategy);
  cli_strategy_end(&strategy);
  return status;
}

/* --measure times every node before plans are made. */
static void measure_costs(cli_options *io_options) {
  if (io_options->measures)
    io_options->plan.cost = OPIPE_COST_MEASURED;
}

int cli_plan(const cli_options *given) {
  cli_strategy none = {.api = NULL};
  cli_session s;
  cli_options own = *given;
  const cli_options *o = &own;
  measure_costs(&own);
  if (cli_check_measure(o) != CLI_DONE)
    return CLI_USAGE;
  if (cli_try_pages(o) != CLI_DONE)
    return CLI_FAILED;
  if (o->model == NULL && o->n_operands > 1)
    return cli_explain(o);
  if (cli_asks_generation(o))
    return cli_plan_generation(o, give_plan);
  if (o->train && o->model != NULL)
    return plan_training(o);
  int status = cli_open(o, &s);
  if (status == CLI_DONE && o->model != NULL)
    status = cli_bind(o, &s, NULL, 0);
  if (status == CLI_DONE)
    status = cli_check_planner(o, &s);
  if (status == CLI_DONE && cli_asks_planner(o, &s))
    status = plan_by_planner(o, &s);
  else if (status == CLI_DONE)
    status = cli_make_plan(o, &s, 0, &s.plan);
  if (status == CLI_DONE && o->measures && !cli_asks_planner(o, &s))
    status = cli_measure(o, &s, &none, NULL);
  if (status == CLI_DONE && s.plan != NULL)
    status = give_plan(o, &s);
  if (status == CLI_DONE && !cli_asks_planner(o, &s))
    status = cli_give_page(o, &s, &none);
  cli_close(&s);
  return status;
}

static opipe_status drop_refused(void *ctx, const void *data, size_t n) {
  /* Lines of refused and shadowed candidates, the line after each with the reason, and details of
   * plugins are only for --why. */
  const char *at = data, *end = at + n;
  bool *skipping = ctx;
  while (at < end) {
    const char *newline = memchr(at, '\n', (size_t)(end - at));
    const char *next = newline == NULL ? end : newline + 1;
    if (*at != ' ')
      *skipping = strncmp(at, "refused", 7) == 0 || strncmp(at, "shadowed", 8) == 0;
    const bool detail = strncmp(at, "          - ", 12) == 0;
    if (!*skipping && !detail && fwrite(at, 1, (size_t)(next - at), stdout) != (size_t)(next - at))
      return OPIPE_E_IO;
    at = next;
  }
  return OPIPE_OK;
}

int cli_plugins(const cli_options *o) {
  cli_session s;
  opipe_error err = OPIPE_ERROR_INIT;
  bool skipping = false;
  int status = cli_open(o, &s);
  if (status == CLI_DONE) {
    const bool all = o->out.why || o->out.json;
    const uint32_t format = o->out.json ? OPIPE_FORMAT_JSON : OPIPE_FORMAT_TEXT;
    if (s.api->context_plugins(s.context, format, all ? cli_write_stdout : drop_refused, &skipping,
                               &err) < 0)
      status = cli_report("plugins", &err);
  }
  cli_close(&s);
  return status;
}
