/* SPDX-License-Identifier: Apache-2.0 */
/* Builds a bound graph node by node: each emitted node gets its output shapes at once, and is folded when all it reads is known.
 *
 * Lift rules, binding, fusions and gradient rules all write through it. Values of the graph under construction are named by index.
 * A builder and its graph belong to one thread.
 */
#ifndef OPI_BUILDER_H
#define OPI_BUILDER_H

#include "loader/graph/graph.h"
#include "loader/ops/op.h"

/* Computes one node on known inputs. Made of a backend's table (passes/evaluate.c). */
typedef struct opi_evaluator {
  void *ctx;
  /* graph: one node, inputs CONSTANT, outputs of role OUTPUT with slots 0..; out_data [n_boundaries] host memory of the right sizes. */
  opipe_status (*run)(void *ctx, const opipe_graph *graph, void *const *out_data, opipe_error *err);
} opi_evaluator;

struct opi_builder {
  opi_graph *graph;             /* under construction */
  opi_arena *scratch;           /* freed after the pass */
  const opi_evaluator *evaluator; /* NULL: nothing is folded but shapes */
  const opipe_allocator *allocator;
  const opi_logger *logger;
  const opi_node *origin;       /* the file node being lifted: gives name, source, stage to what is emitted; NULL: none */
  uint64_t fold_limit_bytes;    /* results (and inputs) above it are not folded: parameters stay where they are (1 MiB) */
  uint32_t next_name;           /* for made-up names */
  uint32_t dropout;             /* OPI_DROPOUT_* */
  struct opi_map *names;        /* taken value names */
};

enum { OPI_DROPOUT_OFF = 0, OPI_DROPOUT_GRAPH = 1 };

/* -- values -- */
static inline opi_value *opi_b_value(opi_builder *b, uint32_t v) { return &b->graph->values[v]; }
/* A fresh name "<origin or 'v'>_<n>" that no other value has. NULL: out of memory. */
const char *opi_b_name(opi_builder *b);
/* Constants; data is copied into the graph's arena. OPIPE_NONE: out of memory. */
uint32_t opi_b_const(opi_builder *b, uint32_t dtype, const int64_t *shape, uint32_t rank, const void *data);
uint32_t opi_b_const_ints(opi_builder *b, const int64_t *ints, uint32_t n);     /* int64 [n] */
uint32_t opi_b_const_scalar(opi_builder *b, uint32_t dtype, double value);      /* rank 0, converted to dtype */

/* -- nodes -- */
typedef struct opi_emit {
  const char *op;
  const char *domain; /* NULL: "" */
  const uint32_t *in;
  uint32_t n_in;
  uint32_t n_out;
  const opipe_attr *attrs; /* copied */
  uint32_t n_attrs;
  uint32_t version;        /* 0: the operator's newest */
  const char *const *out_names; /* [n_out], NULL or NULL entries: made up; "" : output absent */
  uint32_t pattern;        /* OPI_PATTERN_* */
} opi_emit;

/* Emits a canonical node: infers, folds if everything it reads is known, and gives its outputs' values (OPIPE_NONE for absent ones).
 * An Identity emits nothing: out = in, unless a graph output needs a name of its own. */
opipe_status opi_b_emit(opi_builder *b, const opi_emit *emit, uint32_t *out_values, opipe_error *err);
/* One output, shorthand forms. */
opipe_status opi_b_op1(opi_builder *b, const char *op, uint32_t a, uint32_t *out, opipe_error *err);
opipe_status opi_b_op2(opi_builder *b, const char *op, uint32_t a, uint32_t c, uint32_t *out, opipe_error *err);
/* Says that output `i` of the file node being lifted is `value` (file names are kept where possible). */
opipe_status opi_b_result(opi_builder *b, const opi_node *file_node, uint32_t i, uint32_t value, opipe_error *err);

/* -- for infer rules -- */
/* Sets an output's type and shape (output OPIPE_NONE: nothing). Checks sizes for overflow. */
opipe_status opi_b_set(opi_builder *b, const opi_node *node, uint32_t output, uint32_t dtype, const int64_t *shape, uint32_t rank,
                       opipe_error *err);
/* Content of input `i` as int64 (int32 and int64 tensors), in scratch. OPIPE_E_UNSUPPORTED "node X needs the value of Y" when not known;
 * that text carries the graph input's name when Y is one, so that callers can pin it. */
opipe_status opi_known_ints(opi_builder *b, const opi_node *node, uint32_t i, const int64_t **out_ints, uint32_t *out_n,
                            opipe_error *err);
/* An error about one input: "node 'n' (Op): input 'x' ..." */
opipe_status opi_node_fail(const opi_builder *b, const opi_node *node, opipe_error *err, opipe_status status, const char *fmt, ...)
    OPIPE_PRINTF(5, 6);
/* Multidirectional broadcast of two shapes; false when they do not fit. out has room for OPIPE_MAX_RANK. */
bool opi_broadcast(const int64_t *a, uint32_t rank_a, const int64_t *b, uint32_t rank_b, int64_t *out, uint32_t *out_rank);
/* axis in [-rank, rank) -> [0, rank); false when outside. */
bool opi_axis(int64_t axis, uint32_t rank, uint32_t *out_axis);

#endif /* OPI_BUILDER_H */
