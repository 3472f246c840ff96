/* SPDX-License-Identifier: Apache-2.0 */
/* Finding the vendor's libraries. Nothing of them is linked: a machine without them loads this
 * plugin and is told what is missing.
 */
#include "libraries.h"

#include <opipe/vendors.h>
#include <pthread.h>

#define DRIVER_ROW(member, symbol, result, arguments) {#symbol, offsetof(cuda_driver, member)},
static const opipe_vendor_function driver_rows[] = {CUDA_DRIVER_FUNCTIONS(DRIVER_ROW)};
#define PRODUCT_ROW(member, symbol, result, arguments) {#symbol, offsetof(cuda_products, member)},
static const opipe_vendor_function product_rows[] = {CUDA_PRODUCT_FUNCTIONS(PRODUCT_ROW)};
#define DNN_ROW(member, symbol, result, arguments) {#symbol, offsetof(cuda_dnn_functions, member)},
static const opipe_vendor_function dnn_rows[] = {CUDA_DNN_FUNCTIONS(DNN_ROW)};

/* How many of a table say which version the library is: the first ones. An old one may lack others,
 * and is to be refused by its number. */
enum { DRIVER_FIRST = 3, LIBRARY_FIRST = 1 };

static opipe_status open_driver(cuda_libraries *all, opipe_error *err) {
  const char *name = NULL;
  opipe_error why = OPIPE_ERROR_INIT;
  void *library = opipe_vendor_open("libcuda.so.1", false, &why);
  if (library == NULL) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                      "no device: there is no libcuda.so.1, the driver's "
                      "library%s%s",
                      why.message[0] != '\0' ? "; " : "", why.message);
  }
  opipe_vendor_path(library, all->driver_path, sizeof all->driver_path);
  const opipe_status status =
      opipe_vendor_take(library, driver_rows, DRIVER_FIRST, &all->driver, all->driver_path, err);
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
  return opipe_vendor_take(library, driver_rows, sizeof driver_rows / sizeof driver_rows[0],
                           &all->driver, all->driver_path, err);
}

static opipe_status open_products(cuda_libraries *all, opipe_error *err) {
  static const char *const files[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
  opipe_error why = OPIPE_ERROR_INIT;
  void *library = NULL;
  for (size_t i = 0; library == NULL && i < sizeof files / sizeof files[0]; ++i)
    library = opipe_vendor_open(files[i], true, &why);
  if (library == NULL) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                      "there is no %s (looked in OPIPE_CUDA_PATH, pip's packages, the system)%s%s",
                      files[0], why.message[0] != '\0' ? "; " : "", why.message);
  }
  opipe_vendor_path(library, all->products_path, sizeof all->products_path);
  const opipe_status status = opipe_vendor_take(library, product_rows, LIBRARY_FIRST,
                                                &all->products, all->products_path, err);
  if (status < 0)
    return status;
  all->products_version = all->products.version();
  if (all->products_version < CUDA_LEAST_PRODUCTS) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "%s is cublasLt %llu.%llu, %d.%d is the least",
                      all->products_path, (unsigned long long)all->products_version / 10000,
                      (unsigned long long)all->products_version % 10000 / 100,
                      CUDA_LEAST_PRODUCTS / 10000, CUDA_LEAST_PRODUCTS % 10000 / 100);
  }
  return opipe_vendor_take(library, product_rows, sizeof product_rows / sizeof product_rows[0],
                           &all->products, all->products_path, err);
}

/* cuDNN, which may be missing. */
static opipe_status open_dnn(cuda_libraries *all, opipe_error *err) {
  static const char file[] = "libcudnn.so.9";
  opipe_error why = OPIPE_ERROR_INIT;
  void *library = opipe_vendor_open(file, true, &why);
  if (library == NULL) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                      "there is no %s (looked in OPIPE_CUDA_PATH, pip's packages, the system)%s%s",
                      file, why.message[0] != '\0' ? "; " : "", why.message);
  }
  opipe_vendor_path(library, all->dnn_path, sizeof all->dnn_path);
  const opipe_status status =
      opipe_vendor_take(library, dnn_rows, LIBRARY_FIRST, &all->dnn, all->dnn_path, err);
  if (status < 0)
    return status;
  all->dnn_version = all->dnn.version();
  if (all->dnn_version < CUDA_LEAST_DNN) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "%s is cuDNN %llu.%llu, %d.%d is the least",
                      all->dnn_path, (unsigned long long)all->dnn_version / 10000,
                      (unsigned long long)all->dnn_version % 10000 / 100, CUDA_LEAST_DNN / 10000,
                      CUDA_LEAST_DNN % 10000 / 100);
  }
  return opipe_vendor_take(library, dnn_rows, sizeof dnn_rows / sizeof dnn_rows[0], &all->dnn,
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
