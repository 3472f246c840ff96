/* SPDX-License-Identifier: Apache-2.0 */
/* Queues the sums to which ranks have come, finds which are met, and describes those that are not;
 * see meetings.h. */
#include "partition/lists/meetings.h"

#include <stdarg.h>
#include <stdio.h>

#include "loader/ops/collective.h"

static uint32_t member(const opi_list_meeting *meeting, uint32_t rank) {
  uint32_t i = 0;
  while (i < meeting->n_ranks && meeting->ranks[i] != rank)
    ++i;
  return i == meeting->n_ranks ? OPIPE_NONE : i;
}

static bool share_two(const opi_list_meeting *a, const opi_list_meeting *b) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < a->n_ranks; ++i)
    n += member(b, a->ranks[i]) != OPIPE_NONE;
  return n > 1;
}

/* Whether one may be in the way of the other. */
static bool in_order(const opi_meetings *m, uint32_t meet, uint32_t other) {
  const uint32_t n = m->lists->n_meetings;
  return share_two(&m->lists->meetings[meet % n], &m->lists->meetings[other % n]);
}

/* ---- opening ---- */

static void count_starts(opi_meetings *m) {
  const opi_lists *l = m->lists;
  for (uint32_t rank = 0; rank < l->n_ranks; ++rank) {
    for (uint32_t i = l->rank_first[rank]; i < l->rank_first[rank + 1]; ++i) {
      const opi_step *step = &l->steps[i];
      const bool begins = step->kind == OPI_ACT_REDUCE || step->kind == OPI_ACT_SUM;
      const uint32_t at = !begins || step->route == OPIPE_NONE
                              ? OPIPE_NONE
                              : member(&l->meetings[step->route], rank);
      if (at != OPIPE_NONE)
        ++m->starts[m->first[step->route] + at];
    }
  }
}

opipe_status opi_meetings_open(const opi_lists *lists, uint32_t n_items, opi_clock *clock,
                               uint64_t first_event, const opi_link *link, opi_arena *arena,
                               opi_meetings *out, opipe_error *err) {
  const uint32_t n = lists->n_meetings;
  const size_t n_meets = (size_t)n_items * n;
  *out = (opi_meetings){
      .lists = lists, .clock = clock, .arena = arena, .first_event = first_event, .link = link};
  out->first = OPI_ARENA_ARRAY(arena, uint32_t, (size_t)n + 1);
  if (out->first == NULL)
    return opi_fail_nomem(err, n * sizeof *out->first, "a proof");
  for (uint32_t i = 0; i < n; ++i)
    out->first[i + 1] = out->first[i] + lists->meetings[i].n_ranks;
  out->entries = OPI_ARENA_ARRAY(arena, opi_sum_entries, lists->n_ranks);
  out->due = OPI_ARENA_ARRAY(arena, uint32_t, lists->n_ranks);
  out->starts = OPI_ARENA_ARRAY(arena, uint32_t, out->first[n]);
  out->come = OPI_ARENA_ARRAY(arena, uint32_t, (size_t)n_items * out->first[n]);
  out->n_counting = OPI_ARENA_ARRAY(arena, uint32_t, n_meets);
  out->met = OPI_ARENA_ARRAY(arena, double, n_meets);
  if (out->entries == NULL || out->due == NULL || out->starts == NULL || out->come == NULL ||
      out->n_counting == NULL || out->met == NULL)
    return opi_fail_nomem(err, n_meets * sizeof *out->met, "a proof");
  for (size_t i = 0; i < n_meets; ++i)
    out->met[i] = -1;
  count_starts(out);
  return OPIPE_OK;
}

/* ---- meeting ---- */

/* The rank's earlier entry that is in the way of entry i; OPIPE_NONE: it counts. */
static uint32_t in_the_way(const opi_meetings *m, uint32_t rank, uint32_t i) {
  const opi_sum_entries *e = &m->entries[rank];
  uint32_t k = 0;
  while (k < i && !in_order(m, e->list[k].meet, e->list[i].meet))
    ++k;
  return k == i ? OPIPE_NONE : k;
}

