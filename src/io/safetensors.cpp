#include "io/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <utility>
#include <vector>

#include "io/files.h"
#include "io/safetensors_header.h"
#include "ops/factory.h"
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

/// Makes an entry's tensor on the CPU, whose bytes `read` fills in.
template <class Read>
Tensor read_tensor(const TensorEntry& entry, const Read& read) {
  Tensor result = empty(entry.shape, entry.dtype, cpu);
  auto* data = static_cast<unsigned char*>(result.view().data);
  const auto bytes = static_cast<std::size_t>(entry.end - entry.begin);
  read(data, bytes);
  // A bool that is neither 0 nor 1 is undefined behaviour in C++. NumPy reads every other byte as true as well.
  if (entry.dtype == DType::boolean) std::transform(data, data + bytes, data, [](unsigned char byte) { return byte != 0; });
  return result;
}

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

namespace {

constexpr const char *one_file = "model.safetensors", *index_file = "model.safetensors.index.json";
constexpr std::size_t max_index_bytes = std::size_t{64} << 20;

/// True for the name of a file beside the index: an index comes from anywhere, and must not lead outside its directory.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == name.npos && name.find('\0') == name.npos;
}

}  // namespace

struct SafetensorsFiles::File {
  explicit File(const std::string& path) : input(path) { header = read_safetensors_header(input); }
  text::InputFile input;
  SafetensorsHeader header;
};

SafetensorsFiles::~SafetensorsFiles() = default;

std::size_t SafetensorsFiles::open(const std::string& path) {
  files_.push_back(std::make_unique<File>(path));
  return files_.size() - 1;
}

SafetensorsFiles::SafetensorsFiles(const std::string& given) {
  const std::filesystem::path directory = given;
  std::filesystem::path path = given;
  std::error_code ignored;
  if (std::filesystem::is_directory(directory, ignored)) {
    path = directory / one_file;
    if (!std::filesystem::exists(path, ignored)) path = directory / index_file;
    if (!std::filesystem::exists(path, ignored))
      throw FileError(fmt::format("{}: expected a directory with {} or {}, but it has neither", given, one_file, index_file));
  }
  name_ = path.string();
  if (path.extension() == ".json") {
    open_index(path);
  } else {
    const std::size_t file = open(path);
    const auto& entries = files_[file]->header.entries;
    for (std::size_t i = 0; i < entries.size(); ++i) locations_.emplace(entries[i].name, Location{file, i});
  }
  for (const auto& [tensor, location] : locations_) {
    const TensorEntry& entry = files_[location.file]->header.entries[location.entry];
    tensors_.emplace(tensor, Info{entry.dtype, entry.shape});
  }
}

void SafetensorsFiles::open_index(const std::string& path) {
  const auto fail = [&](const std::string& message) { throw FileError(name_ + ": " + message); };
  const std::string content = text::read_file(path, max_index_bytes);
  const text::JsonLimits limits{.max_values = 4 * max_tensors};
  text::JsonSource source(content, name_, limits.max_string_bytes);
  const text::JsonReader::Json index = text::JsonReader(source, limits).read();
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object()) fail("expected \"weight_map\", an object of tensors and their files");
  std::map<std::string, std::pair<std::size_t, std::map<std::string, std::size_t>>> opened;
  for (const auto& [tensor, value] : map->items()) {
    if (!value.is_string()) fail(fmt::format("tensor {}: expected the name of a file but got {}", quote_name(tensor), value.type_name()));
    const auto file_name = value.get<std::string>();
    if (!is_plain_name(file_name))
      fail(fmt::format("tensor {}: expected the name of a file beside the index but got {}", quote_name(tensor), quote_name(file_name)));
    auto found = opened.find(file_name);
    if (found == opened.end()) {
      const std::size_t file = open(std::filesystem::path(path).parent_path() / file_name);
      std::map<std::string, std::size_t> entries;
      for (std::size_t i = 0; i < files_[file]->header.entries.size(); ++i) entries.emplace(files_[file]->header.entries[i].name, i);
      found = opened.emplace(file_name, std::pair(file, std::move(entries))).first;
    }
    const auto& [file, entries] = found->second;
    const auto entry = entries.find(tensor);
    if (entry == entries.end())
      throw FileError(fmt::format("{}: lacks tensor {}, which {} says it has", files_[file]->input.name(), quote_name(tensor), index_file));
    locations_.emplace(tensor, Location{file, entry->second});
  }
}

