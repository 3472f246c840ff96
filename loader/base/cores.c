/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the mask of cores, and the limits of control groups of both versions. */
#include "loader/base/cores.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_ROOM = 1024, LINE_ROOM = 512 };

/* The first words of a file; false: it cannot be read. */
static int read_line(const char *path, char out[LINE_ROOM]) {
  FILE *file = fopen(path, "re");
  const int is_there = file != NULL && fgets(out, LINE_ROOM, file) != NULL;
  if (file != NULL)
    (void)fclose(file);
  return is_there;
}

/* Cores' worth of time, rounded up; 0: no limit. */
static uint32_t cores_of(long long quota_us, long long period_us) {
  if (quota_us <= 0 || period_us <= 0)
    return 0;
  const long long n = (quota_us + period_us - 1) / period_us;
  return n > 65535 ? 0 : (uint32_t)n;
}

/* One group's limit; 0: none. */
static uint32_t ask_group(const char *folder, int second) {
  char path[PATH_ROOM], line[LINE_ROOM], other[LINE_ROOM];
  char *end = NULL;
  if (snprintf(path, sizeof path, "%s/%s", folder, second ? "cpu.max" : "cpu.cfs_quota_us") >=
          (int)sizeof path ||
      !read_line(path, line))
    return 0;
  const long long quota = strtoll(line, &end, 10);
  if (second) /* "max 100000" has no number in front */
    return end == line ? 0 : cores_of(quota, strtoll(end, NULL, 10));
  if (snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder) >= (int)sizeof path ||
      !read_line(path, other))
    return 0;
  return cores_of(quota, strtoll(other, NULL, 10));
}

/* A group and all that it lies in. */
static uint32_t ask_groups(const char *root, const char *tree, char *group, int second,
                           uint32_t most) {
  char folder[PATH_ROOM];
  for (;;) {
    const int n = snprintf(folder, sizeof folder, "%s/sys/fs/cgroup%s%s", root, tree, group);
    const uint32_t limit = n < (int)sizeof folder ? ask_group(folder, second) : 0;
    most = limit != 0 && limit < most ? limit : most;
    char *last = strrchr(group, '/');
    if (last == NULL)
      return most;
    *last = '\0';
  }
}

/* A line of /proc/self/cgroup: "0::/path" (version 2), "1:cpu,cpuacct:/path" (version 1). */
static uint32_t ask_line(const char *root, char *line, uint32_t most) {
  char *controllers = strchr(line, ':'), *group = NULL;
  line[strcspn(line, "\n")] = '\0';
  if (controllers != NULL)
    group = strchr(controllers + 1, ':');
  if (group == NULL)
    return most;
  *group++ = '\0';
  ++controllers;
  if (controllers[0] == '\0')
    return ask_groups(root, "", group, 1, most);
  char *save = NULL;
  for (char *word = strtok_r(controllers, ",", &save); word != NULL;
       word = strtok_r(NULL, ",", &save)) {
    if (strcmp(word, "cpu") == 0)
      return ask_groups(root, "/cpu", group, 0, most);
  }
  return most;
}

uint32_t opi_cores(const char *root) {
  char path[PATH_ROOM], line[LINE_ROOM];
  cpu_set_t set;
  const int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  uint32_t most = n < 1 ? 1 : (uint32_t)n;
  if (snprintf(path, sizeof path, "%s/proc/self/cgroup", root) >= (int)sizeof path)
    return most;
  FILE *file = fopen(path, "re");
  while (file != NULL && fgets(line, (int)sizeof line, file) != NULL)
    most = ask_line(root, line, most);
  if (file != NULL)
    (void)fclose(file);
  return most;
}

uint64_t opi_cores_mask(void) {
  cpu_set_t set;
  uint64_t sum = UINT64_C(14695981039346656037); /* FNV-1a */
  if (sched_getaffinity(0, sizeof set, &set) != 0)
    return 0;
  for (size_t i = 0; i < sizeof set; ++i)
    sum = (sum ^ ((const unsigned char *)&set)[i]) * UINT64_C(1099511628211);
  return sum;
}
