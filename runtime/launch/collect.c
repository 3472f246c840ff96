/* SPDX-License-Identifier: Apache-2.0 */
/* Collective calls: every process gives a part, process 0 puts them together, all get the result.
 *
 *   others     GATHER (head, bytes) ──►  process 0: parts [size]  ──► RESULT (head, sizes, bytes)
 *
 * Each lane has one call at a time, with a number of its own.
 */
#include <stdio.h>
#include <string.h>

#include "runtime/launch/team.h"

#define PARTS_MOST (UINT64_C(48) << 20)
enum { LANES_MOST = 1 << 16, LOOK_NS = 200000000 };

static uint64_t result_begin(const opi_team *t) { /* bytes before those of the parts */
  return sizeof(opi_result_head) + t->place.size * sizeof(uint64_t);
}

static void drop_part(opi_team *t, opi_contribution *part) {
  opi_free(t->allocator, part->bytes, part->n);
  *part = (opi_contribution){NULL, 0};
}

static void drop_result(const opi_team *t, opi_collect *c) {
  opi_free(t->allocator, c->result, c->n_result);
  c->result = NULL;
}

static void free_lane(opi_team *t, opi_collect *c) {
  for (uint32_t r = 0; c->parts != NULL && r < t->place.size; ++r)
    drop_part(t, &c->parts[r]);
  drop_result(t, c);
  opi_free(t->allocator, c->parts, t->place.size * sizeof *c->parts);
  opi_free(t->allocator, c, sizeof *c);
}

void opi_collect_release(opi_team *t) {
  while (t->collects != NULL) {
    opi_collect *c = t->collects;
    t->collects = c->next;
    free_lane(t, c);
  }
  t->n_collects = 0;
}

/* The lane of that name, made when it is new. */
static opipe_status find_lane(opi_team *t, const char *lane, opi_collect **out, opipe_error *err) {
  opi_collect **at = &t->collects;
  while (*at != NULL && strcmp((*at)->lane, lane) != 0)
    at = &(*at)->next;
  *out = *at;
  if (*at != NULL)
    return OPIPE_OK;
  if (t->n_collects == LANES_MOST)
    return opi_fail(err, OPIPE_E_LIMIT, "collective calls in more than %d lanes", LANES_MOST);
  opi_collect *c = opi_alloc_zero(t->allocator, 1, sizeof *c);
  if (c == NULL)
    return opi_fail_nomem(err, sizeof *c, "a lane of collective calls");
  if (opi_team_is_root(t)) {
    c->parts = opi_alloc_zero(t->allocator, t->place.size, sizeof *c->parts);
    if (c->parts == NULL) {
      free_lane(t, c);
      return opi_fail_nomem(err, t->place.size * sizeof *c->parts, "a lane of collective calls");
    }
  }
  (void)snprintf(c->lane, sizeof c->lane, "%s", lane);
  *at = *out = c;
  ++t->n_collects;
  return OPIPE_OK;
}

/* ---- process 0 ---- */

static opi_part_head head_of(const opi_contribution *part) {
  opi_part_head head;
  memcpy(&head, part->bytes, sizeof head);
  head.lane[sizeof head.lane - 1] = '\0';
  head.name[sizeof head.name - 1] = '\0';
  head.reason[sizeof head.reason - 1] = '\0';
  return head;
}

/* The reason why the call fails for all: a refusal, or another name somewhere. */
static void judge(const opi_team *t, const opi_collect *c, opi_result_head *out) {
  char who[OPI_WHO_ROOM];
  const opi_part_head first = head_of(&c->parts[0]);
  uint64_t total = 0;
  for (uint32_t r = 0; r < t->place.size && out->status == OPIPE_OK; ++r) {
    const opi_part_head head = head_of(&c->parts[r]);
    if (head.refused >= 0)
      continue;
    out->status = head.refused >= OPIPE_E_INTERNAL ? head.refused : OPIPE_E_INVALID;
    (void)snprintf(out->reason, sizeof out->reason, "%s: %s", opi_team_who(t, r, who), head.reason);
  }
  for (uint32_t r = 0; r < t->place.size && out->status == OPIPE_OK; ++r) {
    const opi_part_head head = head_of(&c->parts[r]);
    total += c->parts[r].n - sizeof head;
    if (strcmp(head.name, first.name) != 0 || head.flags != first.flags) {
      out->status = OPIPE_E_STATE;
      (void)snprintf(out->reason, sizeof out->reason,
                     "%s is at the collective call '%s' where process 0 is at '%s'",
                     opi_team_who(t, r, who), head.name, first.name);
    }
  }
  if (out->status == OPIPE_OK && total > PARTS_MOST) {
    out->status = OPIPE_E_LIMIT;
    (void)snprintf(out->reason, sizeof out->reason,
                   "'%s': the parts of all processes have %llu bytes, at most %llu are allowed",
                   first.name, (unsigned long long)total, (unsigned long long)PARTS_MOST);
  }
}

