/* SPDX-License-Identifier: Apache-2.0 */
/* Matches sends with receives, and checks that both ends agree on the order if the rule matches in
 * order. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "partition/schedule/proof.h"

enum { MESSAGES_MOST = 1 << 27 };

uint32_t opi_rank_of_item(const opi_do_list *list, uint32_t item) {
  uint32_t low = 0, high = list->n_ranks;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    if (list->rank_first[middle] <= item)
      low = middle;
    else
      high = middle;
  }
  return low;
}

opi_do_place opi_prover_place(const opi_prover *v, uint32_t item) {
  return opi_place_of(v->problem, v->list, opi_rank_of_item(v->list, item), item);
}

uint64_t opi_message_index(const opi_prover *v, uint32_t step, uint32_t edge, bool forward,
                           uint32_t microbatch, uint32_t slice, uint32_t part, uint32_t src_replica,
                           uint32_t dst_replica) {
  const opi_problem *p = v->problem;
  const uint64_t shares = v->index.n_shares;
  const bool shared = p->stage_shares != NULL;
  uint64_t at = ((uint64_t)step * p->n_edges + edge) * 2 + !forward;
  at = ((at * p->n_microbatches + microbatch) * p->n_slices + slice) * p->n_parts + part;
  return (at * shares + (shared ? src_replica : 0)) * shares + (shared ? dst_replica : 0);
}

static bool is_forward(const opi_do *a) {
  return a->kind == OPI_DO_SEND_F || a->kind == OPI_DO_RECV_F;
}
static bool is_send(const opi_do *a) {
  return a->kind == OPI_DO_SEND_F || a->kind == OPI_DO_SEND_B;
}

uint64_t opi_message_of(const opi_prover *v, uint32_t item) {
  const opi_do *a = &v->list->items[item];
  const bool at_src = is_forward(a) == is_send(a);
  return opi_message_index(v, opi_step_of(v, item), a->edge, is_forward(a), a->microbatch, a->slice,
                           a->part, at_src ? a->replica : a->peer, at_src ? a->peer : a->replica);
}

OPIPE_PRINTF(3, 4)
static opipe_status refuse(const opi_prover *v, uint32_t item, const char *fmt, ...) {
  char why[300];
  const opi_do_place place = opi_prover_place(v, item);
  va_list args;
  va_start(args, fmt);
  (void)vsnprintf(why, sizeof why, fmt, args);
  va_end(args);
  return opi_fail(v->err, OPIPE_E_INVALID, "%s: %s", place.text, why);
}

/* ---- both ends ---- */

/* Whether replica `with` of the other end is a possible peer of this message. */
static bool is_peer(const opi_prover *v, const opi_do *a, uint32_t other) {
  uint32_t first = 0;
  const uint32_t count = opi_peers(&v->index, other, a->microbatch, a->stage, a->replica, &first);
  return a->peer >= first && a->peer < first + count;
}

static opipe_status check_end(const opi_prover *v, uint32_t rank, uint32_t item) {
  const opi_problem *p = v->problem;
  const opi_do *a = &v->list->items[item];
  if (a->edge >= p->n_edges)
    return refuse(v, item, "there is no such edge between stages");
  const opi_stage_edge edge = p->edges[a->edge];
  const bool at_src = is_forward(a) == is_send(a);
  const uint32_t own = at_src ? edge.src : edge.dst, other = at_src ? edge.dst : edge.src;
  if (a->stage != own || a->microbatch >= p->n_microbatches || a->slice >= p->n_slices ||
      a->part >= p->n_parts || a->replica >= p->n_replicas || a->peer >= p->n_replicas ||
      (is_forward(a) && a->part != 0)) {
    return refuse(v, item,
                  "stage %u (edge %u -> %u), micro-batch %u of %u, slice %u of %u, part %u of %u",
                  a->stage, edge.src, edge.dst, a->microbatch, p->n_microbatches, a->slice,
                  p->n_slices, a->part, p->n_parts);
  }
  if (opi_problem_rank(p, own, a->replica) != rank)
    return refuse(v, item, "stage %u, replica %u does not live on this rank", own, a->replica);
  uint32_t first = 0;
  const uint32_t count = opi_peers(&v->index, own, a->microbatch, other, a->peer, &first);
  if (!is_peer(v, a, other) || a->replica < first || a->replica >= first + count)
    return refuse(v, item, "micro-batch %u does not go between these replicas", a->microbatch);
  if (opi_problem_rank(p, other, a->peer) == rank) {
    return refuse(v, item, "stages %u and %u are on one rank: nothing is sent between them", own,
                  other);
  }
  return OPIPE_OK;
}

static opipe_status note_ends(const opi_prover *v) {
  for (uint32_t rank = 0; rank < v->list->n_ranks; ++rank) {
    for (uint32_t i = v->list->rank_first[rank]; i < v->list->rank_first[rank + 1]; ++i) {
      const opi_do *a = &v->list->items[i];
      if (!opi_do_is_message(a->kind))
        continue;
      OPI_TRY(check_end(v, rank, i));
      const uint64_t m = opi_message_of(v, i);
      uint32_t *end = is_send(a) ? &v->send_item[m] : &v->recv_item[m];
      if (*end != OPIPE_NONE)
        return refuse(v, i, "it occurs twice");
      *end = i;
    }
  }
  return OPIPE_OK;
}

