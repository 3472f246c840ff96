/* SPDX-License-Identifier: Apache-2.0 */
/* One training run: session, the loop over mini-batches, files, what is kept for a comparison.
 *
 * Two mini-batches are in flight: while one is trained the next is gathered, and double-buffered
 * schedules have what they need to go on. Results are printed in the order of mini-batches.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "train.h"

enum { IN_FLIGHT = 2 };

static double now_s(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

typedef struct batch_place { /* a mini-batch in flight */
  cli_tensor *tensors;       /* [data->n] */
  opipe_binding_io *inputs;
  opipe_request *ticket;
  double start_s;
} batch_place;

typedef struct loop {
  const train_run *run;
  opipe_session *session;
  batch_place places[IN_FLIGHT];
  uint64_t *order, *rows;
  uint64_t epoch, first; /* mini-batches before this run */
  uint64_t n_started, n_finished;
  double end_s; /* of the last that finished */
  train_result *out;
} loop;

static int open_places(loop *l) {
  const cli_data *data = l->run->data;
  l->order = calloc(data->n_samples, sizeof(*l->order));
  l->rows = calloc(l->run->batch, sizeof(*l->rows));
  bool ok = l->order != NULL && l->rows != NULL;
  for (uint32_t p = 0; ok && p < IN_FLIGHT; ++p) {
    batch_place *place = &l->places[p];
    place->tensors = calloc(data->n, sizeof(*place->tensors));
    place->inputs = calloc(data->n, sizeof(*place->inputs));
    ok = place->tensors != NULL && place->inputs != NULL &&
         cli_data_batch_form(data, l->run->batch, place->tensors);
    for (uint32_t i = 0; ok && i < data->n; ++i) {
      place->inputs[i].name = data->arrays[i].form.name;
      place->inputs[i].tensor = cli_tensor_view(&place->tensors[i]);
    }
  }
  l->epoch = UINT64_MAX;
  return ok ? CLI_DONE : cli_usage("out of memory for mini-batches of %u", l->run->batch);
}

static void close_places(loop *l) {
  for (uint32_t p = 0; p < IN_FLIGHT; ++p) {
    batch_place *place = &l->places[p];
    if (place->ticket != NULL)
      l->run->s->api->request_release(place->ticket);
    for (uint32_t i = 0; place->tensors != NULL && i < l->run->data->n; ++i)
      cli_tensor_free(&place->tensors[i]);
    free(place->tensors);
    free(place->inputs);
  }
  free(l->order);
  free(l->rows);
}

static void print_step(const loop *l, const opipe_train_report *r, double seconds) {
  if (l->run->quiet || l->run->o->json)
    return;
  (void)printf("step %-6llu loss %-12.8g norm %-10.5g lr %-10.4g %8.1f ms%s\n",
               (unsigned long long)r->step, r->loss, r->gradient_norm, r->lr, seconds * 1e3,
               r->skipped != 0 ? "  skipped: overflow" : "");
  (void)fflush(stdout);
}

static int save(loop *l) {
  opipe_error err = OPIPE_ERROR_INIT;
  const cli_options *o = l->run->o;
  const uint64_t position[OPIPE_POSITION] = {l->first + l->n_finished, l->run->batch, o->seed,
                                             o->t.shuffle};
  return l->run->s->api->session_save(l->session, o->t.save, position, &err) < 0
             ? cli_report(o->t.save, &err)
             : CLI_DONE;
}

static int finish_one(loop *l) {
  const opipe_api *api = l->run->s->api;
  batch_place *place = &l->places[l->n_finished % IN_FLIGHT];
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_train_report *report = &l->out->reports[l->n_finished];
  report->struct_size = sizeof(*report);
  opipe_status status = api->request_wait(place->ticket, UINT64_MAX, &err);
  if (status == OPIPE_OK)
    status = api->request_report(place->ticket, report, &err);
  api->request_release(place->ticket);
  place->ticket = NULL;
  if (status < 0)
    return cli_report("train", &err);
  const double end_s = now_s(); /* it began when the one before it had ended */
  const double seconds = end_s - (place->start_s > l->end_s ? place->start_s : l->end_s);
  l->end_s = end_s;
  l->out->seconds[l->n_finished++] = seconds;
  l->out->n_steps = l->n_finished;
  print_step(l, report, seconds);
  return CLI_DONE;
}

