#include "io/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

#include "io/atomic_file.h"
#include "io/checksum.h"
#include "io/safetensors_header.h"
#include "ops/copy.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "text/input_file.h"
#include "text/json_reader.h"

namespace tern::io {

static_assert(std::endian::native == std::endian::little, "safetensors elements are little-endian, and are copied as they are");

namespace {

/// The placeholder for the checksum in the header while the checksum is computed.
constexpr std::string_view no_checksum = "00000000";

/// Offset of the checksum's digits in a header's JSON, or npos. Quotes within strings are escaped, so that the match is the key.
std::size_t checksum_offset(std::string_view json) {
  const std::string key = fmt::format("\"{}\":\"", checksum_key);
  const std::size_t found = json.find(key);
  if (found == json.npos || json.size() < found + key.size() + no_checksum.size()) return json.npos;
  return found + key.size();
}

/// Adds a file's length and header, which come piece by piece, to a checksum, with no_checksum in place of the digits.
class HeaderSum {
 public:
  explicit HeaderSum(Checksum& sum) : sum_(sum) {}
  void add(std::string_view part) {
    std::string bytes(part);
    for (char& byte : bytes) {
      if (left_ > 0) {
        --left_;
        byte = no_checksum.front();
      } else if (matched_ < key_.size()) {
        matched_ = byte == key_[matched_] ? matched_ + 1 : byte == key_[0] ? 1 : 0;
        if (matched_ == key_.size()) left_ = no_checksum.size();
      }
    }
    sum_.add(bytes);
  }

 private:
  Checksum& sum_;
  const std::string key_ = fmt::format("\"{}\":\"", checksum_key);
  std::size_t matched_ = 0, left_ = 0;
};

/// A file whose header has been checked, and whose tensors are read in the order of their bytes.
class Reader {
 public:
  explicit Reader(const std::string& path) : file_(path) {
    HeaderSum header_sum(sum_);
    header_ = read_safetensors_header(file_, [&](std::string_view part) { header_sum.add(part); });
  }

  SafetensorsHeader& header() noexcept { return header_; }

  /// The tensor of the next entry.
  Tensor read(const TensorEntry& entry) {
    return read_tensor(entry, [this](void* data, std::size_t bytes) {
      file_.read_exactly(data, bytes);
      sum_.add(data, bytes);
    });
  }

  /// Throws FileError if the checksum is not that of the bytes. To be called when every entry has been read.
  void check_sum() const {
    const auto stored = header_.metadata.find(checksum_key);
    if (stored == header_.metadata.end() || stored->second == sum_.hex()) return;
    fail(fmt::format("is damaged, or was changed: its checksum is {} and its bytes give {}", quote_name(stored->second), sum_.hex()));
  }

  [[noreturn]] void fail(const std::string& message) const { throw FileError(file_.name() + ": " + message); }

 private:
  text::InputFile file_;
  SafetensorsHeader header_;
  Checksum sum_;  ///< of the bytes read so far
};

/// Names for a message: the first three, and how many more there are.
std::string first_names(const std::vector<std::string_view>& names) {
  constexpr std::size_t limit = 3;
  std::string result;
  for (std::size_t i = 0; i < std::min(names.size(), limit); ++i) result += (i ? ", " : "") + quote_name(names[i]);
  if (names.size() > limit) result += fmt::format(" and {} more", names.size() - limit);
  return result;
}

}  // namespace

Tensor read_tensor(const TensorEntry& entry, const std::function<void(void* data, std::size_t bytes)>& read) {
  Tensor result = empty(entry.shape, entry.dtype, cpu);
  auto* data = static_cast<unsigned char*>(result.view().data);
  const auto bytes = static_cast<std::size_t>(entry.end - entry.begin);
  read(data, bytes);
  // A bool that is neither 0 nor 1 is undefined behaviour in C++. NumPy reads every other byte as true as well.
  if (entry.dtype == DType::boolean) std::transform(data, data + bytes, data, [](unsigned char byte) { return byte != 0; });
  return result;
}

void write_safetensors(AtomicFile& file, std::span<const NamedTensor> tensors, const Metadata& metadata) {
  constexpr const char* where = "save_safetensors";
  SafetensorsHeader header;
  header.metadata = metadata;
  if (const auto sum = header.metadata.find(checksum_key); sum != header.metadata.end()) sum->second = no_checksum;
  std::map<std::string, Tensor> by_name;
  for (const auto& [name, tensor] : tensors) {
    if (name.empty() || name == "__metadata__") fail(where, fmt::format("expected a tensor's name but got {}", quote_name(name)));
    if (!tensor.defined()) fail(where, fmt::format("expected {} to be a defined tensor but got an undefined one", quote_name(name)));
    if (!by_name.emplace(name, tensor).second) fail(where, fmt::format("expected different names but got {} twice", quote_name(name)));
    header.entries.push_back({name, tensor.dtype(), tensor.shape()});
  }
  if (header.entries.size() > max_tensors)
    fail(where, fmt::format("expected at most {} tensors but got {}", max_tensors, header.entries.size()));
  if (metadata.size() > max_metadata)
    fail(where, fmt::format("expected at most {} pairs of metadata but got {}", max_metadata, metadata.size()));
  const std::string json = layout_safetensors(header);
  const std::uint64_t length = json.size();
  if (length > max_header_bytes)
    fail(where, fmt::format("expected names and metadata of at most {} bytes but got {}", max_header_bytes, length));

  const NoGrad no_grad;
  Checksum sum;
  const auto write = [&](const void* data, std::size_t bytes) {
    sum.add(data, bytes);
    file.write(data, bytes);
  };
  write(&length, sizeof length);
  write(json.data(), json.size());
  for (const TensorEntry& entry : header.entries) {
    // One tensor at a time, so that saving a model on a GPU takes little memory of the host.
    const Tensor host = contiguous(to(by_name.at(entry.name), cpu));
    write(host.view().data, static_cast<std::size_t>(entry.end - entry.begin));
  }
  if (metadata.contains(checksum_key)) file.overwrite(sizeof length + checksum_offset(json), sum.hex());
}

void save_safetensors(const std::string& path, std::span<const NamedTensor> tensors, const Metadata& metadata) {
  AtomicFile file(path);
  write_safetensors(file, tensors, metadata);
  file.commit();
}

TensorFile load_safetensors(const std::string& path) {
  Reader reader(path);
  TensorFile result;
  result.metadata = std::move(reader.header().metadata);
  for (TensorEntry& entry : reader.header().entries) {
    Tensor tensor = reader.read(entry);
    result.tensors.emplace(std::move(entry.name), std::move(tensor));
  }
  reader.check_sum();
  return result;
}

bool becomes_infinite(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype || !is_floating(dtype) || size_of(dtype) > size_of(x.dtype()) || x.numel() == 0) return false;
  const auto is_infinite = [](const Tensor& y) { return eq(abs(y), std::numeric_limits<double>::infinity()); };
  return any(ne(is_infinite(cast(x, dtype)), is_infinite(x))).item<bool>();
}

