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

/* A pipeline's share of a unit. */
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
  uint64_t period;
  opipe_emit_fn emit;
  void *ctx;
  opipe_error *err;
} sink;

/* One pass of one pipeline on a rank: its slots lie 2 apart within a unit, units a period apart. */
typedef struct lane {
  uint32_t stage;
  uint32_t pipeline;
  bool forward;
} lane;

static uint64_t first_slot(const chimera *c, const lane *l) {
  return l->forward ? l->stage : 2 * (uint64_t)c->n_stages - l->stage - 1;
}

static uint64_t slots_of(const chimera *c, const lane *l, uint64_t unit) {
  const uint64_t n = share_of(c, unit, l->pipeline).n;
  return l->forward ? (n + c->per_slot - 1) / c->per_slot : n * c->n_parts;
}

/* The lane's first slot from `from` on; UINT64_MAX: there is none. A unit has no more micro-batches
 * than the one before. */
static uint64_t next_slot(const sink *s, const lane *l, uint64_t from) {
  const uint64_t first = first_slot(s->c, l);
  const uint64_t since = from > first ? from - first : 0;
  const uint64_t unit = since / s->period;
  const uint64_t k = (since % s->period + 1) / 2;
  if (k < slots_of(s->c, l, unit))
    return first + unit * s->period + 2 * k;
  return slots_of(s->c, l, unit + 1) > 0 ? first + (unit + 1) * s->period : UINT64_MAX;
}

static opipe_status emit_slot(const sink *s, uint32_t rank, const lane *l, uint64_t slot) {
  const chimera *c = s->c;
  const uint64_t since = slot - first_slot(c, l);
  const share mine = share_of(c, since / s->period, l->pipeline);
  const uint64_t k = since % s->period / 2;
  const uint64_t first = l->forward ? k * c->per_slot : k / c->n_parts;
  const uint64_t n = l->forward ? c->per_slot : 1;
  opipe_status status = OPIPE_OK;
  opipe_action action;
  memset(&action, 0, sizeof action);
  action.rank = rank;
  action.stage = l->stage;
  action.replica = (uint16_t)l->pipeline;
  action.pass = (uint8_t)(l->forward ? OPIPE_PASS_FORWARD : OPIPE_PASS_BACKWARD);
  action.part = (uint8_t)(l->forward ? 0 : k % c->n_parts);
  for (uint64_t i = first; i < first + n && i < mine.n && status >= 0; ++i) {
    action.microbatch = (uint32_t)(mine.first + i);
    status = s->emit(s->ctx, &action, 1, s->err);
  }
  return status;
}

/* The lanes of a rank: of every pipeline the backward, then the forward. */
static lane lane_of(const chimera *c, uint32_t rank, uint32_t index) {
  const lane l = {stage_on(c, rank, index / 2), index / 2, index % 2 == 1};
  return l;
}

static opipe_status emit_rank(const sink *s, uint32_t rank) {
  const uint32_t n_lanes = 2 * s->c->n_pipelines;
  opipe_status status = OPIPE_OK;
  for (uint64_t slot = 0; status >= 0;) {
    uint64_t next = UINT64_MAX;
    for (uint32_t i = 0; i < n_lanes; ++i) {
      const lane l = lane_of(s->c, rank, i);
      const uint64_t at = next_slot(s, &l, slot);
      next = at < next ? at : next;
    }
    if (next == UINT64_MAX)
      break;
    for (uint32_t i = 0; i < n_lanes && status >= 0; ++i) {
      const lane l = lane_of(s->c, rank, i);
      if (next_slot(s, &l, next) == next)
        status = emit_slot(s, rank, &l, next);
    }
    slot = next + 1;
  }
  return status;
}

opipe_status chimera_emit(const chimera *c, opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  const uint64_t stages = c->n_stages;
  const sink s = {c, stages + stages * c->per_slot * c->n_parts, emit, emit_ctx, err};
  opipe_status status = OPIPE_OK;
  for (uint32_t rank = 0; rank < c->n_stages && status >= 0; ++rank)
    status = emit_rank(&s, rank);
  return status;
}
