/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions in modelled time: once every member has given its values, the sum is there after the
 * time that it takes over a ring of the n members, 2 (n - 1) messages of a n-th of the bytes each,
 * behind the bytes of other reductions in which one of its ranks takes part; whoever looks first
 * then adds it up, member after member in their order, and writes it to all of them. Everything
 * under the world's lock.
 */
#include "emulated.h"

struct opipe_group {
  reduction *reduction;
  opipe_endpoint *endpoint;
  uint64_t n_opened; /* of its endpoint, when it was opened */
  uint32_t index;
};

static member *members_of(const reduction *r) {
  return r->base.members;
}

/* ---- set-up ---- */

opipe_status emutrans_group_open(opipe_endpoint *endpoint, const uint32_t *ranks, uint32_t n_ranks,
                                 uint64_t n_bytes, opipe_group **out_group, opipe_error *err) {
  opipe_world *world = endpoint->world;
  opipe_circle *circle = NULL;
  opipe_group *group = opipe_zeroed(world->host, "a group", sizeof *group, ALIGN, err);
  if (group == NULL)
    return OPIPE_E_NOMEM;
  group->endpoint = endpoint;
  pthread_mutex_lock(&world->lock);
  const opipe_status status = opipe_circle_join(&world->reductions, endpoint->rank, ranks, n_ranks,
                                                n_bytes, &circle, &group->index, err);
  if (status == OPIPE_OK)
    group->n_opened = emutrans_opened(endpoint);
  pthread_mutex_unlock(&world->lock);
  if (status < 0) {
    opipe_free(world->host, group, sizeof *group, ALIGN);
    return status;
  }
  group->reduction = (reduction *)circle;
  *out_group = group;
  return OPIPE_OK;
}

void emutrans_group_close(opipe_group *group) {
  if (group == NULL)
    return;
  opipe_world *world = group->endpoint->world;
  pthread_mutex_lock(&world->lock);
  opipe_circle_leave(&world->reductions, &group->reduction->base);
  pthread_mutex_unlock(&world->lock);
  opipe_free(world->host, group, sizeof *group, ALIGN);
}

/* ---- rounds; lock held ---- */

/* Element after element over all members in order, written to all of them. */
static void add_up(const reduction *r, uint64_t n_elems, uint32_t dtype) {
  for (uint64_t i = 0; i < n_elems; ++i) {
    double wide = 0;
    float narrow = 0;
    for (uint32_t m = 0; m < r->base.n; ++m) {
      if (dtype == OPIPE_DOUBLE) {
        const double value = ((const double *)members_of(r)[m].data)[i];
        wide = m == 0 ? value : wide + value;
      } else {
        const float value = ((const float *)members_of(r)[m].data)[i];
        narrow = m == 0 ? value : narrow + value;
      }
    }
    for (uint32_t m = 0; m < r->base.n; ++m) {
      if (dtype == OPIPE_DOUBLE)
        ((double *)members_of(r)[m].data)[i] = wide;
      else
        ((float *)members_of(r)[m].data)[i] = narrow;
    }
  }
}

static opipe_status check_round(const opipe_group *group, uint64_t sequence,
                                const opipe_region *region, uint64_t n_elems, uint32_t dtype,
                                opipe_error *err) {
  const reduction *r = group->reduction;
  const member *me = &members_of(r)[group->index];
  const opipe_status status = opipe_reduce_check(r->base.n_bytes, region, n_elems, dtype, err);
  if (status == OPIPE_OK && me->given != sequence) {
    return opipe_fail(err, OPIPE_E_STATE, "all_reduce: round %llu where rank %u is at round %llu",
                      (unsigned long long)sequence, group->endpoint->rank,
                      (unsigned long long)me->given);
  }
  return status;
}

static uint64_t ring_rounds(const reduction *r) {
  return 2 * (uint64_t)(r->base.n - 1);
}

/* The ranks of a group add up the bytes of one reduction after the other: when they have these. */
static uint64_t book_links(const opipe_group *group, uint64_t n_bytes) {
  const reduction *r = group->reduction;
  const opipe_world *world = group->endpoint->world;
  const double bytes_per_ns = world->options.bytes_per_ns;
  const uint64_t n_rounds = ring_rounds(r);
  uint64_t at = emutrans_now();
  for (uint32_t i = 0; i < r->base.n; ++i) {
    const opipe_endpoint *e = world->endpoints[r->base.ranks[i]];
    at = e != NULL && e->sums_free_ns > at ? e->sums_free_ns : at;
  }
  at += bytes_per_ns > 0 ? (uint64_t)((double)n_rounds * (double)n_bytes / r->base.n / bytes_per_ns)
                         : 0;
  for (uint32_t i = 0; i < r->base.n; ++i) {
    if (world->endpoints[r->base.ranks[i]] != NULL)
      world->endpoints[r->base.ranks[i]]->sums_free_ns = at;
  }
  return at;
}

