/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend as a guest of its process and of the driver: contexts, forks, memory, late
 * errors, order between queues. On the doubles, which hold it to the driver's rules.
 * ctest: always */
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "rig.h"

static void test_contexts_and_memory_are_given_back(void) {
  ct_backend b;
  ct_gather g;
  opipe_device *device = NULL;
  opipe_queue *queue = NULL;
  opipe_event *event = NULL;
  CUcontext own = NULL, popped = NULL;
  cuda_double_facts before, facts;
  opipe_device_usage usage = {.struct_size = (uint32_t)sizeof usage};
  uint64_t live = 0;
  CT_OPEN(&b);
  const opipe_backend *t = b.base.table;
  OPI_ASSERT_INT(b.driver.init(0), CUDA_OK);
  OPI_ASSERT_INT(b.driver.context_retain(&own, 1), CUDA_OK);
  OPI_ASSERT_INT(b.driver.context_push(own), CUDA_OK); /* the host's own, of another device */
  b.look(&before);
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, NULL, 1, 0, &device, &err), &err);
  OPI_ASSERT_OK_FATAL(t->queue_open(device, &queue, &err), &err);
  OPI_ASSERT_OK_FATAL(t->event_create(device, &event, &err), &err);
  ct_make_gather(t, device, &g);
  OPI_ASSERT_OK(t->run(g.binding, queue, NULL, 0, &err), &err);
  OPI_ASSERT_OK(t->event_record(queue, event, &err), &err);
  b.look(&facts);
  OPI_ASSERT_INT(facts.contexts, before.contexts);
  OPI_ASSERT_OK(t->device_usage(device, &usage, &err), &err);
  for (uint32_t kind = 0; kind < OPIPE_BUFFER_KINDS; ++kind)
    live += usage.live_bytes[kind];
  OPI_ASSERT_INT(live, facts.live_bytes); /* every byte of the device is counted */
  (void)t->event_sync(event, LONG_NS, &err);
  t->queue_close(queue);
  t->event_destroy(event);
  ct_free_gather(t, &g);
  t->device_close(device);
  b.look(&facts);
  OPI_ASSERT_INT(facts.live_blocks, 0);
  OPI_ASSERT_INT(facts.live_pinned, 0);
  OPI_ASSERT_INT(facts.queued, 0);
  OPI_ASSERT_INT(facts.retained, before.retained);
  OPI_ASSERT_INT(b.driver.context_pop(&popped), CUDA_OK);
  OPI_ASSERT(popped == own);
  (void)b.driver.context_release(1);
  bt_close(&b.base);
}

static void test_openings_of_one_gpu_have_their_own_caps(void) {
  ct_backend b;
  opipe_device *devices[2] = {NULL};
  opipe_buffer *buffers[2] = {NULL}, *more = NULL;
  CT_OPEN(&b);
  const opipe_backend *t = b.base.table;
  for (int i = 0; i < 2; ++i) {
    OPI_ASSERT_OK_FATAL(bt_device(&b.base, NULL, 1, 4096, &devices[i], &err), &err);
    OPI_ASSERT_OK(t->buffer_alloc(devices[i], 4096, OPIPE_BUFFER_ARENA, &buffers[i], &err), &err);
  }
  OPI_ASSERT_ERROR(t->buffer_alloc(devices[0], 1, OPIPE_BUFFER_ARENA, &more, &err), OPIPE_E_LIMIT,
                   &err, "4096 of the device's 4096 bytes");
  OPI_ASSERT_ERROR(t->buffer_host(buffers[0], (void **)&more, &err), OPIPE_E_UNSUPPORTED, &err,
                   "no address on the host");
  for (int i = 0; i < 2; ++i) {
    t->buffer_free(buffers[i]);
    t->device_close(devices[i]);
  }
  OPI_ASSERT_ERROR(bt_device(&b.base, "tf32=2", 1, 0, &devices[0], &err), OPIPE_E_INVALID, &err,
                   "tf32=2");
  OPI_ASSERT_ERROR(bt_device(&b.base, "few_rows=9", 1, 0, &devices[0], &err), OPIPE_E_INVALID, &err,
                   "few_rows=9 (0 to 8)");
  OPI_ASSERT_ERROR(bt_device(&b.base, "pad=63", 1, 0, &devices[0], &err), OPIPE_E_INVALID, &err,
                   "pad=63 (0 to 62)");
  OPI_ASSERT_ERROR(bt_device(&b.base, "pad_mib=0", 1, 0, &devices[0], &err), OPIPE_E_INVALID, &err,
                   "pad_mib=0 (1 to 4096)");
  OPI_ASSERT_ERROR(bt_device(&b.base, "padding=1", 1, 0, &devices[0], &err), OPIPE_E_INVALID, &err,
                   "padding");
  bt_close(&b.base);
}

