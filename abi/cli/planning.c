/* SPDX-License-Identifier: Apache-2.0 */
/* Planners: from options to a profile, a strategy, and a plan. */
#include "planning.h"

#include <stdlib.h>
#include <string.h>

enum { DEVICES_MOST = 64, SAMPLES_MOST = 64, BATCH_MOST = 1 << 20, STEP_OF_SAMPLES = 4 };

/* Replicas of single stages determine the number of ranks; copies of the pipeline do not. */
static bool lists_replicas(const cli_options *o) {
  return o->t.replicas != NULL && strchr(o->t.replicas, ',') != NULL;
}

bool cli_asks_planner(const cli_options *o, const cli_session *s) {
  opipe_model_info info = opipe_model_info_init();
  const bool said = o->plan.n_stages != 0 || o->plan.n_ranks != 0 || o->t.tensor > 1 ||
                    o->plan.schedule != NULL || o->plan.cut != NULL || o->plan.plan_file != NULL ||
                    o->plan.stage_costs.costs.struct_size != 0 || lists_replicas(o);
  if (o->planner.name != NULL || o->planner.decides || o->planner.arch != NULL ||
      o->planner.profile != NULL)
    return true;
  if (said || (o->on.n_devices == 0 && o->plan.cluster == NULL))
    return false; /* only devices, and nothing about stages on them */
  return o->graph.ignore_annotations || s->bound == NULL ||
         s->api->model_info(s->bound, &info, NULL) < 0 || info.n_annotated_stages < 2;
}

static bool asks_auto(const cli_options *o) {
  return o->planner.name == NULL || strcmp(o->planner.name, "auto") == 0;
}

int cli_check_planner(const cli_options *o, const cli_session *s) {
  const struct {
    const char *name;
    bool given;
  } rows[] = {{"budget", o->planner.budget_s != 0},
              {"within", o->planner.within_ms != 0},
              {"allow-stale", (o->planner.flags & OPIPE_STRATEGY_ALLOW_STALE) != 0},
              {"hypothetical", (o->planner.flags & OPIPE_STRATEGY_HYPOTHETICAL) != 0},
              {"rows", o->planner.samples != 0}};
  for (size_t i = 0; !cli_asks_planner(o, s) && i < sizeof rows / sizeof rows[0]; ++i) {
    if (rows[i].given)
      return cli_usage("--%s needs a planner: add --auto or --planner", rows[i].name);
  }
  return CLI_DONE;
}

/* ---- the cluster ---- */

/* The devices of --device, or else as many as there are cores for. Returns their number. */
static uint32_t list_devices(const cli_options *o, opipe_device_choice out[DEVICES_MOST]) {
  const uint32_t threads = o->on.n_threads == 0 ? 1 : o->on.n_threads, room = cli_cores() / threads;
  const uint32_t most = room == 0 ? 1 : room < DEVICES_MOST ? room : DEVICES_MOST;
  const uint32_t n = o->on.n_devices == 0 ? most : o->on.n_devices;
  for (uint32_t d = 0; d < n; ++d) {
    out[d] = o->on.n_devices == 0 ? (opipe_device_choice){.kind = "cpu"} : o->on.devices[d];
    out[d].threads = out[d].threads == 0 ? threads : out[d].threads;
  }
  return n;
}

static bool lacks_cap(const opipe_device_choice *d, const opipe_device_choice *of) {
  return d->memory_bytes == 0 && d->index == of->index && strcmp(d->kind, of->kind) == 0;
}

/* --memory caps devices without a cap of their own; entries of one device share it. */
static void cap_devices(opipe_device_choice *devices, uint32_t n, uint64_t memory_bytes) {
  uint32_t n_sharing[DEVICES_MOST] = {0};
  for (uint32_t d = 0; d < n; ++d) {
    for (uint32_t other = 0; other < n; ++other)
      n_sharing[d] += lacks_cap(&devices[other], &devices[d]) ? 1 : 0;
  }
  for (uint32_t d = 0; d < n; ++d) {
    if (devices[d].memory_bytes == 0)
      devices[d].memory_bytes = memory_bytes / n_sharing[d];
  }
}

