/* SPDX-License-Identifier: Apache-2.0 */
/* Models built from a graph in the host's memory; part of host.h (1.3).
 *
 *   opipe_build_params -- opsets
 *     `- graph -- inputs, outputs, tensors, nodes
 *                                   |        `- attributes -- graph (body) ...
 *                                   `- content: in memory (borrowed), or in a file
 *
 * The tables say the same as an ONNX file, by the same names. model_build checks them as model_load
 * checks a file, and the model is bound, planned, run, trained and saved as any other. Nodes may
 * come in any order; intermediate values need no declaration.
 *   The tables are read during the call. The content of the main graph's `tensors` that is in
 * memory is read where it lies, so the host keeps it unchanged until on_release. (Tensors of bodies
 * and attributes are copied, and so are small ones that are misaligned for their type.)
 */
#ifndef OPIPE_BUILD_H
#define OPIPE_BUILD_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An input or output of a graph. */
typedef struct opipe_build_value {
  const char *name;
  const int64_t *shape;         /* [rank], -1: free; NULL with rank 0 or less */
  const char *const *dim_names; /* [rank], NULL entries: unnamed; NULL: none has a name */
  uint32_t dtype;               /* OPIPE_FLOAT ...; OPIPE_UNDEFINED: not known (not allowed for
                                   inputs of the main graph) */
  int32_t rank;                 /* -1: not known */
} opipe_build_value;

/* An initializer. One that has the name of an input is that input's constant content. */
typedef struct opipe_build_tensor {
  const char *name;
  const int64_t *shape; /* [rank] */
  const void *data;     /* dense, row-major, little-endian, sub-byte types packed; or NULL, and then
                         */
  const char *file;     /* main graph only: a file, which is mapped. With a base_dir it must be
                           below it, by the rules of external data; otherwise any path */
  uint64_t offset_bytes; /* in the file */
  uint64_t n_bytes;      /* must match type and shape. OPIPE_STRING: 0, content is not read */
  uint32_t dtype;        /* OPIPE_FLOAT ... */
  uint32_t rank;
} opipe_build_tensor;

typedef struct opipe_build_node {
  const char *name;           /* NULL or "": none */
  const char *op;             /* "MatMul" */
  const char *domain;         /* NULL, "" or "ai.onnx"; "com.microsoft" */
  const char *const *inputs;  /* [n_inputs] names, "": absent */
  const char *const *outputs; /* [n_outputs] names, "": absent */
  const opipe_attr *attrs;    /* [n_attrs], including OPIPE_ATTR_GRAPH: data is an opipe_build_graph
                                 whose nodes may read names of the enclosing graphs */
  uint32_t n_inputs;
  uint32_t n_outputs;
  uint32_t n_attrs;
  uint32_t reserved; /* 0 */
} opipe_build_node;

typedef struct opipe_build_graph {
  uint32_t struct_size;
  uint32_t n_inputs;
  const char *name;                  /* NULL: none */
  const opipe_build_value *inputs;   /* [n_inputs] */
  const opipe_build_value *outputs;  /* [n_outputs] */
  const opipe_build_tensor *tensors; /* [n_tensors] */
  const opipe_build_node *nodes;     /* [n_nodes] */
  uint32_t n_outputs;
  uint32_t n_tensors;
  uint32_t n_nodes;
  uint32_t values_stride; /* bytes from element to element of inputs and outputs */
  uint32_t tensors_stride;
  uint32_t nodes_stride;
} opipe_build_graph;

/* Version of a domain's operators. */
typedef struct opipe_build_opset {
  const char *domain; /* NULL, "" or "ai.onnx"; "com.microsoft" */
  int64_t version;
} opipe_build_opset;

typedef struct opipe_build_params {
  uint32_t struct_size;
  uint32_t flags; /* OPIPE_LOAD_ALLOW_SYMLINKS, _HARDLINKS, for files below base_dir */
  const opipe_build_graph *graph;  /* the main one */
  const opipe_build_opset *opsets; /* [n_opsets] one for every domain with a node */
  const char *base_dir;            /* folder of `file`; NULL: any path */
  uint64_t memory_budget_bytes;    /* as in opipe_load_params */
  uint32_t n_opsets;
  uint32_t opsets_stride; /* bytes from opset to opset */
  uint32_t ir_version;    /* that model_write writes, 3 to 13; 0: 10 */
  uint32_t reserved;      /* 0 */
  /* As in opipe_load_params: called once when the lent content is no longer needed. */
  void (*on_release)(void *ctx);
  void *release_ctx;
} opipe_build_params;

#include "frozen/build.h"

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_BUILD_H */
