/* SPDX-License-Identifier: Apache-2.0 */
/* Reading and writing by index: GatherElements, GatherND, ScatterElements, ScatterND, OneHot.
 * Elements that are written twice are written in rising order of the index. */
#include "ops/rule.h"

static opipe_status check_indices(const cuda_rule *r) {
  const opipe_value *data = cuda_in(r, 0), *indices = cuda_in(r, 1);
  return (indices->dtype == OPIPE_INT32 || indices->dtype == OPIPE_INT64) && cuda_size(data) != 0
             ? OPIPE_OK
             : cuda_refuse(r, OPIPE_E_UNSUPPORTED, "%s by indices of %s",
                           opipe_dtype_name(data->dtype), opipe_dtype_name(indices->dtype));
}

/* Along every axis but one there are no more indices than elements. */
static opipe_status check_elements(const cuda_rule *r, uint32_t axis) {
  const opipe_value *data = cuda_in(r, 0), *indices = cuda_in(r, 1);
  for (uint32_t i = 0; i < data->rank; ++i) {
    if (i != axis && indices->shape[i] > data->shape[i]) {
      return cuda_refuse(r, OPIPE_E_INVALID, "axis %u has %lld indices for %lld elements", i,
                         (long long)indices->shape[i], (long long)data->shape[i]);
    }
  }
  return OPIPE_OK;
}

static opipe_status emit_pick(cuda_rule *r, cuda_pick_args *args) {
  const opipe_value *data = cuda_in(r, 0);
  cuda_launch launch;
  args->size = cuda_size(data);
  args->index_bytes = cuda_size(cuda_in(r, 1));
  args->y = cuda_at_out(r, 0);
  args->data = cuda_at_in(r, 0);
  args->indices = cuda_at_in(r, 1);
  CUDA_TRY(cuda_at_status(r, &args->status, &args->node));
  return cuda_plan_pick(args, &launch) ? cuda_emit(r, &launch) : cuda_no_kernel(r, data);
}

static opipe_status rule_gather_elements(cuda_rule *r) {
  const opipe_value *data = cuda_in(r, 0), *indices = cuda_in(r, 1);
  cuda_pick_args args = {.form = CUDA_SCATTER_ELEMENTS, .rank = data->rank};
  CUDA_TRY(check_indices(r));
  CUDA_TRY(cuda_axis(r, opipe_attr_int(r->node, "axis", 0), data->rank, &args.axis));
  CUDA_TRY(cuda_expect(r, 0, data->dtype, indices->shape, indices->rank));
  if (indices->rank != data->rank || data->rank > CUDA_AXES) {
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "indices of rank %u for data of rank %u",
                       indices->rank, data->rank);
  }
  CUDA_TRY(check_elements(r, args.axis));
  memcpy(args.index_shape, indices->shape, data->rank * sizeof args.index_shape[0]);
  memcpy(args.out_shape, data->shape, data->rank * sizeof args.out_shape[0]);
  args.n = (int64_t)cuda_elems(indices);
  return emit_pick(r, &args);
}

