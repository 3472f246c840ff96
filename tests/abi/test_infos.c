/* SPDX-License-Identifier: Apache-2.0 */
/* Structs that the library fills in: as far as struct_size says, and not a byte further. And
 * choices and flags among plain arguments: unknown ones are refused by name.
 */
#include "tests/abi/host_kit.h"

static const char *const GPT = "tests/data/gpt_8block/model.onnx";
static int64_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8}, ids_shape[2] = {1, 8};

typedef struct world {
  host_kit k, t; /* for inference, for training */
} world;

static opipe_status drop(void *ctx, const void *data, size_t n_bytes) {
  (void)ctx;
  (void)data;
  (void)n_bytes;
  return OPIPE_OK;
}

static void open_world(world *w) {
  const opipe_train_options train = {.struct_size = sizeof train,
                                     .loss = OPIPE_LOSS_CROSS_ENTROPY,
                                     .labels = "labels",
                                     .lr = 0.01};
  const opipe_plan_params params = {.struct_size = sizeof params, .train = &train};
  memset(w, 0, sizeof *w);
  OPI_ASSERT_OK_FATAL(kit_plan(&w->k, NULL, GPT, 1, 8, NULL), &w->k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&w->k, NULL), &w->k.err);
  OPI_ASSERT_OK_FATAL(kit_plan_training(&w->t, GPT, 1, 8, &params), &w->t.err);
  OPI_ASSERT_OK_FATAL(kit_open(&w->t, NULL), &w->t.err);
}

static void close_world(world *w) {
  kit_close(&w->t);
  kit_close(&w->k);
}

static void test_unknown_choices_among_arguments(void) {
  world w;
  opipe_order *order = NULL, *made = NULL;
  static const opipe_order_params two = {
      .struct_size = sizeof two, .schedule = "1f1b", .n_ranks = 2, .n_microbatches = 2};
  open_world(&w);
  const opipe_api *api = w.k.api;
  opipe_error *err = &w.k.err;
  const opipe_train_options train = {.struct_size = sizeof train, .labels = "labels", .loss = 1};
  OPI_ASSERT_OK_FATAL(api->order_make(w.k.context, &two, &order, err), err);
#define REFUSED(field, call) OPI_ASSERT_ERROR(call, OPIPE_E_INVALID, err, field " is ")
  REFUSED("format", api->context_plugins(w.k.context, 2, drop, NULL, err));
  REFUSED("format", api->model_describe(w.k.model, 2, drop, NULL, err));
  REFUSED("format", api->plan_describe(w.k.plan, 2, drop, NULL, err));
  REFUSED("format", api->model_describe_training(w.t.bound, &train, 2, drop, NULL, err));
  REFUSED("format", api->schedule_list(w.k.context, 2, drop, NULL, err));
  REFUSED("format", api->order_simulate(order, NULL, 2, drop, NULL, err));
  REFUSED("format", api->order_simulate(order, NULL, OPIPE_FORMAT_HTML + 1, drop, NULL, err));
  REFUSED("format", api->order_write(order, 3, 0, drop, NULL, err));
  REFUSED("dialect", api->order_write(order, OPIPE_FORMAT_CSV, 3, drop, NULL, err));
  REFUSED("dialect", api->order_read(w.k.context, "", 0, 3, &made, err));
  REFUSED("flags", api->order_lower(order, 0, 2, &made, err));
  REFUSED("rule", api->order_check(order, 6, err));
  REFUSED("format", api->session_trace(w.t.session, OPIPE_TRACE_HTML + 1, drop, NULL, err));
  REFUSED("what", api->session_try_save(w.t.session, 3, "x", err));
#if OPI_TEST_STUDY
  opipe_profile *profile = NULL;
  opipe_strategy *strategy = NULL;
  const opipe_play_params play = {.struct_size = sizeof play};
  kit_strategy(&w.k, &profile, &strategy);
  REFUSED("format", api->profile_describe(profile, 2, drop, NULL, err));
  REFUSED("format", api->strategy_describe(strategy, 2, drop, NULL, err));
  REFUSED("format", api->strategy_play(strategy, &play, OPIPE_PLAY_HTML + 1, drop, NULL, err));
  REFUSED("format",
          api->plans_compare(w.k.context, "{}", 2, NULL, "{}", 2, NULL, 2, drop, NULL, err));
  api->strategy_destroy(strategy);
  api->profile_destroy(profile);
#endif
#undef REFUSED
  api->order_destroy(order);
  close_world(&w);
}

