// Layer norm, forward and backward: a warp has a row, a quarter of a block. The gradients of gamma and beta are sums of columns: a block of
// 32 x 32 threads has 32 columns, each row of threads a 32nd of the rows, and the parts meet in shared memory.
// launch: layer_norm<<<(rows + 3) / 4, 128>>>
// launch grad: layer_norm_rows<<<(rows + 3) / 4, 128>>>
// launch grad: layer_norm_columns<<<(columns + 31) / 32, dim3(32, 32)>>>

__device__ float sum_of_warp(float value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step);
  return value;
}

__global__ void layer_norm(const float* x, const float* gamma, const float* beta, float* y, int rows, int columns) {
  const int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  x += (size_t)row * columns, y += (size_t)row * columns;
  float sum = 0, squares = 0;
  for (int c = lane; c < columns; c += 32) sum += x[c];
  const float mean = sum_of_warp(sum) / columns;
  for (int c = lane; c < columns; c += 32) squares += (x[c] - mean) * (x[c] - mean);
  const float rstd = rsqrtf(sum_of_warp(squares) / columns + 1e-5f);
  for (int c = lane; c < columns; c += 32) y[c] = (x[c] - mean) * rstd * gamma[c] + beta[c];
}

__global__ void layer_norm_rows(const float* dy, const float* x, const float* gamma, const float* mean, const float* rstd, float* dx,
                                float* dgamma, float* dbeta, int rows, int columns) {
  const int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  dy += (size_t)row * columns, x += (size_t)row * columns, dx += (size_t)row * columns;
  float sum = 0, product = 0;
  for (int c = lane; c < columns; c += 32) {
    const float g = dy[c] * gamma[c];
    sum += g, product += g * (x[c] - mean[row]) * rstd[row];
  }
  sum = sum_of_warp(sum) / columns, product = sum_of_warp(product) / columns;
  for (int c = lane; c < columns; c += 32) dx[c] = rstd[row] * (dy[c] * gamma[c] - sum - (x[c] - mean[row]) * rstd[row] * product);
}

__global__ void layer_norm_columns(const float* dy, const float* x, const float* gamma, const float* mean, const float* rstd, float* dx,
                                   float* dgamma, float* dbeta, int rows, int columns) {
  __shared__ float gammas[32][33], betas[32][33];  // the 33rd column moves rows to other banks
  const int c = blockIdx.x * 32 + threadIdx.x;
  float of_gamma = 0, of_beta = 0;
  if (c < columns)
    for (int row = threadIdx.y; row < rows; row += 32) {
      const float g = dy[(size_t)row * columns + c];
      of_gamma += g * (x[(size_t)row * columns + c] - mean[row]) * rstd[row], of_beta += g;
    }
  gammas[threadIdx.y][threadIdx.x] = of_gamma, betas[threadIdx.y][threadIdx.x] = of_beta;
  __syncthreads();
  // A warp sums a column of the block.
  of_gamma = sum_of_warp(gammas[threadIdx.x][threadIdx.y]), of_beta = sum_of_warp(betas[threadIdx.x][threadIdx.y]);
  const int to = blockIdx.x * 32 + threadIdx.y;
  if (threadIdx.x == 0 && to < columns) dgamma[to] = of_gamma, dbeta[to] = of_beta;
}