/* Memory that the GPU does not have, though the cap allows it. */
static void test_memory_that_is_not_there(void) {
  ct_backend b;
  opipe_device *device = NULL;
  opipe_buffer *buffer = NULL;
  CT_OPEN(&b);
  const opipe_backend *t = b.base.table;
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, NULL, 1, UINT64_C(1) << 40, &device, &err), &err);
  OPI_ASSERT_ERROR(t->buffer_alloc(device, UINT64_C(1) << 35, OPIPE_BUFFER_ARENA, &buffer, &err),
                   OPIPE_E_NOMEM, &err, "CUDA_ERROR_OUT_OF_MEMORY");
  OPI_ASSERT_INT(err.domain, OPIPE_DOMAIN_CUDA);
  OPI_ASSERT_OK(t->buffer_alloc(device, 4096, OPIPE_BUFFER_ARENA, &buffer, &err), &err);
  t->buffer_free(buffer);
  t->device_close(device);
  bt_close(&b.base);
}

static void test_a_forked_child_is_refused(void) {
  ct_backend b;
  opipe_device *device = NULL;
  opipe_buffer *buffer = NULL;
  CT_OPEN(&b);
  const opipe_backend *t = b.base.table;
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, NULL, 1, 0, &device, &err), &err);
  const pid_t child = fork();
  if (child == 0) {
    uint32_t n = 0;
    const bool refused =
        t->buffer_alloc(device, 64, OPIPE_BUFFER_ARENA, &buffer, &err) == OPIPE_E_STATE &&
        strstr(err.message, "another process") != NULL &&
        t->device_count(b.base.self, &n, &err) == OPIPE_E_STATE;
    _exit(refused ? 0 : 1);
  }
  int status = 1;
  OPI_ASSERT_FATAL(child > 0 && waitpid(child, &status, 0) == child);
  OPI_ASSERT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  t->device_close(device);
  bt_close(&b.base);
}

/* ---- runs ---- */

/* An index outside is told once, with node and number, and the next run is not its heir. */
static void test_an_index_outside_is_told_with_its_node(void) {
  static const int64_t bad[CT_ROWS] = {0, 1, 4, 2, 3}, good[CT_ROWS] = {3, -1, 0, 1, -4};
  static const float wanted[15] = {30, 31, 32, 30, 31, 32, 0, 1, 2, 10, 11, 12, 0, 1, 2};
  rig r;
  float rows[15];
  OPEN_RIG(r);
  gather(&r, bad);
  OPI_ASSERT_OK(r.t->event_record(r.queues[0], r.events[0], &err), &err);
  gather(&r, good);
  OPI_ASSERT_OK(r.t->read(r.queues[0], rows, &r.g.rows, &err), &err);
  OPI_ASSERT_OK(r.t->event_record(r.queues[0], r.events[1], &err), &err);
  OPI_ASSERT_OK(r.t->event_sync(r.events[1], LONG_NS, &err), &err);
  OPI_ASSERT_BITS(rows, wanted, 15, OPIPE_FLOAT);
  for (int twice = 0; twice < 2; ++twice) {
    OPI_ASSERT_ERROR(r.t->event_poll(r.events[0], &err), OPIPE_E_INVALID, &err,
                     "node 'tokens': index 4 is outside [-4, 4)");
  }
  OPI_ASSERT_OK(r.t->event_record(r.queues[0], r.events[0], &err), &err);
  OPI_ASSERT_OK(r.t->event_sync(r.events[0], LONG_NS, &err), &err);
  close_rig(&r);
}

