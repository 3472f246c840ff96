/* SPDX-License-Identifier: Apache-2.0 */
/* Shared data as a collective of a quiet session: where letters go beside the transport, parameters
 * by name go through it all the same, from their holder's session to the first rank of every other,
 * piece by piece, behind a piece that says whether there are any.
 */
#include <stdio.h>
#include <string.h>

#include "runtime/requests/peers.h"

/* Memory for a piece is taken whether or not the transport has collectives, which no plan knows. */
enum { PIECE_BYTES = 1 << 18 };

uint64_t opi_spread_bytes(const opi_decision *plan, uint32_t rank) {
  const uint32_t align = plan->devices[rank].alignment;
  return opi_letters_beside(plan) ? opi_align_up(PIECE_BYTES, align == 0 ? 1 : align) : 0;
}

/* ---- open and close ---- */

opipe_status opi_spread_open(opi_peers *p, opipe_error *err) {
  opi_setup *s = p->session->setup;
  opi_spread *b = &p->spread;
  const uint32_t n = s->env.n_processes;
  if (!opi_letters_beside(&s->plan->decided))
    return OPIPE_OK;
  uint32_t *ranks = OPI_ARENA_ARRAY(&p->arena, uint32_t, n);
  b->parts = OPI_ARENA_ARRAY(&p->arena, uint64_t, n);
  if (ranks == NULL || b->parts == NULL)
    return opi_fail_nomem(err, n * sizeof *ranks, "processes");
  for (uint32_t i = 0; i < n; ++i)
    ranks[i] = opi_first_of(s, i);
  b->rank = &s->ranks[s->here[0]];
  OPI_TRY(opi_rank_take(b->rank, PIECE_BYTES, OPIPE_BUFFER_BOUNDARY, "parameters by name",
                        &b->block, err));
  OPI_TRY(opi_rank_register(b->rank, &b->block, err));
  if (!OPIPE_HAS(s->transport, opipe_transport, collect_test) || s->transport->collect == NULL)
    return OPIPE_OK;
  const opipe_collective_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_collective_params, n_regions),
      .n_ranks = n,
      .ranks = ranks,
      .id = (uint64_t)UINT32_MAX << 32, /* sums have others */
      .n_bytes = PIECE_BYTES,
      .n_regions = 1};
  return OPI_MAKE_WIRE(s, collective_open, &b->collective, err, b->rank->endpoint, &params);
}

void opi_spread_close(opi_peers *p) {
  opi_spread *b = &p->spread;
  if (b->collective != NULL)
    b->rank->setup->transport->collective_close(b->collective);
  if (b->rank != NULL)
    opi_rank_give(b->rank, &b->block);
  *b = (opi_spread){.collective = NULL};
}

/* ---- pieces ---- */

static opi_letter head_of(const opi_share *share) {
  opi_letter head = {
      .kind = OPI_LETTER_DATA, .status = share->why.status, .n_total = share->n_bytes};
  if (share->why.status < 0)
    (void)snprintf(head.text, sizeof head.text, "%.*s", OPI_LETTER_TEXT - 1, share->why.message);
  return head;
}

static opipe_status take_head(opi_share *share, opi_letter *head, opipe_error *err) {
  head->text[sizeof head->text - 1] = '\0';
  if (head->kind != OPI_LETTER_DATA || head->n_total != share->n_bytes) {
    return opi_fail(err, OPIPE_E_STATE,
                    "the session of rank %u gives data of %llu bytes, here %llu are asked for: the "
                    "sessions of a plan's ranks must be given the same calls in the same order",
                    share->holder, (unsigned long long)head->n_total,
                    (unsigned long long)share->n_bytes);
  }
  if (head->status < 0)
    (void)opi_fail(&share->why, head->status, "%s", head->text);
  return OPIPE_OK;
}

static opipe_region piece_of(const opi_spread *b, uint64_t n_bytes) {
  return (opipe_region){.buffer = b->block.buffer, .n_bytes = n_bytes};
}

