// Errors, dtypes and devices.
#include <cctype>
#include <string_view>

#include "backend/error.h"
#include "binding.h"
#include "ops/factory.h"
#include "text/data_error.h"

namespace tern::python {

std::array<PyObject*, 8> dtype_members;

Device DeviceLike::get() const {
  if (device) return *device;
  if (text.empty()) return default_device();
  if (text == "cpu") return cpu;
  if (text == "cuda") return cuda(0);
  const std::string prefix = "cuda:", number = text.starts_with(prefix) ? text.substr(prefix.size()) : "";
  if (number.empty() || number.size() > 2 || number.find_first_not_of("0123456789") != std::string::npos)
    fail("device", "expected cpu, cuda or cuda:N but got '" + text + "'");
  return cuda(std::stoi(number));
}

TensorDict to_dict(const std::vector<NamedTensor>& tensors) {
  nb::dict result;
  for (const NamedTensor& entry : tensors) result[entry.name.c_str()] = entry.tensor;
  return nb::borrow<TensorDict>(result);
}

TensorPairs to_pairs(const std::vector<NamedTensor>& tensors) {
  TensorPairs result;
  for (const NamedTensor& entry : tensors) result.emplace_back(entry.name, entry.tensor);
  return result;
}

Mismatch load_state(const char* where, const std::vector<NamedTensor>& targets, const NamedTensors& source, bool strict) {
  std::map<std::string, Tensor> given;
  for (const NamedTensor& entry : source.all) given[entry.name] = entry.tensor;
  Mismatch result;
  auto& [missing, unexpected] = result;
  std::vector<std::pair<Tensor, Tensor>> copies;
  for (const auto& [name, target] : targets) {
    const auto found = given.find(name);
    if (found == given.end()) {
      missing.push_back(name);
      continue;
    }
    const Tensor& x = found->second;
    if (x.shape() != target.shape() || is_floating(x.dtype()) != is_floating(target.dtype()))
      fail(where, "expected " + name + " of shape " + to_string(target.shape()) + ", " + tern::name(target.dtype()) + " but got " +
                      to_string(x.shape()) + ", " + tern::name(x.dtype()));
    copies.emplace_back(target, x);
    given.erase(found);
  }
  for (const auto& [name, tensor] : given) unexpected.push_back(name);
  const auto listed = [](const std::vector<std::string>& names) {
    std::string text;
    for (std::size_t i = 0; i < names.size() && i < 8; ++i) text += (i == 0 ? "" : ", ") + names[i];
    return text + (names.size() > 8 ? ", ... (" + std::to_string(names.size()) + ")" : "");
  };
  if (strict && !(missing.empty() && unexpected.empty()))
    fail(where, "expected all names and no others but got" + (missing.empty() ? "" : " none of " + listed(missing)) +
                    (!missing.empty() && !unexpected.empty() ? ", and" : "") +
                    (unexpected.empty() ? "" : " unexpected " + listed(unexpected)) + ": strict=False passes over them");
  const NoGrad unrecorded;
  for (const auto& [target, x] : copies) copy_(target, x);
  return result;
}

namespace {

/// Texts of errors are the library's, which C++ reads too; these words of theirs are others in Python.
constexpr std::pair<std::string_view, std::string_view> words[] = {
    {"wrap it in NoGrad", "wrap it in tern.no_grad()"},
    {"use NoGrad", "use tern.no_grad()"},
    {"AnomalyMode", "tern.anomaly_mode"},
    {"[set_requires_grad]", "[requires_grad_]"},
    {"set_requires_grad()", "requires_grad_()"},
    {"set_requires_grad(false)", "requires_grad_(False)"},
    {"[set_grad]", "[grad]"},
    {"a defined tensor but got an undefined one", "a tensor but got None"},
    {"an undefined", "None as"},
    {"one is undefined", "one is None"},
    {"nn::layers(n, [] { return ...; }) makes", "[nn.Linear(8, 8) for _ in range(n)] makes"},
    {"is_shared = true", "is_shared = True"},
    {"Reduction::mean or sum but got none", "reduction 'mean' or 'sum' but got 'none'"},
    {"RopePairs::halves", "'halves'"},
    {"nn::to ", "Module.to "},
    {" = true", " = True"},
    {" = false", " = False"},
};

std::string in_python(std::string text) {
  for (const auto& [from, to] : words)
    for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) text.replace(at, from.size(), to);
  const auto is_word = [](unsigned char c) { return std::isalnum(c) || c == '_'; };
  for (std::size_t at = 1; (at = text.find("::", at)) != std::string::npos; ++at)
    if (is_word(text[at - 1]) && at + 2 < text.size() && is_word(text[at + 2])) text.replace(at, 2, ".");
  return text;
}

/// Exceptions of the module, which live as long as the process.
struct Exceptions {
  PyObject *error, *out_of_memory, *file_error, *invalid_index;
};

PyObject* new_exception(nb::module_& m, const char* name, const char* doc, nb::tuple bases) {
  const std::string full = std::string("tern.") + name;
  PyObject* const result = PyErr_NewExceptionWithDoc(full.c_str(), doc, bases.ptr(), nullptr);
  if (!result) throw nb::python_error();
  m.attr(name) = nb::borrow(result);
  return result;
}

}  // namespace

