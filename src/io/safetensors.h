#pragma once
#include <map>
#include <span>
#include <string>
#include <vector>

#include "io/file_error.h"
#include "tensor/tensor.h"

/// The safetensors format (https://huggingface.co/docs/safetensors): eight bytes of header length, a JSON header of names, dtypes, shapes
/// and offsets, then the tensors' bytes. Nothing in a file is ever executed.
namespace tern::io {

class AtomicFile;

/// Metadata of a file: free text by name.
using Metadata = std::map<std::string, std::string>;

/// A key of the metadata whose value save_safetensors() replaces by a checksum of the whole file, eight hexadecimal digits. Readers here
/// compare it if a file has it; other readers see a line of metadata.
inline constexpr const char* checksum_key = "tern.crc32";

/// The content of a file.
struct TensorFile {
  std::map<std::string, Tensor> tensors;  ///< on the CPU, contiguous
  Metadata metadata;                      ///< with the checksum, if the file has one
};

/// Writes tensors of any dtype, device and strides: `save_safetensors(path, nn::named_parameters(model))`. The same tensors give the same
/// bytes in any order; the old file stays until the new one is whole. Throws Error for a name that is empty, reserved or given twice,
/// FileError if the file cannot be written.
void save_safetensors(const std::string& path, std::span<const NamedTensor> tensors, const Metadata& metadata = {});

/// Writes tensors likewise into a file that the caller commits.
void write_safetensors(AtomicFile& file, std::span<const NamedTensor> tensors, const Metadata& metadata = {});

/// Reads a file. The header is checked as a whole before memory for any tensor is allocated. Throws FileError, also if the checksum of the
/// metadata is not that of the bytes.
TensorFile load_safetensors(const std::string& path);

/// Names that only one side of load_safetensors_into() has.
struct NameDifferences {
  std::vector<std::string> missing;     ///< targets that the file does not have
  std::vector<std::string> unexpected;  ///< tensors of the file that are no target
};

/// Options of load_safetensors_into().
struct LoadOptions {
  bool strict = true;                      ///< false: names that only one side has are left as they are
  NameDifferences* differences = nullptr;  ///< if given, gets these names, in order
};

/// Copies a file's tensors into those given, in place, on their devices; floating dtypes are converted. Returns the file's metadata. Throws
/// FileError, before any tensor has changed, unless names and shapes are the same on both sides; if not strict, unless the shapes of the
/// names that both have are the same, and there is such a name.
Metadata load_safetensors_into(const std::string& path, std::span<const NamedTensor> targets, const LoadOptions& options = {});

/// True if a cast of x to a narrower floating dtype would turn finite elements into infinities.
bool becomes_infinite(const Tensor& x, DType dtype);

/// The metadata of a file, from its header, which is checked; tensors are not read. Throws FileError.
Metadata load_safetensors_metadata(const std::string& path);

}  // namespace tern::io
