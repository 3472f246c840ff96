/* SPDX-License-Identifier: Apache-2.0 */
/* Operations and groups: from a call to a launch in a stream.
 *
 * A thread gathers the tasks of its group; at the end those of one communicator become a launch.
 * It waits, outside of its stream, until all connections that it needs are there, and a time that
 * is drawn; until then nobody else may use the stream.
 */
#include <stdlib.h>
#include <string.h>

#include "double.h"
#include "tests/plugins/backend-cuda/doubles/driver.h"

enum { LAUNCH_US = 300, AT_ONCE_ONE_IN = 4 };

static _Thread_local struct {
  int depth;
  nccl_task *tasks, **last;
  int error; /* of a call inside */
  ncclComm_t aborted[MOST_RANKS];
  uint32_t n_aborted;
} group;

static nccl_launch *waiting; /* launches that are not in their streams, in the host's order */
static bool putting;         /* somebody puts launches into streams */

bool nccl_inside_group(void) {
  return group.depth > 0;
}

const char *nccl_kind_name(int kind) {
  static const char *const names[] = {"ncclSend",          "ncclRecv",      "ncclAllReduce",
                                      "ncclReduceScatter", "ncclAllGather", "ncclBroadcast",
                                      "ncclReduce"};
  return names[kind];
}

bool nccl_group_aborts(ncclComm_t comm) {
  if (group.depth == 0)
    return false;
  if (group.n_aborted == MOST_RANKS)
    nccl_die("a group aborts more than %d communicators", MOST_RANKS);
  group.aborted[group.n_aborted++] = comm;
  return true;
}

/* ---- a group's end ---- */

static void free_tasks(nccl_task *task) {
  while (task != NULL) {
    nccl_task *next = task->next;
    free(task);
    task = next;
  }
}

void nccl_launch_free(nccl_launch *launch) {
  free_tasks(launch->tasks);
  free(launch);
}

static bool is_message(const nccl_task *task) {
  return task->header.kind <= TASK_RECV;
}

static void check_launch(const nccl_launch *launch) {
  const int own = launch->comm->rank;
  int to_itself = 0;
  uint32_t n_messages = 0;
  for (const nccl_task *t = launch->tasks; t != NULL; t = t->next) {
    n_messages += is_message(t);
    if (t->stream != launch->tasks->stream)
      nccl_die("a group has operations of one communicator on two streams");
    if (is_message(t) && t->header.root == own)
      to_itself += t->header.kind == TASK_SEND ? 1 : -1;
  }
  if (n_messages > NCCL_DOUBLE_MOST)
    nccl_die("a group has %u messages: more than %d may hang", n_messages, NCCL_DOUBLE_MOST);
  if (to_itself != 0)
    nccl_die("Trying to send to self without a matching recv");
  nccl_counted.messages += n_messages;
  if (nccl_counted.most < n_messages)
    nccl_counted.most = n_messages;
}

/* The tasks of the first one's communicator, in their order. */
static nccl_launch *take_launch(nccl_task **io_tasks) {
  nccl_launch *launch = calloc(1, sizeof *launch);
  nccl_task **last = launch == NULL ? NULL : &launch->tasks;
  if (launch == NULL)
    nccl_die("no memory");
  launch->comm = (*io_tasks)->comm;
  for (nccl_task **link = io_tasks; *link != NULL;) {
    nccl_task *t = *link;
    if (t->comm != launch->comm) {
      link = &t->next;
      continue;
    }
    *link = t->next;
    t->next = NULL;
    *last = t;
    last = &t->next;
    ++launch->n_tasks;
  }
  check_launch(launch);
  return launch;
}

/* Under the lock. */
static void note(nccl_launch *launch, uint64_t group_number) {
  ncclComm_t comm = launch->comm;
  nccl_launch **last = &waiting;
  while (*last != NULL)
    last = &(*last)->next;
  *last = launch;
  nccl_order_add(launch);
  launch->number = ++nccl_counted.launches;
  launch->group = group_number;
  comm->launch = launch;
  comm->state = COMM_LAUNCHING;
  comm->ready_ns = nccl_draw(AT_ONCE_ONE_IN) == 0 ? 0 : nccl_now_ns() + 1000 * nccl_draw(LAUNCH_US);
  cuda_double_expect(launch->tasks->stream, true);
}

