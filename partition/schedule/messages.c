/* SPDX-License-Identifier: Apache-2.0 */
/* Places messages. Ranks take turns, one action each. An action goes once its inputs are on its
 * rank's list; its sends go with it, and each receive goes to the end of the peer's list at the
 * same moment. Messages thus appear in one global order, which cannot deadlock under any rule of
 * matching.
 *
 * In a double-buffered body, messages of flagged forwards carry the flag at both ends; an unflagged
 * forward reads a flagged one's output that came with the body before. */
#include <string.h>

#include "partition/schedule/passes.h"

typedef struct inserter {
  const opi_problem *problem;
  const opi_do_list *list;
  opi_index index;
  uint8_t *forward;    /* [n_units] forwards taken: 1; flagged forwards of the whole list: 2 */
  uint8_t *input;      /* [n_units] */
  opi_do *items;       /* of the list being made; NULL: actions are only counted */
  uint32_t *at, *next; /* [n_ranks] index of a rank's next action; next item to take */
  opi_arena arena;
  opipe_error *err;
} inserter;

enum { TAKEN = 1, OF_NEXT = 2 };

static void append(const inserter *n, uint32_t rank, opi_do item) {
  if (n->items != NULL)
    n->items[n->at[rank]] = item;
  ++n->at[rank];
}

static bool flagged(const opi_do *a) {
  return (a->flags & OPIPE_ACTION_NEXT_STEP) != 0;
}

/* Whether an action can go, and the input it lacks. */
typedef struct question {
  const inserter *n;
  opi_need missing;
} question;

static bool is_there(void *ctx, const opi_do *a, const opi_need *need) {
  question *q = ctx;
  const inserter *n = q->n;
  q->missing = *need;
  if (need->replica == OPIPE_NONE)
    return false;
  const uint64_t unit =
      opi_unit(&n->index, need->stage, need->replica, a->microbatch, need->slice, need->part);
  if (need->phase != OPI_PHASE_F)
    return n->input[unit] != 0;
  const uint8_t marks = n->forward[unit];
  return (marks & OF_NEXT) != 0 ? !flagged(a) || (marks & TAKEN) != 0
                                : !flagged(a) && (marks & TAKEN) != 0;
}

static bool ready(const inserter *n, const opi_do *a, opi_need *out_missing) {
  question q = {.n = n};
  const bool is_ready = opi_each_need(&n->index, a, is_there, &q);
  *out_missing = q.missing;
  return is_ready;
}

/* Adds the messages of one edge after `a`, by rising replica of the other end. */
static opipe_status send_along(const inserter *n, uint32_t rank, const opi_do *a, uint32_t edge,
                               bool forward) {
  const opi_problem *p = n->problem;
  const uint32_t other = forward ? p->edges[edge].dst : p->edges[edge].src;
  uint32_t first = 0;
  const uint32_t count = opi_peers(&n->index, other, a->microbatch, a->stage, a->replica, &first);
  for (uint32_t r = first; r < first + count; ++r) {
    const uint32_t peer_rank = opi_problem_rank(p, other, r);
    if (peer_rank == rank)
      continue;
    if (peer_rank == OPIPE_NONE)
      return opi_fail(n->err, OPIPE_E_INVALID, "stage %u has no replica %u", other, r);
    opi_do send = *a;
    send.kind = forward ? OPI_DO_SEND_F : OPI_DO_SEND_B;
    send.edge = edge;
    send.peer = (uint16_t)r;
    send.version = 0;
    send.flags = a->flags & OPIPE_ACTION_NEXT_STEP;
    opi_do receive = send;
    receive.kind = forward ? OPI_DO_RECV_F : OPI_DO_RECV_B;
    receive.stage = other;
    receive.replica = (uint16_t)r;
    receive.peer = a->replica;
    append(n, rank, send);
    append(n, peer_rank, receive);
  }
  return OPIPE_OK;
}

static opipe_status send_all(const inserter *n, uint32_t rank, const opi_do *a) {
  const opi_index *x = &n->index;
  if (a->kind == OPI_DO_F) {
    for (uint32_t i = x->out_first[a->stage]; i < x->out_first[a->stage + 1]; ++i)
      OPI_TRY(send_along(n, rank, a, x->out_edges[i], true));
  } else if (a->kind == OPI_DO_B || a->kind == OPI_DO_I) {
    for (uint32_t i = x->in_first[a->stage]; i < x->in_first[a->stage + 1]; ++i)
      OPI_TRY(send_along(n, rank, a, x->in_edges[i], false));
  }
  return OPIPE_OK;
}

