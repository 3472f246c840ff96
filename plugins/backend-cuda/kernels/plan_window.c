/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of convolutions, pools and norms by channel. */
#include "plan.h"

static int64_t product(const int64_t *extents) {
  return extents[0] * extents[1] * extents[2];
}

static bool launch(uint32_t first, uint32_t dtype, const void *args, int64_t n, int64_t per_block,
                   cuda_launch *out) {
  const int place = cuda_float_place(dtype);
  return place >= 0 &&
         cuda_make_launch(first + (uint32_t)place, args, cuda_blocks(n, per_block), 1, 0, out);
}

bool cuda_plan_conv(const cuda_window_args *args, uint32_t dtype, cuda_launch *out) {
  return launch(CUDA_ID_opipe_conv_f32, dtype, args,
                args->batch * args->outputs * product(args->out), 256, out);
}

bool cuda_plan_conv_grad_x(const cuda_window_args *args, uint32_t dtype, cuda_launch *out) {
  return launch(CUDA_ID_opipe_conv_grad_x_f32, dtype, args,
                args->batch * args->channels * product(args->in), 256, out);
}

/* A warp an element of dw. */
bool cuda_plan_conv_grad_w(const cuda_window_args *args, uint32_t dtype, cuda_launch *out) {
  return args->groups > 0 &&
         launch(CUDA_ID_opipe_conv_grad_w_f32, dtype, args,
                args->outputs * (args->channels / args->groups) * product(args->kernel), 8, out);
}

bool cuda_plan_pool(const cuda_window_args *args, uint32_t dtype, cuda_launch *out) {
  return launch(CUDA_ID_opipe_pool_f32, dtype, args,
                args->batch * args->channels * product(args->out), 256, out);
}

bool cuda_plan_pool_grad(const cuda_window_args *args, uint32_t dtype, cuda_launch *out) {
  return launch(CUDA_ID_opipe_pool_grad_f32, dtype, args,
                args->batch * args->channels * product(args->in), 256, out);
}

bool cuda_plan_batch_norm(const cuda_batch_norm_args *args, uint32_t dtype, cuda_launch *out) {
  return launch(CUDA_ID_opipe_batch_norm_f32, dtype, args, args->n, 256, out);
}
