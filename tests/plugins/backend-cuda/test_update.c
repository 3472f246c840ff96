/* SPDX-License-Identifier: Apache-2.0 */
/* Updates and norms of many parameters: a launch or two whatever their number, bits as one by one,
 * copies of half types rounded along.
 * ctest: always */
#include "cuda_test.h"

static opipe_error err = OPIPE_ERROR_INIT;

enum { MANY = 200, OPERANDS = 4, LONGEST = 5000, STRIDE = 20480 };

typedef struct bench {
  ct_backend b;
  const opipe_backend *t;
  opipe_device *device;
  opipe_queue *queue;
  opipe_event *event;
} bench;

static bool open_bench(bench *x, const char *options) {
  if (!ct_open(&x->b))
    return false;
  x->t = x->b.base.table;
  OPI_ASSERT_OK_FATAL(bt_device(&x->b.base, options, 1, 0, &x->device, &err), &err);
  OPI_ASSERT_OK_FATAL(x->t->queue_open(x->device, &x->queue, &err), &err);
  OPI_ASSERT_OK_FATAL(x->t->event_create(x->device, &x->event, &err), &err);
  return true;
}

static void settle(const bench *x) {
  OPI_ASSERT_OK(x->t->event_record(x->queue, x->event, &err), &err);
  OPI_ASSERT_OK(x->t->event_sync(x->event, UINT64_C(60000000000), &err), &err);
}

static void close_bench(bench *x) {
  x->t->event_destroy(x->event);
  x->t->queue_close(x->queue);
  x->t->device_close(x->device);
  bt_close(&x->b.base);
}

static uint64_t launches_of(const bench *x) {
  cuda_double_facts facts;
  x->b.look(&facts);
  return facts.launches;
}

static uint64_t elems_of(uint32_t i) {
  return i % 50 == 7 ? LONGEST : i % 9;
}

/* Regions of parameter i: weight, gradient, two moments. */
static opipe_region region_of(opipe_buffer *memory, uint32_t i, uint32_t k) {
  return (opipe_region){memory, (uint64_t)(i * OPERANDS + k) * STRIDE, elems_of(i) * sizeof(float)};
}

static opipe_buffer *make_memory(const bench *x) {
  static float numbers[LONGEST];
  opipe_buffer *memory = NULL;
  for (uint32_t i = 0; i < LONGEST; ++i)
    numbers[i] = (float)((i * 7) % 19 + 1) * 0.0625f;
  OPI_ASSERT_OK_FATAL(x->t->buffer_alloc(x->device, (uint64_t)MANY * OPERANDS * STRIDE,
                                         OPIPE_BUFFER_PARAMS, &memory, &err),
                      &err);
  for (uint32_t i = 0; i < MANY * OPERANDS; ++i) {
    const opipe_region to = region_of(memory, i / OPERANDS, i % OPERANDS);
    if (to.n_bytes != 0)
      OPI_ASSERT_OK(x->t->write(x->queue, &to, numbers, &err), &err);
  }
  settle(x);
  return memory;
}

static const opipe_update adamw = {.struct_size = (uint32_t)OPIPE_END(opipe_update, decay),
                                   .kind = OPIPE_UPDATE_ADAMW,
                                   .flags = OPIPE_UPDATE_CLEAR,
                                   .gradient_scale = 0.5,
                                   .lr = 0.125,
                                   .beta1 = 0.9,
                                   .beta2 = 0.99,
                                   .correction1 = 0.19,
                                   .correction2 = 0.0199,
                                   .epsilon = 1e-6};

static void expect_same(const bench *x, opipe_buffer *a, opipe_buffer *b) {
  static float data[2][LONGEST];
  for (uint32_t i = 0; i < MANY * OPERANDS; ++i) {
    const opipe_region at[2] = {region_of(a, i / OPERANDS, i % OPERANDS),
                                region_of(b, i / OPERANDS, i % OPERANDS)};
    for (int k = 0; k < 2 && at[0].n_bytes != 0; ++k)
      OPI_ASSERT_OK(x->t->read(x->queue, data[k], &at[k], &err), &err);
    settle(x);
    OPI_ASSERT(memcmp(data[0], data[1], (size_t)at[0].n_bytes) == 0);
  }
}

