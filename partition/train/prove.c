/* SPDX-License-Identifier: Apache-2.0 */
/* The proof on exactly the lists that run: all ranks' steps replayed without times, mini-batch
 * after mini-batch, under the executor's own rules and the transport's. A deadlock is an error, and
 * so is an order of messages on which two ranks do not agree where they are matched by it.
 *   TAG, STREAM  a receive is posted in passing; a send waits aside until it is
 *   EDGE, PAIR   so is a receive; a send stops the rank until it is
 *   BLOCKING     sends and receives stop the rank until the other end is there
 *   GROUPED      the same, of all that follow each other at once
 */
#include "partition/train/lists.h"

#include <stdio.h>

#include "partition/schedule/actions.h"

enum { MINI_BATCHES = 3 };

typedef struct proving {
  const opi_plan *plan;
  const opi_train_lists *lists;
  const opi_cut *cut;
  uint8_t *posted, *sent; /* [(n_items + 1) * n_messages] by mini-batch and message */
  uint32_t *item, *step;  /* [n_ranks] where each rank is */
  uint32_t n_items, rule;
  bool periodic;
  opipe_error *err;
} proving;

/* Items of a double-buffered run: prologue, bodies, epilogue; else whole mini-batches. */
static bool takes_part(const proving *p, uint32_t item, const opi_step *step) {
  if (!p->periodic)
    return true;
  if (item == 0)
    return step->next == 1;
  return item + 1 < p->n_items || step->next == 0;
}

static size_t place(const proving *p, uint32_t item, const opi_step *step) {
  const uint32_t batch = p->periodic ? item + step->next - 1 : item;
  return (size_t)batch * p->lists->n_messages + step->route;
}

static bool is_end(const opi_step *step) {
  return step->kind == OPI_ACT_POST || step->kind == OPI_ACT_SEND;
}

/* The rank stands at the end of a message, `left` steps before the end of its list: others see
 * that. */
static void arrive(proving *p, uint32_t item, const opi_step *step, uint32_t left) {
  const uint32_t n = p->rule == OPI_RULE_GROUPED ? left : 1;
  for (uint32_t i = 0; i < n && is_end(&step[i]); ++i) {
    uint8_t *flags = step[i].kind == OPI_ACT_POST ? p->posted : p->sent;
    flags[place(p, item, &step[i])] = 1;
  }
}

/* May the step happen? If so it does. */
static bool advance(proving *p, uint32_t item, const opi_step *step, uint32_t left) {
  const bool meets = p->rule == OPI_RULE_BLOCKING || p->rule == OPI_RULE_GROUPED;
  if (is_end(step))
    arrive(p, item, step, left);
  switch (step->kind) {
    case OPI_ACT_POST:
      return !meets || p->sent[place(p, item, step)] != 0;
    case OPI_ACT_SEND:
      return p->rule <= OPI_RULE_STREAM || p->posted[place(p, item, step)] != 0;
    case OPI_ACT_RECV:
    case OPI_ACT_DRAIN:
      return p->posted[place(p, item, step)] != 0 && p->sent[place(p, item, step)] != 0;
    default:
      return true;
  }
}

static bool run_rank(proving *p, uint32_t rank) {
  const opi_train_lists *l = p->lists;
  bool moved = false;
  while (p->item[rank] < p->n_items) {
    for (; p->step[rank] < l->rank_first[rank + 1]; ++p->step[rank]) {
      const opi_step *step = &l->steps[p->step[rank]];
      if (takes_part(p, p->item[rank], step) &&
          !advance(p, p->item[rank], step, l->rank_first[rank + 1] - p->step[rank]))
        return moved;
      moved = true;
    }
    p->step[rank] = l->rank_first[rank];
    ++p->item[rank];
    moved = true;
  }
  return moved;
}

/* What the rank's step waits for, in words; returns the rank that would bring it. */
static uint32_t describe(const proving *p, uint32_t rank, char *text, size_t room) {
  const opi_step *step = &p->lists->steps[p->step[rank]];
  const opi_train_message *m = &p->lists->messages[step->route];
  const opi_route *route = &p->cut->routes[m->route];
  const opi_train_stream *stream = &p->lists->streams[m->stream];
  const bool posted = p->posted[place(p, p->item[rank], step)] != 0;
  (void)snprintf(text, room,
                 "rank %u at step %u, tensor '%s' of micro-batch %u from rank %u (stage %u) to "
                 "rank %u (stage %u) was %s",
                 rank, p->step[rank] - p->lists->rank_first[rank],
                 p->cut->cells[route->src_cell].name, m->microbatch, stream->src_rank,
                 route->src_stage, stream->dst_rank, route->dst_stage,
                 posted ? "never sent" : "never awaited");
  return posted ? stream->src_rank : stream->dst_rank;
}

