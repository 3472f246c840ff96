/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of plugins are data: statuses that no call has, messages without end, numbers that would
 * become sizes and indices. Each is refused with the plugin's name, and nothing beyond what was
 * answered is read.
 */
#include <stdlib.h>

#include "partition/make/make.h"
#include "partition/schedule/compute_order.h"
#include "tests/support/support.h"

static opipe_error err = OPIPE_ERROR_INIT;

/* ---- statuses and messages ---- */

static void test_statuses_that_no_call_has_are_errors(void) {
  OPI_ASSERT_INT(opi_answer(OPIPE_OK, "backend", "mock", "compile", &err), OPIPE_OK);
  OPI_ASSERT_ERROR(opi_answer(OPIPE_PENDING, "backend", "mock", "compile", &err), OPIPE_E_DEVICE,
                   &err, "backend 'mock': compile answered 1");
  OPI_ASSERT_INT(opi_poll(OPIPE_PENDING, "transport", "mock", "test", &err), OPIPE_PENDING);
  err = (opipe_error)OPIPE_ERROR_INIT;
  OPI_ASSERT_ERROR(opi_poll(-99, "transport", "mock", "test", &err), OPIPE_E_INVALID, &err,
                   "transport 'mock': test failed with status -99, without a message");
  (void)opi_fail(&err, -99, "why");
  OPI_ASSERT_ERROR(opi_answer(-99, "backend", "mock", "run", &err), OPIPE_E_DEVICE, &err,
                   "run failed with the unknown status -99: why");
  OPI_ASSERT_INT(opi_answer(77, "backend", "mock", "run", NULL), OPIPE_E_DEVICE);
  OPI_ASSERT_INT(opi_answer(77, "schedule", "mock", "plan", NULL), OPIPE_E_INVALID);
  (void)opi_fail(&err, OPIPE_E_CANCELLED, "its own words");
  OPI_ASSERT_ERROR(opi_answer(OPIPE_E_CANCELLED, "backend", "mock", "run", &err), OPIPE_E_DEVICE,
                   &err, "backend 'mock': run failed: its own words");
}

static void test_messages_are_ended_and_cleaned(void) {
  (void)opi_fail(&err, OPIPE_E_DEVICE, "its own words");
  OPI_ASSERT_ERROR(opi_answer(OPIPE_E_DEVICE, "backend", "mock", "run", &err), OPIPE_E_DEVICE, &err,
                   "its own words");
  OPI_ASSERT(strstr(err.message, "mock") == NULL);
  /* left over from another failure */
  OPI_ASSERT_ERROR(opi_answer(OPIPE_E_NOMEM, "backend", "mock", "run", &err), OPIPE_E_NOMEM, &err,
                   "run failed with status -2, without a message");
  err.status = OPIPE_E_DEVICE;
  memset(err.message, 0xfe, sizeof err.message);
  OPI_ASSERT_ERROR(opi_answer(OPIPE_E_DEVICE, "backend", "mock", "run", &err), OPIPE_E_DEVICE, &err,
                   "backend 'mock': run failed: ???");
  OPI_ASSERT(memchr(err.message, '\0', sizeof err.message) != NULL);
}

static void test_text_of_plugins_is_one_line(void) {
  char line[OPI_LINE_ROOM], endless[OPI_LINE_ROOM];
  memset(endless, 'x', sizeof endless);
  OPI_ASSERT_STR(opi_text_line(line, "a\nb\x1b[2J\x7f\xc2\x9b\xc3\x28\xff \xc3\xa4\xe2\x82\xac"),
                 "a?b?[2J??"
                 "??"
                 "(? \xc3\xa4\xe2\x82\xac");
  OPI_ASSERT_STR(opi_text_line(line, NULL), "");
  OPI_ASSERT_INT((int64_t)strlen(opi_text_line(line, endless)), OPI_LINE_ROOM - 1);
  OPI_ASSERT(opi_text_is_utf8("\n\xf0\x9f\x98\x80") && !opi_text_is_utf8("\xed\xa0\x80") &&
             !opi_text_is_utf8("\xc0\x80") && !opi_text_is_utf8("\xe2\x82"));
}

/* ---- numbers of a backend ---- */

