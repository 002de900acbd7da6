#include "data/token_file.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <string>

#include "io/files.h"
#include "text/input_file.h"
#include "text/unicode.h"

namespace tern::data {

static_assert(std::endian::native == std::endian::little, "token files are read as they are");

namespace {

constexpr std::size_t header_bytes = 256 * sizeof(std::int32_t);

/// A version of llm.c's format.
struct Version {
  std::int32_t magic, version;
  int token_bytes;
};
constexpr Version versions[] = {{20240520, 1, 2}, {20240801, 7, 4}};

[[noreturn]] void fail_in(const std::string& path, const std::string& what) { throw io::FileError(text::printable(path) + ": " + what); }

}  // namespace

struct TokenFile::Mapping {
  explicit Mapping(const std::string& path_) : path(path_) {
    const text::InputFile file(path);
    bytes = static_cast<std::size_t>(file.size());
    if (bytes == 0) return;
    void* const mapped = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.descriptor(), 0);
    if (mapped == MAP_FAILED) io::fail_file(path, "mapped", errno);
    data = static_cast<const std::byte*>(mapped);
  }
  ~Mapping() {
    if (data) ::munmap(const_cast<std::byte*>(data), bytes);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  /// Number i of the header; 0 if the file is shorter.
  std::int32_t number(std::size_t i) const {
    std::int32_t value = 0;
    if (bytes >= (i + 1) * sizeof(value)) std::memcpy(&value, data + i * sizeof(value), sizeof(value));
    return value;
  }

  std::string path;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
};

TokenFile::TokenFile(const std::string& path, TokenFormat format) {
  auto mapping = std::make_shared<const Mapping>(path);
  const auto known =
      std::find_if(std::begin(versions), std::end(versions), [&](const Version& v) { return v.magic == mapping->number(0); });
  const bool has_header = known != std::end(versions);
  if (format == TokenFormat::llm_c && !has_header)
    fail_in(path, mapping->bytes < header_bytes
                      ? fmt::format("expected llm.c's header of {} bytes but the file has {}", header_bytes, mapping->bytes)
                      : fmt::format("expected llm.c's magic number {} or {} but got {}: is it of raw tokens?", versions[0].magic,
                                    versions[1].magic, mapping->number(0)));
  if (format == TokenFormat::raw_u16 || !has_header) {
    if (mapping->bytes % 2 != 0)
      fail_in(path, fmt::format("expected tokens of 2 bytes but the file has {}, an odd number: is it cut?", mapping->bytes));
    tokens_ = mapping->data;
    size_ = static_cast<std::int64_t>(mapping->bytes / 2);
  } else {
    if (mapping->bytes < header_bytes)
      fail_in(path, fmt::format("expected llm.c's header of {} bytes but the file has {}: it is cut", header_bytes, mapping->bytes));
    if (mapping->number(1) != known->version)
      fail_in(path, fmt::format("expected version {} of llm.c's tokens {} but got {}", known->version, known->magic, mapping->number(1)));
    const std::int64_t count = mapping->number(2);
    const auto body = static_cast<std::int64_t>(mapping->bytes - header_bytes);
    if (count < 0) fail_in(path, fmt::format("expected a number of tokens >= 0 but the header says {}", count));
    if (count * known->token_bytes != body)
      fail_in(path, fmt::format("expected {} tokens of {} bytes, as the header says, but there are {} bytes: it is {}", count,
                                known->token_bytes, body, count * known->token_bytes > body ? "cut" : "longer than it should be"));
    tokens_ = mapping->data + header_bytes;
    size_ = count;
    token_bytes_ = known->token_bytes;
  }
  mapping_ = std::move(mapping);
}

const std::string& TokenFile::path() const { return mapping_->path; }

std::int64_t TokenFile::operator[](std::int64_t index) const {
  std::int64_t token = 0;
  read(index, {&token, 1});
  return token;
}

void TokenFile::read(std::int64_t first, std::span<std::int64_t> to) const {
  const auto count = static_cast<std::int64_t>(to.size());
  if (first < 0 || count > size_ || first > size_ - count)
    fail("TokenFile", fmt::format("expected tokens in [0, {}) but got [{}, {} + {})", size_, first, first, count));
  const auto widen = [&]<class T>(T) {
    for (std::size_t i = 0; i < to.size(); ++i) {
      T token;
      std::memcpy(&token, tokens_ + (static_cast<std::size_t>(first) + i) * sizeof(T), sizeof(T));
      to[i] = static_cast<std::int64_t>(token);
    }
  };
  if (token_bytes_ == 2) widen(std::uint16_t{});
  else widen(std::uint32_t{});
}

void save_tokens(const std::string& path, std::span<const std::int64_t> tokens, int token_bytes) {
  const auto version =
      std::find_if(std::begin(versions), std::end(versions), [&](const Version& v) { return v.token_bytes == token_bytes; });
  if (version == std::end(versions)) fail("save_tokens", fmt::format("expected tokens of 2 or 4 bytes but got {}", token_bytes));
  if (tokens.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
    fail("save_tokens", fmt::format("expected at most 2^31 - 1 tokens, the most that a header can say, but got {}", tokens.size()));
  std::array<std::int32_t, 256> header{version->magic, version->version, static_cast<std::int32_t>(tokens.size())};
  std::string content(reinterpret_cast<const char*>(header.data()), header_bytes);
  content.resize(header_bytes + tokens.size() * static_cast<std::size_t>(token_bytes));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::int64_t token = tokens[i];
    if (token < 0 || token >> (8 * token_bytes) != 0)
      fail("save_tokens", fmt::format("expected tokens in [0, 2^{}) but number {} is {}", 8 * token_bytes, i, token));
    std::memcpy(content.data() + header_bytes + i * static_cast<std::size_t>(token_bytes), &token, static_cast<std::size_t>(token_bytes));
  }
  io::AtomicFile file(path);
  file.write(content.data(), content.size());
  file.commit();
}

TokenWindows::TokenWindows(TokenFile file, std::int64_t length, std::int64_t stride, std::int64_t vocab)
    : TokenWindows(length, stride, vocab) {
  file_ = std::move(file);
}

TokenWindows::TokenWindows(std::vector<std::int64_t> tokens, std::int64_t length, std::int64_t stride, std::int64_t vocab)
    : TokenWindows(length, stride, vocab) {
  tokens_ = std::make_shared<const std::vector<std::int64_t>>(std::move(tokens));
}

TokenWindows::TokenWindows(std::int64_t length, std::int64_t stride, std::int64_t vocab)
    : length_(length), stride_(stride == 0 ? length : stride), vocab_(vocab) {
  if (length < 1) fail("TokenWindows", fmt::format("expected a length >= 1 but got {}", length));
  if (stride < 0) fail("TokenWindows", fmt::format("expected a stride >= 0 but got {}", stride));
}

std::int64_t TokenWindows::size() const { return tokens() <= length_ ? 0 : (tokens() - length_ - 1) / stride_ + 1; }

void TokenWindows::read_tokens(std::int64_t first, std::span<std::int64_t> to) const {
  if (file_) file_->read(first, to);
  else std::copy_n(tokens_->begin() + first, to.size(), to.begin());
}

void TokenWindows::read(std::int64_t index, std::int64_t* input, std::int64_t* target) const {
  if (index < 0 || index >= size())
    fail("TokenWindows", fmt::format("expected one of {} windows, counted from 0, but got {}", size(), index));
  const std::int64_t first = index * stride_;
  const auto count = static_cast<std::size_t>(length_);
  read_tokens(first, {input, count});
  read_tokens(first + 1, {target, count});
  if (vocab_ == 0) return;
  for (std::size_t i = 0; i <= count; ++i)
    if (const std::int64_t token = i < count ? input[i] : target[count - 1]; token < 0 || token >= vocab_) {
      const std::string message = fmt::format("expected tokens below {}, the size of the vocabulary, but token {} is {}", vocab_,
                                              first + static_cast<std::int64_t>(i), token);
      if (file_) fail_in(file_->path(), message);
      fail("TokenWindows", message);
    }
}

Tensors TokenWindows::batch(std::span<const std::int64_t> indices) const {
  const Shape shape{static_cast<std::int64_t>(indices.size()), length_};
  const Tensor inputs = empty(shape, DType::i64, cpu), targets = empty(shape, DType::i64, cpu);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::int64_t begin = static_cast<std::int64_t>(i) * length_;
    read(indices[i], inputs.data<std::int64_t>() + begin, targets.data<std::int64_t>() + begin);
  }
  return {inputs, targets};
}

