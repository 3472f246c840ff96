/* SPDX-License-Identifier: Apache-2.0 */
/* Random schedules through planner and executor; see random.h. */
#include "tests/runtime/train/random.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/loader/wire/writer.h"
#include "tests/partition/schedule/random_order.h"

enum { WIDTH = 8, TOKENS = 4, ROWS = 9, TEXT_BYTES = 8192, BYTES = 400 };

struct random_trainer {
  kit k;
  char text[TEXT_BYTES]; /* of the schedule */
  char why[1200];
};

/* ---- the model ---- */

static void add_value(bytes *graph, uint32_t field, const char *name) {
  static const char *const names[] = {"batch", "tokens"};
  bytes shape = {0}, tensor = {0}, type = {0}, b = {0};
  for (uint32_t d = 0; d < 3; ++d) {
    bytes dim = {0};
    if (d < 2)
      w_text(&dim, 2, names[d]);
    else
      w_num(&dim, 1, WIDTH);
    w_sub(&shape, 1, dim);
  }
  w_num(&tensor, 1, OPIPE_FLOAT);
  w_sub(&tensor, 2, shape);
  w_sub(&type, 1, tensor);
  w_text(&b, 1, name);
  w_sub(&b, 2, type);
  w_sub(graph, field, b);
}

static void add_weight(bytes *graph, const char *name, opi_test_random *random) {
  static const int64_t square[] = {WIDTH, WIDTH};
  float data[WIDTH * WIDTH];
  opi_test_fill_f32(random, data, WIDTH * WIDTH, -0.6, 0.6);
  w_sub(graph, 5, w_tensor(name, OPIPE_FLOAT, square, 2, data, sizeof data));
}

static void add_dense(bytes *graph, const char *in, const char *weight, const char *out) {
  char inputs[64], middle[32];
  (void)snprintf(inputs, sizeof inputs, "%s %s", in, weight);
  (void)snprintf(middle, sizeof middle, "%s_m", out);
  w_sub(graph, 1, w_node("MatMul", NULL, NULL, inputs, middle));
  w_sub(graph, 1, w_node("Tanh", NULL, NULL, middle, out));
}

/* x [batch, tokens, 8]: dense layers, causal attention with a residual, a weight that two layers
 * share, a connection over many layers -> y of the same shape. */
static bool write_model(const char *path) {
  static const char *const weights[] = {"w0", "w1", "wq", "wk", "wv", "w3", "w5", "w6"};
  opi_test_random random = {11};
  bytes graph = {0}, b = {0};
  for (uint32_t i = 0; i < OPI_COUNT(weights); ++i)
    add_weight(&graph, weights[i], &random);
  add_dense(&graph, "x", "w0", "h0");
  add_dense(&graph, "h0", "w1", "h1");
  w_sub(&graph, 1, w_node("MatMul", NULL, NULL, "h1 wq", "q"));
  w_sub(&graph, 1, w_node("MatMul", NULL, NULL, "h1 wk", "k"));
  w_sub(&graph, 1, w_node("MatMul", NULL, NULL, "h1 wv", "v"));
  bytes attention = w_node("Attention", NULL, NULL, "q k v", "a");
  w_attr_int(&attention, "is_causal", 1);
  w_attr_int(&attention, "q_num_heads", 2);
  w_attr_int(&attention, "kv_num_heads", 2);
  w_sub(&graph, 1, attention);
  w_sub(&graph, 1, w_node("Add", NULL, NULL, "a h1", "h2"));
  add_dense(&graph, "h2", "w3", "h3");
  add_dense(&graph, "h3", "w1", "h4");
  w_sub(&graph, 1, w_node("Add", NULL, NULL, "h4 h0", "h5"));
  add_dense(&graph, "h5", "w5", "h6");
  w_sub(&graph, 1, w_node("MatMul", NULL, NULL, "h6 w6", "y"));
  add_value(&graph, 11, "x");
  add_value(&graph, 12, "y");
  w_num(&b, 1, 10);
  w_opset(&b, 8, "", 23);
  w_text(&graph, 2, "g");
  w_sub(&b, 7, graph);
  const bool ok = opi_test_write_file(path, b.data, b.n);
  free(b.data);
  return ok;
}

