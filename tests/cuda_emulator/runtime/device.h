// The part of CUDA that TVM's printed kernels use, for one fiber a thread.
#pragma once
#include <cmath>
#include <type_traits>

#include "emulator.h"
#include "numbers.h"
#include "pointers.h"

#define __CUDA_ARCH__ 800
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define threadIdx (emu::now.thread)
#define blockIdx (emu::now.block)
#define blockDim (emu::now.block_size)
#define gridDim (emu::now.grid_size)

using uchar = unsigned char;
constexpr int warpSize = 32;

#define EMU_VECTORS(T, Name)                                                           \
  struct alignas(2 * sizeof(T)) Name##2 {                                              \
    T x, y;                                                                            \
    Name##2() = default;                                                               \
    Name##2(T x, T y) : x(x), y(y) {}                                                  \
  };                                                                                   \
  inline Name##2 make_##Name##2(T x, T y) { return {x, y}; }                           \
  struct Name##3 {                                                                     \
    T x, y, z;                                                                         \
  };                                                                                   \
  inline Name##3 make_##Name##3(T x, T y, T z) { return {x, y, z}; }                   \
  struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) Name##4 {                    \
    T x, y, z, w;                                                                      \
  };                                                                                   \
  inline Name##4 make_##Name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMU_VECTORS(signed char, char)
EMU_VECTORS(unsigned char, uchar)
EMU_VECTORS(short, short)
EMU_VECTORS(unsigned short, ushort)
EMU_VECTORS(int, int)
EMU_VECTORS(unsigned int, uint)
EMU_VECTORS(long long, longlong)
EMU_VECTORS(unsigned long long, ulonglong)
EMU_VECTORS(float, float)
EMU_VECTORS(double, double)
#undef EMU_VECTORS

// The vectors of four are defined by TVM's own preamble.
#define EMU_PAIR(T, Name)                                  \
  struct alignas(4) Name {                                 \
    T x, y;                                                \
    Name() = default;                                      \
    Name(T x, T y) : x(x), y(y) {}                         \
  };                                                       \
  inline Name __hadd2(Name a, Name b) { return {a.x + b.x, a.y + b.y}; } \
  inline Name __hmul2(Name a, Name b) { return {a.x * b.x, a.y * b.y}; }
EMU_PAIR(half, half2)
EMU_PAIR(nv_bfloat16, nv_bfloat162)
#undef EMU_PAIR
using __half2 = half2;
using __nv_bfloat162 = nv_bfloat162;
inline half2 make_half2(half x, half y) { return {x, y}; }
inline half2 __halves2half2(half x, half y) { return {x, y}; }
inline half __float2half(float a) { return half(a); }
inline half __float2half_rn(float a) { return half(a); }
inline float __half2float(half a) { return a; }
inline half2 __floats2half2_rn(float a, float b) { return {half(a), half(b)}; }
inline half2 __float22half2_rn(float2 a) { return {half(a.x), half(a.y)}; }
inline float2 __half22float2(half2 a) { return {a.x, a.y}; }
inline nv_bfloat16 __float2bfloat16(float a) { return nv_bfloat16(a); }
inline nv_bfloat16 __float2bfloat16_rn(float a) { return nv_bfloat16(a); }
inline float __bfloat162float(nv_bfloat16 a) { return a; }
inline nv_bfloat162 __floats2bfloat162_rn(float a, float b) {
  return {nv_bfloat16(a), nv_bfloat16(b)};
}
inline nv_bfloat162 __float22bfloat162_rn(float2 a) { return {nv_bfloat16(a.x), nv_bfloat16(a.y)}; }
inline float2 __bfloat1622float2(nv_bfloat162 a) { return {a.x, a.y}; }

// Not templates, so that a value in memory converts to the type of the best overload.
#define EMU_MIN_MAX(T)                              \
  inline T min(T a, T b) { return a < b ? a : b; }  \
  inline T max(T a, T b) { return a > b ? a : b; }
