/* SPDX-License-Identifier: Apache-2.0 */
/* Code that ends the process, tried in a child. */
#ifndef OPIPE_TEST_APART_H_
#define OPIPE_TEST_APART_H_

#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/support.h"

/* fn(ctx) in a child, which has one thread; its words on stderr are `text` [room]. True: it came to
 * its end. */
static inline bool opi_test_apart(void (*fn)(void *ctx), void *ctx, char *text, size_t room) {
  int ends[2], status = 0;
  size_t n = 0;
  OPI_ASSERT_FATAL(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    (void)dup2(ends[1], STDERR_FILENO);
    fn(ctx);
    _exit(0);
  }
  (void)close(ends[1]);
  OPI_ASSERT_FATAL(child > 0);
  for (ssize_t got = 1; got > 0 && n + 1 < room; n += got > 0 ? (size_t)got : 0)
    got = read(ends[0], text + n, room - 1 - n);
  text[n] = '\0';
  (void)close(ends[0]);
  OPI_ASSERT(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

#endif /* OPIPE_TEST_APART_H_ */
