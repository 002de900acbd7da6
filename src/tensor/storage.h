#pragma once
#include <atomic>
#include <cstdint>
#include <utility>

#include "backend/device.h"

// Counted references, and the memory that tensors share by them.
namespace tern {

/// Base class of objects with an intrusive reference count. A Ref is one word, and counting needs no second allocation.
class RefCounted {
 public:
  RefCounted() = default;
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;
  virtual ~RefCounted() = default;

  /// Adds a reference. For Ref; any thread.
  void retain() const noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  /// Drops a reference, and calls destroy() with the last one.
  void release() const noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) const_cast<RefCounted*>(this)->destroy();
  }
  /// Adds a reference, unless the last one is gone and the object is about to be destroyed.
  bool try_retain() const noexcept {
    std::uint32_t count = references_.load(std::memory_order_relaxed);
    while (count != 0)
      if (references_.compare_exchange_weak(count, count + 1, std::memory_order_acquire, std::memory_order_relaxed)) return true;
    return false;
  }
  /// Number of references at this moment, which other threads may change at any time.
  std::uint32_t references() const noexcept { return references_.load(std::memory_order_relaxed); }

 protected:
  /// Called when the last reference is gone. Nodes of the autograd graph defer it: see Note [Iterative release].
  virtual void destroy() noexcept { delete this; }

 private:
  mutable std::atomic<std::uint32_t> references_{0};
};

/// Owning pointer to a RefCounted object.
template <class T>
class Ref {
 public:
  Ref() noexcept = default;
  /// Owns nothing, as Ref().
  Ref(std::nullptr_t) noexcept {}
  /// Adds a reference to the object; owns nothing if it is null.
  explicit Ref(T* object) noexcept : object_(object) {
    if (object_) object_->retain();
  }
  /// Takes over a reference that was added already.
  static Ref adopt(T* object) noexcept {
    Ref result;
    result.object_ = object;
    return result;
  }
  /// Adds a reference to the same object.
  Ref(const Ref& other) noexcept : Ref(other.object_) {}
  /// Takes over the reference, and leaves `other` empty.
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  /// Converts from a Ref to a derived class.
  template <class U>
    requires std::is_convertible_v<U*, T*>
  Ref(const Ref<U>& other) noexcept : Ref(other.get()) {}
  ~Ref() {
    if (object_) object_->release();
  }
  /// Drops the reference to the previous object.
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }

  T* get() const noexcept { return object_; }  ///< null if it owns nothing
  /// @{
  /// The object, unchecked: the Ref must not be empty.
  T* operator->() const noexcept { return object_; }
  T& operator*() const noexcept { return *object_; }
  /// @}
  explicit operator bool() const noexcept { return object_ != nullptr; }                          ///< true if it owns an object
  friend bool operator==(const Ref& a, const Ref& b) noexcept { return a.object_ == b.object_; }  ///< the same object, not an equal one

 private:
  T* object_ = nullptr;
};

/// Creates an object with one owner, as std::make_shared.
template <class T, class... Args>
Ref<T> make_ref(Args&&... args) {
  return Ref<T>(new T(std::forward<Args>(args)...));
}

/// Block of device memory, shared by all tensors that are views of it. That of a FlatStorage comes and goes while tensors view it.
class Storage : public RefCounted {
 public:
  /// Allocates `bytes` uninitialized bytes on the stream's device.
  Storage(std::size_t bytes, Stream stream);
  ~Storage() override;

  /// Address of the memory. Throws Error if it has been freed.
  void* data() const {
    if (!is_here()) [[unlikely]]
      fail_freed();
    return data_;
  }
  /// False if the memory has been freed.
  bool is_here() const noexcept { return data_ || bytes_ == 0; }
  std::size_t bytes() const noexcept { return bytes_; }  ///< size as requested
  /// True for adopted read-only memory (tensor/from_blob.h): in-place ops refuse it.
  bool is_read_only() const noexcept { return is_read_only_; }
  /// True if one tensor alone has the memory: what observers keep does not count, so that they change no result and no copy.
  bool has_one_owner() const noexcept { return references() == 1 + watchers_; }
  /// @{
  /// Called by an observer that holds a reference, when it begins and ends to do so, in the thread that it observes.
  void begin_watch() noexcept { ++watchers_; }
  void end_watch() noexcept { --watchers_; }
  /// @}
  /// Stream that the memory was allocated on, and with it the device; freed memory returns to that stream's cache.
  Stream stream() const noexcept { return stream_; }

  /// Number of in-place edits of the memory. A tensor saved for backward remembers it, and so detects an edit. Threads may edit different
  /// parts, such as gradients in one flat buffer.
  std::uint32_t version() const noexcept { return version_.load(std::memory_order_relaxed); }
  /// Counts an edit. In-place ops do so (begin_in_place); code that writes through data() must do so itself, or backward may use the new
  /// elements.
  void bump_version() noexcept { version_.fetch_add(1, std::memory_order_relaxed); }

 protected:
  /// Memory that was allocated elsewhere: for a subclass that takes it back with release_memory() in its destructor, and returns it.
  Storage(void* data, std::size_t bytes, Stream stream, bool is_read_only) noexcept
      : data_(data), bytes_(bytes), stream_(stream), is_read_only_(is_read_only) {}
  /// Returns the memory, and leaves this block without it.
  void* release_memory() noexcept { return std::exchange(data_, nullptr); }
  /// Frees the memory; work already queued on the stream may still use it.
  void free_memory();
  /// Takes the memory of another block of the same size, which is left without memory.
  void take_memory(Storage& other);

 private:
  [[noreturn]] static void fail_freed();

  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Stream stream_;
  std::atomic<std::uint32_t> version_ = 0;
  std::uint32_t watchers_ = 0;
  bool is_read_only_ = false;
};

}  // namespace tern
