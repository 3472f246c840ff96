/* SPDX-License-Identifier: Apache-2.0 */
/* GroupQueryAttention's seqlens_k, which indexes its cache: numbers outside it are refused by the
 * request that brought them, naming node, number and table; the session goes on with the same bits.
 * Known ones are refused at binding.
 */
#include <stdio.h>

#include "tests/abi/host_kit.h"

enum { BATCH = 2, HEADS = 2, SIZE = 8, CACHE = 4, VALUES_MOST = BATCH * 2 * HEADS * SIZE };

/* ---- the model: one node `gqa`, written field by field ---- */

typedef struct bytes {
  uint8_t data[2048];
  size_t n;
} bytes;

static void varint(bytes *b, uint64_t v) {
  for (; v > 127; v >>= 7)
    b->data[b->n++] = (uint8_t)(v | 128);
  b->data[b->n++] = (uint8_t)v;
}

static void number(bytes *b, uint32_t field, int64_t v) {
  varint(b, field << 3);
  varint(b, (uint64_t)v);
}

static void blob(bytes *b, uint32_t field, const void *data, size_t n) {
  varint(b, field << 3 | 2);
  varint(b, n);
  OPI_ASSERT_FATAL(b->n + n <= sizeof b->data);
  memcpy(b->data + b->n, data, n);
  b->n += n;
}

static void text(bytes *b, uint32_t field, const char *s) {
  blob(b, field, s, strlen(s));
}

/* A ValueInfoProto of the graph; rank 0: its shape is left open. */
static void value(bytes *graph, uint32_t field, const char *name, uint32_t dtype,
                  const int64_t *shape, uint32_t rank) {
  bytes tensor = {.n = 0}, type = {.n = 0}, info = {.n = 0}, dims = {.n = 0};
  for (uint32_t d = 0; d < rank; ++d) {
    bytes dim = {.n = 0};
    number(&dim, 1, shape[d]);
    blob(&dims, 1, dim.data, dim.n);
  }
  number(&tensor, 1, dtype);
  if (rank > 0)
    blob(&tensor, 2, dims.data, dims.n);
  blob(&type, 1, tensor.data, tensor.n);
  text(&info, 1, name);
  blob(&info, 2, type.data, type.n);
  blob(graph, field, info.data, info.n);
}

static void known(bytes *graph, const char *name, const int32_t *numbers, int64_t n) {
  bytes tensor = {.n = 0};
  number(&tensor, 1, n);
  number(&tensor, 2, OPIPE_INT32);
  text(&tensor, 8, name);
  blob(&tensor, 9, numbers, (size_t)n * sizeof *numbers);
  blob(graph, 5, tensor.data, tensor.n);
}

static void attribute(bytes *node, const char *name, int64_t v) {
  bytes attr = {.n = 0};
  text(&attr, 1, name);
  number(&attr, 3, v);
  number(&attr, 20, 2);
  blob(node, 5, attr.data, attr.n);
}

/* `length` new tokens behind a cache of four keys; lengths NULL: an input. */
static void write_model(bytes *model, int64_t length, const int32_t *lengths) {
  static const char *const in[] = {"q", "k", "v", "past_k", "past_v", "lengths", "total"};
  const int64_t q[3] = {BATCH, length, (int64_t)HEADS * SIZE}, kv[3] = {BATCH, length, SIZE},
                past[4] = {BATCH, 1, CACHE, SIZE}, batch = BATCH;
  const int32_t total = CACHE + (int32_t)length;
  bytes node = {.n = 0}, graph = {.n = 0}, opset = {.n = 0};
  for (uint32_t i = 0; i < sizeof in / sizeof in[0]; ++i)
    text(&node, 1, in[i]);
  text(&node, 2, "y");
  text(&node, 3, "gqa");
  text(&node, 4, "GroupQueryAttention");
  attribute(&node, "num_heads", HEADS);
  attribute(&node, "kv_num_heads", 1);
  text(&node, 7, "com.microsoft");
  blob(&graph, 1, node.data, node.n);
  text(&graph, 2, "graph");
  known(&graph, "total", &total, 1);
  if (lengths != NULL)
    known(&graph, "lengths", lengths, BATCH);
  value(&graph, 11, "q", OPIPE_FLOAT, q, 3);
  value(&graph, 11, "k", OPIPE_FLOAT, kv, 3);
  value(&graph, 11, "v", OPIPE_FLOAT, kv, 3);
  value(&graph, 11, "past_k", OPIPE_FLOAT, past, 4);
  value(&graph, 11, "past_v", OPIPE_FLOAT, past, 4);
  if (lengths == NULL)
    value(&graph, 11, "lengths", OPIPE_INT32, &batch, 1);
  value(&graph, 12, "y", OPIPE_FLOAT, q, 3);
  model->n = 0;
  number(model, 1, 8);
  number(&opset, 2, 17);
  blob(model, 8, opset.data, opset.n);
  opset.n = 0;
  text(&opset, 1, "com.microsoft");
  number(&opset, 2, 1);
  blob(model, 8, opset.data, opset.n);
  blob(model, 7, graph.data, graph.n);
}

/* ---- the session ---- */

