/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes by the clock: batches that a rank comes to and goes on, where messages take modelled time.
 *
 *   rank    batch_end ─► ring of operations          test: OK once the operation's batch has ended
 *   lane                 [begin: all readies, the batch before ... end: all messages] ─► record
 * done
 *
 * A device's queue cannot wait for a clock (queued.c does batches there where messages take no
 * time), so the rank's own thread moves its lane whenever it calls: batch_begin, batch_end, test,
 * wait. An operation takes its cell when its batch begins: only then have earlier messages of the
 * same slot arrived, however far the rank is ahead. World's lock held everywhere but in open and
 * close.
 */
#include "emulated.h"

enum { ROOM = 4 * OPS_MOST };

typedef struct queued_op {
  operation op; /* stream NULL: it was closed */
  char *data;
  uint64_t n_bytes;
  opipe_event *ready, *done; /* NULL: none; ready: it is complete */
  uint64_t ready_ns;         /* clock when that was seen */
  uint32_t n_left;           /* operations of its batch from this one on */
} queued_op;

struct clock_lane {
  queued_op ops[ROOM];  /* number n is at n % ROOM */
  uint64_t n_in, n_out; /* operations that were noted, whose batch has ended */
  uint64_t first;       /* of the batch that is open */
  uint64_t free_ns;     /* clock when the last message of the batch before has arrived */
  uint32_t n_begun;     /* operations of the first batch, once it has begun; 0: it has not */
  bool open;            /* the batch at hand is this lane's */
  bool waits;           /* it has operations without `done`: the next batch waits for its end */
};

opipe_status emutrans_clock_open(opipe_endpoint *e, opipe_error *err) {
  if (e->world->options.rule != OPIPE_RULE_GROUPED || e->backend == NULL || e->queue == NULL)
    return OPIPE_OK;
  e->clock = opipe_zeroed(e->world->host, "a lane", sizeof *e->clock, ALIGN, err);
  return e->clock == NULL ? OPIPE_E_NOMEM : OPIPE_OK;
}

void emutrans_clock_close(opipe_endpoint *e) {
  if (e->clock != NULL)
    opipe_free(e->world->host, e->clock, sizeof *e->clock, ALIGN);
}

static bool is_empty(const clock_lane *lane) {
  return lane->n_in == lane->n_out;
}

static queued_op *at(clock_lane *lane, uint64_t n) {
  return &lane->ops[n % ROOM];
}

/* ---- noting ---- */

opipe_status emutrans_clock_ready(opipe_endpoint *e, opipe_error *err) {
  clock_lane *lane = e->clock;
  if (lane == NULL)
    return OPIPE_OK;
  const opipe_status status = emutrans_clock_move(e, err);
  if (status < 0)
    return status;
  if ((lane->waits && !is_empty(lane)) || lane->n_in - lane->n_out > ROOM - OPS_MOST)
    return OPIPE_PENDING;
  lane->open = lane->waits = false;
  lane->first = lane->n_in;
  return OPIPE_OK;
}

bool emutrans_clock_takes(const opipe_endpoint *e, bool orders) {
  const clock_lane *lane = e->clock;
  return lane != NULL && e->noting && e->n_ops == 0 && (lane->open || orders || !is_empty(lane));
}

opipe_status emutrans_clock_note(opipe_endpoint *e, const operation *op, void *data,
                                 uint64_t n_bytes, opipe_event *ready, opipe_event *done,
                                 bool orders, opipe_error *err) {
  clock_lane *lane = e->clock;
  if (lane->n_in - lane->first == OPS_MOST) {
    return opipe_fail(err, OPIPE_E_LIMIT, "a batch of rank %u has more than %d operations", e->rank,
                      OPS_MOST);
  }
  lane->open = true;
  lane->waits = lane->waits || !orders;
  *at(lane, lane->n_in++) = (queued_op){*op, data, n_bytes, ready, done, emutrans_now(), 0};
  return OPIPE_OK;
}

void emutrans_clock_end(opipe_endpoint *e) {
  clock_lane *lane = e->clock;
  for (uint64_t n = lane == NULL ? 0 : lane->first; lane != NULL && n < lane->n_in; ++n)
    at(lane, n)->n_left = (uint32_t)(lane->n_in - n);
  if (lane != NULL)
    lane->open = false;
}

/* ---- moving ---- */

/* Looks at the readies of the batch that begins with operation `first`. PENDING: work of the rank's
 * device before it is not done. */
static opipe_status poll_readies(opipe_endpoint *e, uint64_t first, opipe_error *err) {
  clock_lane *lane = e->clock;
  const uint32_t n = at(lane, first)->n_left;
  opipe_event *const event = at(lane, first)->ready; /* most often of all of them */
  const opipe_status one = event == NULL ? OPIPE_OK : e->backend->event_poll(event, err);
  opipe_status all = OPIPE_OK;
  for (uint32_t i = 0; i < n; ++i) {
    queued_op *q = at(lane, first + i);
    const opipe_status status = q->ready == NULL    ? OPIPE_OK
                                : q->ready == event ? one
                                                    : e->backend->event_poll(q->ready, err);
    if (status < 0)
      return status;
    if (status == OPIPE_OK && q->ready != NULL)
      q->ready_ns = emutrans_now();
    q->ready = status == OPIPE_OK ? NULL : q->ready;
    all = status == OPIPE_OK ? all : status;
  }
  if (all == OPIPE_PENDING)
    emutrans_look_at(e, emutrans_now() + AGAIN_NS);
  return all;
}

