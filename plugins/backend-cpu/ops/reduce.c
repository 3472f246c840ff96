/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions over axes: Reduce*, and sums along an axis (CumSum, CumProd).
 *
 * The reference adds in fp64 (floats) or 64-bit integers in index order. fp32 reductions of whole
 * rows use the vector kernels. An empty set gives the operation's neutral element.
 */
#include <math.h>

#include "loop.h"

typedef enum reduce_kind {
  REDUCE_SUM,
  REDUCE_MEAN,
  REDUCE_MAX,
  REDUCE_MIN,
  REDUCE_PROD,
  REDUCE_L1,
  REDUCE_L2,
  REDUCE_SUM_SQUARE,
  REDUCE_LOG_SUM,
  REDUCE_LOG_SUM_EXP
} reduce_kind;

typedef struct reduce_plan {
  reduce_kind kind;
  cpu_class sums; /* F64, I64 or U64 */
  cpu_loop kept;  /* operand 0: input */
  cpu_loop reduced;
  int64_t count; /* elements of one reduction */
  cpu_reduce fast;
  bool adds; /* the output is an accumulator */
} reduce_plan;

typedef union wide {
  double f;
  int64_t i;
  uint64_t u;
} wide;

static wide start_value(const reduce_plan *plan) {
  wide v = {.u = 0};
  const bool is_float = plan->sums == CPU_CLASS_F64;
  if (plan->kind == REDUCE_PROD) {
    v.i = 1;
    v.f = is_float ? 1.0 : v.f;
  } else if (plan->kind == REDUCE_MAX) {
    v.i = plan->sums == CPU_CLASS_U64 ? 0 : INT64_MIN;
    v.f = is_float ? -(double)INFINITY : v.f;
  } else if (plan->kind == REDUCE_MIN) {
    v.u = plan->sums == CPU_CLASS_U64 ? UINT64_MAX : INT64_MAX;
    v.f = is_float ? (double)INFINITY : v.f;
  }
  return v;
}

static void add_floats(reduce_kind kind, double shift, const double *x, int64_t n, double *io_sum) {
  double sum = *io_sum;
  for (int64_t k = 0; k < n; ++k) {
    const double v = x[k];
    switch (kind) {
      case REDUCE_MAX:
        sum = isnan(v) || v > sum ? v : sum;
        break;
      case REDUCE_MIN:
        sum = isnan(v) || v < sum ? v : sum;
        break;
      case REDUCE_PROD:
        sum *= v;
        break;
      case REDUCE_L1:
        sum += fabs(v);
        break;
      case REDUCE_L2:
      case REDUCE_SUM_SQUARE:
        sum += v * v;
        break;
      case REDUCE_LOG_SUM_EXP:
        sum += exp(v - shift);
        break;
      default:
        sum += v;
        break;
    }
  }
  *io_sum = sum;
}

/* Sums wrap, so signed and unsigned differ in comparisons alone. */
static void add_integers(const reduce_plan *plan, const int64_t *x, int64_t n, wide *io) {
  for (int64_t k = 0; k < n; ++k) {
    const uint64_t u = (uint64_t)x[k];
    switch (plan->kind) {
      case REDUCE_MAX:
        if (plan->sums == CPU_CLASS_U64 ? u > io->u : x[k] > io->i)
          io->u = u;
        break;
      case REDUCE_MIN:
        if (plan->sums == CPU_CLASS_U64 ? u < io->u : x[k] < io->i)
          io->u = u;
        break;
      case REDUCE_PROD:
        io->u *= u;
        break;
      case REDUCE_L1:
        io->u += plan->sums == CPU_CLASS_I64 && x[k] < 0 ? (uint64_t)0 - u : u;
        break;
      case REDUCE_L2:
      case REDUCE_SUM_SQUARE:
        io->u += u * u;
        break;
      default:
        io->u += u;
        break;
    }
  }
}

