/* SPDX-License-Identifier: Apache-2.0 */
/* The graph: values and nodes in arrays; names serve only people and keys.
 *
 * Every model has two graphs. The *file graph* holds the contents of the file: its operator
 * versions, unknown dimensions, subgraphs. The *bound graph* is made from it for given input
 * shapes: canonical operators, every shape a number, constants folded, no dead nodes, nodes in an
 * executable order. Partition and runtime see bound graphs only.
 *
 * Invariants of both: a value has at most one producer; every input of a node is a value index or
 * OPIPE_NONE; value indices are dense from 0. Memory: everything is in the graph's arena except
 * `data`, which may point into a mapped file that outlives the graph.
 */
#ifndef OPI_GRAPH_H
#define OPI_GRAPH_H

#include "loader/base/base.h"

enum {
  OPI_VALUE_INPUT = 1u,  /* a graph input, fed by the caller */
  OPI_VALUE_OUTPUT = 2u, /* a graph output */
  OPI_VALUE_INITIALIZER =
      4u, /* an initializer of the file; data may be absent if weights are not shipped */
  OPI_VALUE_BARRIER = 8u,   /* a cut tensor: fusion must not remove it */
  OPI_VALUE_SEQUENCE = 16u, /* file graph only: a sequence, removed by binding */
  OPI_VALUE_BORROWED = 64u, /* `data` is the model's memory (its mapped file), not the graph's */
  OPI_VALUE_MISSING = 32u,  /* an initializer whose external data was not opened ("graph only") */
  OPI_VALUE_KEPT = 512u, /* an initializer of one element that will be trained: its number must not
                            be relied on */
  OPI_VALUE_SCALAR = 128u,   /* training graph only: a per-run scalar, fed by the runtime */
  OPI_VALUE_GRADIENT = 256u, /* training graph only: output of an Accumulate */
  OPI_VALUE_PROMOTED = 512u, /* file graph only: an input turned into an initializer */
  OPI_VALUE_WAS_HALF =
      1024u, /* float32 numbers stored as float16 in the file, hence only that precise */
  OPI_VALUE_WAS_BFLOAT = 2048u, /* the same for bfloat16 */
  OPI_VALUE_HELD = 4096u /* bound graph only: an input that the rank holds from run to run, whatever
                            the shapes, and that its reader writes */
};

typedef struct opi_value {
  const char *name;       /* never NULL; unique in its graph */
  int64_t *shape;         /* [rank]; -1: unknown (file graph only) */
  const char **dim_names; /* [rank] dim_param or NULL; NULL if no dimension has one */
  const void *data;       /* known content, dense row-major host memory; NULL: unknown */
  uint64_t n_bytes;       /* of `data`; in bound graphs, of every value */
  int32_t rank;           /* -1: unknown (file graph only) */
  uint32_t dtype;         /* OPIPE_UNDEFINED: unknown (file graph only) */
  uint32_t producer;      /* node index, OPIPE_NONE for inputs and constants */
  uint32_t flags;         /* OPI_VALUE_* */
  uint32_t source; /* bound graph: the file graph's value with the same content; OPIPE_NONE: made by
                      a pass */
  uint32_t reserved;
  uint64_t at; /* initializers: offset of their message in the model's bytes, shared by all values
                  read from it (such as a function called twice); 0: unknown */
} opi_value;

struct opi_graph;
#define OPI_ATTR_GRAPH \
  100u /* opipe_attr.kind of a subgraph: data is a struct opi_graph *; file graph only */

typedef struct opi_node {
  const char *name; /* never NULL; generated if the file has none */
  const char *op;
  const char *domain; /* "" for ai.onnx */
  uint32_t *in;       /* [n_in] value indices; OPIPE_NONE: absent */
  uint32_t *out;      /* [n_out] */
  opipe_attr *attrs;  /* [n_attrs] */
  uint32_t n_in, n_out, n_attrs;
  uint32_t
      version;     /* file graph: opset of its domain; bound graph: version of the canonical form */
  uint32_t source; /* node of the file's main graph that it came from (in inlined bodies, the call);
                      OPIPE_NONE: none */
  int32_t stage;   /* pipeline_stage annotation (IR 11); -1: none */
  uint32_t pass;   /* OPIPE_PASS_* */
  uint32_t pattern; /* OPI_PATTERN_*: the fusion that made it */
} opi_node;

