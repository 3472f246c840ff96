/* SPDX-License-Identifier: Apache-2.0 */
/* ctest: timeout=120 */
/* Members of a group compute their parts: sums of regions in one order, rows of a table and
 * their gradient, masks by place in the whole tensor, cross entropy; against plain loops, and the
 * parts against the whole. */
#include "kit.h"

/* ---- sums of regions ---- */

static void sum_one(uint32_t dtype, uint32_t n_src, int64_t n, uint32_t target) {
  kit_tensor src[CUDA_SUM_REGIONS];
  const kit_tensor apart = kit_new(dtype, n);
  cuda_sum_args args = {.n = n, .n_src = n_src};
  cuda_launch launch;
  double *want = kit_doubles(n);
  for (uint32_t s = 0; s < n_src; ++s) {
    src[s] = kit_random(dtype, n, s + 1, -1, 1);
    args.src[s] = src[s].data;
  }
  for (int64_t i = 0; i < n; ++i) { /* in fp32, but of double */
    float sum = (float)kit_get(&src[0], i);
    want[i] = kit_get(&src[0], i);
    for (uint32_t s = 1; s < n_src; ++s) {
      sum += (float)kit_get(&src[s], i);
      want[i] += kit_get(&src[s], i);
    }
    want[i] = dtype == OPIPE_DOUBLE ? want[i] : (double)sum;
  }
  const kit_tensor *to = target < n_src ? &src[target] : &apart;
  const kit_tensor rounded = kit_new(dtype, n);
  for (int64_t i = 0; i < n; ++i)
    kit_set(&rounded, i, want[i]);
  args.dst = to->data;
  OPI_ASSERT_FATAL(cuda_plan_sum(&args, dtype, &launch));
  KIT_RUN(&launch, 1, to);
  OPI_ASSERT(kit_same(to, 0, &rounded, 0, n));
  kit_end();
}

static void test_sums_of_regions(void) {
  cuda_launch launch;
  const cuda_sum_args none = {.n = 1, .n_src = 0};
  for (int t = 0; t < KIT_TYPES; ++t) {
    sum_one(kit_types[t], 3, 1001, 3);
    sum_one(kit_types[t], 5, 64, 2);
    sum_one(kit_types[t], 1, 9, 0);
    kit_skew = 1; /* no whole packets */
    sum_one(kit_types[t], 2, 77, 0);
    kit_skew = 0;
  }
  sum_one(OPIPE_BFLOAT16, CUDA_SUM_REGIONS, 40, 7);
  OPI_ASSERT(!cuda_plan_sum(&none, OPIPE_FLOAT, &launch));
  OPI_ASSERT(!cuda_plan_sum(&(cuda_sum_args){.n = 1, .n_src = 1}, OPIPE_INT64, &launch));
}

/* ---- a part of a table ---- */

enum { ROWS = 11, WIDTH = 5, PARTS = 3, TAKEN = 9 };
static const int64_t starts[PARTS + 1] = {0, 4, 8, ROWS};
static const int64_t taken[TAKEN] = {0, 10, 4, -1, 3, 7, -11, 8, 4};

static const int64_t *place_indices(const int64_t *from, size_t n) {
  return kit_placed(from, n * sizeof from[0]);
}

