/* SPDX-License-Identifier: Apache-2.0 */
/* A radix search: the bits of the key that the lowest member has are found from the weights of all
 * bins above it, from the highest bits down. Each bin's sum is taken in order of ids. Two levels
 * mostly leave few ids, which are listed then. */
#include "runtime/generate/select.h"

enum { BITS = 11, BINS = 1 << BITS, FEW = 4 };

typedef struct key_bins {
  double sums[BINS];
  uint32_t counts[BINS];
} key_bins;

/* Ids whose keys begin with `prefix`, which ends above bit `end`. */
typedef struct key_search {
  const double *scores, *weights;
  uint64_t prefix;
  uint32_t end;
  uint32_t n;          /* ids to look at */
  const uint32_t *ids; /* [n]; NULL: all below n */
} key_search;

static uint32_t id_at(const key_search *s, uint32_t i) {
  return s->ids == NULL ? i : s->ids[i];
}

static double weight_of(const key_search *s, uint32_t id) {
  return s->weights == NULL ? 1 : s->weights[id];
}

static bool begins(const key_search *s, uint64_t key) {
  return s->end == 64 || key >> s->end == s->prefix;
}

static void fill(key_bins *out, const key_search *s, uint32_t bits) {
  const uint32_t shift = s->end - bits, mask = (UINT32_C(1) << bits) - 1;
  memset(out, 0, sizeof *out);
  for (uint32_t i = 0; i < s->n; ++i) {
    const uint32_t id = id_at(s, i);
    const uint64_t key = opi_score_key(s->scores[id]);
    if (begins(s, key)) {
      const uint32_t bin = (uint32_t)(key >> shift) & mask;
      out->sums[bin] += weight_of(s, id);
      ++out->counts[bin];
    }
  }
}

/* The bin in which the sum reaches `target`; the lowest with a member, if it never does. Adds the
 * bins above to *io_before. */
static uint32_t find_bin(const key_bins *bins, double target, double *io_before) {
  uint32_t found = 0;
  double before = *io_before;
  for (uint32_t b = BINS; b > 0; --b) {
    if (bins->counts[b - 1] == 0)
      continue;
    found = b - 1;
    *io_before = before;
    if (before + bins->sums[found] >= target)
      break;
    before += bins->sums[found];
  }
  return found;
}

/* Lists the ids that are left, in order. */
static void list(key_search *s, uint32_t *room) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < s->n; ++i) {
    if (begins(s, opi_score_key(s->scores[i])))
      room[n++] = i;
  }
  s->ids = room;
  s->n = n;
}

opi_lowest opi_select(const double *scores, const double *weights, uint32_t n, double target,
                      uint32_t *room) {
  key_search s = {.scores = scores, .weights = weights, .end = 64, .n = n};
  opi_lowest lowest = {0, 0};
  double before = 0;
  for (uint32_t left = n; s.end > 0 && left > 1;) {
    const uint32_t bits = s.end < BITS ? s.end : BITS;
    key_bins bins;
    fill(&bins, &s, bits);
    const uint32_t bin = find_bin(&bins, target, &before);
    s.prefix = s.prefix << bits | bin;
    s.end -= bits;
    left = bins.counts[bin];
    if (s.ids == NULL && left <= n / FEW)
      list(&s, room);
  }
  for (uint32_t i = 0; i < s.n; ++i) {
    const uint32_t id = id_at(&s, i);
    const uint64_t key = opi_score_key(scores[id]);
    if (begins(&s, key)) {
      lowest = (opi_lowest){key, id};
      before += weight_of(&s, id);
      if (before >= target)
        break;
    }
  }
  return lowest;
}
