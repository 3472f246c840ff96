/* SPDX-License-Identifier: Apache-2.0 */
/* run DIR: a folder in the ONNX backend-test layout: model.onnx and
 * test_data_set_K/{input_i,output_i}.pb, as far as present; numbers may have gaps. Each data set is
 * a request of its own shape; --check compares its outputs. */
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli.h"

enum { PATH_ROOM = 4096, TENSORS_MOST = CLI_LIST_MOST };

typedef struct data_set {
  cli_tensor inputs[TENSORS_MOST], outputs[TENSORS_MOST];
  uint32_t output_numbers[TENSORS_MOST]; /* numbers in their file names */
  uint32_t n_inputs, n_outputs;
} data_set;

static bool exists(const char *path) {
  struct stat st;
  return stat(path, &st) == 0;
}

/* ---- listing a folder ---- */

typedef struct numbered {
  char name[64];
  uint32_t number;
} numbered;

typedef struct numbered_list {
  numbered *items;
  uint32_t n, room;
} numbered_list;

static int by_number(const void *left, const void *right) {
  const numbered *a = left, *b = right;
  return a->number != b->number ? (a->number < b->number ? -1 : 1) : strcmp(a->name, b->name);
}

/* True if `name` is the prefix, a number and the suffix. */
static bool is_numbered(const char *name, const char *prefix, const char *suffix,
                        uint32_t *out_number) {
  const size_t n = strlen(prefix);
  char *end = NULL;
  if (strncmp(name, prefix, n) != 0 || name[n] < '0' || name[n] > '9' ||
      strlen(name) >= sizeof(((numbered *)NULL)->name))
    return false;
  errno = 0;
  const unsigned long long number = strtoull(name + n, &end, 10);
  *out_number = (uint32_t)number;
  return errno == 0 && number < UINT32_MAX && strcmp(end, suffix) == 0;
}

static bool add_numbered(numbered_list *list, const char *name, uint32_t number) {
  if (list->n == list->room) {
    const uint32_t room = list->room == 0 ? 16 : 2 * list->room;
    numbered *grown = realloc(list->items, room * sizeof(*grown));
    if (grown == NULL)
      return false;
    list->items = grown;
    list->room = room;
  }
  numbered *item = &list->items[list->n++];
  (void)snprintf(item->name, sizeof(item->name), "%s", name);
  item->number = number;
  return true;
}

/* Lists names of that form in the folder, by number. out->items is to be freed, whatever the
 * status. */
static int list_numbered(const char *folder, const char *prefix, const char *suffix,
                         numbered_list *out) {
  DIR *all = opendir(folder);
  bool ok = true;
  *out = (numbered_list){.n = 0};
  if (all == NULL) {
    (void)fprintf(stderr, "onnx-pipe: %s: %s\n", folder, strerror(errno));
    return CLI_FAILED;
  }
  for (const struct dirent *e = readdir(all); ok && e != NULL; e = readdir(all)) {
    uint32_t number = 0;
    if (is_numbered(e->d_name, prefix, suffix, &number))
      ok = add_numbered(out, e->d_name, number);
  }
  (void)closedir(all);
  if (out->n != 0)
    qsort(out->items, out->n, sizeof(*out->items), by_number);
  return ok ? CLI_DONE : cli_fail("out of memory");
}

/* ---- a data set ---- */

static bool is_input(const cli_session *s, const char *name) {
  opipe_tensor_info info = {.struct_size = sizeof(info)};
  for (uint32_t i = 0; s->api->model_input(s->file, i, &info, NULL) == OPIPE_OK; ++i) {
    if (strcmp(info.name, name) == 0)
      return true;
  }
  return false;
}

