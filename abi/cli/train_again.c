/* SPDX-License-Identifier: Apache-2.0 */
/* A mini-batch whose loss or norm was not finite, once more: the session holds the weights as the
 * mini-batch saw them; they go to a session of the plan's plain loop that looks at every value.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train_state.h"

/* The first parameter whose gradient is not finite; "": none. */
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

/* The mini-batch under checks: what it answers. */
static opipe_status run_checked(const train_loop *l, opipe_error *err) {
  const opipe_api *api = l->run->s->api;
  opipe_request *ticket = NULL;
  const opipe_submit_params params = {.struct_size = sizeof(params),
                                      .n_inputs = l->run->data->n,
                                      .io_stride = sizeof(opipe_binding_io),
                                      .inputs = l->stopped->inputs};
  opipe_status status = api->session_train_step(l->session, &params, &ticket, err);
  if (status == OPIPE_OK)
    status = api->request_wait(ticket, UINT64_MAX, err);
  if (ticket != NULL)
    api->request_release(ticket);
  return status;
}

static void say(const train_loop *l, const char *what, const char *parameter) {
  const opipe_train_report *r = &l->out->reports[l->out->n_steps - 1];
  (void)snprintf(l->out->stopped, sizeof(l->out->stopped), "step %llu: %s%s%s",
                 (unsigned long long)r->step, what,
                 parameter == NULL ? "" : ": the first gradient that is not finite is that of ",
                 parameter == NULL ? "" : parameter);
  (void)fprintf(stderr, "onnx-pipe: %s\n", l->out->stopped);
}

int train_again(train_loop *l) {
  train_state state = {.n = 0};
  char parameter[256];
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_train_report *r = &l->out->reports[l->out->n_steps - 1];
  (void)fprintf(stderr,
                "onnx-pipe: step %llu: loss %g, gradient norm %g: it was not applied; it is run "
                "again with every value checked\n",
                (unsigned long long)r->step, train_shown(r->loss), train_shown(r->gradient_norm));
  find_gradient(l, parameter, sizeof(parameter));
  int status = train_state_take(l, false, &state);
  state.clock.steps = r->step - 1; /* the same random numbers */
  if (status == CLI_DONE) {
    l->run->s->api->session_close(l->session);
    l->session = NULL;
    status = train_open_session(l, OPIPE_SESSION_CHECK_FINITE | OPIPE_SESSION_REFERENCE);
  }
  if (status == CLI_DONE)
    status = train_state_put(l, &state);
  if (status == CLI_DONE) {
    if (run_checked(l, &err) < 0)
      say(l, err.message, NULL);
    else
      say(l, "every value of it is finite", parameter[0] == '\0' ? NULL : parameter);
  }
  train_state_free(&state);
  return CLI_CHECK_FAILED;
}
