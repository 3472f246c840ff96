/* SPDX-License-Identifier: Apache-2.0 */
/* The end of requests that several sessions serve: every rank reports to rank 0, which judges. */
#include <stdio.h>
#include <string.h>

#include "runtime/requests/peers.h"

opipe_status opi_fates_open(opi_peers *p, opipe_error *err) {
  const opi_setup *s = p->session->setup;
  p->awaited = OPI_ARENA_ARRAY(&p->arena, opi_awaited, s->plan->decided.n_ranks);
  for (uint32_t r = 0; p->awaited != NULL && r < s->plan->decided.n_ranks; ++r) {
    if (!opi_rank_is_here(s, r))
      continue;
    p->awaited[r].ring = OPI_ARENA_ARRAY(&p->arena, opi_request *, s->engine->ring_room);
    if (p->awaited[r].ring == NULL)
      return opi_fail_nomem(err, s->engine->ring_room * sizeof(opi_request *), "requests");
  }
  return p->awaited != NULL
             ? OPIPE_OK
             : opi_fail_nomem(err, s->plan->decided.n_ranks * sizeof *p->awaited, "ranks");
}

static opi_request **place_at(const opi_peers *p, uint32_t rank, uint64_t number) {
  return &p->awaited[rank].ring[number % p->session->engine->ring_room];
}

/* The oldest request that the rank is done with; NULL: none. */
static opi_request *foremost(const opi_peers *p, uint32_t rank) {
  const opi_awaited *a = &p->awaited[rank];
  return a->n_out == a->n_in ? NULL : *place_at(p, rank, a->n_out);
}

void opi_peers_await(void *ctx, const opi_rank *rank, opi_request *request) {
  opi_peers *p = ctx;
  *place_at(p, rank->index, p->awaited[rank->index].n_in++) = request;
}

bool opi_peers_awaits(const void *ctx, const opi_rank *rank) {
  return foremost(ctx, rank->index) != NULL;
}

opi_request *opi_fate_next(opi_peers *p, bool *out_rest) {
  const uint32_t first = p->session->setup->here[0];
  const opi_awaited *a = &p->awaited[first];
  opi_request *request = p->owns                    ? foremost(p, first)
                         : a->n_reported == a->n_in ? NULL
                                                    : *place_at(p, first, a->n_reported);
  *out_rest = request != NULL && (p->owns ? atomic_load(&request->n_ranks_left) == 1
                                          : atomic_load(&request->n_reports_left) == 1);
  return request;
}

/* ---- losses ---- */

/* Copies the losses that `rank` has of a step between the ticket and `list`, in the order of
 * micro-batches and pieces. Returns their number. */
static uint32_t copy_losses(const opi_request *request, uint32_t rank, double *list, bool out) {
  const opi_compiled *t = request->runs;
  const uint32_t n_pieces = t->model->n_pieces;
  double *losses = request->ticket->losses;
  uint32_t n = 0;
  for (uint32_t i = 0; i < t->pieces->n_microbatches * n_pieces; ++i) {
    const uint32_t stage = t->model->loss_stage * n_pieces + i % n_pieces;
    const uint32_t instance = opi_instance_at(t, stage, i / n_pieces);
    if (t->pieces->instance_rank[instance] != rank)
      continue;
    if (out)
      list[n] = losses[i];
    else
      losses[i] = list[n];
    ++n;
  }
  return n;
}

uint64_t opi_fate_bytes(const opi_setup *s, uint32_t rank) {
  const opi_decision *plan = &s->plan->decided;
  const uint32_t stage = s->shapes->loss_stage;
  bool judges = false;
  for (uint32_t i = 0; stage != OPIPE_NONE && i < plan->n_replicas; ++i)
    judges = judges || plan->instance_rank[stage * plan->n_replicas + i] == rank;
  return !judges ? 0 : (uint64_t)plan->n_microbatches * s->shapes->n_pieces * sizeof(double);
}

/* ---- letters ---- */

static void set_fate(opi_letter *letter, opi_request *request) {
  opipe_error why = OPIPE_ERROR_INIT;
  letter->status = OPIPE_OK;
  letter->stage = OPIPE_NONE;
  if (!opi_request_reason(request, &why, &letter->stage))
    return;
  letter->status = why.status;
  (void)snprintf(letter->text, sizeof letter->text, "%.*s", OPI_LETTER_TEXT - 1, why.message);
}

static opipe_error reason_of(const opi_letter *letter) {
  opipe_error why = OPIPE_ERROR_INIT;
  (void)opi_fail(&why, letter->status, "%s", letter->text);
  return why;
}

/* Does a's reason come before b's? Reasons without a stage come first, then the lowest stage's. */
static bool comes_before(const opi_letter *a, const opi_letter *b) {
  return b->status == OPIPE_OK || a->stage + 1 < b->stage + 1;
}

static opipe_status check_number(const opi_lane *lane, const opi_letter *letter,
                                 const opi_request *request, opipe_error *err) {
  if (letter->number == request->number)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_STATE,
                  "rank %u is done with request %llu, rank %u with request %llu: the sessions of a "
                  "plan's ranks must be given the same calls in the same order",
                  lane->rank->index, (unsigned long long)request->number, lane->far,
                  (unsigned long long)letter->number);
}

