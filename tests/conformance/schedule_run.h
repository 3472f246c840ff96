/* SPDX-License-Identifier: Apache-2.0 */
/* Is an order complete, and can it be executed by ranks that each follow their own list? */
#ifndef CONFORMANCE_SCHEDULE_RUN_H
#define CONFORMANCE_SCHEDULE_RUN_H

#include "schedule_kit.h"

static void check_flags(uint32_t mode, const recorded *r) {
  for (uint32_t i = 0; i < r->n; ++i) {
    const opipe_action *a = &r->actions[i];
    const bool back = a->pass == OPIPE_PASS_BACKWARD || a->pass == OPIPE_PASS_BACKWARD_INPUT;
    const uint32_t known = (back ? (uint32_t)OPIPE_ACTION_RECOMPUTE : 0u) |
                           (mode == OPIPE_MODE_TRAIN ? (uint32_t)OPIPE_ACTION_NEXT_STEP : 0u) |
                           OPIPE_ACTION_OVERLAP_NEXT;
    conf_check((a->flags & ~known) == 0, "record %u: pass %u has flags 0x%x, known are 0x%x", i,
               a->pass, a->flags, known);
  }
}

/* Where the work of a (stage, micro-batch, slice, part) in a pass (F, I, W) is marked. */
static size_t place(const opipe_layout *l, uint32_t m, const opipe_action *a, uint32_t pass,
                    uint32_t part) {
  const size_t unit =
      (((size_t)a->stage * m + a->microbatch) * slices_of(l) + a->slice) * parts_of(l) + part;
  return unit * 3 + pass;
}

/* True for a record that is a pass of a stage instance. */
static bool in_range(const opipe_layout *l, uint32_t m, const opipe_action *a) {
  return a->stage < l->n_stages && a->replica < l->n_replicas && a->microbatch < m &&
         a->slice < slices_of(l) && a->part < parts_of(l);
}

/* Checks of a record without the others. */
static bool check_record(const opipe_layout *l, const uint32_t *rank, uint32_t mode, uint32_t m,
                         const opipe_action *a, uint32_t i) {
  const bool work = a->pass == OPIPE_PASS_FORWARD || a->pass == OPIPE_PASS_BACKWARD ||
                    a->pass == OPIPE_PASS_BACKWARD_INPUT || a->pass == OPIPE_PASS_BACKWARD_WEIGHT;
  const uint32_t versions = l->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED ? 2 : 1;
  return conf_check(work || a->pass == OPIPE_PASS_UPDATE, "record %u: the unknown pass %u", i,
                    a->pass) &&
         conf_check(a->pass == OPIPE_PASS_FORWARD || mode == OPIPE_MODE_TRAIN,
                    "record %u: pass %u in a forward order", i, a->pass) &&
         conf_check(a->rank < l->n_ranks && a->stage < l->n_stages && a->reserved == 0,
                    "record %u: rank %u of %u, stage %u of %u, reserved %llu", i, a->rank,
                    l->n_ranks, a->stage, l->n_stages, (unsigned long long)a->reserved) &&
         conf_check(a->version < versions, "record %u: version %u of %u", i, a->version,
                    versions) &&
         conf_check(!work || in_range(l, m, a),
                    "record %u is out of range: micro-batch %u of %u, replica %u, slice %u, part "
                    "%u",
                    i, a->microbatch, m, a->replica, a->slice, a->part) &&
         conf_check(!work || rank[a->stage * l->n_replicas + a->replica] == a->rank,
                    "record %u is on the wrong rank: %u", i, a->rank);
}

static bool mark(const opipe_layout *l, uint32_t m, const opipe_action *a, uint8_t *done) {
  const bool forward = a->pass == OPIPE_PASS_FORWARD;
  const uint32_t first = a->pass == OPIPE_PASS_BACKWARD_WEIGHT ? 2 : forward ? 0 : 1;
  const uint32_t last = a->pass == OPIPE_PASS_BACKWARD ? 2 : first;
  const uint32_t from = forward ? 0 : a->part,
                 to = forward ? parts_of(l) - 1 : a->part; /* a forward makes all parts */
  for (uint32_t pass = first; pass <= last; ++pass) {
    for (uint32_t part = from; part <= to; ++part) {
      uint8_t *at = &done[place(l, m, a, pass, part)];
      if (*at != 0)
        return false;
      *at = 1;
    }
  }
  return true;
}

