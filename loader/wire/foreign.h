/* SPDX-License-Identifier: Apache-2.0 */
/* Recognises files of other formats. */
#ifndef OPI_WIRE_FOREIGN_H
#define OPI_WIRE_FOREIGN_H

#include "loader/wire/scan.h"

/* The format of a file that begins with these bytes and is not an ONNX model, and what to do: "a
 * PyTorch file: torch.onnx.export writes ONNX". NULL: unknown. */
const char *opi_foreign_kind(const uint8_t *bytes, uint64_t n_bytes);

#endif /* OPI_WIRE_FOREIGN_H */
