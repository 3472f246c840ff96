/* SPDX-License-Identifier: Apache-2.0 */
/* Executes a lowered list over a transport, all ranks in turns, each as far as it comes: computes
 * do nothing but wait for what they read. Sends that the transport does not take wait aside, as
 * those of an executor. */
#ifndef TESTS_DRIVE_H
#define TESTS_DRIVE_H

#include <stdio.h>

#include "opipe/transport.h"
#include "tests/partition/schedule/interleavings.h"

enum { DRIVE_DEPTH = 64, DRIVE_LINES = 256, DRIVE_WAITING = 256 };

/* Messages of a stream are numbered in the sender's order. */
typedef struct drive_line {
  opipe_stream *ends[2]; /* sender's, receiver's */
} drive_line;

typedef struct driver {
  replay r;
  replay_tables tables;
  const opipe_transport *table;
  opipe_world *world;
  opipe_endpoint *endpoints[REPLAY_RANKS];
  drive_line lines[DRIVE_LINES];              /* of the sender, see drive_line_index */
  uint64_t sequence[REPLAY_ITEMS];            /* of messages */
  bool sent[REPLAY_ITEMS];                    /* accepted */
  uint32_t n_waiting, waiting[DRIVE_WAITING]; /* sends that were tried, in order */
} driver;

static inline uint32_t drive_line_index(const opi_problem *p, uint32_t stage, bool backward,
                                        uint32_t replica, uint32_t peer) {
  return ((stage * 2 + backward) * p->n_replicas + replica) * p->n_replicas + peer;
}

static inline opipe_status drive_open_line(driver *d, uint32_t stage, bool backward,
                                           uint32_t replica, uint32_t peer, opipe_error *err) {
  const opi_problem *p = d->r.p;
  const uint32_t other = backward ? stage - 1 : stage + 1;
  drive_line *line = &d->lines[drive_line_index(p, stage, backward, replica, peer)];
  const opipe_stream_params params = {.struct_size = sizeof(params),
                                      .kind = backward,
                                      .src_rank = p->instance_rank[stage * p->n_replicas + replica],
                                      .dst_rank = p->instance_rank[other * p->n_replicas + peer],
                                      .src_stage = stage,
                                      .dst_stage = other,
                                      .src_replica = replica,
                                      .dst_replica = peer,
                                      .depth = DRIVE_DEPTH};
  if (params.src_rank == params.dst_rank)
    return OPIPE_OK;
  OPI_TRY(d->table->stream_open(d->endpoints[params.src_rank], &params, &line->ends[0], err));
  return d->table->stream_open(d->endpoints[params.dst_rank], &params, &line->ends[1], err);
}

static inline opipe_status drive_open_lines(driver *d, opipe_error *err) {
  const opi_problem *p = d->r.p;
  const uint32_t n = p->n_replicas;
  for (uint32_t k = 0; k < p->n_stages * 2 * n * n; ++k) {
    const uint32_t stage = k / n / n / 2;
    const bool backward = k / n / n % 2 != 0;
    if (backward ? stage == 0 : stage + 1 == p->n_stages)
      continue;
    OPI_TRY(drive_open_line(d, stage, backward, k / n % n, k % n, err));
  }
  return OPIPE_OK;
}

static inline opipe_status drive_open(driver *d, opipe_instance *self, uint32_t rule,
                                      opipe_error *err) {
  char options[32];
  (void)snprintf(options, sizeof options, "rule=%s", opi_rule_name(rule));
  const opipe_world_params params = {sizeof(params), d->r.p->n_ranks, options};
  OPI_TRY(d->table->world_open(self, &params, &d->world, err));
  for (uint32_t rank = 0; rank < d->r.p->n_ranks; ++rank) {
    const opipe_endpoint_params own = {.struct_size = sizeof(own), .rank = rank};
    OPI_TRY(d->table->endpoint_open(d->world, &own, &d->endpoints[rank], err));
  }
  return drive_open_lines(d, err);
}

