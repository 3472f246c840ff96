/* SPDX-License-Identifier: Apache-2.0 */
/* ctest: timeout=240 */
/* Products whose rows are no whole vectors: which go through rows of whole lines, in how many steps
 * and how much scratch, with the results of those that do not. */
#include "cuda_test.h"

static opipe_error err = OPIPE_ERROR_INIT;

enum { MOST = 9000 * 257, ODD = 257, DEEP = 256, LINE = 320 /* elements of ODD's padded rows */ };

/* -1, -1/2, 0 or 1/2 as bf16: sums of products are exact in fp32, whatever their order. */
static uint16_t some_a[MOST], some_b[MOST], some_c[MOST], some_row[MOST];

static void draw(uint16_t *out, size_t n, uint32_t seed) {
  static const uint16_t values[4] = {0xbf80, 0xbf00, 0, 0x3f00};
  for (size_t i = 0; i < n; ++i) {
    seed = seed * 1664525u + 1013904223u;
    out[i] = values[seed >> 30];
  }
}

static void draw_all(void) {
  draw(some_a, MOST, 1);
  draw(some_b, MOST, 2);
  draw(some_c, MOST, 3);
  draw(some_row, MOST, 4);
}

/* Results of a program, and its steps. */
typedef struct made {
  uint32_t steps;
  uint64_t workspace, temp;
  float sums[DEEP * ODD]; /* of gradients of the first parameter */
} made;

static void run_graph(const opipe_backend *t, opipe_device *device, const bt_graph *g,
                      uint32_t flags, made *out) {
  bt_run run;
  ct_run(t, device, g, flags, 1, &run);
  out->steps = run.info.n_kernels;
  out->workspace = run.info.workspace_bytes;
  out->temp = run.info.temp_bytes;
  if ((flags & OPIPE_COMPILE_OWNED) != 0)
    OPI_ASSERT_OK(t->params_read(run.gradients, 0, out->sums, sizeof out->sums, &err), &err);
  bt_release(t, &run);
}

/* ---- a product ---- */

typedef struct product_case {
  int64_t rows, deep, columns; /* Y [rows, columns] */
  bool turned;                 /* B lies as [columns, deep] */
  bool row, addend, gelu, batched;
  uint32_t dtype;
  const char *options;
  uint32_t steps;
  int64_t scratch; /* elements; of two bytes */
} product_case;

static void make_product(bt_graph *g, const product_case *c, void *y) {
  const uint32_t d = c->dtype;
  const uint32_t in = OPIPE_VALUE_INPUT;
  bt_init(g);
  const uint32_t a = c->batched ? bt_value(g, in, d, some_a, BT_SHAPE(2, c->rows, c->deep))
                                : bt_value(g, in, d, some_a, BT_SHAPE(c->rows, c->deep));
  const uint32_t b =
      c->batched  ? bt_value(g, in, d, some_b, BT_SHAPE(2, c->deep, c->columns))
      : c->turned ? bt_value(g, OPIPE_VALUE_PARAMETER, d, some_b, BT_SHAPE(c->columns, c->deep))
                  : bt_value(g, OPIPE_VALUE_PARAMETER, d, some_b, BT_SHAPE(c->deep, c->columns));
  const uint32_t to = c->batched
                          ? bt_value(g, OPIPE_VALUE_OUTPUT, d, y, BT_SHAPE(2, c->rows, c->columns))
                          : bt_value(g, OPIPE_VALUE_OUTPUT, d, y, BT_SHAPE(c->rows, c->columns));
  uint32_t last = to;
  const int n_more = c->row + c->addend + c->gelu;
  if (n_more > 0)
    last = bt_value(g, OPIPE_VALUE_TEMP, d, NULL, BT_SHAPE(c->rows, c->columns));
  opipe_node *node = bt_node(g, "FusedMatMul", BT_IN(a, b), BT_OUT(last));
  node->domain = "com.microsoft";
  bt_int(g, node, "transB", c->turned);
  for (int i = 0; i < n_more; ++i) {
    const uint32_t next =
        i + 1 == n_more ? to
                        : bt_value(g, OPIPE_VALUE_TEMP, d, NULL, BT_SHAPE(c->rows, c->columns));
    if (i == 0 && c->row) {
      const uint32_t row = bt_value(g, OPIPE_VALUE_PARAMETER, d, some_row, BT_SHAPE(c->columns));
      (void)bt_node(g, "Add", BT_IN(last, row), BT_OUT(next));
    } else if (c->addend) {
      const uint32_t other = bt_value(g, in, d, some_c, BT_SHAPE(c->rows, c->columns));
      (void)bt_node(g, "Add", BT_IN(other, last), BT_OUT(next));
    } else {
      bt_text(g, bt_node(g, "Gelu", BT_IN(last), BT_OUT(next)), "approximate", "tanh");
    }
    last = next;
  }
}

