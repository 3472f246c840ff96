/* SPDX-License-Identifier: Apache-2.0 */
/* Planners: from options to a profile, a strategy, and a plan. */
#include "planning.h"

#include <stdlib.h>
#include <string.h>

enum { DEVICES_MOST = 64, SAMPLES_MOST = 64, BATCH_MOST = 1 << 20, STEP_OF_SAMPLES = 4 };

bool cli_asks_planner(const cli_options *o) {
  return o->planner.name != NULL || o->planner.decides || o->planner.arch != NULL ||
         o->planner.profile != NULL;
}

/* ---- the cluster ---- */

/* The devices of --device, one for each core without any, as a cluster. */
static int describe_machine(const cli_options *o, const cli_session *s, cli_gathered *out) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_device_choice devices[DEVICES_MOST];
  opipe_machine_params params = opipe_machine_params_init();
  memcpy(devices, o->devices, o->n_devices * sizeof devices[0]);
  for (uint32_t d = 0; d < o->n_devices; ++d) {
    if (devices[d].threads == 0)
      devices[d].threads = o->n_threads;
  }
  params.devices = devices;
  params.n_devices = o->n_devices;
  params.transport = o->transport;
  if (s->api->cluster_of_machine(s->context, &params, cli_gather, out, &err) < 0)
    return cli_report("this machine", &err);
  return CLI_DONE;
}

static int take_cluster(const cli_options *o, const cli_session *s, cli_gathered *out) {
  *out = (cli_gathered){NULL, 0, 0};
  return o->cluster != NULL ? cli_cluster_text(o, s, out) : describe_machine(o, s, out);
}

/* ---- the profile ---- */

/* 1, 4, 16, ... and the mini-batch, or --samples. */
static int list_samples(const cli_options *o, uint64_t batch, uint32_t *out, uint32_t *out_n) {
  uint32_t n = 0;
  for (const char *at = o->planner.sizes; at != NULL && *at != '\0';) {
    char *end = NULL;
    const unsigned long value = strtoul(at, &end, 10);
    if (end == at || value == 0 || value > BATCH_MOST || (*end != ',' && *end != '\0') ||
        (n > 0 && value <= out[n - 1]) || n == SAMPLES_MOST)
      return cli_usage("--samples %s: rising numbers 1,2,4 are needed", o->planner.sizes);
    out[n++] = (uint32_t)value;
    at = *end == ',' ? end + 1 : end;
  }
  for (uint64_t k = 1; o->planner.sizes == NULL && k < batch; k *= STEP_OF_SAMPLES)
    out[n++] = (uint32_t)k;
  if (o->planner.sizes == NULL)
    out[n++] = (uint32_t)batch;
  *out_n = n;
  return CLI_DONE;
}

static int read_profile(const cli_options *o, const cli_session *s, opipe_profile **out) {
  opipe_error err = OPIPE_ERROR_INIT;
  void *text = NULL;
  size_t n = 0;
  uint32_t samples[SAMPLES_MOST + 1] = {0}, n_samples = 0;
  if (o->planner.sizes != NULL && list_samples(o, 1, samples, &n_samples) != CLI_DONE)
    return CLI_USAGE;
  if (cli_file_read(o->planner.profile, &text, &n) != CLI_DONE)
    return CLI_FAILED;
  const opipe_status status =
      s->api->profile_read(s->context, text, n, o->planner.profile, samples[0], out, &err);
  free(text);
  return status < 0 ? cli_report(o->planner.profile, &err) : CLI_DONE;
}

int cli_profile_make(const cli_options *o, const cli_session *s, const opipe_train_options *train,
                     uint64_t batch, const cli_gathered *cluster, opipe_profile **out) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_profile_params params = opipe_profile_params_init();
  opipe_model_info info = opipe_model_info_init();
  uint32_t samples[SAMPLES_MOST + 1], n_samples = 0;
  if (o->planner.profile != NULL)
    return read_profile(o, s, out);
  if (batch > BATCH_MOST) {
    return cli_usage("a mini-batch of %llu samples: at most %d", (unsigned long long)batch,
                     BATCH_MOST);
  }
  if (list_samples(o, batch, samples, &n_samples) != CLI_DONE)
    return CLI_USAGE;
  params.flags = o->planner.every_node ? OPIPE_PROFILE_NODES : 0u;
  params.samples = samples;
  params.n_samples = n_samples;
  params.cluster = cluster->data;
  params.cluster_bytes = cluster->n;
  params.cluster_name = o->cluster;
  if (o->planner.arch != NULL) {
    return s->api->profile_of_arch(s->context, o->planner.arch, &params, out, &err) < 0
               ? cli_report("--arch", &err)
               : CLI_DONE;
  }
  (void)s->api->model_info(s->bound, &info, NULL);
  if (info.n_dims == 0 && o->planner.sizes == NULL)
    params.n_samples = 0; /* it is what it is */
  params.cost = o->cost;
  params.batch_dim = o->batch;
  params.train = train;
  if (o->cost == OPIPE_COST_MEASURED && o->cluster == NULL) { /* the device itself */
    const opipe_device_choice *device = o->n_devices == 0 ? NULL : &o->devices[0];
    params.cluster = NULL;
    params.cluster_bytes = 0;
    params.device = device == NULL ? NULL : device->kind;
    params.device_options = device == NULL ? NULL : device->options;
    params.device_index = device == NULL ? 0 : device->index;
    params.threads = device != NULL && device->threads != 0 ? device->threads
                     : o->n_threads != 0                    ? o->n_threads
                                                            : 1;
  }
  return s->api->profile_of_model(s->bound, &params, out, &err) < 0 ? cli_report("profile", &err)
                                                                    : CLI_DONE;
}

