/* SPDX-License-Identifier: Apache-2.0 */
/* Many seeds of scribble.h. ctest: timeout=600 label=full */
enum { FIRST_SEED = 1000, SEEDS = 1500 };
#include "tests/plugins/transport-shm/scribble.h"