/* The tasks of all communicators, which are all ready for them. */
static int launch_all(nccl_task *tasks) {
  bool blocking = true;
  int result = NCCL_DOUBLE_SUCCESS;
  ncclComm_t comms[MOST_RANKS];
  uint32_t n = 0;
  (void)pthread_mutex_lock(&nccl_lock);
  for (const nccl_task *t = tasks; t != NULL && result == NCCL_DOUBLE_SUCCESS; t = t->next)
    result = nccl_check(t->comm, nccl_kind_name(t->header.kind));
  const uint64_t number = nccl_counted.launches + 1;
  while (result == NCCL_DOUBLE_SUCCESS && tasks != NULL) {
    nccl_launch *launch = take_launch(&tasks);
    if (n == sizeof comms / sizeof comms[0])
      nccl_die("a group is of more than %u communicators", n);
    comms[n++] = launch->comm;
    blocking = blocking && launch->comm->blocking;
    note(launch, number);
  }
  (void)pthread_mutex_unlock(&nccl_lock);
  free_tasks(tasks);
  nccl_launch_some();
  (void)pthread_mutex_lock(&nccl_lock);
  nccl_wake();
  for (uint32_t i = 0; i < n; ++i) {
    while (blocking && comms[i]->state == COMM_LAUNCHING) {
      (void)pthread_mutex_unlock(&nccl_lock);
      nccl_nap(50);
      nccl_launch_some();
      (void)pthread_mutex_lock(&nccl_lock);
    }
    if (comms[i]->state == COMM_LAUNCHING)
      result = NCCL_DOUBLE_IN_PROGRESS;
    else if (comms[i]->state == COMM_FAILED && result == NCCL_DOUBLE_SUCCESS)
      result = comms[i]->error;
  }
  (void)pthread_mutex_unlock(&nccl_lock);
  return result;
}

int ncclGroupStart(void) {
  if (group.depth++ == 0) {
    group.tasks = NULL;
    group.last = &group.tasks;
    group.error = NCCL_DOUBLE_SUCCESS;
  }
  return NCCL_DOUBLE_SUCCESS;
}

int ncclGroupEnd(void) {
  if (group.depth == 0)
    return nccl_fail(NCCL_DOUBLE_INVALID_USAGE, "ncclGroupEnd: not in a group call.");
  if (--group.depth > 0)
    return NCCL_DOUBLE_SUCCESS;
  nccl_task *tasks = group.tasks;
  while (group.n_aborted > 0)
    nccl_abort_end(group.aborted[--group.n_aborted]);
  if (group.error == NCCL_DOUBLE_SUCCESS)
    return launch_all(tasks);
  free_tasks(tasks);
  return group.error;
}

/* ---- into streams ---- */

/* Under the lock: are all connections there that it needs? Each end wants its own. */
static bool connect(nccl_launch *launch) {
  ncclComm_t comm = launch->comm;
  bool whole = true;
  for (const nccl_task *t = launch->tasks; t != NULL; t = t->next) {
    const int peer = t->header.root;
    if (!is_message(t)) {
      bool all = true;
      atomic_store(&nccl_member_of(comm, comm->rank)->used, 1);
      for (int i = 0; i < comm->n_ranks && !comm->connected; ++i)
        all = all && atomic_load(&nccl_member_of(comm, i)->used) != 0;
      launch->connects |= !comm->connected;
      nccl_counted.connections += all && !comm->connected;
      comm->connected |= all;
      whole = whole && all;
      continue;
    }
    const bool sends = t->header.kind == TASK_SEND;
    bool *known = sends ? &comm->sends_to[peer] : &comm->receives_from[peer];
    nccl_channel *ch =
        sends ? nccl_channel_of(comm, comm->rank, peer) : nccl_channel_of(comm, peer, comm->rank);
    if (*known)
      continue;
    launch->connects = true;
    atomic_store(sends ? &ch->used_sender : &ch->used_receiver, 1);
    *known = atomic_load(sends ? &ch->used_receiver : &ch->used_sender) != 0;
    nccl_counted.connections += *known;
    whole = whole && *known;
  }
  return whole;
}

static void settle(const nccl_launch *launch) {
  if (launch->connects)
    nccl_count_late("a connection");
  nccl_counted.settled |= !launch->connects;
}

/* The next one that can go; it is no longer waiting. A launch passes another that lacks its peer,
 * but none of its own group. */
