/* SPDX-License-Identifier: Apache-2.0 */
/* The manifest: a small JSON object. File names in it are never paths. */
#include "runtime/checkpoint/manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loader/base/json.h"

enum { SIZE_MOST = 100 << 20, VERSION_WHOLE = 2, VERSION_SHARDS = 3 };
const char *const opi_prefix_moment[OPIPE_MOMENTS_MOST] = {"first/", "second/"};
static const char FORMAT[] = "onnx-pipe checkpoint";
static const uint64_t COUNT_MOST = INT64_MAX;
static const char *const HASHES[OPI_MANIFEST_FILES] = {"weights_xxh3", "state_xxh3"};
static const char *const HEADERS[OPI_MANIFEST_FILES] = {"weights_header_xxh3", "state_header_xxh3"};

/* ---- writing ---- */

static void put_hashes(const opi_file_hashes *file, uint32_t index, opi_text *text) {
  opi_text_printf(text, ",\n  \"%s\": \"%016llx\",\n  \"%s\": {", HEADERS[index],
                  (unsigned long long)file->header, HASHES[index]);
  for (uint32_t i = 0; i < file->n; ++i) {
    opi_text_puts(text, i == 0 ? "\n    " : ",\n    ");
    opi_text_json(text, file->entries[i].name);
    opi_text_printf(text, ": \"%016llx\"", (unsigned long long)file->tensors[i]);
  }
  opi_text_puts(text, file->n == 0 ? "}" : "\n  }");
}

/* The end of a manifest whose bytes so far have this hash. */
static int ending(char *out, size_t room, uint64_t hash) {
  return snprintf(out, room, ",\n  \"manifest_xxh3\": \"%016llx\"\n}\n", (unsigned long long)hash);
}

static void put_begin(const opi_manifest *m, int version, opi_text *text) {
  opi_text_printf(text, "{\n  \"format\": \"%s\",\n  \"version\": %d,\n  \"generation\": %llu,\n",
                  FORMAT, version, (unsigned long long)m->generation);
}

static void put_clock(const opi_manifest *m, opi_text *text) {
  opi_text_printf(text,
                  "  \"steps\": %llu,\n  \"updates\": %llu,\n  \"good_steps\": %llu,\n"
                  "  \"loss_scale\": ",
                  (unsigned long long)m->clock.n_steps, (unsigned long long)m->clock.n_updates,
                  (unsigned long long)m->clock.n_good);
  opi_json_double(text, m->clock.loss_scale);
  opi_text_printf(text, ",\n  \"loss_scaling\": %s", m->clock.scales != 0 ? "true" : "false");
  opi_text_printf(text, ",\n  \"moments\": %u,\n  \"versions\": %u,\n  \"position\": [", m->moments,
                  m->versions);
  for (uint32_t i = 0; i < OPI_POSITION; ++i) {
    const char *quote = m->position[i] > INT64_MAX ? "\"" : ""; /* too large for a JSON integer */
    opi_text_printf(text, "%s%s%llu%s", i == 0 ? "" : ", ", quote,
                    (unsigned long long)m->position[i], quote);
  }
  opi_text_puts(text, "]");
}

static void put_end(opi_text *text) {
  char end[64];
  if (text->failed)
    return;
  (void)ending(end, sizeof end, opi_tensors_hash(text->data, text->n));
  opi_text_puts(text, end);
}

void opi_manifest_text(const opi_manifest *m, const opi_file_hashes files[OPI_MANIFEST_FILES],
                       opi_text *text) {
  put_begin(m, VERSION_WHOLE, text);
  opi_text_printf(text, "  \"weights\": \"%s\",\n  \"state\": \"%s\",\n", m->shards->files[0],
                  m->shards->files[1]);
  put_clock(m, text);
  for (uint32_t i = 0; i < OPI_MANIFEST_FILES; ++i)
    put_hashes(&files[i], i, text);
  put_end(text);
}

void opi_manifest_text_shard(const opi_shard *shard,
                             const opi_file_hashes files[OPI_MANIFEST_FILES], opi_text *text) {
  opi_text_printf(text, "{\n  \"weights\": \"%s\",\n  \"state\": \"%s\"", shard->files[0],
                  shard->files[1]);
  for (uint32_t i = 0; i < OPI_MANIFEST_FILES; ++i)
    put_hashes(&files[i], i, text);
  opi_text_puts(text, "\n}");
}

