/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this folder share: one load in progress.
 *
 * A load holds the unpacked messages in an arena of its own, which ends with the load, and builds
 * the file graph in the model's arena. Everything that a message names is checked where it is used.
 */
#ifndef OPI_WIRE_WIRE_H
#define OPI_WIRE_WIRE_H

#include "loader/graph/model.h"
#include "loader/wire/scan.h"
#include "onnx_model.pb-c.h"

enum {
  OPI_WIRE_MAX_NODES = 1 << 20, /* of the file graph, functions expanded, subgraphs included */
  OPI_WIRE_MAX_SCOPES = 128,    /* functions and subgraphs inside one another */
  OPI_WIRE_MAX_STAGE = 65535,   /* pipeline_stage */
  OPI_WIRE_MAX_CONFIGURATIONS = 64,
  OPI_WIRE_MAX_OPSETS = 1024,
  OPI_WIRE_MAX_ATTRIBUTES = 4096, /* of one node, defaults of one function */
  OPI_WIRE_ALIGN_BYTES = 65536, /* smaller tensors are copied when the file holds them unaligned */
  OPI_WIRE_ALIGN_TOTAL = 64 << 20, /* of such copies */
  OPI_WIRE_MAX_SPARSE = 64 << 20   /* bytes of one densified sparse tensor */
};

/* Kinds of attribute beyond opipe_attr's: kept by name alone, nothing behind `data`. */
#define OPI_ATTR_OTHER 101u

/* What is warned about once per load. */
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
  const char *path;     /* absolute, links resolved; NULL: not known */
  uint8_t *bytes;       /* NULL when the file is empty */
  opi_pages pages;      /* while it is mapped */
  uint64_t n_bytes;
  uint64_t device, inode;
  int64_t changed_ns; /* when it was written last, as the file system says */
};

