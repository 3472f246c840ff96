/* SPDX-License-Identifier: Apache-2.0 */
/* cuDNN without a GPU: libcudnn.so.9 of the tests. Its backend API as the plugin uses it: graphs of
 * products, element-wise operations, reductions and reorderings, which it executes one by one in
 * the stream's order (dnn_run.c). It knows of no attention: what is described wrongly comes out
 * wrong.
 *
 * It refuses what the vendor's refuses: attributes of another type, shapes that do not fit each
 * other, tensors that are read before they are made, heads that are no multiple of 8, statistics
 * that are not dense, addresses that are not aligned, masks that are not dense, lack keys or stand
 * with causality that ends at the last key. A mask that is not finite ends the process. Its first
 * choice of an engine for graphs that sum over rows has other bits in every run, and says so in its
 * notes; the other one needs room that grows with the shapes.
 *
 * Environment: OPIPE_CUDA_DOUBLE_DNN (91900), its version; _DNN_REFUSES=1: it has no engine;
 * _DNN_ANSWER="CALL STATUS": what a call answers: create, heuristic, plan (the first engine's).
 */
#include "dnn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cudnnContext {
  cudaStream_t stream;
};

enum { FIRST_STEADY_ENGINE = 6, OTHER_ENGINE = 7, UNSTEADY_ENGINE = 4, WORKSPACE = 512 };

static _Thread_local char last_error[160];

cudnnStatus_t dnn_fail(int status, const char *why) {
  (void)snprintf(last_error, sizeof last_error, "%s", why);
  return (cudnnStatus_t)status;
}

/* Was the call told to fail? */
static cudnnStatus_t told(const char *call) {
  const char *text = getenv("OPIPE_CUDA_DOUBLE_DNN_ANSWER");
  const size_t n = strlen(call);
  if (text == NULL || strncmp(text, call, n) != 0 || text[n] != ' ')
    return CUDA_DNN_SUCCESS;
  return dnn_fail((int)strtol(text + n, NULL, 10), "the double was told to fail");
}

size_t cudnnGetVersion(void) {
  const char *text = getenv("OPIPE_CUDA_DOUBLE_DNN");
  return text != NULL ? strtoul(text, NULL, 10) : 91900;
}

const char *cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDA_DNN_SUCCESS           ? "CUDNN_STATUS_SUCCESS"
         : status == CUDA_DNN_BAD_PARAM       ? "CUDNN_STATUS_BAD_PARAM"
         : status == CUDA_DNN_NOT_SUPPORTED   ? "CUDNN_STATUS_NOT_SUPPORTED"
         : status == CUDA_DNN_NOT_INITIALIZED ? "CUDNN_STATUS_NOT_INITIALIZED"
         : status == CUDA_DNN_INTERNAL        ? "CUDNN_STATUS_INTERNAL_ERROR"
         : status == CUDA_DNN_NO_MEMORY       ? "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"
         : status == CUDA_DNN_NO_DEVICE_MEMORY
             ? "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"
             : "CUDNN_STATUS_UNKNOWN";
}

void cudnnGetLastErrorString(char *message, size_t room) {
  (void)snprintf(message, room, "%s", last_error);
  last_error[0] = '\0';
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
  const cudnnStatus_t status = told("create");
  *handle = NULL;
  if (status != CUDA_DNN_SUCCESS)
    return status;
  *handle = cuda_double_handle(sizeof **handle);
  return *handle != NULL ? CUDA_DNN_SUCCESS : dnn_fail(CUDA_DNN_NOT_INITIALIZED, "no context");
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  cuda_double_wait_for_all("cudnnDestroy");
  free(handle);
  return CUDA_DNN_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDA_DNN_SUCCESS;
}

/* ---- attributes ---- */