static void test_numbers_of_devices_and_programs(void) {
  static const uint32_t wrong[] = {3, 96, 1u << 31, UINT32_MAX};
  opipe_device_info info = {.alignment = 0, .peak_flops = -1, .bandwidth = 1e-300, .launch_ns = 3};
  memset(info.name, 'x', sizeof info.name);
  OPI_ASSERT_OK(opi_device_check(&info, "mock", 0, &err), &err);
  OPI_ASSERT(info.alignment == 1 && info.peak_flops == 0 && info.bandwidth == 0 &&
             info.launch_ns == 3 && info.name[63] == '\0');
  for (size_t i = 0; i < OPI_COUNT(wrong); ++i) {
    info.alignment = wrong[i];
    OPI_ASSERT_ERROR(opi_device_check(&info, "mock", 2, &err), OPIPE_E_INVALID, &err,
                     "backend 'mock': device 2 has an alignment of");
  }
  opipe_program_info program = {.arena_bytes = UINT64_MAX - 62};
  OPI_ASSERT_ERROR(opi_program_check(&program, "mock", &err), OPIPE_E_INVALID, &err,
                   "backend 'mock': a program has an arena of 18446744073709551553 bytes");
  program = (opipe_program_info){.arena_bytes = 64, .workspace_bytes = 65};
  OPI_ASSERT_ERROR(opi_program_check(&program, "mock", &err), OPIPE_E_INVALID, &err, "workspace");
  program = (opipe_program_info){.host_bytes = UINT64_MAX};
  OPI_ASSERT_ERROR(opi_program_check(&program, "mock", &err), OPIPE_E_INVALID, &err,
                   "keeps 18446744073709551615 bytes of the host");
}

/* Nodes are timed by the rate of their type, where the device has one for it. */
static void test_rates_by_type(void) {
  const opi_device_facts facts = {
      .flops = 1e12, .bf16_flops = 16e12, .fp64_flops = 0.5e12, .bandwidth = 1e12};
  static const struct {
    uint32_t dtype;
    double ns;
  } rows[] = {{OPIPE_FLOAT, 16e3},
              {OPIPE_BFLOAT16, 1e3},
              {OPIPE_DOUBLE, 32e3},
              {OPIPE_FLOAT16, 16e3},
              {OPIPE_INT64, 16e3}};
  for (size_t i = 0; i < OPI_COUNT(rows); ++i) {
    const double ns = opi_device_ns(&facts, 0, rows[i].dtype, 16e6, 8);
    OPI_ASSERT(ns > rows[i].ns * 0.999999 && ns < rows[i].ns * 1.000001);
  }
  opi_value values[] = {{.dtype = OPIPE_INT64}, {.dtype = OPIPE_BFLOAT16}, {.dtype = OPIPE_FLOAT}};
  uint32_t in[] = {0, OPIPE_NONE, 1, 2};
  const opi_graph graph = {.values = values, .n_values = 3};
  const opi_node node = {.in = in, .n_in = 4};
  OPI_ASSERT_INT(opi_node_type(&graph, &node), OPIPE_BFLOAT16);
}

/* Layouts: counts[0] when asked for the number, counts[1] when asked for them. */
static uint32_t counts[2];
static opipe_param_layout answer;

static opipe_status program_params(const opipe_program *program, opipe_param_layout *out_layouts,
                                   uint32_t *io_count, opipe_error *e) {
  const uint32_t room = *io_count;
  (void)program;
  (void)e;
  for (uint32_t i = 0; out_layouts != NULL && i < room; ++i)
    out_layouts[i] = answer;
  *io_count = counts[out_layouts != NULL];
  return OPIPE_OK;
}

static void expect_layouts(uint32_t first, uint32_t second, opipe_param_layout layout,
                           const char *message) {
  const opipe_backend table = {.program_params = program_params};
  const opi_backend_ref mock = {.table = &table, .id = "mock"};
  opipe_param_layout *list = NULL;
  uint32_t n = 0;
  opi_arena arena;
  opi_arena_init(&arena, opi_allocator_system(), 0);
  counts[0] = first;
  counts[1] = second;
  answer = layout;
  const opipe_status status = opi_layouts_ask(&mock, NULL, 3, false, &arena, &list, &n, &err);
  if (message == NULL) {
    OPI_ASSERT_OK(status, &err);
    OPI_ASSERT_INT(n, second);
  } else {
    OPI_ASSERT_ERROR(status, OPIPE_E_INVALID, &err, message);
  }
  opi_arena_release(&arena);
}

