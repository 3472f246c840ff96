/* SPDX-License-Identifier: Apache-2.0 */
/* genai_config.json, as the builder of ONNX Runtime GenAI writes it. Members that do not bear on
 * text decoders (providers, sessions) are passed over; members of "search" are not: each may change
 * the tokens. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/generate/sampling.h"

enum {
  SIZE_MOST = 16 << 20,
  LAYERS_MOST = 4096,
  FILES_MOST = 64,
  NAME_MOST = 512,
  WHERE_ROOM = 160
};

/* Kinds of models by GenAI's names; a reason: they are no text decoders with keys and values. */
static const char RECURRENT[] = "it keeps a recurrent state besides keys and values";
static const char MORE[] = "it reads more than text";
static const char CROSS[] = "it has an encoder and cross-attention";
static const struct model_kind {
  const char *type, *reason;
} kinds[] = {
    {"chatglm", NULL},
    {"decoder", NULL},
    {"decoder-pipeline", NULL},
    {"ernie4_5", NULL},
    {"gemma", NULL},
    {"gemma2", NULL},
    {"gemma3_text", NULL},
    {"gemma4_text", NULL},
    {"gpt2", NULL},
    {"gptoss", NULL},
    {"granite", NULL},
    {"hunyuandensev1", NULL},
    {"internlm2", NULL},
    {"llama", NULL},
    {"mistral", NULL},
    {"mistral3_text", NULL},
    {"nemotron", NULL},
    {"olmo", NULL},
    {"phi", NULL},
    {"phi3", NULL},
    {"phi3small", NULL},
    {"phimoe", NULL},
    {"qwen2", NULL},
    {"qwen3", NULL},
    {"smollm3", NULL},
    {"lfm2", RECURRENT},
    {"lfm2_moe", RECURRENT},
    {"granitemoehybrid", RECURRENT},
    {"qwen3_5", RECURRENT},
    {"qwen3_5_text", RECURRENT},
    {"fara", MORE},
    {"gemma3", MORE},
    {"phi3v", MORE},
    {"phi4mm", MORE},
    {"qwen2_5_vl", MORE},
    {"qwen3_vl", MORE},
    {"whisper", CROSS},
    {"marian-ssru", CROSS},
    {"nemotron_speech", MORE},
};

typedef struct config_reader {
  const char *what;
  opi_arena *arena;
  opi_genai *out;
  opipe_error *err;
} config_reader;

static opipe_status no_memory(const config_reader *r) {
  return opi_fail_nomem(r->err, r->arena->total_bytes, r->what);
}

static const char *copied(const config_reader *r, const char *text) {
  return opi_arena_strdup(r->arena, text);
}

/* ---- members ---- */

/* The object `name` of `parent`; `where` becomes its place for messages. */
static opipe_status get_object(const config_reader *r, const json_t *parent, const char *parents,
                               const char *name, json_t **out, char where[WHERE_ROOM]) {
  *out = json_object_get(parent, name);
  (void)snprintf(where, WHERE_ROOM, "%s%s%s", parents, parents[0] == '\0' ? "" : ".", name);
  if (json_is_object(*out))
    return OPIPE_OK;
  return opi_fail(r->err, OPIPE_E_INVALID, "%s: \"%s\" must be an object", r->what, where);
}

/* An integer from least to most; absent (or null): `unless`, if that is not above `most`. */
static opipe_status get_count(const config_reader *r, const json_t *object, const char *where,
                              const char *name, uint32_t least, uint32_t most, uint64_t unless,
                              uint32_t *out) {
  const json_t *value = json_object_get(object, name);
  if ((value == NULL || json_is_null(value)) && unless <= UINT32_MAX) {
    *out = (uint32_t)unless;
    return OPIPE_OK;
  }
  if (value == NULL)
    return opi_fail(r->err, OPIPE_E_INVALID, "%s: \"%s.%s\" is missing", r->what, where, name);
  if (!json_is_integer(value) || json_integer_value(value) < (json_int_t)least ||
      json_integer_value(value) > (json_int_t)most) {
    char text[OPI_VALUE_ROOM];
    return opi_fail(r->err, OPIPE_E_INVALID,
                    "%s: \"%s.%s\" is %s, it must be an integer from %u to %u", r->what, where,
                    name, opi_sampling_value(text, value), least, most);
  }
  *out = (uint32_t)json_integer_value(value);
  return OPIPE_OK;
}

