/* SPDX-License-Identifier: Apache-2.0 */
/* ctest: timeout=120 */
/* Launches behind a product of a recurrent layer, one by one, against the operators' text in
 * double: every activation, rows of several lengths, both directions; lengths that are none. */
#include "kit.h"

enum { STEPS = 5, BATCH = 6, HIDDEN = 47, N = BATCH * HIDDEN };
static const int64_t some_lens[BATCH] = {5, 0, 3, 1, 4, 2};

static double clipped(double clip, double x) {
  return clip > 0 ? fmax(-clip, fmin(clip, x)) : x;
}

static double active(uint32_t f, double x, double p, double q) {
  switch (f) {
    case CUDA_MAP_SIGMOID:
      return 1 / (1 + exp(-x));
    case CUDA_MAP_TANH:
      return tanh(x);
    case CUDA_MAP_RELU:
      return fmax(0, x);
    case CUDA_GATE_AFFINE:
      return p * x + q;
    case CUDA_MAP_LEAKYRELU:
      return x < 0 ? p * x : x;
    case CUDA_MAP_THRESHOLDEDRELU:
      return x > p ? x : 0;
    case CUDA_GATE_SCALED_TANH:
      return p * tanh(q * x);
    case CUDA_MAP_HARDSIGMOID:
      return fmin(1, fmax(0, p * x + q));
    case CUDA_MAP_ELU:
      return x < 0 ? p * expm1(x) : x;
    case CUDA_MAP_SOFTSIGN:
      return x / (1 + fabs(x));
    default:
      return log1p(exp(x));
  }
}

/* Tensors of a layer with `gates` gates, and a launch's arguments with them. */
typedef struct layer {
  kit_tensor g, extra, lens, h0, c0, y, last_h, last_c, h, state, cell, sums;
  cuda_recurrent_args args;
  uint32_t dtype;
} layer;

static void make_layer(layer *l, uint32_t dtype, uint32_t gates, bool with_lens, bool reverse) {
  const uint32_t real = dtype == OPIPE_DOUBLE ? OPIPE_DOUBLE : OPIPE_FLOAT;
  memset(l, 0, sizeof *l);
  l->dtype = dtype;
  l->g = kit_random(dtype, STEPS * BATCH * gates * HIDDEN, 1, -2, 2);
  l->extra = kit_random(dtype, 3 * HIDDEN, 2, -1, 1);
  l->h0 = kit_random(dtype, N, 3, -1, 1);
  l->c0 = kit_random(dtype, N, 4, -1, 1);
  l->y = kit_new(dtype, STEPS * N);
  l->last_h = kit_new(dtype, N);
  l->last_c = kit_new(dtype, N);
  l->h = kit_random(dtype, N, 5, -1, 1);
  l->state = kit_random(real, N, 5, -1, 1);
  l->cell = kit_random(real, N, 6, -1, 1);
  l->sums = kit_random(real, N * gates, 7, -1, 1);
  l->lens = kit_new(reverse ? OPIPE_INT32 : OPIPE_INT64, BATCH);
  for (int b = 0; b < BATCH; ++b)
    kit_set(&l->lens, b, (double)some_lens[b]);
  l->args = (cuda_recurrent_args){.g = l->g.data,
                                  .lens = with_lens ? l->lens.data : NULL,
                                  .y = l->y.data,
                                  .h = l->h.data,
                                  .state = l->state.data,
                                  .cell = l->cell.data,
                                  .sums = l->sums.data,
                                  .steps = STEPS,
                                  .batch = BATCH,
                                  .hidden = HIDDEN,
                                  .activation = {CUDA_MAP_SIGMOID, CUDA_MAP_TANH, CUDA_MAP_TANH},
                                  .gates = gates,
                                  .lens_bytes = reverse ? 4 : 8,
                                  .reverse = reverse};
}

