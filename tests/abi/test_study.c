/* SPDX-License-Identifier: Apache-2.0 */
/* The slots of partition/study: in a build without it (OPIPE_STUDY=OFF) the table is as long, and
 * each answers UNSUPPORTED, "built without the study"; in any other build none says so. A run works
 * in both. */
#include "tests/abi/host_kit.h"

#define GPT "tests/data/gpt_8block/model.onnx"
#define CLUSTER \
  "{\"format\": \"onnx-pipe cluster 1\", \"devices\": [{\"kind\": \"x\", \"alignment\": 64}]}"
enum { BATCH = 2, SEQ = 8 };

static opipe_status drop(void *ctx, const void *data, size_t n_bytes) {
  (void)ctx, (void)data, (void)n_bytes;
  return OPIPE_OK;
}

static void expect(host_kit *k, const char *call, opipe_status status) {
  const bool says = status < 0 && strstr(k->err.message, "built without the study") != NULL;
  if (says == (OPI_TEST_STUDY != 0) || (says && status != OPIPE_E_UNSUPPORTED))
    OPI_FAIL("%s: status %d, '%s'", call, status, k->err.message);
  k->err.message[0] = '\0';
}

static void test_every_slot_says_whether_it_is_there(void) {
  const opipe_plan_params params = {.struct_size = sizeof params, .n_stages = 2};
  const opipe_plan_params improved = {
      .struct_size = sizeof improved, .n_stages = 2, .flags = OPIPE_PLAN_IMPROVE};
  const opipe_plan_params searched = {
      .struct_size = sizeof searched, .n_stages = 2, .schedule = "search:moves=5"};
  const opipe_plan_params described = {.struct_size = sizeof described,
                                       .n_stages = 1,
                                       .cluster = CLUSTER,
                                       .cluster_bytes = sizeof CLUSTER - 1};
  const opipe_order_params order = {
      .struct_size = sizeof order, .schedule = "search", .n_ranks = 2, .n_microbatches = 2};
  const opipe_order_params gems = {
      .struct_size = sizeof gems, .schedule = "gems", .n_ranks = 2, .n_microbatches = 2};
  const opipe_order_params plain = {
      .struct_size = sizeof plain, .schedule = "1f1b", .n_ranks = 2, .n_microbatches = 2};
  const opipe_play_params play = {.struct_size = sizeof play};
  host_kit k;
  opipe_order *made = NULL, *own = NULL;
  opipe_plan *plan = NULL;
  opipe_profile *profile = NULL;
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, GPT, BATCH, SEQ, &params), &k.err);
  const opipe_api *api = k.api;
  OPI_ASSERT(api->struct_size == sizeof *api);
  OPI_ASSERT_OK_FATAL(api->order_make(k.context, &plain, &own, &k.err), &k.err);
  OPI_ASSERT_OK(api->order_simulate(own, NULL, OPIPE_FORMAT_JSON, drop, NULL, &k.err), &k.err);
  OPI_ASSERT_OK(api->order_check(own, 0, &k.err), &k.err);
  expect(&k, "order_make", api->order_make(k.context, &order, &made, &k.err));
  api->order_destroy(made);
  made = NULL;
  expect(&k, "order_make", api->order_make(k.context, &gems, &made, &k.err));
  api->order_destroy(made);
  expect(&k, "order_simulate, HTML",
         api->order_simulate(own, NULL, OPIPE_FORMAT_HTML, drop, NULL, &k.err));
  expect(&k, "order_play", api->order_play(own, NULL, &play, 0, drop, NULL, &k.err));
  expect(&k, "plan_make, improved", api->plan_make(k.bound, &improved, &plan, &k.err));
  api->plan_destroy(plan);
  plan = NULL;
  expect(&k, "plan_make, searched", api->plan_make(k.bound, &searched, &plan, &k.err));
  api->plan_destroy(plan);
  plan = NULL;
  expect(&k, "plan_make, a cluster", api->plan_make(k.bound, &described, &plan, &k.err));
  api->plan_destroy(plan);
  expect(&k, "plan_play", api->plan_play(k.plan, &play, 0, drop, NULL, &k.err));
  expect(&k, "plan_file_play",
         api->plan_file_play(k.context, "{}", 2, &play, 0, drop, NULL, &k.err));
  expect(&k, "cluster_find", api->cluster_find(k.context, "nowhere", drop, NULL, &k.err));
  expect(&k, "profile_read", api->profile_read(k.context, "x", 1, NULL, 0, &profile, &k.err));
  expect(&k, "profile_of_arch", api->profile_of_arch(k.context, "gpt", NULL, &profile, &k.err));
  expect(&k, "profile_of_model", api->profile_of_model(k.bound, NULL, &profile, &k.err));
  api->profile_destroy(profile);
  expect(&k, "plans_compare",
         api->plans_compare(k.context, "{}", 2, NULL, "{}", 2, NULL, 0, drop, NULL, &k.err));
  api->order_destroy(own);
  kit_close(&k);
}

OPI_TEST_MAIN("study", OPI_TEST(test_every_slot_says_whether_it_is_there))
