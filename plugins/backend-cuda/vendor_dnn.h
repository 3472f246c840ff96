/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of cuDNN's backend API that this backend calls, declared by us as those of vendor.h
 * are.
 *
 *   cuda_dnn_functions   libcudnn.so.9
 */
#ifndef OPIPE_BACKEND_CUDA_VENDOR_DNN_H_
#define OPIPE_BACKEND_CUDA_VENDOR_DNN_H_

#include "vendor.h"

#ifndef OPIPE_CUDA_VENDOR_HEADERS
typedef int cudnnStatus_t;
typedef int cudnnBackendDescriptorType_t;
typedef int cudnnBackendAttributeName_t;
typedef int cudnnBackendAttributeType_t;
typedef void *cudnnBackendDescriptor_t;
typedef struct cudnnContext *cudnnHandle_t;
#endif

/* ---- numbers ---- */

enum {
  CUDA_DNN_SUCCESS = 0,
  CUDA_DNN_NOT_INITIALIZED = 1001,
  CUDA_DNN_BAD_PARAM = 2000,
  CUDA_DNN_NOT_SUPPORTED = 3000, /* 3000 to 3999: of some reason */
  CUDA_DNN_INTERNAL = 4000,
  CUDA_DNN_NO_MEMORY = 4003, /* of the host */
  CUDA_DNN_NO_DEVICE_MEMORY = 4004,
  CUDA_DNN_FAILED = 5000
};
enum {
  CUDA_DNN_FLOAT = 0,
  CUDA_DNN_HALF = 2,
  CUDA_DNN_INT32 = 4,
  CUDA_DNN_BF16 = 9,
  CUDA_DNN_BOOL = 11
};
enum { /* descriptors */
       CUDA_DNN_POINTWISE = 0,
       CUDA_DNN_ENGINE = 2,
       CUDA_DNN_ENGINE_CONFIG = 3,
       CUDA_DNN_HEURISTIC = 4,
       CUDA_DNN_PLAN = 5,
       CUDA_DNN_OP_POINTWISE = 13,
       CUDA_DNN_GRAPH = 15,
       CUDA_DNN_PACK = 16,
       CUDA_DNN_TENSOR = 17,
       CUDA_DNN_MATMUL = 18,
       CUDA_DNN_OP_MATMUL = 19,
       CUDA_DNN_REDUCTION = 21,
       CUDA_DNN_OP_REDUCTION = 22,
       CUDA_DNN_OP_RESHAPE = 31,
       CUDA_DNN_DEVICE = 38
};
enum { /* types of attributes */
       CUDA_DNN_T_HANDLE = 0,
       CUDA_DNN_T_DATA_TYPE = 1,
       CUDA_DNN_T_BOOL = 2,
       CUDA_DNN_T_INT64 = 3,
       CUDA_DNN_T_POINTER = 6,
       CUDA_DNN_T_HEURISTIC = 8,
       CUDA_DNN_T_NOTE = 11,
       CUDA_DNN_T_POINTWISE = 14,
       CUDA_DNN_T_DESCRIPTOR = 15,
       CUDA_DNN_T_REDUCTION = 18,
       CUDA_DNN_T_CHAR = 24
};
enum { /* attributes */
       CUDA_DNN_POINTWISE_MODE = 0,
       CUDA_DNN_POINTWISE_TYPE = 1,
       CUDA_DNN_POINTWISE_AXIS = 9,
       CUDA_DNN_HEURISTIC_MODE = 200,
       CUDA_DNN_HEURISTIC_GRAPH = 201,
       CUDA_DNN_HEURISTIC_RESULTS = 202,
       CUDA_DNN_HEURISTIC_DEVICE = 204,
       CUDA_DNN_CONFIG_ENGINE = 300,
       CUDA_DNN_PLAN_HANDLE = 400,
       CUDA_DNN_PLAN_CONFIG = 401,
       CUDA_DNN_PLAN_WORKSPACE = 402,
       CUDA_DNN_PLAN_DEVICE = 407,
       CUDA_DNN_OP_POINTWISE_DESC = 750,
       CUDA_DNN_OP_POINTWISE_X = 751,
       CUDA_DNN_OP_POINTWISE_B = 752,
       CUDA_DNN_OP_POINTWISE_Y = 753,
       CUDA_DNN_OP_POINTWISE_T = 758,
       CUDA_DNN_GRAPH_HANDLE = 800,
       CUDA_DNN_GRAPH_OPS = 801,
       CUDA_DNN_TENSOR_ALIGNMENT = 900,
       CUDA_DNN_TENSOR_TYPE = 901,
       CUDA_DNN_TENSOR_DIMENSIONS = 902,
       CUDA_DNN_TENSOR_STRIDES = 903,
       CUDA_DNN_TENSOR_ID = 906,
       CUDA_DNN_TENSOR_VIRTUAL = 907,
       CUDA_DNN_TENSOR_BY_VALUE = 908,
       CUDA_DNN_PACK_IDS = 1000,
       CUDA_DNN_PACK_POINTERS = 1001,
       CUDA_DNN_PACK_WORKSPACE = 1003,
       CUDA_DNN_ENGINE_INDEX = 1301,
       CUDA_DNN_ENGINE_NOTE = 1303,
       CUDA_DNN_MATMUL_TYPE = 1500,
       CUDA_DNN_OP_MATMUL_A = 1520,
       CUDA_DNN_OP_MATMUL_B = 1521,
       CUDA_DNN_OP_MATMUL_C = 1522,
       CUDA_DNN_OP_MATMUL_DESC = 1523,
       CUDA_DNN_REDUCTION_OPERATOR = 1600,
       CUDA_DNN_REDUCTION_TYPE = 1601,
       CUDA_DNN_OP_REDUCTION_X = 1610,
       CUDA_DNN_OP_REDUCTION_Y = 1611,
       CUDA_DNN_OP_REDUCTION_DESC = 1612,
       CUDA_DNN_OP_RESHAPE_X = 2200,
       CUDA_DNN_OP_RESHAPE_Y = 2201,
       CUDA_DNN_DEVICE_JSON = 2702
};
enum {
  CUDA_DNN_ADD = 0,
  CUDA_DNN_MUL = 1,
  CUDA_DNN_DIV = 6,
  CUDA_DNN_SUB = 9,
  CUDA_DNN_EXP = 13,
  CUDA_DNN_LOG = 15,
  CUDA_DNN_IDENTITY = 21,
  CUDA_DNN_GE = 303,
  CUDA_DNN_INDEX = 501,
  CUDA_DNN_SELECT = 601
};
enum { CUDA_DNN_REDUCE_ADD = 0, CUDA_DNN_REDUCE_MAX = 3 };
enum { CUDA_DNN_HEURISTIC_A = 3, CUDA_DNN_NOTE_UNSTEADY = 4, CUDA_DNN_NOTES = 10 };

