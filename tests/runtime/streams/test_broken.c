/* SPDX-License-Identifier: Apache-2.0 */
/* Streams that do not go well: what is more than their room, inputs given twice or not at all,
 * requests that fail or are cancelled with others behind them, states that are closed, copied, or
 * another session's. ctest: timeout=120 */
#include "tests/runtime/streams/kit.h"

static int64_t ids[MOST];

static bool open_kit(host_kit *k, const plan_case *c, const opipe_session_params *params) {
  kit_ids_of(1, ids);
  OPI_ASSERT_OK_FATAL(kit_make_case(k, c), &k->err);
  return OPI_ASSERT_OK(kit_open(k, params), &k->err);
}

static const plan_case two = {.n_stages = 2};

static void test_room_and_inputs(void) {
  static const uint64_t room[PAIRS] = {192, 192, 192, 192}; /* twelve tokens */
  const opipe_state_params twelve = {
      .struct_size = sizeof twelve, .n_capacities = PAIRS, .capacities = room};
  static call c;
  host_kit k;
  open_kit(&k, &two, NULL);
  opipe_state *state = NULL;
  OPI_ASSERT_OK(k.api->session_state_open(k.session, &twelve, &state, &k.err), &k.err);
  OPI_ASSERT_ERROR(kit_call(&k, &c, state, ids, 2, NULL, 0), OPIPE_E_INVALID, &k.err,
                   "'past_k_0' is missing: the first request");
  OPI_ASSERT_ERROR(kit_call(&k, &c, state, ids, 2, kit_nothing, 13), OPIPE_E_LIMIT, &k.err,
                   "the input of shape [1, 2, 13, 8] has 208 elements, the state has room for 192");
  OPI_ASSERT_OK(kit_step(&k, &c, state, ids, 11, kit_nothing, 0), &k.err);
  OPI_ASSERT_ERROR(kit_call(&k, &c, state, ids, 1, kit_nothing, 11), OPIPE_E_INVALID, &k.err,
                   "'past_k_0' is given, and the state has it");
  OPI_ASSERT_ERROR(kit_call(&k, &c, state, ids, 2, NULL, 0), OPIPE_E_LIMIT, &k.err,
                   "'present_k_0' -> 'past_k_0': the output of shape [1, 2, 13, 8] has 208");
  OPI_ASSERT_OK(kit_step(&k, &c, state, ids, 1, NULL, 0), &k.err); /* nothing had happened */
  kit_close(&k);
}

/* Its outputs stay where they are. */
static void test_outputs_of_pairs_stay(void) {
  static call c;
  opipe_tensor out;
  host_kit k;
  open_kit(&k, &two, NULL);
  opipe_state *state = kit_state(&k);
  OPI_ASSERT_OK(kit_call(&k, &c, state, ids, 2, kit_nothing, 0), &k.err);
  OPI_ASSERT_OK(k.api->request_wait(c.request, UINT64_MAX, &k.err), &k.err);
  OPI_ASSERT_OK(k.api->request_output(c.request, 0, &out, &k.err), &k.err);
  OPI_ASSERT_ERROR(k.api->request_output(c.request, 1, &out, &k.err), OPIPE_E_NOTFOUND, &k.err,
                   "output 1 ('present_k_0') is kept by the request's state");
  k.api->request_release(c.request);
  opipe_submit_params params = {.struct_size = sizeof params,
                                .n_inputs = 1,
                                .n_outputs = 2,
                                .io_stride = sizeof(opipe_binding_io),
                                .inputs = c.in,
                                .outputs = c.out,
                                .state = state};
  OPI_ASSERT_ERROR(k.api->session_submit(k.session, &params, &c.request, &k.err), OPIPE_E_INVALID,
                   &k.err, "output 'present_k_0' is kept by the request's state");
  kit_close(&k);
}

static void expect_broken(host_kit *k, opipe_state *state) {
  static call c;
  opipe_state *other = kit_state(k);
  opipe_state_info info = opipe_state_info_init();
  float to[KEPT];
  OPI_ASSERT_ERROR(kit_call(k, &c, state, ids, 1, NULL, 0), OPIPE_E_STATE, &k->err, "reset it");
  OPI_ASSERT_ERROR(k->api->state_get(state, 0, NULL, to, sizeof to, &k->err), OPIPE_E_STATE,
                   &k->err, "reset it");
  OPI_ASSERT_ERROR(k->api->state_copy(other, state, &k->err), OPIPE_E_STATE, &k->err, "reset it");
  OPI_ASSERT_OK(k->api->state_get(state, 0, &info, NULL, 0, &k->err), &k->err);
  OPI_ASSERT((info.flags & OPIPE_STATE_BROKEN) != 0);
  k->api->state_close(other);
}

