/* SPDX-License-Identifier: Apache-2.0 */
/* Notes: what this world's ranks open and close is told to the worlds that it concerns, and what
 * those tell is kept until they tell its end. A note from elsewhere is checked before it is used.
 */
#include <fcntl.h>
#include <stdio.h>

#include "shm.h"

#define MAGIC UINT32_C(0x6f70736f) /* changes with the note */
enum { MEMBERS_MOST = 1 << 16 };

/* ---- checks ---- */

opipe_status shm_note_check(const shm_note *note, uint32_t n_ranks, opipe_error *err) {
  const opipe_stream_params *p = &note->stream;
  if (note->magic != MAGIC || note->kind == 0 || note->kind >= SHM_NOTE_END) {
    return opipe_fail(err, OPIPE_E_INVALID, "a note of kind %u, of another version (0x%x)",
                      note->kind, note->magic);
  }
  if (note->rank >= n_ranks) {
    return opipe_fail(err, OPIPE_E_INVALID, "a note of rank %u in a world of %u", note->rank,
                      n_ranks);
  }
  if (note->kind != SHM_NOTE_LEND && memchr(note->text, '\0', sizeof note->text) == NULL)
    return opipe_fail(err, OPIPE_E_INVALID, "a note whose text has no end");
  if (note->kind == SHM_NOTE_LEND &&
      (note->n_bytes == 0 || note->n_bytes > note->shared.n_bytes || note->id == 0 ||
       memchr(note->shared.uuid, '\0', sizeof note->shared.uuid) == NULL)) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "rank %u lends %llu bytes of memory %u, which has %llu, or names no device",
                      note->rank, (unsigned long long)note->n_bytes, note->id,
                      (unsigned long long)note->shared.n_bytes);
  }
  if (note->kind == SHM_NOTE_SEGMENT && (note->n_bytes == 0 || note->n_bytes > INT64_MAX)) {
    return opipe_fail(err, OPIPE_E_INVALID, "a segment of %llu bytes",
                      (unsigned long long)note->n_bytes);
  }
  if (note->kind == SHM_NOTE_GROUP &&
      (note->n_members > MEMBERS_MOST || note->index >= note->n_members)) {
    return opipe_fail(err, OPIPE_E_INVALID, "a note of member %u of %u", note->index,
                      note->n_members);
  }
  if (note->kind != SHM_NOTE_STREAM)
    return OPIPE_OK;
  if (note->index > 1 || note->rank != (note->index == 0 ? p->src_rank : p->dst_rank)) {
    return opipe_fail(err, OPIPE_E_INVALID, "rank %u tells side %u of a stream of ranks %u -> %u",
                      note->rank, note->index, p->src_rank, p->dst_rank);
  }
  return opipe_stream_check(note->rank, n_ranks, p, err);
}

/* ---- keeping ---- */

shm_heard **shm_bucket(opipe_world *world, const shm_note *note) {
  const opipe_stream_params *p = &note->stream;
  uint64_t h = note->hash[0];
  if (note->kind == SHM_NOTE_STREAM) {
    h = p->kind + 3u * p->src_rank + 61u * p->dst_rank + 257u * p->src_stage + 769u * p->dst_stage +
        1543u * p->src_replica + 3079u * p->dst_replica + 12289u * p->index;
  }
  return &world->heard[(h ^ (h >> 8) ^ (h >> 17)) % SHM_BUCKETS];
}

static opipe_status keep(opipe_world *world, const shm_note *note, opipe_error *err) {
  shm_heard **first = shm_bucket(world, note);
  for (const shm_heard *at = *first; at != NULL; at = at->next) {
    if (at->note.rank == note->rank && at->note.id == note->id)
      return OPIPE_OK; /* told twice */
  }
  shm_heard *heard = shm_new(world->host, "a note", sizeof *heard, err);
  if (heard == NULL)
    return OPIPE_E_NOMEM;
  heard->note = *note;
  heard->next = *first;
  *first = heard;
  return OPIPE_OK;
}

static void end_heard(opipe_world *world, shm_heard *heard) {
  for (opipe_stream *s = world->streams; s != NULL && heard->taken; s = s->next) {
    for (int side = 0; side < 2; ++side) {
      if (s->ends[side].heard == heard)
        s->ends[side].heard = &world->closed;
    }
  }
  shm_drop_events(world, heard);
  for (shm_span *span = heard->limbo; span != NULL;) {
    shm_span *next = span->limbo;
    if (--span->n_left == 0)
      shm_give(world, span);
    span = next;
  }
  shm_delete(world->host, heard, sizeof *heard);
}

