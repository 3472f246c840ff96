/* SPDX-License-Identifier: Apache-2.0 */
/* Inputs that process 0 gives to the processes that read them, and outputs that it is given.
 *
 *   process 0                                    another process
 *   entry begins ─► parts of inputs ───────────► into memory of its request ─► its ranks begin it
 *   into its results ◄──────── parts of outputs ◄─ its ranks are done with it
 *
 * Inputs travel in the order of the ring, outputs in the order in which requests end. No rank of
 * another process begins an entry before its inputs are there; no session tells of a request, or
 * judges it, before its values have arrived. So the tensors of either host are free once the
 * request has ended. A request that process 0 has withdrawn, or that has failed where its outputs
 * are made, sends the reason in place of values.
 */
#include <stdio.h>
#include <string.h>

#include "runtime/requests/peers.h"

uint32_t opi_values_ways(const opi_peers *p) {
  if (p == NULL)
    return 0;
  const opi_setup *s = p->session->setup;
  return p->n_values * ((s->inputs_travel ? 1u : 0u) + (s->outputs_travel ? 1u : 0u));
}

bool opi_values_let_begin(const opi_peers *p, uint64_t number) {
  return !opi_inputs_come(p->session->setup) ||
         atomic_load_explicit(&p->n_arrived, memory_order_acquire) > number;
}

uint64_t opi_peers_travelled(const opi_session *s) {
  return s->peers == NULL ? 0 : atomic_load_explicit(&s->peers->n_travelled, memory_order_relaxed);
}

static void count_bytes(opi_peers *p, uint64_t n) {
  atomic_fetch_add_explicit(&p->n_travelled, n, memory_order_relaxed);
}

/* The request whose inputs come with an entry of the ring; NULL: none, as with the end of a
 * double-buffered step, and a gap between replicas. */
static opi_request *request_of(const opi_session *s, uint64_t entry) {
  const opi_engine *e = s->engine;
  opi_request *request = e->items[entry % e->ring_room].next;
  return request == NULL || request->is_gap ? NULL : request;
}

/* ---- a way ---- */

typedef bool (*next_fn)(const opi_compiled *t, const opi_request *request, uint32_t process,
                        opi_parcel *io_parcel);
typedef void (*take_fn)(const opi_compiled *t, const opi_request *request, const opi_parcel *at,
                        uint64_t first, uint64_t n, char *out_bytes);
typedef void (*put_fn)(const opi_compiled *t, const opi_request *request, const opi_parcel *at,
                       uint64_t first, uint64_t n, const char *bytes);

/* A way is of inputs or of outputs. */
typedef struct way_kind {
  next_fn next;
  take_fn take;
  put_fn put;
} way_kind;
static const way_kind of_inputs = {opi_parcel_in, opi_parcel_take_in, opi_parcel_put_in};
static const way_kind of_outputs = {opi_parcel_out, opi_parcel_take_out, opi_parcel_put_out};

static void begin(const way_kind *k, const opi_lane *lane, opi_way *way,
                  const opi_request *request) {
  way->at = (opi_parcel){.n_bytes = 0};
  way->n_bytes = 0;
  way->begun = true;
  way->any = k->next(request->runs, request, lane->process, &way->at);
}

static void end(opi_way *way, opi_request *request) {
  way->begun = way->any = false;
  (void)atomic_fetch_sub(&request->n_travels_left, 1);
}

/* Fills a letter's data with the next bytes. Returns their number. */
static uint64_t fill(const way_kind *k, const opi_lane *lane, opi_way *way,
                     const opi_request *request, char *out) {
  uint64_t n = 0;
  while (way->any && n < OPI_LETTER_MORE) {
    const uint64_t left = way->at.n_bytes - way->n_bytes, room = OPI_LETTER_MORE - n;
    const uint64_t most = left < room ? left : room;
    k->take(request->runs, request, &way->at, way->n_bytes, most, out + n);
    n += most;
    way->n_bytes += most;
    if (way->n_bytes < way->at.n_bytes)
      continue;
    way->n_bytes = 0;
    way->any = k->next(request->runs, request, lane->process, &way->at);
  }
  return n;
}