/* Describes these devices as a cluster. */
static int describe_machine(const cli_options *o, const cli_session *s, cli_gathered *out) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_device_choice devices[DEVICES_MOST];
  opipe_machine_params params = opipe_machine_params_init();
  params.devices = devices;
  params.n_devices = list_devices(o, devices);
  cap_devices(devices, params.n_devices, o->on.memory_bytes);
  params.transport = o->plan.transport;
  if (s->api->cluster_of_machine(s->context, &params, cli_gather, out, &err) < 0)
    return cli_report_name("this machine", &err);
  return CLI_DONE;
}

static int take_cluster(const cli_options *o, const cli_session *s, cli_gathered *out) {
  *out = (cli_gathered){NULL, 0, 0};
  return o->plan.cluster != NULL ? cli_cluster_text(o, s, out) : describe_machine(o, s, out);
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
  const int found = cli_file_read(o->planner.profile, &text, &n);
  if (found != CLI_DONE)
    return found;
  const opipe_status status =
      s->api->profile_read(s->context, text, n, o->planner.profile, samples[0], out, &err);
  free(text);
  return status < 0 ? cli_report(o->planner.profile, &err) : CLI_DONE;
}

/* True if the batch need not be cut; planner auto does not need it either. */
static bool may_be_whole(const cli_options *o) {
  return asks_auto(o) && o->planner.sizes == NULL && o->plan.n_microbatches <= 1 &&
         o->t.replicas == NULL && o->planner.arch == NULL;
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
    return cli_usage("a %s of %llu samples: at most %d", train == NULL ? "request" : "mini-batch",
                     (unsigned long long)batch, BATCH_MOST);
  }
  if (list_samples(o, batch, samples, &n_samples) != CLI_DONE)
    return CLI_USAGE;
  params.flags = (o->planner.every_node ? OPIPE_PROFILE_NODES : 0u) |
                 (may_be_whole(o) ? OPIPE_PROFILE_WHOLE : 0u);
  params.samples = samples;
  params.n_samples = n_samples;
  params.cluster = cluster->data;
  params.cluster_bytes = cluster->n;
  params.cluster_name = o->plan.cluster;
  if (o->planner.arch != NULL) {
    const opipe_status made =
        s->api->profile_of_arch(s->context, o->planner.arch, &params, out, &err);
    if (made < 0)
      (void)cli_report("profile", &err);
    return made == OPIPE_OK ? CLI_DONE : made == OPIPE_E_INVALID ? CLI_USAGE : CLI_FAILED;
  }
  (void)s->api->model_info(s->bound, &info, NULL);
  if (info.n_dims == 0 && o->planner.sizes == NULL)
    params.n_samples = 0; /* the costs are given */
  params.cost = o->plan.cost;
  params.batch_dim = o->plan.batch;
  params.train = train;
  if (o->plan.cost == OPIPE_COST_MEASURED && o->plan.cluster == NULL) { /* the device itself */
    const opipe_device_choice *device = o->on.n_devices == 0 ? NULL : &o->on.devices[0];
    params.cluster = NULL;
    params.cluster_bytes = 0;
    params.device = device == NULL ? NULL : device->kind;
    params.device_options = device == NULL ? NULL : device->options;
    params.device_index = device == NULL ? 0 : device->index;
    params.threads = device != NULL && device->threads != 0 ? device->threads
                     : o->on.n_threads != 0                 ? o->on.n_threads
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
  (void)fprintf(stderr, "\rsearching: %llu ruled out, %llu simulated",
                (unsigned long long)n_bounded, (unsigned long long)n_simulated);
  if (best_ns < 1e18)
    (void)fprintf(stderr, ", best %.3f ms", best_ns * 1e-6);
  (void)fputs("\033[K", stderr);
}

