/* SPDX-License-Identifier: Apache-2.0 */
/* ctest: timeout=120 always */
/* Losses with their gradients against plain loops in double; dropout against the definition of its
 * masks. */
#include "kit.h"

/* ---- losses ---- */

typedef struct loss_case {
  uint32_t dtype;
  int64_t rows, classes, inner;
  uint32_t reduction;
  bool softmax, weighted, ignores, wide_labels, log_prob, dl_rows;
  double smoothing;
  bool wide; /* scores of a half type with losses of fp32 */
} loss_case;

static void loss_line(const kit_tensor *x, int64_t first, const loss_case *c, double *out) {
  double top = -(double)INFINITY, sum = 0;
  for (int64_t k = 0; k < c->classes; ++k)
    top = fmax(top, kit_get(x, first + k * c->inner));
  for (int64_t k = 0; k < c->classes; ++k)
    sum += exp(kit_get(x, first + k * c->inner) - top);
  for (int64_t k = 0; k < c->classes; ++k)
    out[k] = kit_get(x, first + k * c->inner) - (c->softmax ? top + log(sum) : 0);
}

/* The same scores in rows that are longer, with nothing between them: the bits of rows side by
 * side; between rows of the gradient zeros at most, and these before the next 16 bytes. */
static void loss_by_distance(cuda_loss_args args, cuda_loss_grad_args grad, const loss_case *c,
                             const kit_tensor *loss, const kit_tensor *dx, int64_t distance) {
  const uint32_t of = c->wide ? OPIPE_FLOAT : c->dtype;
  const kit_tensor x = kit_new(c->dtype, c->rows * distance), again = kit_new(of, loss->n);
  const kit_tensor made = kit_new(c->dtype, x.n);
  const int64_t per_packet = 16 / x.bytes;
  const int64_t end = (c->classes + per_packet - 1) / per_packet * per_packet;
  cuda_launch launches[CUDA_LAUNCHES];
  for (int64_t i = 0; i < c->rows; ++i) {
    memcpy((char *)x.data + i * distance * x.bytes,
           (const char *)args.scores + i * c->classes * x.bytes, (size_t)c->classes * x.bytes);
  }
  args.scores = grad.x = x.data;
  args.distance = grad.x_distance = grad.dx_distance = distance;
  args.loss = again.data;
  args.log_prob = NULL;
  grad.dx = made.data;
  const uint32_t n = cuda_plan_loss(&args, c->dtype, of, launches);
  KIT_RUN(launches, n, &again);
  OPI_ASSERT(kit_same(&again, 0, loss, 0, loss->n));
  for (int in_place = 0; in_place < 2; ++in_place) {
    const kit_tensor *to = in_place != 0 ? &x : &made;
    grad.dx = to->data;
    OPI_ASSERT_FATAL(cuda_plan_loss_grad(&grad, c->dtype, of, launches));
    KIT_RUN(launches, 1, to);
    for (int64_t i = 0; i < c->rows; ++i) {
      OPI_ASSERT(kit_same(to, i * distance, dx, i * c->classes, c->classes));
      for (int64_t k = c->classes; k < distance; ++k) {
        const double between = kit_get(to, i * distance + k);
        OPI_ASSERT(isnan(between) || (between == 0 && k < end));
      }
    }
  }
}

