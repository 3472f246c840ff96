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

#include "work.h"

enum { KERNEL_US = 5, COPY_NS = 2000, MEET_NS = 10000, BEGIN_ONE_IN = 8 };

static struct CUstream_st default_stream = {.last = &default_stream.first};
static CUstream streams = &default_stream;
static uint64_t random_state, n_waits, n_launches, n_meets;
static uint64_t n_writes, n_reads, n_copies, n_peer_copies, n_pageable, n_behind, n_begun;
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
  io_facts->peer_copies = n_peer_copies;
  io_facts->launches = n_launches;
  io_facts->behind = n_behind;
  io_facts->begun = n_begun;
  cuda_double_count_graphs(io_facts);
  for (CUstream s = streams; s != NULL; s = s->next) {
    for (const work *w = s->first; w != NULL; w = w->next)
      ++io_facts->queued;
  }
}

/* ---- doing ---- */

/* Other processes may write and read these. */
static uint64_t done_of(CUevent event) {
  return __atomic_load_n(&event->state->n_done, __ATOMIC_ACQUIRE);
}

static uint64_t recorded_of(CUevent event) {
  return __atomic_load_n(&event->state->n_recorded, __ATOMIC_ACQUIRE);
}

static void check_event(CUevent event) {
  if (event->opened)
    cuda_double_state_check(event->told);
}

static bool is_ready(CUstream stream) {
  const work *w = stream->first;
  if (w == NULL || stream->held)
    return false;
  return w->kind == WORK_MEET ? w->over : w->kind != WORK_WAIT || done_of(w->event) >= w->number;
}

/* All events of the process: a real driver keeps those that a lost context leaves behind, too. */
static CUevent events;
static pthread_mutex_t events_lock = PTHREAD_MUTEX_INITIALIZER;

static CUevent new_event(void) {
  CUevent event = calloc(1, sizeof *event);
  if (event == NULL)
    return NULL;
  (void)pthread_mutex_lock(&events_lock);
  event->next = events;
  event->at = &events;
  if (events != NULL)
    events->at = &event->next;
  events = event;
  (void)pthread_mutex_unlock(&events_lock);
  return event;
}

static void drop_event(CUevent event) {
  (void)pthread_mutex_lock(&events_lock);
  *event->at = event->next;
  if (event->next != NULL)
    event->next->at = event->at;
  (void)pthread_mutex_unlock(&events_lock);
  free(event);
}

static void free_event(CUevent event) {
  if (event->told != NULL)
    cuda_double_state_end(event->fd, event->told, event->opened);
  drop_event(event);
}

