// Softmax straight from the formula: a thread computes a row. The 32 threads of a warp read elements that lie a row apart, so that of each
// sector of 32 bytes that is fetched they use 4.
// launch: softmax<<<(rows + 127) / 128, 128>>>
__global__ void softmax(const float* x, float* y, int rows, int columns) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  x += (size_t)row * columns, y += (size_t)row * columns;
  float largest = -INFINITY, sum = 0;
  for (int c = 0; c < columns; ++c) largest = fmaxf(largest, x[c]);
  for (int c = 0; c < columns; ++c) sum += expf(x[c] - largest);
  for (int c = 0; c < columns; ++c) y[c] = expf(x[c] - largest) / sum;
}