/* After the reset the state gives the results of one that never failed. */
static void expect_as_new(host_kit *k, opipe_state *state) {
  static call a, b;
  opipe_state *fresh = kit_state(k);
  OPI_ASSERT_OK(k->api->state_reset(state, &k->err), &k->err);
  OPI_ASSERT_OK(kit_step(k, &a, fresh, ids, 3, kit_nothing, 0), &k->err);
  OPI_ASSERT_OK(kit_step(k, &a, fresh, ids + 3, 2, NULL, 0), &k->err);
  OPI_ASSERT_OK(kit_step(k, &b, state, ids, 3, kit_nothing, 0), &k->err);
  OPI_ASSERT_OK(kit_step(k, &b, state, ids + 3, 2, NULL, 0), &k->err);
  OPI_ASSERT(memcmp(a.logits, b.logits, 2 * CLASSES * sizeof(float)) == 0);
  k->api->state_close(fresh);
}

/* The second of four fails by its data; those of another stream do not notice. */
static void check_one_fails(const plan_case *plan) {
  static call c[4], other[4];
  static const int64_t bad[1] = {1000000};
  uint32_t flag = 0;
  const opipe_session_params open = {
      .struct_size = sizeof open, .max_in_flight = 8, .spin_us = UINT32_MAX};
  host_kit k;
  open_kit(&k, plan, &open);
  opipe_state *state = kit_state(&k), *well = kit_state(&k);
  c[1].ready = (opipe_fence){.kind = OPIPE_FENCE_HOST_FLAG, .handle = &flag}; /* two behind it */
  for (uint32_t i = 0; i < 4; ++i) {
    OPI_ASSERT_OK(
        kit_call(&k, &c[i], state, i == 1 ? bad : ids + i, 1, i == 0 ? kit_nothing : NULL, 0),
        &k.err);
    OPI_ASSERT_OK(kit_call(&k, &other[i], well, ids + i, 1, i == 0 ? kit_nothing : NULL, 0),
                  &k.err);
  }
  __atomic_store_n(&flag, 1, __ATOMIC_RELEASE);
  OPI_ASSERT_OK(kit_end(&k, &c[0]), &k.err);
  OPI_ASSERT_ERROR(kit_end(&k, &c[1]), OPIPE_E_INVALID, &k.err, "1000000");
  OPI_ASSERT_ERROR(kit_end(&k, &c[2]), OPIPE_E_STATE, &k.err, "one before it in its stream");
  OPI_ASSERT_ERROR(kit_end(&k, &c[3]), OPIPE_E_STATE, &k.err, "one before it in its stream");
  for (uint32_t i = 0; i < 4; ++i)
    OPI_ASSERT_OK(kit_end(&k, &other[i]), &k.err);
  expect_broken(&k, state);
  expect_as_new(&k, state);
  kit_close(&k);
}

/* On devices that are queued ahead of the ones behind are under way when it is known. */
static void test_one_fails(void) {
  check_one_fails(&two);
  check_one_fails(&(plan_case){.n_stages = 4, .kind = "emulated"});
  check_one_fails(&(plan_case){.n_stages = 1, .kind = "emulated", .options = "async=1"});
  check_one_fails(&(plan_case){.n_stages = 2, .kind = "emulated", .options = "async=1"});
  check_one_fails(&(plan_case){.n_stages = 2, .replicas = 2, .kind = "emulated"});
  check_one_fails(&(plan_case){.n_stages = 2, .tensor = 2});
}