/* The operation takes its cell, and its peer sees it. */
static opipe_status begin(const opipe_endpoint *e, const queued_op *q, uint64_t from_ns,
                          opipe_error *err) {
  const operation *op = &q->op;
  cell *c = op->stream == NULL ? NULL : emutrans_cell(op->stream, op->sequence);
  if (c == NULL)
    return OPIPE_OK;
  c->orders[op->side] = false;
  c->from_ns[op->side] = from_ns;
  if (op->side == 0) {
    c->source = q->data;
    c->n_bytes = q->n_bytes;
    c->ready = c->send_done = NULL;
  } else {
    c->target = q->data;
    c->room_bytes = q->n_bytes;
    c->after = c->recv_done = NULL;
  }
  return emutrans_start(e, op, err);
}

static opipe_status begin_first(opipe_endpoint *e, opipe_error *err) {
  clock_lane *lane = e->clock;
  const uint32_t n = at(lane, lane->n_out)->n_left;
  uint64_t from_ns = lane->free_ns;
  opipe_status status = poll_readies(e, lane->n_out, err);
  if (status != OPIPE_OK)
    return status;
  for (uint32_t i = 0; i < n; ++i) {
    const uint64_t ready_ns = at(lane, lane->n_out + i)->ready_ns;
    from_ns = ready_ns > from_ns ? ready_ns : from_ns;
  }
  lane->n_begun = n;
  for (uint32_t i = 0; i < n && status == OPIPE_OK; ++i)
    status = begin(e, at(lane, lane->n_out + i), from_ns, err);
  return status;
}

/* All its messages have arrived: its events are recorded. */
static opipe_status end_first(opipe_endpoint *e, opipe_error *err) {
  clock_lane *lane = e->clock;
  opipe_status status = OPIPE_OK;
  for (uint32_t i = 0; i < lane->n_begun && status == OPIPE_OK; ++i) {
    queued_op *q = at(lane, lane->n_out + i);
    if (q->op.stream == NULL)
      continue;
    cell *c = emutrans_cell(q->op.stream, q->op.sequence);
    c->through[q->op.side] = q->op.sequence + 1;
    lane->free_ns = c->at_ns > lane->free_ns ? c->at_ns : lane->free_ns;
    status = emutrans_record(e, &q->done, err);
  }
  lane->n_out += lane->n_begun;
  lane->n_begun = 0;
  return status;
}

/* Moves the messages of the first batch, which has begun. */
static opipe_status move_first(const opipe_endpoint *e, opipe_error *err) {
  clock_lane *lane = e->clock;
  opipe_status status = OPIPE_OK;
  for (uint32_t i = 0; i < lane->n_begun && status >= 0; ++i) {
    const operation *op = &at(lane, lane->n_out + i)->op;
    const opipe_status moved =
        op->stream == NULL
            ? OPIPE_OK
            : emutrans_move(op->stream, emutrans_cell(op->stream, op->sequence), op->sequence, err);
    status = moved < 0 || status == OPIPE_OK ? moved : status;
  }
  return status;
}

/* While a batch is under way, sees when the device's work before the next one is done. */
static opipe_status look_ahead(opipe_endpoint *e, opipe_error *err) {
  const clock_lane *lane = e->clock;
  const uint64_t next = lane->n_out + lane->n_begun;
  return lane->n_begun == 0 || next == lane->n_in ? OPIPE_OK : poll_readies(e, next, err);
}

opipe_status emutrans_clock_move(opipe_endpoint *e, opipe_error *err) {
  clock_lane *lane = e->clock;
  while (lane != NULL && !is_empty(lane)) {
    opipe_status status = lane->n_begun == 0 ? begin_first(e, err) : (opipe_status)OPIPE_OK;
    if (status == OPIPE_OK)
      status = move_first(e, err);
    if (status == OPIPE_OK)
      status = end_first(e, err);
    if (status == OPIPE_OK)
      continue;
    const opipe_status ahead = status < 0 ? status : look_ahead(e, err);
    return ahead < 0 ? ahead : status;
  }
  return OPIPE_OK;
}

/* ---- asking ---- */

bool emutrans_clock_has(const opipe_endpoint *e, const opipe_stream *s, uint64_t sequence) {
  const clock_lane *lane = e->clock;
  uint64_t n = lane == NULL ? 0 : lane->n_out;
  while (lane != NULL && n < lane->n_in &&
         (lane->ops[n % ROOM].op.stream != s || lane->ops[n % ROOM].op.sequence != sequence))
    ++n;
  return lane != NULL && n < lane->n_in;
}

bool emutrans_clock_is_empty(const opipe_endpoint *e) {
  return e->clock == NULL || is_empty(e->clock);
}

void emutrans_clock_forget(const opipe_stream *s) {
  clock_lane *lane = s->endpoint->clock;
  for (uint64_t n = lane == NULL ? 0 : lane->n_out; lane != NULL && n < lane->n_in; ++n) {
    if (at(lane, n)->op.stream == s)
      at(lane, n)->op.stream = NULL;
  }
}