#define NEEDED UINT64_MAX

/* A text; absent: `unless`, and NULL if that is NULL. */
static opipe_status get_text(const config_reader *r, const json_t *object, const char *where,
                             const char *name, const char *unless, const char **out) {
  const json_t *value = json_object_get(object, name);
  if (value == NULL) {
    *out = unless;
    return OPIPE_OK;
  }
  if (!json_is_string(value) || json_string_length(value) == 0 ||
      json_string_length(value) > NAME_MOST) {
    return opi_fail(r->err, OPIPE_E_INVALID, "%s: \"%s.%s\" must be a string of 1 to %d characters",
                    r->what, where, name, NAME_MOST);
  }
  *out = copied(r, json_string_value(value));
  return *out == NULL ? no_memory(r) : OPIPE_OK;
}

/* ---- model ---- */

static opipe_status read_type(const config_reader *r, const json_t *model) {
  const char *type = NULL;
  opi_text known;
  OPI_TRY(get_text(r, model, "model", "type", NULL, &type));
  if (type == NULL)
    return opi_fail(r->err, OPIPE_E_INVALID, "%s: \"model.type\" is missing", r->what);
  for (uint32_t i = 0; i < OPI_COUNT(kinds); ++i) {
    if (strcmp(kinds[i].type, type) != 0)
      continue;
    r->out->type = type;
    if (kinds[i].reason == NULL)
      return OPIPE_OK;
    return opi_fail(r->err, OPIPE_E_UNSUPPORTED,
                    "%s: models of type '%s' are not generated with: %s", r->what, type,
                    kinds[i].reason);
  }
  opi_text_init(&known, r->arena->allocator);
  for (uint32_t i = 0; i < OPI_COUNT(kinds); ++i) {
    if (kinds[i].reason == NULL)
      opi_text_printf(&known, "%s%s", i == 0 ? "" : ", ", kinds[i].type);
  }
  const opipe_status status =
      opi_fail(r->err, OPIPE_E_UNSUPPORTED, "%s: \"model.type\" is '%.64s', known are %s", r->what,
               type, known.failed ? "others" : known.data);
  opi_text_release(&known);
  return status;
}

/* A path below the folder, by its text. */
static opipe_status check_path(const config_reader *r, const char *where, const char *path) {
  const char *fault = path[0] == '/' ? "is absolute" : NULL;
  if (strchr(path, '\\') != NULL)
    fault = "holds a backslash";
  for (const char *part = path; part != NULL; part = strchr(part, '/')) {
    part += part[0] == '/';
    if (strncmp(part, "..", 2) == 0 && (part[2] == '/' || part[2] == '\0'))
      fault = "leaves the folder by '..'";
  }
  if (fault == NULL)
    return OPIPE_OK;
  return opi_fail(r->err, OPIPE_E_INVALID, "%s: \"%s\" is '%.200s', which %s", r->what, where, path,
                  fault);
}

static opipe_status read_file(const config_reader *r, const json_t *object, const char *where,
                              const char **out) {
  char full[WHERE_ROOM + sizeof ".filename"];
  OPI_TRY(get_text(r, object, where, "filename", NULL, out));
  (void)snprintf(full, sizeof full, "%s.filename", where);
  if (*out == NULL)
    return opi_fail(r->err, OPIPE_E_INVALID, "%s: \"%s\" is missing", r->what, full);
  return check_path(r, full, *out);
}

/* decoder.filename, or the parts of decoder.pipeline: a list of objects {NAME: {"filename": ...}}.
 */
