/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of requests through toy pipelines: every number of ranks, depths, both orders,
 * micro-batches, shapes that alternate. Every result must have exactly the bits of a plain
 * computation. ctest: timeout=120
 */
#include "tests/runtime/toy.h"

enum { WINDOW = 6 };

/* Keeps up to WINDOW requests in flight; shapes alternate among `n_shapes`. */
static bool run_stream(toy *t, uint32_t n_requests, const int64_t (*shapes)[2], uint32_t n_shapes,
                       uint32_t flags) {
  toy_request window[WINDOW];
  uint32_t n_in = 0, n_out = 0;
  bool good = true;
  opipe_error err = OPIPE_ERROR_INIT;
  while (n_out < n_requests) {
    while (n_in < n_requests && n_in - n_out < WINDOW) {
      const int64_t *shape = shapes[n_in % n_shapes];
      const opipe_status status =
          toy_submit(t, shape[0], shape[1], n_in, flags, 0, &window[n_in % WINDOW], &err);
      if (status == OPIPE_PENDING) {
        toy_release(&window[n_in % WINDOW]);
        break;
      }
      if (status < 0) {
        printf("submit: %s\n", err.message);
        return false;
      }
      ++n_in;
    }
    toy_request *r = &window[n_out++ % WINDOW];
    const opipe_status status = opi_request_wait(r->request, UINT64_C(20000000000), &err);
    if (status < 0)
      printf("request %u: %s\n", n_out - 1, err.message);
    good = status == OPIPE_OK && toy_check(t, r) && good;
    toy_release(r);
    if (status < 0)
      return false;
  }
  return good;
}

static void check_plan(const toy_plan *shape, uint32_t session_flags, const int64_t (*shapes)[2],
                       uint32_t n_shapes) {
  toy t = {.allocator = NULL};
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_session_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_session_params, max_shapes),
      .flags = session_flags,
      .spin_us = UINT32_MAX};
  OPI_ASSERT_OK(toy_make(&t, shape, &OPIPE_PLUGIN_STATIC(transport_local), &err), &err);
  const opipe_status status = toy_open(&t, &params, &err);
  OPI_ASSERT_OK(status, &err);
  if (status == OPIPE_OK) {
    const bool good = run_stream(&t, 24, shapes, n_shapes, TOY_OWN_Y) &&
                      run_stream(&t, 8, shapes, n_shapes, TOY_STRIDED);
    if (!good) {
      OPI_FAIL(
          "%u nodes, %u stages on %u ranks, %u micro-batches, depth %u, in flight %u, rows %lld, "
          "by %s, flags %u",
          shape->n_nodes, shape->n_stages, shape->n_ranks, shape->n_microbatches, shape->depth,
          shape->in_flight, (long long)shape->rows, shape->by_microbatch ? "micro-batch" : "stage",
          session_flags);
    }
  }
  toy_end(&t);
}

static void test_every_pipeline_gives_the_plain_result(void) {
  static const int64_t shape[1][2] = {{6, 3}};
  for (uint32_t ranks = 1; ranks <= 4; ++ranks) {
    for (uint32_t depth = 1; depth <= 3; ++depth) {
      for (uint32_t m = 1; m <= 3; ++m) {
        for (uint32_t in_flight = 0; in_flight <= 1; ++in_flight) {
          const toy_plan plan = {.n_nodes = 13,
                                 .n_stages = ranks,
                                 .n_ranks = ranks,
                                 .n_microbatches = m,
                                 .depth = depth,
                                 .in_flight = in_flight,
                                 .rows = 6,
                                 .seq = 3};
          check_plan(&plan, 0, shape, 1);
        }
      }
    }
  }
}

static void test_several_stages_on_one_rank(void) {
  static const int64_t shape[1][2] = {{4, 2}};
  static const uint32_t there_and_back[4] = {0, 1, 1, 0}, twos[6] = {0, 1, 0, 1, 0, 1},
                        one[3] = {0, 0, 0};
  for (uint32_t by = 0; by <= 1; ++by) {
    for (uint32_t m = 1; m <= 4; m += 3) {
      const toy_plan back = {.n_nodes = 17,
                             .n_stages = 4,
                             .n_ranks = 2,
                             .n_microbatches = m,
                             .depth = 2,
                             .rows = 4,
                             .seq = 2,
                             .rank_of_stage = there_and_back,
                             .by_microbatch = by != 0};
      const toy_plan two = {.n_nodes = 17,
                            .n_stages = 6,
                            .n_ranks = 2,
                            .n_microbatches = m,
                            .depth = 1,
                            .rows = 4,
                            .seq = 2,
                            .rank_of_stage = twos,
                            .by_microbatch = by != 0};
      const toy_plan all = {.n_nodes = 17,
                            .n_stages = 3,
                            .n_ranks = 1,
                            .n_microbatches = m,
                            .depth = 1,
                            .rows = 4,
                            .seq = 2,
                            .rank_of_stage = one,
                            .by_microbatch = by != 0};
      check_plan(&back, 0, shape, 1);
      check_plan(&two, 0, shape, 1);
      check_plan(&all, 0, shape, 1);
    }
  }
}

