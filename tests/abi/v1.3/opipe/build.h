/* SPDX-License-Identifier: Apache-2.0 */
/* A model from a graph that the host has in memory; part of host.h (1.3).
 *
 *   opipe_build_params ── graph ── inputs, outputs, tensors, nodes ── attributes ── graph (body)
 * ... ── opsets            │ └ content: in memory (borrowed), or a place in a file
 *
 * The tables say what an ONNX file would say, by the same names: model_build checks them as
 * model_load checks a file, and its model is bound, planned, run, trained and saved as any other.
 * Nodes may stand in any order; values in between need no declaration.
 *   The tables are read during the call. What stays the host's, unchanged, until on_release is the
 * content of the main graph's `tensors` that are given in memory: it is read where it lies. (Copied
 * are tensors of bodies and attributes, and small ones at addresses that their type does not like.)
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
  uint32_t dtype;               /* OPIPE_FLOAT ...; OPIPE_UNDEFINED: not known (not of inputs of the
                                   main graph) */
  int32_t rank;                 /* -1: not known */
} opipe_build_value;

/* An initializer. One of the name of an input is the input's constant content. */
typedef struct opipe_build_tensor {
  const char *name;
  const int64_t *shape; /* [rank] */
  const void *data;     /* dense, row-major, little-endian, sub-byte types packed; or NULL and: */
  const char *file;     /* main graph only: a file, which is mapped. Below base_dir, by the rules of
                           external data; without a base_dir as the system finds it */
  uint64_t offset_bytes; /* in the file */
  uint64_t n_bytes;      /* as type and shape make it. OPIPE_STRING: 0, content is not read */
  uint32_t dtype;        /* OPIPE_FLOAT ... */
  uint32_t rank;
} opipe_build_tensor;

typedef struct opipe_build_node {
  const char *name;           /* NULL or "": it has none */
  const char *op;             /* "MatMul" */
  const char *domain;         /* NULL, "" or "ai.onnx"; "com.microsoft" */
  const char *const *inputs;  /* [n_inputs] names, "": absent */
  const char *const *outputs; /* [n_outputs] names, "": absent */
  const opipe_attr *attrs; /* [n_attrs], also of kind OPIPE_ATTR_GRAPH: data is an opipe_build_graph
                              whose nodes may read the names of the graphs around it */
  uint32_t n_inputs;
  uint32_t n_outputs;
  uint32_t n_attrs;
  uint32_t reserved; /* 0 */
} opipe_build_node;

typedef struct opipe_build_graph {
  uint32_t struct_size;
  uint32_t n_inputs;
  const char *name;                  /* NULL: it has none */
  const opipe_build_value *inputs;   /* [n_inputs] */
  const opipe_build_value *outputs;  /* [n_outputs] */
  const opipe_build_tensor *tensors; /* [n_tensors] */
  const opipe_build_node *nodes;     /* [n_nodes] */
  uint32_t n_outputs;
  uint32_t n_tensors;
  uint32_t n_nodes;
  uint32_t values_stride; /* bytes from element to element, of inputs and outputs */
  uint32_t tensors_stride;
  uint32_t nodes_stride;
} opipe_build_graph;

/* The version of a domain's operators. */
typedef struct opipe_build_opset {
  const char *domain; /* NULL, "" or "ai.onnx"; "com.microsoft" */
  int64_t version;
} opipe_build_opset;

typedef struct opipe_build_params {
  uint32_t struct_size;
  uint32_t flags; /* OPIPE_LOAD_ALLOW_SYMLINKS, _HARDLINKS: of files below base_dir */
  const opipe_build_graph *graph;  /* the main one */
  const opipe_build_opset *opsets; /* [n_opsets] of every domain that a node is of */
  const char *base_dir;            /* of `file`; NULL: paths are the host's own */
  uint64_t memory_budget_bytes;    /* as of opipe_load_params */
  uint32_t n_opsets;
  uint32_t opsets_stride; /* bytes from opset to opset */
  uint32_t ir_version;    /* of what model_write writes, 3 to 13; 0: 10 */
  uint32_t reserved;      /* 0 */
  /* As of opipe_load_params: called once when the content lent is not needed any more. */
  void (*on_release)(void *ctx);
  void *release_ctx;
} opipe_build_params;

#include "frozen/build.h"

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_BUILD_H */
