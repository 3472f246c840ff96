/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of sampling: a row for each, from which they are read, checked and named in messages.
 * Numbers of both forms are read by jansson, whatever the host's locale. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "loader/base/nearest.h"
#include "runtime/generate/sampling.h"

static const double REAL_MOST = 1e9;

const opi_sampling opi_sampling_default = {.temperature = 1,
                                           .top_p = 1,
                                           .repetition_penalty = 1,
                                           .n = 1,
                                           .max_tokens = UINT32_MAX,
                                           .logprobs = -1};

enum { OF_REAL, OF_COUNT, OF_LOGPROBS, OF_SEED, OF_STOPS, OF_BIASES };

typedef struct key_row {
  const char *name;
  uint32_t kind;
  size_t at; /* of the field */
  double low, high;
  bool above; /* low itself is refused */
  const char *rule;
} key_row;

#define FIELD(name) offsetof(opi_sampling, name)
#define ANY_COUNT "an integer from 0 to 4294967295"
#define ANY_REAL "a number from -1e9 to 1e9"

static const key_row keys[] = {
    {"temperature", OF_REAL, FIELD(temperature), 0, 1e9, false, "a number from 0 (greedy) to 1e9"},
    {"top_k", OF_COUNT, FIELD(top_k), 0, UINT32_MAX, false, ANY_COUNT " (0: all)"},
    {"top_p", OF_REAL, FIELD(top_p), 0, 1, true, "a number above 0 and at most 1"},
    {"min_p", OF_REAL, FIELD(min_p), 0, 1, false, "a number from 0 to 1"},
    {"repetition_penalty", OF_REAL, FIELD(repetition_penalty), 0, 1e9, true,
     "a number above 0 and at most 1e9"},
    {"presence_penalty", OF_REAL, FIELD(presence_penalty), -1e9, 1e9, false, ANY_REAL},
    {"frequency_penalty", OF_REAL, FIELD(frequency_penalty), -1e9, 1e9, false, ANY_REAL},
    {"seed", OF_SEED, FIELD(seed), 0, 0, false, "an integer from 0 to 18446744073709551615"},
    {"n", OF_COUNT, FIELD(n), 1, OPI_SAMPLING_ANSWERS, false, "an integer from 1 to 1024"},
    {"min_tokens", OF_COUNT, FIELD(min_tokens), 0, UINT32_MAX, false, ANY_COUNT},
    {"max_tokens", OF_COUNT, FIELD(max_tokens), 1, UINT32_MAX, false,
     "an integer from 1 to 4294967295"},
    {"logprobs", OF_LOGPROBS, FIELD(logprobs), -1, OPI_SAMPLING_LIKELY, false,
     "an integer from -1 (none) to 20"},
    {"stop", OF_STOPS, FIELD(stops), 0, 0, false, "an id, or ids and lists of ids"},
    {"logit_bias", OF_BIASES, FIELD(biases), 0, 0, false,
     "ids, each with a number from -1e9 to 1e9"},
};

static const key_row *find_key(const char *name, size_t n) {
  for (uint32_t k = 0; k < OPI_COUNT(keys); ++k) {
    if (strlen(keys[k].name) == n && memcmp(keys[k].name, name, n) == 0)
      return &keys[k];
  }
  return NULL;
}

static opipe_status unknown_key(const char *name, size_t n, opipe_error *err) {
  char line[OPI_LINE_ROOM], copy[OPI_LINE_ROOM];
  opi_nearest nearest = {.word = name, .n = n};
  for (uint32_t k = 0; k < OPI_COUNT(keys); ++k)
    opi_nearest_look(&nearest, keys[k].name);
  (void)snprintf(copy, sizeof copy, "%.*s", (int)(n < 80 ? n : 80), name);
  (void)opi_text_line(line, copy);
  if (nearest.found == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "sampling has no key '%s'", line);
  return opi_fail(err, OPIPE_E_INVALID, "sampling has no key '%s'; did you mean '%s'?", line,
                  nearest.found);
}

static opipe_status refuse(const key_row *key, const char *value, opipe_error *err) {
  char line[OPI_LINE_ROOM];
  return opi_fail(err, OPIPE_E_INVALID, "%s is %.100s, it must be %s", key->name,
                  opi_text_line(line, value), key->rule);
}

const char *opi_sampling_value(char text[OPI_VALUE_ROOM], const json_t *value) {
  const size_t n = json_dumpb(value, text, OPI_VALUE_ROOM - 1, JSON_COMPACT | JSON_ENCODE_ANY);
  text[n < OPI_VALUE_ROOM ? n : OPI_VALUE_ROOM - 1] = '\0';
  return text;
}

