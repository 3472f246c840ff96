/* SPDX-License-Identifier: Apache-2.0 */
/* The vendor's libraries, opened at run time and kept for the life of the process. */
#ifndef OPIPE_BACKEND_CUDA_LIBRARIES_H_
#define OPIPE_BACKEND_CUDA_LIBRARIES_H_

#include <opipe/helpers.h>

#include "vendor.h"
#include "vendor_dnn.h"

enum {
  CUDA_LEAST_DRIVER = 13000,    /* as cuDriverGetVersion says it: CUDA 13.0 comes with driver 580 */
  CUDA_LEAST_PRODUCTS = 130000, /* as cublasLtGetVersion says it: 13.0 */
  CUDA_LEAST_DNN = 90800        /* as cudnnGetVersion says it: 9.8 */
};

typedef struct cuda_libraries {
  cuda_driver driver;
  cuda_products products;
  cuda_dnn_functions dnn; /* where has_dnn */
  bool has_dnn;
  int driver_version;
  uint64_t products_version, dnn_version;
  char driver_path[512];
  char products_path[512];
  char dnn_path[512];
  char dnn_why[512]; /* has_dnn is false because */
} cuda_libraries;

/* Finds and opens all, once; *out is constant from then on. Each is taken where the process has it
 * already, else from the folders of OPIPE_CUDA_PATH (absolute, separated by ':'), from pip's
 * packages (nvidia/.../lib below the virtual environment, the user's and the system's
 * site-packages), from where the system has it; the first that is there counts, and is not passed
 * over when it is too old. cuDNN may be missing, or too old: then has_dnn is false. Errors:
 * UNSUPPORTED "no device: ..." without a driver or with none that answers; UNSUPPORTED with both
 * numbers where a library is too old, or lacks a function. A later call tries again. [any-thread]
 */
opipe_status cuda_libraries_open(const cuda_libraries **out, opipe_error *err);

#endif /* OPIPE_BACKEND_CUDA_LIBRARIES_H_ */
