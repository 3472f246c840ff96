/* SPDX-License-Identifier: Apache-2.0 */
/* External data: which file, where in it, mapped once per file and never read here.
 *
 * Every number is checked before it is used: offset and length against the file's size without
 * overflow, length against the tensor's own. Keys that are not known are warned about and otherwise
 * ignored; a checksum is not verified, which is said.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loader/wire/build.h"

/* ---- folders ---- */

static opipe_status keep_path(opi_load *load, const char *path, const char **out,
                              opipe_error *err) {
  *out = opi_arena_strdup(&load->parse, path);
  return *out != NULL ? OPIPE_OK : opi_fail_nomem(err, strlen(path) + 1, "a path");
}

/* Cuts the last component off; "/" stays. */
static void to_folder(char *path) {
  char *slash = strrchr(path, '/');
  if (slash == NULL) {
    path[0] = '.';
    path[1] = '\0';
  } else {
    *(slash == path ? slash + 1 : slash) = '\0';
  }
}

static opipe_status folder_of_link(opi_load *load, const char *path, opipe_error *err) {
  char folder[PATH_MAX], real[PATH_MAX];
  struct stat info;
  if (lstat(path, &info) != 0 || !S_ISLNK(info.st_mode))
    return OPIPE_OK;
  if (strlen(path) + 2 > sizeof(folder))
    return OPIPE_OK;
  memcpy(folder, path, strlen(path) + 1);
  to_folder(folder);
  if (realpath(folder, real) == NULL)
    return OPIPE_OK;
  return keep_path(load, real, &load->link_path, err);
}

opipe_status opi_external_begin(opi_load *load, const char *path, const char *base_dir,
                                opipe_error *err) {
  char real[PATH_MAX];
  const char *where = path != NULL ? path : base_dir;
  load->dir = -1;
  if (where == NULL && load->params->built != NULL)
    return opi_map_create(load->allocator, &load->locations, err);
  if (where == NULL)
    return OPIPE_OK;
  if (realpath(where, real) == NULL) {
    if (errno == ENOENT)
      return opi_fail(err, OPIPE_E_NOTFOUND, "'%.300s' does not exist", where);
    return opi_fail_errno(err, errno, "'%.300s'", where);
  }
  if (path != NULL) {
    to_folder(real);
    OPI_TRY(folder_of_link(load, path, err));
  }
  OPI_TRY(keep_path(load, real, &load->dir_path, err));
  OPI_TRY(opi_map_create(load->allocator, &load->locations, err));
  load->dir = open(real, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (load->dir < 0)
    return opi_fail_errno(err, errno, "folder '%.300s'", real);
  return OPIPE_OK;
}

void opi_external_end(opi_load *load) {
  if (load->dir >= 0)
    (void)close(load->dir);
  load->dir = -1;
  opi_map_free(load->locations);
  load->locations = NULL;
}

/* ---- mappings ---- */

static int64_t changed_ns(const struct stat *info) {
  return (int64_t)info->st_mtim.tv_sec * 1000000000 + (int64_t)info->st_mtim.tv_nsec;
}

/* Which file it is, to see later whether it is still what was mapped. */
static opipe_status note_file(opi_load *load, int fd, opi_mapping *mapping, opipe_error *err) {
  struct stat info;
  char link[64], real[PATH_MAX];
  if (fstat(fd, &info) != 0)
    return opi_fail_errno(err, errno, "'%.200s'", mapping->location);
  mapping->device = (uint64_t)info.st_dev;
  mapping->inode = (uint64_t)info.st_ino;
  mapping->changed_ns = changed_ns(&info);
  (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t n = readlink(link, real, sizeof real - 1);
  if (n <= 0)
    return OPIPE_OK;
  real[n] = '\0';
  mapping->path = opi_arena_strdup(load->arena, real);
  return mapping->path != NULL ? OPIPE_OK : opi_fail_nomem(err, (uint64_t)n + 1, "a path");
}

/* A file that was removed or put in another's place keeps its bytes as long as it is mapped. */
static opipe_status check_file(const opi_mapping *m, opipe_error *err) {
  struct stat info;
  if (m->path == NULL || stat(m->path, &info) != 0 || (uint64_t)info.st_dev != m->device ||
      (uint64_t)info.st_ino != m->inode)
    return OPIPE_OK;
  if ((uint64_t)info.st_size != m->n_bytes) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "'%.300s' has %llu bytes now; it had %llu when the model was loaded", m->path,
                    (unsigned long long)info.st_size, (unsigned long long)m->n_bytes);
  }
  const double later_s = (double)(changed_ns(&info) - m->changed_ns) * 1e-9;
  if (changed_ns(&info) != m->changed_ns) {
    return opi_fail(
        err, OPIPE_E_INVALID,
        "'%.300s' is another file than the one that the model was loaded from, which was "
        "written %.3f s %s: load it again",
        m->path, later_s < 0 ? -later_s : later_s, later_s < 0 ? "later" : "before");
  }
  return OPIPE_OK;
}

