/* SPDX-License-Identifier: Apache-2.0 */
/* Teams of child processes, one of which ends or stands still: every other one is told which, in
 * time. ctest: timeout=60 waits */
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "tests/runtime/launch/team_kit.h"

/* A busy machine may hold up a process that lives for as long as the silence that is too long, or a
 * survivor for as long as a death may take: that shows, and then the trial is made again, with
 * twice the time. Whatever else is wrong fails. */
enum { SIZE = 4, SILENCE_MS = 600, DEATH_MS = 2000, TRIES = 5 };
enum { KILLED, EXITS, STOPPED, LEAVES_A_CHILD, KILLED_IN_OPEN, KILLED_IN_AGREEMENT, CLOSES };

typedef struct fault {
  uint32_t kind, culprit;
  const char *says;
} fault;

/* A survivor's report. */
typedef struct seen {
  uint32_t rank;
  opipe_status status;
  uint64_t at_ns;
  char message[496];
} seen;

typedef struct trial {
  const fault *fault;
  kit_team kit;
  uint32_t times;              /* everything takes so many times as long */
  int out;                     /* of survivors */
  int end;                     /* its end: a process that outlives its parent ends, too */
  int ready[2];                /* a byte of each that knows what the culprit is at */
  _Atomic uint64_t *struck_ns; /* shared: when it went wrong */
} trial;

/* A data loader: keeps every descriptor of the rank. */
static void leave_a_child(const trial *t) {
  if (fork() != 0)
    return;
  char byte = 0;
  (void)close(t->out);
  (void)read(t->end, &byte, 1);
  _exit(0);
}

/* Process 0 tells the others what it has heard; of itself each hears by its own connection. */
static bool hears(const fault *f, uint32_t rank) {
  return rank != f->culprit && (rank == 0 || f->culprit == 0);
}

/* Waits until a heartbeat has said what the culprit is at. */
static void learn(const trial *t, opi_team *team, uint32_t rank) {
  bool knows = !hears(t->fault, rank);
  if (knows)
    return;
  while (!knows) {
    kit_sleep_ms(1);
    opi_lock_take(&team->lock);
    knows = team->failed || strcmp(team->members[t->fault->culprit].at, "step 7") == 0;
    opi_lock_give(&team->lock);
  }
  (void)write(t->ready[1], "", 1);
}

/* Until all who must hear of the culprit's step have. */
static void await_ready(const trial *t) {
  char byte = 0;
  for (uint32_t r = 0; r < SIZE; ++r) {
    if (hears(t->fault, r))
      (void)read(t->ready[0], &byte, 1);
  }
}

static void close_connections(const trial *t) {
  char byte = 0;
  for (int fd = 3; fd < 64; ++fd) {
    if (fd != t->end && fd != t->out && fd != t->ready[0] && fd != t->ready[1])
      (void)shutdown(fd, SHUT_RDWR);
  }
  (void)read(t->end, &byte, 1); /* the process stays */
}

static void do_fault(const trial *t, opi_team *team) {
  opipe_error err = OPIPE_ERROR_INIT;
  uint32_t what = 0;
  (void)opi_team_moved(team, 7, "step 7", &err);
  await_ready(t);
  atomic_store(t->struck_ns, opi_clock_ns());
  switch (t->fault->kind) {
    case EXITS:
      _exit(0);
    case STOPPED:
      (void)raise(SIGSTOP);
      break;
    case LEAVES_A_CHILD:
      leave_a_child(t);
      (void)raise(SIGKILL);
      break;
    case KILLED_IN_AGREEMENT:
      (void)opi_team_step(team, 1, &what, &err);
      (void)opi_team_stop(team, 9, &err);
      (void)raise(SIGKILL);
      break;
    case CLOSES: /* the connection, not the team */
      close_connections(t);
      _exit(0);
    default:
      (void)raise(SIGKILL);
  }
}

static opipe_status survive(const trial *t, opi_team *team, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  if (t->fault->kind == KILLED_IN_AGREEMENT) {
    for (uint64_t step = 1; status == OPIPE_OK; ++step) {
      uint32_t what = 0;
      status = opi_team_step(team, step, &what, err);
      kit_sleep_ms(20);
    }
    return status;
  }
  return kit_gather(team, "step", UINT64_MAX, err);
}

static void be_rank(trial *t, uint32_t rank) {
  seen s = {.rank = rank};
  opi_team *team = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  const bool opens = t->fault->kind == KILLED_IN_OPEN;
  if (opens && rank == SIZE - 1) /* never comes */
    _exit(0);
  if (opens && rank == t->fault->culprit) {
    atomic_store(t->struck_ns, opi_clock_ns() + t->times * OPI_SECOND);
    (void)alarm(t->times);
  }
  s.status = kit_open(&t->kit, rank, &team, &err);
  if (s.status == OPIPE_OK)
    s.status = kit_gather(team, "all here", UINT64_MAX, &err);
  if (s.status == OPIPE_OK && rank == t->fault->culprit)
    do_fault(t, team);
  if (s.status == OPIPE_OK)
    learn(t, team, rank);
  if (s.status == OPIPE_OK)
    s.status = survive(t, team, &err);
  s.at_ns = opi_clock_ns();
  (void)snprintf(s.message, sizeof s.message, "%s", err.message);
  (void)write(t->out, &s, sizeof s);
  opi_team_close(team);
  _exit(0);
}

