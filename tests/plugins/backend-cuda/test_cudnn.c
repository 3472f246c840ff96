/* SPDX-License-Identifier: Apache-2.0 */
/* Attention by cuDNN, on its double: close to our own kernels, in every layout and form, the same
 * bits in every run unless they are not asked for, some sequences at a time where memory is small;
 * our own kernels where it refuses.
 * ctest: always */
#include "cudnn_bench.h"

static opipe_error err = OPIPE_ERROR_INIT;

typedef struct form {
  int64_t batch, heads, kv_heads, queries, keys, depth, value_depth;
  bool causal, by_rows; /* [batch, rows, heads * depth] */
  uint32_t dtype;
  double softcap; /* 0: none */
} form;

static const form forms[] = {
    {2, 2, 2, 32, 32, 8, 8, true, true, OPIPE_BFLOAT16, 0},
    {2, 4, 2, 40, 40, 16, 16, true, false, OPIPE_BFLOAT16, 0},
    {1, 3, 1, 32, 48, 16, 8, false, true, OPIPE_FLOAT16, 0},
    {1, 2, 2, 48, 32, 24, 24, false, false, OPIPE_FLOAT16, 0},
    {1, 2, 1, 32, 40, 144, 136, true, true, OPIPE_BFLOAT16, 0},
};
enum { FORMS = sizeof forms / sizeof forms[0], ROOM = 1 << 15, TENSORS = 8 };

/* Q, K, V, dY; Y, dQ, dK, dV. */
enum { Q, K, V, DY, Y, DQ, DK, DV };
typedef struct bench {
  cd_opening on;
  bool hands_on;            /* Attention gives its gradient what it found */
  uint64_t workspace_bytes; /* of the program that ran last */
  uint16_t data[TENSORS][ROOM];
  int64_t n[TENSORS];
} bench;

/* ---- graphs ---- */

static uint32_t tensor(bench *x, bt_graph *g, const form *f, int which, int64_t heads, int64_t rows,
                       int64_t depth) {
  const uint32_t role = which < Y ? OPIPE_VALUE_INPUT : OPIPE_VALUE_OUTPUT;
  x->n[which] = f->batch * heads * rows * depth;
  OPI_ASSERT_FATAL(x->n[which] <= ROOM);
  memset(x->data[which], 0, sizeof x->data[which]);
  for (int64_t i = 0; which < Y && i < x->n[which]; ++i) {
    const int64_t number = (i * (7 + which) + i / 11 * 5) % 67 - 33;
    x->data[which][i] = cd_to_half(f->dtype, (double)number * 0.0625);
  }
  return f->by_rows
             ? bt_value(g, role, f->dtype, x->data[which], BT_SHAPE(f->batch, rows, heads * depth))
             : bt_value(g, role, f->dtype, x->data[which], BT_SHAPE(f->batch, heads, rows, depth));
}

static void set_attributes(bt_graph *g, opipe_node *node, const form *f) {
  bt_int(g, node, "is_causal", f->causal);
  bt_float(g, node, "scale", 0.3);
  bt_float(g, node, "softcap", f->softcap);
  if (f->by_rows) {
    bt_int(g, node, "q_num_heads", f->heads);
    bt_int(g, node, "kv_num_heads", f->kv_heads);
  }
}

