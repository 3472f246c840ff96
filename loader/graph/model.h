/* SPDX-License-Identifier: Apache-2.0 */
/* A model file: mapped, parsed, its file graph built. Immutable after loading; shared by any number
 * of bound graphs and threads. */
#ifndef OPI_MODEL_H
#define OPI_MODEL_H

#include <opipe/build.h>

#include "loader/graph/graph.h"

enum {
  OPI_LOAD_GRAPH_ONLY =
      1u, /* external data that is absent is no error: its values are flagged OPI_VALUE_MISSING */
  OPI_LOAD_ALLOW_SYMLINKS = 2u, /* external data may be reached through symlinks */
  OPI_LOAD_ALLOW_HARDLINKS = 4u /* external data may have a link count above 1 */
};

typedef struct opi_load_params {
  const char *path; /* a file, or NULL with data */
  const void *data; /* the file's bytes, borrowed as long as the model lives */
  uint64_t n_bytes;
  const char *base_dir;         /* with data: where external data lies; NULL: none allowed (built:
                                   as the system finds it) */
  uint64_t memory_budget_bytes; /* of host metadata; 0: 64 MiB + 16 x the file without its tensors'
                                   content */
  uint32_t flags;               /* OPI_LOAD_* */
  const opipe_allocator *allocator;
  const opi_logger *logger;       /* warnings (unknown keys, newer IR); may be NULL */
  const opipe_build_graph *built; /* opi_model_build's: where external content really is */
} opi_load_params;

typedef struct opi_opset {
  const char *domain;
  int64_t version;
} opi_opset;

typedef struct opi_model {
  const opipe_allocator *allocator;
  opi_arena arena;      /* everything below */
  const char *path;     /* NULL when loaded from memory */
  const char *producer; /* "pytorch 2.5" or "" */
  const uint8_t *file;  /* the model file's bytes (mapped) */
  uint64_t file_bytes;
  int64_t ir_version;
  opi_opset *opsets;
  uint32_t n_opsets;
  opi_graph *graph;      /* local functions inlined, sorted; If/Loop bodies as subgraphs */
  uint32_t n_file_nodes; /* nodes as the file counts them: main graph, functions expanded, subgraphs
                            included */
  struct opi_wide *wide; /* loader/graph/wide.h */
  void *built;           /* `file`, where it was made from a host's tables; NULL: it was not */
  uint64_t external_bytes;      /* of external data in use */
  int32_t n_stages;             /* from pipeline_stage annotations: 1 + the largest; 0: none */
  struct opi_mapping *mappings; /* private to loader/wire */
} opi_model;

/* Reads, checks and imports a model. Everything in it is hostile until checked: errors name what
 * and where. Errors: OPIPE_E_INVALID (malformed), _UNSUPPORTED (one report over all nodes: node,
 * operator, domain, version), _LIMIT, _IO, _NOTFOUND (the file, or a file of external data), _NOMEM
 */
opipe_status opi_model_load(const opi_load_params *params, opi_model **out_model, opipe_error *err);
void opi_model_free(opi_model *model); /* accepts NULL */
/* Are the model's mapped files what they were when it was loaded? Whatever reads them asks first:
 * reading past the end of a file that was cut short ends the process, unless its handler of SIGBUS
 * does not. Errors: INVALID, with the file and both sizes. [any-thread] */
opipe_status opi_model_check_files(const opi_model *model, opipe_error *err);
/* Before a file is put to `path`: would it take the place of one that the model was read from, by
 * whatever name it is known there? `itself`: of the model's own file too, not of its content alone.
 * Errors: INVALID names the file. [any-thread] */
opipe_status opi_model_check_target(const opi_model *model, const char *path, bool itself,
                                    opipe_error *err);
/* Tells the system that the pages of the model's mapped files are not needed for now (what still
 * reads them faults them in again, from the page cache): after weights were packed, the files need
 * not stay resident beside the copies. [any-thread] */
void opi_model_relax(const opi_model *model);

