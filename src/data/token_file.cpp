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

struct TokenWriter::State {
  State(const std::string& path, const Version& version) : file(path), token_bytes(version.token_bytes) {
    const std::array<std::int32_t, 256> header{version.magic, version.version};
    file.write(header.data(), header_bytes);
  }

  io::AtomicFile file;
  int token_bytes;
  std::int64_t size = 0;
  std::string buffer;
};

TokenWriter::TokenWriter(const std::string& path, int token_bytes) {
  const auto version =
      std::find_if(std::begin(versions), std::end(versions), [&](const Version& v) { return v.token_bytes == token_bytes; });
  if (version == std::end(versions)) fail("save_tokens", fmt::format("expected tokens of 2 or 4 bytes but got {}", token_bytes));
  state_ = std::make_unique<State>(path, *version);
}

TokenWriter::~TokenWriter() = default;
TokenWriter::TokenWriter(TokenWriter&& other) noexcept = default;
TokenWriter& TokenWriter::operator=(TokenWriter&& other) noexcept = default;

std::int64_t TokenWriter::size() const noexcept { return state_->size; }

template <class T>
static void append_tokens(std::string& to, std::span<const T> tokens, int token_bytes, std::int64_t first) {
  const auto bytes = static_cast<std::size_t>(token_bytes);
  to.resize(tokens.size() * bytes);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto token = static_cast<std::int64_t>(tokens[i]);
    if (token < 0 || token >> (8 * token_bytes) != 0)
      fail("save_tokens",
           fmt::format("expected tokens in [0, 2^{}) but number {} is {}", 8 * token_bytes, first + static_cast<std::int64_t>(i), token));
    std::memcpy(to.data() + i * bytes, &token, bytes);
  }
}

template <class T>
void TokenWriter::append(std::span<const T> tokens) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  if (static_cast<std::int64_t>(tokens.size()) > most - state_->size)
    fail("save_tokens", fmt::format("expected at most 2^31 - 1 tokens, the most that a header can say, but got {}",
                                    state_->size + static_cast<std::int64_t>(tokens.size())));
  append_tokens(state_->buffer, tokens, state_->token_bytes, state_->size);
  state_->file.write(state_->buffer);
  state_->size += static_cast<std::int64_t>(tokens.size());
}

void TokenWriter::write(std::span<const std::int64_t> tokens) { append(tokens); }
void TokenWriter::write(std::span<const std::int32_t> tokens) { append(tokens); }

void TokenWriter::commit() {
  const auto size = static_cast<std::int32_t>(state_->size);
  state_->file.overwrite(2 * sizeof(std::int32_t), {reinterpret_cast<const char*>(&size), sizeof(size)});
  state_->file.commit();
}

void save_tokens(const std::string& path, std::span<const std::int64_t> tokens, int token_bytes) {
  TokenWriter writer(path, token_bytes);
  writer.write(tokens);
  writer.commit();
}

TokenList::TokenList(std::vector<TokenFile> files) : files_(std::move(files)) {
  for (const TokenFile& file : files_) ends_.push_back(size() + file.size());
}

std::size_t TokenList::file_of(std::int64_t token) const {
  return static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), token) - ends_.begin());
}

void TokenList::read(std::int64_t first, std::span<std::int64_t> to) const {
  const auto count = static_cast<std::int64_t>(to.size());
  if (first < 0 || count > size() || first > size() - count)
    fail("TokenList", fmt::format("expected tokens in [0, {}) but got [{}, {} + {})", size(), first, first, count));
  for (std::size_t file = file_of(first); !to.empty(); ++file) {
    const std::size_t some = std::min(to.size(), static_cast<std::size_t>(ends_[file] - first));
    files_[file].read(first - ends_[file] + files_[file].size(), to.first(some));
    first += static_cast<std::int64_t>(some);
    to = to.subspan(some);
  }
}

std::pair<std::string, std::int64_t> TokenList::place(std::int64_t token) const {
  if (token < 0 || token >= size()) fail("TokenList", fmt::format("expected a token in [0, {}) but got {}", size(), token));
  const std::size_t file = file_of(token);
  return {files_[file].path(), token - ends_[file] + files_[file].size()};
}

TokenWindows::TokenWindows(TokenFile file, std::int64_t length, std::int64_t stride, std::int64_t vocab)
    : TokenWindows(TokenList({std::move(file)}), length, stride, vocab) {}

TokenWindows::TokenWindows(TokenList files, std::int64_t length, std::int64_t stride, std::int64_t vocab)
    : TokenWindows(length, stride, vocab) {
  files_ = std::move(files);
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
  if (tokens_) std::copy_n(tokens_->begin() + first, to.size(), to.begin());
  else files_.read(first, to);
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
      const std::int64_t at = first + static_cast<std::int64_t>(i);
      const auto message = [&](std::int64_t number) {
        return fmt::format("expected tokens below {}, the size of the vocabulary, but token {} is {}", vocab_, number, token);
      };
      if (tokens_) fail("TokenWindows", message(at));
      const auto [path, number] = files_.place(at);
      fail_in(path, message(number));
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
