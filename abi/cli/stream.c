/* SPDX-License-Identifier: Apache-2.0 */
/* Runs requests: one, or a stream with several in flight. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "progress.h"

void cli_result_free(cli_result *result) {
  for (uint32_t i = 0; result->outputs != NULL && i < result->n_outputs; ++i)
    cli_tensor_free(&result->outputs[i]);
  free(result->outputs);
  free(result->digests);
  *result = (cli_result){.outputs = NULL};
}

typedef struct stream {
  cli_session *s;
  opipe_session *session;
  opipe_binding_io *inputs;
  uint32_t n_inputs;
  opipe_request **requests; /* ring of n */
  double *started;
  double *latency_ms, *ended; /* [total] */
  uint32_t room, head, tail;  /* head: oldest unfinished; tail: next to submit */
  uint64_t *digests;          /* [total][outputs]; NULL: not asked for */
  bool gathers;               /* process 0 has all outputs */
  double start_s, shown_s;    /* of the first request; of the last line of progress */
  opipe_error err;
} stream;

/* The outputs that this process has; none where process 0 has got all. */
static int copy_outputs(stream *st, opipe_request *request, cli_result *out) {
  opipe_model_info info = {.struct_size = sizeof(info)};
  (void)st->s->api->model_info(st->s->bound, &info, NULL);
  out->n_outputs = 0;
  out->outputs = calloc(info.n_outputs == 0 ? 1 : info.n_outputs, sizeof(cli_tensor));
  if (out->outputs == NULL)
    return cli_fail("out of memory");
  for (uint32_t i = 0; i < info.n_outputs; ++i) {
    opipe_tensor_info output = {.struct_size = sizeof(output)};
    opipe_tensor view;
    if (st->gathers && st->s->team_rank != 0)
      continue;
    (void)st->s->api->model_output(st->s->bound, i, &output, NULL);
    const opipe_status found = st->s->api->request_output(request, i, &view, &st->err);
    if (found == OPIPE_E_NOTFOUND && st->s->team != NULL)
      continue; /* another process makes it */
    if (found < 0)
      return cli_report("output", &st->err);
    if (!cli_tensor_copy(output.name, &view, &out->outputs[out->n_outputs++])) {
      return cli_usage("output '%s' of type %s cannot be taken", output.name,
                       cli_dtype_name(output.dtype));
    }
  }
  return CLI_DONE;
}

/* Takes the oldest request's outputs: keeps the last one's, digests all. */
static int take_outputs(stream *st, opipe_request *request, bool last, cli_result *out) {
  cli_result own = {NULL};
  int status = CLI_DONE;
  if (last || st->digests != NULL)
    status = copy_outputs(st, request, &own);
  for (uint32_t i = 0; status == CLI_DONE && st->digests != NULL && i < own.n_outputs; ++i) {
    st->digests[(uint64_t)st->head * own.n_outputs + i] =
        XXH3_64bits(own.outputs[i].data, own.outputs[i].n_bytes);
  }
  if (last && status == CLI_DONE) {
    out->outputs = own.outputs;
    out->n_outputs = own.n_outputs;
  } else {
    cli_result_free(&own);
  }
  return status;
}

static int finish_oldest(stream *st, bool last, cli_result *out) {
  opipe_request *request = st->requests[st->head % st->room];
  int status = CLI_DONE;
  if (st->s->api->request_wait(request, UINT64_MAX, &st->err) < 0) {
    status = cli_report("request", &st->err);
  } else {
    st->ended[st->head] = cli_now();
    st->latency_ms[st->head] = (st->ended[st->head] - st->started[st->head % st->room]) * 1e3;
    status = take_outputs(st, request, last, out);
  }
  st->s->api->request_release(request);
  ++st->head;
  return status;
}

static int wait_for_room(stream *st) {
  return st->s->api->session_wait_room(st->session, UINT64_MAX, &st->err) < 0
             ? cli_report("request", &st->err)
             : CLI_DONE;
}

static void show_progress(stream *st, uint32_t n) {
  char left[CLI_TIME_ROOM];
  const double took = cli_now() - st->start_s, rate = st->head / took;
  if (n == 1 || st->head == 0 || !cli_progress_due(&st->shown_s))
    return;
  cli_progress("request %u of %u  %.*f per second, %s left", st->head, n, cli_rate_digits(rate),
               rate, cli_time_left(took / st->head * (n - st->head), left));
}

