/* SPDX-License-Identifier: Apache-2.0 */
/* Which one-element initializers of a file are parameters, and which names exporters make up. */
#ifndef OPI_KEEP_H
#define OPI_KEEP_H

#include "loader/graph/graph.h"

/* Is this a name that an exporter made of a node ("val_12", "_to_copy", "unsqueeze_11",
 * "onnx::MatMul_7", "/h/Constant_output_0", "363"), not one that a module gave? */
bool opi_name_is_made(const char *name);

/* A name that an exporter gives to a parameter in another form or type, too ("val_12", "view_3").
 */
bool opi_name_keeps_numbers(const char *name);
/* A name made of an operator that changes numbers otherwise than by a factor or a shift ("exp"). */
bool opi_name_is_of_function(const char *name);
/* One number that a computation on small integers gives (n, sqrt(n), 1/n, a decimal, ...), or that
 * is not there. */
bool opi_number_is_plain(const opi_value *value);

/* An exponent or a bound that a module keeps as a tensor of rank 1 under a name of its own; a plain
 * number has rank 0. */
bool opi_number_is_named(const opi_value *value);

/* Finds float initializers of one element, in the graph and in the bodies of its nodes, that scale
 * or shift what depends on an input, as they are or by way of Exp and the like: their names go into
 * `kept`. Nothing that reads them may be folded, since they are to be trained. They are named by a
 * module, or their number is not plain and they are of rank 1 (a parameter that was cast) or named
 * after a function (which is only reported). Left out: numbers that norms add below a root, and
 * factors behind a Gather or a product that are the root of an integer (they come of a width);
 * where such a factor's number is not there, it is left out too. */
opipe_status opi_keep_scalars(const opi_graph *file, opi_arena *scratch, opi_map *kept,
                              opipe_error *err);

/* Names of Identity nodes' outputs in the main graph that are parameters of their own: an exporter
 * merged them with an initializer of the same numbers. They go into `merged`. */
opipe_status opi_find_merged(const opi_graph *file, opi_arena *scratch, opi_map *merged,
                             opipe_error *err);

#endif /* OPI_KEEP_H */
