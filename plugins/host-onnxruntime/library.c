/* SPDX-License-Identifier: Apache-2.0 */
/* libonnxpipe.so, found at run time: where the option `library` says, else in this file's own
 * folder, or the one around it; else as the system finds it. Never the current directory.
 */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "adapter.h"

#define LIBRARY "libonnxpipe.so"

/* Folder of this adapter, links resolved; false: not known. */
static bool own_folder(char out[PATH_MAX]) {
  Dl_info info;
  void *self = NULL;
  bool (*const here)(char[PATH_MAX]) = own_folder;
  memcpy(&self, &here, sizeof self);
  if (dladdr(self, &info) == 0 || info.dli_fname == NULL || realpath(info.dli_fname, out) == NULL)
    return false;
  char *slash = strrchr(out, '/');
  if (slash == NULL)
    return false;
  *slash = '\0';
  return true;
}

static void *open_beside(char tried[PATH_MAX]) {
  static const char *const places[] = {"%s/" LIBRARY, "%s/../" LIBRARY};
  char folder[PATH_MAX / 2], path[PATH_MAX], real[PATH_MAX];
  if (!own_folder(real) || snprintf(folder, sizeof folder, "%s", real) >= (int)sizeof folder)
    return NULL;
  (void)snprintf(tried, PATH_MAX, "%s", folder);
  for (size_t i = 0; i < sizeof places / sizeof places[0]; ++i) {
    (void)snprintf(path, sizeof path, i == 0 ? "%s/" LIBRARY : "%s/../" LIBRARY, folder);
    if (access(path, F_OK) == 0)
      return dlopen(path, RTLD_NOW | RTLD_LOCAL);
  }
  return NULL;
}

static void to_ort(void *ctx, uint32_t level, const char *file, uint32_t line, const char *text) {
  static const int levels[] = {[OPIPE_LOG_ERROR] = ORT_LOG_ERROR,
                               [OPIPE_LOG_WARN] = ORT_LOG_WARNING,
                               [OPIPE_LOG_INFO] = ORT_LOG_INFO};
  (void)file, (void)line;
  ep_log(ctx, level < sizeof levels / sizeof levels[0] ? levels[level] : ORT_LOG_INFO, "%s", text);
}

ort_status *ep_open_library(ep *e) {
  opipe_error err = OPIPE_ERROR_INIT;
  char tried[PATH_MAX] = "an unknown folder";
  opipe_get_api_fn get_api = NULL;
  void *library = NULL;
  if (e->set.library != NULL) {
    library = dlopen(e->set.library, RTLD_NOW | RTLD_LOCAL);
  } else {
    library = open_beside(tried);
    if (library == NULL)
      library = dlopen(LIBRARY ".1", RTLD_NOW | RTLD_LOCAL);
  }
  if (library == NULL) {
    const char *why = dlerror();
    return ep_fail_text(e->f, ORT_NO_FILE,
                        "onnx-pipe: %s is not where option library says (%s), nor in or above %s, "
                        "nor among the system's libraries: %s",
                        LIBRARY, e->set.library == NULL ? "none" : e->set.library, tried,
                        why == NULL ? "" : why);
  }
  *(void **)&get_api = dlsym(library, "opipe_get_api"); /* it stays loaded: it is never closed */
  if (get_api == NULL)
    return ep_fail_text(e->f, ORT_EP_FAIL, "onnx-pipe: %s has no opipe_get_api", LIBRARY);
  if (get_api(OPIPE_VIEW, &e->api, &err) < 0)
    return ep_fail(e->f, NULL, &err);
  opipe_context_params params = opipe_context_params_init();
  params.log = to_ort;
  params.log_ctx = e;
  return e->api->context_create(&params, &e->context, &err) < 0 ? ep_fail(e->f, NULL, &err) : NULL;
}
