/* SPDX-License-Identifier: Apache-2.0 */
/* Our own declarations of what is used of ONNX Runtime's C interface for execution providers in
 * libraries of their own (1.23 and later): handles, functions by the index that they have in their
 * tables, which never moves, and the tables that a provider fills in.
 *
 * Tests hold them against the real library, of the oldest and the newest version.
 */
#ifndef HOST_ORT_H
#define HOST_ORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ORT_OLDEST = 23, ORT_KNOWN = 29 /* minors of 1.x: the first, the one declared here */ };

typedef struct ort_status ort_status; /* NULL: it went well */
typedef struct ort_logger ort_logger;
typedef struct ort_value ort_value;
typedef struct ort_value_info ort_value_info;
typedef struct ort_type_info ort_type_info;
typedef struct ort_shape_info ort_shape_info; /* of a tensor: element type too */
typedef struct ort_graph ort_graph;
typedef struct ort_node ort_node;
typedef struct ort_attr ort_attr;
typedef struct ort_external ort_external;
typedef struct ort_device ort_device;
typedef struct ort_ep_device ort_ep_device;
typedef struct ort_options ort_options;
typedef struct ort_pairs ort_pairs;
typedef struct ort_kernel ort_kernel; /* one call of a fused node */
typedef struct ort_support ort_support;
typedef struct ort_ep ort_ep;
typedef struct ort_ep_factory ort_ep_factory;
typedef struct ort_env ort_env;
typedef struct ort_session ort_session;
typedef struct ort_run_options ort_run_options;

typedef struct ort_table {
  void (*slot[1])(void); /* as many as its version has */
} ort_table;

typedef struct ort_api_base {
  const ort_table *(*get_api)(uint32_t version); /* NULL: it has no such version */
  const char *(*get_version)(void);              /* "1.23.2" */
} ort_api_base;

enum { ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2, ORT_NO_FILE = 3 };
enum { ORT_LOG_INFO = 1, ORT_LOG_WARNING = 2, ORT_LOG_ERROR = 3 };
enum { ORT_DEVICE_CPU = 0 };
enum {
  ORT_ATTR_INT = 1,
  ORT_ATTR_INTS = 2,
  ORT_ATTR_FLOAT = 3,
  ORT_ATTR_FLOATS = 4,
  ORT_ATTR_STRING = 5,
  ORT_ATTR_STRINGS = 6,
  ORT_ATTR_GRAPH = 7,
  ORT_ATTR_TENSOR = 8
};

/* How sets of nodes become one. */
typedef struct ort_fusion_options {
  uint32_t version;
  bool drop_constants; /* constant initializers are no inputs of the fused node, and may go */
} ort_fusion_options;