/* Attention, and its gradients. */
static void make_graph(bench *x, bt_graph *g, const form *f) {
  bt_init(g);
  const uint32_t q = tensor(x, g, f, Q, f->heads, f->queries, f->depth);
  const uint32_t k = tensor(x, g, f, K, f->kv_heads, f->keys, f->depth);
  const uint32_t v = tensor(x, g, f, V, f->kv_heads, f->keys, f->value_depth);
  const uint32_t dy = tensor(x, g, f, DY, f->heads, f->queries, f->value_depth);
  const uint32_t y = tensor(x, g, f, Y, f->heads, f->queries, f->value_depth);
  const uint32_t dq = tensor(x, g, f, DQ, f->heads, f->queries, f->depth);
  const uint32_t dk = tensor(x, g, f, DK, f->kv_heads, f->keys, f->depth);
  const uint32_t dv = tensor(x, g, f, DV, f->kv_heads, f->keys, f->value_depth);
  const uint32_t no = OPIPE_NONE;
  const uint32_t found = !x->hands_on ? no
                                      : bt_value(g, OPIPE_VALUE_TEMP, OPIPE_FLOAT, NULL,
                                                 BT_SHAPE(f->batch, f->heads, f->queries));
  opipe_node *node = bt_node(g, "Attention", BT_IN(q, k, v), BT_OUT(y, no, no, no, found));
  node->n_out = x->hands_on ? 5 : 1;
  set_attributes(g, node, f);
  node =
      bt_node(g, "AttentionGrad", BT_IN(dy, q, k, v, no, no, no, no, y, found), BT_OUT(dq, dk, dv));
  node->n_in = x->hands_on ? 10 : 4;
  node->domain = "opipe";
  node->pass = OPIPE_PASS_BACKWARD;
  set_attributes(g, node, f);
}

/* Runs the form `times` times; same: with the same bits. Steps of the program. */
static uint32_t run_form(bench *x, const form *f, int times, bool *out_same) {
  bt_graph g;
  bt_run run;
  static uint16_t before[TENSORS][ROOM];
  opipe_event *event = NULL;
  make_graph(x, &g, f);
  OPI_ASSERT_OK_FATAL(bt_prepare(x->on.t, x->on.device, &g, 0, &run, &err), &err);
  OPI_ASSERT_OK_FATAL(x->on.t->event_create(x->on.device, &event, &err), &err);
  *out_same = true;
  for (int i = 0; i < times; ++i) {
    for (int w = Y; w < TENSORS; ++w)
      memset(x->data[w], 0xff, sizeof x->data[w]); /* NaN */
    OPI_ASSERT_OK(bt_step(x->on.t, &g, &run, &err), &err);
    OPI_ASSERT_OK(x->on.t->event_record(run.queue, event, &err), &err);
    OPI_ASSERT_OK(x->on.t->event_sync(event, UINT64_C(60000000000), &err), &err);
    if (i > 0 && memcmp(before, x->data, sizeof before) != 0)
      *out_same = false;
    memcpy(before, x->data, sizeof before);
  }
  x->workspace_bytes = run.info.workspace_bytes;
  x->on.t->event_destroy(event);
  bt_release(x->on.t, &run);
  return run.info.n_kernels;
}

/* The norm of the difference beside the norm, of every result. */
static void assert_close(const bench *x, const bench *y, const form *f) {
  for (int w = Y; w < TENSORS; ++w) {
    double off = 0, norm = 0;
    for (int64_t i = 0; i < x->n[w]; ++i) {
      const double a = cd_from_half(f->dtype, x->data[w][i]);
      const double b = cd_from_half(f->dtype, y->data[w][i]);
      off += (a - b) * (a - b);
      norm += b * b;
    }
    const double limit = f->dtype == OPIPE_BFLOAT16 ? 1e-2 : 2e-3;
    if (!(off <= limit * limit * norm) || norm == 0)
      OPI_FAIL("result %d: off by %g of %g", w - Y, sqrt(off / norm), sqrt(norm));
  }
}

static bench with, without;

