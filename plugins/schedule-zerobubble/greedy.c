/* SPDX-License-Identifier: Apache-2.0 */
/* A list scheduler: all ranks run by one clock; a rank that is free takes, of what has arrived and
 * fits its memory, what the policy prefers, and fills gaps with W. An F leaves room for the later
 * stages of its micro-batch on the same rank, so that the oldest micro-batch can always go on:
 * such a run ends for every cap that holds one micro-batch.
 */
#include "zb.h"

static const uint64_t NEVER = UINT64_MAX;

typedef struct pick {
  bool any;
  zb_op op;
  uint32_t at; /* in the given order */
} pick;

typedef struct run {
  const zb_model *model;
  const zb_policy *policy;
  zb_scratch *s;
  zb_order *order;
  uint64_t *wake;  /* [n_ranks] when a rank decides next; NEVER: when it is woken */
  uint32_t *last;  /* [n_ranks] pass of its last F or I */
  bool mirrored;   /* time runs backwards */
  uint32_t window; /* how far ahead a given order is looked through */
} run;

static uint32_t stage_at(const zb_model *model, uint32_t rank, uint32_t chunk) {
  return model->stage_of[rank * model->chunks + chunk];
}

static uint64_t later(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

/* When `pass` of (stage, micro-batch) has ended; NEVER while that is not known. */
static uint64_t end_of(const run *g, uint32_t pass, uint32_t stage, uint32_t mb) {
  const uint64_t end = g->s->end[pass][(uint64_t)stage * g->model->n_mb + mb];
  return end == 0 ? NEVER : end - 1;
}

static uint64_t plus(uint64_t time, uint64_t hop) {
  return time == NEVER ? NEVER : time + hop;
}

/* When the next micro-batch of `pass` can start at `stage`; NEVER while that is not known.
 * Backwards in time W comes first, then I down the stages, then F up. */
static uint64_t arrival(const run *g, uint32_t pass, uint32_t stage) {
  const uint32_t done = g->s->done[pass][stage], n = g->model->n_mb, last = g->model->n_stages - 1;
  if (done >= n)
    return NEVER;
  const uint32_t mb = g->mirrored ? n - 1 - done : done;
  const uint64_t *hop = g->model->hop_ns;
  const bool down = (pass == ZB_F) != g->mirrored; /* from the stage before */
  if (pass == ZB_W)
    return g->mirrored ? 0 : end_of(g, ZB_I, stage, mb);
  uint64_t at = 0;
  if (pass == ZB_I)
    at = end_of(g, g->mirrored ? ZB_W : ZB_F, stage, mb);
  else if (g->mirrored)
    at = end_of(g, ZB_I, stage, mb);
  if (down && stage > 0)
    at = later(at, plus(end_of(g, pass, stage - 1, mb), hop[stage - 1]));
  if (!down && stage < last)
    at = later(at, plus(end_of(g, pass, stage + 1, mb), hop[stage]));
  return at;
}

static bool has_room(const run *g, uint32_t rank, uint32_t chunk) {
  uint64_t need = 0;
  for (uint32_t c = chunk; c < g->model->chunks; ++c)
    need += g->model->stash[stage_at(g->model, rank, c)];
  const uint64_t cap = g->policy->cap[rank];
  return need <= cap && g->s->held[rank] <= cap - need;
}

/* The oldest W of the rank. */
static pick pending_weight(const run *g, uint32_t rank) {
  pick best = {.any = false};
  uint64_t since = NEVER;
  for (uint32_t c = 0; c < g->model->chunks; ++c) {
    const uint32_t stage = stage_at(g->model, rank, c), mb = g->s->done[ZB_W][stage];
    if (mb >= g->s->done[ZB_I][stage])
      continue;
    const uint64_t end = g->s->end[ZB_I][(uint64_t)stage * g->model->n_mb + mb];
    if (end < since) {
      since = end;
      best = (pick){true, {stage, mb, ZB_W}, 0};
    }
  }
  return best;
}

/* The stage of `pass` that the policy prefers among those that can start at `now`. *io_next: when
 * the next one arrives; *io_blocked: one is there, but the memory is not. */
static pick ready_pass(const run *g, uint32_t rank, uint32_t pass, uint64_t now, uint64_t *io_next,
                       bool *io_blocked) {
  const bool shallow = pass == ZB_F ? g->policy->forward_shallow : g->policy->input_shallow;
  pick best = {.any = false};
  for (uint32_t k = 0; k < g->model->chunks; ++k) {
    const uint32_t chunk = shallow ? k : g->model->chunks - 1 - k;
    const uint32_t stage = stage_at(g->model, rank, chunk);
    const uint64_t at = arrival(g, pass, stage);
    if (at == NEVER)
      continue;
    if (pass == ZB_F && !has_room(g, rank, chunk)) {
      *io_blocked = true;
      continue;
    }
    if (at > now)
      *io_next = at < *io_next ? at : *io_next;
    else if (!best.any)
      best = (pick){true, {stage, g->s->done[pass][stage], pass}, 0};
  }
  return best;
}

static pick prefer(const run *g, uint32_t rank, pick forward, pick input) {
  if (!forward.any || !input.any)
    return forward.any ? forward : input;
  const bool take_input = g->policy->prefer == ZB_INPUT_FIRST ||
                          (g->policy->prefer == ZB_ALTERNATE && g->last[rank] == ZB_F);
  return take_input ? input : forward;
}

/* Picks from a given order: the first op that has arrived and can be taken before those in front of
 * it. An F can where the memory still holds whatever stands in front of it, in that order. */
static pick ready_given(run *g, uint32_t rank, uint64_t now, uint64_t *io_next) {
  const zb_order *given = g->policy->given;
  const zb_op *ops = &given->ops[(size_t)rank * given->room];
  const uint8_t *taken = &g->s->taken[(size_t)rank * given->room];
  uint32_t *first = &g->s->cursor[rank];
  const uint64_t cap = g->policy->cap[rank];
  const uint32_t takes = g->mirrored ? ZB_W : ZB_F, gives = g->mirrored ? ZB_F : ZB_W;
  uint64_t held = g->s->held[rank], most = held; /* largest from here to the op looked at */
  pick weight = {.any = false};
  while (*first < given->n[rank] && taken[*first])
    ++*first;
  for (uint32_t i = *first; i < given->n[rank] && i - *first < g->window; ++i) {
    const zb_op *op = &ops[i];
    const uint64_t stash = g->model->stash[op->stage];
    if (taken[i])
      continue;
    const uint32_t done = g->s->done[op->pass][op->stage];
    const bool next = op->microbatch == (g->mirrored ? g->model->n_mb - 1 - done : done);
    const uint64_t at = next ? arrival(g, op->pass, op->stage) : NEVER;
    const bool fits = op->pass != takes || (stash <= cap && most <= cap - stash);
    const bool wait = op->pass == ZB_W && !g->mirrored && g->policy->weight != ZB_WEIGHT_NEXT;
    if (at <= now && fits && !wait)
      return (pick){true, *op, i};
    if (at <= now && wait && !weight.any)
      weight = (pick){true, *op, i};
    *io_next = fits && !wait && at > now && at < *io_next ? at : *io_next;
    held = op->pass == takes ? held + stash : op->pass == gives ? held - stash : held;
    most = held > most ? held : most;
  }
  return weight;
}

static pick decide(run *g, uint32_t rank, uint64_t now, uint64_t *out_next) {
  bool blocked = false;
  *out_next = NEVER;
  if (g->policy->given != NULL) {
    const pick given = ready_given(g, rank, now, out_next);
    const bool may_wait = given.any && given.op.pass == ZB_W && g->policy->weight == ZB_WEIGHT_FITS;
    const bool delays =
        may_wait && *out_next != NEVER && now + g->model->ns[ZB_W][given.op.stage] > *out_next;
    return delays ? (pick){.any = false} : given;
  }
  const pick weight = pending_weight(g, rank);
  if (weight.any && g->policy->weight == ZB_WEIGHT_NEXT)
    return weight;
  const pick input = ready_pass(g, rank, ZB_I, now, out_next, &blocked);
  const pick forward = ready_pass(g, rank, ZB_F, now, out_next, &blocked);
  const pick chosen = prefer(g, rank, forward, input);
  if (chosen.any || !weight.any)
    return chosen;
  const uint64_t cost = g->model->ns[ZB_W][weight.op.stage];
  const bool delays = *out_next != NEVER && now + cost > *out_next;
  return g->policy->weight == ZB_WEIGHT_FITS && delays && !blocked ? chosen : weight;
}

/* ---- the clock: a winner tree over ranks, so that long plans on many ranks stay quick ---- */

static uint32_t earlier(const run *g, uint32_t a, uint32_t b) {
  return b < g->model->n_ranks && g->wake[b] < g->wake[a] ? b : a;
}

/* Leaves are [width .. 2 width); a leaf beyond the ranks never wins. */
static void set_wake(run *g, uint32_t rank, uint64_t at) {
  uint32_t *tree = g->s->tree;
  const uint32_t p = g->model->n_ranks;
  g->wake[rank] = at;
  for (uint32_t node = (g->s->width + rank) / 2; node > 0; node /= 2) {
    const uint32_t left = tree[2 * node], right = tree[2 * node + 1];
    tree[node] = left < p ? earlier(g, left, right) : right;
  }
}

static void wake(run *g, uint32_t stage, uint64_t at) {
  const uint32_t rank = g->model->rank_of[stage];
  const uint64_t when = later(at, g->s->now[rank]);
  if (when < g->wake[rank])
    set_wake(g, rank, when);
}

static void take(run *g, uint32_t rank, uint64_t now, const pick *chosen) {
  const zb_op *op = &chosen->op;
  const zb_model *model = g->model;
  const uint64_t end = now + model->ns[op->pass][op->stage];
  if (g->policy->given != NULL)
    g->s->taken[(size_t)rank * g->order->room + chosen->at] = 1;
  zb_push(g->order, rank, op->pass, op->stage, op->microbatch);
  ++g->s->done[op->pass][op->stage];
  g->s->now[rank] = end;
  set_wake(g, rank, end);
  g->s->end[op->pass][(uint64_t)op->stage * model->n_mb + op->microbatch] = end + 1;
  if (op->pass == ZB_F)
    g->s->held[rank] += g->mirrored ? 0 - model->stash[op->stage] : model->stash[op->stage];
  if (op->pass == ZB_W) {
    g->s->held[rank] += g->mirrored ? model->stash[op->stage] : 0 - model->stash[op->stage];
    return;
  }
  g->last[rank] = op->pass;
  const bool down = (op->pass == ZB_F) != g->mirrored;
  if (down && op->stage + 1 < model->n_stages)
    wake(g, op->stage + 1, end + model->hop_ns[op->stage]);
  else if (!down && op->stage > 0)
    wake(g, op->stage - 1, end + model->hop_ns[op->stage - 1]);
}

void zb_greedy(const zb_model *model, const zb_policy *policy, zb_scratch *s, zb_order *order) {
  const size_t cells = (size_t)model->n_stages * model->n_mb, p = model->n_ranks;
  run g = {model,
           policy,
           s,
           order,
           s->first,
           s->at,
           policy->mirrored,
           2 * model->n_ranks * model->chunks + 64};
  memset(s->peak, 0, 4 * p * sizeof(uint64_t)); /* held, now, first lie behind */
  memset(s->at, 0, p * sizeof(*s->at));
  memset(s->cursor, 0, p * sizeof(*s->cursor));
  for (uint32_t k = 0; k < 3; ++k) {
    memset(s->end[k], 0, cells * sizeof(uint64_t));
    memset(s->done[k], 0, model->n_stages * sizeof(uint32_t));
  }
  if (policy->given != NULL)
    memset(s->taken, 0, (size_t)order->room * p);
  zb_order_clear(model, order);
  for (uint32_t r = 0; r < s->width; ++r)
    s->tree[s->width + r] = r;
  for (uint32_t node = s->width - 1; node > 0; --node) /* all wake at 0: the first rank wins */
    s->tree[node] = s->tree[2 * node];
  for (;;) {
    uint64_t next = NEVER;
    const uint32_t rank = s->tree[1];
    const uint64_t now = g.wake[rank];
    if (now == NEVER)
      return;
    const pick chosen = decide(&g, rank, now, &next);
    if (chosen.any)
      take(&g, rank, now, &chosen);
    else
      set_wake(&g, rank, next);
  }
}
