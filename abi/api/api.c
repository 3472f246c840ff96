/* SPDX-License-Identifier: Apache-2.0 */
/* References between objects, and the end of handles. */
#include "abi/api/api.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

void opi_ref(atomic_uint *refs) {
  (void)atomic_fetch_add_explicit(refs, 1, memory_order_relaxed);
}

bool opi_unref(atomic_uint *refs) {
  return atomic_fetch_sub_explicit(refs, 1, memory_order_acq_rel) == 1;
}

uint64_t opi_now_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

void opi_log_to_stderr(void *ctx, uint32_t level, const char *file, uint32_t line,
                       const char *msg) {
  static const char *const names[] = {"error", "warning", "info", "debug"};
  (void)ctx;
  (void)file;
  (void)line;
  (void)fprintf(stderr, "onnx-pipe: %s: %s\n", names[level < 3 ? level : 3], msg);
}

/* Logs to the context of the handle if it is known, else to standard error. */
static void complain(const void *handle, const opipe_error *why) {
  opi_entry in;
  const uint64_t owner = opi_handle_owner(handle);
  if (owner != 0 && opi_handle_enter(opi_handle_pointer(owner), OPI_HANDLE_CONTEXT, "log", &in,
                                     NULL) == OPIPE_OK) {
    const opi_context_object *context = in.object;
    opi_log(&context->logger, OPIPE_LOG_ERROR, "%s", why->message);
    opi_handle_leave(&in);
    return;
  }
  opi_log_to_stderr(NULL, OPIPE_LOG_ERROR, NULL, 0, why->message);
}

opipe_status opi_refuse_inside(const char *call, opipe_error *err) {
  return opi_fail(
      err, OPIPE_E_STATE,
      "%s: must not be called from inside on_done or on_output, where only request_poll, "
      "_output, _report, _cancel and _release may be called",
      call);
}

static _Thread_local uint32_t n_callbacks; /* entered by this thread */

void opi_callback_enter(void) {
  ++n_callbacks;
}

void opi_callback_leave(void) {
  --n_callbacks;
}

opipe_status opi_callback_check(const char *call, opipe_error *err) {
  return n_callbacks == 0 ? OPIPE_OK
                          : opi_fail(err, OPIPE_E_STATE,
                                     "%s: must not be called from inside the progress of "
                                     "strategy_make or plan_tune",
                                     call);
}

opipe_status opi_generation_check_callback(const char *call, opipe_error *err) {
  static const char *const allowed[] = {"session_generate", "session_generation", "sequence_append",
                                        "sequence_fork",    "sequence_truncate",  "sequence_draft",
                                        "sequence_cancel",  "sequence_info",      "sequence_ids",
                                        "sequence_release"};
  bool may = !opi_generator_in_callback();
  for (uint32_t i = 0; !may && i < OPI_COUNT(allowed); ++i)
    may = strcmp(call, allowed[i]) == 0;
  return may ? OPIPE_OK
             : opi_fail(err, OPIPE_E_STATE,
                        "%s: must not be called from inside a callback of generation", call);
}

void opi_handle_destroy(const void *handle, uint32_t kind, const char *call) {
  opi_entry in;
  opipe_error err = OPIPE_ERROR_INIT;
  if (handle == NULL || opi_handle_inherited(handle))
    return;
  opipe_status status = opi_callback_check(call, &err);
  if (status == OPIPE_OK)
    status = opi_generation_check_callback(call, &err);
  if (status == OPIPE_OK) {
    status = kind != OPI_HANDLE_REQUEST && opi_session_in_on_done()
                 ? opi_refuse_inside(call, &err)
                 : opi_handle_enter(handle, kind, call, &in, &err);
  }
  if (status == OPIPE_OK) {
    if (!opi_handle_kill(&in)) {
      status = opi_fail(&err, OPIPE_E_STATE, "%s: another thread has done so already", call);
    } else if (kind == OPI_HANDLE_SESSION) {
      const opi_session_object *session = in.object;
      opi_generator_stop(session->generator);
      opi_session_stop(session->session); /* lets calls inside return */
      opi_handle_slot_drain(in.slot, 1);
    } else if (kind == OPI_HANDLE_TEAM) {
      const opi_team_object *team = in.object;
      opi_team_end_calls(team->team);
      opi_handle_slot_drain(in.slot, 1);
    } else if (kind == OPI_HANDLE_SEQUENCE) {
      opi_sequence_leave(in.object);
    } else if (kind == OPI_HANDLE_REQUEST && opi_request_release_waits(in.object)) {
      opi_handle_slot_drain(in.slot, 1);
    }
    opi_handle_leave(&in); /* the last one out ends the object */
  }
  if (status < 0)
    complain(handle, &err);
}
