/* SPDX-License-Identifier: Apache-2.0 */
/* Collects through host memory: the lists of `from` are read into their mirrors (IN), 'local'
 * collects the mirrors (AWAY), the lists of `to` are written out of theirs (OUT).
 */
#include "staged.h"

opipe_status staged_collective_open(opipe_endpoint *endpoint, const opipe_collective_params *params,
                                    opipe_collective **out_collective, opipe_error *err) {
  const opipe_instance *self = endpoint->self;
  opipe_collective *c = staged_zeroed(self, "a group", sizeof *c, err);
  if (c == NULL)
    return OPIPE_E_NOMEM;
  c->endpoint = endpoint;
  c->n_regions = params->n_regions;
  c->mirrors = staged_zeroed(self, "a group", 2 * (uint64_t)c->n_regions * sizeof *c->mirrors, err);
  opipe_status status = c->mirrors == NULL ? OPIPE_E_NOMEM : OPIPE_OK;
  if (status == OPIPE_OK)
    status = endpoint->backend->event_create(endpoint->device, &c->event, err);
  if (status == OPIPE_OK)
    status = self->inner->collective_open(endpoint->inner, params, &c->inner, err);
  if (status < 0) {
    staged_collective_close(c);
    return status;
  }
  *out_collective = c;
  return OPIPE_OK;
}

void staged_collective_close(opipe_collective *c) {
  if (c == NULL)
    return;
  const opipe_endpoint *e = c->endpoint;
  e->self->inner->collective_close(c->inner);
  if (c->state == IN || c->state == OUT)
    (void)e->backend->event_sync(c->event, UINT64_MAX, NULL);
  e->backend->event_destroy(c->event);
  staged_free(e->self, c->mirrors, 2 * (uint64_t)c->n_regions * sizeof *c->mirrors);
  staged_free(e->self, c, sizeof *c);
}

/* Queues the copies between a list and its mirrors, records `done`, then the group's own event. */
static opipe_status copy(opipe_collective *c, uint32_t state, opipe_event *done, opipe_error *err) {
  const bool in = state == IN;
  opipe_endpoint *e = c->endpoint;
  const opipe_region *list = in ? c->what.from : c->what.to;
  const opipe_region *mirrors = in ? c->mirrors : c->mirrors + c->n_regions;
  const uint32_t n = in ? c->what.n_from : c->what.n_to;
  opipe_status status = OPIPE_OK;
  for (uint32_t i = 0; i < n && status >= 0; ++i) {
    if (list[i].n_bytes == 0)
      continue;
    char *data = mirrors[i].buffer->data + mirrors[i].offset_bytes;
    status = in ? e->backend->read(e->queue, data, &list[i], err)
                : e->backend->write(e->queue, &list[i], data, err);
  }
  if (status >= 0 && done != NULL)
    status = e->backend->event_record(e->queue, done, err);
  if (status >= 0)
    status = e->backend->event_record(e->queue, c->event, err);
  if (status < 0)
    return status;
  c->state = state;
  ++e->n_copying;
  return OPIPE_OK;
}

static opipe_status look(opipe_collective *c, uint32_t next, opipe_error *err) {
  const opipe_status status = c->endpoint->backend->event_poll(c->event, err);
  if (status == OPIPE_PENDING)
    return status;
  --c->endpoint->n_copying;
  c->state = next;
  return status;
}

static opipe_status find_list(opipe_collective *c, const opipe_region *list, uint32_t n,
                              uint32_t first, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  if (n > c->n_regions) {
    return opipe_fail(err, OPIPE_E_INVALID, "collect: a list of %u regions, the group has %u", n,
                      c->n_regions);
  }
  for (uint32_t i = 0; i < n && status == OPIPE_OK; ++i)
    status = staged_mirror(c->endpoint, &list[i], &c->mirrors[first + i], err);
  return status;
}

opipe_status staged_collect(opipe_collective *c, uint64_t sequence, const opipe_collect *collect,
                            opipe_error *err) {
  opipe_endpoint *e = c->endpoint;
  if (c->state != IDLE || sequence != c->round) {
    return opipe_fail(err, OPIPE_E_STATE, "collect: round %llu where rank %u is at round %llu",
                      (unsigned long long)sequence, e->rank, (unsigned long long)c->round);
  }
  opipe_status status = find_list(c, collect->from, collect->n_from, 0, err);
  if (status == OPIPE_OK)
    status = find_list(c, collect->to, collect->n_to, c->n_regions, err);
  if (status == OPIPE_OK && collect->ready != NULL)
    status = e->backend->event_wait(e->queue, collect->ready, err);
  if (status < 0)
    return status;
  c->what = *collect;
  c->given = false;
  status = copy(c, IN, NULL, err);
  if (status == OPIPE_OK)
    c->round = sequence + 1;
  return status;
}

/* With 'local'; what it refuses was asked for by the caller. */
static opipe_status collect_mirrors(opipe_collective *c, uint64_t sequence, opipe_error *err) {
  const opipe_transport *inner = c->endpoint->self->inner;
  opipe_status status = OPIPE_OK;
  if (!c->given) {
    opipe_collect what = c->what;
    what.from = c->mirrors;
    what.to = c->mirrors + c->n_regions;
    what.ready = what.done = NULL;
    status = inner->collect(c->inner, sequence, &what, err);
    c->given = status == OPIPE_OK;
  }
  return status == OPIPE_OK ? inner->collect_test(c->inner, sequence, err) : status;
}

opipe_status staged_collect_test(opipe_collective *c, uint64_t sequence, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  if (c->round != sequence + 1 || c->state == IDLE)
    return c->round > sequence ? OPIPE_OK : OPIPE_PENDING;
  if (c->state == IN)
    status = look(c, AWAY, err);
  if (status == OPIPE_OK && c->state == AWAY) {
    status = collect_mirrors(c, sequence, err);
    if (status == OPIPE_OK)
      status = copy(c, OUT, c->what.done, err);
  }
  return status == OPIPE_OK && c->state == OUT ? look(c, IDLE, err) : status;
}
