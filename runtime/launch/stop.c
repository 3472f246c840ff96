/* SPDX-License-Identifier: Apache-2.0 */
/* How all processes stop at one step: process 0 asks how far each is, and says the step after the
 * latest. Who has answered begins no further step until that is said.
 *
 *   STOP ──► 0 ── ASK ──► all ── ANSWER (begun) ──► 0 ── AGREED (latest + 1) ──► all ── PASSED ──►
 * 0
 *
 * The next agreement begins when all have passed the step of the one before. Wishes that come
 * meanwhile wait, each once; one for the same thing is part of the agreement under way.
 */
#include <string.h>

#include "runtime/launch/team.h"

static void asked(opi_team *t, uint32_t number);

/* Process 0: begins what is wanted first, unless another agreement is not done yet. */
static void begin_wanted(opi_team *t) {
  opi_stopping *s = &t->stop;
  if (s->n_wanted == 0 || s->asking != 0 || s->undone)
    return;
  const opi_agreement ask = {.what = s->wanted[0], .number = ++s->number};
  s->asking = s->wanted[0];
  memmove(s->wanted, s->wanted + 1, --s->n_wanted * sizeof *s->wanted);
  s->n_answers = s->n_passed = 0;
  s->latest = 0;
  opi_team_send(t, OPI_NOBODY, OPI_FRAME_ASK, 0, &ask, sizeof ask);
  asked(t, s->number);
}

/* Process 0: somebody wants it. Who asks for the same before all have done it is served by that;
 * of too many different wishes the last gives way. */
static void want(opi_team *t, uint32_t what) {
  opi_stopping *s = &t->stop;
  bool known = what == s->asking || (s->undone && what == s->doing);
  for (uint32_t i = 0; i < s->n_wanted; ++i)
    known = known || s->wanted[i] == what;
  if (!known) {
    s->n_wanted -= s->n_wanted == OPI_WANTED_MOST ? 1 : 0;
    s->wanted[s->n_wanted++] = what;
  }
  begin_wanted(t);
}

static void agreed(opi_team *t, const opi_agreement *told) {
  opi_stopping *s = &t->stop;
  s->asked = false;
  s->what = told->what;
  s->step = told->step;
  s->number = told->number;
  opi_lock_signal(&t->lock);
}

/* Process 0: one more answer. */
static void answered(opi_team *t, uint64_t begun) {
  opi_stopping *s = &t->stop;
  s->latest = begun > s->latest ? begun : s->latest;
  if (++s->n_answers < t->place.size)
    return;
  const opi_agreement told = {.step = s->latest, .what = s->asking, .number = s->number};
  s->doing = s->asking;
  s->asking = 0;
  s->undone = true;
  opi_team_send(t, OPI_NOBODY, OPI_FRAME_AGREED, 0, &told, sizeof told);
  agreed(t, &told);
}

/* Process 0: one more has passed the step. */
static void passed(opi_team *t) {
  opi_stopping *s = &t->stop;
  if (++s->n_passed < t->place.size)
    return;
  s->undone = false;
  begin_wanted(t);
}

/* This process is asked. */
static void asked(opi_team *t, uint32_t number) {
  opi_stopping *s = &t->stop;
  const opi_agreement answer = {.step = s->begun, .number = number};
  s->asked = true;
  s->answered = s->begun;
  if (opi_team_is_root(t))
    answered(t, s->begun);
  else
    opi_team_send(t, OPI_NOBODY, OPI_FRAME_ANSWER, 0, &answer, sizeof answer);
}

opipe_status opi_stop_hear(opi_team *t, opi_connection *link, const opi_channel_message *m,
                           opipe_error *err) {
  opi_agreement a;
  if (m->n_bytes != sizeof a) {
    return opi_fail(err, OPIPE_E_INVALID, "an agreement of %llu bytes, it has %zu",
                    (unsigned long long)m->n_bytes, sizeof a);
  }
  memcpy(&a, m->bytes, sizeof a);
  (void)link;
  const bool right = m->kind == OPI_FRAME_ANSWER   ? t->stop.asking != 0
                     : m->kind == OPI_FRAME_PASSED ? t->stop.undone
                     : m->kind == OPI_FRAME_AGREED ? t->stop.asked
                                                   : a.what != 0;
  if (!right)
    return opi_fail(err, OPIPE_E_INVALID, "a message of kind %u outside an agreement", m->kind);
  if (m->kind == OPI_FRAME_STOP)
    want(t, a.what);
  else if (m->kind == OPI_FRAME_ASK)
    asked(t, a.number);
  else if (m->kind == OPI_FRAME_ANSWER)
    answered(t, a.step);
  else if (m->kind == OPI_FRAME_AGREED)
    agreed(t, &a);
  else
    passed(t);
  return OPIPE_OK;
}

opipe_status opi_team_stop(opi_team *t, uint32_t what, opipe_error *err) {
  const opi_agreement wish = {.what = what};
  if (what == 0)
    return opi_fail(err, OPIPE_E_INVALID, "team_stop: the number is 0, which stands for nothing");
  opi_lock_take(&t->lock);
  const opipe_status status = opi_team_failure(t, err);
  if (status == OPIPE_OK && opi_team_is_root(t))
    want(t, what);
  else if (status == OPIPE_OK)
    opi_team_send(t, OPI_NOBODY, OPI_FRAME_STOP, 0, &wish, sizeof wish);
  opi_lock_give(&t->lock);
  return status;
}

/* The agreed step is reached. */
static uint32_t take_agreed(opi_team *t) {
  opi_stopping *s = &t->stop;
  const opi_agreement done = {.step = s->step, .number = s->number};
  const uint32_t what = s->what;
  s->what = 0;
  if (opi_team_is_root(t))
    passed(t);
  else
    opi_team_send(t, OPI_NOBODY, OPI_FRAME_PASSED, 0, &done, sizeof done);
  return what;
}

opipe_status opi_team_step(opi_team *t, uint64_t step, uint32_t *out_what, opipe_error *err) {
  opi_stopping *s = &t->stop;
  *out_what = 0;
  opi_lock_take(&t->lock);
  opipe_status status = opi_team_failure(t, err);
  if (status == OPIPE_OK && (step < s->begun || step == UINT64_MAX)) {
    status = opi_fail(err, OPIPE_E_INVALID, "team_step: step %llu after step %llu",
                      (unsigned long long)step, (unsigned long long)(s->begun - 1));
  }
  while (status == OPIPE_OK && s->asked && step >= s->answered) {
    opi_lock_wait(&t->lock, UINT64_MAX);
    status = opi_team_failure(t, err);
  }
  if (status == OPIPE_OK && s->what != 0 && step >= s->step)
    *out_what = take_agreed(t);
  if (status == OPIPE_OK)
    s->begun = step + 1;
  opi_lock_give(&t->lock);
  return status;
}
