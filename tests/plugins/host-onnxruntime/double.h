/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for ONNX Runtime: the slots that the adapter uses, at the indices that it uses, over a
 * graph of plain structs. Every slot counts its calls; one that nobody stands in for answers with
 * an error that says so.
 */
#ifndef TESTS_HOST_DOUBLE_H
#define TESTS_HOST_DOUBLE_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugins/host-onnxruntime/ort.h"

enum { DOUBLE_SLOTS = 512, DOUBLE_MOST = 16, DOUBLE_RANK = 4 };

struct ort_status {
  int code;
  char text[1024];
};
struct ort_value {
  int dtype;
  size_t rank, n_bytes;
  int64_t shape[DOUBLE_RANK];
  void *data;
};
struct ort_value_info {
  const char *name;
  int dtype; /* 0: no tensor */
  size_t rank;
  int64_t shape[DOUBLE_RANK];
  const char *dims[DOUBLE_RANK];
  const struct ort_value *content; /* an initializer */
  const char *file;                /* where it is external */
  int64_t offset;
  bool overridable;
};
struct ort_attr {
  const char *name;
  int type;
  const void *data;
  size_t n_bytes;
};
struct ort_node {
  const char *name, *op, *domain;
  const ort_value_info *in[DOUBLE_MOST], *out[DOUBLE_MOST];
  const ort_attr *attrs[4];
  const ort_graph *bodies[2];
  const char *body_names[2];
  size_t n_in, n_out, n_attrs, n_bodies;
};
struct ort_graph {
  const ort_value_info *in[DOUBLE_MOST], *out[DOUBLE_MOST], *initializers[DOUBLE_MOST];
  const ort_node *nodes[DOUBLE_MOST];
  size_t n_in, n_out, n_initializers, n_nodes;
  const char *path;
  const ort_node *parent;
};
struct ort_run_options {
  bool terminate;
};
struct ort_kernel {
  const ort_value *in[DOUBLE_MOST];
  ort_value out[DOUBLE_MOST];
  bool refuses; /* to make outputs */
};
/* Session options. */
struct ort_options {
  const char *keys[8], *values[8];
  size_t n;
};
struct ort_support {
  size_t n_sets, n_nodes;
  bool drops;
};

static unsigned double_calls[DOUBLE_SLOTS], double_ep_calls[4];
static char double_log[8192];
static int double_live; /* statuses, values and infos that were made and not released */

#define SEEN(name) __atomic_fetch_add(&double_calls[ORT_AT_##name], 1, __ATOMIC_RELAXED)
#define LIVE(n) __atomic_fetch_add(&double_live, n, __ATOMIC_RELAXED)

static ort_status *double_status(int code, const char *text) {
  ort_status *status = calloc(1, sizeof *status);
  if (status == NULL)
    abort();
  LIVE(1);
  status->code = code;
  (void)snprintf(status->text, sizeof status->text, "%s", text);
  return status;
}

static ort_status *double_missing(void) {
  return double_status(1, "a slot that the double does not have");
}

/* ---- values ---- */

