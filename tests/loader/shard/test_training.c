/* SPDX-License-Identifier: Apache-2.0 */
/* Training: gradients are built from each member's graph; joined, or summed where they are partial,
 * they are the undivided model's, for every training export and widths 2 and 3. The collectives of
 * a step, forward and backward, are those that the papers count.
 */
#include <dirent.h>
#include <math.h>

#include "tests/loader/gradient/training.h"
#include "tests/loader/graphs.h"
#include "tests/loader/shard/members.h"

enum { MOST_PARAMS = 512 };

typedef struct whole_model {
  test_model m;
  opi_value labels;
  opi_bound *bound;
  opi_training *t;
  opi_arena arena;
  opi_loss loss;
  opi_train_choice choice;
  uint32_t dropout;
  opi_carry *carry; /* of samples, with dropout; else NULL */
  uint32_t flags;   /* OPI_SHARD_DENSE or BARE, and SEQUENCE */
  double value;     /* of the loss */
  float plain;      /* members' loss in the plain form */
  double *gradients[MOST_PARAMS];
  size_t sizes[MOST_PARAMS];
  test_step step;
  test_feed feeds[TEST_MAX_TENSORS];
} whole_model;

static opi_gradient_options options_of(const whole_model *w) {
  return (opi_gradient_options){.loss = &w->loss,
                                .choice = &w->choice,
                                .carry = w->carry,
                                .evaluator = test_backend_evaluator(),
                                .allocator = opi_allocator_system()};
}

/* Later builds train the same parameters. */
static void keep_choice(whole_model *w) {
  const char **names = OPI_ARENA_ARRAY(&w->arena, const char *, w->t->n_params + 1);
  uint32_t n = 0;
  for (uint32_t p = 0; p < w->t->n_params; ++p) {
    if (w->t->params[p].n_gradients != 0)
      names[n++] = w->t->params[p].name;
  }
  w->choice = (opi_train_choice){.trained = names, .n_trained = n};
}

static opipe_status bind_training(whole_model *w, uint32_t dropout, opipe_error *err) {
  opi_input_shape shapes[TEST_MAX_TENSORS];
  for (uint32_t i = 0; i < w->m.n_inputs; ++i) {
    const opi_value *v = &w->m.inputs[i];
    shapes[i] = (opi_input_shape){v->name, v->shape, (uint32_t)v->rank};
  }
  const opi_bind_options options = {.flags = OPI_BIND_KEEP_PARAMETERS | OPI_BIND_DEFAULTS,
                                    .shapes = shapes,
                                    .n_shapes = w->m.n_inputs,
                                    .dropout = dropout,
                                    .evaluator = test_backend_evaluator(),
                                    .allocator = opi_allocator_system()};
  return opi_bind(w->m.model, &options, &w->bound, err);
}

static opipe_status follow_samples(whole_model *w, opipe_error *err) {
  const opi_graph *g = w->bound->graph;
  opi_carry *in = OPI_ARENA_ARRAY(&w->arena, opi_carry, g->n_inputs + 1);
  w->carry = OPI_ARENA_ARRAY(&w->arena, opi_carry, g->n_values + 1);
  for (uint32_t i = 0; i < g->n_inputs; ++i)
    in[i] = (opi_carry){0, 0, 1, 1, 0};
  return opi_carry_axis(g, NULL, in, w->carry, err);
}

