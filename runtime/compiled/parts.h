/* SPDX-License-Identifier: Apache-2.0 */
/* The part of a request's tensors that a step reads or makes: rows and tokens. */
#ifndef OPI_PARTS_H
#define OPI_PARTS_H

#include "runtime/compiled/shape.h"

/* Along one axis (rows or tokens) a part has entries first to first + n - 1 of n_whole. carry.axis
 * -1: it has all of them. */
typedef struct opi_result_part {
  opi_carry carry;
  int64_t n_whole, first, n;
} opi_result_part;

/* The place of a part in a result: rows and tokens of a micro-batch, and the entries that a member
 * of a tensor group has. The first of the members that have an entry writes it. */
typedef struct opi_result_place {
  opi_result_part rows, tokens;
  const opi_port_part *member;    /* NULL: all entries */
  const opi_variant_slice *slice; /* of the member; those of the n_before members before it */
  uint32_t index, n_before;       /* stand before it. index: of the output */
} opi_result_place;

/* The part of a feed of `value` that has `shape` [value->rank] and begins at index `first` of
 * `axis` (-1: all of it). The view borrows `shape`, and changes it for packed types. */
opi_view opi_feed_part(const opi_feed *feed, const opi_value *value, int64_t *shape, int32_t axis,
                       int64_t first);
/* The tensor that feeds a port: the request's, or the shifted labels. */
const opi_feed *opi_port_feed(const opi_request *request, const opi_ports *ports, uint32_t port);
/* The rows of port `port`'s tensor that a stage's piece reads. The view borrows dims [rank]. */
opi_view opi_step_part(const opi_compiled *shape, const opi_request *request, uint32_t stage,
                       uint32_t port, uint32_t microbatch, int64_t *dims);
/* The place of what a stage makes of output `index` of its graph for a micro-batch. */
void opi_step_place(const opi_compiled *shape, const opi_request *request, uint32_t stage,
                    uint32_t microbatch, uint32_t index, const opi_carry *carry,
                    opi_result_place *out_place);
/* Calls `each` for every run of bytes of a part of shape `value` and its place in the result
 * (strided.h). */
opipe_status opi_result_runs(const opi_value *value, const opi_result_place *place, opi_run_fn each,
                             void *ctx);
/* Puts a part of shape `value` into its place. */
void opi_result_put(const opi_result *result, const opi_value *value, const opi_result_place *place,
                    const char *part);
/* Errors: UNSUPPORTED, an input or output of which members of a tensor group have parts that lie
 * where no copy of runs can reach them. */
opipe_status opi_parts_check(const opi_compiled *shape, opipe_error *err);
/* Counts the valid labels of the mini-batch on the host, and adds up its other sums
 * [OPI_MOST_SUMS], 0 for those that its loss lacks. Allocates nothing. */
opipe_status opi_train_count(opi_compiled *shape, const opi_request *request, double *out_count,
                             double *out_sums, opipe_error *err);

/* Is the input among those that are counted? */
bool opi_train_counts(const opi_compiled *shape, uint32_t input);

#endif /* OPI_PARTS_H */
