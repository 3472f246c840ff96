/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: the rank of member 0 makes the shared memory in which they sum, the others are told. */
#include "shm.h"

enum { CHUNK_BYTES = 32 << 10 };

static uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
  return hash ^ (hash >> 29);
}

static void hash_ranks(opipe_group *group) {
  group->hash[0] = UINT64_C(0x6a09e667f3bcc908);
  group->hash[1] = UINT64_C(0xbb67ae8584caa73b);
  for (uint32_t i = 0; i < group->n; ++i) {
    group->hash[0] = mix(group->hash[0], group->ranks[i]);
    group->hash[1] = mix(group->hash[1] + group->hash[0], group->ranks[i] + UINT64_C(1));
  }
}

/* A rank that is listed several times takes its places in the order in which it opens them, and
 * groups of equal members are told apart by the order of opening. */
static opipe_status take_place(opipe_group *group, opipe_error *err) {
  opipe_world *world = group->endpoint->world;
  const uint32_t rank = group->endpoint->rank;
  uint32_t n_times = 0, place = 0;
  shm_count *count = world->counts;
  while (count != NULL && (count->rank != rank || count->hash[0] != group->hash[0] ||
                           count->hash[1] != group->hash[1]))
    count = count->next;
  if (count == NULL) {
    count = shm_new(world->host, "a group", sizeof *count, err);
    if (count == NULL)
      return OPIPE_E_NOMEM;
    *count = (shm_count){.next = world->counts, .rank = rank};
    memcpy(count->hash, group->hash, sizeof count->hash);
    world->counts = count;
  }
  for (uint32_t i = 0; i < group->n; ++i)
    n_times += group->ranks[i] == rank;
  group->turn = count->n / n_times;
  place = count->n++ % n_times;
  for (uint32_t i = 0; i < group->n; ++i) {
    if (group->ranks[i] == rank && place-- == 0) {
      group->index = i;
      break;
    }
  }
  return OPIPE_OK;
}

static uint64_t area_bytes(const opipe_group *group) {
  return group->n * (sizeof(shm_line) + 2 * group->chunk_bytes);
}

static bool is_member_of(const shm_note *note, const opipe_group *group) {
  return note->kind == SHM_NOTE_GROUP && note->hash[0] == group->hash[0] &&
         note->hash[1] == group->hash[1] && note->n_members == group->n &&
         note->turn == group->turn && note->index != group->index;
}

static opipe_status join(opipe_group *group, const shm_note *note, opipe_error *err) {
  shm_mapped *m = NULL;
  char *data = NULL;
  if (note->rank != group->ranks[note->index] || note->n_bytes != group->n_bytes) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "group_open: rank %u opens it with %llu bytes, rank %u, place %u, with %llu",
                      group->endpoint->rank, (unsigned long long)group->n_bytes, note->rank,
                      note->index, (unsigned long long)note->n_bytes);
  }
  if (note->index != 0 || atomic_load(&group->area) != NULL)
    return OPIPE_OK;
  const opipe_status status = shm_use(group->endpoint->world, note->rank, note->place,
                                      area_bytes(group), MACHINE_LINE, &m, &data, err);
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
  if (group->index == 0) {
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
  group->n = n_ranks;
  group->n_bytes = n_bytes;
  group->chunk_bytes = n_bytes < CHUNK_BYTES
                           ? (n_bytes + MACHINE_LINE - 1) / MACHINE_LINE * MACHINE_LINE
                           : (uint64_t)CHUNK_BYTES;
  group->ranks = shm_new(world->host, "a group", n_ranks * sizeof *ranks, err);
  pthread_mutex_lock(&world->lock);
  group->next = world->groups;
  world->groups = group;
  status = OPIPE_E_NOMEM;
  if (group->ranks != NULL) {
    memcpy(group->ranks, ranks, n_ranks * sizeof *ranks);
    hash_ranks(group);
    status = build(group, err);
  }
  pthread_mutex_unlock(&world->lock);
  if (status < 0)
    shm_group_close(group);
  else
    *out_group = group;
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

void shm_group_close(opipe_group *group) {
  if (group == NULL)
    return;
  const opipe_endpoint *e = group->endpoint;
  opipe_world *world = e->world;
  if (group->moved != NULL) { /* copies that are on their way end first */
    (void)e->backend->event_sync(group->moved, UINT64_MAX, NULL);
    e->backend->event_destroy(group->moved);
  }
  shm_delete(world->host, group->bounce, group->n_bytes);
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
  shm_delete(world->host, group, sizeof *group);
}
