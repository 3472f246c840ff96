/* SPDX-License-Identifier: Apache-2.0 */
/* Mail: messages of process 0 to all others, kept for a lane until somebody there takes them; and
 * memory in which messages wait. In the steady state nothing is allocated: a lane's memory grows to
 * its most, and frames come from pools (connection.c). */
#include <string.h>

#include "runtime/launch/team.h"

enum { FIRST_ROOM = 4096, ALIGN = 8 };
#define UNREAD_MOST (UINT64_C(16) << 20) /* bytes of a lane that nobody takes */

struct opi_inbox {
  opi_inbox *next;
  uint32_t lane;
  opi_waiting_mail mail;
};

/* ---- messages that wait ---- */

static uint64_t padded(uint64_t n_bytes) {
  return sizeof(uint64_t) + opi_align_up(n_bytes, ALIGN);
}

/* Room for n more bytes at the end. */
static bool make_room(const opi_team *t, opi_waiting_mail *box, uint64_t n) {
  if (box->end + n <= box->room)
    return true;
  if (box->begin != 0)
    memmove(box->bytes, box->bytes + box->begin, box->end - box->begin);
  box->end -= box->begin;
  box->begin = 0;
  uint64_t room = box->room == 0 ? FIRST_ROOM : box->room;
  while (room < box->end + n)
    room *= 2;
  if (room == box->room)
    return true;
  uint8_t *grown = opi_resize(t->allocator, box->bytes, box->room, room);
  if (grown == NULL)
    return false;
  box->bytes = grown;
  box->room = room;
  return true;
}

opipe_status opi_waiting_put(const opi_team *t, opi_waiting_mail *mail, const uint8_t *bytes,
                             uint64_t n_bytes, opipe_error *err) {
  if (mail->end - mail->begin + padded(n_bytes) > UNREAD_MOST) {
    return opi_fail(err, OPIPE_E_LIMIT,
                    "%llu bytes of messages have not been taken yet, at most %llu may wait",
                    (unsigned long long)(mail->end - mail->begin), (unsigned long long)UNREAD_MOST);
  }
  if (!make_room(t, mail, padded(n_bytes)))
    return opi_fail_nomem(err, padded(n_bytes), "messages of other processes");
  memcpy(mail->bytes + mail->end, &n_bytes, sizeof n_bytes);
  if (n_bytes != 0)
    memcpy(mail->bytes + mail->end + sizeof n_bytes, bytes, n_bytes);
  mail->end += padded(n_bytes);
  return OPIPE_OK;
}

const uint8_t *opi_waiting_first(const opi_waiting_mail *mail, uint64_t *out_n) {
  if (mail->begin == mail->end)
    return NULL;
  memcpy(out_n, mail->bytes + mail->begin, sizeof *out_n);
  return mail->bytes + mail->begin + sizeof *out_n;
}

void opi_waiting_drop(opi_waiting_mail *mail) {
  uint64_t n = 0;
  if (opi_waiting_first(mail, &n) != NULL)
    mail->begin += padded(n);
  if (mail->begin == mail->end)
    mail->begin = mail->end = 0;
}

/* ---- lanes ---- */

/* The lane's, made when it is new; NULL: out of memory. */
static opi_inbox *find(opi_team *t, uint32_t lane) {
  opi_inbox *box = t->mail.boxes;
  while (box != NULL && box->lane != lane)
    box = box->next;
  if (box != NULL)
    return box;
  box = opi_alloc_zero(t->allocator, 1, sizeof *box);
  if (box == NULL)
    return NULL;
  box->lane = lane;
  box->next = t->mail.boxes;
  t->mail.boxes = box;
  return box;
}

opipe_status opi_mail_hear(opi_team *t, const opi_channel_message *m, opipe_error *err) {
  opi_inbox *box = find(t, m->tag);
  if (box == NULL)
    return opi_fail_nomem(err, sizeof *box, "calls to repeat");
  const opipe_status status = opi_waiting_put(t, &box->mail, m->bytes, m->n_bytes, err);
  if (status == OPIPE_E_LIMIT)
    (void)opi_error_prefix(err, "calls that process 0 made are not repeated: ");
  opi_lock_signal(&t->lock);
  return status;
}

void opi_mail_release(opi_team *t) {
  while (t->mail.boxes != NULL)
    opi_team_mail_end(t, t->mail.boxes->lane);
  opi_spares_release(t);
}

/* ---- calls ---- */

opipe_status opi_team_mail(opi_team *t, uint32_t lane, const void *bytes, uint64_t n_bytes,
                           opipe_error *err) {
  opi_lock_take(&t->lock);
  const opipe_status status = opi_team_failure(t, err);
  if (status == OPIPE_OK)
    opi_team_send(t, OPI_NOBODY, OPI_FRAME_MAIL, lane, bytes, n_bytes);
  opi_lock_give(&t->lock);
  return status;
}

/* The oldest message, if there is one. */
static opipe_status take(opi_team *t, opi_inbox *box, uint8_t **io_bytes, uint64_t *io_room,
                         uint64_t *out_n, opipe_error *err) {
  uint64_t n = 0;
  const uint8_t *first = opi_waiting_first(&box->mail, &n);
  if (first == NULL)
    return OPIPE_PENDING;
  if (n > *io_room) {
    uint8_t *grown = opi_resize(t->allocator, *io_bytes, *io_room, n);
    if (grown == NULL)
      return opi_fail_nomem(err, n, "a call to repeat");
    *io_bytes = grown;
    *io_room = n;
  }
  if (n != 0)
    memcpy(*io_bytes, first, n);
  opi_waiting_drop(&box->mail);
  *out_n = n;
  return OPIPE_OK;
}

opipe_status opi_team_mail_take(opi_team *t, uint32_t lane, uint64_t timeout_ns, uint8_t **io_bytes,
                                uint64_t *io_room, uint64_t *out_n, opipe_error *err) {
  const uint64_t until = opi_later_ns(opi_clock_ns(), timeout_ns);
  opi_lock_take(&t->lock);
  opi_inbox *box = find(t, lane);
  opipe_status status = box == NULL ? opi_fail_nomem(err, sizeof *box, "calls to repeat")
                                    : take(t, box, io_bytes, io_room, out_n, err);
  while (status == OPIPE_PENDING) {
    const opipe_status failure = opi_team_failure(t, err);
    if (failure < 0 || opi_clock_ns() >= until) {
      status = failure < 0 ? failure : OPIPE_PENDING;
      break;
    }
    opi_lock_wait(&t->lock, until);
    status = take(t, box, io_bytes, io_room, out_n, err);
  }
  opi_lock_give(&t->lock);
  return status;
}

void opi_team_mail_end(opi_team *t, uint32_t lane) {
  opi_lock_take(&t->lock);
  opi_inbox **at = &t->mail.boxes;
  while (*at != NULL && (*at)->lane != lane)
    at = &(*at)->next;
  opi_inbox *box = *at;
  if (box != NULL) {
    *at = box->next;
    opi_free(t->allocator, box->mail.bytes, box->mail.room);
    opi_free(t->allocator, box, sizeof *box);
  }
  opi_lock_give(&t->lock);
}
