/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds of groups, of either kind: from the first call on a round is the endpoint's `busy` one,
 * until all its windows stand in the lane. It is over for the host then, if it has an event `done`.
 *
 *   check=1   CHECKS ── COMPARES ── MOVES      else   MOVES
 */
#include "world.h"

/* ---- comparing what members have come to ---- */

static uint64_t head_words(const opipe_group *g) {
  return g->n + 4;
}

static void write_head(opipe_group *g) {
  const opipe_collect *what = &g->round.what;
  uint64_t *head = g->heads;
  head[0] = g->endpoint->rank;
  head[1] = what->kind;
  head[2] = what->dtype;
  head[3] = g->round.n_values;
  for (uint32_t m = 0; m < g->n; ++m)
    head[4 + m] = what->parts == NULL ? 0 : what->parts[m];
}

/* The head goes to the device, and all members' to each. */
static opipe_status start_check(opipe_group *g, opipe_error *err) {
  opipe_endpoint *e = g->endpoint;
  const uint64_t n_bytes = head_words(g) * sizeof(uint64_t);
  const uint64_t own = e->own.small + NCCL_SMALL;
  const opipe_region place = {e->own.small_buffer, NCCL_SMALL, n_bytes};
  const uint64_t record =
      nccl_note(e, NCCL_DID_CHECK, g->n, g->round.params.id, g->round.begun - 1, n_bytes);
  write_head(g);
  opipe_status status = e->backend->write(e->lane, &place, g->heads, err);
  if (status >= 0)
    status = nccl_launch_begin(e, err);
  if (status < 0)
    return status;
  status = nccl_fine(e, g->comm, "ncclAllGather",
                     e->world->library->nccl.all_gather(
                         (const void *)(uintptr_t)own, (void *)(uintptr_t)(own + n_bytes),
                         (size_t)n_bytes, NCCL_BYTES, g->comm->comm, e->stream),
                     err);
  status = nccl_launch_end(e, g->comm, status, err);
  nccl_noted(e, record, e->n_launches);
  g->launch = g->last = e->n_launches;
  return status;
}

static opipe_status read_heads(opipe_group *g, opipe_error *err) {
  opipe_endpoint *e = g->endpoint;
  const uint64_t n_bytes = head_words(g) * sizeof(uint64_t);
  const opipe_region all = {e->own.small_buffer, NCCL_SMALL + n_bytes, n_bytes * g->n};
  const opipe_status status = e->backend->read(e->lane, g->heads + head_words(g), &all, err);
  return status < 0 ? status : nccl_mark(e, err);
}

static opipe_status compare(const opipe_group *g, opipe_error *err) {
  for (uint32_t i = 0; i < g->n; ++i) {
    const uint64_t *head = g->heads + head_words(g) * (i + 1);
    const opipe_collect_head other = {.rank = (uint32_t)head[0],
                                      .kind = (uint32_t)head[1],
                                      .dtype = (uint32_t)head[2],
                                      .n_values = head[3],
                                      .parts = head + 4};
    const opipe_status status = machine_round_agree(&g->round, &other, err);
    if (status < 0)
      return status;
  }
  return OPIPE_OK;
}

/* ---- moving on ---- */

/* Its last window stands in the lane. */
static opipe_status stand(opipe_group *g, opipe_error *err) {
  opipe_endpoint *e = g->endpoint;
  const opipe_status status = g->round.what.done == NULL
                                  ? OPIPE_OK
                                  : e->backend->event_record(e->lane, g->round.what.done, err);
  if (status < 0)
    return status;
  e->busy = NULL;
  g->phase = NCCL_ROUND_NONE;
  if (g->round.what.done != NULL || g->launch == 0)
    g->round.ended = g->round.begun;
  return OPIPE_OK;
}

/* The last launch stands in the lane: on to the next. */
static opipe_status advance(opipe_group *g, opipe_error *err) {
  opipe_endpoint *e = g->endpoint;
  opipe_status status = OPIPE_OK;
  switch (g->phase) {
    case NCCL_ROUND_CHECKS:
      g->phase = NCCL_ROUND_COMPARES;
      return read_heads(g, err);
    case NCCL_ROUND_COMPARES:
      status = nccl_done(e, g->launch, err);
      if (status == OPIPE_OK)
        status = compare(g, err);
      if (status != OPIPE_OK)
        return status;
      g->phase = NCCL_ROUND_MOVES;
      g->launch = 0;
      return OPIPE_OK;
    default:
      if (g->flying) {
        g->flying = false;
        status = nccl_window_unpack(g, err);
        return status < 0 ? status : nccl_mark(e, err);
      }
      return g->limit == g->round.n_values ? stand(g, err) : nccl_window_launch(g, err);
  }
}

