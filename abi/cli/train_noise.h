/* SPDX-License-Identifier: Apache-2.0 */
/* Effect of rounding on weights in training: a bound for each element.
 *
 * Adam divides by the root of the second moment: if a gradient is as small as the noise of its
 * sums, the step is that noise divided by itself, and two correct answers are up to two learning
 * rates apart. A tolerance that covered this everywhere would also cover errors. So gradients get
 * the compute type's tolerance of their parameter's largest element (or of 0.2 of the model's RMS,
 * if a gradient is zero by algebra), which is followed through the moments and the quotient,
 *   |u' - u| <= (|dm| + |u| dr) / max(r - dr, 0) + eps,   r = root of the second moment, but never
 * beyond the longest step that the moments allow. Elements with a healthy gradient get a bound near
 * zero, and so do rows without any gradient, such as tokens that do not occur.
 */
#ifndef CLI_TRAIN_NOISE_H
#define CLI_TRAIN_NOISE_H

#include "train_loop.h"

typedef struct noise_param {
  float *first, *second;         /* [n] moments */
  float *off_first, *off_second; /* [n] bounds on their errors: the second in squares */
  float *bound;                  /* [n] of the weights, absolute */
  size_t n;
} noise_param;

struct train_noise {
  noise_param *params; /* [n_params] trained ones, in the session's order */
  uint32_t n_params;
  uint64_t n_updates; /* of the optimizer so far */
  double tolerance;   /* of gradients, relative */
};

/* For a session that has not stepped, but may have been resumed. To be freed, whatever the status.
 */
int train_noise_open(const train_loop *l, train_noise *noise);
/* After a step, nothing else in flight; needs OPIPE_SESSION_KEEP_GRADIENTS. */
int train_noise_step(const train_loop *l, const opipe_train_report *report, train_noise *noise);
void train_noise_free(train_noise *noise);

#endif /* CLI_TRAIN_NOISE_H */
