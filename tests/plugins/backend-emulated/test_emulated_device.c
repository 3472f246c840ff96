/* SPDX-License-Identifier: Apache-2.0 */
/* backend-emulated over the toy backend, through whole sessions: the same results, modelled time
 * that overlaps, declared memory, faults. ctest: timeout=120 serial
 */
#include "tests/runtime/toy.h"

enum { RANKS = 3 };

typedef struct rig {
  toy t;
  opipe_instance *self;
} rig;

static const toy_plan three_ranks = {.n_nodes = 12,
                                     .n_stages = RANKS,
                                     .n_ranks = RANKS,
                                     .n_microbatches = 1,
                                     .depth = 2,
                                     .rows = 4,
                                     .seq = 2};

/* options: of rank 1's device; the others have `rest`. */
static opipe_status open_rig(rig *r, const char *options, const char *rest, uint64_t watchdog_ns,
                             opipe_error *err) {
  const opipe_plugin *plugin = &OPIPE_PLUGIN_STATIC(backend_emulated);
  const opipe_session_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_session_params, max_shapes),
      .max_in_flight = 16,
      .watchdog_ns = watchdog_ns,
      .spin_us = 0};
  memset(r, 0, sizeof *r);
  opipe_status status = toy_make(&r->t, &three_ranks, &OPIPE_PLUGIN_STATIC(transport_local), err);
  if (status == OPIPE_OK)
    status = plugin->open(&r->t.host, &r->self, err);
  if (status < 0)
    return status;
  for (uint32_t rank = 0; rank < RANKS; ++rank) {
    r->t.backends[rank] =
        (opi_backend_ref){.table = plugin->get_interface(r->self, OPIPE_BACKEND_ID),
                          .self = r->self,
                          .id = "emulated"};
    r->t.plan->decided.devices[rank].options = rank == 1 ? options : rest;
  }
  return toy_open(&r->t, &params, err);
}

static void close_rig(rig *r) {
  opi_session_close(r->t.session);
  r->t.session = NULL;
  OPIPE_PLUGIN_STATIC(backend_emulated).close(r->self);
  toy_end(&r->t);
}

static void test_results_are_the_inner_ones(void) {
  static const char *const options[][2] = {
      {"", "time_us=200"}, {"async=1", "async=1,time_us=200"}, {"async=1", ""}};
  for (uint32_t o = 0; o < OPI_COUNT(options); ++o) {
    rig r;
    opipe_error err = OPIPE_ERROR_INIT;
    OPI_ASSERT_OK_FATAL(open_rig(&r, options[o][0], options[o][1], 0, &err), &err);
    for (uint32_t i = 0; i < 6; ++i)
      OPI_ASSERT(toy_round(&r.t, 1 + i, 1 + i % 2, i, TOY_STRIDED));
    close_rig(&r);
  }
}

static uint64_t time_of(rig *r, uint32_t n) {
  toy_request requests[16];
  opipe_error err = OPIPE_ERROR_INIT;
  const uint64_t start = toy_now_ns();
  for (uint32_t i = 0; i < n; ++i)
    OPI_ASSERT_OK(toy_submit(&r->t, 4, 2, i, 0, 0, &requests[i], &err), &err);
  for (uint32_t i = 0; i < n; ++i)
    OPI_ASSERT_OK(opi_request_wait(requests[i].request, UINT64_MAX, &err), &err);
  const uint64_t taken = toy_now_ns() - start;
  for (uint32_t i = 0; i < n; ++i) {
    OPI_ASSERT(toy_check(&r->t, &requests[i]));
    toy_release(&requests[i]);
  }
  return taken;
}

static void test_modelled_times_overlap_as_a_pipeline(void) {
  static const char *const options[2] = {"time_us=20000", "time_us=20000,async=1"};
  for (uint32_t o = 0; o < 2; ++o) {
    rig r;
    opipe_error err = OPIPE_ERROR_INIT;
    OPI_ASSERT_OK_FATAL(open_rig(&r, options[o], options[o], 0, &err), &err);
    const uint64_t one = time_of(&r, 1), ten = time_of(&r, 10);
    OPI_ASSERT(one >= 60000000);                     /* three stages, one after the other */
    OPI_ASSERT(ten >= 240000000 && ten < 450000000); /* twelve turns; 600 ms without overlap */
    close_rig(&r);
  }
}

static void test_rates_give_times(void) {
  rig r;
  opipe_error err = OPIPE_ERROR_INIT;
  /* Rank 1 runs 5 nodes over [4, 2, 8] floats: 4 Mix (256 + 32 + 256 bytes) and at least one Add; 5
   * x 512 bytes at least. */
  OPI_ASSERT_OK_FATAL(open_rig(&r, "bandwidth=51200", "", 0, &err), &err);
  OPI_ASSERT(time_of(&r, 1) >= 50000000);
  close_rig(&r);
}

/* The toy's programs are forward only: times of other passes do not count. */
static void test_times_by_pass(void) {
  rig r;
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_OK_FATAL(open_rig(&r, "forward_us=60000,backward_input_us=9000000",
                               "backward_weight_us=9000000", 0, &err),
                      &err);
  const uint64_t taken = time_of(&r, 1);
  OPI_ASSERT(taken >= 60000000 && taken < 5000000000);
  close_rig(&r);
}

