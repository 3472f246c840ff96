/* SPDX-License-Identifier: Apache-2.0 */
/* All-reduce: every member gives the address of its values; the last to come adds them up, member
 * after member in rising order, so that the bits do not depend on who came when; then every member
 * copies the sum into its own region. One round at a time.
 */
#include "local.h"

static void add_floats(float *sum, const float *more, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i)
    sum[i] += more[i];
}

static void add_doubles(double *sum, const double *more, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i)
    sum[i] += more[i];
}

static void add_up(reduction *r, uint64_t n_elems, uint32_t dtype) {
  const size_t n_bytes = (size_t)n_elems * (dtype == OPIPE_DOUBLE ? sizeof(double) : sizeof(float));
  if (n_bytes != 0)
    memcpy(r->sum, r->members[0].data, n_bytes);
  for (uint32_t i = 1; i < r->n; ++i) {
    if (dtype == OPIPE_DOUBLE) {
      add_doubles(r->sum, r->members[i].data, n_elems);
    } else {
      add_floats(r->sum, r->members[i].data, n_elems);
    }
  }
}

static opipe_status check_call(const opipe_group *group, const opipe_region *region,
                               uint64_t n_elems, uint32_t dtype, opipe_error *err) {
  const uint64_t size = dtype == OPIPE_DOUBLE ? sizeof(double) : sizeof(float);
  if (dtype != OPIPE_DOUBLE && dtype != OPIPE_FLOAT) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "all_reduce of %s: float32 and float64 are added",
                      opipe_dtype_name(dtype));
  }
  if (n_elems > group->reduction->n_bytes / size || n_elems > region->n_bytes / size) {
    return opipe_fail(
        err, OPIPE_E_INVALID,
        "all_reduce: %llu values of %llu bytes, the region has %llu bytes, the group %llu",
        (unsigned long long)n_elems, (unsigned long long)size, (unsigned long long)region->n_bytes,
        (unsigned long long)group->reduction->n_bytes);
  }
  return OPIPE_OK;
}

static void ring_all(const opipe_group *group) {
  for (uint32_t i = 0; i < group->reduction->n; ++i) {
    local_ring_rank(group->endpoint->world, group->reduction->ranks[i]);
  }
}

/* True when all members said the same of this round. */
static bool agree(const reduction *r) {
  for (uint32_t i = 1; i < r->n; ++i) {
    if (r->members[i].n_elems != r->members[0].n_elems ||
        r->members[i].dtype != r->members[0].dtype)
      return false;
  }
  return true;
}

static opipe_status not_ready(const opipe_group *group, opipe_event *ready, opipe_error *err) {
  if (ready == NULL)
    return OPIPE_OK;
  const opipe_status status = group->endpoint->backend->event_poll(ready, err);
  if (status == OPIPE_PENDING)
    group->endpoint->unready = true;
  return status;
}

opipe_status local_all_reduce(opipe_group *group, uint64_t sequence, const opipe_region *region,
                              uint64_t n_elems, uint32_t dtype, opipe_event *ready,
                              opipe_event *done, opipe_error *err) {
  reduction *r = group->reduction;
  member *me = &r->members[group->index];
  void *data = NULL;
  opipe_status status = local_check(group->endpoint->world, err);
  if (status == OPIPE_OK)
    status = check_call(group, region, n_elems, dtype, err);
  if (status == OPIPE_OK)
    status = local_address(group->endpoint, region, &data, err);
  if (status < 0)
    return status;
  if (atomic_load_explicit(&me->given, memory_order_relaxed) != sequence) {
    return opipe_fail(err, OPIPE_E_STATE, "all_reduce: round %llu where rank %u is at round %llu",
                      (unsigned long long)sequence, group->endpoint->rank,
                      (unsigned long long)atomic_load(&me->given));
  }
  for (uint32_t i = 0; i < r->n; ++i) { /* the sum of the round before is still being read */
    if (atomic_load_explicit(&r->members[i].taken, memory_order_acquire) < sequence)
      return OPIPE_PENDING;
  }
  status = not_ready(group, ready, err);
  if (status != OPIPE_OK)
    return status;
  me->data = data;
  me->n_elems = n_elems;
  me->dtype = dtype;
  me->done = done;
  atomic_store_explicit(&me->given, sequence + 1, memory_order_release);
  if (atomic_fetch_add(&r->n_given, 1) + 1 == (sequence + 1) * r->n) {
    if (agree(r)) {
      add_up(r, n_elems, dtype);
    } else {
      atomic_store(&r->fault, OPIPE_E_INVALID);
    }
    atomic_store_explicit(&r->summed, sequence + 1, memory_order_release);
    ring_all(group);
  }
  return OPIPE_OK;
}

opipe_status local_group_test(opipe_group *group, uint64_t sequence, opipe_error *err) {
  reduction *r = group->reduction;
  member *me = &r->members[group->index];
  const opipe_status status = local_check(group->endpoint->world, err);
  if (status < 0)
    return status;
  if (atomic_load_explicit(&me->taken, memory_order_relaxed) > sequence)
    return OPIPE_OK;
  if (atomic_load_explicit(&r->summed, memory_order_acquire) <= sequence)
    return OPIPE_PENDING;
  if (atomic_load(&r->fault) != 0) {
    return opipe_fail(
        err, OPIPE_E_INVALID,
        "all_reduce round %llu: the members' counts or types differ; rank %u gave %llu of %s",
        (unsigned long long)sequence, group->endpoint->rank, (unsigned long long)me->n_elems,
        opipe_dtype_name(me->dtype));
  }
  const size_t size = me->dtype == OPIPE_DOUBLE ? sizeof(double) : sizeof(float);
  if (me->n_elems != 0)
    memcpy(me->data, r->sum, (size_t)me->n_elems * size);
  atomic_store_explicit(&me->taken, sequence + 1, memory_order_release);
  ring_all(group); /* the next round may begin */
  return local_record(group->endpoint, me->done, err);
}