static opipe_status check_pairs(const opi_prover *v) {
  for (uint64_t m = 0; m < v->n_messages; ++m) {
    if (v->send_item[m] != OPIPE_NONE && v->recv_item[m] == OPIPE_NONE)
      return refuse(v, v->send_item[m], "nobody receives it");
    if (v->recv_item[m] != OPIPE_NONE && v->send_item[m] == OPIPE_NONE)
      return refuse(v, v->recv_item[m], "nobody sends it");
  }
  return OPIPE_OK;
}

/* ---- order ---- */

static uint64_t channel_of(const opi_prover *v, uint32_t rule, uint32_t item) {
  const opi_problem *p = v->problem;
  const opi_do *a = &v->list->items[item];
  const opi_stage_edge edge = p->edges[a->edge];
  const bool at_src = is_forward(a) == is_send(a);
  const uint32_t own = opi_problem_rank(p, a->stage, a->replica);
  const uint32_t other = opi_problem_rank(p, at_src ? edge.dst : edge.src, a->peer);
  const uint32_t from = is_send(a) ? own : other, to = is_send(a) ? other : own;
  if (rule == OPI_RULE_EDGE)
    return ((uint64_t)from * p->n_ranks + to) * 2 + is_send(a);
  if (rule == OPI_RULE_PAIR) {
    return ((uint64_t)(from < to ? from : to) * p->n_ranks + (from < to ? to : from)) * 2 +
           (own < other);
  }
  const uint64_t replicas = at_src ? (uint64_t)a->replica * p->n_replicas + a->peer
                                   : (uint64_t)a->peer * p->n_replicas + a->replica;
  return ((((uint64_t)a->edge * 2 + is_forward(a)) * p->n_replicas * p->n_replicas) + replicas) *
             2 +
         is_send(a);
}

/* One rank's end of a channel: its messages are items[first] ... in the rank's order. */
typedef struct channel_end {
  uint64_t key;
  uint32_t first, n;
} channel_end;

typedef struct sorted_ends {
  opi_arena arena;
  channel_end *ends; /* by key */
  uint32_t *items;
  uint32_t n, room;
} sorted_ends;

/* An item while one rank is sorted. */
typedef struct keyed_item {
  uint64_t key;
  uint32_t item;
} keyed_item;

static int by_item(const void *a, const void *b) {
  const keyed_item *x = a, *y = b;
  if (x->key != y->key)
    return x->key < y->key ? -1 : 1;
  return x->item < y->item ? -1 : x->item > y->item;
}

static int by_key(const void *a, const void *b) {
  const channel_end *x = a, *y = b;
  return x->key < y->key ? -1 : x->key > y->key;
}

static bool add_ends(sorted_ends *s, const keyed_item *keyed, uint32_t n, uint32_t first) {
  for (uint32_t i = 0; i < n; ++i) {
    if (i == 0 || keyed[i].key != keyed[i - 1].key) {
      if (!opi_arena_grow(&s->arena, (void **)&s->ends, &s->room, s->n + 1, sizeof *s->ends))
        return false;
      s->ends[s->n++] = (channel_end){keyed[i].key, first + i, 0};
    }
    s->items[first + i] = keyed[i].item;
    ++s->ends[s->n - 1].n;
  }
  return true;
}

/* Sorts rank by rank, which keeps each sort small: an end belongs to one rank. */
static bool sort_ends(const opi_prover *v, uint32_t rule, sorted_ends *s) {
  const opi_do_list *list = v->list;
  uint32_t n = 0, most = 0;
  for (uint32_t rank = 0; rank < list->n_ranks; ++rank) {
    const uint32_t before = n;
    for (uint32_t i = list->rank_first[rank]; i < list->rank_first[rank + 1]; ++i)
      n += opi_do_is_message(list->items[i].kind);
    most = n - before > most ? n - before : most;
  }
  s->items = OPI_ARENA_ARRAY(&s->arena, uint32_t, n);
  keyed_item *keyed = OPI_ARENA_ARRAY(&s->arena, keyed_item, most);
  bool fits = s->items != NULL && keyed != NULL;
  n = 0;
  for (uint32_t rank = 0; fits && rank < list->n_ranks; ++rank) {
    uint32_t here = 0;
    for (uint32_t i = list->rank_first[rank]; i < list->rank_first[rank + 1]; ++i) {
      if (opi_do_is_message(list->items[i].kind))
        keyed[here++] = (keyed_item){channel_of(v, rule, i), i};
    }
    qsort(keyed, here, sizeof *keyed, by_item);
    fits = add_ends(s, keyed, here, n);
    n += here;
  }
  if (fits && s->n > 0)
    qsort(s->ends, s->n, sizeof *s->ends, by_key);
  return fits;
}

static uint32_t other_end(const opi_prover *v, uint32_t item) {
  const uint64_t m = opi_message_of(v, item);
  return is_send(&v->list->items[item]) ? v->recv_item[m] : v->send_item[m];
}

