/* SPDX-License-Identifier: Apache-2.0 */
/* Inside loader/wire: a model file with new values. */
#ifndef OPI_WIRE_SAVE_H
#define OPI_WIRE_SAVE_H

#include "loader/wire/wire.h"

/* Writes the model's file with `list` [n]. Values in external files are not here: the file says
 * where they are as before. Errors: UNSUPPORTED names a parameter that has no place in the file. */
opipe_status opi_model_replace(const opi_model *model, const opi_replacement *list, uint32_t n,
                               opipe_write_fn write, void *ctx, opipe_error *err);

/* Where the content of a replaced initializer lies; location NULL: in the model file. */
typedef struct opi_external_place {
  const char *location; /* inside the mapped file, [n_location] without NUL */
  uint64_t n_location, offset_bytes;
} opi_external_place;
/* out_places [n] */
opipe_status opi_model_externals(const opi_model *model, const opi_replacement *list, uint32_t n,
                                 opi_external_place *out_places, opipe_error *err);

#endif /* OPI_WIRE_SAVE_H */
