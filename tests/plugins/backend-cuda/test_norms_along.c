/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over rows that norms' gradients make along (norm_sums=1): which ones, with the dX of the
 * nodes one by one to the bit and their sums to rounding, and the same bits however a program runs.
 */
#include <math.h>

#include "cuda_test.h"

static opipe_error err = OPIPE_ERROR_INIT;

/* X, dY and what is added, [2, TOKENS, WIDE]; LONG: of rows that are too long. */
enum { TOKENS = 45, ROWS = 2 * TOKENS, WIDE = 24, LONG = 1032, RUNS = 3, MOST = TOKENS * LONG };

typedef enum form {
  ALL,          /* dX + c, of which columns are summed; scale and bias */
  ADDEND_FIRST, /* c + dX */
  NO_ADD,       /* columns of dX */
  RMS,
  FROZEN,     /* no gradient of the scale */
  NO_COLUMNS, /* the scale's alone */
  DIRECT,     /* columns by both leading axes, without a view */
  TWO_SUMS,   /* by two parameters */
  SCALE_LAST, /* the scale's gradient behind the sums */
  SCALE_OUT,  /* it is an output */
  ONE_WEIGHT, /* scale and bias are one parameter: both are added to it by themselves */
  /* sums that stay by themselves */
  OF_ADDEND,  /* columns of c */
  OF_BOTH,    /* of dX, of which the sum with c is made, too */
  POSITIONS,  /* sums over the batch alone */
  NOT_ADDED,  /* columns that are an output */
  LONG_ROWS,  /* of more elements than a warp keeps */
  ORDERED,    /* another sum goes to the same parameter before */
  OF_PRODUCT, /* a product makes the sums along */
  FORMS
} form;

/* Launches and products with norm_sums=1, and with 0. */
static const struct {
  uint32_t steps, apart;
} wanted[FORMS] = {
    [ALL] = {2, 5},        [ADDEND_FIRST] = {2, 5}, [NO_ADD] = {2, 5},     [RMS] = {2, 5},
    [FROZEN] = {2, 3},     [NO_COLUMNS] = {2, 3},   [DIRECT] = {2, 5},     [TWO_SUMS] = {4, 7},
    [SCALE_LAST] = {2, 5}, [SCALE_OUT] = {2, 5},    [ONE_WEIGHT] = {7, 8}, [OF_ADDEND] = {4, 5},
    [OF_BOTH] = {3, 6},    [POSITIONS] = {4, 5},    [NOT_ADDED] = {3, 4},  [LONG_ROWS] = {5, 5},
    [ORDERED] = {6, 7},    [OF_PRODUCT] = {4, 5}};

enum { PARAMETERS = 4, INPUTS = 3 };
typedef struct maker {
  bt_graph g;
  uint32_t dtype;
  int64_t wide;
  uint32_t in[INPUTS], scale; /* dY, X, c */
  uint32_t n;                 /* parameters */
  uint64_t n_elems[PARAMETERS];
} maker;

static float numbers[INPUTS + 1][ROWS * LONG];
static uint16_t halves[INPUTS + 1][ROWS * LONG];

typedef struct result {
  float sums[PARAMETERS][MOST];
  float made[2][ROWS * LONG]; /* outputs, of which type they be */
  float written[2][WIDE];     /* of scale and bias */
  uint32_t steps;
  uint64_t workspace_bytes;
} result;

/* Draws floats and, cut, bf16: the same numbers. */
static void draw(void) {
  uint32_t seed = 11;
  for (int k = 0; k <= INPUTS; ++k) {
    for (int i = 0; i < ROWS * LONG; ++i) {
      uint32_t bits = 0;
      seed = seed * 1664525u + 1013904223u;
      numbers[k][i] = (float)(int)(seed >> 8) / 8388608.0f - 0.75f;
      memcpy(&bits, &numbers[k][i], sizeof bits);
      halves[k][i] = (uint16_t)(bits >> 16);
      bits &= 0xffff0000u;
      memcpy(&numbers[k][i], &bits, sizeof bits);
    }
  }
}

static uint32_t temp(maker *m, uint32_t dtype, uint32_t rank, const int64_t *shape) {
  return bt_value(&m->g, OPIPE_VALUE_TEMP, dtype, NULL, rank, shape);
}

static opipe_node *gradient(maker *m, const char *op, const uint32_t *in, const uint32_t *out) {
  opipe_node *node = bt_node(&m->g, op, in, out);
  node->domain = "opipe";
  node->pass = OPIPE_PASS_BACKWARD;
  return node;
}