/* Removes a met sum from its rank's entries. Later ones that it was in the way of count from its
 * time on. */
static void leave(opi_meetings *m, uint32_t rank, uint32_t meet) {
  opi_sum_entries *e = &m->entries[rank];
  uint32_t n = 0;
  bool behind = false;
  for (uint32_t i = 0; i < e->n; ++i) {
    opi_sum_entry entry = e->list[i];
    if (entry.meet == meet) {
      behind = true;
      continue;
    }
    if (behind && in_order(m, meet, entry.meet) && entry.at < m->met[meet])
      entry.at = m->met[meet];
    e->list[n++] = entry;
  }
  e->n = n;
}

static double last_entry(const opi_meetings *m, const opi_list_meeting *meeting, uint32_t meet) {
  double last = 0;
  for (uint32_t i = 0; i < meeting->n_ranks; ++i) {
    const opi_sum_entries *e = &m->entries[meeting->ranks[i]];
    for (uint32_t k = 0; k < e->n; ++k)
      last = e->list[k].meet == meet && e->list[k].at > last ? e->list[k].at : last;
  }
  return last;
}

opi_meeting_call opi_meeting_call_at(const opi_list_meeting *meeting, uint32_t value) {
  const opi_group_value *first = &meeting->values[value];
  opi_meeting_call call = {.kind = first->kind, .n = 1, .n_bytes = first->n_bytes};
  if (first->kind != OPI_COLLECTIVE_SUM) {
    int64_t all = 0, most = 0;
    for (uint32_t k = 0; k < meeting->n_ranks; ++k) {
      all += first->parts[k];
      most = first->parts[k] > most ? first->parts[k] : most;
    }
    call.most_bytes = all == 0 ? 0 : first->n_bytes / (uint64_t)all * (uint64_t)most;
    return call;
  }
  for (; value + call.n < meeting->n_values; ++call.n) {
    const opi_group_value *next = &first[call.n];
    if (next->kind != first->kind || next->dtype != first->dtype)
      break;
    call.n_bytes += next->n_bytes;
  }
  call.most_bytes = (call.n_bytes + meeting->n_ranks - 1) / meeting->n_ranks;
  return call;
}

/* Around a ring: all but one rank's part is added up, and as many are handed round. */
static double takes(const opi_meetings *m, const opi_list_meeting *meeting) {
  double sum = 0;
  for (uint32_t i = 0; m->link != NULL && meeting->n_bytes != 0 && i < meeting->n_values;) {
    const opi_meeting_call call = opi_meeting_call_at(meeting, i);
    const double rounds = (call.kind == OPI_COLLECTIVE_SUM ? 2.0 : 1.0) * (meeting->n_ranks - 1);
    sum += rounds * (double)opi_link_ns(m->link, call.most_bytes);
    i += call.n;
  }
  return sum;
}

/* Makes the rank's next entry count that can; *out_met: the sum that all have come to with it, or
 * OPIPE_NONE. False: there is no such entry. */
static bool count_next(opi_meetings *m, uint32_t rank, uint32_t *out_met) {
  opi_sum_entries *e = &m->entries[rank];
  *out_met = OPIPE_NONE;
  for (uint32_t i = 0; i < e->n; ++i) {
    opi_sum_entry *entry = &e->list[i];
    if (entry->counts || in_the_way(m, rank, i) != OPIPE_NONE)
      continue;
    entry->counts = true;
    const opi_list_meeting *meeting = &m->lists->meetings[entry->meet % m->lists->n_meetings];
    if (++m->n_counting[entry->meet] == meeting->n_ranks)
      *out_met = entry->meet;
    return true;
  }
  return false;
}

