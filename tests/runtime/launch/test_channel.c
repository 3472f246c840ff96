/* SPDX-License-Identifier: Apache-2.0 */
/* Strangers at a job's listener, users of the same name, and a process without descriptors left. */
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "tests/runtime/launch/team_kit.h"

enum { NOBODY_UID = 65534 };

static void *open_and_meet(void *arg) {
  kit_member *m = arg;
  m->status = kit_open(m->kit, m->rank, &m->team, &m->err);
  if (m->status == OPIPE_OK)
    m->status = kit_gather(m->team, "here", UINT64_MAX, &m->err);
  opi_team_close(m->team);
  m->team = NULL;
  return NULL;
}

static int connect_as_stranger(const char *job) {
  char address[OPI_ADDRESS_ROOM];
  int fd = -1;
  opi_carrier_unix.address(job, address);
  for (uint32_t i = 0; i < 500; ++i) {
    if (opi_carrier_unix.connect(address, false, &fd, NULL) == OPIPE_OK)
      return fd;
    kit_sleep_ms(10);
  }
  return -1;
}

/* True: the other end closes the connection within seconds. */
static bool is_closed(int fd) {
  char bytes[4096];
  for (uint32_t i = 0; i < 500; ++i) {
    const ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno == ECONNRESET))
      return true;
    kit_sleep_ms(10);
  }
  return false;
}

/* Bytes that are no frames, half of one, one of 65,537 bytes, another version, a message of
 * somebody who has not said who it is: the stranger's connection ends, the job goes on. */