/* X(name, index, result, parameters) */
/* clang-format off */
#define ORT_API_SLOTS(X) \
  X(CreateStatus, 0, ort_status *, (int code, const char *text)) \
  X(GetErrorMessage, 2, const char *, (const ort_status *status)) \
  X(CreateEnv, 3, ort_status *, (int level, const char *name, ort_env **out)) \
  X(CreateSessionFromArray, 8, ort_status *, \
    (const ort_env *env, const void *model, size_t n_bytes, const ort_options *options, \
     ort_session **out)) \
  X(Run, 9, ort_status *, \
    (ort_session *session, const ort_run_options *how, const char *const *in_names, \
     const ort_value *const *in, size_t n_in, const char *const *out_names, size_t n_out, \
     ort_value **out)) \
  X(CreateSessionOptions, 10, ort_status *, (ort_options **out)) \
  X(SetIntraOpNumThreads, 24, ort_status *, (ort_options *options, int n)) \
  X(GetTensorMutableData, 51, ort_status *, (ort_value *value, void **out)) \
  X(CastTypeInfoToTensorInfo, 55, ort_status *, \
    (const ort_type_info *type, const ort_shape_info **out)) \
  X(GetTensorElementType, 60, ort_status *, (const ort_shape_info *info, int *out)) \
  X(GetDimensionsCount, 61, ort_status *, (const ort_shape_info *info, size_t *out)) \
  X(GetDimensions, 62, ort_status *, (const ort_shape_info *info, int64_t *out, size_t n)) \
  X(GetSymbolicDimensions, 63, ort_status *, \
    (const ort_shape_info *info, const char **out, size_t n)) \
  X(GetTensorTypeAndShape, 65, ort_status *, (const ort_value *value, ort_shape_info **out)) \
  X(KernelContext_GetInput, 90, ort_status *, \
    (const ort_kernel *call, size_t index, const ort_value **out)) \
  X(KernelContext_GetOutput, 91, ort_status *, \
    (ort_kernel *call, size_t index, const int64_t *shape, size_t rank, ort_value **out)) \
  X(ReleaseEnv, 92, void, (ort_env *env)) \
  X(ReleaseStatus, 93, void, (ort_status *status)) \
  X(ReleaseSession, 95, void, (ort_session *session)) \
  X(ReleaseValue, 96, void, (ort_value *value)) \
  X(ReleaseTensorTypeAndShapeInfo, 99, void, (ort_shape_info *info)) \
  X(ReleaseSessionOptions, 100, void, (ort_options *options)) \
  X(HasSessionConfigEntry, 237, ort_status *, \
    (const ort_options *options, const char *key, int *out)) \
  X(GetSessionConfigEntry, 238, ort_status *, \
    (const ort_options *options, const char *key, char *out, size_t *io_n)) \
  X(Logger_LogMessage, 247, ort_status *, \
    (const ort_logger *logger, int level, const char *text, const char *file, int line, \
     const char *function)) \
  X(ReadOpAttr, 272, ort_status *, \
    (const ort_attr *attr, int type, void *data, size_t n_bytes, size_t *out_bytes)) \
  X(GetValueInfoName, 289, ort_status *, (const ort_value_info *value, const char **out)) \
  X(GetValueInfoTypeInfo, 290, ort_status *, \
    (const ort_value_info *value, const ort_type_info **out)) \
  X(HardwareDevice_Type, 307, int, (const ort_device *device)) \
  X(GetEpApi, 317, const ort_table *, (void)) \
  X(GetTensorSizeInBytes, 318, ort_status *, (const ort_value *value, size_t *out)) \
  X(ValueInfo_GetInitializerValue, 326, ort_status *, \
    (const ort_value_info *value, const ort_value **out)) \
  X(ValueInfo_GetExternalInitializerInfo, 327, ort_status *, \
    (const ort_value_info *value, ort_external **out)) \
  X(ValueInfo_IsConstantInitializer, 331, ort_status *, (const ort_value_info *value, bool *out)) \
  X(Graph_GetModelPath, 334, ort_status *, (const ort_graph *graph, const char **out)) \
  X(Graph_GetOnnxIRVersion, 335, ort_status *, (const ort_graph *graph, int64_t *out)) \
  X(Graph_GetNumOperatorSets, 336, ort_status *, (const ort_graph *graph, size_t *out)) \
  X(Graph_GetOperatorSets, 337, ort_status *, \
    (const ort_graph *graph, const char **domains, int64_t *versions, size_t n)) \
  X(Graph_GetNumInputs, 338, ort_status *, (const ort_graph *graph, size_t *out)) \
  X(Graph_GetInputs, 339, ort_status *, \
    (const ort_graph *graph, const ort_value_info **out, size_t n)) \
  X(Graph_GetNumOutputs, 340, ort_status *, (const ort_graph *graph, size_t *out)) \
  X(Graph_GetOutputs, 341, ort_status *, \
    (const ort_graph *graph, const ort_value_info **out, size_t n)) \
  X(Graph_GetNumInitializers, 342, ort_status *, (const ort_graph *graph, size_t *out)) \
  X(Graph_GetInitializers, 343, ort_status *, \
    (const ort_graph *graph, const ort_value_info **out, size_t n)) \
  X(Graph_GetNumNodes, 344, ort_status *, (const ort_graph *graph, size_t *out)) \
  X(Graph_GetNodes, 345, ort_status *, (const ort_graph *graph, const ort_node **out, size_t n)) \
  X(Graph_GetParentNode, 346, ort_status *, (const ort_graph *graph, const ort_node **out)) \
  X(Node_GetName, 349, ort_status *, (const ort_node *node, const char **out)) \
  X(Node_GetOperatorType, 350, ort_status *, (const ort_node *node, const char **out)) \
  X(Node_GetDomain, 351, ort_status *, (const ort_node *node, const char **out)) \
  X(Node_GetNumInputs, 353, ort_status *, (const ort_node *node, size_t *out)) \
  X(Node_GetInputs, 354, ort_status *, \
    (const ort_node *node, const ort_value_info **out, size_t n)) \
  X(Node_GetNumOutputs, 355, ort_status *, (const ort_node *node, size_t *out)) \
  X(Node_GetOutputs, 356, ort_status *, \
    (const ort_node *node, const ort_value_info **out, size_t n)) \
  X(Node_GetNumAttributes, 359, ort_status *, (const ort_node *node, size_t *out)) \
  X(Node_GetAttributes, 360, ort_status *, (const ort_node *node, const ort_attr **out, size_t n)) \
  X(OpAttr_GetTensorAttributeAsOrtValue, 362, ort_status *, \
    (const ort_attr *attr, ort_value **out)) \
  X(OpAttr_GetType, 363, ort_status *, (const ort_attr *attr, int *out)) \
  X(OpAttr_GetName, 364, ort_status *, (const ort_attr *attr, const char **out)) \
  X(TensorTypeAndShape_HasShape, 390, bool, (const ort_shape_info *info)) /* 1.24 */ \
  X(Node_GetNumSubgraphs, 365, ort_status *, (const ort_node *node, size_t *out)) \
  X(Node_GetSubgraphs, 366, ort_status *, \
    (const ort_node *node, const ort_graph **out, size_t n, const char **names)) \
  X(ReleaseExternalInitializerInfo, 369, void, (ort_external *external)) \
  X(ExternalInitializerInfo_GetFilePath, 370, const char *, (const ort_external *external)) \
  X(ExternalInitializerInfo_GetFileOffset, 371, int64_t, (const ort_external *external)) \
  X(ExternalInitializerInfo_GetByteSize, 372, size_t, (const ort_external *external))
