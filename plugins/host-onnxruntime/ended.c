/* SPDX-License-Identifier: Apache-2.0 */
/* RunOptions.terminate inside the fused node. ORT tells a provider whose options a run has, but has
 * no function that reads the flag: it looks itself, before each of its nodes. So while a call waits
 * a session of one node is run with the caller's options; if ORT refuses that, it is cancelled. */
#include <string.h>

#include "adapter.h"

/* One RandomUniform of shape [1], an ONNX model: no inputs, nothing to fold. */
static const char one_node[] =
    "\x08\x08\x42\x02\x10\x0d\x3a\x36\x0a\x20\x12\x01"
    "b\x22\x0dRandomUniform\x2a\x0c\x0a\x05shape\x40\x01\xa0\x01\x07\x12\x01g\x62\x0f\x0a\x01"
    "b\x12\x0a\x0a\x08\x08\x01\x12\x04\x0a\x02\x08\x01";

/* NULL too where ORT calls from threads of its own. */
_Thread_local const ort_run_options *ep_running;

ort_status *ep_on_run_start(ort_ep *self, const ort_run_options *how) {
  (void)self;
  ep_running = how;
  return NULL;
}

ort_status *ep_on_run_end(ort_ep *self, const ort_run_options *how, bool sync) {
  (void)self, (void)how, (void)sync;
  ep_running = NULL;
  return NULL;
}

static ort_status *open_looker(ep *e) {
  const ort_table *ort = e->f->ort;
  ort_env *env = NULL; /* the application's, there is one a process */
  ort_options *options = NULL;
  ORT_TRY(ORT(ort, CreateEnv)(ORT_LOG_ERROR, EP_NAME, &env));
  ort_status *status = ORT(ort, CreateSessionOptions)(&options);
  if (status == NULL)
    status = ORT(ort, SetIntraOpNumThreads)(options, 1);
  if (status == NULL) {
    status =
        ORT(ort, CreateSessionFromArray)(env, one_node, sizeof one_node - 1, options, &e->looker);
  }
  if (options != NULL)
    ORT(ort, ReleaseSessionOptions)(options);
  ORT(ort, ReleaseEnv)(env);
  return status;
}

bool ep_is_ended(ep *e, const ort_run_options *how) {
  static const char *const output = "b";
  const ort_table *ort = e->f->ort;
  ort_value *value = NULL;
  ort_status *status = NULL;
  (void)pthread_mutex_lock(&e->looking);
  if (e->looker == NULL && !e->blind) {
    status = open_looker(e);
    e->blind = status != NULL;
  }
  ort_session *looker = e->looker;
  (void)pthread_mutex_unlock(&e->looking);
  if (status != NULL) {
    ep_log(e, ORT_LOG_WARNING, "onnx-pipe cannot see RunOptions.terminate: %s",
           ORT(ort, GetErrorMessage)(status));
  } else if (looker != NULL) {
    status = ORT(ort, Run)(looker, how, NULL, NULL, 0, &output, 1, &value);
  }
  const bool ended = looker != NULL && status != NULL &&
                     strstr(ORT(ort, GetErrorMessage)(status), "terminate flag") != NULL;
  if (status != NULL)
    ORT(ort, ReleaseStatus)(status);
  if (value != NULL)
    ORT(ort, ReleaseValue)(value);
  return ended;
}