/* Refuses two ends that meet as operation `k` of a channel and are of two messages: each waits for
 * its own counterpart, which stands after the other. */
static opipe_status refuse_order(const opi_prover *v, uint32_t here, uint32_t there, uint32_t k) {
  const opi_do_place a = opi_prover_place(v, here), b = opi_prover_place(v, there);
  const opi_do_place of_a = opi_prover_place(v, other_end(v, here));
  const opi_do_place of_b = opi_prover_place(v, other_end(v, there));
  return opi_fail(v->err, OPIPE_E_INVALID,
                  "deadlock (rule %s): %s waits for %s; %s waits for %s; messages meet in order, "
                  "and number %u between these two is not the same at both ends",
                  opi_rule_name(v->rule), a.text, of_a.text, b.text, of_b.text, k);
}

/* After sorting, both ends of a channel are adjacent and equally long. */
static opipe_status check_order(const opi_prover *v, const sorted_ends *s) {
  for (uint32_t e = 0; e + 1 < s->n; e += 2) {
    const uint32_t *here = &s->items[s->ends[e].first], *there = &s->items[s->ends[e + 1].first];
    for (uint32_t k = 0; k < s->ends[e].n && k < s->ends[e + 1].n; ++k) {
      if (opi_message_of(v, here[k]) != opi_message_of(v, there[k]))
        return refuse_order(v, here[k], there[k], k);
    }
  }
  return OPIPE_OK;
}

static opipe_status note_slots(opi_prover *v, const sorted_ends *s) {
  const opi_problem *p = v->problem;
  v->send_before = OPI_ARENA_ARRAY(v->arena, uint32_t, (size_t)v->n_messages + 1);
  v->recv_before = OPI_ARENA_ARRAY(v->arena, uint32_t, (size_t)v->n_messages + 1);
  if (v->send_before == NULL || v->recv_before == NULL)
    return opi_fail_nomem(v->err, v->n_messages * sizeof(uint32_t), "slots of messages");
  memset(v->send_before, 0xff, v->n_messages * sizeof(uint32_t));
  memset(v->recv_before, 0xff, v->n_messages * sizeof(uint32_t));
  for (uint32_t e = 0; e < s->n; ++e) {
    const bool sends = (s->ends[e].key & 1) != 0;
    const uint32_t slots = sends ? p->send_slots : p->recv_slots;
    const uint32_t *items = &s->items[s->ends[e].first];
    uint32_t *before = sends ? v->send_before : v->recv_before;
    for (uint32_t i = slots; slots > 0 && i < s->ends[e].n; ++i)
      before[opi_message_of(v, items[i])] = (uint32_t)opi_message_of(v, items[i - slots]);
  }
  return OPIPE_OK;
}

/* Compares the order of each channel's messages, or counts their slots. */
static opipe_status with_ends(opi_prover *v, uint32_t rule, bool slots) {
  sorted_ends s = {.n = 0};
  opi_arena_init(&s.arena, v->arena->allocator, 0);
  opipe_status status = OPIPE_OK;
  if (!sort_ends(v, rule, &s))
    status = opi_fail_nomem(v->err, v->n_messages * sizeof(uint32_t), "the proof of a schedule");
  else
    status = slots ? note_slots(v, &s) : check_order(v, &s);
  opi_arena_release(&s.arena);
  return status;
}

opipe_status opi_match_messages(opi_prover *v) {
  const opi_problem *p = v->problem;
  uint64_t n = (uint64_t)v->n_steps * 2;
  if (opi_mul_u64(n, p->n_edges, &n) || opi_mul_u64(n, p->n_microbatches, &n) ||
      opi_mul_u64(n, (uint64_t)p->n_slices * p->n_parts, &n) ||
      opi_mul_u64(n, (uint64_t)v->index.n_shares * v->index.n_shares, &n) || n > MESSAGES_MOST) {
    return opi_fail(v->err, OPIPE_E_LIMIT, "%u edges x %u micro-batches: at most %d messages",
                    p->n_edges, p->n_microbatches, MESSAGES_MOST);
  }
  v->n_messages = n;
  v->send_item = OPI_ARENA_ARRAY(v->arena, uint32_t, (size_t)n + 1);
  v->recv_item = OPI_ARENA_ARRAY(v->arena, uint32_t, (size_t)n + 1);
  if (v->send_item == NULL || v->recv_item == NULL)
    return opi_fail_nomem(v->err, n * sizeof(uint32_t), "the proof of a schedule");
  memset(v->send_item, 0xff, n * sizeof(uint32_t));
  memset(v->recv_item, 0xff, n * sizeof(uint32_t));
  OPI_TRY(note_ends(v));
  OPI_TRY(check_pairs(v));
  if (v->rule == OPI_RULE_STREAM || v->rule == OPI_RULE_EDGE || v->rule == OPI_RULE_PAIR)
    OPI_TRY(with_ends(v, v->rule, false));
  return p->send_slots != 0 || p->recv_slots != 0 ? with_ends(v, OPI_RULE_STREAM, true) : OPIPE_OK;
}
