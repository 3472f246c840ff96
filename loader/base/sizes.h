/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes in messages: exact, so that different sizes never read alike, and in MiB as in tables. */
#ifndef OPI_BASE_SIZES_H
#define OPI_BASE_SIZES_H

#include <stdint.h>

enum { OPI_SIZE_ROOM = 48 };
/* "1 byte", "700 bytes", "1481728 bytes (1.4 MiB)": KiB, MiB or GiB from 1 KiB on. Returns out. */
const char *opi_size_text(char out[OPI_SIZE_ROOM], uint64_t n_bytes);
/* The same as an argument of a message; the text lives as long as the enclosing block. */
#define OPI_SIZE(n_bytes) opi_size_text((char[OPI_SIZE_ROOM]){0}, (uint64_t)(n_bytes))

#endif /* OPI_BASE_SIZES_H */
