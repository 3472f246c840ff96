/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel that faults while more is queued behind it: the first call that meets it names the run,
 * every later one says that the context is lost. Each case is a child of its own: a lost context
 * stays lost.
 * ctest: always */
#include <sys/wait.h>
#include <unistd.h>

#include "rig.h"

enum { SIDE = 16 };
static const int64_t ids[CT_ROWS] = {0, 1, 2, 3, 0};

/* Two runs that are known to be complete, then three that are queued; the third of all faults, in
 * its second kernel, and nobody has asked yet. */
static bool fault_in_run_3(rig *r) {
  uint64_t stream = 0;
  CUcontext context = NULL, popped = NULL;
  CUresult result = CUDA_NOT_READY;
  for (int i = 0; i < 2; ++i) {
    gather(r, ids);
    OPI_ASSERT_OK_FATAL(r->t->event_record(r->queues[0], r->events[0], &err), &err);
    OPI_ASSERT_OK_FATAL(r->t->event_sync(r->events[0], LONG_NS, &err), &err);
  }
  (void)setenv("OPIPE_CUDA_DOUBLE_FAULT", "2", 1);
  for (int i = 0; i < 3; ++i) { /* a write of ids, which are not pinned, would wait */
    OPI_ASSERT_OK_FATAL(r->t->run(r->g.binding, r->queues[0], NULL, 0, &err), &err);
    OPI_ASSERT_OK_FATAL(r->t->event_record(r->queues[0], r->events[i], &err), &err);
  }
  OPI_ASSERT_OK_FATAL(r->t->native(r->device, OPIPE_NATIVE_QUEUE, r->queues[0], &stream, &err),
                      &err);
  if (r->b.driver.context_retain(&context, 0) != CUDA_OK ||
      r->b.driver.context_push(context) != CUDA_OK)
    return false;
  while (result == CUDA_NOT_READY)
    result = r->b.driver.stream_query((CUstream)(uintptr_t)stream);
  (void)r->b.driver.context_pop(&popped);
  return result != CUDA_OK;
}

enum { RUN, RECORD, WRITE, READ, COPY, ZERO, WAIT, POLL, CALLS };

static opipe_status call(rig *r, int which) {
  static float rows[16];
  const opipe_region half = {r->g.memory, 0, 256}, other = {r->g.memory, 256, 256};
  switch (which) {
    case RUN:
      return r->t->run(r->g.binding, r->queues[0], NULL, 0, &err);
    case RECORD:
      return r->t->event_record(r->queues[0], r->events[0], &err);
    case WRITE:
      return r->t->write(r->queues[0], &r->g.ids, ids, &err);
    case READ:
      return r->t->read(r->queues[0], rows, &r->g.rows, &err);
    case COPY:
      return r->t->copy(r->queues[0], &half, &other, &err);
    case ZERO:
      return r->t->fill_zero(r->queues[0], &half, &err);
    case WAIT:
      return r->t->event_wait(r->queues[0], r->events[1], &err);
    default:
      return r->t->event_poll(r->events[2], &err);
  }
}

static bool says(opipe_status status, int native, const char *text) {
  const bool right = status == OPIPE_E_DEVICE && err.native == native &&
                     strstr(err.message, text) != NULL &&
                     strstr(err.message, "context is lost, restart the process") != NULL;
  if (!right)
    fprintf(stderr, "%d, native %d: %s\n", (int)status, (int)err.native, err.message);
  return right;
}

static bool is_lost_for_all(rig *r) {
  opipe_device *device = NULL;
  return says(r->t->event_poll(r->events[1], &err), 0, "event_poll") &&
         says(r->t->run(r->g.binding, r->queues[1], NULL, 0, &err), 0, "run") &&
         says(bt_device(&r->b.base, NULL, 1, 0, &device, &err), 0, "device_open");
}

static int name_the_run(int which) {
  rig r;
  if (!open_rig(&r))
    return 77;
  const bool right = fault_in_run_3(&r) &&
                     says(call(&r, which), CUDA_ILLEGAL_ADDRESS, "in run 3 of the queue") &&
                     strstr(err.message, "opipe_") == NULL && is_lost_for_all(&r);
  close_rig(&r);
  return right ? 0 : 1;
}