/* *io_n: fewer if a signal asked to stop; then no further request is submitted. */
static int run_stream(stream *st, uint32_t *io_n, cli_result *out) {
  uint32_t n = *io_n;
  const opipe_submit_params params = {.struct_size = sizeof(params),
                                      .n_inputs = st->n_inputs,
                                      .io_stride = sizeof(opipe_binding_io),
                                      .inputs = st->inputs};
  int status = CLI_DONE;
  while (status == CLI_DONE && st->head < n) {
    if (*io_n > 1 && st->tail < n && cli_stop_before(st->s, st->tail, NULL) != 0)
      n = st->tail;
    show_progress(st, *io_n);
    opipe_status submitted = OPIPE_PENDING;
    if (st->tail < n && st->tail - st->head < st->room) {
      st->started[st->tail % st->room] = cli_now();
      submitted = st->s->api->session_submit(st->session, &params,
                                             &st->requests[st->tail % st->room], &st->err);
      if (submitted < 0)
        status = cli_report("request", &st->err);
      if (submitted == OPIPE_OK)
        ++st->tail;
    }
    if (submitted == OPIPE_PENDING && st->head < st->tail)
      status = finish_oldest(st, st->head + 1 == n, out);
    else if (submitted == OPIPE_PENDING) /* finished requests have not been taken yet */
      status = wait_for_room(st);
  }
  while (st->head < st->tail)
    st->s->api->request_release(st->requests[st->head++ % st->room]);
  *io_n = n;
  cli_progress_end();
  return status;
}

/* Runs the stream; a signal ends it after the requests in flight. A single request is not waited
 * for: the signal ends the command. */
static int run_interruptible(stream *st, uint32_t *io_n, cli_result *out) {
  struct sigaction before[CLI_STOP_SIGNALS];
  const uint32_t asked = *io_n;
  if (asked == 1)
    return run_stream(st, io_n, out);
  cli_listen(before);
  const int status = run_stream(st, io_n, out);
  cli_stop_listening(before);
  if (status != CLI_DONE || *io_n == asked)
    return status;
  (void)fprintf(stderr, "onnx-pipe: %s: stopped after %u of %u requests\n",
                cli_signal_name(st->s->stopped_by), *io_n, asked);
  return CLI_SIGNALLED + st->s->stopped_by;
}

static int by_value(const void *left, const void *right) {
  const double a = *(const double *)left, b = *(const double *)right;
  return a < b ? -1 : a > b;
}

/* The smallest of n sorted values that `percent` of them do not exceed. */
static double percentile(const double *sorted, uint32_t n, uint32_t percent) {
  const uint64_t rank = ((uint64_t)n * percent + 99) / 100;
  return sorted[rank == 0 ? 0 : rank - 1];
}

static void summarise(const stream *st, uint32_t n, double total_s, cli_timing *timing) {
  const uint32_t last = n - 1, from = last / 2;
  *timing = (cli_timing){.n = n, .total_s = total_s, .interval_ms = st->latency_ms[0]};
  timing->fullest_bytes = cli_fullest_rank(st->s->api, st->session);
  if (last > 0)
    timing->interval_ms = (st->ended[last] - st->ended[from]) * 1e3 / (last - from);
  for (uint32_t i = 0; i < n; ++i)
    timing->mean_ms += st->latency_ms[i] / n;
  qsort(st->latency_ms, n, sizeof(double), by_value);
  timing->p50_ms = percentile(st->latency_ms, n, 50);
  timing->p90_ms = percentile(st->latency_ms, n, 90);
  timing->p99_ms = percentile(st->latency_ms, n, 99);
}

/* Inputs left in the bound model (pinned ones are constants now). */
static uint32_t name_inputs(const cli_session *s, const cli_tensor *tensors, uint32_t n,
                            opipe_binding_io *out) {
  uint32_t used = 0;
  for (uint32_t i = 0;; ++i) {
    opipe_tensor_info info = {.struct_size = sizeof(info)};
    if (s->api->model_input(s->bound, i, &info, NULL) < 0)
      return used;
    for (uint32_t t = 0; t < n; ++t) {
      if (strcmp(tensors[t].name, info.name) != 0)
        continue;
      out[used++] =
          (opipe_binding_io){.name = tensors[t].name, .tensor = cli_tensor_view(&tensors[t])};
      break;
    }
  }
}