static void loss_one(const loss_case *c) {
  const int64_t lines = c->rows * c->inner;
  const uint32_t of = c->wide ? OPIPE_FLOAT : c->dtype;
  const kit_tensor x = kit_random(c->dtype, lines * c->classes, 1, -4, 4);
  const kit_tensor labels =
      kit_random(c->wide_labels ? OPIPE_INT64 : OPIPE_INT32, lines, 2, 0, (double)c->classes);
  const kit_tensor weights = kit_random(of, c->classes, 3, 0.5, 2),
                   log_prob = kit_new(c->dtype, x.n);
  const kit_tensor loss = kit_new(of, c->reduction == 0 ? lines : 1);
  const kit_tensor dl = kit_random(of, c->dl_rows ? lines : 1, 4, 0.5, 1),
                   dx = kit_new(c->dtype, x.n);
  double *want = kit_doubles(loss.n), *want_log = kit_doubles(x.n), *want_dx = kit_doubles(x.n);
  double *logs = kit_doubles(c->classes), sum = 0, total = 0, all = 0;
  if (c->ignores)
    kit_set(&labels, lines / 2, -100);
  for (int64_t k = 0; k < c->classes; ++k)
    all += c->weighted ? kit_get(&weights, k) : 1;
  for (int64_t i = 0; i < lines; ++i) {
    const int64_t first = i / c->inner * c->classes * c->inner + i % c->inner;
    const int64_t label = (int64_t)kit_get(&labels, i);
    const bool counts = label != -100;
    const double weight = !counts ? 0 : c->weighted ? kit_get(&weights, label) : 1;
    loss_line(&x, first, c, logs);
    sum += counts ? -weight * logs[label] : 0;
    total += weight;
    if (c->reduction == 0)
      want[i] = counts ? -weight * logs[label] : 0;
    for (int64_t k = 0; k < c->classes; ++k) {
      const double each = c->smoothing / (double)c->classes;
      want_log[first + k * c->inner] = logs[k];
      if (!counts)
        continue;
      const double d = exp(logs[k]) * ((1 - c->smoothing) * weight + each * all) -
                       each * (c->weighted ? kit_get(&weights, k) : 1) -
                       (k == label ? (1 - c->smoothing) * weight : 0);
      want_dx[first + k * c->inner] = kit_get(&dl, c->dl_rows ? i : 0) * d;
    }
  }
  if (c->reduction != 0)
    want[0] = c->reduction == 2 ? sum / total : sum;
  cuda_loss_args args = {.loss = loss.data,
                         .log_prob = c->log_prob ? log_prob.data : NULL,
                         .scores = x.data,
                         .labels = labels.data,
                         .weights = c->weighted ? weights.data : NULL,
                         .rows = c->rows,
                         .classes = c->classes,
                         .inner = c->inner,
                         .ignored = -100,
                         .ignores = c->ignores,
                         .reduction = c->reduction,
                         .softmax = c->softmax,
                         .label_bytes = labels.bytes};
  cuda_launch launches[CUDA_LAUNCHES];
  args.workspace = kit_workspace(cuda_loss_workspace(&args));
  const uint32_t n = cuda_plan_loss(&args, c->dtype, of, launches);
  OPI_ASSERT_FATAL(n > 0);
  KIT_RUN(launches, n, &loss, &log_prob);
  KIT_CLOSE(loss, want, of == OPIPE_FLOAT ? 1e-5 : 0);
  if (c->log_prob)
    KIT_CLOSE(log_prob, want_log, c->dtype == OPIPE_FLOAT ? 1e-5 : 0);
  if (!c->softmax) {
    kit_end();
    return;
  }
  cuda_loss_grad_args grad = {.dx = dx.data,
                              .x = x.data,
                              .dl = dl.data,
                              .labels = labels.data,
                              .weights = args.weights,
                              .rows = c->rows,
                              .classes = c->classes,
                              .inner = c->inner,
                              .ignored = -100,
                              .smoothing = c->smoothing,
                              .ignores = c->ignores,
                              .dl_rows = c->dl_rows,
                              .label_bytes = labels.bytes};
  OPI_ASSERT_FATAL(cuda_plan_loss_grad(&grad, c->dtype, of, launches));
  KIT_RUN(launches, 1, &dx);
  KIT_CLOSE(dx, want_dx, c->dtype == OPIPE_FLOAT ? 1e-5 : 0);
  if (c->inner == 1 && c->classes > 1 && c->rows < 100)
    loss_by_distance(args, grad, c, &loss, &dx, (c->classes + 63) / 64 * 64);
  if (c->rows == 7)
    loss_by_distance(args, grad, c, &loss, &dx, c->classes + 1);
  grad.dx = x.data; /* in the place of the scores */
  OPI_ASSERT_FATAL(cuda_plan_loss_grad(&grad, c->dtype, of, launches));
  KIT_RUN(launches, 1, &x);
  OPI_ASSERT(kit_same(&x, 0, &dx, 0, x.n));
  kit_end();
}

