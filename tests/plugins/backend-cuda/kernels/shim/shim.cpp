/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of a block as fibers: see shim.hpp.
 *
 * A fiber takes one thread after the other from those that have not begun, and runs it to its end;
 * when one has to wait, its fiber waits with it and another goes on. Switches exchange stack
 * pointers; the address sanitizer is told. State is per host thread.
 *
 * SHIM_ADDRESS: kernels are compiled for the address sanitizer. This file is not: it switches
 * millions of times, and has nothing in its hands but its own state. */
#include "shim.hpp"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <memory>
#include <vector>

#include "run.h"
#include "shim_rows.h"

#if defined(SHIM_ADDRESS)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

__thread shim_thread *shim_self;
__thread shim_launch shim_now;

/* At most so many blocks of a launch begin early. */
enum { BEGUN_BLOCKS = 2 };

/* Thrown to end a thread. */
struct begun {};

enum {
  STACK_BYTES = 256 << 10,
  LINE_BYTES = 64,
  ZONE_BYTES = 1024,
  STATIC_BYTES = 48 << 10,
  DYNAMIC_BYTES = 227 << 10
};
static const unsigned char ZONE = 0xd5, POISON = 0xff; /* POISON: NaN in every type */

struct fiber {
#if defined(__x86_64__)
  void *stack_pointer;
#else
  ucontext_t context; /* where it begins and goes on, where there is no switch of ours */
#endif
  char *stack; /* [stack_bytes]; of a fiber above a page that nobody may touch */
  size_t stack_bytes;
  void *fake_stack;
};

struct meeting {
  const char *kind, *file;
  int line;
  unsigned mask, arrived;
  void *slots[32];
};

struct shim_warp {
  shim_thread *threads;
  unsigned present; /* lanes that there are */
  unsigned ready;   /* lanes that may go on */
  unsigned n_open;
  meeting open[32]; /* of masks that have no lane in common */
};

struct engine {
  const char *kernel;
  void (*body)(const void *args);
  const void *args;
  uint64_t random;
  std::vector<shim_thread> threads;
  std::vector<shim_warp> warps;
  std::vector<unsigned> order;         /* of threads */
  std::unique_ptr<shim_copy[]> copies; /* [n_copied][SHIM_COPIES] */
  size_t n_copied;
  unsigned ready;     /* warps that have such lanes */
  unsigned warp_now;  /* from which one is taken, while it has any */
  unsigned wandering; /* another warp is drawn at one in 2^.. takes */
  std::vector<fiber *> all, idle;
  fiber host, *running;
  unsigned begun, done, at_barrier;
  const char *barrier_file;
  int barrier_line;
  std::vector<unsigned char> memory; /* zone, static, zone, dynamic, zone */
  uint32_t static_bytes, dynamic_bytes;
  bool shared_used;
  bool begins;

  ~engine() {
    for (fiber *f : all) {
#if defined(SHIM_ADDRESS)
      /* its frames never returned; who gets these addresses next must not find their red zones */
      __asan_unpoison_memory_region(f->stack, STACK_BYTES);
#endif
      munmap(f->stack - 4096, STACK_BYTES + 4096);
      delete f;
    }
  }
};

static __thread engine *own __attribute__((tls_model("initial-exec")));

void shim_fault(const char *format, ...) {
  va_list list;
  va_start(list, format);
  fprintf(stderr, "kernel %s, block (%u, %u, %u): ", own->kernel, shim_now.block_index.x,
          shim_now.block_index.y, shim_now.block_index.z);
  vfprintf(stderr, format, list);
  fputc('\n', stderr);
  va_end(list);
  abort();
}

/* Below n; xorshift64* (Vigna 2016) */
static unsigned draw(engine *e, unsigned n) {
  e->random ^= e->random >> 12;
  e->random ^= e->random << 25;
  e->random ^= e->random >> 27;
  return (unsigned)((e->random * UINT64_C(0x2545f4914f6cdd1d) >> 32) * n >> 32);
}

/* ---- switching ---- */

#if defined(__x86_64__)
extern "C" void shim_switch(void **save, void *to);
__asm__(
    ".text\n.globl shim_switch\n.hidden shim_switch\n.type shim_switch,@function\nshim_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
    ".size shim_switch,.-shim_switch\n");
#endif

