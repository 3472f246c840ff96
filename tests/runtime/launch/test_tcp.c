/* SPDX-License-Identifier: Apache-2.0 */
/* Teams by TCP: machines, tokens that are wrong, missing, replayed or reflected, a second job,
 * connections that say nothing. ctest: timeout=60 waits */
#include <arpa/inet.h>
#include <errno.h>
#include <sys/socket.h>

#include "tests/runtime/launch/team_kit.h"

#define TOKEN "a token of 24 characters"
#define OTHER "another token, as long.."

/* A loopback address with a port that nobody has. */
static const char *free_address(void) {
  static char address[64];
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t n = sizeof at;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  OPI_ASSERT_FATAL(fd >= 0 && bind(fd, (struct sockaddr *)&at, n) == 0 &&
                   getsockname(fd, (struct sockaddr *)&at, &n) == 0);
  (void)close(fd);
  (void)snprintf(address, sizeof address, "127.0.0.1:%u", ntohs(at.sin_port));
  return address;
}

static bool has_sodium(void) {
  opi_token token;
  opipe_error err = OPIPE_ERROR_INIT;
  const bool has = opi_token_find(&opi_process_variables, TOKEN, &token, &err) == OPIPE_OK;
  if (!has) {
    OPI_ASSERT_STR(err.message,
                   "a token is proven by libsodium, which is not there: apt-get install "
                   "libsodium23");
  }
  return has;
}

/* ---- teams ---- */

static opipe_status look_around(kit_member *m) {
  opipe_team_info info = opipe_team_info_init();
  static const uint32_t machines[] = {0, 0, 2, 2, 4};
  char host[64] = "";
  uint64_t n_bytes = sizeof host - 1;
  OPI_TRY(kit_gather(m->team, "here", UINT64_MAX, &m->err));
  const opipe_status looked =
      opi_team_look(m->team, "session #0/" OPI_BOARD_ADDRESS, host, &n_bytes, &m->err);
  if (looked != OPIPE_OK || strcmp(host, "127.0.0.1") != 0)
    return opi_fail(&m->err, OPIPE_E_INTERNAL, "%d: its own address is '%s'", looked, host);
  n_bytes = 3;
  if (opi_team_look(m->team, "session #0/" OPI_BOARD_ADDRESS, host, &n_bytes, NULL) !=
          OPIPE_E_LIMIT ||
      n_bytes != strlen("127.0.0.1"))
    return opi_fail(&m->err, OPIPE_E_INTERNAL, "an address without room");
  opi_team_info(m->team, &info);
  if (m->kit->ctx == NULL) { /* one machine */
    if (info.n_machines != 1 || info.local_rank != m->rank || info.local_size != m->kit->size)
      return opi_fail(&m->err, OPIPE_E_INTERNAL, "%u machines", info.n_machines);
  } else if (info.n_machines != 3 || info.machine != machines[m->rank] ||
             info.local_rank != m->rank - machines[m->rank] ||
             info.local_size != (m->rank == 4 ? 1 : 2)) {
    return opi_fail(&m->err, OPIPE_E_INTERNAL, "machine %u of %u, %u of %u", info.machine,
                    info.n_machines, info.local_rank, info.local_size);
  }
  return kit_gather(m->team, "seen", UINT64_MAX, &m->err);
}

static void test_processes_know_their_machine(void) {
  static kit_team k;
  static int spread;
  if (!has_sodium())
    OPI_SKIP("no libsodium");
  for (uint32_t i = 0; i < 2; ++i) {
    k = (kit_team){.size = 5,
                   .job = kit_job("machines"),
                   .address = free_address(),
                   .run = look_around,
                   .ctx = i == 0 ? NULL : &spread};
    for (uint32_t r = 0; r < k.size; ++r) {
      k.tokens[r] = TOKEN;
      k.boots[r] = i == 0 ? NULL : r < 2 ? "boot a" : r < 4 ? "boot b" : "";
    }
    kit_run(&k);
    for (uint32_t r = 0; r < k.size; ++r)
      OPI_ASSERT_OK(k.members[r].status, &k.members[r].err);
  }
}

