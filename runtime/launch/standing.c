/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions that stand still although all processes answer. Heartbeats carry what each rank is at
 * and which rank it waits for; process 0 follows the ranks that wait for each other to the one at
 * the end, names it, and tells all. */
#include <stdio.h>
#include <string.h>

#include "runtime/launch/team.h"

/* ---- where the ranks of processes are ---- */

void opi_team_tell(opi_team *t, opi_teller *teller) {
  opi_lock_take(&t->lock);
  teller->next = t->tellers;
  t->tellers = teller;
  opi_lock_give(&t->lock);
}

void opi_team_untell(opi_team *t, opi_teller *teller) {
  opi_lock_take(&t->lock);
  for (opi_teller **at = &t->tellers; *at != NULL; at = &(*at)->next) {
    if (*at == teller) {
      *at = teller->next;
      break;
    }
  }
  teller->tell = NULL;
  opi_lock_give(&t->lock);
}

/* Room for the ranks of this process, and of those whose heartbeats it hears, for as long as the
 * team: a heartbeat allocates nothing. */
opipe_status opi_standing_init(opi_team *t, opipe_error *err) {
  for (uint32_t r = 0; r < t->place.size; ++r) {
    if (!opi_team_is_root(t) && r != 0 && r != t->place.rank)
      continue;
    t->members[r].told = opi_alloc_zero(t->allocator, OPI_TOLD_MOST, sizeof(opi_told));
    if (t->members[r].told == NULL)
      return opi_fail_nomem(err, OPI_TOLD_MOST * sizeof(opi_told), "a team");
  }
  return OPIPE_OK;
}

void opi_standing_release(opi_team *t) {
  for (uint32_t r = 0; t->members != NULL && r < t->place.size; ++r)
    opi_free(t->allocator, t->members[r].told, OPI_TOLD_MOST * sizeof(opi_told));
}

void opi_standing_heard(opi_team *t, uint32_t rank, const uint8_t *told, uint32_t n) {
  opi_process *from = &t->members[rank];
  if (n != 0)
    memcpy(from->told, told, n * sizeof *from->told);
  from->n_told = n;
  for (uint32_t i = 0; i < n; ++i) {
    from->told[i].at[OPI_TOLD_ROOM - 1] = '\0';
    (void)opi_text_clean(from->told[i].at, OPI_TOLD_ROOM);
  }
}

void opi_standing_tell(opi_team *t) {
  opi_process *own = &t->members[t->place.rank];
  own->n_told = 0;
  for (const opi_teller *at = t->tellers; at != NULL && own->n_told < OPI_TOLD_MOST;
       at = at->next) {
    opi_told *first = &own->told[own->n_told];
    const uint32_t n = at->tell(at->ctx, first, OPI_TOLD_MOST - own->n_told);
    for (uint32_t i = 0; i < n; ++i)
      first[i].session = at->session;
    own->n_told += n;
  }
}

/* ---- process 0: who holds up all others ---- */

/* A rank of a session, and the process that it is in. */
typedef struct place {
  const opi_told *told; /* NULL: there is none */
  uint32_t process;
} place;

static place next_of(const opi_team *t, uint32_t session, const place *after) {
  uint32_t i =
      after->told == NULL ? 0 : (uint32_t)(after->told - t->members[after->process].told) + 1;
  for (uint32_t p = after->told == NULL ? 0 : after->process; p < t->place.size; ++p, i = 0) {
    for (; i < t->members[p].n_told; ++i) {
      if (t->members[p].told[i].session == session)
        return (place){&t->members[p].told[i], p};
    }
  }
  return (place){NULL, 0};
}

/* The first rank of the session that is in this state, or has this number; told NULL: none. */
static place find(const opi_team *t, uint32_t session, uint32_t state, uint32_t rank) {
  place at = {NULL, 0};
  while ((at = next_of(t, session, &at)).told != NULL) {
    if (at.told->rank == rank || (rank == OPIPE_NONE && at.told->state == state))
      break;
  }
  return at;
}

/* Has every process told something of the session? */
static bool all_tell(const opi_team *t, uint32_t session) {
  uint32_t n = 0, last = OPIPE_NONE;
  place at = {NULL, 0};
  while ((at = next_of(t, session, &at)).told != NULL) {
    n += at.process != last;
    last = at.process;
  }
  return n == t->place.size;
}

/* Does every rank that has work stand still for so many times the session's limit? */
static bool stands(const opi_team *t, uint32_t session, uint32_t times) {
  place at = {NULL, 0};
  bool any = false;
  while ((at = next_of(t, session, &at)).told != NULL) {
    const opi_told *told = at.told;
    if (told->state == OPI_TOLD_IDLE)
      continue;
    if (told->limit_ns == 0 || told->still_ns / times < told->limit_ns)
      return false;
    any = true;
  }
  return any;
}