/* Puts a letter's data into their places, or passes over them. False: there are too many. */
static bool empty(const way_kind *k, const opi_lane *lane, opi_way *way, const opi_request *request,
                  const opi_letter *letter, bool keeps) {
  const char *bytes = (const char *)(letter + 1);
  uint64_t n = 0;
  while (way->any && n < letter->n_bytes) {
    const uint64_t left = way->at.n_bytes - way->n_bytes, more = letter->n_bytes - n;
    const uint64_t most = left < more ? left : more;
    if (keeps)
      k->put(request->runs, request, &way->at, way->n_bytes, most, bytes + n);
    n += most;
    way->n_bytes += most;
    if (way->n_bytes < way->at.n_bytes)
      continue;
    way->n_bytes = 0;
    way->any = k->next(request->runs, request, lane->process, &way->at);
  }
  return n == letter->n_bytes;
}

/* Sends what is left of the request's values; refused: the reason instead. *out_all: all of them
 * are written. */
static opipe_status send_values(opi_peers *p, const way_kind *k, opi_lane *lane, opi_way *way,
                                opi_request *request, bool refused, bool *out_all,
                                opipe_error *err) {
  char *data = lane->going + sizeof(opi_letter);
  while (way->any && opi_lane_has_room(lane)) {
    opi_letter letter = {.kind = OPI_LETTER_VALUES, .number = request->number};
    opipe_error why = OPIPE_ERROR_INIT;
    uint32_t stage = OPIPE_NONE;
    if (refused) {
      if (!opi_request_reason(request, &why, &stage)) {
        (void)opi_fail(&why, OPIPE_E_CANCELLED, "request %llu was left out",
                       (unsigned long long)request->number);
      }
      letter.status = why.status;
      (void)snprintf(letter.text, sizeof letter.text, "%.*s", OPI_LETTER_TEXT - 1, why.message);
      way->any = false;
    } else if (!opi_rank_touch(lane->rank)) {
      break; /* the session has failed */
    } else {
      letter.n_bytes = fill(k, lane, way, request, data);
      opi_rank_let_go(lane->rank);
    }
    OPI_TRY(opi_lane_write(lane, &letter, data, err));
    count_bytes(p, letter.n_bytes);
    opi_count_on(&lane->rank->worker->n_moves);
  }
  *out_all = !way->any;
  return OPIPE_OK;
}

static opipe_status check_letter(const opi_lane *lane, const opi_letter *letter,
                                 const opi_request *request, opipe_error *err) {
  if (letter->number == request->number)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_STATE,
                  "rank %u gives values of request %llu, rank %u awaits those of request %llu: all "
                  "processes must make the same calls in the same order",
                  lane->far, (unsigned long long)letter->number, lane->rank->index,
                  (unsigned long long)request->number);
}

/* Receives what has come of the request's values. *out_refusal: the far side refuses them; status
 * OPIPE_OK: it does not. */
static opipe_status receive_values(opi_peers *p, const way_kind *k, opi_lane *lane, opi_way *way,
                                   const opi_request *request, bool keeps, opipe_error *out_refusal,
                                   opipe_error *err) {
  const opi_letter *letter = NULL;
  while (way->any) {
    bool fits = true;
    OPI_TRY(opi_lane_peek(lane, &letter, err));
    if (letter == NULL)
      break;
    OPI_TRY(check_letter(lane, letter, request, err));
    if (letter->status < 0) {
      (void)opi_fail(out_refusal, letter->status, "%s", letter->text);
      way->any = false;
    } else if (!opi_rank_touch(lane->rank)) {
      break;
    } else {
      fits = empty(k, lane, way, request, letter, keeps);
      opi_rank_let_go(lane->rank);
    }
    if (!fits) {
      return opi_fail(
          err, OPIPE_E_STATE,
          "rank %u gives more values of request %llu than rank %u awaits: all processes "
          "must give the same inputs",
          lane->far, (unsigned long long)letter->number, lane->rank->index);
    }
    count_bytes(p, letter->n_bytes);
    opi_count_on(&lane->rank->worker->n_moves);
    opi_lane_take(lane);
    OPI_TRY(opi_lane_move(lane, err));
  }
  return OPIPE_OK;
}

/* ---- inputs ---- */

/* From here on a request cannot be withdrawn, unless it has been before: its inputs leave. Whether
 * a step or evaluation begins is decided where rank 0 is. */
