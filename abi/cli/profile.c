/* SPDX-License-Identifier: Apache-2.0 */
/* profile: layers of a model, or this machine as a cluster. */
#include <stdlib.h>
#include <string.h>

#include "page.h"
#include "train.h"

static int give(const cli_options *o, const cli_session *s, opipe_profile *profile) {
  opipe_error err = OPIPE_ERROR_INIT;
  cli_gathered g = {NULL, 0, 0};
  const bool json = o->out.json && o->out.output == NULL;
  if (s->api->profile_describe(profile, json ? OPIPE_FORMAT_JSON : OPIPE_FORMAT_TEXT,
                               cli_write_stdout, NULL, &err) < 0)
    return cli_report("profile", &err);
  if (o->out.output == NULL)
    return CLI_DONE;
  return cli_write_gathered(
      s->api->profile_describe(profile, OPIPE_FORMAT_JSON, cli_gather, &g, &err), o->out.output, &g,
      &err);
}

/* Profiles a model or a description, on a cluster's first device or a device of this machine. */
static int profile_layers(const cli_options *o, cli_session *s, const opipe_train_options *train,
                          uint64_t batch) {
  cli_gathered cluster = {NULL, 0, 0};
  opipe_profile *profile = NULL;
  int status = o->plan.cluster == NULL ? CLI_DONE : cli_cluster_text(o, s, &cluster);
  if (status == CLI_DONE)
    status = cli_profile_make(o, s, train, batch, &cluster, &profile);
  if (status == CLI_DONE)
    status = give(o, s, profile);
  if (profile != NULL)
    s->api->profile_destroy(profile);
  free(cluster.data);
  return status;
}

/* This machine, measured; as one of several processes, with the links between them. */
static int profile_machine(cli_options *o) {
  cli_session s;
  opipe_error err = OPIPE_ERROR_INIT;
  cli_gathered g = {NULL, 0, 0};
  opipe_machine_params params = opipe_machine_params_init();
  opipe_device_choice devices[64];
  memcpy(devices, o->on.devices, sizeof devices);
  params.flags =
      o->plan.cost == OPIPE_COST_MEASURED ? OPIPE_MACHINE_LINKS | OPIPE_MACHINE_RATES : 0u;
  params.devices = devices;
  params.n_devices = o->on.n_devices;
  for (uint32_t d = 0; d < o->on.n_devices; ++d) {
    if (devices[d].threads == 0)
      devices[d].threads = o->on.n_threads;
  }
  int status = cli_open(o, &s);
  if (status == CLI_DONE)
    status = cli_join(o, &s);
  params.transport = o->plan.transport;
  params.team = s.team;
  if (s.team != NULL && s.team_rank != 0) /* two that measure at once would slow each other */
    params.flags &= ~(uint32_t)OPIPE_MACHINE_RATES;
  const bool keeps = o->out.output != NULL && s.team_rank == 0; /* the others' are the same */
  if (status == CLI_DONE && !keeps) {
    if (s.api->cluster_of_machine(s.context, &params, cli_write_stdout, NULL, &err) < 0)
      status = cli_report("profile", &err);
  } else if (status == CLI_DONE) {
    status = cli_write_gathered(s.api->cluster_of_machine(s.context, &params, cli_gather, &g, &err),
                                o->out.output, &g, &err);
  }
  status = cli_part(&s, status);
  cli_close(&s);
  return status;
}

static int profile_training(const cli_options *o) {
  train_setup *t = calloc(1, sizeof(*t));
  if (t == NULL)
    return cli_fail("out of memory");
  int status = train_setup_bind(t, o, false);
  if (status == CLI_DONE)
    status = profile_layers(&t->o, &t->s, &t->options, train_setup_batch(t));
  train_setup_close(t);
  free(t);
  return status;
}

int cli_profile(const cli_options *given) {
  cli_session s;
  cli_options o = *given;
  if (o.n_operands > 1)
    return cli_usage("profile takes one MODEL, %u were given", o.n_operands);
  o.model = o.n_operands == 1 ? o.operands[0] : NULL;
  if ((o.model != NULL) + (o.planner.arch != NULL) + (o.planner.machine ? 1 : 0) != 1)
    return cli_usage("profile: a MODEL, --arch SPEC, or --cluster alone (this machine) is needed");
  if (o.team.launcher != NULL && !o.planner.machine)
    return cli_usage("profile: --launcher is for --cluster: a model is profiled by one process");
  const bool described = o.planner.arch != NULL || o.plan.cluster != NULL; /* no device there */
  if (o.plan.cost == CLI_COST_UNSAID)
    o.plan.cost = described ? OPIPE_COST_RATES : OPIPE_COST_MEASURED;
  if (cli_try_pages(&o) != CLI_DONE)
    return CLI_FAILED;
  if (o.planner.machine)
    return profile_machine(&o);
  if (o.train && o.model != NULL)
    return profile_training(&o);
  int status = cli_open(&o, &s);
  if (status == CLI_DONE && o.model != NULL)
    status = cli_bind(&o, &s, NULL, 0);
  if (status == CLI_DONE) {
    const uint64_t batch = o.model != NULL ? cli_bound_batch(&s) : o.t.batch != 0 ? o.t.batch : 1;
    status = profile_layers(&o, &s, NULL, batch);
  }
  cli_close(&s);
  return status;
}
