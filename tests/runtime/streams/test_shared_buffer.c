/* SPDX-License-Identifier: Apache-2.0 */
/* A decoder as ONNX Runtime GenAI's builder writes it (tests/data/shared_buffer: four blocks of
 * GroupQueryAttention), whose keys and values are a buffer of fixed size or grow: the logits of
 * prompts of 1, 7 and 64 tokens and of the decode steps behind them are ONNX Runtime's at every
 * cut, whatever shape the plan was made in. A pair that no stage can keep in a shape is refused.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/abi/host_kit.h"
#include "tests/loader/wire/writer.h"

#define FOLDER "tests/data/shared_buffer/"
enum { BLOCKS = 4, PAIRS = 2 * BLOCKS, HEADS = 2, WIDTH = 16, CLASSES = 320 };
enum { ROOM = 80, PROMPT_MOST = 64, STEPS = 8, INPUTS = 2 + PAIRS };
static const uint32_t prompts[] = {1, 7, PROMPT_MOST};

typedef struct place {
  uint32_t n_stages;
  bool shares;       /* keys and values are a buffer of ROOM tokens, else they grow from none */
  uint32_t bound_at; /* tokens of the request that the plan is made for */
} place;

typedef struct names {
  char past[PAIRS][32], present[PAIRS][32];
} names;

static const char *name_pair(names *n, uint32_t pair) {
  const char *what = pair < BLOCKS ? "key" : "value";
  (void)snprintf(n->past[pair], sizeof n->past[pair], "past_key_values.%u.%s", pair % BLOCKS, what);
  (void)snprintf(n->present[pair], sizeof n->present[pair], "present.%u.%s", pair % BLOCKS, what);
  return n->past[pair];
}

static opipe_status open_at(host_kit *k, const place *at, names *n) {
  const opipe_load_params load = {.struct_size = sizeof load,
                                  .path = opi_test_source(FOLDER "model.onnx")};
  const int64_t past = at->shares ? ROOM : at->bound_at;
  const opipe_dim dims[] = {{"batch_size", 1},
                            {"sequence_length", at->bound_at},
                            {"past_sequence_length", past},
                            {"total_sequence_length", at->shares ? at->bound_at : 2 * past}};
  const opipe_bind_options bind = {.struct_size = sizeof bind,
                                   .flags = OPIPE_BIND_DEFAULTS,
                                   .dims = dims,
                                   .n_dims = 4,
                                   .dims_stride = sizeof *dims};
  const opipe_device_choice device = {.kind = "cpu", .threads = 1};
  const opipe_session_params session = {
      .struct_size = sizeof session, .max_shapes = 64, .max_in_flight = 2};
  opipe_state_pair pairs[PAIRS];
  opipe_plan_params plan = opipe_plan_params_init();
  for (uint32_t p = 0; p < PAIRS; ++p) {
    pairs[p] = (opipe_state_pair){
        .input = name_pair(n, p), .output = n->present[p], .capacity = HEADS * ROOM * WIDTH};
  }
  plan.n_stages = at->n_stages;
  plan.devices = &device;
  plan.n_devices = 1;
  plan.states = pairs;
  plan.n_states = PAIRS;
  memset(k, 0, sizeof *k);
  k->err.struct_size = sizeof k->err;
  OPI_TRY(opipe_get_api(OPIPE_VIEW, &k->api, &k->err));
  OPI_TRY(k->api->context_create(NULL, &k->context, &k->err));
  OPI_TRY(k->api->model_load(k->context, &load, &k->model, &k->err));
  OPI_TRY(k->api->model_bind(k->model, &bind, &k->bound, &k->err));
  OPI_TRY(k->api->plan_make(k->bound, &plan, &k->plan, &k->err));
  return kit_open(k, &session);
}

static opipe_binding_io io_of(const char *name, const void *data, uint8_t code, uint8_t bits,
                              int32_t rank, const int64_t *shape) {
  return (opipe_binding_io){.name = name,
                            .tensor = {.data = (void *)(uintptr_t)data,
                                       .device_type = OPIPE_DL_CPU,
                                       .rank = rank,
                                       .dtype = {code, bits, 1},
                                       .shape = shape}};
}