void opi_manifest_text_shards(const opi_manifest *m, const opi_text *shards, opi_text *text) {
  put_begin(m, VERSION_SHARDS, text);
  put_clock(m, text);
  opi_text_puts(text, ",\n  \"shards\": [\n");
  opi_text_add(text, shards->data, shards->n);
  opi_text_puts(text, "\n  ]");
  put_end(text);
}

/* ---- reading ---- */

static opipe_status read_file(const opipe_allocator *allocator, int dir, char **out,
                              uint64_t *out_n, opipe_error *err) {
  struct stat st;
  opipe_status status = OPIPE_OK;
  const int fd = openat(dir, OPI_MANIFEST, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0 && errno == ENOENT)
    return opi_fail(err, OPIPE_E_NOTFOUND, "there is no %s: no checkpoint", OPI_MANIFEST);
  if (fd < 0)
    return opi_fail_errno(err, errno, "opening %s", OPI_MANIFEST);
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size > SIZE_MOST || st.st_size < 2) {
    status = opi_fail(err, OPIPE_E_INVALID, "%s: no regular file of 2 to %d bytes", OPI_MANIFEST,
                      SIZE_MOST);
  }
  char *data = status < 0 ? NULL : opi_alloc(allocator, (size_t)st.st_size);
  if (status == OPIPE_OK && data == NULL)
    status = opi_fail_nomem(err, (uint64_t)st.st_size, OPI_MANIFEST);
  for (off_t at = 0; status == OPIPE_OK && at < st.st_size;) {
    const ssize_t n = read(fd, data + at, (size_t)(st.st_size - at));
    if (n < 0 && errno == EINTR)
      continue;
    if (n <= 0) {
      status = opi_fail(err, OPIPE_E_IO, "%s: it ended after %lld of %lld bytes", OPI_MANIFEST,
                        (long long)at, (long long)st.st_size);
    }
    at += n;
  }
  (void)close(fd);
  if (status < 0) {
    opi_free(allocator, data, data == NULL ? 0 : (size_t)st.st_size);
    return status;
  }
  *out = data;
  *out_n = (uint64_t)st.st_size;
  return OPIPE_OK;
}

static opipe_status get_file(const json_t *root, const char *member, char out[OPI_FILE_ROOM],
                             opipe_error *err) {
  const char *name = NULL;
  OPI_TRY(opi_json_get_string(root, OPI_MANIFEST, member, &name, err));
  if (strlen(name) >= OPI_FILE_ROOM || name[0] == '\0' || name[0] == '.' ||
      strchr(name, '/') != NULL) {
    return opi_fail(err, OPIPE_E_INVALID, "%s: \"%s\" is not a file name of 1 to 63 characters",
                    OPI_MANIFEST, member);
  }
  memcpy(out, name, strlen(name) + 1);
  return OPIPE_OK;
}

static opipe_status get_u32(const json_t *root, const char *member, uint32_t most, uint32_t *out,
                            opipe_error *err) {
  uint64_t value = 0;
  OPI_TRY(opi_json_get_u64(root, OPI_MANIFEST, member, most, &value, err));
  *out = (uint32_t)value;
  return OPIPE_OK;
}

static opipe_status get_position(const json_t *root, opi_manifest *m, opipe_error *err) {
  const json_t *list = NULL;
  OPI_TRY(opi_json_get_array(root, OPI_MANIFEST, "position", &list, err));
  if (json_array_size(list) != OPI_POSITION) {
    return opi_fail(err, OPIPE_E_INVALID, "%s: \"position\" has %zu numbers, not %d", OPI_MANIFEST,
                    json_array_size(list), OPI_POSITION);
  }
  for (uint32_t i = 0; i < OPI_POSITION; ++i) {
    const json_t *value = json_array_get(list, i);
    const bool is_text = json_is_string(value);
    if (is_text ? !opi_json_parse_u64(json_string_value(value), &m->position[i])
                : !json_is_integer(value) || json_integer_value(value) < 0) {
      return opi_fail(err, OPIPE_E_INVALID, "%s: \"position\"[%u] is not a number >= 0",
                      OPI_MANIFEST, i);
    }
    if (!is_text)
      m->position[i] = (uint64_t)json_integer_value(value);
  }
  return OPIPE_OK;
}

