/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory of kernels that several programs launch: what one asks for, the others keep; and
 * sizes that do not fit beside a kernel's own memory without being asked for.
 */
#include <math.h>

#include "cuda_test.h"

enum { ROWS = 2 };
static opipe_error err = OPIPE_ERROR_INIT;

/* Gradients of a loss over `classes`, of bf16: 2 bytes of shared memory for each class. */
typedef struct classes_case {
  bt_graph graph;
  bt_run run;
  opipe_event *event;
  int64_t classes, labels[ROWS];
  uint16_t *x, *dx, one; /* [ROWS, classes] */
} classes_case;

static double wide_of(uint16_t half) {
  const uint32_t bits = (uint32_t)half << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return (double)x;
}

static void make_case(const opipe_backend *t, opipe_device *device, int64_t classes,
                      classes_case *c) {
  memset(c, 0, sizeof *c);
  c->classes = classes;
  c->one = 0x3f80;
  c->x = calloc((size_t)(ROWS * classes), sizeof *c->x);
  c->dx = calloc((size_t)(ROWS * classes), sizeof *c->dx);
  OPI_ASSERT_FATAL(c->x != NULL && c->dx != NULL);
  for (int64_t i = 0; i < ROWS * classes; ++i)
    c->x[i] = (uint16_t)(0x3f80 + i * 37 % 0x90); /* 1 to 4 */
  c->labels[1] = classes - 1;
  bt_graph *g = &c->graph;
  bt_init(g);
  const uint32_t dl = bt_value(g, OPIPE_VALUE_INPUT, OPIPE_BFLOAT16, &c->one, 0, NULL);
  const uint32_t x = bt_value(g, OPIPE_VALUE_INPUT, OPIPE_BFLOAT16, c->x, BT_SHAPE(ROWS, classes));
  const uint32_t labels = bt_value(g, OPIPE_VALUE_INPUT, OPIPE_INT64, c->labels, BT_SHAPE(ROWS));
  const uint32_t dx =
      bt_value(g, OPIPE_VALUE_OUTPUT, OPIPE_BFLOAT16, c->dx, BT_SHAPE(ROWS, classes));
  opipe_node *node = bt_node(g, "SoftmaxCrossEntropyLossGrad", BT_IN(dl, x, labels), BT_OUT(dx));
  node->domain = "opipe";
  bt_text(g, node, "reduction", "sum");
  OPI_ASSERT_OK_FATAL(bt_prepare(t, device, g, 0, &c->run, &err), &err);
  OPI_ASSERT_OK_FATAL(t->event_create(device, &c->event, &err), &err);
}

static void free_case(const opipe_backend *t, classes_case *c) {
  t->event_destroy(c->event);
  bt_release(t, &c->run);
  free(c->x);
  free(c->dx);
}

static void run_case(const opipe_backend *t, classes_case *c) {
  memset(c->dx, 0, (size_t)(ROWS * c->classes) * sizeof *c->dx);
  OPI_ASSERT_OK_FATAL(bt_step(t, &c->graph, &c->run, &err), &err);
  OPI_ASSERT_OK_FATAL(t->event_record(c->run.queue, c->event, &err), &err);
  OPI_ASSERT_OK_FATAL(t->event_sync(c->event, UINT64_C(30000000000), &err), &err);
  for (int64_t i = 0; i < ROWS; ++i) {
    const uint16_t *x = c->x + i * c->classes, *dx = c->dx + i * c->classes;
    double sum = 0;
    int64_t n_far = 0;
    for (int64_t k = 0; k < c->classes; ++k)
      sum += exp(wide_of(x[k]));
    for (int64_t k = 0; k < c->classes; ++k) {
      const double want = exp(wide_of(x[k])) / sum - (k == c->labels[i] ? 1 : 0);
      n_far += fabs(wide_of(dx[k]) - want) > 0.008 * fabs(want);
    }
    OPI_ASSERT_INT(n_far, 0);
  }
}

static void test_programs_keep_the_shared_memory_they_asked_for(void) {
  static const int64_t classes[] = {50304, 32000, 25000};
  enum { N = sizeof classes / sizeof classes[0] };
  classes_case cases[N];
  ct_backend b;
  opipe_device *device = NULL;
  CT_OPEN(&b);
  const opipe_backend *t = b.base.table;
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, NULL, 1, 0, &device, &err), &err);
  for (int i = 0; i < N; ++i)
    make_case(t, device, classes[i], &cases[i]);
  for (int i = 0; i < 2 * N; ++i)
    run_case(t, &cases[i % N]);
  for (int i = 0; i < N; ++i)
    free_case(t, &cases[i]);
  t->device_close(device);
  bt_close(&b.base);
}

/* 48 KiB are for what a kernel has of its own and for what its launch asks for. */
static void test_sizes_just_below_the_bound_are_asked_for(void) {
  static const int64_t classes[] = {24576, 24496, 24488, 24384};
  ct_backend b;
  CT_OPEN(&b);
  const opipe_backend *t = b.base.table;
  for (size_t i = 0; i < sizeof classes / sizeof classes[0]; ++i) {
    classes_case c;
    opipe_device *device = NULL;
    OPI_ASSERT_OK_FATAL(bt_device(&b.base, NULL, 1, 0, &device, &err), &err);
    make_case(t, device, classes[i], &c);
    run_case(t, &c);
    free_case(t, &c);
    t->device_close(device);
  }
  bt_close(&b.base);
}

OPI_TEST_MAIN("cuda shared memory", OPI_TEST(test_sizes_just_below_the_bound_are_asked_for),
              OPI_TEST(test_programs_keep_the_shared_memory_they_asked_for))
