/* SPDX-License-Identifier: Apache-2.0 */
/* From options to a training plan: model, options, data, mini-batch, binding. `plan --train` works
 * without data. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "loader/base/sizes.h"
#include "train.h"

enum { VOCABULARY = 256, BATCH = 8, BATCH_MOST = 64 };

/* Binds the model to one mini-batch of the inputs in the data. */
static int bind(const cli_options *o, cli_session *s, const cli_data *data, uint32_t batch) {
  opipe_tensor_info info = {.struct_size = sizeof(info)};
  cli_tensor *forms = calloc(DATA_MOST, sizeof(*forms));
  cli_tensor *inputs = calloc(DATA_MOST, sizeof(*inputs)); /* their data is shared */
  uint64_t *rows = calloc(batch, sizeof(*rows));
  uint32_t n = 0;
  int status =
      forms == NULL || inputs == NULL || rows == NULL || !cli_data_batch_form(data, batch, forms)
          ? cli_fail("out of memory")
          : CLI_DONE;
  for (uint32_t r = 0; status == CLI_DONE && r < batch; ++r)
    rows[r] = r;
  if (status == CLI_DONE)
    cli_data_batch(data, rows, batch, forms);
  for (uint32_t i = 0;
       status == CLI_DONE && s->api->model_input(s->file, i, &info, NULL) == OPIPE_OK; ++i) {
    uint32_t a = 0;
    while (a < data->n && strcmp(forms[a].name, info.name) != 0)
      ++a;
    if (a != data->n)
      inputs[n++] = forms[a];
    else if (!cli_is_pinned(o, info.name))
      status = cli_usage("the data has no input '%s': give it by --data or --pin", info.name);
  }
  if (status == CLI_DONE)
    status = cli_bind(o, s, inputs, n);
  for (uint32_t i = 0; forms != NULL && i < DATA_MOST; ++i)
    cli_tensor_free(&forms[i]);
  free(forms);
  free(inputs);
  free(rows);
  return status;
}

static int check_vocabulary(const cli_session *s, const cli_data *data) {
  opipe_tensor_info info = {.struct_size = sizeof(info)};
  for (uint32_t i = 0; data->is_text && s->api->model_input(s->bound, i, &info, NULL) == OPIPE_OK;
       ++i) {
    const bool ids = strstr(info.name, "mask") == NULL && strstr(info.name, "position") == NULL &&
                     strstr(info.name, "type") == NULL;
    if (!ids || info.index_limit <= 0 || info.index_limit >= VOCABULARY)
      continue;
    (void)fprintf(stderr, "onnx-pipe: text: input '%s' has a vocabulary of %lld, bytes need %d\n",
                  info.name, (long long)info.index_limit, VOCABULARY);
    return CLI_FAILED;
  }
  return CLI_DONE;
}

/* Rows of the mini-batch of a plan's file, if there are as many; 0: not stated. */
static uint32_t rows_of_plan(const json_t *plan, uint64_t most) {
  const json_int_t rows = json_integer_value(json_object_get(plan, "batch_rows"));
  return rows < 0 || rows > UINT32_MAX || (uint64_t)rows > most ? 0 : (uint32_t)rows;
}

/* --steps, or --epochs times the mini-batches of an epoch. */
static int choose_steps(const cli_options *o, uint64_t per_epoch, train_run *run) {
  const uint64_t epochs = o->t.n_epochs == 0 ? 1 : o->t.n_epochs;
  if (o->t.n_epochs != 0 && o->t.n_steps != 0) {
    return cli_usage("--steps %llu and --epochs %llu both set the length: give only one",
                     (unsigned long long)o->t.n_steps, (unsigned long long)epochs);
  }
  if (__builtin_mul_overflow(epochs, per_epoch, &run->n_steps)) {
    return cli_usage("--epochs %llu: that many mini-batches cannot be counted",
                     (unsigned long long)epochs);
  }
  run->n_steps = o->t.n_steps != 0 ? o->t.n_steps : run->n_steps;
  run->n_steps -= o->t.n_steps_done < run->n_steps ? o->t.n_steps_done : run->n_steps;
  return CLI_DONE;
}

