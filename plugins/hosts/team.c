/* SPDX-License-Identifier: Apache-2.0 */
/* A team that this process leads: the others run `onnx-pipe follow MODEL`. A session is opened with
 * the plan that is shared just before; one is open at a time.
 */
#include <opipe/helpers.h>
#include <stdio.h>
#include <string.h>

#include "hosts.h"

static opipe_status check(const host_maker *m, const host_team *t, opipe_error *err) {
  const opipe_team_info *info = &t->info;
  if (info->size == 1) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "option team: this is the only process: a launcher starts the others, as "
                      "'onnx-pipe follow MODEL'");
  }
  if (info->rank != 0) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "option team: this is process %u of %u; the server is process 0, and the "
                      "others run 'onnx-pipe follow MODEL'",
                      info->rank, info->size);
  }
  return m->set->trace == NULL
             ? OPIPE_OK
             : opipe_fail(err, OPIPE_E_UNSUPPORTED,
                          "option trace: a trace of a team needs a call of all its processes");
}

opipe_status host_join(host_maker *m, opipe_model *model, opipe_error *err) {
  opipe_team_params params = opipe_team_params_init();
  if (m->set->team == NULL)
    return OPIPE_OK;
  if (!OPIPE_HAS(m->api, opipe_api, session_follow) || m->api->session_follow == NULL) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "option team: the library %s has no teams",
                      m->api->version);
  }
  host_team *t = host_take(sizeof *t);
  if (t == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "out of memory");
  t->model = model;
  t->info = opipe_team_info_init();
  params.launcher = strcmp(m->set->team, "any") == 0 ? NULL : m->set->team;
  opipe_status status = m->api->team_open(m->context, &params, &t->team, err);
  if (status == OPIPE_OK)
    status = m->api->team_info(t->team, &t->info, err);
  if (status == OPIPE_OK)
    status = check(m, t, err);
  m->team = t;
  if (status < 0)
    host_leave(m);
  return status;
}

void host_leave(host_maker *m) {
  if (m->team == NULL)
    return;
  m->api->team_close(m->team->team);
  host_give(m->team);
  m->team = NULL;
}

void host_plan_for(const host_team *t, opipe_plan_params *io) {
  if (t == NULL)
    return;
  if (io->n_stages == 0 && io->n_ranks == 0)
    io->n_ranks = t->info.size;
  if (io->transport == NULL)
    io->transport = t->info.n_machines > 1 ? "ucx" : "shm";
}

opipe_status host_open_in_team(const host_maker *m, opipe_plan *plan, opipe_session_params *io,
                               opipe_session **out_session, opipe_error *err) {
  host_team *t = m->team;
  opipe_share_params share = opipe_share_params_init();
  opipe_plan *shared = NULL;
  if (atomic_fetch_add(&t->n_open, 1) != 0) {
    (void)atomic_fetch_sub(&t->n_open, 1);
    return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                      "option team: a second session at once: a team serves one instance of one "
                      "model");
  }
  share.team = t->team;
  share.plan = plan;
  io->team = t->team;
  io->flags |= OPIPE_SESSION_INPUTS_OF_0 | OPIPE_SESSION_OUTPUTS_TO_0 | OPIPE_SESSION_FOLLOWED;
  opipe_status status = m->api->plan_share(t->model, &share, &shared, err);
  if (status == OPIPE_OK)
    status = m->api->session_open(m->context, shared, io, out_session, err);
  m->api->plan_destroy(shared); /* the session keeps it */
  if (status < 0)
    (void)atomic_fetch_sub(&t->n_open, 1);
  return status;
}

void host_close(const host_maker *m, opipe_session *session) {
  m->api->session_close(session);
  if (session != NULL && m->team != NULL)
    (void)atomic_fetch_sub(&m->team->n_open, 1);
}