/* Where a row's step stands; -1: its steps are over. */
static int64_t place_of(const layer *l, int64_t row) {
  const int64_t length = l->args.lens == NULL ? STEPS : some_lens[row];
  return l->args.step >= length ? -1 : l->args.reverse ? length - 1 - l->args.step : l->args.step;
}

/* From the input, and with what comes from the state. */
static double input(const layer *l, int64_t i, int gate) {
  const int64_t row = i / HIDDEN, gates = l->args.gates;
  return kit_get(&l->g, ((place_of(l, row) * BATCH + row) * gates + gate) * HIDDEN + i % HIDDEN);
}
static double taken(const layer *l, int64_t i, int gate) {
  return input(l, i, gate) +
         kit_get(&l->sums, (i / HIDDEN * l->args.gates + gate) * HIDDEN + i % HIDDEN);
}
static double act(const layer *l, int f, double x) {
  return active(l->args.activation[f], x, l->args.alpha[f], l->args.beta[f]);
}
static double gate(const layer *l, int f, double x) {
  return act(l, f, clipped(l->args.clip, x));
}
static double extra(const layer *l, int64_t i, int k) {
  return l->args.extra != NULL ? kit_get(&l->extra, k * HIDDEN + i % HIDDEN) : 0;
}

/* The state behind the step, and *io_cell. */
static double stepped(const layer *l, int64_t i, double *io_cell) {
  const double h = kit_get(&l->state, i);
  double z, r, in, keep;
  switch (l->args.part) {
    case CUDA_RECURRENT_LSTM:
      in = gate(l, 0, taken(l, i, 0) + extra(l, i, 0) * *io_cell);
      keep = l->args.input_forget ? 1 - in : gate(l, 0, taken(l, i, 2) + extra(l, i, 2) * *io_cell);
      *io_cell = keep * *io_cell + in * gate(l, 1, taken(l, i, 3));
      return gate(l, 0, taken(l, i, 1) + extra(l, i, 1) * *io_cell) * act(l, 2, *io_cell);
    case CUDA_RECURRENT_GRU:
      z = gate(l, 0, taken(l, i, 0));
      r = gate(l, 0, taken(l, i, 1));
      return (1 - z) *
                 gate(l, 1,
                      input(l, i, 2) + r * (taken(l, i, 2) - input(l, i, 2) + extra(l, i, 0))) +
             z * h;
    case CUDA_RECURRENT_RENEW:
      z = taken(l, i, 0) - input(l, i, 0); /* RESET has put it there */
      return (1 - z) * gate(l, 1, taken(l, i, 2)) + z * h;
    default:
      return gate(l, 0, taken(l, i, 0));
  }
}

/* The launch at hand: state, cell, h and y. */
static void check_step(layer *l) {
  const kit_tensor before = kit_copy(&l->y);
  double *state = kit_doubles(N), *cell = kit_doubles(N), *h = kit_doubles(N);
  double *y = kit_doubles(STEPS * N);
  cuda_launch launch;
  for (int64_t i = 0; i < STEPS * N; ++i)
    y[i] = kit_get(&before, i);
  for (int64_t i = 0; i < N; ++i) {
    const int64_t at = place_of(l, i / HIDDEN);
    state[i] = kit_get(&l->state, i);
    cell[i] = kit_get(&l->cell, i);
    h[i] = kit_get(&l->h, i);
    if (at >= 0)
      h[i] = state[i] = stepped(l, i, &cell[i]);
    y[(at >= 0 ? at : l->args.step) * N + i] = at >= 0 ? state[i] : 0;
  }
  OPI_ASSERT_FATAL(cuda_plan_recurrent(&l->args, l->dtype, &launch));
  KIT_RUN(&launch, 1, &l->state, &l->cell, &l->h, &l->y);
  KIT_CLOSE(l->state, state, 0);
  KIT_CLOSE(l->cell, cell, 0);
  KIT_CLOSE(l->h, h, 0);
  for (int64_t i = 0; i < N; ++i) {
    const int64_t at = place_of(l, i / HIDDEN);
    const int64_t to = (at >= 0 ? at : l->args.step) * N + i;
    OPI_ASSERT(at >= 0 ? kit_same(&l->y, to, &l->h, i, 1) : kit_get(&l->y, to) == 0);
    y[to] = kit_get(&l->y, to);
  }
  KIT_CLOSE(l->y, y, 0); /* nothing else is written */
  kit_end();
}

