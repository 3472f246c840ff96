/* SPDX-License-Identifier: Apache-2.0 */
/* Covering sets: few ways, in which every pair (or triple) of levels occurs that can. */
#ifndef TESTS_ABI_MIX_COVER_H
#define TESTS_ABI_MIX_COVER_H

#include "tests/support/support.h"

/* Factors that vary; the last is the form of the file. */
enum {
  MIX_STAGES,
  MIX_GROUPS,
  MIX_ROWS,
  MIX_DRIVER,
  MIX_TRANSPORT,
  MIX_PAGE,
  MIX_COPIES,
  MIX_WIDTH,
  MIX_FACTORS,
  MIX_FORM = MIX_FACTORS,
  MIX_ALL_FACTORS
};
static const uint32_t mix_levels[MIX_FACTORS] = {4, 4, 4, 2, 4, 2, 2, 2};
enum { MIX_SHM = 3 /* of MIX_TRANSPORT: two processes */ };
enum { MIX_LEVELS_MOST = 24, MIX_NAMES = MIX_ALL_FACTORS * MIX_LEVELS_MOST };

/* An index of each factor's level. */
typedef struct mix_way {
  uint32_t at[MIX_ALL_FACTORS];
} mix_way;

typedef struct mix_cover {
  bool threes;      /* triples, and forms vary like the rest; else pairs */
  uint32_t n_forms; /* at most MIX_LEVELS_MOST */
  bool (*may)(const void *ctx, const mix_way *way); /* is there such a way? */
  const void *ctx;
  opi_test_random random;
  uint8_t *seen; /* [MIX_NAMES, MIX_NAMES (, MIX_NAMES)] */
} mix_cover;

static inline uint32_t mix_levels_of(const mix_cover *c, uint32_t factor) {
  return factor == MIX_FORM ? c->n_forms : mix_levels[factor];
}

static inline uint8_t *mix_seen(const mix_cover *c, const mix_way *w, uint32_t x, uint32_t y,
                                uint32_t z) {
  const size_t n = MIX_NAMES;
  size_t at = (x * MIX_LEVELS_MOST + w->at[x]) * n + (y * MIX_LEVELS_MOST + w->at[y]);
  return &c->seen[c->threes ? at * n + (z * MIX_LEVELS_MOST + w->at[z]) : at];
}

/* Visits the tuples of a way: counts those that are new, and marks them. */
static inline uint32_t mix_count(const mix_cover *c, const mix_way *w, bool mark) {
  const uint32_t n = c->threes ? MIX_ALL_FACTORS : MIX_FACTORS;
  uint32_t n_new = 0;
  for (uint32_t x = 0; x < n; ++x) {
    for (uint32_t y = x + 1; y < n; ++y) {
      for (uint32_t z = c->threes ? y + 1 : y; z < (c->threes ? n : y + 1); ++z) {
        uint8_t *seen = mix_seen(c, w, x, y, z);
        n_new += *seen == 0;
        *seen = mark ? 1 : *seen;
      }
    }
  }
  return n_new;
}

/* The best of some ways with the levels of `*io` at three factors (z == y: at two), of form `form`
 * unless it varies. How many tuples of it are new; 0: there is no such way. */
static inline uint32_t mix_complete(mix_cover *c, uint32_t x, uint32_t y, uint32_t z, uint32_t form,
                                    mix_way *io) {
  enum { TRIES = 40 };
  uint32_t most = 0;
  mix_way best = *io;
  for (uint32_t t = 0; t < TRIES; ++t) {
    mix_way w = *io;
    for (uint32_t f = 0; f < MIX_ALL_FACTORS; ++f) {
      if (f != x && f != y && f != z)
        w.at[f] = (uint32_t)(opi_test_next(&c->random) % mix_levels_of(c, f));
    }
    if (!c->threes)
      w.at[MIX_FORM] = form;
    const uint32_t n = c->may(c->ctx, &w) ? mix_count(c, &w, false) : 0;
    if (n > most) {
      most = n;
      best = w;
    }
  }
  *io = best;
  return most;
}

/* The levels of factors x to z that follow those of the way; false: these were the last. */
static inline bool mix_step(const mix_cover *c, uint32_t x, uint32_t y, uint32_t z, mix_way *io) {
  const uint32_t factors[] = {z, y, x};
  for (uint32_t i = z == y ? 1 : 0; i < 3; ++i) {
    if (++io->at[factors[i]] < mix_levels_of(c, factors[i]))
      return true;
    io->at[factors[i]] = 0;
  }
  return false;
}

/* A way with a tuple that has not been there, of all tuples of factors x to z. */
static inline bool mix_find(mix_cover *c, uint32_t x, uint32_t y, uint32_t z, uint32_t form,
                            mix_way *out) {
  mix_way w = {{0}};
  do {
    mix_way whole = w;
    if (*mix_seen(c, &w, x, y, z) != 0)
      continue;
    if (mix_complete(c, x, y, z, form, &whole) > 0) {
      *out = whole;
      return true;
    }
    if (c->threes)
      *mix_seen(c, &w, x, y, z) = 2; /* there is none */
  } while (mix_step(c, x, y, z, &w));
  return false;
}

/* The next way; false: every tuple has been there (of `form`, unless forms vary). */
static inline bool mix_next(mix_cover *c, uint32_t form, mix_way *out) {
  const uint32_t n = c->threes ? MIX_ALL_FACTORS : MIX_FACTORS;
  for (uint32_t x = 0; x < n; ++x) {
    for (uint32_t y = x + 1; y < n; ++y) {
      for (uint32_t z = c->threes ? y + 1 : y; z < (c->threes ? n : y + 1); ++z) {
        if (mix_find(c, x, y, z, form, out)) {
          (void)mix_count(c, out, true);
          return true;
        }
      }
    }
  }
  return false;
}

#endif /* TESTS_ABI_MIX_COVER_H */
