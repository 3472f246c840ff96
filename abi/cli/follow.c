/* SPDX-License-Identifier: Apache-2.0 */
/* follow MODEL: a process of a team that repeats the calls of process 0, where a server or a host
 * of its own drives the model. Plan and sizes are process 0's.
 *
 *   process 0   plan_share, session_open (OPIPE_SESSION_FOLLOWED), calls, session_close, ...
 *   follow      plan_share, session_open, session_follow,          session_close, ... until 0
 * leaves
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum { FOLLOWED = OPIPE_SESSION_INPUTS_OF_0 | OPIPE_SESSION_OUTPUTS_TO_0 | OPIPE_SESSION_FOLLOWED };

/* Has process 0 left the team in order? Then there is nothing more to follow. */
static bool has_left(const cli_session *s) {
  cli_gathered text = {NULL, 0, 0};
  if (s->api->team_describe(s->team, OPIPE_FORMAT_JSON, cli_gather, &text, NULL) < 0) {
    free(text.data);
    return false;
  }
  json_t *team = json_loadb(text.data, text.n, 0, NULL);
  const json_t *first = json_array_get(json_object_get(team, "processes"), 0);
  const char *state = json_string_value(json_object_get(first, "state"));
  const bool left = state != NULL && strcmp(state, "left") == 0;
  json_decref(team);
  free(text.data);
  return left;
}

typedef struct following {
  uint32_t n_sessions;
  uint64_t n_done, n_failed; /* requests */
  bool over;                 /* process 0 has left */
} following;

/* One session, from the plan to process 0's close. */
static int follow_one(cli_session *s, following *io) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_share_params share = opipe_share_params_init();
  opipe_session_params params = opipe_session_params_init();
  opipe_session *session = NULL;
  share.team = s->team;
  if (s->api->plan_share(s->file, &share, &s->plan, &err) < 0) {
    io->over = has_left(s);
    return io->over ? CLI_DONE : cli_report("the plan of process 0", &err);
  }
  params.team = s->team;
  params.flags = FOLLOWED;
  if (s->api->session_open(s->context, s->plan, &params, &session, &err) < 0)
    return cli_report("opening a session with process 0", &err);
  const opipe_status status = s->api->session_follow(session, &err);
  opipe_session_info info = opipe_session_info_init();
  if (s->api->session_info(session, &info, NULL) == OPIPE_OK) {
    io->n_done += info.requests_done;
    io->n_failed += info.requests_failed;
  }
  ++io->n_sessions;
  s->api->session_close(session);
  s->api->plan_destroy(s->plan);
  s->plan = NULL;
  return status < 0 ? cli_report("following process 0", &err) : CLI_DONE;
}

static void print(const cli_options *o, cli_session *s, const following *f) {
  cli_team_print(s);
  (void)printf(o->out.json
                   ? "{\"sessions\": %u, \"requests_done\": %llu, \"requests_failed\": %llu}\n"
                   : "%u sessions followed, %llu requests done, %llu failed or cancelled\n",
               f->n_sessions, (unsigned long long)f->n_done, (unsigned long long)f->n_failed);
}

int cli_follow(const cli_options *given) {
  cli_options own = *given;
  cli_session s;
  following all = {0};
  int status = cli_open(&own, &s);
  if (status == CLI_DONE)
    status = cli_join(&own, &s);
  if (status == CLI_DONE && s.team == NULL) {
    status = cli_usage(
        "follow: this is the only process: a launcher starts it beside process 0, "
        "which is a server or a host");
  } else if (status == CLI_DONE && s.team_rank == 0) {
    status = cli_usage(
        "follow: this is process 0, whose calls the others follow: there a server "
        "or a host runs");
  }
  while (status == CLI_DONE && !all.over)
    status = follow_one(&s, &all);
  if (status == CLI_DONE)
    print(&own, &s, &all);
  cli_close(&s);
  return status;
}