/* Reduces the elements behind input offset `base`. */
static wide reduce_one(const cpu_call *call, reduce_kind kind, double shift, int64_t base) {
  const reduce_plan *plan = call->plan;
  const cpu_loop *loop = &plan->reduced;
  const int64_t stride = loop->stride[0][loop->rank - 1];
  reduce_plan as = *plan;
  as.kind = kind;
  wide sum = start_value(&as);
  for (int64_t row = 0; row < loop->rows; ++row) {
    const int64_t at = base + cpu_loop_offset(loop, 0, row);
    for (int64_t c = 0; c < loop->columns; c += CPU_RUN) {
      cpu_run_buffer buffer;
      const int64_t n = loop->columns - c < CPU_RUN ? loop->columns - c : CPU_RUN;
      const void *run = cpu_fetch(plan->sums, call->in[0].dtype, call->in[0].data, at + c * stride,
                                  stride, n, &buffer);
      if (plan->sums == CPU_CLASS_F64)
        add_floats(kind, shift, run, n, &sum.f);
      else
        add_integers(&as, run, n, &sum);
    }
  }
  return sum;
}

static double finish_float(const cpu_call *call, int64_t base) {
  const reduce_plan *plan = call->plan;
  if (plan->kind == REDUCE_LOG_SUM_EXP) {
    const double top = reduce_one(call, REDUCE_MAX, 0, base).f;
    const double shift = isfinite(top) ? top : 0.0;
    return log(reduce_one(call, REDUCE_LOG_SUM_EXP, shift, base).f) + shift;
  }
  const double sum = reduce_one(call, plan->kind, 0, base).f;
  switch (plan->kind) {
    case REDUCE_MEAN:
      return sum / (double)plan->count;
    case REDUCE_L2:
      return sqrt(sum);
    case REDUCE_LOG_SUM:
      return log(sum);
    default:
      return sum;
  }
}

static int64_t finish_integer(const cpu_call *call, int64_t base) {
  const reduce_plan *plan = call->plan;
  if (plan->kind == REDUCE_LOG_SUM_EXP || plan->kind == REDUCE_LOG_SUM)
    return (int64_t)log((double)reduce_one(call, REDUCE_SUM, 0, base).i);
  const wide sum = reduce_one(call, plan->kind, 0, base);
  switch (plan->kind) {
    case REDUCE_MEAN:
      return plan->count == 0              ? 0
             : plan->sums == CPU_CLASS_U64 ? (int64_t)(sum.u / (uint64_t)plan->count)
                                           : sum.i / plan->count;
    case REDUCE_L2:
      return (int64_t)sqrt((double)sum.i);
    default:
      return sum.i;
  }
}

static void reduce_range(void *ctx, int64_t begin, int64_t end) {
  const cpu_call *call = ctx;
  const reduce_plan *plan = call->plan;
  const cpu_loop *kept = &plan->kept;
  const cpu_tensor *out = &call->out[0];
  for (int64_t i = begin; i < end; ++i) {
    const int64_t base = cpu_loop_offset(kept, 0, i / kept->columns) +
                         i % kept->columns * kept->stride[0][kept->rank - 1];
    if (plan->sums == CPU_CLASS_F64) {
      const double value = finish_float(call, base);
      const float narrow = (float)value;
      const bool wide_out = out->dtype == OPIPE_DOUBLE;
      cpu_store(wide_out ? CPU_CLASS_F64 : CPU_CLASS_F32, out->dtype,
                wide_out ? (const void *)&value : &narrow, out->data, i, 1);
    } else {
      const int64_t value = finish_integer(call, base);
      cpu_store(CPU_CLASS_I64, out->dtype, &value, out->data, i, 1);
    }
  }
}

static opipe_status reduce_kernel(const cpu_call *call, opipe_error *err) {
  cpu_call copy = *call;
  (void)err;
  cpu_parallel(call->exec, (int64_t)call->out[0].n, (int64_t)call->in[0].n, reduce_range, &copy);
  return OPIPE_OK;
}

