/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes: letters between two ranks, in order, through rings of places in the memory of both; or
 * over the channel of a team (lane_channel.c). */
#include <string.h>

#include "runtime/requests/peers.h"

/* ---- open and close ---- */

static opipe_status open_stream(const opi_lane *lane, uint32_t src, uint32_t dst,
                                opipe_stream **out, opipe_error *err) {
  const opipe_stream_params params = {
      .struct_size = (uint32_t)OPIPE_END(opipe_stream_params, n_bytes),
      .kind = OPIPE_STREAM_CONTROL,
      .src_rank = src,
      .dst_rank = dst,
      .src_stage = OPIPE_NONE,
      .dst_stage = OPIPE_NONE,
      /* 0 is the stream by which ranks agree on the plan (session/agree.c) */
      .index = lane->of_values ? 2 : 1,
      .depth = OPI_LETTERS,
      .n_bytes = lane->place_bytes};
  return OPI_MAKE_WIRE(lane->rank->setup, stream_open, out, err, lane->rank->endpoint, &params);
}

static uint64_t place_bytes(uint64_t losses) {
  return sizeof(opi_letter) + (losses > OPI_LETTER_MORE ? losses : (uint64_t)OPI_LETTER_MORE);
}

static uint64_t lane_bytes(const opi_decision *plan, uint32_t rank, uint64_t losses) {
  const opi_device_spec *device = &plan->devices[rank];
  if (opi_letters_beside(plan))
    return 0;
  return 2 * OPI_LETTERS *
         opi_align_up(place_bytes(losses), device->alignment == 0 ? 1 : device->alignment);
}

uint64_t opi_peers_bytes(const opi_decision *plan, uint32_t rank, uint32_t n_lanes,
                         uint32_t n_values, bool leads) {
  const uint64_t losses = (uint64_t)plan->n_microbatches * sizeof(double); /* at most */
  return n_lanes * lane_bytes(plan, rank, losses) + n_values * lane_bytes(plan, rank, 0) +
         (leads ? opi_spread_bytes(plan, rank) : 0);
}

static opipe_status open_lane(opi_peers *p, opi_lane *lane, uint64_t losses, opipe_error *err) {
  const uint32_t own = lane->rank->index;
  lane->leader = OPIPE_NONE;
  lane->place_bytes = place_bytes(losses);
  if (opi_letters_beside(&lane->rank->setup->plan->decided))
    return opi_beside_open(lane, &p->arena, err);
  lane->step_bytes = opi_align_up(lane->place_bytes, lane->rank->alignment);
  lane->going = OPI_ARENA_ARRAY(&p->arena, char, lane->place_bytes);
  lane->come = OPI_ARENA_ARRAY(&p->arena, char, lane->place_bytes);
  if (lane->going == NULL || lane->come == NULL)
    return opi_fail_nomem(err, lane->place_bytes, "letters between sessions");
  OPI_TRY(opi_rank_take(lane->rank, 2 * OPI_LETTERS * lane->step_bytes, OPIPE_BUFFER_BOUNDARY,
                        "letters between sessions", &lane->block, err));
  OPI_TRY(opi_rank_register(lane->rank, &lane->block, err));
  if (lane->rank->event != NULL) {
    OPI_TRY(OPI_MAKE_RANK(lane->rank, queue_open, &lane->queue, err, lane->rank->device));
    OPI_TRY(OPI_MAKE_RANK(lane->rank, event_create, &lane->event, err, lane->rank->device));
  }
  OPI_TRY(open_stream(lane, own, lane->far, &lane->out, err));
  return open_stream(lane, lane->far, own, &lane->in, err);
}

uint32_t opi_first_of(const opi_setup *s, uint32_t process) {
  uint32_t r = 0;
  while (s->env.places[r] != process)
    ++r;
  return r;
}