const SafetensorsFiles::Location& SafetensorsFiles::locate(const std::string& tensor) const {
  const auto found = locations_.find(tensor);
  if (found == locations_.end()) throw FileError(fmt::format("{}: lacks tensor {}", name_, quote_name(tensor)));
  return found->second;
}

const std::string& SafetensorsFiles::file_of(const std::string& tensor) const { return files_[locate(tensor).file]->input.name(); }

Tensor SafetensorsFiles::read(const std::string& tensor) const {
  const Location& location = locate(tensor);
  const File& file = *files_[location.file];
  const TensorEntry& entry = file.header.entries[location.entry];
  return read_tensor(entry,
                     [&](void* data, std::size_t bytes) { file.input.read_exactly_at(file.header.data_begin + entry.begin, data, bytes); });
}

namespace {

std::uint64_t bytes_of(const Tensor& x) {
  return x.defined() ? static_cast<std::uint64_t>(x.numel()) * size_of(x.dtype()) : 0;  // write_safetensors refuses undefined tensors
}

/// Splits tensors into files of at most max_file_bytes, in the order given.
std::vector<std::vector<NamedTensor>> split_into_files(std::span<const NamedTensor> tensors, std::uint64_t max_file_bytes) {
  std::vector<std::vector<NamedTensor>> result(1);
  std::uint64_t bytes = 0;
  for (const NamedTensor& entry : tensors) {
    const std::uint64_t more = bytes_of(entry.tensor);
    if (!result.back().empty() && bytes + more > max_file_bytes) {
      result.emplace_back();
      bytes = 0;
    }
    result.back().push_back(entry);
    bytes += more;
  }
  return result;
}

/// Removes the files of an earlier model from a directory, but for those named in `kept`.
void remove_others(const std::filesystem::path& directory, const std::set<std::string>& kept) {
  static const std::regex shard("model-[0-9]{5}-of-[0-9]{5}\\.safetensors");
  std::vector<std::filesystem::path> old;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (!kept.contains(name) && (name == one_file || name == index_file || std::regex_match(name, shard))) old.push_back(entry.path());
  }
  if (error) fail_file(directory, "listed", error.value());
  for (const std::filesystem::path& path : old)
    if (std::filesystem::remove(path, error); error) fail_file(path, "removed", error.value());
}

std::string index_text(const std::map<std::string, std::string>& file_of, std::uint64_t bytes) {
  nlohmann::ordered_json index;
  index["metadata"]["total_size"] = bytes;
  index["weight_map"] = file_of;
  return index.dump(2) + "\n";
}

}  // namespace

void save_safetensors_files(const std::string& path, std::span<const NamedTensor> tensors, const SafetensorsFilesOptions& options) {
  const std::filesystem::path directory = path;
  std::set<std::string> names;
  std::uint64_t bytes = 0;
  for (const NamedTensor& entry : tensors) {
    if (!names.insert(entry.name).second)
      fail("save_safetensors_files", fmt::format("expected different names but got {} twice", quote_name(entry.name)));
    bytes += bytes_of(entry.tensor);
  }
  const std::vector<std::vector<NamedTensor>> parts = split_into_files(tensors, options.max_file_bytes);
  std::map<std::string, std::string> file_of;  // names of files by tensor
  std::vector<std::pair<std::string, std::unique_ptr<AtomicFile>>> files;
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) fail_file(directory, "created", error.value());
  const auto add = [&](const std::string& name) -> AtomicFile& {
    return *files.emplace_back(name, std::make_unique<AtomicFile>(directory / name)).second;
  };
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string name = parts.size() == 1 ? one_file : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, parts.size());
    for (const NamedTensor& entry : parts[i]) file_of.emplace(entry.name, name);
    write_safetensors(add(name), parts[i], options.metadata);
  }
  if (parts.size() > 1) add(index_file).write(index_text(file_of, bytes));
  for (const auto& [name, content] : options.texts) add(name).write(content);
  // All is written. Until here a reader finds the old model; from here to the last commit no texts; then the new model.
  for (const auto& [name, content] : options.texts) {
    std::filesystem::remove(directory / name, error);
    if (error) fail_file(directory / name, "replaced", error.value());
  }
  sync_directory(directory);
  std::set<std::string> kept;
  for (const auto& [name, file] : files) kept.insert(name);
  remove_others(directory, kept);
  for (const auto& [name, file] : files) file->commit();
}

}  // namespace tern::io