/* From a value of as many elements to the gradient of parameter `slot`, which may be a new one. */
static void accumulate(maker *m, uint32_t from, uint32_t slot) {
  static const float zeros[MOST];
  bt_graph *g = &m->g;
  const int64_t *shape = g->values[from].shape;
  const uint32_t rank = g->values[from].rank;
  const bool is_float = g->values[from].dtype == OPIPE_FLOAT;
  uint32_t wide = from;
  if (!is_float) {
    wide = temp(m, OPIPE_FLOAT, rank, shape);
    bt_int(g, bt_node(g, "Cast", BT_IN(from), BT_OUT(wide)), "to", OPIPE_FLOAT);
  }
  if (slot == m->n) {
    (void)bt_value(g, OPIPE_VALUE_PARAMETER, OPIPE_FLOAT, zeros, rank, shape);
    m->n_elems[m->n++] = g->values[from].n_bytes / (is_float ? sizeof(float) : sizeof(uint16_t));
  }
  const uint32_t sum = bt_value(g, OPIPE_VALUE_GRADIENT, OPIPE_FLOAT, NULL, rank, shape);
  g->values[sum].slot = slot;
  (void)gradient(m, "Accumulate", BT_IN(wide), BT_OUT(sum));
}

/* out: NULL, or where they are written. */
static void add_scale(maker *m, bool rms, bool shared, float (*out)[WIDE]) {
  const int64_t line[1] = {m->wide};
  const uint32_t role = out != NULL ? OPIPE_VALUE_OUTPUT : OPIPE_VALUE_TEMP;
  uint32_t made[2] = {OPIPE_NONE, OPIPE_NONE};
  for (int i = 0; i < (rms ? 1 : 2); ++i)
    made[i] = bt_value(&m->g, role, OPIPE_FLOAT, out != NULL ? out[i] : NULL, 1, line);
  opipe_node *node =
      gradient(m, rms ? "RMSNormalizationGradScale" : "LayerNormalizationGradScale",
               BT_IN(m->in[0], m->in[1]), rms ? BT_OUT(made[0]) : BT_OUT(made[0], made[1]));
  bt_int(&m->g, node, "axis", 2);
  for (int i = 0; i < (rms ? 1 : 2) && out == NULL; ++i)
    accumulate(m, made[i], shared && i == 1 ? m->n - 1 : m->n);
}

/* Sums of what is viewed as rows of all columns, or of POSITIONS. */
static void add_columns(maker *m, form which, uint32_t of, uint32_t slot) {
  static const int64_t axes[2] = {0, 1};
  static int64_t flat[2];
  bt_graph *g = &m->g;
  const int64_t left[2] = {which == POSITIONS ? TOKENS : 1, m->wide};
  const bool views = which != DIRECT && which != POSITIONS;
  flat[0] = ROWS;
  flat[1] = m->wide;
  if (views) {
    const uint32_t as = bt_value(g, OPIPE_VALUE_CONSTANT, OPIPE_INT64, flat, BT_SHAPE(2));
    const uint32_t rows = temp(m, m->dtype, 2, flat);
    (void)bt_node(g, "Reshape", BT_IN(of, as), BT_OUT(rows));
    of = rows;
  }
  const int64_t n = which == DIRECT ? 2 : 1;
  const uint32_t over = bt_value(g, OPIPE_VALUE_CONSTANT, OPIPE_INT64, axes, 1, &n);
  const uint32_t role = which == NOT_ADDED ? OPIPE_VALUE_OUTPUT : OPIPE_VALUE_TEMP;
  static float sums[LONG];
  const uint32_t to = bt_value(g, role, m->dtype, role == OPIPE_VALUE_OUTPUT ? sums : NULL,
                               which == POSITIONS ? 2 : 1, which == POSITIONS ? left : left + 1);
  bt_int(g, bt_node(g, "ReduceSum", BT_IN(of, over), BT_OUT(to)), "keepdims", 0);
  if (which != NOT_ADDED)
    accumulate(m, to, slot);
}

/* dW = c^T `dy` */
static void add_weight(maker *m, uint32_t dy) {
  static const int64_t flat[2] = {ROWS, WIDE}, square[2] = {WIDE, WIDE};
  bt_graph *g = &m->g;
  const uint32_t as = bt_value(g, OPIPE_VALUE_CONSTANT, OPIPE_INT64, flat, BT_SHAPE(2));
  uint32_t in[2];
  for (int i = 0; i < 2; ++i) {
    in[i] = temp(m, m->dtype, 2, flat);
    (void)bt_node(g, "Reshape", BT_IN(i == 0 ? m->in[2] : dy, as), BT_OUT(in[i]));
  }
  const uint32_t dw = temp(m, m->dtype, 2, square);
  bt_int(g, bt_node(g, "Gemm", BT_IN(in[0], in[1]), BT_OUT(dw)), "transA", 1);
  accumulate(m, dw, m->n);
}

