#include "io/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "tensor/view.h"
#include "text/json_reader.h"
#include "text/unicode.h"

namespace tern::io {

namespace {

constexpr std::string_view metadata_key = "__metadata__";

/// Names of dtypes in the format, in the order of DType.
constexpr std::string_view format_names[] = {"F32", "F64", "F16", "BF16", "I32", "I64", "U8", "BOOL"};

std::optional<DType> dtype_from(std::string_view name) {
  for (int i = 0; i < 8; ++i)
    if (format_names[i] == name) return static_cast<DType>(i);
  return std::nullopt;
}

/// The order of dtypes in a file, descending: that of the reference implementation, so that both write the same bytes. Wide elements come
/// first, which aligns every tensor to its elements.
int rank(DType dtype) {
  constexpr int ranks[] = {5, 6, 2, 3, 4, 7, 1, 0};
  return ranks[static_cast<int>(dtype)];
}

/// A SAX handler for the header. A JSON document would take twenty times the memory of the text; here a text that cannot be a header is
/// refused at its first wrong token.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(text::JsonSource& source) : source_(source), where_(source.name()) {}
  SafetensorsHeader header;

  bool null() override { return scalar("null"); }
  bool boolean(bool) override { return scalar("a boolean"); }
  bool number_float(number_float_t, const string_t&) override { return scalar("a fraction or a number over 2^64"); }
  // nlohmann passes numbers with a minus sign alone to this function.
  bool number_integer(number_integer_t) override { return scalar("a negative number"); }
  bool binary(binary_t&) override { return scalar("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    source_.begin_value();
    if (section_ != Section::sizes && section_ != Section::offsets) return scalar("a number");
    if (section_ == Section::offsets) {
      if (offsets_ == 2) fail("expected 2 offsets but got more");
      (offsets_++ == 0 ? entry_.begin : entry_.end) = value;
      return true;
    }
    if (entry_.shape.size() == max_dims) fail(fmt::format("expected at most {} dimensions but got more", max_dims));
    if (value > std::uint64_t(std::numeric_limits<std::int64_t>::max())) fail("expected a size below 2^63");
    entry_.shape.push_back(static_cast<std::int64_t>(value));
    return true;
  }

  bool string(string_t& value) override {
    if (section_ == Section::metadata) {
      source_.begin_value();
      // Copied, as the parser's own string has spare capacity.
      header.metadata.emplace(key_, value);
      return true;
    }
    if (section_ != Section::entry || field_ != Field::dtype) return scalar("a string");
    const auto dtype = dtype_from(value);
    if (!dtype) fail(fmt::format("expected one of the dtypes {} but got {}", fmt::join(format_names, ", "), quote_name(value)));
    entry_.dtype = *dtype;
    return true;
  }

  bool start_object(std::size_t) override {
    source_.begin_value();
    switch (section_) {
      case Section::start: section_ = Section::root; return true;
      case Section::root:
        if (in_metadata_) {
          section_ = Section::metadata;
        } else {
          if (header.entries.size() == max_tensors) fail_file(fmt::format("has more than {} tensors", max_tensors));
          section_ = Section::entry;
          seen_ = 0;
          offsets_ = 0;
        }
        return true;
      default: return nested("an object");
    }
  }

  bool end_object() override {
    source_.begin_value();
    if (ignored_depth_ > 0) {
      --ignored_depth_;
    } else if (section_ == Section::entry) {
      constexpr const char* names[] = {"dtype", "shape", "data_offsets"};
      for (int i = 0; i < 3; ++i)
        if (!(seen_ & (1 << i))) fail(fmt::format("has no {}", names[i]));
      header.entries.push_back(std::exchange(entry_, {}));
      section_ = Section::root;
    } else {
      section_ = section_ == Section::metadata ? Section::root : Section::end;
    }
    return true;
  }

  bool start_array(std::size_t) override {
    source_.begin_value();
    if (section_ == Section::entry && field_ == Field::shape) section_ = Section::sizes;
    else if (section_ == Section::entry && field_ == Field::offsets) section_ = Section::offsets;
    else return nested("an array");
    return true;
  }

  bool end_array() override {
    source_.begin_value();
    if (ignored_depth_ > 0) {
      --ignored_depth_;
      return true;
    }
    if (section_ == Section::offsets && offsets_ != 2) fail(fmt::format("expected 2 offsets but got {}", offsets_));
    section_ = Section::entry;
    return true;
  }

  bool key(string_t& name) override {
    source_.begin_value();
    if (ignored_depth_ > 0) return true;
    switch (section_) {
      case Section::root:
        in_metadata_ = name == metadata_key;
        if (in_metadata_ && has_metadata_) fail_file(fmt::format("has the name {} twice", quote_name(name)));
        has_metadata_ |= in_metadata_;
        entry_.name = name;
        return true;
      case Section::metadata:
        if (header.metadata.contains(name)) fail_file(fmt::format("has the metadata {} twice", quote_name(name)));
        if (header.metadata.size() == max_metadata) fail_file(fmt::format("has more than {} pairs of metadata", max_metadata));
        key_ = name;
        return true;
      default:
        field_ = name == "dtype" ? Field::dtype : name == "shape" ? Field::shape : name == "data_offsets" ? Field::offsets : Field::other;
        if (field_ == Field::other) return true;
        if (seen_ & (1 << int(field_))) fail(fmt::format("has {} twice", name));
        seen_ |= 1 << int(field_);
        return true;
    }
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    fail_file(fmt::format("the header is not valid JSON at byte {}", position));
  }

 private:
  /// The part of the header that the next token belongs to.
  enum class Section { start, root, metadata, entry, sizes, offsets, end };
  enum class Field { dtype, shape, offsets, other };

  [[noreturn]] void fail_file(const std::string& message) const { throw FileError(where_ + ": " + message); }
  [[noreturn]] void fail(const std::string& message) const { fail_file(fmt::format("tensor {}: {}", quote_name(entry_.name), message)); }
  /// A value where it is not expected, unless it is part of an unknown member.
  bool scalar(const char* what) const {
    source_.begin_value();
    if (ignored_depth_ > 0 || (section_ == Section::entry && field_ == Field::other)) return true;
    unexpected(what);
  }
  bool nested(const char* what) {
    if (!(section_ == Section::entry && (ignored_depth_ > 0 || field_ == Field::other))) unexpected(what);
    if (++ignored_depth_ > 100) fail("is nested too deep");
    return true;
  }
  [[noreturn]] void unexpected(const char* what) const {
    switch (section_) {
      case Section::start:
      case Section::end: fail_file(fmt::format("expected the header to be an object but got {}", what));
      case Section::metadata: fail_file(fmt::format("expected the metadata {} to be a string but got {}", quote_name(key_), what));
      case Section::root:
        if (in_metadata_) fail_file(fmt::format("expected the metadata to be an object but got {}", what));
        fail(fmt::format("expected an object but got {}", what));
      case Section::sizes: fail(fmt::format("expected sizes >= 0 but got {}", what));
      case Section::offsets: fail(fmt::format("expected offsets >= 0 but got {}", what));
      default: fail(fmt::format("expected {} but got {}", field_ == Field::dtype ? "a dtype's name" : "an array", what));
    }
  }

  text::JsonSource& source_;
  const std::string& where_;
  Section section_ = Section::start;
  Field field_ = Field::other;
  TensorEntry entry_;
  std::string key_;
  int offsets_ = 0, seen_ = 0, ignored_depth_ = 0;
  bool in_metadata_ = false, has_metadata_ = false;
};

/// The size of a tensor in bytes; nothing if it does not fit in 63 bits.
std::optional<std::uint64_t> checked_bytes(const TensorEntry& entry) {
  const std::optional<std::int64_t> bytes = checked_product(entry.shape, static_cast<std::int64_t>(size_of(entry.dtype)));
  if (!bytes) return std::nullopt;
  return numel(entry.shape) == 0 ? 0 : static_cast<std::uint64_t>(*bytes);
}

}  // namespace

std::string quote_name(std::string_view name) { return fmt::format("\"{}\"", text::printable(name, 80)); }

SafetensorsHeader parse_safetensors_header(text::JsonSource& source, std::uint64_t data_bytes) {
  const auto fail = [&](const std::string& message) { throw FileError(source.name() + ": " + message); };
  if (!source.has_more() || source.front() != '{') fail("expected the header to start with {");
  HeaderReader reader(source);
  nlohmann::json::sax_parse(source.begin(), source.end(), &reader);
  SafetensorsHeader header = std::move(reader.header);

  std::vector<const std::string*> names;
  for (const TensorEntry& entry : header.entries) names.push_back(&entry.name);
  std::sort(names.begin(), names.end(), [](const auto* a, const auto* b) { return *a < *b; });
  const auto same = std::adjacent_find(names.begin(), names.end(), [](const auto* a, const auto* b) { return *a == *b; });
  if (same != names.end()) fail(fmt::format("has the name {} twice", quote_name(**same)));

  std::sort(header.entries.begin(), header.entries.end(),
            [](const TensorEntry& a, const TensorEntry& b) { return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name); });
  std::uint64_t position = 0;
  for (const TensorEntry& entry : header.entries) {
    const auto fail_entry = [&](const std::string& message) { fail(fmt::format("tensor {}: {}", quote_name(entry.name), message)); };
    const auto bytes = checked_bytes(entry);
    if (!bytes) fail_entry(fmt::format("expected a shape whose size fits in memory but got {}", to_string(entry.shape)));
    if (entry.begin != position)
      fail_entry(fmt::format("expected its bytes to start at {}, without a hole or an overlap, but got {}", position, entry.begin));
    if (entry.end < entry.begin || entry.end - entry.begin != *bytes)
      fail_entry(fmt::format("expected {} bytes for {} of shape {} but got the range {} to {}", *bytes,
                             format_names[static_cast<int>(entry.dtype)], to_string(entry.shape), entry.begin, entry.end));
    if (entry.end > data_bytes) fail_entry(fmt::format("ends at byte {} of the data, but the file has only {}", entry.end, data_bytes));
    position = entry.end;
  }
  if (position != data_bytes) fail(fmt::format("the tensors take {} bytes, but the file has {}", position, data_bytes));
  return header;
}

