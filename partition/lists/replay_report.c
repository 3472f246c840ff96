/* SPDX-License-Identifier: Apache-2.0 */
/* The findings of a replay: ranks that wait for each other, or disagree on the order of messages.
 */
#include <stdio.h>

#include "partition/lists/replaying.h"

/* ---- reports of deadlocks ---- */

static const char *tensor_of(const opi_replay *p, uint32_t message) {
  const opi_list_message *m = &p->lists->messages[message];
  return m->route == OPI_ROUTE_CREDIT ? "(credit)"
                                      : p->cut->cells[p->cut->routes[m->route].src_cell].name;
}

/* "rank 1 (stage 2, token slice 0)": the stage is the schedule's. */
static const char *place_of(const opi_replay *p, uint32_t rank, uint32_t stage, char *out,
                            size_t room) {
  const uint32_t n = p->plan->n_pieces;
  const int used = snprintf(out, room, "rank %u (stage %u", rank, stage / n);
  const size_t at = used < 0 || (size_t)used >= room ? room - 1 : (size_t)used;
  if (p->plan->whole->n_slices > 1) {
    (void)snprintf(out + at, room - at, ", token slice %u)",
                   opi_piece_place_of(p->plan->whole, stage % n).slice);
  } else {
    (void)snprintf(out + at, room - at, ")");
  }
  return out;
}

/* Names a rank of the group that has not reached its update. */
static uint32_t describe_update(const opi_replay *p, uint32_t rank, char *text, size_t room) {
  uint32_t other = 0;
  while (p->group[other] != p->group[rank] || p->item[other] > p->item[rank] ||
         (p->item[other] == p->item[rank] && p->updates[other]))
    ++other;
  (void)snprintf(text, room, "rank %u at step %u, the update, waits for rank %u to come to its own",
                 rank, p->step[rank] - p->lists->rank_first[rank], other);
  return other;
}

/* The sum for which the rank's step waits; OPIPE_NONE: none. */
static uint32_t missing_sum(const opi_replay *p, uint32_t rank) {
  const opi_step *step = &p->lists->steps[p->step[rank]];
  if (step->kind == OPI_ACT_AWAIT || (opi_step_is_sum(step) && p->comes[rank]))
    return step->route;
  return step->kind == OPI_ACT_UPDATE
             ? opi_meetings_missing(&p->meetings, rank, opi_replay_batch_of(p, rank, step))
             : OPIPE_NONE;
}

/* Names a rank that has not come to a sum, or the cycle of sums, which is then all of it. */
static uint32_t describe_sum(const opi_replay *p, uint32_t rank, uint32_t sum, char *text,
                             size_t room) {
  const opi_step *step = &p->lists->steps[p->step[rank]];
  const int n = snprintf(text, room, "rank %u at step %u%s waits for a sum: ", rank,
                         p->step[rank] - p->lists->rank_first[rank],
                         step->kind == OPI_ACT_UPDATE ? ", the update," : "");
  const size_t at = n < 0 || (size_t)n >= room ? room - 1 : (size_t)n;
  const uint32_t other = opi_meetings_describe(&p->meetings, opi_replay_batch_of(p, rank, step),
                                               sum, text + at, room - at);
  return other == OPIPE_NONE ? rank : other;
}

/* Describes what the rank's step waits for; returns the rank that would bring it. */
static uint32_t describe(const opi_replay *p, uint32_t rank, char *text, size_t room) {
  const opi_step *step = &p->lists->steps[p->step[rank]];
  const uint32_t sum = missing_sum(p, rank);
  if (sum != OPIPE_NONE)
    return describe_sum(p, rank, sum, text, room);
  if (step->kind == OPI_ACT_UPDATE)
    return describe_update(p, rank, text, room);
  const opi_list_message *m = &p->lists->messages[step->route];
  const opi_list_stream *stream = &p->lists->streams[m->stream];
  const bool posted = opi_replay_ends_of(p, p->item[rank], step)->at[POSTED] >= 0;
  char src[64], dst[64];
  (void)snprintf(text, room,
                 "rank %u at step %u, tensor '%s' of micro-batch %u from %s to %s was %s", rank,
                 p->step[rank] - p->lists->rank_first[rank], tensor_of(p, step->route),
                 m->microbatch, place_of(p, stream->src_rank, stream->src_stage, src, sizeof src),
                 place_of(p, stream->dst_rank, stream->dst_stage, dst, sizeof dst),
                 posted ? "never sent" : "never awaited");
  return posted ? stream->src_rank : stream->dst_rank;
}

static int say_sum(const opi_list_meeting *meeting, const char *before, char *out, size_t room) {
  return meeting->tensor == NULL
             ? snprintf(out, room, "%s sum of stage %u", before, meeting->stage)
             : snprintf(out, room, "%s sum of '%.40s'", before, meeting->tensor);
}

/* Writes the rank's next operations, from the one that it stands at: its list as far as the cycle
 * needs it. Returns the text's length. */
