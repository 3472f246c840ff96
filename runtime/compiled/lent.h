/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors, streams and events that hosts lend on a device. Tensors stay in the device's memory;
 * streams and events say when they may be touched.
 *
 *   submit   imports each tensor as a buffer of every rank that touches it, once, and finds it
 *            again; records an event on streams; binds programs to the tensors where they fit
 *   ranks    let their queues wait once per request, before its first work; copy tensors that are
 *            not used in place, in queue order; set native `done` fences behind the last work
 *
 * The items of a request are its inputs, then its outputs. Everything is under submit_lock, except
 * the functions for ranks.
 */
#ifndef OPI_LENT_H
#define OPI_LENT_H

#include "runtime/compiled/parts.h"

/* Finds whether the rank's device, which is open, can take tensors and fences of hosts. */
opipe_status opi_lent_open(opi_rank *rank, opipe_error *err);
/* Frees all bindings of the shape. */
void opi_lent_forget(const opi_compiled *shape);
/* These end it, in this order, before devices close: bindings; a request's memory and events;
 * imported handles. Free does the rest of a request. */
void opi_lent_stop_places(opi_setup *setup);
void opi_lent_stop_request(opi_request *request);
void opi_lent_stop_imports(opi_setup *setup);
void opi_lent_free(opi_request *request);

/* ---- submitting ---- */

/* Place finds the device of the rank that makes an output (result->on_device false: it stays in
 * host memory); own takes the library's own memory for it there. */
void opi_lent_place(const opi_request *request, uint32_t output, opi_result *result);
opipe_status opi_lent_own(const opi_request *request, uint32_t output, opi_result *result,
                          opipe_error *err);
/* Takes everything that was lent, once results have their places. look: the host polls `ready`
 * fences, instead of a device waiting for them. Errors: INVALID for another device or memory that
 * is not the device's; UNSUPPORTED for unknown fences, or a tensor that must be in host memory. */
opipe_status opi_lent_take(opi_request *request, bool look, opipe_error *err);
/* Gives everything back, once no rank comes to the request any more. Any thread. */
void opi_lent_drop(opi_request *request);
/* May the tensor be touched, by a rank or the host? Any thread. */
bool opi_feed_ready(const opi_request *request, uint32_t input);
bool opi_result_ready(const opi_request *request, uint32_t output);
/* ---- ranks ---- */

opipe_status opi_lent_wait_fences(opi_rank *rank, opi_request *request, opipe_error *err);
/* Lets the rank's queue wait for the request's fences, once. */
static inline opipe_status opi_lent_begin(opi_rank *rank, opi_request *request, opipe_error *err) {
  return request->lent == NULL || !request->lends ? OPIPE_OK
                                                  : opi_lent_wait_fences(rank, request, err);
}
/* Sets `done` fences, once all of the rank's work for the request is queued. */
opipe_status opi_lent_set_fences(opi_rank *rank, opi_request *request, opipe_error *err);
static inline opipe_status opi_lent_end(opi_rank *rank, opi_request *request, opipe_error *err) {
  return request->lent == NULL || !request->lends ? OPIPE_OK
                                                  : opi_lent_set_fences(rank, request, err);
}
/* Have all ranks here done so? False if nothing of a device was lent. Any thread. */
bool opi_lent_queued(const opi_request *request);
/* Copies the part `view` of input `input` to `region`. */
opipe_status opi_lent_load(opi_rank *rank, const opi_request *request, uint32_t input,
                           const opi_view *view, const opipe_region *region, opipe_error *err);
/* Copies a cell's part of an output to its place, from `region` or (NULL) from host memory. */
typedef struct opi_lent_part {
  uint32_t output;
  const opi_value *value;
  const opi_result_place *place;
  const char *host; /* the cell's own address, where `region` is NULL */
} opi_lent_part;
opipe_status opi_lent_store(opi_rank *rank, const opi_request *request, const opi_lent_part *part,
                            const opipe_region *region, opipe_error *err);
/* Does the cell lie in the host's tensor for this micro-batch? */
bool opi_lent_in_place(const opi_request *request, uint32_t cell, uint32_t microbatch);

#endif /* OPI_LENT_H */
