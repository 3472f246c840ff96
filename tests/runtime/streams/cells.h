/* SPDX-License-Identifier: Apache-2.0 */
/* Cells: models written here, with inputs x and s, outputs y and s_next, all float [1, STATE],
 * whose s_next is the next request's s. */
#ifndef TESTS_RUNTIME_STREAMS_CELLS_H
#define TESTS_RUNTIME_STREAMS_CELLS_H

#include "tests/loader/wire/writer.h"
#include "tests/runtime/streams/kit.h"

enum { STATE = 96 }; /* halves and thirds are aligned */

static inline opipe_status cell_open(host_kit *k, const bytes *file, const char *cut,
                                     uint32_t n_stages, uint32_t tensor) {
  static const opipe_state_pair pair = {"s_next", "s", 0};
  const opipe_load_params load = {
      .struct_size = sizeof load, .data = file->data, .n_bytes = file->n};
  const opipe_bind_options bind = {.struct_size = sizeof bind};
  opipe_plan_params plan = opipe_plan_params_init();
  plan.states = &pair;
  plan.n_states = 1;
  plan.cut = cut;
  plan.n_stages = n_stages;
  plan.tensor = tensor;
  memset(k, 0, sizeof *k);
  k->err.struct_size = sizeof k->err;
  OPI_TRY(opipe_get_api(OPIPE_VIEW, &k->api, &k->err));
  OPI_TRY(k->api->context_create(NULL, &k->context, &k->err));
  OPI_TRY(k->api->model_load(k->context, &load, &k->model, &k->err));
  OPI_TRY(k->api->model_bind(k->model, &bind, &k->bound, &k->err));
  OPI_TRY(k->api->plan_make(k->bound, &plan, &k->plan, &k->err));
  return kit_open(k, NULL);
}

/* s NULL: the state has it. state NULL: s_next comes back. */
static inline void cell_step(host_kit *k, opipe_state *state, const float *x, const float *s,
                             float *y, float *s_next) {
  static const int64_t shape[2] = {1, STATE};
  opipe_request *request = NULL;
  const opipe_binding_io in[2] = {kit_io("x", (void *)(uintptr_t)x, 2, OPIPE_DL_FLOAT, 32, shape),
                                  kit_io("s", (void *)(uintptr_t)s, 2, OPIPE_DL_FLOAT, 32, shape)};
  const opipe_binding_io out[2] = {kit_io("y", y, 2, OPIPE_DL_FLOAT, 32, shape),
                                   kit_io("s_next", s_next, 2, OPIPE_DL_FLOAT, 32, shape)};
  const opipe_submit_params params = {.struct_size = sizeof params,
                                      .n_inputs = s == NULL ? 1 : 2,
                                      .n_outputs = state != NULL ? 1 : 2,
                                      .io_stride = sizeof in[0],
                                      .inputs = in,
                                      .outputs = out,
                                      .state = state};
  OPI_ASSERT_OK(k->api->session_submit(k->session, &params, &request, &k->err), &k->err);
  OPI_ASSERT_OK(k->api->request_wait(request, UINT64_MAX, &k->err), &k->err);
  k->api->request_release(request);
}

#endif /* TESTS_RUNTIME_STREAMS_CELLS_H */