/* By stage of the plan: rank r has stage r. Only the times of stage 1 are long. */
static void test_times_by_stage(void) {
  static const char times[] = "forward_us=1000+60000+1000,backward_input_us=9000000";
  rig r;
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_OK_FATAL(open_rig(&r, times, times, 0, &err), &err);
  const uint64_t taken = time_of(&r, 1);
  OPI_ASSERT(taken >= 62000000 && taken < 5000000000);
  close_rig(&r);
  OPI_ASSERT_ERROR(open_rig(&r, "", "time_us=1+2", 0, &err), OPIPE_E_INVALID, &err,
                   "time_us lists 2 stages, there is a program of stage 2");
  close_rig(&r);
  OPI_ASSERT_ERROR(open_rig(&r, "time_us=1+", "", 0, &err), OPIPE_E_INVALID, &err, "time_us=1+");
  close_rig(&r);
  OPI_ASSERT_ERROR(open_rig(&r, "time_us=+1", "", 0, &err), OPIPE_E_INVALID, &err, "time_us=+1");
  close_rig(&r);
}

static void test_training_needs_an_inner_backend_that_trains(void) {
  rig r;
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_device *device = NULL;
  opipe_params *params = NULL;
  OPI_ASSERT_OK_FATAL(open_rig(&r, "", "", 0, &err), &err);
  const opipe_backend *t = r.t.backends[0].table;
  const opipe_device_params open = {.struct_size =
                                        (uint32_t)OPIPE_END(opipe_device_params, options)};
  OPI_ASSERT(OPIPE_HAS(t, opipe_backend, update) && t->update != NULL);
  OPI_ASSERT_OK_FATAL(t->device_open(r.self, &open, &device, &err), &err);
  OPI_ASSERT_ERROR(t->params_create_owned(device, NULL, 0, &params, &err), OPIPE_E_UNSUPPORTED,
                   &err, "cannot train");
  t->device_close(device);
  close_rig(&r);
}

static void test_declared_memory_is_a_limit(void) {
  rig r;
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_ERROR(open_rig(&r, "memory=1024", "", 0, &err), OPIPE_E_LIMIT, &err, "1024");
  OPI_ASSERT(strstr(err.message, "rank 1") != NULL);
  close_rig(&r);
  OPI_ASSERT_ERROR(open_rig(&r, "fail_alloc=2", "", 0, &err), OPIPE_E_NOMEM, &err, "buffer 2");
  close_rig(&r);
}

static void test_faults_end_the_session(void) {
  static const char *const options[] = {"fail_run=3", "fail_late=3", "async=1,fail_run=3",
                                        "async=1,fail_late=3"};
  for (uint32_t f = 0; f < OPI_COUNT(options); ++f) {
    rig r;
    toy_request requests[4];
    opipe_error err = OPIPE_ERROR_INIT;
    OPI_ASSERT_OK_FATAL(open_rig(&r, options[f], "time_us=10000", 0, &err), &err);
    for (uint32_t i = 0; i < 4; ++i) {
      const opipe_status status = toy_submit(&r.t, 4, 2, i, 0, 0, &requests[i], &err);
      OPI_ASSERT(status == OPIPE_OK || (i == 3 && status == OPIPE_E_STATE));
      if (i == 0) /* it has its answer before the third is queued */
        OPI_ASSERT_OK(opi_request_wait(requests[0].request, UINT64_MAX, &err), &err);
    }
    OPI_ASSERT_ERROR(opi_request_wait(requests[2].request, UINT64_MAX, &err), OPIPE_E_DEVICE, &err,
                     "rank 1, stage 1, request 2, micro-batch 0: emulated device: run 3");
    for (uint32_t i = 0; i < 4; ++i)
      toy_release(&requests[i]);
    close_rig(&r);
  }
}

static void check_stall(const char *options) {
  rig r;
  toy_request request;
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_OK_FATAL(open_rig(&r, options, "", 300000000, &err), &err);
  OPI_ASSERT(toy_round(&r.t, 4, 2, 0, 0));
  OPI_ASSERT_OK(toy_submit(&r.t, 4, 2, 1, 0, 0, &request, &err), &err);
  const uint64_t start = toy_now_ns();
  OPI_ASSERT_ERROR(opi_request_wait(request.request, UINT64_MAX, &err), OPIPE_E_TIMEOUT, &err,
                   "rank 1 has been in the program of stage 1 (request 1, micro-batch 0)");
  toy_release(&request);
  close_rig(&r); /* does not wait for the stalled minute */
  OPI_ASSERT(toy_now_ns() - start < UINT64_C(10000000000));
}

static void test_stalls_are_watched(void) {
  check_stall("stall_run=2:60000");
  check_stall("stall_run=2:60000,async=1");
}

static void test_wrong_options_are_refused(void) {
  static const struct {
    const char *options, *part;
  } wrong[] = {{"time_us=soon", "time_us=soon"},
               {"stall_run=3", "N:MS"},
               {"fail_run=x", "whole number"},
               {"compute=maybe", "on or off"},
               {"=1", "cannot be understood"}};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
    rig r;
    opipe_error err = OPIPE_ERROR_INIT;
    OPI_ASSERT_ERROR(open_rig(&r, wrong[i].options, "", 0, &err), OPIPE_E_INVALID, &err,
                     wrong[i].part);
    close_rig(&r);
  }
}

OPI_TEST_MAIN("backend-emulated", OPI_TEST(test_results_are_the_inner_ones),
              OPI_TEST(test_modelled_times_overlap_as_a_pipeline), OPI_TEST(test_rates_give_times),
              OPI_TEST(test_times_by_pass), OPI_TEST(test_times_by_stage),
              OPI_TEST(test_training_needs_an_inner_backend_that_trains),
              OPI_TEST(test_declared_memory_is_a_limit), OPI_TEST(test_faults_end_the_session),
              OPI_TEST(test_stalls_are_watched), OPI_TEST(test_wrong_options_are_refused))
