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
  *out_group = group;
  return OPIPE_OK;
}

void local_group_close(opipe_group *group) {
  if (group == NULL)
    return;
  opipe_world *world = group->endpoint->world;
  pthread_mutex_lock(&world->lock);
  opipe_circle_leave(&world->reductions, &group->reduction->base);
  pthread_mutex_unlock(&world->lock);
  opipe_free(world->host, group, sizeof *group, _Alignof(opipe_group));
}
