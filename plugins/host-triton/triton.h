/* SPDX-License-Identifier: Apache-2.0 */
/* Our own declarations of what is used of Triton's C interfaces for backends (TRITONBACKEND_*, 1.x)
 * and of the server (TRITONSERVER_*): handles, numbers, and functions, which are looked up by name
 * in the process that has loaded us, so that nothing of the server is needed to build.
 *
 * Tests hold them against a real server.
 */
#ifndef HOST_TRITON_H
#define HOST_TRITON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tri_error tri_error;     /* NULL: it went well; the receiver's */
typedef struct tri_message tri_message; /* JSON */
typedef struct tri_backend tri_backend;
typedef struct tri_model tri_model;
typedef struct tri_instance tri_instance; /* of a model */
typedef struct tri_request tri_request;
typedef struct tri_input tri_input;
typedef struct tri_response tri_response;
typedef struct tri_output tri_output;

enum { TRI_BACKEND_MAJOR = 1 };
enum {
  TRI_ERROR_UNKNOWN = 0,
  TRI_ERROR_INTERNAL = 1,
  TRI_ERROR_NOT_FOUND = 2,
  TRI_ERROR_INVALID_ARG = 3,
  TRI_ERROR_UNAVAILABLE = 4,
  TRI_ERROR_UNSUPPORTED = 5,
  TRI_ERROR_CANCELLED = 7
};
enum { TRI_LOG_INFO = 0, TRI_LOG_WARN = 1, TRI_LOG_ERROR = 2 };
enum { TRI_MEMORY_CPU = 0, TRI_MEMORY_PINNED = 1, TRI_MEMORY_GPU = 2 };
enum { TRI_ARTIFACT_FILES = 0 };
enum { TRI_TYPE_BYTES = 13 /* each with its length, of 4 bytes, before it */ };
enum { TRI_SEND_FINAL = 1, TRI_RELEASE_ALL = 1, TRI_CONFIG_VERSION = 1 };

/* X(ours, theirs, name): element types; "TYPE_" and the name in configurations. */
#define TRI_TYPES(X)     \
  X(BOOL, 1, "BOOL")     \
  X(UINT8, 2, "UINT8")   \
  X(UINT16, 3, "UINT16") \
  X(UINT32, 4, "UINT32") \
  X(UINT64, 5, "UINT64") \
  X(INT8, 6, "INT8")     \
  X(INT16, 7, "INT16")   \
  X(INT32, 8, "INT32")   \
  X(INT64, 9, "INT64")   \
  X(FLOAT16, 10, "FP16") \
  X(FLOAT, 11, "FP32")   \
  X(DOUBLE, 12, "FP64")  \
  X(BFLOAT16, 14, "BF16")

/* X(prefix, name, result, parameters) */
/* clang-format off */
#define TRI_FUNCTIONS(X) \
  X(SERVER, ErrorNew, tri_error *, (int code, const char *text)) \
  X(SERVER, ErrorDelete, void, (tri_error *error)) \
  X(SERVER, ErrorCode, int, (tri_error *error)) \
  X(SERVER, ErrorMessage, const char *, (tri_error *error)) \
  X(SERVER, LogMessage, tri_error *, (int level, const char *file, int line, const char *text)) \
  X(SERVER, MessageNewFromSerializedJson, tri_error *, \
    (tri_message **out, const char *text, size_t n_bytes)) \
  X(SERVER, MessageDelete, tri_error *, (tri_message *message)) \
  X(SERVER, MessageSerializeToJson, tri_error *, \
    (tri_message *message, const char **out, size_t *out_bytes)) \
  X(BACKEND, ApiVersion, tri_error *, (uint32_t *out_major, uint32_t *out_minor)) \
  X(BACKEND, BackendConfig, tri_error *, (tri_backend *backend, tri_message **out)) \
  X(BACKEND, BackendState, tri_error *, (tri_backend *backend, void **out)) \
  X(BACKEND, BackendSetState, tri_error *, (tri_backend *backend, void *state)) \
  X(BACKEND, ModelName, tri_error *, (tri_model *model, const char **out)) \
  X(BACKEND, ModelVersion, tri_error *, (tri_model *model, uint64_t *out)) \
  X(BACKEND, ModelRepository, tri_error *, (tri_model *model, int *out_kind, const char **out)) \
  X(BACKEND, ModelConfig, tri_error *, (tri_model *model, uint32_t version, tri_message **out)) \
  X(BACKEND, ModelAutoCompleteConfig, tri_error *, (tri_model *model, bool *out)) \
  X(BACKEND, ModelSetConfig, tri_error *, \
    (tri_model *model, uint32_t version, tri_message *config)) \
  X(BACKEND, ModelBackend, tri_error *, (tri_model *model, tri_backend **out)) \
  X(BACKEND, ModelState, tri_error *, (tri_model *model, void **out)) \
  X(BACKEND, ModelSetState, tri_error *, (tri_model *model, void *state)) \
  X(BACKEND, ModelInstanceModel, tri_error *, (tri_instance *instance, tri_model **out)) \
  X(BACKEND, ModelInstanceState, tri_error *, (tri_instance *instance, void **out)) \
  X(BACKEND, ModelInstanceSetState, tri_error *, (tri_instance *instance, void *state)) \
  X(BACKEND, ModelInstanceReportStatistics, tri_error *, \
    (tri_instance *instance, tri_request *request, bool success, uint64_t start_ns, \
     uint64_t compute_start_ns, uint64_t compute_end_ns, uint64_t end_ns)) \
  X(BACKEND, ModelInstanceReportBatchStatistics, tri_error *, \
    (tri_instance *instance, uint64_t rows, uint64_t start_ns, uint64_t compute_start_ns, \
     uint64_t compute_end_ns, uint64_t end_ns)) \
  X(BACKEND, RequestInput, tri_error *, (tri_request *request, const char *name, tri_input **out)) \
  X(BACKEND, RequestOutputCount, tri_error *, (tri_request *request, uint32_t *out)) \
  X(BACKEND, RequestOutputName, tri_error *, \
    (tri_request *request, uint32_t index, const char **out)) \
  X(BACKEND, RequestIsCancelled, tri_error *, (tri_request *request, bool *out)) \
  X(BACKEND, RequestRelease, tri_error *, (tri_request *request, uint32_t flags)) \
  X(BACKEND, InputProperties, tri_error *, \
    (tri_input *input, const char **out_name, int *out_type, const int64_t **out_shape, \
     uint32_t *out_rank, uint64_t *out_bytes, uint32_t *out_buffers)) \
  X(BACKEND, InputBuffer, tri_error *, \
    (tri_input *input, uint32_t index, const void **out, uint64_t *out_bytes, \
     int *io_memory, int64_t *io_memory_id)) \
  X(BACKEND, ResponseNew, tri_error *, (tri_response **out, tri_request *request)) \
  X(BACKEND, ResponseOutput, tri_error *, \
    (tri_response *response, tri_output **out, const char *name, int type, \
     const int64_t *shape, uint32_t rank)) \
  X(BACKEND, OutputBuffer, tri_error *, \
    (tri_output *output, void **out, uint64_t n_bytes, int *io_memory, int64_t *io_memory_id)) \
  X(BACKEND, ResponseSend, tri_error *, (tri_response *response, uint32_t flags, tri_error *error))
/* clang-format on */

/* One of these a process: filled by tri_look_up, read by all. */
typedef struct tri_table {
#define TRI_MEMBER_(prefix, name, result, parameters) result(*name) parameters;
  TRI_FUNCTIONS(TRI_MEMBER_)
} tri_table;

#endif /* HOST_TRITON_H */