typedef struct opi_load {
  const opi_load_params *params;
  const opipe_allocator *allocator;  /* `watched`, unless a single tensor is read */
  const opipe_allocator *underlying; /* what `watched` hands on to */
  opipe_allocator watched;
  bool out_of_memory; /* `underlying` has refused memory */
  const opi_logger *logger;
  opi_model *model;    /* NULL while a single tensor is read */
  opi_arena *arena;    /* of what stays */
  opi_arena parse;     /* of what ends with the load */
  const uint8_t *file; /* what spans count from */
  uint64_t file_bytes;
  uint64_t budget_bytes;
  OpiOnnx__ModelProto *message;
  /* external data */
  int dir;               /* folder of the model file itself, -1: none is allowed */
  const char *dir_path;  /* its real path */
  const char *link_path; /* folder of the link by which the model was reached; NULL: no link */
  opi_map *locations;    /* location -> index in mappings */
  opi_mapping **mappings;
  uint32_t n_mappings, room_mappings;
  /* import */
  opi_map *taken;            /* value names of all graphs -> how often asked for */
  opi_map *node_names;       /* the same of nodes */
  opi_map *functions;        /* key of domain, name and overload -> index; NULL: there are none */
  opi_text key;              /* of the function that is looked for */
  opi_map *domains;          /* those warned about */
  const char *configuration; /* whose pipeline stages are read; NULL: there are none */
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

/* Checks bytes [n_bytes] as a message of kind `root` and unpacks it into `arena`, whose limit it
 * sets to the budget; out_message is a pointer to the generated structure. */
opipe_status opi_wire_unpack(const uint8_t *bytes, uint64_t n_bytes, opi_message root,
                             uint64_t budget_bytes, opi_arena *arena, opi_scan *out_scan,
                             ProtobufCMessage **out_message, opipe_error *err);
/* A TensorProto of a copy that was checked. */
opipe_status opi_wire_unpack_tensor(const uint8_t *copy, size_t n_bytes, opi_arena *arena,
                                    const OpiOnnx__TensorProto **out_tensor, opipe_error *err);

/* ---- external.c, location.c ---- */

enum { OPI_EXTERNAL_NO_OPENAT2 = 256u }; /* beside OPI_LOAD_*: the fall-back, for tests */

/* Opens the regular file `location` below the folder `dir` (of real path dir_path) for reading,
 * with everything that onnx-pipe asks of external data; `link_path`: see opi_load. `flags`:
 * OPI_LOAD_*. Errors: OPIPE_E_INVALID (outside the folder, a link, not a file), OPIPE_E_NOTFOUND,
 * OPIPE_E_IO. */
opipe_status opi_external_open(int dir, const char *dir_path, const char *link_path,
                               const char *location, uint32_t flags, int *out_fd,
                               uint64_t *out_bytes, opipe_error *err);
/* Opens a regular file that the caller names, for reading. Errors: NOTFOUND, IO, INVALID. */
opipe_status opi_wire_open(const char *path, int *out_fd, uint64_t *out_bytes, opipe_error *err);
/* Sets dir, dir_path and link_path for the model file at `path`, or for a base folder. */
opipe_status opi_external_begin(opi_load *load, const char *path, const char *base_dir,
                                opipe_error *err);
void opi_external_end(opi_load *load);
/* Where the n_bytes of `tensor` lie, per its external_data; *out_data NULL: absent, and that is
 * allowed (OPI_LOAD_GRAPH_ONLY). */
opipe_status opi_external_find(opi_load *load, const OpiOnnx__TensorProto *tensor, uint64_t n_bytes,
                               const uint8_t **out_data, opipe_error *err);
/* Maps a whole open file for reading; closes fd on failure and success. */
opipe_status opi_mapping_create(opi_load *load, int fd, const char *location, uint64_t n_bytes,
                                opi_mapping **out_mapping, opipe_error *err);
void opi_mappings_free(opi_mapping *first); /* unmaps */

/* ---- tensors.c, content.c, sparse.c ---- */

/* A dense tensor: `data` NULL for strings and for content that was not shipped. */
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
/* Decodes the content that the message itself holds. */
opipe_status opi_wire_content(opi_load *load, const OpiOnnx__TensorProto *tensor, opi_dense *dense,
                              opipe_error *err);

/* Refuses content in the message of a tensor whose content is external. */
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

/* Refuses what is neither a tensor nor a sequence (map, optional, sparse, opaque) by name. */
opipe_status opi_wire_read_type(opi_load *load, const OpiOnnx__ValueInfoProto *info,
                                opi_wire_type *out, opipe_error *err);
/* Gives a value what it does not have yet; a contradiction is warned about, and what is there
 * stays. */
void opi_wire_apply_type(opi_load *load, opi_value *value, const opi_wire_type *type);

/* ---- scope.c ---- */

/* A function being expanded: what its attribute references stand for, and who called it. */
typedef struct opi_call {
  const OpiOnnx__FunctionProto *function;
  const opipe_attr *attrs; /* of the calling node, [n_attrs] */
  uint32_t n_attrs;
  const struct opi_call *outer;
} opi_call;

/* Where names mean something: a graph, a subgraph, or the body of one call. */
typedef struct opi_scope {
  opi_load *load;
  opi_graph *graph;
  opi_map *names;    /* name in the file -> value of `graph`, OPIPE_NONE: an absent argument */
  opi_map *promised; /* a call's outputs that its body has not made yet; NULL: not a call */
  struct opi_scope *outer; /* whose names may be read; NULL: main graph, function body */
  const opi_call *call;    /* innermost; NULL: none */
  const char *prefix;      /* of made names, "" or "call/" */
  uint32_t source;         /* node of the main graph that all this stands for; OPIPE_NONE: itself */
  int32_t stage;           /* of that node, -1: none */
} opi_scope;

opipe_status opi_scope_open(opi_scope *scope, opi_load *load, opi_graph *graph, opi_scope *outer,
                            opipe_error *err);
void opi_scope_close(opi_scope *scope); /* accepts one that did not open */

/* Makes the value `name`, with a name that no other value of the model has. Twice in one scope:
 * OPIPE_E_INVALID. */
opipe_status opi_scope_define(opi_scope *scope, const char *name, uint32_t *out_value,
                              opipe_error *err);
/* The value that `name` means here, captured from outer graphs if need be; "" gives OPIPE_NONE.
 * OPIPE_E_NOTFOUND, without a message: nothing has that name. */
opipe_status opi_scope_find(opi_scope *scope, const char *name, uint32_t *out_value,
                            opipe_error *err);
/* `name` if `taken` does not hold it, else with a suffix that makes it new. In the model's arena.
 */
opipe_status opi_scope_unique(opi_load *load, opi_map *taken, const char *prefix, const char *name,
                              const char **out_name, opipe_error *err);

/* ---- attributes.c ---- */

/* The attributes of a node, references to function attributes resolved. */
opipe_status opi_wire_attributes(opi_scope *scope, const OpiOnnx__NodeProto *node,
                                 opipe_attr **out_attrs, uint32_t *out_n, opipe_error *err);

/* ---- import.c, functions.c ---- */

/* The whole model: opsets, functions, graph. */
opipe_status opi_wire_import(opi_load *load, opipe_error *err);
/* Fills scope->graph, which is empty, from the message. */
opipe_status opi_wire_graph(opi_scope *scope, const OpiOnnx__GraphProto *message, opipe_error *err);
/* Appends one node: as it is, or its function's body. `index`: its place in the message. */
opipe_status opi_wire_node(opi_scope *scope, const OpiOnnx__NodeProto *message, size_t index,
                           opipe_error *err);
/* Makes the values of a node's outputs known to the scope. */
opipe_status opi_wire_define_outputs(opi_scope *scope, const OpiOnnx__NodeProto *message,
                                     opipe_error *err);
/* Opset version that the scope's imports give to the domain. */
opipe_status opi_wire_version(opi_scope *scope, const char *domain, const char *op,
                              uint32_t *out_version, opipe_error *err);
/* Decides whose pipeline stages are read: sets load->configuration. */
void opi_wire_choose_configuration(opi_load *load);
/* "ai.onnx" and NULL are "". */
const char *opi_wire_domain(const char *domain);
/* Reads the function list; then finds one for a node: *out_function NULL when it is none. */
opipe_status opi_functions_index(opi_load *load, opipe_error *err);
opipe_status opi_functions_find(opi_load *load, const OpiOnnx__NodeProto *node,
                                const OpiOnnx__FunctionProto **out_function, opipe_error *err);
/* A call whose attributes are resolved. */
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
