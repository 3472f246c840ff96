/* SPDX-License-Identifier: Apache-2.0 */
/* The fast CPU kernels: one header to include, and what all of them share.
 *
 * Rules that hold for every function of this folder:
 *  - Bits. An output element is a fixed expression of its inputs: sums run in a stated order, math
 * functions are own polynomials, nothing is contracted by the compiler. The instruction set, the
 * number of rows in a call, the tiling and the number of threads do not change a bit (of a NaN,
 * only that it is one).
 *  - Memory. Nothing is allocated. If a kernel needs memory beyond its operands, it is a workspace,
 * whose size a function of the same shape answers beforehand: false when the size does not fit 64
 * bits. Workspaces and packed operands are aligned to CPU_ALIGN_BYTES; all other pointers need
 * their element's alignment only.
 *  - Sizes and strides are int64_t and count elements; sizes may be zero, and then nothing is read
 * or written beyond what the sizes say. Rows are contiguous (column stride 1) unless a stride says
 * otherwise. The caller has checked shapes and that sizes times strides stay within its buffers:
 * kernels cannot fail and report nothing.
 *  - Outputs overlap no input, except where a comment allows the very same pointer and stride.
 *  - Threads. `x` names the kernels and the team; a call returns when the whole team is done. One
 * call at a time a team. */
#ifndef OPIPE_BACKEND_CPU_KERNELS_KERNELS_H_
#define OPIPE_BACKEND_CPU_KERNELS_KERNELS_H_

#include "attention.h"
#include "attention_grad.h"
#include "attention_rows.h"
#include "base.h"
#include "codes.h"
#include "conv.h"
#include "conv_grad.h"
#include "conv_last.h"
#include "elements.h"
#include "matmul.h"
#include "quantize.h"
#include "rowgrad.h"
#include "rowwise.h"

#endif
