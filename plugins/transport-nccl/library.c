/* SPDX-License-Identifier: Apache-2.0 */
/* libnccl and the driver's library, opened once and kept for the life of the process. A machine
 * without them loads this plugin, and is told what is missing when a world is opened.
 */
#include <opipe/vendors.h>

#include "world.h"

#define FILE_NAME "libnccl.so.2"

#define NCCL_ROW(member, symbol, result, arguments) {#symbol, offsetof(nccl_calls, member)},
static const opipe_vendor_function nccl_rows[] = {NCCL_FUNCTIONS(NCCL_ROW)};
#define DRIVER_ROW(member, symbol, result, arguments) {#symbol, offsetof(nccl_driver, member)},
static const opipe_vendor_function driver_rows[] = {NCCL_DRIVER_FUNCTIONS(DRIVER_ROW)};

void nccl_version_text(int version, char out[32]) {
  (void)snprintf(out, 32, "%d.%d.%d", version / 10000, version % 10000 / 100, version % 100);
}

static opipe_status open_driver(nccl_library *all, opipe_error *err) {
  char path[512];
  void *library = opipe_vendor_open("libcuda.so.1", false, NULL);
  if (library == NULL) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                      "transport 'nccl': there is no libcuda.so.1, the driver's library");
  }
  opipe_vendor_path(library, path, sizeof path);
  const opipe_status status = opipe_vendor_take(
      library, driver_rows, sizeof driver_rows / sizeof driver_rows[0], &all->driver, path, err);
  if (status < 0)
    return status;
  const CUresult result = all->driver.init(0);
  return result == NCCL_CUDA_FINE
             ? OPIPE_OK
             : opipe_fail(err, OPIPE_E_UNSUPPORTED,
                          "transport 'nccl': no device: cuInit of %s answers %d", path,
                          (int)result);
}

static opipe_status open_nccl(nccl_library *all, opipe_error *err) {
  opipe_error why = OPIPE_ERROR_INIT;
  char version[32], least[32];
  void *library = opipe_vendor_open(FILE_NAME, true, &why);
  if (library == NULL) {
    return opipe_fail(
        err, OPIPE_E_NOTFOUND,
        "transport 'nccl': there is no %s (looked in OPIPE_CUDA_PATH, pip's packages, "
        "the system)%s%s",
        FILE_NAME, why.message[0] != '\0' ? "; " : "", why.message);
  }
  opipe_vendor_path(library, all->path, sizeof all->path);
  opipe_status status = opipe_vendor_take(library, nccl_rows, 1, &all->nccl, all->path, err);
  if (status < 0)
    return status;
  if (all->nccl.version(&all->version) != NCCL_FINE || all->version < NCCL_LEAST) {
    nccl_version_text(all->version, version);
    nccl_version_text(NCCL_LEAST, least);
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "transport 'nccl': %s is NCCL %s, %s is the least",
                      all->path, version, least);
  }
  return opipe_vendor_take(library, nccl_rows, sizeof nccl_rows / sizeof nccl_rows[0], &all->nccl,
                           all->path, err);
}

opipe_status nccl_library_open(const nccl_library **out, opipe_error *err) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static nccl_library all;
  static bool open;
  opipe_status status = OPIPE_OK;
  (void)pthread_mutex_lock(&lock);
  if (!open) {
    memset(&all, 0, sizeof all);
    status = open_driver(&all, err);
    if (status >= 0)
      status = open_nccl(&all, err);
    open = status >= 0;
  }
  (void)pthread_mutex_unlock(&lock);
  *out = status < 0 ? NULL : &all;
  return status;
}
