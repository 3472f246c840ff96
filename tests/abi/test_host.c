/* SPDX-License-Identifier: Apache-2.0 */
/* The host's table end to end: versions, misuse that can be detected, lifetimes in any order,
 * forked children, budgets, memory that was predicted and is measured, and every allocation failing
 * once. ctest: timeout=240
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "loader/base/base.h"
#include "tests/abi/host_kit.h"

static const char *const GPT = "tests/data/gpt_8block/model.onnx";
static const int64_t ids[64] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
static const int64_t shape[2] = {1, 8};

static void test_versions(void) {
  const opipe_api *api = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  OPI_ASSERT_OK(opipe_get_api(OPIPE_VIEW, &api, &err), &err);
  OPI_ASSERT_INT(api->abi_major, OPIPE_ABI_MAJOR);
  OPI_ASSERT_INT(api->struct_size, sizeof(opipe_api)); /* to its last entry */
  opipe_view view = *OPIPE_VIEW;
  view.abi_major = 2;
  OPI_ASSERT_ERROR(opipe_get_api(&view, &api, &err), OPIPE_E_ABI, &err,
                   "ABI major 2, this library has 1: use a newer library");
  OPI_ASSERT_INT(opipe_get_api(&view, &api, NULL), OPIPE_E_ABI);
  view.abi_major = 1;
  view.abi_minor = OPIPE_ABI_MINOR + 1;
  OPI_ASSERT_ERROR(opipe_get_api(&view, &api, &err), OPIPE_E_ABI, &err, "OPIPE_TARGET_MINOR=");
  OPI_ASSERT_ERROR(opipe_get_api(NULL, &api, &err), OPIPE_E_INVALID, &err, "NULL");
  OPI_ASSERT_ERROR(opipe_get_api(OPIPE_VIEW, NULL, &err), OPIPE_E_INVALID, &err, "NULL");
  view = *OPIPE_VIEW;
  view.struct_size = 8;
  OPI_ASSERT_ERROR(opipe_get_api(&view, &api, &err), OPIPE_E_ABI, &err,
                   "struct opipe_view out in 8 bytes");
  /* A host that is not compiled has no structs to check; a list that ends too early is none. */
  view = (opipe_view){.struct_size = sizeof view, .abi_major = 1};
  OPI_ASSERT_OK(opipe_get_api(&view, &api, &err), &err);
  view = *OPIPE_VIEW;
  view.n_structs = 3;
  OPI_ASSERT_ERROR(opipe_get_api(&view, &api, &err), OPIPE_E_ABI, &err, "does not list struct");
}

static void test_null_and_foreign_handles_are_errors(void) {
  host_kit k;
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, GPT, 1, 8, NULL), &k.err);
  opipe_plan_info info = {.struct_size = sizeof info};
  OPI_ASSERT_ERROR(k.api->plan_info(NULL, &info, &k.err), OPIPE_E_INVALID, &k.err,
                   "the plan is NULL");
  OPI_ASSERT_ERROR(k.api->plan_info((opipe_plan *)(void *)k.model, &info, &k.err), OPIPE_E_INVALID,
                   &k.err, "plan_info: this is a model; a plan is expected");
  OPI_ASSERT_ERROR(k.api->plan_make(k.model, NULL, &k.plan, &k.err), OPIPE_E_STATE, &k.err,
                   "not bound");
  opipe_model *again = NULL;
  OPI_ASSERT_ERROR(k.api->model_bind(k.bound, NULL, &again, &k.err), OPIPE_E_STATE, &k.err,
                   "bound already");
  const opipe_session_params tiny = {.struct_size = 4};
  OPI_ASSERT_ERROR(k.api->session_open(k.context, k.plan, &tiny, &k.session, &k.err), OPIPE_E_ABI,
                   &k.err, "struct_size is 4");
  k.api->model_destroy(NULL);
  k.api->plan_destroy(NULL);
  k.api->session_close(NULL);
  k.api->request_release(NULL);
  k.api->context_destroy(NULL);
  kit_close(&k);
}

