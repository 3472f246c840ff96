/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs of the double: what one stream was given while it was captured. */
#include <stdlib.h>

#include "work.h"

static uint64_t n_graph_launches, n_graphs;

void cuda_double_count_graphs(cuda_double_facts *io_facts) {
  io_facts->graph_launches = n_graph_launches;
  io_facts->live_graphs = n_graphs;
}

static void free_graph(CUgraph graph) {
  while (graph->first != NULL) {
    work *w = graph->first;
    graph->first = w->next;
    free(w);
  }
  free(graph);
  --n_graphs;
}

static CUgraph new_graph(void) {
  CUgraph graph = calloc(1, sizeof *graph);
  if (graph != NULL) {
    graph->last = &graph->first;
    ++n_graphs;
  }
  return graph;
}

/* to += from */
static CUresult append_all(work ***to, const struct CUgraph_st *from) {
  CUresult result = CUDA_OK;
  for (const work *w = from->first; w != NULL && result == CUDA_OK; w = w->next)
    result = cuda_double_append(to, w, w->args, w->kind <= WORK_CALL ? w->n_bytes : 0);
  return result;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  CUresult result = cuda_double_enter_apart();
  if (result != CUDA_OK)
    return result;
  (void)pthread_mutex_lock(&cuda_double_lock);
  if (stream->captured != NULL || (int)mode != CUDA_CAPTURE_THREAD_LOCAL)
    result = CUDA_INVALID_VALUE;
  else if ((stream->captured = new_graph()) == NULL)
    result = CUDA_OUT_OF_MEMORY;
  (void)pthread_mutex_unlock(&cuda_double_lock);
  cuda_double_captures = result == CUDA_OK;
  return result;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
  CUresult result = cuda_double_enter();
  if (result != CUDA_OK)
    return result;
  (void)pthread_mutex_lock(&cuda_double_lock);
  *graph = stream->captured;
  stream->captured = NULL;
  if (*graph == NULL) {
    result = CUDA_INVALID_VALUE;
  } else if ((*graph)->broken) {
    free_graph(*graph);
    *graph = NULL;
    result = CUDA_STREAM_CAPTURE_INVALIDATED;
  }
  (void)pthread_mutex_unlock(&cuda_double_lock);
  cuda_double_captures = false;
  return result;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *made, CUgraph graph, unsigned long long flags) {
  CUresult result = cuda_double_enter_apart();
  if (result != CUDA_OK || flags != 0)
    return result != CUDA_OK ? result : CUDA_INVALID_VALUE;
  (void)pthread_mutex_lock(&cuda_double_lock);
  CUgraph copy = new_graph();
  result = copy == NULL ? CUDA_OUT_OF_MEMORY : append_all(&copy->last, graph);
  (void)pthread_mutex_unlock(&cuda_double_lock);
  *made = (CUgraphExec)(void *)copy;
  return result;
}

static CUresult drop(CUgraph graph) {
  const CUresult result = cuda_double_enter();
  if (result != CUDA_OK)
    return result;
  (void)pthread_mutex_lock(&cuda_double_lock);
  free_graph(graph);
  (void)pthread_mutex_unlock(&cuda_double_lock);
  return CUDA_OK;
}

CUresult cuGraphDestroy(CUgraph graph) {
  return drop(graph);
}

CUresult cuGraphExecDestroy(CUgraphExec made) {
  return drop((CUgraph)(void *)made);
}

CUresult cuGraphLaunch(CUgraphExec made, CUstream stream) {
  CUresult result = cuda_double_enter_apart();
  if (result != CUDA_OK)
    return result;
  (void)pthread_mutex_lock(&cuda_double_lock);
  result = append_all(&stream->last, (CUgraph)(void *)made);
  stream->given = WORK_NONE;
  ++n_graph_launches;
  (void)pthread_mutex_unlock(&cuda_double_lock);
  return result;
}
