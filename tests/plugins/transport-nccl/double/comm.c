/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators of the double: opening, splitting, asking, closing.
 *
 *   STARTING ──► READY ◄──► LAUNCHING (group.c)      any ──► FAILED: until it is aborted
 *                  └──► FINALIZING ──► FINALIZED     any ──► ABORTED: its launches end
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "double.h"
#include "tests/plugins/backend-cuda/doubles/driver.h"

enum { START_US = 2000, BREAK_US = 1000 };

pthread_mutex_t nccl_lock = PTHREAD_MUTEX_INITIALIZER;
ncclComm_t nccl_comms;
static ncclComm_t closed; /* kept: handles of them are found out */

static int version(void) {
  return (int)nccl_option("VERSION", 22809);
}

int ncclGetVersion(int *out) {
  *out = version();
  return NCCL_DOUBLE_SUCCESS;
}

const char *ncclGetErrorString(int result) {
  static const char *const texts[] = {"no error",
                                      "unhandled cuda error",
                                      "unhandled system error",
                                      "internal error",
                                      "invalid argument",
                                      "invalid usage",
                                      "remote process exited or there was a network error",
                                      "NCCL operation in progress"};
  return result >= 0 && result < (int)(sizeof texts / sizeof texts[0]) ? texts[result]
                                                                       : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm) {
  (void)comm;
  return nccl_words();
}

int ncclGetUniqueId(ncclUniqueId *id) {
  nccl_place place;
  (void)pthread_mutex_lock(&nccl_lock);
  const int result = nccl_place_make(&place);
  if (result == NCCL_DOUBLE_SUCCESS)
    nccl_wake();
  (void)pthread_mutex_unlock(&nccl_lock);
  memset(id, 0, sizeof *id);
  if (result == NCCL_DOUBLE_SUCCESS)
    memcpy(id->internal, &place, sizeof place);
  return result;
}

/* ---- starting ---- */

static void fail(ncclComm_t comm, int error) {
  comm->state = COMM_FAILED;
  comm->error = error;
}

static uint64_t host_hash(void) {
  char name[256] = "";
  const char *text = getenv("NCCL_HOSTID");
  uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
  if (text == NULL) {
    (void)gethostname(name, sizeof name - 1);
    text = name;
  }
  for (; *text != '\0'; ++text)
    hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
  return hash;
}

static void check_members(ncclComm_t comm) {
  comm->state = COMM_READY;
  for (int i = 0; i < comm->n_ranks; ++i) {
    const nccl_member *a = nccl_member_of(comm, i), *first = nccl_member_of(comm, 0);
    if (a->version != first->version) {
      fail(comm, nccl_fail(NCCL_DOUBLE_INVALID_USAGE,
                           "Mismatched NCCL version detected : rank %d version %d rank 0 version "
                           "%d",
                           i, a->version, first->version));
    }
    for (int j = 0; j < i; ++j) {
      const nccl_member *b = nccl_member_of(comm, j);
      if (a->host == b->host && memcmp(a->uuid, b->uuid, UUID) == 0) {
        fail(comm, nccl_fail(NCCL_DOUBLE_INVALID_USAGE,
                             "Duplicate GPU detected : rank %d and rank %d both on CUDA device %x",
                             i, j, (unsigned)(unsigned char)a->uuid[UUID - 1] << 12));
      }
    }
  }
}

static void join(ncclComm_t comm) {
  nccl_member *own = nccl_member_of(comm, comm->rank);
  if (atomic_load(&own->joined) != 0)
    nccl_die("rank %d of a communicator comes twice", comm->rank);
  own->pid = getpid();
  own->version = version();
  own->host = host_hash();
  memcpy(own->uuid, comm->uuid, UUID);
  atomic_store(&own->joined, 1);
}

static int split_entry_colour(const struct ncclComm *comm, int rank) {
  return nccl_member_of(comm->parent, rank)->splits[comm->split % SPLITS].colour;
}

/* Who of the parent's members are of this colour: number, own rank, and the first. False: not all
 * have come yet. */
static bool find_split(ncclComm_t comm) {
  const int own_rank = comm->parent->rank;
  int n = 0, before = 0, first = own_rank;
  for (int i = 0; i < comm->parent->n_ranks; ++i) {
    const nccl_split *s = &nccl_member_of(comm->parent, i)->splits[comm->split % SPLITS];
    if (atomic_load(&s->number) < comm->split)
      return false;
  }
  for (int i = 0; i < comm->parent->n_ranks; ++i) {
    const nccl_split *s = &nccl_member_of(comm->parent, i)->splits[comm->split % SPLITS];
    const nccl_split *f = &nccl_member_of(comm->parent, first)->splits[comm->split % SPLITS];
    if (split_entry_colour(comm, i) != comm->colour)
      continue;
    ++n;
    before += s->key < comm->key || (s->key == comm->key && i < own_rank);
    if (s->key < f->key || (s->key == f->key && i < first))
      first = i;
  }
  nccl_split *lead = &nccl_member_of(comm->parent, first)->splits[comm->split % SPLITS];
  comm->n_ranks = n;
  comm->rank = before;
  if (first == own_rank && atomic_load(&lead->offered) != comm->split) {
    const int result = nccl_place_make(&lead->place);
    if (result != NCCL_DOUBLE_SUCCESS)
      fail(comm, result);
    else
      atomic_store(&lead->offered, comm->split);
  }
  if (atomic_load(&lead->offered) != comm->split)
    return false;
  comm->place = lead->place;
  return true;
}