/* Entries of a rank may count now; whatever is met lets others count. */
static void settle(opi_meetings *m, uint32_t rank) {
  const uint32_t n_meetings = m->lists->n_meetings;
  uint32_t n_due = 1, met = OPIPE_NONE;
  m->due[0] = rank;
  while (n_due > 0) {
    if (!count_next(m, m->due[n_due - 1], &met)) {
      --n_due;
      continue;
    }
    if (met == OPIPE_NONE)
      continue;
    const opi_list_meeting *meeting = &m->lists->meetings[met % n_meetings];
    m->met[met] = last_entry(m, meeting, met) + takes(m, meeting);
    for (uint32_t i = 0; i < meeting->n_ranks; ++i) {
      uint32_t k = 0;
      leave(m, meeting->ranks[i], met);
      while (k < n_due && m->due[k] != meeting->ranks[i])
        ++k;
      if (k == n_due)
        m->due[n_due++] = meeting->ranks[i];
    }
    opi_clock_happen(m->clock, m->first_event + met, m->met[met]);
  }
}

void opi_meetings_come(opi_meetings *m, uint32_t rank, uint32_t item, uint32_t meeting,
                       uint32_t step, double now) {
  const uint32_t at =
      meeting == OPIPE_NONE ? OPIPE_NONE : member(&m->lists->meetings[meeting], rank);
  opi_sum_entries *e = &m->entries[rank];
  if (at == OPIPE_NONE)
    return;
  const uint32_t slot = m->first[meeting] + at;
  if (++m->come[(size_t)item * m->first[m->lists->n_meetings] + slot] < m->starts[slot])
    return;
  if (!opi_arena_grow(m->arena, (void **)&e->list, &e->room, e->n + 1, sizeof *e->list)) {
    m->failed = true;
    return;
  }
  e->list[e->n++] =
      (opi_sum_entry){.meet = item * m->lists->n_meetings + meeting, .step = step, .at = now};
  settle(m, rank);
}

bool opi_meetings_has_come(const opi_meetings *m, uint32_t rank, uint32_t item, uint32_t meeting) {
  const uint32_t at =
      meeting == OPIPE_NONE ? OPIPE_NONE : member(&m->lists->meetings[meeting], rank);
  if (at == OPIPE_NONE)
    return false;
  const uint32_t slot = m->first[meeting] + at;
  return m->come[(size_t)item * m->first[m->lists->n_meetings] + slot] >= m->starts[slot];
}

bool opi_meetings_await(opi_meetings *m, uint32_t rank, uint32_t item, uint32_t meeting,
                        double *io_now) {
  const uint32_t meet = item * m->lists->n_meetings + meeting;
  if (m->met[meet] < 0) {
    (void)opi_clock_wait(m->clock, rank, m->first_event + meet);
    return false;
  }
  *io_now = m->met[meet] > *io_now ? m->met[meet] : *io_now;
  return true;
}

static bool is_gradient(const opi_meetings *m, uint32_t rank, uint32_t meeting) {
  const opi_list_meeting *of = &m->lists->meetings[meeting];
  return of->tensor == NULL && member(of, rank) != OPIPE_NONE;
}

uint32_t opi_meetings_missing(const opi_meetings *m, uint32_t rank, uint32_t item) {
  const uint32_t n = m->lists->n_meetings;
  uint32_t i = 0;
  while (i < n && (!is_gradient(m, rank, i) || m->met[(size_t)item * n + i] >= 0))
    ++i;
  return i == n ? OPIPE_NONE : i;
}

bool opi_meetings_await_gradients(opi_meetings *m, uint32_t rank, uint32_t item, double *io_now) {
  bool all = true;
  for (uint32_t i = 0; i < m->lists->n_meetings && all; ++i)
    all = !is_gradient(m, rank, i) || opi_meetings_await(m, rank, item, i, io_now);
  return all;
}

/* ---- reports ---- */

typedef struct sum_report {
  const opi_meetings *m;
  char *text;
  size_t at, room;
} sum_report;