static inline void drive_close(driver *d) {
  for (uint32_t k = 0; k < DRIVE_LINES; ++k) {
    for (uint32_t end = 0; end < 2; ++end) {
      if (d->lines[k].ends[end] != NULL)
        d->table->stream_close(d->lines[k].ends[end]);
    }
  }
  for (uint32_t rank = 0; rank < d->r.p->n_ranks; ++rank) {
    if (d->endpoints[rank] != NULL)
      d->table->endpoint_close(d->endpoints[rank]);
  }
  if (d->world != NULL)
    d->table->world_close(d->world);
}

/* The sending item of a message's either end. */
static inline uint32_t drive_sender(const driver *d, uint32_t item) {
  return replay_sends(&d->r.list->items[item]) ? item : d->tables.other[item];
}

static inline drive_line *drive_line_of(driver *d, uint32_t item) {
  const opi_do *a = &d->r.list->items[drive_sender(d, item)];
  return &d->lines[drive_line_index(d->r.p, a->stage, a->kind == OPI_DO_SEND_B, a->replica,
                                    a->peer)];
}

static inline bool drive_same_line(const opi_do *a, const opi_do *b) {
  return a->kind == b->kind && a->stage == b->stage && a->replica == b->replica &&
         a->peer == b->peer;
}

static inline void drive_number(driver *d) {
  const opi_do_list *list = d->r.list;
  for (uint32_t i = 0; i < list->n_items; ++i) {
    if (!opi_do_is_message(list->items[i].kind))
      continue;
    const uint32_t send = drive_sender(d, i);
    for (uint32_t k = list->rank_first[d->tables.rank[send]]; k < send; ++k)
      d->sequence[i] += drive_same_line(&list->items[k], &list->items[send]);
  }
}

/* OK, PENDING, or an error: the rule is broken. */
static inline opipe_status drive_try(driver *d, uint32_t item) {
  const opipe_region nothing = {0};
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_status status = d->table->send(drive_line_of(d, item)->ends[0], d->sequence[item],
                                             &nothing, NULL, NULL, &err);
  d->sent[item] = d->sent[item] || status == OPIPE_OK;
  return status;
}

static inline opipe_status drive_arrived(driver *d, uint32_t item) {
  opipe_error err = OPIPE_ERROR_INIT;
  const bool sends = replay_sends(&d->r.list->items[item]);
  if (sends && !d->sent[item])
    return OPIPE_PENDING;
  return d->table->test(drive_line_of(d, item)->ends[!sends], d->sequence[item], &err);
}

/* An earlier send of the same stream waits: streams take them in order. */
static inline bool drive_behind(const driver *d, uint32_t item) {
  for (uint32_t i = 0; i < d->n_waiting; ++i) {
    const opi_do *a = &d->r.list->items[d->waiting[i]], *b = &d->r.list->items[item];
    if (d->waiting[i] == item)
      return false;
    if (d->r.rule == OPI_RULE_STREAM && drive_same_line(a, b))
      return true;
  }
  return false;
}

static inline opipe_status drive_retry(driver *d, bool *io_moved) {
  uint32_t kept = 0;
  const uint32_t n = d->n_waiting;
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t item = d->waiting[i];
    const opipe_status status = drive_behind(d, item) ? OPIPE_PENDING : drive_try(d, item);
    if (status < 0)
      return status;
    if (status == OPIPE_PENDING)
      d->waiting[kept++] = item;
    *io_moved = *io_moved || status == OPIPE_OK;
    memmove(&d->waiting[kept], &d->waiting[i + 1], (n - i - 1) * sizeof(uint32_t));
    d->n_waiting = kept + (n - i - 1);
    memmove(&d->waiting[i + 1], &d->waiting[kept], (n - i - 1) * sizeof(uint32_t));
  }
  d->n_waiting = kept;
  return OPIPE_OK;
}

