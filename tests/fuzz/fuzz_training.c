/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes schedules through planner and executor: what is accepted trains, with the bits of the
 * plan's reference; see tests/runtime/train/random.h. Plugins are linked in.
 */
#include <unistd.h>

#include "tests/fuzz/must.h"
#include "tests/runtime/train/random.h"

extern const opipe_plugin *const opi_static_plugins[];

static random_count n;

__attribute__((destructor)) static void report(void) {
  random_report(stderr, &n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static random_trainer *trainer;
  if (trainer == NULL)
    trainer = random_trainer_open(opi_test_tmpdir(), opi_static_plugins);
  const char *why = random_train(trainer, data, size, &n);
  must(why == NULL, why);
  return 0;
}
