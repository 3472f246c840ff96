/* SPDX-License-Identifier: Apache-2.0 */
/* Finding the vendor's libraries. Nothing of them is linked: a machine without them loads this
 * plugin and is told what is missing.
 */
#include "libraries.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>

typedef struct function_row {
  const char *symbol;
  size_t offset; /* of the member */
} function_row;

#define DRIVER_ROW(member, symbol, result, arguments) {#symbol, offsetof(cuda_driver, member)},
static const function_row driver_rows[] = {CUDA_DRIVER_FUNCTIONS(DRIVER_ROW)};
#define PRODUCT_ROW(member, symbol, result, arguments) {#symbol, offsetof(cuda_products, member)},
static const function_row product_rows[] = {CUDA_PRODUCT_FUNCTIONS(PRODUCT_ROW)};
#define DNN_ROW(member, symbol, result, arguments) {#symbol, offsetof(cuda_dnn_functions, member)},
static const function_row dnn_rows[] = {CUDA_DNN_FUNCTIONS(DNN_ROW)};

/* ---- where they may be ---- */

static void *open_file(const char *path) {
  return dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

static void *open_in_folders(const char *folders, const char *file, opipe_error *err) {
  char path[4096];
  void *library = NULL;
  for (const char *at = folders; library == NULL && at != NULL && *at != '\0';) {
    const size_t n = strcspn(at, ":");
    if (n > 0 && *at == '/' && n + strlen(file) + 2 < sizeof path) {
      (void)snprintf(path, sizeof path, "%.*s/%s", (int)n, at, file);
      library = open_file(path);
    } else if (n > 0) {
      (void)opipe_fail(err, OPIPE_E_INVALID, "OPIPE_CUDA_PATH: '%.*s' is not an absolute path",
                       (int)(n < 200 ? n : 200), at);
    }
    at += n + (at[n] == ':');
  }
  return library;
}

/* The first file of a pattern that opens. `root` may be NULL: there is no such place. */
static void *open_matching(const char *root, const char *below, const char *file) {
  char pattern[4096];
  glob_t found;
  void *library = NULL;
  if (root == NULL || *root != '/')
    return NULL;
  (void)snprintf(pattern, sizeof pattern, "%s%s/nvidia/*/lib/%s", root, below, file);
  if (glob(pattern, 0, NULL, &found) != 0)
    return NULL;
  for (size_t i = 0; library == NULL && i < found.gl_pathc; ++i)
    library = open_file(found.gl_pathv[i]);
  globfree(&found);
  return library;
}

static void *open_of_pip(const char *file) {
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
    library = open_matching(places[i].root, places[i].below, file);
  return library;
}

static void *open_library(const char *file, bool in_pip, opipe_error *err) {
  void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | RTLD_NOLOAD);
  if (library == NULL)
    library = open_in_folders(secure_getenv("OPIPE_CUDA_PATH"), file, err);
  if (library == NULL && in_pip)
    library = open_of_pip(file);
  if (library == NULL)
    library = open_file(file);
  if (library == NULL)
    library = open_in_folders("/usr/local/cuda/lib64:/usr/local/cuda/lib", file, err);
  return library;
}

/* ---- functions that they must have ---- */

/* How many of a table say which version the library is: the first ones. An old one may lack others,
 * and is to be refused by its number. */
enum { DRIVER_FIRST = 3, LIBRARY_FIRST = 1 };

static opipe_status take_functions(void *library, const function_row *rows, size_t n, void *table,
                                   const char *what, opipe_error *err) {
  for (size_t i = 0; i < n; ++i) {
    void *function = dlsym(library, rows[i].symbol);
    if (function == NULL)
      return opipe_fail(err, OPIPE_E_UNSUPPORTED, "%s has no function %s", what, rows[i].symbol);
    memcpy((char *)table + rows[i].offset, &function, sizeof function);
  }
  return OPIPE_OK;
}

static void path_of(void *library, char *out, size_t room) {
  struct link_map *map = NULL;
  const bool known = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map->l_name[0] != '\0';
  (void)snprintf(out, room, "%s", known ? map->l_name : "(somewhere)");
}

