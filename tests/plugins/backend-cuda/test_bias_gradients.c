/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of biases that the products of weights' gradients make along: which ones, with the
 * numbers of two walks over dY, as often as a program runs; what the library refuses. */
#include <math.h>

#include "cuda_test.h"

static opipe_error err = OPIPE_ERROR_INIT;

/* dY [2, TOKENS, WIDE] of X [2, TOKENS, DEEP]; dW [DEEP, WIDE] */
enum { TOKENS = 150, ROWS = 2 * TOKENS, DEEP = 12, WIDE = 8, RUNS = 3, PRODUCTS = 2 };

typedef enum form {
  LAYER,       /* as layers of three axes are */
  TURNED,      /* dW^T [WIDE, DEEP] = dY^T X */
  GEMM,        /* of two axes, without views */
  SUMS_FIRST,  /* and the sums before the product */
  ROW,         /* a bias [1, WIDE] */
  TWO_BIASES,  /* of one dY */
  TWO_WEIGHTS, /* of one dY */
  SHARED_BIAS, /* of two dY */
  CROSSED,     /* the same, both sums before both products: their order stays */
  NO_WEIGHT,   /* frozen */
  NO_BIAS,
  HALVED,   /* alpha is 1/2 */
  BATCHED,  /* a dW for each of the batch */
  POSITION, /* a bias [TOKENS, WIDE] */
  WIDENED,  /* the bias' gradient sums a copy of dY in fp32 */
  SQUARE,   /* X dY^T: sums of dY's rows, as many */
  FORMS
} form;

/* Products with sums of A, of B, and in all; launches and products that are left, and with
 * bias_gradients=0. */
static const struct {
  uint32_t a, b, products, steps, apart;
} wanted[FORMS] = {[LAYER] = {1, 0, 1, 2, 3},       [TURNED] = {0, 1, 1, 2, 3},
                   [GEMM] = {1, 0, 1, 2, 3},        [SUMS_FIRST] = {1, 0, 1, 2, 3},
                   [ROW] = {1, 0, 1, 2, 3},         [TWO_BIASES] = {1, 0, 1, 4, 5},
                   [TWO_WEIGHTS] = {1, 0, 2, 3, 4}, [SHARED_BIAS] = {2, 0, 2, 4, 6},
                   [CROSSED] = {1, 0, 2, 5, 6},     [NO_WEIGHT] = {0, 0, 0, 2, 2},
                   [NO_BIAS] = {0, 0, 1, 1, 1},     [HALVED] = {0, 0, 1, 3, 3},
                   [BATCHED] = {0, 0, 1, 3, 3},     [POSITION] = {0, 0, 1, 3, 3},
                   [WIDENED] = {0, 0, 1, 4, 4},     [SQUARE] = {0, 0, 1, 3, 3}};

enum { PARAMETERS = 4, MOST = TOKENS * WIDE };
typedef struct maker {
  bt_graph g;
  uint32_t dtype;
  int64_t rows, wide;
  uint32_t x, dy, other; /* other: a second dY */
  uint32_t n;            /* parameters, in this order: */
  uint64_t n_elems[PARAMETERS];
} maker;

static float numbers[ROWS * (DEEP + 2 * WIDE)];
static uint16_t halves[ROWS * (DEEP + 2 * WIDE)];

/* exact: multiples of 1/2, whose sums are exact in fp32. */
static void draw(bool exact) {
  uint32_t seed = 7;
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; ++i) {
    uint32_t bits = 0;
    seed = seed * 1664525u + 1013904223u;
    numbers[i] = exact ? (float)(int)(seed >> 30) / 2.0f - 1.0f
                       : (float)(int)(seed >> 16 & 0xff) / 96.0f - 1.25f;
    memcpy(&bits, &numbers[i], sizeof bits);
    halves[i] = (uint16_t)(bits >> 16);
    bits &= 0xffff0000u;
    memcpy(&numbers[i], &bits, sizeof bits); /* both types have the same numbers */
  }
}

static uint32_t value_of(maker *m, uint32_t role, size_t at, uint32_t rank, const int64_t *shape) {
  void *data = role != OPIPE_VALUE_INPUT ? NULL
               : m->dtype == OPIPE_FLOAT ? (void *)(numbers + at)
                                         : (void *)(halves + at);
  return bt_value(&m->g, role, m->dtype, data, rank, shape);
}

