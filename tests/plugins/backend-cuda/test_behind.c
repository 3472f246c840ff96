/* SPDX-License-Identifier: Apache-2.0 */
/* Launches that may begin while the one in front of them ends: which of a run's do, with the same
 * bits as if none did. The doubles check which launches they must not stand behind, and that they
 * wait. */
#include <stdlib.h>

#include "cuda_test.h"

static opipe_error err = OPIPE_ERROR_INIT;

enum { DEEP = 640, WIDE = 264 };

static float x[DEEP], up[DEEP * WIDE], down[WIDE * DEEP], z[DEEP];

/* z = abs(sin(x up) down): a launch each where products of one row are ours; those have counters,
 * so that a launch begins the run. */
static void make_graph(bt_graph *g) {
  const uint32_t f = OPIPE_FLOAT;
  bt_init(g);
  ct_draw(x, DEEP, 1);
  ct_draw(up, DEEP * WIDE, 2);
  ct_draw(down, WIDE * DEEP, 3);
  const uint32_t vx = bt_value(g, OPIPE_VALUE_INPUT, f, x, BT_SHAPE(1, DEEP));
  const uint32_t vup = bt_value(g, OPIPE_VALUE_PARAMETER, f, up, BT_SHAPE(DEEP, WIDE));
  const uint32_t vdown = bt_value(g, OPIPE_VALUE_PARAMETER, f, down, BT_SHAPE(WIDE, DEEP));
  const uint32_t product = bt_value(g, OPIPE_VALUE_TEMP, f, NULL, BT_SHAPE(1, WIDE));
  const uint32_t sine = bt_value(g, OPIPE_VALUE_TEMP, f, NULL, BT_SHAPE(1, WIDE));
  const uint32_t sum = bt_value(g, OPIPE_VALUE_TEMP, f, NULL, BT_SHAPE(1, DEEP));
  const uint32_t vz = bt_value(g, OPIPE_VALUE_OUTPUT, f, z, BT_SHAPE(1, DEEP));
  bt_node(g, "MatMul", BT_IN(vx, vup), BT_OUT(product));
  bt_node(g, "Sin", BT_IN(product), BT_OUT(sine));
  bt_node(g, "MatMul", BT_IN(sine, vdown), BT_OUT(sum));
  bt_node(g, "Abs", BT_IN(sum), BT_OUT(vz));
}

typedef struct counted {
  const char *options;
  uint32_t flags;
  const char *chip, *ptx;
  uint64_t bound, each; /* when it is bound; in each run */
} counted;

static void test_which_begin_early(void) {
  static const counted rows[] = {
      {"pdl=0", 0, "9", "90", 0, 0},
      {"", 0, "9", "90", 0, 4}, /* the first one behind that which begins the run */
      {"pdl=1", 0, "9", "90", 0, 4},
      {"graphs=1", 0, "9", "90", 4, 0},
      {"graphs=1,pdl=0", 0, "9", "90", 0, 0},
      {"launch_blocking=1", 0, "9", "90", 0, 0},
      {"", OPIPE_COMPILE_POISON, "9", "90", 0, 1}, /* fills stand between them, but for the first */
      {"few_rows=0", 0, "9", "90", 0, 0},          /* the products are the library's */
      {"", 0, "8", "80", 0, 0},                    /* the chip cannot */
      {"", 0, "10", "100", 0, 4},
      {"", 0, "9", "80", 0, 0}, /* the driver compiled the kernels of PTX for older ones */
      {"graphs=1", 0, "9", "80", 0, 0},
      {"", 0, "12", "90", 0, 4},
  };
  static float first[DEEP];
  uint64_t n_begun = 0;
  ct_backend b;
  CT_OPEN(&b);
  const opipe_backend *t = b.base.table;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    opipe_device *device = NULL;
    bt_graph g;
    bt_run run;
    cuda_double_facts before, bound, after;
    (void)setenv("OPIPE_CUDA_DOUBLE_CHIP", rows[i].chip, 1);
    (void)setenv("OPIPE_CUDA_DOUBLE_PTX", rows[i].ptx, 1);
    OPI_ASSERT_OK_FATAL(bt_device(&b.base, rows[i].options, 1, 0, &device, &err), &err);
    make_graph(&g);
    b.look(&before);
    OPI_ASSERT_OK_FATAL(bt_prepare(t, device, &g, rows[i].flags, &run, &err), &err);
    b.look(&bound);
    memset(z, 0, sizeof z);
    ct_step(t, device, &g, &run, 3);
    b.look(&after);
    OPI_ASSERT_INT(bound.behind - before.behind, rows[i].bound);
    OPI_ASSERT_INT(after.behind - bound.behind, 3 * rows[i].each);
    OPI_ASSERT(rows[i].bound + rows[i].each > 0 || after.begun == before.begun);
    n_begun += after.begun - before.begun;
    if (i == 0)
      memcpy(first, z, sizeof z);
    OPI_ASSERT(strstr(rows[i].options, "few_rows") != NULL || memcmp(first, z, sizeof z) == 0);
    bt_release(t, &run);
    t->device_close(device);
  }
  OPI_ASSERT(n_begun > 0); /* before what is in front of them has run, and with the same bits */
  (void)unsetenv("OPIPE_CUDA_DOUBLE_CHIP");
  (void)unsetenv("OPIPE_CUDA_DOUBLE_PTX");
  bt_close(&b.base);
}

OPI_TEST_MAIN("cuda behind", OPI_TEST(test_which_begin_early))
