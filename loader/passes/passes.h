/* SPDX-License-Identifier: Apache-2.0 */
/* From the file graph to a bound graph: bind input dimensions, lift, fold, drop dead nodes,
 * recognise patterns. */
#ifndef OPI_PASSES_H
#define OPI_PASSES_H

#include <opipe/backend.h>
#include "loader/graph/model.h"

#include "loader/ops/builder.h"

typedef struct opi_dim_binding {
  const char
      *name; /* the text of a dim_param, or "INPUT.axis" for a dimension without a name ("ids.0") */
  int64_t value;
} opi_dim_binding;

/* An input fixed to a constant before folding. */
typedef struct opi_pin {
  const char *input;
  const void *data; /* dense; copied during the call */
  const int64_t *shape;
  uint32_t rank;
  uint32_t dtype;
} opi_pin;

/* The shape of an available input, which gives its free dimensions their numbers. */
typedef struct opi_input_shape {
  const char *input;
  const int64_t *shape;
  uint32_t rank;
} opi_input_shape;

typedef struct opi_bind_options {
  const opi_dim_binding *dims;
  const opi_pin *pins;
  const char *const *barriers; /* names of cut tensors, which no fusion may remove */
  uint32_t n_dims, n_pins, n_barriers;
  uint32_t n_shapes;
  const char *const *keep; /* [n_keep] with OPI_BIND_KEEP_PARAMETERS: float initializers of one
                              element that will be trained and must not be folded either */
  uint32_t n_keep;
  const opi_input_shape *shapes; /* [n_shapes] */
  uint32_t flags;                /* OPI_BIND_* */
  uint32_t dropout;              /* OPI_DROPOUT_* */
  double dropout_ratio;          /* for OPI_DROPOUT_RATIO */
  const opi_evaluator *evaluator;
  const opipe_allocator *allocator;
  const opi_logger *logger;
  opipe_write_fn
      report; /* receives the whole report of unsupported operators, one line each; may be NULL */
  void *report_ctx;
  int64_t default_length; /* with OPI_BIND_DEFAULTS, for free dimensions other than the batch; 0: 8,
                             less if only less fits, more if nothing shorter does */
  int64_t default_batch;  /* with OPI_BIND_DEFAULTS, for the batch; 0: 1 */
} opi_bind_options;
enum {
  OPI_BIND_NO_FUSE = 1u,
  OPI_BIND_DEFAULTS = 2u,        /* free dimensions get defaults: default_batch, others 8 */
  OPI_BIND_KEEP_PARAMETERS = 4u, /* training: no float initializer of more than one element is
                                    folded, and half types become float32 (widen.c) */
  OPI_BIND_KEEP_TYPES = 8u,      /* keep half types nevertheless */
  OPI_BIND_NO_APPEND = 0x10000u, /* no opipe.Append, and masks where Attention is causal beside
                                    lengths; also with NO_FUSE and KEEP_PARAMETERS */
  OPI_BIND_NOISE = 0xff00u /* bits 8 to 12: noise of 2^-n before every rounding to few bits, 0:
                              none; 13 to 15: its pattern (fuse_noise.c) */
};

/* Evidence of the file's nodes about an initializer of the main graph: origins.c. */
enum {
  OPI_ORIGIN_UNKNOWN = 0,
  OPI_ORIGIN_PARAMETER = 1,
  OPI_ORIGIN_BUFFER = 2,
  OPI_ORIGIN_COUNTED = 3 /* a counted name ("c_12"), which exporters give to plain numbers and
                            integers, among others */
};
typedef struct opi_origin {
  const char *initializer;
  const char *name; /* given by its module, if the exporter used another ("val_77",
                       "onnx::MatMul_1039"); NULL: unknown, or the same */
  uint32_t kind;    /* OPI_ORIGIN_*: its role in the module */
  uint32_t reserved;
} opi_origin;

typedef struct opi_bound {
  opi_arena arena; /* owns the graph and everything below */
  opi_graph *graph;
  opi_dim_binding *dims; /* every free dimension with its number: the shape signature */
  uint32_t n_dims;
  uint32_t n_file_nodes; /* nodes before binding */
  uint32_t n_aliases;
  opi_alias *aliases;                   /* file names of values that have another name now */
  uint32_t patterns[OPI_PATTERN_COUNT]; /* number of recognised patterns by kind */
  int64_t *index_limits; /* [graph->n_inputs] integer inputs: exclusive upper bound of values
                            (smallest extent indexed); 0: unknown */
  opi_origin *origins;   /* [n_origins] with OPI_BIND_KEEP_PARAMETERS */
  uint32_t n_origins;
} opi_bound;

/* Runs all passes. The result refers to the model's mapped data, so the model must outlive it.
 * Errors: OPIPE_E_NOTFOUND (an unknown dimension or pin), OPIPE_E_INVALID (a dimension left free,
 * contradicting numbers: names both), OPIPE_E_UNSUPPORTED (operators: one report over all nodes;
 * "needs the value of input X"). */
opipe_status opi_bind(const opi_model *model, const opi_bind_options *options,
                      opi_bound **out_bound, opipe_error *err);
/* True if both options make the same graph of a model; requires that every dimension is given as a
 * number. */
bool opi_bind_same(const opi_bind_options *a, const opi_bind_options *b);
void opi_bound_free(opi_bound *bound); /* accepts NULL */
/* The bound value for a name of the file (its own name or an alias); OPIPE_NONE if it was folded,
 * dropped or never existed. Graph outputs are in the file's order; one that is an input, a constant
 * or a repeated output is a copy, named "<name>_output" if its own name is taken. */
