/* SPDX-License-Identifier: Apache-2.0 */
/* Room for memory: the process's control groups, of version 1 and 2, with all that they lie in, and
 * the machine. Memory that the kernel gives back by itself (clean pages of files) is room.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "machine.h"

enum { PATH_ROOM = 1024, LINE_ROOM = 2048, GROUP_ROOM = 400 };

/* The number in a file; UINT64_MAX: "max", or there is none. */
static uint64_t number_in(const char *folder, const char *name) {
  char path[PATH_ROOM];
  uint64_t n = UINT64_MAX;
  if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
    return UINT64_MAX;
  FILE *file = fopen(path, "re");
  if (file == NULL)
    return UINT64_MAX;
  if (fscanf(file, "%" SCNu64, &n) != 1)
    n = UINT64_MAX;
  (void)fclose(file);
  return n;
}

/* The number behind a word of a file of "word number" lines; 0: it is not there. */
static uint64_t number_of(const char *path, const char *word) {
  char line[LINE_ROOM];
  uint64_t n = 0;
  const size_t length = strlen(word);
  FILE *file = fopen(path, "re");
  while (file != NULL && fgets(line, (int)sizeof line, file) != NULL) {
    if (strncmp(line, word, length) == 0) {
      n = strtoull(line + length, NULL, 10);
      break;
    }
  }
  if (file != NULL)
    (void)fclose(file);
  return n;
}

static void narrow(machine_room *room, uint64_t limit, uint64_t used, const char *what) {
  const uint64_t left = used < limit ? limit - used : 0;
  if (limit == UINT64_MAX || left >= room->left)
    return;
  room->limit = limit;
  room->left = left;
  (void)snprintf(room->what, sizeof room->what, "%s", what);
}

/* One group. A version 1 limit that is no limit is huge, and does no harm. */
static void ask_group(machine_room *room, const char *folder, const char *group, bool second) {
  char stat[PATH_ROOM], what[160];
  const uint64_t limit = number_in(folder, second ? "memory.max" : "memory.limit_in_bytes");
  const uint64_t used = number_in(folder, second ? "memory.current" : "memory.usage_in_bytes");
  if (limit == UINT64_MAX || used == UINT64_MAX ||
      snprintf(stat, sizeof stat, "%s/memory.stat", folder) >= (int)sizeof stat)
    return;
  const uint64_t clean = number_of(stat, second ? "inactive_file " : "total_inactive_file ");
  (void)snprintf(what, sizeof what, "the control group '%.100s'", group);
  narrow(room, limit, used > clean ? used - clean : 0, what);
}

/* A group and all that it lies in, up to the root that is visible here. */
static void ask_groups(machine_room *room, const char *root, char *group, bool second) {
  const char *tree = second ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
  char folder[PATH_ROOM];
  for (;;) {
    if (snprintf(folder, sizeof folder, "%s%s%s", root, tree, group) < (int)sizeof folder)
      ask_group(room, folder, group[0] == '\0' ? "/" : group, second);
    char *last = strrchr(group, '/');
    if (last == NULL)
      return;
    *last = '\0';
  }
}

/* A line of /proc/self/cgroup: "N:CONTROLLERS:PATH"; version 2 has no controllers. */
static void ask_line(machine_room *room, const char *root, const char *line) {
  char group[GROUP_ROOM];
  const char *controllers = strchr(line, ':');
  const char *path = controllers == NULL ? NULL : strchr(controllers + 1, ':');
  if (path == NULL)
    return;
  const bool second = path == controllers + 1;
  const char *memory = strstr(controllers, "memory");
  const bool first = memory != NULL && memory < path && (memory[-1] == ':' || memory[-1] == ',') &&
                     (memory[6] == ':' || memory[6] == ',');
  const size_t length = strcspn(path + 1, "\n");
  if ((!first && !second) || length >= sizeof group)
    return;
  memcpy(group, path + 1, length);
  group[length] = '\0';
  if (strcmp(group, "/") == 0)
    group[0] = '\0';
  ask_groups(room, root, group, second);
}

void machine_room_find(const char *root, machine_room *out_room) {
  char path[PATH_ROOM], line[LINE_ROOM];
  *out_room = (machine_room){.limit = UINT64_MAX, .left = UINT64_MAX};
  (void)snprintf(path, sizeof path, "%.900s/proc/self/cgroup", root);
  FILE *file = fopen(path, "re");
  while (file != NULL && fgets(line, (int)sizeof line, file) != NULL)
    ask_line(out_room, root, line);
  if (file != NULL)
    (void)fclose(file);
  (void)snprintf(path, sizeof path, "%.900s/proc/meminfo", root);
  const uint64_t total = number_of(path, "MemTotal:") * 1024;
  const uint64_t available =
      (number_of(path, "MemAvailable:") + number_of(path, "SwapFree:")) * 1024;
  if (total != 0 && available != 0)
    narrow(out_room, total, available < total ? total - available : 0, "the machine");
}