/* Bytes of the piece at hand. */
static uint64_t piece_bytes(const opi_spread *b, const opi_share *share) {
  const uint64_t left = share->n_bytes - b->n_done;
  return !b->has_head ? sizeof(opi_letter) : left < PIECE_BYTES ? left : (uint64_t)PIECE_BYTES;
}

/* Writes the holder's piece to the device, or reads what has come of it, there and back with the
 * host's memory. False: the caller has given up. */
static opipe_status copy_piece(opi_spread *b, opi_share *share, bool has, bool *out_good,
                               opipe_error *err) {
  opi_letter head = head_of(share);
  const opipe_region piece = piece_of(b, piece_bytes(b, share));
  char *host = b->has_head ? share->data + b->n_done : (char *)&head;
  *out_good = opi_rank_touch(b->rank);
  if (!*out_good)
    return OPIPE_OK;
  opipe_status status = has ? OPI_ASK_RANK(b->rank, write, err, b->rank->queue, &piece, host)
                            : OPI_ASK_RANK(b->rank, read, err, b->rank->queue, host, &piece);
  if (status == OPIPE_OK)
    status = opi_queue_sync(b->rank, b->rank->queue, b->rank->event, err);
  if (status == OPIPE_OK && !has && !b->has_head)
    status = take_head(share, &head, err);
  opi_rank_let_go(b->rank);
  return status;
}

/* Begins the piece's meeting. Its lists stay as they are until it has ended. */
static opipe_status give(opi_spread *b, const opi_share *share, bool has, opipe_error *err) {
  const opi_setup *s = b->rank->setup;
  const opipe_collect what = {.struct_size = (uint32_t)OPIPE_END(opipe_collect, done),
                              .kind = OPIPE_COLLECT_ALL_GATHER,
                              .dtype = OPIPE_UINT8,
                              .n_from = has ? 1 : 0,
                              .n_to = 1,
                              .from = &b->piece,
                              .to = &b->piece,
                              .parts = b->parts};
  b->piece = piece_of(b, piece_bytes(b, share));
  memset(b->parts, 0, s->env.n_processes * sizeof *b->parts);
  b->parts[s->env.places[share->holder]] = b->piece.n_bytes;
  const opipe_status status = OPI_POLL_WIRE(s, collect, err, b->collective, b->round, &what);
  b->given = status == OPIPE_OK;
  return status;
}

static opipe_status meet(opi_spread *b, const opi_share *share, bool has, opipe_error *err) {
  const opipe_status status = b->given ? OPIPE_OK : give(b, share, has, err);
  return status != OPIPE_OK
             ? status
             : OPI_POLL_WIRE(b->rank->setup, collect_test, err, b->collective, b->round);
}

opipe_status opi_spread_move(opi_peers *p, opipe_error *err) {
  opi_spread *b = &p->spread;
  opi_share *share = &p->share;
  const bool has = opi_rank_is_here(p->session->setup, share->holder);
  bool good = true;
  while (!b->has_head || (share->why.status >= 0 && b->n_done < share->n_bytes)) {
    if (has && !b->written) {
      OPI_TRY(copy_piece(b, share, true, &good, err));
      if (!good)
        return OPIPE_OK;
      b->written = true;
    }
    const opipe_status status = meet(b, share, has, err);
    b->rank->worker->polls = b->rank->worker->polls || status == OPIPE_PENDING;
    if (status != OPIPE_OK)
      return status < 0 ? status : OPIPE_OK;
    if (!has)
      OPI_TRY(copy_piece(b, share, false, &good, err));
    if (!good)
      return OPIPE_OK;
    b->n_done += b->has_head ? piece_bytes(b, share) : 0;
    b->has_head = true;
    b->given = b->written = false;
    ++b->round;
    opi_count_on(&share->n_parts);
    opi_count_on(&b->rank->worker->n_moves);
  }
  b->has_head = false;
  b->n_done = 0;
  atomic_store_explicit(&share->state, OPI_SHARING_DONE, memory_order_release);
  return OPIPE_OK;
}