static void say(sum_report *r, const char *format, ...) {
  va_list args;
  va_start(args, format);
  const int n = vsnprintf(r->text + r->at, r->room - r->at, format, args);
  va_end(args);
  r->at = n < 0 || (size_t)n >= r->room - r->at ? r->room - 1 : r->at + (size_t)n;
}

static void name_sum(sum_report *r, uint32_t meet) {
  const opi_lists *l = r->m->lists;
  const opi_list_meeting *meeting = &l->meetings[meet % l->n_meetings];
  if (meeting->tensor == NULL)
    say(r, "the sum of stage %u's gradients", meeting->stage);
  else
    say(r, "the sum of '%.80s' in stage %u", meeting->tensor, meeting->stage);
}

/* The rank's entry of a sum; OPIPE_NONE: it has not come. */
static uint32_t entry_of(const opi_meetings *m, uint32_t rank, uint32_t meet) {
  const opi_sum_entries *e = &m->entries[rank];
  uint32_t i = 0;
  while (i < e->n && e->list[i].meet != meet)
    ++i;
  return i == e->n ? OPIPE_NONE : i;
}

/* Why a sum is not met: a rank that has not come to it (entry OPIPE_NONE), or that came to another
 * one before (entry way). */
typedef struct obstacle {
  uint32_t rank, entry, way;
} obstacle;

static obstacle find_obstacle(const opi_meetings *m, uint32_t meet) {
  const opi_list_meeting *meeting = &m->lists->meetings[meet % m->lists->n_meetings];
  obstacle found = {OPIPE_NONE, OPIPE_NONE, OPIPE_NONE};
  for (uint32_t i = 0; i < meeting->n_ranks; ++i) {
    const uint32_t rank = meeting->ranks[i], entry = entry_of(m, rank, meet);
    if (entry == OPIPE_NONE)
      return (obstacle){rank, OPIPE_NONE, OPIPE_NONE};
    if (found.rank == OPIPE_NONE && !m->entries[rank].list[entry].counts)
      found = (obstacle){rank, entry, in_the_way(m, rank, entry)};
  }
  return found;
}

/* The sum that is in the way of another; OPIPE_NONE: a rank has not come. */
static uint32_t next_sum(const opi_meetings *m, uint32_t meet) {
  const obstacle o = find_obstacle(m, meet);
  return o.way == OPIPE_NONE ? OPIPE_NONE : m->entries[o.rank].list[o.way].meet;
}

uint32_t opi_meetings_describe(const opi_meetings *m, uint32_t item, uint32_t meeting, char *text,
                               size_t room) {
  const uint32_t *first_step = m->lists->rank_first;
  uint32_t meet = item * m->lists->n_meetings + meeting, inside = meet;
  sum_report r = {m, text, 0, room};
  for (uint32_t i = 0; i < m->lists->n_meetings && inside != OPIPE_NONE; ++i)
    inside = next_sum(m, inside);
  meet = inside == OPIPE_NONE ? meet : inside; /* in the cycle, if there is one */
  for (uint32_t first = meet, i = 0; i == 0 || meet != first; ++i) {
    const obstacle o = find_obstacle(m, meet);
    say(&r, "%srank %u ", i == 0 ? "" : "; ", o.rank);
    if (o.way == OPIPE_NONE) {
      say(&r, "has not come to ");
      name_sum(&r, meet);
      return o.rank;
    }
    const opi_sum_entry *way = &m->entries[o.rank].list[o.way];
    const opi_sum_entry *entry = &m->entries[o.rank].list[o.entry];
    say(&r, "comes at step %u to ", way->step - first_step[o.rank]);
    name_sum(&r, way->meet);
    say(&r, " and at step %u to ", entry->step - first_step[o.rank]);
    name_sum(&r, meet);
    meet = way->meet;
  }
  return OPIPE_NONE;
}
