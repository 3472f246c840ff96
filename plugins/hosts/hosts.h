/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the adapters inside other frameworks; each has a copy of its own.
 *
 *   settings.c  options by name             library.c  libonnxpipe.so at run time, a context
 *   session.c   model -> plan -> session    memory.c   what goes together
 *   sets.c      nodes that can be one         turned.c  matrices of files, transposed in memory
 *   team.c      a team that this process leads
 *
 * Errors: as functions of the library's, the text in a caller-owned opipe_error. [any-thread] but
 * for what writes to a pool or to settings: one thread at a time.
 */
#ifndef HOSTS_HOSTS_H
#define HOSTS_HOSTS_H

#include <opipe/host.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/* ---- memory: hosts of ours lend no allocator ---- */

void *host_take(size_t n_bytes); /* zeroed; NULL: out of memory */
void host_give(void *memory);    /* accepts NULL */

/* Memory that is freed together. */
typedef struct host_pool {
  struct host_pool_block *blocks;
} host_pool;
void *host_pool_take(host_pool *p, size_t n_bytes); /* zeroed; NULL: out of memory */
char *host_pool_text(host_pool *p, const char *text);
void *host_pool_copy(host_pool *p, const void *data, size_t n_bytes); /* NULL: out of memory */
/* The path `file` says, beside the file `path` if it is relative; path NULL or "": as it is. */
char *host_pool_beside(host_pool *p, const char *path, const char *file);
void host_pool_free(host_pool *p);

/* ---- settings ---- */

/* A user's settings for a model; texts are a pool's, NULL: not given; numbers 0: not given. */
typedef struct host_settings {
  const char *library, *schedule, *transport, *plan, *trace, *bind, *team;
  uint64_t memory_bytes;
  uint32_t n_stages, n_ranks, n_threads, n_microbatches, n_replicas, max_shapes;
} host_settings;

enum { HOST_TEXT, HOST_BYTES, HOST_NUMBER, HOST_CHOICE };

/* An option: where in the struct of settings it goes. A choice is a bool: the second word. */
typedef struct host_option {
  const char *key;
  uint32_t kind; /* HOST_TEXT: const char *, _BYTES: uint64_t, _NUMBER: uint32_t, _CHOICE: bool */
  size_t at;
  const char *first, *second; /* of a choice */
} host_option;

/* Rows of a table for a struct `type` in which host_settings is the member `member`. */
#define HOST_OPTION_(type, member, key, kind, field) \
  { key, kind, offsetof(type, member) + offsetof(host_settings, field), NULL, NULL }
#define HOST_OPTIONS(type, member)                                             \
  HOST_OPTION_(type, member, "library", HOST_TEXT, library),                   \
      HOST_OPTION_(type, member, "schedule", HOST_TEXT, schedule),             \
      HOST_OPTION_(type, member, "transport", HOST_TEXT, transport),           \
      HOST_OPTION_(type, member, "plan", HOST_TEXT, plan),                     \
      HOST_OPTION_(type, member, "trace", HOST_TEXT, trace),                   \
      HOST_OPTION_(type, member, "bind", HOST_TEXT, bind),                     \
      HOST_OPTION_(type, member, "team", HOST_TEXT, team),                     \
      HOST_OPTION_(type, member, "memory", HOST_BYTES, memory_bytes),          \
      HOST_OPTION_(type, member, "stages", HOST_NUMBER, n_stages),             \
      HOST_OPTION_(type, member, "ranks", HOST_NUMBER, n_ranks),               \
      HOST_OPTION_(type, member, "threads", HOST_NUMBER, n_threads),           \
      HOST_OPTION_(type, member, "microbatches", HOST_NUMBER, n_microbatches), \
      HOST_OPTION_(type, member, "replicas", HOST_NUMBER, n_replicas),         \
      HOST_OPTION_(type, member, "shapes", HOST_NUMBER, max_shapes)

/* Sets what `key` says in the struct at `settings`. Errors: INVALID names option and value;
 * NOTFOUND: no option of that name. */
opipe_status host_set(const host_option *options, size_t n, void *settings, host_pool *p,
                      const char *key, const char *value, opipe_error *err);

/* ---- the library ---- */

/* Where `path` says; else (NULL) in this adapter's own folder, or up to two around it; else as the
 * system finds it. Never the current directory, and never closed again. Errors: NOTFOUND says where
 * it was looked for. */
opipe_status host_open_library(const char *path, const opipe_api **out_api, opipe_error *err);

/* ---- model, plan, session ---- */

/* A team that this process leads (team.c). */
typedef struct host_team {
  opipe_team *team;
  opipe_team_info info;
  opipe_model *model;
  atomic_uint n_open; /* sessions */
} host_team;

