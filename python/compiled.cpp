// Compiled functions of Python's (python/tern/compiled.py), by the programs of compile/compile.h.
#include <nanobind/stl/string.h>

#include <limits>

#include "binding.h"
#include "compile/compile.h"

namespace tern::python {

namespace {

/// The programs of a function.
class Programs {
 public:
  // Results are the caller's, however large.
  Programs(const DeviceLike& device, bool fuse)
      : programs_(std::make_shared<compiler::Programs>(
            device.get(), CompileOptions{.fuse = fuse, .copied_bytes = std::numeric_limits<std::int64_t>::max()})) {}

  nb::object call(const nb::callable& f, const nb::args& arguments) {
    Tensors inputs;
    for (const nb::handle x : arguments) {
      Tensor* tensor = nullptr;
      if (!nb::try_cast(x, tensor, false) || !tensor)
        fail("compile", "expected tensors as arguments but got a " + std::string(Py_TYPE(x.ptr())->tp_name));
      inputs.push_back(*tensor);
    }
    Tensors results;
    {
      const nb::gil_scoped_release released;
      results = programs_->call(
          [&](const Tensors& in) {
            const nb::gil_scoped_acquire held;
            return listed(f(*nb::tuple(nb::cast(in))));
          },
          inputs);
    }
    return given_back(results);
  }

  void forget() { programs_->forget(); }
  std::size_t size() const { return programs_->size(); }
  std::int64_t runs() const { return programs_->runs(); }
  std::string report() const { return programs_->report(); }
  std::string text(const std::string& stage) const {
    if (stage == "kernels") return programs_->text(Stage::kernels);
    if (stage == "groups") return programs_->text(Stage::groups);
    if (stage == "memory") return programs_->text(Stage::memory);
    if (stage == "code") return programs_->text(Stage::code);
    fail("compile", "expected a stage, kernels, groups, memory or code, but got " + stage);
  }

 private:
  // What the function returned a program has to know without it: behind the tensors of a tuple stands an undefined one, behind those of a
  // list two.
  static Tensors listed(const nb::object& result) {
    if (result.is_none()) return {};
    Tensor* one = nullptr;
    if (nb::try_cast(result, one, false) && one) return {*one};
    Tensors tensors;
    const bool is_tuple = nb::isinstance<nb::tuple>(result);
    bool fits = is_tuple || nb::isinstance<nb::list>(result);
    if (fits)
      for (const nb::handle x : result) {
        if (!nb::try_cast(x, one, false) || !one) fits = false;
        else tensors.push_back(*one);
      }
    if (!fits)
      fail("compile", "expected a function that returns a tensor, a tuple or list of them, or None, but got a " +
                          std::string(Py_TYPE(result.ptr())->tp_name));
    tensors.insert(tensors.end(), is_tuple ? 1 : 2, Tensor());
    return tensors;
  }
  static nb::object given_back(Tensors& results) {
    if (results.empty()) return nb::none();
    const bool is_one = results.back().defined();
    if (is_one) return nb::cast(results[0]);
    results.pop_back();
    const bool is_list = !results.empty() && !results.back().defined();
    if (is_list) results.pop_back();
    const nb::object list = nb::cast(results);
    return is_list ? list : nb::tuple(list);
  }

  std::shared_ptr<compiler::Programs> programs_;
};

}  // namespace

void bind_compiled(nb::module_& m) {
  nb::class_<Programs>(m, "_Programs")
      .def(nb::init<const DeviceLike&, bool>(), "device"_a.none(), "fuse"_a)
      .def("call", &Programs::call, "f"_a, "arguments"_a, nb::sig("def call(self, f: typing.Any, *arguments: typing.Any) -> typing.Any"))
      .def("forget", &Programs::forget)
      .def("size", &Programs::size)
      .def("runs", &Programs::runs)
      .def("report", &Programs::report)
      .def("text", &Programs::text, "stage"_a);
}

}  // namespace tern::python
