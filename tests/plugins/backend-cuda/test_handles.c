/* SPDX-License-Identifier: Apache-2.0 */
/* Handles of memory and events of another process: of one that has freed them or has died they are
 * refused by name, and the device goes on; a forked child opens none, and gives those of its parent
 * back without a call of the driver's. Other processes, one for each test, are forked before the
 * driver is opened here.
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rig.h"

enum { TESTS = 3, BYTES = 4096, SECONDS = 30 };
enum { NOTHING, THERE, FREE, FREED, END };

/* Shared by both processes. */
typedef struct desk {
  opipe_shared memory, event;
  _Atomic int state;
} desk;

typedef struct owner {
  desk *desk;
  pid_t pid;
} owner;

static void nap(void) {
  const struct timespec pause = {.tv_nsec = 100000};
  (void)nanosleep(&pause, NULL);
}

static void come_to(const desk *d, int state) {
  while (atomic_load(&d->state) < state)
    nap();
}

/* The other process: 0, or the number of what went wrong. */
static int own(desk *d) {
  static unsigned char bytes[BYTES];
  ct_backend b;
  opipe_device *device = NULL;
  opipe_queue *queue = NULL;
  opipe_buffer *buffer = NULL;
  opipe_event *event = NULL;
  opipe_error why = OPIPE_ERROR_INIT;
  memset(bytes, 0x5a, sizeof bytes);
  if (!ct_open(&b))
    return 1;
  const opipe_backend *t = b.base.table;
  const opipe_region all = {.n_bytes = BYTES};
  if (bt_device(&b.base, NULL, 1, 0, &device, &why) < 0 || t->queue_open(device, &queue, &why) < 0)
    return 2;
  if (t->buffer_alloc(device, BYTES, OPIPE_BUFFER_BOUNDARY, &buffer, &why) < 0)
    return 3;
  opipe_region region = all;
  region.buffer = buffer;
  if (t->buffer_share(buffer, &d->memory, &why) < 0 ||
      t->event_create_shared(device, &event, &d->event, &why) < 0)
    return 4;
  if (t->write(queue, &region, bytes, &why) < 0 || t->event_record(queue, event, &why) < 0 ||
      t->event_sync(event, LONG_NS, &why) < 0)
    return 5;
  atomic_store(&d->state, THERE);
  come_to(d, FREE);
  t->buffer_unshare(buffer, 1);
  t->buffer_free(buffer);
  t->event_destroy(event);
  atomic_store(&d->state, FREED);
  come_to(d, END);
  t->queue_close(queue);
  t->device_close(device);
  bt_close(&b.base);
  return 0;
}

