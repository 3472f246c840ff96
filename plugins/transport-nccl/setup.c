/* SPDX-License-Identifier: Apache-2.0 */
/* The first endpoint_ready: ranks compare what they have opened, communicators are made
 * in one order, and every edge and set is used once, in one order, so that nothing is connected
 * later.
 *
 *   order of communicators   messages; then sets, those of more members first, by their ranks
 *   order of edges           by the lower, then the higher rank: for one rank, by the other one
 */
#include "world.h"

/* ---- opened so far ---- */

static uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
  return hash ^ (hash >> 29);
}

static uint64_t hash_stream(const opipe_stream_params *p) {
  const uint64_t words[] = {p->kind,        p->src_rank,    p->dst_rank, p->src_stage, p->dst_stage,
                            p->src_replica, p->dst_replica, p->index,    p->depth,     p->n_bytes};
  uint64_t hash = UINT64_C(0x510e527fade682d1);
  for (size_t i = 0; i < sizeof words / sizeof words[0]; ++i)
    hash = mix(hash, words[i]);
  return hash;
}

static uint64_t hash_group(const opipe_collective_params *p, bool collects) {
  uint64_t hash = mix(UINT64_C(0x9b05688c2b3e6c1f), collects ? p->id + 1 : 0);
  hash = mix(mix(hash, p->n_bytes), p->n_regions);
  for (uint32_t i = 0; i < p->n_ranks; ++i)
    hash = mix(hash, p->ranks[i]);
  return hash;
}

static opipe_status refuse_late(const opipe_endpoint *e, const char *what, opipe_error *err) {
  return opipe_fail(err, OPIPE_E_STATE,
                    "transport 'nccl': rank %u opens %s after its communicators were made: theirs "
                    "would be opened lazily, while ranks wait for each other",
                    e->rank, what);
}

opipe_status nccl_count_stream(opipe_endpoint *e, const opipe_stream_params *p, opipe_error *err) {
  const uint32_t peer = p->src_rank == e->rank ? p->dst_rank : p->src_rank;
  nccl_edge *edge = &e->setup.edges[peer];
  char what[96];
  if (e->setup.state == NCCL_SETUP_NEW) {
    ++edge->n_streams;
    edge->hash += hash_stream(p);
  }
  if (edge->n_streams != 0)
    return OPIPE_OK;
  (void)snprintf(what, sizeof what, "the first stream with rank %u", peer);
  return refuse_late(e, what, err);
}

/* Below 0: `a` is made first. */
static int compare(const nccl_comm *a, const nccl_comm *b) {
  if (a->sums != b->sums)
    return a->sums ? 1 : -1;
  if (a->n != b->n)
    return a->n > b->n ? -1 : 1;
  for (uint32_t i = 0; i < a->n; ++i) {
    if (a->ranks[i] != b->ranks[i])
      return a->ranks[i] < b->ranks[i] ? -1 : 1;
  }
  return 0;
}

static void free_comm(const opipe_host *host, nccl_comm *comm) {
  if (comm == NULL)
    return;
  nccl_delete(host, comm->ranks, comm->n * sizeof *comm->ranks);
  nccl_delete(host, comm, sizeof *comm);
}

/* ranks [n], each once. */
static nccl_comm *new_comm(const opipe_endpoint *e, const uint32_t *ranks, uint32_t n, bool sums,
                           opipe_error *err) {
  const opipe_host *host = e->world->host;
  nccl_comm *comm = nccl_new(host, "a communicator", sizeof *comm, err);
  if (comm == NULL)
    return NULL;
  comm->n = n;
  comm->sums = sums;
  comm->ranks = nccl_new(host, "a communicator", n * sizeof *comm->ranks, err);
  if (comm->ranks == NULL) {
    free_comm(host, comm);
    return NULL;
  }
  for (uint32_t i = 0; i < n; ++i) { /* rising */
    uint32_t at = i;
    for (; at > 0 && comm->ranks[at - 1] > ranks[i]; --at)
      comm->ranks[at] = comm->ranks[at - 1];
    comm->ranks[at] = ranks[i];
  }
  while (comm->ranks[comm->index] != e->rank)
    ++comm->index;
  return comm;
}

