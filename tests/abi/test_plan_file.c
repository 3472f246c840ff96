/* SPDX-License-Identifier: Apache-2.0 */
/* The file of a plan, played without its model: the same bytes as the plan's own play, in every
 * form and under every kind of schedule; files of before, of other decisions, and what of them does
 * not hold, are refused by name.
 */
#include <stdio.h>
#include <stdlib.h>

#include "loader/base/base.h"
#include "tests/abi/host_kit.h"

static const char *const LLAMA = "tests/data/llama_8block/model.onnx";
static const char *const TIED = "tests/data/gpt_8block/model.onnx"; /* its embedding is its head */
enum { ROWS = 8, TOKENS = 8 };

typedef struct plan_case {
  const char *schedule;
  uint32_t n_ranks, n_stages, n_microbatches, replicas;
  uint32_t stage_replicas[2]; /* 0: none */
  const char *transport;
  bool tied;
  double clip_norm; /* 0: none */
} plan_case;

static opipe_status make_plan(host_kit *k, const plan_case *c, bool trains) {
  const opipe_train_options train = {.struct_size = sizeof train,
                                     .loss = OPIPE_LOSS_CROSS_ENTROPY,
                                     .output = "logits",
                                     .labels = "labels",
                                     .ignore = -100,
                                     .lr = 0.1,
                                     .clip_norm = c->clip_norm};
  const char *model = c->tied ? TIED : LLAMA;
  const opipe_plan_params params = {.struct_size = sizeof params,
                                    .n_ranks = c->n_ranks,
                                    .n_stages = c->n_stages,
                                    .n_microbatches = c->n_microbatches,
                                    .replicas = c->replicas,
                                    .stage_replicas = c->stage_replicas,
                                    .n_stage_replicas = c->stage_replicas[0] == 0 ? 0 : 2,
                                    .schedule = c->schedule,
                                    .transport = c->transport,
                                    .train = trains ? &train : NULL};
  return trains ? kit_plan_training(k, model, ROWS, TOKENS, &params)
                : kit_plan(k, NULL, model, ROWS, TOKENS, &params);
}

static opi_test_text write_plan(host_kit *k, opipe_plan *plan) {
  opi_test_text text = {.data = NULL};
  OPI_ASSERT_OK_FATAL(k->api->plan_write(plan, opi_test_take, &text, &k->err), &k->err);
  return text;
}

/* ---- the same ---- */

static const char wide[] =
    "{\"format\": \"onnx-pipe cluster 1\", \"nodes\": 4, \"devices\": [{\"kind\": \"x\", "
    "\"count\": 2, \"alignment\": 64, \"flops\": 1e12}], \"tiers\": [{\"name\": \"in\", "
    "\"latency_ns\": 700, \"bandwidth\": 2e9, \"devices\": 2}, {\"name\": \"wire\", "
    "\"latency_ns\": 5000, \"bandwidth\": 3e8}]}";

static void compare(host_kit *k, const char *name, opipe_plan *plan, const opi_test_text *file,
                    const opipe_play_params *params) {
  for (uint32_t format = OPIPE_PLAY_TEXT; format <= OPIPE_PLAY_HTML; ++format) {
    opi_test_text own = {.data = NULL}, alone = own;
    OPI_ASSERT_OK_FATAL(k->api->plan_play(plan, params, format, opi_test_take, &own, &k->err),
                        &k->err);
    OPI_ASSERT_OK(k->api->plan_file_play(k->context, file->data, file->n, params, format,
                                         opi_test_take, &alone, &k->err),
                  &k->err);
    if (own.n != alone.n || memcmp(own.data, alone.data, own.n) != 0) {
      OPI_FAIL("%s: form %u of the file alone differs: %zu bytes, and %zu", name, format, alone.n,
               own.n);
    }
    free(own.data);
    free(alone.data);
  }
}

