/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds of a group: what a member brings to one. */
#include "round.h"

enum { ALIGN = 128 };

opipe_status machine_address(uint32_t rank, const opipe_backend *backend, const opipe_queue *queue,
                             const opipe_region *region, void **out_data, bool *out_remote,
                             opipe_error *err) {
  const opipe_status status = opipe_endpoint_address(rank, backend, region, out_data, NULL);
  *out_remote = status == OPIPE_E_UNSUPPORTED && queue != NULL;
  if (status == OPIPE_OK || *out_remote)
    return OPIPE_OK;
  return opipe_endpoint_address(rank, backend, region, out_data, err);
}

static uint64_t bytes_of_spans(const machine_round *r) {
  return 2 * (uint64_t)r->params.n_regions * sizeof *r->spans;
}

opipe_status machine_round_open(machine_round *r, const opipe_host *host, uint32_t rank,
                                const opipe_backend *backend, opipe_device *device,
                                opipe_queue *queue, opipe_error *err) {
  r->host = host;
  r->rank = rank;
  r->backend = backend;
  r->device = device;
  r->queue = queue;
  r->spans = opipe_zeroed(host, "a group", bytes_of_spans(r), ALIGN, err);
  return r->spans == NULL ? OPIPE_E_NOMEM : OPIPE_OK;
}

void machine_round_close(machine_round *r) {
  if (r->moved != NULL) { /* copies that are on their way end first */
    (void)r->backend->event_sync(r->moved, UINT64_MAX, NULL);
    r->backend->event_destroy(r->moved);
    r->moved = NULL;
  }
  if (r->bounce.data != NULL)
    opipe_ring_drop(r->host, r->backend, r->device, &r->bounce);
  opipe_free(r->host, r->spans, bytes_of_spans(r), ALIGN);
  r->spans = NULL;
}

opipe_status machine_round_alike(const machine_round *r, const uint32_t *ranks,
                                 const uint64_t members[2], const machine_member *other,
                                 opipe_error *err) {
  const uint32_t n = r->params.n_ranks;
  const bool in_place = other->index < n && ranks[other->index] == other->rank;
  if (!r->collects) {
    if (in_place && other->n_bytes == r->params.n_bytes)
      return OPIPE_OK;
    return opipe_fail(err, OPIPE_E_INVALID,
                      "group_open: rank %u opens it with %llu bytes, rank %u, place %u, with %llu",
                      r->rank, (unsigned long long)r->params.n_bytes, other->rank, other->index,
                      (unsigned long long)other->n_bytes);
  }
  if (other->n != n || other->n_bytes != r->params.n_bytes) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "collective_open: rank %u opens group %llu with %u members and %llu bytes, "
                      "rank %u with %u members and %llu bytes",
                      r->rank, (unsigned long long)r->params.id, n,
                      (unsigned long long)r->params.n_bytes, other->rank, other->n,
                      (unsigned long long)other->n_bytes);
  }
  if (in_place && memcmp(other->members, members, sizeof other->members) == 0)
    return OPIPE_OK;
  return opipe_fail(err, OPIPE_E_INVALID,
                    "collective_open: ranks %u and %u, members %u and %u of group %llu, give other "
                    "members or another order of them",
                    r->rank, other->rank, r->index, other->index, (unsigned long long)r->params.id);
}

/* ---- is it the next? ---- */

/* NULL: of group_open. */
static const opipe_collective_params *collects(const machine_round *r) {
  return r->collects ? &r->params : NULL;
}

static opipe_status check_number(const machine_round *r, const char *call, uint64_t sequence,
                                 opipe_error *err) {
  return opipe_round_check(call, collects(r), sequence, r->rank, r->begun, r->ended, err);
}

opipe_status machine_round_reduce(machine_round *r, uint64_t sequence, const opipe_region *region,
                                  uint64_t n_elems, uint32_t dtype, opipe_event *ready,
                                  opipe_event *done, opipe_error *err) {
  opipe_status status = opipe_reduce_check(r->params.n_bytes, region, n_elems, dtype, err);
  if (status == OPIPE_OK)
    status = check_number(r, "all_reduce", sequence, err);
  if (status < 0)
    return status;
  if (r->ended != sequence)
    return OPIPE_PENDING;
  r->region =
      (opipe_region){region->buffer, region->offset_bytes, n_elems * opipe_reduce_size(dtype)};
  r->n_values = n_elems;
  r->what = (opipe_collect){.kind = OPIPE_COLLECT_ALL_REDUCE,
                            .dtype = dtype,
                            .n_from = 1,
                            .n_to = 1,
                            .from = &r->region,
                            .to = &r->region,
                            .ready = ready,
                            .done = done};
  return OPIPE_OK;
}