/* The last line is a hash of everything before it. */
static opipe_status check_ending(const char *bytes, uint64_t n_bytes, opipe_error *err) {
  char end[64];
  const uint64_t n_end = (uint64_t)ending(end, sizeof end, 0);
  const uint64_t n = n_bytes < n_end ? 0 : n_bytes - n_end;
  const uint64_t hash = opi_tensors_hash(bytes, n);
  (void)ending(end, sizeof end, hash);
  if (n_bytes >= n_end && memcmp(bytes + n, end, (size_t)n_end) == 0)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID,
                  "%s is damaged: its %llu bytes have XXH3 %016llx, and its last line says "
                  "another",
                  OPI_MANIFEST, (unsigned long long)n, (unsigned long long)hash);
}

static opipe_status get_scale(const json_t *root, opi_weights_clock *clock, opipe_error *err) {
  const json_t *scales = json_object_get(root, "loss_scaling"); /* older checkpoints lack it */
  OPI_TRY(opi_json_get_number(root, OPI_MANIFEST, "loss_scale", &clock->loss_scale, err));
  if (!(clock->loss_scale > 0)) {
    return opi_fail(err, OPIPE_E_INVALID, "%s: \"loss_scale\" is %g, it must be above 0",
                    OPI_MANIFEST, clock->loss_scale);
  }
  if (scales != NULL && !json_is_boolean(scales))
    return opi_fail(err, OPIPE_E_INVALID, "%s: \"loss_scaling\" is no boolean", OPI_MANIFEST);
  clock->scales = scales == NULL ? opi_weights_clock_scales(clock) : json_is_true(scales);
  return OPIPE_OK;
}

static opipe_status get_shards(const json_t *root, bool whole, opi_manifest *m, opipe_error *err) {
  const json_t *list = NULL;
  if (!whole)
    OPI_TRY(opi_json_get_array(root, OPI_MANIFEST, "shards", &list, err));
  const size_t n = whole ? 1 : json_array_size(list);
  if (n == 0 || n > OPI_SHARDS_MOST) {
    return opi_fail(err, OPIPE_E_INVALID, "%s: %zu shards, 1 to %d are read", OPI_MANIFEST, n,
                    OPI_SHARDS_MOST);
  }
  m->shards = opi_alloc_zero(m->allocator, n, sizeof *m->shards);
  if (m->shards == NULL)
    return opi_fail_nomem(err, n * sizeof *m->shards, OPI_MANIFEST);
  m->n_shards = (uint32_t)n;
  for (uint32_t i = 0; i < m->n_shards; ++i) {
    opi_shard *shard = &m->shards[i];
    shard->hashes = whole ? root : json_array_get(list, i);
    OPI_TRY(get_file(shard->hashes, "weights", shard->files[0], err));
    OPI_TRY(get_file(shard->hashes, "state", shard->files[1], err));
  }
  return OPIPE_OK;
}

static opipe_status get_all(const json_t *root, const char *bytes, uint64_t n_bytes,
                            opi_manifest *m, opipe_error *err) {
  const char *format = NULL;
  uint32_t version = 0;
  OPI_TRY(opi_json_get_string(root, OPI_MANIFEST, "format", &format, err));
  if (strcmp(format, FORMAT) != 0) {
    return opi_fail(err, OPIPE_E_INVALID, "%s: its format is '%.80s', not '%s'", OPI_MANIFEST,
                    format, FORMAT);
  }
  OPI_TRY(get_u32(root, "version", UINT32_MAX, &version, err));
  if (version != VERSION_WHOLE && version != VERSION_SHARDS) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED, "%s: version %u, this library reads %d and %d",
                    OPI_MANIFEST, version, VERSION_WHOLE, VERSION_SHARDS);
  }
  OPI_TRY(check_ending(bytes, n_bytes, err));
  OPI_TRY(opi_json_get_u64(root, OPI_MANIFEST, "generation", COUNT_MOST - 1, &m->generation, err));
  OPI_TRY(opi_json_get_u64(root, OPI_MANIFEST, "steps", COUNT_MOST, &m->clock.n_steps, err));
  OPI_TRY(opi_json_get_u64(root, OPI_MANIFEST, "updates", COUNT_MOST, &m->clock.n_updates, err));
  OPI_TRY(opi_json_get_u64(root, OPI_MANIFEST, "good_steps", COUNT_MOST, &m->clock.n_good, err));
  OPI_TRY(get_scale(root, &m->clock, err));
  OPI_TRY(get_u32(root, "moments", OPIPE_MOMENTS_MOST, &m->moments, err));
  OPI_TRY(get_u32(root, "versions", 2, &m->versions, err));
  OPI_TRY(get_shards(root, version == VERSION_WHOLE, m, err));
  return get_position(root, m, err);
}