static void test_layouts_of_a_program(void) {
  const opipe_param_layout good = {.slot = 2, .n_bytes = 64};
  expect_layouts(3, 3, good, NULL);
  expect_layouts(3, 2, good, NULL);
  expect_layouts(0, 0, good, NULL);
  expect_layouts(3, 4, good, "backend 'mock': a program with 3 parameter layouts, then with 4");
  expect_layouts(3, UINT32_MAX, good, "then with 4294967295");
  expect_layouts(UINT32_MAX, 3, good,
                 "a program with 4294967295 parameter layouts of 3 parameters");
  expect_layouts(1, 1, (opipe_param_layout){.slot = 3}, "parameter 3 of 3");
  expect_layouts(1, 1, (opipe_param_layout){.slot = UINT32_MAX}, "parameter 4294967295 of 3");
  expect_layouts(1, 1, (opipe_param_layout){.n_bytes = UINT64_MAX}, "18446744073709551615 bytes");
  expect_layouts(1, 1, (opipe_param_layout){.mapped_bytes = UINT64_MAX - 1}, "in place");
}

/* ---- a transport ---- */

static opipe_transport_info declared;

static opipe_status world_info(opipe_instance *self, const char *options,
                               opipe_transport_info *out_info, opipe_error *e) {
  (void)self;
  (void)options;
  (void)e;
  *out_info = declared;
  return OPIPE_OK;
}

static opipe_status find_transport(void *ctx, const char *id, opi_transport_ref *out,
                                   opipe_error *e) {
  static const opipe_transport table = {.world_info = world_info};
  (void)ctx;
  (void)id;
  (void)e;
  *out = (opi_transport_ref){.table = &table, .id = "mock"};
  return OPIPE_OK;
}

static const opi_layout_wish two = {.n_ranks = 2, .n_stages = 2};

static void expect_link(opipe_transport_info info, uint32_t n_ranks, const char *message) {
  const opi_plugins plugins = {.transport = find_transport};
  const opi_plan_env env = {.plugins = &plugins};
  opi_decision plan = {.transport = "mock", .n_ranks = n_ranks};
  declared = info;
  const opipe_status status = opi_plan_find_link(&env, &plan, &err);
  if (message == NULL) {
    OPI_ASSERT_OK(status, &err);
    OPI_ASSERT(opi_link_ns(&plan.link, UINT64_MAX) <= 1000000000000000u);
  } else {
    OPI_ASSERT_ERROR(status, err.status, &err, message);
  }
}

static void test_numbers_of_a_transport(void) {
  const opipe_transport_info good = {.thread_rule = OPIPE_THREADS_PER_ENDPOINT};
  const double no_latency[] = {-1, 2e15, __builtin_inf(), __builtin_nan("")};
  const double no_bandwidth[] = {-1, 5e-324, 0.5, 2e18, __builtin_inf(), __builtin_nan("")};
  opipe_transport_info t = good;
  expect_link(good, 2, NULL);
  t.bandwidth = 1;
  expect_link(t, 2, NULL);
  t.bandwidth = 1e18;
  expect_link(t, 2, NULL);
  for (size_t i = 0; i < OPI_COUNT(no_latency); ++i) {
    t = good;
    t.latency_ns = no_latency[i];
    expect_link(t, 2, "transport 'mock' declares rule 0");
  }
  for (size_t i = 0; i < OPI_COUNT(no_bandwidth); ++i) {
    t = good;
    t.bandwidth = no_bandwidth[i];
    expect_link(t, 2, "(0: none said, or 1 to 1e18)");
  }
  t = good;
  t.rule = UINT32_MAX;
  expect_link(t, 2, "declares rule 4294967295");
  t.rule = OPIPE_RULE_EDGE;
  expect_link(t, 1, NULL);
  expect_link(t, 2, NULL);
  t = good;
  t.max_ranks = 3;
  expect_link(t, 4, "transport 'mock' supports at most 3 ranks, the plan has 4");
  t.max_ranks = 0;
  t.thread_rule = OPIPE_THREADS_SINGLE;
  expect_link(t, 2, "requires all calls from one thread");
}

/* ---- a schedule ---- */

static opipe_layout wanted;
static const opipe_schedule_option *listed;
static uint32_t n_listed;
static opipe_status layout_status;

static opipe_status options(opipe_instance *self, const opipe_schedule_option **out_options,
                            uint32_t *out_count, opipe_error *e) {
  (void)self;
  (void)e;
  *out_options = listed;
  *out_count = n_listed;
  return OPIPE_OK;
}

static opipe_status layout(opipe_instance *self, const opipe_layout_request *request,
                           opipe_layout *io_layout, opipe_error *e) {
  uint32_t *ranks = io_layout->instance_rank;
  const uint32_t room = io_layout->instance_room;
  (void)self;
  (void)request;
  (void)e;
  *io_layout = wanted;
  for (uint32_t i = 0; i < room; ++i)
    ranks[i] = 0;
  return layout_status;
}

