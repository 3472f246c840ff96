/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: the rank of member 0 makes the shared memory in which they sum, the others are told. */
#include "shm.h"

enum { CHUNK_BYTES = 32 << 10 };

/* Members of a group that collects find each other by its id, others by their ranks. */
static void hash_group(opipe_group *group) {
  if (!group->round.collects) {
    machine_hash_ranks(group->ranks, group->n, group->hash);
    return;
  }
  machine_hash_ranks(group->ranks, group->n, group->members);
  machine_hash_id(group->round.params.id, group->hash);
}

static opipe_status take_place(opipe_group *group, opipe_error *err) {
  opipe_world *world = group->endpoint->world;
  const uint32_t rank = group->endpoint->rank;
  for (const opipe_group *g = world->groups; g != NULL && group->round.collects; g = g->next) {
    if (g != group && g->round.collects && g->round.params.id == group->round.params.id &&
        g->endpoint == group->endpoint) {
      return opipe_fail(err, OPIPE_E_STATE,
                        "collective_open: group %llu is open already on rank %u",
                        (unsigned long long)group->round.params.id, rank);
    }
  }
  return machine_take_place(world->host, &world->counts, group->ranks, group->n, rank, group->hash,
                            &group->round.index, &group->turn, err);
}

uint64_t shm_group_parts(const opipe_group *group) {
  return group->n * sizeof(shm_line);
}

uint64_t shm_group_chunks(const opipe_group *group) {
  const uint64_t bytes =
      group->round.collects ? (uint64_t)group->n * group->n * sizeof(uint64_t) : 0;
  return shm_group_parts(group) + (bytes + MACHINE_LINE - 1) / MACHINE_LINE * MACHINE_LINE;
}

static uint64_t area_bytes(const opipe_group *group) {
  return shm_group_chunks(group) + 2 * group->n * group->chunk_bytes;
}

static bool is_member_of(const shm_note *note, const opipe_group *group) {
  return note->kind == SHM_NOTE_GROUP && note->hash[0] == group->hash[0] &&
         note->hash[1] == group->hash[1] && note->turn == group->turn &&
         (group->round.collects ? note->rank != group->endpoint->rank
                                : note->n_members == group->n && note->index != group->round.index);
}

/* Does a member describe the group as this one does? */
static opipe_status agree(const opipe_group *group, const shm_note *note, opipe_error *err) {
  const machine_member other = {.members = {note->members[0], note->members[1]},
                                .n_bytes = note->n_bytes,
                                .rank = note->rank,
                                .index = note->index,
                                .n = note->n_members};
  return machine_round_alike(&group->round, group->ranks, group->members, &other, err);
}

static opipe_status join(opipe_group *group, const shm_note *note, opipe_error *err) {
  shm_mapped *m = NULL;
  char *data = NULL;
  opipe_status status = agree(group, note, err);
  if (status < 0)
    return status;
  if (note->index != 0 || atomic_load(&group->area) != NULL)
    return OPIPE_OK;
  status = shm_use(group->endpoint->world, note->rank, note->place, area_bytes(group), MACHINE_LINE,
                   &m, &data, err);
  if (status == OPIPE_OK) {
    group->area_in = m;
    atomic_store_explicit(&group->area, data, memory_order_release);
  }
  return status;
}

opipe_status shm_group_ready(opipe_group *group, opipe_error *err) {
  opipe_world *world = group->endpoint->world;
  const shm_note key = {.kind = SHM_NOTE_GROUP, .hash = {group->hash[0], group->hash[1]}};
  opipe_status status = OPIPE_OK;
  uint32_t n = 1;
  for (shm_heard *at = *shm_bucket(world, &key); at != NULL && status >= 0; at = at->next) {
    if (!is_member_of(&at->note, group))
      continue;
    status = join(group, &at->note, err);
    n += status == OPIPE_OK;
  }
  if (status < 0)
    return status;
  group->known = n >= group->n && atomic_load(&group->area) != NULL;
  return group->known ? OPIPE_OK : OPIPE_PENDING;
}

static opipe_status build(opipe_group *group, opipe_error *err) {
  opipe_world *world = group->endpoint->world;
  opipe_status status = take_place(group, err);
  if (status < 0)
    return status;
  group->id = ++world->last_id;
  if (group->round.index == 0) {
    status = shm_take(world, group->endpoint->rank, area_bytes(group), false, "values to sum",
                      &group->span, err);
    if (status < 0)
      return status;
    memset(group->span->data, 0, (size_t)group->span->n_bytes);
    atomic_store(&group->area, group->span->data);
  }
  status = shm_tell_group(group, err);
  return status < 0 ? status : shm_group_ready(group, err);
}

