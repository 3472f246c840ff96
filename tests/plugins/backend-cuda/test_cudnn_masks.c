/* SPDX-License-Identifier: Apache-2.0 */
/* Masked attention and attention with a past by cuDNN, on its double, against plain loops in
 * double: masks of every kind and repetition, rows that see nothing, gradients; dnn_masks=0 leaves
 * all of them to our own kernels.
 */
#include "cudnn_bench.h"

static opipe_error err = OPIPE_ERROR_INIT;

enum { ROOM = 1 << 15, BATCH = 2 };

/* Which elements of a mask are hidden, or low. */
enum { NONE = 0, RANDOM, FIRST_ROWS, LAST_KEYS, FIRST_KEYS };
/* Numbers of them in floats: -infinity, the lowest of the type, or the number itself. */
enum { MINUS_INFINITY = 0, THE_LOWEST };

typedef struct form {
  int64_t heads, kv_heads, queries, fresh, past, depth, value_depth;
  bool causal;
  uint32_t dtype, mask; /* OPIPE_UNDEFINED: none */
  int repeats;          /* bits: batch 1, heads 2, rows 4 */
  int hides;
  double low;
} form;

#define B16 OPIPE_BFLOAT16
#define F16 OPIPE_FLOAT16
#define F32 OPIPE_FLOAT

static const form forms[] = {
    {2, 2, 40, 40, 0, 16, 16, false, B16, OPIPE_BOOL, 2, RANDOM, 0},
    {2, 1, 33, 48, 0, 8, 16, false, F16, OPIPE_BOOL, 6, LAST_KEYS, 0},
    {2, 2, 48, 33, 0, 16, 8, true, B16, OPIPE_BOOL, 6, FIRST_KEYS, 0},
    {4, 2, 40, 40, 0, 16, 16, false, F16, OPIPE_BOOL, 3, FIRST_ROWS, 0},
    {2, 2, 40, 40, 0, 16, 16, true, B16, B16, 2, FIRST_KEYS, MINUS_INFINITY},
    {2, 1, 40, 40, 0, 16, 16, false, B16, B16, 2, FIRST_ROWS, THE_LOWEST},
    {2, 2, 40, 40, 0, 16, 16, true, F16, F16, 2, FIRST_KEYS, THE_LOWEST},
    {2, 2, 40, 37, 0, 16, 16, false, F16, F16, 0, FIRST_ROWS, MINUS_INFINITY},
    {2, 2, 40, 40, 0, 16, 16, true, B16, F32, 2, FIRST_KEYS, THE_LOWEST},
    {2, 2, 40, 40, 0, 16, 16, false, B16, F32, 6, FIRST_KEYS, -1e9},
    {2, 2, 40, 40, 0, 16, 16, false, F16, F32, 1, FIRST_ROWS, -1e9},
    {4, 1, 32, 50, 0, 16, 16, true, F16, F32, 7, FIRST_KEYS, MINUS_INFINITY},
    {2, 2, 36, 36, 0, 16, 16, false, B16, F32, 5, NONE, 0},
    /* none of which is, times log2(e) and then ln(2) in floats, the number that it was */
    {2, 2, 40, 80, 0, 16, 16, false, B16, F32, 2, FIRST_ROWS, -1e8},
    {2, 1, 36, 40, 0, 16, 16, true, F16, F32, 2, FIRST_KEYS, -1e12},
    {2, 2, 40, 40, 0, 16, 16, false, F16, F16, 2, FIRST_ROWS, -65000},
    {2, 2, 36, 40, 0, 16, 16, true, F16, F16, 2, FIRST_KEYS, -49184},
    {2, 2, 40, 33, 0, 16, 16, false, B16, B16, 2, FIRST_ROWS, -11520},
};
enum { FORMS = sizeof forms / sizeof forms[0] };

