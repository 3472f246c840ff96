/* SPDX-License-Identifier: Apache-2.0 */
/* A model file: mapped, parsed, converted into its file graph. Immutable after loading; shared by
 * any number of bound graphs and threads. */
#ifndef OPI_MODEL_H
#define OPI_MODEL_H

#include <opipe/build.h>

#include "loader/graph/graph.h"

enum {
  OPI_LOAD_GRAPH_ONLY =
      1u, /* absent external data is accepted: its values are flagged OPI_VALUE_MISSING */
  OPI_LOAD_ALLOW_SYMLINKS = 2u, /* external data may be reached through symlinks */
  OPI_LOAD_ALLOW_HARDLINKS = 4u /* external data may have a link count above 1 */
};

typedef struct opi_load_params {
  const char *path; /* a file, or NULL with data */
  const void *data; /* the file's bytes, borrowed for the life of the model */
  uint64_t n_bytes;
  const char *base_dir; /* with `data`: folder of external data; NULL: none allowed (built: as the
                           system finds it) */
  uint64_t
      memory_budget_bytes; /* for host metadata; 0: 64 MiB + 16 x the file without tensor content */
  uint32_t flags;          /* OPI_LOAD_* */
  const opipe_allocator *allocator;
  const opi_logger *logger;       /* warnings (unknown keys, newer IR); may be NULL */
  const opipe_build_graph *built; /* for opi_model_build: where external content really is */
} opi_load_params;

typedef struct opi_opset {
  const char *domain;
  int64_t version;
} opi_opset;

/* A sharding spec of IR 11: how a tensor of a node lies on devices. */
typedef struct opi_sharding {
  const char *node, *tensor;
  int64_t axis,
      extent; /* of more than one shard; axis below 0: from the last; extent 0: not said */
  int64_t first_device;
  uint32_t n_shards, n_devices; /* equal parts along the axis, one on each device; n_shards 1: each
                                   device has all of it */
  const char *why;              /* why no plan can be made of it; NULL: one can */
} opi_sharding;

typedef struct opi_model {
  const opipe_allocator *allocator;
  opi_arena arena;      /* owns everything below */
  const char *path;     /* NULL if loaded from memory */
  const char *producer; /* "pytorch 2.5" or "" */
  const uint8_t *file;  /* the model file's bytes (mapped) */
  uint64_t file_bytes;
  int64_t ir_version;
  opi_opset *opsets;
  uint32_t n_opsets;
  opi_graph *graph;        /* local functions inlined, sorted; If/Loop bodies as subgraphs */
  uint32_t n_file_nodes;   /* as the file counts them: main graph, functions expanded, subgraphs
                              included */
  struct opi_wide *wide;   /* loader/graph/wide.h */
  void *built;             /* `file`, if made from a host's tables; else NULL */
  uint64_t external_bytes; /* of external data in use */
  int32_t n_stages;        /* from pipeline_stage annotations: 1 + the largest; 0: none */
  uint32_t n_shardings;
  opi_sharding *shardings;      /* [n_shardings] in the order of nodes */
  struct opi_mapping *mappings; /* private to loader/wire */
  struct opi_row_model *rows;   /* loader/passes/row_model.h; NULL: as the file has it */
} opi_model;

/* Reads, checks and imports a model. Everything in it is hostile until checked; errors say what is
 * wrong and where. Errors: OPIPE_E_INVALID (malformed), _UNSUPPORTED (one report over all nodes:
 * node, operator, domain, version), _LIMIT, _IO, _NOTFOUND (the file, or a file of external data),
 * _NOMEM
 */
opipe_status opi_model_load(const opi_load_params *params, opi_model **out_model, opipe_error *err);
void opi_model_free(opi_model *model); /* accepts NULL */
/* Checks that the model's mapped files are unchanged since loading. Every reader calls this first:
 * reading past the end of a truncated file raises SIGBUS, which ends the process unless it is
 * handled. Errors: INVALID, with the file and both sizes. [any-thread] */
opipe_status opi_model_check_files(const opi_model *model, opipe_error *err);
/* Checks, before a file is written to `path`, that it would not replace a file that the model was
 * read from, under whatever name. `itself`: includes the model's own file, not only its content.
 * Errors: INVALID names the file. [any-thread] */
opipe_status opi_model_check_target(const opi_model *model, const char *path, bool itself,
                                    opipe_error *err);
/* Tells the system that the pages of the model's mapped files are not needed for now; later reads
 * fault them in again from the page cache. After weights have been packed, the files need not stay
 * resident beside the copies. [any-thread] */
void opi_model_relax(const opi_model *model);

/* A parameter of a tensor group that IR 11 can describe: equal parts along an axis, each in one
 * run, in the order of members. */