static pid_t start_rank(trial *t, uint32_t rank, const int ends[2]) {
  const pid_t child = fork();
  if (child == 0) {
    (void)close(ends[1]);
    be_rank(t, rank);
  }
  return child;
}

/* False: the machine was too busy to tell. */
static bool check(const trial *t, const seen *s) {
  const fault *f = t->fault;
  const uint64_t struck_ns = atomic_load(t->struck_ns),
                 limit_ns = (uint64_t)DEATH_MS * t->times * OPI_SECOND / 1000 +
                            (f->kind == STOPPED ? t->kit.silence_ns : 0);
  opipe_error err = {.status = s->status};
  char who[32];
  (void)snprintf(err.message, sizeof err.message, "%s", s->message);
  (void)snprintf(who, sizeof who, "process %u (pid ", f->culprit);
  const bool is_other = strstr(s->message, who) == NULL;
  if ((f->kind != STOPPED || is_other) && strstr(s->message, "has been silent for ") != NULL)
    return false;
  if (f->kind == KILLED_IN_OPEN && s->status == OPIPE_E_TIMEOUT)
    return false; /* it had not come yet */
  OPI_ASSERT_ERROR(s->status, OPIPE_E_PEER, &err, f->says);
  OPI_ASSERT_ERROR(s->status, OPIPE_E_PEER, &err, who);
  return s->at_ns < struck_ns + limit_ns;
}

/* False: as check. */
static bool try_once(const fault *f, uint32_t times, _Atomic uint64_t *struck_ns) {
  int results[2], ends[2];
  pid_t children[SIZE];
  const bool opens = f->kind == KILLED_IN_OPEN;
  const uint32_t n_survivors = opens ? SIZE - 2 : SIZE - 1;
  bool good = true;
  char name[32];
  (void)snprintf(name, sizeof name, "death-%u-%u-%u", f->kind, f->culprit, times);
  trial t = {.fault = f,
             .times = times,
             .kit = {.size = SIZE,
                     .job = kit_job(name),
                     .timeout_ns = 20 * OPI_SECOND,
                     .silence_ns = SILENCE_MS * times * UINT64_C(1000000)},
             .struck_ns = struck_ns};
  OPI_ASSERT_FATAL(pipe(results) == 0 && pipe(ends) == 0 && pipe(t.ready) == 0);
  t.out = results[1];
  t.end = ends[0];
  for (uint32_t r = 0; r < SIZE; ++r)
    children[r] = start_rank(&t, r, ends);
  (void)close(results[1]);
  for (uint32_t i = 0; i < n_survivors; ++i) {
    seen s = {0};
    OPI_ASSERT(read(results[0], &s, sizeof s) == (ssize_t)sizeof s);
    good = check(&t, &s) && good;
  }
  const int rest[] = {ends[1], ends[0], results[0], t.ready[0], t.ready[1]};
  for (uint32_t i = 0; i < sizeof rest / sizeof rest[0]; ++i)
    (void)close(rest[i]);
  for (uint32_t r = 0; r < SIZE; ++r) {
    (void)kill(children[r], SIGKILL); /* the one that stands still */
    OPI_ASSERT(waitpid(children[r], NULL, 0) == children[r]);
  }
  return good;
}

static void try_fault(const fault *f) {
  void *shared =
      mmap(NULL, sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  OPI_ASSERT_FATAL(shared != MAP_FAILED);
  bool good = false;
  for (uint32_t i = 0; i < TRIES && !good; ++i)
    good = try_once(f, 1u << i, shared);
  OPI_ASSERT(good);
  (void)munmap(shared, sizeof(uint64_t));
}

#define FAULT(name, kind, says)                                  \
  static void test_##name(void) {                                \
    const fault other = {kind, 2, says}, root = {kind, 0, says}; \
    try_fault(&other);                                           \
    try_fault(&root);                                            \
  }
FAULT(a_killed_process_is_named, KILLED, "has died; it was at 'step 7', move 7")
FAULT(a_process_that_ends_well_too_early_is_named, EXITS, "has died; it was at 'step 7', move 7")
FAULT(a_process_that_stands_still_is_named, STOPPED, "has been silent for ")
FAULT(a_child_that_keeps_the_sockets_hides_no_death, LEAVES_A_CHILD, "has died; it was at 'step 7'")
FAULT(a_death_ends_an_agreement, KILLED_IN_AGREEMENT, "has died")

static void test_a_lost_connection_is_named(void) {
  const fault other = {CLOSES, 2, "has closed its connection; it was at 'step 7'"};
  try_fault(&other);
}

/* Rank 3 never comes; rank 1 dies meanwhile. */
static void test_a_death_while_others_join_is_named(void) {
  const fault other = {KILLED_IN_OPEN, 1, "has died"};
  try_fault(&other);
}

OPI_TEST_MAIN("deaths", OPI_TEST(test_a_killed_process_is_named),
              OPI_TEST(test_a_process_that_ends_well_too_early_is_named),
              OPI_TEST(test_a_process_that_stands_still_is_named),
              OPI_TEST(test_a_child_that_keeps_the_sockets_hides_no_death),
              OPI_TEST(test_a_death_ends_an_agreement), OPI_TEST(test_a_lost_connection_is_named),
              OPI_TEST(test_a_death_while_others_join_is_named))
