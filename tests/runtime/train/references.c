/* SPDX-License-Identifier: Apache-2.0 */
/* Reference tensors of models: safetensors, TensorProto files, numbers of meta.json; see kit.h. */
#include <jansson.h>
#include <stdlib.h>

#include "tests/runtime/train/kit.h"

bool kit_tensors_open(kit_tensors *t, const char *path) {
  uint64_t header = 0;
  *t = (kit_tensors){.data = NULL};
  t->data = opi_test_read_file(path, &t->n_bytes);
  if (t->data == NULL || t->n_bytes < 8)
    return false;
  memcpy(&header, t->data, 8);
  t->root = header > t->n_bytes - 8 ? NULL : json_loadb(t->data + 8, (size_t)header, 0, NULL);
  return t->root != NULL;
}

void kit_tensors_close(kit_tensors *t) {
  json_decref(t->root);
  free(t->data);
}

const float *kit_tensors_find(const kit_tensors *t, const char *name, size_t *out_n) {
  uint64_t header = 0;
  const json_t *offsets = json_object_get(json_object_get(t->root, name), "data_offsets");
  const json_int_t from = json_integer_value(json_array_get(offsets, 0));
  const json_int_t to = json_integer_value(json_array_get(offsets, 1));
  if (offsets == NULL)
    return NULL;
  memcpy(&header, t->data, 8);
  *out_n = (size_t)(to - from) / sizeof(float);
  return (const float *)(const void *)(t->data + 8 + header + from);
}

opipe_status kit_batch_pb(kit *k, kit_batch *batch, const char *path, const char *name) {
  size_t n_bytes = 0;
  opi_value value;
  char *bytes = opi_test_read_file(path, &n_bytes);
  if (bytes == NULL)
    return OPIPE_E_IO;
  const opipe_status status = opi_tensor_parse(bytes, n_bytes, &k->arena, &value, &k->err);
  void *data = status < 0 ? NULL : opi_arena_copy(&k->arena, value.data, (size_t)value.n_bytes);
  free(bytes);
  if (status < 0)
    return status;
  kit_batch_add(batch, name != NULL ? name : value.name, value.dtype, value.shape,
                (uint32_t)value.rank, data);
  return OPIPE_OK;
}

double kit_json_number(const char *path, const char *name) {
  json_t *root = json_load_file(path, 0, NULL);
  const double number = json_number_value(json_object_get(root, name));
  json_decref(root);
  return number;
}