Tensors TokenWindows::operator[](std::int64_t index) const {
  const Tensor input = empty({length_}, DType::i64, cpu), target = empty({length_}, DType::i64, cpu);
  read(index, input.data<std::int64_t>(), target.data<std::int64_t>());
  return {input, target};
}

PackedRows pack(std::span<const std::vector<std::int64_t>> sequences, std::int64_t length, std::int64_t padding) {
  if (length < 1) fail("pack", fmt::format("expected a length >= 1 but got {}", length));
  std::vector<std::size_t> order(sequences.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return sequences[a].size() > sequences[b].size(); });
  std::vector<std::vector<std::size_t>> rows;
  std::map<std::pair<std::int64_t, std::size_t>, bool> open;  // by free positions and number of the row
  for (const std::size_t i : order) {
    const auto count = static_cast<std::int64_t>(sequences[i].size());
    if (count > length) fail("pack", fmt::format("expected sequences of at most {} tokens but number {} has {}", length, i, count));
    if (count == 0) continue;
    auto best = open.lower_bound({count, 0});
    if (best == open.end()) {
      rows.emplace_back();
      best = open.emplace(std::pair{length, rows.size() - 1}, true).first;
    }
    const auto [free, row] = best->first;
    open.erase(best);
    rows[row].push_back(i);
    if (free > count) open.emplace(std::pair{free - count, row}, true);
  }
  const Shape shape{static_cast<std::int64_t>(rows.size()), length};
  const auto places = static_cast<std::size_t>(numel(shape));
  std::vector<std::int64_t> ids(places, padding), segments(places), positions(places);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    std::size_t at = row * static_cast<std::size_t>(length);
    for (std::size_t k = 0; k < rows[row].size(); ++k)
      for (std::size_t j = 0; j < sequences[rows[row][k]].size(); ++j, ++at) {
        ids[at] = sequences[rows[row][k]][j];
        segments[at] = static_cast<std::int64_t>(k + 1);
        positions[at] = static_cast<std::int64_t>(j);
      }
  }
  return {Tensor::from(ids, shape, cpu), Tensor::from(segments, shape, cpu), Tensor::from(positions, shape, cpu)};
}

}  // namespace tern::data
