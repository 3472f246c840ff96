/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that are kept from the ranks until their fences are set; private to runtime/. */
#ifndef OPI_RUNTIME_HELD_H
#define OPI_RUNTIME_HELD_H

#include "runtime/state.h"

opipe_status opi_held_open(opi_session *session, opipe_error *err);
/* Gives the ranks the requests whose input fences are set by now, and ends those of them that have
 * failed; unless somebody else is at it (`waits`: until he is done). */
void opi_session_look(opi_session *session, bool waits);
/* The same, unless somebody has looked just now. */
void opi_session_admit(opi_session *session);
/* When to look again at flags that have been waited for since then; at those of requests that are
 * held (UINT64_MAX: none is). */
uint64_t opi_flag_looks_ns(uint64_t since_ns);
uint64_t opi_held_looks_ns(const opi_session *session);
/* Around what submits: takes submit_lock (the reference: run_lock before), and gives it. `request`:
 * NULL, none was begun. */
void opi_submit_begin(opi_session *session);
void opi_submit_end(opi_session *session, opi_request *request);
/* The ranks get it, or it is kept from them. Under submit_lock, as all that follows. */
void opi_request_start(opi_request *request, bool goes);
/* The last one that is held of its stream; NULL: none. */
opi_request *opi_held_last(const opi_request *like);
/* How many are held of those with this number and later ones. */
uint32_t opi_held_from(const opi_session *session, uint64_t number);
/* submit.c: the ranks get it; the reference runs it. */
void opi_request_publish(opi_request *request);

#endif /* OPI_RUNTIME_HELD_H */
