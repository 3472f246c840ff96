/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of recurrent layers. */
#include "plan.h"

bool cuda_plan_recurrent(const cuda_recurrent_args *args, uint32_t dtype, cuda_launch *out) {
  const int place = cuda_float_place(dtype);
  return place >= 0 && args->part < CUDA_RECURRENT_PARTS &&
         cuda_make_launch(CUDA_ID_opipe_recurrent_f32 + (uint32_t)place, args,
                          cuda_blocks(args->batch * args->hidden, 256), 1, 0, out);
}