static void test_strangers_do_not_disturb_a_job(void) {
  kit_team k = {.size = 2, .job = kit_job("strangers")};
  kit_member a = {.rank = 0, .kit = &k}, b = {.rank = 1, .kit = &k};
  opipe_error err = OPIPE_ERROR_INIT;
  uint8_t frame[OPI_FRAME_MOST], hello[sizeof(opi_hello)] = {0};
  uint64_t at = 0;
  int fds[6];
  OPI_ASSERT_OK_FATAL(opi_thread_start(&a.thread, "a", open_and_meet, &a, &err), &err);
  for (uint32_t i = 0; i < OPI_COUNT(fds); ++i)
    OPI_ASSERT_FATAL((fds[i] = connect_as_stranger(k.job)) >= 0);
  const uint32_t n = opi_frame_write(frame, OPI_FRAME_HELLO, 0, hello, sizeof hello, &at);
  OPI_ASSERT(send(fds[0], "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL) == 18);
  OPI_ASSERT(send(fds[1], frame, n / 2, MSG_NOSIGNAL) == n / 2);
  (void)shutdown(fds[1], SHUT_WR);
  frame[2] = 9;
  OPI_ASSERT(send(fds[2], frame, n, MSG_NOSIGNAL) == (ssize_t)n);
  frame[2] = OPI_CHANNEL_VERSION;
  frame[3] = OPI_FRAME_GATHER;
  OPI_ASSERT(send(fds[3], frame, n, MSG_NOSIGNAL) == (ssize_t)n);
  const uint32_t too_long = OPI_FRAME_BODY + 1;
  memcpy(frame + 12, &too_long, sizeof too_long);
  OPI_ASSERT(send(fds[4], frame, n, MSG_NOSIGNAL) == (ssize_t)n);
  (void)close(fds[5]);
  for (uint32_t i = 0; i < 5; ++i) {
    OPI_ASSERT(is_closed(fds[i]));
    (void)close(fds[i]);
  }
  OPI_ASSERT_OK_FATAL(opi_thread_start(&b.thread, "b", open_and_meet, &b, &err), &err);
  opi_thread_join(&a.thread);
  opi_thread_join(&b.thread);
  OPI_ASSERT_OK(a.status, &a.err);
  OPI_ASSERT_OK(b.status, &b.err);
}

/* ---- another user ---- */

/* A child of another user has the name until `end` is closed. */
static pid_t take_name(const char *job, int end, int ready) {
  char address[OPI_ADDRESS_ROOM], byte = 0;
  int fd = -1;
  opi_carrier_unix.address(job, address); /* of this user */
  const pid_t child = fork();
  if (child != 0)
    return child;
  const bool is_other = setgid(NOBODY_UID) == 0 && setuid(NOBODY_UID) == 0;
  const bool has = is_other && opi_carrier_unix.listen(address, false, &fd, NULL) == OPIPE_OK;
  (void)write(ready, has ? "1" : "0", 1);
  (void)read(end, &byte, 1);
  _exit(0);
}

static void test_a_name_taken_by_another_user_is_refused(void) {
  kit_team k = {.size = 2, .job = kit_job("foreign"), .timeout_ns = 5 * OPI_SECOND};
  int ends[2], ready[2];
  char byte = 0, users[64];
  opi_team *t = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  if (geteuid() != 0)
    OPI_SKIP("only root can be another user");
  OPI_ASSERT_FATAL(pipe(ends) == 0 && pipe(ready) == 0);
  (void)fcntl(ends[1], F_SETFD, FD_CLOEXEC);
  const pid_t child = take_name(k.job, ends[0], ready[1]);
  OPI_ASSERT_FATAL(child > 0 && read(ready[0], &byte, 1) == 1 && byte == '1');
  (void)snprintf(users, sizeof users, "of user %d; this is process %d of user 0", NOBODY_UID,
                 (int)getpid());
  OPI_ASSERT_ERROR(kit_open(&k, 0, &t, &err), OPIPE_E_STATE, &err, users);
  OPI_ASSERT_ERROR(kit_open(&k, 1, &t, &err), OPIPE_E_INVALID, &err,
                   "at the other end is of user 65534, this one of user 0");
  (void)kill(child, SIGKILL);
  OPI_ASSERT(waitpid(child, NULL, 0) == child);
  for (uint32_t i = 0; i < 2; ++i) {
    (void)close(ends[i]);
    (void)close(ready[i]);
  }
}

/* ---- descriptors ---- */

enum { LEFT = 20, MANY = 24 };

static void *join_many(void *arg) {
  kit_member *m = arg;
  m->status = kit_open(m->kit, m->rank, &m->team, &m->err);
  opi_team_close(m->team);
  return NULL;
}

static uint32_t n_descriptors(void) {
  uint32_t n = 0;
  for (int fd = 0; fd < 4096; ++fd)
    n += fcntl(fd, F_GETFD) >= 0;
  return n;
}

/* In a child: 20 descriptors are left, and more processes than that want to join. */
static void run_out(void *ctx) {
  kit_team *k = ctx;
  struct rlimit most;
  opipe_error err = OPIPE_ERROR_INIT;
  const uint32_t before = n_descriptors();
  (void)getrlimit(RLIMIT_NOFILE, &most);
  most.rlim_cur = before + LEFT;
  (void)setrlimit(RLIMIT_NOFILE, &most);
  for (uint32_t r = 0; r < k->size; ++r) {
    k->members[r] = (kit_member){.rank = r, .kit = k, .err = OPIPE_ERROR_INIT};
    if (opi_thread_start(&k->members[r].thread, "rank", join_many, &k->members[r], &err) < 0)
      _exit(1);
  }
  bool said = false, all = true;
  for (uint32_t r = 0; r < k->size; ++r) {
    opi_thread_join(&k->members[r].thread);
    const kit_member *m = &k->members[r];
    all = all && m->status < 0 && m->err.message[0] != '\0';
    said = said || strstr(m->err.message, "no file descriptor is left") != NULL;
  }
  (void)fprintf(stderr, "all %d said %d leaked %u\n", all, said, n_descriptors() - before);
}

#include "tests/support/apart.h"

static void test_few_descriptors_are_said(void) {
  static kit_team k;
  char text[512];
  k = (kit_team){.size = MANY, .job = kit_job("descriptors"), .timeout_ns = 2 * OPI_SECOND};
  OPI_ASSERT(opi_test_apart(run_out, &k, text, sizeof text));
  OPI_ASSERT_STR(text, "all 1 said 1 leaked 0\n");
}

/* Nothing survives an exec, and nothing is left when a team is closed. */
static opipe_status check_flags(kit_member *m) {
  opipe_status status = kit_gather(m->team, "open", UINT64_MAX, &m->err);
  for (int fd = 3; fd < 256 && m->rank == 0; ++fd) {
    const int flags = fcntl(fd, F_GETFD);
    char path[64], target[64] = "";
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (flags < 0 || readlink(path, target, sizeof target - 1) < 0)
      continue;
    const bool ours = strncmp(target, "socket:", 7) == 0 || strstr(target, "eventfd") != NULL ||
                      strstr(target, "pidfd") != NULL;
    if (ours && (flags & FD_CLOEXEC) == 0)
      status = opi_fail(&m->err, OPIPE_E_INTERNAL, "%s survives exec", target);
  }
  return status == OPIPE_OK ? kit_gather(m->team, "looked", UINT64_MAX, &m->err) : status;
}

static void test_descriptors_are_the_process_own(void) {
  const uint32_t before = n_descriptors();
  kit_team k = {.size = 4, .job = kit_job("flags"), .run = check_flags};
  kit_run(&k);
  for (uint32_t r = 0; r < k.size; ++r)
    OPI_ASSERT_OK(k.members[r].status, &k.members[r].err);
  OPI_ASSERT_INT(n_descriptors(), before);
}

OPI_TEST_MAIN("channel", OPI_TEST(test_strangers_do_not_disturb_a_job),
              OPI_TEST(test_a_name_taken_by_another_user_is_refused),
              OPI_TEST(test_few_descriptors_are_said),
              OPI_TEST(test_descriptors_are_the_process_own))