/* Makes the result of the parts, or of the refusal that the head states, tells it, and is ready for
 * the next call. */
static void complete(opi_team *t, opi_collect *c, opi_result_head head) {
  uint64_t n = result_begin(t);
  (void)snprintf(head.lane, sizeof head.lane, "%s", c->lane);
  for (uint32_t r = 0; r < t->place.size && head.status == OPIPE_OK; ++r)
    n += c->parts[r].n - sizeof(opi_part_head);
  uint8_t *result = opi_alloc_zero(t->allocator, 1, n);
  if (result == NULL) {
    opi_team_fail(t, 0, OPIPE_E_NOMEM, "out of memory for a result of %llu bytes",
                  (unsigned long long)n);
    return;
  }
  memcpy(result, &head, sizeof head);
  uint8_t *at = result + result_begin(t);
  for (uint32_t r = 0; r < t->place.size; ++r) {
    const uint64_t n_part = head.status == OPIPE_OK ? c->parts[r].n - sizeof(opi_part_head) : 0;
    memcpy(result + sizeof head + r * sizeof n_part, &n_part, sizeof n_part);
    if (n_part != 0)
      memcpy(at, c->parts[r].bytes + sizeof(opi_part_head), n_part);
    at += n_part;
    drop_part(t, &c->parts[r]);
  }
  c->n_parts = 0;
  opi_team_send(t, OPI_NOBODY, OPI_FRAME_RESULT, c->tag, result, n);
  drop_result(t, c);
  c->result = result;
  c->n_result = n;
  ++c->tag;
  opi_lock_signal(&t->lock);
}

static opipe_status add_part(opi_team *t, uint32_t rank, uint32_t tag, const uint8_t *bytes,
                             uint64_t n, opipe_error *err) {
  opi_collect *c = NULL;
  if (n < sizeof(opi_part_head)) {
    return opi_fail(err, OPIPE_E_INVALID, "a part of %llu bytes, at least %zu are expected",
                    (unsigned long long)n, sizeof(opi_part_head));
  }
  const opi_part_head given = head_of(&(opi_contribution){(uint8_t *)(uintptr_t)bytes, n});
  OPI_TRY(find_lane(t, given.lane, &c, err));
  opi_contribution *part = &c->parts[rank];
  if (tag != c->tag || part->bytes != NULL) {
    return opi_fail(err, OPIPE_E_INVALID, "part %u of %llu bytes, part %u is expected", tag,
                    (unsigned long long)n, c->tag);
  }
  part->bytes = opi_alloc(t->allocator, n);
  if (part->bytes == NULL)
    return opi_fail_nomem(err, n, "a part of a collective call");
  part->n = n;
  memcpy(part->bytes, bytes, n);
  (void)snprintf(t->members[rank].call, OPI_NAME_ROOM, "%s", given.name);
  if (c->n_parts++ == 0)
    c->since_ns = opi_clock_ns();
  if (c->n_parts == t->place.size) {
    opi_result_head head = {0};
    judge(t, c, &head);
    complete(t, c, head);
  }
  return OPIPE_OK;
}

/* ---- process 0: processes that wait for each other in different lanes ---- */

static bool waits_long(const opi_team *t, const opi_collect *c, uint64_t now_ns) {
  return c->lane[0] != '\0' && c->n_parts != 0 && c->n_parts != t->place.size &&
         now_ns - c->since_ns >= t->timeout_ns;
}

/* Refuses a call of this process, and one in another lane in which a process is that this one waits
 * for. */
