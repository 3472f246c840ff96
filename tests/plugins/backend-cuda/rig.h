/* SPDX-License-Identifier: Apache-2.0 */
/* An opening of a GPU on the doubles with two queues, three events and a program of one Gather. */
#ifndef TESTS_PLUGINS_BACKEND_CUDA_RIG_H_
#define TESTS_PLUGINS_BACKEND_CUDA_RIG_H_

#include "cuda_test.h"

#define LONG_NS UINT64_C(30000000000)

static opipe_error err = OPIPE_ERROR_INIT;

typedef struct rig {
  ct_backend b;
  const opipe_backend *t;
  opipe_device *device;
  opipe_queue *queues[2];
  opipe_event *events[3];
  ct_gather g;
} rig;

static inline bool open_rig_with(rig *r, const char *options) {
  memset(r, 0, sizeof *r);
  if (!ct_open(&r->b))
    return false;
  r->t = r->b.base.table;
  OPI_ASSERT_OK_FATAL(bt_device(&r->b.base, options, 1, 0, &r->device, &err), &err);
  for (int i = 0; i < 2; ++i)
    OPI_ASSERT_OK_FATAL(r->t->queue_open(r->device, &r->queues[i], &err), &err);
  for (int i = 0; i < 3; ++i)
    OPI_ASSERT_OK_FATAL(r->t->event_create(r->device, &r->events[i], &err), &err);
  ct_make_gather(r->t, r->device, &r->g);
  return true;
}

static inline bool open_rig(rig *r) {
  return open_rig_with(r, NULL);
}

#define OPEN_RIG(r)    \
  if (!open_rig(&(r))) \
  OPI_SKIP("%s", CT_WHY)

static inline void close_rig(rig *r) {
  for (int i = 0; i < 2; ++i)
    r->t->queue_close(r->queues[i]);
  for (int i = 0; i < 3; ++i)
    r->t->event_destroy(r->events[i]);
  ct_free_gather(r->t, &r->g);
  r->t->device_close(r->device);
  bt_close(&r->b.base);
}

static inline void gather(rig *r, const int64_t *ids) {
  OPI_ASSERT_OK(r->t->write(r->queues[0], &r->g.ids, ids, &err), &err);
  OPI_ASSERT_OK(r->t->run(r->g.binding, r->queues[0], NULL, 0, &err), &err);
}

#endif /* TESTS_PLUGINS_BACKEND_CUDA_RIG_H_ */