static void let_go(CUevent event) {
  if (--event->n_queued == 0 && event->destroyed)
    free_event(event);
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
  const double since = w->kind == WORK_WAIT ? w->event->state->ns : w->from_ns;
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
      if (w->number > done_of(w->event)) {
        w->event->state->ns = stream->ns;
        __atomic_store_n(&w->event->state->n_done, w->number, __ATOMIC_RELEASE);
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

/* Is there a stream that waits for another process? */
static bool awaits_others(void) {
  for (CUstream s = streams; s != NULL; s = s->next) {
    if (s->first != NULL && s->first->kind == WORK_WAIT && s->first->event->opened)
      return true;
  }
  return false;
}

/* The lock is given up while peers are waited for. */
static void finish(CUstream stream) {
  const struct timespec pause = {0, 50000};
  while (stream->first != NULL) {
    if (step())
      continue;
    if (n_meets == 0 && !awaits_others())
      cuda_double_die("streams wait for each other");
    (void)pthread_mutex_unlock(&cuda_double_lock);
    (void)nanosleep(&pause, NULL);
    (void)pthread_mutex_lock(&cuda_double_lock);
  }
  see(stream->ns);
}

/* ---- queueing ---- */

CUresult cuda_double_append(work ***last, const work *head, const void *args, size_t n_bytes) {
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
    return cuda_double_append(&stream->last, head, args, n_bytes);
  if (head->kind > WORK_FILL || cuda_double_option("OPIPE_CUDA_DOUBLE_CAPTURE", 1) == 0) {
    stream->captured->broken = true;
    return CUDA_STREAM_CAPTURE_UNSUPPORTED;
  }
  return cuda_double_append(&stream->captured->last, head, args, n_bytes);
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

/* Memory that arguments of a kernel or a library's call name lies where the stream's GPU gets at
 * it.
 */
static void check_peers(int device, const void *args, size_t n_bytes) {
  const uint64_t *words = args;
  for (size_t i = 0; args != NULL && i < n_bytes / sizeof *words; ++i) {
    const int other = cuda_double_device_of((uintptr_t)words[i], 1);
    if (other >= 0 && !cuda_double_has_peer(device, other))
      cuda_double_die("work uses memory of a GPU that its own does not reach");
  }
}

static CUresult queue(CUstream stream, const work *head, const void *args, size_t n_bytes) {
  CUresult result = cuda_double_enter();
  if (result != CUDA_OK)
    return result;
  if (stream == NULL)
    return CUDA_INVALID_HANDLE; /* the plugin never uses the legacy stream */
  (void)pthread_mutex_lock(&cuda_double_lock);
  check_peers(stream->device, args, n_bytes);
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
  if (inside && ((to_device && cuda_double_device_of((uintptr_t)to, bytes) != stream->device) ||
                 (from_device && cuda_double_device_of((uintptr_t)from, bytes) != stream->device)))
    cuda_double_die("a copy of memory that is not its stream's GPU's (cuMemcpyPeerAsync)");
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

/* The driver goes through the host where neither GPU reaches the other: the plugin does not ask. */
CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src,
                           CUcontext src_context, size_t bytes, CUstream stream) {
  const work head = {.kind = WORK_COPY,
                     .to = (void *)(uintptr_t)dst,
                     .from = (const void *)(uintptr_t)src,
                     .n_bytes = bytes,
                     .ns = COPY_NS};
  (void)pthread_mutex_lock(&cuda_double_lock);
  const int to = cuda_double_device_of((uintptr_t)dst, bytes);
  const int from = cuda_double_device_of((uintptr_t)src, bytes);
  const bool inside = to >= 0 && from >= 0 && to == cuda_double_context_device(dst_context) &&
                      from == cuda_double_context_device(src_context);
  if (inside &&
      (!cuda_double_has_peer(stream->device, to) || !cuda_double_has_peer(stream->device, from)))
    cuda_double_die("a copy between GPUs that do not reach each other");
  if (inside)
    ++n_peer_copies;
  (void)pthread_mutex_unlock(&cuda_double_lock);
  return inside ? queue(stream, &head, NULL, 0) : CUDA_INVALID_VALUE;
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
  made->device = cuda_double_device();
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
  const work head = {.kind = WORK_WAIT, .event = event, .number = recorded_of(event)};
  check_event(event);
  result = push(stream, &head, NULL, 0);
  event->n_queued += result == CUDA_OK;
  (void)pthread_mutex_unlock(&cuda_double_lock);
  return result;
}

/* ---- events ---- */

CUresult cuEventCreate(CUevent *event, unsigned flags) {
  const unsigned shared = CUDA_EVENT_DISABLE_TIMING | CUDA_EVENT_INTERPROCESS;
  const CUresult result = cuda_double_enter();
  if (result != CUDA_OK)
    return result;
  if (flags != 0 && flags != CUDA_EVENT_DISABLE_TIMING && flags != shared)
    return CUDA_INVALID_VALUE;
  CUevent made = new_event();
  if (made == NULL)
    return CUDA_OUT_OF_MEMORY;
  made->timed = flags == 0;
  made->state = &made->own;
  made->fd = -1;
  if (flags == shared)
    made->state = cuda_double_state_share(&made->fd, &made->told);
  if (made->state == NULL) {
    drop_event(made);
    return CUDA_OUT_OF_MEMORY;
  }
  *event = made;
  return CUDA_OK;
}

CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event) {
  const CUresult result = cuda_double_enter();
  if (result != CUDA_OK)
    return result;
  return event->told == NULL || event->opened
             ? CUDA_INVALID_HANDLE
             : cuda_double_state_handle(event->fd, event->told, handle);
}

CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle) {
  CUresult result = cuda_double_enter();
  if (result != CUDA_OK)
    return result;
  CUevent made = new_event();
  if (made == NULL)
    return CUDA_OUT_OF_MEMORY;
  made->fd = -1;
  made->opened = true;
  result = cuda_double_state_open(&handle, &made->state, &made->told);
  if (result != CUDA_OK)
    drop_event(made);
  else
    *event = made;
  return result;
}

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent from, CUevent to) {
  const CUresult result = cuda_double_enter();
  if (result != CUDA_OK)
    return result;
  (void)pthread_mutex_lock(&cuda_double_lock);
  const bool are_timed = from->timed && to->timed && recorded_of(from) > 0 && recorded_of(to) > 0;
  const bool are_done = done_of(from) >= recorded_of(from) && done_of(to) >= recorded_of(to);
  *milliseconds = (float)((to->state->ns - from->state->ns) * 1e-6);
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
    free_event(event);
  return CUDA_OK;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  CUresult result = cuda_double_enter();
  if (result != CUDA_OK)
    return result;
  (void)pthread_mutex_lock(&cuda_double_lock);
  const work head = {.kind = WORK_RECORD, .event = event, .number = recorded_of(event) + 1};
  if (event->opened)
    cuda_double_die("another process's event is recorded: the plugin does not");
  result = push(stream, &head, NULL, 0);
  if (result == CUDA_OK) {
    __atomic_store_n(&event->state->n_recorded, head.number, __ATOMIC_RELEASE);
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
  check_event(event);
  for (uint64_t n = draw(AT_ONCE) + 1; n > 0 && done_of(event) < recorded_of(event); --n)
    (void)step();
  const bool done = done_of(event) >= recorded_of(event);
  if (done && !event->opened) /* clocks of two processes have nothing to do with each other */
    see(event->state->ns);
  (void)pthread_mutex_unlock(&cuda_double_lock);
  return cuda_double_fault != CUDA_OK ? cuda_double_fault : done ? CUDA_OK : CUDA_NOT_READY;
}
