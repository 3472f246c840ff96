/* SPDX-License-Identifier: Apache-2.0 */
/* Walking a file graph, for binding a model and for inlining the bodies of If and Loop; and the
 * report of unsupported nodes. */
#ifndef OPI_OPS_WALK_H
#define OPI_OPS_WALK_H

#include "loader/ops/builder.h"

/* The shape that a rule needs of a graph input that has another. */
typedef struct opi_needed {
  uint32_t source; /* of the file's graph; OPIPE_NONE: nothing was needed */
  uint32_t rank;
  int64_t shape[OPIPE_MAX_RANK];
} opi_needed;

/* Everything unsupported in one file, one line per cause. The first cause also goes into the
 * error's message, with the number of the others. */
typedef struct opi_report {
  opi_text text; /* lines */
  uint32_t n;
  opipe_error first;
  opi_needed needed; /* by the last rule that refused an input */
} opi_report;
/* Adds a cause unless it is there already (a body may be inlined many times). */
void opi_report_add(opi_report *report, const opipe_error *err);

/* Walks, in order, the nodes of scope->file that its outputs need. */
opipe_status opi_walk(opi_builder *b, opi_frame *scope, opipe_error *err);
/* The bound value of a file value; initializers are adopted on first use. OPIPE_NONE if it was
 * never made (an error of the file). */
opipe_status opi_frame_value(opi_builder *b, const opi_frame *scope, uint32_t file_value,
                             uint32_t *out_value, opipe_error *err);
/* A scope whose values are all OPIPE_NONE, in the builder's scratch. */
opipe_status opi_frame_open(opi_builder *b, const opi_graph *file, const opi_frame *outer,
                            opi_frame *out_scope, opipe_error *err);

#endif /* OPI_OPS_WALK_H */
