/* SPDX-License-Identifier: Apache-2.0 */
/* Streams and events of the double: what a stream is given waits until somebody asks how far it
 * is, and is then done in an order drawn from all that are legal.
 *
 * Whoever asks does some of the work of any stream, under the lock: nothing moves while nobody
 * looks, so what a host does too early (free, reuse, read) meets work that is not done.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "double.h"

enum { KERNEL_US = 5, COPY_NS = 2000, MEET_NS = 10000, BEGIN_ONE_IN = 8 };
enum { WORK_NONE, WORK_KERNEL, WORK_CALL, WORK_COPY, WORK_FILL, WORK_MEET };
enum { WORK_HOST = WORK_MEET + 1, WORK_RECORD, WORK_WAIT };

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
  bool held, expects; /* cuda_double_hold, cuda_double_expect */
  CUgraph captured;   /* that it is given to, for now; NULL: none */
  double ns;          /* its clock: when what it has done so far was done */
  work *first, **last;
  uint32_t given; /* the kind of what it was given last */
};

struct CUevent_st {
  double ns; /* of the stream's clock when it was recorded last */
  bool timed;
  uint64_t n_recorded, n_done;
  uint32_t n_queued; /* entries that name it */
  bool destroyed;
};

static struct CUstream_st default_stream = {.last = &default_stream.first};
static CUstream streams = &default_stream;
static uint64_t random_state, n_waits, n_launches, n_graph_launches, n_graphs, n_meets;
static uint64_t n_writes, n_reads, n_copies, n_pageable, n_behind, n_begun;
/* Work that is queued from now on begins later than all that the host has been told is done. */
static double seen_ns;

static uint64_t draw(uint64_t n) {
  if (random_state == 0) {
    random_state =
        cuda_double_option("OPIPE_CUDA_DOUBLE_SEED", 1) * UINT64_C(0x9e3779b97f4a7c15) + 1;
  }
  random_state ^= random_state << 13; /* xorshift64, Marsaglia 2003 */
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state % n;
}

void cuda_double_count(cuda_double_facts *io_facts) {
  io_facts->waits = n_waits;
  io_facts->pageable = n_pageable;
  io_facts->writes = n_writes;
  io_facts->reads = n_reads;
  io_facts->copies = n_copies;
  io_facts->launches = n_launches;
  io_facts->behind = n_behind;
  io_facts->begun = n_begun;
  io_facts->graph_launches = n_graph_launches;
  io_facts->live_graphs = n_graphs;
  for (CUstream s = streams; s != NULL; s = s->next) {
    for (const work *w = s->first; w != NULL; w = w->next)
      ++io_facts->queued;
  }
}

/* ---- doing ---- */

static bool is_ready(CUstream stream) {
  const work *w = stream->first;
  if (w == NULL || stream->held)
    return false;
  return w->kind == WORK_MEET ? w->over : w->kind != WORK_WAIT || w->event->n_done >= w->number;
}

static void let_go(CUevent event) {
  if (--event->n_queued == 0 && event->destroyed)
    free(event);
}

static void run_kernel(const work *w) {
  static uint64_t n_run;
  const uint64_t fault = cuda_double_option("OPIPE_CUDA_DOUBLE_FAULT", 0);
  const uint64_t result =
      cuda_double_option("OPIPE_CUDA_DOUBLE_FAULT_RESULT", CUDA_ILLEGAL_ADDRESS);
  if (fault != 0 && ++n_run == fault)
    __atomic_store_n(&cuda_double_fault, (CUresult)result, __ATOMIC_RELEASE);
  if (cuda_double_fault == CUDA_OK)
    w->function->row->run(w->args, w->grid, w->block, w->shared_bytes, draw(UINT64_MAX - 1) + 1);
}

static void see(double ns) {
  if (seen_ns < ns)
    seen_ns = ns;
}

/* Streams have clocks of their own: work takes the time that it says, behind all that was done
 * before on its stream, what its stream waited for, and what the host knew when it queued it. */
static void pass_time(CUstream stream, const work *w) {
  const double since = w->kind == WORK_WAIT ? w->event->ns : w->from_ns;
  if (stream->ns < since)
    stream->ns = since;
  stream->ns += w->ns;
}

