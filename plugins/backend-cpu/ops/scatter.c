/* SPDX-License-Identifier: Apache-2.0 */
/* Writing by index: ScatterElements, ScatterND, TensorScatter, Append.
 *
 * The data is copied (or overwritten in place), then updates are applied one after the other in
 * index order, so that repeated indices give the same bits on any number of threads.
 */
#include "loop.h"

typedef enum scatter_kind {
  SCATTER_NONE,
  SCATTER_ADD,
  SCATTER_MUL,
  SCATTER_MAX,
  SCATTER_MIN
} scatter_kind;

typedef struct scatter_plan {
  scatter_kind kind;
  cpu_class math;
  uint32_t size;
  uint32_t axis;
  int64_t tuple; /* ScatterND: entries of an index */
  int64_t inner; /* ScatterND: elements behind one index */
  int64_t strides[OPIPE_MAX_RANK];
} scatter_plan;

#define COMBINE(FIELD)                                                     \
  switch (kind) {                                                          \
    case SCATTER_ADD:                                                      \
      a->FIELD[0] = a->FIELD[0] + b->FIELD[0];                             \
      break;                                                               \
    case SCATTER_MUL:                                                      \
      a->FIELD[0] = a->FIELD[0] * b->FIELD[0];                             \
      break;                                                               \
    case SCATTER_MAX:                                                      \
      a->FIELD[0] = a->FIELD[0] > b->FIELD[0] ? a->FIELD[0] : b->FIELD[0]; \
      break;                                                               \
    default:                                                               \
      a->FIELD[0] = a->FIELD[0] < b->FIELD[0] ? a->FIELD[0] : b->FIELD[0]; \
      break;                                                               \
  }

static void combine(cpu_class math, scatter_kind kind, cpu_run_buffer *a, const cpu_run_buffer *b) {
  const bool ordered = kind == SCATTER_MAX || kind == SCATTER_MIN;
  if (math == CPU_CLASS_F32) {
    COMBINE(f32)
  } else if (math == CPU_CLASS_F64) {
    COMBINE(f64)
  } else if (math == CPU_CLASS_U64 || !ordered) {
    COMBINE(u64)
  } else {
    COMBINE(i64)
  }
}

/* Applies n updates that lie next to each other to n neighbours of the output. */
static void apply(const cpu_call *call, const scatter_plan *plan, int64_t to, int64_t from,
                  int64_t n) {
  const cpu_tensor *out = &call->out[0];
  const cpu_tensor *updates = &call->in[2];
  if (plan->kind == SCATTER_NONE) {
    memcpy((char *)out->data + to * plan->size, (const char *)updates->data + from * plan->size,
           (size_t)n * plan->size);
    return;
  }
  for (int64_t k = 0; k < n; ++k) {
    cpu_run_buffer a;
    cpu_run_buffer b;
    const void *x = cpu_fetch(plan->math, out->dtype, out->data, to + k, 1, 1, &a);
    const void *y = cpu_fetch(plan->math, out->dtype, updates->data, from + k, 1, 1, &b);
    const size_t size = plan->math == CPU_CLASS_F32 ? 4 : 8;
    memmove(&a, x, size);
    memmove(&b, y, size);
    combine(plan->math, plan->kind, &a, &b);
    cpu_store(plan->math, out->dtype, &a, out->data, to + k, 1);
  }
}

static opipe_status locate(const cpu_call *call, opipe_error *err, uint64_t entry, int64_t n,
                           int64_t *out_at) {
  const int64_t index = cpu_index(&call->in[1], entry);
  *out_at = index < 0 ? index + n : index;
  if (*out_at < 0 || *out_at >= n) {
    return cpu_fail(call, err, OPIPE_E_INVALID, "index %lld is outside [-%lld, %lld)",
                    (long long)index, (long long)n, (long long)n);
  }
  return OPIPE_OK;
}

static void copy_data(const cpu_call *call) {
  if (call->out[0].data != call->in[0].data && call->out[0].n_bytes > 0)
    memcpy(call->out[0].data, call->in[0].data, (size_t)call->out[0].n_bytes);
}

