#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <tuple>
#include <type_traits>
#include <utility>

#include "io/gguf.h"
#include "io/safetensors_header.h"
#include "text/input_file.h"

namespace tern::io {

static_assert(std::endian::native == std::endian::little, "GGUF is little-endian, and is copied as it is");

namespace {

constexpr std::uint32_t magic = 0x46554747;  // "GGUF"
constexpr std::uint32_t version = 3;
constexpr int max_dims = 4;           // ggml's
constexpr std::size_t max_name = 63;  // ggml's, for tensors

/// Calls f<T>() for the C++ type of a type of numbers.
template <class F>
auto with_type(GgufType type, const F& f) {
  switch (type) {
    case GgufType::i8: return f.template operator()<std::int8_t>();
    case GgufType::u16: return f.template operator()<std::uint16_t>();
    case GgufType::i16: return f.template operator()<std::int16_t>();
    case GgufType::u32: return f.template operator()<std::uint32_t>();
    case GgufType::i32: return f.template operator()<std::int32_t>();
    case GgufType::f32: return f.template operator()<float>();
    case GgufType::u64: return f.template operator()<std::uint64_t>();
    case GgufType::i64: return f.template operator()<std::int64_t>();
    case GgufType::f64: return f.template operator()<double>();
    default: return f.template operator()<std::uint8_t>();
  }
}

std::size_t size_of(GgufType type) {
  return with_type(type, []<class T>() { return sizeof(T); });
}

template <class T>
T element(const GgufValue& value, std::size_t i) {
  T result{};
  if ((i + 1) * sizeof(T) > value.numbers.size())
    fail("GgufValue", fmt::format("expected an element below {} but got {}", value.size(), i));
  std::memcpy(&result, value.numbers.data() + i * sizeof(T), sizeof(T));
  return result;
}

template <class T>
GgufValue number(GgufType type, std::span<const T> values, bool is_list) {
  return {type, is_list, std::string(reinterpret_cast<const char*>(values.data()), values.size_bytes()), {}};
}

/// A format's name in ggml, and the bytes of a block of so many elements.
struct FormatRow {
  GgufFormat format;
  const char* name;
  std::int64_t block, bytes;
};
constexpr FormatRow formats[] = {{GgufFormat::f32, "f32", 1, 4},
                                 {GgufFormat::f16, "f16", 1, 2},
                                 {GgufFormat::bf16, "bf16", 1, 2},
                                 {GgufFormat::q8_0, "q8_0", quant_block, block_bytes(QuantFormat::q8_0)},
                                 {GgufFormat::q4_0, "q4_0", quant_block, block_bytes(QuantFormat::q4_0)}};

const FormatRow* find_format(std::uint32_t number) {
  for (const FormatRow& row : formats)
    if (static_cast<std::uint32_t>(row.format) == number) return &row;
  return nullptr;
}
const FormatRow& row_of(GgufFormat format) { return *find_format(static_cast<std::uint32_t>(format)); }

/// Names of ggml's other types by number, for messages.
constexpr const char* other_types[] = {"",       "",      "",      "q4_1",   "",     "",     "q5_0",    "q5_1",   "",        "q8_1",
                                       "q2_K",   "q3_K",  "q4_K",  "q5_K",   "q6_K", "q8_K", "iq2_xxs", "iq2_xs", "iq3_xxs", "iq1_s",
                                       "iq4_nl", "iq3_s", "iq2_s", "iq4_xs", "i8",   "i16",  "i32",     "i64",    "f64",     "iq1_m"};

/// Bytes of a tensor; nothing if they do not fit in 63 bits, or if its rows are no whole blocks.
std::optional<std::int64_t> bytes_of(const Shape& shape, const FormatRow& row) {
  if (row.block > 1 && (shape.empty() || shape.back() % row.block != 0)) return std::nullopt;
  const std::optional<std::int64_t> elements = checked_product(shape, row.bytes);
  if (!elements) return std::nullopt;
  return numel(shape) / row.block * row.bytes;
}

/// The header's parts in their order, each checked against what is left of the file.
class HeaderReader {
 public:
  HeaderReader(const std::function<void(void*, std::size_t)>& read, std::uint64_t file_bytes, const std::string& name)
      : read_(read), left_(std::min(file_bytes, max_header_bytes)), file_bytes_(file_bytes), name_(name) {}