static const struct {
  int descriptor, name, type;
} rows[] = {{CUDA_DNN_POINTWISE, CUDA_DNN_POINTWISE_MODE, CUDA_DNN_T_POINTWISE},
            {CUDA_DNN_POINTWISE, CUDA_DNN_POINTWISE_TYPE, CUDA_DNN_T_DATA_TYPE},
            {CUDA_DNN_POINTWISE, CUDA_DNN_POINTWISE_AXIS, CUDA_DNN_T_INT64},
            {CUDA_DNN_OP_POINTWISE, CUDA_DNN_OP_POINTWISE_DESC, CUDA_DNN_T_DESCRIPTOR},
            {CUDA_DNN_OP_POINTWISE, CUDA_DNN_OP_POINTWISE_X, CUDA_DNN_T_DESCRIPTOR},
            {CUDA_DNN_OP_POINTWISE, CUDA_DNN_OP_POINTWISE_B, CUDA_DNN_T_DESCRIPTOR},
            {CUDA_DNN_OP_POINTWISE, CUDA_DNN_OP_POINTWISE_T, CUDA_DNN_T_DESCRIPTOR},
            {CUDA_DNN_OP_POINTWISE, CUDA_DNN_OP_POINTWISE_Y, CUDA_DNN_T_DESCRIPTOR},
            {CUDA_DNN_MATMUL, CUDA_DNN_MATMUL_TYPE, CUDA_DNN_T_DATA_TYPE},
            {CUDA_DNN_OP_MATMUL, CUDA_DNN_OP_MATMUL_DESC, CUDA_DNN_T_DESCRIPTOR},
            {CUDA_DNN_OP_MATMUL, CUDA_DNN_OP_MATMUL_A, CUDA_DNN_T_DESCRIPTOR},
            {CUDA_DNN_OP_MATMUL, CUDA_DNN_OP_MATMUL_B, CUDA_DNN_T_DESCRIPTOR},
            {CUDA_DNN_OP_MATMUL, CUDA_DNN_OP_MATMUL_C, CUDA_DNN_T_DESCRIPTOR},
            {CUDA_DNN_REDUCTION, CUDA_DNN_REDUCTION_OPERATOR, CUDA_DNN_T_REDUCTION},
            {CUDA_DNN_REDUCTION, CUDA_DNN_REDUCTION_TYPE, CUDA_DNN_T_DATA_TYPE},
            {CUDA_DNN_OP_REDUCTION, CUDA_DNN_OP_REDUCTION_DESC, CUDA_DNN_T_DESCRIPTOR},
            {CUDA_DNN_OP_REDUCTION, CUDA_DNN_OP_REDUCTION_X, CUDA_DNN_T_DESCRIPTOR},
            {CUDA_DNN_OP_REDUCTION, CUDA_DNN_OP_REDUCTION_Y, CUDA_DNN_T_DESCRIPTOR},
            {CUDA_DNN_OP_RESHAPE, CUDA_DNN_OP_RESHAPE_X, CUDA_DNN_T_DESCRIPTOR},
            {CUDA_DNN_OP_RESHAPE, CUDA_DNN_OP_RESHAPE_Y, CUDA_DNN_T_DESCRIPTOR},
            {CUDA_DNN_TENSOR, CUDA_DNN_TENSOR_TYPE, CUDA_DNN_T_DATA_TYPE},
            {CUDA_DNN_TENSOR, CUDA_DNN_TENSOR_DIMENSIONS, CUDA_DNN_T_INT64},
            {CUDA_DNN_TENSOR, CUDA_DNN_TENSOR_STRIDES, CUDA_DNN_T_INT64},
            {CUDA_DNN_TENSOR, CUDA_DNN_TENSOR_ID, CUDA_DNN_T_INT64},
            {CUDA_DNN_TENSOR, CUDA_DNN_TENSOR_ALIGNMENT, CUDA_DNN_T_INT64},
            {CUDA_DNN_TENSOR, CUDA_DNN_TENSOR_VIRTUAL, CUDA_DNN_T_BOOL},
            {CUDA_DNN_TENSOR, CUDA_DNN_TENSOR_BY_VALUE, CUDA_DNN_T_BOOL},
            {CUDA_DNN_GRAPH, CUDA_DNN_GRAPH_OPS, CUDA_DNN_T_DESCRIPTOR},
            {CUDA_DNN_GRAPH, CUDA_DNN_GRAPH_HANDLE, CUDA_DNN_T_HANDLE},
            {CUDA_DNN_HEURISTIC, CUDA_DNN_HEURISTIC_GRAPH, CUDA_DNN_T_DESCRIPTOR},
            {CUDA_DNN_HEURISTIC, CUDA_DNN_HEURISTIC_MODE, CUDA_DNN_T_HEURISTIC},
            {CUDA_DNN_PLAN, CUDA_DNN_PLAN_CONFIG, CUDA_DNN_T_DESCRIPTOR},
            {CUDA_DNN_PLAN, CUDA_DNN_PLAN_HANDLE, CUDA_DNN_T_HANDLE},
            {CUDA_DNN_PACK, CUDA_DNN_PACK_IDS, CUDA_DNN_T_INT64},
            {CUDA_DNN_PACK, CUDA_DNN_PACK_POINTERS, CUDA_DNN_T_POINTER},
            {CUDA_DNN_PACK, CUDA_DNN_PACK_WORKSPACE, CUDA_DNN_T_POINTER}};