static opipe_status rule_gather_nd(cuda_rule *r) {
  const opipe_value *data = cuda_in(r, 0), *indices = cuda_in(r, 1);
  const int64_t batch = opipe_attr_int(r->node, "batch_dims", 0);
  cuda_pick_args args = {.form = CUDA_SCATTER_TUPLES, .outer = 1, .n = 1};
  int64_t shape[2 * OPIPE_MAX_RANK];
  uint32_t rank = 0;
  CUDA_TRY(check_indices(r));
  if (indices->rank == 0 || batch < 0 || batch >= (int64_t)indices->rank ||
      batch > (int64_t)data->rank)
    return cuda_refuse(r, OPIPE_E_INVALID, "%lld batch axes", (long long)batch);
  const uint32_t first = (uint32_t)batch;
  const int64_t tuple = indices->shape[indices->rank - 1];
  if (tuple > (int64_t)(data->rank - first) || tuple > CUDA_AXES) {
    return cuda_refuse(r, OPIPE_E_INVALID, "an index of %lld entries, the data has %u axes",
                       (long long)tuple, data->rank);
  }
  args.rank = (uint32_t)tuple;
  for (uint32_t i = 0; i + 1 < indices->rank; ++i) {
    *(i < first ? &args.outer : &args.n) *= indices->shape[i];
    shape[rank++] = indices->shape[i];
    if (i < first && indices->shape[i] != data->shape[i])
      return cuda_refuse(r, OPIPE_E_INVALID, "batch axis %u differs between data and indices", i);
  }
  for (uint32_t i = 0; i < args.rank; ++i)
    args.out_shape[i] = data->shape[first + i];
  for (uint32_t i = first + args.rank; i < data->rank; ++i)
    shape[rank++] = data->shape[i];
  args.inner = cuda_extent(data, first + args.rank, data->rank);
  CUDA_TRY(cuda_expect(r, 0, data->dtype, shape, rank));
  return emit_pick(r, &args);
}

opipe_status cuda_emit_scatter(cuda_rule *r, cuda_scatter_args *args, uint32_t dtype,
                               uint32_t out_dtype) {
  cuda_launch launches[CUDA_LAUNCHES];
  args->workspace = cuda_at(r, CUDA_AT_WORKSPACE, 0);
  CUDA_TRY(cuda_at_status(r, &args->status, &args->node));
  const uint32_t n = cuda_plan_scatter(args, dtype, out_dtype, launches);
  if (n == 0) {
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "no kernel writes %s by %lld indices",
                       opipe_dtype_name(dtype), (long long)args->n);
  }
  CUDA_TRY(cuda_emit_all(r, launches, n));
  cuda_want_workspace(r, cuda_scatter_workspace(args));
  return OPIPE_OK;
}

/* Y = data, then updates. */
static opipe_status scatter(cuda_rule *r, cuda_scatter_args *args) {
  const opipe_value *data = cuda_in(r, 0);
  CUDA_TRY(cuda_emit_copy(r, r->node->out[0], r->node->in[0], data->n_bytes));
  if (args->n == 0 || args->inner == 0 || cuda_elems(data) == 0)
    return OPIPE_OK;
  args->index_bytes = cuda_size(cuda_in(r, 1));
  args->out = cuda_at_out(r, 0);
  args->indices = cuda_at_in(r, 1);
  args->updates = cuda_at_in(r, 2);
  return cuda_emit_scatter(r, args, data->dtype, data->dtype);
}

static opipe_status read_scatter(const cuda_rule *r, cuda_scatter_args *args) {
  static const char *const kinds[] = {"none", "add", "mul", "max", "min"};
  const opipe_value *data = cuda_in(r, 0);
  const char *reduction = opipe_attr_string(r->node, "reduction", "none");
  while (args->kind < 5 && strcmp(kinds[args->kind], reduction) != 0)
    ++args->kind;
  if (args->kind == 5)
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "reduction '%.20s'", reduction);
  CUDA_TRY(check_indices(r));
  if (cuda_in(r, 2)->dtype != data->dtype) {
    return cuda_refuse(r, OPIPE_E_INVALID, "updates of %s for %s",
                       opipe_dtype_name(cuda_in(r, 2)->dtype), opipe_dtype_name(data->dtype));
  }
  return cuda_expect_like(r, 0, data);
}

