#include "io/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <vector>

#include "io/atomic_file.h"
#include "io/safetensors_header.h"
#include "ops/copy.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"

namespace tern::io {

static_assert(std::endian::native == std::endian::little, "safetensors elements are little-endian, and are copied as they are");

namespace {

/// An open file whose header has been checked, and whose tensors can be read in the order of their bytes.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : where_(path.string()) {
    // Non-blocking, so that opening a pipe returns, and is refused below.
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    try {
      read_header();
    } catch (...) {
      close();
      throw;
    }
  }
  ~Reader() { close(); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  const SafetensorsHeader& header() const noexcept { return header_; }
  SafetensorsHeader& header() noexcept { return header_; }

  /// The tensor of the next entry.
  Tensor read(const TensorEntry& entry) {
    Tensor result = empty(entry.shape, entry.dtype);
    auto* data = static_cast<unsigned char*>(result.view().data);
    const auto bytes = static_cast<std::size_t>(entry.end - entry.begin);
    read_bytes(data, bytes);
    // A bool that is neither 0 nor 1 is undefined behaviour in C++. NumPy reads every other byte as true as well.
    if (entry.dtype == DType::boolean) std::transform(data, data + bytes, data, [](unsigned char byte) { return byte != 0; });
    return result;
  }

  [[noreturn]] void fail(const std::string& message) const { throw FileError(where_ + ": " + message); }

 private:
  void close() noexcept {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  void read_header() {
    struct stat status;
    if (descriptor_ < 0 || ::fstat(descriptor_, &status) != 0) fail(fmt::format("could not be read: {}", std::strerror(errno)));
    if (!S_ISREG(status.st_mode)) fail("could not be read: it is not a regular file");
    const auto size = static_cast<std::uint64_t>(status.st_size);
    std::uint64_t length = 0;
    if (size < sizeof length) fail(fmt::format("expected a safetensors file of at least 8 bytes but got {}", size));
    read_bytes(&length, sizeof length);
    if (length > max_header_bytes) fail(fmt::format("expected a header of at most {} bytes but got {}", max_header_bytes, length));
    if (length > size - sizeof length)
      fail(fmt::format("expected a header of {} bytes but the file ends after {}", length, size - sizeof length));
    std::string json(static_cast<std::size_t>(length), '\0');
    read_bytes(json.data(), json.size());
    header_ = parse_safetensors_header(json, size - sizeof length - length, where_);
  }

  void read_bytes(void* data, std::size_t bytes) {
    char* to = static_cast<char*>(data);
    while (bytes > 0) {
      const ssize_t got = ::read(descriptor_, to, bytes);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail(fmt::format("could not be read: {}", std::strerror(errno)));
      if (got == 0) fail("ended early: it was changed while it was read");
      to += got;
      bytes -= static_cast<std::size_t>(got);
    }
  }

  std::string where_;
  int descriptor_ = -1;
  SafetensorsHeader header_;
};

/// Names for a message: the first few, and how many more there are.
std::string some(const std::vector<std::string>& names) {
  constexpr std::size_t limit = 3;
  std::string result;
  for (std::size_t i = 0; i < std::min(names.size(), limit); ++i) result += (i ? ", " : "") + quote_name(names[i]);
  if (names.size() > limit) result += fmt::format(" and {} more", names.size() - limit);
  return result;
}

}  // namespace

void save_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors, const Metadata& metadata) {
  constexpr const char* where = "save_safetensors";
  SafetensorsHeader header;
  header.metadata = metadata;
  std::map<std::string, Tensor> by_name;
  for (const auto& [name, tensor] : tensors) {
    if (name.empty() || name == "__metadata__") fail(where, fmt::format("expected a tensor's name but got {}", quote_name(name)));
    if (!tensor.defined()) fail(where, fmt::format("expected {} to be a defined tensor but got an undefined one", quote_name(name)));
    if (!by_name.emplace(name, tensor).second) fail(where, fmt::format("expected different names but got {} twice", quote_name(name)));
    header.entries.push_back({name, tensor.dtype(), tensor.shape()});
  }
  if (header.entries.size() > max_tensors)
    fail(where, fmt::format("expected at most {} tensors but got {}", max_tensors, header.entries.size()));
  const std::string json = layout_safetensors(header);
  const std::uint64_t length = json.size();
  if (length > max_header_bytes)
    fail(where, fmt::format("expected names and metadata of at most {} bytes but got {}", max_header_bytes, length));

  const NoGrad no_grad;
  AtomicFile file(path);
  file.write(&length, sizeof length);
  file.write(json);
  for (const TensorEntry& entry : header.entries) {
    // One tensor at a time, so that saving a model on a GPU takes little memory of the host.
    const Tensor host = contiguous(to(by_name.at(entry.name), cpu));
    file.write(host.view().data, static_cast<std::size_t>(entry.end - entry.begin));
  }
  file.commit();
}

TensorFile load_safetensors(const std::filesystem::path& path) {
  Reader reader(path);
  TensorFile result;
  result.metadata = std::move(reader.header().metadata);
  for (const TensorEntry& entry : reader.header().entries) result.tensors.emplace(entry.name, reader.read(entry));
  return result;
}

/// True where a conversion to a narrower format would overflow.
static bool becomes_infinite(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype || !is_floating(dtype) || size_of(dtype) > size_of(x.dtype()) || x.numel() == 0) return false;
  const auto is_infinite = [](const Tensor& y) { return eq(abs(y), std::numeric_limits<double>::infinity()); };
  return any(ne(is_infinite(cast(x, dtype)), is_infinite(x))).item<bool>();
}

Metadata load_safetensors_into(const std::filesystem::path& path, std::span<const NamedTensor> targets) {
  Reader reader(path);
  std::map<std::string_view, const Tensor*> by_name;
  for (const auto& [name, tensor] : targets)
    if (!by_name.emplace(name, &tensor).second)
      tern::fail("load_safetensors_into", fmt::format("expected different names but got {} twice", quote_name(name)));

  std::vector<std::string> unexpected;
  std::vector<const Tensor*> destinations;
  for (const TensorEntry& entry : reader.header().entries) {
    const auto found = by_name.find(entry.name);
    if (found == by_name.end()) {
      unexpected.push_back(entry.name);
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
  std::vector<std::string> missing;
  for (const auto& [name, tensor] : by_name) missing.emplace_back(name);
  std::sort(unexpected.begin(), unexpected.end());
  if (!missing.empty() || !unexpected.empty())
    reader.fail(fmt::format("does not fit the model:{}{}{}", missing.empty() ? "" : " it lacks " + some(missing),
                            !missing.empty() && !unexpected.empty() ? ";" : "",
                            unexpected.empty() ? "" : " the model lacks " + some(unexpected)));

  // All is read before anything is changed: a file that ends early leaves the model as it was.
  Tensors loaded;
  loaded.reserve(destinations.size());
  for (const TensorEntry& entry : reader.header().entries) loaded.push_back(reader.read(entry));
  const NoGrad no_grad;
  for (std::size_t i = 0; i < loaded.size(); ++i)
    if (becomes_infinite(loaded[i], destinations[i]->dtype()))
      reader.fail(fmt::format("tensor {}: expected numbers that {} holds but the file has larger ones, in {}: load it as {}",
                              quote_name(reader.header().entries[i].name), name(destinations[i]->dtype()), name(loaded[i].dtype()),
                              name(loaded[i].dtype())));
  for (std::size_t i = 0; i < loaded.size(); ++i) copy_(*destinations[i], loaded[i]);
  return std::move(reader.header().metadata);
}

}  // namespace tern::io