/* One request of `n` tokens behind `past` others; the first brings the buffers. */
static opipe_status ask(host_kit *k, const names *named, opipe_state *state, bool shares,
                        const int64_t *ids, int64_t n, int64_t past, float *logits) {
  static const float zeros[HEADS * ROOM * WIDTH];
  static int64_t ones[ROOM];
  const int64_t ids_shape[] = {1, n}, mask_shape[] = {1, past + n}, out_shape[] = {1, n, CLASSES};
  const int64_t kept_shape[] = {1, HEADS, shares ? ROOM : 0, WIDTH};
  opipe_binding_io in[INPUTS] = {io_of("input_ids", ids, OPIPE_DL_INT, 64, 2, ids_shape),
                                 io_of("attention_mask", ones, OPIPE_DL_INT, 64, 2, mask_shape)};
  const opipe_binding_io out = io_of("logits", logits, OPIPE_DL_FLOAT, 32, 3, out_shape);
  for (uint32_t t = 0; t < ROOM; ++t)
    ones[t] = 1;
  for (uint32_t p = 0; p < PAIRS; ++p)
    in[2 + p] = io_of(named->past[p], zeros, OPIPE_DL_FLOAT, 32, 4, kept_shape);
  const opipe_submit_params params = {.struct_size = sizeof params,
                                      .n_inputs = past == 0 ? INPUTS : 2,
                                      .n_outputs = 1,
                                      .io_stride = sizeof *in,
                                      .inputs = in,
                                      .outputs = &out,
                                      .state = state};
  opipe_request *request = NULL;
  OPI_TRY(k->api->session_submit(k->session, &params, &request, &k->err));
  const opipe_status status = k->api->request_wait(request, UINT64_C(20000000000), &k->err);
  k->api->request_release(request);
  return status;
}

static int64_t best_of(const float *logits) {
  int64_t best = 0;
  for (int64_t c = 1; c < CLASSES; ++c)
    best = logits[c] > logits[best] ? c : best;
  return best;
}

/* A prompt, then steps of one token, each the likeliest so far: every logit is compared. */
static void decode(host_kit *k, const names *named, opipe_state *state, const place *at,
                   uint32_t prompt) {
  static float logits[PROMPT_MOST * CLASSES];
  int64_t ids[PROMPT_MOST], past = 0;
  char file[64];
  size_t n_bytes = 0;
  (void)snprintf(file, sizeof file, FOLDER "logits_%u.f32", prompt);
  char *wanted = opi_test_read_file(opi_test_source(file), &n_bytes);
  OPI_ASSERT_FATAL(wanted != NULL && n_bytes == (prompt + STEPS - 1) * CLASSES * sizeof(float));
  for (uint32_t i = 0; i < prompt; ++i)
    ids[i] = (i * 11 + 3) % 96;
  OPI_ASSERT_OK(k->api->state_reset(state, &k->err), &k->err);
  for (uint32_t s = 0; s < STEPS; ++s) {
    const int64_t n = s == 0 ? prompt : 1;
    OPI_ASSERT_OK_FATAL(ask(k, named, state, at->shares, ids, n, past, logits), &k->err);
    if (!OPI_ASSERT_CLOSE(logits, wanted + past * CLASSES * (int64_t)sizeof(float),
                          (size_t)(n * CLASSES), OPIPE_FLOAT, 1e-4)) {
      printf("%u stages, %s, bound at %u: prompt of %u, step %u\n", at->n_stages,
             at->shares ? "shared" : "grown", at->bound_at, prompt, s);
    }
    past += n;
    ids[0] = best_of(&logits[(n - 1) * CLASSES]);
  }
  free(wanted);
}

static void test_decoders(void) {
  static const place places[] = {{1, true, 1},  {2, true, 1},  {3, true, 1},          {1, false, 1},
                                 {2, false, 1}, {3, false, 1}, {3, true, 7},          {3, false, 7},
                                 {7, true, 1},  {7, false, 1}, {7, true, PROMPT_MOST}};
  for (size_t i = 0; i < OPI_COUNT(places); ++i) {
    host_kit k;
    names named;
    opipe_state *state = NULL;
    OPI_ASSERT_OK_FATAL(open_at(&k, &places[i], &named), &k.err);
    OPI_ASSERT_OK_FATAL(k.api->session_state_open(k.session, NULL, &state, &k.err), &k.err);
    for (size_t p = 0; p < OPI_COUNT(prompts); ++p)
      decode(&k, &named, state, &places[i], prompts[p]);
    kit_close(&k);
  }
}

/* ---- a pair without a rank: with one row b' = sum(x) b, with more b' = tanh(a) b ---- */

enum { STATE = 4 };

static bytes branch(const char *in) {
  bytes graph = {0};
  w_sub(&graph, 1, w_node("Mul", NULL, NULL, in, "product"));
  w_text(&graph, 2, in);
  w_sub(&graph, 12, w_value("product", OPIPE_FLOAT, (int64_t[]){STATE}, 1));
  return graph;
}

