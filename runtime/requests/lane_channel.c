/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes whose letters go over the channel of a team: nothing of them is on a device, and no message
 * of the transport is theirs.
 */
#include "runtime/requests/peers.h"

static const opi_together *together_of(const opi_lane *lane) {
  return &lane->rank->setup->env.together;
}

/* The rank may sleep at its doorbell. */
static void ring(void *ctx) {
  const opi_rank *rank = ctx;
  rank->setup->transport->ring(rank->endpoint);
}

opipe_status opi_beside_open(opi_lane *lane, opi_arena *arena, opipe_error *err) {
  const opi_setup *s = lane->rank->setup;
  const opi_together *t = together_of(lane);
  const bool owns = opi_rank_is_here(s, 0);
  uint64_t key = lane->of_values ? UINT64_C(0x80000000) | lane->process
                 : owns          ? lane->far
                                 : lane->rank->index;
  char *going = OPI_ARENA_ARRAY(arena, char, sizeof(opi_envelope) + lane->place_bytes);
  lane->come = OPI_ARENA_ARRAY(arena, char, lane->place_bytes);
  if (going == NULL || lane->come == NULL)
    return opi_fail_nomem(err, lane->place_bytes, "letters between sessions");
  OPI_TRY(t->box_open(t->ctx, &key, ring, lane->rank, &lane->beside.box, err));
  lane->beside.envelope = (opi_envelope *)(void *)going;
  lane->going = going + sizeof(opi_envelope);
  *lane->beside.envelope = (opi_envelope){.key = key, .to = s->env.places[lane->far]};
  return OPIPE_OK;
}

void opi_beside_close(opi_lane *lane) {
  const opi_together *t = together_of(lane);
  t->box_close(t->ctx, lane->beside.box);
  lane->beside.box = NULL;
}

static opipe_status send(opi_lane *lane, uint64_t n_bytes, opipe_error *err) {
  const opi_together *t = together_of(lane);
  lane->beside.envelope->n_taken = lane->beside.n_told = lane->n_read;
  return t->letter(t->ctx, lane->beside.envelope, sizeof *lane->beside.envelope + n_bytes, err);
}

opipe_status opi_beside_write(opi_lane *lane, uint64_t n_bytes, opipe_error *err) {
  OPI_TRY(send(lane, n_bytes, err));
  lane->n_sent = ++lane->n_written;
  return OPIPE_OK;
}

/* Hears what the far end has taken, and says so of its letters, if none has said it since. */
opipe_status opi_beside_move(opi_lane *lane, opipe_error *err) {
  lane->n_free = atomic_load_explicit(&lane->beside.box->n_answered, memory_order_acquire);
  return lane->beside.n_told == lane->n_read ? OPIPE_OK : send(lane, 0, err);
}

opipe_status opi_beside_read(opi_lane *lane, bool *out_any, opipe_error *err) {
  const opi_together *t = together_of(lane);
  uint64_t n = 0;
  *out_any = false;
  if (atomic_load_explicit(&lane->beside.box->n_come, memory_order_acquire) == lane->n_read &&
      atomic_load_explicit(&lane->beside.box->broken, memory_order_acquire) == 0)
    return OPIPE_OK;
  const opipe_status status =
      t->letter_take(t->ctx, lane->beside.box, lane->come, lane->place_bytes, &n, err);
  if (status != OPIPE_OK)
    return status < 0 ? status : OPIPE_OK;
  const opi_letter *letter = (const opi_letter *)(const void *)lane->come;
  if (n < sizeof *letter || n - sizeof *letter != letter->n_bytes) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "rank %u: a letter of %llu bytes came from rank %u, at least %zu are expected",
                    lane->rank->index, (unsigned long long)n, lane->far, sizeof *letter);
  }
  *out_any = true;
  return OPIPE_OK;
}
