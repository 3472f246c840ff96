/* SPDX-License-Identifier: Apache-2.0 */
/* Data sources: folders of .npy files, single files, .npz archives, texts; and their mini-batches.
 *
 * Files are mapped: only the rows asked for are read. An epoch's order is a permutation by (seed,
 * epoch), so a resumed run continues with the same samples.
 */
#include "data.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int bad(const char *path, const char *why) {
  (void)fprintf(stderr, "onnx-pipe: %s: %s\n", path, why);
  return CLI_FAILED;
}

int cli_data_map(cli_data *data, const char *path, const uint8_t **out_bytes, size_t *out_n) {
  struct stat st;
  if (data->n_maps == DATA_MOST)
    return bad(path, "there are more than 1024 data files");
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    const bool missing = cli_is_missing(errno);
    (void)bad(path, strerror(errno));
    return missing ? CLI_USAGE : CLI_FAILED;
  }
  int status = CLI_DONE;
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size == 0)
    status = bad(path, "it is not a regular file, or it is empty");
  void *bytes = MAP_FAILED;
  if (status == CLI_DONE)
    bytes = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
  (void)close(fd);
  if (status != CLI_DONE || bytes == MAP_FAILED)
    return status != CLI_DONE ? status : bad(path, strerror(errno));
  data->maps[data->n_maps++] = (cli_mapping){bytes, (size_t)st.st_size, false};
  *out_bytes = bytes;
  *out_n = (size_t)st.st_size;
  return CLI_DONE;
}

int cli_data_add(cli_data *data, const char *name, const uint8_t *samples, size_t n,
                 const char *path) {
  cli_array *a = &data->arrays[data->n];
  size_t n_bytes = 0;
  if (cli_data_find(data, name) != NULL) {
    (void)fprintf(stderr, "onnx-pipe: %s: there is an array '%s' already\n", path, name);
    return CLI_USAGE;
  }
  n_bytes = cli_dtype_bytes(a->form.dtype);
  for (uint32_t d = 0; d < a->form.rank; ++d) {
    if (__builtin_mul_overflow(n_bytes, (size_t)a->form.shape[d], &n_bytes))
      return bad(path, "its shape is too large");
  }
  const char *why = cli_npy_misfit(&a->form, n);
  if (why != NULL)
    return bad(path, why);
  a->data = samples;
  if (!cli_tensor_name(&a->form, name, strlen(name)))
    return bad(path, "out of memory");
  ++data->n;
  return CLI_DONE;
}

int cli_data_add_npy(cli_data *data, const char *name, const uint8_t *bytes, size_t n,
                     const char *path) {
  size_t start = 0;
  if (data->n == DATA_MOST)
    return bad(path, "there are more than 1024 arrays");
  const char *why = cli_npy_header(bytes, n, &data->arrays[data->n].form, &start);
  return why != NULL ? bad(path, why) : cli_data_add(data, name, bytes + start, n - start, path);
}

/* A serialised TensorProto. */
static int add_proto(cli_data *data, const char *name, const char *path) {
  cli_tensor t;
  if (data->n == DATA_MOST || data->n_maps == DATA_MOST)
    return bad(path, "there are more than 1024 arrays");
  const int status = cli_pb_read(path, &t);
  if (status != CLI_DONE)
    return status;
  data->maps[data->n_maps++] = (cli_mapping){t.data, t.n_bytes, true};
  free(t.name); /* the option's name counts, not the file's */
  data->arrays[data->n].form = t;
  data->arrays[data->n].form.data = NULL;
  data->arrays[data->n].form.name = NULL;
  return cli_data_add(data, name, t.data, t.n_bytes, path);
}

const cli_array *cli_data_find(const cli_data *data, const char *name) {
  for (uint32_t i = 0; i < data->n; ++i) {
    if (strcmp(data->arrays[i].form.name, name) == 0)
      return &data->arrays[i];
  }
  return NULL;
}

