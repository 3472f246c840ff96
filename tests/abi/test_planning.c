/* SPDX-License-Identifier: Apache-2.0 */
/* Profiles, planners and their strategies through the host's table: what they say of themselves,
 * the same question the same bytes, a profile that is read again, a strategy that becomes a plan
 * and is played, objects destroyed in any order, and refusals by name.
 * ctest: timeout=120
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/abi/host_kit.h"

#define CLUSTER "partition/study/cluster/ready/config-a.json"
#define ARCH "gpt:layers=8,hidden=256,heads=4,vocab=512,seq=64"
static const char *const GPT = "tests/data/gpt_8block/model.onnx";
static const uint32_t SAMPLES[] = {1, 2, 4};

static void open_context(host_kit *k, const opipe_context_params *params) {
  memset(k, 0, sizeof *k);
  k->err.struct_size = sizeof k->err;
  OPI_ASSERT_OK_FATAL(opipe_get_api(OPIPE_VIEW, &k->api, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->context_create(params, &k->context, &k->err), &k->err);
}

static opi_test_text cluster_text(host_kit *k, const char *spec) {
  opi_test_text text = {NULL, 0};
  char path[4200];
  (void)snprintf(path, sizeof path, "%s:%s", opi_test_source(CLUSTER), spec);
  OPI_ASSERT_OK_FATAL(k->api->cluster_find(k->context, path, opi_test_take, &text, &k->err),
                      &k->err);
  return text;
}

static opipe_status profile_arch(host_kit *k, const opi_test_text *cluster, const char *arch,
                                 opipe_profile **out) {
  const opipe_profile_params params = {.struct_size = sizeof params,
                                       .samples = SAMPLES,
                                       .n_samples = 3,
                                       .cluster = cluster->data,
                                       .cluster_bytes = cluster->n};
  return k->api->profile_of_arch(k->context, arch, &params, out, &k->err);
}

static opipe_strategy_params question(const opi_test_text *cluster, const char *planner) {
  return (opipe_strategy_params){.struct_size = sizeof(opipe_strategy_params),
                                 .planner = planner,
                                 .cluster = cluster->data,
                                 .cluster_bytes = cluster->n,
                                 .batch = 32,
                                 .samples = 4};
}

static opi_test_text describe(host_kit *k, opipe_strategy *strategy) {
  opi_test_text text = {NULL, 0};
  OPI_ASSERT_OK_FATAL(
      k->api->strategy_describe(strategy, OPIPE_FORMAT_JSON, opi_test_take, &text, &k->err),
      &k->err);
  return text;
}

/* Layers [first, end) of its stages follow each other and are all of the profile's. */
static void check_stages(host_kit *k, opipe_strategy *strategy, uint32_t n_stages,
                         uint32_t n_layers) {
  uint32_t next = 0;
  for (uint32_t s = 0; s < n_stages; ++s) {
    opipe_strategy_stage_info stage = {.struct_size = sizeof stage};
    OPI_ASSERT_OK(k->api->strategy_stage(strategy, s, &stage, &k->err), &k->err);
    OPI_ASSERT_INT(stage.first, next);
    OPI_ASSERT(stage.end > stage.first && stage.n_devices > 0 && stage.devices != NULL);
    OPI_ASSERT(stage.forward_ns > 0 && stage.memory_bytes > 0);
    next = stage.end;
  }
  OPI_ASSERT_INT(next, n_layers);
  opipe_strategy_stage_info past = {.struct_size = sizeof past};
  OPI_ASSERT_ERROR(k->api->strategy_stage(strategy, n_stages, &past, &k->err), OPIPE_E_NOTFOUND,
                   &k->err, "stage");
}

