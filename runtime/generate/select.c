/* SPDX-License-Identifier: Apache-2.0 */
/* A radix search: the byte of the key that the lowest member has is found from the weights of all
 * bins above it, from the highest byte down. Each bin's sum is taken in order of ids. */
#include "runtime/generate/select.h"

enum { BITS = 8, BINS = 1 << BITS };

typedef struct byte_bins {
  double sums[BINS];
  uint32_t counts[BINS];
} byte_bins;

static double weight_of(const double *weights, uint32_t id) {
  return weights == NULL ? 1 : weights[id];
}

/* Does the key begin with `prefix`, which ends above bit `end`? */
static bool begins(uint64_t key, uint64_t prefix, uint32_t end) {
  return end == 64 || key >> end == prefix;
}

static void fill(byte_bins *out, const double *scores, const double *weights, uint32_t n,
                 uint64_t prefix, uint32_t end) {
  memset(out, 0, sizeof *out);
  for (uint32_t i = 0; i < n; ++i) {
    const uint64_t key = opi_score_key(scores[i]);
    if (begins(key, prefix, end)) {
      const uint32_t bin = (uint32_t)(key >> (end - BITS)) & (BINS - 1);
      out->sums[bin] += weight_of(weights, i);
      ++out->counts[bin];
    }
  }
}

/* The bin in which the sum reaches `target`; the lowest with a member, if it never does. Adds the
 * bins above to *io_before. */
static uint32_t find_bin(const byte_bins *l, double target, double *io_before) {
  uint32_t found = 0;
  double before = *io_before;
  for (uint32_t b = BINS; b > 0; --b) {
    if (l->counts[b - 1] == 0)
      continue;
    found = b - 1;
    *io_before = before;
    if (before + l->sums[found] >= target)
      break;
    before += l->sums[found];
  }
  return found;
}

opi_lowest opi_select(const double *scores, const double *weights, uint32_t n, double target) {
  opi_lowest lowest = {0, 0};
  double before = 0;
  uint64_t prefix = 0;
  uint32_t end = 64, left = n;
  while (end > 0 && left > 1) {
    byte_bins l;
    fill(&l, scores, weights, n, prefix, end);
    const uint32_t bin = find_bin(&l, target, &before);
    prefix = prefix << BITS | bin;
    left = l.counts[bin];
    end -= BITS;
  }
  for (uint32_t i = 0; i < n; ++i) {
    const uint64_t key = opi_score_key(scores[i]);
    if (begins(key, prefix, end)) {
      lowest = (opi_lowest){key, i};
      before += weight_of(weights, i);
      if (before >= target)
        break;
    }
  }
  return lowest;
}
