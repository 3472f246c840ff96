/* SPDX-License-Identifier: Apache-2.0 */
/* All kernels as one module: what nvcc compiles into the image that the plugin carries. */
#include "parts/attention.cu"
#include "parts/flat.cu"
#include "parts/map.cu"
#include "parts/move.cu"
#include "parts/norm.cu"
#include "parts/reduce.cu"
#include "parts/softmax.cu"
