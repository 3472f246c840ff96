/* SPDX-License-Identifier: Apache-2.0 */
/* An application that uses ONNX Runtime by its C interface, found at run time: sessions of its own
 * CPU provider and of ours, runs of models that read input_ids and make logits. For tests and
 * benches. A failure is `false`, its text in app_why (of the thread).
 */
#ifndef TESTS_HOST_APPLICATION_H
#define TESTS_HOST_APPLICATION_H

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "plugins/host-onnxruntime/ort.h"

enum { APP_INT64 = 7, APP_ARENA = 1 /* kinds of element, of allocator */ };

typedef struct ort_memory ort_memory;

/* Functions that an application calls, in the form of ort.h. */
/* clang-format off */
#define APP_SLOTS(X) \
  X(CreateSession, 7, ort_status *, \
    (const ort_env *env, const char *path, const ort_options *options, ort_session **out)) \
  X(SetSessionGraphOptimizationLevel, 23, ort_status *, (ort_options *options, int level)) \
  X(CreateRunOptions, 39, ort_status *, (ort_run_options **out)) \
  X(RunOptionsSetTerminate, 46, ort_status *, (ort_run_options *how)) \
  X(CreateTensorWithDataAsOrtValue, 49, ort_status *, \
    (const ort_memory *memory, void *data, size_t n_bytes, const int64_t *shape, size_t rank, \
     int type, ort_value **out)) \
  X(CreateCpuMemoryInfo, 69, ort_status *, (int allocator, int kind, ort_memory **out)) \
  X(ReleaseMemoryInfo, 94, void, (ort_memory *memory)) \
  X(ReleaseRunOptions, 97, void, (ort_run_options *how)) \
  X(RegisterExecutionProviderLibrary, 301, ort_status *, \
    (ort_env *env, const char *name, const char *path)) \
  X(GetEpDevices, 303, ort_status *, \
    (const ort_env *env, const ort_ep_device *const **out, size_t *out_n)) \
  X(SessionOptionsAppendExecutionProvider_V2, 304, ort_status *, \
    (ort_options *options, ort_env *env, const ort_ep_device *const *devices, size_t n, \
     const char *const *keys, const char *const *values, size_t n_options)) \
  X(EpDevice_EpName, 312, const char *, (const ort_ep_device *device))
/* clang-format on */
APP_SLOTS(ORT_SLOT_)

typedef struct app {
  const ort_table *ort;
  const char *version;
  ort_env *env;
  const ort_ep_device *device; /* ours; NULL: the adapter was not registered */
  ort_memory *memory;
  bool as_it_is; /* sessions leave the graph as the file has it: no optimisation of its own */
} app;

static _Thread_local char app_why[1024];

static inline bool app_good(const app *a, ort_status *status) {
  if (status == NULL)
    return true;
  (void)snprintf(app_why, sizeof app_why, "%s", ORT(a->ort, GetErrorMessage)(status));
  ORT(a->ort, ReleaseStatus)(status);
  return false;
}

static inline void app_close(app *a) {
  if (a->memory != NULL)
    ORT(a->ort, ReleaseMemoryInfo)(a->memory);
  if (a->env != NULL)
    ORT(a->ort, ReleaseEnv)(a->env);
  *a = (app){.ort = NULL};
}