#define BF OPIPE_BFLOAT16
#define ALL "fallback=none,pad=20"
#define SMALL "fallback=none,pad=20,pad_mib=1,sm=8"
static const product_case products[] = {
    /* the result: two products, of even rows and of the column that is left, and relay for each
     * piece, the last one shorter */
    {1700, DEEP, ODD, true, false, false, false, false, BF, ALL, 3, 1700 * LINE},
    {1700, DEEP, ODD, true, false, false, false, false, BF, SMALL, 6, 896 * LINE},
    {300, 512, ODD, true, true, true, false, false, BF, ALL, 4, 300 * LINE},
    /* weights of odd rows are copied once */
    {1700, DEEP, ODD, false, true, false, false, false, BF, SMALL, 7, (DEEP + 896) * LINE},
    /* operands: one whole, one by rows; the longer one by rows, of m and of n */
    {300, ODD, DEEP, false, true, false, false, false, BF, ALL, 2, 300 * LINE},
    {300, ODD, DEEP, true, false, true, false, false, BF, ALL, 3, (300 + DEEP) * LINE},
    {4100, ODD, DEEP, false, true, false, true, false, BF, SMALL, 6, 1408 * LINE},
    {300, ODD, 4096, true, true, false, true, false, BF, SMALL, 7, (1408 + 300) * LINE},
    {300, DEEP, ODD, true, false, false, false, false, OPIPE_FLOAT16, ALL, 3, 300 * LINE},
    {300, 512, ODD, true, false, false, false, false, OPIPE_FLOAT, ALL ",tf32=1", 3, 300 * 288 * 2},
    /* the library's own workspace lies behind; of all three */
    {300, 1040, ODD, true, false, false, false, false, BF, ALL, 3, 300 * LINE},
    {300, 1041, ODD, false, false, false, false, false, BF, ALL, 7,
     (1041 + 300) * LINE + 300 * 1088},
    /* as they are: rows of whole vectors, few to be used again, small, of fp32, in a batch */
    {300, DEEP, 264, true, false, false, false, false, BF, ALL, 1, 0},
    {300, 248, ODD, true, false, false, false, false, BF, ALL, 1, 0},
    {300, DEEP, ODD, true, false, true, false, false, BF, ALL, 1, 0},
    {248, ODD, DEEP, true, false, false, false, false, BF, ALL, 1, 0},
    {300, DEEP, ODD, true, false, false, false, false, BF, "fallback=none", 1, 0},
    {300, DEEP, ODD, true, false, false, false, false, BF, "fallback=none,pad=0", 1, 0},
    {300, 512, ODD, true, false, false, false, false, OPIPE_FLOAT, ALL, 1, 0},
    {300, DEEP, ODD, false, false, false, false, true, BF, ALL, 1, 0}};

/* Sums of what is not exact, in another order. */
static bool are_close(const void *found, const void *wanted, int64_t n) {
  const float *a = found, *b = wanted;
  double off = 0, norm = 0;
  for (int64_t i = 0; i < n; ++i) {
    off += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    norm += (double)b[i] * (double)b[i];
  }
  return norm > 0 && off <= 1e-12 * norm;
}

static void test_products_go_through_scratch(void) {
  static uint32_t found[MOST], wanted[MOST];
  static made with, without;
  ct_backend b;
  CT_OPEN(&b);
  const opipe_backend *t = b.base.table;
  draw_all();
  for (size_t i = 0; i < sizeof products / sizeof products[0]; ++i) {
    const product_case *c = &products[i];
    const bool tf32 = strstr(c->options, "tf32") != NULL;
    opipe_device *device = NULL, *plain = NULL;
    bt_graph g;
    if (!opi_test_covers(i, 2))
      continue;
    OPI_ASSERT_OK_FATAL(bt_device(&b.base, c->options, 1, 0, &device, &err), &err);
    OPI_ASSERT_OK_FATAL(bt_device(&b.base, tf32 ? "pad=0,tf32=1" : "pad=0", 1, 0, &plain, &err),
                        &err);
    memset(found, 0xff, sizeof found);
    memset(wanted, 0xff, sizeof wanted);
    make_product(&g, c, found);
    run_graph(t, device, &g, 0, &with);
    make_product(&g, c, wanted);
    run_graph(t, plain, &g, 0, &without);
    OPI_ASSERT(tf32 ? are_close(found, wanted, c->rows * c->columns)
                    : memcmp(found, wanted, sizeof found) == 0);
    OPI_ASSERT_INT(with.steps, c->steps);
    OPI_ASSERT_INT(without.steps, 1);
    OPI_ASSERT_INT(with.temp, without.temp);
    OPI_ASSERT(with.workspace >= (uint64_t)c->scratch * 2);
    OPI_ASSERT(with.workspace <
               without.workspace + (uint64_t)(c->scratch * 2 + c->rows * 64) + 1024);
    t->device_close(plain);
    t->device_close(device);
  }
  bt_close(&b.base);
}

