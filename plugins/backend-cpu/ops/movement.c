/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that move elements: Transpose, Expand, Tile, Concat, Split, Slice, Trilu.
 *
 * Each is one or several strided copies (loop.h), planned at compile. Any type of whole bytes.
 */
#include "loop.h"

typedef struct move_plan {
  uint32_t n;
  uint32_t reserved;
  cpu_copy_plan *copies; /* [n] one per input (Concat) or output (Split) */
} move_plan;

/* One copy from input 0 to output 0. */
static opipe_status move_kernel(const cpu_call *call, opipe_error *err) {
  const move_plan *plan = call->plan;
  (void)err;
  cpu_copy_run(call->exec, &plan->copies[0], call->in[0].data, call->out[0].data);
  return OPIPE_OK;
}

static opipe_status new_plan(cpu_prep *p, uint32_t n, move_plan **out_plan) {
  move_plan *plan = CPU_PLAN(p, move_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  plan->n = n;
  plan->copies = CPU_POOL_ARRAY(p->pool, cpu_copy_plan, n);
  if (plan->copies == NULL)
    return cpu_nomem(p);
  *out_plan = plan;
  return OPIPE_OK;
}

static opipe_status element_size(cpu_prep *p, const opipe_value *value, uint32_t *out_size) {
  *out_size = cpu_dtype_bytes(value->dtype);
  return *out_size == 0
             ? cpu_refuse(p, "does not move elements of type %s", opipe_dtype_name(value->dtype))
             : OPIPE_OK;
}

/* A copy into the dense output 0 with the given strides of input 0. */
static opipe_status dense_copy(cpu_prep *p, const int64_t *in_strides, int64_t in_first) {
  const opipe_value *out = cpu_out(p, 0);
  move_plan *plan = NULL;
  uint32_t size = 0;
  int64_t out_strides[OPIPE_MAX_RANK];
  CPU_TRY(element_size(p, out, &size));
  CPU_TRY(new_plan(p, 1, &plan));
  opipe_dense_strides(out->shape, out->rank, out_strides);
  plan->copies[0].in_first = in_first;
  p->step->run = move_kernel;
  return cpu_copy_plan_init(p, &plan->copies[0], out->shape, out->rank, in_strides, out_strides,
                            size);
}

static opipe_status prepare_transpose(cpu_prep *p) {
  const opipe_value *in = cpu_in(p, 0);
  uint32_t n = 0;
  const int64_t *perm = opipe_attr_ints(p->node, "perm", &n);
  int64_t dense[OPIPE_MAX_RANK];
  int64_t strides[OPIPE_MAX_RANK];
  int64_t shape[OPIPE_MAX_RANK];
  bool seen[OPIPE_MAX_RANK] = {false};
  if (perm != NULL && n != in->rank)
    return cpu_invalid(p, "perm has %u entries for rank %u", n, in->rank);
  opipe_dense_strides(in->shape, in->rank, dense);
  for (uint32_t i = 0; i < in->rank; ++i) {
    uint32_t from = in->rank - 1 - i;
    if (perm != NULL)
      CPU_TRY(cpu_axis(p, perm[i], in->rank, &from));
    if (seen[from])
      return cpu_invalid(p, "perm names axis %u twice", from);
    seen[from] = true;
    strides[i] = dense[from];
    shape[i] = in->shape[from];
  }
  CPU_TRY(cpu_expect(p, 0, in->dtype, shape, in->rank));
  return dense_copy(p, strides, 0);
}

static opipe_status prepare_expand(cpu_prep *p) {
  const opipe_value *in = cpu_in(p, 0);
  const opipe_value *out = cpu_out(p, 0);
  int64_t strides[OPIPE_MAX_RANK];
  if (out == NULL || out->dtype != in->dtype ||
      !opipe_broadcast_strides(in->shape, in->rank, out->shape, out->rank, strides))
    return cpu_invalid(p, "its input does not broadcast to its output");
  return dense_copy(p, strides, 0);
}

/* Tile: axis d of n * r elements is the axes r (stride 0) and n. */
static opipe_status prepare_tile(cpu_prep *p) {
  const opipe_value *in = cpu_in(p, 0);
  const int64_t *repeats = NULL;
  uint32_t n = 0;
  uint32_t size = 0;
  move_plan *plan = NULL;
  int64_t dense[OPIPE_MAX_RANK];
  int64_t shape[OPIPE_MAX_RANK];
  int64_t wide[OPIPE_MAX_RANK];
  int64_t in_strides[OPIPE_MAX_RANK];
  int64_t out_strides[OPIPE_MAX_RANK];
  uint32_t rank = 0;
  CPU_TRY(cpu_ints(p, 1, &repeats, &n));
  if (n != in->rank)
    return cpu_invalid(p, "repeats has %u entries for rank %u", n, in->rank);
  opipe_dense_strides(in->shape, in->rank, dense);
  for (uint32_t i = 0; i < n; ++i) {
    if (repeats[i] < 0 || __builtin_mul_overflow(in->shape[i], repeats[i], &shape[i]))
      return cpu_invalid(p, "repeats %lld times on axis %u", (long long)repeats[i], i);
    if (repeats[i] != 1) {
      if (rank >= OPIPE_MAX_RANK)
        return cpu_refuse(p, "repeats too many axes");
      wide[rank] = repeats[i];
      in_strides[rank++] = 0;
    }
    if (rank >= OPIPE_MAX_RANK)
      return cpu_refuse(p, "repeats too many axes");
    wide[rank] = in->shape[i];
    in_strides[rank++] = dense[i];
  }
  CPU_TRY(cpu_expect(p, 0, in->dtype, shape, n));
  CPU_TRY(element_size(p, in, &size));
  CPU_TRY(new_plan(p, 1, &plan));
  opipe_dense_strides(wide, rank, out_strides);
  p->step->run = move_kernel;
  return cpu_copy_plan_init(p, &plan->copies[0], wide, rank, in_strides, out_strides, size);
}

/* Clamps a Slice's bounds; returns the number of elements taken. */
static int64_t slice_range(int64_t n, int64_t *io_start, int64_t end, int64_t step) {
  int64_t start = *io_start;
  const int64_t low = step > 0 ? 0 : -1;
  const int64_t high = step > 0 ? n : n - 1;
  start = start < 0 ? (start < -n ? low : start + n) : start;
  end = end < 0 ? (end < -n ? low : end + n) : end;
  start = start < 0 ? 0 : start > high ? high : start;
  end = end < low ? low : end > n ? n : end;
  *io_start = start;
  if (n == 0 || (step > 0 ? start >= end : start <= end))
    return 0;
  const uint64_t span = step > 0 ? (uint64_t)(end - start) : (uint64_t)(start - end);
  const uint64_t width = step > 0 ? (uint64_t)step : (uint64_t)0 - (uint64_t)step;
  return (int64_t)((span - 1) / width + 1);
}

static opipe_status prepare_slice(cpu_prep *p) {
  const opipe_value *in = cpu_in(p, 0);
  const int64_t *list[4] = {NULL, NULL, NULL, NULL}; /* starts, ends, axes, steps */
  uint32_t n[4] = {0, 0, 0, 0};
  int64_t strides[OPIPE_MAX_RANK];
  int64_t shape[OPIPE_MAX_RANK];
  int64_t first = 0;
  bool seen[OPIPE_MAX_RANK] = {false};
  for (uint32_t i = 0; i < 4; ++i)
    CPU_TRY(cpu_ints(p, i + 1, &list[i], &n[i]));
  if (n[0] != n[1] || (cpu_in(p, 3) != NULL && n[2] != n[0]) ||
      (cpu_in(p, 4) != NULL && n[3] != n[0]) || n[0] > in->rank) {
    return cpu_invalid(p, "starts, ends, axes and steps have %u, %u, %u and %u entries", n[0], n[1],
                       n[2], n[3]);
  }
  opipe_dense_strides(in->shape, in->rank, strides);
  for (uint32_t i = 0; i < in->rank; ++i)
    shape[i] = in->shape[i];
  for (uint32_t i = 0; i < n[0]; ++i) {
    uint32_t axis = i;
    int64_t start = list[0][i];
    const int64_t step = n[3] > 0 ? list[3][i] : 1;
    if (n[2] > 0)
      CPU_TRY(cpu_axis(p, list[2][i], in->rank, &axis));
    if (step == 0 || seen[axis])
      return cpu_invalid(p, "axis %u has a step of 0 or is named twice", axis);
    seen[axis] = true;
    shape[axis] = slice_range(in->shape[axis], &start, list[1][i], step);
    if (shape[axis] > 0)
      first += start * strides[axis];
    strides[axis] = shape[axis] > 1 ? strides[axis] * step : strides[axis];
  }
  CPU_TRY(cpu_expect(p, 0, in->dtype, shape, in->rank));
  return dense_copy(p, strides, first);
}

static opipe_status concat_kernel(const cpu_call *call, opipe_error *err) {
  const move_plan *plan = call->plan;
  (void)err;
  for (uint32_t i = 0; i < plan->n; ++i)
    cpu_copy_run(call->exec, &plan->copies[i], call->in[i].data, call->out[0].data);
  return OPIPE_OK;
}

static opipe_status split_kernel(const cpu_call *call, opipe_error *err) {
  const move_plan *plan = call->plan;
  (void)err;
  for (uint32_t i = 0; i < plan->n; ++i) {
    if (call->out[i].data != NULL)
      cpu_copy_run(call->exec, &plan->copies[i], call->in[0].data, call->out[i].data);
  }
  return OPIPE_OK;
}

/* Copies that join the parts [n] along `axis` to `whole`, or cut it into them. */
static opipe_status part_copies(cpu_prep *p, const opipe_value *whole, const opipe_value **parts,
                                uint32_t n, uint32_t axis, bool join) {
  move_plan *plan = NULL;
  uint32_t size = 0;
  int64_t whole_strides[OPIPE_MAX_RANK];
  int64_t at = 0;
  CPU_TRY(element_size(p, whole, &size));
  CPU_TRY(new_plan(p, n, &plan));
  opipe_dense_strides(whole->shape, whole->rank, whole_strides);
  for (uint32_t i = 0; i < n; ++i) {
    const opipe_value *part = parts[i];
    int64_t strides[OPIPE_MAX_RANK];
    cpu_copy_plan *copy = &plan->copies[i];
    bool fits = part->rank == whole->rank && part->dtype == whole->dtype;
    for (uint32_t a = 0; fits && a < whole->rank; ++a)
      fits = a == axis ? part->shape[a] <= whole->shape[a] - at : part->shape[a] == whole->shape[a];
    if (!fits) {
      return cpu_invalid(p, "'%.80s' does not fit '%.80s' along axis %u", part->name, whole->name,
                         axis);
    }
    opipe_dense_strides(part->shape, part->rank, strides);
    CPU_TRY(cpu_copy_plan_init(p, copy, part->shape, part->rank, join ? strides : whole_strides,
                               join ? whole_strides : strides, size));
    *(join ? &copy->out_first : &copy->in_first) = at * whole_strides[axis];
    at += part->shape[axis];
  }
  return at == whole->shape[axis]
             ? OPIPE_OK
             : cpu_invalid(p, "its parts have %lld elements along axis %u, '%.80s' has %lld",
                           (long long)at, axis, whole->name, (long long)whole->shape[axis]);
}

static opipe_status prepare_concat(cpu_prep *p) {
  const opipe_value *out = cpu_out(p, 0);
  const uint32_t n = p->step->n_in;
  const opipe_value **parts = CPU_POOL_ARRAY(p->pool, const opipe_value *, n);
  uint32_t axis = 0;
  if (parts == NULL)
    return cpu_nomem(p);
  for (uint32_t i = 0; i < n; ++i) {
    parts[i] = cpu_in(p, i);
    if (parts[i] == NULL)
      return cpu_invalid(p, "input %u is absent", i);
  }
  CPU_TRY(cpu_axis(p, opipe_attr_int(p->node, "axis", 0), out->rank, &axis));
  p->step->run = concat_kernel;
  return part_copies(p, out, parts, n, axis, true);
}

/* The sizes of Split's outputs: what its second input says, or, where that is too long a list to be
 * known here (hundreds of parts), what the outputs are, all of which are there then. */
static opipe_status split_sizes(cpu_prep *p, uint32_t axis, const int64_t **out_sizes,
                                uint32_t *out_n) {
  const opipe_value *said = cpu_in(p, 1);
  const uint32_t n = p->step->n_out;
  if (said == NULL || said->role == OPIPE_VALUE_CONSTANT)
    return cpu_ints(p, 1, out_sizes, out_n);
  int64_t *sizes = CPU_POOL_ARRAY(p->pool, int64_t, n), left = cpu_in(p, 0)->shape[axis];
  if (sizes == NULL)
    return cpu_nomem(p);
  for (uint32_t i = 0; i < n; ++i) {
    const opipe_value *part = cpu_out(p, i);
    if (part == NULL || part->rank != cpu_in(p, 0)->rank)
      return cpu_refuse(p, "needs the value of input '%.80s'", said->name);
    sizes[i] = part->shape[axis];
    left -= sizes[i];
  }
  if (left != 0)
    return cpu_invalid(p, "its outputs are %lld elements short", (long long)left);
  *out_sizes = sizes;
  *out_n = n;
  return OPIPE_OK;
}

static opipe_status prepare_split(cpu_prep *p) {
  const opipe_value *in = cpu_in(p, 0);
  const uint32_t n = p->step->n_out;
  const int64_t *sizes = NULL;
  uint32_t n_sizes = 0;
  uint32_t axis = 0;
  opipe_value *made = CPU_POOL_ARRAY(p->pool, opipe_value, n);
  const opipe_value **parts = CPU_POOL_ARRAY(p->pool, const opipe_value *, n);
  int64_t *shapes = CPU_POOL_ARRAY(p->pool, int64_t, (uint64_t)n * OPIPE_MAX_RANK);
  if (made == NULL || parts == NULL || shapes == NULL)
    return cpu_nomem(p);
  CPU_TRY(cpu_axis(p, opipe_attr_int(p->node, "axis", 0), in->rank, &axis));
  CPU_TRY(split_sizes(p, axis, &sizes, &n_sizes));
  if (n == 0 || (n_sizes != 0 && n_sizes != n))
    return cpu_invalid(p, "%u sizes for %u outputs", n_sizes, n);
  const int64_t even = (in->shape[axis] + n - 1) / n;
  for (uint32_t i = 0; i < n; ++i) {
    int64_t *shape = shapes + (uint64_t)i * OPIPE_MAX_RANK;
    const int64_t left = in->shape[axis] - even * i;
    memcpy(shape, in->shape, in->rank * sizeof shape[0]);
    shape[axis] = n_sizes > 0 ? sizes[i] : left < 0 ? 0 : left < even ? left : even;
    if (shape[axis] < 0)
      return cpu_invalid(p, "size %lld of output %u", (long long)shape[axis], i);
    made[i] = *in;
    made[i].shape = shape;
    parts[i] = &made[i];
    if (cpu_out(p, i) != NULL)
      CPU_TRY(cpu_expect(p, i, in->dtype, shape, in->rank));
  }
  p->step->run = split_kernel;
  return part_copies(p, in, parts, n, axis, false);
}

/* ---- Trilu ---- */

typedef struct trilu_plan {
  int64_t matrices, rows, columns, k;
  uint32_t size;
  bool upper;
} trilu_plan;

static void trilu_rows(void *ctx, int64_t begin, int64_t end) {
  const cpu_call *call = ctx;
  const trilu_plan *plan = call->plan;
  const int64_t size = plan->size;
  for (int64_t r = begin; r < end; ++r) {
    const int64_t row = r % plan->rows;
    /* columns [0, edge) lie left of the diagonal k (upper), or up to it (lower) */
    int64_t edge = plan->upper ? row + plan->k : row + plan->k + 1;
    edge = edge < 0 ? 0 : edge > plan->columns ? plan->columns : edge;
    const char *in = (const char *)call->in[0].data + r * plan->columns * size;
    char *out = (char *)call->out[0].data + r * plan->columns * size;
    const size_t left = (size_t)(edge * size);
    const size_t right = (size_t)((plan->columns - edge) * size);
    if (plan->upper) {
      memset(out, 0, left);
      memmove(out + left, in + left, right);
    } else {
      memmove(out, in, left);
      memset(out + left, 0, right);
    }
  }
}

static opipe_status trilu_kernel(const cpu_call *call, opipe_error *err) {
  const trilu_plan *plan = call->plan;
  cpu_call copy = *call;
  (void)err;
  cpu_parallel(call->exec, plan->matrices * plan->rows, (int64_t)call->out[0].n, trilu_rows, &copy);
  return OPIPE_OK;
}

static opipe_status prepare_trilu(cpu_prep *p) {
  const opipe_value *in = cpu_in(p, 0);
  trilu_plan *plan = CPU_PLAN(p, trilu_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  if (in->rank < 2)
    return cpu_invalid(p, "its input has rank %u", in->rank);
  CPU_TRY(cpu_expect_like(p, 0, in));
  CPU_TRY(element_size(p, in, &plan->size));
  CPU_TRY(cpu_int(p, 1, 0, &plan->k));
  plan->upper = opipe_attr_int(p->node, "upper", 1) != 0;
  plan->rows = in->shape[in->rank - 2];
  plan->columns = in->shape[in->rank - 1];
  plan->matrices = 1;
  for (uint32_t i = 0; i + 2 < in->rank; ++i)
    plan->matrices *= in->shape[i];
  const int64_t reach = plan->rows + plan->columns;
  plan->k = plan->k < -reach ? -reach : plan->k > reach ? reach : plan->k;
  p->step->inplace = 1;
  p->step->run = trilu_kernel;
  return OPIPE_OK;
}

static const cpu_op ops[] = {
    {"Transpose", NULL, prepare_transpose, 1, 1, 1, 0, 0},
    {"Expand", NULL, prepare_expand, 1, 2, 1, 0, 0},
    {"Tile", NULL, prepare_tile, 2, 2, 1, 0, 0},
    {"Slice", NULL, prepare_slice, 3, 5, 1, 0, 0},
    {"Concat", NULL, prepare_concat, 1, 255, 1, 0, 0},
    {"Split", NULL, prepare_split, 1, 2, 255, 0, 0},
    {"Trilu", NULL, prepare_trilu, 1, 2, 1, 0, 0},
};

const cpu_op_family cpu_family_movement = {ops, CPU_COUNT_OF(ops)};
