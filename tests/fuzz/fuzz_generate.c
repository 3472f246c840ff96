/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the readers of generation: genai_config.json, sampling as text and as JSON. Text is
 * refused with a reason, or what it says keeps to its bounds, and a token can be sampled by it from
 * any row of logits that are numbers. The first byte chooses the reader.
 */
#include <math.h>

#include "runtime/generate/sample.h"
#include "tests/fuzz/must.h"

enum { CONFIG, SAMPLING, READERS, VOCAB = 64 };

static void told(opipe_status status, const opipe_error *err) {
  must(status >= 0 || err->message[0] != '\0', "a status without a message");
  must(status != OPIPE_E_INTERNAL, err->message);
}

static void sample(const opi_sampling *how) {
  static const double rows[3][4] = {{0, 1, 2, 3}, {-1.7e308, 1.7e308, 0, -0.0}, {5, 5, 5, 5}};
  const uint32_t ids[8] = {0, 1, 1, 2, 3, 63, 64, 4000000000u};
  opi_sampler *sampler = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  must(opi_sampling_check(how, VOCAB, &err) == OPIPE_OK, err.message);
  must(opi_sampler_create(opi_allocator_system(), VOCAB, &sampler, &err) == OPIPE_OK, err.message);
  for (uint32_t r = 0; r < 3; ++r) {
    double values[VOCAB], sum = 0;
    const double *weights = NULL;
    opi_sampled sampled;
    uint32_t n_stop = 0;
    for (uint32_t i = 0; i < VOCAB; ++i)
      values[i] = rows[r][i % 4];
    const opi_logits row = {.values = values,
                            .dtype = OPIPE_DOUBLE,
                            .branch = r,
                            .ids = ids,
                            .n_ids = 8,
                            .n_prompt = 8 - r};
    const opipe_status status = opi_sample(sampler, how, &row, &sampled, &err);
    told(status, &err);
    if (status < 0)
      continue; /* every id is a stop, and none may be yet */
    must(sampled.id < VOCAB, "an id outside the vocabulary");
    must(opi_sample_weights(sampler, how, &row, &weights, &sum, &err) == OPIPE_OK, err.message);
    must(isfinite(sum) && sum >= 1 && weights[sampled.id] > 0, "a draw without weight");
    must(opi_turn_held(how, ids, 8, 8 - r) <= r, "ids of the prompt are held");
    must(opi_turn_end(how, ids, 8, 8 - r, 9, &n_stop) <= OPI_TURN_CONTEXT && n_stop <= r,
         "a stop in the prompt");
  }
  opi_sampler_free(sampler);
}

static void use_config(const opi_genai *c) {
  must(c->type != NULL && c->n_files > 0 && c->n_layers > 0 && c->context > 0, "an empty folder");
  for (uint32_t i = 0; i < c->n_files; ++i) {
    must(c->files[i][0] != '\0' && c->files[i][0] != '/', "a path that leaves the folder");
    must(strncmp(c->files[i], "../", 3) != 0 && strstr(c->files[i], "/../") == NULL,
         "a path that leaves the folder");
  }
  for (uint32_t kind = 0; kind < OPI_STORED; ++kind) {
    must((c->past[kind] == NULL) == (c->present[kind] == NULL), "half a pair");
    for (uint32_t i = 0; c->past[kind] != NULL && i < c->n_layers; ++i)
      must(c->past[kind][i] != NULL && c->present[kind][i] != NULL, "a layer without a name");
  }
  must(c->past[OPI_KEYS] != NULL && c->max_length <= c->context && c->min_length <= c->max_length,
       "lengths");
  if (c->n_vocab != 0 && c->n_vocab <= VOCAB)
    sample(&c->sampling);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  opi_sampling how = opi_sampling_default;
  opi_genai config;
  opi_arena arena;
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_status status = OPIPE_OK;
  if (size == 0)
    return 0;
  const char *text = (const char *)data + 1;
  opi_arena_init(&arena, opi_allocator_system(), 0);
  if (data[0] % READERS == CONFIG) {
    status = opi_genai_read(text, size - 1, "config", &arena, &config, &err);
    if (status == OPIPE_OK)
      use_config(&config);
  } else {
    status = opi_sampling_read(text, size - 1, VOCAB, &arena, &how, &err);
    if (status == OPIPE_OK)
      sample(&how);
  }
  told(status, &err);
  opi_arena_release(&arena);
  return 0;
}
