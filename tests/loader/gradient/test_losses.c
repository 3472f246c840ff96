/* SPDX-License-Identifier: Apache-2.0 */
/* Losses attached to an output and scalars of the graph: value and gradient by their formulas, the
 * count that the mini-batch is divided by, and what is refused.
 *
 * The model is y = x w with x [2,3] (or [2,2,3]) and w [3,4].
 */
#include "tests/loader/gradient/training.h"
#include "tests/loader/graphs.h"

enum { ROWS = 4, IN = 3, OUT = 4 };

typedef struct loss_case {
  test_graph graph;
  uint32_t x, y;
  opi_bound *bound;
  opi_training *training;
  opi_arena arena;
  float data_x[ROWS * IN], data_w[IN * OUT];
  double logits[ROWS * OUT];
} loss_case;

/* y [rows, 4], or [2, rows / 2, 4]. */
static void open_case(loss_case *c, int64_t rows, bool deep) {
  opi_test_random random = {7};
  const int64_t flat[2] = {rows, IN}, cube[3] = {2, rows / 2, IN}, w[2] = {IN, OUT};
  memset(c, 0, sizeof(*c));
  test_open(&c->graph);
  opi_arena_init(&c->arena, opi_allocator_system(), 0);
  opi_test_fill_f32(&random, c->data_x, ROWS * IN, -1, 1);
  opi_test_fill_f32(&random, c->data_w, IN * OUT, -1, 1);
  c->x = test_input(&c->graph, "x", OPIPE_FLOAT, deep ? cube : flat, deep ? 3 : 2);
  const uint32_t v = test_known(&c->graph, "w", OPIPE_FLOAT, w, 2, c->data_w);
  c->y = test_op(&c->graph, "MatMul", c->x, v);
  test_rename(&c->graph, c->y, "y");
  for (uint32_t r = 0; r < ROWS; ++r) {
    for (uint32_t o = 0; o < OUT; ++o) {
      for (uint32_t i = 0; i < IN; ++i)
        c->logits[r * OUT + o] += (double)c->data_x[r * IN + i] * (double)c->data_w[i * OUT + o];
    }
  }
}

static void close_case(loss_case *c) {
  opi_training_free(c->training);
  opi_bound_free(c->bound);
  test_close(&c->graph);
  opi_arena_release(&c->arena);
}

static opipe_status build_with(loss_case *c, const opi_gradient_options *given, opipe_error *err) {
  opi_bind_options bind = test_options();
  bind.flags |= OPI_BIND_KEEP_PARAMETERS;
  opi_gradient_options options = *given;
  options.allocator = opi_allocator_system();
  options.evaluator = test_backend_evaluator();
  if (c->bound == NULL)
    OPI_TRY(opi_bind(&c->graph.model, &bind, &c->bound, err));
  opi_training_free(c->training);
  c->training = NULL;
  return opi_gradient_build(c->bound, &options, &c->training, err);
}

static opipe_status build(loss_case *c, const opi_loss *loss, opipe_error *err) {
  const opi_gradient_options options = {.loss = loss, .compute = OPIPE_FLOAT};
  return build_with(c, &options, err);
}

/* Runs and compares: loss, and dw from dy [rows, 4]. */
static void check(loss_case *c, int64_t rows, const test_feed *labels, double count,
                  double wanted_loss, const double *dy) {
  opipe_error err = OPIPE_ERROR_INIT;
  const test_feed feeds[2] = {{"x", c->data_x, (uint64_t)rows * IN * 4},
                              labels != NULL ? *labels : (test_feed){"none", NULL, 0}};
  test_step step = {
      .t = c->training, .feeds = feeds, .n_feeds = 2, .count = count, .arena = &c->arena};
  double loss = 0, *gradients[8] = {NULL}, wanted[IN * OUT] = {0};
  size_t sizes[8] = {0};
  if (!OPI_ASSERT_OK(test_run_step(&step, &loss, gradients, sizes, &err), &err))
    return;
  (void)opi_test_check(fabs(loss - wanted_loss) <= 1e-6 * (1 + fabs(wanted_loss)), __FILE__,
                       __LINE__, false, "loss %.9g, not %.9g", loss, wanted_loss);
  for (uint32_t p = 0; p < c->training->n_params; ++p) {
    if (strcmp(c->training->params[p].name, "w") != 0)
      continue;
    for (int64_t r = 0; r < rows; ++r) {
      for (uint32_t i = 0; i < IN; ++i) {
        for (uint32_t o = 0; o < OUT; ++o)
          wanted[i * OUT + o] += (double)c->data_x[r * IN + i] * dy[r * OUT + o];
      }
    }
    if (OPI_ASSERT(gradients[p] != NULL))
      OPI_ASSERT_CLOSE(gradients[p], wanted, IN * OUT, OPIPE_DOUBLE, 1e-5);
    return;
  }
  OPI_FAIL("w is not there");
}

