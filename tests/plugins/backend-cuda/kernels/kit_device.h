/* SPDX-License-Identifier: Apache-2.0 */
/* Behind the kit: where OPIPE_KIT_IMAGE is set, launches go to a device. A failure there ends the
 * process with "no device: ..." or the kernel's name. */
#ifndef TESTS_PLUGINS_BACKEND_CUDA_KERNELS_KIT_DEVICE_H_
#define TESTS_PLUGINS_BACKEND_CUDA_KERNELS_KIT_DEVICE_H_

#include "kit.h"

bool kit_on_device(void); /* opens it, the first time */
/* Memory that host and device reach by one address, at a multiple of 256. */
void *kit_device_alloc(size_t n_bytes);
void kit_device_free(void *data);
void kit_device_launch(const cuda_launch *launch); /* waits for it */

#endif
