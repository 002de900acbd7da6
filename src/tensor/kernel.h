#pragma once
#include <cstdint>
#include <memory>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <variant>
#include <vector>

#include "backend/device.h"
#include "backend/observer.h"
#include "tensor/fields.h"
#include "tensor/random.h"
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

/// Use that a kernel makes of the elements of a view. One that is updated may be overwritten, too: another argument tells which.
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

/// A kernel of any type with its arguments: what observers see, and what a program keeps.
class KernelCall {
 public:
  virtual ~KernelCall() = default;
  virtual const std::type_info& type() const = 0;
  /// The kernel, if it is of this type; null otherwise.
  template <class Kernel>
  const Kernel* as() const {
    return type() == typeid(Kernel) ? static_cast<const Kernel*>(kernel()) : nullptr;
  }
  /// A copy that keeps no work for later: it has no pointers to objects of the call, such as pending sums.
  virtual std::unique_ptr<KernelCall> copy() const = 0;
  /// Parts of the arguments, in their order: views, absent ones included, states of the random generator, and numbers, which are also
  /// the enums, addresses and lengths among them, and of a variant of functors which it is.
  class Visitor {
   public:
    virtual ~Visitor() = default;
    virtual void view(View&, kernels::Access) {}
    virtual void random(PhiloxState&) {}
    virtual void number(double) {}
    virtual void number(std::int64_t) {}
  };
  virtual void visit(Visitor& visitor) = 0;
  virtual void run(Device device) const = 0;
  /// True if run() returns something to the host, for which it waits.
  virtual bool reports() const = 0;

 private:
  virtual const void* kernel() const = 0;
};

namespace detail {

template <class T>
inline constexpr bool is_vector = false;
template <class T>
inline constexpr bool is_vector<std::vector<T>> = true;
template <class T>
inline constexpr bool is_variant = false;
template <class... T>
inline constexpr bool is_variant<std::variant<T...>> = true;
template <class T>
inline constexpr kernels::Access access_of = kernels::Access::read;
template <kernels::Access access>
inline constexpr kernels::Access access_of<kernels::Argument<access>> = access;
/// An operand that is a view or a number (kernels::Operand).
template <class T>
concept ViewOrNumber = requires(T& x) {
  x.view;
  x.number;
};

/// Visits an argument, and what is in it.
template <class T>
void visit_argument(T& x, KernelCall::Visitor& visitor) {
  if constexpr (std::is_base_of_v<View, T>) visitor.view(x, access_of<T>);
  else if constexpr (std::is_same_v<T, PhiloxState>) visitor.random(x);
  else if constexpr (std::is_floating_point_v<T>) visitor.number(double(x));
  else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) visitor.number(static_cast<std::int64_t>(x));
  else if constexpr (std::is_pointer_v<T>) visitor.number(static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(x)));
  else if constexpr (ViewOrNumber<T>) visit_argument(x.view, visitor), visitor.number(x.number);
  else if constexpr (is_vector<T>) {
    visitor.number(static_cast<std::int64_t>(x.size()));
    for (auto& element : x) visit_argument(element, visitor);
  } else if constexpr (is_variant<T>) {
    visitor.number(static_cast<std::int64_t>(x.index()));
    std::visit([&](auto& alternative) { visit_argument(alternative, visitor); }, x);
  } else if constexpr (std::is_class_v<T> && std::is_aggregate_v<T>) {
    with_fields(x, [&](auto&... fields) { (visit_argument(fields, visitor), ...); });
  }
}

template <class Kernel>
class KernelCallOf : public KernelCall {
 public:
  explicit KernelCallOf(const Kernel& kernel) : kernel_(kernel) {}
  const std::type_info& type() const override { return typeid(Kernel); }
  std::unique_ptr<KernelCall> copy() const override {
    auto result = std::make_unique<KernelCallOf>(kernel_);
    if constexpr (std::is_aggregate_v<Kernel>) with_fields(result->kernel_, [](auto&... fields) { (forget(fields), ...); });
    return result;
  }
  void visit(Visitor& visitor) override { visit_argument(kernel_, visitor); }
  void run(Device device) const override {
    with_backend(device, [&](auto dev) {
      if constexpr (requires { kernel_.run(dev); }) kernel_.run(dev);
    });
  }
  bool reports() const override {
    if constexpr (requires { kernel_.run(Cpu{}); }) return !std::is_void_v<decltype(kernel_.run(Cpu{}))>;
    else return false;
  }

 private:
  template <class T>
  static void forget(T& field) {
    if constexpr (std::is_pointer_v<T>)
      if constexpr (std::is_class_v<std::remove_pointer_t<T>>) field = nullptr;
  }

  const void* kernel() const override { return &kernel_; }

  Kernel kernel_;
};

/// Tells the observers of this thread, if there are any, that the kernel of the innermost scope runs.
template <class Kernel>
void tell_kernel(const Kernel& kernel) {
  if (!backend::observer) [[likely]]
    return;
  const KernelCallOf<Kernel> call(kernel);
  backend::tell([&](backend::Observer& told) { told.run_kernel(call); });
}

}  // namespace detail

/// Runs a kernel on a device. A missing definition is a compile or link error, not an error at run time.
/// `op` names the kernel for a profiler, if its op does not go through call().
template <class Kernel>
decltype(auto) launch(Device device, const Kernel& kernel, const char* op = nullptr) {
  const backend::KernelScope observed(op);
  detail::tell_kernel(kernel);
  return with_backend(device, [&](auto dev) { return kernel.run(dev); });
}

/// @{
/// Runs a kernel that only one kind of device has.
template <class Kernel>
void launch(Cpu dev, const Kernel& kernel) {
  const backend::KernelScope observed(nullptr);
  detail::tell_kernel(kernel);
  kernel.run(dev);
}
template <class Kernel>
void launch(Cuda dev, const Kernel& kernel, const char* op = nullptr) {
  const backend::KernelScope observed(op);
  detail::tell_kernel(kernel);
  if constexpr (built_with_cuda) kernel.run(dev);
  else fail_without_cuda(cuda());
}
/// @}

}  // namespace tern