static int choose_batch(const cli_options *o, const cli_data *data, const json_t *plan,
                        train_run *run) {
  const uint64_t n = data->n_samples;
  run->batch = o->t.batch != 0 ? o->t.batch : rows_of_plan(plan, n);
  if (run->batch == 0)
    run->batch = n <= BATCH_MOST ? (uint32_t)n : (uint32_t)BATCH;
  if (run->batch > n)
    return cli_usage("--batch %u: the data have %llu samples", run->batch, (unsigned long long)n);
  if (o->plan.n_microbatches > run->batch) {
    return cli_usage("--microbatches %u: the mini-batch has %u samples", o->plan.n_microbatches,
                     run->batch);
  }
  return choose_steps(o, n / run->batch, run);
}

/* Without data the batch is --batch rows, or one for each micro-batch. */
static int bind_without_data(train_setup *t) {
  if (t->o.t.n_epochs != 0) {
    return cli_usage("--epochs %llu counts the samples of --data, which is not given: --steps N",
                     (unsigned long long)t->o.t.n_epochs);
  }
  t->run.n_steps = t->o.t.n_steps != 0 ? t->o.t.n_steps : 1;
  t->run.batch = t->o.t.batch;
  return cli_bind(&t->o, &t->s, NULL, 0);
}

static int bind_data(train_setup *t, const char *labels) {
  int status =
      cli_data_open(&t->o, &t->s, labels, t->options.loss == OPIPE_LOSS_CROSS_ENTROPY, &t->data);
  if (status == CLI_DONE && t->o.plan.batch == NULL && t->data.batch[0] != '\0')
    t->o.plan.batch = t->data.batch;
  if (status == CLI_DONE)
    status = choose_batch(&t->o, &t->data, t->plan_file, &t->run);
  if (status == CLI_DONE)
    status = bind(&t->o, &t->s, &t->data, t->run.batch);
  return status == CLI_DONE ? check_vocabulary(&t->s, &t->data) : status;
}

/* Bytes kept from forward to backward on all ranks. */
static uint64_t stash_bytes(const cli_session *s, opipe_plan *plan) {
  opipe_memory_info memory = {.struct_size = sizeof(memory)};
  uint64_t sum = 0;
  for (uint32_t r = 0; s->api->plan_memory(plan, r, &memory, NULL) == OPIPE_OK; ++r)
    sum += memory.stash_bytes;
  return sum;
}

/* Warns if recomputation saves no memory, instead of silently paying for it. If a plan without it
 * does not fit the memory, that also answers the question. */
static void judge_recompute(train_setup *t) {
  opipe_plan *plain = NULL;
  opipe_train_options options = t->options;
  if (options.recompute == OPIPE_RECOMPUTE_NONE || t->o.plan.plan_file != NULL ||
      t->s.team_rank != 0)
    return;
  options.recompute = OPIPE_RECOMPUTE_NONE;
  cli_session alone = t->s; /* the other processes need not know */
  alone.team = NULL;
  t->o.out.quiet = true;
  const int status = cli_make_train_plan(&t->o, &alone, 1, &options, &plain);
  t->o.out.quiet = false;
  if (status != CLI_DONE)
    return;
  const uint64_t with = stash_bytes(&t->s, t->s.plan), without = stash_bytes(&t->s, plain);
  t->s.api->plan_destroy(plain);
  if (with >= without) {
    (void)fprintf(
        stderr,
        "onnx-pipe: --recompute %s saves nothing: the stages keep %s for their backwards with "
        "it, %s without\n",
        t->o.t.recompute, OPI_SIZE(with), OPI_SIZE(without));
  }
}

/* ---- plans from files ---- */

/* Takes the loss of the plan's file, which is needed to open the data; the file can be read as a
 * plan only when the data have bound the model. Errors of the file are reported then. */
static void take_loss(train_setup *t) {
  if (t->o.plan.plan_file == NULL)
    return;
  t->plan_file = json_load_file(t->o.plan.plan_file, 0, NULL);
  const json_t *loss = json_object_get(json_object_get(t->plan_file, "training"), "loss");
  const char *kind = json_string_value(json_object_get(loss, "kind"));
  if (kind == NULL)
    return;
  t->options.labels = json_string_value(json_object_get(loss, "labels"));
  t->options.loss = strcmp(kind, "ce") == 0 ? OPIPE_LOSS_CROSS_ENTROPY : OPIPE_LOSS_OUTPUT;
}

