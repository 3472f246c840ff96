/* SPDX-License-Identifier: Apache-2.0 */
/* Cells in tensor groups: a state that members make in the parts in which they read it is divided.
 * One that they would read otherwise stays whole in all of them, with the products at fault. */
#include <stdlib.h>

#include "tests/runtime/streams/cells.h"

enum { ROUNDS = 5, CELLS = 3 };

typedef struct cell {
  const char *nodes[7][4]; /* operator, name, inputs, output */
  uint64_t own_bytes[2];   /* of the state in the members of a group of 2 and of 3, added up */
} cell;

enum { WHOLE = 2 * STATE * sizeof(float) }; /* both buffers */

static const cell CELL[CELLS] = {
    /* all by columns */
    {{{"MatMul", "product", "x w1", "a"},
      {"Sigmoid", "gate", "a", "b"},
      {"Mul", "keep", "b s", "c"},
      {"Add", "carry", "c a", "s_next"},
      {"MatMul", "answer", "s_next w2", "d"},
      {"Tanh", "bend", "d", "y"}},
     {WHOLE, WHOLE}},
    /* made by columns, read whole */
    {{{"MatMul", "product", "x w1", "a"},
      {"MatMul", "again", "s w3", "b"},
      {"Add", "add", "a b", "c"},
      {"Tanh", "carry", "c", "s_next"},
      {"MatMul", "answer", "s_next w2", "d"},
      {"Tanh", "bend", "d", "y"}},
     {2 * WHOLE, 3 * WHOLE}},
    /* made whole, read by columns */
    {{{"MatMul", "product", "x w1", "a"},
      {"Add", "add", "a s", "b"},
      {"MatMul", "sum", "b w3", "c"},
      {"Tanh", "carry", "c", "s_next"},
      {"MatMul", "answer", "s_next w2", "d"},
      {"Tanh", "bend", "d", "y"}},
     {2 * WHOLE, 3 * WHOLE}},
};

static bytes write(const cell *c) {
  static const char *const names[3] = {"w1", "w2", "w3"};
  const int64_t square[2] = {STATE, STATE}, dims[2] = {1, STATE};
  bytes graph = {0}, model = {0}, opset = {0};
  for (uint32_t n = 0; c->nodes[n][0] != NULL; ++n)
    w_sub(&graph, 1, w_node(c->nodes[n][0], c->nodes[n][1], NULL, c->nodes[n][2], c->nodes[n][3]));
  w_text(&graph, 2, "cell");
  for (uint32_t k = 0; k < 3; ++k) {
    float w[STATE * STATE];
    for (uint32_t i = 0; i < STATE * STATE; ++i)
      w[i] = (float)((i * 7 + k * 5) % 11) / 64 - 0.078125f;
    w_sub(&graph, 5, w_tensor(names[k], OPIPE_FLOAT, square, 2, w, sizeof w));
  }
  w_sub(&graph, 11, w_value("x", OPIPE_FLOAT, dims, 2));
  w_sub(&graph, 11, w_value("s", OPIPE_FLOAT, dims, 2));
  w_sub(&graph, 12, w_value("y", OPIPE_FLOAT, dims, 2));
  w_sub(&graph, 12, w_value("s_next", OPIPE_FLOAT, dims, 2));
  w_num(&model, 1, 8);
  w_num(&opset, 2, 17);
  w_sub(&model, 8, opset);
  w_sub(&model, 7, graph);
  return model;
}

typedef struct trace {
  float y[ROUNDS][STATE], s[ROUNDS + 1][STATE]; /* s[i]: before round i */
} trace;

static uint64_t state_bytes(host_kit *k, uint32_t n_ranks) {
  uint64_t sum = 0;
  for (uint32_t r = 0; r < n_ranks; ++r) {
    opipe_memory_info info = opipe_memory_info_init();
    OPI_ASSERT_OK(k->api->session_memory(k->session, r, &info, &k->err), &k->err);
    sum += info.state_bytes;
  }
  return sum;
}

/* The same requests by a state and with the host between them. */
static void run(const bytes *file, uint32_t width, trace *fed, uint64_t *out_bytes) {
  host_kit k;
  trace kept;
  OPI_ASSERT_OK_FATAL(cell_open(&k, file, NULL, 1, width), &k.err);
  opipe_state *state = kit_state(&k);
  for (uint32_t i = 0; i < STATE; ++i)
    fed->s[0][i] = (float)(i % 5) / 8 - 0.25f;
  for (uint32_t i = 0; i < ROUNDS; ++i) {
    const float x[STATE] = {(float)i, 0.5f, -(float)i, 1, 0, 0.25f};
    cell_step(&k, state, x, i == 0 ? fed->s[0] : NULL, kept.y[i], NULL);
    cell_step(&k, NULL, x, fed->s[i], fed->y[i], fed->s[i + 1]);
    OPI_ASSERT_OK(k.api->state_get(state, 0, NULL, kept.s[i], sizeof kept.s[i], &k.err), &k.err);
    OPI_ASSERT(memcmp(kept.s[i], fed->s[i + 1], sizeof kept.s[i]) == 0);
    OPI_ASSERT(memcmp(kept.y[i], fed->y[i], sizeof kept.y[i]) == 0);
  }
  *out_bytes = state_bytes(&k, width);
  kit_close(&k);
}

static void check(const cell *c) {
  const bytes file = write(c);
  trace whole, members;
  uint64_t n_bytes = 0;
  run(&file, 1, &whole, &n_bytes);
  OPI_ASSERT_INT(n_bytes, WHOLE);
  for (uint32_t width = 2; width <= 3; ++width) {
    run(&file, width, &members, &n_bytes);
    OPI_ASSERT_INT(n_bytes, c->own_bytes[width - 2]);
    for (uint32_t i = 0; i < ROUNDS * STATE; ++i) {
      const float own = members.y[i / STATE][i % STATE], want = whole.y[i / STATE][i % STATE];
      OPI_ASSERT(fabsf(own - want) <= 1e-4f * (1 + fabsf(want)));
    }
  }
  free(file.data);
}

static void test_divided(void) {
  check(&CELL[0]);
}
static void test_read_whole(void) {
  check(&CELL[1]);
}
static void test_made_whole(void) {
  check(&CELL[2]);
}

OPI_TEST_MAIN("cells in tensor groups", OPI_TEST(test_divided), OPI_TEST(test_read_whole),
              OPI_TEST(test_made_whole))