uint64_t cli_bound_batch(const cli_session *s) {
  opipe_tensor_info info = opipe_tensor_info_init();
  if (s->bound == NULL || s->api->model_input(s->bound, 0, &info, NULL) < 0 || info.rank == 0 ||
      info.shape[0] < 1)
    return 1;
  return (uint64_t)info.shape[0];
}

/* ---- the strategy ---- */

static void show_progress(void *ctx, uint64_t n_bounded, uint64_t n_simulated, double best_ns) {
  (void)ctx;
  (void)fprintf(stderr, "\rsearching: %llu ruled out, %llu simulated, best %.3f ms ",
                (unsigned long long)n_bounded, (unsigned long long)n_simulated,
                best_ns < 1e18 ? best_ns * 1e-6 : 0);
}

int cli_strategy_make(const cli_options *o, const cli_session *s, const opipe_train_options *train,
                      uint64_t batch, cli_strategy *out) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_strategy_params params = opipe_strategy_params_init();
  *out = (cli_strategy){.api = s->api};
  int status = take_cluster(o, s, &out->cluster);
  if (status == CLI_DONE)
    status = cli_profile_make(o, s, train, batch, &out->cluster, &out->profile);
  if (status != CLI_DONE)
    return status;
  params.planner = o->planner.name;
  params.flags =
      o->planner.flags | (train == NULL && o->planner.arch == NULL && o->planner.profile == NULL
                              ? OPIPE_STRATEGY_FORWARD
                              : 0u);
  params.cluster = out->cluster.data;
  params.cluster_bytes = out->cluster.n;
  params.cluster_name = o->cluster == NULL ? "this machine" : o->cluster;
  params.batch = batch;
  params.memory_bytes = o->memory_bytes;
  params.budget_s = o->planner.budget_s;
  params.limit_ms = o->planner.within_ms;
  params.objective = o->planner.objective;
  params.samples = o->planner.samples;
  params.n_threads = cli_cores();
  if (params.planner == NULL || strcmp(params.planner, "auto") == 0) {
    params.schedule = o->schedule;
    params.n_stages = o->n_stages;
    params.n_microbatches = o->n_microbatches;
    params.progress = cli_is_terminal() ? show_progress : NULL;
  }
  if (s->api->strategy_make(out->profile, &params, &out->strategy, &err) < 0)
    status = cli_report("plan", &err);
  if (params.progress != NULL)
    (void)fputs("\r\033[K", stderr);
  return status;
}

void cli_strategy_end(cli_strategy *strategy) {
  if (strategy->api != NULL) {
    strategy->api->strategy_destroy(strategy->strategy);
    strategy->api->profile_destroy(strategy->profile);
  }
  free(strategy->cluster.data);
  *strategy = (cli_strategy){.api = NULL};
}

/* ---- the plan ---- */

static int plan_of(const cli_options *o, cli_session *s, const cli_strategy *strategy,
                   const opipe_train_options *train, opipe_plan **out_plan) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_device_choice devices[DEVICES_MOST];
  opipe_plan_params params = opipe_plan_params_init();
  devices[0] = (opipe_device_choice){.kind = "cpu", .threads = 1};
  memcpy(devices, o->devices, o->n_devices * sizeof devices[0]);
  params.n_devices = o->n_devices == 0 ? 1 : o->n_devices;
  for (uint32_t d = 0; d < params.n_devices; ++d) {
    if (devices[d].threads == 0)
      devices[d].threads = o->n_threads == 0 ? 1 : o->n_threads;
  }
  params.devices = devices;
  if (o->cluster != NULL) {
    params.devices = NULL;
    params.n_devices = 0;
    params.cluster = strategy->cluster.data;
    params.cluster_bytes = strategy->cluster.n;
    params.cluster_name = o->cluster;
  }
  params.transport = o->transport;
  params.batch_dim = o->batch;
  params.memory_bytes = o->memory_bytes;
  params.depth = o->depth;
  params.cost = o->cost;
  params.flags = OPIPE_PLAN_IGNORE_ANNOTATIONS;
  params.train = train;
  if (s->api->strategy_plan(strategy->strategy, s->bound, &params, out_plan, &err) == OPIPE_OK)
    return CLI_DONE;
  return cli_report("plan", &err);
}