static void finish_switch(fiber *to) {
#if defined(SHIM_ADDRESS)
  __sanitizer_finish_switch_fiber(to->fake_stack, NULL, NULL);
#endif
  (void)to;
}

static void go(engine *e, fiber *to) {
  fiber *from = e->running;
  e->running = to;
#if defined(SHIM_ADDRESS)
  __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
#endif
#if defined(__x86_64__)
  shim_switch(&from->stack_pointer, to->stack_pointer);
#else
  swapcontext(&from->context, &to->context);
#endif
  finish_switch(from);
}

static void fiber_main(void);

static void fiber_begin(void) {
  finish_switch(own->running);
  fiber_main();
}

static fiber *new_fiber(engine *e) {
  fiber *f = new fiber();
  void *memory = mmap(NULL, STACK_BYTES + 4096, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, 4096, PROT_NONE) != 0)
    shim_fault("no memory for a stack");
  f->stack = static_cast<char *>(memory) + 4096;
  f->stack_bytes = STACK_BYTES;
#if defined(__x86_64__)
  /* from another line each, or all of them would share few lines of the cache */
  const size_t skipped = e->all.size() % (4096 / LINE_BYTES) * LINE_BYTES;
  void **top = reinterpret_cast<void **>(f->stack + STACK_BYTES - skipped);
  *--top = NULL; /* so that the stack is aligned as after a call */
  *--top = reinterpret_cast<void *>(fiber_begin);
  f->stack_pointer = top - 6;
#else
  getcontext(&f->context);
  f->context.uc_stack.ss_sp = f->stack;
  f->context.uc_stack.ss_size = STACK_BYTES;
  makecontext(&f->context, fiber_begin, 0);
#endif
  e->all.push_back(f);
  return f;
}

/* ---- who goes on ---- */

static void report_stuck(engine *e) {
  for (unsigned i = 0; i < e->threads.size(); ++i) {
    const shim_thread *t = &e->threads[i];
    if (!t->done) {
      shim_fault(
          "%u of %zu threads have ended and the others wait for each other; thread %u waits at "
          "%s:%d",
          e->done, e->threads.size(), i, t->waits_in, t->waits_at);
    }
  }
  shim_fault("nobody waits and nobody runs");
}

static void set_ready(engine *e, shim_warp *w, unsigned lanes) {
  w->ready |= lanes;
  if (lanes != 0)
    e->ready |= 1u << (w - e->warps.data());
}

/* A bit of a word that is not 0: of all of them the first one at or above `from`, and round. */
static unsigned bit_from(unsigned word, unsigned from) {
  const unsigned turned = word >> from | word << (-from & 31u);
  return ((unsigned)__builtin_ctz(turned) + from) & 31u;
}

/* Takes a thread that may go on, NULL: one that has not begun is next. Threads of one warp in a
 * row, which are near in memory. */
static shim_thread *take_ready(engine *e) {
  const bool draws = e->random != 0;
  const unsigned drawn = draws ? draw(e, 1u << 31) : 0;
  if (e->ready == 0 || (draws && e->begun < e->threads.size() && drawn >> 30 == 0))
    return NULL;
  if ((e->ready >> e->warp_now & 1u) == 0 || (draws && (drawn >> 10 & e->wandering) == 0))
    e->warp_now = bit_from(e->ready, drawn & 31u);
  shim_warp *w = &e->warps[e->warp_now];
  const unsigned lane = bit_from(w->ready, drawn >> 5 & 31u);
  w->ready &= ~(1u << lane);
  if (w->ready == 0)
    e->ready &= ~(1u << e->warp_now);
  return &w->threads[lane];
}

/* The running fiber has nothing to do until somebody comes back to it. */
static void leave(engine *e) {
  shim_thread *next = take_ready(e);
  fiber *to = NULL;
  if (next != NULL) {
    to = static_cast<fiber *>(next->fiber);
  } else if (e->begun < e->threads.size()) {
    if (e->idle.empty())
      e->idle.push_back(new_fiber(e));
    to = e->idle.back();
    e->idle.pop_back();
  } else if (e->done == e->threads.size()) {
    to = &e->host;
  } else {
    report_stuck(e);
  }
  if (to != e->running)
    go(e, to);
}

