// A list in one piece, the first N items of which need no heap.
//
// Thread safety: none; the owner locks.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

namespace chameleon::memory {

template <typename T, std::size_t N>
class InlineList {
  static_assert(std::is_trivial_v<T>);

 public:
  void assign(std::span<const T> items) {
    std::copy(items.begin(), items.end(), resize(items.size()));
  }
  // `size` items, whose values the caller sets.
  T* resize(std::size_t size) {
    if (size > N) [[unlikely]] {
      growMore();
      more_->resize(size);
    }
    size_ = size;
    return data();
  }
  void push_back(const T& item) {
    if (size_ < N) [[likely]] {
      inline_[size_++] = item;
    } else {
      pushMore(item);
    }
  }
  void clear() noexcept { size_ = 0; }
  bool empty() const noexcept { return size_ == 0; }
  // The last item takes its place.
  void remove(std::size_t i) noexcept {
    (*this)[i] = (*this)[size_ - 1];
    if (size_ > N) [[unlikely]]
      more_->pop_back();
    if (--size_ == N && more_ != nullptr) [[unlikely]]
      std::copy(more_->begin(), more_->end(), inline_.begin());
  }
  std::size_t size() const noexcept { return size_; }
  T* data() noexcept { return size_ <= N ? inline_.data() : more_->data(); }
  const T* data() const noexcept {
    return size_ <= N ? inline_.data() : more_->data();
  }
  T& operator[](std::size_t i) noexcept { return data()[i]; }
  const T& operator[](std::size_t i) const noexcept { return data()[i]; }
  T* begin() noexcept { return data(); }
  T* end() noexcept { return data() + size_; }
  const T* begin() const noexcept { return data(); }
  const T* end() const noexcept { return data() + size_; }
  // size(), where nothing fits.
  template <typename Predicate>
  std::size_t findIf(Predicate predicate) const noexcept {
    const T* const items = data();
    std::size_t i = 0;
    while (i < size_ && !predicate(items[i])) ++i;
    return i;
  }

 private:
  [[gnu::noinline, gnu::cold]] void growMore() {
    if (more_ == nullptr) more_ = std::make_unique<std::vector<T>>();
  }
  [[gnu::noinline, gnu::cold]] void pushMore(const T& item) {
    growMore();
    if (size_ == N) more_->assign(inline_.begin(), inline_.end());
    more_->push_back(item);
    ++size_;
  }

  std::size_t size_ = 0;
  std::unique_ptr<std::vector<T>> more_; // all items, where they exceed N
  std::array<T, N> inline_;              // all items, where they do not
};

} // namespace chameleon::memory
