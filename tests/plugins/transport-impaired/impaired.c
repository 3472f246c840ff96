/* SPDX-License-Identifier: Apache-2.0 */
/* Transport "impaired", for the tests: transport "shm", or (OPIPE_FAULT_OVER=ucx) "ucx" with all
 * messages by UCX, with a fault (fault.h) at call N of
 *   world  memory  stream  send  recv  reduce (all_reduce, collect)  close (world_close; cannot
 * refuse). With OPIPE_WITHOUT_COLLECTIVES it has none, as older transports. With OPIPE_RULE=N it
 * says that it has that rule, and beyond stream refuses streams of letters between sessions. Every
 * slot but those below takes objects of that transport.
 */
#include <dlfcn.h>
#include <opipe/streams.h>
#include <stdio.h>
#include <stdlib.h>

#include "fault.h"

extern const opipe_plugin opipe_plugin_v1_transport_shm;

static opipe_transport table; /* as the host sees it */
static const opipe_transport *behind;
static const opipe_plugin *plugin; /* behind it */
static bool by_ucx;
static bool hides;                 /* its collectives */
static uint32_t rule = OPIPE_NONE; /* the declared one; OPIPE_NONE: that transport's */

/* ---- slots ---- */

static opipe_status world_open(opipe_instance *self, const opipe_world_params *params,
                               opipe_world **out_world, opipe_error *err) {
  static _Atomic uint32_t count;
  opipe_world_params all = *params;
  const opipe_status status = fault_pass("world", &count, err);
  if (by_ucx)
    all.options = "together=1";
  return status < 0 ? status : behind->world_open(self, &all, out_world, err);
}

static opipe_status memory_alloc(opipe_endpoint *endpoint, uint64_t n_bytes, void **out_data,
                                 opipe_error *err) {
  static _Atomic uint32_t count;
  const opipe_status status = fault_pass("memory", &count, err);
  return status < 0 ? status : behind->memory_alloc(endpoint, n_bytes, out_data, err);
}

static opipe_status stream_open(opipe_endpoint *endpoint, const opipe_stream_params *params,
                                opipe_stream **out_stream, opipe_error *err) {
  static _Atomic uint32_t count;
  const opipe_status status = fault_pass("stream", &count, err);
  if (rule != OPIPE_NONE && rule > OPIPE_RULE_STREAM && params->kind == OPIPE_STREAM_CONTROL &&
      params->src_stage == OPIPE_NONE && params->index != 0) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                      "transport 'impaired': a stream of letters under rule %u", rule);
  }
  return status < 0 ? status : behind->stream_open(endpoint, params, out_stream, err);
}

static opipe_status send_message(opipe_stream *stream, uint64_t sequence,
                                 const opipe_region *region, opipe_event *ready, opipe_event *done,
                                 opipe_error *err) {
  static _Atomic uint32_t count;
  const opipe_status status = fault_pass("send", &count, err);
  return status < 0 ? status : behind->send(stream, sequence, region, ready, done, err);
}

static opipe_status receive(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                            opipe_event *done, opipe_error *err) {
  static _Atomic uint32_t count;
  const opipe_status status = fault_pass("recv", &count, err);
  return status < 0 ? status : behind->recv(stream, sequence, region, done, err);
}

static _Atomic uint32_t n_reduced;

static opipe_status all_reduce(opipe_group *group, uint64_t sequence, const opipe_region *region,
                               uint64_t n_elems, uint32_t dtype, opipe_event *ready,
                               opipe_event *done, opipe_error *err) {
  const opipe_status status = fault_pass("reduce", &n_reduced, err);
  return status < 0 ? status
                    : behind->all_reduce(group, sequence, region, n_elems, dtype, ready, done, err);
}

static opipe_status collect(opipe_collective *collective, uint64_t sequence,
                            const opipe_collect *what, opipe_error *err) {
  const opipe_status status = fault_pass("reduce", &n_reduced, err);
  return status < 0 ? status : behind->collect(collective, sequence, what, err);
}

