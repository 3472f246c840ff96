/* SPDX-License-Identifier: Apache-2.0 */
/* Saving a model file with new values. Private to loader/wire. */
#ifndef OPI_WIRE_SAVE_H
#define OPI_WIRE_SAVE_H

#include <limits.h>

#include "loader/base/place.h"
#include "loader/wire/wire.h"

/* The data file of a built model whose content is not embedded. */
#define OPI_DATA_EMBEDDED UINT64_MAX
enum { OPI_DATA_NAME_MOST = 255 };
typedef struct opi_model_data {
  const char *name;  /* as the model spells it, relative to the model */
  uint64_t *offsets; /* [n] of each replacement; OPI_DATA_EMBEDDED: in the model itself */
} opi_model_data;

/* Writes the model's file with `list` [n]. Values in external files are not written; the file
 * refers to them as before. `data` (NULL: none) says where those of a built model, which must all
 * be in the list, will be. Errors: UNSUPPORTED names a parameter that has no place in the file. */
opipe_status opi_model_replace(const opi_model *model, const opi_replacement *list, uint32_t n,
                               const opi_model_data *data, opipe_write_fn write, void *ctx,
                               opipe_error *err);

/* Checks that it could be written; does not read the list's data. Errors: as above. */
opipe_status opi_model_find_places(const opi_model *model, const opi_replacement *list, uint32_t n,
                                   opipe_error *err);

/* Writes a value's bytes to a sink, whose status it returns: from memory, or as they come. */
opipe_status opi_replacement_write(const opi_replacement *value, opipe_write_fn write, void *ctx,
                                   opipe_error *err);

/* ---- save_files.c: the files of one save, written under temporary names ---- */

typedef struct opi_out_file {
  char path[PATH_MAX], temp[PATH_MAX];
  opi_file_place place; /* where `path` really is */
  int fd;
} opi_out_file;

typedef struct opi_out_files {
  const opipe_allocator *allocator;
  opi_out_file *list; /* [room] */
  uint32_t n, room;
} opi_out_files;

opipe_status opi_out_begin(opi_out_files *files, const char *folder, const char *name,
                           opi_out_file **out_file, opipe_error *err);
/* Flushes and closes the file, still under its temporary name. */
opipe_status opi_out_end(opi_out_file *file, opipe_status status, opipe_error *err);
opipe_status opi_out_value(int fd, const opi_replacement *value, opipe_error *err);
/* Writes the model file, which comes last. */
opipe_status opi_out_model(opi_out_files *files, const opi_model *model,
                           const opi_replacement *list, uint32_t n, const char *path,
                           const opi_model_data *data, opipe_error *err);
/* Renames all files if `status` is OK, else removes them; frees the list. */
opipe_status opi_out_rename(opi_out_files *files, opipe_status status, opipe_error *err);

/* ---- built.c: models from a host's tables ---- */

#define OPI_BUILT_MOST ((uint64_t)INT32_MAX) /* bytes of a message: the limit of the format */
/* Saves all content of a built model, with the values of `list` [n] replacing its own. If the model
 * would exceed `most` bytes, the content goes to PATH.data. */
opipe_status opi_built_save(const opi_model *model, const opi_replacement *list, uint32_t n,
                            uint64_t most, const char *path, opipe_error *err);
/* Writes a built model with all its content. */
opipe_status opi_built_write(const opi_model *model, opipe_write_fn write, void *ctx,
                             opipe_error *err);

/* Place of a replaced initializer's content; location NULL: in the model file. */
typedef struct opi_external_place {
  const char *location; /* in the mapped file, [n_location], not terminated */
  uint64_t n_location, offset_bytes;
} opi_external_place;
/* out_places [n] */
opipe_status opi_model_externals(const opi_model *model, const opi_replacement *list, uint32_t n,
                                 opi_external_place *out_places, opipe_error *err);

#endif /* OPI_WIRE_SAVE_H */
