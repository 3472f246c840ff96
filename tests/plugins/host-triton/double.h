/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for Triton Inference Server: the functions that the backend looks up, by their names,
 * over plain structs. Every one counts its calls; what is made and what is given back is counted
 * too.
 */
#ifndef TESTS_TRITON_DOUBLE_H
#define TESTS_TRITON_DOUBLE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugins/host-triton/triton.h"

enum { DOUBLE_OUTPUTS = 4, DOUBLE_RANK = 4 };

struct tri_error {
  int code;
  char text[1024];
};
struct tri_message {
  char *text;
};
struct tri_backend {
  void *state;
  tri_message config;
};
struct tri_model {
  tri_backend *backend;
  void *state;
  const char *name, *folder;
  char *config;    /* the model's configuration */
  char *completed; /* as completed by the backend; NULL: not */
  bool as_it_is;   /* nothing may be completed */
};
struct tri_instance {
  tri_model *model;
  void *state;
  int n_good, n_bad, n_runs;
  uint64_t n_rows;
};
struct tri_input {
  const char *name;
  int type, memory;
  uint32_t rank, n_pieces; /* pieces of equal length but for the last */
  int64_t shape[DOUBLE_RANK];
  const char *data;
  uint64_t n_bytes;
};
struct tri_output {
  const char *name;
  uint32_t rank;
  int64_t shape[DOUBLE_RANK];
  void *data;
  uint64_t n_bytes;
};
struct tri_request {
  tri_input input, more; /* more.name NULL: one input */
  const char *wanted; /* the only output that is asked for; "*": those of a model that generates */
  int is_cancelled;   /* atomic */
  bool in_gpu;        /* where outputs are to be */
  /* The answer. */
  tri_response *response; /* the latest */
  int n_sent, n_released; /* atomic; sent: 1 for the last, 100 for each before */
};
struct tri_response {
  tri_request *request;
  tri_response *before;
  tri_output outputs[DOUBLE_OUTPUTS];
  uint32_t n_outputs;
  tri_error *error;
};

#define DOUBLE_INDEX_(prefix, name, result, parameters) DOUBLE_AT_##name,
enum { TRI_FUNCTIONS(DOUBLE_INDEX_) DOUBLE_N };
static unsigned double_calls[DOUBLE_N];
static char double_log[16384];
static pthread_mutex_t double_lock = PTHREAD_MUTEX_INITIALIZER; /* of the log, and of counts */
static int double_live;              /* errors and messages that were made and not deleted */
static uint32_t double_major;        /* of the interface */
static atomic_int double_fails = -1; /* the next call of this one fails */

#define SEEN(name) __atomic_fetch_add(&double_calls[DOUBLE_AT_##name], 1, __ATOMIC_RELAXED)
#define LIVE(n) __atomic_fetch_add(&double_live, n, __ATOMIC_RELAXED)

/* Defined under the name that the backend looks for. */
#define DOUBLE(prefix, name, result, ...)                                             \
  __attribute__((visibility("default"))) result TRITON##prefix##_##name(__VA_ARGS__); \
  result TRITON##prefix##_##name(__VA_ARGS__)
