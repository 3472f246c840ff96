/* SPDX-License-Identifier: Apache-2.0 */
/* Letters: from any process to any other, by way of process 0, kept in a box until its owner takes
 * them. A letter for which there is no box belongs to a session that was closed, and is dropped.
 */
#include <string.h>

#include "runtime/launch/team.h"

struct opi_letterbox {
  opi_box seen; /* the owner's pointer */
  opi_letterbox *next;
  uint64_t key;
  void (*ring)(void *ctx);
  void *ring_ctx;
  bool due;     /* the owner has not been rung since something changed */
  bool ringing; /* the helper is inside `ring` */
  opi_waiting_mail mail;
};

static opi_letterbox *find(const opi_team *t, uint64_t key) {
  opi_letterbox *box = t->mail.letters;
  while (box != NULL && box->key != key)
    box = box->next;
  return box;
}

/* ---- with the lock held ---- */

static opipe_status deliver(opi_team *t, const opi_envelope *letter, const uint8_t *bytes,
                            uint64_t n_bytes, opipe_error *err) {
  opi_letterbox *box = find(t, letter->key);
  if (box == NULL)
    return OPIPE_OK;
  if (letter->n_taken > atomic_load(&box->seen.n_answered))
    atomic_store(&box->seen.n_answered, letter->n_taken);
  if (n_bytes != 0) {
    OPI_TRY(opi_waiting_put(t, &box->mail, bytes, n_bytes, err));
    atomic_fetch_add(&box->seen.n_come, 1);
  }
  box->due = true;
  return OPIPE_OK;
}

opipe_status opi_letter_hear(opi_team *t, const opi_channel_message *m, opipe_error *err) {
  opi_envelope letter;
  if (m->n_bytes < sizeof letter)
    return opi_fail(err, OPIPE_E_INVALID, "a LETTER of %llu bytes", (unsigned long long)m->n_bytes);
  memcpy(&letter, m->bytes, sizeof letter);
  if (letter.to == t->place.rank)
    return deliver(t, &letter, m->bytes + sizeof letter, m->n_bytes - sizeof letter, err);
  opi_connection *link = opi_team_is_root(t) ? opi_connection_of(t, letter.to) : NULL;
  if (link == NULL && (letter.to >= t->place.size || !opi_team_is_root(t)))
    return opi_fail(err, OPIPE_E_INVALID, "a LETTER for process %u", letter.to);
  if (link != NULL) /* else it has left */
    opi_connection_send(t, link, OPI_FRAME_LETTER, 0, m->bytes, m->n_bytes);
  return OPIPE_OK;
}

void opi_boxes_break(opi_team *t) {
  for (opi_letterbox *box = t->mail.letters; box != NULL; box = box->next) {
    atomic_store(&box->seen.broken, 1);
    box->due = true;
  }
  opi_team_wake(t);
}

static opi_letterbox *find_due(const opi_team *t) {
  opi_letterbox *box = t->mail.letters;
  while (box != NULL && !box->due)
    box = box->next;
  return box;
}

void opi_boxes_ring(opi_team *t) {
  for (opi_letterbox *box = find_due(t); box != NULL; box = find_due(t)) {
    box->due = false;
    box->ringing = true;
    opi_lock_give(&t->lock);
    box->ring(box->ring_ctx);
    opi_lock_take(&t->lock);
    box->ringing = false;
    opi_lock_signal(&t->lock);
  }
}

/* ---- calls ---- */

opipe_status opi_team_box_open(opi_team *t, uint64_t key, void (*ring)(void *ctx), void *ctx,
                               opi_box **out_box, opipe_error *err) {
  opi_letterbox *box = opi_alloc_zero(t->allocator, 1, sizeof *box);
  if (box == NULL)
    return opi_fail_nomem(err, sizeof *box, "letters");
  box->key = key;
  box->ring = ring;
  box->ring_ctx = ctx;
  opi_lock_take(&t->lock);
  const bool taken = find(t, key) != NULL;
  if (!taken) {
    atomic_store(&box->seen.broken, t->failed ? 1u : 0u);
    box->next = t->mail.letters;
    t->mail.letters = box;
  }
  opi_lock_give(&t->lock);
  if (taken) {
    opi_free(t->allocator, box, sizeof *box);
    return opi_fail(err, OPIPE_E_STATE, "letters: the box %llx is open already",
                    (unsigned long long)key);
  }
  *out_box = &box->seen;
  return OPIPE_OK;
}

void opi_team_box_close(opi_team *t, opi_box *seen) {
  opi_letterbox *box = (opi_letterbox *)(void *)seen;
  if (box == NULL)
    return;
  opi_lock_take(&t->lock);
  box->due = false;
  while (box->ringing)
    opi_lock_wait(&t->lock, opi_clock_ns() + OPI_SECOND);
  opi_letterbox **at = &t->mail.letters;
  while (*at != box)
    at = &(*at)->next;
  *at = box->next;
  opi_lock_give(&t->lock);
  opi_free(t->allocator, box->mail.bytes, box->mail.room);
  opi_free(t->allocator, box, sizeof *box);
}

opipe_status opi_team_letter(opi_team *t, const opi_envelope *letter, uint64_t n_bytes,
                             opipe_error *err) {
  opi_lock_take(&t->lock);
  const opipe_status status = opi_team_failure(t, err);
  opi_connection *link =
      status < 0 ? NULL : opi_connection_of(t, opi_team_is_root(t) ? letter->to : 0);
  if (link != NULL) { /* else it has left */
    opi_connection_send(t, link, OPI_FRAME_LETTER, 0, letter, n_bytes);
    opi_team_wake(t);
  }
  opi_lock_give(&t->lock);
  return status;
}

opipe_status opi_team_letter_take(opi_team *t, opi_box *seen, void *out, uint64_t room,
                                  uint64_t *out_n, opipe_error *err) {
  opi_letterbox *box = (opi_letterbox *)(void *)seen;
  opipe_status status = OPIPE_PENDING;
  opi_lock_take(&t->lock);
  const uint8_t *first = opi_waiting_first(&box->mail, out_n);
  if (first != NULL && *out_n > room) {
    status = opi_fail(err, OPIPE_E_LIMIT, "a letter of %llu bytes, there is room for %llu",
                      (unsigned long long)*out_n, (unsigned long long)room);
  } else if (first != NULL) {
    memcpy(out, first, (size_t)*out_n);
    opi_waiting_drop(&box->mail);
    status = OPIPE_OK;
  } else if (t->failed) {
    status = opi_team_failure(t, err);
  }
  opi_lock_give(&t->lock);
  return status;
}
