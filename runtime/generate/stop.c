/* SPDX-License-Identifier: Apache-2.0 */
/* Where a turn ends. Only the ids so far are looked at, so slices and drafts do not matter. */
#include <string.h>

#include "runtime/generate/sample.h"

/* Are the last n of ids [n_ids] the first n of the stop? */
static bool ends_with(const uint32_t *ids, uint32_t n_ids, const opi_stop *stop, uint32_t n) {
  return memcmp(ids + (n_ids - n), stop->ids, n * sizeof *ids) == 0;
}

uint32_t opi_turn_end(const opi_sampling *sampling, const uint32_t *ids, uint32_t n_ids,
                      uint32_t n_prompt, uint32_t context, uint32_t *out_n_stop) {
  const uint32_t n_answer = n_ids - n_prompt;
  uint32_t n_stop = 0;
  for (uint32_t i = 0; n_answer > sampling->min_tokens && i < sampling->n_stops; ++i) {
    const opi_stop *stop = &sampling->stops[i];
    if (stop->n <= n_answer && stop->n > n_stop && ends_with(ids, n_ids, stop, stop->n))
      n_stop = stop->n;
  }
  *out_n_stop = n_stop;
  if (n_stop > 0)
    return OPI_TURN_STOP;
  if (n_answer >= sampling->max_tokens)
    return OPI_TURN_TOKENS;
  return n_ids >= context ? OPI_TURN_CONTEXT : OPI_TURN_GOES_ON;
}

uint32_t opi_turn_held(const opi_sampling *sampling, const uint32_t *ids, uint32_t n_ids,
                       uint32_t n_prompt) {
  const uint32_t n_answer = n_ids - n_prompt;
  uint32_t held = 0;
  for (uint32_t i = 0; i < sampling->n_stops; ++i) {
    const opi_stop *stop = &sampling->stops[i];
    const uint32_t most = stop->n - 1 < n_answer ? stop->n - 1 : n_answer;
    for (uint32_t n = most; n > held; --n) {
      const bool in_time = n_answer - n + stop->n > sampling->min_tokens;
      if (in_time && ends_with(ids, n_ids, stop, n))
        held = n;
    }
  }
  return held;
}
