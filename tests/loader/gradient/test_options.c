/* SPDX-License-Identifier: Apache-2.0 */
/* Half types of activations and Dropout in training graphs of real models. */
#include "tests/loader/gradient/cut.h"
#include "tests/loader/graphs.h"

static const char *const models[] = {"gpt2/train",      "bert/train",   "t5/train",  "llama/train",
                                     "qwen2_moe/train", "gemma2/train", "vit/train", "bloom/train",
                                     "gpt2/train_op23", "whisper/train"};

/* -- half types -------------------------------------------------------------------------------- */

static void check_types(const cut_case *c, uint32_t compute) {
  const opi_training *t = c->training;
  const opi_graph *g = t->graph;
  uint32_t n_products = 0;
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    const opi_node *node = &g->nodes[n];
    const uint32_t dtype = g->values[node->out[0]].dtype;
    if (strcmp(node->op, "MatMul") == 0 || strcmp(node->op, "Gemm") == 0 ||
        strcmp(node->op, "Attention") == 0) {
      ++n_products;
      (void)opi_test_check(dtype == compute, __FILE__, __LINE__, false, "%s: '%s' (%s) is %s",
                           c->name, node->name, node->op, opi_dtype_name(dtype));
    }
    if (strcmp(node->op, "SoftmaxCrossEntropyLoss") == 0 || strncmp(node->op, "Reduce", 6) == 0) {
      const bool backward = node->pass != OPIPE_PASS_FORWARD; /* sums of gradients have theirs */
      OPI_ASSERT(backward || dtype == OPIPE_FLOAT);
    }
  }
  for (uint32_t p = 0; p < t->n_params; ++p) {
    for (uint32_t k = 0; k < t->params[p].n_gradients; ++k) {
      OPI_ASSERT_INT(g->values[t->params[p].value].dtype, OPIPE_FLOAT);
      OPI_ASSERT_INT(g->values[test_addend(t, t->params[p].gradients[k])].dtype, OPIPE_FLOAT);
    }
  }
  OPI_ASSERT_INT(g->values[t->loss].dtype, OPIPE_FLOAT);
  OPI_ASSERT_INT(g->values[t->output].dtype, OPIPE_FLOAT);
  OPI_ASSERT(n_products > 4);
}

/* The node that made the elements of v, in whatever shape. */
static const opi_node *maker_of(const opi_graph *g, uint32_t v) {
  const opi_node *node = &g->nodes[g->values[v].producer];
  while (strcmp(node->op, "Reshape") == 0 && g->values[node->in[0]].producer != OPIPE_NONE)
    node = &g->nodes[g->values[node->in[0]].producer];
  return node;
}

/* A widened value is widened again where the backward pass reads it, in another shape, too. */
static void check_kept(const cut_case *c) {
  const opi_training *t = c->training;
  const opi_graph *g = t->graph;
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    const opi_node *node = &g->nodes[n];
    for (uint32_t i = 0; i < node->n_in && node->pass != OPIPE_PASS_FORWARD; ++i) {
      const uint32_t v = node->in[i], p = v != OPIPE_NONE ? g->values[v].producer : OPIPE_NONE;
      if (p == OPIPE_NONE || g->nodes[p].pass != OPIPE_PASS_FORWARD || t->stage[p] != t->stage[n])
        continue;
      const opi_node *maker = maker_of(g, v);
      const bool widened = strcmp(maker->op, "Cast") == 0 &&
                           g->values[maker->out[0]].dtype == OPIPE_FLOAT &&
                           g->values[maker->in[0]].dtype == c->compute;
      (void)opi_test_check(!widened, __FILE__, __LINE__, false, "%s: '%s' reads '%s', kept as fp32",
                           c->name, node->name, g->values[v].name);
    }
  }
}

static double norm_of(const double *x, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i)
    sum += x[i] * x[i];
  return sqrt(sum);
}

/* Every gradient near the one in fp32, against the larger of its norm and a fifth of the mean's. */
static void compare(const cut_case *c, double *const *wide, double tolerance) {
  double sum = 0, count = 0;
  for (uint32_t p = 0; p < c->training->n_params; ++p) {
    if (wide[p] == NULL)
      continue;
    const double norm = norm_of(wide[p], c->sizes[p]);
    sum += norm * norm;
    count += (double)c->sizes[p];
  }
  for (uint32_t p = 0; p < c->training->n_params; ++p) {
    double off = 0;
    if (c->gradients[p] == NULL)
      continue;
    for (size_t i = 0; i < c->sizes[p]; ++i) {
      const double d = c->gradients[p][i] - wide[p][i];
      off += d * d;
    }
    const double floor = 0.2 * sqrt(sum / count * (double)c->sizes[p]);
    const double limit = tolerance * fmax(norm_of(wide[p], c->sizes[p]), floor);
    (void)opi_test_check(sqrt(off) <= limit, __FILE__, __LINE__, false,
                         "%s: '%s' is off by %g, at most %g", c->name, c->training->params[p].name,
                         sqrt(off), limit);
  }
}