/* Queue 1 overwrites what queue 0 reads, behind an event: however the doubles order the rest. */
static void test_queues_wait_for_each_other(void) {
  rig r;
  float before[15], after[15];
  OPEN_RIG(r);
  for (uint64_t i = 0; i < 40; ++i) {
    const int64_t first[CT_ROWS] = {0, 1, 2, 3, 0}, second[CT_ROWS] = {3, 2, 1, 0, 3};
    float host_first[15], host_second[15];
    for (int k = 0; k < 15; ++k) {
      host_first[k] = ct_table[first[k / 3] * 3 + k % 3];
      host_second[k] = ct_table[second[k / 3] * 3 + k % 3];
    }
    gather(&r, first);
    OPI_ASSERT_OK(r.t->read(r.queues[0], before, &r.g.rows, &err), &err);
    OPI_ASSERT_OK(r.t->event_record(r.queues[0], r.events[0], &err), &err);
    OPI_ASSERT_OK(r.t->event_wait(r.queues[1], r.events[0], &err), &err);
    OPI_ASSERT_OK(r.t->write(r.queues[1], &r.g.ids, second, &err), &err);
    OPI_ASSERT_OK(r.t->run(r.g.binding, r.queues[1], NULL, 0, &err), &err);
    OPI_ASSERT_OK(r.t->event_record(r.queues[1], r.events[1], &err), &err);
    OPI_ASSERT_OK(r.t->event_wait(r.queues[0], r.events[1], &err), &err);
    OPI_ASSERT_OK(r.t->read(r.queues[0], after, &r.g.rows, &err), &err);
    OPI_ASSERT_OK(r.t->event_record(r.queues[0], r.events[2], &err), &err);
    OPI_ASSERT_OK(r.t->event_sync(r.events[2], LONG_NS, &err), &err);
    OPI_ASSERT_BITS(before, host_first, 15, OPIPE_FLOAT);
    OPI_ASSERT_BITS(after, host_second, 15, OPIPE_FLOAT);
  }
  close_rig(&r);
}

static void test_queueing_does_not_wait(void) {
  static const int64_t ids[CT_ROWS] = {0, 1, 2, 3, 0};
  rig r;
  cuda_double_facts before, after;
  void *pinned = NULL;
  OPEN_RIG(r);
  OPI_ASSERT_OK_FATAL(r.t->host_alloc(r.device, sizeof ids, &pinned, &err), &err);
  memcpy(pinned, ids, sizeof ids);
  r.b.look(&before);
  for (int i = 0; i < 20; ++i) {
    gather(&r, pinned);
    OPI_ASSERT_OK(r.t->event_record(r.queues[0], r.events[i % 3], &err), &err);
    (void)r.t->event_poll(r.events[i % 3], &err);
  }
  r.b.look(&after);
  OPI_ASSERT_INT(after.waits, before.waits);
  OPI_ASSERT_INT(after.pageable, before.pageable);
  OPI_ASSERT_OK(r.t->event_sync(r.events[19 % 3], LONG_NS, &err), &err);
  r.t->host_free(r.device, pinned);
  close_rig(&r);
}