/* A request that waits for its input holds up its own stream alone, and is cancelled. */
static void test_one_is_cancelled(void) {
  static call first, late, behind, other;
  uint32_t flag = 0;
  const opipe_session_params open = {
      .struct_size = sizeof open, .max_in_flight = 8, .spin_us = UINT32_MAX};
  host_kit k;
  open_kit(&k, &two, &open);
  opipe_state *state = kit_state(&k), *well = kit_state(&k);
  late.ready = (opipe_fence){.kind = OPIPE_FENCE_HOST_FLAG, .handle = &flag};
  OPI_ASSERT_OK(kit_step(&k, &first, state, ids, 2, kit_nothing, 0), &k.err);
  OPI_ASSERT_OK(kit_call(&k, &late, state, ids + 2, 1, NULL, 0), &k.err);
  OPI_ASSERT_OK(kit_call(&k, &behind, state, ids + 3, 1, NULL, 0), &k.err);
  OPI_ASSERT_OK(kit_step(&k, &other, well, ids, 2, kit_nothing, 0), &k.err);
  OPI_ASSERT_ERROR(k.api->state_reset(state, &k.err), OPIPE_E_STATE, &k.err,
                   "2 requests of the state are unfinished");
  OPI_ASSERT_OK(k.api->request_cancel(late.request, &k.err), &k.err);
  OPI_ASSERT_ERROR(kit_end(&k, &late), OPIPE_E_CANCELLED, &k.err, "cancelled");
  OPI_ASSERT_ERROR(kit_end(&k, &behind), OPIPE_E_STATE, &k.err, "one before it in its stream");
  expect_broken(&k, state);
  expect_as_new(&k, state);
  kit_close(&k);
}

/* Two go on from one prompt, on one replica or another. */
static void check_copies(const plan_case *plan) {
  static call a, b;
  const opipe_state_params narrow = {.struct_size = sizeof narrow,
                                     .n_capacities = PAIRS,
                                     .capacities = (const uint64_t[PAIRS]){0, 0, 32, 0}};
  opipe_state *small = NULL;
  host_kit k;
  open_kit(&k, plan, NULL);
  opipe_state *prompt = kit_state(&k), *one = kit_state(&k), *other = kit_state(&k);
  OPI_ASSERT_OK(kit_step(&k, &a, prompt, ids, 5, kit_nothing, 0), &k.err);
  OPI_ASSERT_OK(k.api->state_copy(one, prompt, &k.err), &k.err);
  OPI_ASSERT_OK(k.api->state_copy(other, prompt, &k.err), &k.err);
  OPI_ASSERT_OK(kit_step(&k, &a, one, ids + 5, 2, NULL, 0), &k.err);
  OPI_ASSERT_OK(kit_step(&k, &b, other, ids + 9, 2, NULL, 0), &k.err);
  OPI_ASSERT(memcmp(a.logits, b.logits, 2 * CLASSES * sizeof(float)) != 0);
  OPI_ASSERT_OK(kit_step(&k, &b, prompt, ids + 5, 2, NULL, 0), &k.err);
  OPI_ASSERT(memcmp(a.logits, b.logits, 2 * CLASSES * sizeof(float)) == 0);
  OPI_ASSERT_OK(k.api->session_state_open(k.session, &narrow, &small, &k.err), &k.err);
  OPI_ASSERT_ERROR(k.api->state_copy(small, prompt, &k.err), OPIPE_E_LIMIT, &k.err,
                   "'present_k_1' -> 'past_k_1' has 112 elements, the state has room for 32");
  kit_close(&k);
}

static void test_copies(void) {
  check_copies(&two);
  check_copies(&(plan_case){.n_stages = 2, .replicas = 2});
  check_copies(&(plan_case){.n_stages = 2, .kind = "emulated", .options = "async=1"});
  check_copies(&(plan_case){.n_stages = 1, .replicas = 2, .tensor = 2});
}

/* Closed with a request under way: it ends well, then its bytes are free. */
static void test_closed_early(void) {
  static call c;
  uint32_t flag = 0;
  opipe_memory_info info = opipe_memory_info_init();
  host_kit k;
  open_kit(&k, &two, NULL);
  opipe_state *state = kit_state(&k);
  c.ready = (opipe_fence){.kind = OPIPE_FENCE_HOST_FLAG, .handle = &flag};
  OPI_ASSERT_OK(kit_call(&k, &c, state, ids, 2, kit_nothing, 0), &k.err);
  k.api->state_close(state);
  OPI_ASSERT_OK(k.api->session_memory(k.session, 0, &info, &k.err), &k.err);
  OPI_ASSERT(info.state_bytes == info.stream_bytes && info.state_bytes != 0);
  OPI_ASSERT_ERROR(k.api->state_reset(state, &k.err), OPIPE_E_STATE, &k.err, "closed");
  __atomic_store_n(&flag, 1, __ATOMIC_RELEASE);
  OPI_ASSERT_OK(kit_end(&k, &c), &k.err);
  while (info.state_bytes != 0) /* until the last rank has passed it */
    OPI_ASSERT_OK_FATAL(k.api->session_memory(k.session, 0, &info, &k.err), &k.err);
  kit_close(&k);
}

