/* SPDX-License-Identifier: Apache-2.0 */
/* For writers of transports between devices whose memory has no host address: how messages can get
 * from one to the other, and pinned memory for those that go through the host. Header only, as
 * helpers.h; nothing here is part of the ABI.
 *
 *   ways    opipe_way_find, opipe_way_tell
 *   rings   opipe_ring_bytes, opipe_ring_pins, opipe_ring_make, opipe_ring_pin, opipe_ring_drop,
 *           opipe_ring_at
 *
 * Thread rule: set-up only.
 */
#ifndef OPIPE_WAYS_H
#define OPIPE_WAYS_H

#include "streams.h"

#ifdef __cplusplus
extern "C" {
#endif

#if OPIPE_TARGET_MINOR >= 5

/* ---- ways ---- */

/* Answers way() and stream_way(): copies as much of `full` as the caller's struct holds. Errors:
 * ABI. */
static inline opipe_status opipe_way_tell(opipe_way *io_way, const opipe_way *full,
                                          opipe_error *err) {
  const uint32_t size = io_way->struct_size;
  if (size < OPIPE_END(opipe_way, dst_bytes))
    return opipe_fail(err, OPIPE_E_ABI, "opipe_way: struct_size %u is too small", size);
  memcpy(io_way, full, size < sizeof *full ? size : sizeof *full);
  io_way->struct_size = size;
  return OPIPE_OK;
}

/* The two devices, and the best way that they allow. */
typedef struct opipe_way_found {
  uint32_t way;                /* HOST, DEVICE, PEER, SHARED, or STAGED where none of these is */
  bool src_remote, dst_remote; /* its memory has no host address */
  uint8_t reserved[2];
  char why[160]; /* STAGED: what stands in a better one's way */
} opipe_way_found;

static inline opipe_status opipe_way_remote(const opipe_backend *backend, opipe_instance *self,
                                            uint32_t index, bool *out_remote, opipe_error *err) {
  opipe_device_info info;
  memset(&info, 0, sizeof info);
  /* the flags alone: finding the rest takes time */
  info.struct_size = (uint32_t)OPIPE_END(opipe_device_info, flags);
  const opipe_status status = backend->device_query(self, index, &info, err);
  *out_remote = status >= 0 && (info.flags & OPIPE_DEVICE_HOST_MEMORY) == 0;
  return status;
}

/* Two devices of one backend, without host memory. */
static inline opipe_status opipe_way_reach_(const opipe_way_params *p, uint32_t wanted,
                                            opipe_way_found *out, opipe_error *err) {
  const opipe_backend *backend = p->src_backend;
  uint32_t reach = 0;
  opipe_status status = OPIPE_OK;
  if (OPIPE_HAS(backend, opipe_backend, device_reach) && backend->device_reach != NULL)
    status = backend->device_reach(p->src_self, p->src_index, p->dst_index, &reach, err);
  else if (p->src_index == p->dst_index)
    reach = OPIPE_REACH_PEER;
  if (status < 0)
    return status;
  if ((reach & wanted) == wanted) {
    out->way = wanted == OPIPE_REACH_SHARED   ? OPIPE_WAY_SHARED
               : p->src_index == p->dst_index ? OPIPE_WAY_DEVICE
                                              : OPIPE_WAY_PEER;
  } else if ((reach & OPIPE_REACH_PEER) != 0) {
    (void)snprintf(out->why, sizeof out->why, "device %u shares no memory with other processes",
                   p->dst_index);
  } else {
    (void)snprintf(out->why, sizeof out->why, "device %u does not reach memory of device %u",
                   p->src_index, p->dst_index);
  }
  return OPIPE_OK;
}

/* `wanted`: OPIPE_REACH_PEER, or OPIPE_REACH_SHARED for a transport between processes. */
static inline opipe_status opipe_way_find(const opipe_way_params *p, uint32_t wanted,
                                          opipe_way_found *out, opipe_error *err) {
  const opipe_backend *backend = p->src_backend;
  memset(out, 0, sizeof *out);
  opipe_status status =
      opipe_way_remote(p->src_backend, p->src_self, p->src_index, &out->src_remote, err);
  if (status >= 0)
    status = opipe_way_remote(p->dst_backend, p->dst_self, p->dst_index, &out->dst_remote, err);
  if (status < 0)
    return status;
  out->way = OPIPE_WAY_STAGED;
  const char *why = "";
  if (!out->src_remote && !out->dst_remote)
    out->way = OPIPE_WAY_HOST;
  else if (!out->src_remote || !out->dst_remote || p->dst_backend != backend)
    why = "the two devices are of different kinds";
  else if (!OPIPE_HAS(backend, opipe_backend, buffer_import) || backend->buffer_import == NULL ||
           backend->native == NULL)
    why = "the backend takes no memory of others";
  else
    return opipe_way_reach_(p, wanted, out, err);
  (void)snprintf(out->why, sizeof out->why, "%s", why);
  return OPIPE_OK;
}

/* ---- rings: pinned memory for the messages in flight of a stream ---- */

enum { OPIPE_RING_STEP = 128, OPIPE_RING_PAGE = 4096 };

typedef struct opipe_ring {
  char *data; /* whole pages; NULL: none */
  uint64_t n_bytes, step;
  bool pinned;
  uint8_t reserved[7];
} opipe_ring;

static inline uint64_t opipe_ring_step(uint64_t n_bytes) {
  return (n_bytes + OPIPE_RING_STEP - 1) / OPIPE_RING_STEP * OPIPE_RING_STEP;
}

/* Bytes of a ring; 0 where messages have none. */
static inline uint64_t opipe_ring_bytes(uint32_t depth, uint64_t n_bytes) {
  const uint64_t all = depth * opipe_ring_step(n_bytes);
  return (all + OPIPE_RING_PAGE - 1) / OPIPE_RING_PAGE * OPIPE_RING_PAGE;
}

/* Can a backend pin memory that exists? */
static inline bool opipe_ring_pins(const opipe_backend *backend) {
  return OPIPE_HAS(backend, opipe_backend, host_unregister) && backend->host_register != NULL &&
         backend->host_unregister != NULL;
}

/* Pins memory of whole pages. False: it is not, as *err says (may be NULL). */
static inline bool opipe_ring_pin(const opipe_backend *backend, opipe_device *device, void *data,
                                  uint64_t n_bytes, opipe_error *err) {
  if (opipe_ring_pins(backend))
    return backend->host_register(device, data, n_bytes, err) >= 0;
  (void)opipe_fail(err, OPIPE_E_UNSUPPORTED, "the backend pins no memory");
  return false;
}

/* Pinned where `pin` and the device can; *err then says why it is not. Errors: NOMEM. */
static inline opipe_status opipe_ring_make(const opipe_host *services, const opipe_backend *backend,
                                           opipe_device *device, uint32_t depth, uint64_t n_bytes,
                                           bool pin, opipe_ring *out, opipe_error *err) {
  out->step = opipe_ring_step(n_bytes);
  out->n_bytes = opipe_ring_bytes(depth, n_bytes);
  out->pinned = false;
  out->data = NULL;
  if (out->n_bytes == 0)
    return OPIPE_OK;
  out->data = (char *)opipe_zeroed(services, "messages", out->n_bytes, OPIPE_RING_PAGE, err);
  if (out->data == NULL)
    return OPIPE_E_NOMEM;
  out->pinned = pin && opipe_ring_pin(backend, device, out->data, out->n_bytes, err);
  return OPIPE_OK;
}

static inline char *opipe_ring_at(const opipe_ring *ring, uint32_t i) {
  return ring->data == NULL ? NULL : ring->data + i * ring->step;
}

/* No copy to or from it is under way. */
static inline void opipe_ring_drop(const opipe_host *services, const opipe_backend *backend,
                                   opipe_device *device, opipe_ring *ring) {
  if (ring->pinned)
    backend->host_unregister(device, ring->data);
  opipe_free(services, ring->data, ring->n_bytes, OPIPE_RING_PAGE);
  ring->data = NULL;
  ring->pinned = false;
}

#endif

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_WAYS_H */
