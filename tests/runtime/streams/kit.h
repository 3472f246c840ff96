/* SPDX-License-Identifier: Apache-2.0 */
/* A decoder of two blocks (tests/data/gpt_past, or one of tests/data/heads) whose keys and values
 * streams keep, through the host's table. */
#ifndef TESTS_RUNTIME_STREAMS_KIT_H
#define TESTS_RUNTIME_STREAMS_KIT_H

#include <math.h>
#include <sched.h>
#include <stdio.h>

#include "loader/base/base.h"
#include "tests/abi/host_kit.h"

enum {
  PAIRS = 4,
  HEADS = 2,      /* of gpt_past's keys and values */
  HEADS_MOST = 6, /* of any model's */
  WIDTH = 8,      /* of a head */
  CLASSES = 96,
  MOST = 32, /* tokens of a stream */
  KEPT = HEADS_MOST * MOST * WIDTH
};

/* Capacities, and the shapes of calls, are those of the case that was made last. */
static opipe_state_pair kit_pairs[PAIRS] = {{"present_k_0", "past_k_0", 0},
                                            {"present_v_0", "past_v_0", 0},
                                            {"present_k_1", "past_k_1", 0},
                                            {"present_v_1", "past_v_1", 0}};
static uint32_t kit_heads = HEADS;

typedef struct plan_case {
  uint32_t n_stages, replicas, n_streams;
  const char *kind, *options; /* of the devices, NULL: "cpu" */
  uint64_t memory_bytes;
  uint32_t tensor;   /* members of a tensor group; 0: 1 */
  bool sequence;     /* their sequence form */
  const char *model; /* one of tests/data/heads; NULL: gpt_past */
  uint32_t heads;    /* of its keys and values; 0: HEADS */
  uint32_t kept;     /* heads that the members of a group keep, added up; 0: each has its own */
} plan_case;

static inline uint32_t kit_width(const plan_case *c) {
  return c->tensor == 0 ? 1 : c->tensor;
}

static inline opipe_plan_params kit_params(const plan_case *c, opipe_device_choice *device) {
  kit_heads = c->heads == 0 ? HEADS : c->heads;
  for (uint32_t p = 0; p < PAIRS; ++p)
    kit_pairs[p].capacity = kit_heads * MOST * WIDTH;
  *device = (opipe_device_choice){.kind = c->kind == NULL ? "cpu" : c->kind,
                                  .options = c->options,
                                  .memory_bytes = c->memory_bytes,
                                  .threads = 1};
  return (opipe_plan_params){
      .struct_size = sizeof(opipe_plan_params),
      .n_stages = c->n_stages,
      .n_ranks = c->replicas > 1 ? c->n_stages * c->replicas * kit_width(c) : 0,
      .replicas = c->replicas,
      .tensor = c->tensor,
      .flags = c->sequence ? OPIPE_PLAN_SEQUENCE : 0u,
      .devices = device,
      .n_devices = 1,
      .devices_stride = sizeof *device,
      .states = kit_pairs,
      .n_states = PAIRS,
      .states_stride = sizeof *kit_pairs,
      .n_streams = c->n_streams};
}

/* A model and a context; NULL params: no plan. */
static inline opipe_status kit_make_file(host_kit *k, const char *path,
                                         const opipe_context_params *context,
                                         const opipe_plan_params *params) {
  const opipe_load_params load = {.struct_size = sizeof load, .path = opi_test_source(path)};
  const opipe_dim dims[] = {{"batch", 1}, {"seq", 4}, {"past", 8}};
  const opipe_bind_options bind = {
      .struct_size = sizeof bind, .dims = dims, .n_dims = 3, .dims_stride = sizeof(opipe_dim)};
  memset(k, 0, sizeof *k);
  k->err.struct_size = sizeof k->err;
  OPI_TRY(opipe_get_api(OPIPE_VIEW, &k->api, &k->err));
  OPI_TRY(k->api->context_create(context, &k->context, &k->err));
  OPI_TRY(k->api->model_load(k->context, &load, &k->model, &k->err));
  OPI_TRY(k->api->model_bind(k->model, &bind, &k->bound, &k->err));
  return params == NULL ? OPIPE_OK : k->api->plan_make(k->bound, params, &k->plan, &k->err);
}

static inline opipe_status kit_make(host_kit *k, const opipe_context_params *context,
                                    const opipe_plan_params *params) {
  return kit_make_file(k, "tests/data/gpt_past/model.onnx", context, params);
}