static bool is_begun(const opi_setup *s, opi_request *request) {
  uint32_t no = OPI_BEGUN_NO;
  if (request->ticket != NULL)
    return opi_fate_is_decided(s, request);
  (void)atomic_compare_exchange_strong(&request->begun, &no, OPI_BEGUN_YES);
  return true;
}

static opipe_status give_inputs(opi_peers *p, opi_lane *lane, opipe_error *err) {
  const opi_session *s = p->session;
  const uint64_t n = atomic_load_explicit(&s->engine->n_submitted, memory_order_acquire);
  opi_way *way = &lane->inputs;
  for (; way->n_done < n; ++way->n_done) {
    opi_request *request = request_of(s, way->n_done);
    bool all = true;
    if (request == NULL)
      continue;
    if (!way->begun && !is_begun(s->setup, request))
      return OPIPE_OK;
    if (!way->begun)
      begin(&of_inputs, lane, way, request);
    OPI_TRY(
        send_values(p, &of_inputs, lane, way, request, opi_request_withdrawn(request), &all, err));
    if (!all)
      return OPIPE_OK;
    end(way, request);
  }
  return OPIPE_OK;
}

/* All inputs of an entry are here: the ranks here may begin it. */
static void arrive(opi_peers *p, uint64_t n_arrived) {
  const opi_setup *s = p->session->setup;
  atomic_store_explicit(&p->n_arrived, n_arrived, memory_order_release);
  for (uint32_t i = 1; i < s->n_here; ++i)
    s->transport->ring(s->ranks[s->here[i]].endpoint);
}

static opipe_status take_inputs(opi_peers *p, opi_lane *lane, opipe_error *err) {
  const opi_session *s = p->session;
  const uint64_t n = atomic_load_explicit(&s->engine->n_submitted, memory_order_acquire);
  opi_way *way = &lane->inputs;
  while (way->n_done < n) {
    opi_request *request = request_of(s, way->n_done);
    opipe_error refusal = OPIPE_ERROR_INIT;
    if (request != NULL) {
      if (!way->begun)
        begin(&of_inputs, lane, way, request);
      OPI_TRY(receive_values(p, &of_inputs, lane, way, request, true, &refusal, err));
      if (way->any)
        return OPIPE_OK;
      if (refusal.status < 0) {
        opi_parcel_blank(request);
        (void)opi_request_fail(request, &refusal);
      }
      end(way, request);
    }
    arrive(p, ++way->n_done);
  }
  return OPIPE_OK;
}

/* ---- outputs ---- */

static opipe_status move_outputs(opi_peers *p, opi_lane *lane, opi_request *request, bool rest,
                                 opipe_error *err) {
  opi_way *way = &lane->outputs;
  opipe_error refusal = OPIPE_ERROR_INIT; /* the verdict says why */
  bool all = true;
  if (way->n_done > request->number)
    return OPIPE_OK;
  if (!way->begun)
    begin(&of_outputs, lane, way, request);
  if (p->session->setup->env.process == 0) {
    OPI_TRY(receive_values(p, &of_outputs, lane, way, request, !opi_request_withdrawn(request),
                           &refusal, err));
    all = !way->any;
  } else if (rest) {
    OPI_TRY(send_values(
        p, &of_outputs, lane, way, request,
        opi_request_withdrawn(request) || (way->n_bytes == 0 && opi_request_failed(request)), &all,
        err));
  } else {
    all = false;
  }
  if (!all)
    return OPIPE_OK;
  way->n_done = request->number + 1;
  end(way, request);
  return OPIPE_OK;
}

opipe_status opi_values_move(opi_peers *p, const opi_rank *rank, opipe_error *err) {
  const opi_setup *s = p->session->setup;
  bool rest = false;
  if (p->n_values == 0 || rank->index != s->here[0])
    return OPIPE_OK;
  for (uint32_t i = 0; i < p->n_values; ++i) {
    opi_lane *lane = &p->values[i];
    OPI_TRY(opi_lane_move(lane, err));
    if (s->inputs_travel)
      OPI_TRY(s->env.process == 0 ? give_inputs(p, lane, err) : take_inputs(p, lane, err));
  }
  opi_request *next = opi_fate_next(p, &rest);
  if (next == NULL || next->is_gap)
    return OPIPE_OK;
  for (uint32_t i = 0; i < p->n_values && s->outputs_travel; ++i)
    OPI_TRY(move_outputs(p, &p->values[i], next, rest, err));
  return OPIPE_OK;
}
