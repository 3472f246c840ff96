/* SPDX-License-Identifier: Apache-2.0 */
/* Cores that control groups leave: version 1, version 2, nested, and without a limit. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "loader/base/cores.h"
#include "tests/support/support.h"

/* Writes a file below the root, with the folders above it. */
static void put(const char *root, const char *name, const char *text) {
  char path[1024];
  (void)snprintf(path, sizeof path, "%s/%s", root, name);
  for (char *at = path + strlen(root) + 1; (at = strchr(at, '/')) != NULL; ++at) {
    *at = '\0';
    (void)mkdir(path, 0777);
    *at = '/';
  }
  FILE *file = fopen(path, "w");
  OPI_ASSERT_FATAL(file != NULL);
  (void)fputs(text, file);
  (void)fclose(file);
}

static uint32_t own_cores(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? (uint32_t)CPU_COUNT(&set) : 1;
}

static void test_groups(void) {
  const uint32_t all = own_cores();
  char root[512];
  (void)snprintf(root, sizeof root, "%s", opi_test_tmp("cores"));
  (void)mkdir(root, 0777);
  OPI_ASSERT(opi_cores(root) == all); /* there are none */
  /* Version 2: the limit of a group counts for those inside it. */
  put(root, "proc/self/cgroup", "0::/slice/job\n");
  put(root, "sys/fs/cgroup/slice/job/cpu.max", "max 100000\n");
  OPI_ASSERT(opi_cores(root) == all);
  put(root, "sys/fs/cgroup/slice/cpu.max", "50000 100000\n");
  OPI_ASSERT(opi_cores(root) == 1);
  put(root, "sys/fs/cgroup/slice/cpu.max", "150000 100000\n"); /* rounded up */
  OPI_ASSERT(opi_cores(root) == (all < 2 ? all : 2));
  put(root, "sys/fs/cgroup/slice/cpu.max", "nonsense\n");
  OPI_ASSERT(opi_cores(root) == all);
  /* Version 1: the controller's own tree. */
  put(root, "proc/self/cgroup", "4:memory:/other\n3:cpu,cpuacct:/box\n0::/\n");
  put(root, "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "-1\n");
  put(root, "sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n");
  OPI_ASSERT(opi_cores(root) == all);
  put(root, "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "100000\n");
  OPI_ASSERT(opi_cores(root) == 1);
  OPI_ASSERT(opi_cores_mask() == opi_cores_mask());
}

OPI_TEST_MAIN("cores", OPI_TEST(test_groups))