EMU_MIN_MAX(int)
EMU_MIN_MAX(unsigned int)
EMU_MIN_MAX(long)
EMU_MIN_MAX(unsigned long)
#undef EMU_MIN_MAX
// Of a number and a NaN, the number.
inline float min(float a, float b) { return std::fmin(a, b); }
inline float max(float a, float b) { return std::fmax(a, b); }
inline double min(double a, double b) { return std::fmin(a, b); }
inline double max(double a, double b) { return std::fmax(a, b); }
inline float rsqrtf(float a) { return 1.0f / std::sqrt(a); }
inline float __expf(float a) { return std::exp(a); }
inline float __exp10f(float a) { return std::pow(10.0f, a); }
inline float __logf(float a) { return std::log(a); }
inline float __log2f(float a) { return std::log2(a); }
inline float __log10f(float a) { return std::log10(a); }
inline float __powf(float a, float b) { return std::pow(a, b); }
inline float __sinf(float a) { return std::sin(a); }
inline float __cosf(float a) { return std::cos(a); }
inline float __tanf(float a) { return std::tan(a); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __saturatef(float a) { return std::fmin(std::fmax(a, 0.0f), 1.0f); }
inline int __float_as_int(float a) { return emu::bit_cast<int>(a); }
inline unsigned int __float_as_uint(float a) { return emu::bit_cast<unsigned int>(a); }
inline float __int_as_float(int a) { return emu::bit_cast<float>(a); }
inline float __uint_as_float(unsigned int a) { return emu::bit_cast<float>(a); }
inline unsigned short __half_as_ushort(half a) { return a.bits; }
inline unsigned short __bfloat16_as_ushort(nv_bfloat16 a) { return a.bits; }

inline void __syncthreads() { emu::barrier(); }
inline void __syncwarp(unsigned int mask = 0xffffffffu) { emu::warp_barrier(mask); }
inline unsigned int __activemask() { return emu::active_mask(); }
inline void __threadfence() {}
inline void __threadfence_block() {}

#define EMU_SHUFFLES(T)                                                                        \
  inline T __shfl_sync(unsigned int mask, T value, int lane, int width = 32) {                 \
    return emu::shuffled(emu::Shuffle::index, mask, value, lane, width);                       \
  }                                                                                            \
  inline T __shfl_up_sync(unsigned int mask, T value, unsigned int delta, int width = 32) {    \
    return emu::shuffled(emu::Shuffle::up, mask, value, static_cast<int>(delta), width);       \
  }                                                                                            \
  inline T __shfl_down_sync(unsigned int mask, T value, unsigned int delta, int width = 32) {  \
    return emu::shuffled(emu::Shuffle::down, mask, value, static_cast<int>(delta), width);     \
  }                                                                                            \
  inline T __shfl_xor_sync(unsigned int mask, T value, int lanes, int width = 32) {            \
    return emu::shuffled(emu::Shuffle::exclusive, mask, value, lanes, width);                  \
  }

namespace emu {

template <class T>
inline T shuffled(Shuffle kind, uint32_t mask, T value, int operand, int width) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = shuffle(kind, mask, bits, operand, width);
  std::memcpy(static_cast<void*>(&value), &bits, sizeof(T));
  return value;
}

template <class T>
struct Argument {
  static T get(int i) {
    const uint64_t bits = argument_bits(i);
    T value;
    std::memcpy(static_cast<void*>(&value), &bits, sizeof(T));
    return value;
  }
};
template <class T>
struct Argument<ptr<T>> {
  static ptr<T> get(int i) { return ptr<T>(argument_pointer(i), argument_region(i)); }
};

// The PTX instructions of `asm` statements. Results go to variables or to checked memory.
template <int count, bool transposed, class... Out>
inline void ldmatrix(uint32_t address, Out&&... out) {
  static_assert(sizeof...(Out) == count, "ldmatrix.xN gives N registers");
  uint32_t words[count];
  load_matrices(count, transposed, address, words);
  int i = 0;
  ((out = words[i++]), ...);
}

template <Format format, class D0, class D1, class D2, class D3>
inline void mma_m16n8k16(D0&& d0, D1&& d1, D2&& d2, D3&& d3, uint32_t a0, uint32_t a1, uint32_t a2,
                         uint32_t a3, uint32_t b0, uint32_t b1, float c0, float c1, float c2,
                         float c3) {
  const uint32_t a[] = {a0, a1, a2, a3}, b[] = {b0, b1};
  const float c[] = {c0, c1, c2, c3};
  float d[4];
  multiply_tiles(format, a, b, c, d);
  d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];
}

// `cp.async.cg` goes past the L1 cache, which it can do in units of 16 bytes only.
template <bool past_l1>
inline void cp_async(uint32_t destination, ptr<void> source, int bytes, int source_bytes) {
  if (past_l1 && bytes != 16) fault("cp.async.cg of %d bytes: it copies 16", bytes);
  copy_async(destination, source.address(), source.region(), bytes, source_bytes);
}

inline uint32_t to_shared(ptr<void> pointer) {
  return shared_address(pointer.address(), pointer.region());
}

template <class... Words>
inline void st_shared(uint32_t address, Words... words) {
  const uint32_t list[] = {static_cast<uint32_t>(words)...};
  shared_store(address, list, sizeof...(Words));
}

}  // namespace emu

EMU_SHUFFLES(int)
EMU_SHUFFLES(unsigned int)
EMU_SHUFFLES(long)
EMU_SHUFFLES(float)
EMU_SHUFFLES(double)
EMU_SHUFFLES(half)
EMU_SHUFFLES(nv_bfloat16)
#undef EMU_SHUFFLES

inline unsigned int __cvta_generic_to_shared(emu::ptr<void> pointer) {
  return emu::to_shared(pointer);
}
template <class T>
inline T __ldg(const emu::ptr<T>& pointer) {
  return *pointer;
}
// One system thread runs all fibers, so nothing comes between the read and the write.
template <class T>
inline T atomicAdd(const emu::ptr<T>& pointer, std::common_type_t<T> value) {
  const emu::Region* region = pointer.region();
  if (region == nullptr || region->space != emu::Space::global)
    emu::fault("atomicAdd outside global memory is not modelled");
  emu::check_bounds(pointer.address(), region, sizeof(T), sizeof(T), true);
  T old;
  std::memcpy(&old, pointer.address(), sizeof(T));
  const T sum = old + value;
  std::memcpy(pointer.address(), &sum, sizeof(T));
  return old;
}
