#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.h"

namespace tern::text {
class InputFile;
class JsonSource;
}  // namespace tern::text

/// The JSON header of a safetensors file: text in, checked entries out, and back.
namespace tern::io {

/// A tensor of the file; its bytes are counted from the end of the header.
struct TensorEntry {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::uint64_t begin = 0, end = 0;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> entries;  ///< in the order of their bytes
  Metadata metadata;
  std::uint64_t data_begin = 0;  ///< of the entries' bytes in a file that was read
};

/// The format's limit for the header, in bytes.
inline constexpr std::uint64_t max_header_bytes = 100'000'000;
/// Ours for the number of tensors. A tensor costs about 0.5 KB beside its elements, so that a header of empty ones
/// would take far more memory than its file has bytes.
inline constexpr std::size_t max_tensors = 100'000;
/// And for pairs of metadata, whose map takes more than their text.
inline constexpr std::size_t max_metadata = 100'000;
/// And for one name or one value of the metadata, in bytes: the parser holds it several times.
inline constexpr std::size_t max_header_string_bytes = std::size_t{8} << 20;

/// Reads a header to its end, piece by piece, and checks it against a data section of `data_bytes`. Throws FileError. An entry that
/// is returned has a supported dtype, a shape whose size fits, and a range of just that size; the ranges cover the
/// data section without holes and overlaps; no name stands twice. Unknown members of an entry are ignored, as the
/// reference implementation does.
SafetensorsHeader parse_safetensors_header(text::JsonSource& source, std::uint64_t data_bytes);

/// Reads the beginning of a file, of which nothing has been read: its length and the header, which parse_safetensors_header checks.
/// `on_read` gets the bytes. Throws FileError.
SafetensorsHeader read_safetensors_header(text::InputFile& file, const std::function<void(std::string_view)>& on_read = {});

/// Sets the entries' order and ranges, and returns the header's JSON, padded with spaces to a multiple of 8 bytes.
std::string layout_safetensors(SafetensorsHeader& header);

/// A tensor on the CPU, with the bytes that `read` brings.
Tensor read_tensor(const TensorEntry& entry, const std::function<void(void* data, std::size_t bytes)>& read);

/// A name as an error message shows it: quoted, on one line, at most about 80 bytes of it.
std::string quote_name(std::string_view name);

}  // namespace tern::io
