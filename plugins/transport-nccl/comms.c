/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators: made without blocking, ended in order within a time, or aborted. */
#include "world.h"

#include <unistd.h>

/* ---- the environment ---- */

/* With share=1 NCCL is to believe that each rank is on a host of its own. It reads NCCL_HOSTID
 * once, with the first communicator; until that stands, environ points to a copy with ours. */
static opipe_status tell_apart(opipe_endpoint *e, opipe_error *err) {
  uint64_t n = 0, count = 0;
  if (!e->world->options.share || e->setup.environment != NULL)
    return OPIPE_OK;
  while (environ != NULL && environ[n] != NULL)
    ++n;
  char **list = nccl_new(e->world->host, "the environment", (n + 2) * sizeof *list, err);
  if (list == NULL)
    return OPIPE_E_NOMEM;
  e->setup.n_environment = (n + 2) * sizeof *list;
  (void)snprintf(e->setup.host_id, sizeof e->setup.host_id, "NCCL_HOSTID=onnx-pipe-rank-%u",
                 e->rank);
  for (uint64_t i = 0; i < n; ++i) {
    if (strncmp(environ[i], "NCCL_HOSTID=", strlen("NCCL_HOSTID=")) != 0)
      list[count++] = environ[i];
  }
  list[count] = e->setup.host_id;
  e->setup.environment = list;
  e->setup.host_environ = environ;
  environ = list;
  return OPIPE_OK;
}

/* Where the host has called setenv meanwhile, environ is another array, with a copy of ours. */
static void tell_no_more(opipe_endpoint *e) {
  if (e->setup.environment == NULL)
    return;
  if (environ == e->setup.environment)
    environ = e->setup.host_environ;
  nccl_delete(e->world->host, e->setup.environment, e->setup.n_environment);
  e->setup.environment = NULL;
}

/* ---- making ---- */

static opipe_status start(opipe_endpoint *e, nccl_comm *comm, opipe_error *err) {
  const nccl_options *options = &e->world->options;
  const uint32_t most = comm->sums ? options->sum_ctas : options->ctas;
  ncclUniqueId id;
  ncclConfig_t config = {.size = NCCL_CONFIG_BYTES,
                         .magic = NCCL_CONFIG_MAGIC,
                         .version = NCCL_CONFIG_VERSION,
                         .blocking = 0,
                         .cgaClusterSize = NCCL_UNSET,
                         .minCTAs = NCCL_UNSET,
                         .maxCTAs = most == 0 ? (int)NCCL_UNSET : (int)most,
                         .splitShare = NCCL_UNSET,
                         .trafficClass = NCCL_UNSET};
  opipe_status status = nccl_find_id(e, comm, &id, err);
  if (status == OPIPE_OK)
    status = tell_apart(e, err);
  if (status == OPIPE_OK)
    status = nccl_push(e, err);
  if (status != OPIPE_OK)
    return status;
  const ncclResult_t result =
      e->world->library->nccl.init(&comm->comm, (int)comm->n, id, (int)comm->index, &config);
  nccl_pop(e);
  comm->state = NCCL_COMM_STARTS;
  status = nccl_fine(e, comm, "ncclCommInitRankConfig", result, err);
  return status < 0 ? status : OPIPE_OK;
}

opipe_status nccl_comm_make(opipe_endpoint *e, nccl_comm *comm, opipe_error *err) {
  ncclResult_t state = NCCL_FINE;
  opipe_status status = OPIPE_OK;
  if (comm->state == NCCL_COMM_NEW)
    status = start(e, comm, err);
  if (status != OPIPE_OK || comm->state == NCCL_COMM_STANDS)
    return status;
  const ncclResult_t asked = e->world->library->nccl.async_error(comm->comm, &state);
  status = nccl_fine(e, comm, "making a communicator", asked != NCCL_FINE ? asked : state, err);
  if (status != OPIPE_OK)
    return status;
  comm->state = NCCL_COMM_STANDS;
  tell_no_more(e);
  return OPIPE_OK;
}

void nccl_comms_poll(opipe_endpoint *e) {
  for (nccl_comm *comm = e->comms; comm != NULL && !e->helper.aborts; comm = comm->next) {
    ncclResult_t state = NCCL_FINE;
    if (comm->state != NCCL_COMM_STANDS || comm->comm == NULL)
      continue;
    const ncclResult_t asked = e->world->library->nccl.async_error(comm->comm, &state);
    if (nccl_fine(e, comm, "while it works", asked != NCCL_FINE ? asked : state, NULL) < 0)
      return;
  }
}

/* ---- ending ---- */

/* Waits for what has been asked of a communicator. */
static bool comes_about(const opipe_endpoint *e, const nccl_comm *comm, uint64_t until_ns) {
  const struct timespec pause = {.tv_nsec = 100000};
  ncclResult_t state = NCCL_IN_PROGRESS;
  for (;;) {
    if (e->world->library->nccl.async_error(comm->comm, &state) != NCCL_FINE)
      return false;
    if (state != NCCL_IN_PROGRESS || machine_now_ns() >= until_ns)
      return state == NCCL_FINE;
    (void)nanosleep(&pause, NULL);
  }
}

bool nccl_comms_finish(opipe_endpoint *e, uint64_t until_ns) {
  const nccl_calls *nccl = &e->world->library->nccl;
  if (e->helper.aborts || nccl_push(e, NULL) < 0)
    return false;
  bool all = true;
  for (nccl_comm *comm = e->comms; comm != NULL && all; comm = comm->next) {
    if (comm->comm == NULL)
      continue;
    const ncclResult_t asked = nccl->finalize(comm->comm);
    all = (asked == NCCL_FINE || asked == NCCL_IN_PROGRESS) && comes_about(e, comm, until_ns);
    if (all) {
      (void)nccl->destroy(comm->comm);
      comm->comm = NULL;
    }
  }
  nccl_pop(e);
  return all;
}

/* All in one group: aborting one frees memory, which waits for the work of the others. */
void nccl_comms_abort(opipe_endpoint *e) {
  const nccl_calls *nccl = &e->world->library->nccl;
  const bool pushed = nccl_push(e, NULL) == OPIPE_OK;
  (void)nccl->group_start();
  for (nccl_comm *comm = e->comms; comm != NULL; comm = comm->next) {
    if (comm->comm != NULL)
      (void)nccl->abort(comm->comm);
  }
  (void)nccl->group_end();
  if (pushed)
    nccl_pop(e);
  tell_no_more(e);
}
