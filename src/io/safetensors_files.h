#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/safetensors.h"

/// Models in several safetensors files, as Hugging Face writes them: the index, model.safetensors.index.json, maps each tensor to its file.
namespace tern::io {

/// The tensors of one file, or of several that an index joins. The constructor reads headers alone, and read() one tensor, so that loading
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