static int start_one(loop *l) {
  const opipe_api *api = l->run->s->api;
  const train_run *run = l->run;
  batch_place *place = &l->places[l->n_started % IN_FLIGHT];
  opipe_error err = OPIPE_ERROR_INIT;
  cli_data_rows(run->data, l->first + l->n_started, run->batch, run->o->t.shuffle, run->o->seed,
                l->order, &l->epoch, l->rows);
  cli_data_batch(run->data, l->rows, run->batch, place->tensors);
  const opipe_submit_params params = {
      .struct_size = sizeof(params), .n_inputs = run->data->n, .inputs = place->inputs};
  place->start_s = now_s();
  for (;;) {
    const opipe_status status = api->session_train_step(l->session, &params, &place->ticket, &err);
    if (status == OPIPE_OK)
      break;
    if (status < 0)
      return cli_report("train", &err);
    if (l->n_finished == l->n_started)
      return cli_usage("the session takes no mini-batch"); /* cannot be: nothing is in flight */
    const int waited = finish_one(l);
    if (waited != CLI_DONE)
      return waited;
  }
  ++l->n_started;
  return CLI_DONE;
}

/* Everything that is under way ends. A double-buffered schedule ends the last one when flushed. */
static int drain(loop *l) {
  opipe_error err = OPIPE_ERROR_INIT;
  int status = CLI_DONE;
  while (status == CLI_DONE && l->n_finished + 1 < l->n_started)
    status = finish_one(l);
  if (status == CLI_DONE && l->run->s->api->session_flush(l->session, &err) < 0)
    return cli_report("train", &err);
  return status == CLI_DONE && l->n_finished < l->n_started ? finish_one(l) : status;
}

static int steps(loop *l) {
  const train_run *run = l->run;
  const uint64_t every = run->quiet ? 0 : run->o->t.save_every;
  int status = CLI_DONE;
  while (status == CLI_DONE && l->n_started < run->n_steps) {
    if (l->n_started - l->n_finished == IN_FLIGHT)
      status = finish_one(l);
    if (status == CLI_DONE)
      status = start_one(l);
    if (status != CLI_DONE || every == 0 || l->n_started % every != 0)
      continue;
    status = drain(l);
    if (status == CLI_DONE)
      status = save(l);
  }
  return status == CLI_DONE ? drain(l) : status;
}

static int resume(loop *l) {
  uint64_t position[OPIPE_POSITION];
  opipe_error err = OPIPE_ERROR_INIT;
  const cli_options *o = l->run->o;
  if (o->t.resume == NULL)
    return CLI_DONE;
  if (l->run->s->api->session_load(l->session, o->t.resume, position, &err) < 0)
    return cli_report(o->t.resume, &err);
  if (position[1] != l->run->batch || position[2] != o->seed ||
      position[3] != (uint64_t)o->t.shuffle) {
    (void)fprintf(
        stderr,
        "onnx-pipe: %s: it was saved with --batch %llu --seed %llu%s: the position in the "
        "data is counted anew\n",
        o->t.resume, (unsigned long long)position[1], (unsigned long long)position[2],
        position[3] != 0 ? " --shuffle" : "");
    position[0] = position[0] * position[1] / l->run->batch;
  }
  l->first = position[0];
  return CLI_DONE;
}

/* ---- what is kept of it ---- */