/* With graphs=1 a run's steps are one launch, whose reports and bits are those of single ones. */
static void test_a_graph_is_one_launch(void) {
  static const int64_t good[CT_ROWS] = {3, -1, 0, 1, -4}, bad[CT_ROWS] = {0, 1, 4, 2, 3};
  static const float wanted[15] = {30, 31, 32, 30, 31, 32, 0, 1, 2, 10, 11, 12, 0, 1, 2};
  rig r;
  cuda_double_facts before, after;
  float rows[15];
  if (!open_rig_with(&r, "graphs=1"))
    OPI_SKIP("%s", CT_WHY);
  r.b.look(&before);
  OPI_ASSERT_INT(before.live_graphs, 1);
  for (int i = 0; i < 3; ++i) {
    gather(&r, bad);
    OPI_ASSERT_OK(r.t->event_record(r.queues[0], r.events[0], &err), &err);
    gather(&r, good);
    OPI_ASSERT_OK(r.t->read(r.queues[0], rows, &r.g.rows, &err), &err);
    OPI_ASSERT_OK(r.t->event_record(r.queues[0], r.events[1], &err), &err);
    OPI_ASSERT_OK(r.t->event_sync(r.events[1], LONG_NS, &err), &err);
    OPI_ASSERT_BITS(rows, wanted, 15, OPIPE_FLOAT);
    OPI_ASSERT_ERROR(r.t->event_poll(r.events[0], &err), OPIPE_E_INVALID, &err,
                     "node 'tokens': index 4 is outside [-4, 4)");
  }
  r.b.look(&after);
  OPI_ASSERT_INT(after.graph_launches, before.graph_launches + 6);
  OPI_ASSERT_INT(after.launches,
                 before.launches + 6 + 6); /* reports, and what events take of them */
  OPI_ASSERT_INT(after.waits, before.waits);
  r.t->binding_free(r.g.binding);
  r.g.binding = NULL;
  r.b.look(&after);
  OPI_ASSERT_INT(after.live_graphs, 0);
  close_rig(&r);
}

static void test_copies_may_overlap(void) {
  enum { N = 1000, BY = 96 };
  rig r;
  opipe_buffer *buffer = NULL;
  unsigned char data[N + BY], back[N + BY];
  OPEN_RIG(r);
  OPI_ASSERT_OK_FATAL(r.t->buffer_alloc(r.device, N + BY, OPIPE_BUFFER_STAGING, &buffer, &err),
                      &err);
  const opipe_region all = {buffer, 0, N + BY}, low = {buffer, 0, N}, high = {buffer, BY, N};
  for (int up = 0; up < 2; ++up) {
    for (int i = 0; i < N + BY; ++i)
      data[i] = (unsigned char)(i * 7 + i / 256);
    OPI_ASSERT_OK(r.t->write(r.queues[0], &all, data, &err), &err);
    OPI_ASSERT_OK(r.t->copy(r.queues[0], up ? &high : &low, up ? &low : &high, &err), &err);
    OPI_ASSERT_OK(r.t->read(r.queues[0], back, &all, &err), &err);
    OPI_ASSERT_OK(r.t->event_record(r.queues[0], r.events[0], &err), &err);
    OPI_ASSERT_OK(r.t->event_sync(r.events[0], LONG_NS, &err), &err);
    memmove(up ? data + BY : data, up ? data : data + BY, N);
    OPI_ASSERT(memcmp(data, back, sizeof data) == 0);
  }
  r.t->buffer_free(buffer);
  close_rig(&r);
}

/* A queue whose work has come to a stop: calls on it are refused, closing it does not wait, other
 * queues go on; what it held is given back with the opening once its work has ended. */
static void test_a_queue_that_is_given_up(void) {
  static const int64_t ids[CT_ROWS] = {0, 1, 2, 3, 0};
  rig r;
  uint64_t stream = 0;
  void *pinned = NULL;
  float rows[15];
  opipe_queue *stuck = NULL;
  OPEN_RIG(r);
  void (*hold)(CUstream stream, bool hold) = NULL;
  *(void **)(void *)&hold = r.b.double_hold;
  OPI_ASSERT_OK_FATAL(r.t->queue_open(r.device, &stuck, &err), &err);
  OPI_ASSERT_OK(r.t->native(r.device, OPIPE_NATIVE_QUEUE, stuck, &stream, &err), &err);
  OPI_ASSERT_OK_FATAL(r.t->host_alloc(r.device, sizeof ids, &pinned, &err), &err);
  memcpy(pinned, ids, sizeof ids);
  hold((CUstream)(uintptr_t)stream, true);
  OPI_ASSERT_OK(r.t->write(stuck, &r.g.ids, pinned, &err), &err);
  OPI_ASSERT_OK(r.t->event_record(stuck, r.events[2], &err), &err);
  OPI_ASSERT_ERROR(r.t->event_sync(r.events[2], 1000000, &err), OPIPE_E_TIMEOUT, &err,
                   "not complete");
  OPI_ASSERT_OK(r.t->queue_abort(stuck, &err), &err);
  OPI_ASSERT_ERROR(r.t->event_record(stuck, r.events[1], &err), OPIPE_E_CANCELLED, &err,
                   "the queue was given up");
  OPI_ASSERT_ERROR(r.t->run(r.g.binding, stuck, NULL, 0, &err), OPIPE_E_CANCELLED, &err,
                   "the queue was given up");
  r.t->queue_close(stuck); /* the double ends the process where this waits */
  gather(&r, ids);
  OPI_ASSERT_OK(r.t->read(r.queues[0], rows, &r.g.rows, &err), &err);
  OPI_ASSERT_OK(r.t->event_record(r.queues[0], r.events[0], &err), &err);
  OPI_ASSERT_OK(r.t->event_sync(r.events[0], LONG_NS, &err), &err);
  OPI_ASSERT_BITS(rows, ct_table, 12, OPIPE_FLOAT);
  hold((CUstream)(uintptr_t)stream, false);
  OPI_ASSERT_OK(r.t->event_sync(r.events[2], LONG_NS, &err), &err);
  r.t->host_free(r.device, pinned);
  close_rig(&r);
}

