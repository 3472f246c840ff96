/* SPDX-License-Identifier: Apache-2.0 */
/* A load in progress, shared by the files of this folder.
 *
 * A load holds the unpacked messages in its own arena, which ends with the load, and builds the
 * file graph in the model's arena. Everything that a message refers to is checked where it is used.
 */
#ifndef OPI_WIRE_WIRE_H
#define OPI_WIRE_WIRE_H

#include "loader/graph/model.h"
#include "loader/wire/scan.h"
#include "onnx_model.pb-c.h"

enum {
  OPI_WIRE_MAX_NODES =
      1 << 20,               /* in the file graph, with functions expanded and subgraphs included */
  OPI_WIRE_MAX_SCOPES = 128, /* nested functions and subgraphs */
  OPI_WIRE_MAX_STAGE = 65535, /* pipeline_stage */
  OPI_WIRE_MAX_CONFIGURATIONS = 64,
  OPI_WIRE_MAX_OPSETS = 1024,
  OPI_WIRE_MAX_ATTRIBUTES = 4096,  /* of one node; defaults of one function */
  OPI_WIRE_ALIGN_BYTES = 65536,    /* smaller tensors are copied if unaligned in the file */
  OPI_WIRE_ALIGN_TOTAL = 64 << 20, /* total of such copies */
  OPI_WIRE_MAX_SPARSE = 64 << 20   /* bytes of one densified sparse tensor */
};

/* Attributes of kinds beyond opipe_attr's: only the name is kept, `data` is NULL. */
#define OPI_ATTR_OTHER 101u

/* Warnings issued once per load. */
enum {
  OPI_WARNED_CHECKSUM = 1u,
  OPI_WARNED_KEY = 2u,
  OPI_WARNED_SHADOW = 4u,
  OPI_WARNED_TYPE = 8u,
  OPI_WARNED_STAGE = 16u,
  OPI_WARNED_CONSTANT = 32u,
  OPI_WARNED_TWIN = 64u
};

typedef struct opi_mapping opi_mapping;
struct opi_mapping {
  opi_mapping *next;
  const char *location; /* as the file spells it; "" for the model file */
  const char *path;     /* absolute, links resolved; NULL: unknown */
  uint8_t *bytes;       /* NULL if the file is empty */
  opi_pages pages;      /* while it is mapped */
  uint64_t n_bytes;
  uint64_t device, inode;
  int64_t changed_ns; /* modification time reported by the file system */
};

typedef struct opi_load {
  const opi_load_params *params;
  const opipe_allocator *allocator;  /* `watched`, unless reading a single tensor */
  const opipe_allocator *underlying; /* the allocator behind `watched` */
  opipe_allocator watched;
  bool out_of_memory; /* `underlying` has refused memory */
  const opi_logger *logger;
  opi_model *model;    /* NULL while reading a single tensor */
  opi_arena *arena;    /* for the model */
  opi_arena parse;     /* released when the load ends */
  const uint8_t *file; /* base of all offsets */
  uint64_t file_bytes;
  uint64_t budget_bytes;
  OpiOnnx__ModelProto *message;
  /* external data */
  int dir;               /* folder of the model file; -1: no external data allowed */
  const char *dir_path;  /* its real path */
  const char *link_path; /* folder of the link through which the model was reached; NULL: no link */
  opi_map *locations;    /* location -> index in mappings */
  opi_mapping **mappings;
  uint32_t n_mappings, room_mappings;
  /* import */
  opi_map *taken;            /* value names of all graphs -> number of requests */
  opi_map *node_names;       /* the same for nodes */
  opi_map *functions;        /* key of domain, name and overload -> index; NULL: no functions */
  opi_text key;              /* scratch: key of a function being looked up */
  opi_map *domains;          /* domains already warned about */
  const char *configuration; /* the one whose stages and shardings are read; NULL: none */
  uint32_t room_shardings;
  uint32_t n_nodes, n_scopes;
  uint64_t aligned_bytes; /* copied for alignment */
  uint32_t warned;        /* OPI_WARNED_* */
} opi_load;

/* True the first time in this load. */
static inline bool opi_load_first(opi_load *load, uint32_t warning) {
  const bool first = (load->warned & warning) == 0;
  load->warned |= warning;
  return first;
}

/* ---- unpack.c ---- */

/* Checks bytes [n_bytes] as a message of kind `root` and unpacks it into `arena`, setting the
 * arena's limit to the budget. *out_message: the generated structure. */