static nccl_launch *next_launch(void) {
  uint64_t stands = 0;
  for (nccl_launch **link = &waiting; *link != NULL; link = &(*link)->next) {
    nccl_launch *launch = *link;
    if (launch->group == stands || !connect(launch) || nccl_now_ns() < launch->comm->ready_ns) {
      stands = launch->group;
      continue;
    }
    settle(launch);
    *link = launch->next;
    return launch;
  }
  return NULL;
}

static void put(nccl_launch *launch) {
  const void *args[1 + 2 * NCCL_DOUBLE_MOST]; /* itself, and the addresses that it uses */
  size_t n = 1;
  args[0] = launch;
  for (const nccl_task *t = launch->tasks; t != NULL && n + 2 < sizeof args / sizeof args[0];
       t = t->next) {
    args[n++] = t->from;
    args[n++] = t->to;
  }
  cuda_double_meet(launch->tasks->stream, nccl_meet, args, n * sizeof args[0]);
}

void nccl_launch_some(void) {
  nccl_launch *launch = NULL;
  (void)pthread_mutex_lock(&nccl_lock);
  while (!putting && (launch = next_launch()) != NULL) {
    ncclComm_t comm = launch->comm;
    launch->begins_ns = nccl_now_ns() + 1000 * nccl_draw(nccl_option("DELAY_US", 200) + 1);
    ++comm->n_queued;
    comm->launch = NULL;
    putting = true;
    (void)pthread_mutex_unlock(&nccl_lock);
    put(launch);
    (void)pthread_mutex_lock(&nccl_lock);
    putting = false;
    if (comm->state == COMM_LAUNCHING)
      comm->state = COMM_READY;
  }
  (void)pthread_mutex_unlock(&nccl_lock);
}

bool nccl_launch_waits(void) {
  return waiting != NULL;
}

void nccl_launch_drop(ncclComm_t comm) {
  for (nccl_launch **link = &waiting; *link != NULL; link = &(*link)->next) {
    nccl_launch *launch = *link;
    if (launch->comm != comm)
      continue;
    *link = launch->next;
    cuda_double_expect(launch->tasks->stream, false);
    nccl_order_remove(launch);
    nccl_launch_free(launch);
    break;
  }
  comm->launch = NULL;
  while (putting) {
    (void)pthread_mutex_unlock(&nccl_lock);
    nccl_nap(20);
    (void)pthread_mutex_lock(&nccl_lock);
  }
}

/* ---- calls ---- */

static void need_memory(const char *what, const void *data, size_t n_bytes) {
  if (n_bytes > 0 && !cuda_double_is_there((uintptr_t)data, n_bytes))
    nccl_die("%s: %zu bytes at %p are not all memory of the device", what, n_bytes, data);
}

/* `own`: where in the larger one of two lists the smaller one may lie; else they are apart. */
static void need_apart(const char *what, const char *from, size_t n_from, const char *to,
                       size_t n_to, size_t own) {
  if (n_from == 0 || n_to == 0)
    return;
  const bool apart = from + n_from <= to || to + n_to <= from;
  const bool same = n_from < n_to ? from == to + own : to == from + own;
  if (!apart && !same)
    nccl_die("%s: what is read and what is written overlap", what);
}

static int check_task(const nccl_task *t) {
  const ncclComm_t comm = t->comm;
  const nccl_header *h = &t->header;
  const char *what = nccl_kind_name(h->kind);
  if (h->root < 0 || h->root >= comm->n_ranks) {
    return nccl_fail(NCCL_DOUBLE_INVALID_ARGUMENT,
                     "%s : invalid root/peer %d (root should be in the 0..%d range)", what, h->root,
                     comm->n_ranks - 1);
  }
  if (nccl_size_of(h->type) == 0)
    return nccl_fail(NCCL_DOUBLE_INVALID_ARGUMENT, "%s : invalid type %d", what, h->type);
  const bool whole = h->type < NCCL_DOUBLE_FLOAT16;
  if (h->op < 0 || h->op > (whole ? NCCL_DOUBLE_PROD : NCCL_DOUBLE_MIN))
    nccl_die("%s: there is no operation %d of %s here", what, h->op, nccl_type_name(h->type));
  if (t->stream == NULL)
    nccl_die("%s: the default stream", what);
  return NCCL_DOUBLE_SUCCESS;
}

