/* SPDX-License-Identifier: Apache-2.0 */
/* The published cut vectors of ONNX Runtime's pipeline partitioner: the cut that the vector gives,
 * what it says of the stages, and a run whose results are the bits of the plan's own reference.
 * Skipped where the shared oracles are absent. ctest: timeout=120
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "loader/graph/model.h"
#include "opipe/host.h"
#include "tests/support/support.h"

enum { TEXT_ROOM = 1 << 20, TENSORS_MOST = 16 };

typedef struct text {
  char data[TEXT_ROOM];
  size_t n;
} text;

static opipe_error err = OPIPE_ERROR_INIT;

static opipe_status append(void *ctx, const void *data, size_t n) {
  text *t = ctx;
  if (t->n + n >= sizeof(t->data))
    return OPIPE_E_LIMIT;
  memcpy(t->data + t->n, data, n);
  t->n += n;
  t->data[t->n] = '\0';
  return OPIPE_OK;
}

static void add(char *spec, const char *piece) {
  const size_t n = strlen(spec);
  (void)snprintf(spec + n, TEXT_ROOM - n, "%s", piece);
}

/* "cuts": [[{edge, consumers}, ...], ...] as our text. */
static void spec_of_cuts(const json_t *cuts, char *spec) {
  size_t c = 0, e = 0, i = 0;
  json_t *cut = NULL, *edge = NULL, *consumer = NULL;
  spec[0] = '\0';
  json_array_foreach(cuts, c, cut) {
    if (c != 0)
      add(spec, ";");
    json_array_foreach(cut, e, edge) {
      if (e != 0)
        add(spec, ",");
      add(spec, json_string_value(json_object_get(edge, "edge")));
      json_array_foreach(json_object_get(edge, "consumers"), i, consumer) {
        add(spec, i == 0 ? ":" : "+");
        add(spec, json_string_value(consumer));
      }
    }
  }
}

static int stage_in_map(const json_t *map, const opi_graph *g, const opi_node *node) {
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] == OPIPE_NONE)
      continue;
    const json_t *stage = json_object_get(map, g->values[node->out[o]].name);
    if (stage != NULL)
      return (int)json_integer_value(stage);
  }
  return -1;
}

/* "op_output_to_stage": two stages; the edges from the first to the second, with their consumers.
 */
static void spec_of_map(const char *path, const json_t *map, char *spec) {
  opi_model *model = NULL;
  const opi_load_params load = {.path = path, .allocator = opi_allocator_system()};
  spec[0] = '\0';
  OPI_ASSERT_OK_FATAL(opi_model_load(&load, &model, &err), &err);
  const opi_graph *g = model->graph;
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    for (uint32_t i = 0; i < g->nodes[n].n_in; ++i) {
      const uint32_t v = g->nodes[n].in[i];
      const uint32_t producer = v == OPIPE_NONE ? OPIPE_NONE : g->values[v].producer;
      if (producer == OPIPE_NONE || stage_in_map(map, g, &g->nodes[producer]) != 0 ||
          stage_in_map(map, g, &g->nodes[n]) != 1)
        continue;
      add(spec, spec[0] == '\0' ? "" : ",");
      add(spec, g->values[v].name);
      add(spec, ":");
      add(spec, g->values[g->nodes[n].out[0]].name);
    }
  }
  opi_model_free(model);
}

typedef struct setup {
  const opipe_api *api;
  opipe_context *context;
  opipe_model *model, *bound;
  opipe_plan *plan;
} setup;

static void open_model(setup *s, const char *path) {
  const opipe_load_params load = {.struct_size = sizeof load, .path = path};
  static const opipe_dim dims[] = {{"batch", 2}};
  opipe_bind_options bind = {.struct_size = sizeof bind,
                             .flags = OPIPE_BIND_DEFAULTS | OPIPE_BIND_NO_FUSE,
                             .dims = dims,
                             .n_dims = 1,
                             .dims_stride = sizeof(opipe_dim)};
  memset(s, 0, sizeof(*s));
  OPI_ASSERT_OK_FATAL(opipe_get_api(OPIPE_VIEW, &s->api, &err), &err);
  OPI_ASSERT_OK_FATAL(s->api->context_create(NULL, &s->context, &err), &err);
  OPI_ASSERT_OK_FATAL(s->api->model_load(s->context, &load, &s->model, &err), &err);
  if (s->api->model_bind(s->model, &bind, &s->bound, &err) == OPIPE_E_NOTFOUND) {
    bind.n_dims = 0; /* no free dimension of that name */
    OPI_ASSERT_OK_FATAL(s->api->model_bind(s->model, &bind, &s->bound, &err), &err);
  }
  OPI_ASSERT_FATAL(s->bound != NULL);
}

static void close_model(setup *s) {
  s->api->plan_destroy(s->plan);
  s->api->model_destroy(s->bound);
  s->api->model_destroy(s->model);
  s->api->context_destroy(s->context);
}

