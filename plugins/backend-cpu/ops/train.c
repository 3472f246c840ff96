/* SPDX-License-Identifier: Apache-2.0 */
/* opipe.Accumulate and opipe.GatherGrad.
 *
 * Accumulate adds its input to an accumulator of the bound gradient set, whatever layout that has.
 * GatherGrad adds rows of dY where Gather took them from, in rising order of index position, so
 * that an index that occurs often gives the same bits however the work is divided. Version 2:
 * dX is the rows [first, first + rows) of a table of `whole` rows; the others' are left out.
 */
#include "loop.h"

bool cpu_is_accumulate(const opipe_node *node) {
  return node->domain != NULL && strcmp(node->domain, "opipe") == 0 && node->op != NULL &&
         strcmp(node->op, "Accumulate") == 0;
}

static opipe_status accumulate_kernel(const cpu_call *call, opipe_error *err) {
  const cpu_tensor *x = &call->in[0];
  const cpu_tensor *g = &call->out[0];
  const float *from = x->data;
  (void)err;
  if (x->dtype == OPIPE_DOUBLE) {
    float *narrow = call->workspace;
    for (uint64_t i = 0; i < x->n; ++i)
      narrow[i] = (float)((const double *)x->data)[i];
    from = narrow;
  }
  cpu_layout_add(call->exec, g->layout, g->shape, g->rank, from, g->data);
  return OPIPE_OK;
}

static opipe_status prepare_accumulate(cpu_prep *p) {
  const opipe_value *x = cpu_in(p, 0);
  const opipe_value *g = cpu_out(p, 0);
  if (!cpu_is_float(x->dtype))
    return cpu_refuse(p, "does not take %s", opipe_dtype_name(x->dtype));
  if (g->role != OPIPE_VALUE_GRADIENT)
    return cpu_invalid(p, "its output '%.80s' is not a gradient", g->name);
  CPU_TRY(cpu_expect(p, 0, OPIPE_FLOAT, x->shape, x->rank));
  cpu_want_layout(p, 0, CPU_LAYOUT_COPY);
  if (x->dtype == OPIPE_DOUBLE)
    cpu_want_workspace(p, cpu_elems(x) * sizeof(float));
  p->step->run = accumulate_kernel;
  return OPIPE_OK;
}

/* ---- GatherGrad ---- */

typedef struct gather_plan {
  int64_t outer, rows, inner, n; /* dY [outer, n, inner], dX [outer, rows, inner] */
  int64_t first, whole;          /* of all rows, dX has those from `first` on */
  bool adds;                     /* the output is an accumulator [rows, inner] */
} gather_plan;

#define ADD_ROWS(NAME, T)                                                                       \
  static int64_t NAME(const gather_plan *plan, const cpu_tensor *indices, const T *dy, T *dx) { \
    for (int64_t o = 0; o < plan->outer; ++o) {                                                 \
      for (int64_t i = 0; i < plan->n; ++i) {                                                   \
        int64_t at = cpu_index(indices, (uint64_t)i);                                           \
        at += at < 0 ? plan->whole : 0;                                                         \
        if (at < 0 || at >= plan->whole) {                                                      \
          return i;                                                                             \
        }                                                                                       \
        at -= plan->first;                                                                      \
        if (at < 0 || at >= plan->rows) {                                                       \
          continue;                                                                             \
        }                                                                                       \
        const T *from = dy + (o * plan->n + i) * plan->inner;                                   \
        T *to = dx + (o * plan->rows + at) * plan->inner;                                       \
        for (int64_t k = 0; k < plan->inner; ++k) {                                             \
          to[k] += from[k];                                                                     \
        }                                                                                       \
      }                                                                                         \
    }                                                                                           \
    return -1;                                                                                  \
  }
ADD_ROWS(add_rows_f32, float)
ADD_ROWS(add_rows_f64, double)

/* One share of the columns of every row of an accumulator [rows, inner], so that a row's additions
 * keep their order. The layouts stand in ../program.h. */
static void add_columns(void *ctx, int64_t begin, int64_t end) {
  const cpu_call *call = ctx;
  const gather_plan *plan = call->plan;
  const cpu_tensor *g = &call->out[0];
  float *data = g->data;
  for (int64_t i = 0; i < plan->n; ++i) {
    int64_t at = cpu_index(&call->in[1], (uint64_t)i);
    at += (at < 0 ? plan->whole : 0) - plan->first;
    if (at < 0 || at >= plan->rows)
      continue;
    const float *from = (const float *)call->in[0].data + i * plan->inner;
    if (g->layout == CPU_LAYOUT_PANEL_T) {
      float *to = data + at / CPU_PANEL * CPU_PANEL * plan->inner + at % CPU_PANEL;
      for (int64_t k = begin; k < end; ++k)
        to[k * CPU_PANEL] += from[k];
    } else if (g->layout == CPU_LAYOUT_PANEL) {
      for (int64_t k = begin; k < end; ++k)
        data[k / CPU_PANEL * CPU_PANEL * plan->rows + at * CPU_PANEL + k % CPU_PANEL] += from[k];
    } else {
      float *to = data + at * plan->inner;
      for (int64_t k = begin; k < end; ++k)
        to[k] += from[k];
    }
  }
}