static void test_steps_of_every_cell(void) {
  static const struct {
    uint32_t part, gates;
  } cells[] = {{CUDA_RECURRENT_LSTM, 4},
               {CUDA_RECURRENT_GRU, 3},
               {CUDA_RECURRENT_RENEW, 3},
               {CUDA_RECURRENT_RNN, 1}};
  for (uint32_t i = 0; i < 4 * 4 * KIT_TYPES; ++i) {
    const uint32_t cell = i % 4, how = i / 4 % 4;
    layer l;
    make_layer(&l, kit_types[i / 16], cells[cell].gates, (how & 1) != 0, (how & 2) != 0);
    l.args.part = cells[cell].part;
    l.args.step = 1 + how % 2;
    l.args.extra = (how & 2) != 0 ? l.extra.data : NULL;
    l.args.input_forget = how == 3;
    l.args.clip = how == 2 ? 0.5 : 0;
    l.args.activation[1] = how == 3 ? CUDA_MAP_RELU : CUDA_MAP_TANH;
    check_step(&l);
  }
}

static void test_every_activation(void) {
  static const struct {
    uint32_t f;
    double alpha, beta;
  } all[] = {{CUDA_MAP_SIGMOID, 0, 0},        {CUDA_MAP_TANH, 0, 0},
             {CUDA_MAP_RELU, 0, 0},           {CUDA_GATE_AFFINE, 0.5, -0.25},
             {CUDA_MAP_LEAKYRELU, 0.1, 0},    {CUDA_MAP_THRESHOLDEDRELU, 0.75, 0},
             {CUDA_GATE_SCALED_TANH, 1.5, 2}, {CUDA_MAP_HARDSIGMOID, 0.3, 0.4},
             {CUDA_MAP_ELU, 1.25, 0},         {CUDA_MAP_SOFTSIGN, 0, 0},
             {CUDA_MAP_SOFTPLUS, 0, 0}};
  for (uint32_t i = 0; i < sizeof all / sizeof all[0] * 2; ++i) {
    layer l;
    make_layer(&l, i % 2 == 0 ? OPIPE_FLOAT : OPIPE_DOUBLE, 1, false, false);
    l.args.part = CUDA_RECURRENT_RNN;
    l.args.activation[0] = all[i / 2].f;
    l.args.alpha[0] = all[i / 2].alpha;
    l.args.beta[0] = all[i / 2].beta;
    check_step(&l);
  }
}

/* z in the place of its sums, r h in the place of h; rows that are over stay. */
static void test_a_reset(void) {
  for (int t = 0; t < KIT_TYPES; ++t) {
    layer l;
    make_layer(&l, kit_types[t], 3, true, false);
    l.args.part = CUDA_RECURRENT_RESET;
    l.args.step = 2;
    double *sums = kit_doubles(3 * N), *h = kit_doubles(N);
    cuda_launch launch;
    for (int64_t i = 0; i < 3 * N; ++i)
      sums[i] = kit_get(&l.sums, i);
    for (int64_t i = 0; i < N; ++i) {
      h[i] = kit_get(&l.h, i);
      if (place_of(&l, i / HIDDEN) < 0)
        continue;
      sums[i / HIDDEN * 3 * HIDDEN + i % HIDDEN] = gate(&l, 0, taken(&l, i, 0));
      h[i] = gate(&l, 0, taken(&l, i, 1)) * kit_get(&l.state, i);
    }
    const kit_tensor y = kit_copy(&l.y);
    OPI_ASSERT_FATAL(cuda_plan_recurrent(&l.args, l.dtype, &launch));
    KIT_RUN(&launch, 1, &l.sums, &l.h);
    KIT_CLOSE(l.sums, sums, 0);
    KIT_CLOSE(l.h, h, 0);
    OPI_ASSERT(kit_same(&l.y, 0, &y, 0, y.n));
    kit_end();
  }
}

