/* SPDX-License-Identifier: Apache-2.0 */
/* What the project knows about an operator: one opi_op per operator, one file per family in this
 * folder.
 *
 * Adding an operator: write its rules in the family's file, add it to that family's table, add the
 * kernel to each backend. Nothing else: what passes, gradients and plans ask of an operator is said
 * in columns of its row, and `./dev lint operators` names a row that leaves one out. The canonical
 * form of an operator is that of its newest known ONNX version, with one exception per rule in the
 * family's comment.
 */
#ifndef OPI_OP_H
#define OPI_OP_H

#include "loader/graph/graph.h"
#include "loader/ops/form.h"

typedef struct opi_builder opi_builder; /* loader/ops/builder.h */
typedef struct opi_grad opi_grad;       /* loader/ops/rules.h */

/* How a value carries one of the special axes (batch, token, feature): dimension `axis` has outer *
 * N * inner elements in row-major factors, N the length of the special axis. axis -1: the value
 * does not carry it (every part sees the same value).
 * count: not 0 for positions that count along the axis, as row * tokens + token does: the entries
 * of element n are n * count more than they are where that element stands first.
 * power: of a known number: 1 where it is a multiple of N, -1 where of 1 / N (a loss divided by the
 * rows of its batch); 0: what it is does not hang on N. */
typedef struct opi_carry {
  int32_t axis;
  int32_t power;
  int64_t outer;
  int64_t inner;
  int64_t count;
} opi_carry;

typedef struct opi_work {
  double flops; /* a multiply-add counts 2 */
  double bytes; /* read + written, parameters included */
} opi_work;

/* -- columns ----------------------------------------------------------------------------------- */

/* Their values begin at 1: 0 is a row that does not say.
 *
 * opi_op.half: the types it computes in where activations are of a half type. */
enum {
  OPI_HALF_COMMON = 1, /* the widest type among its activations */
  OPI_HALF_NARROW,     /* the half type: products */
  OPI_HALF_WIDE,       /* fp32: it sums, or leaves the half type's range */
  OPI_HALF_AS_IS,      /* every input as it comes */
  OPI_HALF_SCALE,      /* input 0 as it comes, input 1 in its type */
  OPI_HALF_PICKS       /* as COMMON; what it picks from constants is cast, not the constants */
};

/* opi_op.meets: what a constant is where it meets activations here, to tell what is trained. */
enum {
  OPI_MEETS_OTHER = 1,  /* nothing that a parameter would be known by */
  OPI_MEETS_PRODUCT,    /* a factor of a product */
  OPI_MEETS_LAYER,      /* the same in inputs 0 and 1, input 2 the bias */
  OPI_MEETS_NORM,       /* scale or bias from input 1 on */
  OPI_MEETS_BATCH_NORM, /* the same, running statistics in inputs 3 and 4 */
  OPI_MEETS_GROUP_NORM, /* the same as NORM; exporters write 1 and 0 where a model has none */
  OPI_MEETS_SLOPE,      /* the same as NORM, but a single number is no parameter */
  OPI_MEETS_ROWS,       /* input 0: rows that input 1 picks */
  OPI_MEETS_SCORES,     /* input 3: added to the scores of an attention */
  OPI_MEETS_SHIFT,
  OPI_MEETS_SCALE,
  OPI_MEETS_ANGLES, /* angles: what reaches the loss by them alone is a buffer */
  OPI_MEETS_TABLES, /* tables of such functions from input 1 on */
  OPI_MEETS_NUMBERS /* a number of the operator's own: an exponent, a bound, a value it fills in */
};

