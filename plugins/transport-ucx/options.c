/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a world:
 *   net=NAME|ADDRESS  the network interface, or its address; several with +; a device of UCX's, as
 *                     mlx5_0:1. Without it UCX_NET_DEVICES, without that the interface of the
 *                     team's address, without a team lo: loopback
 *   tls=NAMES         UCX's transports, joined by +. Without it UCX_TLS, without that tcp, or for a
 *                     device that is no network interface UCX's own choice
 *   together=N        ranks share memory only with ranks of the same N, counted from 0: 1 sends
 *                     everything over UCX. Without it all ranks of a machine share memory
 */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>

#include "ucx.h"

/* "a+b" as "a,b". */
static opipe_status copy_list(const char *key, const char *value, char *out, opipe_error *err) {
  const size_t n = strlen(value);
  if (n == 0 || n >= UCX_WORDS)
    return opipe_fail(err, OPIPE_E_INVALID, "transport 'ucx': %s= names nothing", key);
  for (size_t i = 0; i <= n; ++i)
    out[i] = value[i] == '+' ? ',' : value[i];
  return OPIPE_OK;
}

static opipe_status read_together(const char *value, uint32_t *out, opipe_error *err) {
  char *end = NULL;
  const unsigned long n = strtoul(value, &end, 10);
  if (value[0] < '0' || value[0] > '9' || *end != '\0' || n > UCX_RANKS_MOST) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "transport 'ucx': together=%s is not a number of ranks (0 to %d)", value,
                      UCX_RANKS_MOST);
  }
  *out = (uint32_t)n;
  return OPIPE_OK;
}

static opipe_status read_option(const char *key, const char *value, ucx_options *out,
                                opipe_error *err) {
  if (strcmp(key, "net") == 0)
    return copy_list(key, value, out->net, err);
  if (strcmp(key, "tls") == 0)
    return copy_list(key, value, out->tls, err);
  if (strcmp(key, "together") == 0)
    return read_together(value, &out->together, err);
  return opipe_fail(err, OPIPE_E_NOTFOUND,
                    "transport 'ucx' has no option '%s' (net, tls, together)", key);
}

static bool has_address(const struct ifaddrs *at, const char *address) {
  char text[INET6_ADDRSTRLEN] = "";
  const void *data = NULL;
  if (at->ifa_addr == NULL)
    return false;
  if (at->ifa_addr->sa_family == AF_INET)
    data = &((const struct sockaddr_in *)(const void *)at->ifa_addr)->sin_addr;
  else if (at->ifa_addr->sa_family == AF_INET6)
    data = &((const struct sockaddr_in6 *)(const void *)at->ifa_addr)->sin6_addr;
  return data != NULL && inet_ntop(at->ifa_addr->sa_family, data, text, sizeof text) != NULL &&
         strcmp(text, address) == 0;
}

/* An address becomes the name of its interface. */
static opipe_status name_interface(ucx_options *options, opipe_error *err) {
  struct in6_addr any;
  const bool is_address =
      inet_pton(AF_INET, options->net, &any) == 1 || inet_pton(AF_INET6, options->net, &any) == 1;
  struct ifaddrs *all = NULL;
  char name[IF_NAMESIZE] = "";
  if (!is_address)
    return OPIPE_OK;
  if (getifaddrs(&all) == 0) {
    for (const struct ifaddrs *at = all; at != NULL && name[0] == '\0'; at = at->ifa_next) {
      if (has_address(at, options->net))
        (void)snprintf(name, sizeof name, "%s", at->ifa_name);
    }
    freeifaddrs(all);
  }
  if (name[0] == '\0') {
    return opipe_fail(err, OPIPE_E_NOTFOUND,
                      "transport 'ucx': no interface of this machine has the address %s",
                      options->net);
  }
  (void)snprintf(options->net, sizeof options->net, "%s", name);
  return OPIPE_OK;
}

/* The host at which this process takes part in the team, or lo. */
static void ask_team(const opipe_board *board, char *out) {
  uint64_t n = UCX_WORDS - 1;
  if (board == NULL || board->look(board->ctx, "team/address", out, &n, NULL) != OPIPE_OK)
    n = (uint64_t)snprintf(out, UCX_WORDS, "lo");
  out[n] = '\0';
}

/* The devices that the options or the environment name. */
static const char *take_net(ucx_options *io, const opipe_board *board) {
  const char *net = secure_getenv("UCX_NET_DEVICES");
  if (io->net[0] == '\0' && net == NULL)
    ask_team(board, io->net);
  return io->net[0] != '\0' ? io->net : net;
}

static void take_tls(ucx_options *io, const char *devices) {
  if (io->tls[0] == '\0' && secure_getenv("UCX_TLS") == NULL && strchr(devices, ':') == NULL)
    (void)snprintf(io->tls, sizeof io->tls, "tcp"); /* interfaces: its other devices have ports */
}

opipe_status ucx_read_options(const char *text, ucx_options *out, opipe_error *err) {
  char key[32], value[UCX_WORDS];
  int more = 1;
  *out = (ucx_options){.together = 0};
  while (more > 0) {
    more = opipe_option_next(&text, key, sizeof key, value, sizeof value);
    if (more < 0) {
      return opipe_fail(err, OPIPE_E_INVALID,
                        "transport 'ucx': options cannot be understood from '%.60s' on", text);
    }
    const opipe_status status = more == 0 ? OPIPE_OK : read_option(key, value, out, err);
    if (status < 0)
      return status;
  }
  return OPIPE_OK;
}

opipe_status ucx_complete_options(ucx_options *io, const opipe_board *board, opipe_error *err) {
  const char *devices = take_net(io, board);
  const opipe_status status = name_interface(io, err);
  take_tls(io, devices == io->net ? io->net : devices);
  return status;
}

bool ucx_is_loopback(const ucx_options *options) {
  return strcmp(options->net, "lo") == 0;
}
