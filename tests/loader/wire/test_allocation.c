/* SPDX-License-Identifier: Apache-2.0 */
/* ctest: timeout=300 */
/* Memory that runs out at every point of a load: a clear status, nothing leaked, and nothing taken
 * from anywhere else than the given allocator.
 */
#include <stdio.h>

#include "tests/loader/wire/writer.h"

typedef struct subject {
  const char *path;
  uint64_t n_nodes;
} subject;

static opipe_status load_subject(opi_test_memory *memory, void *arg) {
  subject *s = arg;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_model *model = NULL;
  const opi_load_params params = {.path = s->path, .allocator = &memory->allocator};
  const opipe_status status = opi_model_load(&params, &model, &err);
  if (status < 0) {
    OPI_ASSERT(strstr(err.message, "out of memory") != NULL);
    OPI_ASSERT_INT(err.status, status);
    OPI_ASSERT(model == NULL);
  } else {
    s->n_nodes = model->graph->n_nodes;
  }
  opi_model_free(model);
  return status;
}

static void test_every_allocation_of_a_load(void) {
  static const char *const names[] = {"odd/functions_nested", "odd/if_shape",   "odd/typed_fields",
                                      "odd/packed_types",     "llama_external", "gpt_raw",
                                      "odd/pipeline_stages"};
  for (size_t i = 0; i < OPI_COUNT(names); ++i) {
    char path[256];
    (void)snprintf(path, sizeof(path), "tests/data/%s/model.onnx", names[i]);
    subject s = {opi_test_source(path), 0};
    const uint64_t n_runs = opi_test_every_allocation(load_subject, &s, 100000);
    OPI_ASSERT(n_runs > 20 && n_runs < 100000);
    OPI_ASSERT(s.n_nodes > 0);
  }
}

static opipe_status parse_subject(opi_test_memory *memory, void *arg) {
  const bytes *b = arg;
  opi_arena arena;
  opi_value value;
  opi_arena_init(&arena, &memory->allocator, 0);
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_status status = opi_tensor_parse(b->data, b->n, &arena, &value, &err);
  opi_arena_release(&arena);
  return status;
}

static void test_every_allocation_of_a_tensor(void) {
  const int64_t dims[] = {3, 4000};
  bytes b = w_tensor("t", OPIPE_INT16, dims, 2, NULL, 0), list = {0};
  for (int i = 0; i < 12000; ++i)
    w_varint(&list, (uint64_t)(i & 0x7f));
  w_sub(&b, 5, list);
  OPI_ASSERT(opi_test_every_allocation(parse_subject, &b, 1000) > 2);
  free(b.data);
}

/* A refused model gives its memory back too. */
static void test_refused_models_leak_nothing(void) {
  static const char *const names[] = {"cycle", "written_twice", "reads_nothing", "function_cycle"};
  for (size_t i = 0; i < OPI_COUNT(names); ++i) {
    char path[256];
    (void)snprintf(path, sizeof(path), "tests/data/odd/%s/model.onnx", names[i]);
    opi_test_memory memory = {0};
    opi_test_memory_init(&memory);
    opipe_error err = OPIPE_ERROR_INIT;
    opi_model *model = NULL;
    const opi_load_params params = {.path = opi_test_source(path), .allocator = &memory.allocator};
    OPI_ASSERT_ERROR(opi_model_load(&params, &model, &err), OPIPE_E_INVALID, &err, "");
    OPI_ASSERT(memory.n_calls > 0);
    OPI_ASSERT(opi_test_memory_end(&memory));
  }
}

OPI_TEST_MAIN("allocation", OPI_TEST(test_every_allocation_of_a_load),
              OPI_TEST(test_every_allocation_of_a_tensor),
              OPI_TEST(test_refused_models_leak_nothing))
