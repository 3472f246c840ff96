/* SPDX-License-Identifier: Apache-2.0 */
/* The smallest cap that some cut of a model fits, found by cutting it in every way, and the
 * planner's result under that cap.
 *
 * A case is a model, a schedule, ranks; its cuts are those between at most 16 of its blocks, each
 * given by tensor names as a user gives it. The devices are described, so that any machine finds
 * the same. The smallest caps are kept in tests/data/caps/smallest.txt, which test_caps_full writes
 * anew where OPIPE_CAPS is set to a file's path (ten minutes).
 */
#ifndef TESTS_PARTITION_CAPS_H
#define TESTS_PARTITION_CAPS_H

#include "tests/runtime/train/kit.h"

enum { CAPS_POSITIONS = 17, CAPS_RANKS = 4 };

/* Ends of blocks: name pattern with a number that grows evenly. */
typedef struct caps_model {
  const char *name, *path; /* below the source */
  const char *pattern;     /* "add_%d" */
  int32_t first, step;
  uint32_t n; /* positions */
  int64_t tokens;
} caps_model;

typedef struct caps_case {
  const caps_model *model;
  const char *schedule;
  uint32_t n_ranks, n_stages;
  uint32_t positions; /* which of the model's: bits */
  bool training;      /* AdamW; else inference */
  bool here;          /* on backend cpu, and not described: no file has its numbers */
} caps_case;

extern const caps_case caps_cases[];
extern const size_t caps_n_cases;

/* "model schedule ranks/stages of positions, training" */
void caps_name(const caps_case *c, char *text, size_t room);
/* By trying all cuts. 0: it failed, and said why. */
uint64_t caps_smallest(const caps_case *c);
/* The number of the file; 0: there is none. */
uint64_t caps_recorded(const caps_case *c);
/* Fails the running test unless plans are made under 1.02 times the cap and larger ones, a hopeless
 * cap is refused with a cap that is at most as large, and a plan is made under that one; the same
 * of hopeless caps that are not alike. */
void caps_check(const caps_case *c, uint64_t smallest);

#endif /* TESTS_PARTITION_CAPS_H */
