/* SPDX-License-Identifier: Apache-2.0 */
/* Random schedules through the whole of training: bytes choose an order, which becomes the text of
 * a schedule, a plan, a session. An order that its own replay says must come to an end is planned,
 * runs over the transport that the bytes choose, and has the bits of the plan's reference; one that
 * blocks is refused by the planner, which names the place. Used by a test and a fuzz target.
 */
#ifndef TESTS_TRAIN_RANDOM_H
#define TESTS_TRAIN_RANDOM_H

#include <stdio.h>

#include "tests/runtime/train/kit.h"

typedef struct random_trainer random_trainer;

typedef struct random_count {
  uint64_t tried, trained, refused; /* refused: as it should be */
  uint64_t sliced, replicated, parted, both, halves, buffered, buffered_refused; /* of the trained
                                          ones; both: parts of slices */
} random_count;

/* Writes the model into `folder`; `statics`: plugins linked in, NULL: those of the build. */
random_trainer *random_trainer_open(const char *folder, const opipe_plugin *const *statics);
void random_trainer_close(random_trainer *trainer);
/* NULL when all of it holds, else why not (static storage). */
const char *random_train(random_trainer *trainer, const uint8_t *data, size_t size,
                         random_count *count);
/* One line that says it all. */
void random_report(FILE *to, const random_count *count);
/* That many, from seeded bytes; what does not hold fails the running test. Prints the count. */
void random_train_many(uint64_t seed, uint32_t n_tries);

#endif /* TESTS_TRAIN_RANDOM_H */