static opipe_status bind(host_kit *k, const bytes *model) {
  const opipe_load_params load = {
      .struct_size = sizeof load, .data = model->data, .n_bytes = model->n};
  const opipe_bind_options options = {.struct_size = sizeof options};
  memset(k, 0, sizeof *k);
  k->err.struct_size = sizeof k->err;
  OPI_ASSERT_OK_FATAL(opipe_get_api(OPIPE_VIEW, &k->api, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->context_create(NULL, &k->context, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->model_load(k->context, &load, &k->model, &k->err), &k->err);
  return k->api->model_bind(k->model, &options, &k->bound, &k->err);
}

static bool open_model(host_kit *k, const bytes *model) {
  const opipe_plan_params plan = {.struct_size = sizeof plan, .n_stages = 1};
  OPI_ASSERT_OK_FATAL(bind(k, model), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->plan_make(k->bound, &plan, &k->plan, &k->err), &k->err);
  return OPI_ASSERT_OK(kit_open(k, NULL), &k->err);
}

/* One request with these seqlens_k; y [BATCH, length, HEADS * SIZE]. */
static opipe_status decode(host_kit *k, int64_t length, const int32_t *lengths, float *y) {
  static const char *const names[] = {"q", "k", "v", "past_k", "past_v", "lengths"};
  static float data[5][VALUES_MOST];
  const int64_t shapes[6][4] = {{BATCH, length, (int64_t)HEADS * SIZE},
                                {BATCH, length, SIZE},
                                {BATCH, length, SIZE},
                                {BATCH, 1, CACHE, SIZE},
                                {BATCH, 1, CACHE, SIZE},
                                {BATCH}};
  static const int32_t ranks[6] = {3, 3, 3, 4, 4, 1};
  opipe_binding_io io[6];
  opipe_request *request = NULL;
  opipe_tensor out;
  memset(io, 0, sizeof io);
  for (uint32_t i = 0; i < 6; ++i) {
    for (uint32_t e = 0; i < 5 && e < VALUES_MOST; ++e)
      data[i][e] = (float)((i * 37 + e * 11) % 23) / 23.0f - 0.5f;
    io[i].name = names[i];
    io[i].tensor = (opipe_tensor){.data = i < 5 ? (void *)data[i] : (void *)(uintptr_t)lengths,
                                  .device_type = OPIPE_DL_CPU,
                                  .rank = ranks[i],
                                  .dtype = {i < 5 ? OPIPE_DL_FLOAT : OPIPE_DL_INT, 32, 1},
                                  .shape = shapes[i]};
  }
  const opipe_submit_params submit = {.struct_size = sizeof submit,
                                      .n_inputs = 6,
                                      .io_stride = sizeof(opipe_binding_io),
                                      .inputs = io};
  opipe_status status = k->api->session_submit(k->session, &submit, &request, &k->err);
  if (status == OPIPE_OK)
    status = k->api->request_wait(request, UINT64_MAX, &k->err);
  if (status == OPIPE_OK)
    status = k->api->request_output(request, 0, &out, &k->err);
  if (status == OPIPE_OK)
    memcpy(y, out.data, (size_t)(BATCH * length * HEADS * SIZE) * sizeof *y);
  k->api->request_release(request);
  return status;
}

static void check(int64_t length, int32_t least) {
  const int32_t most = CACHE + (int32_t)length - 1;
  const int32_t good[BATCH] = {most, least}, bad[][BATCH] = {{most, most + 1},
                                                             {INT32_MAX, least},
                                                             {most, least - 1},
                                                             {-1, least},
                                                             {INT32_MIN, most}};
  float before[VALUES_MOST], after[VALUES_MOST];
  host_kit k;
  bytes model;
  char table[40];
  (void)snprintf(table, sizeof table, "is outside [-%d, %d)", most + 1, most + 1);
  write_model(&model, length, NULL);
  if (!open_model(&k, &model))
    return;
  OPI_ASSERT_OK(decode(&k, length, good, before), &k.err);
  for (uint32_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    const opipe_status status = decode(&k, length, bad[i], after);
    OPI_ASSERT_ERROR(status, OPIPE_E_INVALID, &k.err, table);
    OPI_ASSERT(strstr(k.err.message, "gqa") != NULL);
    memset(after, 0, sizeof after);
    OPI_ASSERT_OK(decode(&k, length, good, after), &k.err);
    OPI_ASSERT(memcmp(before, after, (size_t)(BATCH * length * HEADS * SIZE) * sizeof(float)) == 0);
  }
  kit_close(&k);
}

static void test_the_session_goes_on(void) {
  check(1, 0);
  check(2, 1); /* the new tokens are among the keys */
}

static void test_known_numbers_are_refused_at_binding(void) {
  static const int32_t bad[][BATCH] = {{4, 5}, {-1, 4}}, good[BATCH] = {4, 0};
  static const char *const said[] = {
      "'lengths' (seqlens_k) is 5 for sequence 1, it must be 0 to 4",
      "'lengths' (seqlens_k) is -1 for sequence 0, it must be 0 to 4"};
  host_kit k;
  bytes model;
  for (uint32_t i = 0; i < 2; ++i) {
    write_model(&model, 1, bad[i]);
    OPI_ASSERT_ERROR(bind(&k, &model), OPIPE_E_INVALID, &k.err, said[i]);
    kit_close(&k);
  }
  write_model(&model, 1, good);
  OPI_ASSERT_OK(bind(&k, &model), &k.err);
  kit_close(&k);
}

OPI_TEST_MAIN("lengths of sequences", OPI_TEST(test_the_session_goes_on),
              OPI_TEST(test_known_numbers_are_refused_at_binding))
