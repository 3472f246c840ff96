/* SPDX-License-Identifier: Apache-2.0 */
/* Room for shared memory: limits of control groups of both versions, read from a doubled tree of
 * files, and met in a real group, where this user may make one.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "plugins/machine/machine.h"
#include "tests/support/support.h"

/* ---- a doubled tree ---- */

static char root[64];

static void put(const char *path, const char *text) {
  char whole[512];
  (void)snprintf(whole, sizeof whole, "%s%s", root, path);
  for (char *at = strchr(whole + strlen(root) + 1, '/'); at != NULL; at = strchr(at + 1, '/')) {
    *at = '\0';
    (void)mkdir(whole, 0700);
    *at = '/';
  }
  FILE *file = fopen(whole, "w");
  OPI_ASSERT_FATAL(file != NULL);
  (void)fputs(text, file);
  (void)fclose(file);
}

static void begin_tree(void) {
  (void)snprintf(root, sizeof root, "/tmp/opipe-room-XXXXXX");
  OPI_ASSERT_FATAL(mkdtemp(root) != NULL);
  put("/proc/meminfo",
      "MemTotal: 1000000 kB\nMemFree: 1 kB\nMemAvailable: 800000 kB\n"
      "SwapTotal: 0 kB\nSwapFree: 1000 kB\n");
}

static machine_room end_tree(void) {
  char command[128];
  machine_room room;
  machine_room_find(root, &room);
  (void)snprintf(command, sizeof command, "rm -rf %s", root);
  OPI_ASSERT_INT(system(command), 0);
  return room;
}

static void test_a_machine_without_groups(void) {
  begin_tree();
  const machine_room room = end_tree();
  OPI_ASSERT_INT((int64_t)room.limit, INT64_C(1000000) * 1024);
  OPI_ASSERT_INT((int64_t)room.left, INT64_C(801000) * 1024);
  OPI_ASSERT_STR(room.what, "the machine");
}

static void test_the_second_version(void) {
  begin_tree();
  put("/proc/self/cgroup", "0::/a/b\n");
  put("/sys/fs/cgroup/a/b/memory.max", "max\n");
  put("/sys/fs/cgroup/a/b/memory.current", "5000\n");
  put("/sys/fs/cgroup/a/memory.max", "100000\n"); /* the outer group is narrower */
  put("/sys/fs/cgroup/a/memory.current", "90000\n");
  put("/sys/fs/cgroup/a/memory.stat", "anon 100\nactive_file 7\ninactive_file 20000\n");
  const machine_room room = end_tree();
  OPI_ASSERT_INT((int64_t)room.limit, 100000);
  OPI_ASSERT_INT((int64_t)room.left, 30000); /* clean pages of files are room */
  OPI_ASSERT(strstr(room.what, "'/a'") != NULL);
}

