/* SPDX-License-Identifier: Apache-2.0 */
/* Interleaved 1F1B: each rank follows its rule as far as its inputs are there.
 *
 * Position k of the table is the same work on every rank, shifted by one stage per rank, so what a
 * pass waits for is a comparison of two counters. When no rank can follow its rule, the rule would
 * have made ranks wait in a circle: the first rank whose other pass can run does that one. There is
 * always such a rank, because forwards alone, and then backwards alone, never block. Where the rule
 * is free of circles the order is exactly the rule's.
 */
#include "interleaved.h"

typedef struct progress {
  uint64_t forward;  /* positions done */
  uint64_t backward; /* positions done, at most `forward` */
} progress;

typedef struct position {
  uint32_t chunk; /* forward's; a backward's is n_chunks - 1 - chunk */
  uint32_t microbatch;
} position;

/* The group that a micro-batch is in: its first micro-batch, its size. */
typedef struct group {
  uint64_t first, size;
} group;

static group group_of(const interleaved *o, uint64_t microbatch) {
  const uint64_t before = (uint64_t)o->n_first * o->first_size;
  const bool rest = microbatch >= before;
  const uint64_t size = rest ? o->rest_size : o->first_size;
  const uint64_t within = (microbatch - (rest ? before : 0)) % size;
  const group g = {microbatch - within, size};
  return g;
}

/* A group of n micro-batches takes n v positions, so position k is in the group of micro-batch
 * k / v. */
static position at(const interleaved *o, uint64_t k) {
  const group g = group_of(o, k / o->n_chunks);
  const uint64_t within = k - g.first * o->n_chunks;
  const position p = {(uint32_t)(within / g.size), (uint32_t)(g.first + within % g.size)};
  return p;
}

static uint64_t position_of(const interleaved *o, uint32_t chunk, uint32_t microbatch) {
  const group g = group_of(o, microbatch);
  return g.first * o->n_chunks + chunk * g.size + (microbatch - g.first);
}

static bool forward_ready(const interleaved *o, const progress *done, uint32_t rank) {
  const uint64_t k = done[rank].forward;
  const position p = at(o, k);
  if (rank > 0)
    return done[rank - 1].forward > k;
  return p.chunk == 0 || done[o->n_ranks - 1].forward > position_of(o, p.chunk - 1, p.microbatch);
}

static bool backward_ready(const interleaved *o, const progress *done, uint32_t rank) {
  const uint64_t k = done[rank].backward;
  const position p = at(o, k);
  if (done[rank].forward <= position_of(o, o->n_chunks - 1 - p.chunk, p.microbatch))
    return false;
  if (rank + 1 < o->n_ranks)
    return done[rank + 1].backward > k;
  return p.chunk == 0 || done[0].backward > position_of(o, p.chunk - 1, p.microbatch);
}

/* Forwards that `rank` does before its first pair. Twice the distance to the last rank leaves room
 * for messages; with groups below p only the distance itself is free of circles. */
static uint64_t warm_up(const interleaved *o, uint32_t rank) {
  const uint64_t all = (uint64_t)o->n_microbatches * o->n_chunks;
  const uint64_t after = o->n_ranks - rank - 1;
  const uint64_t most = 2 * (uint64_t)o->first_size;
  const bool tight = o->narrow || (!o->torch && o->n_chunks == 1);
  const uint64_t ahead = !tight ? 2 * after : after < most || !o->narrow ? after : most;
  const uint64_t n = ahead + (uint64_t)(o->n_chunks - 1) * o->first_size;
  return n > all || (o->whole && o->n_chunks > 1) ? all : n;
}

typedef struct replay {
  const interleaved *order;
  const opipe_schedule_problem *problem;
  progress *done; /* [n_ranks] */
  opipe_emit_fn emit;
  void *emit_ctx;
  opipe_error *err;
} replay;

/* Forwards behind which torch's table has the gap before the first backward. */
static uint64_t counted_warm_up(const interleaved *o, uint32_t rank) {
  const uint64_t m = o->n_microbatches, all = m * o->n_chunks;
  const uint64_t rounds = m / o->n_ranks > 1 ? m / o->n_ranks : 1;
  const uint64_t n = (o->n_chunks - 1) * (m / rounds) + 2 * (uint64_t)(o->n_ranks - rank - 1);
  return n < all ? n : all;
}

static uint32_t gap(const interleaved *o, uint32_t rank) {
  const uint64_t first_backward = (uint64_t)o->n_chunks * o->n_ranks + 2 * (o->n_ranks - 1 - rank);
  const uint64_t before = counted_warm_up(o, rank) + rank;
  return first_backward > before ? (uint32_t)(first_backward - before) : 0;
}

/* Idle cells around pass number k of its kind: one before each backward of the cool-down, the gap
 * behind the warm-up. */
