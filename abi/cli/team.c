/* SPDX-License-Identifier: Apache-2.0 */
/* run and train as one of the processes that a launcher started: how it joins the others, and how
 * all of them stop at one step and end alike. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "progress.h"

enum { AT_ROOM = 64 };

/* ---- output: process 0 prints ---- */

static int hush(cli_session *s) {
  const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  s->printed = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  const bool done =
      fflush(stdout) == 0 && nowhere >= 0 && s->printed >= 0 && dup2(nowhere, STDOUT_FILENO) >= 0;
  const int number = errno;
  if (nowhere >= 0)
    (void)close(nowhere);
  return done ? CLI_DONE : cli_fail("cannot give up the output: %s", strerror(number));
}

void cli_team_print(cli_session *s) {
  if (s->printed < 0)
    return;
  (void)fflush(stdout);
  (void)dup2(s->printed, STDOUT_FILENO);
  (void)close(s->printed);
  s->printed = -1;
}

/* ---- joining ---- */

static int refuse(const cli_options *o, uint32_t size) {
  const struct {
    const char *name;
    bool given;
  } alone[] = {{"reference", o->reference},
               {"trace", o->trace != NULL},
               {"check", o->check != NULL},
               {"save-gradients", o->t.save_gradients != NULL}};
  for (size_t i = 0; i < sizeof alone / sizeof alone[0]; ++i) {
    if (alone[i].given) {
      return cli_usage(
          "--%s: this is one of %u processes, none of which holds the whole model; "
          "run it in one process, or give --launcher none",
          alone[i].name, size);
    }
  }
  return CLI_DONE;
}

/* One rank for each process, unless the options say otherwise. */
static void take_defaults(cli_options *io_options, uint32_t size) {
  cli_options *o = io_options;
  const bool placed = o->n_ranks != 0 || o->n_stages != 0 || o->plan_file != NULL ||
                      o->cut != NULL || o->cluster != NULL || o->n_devices > 1 ||
                      o->t.replicas != NULL;
  if (o->transport == NULL)
    o->transport = "shm";
  if (!placed)
    o->n_ranks = size;
}

int cli_join(cli_options *io_options, cli_session *s) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_team_params params = opipe_team_params_init();
  opipe_team_info info = opipe_team_info_init();
  params.launcher = io_options->launcher;
  const double silence_s = io_options->launch.silence_s;
  if (silence_s != -1 && !(silence_s >= 0.1 && silence_s <= 1e6))
    return cli_usage("--silence: %g seconds; 0.1 to 1000000 are allowed", silence_s);
  if (silence_s != -1)
    params.silence_ns = (uint64_t)(silence_s * 1e9);
  if (s->api->team_open(s->context, &params, &s->team, &err) < 0) {
    const int status = cli_report("joining the other processes", &err);
    return err.status == OPIPE_E_NOTFOUND && io_options->launcher != NULL ? CLI_USAGE : status;
  }
  if (s->api->team_info(s->team, &info, &err) < 0)
    return cli_report("joining the other processes", &err);
  s->team_rank = info.rank;
  if (info.size == 1) { /* alone */
    s->api->team_close(s->team);
    s->team = NULL;
    return CLI_DONE;
  }
  take_defaults(io_options, info.size);
  const int status = refuse(io_options, info.size);
  return status == CLI_DONE && info.rank != 0 ? hush(s) : status;
}

void cli_meet(cli_session *s) {
  opipe_gather_params all = opipe_gather_params_init();
  all.name = "done";
  if (s->team != NULL)
    (void)s->api->team_gather(s->team, &all, NULL);
}

static opipe_status take_answer(void *ctx, uint32_t rank, const void *data, uint64_t n_bytes) {
  bool answer = false, *any = ctx;
  (void)rank;
  if (n_bytes == sizeof answer)
    memcpy(&answer, data, n_bytes);
  *any = *any || answer;
  return OPIPE_OK;
}

