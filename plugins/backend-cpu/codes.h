/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of few bits that products read without unpacking them first: codes, scales and zero
 * points of one matrix as one packed copy in a parameter set, counted under the parameter that
 * holds the codes. codes.c: from nodes to such matrices, and their copies. */
#ifndef OPIPE_BACKEND_CPU_CODES_H_
#define OPIPE_BACKEND_CPU_CODES_H_

#include "ops/op.h"

/* One of the tensors that a packed matrix is made of. */
typedef struct cpu_codes_part {
  uint32_t slot;          /* in the parameter set; OPIPE_NONE: a constant, or absent */
  uint32_t dtype;         /* of a parameter: must be the set's */
  uint64_t n_bytes;       /* 0: absent */
  cpu_code_source source; /* data: of a constant, as long as the program */
} cpu_codes_part;

struct cpu_matrix {
  cpu_codes form;
  cpu_codes_part codes, scales, zeros;
  bool int8;        /* the node lets products round their rows to 8 bits */
  uint64_t n_bytes; /* packed */
  uint64_t key;     /* of form, parts and their places: what is equal has one copy in a set */
};

/* True for nodes that unpack: DequantizeLinear, opipe.DequantizeNBits. */
bool cpu_unpacks(const opipe_node *node);

/* The matrix [K,N] that `node` unpacks, as a product reads it that sums over axis k_axis of its
 * output. False when codes are no parameter, or the kernels do not know the form: then the node is
 * computed by itself. */
bool cpu_matrix_of(const opipe_graph *graph, const opipe_node *node, uint32_t k_axis,
                   cpu_matrix *out);

/* The same of a parameter of bytes by itself, without scales (cpu_codes_integer): `source` is how
 * its elements lie. False when the form has no packing. */
bool cpu_matrix_of_bytes(const cpu_codes *form, const opipe_value *value,
                         const cpu_code_source *source, cpu_matrix *out);

/* A packed copy in a parameter set. */
typedef struct cpu_matrix_copy cpu_matrix_copy;
struct cpu_matrix_copy {
  cpu_matrix_copy *next;
  cpu_matrix matrix; /* constants copied */
  opipe_buffer buffer;
};

#endif