  GgufHeader parse() {
    if (file_bytes_ < 24) fail(fmt::format("expected a GGUF file of at least 24 bytes but got {}", file_bytes_));
    if (const auto begin = take<std::array<char, 4>>(); std::memcmp(begin.data(), &magic, sizeof magic) != 0) {
      std::string more(begin.data(), begin.size());
      more.resize(static_cast<std::size_t>(std::min<std::uint64_t>(64, file_bytes_)));
      take(more.data() + begin.size(), more.size() - begin.size());
      const std::string_view kind = text::foreign_kind(more);
      fail(fmt::format("expected a GGUF file but got {}",
                       kind.empty() ? "one that begins with " + quote_name({begin.data(), begin.size()}) : std::string(kind)));
    }
    const auto got = take<std::uint32_t>();
    if (got != version && got != 2)
      fail(fmt::format("expected GGUF's version {} but got {}{}", version, got, got << 8 == 0 && got != 0 ? ", a big-endian file's" : ""));
    const std::uint64_t tensors = take<std::uint64_t>(), pairs = take<std::uint64_t>();
    if (tensors > max_tensors) fail(fmt::format("expected at most {} tensors but got {}", max_tensors, tensors));
    if (pairs > max_metadata) fail(fmt::format("expected at most {} pairs of metadata but got {}", max_metadata, pairs));
    for (std::uint64_t i = 0; i < pairs; ++i) {
      std::string key = take_text("a key");
      if (key.empty()) fail("expected keys of metadata but got an empty one");
      where_ = "metadata " + quote_name(key);
      GgufValue value = take_value();
      if (!header_.metadata.emplace(key, std::move(value)).second) fail_here("occurs twice");
    }
    where_.clear();
    const std::uint64_t alignment = take_alignment();
    std::set<std::string_view> names;
    header_.tensors.reserve(tensors);
    for (std::uint64_t i = 0; i < tensors; ++i) {
      header_.tensors.push_back(take_entry(alignment));
      if (!names.insert(header_.tensors.back().name).second) fail_here("occurs twice");
    }
    place(round_up_to(taken_, alignment));
    return std::move(header_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { throw FileError(name_ + ": " + message); }
  [[noreturn]] void fail_here(const std::string& message) const { fail(where_ + ": " + message); }

  static std::uint64_t round_up_to(std::uint64_t bytes, std::uint64_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

  void take(void* to, std::uint64_t bytes) {
    if (bytes > left_)
      fail(fmt::format("{}the header ends before its {} bytes at {}: it is cut, or longer than {} bytes",
                       where_.empty() ? "" : where_ + ": ", bytes, taken_, max_header_bytes));
    read_(to, static_cast<std::size_t>(bytes));
    left_ -= bytes;
    taken_ += bytes;
  }
  template <class T>
  T take() {
    T value{};
    take(&value, sizeof value);
    return value;
  }
  std::string take_text(const char* what) {
    const auto length = take<std::uint64_t>();
    if (length > std::min<std::uint64_t>(left_, max_header_string_bytes))
      fail(fmt::format("{}expected {} within the header and of at most {} bytes but got {}", where_.empty() ? "" : where_ + ": ", what,
                       max_header_string_bytes, length));
    std::string text(static_cast<std::size_t>(length), '\0');
    take(text.data(), length);
    return text;
  }
  GgufType take_type() {
    const auto type = take<std::uint32_t>();
    if (type > static_cast<std::uint32_t>(GgufType::f64)) fail_here(fmt::format("expected a type from 0 to 12 but got {}", type));
    return static_cast<GgufType>(type);
  }
  GgufValue take_value() {
    GgufValue value;
    value.type = take_type();
    std::uint64_t count = 1;
    if (value.type == GgufType::array) {
      value.is_list = true;
      value.type = take_type();
      if (value.type == GgufType::array) fail_here("expected an array of numbers or texts but got one of arrays");
      count = take<std::uint64_t>();
    }
    const std::uint64_t least = value.type == GgufType::text ? sizeof(std::uint64_t) : size_of(value.type);
    if (count > left_ / least) fail_here(fmt::format("expected elements within the header but got {}", count));
    if (value.type == GgufType::text) {
      for (std::uint64_t i = 0; i < count; ++i) value.texts.push_back(take_text("texts"));
    } else {
      value.numbers.resize(static_cast<std::size_t>(count * least));
      take(value.numbers.data(), value.numbers.size());
      if (value.type == GgufType::boolean && std::any_of(value.numbers.begin(), value.numbers.end(), [](unsigned char x) { return x > 1; }))
        fail_here("expected a bool of 0 or 1 but got another byte");
    }
    return value;
  }
  std::uint64_t take_alignment() {
    const auto found = header_.metadata.find(detail::gguf_alignment_key);
    if (found == header_.metadata.end()) return detail::gguf_alignment;
    const GgufValue& value = found->second;
    if (value.type != GgufType::u32 || value.is_list || !std::has_single_bit(static_cast<std::uint64_t>(value.integer(0))))
      fail(fmt::format("metadata \"{}\": expected a power of two, of type u32", detail::gguf_alignment_key));
    return static_cast<std::uint64_t>(value.integer(0));
  }
  GgufEntry take_entry(std::uint64_t alignment) {
    where_.clear();
    GgufEntry entry;
    entry.name = take_text("a tensor's name");
    where_ = "tensor " + quote_name(entry.name);
    const auto dims = take<std::uint32_t>();
    if (dims == 0 || dims > std::uint32_t{max_dims}) fail_here(fmt::format("expected 1 to {} dimensions but got {}", max_dims, dims));
    for (std::uint32_t i = 0; i < dims; ++i) {
      const auto size = take<std::uint64_t>();
      if (size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        fail_here(fmt::format("expected a size below 2^63 but got {}", size));
      entry.shape.insert(0, static_cast<std::int64_t>(size));
    }
    const auto type = take<std::uint32_t>();
    const FormatRow* const row = find_format(type);
    if (!row)
      fail_here(fmt::format("expected f32, f16, bf16, q8_0 or q4_0, the formats that tern has, but got {}",
                            type < std::size(other_types) ? other_types[type] : fmt::format("ggml's type {}", type).c_str()));
    entry.format = row->format;
    const std::optional<std::int64_t> bytes = bytes_of(entry.shape, *row);
    if (!bytes)
      fail_here(
          fmt::format("expected a shape of whole blocks of {} whose size fits in memory but got {}", row->block, to_string(entry.shape)));
    entry.bytes = static_cast<std::uint64_t>(*bytes);
    entry.begin = take<std::uint64_t>();
    if (entry.begin % alignment != 0) fail_here(fmt::format("expected an offset that {} divides but got {}", alignment, entry.begin));
    return entry;
  }
  /// Checks the ranges, and makes offsets in the data those in the file.
  void place(std::uint64_t data) {
    const std::uint64_t data_bytes = data > file_bytes_ ? 0 : file_bytes_ - data;
    std::vector<GgufEntry*> order;
    for (GgufEntry& entry : header_.tensors) order.push_back(&entry);
    std::sort(order.begin(), order.end(),
              [](const auto* a, const auto* b) { return std::tie(a->begin, a->bytes) < std::tie(b->begin, b->bytes); });
    std::uint64_t end = 0;
    for (GgufEntry* entry : order) {
      where_ = "tensor " + quote_name(entry->name);
      if (entry->bytes > data_bytes || entry->begin > data_bytes - entry->bytes)
        fail_here(fmt::format("ends at byte {} + {} of the data, but the file has only {}", entry->begin, entry->bytes, data_bytes));
      if (entry->begin < end) fail_here(fmt::format("begins at byte {} of the data, within another tensor", entry->begin));
      end = entry->begin + entry->bytes;
      entry->begin += data;
    }
  }

  const std::function<void(void*, std::size_t)>& read_;
  std::uint64_t left_, taken_ = 0, file_bytes_;
  const std::string& name_;
  std::string where_;
  GgufHeader header_;
};

void append(std::string& to, const auto& value) { to.append(reinterpret_cast<const char*>(&value), sizeof value); }
void append_text(std::string& to, std::string_view text) {
  append(to, std::uint64_t{text.size()});
  to += text;
}

}  // namespace

GgufValue GgufValue::of(std::string_view text) { return {GgufType::text, false, {}, {std::string(text)}}; }
GgufValue GgufValue::of(bool value) { return number<bool>(GgufType::boolean, {&value, 1}, false); }
GgufValue GgufValue::of(std::uint32_t value) { return number<std::uint32_t>(GgufType::u32, {&value, 1}, false); }
GgufValue GgufValue::of(float value) { return number<float>(GgufType::f32, {&value, 1}, false); }
GgufValue GgufValue::list(std::vector<std::string> texts) { return {GgufType::text, true, {}, std::move(texts)}; }
GgufValue GgufValue::list(std::span<const std::int32_t> values) { return number(GgufType::i32, values, true); }

std::size_t GgufValue::size() const { return type == GgufType::text ? texts.size() : numbers.size() / size_of(type); }

std::int64_t GgufValue::integer(std::size_t i) const {
  return with_type(type, [&]<class T>() -> std::int64_t {
    const T value = element<T>(*this, i);
    if constexpr (std::is_floating_point_v<T>) fail("GgufValue", "expected an integer but got a float");
    else return std::in_range<std::int64_t>(value) ? static_cast<std::int64_t>(value) : std::numeric_limits<std::int64_t>::max();
  });
}

double GgufValue::real(std::size_t i) const {
  return with_type(type, [&]<class T>() { return static_cast<double>(element<T>(*this, i)); });
}

const char* name(GgufFormat format) { return row_of(format).name; }

Shape GgufEntry::stored_shape() const {
  const FormatRow& row = row_of(format);
  Shape result = shape;
  if (row.block > 1) result.back() = result.back() / row.block * row.bytes;
  return result;
}

DType GgufEntry::stored_dtype() const {
  switch (format) {
    case GgufFormat::f32: return DType::f32;
    case GgufFormat::f16: return DType::f16;
    case GgufFormat::bf16: return DType::bf16;
    default: return DType::u8;
  }
}

GgufHeader detail::parse_gguf(const std::function<void(void*, std::size_t)>& read, std::uint64_t file_bytes, const std::string& name) {
  return HeaderReader(read, file_bytes, name).parse();
}

std::string detail::gguf_header_bytes(const GgufMetadata& metadata, std::span<const GgufEntry> tensors) {
  std::string bytes;
  append(bytes, magic);
  append(bytes, version);
  append(bytes, std::uint64_t{tensors.size()});
  append(bytes, std::uint64_t{metadata.size()});
  for (const auto& [key, value] : metadata) {
    append_text(bytes, key);
    if (value.is_list) append(bytes, GgufType::array);
    append(bytes, value.type);
    if (value.is_list) append(bytes, std::uint64_t{value.size()});
    bytes += value.numbers;
    for (const std::string& text : value.texts) append_text(bytes, text);
  }
  for (const GgufEntry& entry : tensors) {
    append_text(bytes, entry.name);
    append(bytes, static_cast<std::uint32_t>(entry.shape.size()));
    for (int i = entry.shape.size(); i-- > 0;) append(bytes, static_cast<std::uint64_t>(entry.shape[i]));
    append(bytes, entry.format);
    append(bytes, entry.begin);
  }
  bytes.append(detail::gguf_padding(bytes.size()), '\0');
  return bytes;
}

std::vector<GgufEntry> detail::laid_out(std::span<const GgufEntry> tensors) {
  constexpr const char* where = "write_gguf";
  std::vector<GgufEntry> result(tensors.begin(), tensors.end());
  std::set<std::string_view> names;
  std::uint64_t position = 0;
  for (GgufEntry& entry : result) {
    if (entry.name.empty() || entry.name.size() > max_name)
      fail(where, fmt::format("expected a tensor's name of 1 to {} bytes but got {}", max_name, quote_name(entry.name)));
    if (!names.insert(entry.name).second) fail(where, fmt::format("expected different names but got {} twice", quote_name(entry.name)));
    const std::optional<std::int64_t> bytes = bytes_of(entry.shape, row_of(entry.format));
    if (!bytes || entry.shape.empty() || entry.shape.size() > max_dims)
      fail(where, fmt::format("expected {} of 1 to {} dimensions, the last a multiple of {}, but got {}", quote_name(entry.name), max_dims,
                              row_of(entry.format).block, to_string(entry.shape)));
    entry.bytes = static_cast<std::uint64_t>(*bytes);
    entry.begin = position;
    position += entry.bytes + detail::gguf_padding(entry.bytes);
  }
  return result;
}

}  // namespace tern::io
