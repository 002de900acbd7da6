#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/safetensors.h"

/// Models in several safetensors files, as Hugging Face has them: an index, model.safetensors.index.json, says which file has which tensor.
namespace tern::io {

/// The tensors of one file, or of several that an index joins. Opening reads the headers alone, and a tensor is read when it is asked for:
/// a model is loaded in the memory of its parameters and of one tensor of a file. A checksum of a file as a whole is not checked.
class SafetensorsFiles {
 public:
  /// A tensor's entry of the header.
  struct Info {
    DType dtype = DType::f32;  ///< in the file; read() keeps it
    Shape shape;               ///< in the file
  };

  /// A directory with model.safetensors or else model.safetensors.index.json, or one such file. Throws FileError, also for an index that
  /// names a file outside of its directory, or a tensor that its file lacks.
  explicit SafetensorsFiles(const std::filesystem::path& path);
  ~SafetensorsFiles();
  SafetensorsFiles(const SafetensorsFiles&) = delete;
  SafetensorsFiles& operator=(const SafetensorsFiles&) = delete;

  /// Of all tensors, by their names.
  const std::map<std::string, Info>& tensors() const { return tensors_; }
  /// The file that was opened, or the index, for messages.
  const std::string& name() const { return name_; }
  /// The file that has a tensor. Throws FileError where there is none of that name.
  const std::string& file_of(const std::string& tensor) const;
  /// A tensor on the CPU, contiguous. Throws FileError, also where there is none of that name.
  Tensor read(const std::string& tensor) const;

 private:
  struct File;
  struct Place {
    std::size_t file = 0, entry = 0;
  };
  std::size_t open(const std::filesystem::path& path);
  void open_index(const std::filesystem::path& path);
  const Place& place_of(const std::string& tensor) const;

  std::string name_;
  std::vector<std::unique_ptr<File>> files_;
  std::map<std::string, Place> places_;
  std::map<std::string, Info> tensors_;
};

/// Options of save_safetensors_files.
struct SafetensorsFilesOptions {
  std::uint64_t max_file_bytes = 5'000'000'000;   ///< of tensors in one file; a larger tensor has a file of its own
  Metadata metadata = {};                         ///< of each file
  std::map<std::string, std::string> texts = {};  ///< other files of the set, by their names: a config.json
};

/// Writes tensors into a directory, which is made if need be: as model.safetensors, or as model-00001-of-0000N.safetensors and so on with
/// an index. The files of such a set that were there before are replaced, and others are left alone. Everything is written beside them
/// first; then the old texts are removed, all new files are renamed, and the texts come last. So a text, where there is one, belongs to the
/// tensors that lie there, whenever the process ends. Throws Error as save_safetensors does, FileError, and DiskError.
void save_safetensors_files(const std::filesystem::path& directory, std::span<const NamedTensor> tensors,
                            const SafetensorsFilesOptions& options = {});

}  // namespace tern::io
