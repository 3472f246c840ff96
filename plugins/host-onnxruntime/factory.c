/* SPDX-License-Identifier: Apache-2.0 */
/* The library's two entry points, the factory that they give, the provider of a session with its
 * options, and what all files use: errors, log. The CPU is the device that is offered; which of
 * ours compute is the plan's choice.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <opipe/helpers.h>

#include "adapter.h"

/* ---- errors and log ---- */

ort_status *ep_fail_text(const factory *f, int code, const char *fmt, ...) {
  char text[1024];
  va_list args;
  va_start(args, fmt);
  (void)vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  return ORT(f->ort, CreateStatus)(code, text);
}

ort_status *ep_fail(const factory *f, const char *doing, const opipe_error *err) {
  const int code = err->status == OPIPE_E_INVALID    ? ORT_INVALID_ARGUMENT
                   : err->status == OPIPE_E_NOTFOUND ? ORT_NO_FILE
                                                     : ORT_FAIL;
  return ep_fail_text(f, code, "onnx-pipe: %s%s%s", doing == NULL ? "" : doing,
                      doing == NULL ? "" : ": ", err->message);
}

ort_status *ep_no_memory(const factory *f) {
  return ep_fail_text(f, ORT_FAIL, "onnx-pipe: out of memory");
}

void ep_log(const ep *e, int level, const char *fmt, ...) {
  char text[2048];
  va_list args;
  va_start(args, fmt);
  (void)vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  ort_status *status =
      ORT(e->f->ort, Logger_LogMessage)(e->logger, level, text, "onnx-pipe", 0, EP_NAME);
  if (status != NULL)
    ORT(e->f->ort, ReleaseStatus)(status);
}

static void to_ort(void *ctx, uint32_t level, const char *file, uint32_t line, const char *text) {
  static const int levels[] = {[OPIPE_LOG_ERROR] = ORT_LOG_ERROR,
                               [OPIPE_LOG_WARN] = ORT_LOG_WARNING,
                               [OPIPE_LOG_INFO] = ORT_LOG_INFO};
  (void)file, (void)line;
  ep_log(ctx, level < sizeof levels / sizeof levels[0] ? levels[level] : ORT_LOG_INFO, "%s", text);
}

/* ---- options: entries of ORT's session options ---- */

static const host_option option_rows[] = {
    HOST_OPTIONS(settings, common),
    {"partition", HOST_CHOICE, offsetof(settings, in_parts), "whole", "auto"},
    {"weights", HOST_CHOICE, offsetof(settings, copies), "lent", "copy"},
    {"model", HOST_TEXT, offsetof(settings, model), NULL, NULL}};

static ort_status *read_option(ep *e, const ort_options *options, const char *key) {
  const ort_table *ort = e->f->ort;
  char name[128];
  opipe_error err = OPIPE_ERROR_INIT;
  int has = 0;
  size_t n = 0;
  (void)snprintf(name, sizeof name, EP_OPTIONS "%s", key);
  ORT_TRY(ORT(ort, HasSessionConfigEntry)(options, name, &has));
  if (has == 0)
    return NULL;
  ORT_TRY(ORT(ort, GetSessionConfigEntry)(options, name, NULL, &n));
  char *text = host_pool_take(&e->memory, n + 1);
  if (text == NULL)
    return ep_no_memory(e->f);
  ORT_TRY(ORT(ort, GetSessionConfigEntry)(options, name, text, &n));
  return host_set(option_rows, sizeof option_rows / sizeof option_rows[0], &e->set, &e->memory, key,
                  text, &err) < 0
             ? ep_fail(e->f, NULL, &err)
             : NULL;
}

/* ---- the provider of one session ---- */

static ort_status *open_ep(ep *e, const ort_options *options) {
  opipe_context_params params = opipe_context_params_init();
  opipe_error err = OPIPE_ERROR_INIT;
  for (size_t i = 0; i < sizeof option_rows / sizeof option_rows[0]; ++i)
    ORT_TRY(read_option(e, options, option_rows[i].key));
  if (e->set.common.team != NULL) {
    (void)opipe_fail(&err, OPIPE_E_UNSUPPORTED,
                     "option team: ONNX Runtime runs its own part of a graph in its own process; a "
                     "team is led by a host of sessions, as the Triton backend");
    return ep_fail(e->f, NULL, &err);
  }
  params.log = to_ort;
  params.log_ctx = e;
  e->maker.set = &e->set.common;
  opipe_status status = host_open_library(e->set.common.library, &e->maker.api, &err);
  if (status == OPIPE_OK)
    status = e->maker.api->context_create(&params, &e->maker.context, &err);
  return status < 0 ? ep_fail(e->f, NULL, &err) : NULL;
}

static const char *get_ep_name(const ort_ep *self) {
  (void)self;
  return EP_NAME;
}

static ort_status *is_concurrent(ort_ep *self, bool *out) {
  (void)self;
  *out = true;
  return NULL;
}

static void release_ep(ort_ep_factory *self, ort_ep *ep_base) {
  ep *e = (ep *)ep_base;
  (void)self;
  if (e == NULL)
    return;
  if (e->looker != NULL)
    ORT(e->f->ort, ReleaseSession)(e->looker);
  (void)pthread_mutex_destroy(&e->looking);
  if (e->maker.api != NULL)
    e->maker.api->context_destroy(e->maker.context);
  host_pool_free(&e->memory);
  host_give(e);
}

