/* SPDX-License-Identifier: Apache-2.0 */
/* Registers the buffers with regions that groups sum with their ranks' endpoints: each once, as far
 * as its regions reach.
 */
#include "runtime/weights/kept.h"

static opipe_status note(opi_weights *w, opipe_endpoint *endpoint, const opipe_region *region,
                         opipe_error *err) {
  const uint64_t end = region->offset_bytes + region->n_bytes;
  uint32_t i = 0;
  while (i < w->n_travelling &&
         (w->travelling[i].buffer != region->buffer || w->travelling[i].endpoint != endpoint))
    ++i;
  if (i == w->n_travelling) {
    if (!opi_arena_grow(&w->arena, (void **)&w->travelling, &w->room_travelling, i + 1,
                        sizeof *w->travelling))
      return opi_fail_nomem(err, sizeof *w->travelling, "registered buffers");
    w->travelling[w->n_travelling++] =
        (opi_travelling){.buffer = region->buffer, .endpoint = endpoint};
  }
  if (w->travelling[i].n_bytes < end)
    w->travelling[i].n_bytes = end;
  return OPIPE_OK;
}

static opipe_status note_holder(opi_weights *w, const opi_holder *holder, opipe_error *err) {
  opipe_endpoint *endpoint = holder->env.endpoint;
  for (uint32_t k = 0; k < holder->n_trained; ++k) {
    const opi_weight_param *p = &holder->trained[k];
    const opipe_region dense = {.buffer = holder->dense, .n_bytes = p->dense_bytes};
    if (p->bucket != NULL && p->bucket->member.collective != NULL) {
      OPI_TRY(note(w, endpoint, &p->gradient, err));
      for (uint32_t v = 0; v < w->n_versions && opi_shares_out(w); ++v)
        OPI_TRY(note(w, endpoint, &p->weight[v], err));
    }
    if (p->replicas.group != NULL)
      OPI_TRY(note(w, endpoint, &p->gradient, err));
    if (p->tie.group != NULL)
      OPI_TRY(note(w, endpoint, p->dense ? &dense : &p->gradient, err));
  }
  return OPIPE_OK;
}

opipe_status opi_travel_register(opi_weights *w, opipe_error *err) {
  for (uint32_t i = 0; i < w->n_holders; ++i)
    OPI_TRY(note_holder(w, &w->holders[i], err));
  for (uint32_t r = 0; r < w->n_ranks; ++r) {
    const opi_weight_rank *rank = &w->ranks[r];
    const opipe_region table = {.buffer = rank->table, .n_bytes = rank->table_bytes};
    if (rank->norms.group != NULL)
      OPI_TRY(note(w, rank->holder->env.endpoint, &table, err));
  }
  for (uint32_t i = 0; i < w->n_travelling; ++i) {
    opi_travelling *t = &w->travelling[i];
    OPI_TRY(OPI_ASK("transport", &w->transport, memory_register, err, t->endpoint, t->buffer,
                    t->n_bytes, &t->memory));
  }
  return OPIPE_OK;
}

void opi_travel_drop(const opi_weights *w) {
  for (uint32_t i = 0; i < w->n_travelling; ++i) {
    if (w->travelling[i].memory != NULL)
      w->transport.table->memory_drop(w->travelling[i].memory);
  }
}