static opipe_status open_driver(cuda_libraries *all, opipe_error *err) {
  const char *name = NULL;
  opipe_error why = OPIPE_ERROR_INIT;
  void *library = open_library("libcuda.so.1", false, &why);
  if (library == NULL) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                      "no device: there is no libcuda.so.1, the driver's "
                      "library%s%s",
                      why.message[0] != '\0' ? "; " : "", why.message);
  }
  path_of(library, all->driver_path, sizeof all->driver_path);
  const opipe_status status =
      take_functions(library, driver_rows, DRIVER_FIRST, &all->driver, all->driver_path, err);
  if (status < 0)
    return status;
  const CUresult result = all->driver.init(0);
  if (result != CUDA_OK) {
    (void)all->driver.error_name(result, &name);
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "no device: cuInit of %s answers %s (%d)",
                      all->driver_path, name != NULL ? name : "an unknown error", (int)result);
  }
  if (all->driver.driver_version(&all->driver_version) != CUDA_OK ||
      all->driver_version < CUDA_LEAST_DRIVER) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                      "the driver %s is of CUDA %d.%d, CUDA %d.%d (driver 580) is the least",
                      all->driver_path, all->driver_version / 1000, all->driver_version % 1000 / 10,
                      CUDA_LEAST_DRIVER / 1000, CUDA_LEAST_DRIVER % 1000 / 10);
  }
  return take_functions(library, driver_rows, sizeof driver_rows / sizeof driver_rows[0],
                        &all->driver, all->driver_path, err);
}

static opipe_status open_products(cuda_libraries *all, opipe_error *err) {
  static const char *const files[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
  opipe_error why = OPIPE_ERROR_INIT;
  void *library = NULL;
  for (size_t i = 0; library == NULL && i < sizeof files / sizeof files[0]; ++i)
    library = open_library(files[i], true, &why);
  if (library == NULL) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                      "there is no %s (looked in OPIPE_CUDA_PATH, pip's packages, the system)%s%s",
                      files[0], why.message[0] != '\0' ? "; " : "", why.message);
  }
  path_of(library, all->products_path, sizeof all->products_path);
  const opipe_status status =
      take_functions(library, product_rows, LIBRARY_FIRST, &all->products, all->products_path, err);
  if (status < 0)
    return status;
  all->products_version = all->products.version();
  if (all->products_version < CUDA_LEAST_PRODUCTS) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "%s is cublasLt %llu.%llu, %d.%d is the least",
                      all->products_path, (unsigned long long)all->products_version / 10000,
                      (unsigned long long)all->products_version % 10000 / 100,
                      CUDA_LEAST_PRODUCTS / 10000, CUDA_LEAST_PRODUCTS % 10000 / 100);
  }
  return take_functions(library, product_rows, sizeof product_rows / sizeof product_rows[0],
                        &all->products, all->products_path, err);
}

/* cuDNN, which may be missing. */
static opipe_status open_dnn(cuda_libraries *all, opipe_error *err) {
  static const char file[] = "libcudnn.so.9";
  opipe_error why = OPIPE_ERROR_INIT;
  void *library = open_library(file, true, &why);
  if (library == NULL) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                      "there is no %s (looked in OPIPE_CUDA_PATH, pip's packages, the system)%s%s",
                      file, why.message[0] != '\0' ? "; " : "", why.message);
  }
  path_of(library, all->dnn_path, sizeof all->dnn_path);
  const opipe_status status =
      take_functions(library, dnn_rows, LIBRARY_FIRST, &all->dnn, all->dnn_path, err);
  if (status < 0)
    return status;
  all->dnn_version = all->dnn.version();
  if (all->dnn_version < CUDA_LEAST_DNN) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "%s is cuDNN %llu.%llu, %d.%d is the least",
                      all->dnn_path, (unsigned long long)all->dnn_version / 10000,
                      (unsigned long long)all->dnn_version % 10000 / 100, CUDA_LEAST_DNN / 10000,
                      CUDA_LEAST_DNN % 10000 / 100);
  }
  return take_functions(library, dnn_rows, sizeof dnn_rows / sizeof dnn_rows[0], &all->dnn,
                        all->dnn_path, err);
}

opipe_status cuda_libraries_open(const cuda_libraries **out, opipe_error *err) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static cuda_libraries all;
  static bool open;
  opipe_error why = OPIPE_ERROR_INIT;
  opipe_status status = OPIPE_OK;
  (void)pthread_mutex_lock(&lock);
  if (!open) {
    memset(&all, 0, sizeof all);
    status = open_driver(&all, err);
    if (status >= 0)
      status = open_products(&all, err);
    open = status >= 0;
    all.has_dnn = open && open_dnn(&all, &why) >= 0;
    (void)snprintf(all.dnn_why, sizeof all.dnn_why, "%s", why.message);
  }
  (void)pthread_mutex_unlock(&lock);
  *out = status < 0 ? NULL : &all;
  return status;
}