/* From what has the elements of a parameter [..] of `shape` to its gradient. */
static void accumulate(maker *m, uint32_t from, uint32_t slot, uint32_t rank,
                       const int64_t *shape) {
  static const float zeros[MOST];
  bt_graph *g = &m->g;
  const uint32_t as = bt_value(g, OPIPE_VALUE_CONSTANT, OPIPE_INT64, shape, 1, &(int64_t){rank});
  const uint32_t same = bt_value(g, OPIPE_VALUE_TEMP, m->g.values[from].dtype, NULL, rank, shape);
  (void)bt_node(g, "Reshape", BT_IN(from, as), BT_OUT(same));
  uint32_t wide = same;
  if (g->values[same].dtype != OPIPE_FLOAT) {
    wide = bt_value(g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL, rank, shape);
    bt_int(g, bt_node(g, "Cast", BT_IN(same), BT_OUT(wide)), "to", OPIPE_FLOAT);
  }
  if (slot == m->n) {
    (void)bt_value(g, OPIPE_VALUE_PARAMETER, OPIPE_FLOAT, zeros, rank, shape);
    m->n_elems[m->n++] = g->values[wide].n_bytes / sizeof(float);
  }
  const uint32_t sum = bt_value(g, OPIPE_VALUE_GRADIENT, OPIPE_FLOAT, NULL, rank, shape);
  g->values[sum].slot = slot;
  bt_node(g, "Accumulate", BT_IN(wide), BT_OUT(sum))->domain = "opipe";
}

/* Input `of` as a matrix of all its rows. */
static uint32_t flatten(maker *m, uint32_t of, int64_t columns) {
  static int64_t shapes[2][2];
  int64_t *shape = shapes[columns == DEEP];
  shape[0] = m->rows;
  shape[1] = columns;
  const uint32_t as = bt_value(&m->g, OPIPE_VALUE_CONSTANT, OPIPE_INT64, shape, BT_SHAPE(2));
  const uint32_t y = value_of(m, OPIPE_VALUE_TEMP, 0, 2, shape);
  (void)bt_node(&m->g, "Reshape", BT_IN(of, as), BT_OUT(y));
  return y;
}

static void multiply(maker *m, uint32_t a, uint32_t b, bool turns_b, double alpha, uint32_t out) {
  opipe_node *node = bt_node(&m->g, "FusedMatMul", BT_IN(a, b), BT_OUT(out));
  node->domain = "com.microsoft";
  bt_float(&m->g, node, "alpha", alpha);
  bt_int(&m->g, node, "transA", !turns_b);
  bt_int(&m->g, node, "transB", turns_b);
}

static void add_weight(maker *m, form which, uint32_t dy, uint32_t slot) {
  static const int64_t plain[2] = {DEEP, WIDE}, turned[2] = {WIDE, DEEP}, both[3] = {2, DEEP, WIDE},
                       square[2] = {WIDE, WIDE};
  const int64_t *shape = which == TURNED    ? turned
                         : which == BATCHED ? both
                         : which == SQUARE  ? square
                                            : plain;
  const uint32_t rank = which == BATCHED ? 3 : 2;
  const uint32_t dw = value_of(m, OPIPE_VALUE_TEMP, 0, rank, shape);
  const double alpha = which == HALVED ? 0.5 : 1.0;
  if (which == GEMM || which == SUMS_FIRST) {
    bt_int(&m->g, bt_node(&m->g, "Gemm", BT_IN(m->x, dy), BT_OUT(dw)), "transA", 1);
  } else if (which == BATCHED || which == SQUARE) {
    multiply(m, m->x, dy, which == SQUARE, alpha, dw);
  } else {
    const uint32_t x = flatten(m, m->x, DEEP), d = flatten(m, dy, WIDE);
    multiply(m, which == TURNED ? d : x, which == TURNED ? x : d, false, alpha, dw);
  }
  accumulate(m, dw, slot, rank, shape);
}

static void add_bias(maker *m, form which, uint32_t dy, uint32_t slot) {
  static const int64_t line[1] = {WIDE}, row[2] = {1, WIDE}, at[2] = {TOKENS, WIDE};
  static const int64_t axes[2] = {0, 1};
  bt_graph *g = &m->g;
  const uint32_t all = g->values[dy].rank - 1, n = which == POSITION ? 1 : all;
  const uint32_t dtype = which == WIDENED ? (uint32_t)OPIPE_FLOAT : m->dtype;
  if (which == WIDENED) {
    const uint32_t wide =
        bt_value(g, OPIPE_VALUE_TEMP, dtype, NULL, g->values[dy].rank, g->values[dy].shape);
    bt_int(g, bt_node(g, "Cast", BT_IN(dy), BT_OUT(wide)), "to", OPIPE_FLOAT);
    dy = wide;
  }
  const uint32_t over = bt_value(g, OPIPE_VALUE_CONSTANT, OPIPE_INT64, axes, 1, &(int64_t){n});
  int64_t left[3] = {1, 1, WIDE};
  if (which == POSITION)
    left[1] = TOKENS;
  const uint32_t sums =
      bt_value(g, OPIPE_VALUE_TEMP, dtype, NULL, all + 1, all == 1 ? left + 1 : left);
  bt_int(g, bt_node(g, "ReduceSum", BT_IN(dy, over), BT_OUT(sums)), "keepdims", 1);
  accumulate(m, sums, slot, which == ROW || which == POSITION ? 2 : 1,
             which == ROW        ? row
             : which == POSITION ? at
                                 : line);
}