static int add_file(cli_data *data, const char *name, const char *path) {
  const uint8_t *bytes = NULL;
  size_t n = strlen(path);
  if (n > 3 && strcmp(path + n - 3, ".pb") == 0)
    return add_proto(data, name, path);
  const int status = cli_data_map(data, path, &bytes, &n);
  return status == CLI_DONE ? cli_data_add_npy(data, name, bytes, n, path) : status;
}

/* Adds NAME.npy for every model input and for the labels; "NAME" encoded as `run --output` does. */
static int add_named(cli_data *data, const char *folder, const char *name, bool needed) {
  char file[800], path[4096];
  struct stat st;
  cli_encode_name(name, file, sizeof(file));
  (void)snprintf(path, sizeof(path), "%s/%s.npy", folder, file);
  if (stat(path, &st) != 0 && errno == ENOENT)
    return needed ? cli_usage("--data %s: it lacks %s.npy", folder, file) : CLI_DONE;
  return add_file(data, name, path);
}

static int add_folder(const cli_session *s, const char *folder, const char *labels,
                      cli_data *data) {
  opipe_tensor_info info = {.struct_size = sizeof(info)};
  int status = CLI_DONE;
  bool among = false;
  for (uint32_t i = 0;
       status == CLI_DONE && s->api->model_input(s->file, i, &info, NULL) == OPIPE_OK; ++i) {
    status = add_named(data, folder, info.name, false);
    among = among || (labels != NULL && strcmp(labels, info.name) == 0);
  }
  if (status == CLI_DONE && labels != NULL && !among)
    status = add_named(data, folder, labels, true);
  if (status == CLI_DONE && data->n == 0)
    return cli_usage("--data %s: it holds no NAME.npy of any input", folder);
  return status;
}

static int add_source(const cli_options *o, const cli_session *s, const char *text,
                      const char *labels, cli_data *data) {
  struct stat st;
  const char *equals = strchr(text, '=');
  const size_t n = strlen(text);
  if (strncmp(text, "text:", 5) == 0)
    return cli_data_add_text(o, s, text + 5, labels, data);
  if (stat(text, &st) == 0 && S_ISDIR(st.st_mode))
    return add_folder(s, text, labels, data);
  if (n > 4 && strcmp(text + n - 4, ".npz") == 0 && equals == NULL)
    return cli_data_add_npz(data, s, labels, text);
  if (equals == NULL)
    return cli_usage("--data %s: expected a folder, NAME=FILE.npy, FILE.npz or text:FILE", text);
  char *name = strndup(text, (size_t)(equals - text));
  const int status = name == NULL ? cli_fail("out of memory") : add_file(data, name, equals + 1);
  free(name);
  return status;
}

/* Notes the types that the model reads; labels that are classes are int64. */
static void note_types(const cli_session *s, const char *labels, bool classes, cli_data *data) {
  opipe_tensor_info info = {.struct_size = sizeof(info)};
  for (uint32_t a = 0; a < data->n; ++a) {
    cli_array *array = &data->arrays[a];
    const bool is_labels = labels != NULL && strcmp(labels, array->form.name) == 0;
    array->wanted = classes && is_labels ? (uint32_t)OPIPE_INT64 : array->form.dtype;
    for (uint32_t i = 0; s->api->model_input(s->file, i, &info, NULL) == OPIPE_OK; ++i) {
      if (strcmp(info.name, array->form.name) == 0)
        array->wanted = info.dtype;
    }
    if (!cli_can_widen(array->form.dtype, array->wanted))
      array->wanted = array->form.dtype;
  }
}

