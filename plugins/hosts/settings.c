/* SPDX-License-Identifier: Apache-2.0 */
/* Options by name, a row of a table each. */
#include <ctype.h>
#include <errno.h>
#include <opipe/helpers.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "hosts.h"

/* "4096", "300MiB", "1.5GiB" */
static bool parse_bytes(const char *text, uint64_t *out) {
  static const struct {
    const char *name;
    double bytes;
  } units[] = {{"", 1},         {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30},
               {"TiB", 0x1p40}, {"k", 0x1p10},   {"m", 0x1p20},   {"g", 0x1p30}};
  char *end = NULL;
  errno = 0;
  const double value = strtod(text, &end);
  for (size_t i = 0; end != text && i < sizeof units / sizeof units[0]; ++i) {
    const double bytes = value * units[i].bytes;
    if (strcasecmp(end, units[i].name) != 0 || !(bytes >= 0 && bytes < 0x1p62))
      continue;
    *out = (uint64_t)bytes;
    return true;
  }
  return false;
}

static bool parse_number(const char *text, uint32_t *out) {
  char *end = NULL;
  const unsigned long value = strtoul(text, &end, 10);
  *out = (uint32_t)value;
  return isdigit((unsigned char)text[0]) && *end == '\0' && value <= 65535;
}

opipe_status host_set(const host_option *options, size_t n, void *settings, host_pool *p,
                      const char *key, const char *value, opipe_error *err) {
  size_t i = 0;
  while (i < n && strcmp(options[i].key, key) != 0)
    ++i;
  if (i == n)
    return opipe_fail(err, OPIPE_E_NOTFOUND, "there is no option %.100s", key);
  const host_option *o = &options[i];
  void *to = (char *)settings + o->at;
  uint64_t bytes = 0;
  uint32_t number = 0;
  switch (o->kind) {
    case HOST_BYTES:
      if (!parse_bytes(value, &bytes)) {
        return opipe_fail(err, OPIPE_E_INVALID, "option %s=%.100s is no size such as 300MiB", key,
                          value);
      }
      *(uint64_t *)to = bytes;
      return OPIPE_OK;
    case HOST_NUMBER:
      if (!parse_number(value, &number)) {
        return opipe_fail(err, OPIPE_E_INVALID, "option %s=%.100s is no number from 0 to 65535",
                          key, value);
      }
      *(uint32_t *)to = number;
      return OPIPE_OK;
    case HOST_CHOICE:
      *(bool *)to = strcmp(value, o->second) == 0;
      return *(bool *)to || strcmp(value, o->first) == 0
                 ? OPIPE_OK
                 : opipe_fail(err, OPIPE_E_INVALID, "option %s=%.100s; known are %s and %s", key,
                              value, o->first, o->second);
    default:
      *(const char **)to = host_pool_text(p, value);
      return *(const char **)to == NULL ? opipe_fail(err, OPIPE_E_NOMEM, "out of memory")
                                        : OPIPE_OK;
  }
}