static void test_beginning_and_end(void) {
  for (int i = 0; i < 2 * KIT_TYPES; ++i) {
    const bool has = i / KIT_TYPES == 0;
    layer l;
    cuda_launch launch;
    make_layer(&l, kit_types[i % KIT_TYPES], 4, false, false);
    double *h = kit_doubles(N), *c = kit_doubles(N);
    for (int64_t k = 0; has && k < N; ++k) {
      h[k] = kit_get(&l.h0, k);
      c[k] = kit_get(&l.c0, k);
    }
    l.args.part = CUDA_RECURRENT_BEGIN;
    l.args.h0 = has ? l.h0.data : NULL;
    l.args.c0 = has ? l.c0.data : NULL;
    OPI_ASSERT_FATAL(cuda_plan_recurrent(&l.args, l.dtype, &launch));
    KIT_RUN(&launch, 1, &l.state, &l.cell, &l.h);
    KIT_CLOSE(l.state, h, 0);
    KIT_CLOSE(l.h, h, 0);
    KIT_CLOSE(l.cell, c, 0);
    l.args.part = CUDA_RECURRENT_END;
    l.args.last_h = l.last_h.data;
    l.args.last_c = l.last_c.data;
    OPI_ASSERT_FATAL(cuda_plan_recurrent(&l.args, l.dtype, &launch));
    KIT_RUN(&launch, 1, &l.last_h, &l.last_c);
    KIT_CLOSE(l.last_h, h, 0);
    KIT_CLOSE(l.last_c, c, 0);
    l.args.last_h = l.args.last_c = NULL; /* nobody asks */
    OPI_ASSERT_FATAL(cuda_plan_recurrent(&l.args, l.dtype, &launch));
    KIT_RUN(&launch, 1, &l.last_h);
    kit_end();
  }
}

static void test_a_length_that_is_none(void) {
  static const int64_t wrong[] = {-1, STEPS + 1};
  for (int i = 0; i < 2; ++i) {
    layer l;
    cuda_launch launch;
    cuda_status *const status = kit_status();
    make_layer(&l, OPIPE_FLOAT, 1, true, false);
    kit_set(&l.lens, 3, (double)wrong[i]);
    l.args.part = CUDA_RECURRENT_BEGIN;
    l.args.status = status;
    l.args.node = 6;
    OPI_ASSERT_FATAL(cuda_plan_recurrent(&l.args, l.dtype, &launch));
    KIT_RUN(&launch, 1, &l.state);
    OPI_ASSERT_INT(status->code, CUDA_STATUS_LENGTH);
    OPI_ASSERT_INT(status->node, 6);
    OPI_ASSERT_INT(status->value, wrong[i]);
    OPI_ASSERT_INT(status->limit, STEPS);
    kit_end();
  }
  cuda_launch launch;
  const cuda_recurrent_args unknown = {.part = CUDA_RECURRENT_PARTS}, plain = {.part = 0};
  OPI_ASSERT(!cuda_plan_recurrent(&unknown, OPIPE_FLOAT, &launch));
  OPI_ASSERT(!cuda_plan_recurrent(&plain, OPIPE_INT32, &launch));
}

OPI_TEST_MAIN("cuda kernels: recurrent layers", OPI_TEST(test_steps_of_every_cell),
              OPI_TEST(test_every_activation), OPI_TEST(test_a_reset),
              OPI_TEST(test_beginning_and_end), OPI_TEST(test_a_length_that_is_none))