static ort_status *do_CreateStatus(int code, const char *text) {
  SEEN(CreateStatus);
  return double_status(code, text);
}
static const char *do_GetErrorMessage(const ort_status *status) {
  SEEN(GetErrorMessage);
  return status->text;
}
static void do_ReleaseStatus(ort_status *status) {
  SEEN(ReleaseStatus);
  LIVE(-1);
  free(status);
}
static ort_status *do_GetTensorMutableData(ort_value *value, void **out) {
  SEEN(GetTensorMutableData);
  *out = value->data;
  return NULL;
}
static ort_status *do_GetTensorSizeInBytes(const ort_value *value, size_t *out) {
  SEEN(GetTensorSizeInBytes);
  *out = value->n_bytes;
  return NULL;
}
static void do_ReleaseValue(ort_value *value) {
  SEEN(ReleaseValue);
  LIVE(-1);
  free(value);
}
/* A shape is a value's info without content. */
static ort_status *do_GetTensorTypeAndShape(const ort_value *value, ort_shape_info **out) {
  SEEN(GetTensorTypeAndShape);
  ort_value_info *info = calloc(1, sizeof *info);
  if (info == NULL)
    abort();
  LIVE(1);
  info->dtype = value->dtype;
  info->rank = value->rank;
  memcpy(info->shape, value->shape, sizeof info->shape);
  *out = (ort_shape_info *)info;
  return NULL;
}
static void do_ReleaseTensorTypeAndShapeInfo(ort_shape_info *info) {
  SEEN(ReleaseTensorTypeAndShapeInfo);
  LIVE(-1);
  free(info);
}
static ort_status *do_GetValueInfoTypeInfo(const ort_value_info *value, const ort_type_info **out) {
  SEEN(GetValueInfoTypeInfo);
  *out = (const ort_type_info *)value;
  return NULL;
}
static ort_status *do_CastTypeInfoToTensorInfo(const ort_type_info *type,
                                               const ort_shape_info **out) {
  SEEN(CastTypeInfoToTensorInfo);
  *out = ((const ort_value_info *)type)->dtype == 0 ? NULL : (const ort_shape_info *)type;
  return NULL;
}
#define INFO(info) ((const ort_value_info *)(info))
static ort_status *do_GetTensorElementType(const ort_shape_info *info, int *out) {
  SEEN(GetTensorElementType);
  *out = INFO(info)->dtype;
  return NULL;
}
static ort_status *do_GetDimensionsCount(const ort_shape_info *info, size_t *out) {
  SEEN(GetDimensionsCount);
  *out = INFO(info)->rank;
  return NULL;
}
/* Among values that say no rank, only those with content are known to be scalars. */
static bool do_TensorTypeAndShape_HasShape(const ort_shape_info *info) {
  SEEN(TensorTypeAndShape_HasShape);
  return INFO(info)->rank != 0 || INFO(info)->content != NULL;
}
static ort_status *do_GetDimensions(const ort_shape_info *info, int64_t *out, size_t n) {
  SEEN(GetDimensions);
  memcpy(out, INFO(info)->shape, n * sizeof *out);
  return NULL;
}
static ort_status *do_GetSymbolicDimensions(const ort_shape_info *info, const char **out,
                                            size_t n) {
  SEEN(GetSymbolicDimensions);
  for (size_t i = 0; i < n; ++i)
    out[i] = INFO(info)->dims[i] == NULL ? "" : INFO(info)->dims[i];
  return NULL;
}
static ort_status *do_GetValueInfoName(const ort_value_info *value, const char **out) {
  SEEN(GetValueInfoName);
  *out = value->name;
  return NULL;
}
static ort_status *do_ValueInfo_GetInitializerValue(const ort_value_info *value,
                                                    const ort_value **out) {
  SEEN(ValueInfo_GetInitializerValue);
  *out = value->content;
  return NULL;
}
static ort_status *do_ValueInfo_IsConstantInitializer(const ort_value_info *value, bool *out) {
  SEEN(ValueInfo_IsConstantInitializer);
  *out = !value->overridable;
  return NULL;
}
static ort_status *do_ValueInfo_GetExternalInitializerInfo(const ort_value_info *value,
                                                           ort_external **out) {
  SEEN(ValueInfo_GetExternalInitializerInfo);
  *out = value->file == NULL ? NULL : (ort_external *)(uintptr_t)value;
  LIVE(value->file == NULL ? 0 : 1);
  return NULL;
}
static void do_ReleaseExternalInitializerInfo(ort_external *external) {
  SEEN(ReleaseExternalInitializerInfo);
  LIVE(external == NULL ? 0 : -1);
}
static const char *do_ExternalInitializerInfo_GetFilePath(const ort_external *external) {
  SEEN(ExternalInitializerInfo_GetFilePath);
  return INFO(external)->file;
}
static int64_t do_ExternalInitializerInfo_GetFileOffset(const ort_external *external) {
  SEEN(ExternalInitializerInfo_GetFileOffset);
  return INFO(external)->offset;
}
static size_t do_ExternalInitializerInfo_GetByteSize(const ort_external *external) {
  SEEN(ExternalInitializerInfo_GetByteSize);
  return INFO(external)->content->n_bytes;
}