/* A round that fails is given up. Where members differ all are told so; else others wait for this
 * one, and the world ends. */
static void give_up(opipe_group *g, const opipe_error *why) {
  opipe_endpoint *e = g->endpoint;
  e->busy = NULL;
  g->why = *why;
  if (why->status != OPIPE_E_PEER && why->status != OPIPE_E_INVALID)
    nccl_end(e->world, e->rank, why, true);
}

opipe_status nccl_round_go_on(opipe_group *g, opipe_error *err) {
  opipe_endpoint *e = g->endpoint;
  opipe_error why = OPIPE_ERROR_INIT;
  opipe_status status = OPIPE_OK;
  while (status == OPIPE_OK && e->busy == g) {
    status = nccl_launch_poll(e, &why);
    if (status == OPIPE_OK)
      status = advance(g, &why);
  }
  if (status < 0) {
    give_up(g, &why);
    (void)opipe_fail(err, status, "%s", why.message);
  }
  return status;
}

/* ---- beginning and testing ---- */

static opipe_status find_spans(const opipe_group *g, const opipe_region *list, uint32_t n,
                               opipe_span *out, opipe_error *err) {
  for (uint32_t i = 0; i < n; ++i) {
    uint64_t address = 0;
    const opipe_status status = nccl_address(g->endpoint, &list[i], &address, err);
    if (status < 0)
      return status;
    out[i] = (opipe_span){(char *)(uintptr_t)address, list[i].n_bytes};
  }
  return OPIPE_OK;
}

static opipe_status begin(opipe_group *g, opipe_error *err) {
  static const uint32_t kinds[] = {NCCL_DID_ALL_REDUCE, NCCL_DID_REDUCE_SCATTER,
                                   NCCL_DID_ALL_GATHER};
  opipe_endpoint *e = g->endpoint;
  const opipe_collect *what = &g->round.what;
  opipe_status status = find_spans(g, what->from, what->n_from, g->round.spans, err);
  if (status == OPIPE_OK)
    status = find_spans(g, what->to, what->n_to, g->round.spans + g->round.params.n_regions, err);
  if (status == OPIPE_OK && what->ready != NULL)
    status = e->backend->event_wait(e->lane, what->ready, err);
  if (status < 0)
    return status;
  g->record = nccl_note(e, kinds[what->kind], g->n, g->round.params.id, g->round.begun,
                        g->round.n_values * opipe_collect_size(what->kind, what->dtype));
  ++g->round.begun;
  g->first = g->limit = g->launch = 0;
  g->flying = false;
  e->busy = g;
  g->phase = NCCL_ROUND_MOVES;
  if (g->heads == NULL)
    return OPIPE_OK;
  g->phase = NCCL_ROUND_CHECKS;
  status = start_check(g, err);
  if (status < 0)
    e->busy = NULL;
  return status;
}

/* Has the world ended, or has the group been given up? */
static opipe_status check(const opipe_group *g, opipe_error *err) {
  const opipe_status status = nccl_check(g->endpoint->world, err);
  return status < 0 || g->why.status >= 0 ? status
                                          : opipe_fail(err, g->why.status, "%s", g->why.message);
}

static opipe_status check_setup(const opipe_group *g, const char *call, opipe_error *err) {
  const opipe_endpoint *e = g->endpoint;
  return e->setup.state == NCCL_SETUP_DONE
             ? OPIPE_OK
             : opipe_fail(err, OPIPE_E_STATE, "%s: endpoint_ready of rank %u has not answered OK",
                          call, e->rank);
}

/* OK: the round has ended for this member. */
static opipe_status finish(opipe_group *g, opipe_error *err) {
  opipe_endpoint *e = g->endpoint;
  opipe_status status = nccl_go_on(e, err);
  if (status != OPIPE_OK || g->round.begun == g->round.ended)
    return status;
  if (e->busy == g)
    return OPIPE_PENDING;
  status = nccl_done(e, g->launch, err);
  if (status == OPIPE_OK)
    g->round.ended = g->round.begun;
  return status;
}

/* A round that was begun by an earlier call, and none has answered OK since? It may have been moved
 * on by others, also to its end. */
