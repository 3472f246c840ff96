/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that a process can ever have: limits of control groups, v1 and v2, of the process's
 * group and those above, in containers too, as files that stand in for the kernel's say.
 */
#include "plugins/backend-cpu/total_memory.h"

#include <sys/stat.h>

#include "tests/support/support.h"

static const char *root;

static void make_folders(char *path) {
  for (char *at = strchr(path + 1, '/'); at != NULL; at = strchr(at + 1, '/')) {
    *at = '\0';
    (void)mkdir(path, 0777);
    *at = '/';
  }
}

static void put(const char *path, const char *text) {
  char whole[1024];
  (void)snprintf(whole, sizeof whole, "%s%s", root, path);
  make_folders(whole);
  OPI_ASSERT_FATAL(opi_test_write_file(whole, text, strlen(text)));
}

/* A machine's files: each case has a folder of its own. */
static void begin(const char *name, const char *mounts, const char *groups) {
  root = opi_test_tmp(name);
  put("/proc/self/mountinfo", mounts);
  put("/proc/self/cgroup", groups);
}

#define V2 "24 1 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
#define V1 "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
#define OTHER "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"

static void test_version_2(void) {
  begin("v2", "21 1 0:3 / /proc rw - proc proc rw\n" V2, "0::/user.slice/job/step\n");
  OPI_ASSERT(cpu_group_limit(root) == UINT64_MAX); /* no file: no limit */
  put("/sys/fs/cgroup/user.slice/job/step/memory.max", "max\n");
  OPI_ASSERT(cpu_group_limit(root) == UINT64_MAX);
  put("/sys/fs/cgroup/user.slice/memory.max", "3221225472\n"); /* of a group above */
  OPI_ASSERT_INT(cpu_group_limit(root), 3221225472);
  put("/sys/fs/cgroup/user.slice/job/memory.max", "1073741824\n");
  OPI_ASSERT_INT(cpu_group_limit(root), 1073741824);
  put("/sys/fs/cgroup/user.slice/job/step/memory.max", "2147483648\n");
  OPI_ASSERT_INT(cpu_group_limit(root), 1073741824);
  put("/sys/fs/cgroup/user.slice/other/memory.max", "4096\n"); /* of another group */
  OPI_ASSERT_INT(cpu_group_limit(root), 1073741824);
  OPI_ASSERT_INT(cpu_total_memory(root), 1073741824);
}

static void test_version_1(void) {
  begin("v1", OTHER V1, "5:devices:/\n4:cpu,memory:/docker/ab12\n3:cpu:/elsewhere\n0::/\n");
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"); /* none */
  OPI_ASSERT_INT(cpu_group_limit(root), 9223372036854771712);
  OPI_ASSERT(cpu_total_memory(root) ==
             (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE));
  put("/sys/fs/cgroup/memory/docker/ab12/memory.limit_in_bytes", "536870912\n");
  OPI_ASSERT_INT(cpu_group_limit(root), 536870912);
  put("/sys/fs/cgroup/memory/elsewhere/memory.limit_in_bytes", "4096\n");
  OPI_ASSERT_INT(cpu_total_memory(root), 536870912);
}

/* A container sees its own group as the whole hierarchy, by a name that others may have given. */
static void test_containers(void) {
  begin("inside", "35 31 0:32 /docker/ab12 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
        "4:memory:/docker/ab12\n");
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "268435456\n");
  OPI_ASSERT_INT(cpu_group_limit(root), 268435456);
  begin("below", "35 31 0:32 /docker/ab12 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
        "4:memory:/docker/ab12/job\n");
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "268435456\n");
  put("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "134217728\n");
  OPI_ASSERT_INT(cpu_group_limit(root), 134217728);
  begin("outside", "24 1 0:22 /a/b /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/c/d\n");
  put("/sys/fs/cgroup/memory.max", "67108864\n");
  OPI_ASSERT_INT(cpu_group_limit(root), 67108864);
  begin("above", V2, "0::/../d\n");
  put("/sys/fs/cgroup/memory.max", "33554432\n");
  OPI_ASSERT_INT(cpu_group_limit(root), 33554432);
}

static void test_neither(void) {
  begin("none", OTHER, "not a line\n");
  OPI_ASSERT(cpu_group_limit(root) == UINT64_MAX);
  OPI_ASSERT(cpu_group_limit(opi_test_tmp("nothing")) == UINT64_MAX);
  OPI_ASSERT(cpu_total_memory("") > 0);
}

OPI_TEST_MAIN("the memory that there can be", OPI_TEST(test_version_2), OPI_TEST(test_version_1),
              OPI_TEST(test_containers), OPI_TEST(test_neither))
