/* SPDX-License-Identifier: Apache-2.0 */
/* How transports match messages: the rules and their names. */
#ifndef OPI_RULES_H
#define OPI_RULES_H

#include "loader/base/base.h"

/* How a transport matches messages.
 *   TAG       by number; sends never block the rank, consumers wait for their message
 *   STREAM    first in first out per (edge, direction, replicas)
 *   EDGE      first in first out per directed pair of ranks
 *   PAIR      one queue per pair of ranks for both directions: sends and receives in one order
 *   BLOCKING  send and receive rendezvous; both ranks block until then
 *   GROUPED   adjacent messages of a rank start together and are waited for together */
enum {
  OPI_RULE_TAG = 0,
  OPI_RULE_STREAM,
  OPI_RULE_EDGE,
  OPI_RULE_PAIR,
  OPI_RULE_BLOCKING,
  OPI_RULE_GROUPED,
  OPI_RULES
};
/* "tag", "stream" ...; "?" for any other number. */
const char *opi_rule_name(uint32_t rule);
/* False if `text` names no rule. */
bool opi_rule_parse(const char *text, uint32_t *out_rule);

#endif /* OPI_RULES_H */
