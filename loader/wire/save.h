/* SPDX-License-Identifier: Apache-2.0 */
/* Inside loader/wire: a model file with new values. */
#ifndef OPI_WIRE_SAVE_H
#define OPI_WIRE_SAVE_H

#include <limits.h>

#include "loader/base/place.h"
#include "loader/wire/wire.h"

/* The file of data that a built model's content is written to, where it is not embedded. */
#define OPI_DATA_EMBEDDED UINT64_MAX
enum { OPI_DATA_NAME_MOST = 255 };
typedef struct opi_model_data {
  const char *name;  /* as the model spells it: beside it */
  uint64_t *offsets; /* [n] of each replacement; OPI_DATA_EMBEDDED: it is in the model */
} opi_model_data;

/* Writes the model's file with `list` [n]. Values in external files are not here: the file says
 * where they are as before; `data` (NULL: none) is where those of a built model, all of which are
 * in the list, will be. Errors: UNSUPPORTED names a parameter that has no place in the file. */
opipe_status opi_model_replace(const opi_model *model, const opi_replacement *list, uint32_t n,
                               const opi_model_data *data, opipe_write_fn write, void *ctx,
                               opipe_error *err);

/* Could it? The list's data is not looked at. Errors: as above. */
opipe_status opi_model_find_places(const opi_model *model, const opi_replacement *list, uint32_t n,
                                   opipe_error *err);

/* ---- save_files.c: files of one saving, made under other names ---- */

typedef struct opi_out_file {
  char path[PATH_MAX], temp[PATH_MAX];
  opi_file_place place; /* of `path` */
  int fd;
} opi_out_file;

typedef struct opi_out_files {
  const opipe_allocator *allocator;
  opi_out_file *list; /* [room] */
  uint32_t n, room;
} opi_out_files;

opipe_status opi_out_begin(opi_out_files *files, const char *folder, const char *name,
                           opi_out_file **out_file, opipe_error *err);
/* Flushed and closed; it still has its other name. */
opipe_status opi_out_end(opi_out_file *file, opipe_status status, opipe_error *err);
/* The model file, the last of them. */
opipe_status opi_out_model(opi_out_files *files, const opi_model *model,
                           const opi_replacement *list, uint32_t n, const char *path,
                           const opi_model_data *data, opipe_error *err);
/* Renames all, or removes all where something went wrong; frees the list. */
opipe_status opi_out_rename(opi_out_files *files, opipe_status status, opipe_error *err);

/* ---- built.c: models from a host's tables ---- */

#define OPI_BUILT_MOST ((uint64_t)INT32_MAX) /* bytes of a message: the format's limit */
/* Saves all content of a built model, that of `list` [n] in place of what it had; a model that
 * would have more than `most` bytes gets its content in PATH.data. */
opipe_status opi_built_save(const opi_model *model, const opi_replacement *list, uint32_t n,
                            uint64_t most, const char *path, opipe_error *err);
/* A built model's bytes with all content. */
opipe_status opi_built_write(const opi_model *model, opipe_write_fn write, void *ctx,
                             opipe_error *err);

/* Where the content of a replaced initializer lies; location NULL: in the model file. */
typedef struct opi_external_place {
  const char *location; /* inside the mapped file, [n_location] without NUL */
  uint64_t n_location, offset_bytes;
} opi_external_place;
/* out_places [n] */
opipe_status opi_model_externals(const opi_model *model, const opi_replacement *list, uint32_t n,
                                 opi_external_place *out_places, opipe_error *err);

#endif /* OPI_WIRE_SAVE_H */