/* plan: as it was made, and as its file was read again. */
static void check_case(const plan_case *c, bool trains) {
  const opipe_play_params here = {.struct_size = sizeof here};
  const opipe_play_params there = {.struct_size = sizeof there,
                                   .cluster = wide,
                                   .cluster_bytes = sizeof wide - 1,
                                   .collective = OPIPE_COLLECTIVE_RING};
  opipe_plan *again = NULL;
  host_kit k;
  const opipe_status made = make_plan(&k, c, trains);
  if (made < 0)
    OPI_FAIL("%s: %s", c->schedule, k.err.message);
  if (made == OPIPE_OK) {
    opi_test_text file = write_plan(&k, k.plan);
    OPI_ASSERT_OK_FATAL(k.api->plan_read(k.model, file.data, file.n, &again, &k.err), &k.err);
    opi_test_text twice = write_plan(&k, again);
    if (file.n != twice.n || memcmp(file.data, twice.data, file.n) != 0)
      OPI_FAIL("%s: written otherwise once it was read", c->schedule);
    compare(&k, c->schedule, again, &file, &here);
    compare(&k, c->schedule, again, &file, &there);
    compare(&k, c->schedule, k.plan, &file, &there);
    k.api->plan_destroy(again);
    free(file.data);
    free(twice.data);
  }
  kit_close(&k);
}

static void test_files_alone_play_as_their_plans(void) {
  static const plan_case requests[] = {
      {"gpipe", .n_stages = 2, .n_microbatches = 4},
      {"1f1b", .n_stages = 4, .n_microbatches = 2},
      {"interleaved:chunks=2", .n_ranks = 2, .n_microbatches = 2},
      {"terapipe:lengths=3+5", .n_stages = 2, .n_microbatches = 2},
      {"gpipe", .n_stages = 2, .n_microbatches = 4, .replicas = 2},
      {"gpipe", .n_stages = 2, .n_microbatches = 1, .replicas = 2},
      {"gpipe", .n_stages = 3, .n_microbatches = 4, .transport = "emulated:rule=blocking"},
      {"1f1b", .n_stages = 1, .n_microbatches = 2}};
  for (size_t i = 0; i < OPI_COUNT(requests); ++i)
    check_case(&requests[i], false);
}

static void test_files_of_training_alone_play_as_their_plans(void) {
  static const plan_case steps[] = {
      {"gpipe", .n_ranks = 2, .n_microbatches = 4},
      {"1f1b", .n_ranks = 4, .n_microbatches = 8, .transport = "emulated:rule=grouped"},
      {"interleaved:chunks=2", .n_ranks = 2, .n_microbatches = 4},
      {"chimera:concat=halving", .n_ranks = 2, .n_microbatches = 4},
      {"chimera:sync=eager", .n_ranks = 4, .n_microbatches = 4},
      {"2bw", .n_ranks = 2, .n_microbatches = 4},
      {"2bw", .n_ranks = 2, .n_microbatches = 4, .transport = "emulated:rule=edge"},
      {"2bw", .n_ranks = 4, .n_microbatches = 4, .transport = "emulated:rule=grouped"},
      {"2bw", .n_ranks = 2, .n_microbatches = 4, .clip_norm = 1},
      {"2bw", .n_ranks = 2, .n_microbatches = 4, .tied = true},
      {"1f1b", .n_ranks = 4, .n_microbatches = 4, .tied = true, .clip_norm = 1},
      {"chimera", .n_ranks = 2, .n_microbatches = 4, .tied = true},
      {"zb-h1", .n_ranks = 2, .n_microbatches = 4},
      {"zbv", .n_ranks = 2, .n_microbatches = 4},
      {"dualpipev", .n_ranks = 2, .n_microbatches = 4},
      {"terapipe:slices=2", .n_ranks = 2, .n_microbatches = 2},
      {"1f1b", .n_ranks = 4, .n_microbatches = 8, .replicas = 2},
      {"1f1b", .n_stages = 2, .n_microbatches = 2, .stage_replicas = {2, 1}},
      {"zb-h1", .n_stages = 2, .n_microbatches = 2, .stage_replicas = {1, 2}}};
  for (size_t i = 0; i < OPI_COUNT(steps); ++i)
    check_case(&steps[i], true);
}

/* The bytes kept over time are those that zero-bubble orders keep: inputs' gradients end some of
 * them. */