/* The rows of all parts together, and of no other part. */
static void test_rows_of_a_table(void) {
  const kit_tensor table = kit_random(OPIPE_FLOAT, ROWS * WIDTH, 1, 1, 2);
  const int64_t *indices = place_indices(taken, TAKEN);
  kit_tensor sum = kit_new(OPIPE_FLOAT, TAKEN * WIDTH);
  memset(sum.data, 0, (size_t)sum.n * sum.bytes);
  for (int p = 0; p < PARTS; ++p) {
    const int64_t first = starts[p], own = starts[p + 1] - first;
    const kit_tensor part = kit_new(OPIPE_FLOAT, own * WIDTH), y = kit_new(OPIPE_FLOAT, sum.n);
    cuda_launch launch;
    memcpy(part.data, (const float *)table.data + first * WIDTH, (size_t)(own * WIDTH) * 4);
    const cuda_gather_args args = {.out = y.data,
                                   .data = part.data,
                                   .indices = indices,
                                   .status = kit_status(),
                                   .outer = 1,
                                   .extent = own,
                                   .n_indices = TAKEN,
                                   .inner = WIDTH,
                                   .first = first,
                                   .whole = ROWS,
                                   .size = 4,
                                   .index_bytes = 8};
    OPI_ASSERT_FATAL(cuda_plan_gather(&args, &launch));
    KIT_RUN(&launch, 1, &y);
    for (int64_t i = 0; i < sum.n; ++i)
      kit_set(&sum, i, kit_get(&sum, i) + kit_get(&y, i));
    OPI_ASSERT(args.status->code == CUDA_STATUS_OK);
  }
  for (int64_t i = 0; i < sum.n; ++i) {
    const int64_t row = taken[i / WIDTH] < 0 ? taken[i / WIDTH] + ROWS : taken[i / WIDTH];
    OPI_ASSERT(kit_get(&sum, i) == kit_get(&table, row * WIDTH + i % WIDTH));
  }
  kit_end();
}

/* An index that another part has is no error, one that no part has is. */
static void test_bad_rows_are_reported(void) {
  for (int64_t bad = -12; bad <= 11; bad += 23) {
    const int64_t given[2] = {10, bad}, *indices = place_indices(given, 2);
    const kit_tensor part = kit_random(OPIPE_FLOAT, 4, 1, 1, 2), y = kit_new(OPIPE_FLOAT, 2);
    cuda_status *status = kit_status();
    cuda_launch launch;
    const cuda_gather_args args = {.out = y.data,
                                   .data = part.data,
                                   .indices = indices,
                                   .status = status,
                                   .outer = 1,
                                   .extent = 4,
                                   .n_indices = 2,
                                   .inner = 1,
                                   .first = 4,
                                   .whole = ROWS,
                                   .size = 4,
                                   .index_bytes = 8};
    OPI_ASSERT_FATAL(cuda_plan_gather(&args, &launch));
    KIT_RUN(&launch, 1, &y);
    OPI_ASSERT(status->code == CUDA_STATUS_INDEX && status->value == bad && status->limit == ROWS);
    OPI_ASSERT(kit_get(&y, 0) == 0 && kit_get(&y, 1) == 0);
    kit_end();
  }
}

static void test_gradients_of_rows(void) {
  const kit_tensor dy = kit_random(OPIPE_FLOAT, TAKEN * WIDTH, 1, 1, 2);
  const int64_t *indices = place_indices(taken, TAKEN);
  for (int p = 0; p < PARTS; ++p) {
    const int64_t first = starts[p], own = starts[p + 1] - first;
    const kit_tensor dx = kit_new(OPIPE_FLOAT, own * WIDTH);
    double *want = kit_doubles(own * WIDTH);
    cuda_launch launches[CUDA_LAUNCHES];
    cuda_scatter_args args = {.out = dx.data,
                              .updates = dy.data,
                              .indices = indices,
                              .status = kit_status(),
                              .outer = 1,
                              .extent = own,
                              .n = TAKEN,
                              .inner = WIDTH,
                              .first = first,
                              .whole = ROWS,
                              .form = CUDA_SCATTER_AXIS,
                              .kind = 1,
                              .index_bytes = 8};
    args.workspace = kit_workspace(cuda_scatter_workspace(&args));
    memset(dx.data, 0, (size_t)dx.n * dx.bytes);
    for (int64_t i = 0; i < dy.n; ++i) {
      const int64_t given = taken[i / WIDTH], row = (given < 0 ? given + ROWS : given) - first;
      if (row >= 0 && row < own)
        want[row * WIDTH + i % WIDTH] += kit_get(&dy, i);
    }
    const uint32_t n = cuda_plan_scatter(&args, OPIPE_FLOAT, OPIPE_FLOAT, launches);
    OPI_ASSERT_FATAL(n > 0);
    KIT_RUN(launches, n, &dx);
    KIT_CLOSE(dx, want, 1e-6);
    OPI_ASSERT(args.status->code == CUDA_STATUS_OK);
  }
  kit_end();
}