static void test_many_are_a_launch_or_two(void) {
  static opipe_update_part parts[MANY];
  static opipe_region sums[MANY], gradients[MANY];
  static double norms[MANY], alone;
  bench x;
  if (!open_bench(&x, NULL))
    OPI_SKIP("%s", CT_WHY);
  opipe_buffer *a = make_memory(&x), *b = make_memory(&x), *table = NULL;
  OPI_ASSERT_OK_FATAL(x.t->buffer_alloc(x.device, MANY * 256, OPIPE_BUFFER_PARAMS, &table, &err),
                      &err);
  for (uint32_t i = 0; i < MANY; ++i) {
    sums[i] = (opipe_region){table, i * UINT64_C(256), sizeof(double)};
    gradients[i] = region_of(a, i, 1);
    parts[i] = (opipe_update_part){.weight = region_of(a, i, 0),
                                   .gradient = gradients[i],
                                   .first = region_of(a, i, 2),
                                   .second = region_of(a, i, 3),
                                   .n_elems = elems_of(i),
                                   .decay = i % 3 * 0.01};
  }
  uint64_t before = launches_of(&x);
  OPI_ASSERT_OK(x.t->sum_squares_many(x.queue, sums, gradients, MANY, &err), &err);
  OPI_ASSERT_INT(launches_of(&x) - before, 2); /* parameters without elements need none */
  for (uint32_t i = 0; i < MANY; ++i)
    OPI_ASSERT_OK(x.t->read(x.queue, &norms[i], &sums[i], &err), &err);
  settle(&x);
  before = launches_of(&x);
  OPI_ASSERT_OK(x.t->update_many(x.queue, &adamw, parts, MANY, &err), &err);
  OPI_ASSERT_INT(launches_of(&x) - before, 1);
  for (uint32_t i = 0; i < MANY; ++i) {
    opipe_update one = adamw;
    const opipe_region gradient = region_of(b, i, 1);
    one.weight = region_of(b, i, 0);
    one.gradient = gradient;
    one.first = region_of(b, i, 2);
    one.second = region_of(b, i, 3);
    one.n_elems = elems_of(i);
    one.decay = i % 3 * 0.01;
    OPI_ASSERT_OK(x.t->sum_squares(x.queue, &sums[0], &gradient, &err), &err);
    OPI_ASSERT_OK(x.t->read(x.queue, &alone, &sums[0], &err), &err);
    OPI_ASSERT_OK(x.t->update(x.queue, &one, &err), &err);
    settle(&x);
    OPI_ASSERT(memcmp(&alone, &norms[i], sizeof alone) == 0);
  }
  expect_same(&x, a, b);
  x.t->buffer_free(table);
  x.t->buffer_free(a);
  x.t->buffer_free(b);
  close_bench(&x);
}

/* ---- half types ---- */

enum { HALVES = 300, ROOM = 1024, ONE = 0x3f80 /* as bf16 */ };

/* y = x w in bf16, which also adds to w's gradient; a set of its own. wide: w is of fp32, and z is
 * -w in fp16. */
typedef struct trainee {
  bt_graph graph;
  bool wide;
  uint16_t source[HALVES];
  float wide_source[HALVES];
  opipe_program *program;
  opipe_params *set, *gradients;
  opipe_buffer *memory;
  opipe_binding *binding;
  opipe_region x, y, z, gradient, weight; /* weight: the master */
  uint32_t n_kernels;
} trainee;

static uint32_t rounded(bt_graph *g, uint32_t w, uint32_t dtype) {
  const uint32_t half = bt_value(g, OPIPE_VALUE_TEMP, dtype, NULL, BT_SHAPE(HALVES));
  bt_int(g, bt_node(g, "Cast", BT_IN(w), BT_OUT(half)), "to", dtype);
  return half;
}

