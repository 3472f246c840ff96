/* SPDX-License-Identifier: Apache-2.0 */
/* Entry of runtime/compiled: shapes and all that is bound to them.
 *
 *   request.h  a request as the ranks see it, and how it fails
 *   shape.h    what is compiled for a shape; all shapes of a session
 *   parts.h    which part of a request's tensors a step has
 *   parcels.h  the parts that travel between the processes of a team
 *   streams.h  tensors that streams keep from request to request
 *   lent.h     tensors, streams and events that hosts lend on a device
 *
 * Invariants
 * - A shape (signature: every input dimension, and the values that decide shapes) has graphs,
 *   programs, lists, boundary buffers and streams of messages of its own. Parameter sets and arenas
 *   are per rank and shared. The plan's own shape stays; others are evicted when idle, the least
 *   recently used first.
 * - Nothing of a shape is freed while n_users is not 0, or after a failure before the session ends.
 * - Bindings with a stream's or a host's memory are freed before the programs that they bind.
 * - The parts of a shape that ranks read are written before its first request is published, except
 *   seats and the two ends of wires, each of which one rank writes.
 * - Shapes come and go under submit_lock.
 *
 * Told upwards (opi_shapes_above): a value that a submit needs is behind a host's flag; weights are
 * to be shared with other sessions.
 */
#ifndef OPI_COMPILED_H
#define OPI_COMPILED_H

#include "runtime/compiled/lent.h"
#include "runtime/compiled/parcels.h"
#include "runtime/compiled/parts.h"
#include "runtime/compiled/request.h"
#include "runtime/compiled/shape.h"
#include "runtime/compiled/streams.h"

/* The plan's own shape, and with it a training session's weights. Once devices are open. */
opipe_status opi_shapes_open(opi_shapes *shapes, opipe_error *err);
/* A plan of passes: the shapes of all classes of rows, after which none is added. Nothing else. */
opipe_status opi_shapes_open_all(opi_shapes *shapes, opipe_error *err);
/* How the shape's messages travel, once the ranks' endpoints are ready (ways.c). Errors: the
 * transport's; ABI. */
opipe_status opi_ways_find(opi_shape *shape, opipe_error *err);
/* Pinned host memory of the shape's messages on a rank. */
uint64_t opi_ways_staged(const opi_compiled *shape, uint32_t rank);
/* The shape's streams are closed. */
void opi_ways_forget(const opi_compiled *shape);
/* Gives back all that is the backends' and the transport's; nothing runs any more. */
void opi_shapes_stop(opi_shapes *shapes);
void opi_shapes_free(opi_shapes *shapes);

/* Submitting, under submit_lock. Reads a request's inputs and checks names, types and shapes.
 * OPIPE_PENDING: a value that decides shapes is not there yet. */
opipe_status opi_read_inputs(opi_setup *setup, const opipe_submit_params *params,
                             opi_request *request, opipe_error *err);
/* Finds the shape of `request`, which it uses until it has passed, and builds it if needed.
 * OPIPE_PENDING: there is no room until a shape in use is let go. */
opipe_status opi_shape_find(opi_setup *setup, opi_request *request, opipe_error *err);
void opi_shape_let_go(opi_request *request); /* it will not use its shape; it may have none */
/* With its shape: INVALID if an input has no data that ranks here read, or any process where inputs
 * travel; takes memory for those that come. Are its labels counted here? Else the session with rank
 * 0 tells the count. made.c */
opipe_status opi_needs_check(opi_request *request, opipe_error *err);
bool opi_counts_here(const opi_request *request);
/* Is input `input` needed here in the plan's own shape? */
bool opi_shapes_need(opi_shapes *shapes, uint32_t input);

#endif /* OPI_COMPILED_H */
