/* SPDX-License-Identifier: Apache-2.0 */
/* Sixteen sequences over four equal stages of emulated devices: once the stages are filled, they
 * are idle for at most 2 % of the time, with the number of passes in flight that the plan chose by
 * the same times. ctest: timeout=120 nosan */
#include "runtime/base/thread.h"
#include "tests/abi/generate_kit.h"

enum { SEQUENCES = 16, TOKENS = 7, STAGES = 4, STAGE_MS = 60 };

typedef struct timed {
  uint64_t at_ns[TOKENS];
  uint32_t n;
} timed;

static opipe_status on_token(void *ctx, opipe_sequence *sequence, const opipe_token *token,
                             opipe_error *err) {
  timed *t = ctx;
  (void)sequence, (void)token, (void)err;
  if (t->n < TOKENS)
    t->at_ns[t->n++] = opi_clock_ns();
  return OPIPE_OK;
}

static void open(host_kit *k) {
  static char emulated[512];
  const double ms[STAGES] = {STAGE_MS, STAGE_MS, STAGE_MS, STAGE_MS};
  const char *plugins[] = {emulated};
  (void)snprintf(emulated, sizeof emulated, "%s", opi_test_build("lib/onnx-pipe"));
  const opipe_context_params context = {
      .struct_size = sizeof context, .plugin_paths = plugins, .n_plugin_paths = 1};
  const opipe_device_choice device = {
      .kind = "emulated", .options = "forward_us=60000,async=1,compute=off", .threads = 1};
  const opipe_order_costs costs = {
      .struct_size = sizeof costs, .n_stages = STAGES, .stage_forward = ms};
  const opipe_generation_params generation = {
      .struct_size = sizeof generation, .context = 64, .active = SEQUENCES, .rows = 16};
  const opipe_plan_params params = {.struct_size = sizeof params,
                                    .n_stages = STAGES,
                                    .devices = &device,
                                    .n_devices = 1,
                                    .devices_stride = sizeof device,
                                    .costs = &costs,
                                    .generation = &generation};
  OPI_ASSERT_OK_FATAL(
      kit_generate(k, &context, opi_test_source("tests/data/llama_8block/model.onnx"), &params,
                   NULL),
      &k->err);
}

/* The shortest of all rounds, in which every stage computes all sequences once. */
static uint64_t shortest_round(host_kit *k) {
  static timed t[SEQUENCES];
  opipe_sequence *sequences[SEQUENCES];
  uint64_t least = UINT64_MAX;
  for (uint32_t i = 0; i < SEQUENCES; ++i) {
    opipe_generate_params p = opipe_generate_params_init();
    const uint32_t ids[2] = {i, i + 1};
    t[i].n = 0;
    p.ids = ids;
    p.n_ids = 2;
    p.sampling = "temperature=0,max_tokens=7";
    p.ctx = &t[i];
    p.on_token = on_token;
    OPI_ASSERT_OK_FATAL(k->api->session_generate(k->session, &p, &sequences[i], &k->err), &k->err);
  }
  for (uint32_t i = 0; i < SEQUENCES; ++i) {
    OPI_ASSERT_OK(k->api->sequence_wait(sequences[i], UINT32_MAX, UINT64_MAX, &k->err), &k->err);
    OPI_ASSERT_INT(t[i].n, TOKENS);
    for (uint32_t n = 2; n < TOKENS; ++n) {
      const uint64_t ns = t[i].at_ns[n] - t[i].at_ns[n - 1];
      least = ns < least ? ns : least;
    }
    k->api->sequence_release(sequences[i]);
  }
  return least;
}

/* A busy machine makes rounds longer: the quickest of some tries counts. */
static void test_equal_stages_are_busy(void) {
  enum { TRIES = 6 };
  const double busy = STAGES * STAGE_MS * 1e6;
  opipe_generation_info info = opipe_generation_info_init();
  uint64_t least = UINT64_MAX;
  uint32_t tries = 0;
  host_kit k;
  open(&k);
  while (tries < TRIES && 1 - busy / (double)least > 0.02) {
    const uint64_t ns = shortest_round(&k);
    least = ns < least ? ns : least;
    ++tries;
  }
  printf("a round of %.3f ms, stages busy for %.3f\n", (double)least * 1e-6, busy * 1e-6);
  OPI_ASSERT(1 - busy / (double)least <= 0.02);
  /* a round has as many passes as there are stages, each stage all of them */
  OPI_ASSERT_OK(k.api->session_generation(k.session, &info, &k.err), &k.err);
  OPI_ASSERT_INT(info.groups, STAGES);
  OPI_ASSERT(info.passes >= (uint64_t)tries * STAGES * (TOKENS - 1));
  kit_close(&k);
}

OPI_TEST_MAIN("generate/idle", OPI_TEST(test_equal_stages_are_busy))