static bool ready(const opipe_layout *l, uint32_t m, const opipe_action *a, const uint8_t *done) {
  opipe_action other = *a;
  if (a->pass == OPIPE_PASS_FORWARD) {
    if (a->slice > 0) {
      other.slice = (uint16_t)(a->slice - 1);
      if (!done[place(l, m, &other, 0, 0)])
        return false;
      other.slice = a->slice;
    }
    if (a->stage == 0)
      return true;
    other.stage = a->stage - 1;
    return done[place(l, m, &other, 0, 0)] != 0;
  }
  if (a->pass == OPIPE_PASS_BACKWARD_WEIGHT)
    return done[place(l, m, a, 1, a->part)] != 0;
  if (!done[place(l, m, a, 0, a->part)])
    return false;
  if (a->slice + 1u < slices_of(l)) { /* a slice's backward follows that of later slices */
    other.slice = (uint16_t)(a->slice + 1);
    if (!done[place(l, m, &other, 1, a->part)])
      return false;
    other.slice = a->slice;
  }
  if (a->stage + 1 == l->n_stages)
    return true;
  other.stage = a->stage + 1;
  return done[place(l, m, &other, 1, a->part)] != 0;
}

/* Records that reach into the next mini-batch are the body of a stream: *out gets the prologue, the
 * body of three mini-batches and the epilogue, their micro-batches counted through. Returns the
 * number of mini-batches; 1 and a copy when nothing reaches over. */
static uint32_t unroll(const opipe_layout *l, uint32_t m, const recorded *r, recorded *out) {
  uint32_t steps = 1;
  for (uint32_t i = 0; i < r->n; ++i)
    steps = (r->actions[i].flags & OPIPE_ACTION_NEXT_STEP) != 0 ? 3 : steps;
  if (steps != 1) {
    conf_check(l->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED,
               "one version of the weights, but records of the next mini-batch");
  }
  out->n = 0;
  for (uint32_t round = steps == 1 ? 1 : 0; round <= steps; ++round) {
    for (uint32_t i = 0; i < r->n; ++i) {
      opipe_action a = r->actions[i];
      const bool next = (a.flags & OPIPE_ACTION_NEXT_STEP) != 0;
      if ((round == 0 && !next) || (round == steps && next))
        continue;
      a.flags &= ~(uint32_t)OPIPE_ACTION_NEXT_STEP;
      a.microbatch += m * (next ? round : round - 1);
      if (next && a.pass != OPIPE_PASS_FORWARD)
        conf_check(false, "record %u: only a forward runs ahead", i);
      if (out->n == ACTIONS_MOST)
        conf_check(false, "more than %d records", (int)ACTIONS_MOST);
      if (out->n < ACTIONS_MOST)
        out->actions[out->n++] = a;
    }
  }
  return steps;
}

/* Runs of rank p's list what can run, up to the first pass that must wait. Returns how many did. */
static uint32_t run_rank(const opipe_layout *l, uint32_t p, uint32_t m, const recorded *r,
                         uint8_t *ran, uint8_t *done) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < r->n; ++i) {
    const opipe_action *a = &r->actions[i];
    if (ran[i] || a->rank != p)
      continue;
    if (a->pass != OPIPE_PASS_UPDATE) {
      if (!ready(l, m, a, done))
        break;
      if (!mark(l, m, a, done)) {
        conf_check(false, "record %u: stage %u, micro-batch %u, pass %u twice", i, a->stage,
                   a->microbatch, a->pass);
      }
    }
    ran[i] = 1;
    ++n;
  }
  return n;
}

/* Every rank follows its list; stops when nobody can go on. */
static void execute(const opipe_layout *l, const uint32_t *rank, uint32_t mode, uint32_t m,
                    const recorded *r) {
  const size_t n = (size_t)l->n_stages * m * slices_of(l) * parts_of(l) * 3;
  uint8_t *done = calloc(n, 1), *ran = calloc(r->n + 1u, 1);
  uint32_t left = r->n;
  bool sound = done != NULL && ran != NULL;
  for (uint32_t i = 0; i < r->n && sound; ++i)
    sound = check_record(l, rank, mode, m, &r->actions[i], i);
  for (bool moved = sound; moved;) {
    moved = false;
    for (uint32_t p = 0; p < l->n_ranks; ++p) {
      const uint32_t n_ran = run_rank(l, p, m, r, ran, done);
      left -= n_ran;
      moved = moved || n_ran > 0;
    }
  }
  if (sound) {
    conf_check(left == 0, "%u of %u records can never run", left, r->n);
    size_t missing = 0;
    for (size_t i = 0; i < n; ++i)
      missing += (mode == OPIPE_MODE_TRAIN || i % 3 == 0) && done[i] == 0;
    conf_check(missing == 0, "%zu passes are never computed", missing);
  }
  free(done);
  free(ran);
}

#endif /* CONFORMANCE_SCHEDULE_RUN_H */