/* Errors in the options or the library are reported when the graph is compiled: up to some version,
 * ORT's Python goes on without a provider that cannot be made. */
static ort_status *create_ep(ort_ep_factory *self, const ort_device *const *devices,
                             const ort_pairs *const *metadata, size_t n, const ort_options *options,
                             const ort_logger *logger, ort_ep **out) {
  const factory *f = (const factory *)self;
  ep *e = host_take(sizeof *e);
  (void)devices, (void)metadata, (void)n;
  if (e == NULL)
    return ep_no_memory(f);
  e->base = (ort_ep){.version = f->version,
                     .get_name = get_ep_name,
                     .get_capability = ep_get_capability,
                     .compile = ep_compile,
                     .release_computes = ep_release_computes,
                     .on_run_start = ep_on_run_start,
                     .on_run_end = ep_on_run_end,
                     .is_concurrent = is_concurrent};
  (void)pthread_mutex_init(&e->looking, NULL);
  e->f = f;
  e->logger = logger;
  ort_status *status = open_ep(e, options);
  if (status != NULL) {
    e->broken = host_pool_text(&e->memory, ORT(f->ort, GetErrorMessage)(status));
    ORT(f->ort, ReleaseStatus)(status);
  }
  *out = &e->base;
  return NULL;
}

/* ---- the factory ---- */

static const char *get_name(const ort_ep_factory *self) {
  (void)self;
  return EP_NAME;
}

static const char *get_vendor(const ort_ep_factory *self) {
  (void)self;
  return "onnx-pipe";
}

static uint32_t get_vendor_id(const ort_ep_factory *self) {
  (void)self;
  return 0;
}

static const char *get_version(const ort_ep_factory *self) {
  (void)self;
  return OPIPE_VERSION;
}

static ort_status *get_devices(ort_ep_factory *self, const ort_device *const *devices, size_t n,
                               ort_ep_device **out, size_t room, size_t *out_n) {
  const factory *f = (const factory *)self;
  *out_n = 0;
  for (size_t i = 0; i < n && *out_n < room; ++i) {
    if (ORT(f->ort, HardwareDevice_Type)(devices[i]) != ORT_DEVICE_CPU)
      continue;
    ORT_TRY(ORT(f->ep_api, CreateEpDevice)(self, devices[i], NULL, NULL, &out[*out_n]));
    ++*out_n;
  }
  return NULL;
}

/* NULL: ORT's own, which all tensors here are in. */
static ort_status *create_allocator(ort_ep_factory *self, const void *memory,
                                    const ort_pairs *options, void **out) {
  (void)self, (void)memory, (void)options;
  *out = NULL;
  return NULL;
}

static void release_allocator(ort_ep_factory *self, void *allocator) {
  (void)self, (void)allocator;
}

static ort_status *create_transfer(ort_ep_factory *self, void **out) {
  (void)self;
  *out = NULL;
  return NULL;
}

static bool is_stream_aware(const ort_ep_factory *self) {
  (void)self;
  return false;
}

ort_status *CreateEpFactories(const char *registered_name, const ort_api_base *base,
                              const ort_logger *logger, ort_ep_factory **factories, size_t room,
                              size_t *out_n) {
  const char *version = base->get_version();
  char *end = NULL;
  const unsigned long minor =
      strncmp(version, "1.", 2) == 0 ? strtoul(version + 2, &end, 10) : ORT_KNOWN;
  const uint32_t asked = minor < ORT_KNOWN ? (uint32_t)minor : (uint32_t)ORT_KNOWN;
  const ort_table *ort = base->get_api(asked < ORT_OLDEST ? 1 : asked);
  (void)registered_name, (void)logger;
  *out_n = 0;
  if (ort == NULL)
    return NULL; /* nothing of it can be called, not even to say so: no factory */
  if (asked < ORT_OLDEST || room < 1) {
    return ORT(ort, CreateStatus)(
        ORT_FAIL, "onnx-pipe: needs ONNX Runtime 1.23 or later, and room for one factory");
  }
  factory *f = host_take(sizeof *f);
  if (f == NULL)
    return ORT(ort, CreateStatus)(ORT_FAIL, "onnx-pipe: out of memory");
  *f = (factory){.base = {.version = asked,
                          .get_name = get_name,
                          .get_vendor = get_vendor,
                          .get_devices = get_devices,
                          .create_ep = create_ep,
                          .release_ep = release_ep,
                          .get_vendor_id = get_vendor_id,
                          .get_version = get_version,
                          .create_allocator = create_allocator,
                          .release_allocator = release_allocator,
                          .create_transfer = create_transfer,
                          .is_stream_aware = is_stream_aware},
                 .ort = ort,
                 .ep_api = ORT(ort, GetEpApi)(),
                 .version = asked};
  factories[0] = &f->base;
  *out_n = 1;
  return NULL;
}

ort_status *ReleaseEpFactory(ort_ep_factory *self) {
  host_give(self);
  return NULL;
}