static void fiber_main(void) {
  for (;;) {
    engine *e = own; /* another launch may have begun */
    while (e->begun < e->threads.size()) {
      shim_thread *t = &e->threads[e->order[e->begun++]];
      shim_self = t;
      try {
        e->body(e->args);
      } catch (const begun &) {
      }
      t->done = true;
      ++e->done;
      if (!t->waited) {
        shim_fault("thread (%u, %u, %u) does not wait for the launch in front", t->index.x,
                   t->index.y, t->index.z);
      }
      if (t->n_copies != 0) {
        shim_fault("thread (%u, %u, %u) ends with copies that nobody waited for", t->index.x,
                   t->index.y, t->index.z);
      }
      if (e->at_barrier != 0) {
        shim_fault("a thread has ended, %u others wait at the barrier of %s:%d", e->at_barrier,
                   e->barrier_file, e->barrier_line);
      }
    }
    e->idle.push_back(e->running);
    leave(e);
  }
}

static void wait_here(engine *e, const char *file, int line) {
  shim_thread *t = shim_self;
  t->fiber = e->running;
  t->waits_in = file;
  t->waits_at = line;
  leave(e);
  shim_self = t;
  t->waits_in = NULL;
  t->fiber = NULL;
}

static bool same(const char *a, const char *b) {
  return a == b || strcmp(a, b) == 0;
}

void shim_barrier(const char *file, int line) {
  engine *e = own;
  if (e->at_barrier != 0 && (e->barrier_line != line || !same(e->barrier_file, file))) {
    shim_fault("threads meet at different barriers, of %s:%d and %s:%d", e->barrier_file,
               e->barrier_line, file, line);
  }
  if (e->done != 0)
    shim_fault("%u threads have ended before the barrier of %s:%d", e->done, file, line);
  e->barrier_file = file;
  e->barrier_line = line;
  if (++e->at_barrier == e->threads.size()) {
    e->at_barrier = 0;
    for (shim_warp &w : e->warps)
      set_ready(e, &w, w.present);
    /* who came last need not be the first to go on */
  }
  wait_here(e, file, line);
}

void shim_meet(const char *kind, unsigned mask, void *slot,
               void (*all)(void **slots, unsigned mask), const char *file, int line) {
  engine *e = own;
  shim_thread *t = shim_self;
  shim_warp *w = t->warp;
  if ((mask >> t->lane & 1u) == 0 || (mask & ~w->present) != 0) {
    shim_fault("%s of %s:%d: mask %08x, lane %u of lanes %08x", kind, file, line, mask, t->lane,
               w->present);
  }
  unsigned at = 0;
  while (at < w->n_open && (w->open[at].mask & mask) == 0)
    ++at;
  meeting *m = &w->open[at];
  if (at == w->n_open) {
    ++w->n_open;
    m->kind = kind;
    m->file = file;
    m->line = line;
    m->mask = mask;
    m->arrived = 0;
  }
  if (m->mask != mask || !same(m->kind, kind) || m->line != line || !same(m->file, file)) {
    shim_fault("lanes meet at %s of %s:%d (mask %08x) and %s of %s:%d (mask %08x)", m->kind,
               m->file, m->line, m->mask, kind, file, line, mask);
  }
  m->slots[t->lane] = slot;
  m->arrived |= 1u << t->lane;
  if (m->arrived != mask) {
    wait_here(e, file, line);
    return;
  }
  if (all != NULL)
    all(m->slots, mask);
  if (at != --w->n_open)
    *m = w->open[w->n_open];
  set_ready(e, w, mask & ~(1u << t->lane));
}

void shim_check_fences(const char *file, int line) {
  engine *e = own;
  for (unsigned i = 0; i < e->threads.size(); ++i) {
    if (!e->threads[i].fenced)
      shim_fault("a block is counted at %s:%d, thread %u has not fenced its writes", file, line, i);
  }
}

void shim_ballot_all(void **slots, unsigned mask) {
  unsigned votes = 0;
  for (unsigned i = 0; i < 32; ++i)
    votes |= (mask >> i & 1u) != 0 && static_cast<shim_vote *>(slots[i])->in != 0 ? 1u << i : 0;
  for (unsigned i = 0; i < 32; ++i) {
    if ((mask >> i & 1u) != 0)
      static_cast<shim_vote *>(slots[i])->out = votes;
  }
}