static opipe_status read_files(const config_reader *r, json_t *decoder) {
  json_t *pipeline = json_object_get(decoder, "pipeline"), *part = NULL, *one = NULL;
  const size_t n = pipeline == NULL ? 1 : json_array_size(pipeline);
  const char **files = OPI_ARENA_ARRAY(r->arena, const char *, FILES_MOST), *name = NULL;
  if (files == NULL)
    return no_memory(r);
  if (n == 0 || n > FILES_MOST) {
    return opi_fail(r->err, OPIPE_E_INVALID,
                    "%s: \"model.decoder.pipeline\" must be a list of 1 to %d parts, it has %zu",
                    r->what, FILES_MOST, n);
  }
  r->out->files = files;
  if (pipeline == NULL) {
    r->out->n_files = 1;
    return read_file(r, decoder, "model.decoder", &files[0]);
  }
  for (size_t i = 0; i < n; ++i) {
    part = json_array_get(pipeline, i);
    if (!json_is_object(part) || json_object_size(part) != 1) {
      return opi_fail(r->err, OPIPE_E_INVALID,
                      "%s: \"model.decoder.pipeline\"[%zu] must be an object with one member",
                      r->what, i);
    }
    json_object_foreach(part, name, one) {
      char where[WHERE_ROOM];
      (void)snprintf(where, sizeof where, "model.decoder.pipeline.%.80s", name);
      OPI_TRY(read_file(r, one, where, &files[r->out->n_files]));
      ++r->out->n_files;
    }
  }
  return OPIPE_OK;
}

/* The names of all layers by a template with one %d. */
static opipe_status read_names(const config_reader *r, const json_t *object, const char *where,
                               const char *key, const char *unless, const char *const **out) {
  const char *name = NULL;
  OPI_TRY(get_text(r, object, where, key, unless, &name));
  const char *at = strstr(name, "%d");
  if (at == NULL || strchr(name, '%') != at || strchr(at + 1, '%') != NULL) {
    return opi_fail(r->err, OPIPE_E_INVALID,
                    "%s: \"%s.%s\" is '%.200s', it must have %%d once, for the layer", r->what,
                    where, key, name);
  }
  const char **names = OPI_ARENA_ARRAY(r->arena, const char *, r->out->n_layers);
  if (names == NULL)
    return no_memory(r);
  for (uint32_t i = 0; i < r->out->n_layers; ++i) {
    names[i] = opi_arena_printf(r->arena, "%.*s%u%s", (int)(at - name), name, i, at + 2);
    if (names[i] == NULL)
      return no_memory(r);
  }
  *out = names;
  return OPIPE_OK;
}

static opipe_status read_stored(const config_reader *r, const json_t *inputs,
                                const json_t *outputs) {
  static const char in[] = "model.decoder.inputs", from[] = "model.decoder.outputs";
  opi_genai *c = r->out;
  const bool past = json_object_get(inputs, "past_names") != NULL;
  if (past != (json_object_get(outputs, "present_names") != NULL)) {
    return opi_fail(r->err, OPIPE_E_INVALID, "%s: \"%s\" without \"%s\"", r->what,
                    past ? "past_names" : "present_names", past ? "present_names" : "past_names");
  }
  if (json_object_get(inputs, "cross_past_key_names") != NULL) {
    return opi_fail(r->err, OPIPE_E_UNSUPPORTED, "%s: \"%s.cross_past_key_names\": %s", r->what, in,
                    CROSS);
  }
  if (past) {
    OPI_TRY(read_names(r, inputs, in, "past_names", NULL, &c->past[OPI_KEYS]));
    return read_names(r, outputs, from, "present_names", NULL, &c->present[OPI_KEYS]);
  }
  OPI_TRY(
      read_names(r, inputs, in, "past_key_names", "past_key_values.%d.key", &c->past[OPI_KEYS]));
  OPI_TRY(read_names(r, inputs, in, "past_value_names", "past_key_values.%d.value",
                     &c->past[OPI_VALUES]));
  OPI_TRY(
      read_names(r, outputs, from, "present_key_names", "present.%d.key", &c->present[OPI_KEYS]));
  return read_names(r, outputs, from, "present_value_names", "present.%d.value",
                    &c->present[OPI_VALUES]);
}

