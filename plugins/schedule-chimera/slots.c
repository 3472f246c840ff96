/* SPDX-License-Identifier: Apache-2.0 */
/* Chimera's order by slots. Every pass has a slot number; a rank executes its passes by rising
 * slot.
 *
 *   forward slot k of a pipeline's unit, on stage st       st + 2 k
 *   backward slot k                                        2 D - st - 1 + 2 k
 *   unit u starts T slots after unit u - 1:                T = D + D * (backwards per forward)
 *
 * A forward slot holds `per_slot` micro-batches, a backward slot one part of one. Along every
 * dependency the number rises, so that no order made of it can make ranks wait in a circle. With
 * one micro-batch per slot this is the authors' order: a F(X), b (F(Y) F(X)), a (F(Y) B(Y)), b
 * (B(X) B(Y)), then a (B(X) F(X)) into the next unit, or a B(X) at the end. With f = 1 no two
 * passes of a rank have the same slot; otherwise the lower pipeline goes first, its backward before
 * its forward.
 */
#include "chimera.h"

uint32_t chimera_rank(const chimera *c, uint32_t stage, uint32_t pipeline) {
  const uint64_t shift = (uint64_t)(pipeline / 2) * (c->n_stages / (c->n_pipelines / 2));
  const uint32_t down = (uint32_t)((stage + shift) % c->n_stages);
  return pipeline % 2 == 0 ? down : c->n_stages - 1 - down;
}

/* The stage of `pipeline` on `rank`: the inverse of chimera_rank. */
static uint32_t stage_on(const chimera *c, uint32_t rank, uint32_t pipeline) {
  const uint64_t shift = (uint64_t)(pipeline / 2) * (c->n_stages / (c->n_pipelines / 2));
  const uint32_t down = pipeline % 2 == 0 ? rank : c->n_stages - 1 - rank;
  return (uint32_t)((down + c->n_stages - shift) % c->n_stages);
}

typedef struct share {
  uint64_t first; /* micro-batch */
  uint64_t n;
} share;

/* What a pipeline takes of a unit. */
static share share_of(const chimera *c, uint64_t unit, uint32_t pipeline) {
  const uint64_t size = (uint64_t)c->n_stages * c->per_slot;
  const uint64_t begin = unit * size;
  const uint64_t left = begin < c->n_microbatches ? c->n_microbatches - begin : 0;
  const uint64_t n = left < size ? left : size;
  const uint64_t even = n / c->n_pipelines;
  const uint64_t more = n % c->n_pipelines;
  const share s = {begin + pipeline * even + (pipeline < more ? pipeline : more),
                   even + (pipeline < more)};
  return s;
}

typedef struct sink {
  const chimera *c;
  opipe_emit_fn emit;
  void *ctx;
  opipe_error *err;
  opipe_action action; /* rank, stage and replica of the pass at hand */
} sink;

/* The pass whose slot is `slot` counted from the first unit's slot 0 of that kind, if there is one:
 * slots lie 2 apart within a unit, units `period` apart. */
static opipe_status emit_slot(sink *s, uint64_t slot, uint64_t period, bool forward) {
  const chimera *c = s->c;
  const share mine = share_of(c, slot / period, s->action.replica);
  const uint64_t k = slot % period / 2;
  opipe_status status = OPIPE_OK;
  if (slot % period % 2 != 0) {
    return OPIPE_OK;
  }
  s->action.pass = (uint8_t)(forward ? OPIPE_PASS_FORWARD : OPIPE_PASS_BACKWARD);
  s->action.part = forward ? 0 : (uint8_t)(k % c->n_parts);
  const uint64_t first = forward ? k * c->per_slot : k / c->n_parts;
  const uint64_t n = forward ? c->per_slot : 1;
  for (uint64_t i = first; i < first + n && i < mine.n && status >= 0; ++i) {
    s->action.microbatch = (uint32_t)(mine.first + i);
    status = s->emit(s->ctx, &s->action, 1, s->err);
  }
  return status;
}

static opipe_status emit_rank(sink *s, uint32_t rank, uint64_t n_slots, uint64_t period) {
  const chimera *c = s->c;
  opipe_status status = OPIPE_OK;
  for (uint64_t slot = 0; slot < n_slots && status >= 0; ++slot) {
    for (uint32_t pipeline = 0; pipeline < c->n_pipelines && status >= 0; ++pipeline) {
      const uint32_t stage = stage_on(c, rank, pipeline);
      const uint64_t backward = 2 * (uint64_t)c->n_stages - stage - 1;
      s->action.rank = rank;
      s->action.stage = stage;
      s->action.replica = (uint16_t)pipeline;
      if (slot >= backward) {
        status = emit_slot(s, slot - backward, period, false);
      }
      if (slot >= stage && status >= 0) {
        status = emit_slot(s, slot - stage, period, true);
      }
    }
  }
  return status;
}

opipe_status chimera_emit(const chimera *c, opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  const uint64_t stages = c->n_stages;
  const uint64_t period = stages + stages * c->per_slot * c->n_parts;
  const uint64_t size = stages * c->per_slot;
  const uint64_t n_units = (c->n_microbatches + size - 1) / size;
  const uint64_t n_slots = (n_units + 1) * period + stages; /* the last backward lies before */
  opipe_status status = OPIPE_OK;
  sink s;
  memset(&s, 0, sizeof s);
  s.c = c;
  s.emit = emit;
  s.ctx = emit_ctx;
  s.err = err;
  for (uint32_t rank = 0; rank < c->n_stages && status >= 0; ++rank) {
    status = emit_rank(&s, rank, n_slots, period);
  }
  return status;
}
