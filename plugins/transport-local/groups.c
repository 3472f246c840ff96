/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: the members of a reduction find each other (opipe/meeting.h), under the world's lock. */
#include "local.h"

static void *list_of(const opipe_group *group, uint64_t n, size_t size, opipe_error *err) {
  return opipe_zeroed(group->endpoint->world->host, "a group", n * size, LINE_BYTES, err);
}

/* Room for lists and walks; the place in the circle is taken. */
static opipe_status make_room(opipe_group *group, opipe_error *err) {
  const uint64_t n = group->reduction->base.n, n_regions = group->params.n_regions;
  member *me = (member *)group->reduction->base.members + group->index;
  group->spans = list_of(group, 2 * n_regions, sizeof *group->spans, err);
  group->walks = list_of(group, 2 * n, sizeof *group->walks, err);
  group->borrowed = list_of(group, 2 * n, sizeof *group->borrowed, err);
  group->pieces = list_of(group, n, sizeof *group->pieces, err);
  if (group->spans == NULL || group->walks == NULL || group->borrowed == NULL ||
      group->pieces == NULL)
    return OPIPE_E_NOMEM;
  me->from = group->spans;
  me->to = group->spans + n_regions;
  bool near = false;
  const bool remote = group->endpoint->remote;
  const opipe_status known = remote ? local_group_nearness(group, &near) : OPIPE_OK;
  return remote && known == OPIPE_OK && !near ? local_group_bounce(group, err) : OPIPE_OK;
}

opipe_status local_group_bounce(opipe_group *group, opipe_error *err) {
  const opipe_endpoint *e = group->endpoint;
  const uint64_t n_bytes = group->params.n_bytes;
  if (group->moved == NULL) {
    const opipe_status status = e->backend->event_create(e->device, &group->moved, err);
    if (status < 0)
      return status;
  }
  return group->bounce.data != NULL || n_bytes == 0
             ? OPIPE_OK
             : opipe_ring_make(e->world->host, e->backend, e->device, 1, n_bytes, true,
                               &group->bounce, NULL);
}

/* Copies that are on their way end first. */
static void drop_bounce(opipe_group *group) {
  const opipe_endpoint *e = group->endpoint;
  if (group->moved != NULL) {
    (void)e->backend->event_sync(group->moved, UINT64_MAX, NULL);
    e->backend->event_destroy(group->moved);
  }
  if (group->bounce.data != NULL)
    opipe_ring_drop(e->world->host, e->backend, e->device, &group->bounce);
}

/* Leaves the circle, if it is in one. */
static void leave(opipe_group *group) {
  opipe_world *world = group->endpoint->world;
  const opipe_host *host = world->host;
  if (group->reduction == NULL)
    return;
  const uint64_t n = group->reduction->base.n;
  drop_bounce(group);
  opipe_free(host, group->spans, 2 * group->params.n_regions * sizeof *group->spans, LINE_BYTES);
  opipe_free(host, group->walks, 2 * n * sizeof *group->walks, LINE_BYTES);
  opipe_free(host, group->borrowed, 2 * n * sizeof *group->borrowed, LINE_BYTES);
  opipe_free(host, group->pieces, n * sizeof *group->pieces, LINE_BYTES);
  pthread_mutex_lock(&world->lock);
  opipe_circle_leave(group->collects ? &world->collectives : &world->reductions,
                     &group->reduction->base);
  pthread_mutex_unlock(&world->lock);
}

opipe_status local_group_open(opipe_endpoint *endpoint, const uint32_t *ranks, uint32_t n_ranks,
                              uint64_t n_bytes, opipe_group **out_group, opipe_error *err) {
  opipe_world *world = endpoint->world;
  opipe_circle *circle = NULL;
  opipe_group *group =
      opipe_zeroed(world->host, "a group", sizeof *group, _Alignof(opipe_group), err);
  if (group == NULL)
    return OPIPE_E_NOMEM;
  group->endpoint = endpoint;
  group->params = (opipe_collective_params){.n_ranks = n_ranks, .n_bytes = n_bytes, .n_regions = 1};
  pthread_mutex_lock(&world->lock);
  opipe_status status = opipe_circle_join(&world->reductions, endpoint->rank, ranks, n_ranks,
                                          n_bytes, &circle, &group->index, err);
  pthread_mutex_unlock(&world->lock);
  group->reduction = (reduction *)circle;
  if (status >= 0)
    status = make_room(group, err);
  if (status < 0)
    local_group_close(group);
  else
    *out_group = group;
  return status;
}

void local_group_close(opipe_group *group) {
  if (group == NULL)
    return;
  leave(group);
  opipe_free(group->endpoint->world->host, group, sizeof *group, _Alignof(opipe_group));
}

opipe_status local_collective_open(opipe_endpoint *endpoint, const opipe_collective_params *params,
                                   opipe_collective **out_collective, opipe_error *err) {
  opipe_world *world = endpoint->world;
  opipe_circle *circle = NULL;
  opipe_collective *c =
      opipe_zeroed(world->host, "a group", sizeof *c, _Alignof(opipe_collective), err);
  if (c == NULL)
    return OPIPE_E_NOMEM;
  c->group.endpoint = endpoint;
  c->group.collects = true;
  pthread_mutex_lock(&world->lock);
  opipe_status status =
      opipe_circle_meet(&world->collectives, endpoint->rank, params, &circle, &c->group.index, err);
  pthread_mutex_unlock(&world->lock);
  c->group.reduction = (reduction *)circle;
  if (status >= 0) {
    c->group.params = (opipe_collective_params){.n_ranks = params->n_ranks,
                                                .id = params->id,
                                                .n_bytes = params->n_bytes,
                                                .n_regions = params->n_regions};
    status = make_room(&c->group, err);
  }
  if (status < 0)
    local_collective_close(c);
  else
    *out_collective = c;
  return status;
}

void local_collective_close(opipe_collective *c) {
  if (c == NULL)
    return;
  leave(&c->group);
  opipe_free(c->group.endpoint->world->host, c, sizeof *c, _Alignof(opipe_collective));
}
