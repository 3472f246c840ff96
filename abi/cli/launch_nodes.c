/* SPDX-License-Identifier: Apache-2.0 */
/* A job of several machines: a launch on each, with its number and one address. torchrun's own
 * variables (PET_*, as training operators set them) stand in for options that are not given. */
#include <stdlib.h>
#include <string.h>

#include "launch.h"

/* A number of a variable. False: it is not set. *out_status: a usage error. */
static bool read_variable(const char *name, uint32_t least, uint32_t most, uint32_t *out,
                          int *io_status) {
  const char *text = getenv(name);
  char *end = NULL;
  if (text == NULL || text[0] == '\0' || *io_status != CLI_DONE)
    return false;
  const unsigned long value = strtoul(text, &end, 10);
  if (text[0] < '0' || text[0] > '9' || *end != '\0' || value < least || value > most) {
    *io_status =
        cli_usage("launch: %s is '%s', not a number from %u to %u", name, text, least, most);
    return false;
  }
  *out = (uint32_t)value;
  return true;
}

/* "2", or torchrun's "2:2"; a range is elastic, which no job here is. */
static int read_count_of_nodes(uint32_t *out) {
  const char *text = getenv("PET_NNODES");
  const char *colon = text == NULL ? NULL : strchr(text, ':');
  int status = CLI_DONE;
  if (colon == NULL) {
    (void)read_variable("PET_NNODES", 1, LAUNCH_MOST, out, &status);
    return status;
  }
  char *end = NULL;
  const unsigned long least = strtoul(text, &end, 10), most = strtoul(colon + 1, NULL, 10);
  if (end != colon || least != most || least == 0 || least > LAUNCH_MOST) {
    return cli_usage("launch: PET_NNODES is '%s': a job has one number of machines, 1 to %d", text,
                     LAUNCH_MOST);
  }
  *out = (uint32_t)least;
  return CLI_DONE;
}

/* "HOST:PORT" of PET_MASTER_ADDR and _PORT, or PET_RDZV_ENDPOINT. */
static void read_address(launch_job *job) {
  const char *host = getenv("PET_MASTER_ADDR"), *port = getenv("PET_MASTER_PORT");
  const char *end = getenv("PET_RDZV_ENDPOINT");
  if (host != NULL && host[0] != '\0' && port != NULL && port[0] != '\0') {
    (void)snprintf(job->address, sizeof job->address,
                   strchr(host, ':') == NULL ? "%s:%s" : "[%s]:%s", host, port);
  } else if (end != NULL && strchr(end, ':') != NULL) {
    (void)snprintf(job->address, sizeof job->address, "%s", end);
  }
}

static int check(const launch_job *job) {
  const char *colon = strrchr(job->address, ':');
  if (job->n_nodes > 1 && job->address[0] == '\0') {
    return cli_usage(
        "launch: --nodes %u needs --address HOST:PORT, a name of the machine of node "
        "0, which all nodes are given alike",
        job->n_nodes);
  }
  if (job->address[0] != '\0' &&
      (colon == NULL || colon == job->address || colon[1] < '0' || colon[1] > '9'))
    return cli_usage("launch: --address %s: HOST:PORT is expected, as node-1:29511", job->address);
  if (job->node >= job->n_nodes) {
    return cli_usage("launch: --node %u: %u nodes are numbered 0 to %u", job->node, job->n_nodes,
                     job->n_nodes - 1);
  }
  if ((uint64_t)job->n * job->n_nodes > LAUNCH_MOST) {
    return cli_usage("launch: %u processes on %u nodes, at most %d are allowed together", job->n,
                     job->n_nodes, LAUNCH_MOST);
  }
  return CLI_DONE;
}

int launch_read_nodes(const cli_options *o, launch_job *job) {
  int status = CLI_DONE;
  job->n_nodes = o->launch.nodes == 0 ? 1 : o->launch.nodes;
  job->node = o->launch.node;
  if (job->n == 0)
    (void)read_variable("PET_NPROC_PER_NODE", 1, LAUNCH_MOST, &job->n, &status);
  if (status == CLI_DONE && o->launch.nodes == 0)
    status = read_count_of_nodes(&job->n_nodes);
  if (job->n_nodes > 1 && !cli_was_given(o, "node") && status == CLI_DONE &&
      !read_variable("PET_NODE_RANK", 0, LAUNCH_MOST, &job->node, &status) && status == CLI_DONE) {
    return cli_usage("launch: --nodes %u needs --node R, this machine's number from 0 to %u",
                     job->n_nodes, job->n_nodes - 1);
  }
  if (o->launch.address != NULL && strlen(o->launch.address) >= sizeof job->address)
    return cli_usage("launch: --address has %zu bytes", strlen(o->launch.address));
  if (o->launch.address != NULL)
    (void)snprintf(job->address, sizeof job->address, "%s", o->launch.address);
  else if (job->n_nodes > 1)
    read_address(job);
  job->first_rank = job->node * job->n;
  return status == CLI_DONE ? check(job) : status;
}

bool launch_tell_nodes(const launch_job *job) {
  char host[sizeof job->address];
  (void)snprintf(host, sizeof host, "%s", job->address);
  char *colon = strrchr(host, ':');
  if (colon == NULL)
    return setenv("MASTER_ADDR", "127.0.0.1", 1) == 0 && unsetenv("ONNX_PIPE_ADDRESS") == 0;
  *colon = '\0';
  char *name = host[0] == '[' ? host + 1 : host;
  name[strcspn(name, "]")] = '\0';
  return setenv("MASTER_ADDR", name, 1) == 0 && setenv("MASTER_PORT", colon + 1, 1) == 0 &&
         setenv("ONNX_PIPE_ADDRESS", job->address, 1) == 0;
}