#define ORT_EP_API_SLOTS(X) \
  X(CreateEpDevice, 0, ort_status *, \
    (ort_ep_factory *factory, const ort_device *device, const ort_pairs *metadata, \
     const ort_pairs *options, ort_ep_device **out)) \
  X(EpGraphSupportInfo_AddNodesToFuse, 2, ort_status *, \
    (ort_support *support, const ort_node *const *nodes, size_t n, \
     const ort_fusion_options *options))
/* clang-format on */
#define ORT_SLOT_(name, index, result, parameters) \
  typedef result(*ort_##name##_fn) parameters;     \
  enum { ORT_AT_##name = index };
ORT_API_SLOTS(ORT_SLOT_)
ORT_EP_API_SLOTS(ORT_SLOT_)
/* ORT(api, GetEpApi)() */
#define ORT(table, name) ((ort_##name##_fn)(table)->slot[ORT_AT_##name])

/* ---- filled in by a provider; unused slots have no name ---- */

struct ort_ep_factory {
  uint32_t version;
  const char *(*get_name)(const ort_ep_factory *self);
  const char *(*get_vendor)(const ort_ep_factory *self);
  ort_status *(*get_devices)(ort_ep_factory *self, const ort_device *const *devices, size_t n,
                             ort_ep_device **out, size_t room, size_t *out_n);
  ort_status *(*create_ep)(ort_ep_factory *self, const ort_device *const *devices,
                           const ort_pairs *const *metadata, size_t n, const ort_options *options,
                           const ort_logger *logger, ort_ep **out);
  void (*release_ep)(ort_ep_factory *self, ort_ep *ep);
  uint32_t (*get_vendor_id)(const ort_ep_factory *self);
  const char *(*get_version)(const ort_ep_factory *self);
  void (*validate_compiled)(void);
  ort_status *(*create_allocator)(ort_ep_factory *self, const void *memory,
                                  const ort_pairs *options, void **out);
  void (*release_allocator)(ort_ep_factory *self, void *allocator);
  ort_status *(*create_transfer)(ort_ep_factory *self, void **out);
  bool (*is_stream_aware)(const ort_ep_factory *self);
  void (*unused[8])(void);
};

typedef struct ort_compute ort_compute;
struct ort_compute {
  uint32_t version;
  ort_status *(*create_state)(ort_compute *self, void *context, void **out);
  ort_status *(*compute)(ort_compute *self, void *state, ort_kernel *call);
  void (*release_state)(ort_compute *self, void *state);
};

struct ort_ep {
  uint32_t version;
  const char *(*get_name)(const ort_ep *self);
  ort_status *(*get_capability)(ort_ep *self, const ort_graph *graph, ort_support *support);
  ort_status *(*compile)(ort_ep *self, const ort_graph **graphs, const ort_node **fused, size_t n,
                         ort_compute **out, ort_node **context_nodes);
  void (*release_computes)(ort_ep *self, ort_compute **computes, size_t n);
  void (*unused[3])(void);
  ort_status *(*on_run_start)(ort_ep *self, const ort_run_options *how);
  ort_status *(*on_run_end)(ort_ep *self, const ort_run_options *how, bool sync);
  void (*unused2[4])(void);
  ort_status *(*is_concurrent)(ort_ep *self, bool *out); /* 1.24 */
  void (*unused3[11])(void);
};

#endif /* HOST_ORT_H */