static void test_wrong_tensors_name_both_sides(void) {
  host_kit k;
  opipe_request *request = NULL;
  const int64_t flat[1] = {8};
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, GPT, 1, 8, NULL), &k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&k, NULL), &k.err);
  opipe_binding_io input = kit_ids(ids, shape);
  input.tensor.dtype = (opipe_dtype){OPIPE_DL_FLOAT, 32, 1};
  OPI_ASSERT(kit_submit(&k, &input, &request) < 0);
  OPI_ASSERT(strstr(k.err.message, "input_ids") != NULL &&
             strstr(k.err.message, "float32") != NULL && strstr(k.err.message, "int64") != NULL);
  input = kit_ids(ids, flat);
  input.tensor.rank = 1;
  OPI_ASSERT(kit_submit(&k, &input, &request) < 0);
  OPI_ASSERT(strstr(k.err.message, "input_ids") != NULL);
  input = kit_ids(ids, shape);
  input.name = "tokens";
  OPI_ASSERT(kit_submit(&k, &input, &request) < 0);
  OPI_ASSERT(strstr(k.err.message, "tokens") != NULL);
  input = kit_ids(ids, shape);
  input.tensor.device_type = OPIPE_DL_CUDA;
  OPI_ASSERT_INT(kit_submit(&k, &input, &request), OPIPE_E_UNSUPPORTED);
  input = kit_ids(ids, shape);
  input.ready.kind = OPIPE_FENCE_NATIVE_EVENT;
  OPI_ASSERT_INT(kit_submit(&k, &input, &request), OPIPE_E_UNSUPPORTED);
  const opipe_submit_params none = {.struct_size = sizeof none};
  OPI_ASSERT(k.api->session_submit(k.session, &none, &request, &k.err) < 0);
  OPI_ASSERT(strstr(k.err.message, "input_ids") != NULL);
  kit_close(&k);
}

/* Calls for sessions of training plans alone say so. */
static void test_a_session_for_inference_does_not_train(void) {
  host_kit k;
  opipe_request *ticket = NULL;
  const opipe_submit_params none = {.struct_size = sizeof none};
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, GPT, 1, 8, NULL), &k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&k, NULL), &k.err);
  OPI_ASSERT_ERROR(k.api->session_train_step(k.session, &none, &ticket, &k.err), OPIPE_E_STATE,
                   &k.err, "train");
  OPI_ASSERT_ERROR(k.api->session_evaluate(k.session, &none, &ticket, &k.err), OPIPE_E_STATE,
                   &k.err, "train");
  OPI_ASSERT_ERROR(k.api->session_save(k.session, "nowhere", NULL, &k.err), OPIPE_E_STATE, &k.err,
                   "inference");
  OPI_ASSERT(ticket == NULL);
  OPI_ASSERT_OK(k.api->session_flush(k.session, &k.err), &k.err);
  kit_close(&k);
}

/* A host may let go of things in any order: a session keeps its plan, a plan its model, all of them
 * the context. */
static void test_lifetimes_in_any_order(void) {
  host_kit k;
  opipe_request *request = NULL;
  opipe_tensor out;
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, GPT, 1, 8, NULL), &k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&k, NULL), &k.err);
  k.api->context_destroy(k.context);
  k.api->model_destroy(k.model);
  k.api->model_destroy(k.bound);
  k.api->plan_destroy(k.plan);
  const opipe_binding_io input = kit_ids(ids, shape);
  OPI_ASSERT_OK_FATAL(kit_submit(&k, &input, &request), &k.err);
  OPI_ASSERT_OK(k.api->request_wait(request, UINT64_C(30000000000), &k.err), &k.err);
  OPI_ASSERT_OK(k.api->request_output(request, 0, &out, &k.err), &k.err);
  OPI_ASSERT_INT(out.shape[1], 8);
  k.api->request_release(request);
  k.api->session_close(k.session);
}