static void make_graph(maker *m, form which, uint32_t dtype) {
  const bool flat = which == GEMM || which == SUMS_FIRST, square = which == SQUARE;
  const int64_t deep = square ? WIDE : DEEP, rows = square ? WIDE : ROWS;
  const int64_t x[3] = {2, TOKENS, DEEP}, dy[3] = {2, TOKENS, WIDE}, x2[2] = {rows, deep},
                dy2[2] = {rows, WIDE};
  const uint32_t rank = flat || square ? 2 : 3;
  memset(m, 0, sizeof *m);
  bt_init(&m->g);
  m->dtype = dtype;
  m->rows = rows;
  m->x = value_of(m, OPIPE_VALUE_INPUT, 0, rank, rank == 2 ? x2 : x);
  m->dy = value_of(m, OPIPE_VALUE_INPUT, ROWS * DEEP, rank, rank == 2 ? dy2 : dy);
  m->other = value_of(m, OPIPE_VALUE_INPUT, ROWS * (DEEP + WIDE), rank, rank == 2 ? dy2 : dy);
  const bool shared = which == SHARED_BIAS, first = which == SUMS_FIRST || which == CROSSED;
  if (first)
    add_bias(m, which, m->dy, m->n);
  if (which == CROSSED)
    add_bias(m, which, m->other, 0);
  if (which != NO_WEIGHT)
    add_weight(m, which, m->dy, m->n);
  if (!first && which != NO_BIAS)
    add_bias(m, which, m->dy, m->n);
  if (which == TWO_BIASES)
    add_bias(m, which, m->dy, m->n);
  if (which == TWO_WEIGHTS || shared || which == CROSSED)
    add_weight(m, which, which == TWO_WEIGHTS ? m->dy : m->other, m->n);
  if (shared)
    add_bias(m, which, m->other, 1);
}

typedef struct result {
  float of[PARAMETERS][MOST];
  uint32_t steps, products, sums_a, sums_b;
} result;

static void look_at_products(const opipe_backend *t, const opipe_program *program, result *out) {
  opipe_kernel kernels[PRODUCTS];
  out->products = PRODUCTS;
  for (uint32_t i = 0; i < PRODUCTS; ++i)
    kernels[i] = (opipe_kernel){.struct_size = sizeof kernels[i]};
  OPI_ASSERT_OK_FATAL(t->program_kernels(program, kernels, &out->products, &err), &err);
  for (uint32_t i = 0; i < out->products; ++i) {
    out->sums_a += strstr(kernels[i].what, " epilogue=sums_a ") != NULL;
    out->sums_b += strstr(kernels[i].what, " epilogue=sums_b ") != NULL;
  }
}

/* Gradients after some runs of a program. */
static void run_graph(const opipe_backend *t, opipe_device *device, const maker *m, uint32_t flags,
                      result *out) {
  bt_run run;
  memset(out, 0, sizeof *out);
  ct_run(t, device, &m->g, OPIPE_COMPILE_OWNED | flags, RUNS, &run);
  for (uint32_t p = 0; p < m->n; ++p) {
    OPI_ASSERT_OK(t->params_read(run.gradients, p, out->of[p], m->n_elems[p] * sizeof(float), &err),
                  &err);
  }
  out->steps = run.info.n_kernels;
  look_at_products(t, run.program, out);
  bt_release(t, &run);
}

static bool same_bits(const maker *m, const result *a, const result *b) {
  bool same = true;
  for (uint32_t p = 0; p < m->n; ++p)
    same = same && memcmp(a->of[p], b->of[p], m->n_elems[p] * sizeof(float)) == 0;
  return same;
}