static void world_close(opipe_world *world) {
  static _Atomic uint32_t count;
  (void)fault_pass("close", &count, NULL);
  behind->world_close(world);
}

/* ---- an older one, or one of another rule ---- */

static opipe_status hide(opipe_status status, opipe_transport_info *io_info) {
  if (status == OPIPE_OK && hides)
    io_info->flags &= ~(uint32_t)(OPIPE_TRANSPORT_COLLECTIVES | OPIPE_TRANSPORT_QUEUED);
  if (status == OPIPE_OK && rule != OPIPE_NONE)
    io_info->rule = rule;
  return status;
}

static opipe_status info(opipe_instance *self, opipe_transport_info *io_info, opipe_error *err) {
  return hide(behind->info(self, io_info, err), io_info);
}

static opipe_status world_info(opipe_instance *self, const char *options,
                               opipe_transport_info *io_info, opipe_error *err) {
  return hide(behind->world_info(self, options, io_info, err), io_info);
}

static void take_collectives(void) {
  table.collective_open = NULL;
  table.collective_close = NULL;
  table.collect = NULL;
  table.collect_test = NULL;
}

/* ---- the plugin ---- */

static const opipe_plugin *find_plugin(opipe_error *err) {
  const char *over = getenv("OPIPE_FAULT_OVER"), *folders = getenv("OPIPE_PLUGIN_PATH");
  char path[4096];
  if (over == NULL || folders == NULL)
    return &opipe_plugin_v1_transport_shm;
  (void)snprintf(path, sizeof path, "%.*s/opipe-transport-%s.so", (int)strcspn(folders, ":"),
                 folders, over);
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  const opipe_plugin *found = library == NULL ? NULL : dlsym(library, "opipe_plugin_v1");
  if (found == NULL)
    (void)opipe_fail(err, OPIPE_E_NOTFOUND, "%s cannot be loaded", path);
  by_ucx = strcmp(over, "ucx") == 0;
  return found;
}

static opipe_status open_plugin(const opipe_host *host, opipe_instance **out_self,
                                opipe_error *err) {
  plugin = find_plugin(err);
  const opipe_status status = plugin == NULL ? OPIPE_E_NOTFOUND : plugin->open(host, out_self, err);
  if (status < 0)
    return status;
  behind = (const opipe_transport *)plugin->get_interface(*out_self, OPIPE_TRANSPORT_ID);
  table = *behind;
  table.world_open = world_open;
  table.world_close = world_close;
  table.stream_open = stream_open;
  table.memory_alloc = memory_alloc;
  table.send = send_message;
  table.recv = receive;
  table.all_reduce = all_reduce;
  table.collect = collect;
  const char *declared = getenv("OPIPE_RULE");
  rule = declared == NULL ? OPIPE_NONE : (uint32_t)strtoul(declared, NULL, 10);
  hides = getenv("OPIPE_WITHOUT_COLLECTIVES") != NULL;
  if (hides)
    take_collectives();
  table.info = info;
  if (behind->world_info != NULL)
    table.world_info = world_info;
  return OPIPE_OK;
}

static void close_plugin(opipe_instance *self) {
  plugin->close(self);
}

static const void *get_interface(opipe_instance *self, const char *id) {
  (void)self;
  return strcmp(id, OPIPE_TRANSPORT_ID) == 0 ? &table : NULL;
}

extern OPIPE_EXPORT const opipe_plugin OPIPE_PLUGIN_SYMBOL;
const opipe_plugin OPIPE_PLUGIN_SYMBOL = {
    OPIPE_PLUGIN_HEAD(OPIPE_KIND_TRANSPORT, 5), "impaired",  "1.0",        "Apache-2.0",
    "a transport that goes wrong as asked",     open_plugin, close_plugin, get_interface};