static bool open_whole(whole_model *w, const char *folder, double smoothing, uint32_t dropout,
                       opipe_error *err) {
  char path[1024];
  memset(w, 0, sizeof *w);
  opi_arena_init(&w->arena, opi_allocator_system(), 0);
  w->dropout = dropout;
  w->flags = OPI_SHARD_BARE;
  (void)snprintf(path, sizeof path, "%.900s/model.onnx", folder);
  w->loss = (opi_loss){.kind = OPI_LOSS_CROSS_ENTROPY,
                       .output = "logits",
                       .labels = "labels",
                       .ignore = -100,
                       .smoothing = smoothing};
  if (!test_load(&w->m, path, err) || !test_read_set(&w->m, folder, 0))
    return false;
  (void)snprintf(path, sizeof path, "%.900s/labels.pb", folder);
  const bool labels = test_read_tensor(&w->m, path, &w->labels);
  if (!labels)
    w->loss.kind = OPI_LOSS_OUTPUT, w->loss.output = "loss", w->loss.labels = NULL;
  if (bind_training(w, dropout, err) < 0)
    return false;
  if (dropout != OPI_DROPOUT_OFF && follow_samples(w, err) < 0)
    return false;
  if (labels)
    w->loss.output = w->bound->graph->values[w->bound->graph->outputs[0]].name;
  const opi_gradient_options options = options_of(w);
  if (opi_gradient_build(w->bound, &options, &w->t, err) < 0)
    return false;
  for (uint32_t i = 0; i < w->m.n_inputs; ++i) {
    const opi_value *v = &w->m.inputs[i];
    w->feeds[w->step.n_feeds++] = (test_feed){v->name, v->data, v->n_bytes};
  }
  if (labels)
    w->feeds[w->step.n_feeds++] = (test_feed){"labels", w->labels.data, w->labels.n_bytes};
  w->step.t = w->t;
  w->step.feeds = w->feeds;
  w->step.arena = &w->arena;
  keep_choice(w);
  return test_run_step(&w->step, &w->value, w->gradients, w->sizes, err) >= 0;
}

static void close_whole(whole_model *w) {
  opi_training_free(w->t);
  opi_bound_free(w->bound);
  if (w->m.model != NULL)
    test_unload(&w->m);
  opi_arena_release(&w->arena);
}

static const void *feed_of(const whole_model *w, const char *name) {
  for (uint32_t i = 0; i < w->step.n_feeds; ++i) {
    if (strcmp(w->feeds[i].name, name) == 0)
      return w->feeds[i].data;
  }
  return NULL;
}

/* The parts of what is trained are. */
static opi_train_choice choice_of(whole_model *w, const opi_shard_member *m) {
  opi_train_choice choice = w->choice;
  const char **names = OPI_ARENA_ARRAY(&w->arena, const char *, choice.n_trained + m->n_params + 1);
  for (uint32_t i = 0; i < choice.n_trained; ++i)
    names[i] = choice.trained[i];
  for (uint32_t i = 0; i < m->n_params; ++i) {
    const char *own = m->bound->graph->values[m->params[i].value].name;
    for (uint32_t k = 0; strcmp(own, m->params[i].name) != 0 && k < w->choice.n_trained; ++k) {
      if (strcmp(names[k], m->params[i].name) == 0)
        names[choice.n_trained++] = own;
    }
  }
  choice.trained = names;
  return choice;
}

typedef struct divided {
  opi_shards *shards;
  opi_training *t[TEST_MOST_MEMBERS];
  test_group group;
} divided;

static bool build_members(whole_model *w, divided *d, uint32_t width, opipe_error *err) {
  const opi_shard_wish wish = {.width = width,
                               .flags = OPI_SHARD_TRAIN | w->flags,
                               .evaluator = test_backend_evaluator(),
                               .allocator = opi_allocator_system()};
  int64_t parts[TEST_MOST_MEMBERS];
  int32_t axis = -1;
  bool consecutive = false;
  if (opi_shard(w->bound, &wish, &d->shards, err) < 0)
    return false;
  const bool classes = w->loss.kind == OPI_LOSS_CROSS_ENTROPY &&
                       opi_shard_extents(d->shards, opi_bound_value(w->bound, w->loss.output),
                                         parts, &axis, &consecutive);
  for (uint32_t r = 0; r < width; ++r) {
    opi_gradient_options options = options_of(w);
    const opi_divided_classes own = {parts, width, r};
    options.classes = classes ? &own : NULL;
    const opi_train_choice choice = choice_of(w, &d->shards->members[r]);
    options.choice = &choice;
    if (w->carry != NULL) {
      const opi_shard_member *m = &d->shards->members[r];
      opi_carry *carry = OPI_ARENA_ARRAY(&w->arena, opi_carry, m->bound->graph->n_values + 1);
      if (opi_shard_carry(w->bound->graph, m, w->carry, carry, err) < 0)
        return false;
      options.carry = carry;
    }
    if (opi_gradient_build(d->shards->members[r].bound, &options, &d->t[r], err) < 0)
      return false;
  }
  return !classes || consecutive;
}

