/* SPDX-License-Identifier: Apache-2.0 */
/* How transports match messages, and the names of these rules. */
#ifndef OPI_RULES_H
#define OPI_RULES_H

#include "loader/base/base.h"

/* How a transport matches messages.
 *   TAG       by number; a send never stops the rank, a consumer waits for its message
 *   STREAM    first in first out per (edge, direction, replicas)
 *   EDGE      first in first out per directed pair of ranks
 *   PAIR      one queue per pair of ranks, both directions: sends and receives in one order
 *   BLOCKING  send and receive meet; both ranks stand still until then
 *   GROUPED   neighbouring messages of a rank start together and are waited for together */
enum {
  OPI_RULE_TAG = 0,
  OPI_RULE_STREAM,
  OPI_RULE_EDGE,
  OPI_RULE_PAIR,
  OPI_RULE_BLOCKING,
  OPI_RULE_GROUPED,
  OPI_RULES
};
/* "tag", "stream" ...; "?": it is none. */
const char *opi_rule_name(uint32_t rule);
/* False: the text names no rule. */
bool opi_rule_parse(const char *text, uint32_t *out_rule);

#endif /* OPI_RULES_H */