typedef struct guarded {
  union {
    uint32_t struct_size;
    unsigned char bytes[256];
  } info;
} guarded;

/* Calls `call` with info structs of every size from `least` on: what lies behind stays. */
#define CHECK_INFO(type, call)                                                          \
  do {                                                                                  \
    for (uint32_t size = 0; size <= sizeof(type) + 32; size += 4) {                     \
      guarded g;                                                                        \
      uint32_t touched = 0;                                                             \
      memset(&g, 0xa5, sizeof g);                                                       \
      g.info.struct_size = size;                                                        \
      type *info = (type *)(void *)&g;                                                  \
      const opipe_status status = (call);                                               \
      OPI_ASSERT(status == OPIPE_OK || (status == OPIPE_E_ABI && size < sizeof(type))); \
      OPI_ASSERT_INT(g.info.struct_size, size);                                         \
      const uint32_t first = status == OPIPE_OK ? size : 4;                             \
      for (uint32_t i = first < 4 ? 4 : first; i < sizeof g; ++i)                       \
        touched += g.info.bytes[i] != 0xa5;                                             \
      OPI_ASSERT_INT(touched, 0);                                                       \
    }                                                                                   \
  } while (0)

static void test_infos_are_written_as_far_as_they_reach(void) {
  world w;
  opipe_order *order = NULL;
  opipe_request *ticket = NULL;
  opipe_binding_io io[2] = {kit_ids(ids, ids_shape), kit_ids(ids, ids_shape)};
  const opipe_submit_params batch = {
      .struct_size = sizeof batch, .n_inputs = 2, .inputs = io, .io_stride = sizeof io[0]};
  static const opipe_order_params two = {
      .struct_size = sizeof two, .schedule = "1f1b", .n_ranks = 2, .n_microbatches = 2};
  open_world(&w);
  io[1].name = "labels";
  const opipe_api *api = w.k.api;
  OPI_ASSERT_OK_FATAL(api->order_make(w.k.context, &two, &order, &w.k.err), &w.k.err);
  OPI_ASSERT_OK_FATAL(api->session_train_step(w.t.session, &batch, &ticket, &w.k.err), &w.k.err);
  OPI_ASSERT_OK_FATAL(api->request_wait(ticket, UINT64_C(30000000000), &w.k.err), &w.k.err);
  CHECK_INFO(opipe_model_info, api->model_info(w.k.bound, info, NULL));
  CHECK_INFO(opipe_tensor_info, api->model_input(w.k.bound, 0, info, NULL));
  CHECK_INFO(opipe_tensor_info, api->model_output(w.k.bound, 0, info, NULL));
  CHECK_INFO(opipe_dim_info, api->model_dim(w.k.bound, 0, info, NULL));
  CHECK_INFO(opipe_plan_info, api->plan_info(w.k.plan, info, NULL));
  CHECK_INFO(opipe_memory_info, api->plan_memory(w.k.plan, 0, info, NULL));
  CHECK_INFO(opipe_memory_info, api->session_memory(w.k.session, 0, info, NULL));
  CHECK_INFO(opipe_session_info, api->session_info(w.k.session, info, NULL));
  CHECK_INFO(opipe_parameter_info, api->session_parameter(w.t.session, 0, info, NULL));
  CHECK_INFO(opipe_train_report, api->request_report(ticket, info, NULL));
  CHECK_INFO(opipe_train_clock, api->session_clock(w.t.session, info, NULL));
  CHECK_INFO(opipe_order_info, api->order_info(order, info, NULL));
#if OPI_TEST_STUDY
  opipe_profile *profile = NULL;
  opipe_strategy *strategy = NULL;
  kit_strategy(&w.k, &profile, &strategy);
  CHECK_INFO(opipe_profile_info, api->profile_info(profile, info, NULL));
  CHECK_INFO(opipe_layer_info, api->profile_layer(profile, 0, 1, info, NULL));
  CHECK_INFO(opipe_strategy_info, api->strategy_info(strategy, info, NULL));
  CHECK_INFO(opipe_strategy_stage_info, api->strategy_stage(strategy, 0, info, NULL));
  api->strategy_destroy(strategy);
  api->profile_destroy(profile);
#endif
  api->request_release(ticket);
  api->order_destroy(order);
  close_world(&w);
}

OPI_TEST_MAIN("infos", OPI_TEST(test_unknown_choices_among_arguments),
              OPI_TEST(test_infos_are_written_as_far_as_they_reach))
