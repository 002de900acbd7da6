#pragma once

namespace study::cpu {

/// c (m, n) = a (m, k) b (k, n): f32, row-major, without gaps. Sizes are at least 1.
struct Product {
  const float *a, *b;
  float* c;
  long m, n, k;
};

// A rung each, from the slowest to the fastest: each differs from the one before by one idea. All but the last use one thread.
void naive(const Product& product);
void loop_order(const Product& product);
void cache_tiles(const Product& product);
void register_tiles(const Product& product);
void packing(const Product& product);
void threads(const Product& product);

}  // namespace study::cpu
