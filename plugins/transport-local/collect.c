/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions and collects: every member gives the addresses of its values. Once all have, each does
 * its share: adds up elements over all members in their order, so that the bits do not depend on
 * who came when, and writes the sums to all who want them, or fetches the parts of others. No
 * memory besides the members' own; values without a host address are added in a bounce (local.h),
 * to which the member's queue reads them and from which it writes them, or where all members are on
 * one device by member 0's queue (near.c). One round at a time. An all-reduce is a collect of one
 * region.
 */
#include "local.h"

static member *members_of(const opipe_group *group) {
  return group->reduction->base.members;
}

static member *me_of(const opipe_group *group) {
  return members_of(group) + group->index;
}

static void ring_all(const opipe_group *group) {
  for (uint32_t i = 0; i < group->reduction->base.n; ++i)
    local_ring_rank(group->endpoint->world, group->reduction->base.ranks[i]);
}

static opipe_collect_head head_of(const opipe_group *group, uint32_t i) {
  const member *m = members_of(group) + i;
  return (opipe_collect_head){.rank = group->reduction->base.ranks[i],
                              .kind = m->what.kind,
                              .dtype = m->what.dtype,
                              .n_values = m->n_values,
                              .parts = m->what.parts};
}

/* Did all members come to the same? */
static opipe_status agree(const opipe_group *group, uint64_t sequence, opipe_error *err) {
  const opipe_collect_head own = head_of(group, group->index);
  const uint32_t n = group->reduction->base.n;
  opipe_status status = OPIPE_OK;
  for (uint32_t i = 0; i < n && status == OPIPE_OK; ++i) {
    const opipe_collect_head other = head_of(group, i);
    status =
        opipe_round_agree(group->collects ? &group->params : NULL, sequence, n, &own, &other, err);
  }
  return status;
}

/* Have all members done their shares of the first `n_rounds` rounds? */
static bool all_added(const opipe_group *group, uint64_t n_rounds) {
  return atomic_load_explicit(&group->reduction->n_added, memory_order_acquire) >=
         n_rounds * group->reduction->base.n;
}

static bool all_given(const opipe_group *group, uint64_t n_rounds) {
  return atomic_load_explicit(&group->reduction->n_given, memory_order_acquire) >=
         n_rounds * group->reduction->base.n;
}

/* ---- values ---- */

static opipe_status poll_event(const opipe_group *group, opipe_event *event, opipe_error *err) {
  if (event == NULL)
    return OPIPE_OK;
  const opipe_status status = group->endpoint->backend->event_poll(event, err);
  if (status == OPIPE_PENDING)
    group->endpoint->unready = true;
  return status;
}

/* Addresses of a list; *io_remote: some region has none. */
static opipe_status find_list(const opipe_group *group, const opipe_region *list, uint32_t n,
                              opipe_span *out, bool *io_remote, opipe_error *err) {
  for (uint32_t i = 0; i < n; ++i) {
    void *data = NULL;
    bool remote = false;
    const opipe_status status = local_address(group->endpoint, &list[i], &data, &remote, err);
    if (status < 0)
      return status;
    out[i] = (opipe_span){data, list[i].n_bytes};
    *io_remote = *io_remote || remote;
  }
  return OPIPE_OK;
}

/* The values' way to the bounce: queued once, then awaited. */
static opipe_status fetch(opipe_group *group, uint64_t sequence, member *m, opipe_error *err) {
  opipe_endpoint *e = group->endpoint;
  opipe_bounce_spans(&m->what, group->index, m->n_values, group->bounce.data, m->from, m->to);
  m->n_from = m->n_to = 1;
  if (group->fetched != sequence + 1) {
    const opipe_status status =
        opipe_bounce_read(e->backend, e->queue, &m->what, m->from, group->moved, err);
    if (status < 0)
      return status;
    group->fetched = sequence + 1;
  }
  return poll_event(group, group->moved, err);
}

