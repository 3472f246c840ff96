/* SPDX-License-Identifier: Apache-2.0 */
/* A data set with another number of rows; see kit.h. */
#include <stdlib.h>

#include "tests/matrix/kit.h"

/* The batch's name and rows: dimension 0 of the first input where that is free. */
typedef struct batch {
  const char *name; /* NULL: it has none */
  int64_t rows;     /* of the set that is cut up */
} batch;

static const char *name_of(const opipe_tensor_info *info, uint32_t axis) {
  const char *name = info->dim_names == NULL ? NULL : info->dim_names[axis];
  return name == NULL || name[0] == '\0' ? NULL : name;
}

/* The axis of an input that carries the batch; its rank: none. */
static uint32_t axis_of(const batch *b, const opipe_tensor_info *info, const opi_value *v) {
  for (uint32_t d = 0; d < info->rank; ++d) {
    const char *name = name_of(info, d);
    const bool same =
        b->name == NULL ? d == 0 && name == NULL : name != NULL && strcmp(name, b->name) == 0;
    if (info->shape[d] < 0 && v->shape[d] == b->rows && same)
      return d;
  }
  return info->rank;
}

/* Row r is row r % n of the set, from its second coming on turned by some elements: no two are
 * alike unless a row is a single number. */
static opipe_status stack(opi_arena *arena, const opi_value *from, uint32_t axis, int64_t rows,
                          opi_value *to) {
  const size_t elem = opi_test_dtype_bytes(from->dtype), n = (size_t)from->shape[axis];
  size_t outer = 1, inner = 1;
  for (uint32_t d = 0; d < axis; ++d)
    outer *= (size_t)from->shape[d];
  for (uint32_t d = axis + 1; d < (uint32_t)from->rank; ++d)
    inner *= (size_t)from->shape[d];
  int64_t *shape = opi_arena_copy(arena, from->shape, (size_t)from->rank * sizeof *shape);
  char *data = opi_arena_alloc(arena, outer * (size_t)rows * inner * elem);
  if (shape == NULL || data == NULL || elem == 0)
    return OPIPE_E_NOMEM;
  shape[axis] = rows;
  for (size_t i = 0; i < outer * (size_t)rows; ++i) {
    const size_t o = i / (size_t)rows, r = i % (size_t)rows;
    const char *row = (const char *)from->data + (o * n + r % n) * inner * elem;
    const size_t turned = r / n % (inner == 0 ? 1 : inner) * elem;
    memcpy(data + i * inner * elem, row + turned, inner * elem - turned);
    memcpy(data + (i + 1) * inner * elem - turned, row, turned);
  }
  *to = *from;
  to->shape = shape;
  to->data = data;
  to->n_bytes = outer * (size_t)rows * inner * elem;
  return OPIPE_OK;
}

opipe_status mx_with_rows(mx_model *m, mx_folder *folder, uint32_t set, int64_t rows, mx_set *out) {
  opipe_tensor_info info = {.struct_size = sizeof info};
  const mx_set *from = &folder->sets[set];
  batch b = {.rows = 0};
  *out = (mx_set){.n_inputs = from->n_inputs};
  for (uint32_t i = 0; m->api->model_input(m->file, i, &info, NULL) == OPIPE_OK; ++i) {
    const opi_value *v = mx_input(m, from, info.name);
    if (v == NULL || (uint32_t)v->rank != info.rank || info.rank == 0)
      continue;
    if (b.rows == 0 && info.shape[0] < 0)
      b = (batch){.name = name_of(&info, 0), .rows = v->shape[0]};
  }
  for (uint32_t i = 0; b.rows > 0 && m->api->model_input(m->file, i, &info, NULL) == OPIPE_OK;
       ++i) {
    const opi_value *v = mx_input(m, from, info.name);
    if (v == NULL)
      continue;
    opi_value *to = &out->inputs[v - from->inputs];
    const uint32_t axis = (uint32_t)v->rank == info.rank ? axis_of(&b, &info, v) : info.rank;
    *to = *v;
    if (axis < info.rank && stack(&folder->arena, v, axis, rows, to) != OPIPE_OK)
      return opi_fail(&m->err, OPIPE_E_NOMEM, "%lld rows of '%s'", (long long)rows, info.name);
  }
  return b.rows > 0 ? OPIPE_OK
                    : opi_fail(&m->err, OPIPE_E_UNSUPPORTED, "%s: dimension 0 of no input is free",
                               folder->name);
}