/* Cross entropy by its definition: the sum over valid rows, and its gradient. */
static double entropy(const double *logits, const int64_t *labels, int64_t rows, int64_t ignore,
                      double smoothing, const double *weights, double *dy) {
  double sum = 0;
  memset(dy, 0, (size_t)rows * OUT * sizeof(*dy));
  for (int64_t r = 0; r < rows; ++r) {
    const double *z = logits + r * OUT;
    double total = 0;
    if (labels[r] == ignore)
      continue;
    const double factor = weights != NULL ? weights[labels[r]] : 1;
    for (int o = 0; o < OUT; ++o)
      total += exp(z[o]);
    for (int o = 0; o < OUT; ++o) {
      const double target = (o == labels[r] ? 1 - smoothing : 0) + smoothing / OUT;
      sum -= factor * target * (z[o] - log(total));
      dy[r * OUT + o] = factor * (exp(z[o]) / total - target);
    }
  }
  return sum;
}

static void scale(double *dy, double by) {
  for (int i = 0; i < ROWS * OUT; ++i)
    dy[i] *= by;
}

static bool has_backend(void) {
  if (test_backend_evaluator() != NULL)
    return true;
  opi_test_skip("backend-cpu is not built");
  return false;
}

static void test_cross_entropy(void) {
  static const int64_t labels[ROWS] = {2, -100, 0, 3};
  const test_feed feed = {"labels", labels, sizeof(labels)};
  if (!has_backend())
    return;
  for (int k = 0; k < 4; ++k) {
    opipe_error err = OPIPE_ERROR_INIT;
    loss_case c;
    double dy[ROWS * OUT], count = 0;
    const opi_loss loss = {.kind = OPI_LOSS_CROSS_ENTROPY,
                           .output = "y",
                           .ignore = -100,
                           .smoothing = k % 2 != 0 ? 0.1 : 0};
    open_case(&c, ROWS, k >= 2);
    test_output(&c.graph, c.y);
    if (OPI_ASSERT_OK(build(&c, &loss, &err), &err)) {
      const double sum = entropy(c.logits, labels, ROWS, -100, loss.smoothing, NULL, dy);
      test_step step = {.t = c.training, .feeds = &feed, .n_feeds = 1, .arena = &c.arena};
      OPI_ASSERT(c.training->count_graph != NULL && !c.training->by_rows);
      OPI_ASSERT(test_count_of(&step, &count, &err) >= 0 && count == 3);
      OPI_ASSERT_INT(c.training->graph->n_outputs, 2);
      OPI_ASSERT_STR(c.training->graph->values[c.training->output].name, "y");
      scale(dy, 1.0 / 3);
      check(&c, ROWS, &feed, 0, sum / 3, dy);
      scale(dy, 3.0 / 7); /* the mini-batch has seven */
      check(&c, ROWS, &feed, 7, sum / 7, dy);
    }
    close_case(&c);
  }
}