/* The values' way from the bounce, in the queue's order. */
static opipe_status bring_home(opipe_group *group, opipe_error *err) {
  const opipe_endpoint *e = group->endpoint;
  const member *me = me_of(group);
  if (!group->away)
    return OPIPE_OK;
  group->away = false;
  return opipe_bounce_write(e->backend, e->queue, &me->what, me->to, group->moved, err);
}

/* The values are where they are added, or will be without the host. */
static opipe_status place_values(opipe_group *group, uint64_t sequence, member *m,
                                 opipe_error *err) {
  bool remote = false;
  opipe_status status = find_list(group, m->what.from, m->what.n_from, m->from, &remote, err);
  if (status == OPIPE_OK)
    status = find_list(group, m->what.to, m->what.n_to, m->to, &remote, err);
  if (status < 0)
    return status;
  m->n_from = m->what.n_from;
  m->n_to = m->what.n_to;
  group->is_near = group->away = false;
  if (!remote || m->n_values == 0)
    return poll_event(group, m->what.ready, err);
  if (m->what.kind == OPIPE_COLLECT_ALL_GATHER || local_adds_near(group, m->what.dtype)) {
    status = local_group_nearness(group, &group->is_near);
    if (status != OPIPE_OK)
      return status;
  }
  if (group->is_near)
    return local_give_near(group, m->what.ready, err);
  group->away = true;
  status = local_group_bounce(group, err);
  return status < 0 ? status : fetch(group, sequence, m, err);
}

/* ---- a round ---- */

/* Gives the values. The member has checked what it asks for. */
static opipe_status give(opipe_group *group, uint64_t sequence, opipe_error *err) {
  reduction *r = group->reduction;
  member *me = me_of(group);
  if (!all_added(group, sequence)) /* a share of the round before is still being added */
    return OPIPE_PENDING;
  const opipe_status status = place_values(group, sequence, me, err);
  if (status != OPIPE_OK)
    return status;
  atomic_store_explicit(&me->given, sequence + 1, memory_order_release);
  if (atomic_fetch_add(&r->n_given, 1) + 1 == (sequence + 1) * r->base.n)
    ring_all(group);
  return OPIPE_OK;
}

/* The calling member does its share; all have given, and agree. */
static void do_share(const opipe_group *group) {
  const uint32_t n = group->reduction->base.n;
  const member *me = me_of(group);
  for (uint32_t i = 0; i < n; ++i) {
    const member *m = members_of(group) + i;
    group->walks[i] = (opipe_cursor){.spans = m->from, .n = m->n_from};
    group->walks[n + i] = (opipe_cursor){.spans = m->to, .n = m->n_to};
  }
  opipe_collect_share(&me->what, n, group->index, me->n_values, group->walks, group->walks + n);
}

/* Does what is to be done once everybody has given. OPIPE_PENDING: not yet. */
static opipe_status take_part(opipe_group *group, uint64_t sequence, opipe_error *err) {
  reduction *r = group->reduction;
  member *me = me_of(group);
  opipe_status status = OPIPE_OK;
  if (!all_given(group, sequence + 1))
    return OPIPE_PENDING;
  status = agree(group, sequence, err);
  if (status == OPIPE_OK && group->is_near)
    status = local_queue_near(group, sequence, err);
  if (status != OPIPE_OK)
    return status;
  if (!group->is_near)
    do_share(group);
  /* Counted in one place, so that exactly one of two that end at once sees that it was the last. */
  atomic_store_explicit(&me->added, sequence + 1, memory_order_release);
  const bool last = atomic_fetch_add(&r->n_added, 1) + 1 == (sequence + 1) * r->base.n;
  if (last || (group->is_near && group->index == 0))
    ring_all(group);
  return OPIPE_OK;
}

