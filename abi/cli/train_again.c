/* SPDX-License-Identifier: Apache-2.0 */
/* Repeats a mini-batch whose loss or norm was not finite. The session still has the weights that
 * the mini-batch saw; they go to a session that runs the plan's stages one by one and checks every
 * value. A mini-batch that failed under --check-finite is repeated too, to tell values that are not
 * finite from errors in the data. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train_state.h"

/* First parameter whose gradient is not finite; "": none. */
static void find_gradient(const train_loop *l, char *out, size_t room) {
  opipe_parameter_info info = {.struct_size = sizeof(info)};
  out[0] = '\0';
  for (uint32_t i = 0;
       l->run->s->api->session_parameter(l->session, i, &info, NULL) == OPIPE_OK && out[0] == '\0';
       ++i) {
    if (info.trained != 0 && !isfinite(info.gradient_norm))
      (void)snprintf(out, room, "%s", info.name);
  }
}

/* Replaces the loop's session by one that runs stages one by one. Process 0 alone has such a
 * session if there are several: the others get CLI_CHECK_FAILED. */
static int reopen(train_loop *l, uint32_t flags, const train_state *state) {
  const cli_session *s = l->run->s;
  l->alone = true;
  s->api->session_close(l->session);
  l->session = NULL;
  if (s->team != NULL && s->team_rank != 0)
    return CLI_CHECK_FAILED;
  const int status = train_open_session(l, flags | OPIPE_SESSION_REFERENCE);
  return status == CLI_DONE ? train_state_put(l, state) : status;
}

/* Runs the mini-batch in the loop's session and returns its status. */
static opipe_status run_again(const train_loop *l, const train_place *place, opipe_error *err) {
  const opipe_api *api = l->run->s->api;
  opipe_request *ticket = NULL;
  const opipe_submit_params params = {.struct_size = sizeof(params),
                                      .n_inputs = l->run->data->n,
                                      .io_stride = sizeof(opipe_binding_io),
                                      .inputs = place->inputs};
  opipe_status status = api->session_train_step(l->session, &params, &ticket, err);
  if (status == OPIPE_OK)
    status = api->request_wait(ticket, UINT64_MAX, err);
  if (ticket != NULL)
    api->request_release(ticket);
  return status;
}

bool train_fails_unchecked(train_loop *l, const train_place *place) {
  train_state state = {.n = 0};
  opipe_error plain = OPIPE_ERROR_INIT, checked = OPIPE_ERROR_INIT;
  bool fails = train_state_take(l, false, &state) == CLI_DONE && reopen(l, 0, &state) == CLI_DONE &&
               run_again(l, place, &plain) == OPIPE_E_INVALID;
  /* a NaN used as an index also fails without the check, but later */
  fails = fails && reopen(l, OPIPE_SESSION_CHECK_FINITE, &state) == CLI_DONE &&
          run_again(l, place, &checked) == OPIPE_E_INVALID &&
          strcmp(plain.message, checked.message) == 0;
  train_state_free(&state);
  return fails;
}

static void say(const train_loop *l, const char *what, const char *parameter) {
  const opipe_train_report *r = &l->out->reports[l->out->n_steps - 1];
  (void)snprintf(l->out->stopped, sizeof(l->out->stopped), "step %llu: %s%s%s",
                 (unsigned long long)r->step, what,
                 parameter == NULL ? "" : ": the first gradient that is not finite is that of ",
                 parameter == NULL ? "" : parameter);
  if (l->run->s->team_rank == 0)
    (void)fprintf(stderr, "onnx-pipe: %s\n", l->out->stopped);
}

/* A mean over no labels: there is nothing to search for. */
static int say_unlabelled(const train_loop *l) {
  char what[160];
  (void)snprintf(what, sizeof(what),
                 "all labels of the mini-batch are ignored (ignore=%lld), so its loss is NaN: it "
                 "was not applied",
                 (long long)l->run->options->ignore);
  say(l, what, NULL);
  return CLI_CHECK_FAILED;
}

int train_again(train_loop *l) {
  train_state state = {.n = 0};
  char parameter[256];
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_train_report *r = &l->out->reports[l->out->n_steps - 1];
  if (r->count == 0)
    return say_unlabelled(l);
  if (l->run->s->team_rank == 0) {
    (void)fprintf(stderr,
                  "onnx-pipe: step %llu: loss %g, gradient norm %g: it was not applied; it is run "
                  "again with every value checked\n",
                  (unsigned long long)r->step, train_shown(r->loss), train_shown(r->gradient_norm));
  }
  find_gradient(l, parameter, sizeof(parameter));
  int status = train_state_take(l, false, &state);
  state.clock.steps = r->step - 1; /* the same random numbers */
  if (status == CLI_DONE)
    status = reopen(l, OPIPE_SESSION_CHECK_FINITE, &state);
  if (status == CLI_DONE) {
    if (run_again(l, l->stopped, &err) < 0)
      say(l, err.message, NULL);
    else
      say(l, "every value of it is finite", parameter[0] == '\0' ? NULL : parameter);
  }
  train_state_free(&state);
  return CLI_CHECK_FAILED;
}