static void make_graph(maker *m, form which, uint32_t dtype, result *out) {
  const bool long_rows = which == LONG_ROWS, adds = which != NO_ADD;
  memset(m, 0, sizeof *m);
  bt_init(&m->g);
  bt_graph *g = &m->g;
  m->dtype = dtype;
  m->wide = long_rows ? LONG : WIDE;
  const int64_t shape[3] = {2, TOKENS, m->wide};
  for (int i = 0; i <= INPUTS; ++i) {
    void *data = dtype == OPIPE_FLOAT ? (void *)numbers[i] : (void *)halves[i];
    const uint32_t in = i < INPUTS ? bt_value(g, OPIPE_VALUE_INPUT, dtype, data, 3, shape)
                                   : bt_value(g, OPIPE_VALUE_INPUT, dtype, data, 1, shape + 2);
    *(i < INPUTS ? &m->in[i] : &m->scale) = in;
  }
  const uint32_t made = bt_value(g, OPIPE_VALUE_OUTPUT, dtype, out->made[0], 3, shape);
  const uint32_t dx = !adds ? made
                      : which == OF_BOTH
                          ? bt_value(g, OPIPE_VALUE_OUTPUT, dtype, out->made[1], 3, shape)
                          : temp(m, dtype, 3, shape);
  bt_int(g,
         gradient(m, which == RMS ? "RMSNormalizationGrad" : "LayerNormalizationGrad",
                  BT_IN(m->in[0], m->in[1], m->scale), BT_OUT(dx)),
         "axis", 2);
  if (which != FROZEN && which != SCALE_LAST)
    add_scale(m, which == RMS, which == ONE_WEIGHT, which == SCALE_OUT ? out->written : NULL);
  if (adds) {
    const uint32_t first = which == ADDEND_FIRST ? m->in[2] : dx;
    (void)bt_node(g, "Add", BT_IN(first, first == dx ? m->in[2] : dx), BT_OUT(made));
  }
  if (which == OF_PRODUCT)
    add_weight(m, made);
  const uint32_t slot = m->n;
  if (which == ORDERED)
    add_columns(m, which, m->in[0], slot);
  const uint32_t summed = which == OF_ADDEND ? m->in[2] : which == OF_BOTH ? dx : made;
  if (which != NO_COLUMNS)
    add_columns(m, which, summed, slot);
  if (which == TWO_SUMS)
    add_columns(m, which, made, m->n);
  if (which == SCALE_LAST)
    add_scale(m, false, false, NULL);
}

/* Gradients after some runs, and what the last one made. */
static void run_graph(const opipe_backend *t, opipe_device *device, const maker *m, uint32_t flags,
                      result *out) {
  bt_run run;
  ct_run(t, device, &m->g, OPIPE_COMPILE_OWNED | flags, RUNS, &run);
  for (uint32_t p = 0; p < m->n; ++p) {
    OPI_ASSERT_OK(
        t->params_read(run.gradients, p, out->sums[p], m->n_elems[p] * sizeof(float), &err), &err);
  }
  out->steps = run.info.n_kernels;
  out->workspace_bytes = run.info.workspace_bytes;
  bt_release(t, &run);
}

static void make_and_run(const opipe_backend *t, opipe_device *device, form which, uint32_t dtype,
                         uint32_t flags, result *out, maker *m) {
  memset(out, 0, sizeof *out);
  make_graph(m, which, dtype, out);
  run_graph(t, device, m, flags, out);
}

/* Sums of at most RUNS ROWS numbers of a few units each. */
static void expect_close(form which, const maker *m, const result *a, const result *b) {
  for (int i = 0; i < 2 * WIDE; ++i) {
    const float found = a->written[i / WIDE][i % WIDE], wanted_sum = b->written[i / WIDE][i % WIDE];
    OPI_ASSERT(fabsf(found - wanted_sum) <= 1e-4f * (1 + fabsf(wanted_sum)));
  }
  for (uint32_t p = 0; p < m->n; ++p) {
    for (uint64_t i = 0; i < m->n_elems[p]; ++i) {
      const float wanted_sum = b->sums[p][i];
      if (fabsf(a->sums[p][i] - wanted_sum) > 1e-4f * (1 + fabsf(wanted_sum))) {
        OPI_FAIL("form %d, parameter %u, element %u: %g, wanted %g", (int)which, p, (unsigned)i,
                 (double)a->sums[p][i], (double)wanted_sum);
      }
    }
  }
}

static const uint32_t types[] = {OPIPE_FLOAT, OPIPE_BFLOAT16};
static result along, apart, alone;

static const char *options_of(form which, bool sums) {
  return which == OF_PRODUCT
             ? (sums ? "fallback=none,bias_gradients=1" : "bias_gradients=1,norm_sums=0")
             : (sums ? "fallback=none" : "norm_sums=0");
}

