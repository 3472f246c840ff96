/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the tests of the host's table: from a model file to an open session, and one request on
 * token ids. */
#ifndef TESTS_ABI_HOST_KIT_H
#define TESTS_ABI_HOST_KIT_H

#include "opipe/host.h"
#include "tests/support/support.h"

/* 0: the build has no partition/study. */
#ifndef OPI_TEST_STUDY
#define OPI_TEST_STUDY 1
#endif
/* Ends a test of its slots where they are not there, which test_study.c looks at. */
#define KIT_NEEDS_STUDY()          \
  do {                             \
    if (!OPI_TEST_STUDY) {         \
      OPI_ASSERT(!OPI_TEST_STUDY); \
      return;                      \
    }                              \
  } while (0)

typedef struct host_kit {
  const opipe_api *api;
  opipe_context *context;
  opipe_model *model, *bound;
  opipe_plan *plan;
  opipe_session *session;
  opipe_error err;
} host_kit;

static inline opipe_status kit_load(host_kit *k, const opipe_context_params *context,
                                    const char *path) {
  const opipe_load_params load = {.struct_size = sizeof load, .path = path};
  memset(k, 0, sizeof(*k));
  k->err = (opipe_error)OPIPE_ERROR_INIT;
  opipe_status status = opipe_get_api(OPIPE_VIEW, &k->api, &k->err);
  if (status == OPIPE_OK)
    status = k->api->context_create(context, &k->context, &k->err);
  if (status == OPIPE_OK)
    status = k->api->model_load(k->context, &load, &k->model, &k->err);
  return status;
}

/* Loads, binds by `dims` [n_dims] (flags: OPIPE_BIND_*) and plans. */
static inline opipe_status kit_plan_dims(host_kit *k, const opipe_context_params *context,
                                         const char *file, const opipe_dim *dims, uint32_t n_dims,
                                         uint32_t flags, const opipe_plan_params *params) {
  const opipe_bind_options bind = {.struct_size = sizeof bind,
                                   .flags = flags,
                                   .dims = dims,
                                   .n_dims = n_dims,
                                   .dims_stride = sizeof(opipe_dim)};
  opipe_status status = kit_load(k, context, opi_test_source(file));
  if (status == OPIPE_OK)
    status = k->api->model_bind(k->model, &bind, &k->bound, &k->err);
  if (status == OPIPE_OK)
    status = k->api->plan_make(k->bound, params, &k->plan, &k->err);
  return status;
}

/* By batch and sequence, which the project's own GPT and LLaMA have. */
static inline opipe_status kit_plan_bound(host_kit *k, const opipe_context_params *context,
                                          const char *file, int64_t batch, int64_t seq,
                                          uint32_t flags, const opipe_plan_params *params) {
  const opipe_dim dims[] = {{"batch", batch}, {"seq", seq}};
  return kit_plan_dims(k, context, file, dims, 2, flags, params);
}

/* The same for inference; NULL params: two stages. */
static inline opipe_status kit_plan(host_kit *k, const opipe_context_params *context,
                                    const char *file, int64_t batch, int64_t seq,
                                    const opipe_plan_params *params) {
  const opipe_plan_params two = {.struct_size = sizeof two, .n_stages = 2};
  return kit_plan_bound(k, context, file, batch, seq, OPIPE_BIND_DEFAULTS,
                        params == NULL ? &two : params);
}

/* The same for training, as params->train says. */
static inline opipe_status kit_plan_training(host_kit *k, const char *file, int64_t batch,
                                             int64_t seq, const opipe_plan_params *params) {
  return kit_plan_bound(k, NULL, file, batch, seq, OPIPE_BIND_DEFAULTS | OPIPE_BIND_TRAIN, params);
}

static inline opipe_status kit_open(host_kit *k, const opipe_session_params *params) {
  return k->api->session_open(k->context, k->plan, params, &k->session, &k->err);
}

static inline void kit_close(host_kit *k) {
  if (k->api == NULL)
    return;
  k->api->session_close(k->session);
  k->api->plan_destroy(k->plan);
  k->api->model_destroy(k->bound);
  k->api->model_destroy(k->model);
  k->api->context_destroy(k->context);
}

/* A profile, and what a planner makes of it. */
static inline void kit_strategy(host_kit *k, opipe_profile **out_profile,
                                opipe_strategy **out_strategy) {
  static const char cluster[] =
      "{\"format\": \"onnx-pipe cluster 1\", \"devices\": [{\"kind\": \"x\", \"alignment\": 64, "
      "\"flops\": 1e12, "
      "\"count\": 2}]}";
  opipe_strategy_params params = opipe_strategy_params_init();
  const opipe_profile_params of = {
      .struct_size = sizeof of, .cluster = cluster, .cluster_bytes = sizeof cluster - 1};
  params.planner = "megatron";
  params.batch = 2;
  params.cluster = cluster;
  params.cluster_bytes = sizeof cluster - 1;
  OPI_ASSERT_OK_FATAL(
      k->api->profile_of_arch(k->context, "gpt:layers=2,hidden=8,heads=2,vocab=16,seq=4", &of,
                              out_profile, &k->err),
      &k->err);
  OPI_ASSERT_OK_FATAL(k->api->strategy_make(*out_profile, &params, out_strategy, &k->err), &k->err);
}

/* input_ids [batch, seq] of int64. */
static inline opipe_binding_io kit_ids(const int64_t *ids, const int64_t *shape) {
  opipe_binding_io io = {.name = "input_ids",
                         .tensor = {.data = (void *)(uintptr_t)ids,
                                    .device_type = OPIPE_DL_CPU,
                                    .rank = 2,
                                    .dtype = {OPIPE_DL_INT, 64, 1},
                                    .shape = shape}};
  return io;
}

static inline opipe_status kit_submit(host_kit *k, const opipe_binding_io *input,
                                      opipe_request **out) {
  const opipe_submit_params submit = {.struct_size = sizeof submit,
                                      .n_inputs = 1,
                                      .io_stride = sizeof(opipe_binding_io),
                                      .inputs = input};
  return k->api->session_submit(k->session, &submit, out, &k->err);
}

/* A plan's text without the hash, as it must be when decisions are changed by hand. */
static inline void kit_take_out_hash(char *plan, size_t *io_n) {
  static const char member[] = "\n  \"hash\": \"";
  char *at = strstr(plan, member);
  if (at == NULL)
    return;
  const char *end = strchr(at + 1, '\n');
  memmove(at, end, *io_n - (size_t)(end - plan) + 1);
  *io_n -= (size_t)(end - at);
}

#endif /* TESTS_ABI_HOST_KIT_H */