static void test_the_first_version(void) {
  begin_tree();
  put("/proc/self/cgroup", "9:name=systemd:/x\n5:cpu,memory:/a/b\n3:cpuset:/c\n0::/z\n");
  put("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "60000\n");
  put("/sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "70000\n"); /* beyond it already */
  put("/sys/fs/cgroup/memory/a/b/memory.stat", "inactive_file 9\ntotal_inactive_file 4000\n");
  put("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
  put("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "70000\n");
  put("/sys/fs/cgroup/memory/a/memory.stat", "total_inactive_file 0\n");
  const machine_room room = end_tree();
  OPI_ASSERT_INT((int64_t)room.limit, 60000);
  OPI_ASSERT_INT((int64_t)room.left, 0);
  OPI_ASSERT(strstr(room.what, "'/a/b'") != NULL);
}

/* As containers show it: the group's path is that of the machine, its files lie at the root. */
static void test_a_group_whose_path_is_not_here(void) {
  begin_tree();
  put("/proc/self/cgroup", "4:memory:/docker/0123456789\n");
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "50000\n");
  put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "10000\n");
  put("/sys/fs/cgroup/memory/memory.stat", "");
  const machine_room room = end_tree();
  OPI_ASSERT_INT((int64_t)room.limit, 50000);
  OPI_ASSERT_INT((int64_t)room.left, 40000);
}

static void test_files_that_are_no_numbers(void) {
  begin_tree();
  put("/proc/self/cgroup", "nonsense\n::::\n0:\n4:memory\n4:memory:\n0::/a\n");
  put("/sys/fs/cgroup/a/memory.max", "\n");
  put("/sys/fs/cgroup/a/memory.current", "x\n");
  const machine_room room = end_tree();
  OPI_ASSERT_STR(room.what, "the machine");
}

/* ---- a real group ---- */

enum { LIMIT_BYTES = 64 << 20, PIECE_BYTES = 8 << 20, PIECES = 32, TOGETHER = 4 };

static bool write_file(const char *folder, const char *name, const char *text) {
  char path[700];
  (void)snprintf(path, sizeof path, "%s/%s", folder, name);
  const int fd = open(path, O_WRONLY | O_CLOEXEC);
  const bool good = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
  if (fd >= 0)
    (void)close(fd);
  return good;
}

/* A group of a small limit below this process's own: *out_folder; false: it may not be made. */
static bool make_group(char *out_folder, size_t room) {
  char line[400], limit[32];
  const char *group = NULL;
  bool second = false, made = false;
  FILE *file = fopen("/proc/self/cgroup", "re");
  (void)snprintf(limit, sizeof limit, "%d", LIMIT_BYTES);
  while (file != NULL && group == NULL && fgets(line, (int)sizeof line, file) != NULL) {
    line[strcspn(line, "\n")] = '\0';
    second = strncmp(line, "0::", 3) == 0;
    group = strstr(line, ":memory:");
    group = group != NULL ? group + strlen(":memory:") : second ? line + 3 : NULL;
  }
  if (file != NULL)
    (void)fclose(file);
  if (group == NULL)
    return false;
  (void)snprintf(out_folder, room, "/sys/fs/cgroup%s%s/opipe-test-%ld", second ? "" : "/memory",
                 strcmp(group, "/") == 0 ? "" : group, (long)getpid());
  if (mkdir(out_folder, 0700) != 0)
    return false;
  made = write_file(out_folder, second ? "memory.max" : "memory.limit_in_bytes", limit);
  if (!made)
    (void)rmdir(out_folder);
  return made;
}

/* Takes pieces until one is refused, and writes to all of them. 0: refused as it must be. alone:
 * nobody else is in the group. */
static int take_until_refused(const char *folder, bool alone) {
  char pid[32];
  void *pieces[PIECES];
  uint64_t n_bytes = 0;
  opipe_error err = OPIPE_ERROR_INIT;
  int fd = -1, n = 0;
  (void)snprintf(pid, sizeof pid, "%ld", (long)getpid());
  if (!write_file(folder, "cgroup.procs", pid))
    return 77;
  opipe_status status = OPIPE_OK;
  while (n < PIECES && status == OPIPE_OK) {
    status = machine_segment_make("memory of a test", PIECE_BYTES, &fd, &pieces[n], &n_bytes, &err);
    if (status == OPIPE_OK)
      memset(pieces[n++], 1, (size_t)n_bytes);
  }
  if (status != OPIPE_E_LIMIT || (alone && n < 4)) {
    (void)fprintf(stderr, "%d pieces, then status %d: %s\n", n, status, err.message);
    return 1;
  }
  for (int i = 0; i < n; ++i)
    memset(pieces[i], 2, PIECE_BYTES);
  return strstr(err.message, "of 8388608 bytes") != NULL &&
                 strstr(err.message, "of 67108864") != NULL
             ? 0
             : 2;
}

static void meet_limit(int n) {
  char folder[600];
  pid_t pids[TOGETHER];
  int status = 0;
  if (getenv("OPIPE_SANITIZE") != NULL && getenv("OPIPE_SANITIZE")[0] != '\0')
    OPI_SKIP("a sanitizer's shadow needs more than the group's limit");
  if (!make_group(folder, sizeof folder))
    OPI_SKIP("no control group with a limit may be made here");
  for (int i = 0; i < n; ++i) {
    pids[i] = fork();
    if (pids[i] == 0)
      _exit(take_until_refused(folder, n == 1));
  }
  for (int i = 0; i < n; ++i) {
    (void)waitpid(pids[i], &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 77) {
      OPI_ASSERT(WIFEXITED(status)); /* not killed for memory */
      OPI_ASSERT_INT(WEXITSTATUS(status), 0);
    }
  }
  for (int i = 0; i < 100 && rmdir(folder) != 0 && errno == EBUSY; ++i)
    (void)usleep(10000);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
    OPI_SKIP("no process may be put into a control group here");
}

static void test_a_real_group_refuses_and_kills_nobody(void) {
  meet_limit(1);
}

static void test_processes_that_allocate_at_once(void) {
  for (int round = 0; round < 2; ++round)
    meet_limit(TOGETHER);
}

/* More than there is, without any group. */
static void test_more_than_the_machine_has(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  void *data = NULL;
  uint64_t n_bytes = 0;
  int fd = -1;
  OPI_ASSERT_INT(
      machine_segment_make("memory of a test", UINT64_C(1) << 50, &fd, &data, &n_bytes, &err),
      OPIPE_E_LIMIT);
  OPI_ASSERT(strstr(err.message, "memory of a test of 1125899906842624 bytes: ") != NULL);
  OPI_ASSERT(strstr(err.message, " bytes left of ") != NULL);
  OPI_ASSERT_INT(machine_segment_make("memory of a test", UINT64_MAX, &fd, &data, &n_bytes, &err),
                 OPIPE_E_LIMIT);
  OPI_ASSERT_INT(machine_segment_make("memory of a test", 0, &fd, &data, &n_bytes, &err),
                 OPIPE_E_LIMIT);
}

OPI_TEST_MAIN("room for shared memory", OPI_TEST(test_a_machine_without_groups),
              OPI_TEST(test_the_second_version), OPI_TEST(test_the_first_version),
              OPI_TEST(test_a_group_whose_path_is_not_here),
              OPI_TEST(test_files_that_are_no_numbers),
              OPI_TEST(test_a_real_group_refuses_and_kills_nobody),
              OPI_TEST(test_processes_that_allocate_at_once),
              OPI_TEST(test_more_than_the_machine_has))
