/* SPDX-License-Identifier: Apache-2.0 */
/* States in two sessions with a rank each: the same calls in both, each keeps what its own rank
 * holds; a request that fails in one breaks the stream in both, until both reset it.
 * ctest: timeout=120 */
#include <pthread.h>

#include "tests/runtime/streams/kit.h"

enum { SIDES = 2, STEPS = 4 };

typedef struct side {
  host_kit k;
  pthread_t thread;
  uint32_t rank;
  call calls[STEPS];
  float first[CLASSES], last[CLASSES];
} side;

static int64_t ids[MOST];

/* Four requests of one state; all in flight. bad: the second reads beyond a table. */
static void run(side *s, opipe_state *state, bool bad) {
  static const int64_t beyond[1] = {1000000};
  host_kit *k = &s->k;
  for (uint32_t i = 0; i < STEPS; ++i) {
    OPI_ASSERT_OK(kit_call(k, &s->calls[i], state, bad && i == 1 ? beyond : ids + i, 1,
                           i == 0 ? kit_nothing : NULL, 0),
                  &k->err);
  }
  for (uint32_t i = 0; i < STEPS; ++i) {
    const opipe_status status = kit_end(k, &s->calls[i]);
    if (!bad || i == 0)
      OPI_ASSERT_OK(status, &k->err);
    else if (i == 1)
      OPI_ASSERT_ERROR(status, OPIPE_E_INVALID, &k->err, "1000000");
    else
      OPI_ASSERT_ERROR(status, OPIPE_E_STATE, &k->err, "one before it in its stream");
  }
}

/* A pair that is elsewhere is described, not read. */
static void look(side *s, opipe_state *state) {
  float to[KEPT];
  for (uint32_t p = 0; p < PAIRS; ++p) {
    opipe_state_info info = opipe_state_info_init();
    OPI_ASSERT_OK(s->k.api->state_get(state, p, &info, NULL, 0, &s->k.err), &s->k.err);
    OPI_ASSERT(info.shape[2] == STEPS);
    OPI_ASSERT(((info.flags & OPIPE_STATE_ELSEWHERE) == 0) == (info.holder == s->rank));
    const opipe_status status = s->k.api->state_get(state, p, NULL, to, info.n_bytes, &s->k.err);
    OPI_ASSERT(status == (info.holder == s->rank ? OPIPE_OK : OPIPE_E_NOTFOUND));
  }
}

static void *run_side(void *arg) {
  side *s = arg;
  host_kit *k = &s->k;
  const opipe_session_params params = {.struct_size = sizeof params,
                                       .max_in_flight = STEPS,
                                       .watchdog_ns = UINT64_C(20000000000),
                                       .spin_us = UINT32_MAX,
                                       .local_ranks = &s->rank,
                                       .n_local_ranks = 1};
  if (!OPI_ASSERT_OK(kit_open(k, &params), &k->err))
    return NULL;
  opipe_state *state = kit_state(k), *other = kit_state(k);
  run(s, state, false);
  look(s, state);
  memcpy(s->first, s->calls[STEPS - 1].logits, sizeof s->first);
  OPI_ASSERT_OK(k->api->state_copy(other, state, &k->err), &k->err);
  OPI_ASSERT_OK(k->api->state_reset(state, &k->err), &k->err);
  run(s, state, true);
  OPI_ASSERT_ERROR(k->api->state_copy(other, state, &k->err), OPIPE_E_STATE, &k->err, "reset it");
  OPI_ASSERT_OK(k->api->state_reset(state, &k->err), &k->err);
  run(s, state, false);
  memcpy(s->last, s->calls[STEPS - 1].logits, sizeof s->last);
  look(s, other); /* the session is closed when both have looked */
  return NULL;
}

/* The same in one session. */
static void expect(const char *transport, float *out) {
  static side s;
  opipe_device_choice device;
  opipe_plan_params params = kit_params(&(plan_case){.n_stages = SIDES}, &device);
  params.transport = transport;
  OPI_ASSERT_OK_FATAL(kit_make(&s.k, NULL, &params), &s.k.err);
  OPI_ASSERT_OK_FATAL(
      kit_open(&s.k, &(opipe_session_params){.struct_size = sizeof(opipe_session_params),
                                             .max_in_flight = STEPS,
                                             .spin_us = UINT32_MAX}),
      &s.k.err);
  run(&s, kit_state(&s.k), false);
  memcpy(out, s.calls[STEPS - 1].logits, CLASSES * sizeof *out);
  kit_close(&s.k);
}

static void test_two_sessions(void) {
  static side sides[SIDES];
  float wanted[CLASSES];
  kit_ids_of(2, ids);
  expect("local", wanted);
  for (uint32_t i = 0; i < SIDES; ++i) {
    opipe_device_choice device;
    opipe_plan_params params = kit_params(&(plan_case){.n_stages = SIDES}, &device);
    params.transport = "strict:meet=states";
    sides[i].rank = i;
    OPI_ASSERT_OK_FATAL(kit_make(&sides[i].k, NULL, &params), &sides[i].k.err);
  }
  for (uint32_t i = 0; i < SIDES; ++i)
    OPI_ASSERT_FATAL(pthread_create(&sides[i].thread, NULL, run_side, &sides[i]) == 0);
  for (uint32_t i = 0; i < SIDES; ++i)
    (void)pthread_join(sides[i].thread, NULL);
  OPI_ASSERT(memcmp(sides[1].first, wanted, sizeof wanted) == 0);
  OPI_ASSERT(memcmp(sides[1].last, wanted, sizeof wanted) == 0);
  for (uint32_t i = 0; i < SIDES; ++i)
    kit_close(&sides[i].k);
}

OPI_TEST_MAIN("states in two sessions", OPI_TEST(test_two_sessions))
