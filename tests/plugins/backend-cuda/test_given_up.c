/* SPDX-License-Identifier: Apache-2.0 */
/* A queue that was given up and whose work never goes on: nothing that is closed, freed or
 * destroyed behind it waits. The doubles end the process where the driver would wait for it.
 */
#include "rig.h"

/* Handles of libraries that are closed while a queue is stuck stay the driver's: on purpose, so
 * LeakSanitizer is not asked. */
__attribute__((visibility("default"))) int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void) {
  return 1;
}

static void (*hold)(CUstream stream, bool hold);
static int n_kept; /* lines that tell of memory which stays the driver's */

static void listen(void *ctx, uint32_t level, const char *file, uint32_t line, const char *text) {
  (void)ctx, (void)level, (void)file, (void)line;
  n_kept += strstr(text, "bytes of its memory stay the driver's") != NULL;
}

/* A run and a record on queue 0, which stops: its event is to take over what the run reports. */
static CUstream stop_queue(rig *r) {
  static const int64_t ids[CT_ROWS] = {0, 1, 2, 3, 0};
  uint64_t stream = 0;
  *(void **)(void *)&hold = r->b.double_hold;
  OPI_ASSERT_OK_FATAL(r->t->native(r->device, OPIPE_NATIVE_QUEUE, r->queues[0], &stream, &err),
                      &err);
  OPI_ASSERT_OK(r->t->write(r->queues[0], &r->g.ids, ids, &err), &err); /* it waits: not pinned */
  hold((CUstream)(uintptr_t)stream, true);
  OPI_ASSERT_OK(r->t->run(r->g.binding, r->queues[0], NULL, 0, &err), &err);
  OPI_ASSERT_OK(r->t->event_record(r->queues[0], r->events[0], &err), &err);
  OPI_ASSERT_ERROR(r->t->event_sync(r->events[0], 1000000, &err), OPIPE_E_TIMEOUT, &err,
                   "not complete");
  OPI_ASSERT_OK(r->t->queue_abort(r->queues[0], &err), &err);
  return (CUstream)(uintptr_t)stream;
}

/* On the same GPU, beside work that has stopped. */
static void use_another_opening(rig *r, bool frees) {
  static const int64_t ids[CT_ROWS] = {0, 1, 2, 3, 0};
  rig other = {.b = r->b, .t = r->t};
  cuda_double_facts before, after;
  void *data = NULL;
  float rows[15];
  r->b.look(&before);
  OPI_ASSERT_OK_FATAL(bt_device(&r->b.base, NULL, 1, 0, &other.device, &err), &err);
  OPI_ASSERT_OK_FATAL(r->t->queue_open(other.device, &other.queues[0], &err), &err);
  OPI_ASSERT_OK_FATAL(r->t->event_create(other.device, &other.events[0], &err), &err);
  ct_make_gather(r->t, other.device, &other.g);
  gather(&other, ids);
  OPI_ASSERT_OK(r->t->read(other.queues[0], rows, &other.g.rows, &err), &err);
  OPI_ASSERT_OK(r->t->event_record(other.queues[0], other.events[0], &err), &err);
  OPI_ASSERT_OK(r->t->event_sync(other.events[0], LONG_NS, &err), &err);
  OPI_ASSERT_BITS(rows, ct_table, 12, OPIPE_FLOAT);
  OPI_ASSERT_OK(r->t->host_alloc(other.device, 100, &data, &err), &err);
  r->t->host_free(other.device, data);
  r->t->event_destroy(other.events[0]);
  r->t->queue_close(other.queues[0]);
  ct_free_gather(r->t, &other.g);
  r->t->device_close(other.device);
  r->b.look(&after);
  if (frees) {
    OPI_ASSERT(after.live_bytes <= before.live_bytes);
    OPI_ASSERT(after.live_pinned <= before.live_pinned);
  }
}

static void test_nothing_waits_behind_a_queue_that_was_given_up(void) {
  rig r;
  cuda_double_facts facts;
  OPEN_RIG(r);
  r.b.base.host.log = listen;
  n_kept = 0;
  const CUstream stream = stop_queue(&r);
  r.t->event_destroy(r.events[0]); /* as opi_ahead_close does, before the queue is closed */
  r.events[0] = NULL;
  use_another_opening(&r, false);
  r.t->queue_close(r.queues[0]);
  r.t->queue_close(r.queues[1]);
  for (int i = 1; i < 3; ++i)
    r.t->event_destroy(r.events[i]);
  ct_free_gather(r.t, &r.g);
  r.t->device_close(r.device);
  OPI_ASSERT_INT(n_kept, 2);      /* each opening tells once */
  use_another_opening(&r, false); /* the GPU goes on */
  r.b.look(&facts);
  OPI_ASSERT_INT(facts.retained, 1);
  hold(stream, false);
  for (int i = 0; i < 3; ++i) {
    n_kept = 0;
    use_another_opening(&r, i > 0);
  }
  OPI_ASSERT_INT(n_kept, 0);
  r.b.look(&facts);
  OPI_ASSERT_INT(facts.retained, 0); /* once it has ended all is given back again */
  OPI_ASSERT_INT(facts.queued, 0);
  bt_close(&r.b.base);
}

/* Given up, but its work has ended before the queue is closed. */
static void test_a_queue_that_went_on_is_closed_as_any_other(void) {
  rig r;
  cuda_double_facts before, after;
  ct_backend b;
  CT_OPEN(&b);
  b.look(&before);
  bt_close(&b.base);
  OPEN_RIG(r);
  const CUstream stream = stop_queue(&r);
  hold(stream, false);
  OPI_ASSERT_OK(r.t->event_sync(r.events[0], LONG_NS, &err), &err);
  close_rig(&r);
  r.b.look(&after);
  OPI_ASSERT_INT(after.live_pinned, before.live_pinned);
  OPI_ASSERT_INT(after.live_blocks, before.live_blocks);
  OPI_ASSERT_INT(after.retained, before.retained);
}

OPI_TEST_MAIN("cuda queues given up", OPI_TEST(test_a_queue_that_went_on_is_closed_as_any_other),
              OPI_TEST(test_nothing_waits_behind_a_queue_that_was_given_up))