static void do_work(CUstream stream, const work *w) {
  if (cuda_double_fault != CUDA_OK && w->kind < WORK_RECORD)
    return; /* nothing runs behind a fault */
  pass_time(stream, w);
  switch (w->kind) {
    case WORK_KERNEL:
      run_kernel(w);
      break;
    case WORK_CALL:
      w->call(w->args);
      break;
    case WORK_COPY:
      memcpy(w->to, w->from, w->n_bytes);
      break;
    case WORK_FILL:
      memset(w->to, w->value, w->n_bytes);
      break;
    case WORK_HOST:
      see(stream->ns);
      cuda_double_in_host_function = true;
      w->fn(w->data);
      cuda_double_in_host_function = false;
      break;
    case WORK_RECORD:
      if (w->number > w->event->n_done) {
        w->event->n_done = w->number;
        w->event->ns = stream->ns;
      }
      let_go(w->event);
      break;
    case WORK_WAIT:
      let_go(w->event);
  }
}

/* A launch that may begin while what is in front ends does so before it, at times. */
static void begin_next(const work *next) {
  if (next == NULL || !next->behind || cuda_double_fault != CUDA_OK || draw(BEGIN_ONE_IN) != 0)
    return;
  cuda_shim_begin(next->function->row, next->args, next->grid, next->block, next->shared_bytes,
                  draw(UINT64_MAX - 1) + 1);
  ++n_begun;
}

static void pop(CUstream stream) {
  work *w = stream->first;
  begin_next(w->next);
  do_work(stream, w);
  n_meets -= w->kind == WORK_MEET;
  stream->first = w->next;
  if (stream->first == NULL)
    stream->last = &stream->first;
  free(w);
}

static void ask_peers(CUstream stream) {
  work *w = stream->first;
  if (w != NULL && w->kind == WORK_MEET && !w->over && !stream->held)
    w->over = w->meet(w->args);
}

/* One entry of a stream that can go on; false: none can. */
static bool step(void) {
  uint64_t n = 0;
  for (CUstream s = streams; s != NULL; s = s->next)
    ask_peers(s);
  for (CUstream s = streams; s != NULL; s = s->next)
    n += is_ready(s);
  if (n == 0)
    return false;
  uint64_t chosen = draw(n);
  for (CUstream s = streams; s != NULL; s = s->next) {
    if (is_ready(s) && chosen-- == 0) {
      pop(s);
      break;
    }
  }
  return true;
}

/* The lock is given up while peers are waited for. */
static void finish(CUstream stream) {
  const struct timespec pause = {0, 50000};
  while (stream->first != NULL) {
    if (step())
      continue;
    if (n_meets == 0)
      cuda_double_die("streams wait for each other");
    (void)pthread_mutex_unlock(&cuda_double_lock);
    (void)nanosleep(&pause, NULL);
    (void)pthread_mutex_lock(&cuda_double_lock);
  }
  see(stream->ns);
}

/* ---- queueing ---- */

static CUresult append(work ***last, const work *head, const void *args, size_t n_bytes) {
  work *w = calloc(1, sizeof *w + n_bytes);
  if (w == NULL)
    return CUDA_OUT_OF_MEMORY;
  *w = *head;
  w->next = NULL;
  w->from_ns = seen_ns;
  if (n_bytes > 0)
    memcpy(w->args, args, n_bytes);
  **last = w;
  *last = &w->next;
  return CUDA_OK;
}

/* The default stream is the host's: it takes records and waits. */
static CUresult push(CUstream stream, const work *head, const void *args, size_t n_bytes) {
  if (stream == NULL)
    stream = &default_stream;
  if (head->kind != WORK_MEET && __atomic_load_n(&stream->expects, __ATOMIC_ACQUIRE))
    cuda_double_die("a stream is used before the launch that it expects stands in it");
  uint32_t *given = stream->captured == NULL ? &stream->given : &stream->captured->given;
  if (head->behind && *given != WORK_KERNEL)
    cuda_double_die("a launch does not wait for what is in front of it, which is no kernel");
  *given = head->kind;
  n_behind += head->behind;
  if (stream->captured == NULL)
    return append(&stream->last, head, args, n_bytes);
  if (head->kind > WORK_FILL || cuda_double_option("OPIPE_CUDA_DOUBLE_CAPTURE", 1) == 0) {
    stream->captured->broken = true;
    return CUDA_STREAM_CAPTURE_UNSUPPORTED;
  }
  return append(&stream->captured->last, head, args, n_bytes);
}