/* a' = tanh(a) + b', which puts b in the first of two stages that are cut at b'. */
static bytes two_states(void) {
  static const int64_t one = 1, kept[1] = {STATE}, rows[1] = {-1}, first[1] = {1};
  bytes graph = {0};
  w_sub(&graph, 1, w_node("Shape", NULL, NULL, "x", "rows"));
  w_sub(&graph, 1, w_node("Greater", NULL, NULL, "rows one", "many"));
  w_sub(&graph, 1, w_node("ReduceSum", NULL, NULL, "x", "sum"));
  w_sub(&graph, 1, w_node("Tanh", "bend", NULL, "a", "bent"));
  bytes choose = w_node("If", "choose", NULL, "many", "b_next");
  w_attr_graph(&choose, "then_branch", branch("bent b"));
  w_attr_graph(&choose, "else_branch", branch("sum b"));
  w_sub(&graph, 1, choose);
  w_sub(&graph, 1, w_node("Add", "carry", NULL, "bent b_next", "a_next"));
  w_sub(&graph, 5, w_tensor("one", OPIPE_INT64, first, 1, &one, sizeof one));
  w_sub(&graph, 11, w_value("x", OPIPE_FLOAT, rows, 1));
  w_sub(&graph, 11, w_value("a", OPIPE_FLOAT, kept, 1));
  w_sub(&graph, 11, w_value("b", OPIPE_FLOAT, kept, 1));
  w_sub(&graph, 12, w_value("a_next", OPIPE_FLOAT, kept, 1));
  w_sub(&graph, 12, w_value("b_next", OPIPE_FLOAT, kept, 1));
  return w_model(graph, 8);
}

static opipe_status open_two(host_kit *k, const bytes *file, const char *cut) {
  static const opipe_state_pair pairs[] = {{"a_next", "a", 0}, {"b_next", "b", 0}};
  static const opipe_dim dims[] = {{"n", 1}};
  const opipe_load_params load = {
      .struct_size = sizeof load, .data = file->data, .n_bytes = file->n};
  const opipe_bind_options bind = {
      .struct_size = sizeof bind, .dims = dims, .n_dims = 1, .dims_stride = sizeof *dims};
  opipe_plan_params plan = opipe_plan_params_init();
  plan.states = pairs;
  plan.n_states = 2;
  plan.cut = cut;
  memset(k, 0, sizeof *k);
  k->err.struct_size = sizeof k->err;
  OPI_TRY(opipe_get_api(OPIPE_VIEW, &k->api, &k->err));
  OPI_TRY(k->api->context_create(NULL, &k->context, &k->err));
  OPI_TRY(k->api->model_load(k->context, &load, &k->model, &k->err));
  OPI_TRY(k->api->model_bind(k->model, &bind, &k->bound, &k->err));
  OPI_TRY(k->api->plan_make(k->bound, &plan, &k->plan, &k->err));
  return kit_open(k, NULL);
}

static opipe_status step_two(host_kit *k, opipe_state *state, bool first, int64_t n) {
  static const float x[] = {0.5f, 0.25f}, kept[STATE] = {1, 2, 3, 4};
  static const int64_t shape[1] = {STATE};
  opipe_request *request = NULL;
  const opipe_binding_io in[] = {io_of("x", x, OPIPE_DL_FLOAT, 32, 1, &n),
                                 io_of("a", kept, OPIPE_DL_FLOAT, 32, 1, shape),
                                 io_of("b", kept, OPIPE_DL_FLOAT, 32, 1, shape)};
  const opipe_submit_params params = {.struct_size = sizeof params,
                                      .n_inputs = first ? 3 : 1,
                                      .io_stride = sizeof *in,
                                      .inputs = in,
                                      .state = state};
  OPI_TRY(k->api->session_submit(k->session, &params, &request, &k->err));
  const opipe_status status = k->api->request_wait(request, UINT64_MAX, &k->err);
  k->api->request_release(request);
  return status;
}

static void test_a_pair_without_a_rank(void) {
  const bytes file = two_states();
  for (uint32_t apart = 0; apart < 2; ++apart) {
    host_kit k;
    opipe_state *state = NULL;
    float b[STATE] = {0};
    OPI_ASSERT_OK_FATAL(open_two(&k, &file, apart ? "b_next" : NULL), &k.err);
    OPI_ASSERT_OK_FATAL(k.api->session_state_open(k.session, NULL, &state, &k.err), &k.err);
    OPI_ASSERT_OK(step_two(&k, state, true, 1), &k.err);
    const opipe_status status = step_two(&k, state, false, 2);
    if (apart) {
      OPI_ASSERT_ERROR(status, OPIPE_E_UNSUPPORTED, &k.err,
                       "state 'a_next' -> 'a': in this shape stage 1 cannot keep it: node 'bend' "
                       "of it is needed by stage 0, which keeps 'b_next' -> 'b'");
    } else {
      OPI_ASSERT_OK(status, &k.err);
    }
    OPI_ASSERT_OK(step_two(&k, state, false, 1), &k.err); /* it goes on in a shape that can */
    OPI_ASSERT_OK(k.api->state_get(state, 1, NULL, b, sizeof b, &k.err), &k.err);
    OPI_ASSERT(apart ? b[0] == 0.25f : b[0] > 0 && b[0] < 0.25f);
    kit_close(&k);
  }
  free(file.data);
}

OPI_TEST_MAIN("buffers of decoders over stages", OPI_TEST(test_decoders),
              OPI_TEST(test_a_pair_without_a_rank))
