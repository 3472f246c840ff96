/* SPDX-License-Identifier: Apache-2.0 */
/* Foreign text: folders of ONNX Runtime GenAI and traces of requests. Files as its builder writes
 * them are read whole; everything else is refused with the member, or the line, and the value. */
#include <stdlib.h>

#include "runtime/generate/rules.h"
#include "tests/support/support.h"

typedef struct desk {
  opi_test_memory memory;
  opi_arena arena;
  opi_genai config;
  opipe_error err;
} desk;

static void set_up(desk *d) {
  memset(d, 0, sizeof *d);
  d->err = (opipe_error)OPIPE_ERROR_INIT;
  opi_test_memory_init(&d->memory);
  opi_arena_init(&d->arena, &d->memory.allocator, 0);
}

static void tear_down(desk *d) {
  opi_arena_release(&d->arena);
  OPI_ASSERT(opi_test_memory_end(&d->memory));
}

static opipe_status read(desk *d, const char *text) {
  return opi_genai_read(text, strlen(text), "genai_config.json", &d->arena, &d->config, &d->err);
}

/* ---- folders ---- */

static const char WHOLE[] =
    "{\"model\": {\"bos_token_id\": 1, \"context_length\": 512, \"decoder\": {"
    "\"session_options\": {\"provider_options\": []}, \"filename\": \"model.onnx\", "
    "\"head_size\": 16, \"hidden_size\": 64, \"inputs\": {\"input_ids\": \"input_ids\", "
    "\"past_key_names\": \"past_key_values.%d.key\"}, "
    "\"outputs\": {\"logits\": \"logits\"}, \"num_attention_heads\": 4, \"num_hidden_layers\": 12, "
    "\"num_key_value_heads\": 2}, \"eos_token_id\": [2, 7], \"pad_token_id\": 0, "
    "\"type\": \"llama\", \"vocab_size\": 320}, \"search\": {\"do_sample\": true, "
    "\"max_length\": 400, \"min_length\": 3, \"num_beams\": 1, \"temperature\": 0.6, "
    "\"top_k\": 50, \"top_p\": 0.9, \"repetition_penalty\": 1.1, \"num_return_sequences\": 2, "
    "\"past_present_share_buffer\": true, \"early_stopping\": true, \"length_penalty\": 1.0, "
    "\"diversity_penalty\": 0.0, \"no_repeat_ngram_size\": 0, \"random_seed\": 9}}";

static void test_a_folder_is_read_whole(void) {
  desk d;
  const opi_genai *c = &d.config;
  set_up(&d);
  OPI_ASSERT_OK_FATAL(read(&d, WHOLE), &d.err);
  OPI_ASSERT_STR(c->type, "llama");
  OPI_ASSERT(c->n_files == 1 && strcmp(c->files[0], "model.onnx") == 0);
  OPI_ASSERT(c->n_layers == 12 && c->n_heads == 4 && c->n_kv_heads == 2 && c->head_size == 16);
  OPI_ASSERT(c->context == 512 && c->n_vocab == 320 && c->window == 0);
  OPI_ASSERT(c->bos == 1 && c->pad == 0 && c->shares_buffer);
  OPI_ASSERT_STR(c->input_ids, "input_ids");
  OPI_ASSERT_STR(c->past[OPI_KEYS][11], "past_key_values.11.key");
  OPI_ASSERT_STR(c->past[OPI_VALUES][0], "past_key_values.0.value"); /* as if not said otherwise */
  OPI_ASSERT_STR(c->present[OPI_KEYS][3], "present.3.key");
  OPI_ASSERT_STR(c->present[OPI_VALUES][10], "present.10.value");
  OPI_ASSERT(c->min_length == 3 && c->max_length == 400);
  const opi_sampling *s = &c->sampling;
  OPI_ASSERT(s->temperature == 0.6 && s->top_k == 50 && s->top_p == 0.9 && s->seed == 9);
  OPI_ASSERT(s->repetition_penalty == 1.1 && s->n == 2 && s->n_stops == 2);
  OPI_ASSERT(s->stops[0].ids[0] == 2 && s->stops[1].ids[0] == 7 && s->stops[1].n == 1);
  tear_down(&d);
}

