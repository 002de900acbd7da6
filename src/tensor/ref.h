#pragma once
#include <atomic>
#include <cstdint>
#include <utility>

namespace tern {

/// Base of everything that is shared by an intrusive count. A Ref is one word, and counting needs no second allocation.
class RefCounted {
 public:
  RefCounted() = default;
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;
  virtual ~RefCounted() = default;

  /// Counts one reference more. For Ref; any thread.
  void retain() const noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  /// Counts one reference less, and with the last one calls destroy().
  void release() const noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) const_cast<RefCounted*>(this)->destroy();
  }
  /// A reference more, unless the last one has gone and the object is about to end.
  bool try_retain() const noexcept {
    std::uint32_t count = references_.load(std::memory_order_relaxed);
    while (count != 0)
      if (references_.compare_exchange_weak(count, count + 1, std::memory_order_acquire, std::memory_order_relaxed)) return true;
    return false;
  }
  /// The count at this moment, which other threads may change at any time.
  std::uint32_t references() const noexcept { return references_.load(std::memory_order_relaxed); }

 protected:
  /// Called when the last reference has gone. Nodes of the autograd graph defer it: see Note [Iterative release].
  virtual void destroy() noexcept { delete this; }

 private:
  mutable std::atomic<std::uint32_t> references_{0};
};

/// An owning pointer to a RefCounted object.
template <class T>
class Ref {
 public:
  Ref() noexcept = default;
  /// Owns nothing, as Ref() does.
  Ref(std::nullptr_t) noexcept {}
  /// Takes one reference more to the object, or to none where it is null.
  explicit Ref(T* object) noexcept : object_(object) {
    if (object_) object_->retain();
  }
  /// Owns a reference that was taken already.
  static Ref adopt(T* object) noexcept {
    Ref result;
    result.object_ = object;
    return result;
  }
  /// One reference more to the same object.
  Ref(const Ref& other) noexcept : Ref(other.object_) {}
  /// Takes the reference over, and leaves `other` without one.
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  /// From a derived class.
  template <class U>
    requires std::is_convertible_v<U*, T*>
  Ref(const Ref<U>& other) noexcept : Ref(other.get()) {}
  ~Ref() {
    if (object_) object_->release();
  }
  /// Lets go of the object that it had.
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }

  T* get() const noexcept { return object_; }  ///< null where it owns nothing
  /// @{
  /// The object, unchecked: not to be asked of an empty Ref.
  T* operator->() const noexcept { return object_; }
  T& operator*() const noexcept { return *object_; }
  /// @}
  explicit operator bool() const noexcept { return object_ != nullptr; }                          ///< true where it owns an object
  friend bool operator==(const Ref& a, const Ref& b) noexcept { return a.object_ == b.object_; }  ///< the same object, not an equal one

 private:
  T* object_ = nullptr;
};

/// A new object with one owner, as std::make_shared.
template <class T, class... Args>
Ref<T> make_ref(Args&&... args) {
  return Ref<T>(new T(std::forward<Args>(args)...));
}

}  // namespace tern
