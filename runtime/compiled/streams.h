/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of requests. A plan's pairs say which output becomes which input of the same stream's
 * next request. A state (the host's handle) is one stream. It has two buffers for every pair, on
 * the rank with the pair's stage, and their content never leaves that rank.
 *
 *   submit (under submit_lock)                                                ranks
 *   begin ► feed ► shape ► results ► bind ► advance ► publish      look ► load ► compute ► store
 *
 * A stream's life, under submit_lock except where it says otherwise:
 *
 *   FREE ──open──► LEASED ──the handle ends──► CLOSED ──reclaim──► FREE
 *   no memory      the host has it             requests of it      once n_unfinished is 0 and the
 *                                              may be unfinished   session has not failed
 *
 * In the code FREE is !leased && !filled, LEASED leased && filled, CLOSED !leased && filled. In
 * LEASED and CLOSED a stream may also be broken (broken_at, any thread): the first request that
 * fails breaks it for all later ones, and reset makes it whole. After reclaim no rank touches a
 * stream: ranks read its buffers only for requests that count in n_unfinished. Since ranks may
 * still work after a failure, a failed session's streams are freed with the session (opi_is_idle).
 */
#ifndef OPI_STREAMS_H
#define OPI_STREAMS_H

#include "runtime/compiled/shape.h"

/* `params->state` of a submit is an opi_stream here. */
typedef struct opi_stream opi_stream;

/* ---- for the host ---- */

opipe_status opi_stream_open(opi_setup *setup, const opipe_state_params *params,
                             opipe_state **out_state, opipe_error *err);
const opi_setup *opi_stream_setup(const opi_stream *stream); /* of its session */
uint32_t opi_stream_n_unfinished(const opi_stream *stream);  /* requests that ranks may touch */
opipe_status opi_stream_reset(opi_stream *stream, opipe_error *err);
opipe_status opi_stream_copy(opi_stream *to, opi_stream *from, opipe_error *err);
/* dst NULL: reads only the info. */
opipe_status opi_stream_get(opi_stream *stream, uint32_t pair, opipe_state_info *out_info,
                            void *dst, uint64_t n_bytes, opipe_error *err);

/* ---- with the session ---- */

opipe_status opi_streams_open(opi_setup *setup, opipe_error *err); /* once devices are open */
void opi_streams_shut(opi_setup *setup); /* makes handles stale; returns when no call is inside */
void opi_streams_stop(opi_setup *setup); /* frees the backends' objects */
void opi_streams_free(opi_setup *setup);
void opi_streams_tidy(opi_setup *setup); /* frees the memory of closed streams */
/* Frees all bindings to a compiled shape. Under submit_lock. */
void opi_streams_forget(const struct opi_compiled *shape);
/* The pair that an input belongs to; OPIPE_NONE: none. */
uint32_t opi_stream_pair_in(const opi_setup *setup, uint32_t input);
/* Does the request's stream keep the output? */
bool opi_stream_keeps(const opi_request *request, uint32_t output);
/* Submitting calls these in this order, under submit_lock: begin finds the stream; feed gives each
 * input its shape, given or (*out_kept) kept; check_results compares the outputs' sizes with the
 * room; bind finds the bindings; advance, when nothing can fail any more, sets up the stream for
 * its next request. */
opipe_status opi_stream_begin(opi_setup *setup, const opipe_submit_params *params,
                              opi_request *request, opipe_error *err);
opipe_status opi_stream_feed(const opi_request *request, uint32_t input, opi_feed *feed,
                             bool *out_kept, opipe_error *err);
opipe_status opi_stream_check_results(const opi_request *request, opipe_error *err);
opipe_status opi_stream_bind(opi_request *request, opipe_error *err);
void opi_stream_advance(opi_request *request);
/* The number of gaps to publish before the request, so that its stream's replica takes it. stream:
 * the host's number; of a pass, its replica. */
uint32_t opi_stream_gap(const opi_request *request, uint64_t stream);
/* Fails the request if an earlier one of its stream has failed; a rank is about to begin it. */
void opi_stream_look(opi_request *request);
/* The place that a given input, or a member's part of it, is loaded to; false: it is kept, and
 * there is nothing to load. */
bool opi_stream_load(const opi_request *request, uint32_t input, uint32_t member,
                     opipe_region *io_region, char **io_host);
void opi_stream_break(const opi_request *request); /* the request has failed */
/* Held while a request fails; opi_stream_look waits meanwhile. */
void opi_stream_hold(opi_stream *stream);
void opi_stream_let_go(opi_stream *stream);
void opi_stream_finish(const opi_request *request); /* no rank uses the stream for it any more */
/* The place of an output that is kept; *out_host NULL: the device has no host memory. */
void opi_stream_place(const opi_request *request, uint32_t output, uint32_t member,
                      uint64_t n_bytes, opipe_region *out_region, char **out_host);
#endif /* OPI_STREAMS_H */