random_trainer *random_trainer_open(const char *folder, const opipe_plugin *const *statics) {
  char path[1100];
  random_trainer *trainer = calloc(1, sizeof *trainer);
  (void)snprintf(path, sizeof path, "%s/random.onnx", folder);
  if (trainer == NULL || !write_model(path))
    abort();
  kit_static_plugins = statics;
  if (kit_open(&trainer->k, path, ROWS, TOKENS) < 0) {
    (void)fprintf(stderr, "%s\n", trainer->k.err.message);
    abort();
  }
  trainer->k.watchdog_ns = UINT64_C(30000000000);
  return trainer;
}

void random_trainer_close(random_trainer *trainer) {
  kit_close(&trainer->k);
  free(trainer);
}

/* ---- the schedule ---- */

/* Index of the rank's last backward. */
static uint32_t last_backward(const random_order *m, uint32_t rank) {
  uint32_t last = 0;
  for (uint32_t i = 0; i < m->n; ++i) {
    if (m->records[i].rank == rank && m->records[i].pass != OPIPE_PASS_FORWARD)
      last = i;
  }
  return last;
}

/* Which forwards belong to the next mini-batch: ever fewer micro-batches from stage to stage, and
 * none that a rank's last backward is of, behind which the weights are new. */
static void choose_next(const random_order *m, random_bytes *b,
                        bool next[RANDOM_STAGES][RANDOM_MICROBATCHES]) {
  bool free[RANDOM_MICROBATCHES];
  for (uint32_t k = 0; k < RANDOM_MICROBATCHES; ++k)
    free[k] = random_take(b, 8) != 0;
  for (uint32_t rank = 0; rank < m->problem.n_ranks; ++rank)
    free[m->records[last_backward(m, rank)].microbatch] = false;
  for (uint32_t s = 0; s < m->problem.n_stages; ++s) {
    for (uint32_t k = 0; k < m->problem.n_microbatches; ++k) {
      free[k] = free[k] && random_take(b, 4) != 0;
      next[s][k] = free[k];
    }
  }
}

/* Double-buffered: forwards of the next mini-batch stand in front of the rank's last backward, or
 * where they are. */
static void buffer(random_order *m, random_bytes *b) {
  bool next[RANDOM_STAGES][RANDOM_MICROBATCHES] = {{false}};
  opipe_action out[RANDOM_RECORDS];
  uint32_t n = 0;
  const bool all = random_take(b, 4) != 0;
  choose_next(m, b, next);
  for (uint32_t i = 0; i < m->n; ++i) {
    opipe_action *a = &m->records[i];
    const bool flagged = a->pass == OPIPE_PASS_FORWARD && next[a->stage][a->microbatch];
    a->version = flagged ? 0 : 1;
    a->flags = flagged ? OPIPE_ACTION_NEXT_STEP : 0;
    a->reserved = flagged && (all || random_take(b, 3) != 0); /* it moves */
  }
  for (uint32_t rank = 0; rank < m->problem.n_ranks; ++rank) {
    const uint32_t last = last_backward(m, rank);
    for (uint32_t i = 0; i < m->n; ++i) {
      for (uint32_t k = 0; i == last && k < m->n; ++k) {
        if (m->records[k].rank == rank && m->records[k].reserved != 0)
          out[n++] = m->records[k];
      }
      if (m->records[i].rank == rank && m->records[i].reserved == 0)
        out[n++] = m->records[i];
    }
  }
  memcpy(m->records, out, n * sizeof *out);
  for (uint32_t i = 0; i < n; ++i)
    m->records[i].reserved = 0;
}

static void print_action(char *text, size_t *at, const opipe_action *a) {
  static const char *const kinds[] = {"F", "I", "W", "?", "B"};
  *at += (size_t)snprintf(text + *at, TEXT_BYTES - *at, " %u", a->stage);
  if (a->replica != 0)
    *at += (size_t)snprintf(text + *at, TEXT_BYTES - *at, "@%u", a->replica);
  *at += (size_t)snprintf(text + *at, TEXT_BYTES - *at, "%s%u", kinds[a->pass], a->microbatch);
  if (a->slice != 0)
    *at += (size_t)snprintf(text + *at, TEXT_BYTES - *at, "/%u", a->slice);
  if (a->part != 0)
    *at += (size_t)snprintf(text + *at, TEXT_BYTES - *at, "~%u", a->part);
  if (a->version != 0)
    *at += (size_t)snprintf(text + *at, TEXT_BYTES - *at, "'%u", a->version);
  if ((a->flags & OPIPE_ACTION_NEXT_STEP) != 0)
    *at += (size_t)snprintf(text + *at, TEXT_BYTES - *at, "+");
}

