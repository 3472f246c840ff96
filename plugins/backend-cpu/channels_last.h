/* SPDX-License-Identifier: Apache-2.0 */
/* The layout pass: convolutional parts of a graph with the channels of their tensors last. */
#ifndef OPIPE_BACKEND_CPU_CHANNELS_LAST_H_
#define OPIPE_BACKEND_CPU_CHANNELS_LAST_H_

#include "program.h"

/* Replaces program->graph by one in which temporaries between convolutions, and what may stand
 * among them, are [N, spatial..., C]; Transposes stand where the two forms meet. Which they are
 * follows from operators, ranks and types alone, never from the number of rows. Boundaries,
 * parameters and names stay. Nothing where there is no such part. OPIPE_E_NOMEM. */
opipe_status cpu_channels_last(opipe_program *program, opipe_error *err);

#endif