/* Long messages in sealed records; and without a token, of one user, on loopback. */
static opipe_status gather_much(kit_member *m) {
  static uint8_t bytes[1 << 20];
  opipe_gather_params params = opipe_gather_params_init();
  params.name = "much";
  params.data = bytes;
  params.n_bytes = sizeof bytes;
  for (uint32_t i = 0; i < 3; ++i)
    OPI_TRY(opi_team_gather(m->team, &params, &m->err));
  return kit_gather(m->team, "heard", UINT64_MAX, &m->err);
}

static void test_long_messages(void) {
  static kit_team k;
  const bool has = has_sodium();
  for (uint32_t i = 0; i < (has ? 2 : 1); ++i) {
    k = (kit_team){
        .size = 3, .job = kit_job("much"), .address = free_address(), .run = gather_much};
    for (uint32_t r = 0; r < k.size; ++r)
      k.tokens[r] = i == 0 ? NULL : TOKEN;
    kit_run(&k);
    for (uint32_t r = 0; r < k.size; ++r)
      OPI_ASSERT_OK(k.members[r].status, &k.members[r].err);
  }
}

/* ---- refusals ---- */

static opipe_status meet_once(kit_member *m) {
  return kit_gather(m->team, "here", UINT64_MAX, &m->err);
}

typedef struct refusal {
  const char *tokens[2];
  opipe_status status;
  const char *says; /* process 1 */
  const char *root; /* process 0 */
} refusal;

static void test_tokens_that_differ(void) {
  static const refusal cases[] = {{{TOKEN, OTHER},
                                   OPIPE_E_INVALID,
                                   "it refuses the token of this process",
                                   "rank 1; process 0"},
                                  {{TOKEN, NULL},
                                   OPIPE_E_INVALID,
                                   "it asks for a token, this process has none",
                                   "rank 1; process 0"},
                                  {{NULL, OTHER},
                                   OPIPE_E_INVALID,
                                   "it has no token, this process has one",
                                   "rank 1; process 0"}};
  static kit_team k;
  if (!has_sodium())
    OPI_SKIP("no libsodium");
  for (uint32_t i = 0; i < OPI_COUNT(cases); ++i) {
    k = (kit_team){.size = 2,
                   .job = kit_job("differ"),
                   .address = free_address(),
                   .timeout_ns = OPI_SECOND / 2,
                   .run = meet_once};
    memcpy(k.tokens, cases[i].tokens, sizeof cases[i].tokens);
    kit_run(&k);
    OPI_ASSERT_ERROR(k.members[1].status, cases[i].status, &k.members[1].err, cases[i].says);
    OPI_ASSERT_ERROR(k.members[0].status, OPIPE_E_TIMEOUT, &k.members[0].err, cases[i].root);
    if (i == 0) {
      OPI_ASSERT_ERROR(k.members[0].status, OPIPE_E_TIMEOUT, &k.members[0].err,
                       "1 connections did not prove the token");
    }
  }
}

