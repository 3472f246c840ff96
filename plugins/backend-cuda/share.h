/* SPDX-License-Identifier: Apache-2.0 */
/* Queues that were given up, between share.c and those who open and close. */
#ifndef OPIPE_BACKEND_CUDA_SHARE_H_
#define OPIPE_BACKEND_CUDA_SHARE_H_

#include "cuda.h"

/* The way in of records and waits, which somebody else's stream takes too. */
opipe_status cuda_enter_stream(const opipe_queue *queue, const char *what, opipe_error *err);
/* Notes that the queue's work may never end. */
void cuda_give_up(const opipe_queue *queue);
/* Takes over a queue that was given up, in place of closing it: false where its work has ended, and
 * that of all others of the GPU. Within an entry. */
bool cuda_abandon(opipe_queue *queue);

#endif /* OPIPE_BACKEND_CUDA_SHARE_H_ */
