/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: the members of a reduction find each other by their list of ranks. A rank that stands in
 * the list several times takes its places in the order in which it opens. Set-up only, under the
 * world's lock. */
#include "local.h"

/* The first place of `rank` that nobody has taken; r->n: none. */
static uint32_t free_place(const reduction *r, uint32_t rank) {
  uint32_t i = 0;
  while (i < r->n && (r->ranks[i] != rank || r->members[i].joined))
    ++i;
  return i;
}

/* A group in which this rank has a place left; several groups of equal members are told apart by
 * the order of opening. */
static reduction *find(opipe_world *world, const uint32_t *ranks, uint32_t n_ranks, uint32_t rank) {
  reduction *found = NULL;
  for (reduction *r = world->reductions; r != NULL; r = r->next) {
    if (r->n == n_ranks && memcmp(r->ranks, ranks, n_ranks * sizeof *ranks) == 0 &&
        free_place(r, rank) < n_ranks)
      found = r;
  }
  return found; /* the list has the newest first: the oldest is found last */
}

static void drop(const opipe_host *host, reduction *r) {
  local_free(host, r->members, r->n * sizeof(member), _Alignof(member));
  local_free(host, r->ranks, r->n * sizeof(uint32_t), _Alignof(uint32_t));
  local_free(host, r, sizeof *r, _Alignof(reduction));
}

static opipe_status make(opipe_world *world, const uint32_t *ranks, uint32_t n_ranks,
                         uint64_t n_bytes, reduction **out, opipe_error *err) {
  reduction *r = local_alloc(world->host, sizeof *r, _Alignof(reduction));
  if (r == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "a group: the host has no %zu bytes left", sizeof *r);
  r->n = n_ranks;
  r->n_bytes = n_bytes;
  r->ranks = local_alloc(world->host, n_ranks * sizeof(uint32_t), _Alignof(uint32_t));
  r->members = local_alloc(world->host, n_ranks * sizeof(member), _Alignof(member));
  if (r->ranks == NULL || r->members == NULL) {
    drop(world->host, r);
    return opipe_fail(err, OPIPE_E_NOMEM, "a group of %u members: the host has no %zu bytes left",
                      n_ranks, n_ranks * sizeof(member));
  }
  memcpy(r->ranks, ranks, n_ranks * sizeof *ranks);
  r->next = world->reductions;
  world->reductions = r;
  *out = r;
  return OPIPE_OK;
}

static opipe_status join(opipe_endpoint *endpoint, const uint32_t *ranks, uint32_t n_ranks,
                         uint64_t n_bytes, opipe_group *group, opipe_error *err) {
  reduction *r = find(endpoint->world, ranks, n_ranks, endpoint->rank);
  opipe_status status = OPIPE_OK;
  if (r == NULL) {
    status = make(endpoint->world, ranks, n_ranks, n_bytes, &r, err);
  } else if (r->n_bytes != n_bytes) {
    status = opipe_fail(
        err, OPIPE_E_INVALID, "group_open: rank %u opens it with %llu bytes, its peers with %llu",
        endpoint->rank, (unsigned long long)n_bytes, (unsigned long long)r->n_bytes);
  }
  if (status < 0)
    return status;
  group->reduction = r;
  group->index = free_place(r, endpoint->rank);
  r->members[group->index].joined = true;
  ++r->n_open;
  return OPIPE_OK;
}

opipe_status local_group_open(opipe_endpoint *endpoint, const uint32_t *ranks, uint32_t n_ranks,
                              uint64_t n_bytes, opipe_group **out_group, opipe_error *err) {
  opipe_world *world = endpoint->world;
  opipe_status status =
      opipe_group_check(endpoint->rank, world->n_ranks, ranks, n_ranks, n_bytes, err);
  if (status < 0)
    return status;
  opipe_group *group = local_alloc(world->host, sizeof *group, _Alignof(opipe_group));
  if (group == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "a group: the host has no %zu bytes left", sizeof *group);
  group->endpoint = endpoint;
  pthread_mutex_lock(&world->lock);
  status = join(endpoint, ranks, n_ranks, n_bytes, group, err);
  pthread_mutex_unlock(&world->lock);
  if (status < 0) {
    local_free(world->host, group, sizeof *group, _Alignof(opipe_group));
    return status;
  }
  *out_group = group;
  return OPIPE_OK;
}

void local_group_close(opipe_group *group) {
  if (group == NULL)
    return;
  opipe_world *world = group->endpoint->world;
  reduction *r = group->reduction;
  pthread_mutex_lock(&world->lock);
  if (--r->n_open == 0) {
    reduction **at = &world->reductions;
    while (*at != r)
      at = &(*at)->next;
    *at = r->next;
    drop(world->host, r);
  }
  pthread_mutex_unlock(&world->lock);
  local_free(world->host, group, sizeof *group, _Alignof(opipe_group));
}
