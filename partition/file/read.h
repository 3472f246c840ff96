/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a plan file part by part, because later parts are checked against what the model says
 * about earlier ones:
 *
 *   begin -> beginning -> (bind the model) -> stages -> layout -> orders -> (finish) -> end
 *
 * Arrays are allocated in the plan's arena. Errors: INVALID names the member.
 */
#ifndef OPI_FILE_READ_H
#define OPI_FILE_READ_H

#include "loader/base/json.h"
#include "partition/plan/plan.h"

typedef struct opi_reading {
  const opi_model *model; /* borrowed; NULL: read without the model */
  json_t *root;
  opi_plan *plan;
  const opi_device_facts *facts; /* [n_ranks] in `scratch`, if bytes must be estimated anew; NULL:
                                    bytes are those of the file */
  opi_arena scratch;             /* released by opi_reading_end */
  opipe_error *err;
} opi_reading;

/* Parses the text and creates an empty plan. opi_reading_end releases both, on failure too. */
opipe_status opi_reading_begin(const opipe_allocator *allocator, const void *json, uint64_t n_bytes,
                               opi_reading *r);
/* Reads format, fingerprint, binding, devices, schedule, training, states, kernels and cost. */
opipe_status opi_reading_beginning(opi_reading *r);
/* Reads stages and their nodes, which must be those of `graph`, the bound micro-batch; NULL: as
 * listed. */
opipe_status opi_reading_stages(opi_reading *r, const opi_graph *graph);
/* Reads the schedule's layout: replicas, slices, parts. */
opipe_status opi_reading_layout(opi_reading *r);
/* Reads actions, predicted bytes, and the part of the playlist that depends on devices. */
opipe_status opi_reading_orders(opi_reading *r);
/* If `status` is OK, hashes the decisions and compares the result with the file's hash. Then
 * returns the plan, or frees it and returns the error. */
opipe_status opi_reading_end(opi_reading *r, opipe_status status, opi_plan **out_plan);

#endif /* OPI_FILE_READ_H */
