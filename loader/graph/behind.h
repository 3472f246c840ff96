/* SPDX-License-Identifier: Apache-2.0 */
/* The initializer that a parameter's name refers to in the file graph. */
#ifndef OPI_BEHIND_H
#define OPI_BEHIND_H

#include "loader/graph/graph.h"

/* The initializer of that name, in the main graph or in a body; or the one that Identity nodes of
 * the main graph pass on under that name (a parameter that an exporter merged with it). NULL: none.
 */
const opi_value *opi_initializer_behind(const opi_graph *graph, const char *name);

#endif /* OPI_BEHIND_H */