/* ---- masks by place in the whole tensor ---- */

/* X [2, 3, 12] with tokens in axis 1; parts along `axis` in these runs. */
static void drop_part(uint32_t axis, const int64_t *runs, uint32_t n_runs) {
  static const int64_t whole[3] = {2, 3, 12}, numbers[4] = {11, 7, 100, 50};
  const int64_t *scalars = kit_placed(numbers, sizeof numbers);
  const kit_tensor x = kit_random(OPIPE_FLOAT, 72, 1, 0.5, 1), y = kit_new(OPIPE_FLOAT, 72);
  cuda_dropout_args args = {.y = y.data,
                            .x = x.data,
                            .seed = &scalars[0],
                            .step = &scalars[1],
                            .sample = &scalars[2],
                            .token = &scalars[3],
                            .n = 72,
                            .shape = {2, 3, 12},
                            .batch_part = {2, 1, 0, 0},
                            .token_part = {3, 1, 1, 0},
                            .key = cuda_dropout_key("drop"),
                            .ratio = 0.4,
                            .rank = 3};
  cuda_launch launch;
  int64_t own = 0, at[12];
  OPI_ASSERT_FATAL(cuda_plan_dropout(&args, OPIPE_FLOAT, &launch));
  KIT_RUN(&launch, 1, &y);
  for (uint32_t r = 0; r < n_runs; ++r) {
    for (int64_t i = 0; i < runs[2 * r + 1]; ++i)
      at[own++] = runs[2 * r] + i;
  }
  args.shape[axis] = own;
  args.n = 72 / whole[axis] * own;
  args.part_axis = axis;
  args.part_whole = whole[axis];
  args.n_runs = n_runs;
  memcpy(args.part_runs, runs, 2 * n_runs * sizeof runs[0]);
  const kit_tensor part = kit_new(OPIPE_FLOAT, args.n), made = kit_new(OPIPE_FLOAT, args.n),
                   want = kit_new(OPIPE_FLOAT, args.n);
  for (int64_t i = 0; i < args.n; ++i) {
    int64_t index[3] = {i / (args.shape[1] * args.shape[2]), i / args.shape[2] % args.shape[1],
                        i % args.shape[2]};
    index[axis] = at[index[axis]];
    const int64_t from = (index[0] * 3 + index[1]) * 12 + index[2];
    kit_set(&part, i, kit_get(&x, from));
    kit_set(&want, i, kit_get(&y, from));
  }
  args.x = part.data;
  args.y = made.data;
  OPI_ASSERT_FATAL(cuda_plan_dropout(&args, OPIPE_FLOAT, &launch));
  KIT_RUN(&launch, 1, &made);
  OPI_ASSERT(kit_same(&made, 0, &want, 0, args.n));
  args.n_runs = CUDA_DROPOUT_RUNS + 1;
  OPI_ASSERT(!cuda_plan_dropout(&args, OPIPE_FLOAT, &launch));
  kit_end();
}

