/* SPDX-License-Identifier: Apache-2.0 */
/* The properties of operators: one opi_op per operator, one file per family in this folder.
 *
 * To add an operator, write its rules in the family's file, add it to that family's table, and add
 * the kernel to each backend. Nothing else is needed: passes, gradients and plans read an
 * operator's properties from the columns of its row, and `./dev lint operators` names a row that
 * leaves one out. The canonical form of an operator is that of its newest known ONNX version; each
 * family's comment lists the exceptions.
 */
#ifndef OPI_OP_H
#define OPI_OP_H

#include "loader/graph/graph.h"
#include "loader/ops/form.h"

typedef struct opi_builder opi_builder; /* loader/ops/builder.h */
typedef struct opi_grad opi_grad;       /* loader/ops/rules.h */

/* How a value carries one of the special axes (batch, token, feature): dimension `axis` has outer *
 * N * inner elements in row-major factors, where N is the length of the special axis. axis -1: the
 * value does not carry it (every part sees the same value). count: not 0 for positions that count
 * along the axis, such as row * tokens + token: entries of element n exceed those of the first
 * element by n * count. power: for a known number: 1 if it is a multiple of N, -1 if of 1 / N (a
 * loss divided by the rows of its batch); 0: independent of N. */
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

/* Values start at 1; 0 is a row that leaves the column out.
 *
 * opi_op.half: the types to compute in if activations are of a half type. */
enum {
  OPI_HALF_COMMON = 1, /* the widest type among its activations */
  OPI_HALF_NARROW,     /* the half type: products */
  OPI_HALF_WIDE,       /* fp32: it sums, or exceeds the half type's range */
  OPI_HALF_AS_IS,      /* every input in its own type */
  OPI_HALF_SCALE,      /* input 0 in its own type, input 1 in that of input 0 */
  OPI_HALF_PICKS /* as COMMON, but results picked from constants are cast, not the constants */
};

/* opi_op.meets: the role of a constant that meets activations here; decides what is trained. */
enum {
  OPI_MEETS_OTHER = 1,  /* no sign of a parameter */
  OPI_MEETS_PRODUCT,    /* a factor of a product */
  OPI_MEETS_LAYER,      /* the same for inputs 0 and 1; input 2 is the bias */
  OPI_MEETS_NORM,       /* scale or bias from input 1 on */
  OPI_MEETS_BATCH_NORM, /* the same; inputs 3 and 4 are running statistics */
  OPI_MEETS_GROUP_NORM, /* as NORM; exporters write 1 and 0 where a model has no parameters */
  OPI_MEETS_SLOPE,      /* as NORM, but a single number is not a parameter */
  OPI_MEETS_ROWS,       /* input 0: rows that input 1 picks */
  OPI_MEETS_SCORES,     /* input 3: added to the scores of an attention */
  OPI_MEETS_SHIFT,
  OPI_MEETS_SCALE,
  OPI_MEETS_ANGLES, /* angles: a constant that reaches the loss only through them is a buffer */
  OPI_MEETS_TABLES, /* tables of such functions from input 1 on */
  OPI_MEETS_NUMBERS /* a number of the operator itself: an exponent, a bound, a fill value */
};

/* opi_op.takes: the source of its outputs' elements. Bits, so that sets can be tested. */
enum {
  OPI_TAKES_NONE = 1,            /* computed */
  OPI_TAKES_FORM = 1 << 1,       /* input 0's, in order, in another shape */
  OPI_TAKES_TURNED = 1 << 2,     /* input 0's, in another order */
  OPI_TAKES_CAST = 1 << 3,       /* input 0's, of another type */
  OPI_TAKES_STRETCHED = 1 << 4,  /* input 0's, broadcast */
  OPI_TAKES_REPEATED = 1 << 5,   /* input 0's, repeated */
  OPI_TAKES_PART = 1 << 6,       /* some of input 0's, by inputs from 1 on */
  OPI_TAKES_PARTS = 1 << 7,      /* all of input 0's, spread over the outputs */
  OPI_TAKES_PADDED = 1 << 8,     /* input 0's, with input 2's around them */
  OPI_TAKES_ROWS = 1 << 9,       /* input 0's by indices into one axis */
  OPI_TAKES_TUPLES = 1 << 10,    /* input 0's by indices into several axes */
  OPI_TAKES_ENTRIES = 1 << 11,   /* input 0's, one for each index */
  OPI_TAKES_JOINED = 1 << 12,    /* all inputs', concatenated */
  OPI_TAKES_EXTREME = 1 << 13,   /* any input's, by size */
  OPI_TAKES_CHOSEN = 1 << 14,    /* inputs 1 and 2's, selected by input 0 */
  OPI_TAKES_SCATTERED = 1 << 15, /* input 0's and input 2's */
  OPI_TAKES_LIMITED = 1 << 16,   /* input 0's, clamped */
  OPI_TAKES_FUNCTION = 1 << 17   /* functions of input 0's that make one parameter from another */
};