static void test_losses(void) {
  static const int64_t shapes[][3] = {{1, 1, 1}, {7, 5, 1}, {3, 1000, 1}, {300, 3, 1}, {3, 7, 4}};
  unsigned i = 0;
  for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; ++s) {
    for (int t = 0; t < (shapes[s][0] < 100 ? KIT_TYPES : 1); ++t) { /* many rows: of one type */
      for (uint32_t reduction = 0; reduction < 3; ++reduction, ++i) {
        const loss_case c = {kit_types[t], shapes[s][0], shapes[s][1], shapes[s][2],
                             reduction,    i % 4 != 1,   i % 3 == 0,   i % 5 > 1 && s > 0,
                             i % 2 == 0,   i % 3 == 1,   i % 2 != 0,   i % 4 == 0 ? 0.1 : 0};
        if (!kit_covers(i, 5))
          continue;
        loss_one(&c);
        loss_case wide = c;
        wide.wide = true;
        wide.log_prob = false;
        if (wide.inner == 1 && (wide.dtype == OPIPE_BFLOAT16 || wide.dtype == OPIPE_FLOAT16))
          loss_one(&wide);
      }
    }
  }
}

/* Rows of several packets a thread, whole ones and others, and rows of which shared memory holds a
 * part. */
static void test_long_rows(void) {
  static const int64_t shapes[][2] = {{2, 4104}, {1, 12305}, {1, 60008}};
  for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; ++s) {
    for (int t = 0; t < KIT_TYPES; ++t) {
      const bool half = kit_types[t] == OPIPE_BFLOAT16 || kit_types[t] == OPIPE_FLOAT16;
      const loss_case c = {.dtype = kit_types[t],
                           .rows = shapes[s][0],
                           .classes = shapes[s][1],
                           .inner = 1,
                           .reduction = 2,
                           .softmax = true,
                           .weighted = s == 1,
                           .wide_labels = true,
                           .log_prob = s == 0 && !half,
                           .smoothing = s == 1 ? 0.1 : 0,
                           .wide = half};
      if (kit_covers(s * KIT_TYPES + (size_t)t, 5))
        loss_one(&c);
    }
  }
}

/* Scores at the ends of the range: a class without weight, one that has all of it, a row of
 * nothing, a number that is none. */
static void test_extremes(void) {
  enum { CLASSES = 520, ROWS = 5 };
  const kit_tensor x = kit_random(OPIPE_BFLOAT16, ROWS * CLASSES, 1, -4, 4);
  const kit_tensor labels = kit_random(OPIPE_INT32, ROWS, 2, 0, 8), dl = kit_new(OPIPE_FLOAT, 1);
  const kit_tensor loss = kit_new(OPIPE_FLOAT, ROWS), dx = kit_new(OPIPE_BFLOAT16, x.n);
  double *want = kit_doubles(ROWS), *want_dx = kit_doubles(x.n), logs[CLASSES];
  const loss_case c = {.dtype = OPIPE_BFLOAT16, .classes = CLASSES, .inner = 1, .softmax = true};
  cuda_launch launches[CUDA_LAUNCHES];
  kit_set(&dl, 0, 0.5);
  for (int64_t k = 0; k < CLASSES; ++k) {
    if (k % 3 != 0 || k < 16)
      kit_set(&x, k, k < 8 ? -1 : -(double)INFINITY);
    kit_set(&x, CLASSES + k, k == 511 ? 1e38 : -1e38);
    kit_set(&x, 2 * CLASSES + k, -(double)INFINITY);
  }
  kit_set(&x, 3 * CLASSES + 300, (double)NAN);
  kit_set(&x, 4 * CLASSES + 519, (double)INFINITY);
  for (int64_t i = 0; i < ROWS; ++i) {
    const int64_t label = (int64_t)kit_get(&labels, i);
    loss_line(&x, i * CLASSES, &c, logs);
    for (int64_t k = 0; k < CLASSES && i >= 2; ++k)
      logs[k] = (double)NAN;
    want[i] = -logs[label];
    for (int64_t k = 0; k < CLASSES; ++k)
      want_dx[i * CLASSES + k] = 0.5 * (exp(logs[k]) - (k == label ? 1 : 0));
  }
  cuda_loss_args args = {.loss = loss.data,
                         .scores = x.data,
                         .labels = labels.data,
                         .rows = ROWS,
                         .classes = CLASSES,
                         .inner = 1,
                         .softmax = 1,
                         .label_bytes = 4};
  args.workspace = kit_workspace(cuda_loss_workspace(&args));
  OPI_ASSERT_INT(cuda_plan_loss(&args, OPIPE_BFLOAT16, OPIPE_FLOAT, launches), 1);
  KIT_RUN(launches, 1, &loss);
  KIT_CLOSE(loss, want, 1e-5);
  const cuda_loss_grad_args grad = {.dx = dx.data,
                                    .x = x.data,
                                    .dl = dl.data,
                                    .labels = labels.data,
                                    .rows = ROWS,
                                    .classes = CLASSES,
                                    .inner = 1,
                                    .label_bytes = 4};
  OPI_ASSERT_FATAL(cuda_plan_loss_grad(&grad, OPIPE_BFLOAT16, OPIPE_FLOAT, launches));
  KIT_RUN(launches, 1, &dx);
  KIT_CLOSE(dx, want_dx, 0);
  kit_end();
}

