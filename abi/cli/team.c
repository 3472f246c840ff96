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

/* One rank for each process, and a transport that joins their machines, unless the options say
 * otherwise. */
static void take_defaults(cli_options *io_options, const cli_session *s,
                          const opipe_team_info *info) {
  cli_options *o = io_options;
  const bool placed = o->plan.n_ranks != 0 || o->plan.n_stages != 0 || o->plan.plan_file != NULL ||
                      o->plan.cut != NULL || o->plan.cluster != NULL || o->on.n_devices > 1 ||
                      o->t.replicas != NULL;
  if (o->plan.transport == NULL)
    o->plan.transport = info->n_machines > 1 ? "ucx" : "shm";
  if (!placed)
    o->plan.n_ranks = s->n_places != 0 ? s->n_places : info->size;
}

/* ---- --place ---- */

static int place_rank(cli_session *s, const char *text, uint32_t rank, uint32_t process,
                      uint32_t most) {
  if (rank >= most)
    return cli_usage("--place %s: rank %u of %u: ranks are numbered from 0", text, rank, most);
  if (s->places[rank] != OPIPE_NONE)
    return cli_usage("--place %s: rank %u is given twice", text, rank);
  s->places[rank] = process;
  return CLI_DONE;
}

/* The numbers in the text, without regard to what stands between them. */
static uint32_t count_numbers(const char *text) {
  uint32_t n = 0;
  for (const char *at = text; *at != '\0'; ++at)
    n += at == text || at[-1] == ',' || at[-1] == '/' ? 1 : 0;
  return n;
}

/* "0,1/2,3": ranks of process 0, of process 1, ... */
static int read_places(cli_session *s, const char *text, uint32_t size) {
  const char *at = text;
  uint32_t process = 0;
  s->n_places = count_numbers(text);
  s->places = calloc(s->n_places + 1, sizeof *s->places);
  s->here = calloc(s->n_places + 1, sizeof *s->here);
  if (s->places == NULL || s->here == NULL)
    return cli_fail("out of memory");
  for (uint32_t r = 0; r < s->n_places; ++r)
    s->places[r] = OPIPE_NONE;
  for (;;) {
    char *end = NULL;
    errno = 0;
    const unsigned long long rank = strtoull(at, &end, 10);
    const bool ends = *end == ',' || *end == '/' || *end == '\0';
    if (end == at || *at < '0' || *at > '9' || errno != 0 || rank > UINT32_MAX || !ends)
      return cli_usage("--place %s: '%s' is not a list of ranks, as 0,1/2,3 is", text, at);
    const int status = place_rank(s, text, (uint32_t)rank, process, s->n_places);
    if (status != CLI_DONE)
      return status;
    process += *end == '/' ? 1 : 0;
    if (*end == '\0')
      break;
    at = end + 1;
  }
  if (process + 1 != size) {
    return cli_usage("--place %s: it has the ranks of %u processes, the team has %u", text,
                     process + 1, size);
  }
  for (uint32_t r = 0; r < s->n_places; ++r) {
    if (s->places[r] == s->team_rank)
      s->here[s->n_here++] = r;
  }
  return CLI_DONE;
}

int cli_join(cli_options *io_options, cli_session *s) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_team_params params = opipe_team_params_init();
  opipe_team_info info = opipe_team_info_init();
  params.launcher = io_options->team.launcher;
  const double silence_s = io_options->team.silence_s;
  if (silence_s != -1 && !(silence_s >= 0.1 && silence_s <= 1e6))
    return cli_usage("--silence: %g seconds; 0.1 to 1000000 are allowed", silence_s);
  if (silence_s != -1)
    s->watchdog_ns = params.silence_ns = (uint64_t)(silence_s * 1e9);
  if (s->api->team_open(s->context, &params, &s->team, &err) < 0) {
    const int status = cli_report("joining the other processes", &err);
    return err.status == OPIPE_E_NOTFOUND && io_options->team.launcher != NULL ? CLI_USAGE : status;
  }
  if (s->api->team_info(s->team, &info, &err) < 0)
    return cli_report("joining the other processes", &err);
  s->team_rank = info.rank;
  if (info.size == 1) { /* alone */
    s->api->team_close(s->team);
    s->team = NULL;
    return io_options->team.place == NULL
               ? CLI_DONE
               : cli_usage("--place %s: this is the only process", io_options->team.place);
  }
  int status = CLI_DONE;
  if (io_options->team.place != NULL)
    status = read_places(s, io_options->team.place, info.size);
  take_defaults(io_options, s, &info);
  return status == CLI_DONE && info.rank != 0 ? hush(s) : status;
}

