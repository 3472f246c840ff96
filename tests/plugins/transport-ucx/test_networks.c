/* SPDX-License-Identifier: Apache-2.0 */
/* transport-ucx between two processes in networks of their own, joined by one link: they are on two
 * machines to each other, so everything goes by UCX, without an option. Bound to the loopback they
 * are refused. Needs the right to make networks, and `ip`. ctest: timeout=60
 */
#include <sched.h>

#include "tests/plugins/transport-shm/play.h"

/* A number from a pipe; false: its other end is gone. */
static bool hear(int fd, pid_t *out) {
  return read(fd, out, sizeof *out) == (ssize_t)sizeof *out;
}

static bool tell(int fd, pid_t value) {
  return write(fd, &value, sizeof value) == (ssize_t)sizeof value;
}

static bool shell(const char *words) {
  return system(words) == 0;
}

typedef struct machine {
  pid_t pid;
  int to, from; /* pipes */
} machine;

/* Until both ends of the link are up: before, UCX sees no interface. */
static bool link_is_up(const char *name) {
  char path[64];
  (void)snprintf(path, sizeof path, "/sys/class/net/%s/operstate", name);
  for (int i = 0; i < 3000; ++i) {
    char word[8] = "";
    FILE *file = fopen(path, "re");
    const bool is_read = file != NULL && fgets(word, sizeof word, file) != NULL;
    if (file != NULL)
      (void)fclose(file);
    if (is_read && strncmp(word, "up", 2) == 0)
      return true;
    (void)usleep(1000);
  }
  return false;
}

/* In its own network, whose devices UCX looks up below /sys: says so, waits for its link, and
 * plays. */
static int be_machine(uint32_t rank, note *notes, int from, int to, bool by_link) {
  char words[256], name[16];
  pid_t go = 0;
  (void)snprintf(name, sizeof name, "opipe%u", rank);
  (void)snprintf(words, sizeof words,
                 "mount --make-rprivate / && mount -t sysfs none /sys && ip link set lo up && ip "
                 "addr add 10.77.0.%u/24 dev %s && ip link set %s up",
                 rank + 1, name, name);
  if (unshare(CLONE_NEWNET | CLONE_NEWNS) != 0 || !tell(to, getpid()) || !hear(from, &go) ||
      !shell(words) || !link_is_up(name))
    return 77;
  if (by_link)
    (void)setenv("UCX_NET_DEVICES", name, 1);
  pair_transport = "ucx";
  return -play(rank, notes, MESSAGES) & 0x7f;
}

static machine start_machine(uint32_t rank, note *notes, bool by_link) {
  machine m = {.pid = -1};
  int down[2], up[2];
  if (pipe(down) != 0 || pipe(up) != 0)
    return m;
  m.pid = fork();
  if (m.pid == 0) {
    (void)alarm(20); /* never a hang */
    (void)close(up[0]);
    (void)close(down[1]);
    _exit(be_machine(rank, notes, down[0], up[1], by_link));
  }
  (void)close(up[1]);
  (void)close(down[0]);
  m.to = down[1];
  m.from = up[0];
  return m;
}

/* Both statuses; 77: networks cannot be made. In a process of its own, which has a network, too. */
static int join_machines(bool by_link) {
  char words[256];
  note *notes = new_board();
  machine m[2];
  pid_t pids[2] = {0, 0};
  if (unshare(CLONE_NEWNET) != 0)
    return 77;
  for (uint32_t r = 0; r < 2; ++r)
    m[r] = start_machine(r, notes, by_link);
  bool there = hear(m[0].from, &pids[0]) && hear(m[1].from, &pids[1]);
  (void)snprintf(words, sizeof words,
                 "ip link add dev opipe0 type veth peer name opipe1 && ip link set opipe0 netns %d "
                 "&& ip link set opipe1 netns %d",
                 (int)pids[0], (int)pids[1]);
  there = there && shell(words);
  for (int r = 0; r < 2; ++r) {
    there = there && tell(m[r].to, 1);
    (void)close(m[r].to);
  }
  const int a = status_of(m[0].pid), b = status_of(m[1].pid);
  return there ? (a != 0 ? a : b) : 77;
}

static int in_a_process(bool by_link) {
  const pid_t pid = fork();
  if (pid == 0)
    _exit(join_machines(by_link));
  return status_of(pid);
}

static void test_messages_and_sums_over_a_link(void) {
  if (!ucx_is_there())
    OPI_SKIP("UCX (libucp.so.0) is not there");
  const int status = in_a_process(true);
  if (status == 77)
    OPI_SKIP("networks cannot be made here");
  OPI_ASSERT_INT(status, 0);
}

static void test_the_loopback_joins_no_machines(void) {
  if (!ucx_is_there())
    OPI_SKIP("UCX (libucp.so.0) is not there");
  const int status = in_a_process(false);
  if (status == 77)
    OPI_SKIP("networks cannot be made here");
  OPI_ASSERT_INT(status, -OPIPE_E_UNSUPPORTED & 0x7f);
}

OPI_TEST_MAIN("transport-ucx between networks", OPI_TEST(test_messages_and_sums_over_a_link),
              OPI_TEST(test_the_loopback_joins_no_machines))
