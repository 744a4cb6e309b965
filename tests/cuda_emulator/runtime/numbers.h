// half and bfloat16 as CUDA has them: stored in 16 bits, every operation rounds to nearest even.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace emu {

template <class To, class From>
inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

inline float half_to_float(uint16_t bits) {
#ifdef __FLT16_MANT_DIG__  // the compiler has the type
  return bit_cast<_Float16>(bits);
#else
  const uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, rest = bits & 1023;
  if (exponent == 31) return bit_cast<float>(sign | 0x7f800000u | rest << 13);
  const float value = exponent == 0 ? std::ldexp(static_cast<float>(rest), -24)
                                    : std::ldexp(static_cast<float>(rest | 1024), exponent - 25);
  return sign != 0 ? -value : value;
#endif
}

inline uint16_t float_to_half(float value) {
#ifdef __FLT16_MANT_DIG__
  return bit_cast<uint16_t>(static_cast<_Float16>(value));
#else
  const uint32_t bits = bit_cast<uint32_t>(value), sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x33000000u) return static_cast<uint16_t>(sign);
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  const int shift = exponent < -14 ? 13 - 14 - exponent : 13;
  const uint32_t whole = (magnitude & 0x7fffffu) | 0x800000u, lost = whole & ((1u << shift) - 1);
  const uint32_t middle = 1u << (shift - 1);
  uint32_t kept = whole >> shift;
  if (lost > middle || (lost == middle && (kept & 1) != 0)) ++kept;
  // A carry out of the mantissa increments the exponent, as it should.
  return static_cast<uint16_t>(sign | (exponent < -14 ? kept : kept + ((exponent + 14) << 10)));
#endif
}

inline float bfloat16_to_float(uint16_t bits) { return bit_cast<float>(uint32_t{bits} << 16); }

inline uint16_t float_to_bfloat16(float value) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

}  // namespace emu

// To make one of double would round twice, as it does on the device.
#define EMU_NUMBER(Name, decode, encode)                                             \
  struct Name {                                                                      \
    uint16_t bits;                                                                   \
    Name() = default;                                                                \
    Name(float value) : bits(encode(value)) {}                                       \
    Name(double value) : bits(encode(static_cast<float>(value))) {}                  \
    Name(int value) : bits(encode(static_cast<float>(value))) {}                     \
    Name(unsigned int value) : bits(encode(static_cast<float>(value))) {}            \
    Name(long value) : bits(encode(static_cast<float>(value))) {}                    \
    Name(bool value) : bits(encode(value ? 1.0f : 0.0f)) {}                          \
    operator float() const { return decode(bits); }                                  \
  };                                                                                 \
  inline Name operator+(Name a, Name b) { return Name(float(a) + float(b)); }        \
  inline Name operator-(Name a, Name b) { return Name(float(a) - float(b)); }        \
  inline Name operator*(Name a, Name b) { return Name(float(a) * float(b)); }        \
  inline Name operator/(Name a, Name b) { return Name(float(a) / float(b)); }        \
  inline Name operator-(Name a) { return Name(-float(a)); }                          \
  inline Name& operator+=(Name& a, Name b) { return a = a + b; }                     \
  inline Name& operator-=(Name& a, Name b) { return a = a - b; }                     \
  inline Name& operator*=(Name& a, Name b) { return a = a * b; }                     \
  inline Name& operator/=(Name& a, Name b) { return a = a / b; }                     \
  inline bool operator<(Name a, Name b) { return float(a) < float(b); }              \
  inline bool operator>(Name a, Name b) { return float(a) > float(b); }              \
  inline bool operator<=(Name a, Name b) { return float(a) <= float(b); }            \
  inline bool operator>=(Name a, Name b) { return float(a) >= float(b); }            \
  inline bool operator==(Name a, Name b) { return float(a) == float(b); }            \
  inline bool operator!=(Name a, Name b) { return float(a) != float(b); }            \
  inline bool __hlt(Name a, Name b) { return a < b; }                                \
  inline bool __hgt(Name a, Name b) { return a > b; }                                \
  inline bool __hle(Name a, Name b) { return a <= b; }                               \
  inline bool __hge(Name a, Name b) { return a >= b; }                               \
  inline bool __heq(Name a, Name b) { return a == b; }                               \
  inline Name __hadd(Name a, Name b) { return a + b; }                               \
  inline Name __hsub(Name a, Name b) { return a - b; }                               \
  inline Name __hmul(Name a, Name b) { return a * b; }                               \
  inline Name __hdiv(Name a, Name b) { return a / b; }                               \
  inline Name __hfma(Name a, Name b, Name c) {                                       \
    return Name(static_cast<float>(double(float(a)) * float(b) + double(float(c)))); \
  }                                                                                  \
  inline Name __hmax(Name a, Name b) { return Name(std::fmax(float(a), float(b))); } \
  inline Name __hmin(Name a, Name b) { return Name(std::fmin(float(a), float(b))); } \
  inline Name __habs(Name a) { return Name(std::fabs(float(a))); }                   \
  inline Name __hneg(Name a) { return -a; }                                          \
  inline bool __hisnan(Name a) { return float(a) != float(a); }                      \
  inline Name hexp(Name a) { return Name(std::exp(float(a))); }                      \
  inline Name hexp2(Name a) { return Name(std::exp2(float(a))); }                    \
  inline Name hlog(Name a) { return Name(std::log(float(a))); }                      \
  inline Name hlog2(Name a) { return Name(std::log2(float(a))); }                    \
  inline Name hlog10(Name a) { return Name(std::log10(float(a))); }                  \
  inline Name hsqrt(Name a) { return Name(std::sqrt(float(a))); }                    \
  inline Name hrsqrt(Name a) { return Name(1.0f / std::sqrt(float(a))); }            \
  inline Name hrcp(Name a) { return Name(1.0f / float(a)); }                         \
  inline Name htanh(Name a) { return Name(std::tanh(float(a))); }                    \
  inline Name hsin(Name a) { return Name(std::sin(float(a))); }                      \
  inline Name hcos(Name a) { return Name(std::cos(float(a))); }                      \
  inline Name hfloor(Name a) { return Name(std::floor(float(a))); }                  \
  inline Name hceil(Name a) { return Name(std::ceil(float(a))); }                    \
  inline Name htrunc(Name a) { return Name(std::trunc(float(a))); }                  \
  inline Name hrint(Name a) { return Name(std::nearbyint(float(a))); }

EMU_NUMBER(half, emu::half_to_float, emu::float_to_half)
EMU_NUMBER(nv_bfloat16, emu::bfloat16_to_float, emu::float_to_bfloat16)
#undef EMU_NUMBER

using __half = half;
using __nv_bfloat16 = nv_bfloat16;
