/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of a plan by measuring, as a host asks for them: what it is told, what it may not do
 * meanwhile, and which sessions the new plan opens. On the doubles. ctest: timeout=120 */
#include "tests/abi/host_kit.h"
#include "tests/plugins/backend-cuda/cuda_test.h"

typedef struct listener {
  host_kit *k;
  uint32_t n;
} listener;

static void hear(void *ctx, const opipe_tuned *tuned) {
  listener *l = ctx;
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_plan_info info = {.struct_size = sizeof info};
  ++l->n;
  OPI_ASSERT(OPIPE_HAS(tuned, opipe_tuned, choice));
  OPI_ASSERT(strncmp(tuned->what, "product m=", 10) == 0);
  OPI_ASSERT(strncmp(tuned->choice, "algorithm=", 10) == 0);
  OPI_ASSERT(tuned->n_tried > tuned->n_dropped && tuned->n_tried <= 3);
  OPI_ASSERT(tuned->ns > 0 && tuned->ns <= tuned->own_ns);
  OPI_ASSERT_ERROR(l->k->api->plan_info(l->k->plan, &info, &err), OPIPE_E_STATE, &err,
                   "inside the progress of strategy_make or plan_tune");
}

static void make_plan(host_kit *k) {
  static const opipe_device_choice devices[] = {{.kind = "cuda"}, {.kind = "cuda"}};
  const opipe_plan_params params = {.struct_size = sizeof params,
                                    .n_stages = 2,
                                    .devices = devices,
                                    .n_devices = 2,
                                    .devices_stride = sizeof devices[0]};
  OPI_ASSERT_OK_FATAL(kit_plan(k, NULL, "tests/data/gpt_8block/model.onnx", 2, 8, &params),
                      &k->err);
}

static void test_a_host_is_told_and_kept_out(void) {
  static const opipe_session_params needs = {.struct_size = sizeof needs,
                                             .flags = OPIPE_SESSION_TUNED};
  host_kit k;
  listener l = {.k = &k};
  opipe_plan *tuned = NULL, *own = NULL;
  if (dlopen(opi_test_build("tests/cuda/libcuda.so.1"), RTLD_NOW | RTLD_LOCAL) == NULL)
    OPI_SKIP("%s", CT_WHY);
  make_plan(&k);
  opipe_tuning_params params = {.struct_size = sizeof params,
                                .kind = "cuda",
                                .n_candidates = 3,
                                .n_runs = 2,
                                .measured = hear,
                                .measured_ctx = &l};
  OPI_ASSERT_OK_FATAL(k.api->plan_tune(k.plan, &params, &tuned, &k.err), &k.err);
  OPI_ASSERT(l.n >= 2);
  OPI_ASSERT_ERROR(kit_open(&k, &needs), OPIPE_E_UNSUPPORTED, &k.err,
                   "the plan has no table of kernels");
  own = k.plan;
  k.plan = tuned;
  OPI_ASSERT_OK(kit_open(&k, &needs), &k.err);
  k.api->plan_destroy(own);
  kit_close(&k);
}

OPI_TEST_MAIN("cuda tuned plans", OPI_TEST(test_a_host_is_told_and_kept_out))
