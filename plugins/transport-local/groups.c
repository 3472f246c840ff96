/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: the members of a reduction find each other (opipe/meeting.h), under the world's lock. */
#include "local.h"

opipe_status local_group_open(opipe_endpoint *endpoint, const uint32_t *ranks, uint32_t n_ranks,
                              uint64_t n_bytes, opipe_group **out_group, opipe_error *err) {
  opipe_world *world = endpoint->world;
  opipe_circle *circle = NULL;
  opipe_group *group =
      opipe_zeroed(world->host, "a group", sizeof *group, _Alignof(opipe_group), err);
  if (group == NULL)
    return OPIPE_E_NOMEM;
  group->endpoint = endpoint;
  pthread_mutex_lock(&world->lock);
  const opipe_status status = opipe_circle_join(&world->reductions, endpoint->rank, ranks, n_ranks,
                                                n_bytes, &circle, &group->index, err);
  pthread_mutex_unlock(&world->lock);
  if (status < 0) {
    opipe_free(world->host, group, sizeof *group, _Alignof(opipe_group));
    return status;
  }
  group->reduction = (reduction *)circle;
  bool near = false;
  const opipe_status known = endpoint->remote ? local_group_nearness(group, &near) : OPIPE_OK;
  const opipe_status made =
      endpoint->remote && (known != OPIPE_OK || !near) ? local_group_bounce(group, err) : OPIPE_OK;
  if (made < 0)
    local_group_close(group);
  else
    *out_group = group;
  return made;
}

opipe_status local_group_bounce(opipe_group *group, opipe_error *err) {
  const opipe_endpoint *e = group->endpoint;
  const uint64_t n_bytes = group->reduction->base.n_bytes;
  if (group->moved == NULL) {
    const opipe_status status = e->backend->event_create(e->device, &group->moved, err);
    if (status < 0)
      return status;
  }
  if (group->bounce == NULL && n_bytes > 0) {
    group->bounce = opipe_zeroed(e->world->host, "values to sum", n_bytes, LINE_BYTES, err);
    if (group->bounce == NULL)
      return OPIPE_E_NOMEM;
  }
  return OPIPE_OK;
}

/* Copies that are on their way end first. */
static void drop_bounce(opipe_group *group) {
  const opipe_endpoint *e = group->endpoint;
  if (group->moved != NULL) {
    (void)e->backend->event_sync(group->moved, UINT64_MAX, NULL);
    e->backend->event_destroy(group->moved);
  }
  opipe_free(e->world->host, group->bounce, group->reduction->base.n_bytes, LINE_BYTES);
}

void local_group_close(opipe_group *group) {
  if (group == NULL)
    return;
  opipe_world *world = group->endpoint->world;
  drop_bounce(group);
  pthread_mutex_lock(&world->lock);
  opipe_circle_leave(&world->reductions, &group->reduction->base);
  pthread_mutex_unlock(&world->lock);
  opipe_free(world->host, group, sizeof *group, _Alignof(opipe_group));
}