static void test_which_sums_go_along(void) {
  ct_backend b;
  maker m;
  CT_OPEN(&b);
  draw();
  for (uint32_t i = 0; i < 2 * FORMS; ++i) {
    const form which = (form)(i / 2);
    opipe_device *device[2];
    for (int k = 0; k < 2; ++k) {
      OPI_ASSERT_OK_FATAL(bt_device(&b.base, options_of(which, k == 0), 1, 0, &device[k], &err),
                          &err);
    }
    make_and_run(b.base.table, device[0], which, types[i % 2], 0, &along, &m);
    make_and_run(b.base.table, device[1], which, types[i % 2], 0, &apart, &m);
    make_and_run(b.base.table, device[0], which, types[i % 2], OPIPE_COMPILE_NO_FUSE, &alone, &m);
    if (along.steps != wanted[which].steps || apart.steps != wanted[which].apart) {
      OPI_FAIL("form %d: %u launches, apart %u; wanted %u and %u", (int)which, along.steps,
               apart.steps, wanted[which].steps, wanted[which].apart);
    }
    OPI_ASSERT(memcmp(along.made, alone.made, sizeof along.made) == 0);
    OPI_ASSERT(memcmp(apart.made, alone.made, sizeof along.made) == 0);
    expect_close(which, &m, &along, &apart);
    if (along.steps == apart.steps)
      OPI_ASSERT(memcmp(along.sums, apart.sums, sizeof along.sums) == 0);
    for (int k = 0; k < 2; ++k)
      b.base.table->device_close(device[k]);
  }
  bt_close(&b.base);
}

/* The same bits whether a program looks at its results, and as a graph. */
static void test_bits_are_of_shapes_and_types(void) {
  static const struct {
    const char *options;
    uint32_t flags;
  } ways[] = {{NULL, 0},
              {"norm_sums=1", OPIPE_COMPILE_CHECK_FINITE},
              {"norm_sums=1", OPIPE_COMPILE_CHECK_FINITE | OPIPE_COMPILE_POISON},
              {"graphs=1", 0},
              {"launch_blocking=1", 0}};
  static const form forms[] = {ALL, RMS, FROZEN, TWO_SUMS, SCALE_OUT};
  ct_backend b;
  maker m;
  CT_OPEN(&b);
  draw();
  for (size_t f = 0; f < 2 * (sizeof forms / sizeof forms[0]); ++f) {
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; ++i) {
      opipe_device *device = NULL;
      OPI_ASSERT_OK_FATAL(bt_device(&b.base, ways[i].options, 1, 0, &device, &err), &err);
      make_and_run(b.base.table, device, forms[f / 2], types[f % 2], ways[i].flags,
                   i == 0 ? &along : &apart, &m);
      if (i > 0) {
        OPI_ASSERT(memcmp(along.made, apart.made, sizeof along.made) == 0);
        OPI_ASSERT(memcmp(along.sums, apart.sums, sizeof along.sums) == 0);
        OPI_ASSERT(memcmp(along.written, apart.written, sizeof along.written) == 0);
      }
      b.base.table->device_close(device);
    }
  }
  bt_close(&b.base);
}

/* The workspace has, for every chunk of 16 rows, as many sums as are made, and nothing beside
 * them. */
static void test_workspace(void) {
  static const struct {
    form which;
    uint64_t sums;
  } cases[] = {{ALL, 3}, {RMS, 2}, {FROZEN, 1}, {NO_COLUMNS, 2}};
  ct_backend b;
  opipe_device *device = NULL;
  maker m;
  CT_OPEN(&b);
  draw();
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, NULL, 1, 0, &device, &err), &err);
  for (size_t i = 0; i < 2 * (sizeof cases / sizeof cases[0]); ++i) {
    const uint64_t chunks = (ROWS + 15) / 16, sums = cases[i / 2].sums;
    make_and_run(b.base.table, device, cases[i / 2].which, types[i % 2], 0, &along, &m);
    OPI_ASSERT_INT(along.workspace_bytes, (chunks * sums * WIDE * sizeof(float) + 255) / 256 * 256);
  }
  b.base.table->device_close(device);
  bt_close(&b.base);
}

static void test_option(void) {
  ct_backend b;
  opipe_device *device = NULL;
  CT_OPEN(&b);
  OPI_ASSERT_ERROR(bt_device(&b.base, "norm_sums=2", 1, 0, &device, &err), OPIPE_E_INVALID, &err,
                   "norm_sums=2 (0 or 1)");
  OPI_ASSERT_ERROR(bt_device(&b.base, "norm_sum=1", 1, 0, &device, &err), OPIPE_E_INVALID, &err,
                   "half_copies, norm_sums, sm");
  bt_close(&b.base);
}

OPI_TEST_MAIN("norms' gradients and sums on doubles of CUDA", OPI_TEST(test_which_sums_go_along),
              OPI_TEST(test_bits_are_of_shapes_and_types), OPI_TEST(test_workspace),
              OPI_TEST(test_option))