static void test_all_labels_ignored(void) {
  static const int64_t labels[ROWS] = {-1, -1, -1, -1};
  const test_feed feed = {"targets", labels, sizeof(labels)};
  const double dy[ROWS * OUT] = {0};
  opipe_error err = OPIPE_ERROR_INIT;
  loss_case c;
  const opi_loss loss = {
      .kind = OPI_LOSS_CROSS_ENTROPY, .output = "y", .labels = "targets", .ignore = -1};
  if (!has_backend())
    return;
  open_case(&c, ROWS, false);
  test_output(&c.graph, c.y);
  if (OPI_ASSERT_OK(build(&c, &loss, &err), &err))
    check(&c, ROWS, &feed, 5, 0, dy); /* other micro-batches have labels: 0, not NaN */
  close_case(&c);
}

static void test_by_element(void) {
  float targets[ROWS * OUT];
  opi_test_random random = {3};
  const test_feed feed = {"labels", targets, sizeof(targets)};
  if (!has_backend())
    return;
  opi_test_fill_f32(&random, targets, ROWS * OUT, 0, 1);
  for (uint32_t kind = OPI_LOSS_MSE; kind <= OPI_LOSS_BCE; ++kind) {
    opipe_error err = OPIPE_ERROR_INIT;
    loss_case c;
    double dy[ROWS * OUT], sum = 0;
    const opi_loss loss = {.kind = kind, .output = "y"};
    open_case(&c, ROWS, false);
    test_output(&c.graph, c.y);
    for (int i = 0; i < ROWS * OUT; ++i) {
      const double z = c.logits[i], t = (double)targets[i];
      sum += kind == OPI_LOSS_MSE ? (z - t) * (z - t) : log1p(exp(z)) - z * t;
      dy[i] = (kind == OPI_LOSS_MSE ? 2 * (z - t) : 1 / (1 + exp(-z)) - t) / (ROWS * OUT);
    }
    if (OPI_ASSERT_OK(build(&c, &loss, &err), &err)) {
      OPI_ASSERT(c.training->count_graph == NULL && c.training->count == ROWS * OUT);
      check(&c, ROWS, &feed, 0, sum / (ROWS * OUT), dy);
    }
    close_case(&c);
  }
}

/* -- losses in the graph ----------------------------------------------------------------------- */

/* kind 0: SoftmaxCrossEntropyLoss; 1: NegativeLogLikelihoodLoss over LogSoftmax. */
static uint32_t add_loss_node(loss_case *c, int kind, const char *reduction, bool ignores,
                              bool weighs, const float *weights) {
  const int64_t rows[1] = {ROWS}, classes[1] = {OUT};
  const opipe_attr attrs[2] = {OPI_ATTR_S("reduction", reduction), OPI_ATTR_I("ignore_index", -1)};
  const opipe_attr axis = OPI_ATTR_I("axis", 1);
  uint32_t in[3] = {c->y, test_input(&c->graph, "labels", OPIPE_INT64, rows, 1), OPIPE_NONE}, out;
  if (weighs)
    in[2] = test_known(&c->graph, "weights", OPIPE_FLOAT, classes, 1, weights);
  if (kind == 1)
    test_node(&c->graph, "LogSoftmax", 13, &c->y, 1, &axis, 1, &in[0], 1);
  test_node(&c->graph, kind == 0 ? "SoftmaxCrossEntropyLoss" : "NegativeLogLikelihoodLoss", 13, in,
            weighs ? 3 : 2, attrs, ignores ? 2 : 1, &out, 1);
  return out;
}

