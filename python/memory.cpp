// Memory that Python's libraries and tensors share without a copy: the buffer protocol (NumPy, array, mmap, memoryview) and DLPack (NumPy,
// PyTorch, JAX, CuPy), both ways.
//
// Note [Owners in Python]
// A tensor of an array's memory keeps the array alive, and an array of a tensor's memory the storage. The last tensor of an array's memory
// may go in any thread, one that holds the GIL or one that computes without it, and even after the interpreter: the deleter takes the GIL
// where there is one to take. It may so wait for a thread that holds the GIL; that is why bound calls that wait for another thread of
// tern's release it first.
#include <array>
#include <memory>

#include "binding.h"
#include "data/dlpack.h"
#include "ops/factory.h"
#include "tensor/dtype.h"
#include "tensor/from_blob.h"
#include "tensor/sizes.h"

namespace tern::python {

namespace {

/// Formats of the struct module, by which buffers name types; null for one that they cannot say.
const char* format_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return "f";
    case DType::f64: return "d";
    case DType::f16: return "e";
    case DType::i32: return "i";
    case DType::i64: return "q";
    case DType::u8: return "B";
    case DType::boolean: return "?";
    case DType::bf16: return nullptr;
  }
  return nullptr;
}

/// C's types go by their size here: a NumPy of 64-bit integers says "l" on Linux.
DType dtype_of_format(std::string format, Py_ssize_t bytes) {
  if (!format.empty() && (format[0] == '@' || format[0] == '=' || format[0] == '<')) format.erase(0, 1);
  if (format.size() == 1) switch (format[0]) {
      case 'f': return DType::f32;
      case 'd': return DType::f64;
      case 'e': return DType::f16;
      case '?': return DType::boolean;
      case 'B': return DType::u8;
      case 'i':
      case 'l':
      case 'q':
        if (bytes == 4) return DType::i32;
        if (bytes == 8) return DType::i64;
    }
  fail("from_numpy", "expected f32, f64, f16, i32, i64, u8 or bool in the machine's byte order but got format '" + format + "' of " +
                         std::to_string(bytes) + " bytes: convert the array, as by a.astype");
}

struct ReleaseBuffer {
  void operator()(Py_buffer* buffer) const {
    if (const nb::detail::cleanup_guard alive{}) PyBuffer_Release(buffer);  // after the interpreter there is nobody to give it back to
    delete buffer;
  }
};
using Buffer = std::unique_ptr<Py_buffer, ReleaseBuffer>;

/// The object's buffer, to be written where it allows that.
Buffer buffer_of(nb::handle source) {
  auto* const raw = new Py_buffer();
  for (const int flags : {PyBUF_STRIDES | PyBUF_FORMAT | PyBUF_WRITABLE, PyBUF_STRIDES | PyBUF_FORMAT}) {
    if (PyObject_GetBuffer(source.ptr(), raw, flags) == 0) return Buffer(raw);
    if (flags & PyBUF_WRITABLE) PyErr_Clear();
  }
  delete raw;
  throw nb::python_error();
}

Tensor from_buffer(nb::handle source) {
  Buffer buffer = buffer_of(source);
  const Py_ssize_t bytes = buffer->itemsize;
  if (buffer->ndim > max_dims) fail("from_numpy", "expected at most 8 dimensions but got " + std::to_string(buffer->ndim));
  const DType dtype = dtype_of_format(buffer->format ? buffer->format : "B", bytes);
  Shape shape;
  Strides strides;
  for (int d = 0; d < buffer->ndim; ++d) {
    if (buffer->strides[d] % bytes != 0 && buffer->shape[d] > 1)
      fail("from_numpy", "expected strides of whole elements, which a field of a structure has not: copy such an array");
    shape.push_back(buffer->shape[d]);
    strides.push_back(buffer->strides[d] / bytes);
  }
  void* const data = buffer->buf;
  const BlobOptions options{.strides = strides, .is_read_only = buffer->readonly != 0};
  const std::shared_ptr<Py_buffer> owner(std::move(buffer));
  return from_blob(data, shape, dtype, [owner](void*) {}, options);
}

/// Says why others cannot have the tensor's memory as it is.
void require_shareable(const Tensor& x, const char* where) {
  if (x.requires_grad()) fail(where, "expected a tensor that requires no gradient, as others do not keep its history: use detach()");
  if (x.device() != cpu) fail(where, "expected a tensor on the CPU but got one on " + to_string(x.device()) + ": use to('cpu')");
}

