/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters of tensor groups: every member's part of one is a row of the table, and so is every
 * member's copy of a whole one that it sums with its replicas alone. To the host they are one
 * parameter: parts are joined and cut here, and copies are read from the first and written to all.
 */
#include <string.h>

#include "runtime/weights/kept.h"

opipe_status opi_rows_link(opi_weights *w, const bool *read, opipe_error *err) {
  uint32_t *next = OPI_ARENA_ARRAY(&w->arena, uint32_t, w->n_sources);
  bool *later = OPI_ARENA_ARRAY(&w->arena, bool, w->n_sources);
  w->rows.next = next;
  w->rows.is_later = later;
  if (next == NULL || later == NULL)
    return opi_fail_nomem(err, w->n_sources * sizeof *next, "parameters");
  for (uint32_t i = 0; i < w->n_sources; ++i) {
    next[i] = OPIPE_NONE;
    if (!read[i] || w->rows.parts == NULL || w->rows.parts[i] == NULL)
      continue;
    for (uint32_t k = i; k-- > 0 && !later[i];) {
      if (!read[k] || w->rows.parts[k] == NULL ||
          strcmp(w->sources[k].name, w->sources[i].name) != 0)
        continue;
      next[k] = i;
      later[i] = true;
    }
  }
  return OPIPE_OK;
}

bool opi_row_is_part(const opi_weights *w, uint32_t row) {
  return w->rows.parts != NULL && w->rows.parts[row] != NULL && w->rows.parts[row]->axis >= 0;
}

bool opi_row_repeats(const opi_weights *w, uint32_t row) {
  return w->rows.is_later[row] && !opi_row_is_part(w, row);
}

const opipe_param_source *opi_row_whole(const opi_weights *w, uint32_t row) {
  return opi_row_is_part(w, row) ? &w->rows.parts[row]->whole : &w->sources[row];
}

/* Copies between the whole tensor and a row's part of it, both with elements of whole_bytes /
 * (elements of the whole). */
static void move_part(const opi_param_part *part, char *whole, uint64_t whole_bytes, char *own,
                      bool into) {
  const opipe_param_source *w = &part->whole;
  uint64_t outer = 1, inner = 1;
  for (int32_t d = 0; d < part->axis; ++d)
    outer *= (uint64_t)w->shape[d];
  for (uint32_t d = (uint32_t)part->axis + 1; d < w->rank; ++d)
    inner *= (uint64_t)w->shape[d];
  const uint64_t length = (uint64_t)w->shape[part->axis];
  const uint64_t row = outer == 0 ? 0 : whole_bytes / outer; /* bytes along the axis */
  for (uint64_t o = 0; o < outer && inner != 0 && length != 0; ++o) {
    for (uint32_t k = 0; k < part->n_runs; ++k) {
      char *at = whole + o * row + (uint64_t)part->runs[k].first * row / length;
      const size_t n = (size_t)((uint64_t)part->runs[k].n * row / length);
      memcpy(into ? at : own, into ? own : at, n);
      own += n;
    }
  }
}

opipe_status opi_rows_get(opi_weights *w, uint32_t row, uint64_t n_bytes, opi_row_get get,
                          const void *how, void *dst, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  char *own = opi_alloc(w->allocator, (size_t)n_bytes);
  if (own == NULL)
    status = opi_fail_nomem(err, n_bytes, w->sources[row].name);
  for (uint32_t i = row; i != OPIPE_NONE && status == OPIPE_OK; i = w->rows.next[i]) {
    const opipe_param_source *source = &w->sources[i];
    const uint64_t own_bytes = opi_row_bytes(w, i, n_bytes);
    if (source->n_bytes == 0)
      continue;
    status = get(w, i, how, own, own_bytes, err);
    if (status == OPIPE_OK)
      move_part(w->rows.parts[i], dst, n_bytes, own, true);
  }
  opi_free(w->allocator, own, (size_t)n_bytes);
  return status;
}

opipe_status opi_rows_set(opi_weights *w, uint32_t row, uint64_t n_bytes, opi_row_set set,
                          const void *how, const void *src, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  const bool parts = opi_row_is_part(w, row);
  char *own = parts ? opi_alloc(w->allocator, (size_t)n_bytes) : NULL;
  if (parts && own == NULL)
    status = opi_fail_nomem(err, n_bytes, w->sources[row].name);
  for (uint32_t i = row; i != OPIPE_NONE && status == OPIPE_OK; i = w->rows.next[i]) {
    if (parts)
      move_part(w->rows.parts[i], (char *)(uintptr_t)src, n_bytes, own, false);
    status = set(w, i, how, parts ? own : src, opi_row_bytes(w, i, n_bytes), err);
  }
  opi_free(w->allocator, own, (size_t)n_bytes);
  return status;
}

uint64_t opi_row_bytes(const opi_weights *w, uint32_t row, uint64_t whole_bytes) {
  const opipe_param_source *whole = opi_row_whole(w, row);
  uint64_t n = 1, all = 1;
  if (whole_bytes == whole->n_bytes)
    return w->sources[row].n_bytes;
  for (uint32_t d = 0; d < whole->rank; ++d) {
    n *= (uint64_t)w->sources[row].shape[d];
    all *= (uint64_t)whole->shape[d];
  }
  return all == 0 ? 0 : whole_bytes / all * n;
}