/* adapter NULL: ONNX Runtime's own providers alone. */
static inline bool app_open(app *a, const char *library, const char *adapter) {
  const ort_api_base *(*get_base)(void) = NULL;
  const ort_ep_device *const *devices = NULL;
  size_t n = 0;
  *a = (app){.ort = NULL};
  void *opened = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (opened != NULL)
    *(void **)&get_base = dlsym(opened, "OrtGetApiBase");
  if (get_base == NULL) {
    (void)snprintf(app_why, sizeof app_why, "%s", dlerror());
    return false;
  }
  a->ort = get_base()->get_api(ORT_OLDEST);
  a->version = get_base()->get_version();
  if (a->ort == NULL) {
    (void)snprintf(app_why, sizeof app_why, "ONNX Runtime %s has no interface of 1.%d", a->version,
                   ORT_OLDEST);
    return false;
  }
  if (!app_good(a, ORT(a->ort, CreateEnv)(ORT_LOG_ERROR, "application", &a->env)) ||
      !app_good(a, ORT(a->ort, CreateCpuMemoryInfo)(APP_ARENA, 0, &a->memory)))
    return false;
  if (adapter == NULL)
    return true;
  if (!app_good(a, ORT(a->ort, RegisterExecutionProviderLibrary)(a->env, "onnx-pipe", adapter)) ||
      !app_good(a, ORT(a->ort, GetEpDevices)(a->env, &devices, &n)))
    return false;
  for (size_t i = 0; i < n && a->device == NULL; ++i) {
    if (strcmp(ORT(a->ort, EpDevice_EpName)(devices[i]), "OnnxPipeExecutionProvider") == 0)
      a->device = devices[i];
  }
  (void)snprintf(app_why, sizeof app_why, "%s offers no device", adapter);
  return a->device != NULL;
}

/* own [n_own][2]: keys and values of our provider's options; NULL: the CPU provider, with n_own
 * threads a run (0: its choice). */
static inline ort_session *app_session(const app *a, const char *model, const char *const (*own)[2],
                                       size_t n_own) {
  const char *keys[8], *values[8];
  ort_options *options = NULL;
  ort_session *session = NULL;
  bool good = app_good(a, ORT(a->ort, CreateSessionOptions)(&options));
  for (size_t i = 0; own != NULL && i < n_own && i < 8; ++i)
    keys[i] = own[i][0], values[i] = own[i][1];
  if (good && a->as_it_is)
    good = app_good(a, ORT(a->ort, SetSessionGraphOptimizationLevel)(options, 0));
  if (good && own != NULL) {
    good = app_good(a, ORT(a->ort, SessionOptionsAppendExecutionProvider_V2)(
                           options, a->env, &a->device, 1, keys, values, n_own));
  } else if (good) {
    good = app_good(a, ORT(a->ort, SetIntraOpNumThreads)(options, (int)n_own));
  }
  if (good)
    (void)app_good(a, ORT(a->ort, CreateSession)(a->env, model, options, &session));
  if (options != NULL)
    ORT(a->ort, ReleaseSessionOptions)(options);
  return session;
}

/* ids [batch, seq] -> *out, the logits, to be released by app_release. how NULL: as usual. */
static inline bool app_run(const app *a, ort_session *session, const ort_run_options *how,
                           const int64_t *ids, int64_t batch, int64_t seq, ort_value **out) {
  static const char *const in_name = "input_ids", *const out_name = "logits";
  const int64_t shape[] = {batch, seq};
  ort_value *in = NULL;
  *out = NULL;
  bool good = app_good(a, ORT(a->ort, CreateTensorWithDataAsOrtValue)(
                              a->memory, (void *)(uintptr_t)ids,
                              (size_t)(batch * seq) * sizeof *ids, shape, 2, APP_INT64, &in));
  if (good) {
    const ort_value *given = in;
    good = app_good(a, ORT(a->ort, Run)(session, how, &in_name, &given, 1, &out_name, 1, out));
    ORT(a->ort, ReleaseValue)(in);
  }
  return good;
}

/* Content of a tensor of floats, and how many. */
static inline const float *app_content(const app *a, ort_value *value, size_t *out_n) {
  void *data = NULL;
  size_t n_bytes = 0;
  if (!app_good(a, ORT(a->ort, GetTensorSizeInBytes)(value, &n_bytes)) ||
      !app_good(a, ORT(a->ort, GetTensorMutableData)(value, &data)))
    n_bytes = 0;
  *out_n = n_bytes / sizeof(float);
  return data;
}

static inline void app_release(const app *a, ort_value *value) {
  if (value != NULL)
    ORT(a->ort, ReleaseValue)(value);
}

#endif /* TESTS_HOST_APPLICATION_H */
