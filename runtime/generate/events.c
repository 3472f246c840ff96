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
  opi_lock_take(&g->lock);
  return OPIPE_OK;
}

void opi_generator_leave(opi_generator *g) {
  opi_lock_give(&g->lock);
}

void opi_generator_tell(opi_generator *g) {
  while (g->telling)
    opi_lock_wait(&g->lock, UINT64_MAX);
  g->telling = true;
}

void opi_generator_told(opi_generator *g) {
  opi_generator_grant(g);
  g->telling = false;
  opi_lock_signal(&g->lock);
}

/* Surround a callback of a sequence, which runs without the lock. */
typedef struct border {
  opi_host_sequence *sequence;
  const opi_generator *outer; /* of a callback that this one comes from */
  opi_fp_border *lent;
} border;

static border enter(opi_host_sequence *s, uint32_t says) {
  border out = {.sequence = s, .outer = caller};
  s->says = says;
  caller = s->generator;
  opi_lock_give(&s->generator->lock);
  out.lent = opi_fp_lend();
  return out;
}

static void leave(const border *of) {
  opi_fp_take(of->lent);
  opi_lock_take(&of->sequence->generator->lock);
  caller = of->outer;
  of->sequence->says = OPI_SAYS_NOTHING;
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
  const opi_pass_facts *facts = &h->generator->params.facts;
  opi_host_sequence *s = &h->sequences[number];
  opipe_sequence *handle = s->handle;
  const opipe_generate_params own = s->own;
  opipe_error why = OPIPE_ERROR_INIT;
  if (own.on_logits == NULL)
    return OPIPE_OK;
  const border at = enter(s, OPI_SAYS_OTHER);
  const opipe_status status =
      own.on_logits(own.ctx, handle, position, row, facts->n_vocab, facts->dtype, io_id, &why);
  leave(&at);
  if (judge(status, "on_logits", position, &why) == OPIPE_OK)
    return OPIPE_OK;
  return opi_fail(err, why.status, "%s", why.message);
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
  opipe_sequence *handle = s->handle;
  const opipe_generate_params own = s->own;
  opipe_error why = OPIPE_ERROR_INIT;
  if (s->wish.status < 0 || s->gives_up)
    return;
  ++s->n_tokens;
  if (own.on_token == NULL)
    return;
  for (uint32_t i = 0; i < sampled->n_likely; ++i)
    likely[i] = (opipe_likely){.id = sampled->likely[i].id, .logprob = sampled->likely[i].logprob};
  const border at = enter(s, OPI_SAYS_TOKEN);
  const opipe_status status = own.on_token(own.ctx, handle, &token, &why);
  leave(&at);
  if (judge(status, "on_token", position, &why) < 0)
    s->wish = why;
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
  opipe_sequence *handle = s->handle; /* the host may begin another turn */
  const opipe_generate_params own = s->own;
  const opipe_error told = s->why;
  const uint32_t end = s->end;
  const border at = enter(s, OPI_SAYS_END);
  own.on_end(own.ctx, handle, end, end == OPIPE_END_FAILED ? &told : NULL);
  leave(&at);
}

static void on_answer(void *ctx, uint32_t number, uint32_t other) {
  opi_home *h = ctx;
  opi_host_sequence *s = &h->sequences[number], *o = &h->sequences[other];
  opi_sequence_begin(h, other, s);
  opipe_sequence *handle = s->handle, *answer = o->handle;
  const opipe_generate_params own = s->own;
  void *of_answer = o->own.ctx;
  const border at = enter(s, OPI_SAYS_OTHER);
  own.on_answer(own.ctx, handle, answer, &of_answer);
  leave(&at);
  o->own.ctx = of_answer;
}

const opi_turn_events opi_generator_events = {NULL, on_logits, on_token, on_end, on_answer};