/* Types that no kernel joins. */
static void test_refusals(void) {
  cuda_loss_args args = {.rows = 1, .classes = 8, .inner = 1, .softmax = 1, .label_bytes = 4};
  cuda_launch launches[CUDA_LAUNCHES];
  float place[8];
  OPI_ASSERT_INT(cuda_plan_loss(&args, OPIPE_DOUBLE, OPIPE_FLOAT, launches), 0);
  OPI_ASSERT_INT(cuda_plan_loss(&args, OPIPE_FLOAT, OPIPE_BFLOAT16, launches), 0);
  args.inner = 2;
  OPI_ASSERT_INT(cuda_plan_loss(&args, OPIPE_BFLOAT16, OPIPE_FLOAT, launches), 0);
  args.inner = 1;
  args.log_prob = place;
  OPI_ASSERT_INT(cuda_plan_loss(&args, OPIPE_BFLOAT16, OPIPE_FLOAT, launches), 0);
}

static void test_bad_labels_are_reported(void) {
  const kit_tensor x = kit_random(OPIPE_FLOAT, 6, 1, -1, 1),
                   labels = kit_random(OPIPE_INT32, 2, 2, 0, 3);
  const kit_tensor out = kit_new(OPIPE_FLOAT, 6), dl = kit_random(OPIPE_FLOAT, 1, 3, 1, 2);
  cuda_status *const status = kit_status();
  cuda_launch launches[CUDA_LAUNCHES];
  kit_set(&labels, 1, 3);
  cuda_loss_args args = {.loss = out.data,
                         .scores = x.data,
                         .labels = labels.data,
                         .status = status,
                         .rows = 2,
                         .classes = 3,
                         .inner = 1,
                         .softmax = 1,
                         .label_bytes = 4,
                         .node = 5};
  args.workspace = kit_workspace(cuda_loss_workspace(&args));
  OPI_ASSERT_INT(cuda_plan_loss(&args, OPIPE_FLOAT, OPIPE_FLOAT, launches), 1);
  KIT_RUN(launches, 1, NULL);
  OPI_ASSERT(status->code == CUDA_STATUS_LABEL && status->node == 5 && status->value == 3 &&
             status->limit == 3);
  cuda_loss_grad_args grad = {.dx = out.data,
                              .x = x.data,
                              .dl = dl.data,
                              .labels = labels.data,
                              .status = status,
                              .rows = 2,
                              .classes = 3,
                              .inner = 1,
                              .label_bytes = 4,
                              .node = 6};
  status->code = 0;
  OPI_ASSERT_FATAL(cuda_plan_loss_grad(&grad, OPIPE_FLOAT, OPIPE_FLOAT, launches));
  KIT_RUN(launches, 1, &out);
  OPI_ASSERT(status->code == CUDA_STATUS_LABEL && status->node == 6);
  OPI_ASSERT(kit_get(&out, 3) == 0 && kit_get(&out, 5) == 0 && kit_get(&out, 0) != 0);
  OPI_ASSERT(cuda_plan_loss(&args, OPIPE_INT32, OPIPE_INT32, launches) == 0);
  grad.label_bytes = 2;
  OPI_ASSERT(!cuda_plan_loss_grad(&grad, OPIPE_FLOAT, OPIPE_FLOAT, launches));
  kit_end();
}

/* ---- dropout ---- */

static uint64_t mixed(uint64_t x) {
  x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
  return x ^ x >> 31;
}

/* The definition: element (sample, token, rest) of a tensor [batch, tokens, rest] in any
 * arrangement of axes. */