/* Many shapes, of which few are kept: bindings go with them. */
static void test_shapes_come_and_go(void) {
  static call a;
  float last[CLASSES];
  const opipe_session_params open = {
      .struct_size = sizeof open, .max_shapes = 4, .spin_us = UINT32_MAX};
  host_kit k;
  open_kit(&k, &two, &open);
  opipe_state *state = kit_state(&k);
  for (uint32_t round = 0; round < 2; ++round) {
    for (int64_t i = 0; i < 12; ++i)
      OPI_ASSERT_OK(kit_step(&k, &a, state, ids + i, 1, i == 0 ? kit_nothing : NULL, 0), &k.err);
    OPI_ASSERT(round == 0 || memcmp(last, a.logits, sizeof last) == 0);
    memcpy(last, a.logits, sizeof last);
    OPI_ASSERT_OK(k.api->state_reset(state, &k.err), &k.err);
  }
  kit_close(&k);
}

static void test_whose_state(void) {
  static call c;
  host_kit k, plain;
  opipe_state *none = NULL;
  const opipe_state_params three = {
      .struct_size = sizeof three, .n_capacities = 3, .capacities = (const uint64_t[3]){1, 2, 3}};
  open_kit(&k, &two, NULL);
  open_kit(&plain, &two, NULL);
  opipe_state *state = kit_state(&k), *other = kit_state(&plain);
  OPI_ASSERT_ERROR(kit_call(&plain, &c, state, ids, 1, kit_nothing, 0), OPIPE_E_INVALID, &plain.err,
                   "the state belongs to another session");
  OPI_ASSERT_ERROR(k.api->state_copy(state, other, &k.err), OPIPE_E_INVALID, &k.err,
                   "the states are of two sessions");
  OPI_ASSERT_ERROR(k.api->session_state_open(k.session, &three, &none, &k.err), OPIPE_E_INVALID,
                   &k.err, "3 capacities for 4 pairs");
  OPI_ASSERT_ERROR(k.api->state_get(state, PAIRS, NULL, NULL, 0, &k.err), OPIPE_E_NOTFOUND, &k.err,
                   "pair 4 of 4");
  kit_close(&plain);
  kit_close(&k);
}

/* A cap that the plan's streams fill has no room for one more. */
static void test_budgets(void) {
  const uint64_t each = 2 * PAIRS * HEADS * MOST * WIDTH * sizeof(float);
  opipe_memory_info info = opipe_memory_info_init();
  opipe_state *state = NULL;
  plan_case c = {.n_stages = 1, .n_streams = 2};
  host_kit k;
  OPI_ASSERT_OK_FATAL(kit_make_case(&k, &c), &k.err);
  OPI_ASSERT_OK(k.api->plan_memory(k.plan, 0, &info, &k.err), &k.err);
  OPI_ASSERT(info.state_bytes == 2 * each && info.stream_bytes == each);
  kit_close(&k);
  c.memory_bytes = info.total_bytes - 1;
  OPI_ASSERT_ERROR(kit_make_case(&k, &c), OPIPE_E_LIMIT, &k.err, "cap");
  kit_close(&k);
  c.memory_bytes = info.total_bytes;
  open_kit(&k, &c, NULL);
  for (uint32_t i = 0; i < 2; ++i)
    state = kit_state(&k);
  opipe_state *third = NULL;
  OPI_ASSERT_ERROR(k.api->session_state_open(k.session, NULL, &third, &k.err), OPIPE_E_LIMIT,
                   &k.err, "the state of a stream");
  k.api->state_close(state);
  OPI_ASSERT_OK(k.api->session_state_open(k.session, NULL, &third, &k.err), &k.err);
  kit_close(&k);
}

OPI_TEST_MAIN("states that break", OPI_TEST(test_room_and_inputs),
              OPI_TEST(test_outputs_of_pairs_stay), OPI_TEST(test_one_fails),
              OPI_TEST(test_one_is_cancelled), OPI_TEST(test_copies), OPI_TEST(test_closed_early),
              OPI_TEST(test_shapes_come_and_go), OPI_TEST(test_whose_state), OPI_TEST(test_budgets))
