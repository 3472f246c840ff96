/* SPDX-License-Identifier: Apache-2.0 */
/* A plan file that is read part by part, since what comes later is checked against what the model
 * says of what came before:
 *
 *   begin -> beginning -> (bind the model) -> stages -> layout -> orders -> (finish) -> end
 *
 * The bodies of the plan's arrays lie in the plan's arena. Errors: INVALID names the member.
 */
#ifndef OPI_FILE_READ_H
#define OPI_FILE_READ_H

#include "loader/base/json.h"
#include "partition/plan/plan.h"

typedef struct opi_reading {
  const opi_model *model; /* borrowed; NULL: it is read without one */
  json_t *root;
  opi_plan *plan;
  opipe_error *err;
} opi_reading;

/* Parses the text and makes an empty plan; opi_reading_end releases both on failure too. */
opipe_status opi_reading_begin(const opipe_allocator *allocator, const void *json, uint64_t n_bytes,
                               opi_reading *r);
/* Format, fingerprint, binding, devices, schedule, training, states, kernels, cost. */
opipe_status opi_reading_beginning(opi_reading *r);
/* Stages with their nodes, which are those of `graph`, the bound micro-batch; NULL: as listed. */
opipe_status opi_reading_stages(opi_reading *r, const opi_graph *graph);
/* Replicas, slices, parts: what the schedule laid out. */
opipe_status opi_reading_layout(opi_reading *r);
/* Actions, predicted bytes, and what the lists take where the devices decide that. */
opipe_status opi_reading_orders(opi_reading *r);
/* Where `status` is OK, hashes the decisions and compares that with the file's hash. Hands the plan
 * out, or frees it and returns the error. */
opipe_status opi_reading_end(opi_reading *r, opipe_status status, opi_plan **out_plan);

#endif /* OPI_FILE_READ_H */
