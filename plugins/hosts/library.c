/* SPDX-License-Identifier: Apache-2.0 */
/* libonnxpipe.so, found at run time. */
#include <dlfcn.h>
#include <limits.h>
#include <opipe/helpers.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hosts.h"

#define LIBRARY "libonnxpipe.so"

enum { FOLDERS = 3 /* its own, and as many around it */ };

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

/* first: the folder that was looked in first. */
static void *open_around(char first[PATH_MAX]) {
  char folder[PATH_MAX], path[PATH_MAX + sizeof LIBRARY];
  if (!own_folder(folder))
    return NULL;
  memcpy(first, folder, strlen(folder) + 1);
  for (int i = 0; i < FOLDERS; ++i) {
    (void)snprintf(path, sizeof path, "%s/" LIBRARY, folder);
    if (access(path, F_OK) == 0)
      return dlopen(path, RTLD_NOW | RTLD_LOCAL);
    char *slash = strrchr(folder, '/');
    if (slash == NULL)
      break;
    *slash = '\0';
  }
  return NULL;
}

opipe_status host_open_library(const char *path, const opipe_api **out_api, opipe_error *err) {
  char first[PATH_MAX] = "an unknown folder";
  opipe_get_api_fn get_api = NULL;
  void *library = path != NULL ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : open_around(first);
  if (library == NULL && path == NULL)
    library = dlopen(LIBRARY ".1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    const char *why = dlerror();
    return opipe_fail(err, OPIPE_E_NOTFOUND,
                      "%s is not where option library says (%.160s), nor in or above %.120s, nor "
                      "among the system's libraries: %.160s",
                      LIBRARY, path == NULL ? "none" : path, path == NULL ? first : "",
                      why == NULL ? "" : why);
  }
  *(void **)&get_api = dlsym(library, "opipe_get_api"); /* it stays loaded: it is never closed */
  if (get_api == NULL)
    return opipe_fail(err, OPIPE_E_INVALID, "%s has no opipe_get_api", LIBRARY);
  return get_api(OPIPE_VIEW, out_api, err);
}
