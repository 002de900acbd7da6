#pragma once
#include <algorithm>
#include <cmath>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

// What the two ladders share: sizes to check at, the measure of an error, and rows of results.
namespace study {

struct Size {
  int m, n, k;
};
/// One element, edges of every kind of tile, rows that are no multiple of a vector, and one size of whole tiles.
inline const std::vector<Size> check_sizes = {{1, 1, 1},       {1, 5, 3},       {33, 65, 17},     {127, 129, 131}, {128, 100, 64},
                                              {256, 384, 128}, {257, 255, 259}, {300, 132, 1000}, {129, 1, 40},    {1, 300, 70}};

/// Uniform in [-1, 1), the same for the same seed.
inline std::vector<float> random_matrix(std::size_t count, unsigned seed) {
  std::vector<float> x(count);
  unsigned long long state = seed * 2654435761ull + 1;
  for (float& value : x) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    value = static_cast<float>(state >> 40) / 8388608.0f - 1;
  }
  return x;
}

/// ||x - reference|| / ||reference||; NaN where x has one.
inline double relative_error(const std::vector<float>& x, const std::vector<double>& reference) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double d = static_cast<double>(x[i]) - reference[i];
    difference += d * d, norm += reference[i] * reference[i];
  }
  return std::sqrt(difference / norm);
}

/// c (m, n) = a (m, k) b (k, n) in f64: the reference.
inline std::vector<double> product_in_f64(const std::vector<float>& a, const std::vector<float>& b, const Size& size) {
  std::vector<double> c(static_cast<std::size_t>(size.m) * size.n);
  for (int i = 0; i < size.m; ++i)
    for (int k = 0; k < size.k; ++k)
      for (int j = 0; j < size.n; ++j)
        c[static_cast<std::size_t>(i) * size.n + j] +=
            static_cast<double>(a[static_cast<std::size_t>(i) * size.k + k]) * b[static_cast<std::size_t>(k) * size.n + j];
  return c;
}

inline double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2), x.end());
  return x[x.size() / 2];
}

/// `--json FILE`: appends lines. No path: they go nowhere.
class Lines {
 public:
  explicit Lines(const std::string& path) {
    if (path.empty()) return;
    out_.open(path, std::ios::app);
    if (!out_) throw std::runtime_error(path + ": could not be opened for writing");
  }
  void add(const std::string& line) {
    if (out_.is_open()) out_ << line << std::endl;
  }

 private:
  std::ofstream out_;
};

}  // namespace study