static std::string_view foreign_kind_of(const text::InputFile& file) {
  char begin[64];
  return text::foreign_kind({begin, file.read_at(0, begin, sizeof begin)});
}

SafetensorsHeader read_safetensors_header(text::InputFile& file, const std::function<void(std::string_view)>& on_read) {
  const auto fail = [&](const std::string& message) { throw FileError(file.name() + ": " + message); };
  const std::uint64_t size = file.size();
  std::uint64_t length = 0;
  if (size < sizeof length) fail(fmt::format("expected a safetensors file of at least 8 bytes but got {}", size));
  char bytes[sizeof length];
  file.read_exactly(bytes, sizeof bytes);
  std::memcpy(&length, bytes, sizeof length);
  if (const std::string_view kind = length > max_header_bytes ? foreign_kind_of(file) : ""; !kind.empty())
    fail(fmt::format("expected a safetensors file but got {}", kind));
  if (length > max_header_bytes) fail(fmt::format("expected a header of at most {} bytes but got {}", max_header_bytes, length));
  if (length > size - sizeof length)
    fail(fmt::format("expected a header of {} bytes but the file ends after {}", length, size - sizeof length));
  if (on_read) on_read({bytes, sizeof length});
  text::JsonSource source(file, length, max_header_string_bytes, on_read);
  SafetensorsHeader header = parse_safetensors_header(source, size - sizeof length - length);
  header.data_begin = sizeof length + length;
  return header;
}