static bool listed(const json_t *list, const char *name) {
  size_t i = 0;
  json_t *item = NULL;
  json_array_foreach(list, i, item) {
    if (strcmp(json_string_value(item), name) == 0)
      return true;
  }
  return false;
}

static bool made_anywhere(const json_t *stages, const char *name) {
  size_t s = 0;
  json_t *stage = NULL;
  json_array_foreach(stages, s, stage) {
    if (listed(json_object_get(stage, "nodes"), name))
      return true;
  }
  return false;
}

/* The tensors that the vector lists, if folding has left them, must be where it says. */
static void check_expectations(const char *name, const json_t *vector, const json_t *plan) {
  const json_t *expect = json_object_get(vector, "expect"),
               *stages = json_object_get(plan, "stages");
  const json_t *in_stage = json_object_get(expect, "produced_in_stage");
  const json_t *exactly = json_object_get(expect, "produced_exactly");
  const size_t id = (size_t)json_integer_value(json_object_get(vector, "stage_id"));
  const json_t *nodes = json_object_get(json_array_get(stages, id), "nodes");
  size_t i = 0;
  json_t *item = NULL;
  OPI_ASSERT_INT(json_array_size(stages), json_integer_value(json_object_get(vector, "stages")));
  json_array_foreach(in_stage == NULL ? exactly : in_stage, i, item) {
    const char *tensor = json_string_value(item);
    if (made_anywhere(stages, tensor) && !listed(nodes, tensor))
      OPI_FAIL("%s: tensor %s is not made in stage %zu", name, tensor, id);
  }
  json_array_foreach(json_object_get(expect, "not_produced_in_stage"), i, item) {
    if (listed(nodes, json_string_value(item)))
      OPI_FAIL("%s: tensor %s is made in stage %zu", name, json_string_value(item), id);
  }
  if (exactly == NULL)
    return;
  json_array_foreach(nodes, i, item) {
    if (!listed(exactly, json_string_value(item)))
      OPI_FAIL("%s: tensor %s is made in stage %zu too", name, json_string_value(item), id);
  }
}

/* ---- running ---- */

static uint32_t make_inputs(setup *s, opipe_binding_io *inputs) {
  opi_test_random random = {7};
  for (uint32_t i = 0;; ++i) {
    opipe_tensor_info info = {.struct_size = sizeof info};
    size_t n = 1;
    if (i == TENSORS_MOST || s->api->model_input(s->bound, i, &info, &err) < 0)
      return i;
    for (uint32_t d = 0; d < info.rank; ++d)
      n *= (size_t)info.shape[d];
    int64_t *data = calloc(n + 1, sizeof(*data));
    OPI_ASSERT_FATAL(data != NULL);
    for (size_t e = 0; e < n; ++e) {
      if (info.dtype == OPIPE_FLOAT) {
        ((float *)data)[e] = (float)opi_test_uniform(&random, -1, 1);
      } else {
        data[e] = info.index_limit > 0
                      ? (int64_t)(opi_test_next(&random) % (uint64_t)info.index_limit)
                      : 1;
      }
    }
    inputs[i] = (opipe_binding_io){
        .name = info.name,
        .tensor = {.data = data,
                   .device_type = OPIPE_DL_CPU,
                   .rank = (int32_t)info.rank,
                   .dtype = {info.dtype == OPIPE_FLOAT ? OPIPE_DL_FLOAT : OPIPE_DL_INT,
                             info.dtype == OPIPE_FLOAT ? 32 : 64, 1},
                   .shape = info.shape}};
  }
}

static opipe_request *run(setup *s, uint32_t flags, const opipe_binding_io *inputs, uint32_t n,
                          opipe_session **out_session) {
  const opipe_session_params open = {
      .struct_size = sizeof open, .flags = flags, .spin_us = UINT32_MAX};
  const opipe_submit_params submit = {.struct_size = sizeof submit,
                                      .n_inputs = n,
                                      .io_stride = sizeof(opipe_binding_io),
                                      .inputs = inputs};
  opipe_request *request = NULL;
  OPI_ASSERT_OK_FATAL(s->api->session_open(s->context, s->plan, &open, out_session, &err), &err);
  OPI_ASSERT_OK_FATAL(s->api->session_submit(*out_session, &submit, &request, &err), &err);
  OPI_ASSERT_OK_FATAL(s->api->request_wait(request, UINT64_C(60000000000), &err), &err);
  return request;
}

