/* SPDX-License-Identifier: Apache-2.0 */
/* A decoder with keys and values, in a session that keeps them: what tests of states share. */
#ifndef TESTS_ABI_DECODER_KIT_H
#define TESTS_ABI_DECODER_KIT_H

#include "tests/abi/host_kit.h"

enum { DECODER_PAIRS = 4, DECODER_CLASSES = 96, DECODER_ROOM = 512 };
static const char *const decoder_past[DECODER_PAIRS] = {"past_k_0", "past_v_0", "past_k_1",
                                                        "past_v_1"};
static const char *const decoder_present[DECODER_PAIRS] = {"present_k_0", "present_v_0",
                                                           "present_k_1", "present_v_1"};

/* In two stages; of `params` devices, replicas and streams count. */
static inline opipe_status decoder_open(host_kit *k, const opipe_context_params *context,
                                        opipe_plan_params params) {
  opipe_state_pair pairs[DECODER_PAIRS];
  const opipe_dim dims[] = {{"batch", 1}, {"seq", 1}, {"past", 16}};
  for (uint32_t p = 0; p < DECODER_PAIRS; ++p) {
    pairs[p] = (opipe_state_pair){
        .output = decoder_present[p], .input = decoder_past[p], .capacity = DECODER_ROOM};
  }
  params.n_stages = 2;
  params.states = pairs;
  params.n_states = DECODER_PAIRS;
  const opipe_status status = kit_plan_dims(k, context, "tests/data/gpt_past/model.onnx", dims, 3,
                                            OPIPE_BIND_DEFAULTS, &params);
  return status == OPIPE_OK ? kit_open(k, NULL) : status;
}

/* One token, which must stay until the request has finished; the first of a state brings the empty
 * past. From several threads: each with an `err` of its own. */
static inline opipe_status decoder_submit(const host_kit *k, opipe_state *state, bool first,
                                          const int64_t *token, opipe_request **out,
                                          opipe_error *err) {
  static const float nothing[1];
  static const int64_t one_token[2] = {1, 1}, no_past[4] = {1, 2, 0, 8};
  opipe_binding_io in[1 + DECODER_PAIRS];
  opipe_submit_params params = opipe_submit_params_init();
  in[0] = kit_ids(token, one_token);
  for (uint32_t p = 0; p < DECODER_PAIRS; ++p) {
    in[1 + p] = (opipe_binding_io){.name = decoder_past[p],
                                   .tensor = {.data = (void *)(uintptr_t)nothing,
                                              .device_type = OPIPE_DL_CPU,
                                              .rank = 4,
                                              .dtype = {OPIPE_DL_FLOAT, 32, 1},
                                              .shape = no_past}};
  }
  params.inputs = in;
  params.n_inputs = first ? 1 + DECODER_PAIRS : 1;
  params.state = state;
  return k->api->session_submit(k->session, &params, out, err);
}

#endif /* TESTS_ABI_DECODER_KIT_H */
