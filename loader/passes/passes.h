/* SPDX-License-Identifier: Apache-2.0 */
/* From the file graph to a bound graph: bind input dimensions, lift, fold, drop what is dead,
 * recognise patterns. */
#ifndef OPI_PASSES_H
#define OPI_PASSES_H

#include <opipe/backend.h>
#include "loader/graph/model.h"

#include "loader/ops/builder.h"

typedef struct opi_dim_binding {
  const char
      *name; /* a dim_param's text, or "INPUT.axis" for a dimension without a name ("ids.0") */
  int64_t value;
} opi_dim_binding;

/* An input fixed to a constant before folding. */
typedef struct opi_pin {
  const char *input;
  const void *data; /* dense; borrowed during the call, copied */
  const int64_t *shape;
  uint32_t rank;
  uint32_t dtype;
} opi_pin;

/* The shape of an input that is at hand: its free dimensions take these numbers. */
typedef struct opi_input_shape {
  const char *input;
  const int64_t *shape;
  uint32_t rank;
} opi_input_shape;

typedef struct opi_bind_options {
  const opi_dim_binding *dims;
  const opi_pin *pins;
  const char *const *barriers; /* names of cut tensors that no fusion may swallow */
  uint32_t n_dims, n_pins, n_barriers;
  uint32_t n_shapes;
  const char *const *keep; /* [n_keep] with OPI_BIND_KEEP_PARAMETERS: float initializers of one
                              element that are to be trained, and so must not be folded either */
  uint32_t n_keep;
  const opi_input_shape *shapes; /* [n_shapes] */
  uint32_t flags;                /* OPI_BIND_* */
  uint32_t dropout;              /* OPI_DROPOUT_* */
  double dropout_ratio;          /* of OPI_DROPOUT_RATIO */
  const opi_evaluator *evaluator;
  const opipe_allocator *allocator;
  const opi_logger *logger;
  opipe_write_fn
      report; /* gets the whole report of unsupported operators, a line each; may be NULL */
  void *report_ctx;
  int64_t default_length; /* of free dimensions that are no batch, with OPI_BIND_DEFAULTS; 0: 8, and
                             less when only less fits, more when nothing shorter does */
  int64_t default_batch;  /* of those that are, with OPI_BIND_DEFAULTS; 0: 1 */
} opi_bind_options;
enum {
  OPI_BIND_NO_FUSE = 1u,
  OPI_BIND_DEFAULTS = 2u,        /* free dimensions get stated defaults: default_batch, others 8 */
  OPI_BIND_KEEP_PARAMETERS = 4u, /* no float initializer of more than one element is folded away,
                                    and half types become float32 (training; widen.c) */
  OPI_BIND_KEEP_TYPES = 8u,      /* half types stay all the same */
  OPI_BIND_NOISE = 0xff00u       /* bits 8 to 12: noise of 2^-n in front of every rounding to few
                                    bits, 0: none; 13 to 15: its pattern (fuse_noise.c) */
};

/* What the file's nodes tell of an initializer of the main graph: origins.c. */
enum {
  OPI_ORIGIN_UNKNOWN = 0,
  OPI_ORIGIN_PARAMETER = 1,
  OPI_ORIGIN_BUFFER = 2,
  OPI_ORIGIN_COUNTED = 3 /* a name that whoever wrote the file counted up ("c_12"), for plain
                            numbers and integers among others */
};
typedef struct opi_origin {
  const char *initializer;
  const char *name; /* that its module gave it, where the exporter called it otherwise ("val_77",
                       "onnx::MatMul_1039"); NULL: not known, or the same */
  uint32_t kind;    /* OPI_ORIGIN_*: what it was to the module */
  uint32_t reserved;
} opi_origin;

typedef struct opi_bound {
  opi_arena arena; /* owns the graph and all below */
  opi_graph *graph;
  opi_dim_binding *dims; /* every dimension that was free, with its number: the shape signature */
  uint32_t n_dims;
  uint32_t n_file_nodes; /* before */
  uint32_t n_aliases;
  opi_alias *aliases;                   /* file names of values that bear another name now */
  uint32_t patterns[OPI_PATTERN_COUNT]; /* recognised, by kind */
  int64_t *index_limits; /* [graph->n_inputs] integer inputs: values must be below it (smallest
                            extent indexed); 0: unknown */
  opi_origin *origins;   /* [n_origins] with OPI_BIND_KEEP_PARAMETERS */
  uint32_t n_origins;
} opi_bound;

/* All steps; the result refers to the model's mapped data, so the model must outlive it.
 * Errors: OPIPE_E_NOTFOUND (an unknown dimension or pin), OPIPE_E_INVALID (a dimension left free,
 * contradicting numbers: names both), OPIPE_E_UNSUPPORTED (operators: one report over all nodes;
 * "needs the value of input X"). */
opipe_status opi_bind(const opi_model *model, const opi_bind_options *options,
                      opi_bound **out_bound, opipe_error *err);
/* Do both make the same graph of a model? True only where every dimension is a given number. */
bool opi_bind_same(const opi_bind_options *a, const opi_bind_options *b);
void opi_bound_free(opi_bound *bound); /* accepts NULL */
/* The bound value that a file name stands for (its own name or an alias); OPIPE_NONE when it was
 * folded, dropped or never there. Graph outputs stand in the file's order; one that is an input, a
 * constant or a second output is a copy named "<name>_output" when its own name is taken. */
