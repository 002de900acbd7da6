#pragma once
#include <cstdint>

#include "backend/device.h"
#include "backend/observer.h"
#include "tensor/view.h"

// Note [Kernels]
// A kernel is an aggregate of its arguments: views, as In, Out or InOut, and numbers. `run` computes it on a kind of device, for which
// there is one definition each, in ops/cpu and in cuda:
//
//     struct Hypot {
//       In a, b;
//       double eps;
//       Out y;
//       void run(Cpu) const;
//       void run(Cuda) const;
//     };
//
// launch(y.device(), Hypot{a, b, eps, y}) runs it, and Hypot{a, b, eps, y}.run(Cuda{}) does within another kernel.
namespace tern {

class Tensor;

namespace kernels {

/// What a kernel does with the elements of a view. One that is updated may be overwritten, too: another argument tells which.
enum class Access : std::uint8_t { read, write, update };

/// A view among a kernel's arguments. Made of a View without data, it is an absent operand; of an undefined tensor, an Error.
template <Access access>
struct Argument : View {
  Argument() = default;
  Argument(const View& view) : View(view) {}
  Argument(const Tensor& x);
};
using In = Argument<Access::read>;
using Out = Argument<Access::write>;
using InOut = Argument<Access::update>;

}  // namespace kernels

/// Runs a kernel on a device. A missing definition is a compile or link error, not an error at run time.
/// `op` names the kernel for a profiler, if its op does not go through call().
template <class Kernel>
decltype(auto) launch(Device device, const Kernel& kernel, const char* op = nullptr) {
  const backend::KernelScope observed(op);
  return with_backend(device, [&](auto dev) { return kernel.run(dev); });
}

/// @{
/// Runs a kernel that only one kind of device has.
template <class Kernel>
void launch(Cpu dev, const Kernel& kernel) {
  const backend::KernelScope observed(nullptr);
  kernel.run(dev);
}
template <class Kernel>
void launch(Cuda dev, const Kernel& kernel, const char* op = nullptr) {
  const backend::KernelScope observed(op);
  if constexpr (built_with_cuda) kernel.run(dev);
  else fail_without_cuda(cuda());
}
/// @}

}  // namespace tern