/* Finds the communicator of the same ranks, or takes this one. */
static opipe_status take_comm(opipe_endpoint *e, nccl_comm *comm, nccl_comm **out,
                              opipe_error *err) {
  nccl_comm **at = &e->comms;
  char what[96];
  while (*at != NULL && compare(*at, comm) < 0)
    at = &(*at)->next;
  if (*at != NULL && compare(*at, comm) == 0) {
    free_comm(e->world->host, comm);
    *out = *at;
    return OPIPE_OK;
  }
  if (e->setup.state != NCCL_SETUP_NEW) {
    (void)snprintf(what, sizeof what, "the first group of ranks %u to %u (%u members)",
                   comm->ranks[0], comm->ranks[comm->n - 1], comm->n);
    free_comm(e->world->host, comm);
    return refuse_late(e, what, err);
  }
  comm->next = *at;
  *at = *out = comm;
  return OPIPE_OK;
}

opipe_status nccl_count_group(opipe_endpoint *e, const opipe_collective_params *p, bool collects,
                              nccl_comm **out_comm, opipe_error *err) {
  nccl_comm *comm = new_comm(e, p->ranks, p->n_ranks, true, err);
  const opipe_status status =
      comm == NULL ? (opipe_status)OPIPE_E_NOMEM : take_comm(e, comm, out_comm, err);
  if (status == OPIPE_OK && e->setup.state == NCCL_SETUP_NEW) {
    ++(*out_comm)->n_groups;
    (*out_comm)->hash += hash_group(p, collects);
  }
  return status;
}

opipe_status nccl_count_all(opipe_endpoint *e, opipe_error *err) {
  const uint32_t n = e->world->n_ranks;
  uint32_t *ranks = nccl_new(e->world->host, "ranks", n * sizeof *ranks, err);
  opipe_status status = ranks == NULL ? OPIPE_E_NOMEM : OPIPE_OK;
  for (uint32_t r = 0; r < n && ranks != NULL; ++r)
    ranks[r] = r;
  for (int sums = 0; sums < 2 && status == OPIPE_OK; ++sums) {
    nccl_comm *comm = new_comm(e, ranks, n, sums != 0, err), *taken = NULL;
    status = comm == NULL ? (opipe_status)OPIPE_E_NOMEM : take_comm(e, comm, &taken, err);
    if (sums == 0)
      e->messages = taken;
  }
  nccl_delete(e->world->host, ranks, n * sizeof *ranks);
  return status;
}

void nccl_comms_free(opipe_endpoint *e) {
  while (e->comms != NULL) {
    nccl_comm *comm = e->comms;
    e->comms = comm->next;
    free_comm(e->world->host, comm);
  }
}

/* ---- warming ---- */

static opipe_status warm_edge(opipe_endpoint *e, uint32_t peer, opipe_error *err) {
  enum { N_BYTES = 4, APART = 128 };
  const nccl_calls *nccl = &e->world->library->nccl;
  nccl_comm *comm = e->messages;
  char *small = (char *)(uintptr_t)e->own.small;
  const uint64_t record = nccl_note(e, NCCL_DID_WARM, peer, 0, 0, N_BYTES);
  opipe_status status = nccl_launch_begin(e, err);
  if (status < 0)
    return status;
  status = nccl_fine(e, comm, "ncclSend",
                     nccl->send(small, N_BYTES, NCCL_BYTES, (int)peer, comm->comm, e->stream), err);
  if (status >= 0) {
    status = nccl_fine(
        e, comm, "ncclRecv",
        nccl->recv(small + APART, N_BYTES, NCCL_BYTES, (int)peer, comm->comm, e->stream), err);
  }
  status = nccl_launch_end(e, comm, status, err);
  nccl_noted(e, record, e->n_launches);
  return status;
}

static opipe_status warm_set(opipe_endpoint *e, nccl_comm *comm, opipe_error *err) {
  enum { AT = 256 };
  float *small = (float *)(uintptr_t)(e->own.small + AT);
  const uint64_t record = nccl_note(e, NCCL_DID_WARM, comm->n, 0, 0, sizeof *small);
  opipe_status status = nccl_launch_begin(e, err);
  if (status < 0)
    return status;
  status = nccl_fine(e, comm, "ncclAllReduce",
                     e->world->library->nccl.all_reduce(small, small, 1, NCCL_FLOAT32, NCCL_ADD,
                                                        comm->comm, e->stream),
                     err);
  status = nccl_launch_end(e, comm, status, err);
  nccl_noted(e, record, e->n_launches);
  return status;
}