/* Counters that are not there are 0. */
static void test_masks_without_counters(void) {
  static const int64_t none[4] = {0, 0, 0, 0};
  const int64_t *zeros = kit_placed(none, sizeof none);
  const kit_tensor x = kit_random(OPIPE_FLOAT, 50, 1, 0.5, 1), y = kit_new(OPIPE_FLOAT, 50),
                   again = kit_new(OPIPE_FLOAT, 50);
  cuda_dropout_args args = {.y = y.data,
                            .x = x.data,
                            .n = 50,
                            .shape = {50},
                            .batch_part = {1, 1, -1, 0},
                            .token_part = {1, 1, -1, 0},
                            .key = cuda_dropout_key("drop"),
                            .ratio = 0.4,
                            .rank = 1};
  cuda_launch launch;
  OPI_ASSERT_FATAL(cuda_plan_dropout(&args, OPIPE_FLOAT, &launch));
  KIT_RUN(&launch, 1, &y);
  args.y = again.data;
  args.seed = args.step = args.sample = args.token = zeros;
  OPI_ASSERT_FATAL(cuda_plan_dropout(&args, OPIPE_FLOAT, &launch));
  KIT_RUN(&launch, 1, &again);
  OPI_ASSERT(kit_same(&again, 0, &y, 0, 50));
  kit_end();
}

static void test_masks_of_parts(void) {
  static const int64_t one[] = {4, 4}, three[] = {0, 2, 4, 3, 9, 3}, token[] = {1, 2};
  static const int64_t sample[] = {1, 1};
  drop_part(2, one, 1);
  drop_part(2, three, 3);
  drop_part(1, token, 1);
  drop_part(0, sample, 1);
}

/* ---- cross entropy ---- */

typedef struct entropy_case {
  uint32_t dtype;
  int64_t rows, classes, inner;
  uint32_t reduction;
  bool weighted, ignores;
  double smoothing;
  bool low; /* one part has nothing but -infinity */
} entropy_case;

static int64_t score_place(const entropy_case *c, int64_t classes, int64_t line, int64_t k) {
  return (line / c->inner * classes + k) * c->inner + line % c->inner;
}

static cuda_entropy_labels labels_of(const entropy_case *c, const kit_tensor *labels) {
  return (cuda_entropy_labels){.labels = labels->data,
                               .status = kit_status(),
                               .whole = c->classes,
                               .ignored = -100,
                               .ignores = c->ignores,
                               .bytes = labels->bytes};
}

/* Part p of the scores. */
static kit_tensor cut_scores(const entropy_case *c, const kit_tensor *x, int64_t first,
                             int64_t own) {
  const int64_t lines = c->rows * c->inner;
  const kit_tensor part = kit_new(c->dtype, lines * own);
  for (int64_t i = 0; i < lines * own; ++i) {
    const int64_t line = i / own, k = i % own;
    kit_set(&part, score_place(c, own, line, k),
            kit_get(x, score_place(c, c->classes, line, first + k)));
  }
  return part;
}

/* log of the sum of exponentials of a line. */
static double log_sum_of(const entropy_case *c, const kit_tensor *x, int64_t line) {
  double top = -(double)INFINITY, sum = 0;
  for (int64_t k = 0; k < c->classes; ++k)
    top = fmax(top, kit_get(x, score_place(c, c->classes, line, k)));
  for (int64_t k = 0; k < c->classes; ++k)
    sum += exp(kit_get(x, score_place(c, c->classes, line, k)) - top);
  return top + log(sum);
}

