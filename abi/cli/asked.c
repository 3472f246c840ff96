/* SPDX-License-Identifier: Apache-2.0 */
/* Messages about requests that cannot be met: a pipeline's shape, a model's inputs. */
#include <string.h>

#include "cli.h"

typedef struct text {
  char *at;
  size_t room;
  uint32_t n; /* options in it */
} text;

static void add(text *t, const char *option, const char *value) {
  const int n = snprintf(t->at, t->room, "%s--%s %s", t->n == 0 ? "" : " ", option, value);
  const size_t used = n < 0 ? 0 : (size_t)n < t->room ? (size_t)n : t->room - 1;
  t->at += used;
  t->room -= used;
  ++t->n;
}

static void add_number(text *t, const char *option, uint32_t value) {
  char digits[16];
  (void)snprintf(digits, sizeof(digits), "%u", value);
  if (value != 0)
    add(t, option, digits);
}

/* Writes the options given, "--replicas 2,1 --stages 3". False: fewer than two, which cannot
 * contradict each other. */
static bool shape_asked(const cli_options *o, char *out, size_t room) {
  text t = {out, room, 0};
  out[0] = '\0';
  if (o->t.replicas != NULL)
    add(&t, "replicas", o->t.replicas);
  add_number(&t, "tensor", o->t.tensor);
  add_number(&t, "stages", o->plan.n_stages);
  add_number(&t, "ranks", o->plan.n_ranks);
  if (o->plan.schedule != NULL)
    add(&t, "schedule", o->plan.schedule);
  if (o->t.replicas != NULL)
    add_number(&t, "microbatches", o->plan.n_microbatches);
  return t.n > 1;
}

void cli_report_plan(const cli_options *o, bool of_shape, const opipe_error *err) {
  char asked[200], what[220];
  const bool shows = shape_asked(o, asked, sizeof(asked)) && of_shape;
  (void)snprintf(what, sizeof(what), "plan%s%s", shows ? ": " : "", shows ? asked : "");
  (void)cli_report(what, err);
}

/* ---- contradicting sizes ---- */

/* Name of an input's dimension, or NULL. */
static const char *dim_name(const opipe_tensor_info *info, uint32_t axis) {
  const char *name = info->dim_names == NULL ? NULL : info->dim_names[axis];
  return name == NULL || name[0] == '\0' ? NULL : name;
}

/* The number that --bind gives to a name; -1: none. */
static int64_t bound_to(const cli_options *o, const char *name) {
  for (uint32_t i = 0; i < o->graph.bind.n; ++i) {
    cli_dim_text dim = {.next = o->graph.bind.items[i]};
    while (cli_bind_next(o->graph.bind.items[i], &dim) == CLI_DONE && dim.name != NULL) {
      if (strlen(name) == dim.n_name && memcmp(dim.name, name, dim.n_name) == 0)
        return dim.value;
    }
  }
  return -1;
}

typedef struct said { /* a dimension with a given size */
  opipe_tensor_info info;
  const cli_tensor *tensor;
  uint32_t axis;
} said;

static void put_size(char *out, size_t room, const said *one, bool whole) {
  const int64_t n = one->tensor->shape[one->axis];
  if (one->axis == 0) {
    (void)snprintf(out, room, "%s%s%lld%s", one->info.name, whole ? " has " : " ", (long long)n,
                   whole ? " rows" : "");
  } else {
    (void)snprintf(out, room, "%s%s%lld%s%u", one->info.name, whole ? " has " : " ", (long long)n,
                   " along axis ", one->axis);
  }
}

/* Finds the first dimension with this name for which a tensor before `one` has another size. */
static bool find_other(const cli_session *s, const cli_tensor *tensors, const said *one,
                       said *out) {
  const char *name = dim_name(&one->info, one->axis);
  for (out->tensor = tensors; name != NULL && out->tensor < one->tensor; ++out->tensor) {
    if (!cli_input_info(s, out->tensor->name, strlen(out->tensor->name), &out->info))
      continue;
    for (out->axis = 0; out->axis < out->info.rank && out->axis < out->tensor->rank; ++out->axis) {
      const char *other = dim_name(&out->info, out->axis);
      if (out->info.shape[out->axis] < 0 && other != NULL && strcmp(other, name) == 0 &&
          out->tensor->shape[out->axis] != one->tensor->shape[one->axis])
        return true;
    }
  }
  return false;
}

bool cli_contradiction(const cli_options *o, const cli_session *s, const cli_tensor *tensors,
                       uint32_t n, char *out, size_t room) {
  said one, other;
  char a[300], b[300];
  for (one.tensor = tensors; one.tensor < tensors + n; ++one.tensor) {
    if (!cli_input_info(s, one.tensor->name, strlen(one.tensor->name), &one.info))
      continue;
    for (one.axis = 0; one.axis < one.info.rank && one.axis < one.tensor->rank; ++one.axis) {
      const char *name = dim_name(&one.info, one.axis);
      if (one.info.shape[one.axis] >= 0 || name == NULL)
        continue;
      const int64_t bound = bound_to(o, name);
      put_size(a, sizeof(a), &one, true);
      if (bound >= 0 && bound != one.tensor->shape[one.axis]) {
        (void)snprintf(out, room, "%s, --bind says %s=%lld", a, name, (long long)bound);
        return true;
      }
      if (!find_other(s, tensors, &one, &other))
        continue;
      put_size(a, sizeof(a), &other, true);
      put_size(b, sizeof(b), &one, false);
      (void)snprintf(out, room, "%s, %s: both are dimension '%s'", a, b, name);
      return true;
    }
  }
  return false;
}

bool cli_is_wrong_setting(const char *spec, const char *message) {
  const char *at = spec == NULL ? NULL : strchr(spec, ':');
  char pair[200];
  while (at != NULL && *at != '\0') {
    const size_t n = strcspn(++at, ",");
    (void)snprintf(pair, sizeof(pair), "%.*s", n < sizeof(pair) ? (int)n : (int)sizeof(pair) - 1,
                   at);
    if (pair[0] != '\0' && strstr(message, pair) != NULL && strncmp(spec, "file:", 5) != 0)
      return true;
    at += n;
  }
  return false;
}

int cli_no_input(const cli_session *s, const char *where, const char *name) {
  char inputs[400], meant[OPI_NEAREST_ROOM];
  size_t n = 0;
  opi_nearest nearest = {.word = name, .n = strlen(name)};
  opipe_tensor_info info = {.struct_size = sizeof(info)};
  for (uint32_t i = 0; s->api->model_input(s->file, i, &info, NULL) == OPIPE_OK; ++i) {
    const int more =
        snprintf(inputs + n, sizeof(inputs) - n, "%s'%s'", i == 0 ? "" : ", ", info.name);
    if (more < 0 || n + (size_t)more >= sizeof(inputs) - strlen(", ...")) {
      (void)snprintf(inputs + n, sizeof(inputs) - n, "%s...", i == 0 ? "" : ", ");
      n = 1;
      break;
    }
    n += (size_t)more;
  }
  for (uint32_t i = 0; s->api->model_input(s->file, i, &info, NULL) == OPIPE_OK; ++i)
    opi_nearest_look(&nearest, info.name);
  return cli_usage("%s: the model has no input '%s'; %s%s%s", where, name,
                   n == 0 ? "it has none" : "its inputs are ", n == 0 ? "" : inputs,
                   opi_nearest_words(&nearest, meant, sizeof(meant)));
}