/* Inputs and scalars by name; the rest is known. */
static void feed_member(whole_model *w, divided *d, uint32_t r) {
  const opi_graph *g = d->t[r]->graph;
  test_member *m = &d->group.members[r];
  *m = (test_member){.graph = g, .data = OPI_ARENA_ARRAY(&w->arena, void *, g->n_values + 1)};
  for (uint32_t v = 0; v < g->n_values; ++v)
    m->data[v] = (void *)(uintptr_t)g->values[v].data;
  const opi_shard_member *own = &d->shards->members[r];
  for (uint32_t v = 0; v < g->n_values; ++v) { /* parts without data, by name */
    for (uint32_t i = 0; m->data[v] == NULL && i < own->n_params; ++i) {
      const opi_shard_part *part = &own->params[i];
      const opi_value *from = &w->bound->graph->values[part->whole];
      if (strcmp(own->bound->graph->values[part->value].name, g->values[v].name) == 0)
        m->data[v] = test_pack(&w->arena, from, from->data, part);
    }
  }
  for (uint32_t i = 0; i < g->n_inputs; ++i) {
    const void *data = feed_of(w, g->values[g->inputs[i]].name);
    m->data[g->inputs[i]] = data != NULL ? (void *)(uintptr_t)data
                                         : test_fill(&w->arena, &g->values[g->inputs[i]], i + 1);
  }
  for (uint32_t k = 0; k < OPI_SCALAR_TABLE; ++k) {
    if (d->t[r]->scalars[k] != OPIPE_NONE)
      m->data[d->t[r]->scalars[k]] = &w->step.scalars[k];
  }
}

static bool is_summed(const opi_shard_member *m, const char *name) {
  for (uint32_t i = 0; i < m->n_sums; ++i) {
    if (strcmp(m->bound->graph->values[m->sums[i]].name, name) == 0)
      return true;
  }
  return false;
}

/* One member's gradient of parameter p, over all uses; NULL: none. */
static float *own_gradient(whole_model *w, const divided *d, uint32_t r, const char *name,
                           uint64_t *out_n) {
  const opi_training *t = d->t[r];
  for (uint32_t p = 0; p < t->n_params; ++p) {
    if (strcmp(t->params[p].name, name) != 0 || t->params[p].n_gradients == 0)
      continue;
    *out_n = opi_elems(&t->graph->values[t->params[p].value]);
    float *sum = OPI_ARENA_ARRAY(&w->arena, float, *out_n + 1);
    for (uint32_t k = 0; k < t->params[p].n_gradients; ++k) {
      const float *one = d->group.members[r].data[t->params[p].gradients[k]];
      for (uint64_t i = 0; i < *out_n; ++i)
        sum[i] += one[i];
    }
    return sum;
  }
  return NULL;
}