static opipe_status elements_kernel(const cpu_call *call, opipe_error *err) {
  const scatter_plan *plan = call->plan;
  const cpu_tensor *indices = &call->in[1];
  const int64_t n = call->out[0].shape[plan->axis];
  int64_t at[OPIPE_MAX_RANK] = {0};
  copy_data(call);
  for (uint64_t i = 0; i < indices->n; ++i) {
    int64_t along = 0;
    int64_t to = 0;
    CPU_TRY(locate(call, err, i, n, &along));
    for (uint32_t a = 0; a < indices->rank; ++a)
      to += (a == plan->axis ? along : at[a]) * plan->strides[a];
    apply(call, plan, to, (int64_t)i, 1);
    for (uint32_t a = indices->rank; a > 0 && ++at[a - 1] == indices->shape[a - 1]; --a)
      at[a - 1] = 0;
  }
  return OPIPE_OK;
}

static opipe_status nd_kernel(const cpu_call *call, opipe_error *err) {
  const scatter_plan *plan = call->plan;
  const int64_t count =
      plan->inner > 0 ? (int64_t)call->in[2].n / plan->inner : 0; /* index tuples */
  copy_data(call);
  for (int64_t i = 0; i < count; ++i) {
    int64_t to = 0;
    for (int64_t k = 0; k < plan->tuple; ++k) {
      int64_t at = 0;
      CPU_TRY(locate(call, err, (uint64_t)(i * plan->tuple + k), call->out[0].shape[k], &at));
      to += at * plan->strides[k];
    }
    apply(call, plan, to, i * plan->inner, plan->inner);
  }
  return OPIPE_OK;
}

static opipe_status prepare_common(cpu_prep *p, scatter_plan **out_plan) {
  static const char *const names[] = {"none", "add", "mul", "max", "min"};
  const opipe_value *data = cpu_in(p, 0);
  const opipe_value *indices = cpu_in(p, 1);
  const char *reduction = opipe_attr_string(p->node, "reduction", "none");
  scatter_plan *plan = CPU_PLAN(p, scatter_plan);
  uint32_t kind = 0;
  if (plan == NULL)
    return cpu_nomem(p);
  while (kind < CPU_COUNT_OF(names) && strcmp(names[kind], reduction) != 0)
    ++kind;
  plan->size = cpu_dtype_bytes(data->dtype);
  const bool numbers = cpu_is_float(data->dtype) || cpu_is_int(data->dtype);
  if (kind == CPU_COUNT_OF(names) || plan->size == 0 || (kind != SCATTER_NONE && !numbers))
    return cpu_refuse(p, "reduction '%.20s' of %s", reduction, opipe_dtype_name(data->dtype));
  if ((indices->dtype != OPIPE_INT64 && indices->dtype != OPIPE_INT32) ||
      cpu_in(p, 2)->dtype != data->dtype) {
    return cpu_invalid(p, "indices are %s, updates %s for data %s",
                       opipe_dtype_name(indices->dtype), opipe_dtype_name(cpu_in(p, 2)->dtype),
                       opipe_dtype_name(data->dtype));
  }
  CPU_TRY(cpu_expect_like(p, 0, data));
  plan->kind = (scatter_kind)kind;
  plan->math = cpu_class_of(data->dtype);
  opipe_dense_strides(data->shape, data->rank, plan->strides);
  p->step->inplace = 1;
  *out_plan = plan;
  return OPIPE_OK;
}

static opipe_status prepare_elements(cpu_prep *p) {
  const opipe_value *data = cpu_in(p, 0);
  const opipe_value *indices = cpu_in(p, 1);
  const opipe_value *updates = cpu_in(p, 2);
  scatter_plan *plan = NULL;
  CPU_TRY(prepare_common(p, &plan));
  CPU_TRY(cpu_axis(p, opipe_attr_int(p->node, "axis", 0), data->rank, &plan->axis));
  if (indices->rank != data->rank || updates->rank != data->rank) {
    return cpu_invalid(p, "data, indices and updates have ranks %u, %u and %u", data->rank,
                       indices->rank, updates->rank);
  }
  for (uint32_t i = 0; i < data->rank; ++i) {
    if (updates->shape[i] != indices->shape[i] ||
        (i != plan->axis && indices->shape[i] > data->shape[i])) {
      return cpu_invalid(p, "axis %u: %lld indices, %lld updates, %lld elements", i,
                         (long long)indices->shape[i], (long long)updates->shape[i],
                         (long long)data->shape[i]);
    }
  }
  p->step->run = elements_kernel;
  return OPIPE_OK;
}