/* ---- hearing ---- */

/* A rank's report is for the foremost request. A second one waits until that is judged. */
static opipe_status hear_report(opi_peers *p, opi_lane *lane, const opi_letter *letter,
                                bool *out_taken, opipe_error *err) {
  opi_request *request = foremost(p, 0);
  *out_taken = request != NULL && !lane->reported;
  if (!*out_taken)
    return OPIPE_OK;
  OPI_TRY(check_number(lane, letter, request, err));
  if (request->ticket != NULL && letter->n_bytes != 0)
    (void)copy_losses(request, lane->far, (double *)(uintptr_t)(letter + 1), false);
  if (request->ticket != NULL && letter->count != 0)
    atomic_store(&request->ticket->told_count, letter->count);
  if (letter->status < 0 && comes_before(letter, &p->first))
    p->first = *letter;
  lane->reported = true;
  return OPIPE_OK;
}

/* GO waits until the host has submitted the same step here. */
static void hear_go(const opi_peers *p, opi_lane *lane, const opi_letter *letter, bool *out_taken) {
  const opi_session *s = p->session;
  *out_taken = letter->number < atomic_load_explicit(&s->engine->n_submitted, memory_order_acquire);
  if (!*out_taken)
    return;
  ++lane->n_gone;
  if (letter->status < 0) {
    const opipe_error why = reason_of(letter);
    (void)opi_step_leave_out(s->engine->ring[letter->number % s->engine->ring_room], &why);
  }
}

static opipe_status hear_verdict(opi_peers *p, const opi_lane *lane, const opi_letter *letter,
                                 opipe_error *err) {
  opi_request *request = foremost(p, lane->rank->index);
  if (request == NULL) {
    return opi_fail(err, OPIPE_E_STATE,
                    "rank %u is told how request %llu ended, which it never received",
                    lane->rank->index, (unsigned long long)letter->number);
  }
  OPI_TRY(check_number(lane, letter, request, err));
  if (letter->status < 0) {
    const opipe_error why = reason_of(letter);
    opi_request_judge(request, &why);
  }
  if (request->ticket != NULL) {
    atomic_store(&request->ticket->told_count, letter->count);
    atomic_store_explicit(&request->ticket->told_loss, letter->loss, memory_order_release);
  }
  ++p->awaited[lane->rank->index].n_out;
  opi_request_leave(lane->rank, request);
  return OPIPE_OK;
}

static void hear_leave(opi_peers *p, opi_lane *lane) {
  lane->leave_got = true;
  atomic_store(&p->gone, 1);
}

opipe_status opi_fate_hear(opi_peers *p, opi_lane *lane, const opi_letter *letter, bool *out_taken,
                           opipe_error *err) {
  opipe_status status = OPIPE_OK;
  *out_taken = true;
  switch (letter->kind) {
    case OPI_LETTER_HELLO:
      lane->leader = letter->leader;
      break;
    case OPI_LETTER_REPORT:
      status = hear_report(p, lane, letter, out_taken, err);
      break;
    case OPI_LETTER_GO:
      hear_go(p, lane, letter, out_taken);
      break;
    case OPI_LETTER_VERDICT:
      status = hear_verdict(p, lane, letter, err);
      break;
    case OPI_LETTER_ALIVE:
      atomic_fetch_add(&p->n_heard, 1);
      atomic_store(&p->heard_ns, opi_clock_ns());
      break;
    case OPI_LETTER_DATA:
      status = opi_share_hear(p, lane, letter, out_taken, err);
      break;
    case OPI_LETTER_LEAVE:
      hear_leave(p, lane);
      break;
    default: /* BYE */
      lane->bye_got = true;
      break;
  }
  return status;
}

/* ---- telling ---- */

/* Reports the requests that the rank is done with. With the last rank's report the session's own
 * part of a request is decided. */
static opipe_status report(opi_peers *p, opi_lane *lane, opipe_error *err) {
  opi_awaited *a = &p->awaited[lane->rank->index];
  while (a->n_reported < a->n_in && opi_lane_has_room(lane)) {
    opi_request *request = *place_at(p, lane->rank->index, a->n_reported);
    if (lane->rank->index == p->session->setup->here[0] &&
        atomic_load_explicit(&request->n_travels_left, memory_order_relaxed) != 0)
      break; /* its values are on their way */
    ++a->n_reported;
    opi_letter letter = {.kind = OPI_LETTER_REPORT, .number = request->number};
    double *losses = (double *)(void *)(lane->going + sizeof letter);
    const uint32_t left = atomic_fetch_sub(&request->n_reports_left, 1) - 1;
    if (left == 0)
      opi_request_seal(request);
    else if (left == 1 && p->n_values != 0) /* the first rank may have waited for the others */
      p->session->setup->transport->ring(opi_session_first(p->session->setup)->endpoint);
    set_fate(&letter, request);
    if (request->ticket != NULL)
      letter.count = request->ticket->count;
    if (request->ticket != NULL && opi_fate_bytes(p->session->setup, lane->rank->index) != 0)
      letter.n_bytes = sizeof(double) * copy_losses(request, lane->rank->index, losses, true);
    OPI_TRY(opi_lane_write(lane, &letter, losses, err));
  }
  return OPIPE_OK;
}