/* ---- lists: how many, then which ---- */

#define DOUBLE_LIST(object, number, list, from, count, type)                   \
  static ort_status *do_##number(const object *of, size_t *out) {              \
    SEEN(number);                                                              \
    *out = of->count;                                                          \
    return NULL;                                                               \
  }                                                                            \
  static ort_status *do_##list(const object *of, const type **out, size_t n) { \
    SEEN(list);                                                                \
    memcpy(out, of->from, n * sizeof *out);                                    \
    return NULL;                                                               \
  }
DOUBLE_LIST(ort_graph, Graph_GetNumInputs, Graph_GetInputs, in, n_in, ort_value_info)
DOUBLE_LIST(ort_graph, Graph_GetNumOutputs, Graph_GetOutputs, out, n_out, ort_value_info)
DOUBLE_LIST(ort_graph, Graph_GetNumInitializers, Graph_GetInitializers, initializers,
            n_initializers, ort_value_info)
DOUBLE_LIST(ort_graph, Graph_GetNumNodes, Graph_GetNodes, nodes, n_nodes, ort_node)
DOUBLE_LIST(ort_node, Node_GetNumInputs, Node_GetInputs, in, n_in, ort_value_info)
DOUBLE_LIST(ort_node, Node_GetNumOutputs, Node_GetOutputs, out, n_out, ort_value_info)
DOUBLE_LIST(ort_node, Node_GetNumAttributes, Node_GetAttributes, attrs, n_attrs, ort_attr)

static ort_status *do_Graph_GetModelPath(const ort_graph *graph, const char **out) {
  SEEN(Graph_GetModelPath);
  *out = graph->path;
  return NULL;
}
static ort_status *do_Graph_GetOnnxIRVersion(const ort_graph *graph, int64_t *out) {
  SEEN(Graph_GetOnnxIRVersion);
  *out = graph == NULL ? 0 : 8;
  return NULL;
}
static ort_status *do_Graph_GetNumOperatorSets(const ort_graph *graph, size_t *out) {
  SEEN(Graph_GetNumOperatorSets);
  *out = graph == NULL ? 0 : 2;
  return NULL;
}
static ort_status *do_Graph_GetOperatorSets(const ort_graph *graph, const char **domains,
                                            int64_t *versions, size_t n) {
  SEEN(Graph_GetOperatorSets);
  (void)graph, (void)n;
  domains[0] = "", versions[0] = 20;
  domains[1] = "com.microsoft", versions[1] = 1;
  return NULL;
}
static ort_status *do_Graph_GetParentNode(const ort_graph *graph, const ort_node **out) {
  SEEN(Graph_GetParentNode);
  *out = graph->parent;
  return NULL;
}
#define DOUBLE_TEXT(name, field)                                         \
  static ort_status *do_##name(const ort_node *node, const char **out) { \
    SEEN(name);                                                          \
    *out = node->field;                                                  \
    return NULL;                                                         \
  }
DOUBLE_TEXT(Node_GetName, name)
DOUBLE_TEXT(Node_GetOperatorType, op)
DOUBLE_TEXT(Node_GetDomain, domain)
static ort_status *do_Node_GetNumSubgraphs(const ort_node *node, size_t *out) {
  SEEN(Node_GetNumSubgraphs);
  *out = node->n_bodies;
  return NULL;
}
static ort_status *do_Node_GetSubgraphs(const ort_node *node, const ort_graph **out, size_t n,
                                        const char **names) {
  SEEN(Node_GetSubgraphs);
  memcpy(out, node->bodies, n * sizeof *out);
  memcpy(names, node->body_names, n * sizeof *names);
  return NULL;
}

/* ---- attributes ---- */

