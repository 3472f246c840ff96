/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of this folder.
 *
 *   factory ── ep, one per ORT session: options, the library, a context
 *                └── part, one per fused node: tables -> model -> plan -> session
 */
#ifndef HOST_ADAPTER_H
#define HOST_ADAPTER_H

#include <pthread.h>
#include <stdatomic.h>

#include "hosts/hosts.h"
#include "ort.h"

#define EP_NAME "OnnxPipeExecutionProvider"
#define EP_OPTIONS "ep.onnxpipeexecutionprovider." /* ORT: ep.<its name in lower case>.<key> */

#define ORT_TRY(expr)              \
  do {                             \
    ort_status *const s_ = (expr); \
    if (s_ != NULL)                \
      return s_;                   \
  } while (0)

/* ---- one ORT process, one ORT session ---- */

typedef struct factory {
  ort_ep_factory base;
  const ort_table *ort, *ep_api;
  uint32_t version; /* of the tables that were asked for */
} factory;

/* As ORT's session options say. */
typedef struct settings {
  host_settings common;
  bool in_parts, copies; /* partition=auto, weights=copy */
  const char *model;     /* where to write the graph; NULL: nowhere */
} settings;

typedef struct ep {
  ort_ep base;
  const factory *f;
  const ort_logger *logger;
  host_pool memory;
  settings set;
  host_maker maker; /* api NULL: there is no library */
  char *broken;     /* why it cannot do anything; NULL: it can */
  pthread_mutex_t looking;
  ort_session *looker; /* NULL: not yet, or, blind, there can be none */
  bool blind;
} ep;

/* The functions that ORT calls first and last. */
OPIPE_EXPORT ort_status *CreateEpFactories(const char *registered_name, const ort_api_base *base,
                                           const ort_logger *logger, ort_ep_factory **factories,
                                           size_t room, size_t *out_n);
OPIPE_EXPORT ort_status *ReleaseEpFactory(ort_ep_factory *self);

/* An error of ORT's with the text of ours; doing NULL: as it is. */
ort_status *ep_fail(const factory *f, const char *doing, const opipe_error *err);
ort_status *ep_fail_text(const factory *f, int code, const char *fmt, ...) OPIPE_PRINTF(3, 4);
ort_status *ep_no_memory(const factory *f);
void ep_log(const ep *e, int level, const char *fmt, ...) OPIPE_PRINTF(3, 4);

/* ---- tables.c: a graph of ORT's as tables of ours ---- */

/* An initializer that is read where ORT has it. */
typedef struct lent {
  const char *name;
  const void *data;
  size_t index; /* among the fused node's inputs */
} lent;

enum { LENT_LEAST = 65536 /* bytes: smaller ones are copied */ };

typedef struct tables {
  host_pool memory; /* of all that is in the tables, names too */
  opipe_build_graph graph;
  opipe_build_params params;
  lent *lent; /* [n_lent] */
  size_t n_lent;
  uint32_t n_turned; /* nodes that were added: of what ORT has transposed, see host_find_turned */
  bool copies;       /* lend nothing */
} tables;

/* set NULL: the whole graph; else those nodes [n] alone, with what comes in and goes out. */
ort_status *tables_read(const factory *f, const ort_graph *graph, const ort_node *const *set,
                        size_t n, tables *out);
/* Names of values, in the pool: [n], "" where one is absent. */
ort_status *tables_names(const factory *f, host_pool *p, const ort_value_info *const *list,
                         size_t n, const char ***out);
/* Element type and shape of a tensor: in `room` [OPIPE_MAX_RANK] where it has no more dimensions,
 * else in the pool. */
typedef struct tensor_type {
  int dtype;
  size_t rank;
  int64_t *shape; /* [rank] */
} tensor_type;
ort_status *tables_type(const factory *f, const ort_value *value, host_pool *p, int64_t *room,
                        tensor_type *out);

/* claim.c */
ort_status *ep_get_capability(ort_ep *self, const ort_graph *graph, ort_support *support);
/* part.c, run.c */
ort_status *ep_compile(ort_ep *self, const ort_graph **graphs, const ort_node **fused, size_t n,
                       ort_compute **out, ort_node **context_nodes);
void ep_release_computes(ort_ep *self, ort_compute **computes, size_t n);

/* ended.c: the options of the run that the calling thread is in, NULL: not known; is its flag
 * terminate set? */
ort_status *ep_on_run_start(ort_ep *self, const ort_run_options *how);
ort_status *ep_on_run_end(ort_ep *self, const ort_run_options *how, bool sync);
extern _Thread_local const ort_run_options *ep_running;
bool ep_is_ended(ep *e, const ort_run_options *how);

typedef struct port {
  const char *name;
  size_t index; /* among the fused node's inputs, or outputs */
  uint32_t dtype, reserved;
} port;

typedef struct part {
  ort_compute base;
  ep *owner;
  tables t; /* as long as the model: names, copied content */
  port *inputs, *outputs;
  uint32_t n_inputs, n_outputs;
  opipe_model *model;
  opipe_plan *plan;      /* until the session is open; NULL too: the first run makes it */
  host_late late;        /* the session, by the first run at the latest */
  _Atomic bool verified; /* lent memory is where it was */
} part;

ort_status *part_compute(ort_compute *self, void *state, ort_kernel *call);

#endif /* HOST_ADAPTER_H */