/* Nothing of the driver's is left, whatever was imported or pinned. */
static void test_what_is_shared_is_given_back(void) {
  rig r;
  cuda_double_facts before, after;
  opipe_buffer *view = NULL;
  opipe_event *event = NULL;
  void *data = NULL;
  uint64_t native = 0;
  OPEN_RIG(r);
  OPI_ASSERT_OK(r.t->native(r.device, OPIPE_NATIVE_BUFFER, r.g.memory, &native, &err), &err);
  r.b.look(&before);
  OPI_ASSERT_OK(r.t->buffer_import(r.device, native, 256, &view, &err), &err);
  OPI_ASSERT_OK(r.t->native(r.device, OPIPE_NATIVE_EVENT, r.events[0], &native, &err), &err);
  OPI_ASSERT_OK(r.t->event_import(r.device, native, &event, &err), &err);
  OPI_ASSERT_ERROR(r.t->native(r.device, OPIPE_NATIVE_EVENT, event, &native, &err), OPIPE_E_STATE,
                   &err, "imported");
  OPI_ASSERT_OK(r.t->host_alloc(r.device, 1000, &data, &err), &err);
  r.b.look(&after);
  OPI_ASSERT_INT(after.live_pinned, before.live_pinned + 1);
  OPI_ASSERT_INT(after.live_blocks, before.live_blocks);
  r.t->host_free(r.device, data);
  r.t->event_destroy(event);
  r.t->buffer_free(view);
  r.b.look(&after);
  OPI_ASSERT_INT(after.live_pinned, before.live_pinned);
  OPI_ASSERT_INT(after.live_blocks, before.live_blocks);
  close_rig(&r);
}

typedef struct user {
  rig *r;
  pthread_t thread;
  bool failed;
} user;

static void *use_words(void *ctx) {
  enum { ROUNDS = 600, EVENTS = 8 };
  user *u = ctx;
  const rig *r = u->r;
  opipe_error why = OPIPE_ERROR_INIT;
  for (int i = 0; i < ROUNDS && !u->failed; ++i) {
    opipe_event *events[EVENTS] = {NULL};
    void *data = NULL;
    for (int k = 0; k < EVENTS; ++k)
      u->failed |= r->t->event_create(r->device, &events[k], &why) < 0;
    u->failed |= r->t->host_alloc(r->device, 64, &data, &why) < 0;
    r->t->host_free(r->device, data);
    for (int k = 0; k < EVENTS; ++k)
      r->t->event_destroy(events[k]);
  }
  return NULL;
}

/* Whoever submits makes events for ranks, which make their own meanwhile. */
static void test_threads_share_an_opening(void) {
  enum { THREADS = 4 };
  rig r;
  user users[THREADS];
  OPEN_RIG(r);
  for (int i = 0; i < THREADS; ++i) {
    users[i] = (user){.r = &r};
    OPI_ASSERT_FATAL(pthread_create(&users[i].thread, NULL, use_words, &users[i]) == 0);
  }
  for (int i = 0; i < THREADS; ++i) {
    (void)pthread_join(users[i].thread, NULL);
    OPI_ASSERT(!users[i].failed);
  }
  close_rig(&r);
}

