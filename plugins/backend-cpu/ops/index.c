/* SPDX-License-Identifier: Apache-2.0 */
/* Reading by index: Gather, GatherElements, GatherND, OneHot.
 *
 * Indices come from the caller's data: each is checked when it is used, negative ones count from
 * the end, and what is out of range is an error with the index and the limit.
 */
#include "loop.h"

typedef struct gather_plan {
  int64_t outer;          /* product of the axes before `axis` (batch axes: GatherND) */
  int64_t n;              /* elements of the axis */
  int64_t inner;          /* bytes behind one index */
  int64_t count;          /* indices (of a batch) */
  int64_t tuple;          /* GatherND: entries of one index */
  const int64_t *limits;  /* GatherND: [tuple] */
  const int64_t *strides; /* GatherND: [tuple] in bytes; GatherElements: [rank] of data, elements */
  uint32_t axis;
  uint32_t size;
} gather_plan;

static opipe_status bad_index(const cpu_call *call, opipe_error *err, int64_t index, int64_t n) {
  return cpu_fail(call, err, OPIPE_E_INVALID, "index %lld is outside [-%lld, %lld)",
                  (long long)index, (long long)n, (long long)n);
}

static opipe_status index_type(cpu_prep *p, uint32_t i) {
  const opipe_value *value = cpu_in(p, i);
  if (value == NULL || (value->dtype != OPIPE_INT64 && value->dtype != OPIPE_INT32))
    return cpu_invalid(p, "input %u holds no int32 or int64 indices", i);
  return OPIPE_OK;
}

static opipe_status gather_kernel(const cpu_call *call, opipe_error *err) {
  const gather_plan *plan = call->plan;
  const char *data = call->in[0].data;
  char *out = call->out[0].data;
  for (int64_t o = 0; o < plan->outer; ++o) {
    for (int64_t i = 0; i < plan->count; ++i) {
      const int64_t index = cpu_index(&call->in[1], (uint64_t)i);
      const int64_t at = index < 0 ? index + plan->n : index;
      if (at < 0 || at >= plan->n)
        return bad_index(call, err, index, plan->n);
      memcpy(out, data + (o * plan->n + at) * plan->inner, (size_t)plan->inner);
      out += plan->inner;
    }
  }
  return OPIPE_OK;
}

static opipe_status gather_rows_kernel(const cpu_call *call, opipe_error *err) {
  const gather_plan *plan = call->plan;
  const int64_t bad =
      cpu_gather_rows(call->exec, call->in[0].data, plan->n, plan->inner, call->in[1].data,
                      call->in[1].dtype == OPIPE_INT64, plan->count, call->out[0].data);
  return bad < 0 ? OPIPE_OK : bad_index(call, err, cpu_index(&call->in[1], (uint64_t)bad), plan->n);
}

/* Elements of a row of a parameter in panels of bf16 (cpu_pair_at), of the matrix or its transpose.
 */
static void gather_pairs(const gather_plan *plan, const uint16_t *panels, bool turned, int64_t at,
                         uint16_t *to) {
  const int64_t columns = plan->inner / plan->size;
  if (turned) {
    const uint16_t *panel = panels + at / CPU_PANEL * CPU_PANEL * columns;
    for (int64_t c = 0; c < columns; ++c)
      to[c] = panel[cpu_pair_at(columns, c, at % CPU_PANEL)];
    return;
  }
  for (int64_t c = 0; c < columns; c += CPU_PANEL, panels += CPU_PANEL * plan->n) {
    const int64_t n = columns - c < CPU_PANEL ? columns - c : CPU_PANEL;
    for (int64_t u = 0; u < n; ++u)
      to[c + u] = panels[cpu_pair_at(plan->n, at, u)];
  }
}

static void gather_pair_rows(void *ctx, int64_t begin, int64_t end) {
  const cpu_call *call = ctx;
  const gather_plan *plan = call->plan;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t index = cpu_index(&call->in[1], (uint64_t)i);
    gather_pairs(plan, call->in[0].data, cpu_layout_is_turned(call->in[0].layout),
                 index < 0 ? index + plan->n : index,
                 (uint16_t *)call->out[0].data + i * (plan->inner / plan->size));
  }
}

/* Rows of a parameter that lies in panels of its transpose, [n / 64][columns][64]: an element of
 * each line. `T` has their size. */