static size_t list_queue(const opi_replay *p, uint32_t rank, char *out, size_t room) {
  enum { OPERATIONS = 3 };
  const opi_lists *l = p->lists;
  size_t at = 0;
  uint32_t n = 0;
  for (uint32_t i = p->step[rank]; i < l->rank_first[rank + 1] && n < OPERATIONS && at < room;
       ++i) {
    const opi_step *step = &l->steps[i];
    int more = 0;
    if (opi_step_is_sum(step) && step->route != OPIPE_NONE) {
      more = say_sum(&l->meetings[step->route], n == 0 ? "" : ",", out + at, room - at);
    } else if (opi_step_is_end(step)) {
      const opi_list_stream *s = &l->streams[l->messages[step->route].stream];
      const bool sends = step->kind == OPI_ACT_SEND;
      more = snprintf(out + at, room - at, "%s %s %u of micro-batch %u", n == 0 ? "" : ",",
                      sends ? "to" : "from", sends ? s->dst_rank : s->src_rank,
                      l->messages[step->route].microbatch);
    } else {
      continue;
    }
    at += more > 0 ? (size_t)more : 0;
    ++n;
  }
  return at < room ? at : room - 1;
}

/* Adds what the ranks of the cycle issue next, if messages and sums are one queue. */
static void add_queues(const opi_replay *p, uint32_t first, uint32_t second, char *text, size_t at,
                       size_t room) {
  const uint32_t ranks[2] = {first, second};
  for (uint32_t i = 0; p->one_queue && i < 2 && ranks[i] != OPIPE_NONE && at < room; ++i) {
    const int n = snprintf(text + at, room - at, "; rank %u issues", ranks[i]);
    at += n > 0 ? (size_t)n : 0;
    if (at < room)
      at += list_queue(p, ranks[i], text + at, room - at);
  }
}

/* Follows "waits for" from the first stopped rank until one repeats, and reports that cycle. */
opipe_status opi_replay_stuck(const opi_replay *p) {
  char text[700] = "";
  size_t at = 0;
  uint32_t rank = 0, last = OPIPE_NONE;
  while (rank < p->plan->n_ranks && p->item[rank] == p->n_items)
    ++rank;
  if (rank == p->plan->n_ranks)
    return OPIPE_OK;
  const uint32_t first = rank;
  for (uint32_t i = 0; i <= p->plan->n_ranks && p->item[rank] < p->n_items; ++i) {
    char one[480];
    if (i > 0 && (rank == first || rank == last)) /* a cycle; or a rank's own later step */
      break;
    last = rank;
    rank = describe(p, rank, one, sizeof one);
    const int n = snprintf(text + at, sizeof text - at, "%s%s", i == 0 ? "" : "; ", one);
    at = n < 0 || (size_t)n >= sizeof text - at ? sizeof text - 1 : at + (size_t)n;
  }
  add_queues(p, first, last == first ? OPIPE_NONE : last, text, at, sizeof text);
  return opi_fail(p->err, OPIPE_E_INVALID, "schedule '%s' deadlocks: %s",
                  p->plan->whole->schedule.name, text);
}

/* ---- matching by order ---- */

/* Numbers the operations of a rank with a peer, at both ends of each message. EDGE: sends and
 * receives are counted apart. */
static void number_ends(const opi_replay *p, uint32_t rank, uint32_t *counts, uint32_t *sends,
                        uint32_t *posts) {
  const opi_lists *l = p->lists;
  for (uint32_t i = l->rank_first[rank]; i < l->rank_first[rank + 1]; ++i) {
    const opi_step *step = &l->steps[i];
    if (!opi_step_is_end(step))
      continue;
    const bool send = step->kind == OPI_ACT_SEND;
    const opi_list_stream *stream = &l->streams[l->messages[step->route].stream];
    const uint32_t peer = send ? stream->dst_rank : stream->src_rank;
    const uint32_t side = p->rule == OPI_RULE_EDGE && send ? 1 : 0;
    (send ? sends : posts)[step->route] = counts[2 * peer + side]++;
  }
}

static opipe_status refuse_order(const opi_replay *p, uint32_t message, uint32_t send,
                                 uint32_t post) {
  const opi_list_message *m = &p->lists->messages[message];
  const opi_list_stream *stream = &p->lists->streams[m->stream];
  return opi_fail(p->err, OPIPE_E_INVALID,
                  "schedule '%s' under rule '%s': tensor '%s' of micro-batch %u is operation %u of "
                  "rank %u with rank %u, and operation %u of rank %u with rank %u",
                  p->plan->whole->schedule.name, opi_rule_name(p->rule), tensor_of(p, message),
                  m->microbatch, send, stream->src_rank, stream->dst_rank, post, stream->dst_rank,
                  stream->src_rank);
}

/* Both ends of a message must be the same operation between the two ranks. */
opipe_status opi_replay_check_order(const opi_replay *p, opi_arena *scratch) {
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