static void test_two_contexts_do_not_meet(void) {
  host_kit a, b;
  opipe_session *session = NULL;
  OPI_ASSERT_OK_FATAL(kit_plan(&a, NULL, GPT, 1, 8, NULL), &a.err);
  OPI_ASSERT_OK_FATAL(kit_plan(&b, NULL, GPT, 1, 8, NULL), &b.err);
  OPI_ASSERT_ERROR(a.api->session_open(a.context, b.plan, NULL, &session, &a.err), OPIPE_E_INVALID,
                   &a.err, "another context");
  OPI_ASSERT_OK(kit_open(&a, NULL), &a.err);
  OPI_ASSERT_OK(kit_open(&b, NULL), &b.err);
  kit_close(&a);
  const opipe_binding_io input = kit_ids(ids, shape);
  opipe_request *request = NULL;
  OPI_ASSERT_OK_FATAL(kit_submit(&b, &input, &request), &b.err);
  OPI_ASSERT_OK(b.api->request_wait(request, UINT64_C(30000000000), &b.err), &b.err);
  b.api->request_release(request);
  kit_close(&b);
}

static void test_a_forked_child_is_told(void) {
  host_kit k;
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, GPT, 1, 8, NULL), &k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&k, NULL), &k.err);
  const pid_t child = fork();
  OPI_ASSERT_FATAL(child >= 0);
  if (child == 0) {
    opipe_plan_info info = {.struct_size = sizeof info};
    opipe_request *request = NULL;
    const opipe_binding_io input = kit_ids(ids, shape);
    int told = k.api->plan_info(k.plan, &info, &k.err) == OPIPE_E_STATE &&
               strstr(k.err.message, "another process") != NULL;
    told = told && kit_submit(&k, &input, &request) == OPIPE_E_STATE &&
           strstr(k.err.message, "another process") != NULL;
    k.api->session_close(k.session);
    k.api->plan_destroy(k.plan);
    _exit(told ? 0 : 1);
  }
  int status = 0;
  OPI_ASSERT_INT(waitpid(child, &status, 0), child);
  OPI_ASSERT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  const opipe_binding_io input = kit_ids(ids, shape);
  opipe_request *request = NULL;
  OPI_ASSERT_OK_FATAL(kit_submit(&k, &input, &request), &k.err); /* the parent goes on */
  OPI_ASSERT_OK(k.api->request_wait(request, UINT64_C(30000000000), &k.err), &k.err);
  k.api->request_release(request);
  kit_close(&k);
}

/* ---- memory ---- */

static uint64_t total_of(host_kit *k, uint32_t n_ranks, bool measured) {
  uint64_t total = 0;
  for (uint32_t r = 0; r < n_ranks; ++r) {
    opipe_memory_info info = {.struct_size = sizeof info};
    const opipe_status status = measured ? k->api->session_memory(k->session, r, &info, &k->err)
                                         : k->api->plan_memory(k->plan, r, &info, &k->err);
    OPI_ASSERT_OK_FATAL(status, &k->err);
    total += info.total_bytes;
  }
  return total;
}