static void start(ncclComm_t comm) {
  if (comm->silent || nccl_now_ns() < comm->ready_ns)
    return;
  if (comm->shared == NULL && comm->parent != NULL && !find_split(comm))
    return;
  if (comm->shared == NULL) {
    const int result = nccl_place_open(comm);
    if (result != NCCL_DOUBLE_SUCCESS) {
      fail(comm, result);
      return;
    }
    join(comm);
  }
  for (int i = 0; i < comm->n_ranks; ++i) {
    if (atomic_load(&nccl_member_of(comm, i)->joined) == 0)
      return;
  }
  check_members(comm);
}

static void finish(ncclComm_t comm) {
  if (comm->silent || comm->n_queued > 0 || comm->launch != NULL)
    return;
  atomic_store(&nccl_member_of(comm, comm->rank)->finalized, 1);
  for (int i = 0; i < comm->n_ranks; ++i) {
    if (atomic_load(&nccl_member_of(comm, i)->finalized) == 0)
      return;
  }
  comm->state = COMM_FINALIZED;
}

void nccl_advance(ncclComm_t comm) {
  if (comm->state == COMM_STARTING)
    start(comm);
  else if (comm->state == COMM_FINALIZING)
    finish(comm);
}

/* ---- opening ---- */

static int check_config(const nccl_double_config *config, bool *out_blocks) {
  *out_blocks = true;
  if (config == NULL)
    return NCCL_DOUBLE_SUCCESS;
  if (config->magic != (unsigned)NCCL_DOUBLE_MAGIC || config->size < sizeof *config) {
    return nccl_fail(NCCL_DOUBLE_INVALID_ARGUMENT,
                     "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
  }
  if (config->blocking != INT32_MIN && config->blocking != 0 && config->blocking != 1) {
    return nccl_fail(NCCL_DOUBLE_INVALID_ARGUMENT, "Invalid config blocking attribute value %d",
                     config->blocking);
  }
  *out_blocks = config->blocking != 0;
  return NCCL_DOUBLE_SUCCESS;
}

static ncclComm_t new_comm(bool blocking) {
  ncclComm_t comm = calloc(1, sizeof *comm);
  CUuuid uuid;
  int device = 0;
  if (comm == NULL)
    nccl_die("no memory");
  if (!cuda_double_finds_device(&device) || cuDeviceGetUuid_v2(&uuid, device) != CUDA_OK)
    nccl_die("a communicator is opened by a thread that has no current context");
  memcpy(comm->uuid, uuid.bytes, UUID);
  comm->device = device;
  comm->blocking = blocking;
  return comm;
}

/* The lock is held, and given back. */
static int open_comm(ncclComm_t comm, ncclComm_t *out) {
  const int fault = nccl_fault("init");
  comm->silent = fault == FAULT_SILENT;
  comm->next = nccl_comms;
  nccl_comms = comm;
  comm->ready_ns = nccl_now_ns() + 1000 * nccl_draw(START_US);
  ++nccl_counted.comms;
  nccl_count_late("a communicator");
  if (fault == FAULT_ERROR)
    fail(comm, nccl_fail(NCCL_DOUBLE_SYSTEM_ERROR, "the test lets the communicator fail"));
  nccl_wake();
  *out = comm;
  while (comm->blocking && comm->state == COMM_STARTING) {
    nccl_advance(comm);
    (void)pthread_mutex_unlock(&nccl_lock);
    nccl_nap(100);
    (void)pthread_mutex_lock(&nccl_lock);
  }
  const int result = !comm->blocking              ? NCCL_DOUBLE_IN_PROGRESS
                     : comm->state == COMM_FAILED ? comm->error
                                                  : NCCL_DOUBLE_SUCCESS;
  (void)pthread_mutex_unlock(&nccl_lock);
  return result;
}

int ncclCommInitRankConfig(ncclComm_t *out, int n_ranks, ncclUniqueId id, int rank,
                           nccl_double_config *config) {
  bool blocking = true;
  const int result = check_config(config, &blocking);
  if (result != NCCL_DOUBLE_SUCCESS)
    return result;
  if (n_ranks < 1 || n_ranks > MOST_RANKS || rank < 0 || rank >= n_ranks)
    return nccl_fail(NCCL_DOUBLE_INVALID_ARGUMENT, "Invalid rank requested : %d/%d", rank, n_ranks);
  if (nccl_inside_group())
    nccl_die("a communicator is opened inside a group");
  ncclComm_t comm = new_comm(blocking);
  comm->rank = rank;
  comm->n_ranks = n_ranks;
  memcpy(&comm->place, id.internal, sizeof comm->place);
  (void)pthread_mutex_lock(&nccl_lock);
  return open_comm(comm, out);
}

/* Under the lock. The communicator, if it is open. */
static void need_open(ncclComm_t comm, const char *what) {
  const struct ncclComm *at = nccl_comms;
  while (at != NULL && at != comm)
    at = at->next;
  if (at == NULL)
    nccl_die("%s: the communicator is not open, or has been closed", what);
}

static bool is_splitting(const struct ncclComm *comm) {
  for (const struct ncclComm *c = nccl_comms; c != NULL; c = c->next) {
    if (c->parent == comm && c->state == COMM_STARTING)
      return true;
  }
  return false;
}

int nccl_check(ncclComm_t comm, const char *what) {
  need_open(comm, what);
  if (comm->state == COMM_FAILED)
    return nccl_fail(comm->error, "%s: the communicator has failed", what);
  if (comm->state != COMM_READY || is_splitting(comm)) {
    return nccl_fail(NCCL_DOUBLE_INVALID_ARGUMENT,
                     "%s: Attempt to use communicator before the previous operation returned "
                     "ncclSuccess",
                     what);
  }
  return NCCL_DOUBLE_SUCCESS;
}

int ncclCommSplit(ncclComm_t parent, int colour, int key, ncclComm_t *out,
                  nccl_double_config *config) {
  bool blocking = parent->blocking;
  *out = NULL;
  int result = config == NULL ? NCCL_DOUBLE_SUCCESS : check_config(config, &blocking);
  if (result != NCCL_DOUBLE_SUCCESS)
    return result;
  ncclComm_t comm = new_comm(blocking);
  (void)pthread_mutex_lock(&nccl_lock);
  result = nccl_check(parent, "ncclCommSplit");
  if (result == NCCL_DOUBLE_SUCCESS) {
    const uint64_t number = ++parent->n_splits;
    nccl_split *own = &nccl_member_of(parent, parent->rank)->splits[number % SPLITS];
    own->colour = colour;
    own->key = key;
    atomic_store(&own->number, number);
    comm->parent = parent;
    comm->split = number;
    comm->colour = colour;
    comm->key = key;
    if (colour != NCCL_DOUBLE_NO_COLOR)
      return open_comm(comm, out);
  }
  (void)pthread_mutex_unlock(&nccl_lock);
  free(comm);
  return result;
}

/* ---- asking ---- */

int ncclCommGetAsyncError(ncclComm_t comm, int *error) {
  (void)pthread_mutex_lock(&nccl_lock);
  need_open(comm, "ncclCommGetAsyncError");
  nccl_advance(comm);
  *error = comm->state == COMM_FAILED ? comm->error
           : comm->state == COMM_STARTING || comm->state == COMM_LAUNCHING ||
                   comm->state == COMM_FINALIZING || is_splitting(comm)
               ? NCCL_DOUBLE_IN_PROGRESS
               : NCCL_DOUBLE_SUCCESS;
  (void)pthread_mutex_unlock(&nccl_lock);
  return NCCL_DOUBLE_SUCCESS;
}

static int ask(ncclComm_t comm, int *out, const char *what) {
  (void)pthread_mutex_lock(&nccl_lock);
  const int result = nccl_check(comm, what);
  if (result == NCCL_DOUBLE_SUCCESS) {
    *out = strcmp(what, "ncclCommCount") == 0      ? comm->n_ranks
           : strcmp(what, "ncclCommUserRank") == 0 ? comm->rank
                                                   : comm->device;
  }
  (void)pthread_mutex_unlock(&nccl_lock);
  return result;
}

int ncclCommCount(ncclComm_t comm, int *count) {
  return ask(comm, count, "ncclCommCount");
}

int ncclCommUserRank(ncclComm_t comm, int *rank) {
  return ask(comm, rank, "ncclCommUserRank");
}

int ncclCommCuDevice(ncclComm_t comm, int *device) {
  return ask(comm, device, "ncclCommCuDevice");
}

int ncclCommRegister(ncclComm_t comm, void *buffer, size_t size, void **handle) {
  if (!cuda_double_is_there((uintptr_t)buffer, size))
    nccl_die("ncclCommRegister: %zu bytes at %p are not all memory of the device", size, buffer);
  (void)pthread_mutex_lock(&nccl_lock);
  const int result = nccl_check(comm, "ncclCommRegister");
  comm->n_enrolled += result == NCCL_DOUBLE_SUCCESS;
  (void)pthread_mutex_unlock(&nccl_lock);
  *handle = buffer;
  return result;
}

int ncclCommDeregister(ncclComm_t comm, void *handle) {
  (void)pthread_mutex_lock(&nccl_lock);
  need_open(comm, "ncclCommDeregister");
  if (handle == NULL || comm->n_enrolled == 0)
    nccl_die("ncclCommDeregister: nothing is registered");
  --comm->n_enrolled;
  (void)pthread_mutex_unlock(&nccl_lock);
  return NCCL_DOUBLE_SUCCESS;
}

/* ---- closing ---- */

/* Under the lock. */
static void finalize(ncclComm_t comm) {
  comm->state = COMM_FINALIZING;
  comm->silent |= nccl_fault("finalize") == FAULT_SILENT;
  nccl_wake();
}

static void wait_finalized(ncclComm_t comm) {
  while (comm->state == COMM_FINALIZING) {
    nccl_advance(comm);
    (void)pthread_mutex_unlock(&nccl_lock);
    nccl_nap(100);
    (void)pthread_mutex_lock(&nccl_lock);
  }
}

int ncclCommFinalize(ncclComm_t comm) {
  (void)pthread_mutex_lock(&nccl_lock);
  int result = nccl_check(comm, "ncclCommFinalize");
  if (result == NCCL_DOUBLE_SUCCESS) {
    finalize(comm);
    if (comm->blocking)
      wait_finalized(comm);
    else
      result = NCCL_DOUBLE_IN_PROGRESS;
  }
  (void)pthread_mutex_unlock(&nccl_lock);
  return result;
}

/* Under the lock. */
static void unlist(ncclComm_t comm) {
  ncclComm_t *link = &nccl_comms;
  while (*link != comm)
    link = &(*link)->next;
  *link = comm->next;
  comm->next = closed;
  closed = comm;
  nccl_place_close(comm);
  if (nccl_comms == NULL)
    nccl_report();
}

static void hang_if(const char *where) {
  while (nccl_fault(where) == FAULT_SILENT)
    nccl_nap(BREAK_US);
}

int ncclCommDestroy(ncclComm_t comm) {
  hang_if("destroy");
  (void)pthread_mutex_lock(&nccl_lock);
  need_open(comm, "ncclCommDestroy");
  if (comm->state == COMM_STARTING || comm->state == COMM_LAUNCHING)
    nccl_die("ncclCommDestroy: the communicator is still in progress");
  if (comm->state == COMM_READY)
    finalize(comm);
  wait_finalized(comm);
  if (comm->n_queued > 0)
    nccl_die("ncclCommDestroy: the communicator has failed with work in its stream: abort it");
  unlist(comm);
  nccl_rest();
  (void)pthread_mutex_unlock(&nccl_lock);
  return NCCL_DOUBLE_SUCCESS;
}

/* Under the lock, which is given up: until no launch of it stands in a stream any more. Memory is
 * freed then, which waits for all work of the device. */
static void wait_ended(const struct ncclComm *comm) {
  const uint64_t until_ns =
      nccl_now_ns() + UINT64_C(1000000) * nccl_option("PATIENCE_MS", NCCL_PATIENCE_MS);
  while (comm->n_queued > 0) {
    (void)pthread_mutex_unlock(&nccl_lock);
    if (!cuda_double_step())
      nccl_nap(50);
    (void)pthread_mutex_lock(&nccl_lock);
    if (nccl_now_ns() > until_ns)
      nccl_die("ncclCommAbort waits for work of another communicator: abort both in one group");
  }
}

void nccl_abort_end(ncclComm_t comm) {
  (void)pthread_mutex_lock(&nccl_lock);
  wait_ended(comm);
  unlist(comm);
  nccl_rest();
  (void)pthread_mutex_unlock(&nccl_lock);
}

/* Inside a group all communicators are told before one is waited for. */
int ncclCommAbort(ncclComm_t comm) {
  hang_if("abort");
  nccl_nap(1000 * nccl_option("ABORT_MS", 0));
  (void)pthread_mutex_lock(&nccl_lock);
  need_open(comm, "ncclCommAbort");
  if (comm->state == COMM_ABORTED)
    nccl_die("ncclCommAbort: a second time");
  ++nccl_counted.aborts;
  nccl_launch_drop(comm);
  comm->state = COMM_ABORTED;
  (void)pthread_mutex_unlock(&nccl_lock);
  if (!nccl_group_aborts(comm))
    nccl_abort_end(comm);
  return NCCL_DOUBLE_SUCCESS;
}