static void test_addresses_that_cannot_be(void) {
  kit_team k = {.size = 2, .job = kit_job("far"), .timeout_ns = OPI_SECOND / 5};
  opi_team *t = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  k.address = "0.0.0.0:29511"; /* beyond loopback, without a token */
  OPI_ASSERT_ERROR(kit_open(&k, 0, &t, &err), OPIPE_E_INVALID, &err,
                   "can be reached from other machines, and this process has no token. In all "
                   "processes: export ONNX_PIPE_TOKEN_FILE=FILE");
  k.address = "192.0.2.1:29511";
  OPI_ASSERT_ERROR(kit_open(&k, 1, &t, &err), OPIPE_E_INVALID, &err, "has no token");
  k.address = "127.0.0.1";
  OPI_ASSERT_ERROR(kit_open(&k, 0, &t, &err), OPIPE_E_INVALID, &err, "is not HOST:PORT");
  k.address = "::1:5";
  OPI_ASSERT_ERROR(kit_open(&k, 0, &t, &err), OPIPE_E_INVALID, &err, "is not HOST:PORT");
  k.address = "127.0.0.1:65536";
  OPI_ASSERT_ERROR(kit_open(&k, 0, &t, &err), OPIPE_E_INVALID, &err, "a port from 1 to 65535");
  k.address = free_address();
  OPI_ASSERT_ERROR(kit_open(&k, 1, &t, &err), OPIPE_E_TIMEOUT, &err, "Connection refused");
  k.address = "no-such-host.invalid:29511";
  k.tokens[0] = k.tokens[1] = TOKEN;
  if (!has_sodium())
    return;
  OPI_ASSERT_ERROR(kit_open(&k, 1, &t, &err), OPIPE_E_TIMEOUT, &err, "cannot be resolved");
  OPI_ASSERT_ERROR(kit_open(&k, 0, &t, &err), OPIPE_E_IO, &err, "cannot be resolved");
  k.address = "192.0.2.1:29511";
  OPI_ASSERT_ERROR(kit_open(&k, 0, &t, &err), OPIPE_E_INVALID, &err,
                   "is no address of this machine");
  k.tokens[0] = "too short";
  OPI_ASSERT_ERROR(kit_open(&k, 0, &t, &err), OPIPE_E_INVALID, &err,
                   "the token of team_open has 9 bytes, 16 to 1024 are allowed");
}

/* ---- strangers ---- */

static void *open_and_meet(void *arg) {
  kit_member *m = arg;
  m->status = kit_open(m->kit, m->rank, &m->team, &m->err);
  if (m->status == OPIPE_OK)
    m->status = kit_gather(m->team, "here", UINT64_MAX, &m->err);
  opi_team_close(m->team);
  m->team = NULL;
  return NULL;
}

static int dial(const char *address) {
  opipe_error err = OPIPE_ERROR_INIT;
  int fd = -1;
  for (uint32_t i = 0; i < 500; ++i) {
    if (opi_carrier_tcp.connect(address, true, &fd, &err) == OPIPE_OK)
      return fd;
    kit_sleep_ms(10);
  }
  return -1;
}

/* Reads n bytes within `ms`. */
static bool read_all(int fd, void *out, size_t n, uint32_t ms) {
  size_t got = 0;
  for (uint32_t i = 0; got < n && i <= ms / 5; ++i) {
    const ssize_t part = recv(fd, (uint8_t *)out + got, n - got, MSG_DONTWAIT);
    if (part == 0)
      return false;
    got += part > 0 ? (size_t)part : 0;
    if (part < 0)
      kit_sleep_ms(5);
  }
  return got == n;
}

static bool is_closed(int fd) {
  char bytes[4096];
  for (uint32_t i = 0; i < 800; ++i) {
    const ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno == ECONNRESET))
      return true;
    kit_sleep_ms(5);
  }
  return false;
}

static bool put(int fd, const void *bytes, size_t n) {
  return send(fd, bytes, n, MSG_NOSIGNAL) == (ssize_t)n;
}

/* A stranger that has the token, up to its seal. */
typedef struct stranger {
  int fd;
  opi_greeting greeting;
  opi_token_proof proof;
  opi_verdict verdict;
  opi_seal seal;
} stranger;