static bool overlaps(uintptr_t a, size_t n, uintptr_t b, size_t m) {
  return a < b + m && b < a + n;
}

static bool work_uses(const work *w, uintptr_t first, size_t n_bytes) {
  if (w->kind == WORK_COPY || w->kind == WORK_FILL) {
    return overlaps((uintptr_t)w->to, w->n_bytes, first, n_bytes) ||
           (w->kind == WORK_COPY && overlaps((uintptr_t)w->from, w->n_bytes, first, n_bytes));
  }
  const bool has_args = w->kind <= WORK_CALL || w->kind == WORK_MEET;
  for (size_t i = 0; has_args && i < w->n_bytes / sizeof w->args[0]; ++i) {
    if (w->args[i] >= first && w->args[i] < first + n_bytes)
      return true;
  }
  return false;
}

bool cuda_double_uses(uintptr_t first, size_t n_bytes) {
  for (CUstream s = streams; s != NULL; s = s->next) {
    for (const work *w = s->first; w != NULL; w = w->next) {
      if (work_uses(w, first, n_bytes))
        return true;
    }
  }
  return false;
}

bool cuda_double_is_stopped(void) {
  for (CUstream s = streams; s != NULL; s = s->next) {
    if (s->held && s->first != NULL)
      return true;
  }
  return false;
}

static CUresult queue(CUstream stream, const work *head, const void *args, size_t n_bytes) {
  CUresult result = cuda_double_enter();
  if (result != CUDA_OK)
    return result;
  if (stream == NULL)
    return CUDA_INVALID_HANDLE; /* the plugin never uses the legacy stream */
  (void)pthread_mutex_lock(&cuda_double_lock);
  result = push(stream, head, args, n_bytes);
  (void)pthread_mutex_unlock(&cuda_double_lock);
  return result;
}

CUresult cuda_double_queue(CUstream stream, void (*fn)(const void *args), const void *args,
                           size_t n_bytes, double ns) {
  const work head = {.kind = WORK_CALL, .call = fn, .n_bytes = n_bytes, .ns = ns};
  return queue(stream, &head, args, n_bytes);
}

void cuda_double_meet(CUstream stream, bool (*fn)(const void *args), const void *args,
                      size_t n_bytes) {
  const work head = {.kind = WORK_MEET, .meet = fn, .n_bytes = n_bytes, .ns = MEET_NS};
  (void)pthread_mutex_lock(&cuda_double_lock);
  if (push(stream, &head, args, n_bytes) != CUDA_OK)
    cuda_double_die("a launch of a communicator cannot be queued");
  ++n_meets;
  cuda_double_expect(stream, false);
  (void)pthread_mutex_unlock(&cuda_double_lock);
}

void cuda_double_expect(CUstream stream, bool expects) {
  __atomic_store_n(&stream->expects, expects, __ATOMIC_RELEASE);
}

bool cuda_double_step(void) {
  (void)pthread_mutex_lock(&cuda_double_lock);
  const bool done = step();
  (void)pthread_mutex_unlock(&cuda_double_lock);
  return done;
}

/* The driver takes such memory through its own, and returns when it has. */
static void finish_pageable(const void *host, size_t bytes, CUstream stream) {
  (void)pthread_mutex_lock(&cuda_double_lock);
  if (stream->captured == NULL && !cuda_double_is_pinned((uintptr_t)host, bytes)) {
    ++n_pageable;
    finish(stream);
  }
  (void)pthread_mutex_unlock(&cuda_double_lock);
}

