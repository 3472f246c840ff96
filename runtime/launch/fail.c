/* SPDX-License-Identifier: Apache-2.0 */
/* How a team fails: the first failure counts, at process 0 and so everywhere. */
#include <stdio.h>
#include <string.h>

#include "runtime/launch/team.h"

const char *opi_team_who(const opi_team *t, uint32_t rank, char out[OPI_WHO_ROOM]) {
  if (rank < t->place.size && t->members[rank].pid != 0) {
    (void)snprintf(out, OPI_WHO_ROOM, "process %u (pid %d%s%.23s)", rank, (int)t->members[rank].pid,
                   t->reach.spread ? " of " : "", t->reach.spread ? t->members[rank].host : "");
  } else {
    (void)snprintf(out, OPI_WHO_ROOM, "process %u", rank);
  }
  return out;
}

enum { RANKS_NAMED = 2 };

const char *opi_team_at(const opi_team *t, uint32_t rank, char out[OPI_WHERE_ROOM]) {
  const opi_process *m = &t->members[rank];
  size_t used = 0;
  uint32_t named = 0;
  out[0] = '\0';
  if (m->at[0] != '\0') {
    used = (size_t)snprintf(out, OPI_WHERE_ROOM, "; it was at '%s', move %llu", m->at,
                            (unsigned long long)m->moves);
  }
  for (uint32_t i = 0; i < m->n_told && named < RANKS_NAMED; ++i) {
    const opi_told *told = &m->told[i];
    if (told->state == OPI_TOLD_IDLE || told->at[0] == '\0')
      continue;
    used += (size_t)snprintf(out + used, OPI_WHERE_ROOM - used, "; rank %u %s %s", told->rank,
                             told->state == OPI_TOLD_WORKS ? "in" : "at", told->at);
    ++named;
  }
  if (used == 0 && m->call[0] != '\0')
    (void)snprintf(out, OPI_WHERE_ROOM, "; its last call was '%s'", m->call);
  return out;
}

bool opi_team_may_log(const opi_team *t, uint32_t culprit) {
  const uint32_t rank = t->place.rank;
  return rank == culprit || rank == 0 || (culprit == 0 && rank == 1);
}

void opi_team_fail(opi_team *t, uint32_t culprit, opipe_status status, const char *fmt, ...) {
  opi_abort told = {.culprit = culprit, .status = status};
  va_list args;
  if (t->failed || t->closing)
    return;
  t->failed = true;
  t->culprit = culprit;
  va_start(args, fmt);
  (void)vsnprintf(told.text, sizeof told.text, fmt, args);
  va_end(args);
  (void)opi_text_clean(told.text, sizeof told.text);
  (void)opi_fail(&t->failure, status, "%s", told.text);
  if (t->started && opi_team_may_log(t, culprit))
    t->logs = t->failure.message;
  opi_team_send(t, OPI_NOBODY, OPI_FRAME_ABORT, 0, &told, sizeof told);
  opi_boxes_break(t);
  opi_lock_signal(&t->lock);
}

opipe_status opi_team_failure(const opi_team *t, opipe_error *err) {
  if (t->failed)
    return opi_fail(err, t->failure.status, "%s", t->failure.message);
  return t->cancelled ? opi_fail(err, OPIPE_E_CANCELLED, "the team is being closed") : OPIPE_OK;
}

opipe_status opi_team_check(opi_team *t, opipe_error *err) {
  opi_lock_take(&t->lock);
  const opipe_status status = opi_team_failure(t, err);
  opi_lock_give(&t->lock);
  return status;
}

opipe_status opi_team_abort(opi_team *t, const char *reason, opipe_error *err) {
  char who[OPI_WHO_ROOM], line[OPI_LINE_ROOM], at[OPI_WHERE_ROOM];
  if (reason == NULL || reason[0] == '\0')
    return opi_fail(err, OPIPE_E_INVALID, "team_abort: a reason is needed");
  opi_lock_take(&t->lock);
  opi_standing_tell(t);
  opi_team_fail(t, t->place.rank, OPIPE_E_PEER, "%s has aborted: %s%s",
                opi_team_who(t, t->place.rank, who), opi_text_line(line, reason),
                opi_team_at(t, t->place.rank, at));
  opi_lock_give(&t->lock);
  return OPIPE_OK;
}

opipe_status opi_team_moved(opi_team *t, uint64_t moves, const char *at, opipe_error *err) {
  if (at != NULL && strlen(at) >= OPI_AT_ROOM) {
    return opi_fail(err, OPIPE_E_LIMIT, "team_moved: a text of %zu bytes, at most %d are allowed",
                    strlen(at), OPI_AT_ROOM - 1);
  }
  opi_lock_take(&t->lock);
  opi_process *own = &t->members[t->place.rank];
  own->moves = moves;
  if (at != NULL) {
    (void)snprintf(own->at, sizeof own->at, "%s", at);
    (void)opi_text_clean(own->at, sizeof own->at);
  }
  const opipe_status status = opi_team_failure(t, err);
  opi_lock_give(&t->lock);
  return status;
}