static opipe_status read_decoder(const config_reader *r, json_t *model) {
  static const char at[] = "model.decoder";
  json_t *decoder = NULL, *inputs = NULL, *outputs = NULL, *window = NULL;
  opi_genai *c = r->out;
  char where[WHERE_ROOM];
  OPI_TRY(get_object(r, model, "model", "decoder", &decoder, where));
  OPI_TRY(get_count(r, decoder, at, "num_hidden_layers", 1, LAYERS_MOST, NEEDED, &c->n_layers));
  OPI_TRY(get_count(r, decoder, at, "num_attention_heads", 1, 1 << 16, 0, &c->n_heads));
  OPI_TRY(get_count(r, decoder, at, "num_key_value_heads", 1, 1 << 16, c->n_heads, &c->n_kv_heads));
  OPI_TRY(get_count(r, decoder, at, "head_size", 1, 1 << 16, 0, &c->head_size));
  OPI_TRY(read_files(r, decoder));
  if (json_object_get(decoder, "sliding_window") != NULL) {
    OPI_TRY(get_object(r, decoder, at, "sliding_window", &window, where));
    OPI_TRY(get_count(r, window, where, "window_size", 1, INT32_MAX, 0, &c->window));
  }
  if (json_object_get(decoder, "inputs") != NULL)
    OPI_TRY(get_object(r, decoder, at, "inputs", &inputs, where));
  if (json_object_get(decoder, "outputs") != NULL)
    OPI_TRY(get_object(r, decoder, at, "outputs", &outputs, where));
  OPI_TRY(get_text(r, inputs, "model.decoder.inputs", "input_ids", "input_ids", &c->input_ids));
  OPI_TRY(get_text(r, inputs, "model.decoder.inputs", "attention_mask", "attention_mask",
                   &c->attention_mask));
  OPI_TRY(get_text(r, inputs, "model.decoder.inputs", "position_ids", "position_ids",
                   &c->position_ids));
  OPI_TRY(get_text(r, outputs, "model.decoder.outputs", "logits", "logits", &c->logits));
  return read_stored(r, inputs, outputs);
}

static opipe_status read_model(const config_reader *r, json_t *model) {
  opi_genai *c = r->out;
  json_t *ends = json_object_get(model, "eos_token_id");
  const uint32_t last = INT32_MAX;
  OPI_TRY(read_type(r, model));
  OPI_TRY(get_count(r, model, "model", "context_length", 1, last, NEEDED, &c->context));
  OPI_TRY(get_count(r, model, "model", "vocab_size", 1, last, 0, &c->n_vocab));
  OPI_TRY(get_count(r, model, "model", "bos_token_id", 0, last, UINT32_MAX, &c->bos));
  OPI_TRY(get_count(r, model, "model", "pad_token_id", 0, last, UINT32_MAX, &c->pad));
  if (ends != NULL && !json_is_null(ends) &&
      opi_sampling_set("stop", ends, r->arena, &c->sampling, r->err) < 0)
    return opi_error_prefix(r->err, "%s: \"model.eos_token_id\": ", r->what);
  return read_decoder(r, model);
}

/* ---- search ---- */

typedef struct search_key {
  const char *name;
  const char *as; /* the key of sampling; NULL: none */
  double only;    /* without `as`: the one value that is done here; NaN: any */
} search_key;

static const search_key search_keys[] = {
    {"temperature", "temperature", 0},
    {"top_k", "top_k", 0},
    {"repetition_penalty", "repetition_penalty", 0},
    {"num_return_sequences", "n", 0},
    {"min_p", "min_p", 0},
    {"top_p", NULL, NAN},
    {"random_seed", NULL, NAN},
    {"do_sample", NULL, NAN},
    {"min_length", NULL, NAN},
    {"max_length", NULL, NAN},
    {"past_present_share_buffer", NULL, NAN},
    {"batch_size", NULL, NAN},
    {"chunk_size", NULL, NAN},
    {"early_stopping", NULL, NAN}, /* of beams, as the two below */
    {"length_penalty", NULL, NAN},
    {"diversity_penalty", NULL, NAN},
    {"num_beams", NULL, 1},
    {"no_repeat_ngram_size", NULL, 0},
};

