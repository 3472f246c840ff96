/* SPDX-License-Identifier: Apache-2.0 */
/* Counts of transport-strict since it was loaded; the plugin's get_interface gives them under
 * STRICT_COUNTS_ID, whatever `self` is. */
#ifndef TESTS_STRICT_COUNTS_H
#define TESTS_STRICT_COUNTS_H

#include <stdatomic.h>
#include <stdint.h>

#define STRICT_COUNTS_ID "strict.counts/0"

typedef struct strict_counts {
  _Atomic uint64_t messages, bytes; /* that came through pipes, of streams */
  _Atomic uint64_t sums;            /* rounds of groups, each member's */
  _Atomic uint64_t registered;      /* buffers */
  _Atomic uint64_t refused;         /* calls that broke a rule */
} strict_counts;

#endif /* TESTS_STRICT_COUNTS_H */