static void take(inserter *n, const opi_do *a) {
  if (!opi_do_is_compute(a->kind))
    return;
  const uint64_t unit = opi_unit(&n->index, a->stage, a->replica, a->microbatch, a->slice, a->part);
  if (a->kind == OPI_DO_F)
    n->forward[unit] |= TAKEN;
  if (a->kind == OPI_DO_B || a->kind == OPI_DO_I)
    n->input[unit] = 1;
}

/* The number of actions that go in one turn. */
static uint32_t together(const opi_do *a) {
  return (a->flags & OPIPE_ACTION_OVERLAP_NEXT) != 0 ? 2 : 1;
}

/* Takes one turn of a rank: an action, or a pair that overlaps. *out_moved: it went. */
static opipe_status turn(inserter *n, uint32_t rank, bool *out_moved) {
  const opi_do *a = &n->list->items[n->next[rank]];
  const uint32_t count = together(a);
  opi_need missing;
  *out_moved = false;
  for (uint32_t i = 0; i < count; ++i) {
    if (!ready(n, &a[i], &missing))
      return OPIPE_OK;
  }
  for (uint32_t i = 0; i < count && a->kind != OPI_DO_IDLE; ++i) {
    append(n, rank, a[i]);
    take(n, &a[i]);
  }
  for (uint32_t i = 0; i < count; ++i)
    OPI_TRY(send_all(n, rank, &a[i]));
  n->next[rank] += count;
  *out_moved = true;
  return OPIPE_OK;
}

/* The rank's first action not yet taken that brings the input `a` lacks; OPIPE_NONE: none. */
static uint32_t maker_of(const inserter *n, const opi_do *a, const opi_need *need) {
  const opi_do_list *list = n->list;
  const bool forward = need->phase == OPI_PHASE_F;
  const uint32_t rank = need->replica == OPIPE_NONE
                            ? OPIPE_NONE
                            : opi_problem_rank(n->problem, need->stage, need->replica);
  for (uint32_t i = rank == OPIPE_NONE ? list->n_items : n->next[rank];
       rank != OPIPE_NONE && i < list->rank_first[rank + 1]; ++i) {
    const opi_do *b = &list->items[i];
    const bool makes = forward ? b->kind == OPI_DO_F && flagged(a) == flagged(b)
                               : b->kind == OPI_DO_B || b->kind == OPI_DO_I;
    if (makes && b->stage == need->stage && b->replica == need->replica &&
        b->microbatch == a->microbatch && b->slice == need->slice && b->part == need->part)
      return i;
  }
  return OPIPE_NONE;
}

static opi_wait wait_of(const void *ctx, uint32_t rank) {
  const inserter *n = ctx;
  const opi_do *a = &n->list->items[n->next[rank]];
  opi_need missing;
  if (ready(n, a, &missing)) /* then the second of the pair waits */
    (void)ready(n, ++a, &missing);
  return (opi_wait){(uint32_t)(a - n->list->items), maker_of(n, a, &missing)};
}

static opipe_status stuck(inserter *n) {
  uint32_t rank = 0;
  while (n->next[rank] == n->list->rank_first[rank + 1])
    ++rank;
  return opi_tell_cycle(n->problem, n->list, rank, wait_of, n, "the order deadlocks", &n->arena,
                        n->err);
}

static opipe_status place_messages(inserter *n) {
  const opi_do_list *list = n->list;
  for (bool more = true; more;) {
    bool progress = false;
    more = false;
    for (uint32_t rank = 0; rank < list->n_ranks; ++rank) {
      bool moved = false;
      if (n->next[rank] == list->rank_first[rank + 1])
        continue;
      more = true;
      OPI_TRY(turn(n, rank, &moved));
      progress = progress || moved;
    }
    if (more && !progress)
      return stuck(n);
  }
  return OPIPE_OK;
}

