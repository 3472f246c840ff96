/* SPDX-License-Identifier: Apache-2.0 */
/* transport-ucx in a host's process: signal handlers, the alternate stack, the functions that map
 * memory, the environment, descriptors and threads are as before, while UCX is at work and after,
 * whether opening succeeds or not, and whether the host has loaded UCX before. A forked child
 * leaves the session alone. Each case is a process of its own: UCX is loaded once.
 * ctest: timeout=60 label=twice
 */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/shm.h>

#include "tests/plugins/transport-shm/pair.h"

extern char **environ;

enum { N_FUNCTIONS = 12, SIGNALS = 65, CODE = 32, VARIABLES = 512, FILES = 1024 };
#define PATIENCE_NS UINT64_C(10000000000)

/* ---- the host's, as it was ---- */

static const char *const functions[N_FUNCTIONS] = {"mmap",   "munmap", "mremap", "madvise",
                                                   "shmat",  "shmdt",  "sbrk",   "brk",
                                                   "malloc", "free",   "calloc", "realloc"};

typedef struct picture {
  struct sigaction actions[SIGNALS];
  stack_t stack;
  unsigned char code[N_FUNCTIONS][CODE];
  char **list;
  char *variables[VARIABLES];
  char *copies[VARIABLES];
} picture;

static void take(picture *p) {
  memset(p, 0, sizeof *p);
  for (int s = 1; s < SIGNALS; ++s)
    (void)sigaction(s, NULL, &p->actions[s]);
  (void)sigaltstack(NULL, &p->stack);
  for (int i = 0; i < N_FUNCTIONS; ++i)
    memcpy(p->code[i], dlsym(RTLD_DEFAULT, functions[i]), CODE);
  p->list = environ;
  for (int i = 0; environ[i] != NULL && i < VARIABLES; ++i) {
    p->variables[i] = environ[i];
    p->copies[i] = strdup(environ[i]);
  }
}

/* The first difference; "": none. */
static const char *differs(const picture *p) {
  static char what[160];
  picture now;
  take(&now);
  what[0] = '\0';
  for (int s = 1; s < SIGNALS; ++s) {
    if (p->actions[s].sa_handler != now.actions[s].sa_handler ||
        p->actions[s].sa_flags != now.actions[s].sa_flags)
      (void)snprintf(what, sizeof what, "the handler of signal %d", s);
  }
  if (p->stack.ss_sp != now.stack.ss_sp || p->stack.ss_flags != now.stack.ss_flags)
    (void)snprintf(what, sizeof what, "the alternate stack");
  for (int i = 0; i < N_FUNCTIONS; ++i) {
    if (memcmp(p->code[i], now.code[i], CODE) != 0)
      (void)snprintf(what, sizeof what, "the first bytes of %s", functions[i]);
  }
  if (p->list != now.list)
    (void)snprintf(what, sizeof what, "the array of the environment");
  for (int i = 0; i < VARIABLES; ++i) {
    if (p->variables[i] != now.variables[i] ||
        (p->copies[i] != NULL && strcmp(p->copies[i], now.copies[i]) != 0))
      (void)snprintf(what, sizeof what, "variable %d: %.100s", i, p->copies[i]);
  }
  for (int i = 0; i < VARIABLES; ++i)
    free(now.copies[i]);
  return what;
}

/* ---- descriptors and threads ---- */

static int list_numbers(const char *folder, int *out, int most) {
  DIR *list = opendir(folder);
  const struct dirent *at = NULL;
  int n = 0;
  while (list != NULL && (at = readdir(list)) != NULL && n < most) {
    const int number = (int)strtol(at->d_name, NULL, 10);
    if (at->d_name[0] != '.' && number != dirfd(list))
      out[n++] = number;
  }
  if (list != NULL)
    (void)closedir(list);
  return n;
}