static CUresult move(void *to, const void *from, size_t bytes, bool to_device, bool from_device,
                     CUstream stream) {
  const work head = {.kind = WORK_COPY, .to = to, .from = from, .n_bytes = bytes, .ns = COPY_NS};
  (void)pthread_mutex_lock(&cuda_double_lock);
  const bool inside =
      (!to_device || cuda_double_is_device((uintptr_t)to, bytes)) &&
      (!from_device || cuda_double_is_device((uintptr_t)from, bytes)) &&
      !(to_device && from_device && overlaps((uintptr_t)to, bytes, (uintptr_t)from, bytes));
  if (inside)
    ++*(to_device && from_device ? &n_copies : to_device ? &n_writes : &n_reads);
  (void)pthread_mutex_unlock(&cuda_double_lock);
  const CUresult result = inside ? queue(stream, &head, NULL, 0) : CUDA_INVALID_VALUE;
  if (result == CUDA_OK && !(to_device && from_device))
    finish_pageable(to_device ? from : to, bytes, stream);
  return result;
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream) {
  return move((void *)(uintptr_t)dst, src, bytes, true, false, stream);
}

CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t bytes, CUstream stream) {
  return move(dst, (const void *)(uintptr_t)src, bytes, false, true, stream);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) {
  return move((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, bytes, true, true, stream);
}

CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t bytes, CUstream stream) {
  const work head = {.kind = WORK_FILL,
                     .to = (void *)(uintptr_t)dst,
                     .value = value,
                     .n_bytes = bytes,
                     .ns = COPY_NS};
  (void)pthread_mutex_lock(&cuda_double_lock);
  const bool inside = cuda_double_is_device((uintptr_t)dst, bytes);
  (void)pthread_mutex_unlock(&cuda_double_lock);
  return inside ? queue(stream, &head, NULL, 0) : CUDA_INVALID_VALUE;
}

static CUresult launch(CUfunction function, const cuda_launch_config *config, bool behind,
                       void **params, void **extra) {
  const unsigned *grid = config->grid, *block = config->block;
  const work head = {
      .kind = WORK_KERNEL,
      .function = function,
      .grid = {grid[0], grid[1], grid[2]},
      .block = {block[0], block[1], block[2]},
      .shared_bytes = config->shared_bytes,
      .behind = behind,
      .ns = 1e3 * (double)cuda_double_option("OPIPE_CUDA_DOUBLE_KERNEL_US", KERNEL_US),
      .n_bytes = function->row->args_bytes};
  const uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
  if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || grid[1] > 65535 || grid[2] > 65535 ||
      grid[0] > INT32_MAX || threads == 0 || threads > 1024 || block[2] > 64 || extra != NULL ||
      config->shared_bytes > cuda_double_most_dynamic(function) || params == NULL)
    return CUDA_INVALID_VALUE;
  if (!cuda_double_captures)
    __atomic_add_fetch(&n_launches, 1, __ATOMIC_RELAXED);
  return queue(config->stream, &head, params[0], head.n_bytes);
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        CUstream stream, void **params, void **extra) {
  const cuda_launch_config config = {.grid = {grid_x, grid_y, grid_z},
                                     .block = {block_x, block_y, block_z},
                                     .shared_bytes = shared_bytes,
                                     .stream = stream};
  return launch(function, &config, false, params, extra);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params,
                          void **extra) {
  bool behind = false;
  for (unsigned i = 0; i < config->n_attributes; ++i) {
    if (config->attributes[i].id != CUDA_LAUNCH_PROGRAMMATIC)
      return CUDA_INVALID_VALUE;
    behind = config->attributes[i].value.flag != 0;
  }
  if (behind && cuda_double_ptx() < 90)
    cuda_double_die("a launch may begin early, and its kernel does not wait");
  return behind && cuda_double_chip() < 9 ? CUDA_NOT_SUPPORTED
                                          : launch(function, config, behind, params, extra);
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn fn, void *data) {
  const work head = {.kind = WORK_HOST, .fn = fn, .data = data};
  return fn == NULL ? CUDA_INVALID_VALUE : queue(stream, &head, NULL, 0);
}

/* ---- streams ---- */

CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
  const CUresult result = cuda_double_enter();
  if (result != CUDA_OK)
    return result;
  CUstream made = calloc(1, sizeof *made);
  if (made == NULL || flags != CUDA_STREAM_NON_BLOCKING) {
    free(made);
    return made == NULL ? CUDA_OUT_OF_MEMORY : CUDA_INVALID_VALUE;
  }
  (void)pthread_mutex_lock(&cuda_double_lock);
  made->last = &made->first;
  made->next = streams;
  streams = made;
  (void)pthread_mutex_unlock(&cuda_double_lock);
  *stream = made;
  return CUDA_OK;
}

