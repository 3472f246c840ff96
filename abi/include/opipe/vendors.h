/* SPDX-License-Identifier: Apache-2.0 */
/* For plugins that open libraries of a vendor's at run time and link none of them: where they may
 * be, and which functions they must have. Header only, as helpers.h; nothing here is part of the
 * ABI.
 *
 *   opipe_vendor_open   a library by its name: the process's, OPIPE_CUDA_PATH, pip's, the system's
 *   opipe_vendor_path   where it was found
 *   opipe_vendor_take   its functions, into a table
 *
 * Libraries stay open for the life of the process. Needs dlfcn.h and glibc: build with -std=gnu11
 * or -D_GNU_SOURCE; otherwise nothing is declared. Thread rule: functions work only on their
 * arguments and the environment.
 */
#ifndef OPIPE_VENDORS_H
#define OPIPE_VENDORS_H

#include "helpers.h"

#if defined(_GNU_SOURCE) && defined(__linux__)
#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <stdlib.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- where they may be ---- */

static inline void *opipe_vendor_file_(const char *path) {
  return dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

/* folders: absolute, separated by ':'; NULL: none. */
static inline void *opipe_vendor_in_folders_(const char *folders, const char *file,
                                             opipe_error *err) {
  char path[4096];
  void *library = NULL;
  for (const char *at = folders; library == NULL && at != NULL && *at != '\0';) {
    const size_t n = strcspn(at, ":");
    if (n > 0 && *at == '/' && n + strlen(file) + 2 < sizeof path) {
      (void)snprintf(path, sizeof path, "%.*s/%s", (int)n, at, file);
      library = opipe_vendor_file_(path);
    } else if (n > 0) {
      (void)opipe_fail(err, OPIPE_E_INVALID, "OPIPE_CUDA_PATH: '%.*s' is not an absolute path",
                       (int)(n < 200 ? n : 200), at);
    }
    at += n + (at[n] == ':');
  }
  return library;
}

/* The first file of a pattern that opens. `root` may be NULL: there is no such place. */
static inline void *opipe_vendor_matching_(const char *root, const char *below, const char *file) {
  char pattern[4096];
  glob_t found;
  void *library = NULL;
  if (root == NULL || *root != '/')
    return NULL;
  (void)snprintf(pattern, sizeof pattern, "%s%s/nvidia/*/lib/%s", root, below, file);
  if (glob(pattern, 0, NULL, &found) != 0)
    return NULL;
  for (size_t i = 0; library == NULL && i < found.gl_pathc; ++i)
    library = opipe_vendor_file_(found.gl_pathv[i]);
  globfree(&found);
  return library;
}

static inline void *opipe_vendor_of_pip_(const char *file) {
  static const char below[] = "/lib/python3*/*-packages";
  const struct {
    const char *root, *below;
  } places[] = {{secure_getenv("VIRTUAL_ENV"), below},
                {secure_getenv("CONDA_PREFIX"), below},
                {secure_getenv("HOME"), "/.local/lib/python3*/site-packages"},
                {"/usr/local", below},
                {"/usr", below}};
  void *library = NULL;
  for (size_t i = 0; library == NULL && i < sizeof places / sizeof places[0]; ++i)
    library = opipe_vendor_matching_(places[i].root, places[i].below, file);
  return library;
}

/* Opens `file` ("libnccl.so.2") where the process has it already, else from the folders of
 * OPIPE_CUDA_PATH (absolute, separated by ':'), in_pip: from pip's packages (nvidia/.../lib below
 * the virtual environment, the user's and the system's site-packages), from where the system has
 * it; the first that is there counts. NULL: there is none; *err then says what is wrong with
 * OPIPE_CUDA_PATH, if anything is. */
static inline void *opipe_vendor_open(const char *file, bool in_pip, opipe_error *err) {
  void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | RTLD_NOLOAD);
  if (library == NULL)
    library = opipe_vendor_in_folders_(secure_getenv("OPIPE_CUDA_PATH"), file, err);
  if (library == NULL && in_pip)
    library = opipe_vendor_of_pip_(file);
  if (library == NULL)
    library = opipe_vendor_file_(file);
  if (library == NULL)
    library = opipe_vendor_in_folders_("/usr/local/cuda/lib64:/usr/local/cuda/lib", file, err);
  return library;
}

/* ---- functions that they must have ---- */

/* The file that was opened; "(somewhere)": the system does not say. */
static inline void opipe_vendor_path(void *library, char *out, size_t room) {
  struct link_map *map = NULL;
  const bool known = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map->l_name[0] != '\0';
  (void)snprintf(out, room, "%s", known ? map->l_name : "(somewhere)");
}

typedef struct opipe_vendor_function {
  const char *symbol;
  size_t offset; /* of the member in the table */
} opipe_vendor_function;

/* Takes `rows` [n] into the table. Errors: UNSUPPORTED: `what` lacks one. */
static inline opipe_status opipe_vendor_take(void *library, const opipe_vendor_function *rows,
                                             size_t n, void *table, const char *what,
                                             opipe_error *err) {
  for (size_t i = 0; i < n; ++i) {
    void *function = dlsym(library, rows[i].symbol);
    if (function == NULL)
      return opipe_fail(err, OPIPE_E_UNSUPPORTED, "%s has no function %s", what, rows[i].symbol);
    memcpy((char *)table + rows[i].offset, &function, sizeof function);
  }
  return OPIPE_OK;
}

#ifdef __cplusplus
}
#endif
#endif /* _GNU_SOURCE */
#endif /* OPIPE_VENDORS_H */