static void close_note(opipe_world *world, uint32_t rank, uint32_t id) {
  for (uint32_t b = 0; b < SHM_BUCKETS; ++b) {
    shm_heard **at = &world->heard[b];
    while (*at != NULL && ((*at)->note.rank != rank || (*at)->note.id != id))
      at = &(*at)->next;
    if (*at == NULL)
      continue;
    shm_heard *heard = *at;
    *at = heard->next;
    end_heard(world, heard);
    return;
  }
}

void shm_forget(opipe_world *world) {
  for (uint32_t b = 0; b < SHM_BUCKETS; ++b) {
    while (world->heard[b] != NULL) {
      shm_heard *heard = world->heard[b];
      world->heard[b] = heard->next;
      shm_delete(world->host, heard, sizeof *heard);
    }
  }
}

/* ---- telling ---- */

static shm_note new_note(uint32_t kind, uint32_t rank, uint32_t id) {
  return (shm_note){.magic = MAGIC, .kind = kind, .rank = rank, .id = id};
}

static shm_note note_of_stream(const opipe_stream *stream, uint32_t side) {
  const shm_end *end = &stream->ends[side];
  shm_note note = new_note(SHM_NOTE_STREAM, stream->endpoint->rank, end->id);
  const opipe_endpoint *e = stream->endpoint;
  note.index = side;
  note.stream = stream->params;
  note.turn = (atomic_load(&e->lent) != NULL ? SHM_LENDS : 0u) | (e->has_remote ? SHM_REMOTE : 0u);
  if (end->span != NULL)
    note.place = end->span->place;
  return note;
}

static shm_note note_of_group(const opipe_group *group) {
  shm_note note = new_note(SHM_NOTE_GROUP, group->endpoint->rank, group->id);
  note.index = group->round.index;
  note.n_members = group->n;
  note.turn = group->turn;
  note.n_bytes = group->round.params.n_bytes;
  note.hash[0] = group->hash[0];
  note.hash[1] = group->hash[1];
  memcpy(note.members, group->members, sizeof note.members);
  if (group->span != NULL)
    note.place = group->span->place;
  return note;
}

static opipe_status tell_peer_of(opipe_world *world, uint32_t rank, const shm_note *note,
                                 opipe_error *err) {
  shm_peer *peer = world->seats[rank].peer;
  return peer == NULL || !peer->greeted ? OPIPE_OK : shm_send_note(world, peer, note, -1, err);
}

static opipe_status tell_all(opipe_world *world, const shm_note *note, int fd, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  for (shm_peer *peer = world->peers; peer != NULL && status >= 0; peer = peer->next) {
    if (peer->greeted)
      status = shm_send_note(world, peer, note, fd, err);
  }
  return status;
}

opipe_status shm_tell_stream(const opipe_stream *stream, uint32_t side, opipe_error *err) {
  opipe_world *world = stream->endpoint->world;
  const shm_note note = note_of_stream(stream, side);
  const uint32_t other = side == 0 ? stream->params.dst_rank : stream->params.src_rank;
  return world->seats[other].local ? keep(world, &note, err)
                                   : tell_peer_of(world, other, &note, err);
}

opipe_status shm_tell_group(const opipe_group *group, opipe_error *err) {
  opipe_world *world = group->endpoint->world;
  const shm_note note = note_of_group(group);
  opipe_status status = keep(world, &note, err);
  for (uint32_t i = 0; i < group->n && status >= 0; ++i)
    status = tell_peer_of(world, group->ranks[i], &note, err);
  return status;
}

opipe_status shm_tell_segment(opipe_world *world, uint32_t rank, const shm_mapped *m,
                              opipe_error *err) {
  shm_note note = new_note(SHM_NOTE_SEGMENT, rank, m->id);
  note.n_bytes = m->n_bytes;
  return tell_all(world, &note, m->fd, err);
}

static shm_note note_of_rank(const opipe_endpoint *endpoint) {
  shm_note note = new_note(SHM_NOTE_RANK, endpoint->rank, 0);
  note.place = endpoint->bell_place;
  return note;
}

opipe_status shm_tell_rank(opipe_endpoint *endpoint, opipe_error *err) {
  const shm_note note = note_of_rank(endpoint);
  return tell_all(endpoint->world, &note, endpoint->world->kick, err);
}

void shm_tell_drop(opipe_world *world, uint32_t rank, uint32_t id) {
  const shm_note note = new_note(SHM_NOTE_DROP, rank, id);
  (void)tell_all(world, &note, -1, NULL);
}

