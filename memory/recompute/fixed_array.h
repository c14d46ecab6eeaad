// An array that gets its length once. What std::vector has, less the room to
// grow: 16 bytes, and one allocation of just what is in it.
//
// Thread safety: none; the owner locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace chameleon::memory {

template <class T>
class FixedArray {
 public:
  FixedArray() = default;
  explicit FixedArray(std::size_t size)
      : items_(size == 0 ? nullptr : std::make_unique<T[]>(size)),
        size_(static_cast<std::uint32_t>(size)) {}
  explicit FixedArray(std::vector<T>&& items) : FixedArray(items.size()) {
    std::move(items.begin(), items.end(), begin());
  }
  FixedArray(FixedArray&& other) noexcept
      : items_(std::move(other.items_)), size_(std::exchange(other.size_, 0)) {}
  FixedArray& operator=(FixedArray&& other) noexcept {
    items_ = std::move(other.items_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  std::size_t size() const noexcept { return size_; }
  T& operator[](std::size_t i) noexcept { return items_[i]; }
  const T& operator[](std::size_t i) const noexcept { return items_[i]; }
  T* begin() noexcept { return items_.get(); }
  T* end() noexcept { return items_.get() + size_; }
  const T* begin() const noexcept { return items_.get(); }
  const T* end() const noexcept { return items_.get() + size_; }

 private:
  std::unique_ptr<T[]> items_;
  std::uint32_t size_ = 0;
};

} // namespace chameleon::memory