static void check_parameter(whole_model *w, const divided *d, const char *what, uint32_t p) {
  const char *name = w->t->params[p].name;
  const uint32_t v = opi_bound_value(w->bound, name);
  const opi_value *whole = &w->bound->graph->values[v];
  float *joined = OPI_ARENA_ARRAY(&w->arena, float, w->sizes[p] + 1);
  bool present = false;
  for (uint32_t r = 0; r < d->group.width; ++r) {
    const opi_shard_member *m = &d->shards->members[r];
    uint64_t n = 0;
    for (uint32_t i = 0; i < m->n_params; ++i) {
      const opi_shard_part *part = &m->params[i];
      const float *own = part->whole != v
                             ? NULL
                             : own_gradient(w, d, r, m->bound->graph->values[part->value].name, &n);
      if (own != NULL)
        test_unpack(whole, own, part, true, joined);
      present = present || own != NULL;
    }
    const float *own =
        test_part_of(m->params, m->n_params, v) != NULL ? NULL : own_gradient(w, d, r, name, &n);
    if (own == NULL)
      continue;
    present = true;
    const bool sum = is_summed(m, name);
    for (uint64_t i = 0; i < w->sizes[p] && n == w->sizes[p]; ++i) {
      const double drift = fabs((double)joined[i] - (double)own[i]);
      (void)opi_test_check(sum || r == 0 || drift == 0, __FILE__, __LINE__, false,
                           "%s: members' gradients of '%s' differ by %g", what, name, drift);
      joined[i] = sum ? joined[i] + own[i] : own[i];
    }
  }
  double worst = 0, norm = 0;
  for (size_t i = 0; i < w->sizes[p]; ++i) {
    worst += pow((double)joined[i] - w->gradients[p][i], 2);
    norm += pow(w->gradients[p][i], 2);
  }
  (void)opi_test_check(
      present && sqrt(worst) <= 1e-4 * sqrt(norm) + 2e-6 * sqrt((double)w->sizes[p]), __FILE__,
      __LINE__, false, "%s: the gradient of '%s' is off by %g of %g", what, name, sqrt(worst),
      sqrt(norm));
}

/* Nodes that draw masks of a part. */
static void check_masks(const char *name, const divided *d, uint32_t dropout) {
  const opi_graph *g = d->t[0]->graph;
  uint32_t n = 0;
  for (uint32_t i = 0; i < g->n_nodes; ++i)
    n += opi_attr_find(&g->nodes[i], "part_axis") != NULL;
  (void)opi_test_check((n != 0) == (dropout != OPI_DROPOUT_OFF), __FILE__, __LINE__, false,
                       "%s: %u masks of parts", name, n);
}

typedef struct step_counts {
  uint32_t sums, gathers, scatters;
} step_counts;

/* The sequence form's loss is the plain form's (flags without SEQUENCE, run before) to the bit. */
static void check_loss(whole_model *w, const divided *d, const char *what) {
  for (uint32_t r = 0; r < d->group.width; ++r) {
    const float loss = *(const float *)d->group.members[r].data[d->t[r]->loss];
    (void)opi_test_check(fabs((double)loss - w->value) <= 1e-5 * fabs(w->value), __FILE__, __LINE__,
                         false, "%s: loss %g, not %g", what, (double)loss, w->value);
    if ((w->flags & OPI_SHARD_SEQUENCE) == 0)
      w->plain = loss;
    (void)opi_test_check(memcmp(&loss, &w->plain, sizeof loss) == 0, __FILE__, __LINE__, false,
                         "%s: loss %.9g, and %.9g in the plain form", what, (double)loss,
                         (double)w->plain);
  }
}

static void check_form(whole_model *w, const char *what, uint32_t width, step_counts want) {
  divided d = {
      .group = {.evaluator = test_backend_evaluator(), .arena = &w->arena, .width = width}};
  opipe_error err = OPIPE_ERROR_INIT;
  bool ok = build_members(w, &d, width, &err);
  for (uint32_t r = 0; ok && r < width; ++r)
    feed_member(w, &d, r);
  ok = ok && test_group_run(&d.group, &err) >= 0;
  (void)opi_test_check(ok, __FILE__, __LINE__, false, "%s: %s", what, err.message);
  if (ok)
    check_loss(w, &d, what);
  if (ok)
    check_masks(what, &d, w->dropout);
  for (uint32_t p = 0; ok && p < w->t->n_params; ++p) {
    if (w->t->params[p].n_gradients != 0)
      check_parameter(w, &d, what, p);
  }
  const step_counts is = {d.group.n_sums, d.group.n_gathers, d.group.n_scatters};
  (void)opi_test_check(!ok || memcmp(&is, &want, sizeof is) == 0, __FILE__, __LINE__, false,
                       "%s: %u sums, %u gathers and %u scatters, not %u, %u and %u", what, is.sums,
                       is.gathers, is.scatters, want.sums, want.gathers, want.scatters);
  for (uint32_t r = 0; r < width; ++r)
    opi_training_free(d.t[r]);
  opi_shards_free(d.shards);
}

