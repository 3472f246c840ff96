/* SPDX-License-Identifier: Apache-2.0 */
/* What the losses by rows and by lines share. */
#ifndef OPIPE_BACKEND_CUDA_KERNELS_LOSS_CUH_
#define OPIPE_BACKEND_CUDA_KERNELS_LOSS_CUH_

#include "map_math.cuh"

/* The label of line i; one that does not count is 0, a bad one is reported. */
CUDA_FN int64_t label_of(const void *labels, uint32_t bytes, int64_t i, int64_t classes,
                         uint32_t ignores, int64_t ignored, cuda_status *status, uint32_t node,
                         bool *out_counts) {
  const int64_t label = index_at(labels, bytes, i);
  const bool good = label >= 0 && label < classes;
  *out_counts = good && !(ignores && label == ignored);
  if (!good && !(ignores && label == ignored))
    report(status, CUDA_STATUS_LABEL, node, label, classes);
  return *out_counts ? label : 0;
}

/* Loss of line i and the weight of its label go to the workspace, [rows * inner][2] of fp64, the
 * loss also to where reduction `none` wants it. at_label: the score of the label; shift: the
 * logarithm of the sum of exponentials, 0 of log-probabilities. */
template <class T, class R>
CUDA_FN void write_loss(const cuda_loss_args &a, int64_t i, bool counts, int64_t label, R at_label,
                        R shift) {
  const T *weights = static_cast<const T *>(a.weights);
  const R weight = !counts ? (R)0 : weights != nullptr ? (R)get(weights, label) : (R)1;
  const R loss = counts ? weight * (shift - at_label) : (R)0;
  double *to = static_cast<double *>(a.workspace) + 2 * i;
  to[0] = loss;
  to[1] = weight;
  if (a.reduction == 0)
    put(static_cast<T *>(a.loss), i, loss);
}

#endif
