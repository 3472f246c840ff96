/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory this process can ever have: the machine's, or less where a control group (v1, v2)
 * limits it. Never what is free now, so that a plan for the same machine is always the same.
 *
 *   /proc/self/mountinfo   where hierarchies are mounted, and which part of them (a container's)
 *   /proc/self/cgroup      the process's group in each
 *   GROUP/memory.max (v2), GROUP/memory.limit_in_bytes (v1), and those of the groups above
 */
#ifndef CPU_TOTAL_MEMORY_H
#define CPU_TOTAL_MEMORY_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CPU_LINE_ROOM = 4096, CPU_PATH_ROOM = 2048 };

/* Opens `path` below `root` ("" but in tests). NULL: there is none. */
static inline FILE *cpu_open_below(const char *root, const char *path) {
  char whole[2 * CPU_PATH_ROOM];
  const int n = snprintf(whole, sizeof whole, "%s%s", root, path);
  return n > 0 && (size_t)n < sizeof whole ? fopen(whole, "re") : NULL;
}

/* Is `word` one of a list "a,b,c"? */
static inline bool cpu_lists_word(const char *list, const char *word) {
  const size_t n = strlen(word);
  for (const char *at = list; at != NULL && *at != '\0';) {
    const size_t length = strcspn(at, ",\n");
    if (length == n && memcmp(at, word, n) == 0)
      return true;
    at += length + (at[length] == '\0' ? 0 : 1);
  }
  return false;
}

/* The group of the process in the hierarchy of v2, or in that of v1 with memory. */
static inline bool cpu_own_group(const char *root, bool v2, char out_group[CPU_PATH_ROOM]) {
  char line[CPU_LINE_ROOM];
  FILE *file = cpu_open_below(root, "/proc/self/cgroup");
  bool found = false;
  while (file != NULL && !found && fgets(line, (int)sizeof line, file) != NULL) {
    char *controllers = strchr(line, ':'); /* "4:memory:/group", "0::/group" */
    char *group = controllers == NULL ? NULL : strchr(controllers + 1, ':');
    if (group == NULL)
      continue;
    *group++ = '\0';
    group[strcspn(group, "\n")] = '\0';
    found = v2 ? strcmp(line, "0:") == 0 : cpu_lists_word(controllers + 1, "memory");
    if (found)
      (void)snprintf(out_group, CPU_PATH_ROOM, "%s", group);
  }
  if (file != NULL)
    (void)fclose(file);
  return found;
}

/* The smallest limit of the group `folder` and those above, as far as `top`, which is a beginning
 * of it; UINT64_MAX: none. folder is shortened. */
static inline uint64_t cpu_limit_up(const char *root, bool v2, size_t top, char *folder) {
  uint64_t least = UINT64_MAX;
  for (bool more = true; more;) {
    char path[CPU_PATH_ROOM + 32], text[64] = "", *end = text;
    (void)snprintf(path, sizeof path, "%s/%s", folder, v2 ? "memory.max" : "memory.limit_in_bytes");
    FILE *file = cpu_open_below(root, path);
    if (file != NULL) {
      const bool read = fgets(text, (int)sizeof text, file) != NULL;
      const uint64_t limit = read ? strtoull(text, &end, 10) : 0; /* "max": no number */
      least = end != text && limit < least ? limit : least;
      (void)fclose(file);
    }
    more = folder[top] != '\0';
    if (more)
      *strrchr(folder + top, '/') = '\0';
  }
  return least;
}

/* The limit by one line of mountinfo: "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup
 * rw,memory". */
static inline uint64_t cpu_limit_of_mount(const char *root, char *line) {
  char group[CPU_PATH_ROOM], folder[CPU_PATH_ROOM];
  char *words[5] = {NULL}, *save = NULL, *rest = strstr(line, " - ");
  if (rest == NULL)
    return UINT64_MAX;
  *rest = '\0';
  rest += 3;
  const bool v2 = strncmp(rest, "cgroup2 ", 8) == 0, v1 = strncmp(rest, "cgroup ", 7) == 0;
  const char *options = strrchr(rest, ' ');
  if ((!v1 && !v2) || (v1 && !cpu_lists_word(options + 1, "memory")))
    return UINT64_MAX;
  char *at = line;
  for (size_t i = 0; i < 5; ++i, at = NULL)
    words[i] = strtok_r(at, " ", &save);
  if (words[4] == NULL || !cpu_own_group(root, v2, group))
    return UINT64_MAX;
  const char *part = words[3], *below = group; /* of the hierarchy that is mounted */
  const size_t n = strcmp(part, "/") == 0 ? 0 : strlen(part);
  if (strncmp(group, part, n) == 0 && (group[n] == '/' || group[n] == '\0'))
    below += n;
  else
    below = ""; /* told from outside of what is seen here: the part itself */
  if (strcmp(below, "/") == 0 || strstr(below, "/..") != NULL || below[0] != '/')
    below = "";
  const int length = snprintf(folder, sizeof folder, "%s%s", words[4], below);
  return length < 0 || (size_t)length >= sizeof folder
             ? UINT64_MAX
             : cpu_limit_up(root, v2, strlen(words[4]), folder);
}

/* The smallest limit of control groups, in bytes; UINT64_MAX: none. */
static inline uint64_t cpu_group_limit(const char *root) {
  char line[CPU_LINE_ROOM];
  uint64_t least = UINT64_MAX;
  FILE *file = cpu_open_below(root, "/proc/self/mountinfo");
  while (file != NULL && fgets(line, (int)sizeof line, file) != NULL) {
    const uint64_t limit = cpu_limit_of_mount(root, line);
    least = limit < least ? limit : least;
  }
  if (file != NULL)
    (void)fclose(file);
  return least;
}

/* 0: not known. */
static inline uint64_t cpu_total_memory(const char *root) {
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  const uint64_t machine = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
  const uint64_t limit = cpu_group_limit(root);
  return machine == 0 ? (limit == UINT64_MAX ? 0 : limit) : limit < machine ? limit : machine;
}

#endif /* CPU_TOTAL_MEMORY_H */