uint64_t cli_fullest_rank(const opipe_api *api, opipe_session *session) {
  opipe_memory_info memory = opipe_memory_info_init();
  uint64_t most = 0;
  for (uint32_t r = 0; api->session_memory(session, r, &memory, NULL) == OPIPE_OK; ++r)
    most = memory.total_bytes > most ? memory.total_bytes : most;
  return most;
}

/* Allocates records for n requests; digests go to the result. */
static bool make_room(stream *st, const cli_streaming *how, uint32_t n_inputs, cli_result *out) {
  opipe_model_info info = {.struct_size = sizeof(info)};
  (void)st->s->api->model_info(st->s->bound, &info, NULL);
  st->inputs = calloc(n_inputs + 1u, sizeof(*st->inputs));
  st->requests = calloc(st->room, sizeof(*st->requests));
  st->started = calloc(st->room, sizeof(*st->started));
  st->latency_ms = calloc(how->n, sizeof(*st->latency_ms));
  st->ended = calloc(how->n, sizeof(*st->ended));
  if (how->digests) {
    out->n_requests = how->n;
    out->digests = calloc((size_t)how->n * info.n_outputs + 1, sizeof(*out->digests));
  }
  st->digests = out->digests;
  return st->inputs != NULL && st->requests != NULL && st->started != NULL &&
         st->latency_ms != NULL && st->ended != NULL && (!how->digests || out->digests != NULL);
}

int cli_stream(cli_session *s, opipe_plan *plan, const cli_streaming *how, const cli_tensor *inputs,
               uint32_t n_inputs, cli_result *out, cli_timing *timing) {
  *timing = (cli_timing){.n = 0};
  opipe_plan_info info = {.struct_size = sizeof(info)};
  stream st = {.s = s, .gathers = how->gathers, .err = OPIPE_ERROR_INIT};
  int status = CLI_DONE;
  (void)s->api->plan_info(plan, &info, NULL);
  st.room = (how->session_flags & OPIPE_SESSION_REFERENCE) != 0 ? 1
            : how->at_once != 0                                 ? how->at_once
                                                                : 2 * info.n_stages;
  const opipe_session_params params = {.struct_size = sizeof(params),
                                       .flags = how->session_flags,
                                       .watchdog_ns = s->team == NULL ? 0 : s->watchdog_ns,
                                       .spin_us = UINT32_MAX,
                                       .local_ranks = s->here,
                                       .n_local_ranks = s->n_here,
                                       .team = s->team};
  if (!make_room(&st, how, n_inputs, out))
    status = cli_usage("--requests %u: there is no memory for their times", how->n);
  status = cli_agree(s, "before the session", status);
  cli_progress("loading the weights of the plan's stages");
  if (status == CLI_DONE &&
      s->api->session_open(s->context, plan, &params, &st.session, &st.err) < 0)
    status = cli_report("session", &st.err);
  cli_progress_end();
  if (status == CLI_DONE) {
    st.n_inputs = name_inputs(s, inputs, n_inputs, st.inputs);
    for (uint32_t i = 0; i < st.n_inputs; ++i) {
      if (!cli_needs(s, st.session, st.inputs[i].name))
        st.inputs[i].tensor.data = NULL;
    }
    uint32_t n = how->n;
    st.start_s = cli_now();
    status = run_interruptible(&st, &n, out);
    if ((status == CLI_DONE || status >= CLI_SIGNALLED) && n != 0)
      summarise(&st, n, cli_now() - st.start_s, timing);
    if (out->digests != NULL)
      out->n_requests = n;
    if (status == CLI_DONE && how->trace != NULL)
      status = cli_write_trace(s, st.session, how->trace);
  }
  s->api->session_close(st.session);
  free(st.inputs);
  free(st.requests);
  free(st.started);
  free(st.latency_ms);
  free(st.ended);
  return status;
}