static opipe_status prepare_nd(cpu_prep *p) {
  const opipe_value *data = cpu_in(p, 0);
  const opipe_value *indices = cpu_in(p, 1);
  const opipe_value *updates = cpu_in(p, 2);
  scatter_plan *plan = NULL;
  CPU_TRY(prepare_common(p, &plan));
  if (indices->rank == 0 || indices->shape[indices->rank - 1] > (int64_t)data->rank)
    return cpu_invalid(p, "an index has more entries than the data's %u axes", data->rank);
  plan->tuple = indices->shape[indices->rank - 1];
  plan->inner = 1;
  for (uint32_t i = (uint32_t)plan->tuple; i < data->rank; ++i)
    plan->inner *= data->shape[i];
  uint64_t tuples = 1;
  for (uint32_t i = 0; i + 1 < indices->rank; ++i)
    tuples *= (uint64_t)indices->shape[i];
  if (cpu_elems(updates) != tuples * (uint64_t)plan->inner) {
    return cpu_invalid(p, "%llu updates for %llu indices of %lld elements",
                       (unsigned long long)cpu_elems(updates), (unsigned long long)tuples,
                       (long long)plan->inner);
  }
  p->step->run = nd_kernel;
  return OPIPE_OK;
}

/* ---- TensorScatter ---- */

typedef struct write_plan {
  int64_t rows;   /* of the cache */
  int64_t planes; /* of a row: the axes between the first and the one that is written */
  int64_t n, m;   /* entries along that axis, of the cache and of the update */
  int64_t inner;  /* bytes of an entry */
  bool circular;
} write_plan;

/* Where a row's update begins, 0 to n - 1. */
static opipe_status find_start(const cpu_call *call, opipe_error *err, int64_t row,
                               int64_t *out_first) {
  const write_plan *plan = call->plan;
  const bool placed = call->n_in > 2 && call->in[2].data != NULL;
  const int64_t first = placed ? cpu_index(&call->in[2], (uint64_t)row) : 0;
  *out_first = first;
  if (plan->circular && plan->n > 0) {
    *out_first = first % plan->n + (first % plan->n < 0 ? plan->n : 0);
    return OPIPE_OK;
  }
  if (first >= 0 && first <= plan->n - plan->m)
    return OPIPE_OK;
  return cpu_fail(call, err, OPIPE_E_INVALID,
                  "row %lld is written from %lld on, 0 to %lld are there", (long long)row,
                  (long long)first, (long long)(plan->n - plan->m));
}

static opipe_status write_kernel(const cpu_call *call, opipe_error *err) {
  const write_plan *plan = call->plan;
  const char *from = call->in[1].data;
  char *to = call->out[0].data;
  copy_data(call);
  for (int64_t r = 0; r < plan->rows; ++r) {
    int64_t first = 0;
    CPU_TRY(find_start(call, err, r, &first));
    const int64_t rest = plan->n - first, head = plan->m < rest ? plan->m : rest;
    for (int64_t p = 0; p < plan->planes; ++p) {
      memcpy(to + first * plan->inner, from, (size_t)(head * plan->inner));
      memcpy(to, from + head * plan->inner, (size_t)((plan->m - head) * plan->inner));
      from += plan->m * plan->inner;
      to += plan->n * plan->inner;
    }
  }
  return OPIPE_OK;
}

static opipe_status prepare_write(cpu_prep *p) {
  const opipe_value *past = cpu_in(p, 0), *update = cpu_in(p, 1), *where = cpu_in(p, 2);
  write_plan *plan = CPU_PLAN(p, write_plan);
  uint32_t axis = 0;
  if (plan == NULL)
    return cpu_nomem(p);
  CPU_TRY(cpu_axis(p, opipe_attr_int(p->node, "axis", -2), past->rank, &axis));
  if (axis == 0 || update->rank != past->rank || update->dtype != past->dtype ||
      (where != NULL && ((where->dtype != OPIPE_INT64 && where->dtype != OPIPE_INT32) ||
                         cpu_elems(where) != (uint64_t)past->shape[0])))
    return cpu_invalid(p, "past, update and write_indices do not fit along axis %u", axis);
  plan->planes = 1;
  plan->inner = opipe_dtype_bits(past->dtype);
  for (uint32_t a = 0; a < past->rank; ++a) {
    if (a == axis ? update->shape[a] > past->shape[a] : update->shape[a] != past->shape[a]) {
      return cpu_invalid(p, "axis %u of the update is %lld, of the cache %lld", a,
                         (long long)update->shape[a], (long long)past->shape[a]);
    }
    if (a > 0 && a != axis)
      *(a < axis ? &plan->planes : &plan->inner) *= past->shape[a];
  }
  if (plan->inner % 8 != 0) {
    return cpu_refuse(p, "writes pieces of %lld bits of %s", (long long)plan->inner,
                      opipe_dtype_name(past->dtype));
  }
  plan->inner /= 8;
  plan->rows = past->shape[0];
  plan->n = past->shape[axis];
  plan->m = update->shape[axis];
  plan->circular = strcmp(opipe_attr_string(p->node, "mode", "linear"), "circular") == 0;
  p->step->run = write_kernel;
  p->step->inplace = 1;
  return cpu_expect_like(p, 0, past);
}

