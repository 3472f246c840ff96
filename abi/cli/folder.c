/* SPDX-License-Identifier: Apache-2.0 */
/* run DIR: a folder in the ONNX backend-test layout, model.onnx and
 * test_data_set_K/{input_i,output_i}.pb. Each data set is a request of its own shape; with --check
 * its outputs are compared.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli.h"

enum { PATH_ROOM = 4096, TENSORS_MOST = CLI_LIST_MOST };

typedef struct data_set {
  cli_tensor inputs[TENSORS_MOST], outputs[TENSORS_MOST];
  uint32_t n_inputs, n_outputs;
} data_set;

static bool exists(const char *path) {
  struct stat st;
  return stat(path, &st) == 0;
}

/* Unnamed tensors take the name of the model's input or output of their number. */
static int read_tensors(const cli_session *s, const char *folder, const char *what, bool inputs,
                        cli_tensor *out, uint32_t *out_n) {
  for (*out_n = 0; *out_n < TENSORS_MOST; ++*out_n) {
    char path[PATH_ROOM + 64]; /* of a file in such a folder */
    opipe_tensor_info info = {.struct_size = sizeof(info)};
    (void)snprintf(path, sizeof(path), "%s/%s_%u.pb", folder, what, *out_n);
    if (!exists(path))
      return CLI_DONE;
    cli_tensor *t = &out[*out_n];
    if (cli_pb_read(path, t) != CLI_DONE)
      return CLI_FAILED;
    const opipe_status status = inputs ? s->api->model_input(s->file, *out_n, &info, NULL)
                                       : s->api->model_output(s->file, *out_n, &info, NULL);
    if (t->name[0] == '\0' && status == OPIPE_OK)
      (void)snprintf(t->name, sizeof(t->name), "%s", info.name);
  }
  return CLI_DONE;
}

/* "tolerance": NUMBER in DIR/meta.json, < 0: none. */
static double folder_tolerance(const char *directory) {
  char path[PATH_ROOM];
  void *text = NULL;
  size_t n = 0;
  double value = -1;
  (void)snprintf(path, sizeof(path), "%s/meta.json", directory);
  if (!exists(path) || cli_file_read(path, &text, &n) != CLI_DONE)
    return -1;
  const char *at = strstr(text, "\"tolerance\":");
  if (at != NULL)
    value = strtod(at + strlen("\"tolerance\":"), NULL);
  free(text);
  return value;
}

static double preset_tolerance(uint32_t dtype) {
  switch (dtype) {
    case OPIPE_FLOAT:
    case OPIPE_DOUBLE:
      return 1e-4;
    case OPIPE_FLOAT16:
      return 2e-3;
    case OPIPE_BFLOAT16:
      return 5e-2;
    default:
      return 0;
  }
}

static bool check_max(const cli_options *o, const cli_tensor *have, const cli_tensor *want,
                      double tolerance) {
  cli_difference d;
  cli_compare(have, want, &d);
  const double preset = tolerance >= 0 ? tolerance : preset_tolerance(want->dtype);
  const double atol = o->atol >= 0 ? o->atol : preset, rtol = o->rtol >= 0 ? o->rtol : preset;
  if (d.shapes_differ) {
    (void)printf("  %s: type or shape differs (%s, rank %u; the data set has %s, rank %u)\n",
                 want->name, cli_dtype_name(have->dtype), have->rank, cli_dtype_name(want->dtype),
                 want->rank);
    return false;
  }
  const bool ok = d.largest <= atol + rtol * d.scale;
  if (!ok) {
    (void)printf("  %s: largest difference %g at element %zu (%g, expected %g); allowed %g\n",
                 want->name, d.largest, d.at, cli_tensor_get(have, d.at),
                 cli_tensor_get(want, d.at), atol + rtol * d.scale);
  }
  return ok;
}

static bool check_elements(const cli_options *o, const cli_tensor *have, const cli_tensor *want) {
  size_t first = 0;
  const double rtol = o->rtol >= 0 ? o->rtol : 1e-3, atol = o->atol >= 0 ? o->atol : 1e-7;
  const size_t misses = cli_compare_elements(have, want, rtol, atol, &first);
  if (misses == 0)
    return true;
  if (misses == SIZE_MAX) {
    (void)printf("  %s: type or shape differs\n", want->name);
  } else {
    (void)printf("  %s: %zu elements differ, the first is %zu: %g, expected %g\n", want->name,
                 misses, first, cli_tensor_get(have, first), cli_tensor_get(want, first));
  }
  return false;
}