static void test_predicted_memory_is_measured(void) {
  static const char *const models[] = {"tests/data/gpt_8block/model.onnx",
                                       "tests/data/llama_8block/model.onnx",
                                       "tests/data/encoder/model.onnx"};
  for (size_t m = 0; m < sizeof models / sizeof models[0]; ++m) {
    for (uint32_t stages = 1; stages <= 4; ++stages) {
      host_kit k;
      const opipe_plan_params params = {
          .struct_size = sizeof params, .n_stages = stages, .n_microbatches = stages == 3 ? 2 : 1};
      OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, models[m], 3, 8, &params), &k.err);
      OPI_ASSERT_OK_FATAL(kit_open(&k, NULL), &k.err);
      for (uint32_t r = 0; r < stages; ++r) {
        opipe_memory_info p = {.struct_size = sizeof p}, q = p;
        OPI_ASSERT_OK(k.api->plan_memory(k.plan, r, &p, &k.err), &k.err);
        OPI_ASSERT_OK(k.api->session_memory(k.session, r, &q, &k.err), &k.err);
        if (p.params_bytes != q.params_bytes || p.boundary_bytes != q.boundary_bytes ||
            p.total_bytes != q.total_bytes ||
            p.activation_bytes + p.workspace_bytes != q.activation_bytes + q.workspace_bytes) {
          OPI_FAIL(
              "%s, %u stages, rank %u: predicted %llu + %llu + %llu + %llu = %llu, measured %llu + "
              "%llu + %llu + %llu = %llu",
              models[m], stages, r, (unsigned long long)p.params_bytes,
              (unsigned long long)p.activation_bytes, (unsigned long long)p.workspace_bytes,
              (unsigned long long)p.boundary_bytes, (unsigned long long)p.total_bytes,
              (unsigned long long)q.params_bytes, (unsigned long long)q.activation_bytes,
              (unsigned long long)q.workspace_bytes, (unsigned long long)q.boundary_bytes,
              (unsigned long long)q.total_bytes);
        }
      }
      kit_close(&k);
    }
  }
}

/* A cap of exactly the prediction holds, one alignment unit less is refused, naming the rank and by
 * how much. */
static void test_caps_are_exact(void) {
  host_kit k;
  OPI_ASSERT_OK_FATAL(
      kit_plan(&k, NULL, GPT, 1, 8,
               &(opipe_plan_params){.struct_size = sizeof(opipe_plan_params), .n_stages = 1}),
      &k.err);
  opipe_memory_info info = {.struct_size = sizeof info};
  OPI_ASSERT_OK_FATAL(k.api->plan_memory(k.plan, 0, &info, &k.err), &k.err);
  kit_close(&k);
  opipe_plan_params exact = {
      .struct_size = sizeof exact, .n_stages = 1, .memory_bytes = info.total_bytes};
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, GPT, 1, 8, &exact), &k.err);
  OPI_ASSERT_OK(kit_open(&k, NULL), &k.err);
  kit_close(&k);
  exact.memory_bytes = info.total_bytes - 64;
  OPI_ASSERT_ERROR(kit_plan(&k, NULL, GPT, 1, 8, &exact), OPIPE_E_LIMIT, &k.err,
                   "exceeds its cap of");
  kit_close(&k);
}

static void test_a_budget_is_shared_by_sessions(void) {
  host_kit k;
  opipe_session *second = NULL;
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, GPT, 1, 8, NULL), &k.err);
  const uint64_t need = total_of(&k, 2, false);
  kit_close(&k);
  const opipe_device_budget budget = {.kind = "cpu", .memory_bytes = need + need / 2};
  const opipe_context_params params = {.struct_size = sizeof params,
                                       .budgets = &budget,
                                       .n_budgets = 1,
                                       .budgets_stride = sizeof(opipe_device_budget)};
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &params, GPT, 1, 8, NULL), &k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&k, NULL), &k.err);
  OPI_ASSERT_INT(total_of(&k, 2, true), need);
  OPI_ASSERT_INT(k.api->session_open(k.context, k.plan, NULL, &second, &k.err), OPIPE_E_LIMIT);
  k.api->session_close(k.session);
  k.session = NULL;
  OPI_ASSERT_OK(k.api->session_open(k.context, k.plan, NULL, &second, &k.err), &k.err);
  k.api->session_close(second);
  kit_close(&k);
}

