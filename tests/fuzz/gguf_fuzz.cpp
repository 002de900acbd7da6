// A whole GGUF file, of whose tensors only the ranges are looked at.
#include <algorithm>
#include <cstring>

#include "fuzz.h"
#include "io/files.h"
#include "io/gguf.h"

using namespace tern;
using namespace tern::io;
using fuzz::require;

namespace {

GgufHeader parse(std::string_view bytes, std::uint64_t file_bytes) {
  std::size_t at = 0;
  const auto read = [&](void* to, std::size_t count) {
    require(count <= bytes.size() - at, "nothing is read beyond the file");
    if (count > 0) std::memcpy(to, bytes.data() + at, count);
    at += count;
  };
  return io::detail::parse_gguf(read, file_bytes, "f");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    GgufHeader header = parse(fuzz::text_of(data, size), size);
    std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
    for (const GgufEntry& entry : header.tensors) {
      require(entry.bytes == 0 || (entry.bytes <= size && entry.begin <= size - entry.bytes), "a tensor is within the file");
      require(entry.bytes == static_cast<std::uint64_t>(numel(entry.stored_shape())) * size_of(entry.stored_dtype()),
              "a range has the tensor's size");
      if (entry.bytes > 0) ranges.emplace_back(entry.begin, entry.begin + entry.bytes);
    }
    std::sort(ranges.begin(), ranges.end());
    for (std::size_t i = 1; i < ranges.size(); ++i) require(ranges[i].first >= ranges[i - 1].second, "tensors do not overlap");
    for (const auto& [key, value] : header.metadata)
      if (value.type != GgufType::text)
        for (std::size_t i = 0; i < std::min<std::size_t>(value.size(), 4); ++i) value.real(i);
    // A header that was read can be written, and is then read as the same.
    header.metadata.erase(io::detail::gguf_alignment_key);
    for (const GgufEntry& entry : header.tensors)
      if (entry.name.empty() || entry.name.size() > 63) return 0;
    const std::vector<GgufEntry> entries = io::detail::laid_out(header.tensors);
    const std::string written = io::detail::gguf_header_bytes(header.metadata, entries);
    const std::uint64_t end = entries.empty() ? 0 : entries.back().begin + entries.back().bytes;
    const GgufHeader again = parse(written, written.size() + end);
    require(again.metadata == header.metadata && again.tensors.size() == entries.size(), "a written header is read as the same");
    for (std::size_t i = 0; i < entries.size(); ++i)
      require(again.tensors[i].name == entries[i].name && again.tensors[i].format == entries[i].format &&
                  again.tensors[i].shape == entries[i].shape && again.tensors[i].begin == written.size() + entries[i].begin,
              "a written entry is read as the same");
  } catch (const FileError& error) {
    fuzz::require_message(error.what());
  }
  return 0;
}
