/* SPDX-License-Identifier: Apache-2.0 */
/* A launch at the head of its stream moves on a piece at a time: each look moves as much as its
 * peers let it, and never waits.
 *
 * A message: both ends come to it (`sends`, `recvs`), look whether they mean the same, then the
 * sender writes a piece when the one before has been taken. Collectives go through a piece of each
 * member: all write theirs, all take what they need. The ends of an operation cannot come to the
 * next one before it is over, so a header lasts as long as somebody may read it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "double.h"
#include "tests/plugins/backend-cuda/doubles/driver.h"

enum { DEVICES = 16 };

static nccl_launch *running[DEVICES]; /* by device */
static nccl_launch *unbegun;          /* in the order of the host's calls */
static bool silent;                   /* nothing of this process moves */
static uint64_t n_sums;               /* launches with collectives that have begun */

static uint64_t pieces_of(uint64_t n_bytes) {
  return n_bytes == 0 ? 1 : (n_bytes + CHUNK - 1) / CHUNK;
}

static size_t piece_bytes(uint64_t n_bytes, uint64_t piece) {
  const uint64_t left = n_bytes - piece * CHUNK < n_bytes ? n_bytes - piece * CHUNK : n_bytes;
  return (size_t)(left < CHUNK ? left : CHUNK);
}

/* ---- messages ---- */

static void check_ends(const nccl_task *t, const nccl_header *sent, const nccl_header *received) {
  if (sent->count == received->count && sent->type == received->type)
    return;
  const int own = t->comm->rank, peer = t->header.root;
  const bool sends = t->header.kind == TASK_SEND;
  nccl_die("message %llu from rank %d to rank %d: %llu of %s are sent, %llu of %s received",
           (unsigned long long)t->number, sends ? own : peer, sends ? peer : own,
           (unsigned long long)sent->count, nccl_type_name(sent->type),
           (unsigned long long)received->count, nccl_type_name(received->type));
}

/* True: something has moved. */
static bool come_to_message(nccl_task *t, nccl_channel *ch) {
  const bool sends = t->header.kind == TASK_SEND;
  uint64_t *n = sends ? &t->comm->n_sent[t->header.root] : &t->comm->n_received[t->header.root];
  t->number = (*n)++;
  t->n_pieces = pieces_of(t->header.count * nccl_size_of(t->header.type));
  *(sends ? &ch->sent : &ch->received) = t->header;
  atomic_store(sends ? &ch->sends : &ch->recvs, t->number + 1);
  t->posted = true;
  return true;
}

static bool move_message(nccl_task *t) {
  const bool sends = t->header.kind == TASK_SEND;
  const int own = t->comm->rank, peer = t->header.root;
  nccl_channel *ch =
      sends ? nccl_channel_of(t->comm, own, peer) : nccl_channel_of(t->comm, peer, own);
  const uint64_t n_bytes = t->header.count * nccl_size_of(t->header.type);
  if (!t->posted)
    return come_to_message(t, ch);
  if (atomic_load(sends ? &ch->recvs : &ch->sends) <= t->number)
    return false;
  if (!t->matched)
    check_ends(t, &ch->sent, &ch->received);
  t->matched = true;
  const uint64_t wrote = atomic_load(&ch->wrote), took = atomic_load(&ch->took);
  const size_t n = piece_bytes(n_bytes, t->n_done);
  const uint64_t at = t->n_done * CHUNK;
  if (sends && wrote == took && t->n_done == t->n_pieces) {
    t->over = true;
    return true;
  }
  if (sends ? wrote != took : wrote == took)
    return false;
  if (sends && n > 0)
    memcpy(ch->piece, (const unsigned char *)t->from + at, n);
  else if (n > 0)
    memcpy((unsigned char *)t->to + at, ch->piece, n);
  ++t->n_done;
  atomic_store(sends ? &ch->wrote : &ch->took, (sends ? wrote : took) + 1);
  t->over = !sends && t->n_done == t->n_pieces;
  return true;
}

/* ---- collectives ---- */

