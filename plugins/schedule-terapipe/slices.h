/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the schedules over token slices: options, the lengths of slices, layout.
 *
 * A micro-batch is cut along its tokens. A slice's forward follows that of the slices before it (it
 * reads their keys and values), its backward that of the slices after it (which add to the
 * gradients of these keys and values). One stage per rank.
 */
#ifndef OPIPE_SCHEDULE_TERAPIPE_SLICES_H
#define OPIPE_SCHEDULE_TERAPIPE_SLICES_H

#include <opipe/orders.h>
#include <pthread.h>

enum { TERA_SLICES_MOST = 65535 };

typedef struct tera_lengths {
  struct tera_lengths *next;
  uint32_t n;
  uint32_t tokens[]; /* [n] */
} tera_lengths;

/* Layouts hand out lengths that live until close: every list that was asked for is kept once. */
struct opipe_instance {
  const opipe_host *host;
  pthread_mutex_t lock;
  tera_lengths *lengths; /* under lock */
};

opipe_status tera_open(const opipe_host *host, opipe_instance **out_self, opipe_error *err);
void tera_close(opipe_instance *self);
/* `uneven`: lengths= is an option too. */
opipe_status tera_lay_out(opipe_instance *self, const opipe_layout_request *request,
                          opipe_layout *io_layout, bool uneven, const char *name, opipe_error *err);

#endif /* OPIPE_SCHEDULE_TERAPIPE_SLICES_H */