static void refuse_both(opi_team *t, opi_collect *a, opi_collect *b, uint32_t rank) {
  char who[OPI_WHO_ROOM];
  opi_result_head head = {.status = OPIPE_E_STATE};
  (void)snprintf(head.reason, sizeof head.reason,
                 "process 0 waits in '%s' of '%s', %s in '%s' of '%s': all processes need the same "
                 "model, options and names",
                 head_of(&a->parts[0]).name, a->lane, opi_team_who(t, rank, who),
                 head_of(&b->parts[rank]).name, b->lane);
  complete(t, a, head);
  complete(t, b, head);
}

/* Looks whether this process waits in a lane for one that waits in another for this one. */
static void look_across(opi_team *t, opi_collect *c) {
  const uint64_t now_ns = opi_clock_ns();
  if (!opi_team_is_root(t) || !waits_long(t, c, now_ns))
    return;
  for (opi_collect *other = t->collects; other != NULL; other = other->next) {
    if (other == c || !waits_long(t, other, now_ns) || other->parts[0].bytes != NULL)
      continue;
    for (uint32_t r = 1; r < t->place.size; ++r) {
      if (other->parts[r].bytes == NULL || c->parts[r].bytes != NULL)
        continue;
      refuse_both(t, c, other, r);
      return;
    }
  }
}

/* ---- messages ---- */

/* The lane of a result that fits what this process waits for. */
static opipe_status check_result(opi_team *t, const opi_channel_message *m, opi_collect **out_lane,
                                 opipe_error *err) {
  const uint64_t begin = result_begin(t);
  opi_result_head head = {0};
  uint64_t left = m->n_bytes - begin;
  bool fits = m->n_bytes >= begin;
  if (fits) {
    memcpy(&head, m->bytes, sizeof head);
    head.lane[sizeof head.lane - 1] = '\0';
  }
  OPI_TRY(find_lane(t, head.lane, out_lane, err));
  fits = fits && m->tag == (*out_lane)->tag;
  for (uint32_t r = 0; fits && r < t->place.size; ++r) {
    uint64_t n = 0;
    memcpy(&n, m->bytes + sizeof(opi_result_head) + r * sizeof n, sizeof n);
    fits = n <= left;
    left -= fits ? n : 0;
  }
  if (fits && left == 0)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID, "result %u of %llu bytes, which does not fit result %u",
                  m->tag, (unsigned long long)m->n_bytes, (*out_lane)->tag);
}

opipe_status opi_collect_hear(opi_team *t, opi_connection *link, const opi_channel_message *m,
                              opipe_error *err) {
  opi_collect *c = NULL;
  if (m->kind == OPI_FRAME_GATHER)
    return add_part(t, link->rank, m->tag, m->bytes, m->n_bytes, err);
  OPI_TRY(check_result(t, m, &c, err));
  uint8_t *copy = opi_alloc(t->allocator, m->n_bytes);
  if (copy == NULL)
    return opi_fail_nomem(err, m->n_bytes, "the result of a collective call");
  memcpy(copy, m->bytes, m->n_bytes);
  drop_result(t, c);
  c->result = copy;
  c->n_result = m->n_bytes;
  ++c->tag;
  opi_lock_signal(&t->lock);
  return OPIPE_OK;
}

void opi_collect_left(opi_team *t, uint32_t rank) {
  char who[OPI_WHO_ROOM];
  for (const opi_collect *c = t->collects; c != NULL; c = c->next) {
    const bool has_part = opi_team_is_root(t) && c->parts[rank].bytes != NULL;
    const bool waits = opi_team_is_root(t) ? c->n_parts != 0 && !has_part : c->inside;
    if (!waits || c->result != NULL)
      continue;
    opi_team_fail(t, rank, OPIPE_E_PEER, "%s has left the team, others wait for it in '%s'%s%s%s",
                  opi_team_who(t, rank, who), c->name, c->lane[0] == '\0' ? "" : " of '", c->lane,
                  c->lane[0] == '\0' ? "" : "'");
    t->logs = NULL; /* it has left in order, and the call that waits says so */
  }
}

/* ---- the call ---- */

