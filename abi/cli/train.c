/* SPDX-License-Identifier: Apache-2.0 */
/* train MODEL: prints the plan, lets train_loop.c run it, prints the results. */
#include "train.h"
#include "progress.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define CHECKPOINT "onnx-pipe checkpoint" /* format of a checkpoint's manifest */

static void put_number(FILE *json, const char *name, double value) {
  (void)fprintf(json, ", \"%s\": ", name);
  cli_json_number(json, value);
}

static void put_steps(const train_result *r, FILE *json) {
  static const char *const reasons[] = {"null", "\"overflow\"", "\"not finite\"", "\"held\""};
  (void)fputs(", \"steps\": [", json);
  for (uint64_t i = 0; i < r->n_steps; ++i) {
    const opipe_train_report *p = &r->reports[i];
    (void)fprintf(json, "%s\n  {\"step\": %llu", i == 0 ? "" : ",", (unsigned long long)p->step);
    put_number(json, "loss", p->loss);
    put_number(json, "gradient_norm", p->gradient_norm);
    put_number(json, "loss_scale", p->loss_scale);
    (void)fprintf(json,
                  ", \"lr\": %.9g, \"count\": %.17g, \"skipped\": %s, \"why\": %s, "
                  "\"seconds\": %.9f}",
                  p->lr, p->count, p->skipped != OPIPE_SKIP_NONE ? "true" : "false",
                  reasons[p->skipped <= OPIPE_SKIP_HELD ? p->skipped : 0], r->seconds[i]);
  }
  (void)fprintf(json,
                "\n], \"not_finite\": %llu, \"stopped\": ", (unsigned long long)r->n_not_finite);
  if (r->stopped[0] == '\0')
    (void)fputs("null", json);
  else
    cli_json_text(json, r->stopped);
}

/* Text is printed at once; JSON is kept for the end. */
static int show_plan(const train_setup *t, const cli_json *json) {
  opipe_error err = OPIPE_ERROR_INIT;
  const bool people = json->file == NULL;
  if (t->strategy.api != NULL && cli_give_strategy(&t->o, &t->strategy, false) != CLI_DONE)
    return CLI_FAILED;
  if (!people)
    (void)fputs("{\"plan\": ", json->file);
  const uint32_t format = people ? OPIPE_FORMAT_TEXT : OPIPE_FORMAT_JSON;
  if (t->s.api->plan_describe(t->s.plan, format, cli_write_stream, people ? stdout : json->file,
                              &err) < 0)
    return cli_report("plan", &err);
  if (!people && cli_put_account(&t->o, &t->s, &t->options, json->file) != CLI_DONE)
    return CLI_FAILED;
  return fflush(stdout) == 0 ? CLI_DONE : cli_usage("cannot write the output");
}

static int train(train_setup *t) {
  const cli_options *o = &t->o;
  train_result result;
  cli_json json;
  int status = cli_json_begin(o, &json);
  memset(&result, 0, sizeof(result));
  t->run.keep = o->run.reference;
  t->run.session_flags =
      cli_session_flags(o) | (o->t.go_on ? 0u : OPIPE_SESSION_HOLD) |
      (o->run.reference || o->t.save_gradients != NULL ? OPIPE_SESSION_KEEP_GRADIENTS : 0u);
  if (status == CLI_DONE)
    status = show_plan(t, &json);
  if (status == CLI_DONE)
    status = train_go(&t->run, &result);
  if (json.file != NULL)
    put_steps(&result, json.file);
  if (o->run.reference)
    status = cli_agree(&t->s, "before the reference", status);
  if (status == CLI_DONE && o->run.reference)
    status = train_reference(&t->run, &result, &json);
  if (json.file != NULL)
    (void)fputs("}\n", json.file);
  train_result_free(&result);
  return cli_json_end(&json, status);
}

/* No two options may write the same file. */
static int check_targets(const cli_options *o) {
  const struct {
    const char *option, *path;
  } targets[] = {{"save", o->t.save},
                 {"save-model", o->t.save_model},
                 {"save-gradients", o->t.save_gradients},
                 {"trace", o->out.trace}};
  enum { N = sizeof targets / sizeof targets[0] };
  for (uint32_t i = 0; i < N; ++i) {
    for (uint32_t k = i + 1; k < N; ++k) {
      const char *one = targets[i].path, *other = targets[k].path;
      if (one == NULL || other == NULL || !cli_same_place(one, other))
        continue;
      return cli_usage("--%s and --%s would both write %s", targets[i].option, targets[k].option,
                       other);
    }
  }
  return CLI_DONE;
}

/* True if the folder has a checkpoint, complete or damaged. A manifest of another program does not
 * count: the library refuses to replace it. */
static bool holds_checkpoint(const char *folder) {
  char path[PATH_MAX];
  struct stat st;
  if (snprintf(path, sizeof(path), "%s/manifest.json", folder) >= PATH_MAX || lstat(path, &st) != 0)
    return false;
  json_t *root = json_load_file(path, 0, NULL);
  const char *format = json_string_value(json_object_get(root, "format"));
  const bool ours = root == NULL || format == NULL || strcmp(format, CHECKPOINT) == 0;
  json_decref(root);
  return ours;
}

/* A checkpoint is replaced only by the run that resumes it, or on request. */
static int check_overwrite(const cli_options *o) {
  const char *folder = o->t.save;
  const bool resumes = folder != NULL && o->t.resume != NULL && cli_same_place(folder, o->t.resume);
  if (o->t.overwrite && folder == NULL)
    return cli_usage("--overwrite applies to --save DIR, which is not given");
  if (folder == NULL || o->t.overwrite || resumes || !holds_checkpoint(folder))
    return CLI_DONE;
  return cli_fail(
      "--save %s: the folder holds a checkpoint: --resume %s continues from it, --overwrite "
      "replaces it",
      folder, folder);
}

int cli_train(const cli_options *given) {
  cli_options restarted = *given;
  const cli_options *o = &restarted;
  cli_resume_restarted(&restarted);
  if (o->t.save_every != 0 && o->t.save == NULL)
    return cli_usage("--save-every needs --save DIR");
  if (o->t.go_on && o->run.check_finite) {
    return cli_usage(
        "--check-finite ends at the first value that is not finite, --go-on does not: give only "
        "one of them");
  }
  if (check_targets(o) != CLI_DONE)
    return CLI_USAGE;
  if (o->t.resume != NULL && !cli_is_there(o->t.resume))
    return cli_usage("--resume %s: there is no such folder", o->t.resume);
  const int may_save = check_overwrite(o);
  if (may_save != CLI_DONE)
    return may_save;
  train_setup *t = calloc(1, sizeof(*t));
  if (t == NULL)
    return cli_fail("out of memory");
  t->joins = true;
  struct sigaction before;
  cli_listen_to_save(&before); /* also while it opens, when it waits for the first step */
  int status = train_setup_open(t, o, true);
  if (status == CLI_DONE)
    status = train(t);
  status = cli_part(&t->s, status);
  cli_stop_listening_to_save(&before);
  train_setup_close(t);
  free(t);
  return status;
}