uint32_t opi_bound_value(const opi_bound *bound, const char *name);

/* Solves the free dimensions of the inputs: equal names have equal numbers, expressions such as
 * "past + seq" or "(((s1 - 1)//8)) + 1" are evaluated or solved for one unknown, totals of masks
 * follow. out_dims in `arena`. Used by opi_bind; separate for hosts that ask what is needed. */
opipe_status opi_solve_dims(const opi_model *model, const opi_bind_options *options,
                            opi_arena *arena, opi_dim_binding **out_dims, uint32_t *out_n,
                            opipe_error *err);

/* Evaluator on a backend's first host-memory device; `self` and table must outlive it. Any thread
 * may use it; it computes one node at a time. */
opipe_status opi_evaluator_create(const opipe_allocator *allocator, const char *id,
                                  const opipe_backend *backend, opipe_instance *self,
                                  opi_evaluator **out_evaluator, opipe_error *err);
void opi_evaluator_free(opi_evaluator *evaluator);

/* A whole bound graph that is computed many times: compiled, bound and allocated once, so that a
 * run allocates nothing. The evaluator (of opi_evaluator_create) and the graph must outlive it. */
typedef struct opi_prepared opi_prepared;
opipe_status opi_prepared_create(const opi_evaluator *evaluator, const opi_graph *graph,
                                 opi_prepared **out_prepared, opipe_error *err);
void opi_prepared_free(opi_prepared *prepared); /* accepts NULL */
/* Host memory of a boundary, dense: slots are the graph's inputs, then its outputs. */
void *opi_prepared_data(const opi_prepared *prepared, uint32_t slot);
opipe_status opi_prepared_run(opi_prepared *prepared, opipe_error *err);

/* Copies everything reachable into `arena`, leaving garbage of the passes behind. */
opipe_status opi_graph_copy(const opi_graph *graph, opi_arena *arena, opi_graph **out_graph,
                            opipe_error *err);

/* Passes on a bound graph. Each keeps it valid and sorted. */
opipe_status opi_pass_dead(opi_builder *builder,
                           opipe_error *err); /* drops nodes and values that no output needs */
/* Adds noise, as builder->noise.bits asks, to the graph as it is. */
opipe_status opi_pass_noise(opi_builder *builder, opipe_error *err);
opipe_status opi_pass_fuse(opi_builder *builder, uint32_t *io_patterns,
                           opipe_error *err); /* all exact patterns, counts by kind */

/* How an axis runs through the values of one binding, by name, as opi_known_axis_make found it in a
 * binding where no other extent could be mistaken for the axis. */
typedef struct opi_known_axis opi_known_axis;

/* Follows an axis (the batch) through the graph: out_carry [n_values]. in_carry [n_inputs] says
 * where the inputs hold it. `known`, or NULL: results from another binding of the same model, which
 * take precedence over rules. Errors: UNSUPPORTED names the node that does not carry it. */
opipe_status opi_carry_axis(const opi_graph *graph, const opi_known_axis *known,
                            const opi_carry *in_carry, opi_carry *out_carry, opipe_error *err);

/* The same as far as possible, for graphs in which some nodes sum over the batch (gradients of
 * parameters): out_mixed [n_values] marks values that depend on the batch but are not known to
 * carry it.
 */
opipe_status opi_carry_follow(const opi_graph *graph, const opi_known_axis *known,
                              const opi_carry *in_carry, opi_carry *out_carry, bool *out_mixed,
                              opipe_error *err);

/* A length for an axis such that no extent of `graph` is a multiple of it: a small prime. In a
 * binding of that length, any such extent is the axis. */
int64_t opi_axis_probe_length(const opi_graph *graph);
/* The part of a graph that must carry the axis. */
typedef struct opi_carry_part {
  const bool *nodes; /* [n_nodes] nodes to consider; NULL: all */
  bool sums; /* reductions and losses may end the axis; values that depend on them must not meet
                values that carry it */
} opi_carry_part;
/* opi_carry_axis for a part. out_sums [n_values], or NULL: marks values made from sums over the
 * axis. */
opipe_status opi_carry_through(const opi_graph *graph, const opi_carry_part *part,
                               const opi_known_axis *known, const opi_carry *in_carry,
                               opi_carry *out_carry, bool *out_sums, opipe_error *err);
/* Follows the axis through `part` (NULL: all) of a binding of such a length, and stores the result
 * in `arena`; the binding may be freed. Errors: as opi_carry_axis. */
opipe_status opi_known_axis_make(const opi_graph *graph, const opi_carry_part *part,
                                 const opi_carry *in_carry, opi_arena *arena,
                                 opi_known_axis **out_known, opipe_error *err);

/* Finds the length of the axis read as data. Compares the graphs of one model bound for a whole
 * request and for a part of it (a micro-batch), considering `nodes` [part->n_nodes] (NULL: all).
 * sums [part->n_values], or NULL: values made from sums over the axis (opi_carry_through). A number
 * that is read only beside such values, and is a multiple of the length or of its inverse in both
 * graphs, may differ; `known` then records it (opi_carry.power). Errors: UNSUPPORTED names the
 * constant or attribute that differs, or the output that grows with the axis without carrying it.
 */
opipe_status opi_carry_compare(const opi_graph *whole, const opi_graph *part, const bool *nodes,
                               const bool *sums, const opi_known_axis *known, opipe_error *err);

#endif /* OPI_PASSES_H */
