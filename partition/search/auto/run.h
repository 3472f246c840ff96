/* SPDX-License-Identifier: Apache-2.0 */
/* A search under way: of this folder alone. */
#ifndef OPI_AUTO_RUN_H
#define OPI_AUTO_RUN_H

#include "partition/search/auto/space.h"

enum { OPI_ROUND = 32 };                   /* candidates judged between two looks at the best */
enum { OPI_KEPT_MOST = 30 };               /* of the best: some turn out to be doubles */
enum { OPI_WORK_LEAST = 64 };              /* operations that asking and lowering count at least */
#define OPI_WORK_PRESET UINT64_C(24000000) /* and as much more for so many devices each: */
enum { OPI_DEVICES_PRESET = 512 };

typedef struct opi_candidate {
  opi_point point;
  opi_point *from; /* the space's; NULL: a neighbour of the best */
  opi_judged judged;
  double key; /* INFINITY: it does not fit, or could not be played */
  opipe_status status;
  opipe_error err;
} opi_candidate;

typedef struct opi_run {
  opi_space *space;
  opi_candidate round[OPI_ROUND];
  uint32_t n_round;
  opi_candidate best[OPI_KEPT_MOST + 1]; /* from the best */
  uint32_t n_best;
  char why[OPI_LINE_ROOM]; /* the first that could not be played */
  uint32_t n_neighbours;   /* candidates beside the space's */
  uint32_t n_bounded, n_simulated, n_refused, n_left;
  uint64_t work;
  double bound;
  uint32_t stopped;
} opi_run;

/* ---- search.c ---- */

/* Puts a point into the round, unless its bound says that it is no better. There must be room. */
bool opi_run_offer(opi_run *run, const opi_point *point);
/* Judges what is in the round. */
opipe_status opi_run_round(opi_run *run);

/* Do the two differ in cut, devices and schedule alone? */
bool opi_points_alike(const opi_point *a, const opi_point *b);
/* A hash of what that compares, and of the schedule; never 0. */
uint64_t opi_point_kind(const opi_point *point);

/* ---- shortlist.c ---- */

/* The points in the order in which they are looked at. */
opipe_status opi_run_sort(opi_run *run);

/* ---- others.c ---- */

/* Of what is as good, what was found first stays first: index of a point that was looked at later.
 */
#define OPI_LATER (UINT32_C(1) << 31)
/* Of each other kind of plan (schedule, ranks, copies, rows...) the one with the best guess, by
 * which the ranked ones behind the best are what their kinds can do; then, where a better one of
 * the same shape has another cut, with that. As long as work is left. */
opipe_status opi_run_others(opi_run *run, uint64_t work_most);

/* ---- crew.c ---- */

/* Plays the round's candidates on the question's threads. */
void opi_crew_judge(opi_run *run);

/* ---- refine.c ---- */

/* Neighbours of the best ones: layers over a boundary, replicas from stage to stage, as long as one
 * is better and work is left. */
opipe_status opi_refine(opi_run *run, uint64_t work_most);

/* ---- infeasible.c ---- */

/* LIMIT: what is missing, and what would help. */
opipe_status opi_infeasible(opi_run *run);

/* ---- turns.c ---- */

opipe_status opi_run_turns(opi_run *run, opi_auto_turns *out_turns);

/* ---- answer.c ---- */

opipe_status opi_run_answer(opi_run *run, opi_auto_answer **out_answer);

#endif /* OPI_AUTO_RUN_H */
