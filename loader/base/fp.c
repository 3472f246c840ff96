/* SPDX-License-Identifier: Apache-2.0 */
/* The floating-point environment, by the machine's own instructions: the C library's take ten times
 * as long, and its FE_DFL_ENV leaves the flushing of small numbers as it is on some systems.
 */
#include "loader/base/fp.h"

#include <opipe/threads.h>
#include <pthread.h>
#include <stddef.h>

/* The call that this thread is in, while the library's environment holds. */
static _Thread_local opi_fp_border *inside;

#if defined(__x86_64__)

enum { SSE_DEFAULT = 0x1f80, X87_DEFAULT = 0x037f, FLAGS = 0x3f };

static void save(opi_fp_border *b) {
  __asm__ volatile("stmxcsr %0\n\tfnstcw %1\n\tfnstsw %2"
                   : "=m"(b->sse), "=m"(b->x87_control), "=m"(b->x87_status)
                   :
                   : "memory");
}

/* The x87 unit is left alone unless something differs: loading its whole state is slow. */
static void set_defaults(const opi_fp_border *b) {
  if (b->x87_control != X87_DEFAULT) {
    opipe_fp_defaults();
  } else if ((b->sse & ~(uint32_t)FLAGS) != SSE_DEFAULT) {
    const uint32_t sse = SSE_DEFAULT;
    __asm__ volatile("ldmxcsr %0" : : "m"(sse) : "memory");
  }
}

static void restore(const opi_fp_border *b) {
  struct x87_state {
    uint16_t control, pad0, status, pad1, tag, pad2;
    uint32_t rest[4];
  } state;
  opi_fp_border now;
  save(&now);
  if (now.x87_control != b->x87_control || ((now.x87_status ^ b->x87_status) & FLAGS) != 0) {
    __asm__ volatile("fnstenv %0" : "=m"(state) : : "memory");
    state.control = b->x87_control;
    state.status = (uint16_t)((state.status & ~FLAGS) | (b->x87_status & FLAGS));
    __asm__ volatile("fldenv %0" : : "m"(state) : "memory");
  }
  if (now.sse != b->sse)
    __asm__ volatile("ldmxcsr %0" : : "m"(b->sse) : "memory");
}

#elif defined(__aarch64__)

static void save(opi_fp_border *b) {
  __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(b->control), "=r"(b->status) : : "memory");
}

static void set_defaults(const opi_fp_border *b) {
  if (b->control != 0)
    opipe_fp_defaults();
}

static void restore(const opi_fp_border *b) {
  __asm__ volatile("msr fpcr, %0\n\tmsr fpsr, %1" : : "r"(b->control), "r"(b->status) : "memory");
}

#else

static void save(opi_fp_border *b) {
  (void)fegetenv(&b->host);
}

static void set_defaults(const opi_fp_border *b) {
  (void)b;
  opipe_fp_defaults();
}

static void restore(const opi_fp_border *b) {
  (void)fesetenv(&b->host);
}

#endif

static locale_t neutral; /* the C library's own object, where there is one: never freed */

static void make_neutral(void) {
  neutral = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

/* Returns what was set before. Without a locale of its own the host's stays. */
static locale_t use_neutral(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  (void)pthread_once(&once, make_neutral);
  return uselocale(neutral);
}

void opi_locale_begin_thread(void) {
  (void)use_neutral();
}

void opi_fp_enter(opi_fp_border *border) {
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &border->cancel);
  save(border);
  border->locale = use_neutral();
  border->outer = inside;
  inside = border;
  set_defaults(border);
}

void opi_fp_leave(opi_fp_border *border) {
  inside = border->outer;
  (void)uselocale(border->locale);
  restore(border);
  (void)pthread_setcancelstate(border->cancel, NULL);
}

opi_fp_border *opi_fp_lend(void) {
  opi_fp_border *border = inside;
  inside = NULL;
  if (border != NULL) {
    (void)uselocale(border->locale);
    restore(border);
  }
  return border;
}

void opi_fp_take(opi_fp_border *lent) {
  inside = lent;
  if (lent == NULL)
    return;
  save(lent); /* `outer` stays */
  lent->locale = use_neutral();
  set_defaults(lent);
}
