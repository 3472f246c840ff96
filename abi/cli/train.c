/* SPDX-License-Identifier: Apache-2.0 */
/* train MODEL: options, data, plan; train_loop.c runs it.
 */
#include "train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VOCABULARY = 256, BATCH = 8, BATCH_MOST = 64 };

/* JSON has no infinities. */
static void print_number(const char *name, double value) {
  if (isfinite(value))
    (void)printf(", \"%s\": %.9g", name, value);
  else
    (void)printf(", \"%s\": null", name);
}

static void print_json(const train_result *r) {
  (void)printf("{\"steps\": [");
  for (uint64_t i = 0; i < r->n_steps; ++i) {
    const opipe_train_report *p = &r->reports[i];
    (void)printf("%s\n  {\"step\": %llu", i == 0 ? "" : ",", (unsigned long long)p->step);
    print_number("loss", p->loss);
    print_number("gradient_norm", p->gradient_norm);
    (void)printf(", \"lr\": %.9g, \"count\": %.17g, \"skipped\": %s, \"seconds\": %.6f}", p->lr,
                 p->count, p->skipped != 0 ? "true" : "false", r->seconds[i]);
  }
  (void)printf("\n]}\n");
}

/* The model's inputs among the data, as one mini-batch: what binding looks at. */
static int bind(const cli_options *o, cli_session *s, const cli_data *data, uint32_t batch) {
  opipe_tensor_info info = {.struct_size = sizeof(info)};
  cli_tensor *forms = calloc(DATA_MOST, sizeof(*forms));
  cli_tensor *inputs = calloc(DATA_MOST, sizeof(*inputs)); /* share the data of forms */
  uint64_t *rows = calloc(batch, sizeof(*rows));
  uint32_t n = 0;
  int status =
      forms == NULL || inputs == NULL || rows == NULL || !cli_data_batch_form(data, batch, forms)
          ? cli_usage("out of memory")
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
    if (a == data->n) {
      status = cli_usage("the data lack input '%s'", info.name);
    } else {
      inputs[n++] = forms[a];
    }
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

/* Is `key` among the names joined by ','? */
static bool is_listed(const char *names, const char *key) {
  const size_t n = strlen(key);
  for (const char *at = names; at != NULL && *at != '\0';) {
    if (strncmp(at, key, n) == 0 && (at[n] == ',' || at[n] == '\0'))
      return true;
    at = strchr(at, ',');
    at = at == NULL ? NULL : at + 1;
  }
  return false;
}

/* The samples' dimension by all its names: the first of every input, where they are free. */
static void name_batch(const cli_session *s, char *out, size_t room) {
  opipe_tensor_info info = {.struct_size = sizeof(info)};
  size_t n = 0;
  out[0] = '\0';
  for (uint32_t i = 0; s->api->model_input(s->file, i, &info, NULL) == OPIPE_OK; ++i) {
    char key[300];
    if (info.rank == 0 || info.shape[0] >= 0)
      continue;
    if (info.dim_names != NULL && info.dim_names[0] != NULL && info.dim_names[0][0] != '\0') {
      (void)snprintf(key, sizeof(key), "%s", info.dim_names[0]);
    } else {
      (void)snprintf(key, sizeof(key), "%s.0", info.name);
    }
    if (is_listed(out, key))
      continue;
    if (n + strlen(key) + 2 > room)
      return;
    n += (size_t)snprintf(out + n, room - n, "%s%s", n == 0 ? "" : ",", key);
  }
}

static int train_bound(train_run *run, cli_train_own *own, opipe_train_options *options) {
  const cli_options *o = run->o;
  train_result result;
  int status = cli_train_read(o, run->n_steps, run->data->is_text, own, options);
  if (status == CLI_DONE)
    status = cli_make_train_plan(o, run->s, 1, options, &run->s->plan);
  if (status != CLI_DONE)
    return status;
  run->plan = run->s->plan;
  run->options = options;
  run->keep = o->reference;
  if (o->check_finite)
    run->session_flags |= OPIPE_SESSION_CHECK_FINITE;
  if (o->reference || o->t.save_gradients != NULL)
    run->session_flags |= OPIPE_SESSION_KEEP_GRADIENTS;
  status = train_go(run, &result);
  if (status == CLI_DONE && o->json)
    print_json(&result);
  if (status == CLI_DONE && o->reference)
    status = train_reference(run, &result);
  train_result_free(&result);
  return status;
}

static int choose_batch(const cli_options *o, const cli_data *data, train_run *run) {
  const uint64_t n = data->n_samples;
  run->batch = o->t.batch != 0 ? o->t.batch : n <= BATCH_MOST ? (uint32_t)n : (uint32_t)BATCH;
  if (run->batch > n) {
    return cli_usage("--batch %u: the data have %llu samples", run->batch, (unsigned long long)n);
  }
  if (o->n_microbatches > run->batch) {
    return cli_usage("--microbatches %u: the mini-batch has %u samples", o->n_microbatches,
                     run->batch);
  }
  run->n_steps = o->t.n_steps != 0 ? o->t.n_steps : n / run->batch;
  return CLI_DONE;
}

int cli_train(const cli_options *given) {
  static cli_options own_options; /* large: not on the stack */
  static char batch[4096];
  const cli_options *o = &own_options;
  cli_session s;
  cli_train_own *own = calloc(1, sizeof(*own));
  cli_data *data = calloc(1, sizeof(*data));
  opipe_train_options options;
  train_run run = {.o = o, .s = &s, .data = data};
  own_options = *given;
  if (own == NULL || data == NULL) {
    free(own);
    free(data);
    return cli_usage("out of memory");
  }
  if (o->t.save_every != 0 && o->t.save == NULL) {
    free(own);
    free(data);
    return cli_usage("--save-every needs --save DIR");
  }
  int status = cli_open(o, &s);
  if (status == CLI_DONE)
    status = cli_train_read(o, 1, 0, own, &options);
  if (status == CLI_DONE)
    status = cli_data_open(o, &s, options.labels, data);
  if (status == CLI_DONE)
    status = choose_batch(o, data, &run);
  if (status == CLI_DONE)
    status = bind(o, &s, data, run.batch);
  if (status == CLI_DONE)
    status = check_vocabulary(&s, data);
  if (status == CLI_DONE && o->batch == NULL) {
    name_batch(&s, batch, sizeof(batch));
    own_options.batch = batch[0] == '\0' ? NULL : batch;
  }
  if (status == CLI_DONE)
    status = train_bound(&run, own, &options);
  cli_close(&s);
  cli_data_close(data);
  free(data);
  free(own);
  return status;
}