/* Options that a planner decides. */
static int check_options(const cli_options *o) {
  const bool by_auto = o->planner.name == NULL || strcmp(o->planner.name, "auto") == 0;
  const struct {
    const char *name;
    bool given;
  } rows[] = {{"ranks", o->n_ranks != 0},
              {"cut", o->cut != NULL},
              {"plan", o->plan_file != NULL},
              {"replicas", o->t.replicas != NULL},
              {"stages", o->n_stages != 0 && !by_auto},
              {"schedule", o->schedule != NULL && !by_auto},
              {"microbatches", o->n_microbatches != 0 && !by_auto},
              {"recompute", o->t.recompute != NULL && !by_auto}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    if (rows[i].given) {
      return cli_usage("--%s: planner '%s' decides that", rows[i].name,
                       o->planner.name == NULL ? "auto" : o->planner.name);
    }
  }
  return CLI_DONE;
}

int cli_planner_plan(const cli_options *o, cli_session *s, const opipe_train_options *train,
                     uint64_t batch, cli_strategy *out_strategy, opipe_plan **out_plan) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_strategy_info info = opipe_strategy_info_init();
  *out_strategy = (cli_strategy){.api = NULL};
  int status = check_options(o);
  if (status == CLI_DONE)
    status = cli_strategy_make(o, s, train, batch, out_strategy);
  if (status != CLI_DONE || s->bound == NULL)
    return status;
  if (s->api->strategy_info(out_strategy->strategy, &info, &err) < 0)
    return cli_report("plan", &err);
  if ((info.flags & OPIPE_STRATEGY_EXECUTABLE) == 0 &&
      (o->planner.flags & OPIPE_STRATEGY_HYPOTHETICAL) != 0)
    return CLI_DONE;
  status = plan_of(o, s, out_strategy, train, out_plan);
  if (status != CLI_DONE && o->planner.samples == 0 && info.samples == 1) {
    (void)fprintf(stderr, "onnx-pipe: micro-batches have 1 sample: --rows N gives them more\n");
  } else if (status != CLI_DONE && (info.flags & OPIPE_STRATEGY_EXECUTABLE) == 0) {
    (void)fprintf(stderr,
                  "onnx-pipe: --hypothetical prints and simulates what cannot be executed here\n");
  }
  return status;
}

int cli_give_strategy(const cli_options *o, const cli_strategy *strategy, bool is_all) {
  opipe_error err = OPIPE_ERROR_INIT;
  cli_gathered g = {NULL, 0, 0};
  const opipe_api *api = strategy->api;
  if (!is_all && o->json)
    return CLI_DONE; /* the plan says it */
  if (api->strategy_describe(strategy->strategy, o->json ? OPIPE_FORMAT_JSON : OPIPE_FORMAT_TEXT,
                             cli_write_stdout, NULL, &err) < 0)
    return cli_report("plan", &err);
  if (!is_all || o->output == NULL)
    return CLI_DONE;
  return cli_write_gathered(
      api->strategy_describe(strategy->strategy, OPIPE_FORMAT_JSON, cli_gather, &g, &err),
      o->output, &g, &err);
}

/* ---- plan explain ---- */

int cli_explain(const cli_options *o) {
  opipe_error err = OPIPE_ERROR_INIT;
  cli_session s;
  void *text[2] = {NULL, NULL};
  size_t n[2] = {0, 0};
  if (o->n_operands != 3)
    return cli_usage("plan explain A.json B.json: two files are needed");
  int status = cli_open(o, &s);
  for (uint32_t i = 0; i < 2 && status == CLI_DONE; ++i)
    status = cli_file_read(o->operands[i + 1], &text[i], &n[i]);
  if (status == CLI_DONE &&
      s.api->plans_compare(s.context, text[0], n[0], o->operands[1], text[1], n[1], o->operands[2],
                           o->json ? OPIPE_FORMAT_JSON : OPIPE_FORMAT_TEXT, cli_write_stdout, NULL,
                           &err) < 0)
    status = cli_report("plan explain", &err);
  free(text[0]);
  free(text[1]);
  cli_close(&s);
  return status;
}
