/* SPDX-License-Identifier: Apache-2.0 */
/* Plans from descriptions through the host's table (1.1): devices and links that nobody has; what
 * is out of range is refused by its field; bytes are marked as estimates; a host of 1.0 has none of
 * it.
 */
#include <stdlib.h>

#include "opipe/backend.h"
#include "opipe/transport.h"
#include "tests/abi/host_kit.h"

static const char *const GPT = "tests/data/gpt_8block/model.onnx";
enum { RANKS = 64 };

typedef struct described {
  opipe_device_choice devices[RANKS];
  opipe_device_description descriptions[RANKS];
  opipe_link_description link;
  opipe_plan_params params;
} described;

static void describe(described *d, const char *kind, const char *transport) {
  *d = (described){.link = opipe_link_description_init(), .params = opipe_plan_params_init()};
  for (uint32_t i = 0; i < RANKS; ++i) {
    d->devices[i] = (opipe_device_choice){.kind = kind, .threads = 1};
    d->descriptions[i] =
        (opipe_device_description){.flops = 80e9,
                                   .bandwidth = 10e9,
                                   .launch_ns = 300,
                                   .max_threads = 1,
                                   .alignment = 64,
                                   .flags = OPIPE_DEVICE_HOST_MEMORY | OPIPE_DEVICE_SYNCHRONOUS};
  }
  d->link.latency_ns = 1000;
  d->link.bandwidth = 1e10;
  d->params.devices = d->devices;
  d->params.n_devices = RANKS;
  d->params.descriptions = d->descriptions;
  d->params.n_descriptions = RANKS;
  d->params.transport = transport;
  d->params.link = &d->link;
  d->params.n_microbatches = 4;
}

static void test_devices_that_nobody_has(void) {
  host_kit k;
  described d;
  opipe_session *session = NULL;
  opipe_plan_info info = {.struct_size = sizeof info};
  uint64_t sum = 0;
  describe(&d, "hypothetical", "imagined");
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, GPT, 4, 8, &d.params), &k.err);
  OPI_ASSERT_OK(k.api->plan_info(k.plan, &info, &k.err), &k.err);
  OPI_ASSERT_INT(info.n_ranks, RANKS);
  OPI_ASSERT(info.request_ns > 63 * 1000 && info.interval_ns > 0);
  for (uint32_t r = 0; r < RANKS; ++r) {
    opipe_memory_info m = {.struct_size = sizeof m};
    OPI_ASSERT_OK(k.api->plan_memory(k.plan, r, &m, &k.err), &k.err);
    OPI_ASSERT_INT(m.flags, OPIPE_MEMORY_ESTIMATED);
    OPI_ASSERT_INT(m.workspace_bytes, 0);
    OPI_ASSERT(m.total_bytes == m.params_bytes + m.activation_bytes + m.boundary_bytes);
    sum += m.params_bytes;
  }
  OPI_ASSERT(sum > 0);
  OPI_ASSERT_ERROR(k.api->session_open(k.context, k.plan, NULL, &session, &k.err), OPIPE_E_NOTFOUND,
                   &k.err, "hypothetical");
  kit_close(&k);
}

static void refuse(described *d, const char *says) {
  host_kit k;
  const opipe_status status = kit_plan(&k, NULL, GPT, 4, 8, &d->params);
  OPI_ASSERT_ERROR(status, OPIPE_E_INVALID, &k.err, says);
  kit_close(&k);
}

