/* SPDX-License-Identifier: Apache-2.0 */
/* jansson keeps its allocator and hash seed per process: neither is touched here, since the host
 * may use jansson too. */
#include "loader/base/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SIZE_MOST = 256 << 20, DEPTH_MOST = 32 };

void opi_json_double(opi_text *text, double value) {
  if (!isfinite(value)) {
    opi_text_puts(text, "null");
    return;
  }
  opi_text_printf(text, "%.17g", value == 0 ? 0 : value); /* no "-0" */
}

static bool too_deep(const char *bytes, uint64_t n_bytes) {
  int depth = 0;
  bool quoted = false;
  for (uint64_t i = 0; i < n_bytes; ++i) {
    const char c = bytes[i];
    if (quoted) {
      if (c == '\\')
        ++i;
      if (c == '"')
        quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      if (++depth > DEPTH_MOST)
        return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

opipe_status opi_json_parse(const void *bytes, uint64_t n_bytes, const char *what,
                            json_t **out_root, opipe_error *err) {
  json_error_t where;
  if (n_bytes > SIZE_MOST) {
    return opi_fail(err, OPIPE_E_LIMIT, "%s has %" PRIu64 " bytes, at most %d are read", what,
                    n_bytes, SIZE_MOST);
  }
  if (too_deep(bytes, n_bytes))
    return opi_fail(err, OPIPE_E_LIMIT, "%s nests deeper than %d", what, DEPTH_MOST);
  *out_root = json_loadb(bytes, (size_t)n_bytes, JSON_REJECT_DUPLICATES, &where);
  if (*out_root == NULL) {
    return opi_fail(err, OPIPE_E_INVALID, "%s is not valid JSON: line %d, column %d: %s", what,
                    where.line, where.column, where.text);
  }
  if (!json_is_object(*out_root)) {
    json_decref(*out_root);
    *out_root = NULL;
    return opi_fail(err, OPIPE_E_INVALID, "%s is not a JSON object", what);
  }
  return OPIPE_OK;
}

opipe_status opi_json_get_string(const json_t *object, const char *what, const char *name,
                                 const char **out, opipe_error *err) {
  const json_t *value = json_object_get(object, name);
  if (!json_is_string(value))
    return opi_fail(err, OPIPE_E_INVALID, "%s: \"%s\" must be a string", what, name);
  *out = json_string_value(value);
  return OPIPE_OK;
}

bool opi_json_parse_u64(const char *text, uint64_t *out) {
  uint64_t value = 0;
  const char *at = text;
  for (; *at >= '0' && *at <= '9'; ++at) {
    if (__builtin_mul_overflow(value, 10u, &value) ||
        __builtin_add_overflow(value, (uint64_t)(*at - '0'), &value))
      return false;
  }
  *out = value;
  return at != text && *at == '\0';
}

opipe_status opi_json_get_u64(const json_t *object, const char *what, const char *name,
                              uint64_t max, uint64_t *out, opipe_error *err) {
  const json_t *value = json_object_get(object, name);
  if (!json_is_integer(value) || json_integer_value(value) < 0 ||
      (uint64_t)json_integer_value(value) > max) {
    return opi_fail(err, OPIPE_E_INVALID, "%s: \"%s\" must be an integer from 0 to %" PRIu64, what,
                    name, max);
  }
  *out = (uint64_t)json_integer_value(value);
  return OPIPE_OK;
}

opipe_status opi_json_get_number(const json_t *object, const char *what, const char *name,
                                 double *out, opipe_error *err) {
  const json_t *value = json_object_get(object, name);
  if (!json_is_number(value))
    return opi_fail(err, OPIPE_E_INVALID, "%s: \"%s\" must be a number", what, name);
  *out = json_number_value(value);
  return OPIPE_OK;
}

opipe_status opi_json_time(const json_t *value, const char *what, const char *name, double *out,
                           opipe_error *err) {
  static const double most = 1e18;
  const double number = json_number_value(value);
  if (!json_is_number(value) || number < 0 || number > most) {
    return opi_fail(err, OPIPE_E_INVALID, "%s: \"%s\" must be a number from 0 to %g", what, name,
                    most);
  }
  *out = number;
  return OPIPE_OK;
}

opipe_status opi_json_get_array(const json_t *object, const char *what, const char *name,
                                const json_t **out, opipe_error *err) {
  const json_t *value = json_object_get(object, name);
  if (!json_is_array(value))
    return opi_fail(err, OPIPE_E_INVALID, "%s: \"%s\" must be an array", what, name);
  *out = value;
  return OPIPE_OK;
}
