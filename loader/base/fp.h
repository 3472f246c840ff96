/* SPDX-License-Identifier: Apache-2.0 */
/* The floating-point environment at the border to the host (rounding, flushing of denormals, traps,
 * raised flags), the locale, and the thread's cancellability.
 *
 * The library computes in the default environment, whatever the host's threads have set, so that
 * results have the same bits everywhere. The host's own environment, flags included, is restored
 * when a call returns and while a host callback runs. Likewise, the library and its plugins format
 * and parse numbers in the locale "C", so a host's decimal comma never appears in a plan or a
 * trace. pthread_cancel is deferred until the call has returned, even while a callback runs,
 * because it would unwind frames that hold locks. Threads of the library start in this state
 * (opipe/threads.h). Calls on the host's threads enter it once, around each function of the host's
 * table, with opi_fp_enter and opi_fp_leave.
 */
#ifndef OPI_FP_H
#define OPI_FP_H

#include <fenv.h>
#include <locale.h>
#include <stdint.h>

/* The host's settings. On the stack of the call. */
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
  struct opi_fp_border *outer; /* of an enclosing call, if this one came from a callback */
} opi_fp_border;

/* Sets the locale for good on a thread of the library that calls plugins but never the host. */
void opi_locale_begin_thread(void);

void opi_fp_enter(opi_fp_border *border);
void opi_fp_leave(opi_fp_border *border);

/* Around a host callback: restores the host's environment, and keeps what the callback leaves in
 * it. Does nothing on the library's own threads. Returns the argument for opi_fp_take. */
opi_fp_border *opi_fp_lend(void);
void opi_fp_take(opi_fp_border *lent);

#endif /* OPI_FP_H */
