/* SPDX-License-Identifier: Apache-2.0 */
/* Sample axes of arrays. The model decides: it is the axis of the input that has the batch's
 * dimension. An input without one (a bias, a temperature, position ids) is passed whole to every
 * mini-batch. */
#include <stdlib.h>
#include <string.h>

#include "data.h"

typedef struct axes {
  const cli_options *o;
  const cli_session *s;
  cli_data *data;
  const char *labels;
  char *batch; /* names of the batch's dimension, separated by commas; "": not known */
} axes;

static bool input_of(const axes *x, const char *name, opipe_tensor_info *out) {
  out->struct_size = sizeof(*out);
  for (uint32_t i = 0; x->s->api->model_input(x->s->file, i, out, NULL) == OPIPE_OK; ++i) {
    if (strcmp(out->name, name) == 0)
      return true;
  }
  return false;
}

/* Name of a free dimension: as in the file, or by place. In `buffer` [room]. */
static const char *key_of(const opipe_tensor_info *info, uint32_t d, char *buffer, size_t room) {
  const bool named =
      info->dim_names != NULL && info->dim_names[d] != NULL && info->dim_names[d][0] != '\0';
  (void)snprintf(buffer, room, "%s.%u", info->name, d);
  return named ? info->dim_names[d] : buffer;
}

static bool is_listed(const char *list, const char *key) {
  const size_t n = strlen(key);
  for (const char *at = list; *at != '\0';) {
    const size_t length = strcspn(at, ",");
    if (length == n && memcmp(at, key, n) == 0)
      return true;
    at += length + (at[length] == ',');
  }
  return false;
}

/* The batch dimension of the input; its rank: none. */
static uint32_t batch_axis(const axes *x, const opipe_tensor_info *info) {
  char buffer[512];
  uint32_t d = 0;
  while (d < info->rank &&
         (info->shape[d] >= 0 || !is_listed(x->batch, key_of(info, d, buffer, sizeof(buffer)))))
    ++d;
  return d;
}

static const cli_array *labels_of(const axes *x) {
  return x->labels == NULL ? NULL : cli_data_find(x->data, x->labels);
}

/* Number of arrays for inputs with this dimension. */
static uint32_t n_readers(const axes *x, const char *key) {
  uint32_t n = 0;
  for (uint32_t a = 0; a < x->data->n; ++a) {
    opipe_tensor_info info;
    char buffer[512];
    bool has = false;
    if (!input_of(x, x->data->arrays[a].form.name, &info))
      continue;
    for (uint32_t d = 0; d < info.rank && !has; ++d)
      has = info.shape[d] < 0 && strcmp(key_of(&info, d, buffer, sizeof(buffer)), key) == 0;
    n += has;
  }
  return n;
}

/* Without --batch-dim: the first dimension of the labels if they are an input; otherwise the free
 * first dimension that most inputs have, among those as long as the labels if there are any. */
static int name_batch(axes *x) {
  opipe_tensor_info info;
  char buffer[512];
  const cli_array *labels = labels_of(x);
  const bool judged = labels != NULL && !input_of(x, labels->form.name, &info);
  uint32_t most = 0;
  for (uint32_t a = 0; x->o->plan.batch == NULL && a < x->data->n; ++a) {
    const cli_array *array = &x->data->arrays[a];
    if (!input_of(x, array->form.name, &info) || info.rank == 0 || info.shape[0] >= 0 ||
        array->form.rank == 0)
      continue;
    const char *key = key_of(&info, 0, buffer, sizeof(buffer));
    const bool alike =
        judged && labels->form.rank != 0 && labels->form.shape[0] == array->form.shape[0];
    const uint32_t n = array == labels ? UINT32_MAX : n_readers(x, key) + (alike ? DATA_MOST : 0u);
    if (n <= most)
      continue;
    most = n;
    free(x->batch);
    x->batch = strdup(key);
    if (x->batch == NULL)
      return cli_fail("out of memory");
  }
  if (x->batch == NULL)
    x->batch = strdup(x->o->plan.batch != NULL ? x->o->plan.batch : "");
  return x->batch == NULL ? cli_fail("out of memory") : CLI_DONE;
}

