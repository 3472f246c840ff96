/* SPDX-License-Identifier: Apache-2.0 */
/* Folding through the CPU backend: results are right, several threads may bind at once, and what
 * the backend refuses is left in the graph.
 */
#include <pthread.h>

#include "tests/loader/backend_evaluator.h"
#include "tests/loader/graphs.h"

enum { N_THREADS = 4, N_BINDS = 20, N_CHAIN = 16 };

/* 0, 1, 2, ... doubled N_CHAIN times over: every node is folded. */
static void add_chain(test_graph *t, const int64_t *start, uint32_t n) {
  uint32_t at = test_ints(t, "start", start, n);
  for (uint32_t i = 0; i < N_CHAIN; ++i)
    at = test_op(t, "Add", at, at);
  test_rename(t, at, "y");
  test_output(t, at);
}

/* True when y = start * 2^N_CHAIN. */
static bool bind_chain(int64_t first) {
  test_graph t;
  opi_bound *bound = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  const int64_t start[3] = {first, first + 1, -first};
  opi_bind_options options = test_options();
  options.evaluator = test_backend_evaluator();
  test_open(&t);
  add_chain(&t, start, 3);
  bool good = opi_bind(&t.model, &options, &bound, &err) >= 0 && bound->graph->n_nodes == 1;
  if (good) {
    const opi_node *copy = &bound->graph->nodes[0];
    const int64_t *y = bound->graph->values[copy->in[0]].data;
    for (int i = 0; i < 3; ++i)
      good = good && y != NULL && y[i] == start[i] * (1 << N_CHAIN);
  }
  opi_bound_free(bound);
  test_close(&t);
  return good;
}

static void *bind_many(void *arg) {
  intptr_t n_wrong = 0;
  for (int i = 0; i < N_BINDS; ++i)
    n_wrong += !bind_chain((intptr_t)arg * 1000 + i);
  return (void *)n_wrong; /* asserts belong to the test's thread */
}

static void test_threads_share_an_evaluator(void) {
  pthread_t threads[N_THREADS];
  if (test_backend_evaluator() == NULL)
    OPI_SKIP("backend-cpu is not built");
  for (intptr_t i = 0; i < N_THREADS; ++i)
    OPI_ASSERT_INT(pthread_create(&threads[i], NULL, bind_many, (void *)i), 0);
  for (int i = 0; i < N_THREADS; ++i) {
    void *n_wrong = NULL;
    OPI_ASSERT_INT(pthread_join(threads[i], &n_wrong), 0);
    OPI_ASSERT_INT((intptr_t)n_wrong, 0);
  }
}

/* An index that is wrong is an error of the file, found when the node is computed. */
static void test_errors_of_nodes_are_named(void) {
  test_graph t;
  opi_bound *bound = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  const int64_t data[3] = {1, 2, 3}, at[1] = {5}, up[1] = {9};
  opi_bind_options options = test_options();
  options.evaluator = test_backend_evaluator();
  if (options.evaluator == NULL)
    OPI_SKIP("backend-cpu is not built");
  test_open(&t);
  const uint32_t in[3] = {test_ints(&t, "data", data, 3), test_ints(&t, "at", at, 1),
                          test_ints(&t, "up", up, 1)};
  uint32_t out = OPIPE_NONE;
  test_node(&t, "ScatterElements", 18, in, 3, NULL, 0, &out, 1);
  test_output(&t, out);
  const opipe_status status = opi_bind(&t.model, &options, &bound, &err);
  OPI_ASSERT(status < 0);
  OPI_ASSERT(strstr(err.message,
                    "node 'ScatterElements_1' (ScatterElements): cannot be computed") != NULL);
  test_close(&t);
}

OPI_TEST_MAIN("evaluator", OPI_TEST(test_threads_share_an_evaluator),
              OPI_TEST(test_errors_of_nodes_are_named))