/* Writes the model file with `stage_of_node` [n main graph nodes, -1: leave out; nodes beyond
 * n_nodes are left out] as IR-11 annotations under configuration `name` with n_devices devices;
 * every other byte of the file survives in place or shifted, annotations of the same name are
 * replaced. */
opipe_status opi_model_annotate(const opi_model *model, const char *name,
                                const int32_t *stage_of_node, uint32_t n_nodes, uint32_t n_devices,
                                opipe_write_fn write, void *ctx, opipe_error *err);

/* ---- what the file itself says ---- */

/* Hands over key and value [n_bytes each] of each entry of a node's metadata, as the file has them;
 * `node`: in the file's main graph. Errors: what `take` answers; INVALID. */
typedef opipe_status (*opi_metadata_fn)(void *ctx, uint32_t node, const char *key, uint64_t n_key,
                                        const char *value, uint64_t n_value);
opipe_status opi_model_metadata(const opi_model *model, opi_metadata_fn take, void *ctx,
                                opipe_error *err);

/* One float initializer of the file: of the main graph, or of a body at any depth. */
typedef struct opi_file_tensor {
  const char *name; /* [n_name] without an end; in the model's bytes */
  uint64_t n_name;
  uint64_t at; /* as opi_value.at; of a sparse one 0 */
  uint32_t dtype;
} opi_file_tensor;
/* Lists them from the model's bytes alone: nothing that was read of them before is asked. In
 * `arena`, in the file's order. */
opipe_status opi_model_float_tensors(const opi_model *model, opi_arena *arena,
                                     opi_file_tensor **out_list, uint32_t *out_n, opipe_error *err);

/* A new value of an initializer. */
typedef struct opi_replacement {
  const char *name;
  const void *data; /* dense, of the initializer's type */
  const int64_t *shape;
  uint64_t n_bytes;
  uint32_t dtype;
  uint32_t rank;
} opi_replacement;

/* Writes the model file to `path` with the values of `list` [n]: embedded ones in the field that
 * holds them, external ones into copies of the external files below the folder of `path`; all other
 * bytes survive. Of a built model all content is written: into the file, or where that would have 2
 * GiB and more into PATH.data. Nothing is left of what could not be written. Errors: IO with file
 * and bytes; INVALID (sizes; external files beside the model's own, or over those that are no part
 * of the model that is replaced); UNSUPPORTED names a parameter without a place in the file. */
opipe_status opi_model_save(const opi_model *model, const opi_replacement *list, uint32_t n,
                            const char *path, opipe_error *err);
/* Could it be saved there? `data` of the list is not looked at; nothing stays. */
opipe_status opi_model_try_save(const opi_model *model, const opi_replacement *list, uint32_t n,
                                const char *path, opipe_error *err);

/* A model from a host's tables, whose structs were checked one by one. `env`: base_dir, budget,
 * flags, allocator and logger. Content in memory is borrowed as long as the model lives. Errors: as
 * of opi_model_load; INVALID for what no file could say. */
opipe_status opi_model_build(const opipe_build_params *params, const opi_load_params *env,
                             opi_model **out_model, opipe_error *err);
/* Writes the model to `path`: opi_model_save with what was given to it (promoted inputs; of a built
 * model all content). */
opipe_status opi_model_write(const opi_model *model, const char *path, opipe_error *err);

/* Makes graph input `value->name` an initializer with the given content (copied, or borrowed as
 * long as the model lives), before the model is shared. Errors: NOTFOUND lists the inputs; INVALID
 * names types and shapes that differ. */
opipe_status opi_model_promote(opi_model *model, const opi_replacement *value, bool borrow,
                               opipe_error *err);

/* Reads one serialised TensorProto (test data sets, --input x.pb): name, type, shape, data in
 * `arena`. */
opipe_status opi_tensor_parse(const void *bytes, uint64_t n_bytes, opi_arena *arena,
                              opi_value *out_tensor, opipe_error *err);

#endif /* OPI_MODEL_H */