/* Tokens may be cut if a description is causal, or if the user names such a schedule; a model's
 * plan then proves it, or refuses by node. */
static uint32_t causal_flag(const cli_options *o) {
  const char *arch = o->planner.arch;
  const bool causal =
      arch != NULL && (strncmp(arch, "gpt:", 4) == 0 || strncmp(arch, "llama:", 6) == 0);
  return causal || (o->plan.schedule != NULL && o->planner.arch == NULL) ? OPIPE_STRATEGY_CAUSAL
                                                                         : 0u;
}

/* The planner has no choice of recomputing only attention; a plan has. */
static uint32_t recomputes(const cli_options *o) {
  const char *r = o->t.recompute;
  if (r == NULL)
    return OPIPE_STRATEGY_RECOMPUTES_FREE;
  return strcmp(r, "stage") == 0 || strcmp(r, "block") == 0 ? OPIPE_STRATEGY_RECOMPUTES_ALWAYS
                                                            : OPIPE_STRATEGY_RECOMPUTES_NEVER;
}

/* Fixes values that planner auto need not search. */
static int fix_what_is_given(const cli_options *o, bool trains, opipe_strategy_params *io_params) {
  uint32_t list[CLI_LIST_MOST];
  opipe_plan_params copies = {.replicas = 0};
  if (cli_read_replicas(o->t.replicas, o->plan.n_stages, list, &copies) != CLI_DONE)
    return CLI_USAGE;
  io_params->flags |= causal_flag(o);
  io_params->schedule = o->plan.schedule;
  io_params->n_stages = o->plan.n_stages;
  io_params->n_ranks = o->plan.n_ranks;
  io_params->n_microbatches = o->plan.n_microbatches;
  io_params->replicas = copies.replicas;
  io_params->width = o->t.tensor;
  io_params->recompute = trains ? recomputes(o) : OPIPE_STRATEGY_RECOMPUTES_FREE;
  io_params->progress = cli_is_terminal() ? show_progress : NULL;
  return CLI_DONE;
}

/* --arch and --profile are for training, unless the time of a request is asked for. */
static bool is_forward(const cli_options *o, const opipe_train_options *train) {
  const bool has_model = o->planner.arch == NULL && o->planner.profile == NULL;
  return has_model ? train == NULL : o->planner.objective == OPIPE_OBJECTIVE_LATENCY;
}

/* Makes a strategy of the current profile and cluster, replacing the previous one. */
static int ask(const cli_options *o, const cli_session *s, const opipe_train_options *train,
               uint64_t batch, uint64_t spare_bytes, cli_strategy *out) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_strategy_params params = opipe_strategy_params_init();
  params.planner = o->planner.name;
  params.flags = o->planner.flags | (is_forward(o, train) ? OPIPE_STRATEGY_FORWARD : 0u);
  params.spare_bytes = spare_bytes;
  params.cluster = out->cluster.data;
  params.cluster_bytes = out->cluster.n;
  params.cluster_name = o->plan.cluster == NULL ? "this machine" : o->plan.cluster;
  params.batch = batch;
  params.memory_bytes = o->on.memory_bytes;
  params.budget_s = o->planner.budget_s;
  params.limit_ms = o->planner.within_ms;
  params.objective = o->planner.objective;
  params.samples = o->planner.samples;
  params.n_threads = cli_cores();
  if (asks_auto(o) && fix_what_is_given(o, !is_forward(o, train), &params) != CLI_DONE)
    return CLI_USAGE;
  s->api->strategy_destroy(out->strategy);
  out->strategy = NULL;
  const opipe_status made = s->api->strategy_make(out->profile, &params, &out->strategy, &err);
  if (params.progress != NULL)
    (void)fputs("\r\033[K", stderr);
  if (made < 0 && spare_bytes != 0)
    return CLI_FAILED; /* report the error that occurred without them */
  if (made < 0)
    cli_report_plan(o, true, &err);
  if (made == OPIPE_E_LIMIT && s->bound != NULL && strstr(err.message, " bytes") != NULL) {
    (void)fprintf(stderr,
                  "onnx-pipe: bytes are those of layers: a plan also has workspace and messages\n");
  }
  return made == OPIPE_E_NOTFOUND ? CLI_USAGE : made < 0 ? CLI_FAILED : CLI_DONE;
}