/* ---- functions ---- */

#define CUDA_DNN_FUNCTIONS(X)                                                                  \
  X(version, cudnnGetVersion, size_t, (void))                                                  \
  X(error_name, cudnnGetErrorString, const char *, (cudnnStatus_t status))                     \
  X(last_error, cudnnGetLastErrorString, void, (char *message, size_t room))                   \
  X(create, cudnnCreate, cudnnStatus_t, (cudnnHandle_t * handle))                              \
  X(destroy, cudnnDestroy, cudnnStatus_t, (cudnnHandle_t handle))                              \
  X(stream_set, cudnnSetStream, cudnnStatus_t, (cudnnHandle_t handle, cudaStream_t stream))    \
  X(make, cudnnBackendCreateDescriptor, cudnnStatus_t,                                         \
    (cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t * descriptor))                \
  X(free, cudnnBackendDestroyDescriptor, cudnnStatus_t, (cudnnBackendDescriptor_t descriptor)) \
  X(finalize, cudnnBackendFinalize, cudnnStatus_t, (cudnnBackendDescriptor_t descriptor))      \
  X(set, cudnnBackendSetAttribute, cudnnStatus_t,                                              \
    (cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,                    \
     cudnnBackendAttributeType_t type, int64_t n, const void *elements))                       \
  X(get, cudnnBackendGetAttribute, cudnnStatus_t,                                              \
    (cudnnBackendDescriptor_t const descriptor, cudnnBackendAttributeName_t name,              \
     cudnnBackendAttributeType_t type, int64_t room, int64_t *n, void *elements))              \
  X(execute, cudnnBackendExecute, cudnnStatus_t,                                               \
    (cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack))

typedef struct cuda_dnn_functions {
  CUDA_DNN_FUNCTIONS(CUDA_MEMBER)
} cuda_dnn_functions;

#endif /* OPIPE_BACKEND_CUDA_VENDOR_DNN_H_ */
