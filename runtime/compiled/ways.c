/* SPDX-License-Identifier: Apache-2.0 */
/* How the messages of a shape travel between devices, as the transport says once the ranks'
 * endpoints are ready. The plan was told beforehand: a way that is worse now, or whose copies wait,
 * is said in the log.
 */
#include <string.h>

#include "runtime/compiled/build.h"
#include "runtime/compiled/compiled.h"

static const opi_way_told *foretold(const opi_setup *s, uint32_t src, uint32_t dst) {
  const opi_prediction *p = &s->plan->predicted;
  for (uint32_t i = 0; i < p->n_ways; ++i) {
    if (p->ways[i].src_rank == src && p->ways[i].dst_rank == dst)
      return &p->ways[i];
  }
  return NULL;
}

/* Was a stream of the same two ranks found to travel so before? */
static bool is_known(const opi_compiled *t, uint32_t i, uint32_t way) {
  const opi_list_stream *own = &t->lists->streams[i];
  for (uint32_t k = 0; k < i; ++k) {
    const opi_list_stream *other = &t->lists->streams[k];
    if (other->src_rank == own->src_rank && other->dst_rank == own->dst_rank &&
        t->wires[k].way == way)
      return true;
  }
  return false;
}

static void tell(const opi_compiled *t, uint32_t i, const opipe_way *way) {
  const opi_setup *s = t->setup;
  const opi_list_stream *stream = &t->lists->streams[i];
  const opi_way_told *told = foretold(s, stream->src_rank, stream->dst_rank);
  const bool other = told != NULL && told->way < way->way; /* worse */
  if (is_known(t, i, way->way) || (!other && way->way != OPIPE_WAY_PAGEABLE))
    return;
  opi_log(s->env.logger, OPIPE_LOG_WARN, "messages of rank %u to rank %u travel %s%s%s%s%s",
          stream->src_rank, stream->dst_rank, opi_way_words(way->way),
          way->why[0] == '\0' ? "" : ": ", way->why, other ? "; the plan counts on their way " : "",
          other ? opi_way_words(told->way) : "");
}

static opipe_status ask(const opi_setup *s, opipe_stream *stream, opipe_way *out,
                        opipe_error *err) {
  *out = (opipe_way){.struct_size = (uint32_t)OPIPE_END(opipe_way, why)};
  if (stream == NULL)
    return OPIPE_OK;
  OPI_TRY(OPI_ASK_WIRE(s, stream_way, err, stream, out));
  out->why[sizeof out->why - 1] = '\0';
  return out->way < OPIPE_WAY_KINDS ? OPIPE_OK
                                    : opi_fail(err, OPIPE_E_ABI, "transport '%s': way %u of %d",
                                               s->env.transport.id, out->way, OPIPE_WAY_KINDS);
}

opipe_status opi_ways_find(opi_shape *shape, opipe_error *err) {
  opi_compiled *t = shape->compiled;
  opi_setup *s = t->setup;
  const opipe_transport *table = s->transport;
  if (s->reference || shape->lead != shape || !OPIPE_HAS(table, opipe_transport, stream_way) ||
      table->stream_way == NULL)
    return OPIPE_OK;
  for (uint32_t i = 0; i < t->lists->n_streams; ++i) {
    opi_wire *wire = &t->wires[i];
    opipe_way src, dst;
    if (t->lists->streams[i].route == OPI_ROUTE_CREDIT)
      continue;
    OPI_TRY(ask(s, wire->src, &src, err));
    OPI_TRY(ask(s, wire->dst, &dst, err));
    wire->src_staged = src.src_bytes;
    wire->dst_staged = dst.dst_bytes;
    wire->way = src.way > dst.way ? src.way : dst.way; /* the worse */
    wire->counted = wire->src != NULL || wire->dst != NULL;
    if (wire->counted)
      (void)atomic_fetch_add(&s->shapes->streams_by_way[wire->way], 1);
    if (wire->way != OPIPE_WAY_NONE)
      tell(t, i, src.way > dst.way ? &src : &dst);
  }
  return OPIPE_OK;
}

uint64_t opi_ways_staged(const opi_compiled *t, uint32_t rank) {
  uint64_t n = 0;
  if (t->shape->lead != t->shape || t->wires == NULL || t->setup->reference)
    return 0;
  for (uint32_t i = 0; i < t->lists->n_streams; ++i) {
    const opi_list_stream *stream = &t->lists->streams[i];
    n += stream->src_rank == rank ? t->wires[i].src_staged : 0;
    n += stream->dst_rank == rank ? t->wires[i].dst_staged : 0;
  }
  return n;
}

void opi_ways_forget(const opi_compiled *t) {
  for (uint32_t i = 0; t->shape->lead == t->shape && t->wires != NULL && i < t->lists->n_streams;
       ++i) {
    if (t->wires[i].counted)
      (void)atomic_fetch_sub(&t->setup->shapes->streams_by_way[t->wires[i].way], 1);
  }
}