int cli_strategy_make(const cli_options *o, const cli_session *s, const opipe_train_options *train,
                      uint64_t batch, cli_strategy *out) {
  *out = (cli_strategy){.api = s->api};
  int status = take_cluster(o, s, &out->cluster);
  if (status == CLI_DONE)
    status = cli_profile_make(o, s, train, batch, &out->cluster, &out->profile);
  return status == CLI_DONE ? ask(o, s, train, batch, 0, out) : status;
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

static opipe_status plan_of(const cli_options *o, cli_session *s, const cli_strategy *strategy,
                            const opipe_train_options *train, opipe_plan **out_plan,
                            opipe_error *err) {
  opipe_device_choice devices[DEVICES_MOST];
  opipe_plan_params params = opipe_plan_params_init();
  params.n_devices = list_devices(o, devices);
  params.devices = devices;
  if (!asks_auto(o) && o->on.n_devices == 0)
    params.n_devices = 1; /* one device stands for all ranks */
  if (o->plan.cluster != NULL) {
    params.devices = NULL;
    params.n_devices = 0;
    params.cluster = strategy->cluster.data;
    params.cluster_bytes = strategy->cluster.n;
    params.cluster_name = o->plan.cluster;
  }
  params.transport = o->plan.transport;
  params.batch_dim = o->plan.batch;
  params.memory_bytes = o->on.memory_bytes;
  params.depth = o->plan.depth;
  params.cost = o->plan.cost;
  params.flags = OPIPE_PLAN_IGNORE_ANNOTATIONS | (o->plan.improve ? OPIPE_PLAN_IMPROVE : 0u);
  params.train = train;
  return s->api->strategy_plan(strategy->strategy, s->bound, &params, out_plan, err);
}

/* Bytes by which a plan exceeds a cap, from the refusal; UINT64_MAX: it states none. */
static uint64_t overflow_of(const opipe_error *err) {
  const char *at = strstr(err->message, "exceeds its cap of ");
  at = at == NULL ? NULL : strstr(at, " by ");
  return at == NULL ? UINT64_MAX : strtoull(at + strlen(" by "), NULL, 10);
}

/* Keeps the refusal that is nearer to a cap. */
static void keep_nearest(const opipe_error *other, opipe_error *io_err) {
  if (overflow_of(other) < overflow_of(io_err))
    *io_err = *other;
}

/* Makes the plan of the first ranked strategy that fits by exact bytes. A planner counts bytes of
 * layers, a plan every buffer. A strategy that needs more than one that did not fit is not tried.
 */
static opipe_status plan_ranked(const cli_options *o, cli_session *s, cli_strategy *io_strategy,
                                const opipe_train_options *train, opipe_plan **out_plan,
                                opipe_error *err) {
  opipe_strategy *best = io_strategy->strategy;
  opipe_strategy_info info = opipe_strategy_info_init();
  opipe_status status = plan_of(o, s, io_strategy, train, out_plan, err);
  (void)s->api->strategy_info(best, &info, NULL);
  uint64_t too_much = info.memory_bytes;
  for (uint32_t i = 1; status == OPIPE_E_LIMIT && i < info.n_ranked; ++i) {
    opipe_error unused = OPIPE_ERROR_INIT;
    opipe_strategy_info next = opipe_strategy_info_init();
    if (s->api->strategy_ranked(best, i, &io_strategy->strategy, &unused) < 0)
      break;
    (void)s->api->strategy_info(io_strategy->strategy, &next, NULL);
    if (next.memory_bytes <= too_much) {
      if (plan_of(o, s, io_strategy, train, out_plan, &unused) == OPIPE_OK) {
        s->api->strategy_destroy(best);
        return OPIPE_OK;
      }
      keep_nearest(&unused, err);
    }
    too_much = next.memory_bytes < too_much ? next.memory_bytes : too_much;
    s->api->strategy_destroy(io_strategy->strategy);
    io_strategy->strategy = best;
  }
  io_strategy->strategy = best;
  return status;
}

/* The same, leaving more and more of the caps free if none of them fits, since only plans know the
 * excess. */
static opipe_status plan_fitting(const cli_options *o, cli_session *s, uint64_t batch,
                                 cli_strategy *io_strategy, const opipe_train_options *train,
                                 opipe_plan **out_plan, opipe_error *err) {
  enum { PARTS = 16, PARTS_MOST = 12 }; /* of the best one's bytes */
  opipe_strategy_info info = opipe_strategy_info_init();
  opipe_status status = plan_ranked(o, s, io_strategy, train, out_plan, err);
  (void)s->api->strategy_info(io_strategy->strategy, &info, NULL);
  const uint64_t bytes = info.memory_bytes;
  const bool first = status == OPIPE_OK && info.rank == 0;
  for (uint64_t k = 1; status == OPIPE_E_LIMIT && info.n_ranked != 0 && k <= PARTS_MOST; ++k) {
    opipe_error other = OPIPE_ERROR_INIT;
    if (ask(o, s, train, batch, bytes / PARTS * k, io_strategy) != CLI_DONE)
      return status;
    status = plan_ranked(o, s, io_strategy, train, out_plan, &other);
    keep_nearest(&other, err);
  }
  if (status == OPIPE_OK && !first && info.n_ranked != 0) {
    (void)fprintf(stderr,
                  "onnx-pipe: the plan of the best strategy is over a cap by its exact bytes "
                  "(workspace, messages): the next that fits is taken\n");
  }
  return status;
}

/* Options that only planner auto uses. With a model --hypothetical applies to every planner. */
static int check_auto(const cli_options *o, bool has_model) {
  static const char *const names[] = {"auto", "budget", "within", "allow-stale", "hypothetical"};
  const size_t n = sizeof names / sizeof names[0] - (has_model ? 1 : 0);
  for (size_t i = 0; !asks_auto(o) && i < n; ++i) {
    if (cli_was_given(o, names[i])) {
      return cli_usage(
          "--%s: planner '%s' decides by its paper's rules: only planner auto takes this option",
          names[i], o->planner.name);
    }
  }
  if (o->planner.within_ms != 0 && o->planner.objective != OPIPE_OBJECTIVE_MEMORY)
    return cli_usage("--within %g: only --auto=memory has a time limit", o->planner.within_ms);
  return CLI_DONE;
}

/* These two, and auto, which asks them too, take the number of samples of a micro-batch. */
static bool takes_rows(const cli_options *o) {
  return asks_auto(o) || strcmp(o->planner.name, "dapple") == 0 ||
         strcmp(o->planner.name, "pipedream") == 0;
}

/* Options that a planner decides. */
static int check_options(const cli_options *o) {
  const bool by_auto = asks_auto(o);
  if (by_auto && lists_replicas(o)) {
    return cli_usage(
        "--replicas %s: planner 'auto' decides about single stages; --replicas N, "
        "copies of the pipeline, may be given",
        o->t.replicas);
  }
  const struct {
    const char *name;
    bool given;
  } rows[] = {{"ranks", o->plan.n_ranks != 0 && !by_auto},
              {"tensor", o->t.tensor > 1 && !by_auto},
              {"cut", o->plan.cut != NULL},
              {"plan", o->plan.plan_file != NULL},
              {"replicas", o->t.replicas != NULL && !by_auto},
              {"stages", o->plan.n_stages != 0 && !by_auto},
              {"schedule", o->plan.schedule != NULL && !by_auto},
              {"microbatches", o->plan.n_microbatches != 0 && !by_auto},
              {"rows", o->planner.samples != 0 && !takes_rows(o)},
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
    status = check_auto(o, s->bound != NULL);
  if (status == CLI_DONE)
    status = cli_strategy_make(o, s, train, batch, out_strategy);
  if (status != CLI_DONE || s->bound == NULL)
    return status;
  if (s->api->strategy_info(out_strategy->strategy, &info, &err) < 0)
    return cli_report("plan", &err);
  if ((info.flags & OPIPE_STRATEGY_EXECUTABLE) == 0 &&
      (o->planner.flags & OPIPE_STRATEGY_HYPOTHETICAL) != 0)
    return CLI_DONE;
  const opipe_status made = plan_fitting(o, s, batch, out_strategy, train, out_plan, &err);
  if (made == OPIPE_OK)
    return CLI_DONE;
  (void)cli_report("plan", &err);
  if (!asks_auto(o) && takes_rows(o) && o->planner.samples == 0 && info.samples == 1) {
    (void)fprintf(stderr, "onnx-pipe: micro-batches have 1 sample: --rows N gives them more\n");
  } else if ((info.flags & OPIPE_STRATEGY_EXECUTABLE) == 0) {
    (void)fprintf(stderr,
                  "onnx-pipe: --hypothetical only prints and simulates strategies that cannot be "
                  "executed here\n");
  }
  return made == OPIPE_E_NOTFOUND ? CLI_USAGE : CLI_FAILED;
}

void cli_planner_next(const cli_options *o, cli_session *s, const cli_strategy *strategy,
                      const opipe_train_options *train, uint32_t *io_next,
                      opipe_strategy **out_strategy, opipe_plan **out_plan) {
  opipe_error unused = OPIPE_ERROR_INIT;
  cli_strategy next = *strategy;
  *out_strategy = NULL;
  *out_plan = NULL;
  while (s->api->strategy_ranked(strategy->strategy, (*io_next)++, &next.strategy, &unused) ==
         OPIPE_OK) {
    if (plan_of(o, s, &next, train, out_plan, &unused) == OPIPE_OK) {
      *out_strategy = next.strategy;
      return;
    }
    s->api->strategy_destroy(next.strategy);
  }
}

int cli_give_strategy(const cli_options *o, const cli_strategy *strategy, bool is_all) {
  opipe_error err = OPIPE_ERROR_INIT;
  cli_gathered g = {NULL, 0, 0};
  const opipe_api *api = strategy->api;
  if (!is_all && o->out.json)
    return CLI_DONE; /* the plan states it */
  if (api->strategy_describe(strategy->strategy,
                             o->out.json ? OPIPE_FORMAT_JSON : OPIPE_FORMAT_TEXT, cli_write_stdout,
                             NULL, &err) < 0)
    return cli_report("plan", &err);
  if (!is_all || o->out.output == NULL)
    return CLI_DONE;
  return cli_write_gathered(
      api->strategy_describe(strategy->strategy, OPIPE_FORMAT_JSON, cli_gather, &g, &err),
      o->out.output, &g, &err);
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
                           o->out.json ? OPIPE_FORMAT_JSON : OPIPE_FORMAT_TEXT, cli_write_stdout,
                           NULL, &err) < 0)
    status = cli_report("plan explain", &err);
  if (status == CLI_DONE && o->out.html != NULL) {
    cli_gathered page = {NULL, 0, 0};
    status = cli_write_gathered(
        s.api->plans_compare(s.context, text[0], n[0], o->operands[1], text[1], n[1],
                             o->operands[2], OPIPE_FORMAT_HTML, cli_gather, &page, &err),
        o->out.html, &page, &err);
  }
  free(text[0]);
  free(text[1]);
  cli_close(&s);
  return status;
}