/* The mean over a micro-batch becomes its share of the mini-batch's mean. */
static void test_mean_in_graph(void) {
  static const int64_t labels[ROWS] = {2, -1, 0, 3}, all[ROWS] = {2, 1, 0, 3};
  static const float weights[OUT] = {0.5F, 1, 2, 0.25F};
  static const double wide[OUT] = {0.5, 1, 2, 0.25};
  if (!has_backend())
    return;
  for (int k = 0; k < 8; ++k) {
    const bool ignores = (k & 1) != 0, weighs = (k & 2) != 0;
    const int64_t *given = ignores ? labels : all;
    const test_feed feed = {"labels", given, sizeof(all)};
    opipe_error err = OPIPE_ERROR_INIT;
    loss_case c;
    double dy[ROWS * OUT], count = 0, found = 0;
    open_case(&c, ROWS, false);
    test_output(&c.graph, add_loss_node(&c, k >> 2, "mean", ignores, weighs, weights));
    for (int r = 0; r < ROWS; ++r)
      count += ignores && given[r] == -1 ? 0 : weighs ? wide[given[r]] : 1;
    if (OPI_ASSERT_OK(build(&c, NULL, &err), &err)) {
      const double sum =
          entropy(c.logits, given, ROWS, ignores ? -1 : -2, 0, weighs ? wide : NULL, dy);
      test_step step = {.t = c.training, .feeds = &feed, .n_feeds = 1, .arena = &c.arena};
      OPI_ASSERT(!c.training->by_rows && c.training->output == OPIPE_NONE);
      OPI_ASSERT((c.training->count_graph != NULL) == (ignores || weighs));
      OPI_ASSERT(test_count_of(&step, &found, &err) >= 0 && found == count);
      scale(dy, 1.0 / 11);
      check(&c, ROWS, &feed, 11, sum / 11, dy);
    }
    close_case(&c);
  }
}

/* Any other scalar: averaged by rows, and said so. */
static void test_scalars_by_rows(void) {
  static const int64_t labels[ROWS] = {2, 1, 0, 3};
  const test_feed feed = {"labels", labels, sizeof(labels)};
  if (!has_backend())
    return;
  for (int k = 0; k < 3; ++k) {
    opipe_error err = OPIPE_ERROR_INIT;
    loss_case c;
    double dy[ROWS * OUT];
    open_case(&c, ROWS, false);
    uint32_t loss = add_loss_node(&c, 0, k == 0 ? "sum" : "mean", false, false, NULL);
    if (k == 1) { /* the mean and something else */
      const float half = 0.5F;
      loss =
          test_op(&c.graph, "Mul", loss, test_known(&c.graph, "half", OPIPE_FLOAT, NULL, 0, &half));
    }
    if (k == 2) /* the mean twice */
      loss = test_op(&c.graph, "Add", loss, loss);
    test_output(&c.graph, loss);
    opi_bind_options bind = test_options();
    bind.flags |= OPI_BIND_KEEP_PARAMETERS;
    if (!OPI_ASSERT_OK(opi_bind(&c.graph.model, &bind, &c.bound, &err), &err))
      return;
    opi_carry *carry = opi_arena_array(&c.arena, c.bound->graph->n_values, sizeof(*carry));
    for (uint32_t v = 0; v < c.bound->graph->n_values; ++v)
      carry[v] = (opi_carry){-1, 0, 1, 1};
    carry[c.bound->graph->inputs[0]] = (opi_carry){0, 0, 1, 1};
    const opi_gradient_options options = {.compute = OPIPE_FLOAT, .carry = carry};
    if (OPI_ASSERT_OK(build_with(&c, &options, &err), &err)) {
      const double factor = k == 0 ? 1 : k == 1 ? 0.5 / ROWS : 2.0 / ROWS;
      const double sum = entropy(c.logits, labels, ROWS, -1, 0, NULL, dy);
      OPI_ASSERT(c.training->by_rows && c.training->count_graph == NULL);
      OPI_ASSERT(c.training->count == ROWS);
      scale(dy, factor * ROWS / 8); /* the mini-batch has eight rows */
      check(&c, ROWS, &feed, 8, sum * factor * ROWS / 8, dy);
    }
    close_case(&c);
  }
}

/* -- refused losses ---------------------------------------------------------------------------- */