static void test_uneven_and_small_requests_alternate(void) {
  static const int64_t shapes[7][2] = {{5, 3}, {1, 3}, {7, 1}, {5, 3}, {2, 4}, {0, 3}, {6, 2}};
  for (uint32_t m = 1; m <= 4; ++m) {
    const toy_plan plan = {.n_nodes = 11,
                           .n_stages = 3,
                           .n_ranks = 3,
                           .n_microbatches = m,
                           .depth = 2,
                           .rows = 5,
                           .seq = 3};
    check_plan(&plan, 0, shapes, 7);
    check_plan(&plan, OPIPE_SESSION_POISON, shapes, 7);
  }
}

static void test_reference_gives_the_plain_result(void) {
  static const int64_t shapes[3][2] = {{5, 3}, {1, 3}, {4, 1}};
  for (uint32_t ranks = 1; ranks <= 3; ++ranks) {
    for (uint32_t m = 1; m <= 3; ++m) {
      const toy_plan plan = {.n_nodes = 12,
                             .n_stages = 3,
                             .n_ranks = ranks,
                             .n_microbatches = m,
                             .depth = 2,
                             .rows = 5,
                             .seq = 3};
      check_plan(&plan, OPIPE_SESSION_REFERENCE, shapes, 3);
    }
  }
}

static void test_devices_without_host_memory(void) {
  static const int64_t shapes[2][2] = {{5, 3}, {4, 1}};
  opipe_error err = OPIPE_ERROR_INIT;
  for (uint32_t reference = 0; reference <= 1; ++reference) {
    toy t = {
        .faults = {.device_flags =
                       OPIPE_DEVICE_HOST_MEMORY}}; /* asynchronous: transfers by write and read */
    const toy_plan plan = {.n_nodes = 12,
                           .n_stages = 3,
                           .n_ranks = 3,
                           .n_microbatches = 2,
                           .depth = 2,
                           .rows = 5,
                           .seq = 3};
    const opipe_session_params params = {
        .struct_size = (uint32_t)OPIPE_END(opipe_session_params, max_shapes),
        .flags = reference != 0 ? OPIPE_SESSION_REFERENCE : 0,
        .spin_us = 0};
    OPI_ASSERT_OK_FATAL(toy_make(&t, &plan, &OPIPE_PLUGIN_STATIC(transport_local), &err), &err);
    OPI_ASSERT_OK_FATAL(toy_open(&t, &params, &err), &err);
    OPI_ASSERT(run_stream(&t, 12, shapes, 2, TOY_STRIDED));
    toy_end(&t);
  }
}

/* The most credits that a schedule may ask for are as many as a stream takes. */
static void test_as_many_credits_as_there_can_be(void) {
  static const int64_t shapes[2][2] = {{5, 3}, {4, 1}};
  opipe_error err = OPIPE_ERROR_INIT;
  toy t = {.allocator = NULL};
  const toy_plan plan = {.n_nodes = 12,
                         .n_stages = 3,
                         .n_ranks = 3,
                         .n_microbatches = 2,
                         .depth = 2,
                         .in_flight = OPI_CREDITS_MOST,
                         .rows = 5,
                         .seq = 3};
  const opipe_session_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_session_params, max_shapes), .spin_us = 0};
  OPI_ASSERT_OK_FATAL(toy_make(&t, &plan, &OPIPE_PLUGIN_STATIC(transport_local), &err), &err);
  OPI_ASSERT_OK_FATAL(toy_open(&t, &params, &err), &err);
  OPI_ASSERT(run_stream(&t, 12, shapes, 2, 0));
  toy_end(&t);
}

OPI_TEST_MAIN("stream", OPI_TEST(test_every_pipeline_gives_the_plain_result),
              OPI_TEST(test_several_stages_on_one_rank),
              OPI_TEST(test_uneven_and_small_requests_alternate),
              OPI_TEST(test_reference_gives_the_plain_result),
              OPI_TEST(test_devices_without_host_memory),
              OPI_TEST(test_as_many_credits_as_there_can_be))