static void expect_layout(opipe_layout given, bool train, const char *message) {
  static const opipe_schedule table = {.options = options, .layout = layout};
  const opi_schedule_ref mock = {.table = &table, .id = "mock"};
  const opi_train_spec spec = {.replicas = 1};
  opi_plan *plan = NULL;
  OPI_ASSERT_OK_FATAL(opi_plan_new(opi_allocator_system(), &plan, &err), &err);
  plan->decided.schedule.name = "mock";
  plan->decided.n_microbatches = 2;
  plan->decided.train = train ? &spec : NULL;
  wanted = given;
  const opipe_status status = opi_schedule_layout(&mock, &two, &plan->decided, &plan->arena, &err);
  if (message == NULL)
    OPI_ASSERT_OK(status, &err);
  else
    OPI_ASSERT_ERROR(status, OPIPE_E_INVALID, &err, message);
  opi_plan_free(plan);
}

static void test_numbers_of_a_layout(void) {
  const opipe_layout good = {
      .n_ranks = 2, .n_stages = 2, .n_replicas = 1, .n_slices = 1, .n_parts = 1};
  layout_status = OPIPE_OK;
  expect_layout(good, true, NULL);
  opipe_layout l = good;
  l.n_ranks = UINT32_MAX;
  expect_layout(l, true, "schedule 'mock' lays out 4294967295 ranks");
  expect_layout(l, false, "schedule 'mock' lays out 4294967295 ranks");
  l = good;
  l.n_slices = UINT32_MAX; /* of which there would be as many lengths to copy */
  l.slice_lengths = &l.n_ranks;
  expect_layout(l, true, "4294967295 slices");
  l = good;
  l.n_parts = 257;
  expect_layout(l, true, "257 parts");
  l = good;
  l.versions = 2;
  expect_layout(l, true, "versions 2");
  l = good;
  l.sync = 3;
  expect_layout(l, true, "sync 3");
  l = good;
  l.in_flight = 65536;
  expect_layout(l, false, NULL);
  l.in_flight = 65537;
  expect_layout(l, false, "65537 in flight");
  layout_status = OPIPE_PENDING;
  expect_layout(good, true, "schedule 'mock': layout answered 1");
  layout_status = OPIPE_OK;
}

/* One idle cell of rank 0. */
static opipe_status emit_idle(opipe_instance *self, const opipe_schedule_problem *problem,
                              opipe_emit_fn emit, void *emit_ctx, opipe_error *e) {
  const opipe_action idle = {.pass = OPIPE_CELL_IDLE};
  (void)self;
  (void)problem;
  return emit(emit_ctx, &idle, 1, e);
}

static void test_idle_cells_where_they_were_asked_for(void) {
  static const opipe_schedule table = {.options = options, .layout = layout, .plan = emit_idle};
  static const opipe_schedule_cells cells = {.cells = emit_idle};
  opi_schedule_ref mock = {.table = &table, .id = "mock"};
  opi_plan *plan = NULL;
  OPI_ASSERT_OK_FATAL(opi_plan_new(opi_allocator_system(), &plan, &err), &err);
  plan->decided.schedule.name = "mock";
  plan->decided.n_microbatches = 2;
  layout_status = OPIPE_OK;
  wanted =
      (opipe_layout){.n_ranks = 2, .n_stages = 2, .n_replicas = 1, .n_slices = 1, .n_parts = 1};
  OPI_ASSERT_OK(opi_schedule_layout(&mock, &two, &plan->decided, &plan->arena, &err), &err);
  OPI_ASSERT_ERROR(opi_schedule_order(&mock, &(opi_order_wish){0}, plan, &err), OPIPE_E_INVALID,
                   &err, "schedule 'mock', action 0: an idle cell");
  OPI_ASSERT_ERROR(opi_schedule_order(&mock, &(opi_order_wish){.cells = true}, plan, &err),
                   OPIPE_E_UNSUPPORTED, &err, "schedule 'mock' has no table");
  mock.cells = &cells;
  OPI_ASSERT_OK(opi_schedule_order(&mock, &(opi_order_wish){.cells = true}, plan, &err), &err);
  OPI_ASSERT_INT(plan->decided.n_actions, 1);
  opi_plan_free(plan);
}

/* Bad calls of emit: nothing at an address, a record with something in reserved, the same record
 * without end, a refused record followed by others. */
enum { EMIT_NOTHING = 0, EMIT_RESERVED = 1, EMIT_AGAIN = 2, EMIT_ON = 3 };
static uint32_t emitted;

