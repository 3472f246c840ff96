/* SPDX-License-Identifier: Apache-2.0 */
/* The newest supported versions of the file format and of each domain's operators. Newer files are
 * refused with both numbers. Raise a number once all changes up to it are in the rows of
 * loader/ops; tests/loader/ops/test_schemas.c names every row that is behind.
 */
#ifndef OPI_OPSETS_H
#define OPI_OPSETS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
  OPI_OLDEST_IR = 3,
  OPI_NEWEST_IR = 14,
  OPI_NEWEST_ONNX = 28,    /* ai.onnx */
  OPI_NEWEST_ML = 5,       /* ai.onnx.ml */
  OPI_NEWEST_TRAINING = 1, /* ai.onnx.training, ai.onnx.preview.training */
  OPI_NEWEST_PREVIEW = 1,  /* ai.onnx.preview */
  OPI_NEWEST_MS = 1        /* com.microsoft */
};

/* Newest supported opset of a domain ("": ai.onnx); 0: unknown domain. */
static inline uint32_t opi_newest_opset(const char *domain) {
  static const struct {
    const char *domain;
    uint32_t newest;
  } known[] = {{"", OPI_NEWEST_ONNX},
               {"ai.onnx.ml", OPI_NEWEST_ML},
               {"ai.onnx.training", OPI_NEWEST_TRAINING},
               {"ai.onnx.preview.training", OPI_NEWEST_TRAINING},
               {"ai.onnx.preview", OPI_NEWEST_PREVIEW},
               {"com.microsoft", OPI_NEWEST_MS}};
  for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); ++i) {
    if (strcmp(known[i].domain, domain) == 0)
      return known[i].newest;
  }
  return 0;
}

#endif /* OPI_OPSETS_H */