void shim_match_all(void **slots, unsigned mask) {
  for (unsigned i = 0; i < 32; ++i) {
    if ((mask >> i & 1u) == 0)
      continue;
    shim_vote *vote = static_cast<shim_vote *>(slots[i]);
    vote->out = 0;
    for (unsigned k = 0; k < 32; ++k) {
      vote->out |=
          (mask >> k & 1u) != 0 && static_cast<shim_vote *>(slots[k])->in == vote->in ? 1u << k : 0;
    }
  }
}

/* ---- shared memory ---- */

static unsigned char *dynamic_of(engine *e) {
  return e->memory.data() + ZONE_BYTES + STATIC_BYTES + ZONE_BYTES;
}

void *shim_shared(uint32_t bytes) {
  engine *e = own;
  if (bytes > STATIC_BYTES)
    shim_fault("%u bytes of static shared memory, at most %d", bytes, (int)STATIC_BYTES);
  unsigned char *memory = e->memory.data() + ZONE_BYTES;
  if (!e->shared_used) {
    memset(memory, POISON, bytes);
    memset(memory + bytes, ZONE, STATIC_BYTES - bytes);
    e->static_bytes = bytes;
    e->shared_used = true;
  } else if (bytes != e->static_bytes) {
    shim_fault("shared memory of %u and of %u bytes in one kernel", e->static_bytes, bytes);
  }
  return memory;
}

void *shim_dynamic(void) {
  return dynamic_of(own);
}

static void check_zone(const unsigned char *from, size_t n, const char *what) {
  if (n == 0 || (from[0] == ZONE && memcmp(from, from + 1, n - 1) == 0))
    return;
  for (size_t i = 0; i < n; ++i) {
    if (from[i] != ZONE)
      shim_fault("writes %s shared memory (%zu bytes into what lies there)", what, i);
  }
}

static void begin_shared(engine *e) {
  memset(dynamic_of(e), POISON, e->dynamic_bytes);
  memset(dynamic_of(e) + e->dynamic_bytes, ZONE, ZONE_BYTES);
  e->shared_used = false;
  e->static_bytes = 0;
}

static void end_shared(engine *e) {
  check_zone(e->memory.data(), ZONE_BYTES, "before");
  if (e->shared_used) {
    check_zone(e->memory.data() + ZONE_BYTES + e->static_bytes, STATIC_BYTES - e->static_bytes,
               "beyond static");
  }
  check_zone(dynamic_of(e) - ZONE_BYTES, ZONE_BYTES, "before dynamic");
  check_zone(dynamic_of(e) + e->dynamic_bytes, ZONE_BYTES, "beyond dynamic");
}

void shim_copy_begin(void *to, const void *from, uint32_t bytes, uint32_t room) {
  shim_thread *t = shim_self;
  if (!t->waited)
    shim_fault("memory is copied before the wait for the launch in front");
  if (t->n_copies == SHIM_COPIES)
    shim_fault("more than %d copies under way in a thread", (int)SHIM_COPIES);
  if (((uintptr_t)to | (bytes > 0 ? (uintptr_t)from : 0)) % room != 0)
    shim_fault("a copy of %u bytes to %p from %p is not aligned", room, to, from);
  memset(to, POISON, room);
  t->copies[t->n_copies++] = {to, from, bytes, room, t->group};
}

void shim_copy_commit(void) {
  ++shim_self->group;
}

void shim_copy_wait(uint32_t groups) {
  shim_thread *t = shim_self;
  uint32_t kept = 0;
  for (uint32_t i = 0; i < t->n_copies; ++i) {
    const shim_copy c = t->copies[i];
    if (c.group + groups >= t->group) {
      t->copies[kept++] = c;
    } else {
      memcpy(c.to, c.from, c.bytes);
      memset(static_cast<char *>(c.to) + c.bytes, 0, c.room - c.bytes);
    }
  }
  t->n_copies = kept;
}

/* ---- a launch ---- */

static void shuffle(engine *e, std::vector<unsigned> *order) {
  for (size_t i = order->size(); e->random != 0 && i > 1; --i)
    std::swap((*order)[i - 1], (*order)[draw(e, (unsigned)i)]);
}