static void make_graph(trainee *e) {
  bt_graph *g = &e->graph;
  for (uint32_t i = 0; i < HALVES; ++i) {
    e->source[i] = (uint16_t)(ONE + i % 90); /* 1 and a little */
    e->wide_source[i] = 1.0f + (float)i / 777.0f;
  }
  bt_init(g);
  const uint32_t x = bt_value(g, OPIPE_VALUE_INPUT, OPIPE_BFLOAT16, NULL, BT_SHAPE(HALVES));
  const uint32_t w =
      e->wide ? bt_value(g, OPIPE_VALUE_PARAMETER, OPIPE_FLOAT, e->wide_source, BT_SHAPE(HALVES))
              : bt_value(g, OPIPE_VALUE_PARAMETER, OPIPE_BFLOAT16, e->source, BT_SHAPE(HALVES));
  const uint32_t y = bt_value(g, OPIPE_VALUE_OUTPUT, OPIPE_BFLOAT16, NULL, BT_SHAPE(HALVES));
  const uint32_t sum = bt_value(g, OPIPE_VALUE_GRADIENT, OPIPE_FLOAT, NULL, BT_SHAPE(HALVES));
  (void)bt_node(g, "Mul", BT_IN(x, e->wide ? rounded(g, w, OPIPE_BFLOAT16) : w), BT_OUT(y));
  if (e->wide) {
    const uint32_t z = bt_value(g, OPIPE_VALUE_OUTPUT, OPIPE_FLOAT16, NULL, BT_SHAPE(HALVES));
    (void)bt_node(g, "Neg", BT_IN(rounded(g, w, OPIPE_FLOAT16)), BT_OUT(z));
  }
  opipe_node *node = bt_node(g, "Accumulate", BT_IN(y), BT_OUT(sum));
  node->domain = "opipe";
  node->pass = OPIPE_PASS_BACKWARD_WEIGHT;
}

static void open_trainee(const bench *b, trainee *e) {
  opipe_program_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_program_info, arena_bytes)};
  make_graph(e);
  const opipe_compile_params compile = {
      .struct_size = (uint32_t)OPIPE_END(opipe_compile_params, graph),
      .flags = OPIPE_COMPILE_OWNED,
      .graph = &e->graph.graph};
  const opipe_backend *t = b->t;
  OPI_ASSERT_OK_FATAL(t->compile(b->device, &compile, &e->program, &err), &err);
  OPI_ASSERT_OK_FATAL(t->program_info(e->program, &info, &err), &err);
  OPI_ASSERT_OK_FATAL(t->params_create_owned(b->device, e->graph.sources, 1, &e->set, &err), &err);
  OPI_ASSERT_OK_FATAL(t->gradients_create(e->set, &e->gradients, &err), &err);
  OPI_ASSERT_OK_FATAL(t->params_prepare(e->set, e->program, &err), &err);
  OPI_ASSERT_OK_FATAL(t->params_prepare(e->gradients, e->program, &err), &err);
  OPI_ASSERT_OK_FATAL(t->params_master(e->set, 0, &e->weight, &err), &err);
  OPI_ASSERT_OK_FATAL(t->params_master(e->gradients, 0, &e->gradient, &err), &err);
  OPI_ASSERT_FATAL(e->weight.n_bytes >= HALVES * sizeof(float));
  OPI_ASSERT_OK_FATAL(
      t->buffer_alloc(b->device, info.arena_bytes + 3 * ROOM, OPIPE_BUFFER_ARENA, &e->memory, &err),
      &err);
  e->x = (opipe_region){e->memory, info.arena_bytes, sizeof e->source};
  e->y = (opipe_region){e->memory, info.arena_bytes + ROOM, sizeof e->source};
  e->z = (opipe_region){e->memory, info.arena_bytes + 2 * ROOM, sizeof e->source};
  e->n_kernels = info.n_kernels;
  const opipe_region boundaries[] = {e->x, e->y, e->z};
  const opipe_bind_params bind = {.struct_size = (uint32_t)OPIPE_END(opipe_bind_params, gradients),
                                  .n_boundaries = e->wide ? 3 : 2,
                                  .program = e->program,
                                  .params = e->set,
                                  .arena = {e->memory, 0, info.arena_bytes},
                                  .boundaries = boundaries,
                                  .gradients = e->gradients};
  OPI_ASSERT_OK_FATAL(t->bind(b->device, &bind, &e->binding, &err), &err);
}