static void compare_with_reference(setup *s) {
  opipe_binding_io inputs[TENSORS_MOST];
  opipe_model_info info = {.struct_size = sizeof info};
  opipe_session *piped = NULL, *plain = NULL;
  const uint32_t n = make_inputs(s, inputs);
  opipe_request *a = run(s, 0, inputs, n, &piped),
                *b = run(s, OPIPE_SESSION_REFERENCE, inputs, n, &plain);
  OPI_ASSERT_OK(s->api->model_info(s->bound, &info, &err), &err);
  for (uint32_t o = 0; o < info.n_outputs; ++o) {
    opipe_tensor x, y;
    size_t elems = 1;
    OPI_ASSERT_OK_FATAL(s->api->request_output(a, o, &x, &err), &err);
    OPI_ASSERT_OK_FATAL(s->api->request_output(b, o, &y, &err), &err);
    for (int32_t d = 0; d < x.rank; ++d)
      elems *= (size_t)x.shape[d];
    OPI_ASSERT(elems == 0 || memcmp(x.data, y.data, elems * x.dtype.bits / 8) == 0);
  }
  s->api->request_release(a);
  s->api->request_release(b);
  s->api->session_close(piped);
  s->api->session_close(plain);
  for (uint32_t i = 0; i < n; ++i)
    free(inputs[i].tensor.data);
}

/* ---- the vectors ---- */

static bool crosses(setup *s, const char *tensor, uint32_t src, uint32_t dst) {
  for (uint32_t i = 0;; ++i) {
    const char *name = NULL;
    uint32_t from = 0, to = 0;
    if (s->api->plan_cut_tensor(s->plan, i, &name, &from, &to, &err) < 0)
      return false;
    if (strcmp(name, tensor) == 0 && from == src && to == dst)
      return true;
  }
}

static void check_vector(const char *folder, const json_t *vector) {
  static char spec[TEXT_ROOM];
  static text json;
  char path[1024];
  setup s;
  const char *name = json_string_value(json_object_get(vector, "name"));
  (void)snprintf(path, sizeof(path), "%s/%s", folder,
                 json_string_value(json_object_get(vector, "model")));
  const json_t *map = json_object_get(vector, "op_output_to_stage");
  if (map != NULL)
    spec_of_map(path, map, spec);
  else
    spec_of_cuts(json_object_get(vector, "cuts"), spec);
  open_model(&s, path);
  const opipe_plan_params params = {.struct_size = sizeof params, .cut = spec};
  OPI_ASSERT_OK_FATAL(s.api->plan_make(s.bound, &params, &s.plan, &err), &err);
  json.n = 0;
  OPI_ASSERT_OK_FATAL(s.api->plan_write(s.plan, append, &json, &err), &err);
  json_t *plan = json_loads(json.data, 0, NULL);
  OPI_ASSERT_FATAL(plan != NULL);
  check_expectations(name, vector, plan);
  if (strcmp(name, "BertToy3Stages") == 0) { /* the mask skips a stage */
    OPI_ASSERT(crosses(&s, "103", 0, 1));
    OPI_ASSERT(crosses(&s, "103", 0, 2));
    OPI_ASSERT(crosses(&s, "326", 0, 1));
    OPI_ASSERT(crosses(&s, "558", 1, 2));
  }
  compare_with_reference(&s);
  json_decref(plan);
  close_model(&s);
}

static void test_published_cuts(void) {
  const char *folder = opi_test_shared("oracles/partition/ort");
  if (folder == NULL)
    return;
  char path[1024];
  size_t i = 0;
  json_t *vector = NULL;
  (void)snprintf(path, sizeof(path), "%s/partition_vectors.json", folder);
  json_t *root = json_load_file(path, 0, NULL);
  OPI_ASSERT_FATAL(root != NULL);
  OPI_ASSERT_INT(json_array_size(json_object_get(root, "partition")), 5);
  json_array_foreach(json_object_get(root, "partition"), i, vector) check_vector(folder, vector);
  json_decref(root);
}

/* The tied embedding is read in the first and in the last stage: one parameter, on two ranks. */
static void test_the_tied_embedding_is_on_both_ranks(void) {
  const char *path = opi_test_shared("oracles/partition/ort/bert_toy_optimized.onnx");
  setup s;
  if (path == NULL)
    return;
  open_model(&s, path);
  const opipe_plan_params params = {.struct_size = sizeof params,
                                    .cut = "326,103:413+529;558,103:645"};
  OPI_ASSERT_OK_FATAL(s.api->plan_make(s.bound, &params, &s.plan, &err), &err);
  opipe_memory_info first = {.struct_size = sizeof first}, last = first;
  OPI_ASSERT_OK(s.api->plan_memory(s.plan, 0, &first, &err), &err);
  OPI_ASSERT_OK(s.api->plan_memory(s.plan, 2, &last, &err), &err);
  OPI_ASSERT(first.mapped_bytes >= 99 * 32 * 4); /* gathered from where it lies */
  OPI_ASSERT(last.params_bytes >= 99 * 32 * 4);  /* packed for the product */
  close_model(&s);
}

OPI_TEST_MAIN("published cuts", OPI_TEST(test_published_cuts),
              OPI_TEST(test_the_tied_embedding_is_on_both_ranks))