/// The owner that a view of a tensor's memory lives by: a handle of its own, so that it stays where it is though the tensor is moved.
struct ExportedBuffer {
  Tensor tensor;
  std::array<Py_ssize_t, max_dims> shape{}, strides{};
};

int get_buffer(PyObject* self, Py_buffer* view, int flags) noexcept {
  try {
    view->obj = nullptr;
    const Tensor& x = nb::cast<const Tensor&>(nb::handle(self));
    constexpr int orders = (PyBUF_C_CONTIGUOUS | PyBUF_F_CONTIGUOUS | PyBUF_ANY_CONTIGUOUS) & ~PyBUF_STRIDES;
    const bool has_strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES, wants_contiguous = !has_strides || (flags & orders);
    const bool is_read_only = x.impl().storage->is_read_only();
    const char* const format = format_of(x.dtype());
    const char* why = nullptr;
    if (x.requires_grad()) why = "a tensor that requires a gradient has no buffer: use detach()";
    else if (x.device() != cpu) why = "a tensor on another device than the CPU has no buffer: use to('cpu')";
    else if (!format) why = "a buffer cannot say bf16: use to(tern.f32), or DLPack";
    else if ((flags & PyBUF_WRITABLE) && is_read_only) why = "the tensor's memory is read-only";
    else if (wants_contiguous && !x.is_contiguous()) why = "the tensor's memory is not contiguous: use contiguous()";
    else if ((flags & PyBUF_F_CONTIGUOUS & orders) && x.dims() > 1) why = "the tensor's memory is not in Fortran's order";
    if (why) {
      PyErr_SetString(PyExc_BufferError, why);
      return -1;
    }
    auto exported = std::make_unique<ExportedBuffer>(ExportedBuffer{x.detach(), {}, {}});
    const auto bytes = static_cast<Py_ssize_t>(size_of(x.dtype()));
    for (int d = 0; d < x.dims(); ++d) {
      exported->shape[static_cast<std::size_t>(d)] = x.shape()[d];
      exported->strides[static_cast<std::size_t>(d)] = x.strides()[d] * bytes;
    }
    view->buf = x.view().data;
    view->len = x.numel() * bytes;
    view->readonly = is_read_only;
    view->itemsize = bytes;
    view->format = (flags & PyBUF_FORMAT) ? const_cast<char*>(format) : nullptr;
    view->ndim = x.dims();
    view->shape = (flags & PyBUF_ND) ? exported->shape.data() : nullptr;
    view->strides = has_strides ? exported->strides.data() : nullptr;
    view->suboffsets = nullptr;
    view->internal = exported.release();
    view->obj = Py_NewRef(self);
    return 0;
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_BufferError, e.what());
    return -1;
  }
}

void release_buffer(PyObject*, Py_buffer* view) noexcept { delete static_cast<ExportedBuffer*>(view->internal); }

// Capsules: a consumer renames one when it has taken the tensor, and then calls the deleter itself.
constexpr const char* versioned_name = "dltensor_versioned";
constexpr const char* unversioned_name = "dltensor";

template <class Managed>
nb::object capsule_of(Managed* managed, const char* name) {
  PyObject* const result = PyCapsule_New(managed, name, [](PyObject* capsule) {
    const char* const now = PyCapsule_GetName(capsule);
    if (!now || (std::string(now) != versioned_name && std::string(now) != unversioned_name)) return;
    auto* const unused = static_cast<Managed*>(PyCapsule_GetPointer(capsule, now));
    unused->deleter(unused);
  });
  if (!result) {
    managed->deleter(managed);
    throw nb::python_error();
  }
  return nb::steal(result);
}

nb::object to_capsule(const Tensor& x, const nb::object& stream, const std::optional<std::pair<int, int>>& max_version,
                      const std::optional<std::pair<int, int>>& dl_device, std::optional<bool> copy) {
  if (dl_device && dl_device->first != (x.device() == cpu ? dlpack::cpu_device : dlpack::cuda_device))
    throw nb::buffer_error("a tensor is exported on the device that it is on: use to(device)");
  const Tensor given = copy && *copy ? clone(x) : x;
  // The consumer names its stream, which may wait for nothing of ours but the host; -1 says that it takes care itself.
  if (x.device() != cpu && !(nb::isinstance<nb::int_>(stream) && nb::cast<int>(stream) == -1)) {
    const nb::gil_scoped_release released;
    synchronize(x.device());
  }
  if (max_version && max_version->first >= 1) return capsule_of(dlpack::to_dlpack(given), versioned_name);
  return capsule_of(dlpack::to_dlpack_unversioned(given), unversioned_name);
}

