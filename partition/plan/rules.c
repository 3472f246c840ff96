/* SPDX-License-Identifier: Apache-2.0 */
/* Names of the matching rules. */
#include "partition/plan/rules.h"

#include <string.h>

static const char *const rule_names[OPI_RULES] = {"tag",  "stream",   "edge",
                                                  "pair", "blocking", "grouped"};

const char *opi_rule_name(uint32_t rule) {
  return rule < OPI_RULES ? rule_names[rule] : "?";
}

bool opi_rule_parse(const char *text, uint32_t *out_rule) {
  for (uint32_t r = 0; r < OPI_RULES; ++r) {
    if (strcmp(text, rule_names[r]) == 0) {
      *out_rule = r;
      return true;
    }
  }
  return false;
}
