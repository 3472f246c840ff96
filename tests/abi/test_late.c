/* SPDX-License-Identifier: Apache-2.0 */
/* Results that come later than the call that caused them: errors of queued work, and the readiness
 * of opened objects. Sessions on the emulated device and transport, which are late on purpose.
 */
#include <opipe/helpers.h>

#include "tests/abi/host_kit.h"

static const char *const GPT = "tests/data/gpt_8block/model.onnx";
static const int64_t good[8] = {1, 2, 3, 4, 5, 6, 7, 8}, shape[2] = {1, 8};

static opipe_status plan_on(host_kit *k, const char *device, const char *transport) {
  const opipe_device_choice choice = {.kind = device, .threads = 1};
  opipe_plan_params params = opipe_plan_params_init();
  params.n_stages = 2;
  params.devices = &choice;
  params.n_devices = 1;
  params.transport = transport;
  return kit_plan(k, NULL, GPT, 1, 8, &params);
}

static opipe_status request_on(host_kit *k, const int64_t *ids, float *out_first) {
  opipe_request *request = NULL;
  opipe_tensor logits;
  const opipe_binding_io input = kit_ids(ids, shape);
  opipe_status status = kit_submit(k, &input, &request);
  if (status == OPIPE_OK)
    status = k->api->request_wait(request, UINT64_MAX, &k->err);
  if (status == OPIPE_OK)
    status = k->api->request_output(request, 0, &logits, &k->err);
  if (status == OPIPE_OK)
    *out_first = *(const float *)logits.data;
  k->api->request_release(request);
  return status;
}

/* An index out of range is found when the device has come to it: it fails its own request, and no
 * other one. */
static void test_a_late_data_error_fails_its_request_alone(void) {
  static const int64_t bad[8] = {1, 2, 3, 1 << 30, 5, 6, 7, 8};
  host_kit k;
  float before = 0, after = 1;
  OPI_ASSERT_OK_FATAL(plan_on(&k, "emulated", NULL), &k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&k, NULL), &k.err);
  OPI_ASSERT_OK(request_on(&k, good, &before), &k.err);
  for (int twice = 0; twice < 2; ++twice) {
    OPI_ASSERT_ERROR(request_on(&k, bad, &after), OPIPE_E_INVALID, &k.err, "1073741824");
    OPI_ASSERT_OK(request_on(&k, good, &after), &k.err);
    OPI_ASSERT(before == after);
  }
  kit_close(&k);
}

/* Streams that need their peers are asked until they can be used: the ones of set-up, and those of
 * a shape that comes later. (The transport refuses messages before its OK.) */
static void test_what_is_opened_is_waited_for(void) {
  host_kit k;
  float at_once = 0, later = 1;
  OPI_ASSERT_OK_FATAL(plan_on(&k, "cpu", "emulated"), &k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&k, NULL), &k.err);
  OPI_ASSERT_OK(request_on(&k, good, &at_once), &k.err);
  kit_close(&k);
  OPI_ASSERT_OK_FATAL(plan_on(&k, "cpu", "emulated:setup_us=20000"), &k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&k, NULL), &k.err);
  OPI_ASSERT_OK(request_on(&k, good, &later), &k.err);
  OPI_ASSERT(at_once == later);
  const int64_t shorter[2] = {1, 5};
  opipe_request *request = NULL;
  const opipe_binding_io input = kit_ids(good, shorter);
  OPI_ASSERT_OK(kit_submit(&k, &input, &request), &k.err);
  OPI_ASSERT_OK(k.api->request_wait(request, UINT64_MAX, &k.err), &k.err);
  k.api->request_release(request);
  kit_close(&k);
}

