/* SPDX-License-Identifier: Apache-2.0 */
/* Queues that were given up, between share.c and those who open and close. */
#ifndef OPIPE_BACKEND_CUDA_SHARE_H_
#define OPIPE_BACKEND_CUDA_SHARE_H_

#include "cuda.h"

/* The way in of records and waits, which somebody else's stream takes too. */
opipe_status cuda_enter_stream(const opipe_queue *queue, const char *what, opipe_error *err);
/* Takes over a queue that was given up, in place of closing it: false where it cannot. Within an
 * entry. */
bool cuda_abandon(opipe_queue *queue);
/* At the end of the opening: false where work of one is still under way, and the pinned words of
 * the opening must stay. Within an entry. */
bool cuda_abandoned_free(opipe_device *device);

#endif /* OPIPE_BACKEND_CUDA_SHARE_H_ */
