/* SPDX-License-Identifier: Apache-2.0 */
/* Data that one session has and all others get: parameters by name. A host's thread posts it
 * between steps. Each session's first rank moves it, in parts, through rank 0; or by collectives
 * (share_collect.c).
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "runtime/requests/peers.h"

/* ---- leaders ---- */

/* Rank 0's lane to the first rank of the session of `rank`; NULL: it is here, or not known yet. */
static opi_lane *lane_of(const opi_peers *p, uint32_t rank) {
  uint32_t leader = OPIPE_NONE;
  for (uint32_t i = 0; i < p->n_lanes; ++i) {
    if (p->lanes[i].far == rank)
      leader = p->lanes[i].leader;
  }
  for (uint32_t i = 0; leader != OPIPE_NONE && i < p->n_lanes; ++i) {
    if (p->lanes[i].far == leader)
      return &p->lanes[i];
  }
  return NULL;
}

static bool all_are_known(const opi_peers *p) {
  for (uint32_t i = 0; p->owns && i < p->n_lanes; ++i) {
    if (p->lanes[i].leader == OPIPE_NONE)
      return false;
  }
  return true;
}

/* Is the data to be sent on this lane? */
static bool goes_to(const opi_peers *p, const opi_lane *lane) {
  const opi_setup *s = p->session->setup;
  const bool has = opi_rank_is_here(s, p->share.holder);
  if (!p->owns)
    return has && lane->rank->index == s->here[0];
  return lane->leader == lane->far && (has || lane_of(p, p->share.holder) != lane);
}

/* ---- moving ---- */

opipe_status opi_share_hear(opi_peers *p, opi_lane *lane, const opi_letter *letter, bool *out_taken,
                            opipe_error *err) {
  opi_share *share = &p->share;
  *out_taken = atomic_load_explicit(&share->state, memory_order_acquire) == OPI_SHARING_RUNS &&
               !(share->begun && share->n_there == share->n_bytes);
  if (!*out_taken)
    return OPIPE_OK; /* it belongs to the next call, which the host has not made here yet */
  if (letter->n_total != share->n_bytes || letter->number != share->n_there ||
      letter->n_bytes > share->n_bytes - share->n_there) {
    return opi_fail(err, OPIPE_E_STATE,
                    "rank %u gives data of %llu bytes, here %llu are asked for: the sessions of a "
                    "plan's ranks must be given the same calls in the same order",
                    lane->far, (unsigned long long)letter->n_total,
                    (unsigned long long)share->n_bytes);
  }
  *out_taken = opi_rank_touch(lane->rank); /* false: the caller has given up, with its memory */
  if (!*out_taken)
    return OPIPE_OK;
  if (letter->status < 0)
    (void)opi_fail(&share->why, letter->status, "%s", letter->text);
  if (letter->n_bytes != 0)
    memcpy(share->data + share->n_there, letter + 1, (size_t)letter->n_bytes);
  opi_rank_let_go(lane->rank);
  share->n_there = letter->status < 0 ? share->n_bytes : share->n_there + letter->n_bytes;
  share->begun = true;
  opi_count_on(&share->n_parts);
  return OPIPE_OK;
}

/* Sends the data in letters, at least one, which has the status. */
static opipe_status give(opi_share *share, opi_lane *lane, bool *io_all, opipe_error *err) {
  while (!lane->shares || (share->why.status >= 0 && lane->n_shared < share->n_there)) {
    const uint64_t left = share->why.status < 0 ? 0 : share->n_there - lane->n_shared;
    opi_letter letter = {.kind = OPI_LETTER_DATA,
                         .status = share->why.status,
                         .number = lane->n_shared,
                         .n_total = share->n_bytes,
                         .n_bytes = left < OPI_LETTER_MORE ? left : (uint64_t)OPI_LETTER_MORE};
    if (!opi_lane_has_room(lane) || !opi_rank_touch(lane->rank))
      break;
    if (share->why.status < 0) {
      (void)snprintf(letter.text, sizeof letter.text, "%.*s", OPI_LETTER_TEXT - 1,
                     share->why.message);
    }
    const opipe_status status = opi_lane_write(lane, &letter, share->data + lane->n_shared, err);
    opi_rank_let_go(lane->rank);
    OPI_TRY(status);
    lane->n_shared += letter.n_bytes;
    lane->shares = true;
    opi_count_on(&share->n_parts);
  }
  *io_all = *io_all && lane->shares && (share->why.status < 0 || lane->n_shared == share->n_bytes);
  return OPIPE_OK;
}

