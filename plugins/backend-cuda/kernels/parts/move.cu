/* SPDX-License-Identifier: Apache-2.0 */
/* Elements that move: strided copies (Slice, Concat, Split, Expand, Tile ...),
 * transposes, Trilu, Gather. */
#include "../device.cuh"

template <class T>
CUDA_FN void move(const cuda_move_block &a) {
  for (int64_t i = first_element(); i < a.n; i += element_step()) {
    int64_t at[2];
    offsets<2>(a.axes, i, at);
    static_cast<T *>(a.out)[at[1]] = static_cast<const T *>(a.in)[at[0]];
  }
}

CUDA_KERNEL(opipe_move) {
  switch (a.size) {
    case 1:
      move<uint8_t>(a);
      break;
    case 2:
      move<uint16_t>(a);
      break;
    case 4:
      move<uint32_t>(a);
      break;
    case 8:
      move<uint64_t>(a);
      break;
    default:
      move<uint4>(a);
      break;
  }
}

/* ---- transposes: tiles of 32 x 32 through shared memory ---- */

enum { TILE = 32, TILE_ROWS = 8 };

template <class T>
CUDA_FN void transpose(const cuda_transpose_block &a, T (*tile)[TILE + 1]) {
  const int64_t across = (a.columns + TILE - 1) / TILE, down = (a.rows + TILE - 1) / TILE;
  const int x = (int)(threadIdx.x % TILE), y = (int)(threadIdx.x / TILE);
  for (int64_t i = blockIdx.x; i < a.batch * down * across; i += gridDim.x) {
    const int64_t column = i % across * TILE, row = i / across % down * TILE, b = i / across / down;
    const T *in = static_cast<const T *>(a.in) + b * a.in_batch;
    T *out = static_cast<T *>(a.out) + b * a.out_batch;
    for (int k = y; k < TILE; k += TILE_ROWS) {
      if (row + k < a.rows && column + x < a.columns)
        tile[k][x] = in[(row + k) * a.in_row + column + x];
    }
    __syncthreads();
    for (int k = y; k < TILE; k += TILE_ROWS) {
      if (column + k < a.columns && row + x < a.rows)
        out[(column + k) * a.out_row + row + x] = tile[x][k];
    }
    __syncthreads();
  }
}

union transpose_room {
  uint8_t one[TILE][TILE + 1];
  uint16_t two[TILE][TILE + 1];
  uint32_t four[TILE][TILE + 1];
  uint64_t eight[TILE][TILE + 1];
};

CUDA_KERNEL(opipe_transpose) {
  CUDA_SHARED(transpose_room, room);
  switch (a.size) {
    case 1:
      transpose(a, room.one);
      break;
    case 2:
      transpose(a, room.two);
      break;
    case 4:
      transpose(a, room.four);
      break;
    default:
      transpose(a, room.eight);
      break;
  }
}

/* ---- Trilu ---- */

template <class T>
CUDA_FN void trilu(const cuda_trilu_args &a) {
  const int64_t n = a.matrices * a.rows * a.columns;
  for (int64_t i = first_element(); i < n; i += element_step()) {
    const int64_t place = i % a.columns - i / a.columns % a.rows;
    const bool keep = a.upper ? place >= a.k : place <= a.k;
    static_cast<T *>(a.out)[i] = keep ? static_cast<const T *>(a.in)[i] : (T)0;
  }
}

CUDA_KERNEL(opipe_trilu) {
  switch (a.size) {
    case 1:
      trilu<uint8_t>(a);
      break;
    case 2:
      trilu<uint16_t>(a);
      break;
    case 4:
      trilu<uint32_t>(a);
      break;
    default:
      trilu<uint64_t>(a);
      break;
  }
}

/* ---- Gather along an axis ---- */

template <class T>
CUDA_FN void gather(const cuda_gather_args &g) {
  const int64_t n = g.outer * g.n_indices * g.inner;
  const T *data = static_cast<const T *>(g.data);
  for (int64_t i = first_element(); i < n; i += element_step()) {
    const int64_t row = i / g.inner, column = i - row * g.inner;
    const int64_t outer = row / g.n_indices;
    bool good;
    const int64_t at = place_of(index_at(g.indices, g.index_bytes, row - outer * g.n_indices),
                                g.whole > 0 ? g.whole : g.extent, g.status, g.node, &good) -
                       g.first;
    good = good && at >= 0 && at < g.extent;
    static_cast<T *>(g.out)[i] = good ? data[(outer * g.extent + at) * g.inner + column] : T();
  }
}

CUDA_KERNEL(opipe_gather) {
  switch (a.unit) {
    case 1:
      gather<uint8_t>(a.g);
      break;
    case 2:
      gather<uint16_t>(a.g);
      break;
    case 4:
      gather<uint32_t>(a.g);
      break;
    case 8:
      gather<uint64_t>(a.g);
      break;
    default:
      gather<uint4>(a.g);
      break;
  }
}
