/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that compare elements along an axis (ArgMax, ArgMin, TopK) or search (NonZero).
 *
 * A NaN counts as larger than every number. Among equals the lower index comes first.
 */
#include "loop.h"

typedef struct order_plan {
  int64_t outer, n, inner, k;
  bool largest, last, sorted;
} order_plan;

/* Compares elements a and b of a tensor: -1, 0, 1. */
static int compare(const cpu_tensor *tensor, int64_t a, int64_t b) {
  if (cpu_is_float(tensor->dtype)) {
    const double x = cpu_number(tensor, (uint64_t)a);
    const double y = cpu_number(tensor, (uint64_t)b);
    const int nan_x = x != x;
    const int nan_y = y != y;
    return nan_x || nan_y ? nan_x - nan_y : (x > y) - (x < y);
  }
  const cpu_class kind = cpu_class_of(tensor->dtype);
  cpu_run_buffer buffer[2];
  int64_t x = 0;
  int64_t y = 0;
  memcpy(&x, cpu_fetch(kind, tensor->dtype, tensor->data, a, 1, 1, &buffer[0]), sizeof x);
  memcpy(&y, cpu_fetch(kind, tensor->dtype, tensor->data, b, 1, 1, &buffer[1]), sizeof y);
  if (kind == CPU_CLASS_U64)
    return ((uint64_t)x > (uint64_t)y) - ((uint64_t)x < (uint64_t)y);
  return (x > y) - (x < y);
}

static opipe_status arg_kernel(const cpu_call *call, opipe_error *err) {
  const order_plan *plan = call->plan;
  const cpu_tensor *in = &call->in[0];
  int64_t *out = call->out[0].data;
  (void)err;
  for (int64_t o = 0; o < plan->outer; ++o) {
    for (int64_t i = 0; i < plan->inner; ++i) {
      const int64_t first = o * plan->n * plan->inner + i;
      int64_t best = 0;
      for (int64_t k = 1; k < plan->n; ++k) {
        int order = compare(in, first + k * plan->inner, first + best * plan->inner);
        order = plan->largest ? order : -order;
        best = order > 0 || (order == 0 && plan->last) ? k : best;
      }
      out[o * plan->inner + i] = best;
    }
  }
  return OPIPE_OK;
}

static opipe_status order_axis(cpu_prep *p, const opipe_value *in, int64_t wanted, order_plan *plan,
                               uint32_t *out_axis) {
  if (!cpu_is_float(in->dtype) && !cpu_is_int(in->dtype))
    return cpu_refuse(p, "does not take %s", opipe_dtype_name(in->dtype));
  CPU_TRY(cpu_axis(p, wanted, in->rank, out_axis));
  plan->outer = 1;
  plan->inner = 1;
  plan->n = in->shape[*out_axis];
  for (uint32_t i = 0; i < in->rank; ++i) {
    if (i != *out_axis)
      *(i < *out_axis ? &plan->outer : &plan->inner) *= in->shape[i];
  }
  return OPIPE_OK;
}

static opipe_status prepare_arg(cpu_prep *p) {
  const opipe_value *in = cpu_in(p, 0);
  const bool keep = opipe_attr_int(p->node, "keepdims", 1) != 0;
  order_plan *plan = CPU_PLAN(p, order_plan);
  int64_t shape[OPIPE_MAX_RANK];
  uint32_t rank = 0;
  uint32_t axis = 0;
  if (plan == NULL)
    return cpu_nomem(p);
  CPU_TRY(order_axis(p, in, opipe_attr_int(p->node, "axis", 0), plan, &axis));
  for (uint32_t i = 0; i < in->rank; ++i) {
    if (i != axis || keep)
      shape[rank++] = i == axis ? 1 : in->shape[i];
  }
  if (plan->n == 0)
    return cpu_invalid(p, "searches along an axis without elements");
  plan->largest = p->op->code == 1;
  plan->last = opipe_attr_int(p->node, "select_last_index", 0) != 0;
  p->step->run = arg_kernel;
  return cpu_expect(p, 0, OPIPE_INT64, shape, rank);
}

/* True when element a stands before element b in the result. */
static bool comes_before(const order_plan *plan, const cpu_tensor *in, int64_t first, int64_t a,
                         int64_t b) {
  const int order = compare(in, first + a * plan->inner, first + b * plan->inner);
  return order == 0 ? a < b : (order > 0) == plan->largest;
}

/* Sorts index [n] by merging, with `scratch` [n]. */
static void sort_line(const order_plan *plan, const cpu_tensor *in, int64_t first, int64_t *index,
                      int64_t *scratch) {
  for (int64_t k = 0; k < plan->n; ++k)
    index[k] = k;
  for (int64_t width = 1; width < plan->n; width *= 2) {
    for (int64_t low = 0; low < plan->n; low += 2 * width) {
      const int64_t middle = low + width < plan->n ? low + width : plan->n;
      const int64_t high = low + 2 * width < plan->n ? low + 2 * width : plan->n;
      int64_t a = low;
      int64_t b = middle;
      for (int64_t k = low; k < high; ++k) {
        const bool take_b =
            a == middle || (b < high && comes_before(plan, in, first, index[b], index[a]));
        scratch[k] = take_b ? index[b++] : index[a++];
      }
    }
    memcpy(index, scratch, (size_t)plan->n * sizeof index[0]);
  }
}