static const form pasts[] = {
    {2, 1, 40, 40, 24, 16, 8, true, B16, OPIPE_UNDEFINED, 0, 0, 0},
    {2, 2, 33, 40, 7, 16, 16, false, F16, OPIPE_UNDEFINED, 0, 0, 0},
    {2, 2, 40, 40, 8, 16, 16, true, B16, OPIPE_BOOL, 6, FIRST_KEYS, 0},
    {2, 1, 36, 44, 5, 16, 16, true, F16, F32, 2, FIRST_ROWS, THE_LOWEST},
    {2, 2, 36, 36, 5, 8, 16, false, B16, B16, 6, LAST_KEYS, MINUS_INFINITY},
};
enum { PASTS = sizeof pasts / sizeof pasts[0] };

enum { Q, K, V, DY, PAST_K, PAST_V, Y, DQ, DK, DV, PRESENT_K, PRESENT_V, TENSORS };

typedef struct bench {
  cd_opening on;
  bool hands_on; /* Attention gives its gradient what it found */
  uint16_t data[TENSORS][ROOM];
  unsigned char mask[ROOM * 4];
  double shown[ROOM]; /* as it is added; -infinity: hidden */
  int64_t n[TENSORS];
} bench;

static double low_of(const form *f) {
  if (f->mask == OPIPE_BOOL || f->low == MINUS_INFINITY)
    return -(double)INFINITY;
  if (f->low < 0)
    return f->low;
  if (f->mask == OPIPE_FLOAT16)
    return -65504;
  return f->mask == OPIPE_BFLOAT16 ? -0x1.fep127 : -0x1.fffffep127;
}

/* Beside -1e8 scores vanish in sums of floats up to 4. */
static double scale_of(const form *f) {
  return f->mask == OPIPE_FLOAT && f->low < 0 ? (double)0.05f : (double)0.3f;
}

/* ---- graphs ---- */

static int64_t keys_of(const form *f) {
  return f->past + f->fresh;
}

static void mask_strides(const form *f, int64_t *out_size, int64_t *out_stride) {
  int64_t n = 1;
  const int64_t size[4] = {(f->repeats & 1) != 0 ? 1 : BATCH, (f->repeats & 2) != 0 ? 1 : f->heads,
                           (f->repeats & 4) != 0 ? 1 : f->queries, keys_of(f)};
  for (int i = 3; i >= 0; --i) {
    out_size[i] = size[i];
    out_stride[i] = size[i] > 1 ? n : 0;
    n *= size[i];
  }
}

static bool is_low(const form *f, int64_t i, int64_t rows, int64_t b) {
  const int64_t key = i % keys_of(f), row = i / keys_of(f) % rows;
  switch (f->hides) {
    case RANDOM:
      return (i * 13 + i / 7) % 3 == 0;
    case FIRST_ROWS:
      return row < rows / 3 || (i + row) % 4 == 0;
    case LAST_KEYS:
      return key >= keys_of(f) - 5 - 4 * b;
    case FIRST_KEYS:
      return key < (b == 0 ? 0 : 9);
    default:
      return false;
  }
}

static uint32_t add_mask(bench *x, bt_graph *g, const form *f) {
  int64_t size[4], stride[4];
  mask_strides(f, size, stride);
  const int64_t n = size[0] * size[1] * size[2] * size[3];
  OPI_ASSERT_FATAL(n <= ROOM);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t b = size[0] == 1 ? 1 : i / (n / BATCH);
    const bool low = is_low(f, i, size[2], b);
    const double other = f->mask == OPIPE_BOOL ? 0 : (double)((i * 5 + i / 9) % 17 - 8) / 8;
    x->shown[i] = low ? low_of(f) : other;
    if (f->mask == OPIPE_BOOL) {
      x->mask[i] = !low;
    } else if (f->mask == OPIPE_FLOAT) {
      const float number = (float)x->shown[i];
      memcpy(x->mask + 4 * i, &number, sizeof number);
    } else {
      const uint16_t number = cd_to_half(f->mask, x->shown[i]);
      memcpy(x->mask + 2 * i, &number, sizeof number);
    }
  }
  return bt_value(g, OPIPE_VALUE_INPUT, f->mask, x->mask,
                  BT_SHAPE(size[0], size[1], size[2], size[3]));
}