/* New descriptors that stay open on exec. */
static int count_open_on_exec(const int *before, int n_before) {
  int now[FILES], count = 0;
  const int n = list_numbers("/proc/self/fd", now, FILES);
  for (int i = 0; i < n; ++i) {
    char path[64], target[256] = "";
    bool is_old = false;
    for (int k = 0; k < n_before; ++k)
      is_old = is_old || before[k] == now[i];
    const int flags = fcntl(now[i], F_GETFD);
    if (is_old || flags < 0 || (flags & FD_CLOEXEC) != 0)
      continue;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", now[i]);
    (void)!readlink(path, target, sizeof target - 1);
    (void)fprintf(stderr, "descriptor %d stays open on exec: %s\n", now[i], target);
    ++count;
  }
  return count;
}

/* Threads besides this one that would take the host's SIGTERM. */
static int count_threads_that_take_signals(void) {
  int threads[FILES], count = 0;
  const int n = list_numbers("/proc/self/task", threads, FILES);
  for (int i = 0; i < n; ++i) {
    char path[64], line[256];
    (void)snprintf(path, sizeof path, "/proc/self/task/%d/status", threads[i]);
    FILE *file = fopen(path, "re");
    while (file != NULL && threads[i] != getpid() && fgets(line, sizeof line, file) != NULL) {
      if (strncmp(line, "SigBlk:", 7) == 0)
        count += (strtoull(line + 7, NULL, 16) >> (SIGTERM - 1) & 1) == 0;
    }
    if (file != NULL)
      (void)fclose(file);
  }
  return count;
}

/* ---- two worlds of one process ---- */

static opipe_status pass_one(end *from, end *to, uint64_t q) {
  const opipe_region all = {to->slots, 0, BYTES}, half = {from->own, 0, BYTES};
  memset(opipe_host_at(&half), (int)(q + 1), BYTES);
  TRY(to->t->recv(to->in, q, &all, NULL, &to->err));
  UNTIL(from, from->t->reserve(from->out, q, &from->err));
  TRY(from->t->send(from->out, q, &half, NULL, NULL, &from->err));
  UNTIL(to, to->t->test(to->in, q, &to->err));
  UNTIL(from, from->t->test(from->out, q, &from->err));
  return memcmp(opipe_host_at(&all), opipe_host_at(&half), BYTES) == 0 ? OPIPE_OK
                                                                       : OPIPE_E_INTERNAL;
}

static opipe_status open_both(end *ends, note *notes) {
  opipe_status status = OPIPE_PENDING;
  for (uint32_t i = 0; i < 2; ++i) {
    ends[i].patience_ns = PATIENCE_NS;
    TRY(open_end(&ends[i], i, notes));
  }
  for (const uint64_t start = now_ns(NULL); status == OPIPE_PENDING;) {
    const opipe_status a = ends[0].t->endpoint_ready(ends[0].endpoint, &ends[0].err);
    const opipe_status b = ends[1].t->endpoint_ready(ends[1].endpoint, &ends[1].err);
    status = a < 0 ? a : b < 0 ? b : a == OPIPE_OK ? b : a;
    if (now_ns(NULL) - start > PATIENCE_NS)
      return OPIPE_E_TIMEOUT;
    (void)usleep(100);
  }
  return status;
}

#define EXPECT(condition, ...)            \
  do {                                    \
    if (!(condition)) {                   \
      (void)fprintf(stderr, __VA_ARGS__); \
      (void)fputc('\n', stderr);          \
      return 1;                           \
    }                                     \
  } while (0)

/* ---- cases: each in a process of its own ---- */

static int use_it(const picture *before) {
  int files[FILES];
  end ends[2];
  note *notes = new_board();
  memset(ends, 0, sizeof ends);
  const int n_files = list_numbers("/proc/self/fd", files, FILES);
  const opipe_status status = open_both(ends, notes);
  EXPECT(status == OPIPE_OK, "opening: %s%s", ends[0].err.message, ends[1].err.message);
  EXPECT(differs(before)[0] == '\0', "while it is open: %s", differs(before));
  for (uint64_t q = 0; q < 20; ++q)
    EXPECT(pass_one(&ends[q % 2], &ends[1 - q % 2], q / 2) == OPIPE_OK, "message %d", (int)q);
  EXPECT(count_open_on_exec(files, n_files) == 0, "descriptors stay open on exec");
  EXPECT(count_threads_that_take_signals() == 0, "a thread takes the host's signals");
  close_end(&ends[0]);
  close_end(&ends[1]);
  EXPECT(differs(before)[0] == '\0', "after closing: %s", differs(before));
  EXPECT(dlopen("libucp.so.0", RTLD_NOW | RTLD_NOLOAD) != NULL, "UCX was not used");
  return 0;
}