/* The usual: counted, and made to fail where that was asked for. */
#define CALL(name)                                                 \
  SEEN(name);                                                      \
  int asked = DOUBLE_AT_##name;                                    \
  if (atomic_compare_exchange_strong(&double_fails, &asked, -1)) { \
    return double_error(1, #name " does not go");                  \
  }

static tri_error *double_error(int code, const char *text) {
  tri_error *error = calloc(1, sizeof *error);
  if (error == NULL)
    abort();
  LIVE(1);
  error->code = code;
  (void)snprintf(error->text, sizeof error->text, "%s", text);
  return error;
}

/* ---- errors, log, messages ---- */

DOUBLE(SERVER, ErrorNew, tri_error *, int code, const char *text) {
  SEEN(ErrorNew);
  return double_error(code, text);
}
DOUBLE(SERVER, ErrorDelete, void, tri_error *error) {
  SEEN(ErrorDelete);
  LIVE(-1);
  free(error);
}
DOUBLE(SERVER, ErrorCode, int, tri_error *error) {
  SEEN(ErrorCode);
  return error->code;
}
DOUBLE(SERVER, ErrorMessage, const char *, tri_error *error) {
  SEEN(ErrorMessage);
  return error->text;
}
DOUBLE(SERVER, LogMessage, tri_error *, int level, const char *file, int line, const char *text) {
  SEEN(LogMessage);
  (void)level, (void)file, (void)line;
  (void)pthread_mutex_lock(&double_lock);
  const size_t n = strlen(double_log);
  (void)snprintf(double_log + n, sizeof double_log - n, "%s\n", text);
  (void)pthread_mutex_unlock(&double_lock);
  return NULL;
}
static tri_message *double_message(const char *text, size_t n) {
  tri_message *message = calloc(1, sizeof *message);
  char *copy = calloc(1, n + 1);
  if (message == NULL || copy == NULL)
    abort();
  LIVE(1);
  memcpy(copy, text, n);
  message->text = copy;
  return message;
}
DOUBLE(SERVER, MessageNewFromSerializedJson, tri_error *, tri_message **out, const char *text,
       size_t n_bytes) {
  CALL(MessageNewFromSerializedJson)
  *out = double_message(text, n_bytes);
  return NULL;
}
DOUBLE(SERVER, MessageDelete, tri_error *, tri_message *message) {
  SEEN(MessageDelete);
  LIVE(-1);
  free(message->text);
  free(message);
  return NULL;
}
DOUBLE(SERVER, MessageSerializeToJson, tri_error *, tri_message *message, const char **out,
       size_t *out_bytes) {
  CALL(MessageSerializeToJson)
  *out = message->text;
  *out_bytes = strlen(message->text);
  return NULL;
}

/* ---- backend, model, instance ---- */

DOUBLE(BACKEND, ApiVersion, tri_error *, uint32_t *out_major, uint32_t *out_minor) {
  CALL(ApiVersion)
  *out_major = double_major;
  *out_minor = 19;
  return NULL;
}
DOUBLE(BACKEND, BackendConfig, tri_error *, tri_backend *backend, tri_message **out) {
  CALL(BackendConfig)
  *out = &backend->config;
  return NULL;
}
/* A getter of a member. */
#define DOUBLE_GET(name, object, type, member)                \
  DOUBLE(BACKEND, name, tri_error *, object *of, type *out) { \
    CALL(name)                                                \
    *out = of->member;                                        \
    return NULL;                                              \
  }
#define DOUBLE_SET(name, object)                                \
  DOUBLE(BACKEND, name, tri_error *, object *of, void *state) { \
    CALL(name)                                                  \
    of->state = state;                                          \
    return NULL;                                                \
  }
DOUBLE_GET(BackendState, tri_backend, void *, state)
DOUBLE_SET(BackendSetState, tri_backend)
DOUBLE_GET(ModelName, tri_model, const char *, name)
DOUBLE_GET(ModelBackend, tri_model, tri_backend *, backend)
DOUBLE_GET(ModelState, tri_model, void *, state)
DOUBLE_SET(ModelSetState, tri_model)
DOUBLE_GET(ModelInstanceModel, tri_instance, tri_model *, model)
DOUBLE_GET(ModelInstanceState, tri_instance, void *, state)
DOUBLE_SET(ModelInstanceSetState, tri_instance)
DOUBLE(BACKEND, ModelVersion, tri_error *, tri_model *model, uint64_t *out) {
  CALL(ModelVersion)
  (void)model;
  *out = 1;
  return NULL;
}
DOUBLE(BACKEND, ModelRepository, tri_error *, tri_model *model, int *out_kind, const char **out) {
  CALL(ModelRepository)
  *out_kind = TRI_ARTIFACT_FILES;
  *out = model->folder;
  return NULL;
}
DOUBLE(BACKEND, ModelConfig, tri_error *, tri_model *model, uint32_t version, tri_message **out) {
  CALL(ModelConfig)
  (void)version;
  *out = double_message(model->config, strlen(model->config));
  return NULL;
}
DOUBLE(BACKEND, ModelAutoCompleteConfig, tri_error *, tri_model *model, bool *out) {
  CALL(ModelAutoCompleteConfig)
  *out = !model->as_it_is;
  return NULL;
}
DOUBLE(BACKEND, ModelSetConfig, tri_error *, tri_model *model, uint32_t version,
       tri_message *config) {
  CALL(ModelSetConfig)
  (void)version;
  free(model->completed);
  model->completed = strdup(config->text);
  return NULL;
}
DOUBLE(BACKEND, ModelInstanceReportStatistics, tri_error *, tri_instance *instance,
       tri_request *request, bool success, uint64_t start_ns, uint64_t compute_start_ns,
       uint64_t compute_end_ns, uint64_t end_ns) {
  CALL(ModelInstanceReportStatistics)
  if (request->n_released != 0 || start_ns > compute_start_ns ||
      compute_start_ns > compute_end_ns || compute_end_ns > end_ns)
    return double_error(1, "times that run backwards, or a request that is gone");
  __atomic_fetch_add(success ? &instance->n_good : &instance->n_bad, 1, __ATOMIC_RELAXED);
  return NULL;
}
DOUBLE(BACKEND, ModelInstanceReportBatchStatistics, tri_error *, tri_instance *instance,
       uint64_t rows, uint64_t start_ns, uint64_t compute_start_ns, uint64_t compute_end_ns,
       uint64_t end_ns) {
  CALL(ModelInstanceReportBatchStatistics)
  if (start_ns > compute_start_ns || compute_start_ns > compute_end_ns || compute_end_ns > end_ns)
    return double_error(1, "times that run backwards");
  __atomic_fetch_add(&instance->n_runs, 1, __ATOMIC_RELAXED);
  __atomic_fetch_add(&instance->n_rows, rows, __ATOMIC_RELAXED);
  return NULL;
}

/* ---- requests and answers ---- */

DOUBLE(BACKEND, RequestInput, tri_error *, tri_request *request, const char *name,
       tri_input **out) {
  CALL(RequestInput)
  tri_input *const list[] = {&request->input, &request->more};
  for (int i = 0; i < 2; ++i) {
    if (list[i]->name != NULL && strcmp(list[i]->name, name) == 0) {
      *out = list[i];
      return NULL;
    }
  }
  return double_error(TRI_ERROR_NOT_FOUND, "no such input");
}
DOUBLE(BACKEND, RequestOutputCount, tri_error *, tri_request *request, uint32_t *out) {
  CALL(RequestOutputCount)
  *out = request->wanted == NULL ? 0 : request->wanted[0] == '*' ? 4 : 1;
  return NULL;
}
DOUBLE(BACKEND, RequestOutputName, tri_error *, tri_request *request, uint32_t index,
       const char **out) {
  CALL(RequestOutputName)
  static const char *const all[] = {"token", "answer", "end", "logprob"};
  *out = request->wanted[0] == '*' ? all[index] : request->wanted;
  return NULL;
}
DOUBLE(BACKEND, RequestIsCancelled, tri_error *, tri_request *request, bool *out) {
  CALL(RequestIsCancelled)
  *out = __atomic_load_n(&request->is_cancelled, __ATOMIC_ACQUIRE) != 0;
  return NULL;
}
DOUBLE(BACKEND, RequestRelease, tri_error *, tri_request *request, uint32_t flags) {
  SEEN(RequestRelease);
  (void)flags;
  __atomic_fetch_add(&request->n_released, 1, __ATOMIC_RELEASE);
  return NULL;
}
DOUBLE(BACKEND, InputProperties, tri_error *, tri_input *input, const char **out_name,
       int *out_type, const int64_t **out_shape, uint32_t *out_rank, uint64_t *out_bytes,
       uint32_t *out_buffers) {
  CALL(InputProperties)
  (void)out_name;
  if (out_type != NULL)
    *out_type = input->type;
  if (out_shape != NULL)
    *out_shape = input->shape;
  if (out_rank != NULL)
    *out_rank = input->rank;
  *out_bytes = input->n_bytes;
  *out_buffers = input->n_pieces;
  return NULL;
}
DOUBLE(BACKEND, InputBuffer, tri_error *, tri_input *input, uint32_t index, const void **out,
       uint64_t *out_bytes, int *io_memory, int64_t *io_memory_id) {
  CALL(InputBuffer)
  const uint64_t each = input->n_bytes / input->n_pieces;
  (void)io_memory_id;
  *out = input->data + each * index;
  *out_bytes = index + 1 == input->n_pieces ? input->n_bytes - each * index : each;
  *io_memory = input->memory;
  return NULL;
}
DOUBLE(BACKEND, ResponseNew, tri_error *, tri_response **out, tri_request *request) {
  CALL(ResponseNew)
  *out = calloc(1, sizeof **out);
  if (*out == NULL)
    abort();
  (*out)->request = request;
  return NULL;
}
DOUBLE(BACKEND, ResponseOutput, tri_error *, tri_response *response, tri_output **out,
       const char *name, int type, const int64_t *shape, uint32_t rank) {
  CALL(ResponseOutput)
  if (response->n_outputs == DOUBLE_OUTPUTS || rank > DOUBLE_RANK ||
      (type != 11 && type != 9 && type != 8))
    return double_error(1, "an output too many, or of another type");
  *out = &response->outputs[response->n_outputs++];
  (*out)->name = name;
  (*out)->rank = rank;
  memcpy((*out)->shape, shape, rank * sizeof *shape);
  return NULL;
}
DOUBLE(BACKEND, OutputBuffer, tri_error *, tri_output *output, void **out, uint64_t n_bytes,
       int *io_memory, int64_t *io_memory_id) {
  CALL(OutputBuffer)
  (void)io_memory_id;
  output->data = malloc(n_bytes + 1);
  output->n_bytes = n_bytes;
  *out = output->data;
  *io_memory = TRI_MEMORY_CPU;
  return NULL;
}
DOUBLE(BACKEND, ResponseSend, tri_error *, tri_response *response, uint32_t flags,
       tri_error *error) {
  CALL(ResponseSend)
  if (error != NULL)
    response->error = double_error(error->code, error->text);
  response->before = response->request->response;
  response->request->response = response;
  __atomic_fetch_add(&response->request->n_sent, flags == TRI_SEND_FINAL ? 1 : 100,
                     __ATOMIC_RELEASE);
  return NULL;
}

#endif /* TESTS_TRITON_DOUBLE_H */
