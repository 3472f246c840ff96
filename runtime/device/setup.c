/* SPDX-License-Identifier: Apache-2.0 */
/* Checks before a call: may the session be used, and is the rank here? */
#include "runtime/device/device.h"

opipe_status opi_process_check(const opi_setup *s, opipe_error *err) {
  const int32_t pid = opi_process_id();
  if (s->pid != pid) {
    return opi_fail(err, OPIPE_E_STATE,
                    "the session was opened in another process (%d, this is %d)", s->pid, pid);
  }
  return OPIPE_OK;
}

opipe_status opi_session_check(const opi_setup *s, opipe_error *err) {
  OPI_TRY(opi_process_check(s, err));
  if (atomic_load(&s->ending.closing) != 0)
    return opi_fail(err, OPIPE_E_STATE, "the session is being closed");
  return OPIPE_OK;
}

opipe_status opi_rank_find(const opi_setup *s, const char *call, uint32_t rank, opipe_error *err) {
  if (opi_rank_is_here(s, rank))
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_NOTFOUND,
                  "%s: rank %u is in another session; the first of %u here is rank %u", call, rank,
                  s->n_here, s->here[0]);
}

static opipe_endpoint *endpoint_of(const void *ctx, uint32_t index) {
  const opi_setup *s = ctx;
  return s->ranks[s->here[index]].endpoint;
}

opipe_status opi_session_ready(const opi_setup *s, opipe_error *err) {
  const opi_ready what = {.transport = &s->env.transport,
                          .endpoint = endpoint_of,
                          .ctx = s,
                          .n = s->n_here,
                          .timeout_ns = s->watchdog_ns,
                          .board = s->env.board};
  return s->reference ? OPIPE_OK : opi_endpoints_ready(&what, err);
}