static void entropy_grads(const entropy_case *c, const kit_tensor *x, const kit_tensor *labels,
                          const kit_tensor *weights, const kit_tensor *log_sum) {
  const int64_t lines = c->rows * c->inner;
  const kit_tensor dl = kit_random(c->dtype, c->reduction == 0 ? lines : 1, 4, 0.5, 1);
  for (int p = 0; p < PARTS; ++p) {
    const int64_t first = c->classes * p / PARTS, own = c->classes * (p + 1) / PARTS - first;
    const kit_tensor part = cut_scores(c, x, first, own), dx = kit_new(c->dtype, part.n);
    double *want = kit_doubles(part.n);
    cuda_launch launch;
    for (int64_t i = 0; i < part.n; ++i) {
      const int64_t line = i / own, k = i % own, label = (int64_t)kit_get(labels, line);
      if (label == -100)
        continue;
      const double hard = (c->weighted ? kit_get(weights, label) : 1) * (1 - c->smoothing);
      const double prob =
          exp(kit_get(&part, score_place(c, own, line, k)) - log_sum_of(c, x, line));
      want[score_place(c, own, line, k)] =
          kit_get(&dl, c->reduction == 0 ? line : 0) *
          ((hard + c->smoothing) * prob - c->smoothing / (double)c->classes -
           (first + k == label ? hard : 0));
    }
    const cuda_entropy_grad_args args = {.dx = dx.data,
                                         .scores = part.data,
                                         .dl = dl.data,
                                         .weights = c->weighted ? weights->data : NULL,
                                         .log_sum = log_sum->data,
                                         .of = labels_of(c, labels),
                                         .rows = c->rows,
                                         .own = own,
                                         .inner = c->inner,
                                         .first = first,
                                         .smoothing = c->smoothing,
                                         .dl_rows = c->reduction == 0};
    OPI_ASSERT_FATAL(cuda_plan_entropy_grad(&args, c->dtype, &launch));
    KIT_RUN(&launch, 1, &dx);
    KIT_CLOSE(dx, want, c->dtype == OPIPE_FLOAT ? 1e-5 : 0);
  }
}

static void entropy_one(const entropy_case *c) {
  const int64_t lines = c->rows * c->inner, columns = c->smoothing > 0 ? 4 : 3;
  const uint32_t wide = c->dtype == OPIPE_DOUBLE ? OPIPE_DOUBLE : OPIPE_FLOAT;
  const kit_tensor x = kit_random(c->dtype, lines * c->classes, 1, -4, 4),
                   labels = kit_random(OPIPE_INT64, lines, 2, 0, (double)c->classes),
                   weights = kit_random(c->dtype, c->classes, 3, 0.5, 2),
                   all = kit_new(wide, PARTS * lines * columns), log_sum = kit_new(wide, lines),
                   loss = kit_new(c->dtype, c->reduction == 0 ? lines : 1);
  double *want = kit_doubles(loss.n), *want_log = kit_doubles(lines), sum = 0, total = 0;
  cuda_launch launches[CUDA_LAUNCHES];
  if (c->ignores)
    kit_set(&labels, lines / 2, -100);
  if (c->low)
    kit_set(&labels, 0, 2);
  for (int64_t i = 0; c->low && i < lines * c->classes; ++i) { /* of the last part */
    if (i / c->inner % c->classes >= c->classes * 2 / PARTS)
      kit_set(&x, i, -(double)INFINITY);
  }
  for (int p = 0; p < PARTS; ++p) {
    const int64_t first = c->classes * p / PARTS, own = c->classes * (p + 1) / PARTS - first;
    const kit_tensor part = cut_scores(c, &x, first, own), one = kit_new(wide, lines * columns);
    const cuda_entropy_args args = {.statistics = one.data,
                                    .scores = part.data,
                                    .of = labels_of(c, &labels),
                                    .rows = c->rows,
                                    .own = own,
                                    .inner = c->inner,
                                    .first = first,
                                    .columns = (uint32_t)columns};
    OPI_ASSERT_FATAL(cuda_plan_entropy(&args, c->dtype, launches));
    KIT_RUN(launches, 1, &one);
    memcpy((char *)all.data + p * one.n * one.bytes, one.data, (size_t)one.n * one.bytes);
  }
  for (int64_t i = 0; i < lines; ++i) {
    const int64_t label = (int64_t)kit_get(&labels, i);
    double mean = 0, own = 0;
    want_log[i] = log_sum_of(c, &x, i);
    if (label == -100)
      continue;
    for (int64_t k = 0; k < c->classes; ++k)
      mean += kit_get(&x, score_place(c, c->classes, i, k)) / (double)c->classes;
    const double weight = c->weighted ? kit_get(&weights, label) : 1;
    own = weight * (1 - c->smoothing) *
          (want_log[i] - kit_get(&x, score_place(c, c->classes, i, label)));
    own += c->smoothing > 0 ? c->smoothing * (want_log[i] - mean) : 0;
    sum += own;
    total += weight;
    if (c->reduction == 0)
      want[i] = own;
  }
  if (c->reduction != 0)
    want[0] = c->reduction == 2 ? sum / total : sum;
  cuda_entropy_merge_args args = {.loss = loss.data,
                                  .log_sum = log_sum.data,
                                  .weights = c->weighted ? weights.data : NULL,
                                  .statistics = all.data,
                                  .of = labels_of(c, &labels),
                                  .rows = lines,
                                  .members = PARTS,
                                  .smoothing = c->smoothing,
                                  .columns = (uint32_t)columns,
                                  .reduction = c->reduction};
  args.workspace = kit_workspace(cuda_entropy_workspace(&args));
  const uint32_t n = cuda_plan_entropy_merge(&args, c->dtype, launches);
  OPI_ASSERT_FATAL(n > 0);
  KIT_RUN(launches, n, &loss, &log_sum);
  KIT_CLOSE(loss, want, c->dtype == OPIPE_FLOAT ? 1e-5 : 0);
  KIT_CLOSE(log_sum, want_log, 1e-5);
  if (!c->low)
    entropy_grads(c, &x, &labels, &weights, &log_sum);
  kit_end();
}