#define GATHER_TURNED(T)                                                                     \
  do {                                                                                       \
    const T *from = (const T *)data + at / CPU_PANEL * CPU_PANEL * columns + at % CPU_PANEL; \
    T *to = (T *)out + i * columns;                                                          \
    for (int64_t c = 0; c < columns; ++c)                                                    \
      to[c] = from[c * CPU_PANEL];                                                           \
  } while (0)

static void gather_turned_rows(void *ctx, int64_t begin, int64_t end) {
  const cpu_call *call = ctx;
  const gather_plan *plan = call->plan;
  const int64_t columns = plan->inner / plan->size;
  const void *data = call->in[0].data;
  void *out = call->out[0].data;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t index = cpu_index(&call->in[1], (uint64_t)i);
    const int64_t at = index < 0 ? index + plan->n : index;
    if (plan->size == sizeof(float))
      GATHER_TURNED(uint32_t);
    else
      GATHER_TURNED(uint16_t);
  }
}

/* Rows of a parameter that lies in panels, [columns / 64][n][64]. */
static void gather_panel_rows(void *ctx, int64_t begin, int64_t end) {
  const cpu_call *call = ctx;
  const gather_plan *plan = call->plan;
  const int64_t size = plan->size, columns = plan->inner / size;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t index = cpu_index(&call->in[1], (uint64_t)i);
    const int64_t at = index < 0 ? index + plan->n : index;
    const char *data = (const char *)call->in[0].data + at * CPU_PANEL * size;
    char *to = (char *)call->out[0].data + i * plan->inner;
    for (int64_t c = 0; c < columns; c += CPU_PANEL) {
      const int64_t n = columns - c < CPU_PANEL ? columns - c : CPU_PANEL;
      memcpy(to + c * size, data + c * plan->n * size, (size_t)(n * size));
    }
  }
}

static opipe_status gather_table_kernel(const cpu_call *call, opipe_error *err) {
  const gather_plan *plan = call->plan;
  cpu_call copy = *call;
  if (!cpu_layout_is_panel(call->in[0].layout))
    return gather_rows_kernel(call, err);
  for (int64_t i = 0; i < plan->count; ++i) {
    const int64_t index = cpu_index(&call->in[1], (uint64_t)i);
    if (index < -plan->n || index >= plan->n)
      return bad_index(call, err, index, plan->n);
  }
  const bool turned = cpu_layout_is_turned(call->in[0].layout);
  const bool pairs = call->in[0].dtype == OPIPE_BFLOAT16;
  cpu_parallel(call->exec, plan->count, (int64_t)call->out[0].n,
               pairs    ? gather_pair_rows
               : turned ? gather_turned_rows
                        : gather_panel_rows,
               &copy);
  return OPIPE_OK;
}

static opipe_status prepare_gather(cpu_prep *p) {
  const opipe_value *data = cpu_in(p, 0);
  const opipe_value *indices = cpu_in(p, 1);
  gather_plan *plan = CPU_PLAN(p, gather_plan);
  int64_t shape[2 * OPIPE_MAX_RANK];
  uint32_t rank = 0;
  if (plan == NULL)
    return cpu_nomem(p);
  CPU_TRY(index_type(p, 1));
  CPU_TRY(cpu_axis(p, opipe_attr_int(p->node, "axis", 0), data->rank, &plan->axis));
  plan->outer = 1;
  plan->inner = opipe_dtype_bits(data->dtype);
  plan->n = data->shape[plan->axis];
  plan->count = (int64_t)cpu_elems(indices);
  for (uint32_t i = 0; i < plan->axis; ++i) {
    plan->outer *= data->shape[i];
    shape[rank++] = data->shape[i];
  }
  for (uint32_t i = 0; i < indices->rank; ++i)
    shape[rank++] = indices->shape[i];
  for (uint32_t i = plan->axis + 1; i < data->rank; ++i) {
    plan->inner *= data->shape[i];
    shape[rank++] = data->shape[i];
  }
  if (plan->inner % 8 != 0) {
    return cpu_refuse(p, "gathers pieces of %lld bits of %s", (long long)plan->inner,
                      opipe_dtype_name(data->dtype));
  }
  plan->inner /= 8;
  CPU_TRY(cpu_expect(p, 0, data->dtype, shape, rank));
  const bool rows = p->fast && plan->outer == 1 && !cpu_is_param(p, 1);
  p->step->run = rows ? gather_rows_kernel : gather_kernel;
  const bool half = cpu_is_half(data->dtype) && (p->flags & OPIPE_COMPILE_OWNED) == 0;
  if (rows && data->rank == 2 && (data->dtype == OPIPE_FLOAT || half)) {
    p->step->panels = 1;
    plan->size = cpu_dtype_bytes(data->dtype);
    p->step->run = gather_table_kernel;
  }
  return OPIPE_OK;
}

