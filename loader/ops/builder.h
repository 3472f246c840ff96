/* SPDX-License-Identifier: Apache-2.0 */
/* Builds a bound graph node by node. Each emitted node gets its output shapes at once, and is
 * folded if everything it reads is known.
 *
 * Lift rules, binding, fusions and gradient rules all write through it. Values of the graph under
 * construction are referred to by index. A builder and its graph belong to one thread.
 */
#ifndef OPI_BUILDER_H
#define OPI_BUILDER_H

#include "loader/graph/graph.h"
#include "loader/ops/op.h"

#include <string.h>

/* Computes one node on known inputs, by way of a backend (passes/evaluate.c). */
typedef struct opi_evaluator {
  void *ctx;
  /* graph: one node, inputs CONSTANT, outputs of role OUTPUT with slots from 0; out_data
   * [n_boundaries] host memory of the right sizes. */
  opipe_status (*run)(void *ctx, const opipe_graph *graph, void *const *out_data, opipe_error *err);
} opi_evaluator;

/* A sequence of tensors, a list of bound values behind a handle. It exists only while binding. */
typedef struct opi_sequence {
  uint32_t *items; /* [n] bound values, in the builder's scratch */
  uint32_t n;
  uint32_t dtype; /* of its tensors; OPIPE_UNDEFINED if empty and unknown */
} opi_sequence;

/* A known value that folding computed from codes: (codes - zero) * scale, by DequantizeLinear. */
typedef struct opi_unpacked {
  uint32_t value, codes, scale, zero; /* zero OPIPE_NONE: 0 */
  uint32_t axis;                      /* of the scales, if there are several */
  uint32_t blocks;                    /* not 0: block size of the scales */
} opi_unpacked;

typedef struct opi_unpacked_list {
  opi_unpacked *list; /* [n] */
  uint32_t n, room;
} opi_unpacked_list;

/* Bound values of a file graph's values. There is one frame per file graph being walked (the main
 * graph, bodies of If and Loop). */
typedef struct opi_frame {
  const opi_graph *file; /* NULL: results of opi_b_lift_within, which have no names */
  uint32_t *values;      /* [file->n_values] a bound value, a sequence's handle, OPI_POISONED, or
                            OPIPE_NONE (not made) */
  const struct opi_frame *outer; /* NULL: the main graph */
} opi_frame;

/* Placeholder for a value whose node could not be lifted: its readers are skipped, and the report
 * has the first cause. */
#define OPI_POISONED (OPIPE_NONE - 1)
#define OPI_SEQUENCE_BIT 0x80000000u
static inline bool opi_is_sequence(uint32_t v) {
  return (v & OPI_SEQUENCE_BIT) != 0 && v < OPI_POISONED;
}

/* Another name in the file for a bound value (the output of an Identity, of a Reshape to the same
 * shape, ...). */
typedef struct opi_alias {
  const char *name;
  uint32_t value; /* OPIPE_NONE: dropped */
} opi_alias;

typedef struct opi_noise {
  uint32_t bits, pattern;
} opi_noise;

struct opi_builder {
  opi_graph *graph;               /* under construction */
  opi_arena *scratch;             /* released after the pass */
  const opi_evaluator *evaluator; /* NULL: folds only shapes */
  const opipe_allocator *allocator;
  const opi_logger *logger;
  const opi_node *origin; /* the file node being lifted, which gives emitted nodes name, source and
                             stage; NULL: none */
  uint64_t fold_limit_bytes; /* larger results and inputs are not folded, so parameters stay where
                                they are (1 MiB) */
  uint32_t dropout;          /* OPI_DROPOUT_* */
  double dropout_ratio;
  opi_noise noise; /* passes/fuse_noise.c; 0 bits: none */
  bool appends;    /* devices have opipe.Append, and Attention that is causal beside lengths */
  struct opi_map *names;      /* value names in use */
  struct opi_map *next_names; /* next number for each stem of generated names */
  struct opi_map *reserved;   /* names that no generated one may take; NULL: none */
  /* -- the rest is private to the builder and loader/passes -- */
  struct opi_choices *choices; /* borrowed; NULL: by shapes alone */
  bool keep_parameters; /* do not fold nodes that read a float parameter of more than one element */
  const char *const *keep; /* [n_keep] names of one-element parameters */
  uint32_t n_keep;
  struct opi_map *kept;   /* names of one-element parameters found by opi_keep_scalars, in the main
                             graph and in bodies; NULL: none */
  struct opi_map *merged; /* names of values found by opi_find_merged; NULL: none */
  struct opi_map *taken;  /* initializers of bodies, by position in the file -> bound value */
  uint32_t origin_index;  /* main graph node that `origin` belongs to */
  int32_t origin_stage;
  uint32_t n_emitted; /* nodes since `origin` was set */
  uint32_t depth;     /* nesting of bodies being inlined */
  uint64_t n_walked;  /* file nodes walked, with bodies counted at each inlining: bounded */
  opi_frame *scope;   /* innermost frame; NULL: no file graph is being walked */
  opi_sequence *sequences;
  uint32_t n_sequences, room_sequences;
  opi_alias *aliases;
  uint32_t n_aliases, room_aliases;
  opi_unpacked_list unpacked;
  struct opi_report *report; /* collects unsupported nodes; NULL: the first ends the pass */
};

