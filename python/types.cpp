// Errors, dtypes and devices.
#include "backend/error.h"
#include "binding.h"
#include "ops/copy.h"
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
      PyErr_SetString(exceptions.out_of_memory, e.what());
    } catch (const InvalidIndex& e) {
      PyErr_SetString(exceptions.invalid_index, e.what());
    } catch (const Error& e) {
      PyErr_SetString(exceptions.error, e.what());
    } catch (const text::DataError& e) {
      PyErr_SetString(exceptions.file_error, e.what());
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
      .def("__hash__", [](Device device) { return PyObject_Hash(nb::cast(to_string(device)).ptr()); })
      .def_prop_ro("type", [](Device device) { return device.type == DeviceType::cuda ? "cuda" : "cpu"; })
      .def_prop_ro("index", [](Device device) { return int(device.index); });
  m.attr("cpu") = cpu;
  m.def("cuda", &cuda, "index"_a = 0, "The CUDA device of that number.");
  m.def("cuda_device_count", &cuda_device_count, "The CUDA devices that this build and this machine can use.");
}

}  // namespace tern::python
