/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: members whose sums go by the communicator of their ranks, which all groups of these ranks
 * share: their rounds are matched by the order in which all start them.
 */
#include "world.h"

static uint64_t bytes_of_heads(const opipe_group *g) {
  return (uint64_t)(g->n + 1) * (g->n + 4) * sizeof(uint64_t);
}

static opipe_status find_roots(opipe_group *g, const uint32_t *ranks, opipe_error *err) {
  g->roots = nccl_new(g->endpoint->world->host, "a group", g->n * sizeof *g->roots, err);
  if (g->roots == NULL)
    return OPIPE_E_NOMEM;
  g->sorted = true;
  for (uint32_t m = 0; m < g->n; ++m) {
    while (g->comm->ranks[g->roots[m]] != ranks[m])
      ++g->roots[m];
    g->sorted = g->sorted && g->roots[m] == m;
  }
  return OPIPE_OK;
}

/* round.params and round.collects are set. */
static opipe_status build(opipe_group *g, const opipe_collective_params *p, opipe_error *err) {
  opipe_endpoint *e = g->endpoint;
  const opipe_host *host = e->world->host;
  opipe_status status = nccl_count_group(e, p, g->round.collects, &g->comm, err);
  if (status < 0)
    return status;
  status = find_roots(g, p->ranks, err);
  if (status == OPIPE_OK)
    status = machine_round_open(&g->round, host, e->rank, e->backend, e->device, e->lane, err);
  if (status == OPIPE_OK && nccl_window_bytes(g) != 0)
    status = nccl_memory_make(e, NCCL_SCRATCH, &e->own.scratch, &e->own.scratch_buffer, err);
  if (status == OPIPE_OK && e->world->options.check) { /* pinned: reading waits for nothing */
    void *heads = NULL;
    status = e->backend->host_alloc(e->device, bytes_of_heads(g), &heads, err);
    g->heads = heads;
  }
  return status;
}

static opipe_status open_group(opipe_group *g, const opipe_collective_params *p, opipe_error *err) {
  opipe_endpoint *e = g->endpoint;
  g->n = p->n_ranks;
  g->round.params = (opipe_collective_params){
      .n_ranks = p->n_ranks, .id = p->id, .n_bytes = p->n_bytes, .n_regions = p->n_regions};
  (void)pthread_mutex_lock(&e->lock);
  opipe_status status = OPIPE_OK;
  for (const opipe_group *at = e->groups; at != NULL && g->round.collects; at = at->next) {
    if (at->round.collects && at->round.params.id == p->id) {
      status =
          opipe_fail(err, OPIPE_E_STATE, "collective_open: group %llu is open already on rank %u",
                     (unsigned long long)p->id, e->rank);
    }
  }
  if (status == OPIPE_OK)
    status = build(g, p, err);
  if (status == OPIPE_OK) {
    g->next = e->groups;
    e->groups = g;
  }
  (void)pthread_mutex_unlock(&e->lock);
  return status;
}

static void free_parts(opipe_group *g) {
  const opipe_host *host = g->endpoint->world->host;
  if (g->heads != NULL)
    g->endpoint->backend->host_free(g->endpoint->device, g->heads);
  if (g->round.spans != NULL)
    machine_round_close(&g->round);
  nccl_delete(host, g->roots, g->n * sizeof *g->roots);
}

static void leave(opipe_group *g) {
  opipe_endpoint *e = g->endpoint;
  (void)pthread_mutex_lock(&e->lock);
  if (e->busy == g)
    e->busy = NULL;
  (void)pthread_mutex_unlock(&e->lock);
  nccl_leave(e, g->last);
  (void)pthread_mutex_lock(&e->lock);
  opipe_group **at = &e->groups;
  while (*at != g)
    at = &(*at)->next;
  *at = g->next;
  (void)pthread_mutex_unlock(&e->lock);
  free_parts(g);
}

/* A rank that is listed several times would meet itself. */
static opipe_status check_once(const uint32_t *ranks, uint32_t n, opipe_error *err) {
  for (uint32_t i = 0; i < n; ++i) {
    for (uint32_t k = 0; k < i; ++k) {
      if (ranks[i] == ranks[k]) {
        return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                          "transport 'nccl': members %u and %u of a group are rank %u: NCCL takes "
                          "each rank once",
                          k, i, ranks[i]);
      }
    }
  }
  return OPIPE_OK;
}

opipe_status nccl_group_open(opipe_endpoint *e, const uint32_t *ranks, uint32_t n_ranks,
                             uint64_t n_bytes, opipe_group **out_group, opipe_error *err) {
  const opipe_host *host = e->world->host;
  uint32_t index = 0;
  opipe_status status = opipe_group_check(e->rank, e->world->n_ranks, ranks, n_ranks, n_bytes, err);
  if (status == OPIPE_OK)
    status = check_once(ranks, n_ranks, err);
  if (status < 0)
    return status;
  opipe_group *g = nccl_new(host, "a group", sizeof *g, err);
  if (g == NULL)
    return OPIPE_E_NOMEM;
  while (ranks[index] != e->rank)
    ++index;
  g->endpoint = e;
  g->round.index = index;
  const opipe_collective_params params = {
      .n_ranks = n_ranks, .ranks = ranks, .n_bytes = n_bytes, .n_regions = 1};
  status = open_group(g, &params, err);
  if (status < 0) {
    free_parts(g);
    nccl_delete(host, g, sizeof *g);
    return status;
  }
  *out_group = g;
  return OPIPE_OK;
}

void nccl_group_close(opipe_group *g) {
  if (g == NULL || nccl_is_child(g->endpoint->world))
    return;
  const opipe_host *host = g->endpoint->world->host;
  leave(g);
  nccl_delete(host, g, sizeof *g);
}

opipe_status nccl_collective_open(opipe_endpoint *e, const opipe_collective_params *params,
                                  opipe_collective **out_collective, opipe_error *err) {
  const opipe_host *host = e->world->host;
  uint32_t index = 0;
  opipe_status status = opipe_collective_check(e->rank, e->world->n_ranks, params, &index, err);
  if (status < 0)
    return status;
  opipe_collective *c = nccl_new(host, "a group", sizeof *c, err);
  if (c == NULL)
    return OPIPE_E_NOMEM;
  c->group.endpoint = e;
  c->group.round.collects = true;
  c->group.round.index = index;
  status = open_group(&c->group, params, err);
  if (status < 0) {
    free_parts(&c->group);
    nccl_delete(host, c, sizeof *c);
    return status;
  }
  *out_collective = c;
  return OPIPE_OK;
}

void nccl_collective_close(opipe_collective *c) {
  if (c == NULL || nccl_is_child(c->group.endpoint->world))
    return;
  const opipe_host *host = c->group.endpoint->world->host;
  leave(&c->group);
  nccl_delete(host, c, sizeof *c);
}