static opipe_status rows_kernel(const cpu_call *call, opipe_error *err) {
  const reduce_plan *plan = call->plan;
  (void)err;
  cpu_reduce_rows(call->exec, plan->fast, (int64_t)call->out[0].n, plan->count, call->in[0].data,
                  plan->count, call->out[0].data);
  return OPIPE_OK;
}

/* Sums of columns, one addition after the other: gradients of biases. */
static opipe_status columns_kernel(const cpu_call *call, opipe_error *err) {
  const reduce_plan *plan = call->plan;
  const cpu_tensor *out = &call->out[0];
  const bool adds = plan->adds && out->layout < CPU_LAYOUT_PANEL;
  float *to = plan->adds && !adds ? call->workspace : out->data;
  const int64_t columns = (int64_t)out->n;
  (void)err;
  if (!adds)
    memset(to, 0, (size_t)columns * sizeof *to);
  cpu_sum_columns(call->exec, call->in[0].data, columns, plan->count, columns, to);
  if (plan->adds && !adds)
    cpu_layout_add(call->exec, out->layout, out->shape, out->rank, to, out->data);
  return OPIPE_OK;
}

/* Leading axes go, and it is a gradient's sum: forward sums keep the order of the reference. */
static void choose_columns(cpu_prep *p, reduce_plan *plan) {
  const opipe_value *out = cpu_out(p, 0);
  const cpu_loop *kept = &plan->kept;
  const cpu_loop *reduced = &plan->reduced;
  const int64_t columns = (int64_t)cpu_elems(out);
  plan->adds = out->role == OPIPE_VALUE_GRADIENT;
  if ((!p->fast && !plan->adds) || plan->kind != REDUCE_SUM || columns < 1 ||
      (!plan->adds && p->node->pass == OPIPE_PASS_FORWARD) || cpu_in(p, 0)->dtype != OPIPE_FLOAT ||
      kept->rank != 1 || reduced->rank != 1 || (columns > 1 && kept->stride[0][0] != 1) ||
      (plan->count > 1 && reduced->stride[0][0] != columns))
    return;
  p->step->run = columns_kernel;
  cpu_want_layout(p, 0, CPU_LAYOUT_F32);
  if (plan->adds)
    cpu_want_workspace(p, (uint64_t)columns * sizeof(float));
}

/* Which axes go: reduced [rank]. */
static opipe_status reduced_axes(cpu_prep *p, const opipe_value *in, bool *reduced,
                                 bool *out_noop) {
  const int64_t *axes = NULL;
  uint32_t n = 0;
  CPU_TRY(cpu_ints(p, 1, &axes, &n));
  *out_noop = n == 0 && opipe_attr_int(p->node, "noop_with_empty_axes", 0) != 0;
  for (uint32_t i = 0; i < in->rank; ++i)
    reduced[i] = n == 0 && !*out_noop;
  for (uint32_t i = 0; i < n; ++i) {
    uint32_t axis = 0;
    CPU_TRY(cpu_axis(p, axes[i], in->rank, &axis));
    reduced[axis] = true;
  }
  return OPIPE_OK;
}

/* Loops over the kept and the reduced axes of the input. */
static opipe_status split_loops(cpu_prep *p, const opipe_value *in, const bool *reduced,
                                reduce_plan *plan) {
  int64_t strides[OPIPE_MAX_RANK];
  int64_t(*rows)[OPIPE_MAX_RANK] = cpu_pool_array(p->pool, 2, sizeof *rows);
  int64_t shape[2][OPIPE_MAX_RANK];
  uint32_t rank[2] = {0, 0};
  if (rows == NULL)
    return cpu_nomem(p);
  opipe_dense_strides(in->shape, in->rank, strides);
  plan->count = 1;
  for (uint32_t i = 0; i < in->rank; ++i) {
    const uint32_t side = reduced[i] ? 1 : 0;
    rows[side][rank[side]] = strides[i];
    shape[side][rank[side]++] = in->shape[i];
    plan->count *= reduced[i] ? in->shape[i] : 1;
  }
  cpu_loop_init(&plan->kept, shape[0], rank[0], 1, &rows[0]);
  cpu_loop_init(&plan->reduced, shape[1], rank[1], 1, &rows[1]);
  return OPIPE_OK;
}

