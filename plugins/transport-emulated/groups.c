/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions in modelled time: once every member has given its values, the sum is there after the
 * time that a message of the same size takes, behind the bytes of other reductions in which one of
 * its ranks takes part; whoever looks first then adds it up, member after
 * member in their order, and writes it to all of them. Everything under the world's lock.
 */
#include "emulated.h"

typedef struct member {
  void *data;
  uint64_t given, taken; /* rounds */
  uint64_t n_elems;
  uint32_t dtype;
  opipe_event *done;
  bool joined;
} member;

struct reduction {
  reduction *next;
  uint32_t *ranks; /* [n] */
  member *members; /* [n] */
  uint32_t n, n_open;
  uint64_t n_bytes, n_given, n_summed; /* n_given: contributions since the start */
  uint64_t at_ns;                      /* when the sum of the round at hand is there */
};

struct opipe_group {
  reduction *reduction;
  opipe_endpoint *endpoint;
  uint64_t n_opened; /* of its endpoint, when it was opened */
  uint32_t index;
};

/* ---- set-up ---- */

static void drop(const opipe_host *host, reduction *r) {
  emutrans_free(host, r->members, r->n * sizeof *r->members);
  emutrans_free(host, r->ranks, r->n * sizeof *r->ranks);
  emutrans_free(host, r, sizeof *r);
}

/* The first place of `rank` that nobody has taken; r->n: none. */
static uint32_t free_place(const reduction *r, uint32_t rank) {
  uint32_t i = 0;
  while (i < r->n && (r->ranks[i] != rank || r->members[i].joined))
    ++i;
  return i;
}

static reduction *find(const opipe_world *world, const uint32_t *ranks, uint32_t n, uint32_t rank) {
  reduction *found = NULL; /* the oldest: the list has the newest first */
  for (reduction *r = world->reductions; r != NULL; r = r->next) {
    if (r->n == n && memcmp(r->ranks, ranks, n * sizeof *ranks) == 0 && free_place(r, rank) < n)
      found = r;
  }
  return found;
}

static reduction *make(opipe_world *world, const uint32_t *ranks, uint32_t n, uint64_t n_bytes) {
  reduction *r = emutrans_alloc(world->host, sizeof *r);
  if (r == NULL)
    return NULL;
  r->n = n;
  r->n_bytes = n_bytes;
  r->ranks = emutrans_alloc(world->host, n * sizeof *r->ranks);
  r->members = emutrans_alloc(world->host, n * sizeof *r->members);
  if (r->ranks == NULL || r->members == NULL) {
    drop(world->host, r);
    return NULL;
  }
  memcpy(r->ranks, ranks, n * sizeof *ranks);
  r->next = world->reductions;
  world->reductions = r;
  return r;
}

opipe_status emutrans_group_open(opipe_endpoint *endpoint, const uint32_t *ranks, uint32_t n_ranks,
                                 uint64_t n_bytes, opipe_group **out_group, opipe_error *err) {
  opipe_world *world = endpoint->world;
  opipe_status status =
      opipe_group_check(endpoint->rank, world->n_ranks, ranks, n_ranks, n_bytes, err);
  if (status < 0)
    return status;
  opipe_group *group = emutrans_alloc(world->host, sizeof *group);
  if (group == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "a group: the host has no %zu bytes left", sizeof *group);
  pthread_mutex_lock(&world->lock);
  reduction *r = find(world, ranks, n_ranks, endpoint->rank);
  if (r == NULL)
    r = make(world, ranks, n_ranks, n_bytes);
  if (r == NULL) {
    status = opipe_fail(err, OPIPE_E_NOMEM, "a group of %u members: the host has no memory left",
                        n_ranks);
  } else if (r->n_bytes != n_bytes) {
    status = opipe_fail(
        err, OPIPE_E_INVALID, "group_open: rank %u opens it with %llu bytes, its peers with %llu",
        endpoint->rank, (unsigned long long)n_bytes, (unsigned long long)r->n_bytes);
  } else {
    *group = (opipe_group){.reduction = r,
                           .endpoint = endpoint,
                           .n_opened = emutrans_opened(endpoint),
                           .index = free_place(r, endpoint->rank)};
    r->members[group->index].joined = true;
    ++r->n_open;
  }
  pthread_mutex_unlock(&world->lock);
  if (status < 0) {
    emutrans_free(world->host, group, sizeof *group);
    return status;
  }
  *out_group = group;
  return OPIPE_OK;
}

void emutrans_group_close(opipe_group *group) {
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
  emutrans_free(world->host, group, sizeof *group);
}

/* ---- rounds; lock held ---- */