/* opi_op.takes: where the elements of its outputs come from. Bits, for sets of them. */
enum {
  OPI_TAKES_NONE = 1,            /* they are computed */
  OPI_TAKES_FORM = 1 << 1,       /* input 0's, in order, in another shape */
  OPI_TAKES_TURNED = 1 << 2,     /* input 0's, in another order */
  OPI_TAKES_CAST = 1 << 3,       /* input 0's, of another type */
  OPI_TAKES_STRETCHED = 1 << 4,  /* input 0's, broadcast */
  OPI_TAKES_REPEATED = 1 << 5,   /* input 0's, again and again */
  OPI_TAKES_PART = 1 << 6,       /* some of input 0's, by inputs from 1 on */
  OPI_TAKES_PARTS = 1 << 7,      /* all of input 0's, spread over the outputs */
  OPI_TAKES_PADDED = 1 << 8,     /* input 0's and more of input 2's */
  OPI_TAKES_ROWS = 1 << 9,       /* input 0's by indices into one axis */
  OPI_TAKES_TUPLES = 1 << 10,    /* input 0's by indices into several axes */
  OPI_TAKES_ENTRIES = 1 << 11,   /* input 0's, one for each index */
  OPI_TAKES_JOINED = 1 << 12,    /* all inputs', one behind the other */
  OPI_TAKES_EXTREME = 1 << 13,   /* any input's, by size */
  OPI_TAKES_CHOSEN = 1 << 14,    /* inputs 1 and 2's, by input 0 */
  OPI_TAKES_SCATTERED = 1 << 15, /* input 0's and input 2's */
  OPI_TAKES_LIMITED = 1 << 16,   /* input 0's, kept within limits */
  OPI_TAKES_FUNCTION = 1 << 17   /* functions of input 0's that make one parameter of another */
};

/* opi_op.range: how bounds of its elements follow from bounds of its inputs'. */
enum {
  OPI_RANGE_ANY = 1,     /* nobody knows */
  OPI_RANGE_SAME,        /* input 0's, broadcast */
  OPI_RANGE_RISING,      /* its results on both bounds: none falls when an element rises */
  OPI_RANGE_RUNNING_SUM, /* the same, a sum along an axis so far */
  OPI_RANGE_ADD,
  OPI_RANGE_SUB,
  OPI_RANGE_MUL,
  OPI_RANGE_DIV,
  OPI_RANGE_MIN,
  OPI_RANGE_MAX,
  OPI_RANGE_ABS,
  OPI_RANGE_NEG,
  OPI_RANGE_CLIP,
  OPI_RANGE_CAST,
  OPI_RANGE_CHOICE, /* input 1's where input 0 is true, else input 2's */
  OPI_RANGE_AND,
  OPI_RANGE_OR,
  OPI_RANGE_XOR,
  OPI_RANGE_NOT,
  OPI_RANGE_EQUAL,
  OPI_RANGE_LESS,    /* and LessOrEqual */
  OPI_RANGE_GREATER, /* and GreaterOrEqual */
  OPI_RANGE_WEIGHTS, /* 0 to 1, of sum 1 along an axis */
  OPI_RANGE_NEVER,   /* false of every ordinary number */
  OPI_RANGE_DROPPED, /* 0, or the element scaled up */
  OPI_RANGE_PLACE    /* places along attribute axis */
};

/* opi_op.index: which input indexes a table, and what its elements must stay below. */
enum {
  OPI_INDEX_NONE = 1,
  OPI_INDEX_AXIS,    /* input 1, attribute axis of input 0 */
  OPI_INDEX_TUPLES,  /* input 1, the axes of input 0 behind attribute batch_dims */
  OPI_INDEX_CLASSES, /* input 1, axis 1 of input 0 */
  OPI_INDEX_PLACES,  /* input 3, axis 0 of input 1 */
  OPI_INDEX_DEPTH,   /* input 0, the number in input 1 */
  OPI_INDEX_STARTS   /* input 2: where along attribute axis of input 0 input 1 may begin */
};

/* opi_op.kind: what it is to fusions and their counts, to recomputation, losses and plans. */
enum {
  OPI_KIND_PLAIN = 1, /* none of these */
  OPI_KIND_PRODUCT, /* may make scores of an attention, and read its weights: made again with it */
  OPI_KIND_SOFTMAX, /* may make weights of an attention: made again with it */
  OPI_KIND_LOG_SOFTMAX,
  OPI_KIND_ATTENTION,
  OPI_KIND_ROTARY,
  OPI_KIND_LAYER_NORM,
  OPI_KIND_RMS_NORM,
  OPI_KIND_GELU,
  OPI_KIND_SWISH,
  OPI_KIND_LOSS,       /* of logits */
  OPI_KIND_LIKELIHOOD, /* a loss of their log-softmax */
  OPI_KIND_RANDOM,     /* draws numbers: never folded, no constant, counts rows */
  OPI_KIND_ACCUMULATE, /* adds to a gradient that stays */
  OPI_KIND_UNPACK,     /* numbers of few bits: matrices of them are never folded */
  OPI_KIND_PACK,       /* the other way round: constants are folded, whatever their size */
  OPI_KIND_SUM,        /* along axes */
  OPI_KIND_MEAN,       /* along axes */
  OPI_KIND_REDUCTION,  /* along axes, of another kind */
  OPI_KIND_COUNT
};

