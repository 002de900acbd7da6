// A whole safetensors file: the length, the header, and data of which only the size is looked at.
#include <cstring>

#include "fuzz.h"
#include "io/files.h"
#include "io/safetensors_header.h"
#include "text/json_reader.h"

using namespace tern;
using namespace tern::io;
using fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::uint64_t length = 0;
  if (size < sizeof length) return 0;
  std::memcpy(&length, data, sizeof length);
  // A wrong length is refused before anything is parsed. The header then is all that there is, and names the data's size.
  length = std::min<std::uint64_t>(length, size - sizeof length);
  const std::string_view header = fuzz::text_of(data, size).substr(sizeof length, length);
  const std::uint64_t data_bytes = size - sizeof length - length;
  try {
    text::JsonSource source(header, "f", max_header_string_bytes);
    SafetensorsHeader parsed = parse_safetensors_header(source, data_bytes);
    std::uint64_t position = 0;
    for (const TensorEntry& entry : parsed.entries) {
      require(entry.begin == position && entry.end >= entry.begin, "ranges follow each other");
      require(entry.end - entry.begin == static_cast<std::uint64_t>(numel(entry.shape)) * size_of(entry.dtype),
              "a range has the tensor's size");
      position = entry.end;
    }
    require(position == data_bytes, "ranges cover the data");
    // Tensors that were read can be written, and are then read as the same.
    SafetensorsHeader again = parsed;
    const std::string json = layout_safetensors(again);
    text::JsonSource written(json, "f", max_header_string_bytes);
    const SafetensorsHeader reread = parse_safetensors_header(written, data_bytes);
    require(reread.entries.size() == parsed.entries.size() && reread.metadata == parsed.metadata, "a written header is read as the same");
  } catch (const FileError& error) {
    fuzz::require_message(error.what());
  }
  return 0;
}