static opipe_status topk_kernel(const cpu_call *call, opipe_error *err) {
  const order_plan *plan = call->plan;
  const cpu_tensor *in = &call->in[0];
  const uint32_t size = cpu_dtype_bytes(in->dtype);
  int64_t *index = call->workspace;
  (void)err;
  for (int64_t o = 0; o < plan->outer; ++o) {
    for (int64_t i = 0; i < plan->inner; ++i) {
      const int64_t first = o * plan->n * plan->inner + i;
      sort_line(plan, in, first, index, index + plan->n);
      for (int64_t k = 0; k < plan->k; ++k) {
        const int64_t at = (o * plan->k + k) * plan->inner + i;
        if (call->out[0].data != NULL) {
          memcpy((char *)call->out[0].data + at * size,
                 (const char *)in->data + (first + index[k] * plan->inner) * size, size);
        }
        if (call->n_out > 1 && call->out[1].data != NULL)
          ((int64_t *)call->out[1].data)[at] = index[k];
      }
    }
  }
  return OPIPE_OK;
}

static opipe_status prepare_topk(cpu_prep *p) {
  const opipe_value *in = cpu_in(p, 0);
  order_plan *plan = CPU_PLAN(p, order_plan);
  int64_t shape[OPIPE_MAX_RANK];
  uint32_t axis = 0;
  if (plan == NULL)
    return cpu_nomem(p);
  CPU_TRY(order_axis(p, in, opipe_attr_int(p->node, "axis", -1), plan, &axis));
  CPU_TRY(cpu_int(p, 1, 0, &plan->k));
  if (plan->k < 0 || plan->k > plan->n)
    return cpu_invalid(p, "takes %lld of %lld elements", (long long)plan->k, (long long)plan->n);
  memcpy(shape, in->shape, in->rank * sizeof shape[0]);
  shape[axis] = plan->k;
  plan->largest = opipe_attr_int(p->node, "largest", 1) != 0;
  if (cpu_out(p, 0) != NULL)
    CPU_TRY(cpu_expect(p, 0, in->dtype, shape, in->rank));
  CPU_TRY(p->step->n_out > 1 ? cpu_expect(p, 1, OPIPE_INT64, shape, in->rank) : OPIPE_OK);
  cpu_want_workspace(p, (uint64_t)plan->n * 2 * sizeof(int64_t));
  p->step->run = topk_kernel;
  return OPIPE_OK;
}

/* NonZero: the number of hits is part of the output's shape; other data is an error of the run. */
static opipe_status nonzero_kernel(const cpu_call *call, opipe_error *err) {
  const cpu_tensor *in = &call->in[0];
  const cpu_tensor *out = &call->out[0];
  const uint64_t room = (uint64_t)out->shape[1];
  int64_t *to = out->data;
  uint64_t found = 0;
  for (uint64_t i = 0; i < in->n; ++i) {
    if (cpu_number(in, i) == 0)
      continue;
    int64_t rest = (int64_t)i;
    for (uint32_t a = in->rank; found < room && a > 0; --a) {
      to[(a - 1) * room + found] = rest % in->shape[a - 1];
      rest /= in->shape[a - 1];
    }
    ++found;
  }
  if (found != room) {
    return cpu_fail(call, err, OPIPE_E_INVALID,
                    "finds %llu elements; the program was compiled for %llu",
                    (unsigned long long)found, (unsigned long long)room);
  }
  return OPIPE_OK;
}

static opipe_status prepare_nonzero(cpu_prep *p) {
  const opipe_value *in = cpu_in(p, 0);
  const opipe_value *out = cpu_out(p, 0);
  if (!cpu_is_float(in->dtype) && !cpu_is_int(in->dtype) && in->dtype != OPIPE_BOOL)
    return cpu_refuse(p, "does not take %s", opipe_dtype_name(in->dtype));
  if (out->dtype != OPIPE_INT64 || out->rank != 2 || out->shape[0] != (int64_t)in->rank)
    return cpu_invalid(p, "its output is not int64 [rank, count]");
  p->step->run = nonzero_kernel;
  return OPIPE_OK;
}

static const cpu_op ops[] = {
    {"ArgMax", NULL, prepare_arg, 1, 1, 1, 0, 1},
    {"ArgMin", NULL, prepare_arg, 1, 1, 1, 0, 0},
    {"TopK", NULL, prepare_topk, 2, 2, 2, 0, 0},
    {"NonZero", NULL, prepare_nonzero, 1, 1, 1, 0, 0},
};

const cpu_op_family cpu_family_order = {ops, CPU_COUNT_OF(ops)};
