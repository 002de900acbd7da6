#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/files.h"
#include "tensor/tensor.h"

/// The safetensors format (https://huggingface.co/docs/safetensors): eight bytes of header length, a JSON header of names, dtypes, shapes
/// and offsets, then the tensors' bytes. Nothing in a file is ever executed.
namespace tern::io {

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

/// The tensors of one file, or of several, as Hugging Face writes them, whose index, model.safetensors.index.json, maps each tensor to its
/// file. The constructor reads headers alone, and read() one tensor, so that loading
/// a model takes the memory of its parameters and of one tensor. Checksums of whole files are not compared.
class SafetensorsFiles {
 public:
  /// A tensor's entry of the header.
  struct Info {
    DType dtype = DType::f32;  ///< in the file; read() keeps it
    Shape shape;               ///< in the file
  };

  /// Opens a directory with model.safetensors or else model.safetensors.index.json, or one such file. Throws FileError, also for an index
  /// that names a file outside its directory, or a tensor that its file lacks.
  explicit SafetensorsFiles(const std::string& path);
  ~SafetensorsFiles();
  SafetensorsFiles(const SafetensorsFiles&) = delete;
  SafetensorsFiles& operator=(const SafetensorsFiles&) = delete;

  /// All tensors by name.
  const std::map<std::string, Info>& tensors() const { return tensors_; }
  /// The path of the file or the index, for messages.
  const std::string& name() const { return name_; }
  /// The path of the file that has a tensor. Throws FileError if there is no tensor of that name.
  const std::string& file_of(const std::string& tensor) const;
  /// Reads a tensor: on the CPU, contiguous. Throws FileError, also if there is no tensor of that name.
  Tensor read(const std::string& tensor) const;

 private:
  struct File;
  struct Location {
    std::size_t file = 0, entry = 0;  ///< index in files_, and of the entry in its header
  };
  std::size_t open(const std::string& path);
  void open_index(const std::string& path);
  const Location& locate(const std::string& tensor) const;

  std::string name_;
  std::vector<std::unique_ptr<File>> files_;
  std::map<std::string, Location> locations_;
  std::map<std::string, Info> tensors_;
};

/// Options of save_safetensors_files.
struct SafetensorsFilesOptions {
  std::uint64_t max_file_bytes = 5'000'000'000;   ///< bytes of tensors in one file; a larger tensor has a file of its own
  Metadata metadata = {};                         ///< of each file
  std::map<std::string, std::string> texts = {};  ///< text files of the model by name, such as config.json
};

/// Writes tensors into a directory, which is made if need be: as model.safetensors, or as model-00001-of-0000N.safetensors and so on with
/// an index. Files of an earlier model are replaced, and others are left alone. All files are first written under temporary names; then the
/// old texts are removed, the new tensors renamed, and the new texts last. So a text that is there belongs to the tensors beside it,
/// whenever the process ends. Throws Error as save_safetensors does, FileError, and DiskError.
void save_safetensors_files(const std::string& directory, std::span<const NamedTensor> tensors,
                            const SafetensorsFilesOptions& options = {});

}  // namespace tern::io
