// Pointers that know the memory they may touch. Every read and write through one is checked.
#pragma once
#include <cstring>
#include <type_traits>

#include "emulator.h"

namespace emu {

template <class T>
class ptr;

// CUDA wants a vector at a multiple of its size, at most 16 bytes.
template <class T>
constexpr int access_alignment() {
  constexpr int size = static_cast<int>(sizeof(T));
  if ((size & (size - 1)) != 0) return static_cast<int>(alignof(T));
  return size < 16 ? size : 16;
}

// A T in memory: reads when it is converted, writes when it is assigned to.
template <class T>
class Ref {
 public:
  Ref(char* at, const Region* region) : at_(at), region_(region) {}
  Ref(const Ref&) = default;

  operator T() const {
    check_access(at_, region_, sizeof(T), access_alignment<T>(), false);
    T value;
    std::memcpy(&value, at_, sizeof(T));
    return value;
  }
  // Two conversions in one cast: half in memory to int, say.
  template <class U, class = std::enable_if_t<std::is_arithmetic_v<U> && !std::is_same_v<U, T>>>
  explicit operator U() const {
    return static_cast<U>(static_cast<T>(*this));
  }
  const Ref& operator=(T value) const {
    check_access(at_, region_, sizeof(T), access_alignment<T>(), true);
    std::memcpy(at_, &value, sizeof(T));
    return *this;
  }
  const Ref& operator=(const Ref& other) const { return *this = static_cast<T>(other); }
  const Ref& operator+=(T value) const { return *this = static_cast<T>(*this) + value; }
  const Ref& operator-=(T value) const { return *this = static_cast<T>(*this) - value; }
  const Ref& operator*=(T value) const { return *this = static_cast<T>(*this) * value; }
  const Ref& operator/=(T value) const { return *this = static_cast<T>(*this) / value; }
  ptr<T> operator&() const { return ptr<T>(at_, region_); }

 private:
  char* at_;
  const Region* region_;
};

template <class T>
class ptr {
 public:
  ptr() = default;
  ptr(char* at, const Region* region) : at_(at), region_(region) {}
  // A variable of the thread itself has no region.
  ptr(T* raw) : at_(reinterpret_cast<char*>(raw)), region_(nullptr) {}
  template <class U>
  explicit ptr(U* raw) : at_(reinterpret_cast<char*>(raw)), region_(nullptr) {}
  template <class U, class = std::enable_if_t<!std::is_same_v<U, T>>>
  explicit ptr(const ptr<U>& other) : at_(other.address()), region_(other.region()) {}

  Ref<T> operator*() const { return Ref<T>(at_, region_); }
  Ref<T> operator[](int64_t i) const { return *(*this + i); }
  T* operator->() const {
    if (region_ != nullptr && region_->space != Space::local)
      fault("'->' into %s is not modelled: whether it reads or writes is not known", region_->name);
    check_access(at_, region_, sizeof(T), access_alignment<T>(), false);
    return reinterpret_cast<T*>(at_);
  }
  ptr operator+(int64_t i) const { return ptr(at_ + i * int64_t{sizeof(T)}, region_); }
  ptr operator-(int64_t i) const { return *this + -i; }
  ptr& operator+=(int64_t i) { return *this = *this + i; }
  ptr& operator++() { return *this += 1; }
  int64_t operator-(const ptr& other) const { return (at_ - other.at_) / int64_t{sizeof(T)}; }

  char* address() const { return at_; }
  const Region* region() const { return region_; }

 private:
  char* at_;
  const Region* region_;
};

template <>
class ptr<void> {
 public:
  ptr() = default;
  ptr(char* at, const Region* region) : at_(at), region_(region) {}
  ptr(void* raw) : at_(static_cast<char*>(raw)), region_(nullptr) {}
  template <class U>
  ptr(const ptr<U>& other) : at_(other.address()), region_(other.region()) {}

  char* address() const { return at_; }
  const Region* region() const { return region_; }

 private:
  char* at_;
  const Region* region_;
};

// What an array of the CUDA source is: a region, and the pointer arithmetic on its name.
template <class T>
class Array {
 public:
  Array(char* begin, int64_t count, Space space, const char* name)
      : region_{begin, count * int64_t{sizeof(T)}, space, name, nullptr} {}
  Array(const Array&) = delete;

  operator ptr<T>() const { return ptr<T>(region_.begin, &region_); }
  operator ptr<void>() const { return ptr<void>(region_.begin, &region_); }
  template <class U, class = std::enable_if_t<!std::is_same_v<U, T> && !std::is_void_v<U>>>
  explicit operator ptr<U>() const {
    return ptr<U>(region_.begin, &region_);
  }
  ptr<T> operator+(int64_t i) const { return static_cast<ptr<T>>(*this) + i; }
  Ref<T> operator[](int64_t i) const { return *(*this + i); }
  Ref<T> operator*() const { return (*this)[0]; }

 private:
  Region region_;
};

// An array of one thread, filled with bits that make any float a NaN.
template <class T, int N>
class Local : public Array<T> {
 public:
  explicit Local(const char* name)
      : Array<T>(reinterpret_cast<char*>(data_), N, Space::local, name) {
    std::memset(static_cast<void*>(data_), 0xff, sizeof(data_));
  }

 private:
  alignas(64) T data_[N];
};

// A static array in shared memory at an offset that the translator has chosen.
template <class T, int N, int Offset>
class Shared : public Array<T> {
 public:
  explicit Shared(const char* name) : Array<T>(arena + Offset, N, Space::shared, name) {
    static_assert(Offset + sizeof(T) * N <= kStaticBytes, "static shared arrays above 48 KiB");
  }
};

}  // namespace emu
