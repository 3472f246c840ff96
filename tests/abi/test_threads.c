/* SPDX-License-Identifier: Apache-2.0 */
/* The threads that a session starts, ranks' and backend's alike: they have names, the host's
 * signals do not reach them, and signals that a thread raises itself do. Without this a host's
 * handler runs on a thread that it does not know, or a fault in a rank ends the process past its
 * handler.
 */
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tests/abi/host_kit.h"

static const char *const GPT = "tests/data/gpt_8block/model.onnx";
static const int64_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8};
static const int64_t shape[2] = {1, 8};
enum { RANKS = 2, TEAM = 3, OURS = RANKS + RANKS * (TEAM - 1) };

static bool open_session(host_kit *k) {
  const opipe_device_choice device = {.kind = "cpu", .threads = TEAM};
  const opipe_plan_params plan = {.struct_size = sizeof plan,
                                  .n_stages = RANKS,
                                  .devices = &device,
                                  .n_devices = 1,
                                  .devices_stride = sizeof device};
  const opipe_status status = kit_plan(k, NULL, GPT, 1, 8, &plan);
  OPI_ASSERT_OK(status == OPIPE_OK ? kit_open(k, NULL) : status, &k->err);
  return k->session != NULL;
}

static void round_trip(host_kit *k) {
  const opipe_binding_io input = kit_ids(ids, shape);
  opipe_request *request = NULL;
  OPI_ASSERT_OK_FATAL(kit_submit(k, &input, &request), &k->err);
  OPI_ASSERT_OK(k->api->request_wait(request, UINT64_C(30000000000), &k->err), &k->err);
  k->api->request_release(request);
}

typedef struct seen {
  uint32_t ranks, workers; /* by name */
  uint32_t wrong;          /* masks that are not as they should be */
} seen;