/* The end of the ranks that wait for each other, or around a cycle once; *out_waiter: the one
 * before it. A sum over all ranks has no single peer: a rank in a program holds it up. */
static place follow(const opi_team *t, uint32_t session, place *out_waiter) {
  place at = find(t, session, OPI_TOLD_WAITS, OPIPE_NONE), next = at;
  *out_waiter = (place){NULL, 0};
  for (uint32_t i = 0; i < t->place.size * OPI_TOLD_MOST && next.told != NULL; ++i) {
    if (next.told != at.told)
      *out_waiter = at;
    at = next;
    if (at.told->state != OPI_TOLD_WAITS)
      break;
    next = at.told->peer == OPIPE_NONE ? find(t, session, OPI_TOLD_WORKS, OPIPE_NONE)
                                       : find(t, session, 0, at.told->peer);
  }
  return at.told != NULL ? at : find(t, session, OPI_TOLD_WORKS, OPIPE_NONE);
}

/* how: NULL, by its state. */
static void describe(const opi_team *t, const place *at, const char *how, char *out, size_t room) {
  char who[OPI_WHO_ROOM];
  const opi_told *told = at->told;
  (void)opi_team_who(t, at->process, who);
  if (told->state == OPI_TOLD_IDLE) {
    (void)snprintf(out, room, "rank %u of %s has nothing left to do", told->rank, who);
    return;
  }
  if (how == NULL)
    how = told->state == OPI_TOLD_WORKS ? "has been in the" : "has been held up at";
  (void)snprintf(out, room, "rank %u of %s %s %s for %.3g s", told->rank, who, how, told->at,
                 (double)told->still_ns * 1e-9);
}

static void keep(opi_team *t, const opi_stuck *stuck) {
  opi_standing *s = &t->standing;
  opi_stuck *kept = &s->list[s->n++ % OPI_STUCK_MOST];
  *kept = *stuck;
  if (opi_team_may_log(t, stuck->culprit))
    t->logs = kept->text;
  opi_lock_signal(&t->lock);
}

static bool is_known(const opi_team *t, uint32_t session) {
  for (uint32_t i = 0; i < t->standing.n && i < OPI_STUCK_MOST; ++i) {
    if (t->standing.list[i].session == session)
      return true;
  }
  return false;
}

static void blame(opi_team *t, uint32_t session) {
  char culprit[240], other[240] = ""; /* both fit in a reason */
  place waiter, end = follow(t, session, &waiter);
  if (end.told == NULL)
    return;
  describe(t, &end, NULL, culprit, sizeof culprit);
  if (waiter.told != NULL)
    describe(t, &waiter, "has waited for it at", other, sizeof other);
  opi_stuck stuck = {.session = session, .culprit = end.process};
  (void)snprintf(stuck.text, sizeof stuck.text, "watchdog: %s%s%s", culprit,
                 other[0] == '\0' ? "" : "; ", other);
  keep(t, &stuck);
  opi_team_send(t, OPI_NOBODY, OPI_FRAME_STUCK, 0, &stuck, sizeof stuck);
}

/* Whoever has not told yet may be the one that is waited for: it gets the limit once more. */
void opi_standing_judge(opi_team *t) {
  for (const opi_teller *at = t->tellers; at != NULL; at = at->next) {
    const uint32_t times = all_tell(t, at->session) ? 1 : 2;
    if (!is_known(t, at->session) && stands(t, at->session, times))
      blame(t, at->session);
  }
}

/* ---- the others ---- */

opipe_status opi_standing_hear(opi_team *t, const opi_channel_message *m, opipe_error *err) {
  opi_stuck stuck;
  if (m->n_bytes != sizeof stuck)
    return opi_fail(err, OPIPE_E_INVALID, "a STUCK of %llu bytes", (unsigned long long)m->n_bytes);
  memcpy(&stuck, m->bytes, sizeof stuck);
  stuck.text[sizeof stuck.text - 1] = '\0';
  (void)opi_text_clean(stuck.text, sizeof stuck.text);
  keep(t, &stuck);
  return OPIPE_OK;
}

opipe_status opi_team_check_session(opi_team *t, uint32_t session, opipe_error *err) {
  opi_lock_take(&t->lock);
  opipe_status status = OPIPE_OK;
  for (uint32_t i = 0; i < t->standing.n && i < OPI_STUCK_MOST && status == OPIPE_OK; ++i) {
    const opi_stuck *stuck = &t->standing.list[i];
    if (stuck->session == session)
      status = opi_fail(err, OPIPE_E_TIMEOUT, "%s", stuck->text);
  }
  opi_lock_give(&t->lock);
  return status;
}