/* Whatever the plan's devices are: such a cap would hold nothing back. */
static void test_a_budget_of_no_device(void) {
  static const struct {
    opipe_device_budget budget;
    const char *words;
  } rows[] = {
      {{.kind = "cpu", .index = 7, .memory_bytes = 1 << 30},
       "session_open: the context's budget of 1073741824 bytes is for device cpu:7, backend 'cpu' "
       "has 1 (numbers from 0)"},
      {{.kind = "emulated", .index = 32, .memory_bytes = 64},
       "emulated:32, backend 'emulated' has 32"},
      {{.kind = "cppu", .memory_bytes = 64},
       "session_open: the context's budget of 64 bytes is for device cppu:0: there is no backend "
       "'cppu'"}};
  for (size_t i = 0; i < OPI_COUNT(rows); ++i) {
    host_kit k;
    const opipe_context_params params = {.struct_size = sizeof params,
                                         .budgets = &rows[i].budget,
                                         .n_budgets = 1,
                                         .budgets_stride = sizeof(opipe_device_budget)};
    OPI_ASSERT_OK_FATAL(kit_plan(&k, &params, GPT, 1, 8, NULL), &k.err);
    OPI_ASSERT_ERROR(kit_open(&k, NULL), OPIPE_E_NOTFOUND, &k.err, rows[i].words);
    kit_close(&k);
  }
}

/* Budgets are of devices that exist, whether or not a plan has them. */
static void test_a_budget_of_another_device(void) {
  host_kit k;
  const opipe_device_budget budgets[] = {{.kind = "emulated", .index = 31, .memory_bytes = 64},
                                         {.kind = "cpu", .memory_bytes = 1 << 30}};
  const opipe_context_params params = {.struct_size = sizeof params,
                                       .budgets = budgets,
                                       .n_budgets = OPI_COUNT(budgets),
                                       .budgets_stride = sizeof(opipe_device_budget)};
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &params, GPT, 1, 8, NULL), &k.err);
  OPI_ASSERT_OK(kit_open(&k, NULL), &k.err);
  kit_close(&k);
}

static opipe_status whole_life(opi_test_memory *memory, void *arg) {
  host_kit k;
  const opipe_context_params params = {
      .struct_size = sizeof params, .log_level = OPIPE_LOG_ERROR, .allocator = &memory->allocator};
  opipe_status status = kit_plan(&k, &params, arg, 1, 4, NULL);
  if (status == OPIPE_OK)
    status = kit_open(&k, NULL);
  kit_close(&k);
  return status;
}

/* Thousands of allocations lie between a file and an open session: a stride keeps the time short,
 * another one each run of the loop. */
static void test_every_failing_allocation_is_survived(void) {
  uint64_t nth = 1, runs = 0;
  for (bool failed = true; failed; nth += 1 + nth / 24, ++runs) {
    opi_test_memory memory;
    opi_test_memory_init(&memory);
    memory.fail_at = nth;
    const opipe_status status = whole_life(&memory, (void *)(uintptr_t)GPT);
    failed = memory.n_failed != 0;
    if (failed && status != OPIPE_E_NOMEM && status != OPIPE_OK)
      OPI_FAIL("allocation %llu fails: status %d", (unsigned long long)nth, (int)status);
    if (!failed)
      OPI_ASSERT_INT(status, OPIPE_OK);
    OPI_ASSERT(opi_test_memory_end(&memory));
  }
  OPI_ASSERT(runs > 50);
}

OPI_TEST_MAIN("host table", OPI_TEST(test_versions),
              OPI_TEST(test_null_and_foreign_handles_are_errors),
              OPI_TEST(test_wrong_tensors_name_both_sides),
              OPI_TEST(test_a_session_for_inference_does_not_train),
              OPI_TEST(test_lifetimes_in_any_order), OPI_TEST(test_two_contexts_do_not_meet),
              OPI_TEST(test_a_forked_child_is_told), OPI_TEST(test_predicted_memory_is_measured),
              OPI_TEST(test_caps_are_exact), OPI_TEST(test_a_budget_is_shared_by_sessions),
              OPI_TEST(test_a_budget_of_no_device), OPI_TEST(test_a_budget_of_another_device),
              OPI_TEST(test_every_failing_allocation_is_survived))