static void test_refusals(void) {
  const int64_t rows[1] = {ROWS + 1};
  opipe_error err = OPIPE_ERROR_INIT;
  loss_case c;
  open_case(&c, ROWS, false);
  test_input(&c.graph, "short", OPIPE_INT64, rows, 1);
  test_output(&c.graph, c.y);
  opi_loss loss = {.kind = OPI_LOSS_OUTPUT};
  OPI_ASSERT_ERROR(build(&c, NULL, &err), OPIPE_E_INVALID, &err,
                   "no output is a scalar float: name the loss, or the output that a loss is "
                   "attached to; the outputs are 'y' float32 [4, 4]");
  loss.output = "y";
  OPI_ASSERT_ERROR(build(&c, &loss, &err), OPIPE_E_INVALID, &err, "'y' is not a scalar float");
  loss = (opi_loss){.kind = OPI_LOSS_CROSS_ENTROPY, .output = "z"};
  OPI_ASSERT_ERROR(build(&c, &loss, &err), OPIPE_E_INVALID, &err, "there is no 'z'");
  loss = (opi_loss){.kind = OPI_LOSS_CROSS_ENTROPY, .output = "y", .labels = "short"};
  OPI_ASSERT_ERROR(build(&c, &loss, &err), OPIPE_E_INVALID, &err,
                   "labels 'short' are int64 [5], the loss needs int64 [4]");
  loss = (opi_loss){.kind = OPI_LOSS_CROSS_ENTROPY, .output = "y", .labels = "x"};
  OPI_ASSERT_ERROR(build(&c, &loss, &err), OPIPE_E_INVALID, &err, "labels 'x' are float32 [4, 3]");
  loss = (opi_loss){.kind = OPI_LOSS_CROSS_ENTROPY, .output = "y", .labels = "w"};
  OPI_ASSERT_ERROR(build(&c, &loss, &err), OPIPE_E_INVALID, &err, "a value of that name");
  loss = (opi_loss){.kind = OPI_LOSS_CROSS_ENTROPY, .output = "y", .smoothing = 1};
  OPI_ASSERT_ERROR(build(&c, &loss, &err), OPIPE_E_INVALID, &err, "smoothing is 1");
  loss = (opi_loss){.kind = 9, .output = "y"};
  OPI_ASSERT_ERROR(build(&c, &loss, &err), OPIPE_E_INVALID, &err, "loss kind 9");
  const opi_gradient_options options = {.loss = &loss, .compute = OPIPE_INT8};
  loss = (opi_loss){.kind = OPI_LOSS_MSE};
  OPI_ASSERT_ERROR(build_with(&c, &options, &err), OPIPE_E_INVALID, &err, "not a compute type");
  close_case(&c);
}

static void test_two_scalars(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_attr keep = OPI_ATTR_I("keepdims", 0);
  loss_case c;
  open_case(&c, ROWS, false);
  for (int k = 0; k < 2; ++k) {
    uint32_t out;
    test_node(&c.graph, k == 0 ? "ReduceMin" : "ReduceMax", 13, &c.y, 1, &keep, 1, &out, 1);
    test_rename(&c.graph, out, k == 0 ? "one" : "two");
    test_output(&c.graph, out);
  }
  const opi_loss loss = {.kind = OPI_LOSS_OUTPUT, .output = "two"};
  OPI_ASSERT_ERROR(build(&c, NULL, &err), OPIPE_E_INVALID, &err, "several outputs");
  if (OPI_ASSERT_OK(build(&c, &loss, &err), &err))
    OPI_ASSERT_INT(test_count(c.training->graph, "ReduceMin"), 0); /* not needed for this one */
  close_case(&c);
}

/* Reports need no loss: a scalar where there is one, else the first float output. */
static void test_reports_without_a_loss(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  const opi_loss loss = {.kind = OPI_LOSS_REPORT};
  loss_case c;
  open_case(&c, ROWS, false);
  test_output(&c.graph, test_op(&c.graph, "Greater", c.y, c.y));
  test_output(&c.graph, c.y);
  if (OPI_ASSERT_OK(build(&c, &loss, &err), &err)) {
    OPI_ASSERT_INT(c.training->n_trained, 1);
    OPI_ASSERT_STR(c.training->graph->values[c.training->output].name, "y");
  }
  close_case(&c);
}

OPI_TEST_MAIN("losses", OPI_TEST(test_reports_without_a_loss), OPI_TEST(test_cross_entropy),
              OPI_TEST(test_all_labels_ignored), OPI_TEST(test_by_element),
              OPI_TEST(test_mean_in_graph), OPI_TEST(test_scalars_by_rows), OPI_TEST(test_refusals),
              OPI_TEST(test_two_scalars))
