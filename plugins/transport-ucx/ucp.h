/* SPDX-License-Identifier: Apache-2.0 */
/* The part of UCP that transport-ucx calls, declared here, so that no package of headers is needed
 * to build it: functions found by name at run time, and structs as libucp 1.10 to 1.22 lay them
 * out. Structs that grew later have their later fields as `rest`: UCP reads a field only if the
 * mask names it. tests/plugins/transport-ucx/test_layout.c compares all of it with the headers.
 */
#ifndef OPIPE_TRANSPORT_UCX_UCP_H
#define OPIPE_TRANSPORT_UCX_UCP_H

#include <stddef.h>
#include <stdint.h>

typedef int8_t ucp_code; /* ucs_status_t, one byte wide: 0 fine, 1 in progress, < 0 an error */
enum { UCP_FINE = 0, UCP_IN_PROGRESS = 1, UCP_BUSY = -15, UCP_CANCELED = -16 };

typedef struct ucp_any *ucp_handle; /* a configuration, context, worker, address or connection */

typedef struct ucp_context_want {
  uint64_t mask, features;
  uint64_t rest[8];
} ucp_context_want;
enum { UCP_CONTEXT_FEATURES = 1 };
enum { UCP_FEATURE_TAGS = 1, UCP_FEATURE_WAKES = 16 };

typedef struct ucp_context_told {
  uint64_t mask;
  size_t request_size;
  uint64_t rest[6];
} ucp_context_told;
enum { UCP_TOLD_REQUEST_SIZE = 1 };

typedef struct ucp_worker_want {
  uint64_t mask;
  uint32_t thread_mode, reserved;
  uint64_t rest[23];
} ucp_worker_want;
enum { UCP_WORKER_THREAD_MODE = 1, UCP_THREADS_SERIALIZED = 1 };

typedef struct ucp_ep_want {
  uint64_t mask;
  const void *address;
  uint32_t error_mode, reserved;
  void (*on_error)(void *arg, ucp_handle ep, ucp_code status);
  void *on_error_arg;
  uint64_t rest[8];
} ucp_ep_want;
enum { UCP_EP_ADDRESS = 1, UCP_EP_ERROR_MODE = 2, UCP_EP_ON_ERROR = 4 };
enum { UCP_ERRORS_NONE = 0, UCP_ERRORS_OF_PEERS = 1 };

typedef struct ucp_arrived {
  uint64_t tag;
  size_t n_bytes;
} ucp_arrived;

/* Callbacks run inside `progress`, never inside the call that begins an operation. */
typedef void (*ucp_sent_fn)(void *request, ucp_code status, void *ctx);
typedef void (*ucp_received_fn)(void *request, ucp_code status, const ucp_arrived *what, void *ctx);

typedef struct ucp_op_want {
  uint32_t mask, flags;
  void *request; /* the end of request_size bytes of the caller's */
  union {
    ucp_sent_fn sent;
    ucp_received_fn received;
  } fn;
  uint64_t datatype;
  void *ctx;
  void *reply;
  uint32_t memory_type, reserved;
  ucp_arrived *arrived; /* written if a receive is over at once */
  uint64_t rest[1];
} ucp_op_want;
enum {
  UCP_OP_REQUEST = 1,
  UCP_OP_CALLBACK = 2,
  UCP_OP_CTX = 4,
  UCP_OP_FLAGS = 16,
  UCP_OP_MEMORY_TYPE = 64,
  UCP_OP_ARRIVED = 128
};
enum { UCP_CLOSE_FORCE = 1, UCP_MEMORY_HOST = 0 };

/* Every function of libucp that is called. */
typedef struct ucp_calls {
  void (*get_version)(unsigned *out_major, unsigned *out_minor, unsigned *out_release);
  const char *(*status_string)(ucp_code status);
  ucp_code (*config_read)(const char *prefix, const char *file, ucp_handle *out_config);
  ucp_code (*config_modify)(ucp_handle config, const char *name, const char *value);
  void (*config_release)(ucp_handle config);
  ucp_code (*init_version)(unsigned major, unsigned minor, const ucp_context_want *want,
                           ucp_handle config, ucp_handle *out_context);
  ucp_code (*context_query)(ucp_handle context, ucp_context_told *io_told);
  void (*cleanup)(ucp_handle context);
  ucp_code (*worker_create)(ucp_handle context, const ucp_worker_want *want,
                            ucp_handle *out_worker);
  void (*worker_destroy)(ucp_handle worker);
  ucp_code (*worker_get_address)(ucp_handle worker, ucp_handle *out_address, size_t *out_bytes);
  void (*worker_release_address)(ucp_handle worker, ucp_handle address);
  ucp_code (*worker_get_efd)(ucp_handle worker, int *out_fd);
  ucp_code (*worker_arm)(ucp_handle worker);
  ucp_code (*worker_signal)(ucp_handle worker);
  unsigned (*worker_progress)(ucp_handle worker);
  ucp_code (*ep_create)(ucp_handle worker, const ucp_ep_want *want, ucp_handle *out_ep);
  /* The answer of these four is NULL (over), an error as a pointer, or a request under way. */
  void *(*ep_close)(ucp_handle ep, const ucp_op_want *want);
  void *(*ep_flush)(ucp_handle ep, const ucp_op_want *want);
  void *(*tag_send)(ucp_handle ep, const void *data, size_t n_bytes, uint64_t tag,
                    const ucp_op_want *want);
  void *(*tag_recv)(ucp_handle worker, void *data, size_t n_bytes, uint64_t tag, uint64_t tag_mask,
                    const ucp_op_want *want);
  void (*request_cancel)(ucp_handle worker, void *request);
  ucp_code (*request_check)(void *request);
  void (*request_free)(void *request);
} ucp_calls;

/* The status in the answer of a call that begins an operation. */
static inline ucp_code ucp_answer(const void *answer) {
  const intptr_t value = (intptr_t)answer;
  return value == 0 ? UCP_FINE : value < 0 && value >= -100 ? (ucp_code)value : UCP_IN_PROGRESS;
}

#endif /* OPIPE_TRANSPORT_UCX_UCP_H */
