/* SPDX-License-Identifier: Apache-2.0 */
/* Handles that are not what a call wants: another kind, released, closed, destroyed, NULL, garbage.
 * All are refused with a message, and nobody else's object suffers.
 */
#include "tests/abi/host_kit.h"

static const char *const GPT = "tests/data/gpt_8block/model.onnx";
static const int64_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8};
static const int64_t shape[2] = {1, 8};
static const uint64_t SOON = UINT64_C(30000000000);

static opipe_request *submit(host_kit *k) {
  opipe_request *request = NULL;
  const opipe_binding_io input = kit_ids(ids, shape);
  OPI_ASSERT_OK(kit_submit(k, &input, &request), &k->err);
  return request;
}

/* A release that comes too late must not take the next request from its owner, which lies in the
 * same memory. */
static void test_a_stale_release_leaves_the_next_request_alone(void) {
  host_kit k;
  opipe_tensor out;
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, GPT, 1, 8, NULL), &k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&k, NULL), &k.err);
  opipe_request *first = submit(&k);
  OPI_ASSERT_OK(k.api->request_wait(first, SOON, &k.err), &k.err);
  k.api->request_release(first);
  for (uint32_t i = 0; i < 200; ++i) {
    opipe_request *next = submit(&k);
    OPI_ASSERT(next != first);
    k.api->request_release(first);
    OPI_ASSERT_ERROR(k.api->request_poll(first, &k.err), OPIPE_E_STATE, &k.err,
                     "request_poll: the request was released");
    OPI_ASSERT_OK(k.api->request_wait(next, SOON, &k.err), &k.err);
    k.api->request_release(first);
    OPI_ASSERT_OK(k.api->request_output(next, 0, &out, &k.err), &k.err);
    k.api->request_release(next);
    k.api->request_release(next);
  }
  kit_close(&k);
}

/* Requests of a closed session are gone, released or not. */
static void test_requests_end_with_their_session(void) {
  host_kit k;
  opipe_tensor out;
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, GPT, 1, 8, NULL), &k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&k, NULL), &k.err);
  opipe_request *finished = submit(&k), *flying = submit(&k);
  OPI_ASSERT_OK(k.api->request_wait(finished, SOON, &k.err), &k.err);
  k.api->session_close(k.session);
  k.session = NULL;
  OPI_ASSERT_ERROR(k.api->request_output(finished, 0, &out, &k.err), OPIPE_E_STATE, &k.err,
                   "its session closed");
  OPI_ASSERT_INT(k.api->request_wait(flying, SOON, &k.err), OPIPE_E_STATE);
  OPI_ASSERT_INT(k.api->request_cancel(flying, &k.err), OPIPE_E_STATE);
  k.api->request_release(finished);
  k.api->request_release(flying);
  kit_close(&k);
}

static void test_a_request_for_inference_has_no_report(void) {
  host_kit k;
  opipe_train_report report = {.struct_size = sizeof report};
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, GPT, 1, 8, NULL), &k.err);
  OPI_ASSERT_OK_FATAL(kit_open(&k, NULL), &k.err);
  opipe_request *request = submit(&k);
  OPI_ASSERT_OK(k.api->request_wait(request, SOON, &k.err), &k.err);
  OPI_ASSERT_ERROR(k.api->request_report(request, &report, &k.err), OPIPE_E_STATE, &k.err,
                   "for inference");
  k.api->request_release(request);
  kit_close(&k);
}

OPI_TEST_MAIN("misuse", OPI_TEST(test_a_stale_release_leaves_the_next_request_alone),
              OPI_TEST(test_requests_end_with_their_session),
              OPI_TEST(test_a_request_for_inference_has_no_report))