static void test_a_split_backward_keeps_what_its_programs_keep(void) {
  const plan_case c = {"zb-h1", .n_ranks = 2, .n_microbatches = 8};
  const opipe_play_params params = {.struct_size = sizeof params};
  opi_test_text played = {.data = NULL};
  host_kit k;
  OPI_ASSERT_OK_FATAL(make_plan(&k, &c, true), &k.err);
  OPI_ASSERT_OK_FATAL(
      k.api->plan_play(k.plan, &params, OPIPE_PLAY_JSON, opi_test_take, &played, &k.err), &k.err);
  const char *at = played.data;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    opipe_memory_info m = {.struct_size = sizeof m};
    OPI_ASSERT_OK_FATAL(k.api->plan_memory(k.plan, rank, &m, &k.err), &k.err);
    at = strstr(at + 1, "\"total_bytes\": ");
    OPI_ASSERT_FATAL(at != NULL);
    const double most = strtod(at + strlen("\"total_bytes\": "), NULL),
                 exact = (double)m.total_bytes;
    if (most > exact || most < 0.97 * exact)
      OPI_FAIL("rank %u: %.0f bytes at most, its plan has %.0f", rank, most, exact);
  }
  free(played.data);
  kit_close(&k);
}

/* ---- files that do not hold ---- */

/* The first `from` behind `behind` becomes `to`. */
typedef struct edit {
  const char *behind, *from, *to, *says;
} edit;

/* To be freed; NULL: there is no such place. */
static char *edited(const opi_test_text *file, const edit *e, size_t *out_n) {
  const char *section = strstr(file->data, e->behind);
  const char *at = section == NULL ? NULL : strstr(section, e->from);
  if (at == NULL) {
    OPI_FAIL("the plan has no '%s' behind '%s'", e->from, e->behind);
    return NULL;
  }
  const size_t before = (size_t)(at - file->data), from = strlen(e->from), to = strlen(e->to);
  char *copy = malloc(file->n + to + 1);
  OPI_ASSERT_FATAL(copy != NULL);
  memcpy(copy, file->data, before);
  memcpy(copy + before, e->to, to);
  memcpy(copy + before + to, at + from, file->n - before - from + 1);
  *out_n = file->n - from + to;
  return copy;
}

static void check_refusal(const host_kit *k, const edit *e, opipe_status status) {
  if (status >= 0 || status == OPIPE_E_INTERNAL || strstr(k->err.message, e->says) == NULL)
    OPI_FAIL("'%s' in place of '%s': status %d, '%s'", e->to, e->from, (int)status, k->err.message);
}

static void play_edited(host_kit *k, const opi_test_text *file, const edit *e) {
  const opipe_play_params params = {.struct_size = sizeof params};
  opi_test_text played = {.data = NULL};
  size_t n = 0;
  char *copy = edited(file, e, &n);
  k->err.message[0] = '\0';
  if (copy != NULL) {
    check_refusal(k, e,
                  k->api->plan_file_play(k->context, copy, n, &params, OPIPE_PLAY_JSON,
                                         opi_test_take, &played, &k->err));
  }
  free(played.data);
  free(copy);
}

static void play_all(host_kit *k, const edit *edits, size_t n) {
  opi_test_text file = write_plan(k, k->plan);
  for (size_t i = 0; i < n; ++i)
    play_edited(k, &file, &edits[i]);
  free(file.data);
}

static const char PLAY[] = "\"play\": {";