static opipe_status add_kernel(const cpu_call *call, opipe_error *err) {
  const gather_plan *plan = call->plan;
  cpu_call copy = *call;
  for (int64_t i = 0; i < plan->n; ++i) {
    const int64_t at = cpu_index(&call->in[1], (uint64_t)i);
    if (at < -plan->whole || at >= plan->whole) {
      return cpu_fail(call, err, OPIPE_E_INVALID, "index %lld is outside [0, %lld)", (long long)at,
                      (long long)plan->whole);
    }
  }
  cpu_parallel(call->exec, plan->inner, plan->n * plan->inner, add_columns, &copy);
  return OPIPE_OK;
}

static opipe_status gather_kernel(const cpu_call *call, opipe_error *err) {
  const gather_plan *plan = call->plan;
  const cpu_tensor *dx = &call->out[0];
  if (dx->n_bytes > 0)
    memset(dx->data, 0, (size_t)dx->n_bytes);
  const int64_t wrong = dx->dtype == OPIPE_DOUBLE
                            ? add_rows_f64(plan, &call->in[1], call->in[0].data, dx->data)
                            : add_rows_f32(plan, &call->in[1], call->in[0].data, dx->data);
  return wrong < 0 ? OPIPE_OK
                   : cpu_fail(call, err, OPIPE_E_INVALID, "index %lld is outside [0, %lld)",
                              (long long)cpu_index(&call->in[1], (uint64_t)wrong),
                              (long long)plan->whole);
}

static opipe_status prepare_gather_grad(cpu_prep *p) {
  const opipe_value *dy = cpu_in(p, 0);
  const opipe_value *indices = cpu_in(p, 1);
  const opipe_value *dx = cpu_out(p, 0);
  const opipe_attr *shape = opipe_attr_find(p->node, "shape");
  gather_plan *plan = CPU_PLAN(p, gather_plan);
  uint32_t axis = 0;
  if (plan == NULL)
    return cpu_nomem(p);
  if (!cpu_is_float(dy->dtype) ||
      (indices->dtype != OPIPE_INT64 && indices->dtype != OPIPE_INT32)) {
    return cpu_refuse(p, "does not take %s, %s", opipe_dtype_name(dy->dtype),
                      opipe_dtype_name(indices->dtype));
  }
  if (shape == NULL || shape->kind != OPIPE_ATTR_INTS || shape->n > OPIPE_MAX_RANK)
    return cpu_invalid(p, "it has no shape");
  CPU_TRY(cpu_expect(p, 0, dy->dtype, shape->data, shape->n));
  CPU_TRY(cpu_axis(p, opipe_attr_int(p->node, "axis", 0), dx->rank, &axis));
  plan->outer = 1;
  plan->inner = 1;
  plan->rows = dx->shape[axis];
  plan->first = opipe_attr_int(p->node, "first", 0);
  plan->whole = opipe_attr_int(p->node, "whole", plan->rows);
  if (plan->first < 0 || plan->rows > plan->whole || plan->first > plan->whole - plan->rows) {
    return cpu_invalid(p, "rows from %lld on of %lld do not hold '%.80s'", (long long)plan->first,
                       (long long)plan->whole, dx->name);
  }
  plan->n = (int64_t)cpu_elems(indices);
  for (uint32_t i = 0; i < dx->rank; ++i) {
    if (i != axis)
      *(i < axis ? &plan->outer : &plan->inner) *= dx->shape[i];
  }
  uint64_t n = 0;
  if (__builtin_mul_overflow((uint64_t)(plan->outer * plan->inner), (uint64_t)plan->n, &n) ||
      n != cpu_elems(dy)) {
    return cpu_invalid(p, "'%.80s' does not have %lld rows of %lld", dy->name,
                       (long long)(plan->outer * plan->n), (long long)plan->inner);
  }
  cpu_want_layout(p, 0, CPU_LAYOUT_COPY);
  cpu_want_layout(p, 1, CPU_LAYOUT_COPY);
  plan->adds = dx->role == OPIPE_VALUE_GRADIENT;
  p->step->run = plan->adds ? add_kernel : gather_kernel;
  return OPIPE_OK;
}

static const cpu_op ops[] = {
    {"Accumulate", "opipe", prepare_accumulate, 1, 1, 1, CPU_OP_WIDEN, 0},
    {"GatherGrad", "opipe", prepare_gather_grad, 2, 2, 1, CPU_OP_WIDEN, 0},
};

const cpu_op_family cpu_family_train = {ops, CPU_COUNT_OF(ops)};