static uint32_t tensor(bench *x, bt_graph *g, const form *f, int which, int64_t heads, int64_t rows,
                       int64_t depth) {
  const uint32_t role = which < Y ? OPIPE_VALUE_INPUT : OPIPE_VALUE_OUTPUT;
  x->n[which] = BATCH * heads * rows * depth;
  OPI_ASSERT_FATAL(x->n[which] <= ROOM);
  for (int64_t i = 0; i < x->n[which]; ++i) {
    const int64_t number = (i * (7 + which) + i / 11 * 5) % 67 - 33;
    x->data[which][i] = which < Y ? cd_to_half(f->dtype, (double)number * 0.0625) : 0xffff;
  }
  return bt_value(g, role, f->dtype, x->data[which], BT_SHAPE(BATCH, heads, rows, depth));
}

static void set_attributes(bt_graph *g, opipe_node *node, const form *f) {
  bt_int(g, node, "is_causal", f->causal);
  bt_float(g, node, "scale", scale_of(f));
}

/* Attention; without a past its gradients, too; with one what it puts together, if `presents`. */
static void make_graph(bench *x, bt_graph *g, const form *f, bool presents) {
  const uint32_t no = OPIPE_NONE;
  bt_init(g);
  memset(x->n, 0, sizeof x->n);
  const uint32_t q = tensor(x, g, f, Q, f->heads, f->queries, f->depth);
  const uint32_t k = tensor(x, g, f, K, f->kv_heads, f->fresh, f->depth);
  const uint32_t v = tensor(x, g, f, V, f->kv_heads, f->fresh, f->value_depth);
  const uint32_t y = tensor(x, g, f, Y, f->heads, f->queries, f->value_depth);
  const uint32_t mask = f->mask != OPIPE_UNDEFINED ? add_mask(x, g, f) : no;
  if (f->past > 0) {
    const uint32_t pk = tensor(x, g, f, PAST_K, f->kv_heads, f->past, f->depth);
    const uint32_t pv = tensor(x, g, f, PAST_V, f->kv_heads, f->past, f->value_depth);
    const uint32_t k2 =
        presents ? tensor(x, g, f, PRESENT_K, f->kv_heads, keys_of(f), f->depth) : no;
    const uint32_t v2 =
        presents ? tensor(x, g, f, PRESENT_V, f->kv_heads, keys_of(f), f->value_depth) : no;
    opipe_node *node = bt_node(g, "Attention", BT_IN(q, k, v, mask, pk, pv), BT_OUT(y, k2, v2));
    node->n_out = presents ? 3 : 1;
    set_attributes(g, node, f);
    return;
  }
  const uint32_t dy = tensor(x, g, f, DY, f->heads, f->queries, f->value_depth);
  const uint32_t dq = tensor(x, g, f, DQ, f->heads, f->queries, f->depth);
  const uint32_t dk = tensor(x, g, f, DK, f->kv_heads, f->fresh, f->depth);
  const uint32_t dv = tensor(x, g, f, DV, f->kv_heads, f->fresh, f->value_depth);
  const uint32_t found = !x->hands_on ? no
                                      : bt_value(g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL,
                                                 BT_SHAPE(BATCH, f->heads, f->queries));
  opipe_node *node = bt_node(g, "Attention", BT_IN(q, k, v, mask), BT_OUT(y, no, no, no, found));
  node->n_out = x->hands_on ? 5 : 1;
  set_attributes(g, node, f);
  node = bt_node(g, "AttentionGrad", BT_IN(dy, q, k, v, mask, no, no, no, y, found),
                 BT_OUT(dq, dk, dv));
  node->n_in = x->hands_on ? 10 : 5;
  node->domain = "opipe";
  node->pass = OPIPE_PASS_BACKWARD;
  set_attributes(g, node, f);
}