static size_t element_bytes(int type) {
  return type == CUDA_DNN_T_BOOL ? sizeof(bool)
         : type == CUDA_DNN_T_HANDLE || type == CUDA_DNN_T_INT64 || type == CUDA_DNN_T_POINTER ||
                 type == CUDA_DNN_T_DESCRIPTOR
             ? 8
             : sizeof(int);
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *out) {
  dnn_descriptor *made = calloc(1, sizeof *made);
  *out = made;
  if (made == NULL)
    return dnn_fail(CUDA_DNN_NO_MEMORY, "a descriptor");
  made->type = (int)type;
  made->engine = -1;
  return CUDA_DNN_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t which) {
  dnn_descriptor *d = which;
  cuda_double_note_call();
  for (dnn_attribute *a = d->attributes, *next = NULL; a != NULL; a = next) {
    next = a->next;
    free(a);
  }
  free(d);
  return CUDA_DNN_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t which,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t n,
                                       const void *elements) {
  dnn_descriptor *d = which;
  size_t row = 0;
  while (row < sizeof rows / sizeof rows[0] &&
         (rows[row].descriptor != d->type || rows[row].name != (int)name))
    ++row;
  if (row == sizeof rows / sizeof rows[0] || rows[row].type != (int)type)
    return dnn_fail(CUDA_DNN_BAD_PARAM, "the descriptor has no such attribute");
  if (d->is_final || n < 1 || elements == NULL)
    return dnn_fail(CUDA_DNN_BAD_PARAM, "an attribute of a descriptor that is done");
  const size_t n_bytes = (size_t)n * element_bytes((int)type);
  dnn_attribute *a = calloc(1, sizeof *a + n_bytes);
  if (a == NULL)
    return dnn_fail(CUDA_DNN_NO_MEMORY, "an attribute");
  a->next = d->attributes;
  a->name = (int)name;
  a->type = (int)type;
  a->n = n;
  memcpy(a->bytes, elements, n_bytes);
  d->attributes = a;
  return CUDA_DNN_SUCCESS;
}

/* ---- engines and plans ---- */

static cudnnStatus_t check_plan(dnn_descriptor *d) {
  const dnn_descriptor *config = dnn_find_final(d, CUDA_DNN_PLAN_CONFIG, CUDA_DNN_ENGINE_CONFIG);
  const dnn_attribute *handle = dnn_find(d, CUDA_DNN_PLAN_HANDLE);
  if (config == NULL || handle == NULL || handle->bytes[0] == 0)
    return dnn_fail(CUDA_DNN_BAD_PARAM, "a plan lacks its handle or its engine");
  d->engine = config->engine;
  d->graph = config->graph;
  return d->engine == FIRST_STEADY_ENGINE ? told("plan") : CUDA_DNN_SUCCESS;
}

