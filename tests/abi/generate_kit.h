/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the tests of generation through the table: some prompts, and what their turns tell. */
#ifndef TESTS_ABI_GENERATE_KIT_H
#define TESTS_ABI_GENERATE_KIT_H

#include "tests/abi/host_kit.h"

enum { PROMPTS = 6, TOLD_IDS = 64 };

/* Counts what the callbacks of a turn were told: their context. */
typedef struct told {
  uint32_t ids[TOLD_IDS], n, n_ends, end;
  uint64_t bits; /* of all rows of logits, of 32 bits each */
  opipe_error why;
} told;

static inline opipe_status told_logits(void *ctx, opipe_sequence *sequence, uint32_t position,
                                       void *row, uint32_t n_vocab, uint32_t dtype, int64_t *io_id,
                                       opipe_error *err) {
  told *t = ctx;
  (void)sequence, (void)position, (void)dtype, (void)io_id, (void)err;
  for (uint32_t i = 0; i < n_vocab; ++i)
    t->bits = (t->bits ^ ((const uint32_t *)row)[i]) * UINT64_C(1099511628211);
  return OPIPE_OK;
}

static inline opipe_status told_token(void *ctx, opipe_sequence *sequence, const opipe_token *token,
                                      opipe_error *err) {
  told *t = ctx;
  (void)sequence, (void)err;
  t->ids[t->n++ % TOLD_IDS] = token->id;
  return OPIPE_OK;
}

static inline void told_end(void *ctx, opipe_sequence *sequence, uint32_t reason,
                            const opipe_error *why) {
  told *t = ctx;
  (void)sequence;
  t->end = reason;
  ++t->n_ends;
  t->why = why == NULL ? (opipe_error)OPIPE_ERROR_INIT : *why;
}

/* Prompt i, of 3 + 2 * i ids below 23, in `room`, told to `ctx`, which begins with a `told`. */
static inline opipe_generate_params told_turn(uint32_t i, uint32_t room[16], const char *sampling,
                                              void *ctx) {
  opipe_generate_params p = opipe_generate_params_init();
  for (uint32_t j = 0; j < 3 + 2 * i; ++j)
    room[j] = (7 * i + 3 * j) % 23;
  p.ids = room;
  p.n_ids = 3 + 2 * i;
  p.sampling = sampling;
  p.ctx = ctx;
  p.on_logits = told_logits;
  p.on_token = told_token;
  p.on_end = told_end;
  return p;
}

/* From a file to a session; params->generation is set. */
static inline opipe_status kit_generate(host_kit *k, const opipe_context_params *context,
                                        const char *path, const opipe_plan_params *params,
                                        const opipe_session_params *session) {
  opipe_status status = kit_load(k, context, path);
  if (status == OPIPE_OK)
    status = k->api->plan_make(k->model, params, &k->plan, &k->err);
  return status == OPIPE_OK ? kit_open(k, session) : status;
}

/* Bytes of each rank are those predicted, pages among them. */
static inline bool kit_bytes_as_predicted(const host_kit *k, uint32_t first_rank, uint32_t n) {
  bool right = true;
  for (uint32_t r = first_rank; r < first_rank + n; ++r) {
    opipe_memory_info p = opipe_memory_info_init(), q = opipe_memory_info_init();
    right = right && k->api->plan_memory(k->plan, r, &p, NULL) == OPIPE_OK &&
            k->api->session_memory(k->session, r, &q, NULL) == OPIPE_OK &&
            p.params_bytes == q.params_bytes && p.activation_bytes == q.activation_bytes &&
            p.workspace_bytes == q.workspace_bytes && p.boundary_bytes == q.boundary_bytes &&
            p.state_bytes == q.state_bytes && p.total_bytes == q.total_bytes && q.state_bytes != 0;
  }
  return right;
}

#endif /* TESTS_ABI_GENERATE_KIT_H */
