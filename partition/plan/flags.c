/* SPDX-License-Identifier: Apache-2.0 */
/* See flags.h. */
#include "partition/plan/flags.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "partition/plan/rules.h"

enum { FLAGS_MOST = 8 };

static const struct {
  const char *name;
  uint32_t flag;
} flag_names[2][FLAGS_MOST] = {{{"host-memory", OPIPE_DEVICE_HOST_MEMORY},
                                {"synchronous", OPIPE_DEVICE_SYNCHRONOUS},
                                {"emulated", OPIPE_DEVICE_EMULATED},
                                {"alone", OPIPE_DEVICE_ALONE},
                                {"hands-on", OPIPE_DEVICE_HANDS_ON}},
                               {{"direct", OPIPE_TRANSPORT_DIRECT},
                                {"reduces", OPIPE_TRANSPORT_REDUCES},
                                {"emulated", OPIPE_TRANSPORT_EMULATED},
                                {"collectives", OPIPE_TRANSPORT_COLLECTIVES},
                                {"queued", OPIPE_TRANSPORT_QUEUED},
                                {"machines", OPIPE_TRANSPORT_MACHINES},
                                {"unordered", OPIPE_TRANSPORT_UNORDERED},
                                {"scattered", OPIPE_TRANSPORT_SCATTERED}}};

void opi_json_write_flags(opi_text *t, uint32_t which, uint32_t flags) {
  bool first = true;
  opi_text_puts(t, "[");
  for (uint32_t i = 0; i < FLAGS_MOST; ++i) {
    if (flag_names[which][i].name == NULL || (flags & flag_names[which][i].flag) == 0)
      continue;
    opi_text_printf(t, "%s\"%s\"", first ? "" : ", ", flag_names[which][i].name);
    first = false;
  }
  opi_text_puts(t, "]");
}

static bool find_flag(uint32_t which, const char *name, uint32_t *io_flags) {
  for (uint32_t i = 0; name != NULL && i < FLAGS_MOST; ++i) {
    if (flag_names[which][i].name == NULL || strcmp(name, flag_names[which][i].name) != 0)
      continue;
    *io_flags |= flag_names[which][i].flag;
    return true;
  }
  return false;
}

/* "a, b and c" */
static void list_flags(uint32_t which, char *out, size_t room) {
  size_t at = 0;
  uint32_t n = 0;
  while (n < FLAGS_MOST && flag_names[which][n].name != NULL)
    ++n;
  for (uint32_t i = 0; i < n && at < room; ++i) {
    at += (size_t)snprintf(out + at, room - at, "%s%s", flag_names[which][i].name,
                           i + 2 < n    ? ", "
                           : i + 2 == n ? " and "
                                        : "");
  }
}

opipe_status opi_json_get_flags(const json_t *object, const char *what, uint32_t which,
                                uint32_t *out_flags, opipe_error *err) {
  const json_t *list = NULL;
  *out_flags = 0;
  OPI_TRY(opi_json_get_array(object, what, "flags", &list, err));
  for (size_t i = 0; i < json_array_size(list); ++i) {
    const char *name = json_string_value(json_array_get(list, i));
    if (find_flag(which, name, out_flags))
      continue;
    char known[128];
    list_flags(which, known, sizeof known);
    return opi_fail(err, OPIPE_E_INVALID, "%s: \"flags\" holds '%.40s'; known flags are %s", what,
                    name == NULL ? "(no string)" : name, known);
  }
  return OPIPE_OK;
}

opipe_status opi_json_get_alignment(const json_t *object, const char *what, uint32_t *out_bytes,
                                    opipe_error *err) {
  enum { MOST = 1 << 24 }; /* the same limit as for backends */
  uint64_t bytes = 0;
  OPI_TRY(opi_json_get_u64(object, what, "alignment", MOST, &bytes, err));
  if (bytes == 0 || (bytes & (bytes - 1)) != 0) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "%s: \"alignment\" is %" PRIu64 "; it must be a power of two from 1 to %d",
                    what, bytes, MOST);
  }
  *out_bytes = (uint32_t)bytes;
  return OPIPE_OK;
}

opipe_status opi_json_get_rule(const json_t *object, const char *what, uint32_t *out_rule,
                               opipe_error *err) {
  const char *rule = NULL;
  OPI_TRY(opi_json_get_string(object, what, "rule", &rule, err));
  if (opi_rule_parse(rule, out_rule))
    return OPIPE_OK;
  return opi_fail(
      err, OPIPE_E_INVALID,
      "%s: \"rule\" is '%.40s'; known rules are tag, stream, edge, pair, blocking and grouped",
      what, rule);
}
