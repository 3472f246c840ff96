/* SPDX-License-Identifier: Apache-2.0 */
/* Notes: what a rank opens and closes, what it has posted and taken, how it leaves. They come from
 * whoever knows a worker's address: each is checked before it is used.
 */
#include <stdio.h>

#include "ucx.h"

#define MAGIC UINT32_C(0x6f707578) /* changes with the note */
enum { MEMBERS_MOST = 1 << 12 };

ucx_brief ucx_brief_of(const ucx_worker *worker, uint32_t kind, uint32_t id) {
  return (ucx_brief){.magic = MAGIC, .kind = kind, .rank = worker->rank, .id = id};
}

opipe_status ucx_next_id(ucx_worker *worker, uint32_t *out_id, opipe_error *err) {
  if (worker->last_id + 1 >= UCX_IDS_MOST) {
    return opipe_fail(err, OPIPE_E_LIMIT, "rank %u: more than %d streams and groups over UCX",
                      worker->rank, UCX_IDS_MOST - 1);
  }
  *out_id = ++worker->last_id;
  return OPIPE_OK;
}

/* ---- telling ---- */

void ucx_tell_briefly(ucx_op *op, const ucx_brief *brief) {
  ucx_send_op(op, brief, sizeof *brief, UCX_TAG_NOTE);
}

static void drop_letters(ucx_worker *worker) {
  ucx_letter **at = &worker->letters;
  while (*at != NULL) {
    ucx_letter *letter = *at;
    if (ucx_is_pending(&letter->op)) {
      at = &letter->next;
      continue;
    }
    *at = letter->next;
    ucx_delete(worker->world->host, letter->requests, worker->world->request_bytes);
    ucx_delete(worker->world->host, letter, sizeof *letter);
  }
}

opipe_status ucx_tell(ucx_worker *worker, uint32_t rank, const ucx_note *note, opipe_error *err) {
  const opipe_world *world = worker->world;
  drop_letters(worker);
  ucx_letter *letter = ucx_new(world->host, "a note", sizeof *letter, err);
  if (letter == NULL)
    return OPIPE_E_NOMEM;
  letter->requests = ucx_new(world->host, "a note", world->request_bytes, err);
  if (letter->requests == NULL) {
    ucx_delete(world->host, letter, sizeof *letter);
    return OPIPE_E_NOMEM;
  }
  letter->note = *note;
  letter->next = worker->letters;
  worker->letters = letter;
  char *requests = letter->requests;
  ucx_op_init(&letter->op, worker, rank, &requests, NULL);
  ucx_send_op(&letter->op, &letter->note, sizeof letter->note, UCX_TAG_NOTE);
  return OPIPE_OK;
}

/* Every worker here tells those that it is connected to. */
void ucx_tell_end(opipe_world *world) {
  opipe_error why = OPIPE_ERROR_INIT;
  const uint32_t rank = shm_reason(world->near, &why);
  for (uint32_t r = 0; r < world->n_ranks; ++r) {
    ucx_worker *worker = world->seats[r].worker;
    if (worker == NULL)
      continue;
    ucx_lock(worker);
    ucx_note note = {.brief = ucx_brief_of(worker, UCX_NOTE_ABORT, rank), .status = why.status};
    (void)snprintf(note.text, sizeof note.text, "%.*s", UCX_TEXT - 1, why.message);
    for (uint32_t p = 0; p < world->n_ranks && !worker->stopped; ++p) {
      if (worker->peers[p].ep != NULL && !worker->peers[p].left)
        (void)ucx_tell(worker, p, &note, NULL);
    }
    ucx_poke(worker);
    ucx_unlock(worker);
  }
}

/* ---- checks ---- */

static opipe_status check_long(const ucx_note *note, uint32_t n_ranks, opipe_error *err) {
  const ucx_brief *b = &note->brief;
  const opipe_stream_params *p = &note->stream;
  if (memchr(note->text, '\0', sizeof note->text) == NULL)
    return opipe_fail(err, OPIPE_E_INVALID, "a note whose text has no end");
  if (b->kind == UCX_NOTE_GROUP &&
      (note->n_members > MEMBERS_MOST || b->index >= note->n_members)) {
    return opipe_fail(err, OPIPE_E_INVALID, "rank %u tells of member %u of a group of %u", b->rank,
                      b->index, note->n_members);
  }
  if (b->kind != UCX_NOTE_STREAM)
    return OPIPE_OK;
  if (b->index > 1 || b->rank != (b->index == 0 ? p->src_rank : p->dst_rank)) {
    return opipe_fail(err, OPIPE_E_INVALID, "rank %u tells side %u of a stream of ranks %u -> %u",
                      b->rank, b->index, p->src_rank, p->dst_rank);
  }
  return opipe_stream_check(b->rank, n_ranks, p, err);
}