static void test_cross_entropy(void) {
  static const entropy_case cases[] = {{OPIPE_FLOAT, 5, 301, 1, 2, false, true, 0, false},
                                       {OPIPE_FLOAT, 3, 17, 4, 0, true, true, 0, false},
                                       {OPIPE_FLOAT, 4, 600, 1, 1, false, false, 0.1, false},
                                       {OPIPE_BFLOAT16, 3, 40, 2, 1, false, true, 0, false},
                                       {OPIPE_FLOAT16, 6, 33, 1, 2, true, true, 0.2, false},
                                       {OPIPE_DOUBLE, 2, 50, 3, 2, true, false, 0.1, false}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i)
    entropy_one(&cases[i]);
}

/* A part that is masked altogether adds nothing; labels lie in the others. */
static void test_a_part_of_infinities(void) {
  const entropy_case c = {OPIPE_FLOAT, 1, 9, 1, 1, false, false, 0, true};
  entropy_one(&c);
}

/* The label of another member is none of ours; one that no member has is reported. */
static void test_bad_classes_are_reported(void) {
  for (int32_t bad = -1; bad <= 9; bad += 10) {
    const int32_t given[2] = {8, bad};
    const kit_tensor x = kit_random(OPIPE_FLOAT, 2 * 3, 1, -1, 1), out = kit_new(OPIPE_FLOAT, 6);
    const cuda_entropy_labels of = {.labels = kit_placed(given, sizeof given),
                                    .status = kit_status(),
                                    .whole = 9,
                                    .bytes = 4,
                                    .node = 5};
    const cuda_entropy_args args = {out.data, x.data, of, 2, 3, 1, 3, 3, 0};
    cuda_launch launch;
    OPI_ASSERT_FATAL(cuda_plan_entropy(&args, OPIPE_FLOAT, &launch));
    KIT_RUN(&launch, 1, &out);
    OPI_ASSERT(of.status->code == CUDA_STATUS_LABEL && of.status->value == bad &&
               of.status->limit == 9 && of.status->node == 5);
    OPI_ASSERT(kit_get(&out, 2) == 0);
    OPI_ASSERT(!cuda_plan_entropy(&args, OPIPE_INT32, &launch));
    kit_end();
  }
}

OPI_TEST_MAIN("cuda kernels: parts", OPI_TEST(test_sums_of_regions), OPI_TEST(test_rows_of_a_table),
              OPI_TEST(test_bad_rows_are_reported), OPI_TEST(test_gradients_of_rows),
              OPI_TEST(test_masks_of_parts), OPI_TEST(test_masks_without_counters),
              OPI_TEST(test_cross_entropy), OPI_TEST(test_a_part_of_infinities),
              OPI_TEST(test_bad_classes_are_reported))