static void test_edited_files_are_refused_by_name(void) {
  static const edit edits[] = {
      {"{", "\"play\": {", "\"was\": {", "was written without \"play\""},
      {"{", "\"hash\": \"", "\"was\": \"", "the plan has no \"hash\""},
      {"{", "\"depth\": 2", "\"depth\": 3", "it was changed"},
      {"{", "onnx-pipe plan 3", "onnx-pipe plan 2", "format is 'onnx-pipe plan 2'"},
      {"{", "onnx-pipe plan 3", "onnx-pipe strategy 1", "a planner's answer"},
      {"{", "\"fingerprint\": \"", "\"fingerprint\": \"x", "32 hexadecimal digits"},
      {"{", "\"crossings\": [", "\"was\": [", "\"crossings\" must be an array"},
      {"\"crossings\"", "\"from\": 0", "\"from\": 2", "\"from\" must be an integer from 0 to 1"},
      {"{", "\"flops\": ", "\"flops\": -", "\"flops\" is -"},
      {"{", "\"request_ns\": ", "\"request_ns\": -", "\"request_ns\" must be a number"},
      {PLAY, "\"pieces\": 1", "\"pieces\": 0", "2 stages of 0 pieces"},
      {PLAY, "\"pieces\": 1", "\"pieces\": 1048576", "2 stages of 1048576 pieces"},
      {PLAY, "\"from\": [0", "\"from\": [2", "\"from\": number 0 must be from 0 to 1"},
      {PLAY, "\"from\": [0", "\"from\": [1", "a stream from rank 1 to rank 1"},
      {PLAY, "\"from\": [0, 0", "\"from\": [0", "\"from\" has 3 numbers; it must have 4"},
      {PLAY, "\"pass\": \"F\"", "\"pass\": \"W\"", "of pass 'W'"},
      {PLAY, "\"bytes\": ", "\"bytes\": -", "\"bytes\" must be an integer"},
      {PLAY, "\"piece\": 0, \"pass\": \"F\"", "\"piece\": 2, \"pass\": \"F\"", "\"piece\" must be"},
      {PLAY, "\"piece\": 0, \"pass\": \"F\"", "\"piece\": 0, \"pass\": \"FB\"",
       "pass 'FB' of piece 0"},
      {PLAY, "\"piece\": 0, \"pass\": \"F\"", "\"piece\": 1, \"pass\": \"F\"", "in this order"},
      {PLAY, "\"piece\": 1, \"pass\": \"F\"", "\"piece\": 0, \"pass\": \"F\"", "in this order"},
      {PLAY, "\"piece\": 1, \"pass\": \"B\"", "\"piece\": 1, \"pass\": \"W\"", "has no time"},
      {PLAY, "\"take_bytes\": ", "\"take_bytes\": -1, \"was\": ", "\"take_bytes\" is -1"},
      {PLAY, "F0:0", "F2:0", "rank 0: 'F2:0' is not an operation"},
      {PLAY, "F0:0", "F0:2", "rank 0: 'F0:2' is not an operation"},
      {PLAY, "F0:0", "F0", "rank 0: 'F0' is not an operation"},
      {PLAY, "F0:0", "F0:0n", "rank 0: 'F0:0n' is not an operation"},
      {PLAY, "F0:0", "F0.1:0", "rank 0: 'F0.1:0' is not an operation"},
      {PLAY, "F0:0", "F99999999999999999999:0", "is not an operation"},
      {PLAY, "F0:0", "x0:0", "rank 0: 'x0:0' is not an operation"},
      {PLAY, "s0:0", "s0:1", "micro-batch 1 is sent twice"},
      {PLAY, "s0:0", "p0:0", "which nobody sends"},
      {PLAY, "s0:0", "s0:0 w0:1", "which is not its own"},
      {PLAY, "w0:0", "w0:0 d0:0", "which is not its own"},
      {PLAY, "p0:0", "", "is stuck"},
      {PLAY, "\"lists\": [", "\"lists\": [\"\", ", "lists for 3 ranks"},
      {PLAY, "\"lists\": [", "\"lists\": 7, \"was\": [", "\"lists\" must be an array"},
      {PLAY, "\"groups\": [", "\"was\": [", "\"groups\" must be an array"},
      {PLAY, "\"ranks\": [0, 1]", "\"ranks\": []", "group 0 has 0 ranks"},
      {PLAY, "\"ranks\": [0, 1]", "\"ranks\": [0, 2]", "rank 2 is not one of 2"},
      {PLAY, "\"ranks\": [0, 1]", "\"ranks\": [0, 0]", "rank 0 is not one of 2"},
      {PLAY, "\"ranks\": [0, 1]", "\"ranks\": [1]",
       "rank 0 comes to group 0, in which it has no part"},
      {PLAY, "\"ranks\": [0, 1]", "\"stage\": 1, \"ranks\": [0, 1]", "has no replica of the stage"},
      {PLAY, "\"ranks\": [0, 1]", "\"bytes\": -1, \"ranks\": [0, 1]",
       "\"bytes\" must be an integer"},
      {PLAY, "c0 ", "c0 c0 ", "to which it has come already"},
      {PLAY, "c0 ", "", "to which it has not come"},
      {PLAY, "c0 ", "c1 ", "rank 0 waits for group 0, to which it has not come"},
      {PLAY, "c0 ", "c2 ", "rank 0: 'c2' is not an operation"},
      {PLAY, "c0 ", "c0:1 ", "rank 0: 'c0:1' is not an operation"},
      {PLAY, "c0 j0", "", "is stuck"},
      {PLAY, "F0:0 ", "b0 F0:0 ", "rank 0: 'b0' is not an operation"},
      {PLAY, "F0:0 ", "b257 F0:0 ", "rank 0: 'b257' is not an operation"},
      {PLAY, "F0:0 ", "b1:0 F0:0 ", "rank 0: 'b1:0' is not an operation"},
      {PLAY, "F0:0 ", "b1 F0:0 ", "rank 0 has a batch of 1 sends and posts, of which 0 follow"},
      {PLAY, "c1 j1", "c1 j1 b1", "rank 0 has a batch of 1 sends and posts, of which 0 follow"},
  };
  const plan_case c = {"1f1b", .n_ranks = 2, .n_microbatches = 2};
  host_kit k;
  OPI_ASSERT_OK_FATAL(make_plan(&k, &c, true), &k.err);
  play_all(&k, edits, OPI_COUNT(edits));
  kit_close(&k);
}