/* Both forms. */
static void check_width(whole_model *w, const char *what, uint32_t width, step_counts plain,
                        step_counts rows) {
  char name[64];
  (void)snprintf(name, sizeof name, "%s in rows", what);
  check_form(w, what, width, plain);
  w->flags |= OPI_SHARD_SEQUENCE;
  check_form(w, name, width, rows);
  w->flags &= ~(uint32_t)OPI_SHARD_SEQUENCE;
}

/* Sums of a step, forward and backward: 2 + 2 a block (GPT-2, LLaMA, BERT, T5's encoder), 3 + 3 in
 * decoders with two attentions, 1 + 2 in NeoX's parallel blocks; 1 for an embedding, 1 for the
 * head, 1 for an encoder's output; OLMo-2's norms of queries and keys 2 + 2, routers 0 + 1. OPT's
 * positions are looked up at run time and its embedding passes a product: 1 more. In the sequence
 * form a sum is a scatter in one direction and a gather in the other, and what was gathered for a
 * product is gathered again for its parameter's gradient. Sums that stay are those of
 * statistics (norms of queries and keys), and of gradients beside a value that is gathered for what
 * is whole, too. */
static const struct {
  const char *name;
  step_counts plain, rows;
} counts[] = {
    {"bert", {14, 1, 0}, {0, 22, 14}},       {"bloom", {10, 1, 0}, {0, 16, 10}},
    {"distilbert", {10, 1, 0}, {0, 16, 10}}, {"gemma2", {10, 1, 0}, {0, 16, 10}},
    {"gpt2", {14, 1, 0}, {0, 22, 14}},       {"gptneox", {8, 1, 0}, {0, 14, 8}},
    {"llama", {14, 1, 0}, {0, 22, 14}},      {"olmo2", {18, 1, 0}, {8, 16, 10}},
    {"opt", {11, 1, 0}, {0, 17, 11}},        {"perceiver", {19, 1, 0}, {4, 22, 14}},
    {"phi3", {10, 1, 0}, {0, 16, 10}},       {"qwen2", {10, 1, 0}, {0, 16, 10}},
    {"qwen2_moe", {12, 1, 0}, {6, 14, 8}},   {"roberta", {10, 1, 0}, {0, 16, 10}},
    {"siglip", {25, 0, 0}, {7, 25, 17}},     {"t5", {24, 1, 0}, {0, 37, 24}},
    {"t5v11", {24, 1, 0}, {0, 37, 24}},      {"vit", {9, 1, 0}, {1, 12, 7}},
    {"whisper", {23, 1, 0}, {0, 34, 22}},
};

/* ---- graphs by hand: the loss is the sum of the output ---- */

static void open_built(whole_model *w, test_graph *g) {
  memset(w, 0, sizeof *w);
  opi_arena_init(&w->arena, opi_allocator_system(), 0);
  test_open(g);
  w->loss = (opi_loss){.kind = OPI_LOSS_OUTPUT};
  w->flags = OPI_SHARD_BARE;
}

static uint32_t parameter(whole_model *w, test_graph *g, const char *name, int64_t rows,
                          int64_t columns) {
  const int64_t shape[2] = {rows, columns};
  opi_value v = {.dtype = OPIPE_FLOAT, .n_bytes = (uint64_t)(rows * columns) * 4};
  return test_known(g, name, OPIPE_FLOAT, shape, 2,
                    test_fill(&w->arena, &v, (uint64_t)(rows + columns)));
}