void shm_tell_close(opipe_world *world, uint32_t rank, uint32_t id) {
  const shm_note note = new_note(SHM_NOTE_CLOSE, rank, id);
  close_note(world, rank, id);
  (void)tell_all(world, &note, -1, NULL);
}

void shm_tell_abort(opipe_world *world) {
  shm_note note = new_note(SHM_NOTE_ABORT, world->abort_rank, 0);
  note.status = world->why.status;
  (void)snprintf(note.text, sizeof note.text, "%.*s", SHM_TEXT - 1, world->why.message);
  (void)tell_all(world, &note, -1, NULL);
}

shm_note shm_hello(const opipe_world *world, const uint64_t *token) {
  shm_note note = new_note(SHM_NOTE_HELLO, world->first_rank, 0);
  note.n_bytes = world->n_ranks;
  note.hash[0] = token[0];
  note.hash[1] = token[1];
  return note;
}

shm_note shm_bye(const opipe_world *world) {
  return new_note(SHM_NOTE_BYE, world->first_rank, 0);
}

static shm_note note_of_lent(uint32_t rank, const shm_lent *lent) {
  shm_note note = new_note(SHM_NOTE_LEND, rank, lent->id);
  note.n_bytes = lent->n_bytes;
  note.shared = lent->shared;
  return note;
}

opipe_status shm_tell_lend(opipe_world *world, uint32_t rank, const shm_lent *lent,
                           opipe_error *err) {
  const shm_note note = note_of_lent(rank, lent);
  return tell_all(world, &note, -1, err);
}

void shm_tell_take(opipe_world *world, uint32_t rank, uint32_t id) {
  const shm_note note = new_note(SHM_NOTE_TAKE, rank, id);
  for (shm_peer *peer = world->peers; peer != NULL; peer = peer->next) {
    if (peer->greeted && !peer->gone && shm_send_note(world, peer, &note, -1, NULL) >= 0)
      ++peer->n_takes;
  }
}

void shm_tell_returned(opipe_world *world, shm_peer *peer) {
  const shm_note note = new_note(SHM_NOTE_RETURNED, world->first_rank, 0);
  (void)shm_send_note(world, peer, &note, -1, NULL);
}

static opipe_status tell_of_rank(opipe_world *world, uint32_t rank, shm_peer *peer,
                                 opipe_error *err) {
  opipe_status status = OPIPE_OK;
  for (const opipe_stream *s = world->streams; s != NULL && status >= 0; s = s->next) {
    for (uint32_t side = 0; side < 2 && status >= 0; ++side) {
      const uint32_t other = side == 0 ? s->params.dst_rank : s->params.src_rank;
      if (other != rank || s->ends[side].id == 0)
        continue;
      const shm_note note = note_of_stream(s, side);
      status = shm_send_note(world, peer, &note, -1, err);
    }
  }
  for (const opipe_group *g = world->groups; g != NULL && status >= 0; g = g->next) {
    bool among = false;
    for (uint32_t i = 0; i < g->n; ++i)
      among = among || g->ranks[i] == rank;
    const shm_note note = note_of_group(g);
    if (among)
      status = shm_send_note(world, peer, &note, -1, err);
  }
  return status;
}

opipe_status shm_adopt(opipe_world *world, uint32_t rank, shm_peer *peer, opipe_error *err) {
  shm_seat *seat = &world->seats[rank];
  if (seat->peer == peer)
    return OPIPE_OK;
  if (seat->local || seat->peer != NULL) {
    return opipe_fail(err, OPIPE_E_INVALID, "rank %u is in the process of rank %u, too", rank,
                      peer->first_rank);
  }
  seat->peer = peer;
  return peer->greeted ? tell_of_rank(world, rank, peer, err) : OPIPE_OK;
}