static opipe_status rule_scatter_elements(cuda_rule *r) {
  const opipe_value *data = cuda_in(r, 0), *indices = cuda_in(r, 1), *updates = cuda_in(r, 2);
  cuda_scatter_args args = {.form = CUDA_SCATTER_ELEMENTS, .rank = data->rank, .inner = 1};
  CUDA_TRY(read_scatter(r, &args));
  CUDA_TRY(cuda_axis(r, opipe_attr_int(r->node, "axis", 0), data->rank, &args.axis));
  if (!cuda_same_shape(indices, updates) || indices->rank != data->rank || data->rank > CUDA_AXES)
    return cuda_refuse(r, OPIPE_E_INVALID, "data, indices and updates have other ranks or shapes");
  CUDA_TRY(check_elements(r, args.axis));
  memcpy(args.index_shape, indices->shape, data->rank * sizeof args.index_shape[0]);
  memcpy(args.out_shape, data->shape, data->rank * sizeof args.out_shape[0]);
  args.n = (int64_t)cuda_elems(indices);
  return scatter(r, &args);
}

static opipe_status rule_scatter_nd(cuda_rule *r) {
  const opipe_value *data = cuda_in(r, 0), *indices = cuda_in(r, 1);
  cuda_scatter_args args = {.form = CUDA_SCATTER_TUPLES};
  CUDA_TRY(read_scatter(r, &args));
  const int64_t tuple = indices->rank > 0 ? indices->shape[indices->rank - 1] : -1;
  if (tuple < 0 || tuple > (int64_t)data->rank || tuple > CUDA_AXES) {
    return cuda_refuse(r, OPIPE_E_INVALID, "an index of %lld entries, the data has %u axes",
                       (long long)tuple, data->rank);
  }
  args.rank = (uint32_t)tuple;
  args.n = cuda_extent(indices, 0, indices->rank - 1);
  args.inner = cuda_extent(data, args.rank, data->rank);
  for (uint32_t i = 0; i < args.rank; ++i)
    args.out_shape[i] = data->shape[i];
  if (cuda_elems(cuda_in(r, 2)) != (uint64_t)(args.n * args.inner)) {
    return cuda_refuse(r, OPIPE_E_INVALID, "%llu updates for %lld indices of %lld elements",
                       (unsigned long long)cuda_elems(cuda_in(r, 2)), (long long)args.n,
                       (long long)args.inner);
  }
  return scatter(r, &args);
}

static opipe_status rule_one_hot(cuda_rule *r) {
  const opipe_value *indices = cuda_in(r, 0), *values = cuda_in(r, 2), *y = cuda_out(r, 0);
  uint32_t axis = 0;
  cuda_launch launch;
  CUDA_TRY(cuda_axis(r, opipe_attr_int(r->node, "axis", -1), indices->rank + 1, &axis));
  if (cuda_elems(values) != 2 || y->dtype != values->dtype || y->rank != indices->rank + 1)
    return cuda_refuse(r, OPIPE_E_INVALID, "its values or its output do not fit");
  for (uint32_t i = 0; i < indices->rank; ++i) {
    if (y->shape[i < axis ? i : i + 1] != indices->shape[i])
      return cuda_refuse(r, OPIPE_E_INVALID, "output and indices differ along axis %u", i);
  }
  const cuda_one_hot_args args = {.y = cuda_at_out(r, 0),
                                  .indices = cuda_at_in(r, 0),
                                  .values = cuda_at_in(r, 2),
                                  .outer = cuda_extent(indices, 0, axis),
                                  .depth = y->shape[axis],
                                  .inner = cuda_extent(indices, axis, indices->rank),
                                  .size = cuda_size(values)};
  return cuda_plan_one_hot(&args, indices->dtype, &launch) ? cuda_emit(r, &launch)
                                                           : cuda_no_kernel(r, indices);
}

static const cuda_row rows[] = {{"GatherElements", rule_gather_elements, 2, 2, 1},
                                {"GatherND", rule_gather_nd, 2, 2, 1},
                                {"ScatterElements", rule_scatter_elements, 3, 3, 1},
                                {"ScatterND", rule_scatter_nd, 3, 3, 1},
                                {"OneHot", rule_one_hot, 3, 3, 1}};

const cuda_family cuda_index_family = {"", CUDA_ROWS(rows)};
