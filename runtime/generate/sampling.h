/* SPDX-License-Identifier: Apache-2.0 */
/* Sampling's keys for the other readers of JSON. Inside runtime/generate. */
#ifndef OPI_GENERATE_SAMPLING_H
#define OPI_GENERATE_SAMPLING_H

#include "loader/base/json.h"
#include "runtime/generate/rules.h"

enum { OPI_VALUE_ROOM = 128 };
/* A value as JSON text for a message, cut to fit. Returns `text`. */
const char *opi_sampling_value(char text[OPI_VALUE_ROOM], const json_t *value);
/* Sets one key from JSON; the caller checks the whole with opi_sampling_check afterwards. */
opipe_status opi_sampling_set(const char *name, json_t *value, opi_arena *arena,
                              opi_sampling *io_sampling, opipe_error *err);

#endif /* OPI_GENERATE_SAMPLING_H */
