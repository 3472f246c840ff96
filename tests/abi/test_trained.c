/* SPDX-License-Identifier: Apache-2.0 */
/* A plan lists what is trained: found once, when it is made; whoever reads it asks no rule again.
 * ctest: timeout=60 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/abi/host_kit.h"

static const char *const GPT = "tests/data/gpt_8block/model.onnx";

typedef struct text {
  char *data;
  size_t n;
} text;

static opipe_status gather(void *ctx, const void *data, uint64_t n_bytes) {
  text *t = ctx;
  char *grown = realloc(t->data, t->n + n_bytes + 1);
  if (grown == NULL)
    return OPIPE_E_NOMEM;
  memcpy(grown + t->n, data, n_bytes);
  *t = (text){grown, t->n + n_bytes};
  grown[t->n] = '\0';
  return OPIPE_OK;
}

static void make(host_kit *k, text *json) {
  const opipe_train_options train = {.struct_size = sizeof train,
                                     .loss = OPIPE_LOSS_CROSS_ENTROPY,
                                     .output = "logits",
                                     .labels = "labels",
                                     .optimizer = OPIPE_OPTIMIZER_SGD,
                                     .lr = 0.1};
  const opipe_plan_params plan = {
      .struct_size = sizeof plan, .n_stages = 2, .n_microbatches = 2, .train = &train};
  *json = (text){NULL, 0};
  OPI_ASSERT_OK_FATAL(kit_plan_training(k, GPT, 4, 8, &plan), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->plan_write(k->plan, gather, json, &k->err), &k->err);
  size_t n = strlen(json->data);
  kit_take_out_hash(json->data, &n);
}

/* The plan again, from its text, opened. */
static opipe_status reopen(host_kit *k, const text *json) {
  k->api->plan_destroy(k->plan);
  k->plan = NULL;
  const opipe_status status =
      k->api->plan_read(k->model, json->data, strlen(json->data), &k->plan, &k->err);
  return status == OPIPE_OK ? kit_open(k, NULL) : status;
}

static uint32_t n_trained(host_kit *k, const char *name, uint32_t *out_trained) {
  opipe_parameter_info info = {.struct_size = sizeof info};
  uint32_t n = 0;
  *out_trained = 99;
  for (uint32_t i = 0; k->api->session_parameter(k->session, i, &info, NULL) == OPIPE_OK; ++i) {
    n += info.trained != 0;
    if (strcmp(info.name, name) == 0)
      *out_trained = info.trained;
    info.struct_size = sizeof info;
  }
  return n;
}

/* The first name of the list; `name` of 128 bytes. */
static char *first_listed(const text *json, char *name) {
  char *at = strstr(json->data, "\"trained\": [");
  OPI_ASSERT_FATAL(at != NULL);
  at = strchr(at + 12, '"');
  OPI_ASSERT_FATAL(at != NULL && sscanf(at, "\"%127[^\"]\"", name) == 1);
  return at;
}

static void test_the_list_decides(void) {
  host_kit k;
  text json;
  char name[128];
  uint32_t trained = 0;
  make(&k, &json);
  OPI_ASSERT_OK_FATAL(reopen(&k, &json), &k.err);
  char *at = first_listed(&json, name);
  const uint32_t all = n_trained(&k, name, &trained);
  OPI_ASSERT(all > 50 && trained == 1);
  k.api->session_close(k.session);
  k.session = NULL;
  /* without that line: the rule would train it */
  const size_t length = strlen(name) + 2 + strspn(at + strlen(name) + 2, ", \n");
  memmove(at, at + length, strlen(at + length) + 1);
  OPI_ASSERT_OK_FATAL(reopen(&k, &json), &k.err);
  OPI_ASSERT_INT(n_trained(&k, name, &trained), all - 1);
  OPI_ASSERT(trained != 1);
  free(json.data);
  kit_close(&k);
}

static void test_names_that_are_not_there(void) {
  host_kit k;
  text json;
  char name[128];
  make(&k, &json);
  char *at = first_listed(&json, name);
  at[1] = '#';
  OPI_ASSERT_ERROR(reopen(&k, &json), OPIPE_E_INVALID, &k.err, "which is not a float initializer");
  free(json.data);
  kit_close(&k);
}

static void test_a_list_is_wanted(void) {
  host_kit k;
  text json;
  make(&k, &json);
  char *at = strstr(json.data, "\"trained\"");
  OPI_ASSERT_FATAL(at != NULL);
  at[1] = 'T';
  OPI_ASSERT_ERROR(reopen(&k, &json), OPIPE_E_INVALID, &k.err, "\"trained\"");
  free(json.data);
  kit_close(&k);
}

OPI_TEST_MAIN("what a plan trains", OPI_TEST(test_the_list_decides),
              OPI_TEST(test_names_that_are_not_there), OPI_TEST(test_a_list_is_wanted))