/* An unnamed tensor gets the name of the model's input or output with its number. */
static int read_tensor(const cli_session *s, const char *path, uint32_t number, bool input,
                       cli_tensor *out) {
  opipe_tensor_info info = {.struct_size = sizeof(info)};
  const int read = cli_pb_read(path, out);
  if (read != CLI_DONE)
    return read;
  if (out->name != NULL && out->name[0] != '\0')
    return !input || is_input(s, out->name) ? CLI_DONE : cli_no_input(s, path, out->name);
  const opipe_status status = input ? s->api->model_input(s->file, number, &info, NULL)
                                    : s->api->model_output(s->file, number, &info, NULL);
  if (status < 0) {
    return cli_usage("%s: the tensor has no name, and the model no %s of number %u", path,
                     input ? "input" : "output", number);
  }
  return cli_tensor_name(out, info.name, strlen(info.name)) ? CLI_DONE : cli_fail("out of memory");
}

static int read_tensors(const cli_session *s, const char *folder, bool inputs, data_set *d) {
  cli_tensor *out = inputs ? d->inputs : d->outputs;
  uint32_t *n = inputs ? &d->n_inputs : &d->n_outputs;
  numbered_list list;
  int status = list_numbered(folder, inputs ? "input_" : "output_", ".pb", &list);
  *n = 0;
  if (status == CLI_DONE && list.n > TENSORS_MOST)
    status = cli_usage("%s: more than %d tensors", folder, TENSORS_MOST);
  for (uint32_t i = 0; i < list.n && status == CLI_DONE; ++i) {
    char path[PATH_ROOM + sizeof(list.items[i].name)];
    (void)snprintf(path, sizeof(path), "%s/%s", folder, list.items[i].name);
    if (!inputs)
      d->output_numbers[*n] = list.items[i].number;
    status = read_tensor(s, path, list.items[i].number, inputs, &out[*n]);
    ++*n;
  }
  free(list.items);
  return status;
}

/* Refuses --check with random inputs or without outputs, which would prove nothing. */
static int check_is_whole(const cli_options *o, const cli_session *s, const char *folder,
                          const data_set *d) {
  opipe_tensor_info info = {.struct_size = sizeof(info)};
  if (o->run.check == NULL)
    return CLI_DONE;
  if (d->n_outputs == 0)
    return cli_usage("--check: %s has no output_N.pb to compare with", folder);
  for (uint32_t i = 0; s->api->model_input(s->file, i, &info, NULL) == OPIPE_OK; ++i) {
    const size_t n = strlen(info.name);
    bool given = false;
    for (uint32_t k = 0; k < d->n_inputs && !given; ++k)
      given = strcmp(d->inputs[k].name, info.name) == 0;
    for (uint32_t k = 0; k < o->plan.pins.n && !given; ++k)
      given = strncmp(o->plan.pins.items[k], info.name, n) == 0 && o->plan.pins.items[k][n] == '=';
    if (!given)
      return cli_usage("--check: %s has no tensor for input '%s'", folder, info.name);
  }
  return CLI_DONE;
}

/* "tolerance": NUMBER in DIR/meta.json; < 0: none. */
static int folder_tolerance(const char *directory, double *out) {
  char path[PATH_ROOM + 16];
  json_error_t error;
  *out = -1;
  (void)snprintf(path, sizeof(path), "%s/meta.json", directory);
  if (!exists(path))
    return CLI_DONE;
  json_t *root = json_load_file(path, 0, &error);
  const json_t *value = json_object_get(root, "tolerance");
  const bool ok = value == NULL || (json_is_number(value) && json_number_value(value) >= 0);
  if (root == NULL)
    (void)fprintf(stderr, "onnx-pipe: %s:%d: %s\n", path, error.line, error.text);
  else if (!ok)
    (void)fprintf(stderr, "onnx-pipe: %s: \"tolerance\" is not a number >= 0\n", path);
  else if (value != NULL)
    *out = json_number_value(value);
  const bool good = root != NULL && ok;
  json_decref(root);
  return good ? CLI_DONE : CLI_FAILED;
}

/* ---- --check ---- */

static double preset_tolerance(uint32_t dtype) {
  switch (dtype) {
    case OPIPE_FLOAT:
    case OPIPE_DOUBLE:
    case OPIPE_COMPLEX64:
    case OPIPE_COMPLEX128:
      return 1e-4;
    case OPIPE_FLOAT16:
      return 2e-3;
    case OPIPE_BFLOAT16:
      return 5e-2;
    default:
      return 0;
  }
}