typedef struct opi_annotated_part {
  const char *name; /* of the initializer */
  int32_t axis;
  int64_t extent; /* of the whole tensor */
} opi_annotated_part;
typedef struct opi_annotated_shards {
  const opi_annotated_part *parts; /* [n_parts] */
  const uint32_t *first_device;    /* [stages] device of member 0; the others follow */
  uint32_t n_parts, width;
} opi_annotated_shards;

/* Writes the model file with `stage_of_node` as IR-11 annotations under configuration `name` with
 * n_devices devices. stage_of_node [n_nodes]: by node of the main graph; -1: omit; nodes beyond
 * n_nodes are omitted. shards: nodes that read these parameters get sharding specs; NULL: none. All
 * other bytes of the file survive, in place or shifted; annotations of the
 * same name are replaced. */
opipe_status opi_model_annotate(const opi_model *model, const char *name,
                                const int32_t *stage_of_node, uint32_t n_nodes, uint32_t n_devices,
                                const opi_annotated_shards *shards, opipe_write_fn write, void *ctx,
                                opipe_error *err);

/* ---- contents of the file itself ---- */

/* Passes on key and value [n_key, n_value bytes] of each entry of a node's metadata as the file has
 * them; `node`: in the file's main graph. Errors: those of `take`; INVALID. */
typedef opipe_status (*opi_metadata_fn)(void *ctx, uint32_t node, const char *key, uint64_t n_key,
                                        const char *value, uint64_t n_value);
opipe_status opi_model_metadata(const opi_model *model, opi_metadata_fn take, void *ctx,
                                opipe_error *err);

/* One float initializer of the file, in the main graph or in a body at any depth. */
typedef struct opi_file_tensor {
  const char *name; /* [n_name] not terminated; in the model's bytes */
  uint64_t n_name;
  uint64_t at; /* as opi_value.at; 0 for a sparse one */
  uint32_t dtype;
} opi_file_tensor;
/* Lists them from the model's bytes alone, independent of the import. In `arena`, in file order. */
opipe_status opi_model_float_tensors(const opi_model *model, opi_arena *arena,
                                     opi_file_tensor **out_list, uint32_t *out_n, opipe_error *err);

/* A new value of an initializer. */
typedef struct opi_replacement opi_replacement;
struct opi_replacement {
  const char *name;
  const void *data; /* dense, of the initializer's type; NULL: `stream` writes it */
  /* Writes the n_bytes in pieces, when their place in a file comes; once for each save. */
  opipe_status (*stream)(void *ctx, const opi_replacement *value, opipe_write_fn write,
                         void *write_ctx, opipe_error *err);
  void *stream_ctx;
  const int64_t *shape;
  uint64_t n_bytes;
  uint32_t dtype;
  uint32_t rank;
};

/* Can the new value of an initializer be streamed? Not if the file spells its halves in numbers of
 * various lengths, which must be known before. */
bool opi_model_streams(const opi_model *model, const char *name);

/* Writes the model file to `path` with the values of `list` [n]. Embedded values go into the field
 * that holds them, external ones into copies of the external files below the folder of `path`; all
 * other bytes survive. A built model is written with all its content: into the file, or into
 * PATH.data if that would reach 2 GiB. On failure nothing is left behind. Errors: IO with file and
 * bytes; INVALID, sizes, or external files that are the model's own or not part of the model being
 * replaced; UNSUPPORTED names a parameter without a place in the file. */
opipe_status opi_model_save(const opi_model *model, const opi_replacement *list, uint32_t n,
                            const char *path, opipe_error *err);
/* Checks that it could be saved there. Does not read `data` of the list and leaves nothing behind.
 */
opipe_status opi_model_try_save(const opi_model *model, const opi_replacement *list, uint32_t n,
                                const char *path, opipe_error *err);

/* Makes a model from a host's tables, whose structs have been checked one by one. `env`: base_dir,
 * budget, flags, allocator and logger. Content in memory is borrowed for the life of the model.
 * Errors: as opi_model_load; INVALID, anything that no file could express. */
opipe_status opi_model_build(const opipe_build_params *params, const opi_load_params *env,
                             opi_model **out_model, opipe_error *err);
/* Writes the model to `path`: opi_model_save with the content given to it (promoted inputs; all
 * content of a built model). */
opipe_status opi_model_write(const opi_model *model, const char *path, opipe_error *err);

/* Turns graph input `value->name` into an initializer with the given content, copied or borrowed
 * for the life of the model. Call it before the model is shared. Errors: NOTFOUND lists the inputs;
 * INVALID names types and shapes that differ. */
opipe_status opi_model_promote(opi_model *model, const opi_replacement *value, bool borrow,
                               opipe_error *err);

/* Parses one serialised TensorProto (test data sets, --input x.pb): name, type, shape and data in
 * `arena`. */
opipe_status opi_tensor_parse(const void *bytes, uint64_t n_bytes, opi_arena *arena,
                              opi_value *out_tensor, opipe_error *err);

#endif /* OPI_MODEL_H */