static void test_edited_files_of_other_kinds_are_refused_by_name(void) {
  static const edit requests[] = {
      {PLAY, "F0:0", "B0:0", "'B0:0' is not an operation"},
      {PLAY, "F0:0", "c0", "'c0' is not an operation"},
      {PLAY, "\"pieces\": 2", "\"pieces\": 3", "the layout has 2 pieces a stage"},
      {PLAY, "[0, 0, 0, 0]", "[0, 0, 0, 2]", "number 3 must be from 0 to 1"}};
  static const edit copies[] = {
      {PLAY, "\"ranks\": [0, 2]", "\"ranks\": [0, 1]", "rank 1 is not one of 4, has no replica"},
      {PLAY, " c0", " c0 c0", "rank 0 comes to group 0, to which it has come already"}};
  const plan_case sliced = {"terapipe:slices=2", .n_stages = 2, .n_microbatches = 2};
  const plan_case doubled = {"1f1b", .n_ranks = 4, .n_microbatches = 4, .replicas = 2};
  host_kit k;
  OPI_ASSERT_OK_FATAL(make_plan(&k, &sliced, false), &k.err);
  play_all(&k, requests, OPI_COUNT(requests));
  kit_close(&k);
  OPI_ASSERT_OK_FATAL(make_plan(&k, &doubled, true), &k.err);
  play_all(&k, copies, OPI_COUNT(copies));
  kit_close(&k);
}

/* With its model: what sums move is the file's, which must be about these sums. */
static void test_edited_sums_are_refused_with_the_model(void) {
  static const edit edits[] = {
      {PLAY, "\"pieces\": 1", "\"pieces\": 0", "2 stages of 0 pieces"},
      {PLAY, "\"ranks\": [0, 2]}", "\"ranks\": [0, 2]}, {\"ranks\": [0]}",
       "has 5 groups, its actions make 4"},
      {PLAY, "\"ranks\": [0, 2]", "\"ranks\": [2, 0]",
       "group 0 is a sum of stage 0, of ranks 2 0, its actions make a sum of stage 0, of ranks 0 "
       "2"},
      {PLAY, "\"ranks\": [0, 2]", "\"ranks\": [0]", "group 0 is a sum of stage 0, of ranks 0,"},
      {PLAY, "\"stage\": 1, ", "",
       "group 1 is a sum of ranks 1 3, its actions make a sum of stage"},
      {PLAY, "\"ranks\": [0, 1, 2, 3]", "\"bytes\": 8, \"ranks\": [0, 1, 2, 3]",
       "group 2 is a sum of ranks 0 1 2 3, its actions make a barrier of ranks 0 1 2 3"}};
  const plan_case c = {"1f1b", .n_ranks = 4, .n_microbatches = 4, .replicas = 2};
  host_kit k;
  OPI_ASSERT_OK_FATAL(make_plan(&k, &c, true), &k.err);
  opi_test_text file = write_plan(&k, k.plan);
  for (size_t i = 0; i < OPI_COUNT(edits); ++i) {
    opipe_plan *again = NULL;
    size_t n = 0;
    char *copy = edited(&file, &edits[i], &n);
    k.err.message[0] = '\0';
    if (copy != NULL)
      check_refusal(&k, &edits[i], k.api->plan_read(k.model, copy, n, &again, &k.err));
    k.api->plan_destroy(again);
    free(copy);
  }
  free(file.data);
  kit_close(&k);
}