/* Steps of the product compiled alone. The double's workspace of a deep product has 8 bytes an
 * element. */
static uint32_t count_steps(bt_backend *b, const product_case *c) {
  opipe_device *device = NULL;
  bt_graph g;
  bt_run run;
  const int64_t own = c->deep >= 4 * c->columns ? c->rows * c->columns * 8 : 0;
  OPI_ASSERT_OK_FATAL(bt_device(b, c->options, 1, 0, &device, &err), &err);
  make_product(&g, c, NULL);
  OPI_ASSERT_OK_FATAL(bt_prepare(b->table, device, &g, 0, &run, &err), &err);
  const uint32_t n = run.info.n_kernels;
  OPI_ASSERT(run.info.workspace_bytes >= (uint64_t)c->scratch * 2);
  OPI_ASSERT(run.info.workspace_bytes < (uint64_t)(c->scratch * 2 + own + 4 * 256));
  bt_release(b->table, &run);
  b->table->device_close(device);
  return n;
}

static void test_pieces_keep_processors_busy(void) {
  /* rows of 2 MiB and more; 1638 of them have a MiB */
  static const product_case cases[] = {
      {9000, ODD, DEEP, false, false, false, false, false, BF, ALL ",pad_mib=1,sm=8", 18,
       1536 * LINE},
      /* larger pieces, up to four times; as it is where these are few */
      {9000, ODD, DEEP, false, false, false, false, false, BF, ALL ",pad_mib=1,sm=20", 12,
       2304 * LINE},
      {9000, ODD, DEEP, false, false, false, false, false, BF, ALL ",pad_mib=1,sm=40", 6,
       4608 * LINE},
      {9000, ODD, DEEP, false, false, false, false, false, BF, ALL ",pad_mib=1", 1, 0},
      /* operands that have a row for each k are copied whole, or not at all */
      {300, 4000, ODD, false, false, false, false, false, BF, ALL ",pad_mib=1", 1, 0},
      {300, 4000, ODD, false, false, false, false, false, BF, ALL ",pad_mib=2", 4, 4300 * LINE}};
  ct_backend b;
  CT_OPEN(&b);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i)
    OPI_ASSERT_INT(count_steps(&b.base, &cases[i]), cases[i].steps);
  bt_close(&b.base);
}

/* Pieces of one length are one product to tables of algorithms, at its padded distance. */
static void test_pieces_have_one_name(void) {
  const product_case c = {1792,  DEEP,  ODD, true,  false, false,
                          false, false, BF,  SMALL, 6,     896 * LINE};
  ct_backend b;
  opipe_device *device = NULL;
  bt_graph g;
  CT_OPEN(&b);
  const opipe_backend *t = b.base.table;
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, c.options, 1, 0, &device, &err), &err);
  for (int given = 0; given < 2; ++given) {
    opipe_kernel found[4] = {{.struct_size = sizeof(opipe_kernel)}};
    uint32_t n = 4;
    bt_run run;
    make_product(&g, &c, NULL);
    OPI_ASSERT_OK_FATAL(bt_prepare(t, device, &g, 0, &run, &err), &err);
    OPI_ASSERT_OK(t->program_kernels(run.program, found, &n, &err), &err);
    OPI_ASSERT_INT(n, 4);
    OPI_ASSERT_STR(found[0].what, found[2].what);
    OPI_ASSERT_STR(found[1].what, found[3].what);
    OPI_ASSERT(strstr(found[0].what, " m=256 n=896 k=256 ") != NULL);
    OPI_ASSERT(strstr(found[1].what, " m=1 n=896 k=256 ") != NULL);
    OPI_ASSERT(strstr(found[0].what, " ld=256,256,320 ") != NULL);
    OPI_ASSERT_INT(found[2].flags, given != 0 ? OPIPE_KERNEL_GIVEN : 0);
    bt_release(t, &run);
    (void)snprintf(found[0].choice, sizeof found[0].choice,
                   "algorithm=21 tile=18 split=1 stages=3");
    OPI_ASSERT_OK(t->kernels_use(device, found, 1, &err), &err);
  }
  t->device_close(device);
  bt_close(&b.base);
}

/* ---- sums added to an accumulator of odd rows ---- */

/* dW += X^T dY, twice: W [deep, columns]. */
typedef struct sum_case {
  int64_t rows, deep, columns;
  bool first; /* dW^T += dY^T X: the odd one is the other operand */
  const char *options;
  uint32_t steps;
  bool has_bias; /* sums of dY's columns are added to another accumulator */
} sum_case;

