/* SPDX-License-Identifier: Apache-2.0 */
/* The declarations of plugins/transport-ucx/ucp.h against the headers of UCX, where they are there.
 */
#include "tests/support/support.h"

#if defined(__has_include)
#if __has_include(<ucp/api/ucp.h>)
#define HAVE_HEADERS 1
#endif
#endif

#ifdef HAVE_HEADERS
#include <ucp/api/ucp.h>

#include "plugins/transport-ucx/ucp.h"

#define SAME(ours, field, theirs, its)                                      \
  do {                                                                      \
    OPI_ASSERT_INT(offsetof(ours, field), offsetof(theirs, its));           \
    OPI_ASSERT_INT(sizeof(((ours *)0)->field), sizeof(((theirs *)0)->its)); \
  } while (0)

static void test_structs(void) {
  SAME(ucp_context_want, mask, ucp_params_t, field_mask);
  SAME(ucp_context_want, features, ucp_params_t, features);
  SAME(ucp_context_told, mask, ucp_context_attr_t, field_mask);
  SAME(ucp_context_told, request_size, ucp_context_attr_t, request_size);
  SAME(ucp_worker_want, mask, ucp_worker_params_t, field_mask);
  SAME(ucp_worker_want, thread_mode, ucp_worker_params_t, thread_mode);
  SAME(ucp_ep_want, mask, ucp_ep_params_t, field_mask);
  SAME(ucp_ep_want, address, ucp_ep_params_t, address);
  SAME(ucp_ep_want, error_mode, ucp_ep_params_t, err_mode);
  SAME(ucp_ep_want, on_error, ucp_ep_params_t, err_handler.cb);
  SAME(ucp_ep_want, on_error_arg, ucp_ep_params_t, err_handler.arg);
  SAME(ucp_arrived, tag, ucp_tag_recv_info_t, sender_tag);
  SAME(ucp_arrived, n_bytes, ucp_tag_recv_info_t, length);
  SAME(ucp_op_want, mask, ucp_request_param_t, op_attr_mask);
  SAME(ucp_op_want, flags, ucp_request_param_t, flags);
  SAME(ucp_op_want, request, ucp_request_param_t, request);
  SAME(ucp_op_want, fn, ucp_request_param_t, cb);
  SAME(ucp_op_want, ctx, ucp_request_param_t, user_data);
  SAME(ucp_op_want, memory_type, ucp_request_param_t, memory_type);
  SAME(ucp_op_want, arrived, ucp_request_param_t, recv_info);
  OPI_ASSERT_INT(sizeof(ucp_code), sizeof(ucs_status_t));
}

static void test_sizes(void) {
  OPI_ASSERT(sizeof(ucp_context_want) >= sizeof(ucp_params_t));
  OPI_ASSERT(sizeof(ucp_context_told) >= sizeof(ucp_context_attr_t));
  OPI_ASSERT(sizeof(ucp_worker_want) >= sizeof(ucp_worker_params_t));
  OPI_ASSERT(sizeof(ucp_ep_want) >= sizeof(ucp_ep_params_t));
  OPI_ASSERT(sizeof(ucp_op_want) >= sizeof(ucp_request_param_t));
}

static void test_values(void) {
  OPI_ASSERT_INT(UCP_CONTEXT_FEATURES, UCP_PARAM_FIELD_FEATURES);
  OPI_ASSERT_INT(UCP_FEATURE_TAGS, UCP_FEATURE_TAG);
  OPI_ASSERT_INT(UCP_FEATURE_WAKES, UCP_FEATURE_WAKEUP);
  OPI_ASSERT_INT(UCP_TOLD_REQUEST_SIZE, UCP_ATTR_FIELD_REQUEST_SIZE);
  OPI_ASSERT_INT(UCP_WORKER_THREAD_MODE, UCP_WORKER_PARAM_FIELD_THREAD_MODE);
  OPI_ASSERT_INT(UCP_THREADS_SERIALIZED, UCS_THREAD_MODE_SERIALIZED);
  OPI_ASSERT_INT(UCP_EP_ADDRESS, UCP_EP_PARAM_FIELD_REMOTE_ADDRESS);
  OPI_ASSERT_INT(UCP_EP_ERROR_MODE, UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE);
  OPI_ASSERT_INT(UCP_EP_ON_ERROR, UCP_EP_PARAM_FIELD_ERR_HANDLER);
  OPI_ASSERT_INT(UCP_ERRORS_NONE, UCP_ERR_HANDLING_MODE_NONE);
  OPI_ASSERT_INT(UCP_ERRORS_OF_PEERS, UCP_ERR_HANDLING_MODE_PEER);
  OPI_ASSERT_INT(UCP_OP_REQUEST, UCP_OP_ATTR_FIELD_REQUEST);
  OPI_ASSERT_INT(UCP_OP_CALLBACK, UCP_OP_ATTR_FIELD_CALLBACK);
  OPI_ASSERT_INT(UCP_OP_CTX, UCP_OP_ATTR_FIELD_USER_DATA);
  OPI_ASSERT_INT(UCP_OP_FLAGS, UCP_OP_ATTR_FIELD_FLAGS);
  OPI_ASSERT_INT(UCP_OP_MEMORY_TYPE, UCP_OP_ATTR_FIELD_MEMORY_TYPE);
  OPI_ASSERT_INT(UCP_OP_ARRIVED, UCP_OP_ATTR_FIELD_RECV_INFO);
  OPI_ASSERT_INT(UCP_CLOSE_FORCE, UCP_EP_CLOSE_FLAG_FORCE);
  OPI_ASSERT_INT(UCP_MEMORY_HOST, UCS_MEMORY_TYPE_HOST);
  OPI_ASSERT_INT(UCP_IN_PROGRESS, UCS_INPROGRESS);
  OPI_ASSERT_INT(UCP_BUSY, UCS_ERR_BUSY);
  OPI_ASSERT_INT(UCP_CANCELED, UCS_ERR_CANCELED);
}
#else
static void test_structs(void) {
  OPI_SKIP("UCX's headers (libucx-dev) are not there");
}
static void test_sizes(void) {
  OPI_SKIP("UCX's headers (libucx-dev) are not there");
}
static void test_values(void) {
  OPI_SKIP("UCX's headers (libucx-dev) are not there");
}
#endif

OPI_TEST_MAIN("transport-ucx's declarations of UCP", OPI_TEST(test_structs), OPI_TEST(test_sizes),
              OPI_TEST(test_values))
