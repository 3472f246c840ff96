/* SPDX-License-Identifier: Apache-2.0 */
/* A search under way: of this folder alone. */
#ifndef OPI_AUTO_RUN_H
#define OPI_AUTO_RUN_H

#include "partition/study/auto/space.h"

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

/* The best so far of every number of stages, ranks, copies and samples, whoever is better
 * elsewhere. */
enum { OPI_LEADERS_MOST = 256 };
enum { OPI_SEEN_ROOM = 1 << 15 };

typedef struct opi_run {
  opi_space *space;
  opi_candidate round[OPI_ROUND];
  uint32_t n_round;
  opi_candidate best[OPI_KEPT_MOST + 1]; /* from the best */
  uint32_t n_best;
  opi_candidate leaders[OPI_LEADERS_MOST]; /* in no order */
  uint32_t n_leaders;
  uint64_t seen[OPI_SEEN_ROOM]; /* hashes of points that refine.c has offered, or looked around */
  uint32_t n_seen;
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
/* Are they of one number of stages, ranks, copies and samples? */
bool opi_leads_as(const opi_point *a, const opi_point *b);
/* A hash of what that compares, and of the schedule; never 0. */
uint64_t opi_point_kind(const opi_point *point);

/* ---- shortlist.c ---- */

/* The points in the order in which they are looked at. */
opipe_status opi_run_sort(opi_run *run);

/* ---- others.c ---- */

/* Of what is as good, what was found first stays first: index of a point that was looked at later.
 */
#define OPI_LATER (UINT32_C(1) << 31)
/* Of each shape that nobody leads yet the one with the best guess, for its neighbours' sake. As
 * long as work is left. */
opipe_status opi_run_shapes(opi_run *run, uint64_t work_most);
/* Of each other kind of plan (schedule, ranks, copies, rows...) the one with the best guess, by
 * which the ranked ones behind the best are what their kinds can do. As long as work is left. */
opipe_status opi_run_kinds(opi_run *run, uint64_t work_most);
/* Those that lead and are not far behind, under the other schedules that can be laid out so. */
opipe_status opi_run_methods(opi_run *run, uint64_t work_most);
/* Each that is ranked, where a better one of the same shape has another cut, with that too. As long
 * as work is left. */
opipe_status opi_run_cuts(opi_run *run, uint64_t work_most);

/* ---- crew.c ---- */

/* Plays the round's candidates on the question's threads. */
void opi_crew_judge(opi_run *run);

/* ---- refine.c ---- */

/* Neighbours of all that are ranked or lead: layers over a boundary, replicas from stage to stage,
 * and on from those that are better than what they are neighbours of, as long as work is left. */
opipe_status opi_refine(opi_run *run, uint64_t work_most);

/* Was the point offered before? From now on it was. True too where nothing more can be noted. */
bool opi_run_saw(opi_run *run, const opi_point *point);

/* ---- infeasible.c ---- */

/* LIMIT: what is missing, and what would help. */
opipe_status opi_infeasible(opi_run *run);

/* ---- turns.c ---- */

opipe_status opi_run_turns(opi_run *run, opi_auto_turns *out_turns);

/* ---- answer.c ---- */

opipe_status opi_run_answer(opi_run *run, opi_auto_answer **out_answer);

#endif /* OPI_AUTO_RUN_H */
