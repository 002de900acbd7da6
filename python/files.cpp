// Files of tensors and of others' models (io/safetensors.h, models/hugging_face.h).
#include <nanobind/stl/filesystem.h>

#include "binding.h"
#include "io/safetensors.h"
#include "models/hugging_face.h"

namespace tern::python {

void bind_files(nb::module_& io, nb::module_& models) {
  io.def(
      "save_safetensors",
      [](const std::filesystem::path& path, const NamedTensors& tensors, const io::Metadata& metadata) {
        io::save_safetensors(path, tensors.all, metadata);
      },
      "path"_a, "tensors"_a, "metadata"_a = io::Metadata(), Released(),
      "Writes tensors of any dtype, device and strides: save_safetensors(path, model.state_dict()). The old file stays until the new "
      "one is whole.");
  io.def(
      "load_safetensors", [](const std::filesystem::path& path) { return io::load_safetensors(path).tensors; }, "path"_a, Released(),
      "The tensors of a file by name, on the CPU.");
  io.def("load_safetensors_metadata", [](const std::filesystem::path& path) { return io::load_safetensors_metadata(path); }, "path"_a);
  io.def(
      "load_safetensors_into",
      [](const std::filesystem::path& path, const NamedTensors& targets, bool strict) {
        return io::load_safetensors_into(path, targets.all, {.strict = strict});
      },
      "path"_a, "targets"_a, "strict"_a = true, Released(),
      "Copies a file's tensors into those given, in place. FileError, before any has changed, unless names and shapes are the same on "
      "both\n"
      "sides. Returns the file's metadata.");

  models.def(
      "load_hugging_face",
      [](const std::filesystem::path& directory, DType dtype, std::int64_t length, const DeviceLike& device) {
        return models::load_hugging_face(directory, {dtype, length, device.get()});
      },
      "directory"_a, nb::kw_only(), "dtype"_a = DType::f32, "length"_a = 0, "device"_a = nb::none(), Released(),
      "The GPT-2 or Llama of a directory that transformers has saved, in evaluation mode.");
  models.def(
      "save_hugging_face",
      [](const nn::DecoderLM& model, const std::filesystem::path& directory) { models::save_hugging_face(model, directory); }, "model"_a,
      "directory"_a, Released(), "Writes a model so that transformers, and load_hugging_face, read it.");
}

}  // namespace tern::python