static bool same_name(const char *a, const char *b) {
  return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

static bool same_loss(const opipe_train_options *a, const opipe_train_options *b) {
  return a->loss == b->loss && same_name(a->output, b->output) && same_name(a->labels, b->labels) &&
         a->ignore == b->ignore && a->smoothing == b->smoothing && a->shift == b->shift;
}

/* A plan from a file has its own training options. */
static int take_training(train_setup *t) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_train_options given;
  if (t->o.plan.plan_file == NULL)
    return CLI_DONE;
  const opipe_status found = t->s.api->plan_training(t->s.plan, &t->options, &err);
  if (found == OPIPE_E_NOTFOUND) {
    (void)cli_usage("--plan %s is a plan for inference: 'onnx-pipe run' takes it",
                    t->o.plan.plan_file);
    return CLI_FAILED;
  }
  if (found < 0)
    return cli_report(t->o.plan.plan_file, &err);
  const int status = cli_train_read(&t->o, 1, t->options.shift, &t->own, &given);
  if (status == CLI_DONE && t->o.t.loss != NULL && !same_loss(&given, &t->options)) {
    return cli_usage("--plan %s is a whole plan, which already settles --loss: it is not %s",
                     t->o.plan.plan_file, t->o.t.loss);
  }
  if (cli_was_given(&t->o, "seed") && t->o.seed != t->options.seed) {
    return cli_usage(
        "--plan %s is a whole plan, which already settles --seed: it is %llu, not %llu",
        t->o.plan.plan_file, (unsigned long long)t->options.seed, (unsigned long long)t->o.seed);
  }
  t->o.seed = t->options.seed; /* --shuffle uses it too */
  return status;
}

/* Updates in the checkpoint to resume, which is read later: learning rates continue from there. */
static uint64_t updates_before(const cli_options *o) {
  char path[PATH_MAX];
  if (o->t.resume == NULL ||
      snprintf(path, sizeof(path), "%s/manifest.json", o->t.resume) >= PATH_MAX)
    return 0;
  json_t *root = json_load_file(path, 0, NULL);
  const json_int_t updates = json_integer_value(json_object_get(root, "updates"));
  json_decref(root);
  return updates < 0 ? 0 : (uint64_t)updates;
}

uint64_t train_setup_batch(const train_setup *t) {
  return t->run.batch != 0 ? t->run.batch : cli_bound_batch(&t->s);
}

int train_setup_bind(train_setup *t, const cli_options *given, bool needs_data) {
  t->o = *given;
  t->run = (train_run){.o = &t->o, .s = &t->s, .data = &t->data, .options = &t->options};
  int status = cli_open(&t->o, &t->s);
  if (status == CLI_DONE && t->joins)
    status = cli_join(&t->o, &t->s);
  if (status == CLI_DONE)
    status = cli_train_read(&t->o, 1, 0, &t->own, &t->options);
  if (status == CLI_DONE)
    take_loss(t);
  if (status == CLI_DONE) {
    status =
        needs_data || t->o.t.data.n != 0 ? bind_data(t, t->options.labels) : bind_without_data(t);
  }
  if (status == CLI_DONE) {
    status = cli_train_read(&t->o, updates_before(&t->o) + t->run.n_steps, t->data.shifts, &t->own,
                            &t->options);
  }
  if (status == CLI_DONE)
    status = cli_check_globs(&t->o, &t->s, &t->options);
  return status;
}

int train_setup_open(train_setup *t, const cli_options *given, bool needs_data) {
  int status = train_setup_bind(t, given, needs_data);
  if (status == CLI_DONE)
    status = cli_check_planner(&t->o, &t->s);
  const bool planned = status == CLI_DONE && cli_asks_planner(&t->o, &t->s);
  if (planned) {
    if (t->s.team_rank == 0) {
      status = cli_planner_plan(&t->o, &t->s, &t->options, train_setup_batch(t), &t->strategy,
                                &t->s.plan);
    }
    if (status == CLI_DONE && t->s.team_rank == 0 && needs_data && t->s.plan == NULL)
      status = cli_usage("--hypothetical: there is no plan to run");
    status = cli_share_plan(&t->s, status);
  } else if (status == CLI_DONE) {
    status = cli_make_train_plan(&t->o, &t->s, 1, &t->options, &t->s.plan);
    if (status == CLI_DONE)
      status = take_training(t);
  }
  if (status == CLI_DONE && needs_data && t->s.plan == NULL)
    status = cli_usage("--hypothetical: there is no plan to run");
  t->run.plan = t->s.plan;
  if (status == CLI_DONE && !planned)
    judge_recompute(t);
  return status;
}

void train_setup_close(train_setup *t) {
  cli_strategy_end(&t->strategy);
  cli_close(&t->s);
  cli_data_close(&t->data);
  json_decref(t->plan_file);
}
