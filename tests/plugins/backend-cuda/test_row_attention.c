/* SPDX-License-Identifier: Apache-2.0 */
/* ctest: timeout=120 */
/* opipe.RowAttention on the doubles: sequences of unlike lengths that enter in slices, mixed, give
 * what the CPU backend gives for the same passes; pages in place, out of place, and as they come in
 * where none come out; by launches and by a captured graph, whose positions lie in the device's
 * memory. A row's bits are those that it has alone. */
#include <math.h>

#include "cuda_test.h"

enum {
  HEADS = 4,
  KV_HEADS = 2,
  DIM = 8,
  VALUE_DIM = 12,
  ROWS = 40,
  SEQUENCES = 3,
  PAGE = 64,
  PAGES = 3,
  POOL = SEQUENCES * PAGES,
  COPIES = 2,
  PASSES = 4,
  Y = ROWS * HEADS * VALUE_DIM,
  KEYS = POOL * KV_HEADS * PAGE * DIM,
  VALUES = POOL * KV_HEADS * PAGE * VALUE_DIM
};
/* How pages come out. */
enum { BESIDE, IN_PLACE, NONE };

static opipe_error err = OPIPE_ERROR_INIT;

typedef struct model {
  bt_graph graph;
  float q[ROWS * HEADS * DIM], k[ROWS * KV_HEADS * DIM], v[ROWS * KV_HEADS * VALUE_DIM];
  int64_t position[ROWS], sequence[ROWS], table[SEQUENCES * PAGES], copies[COPIES * 3];
  float keys[KEYS], values[VALUES], y[Y];
  float slopes[HEADS];
} model;

static model m;

/* copies: the CPU backend may know of none yet. */
static void make_model(int pages, bool has_copies) {
  bt_graph *g = &m.graph;
  const int64_t keys[4] = {POOL, KV_HEADS, PAGE, DIM},
                values[4] = {POOL, KV_HEADS, PAGE, VALUE_DIM};
  bt_init(g);
  const uint32_t
      q = bt_value(g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, m.q, BT_SHAPE(ROWS, HEADS * DIM)),
      k = bt_value(g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, m.k, BT_SHAPE(ROWS, KV_HEADS * DIM)),
      v = bt_value(g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, m.v, BT_SHAPE(ROWS, KV_HEADS * VALUE_DIM)),
      at = bt_value(g, OPIPE_VALUE_INPUT, OPIPE_INT64, m.position, BT_SHAPE(ROWS)),
      of = bt_value(g, OPIPE_VALUE_INPUT, OPIPE_INT64, m.sequence, BT_SHAPE(ROWS)),
      table = bt_value(g, OPIPE_VALUE_INPUT, OPIPE_INT64, m.table, BT_SHAPE(SEQUENCES, PAGES)),
      kp = bt_value(g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, m.keys, 4, keys),
      vp = bt_value(g, OPIPE_VALUE_INPUT, OPIPE_FLOAT, m.values, 4, values),
      slopes = bt_value(g, OPIPE_VALUE_CONSTANT, OPIPE_FLOAT, m.slopes, BT_SHAPE(HEADS)),
      copies = has_copies
                   ? bt_value(g, OPIPE_VALUE_INPUT, OPIPE_INT64, m.copies, BT_SHAPE(COPIES, 3))
                   : BT_END,
      y = bt_value(g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, m.y, BT_SHAPE(ROWS, HEADS * VALUE_DIM)),
      ko = pages == NONE ? BT_END : bt_value(g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, m.keys, 4, keys),
      vo = pages == NONE ? BT_END
                         : bt_value(g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT, m.values, 4, values);
  opipe_node *node = bt_node(
      g, "RowAttention", BT_IN(q, k, v, at, of, table, kp, vp, slopes, copies), BT_OUT(y, ko, vo));
  node->domain = "opipe";
  bt_int(g, node, "num_heads", HEADS);
  bt_int(g, node, "kv_num_heads", KV_HEADS);
  bt_float(g, node, "scale", 0.4);
  bt_float(g, node, "softcap", 6.0);
  bt_int(g, node, "left_window_size", 90);
}

/* A run, and what of it lies in m.graph's order of boundaries. */
typedef struct subject {
  const opipe_backend *t;
  opipe_device *device;
  bt_run run;
  int pages;
} subject;

static bool is_page(const subject *s, uint32_t slot, bool is_output) {
  return is_output ? slot > m.graph.graph.n_boundaries - (s->pages == NONE ? 1 : 3)
                   : slot == 6 || slot == 7;
}

