/* SPDX-License-Identifier: Apache-2.0 */
/* ctest: timeout=240
 * Token slices, forwards and then backwards with keys, values and their gradients handed on, give
 * the loss and the gradients of the whole sequence.
 */
#include "tests/loader/gradient/training.h"

#include "loader/passes/tokens.h"

enum { MOST_SLICES = 5, MOST_FEEDS = TEST_MAX_TENSORS };

typedef struct slices {
  test_model m;
  const opi_evaluator *evaluator;
  opi_arena arena;
  opi_bound *whole, *other;
  opi_tokens *tokens;
  int64_t rows, n_tokens;
  uint32_t flags;  /* OPI_BIND_* */
  int64_t *labels; /* [rows, n_tokens] */
  const char *output;
  uint32_t n;
  opi_token_slice *slice[MOST_SLICES];
  opi_training *training[MOST_SLICES];
  test_step step[MOST_SLICES];
  test_feed feeds[MOST_SLICES][MOST_FEEDS];
} slices;

static const opi_loss *loss_of(const slices *q) {
  static opi_loss loss;
  loss = (opi_loss){
      .kind = OPI_LOSS_CROSS_ENTROPY, .output = q->output, .labels = "the labels", .ignore = -100};
  return &loss;
}

static opipe_status bind_length(const slices *q, int64_t n_tokens, opi_bound **out_bound,
                                opipe_error *err) {
  const opi_dim_binding dims[] = {{"batch", q->rows}, {"seq", n_tokens}};
  const opi_bind_options options = {.flags = q->flags | OPI_BIND_KEEP_PARAMETERS,
                                    .dims = dims,
                                    .n_dims = 2,
                                    .evaluator = q->evaluator,
                                    .allocator = opi_allocator_system()};
  return opi_bind(q->m.model, &options, out_bound, err);
}

static opipe_status open_slices(slices *q, const char *folder, uint32_t flags, opipe_error *err) {
  char path[1024];
  opi_test_random random = {7};
  memset(q, 0, sizeof(*q));
  q->flags = flags;
  opi_arena_init(&q->arena, opi_allocator_system(), 0);
  (void)snprintf(path, sizeof(path), "%s/model.onnx", folder);
  q->evaluator = test_backend_evaluator();
  if (!test_load(&q->m, path, err) || !test_read_set(&q->m, folder, 0))
    return opi_fail(err, OPIPE_E_NOTFOUND, "no model and data set in %s", folder);
  q->rows = q->m.inputs[0].shape[0];
  q->n_tokens = q->m.inputs[0].shape[1];
  OPI_TRY(bind_length(q, q->n_tokens, &q->whole, err));
  OPI_TRY(bind_length(q, q->n_tokens - 1, &q->other, err));
  OPI_TRY(opi_tokens_find(q->whole, q->n_tokens, q->other, q->n_tokens - 1, opi_allocator_system(),
                          &q->tokens, err));
  q->output = q->whole->graph->values[q->whole->graph->outputs[0]].name;
  q->labels = opi_arena_array(&q->arena, (size_t)(q->rows * q->n_tokens), sizeof(int64_t));
  for (int64_t i = 0; i < q->rows * q->n_tokens; ++i)
    q->labels[i] = i % 7 == 3 ? -100 : (int64_t)(opi_test_next(&random) % 50);
  return OPIPE_OK;
}

static void close_slices(slices *q) {
  for (uint32_t i = 0; i < q->n; ++i) {
    opi_training_free(q->training[i]);
    opi_token_slice_free(q->slice[i]);
  }
  opi_tokens_free(q->tokens);
  opi_bound_free(q->whole);
  opi_bound_free(q->other);
  test_unload(&q->m);
  opi_arena_release(&q->arena);
}

static void feed(slices *q, uint32_t i, const char *name, const void *data, uint64_t n_bytes) {
  test_step *step = &q->step[i];
  q->feeds[i][step->n_feeds++] = (test_feed){name, data, n_bytes};
}

