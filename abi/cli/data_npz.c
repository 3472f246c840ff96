/* SPDX-License-Identifier: Apache-2.0 */
/* .npz: a zip archive of stored, uncompressed .npy files. Reads the central directory (also zip64,
 * as numpy writes it); every offset is checked before it is followed. */
#include <stdlib.h>
#include <string.h>

#include "data.h"

enum { END_BYTES = 22, ENTRY_BYTES = 46, LOCAL_BYTES = 30, END64_BYTES = 56, LOCATOR_BYTES = 20 };
static const uint32_t END = 0x06054b50, ENTRY = 0x02014b50, LOCAL = 0x04034b50, END64 = 0x06064b50,
                      LOCATOR = 0x07064b50;

typedef struct zip {
  const uint8_t *bytes;
  size_t n;
  uint64_t at, n_entries;
} zip;

static uint64_t little(const uint8_t *at, uint32_t n) {
  uint64_t value = 0;
  for (uint32_t i = 0; i < n; ++i)
    value |= (uint64_t)at[i] << (8 * i);
  return value;
}

static bool has(const zip *z, uint64_t at, uint64_t n) {
  return at <= z->n && n <= z->n - at;
}

/* Finds the central directory. */
static bool find_directory(zip *z) {
  const size_t most = z->n < 65536 + END_BYTES ? z->n : 65536 + END_BYTES;
  for (size_t back = END_BYTES; back <= most; ++back) {
    const uint64_t end = z->n - back;
    if (little(z->bytes + end, 4) != END)
      continue;
    z->n_entries = little(z->bytes + end + 10, 2);
    z->at = little(z->bytes + end + 16, 4);
    if (z->at != UINT32_MAX && z->n_entries != UINT16_MAX)
      return true;
    if (end < LOCATOR_BYTES || little(z->bytes + end - LOCATOR_BYTES, 4) != LOCATOR)
      return false;
    const uint64_t wide = little(z->bytes + end - LOCATOR_BYTES + 8, 8);
    if (!has(z, wide, END64_BYTES) || little(z->bytes + wide, 4) != END64)
      return false;
    z->n_entries = little(z->bytes + wide + 32, 8);
    z->at = little(z->bytes + wide + 48, 8);
    return true;
  }
  return false;
}

/* Numbers that do not fit 32 bits are in the entry's extra field, in this order. */
static bool widen(const uint8_t *extra, uint64_t n, uint64_t *io_size, uint64_t *io_packed,
                  uint64_t *io_offset) {
  uint64_t *fields[] = {io_size, io_packed, io_offset};
  for (uint64_t at = 0; at + 4 <= n;) {
    const uint64_t length = little(extra + at + 2, 2);
    uint64_t in = at + 4;
    if (length > n - in)
      return false;
    const uint64_t end = in + length;
    for (uint32_t f = 0; little(extra + at, 2) == 1 && f < 3; ++f) {
      if (*fields[f] != UINT32_MAX)
        continue;
      if (end - in < 8)
        return false;
      *fields[f] = little(extra + in, 8);
      in += 8;
    }
    at = end;
  }
  return true;
}

enum { NAME_ROOM = UINT16_MAX + 1 }; /* of any entry, with NUL */

static bool is_wanted(const cli_session *s, const char *labels, const char *name) {
  opipe_tensor_info info = {.struct_size = sizeof(info)};
  bool wanted = labels != NULL && strcmp(labels, name) == 0;
  for (uint32_t i = 0; !wanted && s->api->model_input(s->file, i, &info, NULL) == OPIPE_OK; ++i)
    wanted = strcmp(info.name, name) == 0;
  return wanted;
}

/* Reads the entry at z->at and moves past it. `name`: room for any name. NULL, or an error text. */
static const char *add_entry(cli_data *data, const cli_session *s, const char *labels, zip *z,
                             const char *path, char name[NAME_ROOM], int *out_status) {
  if (!has(z, z->at, ENTRY_BYTES) || little(z->bytes + z->at, 4) != ENTRY)
    return "its directory is broken";
  const uint8_t *e = z->bytes + z->at;
  const uint64_t n_name = little(e + 28, 2), n_extra = little(e + 30, 2),
                 n_note = little(e + 32, 2);
  uint64_t packed = little(e + 20, 4), size = little(e + 24, 4), local = little(e + 42, 4);
  if (!has(z, z->at + ENTRY_BYTES, n_name + n_extra + n_note) ||
      !widen(e + ENTRY_BYTES + n_name, n_extra, &size, &packed, &local))
    return "its directory is broken";
  z->at += ENTRY_BYTES + n_name + n_extra + n_note;
  (void)snprintf(name, NAME_ROOM, "%.*s", (int)n_name, (const char *)e + ENTRY_BYTES);
  const bool npy = n_name >= 5 && memcmp(e + ENTRY_BYTES + n_name - 4, ".npy", 4) == 0;
  if (npy)
    name[n_name - 4] = '\0';
  if (!npy || !is_wanted(s, labels, name)) {
    (void)fprintf(stderr, "onnx-pipe: %s: '%s' is not an input of the model and is not used\n",
                  path, name);
    return NULL;
  }
  if (little(e + 10, 2) != 0)
    return "an entry is compressed; save it with numpy.savez";
  if (!has(z, local, LOCAL_BYTES) || little(z->bytes + local, 4) != LOCAL || size != packed)
    return "an entry is broken";
  const uint64_t start =
      local + LOCAL_BYTES + little(z->bytes + local + 26, 2) + little(z->bytes + local + 28, 2);
  if (!has(z, start, size))
    return "an entry extends beyond its end";
  *out_status = cli_data_add_npy(data, name, z->bytes + start, (size_t)size, path);
  return NULL;
}

int cli_data_add_npz(cli_data *data, const cli_session *s, const char *labels, const char *path) {
  zip z = {.n = 0};
  int status = cli_data_map(data, path, &z.bytes, &z.n);
  if (status != CLI_DONE)
    return status;
  char *name = malloc(NAME_ROOM);
  const char *why = name == NULL                             ? "out of memory"
                    : z.n < END_BYTES || !find_directory(&z) ? "it is not a .npz file"
                                                             : NULL;
  for (uint64_t i = 0; why == NULL && status == CLI_DONE && i < z.n_entries; ++i)
    why = add_entry(data, s, labels, &z, path, name, &status);
  free(name);
  if (why == NULL)
    return status;
  (void)fprintf(stderr, "onnx-pipe: %s: %s\n", path, why);
  return CLI_FAILED;
}