/* Element after element over all members in order, written to all of them. */
static void add_up(const reduction *r, uint64_t n_elems, uint32_t dtype) {
  for (uint64_t i = 0; i < n_elems; ++i) {
    double wide = 0;
    float narrow = 0;
    for (uint32_t m = 0; m < r->n; ++m) {
      if (dtype == OPIPE_DOUBLE) {
        const double value = ((const double *)r->members[m].data)[i];
        wide = m == 0 ? value : wide + value;
      } else {
        const float value = ((const float *)r->members[m].data)[i];
        narrow = m == 0 ? value : narrow + value;
      }
    }
    for (uint32_t m = 0; m < r->n; ++m) {
      if (dtype == OPIPE_DOUBLE) {
        ((double *)r->members[m].data)[i] = wide;
      } else {
        ((float *)r->members[m].data)[i] = narrow;
      }
    }
  }
}

static opipe_status check_round(const opipe_group *group, uint64_t sequence,
                                const opipe_region *region, uint64_t n_elems, uint32_t dtype,
                                opipe_error *err) {
  const reduction *r = group->reduction;
  const member *me = &r->members[group->index];
  const opipe_status status = opipe_reduce_check(r->n_bytes, region, n_elems, dtype, err);
  if (status == OPIPE_OK && me->given != sequence) {
    return opipe_fail(err, OPIPE_E_STATE, "all_reduce: round %llu where rank %u is at round %llu",
                      (unsigned long long)sequence, group->endpoint->rank,
                      (unsigned long long)me->given);
  }
  return status;
}

/* The ranks of a group add up the bytes of one reduction after the other: when they have these. */
static uint64_t book_links(const opipe_group *group, uint64_t n_bytes) {
  const reduction *r = group->reduction;
  const opipe_world *world = group->endpoint->world;
  const double bytes_per_ns = world->options.bytes_per_ns;
  uint64_t at = emutrans_now();
  for (uint32_t i = 0; i < r->n; ++i) {
    const opipe_endpoint *e = world->endpoints[r->ranks[i]];
    at = e != NULL && e->sums_free_ns > at ? e->sums_free_ns : at;
  }
  at += bytes_per_ns > 0 ? (uint64_t)((double)n_bytes / bytes_per_ns) : 0;
  for (uint32_t i = 0; i < r->n; ++i) {
    if (world->endpoints[r->ranks[i]] != NULL)
      world->endpoints[r->ranks[i]]->sums_free_ns = at;
  }
  return at;
}

static void give(const opipe_group *group, const member *what) {
  reduction *r = group->reduction;
  member *me = &r->members[group->index];
  const uint64_t round = me->given;
  me->data = what->data;
  me->n_elems = what->n_elems;
  me->dtype = what->dtype;
  me->done = what->done;
  me->given = round + 1;
  if (++r->n_given != (round + 1) * r->n)
    return;
  r->at_ns = book_links(group, what->n_elems * opipe_reduce_size(what->dtype)) +
             group->endpoint->world->options.latency_ns;
  for (uint32_t i = 0; i < r->n; ++i) {
    opipe_endpoint *e = group->endpoint->world->endpoints[r->ranks[i]];
    if (e != NULL && r->at_ns < e->next_ns)
      e->next_ns = r->at_ns; /* a waiter wakes for it */
    emutrans_ring_locked(group->endpoint->world, r->ranks[i]);
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
  const member *me = &r->members[group->index];
  opipe_endpoint *e = group->endpoint;
  if (r->n_given < (sequence + 1) * r->n)
    return OPIPE_PENDING;
  if (emutrans_now() < r->at_ns) {
    e->next_ns = r->at_ns < e->next_ns ? r->at_ns : e->next_ns;
    return OPIPE_PENDING;
  }
  for (uint32_t i = 1; i < r->n; ++i) {
    if (r->members[i].n_elems != r->members[0].n_elems ||
        r->members[i].dtype != r->members[0].dtype) {
      return opipe_fail(err, OPIPE_E_INVALID,
                        "all_reduce round %llu: the members' counts or types differ; rank %u gave "
                        "%llu of %s",
                        (unsigned long long)sequence, e->rank, (unsigned long long)me->n_elems,
                        opipe_dtype_name(me->dtype));
    }
  }
  add_up(r, me->n_elems, me->dtype);
  r->n_summed = sequence + 1;
  for (uint32_t i = 0; i < r->n; ++i)
    emutrans_ring_locked(e->world, r->ranks[i]);
  return OPIPE_OK;
}

opipe_status emutrans_group_test(opipe_group *group, uint64_t sequence, opipe_error *err) {
  reduction *r = group->reduction;
  member *me = &r->members[group->index];
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