static opipe_status check(const ucx_note *note, uint64_t n_bytes, uint32_t n_ranks,
                          opipe_error *err) {
  const ucx_brief *b = &note->brief;
  const bool is_short = n_bytes == sizeof *b;
  if ((!is_short && n_bytes != sizeof *note) || b->magic != MAGIC || b->kind == 0 ||
      b->kind >= UCX_NOTE_END) {
    return opipe_fail(err, OPIPE_E_INVALID, "a note of kind %u and %llu bytes, of another version",
                      b->kind, (unsigned long long)n_bytes);
  }
  if (is_short != (b->kind == UCX_NOTE_POSTED || b->kind == UCX_NOTE_TAKEN)) {
    return opipe_fail(err, OPIPE_E_INVALID, "a note of kind %u with %llu bytes", b->kind,
                      (unsigned long long)n_bytes);
  }
  if (b->rank >= n_ranks)
    return opipe_fail(err, OPIPE_E_INVALID, "a note of rank %u in a world of %u", b->rank, n_ranks);
  return is_short ? OPIPE_OK : check_long(note, n_ranks, err);
}

/* ---- hearing ---- */

static void keep(ucx_worker *worker, const ucx_note *note) {
  opipe_error err = OPIPE_ERROR_INIT;
  ucx_heard *heard = NULL;
  if (worker->n_heard < UCX_HEARD_MOST) {
    heard = ucx_new(worker->world->host, "a note", sizeof *heard, &err);
  } else {
    (void)opipe_fail(&err, OPIPE_E_LIMIT, "rank %u tells of more than %d streams and groups",
                     note->brief.rank, UCX_HEARD_MOST);
  }
  if (heard == NULL) {
    worker->fails = true;
    worker->fail_rank = note->brief.rank;
    worker->why = err;
    return;
  }
  heard->note = *note;
  heard->next = worker->heard;
  worker->heard = heard;
  ++worker->n_heard;
  if (worker->endpoint != NULL)
    shm_transport.ring(worker->endpoint->near);
}

void ucx_forget_note(ucx_worker *worker, ucx_heard *heard) {
  ucx_heard **at = &worker->heard;
  while (*at != heard)
    at = &(*at)->next;
  *at = heard->next;
  --worker->n_heard;
  ucx_delete(worker->world->host, heard, sizeof *heard);
}

static void forget_closed(ucx_worker *worker, const ucx_brief *b) {
  for (ucx_heard *at = worker->heard, *next = NULL; at != NULL; at = next) {
    next = at->next;
    if (at->note.brief.rank == b->rank && at->note.brief.id == b->id)
      ucx_forget_note(worker, at);
  }
}

static void hear_posted(ucx_worker *worker, const ucx_brief *b) {
  opipe_stream *s = worker->streams;
  while (s != NULL && (s->id != b->to || s->side != 0 || s->other != b->rank))
    s = s->next;
  if (s == NULL || s->slots == NULL)
    return; /* it was closed meanwhile */
  ucx_slot *slot = &s->slots[b->sequence % s->params.depth];
  atomic_store_explicit(&slot->room, b->n_bytes, memory_order_relaxed);
  atomic_store_explicit(&slot->posted, b->sequence + 1, memory_order_release);
  shm_transport.ring(s->endpoint->near);
}

static void hear_taken(ucx_worker *worker, const ucx_brief *b) {
  opipe_group *g = worker->groups;
  while (g != NULL && (g->id != b->to || g->members == NULL))
    g = g->next;
  if (g == NULL || b->index >= g->n || g->ranks[b->index] != b->rank)
    return;
  ucx_member *m = &g->members[b->index];
  atomic_store(b->id == UCX_SUMS ? &m->sums_taken : &m->out.taken, b->sequence);
  shm_transport.ring(g->endpoint->near);
}

/* Text of a peer's, for messages. */
static void hear_abort(ucx_worker *worker, const ucx_note *note) {
  if (worker->fails)
    return;
  worker->fails = true;
  worker->fail_rank = note->brief.id < worker->world->n_ranks ? note->brief.id : note->brief.rank;
  (void)opipe_fail(&worker->why, note->status < 0 ? note->status : OPIPE_E_PEER, "%s", note->text);
  for (char *at = worker->why.message; *at != '\0'; ++at)
    *at = (unsigned char)*at < ' ' || *at == 0x7f ? '?' : *at;
}

static void hear_bye(ucx_worker *worker, uint32_t rank) {
  const ucx_note answer = {.brief = ucx_brief_of(worker, UCX_NOTE_HEARD, 0)};
  worker->peers[rank].left = true;
  if (worker->peers[rank].ep != NULL)
    (void)ucx_tell(worker, rank, &answer, NULL);
}

void ucx_hear(ucx_worker *worker, const ucx_note *note, uint64_t n_bytes) {
  const ucx_brief *b = &note->brief;
  opipe_error err = OPIPE_ERROR_INIT;
  if (check(note, n_bytes, worker->world->n_ranks, &err) < 0) {
    const opipe_host *host = worker->world->host;
    host->log(host->ctx, OPIPE_LOG_WARN, NULL, 0, err.message);
    return;
  }
  switch (b->kind) {
    case UCX_NOTE_POSTED:
      hear_posted(worker, b);
      break;
    case UCX_NOTE_TAKEN:
      hear_taken(worker, b);
      break;
    case UCX_NOTE_STREAM:
    case UCX_NOTE_GROUP:
      keep(worker, note);
      break;
    case UCX_NOTE_CLOSE:
      forget_closed(worker, b);
      break;
    case UCX_NOTE_ABORT:
      hear_abort(worker, note);
      break;
    case UCX_NOTE_BYE:
      hear_bye(worker, b->rank);
      break;
    default:
      worker->peers[b->rank].heard = true;
  }
}
