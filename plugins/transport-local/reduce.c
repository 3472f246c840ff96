/* SPDX-License-Identifier: Apache-2.0 */
/* All-reduce: every member gives the address of its values. Once all have, each adds up its share
 * of the elements, over all members in their order, so that the bits do not depend on who came
 * when, and writes the sums to all of them. No memory besides the members' own; values without a
 * host address are summed in a bounce (local.h), to which the member's queue reads them and from
 * which it writes them, or where all members are on one device by member 0's queue (near.c). One
 * round at a time.
 */
#include "local.h"

enum { BLOCK = 512 /* elements that are summed at once, on the stack */ };

static member *members_of(const reduction *r) {
  return r->base.members;
}

static void add_floats(const reduction *r, uint64_t first, uint64_t n) {
  float sum[BLOCK];
  memcpy(sum, (const float *)members_of(r)[0].data + first, n * sizeof *sum);
  for (uint32_t m = 1; m < r->base.n; ++m) {
    const float *more = (const float *)members_of(r)[m].data + first;
    for (uint64_t i = 0; i < n; ++i)
      sum[i] += more[i];
  }
  for (uint32_t m = 0; m < r->base.n; ++m)
    memcpy((float *)members_of(r)[m].data + first, sum, n * sizeof *sum);
}

static void add_doubles(const reduction *r, uint64_t first, uint64_t n) {
  double sum[BLOCK];
  memcpy(sum, (const double *)members_of(r)[0].data + first, n * sizeof *sum);
  for (uint32_t m = 1; m < r->base.n; ++m) {
    const double *more = (const double *)members_of(r)[m].data + first;
    for (uint64_t i = 0; i < n; ++i)
      sum[i] += more[i];
  }
  for (uint32_t m = 0; m < r->base.n; ++m)
    memcpy((double *)members_of(r)[m].data + first, sum, n * sizeof *sum);
}

/* The share of member `index`: whole blocks, as equal as they come. */
static void add_share(const reduction *r, uint32_t index, uint64_t n_elems, uint32_t dtype) {
  const uint64_t n_blocks = (n_elems + BLOCK - 1) / BLOCK;
  const uint64_t end =
      n_blocks / r->base.n * (index + 1) + (index + 1) * (n_blocks % r->base.n) / r->base.n;
  for (uint64_t b = n_blocks / r->base.n * index + index * (n_blocks % r->base.n) / r->base.n;
       b < end; ++b) {
    const uint64_t first = b * BLOCK;
    const uint64_t n = n_elems - first < BLOCK ? n_elems - first : BLOCK;
    if (dtype == OPIPE_DOUBLE)
      add_doubles(r, first, n);
    else
      add_floats(r, first, n);
  }
}

static void ring_all(const opipe_group *group) {
  for (uint32_t i = 0; i < group->reduction->base.n; ++i)
    local_ring_rank(group->endpoint->world, group->reduction->base.ranks[i]);
}

/* True when all members said the same of this round. */
static bool agree(const reduction *r) {
  for (uint32_t i = 1; i < r->base.n; ++i) {
    if (members_of(r)[i].n_elems != members_of(r)[0].n_elems ||
        members_of(r)[i].dtype != members_of(r)[0].dtype)
      return false;
  }
  return true;
}

/* Have all members summed their shares of the first `n_rounds` rounds? */
static bool all_added(const reduction *r, uint64_t n_rounds) {
  return atomic_load_explicit(&r->n_added, memory_order_acquire) >= n_rounds * r->base.n;
}

static opipe_status not_ready(const opipe_group *group, opipe_event *ready, opipe_error *err) {
  if (ready == NULL)
    return OPIPE_OK;
  const opipe_status status = group->endpoint->backend->event_poll(ready, err);
  if (status == OPIPE_PENDING)
    group->endpoint->unready = true;
  return status;
}

/* The values' way to the bounce: queued once, then awaited. */
static opipe_status fetch(opipe_group *group, uint64_t sequence, const opipe_region *region,
                          uint64_t n_bytes, opipe_event *ready, opipe_error *err) {
  opipe_endpoint *e = group->endpoint;
  opipe_status status = OPIPE_OK;
  if (group->fetched != sequence + 1) {
    group->region = (opipe_region){region->buffer, region->offset_bytes, n_bytes};
    if (ready != NULL)
      status = e->backend->event_wait(e->queue, ready, err);
    if (status >= 0)
      status = e->backend->read(e->queue, group->bounce, &group->region, err);
    if (status >= 0)
      status = e->backend->event_record(e->queue, group->moved, err);
    if (status < 0)
      return status;
    group->fetched = sequence + 1;
  }
  status = e->backend->event_poll(group->moved, err);
  if (status == OPIPE_PENDING)
    e->unready = true;
  return status;
}

/* The sums' way from the bounce, in the queue's order. */
static opipe_status bring_home(opipe_group *group, opipe_error *err) {
  const opipe_endpoint *e = group->endpoint;
  if (!group->away)
    return OPIPE_OK;
  group->away = false;
  const opipe_status status = e->backend->write(e->queue, &group->region, group->bounce, err);
  return status < 0 ? status : e->backend->event_record(e->queue, group->moved, err);
}

