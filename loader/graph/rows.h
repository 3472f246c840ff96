/* SPDX-License-Identifier: Apache-2.0 */
/* A bound graph for another number of rows, derived from those of two.
 *
 * Graphs that are bound separately differ in more than their extents if an extent is 1 or happens
 * to equal another: operations without effect (Expand, Tile, a sum over one row) are dropped, and
 * stages keep and send other sets of values. Micro-batches of different sizes in one pipeline need
 * a single set. So the graph is bound for two larger numbers of rows, and those for all other
 * numbers are derived from the two: the same nodes and values, other extents.
 *
 * Numbers (extents, attributes, elements of small integer and fp32 or fp64 tensors) must be equal
 * in both or scale with the rows, as k * rows or, for floats, k / rows. A known tensor that is
 * longer in one dimension must agree for each row that both have. Nothing else is guessed.
 */
#ifndef OPI_ROWS_H
#define OPI_ROWS_H

#include "loader/graph/graph.h"

typedef struct opi_row_change {
  int64_t rows_a, rows_b; /* of the two graphs; rows_a < rows_b */
  int64_t rows;           /* wanted; 1 to rows_a */
} opi_row_change;

/* Makes *out_graph in `arena`. It borrows from `a`, which must outlive it. Errors: UNSUPPORTED
 * names the node, tensor or attribute in which a and b differ in another way. */
opipe_status opi_graph_with_rows(const opi_graph *a, const opi_graph *b,
                                 const opi_row_change *change, opi_arena *arena,
                                 opi_graph **out_graph, opipe_error *err);
/* One number by the same rule; false: it does not scale with the rows. */
bool opi_rows_int(const opi_row_change *change, int64_t a, int64_t b, int64_t *out);
bool opi_rows_double(const opi_row_change *change, double a, double b, double *out);

#endif /* OPI_ROWS_H */