/* The next edge that is cold; n_ranks: none. */
static uint32_t next_edge(const opipe_endpoint *e) {
  uint32_t r = 0;
  while (r < e->world->n_ranks && (e->setup.edges[r].n_streams == 0 || e->setup.edges[r].warm))
    ++r;
  return r;
}

static nccl_comm *next_set(const opipe_endpoint *e) {
  nccl_comm *comm = e->comms;
  while (comm != NULL && (!comm->sums || comm->warm))
    comm = comm->next;
  return comm;
}

static opipe_status warm_next(opipe_endpoint *e, opipe_error *err) {
  const uint32_t peer = next_edge(e);
  if (peer != e->world->n_ranks) {
    e->setup.edges[peer].warm = true;
    return warm_edge(e, peer, err);
  }
  nccl_comm *comm = next_set(e);
  comm->warm = true;
  return warm_set(e, comm, err);
}

static bool is_warm(const opipe_endpoint *e) {
  return next_edge(e) == e->world->n_ranks && next_set(e) == NULL;
}

static opipe_status warm(opipe_endpoint *e, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  while (status == OPIPE_OK) {
    const bool starts = e->launching != NULL;
    status = nccl_launch_poll(e, err);
    if (status == OPIPE_OK && starts)
      status = nccl_mark(e, err);
    if (status != OPIPE_OK)
      return status;
    if (is_warm(e))
      return nccl_done(e, e->n_launches, err);
    status = warm_next(e, err);
  }
  return status;
}

/* ---- the state of it all ---- */

static opipe_status make_memory(opipe_endpoint *e, opipe_error *err) {
  const uint64_t n = e->world->n_ranks;
  const uint64_t heads = e->world->options.check ? (n + 1) * (n + 4) * sizeof(uint64_t) : 0;
  return nccl_memory_make(e, NCCL_SMALL + heads, &e->own.small, &e->own.small_buffer, err);
}

static opipe_status make_comms(opipe_endpoint *e, opipe_error *err) {
  for (nccl_comm *comm = e->comms; comm != NULL; comm = comm->next) {
    const opipe_status status = nccl_comm_make(e, comm, err);
    if (status != OPIPE_OK)
      return status;
  }
  return OPIPE_OK;
}

static opipe_status step(opipe_endpoint *e, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  switch (e->setup.state) {
    case NCCL_SETUP_NEW:
      e->setup.until_ns = machine_now_ns() + e->world->options.setup_s * UINT64_C(1000000000);
      status = make_memory(e, err);
      break;
    case NCCL_SETUP_MEETS:
      status = nccl_meet(e, err);
      break;
    case NCCL_SETUP_MAKES:
      status = make_comms(e, err);
      break;
    default:
      status = warm(e, err);
      break;
  }
  if (status == OPIPE_OK)
    ++e->setup.state;
  return status;
}

static const char *what_is_awaited(const opipe_endpoint *e) {
  return e->setup.state == NCCL_SETUP_MEETS   ? "the notes of all ranks"
         : e->setup.state == NCCL_SETUP_MAKES ? "its communicators"
                                              : "the first message with each rank";
}

opipe_status nccl_endpoint_ready(opipe_endpoint *e, opipe_error *err) {
  (void)pthread_mutex_lock(&e->lock);
  opipe_status status = nccl_check(e->world, err);
  while (status == OPIPE_OK && e->setup.state != NCCL_SETUP_DONE)
    status = step(e, err);
  if (status == OPIPE_PENDING && machine_now_ns() >= e->setup.until_ns) {
    opipe_error why = OPIPE_ERROR_INIT;
    status = opipe_fail(&why, OPIPE_E_TIMEOUT,
                        "transport 'nccl': rank %u has waited %u s for %s (setup_s=N)", e->rank,
                        e->world->options.setup_s, what_is_awaited(e));
    nccl_end(e->world, e->rank, &why, true);
    (void)opipe_fail(err, status, "%s", why.message);
  }
  (void)pthread_mutex_unlock(&e->lock);
  return status;
}
