/* SPDX-License-Identifier: Apache-2.0 */
/* Memory, shown independently of the library's own accounts: poisoned runs give the same bits, a
 * budget one alignment unit too small is refused with the numbers, the process grows by the
 * prediction, and nobody allocates while requests of a known shape are served. (Predicted =
 * measured per category is part of every case of the matrix.) This executable's malloc and mmap
 * stand in front of the C library's for every shared object of the process, and count.
 * ctest: timeout=240
 */
#include <malloc.h>
#include <stdio.h>

#include "tests/loader/wire/writer.h"
#include "tests/matrix/kit.h"
#include "tests/support/allocations.h"

enum { UNIT = 64, SLACK_BYTES = 16 << 20, WARM = 24, STEADY = 200 };

/* ---- plans ---- */

static opipe_status plan_of(mx_model *m, uint32_t stages, opipe_plan **out_plan) {
  const opipe_device_choice device = {.kind = "cpu", .threads = 1};
  const opipe_plan_params params = {.struct_size = sizeof params,
                                    .n_stages = stages,
                                    .devices = &device,
                                    .n_devices = 1,
                                    .devices_stride = sizeof(opipe_device_choice),
                                    .flags = OPIPE_PLAN_IGNORE_ANNOTATIONS};
  return m->api->plan_make(m->bound, &params, out_plan, &m->err);
}

static uint64_t predicted_bytes(mx_model *m, opipe_plan *plan, uint32_t stages) {
  uint64_t total = 0;
  for (uint32_t r = 0; r < stages; ++r) {
    opipe_memory_info info = {.struct_size = sizeof info};
    OPI_ASSERT_OK(m->api->plan_memory(plan, r, &info, &m->err), &m->err);
    total += info.total_bytes;
  }
  return total;
}

/* ---- poison ---- */

static void poisoned(mx_model *m, uint32_t stages) {
  opipe_plan *plan = NULL;
  mx_result plain = {.n = 0}, poison = {.n = 0};
  opipe_status status = plan_of(m, stages, &plan);
  if (status == OPIPE_OK)
    status = mx_run(m, plan, 0, 2, &plain);
  if (status == OPIPE_OK)
    status = mx_run(m, plan, OPIPE_SESSION_POISON, 2, &poison);
  const char *wrong = status == OPIPE_OK ? mx_same_bits(&poison, &plain) : m->err.message;
  (void)opi_test_check(wrong == NULL, __FILE__, __LINE__, false, "%s, %u stages, poisoned: %s",
                       m->folder->name, stages, wrong == NULL ? "" : wrong);
  mx_result_free(&plain);
  mx_result_free(&poison);
  m->api->plan_destroy(plan);
}

static void each_folder(void (*body)(mx_model *m, uint32_t stages)) {
  const char *names[MX_FOLDERS];
  const size_t n = mx_list(names);
  if (n == 0)
    OPI_SKIP("there are no model folders");
  for (size_t i = 0; i < n; ++i) {
    opipe_error err = OPIPE_ERROR_INIT;
    mx_folder *folder = NULL;
    mx_model m = {.api = NULL};
    if (mx_folder_read(names[i], &folder, &err) < 0 || mx_open(&m, NULL, folder) < 0 ||
        mx_bind(&m, 0, true) < 0) {
      OPI_FAIL("%s: %s%s", names[i], err.message, m.err.message);
    } else {
      for (uint32_t stages = 1; stages <= MX_RANKS; ++stages) {
        if (opi_test_covers(i + stages, 3 * MX_RANKS))
          body(&m, stages);
      }
    }
    mx_close(&m);
    mx_folder_free(folder);
  }
}

static void test_poisoned_runs_give_the_same_bits(void) {
  each_folder(poisoned);
}

/* ---- one unit less ---- */