opipe_status opi_model_check_files(const opi_model *model, opipe_error *err) {
  for (const opi_mapping *m = model->mappings; m != NULL; m = m->next)
    OPI_TRY(check_file(m, err));
  return OPIPE_OK;
}

/* Is it the mapped file, or what has taken that file's place since? */
static bool is_file_of(const opi_mapping *m, const struct stat *info) {
  struct stat now;
  if (m->device == (uint64_t)info->st_dev && m->inode == (uint64_t)info->st_ino)
    return true;
  return m->path != NULL && stat(m->path, &now) == 0 && now.st_dev == info->st_dev &&
         now.st_ino == info->st_ino;
}

opipe_status opi_model_check_target(const opi_model *model, const char *path, bool itself,
                                    opipe_error *err) {
  struct stat info;
  if (stat(path, &info) != 0)
    return OPIPE_OK; /* nothing is there that could be lost */
  for (const opi_mapping *m = model->mappings; m != NULL; m = m->next) {
    if ((m->location[0] == '\0' && !itself) || !is_file_of(m, &info))
      continue;
    return m->location[0] == '\0'
               ? opi_fail(err, OPIPE_E_INVALID,
                          "the model itself lies in '%.300s': it would be written over", path)
               : opi_fail(err, OPIPE_E_INVALID,
                          "the model's content lies in '%.300s': it would be written over", path);
  }
  return OPIPE_OK;
}

opipe_status opi_mapping_create(opi_load *load, int fd, const char *location, uint64_t n_bytes,
                                opi_mapping **out_mapping, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  opi_mapping *mapping = OPI_ARENA_NEW(load->arena, opi_mapping);
  const char *name = opi_arena_strdup(load->arena, location);
  if (mapping == NULL || name == NULL) {
    status = opi_fail_nomem(err, sizeof(*mapping), "a mapping");
    goto done;
  }
  mapping->location = name;
  mapping->n_bytes = n_bytes;
  status = note_file(load, fd, mapping, err);
  if (status < 0)
    goto done;
  if (n_bytes != 0) {
    void *bytes = mmap(NULL, n_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED) {
      status = opi_fail_errno(err, errno, "mapping %llu bytes of '%.200s'",
                              (unsigned long long)n_bytes, location);
      goto done;
    }
    mapping->bytes = bytes;
    opi_pages_add(&mapping->pages, bytes, n_bytes);
  }
  mapping->next = load->model->mappings;
  load->model->mappings = mapping;
  *out_mapping = mapping;
done:
  (void)close(fd);
  return status;
}

void opi_mappings_free(opi_mapping *first) {
  for (opi_mapping *m = first; m != NULL; m = m->next) {
    if (m->bytes != NULL) {
      opi_pages_remove(&m->pages);
      (void)munmap(m->bytes, m->n_bytes);
    }
  }
}

void opi_model_relax(const opi_model *model) {
  for (const opi_mapping *m = model->mappings; m != NULL; m = m->next)
    opi_pages_drop(m->bytes, m->n_bytes);
}

static opipe_status map_location(opi_load *load, const char *location, opi_mapping **out_mapping,
                                 opipe_error *err) {
  uint32_t index = 0;
  if (opi_map_get(load->locations, location, &index)) {
    *out_mapping = load->mappings[index];
    return OPIPE_OK;
  }
  int fd = -1;
  uint64_t n_bytes = 0;
  index = load->n_mappings;
  if (!opi_arena_grow(&load->parse, (void **)&load->mappings, &load->room_mappings, index + 1,
                      sizeof(*load->mappings)))
    return opi_fail_nomem(err, (uint64_t)(index + 1) * sizeof(*load->mappings), "mappings");
  OPI_TRY(load->dir < 0 ? opi_wire_open(location, &fd, &n_bytes, err)
                        : opi_external_open(load->dir, load->dir_path, load->link_path, location,
                                            load->params->flags, &fd, &n_bytes, err));
  OPI_TRY(opi_mapping_create(load, fd, location, n_bytes, out_mapping, err));
  load->mappings[load->n_mappings++] = *out_mapping;
  return opi_map_set(load->locations, location, index, err);
}

/* ---- the keys ---- */

typedef struct place {
  const char *location;
  uint64_t offset, length;
  bool has_offset, has_length;
} place;

/* Decimal digits only. */
static bool parse_u64(const char *text, uint64_t *out) {
  uint64_t value = 0;
  if (text[0] == '\0')
    return false;
  for (const char *c = text; *c != '\0'; ++c) {
    if (*c < '0' || *c > '9')
      return false;
    if (opi_mul_u64(value, 10, &value) || opi_add_u64(value, (uint64_t)(*c - '0'), &value))
      return false;
  }
  *out = value;
  return true;
}

static opipe_status read_number(const char *key, const char *text, bool *io_has, uint64_t *out,
                                opipe_error *err) {
  if (*io_has)
    return opi_fail(err, OPIPE_E_INVALID, "external_data has '%s' twice", key);
  *io_has = true;
  if (parse_u64(text, out))
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID, "external_data: %s '%.100s' is not a number", key, text);
}