static void expect_counts(const char *what, form which, const result *r, bool along) {
  const uint32_t steps = along ? wanted[which].steps : wanted[which].apart;
  const uint32_t a = along ? wanted[which].a : 0, b = along ? wanted[which].b : 0;
  if (r->steps != steps || r->products != wanted[which].products || r->sums_a != a ||
      r->sums_b != b) {
    OPI_FAIL("form %d, %s: %u steps, %u products, %u sums of A, %u of B; wanted %u, %u, %u, %u",
             (int)which, what, r->steps, r->products, r->sums_a, r->sums_b, steps,
             wanted[which].products, a, b);
  }
}

/* A bias' gradient in double: sums of columns, or of what POSITION keeps. */
static void expect_sums(const maker *m, form which, const result *r, double most) {
  const uint32_t slot = which == NO_WEIGHT || which == SUMS_FIRST || which == CROSSED ? 0 : 1;
  const bool both = which == SHARED_BIAS || which == CROSSED;
  for (uint64_t i = 0; which != NO_BIAS && i < m->n_elems[slot]; ++i) {
    double sum = 0, size = 0;
    for (int64_t row = 0; row < m->rows * (both ? 2 : 1); ++row) {
      const size_t at =
          (size_t)(ROWS * DEEP + row % m->rows * WIDE) + (size_t)(row / m->rows) * ROWS * WIDE;
      if (which == POSITION && (uint64_t)(row % TOKENS) != i / WIDE)
        continue;
      sum += (double)numbers[at + i % WIDE];
      size += fabs((double)numbers[at + i % WIDE]);
    }
    OPI_ASSERT(fabs((double)r->of[slot][i] - RUNS * sum) <= most * RUNS * size);
  }
}

static void test_sums_beside_products(void) {
  static result along, apart;
  ct_backend b;
  opipe_device *device[2] = {NULL};
  CT_OPEN(&b);
  const opipe_backend *t = b.base.table;
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, "fallback=none,bias_gradients=1", 1, 0, &device[0], &err),
                      &err);
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, NULL, 1, 0, &device[1], &err), &err);
  draw(true);
  for (form which = 0; which < FORMS; ++which) {
    for (uint32_t half = 0; half < 2; ++half) {
      maker m;
      if (which == WIDENED && half == 0)
        continue;
      make_graph(&m, which, half ? OPIPE_BFLOAT16 : OPIPE_FLOAT);
      run_graph(t, device[0], &m, 0, &along);
      run_graph(t, device[1], &m, 0, &apart);
      expect_counts(half ? "bf16" : "fp32", which, &along, true);
      expect_counts(half ? "bf16, apart" : "fp32, apart", which, &apart, false);
      OPI_ASSERT(same_bits(&m, &along, &apart)); /* all of it is exact */
      expect_sums(&m, which, &along, 0);
    }
  }
  t->device_close(device[0]);
  t->device_close(device[1]);
  bt_close(&b.base);
}

/* The same bits whether a program looks at its results, and as a graph; close to what they are. */
static void test_bits_are_of_shapes_and_types(void) {
  static const struct {
    const char *options;
    uint32_t flags;
  } ways[] = {{"bias_gradients=1", 0},
              {"bias_gradients=1", OPIPE_COMPILE_CHECK_FINITE},
              {"bias_gradients=1", OPIPE_COMPILE_CHECK_FINITE | OPIPE_COMPILE_POISON},
              {"bias_gradients=1,graphs=1", 0},
              {"bias_gradients=1,launch_blocking=1", 0}};
  static const form forms[] = {LAYER, TURNED, SHARED_BIAS, CROSSED};
  static result first, again;
  ct_backend b;
  CT_OPEN(&b);
  const opipe_backend *t = b.base.table;
  draw(false);
  for (size_t f = 0; f < 2 * (sizeof forms / sizeof forms[0]); ++f) {
    const form which = forms[f / 2];
    maker m;
    make_graph(&m, which, f % 2 ? OPIPE_BFLOAT16 : OPIPE_FLOAT);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; ++i) {
      opipe_device *device = NULL;
      OPI_ASSERT_OK_FATAL(bt_device(&b.base, ways[i].options, 1, 0, &device, &err), &err);
      run_graph(t, device, &m, ways[i].flags, i == 0 ? &first : &again);
      if (i == 0)
        expect_sums(&m, which, &first, 1e-6);
      else
        OPI_ASSERT(same_bits(&m, &first, &again));
      OPI_ASSERT_INT((i == 0 ? &first : &again)->sums_a, wanted[which].a);
      t->device_close(device);
    }
  }
  bt_close(&b.base);
}