static cudnnStatus_t check_pack(const dnn_descriptor *d) {
  const dnn_attribute *ids = dnn_find(d, CUDA_DNN_PACK_IDS),
                      *at = dnn_find(d, CUDA_DNN_PACK_POINTERS);
  if (ids == NULL || at == NULL || ids->n != at->n)
    return dnn_fail(CUDA_DNN_BAD_PARAM, "as many addresses as tensors are needed");
  for (int64_t i = 0; i < ids->n; ++i) {
    for (int64_t k = 0; k < i; ++k) {
      if (ids->bytes[i] == ids->bytes[k])
        return dnn_fail(CUDA_DNN_BAD_PARAM, "a tensor has two addresses");
    }
  }
  return CUDA_DNN_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t which) {
  dnn_descriptor *d = which;
  cudnnStatus_t status = CUDA_DNN_SUCCESS;
  if (d->is_final)
    return dnn_fail(CUDA_DNN_BAD_PARAM, "the descriptor is done");
  switch (d->type) {
    case CUDA_DNN_TENSOR:
      status = dnn_check_tensor(d);
      break;
    case CUDA_DNN_OP_MATMUL:
    case CUDA_DNN_OP_POINTWISE:
    case CUDA_DNN_OP_REDUCTION:
    case CUDA_DNN_OP_RESHAPE:
      status = dnn_check_operation(d);
      break;
    case CUDA_DNN_GRAPH:
      status = dnn_check_graph(d);
      break;
    case CUDA_DNN_HEURISTIC:
      status = dnn_find_final(d, CUDA_DNN_HEURISTIC_GRAPH, CUDA_DNN_GRAPH) == NULL
                   ? dnn_fail(CUDA_DNN_BAD_PARAM, "a choice without a graph")
                   : told("heuristic");
      break;
    case CUDA_DNN_PLAN:
      status = check_plan(d);
      break;
    case CUDA_DNN_PACK:
      status = check_pack(d);
      break;
    default:
      break;
  }
  d->is_final = status == CUDA_DNN_SUCCESS;
  return status;
}

/* Bytes that an engine asks for: steady ones keep two bytes for every element of the
 * largest product that lies nowhere, in graphs of more than two products. */
static int64_t workspace_of(const dnn_descriptor *graph, int64_t engine) {
  dnn_operation ops[DNN_OPERATIONS];
  const uint32_t n = dnn_read_graph(graph, ops);
  int64_t most = 0;
  uint32_t products = 0;
  for (uint32_t i = 0; i < n; ++i) {
    const dnn_tensor *y = &ops[i].operand[DNN_Y];
    int64_t elements = 1;
    if (ops[i].type != CUDA_DNN_OP_MATMUL)
      continue;
    ++products;
    for (int k = 0; k < DNN_AXES; ++k)
      elements *= y->size[k];
    if (y->is_virtual && elements > most)
      most = elements;
  }
  return WORKSPACE + (engine != UNSTEADY_ENGINE && products > 2 ? 2 * most : 0);
}

/* Engines for the graph, into descriptors that the caller has made. */
static cudnnStatus_t list_engines(const dnn_descriptor *d, int64_t room, int64_t *n,
                                  cudnnBackendDescriptor_t *out) {
  static const int64_t engines[] = {UNSTEADY_ENGINE, FIRST_STEADY_ENGINE, OTHER_ENGINE};
  const dnn_descriptor *graph = dnn_find_final(d, CUDA_DNN_HEURISTIC_GRAPH, CUDA_DNN_GRAPH);
  *n = 0;
  if (dnn_check_support(graph) != CUDA_DNN_SUCCESS)
    return CUDA_DNN_SUCCESS; /* as the vendor's: none, and a text */
  for (size_t i = 0; i < sizeof engines / sizeof engines[0] && *n < room; ++i) {
    dnn_descriptor *config = out[*n];
    if (config == NULL || config->type != CUDA_DNN_ENGINE_CONFIG)
      return dnn_fail(CUDA_DNN_BAD_PARAM, "an engine's configuration needs a descriptor");
    config->engine = engines[i];
    config->graph = graph;
    config->is_final = true;
    ++*n;
  }
  return CUDA_DNN_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const which,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t room, int64_t *n,
                                       void *elements) {
  const dnn_descriptor *d = which;
  const int note = CUDA_DNN_NOTE_UNSTEADY;
  *n = 1;
  if (d->type == CUDA_DNN_HEURISTIC && name == CUDA_DNN_HEURISTIC_RESULTS &&
      type == CUDA_DNN_T_DESCRIPTOR && d->is_final)
    return list_engines(d, room, n, elements);
  if (d->type == CUDA_DNN_ENGINE_CONFIG && name == CUDA_DNN_CONFIG_ENGINE &&
      type == CUDA_DNN_T_DESCRIPTOR && room == 1) {
    dnn_descriptor *engine = *(cudnnBackendDescriptor_t *)elements;
    engine->engine = d->engine;
    engine->is_final = true;
    return CUDA_DNN_SUCCESS;
  }
  if (d->type == CUDA_DNN_ENGINE && name == CUDA_DNN_ENGINE_INDEX && type == CUDA_DNN_T_INT64) {
    memcpy(elements, &d->engine, sizeof d->engine);
    return CUDA_DNN_SUCCESS;
  }
  if (d->type == CUDA_DNN_ENGINE && name == CUDA_DNN_ENGINE_NOTE && type == CUDA_DNN_T_NOTE) {
    *n = d->engine == UNSTEADY_ENGINE;
    if (*n > 0)
      memcpy(elements, &note, sizeof note);
    return CUDA_DNN_SUCCESS;
  }
  if (d->type == CUDA_DNN_PLAN && name == CUDA_DNN_PLAN_WORKSPACE && type == CUDA_DNN_T_INT64 &&
      d->is_final) {
    const int64_t workspace = workspace_of(d->graph, d->engine);
    memcpy(elements, &workspace, sizeof workspace);
    return CUDA_DNN_SUCCESS;
  }
  return dnn_fail(CUDA_DNN_BAD_PARAM, "the descriptor does not tell that");
}

