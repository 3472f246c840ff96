/* SPDX-License-Identifier: Apache-2.0 */
/* Strided copies: the trailing dense dimensions form one block, the leading ones are counted like
 * an odometer. */
#include "runtime/base/strided.h"

#include <string.h>

static const uint64_t REACH_MOST = UINT64_C(1) << 62;

/* Adds the bytes that one dimension may move an address by, one step more than its elements do. */
static bool reaches(const opipe_tensor *t, int32_t d, uint64_t *io_bytes) {
  const int64_t stride = t->strides[d];
  const uint64_t step = stride < 0 ? 0 - (uint64_t)stride : (uint64_t)stride;
  const uint64_t elem_bytes = ((uint64_t)t->dtype.bits + 7) / 8;
  uint64_t bytes = 0;
  return !opi_mul_u64(step, elem_bytes, &bytes) &&
         !opi_mul_u64(bytes, (uint64_t)t->shape[d], &bytes) &&
         !opi_add_u64(bytes, *io_bytes, io_bytes) && *io_bytes < REACH_MOST;
}

opipe_status opi_tensor_begin(const opipe_tensor *t, uint64_t n_bytes, const char *what,
                              const char *name, const char **out_first, opipe_error *err) {
  uint64_t reach = t->byte_offset, end = 0;
  *out_first = t->data;
  if (n_bytes == 0)
    return OPIPE_OK;
  if (opi_add_u64(reach, n_bytes, &reach) || reach >= REACH_MOST ||
      opi_add_u64((uint64_t)(uintptr_t)t->data, reach, &end)) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "%s '%s': with byte_offset %llu its %llu bytes end beyond any memory", what,
                    name, (unsigned long long)t->byte_offset, (unsigned long long)n_bytes);
  }
  for (int32_t d = t->rank - 1; d >= 0 && t->strides != NULL; --d) {
    if (t->shape[d] == 1 || reaches(t, d, &reach)) /* a single element needs no step */
      continue;
    return opi_fail(err, OPIPE_E_INVALID,
                    "%s '%s': with stride %lld at dimension %d, of %lld elements, it reaches "
                    "beyond 2^62 bytes",
                    what, name, (long long)t->strides[d], d, (long long)t->shape[d]);
  }
  *out_first = (const char *)t->data + t->byte_offset;
  return OPIPE_OK;
}

typedef struct blocks {
  uint32_t n_leading;   /* dimensions that are walked */
  uint64_t block_bytes; /* dense bytes of the others */
  uint64_t n_blocks;
} blocks;

static blocks split(const opi_view *view) {
  blocks b = {.n_leading = view->rank, .block_bytes = view->elem_bytes, .n_blocks = 1};
  int64_t dense = 1;
  while (b.n_leading > 0) {
    const uint32_t d = b.n_leading - 1;
    if (view->shape[d] != 1 && view->strides[d] != dense)
      break;
    dense *= view->shape[d];
    b.block_bytes *= (uint64_t)view->shape[d];
    --b.n_leading;
  }
  for (uint32_t d = 0; d < b.n_leading; ++d)
    b.n_blocks *= (uint64_t)view->shape[d];
  return b;
}

bool opi_view_is_dense(const opi_view *view) {
  return split(view).n_leading == 0;
}

/* Steps `at` [n_leading] to the next block; returns its address. */
static const char *next_block(const opi_view *view, uint32_t n_leading, int64_t *at,
                              const char *src) {
  for (uint32_t d = n_leading; d > 0; --d) {
    const int64_t step = view->strides[d - 1] * (int64_t)view->elem_bytes;
    src += step;
    if (++at[d - 1] < view->shape[d - 1])
      return src;
    src -= step * view->shape[d - 1];
    at[d - 1] = 0;
  }
  return src;
}

opipe_status opi_view_runs(const opi_view *view, opi_run_fn each, void *ctx) {
  const blocks b = split(view);
  int64_t at[OPIPE_MAX_RANK] = {0};
  const char *src = view->data;
  opipe_status status = OPIPE_OK;
  for (uint64_t i = 0; b.block_bytes != 0 && i < b.n_blocks && status == OPIPE_OK; ++i) {
    status = each(ctx, (uint64_t)((uintptr_t)src - (uintptr_t)view->data), i * b.block_bytes,
                  b.block_bytes);
    src = next_block(view, b.n_leading, at, src);
  }
  return status;
}

/* Copies (dst) or compares (dense) block after block; false at the first difference. */
static bool walk(const opi_view *view, char *dst, const char *dense) {
  const blocks b = split(view);
  int64_t at[OPIPE_MAX_RANK] = {0};
  const char *src = view->data;
  if (b.block_bytes == 0)
    return true;
  for (uint64_t i = 0; i < b.n_blocks; ++i) {
    if (dst != NULL)
      memcpy(dst + i * b.block_bytes, src, (size_t)b.block_bytes);
    if (dense != NULL && memcmp(dense + i * b.block_bytes, src, (size_t)b.block_bytes) != 0)
      return false;
    src = next_block(view, b.n_leading, at, src);
  }
  return true;
}

void opi_view_gather(const opi_view *view, char *dst) {
  (void)walk(view, dst, NULL);
}

bool opi_view_equals(const opi_view *view, const char *dense) {
  return walk(view, NULL, dense);
}

opipe_status opi_part_runs(const opi_extent *extents, uint32_t n, uint64_t unit_bytes,
                           opi_run_fn each, void *ctx) {
  opipe_status status = OPIPE_OK;
  while (n > 0 && extents[n - 1].n_part == extents[n - 1].n_whole)
    unit_bytes *= extents[--n].n_whole;
  const opi_extent run = n == 0 ? (opi_extent){1, 0, 1} : extents[n - 1];
  const uint32_t n_leading = n == 0 ? 0 : n - 1;
  const uint64_t run_bytes = run.n_part * unit_bytes;
  uint64_t n_runs = run_bytes == 0 ? 0 : 1;
  for (uint32_t d = 0; d < n_leading; ++d)
    n_runs *= extents[d].n_part;
  for (uint64_t i = 0; i < n_runs && status == OPIPE_OK; ++i) {
    uint64_t at = run.first * unit_bytes, stride = run.n_whole * unit_bytes, rest = i;
    for (uint32_t d = n_leading; d-- > 0; rest /= extents[d].n_part) {
      at += (extents[d].first + rest % extents[d].n_part) * stride;
      stride *= extents[d].n_whole;
    }
    status = each(ctx, at, i * run_bytes, run_bytes);
  }
  return status;
}