static void print_order(const random_order *m, const char *sync, char *text) {
  size_t at = (size_t)snprintf(text, TEXT_BYTES, "csv:text=#sync=%s\n", sync);
  for (uint32_t rank = 0; rank < m->problem.n_ranks; ++rank) {
    at += (size_t)snprintf(text + at, TEXT_BYTES - at, "rank %u:", rank);
    for (uint32_t i = 0; i < m->n; ++i) {
      if (m->records[i].rank == rank)
        print_action(text, &at, &m->records[i]);
    }
    at += (size_t)snprintf(text + at, TEXT_BYTES - at, "\n");
  }
}

static bool ends(const random_order *m) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_do_list *order = NULL;
  if (opi_do_list_from_records(&m->problem, m->records, m->n, opi_allocator_system(), &order,
                               &err) < 0)
    abort();
  const bool good = random_order_ends(m, order);
  opi_do_list_free(order);
  return good;
}

/* ---- runs ---- */

static const char *differs(random_trainer *t, const kit_outcome *a, const kit_outcome *b) {
  for (uint32_t s = 0; s < KIT_STEPS; ++s) {
    if (a->losses[s] == b->losses[s])
      continue;
    (void)snprintf(t->why, sizeof t->why, "loss %.9g at step %u, the reference has %.9g\n%.900s",
                   a->losses[s], s, b->losses[s], t->text);
    return t->why;
  }
  if (a->n == b->n && memcmp(a->weights, b->weights, a->n * sizeof(float)) == 0)
    return NULL;
  (void)snprintf(t->why, sizeof t->why, "weights are not the reference's\n%.900s", t->text);
  return t->why;
}

static const char *blame(random_trainer *t, const char *what) {
  (void)snprintf(t->why, sizeof t->why, "%s: %.200s\n%.900s", what, t->k.err.message, t->text);
  return t->why;
}

/* The planner refuses: rightly, and saying where? */
static const char *judge_refusal(random_trainer *t, opipe_status status, bool buffered, bool ended,
                                 random_count *count) {
  const char *message = t->k.err.message;
  if (buffered && status < 0 && message[0] != '\0') { /* no replay of the test's own for these */
    ++count->buffered_refused;
    return NULL;
  }
  if (ended)
    return blame(t, "an order that ends is refused");
  if (status != OPIPE_E_INVALID ||
      (strstr(message, "waits for") == NULL && strstr(message, "before it") == NULL &&
       strstr(message, "must come first") == NULL))
    return blame(t, "an order that stands still is refused without its reason");
  ++count->refused;
  return NULL;
}

static void note(const random_order *m, bool buffered, random_count *count) {
  bool halves = false;
  for (uint32_t i = 0; i < m->n; ++i)
    halves = halves || m->records[i].pass == OPIPE_PASS_BACKWARD_WEIGHT;
  ++count->trained;
  count->sliced += m->problem.n_slices > 1;
  count->replicated += m->problem.n_replicas > 1;
  count->parted += m->problem.n_parts > 1;
  count->both += m->problem.n_parts > 1 && m->problem.n_slices > 1;
  count->halves += halves;
  count->buffered += buffered;
}

static const char *run_both(random_trainer *t, const random_order *m, const kit_case *c,
                            bool buffered, random_count *count) {
  kit_outcome a = {.n = 0}, b = {.n = 0};
  if (kit_train(&t->k, c, WIDTH, 0, &a) < 0)
    return blame(t, "the plan does not run");
  if (kit_train(&t->k, c, WIDTH, OPIPE_SESSION_REFERENCE, &b) < 0)
    return blame(t, "the reference does not run");
  note(m, buffered, count);
  return differs(t, &a, &b);
}

