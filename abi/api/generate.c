/* SPDX-License-Identifier: Apache-2.0 */
/* Generation: checks of what hosts ask for, and calls of the engine that a session has if its plan
 * generates. */
#include "abi/api/api.h"
#include "abi/api/team/follow.h"

static opipe_status find(const opi_session_object *s, const char *call, opi_generator **out,
                         opipe_error *err) {
  OPI_TRY(opi_follow_check(s, call, err));
  if (s->generator == NULL)
    return opi_fail(err, OPIPE_E_STATE, "%s: the session's plan has no generation", call);
  *out = s->generator;
  return OPIPE_OK;
}

opipe_status opi_generation_refuse(const opi_session_object *s, const char *call,
                                   opipe_error *err) {
  if (s->own.rows == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_follow_check(s, call, err));
  return opi_fail(err, OPIPE_E_STATE,
                  "%s: the session generates, and makes its own requests: use session_generate",
                  call);
}

opipe_status opi_api_session_generate(opi_session_object *s, const opipe_generate_params *params,
                                      opipe_sequence **out_sequence, opipe_error *err) {
  opi_generator *generator = NULL;
  opipe_generate_params own = {.struct_size = (uint32_t)sizeof own};
  if (params == NULL || out_sequence == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "session_generate: an argument is NULL");
  OPI_TRY(opi_params_read(&opi_struct_generate_params, "session_generate", params, &own, err));
  OPI_TRY(find(s, "session_generate", &generator, err));
  return opi_sequence_open(generator, &own, out_sequence, err);
}

opipe_status opi_api_session_generation(opi_session_object *s, opipe_generation_info *io_info,
                                        opipe_error *err) {
  opi_generator *generator = NULL;
  opipe_generation_info info;
  opipe_session_info work = {.struct_size = (uint32_t)sizeof work};
  uint32_t n_here = 0;
  OPI_TRY(
      opi_info_check("session_generation", io_info, OPIPE_END(opipe_generation_info, bubble), err));
  OPI_TRY(find(s, "session_generation", &generator, err));
  OPI_TRY(opi_session_info(s->session, &work, err));
  OPI_TRY(opi_generator_info(generator, &info, err));
  for (uint32_t r = 0; r < s->n_ranks; ++r)
    n_here += s->local[r];
  const double room = (double)info.working_ns * n_here, busy = (double)work.busy_ns;
  info.bubble = room > busy ? 1 - busy / room : 0;
  opi_info_write(io_info, &info, sizeof info);
  return OPIPE_OK;
}

opipe_status opi_api_sequence_append(opi_host_sequence *sequence,
                                     const opipe_generate_params *params, opipe_error *err) {
  opipe_generate_params own = {.struct_size = (uint32_t)sizeof own};
  if (params == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "sequence_append: params is NULL");
  OPI_TRY(opi_params_read(&opi_struct_generate_params, "sequence_append", params, &own, err));
  return opi_sequence_append(sequence, &own, err);
}

opipe_status opi_api_sequence_fork(opi_host_sequence *sequence, const uint64_t *seed, void *ctx,
                                   opipe_sequence **out_sequence, opipe_error *err) {
  return out_sequence == NULL
             ? opi_fail(err, OPIPE_E_INVALID, "sequence_fork: out_sequence is NULL")
             : opi_sequence_fork(sequence, seed, ctx, out_sequence, err);
}

opipe_status opi_api_sequence_truncate(opi_host_sequence *sequence, uint32_t n_ids,
                                       opipe_error *err) {
  return opi_sequence_truncate(sequence, n_ids, err);
}

opipe_status opi_api_sequence_draft(opi_host_sequence *sequence, const uint32_t *ids,
                                    uint32_t n_ids, opipe_error *err) {
  return ids == NULL && n_ids > 0
             ? opi_fail(err, OPIPE_E_INVALID, "sequence_draft: %u ids, but ids is NULL", n_ids)
             : opi_sequence_draft(sequence, ids, n_ids, err);
}

opipe_status opi_api_sequence_cancel(opi_host_sequence *sequence, opipe_error *err) {
  return opi_sequence_cancel(sequence, err);
}

opipe_status opi_api_sequence_wait(opi_host_sequence *sequence, uint32_t n_tokens,
                                   uint64_t timeout_ns, opipe_error *err) {
  return opi_sequence_wait(sequence, n_tokens, timeout_ns, err);
}

opipe_status opi_api_sequence_info(opi_host_sequence *sequence, opipe_sequence_info *io_info,
                                   opipe_error *err) {
  opipe_sequence_info info;
  OPI_TRY(
      opi_info_check("sequence_info", io_info, OPIPE_END(opipe_sequence_info, n_accepted), err));
  OPI_TRY(opi_sequence_describe(sequence, &info, err));
  opi_info_write(io_info, &info, sizeof info);
  return OPIPE_OK;
}

opipe_status opi_api_sequence_ids(opi_host_sequence *sequence, uint32_t first, uint32_t n_ids,
                                  uint32_t *out_ids, opipe_error *err) {
  return out_ids == NULL && n_ids > 0
             ? opi_fail(err, OPIPE_E_INVALID, "sequence_ids: %u ids, but out_ids is NULL", n_ids)
             : opi_sequence_ids(sequence, first, n_ids, out_ids, err);
}