bool opi_fate_is_decided(const opi_setup *s, const opi_request *request) {
  return (s->shapes->periodic && request->ticket->kind == OPI_TICKET_TRAIN) ||
         atomic_load_explicit(&request->begun, memory_order_acquire) != OPI_BEGUN_NO;
}

static opipe_status tell_go(const opi_peers *p, opi_lane *lane, opipe_error *err) {
  const opi_session *s = p->session;
  const uint64_t n = atomic_load_explicit(&s->engine->n_submitted, memory_order_acquire);
  while (p->says_go && lane->n_gone < n && opi_lane_has_room(lane)) {
    opi_request *request = s->engine->ring[lane->n_gone % s->engine->ring_room];
    opi_letter letter = {.kind = OPI_LETTER_GO, .number = lane->n_gone};
    uint32_t no = OPI_BEGUN_NO;
    if (opi_inputs_come(s->setup)) /* process 0 sends inputs once it is decided that it begins */
      (void)atomic_compare_exchange_strong(&request->begun, &no, OPI_BEGUN_YES);
    if (!opi_fate_is_decided(s->setup, request))
      return OPIPE_OK;
    if (opi_request_withdrawn(request))
      set_fate(&letter, request);
    ++lane->n_gone;
    OPI_TRY(opi_lane_write(lane, &letter, NULL, err));
  }
  return OPIPE_OK;
}

static bool all_have_reported(const opi_peers *p) {
  for (uint32_t i = 0; i < p->n_lanes; ++i) {
    if (!p->lanes[i].reported)
      return false;
  }
  return true;
}

/* Judges the request once the other ranks here have left it and those elsewhere have reported. */
static void judge(opi_peers *p, opi_request *request) {
  opi_letter own = {.kind = OPI_LETTER_VERDICT};
  if (p->judged || atomic_load(&request->n_ranks_left) != 1 || !all_have_reported(p) ||
      atomic_load_explicit(&request->n_travels_left, memory_order_relaxed) != 0)
    return;
  /* The first reason of all counts, this session's own among them. */
  opi_request_seal(request);
  set_fate(&own, request);
  if (own.status < 0 && comes_before(&own, &p->first))
    p->first = own;
  if (p->first.status < 0) {
    const opipe_error why = reason_of(&p->first);
    opi_request_judge(request, &why);
  }
  /* Write the verdict, which goes out on all lanes. */
  p->first.kind = OPI_LETTER_VERDICT;
  p->first.number = request->number;
  p->first.n_bytes = 0;
  p->first.loss = request->ticket == NULL ? 0 : opi_train_loss(request);
  p->first.count = request->ticket == NULL    ? 0
                   : request->ticket->is_told ? atomic_load(&request->ticket->told_count)
                                              : request->ticket->count;
  p->judged = true;
}

/* Writes the verdict on lanes with room. *out_all: all lanes have it. */
static opipe_status tell_verdict(opi_peers *p, bool *out_all, opipe_error *err) {
  *out_all = true;
  for (uint32_t i = 0; i < p->n_lanes; ++i) {
    opi_lane *lane = &p->lanes[i];
    if (lane->n_judged > p->n_verdicts)
      continue;
    *out_all = *out_all && opi_lane_has_room(lane);
    if (!opi_lane_has_room(lane))
      continue;
    ++lane->n_judged;
    OPI_TRY(opi_lane_write(lane, &p->first, NULL, err));
  }
  return OPIPE_OK;
}

static opipe_status judge_all(opi_peers *p, opi_rank *rank, opipe_error *err) {
  bool all = true;
  opi_request *request = foremost(p, 0);
  if (request == NULL)
    return OPIPE_OK;
  /* Judge the foremost request, and tell the others. */
  judge(p, request);
  if (!p->judged)
    return OPIPE_OK;
  OPI_TRY(tell_verdict(p, &all, err));
  if (!all)
    return OPIPE_OK;
  /* All know: leave it, and start on the next. */
  ++p->n_verdicts;
  p->judged = false;
  p->first = (opi_letter){.status = OPIPE_OK};
  for (uint32_t i = 0; i < p->n_lanes; ++i)
    p->lanes[i].reported = false;
  ++p->awaited[0].n_out;
  opi_request_leave(rank, request);
  return OPIPE_OK;
}

opipe_status opi_fates_tell(opi_peers *p, opi_rank *rank, opipe_error *err) {
  for (uint32_t i = 0; i < p->n_lanes; ++i) {
    opi_lane *lane = &p->lanes[i];
    if (lane->rank != rank)
      continue;
    OPI_TRY(p->owns ? tell_go(p, lane, err) : report(p, lane, err));
  }
  return p->owns && rank->index == 0 ? judge_all(p, rank, err) : OPIPE_OK;
}
