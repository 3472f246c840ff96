/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: those whose members are all of this machine are transport-shm's; the others' members find
 * each other by notes.
 */
#include "ucx.h"

enum {
  PIECE_BYTES = 128 << 10,
  PIECE_UNIT = OPIPE_SUM_BLOCK * sizeof(double),
  MEMBERS_MOST = 1 << 12
};

static bool is_open(const opipe_group *group) {
  for (const opipe_group *g = group->endpoint->worker->groups; g != NULL; g = g->next) {
    if (g != group && g->round.collects && g->round.params.id == group->round.params.id)
      return true;
  }
  return false;
}

/* Under the lock. */
static opipe_status take_place(opipe_group *group, opipe_error *err) {
  ucx_worker *worker = group->endpoint->worker;
  machine_hash_ranks(group->ranks, group->n, group->member_hash);
  if (group->round.collects)
    machine_hash_id(group->round.params.id, group->hash);
  else
    memcpy(group->hash, group->member_hash, sizeof group->hash);
  if (group->round.collects && is_open(group)) {
    return opipe_fail(err, OPIPE_E_STATE, "collective_open: group %llu is open already on rank %u",
                      (unsigned long long)group->round.params.id, worker->rank);
  }
  return machine_take_place(worker->world->host, &worker->counts, group->ranks, group->n,
                            worker->rank, group->hash, &group->round.index, &group->turn, err);
}

/* ---- who carries it ---- */

/* All members find the same: sharing memory is mutual, and of two that share it with a third. */
static opipe_status find_carrier(const opipe_group *group, bool *out_by_ucx, opipe_error *err) {
  const opipe_endpoint *e = group->endpoint;
  opipe_status status = OPIPE_OK;
  *out_by_ucx = false;
  for (uint32_t i = 0; i < group->n && status == OPIPE_OK; ++i) {
    bool by_ucx = false;
    status = ucx_find(e->world, e->rank, group->ranks[i], &by_ucx, err);
    *out_by_ucx = *out_by_ucx || by_ucx;
  }
  return status;
}

static opipe_status open_near(opipe_group *group, opipe_error *err) {
  const opipe_endpoint *e = group->endpoint;
  const opipe_collective_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_collective_params, reserved),
      .n_ranks = group->n,
      .ranks = group->ranks,
      .id = group->round.params.id,
      .n_bytes = group->round.params.n_bytes,
      .n_regions = group->round.params.n_regions};
  return group->round.collects
             ? shm_transport.collective_open(e->near, &params, &group->near_collective, err)
             : shm_transport.group_open(e->near, group->ranks, group->n,
                                        group->round.params.n_bytes, &group->near, err);
}

static opipe_status take_over(opipe_group *group, opipe_error *err) {
  ucx_worker *worker = group->endpoint->worker;
  const uint64_t head = (uint64_t)(4 + group->n) * sizeof(uint64_t);
  const uint64_t share = (group->round.params.n_bytes + group->n - 1) / group->n;
  uint64_t bytes = share < PIECE_BYTES ? share : (uint64_t)PIECE_BYTES;
  bytes = bytes < head ? head : bytes;
  group->piece_bytes = (bytes + PIECE_UNIT - 1) / PIECE_UNIT * PIECE_UNIT;
  if (group->n > MEMBERS_MOST) {
    return opipe_fail(err, OPIPE_E_LIMIT, "a group of %u members over UCX, at most %d", group->n,
                      MEMBERS_MOST);
  }
  opipe_status status = ucx_lanes_make(group, err);
  ucx_lock(worker);
  if (status == OPIPE_OK)
    status = ucx_next_id(worker, &group->id, err);
  if (status == OPIPE_OK)
    ucx_lanes_post(group);
  group->by_ucx = status == OPIPE_OK;
  ucx_unlock(worker);
  return status;
}

/* ---- meeting the others ---- */

