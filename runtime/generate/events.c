/* SPDX-License-Identifier: Apache-2.0 */
/* Events of turns become the host's callbacks. */
#include "loader/base/fp.h"
#include "runtime/generate/generator.h"

static _Thread_local const opi_generator *caller; /* of the callback that this thread is in */

bool opi_generator_in_callback(void) {
  return caller != NULL;
}

opipe_status opi_generator_enter(opi_generator *g, const char *call, opipe_error *err) {
  if (caller != NULL && caller != g) {
    return opi_fail(err, OPIPE_E_STATE, "%s: inside a callback of another session's generation",
                    call);
  }
  if (caller == NULL)
    opi_lock_take(&g->lock);
  return OPIPE_OK;
}

void opi_generator_leave(opi_generator *g) {
  if (caller == NULL)
    opi_lock_give(&g->lock);
}

/* Surround a callback. */
static opi_fp_border *enter(const opi_home *h) {
  caller = h->generator;
  return opi_fp_lend();
}

static void leave(opi_fp_border *lent) {
  opi_fp_take(lent);
  caller = NULL;
}

/* A host's answer as an error that says whose it is. */
static opipe_status judge(opipe_status status, const char *call, uint32_t position,
                          opipe_error *err) {
  if (status == OPIPE_OK)
    return OPIPE_OK;
  if (status < 0 && err->message[0] != '\0') {
    err->status = status;
    return opi_error_prefix(err, "%s at position %u: ", call, position);
  }
  return opi_fail(err, status < 0 ? status : OPIPE_E_INVALID, "%s at position %u answered %d", call,
                  position, (int)status);
}

static opipe_status on_logits(void *ctx, uint32_t number, uint32_t position, void *row,
                              int64_t *io_id, opipe_error *err) {
  const opi_home *h = ctx;
  const opi_generator *g = h->generator;
  const opi_host_sequence *s = &h->sequences[number];
  opipe_error own = OPIPE_ERROR_INIT;
  if (s->own.on_logits == NULL)
    return OPIPE_OK;
  opi_fp_border *lent = enter(h);
  const opipe_status status =
      s->own.on_logits(s->own.ctx, s->handle, position, row, g->params.facts.n_vocab,
                       g->params.facts.dtype, io_id, &own);
  leave(lent);
  if (judge(status, "on_logits", position, &own) == OPIPE_OK)
    return OPIPE_OK;
  return opi_fail(err, own.status, "%s", own.message);
}

static void on_token(void *ctx, uint32_t number, uint32_t position, const opi_sampled *sampled) {
  opi_home *h = ctx;
  opi_host_sequence *s = &h->sequences[number];
  opipe_likely likely[OPI_SAMPLING_LIKELY];
  const opipe_token token = {.id = sampled->id,
                             .position = position,
                             .n_likely = sampled->n_likely,
                             .likely_stride = (uint32_t)sizeof *likely,
                             .logprob = sampled->logprob,
                             .likely = likely};
  if (s->wish.status < 0 || s->gives_up)
    return;
  ++s->n_tokens;
  if (s->own.on_token == NULL)
    return;
  for (uint32_t i = 0; i < sampled->n_likely; ++i)
    likely[i] = (opipe_likely){.id = sampled->likely[i].id, .logprob = sampled->likely[i].logprob};
  s->wish = (opipe_error)OPIPE_ERROR_INIT;
  opi_fp_border *lent = enter(h);
  const opipe_status status = s->own.on_token(s->own.ctx, s->handle, &token, &s->wish);
  leave(lent);
  (void)judge(status, "on_token", position, &s->wish);
  s->wish.status = status == OPIPE_OK ? OPIPE_OK : s->wish.status;
}

static void on_end(void *ctx, uint32_t number, uint32_t reason, const opipe_error *why) {
  static const uint32_t ends[] = {
      [OPI_TURN_GOES_ON] = OPIPE_END_NONE,  [OPI_TURN_STOP] = OPIPE_END_STOP,
      [OPI_TURN_TOKENS] = OPIPE_END_TOKENS, [OPI_TURN_CONTEXT] = OPIPE_END_CONTEXT,
      [OPI_TURN_FAILED] = OPIPE_END_FAILED, [OPI_TURN_CANCELLED] = OPIPE_END_CANCELLED};
  opi_home *h = ctx;
  opi_host_sequence *s = &h->sequences[number];
  s->end = ends[reason];
  s->why = why != NULL ? *why : (opipe_error)OPIPE_ERROR_INIT;
  if (s->wish.status < 0) { /* the host's wish, or its deadline */
    s->end = OPIPE_END_FAILED;
    s->why = s->wish;
  }
  s->wish = (opipe_error)OPIPE_ERROR_INIT;
  s->gives_up = false;
  s->deadline_ns = UINT64_MAX;
  if (s->own.on_end == NULL)
    return;
  const opipe_error told = s->why; /* the host may begin another turn */
  opi_fp_border *lent = enter(h);
  s->own.on_end(s->own.ctx, s->handle, s->end, s->end == OPIPE_END_FAILED ? &told : NULL);
  leave(lent);
}

static void on_answer(void *ctx, uint32_t number, uint32_t other) {
  opi_home *h = ctx;
  opi_host_sequence *s = &h->sequences[number], *o = &h->sequences[other];
  opi_sequence_begin(h, other, s);
  opi_fp_border *lent = enter(h);
  s->own.on_answer(s->own.ctx, s->handle, o->handle, &o->own.ctx);
  leave(lent);
}

const opi_turn_events opi_generator_events = {NULL, on_logits, on_token, on_end, on_answer};
