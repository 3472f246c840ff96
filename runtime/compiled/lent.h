/* SPDX-License-Identifier: Apache-2.0 */
/* What hosts lend on a device: tensors in its memory, streams and events that say when they may be
 * touched. Nothing of it passes through the host.
 *
 *   submit   each rank that touches a tensor gets it as a buffer of its own opening, imported once
 *            and found again; streams are asked how far they are; programs are bound to the
 *            tensors where these fit their places
 *   ranks    wait on their queues, once per request and before its first work; load and store by
 *            copies in queue order what is not in place; set native `done` fences behind the last
 *
 * Items of a request: its inputs, then its outputs. Under submit_lock but for what ranks call.
 */
#ifndef OPI_LENT_H
#define OPI_LENT_H

#include "runtime/compiled/parts.h"

/* Whether the rank's device can take tensors and fences of hosts. After it is open. */
opipe_status opi_lent_open(opi_rank *rank, opipe_error *err);
/* The shape goes, and all bindings that were made of it. */
void opi_lent_forget(const opi_compiled *shape);
/* The end, before devices close, in this order: bindings; a request's memory and events; imported
 * handles. Then the rest of a request. */
void opi_lent_stop_places(opi_setup *setup);
void opi_lent_stop_request(opi_request *request);
void opi_lent_stop_imports(opi_setup *setup);
void opi_lent_free(opi_request *request);

/* ---- submitting ---- */

/* The library's own memory for an output on the device of the rank that makes it, or (host false)
 * which device that is. result->on_device false: it stays in host memory. */
void opi_lent_place(const opi_request *request, uint32_t output, opi_result *result);
opipe_status opi_lent_own(const opi_request *request, uint32_t output, opi_result *result,
                          opipe_error *err);
/* Takes all that was given, once results have their places. look: no device waits for its `ready`
 * fences, they are looked at. Errors: INVALID, another device, memory that is not its; UNSUPPORTED,
 * fences that it does not know, a tensor that has to be the host's. */
opipe_status opi_lent_take(opi_request *request, bool look, opipe_error *err);
/* Gives it back: no rank comes to the request any more, or it was not submitted. Any thread. */
void opi_lent_drop(opi_request *request);
/* May the host look at it, or a rank begin with it? Any thread. */
bool opi_feed_ready(const opi_request *request, uint32_t input);
bool opi_result_ready(const opi_request *request, uint32_t output);
/* ---- ranks ---- */

opipe_status opi_lent_wait_fences(opi_rank *rank, opi_request *request, opipe_error *err);
/* The rank's queue waits for what the request's fences say; once. */
static inline opipe_status opi_lent_begin(opi_rank *rank, opi_request *request, opipe_error *err) {
  return request->lent == NULL || !request->lends ? OPIPE_OK
                                                  : opi_lent_wait_fences(rank, request, err);
}
/* All that the rank does for the request is queued. */
opipe_status opi_lent_set_fences(opi_rank *rank, opi_request *request, opipe_error *err);
static inline opipe_status opi_lent_end(opi_rank *rank, opi_request *request, opipe_error *err) {
  return request->lent == NULL || !request->lends ? OPIPE_OK
                                                  : opi_lent_set_fences(rank, request, err);
}
/* Has it been so by all ranks here? False where nothing of a device was given. Any thread. */
bool opi_lent_queued(const opi_request *request);
/* The part `view` of input `input` goes to `region`. */
opipe_status opi_lent_load(opi_rank *rank, const opi_request *request, uint32_t input,
                           const opi_view *view, const opipe_region *region, opipe_error *err);
/* A cell's part of an output goes to its place from `region`, or (NULL) from host memory. */
typedef struct opi_lent_part {
  uint32_t output;
  const opi_value *value;
  const opi_result_part *rows, *tokens;
  const char *host; /* the cell's own address, where `region` is NULL */
} opi_lent_part;
opipe_status opi_lent_store(opi_rank *rank, const opi_request *request, const opi_lent_part *part,
                            const opipe_region *region, opipe_error *err);
/* Does the cell lie in the host's tensor for this micro-batch? */
bool opi_lent_in_place(const opi_request *request, uint32_t cell, uint32_t microbatch);

#endif /* OPI_LENT_H */
