/* SPDX-License-Identifier: Apache-2.0 */
/* The table of handles by itself: what is refused and how, ends that wait for whoever is inside,
 * slots that are used again, a table that grows, threads that look up what others destroy, and a
 * forked child. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/handles.h"
#include "tests/support/support.h"

/* Ends exactly once; `alive` while it may be touched. */
typedef struct thing {
  _Atomic uint32_t alive, n_ends;
} thing;

static void end_thing(void *object) {
  thing *t = object;
  atomic_store(&t->alive, 0);
  atomic_fetch_add(&t->n_ends, 1);
}

static void *make(thing *t, uint32_t kind) {
  opipe_error err = OPIPE_ERROR_INIT;
  uint64_t handle = 0;
  atomic_store(&t->alive, 1);
  OPI_ASSERT_OK(opi_handle_new(kind, t, end_thing, 0, &handle, &err), &err);
  return opi_handle_pointer(handle);
}

static bool destroy(void *handle, uint32_t kind) {
  opi_entry pin;
  if (opi_handle_enter(handle, kind, "destroy", &pin, NULL) < 0)
    return false;
  const bool first = opi_handle_kill(&pin);
  opi_handle_leave(&pin);
  return first;
}

static void test_only_the_right_handle_enters(void) {
  thing t = {0, 0};
  opi_entry pin;
  opipe_error err = OPIPE_ERROR_INIT;
  void *h = make(&t, OPI_HANDLE_SESSION);
  OPI_ASSERT_OK_FATAL(opi_handle_enter(h, OPI_HANDLE_SESSION, "call", &pin, &err), &err);
  OPI_ASSERT(pin.object == &t);
  opi_handle_leave(&pin);
  OPI_ASSERT_ERROR(opi_handle_enter(NULL, OPI_HANDLE_PLAN, "call", &pin, &err), OPIPE_E_INVALID,
                   &err, "call: the plan is NULL");
  OPI_ASSERT_ERROR(opi_handle_enter(h, OPI_HANDLE_ORDER, "call", &pin, &err), OPIPE_E_INVALID, &err,
                   "call: this is a session; an order is expected");
  OPI_ASSERT_ERROR(opi_handle_enter(&t, OPI_HANDLE_MODEL, "call", &pin, &err), OPIPE_E_INVALID,
                   &err, "is not a handle of this library; a model is expected");
  OPI_ASSERT(destroy(h, OPI_HANDLE_SESSION));
  OPI_ASSERT_INT(atomic_load(&t.n_ends), 1);
  OPI_ASSERT_ERROR(opi_handle_enter(h, OPI_HANDLE_SESSION, "call", &pin, &err), OPIPE_E_STATE, &err,
                   "call: the session was closed before");
  OPI_ASSERT(!destroy(h, OPI_HANDLE_SESSION));
  OPI_ASSERT_INT(atomic_load(&t.n_ends), 1);
}

/* The object ends with the last call that is inside, once. */
static void test_an_end_waits_for_calls_inside(void) {
  thing t = {0, 0};
  opi_entry a, b;
  void *h = make(&t, OPI_HANDLE_MODEL);
  OPI_ASSERT_INT(opi_handle_enter(h, OPI_HANDLE_MODEL, "call", &a, NULL), OPIPE_OK);
  OPI_ASSERT_INT(opi_handle_enter(h, OPI_HANDLE_MODEL, "call", &b, NULL), OPIPE_OK);
  OPI_ASSERT(destroy(h, OPI_HANDLE_MODEL));
  OPI_ASSERT(!opi_handle_kill(&a));
  OPI_ASSERT_INT(opi_handle_enter(h, OPI_HANDLE_MODEL, "call", &a, NULL), OPIPE_E_STATE);
  opi_handle_leave(&a);
  OPI_ASSERT_INT(atomic_load(&t.alive), 1);
  opi_handle_leave(&b);
  OPI_ASSERT_INT(atomic_load(&t.n_ends), 1);
}

/* A kept slot: every use has a handle of its own. */
static void test_a_kept_slot_makes_new_handles(void) {
  enum { USES = 1000 };
  static void *handles[USES];
  thing t = {1, 0};
  opi_entry pin;
  opi_handle_entry *slot = opi_handle_slot_take(OPI_HANDLE_REQUEST, &t, end_thing, 7, NULL);
  OPI_ASSERT_FATAL(slot != NULL);
  for (size_t i = 0; i < USES; ++i) {
    handles[i] = opi_handle_pointer(opi_handle_slot_arm(slot));
    OPI_ASSERT_INT(opi_handle_owner(handles[i]), 7);
    if (i > 0) {
      OPI_ASSERT(handles[i] != handles[i - 1]);
      OPI_ASSERT_INT(opi_handle_enter(handles[i - 1], OPI_HANDLE_REQUEST, "call", &pin, NULL),
                     OPIPE_E_STATE);
      OPI_ASSERT_INT(opi_handle_owner(handles[i - 1]), 7);
    }
    if (i % 2 == 0)
      OPI_ASSERT(destroy(handles[i], OPI_HANDLE_REQUEST));
    else
      opi_handle_slot_disarm(slot);
  }
  OPI_ASSERT_INT(atomic_load(&t.n_ends), USES / 2);
  for (size_t i = 0; i < USES; ++i)
    OPI_ASSERT(opi_handle_enter(handles[i], OPI_HANDLE_REQUEST, "call", &pin, NULL) < 0);
  opi_handle_slot_drain(slot, 0);
  opi_handle_slot_give(slot);
  OPI_ASSERT_INT(opi_handle_owner(opi_handle_pointer((uintptr_t)handles[0] - (UINT64_C(1) << 30))),
                 0);
}