static int keep_state(loop *l, uint32_t state, cli_tensor **out, uint32_t *out_n) {
  const opipe_api *api = l->run->s->api;
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_parameter_info info = {.struct_size = sizeof(info)};
  uint32_t n = 0;
  while (api->session_parameter(l->session, n, &info, NULL) == OPIPE_OK)
    ++n;
  *out = calloc((size_t)n + 1, sizeof(**out));
  *out_n = 0;
  for (uint32_t i = 0; *out != NULL && i < n; ++i) {
    if (api->session_parameter(l->session, i, &info, &err) < 0)
      return cli_report("train", &err);
    if (info.trained == 0)
      continue;
    cli_tensor *t = &(*out)[(*out_n)++];
    (void)snprintf(t->name, sizeof(t->name), "%s", info.name);
    t->dtype = OPIPE_FLOAT;
    t->rank = info.rank;
    memcpy(t->shape, info.shape, info.rank * sizeof(*t->shape));
    if (!cli_tensor_alloc(t))
      return cli_usage("out of memory for parameter '%s'", info.name);
    if (api->session_get(l->session, info.name, state, 0, t->data, t->n_bytes, &err) < 0)
      return cli_report("train", &err);
  }
  return *out == NULL ? cli_usage("out of memory") : CLI_DONE;
}

static int keep(loop *l) {
  uint32_t n = 0;
  const int status = keep_state(l, OPIPE_STATE_MASTER, &l->out->weights, &l->out->n_params);
  return status == CLI_DONE ? keep_state(l, OPIPE_STATE_GRADIENT, &l->out->gradients, &n) : status;
}

static int write_trace(loop *l, const char *path) {
  cli_gathered g = {NULL, 0, 0};
  opipe_error err = OPIPE_ERROR_INIT;
  const size_t n = strlen(path);
  const bool picture = n > 4 && strcmp(path + n - 4, ".svg") == 0;
  const uint32_t format = picture ? OPIPE_TRACE_SVG : OPIPE_TRACE_CHROME;
  const opipe_status status =
      l->run->s->api->session_trace(l->session, format, cli_gather, &g, &err);
  return cli_write_gathered(status, path, &g, &err);
}

static int write_files(loop *l) {
  const cli_train_texts *t = &l->run->o->t;
  const opipe_api *api = l->run->s->api;
  opipe_error err = OPIPE_ERROR_INIT;
  if (l->run->quiet)
    return CLI_DONE;
  if (t->save != NULL && save(l) != CLI_DONE)
    return CLI_FAILED;
  if (t->trace != NULL && write_trace(l, t->trace) != CLI_DONE)
    return CLI_FAILED;
  if (t->save_model != NULL && api->session_save_model(l->session, t->save_model, &err) < 0)
    return cli_report(t->save_model, &err);
  if (t->save_gradients != NULL &&
      api->session_save_gradients(l->session, t->save_gradients, &err) < 0)
    return cli_report(t->save_gradients, &err);
  return CLI_DONE;
}

int train_go(const train_run *run, train_result *out) {
  opipe_error err = OPIPE_ERROR_INIT;
  loop l = {.run = run, .out = out};
  const opipe_session_params params = {.struct_size = sizeof(params),
                                       .flags = run->session_flags,
                                       .max_in_flight = IN_FLIGHT,
                                       .spin_us = UINT32_MAX};
  memset(out, 0, sizeof(*out));
  out->reports = calloc(run->n_steps, sizeof(*out->reports));
  out->seconds = calloc(run->n_steps, sizeof(*out->seconds));
  int status =
      out->reports == NULL || out->seconds == NULL ? cli_usage("out of memory") : open_places(&l);
  if (status == CLI_DONE &&
      run->s->api->session_open(run->s->context, run->plan, &params, &l.session, &err) < 0)
    status = cli_report("opening a session", &err);
  if (status == CLI_DONE)
    status = resume(&l);
  if (status == CLI_DONE)
    status = steps(&l);
  if (status == CLI_DONE)
    status = write_files(&l);
  if (status == CLI_DONE && run->keep)
    status = keep(&l);
  close_places(&l);
  if (l.session != NULL)
    run->s->api->session_close(l.session);
  return status;
}

void train_result_free(train_result *r) {
  for (uint32_t i = 0; i < r->n_params; ++i) {
    if (r->weights != NULL)
      cli_tensor_free(&r->weights[i]);
    if (r->gradients != NULL)
      cli_tensor_free(&r->gradients[i]);
  }
  free(r->weights);
  free(r->gradients);
  free(r->reports);
  free(r->seconds);
  memset(r, 0, sizeof(*r));
}