static void warn_key(opi_load *load, const char *key, const char *tensor) {
  if (strcmp(key, "checksum") == 0) {
    if (opi_load_first(load, OPI_WARNED_CHECKSUM)) {
      opi_log(load->logger, OPIPE_LOG_WARN,
              "tensor '%.200s': checksums of external data are not verified", tensor);
    }
  } else if (opi_load_first(load, OPI_WARNED_KEY)) {
    opi_log(load->logger, OPIPE_LOG_WARN,
            "tensor '%.200s': external_data key '%.100s' is not known and is ignored", tensor, key);
  }
}

static opipe_status read_place(opi_load *load, const OpiOnnx__TensorProto *tensor, place *out,
                               opipe_error *err) {
  memset(out, 0, sizeof(*out));
  for (size_t i = 0; i < tensor->n_external_data; ++i) {
    const char *key = opi_wire_text(tensor->external_data[i]->key);
    const char *value = opi_wire_text(tensor->external_data[i]->value);
    if (strcmp(key, "location") == 0) {
      if (out->location != NULL)
        return opi_fail(err, OPIPE_E_INVALID, "external_data has 'location' twice");
      out->location = value;
    } else if (strcmp(key, "offset") == 0) {
      OPI_TRY(read_number(key, value, &out->has_offset, &out->offset, err));
    } else if (strcmp(key, "length") == 0) {
      OPI_TRY(read_number(key, value, &out->has_length, &out->length, err));
    } else {
      warn_key(load, key, opi_wire_text(tensor->name));
    }
  }
  if (out->location == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "external_data has no location");
  return OPIPE_OK;
}

/* ---- tensors ---- */

static opipe_status check_range(const place *at, const opi_mapping *file, uint64_t n_bytes,
                                opipe_error *err) {
  if (at->has_length && at->length != n_bytes) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "external_data length is %llu, type and dimensions need %llu bytes",
                    (unsigned long long)at->length, (unsigned long long)n_bytes);
  }
  if (at->offset > file->n_bytes || n_bytes > file->n_bytes - at->offset) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "%llu bytes at offset %llu reach beyond the %llu bytes of '%.150s'",
                    (unsigned long long)n_bytes, (unsigned long long)at->offset,
                    (unsigned long long)file->n_bytes, at->location);
  }
  return OPIPE_OK;
}

static opipe_status find_in_file(opi_load *load, const place *at, uint64_t n_bytes,
                                 const uint8_t **out_data, opipe_error *err) {
  opi_mapping *file = NULL;
  OPI_TRY(map_location(load, at->location, &file, err));
  OPI_TRY(check_range(at, file, n_bytes, err));
  load->model->external_bytes += n_bytes;
  *out_data = n_bytes != 0 ? file->bytes + at->offset : opi_arena_alloc(load->arena, 0);
  return *out_data != NULL ? OPIPE_OK : opi_fail_nomem(err, 16, "a tensor");
}

/* For a host's graph, the location is the index of the tensor there. */
static opipe_status find_built(opi_load *load, const char *location, uint64_t n_bytes,
                               const uint8_t **out_data, opipe_error *err) {
  uint64_t index = 0;
  if (!parse_u64(location, &index) || index >= load->params->built->n_tensors)
    return opi_fail(err, OPIPE_E_INTERNAL, "no tensor '%.100s' was given", location);
  const opipe_build_tensor t = opi_build_tensor_at(load->params->built, (uint32_t)index);
  const place at = {.location = t.file, .offset = t.offset_bytes};
  if (t.file != NULL)
    return find_in_file(load, &at, n_bytes, out_data, err);
  *out_data = n_bytes != 0 ? t.data : opi_arena_alloc(load->arena, 0);
  return *out_data != NULL ? OPIPE_OK : opi_fail_nomem(err, 16, "a tensor");
}

static opipe_status find(opi_load *load, const OpiOnnx__TensorProto *tensor, uint64_t n_bytes,
                         const uint8_t **out_data, opipe_error *err) {
  const bool graph_only = load->params != NULL && (load->params->flags & OPI_LOAD_GRAPH_ONLY) != 0;
  place at;
  *out_data = NULL;
  OPI_TRY(read_place(load, tensor, &at, err));
  if (load->params != NULL && load->params->built != NULL)
    return find_built(load, at.location, n_bytes, out_data, err);
  if (load->dir < 0) {
    if (graph_only)
      return OPIPE_OK;
    return opi_fail(err, OPIPE_E_INVALID,
                    "its content lies in '%.150s', and no folder for external data was given",
                    at.location);
  }
  const opipe_status status = find_in_file(load, &at, n_bytes, out_data, err);
  return status == OPIPE_E_NOTFOUND && graph_only ? OPIPE_OK : status;
}

opipe_status opi_external_find(opi_load *load, const OpiOnnx__TensorProto *tensor, uint64_t n_bytes,
                               const uint8_t **out_data, opipe_error *err) {
  const opipe_status status = find(load, tensor, n_bytes, out_data, err);
  if (status < 0)
    (void)opi_error_prefix(err, "tensor '%.150s': ", opi_wire_text(tensor->name));
  return status;
}
