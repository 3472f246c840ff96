/* SPDX-License-Identifier: Apache-2.0 */
/* Work that streams of the double are given, and graphs of it. */
#ifndef OPIPE_TEST_CUDA_WORK_H_
#define OPIPE_TEST_CUDA_WORK_H_

#include "double.h"

enum {
  WORK_NONE,
  WORK_KERNEL,
  WORK_CALL,
  WORK_COPY,
  WORK_FILL,
  WORK_MEET, /* with other processes */
  WORK_HOST,
  WORK_RECORD,
  WORK_WAIT
};

typedef struct work {
  struct work *next;
  uint32_t kind;
  CUfunction function; /* KERNEL */
  uint32_t grid[3], block[3], shared_bytes;
  bool behind;                    /* it may begin while what is in front ends */
  void (*call)(const void *args); /* CALL */
  bool (*meet)(const void *args); /* MEET */
  bool over;                      /* it has answered true */
  double ns;                      /* its time by the stream's clock */
  double from_ns;                 /* the device's time that the host knew when it was queued */
  void *to;                       /* COPY, FILL */
  const void *from;
  int value;
  CUhostFn fn; /* HOST */
  void *data;
  CUevent event; /* RECORD, WAIT */
  uint64_t number;
  size_t n_bytes; /* of args; of a copy */
  uint64_t args[];
} work;

struct CUgraph_st { /* also a CUgraphExec */
  work *first, **last;
  bool broken;    /* by something that cannot be captured */
  uint32_t given; /* the kind of what it was given last */
};

struct CUstream_st {
  CUstream next;
  int device;
  bool held, expects; /* cuda_double_hold, cuda_double_expect */
  CUgraph captured;   /* that it is given to, for now; NULL: none */
  double ns;          /* its clock: when what it has done so far was done */
  work *first, **last;
  uint32_t given; /* the kind of what it was given last */
};

struct CUevent_st {
  struct CUevent_st *next, **at; /* of all */
  cuda_double_state *state;      /* `own`, or what other processes see, too */
  cuda_double_state own;
  struct cuda_double_told *told; /* NULL: no other process sees it */
  int fd;                        /* of an event for other processes; -1 */
  bool opened;                   /* another process's */
  bool timed;
  uint32_t n_queued; /* entries that name it */
  bool destroyed;
};

/* Appends a copy of head, with args [n_bytes]. */
CUresult cuda_double_append(work ***last, const work *head, const void *args, size_t n_bytes);
void cuda_double_count_graphs(cuda_double_facts *io_facts); /* graphs.c */

#endif /* OPIPE_TEST_CUDA_WORK_H_ */