static ort_status *do_OpAttr_GetName(const ort_attr *attr, const char **out) {
  SEEN(OpAttr_GetName);
  *out = attr->name;
  return NULL;
}
static ort_status *do_OpAttr_GetType(const ort_attr *attr, int *out) {
  SEEN(OpAttr_GetType);
  *out = attr->type;
  return NULL;
}
static ort_status *do_ReadOpAttr(const ort_attr *attr, int type, void *data, size_t n_bytes,
                                 size_t *out_bytes) {
  SEEN(ReadOpAttr);
  *out_bytes = attr->n_bytes;
  if (type != attr->type || n_bytes < attr->n_bytes)
    return double_status(2, "not large enough");
  memcpy(data, attr->data, attr->n_bytes);
  return NULL;
}
static ort_status *do_OpAttr_GetTensorAttributeAsOrtValue(const ort_attr *attr, ort_value **out) {
  SEEN(OpAttr_GetTensorAttributeAsOrtValue);
  *out = calloc(1, sizeof **out);
  if (*out == NULL)
    abort();
  LIVE(1);
  **out = *(const ort_value *)attr->data;
  return NULL;
}

/* ---- calls, options, the rest ---- */

static ort_status *do_KernelContext_GetInput(const ort_kernel *call, size_t index,
                                             const ort_value **out) {
  SEEN(KernelContext_GetInput);
  *out = call->in[index];
  return NULL;
}
static ort_status *do_KernelContext_GetOutput(ort_kernel *call, size_t index, const int64_t *shape,
                                              size_t rank, ort_value **out) {
  SEEN(KernelContext_GetOutput);
  ort_value *value = &call->out[index];
  if (call->refuses)
    return double_status(1, "no room for an output");
  value->rank = rank;
  value->n_bytes = sizeof(float);
  for (size_t i = 0; i < rank; ++i) {
    value->shape[i] = shape[i];
    value->n_bytes *= (size_t)shape[i];
  }
  free(value->data);
  value->data = malloc(value->n_bytes + 1);
  *out = value;
  return NULL;
}
static size_t double_option(const ort_options *options, const char *key) {
  size_t i = 0;
  while (i < options->n && strcmp(options->keys[i], key) != 0)
    ++i;
  return i;
}
static ort_status *do_HasSessionConfigEntry(const ort_options *options, const char *key, int *out) {
  SEEN(HasSessionConfigEntry);
  *out = double_option(options, key) < options->n;
  return NULL;
}
static ort_status *do_GetSessionConfigEntry(const ort_options *options, const char *key, char *out,
                                            size_t *io_n) {
  SEEN(GetSessionConfigEntry);
  const char *value = options->values[double_option(options, key)];
  const size_t room = *io_n;
  *io_n = strlen(value) + 1;
  if (out == NULL)
    return NULL;
  if (room < *io_n)
    return double_status(2, "not large enough");
  memcpy(out, value, *io_n);
  return NULL;
}
static ort_status *do_Logger_LogMessage(const ort_logger *logger, int level, const char *text,
                                        const char *file, int line, const char *function) {
  SEEN(Logger_LogMessage);
  (void)logger, (void)level, (void)file, (void)line, (void)function;
  const size_t n = strlen(double_log);
  (void)snprintf(double_log + n, sizeof double_log - n, "%s\n", text);
  return NULL;
}
static int do_HardwareDevice_Type(const ort_device *device) {
  SEEN(HardwareDevice_Type);
  return *(const int *)(const void *)device;
}
static ort_status *do_CreateEpDevice(ort_ep_factory *factory, const ort_device *device,
                                     const ort_pairs *metadata, const ort_pairs *options,
                                     ort_ep_device **out) {
  (void)metadata, (void)options, (void)device;
  ++double_ep_calls[ORT_AT_CreateEpDevice];
  *out = (ort_ep_device *)factory;
  return NULL;
}
static ort_status *do_EpGraphSupportInfo_AddNodesToFuse(ort_support *support,
                                                        const ort_node *const *nodes, size_t n,
                                                        const ort_fusion_options *options) {
  (void)nodes;
  ++double_ep_calls[ORT_AT_EpGraphSupportInfo_AddNodesToFuse];
  ++support->n_sets;
  support->n_nodes += n;
  support->drops = options->drop_constants;
  return NULL;
}

