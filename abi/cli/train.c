/* SPDX-License-Identifier: Apache-2.0 */
/* train MODEL: prints the plan, lets train_loop.c run it, prints what came of it. */
#include "train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* JSON has no infinities. */
static void print_number(const char *name, double value) {
  if (isfinite(value))
    (void)printf(", \"%s\": %.9g", name, value);
  else
    (void)printf(", \"%s\": null", name);
}

static void print_text(const char *text) {
  (void)putchar('"');
  for (const unsigned char *at = (const unsigned char *)text; *at != '\0'; ++at) {
    if (*at == '"' || *at == '\\' || *at < ' ')
      (void)printf("\\u%04x", *at);
    else
      (void)putchar(*at);
  }
  (void)putchar('"');
}

static void print_json(const cli_gathered *plan, const train_result *r) {
  static const char *const reasons[] = {"null", "\"overflow\"", "\"not finite\"", "\"held\""};
  (void)printf("{\"plan\": %.*s, \"steps\": [", (int)plan->n, plan->data);
  for (uint64_t i = 0; i < r->n_steps; ++i) {
    const opipe_train_report *p = &r->reports[i];
    (void)printf("%s\n  {\"step\": %llu", i == 0 ? "" : ",", (unsigned long long)p->step);
    print_number("loss", p->loss);
    print_number("gradient_norm", p->gradient_norm);
    (void)printf(
        ", \"lr\": %.9g, \"count\": %.17g, \"skipped\": %s, \"why\": %s, "
        "\"seconds\": %.6f}",
        p->lr, p->count, p->skipped != OPIPE_SKIP_NONE ? "true" : "false",
        reasons[p->skipped <= OPIPE_SKIP_HELD ? p->skipped : 0], r->seconds[i]);
  }
  (void)printf("\n], \"not_finite\": %llu, \"stopped\": ", (unsigned long long)r->n_not_finite);
  if (r->stopped[0] == '\0')
    (void)printf("null");
  else
    print_text(r->stopped);
  (void)printf("}\n");
}

/* Text goes out at once; JSON is kept for the end. */
static int show_plan(const train_setup *t, cli_gathered *json) {
  opipe_error err = OPIPE_ERROR_INIT;
  if (t->strategy.api != NULL && cli_give_strategy(&t->o, &t->strategy, false) != CLI_DONE)
    return CLI_FAILED;
  const opipe_status status =
      t->o.json
          ? t->s.api->plan_describe(t->s.plan, OPIPE_FORMAT_JSON, cli_gather, json, &err)
          : t->s.api->plan_describe(t->s.plan, OPIPE_FORMAT_TEXT, cli_write_stdout, NULL, &err);
  if (status < 0)
    return cli_report("plan", &err);
  while (json->n != 0 && json->data[json->n - 1] == '\n')
    --json->n;
  return fflush(stdout) == 0 ? CLI_DONE : cli_usage("cannot write the output");
}

static int train(train_setup *t) {
  const cli_options *o = &t->o;
  cli_gathered plan = {NULL, 0, 0};
  train_result result;
  int status = show_plan(t, &plan);
  memset(&result, 0, sizeof(result));
  t->run.keep = o->reference;
  t->run.session_flags =
      cli_session_flags(o) | (o->t.go_on ? 0u : OPIPE_SESSION_HOLD) |
      (o->reference || o->t.save_gradients != NULL ? OPIPE_SESSION_KEEP_GRADIENTS : 0u);
  if (status == CLI_DONE)
    status = train_go(&t->run, &result);
  if (o->json && status != CLI_FAILED && status != CLI_USAGE)
    print_json(&plan, &result);
  if (status == CLI_DONE && o->reference)
    status = train_reference(&t->run, &result);
  train_result_free(&result);
  free(plan.data);
  return status;
}

int cli_train(const cli_options *o) {
  if (o->t.save_every != 0 && o->t.save == NULL)
    return cli_usage("--save-every needs --save DIR");
  if (o->t.go_on && o->check_finite) {
    return cli_usage(
        "--check-finite ends at the first value that is not finite, --go-on does not: give only "
        "one of them");
  }
  train_setup *t = calloc(1, sizeof(*t));
  if (t == NULL)
    return cli_usage("out of memory");
  int status = train_setup_open(t, o, true);
  if (status == CLI_DONE)
    status = train(t);
  train_setup_close(t);
  free(t);
  return status;
}