static int name_the_run_of_a_graph(int unused) {
  rig r;
  (void)unused;
  if (!open_rig_with(&r, "graphs=1"))
    return 77;
  const bool right = fault_in_run_3(&r) &&
                     says(call(&r, RUN), CUDA_ILLEGAL_ADDRESS, "in run 3 of the queue") &&
                     is_lost_for_all(&r);
  close_rig(&r);
  return right ? 0 : 1;
}

/* Every launch is waited for: the kernel is known. */
static int name_the_kernel(int unused) {
  rig r;
  (void)unused;
  if (!open_rig_with(&r, "launch_blocking=1"))
    return 77;
  (void)setenv("OPIPE_CUDA_DOUBLE_FAULT", "2", 1);
  const bool right = r.t->write(r.queues[0], &r.g.ids, ids, &err) >= 0 &&
                     says(call(&r, RUN), CUDA_ILLEGAL_ADDRESS, "opipe_gather") &&
                     is_lost_for_all(&r);
  close_rig(&r);
  return right ? 0 : 1;
}

static const int fatal[] = {
    CUDA_ECC_UNCORRECTABLE,     CUDA_NVLINK_UNCORRECTABLE, CUDA_CONTAINED,
    CUDA_LAUNCH_TIMEOUT,        CUDA_CONTEXT_IS_DESTROYED, CUDA_ASSERT,
    CUDA_HARDWARE_STACK_ERROR,  CUDA_LAUNCH_FAILED,        CUDA_TENSOR_MEMORY_LEAK,
    CUDA_MPS_CLIENT_TERMINATED, CUDA_EXTERNAL_DEVICE,      CUDA_UNKNOWN};

static int lose_by(int which) {
  char text[16];
  rig r;
  (void)snprintf(text, sizeof text, "%d", fatal[which]);
  (void)setenv("OPIPE_CUDA_DOUBLE_FAULT_RESULT", text, 1);
  if (!open_rig(&r))
    return 77;
  const bool right = fault_in_run_3(&r) &&
                     says(call(&r, POLL), fatal[which], "in run 3 of the queue") &&
                     is_lost_for_all(&r);
  close_rig(&r);
  return right ? 0 : 1;
}

/* A product meets it: the library says no more than that its execution failed. */
static int lose_in_a_product(int unused) {
  static float data[SIDE * SIDE];
  rig r;
  bt_graph g;
  bt_run run;
  (void)unused;
  if (!open_rig(&r))
    return 77;
  bt_init(&g);
  const uint32_t x = bt_value(&g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, data, BT_SHAPE(SIDE, SIDE));
  const uint32_t y = bt_value(&g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, data, BT_SHAPE(SIDE, SIDE));
  (void)bt_node(&g, "MatMul", BT_IN(x, x), BT_OUT(y));
  OPI_ASSERT_OK_FATAL(bt_prepare(r.t, r.device, &g, 0, &run, &err), &err);
  const bool right = fault_in_run_3(&r) &&
                     says(r.t->run(run.binding, r.queues[0], NULL, 0, &err), CUDA_ILLEGAL_ADDRESS,
                          "in run 3 of the queue") &&
                     is_lost_for_all(&r);
  bt_release(r.t, &run);
  close_rig(&r);
  return right ? 0 : 1;
}

static void in_a_child(int (*fn)(int which), int which) {
  int status = 1;
  (void)fflush(NULL);
  const pid_t child = fork();
  if (child == 0)
    _exit(fn(which));
  OPI_ASSERT_FATAL(child > 0 && waitpid(child, &status, 0) == child);
  OPI_ASSERT(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77));
}

static void test_the_run_is_named_whatever_meets_the_fault(void) {
  for (int which = 0; which < CALLS; ++which)
    in_a_child(name_the_run, which);
  in_a_child(name_the_run_of_a_graph, 0);
  in_a_child(name_the_kernel, 0);
}

static void test_all_errors_that_stay_lose_the_context(void) {
  for (int which = 0; which < (int)(sizeof fatal / sizeof fatal[0]); ++which)
    in_a_child(lose_by, which);
}

static void test_a_product_that_meets_a_fault(void) {
  in_a_child(lose_in_a_product, 0);
}

OPI_TEST_MAIN("cuda faults", OPI_TEST(test_the_run_is_named_whatever_meets_the_fault),
              OPI_TEST(test_all_errors_that_stay_lose_the_context),
              OPI_TEST(test_a_product_that_meets_a_fault))