static void check_made_anew(host_kit *k, const opi_test_text *file, const edit *e) {
  opipe_plan *again = NULL;
  size_t n = 0;
  char *copy = edited(file, e, &n);
  OPI_ASSERT_FATAL(copy != NULL);
  OPI_ASSERT_OK_FATAL(k->api->plan_read(k->model, copy, n, &again, &k->err), &k->err);
  opi_test_text text = write_plan(k, again);
  OPI_ASSERT(strstr(text.data, "\"ranks\": [0, 2]") != NULL);
  free(text.data);
  k->api->plan_destroy(again);
  free(copy);
}

/* Files of before have none; those of decisions that were changed are of others. */
static void test_sums_that_are_none_or_others_are_made_anew(void) {
  static const edit none = {"{", "\"play\": {", "\"was\": {", ""};
  static const edit changed = {"{", "\"hash\": \"", "\"was\": \"", ""};
  static const edit other = {PLAY, "\"ranks\": [0, 2]", "\"ranks\": [0, 1]", ""};
  const plan_case c = {"1f1b", .n_ranks = 4, .n_microbatches = 4, .replicas = 2};
  host_kit k;
  OPI_ASSERT_OK_FATAL(make_plan(&k, &c, true), &k.err);
  opi_test_text file = write_plan(&k, k.plan), wrong = {.data = NULL};
  wrong.data = edited(&file, &other, &wrong.n);
  OPI_ASSERT_FATAL(wrong.data != NULL);
  check_made_anew(&k, &file, &none);
  check_made_anew(&k, &wrong, &changed);
  free(wrong.data);
  free(file.data);
  kit_close(&k);
}

static void test_calls_that_do_not_fit(void) {
  const opipe_play_params params = {.struct_size = sizeof params};
  opipe_play_params wrong = params;
  opi_test_text text = {.data = NULL};
  host_kit k;
  OPI_ASSERT_OK_FATAL(kit_plan(&k, NULL, LLAMA, ROWS, TOKENS, NULL), &k.err);
  opi_test_text file = write_plan(&k, k.plan);
  const opipe_api *api = k.api;
#define REFUSED(says, json, n, how, format)                                               \
  OPI_ASSERT_ERROR(                                                                       \
      api->plan_file_play(k.context, json, n, how, format, opi_test_take, &text, &k.err), \
      OPIPE_E_INVALID, &k.err, says)
  REFUSED("json is NULL", NULL, 0, &params, OPIPE_PLAY_TEXT);
  REFUSED("params is NULL", file.data, file.n, NULL, OPIPE_PLAY_TEXT);
  REFUSED("format", file.data, file.n, &params, OPIPE_PLAY_HTML + 1);
  REFUSED("not valid JSON", file.data, file.n / 2, &params, OPIPE_PLAY_TEXT);
  wrong.copies = 2;
  REFUSED("copies 2", file.data, file.n, &wrong, OPIPE_PLAY_TEXT);
  wrong = params;
  wrong.flags = OPIPE_PLAY_SHARDED;
  REFUSED("sharded steps", file.data, file.n, &wrong, OPIPE_PLAY_TEXT);
#undef REFUSED
  OPI_ASSERT(text.n == 0);
  free(file.data);
  kit_close(&k);
}

OPI_TEST_MAIN("plan file", OPI_TEST(test_files_alone_play_as_their_plans),
              OPI_TEST(test_files_of_training_alone_play_as_their_plans),
              OPI_TEST(test_a_split_backward_keeps_what_its_programs_keep),
              OPI_TEST(test_edited_files_are_refused_by_name),
              OPI_TEST(test_edited_files_of_other_kinds_are_refused_by_name),
              OPI_TEST(test_edited_sums_are_refused_with_the_model),
              OPI_TEST(test_sums_that_are_none_or_others_are_made_anew),
              OPI_TEST(test_calls_that_do_not_fit))