static void test_close_to_our_own(void) {
  bool same = false, as_well = false;
  if (!cd_open(&without.on, "cudnn=0"))
    OPI_SKIP("%s", CT_WHY);
  OPI_ASSERT_FATAL(cd_open(&with.on, NULL));
  for (int i = 0; i < FORMS; ++i) {
    const uint32_t n_told = with.on.n_told;
    OPI_ASSERT_INT(run_form(&with, &forms[i], 3, &same), 3);
    (void)run_form(&without, &forms[i], 2, &as_well);
    OPI_ASSERT(same && as_well);
    OPI_ASSERT(with.on.n_told > n_told);
    assert_close(&with, &without, &forms[i]);
  }
  const uint32_t n_told = with.on.n_told;
  (void)run_form(&with, &forms[0], 1, &same);
  OPI_ASSERT_INT(with.on.n_told, n_told); /* a form's plan is made once */
  OPI_ASSERT_INT(with.on.n_warned, 0);
  OPI_ASSERT_INT(without.on.n_warned + without.on.n_told, 0);
  cd_close(&with.on);
  cd_close(&without.on);
}

/* Sums that Attention found are not made again, whoever made them and whoever reads them. */
static void test_handed_on(void) {
  bool same = false, as_well = false;
  if (!cd_open(&without.on, "cudnn=0"))
    OPI_SKIP("%s", CT_WHY);
  OPI_ASSERT_FATAL(cd_open(&with.on, NULL));
  with.hands_on = true;
  for (int i = 0; i < FORMS; ++i) {
    without.hands_on = false;
    OPI_ASSERT_INT(run_form(&with, &forms[i], 3, &same), 2);
    const uint32_t n = run_form(&without, &forms[i], 2, &as_well);
    OPI_ASSERT(same && as_well);
    assert_close(&with, &without, &forms[i]);
    without.hands_on = true;
    OPI_ASSERT_INT(run_form(&without, &forms[i], 2, &as_well), n);
    assert_close(&without, &with, &forms[i]);
  }
  with.hands_on = without.hands_on = false;
  cd_close(&with.on);
  cd_close(&without.on);
}

/* Sums in any order where that is asked for, and only there. */
static void test_bits_may_change_where_asked(void) {
  bool same = true, steady = false;
  if (!cd_open(&without.on, "cudnn=0"))
    OPI_SKIP("%s", CT_WHY);
  OPI_ASSERT_FATAL(cd_open(&with.on, "deterministic=0"));
  (void)run_form(&with, &forms[1], 4, &same);
  (void)run_form(&without, &forms[1], 1, &steady);
  OPI_ASSERT(!same);
  assert_close(&with, &without, &forms[1]);
  cd_close(&with.on);
  cd_close(&without.on);
}

static uint64_t aligned(uint64_t n_bytes) {
  return (n_bytes + 255) / 256 * 256;
}

/* Workspace of gradients of `many` for so many sequences: the library's terms (doubles/dnn.c), the
 * result, its statistics and sums. */
static uint64_t workspace_of_many(uint64_t sequences) {
  const uint64_t rows = sequences * 2 * 40;
  return aligned(512 + rows * 40 * 2) + aligned(rows * 8 * 2) + 2 * aligned(rows * sizeof(float));
}

static void test_sequences_by_turns(void) {
  static const form many = {6, 2, 2, 40, 40, 8, 8, true, true, OPIPE_BFLOAT16, 0};
  static uint16_t whole[TENSORS][ROOM];
  bool same = false;
  if (!cd_open(&with.on, NULL))
    OPI_SKIP("%s", CT_WHY);
  OPI_ASSERT_INT(run_form(&with, &many, 1, &same), 3);
  OPI_ASSERT_INT(with.workspace_bytes, workspace_of_many(6));
  memcpy(whole, with.data, sizeof whole);
  cd_close(&with.on);
  (void)setenv("OPIPE_CUDA_DOUBLE_MEMORY", "1500000", 1); /* a 64th holds 3 of 6400 bytes */
  OPI_ASSERT_FATAL(cd_open(&with.on, NULL));
  OPI_ASSERT_INT(run_form(&with, &many, 2, &same), 1 + 2 * 2);
  OPI_ASSERT_INT(with.workspace_bytes, workspace_of_many(3));
  OPI_ASSERT(same);
  OPI_ASSERT(memcmp(whole, with.data, sizeof whole) == 0);
  cd_close(&with.on);
  (void)unsetenv("OPIPE_CUDA_DOUBLE_MEMORY");
}

