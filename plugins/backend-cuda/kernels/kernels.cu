/* SPDX-License-Identifier: Apache-2.0 */
/* All kernels as one module: what nvcc compiles into the image that the plugin
 * carries. */
#include "parts/attention.cu"
#include "parts/einsum.cu"
#include "parts/few_rows.cu"
#include "parts/flash.cu"
#include "parts/flash_grad.cu"
#include "parts/flat.cu"
#include "parts/loss.cu"
#include "parts/map.cu"
#include "parts/move.cu"
#include "parts/norm.cu"
#include "parts/recurrent.cu"
#include "parts/reduce.cu"
#include "parts/scatter.cu"
#include "parts/softmax.cu"
#include "parts/update.cu"
#include "parts/window.cu"