/* In a context whose budget is `budget` bytes: what opening a session of that plan answers. */
static opipe_status open_within(const mx_folder *folder, uint32_t stages, uint64_t budget_bytes,
                                opipe_error *err) {
  const opipe_device_budget budget = {.kind = "cpu", .memory_bytes = budget_bytes};
  const opipe_context_params params = {.struct_size = sizeof params,
                                       .budgets = &budget,
                                       .n_budgets = 1,
                                       .budgets_stride = sizeof(opipe_device_budget)};
  mx_model m;
  opipe_plan *plan = NULL;
  opipe_session *session = NULL;
  opipe_status status = mx_open(&m, &params, folder);
  if (status == OPIPE_OK)
    status = mx_bind(&m, 0, true);
  if (status == OPIPE_OK)
    status = plan_of(&m, stages, &plan);
  if (status == OPIPE_OK)
    status = m.api->session_open(m.context, plan, NULL, &session, &m.err);
  *err = m.err;
  m.api->session_close(session);
  m.api->plan_destroy(plan);
  mx_close(&m);
  return status;
}

static void one_unit_less(mx_model *m, uint32_t stages) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_plan *plan = NULL;
  OPI_ASSERT_OK(plan_of(m, stages, &plan), &m->err);
  const uint64_t need = predicted_bytes(m, plan, stages);
  m->api->plan_destroy(plan);
  const opipe_status exact = open_within(m->folder, stages, need, &err);
  if (exact != OPIPE_OK) {
    OPI_FAIL("%s, %u stages, %llu bytes: %s", m->folder->name, stages, (unsigned long long)need,
             err.message);
  }
  const opipe_status less = open_within(m->folder, stages, need - UNIT, &err);
  if (less != OPIPE_E_LIMIT || strpbrk(err.message, "0123456789") == NULL) {
    OPI_FAIL("%s, %u stages, a unit below %llu bytes: status %d, '%s'", m->folder->name, stages,
             (unsigned long long)need, (int)less, err.message);
  }
}

static void test_one_unit_less_is_refused(void) {
  each_folder(one_unit_less);
}

/* ---- no allocation in the step loop ---- */

static opipe_status serve(mx_model *m, opipe_session *session, const mx_io *io, uint32_t n) {
  opipe_status status = OPIPE_OK;
  for (uint32_t i = 0; i < n && status == OPIPE_OK; ++i) {
    opipe_request *two[2] = {NULL, NULL};
    status = mx_submit(m, session, io, &two[0]);
    if (status == OPIPE_OK)
      status = mx_submit(m, session, io, &two[1]);
    for (uint32_t k = 0; k < 2 && status == OPIPE_OK; ++k)
      status = m->api->request_wait(two[k], UINT64_C(30000000000), &m->err);
    m->api->request_release(two[0]);
    m->api->request_release(two[1]);
  }
  return status;
}

static void steady(mx_model *m, uint32_t stages, uint32_t flags) {
  const opipe_session_params params = {.struct_size = sizeof params, .flags = flags};
  opipe_plan *plan = NULL;
  opipe_session *session = NULL;
  static mx_io io;
  opipe_status status = plan_of(m, stages, &plan);
  opi_test_count_allocations();
  if (status == OPIPE_OK)
    status = m->api->session_open(m->context, plan, &params, &session, &m->err);
  OPI_ASSERT(opi_test_counted() > 10); /* opening allocates: the counter sees the library */
  if (status == OPIPE_OK)
    status = mx_inputs(m, m->set, &io);
  if (status == OPIPE_OK)
    status = serve(m, session, &io, WARM);
  opi_test_count_allocations();
  if (status == OPIPE_OK)
    status = serve(m, session, &io, STEADY);
  const uint64_t n = opi_test_counted();
  OPI_ASSERT_OK(status, &m->err);
  if (n != 0) {
    OPI_FAIL("%s, %u stages%s: %llu allocations in %d requests, the first by %p", m->folder->name,
             stages, flags == 0 ? "" : ", reference", (unsigned long long)n, 2 * STEADY,
             opi_test_first_caller());
  }
  m->api->session_close(session);
  m->api->plan_destroy(plan);
}

