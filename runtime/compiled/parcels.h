/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a request's tensors that travel between the processes of a team: rows of inputs from
 * process 0 to each process that reads them, outputs to process 0 from each that makes some.
 *
 *   process 0     opi_parcel_in ─► part ─► bytes ──►  the same part in memory of the request
 *
 * Both ends go through the same parts in the same order, since both have the lists of all ranks; so
 * a part's bytes need no name.
 */
#ifndef OPI_PARCELS_H
#define OPI_PARCELS_H

#include "runtime/compiled/shape.h"

/* Where the walk through the parts is. All zero: before the first. */
typedef struct opi_parcel {
  uint32_t item, next, output; /* where the next part is looked for */
  uint32_t part, which;        /* of the part: micro-batch or step; output */
  uint64_t n_bytes;            /* of the part */
} opi_parcel;

/* On to the next part that `process` reads of the request's inputs; a mini-batch's first one is the
 * count of its labels and the other sums. False: there is none. */
bool opi_parcel_in(const opi_compiled *shape, const opi_request *request, uint32_t process,
                   opi_parcel *io_parcel);
/* Copies n bytes of the part from byte `first` on, out of the request's inputs or into them. */
void opi_parcel_take_in(const opi_compiled *shape, const opi_request *request,
                        const opi_parcel *parcel, uint64_t first, uint64_t n, char *out_bytes);
void opi_parcel_put_in(const opi_compiled *shape, const opi_request *request,
                       const opi_parcel *parcel, uint64_t first, uint64_t n, const char *bytes);
/* The same for outputs that ranks of `process` make. */
bool opi_parcel_out(const opi_compiled *shape, const opi_request *request, uint32_t process,
                    opi_parcel *io_parcel);
void opi_parcel_take_out(const opi_compiled *shape, const opi_request *request,
                         const opi_parcel *parcel, uint64_t first, uint64_t n, char *out_bytes);
void opi_parcel_put_out(const opi_compiled *shape, const opi_request *request,
                        const opi_parcel *parcel, uint64_t first, uint64_t n, const char *bytes);

/* Submitting, with its shape: host memory for the inputs that come, where the request's feeds point
 * from then on. */
opipe_status opi_parcel_place(opi_request *request, opipe_error *err);
/* UNSUPPORTED: an input that travels, or an output, is on a device or has a fence that says when it
 * is no longer read. */
opipe_status opi_parcel_check(const opi_request *request, opipe_error *err);
void opi_parcel_blank(const opi_request *request); /* the inputs that come are all zero */
void opi_parcel_free(opi_request *request);

/* Does process `process` read input `input` (n_inputs: the shifted labels)? */
bool opi_parcel_reads(const opi_compiled *shape, uint32_t process, uint32_t input);
/* Building the shape: who reads what; and an input that every process copies to an output. */
opipe_status opi_parcel_find(opi_compiled *shape, opipe_error *err);
void opi_parcel_read_everywhere(opi_compiled *shape, uint32_t input);

#endif /* OPI_PARCELS_H */