void cuda_double_hold(CUstream stream, bool hold) {
  (void)pthread_mutex_lock(&cuda_double_lock);
  stream->held = hold;
  (void)pthread_mutex_unlock(&cuda_double_lock);
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  const CUresult result = cuda_double_enter();
  if (result != CUDA_OK)
    return result;
  (void)pthread_mutex_lock(&cuda_double_lock);
  finish(stream);
  for (CUstream *link = &streams; *link != NULL; link = &(*link)->next) {
    if (*link == stream) {
      *link = stream->next;
      break;
    }
  }
  (void)pthread_mutex_unlock(&cuda_double_lock);
  free(stream);
  return CUDA_OK;
}

CUresult cuStreamSynchronize(CUstream stream) {
  const CUresult result = cuda_double_enter_apart();
  if (result != CUDA_OK)
    return result;
  (void)pthread_mutex_lock(&cuda_double_lock);
  ++n_waits;
  finish(stream);
  (void)pthread_mutex_unlock(&cuda_double_lock);
  return cuda_double_fault;
}

CUresult cuStreamQuery(CUstream stream) {
  enum { AT_ONCE = 4 };
  const CUresult result = cuda_double_enter_apart();
  if (result != CUDA_OK)
    return result;
  (void)pthread_mutex_lock(&cuda_double_lock);
  for (uint64_t n = draw(AT_ONCE) + 1; n > 0 && stream->first != NULL; --n)
    (void)step();
  const bool done = stream->first == NULL;
  (void)pthread_mutex_unlock(&cuda_double_lock);
  return cuda_double_fault != CUDA_OK ? cuda_double_fault : done ? CUDA_OK : CUDA_NOT_READY;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  CUresult result = cuda_double_enter();
  if (result != CUDA_OK || flags != 0)
    return result != CUDA_OK ? result : CUDA_INVALID_VALUE;
  (void)pthread_mutex_lock(&cuda_double_lock);
  const work head = {.kind = WORK_WAIT, .event = event, .number = event->n_recorded};
  result = push(stream, &head, NULL, 0);
  event->n_queued += result == CUDA_OK;
  (void)pthread_mutex_unlock(&cuda_double_lock);
  return result;
}

/* ---- graphs ---- */

static void free_graph(CUgraph graph) {
  while (graph->first != NULL) {
    work *w = graph->first;
    graph->first = w->next;
    free(w);
  }
  free(graph);
  --n_graphs;
}

static CUgraph new_graph(void) {
  CUgraph graph = calloc(1, sizeof *graph);
  if (graph != NULL) {
    graph->last = &graph->first;
    ++n_graphs;
  }
  return graph;
}

/* to += from */
static CUresult append_all(work ***to, const struct CUgraph_st *from) {
  CUresult result = CUDA_OK;
  for (const work *w = from->first; w != NULL && result == CUDA_OK; w = w->next)
    result = append(to, w, w->args, w->kind <= WORK_CALL ? w->n_bytes : 0);
  return result;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  CUresult result = cuda_double_enter_apart();
  if (result != CUDA_OK)
    return result;
  (void)pthread_mutex_lock(&cuda_double_lock);
  if (stream->captured != NULL || (int)mode != CUDA_CAPTURE_THREAD_LOCAL)
    result = CUDA_INVALID_VALUE;
  else if ((stream->captured = new_graph()) == NULL)
    result = CUDA_OUT_OF_MEMORY;
  (void)pthread_mutex_unlock(&cuda_double_lock);
  cuda_double_captures = result == CUDA_OK;
  return result;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
  CUresult result = cuda_double_enter();
  if (result != CUDA_OK)
    return result;
  (void)pthread_mutex_lock(&cuda_double_lock);
  *graph = stream->captured;
  stream->captured = NULL;
  if (*graph == NULL) {
    result = CUDA_INVALID_VALUE;
  } else if ((*graph)->broken) {
    free_graph(*graph);
    *graph = NULL;
    result = CUDA_STREAM_CAPTURE_INVALIDATED;
  }
  (void)pthread_mutex_unlock(&cuda_double_lock);
  cuda_double_captures = false;
  return result;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *made, CUgraph graph, unsigned long long flags) {
  CUresult result = cuda_double_enter_apart();
  if (result != CUDA_OK || flags != 0)
    return result != CUDA_OK ? result : CUDA_INVALID_VALUE;
  (void)pthread_mutex_lock(&cuda_double_lock);
  CUgraph copy = new_graph();
  result = copy == NULL ? CUDA_OUT_OF_MEMORY : append_all(&copy->last, graph);
  (void)pthread_mutex_unlock(&cuda_double_lock);
  *made = (CUgraphExec)(void *)copy;
  return result;
}