static opipe_status check_params(const opi_team *t, const opipe_gather_params *p,
                                 opipe_error *err) {
  if (p->name == NULL || p->name[0] == '\0' || strlen(p->name) >= OPI_NAME_ROOM) {
    return opi_fail(err, OPIPE_E_INVALID, "team_gather: a name of 1 to %d bytes is needed",
                    OPI_NAME_ROOM - 1);
  }
  if (p->data == NULL && p->n_bytes != 0) {
    return opi_fail(err, OPIPE_E_INVALID, "team_gather '%s': data is NULL, n_bytes is %llu",
                    p->name, (unsigned long long)p->n_bytes);
  }
  if (p->n_bytes > PARTS_MOST) {
    return opi_fail(err, OPIPE_E_LIMIT,
                    "team_gather '%s': a part of %llu bytes, at most %llu are allowed", p->name,
                    (unsigned long long)p->n_bytes, (unsigned long long)PARTS_MOST);
  }
  if ((p->flags & OPIPE_GATHER_ROOT) != 0 && !opi_team_is_root(t) && p->n_bytes != 0) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "team_gather '%s': only process 0 gives a part, process %u gives %llu bytes",
                    p->name, t->place.rank, (unsigned long long)p->n_bytes);
  }
  if (p->refused > 0 || p->refused < OPIPE_E_INTERNAL) {
    return opi_fail(err, OPIPE_E_INVALID, "team_gather '%s': refused is %d, which is no error",
                    p->name, (int)p->refused);
  }
  return OPIPE_OK;
}

static opipe_status give_part(opi_team *t, const opi_collect *c, const opipe_gather_params *p,
                              opipe_error *err) {
  opi_part_head head = {.flags = p->flags, .refused = p->refused};
  (void)snprintf(head.lane, sizeof head.lane, "%s", c->lane);
  (void)snprintf(head.name, sizeof head.name, "%s", p->name);
  if (p->refused < 0)
    (void)snprintf(head.reason, sizeof head.reason, "%s", p->reason == NULL ? "" : p->reason);
  (void)opi_text_clean(head.name, sizeof head.name);
  (void)opi_text_clean(head.reason, sizeof head.reason);
  const uint64_t n = sizeof head + p->n_bytes;
  uint8_t *whole = opi_alloc(t->allocator, n);
  if (whole == NULL)
    return opi_fail_nomem(err, n, "a part of a collective call");
  memcpy(whole, &head, sizeof head);
  if (p->n_bytes != 0)
    memcpy(whole + sizeof head, p->data, p->n_bytes);
  opipe_status status = OPIPE_OK;
  if (opi_team_is_root(t))
    status = add_part(t, 0, c->tag, whole, n, err);
  else
    opi_team_send(t, OPI_NOBODY, OPI_FRAME_GATHER, c->tag, whole, n);
  opi_free(t->allocator, whole, n);
  return status;
}

/* Who keeps the call waiting, as far as this process knows. */
static void fail_late(opi_team *t, const opi_collect *c, double seconds) {
  char names[128] = "", who[OPI_WHO_ROOM];
  uint32_t first = 0;
  size_t used = 0;
  for (uint32_t r = t->place.size; opi_team_is_root(t) && r-- > 0;) {
    if (c->parts[r].bytes == NULL)
      first = r;
  }
  for (uint32_t r = 0; opi_team_is_root(t) && r < t->place.size && used + 12 < sizeof names; ++r) {
    if (c->parts[r].bytes == NULL)
      used += (size_t)snprintf(names + used, sizeof names - used, "%s%u", used == 0 ? "" : ", ", r);
  }
  opi_team_fail(t, first, OPIPE_E_TIMEOUT, "%s has waited %.1f s in '%s' for %s%s",
                opi_team_who(t, t->place.rank, who), seconds, c->name,
                used == 0 ? "process 0 and the others" : "process ", names);
}

/* Sleeps until the result is there. */
static opipe_status wait_result(opi_team *t, opi_collect *c, uint64_t timeout_ns,
                                opipe_error *err) {
  const uint64_t began = opi_clock_ns(), until = opi_later_ns(began, timeout_ns);
  while (c->result == NULL && !t->failed && !t->cancelled) {
    if (opi_clock_ns() >= until) {
      fail_late(t, c, (double)(opi_clock_ns() - began) / 1e9);
      break;
    }
    const uint64_t look = opi_later_ns(opi_clock_ns(), LOOK_NS);
    opi_lock_wait(&t->lock, c->lane[0] == '\0' || look > until ? until : look);
    look_across(t, c);
  }
  return c->result != NULL ? OPIPE_OK : opi_team_failure(t, err);
}

