/* SPDX-License-Identifier: Apache-2.0 */
/* Finds and reads the model folders: model.onnx and test_data_set_K/{input_i,output_i}.pb. */
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/matrix/kit.h"

static char found[MX_FOLDERS][MX_PATH];
static size_t n_found;
static size_t root_length;

static int visit(const char *path, const struct stat *st, int kind, struct FTW *at) {
  static const char mark[] = "/test_data_set_0";
  const size_t n = strlen(path), tail = sizeof mark - 1;
  (void)st;
  (void)at;
  if (kind == FTW_D && n > tail && n < MX_PATH && strcmp(path + n - tail, mark) == 0 &&
      n_found < MX_FOLDERS) {
    (void)snprintf(found[n_found++], MX_PATH, "%.*s", (int)(n - tail - root_length),
                   path + root_length);
  }
  return 0;
}

static int by_name(const void *a, const void *b) {
  return strcmp(a, b);
}

size_t mx_list(const char *names[MX_FOLDERS]) {
  static const char *const groups[] = {"graphs", "gradients", "modern"};
  n_found = 0;
  for (size_t g = 0; g < sizeof groups / sizeof groups[0]; ++g) {
    char relative[64];
    (void)snprintf(relative, sizeof relative, "models/%s", groups[g]);
    const char *path = opi_test_shared(relative);
    if (path == NULL)
      continue;
    root_length = strlen(path) - strlen(groups[g]);
    (void)nftw(path, visit, 16, FTW_PHYS);
  }
  qsort(found, n_found, MX_PATH, by_name);
  for (size_t i = 0; i < n_found; ++i)
    names[i] = found[i];
  return n_found;
}

static opipe_status read_tensors(mx_folder *f, uint32_t set, const char *stem, opi_value *tensors,
                                 uint32_t *out_n, opipe_error *err) {
  for (*out_n = 0; *out_n < MX_TENSORS; ++*out_n) {
    char path[MX_PATH + 64];
    size_t n_bytes = 0;
    (void)snprintf(path, sizeof path, "%s/test_data_set_%u/%s_%u.pb", f->path, set, stem, *out_n);
    if (access(path, R_OK) != 0)
      return OPIPE_OK;
    char *bytes = opi_test_read_file(path, &n_bytes);
    if (bytes == NULL)
      return opi_fail(err, OPIPE_E_IO, "%s cannot be read", path);
    const opipe_status status = opi_tensor_parse(bytes, n_bytes, &f->arena, &tensors[*out_n], err);
    free(bytes);
    if (status < 0)
      return status;
  }
  return opi_fail(err, OPIPE_E_LIMIT, "more than %d tensors", MX_TENSORS);
}

static double read_tolerance(const mx_folder *f) {
  char path[MX_PATH + 64];
  size_t n_bytes = 0;
  double value = -1;
  (void)snprintf(path, sizeof path, "%s/meta.json", f->path);
  if (access(path, R_OK) != 0)
    return value;
  char *text = opi_test_read_file(path, &n_bytes);
  const char *at = text == NULL ? NULL : strstr(text, "\"tolerance\":");
  if (at != NULL)
    value = strtod(at + strlen("\"tolerance\":"), NULL);
  free(text);
  return value;
}

opipe_status mx_folder_read(const char *name, mx_folder **out_folder, opipe_error *err) {
  char relative[MX_PATH], set_path[MX_PATH + 64];
  opipe_status status = OPIPE_OK;
  mx_folder *f = calloc(1, sizeof *f);
  *out_folder = f;
  if (f == NULL)
    return OPIPE_E_NOMEM;
  opi_arena_init(&f->arena, opi_allocator_system(), 0);
  (void)snprintf(relative, sizeof relative, "models/%.900s", name);
  const char *path = opi_test_shared(relative);
  if (path == NULL)
    return OPIPE_E_NOTFOUND;
  (void)snprintf(f->path, sizeof f->path, "%s", path);
  f->name = f->path + strlen(f->path) - strlen(name);
  f->tolerance = read_tolerance(f);
  while (status >= 0 && f->n_sets < MX_SETS) {
    mx_set *set = &f->sets[f->n_sets];
    (void)snprintf(set_path, sizeof set_path, "%s/test_data_set_%u", f->path, f->n_sets);
    if (access(set_path, R_OK) != 0)
      break;
    status = read_tensors(f, f->n_sets, "input", set->inputs, &set->n_inputs, err);
    if (status >= 0)
      status = read_tensors(f, f->n_sets, "output", set->wanted, &set->n_wanted, err);
    ++f->n_sets;
  }
  return status;
}

void mx_folder_free(mx_folder *folder) {
  if (folder != NULL)
    opi_arena_release(&folder->arena);
  free(folder);
}