/* opi_op.range: how bounds of its elements follow from those of its inputs. */
enum {
  OPI_RANGE_ANY = 1,     /* unknown */
  OPI_RANGE_SAME,        /* input 0's, broadcast */
  OPI_RANGE_RISING,      /* its results on both bounds: it is monotonically increasing */
  OPI_RANGE_RUNNING_SUM, /* the same, for a running sum along an axis */
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
  OPI_RANGE_WEIGHTS, /* 0 to 1, with sum 1 along an axis */
  OPI_RANGE_NEVER,   /* false for every ordinary number */
  OPI_RANGE_DROPPED, /* 0, or the element scaled up */
  OPI_RANGE_PLACE    /* positions along attribute axis */
};

/* opi_op.index: the input that indexes a table, and the limit of its elements. */
enum {
  OPI_INDEX_NONE = 1,
  OPI_INDEX_AXIS,    /* input 1, attribute axis of input 0 */
  OPI_INDEX_TUPLES,  /* input 1, the axes of input 0 behind attribute batch_dims */
  OPI_INDEX_CLASSES, /* input 1, axis 1 of input 0 */
  OPI_INDEX_PLACES,  /* input 3, axis 0 of input 1 */
  OPI_INDEX_DEPTH,   /* input 0, the number in input 1 */
  OPI_INDEX_STARTS   /* input 2: start positions of input 1 along attribute axis of input 0 */
};

/* opi_op.kind: its role for fusions, recomputation, losses and plans. */
enum {
  OPI_KIND_PLAIN = 1, /* none of these */
  OPI_KIND_PRODUCT, /* may compute attention scores or read attention weights; recomputed with them
                     */
  OPI_KIND_SOFTMAX, /* may compute attention weights; recomputed with them */
  OPI_KIND_LOG_SOFTMAX,
  OPI_KIND_ATTENTION,
  OPI_KIND_ROW_ATTENTION, /* of token rows, keys and values in pages */
  OPI_KIND_ROTARY,
  OPI_KIND_LAYER_NORM,
  OPI_KIND_RMS_NORM,
  OPI_KIND_GELU,
  OPI_KIND_SWISH,
  OPI_KIND_LOSS,       /* on logits */
  OPI_KIND_LIKELIHOOD, /* a loss on their log-softmax */
  OPI_KIND_RANDOM,     /* draws numbers: never folded, not a constant, counts rows */
  OPI_KIND_ACCUMULATE, /* adds to a persistent gradient */
  OPI_KIND_UNPACK,     /* unpacks few-bit numbers: matrices of them are never folded */
  OPI_KIND_PACK,       /* packs them: constants are folded, whatever their size */
  OPI_KIND_SUM,        /* along axes */
  OPI_KIND_MEAN,       /* along axes */
  OPI_KIND_REDUCTION,  /* along axes, of another kind */
  OPI_KIND_COLLECTIVE, /* moves numbers between the members of a tensor group (group.h); no backend
                          ever runs it */
  OPI_KIND_COUNT
};

/* opi_op.sums: how a partial sum passes. A partial sum is a value whose sum over the members of a
 * tensor group is meant; an operator passes it on if computing on the parts and summing afterwards
 * gives the same. */
enum {
  OPI_SUMS_NEVER = 1, /* it has to be summed before */
  OPI_SUMS_FIRST,     /* linear in input 0; the others are the same for all members */
  OPI_SUMS_TOGETHER,  /* linear in all inputs at once: all must be partial */
  OPI_SUMS_EACH,      /* linear in every input while the others are the same for all members */
  OPI_SUMS_PRODUCT,   /* the same for inputs 0 and 1, and it makes partial sums itself if both are
                         divided along the axis that it sums over */
  OPI_SUMS_LAYER,     /* the same; input 2 is added once, behind the sum */
  OPI_SUMS_AXES       /* as FIRST, and it makes partial sums if its axes are divided */
};