/* More objects at a time than a chunk holds; none moves. Then slots are used again. */
static void test_the_table_grows(void) {
  enum { N = 3 * OPI_SLOTS };
  static thing things[N];
  static void *handles[N], *again[N];
  opi_entry pin;
  for (size_t i = 0; i < N; ++i)
    handles[i] = make(&things[i], OPI_HANDLE_ORDER);
  for (size_t i = 0; i < N; ++i) {
    OPI_ASSERT_INT(opi_handle_enter(handles[i], OPI_HANDLE_ORDER, "call", &pin, NULL), OPIPE_OK);
    OPI_ASSERT(pin.object == &things[i]);
    opi_handle_leave(&pin);
  }
  for (size_t i = 0; i < N; ++i)
    OPI_ASSERT(destroy(handles[i], OPI_HANDLE_ORDER));
  for (size_t i = 0; i < N; ++i)
    again[i] = make(&things[i], i % 2 == 0 ? OPI_HANDLE_ORDER : OPI_HANDLE_PLAN);
  for (size_t i = 0; i < N; ++i) {
    OPI_ASSERT_INT(opi_handle_enter(handles[i], OPI_HANDLE_ORDER, "call", &pin, NULL),
                   OPIPE_E_STATE);
    OPI_ASSERT(destroy(again[i], i % 2 == 0 ? OPI_HANDLE_ORDER : OPI_HANDLE_PLAN));
    OPI_ASSERT_INT(atomic_load(&things[i].n_ends), 2);
  }
}

/* Bits at random, and every single bit of a good handle turned. */
static void test_garbage_never_enters(void) {
  thing t = {0, 0};
  opi_entry pin;
  uint64_t x = 88172645463325252u;
  const uint64_t good = (uint64_t)(uintptr_t)make(&t, OPI_HANDLE_PLAN);
  for (uint32_t i = 0; i < 100000; ++i) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    const uint64_t h = i < 64 ? good ^ (UINT64_C(1) << i) : x >> (i % 40);
    if (h == good ||
        opi_handle_enter(opi_handle_pointer(h), OPI_HANDLE_PLAN, "call", &pin, NULL) < 0)
      continue;
    OPI_FAIL("%#llx was taken for a plan", (unsigned long long)h);
    opi_handle_leave(&pin);
  }
  OPI_ASSERT(destroy(opi_handle_pointer(good), OPI_HANDLE_PLAN));
}

/* ---- threads ---- */

enum { ROUNDS = 20000, LOOKERS = 3 };

typedef struct stage {
  thing things[2];
  _Atomic uintptr_t handle; /* the newest, soon destroyed */
  _Atomic uint32_t done, n_dead, n_ends;
  opi_handle_entry *kept;
} stage;

static void *look(void *arg) {
  stage *s = arg;
  opi_entry pin;
  while (atomic_load(&s->done) == 0) {
    void *handle = opi_handle_pointer(atomic_load(&s->handle));
    if (opi_handle_enter(handle, OPI_HANDLE_REQUEST, "look", &pin, NULL) < 0)
      continue;
    thing *t = pin.object;
    if (atomic_load(&t->alive) == 0)
      atomic_fetch_add(&s->n_dead, 1);
    if (opi_handle_kill(&pin)) /* sometimes faster than the owner */
      atomic_fetch_add(&s->n_ends, 1);
    opi_handle_leave(&pin);
  }
  return NULL;
}

/* Handles in slots of their own, and in one that is kept; lookers destroy them too. Nobody sees an
 * object that has ended, and every handle ends once. */
