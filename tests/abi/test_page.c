/* SPDX-License-Identifier: Apache-2.0 */
/* Pages through the host's table: what a host gives into one is taken as text, or refused. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/abi/host_kit.h"

#define CLUSTER                                                                \
  "{\"format\": \"onnx-pipe cluster 1\", \"devices\": [{\"kind\": \"x\", "     \
  "\"count\": 2, \"alignment\": 64}], \"links\": [{\"transport\": \"local\", " \
  "\"rule\": \"tag\", \"latency_ns\": 5}]}"

static opipe_order *make_order(host_kit *k) {
  opipe_order *order = NULL;
  const opipe_order_params params = {
      .struct_size = sizeof params, .schedule = "1f1b", .n_ranks = 2, .n_microbatches = 4};
  memset(k, 0, sizeof *k);
  k->err.struct_size = sizeof k->err;
  OPI_ASSERT_OK_FATAL(opipe_get_api(OPIPE_VIEW, &k->api, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->context_create(NULL, &k->context, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(k->api->order_make(k->context, &params, &order, &k->err), &k->err);
  return order;
}

static opipe_play_params on_cluster(void) {
  return (opipe_play_params){.struct_size = sizeof(opipe_play_params),
                             .cluster = CLUSTER,
                             .cluster_bytes = sizeof CLUSTER - 1};
}

static void test_what_a_host_gives_is_text(void) {
  static const char answer[] = "{\"planner\": \"</script><script>alert(1)\"}";
  host_kit k;
  opipe_order *order = make_order(&k);
  opipe_play_params params = on_cluster();
  opi_test_text page = {NULL, 0}, plain = {NULL, 0};
  params.title = "</script><b>\"&";
  params.answer = answer;
  params.answer_bytes = sizeof answer - 1;
  OPI_ASSERT_OK(
      k.api->order_play(order, NULL, &params, OPIPE_PLAY_HTML, opi_test_take, &page, &k.err),
      &k.err);
  OPI_ASSERT(strncmp(page.data, "<!doctype html>", 15) == 0);
  OPI_ASSERT(strstr(page.data, "\"title\": \"\\u003c/script>\\u003cb>\\\"&\"") != NULL);
  OPI_ASSERT(strstr(page.data, "\"planner\": \"\\u003c/script>\\u003cscript>alert(1)\"") != NULL);
  OPI_ASSERT(strstr(page.data, "<script>alert") == NULL);
  OPI_ASSERT_OK(
      k.api->order_simulate(order, NULL, OPIPE_FORMAT_HTML, opi_test_take, &plain, &k.err), &k.err);
  OPI_ASSERT(strstr(plain.data, "</html>") != NULL);
  free(page.data);
  free(plain.data);
  k.api->order_destroy(order);
  k.api->context_destroy(k.context);
}

static void test_what_is_no_json_is_refused(void) {
  static const char *const answers[] = {"", "{", "nothing", "{} {}"};
  host_kit k;
  opipe_order *order = make_order(&k);
  for (size_t i = 0; i < sizeof answers / sizeof answers[0]; ++i) {
    opipe_play_params params = on_cluster();
    opi_test_text page = {NULL, 0};
    params.answer = answers[i];
    params.answer_bytes = strlen(answers[i]);
    OPI_ASSERT_ERROR(
        k.api->order_play(order, NULL, &params, OPIPE_PLAY_HTML, opi_test_take, &page, &k.err),
        OPIPE_E_INVALID, &k.err, "the page's answer");
    OPI_ASSERT(page.data == NULL);
  }
  opipe_play_params params = on_cluster();
  opi_test_text page = {NULL, 0};
  params.cluster = NULL;
  params.cluster_bytes = 0;
  OPI_ASSERT_ERROR(
      k.api->order_play(order, NULL, &params, OPIPE_PLAY_HTML, opi_test_take, &page, &k.err),
      OPIPE_E_INVALID, &k.err, "there is no cluster");
  k.api->order_destroy(order);
  k.api->context_destroy(k.context);
}

OPI_TEST_MAIN("page", OPI_TEST(test_what_a_host_gives_is_text),
              OPI_TEST(test_what_is_no_json_is_refused))