opipe_status machine_round_collect(machine_round *r, uint64_t sequence,
                                   const opipe_collect *collect, opipe_error *err) {
  uint64_t n_values = 0;
  opipe_status status = check_number(r, "collect", sequence, err);
  if (status == OPIPE_OK)
    status = opipe_collect_check(&r->params, r->index, collect, &n_values, err);
  if (status < 0)
    return status;
  r->what = *collect;
  r->n_values = n_values;
  return OPIPE_OK;
}

/* ---- values ---- */

static opipe_status poll_event(const machine_round *r, opipe_event *event, bool *io_unready,
                               opipe_error *err) {
  if (event == NULL)
    return OPIPE_OK;
  const opipe_status status = r->backend->event_poll(event, err);
  *io_unready = *io_unready || status == OPIPE_PENDING;
  return status;
}

/* Values without a host address are read to a bounce: queued once, then awaited. */
static opipe_status fetch(machine_round *r, bool *io_unready, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  if (r->bounce.data == NULL) {
    status = opipe_ring_make(r->host, r->backend, r->device, 1, r->params.n_bytes, true, &r->bounce,
                             NULL);
  }
  if (status < 0) {
    return opipe_fail(err, status, "values to sum: %llu bytes",
                      (unsigned long long)r->params.n_bytes);
  }
  opipe_bounce_spans(&r->what, r->index, r->n_values, r->bounce.data, &r->spans[0],
                     &r->spans[r->params.n_regions]);
  if (r->fetched != r->begun + 1) {
    if (r->moved == NULL)
      status = r->backend->event_create(r->device, &r->moved, err);
    if (status >= 0)
      status = opipe_bounce_read(r->backend, r->queue, &r->what, &r->spans[0], r->moved, err);
    if (status < 0)
      return status;
    r->fetched = r->begun + 1;
  }
  return poll_event(r, r->moved, io_unready, err);
}

static opipe_status find_list(const machine_round *r, const opipe_region *list, uint32_t n,
                              opipe_span *out, bool *io_remote, opipe_error *err) {
  for (uint32_t i = 0; i < n; ++i) {
    void *data = NULL;
    bool remote = false;
    const opipe_status status =
        machine_address(r->rank, r->backend, r->queue, &list[i], &data, &remote, err);
    if (status < 0)
      return status;
    out[i] = (opipe_span){data, list[i].n_bytes};
    *io_remote = *io_remote || remote;
  }
  return OPIPE_OK;
}

opipe_status machine_round_values(machine_round *r, bool *io_unready, opipe_error *err) {
  opipe_span *from = r->spans, *to = r->spans + r->params.n_regions;
  bool remote = false;
  opipe_status status = find_list(r, r->what.from, r->what.n_from, from, &remote, err);
  if (status == OPIPE_OK)
    status = find_list(r, r->what.to, r->what.n_to, to, &remote, err);
  if (status < 0)
    return status;
  r->away = remote && r->n_values > 0;
  status = r->away ? fetch(r, io_unready, err) : poll_event(r, r->what.ready, io_unready, err);
  r->from = (opipe_cursor){.spans = from, .n = r->away ? 1 : r->what.n_from};
  r->to = (opipe_cursor){.spans = to, .n = r->away ? 1 : r->what.n_to};
  return status;
}

opipe_status machine_round_end(machine_round *r, opipe_error *err) {
  if (r->away) { /* in the queue's order */
    const opipe_status status =
        opipe_bounce_write(r->backend, r->queue, &r->what, r->to.spans, r->moved, err);
    if (status < 0)
      return status;
  }
  r->ended = r->begun;
  return opipe_endpoint_record(r->rank, r->backend, r->queue, r->what.done, err);
}

/* ---- the others ---- */

opipe_status machine_round_agree(const machine_round *r, const opipe_collect_head *other,
                                 opipe_error *err) {
  const opipe_collect_head own = {.rank = r->rank,
                                  .kind = r->what.kind,
                                  .dtype = r->what.dtype,
                                  .n_values = r->n_values,
                                  .parts = r->what.parts};
  return opipe_round_agree(collects(r), r->begun - 1, r->params.n_ranks, &own, other, err);
}
