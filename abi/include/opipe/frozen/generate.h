/* SPDX-License-Identifier: Apache-2.0 */
/* Made by tests/abi/freeze.py: the structs of generate.h as they were first released. */
#ifndef OPIPE_FROZEN_GENERATE_H
#define OPIPE_FROZEN_GENERATE_H

/* clang-format off */
#if OPIPE_TARGET_MINOR >= 5
#define OPIPE_FIELDS_opipe_likely(X, T) \
  X(T, id) X(T, reserved) X(T, logprob)
OPIPE_ORDER(opipe_likely)
#endif
#if OPIPE_TARGET_MINOR >= 5
#define OPIPE_FIELDS_opipe_token(X, T) \
  X(T, id) X(T, position) X(T, n_likely) X(T, likely_stride) X(T, logprob) X(T, likely)
OPIPE_ORDER(opipe_token)
#endif
#if OPIPE_TARGET_MINOR >= 5
#define OPIPE_FIELDS_opipe_generate_params(X, T) \
  X(T, struct_size) X(T, n_ids) X(T, ids) X(T, sampling) X(T, salt) X(T, deadline_ns) X(T, ctx) \
  X(T, on_token) X(T, on_logits) X(T, on_answer) X(T, on_end)
OPIPE_ORDER(opipe_generate_params)
#endif
#if OPIPE_TARGET_MINOR >= 5
#define OPIPE_FIELDS_opipe_sequence_info(X, T) \
  X(T, struct_size) X(T, state) X(T, end) X(T, status) X(T, n_ids) X(T, n_prompt) \
  X(T, n_tokens) X(T, branch) X(T, n_evicted) X(T, n_reused) X(T, n_drafted) X(T, n_accepted)
OPIPE_ORDER(opipe_sequence_info)
#endif
#if OPIPE_TARGET_MINOR >= 5
#define OPIPE_FIELDS_opipe_generation_info(X, T) \
  X(T, struct_size) X(T, rows) X(T, groups) X(T, page) X(T, n_pages) X(T, context) \
  X(T, n_sequences) X(T, n_active) X(T, n_vocab) X(T, dtype) X(T, open) X(T, waiting) \
  X(T, active) X(T, in_flight) X(T, free_pages) X(T, kept_pages) X(T, passes) X(T, computed) \
  X(T, tokens) X(T, asked) X(T, reused) X(T, evicted) X(T, forgotten) X(T, copied) \
  X(T, drafted) X(T, accepted) X(T, working_ns) X(T, bubble)
OPIPE_ORDER(opipe_generation_info)
#endif
#if OPIPE_TARGET_MINOR >= 5
#define OPIPE_ROWS_GENERATE_5 \
  , OPIPE_ROW(opipe_likely, logprob, 5) \
  , OPIPE_ROW(opipe_token, likely, 5) \
  , OPIPE_ROW(opipe_generate_params, on_end, 5) \
  , OPIPE_ROW(opipe_sequence_info, n_accepted, 5) \
  , OPIPE_ROW(opipe_generation_info, bubble, 5)
#else
#define OPIPE_ROWS_GENERATE_5
#endif
#define OPIPE_ROWS_GENERATE OPIPE_ROWS_GENERATE_5
/* clang-format on */

#endif /* OPIPE_FROZEN_GENERATE_H */
