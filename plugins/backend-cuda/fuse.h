/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files that look for nodes whose work another node's kernel can do along. */
#ifndef OPIPE_BACKEND_CUDA_FUSE_H_
#define OPIPE_BACKEND_CUDA_FUSE_H_

#include "ops/rule.h"

/* fuse_rows.c: values of one type and shape, and both there. */
bool cuda_alike(const opipe_program *program, uint32_t a, uint32_t b);
/* Does the node make its own steps, where it stands? */
bool cuda_is_free(const opipe_program *program, uint32_t i);
/* An operator of two values of one shape, element by element. */
bool cuda_is_pair(const opipe_program *program, uint32_t i, const char *op);

/* fuse_moves.c: [n_nodes] of OPIPE_NONE; NULL: no memory. */
uint32_t *cuda_no_nodes(opipe_program *program);
/* The node that the list notes for a node; NULL: none. */
const opipe_node *cuda_along(const opipe_program *program, const uint32_t *list,
                             const opipe_node *node);
/* [n_values]: the value whose elements each has, by views; itself: its own. NULL: no memory. */
uint32_t *cuda_find_sources(opipe_program *program);
/* Does the node make one value, straight into an accumulator, where it stands? */
bool cuda_adds(const opipe_program *program, uint32_t i);
/* May node `from` be done where node `to` stands? Not past one that reads what it makes, nor past
 * another addition to an accumulator of its. */
bool cuda_can_move(const opipe_program *program, uint32_t from, uint32_t to);

#endif /* OPIPE_BACKEND_CUDA_FUSE_H_ */
