/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the programs here: hosts that open the library themselves and end at the first
 * error. */
#ifndef OPI_GPU_HOST_H
#define OPI_GPU_HOST_H

#include <dlfcn.h>
#include <opipe/host.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static opipe_error err = OPIPE_ERROR_INIT;

static void need(opipe_status status, const char *what) {
  if (status >= 0)
    return;
  fprintf(stderr, "%s: %s\n", what, err.message);
  exit(1);
}

static const opipe_api *open_library(const char *path) {
  const opipe_api *api = NULL;
  opipe_get_api_fn get_api = NULL;
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library != NULL)
    *(void **)&get_api = dlsym(library, "opipe_get_api");
  if (get_api == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
  need(get_api(OPIPE_VIEW, &api, &err), "opipe_get_api");
  return api;
}

#endif /* OPI_GPU_HOST_H */