/* out[i...] = data[i... with i[axis] replaced by indices[i...]] */
static opipe_status gather_elements_kernel(const cpu_call *call, opipe_error *err) {
  const gather_plan *plan = call->plan;
  const cpu_tensor *indices = &call->in[1];
  int64_t at[OPIPE_MAX_RANK] = {0};
  for (uint64_t i = 0; i < indices->n; ++i) {
    const int64_t index = cpu_index(indices, i);
    const int64_t along = index < 0 ? index + plan->n : index;
    int64_t from = 0;
    if (along < 0 || along >= plan->n)
      return bad_index(call, err, index, plan->n);
    for (uint32_t a = 0; a < indices->rank; ++a)
      from += (a == plan->axis ? along : at[a]) * plan->strides[a];
    memcpy((char *)call->out[0].data + i * plan->size,
           (const char *)call->in[0].data + from * plan->size, plan->size);
    for (uint32_t a = indices->rank; a > 0 && ++at[a - 1] == indices->shape[a - 1]; --a)
      at[a - 1] = 0;
  }
  return OPIPE_OK;
}

static opipe_status prepare_gather_elements(cpu_prep *p) {
  const opipe_value *data = cpu_in(p, 0);
  const opipe_value *indices = cpu_in(p, 1);
  gather_plan *plan = CPU_PLAN(p, gather_plan);
  int64_t *strides = CPU_POOL_ARRAY(p->pool, int64_t, OPIPE_MAX_RANK);
  if (plan == NULL || strides == NULL)
    return cpu_nomem(p);
  CPU_TRY(index_type(p, 1));
  CPU_TRY(cpu_axis(p, opipe_attr_int(p->node, "axis", 0), data->rank, &plan->axis));
  CPU_TRY(cpu_expect(p, 0, data->dtype, indices->shape, indices->rank));
  plan->size = cpu_dtype_bytes(data->dtype);
  if (plan->size == 0 || indices->rank != data->rank) {
    return cpu_refuse(p, "does not gather %s of rank %u by indices of rank %u",
                      opipe_dtype_name(data->dtype), data->rank, indices->rank);
  }
  for (uint32_t i = 0; i < data->rank; ++i) {
    if (i != plan->axis && indices->shape[i] > data->shape[i]) {
      return cpu_invalid(p, "indices have %lld entries along axis %u, data %lld",
                         (long long)indices->shape[i], i, (long long)data->shape[i]);
    }
  }
  opipe_dense_strides(data->shape, data->rank, strides);
  plan->strides = strides;
  plan->n = data->shape[plan->axis];
  p->step->run = gather_elements_kernel;
  return OPIPE_OK;
}

static opipe_status gather_nd_kernel(const cpu_call *call, opipe_error *err) {
  const gather_plan *plan = call->plan;
  const char *data = call->in[0].data;
  char *out = call->out[0].data;
  for (int64_t o = 0; o < plan->outer; ++o) {
    for (int64_t i = 0; i < plan->count; ++i) {
      int64_t from = o * plan->n;
      for (int64_t k = 0; k < plan->tuple; ++k) {
        const uint64_t entry = (uint64_t)((o * plan->count + i) * plan->tuple + k);
        const int64_t index = cpu_index(&call->in[1], entry);
        const int64_t at = index < 0 ? index + plan->limits[k] : index;
        if (at < 0 || at >= plan->limits[k])
          return bad_index(call, err, index, plan->limits[k]);
        from += at * plan->strides[k];
      }
      memcpy(out, data + from, (size_t)plan->inner);
      out += plan->inner;
    }
  }
  return OPIPE_OK;
}