static void give(const opipe_group *group, const member *what) {
  reduction *r = group->reduction;
  member *me = &members_of(r)[group->index];
  const uint64_t round = me->given;
  me->data = what->data;
  me->n_elems = what->n_elems;
  me->dtype = what->dtype;
  me->done = what->done;
  me->given = round + 1;
  if (++r->n_given != (round + 1) * r->base.n)
    return;
  r->at_ns = book_links(group, what->n_elems * opipe_reduce_size(what->dtype)) +
             ring_rounds(r) * group->endpoint->world->options.latency_ns;
  for (uint32_t i = 0; i < r->base.n; ++i) {
    opipe_endpoint *e = group->endpoint->world->endpoints[r->base.ranks[i]];
    if (e != NULL && r->at_ns < e->next_ns)
      e->next_ns = r->at_ns; /* a waiter wakes for it */
    emutrans_ring_locked(group->endpoint->world, r->base.ranks[i]);
  }
}

opipe_status emutrans_all_reduce(opipe_group *group, uint64_t sequence, const opipe_region *region,
                                 uint64_t n_elems, uint32_t dtype, opipe_event *ready,
                                 opipe_event *done, opipe_error *err) {
  opipe_endpoint *e = group->endpoint;
  member what = {.n_elems = n_elems, .dtype = dtype, .done = done};
  pthread_mutex_lock(&e->world->lock);
  opipe_status status = emutrans_check(e->world, err);
  if (status == OPIPE_OK)
    status = emutrans_usable(e, group->n_opened, "all_reduce", err);
  if (status == OPIPE_OK)
    status = check_round(group, sequence, region, n_elems, dtype, err);
  if (status == OPIPE_OK && group->reduction->n_summed < sequence)
    status = OPIPE_PENDING; /* the round before */
  if (status == OPIPE_OK)
    status = emutrans_address(e, region, &what.data, err);
  if (status == OPIPE_OK && ready != NULL)
    status = e->backend->event_poll(ready, err);
  if (status == OPIPE_OK)
    give(group, &what);
  pthread_mutex_unlock(&e->world->lock);
  return status;
}

static opipe_status sum_round(const opipe_group *group, uint64_t sequence, opipe_error *err) {
  reduction *r = group->reduction;
  const member *me = &members_of(r)[group->index];
  opipe_endpoint *e = group->endpoint;
  if (r->n_given < (sequence + 1) * r->base.n)
    return OPIPE_PENDING;
  if (emutrans_now() < r->at_ns) {
    e->next_ns = r->at_ns < e->next_ns ? r->at_ns : e->next_ns;
    return OPIPE_PENDING;
  }
  for (uint32_t i = 1; i < r->base.n; ++i) {
    if (members_of(r)[i].n_elems != members_of(r)[0].n_elems ||
        members_of(r)[i].dtype != members_of(r)[0].dtype) {
      return opipe_fail(err, OPIPE_E_INVALID,
                        "all_reduce round %llu: the members' counts or types differ; rank %u gave "
                        "%llu of %s",
                        (unsigned long long)sequence, e->rank, (unsigned long long)me->n_elems,
                        opipe_dtype_name(me->dtype));
    }
  }
  add_up(r, me->n_elems, me->dtype);
  r->n_summed = sequence + 1;
  for (uint32_t i = 0; i < r->base.n; ++i)
    emutrans_ring_locked(e->world, r->base.ranks[i]);
  return OPIPE_OK;
}

opipe_status emutrans_group_test(opipe_group *group, uint64_t sequence, opipe_error *err) {
  reduction *r = group->reduction;
  member *me = &members_of(r)[group->index];
  opipe_endpoint *e = group->endpoint;
  pthread_mutex_lock(&e->world->lock);
  opipe_status status = emutrans_check(e->world, err);
  if (status == OPIPE_OK && me->taken <= sequence) {
    if (r->n_summed <= sequence)
      status = sum_round(group, sequence, err);
    if (status == OPIPE_OK) {
      me->taken = sequence + 1;
      status = emutrans_record(e, &me->done, err);
    }
  }
  pthread_mutex_unlock(&e->world->lock);
  return status;
}