/* Groups too: two copies of a pipeline sum their gradients. */
static void test_groups_are_waited_for(void) {
  opipe_train_options train = opipe_train_options_init();
  opipe_plan_params params = opipe_plan_params_init();
  opipe_submit_params submit = opipe_submit_params_init();
  opipe_request *ticket = NULL;
  const int64_t ids[16] = {1, 2, 3, 4, 5, 6, 7, 8}, both[2] = {2, 8};
  opipe_binding_io inputs[2] = {kit_ids(ids, both), kit_ids(ids, both)};
  host_kit k;
  train.loss = OPIPE_LOSS_CROSS_ENTROPY;
  train.output = "logits";
  train.labels = inputs[1].name = "labels";
  train.lr = 0.01;
  params.n_stages = 1;
  params.n_microbatches = 2;
  params.replicas = 2;
  params.schedule = "1f1b";
  params.transport = "emulated:setup_us=5000";
  params.train = &train;
  submit.inputs = inputs;
  submit.n_inputs = 2;
  OPI_ASSERT_OK_FATAL(kit_plan_training(&k, GPT, 2, 8, &params), &k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&k, NULL), &k.err);
  OPI_ASSERT_OK(k.api->session_train_step(k.session, &submit, &ticket, &k.err), &k.err);
  OPI_ASSERT_OK(k.api->request_wait(ticket, UINT64_MAX, &k.err), &k.err);
  k.api->request_release(ticket);
  kit_close(&k);
}

static void test_peers_that_never_come_are_a_time_out(void) {
  host_kit k;
  opipe_session_params params = opipe_session_params_init();
  params.watchdog_ns = 50000000;
  OPI_ASSERT_OK_FATAL(plan_on(&k, "cpu", "emulated:setup_us=60000000"), &k.err);
  OPI_ASSERT_ERROR(kit_open(&k, &params), OPIPE_E_TIMEOUT, &k.err,
                   "transport 'emulated': the endpoint of rank 0 was not ready within 50 ms");
  kit_close(&k);
}

/* helpers.h implements the rule for backends: a data error once, a device error from then on. */
static void test_the_rule_of_late_errors(void) {
  opipe_late queue, events[4];
  opipe_error why = OPIPE_ERROR_INIT, err = OPIPE_ERROR_INIT;
  memset(&queue, 0, sizeof queue);
  opipe_late_record(&queue, &events[0]);
  opipe_late_add(&queue, opipe_fail(&why, OPIPE_E_INVALID, "the first index"), &why);
  opipe_late_add(&queue, opipe_fail(&why, OPIPE_E_INVALID, "the second index"), &why);
  opipe_late_record(&queue, &events[1]);
  opipe_late_record(&queue, &events[2]);
  OPI_ASSERT_OK(opipe_late_answer(&events[0], &err), &err);
  for (int twice = 0; twice < 2; ++twice)
    OPI_ASSERT_ERROR(opipe_late_answer(&events[1], &err), OPIPE_E_INVALID, &err, "the first index");
  OPI_ASSERT_OK(opipe_late_answer(&events[2], &err), &err);
  /* A device error goes before a data error, and stays. */
  opipe_late_add(&queue, opipe_fail(&why, OPIPE_E_INVALID, "the third index"), &why);
  opipe_late_add(&queue, opipe_fail(&why, OPIPE_E_DEVICE, "on fire"), &why);
  opipe_late_add(&queue, opipe_fail(&why, OPIPE_E_NOMEM, "later"), &why);
  opipe_late_add(&queue, opipe_fail(&why, OPIPE_E_INVALID, "the fourth index"), &why);
  for (int i = 1; i < 4; ++i) {
    opipe_late_record(&queue, &events[i]);
    OPI_ASSERT_ERROR(opipe_late_answer(&events[i], &err), OPIPE_E_DEVICE, &err, "on fire");
  }
  OPI_ASSERT_OK(opipe_late_answer(&events[0], &err), &err);
}

OPI_TEST_MAIN("late", OPI_TEST(test_the_rule_of_late_errors),
              OPI_TEST(test_a_late_data_error_fails_its_request_alone),
              OPI_TEST(test_what_is_opened_is_waited_for), OPI_TEST(test_groups_are_waited_for),
              OPI_TEST(test_peers_that_never_come_are_a_time_out))