static opipe_status prepare_gather_nd(cpu_prep *p) {
  const opipe_value *data = cpu_in(p, 0);
  const opipe_value *indices = cpu_in(p, 1);
  const int64_t batch = opipe_attr_int(p->node, "batch_dims", 0);
  gather_plan *plan = CPU_PLAN(p, gather_plan);
  int64_t *strides = CPU_POOL_ARRAY(p->pool, int64_t, OPIPE_MAX_RANK);
  int64_t shape[2 * OPIPE_MAX_RANK];
  uint32_t rank = 0;
  if (plan == NULL || strides == NULL)
    return cpu_nomem(p);
  CPU_TRY(index_type(p, 1));
  plan->size = cpu_dtype_bytes(data->dtype);
  if (plan->size == 0 || indices->rank == 0 || batch < 0 || batch >= (int64_t)indices->rank ||
      batch > (int64_t)data->rank) {
    return cpu_refuse(p, "does not gather %s with %lld batch axes", opipe_dtype_name(data->dtype),
                      (long long)batch);
  }
  plan->tuple = indices->shape[indices->rank - 1];
  if (plan->tuple > (int64_t)data->rank - batch) {
    return cpu_invalid(p, "an index has %lld entries, the data %u axes", (long long)plan->tuple,
                       data->rank);
  }
  plan->outer = 1;
  plan->count = 1;
  for (uint32_t i = 0; i + 1 < indices->rank; ++i) {
    *((int64_t)i < batch ? &plan->outer : &plan->count) *= indices->shape[i];
    shape[rank++] = indices->shape[i];
    if ((int64_t)i < batch && indices->shape[i] != data->shape[i])
      return cpu_invalid(p, "batch axis %u differs between data and indices", i);
  }
  const uint32_t first = (uint32_t)batch;
  plan->inner = plan->size;
  for (uint32_t i = first + (uint32_t)plan->tuple; i < data->rank; ++i) {
    plan->inner *= data->shape[i];
    shape[rank++] = data->shape[i];
  }
  plan->n = plan->inner;
  for (uint32_t i = (uint32_t)plan->tuple; i > 0; --i) {
    strides[i - 1] = plan->n;
    plan->n *= data->shape[first + i - 1];
  }
  plan->strides = strides;
  plan->limits = data->shape + first;
  p->step->run = gather_nd_kernel;
  return cpu_expect(p, 0, data->dtype, shape, rank);
}

/* ---- OneHot ---- */

typedef struct onehot_plan {
  int64_t outer, depth, inner;
  uint32_t size;
} onehot_plan;

static opipe_status onehot_kernel(const cpu_call *call, opipe_error *err) {
  const onehot_plan *plan = call->plan;
  const char *off = call->in[2].data;
  const char *on = off + plan->size;
  char *out = call->out[0].data;
  (void)err;
  for (int64_t o = 0; o < plan->outer; ++o) {
    for (int64_t d = 0; d < plan->depth; ++d) {
      for (int64_t i = 0; i < plan->inner; ++i) {
        const double index = cpu_number(&call->in[0], (uint64_t)(o * plan->inner + i));
        const double at = index < 0 ? index + (double)plan->depth : index;
        memcpy(out, at == (double)d ? on : off, plan->size);
        out += plan->size;
      }
    }
  }
  return OPIPE_OK;
}

static opipe_status prepare_onehot(cpu_prep *p) {
  const opipe_value *indices = cpu_in(p, 0);
  const opipe_value *values = cpu_in(p, 2);
  const opipe_value *out = cpu_out(p, 0);
  onehot_plan *plan = CPU_PLAN(p, onehot_plan);
  uint32_t axis = 0;
  if (plan == NULL)
    return cpu_nomem(p);
  CPU_TRY(cpu_axis(p, opipe_attr_int(p->node, "axis", -1), indices->rank + 1, &axis));
  plan->size = cpu_dtype_bytes(values->dtype);
  if (plan->size == 0 || cpu_elems(values) != 2 || out->dtype != values->dtype ||
      out->rank != indices->rank + 1 ||
      !(cpu_is_float(indices->dtype) || cpu_is_int(indices->dtype))) {
    return cpu_refuse(p, "values %s, indices %s, rank %u", opipe_dtype_name(values->dtype),
                      opipe_dtype_name(indices->dtype), out->rank);
  }
  plan->outer = 1;
  plan->inner = 1;
  plan->depth = out->shape[axis];
  for (uint32_t i = 0; i < indices->rank; ++i) {
    *(i < axis ? &plan->outer : &plan->inner) *= indices->shape[i];
    if (out->shape[i < axis ? i : i + 1] != indices->shape[i])
      return cpu_invalid(p, "output and indices differ along axis %u", i);
  }
  p->step->run = onehot_kernel;
  return OPIPE_OK;
}

static const cpu_op ops[] = {
    {"Gather", NULL, prepare_gather, 2, 2, 1, 0, 0},
    {"GatherElements", NULL, prepare_gather_elements, 2, 2, 1, 0, 0},
    {"GatherND", NULL, prepare_gather_nd, 2, 2, 1, 0, 0},
    {"OneHot", NULL, prepare_onehot, 3, 3, 1, 0, 0},
};

const cpu_op_family cpu_family_index = {ops, CPU_COUNT_OF(ops)};