/* The part kept of a sequence's rows begins at any number: 3 x 37 of them are no multiple of 4. */
static void test_odd_sequences_by_turns(void) {
  static const form odd = {4, 3, 3, 37, 37, 8, 8, true, true, OPIPE_BFLOAT16, 0};
  static uint16_t whole[TENSORS][ROOM];
  for (int handed = 0; handed < 2; ++handed) {
    bool same = false;
    with.hands_on = handed != 0;
    if (!cd_open(&with.on, NULL))
      OPI_SKIP("%s", CT_WHY);
    (void)run_form(&with, &odd, 1, &same);
    memcpy(whole, with.data, sizeof whole);
    cd_close(&with.on);
    (void)setenv("OPIPE_CUDA_DOUBLE_MEMORY", "1000000", 1); /* a 64th holds one */
    OPI_ASSERT_FATAL(cd_open(&with.on, NULL));
    OPI_ASSERT_INT(run_form(&with, &odd, 1, &same), handed != 0 ? 5 : 1 + 2 * 4);
    OPI_ASSERT(memcmp(whole, with.data, sizeof whole) == 0);
    cd_close(&with.on);
    (void)unsetenv("OPIPE_CUDA_DOUBLE_MEMORY");
  }
  with.hands_on = false;
}

static void test_as_graphs(void) {
  bool same = false;
  if (!cd_open(&with.on, "graphs=1"))
    OPI_SKIP("%s", CT_WHY);
  OPI_ASSERT_FATAL(cd_open(&without.on, NULL));
  (void)run_form(&with, &forms[0], 2, &same);
  (void)run_form(&without, &forms[0], 1, &same);
  OPI_ASSERT(memcmp(with.data, without.data, sizeof with.data) == 0);
  cd_close(&without.on);
  cd_close(&with.on);
}

/* A form that cuDNN refuses runs on our kernels, with a message. */
static void test_refused(void) {
  bool same = false;
  if (!cd_open(&without.on, "cudnn=0"))
    OPI_SKIP("%s", CT_WHY);
  (void)setenv("OPIPE_CUDA_DOUBLE_DNN_REFUSES", "1", 1);
  OPI_ASSERT_FATAL(cd_open(&with.on, NULL));
  (void)run_form(&with, &forms[1], 1, &same);
  (void)unsetenv("OPIPE_CUDA_DOUBLE_DNN_REFUSES");
  (void)run_form(&without, &forms[1], 1, &same);
  OPI_ASSERT_INT(with.on.n_told, 0);
  OPI_ASSERT_INT(with.on.n_warned, 1); /* the gradients begin with the same form */
  OPI_ASSERT(memcmp(with.data, without.data, sizeof with.data) == 0);
  cd_close(&with.on);
  cd_close(&without.on);
}

/* A form that cuDNN is not asked for is reported once; few rows and fp32 are not reported. A form
 * that is passed over for something outside it (a softcap) is used without that. */
static void test_passed_over(void) {
  static const form odd = {1, 2, 2, 32, 32, 12, 12, true, true, OPIPE_BFLOAT16, 0},
                    few = {1, 2, 2, 16, 32, 12, 12, true, true, OPIPE_BFLOAT16, 0},
                    capped = {2, 2, 2, 32, 32, 8, 8, true, true, OPIPE_BFLOAT16, 5};
  static const struct {
    const form *form;
    uint32_t n_told, n_warned;
  } rows[] = {{&odd, 0, 2}, {&odd, 0, 2}, {&few, 0, 2}, {&capped, 0, 4}, {&forms[0], 3, 4}};
  bool same = false;
  if (!cd_open(&with.on, NULL))
    OPI_SKIP("%s", CT_WHY);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    (void)run_form(&with, rows[i].form, 1, &same);
    OPI_ASSERT_INT(with.on.n_told, rows[i].n_told);
    OPI_ASSERT_INT(with.on.n_warned, rows[i].n_warned);
  }
  cd_close(&with.on);
}