/* ---- together ---- */

int cli_agree(const cli_session *s, const char *where, int status) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_gather_params all = opipe_gather_params_init();
  if (s->team == NULL)
    return status;
  all.name = where;
  all.timeout_ns = UINT64_MAX;
  all.refused = status == CLI_DONE ? OPIPE_OK : OPIPE_E_PEER;
  all.reason = cli_last_said();
  return s->api->team_gather(s->team, &all, &err) < 0 && status == CLI_DONE
             ? cli_report(where, &err)
             : status;
}

static opipe_status take_worst(void *ctx, uint32_t process, const void *data, uint64_t n) {
  uint8_t *worst = ctx;
  const uint8_t *own = data;
  (void)process;
  for (uint64_t i = 0; i < n; ++i)
    worst[i] = own[i] > worst[i] ? own[i] : worst[i];
  return OPIPE_OK;
}

int cli_worst(const cli_session *s, uint8_t *io_list, uint32_t n) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_gather_params all = opipe_gather_params_init();
  uint8_t *own = s->team == NULL ? NULL : malloc(n + 1);
  if (s->team == NULL)
    return CLI_DONE;
  if (own != NULL)
    memcpy(own, io_list, n);
  all.name = "verdicts";
  all.data = own;
  all.n_bytes = own == NULL ? 0 : n;
  all.refused = own == NULL ? OPIPE_E_NOMEM : OPIPE_OK;
  all.reason = "out of memory";
  all.part = take_worst;
  all.part_ctx = io_list;
  const opipe_status status = s->api->team_gather(s->team, &all, &err);
  free(own);
  return status < 0 ? cli_report("comparing outputs", &err) : CLI_DONE;
}

bool cli_needs(const cli_session *s, opipe_session *session, const char *name) {
  uint32_t needed = 1;
  return s->team == NULL || s->api->session_needs(session, name, &needed, NULL) < 0 || needed != 0;
}

int cli_share_plan(cli_session *s, int made) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_share_params params = opipe_share_params_init();
  opipe_plan *plan = NULL;
  if (s->team == NULL)
    return made;
  params.team = s->team;
  params.plan = made == CLI_DONE ? s->plan : NULL;
  params.refused = made == CLI_DONE ? OPIPE_OK : OPIPE_E_PEER;
  params.reason = cli_last_said();
  if (s->api->plan_share(s->bound, &params, &plan, &err) < 0)
    return made == CLI_DONE ? cli_report("plan", &err) : made;
  s->api->plan_destroy(s->plan);
  s->plan = plan;
  return CLI_DONE;
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

static opipe_status take_lines(void *ctx, uint32_t process, const void *data, uint64_t n_bytes) {
  (void)process;
  if (n_bytes == 0)
    return OPIPE_OK;
  return cli_gather(ctx, data, (size_t)n_bytes) == 0 ? OPIPE_OK : OPIPE_E_NOMEM;
}

int cli_lines_of_all(const cli_session *s, const cli_gathered *own, cli_gathered *out) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_gather_params all = opipe_gather_params_init();
  if (s->team == NULL) {
    return own != NULL && take_lines(out, 0, own->data, own->n) == OPIPE_OK
               ? CLI_DONE
               : cli_fail("out of memory");
  }
  all.name = "lines";
  all.data = own == NULL ? NULL : own->data;
  all.n_bytes = own == NULL ? 0 : own->n;
  all.timeout_ns = UINT64_MAX;
  all.refused = own == NULL ? OPIPE_E_NOMEM : OPIPE_OK;
  all.reason = "out of memory";
  all.part = take_lines;
  all.part_ctx = out;
  return s->api->team_gather(s->team, &all, &err) < 0 ? cli_report("output", &err) : CLI_DONE;
}

const char *cli_line_of(const cli_gathered *lines, uint32_t number) {
  char begin[16];
  const int n = snprintf(begin, sizeof begin, "%u ", number);
  for (const char *at = lines->data; at != NULL && at < lines->data + lines->n;) {
    if (strncmp(at, begin, (size_t)n) == 0)
      return at + n;
    const char *end = memchr(at, '\n', (size_t)(lines->data + lines->n - at));
    at = end == NULL ? NULL : end + 1;
  }
  return NULL;
}

cli_session cli_alone(const cli_session *s) {
  cli_session alone = *s;
  alone.team = NULL;
  alone.places = alone.here = NULL;
  alone.n_places = alone.n_here = 0;
  alone.watchdog_ns = 0;
  return alone;
}

