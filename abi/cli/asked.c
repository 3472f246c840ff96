/* SPDX-License-Identifier: Apache-2.0 */
/* What was asked for, and is not possible: of a pipeline's shape, of a model's inputs. */
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

/* "--replicas 2,1 --stages 3". False: less than two options, which cannot contradict each other. */
static bool shape_asked(const cli_options *o, char *out, size_t room) {
  text t = {out, room, 0};
  out[0] = '\0';
  if (o->t.replicas != NULL)
    add(&t, "replicas", o->t.replicas);
  add_number(&t, "stages", o->n_stages);
  add_number(&t, "ranks", o->n_ranks);
  if (o->schedule != NULL)
    add(&t, "schedule", o->schedule);
  if (o->t.replicas != NULL)
    add_number(&t, "microbatches", o->n_microbatches);
  return t.n > 1;
}

void cli_report_plan(const cli_options *o, bool of_shape, const opipe_error *err) {
  char asked[200], what[220];
  const bool shows = shape_asked(o, asked, sizeof(asked)) && of_shape;
  (void)snprintf(what, sizeof(what), "plan%s%s", shows ? ": " : "", shows ? asked : "");
  (void)cli_report(what, err);
}

int cli_no_input(const cli_session *s, const char *where, const char *name) {
  char inputs[400];
  size_t n = 0;
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
  return cli_usage("%s: the model has no input '%s'; %s%s", where, name,
                   n == 0 ? "it has none" : "its inputs are ", n == 0 ? "" : inputs);
}