static void test_every_planner(void) {
  static const char *const planners[] = {"dapple", "pipedream", "2bw", "chimera", "megatron"};
  host_kit k;
  open_context(&k, NULL);
  opi_test_text cluster = cluster_text(&k, "nodes=2");
  opipe_profile *profile = NULL;
  opipe_profile_info about = {.struct_size = sizeof about};
  OPI_ASSERT_OK_FATAL(profile_arch(&k, &cluster, ARCH, &profile), &k.err);
  OPI_ASSERT_OK(k.api->profile_info(profile, &about, &k.err), &k.err);
  OPI_ASSERT_INT(about.n_sizes, 3);
  OPI_ASSERT(about.n_layers >= 8);
  for (size_t i = 0; i < sizeof planners / sizeof planners[0]; ++i) {
    const opipe_strategy_params ask = question(&cluster, planners[i]);
    opipe_strategy *strategy = NULL, *again = NULL;
    opipe_strategy_info info = {.struct_size = sizeof info};
    OPI_ASSERT_OK_FATAL(k.api->strategy_make(profile, &ask, &strategy, &k.err), &k.err);
    OPI_ASSERT_OK_FATAL(k.api->strategy_make(profile, &ask, &again, &k.err), &k.err);
    OPI_ASSERT_OK(k.api->strategy_info(strategy, &info, &k.err), &k.err);
    OPI_ASSERT_STR(info.planner, planners[i]);
    OPI_ASSERT(info.step_ns > 0 && info.memory_bytes > 0);
    /* pipedream's order is for simulation alone */
    if (strcmp(planners[i], "pipedream") == 0)
      OPI_ASSERT((info.flags & OPIPE_STRATEGY_EXECUTABLE) == 0);
    check_stages(&k, strategy, info.n_stages, about.n_layers);
    opi_test_text a = describe(&k, strategy), b = describe(&k, again);
    OPI_ASSERT_INT(a.n, b.n);
    OPI_ASSERT(a.n > 0 && a.n == b.n && memcmp(a.data, b.data, a.n) == 0);
    free(a.data);
    free(b.data);
    k.api->strategy_destroy(again);
    k.api->strategy_destroy(strategy);
  }
  k.api->profile_destroy(profile);
  free(cluster.data);
  kit_close(&k);
}

/* A written profile is read again, to the same bytes; the strategy outlives the profile. */
static void test_read_again(void) {
  host_kit k;
  open_context(&k, NULL);
  opi_test_text cluster = cluster_text(&k, "nodes=2");
  opi_test_text first = {NULL, 0}, second = {NULL, 0};
  opipe_profile *profile = NULL, *read = NULL;
  OPI_ASSERT_OK_FATAL(profile_arch(&k, &cluster, ARCH, &profile), &k.err);
  OPI_ASSERT_OK(k.api->profile_describe(profile, OPIPE_FORMAT_JSON, opi_test_take, &first, &k.err),
                &k.err);
  OPI_ASSERT_OK_FATAL(k.api->profile_read(k.context, first.data, first.n, NULL, 0, &read, &k.err),
                      &k.err);
  OPI_ASSERT_OK(k.api->profile_describe(read, OPIPE_FORMAT_JSON, opi_test_take, &second, &k.err),
                &k.err);
  OPI_ASSERT(first.n == second.n && memcmp(first.data, second.data, first.n) == 0);
  const opipe_strategy_params ask = question(&cluster, "megatron");
  opipe_strategy *strategy = NULL;
  OPI_ASSERT_OK_FATAL(k.api->strategy_make(read, &ask, &strategy, &k.err), &k.err);
  k.api->profile_destroy(read);
  const opipe_play_params play = {
      .struct_size = sizeof play, .cluster = cluster.data, .cluster_bytes = cluster.n};
  opi_test_text played = {NULL, 0};
  OPI_ASSERT_OK(
      k.api->strategy_play(strategy, &play, OPIPE_PLAY_JSON, opi_test_take, &played, &k.err),
      &k.err);
  OPI_ASSERT(played.data != NULL && strstr(played.data, "makespan") != NULL);
  first.data[first.n / 2] = '\0';
  OPI_ASSERT_INT(k.api->profile_read(k.context, first.data, first.n / 2, NULL, 0, &read, &k.err),
                 OPIPE_E_INVALID);
  k.api->strategy_destroy(strategy);
  k.api->profile_destroy(profile);
  free(first.data);
  free(second.data);
  free(played.data);
  free(cluster.data);
  kit_close(&k);
}