/* Runs it twice, with the same bits. Steps of the program. */
static uint32_t run_form(bench *x, const form *f, bool presents) {
  bt_graph g;
  bt_run run;
  static uint16_t before[TENSORS][ROOM];
  opipe_event *event = NULL;
  make_graph(x, &g, f, presents);
  OPI_ASSERT_OK_FATAL(bt_prepare(x->on.t, x->on.device, &g, 0, &run, &err), &err);
  OPI_ASSERT_OK_FATAL(x->on.t->event_create(x->on.device, &event, &err), &err);
  for (int i = 0; i < 2; ++i) {
    for (int w = Y; w < TENSORS; ++w)
      memset(x->data[w], 0xff, sizeof x->data[w]); /* NaN */
    OPI_ASSERT_OK(bt_step(x->on.t, &g, &run, &err), &err);
    OPI_ASSERT_OK(x->on.t->event_record(run.queue, event, &err), &err);
    OPI_ASSERT_OK(x->on.t->event_sync(event, UINT64_C(60000000000), &err), &err);
    OPI_ASSERT(i == 0 || memcmp(before, x->data, sizeof before) == 0);
    memcpy(before, x->data, sizeof before);
  }
  x->on.t->event_destroy(event);
  bt_release(x->on.t, &run);
  return run.info.n_kernels;
}

/* ---- plain loops ---- */

static double want[TENSORS][ROOM], weight[512], product[512];

static double *want_of_key(const form *f, int which, int64_t b, int64_t kv, int64_t j,
                           int64_t depth) {
  return want[which] + ((b * f->kv_heads + kv) * keys_of(f) + j) * depth;
}

/* Element d of key or value j of what is put together. */
static double joined(const bench *x, const form *f, int which, int64_t b, int64_t kv, int64_t j,
                     int64_t d) {
  const int64_t depth = which == K ? f->depth : f->value_depth, head = b * f->kv_heads + kv;
  const uint16_t *from = j < f->past
                             ? x->data[which == K ? PAST_K : PAST_V] + (head * f->past + j) * depth
                             : x->data[which] + (head * f->fresh + j - f->past) * depth;
  return cd_from_half(f->dtype, from[d]);
}

/* Weights of a row; false: it sees nothing. */
static bool weigh(const bench *x, const form *f, int64_t b, int64_t h, int64_t i) {
  const uint16_t *q = x->data[Q] + ((b * f->heads + h) * f->queries + i) * f->depth;
  int64_t size[4] = {0}, stride[4] = {0};
  double top = -(double)INFINITY, sum = 0;
  mask_strides(f, size, stride);
  for (int64_t j = 0; j < keys_of(f); ++j) {
    double s = 0;
    for (int64_t d = 0; d < f->depth; ++d)
      s += cd_from_half(f->dtype, q[d]) * joined(x, f, K, b, h / (f->heads / f->kv_heads), j, d);
    s *= scale_of(f);
    if (f->mask != OPIPE_UNDEFINED) {
      const double m = x->shown[b * stride[0] + h * stride[1] + i * stride[2] + j * stride[3]];
      s = m < -1e4 ? m : s + m; /* as sums of floats and of half types are rounded */
    }
    weight[j] = f->causal && j > i + f->past ? -(double)INFINITY : s;
    top = fmax(top, weight[j]);
  }
  for (int64_t j = 0; j < keys_of(f); ++j) {
    weight[j] = top == -(double)INFINITY ? 0 : exp(weight[j] - top);
    sum += weight[j];
  }
  for (int64_t j = 0; j < keys_of(f); ++j)
    weight[j] = sum == 0 ? 0 : weight[j] / sum;
  return sum != 0;
}

static void grad_row(const bench *x, const form *f, int64_t b, int64_t h, int64_t i) {
  const int64_t row = (b * f->heads + h) * f->queries + i, kv = h / (f->heads / f->kv_heads);
  double weighted = 0;
  for (int64_t j = 0; j < keys_of(f); ++j) {
    product[j] = 0;
    for (int64_t d = 0; d < f->value_depth; ++d) {
      const double dy = cd_from_half(f->dtype, x->data[DY][row * f->value_depth + d]);
      product[j] += dy * joined(x, f, V, b, kv, j, d);
      want_of_key(f, DV, b, kv, j, f->value_depth)[d] += weight[j] * dy;
    }
    weighted += weight[j] * product[j];
  }
  for (int64_t j = 0; j < keys_of(f); ++j) {
    const double ds = weight[j] * (product[j] - weighted) * scale_of(f);
    for (int64_t d = 0; d < f->depth; ++d) {
      want[DQ][row * f->depth + d] += ds * joined(x, f, K, b, kv, j, d);
      want_of_key(f, DK, b, kv, j, f->depth)[d] +=
          ds * cd_from_half(f->dtype, x->data[Q][row * f->depth + d]);
    }
  }
}