typedef struct opi_op {
  const char *name;
  const char *domain;
  uint16_t first, last; /* opsets of the domain in which its form is known; last: OPI_NEWEST_* where
                           no newer schema is unread */
  uint16_t schema;      /* version of its newest schema up to `last`; with `attrs` OPI_ATTRS */
  const opi_attr_rule *attrs; /* every attribute of its schemas, ended by one without a name; NULL:
                                 domain "opipe", which no file holds */
  uint8_t min_in, max_in, min_out, max_out; /* max_in 255: any number */
  /* File form -> canonical form. `node` has inputs already mapped to the bound graph's values;
   * emits nodes through the builder, which infers and folds each. NULL: the form is canonical as it
   * is. */
  opipe_status (*lift)(opi_builder *builder, const opi_node *node, opipe_error *err);
  /* Canonical form: sets dtype, rank and shape of every output value. Input shapes are numbers.
   * Inputs whose content decides the shape are read with opi_known_ints(). Checks every input's
   * type and shape; messages name node, tensor and both numbers. NULL: lifting leaves nothing of
   * it, no bound graph has it, and only `takes` may be said. */
  opipe_status (*infer)(opi_builder *builder, const opi_node *node, opipe_error *err);
  /* NULL: element-wise, flops = output elements, bytes = all inputs and outputs. */
  void (*work)(const opi_graph *graph, const opi_node *node, opi_work *out_work);
  /* How outputs carry an axis when the inputs carry it as given: in [n_in], out [n_out]. Splitting
   * the axis must commute with the operator: else OPIPE_E_UNSUPPORTED with a reason. NULL: an
   * operator that carries none (refused when an input does). */
  opipe_status (*carry)(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                        opi_carry *out, opipe_error *err);
  /* Emits the gradient of `node` and contributes to its inputs' gradients
   * (loader/ops/rules.h). NULL with stops_gradient 0: not differentiable, an error where a
   * gradient is wanted. */
  opipe_status (*gradient)(opi_grad *g, const opi_node *node, opipe_error *err);
  uint64_t stops_gradient; /* bit i: no gradient ever flows into input i (indices, shapes, masks);
                              bit 63: nor into any input from 63 on. All ones: outputs are constant
                              almost everywhere */
  uint64_t sequences; /* bit i: input i may be a sequence of tensors; bit 63: those from 63 on */
  /* OPI_COLUMNS, of every row with `infer` */
  uint32_t takes; /* OPI_TAKES_* */
  uint8_t half;   /* OPI_HALF_* */
  uint8_t meets;  /* OPI_MEETS_* */
  uint8_t range;  /* OPI_RANGE_* */
  uint8_t index;  /* OPI_INDEX_* */
  uint8_t kind;   /* OPI_KIND_* */
} opi_op;

/* What every row begins with: name, versions, how many inputs and outputs. */
#define OPI_OP(name_, domain_, first_, last_, min_in_, max_in_, min_out_, max_out_)    \
  .name = name_, .domain = domain_, .first = first_, .last = last_, .min_in = min_in_, \
  .max_in = max_in_, .min_out = min_out_, .max_out = max_out_
/* All columns, by the ends of their names: none can be left out. */
#define OPI_COLUMNS(takes_, half_, meets_, range_, index_, kind_)                     \
  .takes = OPI_TAKES_##takes_, .half = OPI_HALF_##half_, .meets = OPI_MEETS_##meets_, \
  .range = OPI_RANGE_##range_, .index = OPI_INDEX_##index_, .kind = OPI_KIND_##kind_

/* "" and "ai.onnx" are one domain. NULL: unknown operator. */
const opi_op *opi_op_find(const char *domain, const char *name);
/* The same, never NULL: an unknown operator's columns say that nothing is known of it. */
const opi_op *opi_op_row(const char *domain, const char *name);
static inline const opi_op *opi_op_of(const opi_node *node) {
  return opi_op_row(node->domain, node->op);
}

/* Each family's table: {ops, n}. registry.c lists the families. */
typedef struct opi_op_family {
  const opi_op *ops;
  uint32_t n;
} opi_op_family;

/* Work of one node, whatever its rule. */
void opi_node_work(const opi_graph *graph, const opi_node *node, opi_work *out_work);

#endif /* OPI_OP_H */