/* The values are where they are summed, or will be without the host. */
static opipe_status give(opipe_group *group, uint64_t sequence, const opipe_region *region,
                         uint64_t n_bytes, uint32_t dtype, bool remote, opipe_event *ready,
                         opipe_error *err) {
  group->is_near = false;
  if (!remote)
    return not_ready(group, ready, err);
  if (dtype == OPIPE_FLOAT) { /* what devices add */
    const opipe_status status = local_group_nearness(group, &group->is_near);
    if (status != OPIPE_OK)
      return status;
  }
  if (group->is_near)
    return local_give_near(group, ready, err);
  const opipe_status status = local_group_bounce(group, err);
  return status < 0 ? status : fetch(group, sequence, region, n_bytes, ready, err);
}

opipe_status local_all_reduce(opipe_group *group, uint64_t sequence, const opipe_region *region,
                              uint64_t n_elems, uint32_t dtype, opipe_event *ready,
                              opipe_event *done, opipe_error *err) {
  reduction *r = group->reduction;
  member *me = &members_of(r)[group->index];
  void *data = NULL;
  bool remote = false;
  opipe_status status = local_check(group->endpoint->world, err);
  if (status == OPIPE_OK)
    status = opipe_reduce_check(r->base.n_bytes, region, n_elems, dtype, err);
  if (status == OPIPE_OK)
    status = local_address(group->endpoint, region, &data, &remote, err);
  if (status < 0)
    return status;
  if (atomic_load_explicit(&me->given, memory_order_relaxed) != sequence) {
    return opipe_fail(err, OPIPE_E_STATE, "all_reduce: round %llu where rank %u is at round %llu",
                      (unsigned long long)sequence, group->endpoint->rank,
                      (unsigned long long)atomic_load(&me->given));
  }
  if (!all_added(r, sequence)) /* a share of the round before is still being summed */
    return OPIPE_PENDING;
  const uint64_t n_bytes = n_elems * opipe_dtype_bits(dtype) / 8;
  remote = remote && n_bytes > 0;
  status = give(group, sequence, region, n_bytes, dtype, remote, ready, err);
  if (status != OPIPE_OK)
    return status;
  group->away = remote && !group->is_near;
  me->data = group->away ? group->bounce : data;
  me->region = (opipe_region){region->buffer, region->offset_bytes, n_bytes};
  me->n_elems = n_elems;
  me->dtype = dtype;
  me->done = done;
  atomic_store_explicit(&me->given, sequence + 1, memory_order_release);
  if (atomic_fetch_add(&r->n_given, 1) + 1 == (sequence + 1) * r->base.n)
    ring_all(group);
  return OPIPE_OK;
}

/* Sums the own share once everybody has given. OPIPE_PENDING: not yet. */
static opipe_status take_part(opipe_group *group, uint64_t sequence, opipe_error *err) {
  reduction *r = group->reduction;
  member *me = &members_of(r)[group->index];
  if (atomic_load_explicit(&r->n_given, memory_order_acquire) < (sequence + 1) * r->base.n)
    return OPIPE_PENDING;
  if (!agree(r)) {
    return opipe_fail(
        err, OPIPE_E_INVALID,
        "all_reduce round %llu: the members' counts or types differ; rank %u gave %llu of %s",
        (unsigned long long)sequence, group->endpoint->rank, (unsigned long long)me->n_elems,
        opipe_dtype_name(me->dtype));
  }
  if (group->is_near) {
    const opipe_status status = local_sum_near(group, sequence, err);
    if (status != OPIPE_OK)
      return status;
  } else {
    add_share(r, group->index, me->n_elems, me->dtype);
  }
  /* Counted in one place, so that exactly one of two that end at once sees that it was the last. */
  atomic_store_explicit(&me->added, sequence + 1, memory_order_release);
  const bool last = atomic_fetch_add(&r->n_added, 1) + 1 == (sequence + 1) * r->base.n;
  if (last || (group->is_near && group->index == 0))
    ring_all(group);
  return OPIPE_OK;
}

opipe_status local_group_test(opipe_group *group, uint64_t sequence, opipe_error *err) {
  reduction *r = group->reduction;
  member *me = &members_of(r)[group->index];
  opipe_status status = local_check(group->endpoint->world, err);
  if (status < 0)
    return status;
  if (me->taken > sequence)
    return OPIPE_OK;
  if (atomic_load_explicit(&me->given, memory_order_relaxed) <= sequence)
    return OPIPE_PENDING;
  if (atomic_load_explicit(&me->added, memory_order_relaxed) <= sequence) {
    status = take_part(group, sequence, err);
    if (status != OPIPE_OK)
      return status;
  }
  if (!all_added(r, sequence + 1))
    return OPIPE_PENDING;
  status = bring_home(group, err);
  if (status < 0)
    return status;
  me->taken = sequence + 1;
  return local_record(group->endpoint, me->done, err);
}
