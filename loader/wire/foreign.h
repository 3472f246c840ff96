/* SPDX-License-Identifier: Apache-2.0 */
/* Files of other formats in a model's place. */
#ifndef OPI_WIRE_FOREIGN_H
#define OPI_WIRE_FOREIGN_H

#include "loader/wire/scan.h"

/* "a PyTorch file: torch.onnx.export writes ONNX": the format of a file that begins with these
 * bytes and is no ONNX model, behind a colon what to do. NULL: none that is known. */
const char *opi_foreign_kind(const uint8_t *bytes, uint64_t n_bytes);

#endif /* OPI_WIRE_FOREIGN_H */
