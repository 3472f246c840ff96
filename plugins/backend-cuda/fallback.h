/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes that the device lacks, on the CPU: sections of programs. */
#ifndef OPIPE_BACKEND_CUDA_FALLBACK_H_
#define OPIPE_BACKEND_CUDA_FALLBACK_H_

#include "ops/rule.h"

/* A value that crosses between a section and the device. */
typedef struct cuda_crossing {
  uint32_t value;    /* of the program's graph */
  uint64_t n_bytes;  /* of the value; a scalar's 8 */
  uint64_t offset;   /* in the section's memory */
  bool out;          /* made by the section */
  uint32_t boundary; /* of the section's graph; OPIPE_NONE: a scalar */
} cuda_crossing;

/* Nodes [first, first + n) as a graph of their own. */
typedef struct cuda_section_graph {
  const opipe_graph *whole;
  uint32_t first, n;
  opipe_graph graph;
  cuda_crossing *crossings;
  uint32_t n_crossings;
} cuda_section_graph;

/* section_graph.c: fills the rest; everything is of the pool. UNSUPPORTED: a node cannot leave the
 * device. */
opipe_status cuda_section_graph_make(cuda_section_graph *s, cuda_pool *pool, opipe_error *err);

/* inner.c: keeps an error's text, by number; under the lock of `inner`. */
uint64_t cuda_inner_note(cuda_inner *inner, opipe_status status, const opipe_error *why);

#endif /* OPIPE_BACKEND_CUDA_FALLBACK_H_ */