Metadata load_safetensors_into(const std::string& path, std::span<const NamedTensor> targets, const LoadOptions& options) {
  Reader reader(path);
  std::map<std::string_view, const Tensor*> by_name;
  for (const auto& [name, tensor] : targets)
    if (!by_name.emplace(name, &tensor).second)
      tern::fail("load_safetensors_into", fmt::format("expected different names but got {} twice", quote_name(name)));

  std::vector<std::string_view> unexpected;
  std::vector<const Tensor*> destinations;  // of the file's tensors; null: none
  for (const TensorEntry& entry : reader.header().entries) {
    const auto found = by_name.find(entry.name);
    if (found == by_name.end()) {
      unexpected.push_back(entry.name);
      destinations.push_back(nullptr);
      continue;
    }
    const Tensor& target = *found->second;
    if (target.shape() != entry.shape)
      reader.fail(fmt::format("tensor {}: expected shape {} but the file has {}", quote_name(entry.name), to_string(target.shape()),
                              to_string(entry.shape)));
    if (target.dtype() != entry.dtype && !(is_floating(target.dtype()) && is_floating(entry.dtype)))
      reader.fail(
          fmt::format("tensor {}: expected {} but the file has {}", quote_name(entry.name), name(target.dtype()), name(entry.dtype)));
    destinations.push_back(&target);
    by_name.erase(found);
  }
  std::vector<std::string_view> missing;
  for (const auto& [name, tensor] : by_name) missing.push_back(name);
  std::sort(unexpected.begin(), unexpected.end());
  const bool fits_nothing = !targets.empty() && missing.size() == targets.size();
  if (options.strict ? !missing.empty() || !unexpected.empty() : fits_nothing)
    reader.fail(fmt::format("does not fit the model:{}{}{}", missing.empty() ? "" : " it lacks " + first_names(missing),
                            !missing.empty() && !unexpected.empty() ? ";" : "",
                            unexpected.empty() ? "" : " the model lacks " + first_names(unexpected)));

  // All is read before anything is changed: a file that ends early leaves the model as it was.
  Tensors loaded;
  loaded.reserve(destinations.size());
  for (const TensorEntry& entry : reader.header().entries) loaded.push_back(reader.read(entry));
  reader.check_sum();
  const NoGrad no_grad;
  for (std::size_t i = 0; i < loaded.size(); ++i)
    if (destinations[i] && becomes_infinite(loaded[i], destinations[i]->dtype()))
      reader.fail(fmt::format("tensor {}: expected numbers that {} holds but the file has larger ones, in {}: load it as {}",
                              quote_name(reader.header().entries[i].name), name(destinations[i]->dtype()), name(loaded[i].dtype()),
                              name(loaded[i].dtype())));
  for (std::size_t i = 0; i < loaded.size(); ++i)
    if (destinations[i]) copy_(*destinations[i], loaded[i]);
  if (options.differences) *options.differences = {{missing.begin(), missing.end()}, {unexpected.begin(), unexpected.end()}};
  return std::move(reader.header().metadata);
}

Metadata load_safetensors_metadata(const std::string& path) { return std::move(Reader(path).header().metadata); }

}  // namespace tern::io