static void check_task_memory(const nccl_task *t) {
  const nccl_header *h = &t->header;
  const size_t n = (size_t)h->count * nccl_size_of(h->type);
  const size_t n_ranks = (size_t)t->comm->n_ranks, rank = (size_t)t->comm->rank;
  const bool is_root = h->root == t->comm->rank;
  size_t n_from = n, n_to = n, own = 0;
  if (h->kind == TASK_ALL_GATHER)
    n_to = n * n_ranks;
  if (h->kind == TASK_REDUCE_SCATTER)
    n_to = n / n_ranks; /* its count is that of all parts */
  if (n_from != n_to)
    own = rank * (n_from < n_to ? n_from : n_to);
  if (h->kind == TASK_RECV || (h->kind == TASK_BROADCAST && !is_root))
    n_from = 0;
  if (h->kind == TASK_SEND || (h->kind == TASK_REDUCE && !is_root))
    n_to = 0;
  need_memory(nccl_kind_name(h->kind), t->from, n_from);
  need_memory(nccl_kind_name(h->kind), t->to, n_to);
  need_apart(nccl_kind_name(h->kind), t->from, n_from, t->to, n_to, own);
}

static int give(const nccl_task *task) {
  (void)ncclGroupStart();
  (void)pthread_mutex_lock(&nccl_lock);
  int result = nccl_check(task->comm, nccl_kind_name(task->header.kind));
  (void)pthread_mutex_unlock(&nccl_lock);
  if (result == NCCL_DOUBLE_SUCCESS)
    result = check_task(task);
  if (result == NCCL_DOUBLE_SUCCESS) {
    check_task_memory(task);
    nccl_task *copy = malloc(sizeof *copy);
    if (copy == NULL)
      nccl_die("no memory");
    *copy = *task;
    *group.last = copy;
    group.last = &copy->next;
  }
  if (group.error == NCCL_DOUBLE_SUCCESS)
    group.error = result;
  const int ended = ncclGroupEnd();
  return result != NCCL_DOUBLE_SUCCESS ? result : ended;
}

int ncclSend(const void *from, size_t count, int type, int peer, ncclComm_t comm,
             struct CUstream_st *stream) {
  return give(&(nccl_task){.comm = comm,
                           .stream = stream,
                           .from = from,
                           .header = {count, TASK_SEND, type, NCCL_DOUBLE_SUM, peer}});
}

int ncclRecv(void *to, size_t count, int type, int peer, ncclComm_t comm,
             struct CUstream_st *stream) {
  return give(&(nccl_task){.comm = comm,
                           .stream = stream,
                           .to = to,
                           .header = {count, TASK_RECV, type, NCCL_DOUBLE_SUM, peer}});
}

static int collect(const void *from, void *to, nccl_header header, ncclComm_t comm,
                   struct CUstream_st *stream) {
  return give(
      &(nccl_task){.comm = comm, .stream = stream, .from = from, .to = to, .header = header});
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, ncclComm_t comm,
                  struct CUstream_st *stream) {
  return collect(from, to, (nccl_header){count, TASK_ALL_REDUCE, type, op, 0}, comm, stream);
}

/* Inside, its count is that of all parts. */
int ncclReduceScatter(const void *from, void *to, size_t count, int type, int op, ncclComm_t comm,
                      struct CUstream_st *stream) {
  const nccl_header header = {count * (size_t)comm->n_ranks, TASK_REDUCE_SCATTER, type, op, 0};
  return collect(from, to, header, comm, stream);
}

int ncclAllGather(const void *from, void *to, size_t count, int type, ncclComm_t comm,
                  struct CUstream_st *stream) {
  const nccl_header header = {count, TASK_ALL_GATHER, type, NCCL_DOUBLE_SUM, 0};
  return collect(from, to, header, comm, stream);
}

int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, ncclComm_t comm,
                  struct CUstream_st *stream) {
  const nccl_header header = {count, TASK_BROADCAST, type, NCCL_DOUBLE_SUM, root};
  return collect(from, to, header, comm, stream);
}

int ncclReduce(const void *from, void *to, size_t count, int type, int op, int root,
               ncclComm_t comm, struct CUstream_st *stream) {
  return collect(from, to, (nccl_header){count, TASK_REDUCE, type, op, root}, comm, stream);
}