static opipe_status make_slice(slices *q, uint32_t i, int64_t first, int64_t length,
                               opipe_error *err) {
  int64_t *labels = opi_arena_array(&q->arena, (size_t)(q->rows * length), sizeof(int64_t));
  const opi_token_wish wish = {&q->output, 1, first, length};
  OPI_TRY(
      opi_slice_tokens(q->tokens, &wish, q->evaluator, opi_allocator_system(), &q->slice[i], err));
  const opi_gradient_options options = {.loss = loss_of(q),
                                        .compute = OPIPE_FLOAT,
                                        .evaluator = q->evaluator,
                                        .allocator = opi_allocator_system(),
                                        .slice = q->slice[i]};
  q->n = i + 1;
  OPI_TRY(opi_gradient_build(q->slice[i]->bound, &options, &q->training[i], err));
  q->step[i] = (test_step){.t = q->training[i], .feeds = q->feeds[i], .arena = &q->arena};
  for (uint32_t k = 0; k < q->m.n_inputs; ++k)
    feed(q, i, q->m.inputs[k].name, q->m.inputs[k].data, q->m.inputs[k].n_bytes);
  for (int64_t r = 0; r < q->rows; ++r)
    memcpy(labels + r * length, q->labels + r * q->n_tokens + first, (size_t)length * 8);
  feed(q, i, "the labels", labels, (uint64_t)(q->rows * length) * 8);
  return OPIPE_OK;
}

/* Forward: what slice i hands on becomes what slice i + 1 reads. */
static opipe_status hand_on(slices *q, uint32_t i, opipe_error *err) {
  const opi_training *t = q->training[i], *next = q->training[i + 1];
  uint32_t wanted[MOST_FEEDS], n = 0, at = 0;
  const void *data[MOST_FEEDS];
  for (uint32_t k = 0; k < t->n_states; ++k)
    wanted[n++] = t->states[k].present;
  OPI_TRY(test_values(&q->step[i], t->graph, wanted, n, data, err));
  for (uint32_t k = 0; k < t->n_states; ++k) {
    const opi_value *past = &next->graph->values[next->states[k].past];
    feed(q, i + 1, past->name, data[at++], past->n_bytes);
  }
  return OPIPE_OK;
}

/* Adds slice i's gradients to sums, and feeds slice i - 1 with what belongs to it. */
static opipe_status backward(slices *q, uint32_t i, double **sums, double *io_loss,
                             opipe_error *err) {
  const opi_training *t = q->training[i];
  uint32_t wanted[MOST_FEEDS], n = 0, at = 0;
  const void *data[MOST_FEEDS];
  wanted[n++] = t->loss;
  for (uint32_t p = 0; p < t->n_params; ++p) {
    for (uint32_t k = 0; k < t->params[p].n_gradients; ++k)
      wanted[n++] = test_addend(t, t->params[p].gradients[k]);
  }
  for (uint32_t k = 0; k < t->n_states && i > 0; ++k)
    wanted[n++] = t->states[k].past_gradient;
  OPI_TRY(test_values(&q->step[i], t->graph, wanted, n, data, err));
  *io_loss += opi_test_element(data[at++], 0, OPIPE_FLOAT);
  for (uint32_t p = 0; p < t->n_params; ++p) {
    size_t size = 0;
    const double *g = test_gradient(&q->step[i], &t->params[p], data + at, &size);
    at += t->params[p].n_gradients;
    if (sums[p] == NULL)
      sums[p] = opi_arena_array(&q->arena, size + 1, sizeof(double));
    for (size_t k = 0; k < size; ++k)
      sums[p][k] += g[k];
  }
  for (uint32_t k = 0; k < t->n_states && i > 0; ++k) {
    const opi_graph *before = q->training[i - 1]->graph;
    const opi_value *seed = &before->values[q->training[i - 1]->states[k].present_gradient];
    feed(q, i - 1, seed->name, data[at++], seed->n_bytes);
  }
  return OPIPE_OK;
}

