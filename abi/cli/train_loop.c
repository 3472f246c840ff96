/* SPDX-License-Identifier: Apache-2.0 */
/* One training run: session, loop over mini-batches, files, results kept for comparison.
 *
 * Two mini-batches are in flight: the next is gathered while one is trained, and double-buffered
 * schedules have work to continue with. Results are printed in the order of mini-batches.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "progress.h"
#include "train_noise.h"
#include "train_state.h"

#define CLOCK_STEP 1e-9 /* seconds: no step takes less */

/* Tokens of a sample: the longest row of integers; 0: there is no such array. */
static uint64_t tokens_of(const cli_data *data) {
  uint64_t most = 0;
  for (uint32_t i = 0; i < data->n; ++i) {
    const cli_tensor *form = &data->arrays[i].form;
    const uint32_t kind = opipe_dtype_row_of(form->dtype)->elements;
    if (form->rank == 2 && (kind == OPIPE_ELEM_INT || kind == OPIPE_ELEM_UINT) &&
        (uint64_t)form->shape[1] > most)
      most = (uint64_t)form->shape[1];
  }
  return most;
}

static int open_places(train_loop *l) {
  const cli_data *data = l->run->data;
  l->order = calloc(data->n_samples, sizeof(*l->order));
  l->rows = calloc(l->run->batch, sizeof(*l->rows));
  bool ok = l->order != NULL && l->rows != NULL;
  /* When every value is checked, one at a time, so that the first step that fails has the reason.
   */
  l->n_places = l->run->o->run.check_finite || l->run->noise != NULL ? 1 : TRAIN_IN_FLIGHT;
  for (uint32_t p = 0; ok && p < l->n_places; ++p) {
    train_place *place = &l->places[p];
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
  l->tokens = tokens_of(data);
  return ok ? CLI_DONE : cli_fail("out of memory for mini-batches of %u", l->run->batch);
}

static void close_places(train_loop *l) {
  for (uint32_t p = 0; p < l->n_places; ++p) {
    train_place *place = &l->places[p];
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

/* Shows the speed since the first step, and the time left at that speed. */
static void show_speed(train_loop *l, const opipe_train_report *r) {
  char left[CLI_TIME_ROOM], tokens[48] = "";
  const double took = cli_now() - l->start_s;
  const uint64_t n = l->out->n_steps;
  if (l->run->quiet || took <= 0 || n == 0 || !cli_progress_due(&l->shown_s))
    return;
  const double samples = (double)(n * l->run->batch) / took;
  const double all = samples * (double)l->tokens;
  if (l->tokens != 0)
    (void)snprintf(tokens, sizeof(tokens), "%.*f tokens/s, ", cli_rate_digits(all), all);
  cli_progress("step %llu of %llu  %.*f samples/s, %s%s left", (unsigned long long)r->step,
               (unsigned long long)(r->step - n + l->run->n_steps), cli_rate_digits(samples),
               samples, tokens,
               cli_time_left(took / (double)n * (double)(l->run->n_steps - n), left));
}

static void print_step(const train_loop *l, const opipe_train_report *r, double seconds) {
  if (l->run->quiet || l->run->o->out.json)
    return;
  cli_progress_end();
  (void)printf("step %-6llu loss %-12.8g norm %-10.5g lr %-10.4g %8.*f ms%s\n",
               (unsigned long long)r->step, train_shown(r->loss), train_shown(r->gradient_norm),
               r->lr, seconds < 1e-3 ? 6 : 1, seconds * 1e3,
               r->skipped == OPIPE_SKIP_NONE       ? ""
               : r->skipped == OPIPE_SKIP_OVERFLOW ? "  skipped: overflow"
                                                   : "  skipped: not finite");
  (void)fflush(stdout);
}

/* An error in the data is not a value that is not finite, although both are INVALID. */
static int failed(train_loop *l, const train_place *place, opipe_status status,
                  const opipe_error *err) {
  const cli_session *s = l->run->s;
  const int reported = cli_report("train", err);
  if (!l->run->o->run.check_finite)
    return reported;
  /* In a team one session has failed by its data, the others by that failure. */
  const bool by_data = cli_team_any(s, status == OPIPE_E_INVALID);
  if (!by_data || (s->team == NULL && train_fails_unchecked(l, place)))
    return reported;
  ++l->out->n_not_finite;
  (void)snprintf(l->out->stopped, sizeof(l->out->stopped), "%s", err->message);
  return CLI_CHECK_FAILED;
}

/* From its submission, or the end of the one before it, to its own end, whenever the caller
 * notices. */
static double seconds_of(train_loop *l, const train_place *place, const opipe_train_report *r) {
  const double end_s = place->start_s + (double)r->step_ns * 1e-9;
  const double seconds = end_s - fmax(place->start_s, l->end_s);
  l->end_s = fmax(end_s, l->end_s);
  return fmax(seconds, CLOCK_STEP);
}

static int finish_one(train_loop *l) {
  const opipe_api *api = l->run->s->api;
  train_place *place = &l->places[l->n_finished % l->n_places];
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_train_report *report = &l->out->reports[l->out->n_steps];
  report->struct_size = sizeof(*report);
  opipe_status status = api->request_wait(place->ticket, UINT64_MAX, &err);
  if (status == OPIPE_OK)
    status = api->request_report(place->ticket, report, &err);
  api->request_release(place->ticket);
  place->ticket = NULL;
  if (status < 0)
    return failed(l, place, status, &err);
  ++l->n_finished;
  if (report->skipped == OPIPE_SKIP_HELD)
    return CLI_DONE; /* was in flight when another one stopped the run */
  const double seconds = seconds_of(l, place, report);
  l->out->seconds[l->out->n_steps++] = seconds;
  print_step(l, report, seconds);
  show_speed(l, report);
  if (l->run->noise != NULL)
    return train_noise_step(l, report, l->run->noise);
  if (report->skipped != OPIPE_SKIP_NOT_FINITE)
    return CLI_DONE;
  ++l->out->n_not_finite;
  if ((l->run->session_flags & OPIPE_SESSION_HOLD) != 0)
    l->stopped = place;
  return CLI_DONE;
}

static int start_one(train_loop *l) {
  const opipe_api *api = l->run->s->api;
  const train_run *run = l->run;
  train_place *place = &l->places[l->n_started % l->n_places];
  opipe_error err = OPIPE_ERROR_INIT;
  cli_data_rows(run->data, l->first + l->n_started, run->batch, run->o->t.shuffle, run->o->seed,
                l->order, &l->epoch, l->rows);
  cli_data_batch(run->data, l->rows, run->batch, place->tensors);
  const opipe_submit_params params = {.struct_size = sizeof(params),
                                      .n_inputs = run->data->n,
                                      .io_stride = sizeof(opipe_binding_io),
                                      .inputs = place->inputs};
  for (;;) {
    place->start_s = cli_now();
    const opipe_status status = api->session_train_step(l->session, &params, &place->ticket, &err);
    if (status == OPIPE_OK)
      break;
    if (status < 0)
      return cli_report("train", &err);
    if (l->n_finished == l->n_started)
      return cli_usage("the session takes no mini-batch"); /* cannot happen: nothing is in flight */
    const int waited = finish_one(l);
    if (waited != CLI_DONE)
      return waited;
  }
  ++l->n_started;
  return CLI_DONE;
}

/* Waits for everything in flight. A double-buffered schedule ends the last step when flushed. */
static int drain(train_loop *l) {
  opipe_error err = OPIPE_ERROR_INIT;
  int status = CLI_DONE;
  while (status == CLI_DONE && l->n_finished + 1 < l->n_started)
    status = finish_one(l);
  const bool flushed =
      status != CLI_DONE || l->run->s->api->session_flush(l->session, &err) == OPIPE_OK;
  if (status == CLI_DONE && l->n_finished < l->n_started)
    status = finish_one(l); /* it has reported its error */
  return status == CLI_DONE && !flushed ? cli_report("train", &err) : status;
}

/* *out_save: a signal has asked for a checkpoint before the next mini-batch. */
static bool goes_on(train_loop *l, bool *out_save) {
  *out_save = false;
  return l->stopped == NULL && l->n_started < l->run->n_steps &&
         (l->run->quiet || cli_stop_before(l->run->s, l->n_started, out_save) == 0);
}

/* A checkpoint of all mini-batches started. */
static int save_between(train_loop *l) {
  const int status = drain(l);
  return status == CLI_DONE && l->stopped == NULL ? train_save(l) : status;
}

static int save_by_signal(train_loop *l) {
  const char *folder = l->run->o->t.save;
  const bool speaks = l->run->s->team_rank == 0;
  if (folder == NULL) {
    if (speaks)
      (void)fputs("onnx-pipe: SIGUSR1: there is no checkpoint without --save DIR\n", stderr);
    return CLI_DONE;
  }
  const int status = save_between(l);
  if (status == CLI_DONE && l->stopped == NULL && speaks) {
    (void)fprintf(stderr, "onnx-pipe: SIGUSR1: the checkpoint after %llu of %llu steps is in %s\n",
                  (unsigned long long)l->out->n_steps, (unsigned long long)l->run->n_steps, folder);
  }
  return status;
}

static int steps(train_loop *l) {
  const train_run *run = l->run;
  const uint64_t every = run->quiet ? 0 : run->o->t.save_every;
  int status = CLI_DONE;
  bool asked = false;
  while (status == CLI_DONE && goes_on(l, &asked)) {
    if (asked)
      status = save_by_signal(l);
    if (status == CLI_DONE && l->n_started - l->n_finished == l->n_places)
      status = finish_one(l);
    if (status == CLI_DONE && l->stopped == NULL)
      status = start_one(l);
    if (status != CLI_DONE || every == 0 || l->n_started % every != 0)
      continue;
    status = save_between(l);
  }
  return status == CLI_DONE ? drain(l) : status;
}

/* Gives up the memory of data that only other processes read. */
static void leave_out(train_loop *l) {
  if (l->run->s->team_rank == 0)
    return;
  for (uint32_t p = 0; p < l->n_places; ++p) {
    for (uint32_t i = 0; i < l->run->data->n; ++i) {
      cli_tensor *t = &l->places[p].tensors[i];
      if (t->data == NULL || cli_needs(l->run->s, l->session, t->name))
        continue;
      free(t->data);
      t->data = l->places[p].inputs[i].tensor.data = NULL;
    }
  }
}

int train_open_session(train_loop *l, uint32_t flags) {
  const train_run *run = l->run;
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_session_params params = {
      .struct_size = sizeof(params),
      .flags = flags,
      .max_in_flight = l->n_places,
      .watchdog_ns = l->alone || run->s->team == NULL ? 0 : run->s->watchdog_ns,
      .spin_us = UINT32_MAX,
      .local_ranks = l->alone ? NULL : run->s->here,
      .n_local_ranks = l->alone ? 0 : run->s->n_here,
      .team = l->alone ? NULL : run->s->team};
  if (run->s->api->session_open(run->s->context, run->plan, &params, &l->session, &err) < 0)
    return cli_report("opening a session", &err);
  leave_out(l);
  return CLI_DONE;
}

/* Ends after a signal, between two steps. */
static int end_by_signal(const train_loop *l, int number) {
  const char *folder = l->run->o->t.save;
  const int status = folder == NULL ? CLI_DONE : train_save(l);
  (void)snprintf(l->out->stopped, sizeof(l->out->stopped), "%s", cli_signal_name(number));
  (void)fprintf(stderr, "onnx-pipe: %s: stopped after %llu of %llu steps%s%s\n",
                cli_signal_name(number), (unsigned long long)l->out->n_steps,
                (unsigned long long)l->run->n_steps,
                folder == NULL || status != CLI_DONE ? "" : "; the checkpoint is in ",
                folder == NULL || status != CLI_DONE ? "" : folder);
  return status == CLI_DONE ? CLI_SIGNALLED + number : status;
}

static void print_speed(const train_loop *l, double took) {
  const uint64_t n = l->out->n_steps;
  const double samples = (double)(n * l->run->batch) / fmax(took, CLOCK_STEP);
  if (l->run->quiet || l->run->o->out.json || n == 0)
    return;
  const double tokens = samples * (double)l->tokens;
  (void)printf("%llu step%s in %.3f s: %.*f samples per second", (unsigned long long)n,
               n == 1 ? "" : "s", took, cli_rate_digits(samples), samples);
  if (l->tokens != 0)
    (void)printf(", %.*f tokens per second", cli_rate_digits(tokens), tokens);
  (void)puts("");
}

static int train_steps(train_loop *l) {
  struct sigaction before[CLI_STOP_SIGNALS];
  if (!l->run->quiet)
    cli_listen(before);
  l->start_s = cli_now();
  int status = steps(l);
  cli_progress_end();
  const double took = cli_now() - l->start_s;
  const int number = l->run->quiet ? 0 : l->run->s->stopped_by;
  if (status == CLI_DONE && l->stopped == NULL && number != 0)
    status = end_by_signal(l, number);
  if (!l->run->quiet)
    cli_stop_listening(before);
  if (status == CLI_DONE && l->stopped != NULL)
    status = train_again(l);
  const bool went_on = status == CLI_DONE || status >= CLI_SIGNALLED;
  if (went_on)
    print_speed(l, took);
  if (l->out->n_not_finite != 0 && went_on && !l->run->quiet) {
    (void)fprintf(stderr, "onnx-pipe: %llu of %llu steps were not finite and were not applied\n",
                  (unsigned long long)l->out->n_not_finite, (unsigned long long)l->out->n_steps);
  }
  return status;
}

int train_go(const train_run *run, train_result *out) {
  train_loop l = {.run = run, .out = out};
  memset(out, 0, sizeof(*out));
  out->reports = calloc(run->n_steps + 1, sizeof(*out->reports));
  out->seconds = calloc(run->n_steps + 1, sizeof(*out->seconds));
  int status = out->reports == NULL || out->seconds == NULL
                   ? cli_fail("out of memory for the reports of %llu steps",
                              (unsigned long long)run->n_steps)
                   : open_places(&l);
  status = cli_agree(run->s, "before the session", status);
  if (status == CLI_DONE)
    status = train_open_session(&l, run->session_flags);
  if (status == CLI_DONE)
    status = train_resume(&l);
  if (status == CLI_DONE)
    status = train_try_targets(&l);
  if (status == CLI_DONE && run->noise != NULL)
    status = train_noise_open(&l, run->noise);
  status = cli_agree(run->s, "before the first step", status);
  if (status == CLI_DONE)
    status = train_steps(&l);
  if (status == CLI_DONE)
    status = train_write_files(&l);
  if (status == CLI_DONE && run->keep)
    status = train_keep(&l);
  if (status == CLI_DONE && run->fullest_bytes != NULL)
    *run->fullest_bytes = cli_fullest_rank(run->s->api, l.session);
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
  train_state_free(&r->start);
  free(r->weights);
  free(r->gradients);
  free(r->reports);
  free(r->seconds);
  memset(r, 0, sizeof(*r));
}
