/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the library's warnings on stderr, each text once, even if several sessions of a command
 * report it (the pipeline, its reference, the uncut model). */
#include <stdatomic.h>

#include "cli.h"

enum { TEXTS = 256 }; /* remembered texts; any further ones are printed every time */

static uint64_t hash_of(const char *text) { /* FNV-1a, never 0 */
  uint64_t h = UINT64_C(0xcbf29ce484222325);
  for (; *text != '\0'; ++text)
    h = (h ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
  return h == 0 ? 1 : h;
}

/* Reserves a place for it; thread-safe. */
static bool is_first(const char *text) {
  static atomic_uint_least64_t said[TEXTS]; /* hashes; 0: free */
  const uint64_t hash = hash_of(text);
  for (uint32_t i = 0; i < TEXTS; ++i) {
    uint64_t found = 0;
    if (atomic_compare_exchange_strong(&said[i], &found, hash))
      return true;
    if (found == hash)
      return false;
  }
  return true;
}

void cli_warn(void *ctx, uint32_t level, const char *file, uint32_t line, const char *msg) {
  (void)ctx;
  (void)file;
  (void)line;
  if (level == OPIPE_LOG_WARN && !is_first(msg))
    return;
  cli_progress_end();
  (void)fprintf(stderr, "onnx-pipe: %s: %s\n", level == OPIPE_LOG_WARN ? "warning" : "error", msg);
}
