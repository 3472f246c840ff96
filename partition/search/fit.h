/* SPDX-License-Identifier: Apache-2.0 */
/* The cut whose largest overflow over all ranks is least: estimates say which cut to look at next,
 * exact bytes, asked of the caller, which is best.
 *
 * What a rank takes is estimated from the runs of parts that are its stages, plus what the exact
 * bytes of the cuts so far were off by, of the nearest ones most. A rank whose stages were judged
 * is known, unless its bytes turn out to depend on the other ranks' stages. The search ends where
 * no estimate of an unknown cut is better, even if it is too high by as much as estimates were off.
 */
#ifndef OPI_FIT_H
#define OPI_FIT_H

#include "partition/memory/parts.h"

typedef struct opi_fit_problem {
  const opipe_allocator *allocator;
  uint32_t n_parts, n_stages, n_replicas, n_ranks; /* n_parts >= n_stages */
  const uint32_t *instance_rank;    /* [n_stages * n_replicas] OPIPE_NONE: there is none */
  const uint64_t *caps_bytes;       /* [n_ranks] UINT64_MAX: none */
  const opi_parts_run *const *runs; /* [n_ranks] tables of opi_parts_measure; may repeat */
  const double *const *ns_before;   /* [n_stages][n_parts + 1] time of all parts before this one */
  double *held; /* [n_stages * n_replicas] micro-batches whose stashes an instance holds when its
                   rank is fullest. `judge` may write it */
  uint32_t judgments_most;
  /* Exact bytes of a cut: stage s has parts [ends[s], ends[s + 1]). out_bytes [n_ranks]: the least
   * that the ranks can do with. *out_ns: of its plan within the caps; INFINITY: there is none.
   * Errors: NOMEM ends the search, another one says that this is no cut. */
  opipe_status (*judge)(void *ctx, const uint32_t *ends, uint64_t *out_bytes, double *out_ns,
                        opipe_error *err);
  void *ctx;
} opi_fit_problem;

typedef struct opi_fit_result {
  uint32_t *ends;  /* [n_stages + 1] the caller's */
  double overflow; /* of the fullest rank, in bytes; below 0: what is left. INFINITY: no cut */
  double ns;       /* of the fastest plan that was found to fit; INFINITY: none was */
  uint32_t n_judged;
} opi_fit_result;

/* Which cuts are judged does not depend on the caps as long as none fits and all differ by the
 * same: a cut that is the answer under some caps is found under larger ones, or one that fits is
 * found before it. Errors: NOMEM. */
opipe_status opi_fit_search(const opi_fit_problem *problem, opi_fit_result *io_result,
                            opipe_error *err);

#endif /* OPI_FIT_H */