static void test_a_folder_may_say_little(void) {
  desk d;
  const opi_genai *c = &d.config;
  set_up(&d);
  OPI_ASSERT_OK_FATAL(read(&d,
                           "{\"model\": {\"type\": \"decoder-pipeline\", \"context_length\": 9, "
                           "\"eos_token_id\": null, \"decoder\": {\"num_hidden_layers\": 2, "
                           "\"inputs\": {\"past_names\": \"past_%d\"}, "
                           "\"outputs\": {\"present_names\": \"present_%d_out\"}, "
                           "\"sliding_window\": {\"window_size\": 4}, "
                           "\"pipeline\": [{\"a\": {\"filename\": \"parts/a.onnx\"}}, "
                           "{\"b\": {\"filename\": \"..b.onnx\"}}]}}, \"search\": {\"top_p\": 0.0, "
                           "\"random_seed\": -1, \"max_length\": 0}}"),
                      &d.err);
  OPI_ASSERT(c->n_files == 2 && strcmp(c->files[1], "..b.onnx") == 0);
  OPI_ASSERT_STR(c->past[OPI_KEYS][1], "past_1");
  OPI_ASSERT_STR(c->present[OPI_KEYS][1], "present_1_out");
  OPI_ASSERT(c->past[OPI_VALUES] == NULL && c->present[OPI_VALUES] == NULL);
  OPI_ASSERT(c->max_length == 9 && c->window == 4 && c->bos == UINT32_MAX && c->n_vocab == 0);
  OPI_ASSERT(c->sampling.temperature == 0 && c->sampling.top_p == 1 && c->sampling.n_stops == 0);
  OPI_ASSERT_OK(read(&d,
                     "{\"model\": {\"type\": \"qwen3\", \"context_length\": 9, \"decoder\": "
                     "{\"num_hidden_layers\": 1, \"filename\": \"m\"}}}"),
                &d.err);
  OPI_ASSERT(d.config.max_length == 9 && d.config.sampling.temperature == 0);
  tear_down(&d);
}

/* The folder of the bookshelf, as GenAI's builder wrote it. */
static void test_a_folder_of_the_builder(void) {
  const char *path = opi_test_shared("trials/shared_buffer_states/genai_config.json");
  size_t n_bytes = 0;
  desk d;
  if (path == NULL)
    return;
  char *text = opi_test_read_file(path, &n_bytes);
  OPI_ASSERT_FATAL(text != NULL);
  set_up(&d);
  OPI_ASSERT_OK(opi_genai_read(text, n_bytes, path, &d.arena, &d.config, &d.err), &d.err);
  OPI_ASSERT(d.config.n_layers == 4 && d.config.n_vocab == 320 && d.config.shares_buffer);
  free(text);
  tear_down(&d);
}

/* WHOLE with the first `from` replaced by `to`. */
static char *changed(const char *from, const char *to) {
  const char *at = strstr(WHOLE, from);
  const size_t room = sizeof WHOLE + strlen(to);
  char *text = malloc(room);
  OPI_ASSERT_FATAL(at != NULL && text != NULL);
  (void)snprintf(text, room, "%.*s%s%s", (int)(at - WHOLE), WHOLE, to, at + strlen(from));
  return text;
}