opipe_status opi_manifest_read(const opipe_allocator *allocator, int dir,
                               opi_manifest *out_manifest, opipe_error *err) {
  opi_manifest m = {.allocator = allocator};
  char *bytes = NULL;
  uint64_t n = 0;
  OPI_TRY(read_file(allocator, dir, &bytes, &n, err));
  m.hash = opi_tensors_hash(bytes, n);
  opipe_status status = opi_json_parse(bytes, n, OPI_MANIFEST, &m.root, err);
  if (status == OPIPE_OK)
    status = get_all(m.root, bytes, n, &m, err);
  opi_free(allocator, bytes, (size_t)n);
  if (status < 0) {
    opi_manifest_free(&m);
    return status;
  }
  *out_manifest = m;
  return OPIPE_OK;
}

bool opi_manifest_is_ours(const opipe_allocator *allocator, int dir) {
  char *bytes = NULL;
  uint64_t n = 0;
  if (read_file(allocator, dir, &bytes, &n, NULL) < 0)
    return false;
  const bool ours = memmem(bytes, (size_t)n, FORMAT, sizeof FORMAT - 1) != NULL ||
                    memmem(bytes, (size_t)n, HASHES[0], strlen(HASHES[0])) != NULL;
  opi_free(allocator, bytes, (size_t)n);
  return ours;
}

void opi_manifest_free(opi_manifest *manifest) {
  if (manifest->shards != NULL)
    opi_free(manifest->allocator, manifest->shards, manifest->n_shards * sizeof(opi_shard));
  json_decref(manifest->root);
  manifest->root = NULL;
  manifest->shards = NULL;
  manifest->n_shards = 0;
}

/* ---- the data files ---- */

static opipe_status check_hash(const json_t *value, const char *what, const char *name,
                               uint64_t hash, opipe_error *err) {
  char have[20];
  const char *want = json_string_value(value);
  (void)snprintf(have, sizeof have, "%016llx", (unsigned long long)hash);
  if (want != NULL && strcmp(have, want) == 0)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID, "%s is damaged: %s has XXH3 %s, %s says %s", what, name,
                  have, OPI_MANIFEST, want == NULL ? "no hash of it" : want);
}

opipe_status opi_manifest_verify(const opi_shard *shard, uint32_t file, const opi_tensors *tensors,
                                 opipe_error *err) {
  const json_t *hashes = json_object_get(shard->hashes, HASHES[file]);
  OPI_TRY(check_hash(json_object_get(shard->hashes, HEADERS[file]), tensors->what, "its header",
                     tensors->header_hash, err));
  if (json_object_size(hashes) != tensors->n) {
    return opi_fail(err, OPIPE_E_INVALID, "%s has %u tensors, %s knows %zu", tensors->what,
                    tensors->n, OPI_MANIFEST, json_object_size(hashes));
  }
  return OPIPE_OK;
}

opipe_status opi_manifest_verify_tensor(const opi_shard *shard, uint32_t file,
                                        const opi_tensors *tensors, const opi_tensor_entry *e,
                                        opipe_error *err) {
  char name[320];
  (void)snprintf(name, sizeof name, "tensor '%.300s'", e->name);
  return check_hash(json_object_get(json_object_get(shard->hashes, HASHES[file]), e->name),
                    tensors->what, name, opi_tensors_hash(e->data, e->n_bytes), err);
}

/* ---- the folder ---- */

opipe_status opi_manifest_lock(int dir, bool alone, opipe_error *err) {
  int number = 0;
  do {
    number = flock(dir, alone ? LOCK_EX : LOCK_SH) == 0 ? 0 : errno;
  } while (number == EINTR);
  switch (number) {
    case 0:
    case EBADF: /* network file systems want a file that is open for writing */
    case EINVAL:
    case ENOLCK:
    case ENOSYS:
    case EOPNOTSUPP:
      return OPIPE_OK;
    default:
      return opi_fail_errno(err, number, "locking the folder");
  }
}
