/* SPDX-License-Identifier: Apache-2.0 */
/* How launches are made: for plan*.c. Grids follow from shapes alone. */
#ifndef OPIPE_BACKEND_CUDA_KERNELS_PLAN_H_
#define OPIPE_BACKEND_CUDA_KERNELS_PLAN_H_

#include <opipe/types.h>

#include "table.h"

/* Blocks along x for n units of work of `per_block`: at least 1, at most
 * CUDA_MAX_BLOCKS (kernels go on in steps of the grid). */
enum { CUDA_MAX_BLOCKS = 8192 };
uint32_t cuda_blocks(int64_t n, int64_t per_block);

/* Kernel `id` (CUDA_ID_*) with its argument block, on grid x, y. false: the block is too large for
 * a launch to hold. */
bool cuda_make_launch(uint32_t id, const void *block, uint32_t x, uint32_t y, uint32_t shared_bytes,
                      cuda_launch *out);
/* The same on grid x, with a block of any size, which the caller keeps while the launch is used. */
bool cuda_make_far_launch(uint32_t id, const void *block, uint32_t x, cuda_launch *out);

/* Place of a type among the kernels of CUDA_FLOATS: fp32, bf16, fp16, double;
 * -1: none. */
int cuda_float_place(uint32_t dtype);
/* The same among those of CUDA_PAIRS. */
int cuda_pair_place(uint32_t dtype, uint32_t second);
/* Bytes of an element of a type that kernels know, 0: of others. */
uint32_t cuda_element_bytes(uint32_t dtype);
bool cuda_is_integer(uint32_t dtype);

/* Shape [rank] with the strides of up to CUDA_OPERANDS operands (NULL: none).
 * false: too many axes.
 */
bool cuda_make_axes(const int64_t *shape, uint32_t rank, const int64_t *const *strides,
                    uint32_t n_operands, cuda_axes *out);

/* Rows of n elements: a warp each, or a block each where they are long. `warp`
 * and `block`: the kernels. */
bool cuda_launch_rows(uint32_t warp, uint32_t block, const void *args, int64_t rows, int64_t n,
                      cuda_launch *out);

#endif