/* RATIO: every Dropout uses `dropout_ratio`, whatever the graph states. */
enum { OPI_DROPOUT_OFF = 0, OPI_DROPOUT_GRAPH = 1, OPI_DROPOUT_RATIO = 2 };

/* Whether nodes that may have no effect are made (a Reshape to the shape that a value has) depends
 * on shapes. If graphs for several numbers of rows must have the same nodes, one of them *records*
 * its choices, and the others, made by the same calls, repeat them. */
typedef struct opi_choices {
  opi_arena *arena; /* of the list */
  uint32_t *list;   /* [n] */
  uint32_t n, room;
  uint32_t next; /* repeating: the next one */
  bool repeats;
} opi_choices;
static inline void opi_choices_begin(opi_choices *choices) {
  choices->next = 0;
  choices->n = choices->repeats ? choices->n : 0;
}
/* The choice that shapes make here, or the recorded one. Without memory, or behind the last one, it
 * is that of the shapes: then graphs differ. */
uint32_t opi_b_choose(opi_builder *b, uint32_t by_shapes);

/* Initialises names and defaults. `graph` must be empty, or its names registered by opi_b_adopt.
 * Release with opi_b_close. */
opipe_status opi_b_open(opi_builder *b, opi_graph *graph, opi_arena *scratch,
                        const opipe_allocator *allocator, opipe_error *err);
void opi_b_close(opi_builder *b);
/* Generated names avoid those of `from`'s values, so that copies of these, whenever they are made,
 * can bear them. */
opipe_status opi_b_reserve(opi_builder *b, const opi_graph *from, opipe_error *err);

/* -- values -- */
static inline opi_value *opi_b_value(opi_builder *b, uint32_t v) {
  return &b->graph->values[v];
}
/* A fresh name "<origin or 'v'>~<n>", unique among values. NULL: out of memory. */
const char *opi_b_name(opi_builder *b);
/* Constants; the data is copied into the graph's arena. OPIPE_NONE: out of memory. */
uint32_t opi_b_const(opi_builder *b, uint32_t dtype, const int64_t *shape, uint32_t rank,
                     const void *data);
uint32_t opi_b_const_ints(opi_builder *b, const int64_t *ints, uint32_t n); /* int64 [n] */
uint32_t opi_b_const_scalar(opi_builder *b, uint32_t dtype,
                            double value); /* rank 0, converted to dtype */

/* -- nodes -- */
typedef struct opi_emit {
  const char *op;
  const char *domain; /* NULL: "" */
  const uint32_t *in;
  uint32_t n_in;
  uint32_t n_out;
  const opipe_attr *attrs; /* copied */
  uint32_t n_attrs;
  uint32_t version; /* 0: the operator's newest */
  const char *const
      *out_names;   /* [n_out] names; NULL, for one or all: generated; "": output absent */
  uint32_t pattern; /* OPI_PATTERN_* */
} opi_emit;

/* Emits a canonical node: infers shapes, folds if everything it reads is known, and returns its
 * outputs' values (OPIPE_NONE for absent ones). An Identity emits nothing, out = in, unless a graph
 * output needs a name of its own. */
opipe_status opi_b_emit(opi_builder *b, const opi_emit *emit, uint32_t *out_values,
                        opipe_error *err);
/* Short forms with one output. */
opipe_status opi_b_op1(opi_builder *b, const char *op, uint32_t a, uint32_t *out, opipe_error *err);
opipe_status opi_b_op2(opi_builder *b, const char *op, uint32_t a, uint32_t c, uint32_t *out,
                       opipe_error *err);
/* Binds output `i` of the file node being lifted to `value`; names of the file are kept if
 * possible. */
opipe_status opi_b_result(opi_builder *b, const opi_node *file_node, uint32_t i, uint32_t value,
                          opipe_error *err);
/* As opi_b_emit, but never folds and never makes an alias. */
opipe_status opi_b_emit_kept(opi_builder *b, const opi_emit *emit, uint32_t *out_values,
                             opipe_error *err);
/* Emits a copy of a bound node, never folded, with other inputs [node->n_in] and output names
 * [node->n_out]. */
opipe_status opi_b_emit_again(opi_builder *b, const opi_node *node, const uint32_t *in,
                              const char *const *out_names, uint32_t *out_values, opipe_error *err);
