/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between the members of a group: values, to the member that adds them, and sums, from
 * there. Each direction of a pair has UCX_WINDOW pieces of memory at both ends: the receiver's
 * receives are posted from the start, and posted again when a message was used, which the sender is
 * told.
 */
#include "ucx.h"

enum { ROOMS = 3 * UCX_WINDOW, OPS = 6 * UCX_WINDOW };

static uint64_t tag_of(uint32_t receivers_id, uint32_t kind, uint32_t sender, uint64_t number) {
  return UCX_TAG_GROUP | (uint64_t)receivers_id << 33 | (uint64_t)kind << 32 |
         (uint64_t)sender << 20 | (number & 0xfffff);
}

static void make_piece(ucx_piece *piece, ucx_worker *worker, uint32_t rank, uint64_t n_bytes,
                       char **io_memory, char **io_requests, bool is_in) {
  piece->data = *io_memory;
  *io_memory += n_bytes;
  ucx_op_init(&piece->op, worker, rank, io_requests, ucx_ring);
  if (is_in)
    ucx_op_init(&piece->tells, worker, rank, io_requests, ucx_ring);
}

opipe_status ucx_lanes_make(opipe_group *group, opipe_error *err) {
  const opipe_world *world = group->endpoint->world;
  ucx_worker *worker = group->endpoint->worker;
  const uint64_t others = group->n - 1;
  group->room.n_staging = (ROOMS * others + UCX_WINDOW) * group->piece_bytes;
  group->room.n_requests = OPS * others * world->request_bytes;
  group->members = ucx_new(world->host, "a group", group->n * sizeof *group->members, err);
  group->room.staging = ucx_new(world->host, "values to sum", group->room.n_staging, err);
  group->room.requests = ucx_new(world->host, "a group", group->room.n_requests, err);
  if (group->members == NULL || group->room.staging == NULL || group->room.requests == NULL)
    return OPIPE_E_NOMEM;
  char *memory = group->room.staging, *requests = group->room.requests;
  for (uint32_t m = 0; m < group->n; ++m) {
    ucx_member *member = &group->members[m];
    if (m == group->round.index)
      continue;
    for (int i = 0; i < UCX_WINDOW; ++i) {
      make_piece(&member->out.pieces[i], worker, group->ranks[m], group->piece_bytes, &memory,
                 &requests, false);
      for (int kind = 0; kind < 2; ++kind) {
        make_piece(&member->in[kind].pieces[i], worker, group->ranks[m], group->piece_bytes,
                   &memory, &requests, true);
      }
      ucx_op_init(&member->sums[i], worker, group->ranks[m], &requests, ucx_ring);
    }
  }
  for (int i = 0; i < UCX_WINDOW; ++i, memory += group->piece_bytes)
    group->room.sums[i] = memory;
  return OPIPE_OK;
}

void ucx_lanes_delete(opipe_group *group) {
  const opipe_host *host = group->endpoint->world->host;
  ucx_delete(host, group->members, group->n * sizeof *group->members);
  ucx_delete(host, group->room.staging, group->room.n_staging);
  ucx_delete(host, group->room.requests, group->room.n_requests);
}

static void post(opipe_group *group, uint32_t member, uint32_t kind, uint64_t number) {
  ucx_piece *piece = &group->members[member].in[kind].pieces[number % UCX_WINDOW];
  ucx_recv_op(&piece->op, piece->data, group->piece_bytes, tag_of(group->id, kind, member, number),
              UINT64_MAX);
}

void ucx_lanes_post(opipe_group *group) {
  for (uint32_t m = 0; m < group->n; ++m) {
    for (uint64_t i = 0; i < UCX_WINDOW && m != group->round.index; ++i) {
      post(group, m, UCX_VALUES, i);
      post(group, m, UCX_SUMS, i);
    }
  }
}

/* ---- all operations of a group ---- */

typedef void (*visit_fn)(ucx_op *op);

static void visit(opipe_group *group, visit_fn receives, visit_fn others) {
  for (uint32_t m = 0; group->members != NULL && m < group->n; ++m) {
    ucx_member *member = &group->members[m];
    for (int i = 0; i < UCX_WINDOW && m != group->round.index; ++i) {
      receives(&member->in[UCX_VALUES].pieces[i].op);
      receives(&member->in[UCX_SUMS].pieces[i].op);
      if (others == NULL)
        continue;
      others(&member->in[UCX_VALUES].pieces[i].tells);
      others(&member->in[UCX_SUMS].pieces[i].tells);
      others(&member->out.pieces[i].op);
      others(&member->sums[i]);
    }
  }
}