/* Result of checking one output. */
typedef struct verdict {
  bool ok;
  double largest, allowed; /* for `max`; for `element` the number of elements outside, and 0 */
} verdict;

/* rounding: how much the output may differ beyond the tolerance; NULL: not known, and not printed.
 */
static verdict check_max(const cli_options *o, const cli_tensor *have, const cli_tensor *want,
                         double tolerance, const cli_rounding *rounding, FILE *says) {
  cli_difference d;
  char found[CLI_NUMBER_TEXT], wanted[CLI_NUMBER_TEXT];
  cli_compare(have, want, &d);
  const double preset = tolerance >= 0 ? tolerance : preset_tolerance(want->dtype);
  const double atol = o->run.atol >= 0 ? o->run.atol : preset,
               rtol = o->run.rtol >= 0 ? o->run.rtol : preset;
  const double allowed = atol + rtol * d.scale;
  verdict v = {!d.shapes_differ && d.largest <= allowed, d.largest, allowed};
  if (rounding == NULL)
    return v;
  v.ok = v.ok || (!d.shapes_differ && cli_within_rounding(rounding, have, want, allowed));
  v.allowed = allowed + rounding->largest;
  if (d.shapes_differ) {
    (void)fprintf(says, "  %s: type or shape differs (%s, rank %u; the data set has %s, rank %u)\n",
                  want->name, cli_dtype_name(have->dtype), have->rank, cli_dtype_name(want->dtype),
                  want->rank);
  } else if (!v.ok) {
    (void)fprintf(says,
                  "  %s: largest difference %g at element %zu (%s, expected %s); allowed %g\n",
                  want->name, d.largest, d.at, cli_tensor_text(have, d.at, found),
                  cli_tensor_text(want, d.at, wanted), v.allowed);
  }
  return v;
}

static verdict check_elements(const cli_options *o, const cli_tensor *have, const cli_tensor *want,
                              FILE *says) {
  size_t first = 0;
  char found[CLI_NUMBER_TEXT], wanted[CLI_NUMBER_TEXT];
  const double rtol = o->run.rtol >= 0 ? o->run.rtol : 1e-3,
               atol = o->run.atol >= 0 ? o->run.atol : 1e-7;
  const size_t misses = cli_compare_elements(have, want, rtol, atol, &first);
  if (misses == SIZE_MAX) {
    (void)fprintf(says, "  %s: type or shape differs\n", want->name);
  } else if (misses != 0) {
    (void)fprintf(says, "  %s: %zu elements differ, the first is %zu: %s, expected %s\n",
                  want->name, misses, first, cli_tensor_text(have, first, found),
                  cli_tensor_text(want, first, wanted));
  }
  return (verdict){misses == 0, (double)misses, 0};
}

static const cli_tensor *output_called(const cli_result *result, const char *name) {
  for (uint32_t r = 0; r < result->n_outputs; ++r) {
    if (strcmp(result->outputs[r].name, name) == 0)
      return &result->outputs[r];
  }
  return NULL;
}

/* The result's tensor by name, else by the file's number, which counts the model's outputs; NULL:
 * none. */
static const cli_tensor *output_of(const cli_session *s, const cli_result *result, const char *name,
                                   uint32_t number) {
  opipe_tensor_info info = opipe_tensor_info_init();
  const cli_tensor *named = output_called(result, name);
  if (named != NULL)
    return named;
  return s->api->model_output(s->bound, number, &info, NULL) < 0 ? NULL
                                                                 : output_called(result, info.name);
}

/* If an output exceeds its tolerance, finds how much rounding to few bits may add. */
static int find_rounding(const cli_options *o, const cli_session *s, const data_set *d,
                         const cli_result *result, double tolerance, cli_rounding *out) {
  if (strcmp(o->run.check, "element") == 0)
    return CLI_DONE;
  for (uint32_t i = 0; i < d->n_outputs; ++i) {
    const cli_tensor *have = output_of(s, result, d->outputs[i].name, d->output_numbers[i]);
    if (have != NULL && !check_max(o, have, &d->outputs[i], tolerance, NULL, NULL).ok)
      return cli_find_rounding(o, s, d->inputs, d->n_inputs, result, out);
  }
  return CLI_DONE;
}