static void half_types(uint32_t compute, double tolerance) {
  for (size_t i = 0; i < OPI_COUNT(models); ++i) {
    /* T5 does not scale its scores, and its ReLUs flip near 0. */
    const double most = strncmp(models[i], "t5", 2) == 0 ? 3 * tolerance : tolerance;
    for (uint32_t fused = 0; fused < 2; ++fused) {
      cut_case *c = calloc(1, sizeof(*c));
      if (!open_model(c, models[i], fused != 0 ? 0 : OPI_BIND_NO_FUSE, OPI_DROPOUT_OFF)) {
        free(c);
        return;
      }
      double *wide[MOST];
      if (build(c, 2, OPI_RECOMPUTE_NONE) && run(c)) {
        const double loss = c->loss;
        memcpy(wide, c->gradients, sizeof(wide));
        c->compute = compute;
        c->scale = compute == OPIPE_FLOAT16 ? 4096 : 1; /* small gradients would vanish */
        if (build(c, 2, OPI_RECOMPUTE_NONE) && run(c)) {
          check_types(c, compute);
          check_kept(c);
          (void)opi_test_check(fabs(c->loss - loss) <= 0.1 * tolerance * loss, __FILE__, __LINE__,
                               false, "%s: loss %g, in fp32 %g", models[i], c->loss, loss);
          compare(c, wide, most);
        }
      }
      close_model(c);
      free(c);
    }
  }
}

static void test_bf16(void) {
  half_types(OPIPE_BFLOAT16, 0.1);
}

static void test_fp16(void) {
  half_types(OPIPE_FLOAT16, 0.02);
}

/* Attentions that give what they found, and gradients that read it. */
static void count_handed_on(const cut_case *c, uint32_t *out_given, uint32_t *out_read) {
  const opi_graph *g = c->training->graph;
  *out_given = *out_read = 0;
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    *out_given += strcmp(g->nodes[n].op, "Attention") == 0 && g->nodes[n].n_out == 5;
    if (strcmp(g->nodes[n].op, "AttentionGrad") != 0 || g->nodes[n].n_in != 10)
      continue;
    ++*out_read;
    const uint32_t y = g->nodes[n].in[8], found = g->nodes[n].in[9];
    OPI_ASSERT_INT(g->values[y].producer, g->values[found].producer);
    OPI_ASSERT_INT(g->values[y].dtype, c->compute);
    OPI_ASSERT_INT(g->values[found].dtype, OPIPE_FLOAT);
  }
}

/* Models of half types alone, with masks, as the second model has, and without. */
static void test_handing_on(void) {
  static const char *const of[] = {"whisper/train", "gpt2/train"};
  for (uint32_t i = 0; i < 4; ++i) {
    cut_case *c = calloc(1, sizeof(*c));
    double *apart[MOST];
    uint32_t given = 0, read = 0;
    if (!open_model(c, of[i / 2], 0, OPI_DROPOUT_OFF)) {
      free(c);
      return;
    }
    c->compute = i % 2 == 0 ? OPIPE_BFLOAT16 : OPIPE_FLOAT;
    if (build(c, 2, OPI_RECOMPUTE_NONE) && run(c)) {
      count_handed_on(c, &given, &read);
      OPI_ASSERT_INT(given + read, 0);
      memcpy(apart, c->gradients, sizeof(apart));
      c->hands_on = true;
      if (build(c, 2, OPI_RECOMPUTE_NONE) && run(c)) {
        count_handed_on(c, &given, &read);
        OPI_ASSERT(i % 2 == 0 ? given > 0 : given == 0);
        OPI_ASSERT_INT(given, read);
        compare(c, apart, 0.02);
      }
    }
    close_model(c);
    free(c);
  }
}

/* The scale multiplies every gradient, not the loss. */
static void test_loss_scale(void) {
  cut_case *c = calloc(1, sizeof(*c));
  if (!open_model(c, "gpt2/train", 0, OPI_DROPOUT_OFF)) {
    free(c);
    return;
  }
  c->compute = OPIPE_FLOAT16;
  c->scale = 1;
  if (build(c, 1, OPI_RECOMPUTE_NONE) && run(c)) {
    double *plain[MOST];
    memcpy(plain, c->gradients, sizeof(plain));
    OPI_ASSERT(c->training->scalars[OPI_SCALAR_SCALE] != OPIPE_NONE);
    const double loss = c->loss;
    c->scale = 256;
    if (run(c)) {
      OPI_ASSERT(loss == c->loss);
      compare(c, plain, 0.02);
    }
  }
  close_model(c);
  free(c);
}