/* Is everything that compute `item` reads there? */
static inline opipe_status drive_inputs(driver *d, uint32_t item) {
  const replay_tables *t = &d->tables;
  for (uint32_t n = 0; n < REPLAY_NEEDS && t->needs[item][n] != OPIPE_NONE; ++n) {
    if (!replay_done(&d->r, t->needs[item][n]))
      return OPIPE_PENDING;
  }
  if (!t->reads[item])
    return OPIPE_OK;
  if (t->receive[item] == OPIPE_NONE)
    return replay_done(&d->r, t->made[item]) ? OPIPE_OK : OPIPE_PENDING;
  return replay_done(&d->r, t->receive[item]) ? drive_arrived(d, t->receive[item]) : OPIPE_PENDING;
}

/* Tests the messages in front of a compute, which closes their group. */
static inline bool drive_group_ended(driver *d, uint32_t rank, uint32_t item) {
  bool ended = true;
  for (uint32_t i = item; i-- > d->r.list->rank_first[rank];) {
    if (!opi_do_is_message(d->r.list->items[i].kind))
      break;
    ended = drive_arrived(d, i) == OPIPE_OK && ended;
  }
  return ended;
}

static inline opipe_status drive_step(driver *d, uint32_t rank) {
  const uint32_t item = d->r.at[rank];
  const opi_do *a = &d->r.list->items[item];
  const opipe_region nothing = {0};
  opipe_error err = OPIPE_ERROR_INIT;
  if (!opi_do_is_message(a->kind)) {
    if (d->r.rule == OPI_RULE_GROUPED && !drive_group_ended(d, rank, item))
      return OPIPE_PENDING;
    return opi_do_is_compute(a->kind) ? drive_inputs(d, item) : OPIPE_OK;
  }
  if (!replay_sends(a))
    return d->table->recv(drive_line_of(d, item)->ends[1], d->sequence[item], &nothing, NULL, &err);
  if (!replay_done(&d->r, d->tables.producer[item]))
    return OPIPE_PENDING;
  if (d->r.rule == OPI_RULE_BLOCKING) /* the rank stands still: nothing may begin before it */
    return drive_try(d, item);
  d->waiting[d->n_waiting++] = item;
  const opipe_status status = drive_behind(d, item) ? OPIPE_PENDING : drive_try(d, item);
  if (status == OPIPE_OK)
    --d->n_waiting;
  return status < 0 ? status : OPIPE_OK; /* it waits in the background */
}

/* Groups end with a test, also those of sends that wait: rounds until nothing moves. */
static inline bool drive_all(driver *d) {
  const opi_do_list *list = d->r.list;
  for (bool moved = true; moved;) {
    moved = false;
    for (uint32_t rank = 0; rank < list->n_ranks; ++rank) {
      opipe_status status = drive_retry(d, &moved);
      while (status == OPIPE_OK && d->r.at[rank] < list->rank_first[rank + 1]) {
        status = drive_step(d, rank);
        if (status == OPIPE_OK) {
          ++d->r.at[rank];
          moved = true;
        }
      }
      if (status < 0)
        return false;
    }
  }
  for (uint32_t rank = 0; rank < list->n_ranks; ++rank) {
    if (d->r.at[rank] < list->rank_first[rank + 1])
      return false;
  }
  for (uint32_t i = 0; i < list->n_items; ++i) {
    if (opi_do_is_message(list->items[i].kind) && drive_arrived(d, i) != OPIPE_OK)
      return false;
  }
  return true;
}

/* Does the list run to its end over the transport under the rule? *out_status below 0: the world
 * did not open. */
static inline bool drive_runs(const opipe_transport *table, opipe_instance *self,
                              const opi_problem *p, const opi_do_list *list, uint32_t rule,
                              opipe_status *out_status, opipe_error *err) {
  static driver d;
  memset(&d, 0, sizeof d);
  d.r = (replay){.p = p, .list = list, .rule = rule};
  d.table = table;
  replay_tabulate(&d.r, &d.tables);
  memcpy(d.r.at, list->rank_first, list->n_ranks * sizeof(uint32_t));
  drive_number(&d);
  *out_status = drive_open(&d, self, rule, err);
  const bool good = *out_status >= 0 && drive_all(&d);
  drive_close(&d);
  return good;
}

#endif /* TESTS_DRIVE_H */
