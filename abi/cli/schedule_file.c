/* SPDX-License-Identifier: Apache-2.0 */
/* --schedule file:PATH of plan, run and train: the file says how many ranks and micro-batches. */
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

int cli_schedule_numbers(cli_options *o) {
  opipe_order_info info = {.struct_size = sizeof(info)};
  cli_options bare = {.plugins = o->plugins}; /* no model */
  cli_session s;
  const bool placed = o->n_ranks != 0 || o->n_stages != 0 || o->t.replicas != NULL;
  if (o->schedule == NULL || strncmp(o->schedule, "file:", 5) != 0 || o->plan_file != NULL ||
      (placed && o->n_microbatches != 0))
    return CLI_DONE;
  int status = cli_open(&bare, &s);
  if (status == CLI_DONE)
    status = read_info(&s, o->schedule + 5, &info);
  if (status == CLI_DONE && !placed)
    o->n_ranks = info.n_ranks;
  if (status == CLI_DONE && o->n_microbatches == 0)
    o->n_microbatches = info.n_microbatches;
  cli_close(&s);
  return status;
}