static bool prove(stranger *s, const char *address, const char *text, const char *job) {
  opi_token token;
  opipe_error err = OPIPE_ERROR_INIT;
  memset(s, 0, sizeof *s);
  s->fd = dial(address);
  s->proof = (opi_token_proof){.rank = 1, .size = 2};
  (void)snprintf(s->proof.job, sizeof s->proof.job, "%s", job);
  return s->fd >= 0 && opi_token_find(&opi_process_variables, text, &token, &err) == OPIPE_OK &&
         read_all(s->fd, &s->greeting, sizeof s->greeting, 5000) &&
         opi_token_prove(&token, &s->greeting, &s->proof, &err) == OPIPE_OK &&
         put(s->fd, &s->proof, sizeof s->proof) &&
         read_all(s->fd, &s->verdict, sizeof s->verdict, 5000) &&
         opi_token_judge(&token, &s->greeting, &s->proof, &s->verdict, &err) == OPIPE_OK &&
         opi_seal_init(&s->seal, opi_allocator_system(), &token, &s->greeting, &s->proof, false,
                       &err) == OPIPE_OK;
}

static void hang_up(stranger *s) {
  opi_seal_release(&s->seal);
  if (s->fd >= 0)
    (void)close(s->fd);
}

/* A HELLO in a sealed record. Returns its bytes on the wire. */
static size_t seal_hello(stranger *s, const char *job, uint8_t *room) {
  opi_hello hello = {.rank = 1,
                     .size = 2,
                     .pid = getpid(),
                     .abi_major = OPIPE_ABI_MAJOR,
                     .abi_minor = OPIPE_ABI_MINOR};
  uint64_t at = 0;
  memcpy(hello.version, OPIPE_VERSION, sizeof OPIPE_VERSION);
  (void)snprintf(hello.job, sizeof hello.job, "%s", job);
  const uint32_t n = opi_frame_write(room + OPI_RECORD_BEFORE, OPI_FRAME_HELLO, 0,
                                     (const uint8_t *)&hello, sizeof hello, &at);
  opi_seal_write(&s->seal, room, n);
  return n + OPI_RECORD_BEFORE + OPI_RECORD_AFTER - OPI_RECORD_UNSENT;
}

enum { ROOM = OPI_FRAME_MOST + OPI_RECORD_BEFORE + OPI_RECORD_AFTER };

/* A recorded connection, or the words of process 0, let nobody in; nor does the
 * token alone, for a member of another job. The job goes on. */