template <class Managed>
Tensor take(nb::handle capsule, const char* name, const char* used_name) {
  auto* const managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), name));
  if (!managed) throw nb::python_error();
  Tensor result = dlpack::from_dlpack(managed);
  PyCapsule_SetName(capsule.ptr(), used_name);
  return result;
}

Tensor from_capsule(nb::handle capsule) {
  if (PyCapsule_IsValid(capsule.ptr(), versioned_name))
    return take<dlpack::DLManagedTensorVersioned>(capsule, versioned_name, "used_dltensor_versioned");
  if (PyCapsule_IsValid(capsule.ptr(), unversioned_name)) return take<dlpack::DLManagedTensor>(capsule, unversioned_name, "used_dltensor");
  fail("from_dlpack", "expected a capsule that nobody has taken yet");
}

Tensor from_dlpack(const nb::object& source) {
  if (PyCapsule_CheckExact(source.ptr())) return from_capsule(source);
  if (!nb::hasattr(source, "__dlpack__"))
    fail("from_dlpack", "expected an object with __dlpack__ but got a " + std::string(Py_TYPE(source.ptr())->tp_name));
  nb::dict arguments;
  const auto device = nb::cast<std::pair<int, int>>(source.attr("__dlpack_device__")());
  if (device.first == dlpack::cuda_device) {
    // By DLPack's numbers 1 is the default stream.
    const auto handle = reinterpret_cast<std::intptr_t>(context().stream(cuda(device.second)).handle);
    arguments["stream"] = handle == 0 ? 1 : handle;
  }
  nb::dict versioned;
  versioned.update(arguments);
  versioned["max_version"] = nb::make_tuple(dlpack::major_version, dlpack::minor_version);
  const nb::object export_to = source.attr("__dlpack__");
  try {
    return from_capsule(export_to(**versioned));
  } catch (nb::python_error& e) {
    if (!e.matches(PyExc_TypeError)) throw;  // one of before version 1.0, which knows no max_version
  }
  return from_capsule(export_to(**arguments));
}

/// Numbers of Python, nested in lists or tuples.
struct Numbers {
  Shape shape;
  std::vector<double> reals;
  std::vector<std::int64_t> whole;
  bool has_real = false, has_whole = false, has_bool = false;
  std::string too_large;  ///< a whole number that i64 has not

  void read(nb::handle x, int depth) {
    if (PyList_Check(x.ptr()) || PyTuple_Check(x.ptr())) {
      const auto size = static_cast<std::int64_t>(nb::len(x));
      if (depth == shape.size() && is_first()) shape.push_back(size);
      if (depth >= shape.size() || shape[depth] != size) fail("tensor", "expected lists of one length and depth");
      for (std::int64_t i = 0; i < size; ++i) read(nb::object(x[i]), depth + 1);
      return;
    }
    if (depth != shape.size()) fail("tensor", "expected lists of one length and depth");
    if (PyBool_Check(x.ptr())) has_bool = true;
    else if (PyIndex_Check(x.ptr())) has_whole = true;
    else if (PyNumber_Check(x.ptr())) has_real = true;
    else fail("tensor", "expected numbers, or lists of them, but got a " + std::string(Py_TYPE(x.ptr())->tp_name));
    reals.push_back(PyFloat_AsDouble(x.ptr()));
    if (PyErr_Occurred()) throw nb::python_error();
    int is_beyond = 0;
    whole.push_back(has_real ? 0 : PyLong_AsLongLongAndOverflow(nb::steal(PyNumber_Index(x.ptr())).ptr(), &is_beyond));
    if (PyErr_Occurred()) throw nb::python_error();
    if (is_beyond && too_large.empty()) too_large = nb::str(x).c_str();
  }
  bool is_first() const { return reals.empty(); }
};

/// Whole numbers become i64, others f32, or what is asked for, without a rounding in between. An integer dtype takes the whole part of
/// numbers in its range.
Tensor from_numbers(nb::handle x, std::optional<DType> dtype) {
  Numbers numbers;
  numbers.read(x, 0);
  if (dtype && !is_floating(*dtype) && (*dtype != DType::i64 || numbers.has_real))
    for (const double number : numbers.reals)
      if (!detail::takes(*dtype, number))
        fail("tensor", std::string("expected numbers that ") + name(*dtype) + " holds but got " + nb::str(nb::float_(number)).c_str());
  const bool has_reals = numbers.has_real || numbers.is_first() || (dtype && is_floating(*dtype));
  if (has_reals && dtype && *dtype != DType::f32) return Tensor::from(numbers.reals, numbers.shape, cpu).to(*dtype);
  if (has_reals) return Tensor::from(numbers.reals, numbers.shape, cpu).to(DType::f32);
  if (!numbers.too_large.empty()) fail("tensor", "expected whole numbers that i64 holds but got " + numbers.too_large);
  const Tensor whole = Tensor::from(numbers.whole, numbers.shape, cpu);
  return numbers.has_whole ? whole : whole.to(DType::boolean);
}