/* OPIPE_OK once the round has ended for this member, which has given. */
static opipe_status finish(opipe_group *group, uint64_t sequence, opipe_error *err) {
  member *me = me_of(group);
  opipe_status status = OPIPE_OK;
  if (atomic_load_explicit(&me->added, memory_order_relaxed) <= sequence)
    status = take_part(group, sequence, err);
  if (status == OPIPE_OK && group->is_near && (!group->collects || me->what.done == NULL))
    status = poll_event(group, group->moved, err); /* nothing else says that it is done */
  if (status == OPIPE_OK && !group->is_near && !all_added(group, sequence + 1))
    status = OPIPE_PENDING;
  if (status == OPIPE_OK)
    status = bring_home(group, err);
  if (status != OPIPE_OK)
    return status;
  me->taken = sequence + 1;
  return local_record(group->endpoint, me->what.done, err);
}

static opipe_status finish_given(opipe_group *group, uint64_t sequence, opipe_error *err) {
  const member *me = me_of(group);
  const opipe_status status = local_check(group->endpoint->world, err);
  if (status < 0 || me->taken > sequence)
    return status;
  if (atomic_load_explicit(&me->given, memory_order_relaxed) <= sequence)
    return OPIPE_PENDING;
  return finish(group, sequence, err);
}

static opipe_status check_number(const opipe_group *group, const char *call, uint64_t sequence,
                                 opipe_error *err) {
  const member *me = me_of(group);
  return opipe_round_check(call, group->collects ? &group->params : NULL, sequence,
                           group->endpoint->rank,
                           atomic_load_explicit(&me->given, memory_order_relaxed), me->taken, err);
}

/* ---- the slots ---- */

opipe_status local_all_reduce(opipe_group *group, uint64_t sequence, const opipe_region *region,
                              uint64_t n_elems, uint32_t dtype, opipe_event *ready,
                              opipe_event *done, opipe_error *err) {
  member *me = me_of(group);
  opipe_status status = local_check(group->endpoint->world, err);
  if (status == OPIPE_OK)
    status = opipe_reduce_check(group->params.n_bytes, region, n_elems, dtype, err);
  if (status == OPIPE_OK)
    status = check_number(group, "all_reduce", sequence, err);
  if (status == OPIPE_OK && me->taken < sequence)
    status = finish_given(group, sequence - 1, err);
  if (status != OPIPE_OK)
    return status;
  if (!all_added(group, sequence)) /* others may read what they gave */
    return OPIPE_PENDING;
  group->region =
      (opipe_region){region->buffer, region->offset_bytes, n_elems * opipe_reduce_size(dtype)};
  me->n_values = n_elems;
  me->what = (opipe_collect){.kind = OPIPE_COLLECT_ALL_REDUCE,
                             .dtype = dtype,
                             .n_from = 1,
                             .n_to = 1,
                             .from = &group->region,
                             .to = &group->region,
                             .ready = ready,
                             .done = done};
  return give(group, sequence, err);
}

opipe_status local_group_test(opipe_group *group, uint64_t sequence, opipe_error *err) {
  return finish_given(group, sequence, err);
}

opipe_status local_collect(opipe_collective *collective, uint64_t sequence,
                           const opipe_collect *collect, opipe_error *err) {
  opipe_group *group = &collective->group;
  member *me = me_of(group);
  uint64_t n_values = 0;
  opipe_status status = local_check(group->endpoint->world, err);
  if (status < 0)
    return status;
  if (me->given == sequence + 1 && me->taken == sequence && group->is_near)
    return finish(group, sequence, err);
  status = check_number(group, "collect", sequence, err);
  if (status == OPIPE_OK)
    status = opipe_collect_check(&group->params, group->index, collect, &n_values, err);
  if (status < 0)
    return status;
  if (!all_added(group, sequence)) /* others may read what they gave */
    return OPIPE_PENDING;
  me->what = *collect;
  me->n_values = n_values;
  status = give(group, sequence, err);
  return status == OPIPE_OK && group->is_near ? finish(group, sequence, err) : status;
}

opipe_status local_collect_test(opipe_collective *collective, uint64_t sequence, opipe_error *err) {
  return finish_given(&collective->group, sequence, err);
}