static bool rows_fit(const reduce_plan *plan, uint64_t n_out) {
  const cpu_loop *kept = &plan->kept;
  const cpu_loop *reduced = &plan->reduced;
  return reduced->rank == 1 && reduced->stride[0][0] == 1 && plan->count > 0 && kept->rank == 1 &&
         (kept->stride[0][0] == plan->count || n_out == 1);
}

static void choose_fast(cpu_prep *p, reduce_plan *plan) {
  static const int fast[] = {[REDUCE_SUM] = CPU_REDUCE_SUM,
                             [REDUCE_MEAN] = CPU_REDUCE_MEAN,
                             [REDUCE_MAX] = CPU_REDUCE_MAX,
                             [REDUCE_MIN] = CPU_REDUCE_MIN,
                             [REDUCE_PROD] = -1,
                             [REDUCE_L1] = CPU_REDUCE_L1,
                             [REDUCE_L2] = CPU_REDUCE_L2,
                             [REDUCE_SUM_SQUARE] = CPU_REDUCE_SUM_SQUARE,
                             [REDUCE_LOG_SUM] = -1,
                             [REDUCE_LOG_SUM_EXP] = -1};
  if (p->fast && cpu_in(p, 0)->dtype == OPIPE_FLOAT && fast[plan->kind] >= 0 &&
      rows_fit(plan, cpu_elems(cpu_out(p, 0)))) {
    plan->fast = (cpu_reduce)fast[plan->kind];
    p->step->run = rows_kernel;
    cpu_want_layout(p, 0, CPU_LAYOUT_F32);
  }
}