static opipe_status refuse_json(const key_row *key, const json_t *value, opipe_error *err) {
  char text[OPI_VALUE_ROOM];
  return refuse(key, opi_sampling_value(text, value), err);
}

/* ---- setting one key ---- */

static bool within(const key_row *key, double value) {
  return value >= key->low && value <= key->high && !(key->above && value == key->low);
}

static bool is_id(const json_t *value) {
  return json_is_integer(value) && json_integer_value(value) >= 0 &&
         json_integer_value(value) < UINT32_MAX;
}

static opipe_status set_number(const key_row *key, const json_t *value, opi_sampling *s,
                               opipe_error *err) {
  char *field = (char *)s + key->at;
  const double real = json_number_value(value);
  if (key->kind == OF_REAL && json_is_number(value) && within(key, real)) {
    memcpy(field, &real, sizeof real);
    return OPIPE_OK;
  }
  if (key->kind == OF_REAL || !json_is_integer(value) || !within(key, real))
    return refuse_json(key, value, err);
  const uint32_t count = (uint32_t)json_integer_value(value);
  memcpy(field, &count, sizeof count); /* logprobs: -1 in two's complement */
  return OPIPE_OK;
}

static opipe_status set_seed(const key_row *key, const json_t *value, opi_sampling *s,
                             opipe_error *err) {
  if (json_is_integer(value) && json_integer_value(value) >= 0) {
    s->seed = (uint64_t)json_integer_value(value);
    return OPIPE_OK;
  }
  if (json_is_string(value) && opi_json_parse_u64(json_string_value(value), &s->seed))
    return OPIPE_OK; /* too large for a JSON integer */
  return refuse_json(key, value, err);
}

/* Room for one element more in a list that grows by doubling; NULL: no memory. */
static void *grown(opi_arena *arena, const void *list, uint32_t n, size_t size) {
  if (n != 0 && (n & (n - 1)) != 0)
    return (void *)(uintptr_t)list;
  void *copy = opi_arena_array(arena, n == 0 ? 1 : 2 * (size_t)n, size);
  if (copy != NULL && n != 0)
    memcpy(copy, list, n * size);
  return copy;
}

static opipe_status add_stop(const key_row *key, const json_t *value, opi_arena *arena,
                             opi_sampling *s, opipe_error *err) {
  const bool single = !json_is_array(value);
  const size_t n = single ? 1 : json_array_size(value);
  if (s->n_stops == OPI_SAMPLING_STOPS) {
    return opi_fail(err, OPIPE_E_LIMIT, "stop has more than %d ids and sequences",
                    OPI_SAMPLING_STOPS);
  }
  if (n == 0)
    return refuse_json(key, value, err);
  if (n > OPI_SAMPLING_STOP_IDS) {
    return opi_fail(err, OPIPE_E_LIMIT, "stop has a sequence of %zu ids, at most %d are possible",
                    n, OPI_SAMPLING_STOP_IDS);
  }
  opi_stop *stops = grown(arena, s->stops, s->n_stops, sizeof *stops);
  uint32_t *ids = OPI_ARENA_ARRAY(arena, uint32_t, n);
  if (stops == NULL || ids == NULL)
    return opi_fail_nomem(err, n * sizeof *ids, "stops");
  for (size_t i = 0; i < n; ++i) {
    const json_t *id = single ? value : json_array_get(value, i);
    if (!is_id(id))
      return refuse_json(key, value, err);
    ids[i] = (uint32_t)json_integer_value(id);
  }
  stops[s->n_stops] = (opi_stop){ids, (uint32_t)n};
  s->stops = stops;
  ++s->n_stops;
  return OPIPE_OK;
}

static opipe_status add_bias(const key_row *key, const char *id_text, const json_t *add,
                             opi_arena *arena, opi_sampling *s, opipe_error *err) {
  uint64_t id = 0;
  if (s->n_biases == OPI_SAMPLING_BIASES)
    return opi_fail(err, OPIPE_E_LIMIT, "logit_bias has more than %d ids", OPI_SAMPLING_BIASES);
  if (!opi_json_parse_u64(id_text, &id) || id >= UINT32_MAX)
    return refuse(key, id_text, err);
  if (!json_is_number(add))
    return refuse_json(key, add, err);
  opi_bias *biases = grown(arena, s->biases, s->n_biases, sizeof *biases);
  if (biases == NULL)
    return opi_fail_nomem(err, (s->n_biases + 1) * sizeof *biases, "biases");
  biases[s->n_biases] = (opi_bias){(uint32_t)id, json_number_value(add)};
  s->biases = biases;
  ++s->n_biases;
  return OPIPE_OK;
}

/* ---- the JSON form ---- */