bool cli_team_any(const cli_session *s, bool own) {
  opipe_gather_params answers = opipe_gather_params_init();
  bool any = own;
  answers.name = "any";
  answers.data = &own;
  answers.n_bytes = sizeof own;
  answers.part = take_answer;
  answers.part_ctx = &any;
  if (s->team != NULL)
    (void)s->api->team_gather(s->team, &answers, NULL);
  return any;
}

int cli_part(cli_session *s, int status) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_gather_params end = opipe_gather_params_init();
  if (s->team == NULL)
    return status;
  end.name = "end";
  end.timeout_ns = UINT64_MAX;
  end.refused = status == CLI_DONE || status >= CLI_SIGNALLED ? OPIPE_OK : OPIPE_E_PEER;
  end.reason = "it has failed";
  if (s->api->team_gather(s->team, &end, &err) < 0 && end.refused == OPIPE_OK)
    status = cli_report("ending with the other processes", &err);
  s->api->team_close(s->team);
  s->team = NULL;
  cli_team_print(s);
  return status;
}

/* The number of a stage whose replicas are in several processes; -1: there is none. A plan lists
 * the ranks of every stage's replicas one after the other. */
static int split_stage(const json_t *plan, uint32_t n_processes) {
  const json_t *replicas = json_object_get(plan, "replicas");
  const json_t *ranks = json_object_get(replicas, "ranks");
  const size_t n = (size_t)json_integer_value(json_object_get(replicas, "replicas"));
  const size_t each = json_array_size(json_object_get(plan, "devices")) / n_processes;
  for (size_t i = 0; n > 1 && each != 0 && i < json_array_size(ranks); ++i) {
    const json_int_t rank = json_integer_value(json_array_get(ranks, i));
    const json_int_t first = json_integer_value(json_array_get(ranks, i - i % n));
    if (rank / (json_int_t)each != first / (json_int_t)each)
      return (int)(i / n);
  }
  return -1;
}

int cli_check_outputs(const cli_session *s) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_team_info info = opipe_team_info_init();
  cli_gathered g = {NULL, 0, 0};
  if (s->team == NULL)
    return CLI_DONE;
  if (s->api->team_info(s->team, &info, &err) < 0 ||
      s->api->plan_write(s->plan, cli_gather, &g, &err) < 0) {
    free(g.data);
    return cli_report("plan", &err);
  }
  json_t *plan = json_loadb(g.data, g.n, 0, NULL);
  const int stage = plan == NULL ? -1 : split_stage(plan, info.size);
  const int status = plan == NULL ? cli_fail("out of memory for the plan")
                     : stage < 0
                         ? CLI_DONE
                         : cli_usage(
                               "stage %d has replicas in several of %u processes, and each "
                               "would have some rows of an output: place a stage's replicas "
                               "in one process, or run without replicas",
                               stage, info.size);
  json_decref(plan);
  free(g.data);
  return status;
}

/* ---- steps ---- */

int cli_stop_before(cli_session *s, uint64_t step) {
  const int signal = cli_asked_to_stop();
  char at[AT_ROOM];
  uint32_t what = 0;
  if (s->team == NULL)
    s->stopped_by = signal;
  if (s->team == NULL || s->stopped_by != 0 || step < s->n_steps_begun)
    return s->stopped_by;
  (void)snprintf(at, sizeof at, "step %llu", (unsigned long long)step);
  (void)s->api->team_moved(s->team, step, at, NULL); /* if it fails, the session says so */
  if (signal != 0 && !s->told_to_stop) {
    s->told_to_stop = true;
    (void)s->api->team_stop(s->team, (uint32_t)signal, NULL);
  }
  if (s->api->team_step(s->team, step, &what, NULL) == OPIPE_OK)
    s->stopped_by = (int)what;
  s->n_steps_begun = step + 1;
  return s->stopped_by;
}