typedef struct opi_op {
  const char *name;
  const char *domain;
  uint16_t first, last; /* opsets of the domain with known form; last: OPI_NEWEST_* if all schemas
                           have been read */
  uint16_t schema; /* version of its newest schema up to `last`; set with `attrs` by OPI_ATTRS */
  const opi_attr_rule *attrs; /* every attribute of its schemas, ended by one without a name; NULL:
                                 domain "opipe", which files cannot contain */
  uint8_t min_in, max_in, min_out, max_out; /* max_in 255: any number */
  /* File form -> canonical form. `node` has inputs already mapped to values of the bound graph;
   * emits nodes through the builder, which infers and folds each. NULL: the form is canonical
   * already. */
  opipe_status (*lift)(opi_builder *builder, const opi_node *node, opipe_error *err);
  /* Canonical form: sets type, rank and shape of every output. Input shapes are numbers; inputs
   * whose content decides the shape are read with opi_known_ints(). Checks every input's type and
   * shape; messages name node, tensor and both numbers. NULL: lifting removes the operator, so no
   * bound graph has it, and only `takes` may be set. */
  opipe_status (*infer)(opi_builder *builder, const opi_node *node, opipe_error *err);
  /* NULL: element-wise, flops = output elements, bytes = all inputs and outputs. */
  void (*work)(const opi_graph *graph, const opi_node *node, opi_work *out_work);
  /* How outputs carry an axis if the inputs carry it as given: in [n_in], out [n_out]. Splitting
   * the axis must commute with the operator, else UNSUPPORTED with a reason. NULL: refused if any
   * input carries the axis. */
  opipe_status (*carry)(const opi_graph *graph, const opi_node *node, const opi_carry *in,
                        opi_carry *out, opipe_error *err);
  /* Emits the gradient of `node` and contributes to its inputs' gradients (loader/ops/rules.h).
   * NULL with stops_gradient 0: not differentiable, an error if a gradient is wanted. */
  opipe_status (*gradient)(opi_grad *g, const opi_node *node, opipe_error *err);
  uint64_t stops_gradient; /* bit i: no gradient flows into input i (indices, shapes, masks); bit
                              63: nor into any input from 63 on. All ones: outputs are constant
                              almost everywhere */
  uint64_t sequences; /* bit i: input i may be a sequence of tensors; bit 63: inputs from 63 on */
  /* OPI_COLUMNS, set in every row with `infer` */
  uint32_t takes; /* OPI_TAKES_* */
  uint8_t half;   /* OPI_HALF_* */
  uint8_t meets;  /* OPI_MEETS_* */
  uint8_t range;  /* OPI_RANGE_* */
  uint8_t index;  /* OPI_INDEX_* */
  uint8_t kind;   /* OPI_KIND_* */
  uint8_t sums;   /* OPI_SUMS_* */
} opi_op;

/* The beginning of every row: name, versions, numbers of inputs and outputs. */
#define OPI_OP(name_, domain_, first_, last_, min_in_, max_in_, min_out_, max_out_)    \
  .name = name_, .domain = domain_, .first = first_, .last = last_, .min_in = min_in_, \
  .max_in = max_in_, .min_out = min_out_, .max_out = max_out_
/* All columns, by the suffixes of their constants; none can be left out. */
#define OPI_COLUMNS(takes_, half_, meets_, range_, index_, kind_, sums_)              \
  .takes = OPI_TAKES_##takes_, .half = OPI_HALF_##half_, .meets = OPI_MEETS_##meets_, \
  .range = OPI_RANGE_##range_, .index = OPI_INDEX_##index_, .kind = OPI_KIND_##kind_, \
  .sums = OPI_SUMS_##sums_

/* "" and "ai.onnx" are one domain. NULL: unknown operator. */
const opi_op *opi_op_find(const char *domain, const char *name);
/* The same, never NULL: the columns of an unknown operator claim nothing. */
const opi_op *opi_op_row(const char *domain, const char *name);
static inline const opi_op *opi_op_of(const opi_node *node) {
  return opi_op_row(node->domain, node->op);
}

/* Each family's table: {ops, n}. registry.c lists the families. */
typedef struct opi_op_family {
  const opi_op *ops;
  uint32_t n;
} opi_op_family;

/* Work of one node, with or without a rule. */
void opi_node_work(const opi_graph *graph, const opi_node *node, opi_work *out_work);

#endif /* OPI_OP_H */
