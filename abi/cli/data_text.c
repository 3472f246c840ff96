/* SPDX-License-Identifier: Apache-2.0 */
/* text:FILE: bytes as ids, cut into rows. Fills every input of the model: ids (and labels) with the
 * bytes, masks with 1, positions with 0 .. seq - 1, token types with 0. Labels of an earlier source
 * stay as they are. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "data.h"

enum { SEQ = 64 };

enum { FILL_IDS, FILL_ONES, FILL_ZEROS, FILL_POSITIONS };

static int kind_of(const opipe_tensor_info *info) {
  if (strstr(info->name, "mask") != NULL)
    return FILL_ONES;
  if (strstr(info->name, "position") != NULL)
    return FILL_POSITIONS;
  return strstr(info->name, "type") != NULL ? FILL_ZEROS : FILL_IDS;
}

/* Tokens of a row: the number given by --bind, for its place before its name; else the model's own,
 * else 64. */
static int row_length(const cli_options *o, const opipe_tensor_info *ids, uint64_t *out) {
  const char *name = ids->dim_names == NULL ? NULL : ids->dim_names[1];
  const size_t room = strlen(ids->name) + sizeof(".1");
  char *place = malloc(room);
  if (place == NULL)
    return cli_fail("out of memory");
  (void)snprintf(place, room, "%s.1", ids->name);
  const char *spellings[] = {place, name == NULL || name[0] == '\0' ? place : name, "seq"};
  enum { N = sizeof spellings / sizeof spellings[0] };
  uint32_t found = N; /* the first one given */
  int status = CLI_DONE;
  *out = ids->shape[1] > 0 ? (uint64_t)ids->shape[1] : SEQ;
  for (uint32_t i = 0; i < o->graph.bind.n && status == CLI_DONE; ++i) {
    cli_dim_text dim = {.next = o->graph.bind.items[i]};
    while ((status = cli_bind_next(o->graph.bind.items[i], &dim)) == CLI_DONE && dim.name != NULL) {
      for (uint32_t k = 0; k < found; ++k) {
        if (strlen(spellings[k]) != dim.n_name || memcmp(spellings[k], dim.name, dim.n_name) != 0)
          continue;
        found = k;
        *out = (uint64_t)dim.value;
      }
    }
  }
  free(place);
  if (status == CLI_DONE && (*out == 0 || *out > 1u << 24))
    return cli_usage("--data text: rows of %llu tokens are not possible", (unsigned long long)*out);
  return status;
}

static void put(const cli_array *a, uint8_t *data, uint64_t i, int64_t value) {
  const float real = (float)value;
  const size_t size = cli_dtype_bytes(a->form.dtype);
  memcpy(data + i * size, a->form.dtype == OPIPE_FLOAT ? (const void *)&real : &value, size);
}

static int add_array(cli_data *data, const char *name, uint32_t dtype, int kind, const char *path,
                     const uint8_t *text, uint64_t rows, uint64_t seq) {
  if (data->n == DATA_MOST || data->n_maps == DATA_MOST)
    return cli_usage("--data text: more than %d arrays", DATA_MOST);
  if (dtype != OPIPE_INT64 && dtype != OPIPE_INT32 && dtype != OPIPE_FLOAT && dtype != OPIPE_BOOL)
    return cli_usage("--data text: input '%s' of %s cannot be filled", name, cli_dtype_name(dtype));
  cli_array *a = &data->arrays[data->n];
  a->form = (cli_tensor){.dtype = dtype, .rank = 2, .shape = {(int64_t)rows, (int64_t)seq}};
  const size_t n_bytes = rows * seq * cli_dtype_bytes(dtype);
  uint8_t *bytes = malloc(n_bytes);
  if (bytes == NULL)
    return cli_fail("--data text: out of memory: %zu bytes for '%s'", n_bytes, name);
  for (uint64_t i = 0; i < rows * seq; ++i) {
    put(a, bytes, i,
        kind == FILL_IDS         ? text[i]
        : kind == FILL_POSITIONS ? (int64_t)(i % seq)
                                 : kind == FILL_ONES);
  }
  data->maps[data->n_maps++] = (cli_mapping){bytes, n_bytes, true};
  return cli_data_add(data, name, bytes, n_bytes, path);
}

/* The first input that takes ids. */
static int find_ids(const cli_session *s, opipe_tensor_info *out) {
  for (uint32_t i = 0; s->api->model_input(s->file, i, out, NULL) == OPIPE_OK; ++i) {
    if (kind_of(out) == FILL_IDS && out->rank == 2 &&
        (out->dtype == OPIPE_INT64 || out->dtype == OPIPE_INT32))
      return CLI_DONE;
  }
  return cli_usage("--data text: the model has no input of ids [batch, tokens]");
}

int cli_data_add_text(const cli_options *o, const cli_session *s, const char *path,
                      const char *labels, cli_data *data) {
  opipe_tensor_info info = {.struct_size = sizeof(info)};
  const uint8_t *text = NULL;
  size_t n = 0;
  uint64_t seq = 0;
  const bool own_labels = labels != NULL && cli_data_find(data, labels) != NULL;
  int status = find_ids(s, &info);
  if (status == CLI_DONE)
    status = row_length(o, &info, &seq);
  if (status == CLI_DONE)
    status = cli_data_map(data, path, &text, &n);
  if (status != CLI_DONE)
    return status;
  if (n < seq) {
    return cli_usage("--data text:%s: %zu bytes are fewer than one row of %llu", path, n,
                     (unsigned long long)seq);
  }
  for (uint32_t i = 0;
       status == CLI_DONE && s->api->model_input(s->file, i, &info, NULL) == OPIPE_OK; ++i) {
    if (info.rank != 2)
      return cli_usage("--data text: input '%s' of rank %u cannot be filled", info.name, info.rank);
    status = add_array(data, info.name, info.dtype, kind_of(&info), path, text, n / seq, seq);
  }
  if (status == CLI_DONE && labels != NULL && cli_data_find(data, labels) == NULL)
    status = add_array(data, labels, OPIPE_INT64, FILL_IDS, path, text, n / seq, seq);
  data->is_text = true;
  data->shifts = !own_labels;
  return status;
}
