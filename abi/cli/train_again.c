/* SPDX-License-Identifier: Apache-2.0 */
/* A mini-batch whose loss or norm was not finite, once more: the session holds the weights as the
 * mini-batch saw them; they go to a session of the plan's plain loop that looks at every value.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train_loop.h"

enum { VERSIONS_MOST = 2 };

typedef struct kept { /* of the session that holds them */
  cli_tensor *weights[VERSIONS_MOST];
  uint32_t n[VERSIONS_MOST];
  uint32_t n_versions;
  opipe_train_clock clock;
  char parameter[256]; /* the first whose gradient is not finite; "": none */
} kept;

static void free_kept(kept *k) {
  for (uint32_t v = 0; v < VERSIONS_MOST; ++v) {
    for (uint32_t i = 0; k->weights[v] != NULL && i < k->n[v]; ++i)
      cli_tensor_free(&k->weights[v][i]);
    free(k->weights[v]);
  }
}

static int take(const train_loop *l, kept *k) {
  const opipe_api *api = l->run->s->api;
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_parameter_info info = {.struct_size = sizeof(info)};
  int status = CLI_DONE;
  k->clock.struct_size = sizeof(k->clock);
  if (api->session_clock(l->session, &k->clock, &err) < 0)
    return cli_report("train", &err);
  k->clock.steps = l->out->reports[l->out->n_steps - 1].step - 1; /* the same random numbers */
  k->n_versions = train_is_double_buffered(l->run) ? 2 : 1;
  for (uint32_t i = 0; api->session_parameter(l->session, i, &info, NULL) == OPIPE_OK; ++i) {
    if (k->parameter[0] == '\0' && info.trained != 0 && !isfinite(info.gradient_norm))
      (void)snprintf(k->parameter, sizeof(k->parameter), "%s", info.name);
  }
  for (uint32_t v = 0; status == CLI_DONE && v < k->n_versions; ++v)
    status = train_keep_state(l, OPIPE_STATE_MASTER, v, &k->weights[v], &k->n[v]);
  return status;
}

static opipe_status put(const train_loop *l, const kept *k, opipe_error *err) {
  const opipe_api *api = l->run->s->api;
  opipe_status status = OPIPE_OK;
  for (uint32_t v = 0; v < k->n_versions; ++v) {
    for (uint32_t i = 0; i < k->n[v] && status == OPIPE_OK; ++i) {
      const cli_tensor *t = &k->weights[v][i];
      status =
          api->session_set(l->session, t->name, OPIPE_STATE_MASTER, v, t->data, t->n_bytes, err);
    }
  }
  return status == OPIPE_OK ? api->session_set_clock(l->session, &k->clock, err) : status;
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
  kept k = {.n_versions = 0};
  opipe_error err = OPIPE_ERROR_INIT;
  const opipe_train_report *r = &l->out->reports[l->out->n_steps - 1];
  (void)fprintf(stderr,
                "onnx-pipe: step %llu: loss %g, gradient norm %g: it was not applied; it is run "
                "again with every value checked\n",
                (unsigned long long)r->step, r->loss, r->gradient_norm);
  int status = take(l, &k);
  if (status == CLI_DONE) {
    l->run->s->api->session_close(l->session);
    l->session = NULL;
    status = train_open_session(l, OPIPE_SESSION_CHECK_FINITE | OPIPE_SESSION_REFERENCE);
  }
  if (status == CLI_DONE && put(l, &k, &err) < 0)
    status = cli_report("train", &err);
  if (status == CLI_DONE) {
    if (run_checked(l, &err) < 0)
      say(l, err.message, NULL);
    else
      say(l, "every value of it is finite", k.parameter[0] == '\0' ? NULL : k.parameter);
  }
  free_kept(&k);
  return CLI_CHECK_FAILED;
}
