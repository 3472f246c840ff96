/* SPDX-License-Identifier: Apache-2.0 */
/* The highest of many scores, without sorting them. Inside runtime/generate. */
#ifndef OPI_GENERATE_SELECT_H
#define OPI_GENERATE_SELECT_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* The last member of a prefix of all ids, in order of falling score and then rising id. */
typedef struct opi_lowest {
  uint64_t key; /* opi_score_key of its score */
  uint32_t id;
} opi_lowest;

/* Keys have the order of the scores, which are no NaN; -0 is below 0. */
static inline uint64_t opi_score_key(double score) {
  uint64_t bits = 0;
  memcpy(&bits, &score, sizeof bits);
  return (bits >> 63) != 0 ? ~bits : bits | (UINT64_C(1) << 63);
}

static inline bool opi_is_selected(const opi_lowest *lowest, double score, uint32_t id) {
  const uint64_t key = opi_score_key(score);
  return key > lowest->key || (key == lowest->key && id <= lowest->id);
}

/* The shortest prefix whose weights have a sum of at least `target`; all, if no prefix has. n > 0.
 * weights [n]: >= 0; NULL: 1 each. room [n]: for the search. At most eight passes over scores [n],
 * whatever they are. */
opi_lowest opi_select(const double *scores, const double *weights, uint32_t n, double target,
                      uint32_t *room);

#endif /* OPI_GENERATE_SELECT_H */
