/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU backend as the evaluator of tests below tests/loader: opened from the build tree with
 * dlopen, as the library would. One per test program, never closed before the end.
 */
#ifndef TESTS_LOADER_BACKEND_EVALUATOR_H
#define TESTS_LOADER_BACKEND_EVALUATOR_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "loader/passes/passes.h"
#include "tests/support/support.h"

static void *test_realloc(void *ctx, void *ptr, size_t old_size, size_t new_size, size_t align) {
  const opipe_allocator *system = opi_allocator_system();
  (void)ctx;
  return system->realloc(system->ctx, ptr, old_size, new_size, align);
}

static void test_log(void *ctx, uint32_t level, const char *file, uint32_t line, const char *msg) {
  (void)ctx;
  (void)file;
  (void)line;
  if (level <= OPIPE_LOG_WARN)
    fprintf(stderr, "backend: %s\n", msg);
}

static uint64_t test_now_ns(void *ctx) {
  struct timespec now;
  (void)ctx;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static const void *test_interface(void *ctx, const char *id) {
  (void)ctx;
  (void)id;
  return NULL;
}

/* NULL when the plugin is not there (built later or by another target): the caller skips. */
static inline const opi_evaluator *test_backend_evaluator(void) {
  static opi_evaluator *evaluator;
  static const opipe_host host = {(uint32_t)OPIPE_END(opipe_host, get_interface),
                                  OPIPE_ABI_MAJOR,
                                  OPIPE_ABI_MINOR,
                                  NULL,
                                  test_realloc,
                                  test_log,
                                  test_now_ns,
                                  test_interface};
  opipe_error err = OPIPE_ERROR_INIT;
  static opipe_instance *self; /* still reachable at exit */
  if (evaluator != NULL)
    return evaluator;
  void *library =
      dlopen(opi_test_build("lib/onnx-pipe/opipe-backend-cpu.so"), RTLD_NOW | RTLD_LOCAL);
  if (library == NULL)
    return NULL;
  const opipe_plugin *plugin = dlsym(library, "opipe_plugin_v1");
  if (plugin == NULL || plugin->open(&host, &self, &err) < 0) {
    fprintf(stderr, "backend-cpu does not open: %s\n", err.message);
    return NULL;
  }
  const opipe_backend *backend = plugin->get_interface(self, OPIPE_BACKEND_ID);
  if (backend == NULL ||
      opi_evaluator_create(opi_allocator_system(), "cpu", backend, self, &evaluator, &err) < 0) {
    fprintf(stderr, "backend-cpu gives no evaluator: %s\n", err.message);
    return NULL;
  }
  return evaluator;
}

#endif /* TESTS_LOADER_BACKEND_EVALUATOR_H */