static void test_replayed_and_reflected(void) {
  static uint8_t room[ROOM], heard[ROOM];
  static kit_team k;
  kit_member a = {.rank = 0, .kit = &k}, b = {.rank = 1, .kit = &k};
  opipe_error err = OPIPE_ERROR_INIT;
  stranger s;
  opi_greeting greeting;
  opi_verdict verdict;
  if (!has_sodium())
    OPI_SKIP("no libsodium");
  k = (kit_team){.size = 2, .job = kit_job("strangers"), .address = free_address()};
  k.tokens[0] = k.tokens[1] = TOKEN;
  OPI_ASSERT_OK_FATAL(opi_thread_start(&a.thread, "a", open_and_meet, &a, &err), &err);
  /* Another job: refused in words, under the seal. */
  OPI_ASSERT_FATAL(prove(&s, k.address, TOKEN, "another job"));
  const size_t n = seal_hello(&s, "another job", room);
  OPI_ASSERT(put(s.fd, room + OPI_RECORD_UNSENT, n));
  const size_t n_refusal =
      OPI_FRAME_HEAD + sizeof(opi_abort) + OPI_RECORD_BEFORE - OPI_RECORD_UNSENT + OPI_RECORD_AFTER;
  OPI_ASSERT(read_all(s.fd, heard, n_refusal, 5000));
  OPI_ASSERT(is_closed(s.fd));
  const opi_token_proof recorded = s.proof;
  hang_up(&s);
  /* The proof of that connection, and its record, again. */
  const int fd = dial(k.address);
  OPI_ASSERT_FATAL(fd >= 0 && read_all(fd, &greeting, sizeof greeting, 5000));
  OPI_ASSERT(put(fd, &recorded, sizeof recorded) && put(fd, room + OPI_RECORD_UNSENT, n));
  OPI_ASSERT(read_all(fd, &verdict, sizeof verdict, 5000) && verdict.refused == 1);
  OPI_ASSERT(is_closed(fd));
  (void)close(fd);
  /* Process 0's own words: its greeting and verdict as a proof. */
  const int mirror = dial(k.address);
  opi_token_proof mirrored = recorded;
  OPI_ASSERT_FATAL(mirror >= 0 && read_all(mirror, &greeting, sizeof greeting, 5000));
  memcpy(mirrored.nonce, greeting.nonce, sizeof mirrored.nonce);
  memcpy(mirrored.mac, s.verdict.mac, sizeof mirrored.mac);
  OPI_ASSERT(put(mirror, &mirrored, sizeof mirrored));
  OPI_ASSERT(read_all(mirror, &verdict, sizeof verdict, 5000) && verdict.refused == 1);
  (void)close(mirror);
  /* A record twice, and a record of process 0 sent back to it. */
  for (uint32_t i = 0; i < 2; ++i) {
    OPI_ASSERT_FATAL(prove(&s, k.address, TOKEN, "another job"));
    const size_t once = seal_hello(&s, i == 0 ? k.job : "another job", room);
    if (i == 0) { /* the first is wrong, so that nobody has joined */
      room[OPI_RECORD_UNSENT + once - 1] ^= 1;
      OPI_ASSERT(put(s.fd, room + OPI_RECORD_UNSENT, once));
    } else {
      memcpy(room + OPI_RECORD_BEFORE, heard, 64);
      OPI_ASSERT(put(s.fd, heard, n_refusal));
    }
    OPI_ASSERT(is_closed(s.fd));
    hang_up(&s);
  }
  OPI_ASSERT_OK_FATAL(opi_thread_start(&b.thread, "b", open_and_meet, &b, &err), &err);
  opi_thread_join(&a.thread);
  opi_thread_join(&b.thread);
  OPI_ASSERT_OK(a.status, &a.err);
  OPI_ASSERT_OK(b.status, &b.err);
}

/* A record that a member has sent is not taken twice: somebody between the two is named. */
static void test_a_record_is_taken_once(void) {
  static uint8_t room[ROOM];
  static kit_team k;
  kit_member a = {.rank = 0, .kit = &k};
  opipe_error err = OPIPE_ERROR_INIT;
  stranger s;
  if (!has_sodium())
    OPI_SKIP("no libsodium");
  k = (kit_team){.size = 3, .job = kit_job("twice"), .address = free_address()};
  k.tokens[0] = TOKEN;
  k.timeout_ns = 10 * OPI_SECOND;
  OPI_ASSERT_OK_FATAL(opi_thread_start(&a.thread, "a", open_and_meet, &a, &err), &err);
  OPI_ASSERT_FATAL(prove(&s, k.address, TOKEN, k.job));
  s.proof.size = 3;
  const uint32_t size = 3;
  const size_t n = seal_hello(&s, k.job, room);
  memcpy(room + OPI_RECORD_BEFORE + OPI_FRAME_HEAD + offsetof(opi_hello, size), &size, sizeof size);
  s.seal.n_sent = 0;
  opi_seal_write(&s.seal, room,
                 (uint32_t)(n + OPI_RECORD_UNSENT - OPI_RECORD_BEFORE - OPI_RECORD_AFTER));
  OPI_ASSERT(put(s.fd, room + OPI_RECORD_UNSENT, n) && put(s.fd, room + OPI_RECORD_UNSENT, n));
  opi_thread_join(&a.thread);
  OPI_ASSERT_ERROR(a.status, OPIPE_E_PEER, &a.err, "is not what the other end has sent");
  hang_up(&s);
}