/* Adds the loss, runs the whole graph, compares members. */
static void check_built(whole_model *w, test_graph *g, const char *what, uint32_t y,
                        const uint32_t *widths, uint32_t sums, step_counts rows) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_bind_options options = test_options();
  const opipe_attr keep = OPI_ATTR_I("keepdims", 0);
  uint32_t loss = OPIPE_NONE;
  test_node(g, "ReduceSum", 13, &y, 1, &keep, 1, &loss, 1);
  test_output(g, loss);
  options.flags |= OPI_BIND_KEEP_PARAMETERS;
  options.evaluator = test_backend_evaluator();
  bool ok = opi_bind(&g->model, &options, &w->bound, &err) >= 0;
  const opi_gradient_options how = options_of(w);
  ok = ok && opi_gradient_build(w->bound, &how, &w->t, &err) >= 0;
  for (uint32_t i = 0; ok && i < w->bound->graph->n_inputs; ++i) {
    const opi_value *v = &w->bound->graph->values[w->bound->graph->inputs[i]];
    w->feeds[w->step.n_feeds++] = (test_feed){v->name, test_fill(&w->arena, v, i + 3), v->n_bytes};
  }
  w->step.t = w->t;
  w->step.feeds = w->feeds;
  w->step.arena = &w->arena;
  if (ok)
    keep_choice(w);
  ok = ok && test_run_step(&w->step, &w->value, w->gradients, w->sizes, &err) >= 0;
  if (!ok)
    OPI_FAIL("%s: %s", what, err.message);
  for (; ok && *widths != 0; ++widths)
    check_width(w, what, *widths, (step_counts){sums, 0, 0}, rows);
  close_whole(w);
  test_close(g);
}

/* Rows for its lookup, whole for the product behind it, whose softmax needs all columns. */
static void test_parameter_read_in_two_ways(void) {
  static const uint32_t widths[] = {2, 3, 0};
  const int64_t ids[2] = {2, 3};
  const opipe_attr turned = OPI_ATTR_N("perm", ((const int64_t[]){1, 0}), 2),
                   last = OPI_ATTR_I("axis", -1);
  static whole_model w;
  test_graph g;
  uint32_t x = OPIPE_NONE, back = OPIPE_NONE, y = OPIPE_NONE;
  open_built(&w, &g);
  const uint32_t table = parameter(&w, &g, "table", 7, 4);
  const uint32_t in[2] = {table, test_input(&g, "ids", OPIPE_INT64, ids, 2)};
  test_node(&g, "Gather", 13, in, 2, NULL, 0, &x, 1);
  test_node(&g, "Transpose", 13, &table, 1, &turned, 1, &back, 1);
  const uint32_t scores = test_op(&g, "MatMul", test_op(&g, "Tanh", x, OPIPE_NONE), back);
  test_node(&g, "Softmax", 13, &scores, 1, &last, 1, &y, 1);
  y = test_op(&g, "Mul", y, parameter(&w, &g, "scale", 1, 7));
  check_built(&w, &g, "two ways", y, widths, 2, (step_counts){1, 2, 1});
}

/* Query heads within groups: keys and values are held by several members. */
static void test_shared_keys(void) {
  static const uint32_t widths[] = {3, 4, 0};
  const int64_t shape[3] = {2, 5, 6};
  const opipe_attr attrs[3] = {OPI_ATTR_I("q_num_heads", 10), OPI_ATTR_I("kv_num_heads", 2),
                               OPI_ATTR_I("is_causal", 1)};
  static whole_model w;
  test_graph g;
  uint32_t y = OPIPE_NONE;
  open_built(&w, &g);
  const uint32_t x = test_op(&g, "MatMul", test_input(&g, "x", OPIPE_FLOAT, shape, 3),
                             parameter(&w, &g, "in", 6, 6));
  const uint32_t whole = test_op(&g, "Tanh", test_op(&g, "Add", x, x), OPIPE_NONE);
  const uint32_t in[3] = {test_op(&g, "MatMul", whole, parameter(&w, &g, "q", 6, 40)),
                          test_op(&g, "MatMul", whole, parameter(&w, &g, "k", 6, 8)),
                          test_op(&g, "MatMul", whole, parameter(&w, &g, "v", 6, 8))};
  test_node(&g, "Attention", 23, in, 3, attrs, 3, &y, 1);
  y = test_op(&g, "Add", whole, test_op(&g, "MatMul", y, parameter(&w, &g, "o", 40, 6)));
  check_built(&w, &g, "shared keys", y, widths, 2, (step_counts){2, 0, 0});
}