/* How many rows see nothing, which are 0 to the bit. */
static int64_t make_wanted(const bench *x, const form *f) {
  int64_t nothing = 0;
  memset(want, 0, sizeof want);
  for (int64_t row = 0; row < BATCH * f->heads * f->queries; ++row) {
    const int64_t b = row / f->queries / f->heads, h = row / f->queries % f->heads,
                  kv = h / (f->heads / f->kv_heads);
    const bool sees = weigh(x, f, b, h, row % f->queries);
    nothing += !sees;
    for (int64_t d = 0; d < f->value_depth; ++d) {
      for (int64_t j = 0; j < keys_of(f); ++j)
        want[Y][row * f->value_depth + d] += weight[j] * joined(x, f, V, b, kv, j, d);
      OPI_ASSERT(sees || cd_from_half(f->dtype, x->data[Y][row * f->value_depth + d]) == 0);
    }
    if (f->past == 0)
      grad_row(x, f, b, h, row % f->queries);
    for (int64_t d = 0; f->past == 0 && d < f->depth; ++d)
      OPI_ASSERT(sees || cd_from_half(f->dtype, x->data[DQ][row * f->depth + d]) == 0);
  }
  return nothing;
}

static void assert_wanted(const bench *x, const form *f, size_t number) {
  for (int w = Y; w <= DV; ++w) {
    double off = 0, norm = 0;
    for (int64_t i = 0; i < x->n[w]; ++i) {
      const double a = cd_from_half(f->dtype, x->data[w][i]);
      off += (a - want[w][i]) * (a - want[w][i]);
      norm += want[w][i] * want[w][i];
    }
    const double limit = f->dtype == OPIPE_BFLOAT16 ? 1.5e-2 : 2e-3;
    if (x->n[w] > 0 && (!(off <= limit * limit * norm) || norm == 0))
      OPI_FAIL("form %zu, result %d: off by %g of %g", number, w - Y, sqrt(off), sqrt(norm));
  }
}

static bench with, without;

static void test_masks(void) {
  int64_t nothing = 0;
  if (!cd_open(&without.on, "dnn_masks=0"))
    OPI_SKIP("%s", CT_WHY);
  OPI_ASSERT_FATAL(cd_open(&with.on, "fallback=none"));
  for (size_t i = 0; i < FORMS; ++i) {
    const uint32_t n_told = with.on.n_told;
    if (!opi_test_covers(i, 2))
      continue;
    OPI_ASSERT_INT(run_form(&with, &forms[i], false), 6); /* prepare, plan, settle; a plan */
    OPI_ASSERT_INT(with.on.n_told, n_told + 2);
    nothing += make_wanted(&with, &forms[i]);
    assert_wanted(&with, &forms[i], i);
    (void)run_form(&without, &forms[i], false);
    (void)make_wanted(&without, &forms[i]);
    assert_wanted(&without, &forms[i], i);
  }
  OPI_ASSERT(nothing > (opi_test_is_cover() ? 20 : 50));
  OPI_ASSERT_INT(with.on.n_warned + without.on.n_warned + without.on.n_told, 0);
  cd_close(&with.on);
  cd_close(&without.on);
}

/* Gradients of what the Attention found: not made again by cuDNN, not looked at by our own
 * kernels. */
static void test_handed_on(void) {
  if (!cd_open(&without.on, "dnn_masks=0"))
    OPI_SKIP("%s", CT_WHY);
  OPI_ASSERT_FATAL(cd_open(&with.on, "fallback=none"));
  with.hands_on = without.hands_on = true;
  for (size_t i = 0; i < FORMS; ++i) {
    if (!opi_test_covers(i + 1, 2))
      continue;
    OPI_ASSERT_INT(run_form(&with, &forms[i], false), 5); /* prepare, plan, settle; plan, settle */
    (void)make_wanted(&with, &forms[i]);
    assert_wanted(&with, &forms[i], i);
    (void)run_form(&without, &forms[i], false);
    (void)make_wanted(&without, &forms[i]);
    assert_wanted(&without, &forms[i], i);
  }
  OPI_ASSERT_INT(with.on.n_warned + without.on.n_warned + without.on.n_told, 0);
  with.hands_on = without.hands_on = false;
  cd_close(&with.on);
  cd_close(&without.on);
}