/* Checks only what the pass relies on; opi_pass_check checks that the order is complete. */
static opipe_status check_item(inserter *n, uint32_t rank, uint32_t item) {
  const opi_problem *p = n->problem;
  const opi_do *a = &n->list->items[item];
  const opi_do_place place = opi_place_of(p, n->list, rank, item);
  if (opi_do_is_message(a->kind))
    return opi_fail(n->err, OPIPE_E_INVALID, "%s: the order already has messages", place.text);
  if (!opi_do_is_compute(a->kind) && together(a) == 1)
    return OPIPE_OK;
  if (!opi_do_is_compute(a->kind) || a->stage >= p->n_stages ||
      a->microbatch >= p->n_microbatches || a->slice >= p->n_slices || a->part >= p->n_parts ||
      a->replica >= p->n_replicas || opi_problem_rank(p, a->stage, a->replica) != rank ||
      (p->stage_shares != NULL && a->replica >= p->stage_shares[a->stage]) ||
      (together(a) == 2 && item + 1 == n->list->rank_first[rank + 1]))
    return opi_fail(n->err, OPIPE_E_INVALID, "%s: out of range, or not at home", place.text);
  if (a->kind == OPI_DO_F && flagged(a))
    n->forward[opi_unit(&n->index, a->stage, a->replica, a->microbatch, a->slice, 0)] = OF_NEXT;
  return OPIPE_OK;
}

static opipe_status start(inserter *n) {
  const opi_problem *p = n->problem;
  if (n->list->n_ranks != p->n_ranks) {
    return opi_fail(n->err, OPIPE_E_INVALID, "a list of %u ranks for a schedule of %u",
                    n->list->n_ranks, p->n_ranks);
  }
  OPI_TRY(opi_index_build(p, n->list, &n->arena, &n->index, n->err));
  n->forward = OPI_ARENA_ARRAY(&n->arena, uint8_t, (size_t)n->index.n_units);
  n->input = OPI_ARENA_ARRAY(&n->arena, uint8_t, (size_t)n->index.n_units);
  n->at = OPI_ARENA_ARRAY(&n->arena, uint32_t, p->n_ranks);
  n->next = OPI_ARENA_ARRAY(&n->arena, uint32_t, p->n_ranks);
  if (n->forward == NULL || n->input == NULL || n->at == NULL || n->next == NULL)
    return opi_fail_nomem(n->err, n->index.n_units, "messages");
  memcpy(n->next, n->list->rank_first, p->n_ranks * sizeof(uint32_t));
  for (uint32_t rank = 0; rank < n->list->n_ranks; ++rank) {
    for (uint32_t i = n->list->rank_first[rank]; i < n->list->rank_first[rank + 1]; ++i)
      OPI_TRY(check_item(n, rank, i));
  }
  return OPIPE_OK;
}

/* Counts each rank's actions into n->at. */
static opipe_status count_actions(const inserter *n) {
  const opi_do_list *list = n->list;
  for (uint32_t rank = 0; rank < list->n_ranks; ++rank) {
    for (uint32_t i = list->rank_first[rank], end; i < list->rank_first[rank + 1]; i = end) {
      const bool idle = list->items[i].kind == OPI_DO_IDLE;
      end = i + together(&list->items[i]);
      for (uint32_t k = i; k < end; ++k) {
        if (!idle)
          append(n, rank, list->items[k]);
        OPI_TRY(send_all(n, rank, &list->items[k]));
      }
    }
  }
  return OPIPE_OK;
}

/* Makes the list to fill, of the counted size. */
static opipe_status make_list(inserter *n, const opipe_allocator *allocator, opi_do_list **out_list,
                              opipe_error *err) {
  const uint32_t n_ranks = n->list->n_ranks;
  opi_do_list *out = NULL;
  uint64_t n_items = 0;
  for (uint32_t rank = 0; rank < n_ranks; ++rank)
    n_items += n->at[rank];
  OPI_TRY(opi_do_list_create(allocator, n_ranks, n_items, &out, err));
  for (uint32_t rank = 0; rank < n_ranks; ++rank) {
    out->rank_first[rank + 1] = out->rank_first[rank] + n->at[rank];
    n->at[rank] = out->rank_first[rank];
  }
  out->n_items = (uint32_t)n_items;
  n->items = out->items;
  *out_list = out;
  return OPIPE_OK;
}

opipe_status opi_pass_messages(const opi_problem *problem, const opi_do_list *list,
                               const opipe_allocator *allocator, opi_do_list **out_list,
                               opipe_error *err) {
  inserter n = {.problem = problem, .list = list, .err = err};
  opi_do_list *out = NULL;
  opi_arena_init(&n.arena, allocator, 0);
  opipe_status status = start(&n);
  if (status == OPIPE_OK)
    status = count_actions(&n);
  if (status == OPIPE_OK)
    status = make_list(&n, allocator, &out, err);
  if (status == OPIPE_OK)
    status = place_messages(&n);
  opi_arena_release(&n.arena);
  if (status < 0) {
    opi_do_list_free(out);
    return status;
  }
  *out_list = out;
  return OPIPE_OK;
}
