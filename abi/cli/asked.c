/* SPDX-License-Identifier: Apache-2.0 */
/* What the options ask of a pipeline's shape, for messages about what does not go together. */
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