static void test_no_allocation_while_serving(void) {
  static const char *const models[] = {"modern/gpt2/infer", "modern/llama/infer", "graphs/bert_toy",
                                       "modern/whisper/infer", "graphs/gpt2_past_12layer"};
  if (!OPI_TEST_COUNTS_ALLOCATIONS)
    OPI_SKIP("a sanitizer has its own malloc");
  if (opi_test_shared("models") == NULL)
    return;
  for (size_t i = 0; i < sizeof models / sizeof models[0]; ++i) {
    opipe_error err = OPIPE_ERROR_INIT;
    mx_folder *folder = NULL;
    mx_model m = {.api = NULL};
    if (mx_folder_read(models[i], &folder, &err) < 0 || mx_open(&m, NULL, folder) < 0 ||
        mx_bind(&m, 0, true) < 0)
      OPI_FAIL("%s: %s%s", models[i], err.message, m.err.message);
    for (uint32_t stages = 1; m.bound != NULL && stages <= 3; ++stages) {
      steady(&m, stages, 0);
      steady(&m, stages, OPIPE_SESSION_REFERENCE);
    }
    mx_close(&m);
    mx_folder_free(folder);
  }
}

/* ---- the process grows by the prediction ---- */

enum { WIDTH = 1024, LAYERS = 16 }; /* 64 MiB of weights */

static void test_the_process_grows_by_the_prediction(void) {
  static float x[4 * WIDTH];
  const int64_t shape[] = {4, WIDTH};
  if (!OPI_TEST_COUNTS_ALLOCATIONS || opi_test_private_bytes() == 0)
    OPI_SKIP("a sanitizer's shadow, or no /proc/self/smaps_rollup");
  const char *folder_path = opi_test_tmpdir();
  mx_folder folder = {.name = "64 MiB of weights", .n_sets = 1};
  OPI_ASSERT_FATAL(w_write_chain(opi_test_tmp("model.onnx"), "Relu", 4, WIDTH, LAYERS));
  (void)snprintf(folder.path, sizeof folder.path, "%s", folder_path);
  folder.sets[0].inputs[0] = (opi_value){.name = "x",
                                         .shape = (int64_t *)(uintptr_t)shape,
                                         .data = x,
                                         .n_bytes = sizeof x,
                                         .rank = 2,
                                         .dtype = OPIPE_FLOAT};
  folder.sets[0].n_inputs = 1;
  for (uint32_t stages = 1; stages <= MX_RANKS; ++stages) {
    mx_model m;
    opipe_plan *plan = NULL;
    opipe_session *session = NULL;
    static mx_io io;
    OPI_ASSERT_OK_FATAL(mx_open(&m, NULL, &folder), &m.err);
    OPI_ASSERT_OK_FATAL(mx_bind(&m, 0, true), &m.err);
    OPI_ASSERT_OK_FATAL(plan_of(&m, stages, &plan), &m.err);
    const uint64_t predicted = predicted_bytes(&m, plan, stages);
    (void)malloc_trim(0);
    const uint64_t before = opi_test_private_bytes();
    OPI_ASSERT_OK_FATAL(m.api->session_open(m.context, plan, NULL, &session, &m.err), &m.err);
    OPI_ASSERT_OK_FATAL(mx_inputs(&m, m.set, &io), &m.err);
    OPI_ASSERT_OK(serve(&m, session, &io, 4), &m.err);
    const double grown = (double)opi_test_private_bytes() - (double)before;
    const double off = grown - (double)predicted;
    (void)printf("\n%u stages: predicted %.1f MiB, grown by %.1f MiB", stages,
                 (double)predicted / 1048576, grown / 1048576);
    OPI_ASSERT(predicted > UINT64_C(60) << 20);
    OPI_ASSERT((off < 0 ? -off : off) <= 0.03 * (double)predicted + SLACK_BYTES);
    m.api->session_close(session);
    m.api->plan_destroy(plan);
    mx_close(&m);
  }
}

OPI_TEST_MAIN("memory, independently", OPI_TEST(test_poisoned_runs_give_the_same_bits),
              OPI_TEST(test_one_unit_less_is_refused), OPI_TEST(test_no_allocation_while_serving),
              OPI_TEST(test_the_process_grows_by_the_prediction))