opipe_status opi_wire_unpack(const uint8_t *bytes, uint64_t n_bytes, opi_message root,
                             uint64_t budget_bytes, opi_arena *arena, opi_scan *out_scan,
                             ProtobufCMessage **out_message, opipe_error *err);
/* Unpacks a TensorProto from a checked copy. */
opipe_status opi_wire_unpack_tensor(const uint8_t *copy, size_t n_bytes, opi_arena *arena,
                                    const OpiOnnx__TensorProto **out_tensor, opipe_error *err);

/* ---- external.c, location.c ---- */

enum {
  OPI_EXTERNAL_NO_OPENAT2 = 256u
}; /* in addition to OPI_LOAD_*: use the fallback, for tests */

/* Opens the regular file `location` below the folder `dir` (with real path dir_path) for reading,
 * enforcing all rules for external data; `link_path`: see opi_load. `flags`: OPI_LOAD_*. Errors:
 * OPIPE_E_INVALID (outside the folder, a link, not a file), OPIPE_E_NOTFOUND, OPIPE_E_IO. */
opipe_status opi_external_open(int dir, const char *dir_path, const char *link_path,
                               const char *location, uint32_t flags, int *out_fd,
                               uint64_t *out_bytes, opipe_error *err);
/* Opens a regular file named by the caller for reading. Errors: NOTFOUND, IO, INVALID. */
opipe_status opi_wire_open(const char *path, int *out_fd, uint64_t *out_bytes, opipe_error *err);
/* Sets dir, dir_path and link_path for the model file at `path`, or for a base folder. */
opipe_status opi_external_begin(opi_load *load, const char *path, const char *base_dir,
                                opipe_error *err);
void opi_external_end(opi_load *load);
/* Finds the n_bytes of `tensor` through its external_data. *out_data NULL: absent, which
 * OPI_LOAD_GRAPH_ONLY allows. */
opipe_status opi_external_find(opi_load *load, const OpiOnnx__TensorProto *tensor, uint64_t n_bytes,
                               const uint8_t **out_data, opipe_error *err);
/* Maps a whole open file for reading. Closes fd in any case. */
opipe_status opi_mapping_create(opi_load *load, int fd, const char *location, uint64_t n_bytes,
                                opi_mapping **out_mapping, opipe_error *err);
void opi_mappings_free(opi_mapping *first); /* unmaps */

/* ---- tensors.c, content.c, sparse.c ---- */

/* A dense tensor. `data` is NULL for strings and for content that was not shipped. */
typedef struct opi_dense {
  const char *name;
  const int64_t *shape;
  const void *data;
  uint64_t n_bytes;
  uint32_t dtype;
  uint32_t rank;
  bool missing;
} opi_dense;

opipe_status opi_wire_tensor(opi_load *load, const OpiOnnx__TensorProto *tensor, opi_dense *out,
                             opipe_error *err);
opipe_status opi_wire_sparse(opi_load *load, const OpiOnnx__SparseTensorProto *tensor,
                             opi_dense *out, opipe_error *err);
/* Decodes content embedded in the message. */
opipe_status opi_wire_content(opi_load *load, const OpiOnnx__TensorProto *tensor, opi_dense *dense,
                              opipe_error *err);

/* Refuses embedded content in a tensor whose content is external. */
opipe_status opi_wire_no_content(opi_load *load, const OpiOnnx__TensorProto *tensor,
                                 opipe_error *err);

/* ---- types.c ---- */

typedef struct opi_wire_type {
  int64_t *shape;         /* [rank], -1: unknown */
  const char **dim_names; /* [rank] or NULL */
  int32_t rank;           /* -1: unknown */
  uint32_t dtype;         /* OPIPE_UNDEFINED: unknown */
  bool sequence;
} opi_wire_type;

/* Refuses types other than tensors and sequences (map, optional, sparse, opaque) by name. */
opipe_status opi_wire_read_type(opi_load *load, const OpiOnnx__ValueInfoProto *info,
                                opi_wire_type *out, opipe_error *err);
/* Fills in what the value lacks; a contradiction is warned about, and the value's own type stays.
 */
void opi_wire_apply_type(opi_load *load, opi_value *value, const opi_wire_type *type);

/* ---- scope.c ---- */

/* A function being expanded: values for its attribute references, and its caller. */
typedef struct opi_call {
  const OpiOnnx__FunctionProto *function;
  const opipe_attr *attrs; /* of the calling node, [n_attrs] */
  uint32_t n_attrs;
  const struct opi_call *outer;
} opi_call;