/* Verdicts of the processes about an output, the worst last. */
enum { ELSEWHERE = 0, PASSED = 1, FAILED = 2 };

static void put_check(const char *name, const verdict *v, uint8_t said, bool by_element, bool first,
                      FILE *json) {
  (void)fputs(first ? "{\"output\": " : ", {\"output\": ", json);
  cli_json_text(json, name);
  (void)fprintf(json, ", \"passed\": %s", said == PASSED ? "true" : "false");
  if (v->allowed >= 0) {
    (void)fprintf(json, ", \"%s\": ", by_element ? "misses" : "difference");
    cli_json_number(json, v->largest);
    (void)fputs(", \"allowed\": ", json);
    cli_json_number(json, v->allowed);
  }
  (void)fputs("}", json);
}

/* Process 0 has the outputs, compares them and prints the verdicts; they are everybody's. */
static int check_outputs(const cli_options *o, const cli_session *s, const char *name,
                         const data_set *d, const cli_result *result, double tolerance,
                         const cli_rounding *rounding, const cli_json *json) {
  FILE *says = json->file == NULL && s->team_rank == 0 ? stdout : stderr;
  const bool by_element = strcmp(o->run.check, "element") == 0;
  verdict *verdicts = calloc((size_t)d->n_outputs + 1, sizeof *verdicts);
  uint8_t *said = calloc((size_t)d->n_outputs + 1, sizeof *said);
  bool ok = true;
  int status = verdicts == NULL || said == NULL ? cli_fail("out of memory") : CLI_DONE;
  for (uint32_t i = 0; i < d->n_outputs && status == CLI_DONE; ++i) {
    const cli_tensor *want = &d->outputs[i];
    const cli_tensor *have = output_of(s, result, want->name, d->output_numbers[i]);
    verdicts[i] = (verdict){.ok = false, .allowed = s->team == NULL ? 0 : -1};
    if (have == NULL)
      continue;
    verdicts[i] =
        by_element ? check_elements(o, have, want, says)
                   : check_max(o, have, want, tolerance, &rounding[have - result->outputs], says);
    said[i] = verdicts[i].ok ? PASSED : FAILED;
  }
  if (status == CLI_DONE)
    status = cli_worst(s, said, d->n_outputs);
  if (json->file != NULL)
    (void)fputs(", \"check\": [", json->file);
  for (uint32_t i = 0; i < d->n_outputs && status == CLI_DONE; ++i) {
    if (said[i] == ELSEWHERE)
      (void)fprintf(says, "  the model has no output '%s'\n", d->outputs[i].name);
    ok = ok && said[i] == PASSED;
    if (json->file != NULL)
      put_check(d->outputs[i].name, &verdicts[i], said[i], by_element, i == 0, json->file);
  }
  if (json->file != NULL)
    (void)fprintf(json->file, "], \"passed\": %s", ok ? "true" : "false");
  else if (status == CLI_DONE)
    (void)printf("%s: %s\n", name, ok ? "passed" : "FAILED");
  free(verdicts);
  free(said);
  return status != CLI_DONE ? status : ok ? CLI_DONE : CLI_CHECK_FAILED;
}

/* ---- running ---- */

