/* SPDX-License-Identifier: Apache-2.0 */
/* The cut whose largest overflow over all ranks is least. Estimates choose the next cut to judge;
 * exact bytes, asked of the caller, decide.
 *
 * A rank's bytes are estimated from the runs of parts that are its stages, corrected by the errors
 * of earlier estimates, the nearest cuts weighted most. A rank whose stages were judged before is
 * known, unless its bytes turn out to depend on the other ranks' stages. The search ends when no
 * unknown cut could be better even if its estimate were too high by the usual error.
 */
#ifndef OPI_FIT_H
#define OPI_FIT_H

#include "partition/memory/parts.h"

typedef struct opi_fit_problem {
  const opipe_allocator *allocator;
  uint32_t n_parts, n_stages, n_replicas, n_ranks; /* n_parts >= n_stages */
  const uint32_t *instance_rank;    /* [n_stages * n_replicas] OPIPE_NONE: no such replica */
  const uint64_t *caps_bytes;       /* [n_ranks] UINT64_MAX: none */
  const opi_parts_run *const *runs; /* [n_ranks] tables of opi_parts_measure; may repeat */
  const double *const *ns_before;   /* [n_stages][n_parts + 1] time of all parts before each */
  double *held; /* [n_stages * n_replicas] micro-batches whose stashes an instance holds when its
                   rank is fullest. `judge` may write it */
  uint32_t judgments_most;
  /* Exact bytes of a cut: stage s has parts [ends[s], ends[s + 1]). out_bytes [n_ranks]: the least
   * that each rank can manage with. *out_ns: time of its plan within the caps; INFINITY: there is
   * none. Errors: NOMEM ends the search, any other says that this is not a valid cut. */
  opipe_status (*judge)(void *ctx, const uint32_t *ends, uint64_t *out_bytes, double *out_ns,
                        opipe_error *err);
  void *ctx;
} opi_fit_problem;

typedef struct opi_fit_result {
  uint32_t *ends;  /* [n_stages + 1] the caller's */
  double overflow; /* of the fullest rank, in bytes; below 0: bytes left. INFINITY: no cut */
  double ns;       /* of the fastest plan that fits; INFINITY: none */
  uint32_t n_judged;
} opi_fit_result;

/* As long as nothing fits and all caps change by the same amount, the sequence of judged cuts does
 * not depend on the caps. So the answer under some caps is also found under larger ones, unless
 * another cut that fits comes first. Errors: NOMEM. */
opipe_status opi_fit_search(const opi_fit_problem *problem, opi_fit_result *io_result,
                            opipe_error *err);

#endif /* OPI_FIT_H */