/* A group of these ranks, whose params and kind are set. */
static opipe_status open_group(opipe_group *group, const uint32_t *ranks, opipe_error *err) {
  opipe_world *world = group->endpoint->world;
  const uint64_t n_bytes = group->round.params.n_bytes;
  opipe_status status = OPIPE_E_NOMEM;
  group->n = group->round.params.n_ranks;
  group->chunk_bytes = n_bytes < CHUNK_BYTES
                           ? (n_bytes + MACHINE_LINE - 1) / MACHINE_LINE * MACHINE_LINE
                           : (uint64_t)CHUNK_BYTES;
  group->ranks = shm_new(world->host, "a group", group->n * sizeof *ranks, err);
  const opipe_endpoint *e = group->endpoint;
  const opipe_status opened =
      machine_round_open(&group->round, world->host, e->rank, e->backend, e->device, e->queue, err);
  pthread_mutex_lock(&world->lock);
  group->next = world->groups;
  world->groups = group;
  if (group->ranks != NULL && opened == OPIPE_OK) {
    memcpy(group->ranks, ranks, group->n * sizeof *ranks);
    hash_group(group);
    status = build(group, err);
  }
  pthread_mutex_unlock(&world->lock);
  return status;
}

opipe_status shm_group_open(opipe_endpoint *endpoint, const uint32_t *ranks, uint32_t n_ranks,
                            uint64_t n_bytes, opipe_group **out_group, opipe_error *err) {
  opipe_world *world = endpoint->world;
  opipe_status status =
      opipe_group_check(endpoint->rank, world->n_ranks, ranks, n_ranks, n_bytes, err);
  if (status < 0)
    return status;
  opipe_group *group = shm_new(world->host, "a group", sizeof *group, err);
  if (group == NULL)
    return OPIPE_E_NOMEM;
  group->endpoint = endpoint;
  group->round.params =
      (opipe_collective_params){.n_ranks = n_ranks, .n_bytes = n_bytes, .n_regions = 1};
  status = open_group(group, ranks, err);
  if (status < 0)
    shm_group_close(group);
  else
    *out_group = group;
  return status < 0 ? status : OPIPE_OK;
}

opipe_status shm_collective_open(opipe_endpoint *endpoint, const opipe_collective_params *params,
                                 opipe_collective **out_collective, opipe_error *err) {
  opipe_world *world = endpoint->world;
  uint32_t index = 0;
  opipe_status status = opipe_collective_check(endpoint->rank, world->n_ranks, params, &index, err);
  if (status < 0)
    return status;
  opipe_collective *c = shm_new(world->host, "a group", sizeof *c, err);
  if (c == NULL)
    return OPIPE_E_NOMEM;
  c->group.endpoint = endpoint;
  c->group.round.collects = true;
  c->group.round.params = (opipe_collective_params){.n_ranks = params->n_ranks,
                                                    .id = params->id,
                                                    .n_bytes = params->n_bytes,
                                                    .n_regions = params->n_regions};
  status = open_group(&c->group, params->ranks, err);
  if (status < 0)
    shm_collective_close(c);
  else
    *out_collective = c;
  return status < 0 ? status : OPIPE_OK;
}

/* The memory goes when all others have closed, too. */
static void leave_area(opipe_group *group) {
  opipe_world *world = group->endpoint->world;
  const shm_note key = {.kind = SHM_NOTE_GROUP, .hash = {group->hash[0], group->hash[1]}};
  if (group->area_in != NULL)
    shm_let_go(group->area_in);
  if (group->span == NULL)
    return;
  for (shm_heard *at = *shm_bucket(world, &key); at != NULL; at = at->next) {
    if (is_member_of(&at->note, group)) {
      at->limbo = group->span;
      ++group->span->n_left;
    }
  }
  if (group->span->n_left == 0)
    shm_give(world, group->span);
}

static void leave(opipe_group *group) {
  const opipe_endpoint *e = group->endpoint;
  opipe_world *world = e->world;
  machine_round_close(&group->round);
  pthread_mutex_lock(&world->lock);
  opipe_group **at = &world->groups;
  while (*at != group)
    at = &(*at)->next;
  *at = group->next;
  leave_area(group);
  if (group->id != 0)
    shm_tell_close(world, e->rank, group->id);
  shm_sweep(world, false);
  pthread_mutex_unlock(&world->lock);
  shm_delete(world->host, group->ranks, group->n * sizeof *group->ranks);
}

void shm_group_close(opipe_group *group) {
  if (group == NULL)
    return;
  leave(group);
  shm_delete(group->endpoint->world->host, group, sizeof *group);
}

void shm_collective_close(opipe_collective *c) {
  if (c == NULL)
    return;
  leave(&c->group);
  shm_delete(c->group.endpoint->world->host, c, sizeof *c);
}