static opipe_status read_search_key(const config_reader *r, const char *name, json_t *value) {
  const search_key *key = NULL;
  for (uint32_t k = 0; k < OPI_COUNT(search_keys) && key == NULL; ++k)
    key = strcmp(search_keys[k].name, name) == 0 ? &search_keys[k] : NULL;
  if (key == NULL) {
    return opi_fail(r->err, OPIPE_E_UNSUPPORTED, "%s: \"search.%.64s\" is not known here", r->what,
                    name);
  }
  if (key->as != NULL && opi_sampling_set(key->as, value, r->arena, &r->out->sampling, r->err) < 0)
    return opi_error_prefix(r->err, "%s: \"search.%s\": ", r->what, name);
  if (key->as != NULL || isnan(key->only) ||
      (json_is_number(value) && json_number_value(value) == key->only))
    return OPIPE_OK;
  char text[OPI_VALUE_ROOM];
  return opi_fail(r->err, OPIPE_E_UNSUPPORTED, "%s: \"search.%s\" is %s, only %g is done here",
                  r->what, name, opi_sampling_value(text, value), key->only);
}

static opipe_status get_flag(const config_reader *r, const json_t *search, const char *name,
                             bool *out) {
  const json_t *value = json_object_get(search, name);
  if (value != NULL && !json_is_boolean(value)) {
    return opi_fail(r->err, OPIPE_E_INVALID, "%s: \"search.%s\" must be true or false", r->what,
                    name);
  }
  *out = json_is_true(value);
  return OPIPE_OK;
}

/* A top_p of 0 means none, and a random_seed of -1 any, there; here any is 0. */
static opipe_status read_search(const config_reader *r, json_t *search) {
  opi_genai *c = r->out;
  json_t *value = NULL;
  const char *name = NULL;
  bool draws = false;
  json_object_foreach(search, name, value) OPI_TRY(read_search_key(r, name, value));
  json_t *top_p = json_object_get(search, "top_p"), *seed = json_object_get(search, "random_seed");
  opipe_status status = OPIPE_OK;
  if (top_p != NULL && !(json_is_number(top_p) && json_number_value(top_p) == 0))
    status = opi_sampling_set("top_p", top_p, r->arena, &c->sampling, r->err);
  if (status == OPIPE_OK && seed != NULL &&
      !(json_is_integer(seed) && json_integer_value(seed) == -1))
    status = opi_sampling_set("seed", seed, r->arena, &c->sampling, r->err);
  if (status < 0)
    return opi_error_prefix(r->err, "%s: \"search\": ", r->what);
  OPI_TRY(get_flag(r, search, "do_sample", &draws));
  OPI_TRY(get_flag(r, search, "past_present_share_buffer", &c->shares_buffer));
  OPI_TRY(get_count(r, search, "search", "min_length", 0, INT32_MAX, 0, &c->min_length));
  OPI_TRY(get_count(r, search, "search", "max_length", 0, INT32_MAX, 0, &c->max_length));
  if (c->max_length == 0 || c->max_length > c->context)
    c->max_length = c->context;
  if (c->min_length > c->max_length) {
    return opi_fail(r->err, OPIPE_E_INVALID,
                    "%s: \"search.min_length\" is %u, above max_length, which is %u", r->what,
                    c->min_length, c->max_length);
  }
  if (!draws)
    c->sampling.temperature = 0;
  return OPIPE_OK;
}

opipe_status opi_genai_read(const char *text, uint64_t n_bytes, const char *what, opi_arena *arena,
                            opi_genai *out, opipe_error *err) {
  opi_genai config = {.sampling = opi_sampling_default};
  const config_reader r = {what, arena, &config, err};
  json_t *root = NULL, *model = NULL, *search = NULL;
  char where[WHERE_ROOM];
  if (n_bytes > SIZE_MOST) {
    return opi_fail(err, OPIPE_E_LIMIT, "%s has %llu bytes, at most %d are read", what,
                    (unsigned long long)n_bytes, SIZE_MOST);
  }
  OPI_TRY(opi_json_parse(text, n_bytes, what, &root, err));
  opipe_status status = get_object(&r, root, "", "model", &model, where);
  if (status == OPIPE_OK)
    status = read_model(&r, model);
  if (status == OPIPE_OK && json_object_get(root, "search") != NULL)
    status = get_object(&r, root, "", "search", &search, where);
  if (status == OPIPE_OK)
    status = read_search(&r, search); /* without one: its defaults */
  if (status == OPIPE_OK && opi_sampling_check(&config.sampling, config.n_vocab, err) < 0)
    status = opi_error_prefix(err, "%s: ", what);
  json_decref(root);
  if (status == OPIPE_OK)
    *out = config;
  return status;
}
