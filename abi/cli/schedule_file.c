/* SPDX-License-Identifier: Apache-2.0 */
/* --schedule file:PATH of plan, run and train: the file gives the numbers of ranks and
 * micro-batches. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static int read_info(cli_session *s, const char *path, opipe_order_info *out) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_order *order = NULL;
  void *text = NULL;
  size_t n = 0;
  int status = cli_file_read(path, &text, &n);
  if (status == CLI_DONE && s->api->order_read(s->context, text, n, 0, &order, &err) < 0)
    status = cli_report(path, &err);
  if (status == CLI_DONE && s->api->order_info(order, out, &err) < 0)
    status = cli_report(path, &err);
  if (order != NULL)
    s->api->order_destroy(order);
  free(text);
  return status;
}

/* The file is the order of one copy of the pipeline, with ranks and micro-batches of its own.
 * Replicas of single stages split its micro-batches and determine their number of ranks. */
static int take_numbers(cli_options *o, const opipe_order_info *info) {
  uint32_t list[CLI_LIST_MOST];
  opipe_plan_params how = {.replicas = 0};
  int status = cli_read_replicas(o->t.replicas, o->plan.n_stages, list, &how);
  const uint32_t n_copies = how.replicas == 0 ? 1 : how.replicas;
  const bool placed = o->plan.n_ranks != 0 || o->plan.n_stages != 0 || how.n_stage_replicas != 0;
  if (status == CLI_DONE && info->n_microbatches > UINT32_MAX / n_copies) {
    status = cli_usage(
        "--replicas %s: every copy has the %u micro-batches of the file, %llu in all",
        o->t.replicas, info->n_microbatches, (unsigned long long)info->n_microbatches * n_copies);
  }
  if (status == CLI_DONE && !placed)
    o->plan.n_ranks = info->n_ranks * n_copies;
  if (status == CLI_DONE && o->plan.n_microbatches == 0)
    o->plan.n_microbatches = info->n_microbatches * n_copies;
  return status;
}

int cli_schedule_numbers(cli_options *o) {
  opipe_order_info info = {.struct_size = sizeof(info)};
  cli_options bare = {.plugins = o->plugins}; /* no model */
  cli_session s;
  if (o->plan.schedule == NULL || strncmp(o->plan.schedule, "file:", 5) != 0 ||
      o->plan.plan_file != NULL ||
      ((o->plan.n_ranks != 0 || o->plan.n_stages != 0) && o->plan.n_microbatches != 0))
    return CLI_DONE;
  int status = cli_open(&bare, &s);
  if (status == CLI_DONE)
    status = read_info(&s, o->plan.schedule + 5, &info);
  if (status == CLI_DONE)
    status = take_numbers(o, &info);
  cli_close(&s);
  return status;
}