/* ---- asking whether a run is to end: a session of one node ---- */

static bool double_has_no_sessions; /* none can be made */

static ort_status *do_CreateEnv(int level, const char *name, ort_env **out) {
  (void)level, (void)name;
  SEEN(CreateEnv);
  LIVE(1);
  *out = (ort_env *)(void *)&double_live;
  return NULL;
}
static void do_ReleaseEnv(ort_env *env) {
  SEEN(ReleaseEnv);
  LIVE(env == NULL ? 0 : -1);
}
static ort_status *do_CreateSessionOptions(ort_options **out) {
  SEEN(CreateSessionOptions);
  *out = calloc(1, sizeof **out);
  if (*out == NULL)
    abort();
  LIVE(1);
  return NULL;
}
static void do_ReleaseSessionOptions(ort_options *options) {
  SEEN(ReleaseSessionOptions);
  LIVE(-1);
  free(options);
}
static ort_status *do_SetIntraOpNumThreads(ort_options *options, int n) {
  SEEN(SetIntraOpNumThreads);
  return options == NULL || n != 1 ? double_status(2, "threads for one node") : NULL;
}
static ort_status *do_CreateSessionFromArray(const ort_env *env, const void *model, size_t n_bytes,
                                             const ort_options *options, ort_session **out) {
  SEEN(CreateSessionFromArray);
  if (double_has_no_sessions || env == NULL || options == NULL || model == NULL || n_bytes == 0)
    return double_status(1, "no session here");
  LIVE(1);
  *out = (ort_session *)(void *)&double_live;
  return NULL;
}
static void do_ReleaseSession(ort_session *session) {
  SEEN(ReleaseSession);
  LIVE(session == NULL ? 0 : -1);
}
/* As ORT does: before a node it looks at the flag. */
static ort_status *do_Run(ort_session *session, const ort_run_options *how,
                          const char *const *in_names, const ort_value *const *in, size_t n_in,
                          const char *const *out_names, size_t n_out, ort_value **out) {
  (void)session, (void)in_names, (void)in;
  SEEN(Run);
  if (n_in != 0 || n_out != 1 || out_names[0] == NULL)
    return double_status(2, "the model has no inputs and one output");
  if (how->terminate)
    return double_status(1, "Exiting due to terminate flag being set to true.");
  *out = calloc(1, sizeof **out);
  if (*out == NULL)
    abort();
  LIVE(1);
  return NULL;
}

/* ---- the tables ---- */

static struct { void (*slot[DOUBLE_SLOTS])(void); } double_api, double_ep_api;

static const ort_table *do_GetEpApi(void) {
  SEEN(GetEpApi);
  return (const ort_table *)&double_ep_api;
}

static const char *double_version = "1.29.4";
static uint32_t double_asked;

static const char *double_get_version(void) {
  return double_version;
}

static const ort_table *double_get_api(uint32_t version) {
  double_asked = version;
  return (const ort_table *)&double_api;
}

static const ort_api_base double_base = {double_get_api, double_get_version};

static void double_fill(void) {
  for (size_t i = 0; i < DOUBLE_SLOTS; ++i)
    double_api.slot[i] = double_ep_api.slot[i] = (void (*)(void))double_missing;
#define DOUBLE_SET_(name, ...) double_api.slot[ORT_AT_##name] = (void (*)(void))do_##name;
#define DOUBLE_SET_EP_(name, ...) double_ep_api.slot[ORT_AT_##name] = (void (*)(void))do_##name;
  ORT_API_SLOTS(DOUBLE_SET_)
  ORT_EP_API_SLOTS(DOUBLE_SET_EP_)
}

#endif /* TESTS_HOST_DOUBLE_H */
