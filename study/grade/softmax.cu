// Softmax, forward and backward: a block of 256 threads has a row, so that a warp reads 32 neighbours at once, and a thread keeps its part
// of a row of up to 4096 columns in registers, so that the row is read once.
// launch: softmax<256><<<rows, 256>>>
// launch grad: softmax_grad<256><<<rows, 256>>>

struct Max {
  static __device__ float identity() { return -INFINITY; }
  static __device__ float combine(float a, float b) { return fmaxf(a, b); }
};
struct Sum {
  static __device__ float identity() { return 0; }
  static __device__ float combine(float a, float b) { return a + b; }
};

// The same value in all threads of the block: each warp reduces by shuffles, then all reduce the warps' results.
template <class Op, int threads>
__device__ float reduce(float value) {
  __shared__ float of_warps[threads / 32];
  for (int step = 16; step > 0; step /= 2) value = Op::combine(value, __shfl_xor_sync(0xffffffff, value, step));
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = Op::identity();
  for (int warp = 0; warp < threads / 32; ++warp) value = Op::combine(value, of_warps[warp]);
  __syncthreads();  // the next reduction writes of_warps
  return value;
}

constexpr int kept = 16;  // elements of a thread that stay in registers

template <int threads>
__global__ void softmax(const float* x, float* y, int rows, int columns) {
  x += (size_t)blockIdx.x * columns, y += (size_t)blockIdx.x * columns;
  float values[kept], largest = -INFINITY, sum = 0;
#pragma unroll
  for (int k = 0; k < kept && k * threads < columns; ++k) {
    const int c = k * threads + threadIdx.x;
    values[k] = c < columns ? x[c] : -INFINITY;
    largest = fmaxf(largest, values[k]);
  }
  for (int c = kept * threads + threadIdx.x; c < columns; c += threads) largest = fmaxf(largest, x[c]);
  largest = reduce<Max, threads>(largest);
#pragma unroll
  for (int k = 0; k < kept && k * threads < columns; ++k) sum += values[k] = expf(values[k] - largest);
  for (int c = kept * threads + threadIdx.x; c < columns; c += threads) sum += expf(x[c] - largest);
  const float scale = 1 / reduce<Sum, threads>(sum);
#pragma unroll
  for (int k = 0; k < kept && k * threads < columns; ++k)
    if (const int c = k * threads + threadIdx.x; c < columns) y[c] = values[k] * scale;
  for (int c = kept * threads + threadIdx.x; c < columns; c += threads) y[c] = expf(x[c] - largest) * scale;
}

template <int threads>
__global__ void softmax_grad(const float* dy, const float* y, float* dx, int rows, int columns) {
  const size_t row = (size_t)blockIdx.x * columns;
  float sum = 0;
  for (int c = threadIdx.x; c < columns; c += threads) sum += dy[row + c] * y[row + c];
  sum = reduce<Sum, threads>(sum);
  for (int c = threadIdx.x; c < columns; c += threads) dx[row + c] = y[row + c] * (dy[row + c] - sum);  // from the cache
}
