/* SPDX-License-Identifier: Apache-2.0 */
/* Launches: groups of NCCL's calls on the lane, one after the other. A communicator that does not
 * block starts a group on a thread of its own; until it says that the group stands in the stream,
 * nothing else is queued there. A mark behind each launch tells that it is done, and so are all
 * before it.
 */
#include "world.h"

#include <sched.h>

enum { YIELD_AFTER_NS = 1000 };

/* ---- answers ---- */

static void fail(opipe_endpoint *e, const nccl_comm *comm, const char *call, ncclResult_t result,
                 opipe_error *err) {
  const nccl_calls *nccl = &e->world->library->nccl;
  char version[32], others[96] = "";
  size_t n = 0;
  const char *more = comm->comm == NULL ? "" : nccl->last_error(comm->comm);
  nccl_version_text(e->world->library->version, version);
  for (uint32_t i = 0; i < comm->n && n + 8 < sizeof others; ++i) {
    if (i == comm->index)
      continue;
    n +=
        (size_t)snprintf(others + n, sizeof others - n, "%s%u", n == 0 ? "" : ", ", comm->ranks[i]);
  }
  (void)opipe_fail(err, result == NCCL_REMOTE ? OPIPE_E_PEER : OPIPE_E_DEVICE,
                   "rank %u: NCCL %s: %s, %s with rank%s %s: %s%s%.160s", e->rank, version, call,
                   comm->sums ? "sums" : "messages", comm->n == 2 ? "" : "s", others,
                   nccl->text(result), more != NULL && more[0] != '\0' ? ": " : "",
                   more != NULL ? more : "");
  err->native = result;
}

opipe_status nccl_fine(opipe_endpoint *e, const nccl_comm *comm, const char *call,
                       ncclResult_t result, opipe_error *err) {
  opipe_error own = OPIPE_ERROR_INIT;
  if (result == NCCL_FINE)
    return OPIPE_OK;
  if (result == NCCL_IN_PROGRESS)
    return OPIPE_PENDING;
  if (result == NCCL_REMOTE) /* a rank that has ended the world said why before it left */
    nccl_hear_end(e, true);
  opipe_status status = nccl_check(e->world, err);
  if (status < 0)
    return status;
  fail(e, comm, call, result, &own);
  status = own.status;
  nccl_end(e->world, e->rank, &own, true);
  if (err != NULL) {
    const uint32_t size = err->struct_size;
    *err = own;
    err->struct_size = size;
  }
  return status;
}

opipe_status nccl_push(const opipe_endpoint *e, opipe_error *err) {
  const CUresult result = e->world->library->driver.context_push(e->context);
  return result == NCCL_CUDA_FINE
             ? OPIPE_OK
             : opipe_fail(err, OPIPE_E_DEVICE, "rank %u: its GPU's context: the driver answers %d",
                          e->rank, (int)result);
}

void nccl_pop(const opipe_endpoint *e) {
  CUcontext context = NULL;
  (void)e->world->library->driver.context_pop(&context);
}

/* ---- launches ---- */

opipe_status nccl_launch_begin(opipe_endpoint *e, opipe_error *err) {
  opipe_status status = nccl_check(e->world, err);
  if (status == OPIPE_OK && (e->helper.aborts || e->launching != NULL))
    status = opipe_fail(err, OPIPE_E_INTERNAL, "rank %u: a launch within another", e->rank);
  if (status == OPIPE_OK)
    status = nccl_push(e, err);
  if (status == OPIPE_OK)
    (void)e->world->library->nccl.group_start();
  return status;
}

opipe_status nccl_launch_end(opipe_endpoint *e, nccl_comm *comm, opipe_status status,
                             opipe_error *err) {
  const ncclResult_t result = e->world->library->nccl.group_end();
  nccl_pop(e);
  if (status < 0)
    return status;
  status = nccl_fine(e, comm, "starting a group", result, err);
  if (status < 0)
    return status;
  ++e->n_launches;
  e->launching = comm;
  return OPIPE_OK;
}

opipe_status nccl_launch_poll(opipe_endpoint *e, opipe_error *err) {
  ncclResult_t state = NCCL_FINE;
  opipe_status status = nccl_check(e->world, err);
  if (status < 0 || e->launching == NULL)
    return status;
  const ncclResult_t asked = e->world->library->nccl.async_error(e->launching->comm, &state);
  status = nccl_fine(e, e->launching, "starting a group", asked != NCCL_FINE ? asked : state, err);
  if (status == OPIPE_OK)
    e->launching = NULL;
  return status;
}

opipe_status nccl_mark(opipe_endpoint *e, opipe_error *err) {
  return e->backend->event_record(e->lane, e->marks[e->n_launches % NCCL_MARKS], err);
}