static void test_what_is_refused_stays_apart(void) {
  static const char *const answers[] = {"7", "8", "15"};
  static result plain, refused;
  ct_backend b;
  opipe_device *device = NULL;
  maker m;
  CT_OPEN(&b);
  const opipe_backend *t = b.base.table;
  draw(false);
  make_graph(&m, LAYER, OPIPE_BFLOAT16);
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, "bias_gradients=0", 1, 0, &device, &err), &err);
  run_graph(t, device, &m, 0, &plain);
  t->device_close(device);
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, "bias_gradients=1", 1, 0, &device, &err), &err);
  for (size_t i = 0; i < sizeof answers / sizeof answers[0]; ++i) {
    (void)setenv("OPIPE_CUDA_DOUBLE_PRODUCTS_ANSWER", answers[i], 1);
    run_graph(t, device, &m, 0, &refused);
    (void)unsetenv("OPIPE_CUDA_DOUBLE_PRODUCTS_ANSWER");
    expect_counts(answers[i], LAYER, &refused, false);
    OPI_ASSERT(same_bits(&m, &plain, &refused));
  }
  run_graph(t, device, &m, OPIPE_COMPILE_NO_FUSE, &refused);
  OPI_ASSERT_INT(refused.sums_a, 0);
  OPI_ASSERT_ERROR(bt_device(&b.base, "bias_gradients=2", 1, 0, &device, &err), OPIPE_E_INVALID,
                   &err, "bias_gradients=2 (0 or 1)");
  t->device_close(device);
  bt_close(&b.base);
}

/* Operands that the product rounds are not what is to be summed. */
static void test_rounded_operands(void) {
  static result r;
  ct_backend b;
  opipe_device *device = NULL;
  maker m;
  CT_OPEN(&b);
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, "tf32=1,bias_gradients=1", 1, 0, &device, &err), &err);
  for (int half = 0; half < 2; ++half) {
    make_graph(&m, LAYER, half ? OPIPE_BFLOAT16 : OPIPE_FLOAT);
    run_graph(b.base.table, device, &m, 0, &r);
    expect_counts("tf32", LAYER, &r, half);
  }
  b.base.table->device_close(device);
  bt_close(&b.base);
}

/* The fastest algorithm has other sums in every run, with one product. */
static void test_sums_are_measured_too(void) {
  static result first, again;
  const opipe_tune_params params = {.struct_size = sizeof params};
  opipe_kernel kernel = {.struct_size = sizeof kernel}, found = {.struct_size = sizeof found};
  uint32_t n = 1;
  ct_backend b;
  opipe_device *device = NULL;
  bt_run run;
  maker m;
  CT_OPEN(&b);
  const opipe_backend *t = b.base.table;
  draw(false);
  make_graph(&m, LAYER, OPIPE_FLOAT);
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, "bias_gradients=1", 1, 0, &device, &err), &err);
  OPI_ASSERT_OK_FATAL(bt_prepare(t, device, &m.g, OPIPE_COMPILE_OWNED, &run, &err), &err);
  OPI_ASSERT_OK(t->program_kernels(run.program, &kernel, &n, &err), &err);
  OPI_ASSERT_OK(t->kernel_tune(run.program, &params, &kernel, &err), &err);
  bt_release(t, &run);
  OPI_ASSERT_STR(kernel.choice, "algorithm=31 tile=24 split=4 scheme=2 stages=5");
  OPI_ASSERT_INT(kernel.n_tried, 8);
  OPI_ASSERT_INT(kernel.n_dropped, 3);
  OPI_ASSERT_OK(t->kernels_use(device, &kernel, 1, &err), &err);
  run_graph(t, device, &m, 0, &first);
  run_graph(t, device, &m, 0, &again);
  OPI_ASSERT(same_bits(&m, &first, &again));
  expect_sums(&m, LAYER, &first, 1e-6);
  OPI_ASSERT_OK_FATAL(bt_prepare(t, device, &m.g, OPIPE_COMPILE_OWNED, &run, &err), &err);
  OPI_ASSERT_OK(t->program_kernels(run.program, &found, &n, &err), &err);
  OPI_ASSERT_INT(found.flags, OPIPE_KERNEL_GIVEN);
  bt_release(t, &run);
  t->device_close(device);
  bt_close(&b.base);
}

OPI_TEST_MAIN("gradients of biases on doubles of CUDA", OPI_TEST(test_sums_beside_products),
              OPI_TEST(test_bits_are_of_shapes_and_types),
              OPI_TEST(test_what_is_refused_stays_apart), OPI_TEST(test_rounded_operands),
              OPI_TEST(test_sums_are_measured_too))