static void prepare(subject *s) {
  OPI_ASSERT_OK_FATAL(bt_prepare(s->t, s->device, &m.graph, 0, &s->run, &err), &err);
  if (s->pages != IN_PLACE)
    return;
  const uint32_t n = m.graph.graph.n_boundaries;
  s->t->binding_free(s->run.binding);
  s->run.regions[n - 2] = s->run.regions[6];
  s->run.regions[n - 1] = s->run.regions[7];
  const opipe_bind_params bind = {.struct_size = (uint32_t)OPIPE_END(opipe_bind_params, gradients),
                                  .n_boundaries = n,
                                  .program = s->run.program,
                                  .arena = {s->run.arena, 0, s->run.info.arena_bytes},
                                  .boundaries = s->run.regions};
  OPI_ASSERT_OK_FATAL(s->t->bind(s->device, &bind, &s->run.binding, &err), &err);
}

/* Writes the inputs, but pages after the first pass where they stay in place; runs; reads. */
static opipe_status step(subject *s, bool is_first) {
  opipe_event *event = NULL;
  const bt_graph *g = &m.graph;
  const bool stay = s->pages != BESIDE;
  for (uint32_t v = 0; v < g->graph.n_values; ++v) {
    const opipe_value *value = &g->values[v];
    if (value->role == OPIPE_VALUE_INPUT &&
        !(stay && !is_first && is_page(s, value->slot, false))) {
      OPI_ASSERT_OK_FATAL(
          s->t->write(s->run.queue, &s->run.regions[value->slot], g->data[value->slot], &err),
          &err);
    }
  }
  OPI_ASSERT_OK_FATAL(s->t->run(s->run.binding, s->run.queue, NULL, 0, &err), &err);
  for (uint32_t v = 0; v < g->graph.n_values; ++v) {
    const opipe_value *value = &g->values[v];
    if (value->role == OPIPE_VALUE_OUTPUT) {
      OPI_ASSERT_OK_FATAL(
          s->t->read(s->run.queue, g->data[value->slot], &s->run.regions[value->slot], &err), &err);
    }
  }
  OPI_ASSERT_OK_FATAL(s->t->event_create(s->device, &event, &err), &err);
  OPI_ASSERT_OK_FATAL(s->t->event_record(s->run.queue, event, &err), &err);
  const opipe_status status = s->t->event_sync(event, UINT64_C(60000000000), &err);
  s->t->event_destroy(event);
  return status;
}

enum { SLICE = 4 /* its first row */ };

/* Two rows of sequence 0, one of sequence 1, one that is none, and a slice of sequence 2. */
static void fill_pass(int n) {
  for (int r = 0; r < ROWS; ++r) {
    m.sequence[r] = r < 2 ? 0 : r == 2 ? 1 : r < SLICE ? -1 : 2;
    m.position[r] = r < 2 ? 2 * n + r : r < SLICE ? n : (ROWS - SLICE) * n + r - SLICE;
    ct_draw(m.q + r * HEADS * DIM, HEADS * DIM, (uint64_t)(1000 + 100 * n + r));
    ct_draw(m.k + r * KV_HEADS * DIM, KV_HEADS * DIM, (uint64_t)(2000 + 100 * n + r));
    ct_draw(m.v + r * KV_HEADS * VALUE_DIM, KV_HEADS * VALUE_DIM, (uint64_t)(3000 + 100 * n + r));
  }
  for (int c = 0; c < COPIES * 3; ++c)
    m.copies[c] = -1;
}

static void begin(void) {
  for (int p = 0; p < POOL; ++p)
    m.table[p] = (p * 4 + 2) % POOL;
  for (int i = 0; i < HEADS; ++i)
    m.slopes[i] = 0.01f * (float)(i + 1);
  ct_draw(m.keys, KEYS, 1);
  ct_draw(m.values, VALUES, 2);
}

/* All passes; y [PASSES][Y]. */
static void run_all(subject *s, float *y) {
  begin();
  prepare(s);
  for (int n = 0; n < PASSES; ++n) {
    fill_pass(n);
    OPI_ASSERT_OK_FATAL(step(s, n == 0), &err);
    memcpy(y + (size_t)n * Y, m.y, sizeof m.y);
  }
  bt_release(s->t, &s->run);
}

static float wanted[PASSES * Y], found[PASSES * Y];

static void run_on_cpu(void) {
  bt_backend cpu;
  subject s = {.pages = BESIDE};
  bt_open(&cpu);
  s.t = cpu.table;
  OPI_ASSERT_OK_FATAL(bt_device(&cpu, "", 1, 0, &s.device, &err), &err);
  make_model(BESIDE, false);
  run_all(&s, wanted);
  s.t->device_close(s.device);
  bt_close(&cpu);
}

static void open_subject(ct_backend *b, const char *options, subject *s) {
  const opipe_device_params open = {
      .struct_size = (uint32_t)OPIPE_END(opipe_device_params, options),
      .threads = 1,
      .options = options};
  s->t = b->base.table;
  OPI_ASSERT_OK_FATAL(s->t->device_open(b->base.self, &open, &s->device, &err), &err);
}