static void assert_joined(const bench *x, const form *f, int which) {
  const int64_t depth = which == K ? f->depth : f->value_depth;
  const uint16_t *found = x->data[which == K ? PRESENT_K : PRESENT_V];
  for (int64_t i = 0; i < BATCH * f->kv_heads * keys_of(f) * depth; ++i) {
    const int64_t head = i / depth / keys_of(f);
    OPI_ASSERT(cd_from_half(f->dtype, found[i]) == joined(x, f, which, head / f->kv_heads,
                                                          head % f->kv_heads,
                                                          i / depth % keys_of(f), i % depth));
  }
}

static void test_pasts(void) {
  if (!cd_open(&without.on, "dnn_masks=0"))
    OPI_SKIP("%s", CT_WHY);
  OPI_ASSERT_FATAL(cd_open(&with.on, "fallback=none"));
  for (size_t i = 0; i < 2 * PASTS; ++i) {
    const form *f = &pasts[i / 2];
    const bool masked = f->mask != OPIPE_UNDEFINED;
    const uint32_t n_told = with.on.n_told;
    OPI_ASSERT_INT(run_form(&with, f, i % 2 != 0), 4 + 1 + (masked ? 2 : 0));
    OPI_ASSERT_INT(with.on.n_told, n_told + (i % 2 == 0)); /* made once */
    (void)make_wanted(&with, f);
    assert_wanted(&with, f, i);
    if (i % 2 != 0) {
      assert_joined(&with, f, K);
      assert_joined(&with, f, V);
    }
    (void)run_form(&without, f, i % 2 != 0);
    (void)make_wanted(&without, f);
    assert_wanted(&without, f, i);
  }
  OPI_ASSERT_INT(with.on.n_warned + without.on.n_warned + without.on.n_told, 0);
  cd_close(&with.on);
  cd_close(&without.on);
}

enum { LAYERS = 4 };

/* Layers one behind the other, each with the mask of that number among equal ones; its result is
 * `out` [BATCH, heads, queries, depth]. Steps of the program. */
static uint32_t run_layers(bench *x, const form *f, const int *masks, uint32_t flags,
                           uint16_t *out) {
  uint32_t values[LAYERS];
  bt_graph g;
  bt_run run;
  bt_init(&g);
  uint32_t last = tensor(x, &g, f, Q, f->heads, f->queries, f->depth);
  const uint32_t k = tensor(x, &g, f, K, f->kv_heads, f->fresh, f->depth);
  const uint32_t v = tensor(x, &g, f, V, f->kv_heads, f->fresh, f->value_depth);
  for (int i = 0; i < LAYERS; ++i)
    values[i] = add_mask(x, &g, f);
  for (int i = 0; i < LAYERS; ++i) {
    const uint32_t made = bt_value(&g, i + 1 < LAYERS ? OPIPE_VALUE_TEMP : OPIPE_VALUE_OUTPUT,
                                   f->dtype, i + 1 < LAYERS ? NULL : out,
                                   BT_SHAPE(BATCH, f->heads, f->queries, f->value_depth));
    set_attributes(&g, bt_node(&g, "Attention", BT_IN(last, k, v, values[masks[i]]), BT_OUT(made)),
                   f);
    last = made;
  }
  ct_run(x->on.t, x->on.device, &g, flags, 2, &run);
  const uint32_t n = run.info.n_kernels;
  bt_release(x->on.t, &run);
  return n;
}