/* Two rows: of 3 and of 5 members some have none. A norm and a residual work on them, the loss
 * needs all; gradients of the norm's parameters and of what is added to rows are partial sums. */
static void test_members_without_rows(void) {
  static const uint32_t widths[] = {2, 3, 5, 0};
  const int64_t shape[3] = {1, 2, 6}, one[1] = {6};
  static whole_model w;
  test_graph g;
  uint32_t n = OPIPE_NONE;
  open_built(&w, &g);
  const uint32_t x = test_input(&g, "x", OPIPE_FLOAT, shape, 3);
  const uint32_t a =
      test_op(&g, "Tanh", test_op(&g, "MatMul", x, parameter(&w, &g, "a", 6, 10)), OPIPE_NONE);
  const uint32_t h = test_op(&g, "Add", test_op(&g, "MatMul", a, parameter(&w, &g, "b", 10, 6)),
                             parameter(&w, &g, "places", 2, 6));
  float scale[6] = {1, 2, 3, 1, 2, 3};
  const uint32_t in[3] = {h, test_known(&g, "scale", OPIPE_FLOAT, one, 1, scale),
                          test_known(&g, "bias", OPIPE_FLOAT, one, 1, scale)};
  test_node(&g, "LayerNormalization", 17, in, 3, NULL, 0, &n, 1);
  const uint32_t c =
      test_op(&g, "Tanh", test_op(&g, "MatMul", n, parameter(&w, &g, "c", 6, 10)), OPIPE_NONE);
  const uint32_t y = test_op(&g, "Add", test_op(&g, "MatMul", c, parameter(&w, &g, "d", 10, 6)), h);
  const uint32_t last =
      test_op(&g, "Mul", test_op(&g, "Tanh", y, OPIPE_NONE), parameter(&w, &g, "e", 2, 6));
  check_built(&w, &g, "few rows", last, widths, 3, (step_counts){0, 5, 3});
}

static void check_export(const char *variant, const char *name, double smoothing, uint32_t dropout,
                         step_counts plain, step_counts rows) {
  static whole_model w;
  opipe_error err = OPIPE_ERROR_INIT;
  char folder[256];
  (void)snprintf(folder, sizeof folder, "models/modern/%s/%s", name, variant);
  const char *path = opi_test_shared(folder);
  if (path == NULL) {
    OPI_SKIP("no %s", folder);
    return;
  }
  if (!open_whole(&w, path, smoothing, dropout, &err)) {
    OPI_FAIL("%s: %s", folder, err.message);
  } else {
    for (uint32_t width = 2; width <= 3; ++width)
      check_width(&w, name, width, plain, rows);
  }
  close_whole(&w);
}

static void test_every_training_export(void) {
  for (size_t f = 0; f < OPI_COUNT(counts); ++f)
    check_export("train", counts[f].name, 0, OPI_DROPOUT_OFF, counts[f].plain, counts[f].rows);
}

static const step_counts gpt2_plain = {14, 1, 0}, gpt2_rows = {0, 22, 14};

static void test_other_losses(void) {
  check_export("train", "gpt2", 0.1, OPI_DROPOUT_OFF, gpt2_plain, gpt2_rows);
  check_export("train_loss_in_graph", "gpt2", 0, OPI_DROPOUT_OFF, gpt2_plain, gpt2_rows);
}

