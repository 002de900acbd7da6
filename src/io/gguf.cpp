#include "io/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "io/files.h"
#include "io/safetensors_header.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "tensor/context.h"
#include "text/input_file.h"

namespace tern::io {

GgufFile::GgufFile(const std::string& path) : file_(std::make_unique<text::InputFile>(path)) {
  // Pieces of the header are small: they come out of a buffer.
  std::string buffer;
  std::size_t at = 0;
  const auto read = [&](void* to, std::size_t bytes) {
    auto* out = static_cast<char*>(to);
    while (bytes > 0) {
      if (at == buffer.size()) {
        buffer.resize(std::size_t{1} << 16);
        const std::size_t got = file_->read(buffer.data(), buffer.size());
        if (got == 0) throw FileError(file_->name() + ": ends within its header");
        buffer.resize(got);
        at = 0;
      }
      const std::size_t part = std::min(bytes, buffer.size() - at);
      std::memcpy(out, buffer.data() + at, part);
      out += part;
      at += part;
      bytes -= part;
    }
  };
  header_ = detail::parse_gguf(read, file_->size(), file_->name());
  for (const GgufEntry& entry : header_.tensors) by_name_.emplace(entry.name, &entry);
}
GgufFile::~GgufFile() = default;
GgufFile::GgufFile(GgufFile&&) noexcept = default;

const std::string& GgufFile::path() const noexcept { return file_->name(); }

const GgufEntry* GgufFile::find(std::string_view tensor) const {
  const auto found = by_name_.find(tensor);
  return found == by_name_.end() ? nullptr : found->second;
}

Tensor GgufFile::read(const GgufEntry& entry) const {
  Tensor result = empty(entry.stored_shape(), entry.stored_dtype(), cpu);
  file_->read_exactly_at(entry.begin, result.view().data, static_cast<std::size_t>(entry.bytes));
  return result;
}

void write_gguf(const std::string& path, const GgufMetadata& metadata, std::span<const GgufEntry> tensors,
                const std::function<Tensor(std::size_t)>& content) {
  constexpr const char* where = "write_gguf";
  if (metadata.contains(detail::gguf_alignment_key))
    fail(where, fmt::format("expected metadata without \"{}\", which is {}", detail::gguf_alignment_key, detail::gguf_alignment));
  const std::vector<GgufEntry> entries = detail::laid_out(tensors);
  AtomicFile file(path);
  file.write(detail::gguf_header_bytes(metadata, entries));
  const NoGrad no_grad;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const GgufEntry& entry = entries[i];
    const Tensor host = contiguous(to(content(i), cpu));
    if (host.dtype() != entry.stored_dtype() || host.shape() != entry.stored_shape())
      fail(where, fmt::format("expected {} of {} as {} but got {} {}", tern::name(entry.stored_dtype()), to_string(entry.stored_shape()),
                              quote_name(entry.name), tern::name(host.dtype()), to_string(host.shape())));
    file.write(host.view().data, static_cast<std::size_t>(entry.bytes));
    file.write(std::string(detail::gguf_padding(entry.bytes), '\0'));
  }
  file.commit();
}

}  // namespace tern::io