static int check_outputs(const cli_options *o, const char *name, const data_set *d,
                         const cli_result *result, double tolerance) {
  bool ok = true;
  for (uint32_t i = 0; i < d->n_outputs; ++i) {
    const cli_tensor *want = &d->outputs[i],
                     *have = i < result->n_outputs ? &result->outputs[i] : NULL;
    for (uint32_t r = 0; r < result->n_outputs; ++r) {
      if (strcmp(result->outputs[r].name, want->name) == 0)
        have = &result->outputs[r];
    }
    if (have == NULL) {
      (void)printf("  the model has no output '%s'\n", want->name);
      ok = false;
    } else if (strcmp(o->check, "element") == 0) {
      ok &= check_elements(o, have, want);
    } else {
      ok &= check_max(o, have, want, tolerance);
    }
  }
  (void)printf("%s: %s\n", name, ok ? "passed" : "FAILED");
  return ok ? CLI_DONE : CLI_CHECK_FAILED;
}

static int run_set(const cli_options *o, cli_session *s, const char *name, data_set *d,
                   double tolerance) {
  cli_result result = {NULL, 0};
  cli_timing timing;
  int status = cli_stream_model(o, s, d->inputs, &d->n_inputs, TENSORS_MOST, &result, &timing);
  if (status == CLI_DONE)
    cli_print_timing(o, &timing);
  if (status == CLI_DONE && o->output != NULL) {
    char path[PATH_ROOM];
    (void)mkdir(o->output, 0777);
    (void)snprintf(path, sizeof(path), "%s/%s", o->output, name);
    status = cli_write_outputs(path, &result);
  }
  if (status == CLI_DONE && o->reference)
    status = cli_run_reference(o, s, s->plan, d->inputs, d->n_inputs, &result);
  if (o->check != NULL && (status == CLI_DONE || status == CLI_CHECK_FAILED) &&
      result.outputs != NULL) {
    const int checked = check_outputs(o, name, d, &result, tolerance);
    if (status == CLI_DONE)
      status = checked;
  }
  cli_result_free(&result);
  s->api->plan_destroy(s->plan);
  s->api->model_destroy(s->bound);
  s->plan = NULL;
  s->bound = NULL;
  return status;
}

static int run_sets(const cli_options *o, cli_session *s, const char *directory, uint32_t *out_n) {
  const double tolerance = folder_tolerance(directory);
  int worst = CLI_DONE;
  data_set *d = calloc(1, sizeof(*d));
  if (d == NULL)
    return cli_usage("out of memory");
  for (*out_n = 0;; ++*out_n) {
    char path[PATH_ROOM], name[64];
    (void)snprintf(name, sizeof(name), "test_data_set_%u", *out_n);
    (void)snprintf(path, sizeof(path), "%s/%s", directory, name);
    if (!exists(path))
      break;
    int status = read_tensors(s, path, "input", true, d->inputs, &d->n_inputs);
    if (status == CLI_DONE)
      status = read_tensors(s, path, "output", false, d->outputs, &d->n_outputs);
    if (status == CLI_DONE)
      status = run_set(o, s, name, d, tolerance);
    for (uint32_t i = 0; i < TENSORS_MOST; ++i) {
      cli_tensor_free(&d->inputs[i]);
      cli_tensor_free(&d->outputs[i]);
    }
    if (status > worst)
      worst = status;
  }
  free(d);
  return worst;
}

int cli_run_folder(const cli_options *o) {
  char model[PATH_ROOM];
  cli_session s;
  cli_options own = *o;
  uint32_t n_sets = 0;
  (void)snprintf(model, sizeof(model), "%s/model.onnx", o->model);
  own.model = model;
  int status = cli_open(&own, &s);
  if (status == CLI_DONE)
    status = run_sets(&own, &s, o->model, &n_sets);
  cli_close(&s);
  if (status == CLI_DONE && n_sets == 0) {
    if (o->check != NULL)
      return cli_usage("%s has no test_data_set_0 to check", o->model);
    return cli_run(&own); /* a folder without data: as for its model */
  }
  return status;
}