void bind_errors(nb::module_& m) {
  static Exceptions exceptions;
  const auto builtin = [](PyObject* type) { return nb::borrow(type); };
  exceptions.error = new_exception(m, "Error", "A caller's mistake: shapes, dtypes, devices, indices, options. One line.",
                                   nb::make_tuple(builtin(PyExc_RuntimeError)));
  exceptions.out_of_memory = new_exception(m, "OutOfMemory", "A device has no more memory; the message says what it holds.",
                                           nb::make_tuple(nb::borrow(exceptions.error), builtin(PyExc_MemoryError)));
  exceptions.file_error = new_exception(m, "FileError", "A fault in a file that the user named. One line that begins with the path.",
                                        nb::make_tuple(nb::borrow(exceptions.error), builtin(PyExc_OSError)));
  exceptions.invalid_index = new_exception(m, "InvalidIndex", "A mistake in x[...]. One line.",
                                           nb::make_tuple(nb::borrow(exceptions.error), builtin(PyExc_IndexError)));
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const OutOfMemory& e) {
      PyErr_SetString(exceptions.out_of_memory, in_python(e.what()).c_str());
    } catch (const InvalidIndex& e) {
      PyErr_SetString(exceptions.invalid_index, in_python(e.what()).c_str());
    } catch (const Error& e) {
      PyErr_SetString(exceptions.error, in_python(e.what()).c_str());
    } catch (const text::DataError& e) {
      PyErr_SetString(exceptions.file_error, in_python(e.what()).c_str());
    } catch (const std::bad_cast&) {
      PyErr_SetString(PyExc_TypeError, "expected a value of another type");
    }
  });
}

void bind_types(nb::module_& m) {
  nb::enum_<DType> dtypes(m, "DType");
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8, DType::boolean}) {
    const std::string text = dtype == DType::boolean ? "boolean" : name(dtype);
    dtypes.value(text.c_str(), dtype);
    dtype_members[std::size_t(dtype)] = nb::object(dtypes.attr(text.c_str())).ptr();
  }
  dtypes.export_values();
  m.def("promote", &promote, "a"_a, "b"_a, "The dtype of `a op b`, as PyTorch has it.");
  m.def("is_floating", &is_floating, "dtype"_a);

  nb::class_<Device>(m, "Device", "The device of a tensor: Device('cpu'), Device('cuda:0').")
      .def(
          "__init__", [](Device* self, const std::string& name) { new (self) Device(DeviceLike{{}, name}.get()); }, "name"_a)
      .def("__repr__", [](Device device) { return "Device('" + to_string(device) + "')"; })
      .def("__str__", [](Device device) { return to_string(device); })
      .def(
          "__eq__",
          [](Device device, const nb::object& other) -> bool {
            Device* same = nullptr;
            if (nb::try_cast(other, same, false) && same) return device == *same;
            return nb::isinstance<nb::str>(other) && to_string(device) == nb::cast<std::string>(other);
          },
          "other"_a.none(), nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__getstate__", [](Device device) { return to_string(device); })
      .def("__setstate__", [](Device& self, const std::string& name) { new (&self) Device(DeviceLike{{}, name}.get()); })
      .def("__hash__", [](Device device) { return PyObject_Hash(nb::cast(to_string(device)).ptr()); })
      .def_prop_ro("type", [](Device device) { return device.type == DeviceType::cuda ? "cuda" : "cpu"; })
      .def_prop_ro("index", [](Device device) { return int(device.index); });
  m.attr("cpu") = cpu;
  m.def("cuda", &cuda, "index"_a = 0, "The CUDA device of that number.");
  m.def("cuda_device_count", &cuda_device_count, "The CUDA devices that this build and this machine can use.");
}

}  // namespace tern::python
