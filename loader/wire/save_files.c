/* SPDX-License-Identifier: Apache-2.0 */
/* Saving a model: the model file and, beside it, copies of its external files with new values.
 *
 * Every file is written under a temporary name and flushed. When all are complete they are renamed,
 * the model file last; a failure leaves nothing behind. The source's own external files are never
 * written to, nor those of other models in the folder: only files of the model being replaced are
 * overwritten. A model built from a host's tables has a data file of its own, if any: built.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loader/graph/behind.h"
#include "loader/wire/save.h"

opipe_status opi_out_begin(opi_out_files *files, const char *folder, const char *name,
                           opi_out_file **out_file, opipe_error *err) {
  const char *slash = folder[0] == '\0' ? "" : "/";
  if (files->n == files->room)
    return opi_fail(err, OPIPE_E_INTERNAL, "more than %u files of one model", files->room);
  opi_out_file *f = &files->list[files->n];
  if (snprintf(f->path, sizeof f->path, "%s%s%s", folder, slash, name) >= PATH_MAX - 32)
    return opi_fail(err, OPIPE_E_INVALID, "the path of '%.80s' is longer than %d", name, PATH_MAX);
  OPI_TRY(opi_file_place_find(AT_FDCWD, f->path, &f->place, err));
  (void)snprintf(f->temp, sizeof f->temp, "%.*s.%d.new", PATH_MAX - 32, f->place.path,
                 (int)getpid());
  (void)unlink(f->temp);
  f->fd = open(f->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (f->fd < 0)
    return opi_fail_errno(err, errno, "making %s", f->temp);
  ++files->n;
  *out_file = f;
  return OPIPE_OK;
}

opipe_status opi_out_end(opi_out_file *f, opipe_status status, opipe_error *err) {
  if (status < 0)
    (void)opi_error_prefix(err, "%s: ", f->path);
  if (status == OPIPE_OK)
    status = opi_file_place_keep_mode(&f->place, f->fd, err);
  if (status == OPIPE_OK && fsync(f->fd) != 0)
    status = opi_fail_errno(err, errno, "flushing %s", f->temp);
  if (close(f->fd) != 0 && status == OPIPE_OK)
    status = opi_fail_errno(err, errno, "closing %s", f->temp);
  f->fd = -1;
  return status;
}

opipe_status opi_out_rename(opi_out_files *files, opipe_status status, opipe_error *err) {
  for (uint32_t i = 0; i < files->n; ++i) {
    const opi_out_file *f = &files->list[i];
    if (status == OPIPE_OK && rename(f->temp, f->place.path) != 0)
      status = opi_fail_errno(err, errno, "renaming %s to %s", f->temp, f->path);
    if (status < 0)
      (void)unlink(f->temp);
  }
  opi_free(files->allocator, files->list, files->room * sizeof *files->list);
  return status;
}

/* ---- external files ---- */

static bool is_at(const opi_mapping *m, const opi_external_place *place) {
  return place->location != NULL && strlen(m->location) == place->n_location &&
         memcmp(m->location, place->location, place->n_location) == 0;
}