opipe_status shm_greet(opipe_world *world, shm_peer *peer, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  peer->greeted = true;
  for (uint32_t r = 0; r < world->n_ranks && status >= 0; ++r) {
    shm_seat *seat = &world->seats[r];
    _Atomic(shm_mapped *) *table = atomic_load(&seat->table);
    const opipe_endpoint *endpoint = atomic_load(&seat->endpoint);
    for (uint32_t i = 0; seat->local && table != NULL && i < SHM_SEGMENTS && status >= 0; ++i) {
      const shm_mapped *m = atomic_load(&table[i]);
      if (m == NULL || atomic_load(&m->dropped) != 0)
        continue;
      shm_note note = new_note(SHM_NOTE_SEGMENT, r, m->id);
      note.n_bytes = m->n_bytes;
      status = shm_send_note(world, peer, &note, m->fd, err);
    }
    if (endpoint != NULL && status >= 0) {
      const shm_note note = note_of_rank(endpoint);
      status = shm_send_note(world, peer, &note, world->kick, err);
    }
    const shm_lent *lent = endpoint == NULL ? NULL : atomic_load(&endpoint->lent);
    for (; lent != NULL && status >= 0; lent = lent->next) {
      const shm_note note = note_of_lent(r, lent);
      if (atomic_load(&lent->buffer) != NULL)
        status = shm_send_note(world, peer, &note, -1, err);
    }
  }
  for (uint32_t r = 0; r < world->n_ranks && status >= 0; ++r) {
    if (world->seats[r].peer == peer)
      status = tell_of_rank(world, r, peer, err);
  }
  if (status >= 0 && atomic_load(&world->aborted) != 0)
    shm_tell_abort(world);
  return status;
}

/* ---- hearing ---- */

static opipe_status hear_rank(opipe_world *world, const shm_note *note, int fd, opipe_error *err) {
  shm_seat *seat = &world->seats[note->rank];
  shm_mapped *m = NULL;
  char *data = NULL;
  const opipe_status status =
      shm_use(world, note->rank, note->place, sizeof(machine_bell), MACHINE_LINE, &m, &data, err);
  if (status == OPIPE_PENDING || (status == OPIPE_OK && fd < 0)) {
    return opipe_fail(err, OPIPE_E_INVALID, "rank %u tells of a doorbell that is not there",
                      note->rank);
  }
  if (status < 0)
    return status;
  if (atomic_load(&seat->ring_fd) < 0)
    atomic_store(&seat->ring_fd, fcntl(fd, F_DUPFD_CLOEXEC, 0));
  atomic_store(&seat->bell, (machine_bell *)(void *)data); /* its segment is kept */
  return OPIPE_OK;
}

/* Ranks here may wait for memory that a message goes to: its number can be told before the note. */
static void ring_here(const opipe_world *world) {
  for (uint32_t r = 0; r < world->n_ranks; ++r) {
    opipe_endpoint *endpoint = atomic_load(&world->seats[r].endpoint);
    if (endpoint != NULL)
      shm_ring(endpoint);
  }
}

/* Text of a peer's, for messages. */
static void hear_abort(opipe_world *world, const shm_note *note) {
  opipe_error why = OPIPE_ERROR_INIT;
  (void)opipe_fail(&why, note->status < 0 ? note->status : OPIPE_E_PEER, "%s", note->text);
  for (char *at = why.message; *at != '\0'; ++at)
    *at = (unsigned char)*at < ' ' || *at == 0x7f ? '?' : *at;
  shm_fail(world, note->rank, &why);
}

opipe_status shm_hear(opipe_world *world, shm_peer *peer, const shm_note *note, const int *fds,
                      opipe_error *err) {
  opipe_status status = shm_note_check(note, world->n_ranks, err);
  if (status == OPIPE_OK && note->kind != SHM_NOTE_ABORT && note->kind != SHM_NOTE_BYE)
    status = shm_adopt(world, note->rank, peer, err);
  if (status < 0)
    return status;
  switch (note->kind) {
    case SHM_NOTE_RANK:
      return hear_rank(world, note, fds[0], err);
    case SHM_NOTE_SEGMENT:
      status = shm_map(world, note->rank, note->id, note->n_bytes, fds[0], err);
      if (status >= 0)
        ring_here(world);
      return status;
    case SHM_NOTE_DROP:
      shm_drop(world, note->rank, note->id);
      return OPIPE_OK;
    case SHM_NOTE_STREAM:
    case SHM_NOTE_GROUP:
      return keep(world, note, err);
    case SHM_NOTE_CLOSE:
      close_note(world, note->rank, note->id);
      return OPIPE_OK;
    case SHM_NOTE_ABORT:
      hear_abort(world, note);
      return OPIPE_OK;
    case SHM_NOTE_LEND:
      status = shm_hear_lend(world, note, err);
      if (status >= 0)
        ring_here(world);
      return status;
    case SHM_NOTE_TAKE:
      shm_hear_take(world, peer, note);
      return OPIPE_OK;
    case SHM_NOTE_RETURNED:
      ++peer->n_returned;
      peer->n_naps = 0;
      return OPIPE_OK;
    case SHM_NOTE_BYE:
      peer->leaving = true;
      return OPIPE_OK;
    default:
      return opipe_fail(err, OPIPE_E_INVALID, "a second greeting of rank %u", note->rank);
  }
}