/* Versions that are known to be wrong about gradients of these keys, and about all of it. */
static void test_wrong_versions(void) {
  static const struct {
    const char *version;
    uint32_t n_told, n_warned;
  } rows[] = {{"91001", 0, 1}, {"91002", 1, 1}, {"91500", 1, 1}, {"91501", 2, 0}};
  bool same = false;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    (void)setenv("OPIPE_CUDA_DOUBLE_DNN", rows[i].version, 1);
    if (!cd_open(&with.on, NULL))
      OPI_SKIP("%s", CT_WHY);
    (void)run_form(&with, &forms[1], 1, &same);
    OPI_ASSERT_INT(with.on.n_told, rows[i].n_told);
    OPI_ASSERT_INT(with.on.n_warned, rows[i].n_warned);
    cd_close(&with.on);
  }
  (void)unsetenv("OPIPE_CUDA_DOUBLE_DNN");
}

/* A single failure is no refusal: other kernels than a neighbour's would have other bits. Nothing
 * of it is kept. */
static void test_failed(void) {
  static const struct {
    const char *told, *said;
    opipe_status status;
  } rows[] = {
      {"create 1001", "cudnnCreate answers CUDNN_STATUS_NOT_INITIALIZED (1001)", OPIPE_E_DEVICE},
      {"create 4004", "DEVICE_ALLOCATION_FAILED (4004)", OPIPE_E_NOMEM},
      {"heuristic 4003", "HOST_ALLOCATION_FAILED (4003)", OPIPE_E_NOMEM},
      {"heuristic 4000", "the choice of an engine: CUDNN_STATUS_INTERNAL_ERROR (4000)",
       OPIPE_E_DEVICE},
      {"plan 4004", "a plan: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED (4004)",
       OPIPE_E_NOMEM},
      {"plan 4000", "a plan: CUDNN_STATUS_INTERNAL_ERROR (4000)", OPIPE_E_DEVICE},
  };
  bool same = false;
  if (!cd_open(&with.on, NULL))
    OPI_SKIP("%s", CT_WHY);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    bt_graph g;
    bt_run run;
    make_graph(&with, &g, &forms[1]);
    (void)setenv("OPIPE_CUDA_DOUBLE_DNN_ANSWER", rows[i].told, 1);
    OPI_ASSERT_ERROR(bt_prepare(with.on.t, with.on.device, &g, 0, &run, &err), rows[i].status, &err,
                     rows[i].said);
    (void)unsetenv("OPIPE_CUDA_DOUBLE_DNN_ANSWER");
    OPI_ASSERT_INT(with.on.n_told + with.on.n_warned, 0);
  }
  /* an engine that is not for the chip makes room for the next one */
  (void)setenv("OPIPE_CUDA_DOUBLE_DNN_ANSWER", "plan 3000", 1);
  OPI_ASSERT_INT(run_form(&with, &forms[1], 1, &same), 3);
  (void)unsetenv("OPIPE_CUDA_DOUBLE_DNN_ANSWER");
  OPI_ASSERT(with.on.n_told > 0);
  OPI_ASSERT_INT(with.on.n_warned, 0);
  cd_close(&with.on);
}

OPI_TEST_MAIN("cuda attention by cudnn", OPI_TEST(test_close_to_our_own), OPI_TEST(test_handed_on),
              OPI_TEST(test_bits_may_change_where_asked), OPI_TEST(test_sequences_by_turns),
              OPI_TEST(test_odd_sequences_by_turns), OPI_TEST(test_as_graphs),
              OPI_TEST(test_refused), OPI_TEST(test_passed_over), OPI_TEST(test_wrong_versions),
              OPI_TEST(test_failed))