/* ---- running ---- */

/* Gives a real tensor its address, and one by value its value. */
static cudnnStatus_t give_address(dnn_tensor *t, const dnn_attribute *ids,
                                  const dnn_attribute *at) {
  if (t->id == 0 || t->is_virtual)
    return CUDA_DNN_SUCCESS;
  for (int64_t i = 0; i < ids->n; ++i) {
    if ((int64_t)ids->bytes[i] == t->id)
      t->at = (void *)(uintptr_t)at->bytes[i];
  }
  if (t->at == NULL)
    return dnn_fail(CUDA_DNN_BAD_PARAM, "a tensor has no address");
  if (t->by_value) {
    t->value = t->dtype == CUDA_DNN_INT32 ? (double)*(const int32_t *)t->at
                                          : (double)*(const float *)t->at;
    t->at = NULL;
  } else if ((uintptr_t)t->at % (uintptr_t)t->alignment != 0) {
    return dnn_fail(CUDA_DNN_BAD_PARAM, "an address is not aligned");
  }
  return CUDA_DNN_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  const dnn_descriptor *p = plan, *a = pack;
  dnn_work work;
  memset(&work, 0, sizeof work);
  if (cuda_double_current() == NULL || handle == NULL || p == NULL || a == NULL || !p->is_final ||
      !a->is_final || p->type != CUDA_DNN_PLAN || a->type != CUDA_DNN_PACK)
    return dnn_fail(CUDA_DNN_BAD_PARAM, "no context, plan or addresses");
  work.n = dnn_read_graph(p->graph, work.operations);
  work.unsteady = p->engine == UNSTEADY_ENGINE;
  work.workspace = (void *)(uintptr_t)dnn_find_int64(a, CUDA_DNN_PACK_WORKSPACE, 0);
  work.workspace_bytes = workspace_of(p->graph, p->engine);
  if (work.workspace == NULL || (uintptr_t)work.workspace % 256 != 0)
    return dnn_fail(CUDA_DNN_BAD_PARAM, "the plan has no workspace, or one that is not aligned");
  for (uint32_t i = 0; i < work.n; ++i) {
    for (int k = 0; k < DNN_OPERANDS; ++k) {
      const cudnnStatus_t status =
          give_address(&work.operations[i].operand[k], dnn_find(a, CUDA_DNN_PACK_IDS),
                       dnn_find(a, CUDA_DNN_PACK_POINTERS));
      if (status != CUDA_DNN_SUCCESS)
        return status;
    }
  }
  return cuda_double_queue((CUstream)handle->stream, dnn_run, &work, sizeof work, 1000) == CUDA_OK
             ? CUDA_DNN_SUCCESS
             : dnn_fail(CUDA_DNN_FAILED, "the stream takes no work");
}