/* Who makes plans and sessions; borrowed as long as these. */
typedef struct host_maker {
  const opipe_api *api;
  opipe_context *context;
  const host_settings *set;
  host_team *team; /* NULL: none */
} host_maker;

/* Option team: "any", or a launcher's name: joins the team of which this is process 0, to serve
 * `model`. Errors: INVALID: it is not, or is alone; as team_open. */
opipe_status host_join(host_maker *m, opipe_model *model, opipe_error *err);
void host_leave(host_maker *m);                                          /* no session is open */
void host_plan_for(const host_team *team, opipe_plan_params *io_params); /* ranks, transport */
opipe_status host_open_in_team(const host_maker *m, opipe_plan *plan, opipe_session_params *io,
                               opipe_session **out_session, opipe_error *err);
/* Closes what host_open has opened; accepts NULL. */
void host_close(const host_maker *m, opipe_session *session);

/* A plan that is made, as far as the settings say; *out refers to out_device. */
void host_plan_params(const host_maker *m, opipe_device_choice *out_device, opipe_plan_params *out);
/* A plan as the settings say: read, or made for the dimensions that the model has, or where these
 * are free for those of option `bind` and the library's defaults. *out_plan NULL: a shape depends
 * on values of inputs, see host_open_with. */
opipe_status host_make_plan(const host_maker *m, opipe_model *model, opipe_plan **out_plan,
                            opipe_error *err);
opipe_status host_open(const host_maker *m, opipe_plan *plan, opipe_session **out_session,
                       opipe_error *err);
/* Plan and session for shapes and values of one request: io [n], every input in the model's order.
 */
opipe_status host_open_with(const host_maker *m, opipe_model *model, const opipe_binding_io *io,
                            uint32_t n, opipe_session **out_session, opipe_error *err);

/* A session that is opened once. Whoever has it makes and destroys the lock. */
typedef struct host_late {
  pthread_mutex_t lock;
  _Atomic(opipe_session *) session; /* NULL: not yet */
} host_late;
/* Opens it as host_open_with, unless it is open. [any-thread] */
opipe_status host_open_late(const host_maker *m, opipe_model *model, const opipe_binding_io *io,
                            uint32_t n, host_late *late, opipe_error *err);

/* Can the library have these tables? OK also where it only needs the value of an input like a
 * shape: each value is compiled for. Errors: as model_build and model_bind. */
opipe_status host_can_have(const host_maker *m, const opipe_build_params *params, opipe_error *err);

/* Submits; where there is no room it sleeps until there is. */
opipe_status host_submit(const opipe_api *api, opipe_session *session,
                         const opipe_submit_params *params, opipe_request **out_request,
                         opipe_error *err);

/* A request from submit to its end. is_over (NULL: never): asked every 20 ms that it takes; once it
 * says so the request is cancelled. Errors: CANCELLED, then; as session_submit and request_wait. */
opipe_status host_run(const opipe_api *api, opipe_session *session,
                      const opipe_submit_params *params, bool (*is_over)(void *ctx), void *ctx,
                      opipe_error *err);

/* ---- parts of a graph ---- */

/* Does the node hold graphs, as If and Loop do? Is the value `name` one of its outputs? */
bool host_has_bodies(const opipe_build_node *node);
bool host_makes(const opipe_build_node *node, const char *name);
/* Is input `i` something like a shape, of which few values are likely to come, in a graph whose
 * nodes do not differ by it? */
bool host_is_shape(const opipe_build_graph *g, int32_t i);
/* out_levels [n_nodes] of nodes in the order in which they can run, where taken [n_nodes] says
 * which are ours: those of one level can become one node, as no way leads out of them and back in,
 * also by what bodies read of the graph around them. Returns the highest level. */
uint32_t host_levels(const opipe_build_graph *g, const bool *taken, uint32_t *out_levels);
/* Drops from g's inputs (of_inputs; else outputs), a list of io_n in a pool, those without a name,
 * those that were there before, and inputs that are initializers or made by a node. */
void host_drop_values(const opipe_build_graph *g, bool of_inputs, uint32_t *io_n);
/* By name: tensors [n]. */
void host_sort_tensors(opipe_build_tensor *tensors, size_t n);
/* Where initializers [rows, columns] in memory, of at least `least_bytes`, are the transpose of one
 * in a file that a node reads, g gets a Transpose of that one in their place: their memory is not
 * read any more. Tables of g and what is new are the pool's; *out_n: how many. Reads those files.
 * false: out of memory. */
bool host_find_turned(opipe_build_graph *g, host_pool *p, uint64_t least_bytes, uint32_t *out_n);

/* The session's last request in the file of option `trace`, if that is given. session NULL:
 * nothing. */
opipe_status host_write_trace(const host_maker *m, opipe_model *model, opipe_session *session,
                              opipe_error *err);

#endif /* HOSTS_HOSTS_H */
