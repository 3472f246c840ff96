/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of a rank of a chain of equal blocks (a transformer's, without embedding and head): over
 * schedules, ranks and types the fullest rank's stash, boundaries and arena are as much more or
 * less than 1F1B's as the schedule keeps more or less micro-batches, within 15 %; half types take
 * half; and the prediction is what devices hand out. ctest: timeout=300 label=twice */
#include <stdio.h>
#include <stdlib.h>

#include "tests/loader/wire/writer.h"
#include "tests/runtime/train/memory.h"

enum { RANKS = 8, BLOCKS = 16, WIDTH = 32, WIDER = 128, TOKENS = 16, M = 16, BATCH = 64 * M };

/* ---- the chain ---- */

static void weight(bytes *graph, opi_test_random *random, const char *name, int64_t rows,
                   int64_t columns) {
  static float data[WIDTH * WIDER];
  const int64_t shape[] = {rows, columns};
  const size_t n = (size_t)(rows * columns);
  opi_test_fill_f32(random, data, n, -0.1, 0.1);
  w_sub(graph, 5, w_tensor(name, OPIPE_FLOAT, shape, 2, data, n * sizeof(float)));
}

static void norm_weights(bytes *graph, const char *scale, const char *bias) {
  static float ones[WIDTH], zeros[WIDTH];
  const int64_t shape[] = {WIDTH};
  for (int i = 0; i < WIDTH; ++i)
    ones[i] = 1;
  w_sub(graph, 5, w_tensor(scale, OPIPE_FLOAT, shape, 1, ones, sizeof ones));
  w_sub(graph, 5, w_tensor(bias, OPIPE_FLOAT, shape, 1, zeros, sizeof zeros));
}

/* op(in) = out, in names that end in the block's number but for those of other blocks. */
static void node(bytes *graph, int block, const char *op, const char *in, const char *out) {
  char ins[160] = "", outs[64];
  for (const char *at = in; *at != '\0';) {
    const size_t n = strcspn(at, " "), have = strlen(ins);
    (void)snprintf(ins + have, sizeof ins - have, "%s%.*s.%d", have == 0 ? "" : " ", (int)n, at,
                   block);
    at += n + (at[n] == ' ');
  }
  (void)snprintf(outs, sizeof outs, "%s.%d", out, block);
  w_sub(graph, 1, w_node(op, NULL, NULL, ins, outs));
}

static void weights_of(bytes *graph, opi_test_random *random, int block) {
  static const char *const square[] = {"wq", "wk", "wv", "wo"};
  char name[32], other[32];
  for (size_t i = 0; i < OPI_COUNT(square); ++i) {
    (void)snprintf(name, sizeof name, "%s.%d", square[i], block);
    weight(graph, random, name, WIDTH, WIDTH);
  }
  (void)snprintf(name, sizeof name, "up.%d", block);
  weight(graph, random, name, WIDTH, WIDER);
  (void)snprintf(name, sizeof name, "down.%d", block);
  weight(graph, random, name, WIDER, WIDTH);
  for (int i = 1; i <= 2; ++i) {
    (void)snprintf(name, sizeof name, "scale%d.%d", i, block);
    (void)snprintf(other, sizeof other, "bias%d.%d", i, block);
    norm_weights(graph, name, other);
  }
}

/* u / sqrt 2 -> erf -> + 1 -> * u -> / 2 */
static void gelu(bytes *graph, int block) {
  char in[64], out[32];
  (void)snprintf(in, sizeof in, "u.%d root", block);
  (void)snprintf(out, sizeof out, "g.%d", block);
  w_sub(graph, 1, w_node("Div", NULL, NULL, in, out));
  node(graph, block, "Erf", "g", "e");
  (void)snprintf(in, sizeof in, "e.%d one", block);
  (void)snprintf(out, sizeof out, "f.%d", block);
  w_sub(graph, 1, w_node("Add", NULL, NULL, in, out));
  node(graph, block, "Mul", "u f", "uf");
  (void)snprintf(in, sizeof in, "uf.%d half", block);
  (void)snprintf(out, sizeof out, "t.%d", block);
  w_sub(graph, 1, w_node("Mul", NULL, NULL, in, out));
}

static void block_of(bytes *graph, int block) {
  char in[32], out[32];
  (void)snprintf(in, sizeof in, "x.%d", block);
  (void)snprintf(out, sizeof out, block == BLOCKS - 1 ? "y" : "x.%d", block + 1);
  node(graph, block, "LayerNormalization", "x scale1 bias1", "n1");
  node(graph, block, "MatMul", "n1 wq", "q");
  node(graph, block, "MatMul", "n1 wk", "k");
  node(graph, block, "MatMul", "n1 wv", "v");
  bytes turned = {0};
  char text[64];
  (void)snprintf(text, sizeof text, "k.%d", block);
  (void)snprintf(in, sizeof in, "kt.%d", block);
  turned = w_node("Transpose", NULL, NULL, text, in);
  w_attr_ints(&turned, "perm", (const int64_t[]){0, 2, 1}, 3);
  w_sub(graph, 1, turned);
  node(graph, block, "MatMul", "q kt", "s");
  node(graph, block, "Softmax", "s", "p");
  node(graph, block, "MatMul", "p v", "a");
  node(graph, block, "MatMul", "a wo", "o");
  node(graph, block, "Add", "x o", "h");
  node(graph, block, "LayerNormalization", "h scale2 bias2", "n2");
  node(graph, block, "MatMul", "n2 up", "u");
  gelu(graph, block);
  node(graph, block, "MatMul", "t down", "d");
  (void)snprintf(text, sizeof text, "h.%d d.%d", block, block);
  w_sub(graph, 1, w_node("Add", NULL, NULL, text, out));
}

static void write_chain(const char *path) {
  const int64_t shape[] = {-1, TOKENS, WIDTH};
  opi_test_random random = {7};
  bytes graph = {0};
  for (int i = 0; i < BLOCKS; ++i) {
    block_of(&graph, i);
    weights_of(&graph, &random, i);
  }
  static const float constants[] = {1.41421356f, 1.0f, 0.5f};
  static const char *const names[] = {"root", "one", "half"};
  for (size_t i = 0; i < OPI_COUNT(names); ++i)
    w_sub(&graph, 5, w_tensor(names[i], OPIPE_FLOAT, NULL, 0, &constants[i], sizeof(float)));
  w_sub(&graph, 11, w_value("x.0", OPIPE_FLOAT, shape, 3));
  w_sub(&graph, 12, w_value("y", OPIPE_FLOAT, shape, 3));
  bytes model = w_model(graph, 9);
  OPI_ASSERT_FATAL(opi_test_write_file(path, model.data, model.n));
  free(model.data);
}

/* ---- the table ---- */

static const char *const schedules[] = {
    "1f1b",    "gpipe",          "interleaved", "looped-bfs", "chimera", "zb-h1",    "zb-h2",
    "zb-auto", "zb-interleaved", "zbv",         "v-half",     "v-min",   "dualpipev"};

/* Bytes that the fullest rank holds for programs. */
static uint64_t held(const opi_plan *plan) {
  uint64_t most = 0;
  for (uint32_t r = 0; r < plan->decided.n_ranks; ++r) {
    const opi_memory *m = &plan->predicted.memory[r];
    const uint64_t n =
        m->stash_bytes + m->boundary_bytes + m->activation_bytes + m->workspace_bytes;
    most = n > most ? n : most;
  }
  return most;
}

/* The most micro-batches that the fullest rank keeps from F to B or W, in parts of the model. */
static double peak_stash(const opi_decision *plan) {
  double most = 0;
  for (uint32_t r = 0; r < plan->n_ranks; ++r) {
    int64_t now = 0;
    for (uint32_t a = plan->rank_first[r]; a < plan->rank_first[r + 1]; ++a) {
      const uint32_t pass = plan->actions[a].pass;
      now += pass == OPIPE_PASS_FORWARD;
      most = (double)now > most ? (double)now : most;
      now -= pass == OPIPE_PASS_BACKWARD || pass == OPIPE_PASS_BACKWARD_WEIGHT;
    }
  }
  return most / plan->n_stages;
}

typedef struct amounts {
  uint64_t held; /* of the fullest rank */
  double stash;
} amounts;

/* One plan; in the session that is opened from it devices hand out what is predicted. */
static amounts plan_one(kit *k, const char *schedule, uint32_t n_ranks, uint32_t type,
                        uint64_t total[RANKS], uint64_t params[RANKS]) {
  static const opi_train_glob frozen[] = {{"root", false}, {"one", false}, {"half", false}};
  static const opi_costs costs = {.forward = 5, .input = 5, .weight = 5};
  const memory_row row = {schedule, n_ranks, M, false, {0}};
  kit_case c = memory_case(&row, OPI_RECOMPUTE_NONE, OPIPE_OPTIMIZER_SGD);
  opi_session *session = NULL;
  c.stages = &costs;
  c.spec.globs = frozen;
  c.spec.n_globs = OPI_COUNT(frozen);
  c.spec.compute = type;
  c.spec.loss = (opi_loss){.kind = OPI_LOSS_MSE, .output = "y", .labels = "target"};
  OPI_ASSERT_OK_FATAL(kit_plan(k, &c), &k->err);
  OPI_ASSERT_OK_FATAL(kit_session(k, 0, &session), &k->err);
  OPI_ASSERT(memory_as_predicted(k, session, schedule));
  opi_session_close(session);
  for (uint32_t r = 0; r < n_ranks; ++r) {
    total[r] = k->plan->predicted.memory[r].total_bytes;
    params[r] = k->plan->predicted.memory[r].params_bytes;
  }
  return (amounts){held(k->plan), peak_stash(&k->plan->decided)};
}

static void check_ratio(const char *what, uint32_t n_ranks, double found, double allowed) {
  if (found > allowed)
    OPI_FAIL("%s, %u ranks: %.3f, allowed %.3f", what, n_ranks, found, allowed);
}

/* Half types have the norms' inputs, the residual stream, in fp32: it is kept longest. */
static void check_row(kit *k, const char *schedule, uint32_t n_ranks, amounts base[2]) {
  uint64_t total[2][RANKS], params[2][RANKS];
  amounts of[2];
  double share[2];
  for (uint32_t half = 0; half < 2; ++half) {
    of[half] = plan_one(k, schedule, n_ranks, half == 0 ? OPIPE_FLOAT : OPIPE_BFLOAT16, total[half],
                        params[half]);
    if (base[half].held == 0)
      base[half] = of[half];
    share[half] = (double)of[half].held / (double)base[half].held;
  }
  const double stash = of[0].stash / base[0].stash;
  const double halved = (double)of[1].held / (double)of[0].held;
  (void)printf("%5u %-16s %6.3f %9.1f %6.3f %9.1f %6.3f %6.3f\n", n_ranks, schedule, stash,
               (double)of[0].held / 1024, share[0], (double)of[1].held / 1024, share[1], halved);
  check_ratio(schedule, n_ranks, share[0], 1.15 * stash);
  check_ratio(schedule, n_ranks, share[1], 1.18 * stash);
  check_ratio(schedule, n_ranks, halved, 0.65);
  for (uint32_t r = 0; r < n_ranks; ++r)
    OPI_ASSERT(total[1][r] <= total[0][r] + params[0][r] / sizeof(float) * 2);
}

static void test_table(void) {
  const char *path = opi_test_tmp("chain.onnx");
  kit k;
  write_chain(path);
  OPI_ASSERT_OK_FATAL(kit_open(&k, path, BATCH, TOKENS), &k.err);
  (void)printf("\nranks schedule          stash  fp32 KiB  1f1b  bf16 KiB   1f1b   fp32\n");
  const uint32_t most = opi_test_is_sanitized() ? RANKS / 2 : RANKS;
  for (uint32_t n_ranks = RANKS / 2; n_ranks <= most; n_ranks += RANKS / 2) {
    amounts base[2] = {{0, 0}, {0, 0}};
    for (size_t i = 0; i < OPI_COUNT(schedules); ++i)
      check_row(&k, schedules[i], n_ranks, base);
  }
  kit_close(&k);
}

OPI_TEST_MAIN("training packing", OPI_TEST(test_table))
