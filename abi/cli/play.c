/* SPDX-License-Identifier: Apache-2.0 */
/* Described clusters, and playing on them: simulate; schedule simulate and draw. */
#include <stdlib.h>
#include <string.h>

#include "page.h"
#include "train.h"
#include "values.h"

int cli_cluster_text(const cli_options *o, const cli_session *s, cli_gathered *out_text) {
  opipe_error err = OPIPE_ERROR_INIT;
  *out_text = (cli_gathered){NULL, 0, 0};
  if (s->api->cluster_find(s->context, o->plan.cluster, cli_gather, out_text, &err) == OPIPE_OK)
    return CLI_DONE;
  free(out_text->data);
  *out_text = (cli_gathered){NULL, 0, 0};
  return cli_report_name(o->plan.cluster, &err);
}

/* ---- --load ---- */

static int take_load(const char *spec, opipe_stage_load *out) {
  struct {
    const char *key;
    double *value;
    bool is_size;
  } const keys[] = {{"send", &out->send_bytes, true},
                    {"stash", &out->stash_bytes, true},
                    {"input", &out->input_bytes, true},
                    {"fixed", &out->fixed_bytes, true},
                    {"gradient", &out->gradient_bytes, true},
                    {"tensor", &out->tensor_bytes, true},
                    {"step", &out->step_ms, false},
                    {"recompute", &out->recompute_ms, false},
                    {"flops", &out->flops, false}};
  for (const char *at = spec; *at != '\0';) {
    const size_t n = strcspn(at, "="), n_value = strcspn(at + n, ",");
    char value[64];
    uint64_t size = 0;
    size_t k = 0;
    if (at[n] != '=' || n_value < 2 || n_value > sizeof value)
      return cli_usage("--load %s: KEY=VALUE is needed at '%s'", spec, at);
    memcpy(value, at + n + 1, n_value - 1);
    value[n_value - 1] = '\0';
    while (k < sizeof keys / sizeof keys[0] &&
           (strlen(keys[k].key) != n || memcmp(keys[k].key, at, n) != 0))
      ++k;
    if (n == 4 && memcmp(at, "sums", 4) == 0) {
      if (cli_take_count("load sums", value, 0, 1 << 16, &out->tensor_sums) != CLI_DONE)
        return CLI_USAGE;
    } else if (k == sizeof keys / sizeof keys[0]) {
      return cli_usage(
          "--load %s: send, stash, input, fixed, gradient, tensor, sums, step, "
          "recompute and flops are known",
          spec);
    } else if (keys[k].is_size) {
      if (cli_take_size("load", value, &size) != CLI_DONE)
        return CLI_USAGE;
      *keys[k].value = (double)size;
    } else if (cli_take_double("load", value, keys[k].value) != CLI_DONE) {
      return CLI_USAGE;
    }
    at += n + n_value;
    at += *at == ',';
  }
  return CLI_DONE;
}

/* ---- playing ---- */

int cli_play_begin(const cli_options *o, const cli_session *s, cli_play *out) {
  cli_gathered *text = &out->text;
  *out = (cli_play){.load = {0}};
  if (o->play.load != NULL && take_load(o->play.load, &out->load) != CLI_DONE)
    return CLI_USAGE;
  const int status = o->plan.cluster == NULL ? CLI_DONE : cli_cluster_text(o, s, text);
  out->params = (opipe_play_params){.struct_size = sizeof out->params,
                                    .flags = o->play.flags,
                                    .cluster = text->data,
                                    .cluster_bytes = text->n,
                                    .cluster_name = o->plan.cluster,
                                    .tensor = o->play.tensor,
                                    .copies = o->play.copies,
                                    .collective = o->play.collective};
  if (o->play.load != NULL) {
    out->params.stages = &out->load;
    out->params.stages_stride = sizeof out->load;
    out->params.n_stages = 1;
  }
  return status;
}

/* ---- simulate ---- */

static int give_play(const cli_options *o, const cli_session *s, const cli_strategy *strategy) {
  opipe_error err = OPIPE_ERROR_INIT;
  cli_gathered g = {NULL, 0, 0};
  cli_play play;
  int status = cli_play_begin(o, s, &play);
  if (o->plan.cluster == NULL && s->plan == NULL &&
      s->outline == NULL) { /* the machine that the planner planned for */
    play.params.cluster = strategy->cluster.data;
    play.params.cluster_bytes = strategy->cluster.n;
    play.params.cluster_name = "this machine";
  }
  if (status == CLI_DONE && strategy->api != NULL && !o->out.json)
    status = cli_give_strategy(o, strategy, false);
  if (status == CLI_DONE &&
      cli_play_it(s, strategy, &play.params, o->out.json ? OPIPE_PLAY_JSON : OPIPE_PLAY_TEXT,
                  cli_write_stdout, NULL, &err) < 0)
    status = s->outline != NULL ? cli_report(o->model, &err) : cli_report_name("simulate", &err);
  if (status == CLI_DONE && o->out.trace != NULL) {
    status = cli_write_gathered(
        cli_play_it(s, strategy, &play.params, cli_play_form(o->out.trace), cli_gather, &g, &err),
        o->out.trace, &g, &err);
  }
  if (status == CLI_DONE && o->out.html != NULL)
    status = cli_write_page(o, s, strategy, &play.params);
  free(play.text.data);
  return status;
}

static int simulate_training(const cli_options *o) {
  train_setup *t = calloc(1, sizeof(*t));
  if (t == NULL)
    return cli_fail("out of memory");
  int status = train_setup_open(t, o, false);
  if (status == CLI_DONE)
    status = give_play(&t->o, &t->s, &t->strategy);
  train_setup_close(t);
  free(t);
  return status;
}

/* The file has everything to be played; neither its model nor its devices are needed. */
static int simulate_file(const cli_options *o) {
  const cli_strategy none = {.api = NULL};
  cli_options own = *o;
  cli_session s;
  own.model = NULL;
  if (o->settled != NULL)
    return cli_usage("simulate %s: a whole plan, which already settles --%s", o->model, o->settled);
  int status = cli_open(&own, &s);
  if (status == CLI_DONE)
    status = cli_file_read(o->model, &s.outline, &s.outline_bytes);
  if (status == CLI_DONE)
    status = give_play(o, &s, &none);
  cli_close(&s);
  return status;
}

int cli_simulate(const cli_options *o) {
  cli_session s;
  cli_strategy strategy = {.api = NULL};
  if (cli_try_pages(o) != CLI_DONE)
    return CLI_FAILED;
  if (cli_is_plan_file(o->model))
    return simulate_file(o);
  if (o->train && o->model != NULL)
    return simulate_training(o);
  int status = cli_open(o, &s);
  if (status == CLI_DONE && o->model != NULL)
    status = cli_bind(o, &s, NULL, 0);
  if (status == CLI_DONE)
    status = cli_check_planner(o, &s);
  if (status == CLI_DONE && cli_asks_planner(o, &s)) {
    const uint64_t batch = o->t.batch != 0 ? o->t.batch : cli_bound_batch(&s);
    status = cli_planner_plan(o, &s, NULL, batch, &strategy, &s.plan);
  } else if (status == CLI_DONE) {
    status = cli_make_plan(o, &s, 0, &s.plan);
  }
  if (status == CLI_DONE)
    status = give_play(o, &s, &strategy);
  cli_strategy_end(&strategy);
  cli_close(&s);
  return status;
}