enum {
  OPI_PATTERN_NONE = 0,
  OPI_PATTERN_LAYERNORM,
  OPI_PATTERN_RMSNORM,
  OPI_PATTERN_GELU,
  OPI_PATTERN_SILU,
  OPI_PATTERN_ROTARY,
  OPI_PATTERN_ATTENTION,
  OPI_PATTERN_MATMUL,
  OPI_PATTERN_COUNT
};

typedef struct opi_graph {
  const char *name;
  opi_arena *arena; /* owner of everything in the graph */
  opi_value *values;
  opi_node *nodes;
  uint32_t *inputs;  /* [n_inputs] fed by the caller, in file order */
  uint32_t *outputs; /* [n_outputs] in file order */
  uint32_t n_values, n_nodes, n_inputs, n_outputs;
  uint32_t room_values, room_nodes, room_inputs, room_outputs;
  struct opi_graph *outer; /* file graph: the enclosing graph, whose names a subgraph may read;
                              values read from it are listed below */
  /* Subgraphs: inner and outer value index of each captured name. */
  uint32_t *capture_inner, *capture_outer;
  uint32_t n_captures, room_captures;
} opi_graph;

opi_graph *opi_graph_new(opi_arena *arena, const char *name); /* NULL: out of memory */
/* Reserves room for the given totals. False: out of memory. */
bool opi_graph_reserve(opi_graph *graph, uint32_t n_values, uint32_t n_nodes);
/* Appends a value. The name is not copied; it must live in the arena or longer. OPIPE_NONE: out of
 * memory.
 */
uint32_t opi_graph_add_value(opi_graph *graph, const char *name, uint32_t dtype,
                             const int64_t *shape, int32_t rank);
/* Appends a node with room for the given counts; in and out are filled with OPIPE_NONE. The pointer
 * is valid until the next node is added. NULL: out of memory. */
opi_node *opi_graph_add_node(opi_graph *graph, const char *name, const char *op, const char *domain,
                             uint32_t n_in, uint32_t n_out, uint32_t n_attrs);
/* The value as backends see it, a TEMP without a slot. Borrows everything. */
opipe_value opi_value_view(const opi_value *value);
/* The node as backends see it, with values numbered by `in` [n_in] and `out` [n_out]. Borrows
 * everything. */
opipe_node opi_node_view(const opi_node *node, const uint32_t *in, const uint32_t *out);
bool opi_graph_add_input(opi_graph *graph, uint32_t value);
bool opi_graph_add_output(opi_graph *graph, uint32_t value);

/* The initializer of that name, in the file graph or in a body of one of its nodes; NULL: none. */
const opi_value *opi_graph_initializer(const opi_graph *graph, const char *name);

/* Attributes by name; `fallback` if absent or of another kind. */
const opipe_attr *opi_attr_find(const opi_node *node, const char *name);
int64_t opi_attr_int(const opi_node *node, const char *name, int64_t fallback);
double opi_attr_float(const opi_node *node, const char *name, double fallback);
const char *opi_attr_string(const opi_node *node, const char *name, const char *fallback);
const int64_t *opi_attr_ints(const opi_node *node, const char *name,
                             uint32_t *out_n); /* NULL and 0 if absent */

static inline bool opi_value_known(const opi_value *value) {
  return value->data != NULL;
}
static inline uint32_t opi_node_in(const opi_node *node, uint32_t i) {
  return i < node->n_in ? node->in[i] : OPIPE_NONE;
}
static inline uint32_t opi_node_out(const opi_node *node, uint32_t i) {
  return i < node->n_out ? node->out[i] : OPIPE_NONE;
}

/* Consumers of every value: users[first[v]] .. users[first[v + 1] - 1] are node indices, rising,
 * one per use. In `arena`. */
typedef struct opi_uses {
  uint32_t *first; /* [n_values + 1] */
  uint32_t *users;
} opi_uses;
opipe_status opi_graph_uses(const opi_graph *graph, opi_arena *arena, opi_uses *out_uses,
                            opipe_error *err);

/* Sorts nodes into an executable order, stably: a valid file order is kept. Errors: a cycle, which
 * the message prints. */
opipe_status opi_graph_sort(opi_graph *graph, opipe_error *err);

/* Checks a bound graph's consistency: indices, producers, order, shapes, sizes. Errors: INTERNAL
 * names the fault. */
opipe_status opi_graph_verify(const opi_graph *graph, opipe_error *err);

/* The whole bound graph as a backend sees it, in `arena`, with value roles INPUT, OUTPUT, CONSTANT
 * and TEMP. */
opipe_status opi_graph_to_abi(const opi_graph *graph, opi_arena *arena, opipe_graph *out_graph,
                              opipe_error *err);

#endif /* OPI_GRAPH_H */