/* Folders of a location that has some. */
static opipe_status make_folders(const char *folder, const char *location, opipe_error *err) {
  char path[PATH_MAX];
  for (const char *slash = strchr(location, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
    if (snprintf(path, sizeof path, "%s%s%.*s", folder, folder[0] == '\0' ? "" : "/",
                 (int)(slash - location), location) >= PATH_MAX) {
      return opi_fail(err, OPIPE_E_INVALID, "the path of '%.80s' is longer than %d", location,
                      PATH_MAX);
    }
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
      return opi_fail_errno(err, errno, "making the folder %s", path);
  }
  return OPIPE_OK;
}

/* A file as a sink for bytes. */
typedef struct sink {
  int fd;
  opipe_error err; /* of the file; a sink has but a status to answer */
} sink;

static opipe_status to_file(void *ctx, const void *data, size_t n_bytes) {
  sink *s = ctx;
  return opi_write_all(s->fd, data, n_bytes, &s->err);
}

opipe_status opi_out_value(int fd, const opi_replacement *r, opipe_error *err) {
  sink out = {.fd = fd, .err = OPIPE_ERROR_INIT};
  const opipe_status status = opi_replacement_write(r, to_file, &out, err);
  if (status < 0 && out.err.status < 0)
    *err = out.err;
  return status;
}

static opipe_status patch(int fd, const opi_mapping *m, const opi_replacement *r,
                          const opi_external_place *place, opipe_error *err) {
  if (place->offset_bytes > m->n_bytes || r->n_bytes > m->n_bytes - place->offset_bytes) {
    return opi_fail(err, OPIPE_E_INVALID, "tensor '%s': %llu bytes at %llu, %s has %llu", r->name,
                    (unsigned long long)r->n_bytes, (unsigned long long)place->offset_bytes,
                    m->location, (unsigned long long)m->n_bytes);
  }
  if (lseek(fd, (off_t)place->offset_bytes, SEEK_SET) < 0)
    return opi_fail_errno(err, errno, "seeking in a copy of %s", m->location);
  return opi_out_value(fd, r, err);
}

static opipe_status write_external(opi_out_files *files, const opi_mapping *m, const char *folder,
                                   const opi_replacement *list, const opi_external_place *places,
                                   uint32_t n, opipe_error *err) {
  opi_out_file *f = NULL;
  OPI_TRY(make_folders(folder, m->location, err));
  OPI_TRY(opi_out_begin(files, folder, m->location, &f, err));
  opipe_status status = opi_write_all(f->fd, m->bytes, m->n_bytes, err);
  for (uint32_t i = 0; i < n && status == OPIPE_OK; ++i) {
    if (is_at(m, &places[i]))
      status = patch(f->fd, m, &list[i], &places[i], err);
  }
  return opi_out_end(f, status, err);
}

/* Do both folders hold the same file of that name? */
static bool same_folder(const opi_model *model, const char *folder) {
  char from[PATH_MAX];
  struct stat a, b;
  if (model->path == NULL || snprintf(from, sizeof from, "%s", model->path) >= PATH_MAX)
    return false;
  char *slash = strrchr(from, '/');
  if (slash == NULL)
    (void)snprintf(from, sizeof from, ".");
  else
    slash[slash == from ? 1 : 0] = '\0';
  return stat(from, &a) == 0 && stat(folder[0] == '\0' ? "." : folder, &b) == 0 &&
         a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static opipe_status place_in(char path[PATH_MAX], const char *folder, const char *location,
                             opipe_error *err) {
  const char *slash = folder[0] == '\0' ? "" : "/";
  if (snprintf(path, PATH_MAX, "%s%s%s", folder, slash, location) < PATH_MAX)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID, "the path of '%.80s' is longer than %d", location,
                  PATH_MAX);
}

/* Does a model have its content in that file? */
static bool has_content_in(const opi_model *model, const char *folder, const struct stat *file) {
  char path[PATH_MAX];
  struct stat st;
  for (const opi_mapping *m = model->mappings; m != NULL; m = m->next) {
    opipe_error ignored = OPIPE_ERROR_INIT;
    if (m->location[0] != '\0' && place_in(path, folder, m->location, &ignored) == OPIPE_OK &&
        stat(path, &st) == 0 && st.st_dev == file->st_dev && st.st_ino == file->st_ino)
      return true;
  }
  return false;
}

/* A file at the place of an external one is written over only if it is the replaced model's. */
static opipe_status check_place(const opi_model *model, const opi_mapping *m, const char *folder,
                                const char *target, opipe_error *err) {
  char path[PATH_MAX];
  struct stat st;
  opi_model *replaced = NULL;
  opipe_error ignored = OPIPE_ERROR_INIT; /* an unloadable model has no files */
  OPI_TRY(place_in(path, folder, m->location, err));
  if (strcmp(path, target) == 0) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "the model's weights go to %s: the model itself needs another name", path);
  }
  OPI_TRY(opi_model_check_target(model, path, true, err));
  if (stat(path, &st) != 0)
    return OPIPE_OK; /* none, or what cannot be written either */
  const opi_load_params params = {.path = target,
                                  .flags = OPI_LOAD_ALLOW_SYMLINKS | OPI_LOAD_ALLOW_HARDLINKS,
                                  .allocator = model->allocator};
  const bool own = opi_model_load(&params, &replaced, &ignored) == OPIPE_OK &&
                   has_content_in(replaced, folder, &st);
  opi_model_free(replaced);
  if (own)
    return OPIPE_OK;
  return opi_fail(
      err, OPIPE_E_INVALID,
      "the model's weights go to %s, which is there already and is no part of %s: it may "
      "be another model's; save it in another folder, or remove that file",
      path, target);
}

/* files NULL: only whether it could be done. `target`: the model file itself. */
static opipe_status write_externals(opi_out_files *files, const opi_model *model,
                                    const char *folder, const char *target,
                                    const opi_replacement *list, uint32_t n, opipe_error *err) {
  opi_external_place *places = opi_alloc_zero(model->allocator, (size_t)n + 1, sizeof *places);
  if (places == NULL)
    return opi_fail_nomem(err, n * sizeof *places, "external files");
  opipe_status status = opi_model_externals(model, list, n, places, err);
  const bool same = same_folder(model, folder);
  for (const opi_mapping *m = model->mappings; m != NULL && status == OPIPE_OK; m = m->next) {
    bool changes = false;
    for (uint32_t i = 0; i < n; ++i)
      changes = changes || is_at(m, &places[i]);
    if (m->location[0] == '\0' || (same && !changes))
      continue;
    if (same) {
      status = opi_fail(err, OPIPE_E_INVALID,
                        "the model's weights lie in %s: a model saved beside it would write over "
                        "them; save it in another folder",
                        m->location);
      continue;
    }
    status = check_place(model, m, folder, target, err);
    if (status == OPIPE_OK && files != NULL)
      status = write_external(files, m, folder, list, places, n, err);
  }
  opi_free(model->allocator, places, ((size_t)n + 1) * sizeof *places);
  return status;
}

