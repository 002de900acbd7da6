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

/// The JSON header of a safetensors file: parsing with all checks, and writing.
namespace tern::io {

/// A tensor's entry in the header. Its bytes are [begin, end), counted from the end of the header.
struct TensorEntry {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::uint64_t begin = 0, end = 0;
};

/// A parsed header.
struct SafetensorsHeader {
  std::vector<TensorEntry> entries;  ///< in the order of their bytes
  Metadata metadata;
  std::uint64_t data_begin = 0;  ///< offset in the file of the tensors' bytes, if the header was read from a file
};

/// Limit of the format for the header, in bytes.
inline constexpr std::uint64_t max_header_bytes = 100'000'000;
/// Limit of this library for the number of tensors. A tensor takes about 0.5 KB beside its elements, so that a header of empty tensors
/// would take far more memory than the file has bytes.
inline constexpr std::size_t max_tensors = 100'000;
/// Limit for pairs of metadata, whose map takes more memory than their text.
inline constexpr std::size_t max_metadata = 100'000;
/// Limit for one name or one value of the metadata, in bytes: the parser holds several copies.
inline constexpr std::size_t max_header_string_bytes = std::size_t{8} << 20;

/// Parses a header to its end, piece by piece, and checks it against a data section of `data_bytes`. Entries then have a supported dtype, a
/// shape whose size fits in memory, and a range of that size; the ranges cover the data section without holes and overlaps; names are
/// unique. Unknown members of an entry are ignored, as by the reference implementation. Throws FileError.
SafetensorsHeader parse_safetensors_header(text::JsonSource& source, std::uint64_t data_bytes);

/// Reads the length and the header from the beginning of a file, and parses the header. `on_read` gets the bytes. Throws FileError.
SafetensorsHeader read_safetensors_header(text::InputFile& file, const std::function<void(std::string_view)>& on_read = {});

/// Sets the order and the ranges of the entries. Returns the header's JSON, padded with spaces to a multiple of 8 bytes.
std::string layout_safetensors(SafetensorsHeader& header);

/// A name for an error message: quoted, on one line, shortened to about 80 bytes.
std::string quote_name(std::string_view name);

}  // namespace tern::io