/* Process 0 has one for each other process, those have one each. */
static opipe_status open_values(opi_peers *p, opipe_error *err) {
  const opi_setup *s = p->session->setup;
  const uint32_t own = s->env.process, n = own == 0 ? s->env.n_processes - 1 : 1;
  if (!s->inputs_travel && !s->outputs_travel)
    return OPIPE_OK;
  p->values = OPI_ARENA_ARRAY(&p->arena, opi_lane, n);
  if (p->values == NULL)
    return opi_fail_nomem(err, n * sizeof *p->values, "processes");
  for (uint32_t i = 0; i < n; ++i) {
    opi_lane *lane = &p->values[p->n_values++];
    lane->of_values = true;
    lane->rank = &s->ranks[s->here[0]];
    lane->process = own == 0 ? i + 1 : own;
    lane->far = opi_first_of(s, own == 0 ? i + 1 : 0);
    OPI_TRY(open_lane(p, lane, 0, err));
  }
  return OPIPE_OK;
}

opipe_status opi_lanes_open(opi_peers *p, opipe_error *err) {
  const opi_setup *s = p->session->setup;
  const uint32_t n = p->owns ? s->plan->decided.n_ranks - s->n_here : s->n_here;
  p->lanes = OPI_ARENA_ARRAY(&p->arena, opi_lane, n);
  if (p->lanes == NULL)
    return opi_fail_nomem(err, n * sizeof *p->lanes, "ranks of other sessions");
  for (uint32_t r = 0; r < s->plan->decided.n_ranks; ++r) {
    if (opi_rank_is_here(s, r) == p->owns)
      continue;
    opi_lane *lane = &p->lanes[p->n_lanes++];
    lane->rank = &s->ranks[p->owns ? 0 : r];
    lane->far = p->owns ? r : 0;
    OPI_TRY(open_lane(p, lane, opi_fate_bytes(s, r), err));
  }
  OPI_TRY(open_values(p, err));
  return opi_spread_open(p, err);
}

static void close_lane(opi_lane *lane) {
  const opipe_transport *t = lane->rank->setup->transport;
  if (lane->beside.box != NULL)
    opi_beside_close(lane);
  t->stream_close(lane->in);
  t->stream_close(lane->out);
  lane->rank->backend->event_destroy(lane->event);
  lane->rank->backend->queue_close(lane->queue);
  opi_rank_give(lane->rank, &lane->block);
}

void opi_lanes_close(opi_peers *p) {
  for (uint32_t i = 0; i < p->n_lanes; ++i)
    close_lane(&p->lanes[i]);
  for (uint32_t i = 0; i < p->n_values; ++i)
    close_lane(&p->values[i]);
  p->n_lanes = p->n_values = 0;
  opi_spread_close(p);
}

static opipe_queue *queue_of(const opi_lane *lane) {
  return lane->queue == NULL ? lane->rank->queue : lane->queue;
}

/* ---- sending ---- */

static opipe_region place_of(const opi_lane *lane, uint64_t number, bool goes) {
  const uint64_t at = number % OPI_LETTERS + (goes ? 0 : OPI_LETTERS);
  return (opipe_region){
      .buffer = lane->block.buffer,
      .offset_bytes = at * lane->step_bytes,
      .n_bytes = goes ? lane->going_bytes[number % OPI_LETTERS] : lane->place_bytes};
}

bool opi_lane_has_room(const opi_lane *lane) {
  return lane->n_written - lane->n_free < OPI_LETTERS;
}

opipe_status opi_lane_write(opi_lane *lane, const opi_letter *letter, const void *more,
                            opipe_error *err) {
  const uint64_t n_bytes = sizeof *letter + letter->n_bytes;
  memcpy(lane->going, letter, sizeof *letter);
  if (letter->n_bytes != 0 && more != lane->going + sizeof *letter)
    memcpy(lane->going + sizeof *letter, more, (size_t)letter->n_bytes);
  if (lane->beside.box != NULL)
    return opi_beside_write(lane, n_bytes, err);
  lane->going_bytes[lane->n_written % OPI_LETTERS] = n_bytes;
  const opipe_region place = place_of(lane, lane->n_written, true);
  OPI_TRY(OPI_ASK_RANK(lane->rank, write, err, queue_of(lane), &place, lane->going));
  OPI_TRY(opi_queue_sync(lane->rank, lane->queue, lane->event, err));
  ++lane->n_written;
  return opi_lane_move(lane, err);
}