static void test_members_are_refused_by_name_and_value(void) {
  static const struct {
    const char *from, *to;
    opipe_status status;
    const char *part;
  } cases[] = {
      {"\"llama\"", "\"martian\"", OPIPE_E_UNSUPPORTED,
       "\"model.type\" is 'martian', known are chatglm, decoder,"},
      {"\"llama\"", "\"whisper\"", OPIPE_E_UNSUPPORTED, "'whisper' are not generated with: it has"},
      {"\"llama\"", "\"lfm2\"", OPIPE_E_UNSUPPORTED, "recurrent state"},
      {"\"llama\"", "7", OPIPE_E_INVALID, "\"model.type\" must be a string"},
      {"\"type\": \"llama\", ", "", OPIPE_E_INVALID, "\"model.type\" is missing"},
      {"\"num_hidden_layers\": 12, ", "", OPIPE_E_INVALID,
       "\"model.decoder.num_hidden_layers\" is missing"},
      {"\"num_hidden_layers\": 12", "\"num_hidden_layers\": 0", OPIPE_E_INVALID,
       "\"model.decoder.num_hidden_layers\" is 0, it must be an integer from 1 to 4096"},
      {"\"num_hidden_layers\": 12", "\"num_hidden_layers\": 1e3", OPIPE_E_INVALID, "is 1000.0"},
      {"\"num_hidden_layers\": 12", "\"num_hidden_layers\": \"12\"", OPIPE_E_INVALID,
       "is \"12\", it"},
      {"past_key_values.%d.key", "past_key_values.key", OPIPE_E_INVALID,
       "\"model.decoder.inputs.past_key_names\" is 'past_key_values.key', it must have %d once"},
      {"past_key_values.%d.key", "past.%d.%d", OPIPE_E_INVALID, "must have %d once"},
      {"past_key_values.%d.key", "past.%s.%d", OPIPE_E_INVALID, "must have %d once"},
      {"past_key_values.%d.key", "past.%d%n", OPIPE_E_INVALID, "must have %d once"},
      {"\"past_key_names\"", "\"past_names\"", OPIPE_E_INVALID,
       "\"past_names\" without \"present_names\""},
      {"\"past_key_names\"", "\"cross_past_key_names\"", OPIPE_E_UNSUPPORTED, "cross-attention"},
      {"\"model.onnx\"", "\"/etc/model.onnx\"", OPIPE_E_INVALID,
       "\"model.decoder.filename\" is '/etc/model.onnx', which is absolute"},
      {"\"model.onnx\"", "\"../model.onnx\"", OPIPE_E_INVALID, "leaves the folder by '..'"},
      {"\"model.onnx\"", "\"a/../../m\"", OPIPE_E_INVALID, "leaves the folder by '..'"},
      {"\"model.onnx\"", "\"a/..\"", OPIPE_E_INVALID, "leaves the folder by '..'"},
      {"\"model.onnx\"", "\"..\\\\model.onnx\"", OPIPE_E_INVALID, "holds a backslash"},
      {"\"model.onnx\"", "\"\"", OPIPE_E_INVALID, "string of 1 to 512 characters"},
      {"\"filename\": \"model.onnx\", ", "", OPIPE_E_INVALID,
       "\"model.decoder.filename\" is missing"},
      {"\"filename\"", "\"pipeline\"", OPIPE_E_INVALID, "a list of 1 to 64 parts, it has 0"},
      {"\"filename\": \"model.onnx\"", "\"pipeline\": [{\"a\": {\"filename\": \"../m\"}}]",
       OPIPE_E_INVALID, "\"model.decoder.pipeline.a.filename\" is '../m'"},
      {"\"filename\": \"model.onnx\"", "\"pipeline\": [7]", OPIPE_E_INVALID,
       "\"model.decoder.pipeline\"[0] must be an object with one member"},
      {"[2, 7]", "[2, 320]", OPIPE_E_INVALID, "stop has id 320, the vocabulary has 320"},
      {"[2, 7]", "\"</s>\"", OPIPE_E_INVALID, "\"model.eos_token_id\": stop is \"</s>\""},
      {"\"context_length\": 512, ", "", OPIPE_E_INVALID, "\"model.context_length\" is missing"},
      {"\"decoder\": {", "\"decoder\": 7, \"other\": {", OPIPE_E_INVALID,
       "\"model.decoder\" must be an object"},
      {"\"inputs\": {", "\"inputs\": 7, \"other\": {", OPIPE_E_INVALID,
       "\"model.decoder.inputs\" must be an object"},
      {"\"model\"", "\"models\"", OPIPE_E_INVALID, "\"model\" must be an object"},
      {"\"num_beams\": 1", "\"num_beams\": 4", OPIPE_E_UNSUPPORTED,
       "\"search.num_beams\" is 4, only 1 is done here"},
      {"\"no_repeat_ngram_size\": 0", "\"no_repeat_ngram_size\": 3", OPIPE_E_UNSUPPORTED,
       "\"search.no_repeat_ngram_size\" is 3, only 0"},
      {"\"top_k\": 50", "\"top_kk\": 50", OPIPE_E_UNSUPPORTED, "\"search.top_kk\" is not known"},
      {"\"top_k\": 50", "\"top_k\": -3", OPIPE_E_INVALID, "\"search.top_k\": top_k is -3"},
      {"\"top_p\": 0.9", "\"top_p\": 1.5", OPIPE_E_INVALID, "top_p is 1.5"},
      {"\"do_sample\": true", "\"do_sample\": 1", OPIPE_E_INVALID,
       "\"search.do_sample\" must be true or false"},
      {"\"min_length\": 3", "\"min_length\": 401", OPIPE_E_INVALID,
       "\"search.min_length\" is 401, above max_length, which is 400"},
      {"\"search\": {", "\"search\": 7, \"other\": {", OPIPE_E_INVALID,
       "\"search\" must be an object"},
      {"\"pad_token_id\": 0", "\"pad_token_id\": 0, \"pad_token_id\": 0", OPIPE_E_INVALID,
       "duplicate"},
      {"{\"model\"", "[{\"model\"", OPIPE_E_INVALID, "not valid JSON"},
      {"\"provider_options\": []",
       "\"a\": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]", OPIPE_E_LIMIT,
       "nests deeper than 32"},
  };
  for (uint32_t i = 0; i < OPI_COUNT(cases); ++i) {
    desk d;
    char *text = changed(cases[i].from, cases[i].to);
    set_up(&d);
    OPI_ASSERT_ERROR(read(&d, text), cases[i].status, &d.err, cases[i].part);
    OPI_ASSERT(strncmp(d.err.message, "genai_config.json", 17) == 0);
    OPI_ASSERT(d.config.type == NULL);
    free(text);
    tear_down(&d);
  }
}