static inline opipe_status kit_make_case(host_kit *k, const plan_case *c) {
  char path[128] = "tests/data/gpt_past/model.onnx";
  opipe_device_choice device;
  const opipe_plan_params params = kit_params(c, &device);
  if (c->model != NULL)
    (void)snprintf(path, sizeof path, "tests/data/heads/%s/model.onnx", c->model);
  return kit_make_file(k, path, NULL, &params);
}

static inline opipe_state *kit_state(host_kit *k) {
  opipe_state *state = NULL;
  OPI_ASSERT_OK(k->api->session_state_open(k->session, NULL, &state, &k->err), &k->err);
  return state;
}

/* One request: tokens, and keys and values where the caller has them. */
typedef struct call {
  int64_t ids[MOST], shape[2], past_shape[4], logits_shape[3], present_shape[4];
  float logits[MOST * CLASSES], present[PAIRS][KEPT];
  opipe_binding_io in[1 + PAIRS], out[1 + PAIRS];
  opipe_fence ready;
  opipe_request *request;
} call;

static inline opipe_binding_io kit_io(const char *name, void *data, int32_t rank, uint8_t code,
                                      uint8_t bits, const int64_t *shape) {
  return (opipe_binding_io){.name = name,
                            .tensor = {.data = data,
                                       .device_type = OPIPE_DL_CPU,
                                       .rank = rank,
                                       .dtype = {code, bits, 1},
                                       .shape = shape}};
}

/* past NULL: none is given; else n_past tokens' [PAIRS][KEPT]. state NULL: outputs come back. */
static inline opipe_status kit_call(host_kit *k, call *c, opipe_state *state, const int64_t *ids,
                                    int64_t n, const float (*past)[KEPT], int64_t n_past) {
  const int64_t past_shape[4] = {1, kit_heads, n_past, WIDTH},
                present_shape[4] = {1, kit_heads, n_past + n, WIDTH};
  memcpy(c->ids, ids, (size_t)n * sizeof *ids);
  memcpy(c->shape, (int64_t[]){1, n}, sizeof c->shape);
  memcpy(c->logits_shape, (int64_t[]){1, n, CLASSES}, sizeof c->logits_shape);
  memcpy(c->past_shape, past_shape, sizeof past_shape);
  memcpy(c->present_shape, present_shape, sizeof present_shape);
  c->in[0] = kit_io("input_ids", c->ids, 2, OPIPE_DL_INT, 64, c->shape);
  c->in[0].ready = c->ready;
  c->out[0] = kit_io("logits", c->logits, 3, OPIPE_DL_FLOAT, 32, c->logits_shape);
  for (uint32_t p = 0; p < PAIRS; ++p) {
    c->in[1 + p] = kit_io(kit_pairs[p].input, past == NULL ? NULL : (void *)(uintptr_t)past[p], 4,
                          OPIPE_DL_FLOAT, 32, c->past_shape);
    c->out[1 + p] =
        kit_io(kit_pairs[p].output, c->present[p], 4, OPIPE_DL_FLOAT, 32, c->present_shape);
  }
  const opipe_submit_params params = {.struct_size = sizeof params,
                                      .n_inputs = past == NULL ? 1 : 1 + PAIRS,
                                      .n_outputs = state != NULL ? 1 : 1 + PAIRS,
                                      .io_stride = sizeof(opipe_binding_io),
                                      .inputs = c->in,
                                      .outputs = c->out,
                                      .state = state};
  c->request = NULL;
  return k->api->session_submit(k->session, &params, &c->request, &k->err);
}

static inline opipe_status kit_end(host_kit *k, call *c) {
  const opipe_status status = k->api->request_wait(c->request, UINT64_MAX, &k->err);
  k->api->request_release(c->request);
  return status;
}

/* Submits, as soon as there is room, and waits. */
static inline opipe_status kit_step(host_kit *k, call *c, opipe_state *state, const int64_t *ids,
                                    int64_t n, const float (*past)[KEPT], int64_t n_past) {
  opipe_status status = OPIPE_PENDING;
  while (status == OPIPE_PENDING) { /* gaps of other streams are in flight */
    status = kit_call(k, c, state, ids, n, past, n_past);
    (void)sched_yield();
  }
  return status < 0 ? status : kit_end(k, c);
}

static inline void kit_ids_of(uint32_t stream, int64_t *ids) {
  for (int64_t i = 0; i < MOST; ++i)
    ids[i] = (i * 7 + (int64_t)stream * 13 + i * i % 5) % CLASSES;
}

static const float kit_nothing[PAIRS][KEPT];

#endif /* TESTS_RUNTIME_STREAMS_KIT_H */
