/* SPDX-License-Identifier: Apache-2.0 */
/* Some seeds of scribble.h. */
enum { FIRST_SEED = 1, SEEDS = 30 };
#include "tests/plugins/transport-shm/scribble.h"