uint32_t opi_bound_value(const opi_bound *bound, const char *name);

/* Solves the free dimensions of the inputs (equal names equal numbers; expressions as "past + seq",
 * "(((s1 - 1)//8)) + 1" are evaluated or solved for one unknown; mask totals follow). out_dims in
 * `arena`. Used by opi_bind; separate for hosts that ask what is needed. */
opipe_status opi_solve_dims(const opi_model *model, const opi_bind_options *options,
                            opi_arena *arena, opi_dim_binding **out_dims, uint32_t *out_n,
                            opipe_error *err);

/* Evaluator over a backend's first host-memory device; `self` and table must outlive it. Any
 * thread may use it; one node is computed at a time. */
opipe_status opi_evaluator_create(const opipe_allocator *allocator, const char *id,
                                  const opipe_backend *backend, opipe_instance *self,
                                  opi_evaluator **out_evaluator, opipe_error *err);
void opi_evaluator_free(opi_evaluator *evaluator);

/* A whole bound graph that is computed many times: compiled, bound and given its memory once, so
 * that a run allocates nothing. Evaluator (of opi_evaluator_create) and graph must outlive it. */
typedef struct opi_prepared opi_prepared;
opipe_status opi_prepared_create(const opi_evaluator *evaluator, const opi_graph *graph,
                                 opi_prepared **out_prepared, opipe_error *err);
void opi_prepared_free(opi_prepared *prepared); /* accepts NULL */
/* Host memory of a boundary, dense: the graph's inputs, then its outputs. */
void *opi_prepared_data(const opi_prepared *prepared, uint32_t slot);
opipe_status opi_prepared_run(opi_prepared *prepared, opipe_error *err);

/* Passes on a bound graph (each keeps it valid and sorted). */
opipe_status opi_pass_dead(opi_builder *builder,
                           opipe_error *err); /* drops nodes and values that no output needs */
/* Noise as builder->noise_bits says, of whatever is in the graph by now. */
opipe_status opi_pass_noise(opi_builder *builder, opipe_error *err);
opipe_status opi_pass_fuse(opi_builder *builder, uint32_t *io_patterns,
                           opipe_error *err); /* all exact patterns, counts by kind */

/* How an axis runs through the values of one binding, by their names: what opi_known_axis_make
 * found where nothing else could be taken for the axis. */
typedef struct opi_known_axis opi_known_axis;

/* Follows an axis (the batch) through the graph: out_carry [n_values]. in_carry [n_inputs] says
 * where the inputs hold it. `known`, may be NULL: what is known from another binding of the same
 * model, taken before any rule. OPIPE_E_UNSUPPORTED names the node that does not carry it. */
opipe_status opi_carry_axis(const opi_graph *graph, const opi_known_axis *known,
                            const opi_carry *in_carry, opi_carry *out_carry, opipe_error *err);

/* The same as far as it goes, for graphs in which some nodes sum over the batch (gradients of
 * parameters): out_mixed [n_values] marks what depends on the batch and is not known to carry it.
 */
opipe_status opi_carry_follow(const opi_graph *graph, const opi_known_axis *known,
                              const opi_carry *in_carry, opi_carry *out_carry, bool *out_mixed,
                              opipe_error *err);

/* A length for an axis that no extent of `graph` is a multiple of, so that what is one in a binding
 * of that length is the axis: a small prime. */
int64_t opi_axis_probe_length(const opi_graph *graph);
/* What of a graph must carry the axis. */
typedef struct opi_carry_part {
  const bool *nodes; /* [n_nodes] those that count; NULL: all */
  bool sums;         /* reductions and losses may end the axis: what is made of them is read beside
                        nothing that carries it */
} opi_carry_part;
/* opi_carry_axis of a part. out_sums [n_values], may be NULL: marks what is made of sums over the
 * axis. */
opipe_status opi_carry_through(const opi_graph *graph, const opi_carry_part *part,
                               const opi_known_axis *known, const opi_carry *in_carry,
                               opi_carry *out_carry, bool *out_sums, opipe_error *err);
/* Follows the axis through `part` (NULL: all) of a binding of such a length, keeps what was found
 * in `arena`; the binding may go. Errors as opi_carry_axis. */
opipe_status opi_known_axis_make(const opi_graph *graph, const opi_carry_part *part,
                                 const opi_carry *in_carry, opi_arena *arena,
                                 opi_known_axis **out_known, opipe_error *err);

/* Finds the length of the axis read as data: compares the graphs of one model bound for a whole
 * request and for a part of it (a micro-batch), of which `nodes` count [part->n_nodes] (NULL: all).
 * sums [part->n_values], may be NULL: what is made of sums over the axis (opi_carry_through). A
 * number that is read beside such values alone, and is a multiple of the length or of its inverse
 * in both graphs, may differ: from then on `known` tells of it (opi_carry.power).
 * OPIPE_E_UNSUPPORTED names the constant or attribute that differs, or the output that grows with
 * the axis and does not hold it. */
opipe_status opi_carry_compare(const opi_graph *whole, const opi_graph *part, const bool *nodes,
                               const bool *sums, const opi_known_axis *known, opipe_error *err);

#endif /* OPI_PASSES_H */