/* -- Dropout ----------------------------------------------------------------------------------- */

static bool same(const cut_case *c, double *const *other) {
  for (uint32_t p = 0; p < c->training->n_params; ++p) {
    if (c->gradients[p] != NULL && memcmp(c->gradients[p], other[p], c->sizes[p] * 8) != 0)
      return false;
  }
  return true;
}

/* The mask is a function of seed, step and sample: recomputation and stages do not change it. */
static void test_dropout(void) {
  double *first[MOST], loss = 0;
  cut_case *c = calloc(1, sizeof(*c));
  if (!open_model(c, "gpt2/train_dropout", OPI_BIND_NO_FUSE, OPI_DROPOUT_GRAPH)) {
    free(c);
    return;
  }
  c->seed = 42;
  if (build(c, 1, OPI_RECOMPUTE_NONE) && run(c)) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < c->training->graph->n_nodes; ++k) {
      n += strcmp(c->training->graph->nodes[k].op, "Dropout") == 0 &&
           c->training->graph->nodes[k].pass == OPIPE_PASS_FORWARD;
    }
    OPI_ASSERT_INT(n, test_count(c->bound->graph, "Dropout"));
    OPI_ASSERT(n > 5);
    loss = c->loss;
    memcpy(first, c->gradients, sizeof(first));
    OPI_ASSERT(run(c) && c->loss == loss && same(c, first));
    OPI_ASSERT(build(c, 3, OPI_RECOMPUTE_NONE) && run(c) && c->loss == loss);
    OPI_ASSERT(build(c, 1, OPI_RECOMPUTE_STAGE) && run(c) && c->loss == loss && same(c, first));
    OPI_ASSERT(build(c, 1, OPI_RECOMPUTE_ATTENTION) && run(c) && same(c, first));
    c->step = 1;
    OPI_ASSERT(run(c) && c->loss != loss && !same(c, first));
    c->step = 0;
    c->sample = 2;
    OPI_ASSERT(run(c) && c->loss != loss);
    c->sample = 0;
    c->seed = 43;
    OPI_ASSERT(run(c) && c->loss != loss);
  }
  close_model(c);
  free(c);
}

/* -- names ------------------------------------------------------------------------------------- */

/* A value of the graph is named as the cast in front of its maker would be. */
static void test_generated_names(void) {
  static const int64_t square[2] = {4, 4};
  test_graph t;
  opi_bound *bound = NULL;
  opi_training *training = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  uint32_t h, y, in[2];
  test_open(&t);
  const uint32_t x = test_input(&t, "x", OPIPE_FLOAT, square, 2);
  const uint32_t v = test_known(&t, "v", OPIPE_FLOAT, square, 2, NULL);
  const uint32_t w = test_known(&t, "w", OPIPE_FLOAT, square, 2, NULL);
  in[0] = x, in[1] = v;
  test_node(&t, "MatMul", 13, in, 2, NULL, 0, &h, 1);
  t.graph->nodes[0].name = "first";
  in[0] = h, in[1] = w;
  test_node(&t, "MatMul", 13, in, 2, NULL, 0, &y, 1);
  t.graph->values[y].name = "first~0";
  test_output(&t, y);
  const opi_bind_options bind = {.allocator = opi_allocator_system()};
  const opi_loss loss = {.kind = OPI_LOSS_MSE, .output = "first~0", .labels = "target"};
  const opi_gradient_options options = {
      .loss = &loss, .compute = OPIPE_BFLOAT16, .allocator = opi_allocator_system()};
  OPI_ASSERT_OK_FATAL(opi_bind(&t.model, &bind, &bound, &err), &err);
  OPI_ASSERT_OK(opi_gradient_build(bound, &options, &training, &err), &err);
  for (uint32_t n = 0; training != NULL && n < training->graph->n_nodes; ++n) {
    const opi_node *node = &training->graph->nodes[n];
    if (strcmp(training->graph->values[node->out[0]].name, "first~0") == 0)
      OPI_ASSERT_STR(node->op, "MatMul");
  }
  opi_training_free(training);
  opi_bound_free(bound);
  test_close(&t);
}

OPI_TEST_MAIN("options of training graphs", OPI_TEST(test_bf16), OPI_TEST(test_handing_on),
              OPI_TEST(test_fp16), OPI_TEST(test_loss_scale), OPI_TEST(test_dropout),
              OPI_TEST(test_generated_names))