static opipe_status set_stops(const key_row *key, const json_t *value, opi_arena *arena,
                              opi_sampling *s, opipe_error *err) {
  s->stops = NULL;
  s->n_stops = 0;
  if (!json_is_array(value))
    return add_stop(key, value, arena, s, err);
  for (size_t i = 0; i < json_array_size(value); ++i)
    OPI_TRY(add_stop(key, json_array_get(value, i), arena, s, err));
  return OPIPE_OK;
}

static opipe_status set_biases(const key_row *key, json_t *value, opi_arena *arena, opi_sampling *s,
                               opipe_error *err) {
  const char *id = NULL;
  json_t *add = NULL;
  s->biases = NULL;
  s->n_biases = 0;
  if (!json_is_object(value))
    return refuse_json(key, value, err);
  json_object_foreach(value, id, add) OPI_TRY(add_bias(key, id, add, arena, s, err));
  return OPIPE_OK;
}

opipe_status opi_sampling_set(const char *name, json_t *value, opi_arena *arena,
                              opi_sampling *io_sampling, opipe_error *err) {
  const key_row *key = find_key(name, strlen(name));
  if (key == NULL)
    return unknown_key(name, strlen(name), err);
  switch (key->kind) {
    case OF_SEED:
      return set_seed(key, value, io_sampling, err);
    case OF_STOPS:
      return set_stops(key, value, arena, io_sampling, err);
    case OF_BIASES:
      return set_biases(key, value, arena, io_sampling, err);
    default:
      return set_number(key, value, io_sampling, err);
  }
}

static opipe_status read_json(const char *text, size_t n_bytes, opi_arena *arena, opi_sampling *s,
                              opipe_error *err) {
  json_t *root = NULL, *value = NULL;
  const char *name = NULL;
  opipe_status status = OPIPE_OK;
  OPI_TRY(opi_json_parse(text, n_bytes, "sampling", &root, err));
  json_object_foreach(root, name, value) {
    if (status == OPIPE_OK)
      status = opi_sampling_set(name, value, arena, s, err);
  }
  json_decref(root);
  return status;
}

/* ---- the form "key=value,key=value" ---- */

/* Sets a key from one value, which is terminated; *io_given has a bit for each key so far. */
static opipe_status set_text(const key_row *key, char *text, uint32_t *io_given, opi_arena *arena,
                             opi_sampling *s, opipe_error *err) {
  const uint32_t bit = UINT32_C(1) << (key - keys);
  const bool first = (*io_given & bit) == 0;
  char *colon = key->kind == OF_BIASES ? strchr(text, ':') : NULL;
  char list[1024];
  opipe_status status = OPIPE_OK;
  *io_given |= bit;
  if (!first && key->kind != OF_STOPS && key->kind != OF_BIASES)
    return opi_fail(err, OPIPE_E_INVALID, "%s is given twice", key->name);
  if (key->kind == OF_SEED)
    return opi_json_parse_u64(text, &s->seed) ? OPIPE_OK : refuse(key, text, err);
  if (key->kind == OF_BIASES && colon == NULL)
    return refuse(key, text, err);
  if (key->kind == OF_BIASES)
    *colon = '\0';
  const bool is_list = key->kind == OF_STOPS && strchr(text, '+') != NULL;
  const int n = snprintf(list, sizeof list, is_list ? "[%s]" : "%s", colon ? colon + 1 : text);
  for (char *at = list; is_list && *at != '\0'; ++at)
    *at = *at == '+' ? ',' : *at;
  json_t *value = n < 0 || (size_t)n >= sizeof list
                      ? NULL
                      : json_loadb(list, (size_t)n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
  if (value == NULL || (!json_is_number(value) && !is_list)) {
    status = refuse(key, colon ? colon + 1 : text, err);
  } else if (key->kind == OF_STOPS) {
    if (first)
      s->n_stops = 0, s->stops = NULL;
    status = add_stop(key, value, arena, s, err);
  } else if (key->kind == OF_BIASES) {
    if (first)
      s->n_biases = 0, s->biases = NULL;
    status = add_bias(key, text, value, arena, s, err);
  } else {
    status = set_number(key, value, s, err);
  }
  json_decref(value);
  return status;
}

static opipe_status read_pairs(char *text, opi_arena *arena, opi_sampling *s, opipe_error *err) {
  uint32_t given = 0;
  for (char *at = text; at != NULL && *text != '\0';) {
    char *comma = strchr(at, ','), *equal = NULL;
    if (comma != NULL)
      *comma = '\0';
    equal = strchr(at, '=');
    const size_t n = equal == NULL ? strlen(at) : (size_t)(equal - at);
    const key_row *key = find_key(at, n);
    if (key == NULL)
      return unknown_key(at, n, err);
    if (equal == NULL)
      return refuse(key, "without a value", err);
    OPI_TRY(set_text(key, equal + 1, &given, arena, s, err));
    at = comma == NULL ? NULL : comma + 1;
  }
  return OPIPE_OK;
}

opipe_status opi_sampling_read(const char *text, size_t n_bytes, uint32_t n_vocab, opi_arena *arena,
                               opi_sampling *io_sampling, opipe_error *err) {
  size_t begin = 0;
  opi_sampling s = *io_sampling;
  while (begin < n_bytes && strchr(" \t\r\n", text[begin]) != NULL && text[begin] != '\0')
    ++begin;
  if (begin < n_bytes && text[begin] == '{') {
    OPI_TRY(read_json(text + begin, n_bytes - begin, arena, &s, err));
  } else {
    if (n_bytes > 1 << 16 || memchr(text, '\0', n_bytes) != NULL) {
      return opi_fail(err, OPIPE_E_INVALID, "sampling of %zu bytes: text of at most 65536 is read",
                      n_bytes);
    }
    char *copy = opi_arena_strndup(arena, text, n_bytes);
    if (copy == NULL)
      return opi_fail_nomem(err, n_bytes, "sampling");
    OPI_TRY(read_pairs(copy, arena, &s, err));
  }
  OPI_TRY(opi_sampling_check(&s, n_vocab, err));
  *io_sampling = s;
  return OPIPE_OK;
}

/* ---- checking ---- */

static opipe_status check_number(const key_row *key, const opi_sampling *s, opipe_error *err) {
  const char *field = (const char *)s + key->at;
  char text[32];
  double value = 0;
  uint32_t count = 0;
  int32_t number = 0;
  if (key->kind == OF_REAL) {
    memcpy(&value, field, sizeof value);
  } else if (key->kind == OF_COUNT) {
    memcpy(&count, field, sizeof count);
    value = count;
  } else if (key->kind == OF_LOGPROBS) {
    memcpy(&number, field, sizeof number);
    value = number;
  } else {
    return OPIPE_OK;
  }
  (void)snprintf(text, sizeof text, "%.10g", value);
  return within(key, value) ? OPIPE_OK : refuse(key, text, err);
}

static opipe_status check_id(const char *key, uint32_t id, uint32_t n_vocab, opipe_error *err) {
  if (n_vocab == 0 || id < n_vocab)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID, "%s has id %u, the vocabulary has %u", key, id, n_vocab);
}

