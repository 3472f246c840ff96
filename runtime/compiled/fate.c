/* SPDX-License-Identifier: Apache-2.0 */
/* The transitions of a request's fate, as drawn in request.h. */
#include "runtime/compiled/compiled.h"

/* Breaks the stream before the failure can be seen. */
static bool fail(opi_request *request, uint32_t from, uint32_t stage, const opipe_error *why) {
  if (request->stream_kept != NULL)
    opi_stream_hold(request->stream_kept);
  const bool first = atomic_compare_exchange_strong(&request->failed, &from, OPI_FATE_WRITTEN);
  if (first) {
    request->error = *why;
    request->error.struct_size = (uint32_t)sizeof request->error;
    request->failed_stage = stage;
    if (request->stream_kept != NULL)
      opi_stream_break(request);
    atomic_store_explicit(&request->failed, OPI_FATE_FAILED, memory_order_release);
  }
  if (request->stream_kept != NULL)
    opi_stream_let_go(request->stream_kept);
  return first;
}

/* Asynchronous devices report late, so bad data may be noticed downstream first. The lowest stage
 * that noticed it is where it began. */
bool opi_request_fail_at(opi_request *request, uint32_t stage, const opipe_error *why) {
  if (fail(request, OPI_FATE_OPEN, stage, why))
    return true;
  while (why->status == OPIPE_E_INVALID && stage < request->failed_stage &&
         request->failed_stage != OPIPE_NONE) {
    if (fail(request, OPI_FATE_FAILED, stage, why))
      return true;
    const uint32_t fate = atomic_load(&request->failed);
    if (fate != OPI_FATE_WRITTEN && fate != OPI_FATE_FAILED)
      return false; /* else another thread was copying `error`: try again */
  }
  return false;
}

bool opi_request_fail(opi_request *request, const opipe_error *why) {
  return opi_request_fail_at(request, OPIPE_NONE, why);
}

void opi_request_judge(opi_request *request, const opipe_error *why) {
  if (!opi_request_fail(request, why))
    (void)fail(request, OPI_FATE_SEALED, OPIPE_NONE, why);
}

void opi_request_seal(opi_request *request) {
  uint32_t open = OPI_FATE_OPEN;
  (void)atomic_compare_exchange_strong(&request->failed, &open, OPI_FATE_SEALED);
}

void opi_request_close_fate(opi_request *request) {
  uint32_t fate = atomic_load(&request->failed);
  while (fate != OPI_FATE_DONE && fate != OPI_FATE_TOLD) {
    if (fate == OPI_FATE_WRITTEN) /* a few instructions long */
      fate = atomic_load_explicit(&request->failed, memory_order_acquire);
    else if (atomic_compare_exchange_weak(&request->failed, &fate,
                                          fate == OPI_FATE_FAILED ? OPI_FATE_TOLD : OPI_FATE_DONE))
      return;
  }
}

bool opi_request_reason(opi_request *request, opipe_error *out_why, uint32_t *out_stage) {
  uint32_t fate = atomic_load_explicit(&request->failed, memory_order_acquire);
  while (fate == OPI_FATE_WRITTEN || fate == OPI_FATE_FAILED) {
    /* Hold `error` still while it is copied. */
    if (fate == OPI_FATE_FAILED &&
        atomic_compare_exchange_weak(&request->failed, &fate, OPI_FATE_WRITTEN))
      break;
    fate = atomic_load_explicit(&request->failed, memory_order_acquire);
  }
  if (fate != OPI_FATE_FAILED && fate != OPI_FATE_TOLD)
    return false;
  *out_why = request->error;
  *out_stage = request->failed_stage;
  if (fate == OPI_FATE_FAILED)
    atomic_store_explicit(&request->failed, OPI_FATE_FAILED, memory_order_release);
  return true;
}