static opipe_status move_out(opi_lane *lane, opipe_error *err) {
  const opi_setup *s = lane->rank->setup;
  opipe_status status = OPIPE_OK;
  /* Send what is written, in order. */
  while (status == OPIPE_OK && lane->n_sent < lane->n_written) {
    const opipe_region place = place_of(lane, lane->n_sent, true);
    status = OPI_POLL_WIRE(s, reserve, err, lane->out, lane->n_sent);
    if (status == OPIPE_OK)
      status = OPI_POLL_WIRE(s, send, err, lane->out, lane->n_sent, &place, NULL, NULL);
    lane->n_sent += status == OPIPE_OK ? 1 : 0;
  }
  /* Free the places of letters that have left. */
  while (status >= 0 && lane->n_free < lane->n_sent) {
    status = OPI_POLL_WIRE(s, test, err, lane->out, lane->n_free);
    if (status != OPIPE_OK)
      break;
    ++lane->n_free;
  }
  return status < 0 ? status : OPIPE_OK;
}

/* ---- receiving ---- */

static opipe_status move_in(opi_lane *lane, opipe_error *err) {
  const opi_setup *s = lane->rank->setup;
  opipe_status status = OPIPE_OK;
  /* Post a receive for every free place. */
  while (status == OPIPE_OK && lane->n_posted < lane->n_read + OPI_LETTERS) {
    const opipe_region place = place_of(lane, lane->n_posted, false);
    status = OPI_POLL_WIRE(s, recv, err, lane->in, lane->n_posted, &place, NULL);
    lane->n_posted += status == OPIPE_OK ? 1 : 0;
  }
  return status < 0 ? status : OPIPE_OK;
}

opipe_status opi_lane_move(opi_lane *lane, opipe_error *err) {
  if (lane->beside.box != NULL)
    return opi_beside_move(lane, err);
  OPI_TRY(move_in(lane, err));
  return move_out(lane, err);
}

static opipe_status check(const opi_lane *lane, const opi_letter *letter, opipe_error *err) {
  const uint64_t most = lane->place_bytes - sizeof *letter;
  const bool expected = lane->of_values
                            ? letter->kind == OPI_LETTER_VALUES
                            : letter->kind >= OPI_LETTER_HELLO && letter->kind <= OPI_LETTER_BYE;
  if (expected && letter->n_bytes <= most)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID,
                  "rank %u: a letter of kind %u with %llu bytes came from rank %u, at most %llu "
                  "are expected: are both sessions of one version?",
                  lane->rank->index, letter->kind, (unsigned long long)letter->n_bytes, lane->far,
                  (unsigned long long)most);
}

/* The next letter, out of its place. *out_any: there is one. */
static opipe_status read_place(const opi_lane *lane, bool *out_any, opipe_error *err) {
  if (lane->n_read == lane->n_posted)
    return OPIPE_OK;
  const opipe_region place = place_of(lane, lane->n_read, false);
  const opipe_status status = OPI_POLL_WIRE(lane->rank->setup, test, err, lane->in, lane->n_read);
  if (status != OPIPE_OK)
    return status < 0 ? status : OPIPE_OK;
  OPI_TRY(OPI_ASK_RANK(lane->rank, read, err, queue_of(lane), lane->come, &place));
  OPI_TRY(opi_queue_sync(lane->rank, lane->queue, lane->event, err));
  *out_any = true;
  return OPIPE_OK;
}

opipe_status opi_lane_peek(opi_lane *lane, const opi_letter **out, opipe_error *err) {
  opi_letter *letter = (opi_letter *)(void *)lane->come;
  bool any = false;
  *out = NULL;
  if (!lane->peeked && lane->beside.box != NULL)
    OPI_TRY(opi_beside_read(lane, &any, err));
  else if (!lane->peeked)
    OPI_TRY(read_place(lane, &any, err));
  if (any) {
    OPI_TRY(check(lane, letter, err));
    letter->text[sizeof letter->text - 1] = '\0';
    lane->peeked = true;
  }
  *out = lane->peeked ? letter : NULL;
  return OPIPE_OK;
}

void opi_lane_take(opi_lane *lane) {
  lane->peeked = false;
  ++lane->n_read;
}
