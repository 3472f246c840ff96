/* SPDX-License-Identifier: Apache-2.0 */
/* In place of the fat binary, for the plugin that the tests run on the doubles: they look kernels
 * up among those that the host's compiler made. */
#include "plugins/backend-cuda/image.h"

const unsigned char cuda_kernels_image[] = "shim";
