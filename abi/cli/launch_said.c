/* SPDX-License-Identifier: Apache-2.0 */
/* How the first failure is told: rank, status or signal, and whether the system killed for lack of
 * memory. */
#include <inttypes.h>
#include <string.h>
#include <sys/wait.h>

#include "launch.h"

enum { OF_CGROUP = 0, OF_MACHINE = 1, PATH_ROOM = 512, LINE_ROOM = 4096 };

/* The number after `name` in a file of lines "name number". False: there is none. */
static bool read_counter(const char *path, const char *name, uint64_t *out) {
  char line[LINE_ROOM];
  bool found = false;
  const size_t n = strlen(name);
  FILE *file = fopen(path, "re");
  while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
    found =
        strncmp(line, name, n) == 0 && line[n] == ' ' && sscanf(line + n + 1, "%" SCNu64, out) == 1;
  }
  if (file != NULL)
    (void)fclose(file);
  return found;
}

/* Kills that this process's memory cgroup (version 2 or 1) has counted. In a container its files
 * may be those at the mount's root. */
static uint64_t count_of_cgroup(void) {
  char line[LINE_ROOM], path[PATH_ROOM];
  uint64_t n = 0;
  bool found = false;
  FILE *file = fopen("/proc/self/cgroup", "re");
  while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
    line[strcspn(line, "\n")] = '\0';
    const char *colon = strchr(line, ':');
    const char *own = colon == NULL ? NULL : strchr(colon + 1, ':');
    if (own == NULL)
      continue;
    const bool second = strncmp(line, "0::", 3) == 0;
    if (!second && strstr(colon, "memory") == NULL)
      continue;
    for (uint32_t i = 0; i < 2 && !found; ++i) {
      (void)snprintf(path, sizeof path, "/sys/fs/cgroup%s%.300s/%s", second ? "" : "/memory",
                     i == 0 ? own + 1 : "", second ? "memory.events" : "memory.oom_control");
      found = read_counter(path, "oom_kill", &n);
    }
  }
  if (file != NULL)
    (void)fclose(file);
  return found ? n : 0;
}

void launch_count_oom(uint64_t out[2]) {
  out[OF_CGROUP] = count_of_cgroup();
  out[OF_MACHINE] = 0;
  (void)read_counter("/proc/vmstat", "oom_kill", &out[OF_MACHINE]);
}

/* "; out of memory: ...", or "". */
static void say_memory(const launch_job *job, char *out, size_t room) {
  uint64_t now[2];
  out[0] = '\0';
  launch_count_oom(now);
  for (uint32_t i = 0; i < 2 && out[0] == '\0'; ++i) {
    if (now[i] > job->oom_before[i]) {
      (void)snprintf(out, room,
                     "; out of memory: the kills that the %s counts rose from %" PRIu64
                     " to %" PRIu64,
                     i == OF_CGROUP ? "memory cgroup" : "machine", job->oom_before[i], now[i]);
    }
  }
}

void launch_say_failure(const launch_job *job, uint32_t rank) {
  const launch_rank *r = &job->ranks[rank];
  const uint32_t of_all = job->first_rank + rank;
  char memory[160] = "";
  if (!WIFSIGNALED(r->status)) {
    (void)cli_fail("launch: rank %u (process %d) ended with status %d", of_all, (int)r->pid,
                   WEXITSTATUS(r->status));
    return;
  }
  const int number = WTERMSIG(r->status);
  if (number == SIGKILL)
    say_memory(job, memory, sizeof memory);
  const char *name = sigabbrev_np(number);
  (void)cli_fail("launch: rank %u (process %d) was ended by signal %d (%s%s)%s%s", of_all,
                 (int)r->pid, number, name == NULL ? "" : "SIG", name == NULL ? "unknown" : name,
                 WCOREDUMP(r->status) ? ", core dumped" : "", memory);
}