static bool is_begun(const opipe_group *g, uint64_t sequence) {
  return g->round.begun == sequence + 1 && g->n_told != g->round.begun;
}

static opipe_status start_or_go_on(opipe_group *g, bool begins, opipe_error *err) {
  opipe_endpoint *e = g->endpoint;
  opipe_status status = begins ? begin(g, err) : OPIPE_OK;
  if (status >= 0)
    status = nccl_go_on_soon(e, err);
  if (status == OPIPE_OK)
    g->n_told = g->round.begun;
  return status == OPIPE_PENDING ? nccl_again(e) : status;
}

/* May a round begin? Whatever is on its way to the lane goes first. */
static opipe_status may_begin(const opipe_group *g, const char *call, opipe_error *err) {
  opipe_endpoint *e = g->endpoint;
  if (e->batch.state == NCCL_BATCH_NOTES) {
    return opipe_fail(err, OPIPE_E_STATE, "%s: rank %u has a batch of %u operations open", call,
                      e->rank, e->batch.n);
  }
  const opipe_status status = check_setup(g, call, err);
  return status < 0 ? status : nccl_go_on(e, err);
}

static opipe_status reduce_locked(opipe_group *g, uint64_t sequence, const opipe_region *region,
                                  uint64_t n_elems, uint32_t dtype, opipe_event *ready,
                                  opipe_event *done, opipe_error *err) {
  opipe_status status = check(g, err);
  if (status < 0)
    return status;
  if (is_begun(g, sequence))
    return start_or_go_on(g, false, err);
  status = may_begin(g, "all_reduce", err);
  if (status == OPIPE_OK && g->round.begun != g->round.ended)
    status = finish(g, err);
  if (status == OPIPE_OK)
    status = machine_round_reduce(&g->round, sequence, region, n_elems, dtype, ready, done, err);
  if (status != OPIPE_OK)
    return status == OPIPE_PENDING ? nccl_again(g->endpoint) : status;
  return start_or_go_on(g, true, err);
}

opipe_status nccl_all_reduce(opipe_group *group, uint64_t sequence, const opipe_region *region,
                             uint64_t n_elems, uint32_t dtype, opipe_event *ready,
                             opipe_event *done, opipe_error *err) {
  (void)pthread_mutex_lock(&group->endpoint->lock);
  const opipe_status status =
      reduce_locked(group, sequence, region, n_elems, dtype, ready, done, err);
  (void)pthread_mutex_unlock(&group->endpoint->lock);
  return status;
}

static opipe_status collect_locked(opipe_group *g, uint64_t sequence, const opipe_collect *what,
                                   opipe_error *err) {
  opipe_status status = check(g, err);
  if (status < 0)
    return status;
  if (is_begun(g, sequence))
    return start_or_go_on(g, false, err);
  status = may_begin(g, "collect", err);
  if (status == OPIPE_OK && g->round.begun != g->round.ended) {
    status = finish(g, err);
    status = status == OPIPE_PENDING ? OPIPE_OK : status; /* its number says what is wrong */
  }
  if (status == OPIPE_OK)
    status = machine_round_collect(&g->round, sequence, what, err);
  if (status != OPIPE_OK)
    return status == OPIPE_PENDING ? nccl_again(g->endpoint) : status;
  return start_or_go_on(g, true, err);
}

opipe_status nccl_collect(opipe_collective *collective, uint64_t sequence,
                          const opipe_collect *collect, opipe_error *err) {
  opipe_group *g = &collective->group;
  (void)pthread_mutex_lock(&g->endpoint->lock);
  const opipe_status status = collect_locked(g, sequence, collect, err);
  (void)pthread_mutex_unlock(&g->endpoint->lock);
  return status;
}

static opipe_status test(opipe_group *g, uint64_t sequence, opipe_error *err) {
  opipe_endpoint *e = g->endpoint;
  (void)pthread_mutex_lock(&e->lock);
  opipe_status status = check(g, err);
  if (status == OPIPE_OK && g->round.ended <= sequence)
    status = g->round.begun == sequence + 1 ? finish(g, err) : OPIPE_PENDING;
  if (status == OPIPE_PENDING)
    status = nccl_again(e);
  (void)pthread_mutex_unlock(&e->lock);
  return status;
}

opipe_status nccl_group_test(opipe_group *group, uint64_t sequence, opipe_error *err) {
  return test(group, sequence, err);
}

opipe_status nccl_collect_test(opipe_collective *collective, uint64_t sequence, opipe_error *err) {
  return test(&collective->group, sequence, err);
}