/* One opipe.Dropout of ones [rows of 2 x 3, 4], by rows or whole. */
static const float *drop(test_graph *g, opi_arena *arena, const int64_t *shape,
                         const opipe_attr *attrs, uint32_t n_attrs) {
  static int64_t scalars[4] = {5, 6, 7, 8};
  test_member m = {.data = OPI_ARENA_ARRAY(arena, void *, 16)};
  test_group t = {.evaluator = test_backend_evaluator(), .arena = arena};
  opipe_error err = OPIPE_ERROR_INIT;
  uint32_t in[5], out = OPIPE_NONE;
  test_open(g);
  in[0] = test_input(g, NULL, OPIPE_FLOAT, shape, 3);
  for (uint32_t i = 0; i < 4; ++i)
    in[1 + i] = test_input(g, NULL, OPIPE_INT64, NULL, 0);
  opi_node *node = test_node(g, "Dropout", 2, in, 5, attrs, n_attrs, &out, 1);
  node->domain = "opipe";
  for (uint32_t v = 0; v < g->graph->n_values; ++v) {
    opi_value *x = &g->graph->values[v];
    if (v == out) {
      x->dtype = OPIPE_FLOAT;
      x->rank = 3;
      x->shape = g->graph->values[in[0]].shape;
    }
    x->n_bytes = x->rank == 3 ? (uint64_t)opi_elems(x) * 4 : 8;
    m.data[v] = x->rank == 3 ? opi_arena_alloc(arena, x->n_bytes + 1) : (void *)&scalars[v - 1];
    for (uint64_t i = 0; x->rank == 3 && i < x->n_bytes / 4; ++i)
      ((float *)m.data[v])[i] = 1;
  }
  m.graph = g->graph;
  OPI_ASSERT_OK(test_node_run(&t, &m, node, &err), &err);
  return m.data[out];
}

/* Samples and tokens are counted where rows hold both, and a member has some of the rows. */
static void test_masks_of_rows(void) {
  const int64_t whole[3] = {2, 3, 4};
  const opipe_attr attrs[4] = {OPI_ATTR_F("ratio", 0.5), OPI_ATTR_S("key", "d"),
                               OPI_ATTR_I("batch_axis", 0), OPI_ATTR_I("token_axis", 1)};
  opi_arena arena;
  test_graph g;
  opi_arena_init(&arena, opi_allocator_system(), 0);
  const float *want = drop(&g, &arena, whole, attrs, 4);
  test_close(&g);
  for (int64_t first = 0; first < 6; ++first) {
    for (int64_t n = 0; first + n <= 6; ++n) {
      const int64_t shape[3] = {1, n, 4}, run[2] = {first, n};
      const opipe_attr own[9] = {OPI_ATTR_F("ratio", 0.5),       OPI_ATTR_S("key", "d"),
                                 OPI_ATTR_I("batch_axis", 1),    OPI_ATTR_I("batch_inner", 3),
                                 OPI_ATTR_I("token_axis", 1),    OPI_ATTR_I("token_outer", 2),
                                 OPI_ATTR_I("part_axis", 1),     OPI_ATTR_I("part_whole", 6),
                                 OPI_ATTR_N("part_runs", run, 2)};
      const float *is = drop(&g, &arena, shape, own, 9);
      OPI_ASSERT(memcmp(is, want + first * 4, (size_t)n * 16) == 0);
      test_close(&g);
    }
  }
  opi_arena_release(&arena);
}

/* Masks are those of the whole model, of divided heads, of partial sums and of whole values. */
static void test_dropout_by_global_place(void) {
  check_export("train_dropout", "gpt2", 0, OPI_DROPOUT_GRAPH, gpt2_plain, gpt2_rows);
}

OPI_TEST_MAIN("sharded training", OPI_TEST(test_every_training_export), OPI_TEST(test_other_losses),
              OPI_TEST(test_parameter_read_in_two_ways), OPI_TEST(test_shared_keys),
              OPI_TEST(test_members_without_rows), OPI_TEST(test_dropout_by_global_place),
              OPI_TEST(test_masks_of_rows))