static void test_threads_look_up_what_others_destroy(void) {
  stage s = {.done = 0};
  pthread_t threads[LOOKERS];
  opipe_error err = OPIPE_ERROR_INIT;
  uint64_t handle = 0;
  s.kept = opi_handle_slot_take(OPI_HANDLE_REQUEST, &s.things[1], end_thing, 0, &err);
  OPI_ASSERT_FATAL(s.kept != NULL);
  for (size_t i = 0; i < LOOKERS; ++i)
    OPI_ASSERT_FATAL(pthread_create(&threads[i], NULL, look, &s) == 0);
  for (uint32_t i = 0; i < ROUNDS; ++i) {
    thing *t = &s.things[i % 2];
    const uint32_t before = atomic_load(&t->n_ends);
    atomic_store(&t->alive, 1);
    if (i % 2 == 0)
      OPI_ASSERT_OK(opi_handle_new(OPI_HANDLE_REQUEST, t, end_thing, 0, &handle, &err), &err);
    else
      handle = opi_handle_slot_arm(s.kept);
    atomic_store(&s.handle, (uintptr_t)handle);
    if (destroy(opi_handle_pointer(handle), OPI_HANDLE_REQUEST))
      atomic_fetch_add(&s.n_ends, 1);
    while (atomic_load(&t->n_ends) == before)
      continue; /* a looker is inside: it ends the object when it leaves */
  }
  atomic_store(&s.done, 1);
  for (size_t i = 0; i < LOOKERS; ++i)
    (void)pthread_join(threads[i], NULL);
  OPI_ASSERT_INT(atomic_load(&s.n_dead), 0);
  OPI_ASSERT_INT(atomic_load(&s.n_ends), ROUNDS);
  OPI_ASSERT_INT(atomic_load(&s.things[0].n_ends) + atomic_load(&s.things[1].n_ends), ROUNDS);
  opi_handle_slot_drain(s.kept, 0);
  opi_handle_slot_give(s.kept);
}

static void *churn(void *arg) {
  thing t = {0, 0};
  uint64_t handle = 0;
  uint32_t *bad = arg;
  for (uint32_t i = 0; i < ROUNDS; ++i) {
    if (opi_handle_new(OPI_HANDLE_PLAN, &t, end_thing, 0, &handle, NULL) < 0 ||
        !destroy(opi_handle_pointer(handle), OPI_HANDLE_PLAN) || atomic_load(&t.n_ends) != i + 1)
      ++*bad;
  }
  return NULL;
}

static void test_threads_take_and_give_slots(void) {
  pthread_t threads[LOOKERS];
  uint32_t bad[LOOKERS] = {0};
  for (size_t i = 0; i < LOOKERS; ++i)
    OPI_ASSERT_FATAL(pthread_create(&threads[i], NULL, churn, &bad[i]) == 0);
  for (size_t i = 0; i < LOOKERS; ++i) {
    (void)pthread_join(threads[i], NULL);
    OPI_ASSERT_INT(bad[i], 0);
  }
}

/* ---- processes ---- */

static int child(void *handle) {
  thing own = {0, 0};
  opi_entry pin;
  opipe_error err = OPIPE_ERROR_INIT;
  uint64_t fresh = 0;
  if (opi_process_id() != getpid())
    return 1;
  if (opi_handle_enter(handle, OPI_HANDLE_CONTEXT, "call", &pin, &err) != OPIPE_E_STATE ||
      strstr(err.message, "was opened in another process") == NULL)
    return 2;
  if (opi_handle_new(OPI_HANDLE_CONTEXT, &own, end_thing, 0, &fresh, &err) < 0 ||
      !destroy(opi_handle_pointer(fresh), OPI_HANDLE_CONTEXT))
    return 3;
  const pid_t grandchild = fork();
  if (grandchild == 0)
    _exit(opi_process_id() == getpid() ? 0 : 1);
  int status = 0;
  return waitpid(grandchild, &status, 0) == grandchild && status == 0 ? 0 : 4;
}

static void test_a_forked_child_is_told(void) {
  thing t = {0, 0};
  int status = 0;
  void *h = make(&t, OPI_HANDLE_CONTEXT);
  OPI_ASSERT_INT(opi_process_id(), getpid());
  const pid_t pid = fork();
  OPI_ASSERT_FATAL(pid >= 0);
  if (pid == 0)
    _exit(child(h));
  OPI_ASSERT_INT(waitpid(pid, &status, 0), pid);
  OPI_ASSERT(WIFEXITED(status));
  OPI_ASSERT_INT(WEXITSTATUS(status), 0);
  OPI_ASSERT_INT(opi_process_id(), getpid());
  OPI_ASSERT(destroy(h, OPI_HANDLE_CONTEXT));
}

OPI_TEST_MAIN("handles", OPI_TEST(test_only_the_right_handle_enters),
              OPI_TEST(test_an_end_waits_for_calls_inside),
              OPI_TEST(test_a_kept_slot_makes_new_handles), OPI_TEST(test_the_table_grows),
              OPI_TEST(test_garbage_never_enters),
              OPI_TEST(test_threads_look_up_what_others_destroy),
              OPI_TEST(test_threads_take_and_give_slots), OPI_TEST(test_a_forked_child_is_told))
