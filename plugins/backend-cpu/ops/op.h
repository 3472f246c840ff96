/* SPDX-License-Identifier: Apache-2.0 */
/* Operators: for each a rule that checks a node and chooses its kernel.
 *
 * A rule (`prepare`) runs at compile and in the support query. It sees the node, the shapes and the
 * data of constants; it checks every shape that its kernel relies on, sets step->run, step->plan
 * (in the pool), step->workspace_bytes, and may mark parameters' layouts and in-place inputs. A
 * refusal names the node and the operator: "node 'n' (Op): ...". Kernels allocate nothing.
 *
 * Adding an operator: its rule and kernel in the family's file, a row in the family's table.
 */
#ifndef OPIPE_BACKEND_CPU_OPS_OP_H_
#define OPIPE_BACKEND_CPU_OPS_OP_H_

#include "../program.h"

typedef struct cpu_op cpu_op;

/* Work that was fused into a step. Operands are indices of step->in (sum: of step->out), -1: none.
 *   of a product: v + bias, activation, v * multiplier, v + residual, in this order; of a
 *   convolution with channels last, then relu
 *   of a norm: skip is added to its input, and the sum may be wanted
 *   of attention: Q, K and V are columns of one tensor [batch, rows, all columns] */
typedef struct cpu_fusion {
  int bias; /* [N] */
  cpu_activation activation;
  int multiplier; /* shape of the product */
  int residual;   /* shape of the product */
  int skip;       /* shape of the norm's input */
  int sum;
  int64_t column[3]; /* where Q, K and V begin in a row */
  bool packed_rows;
  bool numbers; /* sums of products of integers as fp32 */
  int scale;    /* of numbers: one, or [N] */
  int y_scale;  /* of integers of 8 bits that the numbers become in the end; -1: none */
  int y_zero;
  bool relu_last;
} cpu_fusion;

#define CPU_FUSION_NONE \
  { -1, CPU_ACT_NONE, -1, -1, -1, -1, {0, 0, 0}, false, false, -1, -1, -1, false }

typedef struct cpu_prep {
  const opipe_device *device;
  cpu_pool *pool;
  const opipe_graph *graph;
  const opipe_graph *given; /* with half types as they are; NULL: `graph`, nothing is widened */
  const opipe_node *node;
  const cpu_op *op;
  cpu_step *step;
  const cpu_fusion *fusion;  /* NULL: none */
  const opipe_value *turned; /* the parameter whose transposition input 1 is; NULL: it is none */
  bool fast;                 /* fast kernels may be chosen */
  uint32_t flags;            /* OPIPE_COMPILE_* */
  opipe_error *err;
} cpu_prep;

typedef opipe_status (*cpu_prepare)(cpu_prep *p);

enum {
  CPU_OP_WIDEN =
      1u /* kernels know fp32 and fp64; fp16 and bf16 operands are converted around them */
};

struct cpu_op {
  const char *name;
  const char *domain; /* NULL: "" */
  cpu_prepare prepare;
  uint8_t min_in, max_in, max_out; /* max_in 255: any number */
  uint8_t flags;                   /* CPU_OP_* */
  uint32_t code;                   /* for rules shared by several operators */
};

/* opipe.Accumulate: adds its input to a gradient's accumulator. */
bool cpu_is_accumulate(const opipe_node *node);

/* Will a MatMulInteger by the parameter `b`, a ConvInteger of one group with it, use packed codes?
 * Where kernels are not those of reference. */
bool cpu_integer_packs(const opipe_value *b, uint32_t flags);
bool cpu_conv_integer_packs(const opipe_node *node, const opipe_value *w, uint32_t flags);

/* Quantization fused to a product of integers: scale and zero point of its result, and their
 * range. */
void cpu_fused_quantization(const cpu_call *call, const cpu_fusion *fusion,
                            cpu_codes_integer_args *args);

/* The activation that a node is, where the product kernels know it; CPU_ACT_NONE otherwise. */
cpu_activation cpu_activation_of(const opipe_node *node);

/* The row for an operator; NULL when there is none. */
const cpu_op *cpu_op_find(const char *domain, const char *name);
/* Prepares one step for `p->node`: looks the operator up, checks counts, calls its rule (through
 * the widening wrapper where that is needed). */
opipe_status cpu_op_prepare(cpu_prep *p);
/* The wrapper's part: see widen.c. */
opipe_status cpu_prepare_widened(cpu_prep *p);

typedef struct cpu_op_family {
  const cpu_op *ops;
  uint32_t n;
} cpu_op_family;