static opipe_status tell(opipe_group *group, opipe_error *err) {
  ucx_worker *worker = group->endpoint->worker;
  ucx_note note = {.brief = ucx_brief_of(worker, UCX_NOTE_GROUP, group->id),
                   .hash = {group->hash[0], group->hash[1]},
                   .members = {group->member_hash[0], group->member_hash[1]},
                   .n_members = group->n,
                   .turn = group->turn};
  opipe_status status = OPIPE_OK;
  note.brief.index = group->round.index;
  note.brief.n_bytes = group->round.params.n_bytes;
  for (uint32_t i = 0; i < group->n && status == OPIPE_OK; ++i)
    status = i == group->round.index ? OPIPE_OK : ucx_reach(worker, group->ranks[i], err);
  ucx_lock(worker);
  for (uint32_t i = 0; i < group->n && status == OPIPE_OK; ++i) {
    note.brief.to = i;
    status = i == group->round.index ? OPIPE_OK : ucx_tell(worker, group->ranks[i], &note, err);
  }
  ucx_poke(worker);
  ucx_unlock(worker);
  group->told = status == OPIPE_OK;
  return status;
}

/* Does a member describe the group as this one does? */
static opipe_status agree(const opipe_group *group, const ucx_note *note, opipe_error *err) {
  const machine_member other = {.members = {note->members[0], note->members[1]},
                                .n_bytes = note->brief.n_bytes,
                                .rank = note->brief.rank,
                                .index = note->brief.index,
                                .n = note->n_members};
  return machine_round_alike(&group->round, group->ranks, group->member_hash, &other, err);
}

static bool is_of(const ucx_note *note, const opipe_group *group) {
  const ucx_brief *b = &note->brief;
  if (b->kind != UCX_NOTE_GROUP || note->hash[0] != group->hash[0] ||
      note->hash[1] != group->hash[1] || note->turn != group->turn)
    return false;
  return group->round.collects
             ? b->rank != group->endpoint->rank
             : note->n_members == group->n && b->to == group->round.index && b->index < group->n;
}

/* Under the lock. */
static opipe_status join(opipe_group *group, opipe_error *err) {
  ucx_worker *worker = group->endpoint->worker;
  ucx_heard *at = worker->heard;
  while (at != NULL) {
    ucx_heard *next = at->next;
    const ucx_brief b = at->note.brief;
    if (is_of(&at->note, group)) {
      const opipe_status status = agree(group, &at->note, err);
      if (status < 0)
        return status;
      ucx_member *m = &group->members[b.index];
      group->n_known += m->known ? 0 : 1;
      m->known = true;
      m->id = b.id;
      ucx_forget_note(worker, at);
    }
    at = next;
  }
  return group->n_known + 1 == group->n ? OPIPE_OK : OPIPE_PENDING;
}

opipe_status ucx_group_ready(opipe_group *group, opipe_error *err) {
  ucx_worker *worker = group->endpoint->worker;
  bool by_ucx = group->by_ucx;
  opipe_status status = OPIPE_OK;
  if (group->near != NULL || group->near_collective != NULL ||
      (group->by_ucx && group->n_known + 1 == group->n))
    return OPIPE_OK;
  if (!by_ucx)
    status = find_carrier(group, &by_ucx, err);
  if (status == OPIPE_OK && !by_ucx)
    return open_near(group, err);
  if (status == OPIPE_OK && !group->by_ucx)
    status = take_over(group, err);
  if (status == OPIPE_OK && !group->told)
    status = tell(group, err);
  if (status != OPIPE_OK)
    return status;
  ucx_lock(worker);
  status = join(group, err);
  ucx_unlock(worker);
  return status;
}

/* ---- opening and closing ---- */

static opipe_status build(opipe_group *group, const uint32_t *ranks, opipe_error *err) {
  const opipe_world *world = group->endpoint->world;
  ucx_worker *worker = group->endpoint->worker;
  const opipe_endpoint *e = group->endpoint;
  const opipe_status opened =
      machine_round_open(&group->round, world->host, e->rank, e->backend, e->device, e->queue, err);
  group->n = group->round.params.n_ranks;
  group->ranks = ucx_new(world->host, "a group", group->n * sizeof *ranks, err);
  if (group->ranks == NULL || opened < 0)
    return OPIPE_E_NOMEM;
  memcpy(group->ranks, ranks, group->n * sizeof *ranks);
  if (worker == NULL)
    return open_near(group, err);
  ucx_lock(worker);
  opipe_status status = take_place(group, err);
  if (status == OPIPE_OK) {
    group->next = worker->groups;
    worker->groups = group;
    group->is_listed = true;
  }
  ucx_unlock(worker);
  if (status == OPIPE_OK)
    status = ucx_group_ready(group, err);
  return status < 0 ? status : OPIPE_OK;
}