/* Streams and events of the caller's thread would be another one's on a rank's. */
static void test_the_stream_of_a_thread_is_no_queue(void) {
  rig r;
  opipe_queue *queue = NULL;
  OPEN_RIG(r);
  OPI_ASSERT_ERROR(r.t->queue_import(r.device, 2, &queue, &err), OPIPE_E_INVALID, &err,
                   "CU_STREAM_PER_THREAD");
  OPI_ASSERT_OK(r.t->queue_import(r.device, 0, &queue, &err), &err);
  r.t->queue_close(queue);
  close_rig(&r);
}

/* The vendor's names are up to 64 characters and more. */
static void test_a_slice_with_a_long_name_is_one(void) {
  ct_backend b;
  opipe_device_info info = {.struct_size = (uint32_t)sizeof info};
  (void)setenv("OPIPE_CUDA_DOUBLE_NAME", "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
               1);
  (void)setenv("OPIPE_CUDA_DOUBLE_SLICE", "0", 1);
  const bool is_open = ct_open(&b);
  if (is_open)
    OPI_ASSERT_OK(b.base.table->device_query(b.base.self, 0, &info, &err), &err);
  (void)unsetenv("OPIPE_CUDA_DOUBLE_NAME");
  (void)unsetenv("OPIPE_CUDA_DOUBLE_SLICE");
  if (!is_open)
    OPI_SKIP("%s", CT_WHY);
  OPI_ASSERT_INT(info.flags, OPIPE_DEVICE_ALONE | OPIPE_DEVICE_HANDS_ON);
  OPI_ASSERT(strncmp(info.uuid, "MIG-d0", 6) == 0);
  OPI_ASSERT_STR(info.name, "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation (sm_90)");
  bt_close(&b.base);
}

/* Steps that cannot be captured are a launch each. */
static void test_what_cannot_be_captured_is_launched(void) {
  static const int64_t good[CT_ROWS] = {3, -1, 0, 1, -4};
  static const float wanted[15] = {30, 31, 32, 30, 31, 32, 0, 1, 2, 10, 11, 12, 0, 1, 2};
  rig r;
  cuda_double_facts facts;
  float rows[15];
  (void)setenv("OPIPE_CUDA_DOUBLE_CAPTURE", "0", 1);
  const bool is_open = open_rig_with(&r, "graphs=1");
  (void)unsetenv("OPIPE_CUDA_DOUBLE_CAPTURE");
  if (!is_open)
    OPI_SKIP("%s", CT_WHY);
  r.b.look(&facts);
  OPI_ASSERT_INT(facts.live_graphs, 0);
  gather(&r, good);
  OPI_ASSERT_OK(r.t->read(r.queues[0], rows, &r.g.rows, &err), &err);
  OPI_ASSERT_OK(r.t->event_record(r.queues[0], r.events[1], &err), &err);
  OPI_ASSERT_OK(r.t->event_sync(r.events[1], LONG_NS, &err), &err);
  OPI_ASSERT_BITS(rows, wanted, 15, OPIPE_FLOAT);
  close_rig(&r);
}

