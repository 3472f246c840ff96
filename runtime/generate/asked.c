/* SPDX-License-Identifier: Apache-2.0 */
/* Traces of requests: JSON lines, each read and checked by itself. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/generate/sampling.h"

enum { LINES_MOST = 1 << 20, IDS_MOST = 1 << 24, LINE_MOST = 64 << 20 };
static const uint64_t SIZE_MOST = UINT64_C(1) << 30;
static const double SECONDS_MOST = 1e9;

static opipe_status read_ids(json_t *list, uint32_t n_vocab, opi_arena *arena, opi_asked *out,
                             opipe_error *err) {
  const size_t n = json_array_size(list);
  if (!json_is_array(list) || n == 0 || n > IDS_MOST)
    return opi_fail(err, OPIPE_E_INVALID, "\"ids\" must be a list of 1 to %d ids", IDS_MOST);
  uint32_t *ids = OPI_ARENA_ARRAY(arena, uint32_t, n);
  if (ids == NULL)
    return opi_fail_nomem(err, n * sizeof *ids, "ids");
  for (size_t i = 0; i < n; ++i) {
    const json_t *id = json_array_get(list, i);
    const json_int_t value = json_integer_value(id);
    const uint32_t most = n_vocab == 0 ? UINT32_MAX : n_vocab;
    if (!json_is_integer(id))
      return opi_fail(err, OPIPE_E_INVALID, "\"ids\"[%zu] is not an integer", i);
    if (value < 0 || value >= (json_int_t)most) {
      return opi_fail(err, OPIPE_E_INVALID, "\"ids\"[%zu] is %lld, the vocabulary has %u", i,
                      (long long)value, most);
    }
    ids[i] = (uint32_t)value;
  }
  out->ids = ids;
  out->n_ids = (uint32_t)n;
  return OPIPE_OK;
}

static opipe_status read_key(const char *name, json_t *value, uint32_t n_vocab, opi_arena *arena,
                             opi_asked *out, opipe_error *err) {
  if (strcmp(name, "ids") == 0)
    return read_ids(value, n_vocab, arena, out, err);
  if (strcmp(name, "prompt") == 0) {
    if (!json_is_string(value) || json_string_length(value) == 0)
      return opi_fail(err, OPIPE_E_INVALID, "\"prompt\" must be a text that is not empty");
    out->text = opi_arena_strdup(arena, json_string_value(value));
    return out->text != NULL ? OPIPE_OK
                             : opi_fail_nomem(err, json_string_length(value), "a prompt");
  }
  if (strcmp(name, "at") == 0) {
    out->at = json_number_value(value);
    if (json_is_number(value) && out->at >= 0 && out->at <= SECONDS_MOST)
      return OPIPE_OK;
    return opi_fail(err, OPIPE_E_INVALID, "\"at\" must be seconds, a number from 0 to %g",
                    SECONDS_MOST);
  }
  if (strcmp(name, "salt") == 0) {
    out->salt = (uint64_t)json_integer_value(value);
    if (json_is_integer(value) && json_integer_value(value) >= 0)
      return OPIPE_OK;
    return opi_fail(err, OPIPE_E_INVALID, "\"salt\" must be an integer of at least 0");
  }
  if (opi_sampling_has_key(name))
    return opi_sampling_set(name, value, arena, &out->sampling, err);
  return opi_fail(err, OPIPE_E_INVALID,
                  "unknown key \"%.64s\"; known are ids, prompt, at, salt and those of sampling",
                  name);
}

static opipe_status read_line(const char *text, size_t n_bytes, uint32_t n_vocab, opi_arena *arena,
                              opi_asked *out, opipe_error *err) {
  json_t *root = NULL, *value = NULL;
  const char *name = NULL;
  if (n_bytes > LINE_MOST) {
    return opi_fail(err, OPIPE_E_LIMIT, "it has %zu bytes, at most %d are read", n_bytes,
                    LINE_MOST);
  }
  OPI_TRY(opi_json_parse(text, n_bytes, "it", &root, err));
  opipe_status status = OPIPE_OK;
  json_object_foreach(root, name, value) {
    if (status == OPIPE_OK)
      status = read_key(name, value, n_vocab, arena, out, err);
  }
  json_decref(root);
  if (status == OPIPE_OK && (out->ids == NULL) == (out->text == NULL)) {
    status = opi_fail(err, OPIPE_E_INVALID, "%s",
                      out->ids == NULL ? "neither \"ids\" nor \"prompt\" is given"
                                       : "\"ids\" and \"prompt\" are both given");
  }
  return status < 0 ? status : opi_sampling_check(&out->sampling, n_vocab, err);
}

static int by_arrival(const void *a, const void *b) {
  const opi_asked *x = a, *y = b;
  if (x->at != y->at)
    return x->at < y->at ? -1 : 1;
  return x->line < y->line ? -1 : x->line > y->line;
}

static bool is_empty(const char *text, size_t n) {
  size_t i = 0;
  while (i < n && (text[i] == ' ' || text[i] == '\t' || text[i] == '\r'))
    ++i;
  return i == n;
}

opipe_status opi_asked_read(const char *text, uint64_t n_bytes, const char *what, uint32_t n_vocab,
                            const opi_sampling *base, opi_arena *arena, opi_asked **out,
                            uint32_t *out_n, opipe_error *err) {
  opi_asked *list = NULL;
  uint32_t n = 0, room = 0, line = 0;
  if (n_bytes > SIZE_MOST) {
    return opi_fail(err, OPIPE_E_LIMIT, "%s has %llu bytes, at most %llu are read", what,
                    (unsigned long long)n_bytes, (unsigned long long)SIZE_MOST);
  }
  for (uint64_t at = 0, length = 0; at < n_bytes; at += length + 1) {
    const char *end = memchr(text + at, '\n', (size_t)(n_bytes - at));
    length = end == NULL ? n_bytes - at : (uint64_t)(end - (text + at));
    if (++line > LINES_MOST)
      return opi_fail(err, OPIPE_E_LIMIT, "%s has more than %d lines", what, LINES_MOST);
    if (is_empty(text + at, (size_t)length))
      continue;
    void *grown = list;
    if (!opi_arena_grow(arena, &grown, &room, n + 1, sizeof *list))
      return opi_fail_nomem(err, (uint64_t)(n + 1) * sizeof *list, what);
    list = grown;
    list[n] = (opi_asked){.line = line, .sampling = *base};
    if (read_line(text + at, (size_t)length, n_vocab, arena, &list[n], err) < 0)
      return opi_error_prefix(err, "%s, line %u: ", what, line);
    ++n;
  }
  if (n == 0)
    return opi_fail(err, OPIPE_E_INVALID, "%s has no requests", what);
  qsort(list, n, sizeof *list, by_arrival);
  *out = list;
  *out_n = n;
  return OPIPE_OK;
}