static void add_bias(bt_graph *g, uint32_t dy, int64_t n) {
  static const int64_t first[1] = {0};
  const uint32_t bias = bt_value(g, OPIPE_VALUE_PARAMETER, BF, some_row, BT_SHAPE(n));
  const uint32_t axes = bt_value(g, OPIPE_VALUE_CONSTANT, OPIPE_INT64, first, BT_SHAPE(1));
  const uint32_t row = bt_value(g, OPIPE_VALUE_TEMP, BF, NULL, BT_SHAPE(n));
  const uint32_t wide = bt_value(g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(n));
  const uint32_t sum = bt_value(g, OPIPE_VALUE_GRADIENT, OPIPE_FLOAT, NULL, BT_SHAPE(n));
  g->values[sum].slot = g->values[bias].slot;
  bt_int(g, bt_node(g, "ReduceSum", BT_IN(dy, axes), BT_OUT(row)), "keepdims", 0);
  bt_int(g, bt_node(g, "Cast", BT_IN(row), BT_OUT(wide)), "to", OPIPE_FLOAT);
  bt_node(g, "Accumulate", BT_IN(wide), BT_OUT(sum))->domain = "opipe";
}

static void make_sum(bt_graph *g, const sum_case *c) {
  const int64_t m = c->first ? c->deep : c->columns, n = c->first ? c->columns : c->deep;
  bt_init(g);
  const uint32_t x = bt_value(g, OPIPE_VALUE_INPUT, BF, some_a, BT_SHAPE(c->rows, n));
  const uint32_t dy = bt_value(g, OPIPE_VALUE_INPUT, BF, some_b, BT_SHAPE(c->rows, m));
  const uint32_t w = bt_value(g, OPIPE_VALUE_PARAMETER, BF, some_c, BT_SHAPE(n, m));
  const uint32_t sum = bt_value(g, OPIPE_VALUE_GRADIENT, OPIPE_FLOAT, NULL, BT_SHAPE(n, m));
  g->values[sum].slot = g->values[w].slot;
  for (int i = 0; i < 2; ++i) {
    const uint32_t dw = bt_value(g, OPIPE_VALUE_TEMP, BF, NULL, BT_SHAPE(n, m));
    const uint32_t wide = bt_value(g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, BT_SHAPE(n, m));
    opipe_node *node = bt_node(g, "FusedMatMul", BT_IN(x, dy), BT_OUT(dw));
    node->domain = "com.microsoft";
    bt_int(g, node, "transA", 1);
    bt_int(g, bt_node(g, "Cast", BT_IN(dw), BT_OUT(wide)), "to", OPIPE_FLOAT);
    bt_node(g, "Accumulate", BT_IN(wide), BT_OUT(sum))->domain = "opipe";
    if (c->has_bias)
      add_bias(g, dy, m);
  }
}

static void test_accumulators_go_through_scratch(void) {
  /* dY, the sums so far, both products, the sums; rows by pieces, which are added: of dY and of X
   */
  static const sum_case cases[] = {{1024, DEEP, ODD, false, ALL, 5, false},
                                   {6700, DEEP, ODD, false, ALL ",pad_mib=1", 8, false},
                                   {6700, DEEP, ODD, true, ALL ",pad_mib=1", 6, false},
                                   {1000, DEEP, ODD, false, ALL, 1, false},
                                   /* sums of columns are no epilogue of such a product */
                                   {1024, DEEP, ODD, false, ALL ",bias_gradients=1", 7, true}};
  static made with, without;
  ct_backend b;
  opipe_device *device = NULL, *plain = NULL;
  bt_graph g;
  CT_OPEN(&b);
  const opipe_backend *t = b.base.table;
  draw_all();
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, "pad=0", 1, 0, &plain, &err), &err);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    if (!opi_test_covers(i, 2))
      continue;
    OPI_ASSERT_OK_FATAL(bt_device(&b.base, cases[i].options, 1, 0, &device, &err), &err);
    make_sum(&g, &cases[i]);
    run_graph(t, device, &g, OPIPE_COMPILE_OWNED, &with);
    run_graph(t, plain, &g, OPIPE_COMPILE_OWNED, &without);
    OPI_ASSERT_INT(with.steps, 2 * cases[i].steps);
    OPI_ASSERT_INT(without.steps, cases[i].has_bias ? 6 : 2);
    OPI_ASSERT(memcmp(with.sums, without.sums, sizeof with.sums) == 0);
    OPI_ASSERT(with.sums[0] != 0 || with.sums[1] != 0);
    t->device_close(device);
  }
  t->device_close(plain);
  bt_close(&b.base);
}

OPI_TEST_MAIN("cuda padded", OPI_TEST(test_products_go_through_scratch),
              OPI_TEST(test_pieces_keep_processors_busy), OPI_TEST(test_pieces_have_one_name),
              OPI_TEST(test_accumulators_go_through_scratch))