static void test_passes_as_on_the_cpu(void) {
  static const struct {
    int pages;
    const char *options;
  } ways[] = {{BESIDE, ""}, {IN_PLACE, "graphs=1"}, {NONE, "graphs=1"}};
  ct_backend b;
  CT_OPEN(&b);
  run_on_cpu();
  for (size_t w = 0; w < sizeof ways / sizeof ways[0]; ++w) {
    subject s = {.pages = ways[w].pages};
    double off = 0, most = 0;
    open_subject(&b, ways[w].options, &s);
    make_model(s.pages, false);
    run_all(&s, found);
    for (size_t i = 0; i < PASSES * Y; ++i) {
      off = fmax(off, fabs((double)found[i] - (double)wanted[i]));
      most = fmax(most, fabs((double)wanted[i]));
    }
    OPI_ASSERT(most > 0.1 && off <= 1e-5 * most);
    s.t->device_close(s.device);
  }
  bt_close(&b.base);
}

/* Rows of the last pass, each in a pass without the others: the same bits. */
static void test_bits_of_rows_alone(void) {
  static const int rows[] = {0, 2, SLICE};
  const size_t each = HEADS * VALUE_DIM;
  ct_backend b;
  subject s = {.pages = IN_PLACE};
  CT_OPEN(&b);
  open_subject(&b, "", &s);
  make_model(IN_PLACE, false);
  run_all(&s, found);
  begin();
  prepare(&s);
  for (int n = 0; n < PASSES - 1; ++n) {
    fill_pass(n);
    OPI_ASSERT_OK_FATAL(step(&s, n == 0), &err);
  }
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    fill_pass(PASSES - 1);
    for (int k = 0; k < ROWS; ++k)
      m.sequence[k] = k == rows[i] ? m.sequence[k] : -1;
    OPI_ASSERT_OK_FATAL(step(&s, false), &err);
    const size_t at = (size_t)rows[i] * each;
    OPI_ASSERT(memcmp(m.y + at, found + (PASSES - 1) * (size_t)Y + at, each * sizeof(float)) == 0);
  }
  bt_release(s.t, &s.run);
  s.t->device_close(s.device);
  bt_close(&b.base);
}

/* A sequence goes on from the copy of another's page, with that one's results. */
static void test_copied_pages(void) {
  static float first[HEADS * VALUE_DIM];
  ct_backend b;
  subject s = {.pages = NONE};
  CT_OPEN(&b);
  open_subject(&b, "graphs=1", &s);
  make_model(NONE, true);
  begin();
  prepare(&s);
  fill_pass(0);
  m.position[0] = 40;
  for (int r = 1; r < ROWS; ++r)
    m.sequence[r] = -1;
  OPI_ASSERT_OK_FATAL(step(&s, true), &err);
  memcpy(first, m.y, sizeof first);
  m.sequence[0] = 1;
  m.copies[3] = m.table[0]; /* of sequence 0, to the first of sequence 1 */
  m.copies[4] = m.table[PAGES];
  m.copies[5] = 40;
  OPI_ASSERT_OK_FATAL(step(&s, false), &err);
  OPI_ASSERT(memcmp(first, m.y, sizeof first) == 0);
  m.copies[5] = PAGE + 1;
  OPI_ASSERT_ERROR(step(&s, false), OPIPE_E_INVALID, &err, "65 tokens of a page");
  bt_release(s.t, &s.run);
  s.t->device_close(s.device);
  bt_close(&b.base);
}

static void test_what_is_outside_is_an_error(void) {
  ct_backend b;
  subject s = {.pages = NONE};
  CT_OPEN(&b);
  open_subject(&b, "", &s);
  make_model(NONE, false);
  begin();
  prepare(&s);
  fill_pass(0);
  m.sequence[1] = SEQUENCES;
  OPI_ASSERT_ERROR(step(&s, true), OPIPE_E_INVALID, &err, "sequence 3 is outside [0, 3)");
  fill_pass(0);
  m.position[2] = PAGES * PAGE;
  OPI_ASSERT_ERROR(step(&s, false), OPIPE_E_INVALID, &err, "position 192 is outside [0, 192)");
  fill_pass(0);
  m.table[0] = POOL;
  OPI_ASSERT_ERROR(step(&s, false), OPIPE_E_INVALID, &err, "page 9 is outside [0, 9)");
  begin();
  OPI_ASSERT_OK(step(&s, false), &err);
  bt_release(s.t, &s.run);
  s.t->device_close(s.device);
  bt_close(&b.base);
}

OPI_TEST_MAIN("cuda row attention", OPI_TEST(test_passes_as_on_the_cpu),
              OPI_TEST(test_bits_of_rows_alone), OPI_TEST(test_copied_pages),
              OPI_TEST(test_what_is_outside_is_an_error))