int cli_status_of_0(const cli_session *s, int status) {
  uint8_t worst = s->team_rank == 0 ? (uint8_t)status : (uint8_t)CLI_DONE;
  const int shared = s->team == NULL ? CLI_DONE : cli_worst(s, &worst, 1);
  return s->team == NULL ? status : shared != CLI_DONE ? shared : (int)worst;
}

int cli_part(cli_session *s, int status) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_gather_params end = opipe_gather_params_init();
  if (s->team == NULL)
    return status;
  end.name = "end";
  end.timeout_ns = UINT64_MAX;
  end.refused = status == CLI_DONE || status >= CLI_SIGNALLED ? OPIPE_OK : OPIPE_E_PEER;
  end.reason = cli_last_said();
  if (s->api->team_gather(s->team, &end, &err) < 0 && end.refused == OPIPE_OK)
    status = cli_report("ending with the other processes", &err);
  s->api->team_close(s->team);
  s->team = NULL;
  cli_team_print(s);
  return status;
}

static size_t process_of(const cli_session *s, size_t rank, size_t each) {
  return rank < s->n_places ? s->places[rank] : rank / each;
}

/* Has a stage replicas in several processes? A plan lists the ranks of every stage's replicas one
 * after the other. */
static bool has_split_stage(const json_t *plan, const cli_session *s, uint32_t n_processes) {
  const json_t *replicas = json_object_get(plan, "replicas");
  const json_t *ranks = json_object_get(replicas, "ranks");
  const size_t n = (size_t)json_integer_value(json_object_get(replicas, "replicas"));
  const size_t each = json_array_size(json_object_get(plan, "devices")) / n_processes;
  for (size_t i = 0; n > 1 && each != 0 && i < json_array_size(ranks); ++i) {
    const size_t rank = (size_t)json_integer_value(json_array_get(ranks, i));
    const size_t first = (size_t)json_integer_value(json_array_get(ranks, i - i % n));
    if (process_of(s, rank, each) != process_of(s, first, each))
      return true;
  }
  return false;
}

int cli_outputs_are_split(const cli_session *s, bool *out_split) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_team_info info = opipe_team_info_init();
  cli_gathered g = {NULL, 0, 0};
  *out_split = false;
  if (s->team == NULL)
    return CLI_DONE;
  if (s->api->team_info(s->team, &info, &err) < 0 ||
      s->api->plan_write(s->plan, cli_gather, &g, &err) < 0) {
    free(g.data);
    return cli_report("plan", &err);
  }
  json_t *plan = json_loadb(g.data, g.n, 0, NULL);
  *out_split = has_split_stage(plan, s, info.size);
  const int status = plan == NULL ? cli_fail("out of memory for the plan") : CLI_DONE;
  json_decref(plan);
  free(g.data);
  return status;
}

/* ---- steps ---- */

/* The same in one process. */
static int stop_alone(cli_session *s, bool *out_save) {
  s->stopped_by = cli_asked_to_stop();
  if (out_save != NULL)
    *out_save = cli_asked_to_save();
  return s->stopped_by;
}

int cli_stop_before(cli_session *s, uint64_t step, bool *out_save) {
  const int signal = cli_asked_to_stop();
  char at[AT_ROOM];
  uint32_t what = 0;
  if (out_save != NULL)
    *out_save = false;
  if (s->team == NULL)
    return stop_alone(s, out_save);
  if (s->stopped_by != 0 || step < s->n_steps_begun)
    return s->stopped_by;
  (void)snprintf(at, sizeof at, "step %llu", (unsigned long long)step);
  (void)s->api->team_moved(s->team, step, at, NULL); /* if it fails, the session says so */
  if (signal != 0 && !s->told_to_stop) {
    s->told_to_stop = true;
    (void)s->api->team_stop(s->team, (uint32_t)signal, NULL);
  }
  if (out_save != NULL && cli_asked_to_save())
    (void)s->api->team_stop(s->team, SIGUSR1, NULL);
  const bool asked = s->api->team_step(s->team, step, &what, NULL) == OPIPE_OK && what != 0;
  s->n_steps_begun = step + 1;
  if (asked && what != SIGUSR1) {
    s->stopped_by = (int)what;
  } else if (asked && out_save != NULL) {
    *out_save = true;
    (void)cli_asked_to_save(); /* if it has come here too, this is its checkpoint */
  }
  return s->stopped_by;
}