/* A second job at the address: its process 0 is refused, and its others by the first job. */
static void test_a_second_job(void) {
  static kit_team k, other;
  kit_member a = {.rank = 0, .kit = &k}, b = {.rank = 1, .kit = &k};
  opi_team *t = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  if (!has_sodium())
    OPI_SKIP("no libsodium");
  k = (kit_team){.size = 2, .job = "the first job", .address = free_address()};
  k.tokens[0] = k.tokens[1] = TOKEN;
  other = k;
  other.job = "the second job";
  OPI_ASSERT_OK_FATAL(opi_thread_start(&a.thread, "a", open_and_meet, &a, &err), &err);
  const int fd = dial(k.address); /* it listens */
  OPI_ASSERT_ERROR(kit_open(&other, 0, &t, &err), OPIPE_E_STATE, &err, "is taken");
  OPI_ASSERT_ERROR(kit_open(&other, 1, &t, &err), OPIPE_E_INVALID, &err,
                   "of job 'the second job', process 0 of job 'the first job'");
  OPI_ASSERT_OK_FATAL(opi_thread_start(&b.thread, "b", open_and_meet, &b, &err), &err);
  opi_thread_join(&a.thread);
  opi_thread_join(&b.thread);
  OPI_ASSERT_OK(a.status, &a.err);
  OPI_ASSERT_OK(b.status, &b.err);
  (void)close(fd);
}

/* 65 connections that say nothing, or a byte now and then: 64 wait, for 5 s. */
static void test_idle_connections(void) {
  enum { IDLE = OPI_PENDING_MOST + 1 };
  static kit_team k;
  static int fds[IDLE];
  kit_member a = {.rank = 0, .kit = &k}, b = {.rank = 1, .kit = &k};
  opipe_error err = OPIPE_ERROR_INIT;
  opi_greeting greeting;
  if (!has_sodium())
    OPI_SKIP("no libsodium");
  k = (kit_team){.size = 2, .job = kit_job("idle"), .address = free_address()};
  k.tokens[0] = k.tokens[1] = TOKEN;
  OPI_ASSERT_OK_FATAL(opi_thread_start(&a.thread, "a", open_and_meet, &a, &err), &err);
  for (uint32_t i = 0; i < IDLE; ++i) {
    OPI_ASSERT_FATAL((fds[i] = dial(k.address)) >= 0);
    if (i + 1 < IDLE)
      OPI_ASSERT(read_all(fds[i], &greeting, sizeof greeting, 5000) && greeting.asks == 1);
  }
  const uint64_t began = opi_clock_ns();
  OPI_ASSERT(!read_all(fds[IDLE - 1], &greeting, sizeof greeting, 100));
  OPI_ASSERT_OK_FATAL(opi_thread_start(&b.thread, "b", open_and_meet, &b, &err), &err);
  for (uint32_t i = 0; i < 16; ++i) { /* bytes do not lengthen its life */
    (void)send(fds[0], "x", 1, MSG_NOSIGNAL);
    kit_sleep_ms(250);
  }
  OPI_ASSERT(is_closed(fds[0]));
  opi_thread_join(&a.thread);
  opi_thread_join(&b.thread);
  OPI_ASSERT_OK(a.status, &a.err);
  OPI_ASSERT_OK(b.status, &b.err);
  const uint64_t took = opi_clock_ns() - began;
  OPI_ASSERT(took > 4 * OPI_SECOND && took < 9 * OPI_SECOND);
  for (uint32_t i = 0; i < IDLE; ++i)
    (void)close(fds[i]);
}

OPI_TEST_MAIN("tcp", OPI_TEST(test_processes_know_their_machine), OPI_TEST(test_long_messages),
              OPI_TEST(test_tokens_that_differ), OPI_TEST(test_addresses_that_cannot_be),
              OPI_TEST(test_replayed_and_reflected), OPI_TEST(test_a_record_is_taken_once),
              OPI_TEST(test_a_second_job), OPI_TEST(test_idle_connections))