opipe_status nccl_done(opipe_endpoint *e, uint64_t number, opipe_error *err) {
  const uint64_t last = e->launching == NULL ? e->n_launches : e->n_launches - 1;
  const uint64_t first = last < NCCL_MARKS ? 1 : last - NCCL_MARKS + 1;
  /* From the last on: what one mark says holds for all before it. */
  for (uint64_t i = last; i >= first && i > e->n_done; --i) {
    const opipe_status status = e->backend->event_poll(e->marks[i % NCCL_MARKS], err);
    if (status < 0)
      return status;
    if (status == OPIPE_OK)
      e->n_done = i;
  }
  return e->n_done >= number ? OPIPE_OK : OPIPE_PENDING;
}

opipe_status nccl_settle(opipe_endpoint *e, uint64_t number) {
  ncclResult_t state = NCCL_FINE;
  if (e->given_up || (e->helper.aborts && !e->helper.aborted))
    return OPIPE_PENDING;
  if (e->launching != NULL) {
    const ncclResult_t asked = e->world->library->nccl.async_error(e->launching->comm, &state);
    if (asked != NCCL_FINE || state != NCCL_FINE)
      return OPIPE_PENDING; /* where it has failed the helper ends it */
    e->launching = NULL;
    const opipe_status status = nccl_mark(e, NULL);
    if (status < 0)
      return status;
  }
  return nccl_done(e, number, NULL);
}

/* Until the clock shows until_ns. */
static opipe_status wait_for(opipe_endpoint *e, uint64_t number, uint64_t until_ns) {
  const struct timespec pause = {.tv_nsec = 100000};
  opipe_status status = OPIPE_PENDING;
  for (;;) {
    (void)pthread_mutex_lock(&e->lock);
    status = nccl_settle(e, number);
    (void)pthread_mutex_unlock(&e->lock);
    if (status != OPIPE_PENDING || machine_now_ns() >= until_ns)
      return status;
    (void)nanosleep(&pause, NULL);
  }
}

void nccl_give_up(opipe_endpoint *e) {
  (void)pthread_mutex_lock(&e->lock);
  e->given_up = true;
  (void)e->backend->queue_abort(e->lane, NULL);
  (void)pthread_mutex_unlock(&e->lock);
}

void nccl_leave(opipe_endpoint *e, uint64_t number) {
  opipe_error why = OPIPE_ERROR_INIT;
  if (number == 0 || e->given_up)
    return;
  opipe_status status = wait_for(e, number, machine_now_ns() + NCCL_CLOSE_NS);
  if (status != OPIPE_PENDING)
    return;
  if (nccl_check(e->world, NULL) == OPIPE_OK) {
    (void)opipe_fail(&why, OPIPE_E_PEER,
                     "rank %u closes a stream or group whose launch %llu does not end", e->rank,
                     (unsigned long long)number);
    nccl_end(e->world, e->rank, &why, true);
  }
  status = wait_for(e, number, machine_now_ns() + NCCL_CLOSE_NS);
  if (status == OPIPE_PENDING)
    nccl_give_up(e);
}

opipe_status nccl_go_on(opipe_endpoint *e, opipe_error *err) {
  const opipe_status status = nccl_check(e->world, err);
  if (status < 0)
    return status;
  if (e->batch.state == NCCL_BATCH_LAUNCHES)
    return nccl_batch_go_on(e, err);
  return e->busy != NULL ? nccl_round_go_on(e->busy, err) : OPIPE_OK;
}

opipe_status nccl_go_on_soon(opipe_endpoint *e, opipe_error *err) {
  const uint64_t start = machine_now_ns(), until = start + e->spin_us * UINT64_C(1000);
  opipe_status status = nccl_go_on(e, err);
  for (uint64_t now = start; status == OPIPE_PENDING && now < until; now = machine_now_ns()) {
    if (now - start > YIELD_AFTER_NS)
      (void)sched_yield();
    status = nccl_go_on(e, err);
  }
  return status;
}

/* ---- device memory of the endpoint's own ---- */

opipe_status nccl_memory_make(const opipe_endpoint *e, uint64_t n_bytes, uint64_t *io_address,
                              opipe_buffer **io_buffer, opipe_error *err) {
  CUdeviceptr address = 0;
  opipe_status status = *io_address != 0 ? OPIPE_OK : nccl_push(e, err);
  if (status < 0 || *io_address != 0)
    return status;
  const CUresult result = e->world->library->driver.memory_alloc(&address, (size_t)n_bytes);
  nccl_pop(e);
  if (result != NCCL_CUDA_FINE) {
    return opipe_fail(err, OPIPE_E_NOMEM,
                      "transport 'nccl': rank %u: %llu bytes of its GPU: the driver answers %d",
                      e->rank, (unsigned long long)n_bytes, (int)result);
  }
  *io_address = address;
  return e->backend->buffer_import(e->device, address, n_bytes, io_buffer, err);
}
