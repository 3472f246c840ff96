/* SPDX-License-Identifier: Apache-2.0 */
/* Defects of how messages are said to travel. Included by transport.c, behind what it stands on. */
#ifndef CONFORMANCE_SEEDED_WAYS_BODY_H
#define CONFORMANCE_SEEDED_WAYS_BODY_H

static void damage_way(opipe_way *io_way) {
  static uint32_t n_asked;
  if (seeded("way-unknown"))
    io_way->way = OPIPE_WAY_PAGEABLE + 1;
  if (seeded("way-unsteady") && ++n_asked % 2 == 0)
    io_way->way = OPIPE_WAY_DEVICE;
  if (seeded("way-takes-memory") && io_way->way < OPIPE_WAY_STAGED)
    io_way->dst_bytes = 4096;
  if (seeded("way-without-reason"))
    io_way->why[0] = '\0';
}

static opipe_status way(opipe_instance *self, const char *options, const opipe_way_params *params,
                        opipe_way *io_way, opipe_error *err) {
  const opipe_status status =
      real.way(self, seeded("way-ignores-options") ? NULL : options, params, io_way, err);
  if (status == OPIPE_OK)
    damage_way(io_way);
  if (seeded("way-beyond"))
    memset(io_way + 1, 0, 16);
  return status;
}

static opipe_status stream_way(opipe_stream *stream, opipe_way *io_way, opipe_error *err) {
  const opipe_status status = real.stream_way(stream, io_way, err);
  if (status == OPIPE_OK)
    damage_way(io_way);
  if (seeded("way-never-known"))
    io_way->way = OPIPE_WAY_NONE;
  return status;
}

#endif /* CONFORMANCE_SEEDED_WAYS_BODY_H */