/* ---- all of it ---- */

static opipe_status check_sizes(const opi_model *model, const opi_replacement *list, uint32_t n,
                                opipe_error *err) {
  for (uint32_t i = 0; i < n; ++i) {
    const opi_value *value = opi_initializer_behind(model->graph, list[i].name);
    if (value == NULL || (value->n_bytes == list[i].n_bytes && value->dtype == list[i].dtype))
      continue;
    return opi_fail(err, OPIPE_E_INVALID,
                    "parameter '%s' has %llu bytes of %s, the file's initializer %llu of %s",
                    list[i].name, (unsigned long long)list[i].n_bytes,
                    opi_dtype_name(list[i].dtype), (unsigned long long)value->n_bytes,
                    opi_dtype_name(value->dtype));
  }
  return OPIPE_OK;
}

/* The folder of `path`, "" where it names none. */
static opipe_status folder_of(const char *path, char folder[PATH_MAX], opipe_error *err) {
  if (snprintf(folder, PATH_MAX, "%s", path) >= PATH_MAX)
    return opi_fail(err, OPIPE_E_INVALID, "the path '%.80s...' is longer than %d", path, PATH_MAX);
  char *slash = strrchr(folder, '/');
  if (slash == NULL)
    folder[0] = '\0';
  else
    slash[slash == folder ? 1 : 0] = '\0';
  return OPIPE_OK;
}

/* Where the model itself will lie: what belongs to it lies beside it. It may take the place of what
 * it was read from, but not that of its content. */
static opipe_status find_model(const opi_model *model, const char *path, opi_file_place *place,
                               char folder[PATH_MAX], opipe_error *err) {
  OPI_TRY(opi_file_place_find(AT_FDCWD, path, place, err));
  OPI_TRY(opi_model_check_target(model, place->path, false, err));
  return folder_of(place->path, folder, err);
}

opipe_status opi_out_model(opi_out_files *files, const opi_model *model,
                           const opi_replacement *list, uint32_t n, const char *path,
                           const opi_model_data *data, opipe_error *err) {
  opi_out_file *f = NULL;
  OPI_TRY(opi_out_begin(files, "", path, &f, err));
  sink out = {.fd = f->fd, .err = OPIPE_ERROR_INIT};
  const opipe_status status = opi_model_replace(model, list, n, data, to_file, &out, err);
  if (status < 0 && out.err.status < 0)
    *err = out.err;
  return opi_out_end(f, status, err);
}

opipe_status opi_model_save(const opi_model *model, const opi_replacement *list, uint32_t n,
                            const char *path, opipe_error *err) {
  opipe_error local = OPIPE_ERROR_INIT;
  opipe_error *e = err == NULL ? &local : err;
  char folder[PATH_MAX];
  opi_file_place place;
  opi_out_files files = {.allocator = model->allocator, .room = 1};
  OPI_TRY(opi_model_check_files(model, e));
  OPI_TRY(check_sizes(model, list, n, e));
  OPI_TRY(find_model(model, path, &place, folder, e));
  if (model->built != NULL)
    return opi_built_save(model, list, n, OPI_BUILT_MOST, place.path, e);
  for (const opi_mapping *m = model->mappings; m != NULL; m = m->next)
    ++files.room;
  files.list = opi_alloc_zero(model->allocator, files.room, sizeof *files.list);
  if (files.list == NULL)
    return opi_fail_nomem(e, files.room * sizeof *files.list, "file names");
  opipe_status status = write_externals(&files, model, folder, place.path, list, n, e);
  if (status == OPIPE_OK)
    status = opi_out_model(&files, model, list, n, place.path, NULL, e);
  return opi_out_rename(&files, status, e);
}

opipe_status opi_model_try_save(const opi_model *model, const opi_replacement *list, uint32_t n,
                                const char *path, opipe_error *err) {
  opipe_error local = OPIPE_ERROR_INIT;
  opipe_error *e = err == NULL ? &local : err;
  char folder[PATH_MAX];
  opi_file_place place;
  OPI_TRY(check_sizes(model, list, n, e));
  OPI_TRY(find_model(model, path, &place, folder, e));
  OPI_TRY(opi_model_find_places(model, list, n, e));
  if (model->built == NULL)
    OPI_TRY(write_externals(NULL, model, folder, place.path, list, n, e));
  return opi_try_file(AT_FDCWD, path, e);
}
