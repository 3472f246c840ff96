/* SPDX-License-Identifier: Apache-2.0 */
/* A forked child calls nothing of the driver's, nor of the libraries', whatever it frees. */
#include <sys/wait.h>
#include <unistd.h>

#include "rig.h"

enum { N = 16 };

/* y [N, N] = x [N, N] by a parameter, a mean of y, and gradients of neither. */
static void make_product(bt_graph *g, float *data) {
  bt_init(g);
  const uint32_t x = bt_value(g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, data, BT_SHAPE(N, N));
  const uint32_t w = bt_value(g, OPIPE_VALUE_PARAMETER, OPIPE_FLOAT, data, BT_SHAPE(N, N));
  const uint32_t c = bt_value(g, OPIPE_VALUE_CONSTANT, OPIPE_FLOAT, data, BT_SHAPE(N, N));
  const uint32_t p = bt_value(g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(N, N));
  const uint32_t y = bt_value(g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, data, BT_SHAPE(N, N));
  (void)bt_node(g, "MatMul", BT_IN(x, w), BT_OUT(p));
  (void)bt_node(g, "Mul", BT_IN(p, c), BT_OUT(y));
}

static void test_a_child_frees_without_a_call(void) {
  static float data[N * N];
  static char host[4096];
  rig r;
  bt_graph graph;
  bt_run run;
  opipe_queue *queue = NULL;
  opipe_event *event = NULL;
  opipe_buffer *view = NULL;
  opipe_params *owned = NULL, *gradients = NULL, *clone = NULL;
  uint64_t native = 0;
  void *pinned = NULL;
  int status = 1;
  if (!open_rig_with(&r, "graphs=1"))
    OPI_SKIP("%s", CT_WHY);
  make_product(&graph, data);
  OPI_ASSERT_OK_FATAL(bt_prepare(r.t, r.device, &graph, 0, &run, &err), &err);
  OPI_ASSERT_OK_FATAL(bt_step(r.t, &graph, &run, &err), &err);
  OPI_ASSERT_OK_FATAL(r.t->event_record(run.queue, r.events[0], &err), &err);
  OPI_ASSERT_OK_FATAL(r.t->event_sync(r.events[0], LONG_NS, &err), &err);
  OPI_ASSERT_OK(r.t->params_create_owned(r.device, graph.sources, 1, &owned, &err), &err);
  OPI_ASSERT_OK(r.t->gradients_create(owned, &gradients, &err), &err);
  OPI_ASSERT_OK(r.t->params_clone(run.params, &clone, &err), &err);
  OPI_ASSERT_OK(r.t->native(r.device, OPIPE_NATIVE_BUFFER, r.g.memory, &native, &err), &err);
  OPI_ASSERT_OK(r.t->buffer_import(r.device, native, 256, &view, &err), &err);
  OPI_ASSERT_OK(r.t->native(r.device, OPIPE_NATIVE_EVENT, r.events[1], &native, &err), &err);
  OPI_ASSERT_OK(r.t->event_import(r.device, native, &event, &err), &err);
  OPI_ASSERT_OK(r.t->queue_import(r.device, 0, &queue, &err), &err);
  OPI_ASSERT_OK(r.t->host_alloc(r.device, 1000, &pinned, &err), &err);
  OPI_ASSERT_OK(r.t->host_register(r.device, host, sizeof host, &err), &err);
  (void)fflush(NULL);
  const pid_t child = fork();
  for (int twice = 0; twice < (child == 0 ? 1 : 2); ++twice) {
    if (child != 0 && twice == 0) { /* the parent frees when the child has */
      OPI_ASSERT_FATAL(child > 0 && waitpid(child, &status, 0) == child);
      OPI_ASSERT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
      continue;
    }
    cuda_double_facts facts;
    r.t->host_free(r.device, pinned);
    r.t->host_unregister(r.device, host);
    r.t->params_free(gradients);
    r.t->params_free(owned);
    r.t->params_free(clone);
    r.t->queue_close(queue);
    r.t->event_destroy(event);
    r.t->buffer_free(view);
    bt_release(r.t, &run);
    close_rig(&r);
    r.b.look(&facts);
    if (child == 0)
      _exit(facts.forked == 0 ? 0 : 1);
    OPI_ASSERT_INT(facts.live_blocks, 0);
    OPI_ASSERT_INT(facts.live_pinned, 0);
  }
}

OPI_TEST_MAIN("cuda in a forked child", OPI_TEST(test_a_child_frees_without_a_call))