static opipe_status run_slices(slices *q, const int64_t *lengths, uint32_t n, double **sums,
                               double *out_loss, opipe_error *err) {
  int64_t first = 0;
  double count = 0;
  for (uint32_t i = 0; i < n; ++i) {
    const int64_t length = i + 1 == n ? q->n_tokens - first : lengths[i];
    OPI_TRY(make_slice(q, i, first, length, err));
    first += length;
  }
  for (uint32_t i = 0; i < n; ++i) {
    double own = 0;
    OPI_TRY(test_count_of(&q->step[i], &own, err));
    count += own;
  }
  for (uint32_t i = 0; i < n; ++i)
    q->step[i].scalars[OPI_SCALAR_COUNT] = test_double_bits(count);
  for (uint32_t i = 0; i + 1 < n; ++i)
    OPI_TRY(hand_on(q, i, err));
  for (uint32_t i = n; i-- > 0;)
    OPI_TRY(backward(q, i, sums, out_loss, err));
  return OPIPE_OK;
}

static void compare(const slices *whole, double *const *a, double *const *b, const char *folder) {
  const opi_training *t = whole->training[0];
  for (uint32_t p = 0; p < t->n_params; ++p) {
    const opi_value *v = &t->graph->values[t->params[p].value];
    double worst = 0, largest = 0;
    for (uint64_t i = 0; t->params[p].n_gradients != 0 && i < v->n_bytes / 4; ++i) {
      worst = fmax(worst, fabs(a[p][i] - b[p][i]));
      largest = fmax(largest, fabs(a[p][i]));
    }
    OPI_ASSERT(worst <= 2e-5 * largest + 1e-8);
    if (!(worst <= 2e-5 * largest + 1e-8))
      OPI_FAIL("%s: gradient of '%s' differs by %g of %g", folder, v->name, worst, largest);
  }
}

static void check(const char *folder, uint32_t flags, const int64_t *lengths, uint32_t n) {
  slices one, many;
  double *a[MOST_FEEDS] = {NULL}, *b[MOST_FEEDS] = {NULL}, loss[2] = {0, 0};
  const int64_t all[1] = {0};
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_status status = open_slices(&one, folder, flags, &err);
  if (status >= 0)
    status = run_slices(&one, all, 1, a, &loss[0], &err);
  if (status >= 0)
    status = open_slices(&many, folder, flags, &err);
  else
    memset(&many, 0, sizeof(many));
  if (status >= 0)
    status = run_slices(&many, lengths, n, b, &loss[1], &err);
  if (status < 0) {
    OPI_FAIL("%s: %s", folder, err.message);
  } else {
    if (!(fabs(loss[0] - loss[1]) <= 1e-5 * loss[0]) || loss[0] == 0)
      OPI_FAIL("%s: loss %.9g in one piece, %.9g in slices", folder, loss[0], loss[1]);
    compare(&one, a, b, folder);
  }
  close_slices(&one);
  if (many.arena.allocator != NULL)
    close_slices(&many);
}

static void test_slices_have_the_gradients_of_the_whole(void) {
  static const char *const models[] = {"gpt2/train", "llama/train", "gemma2/train", "bloom/train"};
  static const int64_t even[] = {3, 3}, uneven[] = {1, 4, 2};
  check(opi_test_source("tests/data/gpt_8block"), 0, even, 2);
  check(opi_test_source("tests/data/llama_8block"), 0, uneven, 3);
  for (size_t i = 0; i < OPI_COUNT(models); ++i) {
    char folder[256];
    (void)snprintf(folder, sizeof(folder), "models/modern/%s", models[i]);
    const char *path = opi_test_shared(folder);
    if (path == NULL)
      return;
    check(path, 0, i % 2 == 0 ? uneven : even, i % 2 == 0 ? 4 : 3);
    check(path, OPI_BIND_NO_FUSE, i % 2 == 0 ? even : uneven, i % 2 == 0 ? 3 : 4);
  }
}

OPI_TEST_MAIN("slices", OPI_TEST(test_slices_have_the_gradients_of_the_whole))