static bool is_raised(int signal_number) {
  static const int raised[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
  bool found = false;
  for (size_t i = 0; i < sizeof raised / sizeof raised[0]; ++i)
    found = found || raised[i] == signal_number;
  return found;
}

/* 32 and 33 are the C library's own. */
static bool mask_is_right(unsigned long long blocked) {
  bool right = true;
  for (int i = 1; i <= 64; ++i) {
    if (i == SIGKILL || i == SIGSTOP || i == 32 || i == 33)
      continue;
    right = right && ((blocked >> (i - 1) & 1) != 0) == !is_raised(i);
  }
  return right;
}

static void look_at_task(const char *task, seen *io_seen) {
  char path[300], line[256], name[64] = "";
  unsigned long long blocked = 0;
  (void)snprintf(path, sizeof path, "/proc/self/task/%s/status", task);
  FILE *file = fopen(path, "re");
  if (file == NULL)
    return;
  while (fgets(line, sizeof line, file) != NULL) {
    (void)sscanf(line, "Name: %63s", name);
    (void)sscanf(line, "SigBlk: %llx", &blocked);
  }
  (void)fclose(file);
  const bool rank = strcmp(name, "opipe-r0") == 0 || strcmp(name, "opipe-r1") == 0;
  const bool worker = strcmp(name, "opipe-cpu1") == 0 || strcmp(name, "opipe-cpu2") == 0;
  io_seen->ranks += rank;
  io_seen->workers += worker;
  if ((rank || worker) && !mask_is_right(blocked)) {
    ++io_seen->wrong;
    OPI_FAIL("thread '%s' blocks %llx", name, blocked);
  }
}

static uint32_t look_at_threads(seen *out_seen) {
  uint32_t n = 0;
  *out_seen = (seen){.ranks = 0};
  DIR *folder = opendir("/proc/self/task");
  OPI_ASSERT_FATAL(folder != NULL);
  for (const struct dirent *at = readdir(folder); at != NULL; at = readdir(folder)) {
    if (at->d_name[0] == '.')
      continue;
    ++n;
    look_at_task(at->d_name, out_seen);
  }
  (void)closedir(folder);
  return n;
}

static void *nothing(void *arg) {
  return arg;
}

static void check_threads(void) {
  host_kit k;
  seen s;
  pthread_t first;
  OPI_ASSERT_FATAL(pthread_create(&first, NULL, nothing, NULL) == 0); /* brings a sanitizer's own */
  (void)pthread_join(first, NULL);
  const uint32_t before = look_at_threads(&s);
  if (!open_session(&k))
    return;
  round_trip(&k);
  uint32_t after = look_at_threads(&s);
  for (int i = 0; i < 5000 && s.ranks + s.workers < OURS; ++i) { /* until all have their names */
    const struct timespec pause = {.tv_nsec = 1000000};
    (void)nanosleep(&pause, NULL);
    after = look_at_threads(&s);
  }
  OPI_ASSERT(after <= before + OURS); /* none without a name of ours; one that ended may linger */
  OPI_ASSERT_INT(s.ranks, RANKS);
  OPI_ASSERT_INT(s.workers, RANKS * (TEAM - 1));
  OPI_ASSERT_INT(s.wrong, 0);
  kit_close(&k);
}

static void test_names_and_masks_of_all_threads(void) {
  check_threads();
}

static void test_a_host_that_blocks_everything(void) {
  sigset_t all, before, after;
  (void)sigfillset(&all);
  OPI_ASSERT_INT(pthread_sigmask(SIG_SETMASK, &all, &before), 0);
  check_threads();
  OPI_ASSERT_INT(pthread_sigmask(SIG_SETMASK, &before, &after), 0);
  for (int i = 1; i < 32; ++i) /* the library put the host's own mask back */
    OPI_ASSERT(i == SIGKILL || i == SIGSTOP || sigismember(&after, i) == 1);
}

/* ---- where signals go ---- */

enum { SHOTS = 300 };
static volatile sig_atomic_t n_handled, n_elsewhere;
static pid_t host_thread;

static void handle(int signal_number) {
  (void)signal_number;
  ++n_handled;
  n_elsewhere += syscall(SYS_gettid) != host_thread;
}

static void test_handlers_run_on_the_hosts_thread(void) {
  host_kit k;
  struct sigaction action = {.sa_handler = handle}, before;
  host_thread = (pid_t)syscall(SYS_gettid);
  (void)sigemptyset(&action.sa_mask);
  OPI_ASSERT_INT(sigaction(SIGUSR1, &action, &before), 0);
  if (!open_session(&k))
    return;
  for (int i = 0; i < SHOTS; ++i) {
    OPI_ASSERT_INT(kill(getpid(), SIGUSR1), 0);
    if (i % 30 == 0)
      round_trip(&k);
  }
  kit_close(&k);
  OPI_ASSERT(n_handled > 0);
  OPI_ASSERT_INT(n_elsewhere, 0);
  (void)sigaction(SIGUSR1, &before, NULL);
}

/* A signal that the host keeps for its sigwait is not eaten by a thread of ours. */
static void test_a_signal_that_the_host_waits_for(void) {
  host_kit k;
  sigset_t one;
  const struct timespec second = {.tv_sec = 1};
  (void)sigemptyset(&one);
  (void)sigaddset(&one, SIGTERM);
  OPI_ASSERT_INT(pthread_sigmask(SIG_BLOCK, &one, NULL), 0);
  if (!open_session(&k))
    return;
  OPI_ASSERT_INT(kill(getpid(), SIGTERM), 0); /* unblocked anywhere it would end the process */
  round_trip(&k);
  OPI_ASSERT_INT(sigtimedwait(&one, NULL, &second), SIGTERM);
  kit_close(&k);
  (void)pthread_sigmask(SIG_UNBLOCK, &one, NULL);
}

OPI_TEST_MAIN("threads", OPI_TEST(test_names_and_masks_of_all_threads),
              OPI_TEST(test_a_host_that_blocks_everything),
              OPI_TEST(test_handlers_run_on_the_hosts_thread),
              OPI_TEST(test_a_signal_that_the_host_waits_for))