/* From the first stopped rank to the one that it waits for, and on, until one comes again. */
static opipe_status stuck(const proving *p) {
  char text[700] = "";
  size_t at = 0;
  uint32_t rank = 0;
  while (rank < p->plan->n_ranks && p->item[rank] == p->n_items)
    ++rank;
  if (rank == p->plan->n_ranks)
    return OPIPE_OK;
  for (uint32_t i = 0, first = rank; i <= p->plan->n_ranks && p->item[rank] < p->n_items; ++i) {
    char one[240];
    if (i > 0 && rank == first)
      break;
    rank = describe(p, rank, one, sizeof one);
    const int n = snprintf(text + at, sizeof text - at, "%s%s", i == 0 ? "" : "; ", one);
    at = n < 0 || (size_t)n >= sizeof text - at ? sizeof text - 1 : at + (size_t)n;
  }
  return opi_fail(p->err, OPIPE_E_INVALID, "schedule '%s' deadlocks: %s", p->plan->schedule, text);
}

/* ---- matching by order ---- */

/* Which operation of a rank with a peer a message is, for both of its ends. EDGE: sends and
 * receives are counted apart. */
static void number_ends(const proving *p, uint32_t rank, uint32_t *counts, uint32_t *sends,
                        uint32_t *posts) {
  const opi_train_lists *l = p->lists;
  for (uint32_t i = l->rank_first[rank]; i < l->rank_first[rank + 1]; ++i) {
    const opi_step *step = &l->steps[i];
    if (!is_end(step))
      continue;
    const bool send = step->kind == OPI_ACT_SEND;
    const opi_train_stream *stream = &l->streams[l->messages[step->route].stream];
    const uint32_t peer = send ? stream->dst_rank : stream->src_rank;
    const uint32_t side = p->rule == OPI_RULE_EDGE && send ? 1 : 0;
    (send ? sends : posts)[step->route] = counts[2 * peer + side]++;
  }
}

static opipe_status refuse_order(const proving *p, uint32_t message, uint32_t send, uint32_t post) {
  const opi_train_message *m = &p->lists->messages[message];
  const opi_train_stream *stream = &p->lists->streams[m->stream];
  return opi_fail(p->err, OPIPE_E_INVALID,
                  "schedule '%s' under rule '%s': tensor '%s' of micro-batch %u is operation %u of "
                  "rank %u with rank %u, and operation %u of rank %u with rank %u",
                  p->plan->schedule, opi_rule_name(p->rule),
                  p->cut->cells[p->cut->routes[m->route].src_cell].name, m->microbatch, send,
                  stream->src_rank, stream->dst_rank, post, stream->dst_rank, stream->src_rank);
}

/* Both ends of a message must be the same operation between the two ranks. */
static opipe_status check_order(const proving *p, opi_arena *scratch) {
  const uint32_t n_ranks = p->plan->n_ranks, n = p->lists->n_messages;
  uint32_t *sends = OPI_ARENA_ARRAY(scratch, uint32_t, n);
  uint32_t *posts = OPI_ARENA_ARRAY(scratch, uint32_t, n);
  if (p->rule != OPI_RULE_EDGE && p->rule != OPI_RULE_PAIR)
    return OPIPE_OK;
  for (uint32_t rank = 0; rank < n_ranks; ++rank) {
    uint32_t *counts = OPI_ARENA_ARRAY(scratch, uint32_t, 2 * (size_t)n_ranks);
    if (counts == NULL || sends == NULL || posts == NULL)
      return opi_fail_nomem(p->err, n * sizeof *sends, "a proof");
    number_ends(p, rank, counts, sends, posts);
  }
  for (uint32_t i = 0; i < n; ++i) {
    if (sends[i] != posts[i])
      return refuse_order(p, i, sends[i], posts[i]);
  }
  return OPIPE_OK;
}

static opipe_status prove(proving *p, opi_arena *scratch) {
  const uint32_t n_ranks = p->plan->n_ranks;
  const size_t n = (size_t)(p->n_items + 1) * p->lists->n_messages;
  p->posted = OPI_ARENA_ARRAY(scratch, uint8_t, n);
  p->sent = OPI_ARENA_ARRAY(scratch, uint8_t, n);
  p->item = OPI_ARENA_ARRAY(scratch, uint32_t, n_ranks);
  p->step = OPI_ARENA_ARRAY(scratch, uint32_t, n_ranks);
  if (p->posted == NULL || p->sent == NULL || p->item == NULL || p->step == NULL)
    return opi_fail_nomem(p->err, n, "a proof");
  for (uint32_t rank = 0; rank < n_ranks; ++rank)
    p->step[rank] = p->lists->rank_first[rank];
  OPI_TRY(check_order(p, scratch));
  for (bool moved = true; moved;) {
    moved = false;
    for (uint32_t rank = 0; rank < n_ranks; ++rank)
      moved = run_rank(p, rank) || moved;
  }
  return stuck(p);
}

opipe_status opi_train_lists_prove(const opi_plan *plan, const opi_train_lists *lists,
                                   const opi_cut *cut, const opipe_allocator *allocator,
                                   opipe_error *err) {
  const bool periodic = plan->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED;
  proving p = {.plan = plan,
               .lists = lists,
               .cut = cut,
               .n_items = periodic ? MINI_BATCHES + 1 : 2,
               .rule = plan->n_ranks > 1 ? plan->link.rule : OPI_RULE_TAG,
               .periodic = periodic,
               .err = err};
  opi_arena scratch;
  opi_arena_init(&scratch, allocator, 0);
  const opipe_status status = prove(&p, &scratch);
  opi_arena_release(&scratch);
  return status;
}