int cli_data_open(const cli_options *o, const cli_session *s, const char *labels, bool classes,
                  cli_data *out) {
  int status = CLI_DONE;
  memset(out, 0, sizeof(*out));
  if (o->t.data.n == 0)
    return cli_usage("train needs --data (a folder, NAME=FILE.npy, FILE.npz or text:FILE)");
  for (uint32_t i = 0; i < o->t.data.n && status == CLI_DONE; ++i)
    status = add_source(o, s, o->t.data.items[i], labels, out);
  if (status == CLI_DONE)
    status = cli_data_settle(o, s, labels, out);
  if (status == CLI_DONE)
    note_types(s, labels, classes, out);
  if (status == CLI_DONE && out->n_samples == 0)
    return cli_usage("--data: there are no samples");
  if (status == CLI_DONE && labels != NULL && cli_data_find(out, labels) == NULL)
    return cli_usage("--data: the loss needs '%s', which no source has", labels);
  return status;
}

void cli_data_close(cli_data *data) {
  for (uint32_t i = 0; i < data->n_maps; ++i) {
    if (data->maps[i].owned)
      free(data->maps[i].bytes);
    else
      (void)munmap(data->maps[i].bytes, data->maps[i].n);
  }
  for (uint32_t i = 0; i < data->n; ++i)
    free(data->arrays[i].form.name);
  data->n_maps = data->n = 0;
}

/* ---- mini-batches ---- */

static uint64_t next(uint64_t *state) { /* splitmix64 (Steele, Lea, Flood 2014) */
  uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

static void make_order(uint64_t n, bool shuffle, uint64_t seed, uint64_t epoch, uint64_t *order) {
  uint64_t state = seed * UINT64_C(0x9e3779b97f4a7c15) + epoch;
  for (uint64_t i = 0; i < n; ++i)
    order[i] = i;
  for (uint64_t i = n; shuffle && i > 1; --i) { /* Fisher, Yates; the bias of % is below 2^-32 */
    const uint64_t j = next(&state) % i, kept = order[i - 1];
    order[i - 1] = order[j];
    order[j] = kept;
  }
}

void cli_data_rows(const cli_data *data, uint64_t k, uint32_t batch, bool shuffle, uint64_t seed,
                   uint64_t *order, uint64_t *io_epoch, uint64_t *out_rows) {
  const uint64_t per_epoch = data->n_samples / batch, epoch = k / per_epoch;
  if (*io_epoch != epoch)
    make_order(data->n_samples, shuffle, seed, epoch, order);
  *io_epoch = epoch;
  memcpy(out_rows, order + k % per_epoch * batch, batch * sizeof(*out_rows));
}

bool cli_data_batch_form(const cli_data *data, uint32_t batch, cli_tensor *out) {
  for (uint32_t i = 0; i < data->n; ++i) {
    const char *name = data->arrays[i].form.name;
    out[i] = data->arrays[i].form;
    out[i].name = NULL;
    if (!data->arrays[i].is_whole)
      out[i].shape[data->arrays[i].axis] = batch;
    out[i].dtype = data->arrays[i].wanted;
    if (!cli_tensor_name(&out[i], name, strlen(name)) || !cli_tensor_alloc(&out[i]))
      return false;
  }
  return true;
}

/* Row `from` of an array becomes row `to`. */
static void put_row(const cli_array *a, cli_tensor *out, uint64_t from, uint64_t to) {
  const size_t n = a->row_bytes / cli_dtype_bytes(a->form.dtype); /* its elements */
  const uint8_t *row = a->data + from * a->row_bytes;
  if (a->wanted == a->form.dtype)
    memcpy((char *)out->data + to * a->row_bytes, row, a->row_bytes);
  else
    cli_widen(a->form.dtype, row, n, (int64_t *)out->data + to * n);
}

void cli_data_batch(const cli_data *data, const uint64_t *rows, uint32_t batch, cli_tensor *out) {
  for (uint32_t i = 0; i < data->n; ++i) {
    const cli_array *a = &data->arrays[i];
    if (a->row_bytes == 0 || out[i].data == NULL)
      continue;
    if (a->is_whole)
      put_row(a, &out[i], 0, 0);
    for (size_t o = 0; !a->is_whole && o < a->n_outer; ++o) {
      for (uint32_t r = 0; r < batch; ++r)
        put_row(a, &out[i], o * data->n_samples + rows[r], o * batch + r);
    }
  }
}
