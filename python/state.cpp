// The thread's state: seeds, and scopes as context managers (tensor/context.h, docs/threads.md).
#include <tern/version.h>

#include <functional>
#include <memory>
#include <thread>

#include "autodiff/anomaly.h"
#include "names.h"
#include "ops/autocast.h"
#include "ops/linalg.h"

namespace tern::python {

namespace {

/// A scope that `with` opens and ends, any number of times, also within itself. A scope belongs to the thread that opened it.
struct Scope {
  struct Opened {
    std::thread::id thread;
    std::shared_ptr<void> scope;
  };
  std::function<std::shared_ptr<void>()> open;
  std::vector<Opened> opened = {};

  void enter() { opened.push_back({std::this_thread::get_id(), open()}); }
  void exit() {
    if (opened.empty()) fail("scope", "expected a scope that was entered");
    if (opened.back().thread != std::this_thread::get_id())
      fail("scope", "expected the thread that entered the scope to leave it: state is a thread's own");
    opened.pop_back();
  }
};

template <class S, class... Args>
Scope scope_of(Args... args) {
  return {[=] { return std::make_shared<S>(args...); }};
}

}  // namespace

void bind_state(nb::module_& m) {
  nb::class_<Scope>(m, "Scope", "Holds a part of this thread's state while a with statement runs. Other threads keep theirs.")
      .def(
          "__enter__",
          [](nb::handle self) {
            nb::cast<Scope&>(self).enter();
            return nb::borrow(self);
          },
          nb::sig("def __enter__(self) -> Scope"))
      .def(
          "_again", [](const Scope& scope) { return Scope{scope.open}; }, "Another scope of the kind.")
      .def(
          "__call__",
          [](nb::handle self, const nb::object& function) {
            return nb::object(nb::module_::import_("tern.scope").attr("decorated")(self, function));
          },
          nb::sig("def __call__(self, function: typing.Any, /) -> typing.Any"),
          "As a decorator: each call of the function opens the scope.")
      .def("__exit__", [](Scope& scope, const nb::args&) { scope.exit(); }, nb::sig("def __exit__(self, *args: object) -> None"));
  m.def("no_grad", [] { return scope_of<NoGrad>(); }, "Ops are not recorded.");
  m.def("grad_mode", [](bool grad) { return scope_of<GradMode>(grad); }, "grad"_a, "Ops are recorded or not, as told.");
  m.def(
      "device_scope", [](const DeviceLike& device) { return scope_of<DeviceScope>(device.get()); }, "device"_a,
      "New tensors and modules are made on the device unless another is named.");
  m.def(
      "autocast", [](DType dtype) { return scope_of<Autocast>(dtype); }, "dtype"_a = DType::bf16,
      "Products in bf16 or f16, softmax, norms, losses and sums in f32.");
  m.def(
      "matmul_precision",
      [](const Choice<MatmulPrecision>& precision) { return scope_of<MatmulPrecisionMode>(MatmulPrecision(precision)); }, "precision"_a,
      "Sets the precision of float32 matrix products on a GPU.");
  m.def(
      "fused_kernels", [](bool fused) { return scope_of<FusedKernels>(fused); }, "fused"_a = true,
      "Ops with fused kernels run these, as a thread does from its start, or are composed of other ops, as told.");
  m.def("plain_kernels", [] { return scope_of<PlainKernels>(); }, "Ops are composed of others where they could run a fused kernel.");
  m.def(
      "anomaly_mode",
      [](const nn::Module* module) {
        return module ? scope_of<AnomalyMode>(nn::module_names(*module)) : scope_of<AnomalyMode>(ModuleNames());
      },
      nb::arg("module").none() = nb::none(), nb::keep_alive<0, 1>(),
      "Searches every op's output for NaN and Inf, which costs a wait per op.");

  m.def("is_grad_enabled", [] { return context().grad; }, "True unless no_grad is open in this thread.");
  m.def("has_linalg", [](const DeviceLike& device) { return has_linalg(device.get()); }, "device"_a = cpu);
  m.def("default_device", &default_device);
  m.def("manual_seed", &manual_seed, "seed"_a, "Seeds this thread's random numbers, on every device. A new thread has seed 0.");
  m.def("num_threads", &num_threads, "The number of threads of CPU kernels that this thread calls.");
  m.def("set_num_threads", &set_num_threads, "count"_a, "Sets the number of threads of CPU kernels that this thread calls.");
  m.def(
      "synchronize", [](const DeviceLike& device) { synchronize(device.get()); }, "device"_a = nb::none(), Released(),
      "Waits until all work queued on the device is done.");
  m.def("cpu_variant", &cpu_variant, "The processors that the CPU's kernels are compiled for.");
  m.def("version", &version, "The version of the library.");
  m.attr("has_cuda") = built_with_cuda;
}

}  // namespace tern::python