/* A scope of names: a graph, a subgraph, or the body of one call. */
typedef struct opi_scope {
  opi_load *load;
  opi_graph *graph;
  opi_map *names;    /* name in the file -> value of `graph`; OPIPE_NONE: an absent argument */
  opi_map *promised; /* outputs of a call that its body has not produced yet; NULL: not a call */
  struct opi_scope *outer; /* scope whose names may be read; NULL: main graph, function body */
  const opi_call *call;    /* innermost; NULL: none */
  const char *prefix;      /* of generated names: "" or "call/" */
  uint32_t
      source; /* node of the main graph that the contents came from; OPIPE_NONE: each node itself */
  int32_t stage; /* of that node; -1: none */
} opi_scope;

opipe_status opi_scope_open(opi_scope *scope, opi_load *load, opi_graph *graph, opi_scope *outer,
                            opipe_error *err);
void opi_scope_close(opi_scope *scope); /* accepts a scope that failed to open */

/* Creates the value `name`, under a name unique in the model. Errors: INVALID, defined twice in the
 * scope. */
opipe_status opi_scope_define(opi_scope *scope, const char *name, uint32_t *out_value,
                              opipe_error *err);
/* Resolves `name`, capturing it from outer graphs if necessary; "" gives OPIPE_NONE. Errors:
 * NOTFOUND, without a message. */
opipe_status opi_scope_find(opi_scope *scope, const char *name, uint32_t *out_value,
                            opipe_error *err);
/* `name` if `taken` lacks it, else with a suffix that makes it unique. In the model's arena.
 */
opipe_status opi_scope_unique(opi_load *load, opi_map *taken, const char *prefix, const char *name,
                              const char **out_name, opipe_error *err);

/* ---- attributes.c ---- */

/* The attributes of a node, with references to function attributes resolved. */
opipe_status opi_wire_attributes(opi_scope *scope, const OpiOnnx__NodeProto *node,
                                 opipe_attr **out_attrs, uint32_t *out_n, opipe_error *err);

/* ---- import.c, functions.c ---- */

/* Imports the whole model: opsets, functions, graph. */
opipe_status opi_wire_import(opi_load *load, opipe_error *err);
/* Fills scope->graph, which must be empty, from the message. */
opipe_status opi_wire_graph(opi_scope *scope, const OpiOnnx__GraphProto *message, opipe_error *err);
/* Appends one node, or the body of its function. `index`: position in the message. */
opipe_status opi_wire_node(opi_scope *scope, const OpiOnnx__NodeProto *message, size_t index,
                           opipe_error *err);
/* Defines a node's outputs in the scope. */
opipe_status opi_wire_define_outputs(opi_scope *scope, const OpiOnnx__NodeProto *message,
                                     opipe_error *err);
/* Opset version of the domain according to the scope's imports. */
opipe_status opi_wire_version(opi_scope *scope, const char *domain, const char *op,
                              uint32_t *out_version, opipe_error *err);
/* Chooses the configuration whose stages and shardings are read: sets load->configuration. */
void opi_wire_choose_configuration(opi_load *load);
/* shardings.c: appends the sharding specs of a node to the model's. */
opipe_status opi_wire_shardings(opi_load *load, const OpiOnnx__NodeProto *message, const char *node,
                                opipe_error *err);
/* Maps "ai.onnx" and NULL to "". */
const char *opi_wire_domain(const char *domain);
/* Indexes the functions; then finds the one that a node calls: *out_function NULL if none. */
opipe_status opi_functions_index(opi_load *load, opipe_error *err);
opipe_status opi_functions_find(opi_load *load, const OpiOnnx__NodeProto *node,
                                const OpiOnnx__FunctionProto **out_function, opipe_error *err);
/* A call with resolved attributes. */
typedef struct opi_call_site {
  const OpiOnnx__NodeProto *node;
  const OpiOnnx__FunctionProto *function;
  const char *name; /* unique */
  const opipe_attr *attrs;
  uint32_t n_attrs;
  uint32_t source; /* as opi_scope.source, opi_scope.stage */
  int32_t stage;
} opi_call_site;
/* Expands a call in place. */
opipe_status opi_functions_expand(opi_scope *scope, const opi_call_site *site, opipe_error *err);

/* A string field that may be absent. */
static inline const char *opi_wire_text(const char *text) {
  return text != NULL ? text : "";
}

#endif /* OPI_WIRE_WIRE_H */