static CUresult drop(CUgraph graph) {
  const CUresult result = cuda_double_enter();
  if (result != CUDA_OK)
    return result;
  (void)pthread_mutex_lock(&cuda_double_lock);
  free_graph(graph);
  (void)pthread_mutex_unlock(&cuda_double_lock);
  return CUDA_OK;
}

CUresult cuGraphDestroy(CUgraph graph) {
  return drop(graph);
}

CUresult cuGraphExecDestroy(CUgraphExec made) {
  return drop((CUgraph)(void *)made);
}

CUresult cuGraphLaunch(CUgraphExec made, CUstream stream) {
  CUresult result = cuda_double_enter_apart();
  if (result != CUDA_OK)
    return result;
  (void)pthread_mutex_lock(&cuda_double_lock);
  result = append_all(&stream->last, (CUgraph)(void *)made);
  stream->given = WORK_NONE;
  ++n_graph_launches;
  (void)pthread_mutex_unlock(&cuda_double_lock);
  return result;
}

/* ---- events ---- */

CUresult cuEventCreate(CUevent *event, unsigned flags) {
  const CUresult result = cuda_double_enter();
  if (result != CUDA_OK)
    return result;
  if ((flags & ~(unsigned)CUDA_EVENT_DISABLE_TIMING) != 0)
    return CUDA_INVALID_VALUE;
  *event = calloc(1, sizeof **event);
  if (*event == NULL)
    return CUDA_OUT_OF_MEMORY;
  (*event)->timed = flags == 0;
  return CUDA_OK;
}

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent from, CUevent to) {
  const CUresult result = cuda_double_enter();
  if (result != CUDA_OK)
    return result;
  (void)pthread_mutex_lock(&cuda_double_lock);
  const bool are_timed = from->timed && to->timed && from->n_recorded > 0 && to->n_recorded > 0;
  const bool are_done = from->n_done >= from->n_recorded && to->n_done >= to->n_recorded;
  *milliseconds = (float)((to->ns - from->ns) * 1e-6);
  (void)pthread_mutex_unlock(&cuda_double_lock);
  return !are_timed ? CUDA_INVALID_HANDLE : are_done ? CUDA_OK : CUDA_NOT_READY;
}

CUresult cuEventDestroy_v2(CUevent event) {
  const CUresult result = cuda_double_enter();
  if (result != CUDA_OK)
    return result;
  (void)pthread_mutex_lock(&cuda_double_lock);
  event->destroyed = true;
  const bool is_free = event->n_queued == 0;
  (void)pthread_mutex_unlock(&cuda_double_lock);
  if (is_free)
    free(event);
  return CUDA_OK;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  CUresult result = cuda_double_enter();
  if (result != CUDA_OK)
    return result;
  (void)pthread_mutex_lock(&cuda_double_lock);
  const work head = {.kind = WORK_RECORD, .event = event, .number = event->n_recorded + 1};
  result = push(stream, &head, NULL, 0);
  if (result == CUDA_OK) {
    ++event->n_recorded;
    ++event->n_queued;
  }
  (void)pthread_mutex_unlock(&cuda_double_lock);
  return result;
}

CUresult cuEventQuery(CUevent event) {
  enum { AT_ONCE = 4 };
  const CUresult result = cuda_double_enter();
  if (result != CUDA_OK)
    return result;
  (void)pthread_mutex_lock(&cuda_double_lock);
  for (uint64_t n = draw(AT_ONCE) + 1; n > 0 && event->n_done < event->n_recorded; --n)
    (void)step();
  const bool done = event->n_done >= event->n_recorded;
  if (done)
    see(event->ns);
  (void)pthread_mutex_unlock(&cuda_double_lock);
  return cuda_double_fault != CUDA_OK ? cuda_double_fault : done ? CUDA_OK : CUDA_NOT_READY;
}
