/* SPDX-License-Identifier: Apache-2.0 */
/* The matrices of inference and training over transport-strict: bits of the plan's reference, and
 * nothing that the transport refuses. */
#ifndef TESTS_MATRIX_STRICT_H
#define TESTS_MATRIX_STRICT_H

#include "tests/matrix/cases.h"
#include "tests/plugins/transport-strict/loaded.h"

static const char *const STRICT[2] = {"strict", "strict:rule=stream"};

/* Counts since `before`: something travelled, nothing was refused. */
typedef struct strict_seen {
  uint64_t messages, sums, registered, refused;
} strict_seen;

static inline strict_seen strict_look(void) {
  const strict_counts *c = strict_loaded();
  if (c == NULL) {
    OPI_FAIL("transport-strict cannot be loaded");
    return (strict_seen){.messages = 0};
  }
  return (strict_seen){.messages = atomic_load(&c->messages),
                       .sums = atomic_load(&c->sums),
                       .registered = atomic_load(&c->registered),
                       .refused = atomic_load(&c->refused)};
}

static inline void strict_judge(const strict_seen *before, bool trains) {
  const strict_seen now = strict_look();
  OPI_ASSERT(now.messages > before->messages);
  OPI_ASSERT(now.registered > before->registered);
  OPI_ASSERT(!trains || now.sums > before->sums);
  OPI_ASSERT_INT(now.refused - before->refused, 0);
  (void)printf("through pipes: %llu messages, %llu sums; %llu buffers were registered\n",
               (unsigned long long)(now.messages - before->messages),
               (unsigned long long)(now.sums - before->sums),
               (unsigned long long)(now.registered - before->registered));
}

#endif /* TESTS_MATRIX_STRICT_H */
