/* SPDX-License-Identifier: Apache-2.0 */
/* The floating-point environment at the host's border: rounding, flushing of small numbers, traps
 * and raised flags; the locale; and whether the thread may be cancelled.
 *
 * The library computes with the environment that every program starts in, whatever the host's
 * threads have set, so that results have the same bits everywhere; the host gets its own back,
 * flags included, when a call returns and while one of its callbacks runs. In the same way numbers
 * are written and read as in the locale "C", by the library and its plugins: a host's decimal comma
 * is no part of a plan's or a trace's text. pthread_cancel waits until the call has returned, also
 * while a callback runs: it would unwind frames that hold locks. Threads of the library
 * start that way (opipe/threads.h), calls on the host's threads do it between opi_fp_enter and
 * opi_fp_leave: once, around each function of the host's table.
 */
#ifndef OPI_FP_H
#define OPI_FP_H

#include <fenv.h>
#include <locale.h>
#include <stdint.h>

/* What the host had set. Lives on the stack of the call. */
typedef struct opi_fp_border {
#if defined(__x86_64__)
  uint32_t sse;
  uint16_t x87_control, x87_status;
#elif defined(__aarch64__)
  uint64_t control, status;
#else
  fenv_t host;
#endif
  locale_t locale;
  int cancel;                  /* of pthread_setcancelstate */
  struct opi_fp_border *outer; /* of a call that came before, from inside a callback */
} opi_fp_border;

/* For good: a thread of the library's that calls plugins, and nothing of the host's. */
void opi_locale_begin_thread(void);

void opi_fp_enter(opi_fp_border *border);
void opi_fp_leave(opi_fp_border *border);

/* Around a callback of the host: its own environment meanwhile, and what the callback leaves in it
 * is kept. On the library's own threads nothing happens. Returns what opi_fp_take wants. */
opi_fp_border *opi_fp_lend(void);
void opi_fp_take(opi_fp_border *lent);

#endif /* OPI_FP_H */
