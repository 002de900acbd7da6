#pragma once
#include <filesystem>
#include <map>
#include <span>
#include <string>

#include "io/file_error.h"
#include "tensor/tensor.h"

/// The safetensors format: eight bytes of header length, a JSON header of names, dtypes, shapes and offsets, the bytes.
/// https://huggingface.co/docs/safetensors. Nothing in a file is ever executed.
namespace tern::io {

class AtomicFile;

/// Free text about a file: names to values.
using Metadata = std::map<std::string, std::string>;

/// A key of the metadata that save_safetensors() fills, whatever its value, with a checksum of the whole file (eight hexadecimal digits).
/// Reading checks it, in linear time, where a file has it; other readers see a line of metadata.
inline constexpr const char* checksum_key = "tern.crc32";

/// The content of a file.
struct TensorFile {
  std::map<std::string, Tensor> tensors;  ///< on the CPU, contiguous
  Metadata metadata;                      ///< its checksum included, where it has one
};

/// Writes tensors of any dtype, device and strides: `save_safetensors(path, nn::named_parameters(model))`. The same tensors give the same
/// bytes, whatever their order; the old file stays until the new one is whole. Throws Error for a name that is empty, reserved or given
/// twice; FileError if the file cannot be written.
void save_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors, const Metadata& metadata = {});

/// The same into a file that the caller commits.
void write_safetensors(AtomicFile& file, std::span<const NamedTensor> tensors, const Metadata& metadata = {});

/// Reads a file. Everything the header says is checked before memory for any tensor is taken. Throws FileError, also for one whose
/// checksum is another than its bytes give.
TensorFile load_safetensors(const std::filesystem::path& path);

/// Copies a file's tensors into those given, in place, on their devices; floating dtypes are converted. Returns the
/// file's metadata. Throws FileError, before any tensor has changed, unless names and shapes are the same on both sides.
Metadata load_safetensors_into(const std::filesystem::path& path, std::span<const NamedTensor> targets);

/// Whether a cast of x would make infinities of numbers: the narrower dtype does not hold them.
bool becomes_infinite(const Tensor& x, DType dtype);

/// A file's metadata alone, from its header, which is checked. Throws FileError.
Metadata load_safetensors_metadata(const std::filesystem::path& path);

}  // namespace tern::io