static opipe_status prepare_reduce(cpu_prep *p) {
  const opipe_value *in = cpu_in(p, 0);
  const bool keep = opipe_attr_int(p->node, "keepdims", 1) != 0;
  bool reduced[OPIPE_MAX_RANK] = {false};
  bool noop = false;
  int64_t shape[OPIPE_MAX_RANK];
  uint32_t rank = 0;
  reduce_plan *plan = CPU_PLAN(p, reduce_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  plan->kind = (reduce_kind)p->op->code;
  if (cpu_is_half(in->dtype) && cpu_out(p, 0)->role == OPIPE_VALUE_GRADIENT)
    return cpu_prepare_widened(p); /* comes back with fp32 */
  const bool ordered = plan->kind == REDUCE_MAX || plan->kind == REDUCE_MIN;
  if (!cpu_is_float(in->dtype) && !cpu_is_int(in->dtype) && !(in->dtype == OPIPE_BOOL && ordered))
    return cpu_refuse(p, "does not take %s", opipe_dtype_name(in->dtype));
  CPU_TRY(reduced_axes(p, in, reduced, &noop));
  for (uint32_t i = 0; i < in->rank; ++i) {
    if (!reduced[i] || keep)
      shape[rank++] = reduced[i] ? 1 : in->shape[i];
  }
  if (cpu_out(p, 0)->role != OPIPE_VALUE_GRADIENT) /* else as fuse_accumulate.c has checked */
    CPU_TRY(cpu_expect(p, 0, in->dtype, shape, rank));
  plan->sums = cpu_is_float(in->dtype) ? CPU_CLASS_F64 : cpu_class_of(in->dtype);
  CPU_TRY(split_loops(p, in, reduced, plan));
  p->step->run = reduce_kernel;
  choose_fast(p, plan);
  choose_columns(p, plan);
  return OPIPE_OK;
}

/* ---- CumSum, CumProd ---- */

typedef struct cumulate_plan {
  int64_t outer, n, inner;
  bool exclusive, reverse, product;
  cpu_class sums;
} cumulate_plan;

static void cumulate_line(const cpu_call *call, const cumulate_plan *plan, int64_t first) {
  const cpu_tensor *in = &call->in[0];
  const cpu_tensor *out = &call->out[0];
  cpu_run_buffer buffer;
  wide sum = {.i = plan->product ? 1 : 0};
  sum.f = plan->sums == CPU_CLASS_F64 ? (plan->product ? 1.0 : 0.0) : sum.f;
  for (int64_t k = 0; k < plan->n; ++k) {
    const int64_t at = first + (plan->reverse ? plan->n - 1 - k : k) * plan->inner;
    wide x;
    wide before = sum;
    memcpy(&x, cpu_fetch(plan->sums, in->dtype, in->data, at, 1, 1, &buffer), sizeof x);
    if (plan->sums == CPU_CLASS_F64)
      sum.f = plan->product ? sum.f * x.f : sum.f + x.f;
    else
      sum.u = plan->product ? sum.u * x.u : sum.u + x.u;
    before = plan->exclusive ? before : sum;
    const float narrow = (float)before.f;
    if (plan->sums != CPU_CLASS_F64 || out->dtype == OPIPE_DOUBLE)
      cpu_store(plan->sums, out->dtype, &before, out->data, at, 1);
    else
      cpu_store(CPU_CLASS_F32, out->dtype, &narrow, out->data, at, 1);
  }
}

static opipe_status cumulate_kernel(const cpu_call *call, opipe_error *err) {
  const cumulate_plan *plan = call->plan;
  (void)err;
  for (int64_t o = 0; o < plan->outer; ++o) {
    for (int64_t i = 0; i < plan->inner; ++i)
      cumulate_line(call, plan, o * plan->n * plan->inner + i);
  }
  return OPIPE_OK;
}

static opipe_status prepare_cumulate(cpu_prep *p) {
  const opipe_value *in = cpu_in(p, 0);
  cumulate_plan *plan = CPU_PLAN(p, cumulate_plan);
  int64_t wanted = 0;
  uint32_t axis = 0;
  if (plan == NULL)
    return cpu_nomem(p);
  if (!cpu_is_float(in->dtype) && !cpu_is_int(in->dtype))
    return cpu_refuse(p, "does not take %s", opipe_dtype_name(in->dtype));
  CPU_TRY(cpu_expect_like(p, 0, in));
  CPU_TRY(cpu_int(p, 1, 0, &wanted));
  CPU_TRY(cpu_axis(p, wanted, in->rank, &axis));
  plan->exclusive = opipe_attr_int(p->node, "exclusive", 0) != 0;
  plan->reverse = opipe_attr_int(p->node, "reverse", 0) != 0;
  plan->product = p->op->code != 0;
  plan->sums = cpu_is_float(in->dtype) ? CPU_CLASS_F64 : cpu_class_of(in->dtype);
  plan->outer = 1;
  plan->inner = 1;
  plan->n = in->shape[axis];
  for (uint32_t i = 0; i < in->rank; ++i) {
    if (i != axis)
      *(i < axis ? &plan->outer : &plan->inner) *= in->shape[i];
  }
  p->step->run = cumulate_kernel;
  return OPIPE_OK;
}

#define ROW(NAME, CODE) \
  { NAME, NULL, prepare_reduce, 1, 2, 1, 0, CODE }

static const cpu_op ops[] = {
    ROW("ReduceSum", REDUCE_SUM),
    ROW("ReduceMean", REDUCE_MEAN),
    ROW("ReduceMax", REDUCE_MAX),
    ROW("ReduceMin", REDUCE_MIN),
    ROW("ReduceProd", REDUCE_PROD),
    ROW("ReduceL1", REDUCE_L1),
    ROW("ReduceL2", REDUCE_L2),
    ROW("ReduceSumSquare", REDUCE_SUM_SQUARE),
    ROW("ReduceLogSum", REDUCE_LOG_SUM),
    ROW("ReduceLogSumExp", REDUCE_LOG_SUM_EXP),
    {"CumSum", NULL, prepare_cumulate, 2, 2, 1, 0, 0},
    {"CumProd", NULL, prepare_cumulate, 2, 2, 1, 0, 1},
};

const cpu_op_family cpu_family_reduce = {ops, CPU_COUNT_OF(ops)};
