#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace tern::text {
class InputFile;
}

/// GGUF, version 3, the format of llama.cpp (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): typed metadata, the names, shapes
/// and types of tensors, then the tensors' bytes. Nothing in a file is ever executed.
namespace tern::io {

/// Type of a value of GGUF's metadata, with the format's own numbers.
enum class GgufType : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, text, array, u64, i64, f64 };

/// A value of the metadata: a number, a bool, a text, or a list of one of these types.
struct GgufValue {
  GgufType type = GgufType::u32;   ///< of the value, or of each element of the list; never GgufType::array
  bool is_list = false;            ///< the format's array; arrays of arrays are refused, as by llama.cpp
  std::string numbers;             ///< the elements as the file has them: little-endian, one after the other; empty for texts
  std::vector<std::string> texts;  ///< the elements of GgufType::text

  /// @{
  /// A value of one element.
  static GgufValue of(std::string_view text);
  static GgufValue of(const char* text) { return of(std::string_view(text)); }
  static GgufValue of(bool value);
  static GgufValue of(std::uint32_t value);
  static GgufValue of(float value);
  /// @}
  /// @{
  /// A list.
  static GgufValue list(std::vector<std::string> texts);
  static GgufValue list(std::span<const std::int32_t> values);
  /// @}
  std::size_t size() const;                           ///< number of elements
  std::int64_t integer(std::size_t i) const;          ///< element i of an integer or bool type; u64 beyond 2^63 - 1 is that
  double real(std::size_t i) const;                   ///< element i of any type but text
  bool operator==(const GgufValue&) const = default;  ///< types and bytes
};

/// Metadata by key, such as "general.architecture".
using GgufMetadata = std::map<std::string, GgufValue>;

/// Format of a tensor's elements, with the format's own numbers: those of its types that a Tensor or a QuantizedWeight holds.
enum class GgufFormat : std::uint32_t { f32 = 0, f16 = 1, q4_0 = 2, q8_0 = 8, bf16 = 30 };

/// Name of a format: "f32", "f16", "q4_0", "q8_0", "bf16".
const char* name(GgufFormat format);

/// A tensor's entry of the header.
struct GgufEntry {
  std::string name;                     ///< at most 63 bytes, llama.cpp's limit, in a file that is written
  GgufFormat format = GgufFormat::f32;  ///< of its elements
  Shape shape;                          ///< (out, in): the last dimension is contiguous, which the format lists first
  std::uint64_t begin = 0;              ///< offset in the file; set by the reader
  std::uint64_t bytes = 0;              ///< size in the file; set by the reader

  /// Shape of its Tensor: that of the entry, or (out, row bytes) of u8 for blocks, as in QuantizedWeight::rows.
  Shape stored_shape() const;
  DType stored_dtype() const;  ///< dtype of that Tensor
};

/// A file's header.
struct GgufHeader {
  GgufMetadata metadata;           ///< all of it
  std::vector<GgufEntry> tensors;  ///< in the order of the file
};

/// A file, of which the constructor reads the header alone. All counts, lengths and offsets are checked against the size of the file before
/// memory is allocated; tensors lie within the file, aligned, and do not overlap. Throws FileError, one line that begins with the path.
class GgufFile {
 public:
  /// Opens a file of version 3, or 2, which has the same layout.
  explicit GgufFile(const std::string& path);
  ~GgufFile();
  GgufFile(GgufFile&&) noexcept;  ///< the other one may only be destroyed

  const std::string& path() const noexcept;                                           ///< for messages
  const GgufMetadata& metadata() const noexcept { return header_.metadata; }          ///< all of it
  const std::vector<GgufEntry>& tensors() const noexcept { return header_.tensors; }  ///< in the order of the file
  const GgufEntry* find(std::string_view tensor) const;                               ///< null if there is no such tensor
  /// Reads a tensor: on the CPU, contiguous, of stored_shape() and stored_dtype(). Throws FileError.
  Tensor read(const GgufEntry& entry) const;

 private:
  std::unique_ptr<text::InputFile> file_;
  GgufHeader header_;
  std::map<std::string_view, const GgufEntry*> by_name_;
};

/// Writes a file. content(i) returns the tensor of entry i, of its stored_shape() and stored_dtype(), on any device, when its turn comes,
/// so that a conversion takes the memory of one tensor. The old file stays until the new one is whole. Throws Error for a name that is
/// empty, too long or given twice, and for a content that is not the entry's, FileError if the file cannot be written, and DiskError.
void write_gguf(const std::string& path, const GgufMetadata& metadata, std::span<const GgufEntry> tensors,
                const std::function<Tensor(std::size_t)>& content);

namespace detail {
inline constexpr std::uint64_t gguf_alignment = 32;                     ///< of tensors, in a file without the key
inline constexpr const char* gguf_alignment_key = "general.alignment";  ///< that key
/// Zero bytes that follow so many, up to the alignment.
constexpr std::size_t gguf_padding(std::uint64_t bytes) { return static_cast<std::size_t>((0 - bytes) % gguf_alignment); }
/// Parses a header. `read` fills the next bytes; the file has `file_bytes` in all. Throws FileError with `name` in place of the path.
GgufHeader parse_gguf(const std::function<void(void*, std::size_t)>& read, std::uint64_t file_bytes, const std::string& name);
/// Checks the entries of a file to be written, and sets their bytes, and their offsets from the first tensor.
std::vector<GgufEntry> laid_out(std::span<const GgufEntry> tensors);
/// The bytes of a header with such entries, padded to the alignment.
std::string gguf_header_bytes(const GgufMetadata& metadata, std::span<const GgufEntry> tensors);
}  // namespace detail

}  // namespace tern::io
