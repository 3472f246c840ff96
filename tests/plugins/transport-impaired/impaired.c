/* SPDX-License-Identifier: Apache-2.0 */
/* Transport "impaired", for the tests: transport "local" with one defect, $OPIPE_IMPAIRED, which
 * whoever checks transports must see.
 */
#define OPIPE_HELPERS_HOST_DEVICE
#include <opipe/helpers.h>
#include <opipe/transport.h>
#include <stdlib.h>

extern const opipe_plugin OPIPE_PLUGIN_STATIC(transport_local);

static const opipe_transport *local;
static opipe_transport table;

static bool has(const char *defect) {
  const char *asked = getenv("OPIPE_IMPAIRED");
  return asked != NULL && strcmp(asked, defect) == 0;
}

/* ---- objects ---- */

static opipe_status no_world(opipe_instance *self, const opipe_world_params *params,
                             opipe_world **out_world, opipe_error *err) {
  (void)self;
  (void)params;
  (void)out_world;
  (void)err;
  return OPIPE_OK;
}

static opipe_status any_world(opipe_instance *self, const opipe_world_params *params,
                              opipe_world **out_world, opipe_error *err) {
  opipe_world_params own = *params;
  own.options = NULL;
  return local->world_open(self, &own, out_world, err);
}

static opipe_status no_endpoint(opipe_world *world, const opipe_endpoint_params *params,
                                opipe_endpoint **out_endpoint, opipe_error *err) {
  (void)world;
  (void)params;
  (void)out_endpoint;
  (void)err;
  return OPIPE_OK;
}

static opipe_status no_stream(opipe_endpoint *endpoint, const opipe_stream_params *params,
                              opipe_stream **out_stream, opipe_error *err) {
  (void)endpoint;
  (void)params;
  (void)out_stream;
  (void)err;
  return OPIPE_OK;
}

static opipe_status odd_stream(opipe_endpoint *endpoint, const opipe_stream_params *params,
                               opipe_stream **out_stream, opipe_error *err) {
  (void)local->stream_open(endpoint, params, out_stream, err);
  return 77;
}

static opipe_status no_group(opipe_endpoint *endpoint, const uint32_t *ranks, uint32_t n_ranks,
                             uint64_t n_bytes, opipe_group **out_group, opipe_error *err) {
  (void)endpoint;
  (void)ranks;
  (void)n_ranks;
  (void)n_bytes;
  (void)out_group;
  (void)err;
  return OPIPE_OK;
}

/* The sums of falling order. */
static opipe_status falling_group(opipe_endpoint *endpoint, const uint32_t *ranks, uint32_t n_ranks,
                                  uint64_t n_bytes, opipe_group **out_group, opipe_error *err) {
  uint32_t falling[16];
  for (uint32_t i = 0; i < n_ranks && i < 16; ++i)
    falling[i] = ranks[n_ranks - 1 - i];
  return local->group_open(endpoint, falling, n_ranks, n_bytes, out_group, err);
}

static void keep_stream(opipe_stream *stream) {
  (void)stream;
}

/* ---- messages ---- */

static opipe_status grant(opipe_stream *stream, uint64_t sequence, opipe_error *err) {
  const opipe_status status = local->reserve(stream, sequence, err);
  return status == OPIPE_PENDING ? OPIPE_OK : status;
}

static opipe_status early(opipe_stream *stream, uint64_t sequence, opipe_error *err) {
  const opipe_status status = local->test(stream, sequence, err);
  return status == OPIPE_PENDING ? OPIPE_OK : status;
}

static opipe_status say_nothing(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                                opipe_event *done, opipe_error *err) {
  const opipe_status status = local->recv(stream, sequence, region, done, err);
  if (status < 0)
    err->message[0] = '\0';
  return status;
}

/* One bit of what is sent is another one. */
static opipe_status spoil(opipe_stream *stream, uint64_t sequence, const opipe_region *region,
                          opipe_event *ready, opipe_event *sent, opipe_error *err) {
  if (sequence % 64 == 63)
    *(unsigned char *)opipe_host_at(region) ^= 1;
  return local->send(stream, sequence, region, ready, sent, err);
}

/* ---- bells, and the end ---- */

static void ring_nobody(opipe_endpoint *endpoint) {
  (void)endpoint;
}

static opipe_status wait_never(opipe_endpoint *endpoint, uint32_t seen, uint64_t timeout_ns,
                               opipe_error *err) {
  (void)endpoint;
  (void)seen;
  (void)timeout_ns;
  (void)err;
  return OPIPE_OK;
}

static void notify_nobody(opipe_endpoint *endpoint, uint32_t seen, void (*fn)(void *ctx),
                          void *ctx) {
  (void)endpoint;
  (void)seen;
  (void)fn;
  (void)ctx;
}

static void abort_unsaid(opipe_world *world, uint32_t rank, const opipe_error *why) {
  opipe_error own = *why;
  memcpy(own.message, "something", sizeof "something");
  local->abort(world, rank, &own);
}

/* ---- the plugin ---- */

static void impair(void) {
  table = *local;
  table.world_open = has("no-world") ? no_world : has("any-world") ? any_world : table.world_open;
  table.endpoint_open = has("no-endpoint") ? no_endpoint : table.endpoint_open;
  table.stream_open = has("no-stream")    ? no_stream
                      : has("odd-stream") ? odd_stream
                                          : table.stream_open;
  table.group_open = has("no-group")        ? no_group
                     : has("falling-group") ? falling_group
                                            : table.group_open;
  table.stream_close = has("keep-stream") ? keep_stream : table.stream_close;
  table.reserve = has("grant") ? grant : table.reserve;
  table.test = has("early") ? early : table.test;
  table.recv = has("say-nothing") ? say_nothing : table.recv;
  table.send = has("spoil") ? spoil : table.send;
  table.ring = has("ring-nobody") ? ring_nobody : table.ring;
  table.wait = has("wait-never") ? wait_never : table.wait;
  table.notify = has("notify-nobody") ? notify_nobody : table.notify;
  table.abort = has("abort-unsaid") ? abort_unsaid : has("no-abort") ? NULL : table.abort;
  if (has("short-table"))
    table.struct_size = 16;
}

static opipe_status open_plugin(const opipe_host *host, opipe_instance **out_self,
                                opipe_error *err) {
  const opipe_plugin *inner = &OPIPE_PLUGIN_STATIC(transport_local);
  if (has("open-pending"))
    return OPIPE_PENDING;
  const opipe_status status = inner->open(host, out_self, err);
  if (status < 0)
    return status;
  local = (const opipe_transport *)inner->get_interface(*out_self, OPIPE_TRANSPORT_ID);
  impair();
  return OPIPE_OK;
}

static void close_plugin(opipe_instance *self) {
  OPIPE_PLUGIN_STATIC(transport_local).close(self);
}

static const void *get_interface(opipe_instance *self, const char *id) {
  (void)self;
  return strcmp(id, OPIPE_TRANSPORT_ID) == 0 && !has("no-table") ? &table : NULL;
}

extern OPIPE_EXPORT const opipe_plugin OPIPE_PLUGIN_SYMBOL;
const opipe_plugin OPIPE_PLUGIN_SYMBOL = {OPIPE_PLUGIN_HEAD(OPIPE_KIND_TRANSPORT, 0),
                                          "impaired",
                                          "1.0",
                                          "Apache-2.0",
                                          "local with a defect",
                                          open_plugin,
                                          close_plugin,
                                          get_interface};
