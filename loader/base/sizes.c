/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes in messages. The command compiles this file too. */
#include "loader/base/sizes.h"

#include <inttypes.h>
#include <stdio.h>

const char *opi_size_text(char out[OPI_SIZE_ROOM], uint64_t n_bytes) {
  static const char *const units[] = {"KiB", "MiB", "GiB"};
  double size = (double)n_bytes / 1024;
  uint32_t unit = 0;
  for (; unit < 2 && size >= 1024; ++unit)
    size /= 1024;
  if (n_bytes < 1024)
    (void)snprintf(out, OPI_SIZE_ROOM, "%" PRIu64 " byte%s", n_bytes, n_bytes == 1 ? "" : "s");
  else
    (void)snprintf(out, OPI_SIZE_ROOM, "%" PRIu64 " bytes (%.1f %s)", n_bytes, size, units[unit]);
  return out;
}