static void close_trainee(const bench *b, trainee *e) {
  b->t->binding_free(e->binding);
  b->t->buffer_free(e->memory);
  b->t->params_free(e->gradients);
  b->t->params_free(e->set);
  b->t->program_free(e->program);
}

/* The weights that programs read, after a step; along: without params_refresh. */
static void step_and_read(const bench *b, trainee *e, bool along, uint16_t out[HALVES]) {
  static uint16_t ones[HALVES];
  static float gradient[ROOM];
  const opipe_update sgd = {.struct_size = (uint32_t)OPIPE_END(opipe_update, decay),
                            .kind = OPIPE_UPDATE_SGD,
                            .gradient_scale = 1,
                            .lr = 1.0 / 300};
  opipe_update_part part = {.weight = e->weight,
                            .gradient = e->gradient,
                            .n_elems = e->weight.n_bytes / sizeof(float),
                            .params = along ? e->set : NULL};
  for (uint32_t i = 0; i < HALVES; ++i) {
    ones[i] = ONE;
    gradient[i] = (float)(i % 7) - 3.0f;
  }
  OPI_ASSERT_OK(b->t->write(b->queue, &e->x, ones, &err), &err);
  OPI_ASSERT_OK(b->t->write(b->queue, &e->gradient, gradient, &err), &err);
  const uint64_t before = launches_of(b);
  OPI_ASSERT_OK(b->t->update_many(b->queue, &sgd, &part, 1, &err), &err);
  OPI_ASSERT_INT(launches_of(b) - before, 1);
  if (!along)
    OPI_ASSERT_OK(b->t->params_refresh(e->set, b->queue, 0, &err), &err);
  OPI_ASSERT_OK(b->t->run(e->binding, b->queue, NULL, 0, &err), &err);
  OPI_ASSERT_OK(b->t->read(b->queue, out, &e->y, &err), &err);
  settle(b);
  part.weight = e->gradient;
  part.params = e->set;
  OPI_ASSERT_ERROR(b->t->update_many(b->queue, &sgd, &part, 1, &err), OPIPE_E_INVALID, &err,
                   "that are not the master of parameter 'v1'");
}

/* ---- rounded copies of fp32 ---- */

enum { WAYS = 4, STATES = 3 };