static int case_alone(void) {
  picture before;
  (void)setenv("UCX_HANDLE_ERRORS", "bt", 1); /* the host's own, for other programs */
  (void)setenv("UCX_TCP_CONN_NB", "n", 1);
  take(&before);
  EXPECT(use_it(&before) == 0, "alone");
  EXPECT(logged[0] == '\0', "it warns: %s", logged);
  return 0;
}

/* Without settings UCX does change what is compared here: the comparison sees it. */
static int case_loaded_before(void) {
  picture before;
  take(&before);
  EXPECT(dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL) != NULL, "UCX cannot be loaded");
  EXPECT(differs(&before)[0] != '\0', "UCX by itself changes nothing: nothing is compared");
  take(&before);
  EXPECT(use_it(&before) == 0, "loaded before");
  EXPECT(strstr(logged, "is in the process already") != NULL, "nothing is said: '%s'", logged);
  return 0;
}

static int case_failure(void) {
  picture before;
  end e = {.patience_ns = PATIENCE_NS};
  note *notes = new_board();
  pair_options = "together=1,tls=nonsense";
  take(&before);
  EXPECT(open_end(&e, 0, notes) < 0, "transports that do not exist are accepted");
  EXPECT(strstr(e.err.message, "nonsense") != NULL, "the message names nothing: %s", e.err.message);
  EXPECT(differs(&before)[0] == '\0', "after a failure: %s", differs(&before));
  return 0;
}

/* The child of a fork closes everything, and the parent goes on. */
static int case_fork(void) {
  end ends[2];
  note *notes = new_board();
  memset(ends, 0, sizeof ends);
  EXPECT(open_both(ends, notes) == OPIPE_OK, "opening: %s", ends[0].err.message);
  EXPECT(pass_one(&ends[0], &ends[1], 0) == OPIPE_OK, "a message before");
  const uint64_t start = now_ns(NULL);
  const pid_t pid = fork();
  if (pid == 0) {
    close_end(&ends[0]);
    close_end(&ends[1]);
    _exit(0);
  }
  EXPECT(status_of(pid) == 0, "the child does not end well");
  EXPECT(now_ns(NULL) - start < UINT64_C(2000000000), "the child waits for something");
  for (uint64_t q = 1; q < 10; ++q)
    EXPECT(pass_one(&ends[0], &ends[1], q) == OPIPE_OK, "a message behind the fork");
  close_end(&ends[0]);
  close_end(&ends[1]);
  return 0;
}

static void run_case(int (*body)(void)) {
  if (!take_ucx())
    OPI_SKIP("UCX (libucp.so.0) is not there");
  const pid_t pid = fork();
  if (pid == 0) {
    (void)alarm(20); /* never a hang */
    _exit(body());
  }
  OPI_ASSERT_INT(status_of(pid), 0);
}

static void test_nothing_of_the_hosts_changes(void) {
  run_case(case_alone);
}
static void test_nor_where_it_has_loaded_ucx(void) {
  if (opi_test_is_sanitized())
    OPI_SKIP("UCX by itself patches functions that the sanitizer has replaced");
  run_case(case_loaded_before);
}
static void test_nor_where_opening_fails(void) {
  run_case(case_failure);
}
static void test_a_forked_child_leaves_it_alone(void) {
  run_case(case_fork);
}

OPI_TEST_MAIN("transport-ucx in a host", OPI_TEST(test_nothing_of_the_hosts_changes),
              OPI_TEST(test_nor_where_it_has_loaded_ucx), OPI_TEST(test_nor_where_opening_fails),
              OPI_TEST(test_a_forked_child_leaves_it_alone))
