#include "io/safetensors_files.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <utility>

#include "io/atomic_file.h"
#include "io/safetensors_header.h"
#include "text/input_file.h"
#include "text/json_reader.h"

namespace tern::io {

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