void ucx_lanes_cancel(opipe_group *group) {
  visit(group, ucx_cancel_op, NULL);
}

void ucx_lanes_forget(opipe_group *group) {
  visit(group, ucx_forget_op, ucx_forget_op);
}

bool ucx_lanes_pending(const void *what) {
  const opipe_group *group = what;
  bool any = false;
  for (uint32_t m = 0; group->members != NULL && m < group->n; ++m) {
    const ucx_member *member = &group->members[m];
    for (int i = 0; i < UCX_WINDOW; ++i) {
      any = any || ucx_is_pending(&member->out.pieces[i].op) || ucx_is_pending(&member->sums[i]);
      for (int kind = 0; kind < 2; ++kind) {
        any = any || ucx_is_pending(&member->in[kind].pieces[i].op) ||
              ucx_is_pending(&member->in[kind].pieces[i].tells);
      }
    }
  }
  return any;
}

/* ---- sending ---- */

char *ucx_lane_place(const opipe_group *group, uint32_t member) {
  const ucx_lane *lane = &group->members[member].out;
  const ucx_piece *piece = &lane->pieces[lane->n % UCX_WINDOW];
  const bool has_room = lane->n < atomic_load(&lane->taken) + UCX_WINDOW;
  return has_room && !ucx_is_pending(&piece->op) ? piece->data : NULL;
}

static void send_it(opipe_group *group, uint32_t member, uint32_t kind, ucx_op *op,
                    const char *data, uint64_t n_bytes, uint64_t number) {
  ucx_worker *worker = group->endpoint->worker;
  ucx_lock(worker);
  ucx_send_op(op, data, n_bytes,
              tag_of(group->members[member].id, kind, group->round.index, number));
  if (ucx_is_pending(op))
    ucx_poke(worker);
  ucx_unlock(worker);
}

void ucx_lane_send(opipe_group *group, uint32_t member, uint64_t n_bytes) {
  ucx_lane *lane = &group->members[member].out;
  ucx_piece *piece = &lane->pieces[lane->n % UCX_WINDOW];
  send_it(group, member, UCX_VALUES, &piece->op, piece->data, n_bytes, lane->n);
  ++lane->n;
}

bool ucx_sums_free(const opipe_group *group, uint32_t member) {
  const ucx_member *m = &group->members[member];
  return m->n_sums < atomic_load(&m->sums_taken) + UCX_WINDOW &&
         !ucx_is_pending(&m->sums[m->n_sums % UCX_WINDOW]);
}

void ucx_sums_send(opipe_group *group, uint32_t member, uint64_t n_bytes) {
  ucx_member *m = &group->members[member];
  const uint64_t at = m->n_sums % UCX_WINDOW;
  send_it(group, member, UCX_SUMS, &m->sums[at], group->room.sums[at], n_bytes, m->n_sums);
  ++m->n_sums;
}

/* ---- receiving ---- */

const char *ucx_lane_look(const opipe_group *group, uint32_t member, uint32_t kind,
                          uint64_t *out_bytes) {
  const ucx_lane *lane = &group->members[member].in[kind];
  const ucx_piece *piece = &lane->pieces[lane->n % UCX_WINDOW];
  if (ucx_is_pending(&piece->op) || ucx_is_pending(&piece->tells) || piece->op.status != UCP_FINE)
    return NULL;
  *out_bytes = piece->op.n_bytes;
  return piece->data;
}

void ucx_lane_taken(opipe_group *group, uint32_t member, uint32_t kind) {
  ucx_worker *worker = group->endpoint->worker;
  ucx_lane *lane = &group->members[member].in[kind];
  ucx_piece *piece = &lane->pieces[lane->n % UCX_WINDOW];
  piece->takes = ucx_brief_of(worker, UCX_NOTE_TAKEN, kind);
  piece->takes.to = group->members[member].id;
  piece->takes.index = group->round.index;
  piece->takes.sequence = ++lane->n;
  ucx_lock(worker);
  post(group, member, kind, lane->n - 1 + UCX_WINDOW);
  ucx_tell_briefly(&piece->tells, &piece->takes);
  if (ucx_is_pending(&piece->tells))
    ucx_poke(worker);
  ucx_unlock(worker);
}
