/* SPDX-License-Identifier: Apache-2.0 */
/* A search in progress. Private to this folder. */
#ifndef OPI_AUTO_RUN_H
#define OPI_AUTO_RUN_H

#include "partition/study/auto/space.h"

enum { OPI_ROUND = 32 };      /* candidates per round; the best is updated in between */
enum { OPI_KEPT_MOST = 30 };  /* best candidates kept; some turn out to be doubles */
enum { OPI_WORK_LEAST = 64 }; /* minimum operations charged for asking and lowering */
#define OPI_WORK_PRESET UINT64_C(24000000) /* scaled by the number of devices in units of: */
enum { OPI_DEVICES_PRESET = 512 };

typedef struct opi_candidate {
  opi_point point;
  opi_point *from; /* in the space; NULL: a neighbour of the best */
  opi_judged judged;
  double key; /* INFINITY: it does not fit, or could not be played */
  opipe_status status;
  opipe_error err;
} opi_candidate;

/* The best so far of each shape: number of stages, ranks, copies and samples. */
enum { OPI_LEADERS_MOST = 256 };
enum { OPI_SEEN_ROOM = 1 << 15 };

typedef struct opi_auto_run {
  opi_space *space;
  opi_candidate round[OPI_ROUND];
  uint32_t n_round;
  opi_candidate best[OPI_KEPT_MOST + 1]; /* best first */
  uint32_t n_best;
  opi_candidate leaders[OPI_LEADERS_MOST]; /* unordered */
  uint32_t n_leaders;
  uint64_t seen[OPI_SEEN_ROOM]; /* hashes of points that refine.c has offered or expanded */
  uint32_t n_seen;
  char why[OPI_LINE_ROOM]; /* the first error of a play */
  uint32_t n_neighbours;   /* candidates beyond those of the space */
  uint32_t n_bounded, n_simulated, n_refused, n_left;
  uint64_t work;
  double bound;
  uint32_t stopped;
} opi_auto_run;

/* ---- search.c ---- */

/* Puts a point into the round, unless its bound shows that it is no better. There must be room. */
bool opi_run_offer(opi_auto_run *run, const opi_point *point);
/* Judges the candidates of the round. */
opipe_status opi_run_round(opi_auto_run *run);

/* True if the two differ only in cut, devices and schedule. */
bool opi_points_alike(const opi_point *a, const opi_point *b);
/* True if they have the same number of stages, ranks, copies and samples. */
bool opi_leads_as(const opi_point *a, const opi_point *b);
/* A hash of what opi_points_alike compares, and of the schedule; never 0. */
uint64_t opi_point_kind(const opi_point *point);

/* ---- shortlist.c ---- */

/* Sorts the points in the order in which they are judged. */
opipe_status opi_run_sort(opi_auto_run *run);

/* ---- others.c ---- */

/* Ties: earlier candidates win. This bit marks later ones. */
#define OPI_LATER (UINT32_C(1) << 31)
/* Plays the best guess of each shape without a leader, for the sake of its neighbours, while work
 * is left. */
opipe_status opi_run_shapes(opi_auto_run *run, uint64_t work_most);
/* Plays the best guess of each other kind of plan (schedule, ranks, copies, rows...), so that the
 * runners-up show what their kinds can do, while work is left. */
opipe_status opi_run_kinds(opi_auto_run *run, uint64_t work_most);
/* Plays the leaders that are not far behind under other schedules that fit their layout. */
opipe_status opi_run_methods(opi_auto_run *run, uint64_t work_most);
/* Plays each ranked candidate with the cut of a better one of the same shape, while work is left.
 */
opipe_status opi_run_cuts(opi_auto_run *run, uint64_t work_most);

/* ---- crew.c ---- */

/* Plays the round's candidates on the question's threads. */
void opi_crew_judge(opi_auto_run *run);

/* ---- refine.c ---- */

/* Tries neighbours of all ranked and leading candidates (a layer across a boundary, a replica to
 * another stage), then of each improvement, while work is left. */
opipe_status opi_refine(opi_auto_run *run, uint64_t work_most);

/* True if the point was offered before, or if no more can be recorded; marks it as offered. */
bool opi_run_saw(opi_auto_run *run, const opi_point *point);

/* ---- infeasible.c ---- */

/* LIMIT: says what is missing and what would help. */
opipe_status opi_infeasible(opi_auto_run *run);

/* ---- turns.c ---- */

opipe_status opi_run_turns(opi_auto_run *run, opi_auto_turns *out_turns);

/* ---- answer.c ---- */

opipe_status opi_run_answer(opi_auto_run *run, opi_auto_answer **out_answer);

#endif /* OPI_AUTO_RUN_H */