static bool kept(uint64_t key, int64_t seed, int64_t step, int64_t sample, int64_t token,
                 int64_t rest, double ratio) {
  const uint64_t golden = UINT64_C(0x9e3779b97f4a7c15);
  uint64_t x = mixed(key + (uint64_t)seed * golden);
  x = mixed(x + (uint64_t)step * golden);
  x = mixed(x + (uint64_t)sample * golden);
  x = mixed(x + (uint64_t)token * golden);
  return mixed(x + (uint64_t)(rest + 1) * golden) >> 11 >= (uint64_t)(ratio * 0x1p53);
}

enum { B = 3, S = 5, H = 2, D = 8 };

typedef struct position {
  int64_t sample, token, rest;
} position;

/* Position of element i in each of the forms of test_dropout. */
static position position_of(size_t form, int64_t i) {
  const int64_t row = i / (H * D), column = i % (H * D);
  switch (form) {
    case 0:
    case 1:
      return (position){row / S, row % S, column};
    case 2:
      return (position){row % B, row / B, column};
    case 3:
      return (position){i / (S * H * D), i % S, i / S % (H * D)};
    case 4:
      return (position){i / (H * S * D), i / D % S, i / (S * D) % H * D + i % D};
    default:
      return (position){0, row % S, row / S * H * D + column};
  }
}

static void test_dropout(void) {
  static const struct {
    int64_t shape[4];
    uint32_t rank;
    cuda_dropout_factor batch, token;
  } forms[] = {
      {{B, S, H * D, 1}, 3, {B, 1, 0, 0}, {S, 1, 1, 0}},
      {{B * S, H * D, 1, 1}, 2, {B, S, 0, 0}, {S, 1, 0, 0}}, /* both in the first axis */
      {{S * B, H * D, 1, 1}, 2, {B, 1, 0, 0}, {S, B, 0, 0}}, /* tokens first */
      {{B, H, D, S}, 4, {B, 1, 0, 0}, {S, 1, 3, 0}},         /* tokens last */
      {{B * H, S, D, 1}, 3, {B, H, 0, 0}, {S, 1, 1, 0}},     /* heads behind the batch */
      {{B, S, H * D, 1}, 3, {1, 1, -1, 0}, {S, 1, 1, 0}}};   /* no batch: it is in the rest */
  const uint64_t key = cuda_dropout_key("layer/drop");
  for (size_t f = 0; f < sizeof forms / sizeof forms[0]; ++f) {
    for (int t = 0; t < KIT_TYPES; ++t) {
      static const int64_t numbers[4] = {11, 7, 100, 50};
      const int64_t n = B * S * H * D, *scalars = kit_placed(numbers, sizeof numbers);
      const kit_tensor x = kit_random(kit_types[t], n, 1, 0.5, 1), y = kit_new(kit_types[t], n),
                       mask = kit_new(OPIPE_BOOL, n);
      double *want = kit_doubles(n), *want_mask = kit_doubles(n);
      for (int64_t i = 0; i < n; ++i) {
        const position at = position_of(f, i);
        want_mask[i] = kept(key, 11, 7, 100 + at.sample, 50 + at.token, at.rest, 0.3);
        want[i] = want_mask[i] != 0 ? kit_get(&x, i) / 0.7 : 0;
      }
      cuda_dropout_args args = {.y = y.data,
                                .x = x.data,
                                .mask = mask.data,
                                .seed = &scalars[0],
                                .step = &scalars[1],
                                .sample = &scalars[2],
                                .token = &scalars[3],
                                .n = n,
                                .batch_part = forms[f].batch,
                                .token_part = forms[f].token,
                                .key = key,
                                .ratio = 0.3,
                                .rank = forms[f].rank};
      memcpy(args.shape, forms[f].shape, sizeof forms[f].shape);
      cuda_launch launch;
      OPI_ASSERT_FATAL(cuda_plan_dropout(&args, kit_types[t], &launch));
      KIT_RUN(&launch, 1, &y, &mask);
      KIT_CLOSE(mask, want_mask, 1e-9);
      KIT_CLOSE(y, want, 0);
      args.ratio = 1;
      OPI_ASSERT(!cuda_plan_dropout(&args, kit_types[t], &launch));
      kit_end();
    }
  }
}

OPI_TEST_MAIN("cuda_loss", OPI_TEST(test_losses), OPI_TEST(test_long_rows), OPI_TEST(test_extremes),
              OPI_TEST(test_refusals), OPI_TEST(test_bad_labels_are_reported),
              OPI_TEST(test_dropout))