/* Adds a known value whose data is borrowed (the model's own memory). */
uint32_t opi_b_borrow(opi_builder *b, const char *name, uint32_t dtype, const int64_t *shape,
                      uint32_t rank, const void *data);
/* The same content in another shape of equal size, without a copy. Known values only. */
uint32_t opi_b_reshaped(opi_builder *b, uint32_t value, const int64_t *shape, uint32_t rank);

/* Short forms of attributes, for emit. */
#define OPI_ATTR_I(name_, value_) \
  ((opipe_attr){.name = (name_), .i = (value_), .kind = OPIPE_ATTR_INT})
#define OPI_ATTR_F(name_, value_) \
  ((opipe_attr){.name = (name_), .f = (value_), .kind = OPIPE_ATTR_FLOAT})
#define OPI_ATTR_S(name_, text_) \
  ((opipe_attr){                 \
      .name = (name_), .data = (text_), .kind = OPIPE_ATTR_STRING, .n = (uint32_t)strlen(text_)})
#define OPI_ATTR_N(name_, ints_, n_) \
  ((opipe_attr){.name = (name_), .data = (ints_), .kind = OPIPE_ATTR_INTS, .n = (n_)})
/* Emits `op` for the file node being lifted and binds its outputs; absent ones stay absent. */
opipe_status opi_b_lift(opi_builder *b, const opi_node *file_node, const char *op,
                        const uint32_t *in, uint32_t n_in, const opipe_attr *attrs,
                        uint32_t n_attrs, opipe_error *err);

/* Lifts `node`, an operator in file form that is not in the file, with inputs already mapped: for
 * lift rules of operators composed of others. Results go to out_values [node->n_out] without the
 * file's names; outputs that are OPIPE_NONE in `node` are absent. */
opipe_status opi_b_lift_within(opi_builder *b, const opi_node *node, uint32_t *out_values,
                               opipe_error *err);

/* -- control flow and sequences, for lift rules -- */
/* Walks `body` inline with `feeds` as its formal inputs; out_values [body->n_outputs]. */
opipe_status opi_b_inline(opi_builder *b, const opi_graph *body, const uint32_t *feeds,
                          uint32_t n_feeds, uint32_t *out_values, opipe_error *err);
/* Copies items; *out_handle represents the sequence in scopes and in node inputs. */
opipe_status opi_b_sequence(opi_builder *b, const uint32_t *items, uint32_t n, uint32_t dtype,
                            uint32_t *out_handle, opipe_error *err);
static inline const opi_sequence *opi_b_items(const opi_builder *b, uint32_t handle) {
  return &b->sequences[handle & ~OPI_SEQUENCE_BIT];
}

/* -- for infer rules -- */
/* Sets an output's type and shape (output OPIPE_NONE: does nothing). Checks sizes for overflow. */
opipe_status opi_b_set(opi_builder *b, const opi_node *node, uint32_t output, uint32_t dtype,
                       const int64_t *shape, uint32_t rank, opipe_error *err);
/* Content of input `i` as int64 (int32 and int64 tensors), in scratch. Errors: UNSUPPORTED, "node X
 * needs the value of Y", if unknown; names the graph input if Y is one, so that callers can pin it.
 */
opipe_status opi_known_ints(opi_builder *b, const opi_node *node, uint32_t i,
                            const int64_t **out_ints, uint32_t *out_n, opipe_error *err);
/* Content of any known integer or bool value. NULL: unknown, of another type, or out of memory.
 */
const int64_t *opi_b_ints(opi_builder *b, uint32_t value, uint32_t *out_n);
/* An UNSUPPORTED error that names the value and the graph inputs that it depends on, so that
 * callers can pin or bind them. */
opipe_status opi_need_value(opi_builder *b, const opi_node *node, uint32_t value, opipe_error *err);
/* An error about one input: "node 'n' (Op): input 'x' ..." */
opipe_status opi_node_fail(const opi_builder *b, const opi_node *node, opipe_error *err,
                           opipe_status status, const char *fmt, ...) OPIPE_PRINTF(5, 6);
/* Checks the numbers of inputs and outputs against the operator. */
opipe_status opi_check_arity(const opi_builder *b, const opi_op *op, const opi_node *node,
                             opipe_error *err);
/* Multidirectional broadcast of two shapes; false if they do not match. out has room for
 * OPIPE_MAX_RANK. */
bool opi_broadcast(const int64_t *a, uint32_t rank_a, const int64_t *b, uint32_t rank_b,
                   int64_t *out, uint32_t *out_rank);
/* Maps axis in [-rank, rank) to [0, rank); false if outside. */
bool opi_axis(int64_t axis, uint32_t rank, uint32_t *out_axis);

#endif /* OPI_BUILDER_H */
