/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of this folder.
 *
 *   backend, one a server: the library, a context with its device budget
 *     └── served, one a model: file -> model -> plan
 *           └── instance: a session; requests in flight, a thread that answers them
 */
#ifndef HOST_ADAPTER_H
#define HOST_ADAPTER_H

#include <pthread.h>
#include <stdatomic.h>

#include "hosts/hosts.h"
#include "triton.h"

extern tri_table tri; /* lookup.c */

#define TRI_TRY(expr)             \
  do {                            \
    tri_error *const e_ = (expr); \
    if (e_ != NULL)               \
      return e_;                  \
  } while (0)

/* ---- lookup.c: the server's functions, errors, log ---- */

/* Fills `tri`, from all names of the process, and of the library that `caller` is an address in:
 * one that a host has opened for itself alone shares its names with nobody. false: a function is
 * missing; only ErrorNew may be called then, which whoever loads backends has. */
bool tri_look_up(const void *caller);
tri_error *tri_fail(int code, const char *fmt, ...) OPIPE_PRINTF(2, 3);
/* With the library's text; `doing` NULL: as it is. */
tri_error *tri_fail_with(const char *doing, const opipe_error *err);
tri_error *tri_no_memory(void);
void tri_log(int level, const char *fmt, ...) OPIPE_PRINTF(2, 3);
/* Logs an error that cannot be returned. */
void tri_drop(tri_error *error, const char *doing);
/* OPIPE_FLOAT -> the server's number and name; 0 and NULL where it has none. */
int tri_type_of(uint32_t dtype, const char **out_name);

/* ---- config.c, model.c ---- */

/* Parameters of a model. */
typedef struct model_settings {
  host_settings common;
  uint32_t n_context; /* "context": it generates; 0: it does not */
  uint32_t n_active, n_token_rows;
} model_settings;

/* As --backend-config=onnxpipe,KEY=VALUE says. */
typedef struct backend {
  host_pool memory;
  const char *library;
  uint64_t budget_bytes;            /* of the device "cpu", for all models and instances; 0: none */
  uint32_t cores, n_rows_by_itself; /* default-max-batch-size: of models that say nothing */
  const opipe_api *api;
  opipe_context *context;
} backend;

typedef struct port {
  const char *name;
  const int64_t *shape; /* [rank], -1: free; the model's */
  uint32_t dtype, rank;
  int type; /* the server's */
  const char *type_name;
  bool optional;
} port;

/* One model of a repository. */
typedef struct served {
  backend *owner;
  host_pool memory;
  model_settings set;
  host_maker maker;
  const char *name;
  opipe_model *model;
  opipe_plan *plan; /* NULL: a session's first request makes it */
  port *inputs, *outputs;
  uint32_t n_inputs, n_outputs;
  uint32_t n_rows;   /* max_batch_size; 0: requests are not joined */
  bool is_decoupled; /* a request may have many responses */
} served;

/* Settings of the server's command line. */
tri_error *config_read_backend(tri_backend *handle, backend *b);
/* Loads, completes the configuration, plans. *out: model_close gives it back. */
tri_error *model_open(tri_model *handle, backend *b, served **out);
void model_close(served *s); /* accepts NULL */
/* The file and the parameters, before there is a model. */
tri_error *config_read_model(tri_model *handle, served *s, const char **out_path);
/* Adds inputs, outputs and batches where it says nothing, checks the rest against the model, and
 * says what n_rows is. */
tri_error *config_complete(tri_model *handle, served *s);
/* Do all inputs and outputs have a free first dimension, and does the graph carry it as a batch? */
bool model_has_batch(const served *s);

/* ---- instance.c, batch.c ---- */

typedef struct batch batch;
typedef struct talk talk; /* generate.c */

typedef struct instance {
  tri_instance *handle;
  const served *s;
  host_late late; /* the session, by the first request at the latest */
  /* Under `lock`. */
  pthread_mutex_t lock;
  pthread_cond_t changed;
  batch *flying, *landed; /* lists, the oldest first */
  talk *talks;            /* of a model that generates, the oldest first */
  uint64_t n_ended;       /* of these */
  pthread_cond_t room;    /* one has ended */
  bool stop;
  pthread_t thread; /* it answers */
} instance;

/* A request of the server's. */
typedef struct ask {
  tri_request *request;
  tri_response *response; /* NULL: not made yet */
  tri_error *error;       /* of this one alone */
  bool *wanted;           /* [n_outputs] */
  int64_t rows;           /* 0: not joined */
} ask;

/* Requests that run as one: joined along the first dimension where there are several. */
struct batch {
  instance *owner;
  batch *next;
  host_pool memory;
  opipe_binding_io *io; /* [n_inputs] */
  ask *asks;            /* [n] */
  void **places; /* [n_outputs] of the only request: the server's memory, NULL: not asked for */
  opipe_request *request;
  tri_error *error;      /* of all of it: it was not submitted */
  atomic_int holds;      /* who submits, and the library: the last one hands it to the thread */
  atomic_bool submitted; /* `request` is set */
  int64_t rows;
  uint32_t n;
  bool cancelled;
  uint64_t start_ns, compute_start_ns, compute_end_ns;
};

/* An input as the server describes it. */
typedef struct seen_input {
  tri_input *input;
  const int64_t *shape; /* the server's */
  uint32_t rank, n_buffers;
  uint64_t n_bytes;
} seen_input;

uint64_t now_ns(void);
/* Checks an input of a request against its port. */
tri_error *input_see(const port *p, tri_request *request, seen_input *out);
/* All buffers of an input, one after the other, to `to`. */
tri_error *input_copy(const port *p, const seen_input *in, char *to);
/* Answers a request with `error`, which it takes, and ends it. */
void batch_refuse(instance *i, tri_request *request, tri_error *error, uint64_t start_ns);
/* The instance's requests: owned from here on, and answered whatever happens. */
void batch_take(instance *i, tri_request **requests, uint32_t n, uint64_t start_ns);
/* The batch is neither in flight nor landed any more: sends the answers, ends the requests and the
 * batch. */
void batch_answer(batch *b);
/* Asks the server whether all of it are cancelled, and then cancels it. */
void batch_look(batch *b);

/* Under the lock, on the instance's thread: sleeps until something has changed; looks: at most for
 * the time between two looks at clients. true: that time has passed. */
bool instance_sleep(instance *i, bool looks);

/* ---- generate.c: models that generate ---- */

/* Plans it. */
tri_error *generate_open(served *s);
/* The inputs and outputs that it has for the server. */
tri_error *generate_ports(served *s);
/* A request: owned from here on, and answered whatever happens. Waits while too many are open. */
void generate_take(instance *i, tri_request *request, uint64_t start_ns);
/* The instance's thread, under its lock: until it is to stop and all have ended. */
void generate_run(instance *i);

tri_error *instance_open(tri_instance *handle, const served *s, instance **out);
void instance_close(instance *i); /* waits for what is in flight; accepts NULL */
void instance_launch(batch *b);   /* into `flying`; from there on the thread alone ends it */
void instance_land(batch *b);     /* from there to `landed` */

#endif /* HOST_ADAPTER_H */