static void set_threads(engine *e, const uint32_t *block) {
  const unsigned n = block[0] * block[1] * block[2];
  e->threads.resize(n);
  e->warps.resize((n + 31) / 32);
  e->order.resize(n);
  if (n > e->n_copied) { /* most of it is never touched */
    e->copies.reset(new shim_copy[(size_t)n * SHIM_COPIES]);
    e->n_copied = n;
  }
  for (unsigned w = 0; w < e->warps.size(); ++w) {
    const unsigned lanes = n - w * 32 < 32 ? n - w * 32 : 32;
    e->warps[w].threads = &e->threads[(size_t)w * 32];
    e->warps[w].present = lanes == 32 ? 0xffffffffu : (1u << lanes) - 1u;
    e->warps[w].ready = 0;
    e->warps[w].n_open = 0;
  }
  for (unsigned i = 0; i < n; ++i) {
    shim_thread *t = &e->threads[i];
    t->index = {i % block[0], i / block[0] % block[1], i / block[0] / block[1]};
    t->lane = i % 32;
    t->warp = &e->warps[i / 32];
    t->copies = &e->copies[(size_t)i * SHIM_COPIES];
    e->order[i] = i;
  }
}

static void run_block(engine *e) {
  for (shim_thread &t : e->threads) {
    t.fiber = NULL;
    t.waits_in = NULL;
    t.done = false;
    t.waited = false;
    t.fenced = false;
    t.n_copies = 0;
    t.group = 0;
  }
  shuffle(e, &e->order);
  e->ready = 0;
  e->warp_now = 0;
  e->begun = 0;
  e->done = 0;
  e->at_barrier = 0;
  begin_shared(e);
  e->running = &e->host;
  leave(e);
  end_shared(e);
}

static void release(void *engine_of_thread) {
  delete static_cast<engine *>(engine_of_thread);
}

/* The engine of this host thread; goes with it. */
static engine *engine_here(void) {
  struct owner {
    engine *e = NULL;
    ~owner() {
      release(e);
    }
  };
  static thread_local owner o;
  if (o.e == NULL) {
    o.e = new engine();
    o.e->memory.assign(3 * (size_t)ZONE_BYTES + STATIC_BYTES + DYNAMIC_BYTES, ZONE);
#if defined(SHIM_ADDRESS)
    pthread_attr_t attributes;
    void *bottom = NULL;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &bottom, &o.e->host.stack_bytes);
    pthread_attr_destroy(&attributes);
    o.e->host.stack = static_cast<char *>(bottom);
#endif
  }
  return o.e;
}

void shim_run(const char *kernel, void (*body)(const void *), const void *args,
              const uint32_t grid[3], const uint32_t block[3], uint32_t threads,
              uint32_t shared_bytes, uint64_t seed) {
  engine *e = engine_here();
  own = e;
  e->kernel = kernel;
  e->body = body;
  e->args = args;
  e->random = seed;
  e->wandering = seed == 0 ? 0 : (1u << draw(e, 9)) - 1;
  e->dynamic_bytes = shared_bytes;
  shim_now = {{0, 0, 0}, {block[0], block[1], block[2]}, {grid[0], grid[1], grid[2]}, e->begins};
  const uint64_t n = (uint64_t)block[0] * block[1] * block[2];
  if (n == 0 || n > threads || shared_bytes > DYNAMIC_BYTES ||
      (uint64_t)grid[0] * grid[1] * grid[2] == 0 || grid[1] > 65535 || grid[2] > 65535 ||
      grid[0] > INT32_MAX) {
    shim_fault(
        "a launch of %ux%ux%u blocks of %ux%ux%u threads (at most %u) with %u bytes of shared "
        "memory",
        grid[0], grid[1], grid[2], block[0], block[1], block[2], threads, shared_bytes);
  }
  set_threads(e, block);
  std::vector<unsigned> blocks(grid[0] * (size_t)grid[1] * grid[2]);
  for (unsigned i = 0; i < blocks.size(); ++i)
    blocks[i] = i;
  shuffle(e, &blocks);
  if (e->begins && blocks.size() > BEGUN_BLOCKS)
    blocks.resize(BEGUN_BLOCKS);
  for (const unsigned i : blocks) {
    shim_now.block_index = {i % grid[0], i / grid[0] % grid[1], i / grid[0] / grid[1]};
    run_block(e);
  }
}

void shim_end_begun(void) {
  throw begun();
}

void cuda_shim_begin(const cuda_shim_row *row, const void *args, const uint32_t grid[3],
                     const uint32_t block[3], uint32_t shared_bytes, uint64_t seed) {
  engine *e = engine_here();
  e->begins = true;
  row->run(args, grid, block, shared_bytes, seed);
  e->begins = false;
}
