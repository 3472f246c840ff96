/* SPDX-License-Identifier: Apache-2.0 */
/* Marks on the devices' clocks, and their relation to the host's clock. */
#include "runtime/executor/stamps.h"

enum { LOOKS = 8 };
static const uint64_t OLD_NS = UINT64_C(1000000000); /* a float of it is exact to 60 ns */

static void exchange(opipe_event **a, opipe_event **b) {
  opipe_event *const kept = *a;
  *a = *b;
  *b = kept;
}

/* Finds when the host's clock saw `met` done: the middle of the shortest of several looks. */
static opipe_status look(const opi_rank *first, opipe_error *err) {
  struct opi_stamps *stamps = first->worker->stamps;
  uint64_t shortest = UINT64_MAX;
  for (uint32_t i = 0; i < LOOKS; ++i) {
    const uint64_t since = opi_clock_ns();
    OPI_TRY(opi_queue_sync(first, stamps->queue, stamps->spare, err));
    const uint64_t took = opi_clock_ns() - since;
    if (took >= shortest)
      continue;
    shortest = took;
    stamps->met_ns = since + took / 2;
    exchange(&stamps->met, &stamps->spare);
  }
  return OPIPE_OK;
}

static opipe_status elapsed(const opi_rank *rank, opipe_event *from, opipe_event *to,
                            int64_t *out_ns, opipe_error *err) {
  const opipe_status status = OPI_ASK_RANK(rank, event_elapsed, err, from, to, out_ns);
  return status == OPIPE_PENDING
             ? opi_fail(err, OPIPE_E_INTERNAL,
                        "backend '%s': event_elapsed has two complete events and is PENDING",
                        opi_rank_backend(rank)->id)
             : status;
}

/* The first rank here on the same device with stamps; the rank itself if there is no other. */
static const opi_rank *first_of(const opi_rank *rank) {
  const opi_setup *s = rank->setup;
  for (uint32_t i = 0; i < rank->place; ++i) {
    const opi_rank *other = &s->ranks[s->here[i]];
    if (other->worker->stamps != NULL && other->instance == rank->instance &&
        s->plan->decided.devices[other->index].index == s->plan->decided.devices[rank->index].index)
      return other;
  }
  return rank;
}

opipe_status opi_stamps_event(const opi_rank *rank, opipe_event **out_event, opipe_error *err) {
  return rank->worker->stamps == NULL
             ? OPI_MAKE_RANK(rank, event_create, out_event, err, rank->device)
             : OPI_MAKE_RANK(rank, event_create_timed, out_event, err, rank->device);
}

opipe_status opi_stamps_open(opi_rank *rank, opipe_error *err) {
  if ((rank->setup->flags & OPIPE_SESSION_TRACE) == 0 ||
      !OPIPE_HAS(rank->backend, opipe_backend, event_elapsed) ||
      rank->backend->event_elapsed == NULL)
    return OPIPE_OK;
  struct opi_stamps *stamps = opi_alloc_zero(rank->setup->allocator, 1, sizeof *stamps);
  if (stamps == NULL)
    return opi_fail_nomem(err, sizeof *stamps, "stamps");
  rank->worker->stamps = stamps;
  OPI_TRY(opi_stamps_event(rank, &stamps->mark, err));
  OPI_TRY(opi_queue_sync(rank, rank->queue, stamps->mark, err));
  stamps->mark_ns = opi_clock_ns();
  if (first_of(rank) != rank)
    return OPIPE_OK;
  OPI_TRY(OPI_MAKE_RANK(rank, queue_open, &stamps->queue, err, rank->device));
  OPI_TRY(opi_stamps_event(rank, &stamps->met, err));
  return opi_stamps_event(rank, &stamps->spare, err);
}

void opi_stamps_close(opi_rank *rank) {
  struct opi_stamps *stamps = rank->worker->stamps;
  if (stamps == NULL)
    return;
  rank->backend->event_destroy(stamps->mark);
  rank->backend->event_destroy(stamps->met);
  rank->backend->event_destroy(stamps->spare);
  rank->backend->queue_close(stamps->queue);
  opi_free(rank->setup->allocator, stamps, sizeof *stamps);
  rank->worker->stamps = NULL;
}

opipe_status opi_stamps_span(opi_rank *rank, opipe_event *begun, opipe_event **io_end,
                             opi_span *out_span, opipe_error *err) {
  struct opi_stamps *stamps = rank->worker->stamps;
  int64_t after = 0, length = 0;
  OPI_TRY(elapsed(rank, stamps->mark, *io_end, &after, err));
  OPI_TRY(elapsed(rank, begun, *io_end, &length, err));
  out_span->end_ns = stamps->mark_ns + (uint64_t)after;
  out_span->start_ns = out_span->end_ns - (uint64_t)length;
  if (after >= (int64_t)OLD_NS) {
    exchange(&stamps->mark, io_end);
    stamps->mark_ns = out_span->end_ns;
  }
  return OPIPE_OK;
}

opipe_status opi_stamps_meet(const opi_setup *s, opipe_error *err) {
  for (uint32_t i = 0; i < s->n_here; ++i) {
    const opi_rank *rank = &s->ranks[s->here[i]];
    int64_t after = 0;
    if (rank->worker->stamps == NULL)
      continue;
    const opi_rank *first = first_of(rank);
    if (first == rank)
      OPI_TRY(look(rank, err));
    OPI_TRY(elapsed(rank, rank->worker->stamps->mark, first->worker->stamps->met, &after, err));
    rank->worker->stamps->shift_ns = (int64_t)(first->worker->stamps->met_ns -
                                               (rank->worker->stamps->mark_ns + (uint64_t)after));
  }
  return OPIPE_OK;
}

int64_t opi_stamps_shift(const opi_rank *rank) {
  return rank->worker->stamps == NULL ? 0 : rank->worker->stamps->shift_ns;
}

bool opi_rank_has_stamps(const opi_rank *rank) {
  return rank->worker->stamps != NULL;
}