/* Once the driver is opened here, a fork of this process could not open it. */
static void start(owner *o) {
  o->desk = mmap(NULL, sizeof *o->desk, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  OPI_ASSERT_FATAL(o->desk != MAP_FAILED);
  (void)fflush(NULL);
  o->pid = fork();
  if (o->pid == 0) {
    (void)alarm(SECONDS);
    _exit(own(o->desk));
  }
  OPI_ASSERT_FATAL(o->pid > 0);
}

/* The next process, which has shared its own. NULL, after a skip: this build has no doubles. */
static owner *next_owner(void) {
  static owner all[TESTS];
  static uint32_t n;
  int status = 0;
  if (access(opi_test_build("tests/cuda/libcuda.so.1"), R_OK) != 0)
    return NULL;
  for (uint32_t i = 0; i < TESTS && n == 0; ++i)
    start(&all[i]);
  owner *o = &all[n++];
  while (atomic_load(&o->desk->state) < THERE && waitpid(o->pid, &status, WNOHANG) == 0)
    nap();
  OPI_ASSERT_INT(status, 0);
  OPI_ASSERT_FATAL(atomic_load(&o->desk->state) == THERE);
  return o;
}

static void let_free(const owner *o) {
  atomic_store(&o->desk->state, FREE);
  come_to(o->desk, FREED);
}

/* Ends the other process, which frees its memory and events first; alive false: it has died. */
static void end(const owner *o, bool alive) {
  int status = 0;
  atomic_store(&o->desk->state, END);
  if (alive) {
    OPI_ASSERT(waitpid(o->pid, &status, 0) == o->pid);
    OPI_ASSERT_INT(status, 0);
  }
  OPI_ASSERT(munmap(o->desk, sizeof *o->desk) == 0);
}

static void open_both(rig *r, const owner *o, opipe_buffer **out_memory, opipe_event **out_event) {
  OPI_ASSERT_OK_FATAL(r->t->buffer_open(r->device, &o->desk->memory, BYTES, out_memory, &err),
                      &err);
  OPI_ASSERT_OK_FATAL(r->t->event_open(r->device, &o->desk->event, out_event, &err), &err);
}

/* The bytes are those that the other process has written, behind its event. */
static void use_both(rig *r, opipe_buffer *memory, opipe_event *event) {
  static unsigned char bytes[BYTES];
  const opipe_region all = {memory, 0, BYTES};
  size_t n = 0;
  memset(bytes, 0, sizeof bytes);
  OPI_ASSERT_OK_FATAL(r->t->event_wait(r->queues[0], event, &err), &err);
  OPI_ASSERT_OK_FATAL(r->t->read(r->queues[0], bytes, &all, &err), &err);
  OPI_ASSERT_OK_FATAL(r->t->event_record(r->queues[0], r->events[0], &err), &err);
  OPI_ASSERT_OK_FATAL(r->t->event_sync(r->events[0], LONG_NS, &err), &err);
  while (n < BYTES && bytes[n] == 0x5a)
    ++n;
  OPI_ASSERT_INT(n, BYTES);
}

/* Both are refused by the process's number, and the device goes on. */
static void expect_stale(rig *r, const owner *o) {
  static const int64_t ids[CT_ROWS] = {3, 0, 2, 1, 3};
  char who[64];
  opipe_buffer *memory = NULL;
  opipe_event *event = NULL;
  (void)snprintf(who, sizeof who, "open of process %d (freed there, or has it ended?)",
                 (int)o->pid);
  OPI_ASSERT_ERROR(r->t->buffer_open(r->device, &o->desk->memory, BYTES, &memory, &err),
                   OPIPE_E_DEVICE, &err, who);
  OPI_ASSERT(memory == NULL && strstr(err.message, "buffer_open") != NULL);
  OPI_ASSERT_ERROR(r->t->event_open(r->device, &o->desk->event, &event, &err), OPIPE_E_DEVICE, &err,
                   who);
  OPI_ASSERT(event == NULL && strstr(err.message, "event_open") != NULL);
  gather(r, ids);
  OPI_ASSERT_OK(r->t->event_record(r->queues[0], r->events[0], &err), &err);
  OPI_ASSERT_OK(r->t->event_sync(r->events[0], LONG_NS, &err), &err);
}

static void test_what_was_freed(void) {
  owner *o = next_owner();
  rig r;
  opipe_buffer *memory = NULL;
  opipe_event *event = NULL;
  if (o == NULL || !open_rig(&r))
    OPI_SKIP("%s", CT_WHY);
  open_both(&r, o, &memory, &event);
  use_both(&r, memory, event);
  r.t->buffer_free(memory);
  r.t->event_destroy(event);
  let_free(o);
  expect_stale(&r, o);
  close_rig(&r);
  end(o, true);
}

static void test_a_process_that_has_died(void) {
  owner *o = next_owner();
  rig r;
  if (o == NULL || !open_rig(&r))
    OPI_SKIP("%s", CT_WHY);
  OPI_ASSERT_FATAL(kill(o->pid, SIGKILL) == 0 && waitpid(o->pid, NULL, 0) == o->pid);
  expect_stale(&r, o);
  close_rig(&r);
  end(o, false);
}

/* Opened here, and lent from here. */
typedef struct held {
  opipe_buffer *theirs, *ours;
  opipe_event *their_event, *our_event;
  opipe_shared shared, shared_event;
} held;

static void give_back(const rig *r, const held *h) {
  r->t->buffer_free(h->theirs);
  r->t->event_destroy(h->their_event);
  r->t->buffer_unshare(h->ours, 1);
  r->t->buffer_free(h->ours);
  r->t->event_destroy(h->our_event);
}

static bool is_refused(opipe_status status) {
  return status == OPIPE_E_STATE && strstr(err.message, "does not work after fork") != NULL;
}

/* The number of what went wrong in a forked child; 0: nothing. */
static int be_child(const rig *r, const owner *o, const held *h) {
  cuda_double_facts facts;
  opipe_shared shared;
  opipe_buffer *memory = NULL;
  opipe_event *event = NULL;
  const opipe_backend *t = r->t;
  if (!is_refused(t->buffer_open(r->device, &o->desk->memory, BYTES, &memory, &err)) ||
      !is_refused(t->buffer_open(r->device, &h->shared, BYTES, &memory, &err)))
    return 1;
  if (!is_refused(t->event_open(r->device, &o->desk->event, &event, &err)) ||
      !is_refused(t->event_open(r->device, &h->shared_event, &event, &err)))
    return 2;
  if (!is_refused(t->buffer_share(h->ours, &shared, &err)) ||
      !is_refused(t->event_create_shared(r->device, &event, &shared, &err)))
    return 3;
  give_back(r, h);
  r->b.look(&facts);
  return facts.forked == 0 && memory == NULL && event == NULL ? 0 : 4;
}

static void test_a_forked_child(void) {
  owner *o = next_owner();
  rig r;
  held h = {.theirs = NULL};
  cuda_double_facts facts;
  int status = 1;
  if (o == NULL || !open_rig(&r))
    OPI_SKIP("%s", CT_WHY);
  open_both(&r, o, &h.theirs, &h.their_event);
  OPI_ASSERT_OK_FATAL(r.t->buffer_alloc(r.device, BYTES, OPIPE_BUFFER_BOUNDARY, &h.ours, &err),
                      &err);
  OPI_ASSERT_OK_FATAL(r.t->buffer_share(h.ours, &h.shared, &err), &err);
  OPI_ASSERT_OK_FATAL(r.t->event_create_shared(r.device, &h.our_event, &h.shared_event, &err),
                      &err);
  (void)fflush(NULL);
  const pid_t child = fork();
  if (child == 0)
    _exit(be_child(&r, o, &h));
  OPI_ASSERT_FATAL(child > 0 && waitpid(child, &status, 0) == child);
  OPI_ASSERT_INT(status, 0);
  use_both(&r, h.theirs, h.their_event); /* the child has taken nothing away */
  give_back(&r, &h);
  r.b.look(&facts);
  OPI_ASSERT(facts.opened == 0 && facts.events_opened == 0 && facts.exported == 0);
  close_rig(&r);
  let_free(o);
  end(o, true);
}

OPI_TEST_MAIN("cuda handles of other processes", OPI_TEST(test_what_was_freed),
              OPI_TEST(test_a_process_that_has_died), OPI_TEST(test_a_forked_child))