std::string layout_safetensors(SafetensorsHeader& header) {
  std::sort(header.entries.begin(), header.entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return rank(a.dtype) != rank(b.dtype) ? rank(a.dtype) > rank(b.dtype) : a.name < b.name;
  });
  const auto text = [](const std::string& value) {
    try {
      return nlohmann::json(value).dump();
    } catch (const nlohmann::json::exception&) {
      throw Error(fmt::format("[save_safetensors] expected names and metadata in UTF-8 but got {}", quote_name(value)));
    }
  };
  std::string json = "{";
  if (!header.metadata.empty()) {
    json += fmt::format("\"{}\":{{", metadata_key);
    for (const auto& [key, value] : header.metadata) json += text(key) + ':' + text(value) + ',';
    json.back() = '}';
    json += ',';
  }
  std::uint64_t position = 0;
  for (TensorEntry& entry : header.entries) {
    entry.begin = position;
    entry.end = position += static_cast<std::uint64_t>(numel(entry.shape)) * size_of(entry.dtype);
    json += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}},", text(entry.name),
                        format_names[static_cast<int>(entry.dtype)], fmt::join(entry.shape.begin(), entry.shape.end(), ","), entry.begin,
                        entry.end);
  }
  if (json.back() == ',') json.back() = '}';
  else json += '}';
  // Aligns the elements to 8 bytes, the widest element.
  json.resize((json.size() + 7) / 8 * 8, ' ');
  return json;
}

}  // namespace tern::io