static void leave(opipe_group *group) {
  ucx_worker *worker = group->endpoint->worker;
  if (group->by_ucx) {
    ucx_lock(worker);
    ucx_lanes_cancel(group);
    ucx_unlock(worker);
    ucx_settle(worker, group->ranks[group->round.index == 0 ? 1 : 0], ucx_lanes_pending, group);
  }
  ucx_lock(worker);
  opipe_group **at = &worker->groups;
  while (*at != group)
    at = &(*at)->next;
  *at = group->next;
  const ucx_note note = {.brief = ucx_brief_of(worker, UCX_NOTE_CLOSE, group->id)};
  for (uint32_t i = 0; group->told && !worker->stopped && i < group->n; ++i) {
    if (i != group->round.index && !worker->peers[group->ranks[i]].left)
      (void)ucx_tell(worker, group->ranks[i], &note, NULL);
  }
  if (group->told)
    ucx_poke(worker);
  ucx_unlock(worker);
}

static void close_all(opipe_group *group) {
  const opipe_endpoint *e = group->endpoint;
  const opipe_host *host = e->world->host;
  if (group->is_listed)
    leave(group);
  shm_transport.group_close(group->near);
  shm_transport.collective_close(group->near_collective);
  ucx_lanes_delete(group);
  machine_round_close(&group->round);
  ucx_delete(host, group->ranks, group->n * sizeof *group->ranks);
}

void ucx_group_close(opipe_group *group) {
  if (group == NULL || ucx_is_child(group->endpoint->world))
    return;
  close_all(group);
  ucx_delete(group->endpoint->world->host, group, sizeof *group);
}

void ucx_collective_close(opipe_collective *c) {
  if (c == NULL || ucx_is_child(c->group.endpoint->world))
    return;
  close_all(&c->group);
  ucx_delete(c->group.endpoint->world->host, c, sizeof *c);
}

opipe_status ucx_group_open(opipe_endpoint *endpoint, const uint32_t *ranks, uint32_t n_ranks,
                            uint64_t n_bytes, opipe_group **out_group, opipe_error *err) {
  const opipe_world *world = endpoint->world;
  opipe_status status =
      opipe_group_check(endpoint->rank, world->n_ranks, ranks, n_ranks, n_bytes, err);
  if (status < 0)
    return status;
  opipe_group *group = ucx_new(world->host, "a group", sizeof *group, err);
  if (group == NULL)
    return OPIPE_E_NOMEM;
  group->endpoint = endpoint;
  group->round.params =
      (opipe_collective_params){.n_ranks = n_ranks, .n_bytes = n_bytes, .n_regions = 1};
  status = build(group, ranks, err);
  if (status < 0)
    ucx_group_close(group);
  else
    *out_group = group;
  return status;
}

opipe_status ucx_collective_open(opipe_endpoint *endpoint, const opipe_collective_params *params,
                                 opipe_collective **out_collective, opipe_error *err) {
  const opipe_world *world = endpoint->world;
  uint32_t index = 0;
  opipe_status status = opipe_collective_check(endpoint->rank, world->n_ranks, params, &index, err);
  if (status < 0)
    return status;
  opipe_collective *c = ucx_new(world->host, "a group", sizeof *c, err);
  if (c == NULL)
    return OPIPE_E_NOMEM;
  c->group.endpoint = endpoint;
  c->group.round.collects = true;
  c->group.round.params = (opipe_collective_params){.n_ranks = params->n_ranks,
                                                    .id = params->id,
                                                    .n_bytes = params->n_bytes,
                                                    .n_regions = params->n_regions};
  status = build(&c->group, params->ranks, err);
  if (status < 0)
    ucx_collective_close(c);
  else
    *out_collective = c;
  return status;
}