static void test_a_large_file_is_refused(void) {
  desk d;
  char *text = calloc(1, (16 << 20) + 1);
  set_up(&d);
  OPI_ASSERT_FATAL(text != NULL);
  OPI_ASSERT_ERROR(
      opi_genai_read(text, (16 << 20) + 1, "genai_config.json", &d.arena, &d.config, &d.err),
      OPIPE_E_LIMIT, &d.err, "has 16777217 bytes, at most 16777216 are read");
  free(text);
  tear_down(&d);
}

static opipe_status read_once(opi_test_memory *memory, void *arg) {
  opi_genai config;
  opi_arena arena;
  opipe_error err = OPIPE_ERROR_INIT;
  (void)arg;
  opi_arena_init(&arena, &memory->allocator, 0);
  const opipe_status status =
      opi_genai_read(WHOLE, sizeof WHOLE - 1, "config", &arena, &config, &err);
  opi_arena_release(&arena);
  return status;
}

static void test_every_allocation_may_fail(void) {
  OPI_ASSERT(opi_test_every_allocation(read_once, NULL, 100) > 1);
}

OPI_TEST_MAIN("generate/readers", OPI_TEST(test_a_folder_is_read_whole),
              OPI_TEST(test_a_folder_may_say_little), OPI_TEST(test_a_folder_of_the_builder),
              OPI_TEST(test_members_are_refused_by_name_and_value),
              OPI_TEST(test_a_large_file_is_refused), OPI_TEST(test_every_allocation_may_fail))