static kit_case make_case(const random_order *m, const random_trainer *t, random_bytes *b) {
  static const char *const transports[] = {
      "local",
      "emulated:rule=tag",
      "emulated:rule=stream",
      "emulated:rule=stream,latency_us=50",
      "emulated:rule=edge",
      "emulated:rule=pair",
      "emulated:rule=blocking",
      "emulated:rule=grouped",
  };
  const uint32_t kind = random_take(b, 2) == 0 ? OPIPE_OPTIMIZER_SGD : OPIPE_OPTIMIZER_ADAMW;
  return (kit_case){
      .schedule = t->text,
      .n_ranks = m->problem.n_ranks,
      .n_microbatches = m->problem.n_microbatches,
      .depth = random_take(b, 4),
      .transport = transports[random_take(b, OPI_COUNT(transports))],
      .spec = {.loss = {.kind = OPI_LOSS_CROSS_ENTROPY, .labels = "labels", .ignore = -100},
               .recompute = random_take(b, 8) % 5 % 4,
               .optimizer = {.kind = kind,
                             .lr = 0.01,
                             .momentum = 0.9,
                             .beta1 = 0.9,
                             .beta2 = 0.99,
                             .epsilon = 1e-6,
                             .clip_norm = random_take(b, 2)}}};
}

const char *random_train(random_trainer *t, const uint8_t *data, size_t size, random_count *count) {
  static random_order m;
  static const char *const syncs[] = {"end", "eager", "eager-opt"};
  random_bytes b = {data, data + size, 0};
  const bool buffered = random_take(&b, 6) == 5;
  const char *sync = syncs[random_take(&b, 3)];
  if (!random_make(&m, &b) ||
      (buffered && (m.problem.n_slices > 1 || m.problem.n_parts > 1 || m.problem.n_replicas > 1)))
    return NULL;
  if (buffered)
    buffer(&m, &b);
  else
    random_perturb_records(&m, &b);
  ++count->tried;
  print_order(&m, sync, t->text);
  const kit_case c = make_case(&m, t, &b);
  const bool ended = buffered || ends(&m);
  const opipe_status status = kit_plan(&t->k, &c);
  const char *why = status < 0 ? judge_refusal(t, status, buffered, ended, count)
                    : !ended   ? blame(t, "an order that stands still is planned")
                               : run_both(t, &m, &c, buffered, count);
  opi_arena_release(&t->k.arena);
  opi_arena_init(&t->k.arena, opi_allocator_system(), 0);
  return why;
}

/* ---- many ---- */

void random_report(FILE *to, const random_count *n) {
  (void)fprintf(
      to,
      "%llu schedules: %llu trained (%llu sliced, %llu with replicas, %llu in parts, %llu in parts "
      "of slices, %llu with halves, %llu double-buffered), %llu + %llu refused\n",
      (unsigned long long)n->tried, (unsigned long long)n->trained, (unsigned long long)n->sliced,
      (unsigned long long)n->replicated, (unsigned long long)n->parted, (unsigned long long)n->both,
      (unsigned long long)n->halves, (unsigned long long)n->buffered,
      (unsigned long long)n->refused, (unsigned long long)n->buffered_refused);
}

void random_train_many(uint64_t seed, uint32_t n_tries) {
  random_trainer *trainer = random_trainer_open(opi_test_tmpdir(), NULL);
  opi_test_random random = {seed};
  random_count n = {.tried = 0};
  for (uint32_t i = 0; i < n_tries; ++i) {
    uint8_t data[BYTES];
    for (uint32_t k = 0; k < BYTES; ++k)
      data[k] = (uint8_t)(opi_test_next(&random) >> 33);
    const char *why = random_train(trainer, data, BYTES, &n);
    if (why != NULL)
      OPI_FAIL("schedule %u: %s", i, why);
  }
  random_trainer_close(trainer);
  (void)putchar('\n');
  random_report(stdout, &n);
  OPI_ASSERT(n.trained > n.tried / 3 && n.refused > n.tried / 10);
  OPI_ASSERT(n.sliced > 0 && n.replicated > 0 && n.halves > 0 && n.buffered > 0 && n.both > 0);
}