static void check_members(const nccl_task *t) {
  const nccl_header *own = &t->header;
  for (int i = 0; i < t->comm->n_ranks; ++i) {
    const nccl_header *h = &nccl_member_of(t->comm, i)->header;
    if (h->kind == own->kind && h->count == own->count && h->type == own->type &&
        h->op == own->op && h->root == own->root)
      continue;
    nccl_die(
        "collective %llu of %d ranks: rank %d comes to %s of %llu %s (operation %d, root %d), "
        "rank %d to %s of %llu %s (operation %d, root %d)",
        (unsigned long long)t->number, t->comm->n_ranks, t->comm->rank, nccl_kind_name(own->kind),
        (unsigned long long)own->count, nccl_type_name(own->type), own->op, own->root, i,
        nccl_kind_name(h->kind), (unsigned long long)h->count, nccl_type_name(h->type), h->op,
        h->root);
  }
}

/* From own memory to the own piece. */
static void write_piece(const nccl_task *t, nccl_member *own, size_t at, size_t n) {
  if (n > 0 && (t->header.kind != TASK_BROADCAST || t->header.root == t->comm->rank))
    memcpy(own->piece, (const unsigned char *)t->from + at, n);
}

/* The part of [first, first + count) that lies in member `rank`'s of a scatter. */
static void clip(const nccl_task *t, uint64_t *io_first, uint64_t *io_count) {
  const uint64_t part = t->header.count / (uint64_t)t->comm->n_ranks;
  const uint64_t from = part * (uint64_t)t->comm->rank, to = from + part;
  const uint64_t end = *io_first + *io_count < to ? *io_first + *io_count : to;
  *io_first = *io_first > from ? *io_first : from;
  *io_count = end > *io_first ? end - *io_first : 0;
}

static void take_sums(const nccl_task *t, size_t at, size_t n) {
  const nccl_header *h = &t->header;
  const size_t size = nccl_size_of(h->type);
  const unsigned char *from[MOST_RANKS];
  uint64_t first = at / size, count = n / size, begin = 0;
  if (h->kind == TASK_REDUCE_SCATTER) {
    clip(t, &first, &count);
    begin = h->count / (uint64_t)t->comm->n_ranks * (uint64_t)t->comm->rank;
  }
  if (count == 0 || (h->kind == TASK_REDUCE && h->root != t->comm->rank))
    return;
  for (int i = 0; i < t->comm->n_ranks; ++i)
    from[i] = nccl_member_of(t->comm, i)->piece + (first * size - at);
  nccl_combine(h, (unsigned char *)t->to + (first - begin) * size, from, t->comm->n_ranks, first,
               count, h->count);
}

static void take_piece(const nccl_task *t, size_t at, size_t n) {
  const nccl_header *h = &t->header;
  const size_t whole = (size_t)h->count * nccl_size_of(h->type);
  unsigned char *to = t->to;
  if (n == 0)
    return;
  if (h->kind == TASK_ALL_GATHER) {
    for (int i = 0; i < t->comm->n_ranks; ++i)
      memcpy(to + (size_t)i * whole + at, nccl_member_of(t->comm, i)->piece, n);
  } else if (h->kind == TASK_BROADCAST) {
    memcpy(to + at, nccl_member_of(t->comm, h->root)->piece, n);
  } else {
    take_sums(t, at, n);
  }
}

/* Are all as far? counter: that of a member, by its place in nccl_member. */
static bool all_reach(const nccl_task *t, size_t counter, uint64_t least, bool *out_late) {
  bool all = true;
  for (int i = 0; i < t->comm->n_ranks; ++i) {
    const unsigned char *member = (const unsigned char *)nccl_member_of(t->comm, i);
    out_late[i] = atomic_load((const _Atomic uint64_t *)(const void *)(member + counter)) < least;
    all = all && !out_late[i];
  }
  return all;
}

static bool move_collective(nccl_task *t, bool *out_late) {
  nccl_member *own = nccl_member_of(t->comm, t->comm->rank);
  const uint64_t n_bytes = t->header.count * nccl_size_of(t->header.type);
  if (!t->posted) {
    t->number = t->comm->n_collectives++;
    t->n_pieces = pieces_of(n_bytes);
    own->header = t->header;
    atomic_store(&own->met, t->number + 1);
    t->posted = true;
    return true;
  }
  if (!t->matched) {
    if (!all_reach(t, offsetof(nccl_member, met), t->number + 1, out_late))
      return false;
    check_members(t);
    t->matched = true;
    return true;
  }
  const uint64_t took = atomic_load(&own->took), wrote = atomic_load(&own->wrote);
  const size_t at = (size_t)(t->n_done * CHUNK), n = piece_bytes(n_bytes, t->n_done);
  if (wrote == took) {
    if (!all_reach(t, offsetof(nccl_member, took), took, out_late))
      return false;
    write_piece(t, own, at, n);
    atomic_store(&own->wrote, wrote + 1);
    return true;
  }
  if (!all_reach(t, offsetof(nccl_member, wrote), wrote, out_late))
    return false;
  take_piece(t, at, n);
  atomic_store(&own->took, took + 1);
  t->over = ++t->n_done == t->n_pieces;
  return true;
}