static void test_numbers_out_of_range(void) {
  described d;
  describe(&d, "hypothetical", "imagined");
  d.descriptions[7].alignment = 48;
  refuse(&d, "descriptions[7]: \"alignment\" is 48");
  describe(&d, "hypothetical", "imagined");
  d.descriptions[7].alignment = 0;
  refuse(&d, "descriptions[7]: \"alignment\" is 0");
  describe(&d, "hypothetical", "imagined");
  d.descriptions[63].flops = -1;
  refuse(&d, "descriptions[63]: \"flops\" is -1");
  describe(&d, "hypothetical", "imagined");
  d.descriptions[0].bandwidth = 1e31;
  refuse(&d, "descriptions[0]: \"bandwidth\" is 1e+31");
  describe(&d, "hypothetical", "imagined");
  d.descriptions[0].launch_ns = __builtin_nan("");
  refuse(&d, "descriptions[0]: \"launch_ns\" is ");
  describe(&d, "hypothetical", "imagined");
  d.descriptions[0].flags = 32;
  refuse(&d, "descriptions[0]: \"flags\" is 0x20: the bits 0x20 are unknown");
  describe(&d, "hypothetical", "imagined");
  d.link.rule = 6;
  refuse(&d, "link: \"rule\" is 6; 0 to 5 are known");
  describe(&d, "hypothetical", "imagined");
  d.link.thread_rule = 2;
  refuse(&d, "link: \"thread_rule\" is 2");
  describe(&d, "hypothetical", "imagined");
  d.link.bandwidth = 0.5;
  refuse(&d, "link: \"bandwidth\" is 0.5");
  describe(&d, "hypothetical", "imagined");
  d.params.n_descriptions = RANKS - 1;
  refuse(&d, "63 descriptions of 64 devices");
  describe(&d, "hypothetical", "imagined");
  d.params.cluster = "{}";
  d.params.cluster_bytes = 2;
  refuse(&d, "a cluster, and 64 devices, 64 descriptions and 1 links");
}

/* A cap that the estimate holds and the device does not, or the other way round: the session's word
 * is the last. */
static void test_a_session_counts_again(void) {
  host_kit k;
  described d;
  opipe_memory_info guess = {.struct_size = sizeof guess}, exact = guess, held = guess;
  const opipe_device_choice one = {.kind = "cpu", .options = "mapped=0", .threads = 1};
  opipe_plan_params asked = opipe_plan_params_init();
  asked.devices = &one;
  asked.n_devices = 1;
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, GPT, 4, 8, &asked), &k.err);
  OPI_ASSERT_OK(k.api->plan_memory(k.plan, 0, &exact, &k.err), &k.err);
  OPI_ASSERT_INT(exact.flags, 0);
  kit_close(&k);
  describe(&d, "cpu", NULL);
  d.devices[0].options = "mapped=0";
  d.params.n_devices = d.params.n_descriptions = 1;
  d.params.link = NULL;
  d.params.n_microbatches = 1;
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, GPT, 4, 8, &d.params), &k.err);
  OPI_ASSERT_OK(k.api->plan_memory(k.plan, 0, &guess, &k.err), &k.err);
  OPI_ASSERT_INT(guess.flags, OPIPE_MEMORY_ESTIMATED);
  OPI_ASSERT(guess.boundary_bytes == exact.boundary_bytes);
  OPI_ASSERT_OK(kit_open(&k, NULL), &k.err);
  OPI_ASSERT_OK(k.api->session_memory(k.session, 0, &held, &k.err), &k.err);
  OPI_ASSERT_INT((int64_t)held.total_bytes, (int64_t)exact.total_bytes);
  kit_close(&k);
}

/* The params of a host of 1.0 end before the descriptions. */
static void test_a_host_of_before(void) {
  host_kit k;
  described d;
  opipe_memory_info m = {.struct_size = sizeof m};
  describe(&d, "cpu", NULL);
  d.params.n_devices = 1;
  d.params.struct_size = (uint32_t)OPIPE_END(opipe_plan_params, reserved);
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, GPT, 4, 8, &d.params), &k.err);
  OPI_ASSERT_OK(k.api->plan_memory(k.plan, 0, &m, &k.err), &k.err);
  OPI_ASSERT_INT(m.flags, 0);
  kit_close(&k);
}

OPI_TEST_MAIN("descriptions", OPI_TEST(test_devices_that_nobody_has),
              OPI_TEST(test_numbers_out_of_range), OPI_TEST(test_a_session_counts_again),
              OPI_TEST(test_a_host_of_before))