static int run_set(const cli_options *o, cli_session *s, const char *name, data_set *d,
                   double tolerance, const cli_json *json) {
  cli_result result = {NULL};
  cli_timing timing;
  int status =
      cli_stream_model(o, s, d->inputs, &d->n_inputs, TENSORS_MOST, json, &result, &timing);
  if (status == CLI_DONE)
    status = cli_print_result(s, &result, &timing, false, json);
  if (status == CLI_DONE && o->out.output != NULL && s->team_rank == 0) {
    char path[PATH_ROOM];
    (void)mkdir(o->out.output, 0777);
    (void)snprintf(path, sizeof(path), "%s/%s", o->out.output, name);
    status = cli_write_outputs(path, &result);
  }
  if (o->run.reference)
    status = cli_compare_with_reference(o, s, d->inputs, d->n_inputs, status, &result, json);
  if (o->run.check != NULL && (status == CLI_DONE || status == CLI_CHECK_FAILED) &&
      result.outputs != NULL) {
    cli_rounding *rounding = calloc((size_t)result.n_outputs + 1, sizeof(*rounding));
    const cli_session alone = cli_alone(s);
    int checked = rounding == NULL    ? cli_fail("out of memory")
                  : s->team_rank != 0 ? CLI_DONE /* process 0 has the outputs */
                                      : find_rounding(o, &alone, d, &result, tolerance, rounding);
    if (checked == CLI_DONE)
      checked = check_outputs(o, s, name, d, &result, tolerance, rounding, json);
    free(rounding);
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

/* An error of one data set alone does not stop the next. An error after it has been read (options,
 * the model, a plan, a failure) would recur, so it is reported once. */
static int run_sets(const cli_options *o, cli_session *s, const char *directory,
                    const numbered_list *sets, const cli_json *json) {
  double tolerance = -1;
  int worst = folder_tolerance(directory, &tolerance);
  bool goes_on = worst == CLI_DONE;
  data_set *d = calloc(1, sizeof(*d));
  if (d == NULL)
    return cli_fail("out of memory");
  for (uint32_t k = 0; k < sets->n && goes_on; ++k) {
    const char *name = sets->items[k].name;
    char path[PATH_ROOM];
    if (json->file != NULL)
      (void)fprintf(json->file, "%s{\"name\": \"%s\", ", k == 0 ? "" : ",\n", name);
    (void)snprintf(path, sizeof(path), "%s/%s", directory, name);
    int status = read_tensors(s, path, true, d);
    if (status == CLI_DONE)
      status = read_tensors(s, path, false, d);
    if (status == CLI_DONE)
      status = check_is_whole(o, s, path, d);
    goes_on = status != CLI_FAILED;
    if (status == CLI_DONE) {
      status = run_set(o, s, name, d, tolerance, json);
      goes_on = status == CLI_DONE || status == CLI_CHECK_FAILED;
    }
    if (json->file != NULL)
      (void)fputs("}", json->file);
    for (uint32_t i = 0; i < TENSORS_MOST; ++i) {
      cli_tensor_free(&d->inputs[i]);
      cli_tensor_free(&d->outputs[i]);
    }
    worst = status > worst ? status : worst;
  }
  free(d);
  return worst;
}

static int run_all(const cli_options *o, cli_session *s, const char *directory,
                   const numbered_list *sets) {
  cli_json json;
  int status = cli_json_begin(o, &json);
  if (json.file != NULL)
    (void)fputs("{\"data_sets\": [", json.file);
  if (status == CLI_DONE)
    status = run_sets(o, s, directory, sets, &json);
  if (json.file != NULL)
    (void)fputs("]}\n", json.file);
  return cli_json_end(&json, status);
}

int cli_run_folder(const cli_options *o) {
  char model[PATH_ROOM];
  cli_session s = {.api = NULL};
  cli_options own = *o;
  numbered_list sets;
  (void)snprintf(model, sizeof(model), "%s/model.onnx", o->model);
  own.model = model;
  int status = list_numbered(o->model, "test_data_set_", "", &sets);
  if (status == CLI_DONE && sets.n != 0 && o->inputs.n != 0) {
    status = cli_usage("--input %s: the data sets of %s already give the inputs",
                       o->inputs.items[0], o->model);
  } else if (status == CLI_DONE && sets.n == 0 && o->run.check != NULL) {
    status = cli_usage("%s has no test_data_set_0 to check", o->model);
  } else if (status == CLI_DONE && sets.n == 0) {
    status = cli_run(&own); /* a folder without data sets: as for its model */
  } else if (status == CLI_DONE) {
    status = cli_open(&own, &s);
    if (status == CLI_DONE)
      status = cli_join(&own, &s);
    if (status == CLI_DONE)
      status = run_all(&own, &s, o->model, &sets);
    status = cli_part(&s, status);
  }
  cli_close(&s);
  free(sets.items);
  return status;
}