/* ---- launches ---- */

/* Collectives one after the other, then messages: those of one direction to one peer in order, the
 * others as chance lets them. */
static bool move_tasks(nccl_launch *launch, bool *out_awaited, bool *out_over) {
  bool stands[2][MOST_RANKS] = {{false}}, moved = false;
  *out_over = true;
  for (nccl_task *t = launch->tasks; t != NULL; t = t->next) {
    if (t->over || t->header.kind <= TASK_RECV)
      continue;
    *out_over = false;
    return move_collective(t, out_awaited);
  }
  for (nccl_task *t = launch->tasks; t != NULL; t = t->next) {
    bool *stand = &stands[t->header.kind == TASK_SEND][t->header.root];
    if (t->over || *stand) {
      *out_over = *out_over && t->over;
      continue;
    }
    const bool now = nccl_draw(2) == 0 && move_message(t);
    moved = moved || now;
    if (!t->over) {
      *stand = true;
      *out_over = false;
      out_awaited[t->header.root] = out_awaited[t->header.root] || !now;
    }
  }
  return moved;
}

void nccl_order_add(nccl_launch *launch) {
  nccl_launch **last = &unbegun;
  while (*last != NULL)
    last = &(*last)->after;
  *last = launch;
}

void nccl_order_remove(const nccl_launch *launch) {
  for (nccl_launch **link = &unbegun; *link != NULL; link = &(*link)->after) {
    if (*link == launch) {
      *link = launch->after;
      break;
    }
  }
}

/* In the order of the host's calls, if so asked. */
static bool is_turn(const nccl_launch *launch) {
  const char *implicit = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  return implicit == NULL || strcmp(implicit, "1") != 0 || unbegun == launch;
}

static bool begin(nccl_launch *launch) {
  nccl_launch **slot = &running[launch->comm->device % DEVICES];
  if (*slot != NULL || nccl_now_ns() < launch->begins_ns || !is_turn(launch))
    return false;
  *slot = launch;
  nccl_order_remove(launch);
  launch->runs = true;
  launch->stands_ns = nccl_now_ns();
  const bool sums = launch->tasks->header.kind > TASK_RECV;
  n_sums += sums;
  switch (nccl_fault_at_launch(launch->number, sums ? n_sums : 0)) {
    case FAULT_SILENT:
      silent = true;
      break;
    case FAULT_ERROR:
      launch->comm->state = COMM_FAILED;
      launch->comm->error = nccl_fail(NCCL_DOUBLE_REMOTE_ERROR, "the test lets launch %llu fail",
                                      (unsigned long long)launch->number);
      break;
    default:
      break;
  }
  return true;
}

static void end(nccl_launch *launch) {
  nccl_launch **slot = &running[launch->comm->device % DEVICES];
  if (*slot == launch)
    *slot = NULL;
  nccl_order_remove(launch);
  --launch->comm->n_queued;
  nccl_tell_idle();
  nccl_launch_free(launch);
}

/* True: over. */
static bool look(nccl_launch *launch) {
  bool awaited[MOST_RANKS] = {false}, over = false;
  if (launch->comm->state == COMM_ABORTED || cuda_double_has_fault())
    return true;
  if ((!launch->runs && !begin(launch)) || silent || launch->comm->state == COMM_FAILED)
    return false;
  const bool moved = move_tasks(launch, awaited, &over);
  nccl_counted.moves += moved;
  if (moved)
    launch->stands_ns = nccl_now_ns();
  if (!over)
    nccl_tell(launch, moved, awaited);
  return over;
}

bool nccl_meet(const void *args) {
  nccl_launch *launch = *(nccl_launch *const *)args;
  (void)pthread_mutex_lock(&nccl_lock);
  const bool over = look(launch);
  if (over)
    end(launch);
  (void)pthread_mutex_unlock(&nccl_lock);
  return over;
}
