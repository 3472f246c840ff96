/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels as nvcc compiled them: a fat binary, linked in as bytes (plugin.cmake). */
#ifndef OPIPE_BACKEND_CUDA_IMAGE_H_
#define OPIPE_BACKEND_CUDA_IMAGE_H_

extern const unsigned char cuda_kernels_image[];

#endif
