/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of parameters that ranks hold as dense copies. */
#include "partition/program/packed.h"

#include <string.h>

bool opi_part_is_packed(const opi_param_part *part) {
  int64_t outer = 1;
  for (int32_t d = 0; d < part->axis; ++d)
    outer *= part->whole.shape[d];
  return part->n_runs > 1 || outer > 1;
}

void opi_part_pack(const opi_param_part *part, void *out) {
  int64_t shape[OPIPE_MAX_RANK];
  const opi_value whole = {
      .dtype = part->whole.dtype, .rank = (int32_t)part->whole.rank, .shape = shape};
  char *to = out;
  uint64_t n = 1;
  memcpy(shape, part->whole.shape, part->whole.rank * sizeof *shape);
  for (uint64_t o = 0; o < n; ++o) {
    for (uint32_t k = 0; k < part->n_runs; ++k) {
      const opi_shard_part run = {
          .axis = part->axis, .n_runs = 1, .runs = (opi_shard_run[]){part->runs[k]}};
      opi_shard_segment at;
      opi_shard_segments(&whole, &run, &at);
      n = at.n;
      memcpy(to, (const char *)part->whole.data + at.offset + o * at.stride, (size_t)at.bytes);
      to += at.bytes;
    }
  }
}

uint64_t opi_packed_find(const opi_cut_model *model, uint32_t rank, uint32_t alignment,
                         bool *out_rows) {
  const opi_piece_plan *view = &model->piece_plan;
  const opi_param_part *const *parts = model->cuts[0]->parts;
  uint64_t n_bytes = 0;
  memset(out_rows, 0, model->cuts[0]->n_params * sizeof *out_rows);
  for (uint32_t i = 0; parts != NULL && i < view->n_stages * view->n_replicas; ++i) {
    const uint32_t stage = i / view->n_replicas;
    for (uint32_t c = 0; view->instance_rank[i] == rank && c < model->n_classes; ++c) {
      const opi_cut *cut = model->cuts[c];
      for (uint32_t k = 0; k < cut->n_kinds; ++k) {
        const opi_program *program = opi_program_of(cut, stage, k);
        for (uint32_t p = 0; p < program->n_params; ++p)
          out_rows[program->params[p]] = true;
      }
    }
  }
  for (uint32_t row = 0; row < model->cuts[0]->n_params; ++row) {
    out_rows[row] = out_rows[row] && parts[row] != NULL && opi_part_is_packed(parts[row]);
    if (out_rows[row])
      n_bytes += opi_align_up(model->cuts[0]->sources[row].n_bytes, alignment == 0 ? 1 : alignment);
  }
  return n_bytes;
}
