/* SPDX-License-Identifier: Apache-2.0 */
/* --html, and files that end in .html: one self-contained page of a plan. */
#include "page.h"

#include <stdlib.h>
#include <string.h>

bool cli_ends_in(const char *path, const char *ending) {
  const size_t n = path == NULL ? 0 : strlen(path), n_ending = strlen(ending);
  return n > n_ending && strcmp(path + n - n_ending, ending) == 0;
}

uint32_t cli_play_form(const char *path) {
  return cli_ends_in(path, ".html")  ? (uint32_t)OPIPE_PLAY_HTML
         : cli_ends_in(path, ".svg") ? (uint32_t)OPIPE_PLAY_SVG
                                     : (uint32_t)OPIPE_PLAY_TRACE;
}

int cli_try_pages(const cli_options *o) {
  const char *const paths[] = {o->out.html, o->out.trace, o->out.output, o->out.annotate};
  int status = CLI_DONE;
  for (size_t i = 0; i < sizeof paths / sizeof paths[0] && status == CLI_DONE; ++i)
    status = paths[i] == NULL ? CLI_DONE : cli_try_file(paths[i]);
  return status;
}

/* The heading: the model as named. */
static const char *title_of(const cli_options *o) {
  return o->model != NULL          ? o->model
         : o->planner.arch != NULL ? o->planner.arch
                                   : o->planner.profile;
}

/* A planner's answer, for the page; out->data is to be freed. */
static int describe_answer(const cli_strategy *strategy, cli_gathered *out) {
  opipe_error err = OPIPE_ERROR_INIT;
  if (strategy->api == NULL ||
      strategy->api->strategy_describe(strategy->strategy, OPIPE_FORMAT_JSON, cli_gather, out,
                                       &err) == OPIPE_OK)
    return CLI_DONE;
  return cli_report("plan", &err);
}

opipe_status cli_play_it(const cli_session *s, const cli_strategy *strategy,
                         const opipe_play_params *params, uint32_t format, opipe_write_fn write,
                         void *ctx, opipe_error *err) {
  if (s->outline != NULL) {
    return s->api->plan_file_play(s->context, s->outline, s->outline_bytes, params, format, write,
                                  ctx, err);
  }
  return s->plan != NULL
             ? s->api->plan_play(s->plan, params, format, write, ctx, err)
             : s->api->strategy_play(strategy->strategy, params, format, write, ctx, err);
}

int cli_write_page(const cli_options *o, const cli_session *s, const cli_strategy *strategy,
                   const opipe_play_params *params) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_play_params own = *params;
  cli_gathered page = {NULL, 0, 0}, answer = {NULL, 0, 0};
  int status = describe_answer(strategy, &answer);
  own.title = title_of(o);
  own.answer = answer.data;
  own.answer_bytes = answer.n;
  if (status == CLI_DONE) {
    status =
        cli_write_gathered(cli_play_it(s, strategy, &own, OPIPE_PLAY_HTML, cli_gather, &page, &err),
                           o->out.html, &page, &err);
  }
  free(answer.data);
  return status;
}

int cli_give_page(const cli_options *o, const cli_session *s, const cli_strategy *strategy) {
  opipe_play_params params = {.struct_size = sizeof params, .cluster_name = o->plan.cluster};
  cli_gathered text = {NULL, 0, 0};
  int status = CLI_DONE;
  if (o->out.html == NULL)
    return CLI_DONE;
  if (o->plan.cluster != NULL)
    status = cli_cluster_text(o, s, &text);
  const cli_gathered *cluster =
      o->plan.cluster == NULL && s->plan == NULL ? &strategy->cluster : &text;
  params.cluster = cluster->data;
  params.cluster_bytes = cluster->n;
  if (status == CLI_DONE)
    status = cli_write_page(o, s, strategy, &params);
  free(text.data);
  return status;
}