static opipe_status check_lists(const opi_sampling *s, uint32_t n_vocab, opipe_error *err) {
  if (s->n_stops > OPI_SAMPLING_STOPS || s->n_biases > OPI_SAMPLING_BIASES) {
    return opi_fail(err, OPIPE_E_LIMIT, "%u stops and %u biases, at most %d and %d are possible",
                    s->n_stops, s->n_biases, OPI_SAMPLING_STOPS, OPI_SAMPLING_BIASES);
  }
  for (uint32_t i = 0; i < s->n_stops; ++i) {
    const opi_stop *stop = &s->stops[i];
    if (stop->n < 1 || stop->n > OPI_SAMPLING_STOP_IDS) {
      return opi_fail(err, OPIPE_E_LIMIT, "stop has a sequence of %u ids, 1 to %d are possible",
                      stop->n, OPI_SAMPLING_STOP_IDS);
    }
    for (uint32_t k = 0; k < stop->n; ++k)
      OPI_TRY(check_id("stop", stop->ids[k], n_vocab, err));
  }
  for (uint32_t i = 0; i < s->n_biases; ++i) {
    const opi_bias *bias = &s->biases[i];
    OPI_TRY(check_id("logit_bias", bias->id, n_vocab, err));
    if (!(fabs(bias->add) <= REAL_MOST)) {
      return opi_fail(err, OPIPE_E_INVALID, "logit_bias of id %u is %g, it must be " ANY_REAL,
                      bias->id, bias->add);
    }
    for (uint32_t k = 0; k < i; ++k) {
      if (s->biases[k].id == bias->id)
        return opi_fail(err, OPIPE_E_INVALID, "logit_bias has id %u twice", bias->id);
    }
  }
  return OPIPE_OK;
}

opipe_status opi_sampling_check(const opi_sampling *sampling, uint32_t n_vocab, opipe_error *err) {
  for (uint32_t k = 0; k < OPI_COUNT(keys); ++k)
    OPI_TRY(check_number(&keys[k], sampling, err));
  if (sampling->min_tokens > sampling->max_tokens) {
    return opi_fail(err, OPIPE_E_INVALID, "min_tokens is %u, above max_tokens, which is %u",
                    sampling->min_tokens, sampling->max_tokens);
  }
  return check_lists(sampling, n_vocab, err);
}
