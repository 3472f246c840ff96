/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a session: entries "ep.<name in lower case>.<key>" of ORT's session options. */
#include <ctype.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapter.h"

/* NULL: the session has none. */
static ort_status *read_entry(const factory *f, const ort_options *options, const char *key,
                              pool *p, char **out) {
  char name[128] = "ep." EP_NAME ".";
  int has = 0;
  size_t n = 0;
  for (char *c = name; *c != '\0'; ++c)
    *c = (char)tolower((unsigned char)*c);
  (void)snprintf(name + strlen(name), sizeof name - strlen(name), "%s", key);
  *out = NULL;
  ORT_TRY(ORT(f->ort, HasSessionConfigEntry)(options, name, &has));
  if (has == 0)
    return NULL;
  ORT_TRY(ORT(f->ort, GetSessionConfigEntry)(options, name, NULL, &n));
  *out = pool_take(p, n + 1);
  if (*out == NULL)
    return ep_fail_text(f, ORT_FAIL, "onnx-pipe: out of memory");
  return ORT(f->ort, GetSessionConfigEntry)(options, name, *out, &n);
}

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

static ort_status *read_numbers(const factory *f, const ort_options *options, pool *p,
                                settings *out) {
  const struct {
    const char *key;
    uint32_t *to;
  } numbers[] = {{"stages", &out->n_stages},     {"ranks", &out->n_ranks},
                 {"threads", &out->n_threads},   {"microbatches", &out->n_microbatches},
                 {"replicas", &out->n_replicas}, {"shapes", &out->max_shapes}};
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; ++i) {
    char *text = NULL, *end = NULL;
    ORT_TRY(read_entry(f, options, numbers[i].key, p, &text));
    if (text == NULL)
      continue;
    const unsigned long value = strtoul(text, &end, 10);
    if (!isdigit((unsigned char)text[0]) || *end != '\0' || value > 65535) {
      return ep_fail_text(f, ORT_INVALID_ARGUMENT,
                          "onnx-pipe: option %s=%s is no number from 0 to 65535", numbers[i].key,
                          text);
    }
    *numbers[i].to = (uint32_t)value;
  }
  return NULL;
}

/* One of two words; the first where nothing is said. */
static ort_status *read_choice(const factory *f, const ort_options *options, pool *p,
                               const char *key, const char *first, const char *second, bool *out) {
  char *text = NULL;
  ORT_TRY(read_entry(f, options, key, p, &text));
  *out = text != NULL && strcmp(text, second) == 0;
  if (text == NULL || *out || strcmp(text, first) == 0)
    return NULL;
  return ep_fail_text(f, ORT_INVALID_ARGUMENT, "onnx-pipe: option %s=%s; known are %s and %s", key,
                      text, first, second);
}

ort_status *ep_read_settings(const factory *f, const ort_options *options, pool *p, settings *out) {
  const struct {
    const char *key;
    const char **to;
  } texts[] = {{"library", &out->library},     {"schedule", &out->schedule},
               {"transport", &out->transport}, {"plan", &out->plan},
               {"trace", &out->trace},         {"bind", &out->bind}};
  char *text = NULL;
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; ++i) {
    ORT_TRY(read_entry(f, options, texts[i].key, p, &text));
    *texts[i].to = text;
  }
  ORT_TRY(read_entry(f, options, "memory", p, &text));
  if (text != NULL && !parse_bytes(text, &out->memory_bytes)) {
    return ep_fail_text(f, ORT_INVALID_ARGUMENT,
                        "onnx-pipe: option memory=%s is no size such as 300MiB", text);
  }
  ORT_TRY(read_numbers(f, options, p, out));
  ORT_TRY(read_choice(f, options, p, "partition", "whole", "auto", &out->in_parts));
  return read_choice(f, options, p, "weights", "lent", "copy", &out->copies);
}