/* Hands the parts of a result to the caller. */
static opipe_status give_out(const opi_team *t, const opipe_gather_params *p, const uint8_t *result,
                             opipe_error *err) {
  opi_result_head head;
  memcpy(&head, result, sizeof head);
  head.reason[sizeof head.reason - 1] = '\0';
  (void)opi_text_clean(head.reason, sizeof head.reason);
  if (head.status < 0)
    return opi_fail(err, head.status, "%s", head.reason);
  const uint8_t *at = result + result_begin(t);
  const uint32_t n_parts = (p->flags & OPIPE_GATHER_ROOT) != 0 ? 1 : t->place.size;
  for (uint32_t r = 0; p->part != NULL && r < n_parts; ++r) {
    uint64_t n = 0;
    memcpy(&n, result + sizeof head + r * sizeof n, sizeof n);
    const opipe_status status = p->part(p->part_ctx, r, at, n);
    if (status < 0) {
      return opi_fail(err, status, "team_gather '%s': the host's callback answered %d", p->name,
                      (int)status);
    }
    at += n;
  }
  return OPIPE_OK;
}

opipe_status opi_team_gather(opi_team *t, const opipe_gather_params *p, opipe_error *err) {
  return opi_team_gather_in(t, "", p, err);
}

/* Takes the lane for a call; waits for another thread's, but not in the host's lane. */
static opipe_status enter_lane(opi_team *t, const char *lane, const opipe_gather_params *p,
                               opi_collect **out, opipe_error *err) {
  OPI_TRY(opi_team_failure(t, err));
  OPI_TRY(find_lane(t, lane, out, err));
  if ((*out)->inside && lane[0] == '\0') {
    return opi_fail(err, OPIPE_E_STATE, "team_gather '%s': another thread is in '%s'", p->name,
                    (*out)->name);
  }
  while ((*out)->inside) {
    opi_lock_wait(&t->lock, UINT64_MAX);
    OPI_TRY(opi_team_failure(t, err));
  }
  return OPIPE_OK;
}

void opi_team_tell_in(opi_team *t, const char *lane, const opipe_gather_params *p) {
  opi_collect *c = NULL;
  opi_lock_take(&t->lock);
  if (!t->failed && !t->cancelled && find_lane(t, lane, &c, NULL) == OPIPE_OK && !c->inside)
    (void)give_part(t, c, p, NULL);
  opi_lock_give(&t->lock);
}

opipe_status opi_team_gather_in(opi_team *t, const char *lane, const opipe_gather_params *p,
                                opipe_error *err) {
  opi_collect *c = NULL;
  uint8_t *result = NULL;
  uint64_t n_result = 0;
  OPI_TRY(check_params(t, p, err));
  opi_lock_take(&t->lock);
  opipe_status status = enter_lane(t, lane, p, &c, err);
  if (status < 0) {
    opi_lock_give(&t->lock);
    return status;
  }
  c->inside = true;
  (void)snprintf(c->name, sizeof c->name, "%s", p->name);
  drop_result(t, c);
  status = give_part(t, c, p, err);
  for (uint32_t r = 0; r < t->place.size; ++r) {
    if (t->members[r].left)
      opi_collect_left(t, r);
  }
  if (status == OPIPE_OK)
    status = wait_result(t, c, p->timeout_ns, err);
  if (status == OPIPE_OK) {
    result = c->result;
    n_result = c->n_result;
    c->result = NULL;
    for (uint32_t r = 0; r < t->place.size; ++r) /* all came as far */
      (void)snprintf(t->members[r].call, OPI_NAME_ROOM, "%s", p->name);
  }
  c->inside = false;
  opi_lock_signal(&t->lock); /* other threads may want the lane */
  opi_lock_give(&t->lock);
  if (result != NULL)
    status = give_out(t, p, result, err);
  opi_free(t->allocator, result, n_result);
  return status;
}