opipe_status opi_share_tell(opi_peers *p, const opi_rank *rank, opipe_error *err) {
  opi_share *share = &p->share;
  if (rank->index != p->session->setup->here[0] ||
      atomic_load_explicit(&share->state, memory_order_acquire) != OPI_SHARING_RUNS ||
      (p->spread.collective == NULL && (!all_are_known(p) || !share->begun)))
    return OPIPE_OK;
  if (p->spread.collective != NULL)
    return opi_spread_move(p, err);
  bool all = share->n_there == share->n_bytes;
  for (uint32_t i = 0; i < p->n_lanes; ++i) {
    if (goes_to(p, &p->lanes[i]))
      OPI_TRY(give(share, &p->lanes[i], &all, err));
  }
  if (!all)
    return OPIPE_OK;
  for (uint32_t i = 0; i < p->n_lanes; ++i) {
    p->lanes[i].shares = false;
    p->lanes[i].n_shared = 0;
  }
  atomic_store_explicit(&share->state, OPI_SHARING_DONE, memory_order_release);
  return OPIPE_OK;
}

/* ---- for the host ---- */

/* If the host drives the ranks, the call itself drives the first one. */
static void drive(opi_session *s) {
  opi_rank *rank = opi_session_first(s->setup);
  if (s->setup->threads != OPIPE_THREADS_HOST || atomic_exchange(&rank->worker->driving, 1) != 0)
    return;
  (void)opi_rank_advance(rank, NULL);
  atomic_store(&rank->worker->driving, 0);
}

/* Waits until the share is done, the session has failed, or no letter has come for the watchdog's
 * time. */
static void wait_for(opi_session *s, const opi_share *share) {
  const struct timespec again = {.tv_nsec = 20000};
  uint64_t since = opi_clock_ns(), parts = 0, now = since;
  while (atomic_load_explicit(&share->state, memory_order_acquire) != OPI_SHARING_DONE &&
         !opi_session_failed(s->setup) && now - since < s->setup->watchdog_ns) {
    drive(s);
    (void)nanosleep(&again, NULL);
    now = opi_clock_ns();
    if (atomic_load(&share->n_parts) != parts)
      since = now;
    parts = atomic_load(&share->n_parts);
  }
}

static opipe_status give_up(opi_session *s, opipe_error *err) {
  const struct timespec again = {.tv_nsec = 20000};
  opipe_error why = OPIPE_ERROR_INIT;
  if (!opi_session_failed(s->setup)) {
    (void)opi_fail(&why, OPIPE_E_TIMEOUT,
                   "watchdog: the sessions of the other ranks have not made the same call within "
                   "%.3g s",
                   (double)s->setup->watchdog_ns * 1e-9);
    opi_session_fail(s->setup, s->setup->here[0], NULL, &why);
  }
  /* Wait until no rank touches the data, and until the reason is written. */
  while (atomic_load(&opi_session_first(s->setup)->worker->touching) != 0 ||
         !opi_session_failed(s->setup))
    (void)nanosleep(&again, NULL);
  return opi_fail(err, OPIPE_E_STATE, "the session has failed: %s", s->setup->ending.why.message);
}

opipe_status opi_peers_share(opi_session *s, uint32_t holder, void *data, uint64_t n_bytes,
                             opipe_status had, opipe_error *io_err) {
  opi_peers *p = s->peers;
  static char nothing[1];
  opipe_error local = OPIPE_ERROR_INIT, *err = io_err == NULL ? &local : io_err;
  if (p == NULL)
    return had;
  /* Post the data, or the memory for it, and wake the first rank. */
  const bool has = opi_rank_is_here(s->setup, holder);
  opi_share *share = &p->share;
  share->data = data == NULL ? nothing : data;
  share->n_bytes = n_bytes;
  share->holder = holder;
  share->begun = has;
  share->n_there = has ? n_bytes : 0;
  share->why = (opipe_error)OPIPE_ERROR_INIT;
  if (has && had < 0)
    (void)opi_fail(&share->why, had, "%s", err->message);
  atomic_store_explicit(&share->state, OPI_SHARING_RUNS, memory_order_release);
  s->setup->transport->ring(s->setup->ranks[s->setup->here[0]].endpoint);
  /* Wait until all sessions have it. */
  wait_for(s, share);
  if (atomic_load(&share->state) != OPI_SHARING_DONE)
    return give_up(s, err);
  atomic_store(&share->state, OPI_SHARING_NONE);
  if (had < 0)
    return had;
  return share->why.status < 0
             ? opi_fail(err, share->why.status, "rank %u: %s", holder, share->why.message)
             : OPIPE_OK;
}