/* By a short distance: not a call for every piece that does not overlap. */
static void test_long_copies_may_overlap_closely(void) {
  enum { N = 9 << 20, BY = 256 };
  rig r;
  cuda_double_facts before, after;
  opipe_buffer *buffer = NULL;
  unsigned char *data = malloc(N + BY), *back = malloc(N + BY);
  OPI_ASSERT_FATAL(data != NULL && back != NULL);
  if (!open_rig(&r)) {
    free(data);
    free(back);
    OPI_SKIP("%s", CT_WHY);
  }
  OPI_ASSERT_OK_FATAL(r.t->buffer_alloc(r.device, N + BY, OPIPE_BUFFER_STAGING, &buffer, &err),
                      &err);
  const opipe_region all = {buffer, 0, N + BY}, low = {buffer, 0, N}, high = {buffer, BY, N};
  for (int up = 0; up < 2; ++up) {
    for (int i = 0; i < N + BY; ++i)
      data[i] = (unsigned char)(i * 7 + i / 256 + i / 65536);
    OPI_ASSERT_OK(r.t->write(r.queues[0], &all, data, &err), &err);
    r.b.look(&before);
    OPI_ASSERT_OK(r.t->copy(r.queues[0], up ? &high : &low, up ? &low : &high, &err), &err);
    r.b.look(&after);
    OPI_ASSERT(after.copies - before.copies <= 16);
    OPI_ASSERT_OK(r.t->read(r.queues[0], back, &all, &err), &err);
    OPI_ASSERT_OK(r.t->event_record(r.queues[0], r.events[0], &err), &err);
    OPI_ASSERT_OK(r.t->event_sync(r.events[0], LONG_NS, &err), &err);
    memmove(up ? data + BY : data, up ? data : data + BY, N);
    OPI_ASSERT(memcmp(data, back, N + BY) == 0);
  }
  r.t->buffer_free(buffer);
  close_rig(&r);
  r.b.look(&after);
  OPI_ASSERT_INT(after.live_blocks, 0);
  free(data);
  free(back);
}

/* In a child: a lost context stays lost. */
static int lose_context(void) {
  static const int64_t ids[CT_ROWS] = {0, 1, 2, 3, 0};
  rig r;
  opipe_device *device = NULL;
  (void)setenv("OPIPE_CUDA_DOUBLE_FAULT", "4", 1);
  if (!open_rig(&r))
    return 77;
  opipe_status status = OPIPE_OK;
  for (int i = 0; i < 4 && status >= 0; ++i) {
    status = r.t->write(r.queues[0], &r.g.ids, ids, &err);
    if (status >= 0)
      status = r.t->run(r.g.binding, r.queues[0], NULL, 0, &err);
    if (status >= 0)
      status = r.t->event_record(r.queues[0], r.events[0], &err);
    if (status >= 0)
      status = r.t->event_sync(r.events[0], LONG_NS, &err);
  }
  const bool named = status == OPIPE_E_DEVICE && err.native == CUDA_ILLEGAL_ADDRESS &&
                     strstr(err.message, "in run 1 of the queue") != NULL &&
                     strstr(err.message, "context is lost, restart") != NULL;
  const bool again = r.t->event_poll(r.events[0], &err) == OPIPE_E_DEVICE &&
                     strstr(err.message, "context is lost, restart") != NULL;
  const bool refused = bt_device(&r.b.base, NULL, 1, 0, &device, &err) == OPIPE_E_DEVICE &&
                       strstr(err.message, "context is lost, restart") != NULL;
  close_rig(&r); /* does not hang */
  return named && again && refused ? 0 : 1;
}

static void test_a_lost_context_stays_lost(void) {
  int status = 1;
  (void)fflush(NULL);
  const pid_t child = fork();
  if (child == 0)
    _exit(lose_context());
  OPI_ASSERT_FATAL(child > 0 && waitpid(child, &status, 0) == child);
  OPI_ASSERT(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77));
}

/* First those that must not find an initialised driver: after fork there is none. */
OPI_TEST_MAIN("cuda device", OPI_TEST(test_a_lost_context_stays_lost),
              OPI_TEST(test_contexts_and_memory_are_given_back),
              OPI_TEST(test_openings_of_one_gpu_have_their_own_caps),
              OPI_TEST(test_memory_that_is_not_there), OPI_TEST(test_a_forked_child_is_refused),
              OPI_TEST(test_an_index_outside_is_told_with_its_node),
              OPI_TEST(test_queues_wait_for_each_other), OPI_TEST(test_queueing_does_not_wait),
              OPI_TEST(test_a_graph_is_one_launch), OPI_TEST(test_copies_may_overlap),
              OPI_TEST(test_a_queue_that_is_given_up), OPI_TEST(test_what_is_shared_is_given_back),
              OPI_TEST(test_threads_share_an_opening),
              OPI_TEST(test_the_stream_of_a_thread_is_no_queue),
              OPI_TEST(test_a_slice_with_a_long_name_is_one),
              OPI_TEST(test_what_cannot_be_captured_is_launched),
              OPI_TEST(test_long_copies_may_overlap_closely))