/// A tensor of its own with the elements of whatever has some.
Tensor tensor(const nb::object& source, std::optional<DType> dtype, const DeviceLike& device, bool requires_grad) {
  Tensor result;
  if (nb::isinstance<Tensor>(source)) result = clone(nb::cast<Tensor>(source).detach());
  else if (PyObject_CheckBuffer(source.ptr())) result = clone(from_buffer(source));
  else if (nb::hasattr(source, "__dlpack__")) result = clone(from_dlpack(source));
  else result = from_numbers(source, dtype);
  if (dtype) result = result.to(*dtype);
  if (!nb::isinstance<Tensor>(source) || device.device || !device.text.empty()) result = result.to(device.get());
  result = result.detach();
  if (requires_grad) result.set_requires_grad();
  return result;
}

}  // namespace

PyType_Slot tensor_slots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)}, {Py_bf_releasebuffer, reinterpret_cast<void*>(release_buffer)}, {0, nullptr}};

void bind_memory(nb::module_& m, nb::class_<Tensor>& bound) {
  m.def(
      "tensor", &tensor, "data"_a, "dtype"_a = nb::none(), "device"_a = nb::none(), nb::kw_only(), "requires_grad"_a = false,
      nb::sig(
          "def tensor(data: typing.Any, dtype: DType | None = None, device: Device | str | None = None, *, requires_grad: bool = False) "
          "-> Tensor"),
      "A tensor of its own with the elements of nested lists, an array or a tensor: always a copy. Whole numbers become i64, others f32.");
  m.def("from_numpy", &from_buffer, "array"_a, nb::sig("def from_numpy(array: typing.Any) -> Tensor"),
        "The memory of an array, or of another object with a buffer, as a tensor, without a copy; it keeps the array alive. A read-only "
        "array\n"
        "gives a tensor that ops in place refuse.");
  m.def(
      "from_dlpack", &from_dlpack, "source"_a, nb::sig("def from_dlpack(source: typing.Any) -> Tensor"),
      "The memory of an array or tensor of another library, as a tensor, without a copy: of whatever has __dlpack__, on the CPU or a GPU.");

  bound
      .def(
          "__dlpack__", &to_capsule, nb::kw_only(), "stream"_a = nb::none(), "max_version"_a = nb::none(), "dl_device"_a = nb::none(),
          "copy"_a = nb::none(),
          nb::sig(
              "def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None, dl_device: tuple[int, int] | "
              "None = None, copy: bool | None = None) -> typing.Any"))
      .def("__dlpack_device__",
           [](const Tensor& x) {
             const bool is_cpu = x.device() == cpu;
             return std::pair<int, int>(is_cpu ? dlpack::cpu_device : dlpack::cuda_device, is_cpu ? 0 : x.device().index);
           })
      .def(
          "numpy",
          [](nb::handle self) {
            const Tensor& x = nb::cast<const Tensor&>(self);
            require_shareable(x, "numpy");
            if (!format_of(x.dtype())) fail("numpy", "expected a dtype that NumPy has but got bf16: use to(tern.f32)");
            return nb::object(nb::module_::import_("numpy").attr("asarray")(nb::steal(PyMemoryView_FromObject(self.ptr()))));
          },
          nb::sig("def numpy(self) -> typing.Any"),
          "The memory as a NumPy array, without a copy; of a tensor on the CPU without a gradient.")
      // NumPy asks for this where there is no buffer, and would go through the elements one by one if it were missing.
      .def(
          "__array__",
          [](nb::handle self, const nb::object& dtype, const nb::object& copy) {
            const nb::object array = self.attr("numpy")();
            if (copy.is_none()) return nb::object(nb::module_::import_("numpy").attr("asarray")(array, dtype));
            return nb::object(nb::module_::import_("numpy").attr("array")(array, dtype, "copy"_a = copy));
          },
          "dtype"_a = nb::none(), "copy"_a = nb::none(),
          nb::sig("def __array__(self, dtype: typing.Any = None, copy: bool | None = None) -> typing.Any"));
  // array + tensor is an error, and not an array of objects.
  bound.attr("__array_ufunc__") = nb::none();
}

}  // namespace tern::python