static opipe_status emit_badly(opipe_instance *self, const opipe_schedule_problem *problem,
                               opipe_emit_fn emit, void *emit_ctx, opipe_error *e) {
  opipe_action action = {.pass = OPIPE_PASS_FORWARD, .reserved = emitted == EMIT_RESERVED};
  (void)self;
  (void)problem;
  opipe_status status = emitted == EMIT_NOTHING ? emit(emit_ctx, NULL, 3, e) : OPIPE_OK;
  for (uint32_t i = 0; emitted == EMIT_ON && i < 4; ++i) { /* and says that all is well */
    action.rank = i == 1 ? 99 : 0;
    (void)emit(emit_ctx, &action, 1, NULL);
  }
  if (emitted == EMIT_ON)
    return OPIPE_OK;
  for (uint32_t i = 0; emitted != EMIT_NOTHING && status == OPIPE_OK && i < 1000; ++i)
    status = emit(emit_ctx, &action, 1, e);
  return status;
}

static void expect_emitted(opi_plan *plan, uint32_t what, const char *message) {
  static const opipe_schedule table = {.options = options, .layout = layout, .plan = emit_badly};
  const opi_schedule_ref mock = {.table = &table, .id = "mock"};
  emitted = what;
  OPI_ASSERT_OK(opi_schedule_layout(&mock, &two, &plan->decided, &plan->arena, &err), &err);
  OPI_ASSERT_ERROR(opi_schedule_order(&mock, &(opi_order_wish){0}, plan, &err), OPIPE_E_INVALID,
                   &err, message);
}

static void test_records_of_a_schedule(void) {
  opi_plan *plan = NULL;
  OPI_ASSERT_OK_FATAL(opi_plan_new(opi_allocator_system(), &plan, &err), &err);
  plan->decided.schedule.name = "mock";
  plan->decided.n_microbatches = 2;
  layout_status = OPIPE_OK;
  wanted =
      (opipe_layout){.n_ranks = 2, .n_stages = 2, .n_replicas = 1, .n_slices = 1, .n_parts = 1};
  expect_emitted(plan, EMIT_NOTHING,
                 "schedule 'mock', action 0: 3 more, but their address is NULL");
  expect_emitted(plan, EMIT_RESERVED, "schedule 'mock', action 0: reserved is 1, not 0");
  expect_emitted(plan, EMIT_AGAIN, "schedule 'mock' emits more than 14 actions");
  expect_emitted(plan, EMIT_ON, "schedule 'mock', action 1: rank 99 of 2, replica 0");
  opi_plan_free(plan);
}

static void test_options_of_a_schedule(void) {
  static const opipe_schedule table = {.options = options, .layout = layout};
  const opi_schedule_ref mock = {.table = &table, .id = "mock"};
  const opipe_schedule_option none = {.key = NULL};
  const opipe_schedule_option wide = {
      .key = "k", .type = 'i', .min = -__builtin_inf(), .max = 1e300};
  const opipe_schedule_setting setting = {"k", "5"};
  listed = NULL;
  n_listed = 1;
  OPI_ASSERT_ERROR(opi_schedule_check_settings(&mock, &setting, 1, &err), OPIPE_E_INVALID, &err,
                   "schedule 'mock' lists 1 options, but their address is NULL");
  listed = &none;
  OPI_ASSERT_ERROR(opi_schedule_check_settings(&mock, &setting, 1, &err), OPIPE_E_INVALID, &err,
                   "schedule 'mock': option 0 has no key");
  n_listed = UINT32_MAX;
  OPI_ASSERT_ERROR(opi_schedule_check_settings(&mock, &setting, 1, &err), OPIPE_E_INVALID, &err,
                   "schedule 'mock' lists 4294967295 options");
  listed = &wide;
  n_listed = 1;
  OPI_ASSERT_OK(opi_schedule_check_settings(&mock, &setting, 1, &err), &err);
}

OPI_TEST_MAIN("answers", OPI_TEST(test_statuses_that_no_call_has_are_errors),
              OPI_TEST(test_messages_are_ended_and_cleaned),
              OPI_TEST(test_text_of_plugins_is_one_line),
              OPI_TEST(test_numbers_of_devices_and_programs), OPI_TEST(test_rates_by_type),
              OPI_TEST(test_layouts_of_a_program), OPI_TEST(test_numbers_of_a_transport),
              OPI_TEST(test_numbers_of_a_layout),
              OPI_TEST(test_idle_cells_where_they_were_asked_for),
              OPI_TEST(test_records_of_a_schedule), OPI_TEST(test_options_of_a_schedule))
