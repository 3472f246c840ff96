/* SPDX-License-Identifier: Apache-2.0 */
/* Readers of one option's value: counts, sizes, numbers, choices, lists. */
#include "values.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

bool cli_parse_u64(const char *text, uint64_t max, uint64_t *out) {
  char *end = NULL;
  if (text[0] < '0' || text[0] > '9')
    return false;
  errno = 0;
  const unsigned long long value = strtoull(text, &end, 10);
  if (errno != 0 || *end != '\0' || value > max)
    return false;
  *out = value;
  return true;
}

int cli_take_count(const char *name, const char *text, uint64_t min, uint64_t max, uint32_t *out) {
  uint64_t value = 0;
  if (!cli_parse_u64(text, max, &value) || value < min) {
    return cli_usage("--%s %s: an integer from %llu to %llu is needed", name, text,
                     (unsigned long long)min, (unsigned long long)max);
  }
  *out = (uint32_t)value;
  return CLI_DONE;
}

static bool parse_size(const char *text, uint64_t *out) {
  static const struct {
    const char *name;
    double scale;
  } units[] = {{"", 1},          {"B", 1},    {"k", 1024},        {"K", 1024},
               {"KiB", 1024},    {"kB", 1e3}, {"KB", 1e3},        {"M", 1048576},
               {"MiB", 1048576}, {"MB", 1e6}, {"G", 1073741824.}, {"GiB", 1073741824.},
               {"GB", 1e9}};
  char *end = NULL;
  if (text[0] < '0' || text[0] > '9')
    return false;
  const double value = strtod(text, &end);
  for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); ++i) {
    if (strcmp(end, units[i].name) != 0)
      continue;
    if (!(value * units[i].scale < 9e18))
      return false;
    *out = (uint64_t)(value * units[i].scale);
    return true;
  }
  return false;
}

int cli_take_size(const char *name, const char *text, uint64_t *out) {
  return parse_size(text, out) ? CLI_DONE
                               : cli_usage("--%s %s: a size such as 300MiB is needed", name, text);
}

int cli_take_memory(const char *name, const char *text, uint64_t *out) {
  const int status = cli_take_size(name, text, out);
  return status == CLI_DONE && *out == 0
             ? cli_usage("--%s %s: a size above 0 is needed", name, text)
             : status;
}

int cli_take_item(const char *name, const char *text, cli_list *list) {
  if (list->n == CLI_LIST_MOST)
    return cli_usage("--%s is given more than %d times", name, CLI_LIST_MOST);
  list->items[list->n++] = text;
  return CLI_DONE;
}

int cli_take_number(const char *name, const char *text, uint64_t *out) {
  return cli_parse_u64(text, UINT64_MAX / 2, out) && *out != 0
             ? CLI_DONE
             : cli_usage("--%s %s: an integer above 0 is needed", name, text);
}

int cli_take_double(const char *name, const char *text, double *out) {
  char *end = NULL;
  *out = strtod(text, &end);
  if (end == text || *end != '\0' || !(*out >= 0))
    return cli_usage("--%s %s: a number >= 0 is needed", name, text);
  return CLI_DONE;
}

int cli_take_choice(const char *name, const char *text, const char *choices, uint32_t *out) {
  uint32_t index = 0;
  char meant[OPI_NEAREST_ROOM];
  for (const char *at = choices;; ++index) {
    const size_t n = strcspn(at, "|");
    if (strlen(text) == n && memcmp(at, text, n) == 0) {
      *out = index;
      return CLI_DONE;
    }
    if (at[n] == '\0')
      break;
    at += n + 1;
  }
  return cli_usage("--%s %s: one of %s is needed%s", name, text, choices,
                   opi_nearest_of(text, choices, "|", meant, sizeof(meant)));
}