extern const cpu_op_family cpu_family_shape, cpu_family_movement, cpu_family_index,
    cpu_family_scatter, cpu_family_elementwise, cpu_family_logic, cpu_family_cast,
    cpu_family_reduce, cpu_family_order, cpu_family_generate, cpu_family_linear,
    cpu_family_quantize, cpu_family_quantize_linear, cpu_family_integer, cpu_family_conv_integer,
    cpu_family_einsum, cpu_family_conv, cpu_family_pool, cpu_family_norm, cpu_family_softmax,
    cpu_family_activation, cpu_family_attention, cpu_family_rotary, cpu_family_loss,
    cpu_family_dropout, cpu_family_train, cpu_family_dropout_train, cpu_family_conv_grad,
    cpu_family_parts, cpu_family_norm_grad, cpu_family_softmax_grad, cpu_family_activation_grad,
    cpu_family_attention_grad, cpu_family_pool_grad, cpu_family_interpolate, cpu_family_dft,
    cpu_family_recurrent, cpu_family_recurrent_grad, cpu_family_row_attention;

/* ---- for rules ---- */

/* OPIPE_E_UNSUPPORTED / OPIPE_E_INVALID with "node 'n' (Op): " before the text. */
opipe_status cpu_refuse(cpu_prep *p, const char *fmt, ...) OPIPE_PRINTF(2, 3);
opipe_status cpu_invalid(cpu_prep *p, const char *fmt, ...) OPIPE_PRINTF(2, 3);
opipe_status cpu_nomem(cpu_prep *p);

/* Input or output i, NULL when absent. */
const opipe_value *cpu_in(const cpu_prep *p, uint32_t i);
const opipe_value *cpu_out(const cpu_prep *p, uint32_t i);
/* Input i as the graph has it, where cpu_in shows a half type widened. */
const opipe_value *cpu_given(const cpu_prep *p, uint32_t i);
uint64_t cpu_elems(const opipe_value *value);

/* The integers of constant input i (int32 or int64), in the pool. n 0 and NULL when absent. */
opipe_status cpu_ints(cpu_prep *p, uint32_t i, const int64_t **out_ints, uint32_t *out_n);
/* One integer; `fallback` when absent. */
opipe_status cpu_int(cpu_prep *p, uint32_t i, int64_t fallback, int64_t *out_int);

/* Output i must have this type and shape. */
opipe_status cpu_expect(cpu_prep *p, uint32_t i, uint32_t dtype, const int64_t *shape,
                        uint32_t rank);
/* Output i must have the shape (and type) of `like`. */
opipe_status cpu_expect_like(cpu_prep *p, uint32_t i, const opipe_value *like);
/* axis in [-rank, rank) -> [0, rank). */
opipe_status cpu_axis(cpu_prep *p, int64_t axis, uint32_t rank, uint32_t *out_axis);

/* The plan: zeroed in the pool and set as step->plan. NULL: out of memory. */
void *cpu_plan(cpu_prep *p, size_t size);
#define CPU_PLAN(p, type) ((type *)cpu_plan((p), sizeof(type)))
/* Raises step->workspace_bytes. */
void cpu_want_workspace(cpu_prep *p, uint64_t n_bytes);
/* Asks for input i in a layout where it is a parameter. */
void cpu_want_layout(cpu_prep *p, uint32_t i, uint32_t layout);
bool cpu_is_param(const cpu_prep *p, uint32_t i);

bool cpu_is_float(uint32_t dtype); /* fp16, bf16, fp32, fp64 */
bool cpu_is_half(uint32_t dtype);  /* fp16, bf16 */
bool cpu_is_int(uint32_t dtype);   /* 8 to 64 bits */
bool cpu_is_unsigned(uint32_t dtype);
uint32_t cpu_dtype_bytes(uint32_t dtype);   /* 0 below a byte */
cpu_dtype cpu_storage_type(uint32_t dtype); /* of fp32, fp16, bf16 */

/* ---- for kernels ---- */

/* Fails with "node 'n' (Op): " before the text. */
opipe_status cpu_fail(const cpu_call *call, opipe_error *err, opipe_status status, const char *fmt,
                      ...) OPIPE_PRINTF(4, 5);
/* Element i of an integer tensor (int32 or int64). */
int64_t cpu_index(const cpu_tensor *tensor, uint64_t i);
/* Element i of any numeric tensor but those below a byte. */
double cpu_number(const cpu_tensor *tensor, uint64_t i);

#define CPU_TRY(expr)                   \
  do {                                  \
    const opipe_status cpu_s_ = (expr); \
    if (cpu_s_ < 0) {                   \
      return cpu_s_;                    \
    }                                   \
  } while (0)

#define CPU_COUNT_OF(array) ((uint32_t)(sizeof(array) / sizeof((array)[0])))

#endif