/* A mask that layers share is prepared once, and lies beside the workspace of all others. */
static void test_layers_share_a_mask(void) {
  static const int own[LAYERS] = {0, 1, 2, 3}, one[LAYERS] = {0, 0, 0, 0},
                   two[LAYERS] = {1, 0, 1, 0};
  static uint16_t wanted[ROOM], found[ROOM];
  if (!cd_open(&with.on, "fallback=none"))
    OPI_SKIP("%s", CT_WHY);
  for (size_t i = 0; i < FORMS; ++i) {
    const form *f = &forms[i];
    const uint32_t flags = i % 2 != 0 ? OPIPE_COMPILE_POISON | OPIPE_COMPILE_CHECK_FINITE : 0;
    if (f->queries != f->fresh || f->depth != f->value_depth || !opi_test_covers(i, 3))
      continue;
    OPI_ASSERT_INT(run_layers(&with, f, own, 0, wanted), 3 * LAYERS);
    OPI_ASSERT_INT(run_layers(&with, f, one, 0, found), 2 * LAYERS + 1);
    OPI_ASSERT(memcmp(wanted, found, sizeof found) == 0);
    (void)run_layers(&with, f, two, flags, found);
    OPI_ASSERT(memcmp(wanted, found, sizeof found) == 0);
    OPI_ASSERT_INT(run_layers(&with, f, two, 0, found), 2 * LAYERS + 2);
  }
  cd_close(&with.on);
}

/* Masks and what is kept of scores in pieces of the batch; sums in any order. */
static void test_sequences_by_turns(void) {
  static uint16_t whole[TENSORS][ROOM];
  if (!cd_open(&with.on, NULL))
    OPI_SKIP("%s", CT_WHY);
  (void)run_form(&with, &forms[4], false);
  memcpy(whole, with.data, sizeof whole);
  cd_close(&with.on);
  (void)setenv("OPIPE_CUDA_DOUBLE_MEMORY", "450000", 1); /* a 64th holds one of two */
  OPI_ASSERT_FATAL(cd_open(&with.on, NULL));
  OPI_ASSERT_INT(run_form(&with, &forms[4], false), 2 * 7);
  OPI_ASSERT(memcmp(whole, with.data, sizeof whole) == 0);
  cd_close(&with.on);
  (void)unsetenv("OPIPE_CUDA_DOUBLE_MEMORY");
  OPI_ASSERT_FATAL(cd_open(&with.on, "deterministic=0"));
  bt_graph g;
  bt_run run;
  make_graph(&with, &g, &forms[4], false);
  OPI_ASSERT_OK_FATAL(bt_prepare(with.on.t, with.on.device, &g, 0, &run, &err), &err);
  OPI_ASSERT_INT(run.info.n_kernels, 6);
  OPI_ASSERT_OK(bt_step(with.on.t, &g, &run, &err), &err);
  bt_release(with.on.t, &run);
  (void)make_wanted(&with, &forms[4]);
  assert_wanted(&with, &forms[4], 4);
  cd_close(&with.on);
}

static void test_refused(void) {
  opipe_device *device = NULL;
  if (!cd_open(&without.on, "cudnn=0"))
    OPI_SKIP("%s", CT_WHY);
  (void)setenv("OPIPE_CUDA_DOUBLE_DNN_REFUSES", "1", 1);
  OPI_ASSERT_FATAL(cd_open(&with.on, NULL));
  (void)run_form(&with, &forms[0], false);
  (void)run_form(&with, &pasts[0], true);
  (void)unsetenv("OPIPE_CUDA_DOUBLE_DNN_REFUSES");
  (void)run_form(&without, &pasts[0], true);
  OPI_ASSERT_INT(with.on.n_told, 0);
  OPI_ASSERT_INT(with.on.n_warned, 2);
  OPI_ASSERT(memcmp(with.data[Y], without.data[Y], (TENSORS - Y) * sizeof with.data[Y]) == 0);
  OPI_ASSERT_ERROR(bt_device(&with.on.b.base, "dnn_masks=2", 1, 0, &device, &err), OPIPE_E_INVALID,
                   &err, "dnn_masks=2 (0 or 1)");
  OPI_ASSERT_ERROR(bt_device(&with.on.b.base, "masks=1", 1, 0, &device, &err), OPIPE_E_INVALID,
                   &err, "pad_mib, dnn_masks, few_attention, invariant, pdl, fallback");
  cd_close(&with.on);
  cd_close(&without.on);
}

OPI_TEST_MAIN("cuda masked attention by cudnn", OPI_TEST(test_masks), OPI_TEST(test_handed_on),
              OPI_TEST(test_pasts), OPI_TEST(test_layers_share_a_mask),
              OPI_TEST(test_sequences_by_turns), OPI_TEST(test_refused))