static void test_refusals(void) {
  host_kit k;
  open_context(&k, NULL);
  opi_test_text cluster = cluster_text(&k, "nodes=2");
  opipe_profile *profile = NULL;
  opipe_strategy *strategy = NULL;
  OPI_ASSERT_ERROR(
      profile_arch(&k, &cluster, "gpt:layers=0,hidden=8,heads=1,vocab=8,seq=8", &profile),
      OPIPE_E_INVALID, &k.err, "layers");
  OPI_ASSERT_ERROR(profile_arch(&k, &cluster, "gtp:layers=1", &profile), OPIPE_E_INVALID, &k.err,
                   "gtp");
  OPI_ASSERT_OK_FATAL(profile_arch(&k, &cluster, ARCH, &profile), &k.err);
  opipe_strategy_params ask = question(&cluster, "nobody");
  OPI_ASSERT_ERROR(k.api->strategy_make(profile, &ask, &strategy, &k.err), OPIPE_E_NOTFOUND, &k.err,
                   "megatron");
  ask = question(&cluster, "megatron");
  ask.n_devices = 1000;
  OPI_ASSERT_ERROR(k.api->strategy_make(profile, &ask, &strategy, &k.err), OPIPE_E_INVALID, &k.err,
                   "1000");
  ask = question(&cluster, "2bw");
  ask.memory_bytes = 1;
  ask.state_bytes = 1e9;
  OPI_ASSERT(k.api->strategy_make(profile, &ask, &strategy, &k.err) < 0);
  OPI_ASSERT(strategy == NULL && k.err.message[0] != '\0');
  k.api->profile_destroy(profile);
  free(cluster.data);
  kit_close(&k);
}

/* A model's own layers; the strategy is a plan for it, with as many stages. */
static void test_a_plan(void) {
  host_kit k;
  const opipe_train_options train = {.struct_size = sizeof train,
                                     .loss = OPIPE_LOSS_CROSS_ENTROPY,
                                     .output = "logits",
                                     .labels = "labels",
                                     .ignore = -100,
                                     .shift = 1,
                                     .optimizer = OPIPE_OPTIMIZER_SGD,
                                     .lr = 0.01};
  const opipe_plan_params params = {.struct_size = sizeof params, .train = &train};
  OPI_ASSERT_OK_FATAL(kit_plan_training(&k, GPT, 8, 8, &params), &k.err);
  opi_test_text cluster = cluster_text(&k, "nodes=1");
  const opipe_profile_params how = {.struct_size = sizeof how,
                                    .train = &train,
                                    .samples = SAMPLES,
                                    .n_samples = 3,
                                    .cluster = cluster.data,
                                    .cluster_bytes = cluster.n};
  opipe_profile *profile = NULL;
  opipe_strategy *strategy = NULL;
  opipe_plan *plan = NULL;
  opipe_strategy_info info = {.struct_size = sizeof info};
  opipe_plan_info made = {.struct_size = sizeof made};
  OPI_ASSERT_OK_FATAL(k.api->profile_of_model(k.bound, &how, &profile, &k.err), &k.err);
  opipe_strategy_params ask = question(&cluster, "chimera");
  ask.batch = 8;
  ask.n_devices = 2;
  OPI_ASSERT_OK_FATAL(k.api->strategy_make(profile, &ask, &strategy, &k.err), &k.err);
  k.api->profile_destroy(profile);
  OPI_ASSERT_OK(k.api->strategy_info(strategy, &info, &k.err), &k.err);
  OPI_ASSERT((info.flags & OPIPE_STRATEGY_EXECUTABLE) != 0);
  OPI_ASSERT_OK_FATAL(k.api->strategy_plan(strategy, k.bound, &params, &plan, &k.err), &k.err);
  k.api->strategy_destroy(strategy);
  OPI_ASSERT_OK(k.api->plan_info(plan, &made, &k.err), &k.err);
  OPI_ASSERT_INT(made.n_stages, info.n_stages);
  OPI_ASSERT(made.flops > 0);
  k.api->plan_destroy(plan);
  free(cluster.data);
  kit_close(&k);
}

OPI_TEST_MAIN("planning", OPI_TEST(test_every_planner), OPI_TEST(test_read_again),
              OPI_TEST(test_refusals), OPI_TEST(test_a_plan))
