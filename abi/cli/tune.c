/* SPDX-License-Identifier: Apache-2.0 */
/* tune: measures the kernels of a plan on one device and writes the table into the plan's file. */
#include <stdlib.h>

#include "cli.h"

typedef struct tally {
  bool json;
  uint32_t n, n_changed; /* kernels; of these, those for which another choice is faster */
  double own_ns, ns;     /* sums */
} tally;

static void show(void *ctx, const opipe_tuned *tuned) {
  tally *all = ctx;
  const char *comma = all->n == 0 ? "" : ",";
  ++all->n;
  all->own_ns += tuned->own_ns;
  all->ns += tuned->ns;
  all->n_changed += tuned->ns < tuned->own_ns;
  if (all->json) { /* texts of one line, without quotes */
    (void)printf(
        "%s\n  {\"what\": \"%s\", \"choice\": \"%s\", \"tried\": %u, \"dropped\": %u, "
        "\"own_us\": %.3f, \"us\": %.3f}",
        comma, tuned->what, tuned->choice, tuned->n_tried, tuned->n_dropped, tuned->own_ns * 1e-3,
        tuned->ns * 1e-3);
    return;
  }
  (void)printf("%s\n    %s\n    %.3f us, by the backend's own choice %.3f; %u tried", tuned->what,
               tuned->choice, tuned->ns * 1e-3, tuned->own_ns * 1e-3, tuned->n_tried);
  if (tuned->n_dropped != 0)
    (void)printf(", %u dropped: other bits in every run", tuned->n_dropped);
  (void)printf("\n");
}

static void sum_up(const tally *all, const char *path) {
  if (all->json) {
    (void)printf("\n], \"kernels\": %u, \"changed\": %u, \"own_us\": %.3f, \"us\": %.3f}\n", all->n,
                 all->n_changed, all->own_ns * 1e-3, all->ns * 1e-3);
    return;
  }
  (void)printf(
      "%u kernels, %u of them faster by another choice: each once takes %.3f us, before "
      "%.3f; written to %s\n",
      all->n, all->n_changed, all->ns * 1e-3, all->own_ns * 1e-3, path);
}

static int read_plan(const cli_options *o, cli_session *s) {
  opipe_error err = OPIPE_ERROR_INIT;
  void *json = NULL;
  size_t n = 0;
  const int found = cli_file_read(o->plan.plan_file, &json, &n);
  if (found != CLI_DONE)
    return found;
  const opipe_status status = s->api->plan_read(s->file, json, n, &s->plan, &err);
  free(json);
  return status < 0 ? cli_report(o->plan.plan_file, &err) : CLI_DONE;
}

static int measure(const cli_options *o, cli_session *s) {
  const char *path = o->out.output != NULL ? o->out.output : o->plan.plan_file;
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_plan *tuned = NULL;
  cli_gathered g = {NULL, 0, 0};
  tally all = {.json = o->out.json};
  const opipe_tuning_params params = {.struct_size = sizeof params,
                                      .kind = o->on.devices[0].kind,
                                      .index = o->on.devices[0].index,
                                      .n_candidates = o->tune.n_candidates,
                                      .n_runs = o->tune.n_runs,
                                      .measured = show,
                                      .measured_ctx = &all};
  if (cli_try_file(path) != CLI_DONE)
    return CLI_FAILED;
  if (o->out.json)
    (void)printf("{\"measured\": [");
  if (s->api->plan_tune(s->plan, &params, &tuned, &err) < 0) {
    if (o->out.json)
      (void)printf("\n]}\n");
    return cli_report("tune", &err);
  }
  const int status =
      cli_write_gathered(s->api->plan_write(tuned, cli_gather, &g, &err), path, &g, &err);
  s->api->plan_destroy(tuned);
  if (status == CLI_DONE)
    sum_up(&all, path);
  return status;
}

/* PLAN MODEL, in either order, or MODEL --plan PLAN: a plan does not record its model's file. */
static int take_files(cli_options *o) {
  char **files = o->operands;
  const bool first = o->n_operands > 0 && cli_is_plan_file(files[0]);
  const bool second = o->n_operands > 1 && cli_is_plan_file(files[1]);
  const uint32_t wanted = o->plan.plan_file == NULL ? 2 : 1;
  if (o->n_operands == 1 && wanted == 2) {
    return first ? cli_usage(
                       "tune %s: a plan does not say where its model is: 'onnx-pipe tune %s "
                       "MODEL', or 'tune MODEL --plan %s'",
                       files[0], files[0], files[0])
                 : cli_usage(
                       "tune %s: its plan is needed, --plan FILE, as 'onnx-pipe plan %s -o "
                       "FILE' writes it",
                       files[0], files[0]);
  }
  if (o->n_operands != wanted) {
    return cli_usage(
        "tune takes PLAN MODEL, or MODEL --plan PLAN, %u operands were given%s "
        "('onnx-pipe tune --help')",
        o->n_operands, o->plan.plan_file == NULL ? "" : " beside --plan");
  }
  if (wanted == 1 && first) {
    return cli_usage("tune %s --plan %s: the first is a plan too, its model is needed", files[0],
                     o->plan.plan_file);
  }
  if (wanted == 2 && first == second) {
    return cli_usage("tune %s %s: %s, a plan and its model are needed", files[0], files[1],
                     first ? "both are plans" : "neither is a plan");
  }
  o->model = wanted == 1 || second ? files[0] : files[1];
  if (wanted == 2)
    o->plan.plan_file = first ? files[0] : files[1];
  return CLI_DONE;
}

int cli_tune(const cli_options *given) {
  cli_session s;
  cli_options own = *given;
  const cli_options *o = &own;
  if (take_files(&own) != CLI_DONE)
    return CLI_USAGE;
  if (o->on.n_devices != 1 || o->on.devices[0].options != NULL ||
      o->on.devices[0].memory_bytes != 0) {
    return cli_usage(
        "tune: one --device KIND[:N] is needed; its options are those of the plan, "
        "%u were given",
        o->on.n_devices);
  }
  int status = cli_open(o, &s);
  if (status == CLI_DONE)
    status = read_plan(o, &s);
  if (status == CLI_DONE)
    status = measure(o, &s);
  cli_close(&s);
  return status;
}