static opipe_status idle(const replay *r, uint32_t rank, bool forward, uint64_t k, bool behind) {
  const interleaved *o = r->order;
  const uint64_t all = (uint64_t)o->n_microbatches * o->n_chunks, warm = counted_warm_up(o, rank);
  uint32_t n = 0;
  if (o->cells && forward && behind && k + 1 == warm)
    n = gap(o, rank);
  else if (o->cells && !forward && !behind && !o->halves && k + 1 > all - warm)
    n = 1;
  return opipe_emit_idle(r->emit, r->emit_ctx, rank, n, r->err);
}

/* Cells that a rank waits before it begins, with the gap where it has no warm-up. */
static opipe_status idle_first(const replay *r) {
  opipe_status status = opipe_emit_idle_first(r->problem, r->emit, r->emit_ctx, r->err);
  for (uint32_t rank = 0; rank < r->order->n_ranks && status >= 0; ++rank) {
    if (counted_warm_up(r->order, rank) == 0)
      status = opipe_emit_idle(r->emit, r->emit_ctx, rank, gap(r->order, rank), r->err);
  }
  return status;
}

static opipe_status step(replay *r, uint32_t rank, bool forward) {
  const interleaved *o = r->order;
  const uint64_t k = forward ? r->done[rank].forward : r->done[rank].backward;
  const position p = at(o, forward ? r->done[rank].forward++ : r->done[rank].backward++);
  const uint32_t stage = (forward ? p.chunk : o->n_chunks - 1 - p.chunk) * o->n_ranks + rank;
  const uint32_t pass = forward     ? OPIPE_PASS_FORWARD
                        : o->halves ? OPIPE_PASS_BACKWARD_INPUT
                                    : OPIPE_PASS_BACKWARD;
  opipe_status status = idle(r, rank, forward, k, false);
  if (status >= 0) {
    status =
        opipe_emit_pass(r->problem, r->emit, r->emit_ctx, stage, p.microbatch, 0, pass, 0, r->err);
  }
  if (status >= 0 && !forward && o->halves) {
    status = opipe_emit_pass(r->problem, r->emit, r->emit_ctx, stage, p.microbatch, 0,
                             OPIPE_PASS_BACKWARD_WEIGHT, 0, r->err);
  }
  return status < 0 ? status : idle(r, rank, forward, k, true);
}

/* Follows the rule of `rank` as far as it goes. *io_moved: set when a pass was emitted. */
static opipe_status follow(replay *r, uint32_t rank, uint64_t all, bool *io_moved) {
  const uint64_t ahead = warm_up(r->order, rank);
  opipe_status status = OPIPE_OK;
  while (status >= 0 && r->done[rank].backward < all) {
    const progress *done = &r->done[rank];
    const bool forward = done->forward < all && done->forward <= done->backward + ahead;
    if (!(forward ? forward_ready(r->order, r->done, rank)
                  : backward_ready(r->order, r->done, rank)))
      break;
    status = step(r, rank, forward);
    *io_moved = true;
  }
  return status;
}

/* No rank can follow its rule: the first that has something else to do does that. */
static opipe_status give_way(replay *r, uint64_t all) {
  for (uint32_t rank = 0; rank < r->order->n_ranks; ++rank) {
    if (r->done[rank].forward < all && forward_ready(r->order, r->done, rank))
      return step(r, rank, true);
    if (r->done[rank].backward < all && backward_ready(r->order, r->done, rank))
      return step(r, rank, false);
  }
  return opipe_fail(
      r->err, OPIPE_E_INTERNAL,
      "schedule 'interleaved': %u ranks, %u chunks, %u micro-batches, groups of %u: no "
      "rank can continue",
      r->order->n_ranks, r->order->n_chunks, r->order->n_microbatches, r->order->first_size);
}

opipe_status interleaved_replay(const interleaved *order, const opipe_schedule_problem *problem,
                                opipe_work *work, opipe_emit_fn emit, void *emit_ctx,
                                opipe_error *err) {
  const uint64_t all = (uint64_t)order->n_microbatches * order->n_chunks;
  progress *done = (progress *)opipe_work_array(work, order->n_ranks, sizeof *done);
  replay r = {order, problem, done, emit, emit_ctx, err};
  if (done == NULL) {
    return opipe_fail(err, OPIPE_E_NOMEM, "schedule 'interleaved': no memory for %u ranks",
                      order->n_ranks);
  }
  if (order->cells) {
    const opipe_status status = idle_first(&r);
    if (status < 0)
      return status;
  }
  for (bool left = true; left;) {
    bool moved = false;
    left = false;
    for (uint32_t rank = 0; rank < order->n_ranks; ++rank) {
      const opipe_status status = follow(&r, rank, all, &moved);
      if (status < 0)
        return status;
      left = left || done[rank].backward < all;
    }
    if (left && !moved) {
      const opipe_status status = give_way(&r, all);
      if (status < 0)
        return status;
    }
  }
  return OPIPE_OK;
}