/* Arrays whose axis follows from the batch's name, or from the labels. */
static int settle_named(const axes *x, cli_array *array, bool *out_settled) {
  opipe_tensor_info info;
  const bool is_input = input_of(x, array->form.name, &info);
  const uint32_t axis = is_input ? batch_axis(x, &info) : 0;
  *out_settled = !is_input || axis < info.rank;
  array->axis = axis;
  if (*out_settled && axis >= array->form.rank) {
    (void)fprintf(stderr, "onnx-pipe: --data: array '%s' of rank %u has no axis %u of samples\n",
                  array->form.name, array->form.rank, axis);
    return CLI_FAILED;
  }
  return CLI_DONE;
}

/* Any other array: its first axis if it is as long as the number of samples and the file leaves it
 * free, or fixes another number; otherwise it has no samples. */
static void settle_unnamed(const axes *x, cli_array *array) {
  opipe_tensor_info info;
  const int64_t n = (int64_t)x->data->n_samples;
  array->axis = 0;
  array->is_whole = array->form.rank == 0 || array->form.shape[0] != n;
  if (array->is_whole || !input_of(x, array->form.name, &info) || info.rank == 0)
    return;
  array->is_whole = info.shape[0] == n && x->batch[0] != '\0';
}

static void measure(cli_array *array) {
  array->n_outer = 1;
  array->row_bytes = cli_dtype_bytes(array->form.dtype);
  for (uint32_t d = 0; d < array->form.rank; ++d) {
    if (d < array->axis)
      array->n_outer *= (size_t)array->form.shape[d];
    if (d > array->axis || array->is_whole)
      array->row_bytes *= (size_t)array->form.shape[d]; /* the whole array fits */
  }
}

/* Arrays of inputs that --pin fixes are not needed. */
static void drop_pinned(const axes *x) {
  cli_data *data = x->data;
  uint32_t n = 0;
  for (uint32_t a = 0; a < data->n; ++a) {
    if (cli_is_pinned(x->o, data->arrays[a].form.name))
      free(data->arrays[a].form.name);
    else
      data->arrays[n++] = data->arrays[a];
  }
  data->n = n;
}

/* The first array with samples gives their number; the others must match. */
static int count_samples(const axes *x, const bool *settled) {
  cli_data *data = x->data;
  const cli_array *first = NULL;
  for (uint32_t a = 0; a < data->n; ++a) {
    const cli_array *array = &data->arrays[a];
    if (!settled[a])
      continue;
    const int64_t n = array->form.shape[array->axis];
    if (first != NULL && (uint64_t)n != data->n_samples) {
      (void)fprintf(
          stderr, "onnx-pipe: --data: array '%s': it has %lld samples, array '%s' has %llu\n",
          array->form.name, (long long)n, first->form.name, (unsigned long long)data->n_samples);
      return CLI_FAILED;
    }
    first = array;
    data->n_samples = (uint64_t)n;
  }
  if (first == NULL && data->n != 0 && data->arrays[0].form.rank != 0)
    data->n_samples = (uint64_t)data->arrays[0].form.shape[0];
  return CLI_DONE;
}

/* Names of the batch for the plan, if a first axis alone does not determine it. */
static void note_batch(const axes *x) {
  for (uint32_t a = 0; a < x->data->n; ++a) {
    const cli_array *array = &x->data->arrays[a];
    if ((array->axis != 0 || array->is_whole) && x->batch[0] != '\0')
      (void)snprintf(x->data->batch, sizeof(x->data->batch), "%s", x->batch);
  }
}

int cli_data_settle(const cli_options *o, const cli_session *s, const char *labels,
                    cli_data *data) {
  axes x = {.o = o, .s = s, .data = data, .labels = labels};
  bool *settled = calloc(DATA_MOST, sizeof(*settled));
  drop_pinned(&x);
  int status = settled == NULL ? cli_fail("out of memory") : name_batch(&x);
  for (uint32_t a = 0; status == CLI_DONE && a < data->n; ++a)
    status = settle_named(&x, &data->arrays[a], &settled[a]);
  if (status == CLI_DONE)
    status = count_samples(&x, settled);
  for (uint32_t a = 0; status == CLI_DONE && a < data->n; ++a) {
    if (!settled[a])
      settle_unnamed(&x, &data->arrays[a]);
    measure(&data->arrays[a]);
  }
  if (status == CLI_DONE)
    note_batch(&x);
  free(x.batch);
  free(settled);
  return status;
}
