/* SPDX-License-Identifier: Apache-2.0 */
/* What streams of requests keep: a plan's pairs say which output is which input of the same
 * stream's next request. A state (the host's handle) is one stream: of every pair two buffers on
 * the rank that has the pair's stage. Nothing of it travels or passes through the host.
 *
 *   submit (under submit_lock)                                                ranks
 *   begin ► feed ► shape ► results ► bind ► advance ► publish      look ► load ► compute ► store
 *
 * A stream's life; submit_lock but where it says otherwise:
 *
 *   FREE ──open──► LEASED ──the handle ends──► CLOSED ──reclaim──► FREE
 *   no memory      the host has it             requests of it      once n_unfinished is 0 and the
 *                                              may be unfinished   session has not failed
 *
 * The code's words: FREE !leased && !filled, LEASED leased && filled, CLOSED !leased && filled. In
 * LEASED and CLOSED a stream may also be broken (broken_at, any thread): the first request that
 * fails breaks it from there on, and reset makes it whole. After reclaim nothing of a stream is
 * touched: a rank reads its buffers only for a request that counts in n_unfinished, and ranks that
 * are still at work after a failure are why a failed session's streams are freed only with the
 * session (opi_is_idle).
 */
#ifndef OPI_STREAMS_H
#define OPI_STREAMS_H

#include "runtime/compiled/shape.h"

/* In `params->state` of a submit stands the opi_stream. */
typedef struct opi_stream opi_stream;

/* ---- for the host ---- */

opipe_status opi_stream_open(opi_setup *setup, const opipe_state_params *params,
                             opipe_state **out_state, opipe_error *err);
opipe_status opi_stream_reset(opi_stream *stream, opipe_error *err);
opipe_status opi_stream_copy(opi_stream *to, opi_stream *from, opipe_error *err);
/* dst NULL: no content. */
opipe_status opi_stream_get(opi_stream *stream, uint32_t pair, opipe_state_info *out_info,
                            void *dst, uint64_t n_bytes, opipe_error *err);

/* ---- with the session ---- */

opipe_status opi_streams_open(opi_setup *setup, opipe_error *err); /* once devices are open */
void opi_streams_shut(opi_setup *setup); /* handles become stale; nobody is inside any more */
void opi_streams_stop(opi_setup *setup); /* what is the backends' */
void opi_streams_free(opi_setup *setup);
void opi_streams_tidy(opi_setup *setup); /* gives back what closed ones had */
/* A compiled shape goes, and all bindings that were made of it. Under submit_lock. */
void opi_streams_forget(const struct opi_compiled *shape);
/* The pair that an input belongs to; OPIPE_NONE: to none. */
uint32_t opi_stream_pair_in(const opi_setup *setup, uint32_t input);
/* Does the request's stream keep the output? */
bool opi_stream_keeps(const opi_request *request, uint32_t output);
/* Submitting, in this order, under submit_lock: whose request it is; each input, given or
 * (*out_kept) kept, with the shape of what is kept; the outputs' sizes against the room; the
 * bindings; and, when nothing can fail any more, what the next request finds. */
opipe_status opi_stream_begin(opi_setup *setup, const opipe_submit_params *params,
                              opi_request *request, opipe_error *err);
opipe_status opi_stream_feed(const opi_request *request, uint32_t input, opi_feed *feed,
                             bool *out_kept, opipe_error *err);
opipe_status opi_stream_check_results(const opi_request *request, opipe_error *err);
opipe_status opi_stream_bind(opi_request *request, opipe_error *err);
void opi_stream_advance(opi_request *request);
/* Requests that must stand before it so that its stream's replica takes it. */
uint32_t opi_stream_gap(const opi_request *request);
/* A rank comes to it: it fails if one before it in its stream has. */
void opi_stream_look(opi_request *request);
/* Where a given input goes instead; false: it is kept, there is nothing to load. */
bool opi_stream_load(const opi_request *request, uint32_t input, opipe_region *io_region,
                     char **io_host);
void opi_stream_break(const opi_request *request); /* it has failed */
/* Around a request's failing: whoever looks at the stream meanwhile waits. */
void opi_stream_hold(opi_stream *stream);
void opi_stream_let_go(opi_stream *stream);
void opi_stream_finish(const opi_request *request); /* no rank uses the stream for it any more */
/* Where an output that is kept goes; *out_host NULL: the device has no host memory. */
void opi_stream_place(const opi_request *request, uint32_t output, uint64_t n_bytes,
                      opipe_region *out_region, char **out_host);
#endif /* OPI_STREAMS_H */