/* ---- Append ---- */

typedef struct append_plan {
  int64_t batch, heads;
  int64_t past, fresh, rows; /* of a head: before, new, in the result */
  int64_t inner;             /* bytes of a row */
} append_plan;

/* One head's rows. The result may lie where the past does. */
static void append_rows(const append_plan *plan, int64_t before, const char *past,
                        const char *fresh, char *out) {
  const int64_t end = before + plan->fresh, inner = plan->inner;
  if (out != past)
    memcpy(out, past, (size_t)(before * inner));
  memcpy(out + before * inner, fresh, (size_t)(plan->fresh * inner));
  if (plan->rows > plan->past)
    memset(out + end * inner, 0, (size_t)((plan->rows - end) * inner));
  else if (out != past)
    memcpy(out + end * inner, past + end * inner, (size_t)((plan->rows - end) * inner));
}

static opipe_status append_kernel(const cpu_call *call, opipe_error *err) {
  const append_plan *plan = call->plan;
  const int64_t room = plan->rows - plan->fresh, most = plan->past < room ? plan->past : room;
  const char *past = call->in[0].data, *fresh = call->in[1].data;
  char *out = call->out[0].data;
  for (int64_t b = 0; b < plan->batch; ++b) {
    const int64_t before = cpu_index(&call->in[2], (uint64_t)b);
    if (before < 0 || before > most) {
      return cpu_fail(call, err, OPIPE_E_INVALID,
                      "sequence %lld has %lld rows before the new ones, 0 to %lld are possible",
                      (long long)b, (long long)before, (long long)most);
    }
    for (int64_t h = 0; h < plan->heads; ++h) {
      append_rows(plan, before, past, fresh, out);
      past += plan->past * plan->inner;
      fresh += plan->fresh * plan->inner;
      out += plan->rows * plan->inner;
    }
  }
  return OPIPE_OK;
}

static opipe_status prepare_append(cpu_prep *p) {
  const opipe_value *past = cpu_in(p, 0), *fresh = cpu_in(p, 1), *before = cpu_in(p, 2);
  append_plan *plan = CPU_PLAN(p, append_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  plan->rows = opipe_attr_int(p->node, "rows", 0);
  bool fits = past->rank == 4 && fresh->rank == 4 && fresh->dtype == past->dtype &&
              (before->dtype == OPIPE_INT64 || before->dtype == OPIPE_INT32) &&
              cpu_elems(before) == (uint64_t)past->shape[0];
  for (uint32_t d = 0; fits && d < 4; ++d) {
    fits = d == 2 ? past->shape[d] <= plan->rows && fresh->shape[d] <= plan->rows
                  : past->shape[d] == fresh->shape[d];
  }
  if (!fits)
    return cpu_invalid(p, "past and new rows do not make %lld rows", (long long)plan->rows);
  plan->batch = past->shape[0];
  plan->heads = past->shape[1];
  plan->past = past->shape[2];
  plan->fresh = fresh->shape[2];
  const int64_t shape[4] = {plan->batch, plan->heads, plan->rows, past->shape[3]};
  const int64_t bits = past->shape[3] * opipe_dtype_bits(past->dtype);
  if (bits % 8 != 0) {
    return cpu_refuse(p, "writes rows of %lld bits of %s", (long long)bits,
                      opipe_dtype_name(past->dtype));
  }
  plan->inner = bits / 8;
  p->step->run = append_kernel;
  p->step->inplace = plan->rows == plan->past ? 1 : 0;
  return cpu_expect(p, 0, past->dtype, shape, 4);
}

static const cpu_op ops[] = {
    {"ScatterElements", NULL, prepare_elements, 3, 3, 1, 0, 0},
    {"ScatterND", NULL, prepare_nd, 3, 3, 1, 0, 0},
    {"TensorScatter", NULL, prepare_write, 2, 3, 1, 0, 0},
    {"Append", "opipe", prepare_append, 3, 3, 1, 0, 0},
};

const cpu_op_family cpu_family_scatter = {ops, CPU_COUNT_OF(ops)};