/* The copies that programs read: at first, after a step, after a write from outside. */
static void follow(const bench *b, trainee *e, bool along, uint16_t out[STATES][2][HALVES]) {
  static float gradient[ROOM], fresh[HALVES];
  static uint16_t ones[HALVES];
  const opipe_update sgd = {.struct_size = (uint32_t)OPIPE_END(opipe_update, decay),
                            .kind = OPIPE_UPDATE_SGD,
                            .gradient_scale = 1,
                            .lr = 1.0 / 300};
  const opipe_update_part part = {.weight = e->weight,
                                  .gradient = e->gradient,
                                  .n_elems = e->weight.n_bytes / sizeof(float),
                                  .params = along ? e->set : NULL};
  for (uint32_t i = 0; i < HALVES; ++i) {
    ones[i] = ONE;
    gradient[i] = (float)(i % 7) - 3.0f;
    fresh[i] = 3.0f - (float)i / 555.0f;
  }
  OPI_ASSERT_OK(b->t->write(b->queue, &e->x, ones, &err), &err);
  for (uint32_t state = 0; state < STATES; ++state) {
    if (state == 1) {
      OPI_ASSERT_OK(b->t->write(b->queue, &e->gradient, gradient, &err), &err);
      OPI_ASSERT_OK(b->t->update_many(b->queue, &sgd, &part, 1, &err), &err);
      if (!along)
        OPI_ASSERT_OK(b->t->params_refresh(e->set, b->queue, 0, &err), &err);
    } else if (state == 2) {
      OPI_ASSERT_OK(b->t->params_write(e->set, 0, fresh, sizeof fresh, &err), &err);
    }
    OPI_ASSERT_OK(b->t->run(e->binding, b->queue, NULL, 0, &err), &err);
    OPI_ASSERT_OK(b->t->read(b->queue, out[state][0], &e->y, &err), &err);
    OPI_ASSERT_OK(b->t->read(b->queue, out[state][1], &e->z, &err), &err);
    settle(b);
  }
}

/* Both copies follow the master, whoever changes it; without them a Cast reads it in every run. */
static void test_fp32_is_rounded_along(void) {
  static trainee trainees[WAYS];
  static uint16_t found[WAYS][STATES][2][HALVES];
  opipe_param_layout layouts[4] = {{.struct_size = sizeof layouts[0]}};
  uint32_t n = 4;
  bench b;
  for (int k = 0; k < WAYS; ++k) {
    if (!open_bench(&b, k < 2 ? NULL : "half_copies=0"))
      OPI_SKIP("%s", CT_WHY);
    trainees[k].wide = true;
    open_trainee(&b, &trainees[k]);
    follow(&b, &trainees[k], k % 2 == 0, found[k]);
    OPI_ASSERT(memcmp(found[k], found[0], sizeof found[0]) == 0);
    OPI_ASSERT_INT(trainees[k].n_kernels, trainees[0].n_kernels + (k < 2 ? 0 : 2));
    if (k == 0) {
      OPI_ASSERT_OK(b.t->program_params(trainees[0].program, layouts, &n, &err), &err);
      OPI_ASSERT_INT(n, 3);
      OPI_ASSERT(layouts[0].key < OPIPE_LAYOUT_DERIVED && layouts[1].key > OPIPE_LAYOUT_DERIVED &&
                 layouts[2].key > layouts[1].key);
      OPI_ASSERT_INT(layouts[0].n_bytes, 1280);
      OPI_ASSERT_INT(layouts[1].n_bytes, 768);
    }
    close_trainee(&b, &trainees[k]);
    close_bench(&b);
  }
  for (int i = 2; i < 2 * STATES; ++i) {
    uint16_t(*of)[2][HALVES] = found[0];
    OPI_ASSERT(memcmp(of[i / 2][i % 2], of[i / 2 - 1][i % 2], sizeof of[0][0]) != 0);
  }
}

/* The copy that programs read follows its master, as params_refresh makes it. */
static void test_halves_are_rounded_along(void) {
  static trainee trainees[2];
  static uint16_t read[2][HALVES];
  bench b;
  if (!open_bench(&b, NULL))
    OPI_SKIP("%s", CT_WHY);
  for (int k = 0; k < 2; ++k) {
    open_trainee(&b, &trainees[k]);
    step_and_read(&b, &trainees[k], k == 0, read[k]);
  }
  OPI_ASSERT(memcmp(read[0], read[1], sizeof read[0]) == 0);
  OPI_ASSERT(memcmp(read[0], trainees[0].source, sizeof read[0]) != 0);
  for (int k = 0; k < 2; ++k)
    close_trainee(&b, &trainees[k]);
  close_bench(&b);
}

OPI_TEST_MAIN("cuda update", OPI_TEST(test_many_are_a_launch_or_two),
              OPI_TEST(test_halves_are_rounded_along), OPI_TEST(test_fp32_is_rounded_along))
