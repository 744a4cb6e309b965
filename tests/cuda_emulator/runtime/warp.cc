// What a warp does together: ldmatrix, mma, shuffles, and how its accesses meet the banks.
#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>

#include "block.h"
#include "numbers.h"

namespace emu {
namespace {

constexpr int kBanks = 32;
constexpr int kRows = 8;  // of a matrix of ldmatrix, 16 bytes each

void serve_load_matrices(Thread* warp) {
  const int variant = warp[0].request.variant;
  const bool transposed = variant < 0;
  ++counts.ldmatrix;
  for (int m = 0; m < std::abs(variant); ++m) {
    uint16_t matrix[kRows][kRows];
    uint32_t addresses[kRows];
    for (int row = 0; row < kRows; ++row) {
      Thread& lane = warp[m * kRows + row];
      block.subject = &lane;
      addresses[row] = lane.request.words[0];
      check_shared_bounds(addresses[row], 16, 16, "ldmatrix");
      note_read(addresses[row], 16, lane);
      std::memcpy(matrix[row], arena + addresses[row], 16);
    }
    count_pass(warp[0].line, addresses, kRows, 16);
    for (int lane = 0; lane < kWarp; ++lane) {
      const int row = lane / 4, column = lane % 4 * 2;
      const uint16_t low = transposed ? matrix[column][row] : matrix[row][column];
      const uint16_t high = transposed ? matrix[column + 1][row] : matrix[row][column + 1];
      warp[lane].request.out[m] = low | static_cast<uint32_t>(high) << 16;
    }
  }
}

template <class Decode>
void multiply(Thread* warp, Decode decode) {
  float a[16][16], b[16][8], sums[16][8];
  for (int lane = 0; lane < kWarp; ++lane) {
    const Request& request = warp[lane].request;
    const int group = lane / 4, pair = lane % 4 * 2;
    for (int i = 0; i < 4; ++i) {
      const int row = group + i % 2 * 8, k = pair + i / 2 * 8;
      a[row][k] = decode(static_cast<uint16_t>(request.words[i]));
      a[row][k + 1] = decode(static_cast<uint16_t>(request.words[i] >> 16));
    }
    for (int i = 0; i < 2; ++i) {
      const int k = pair + i * 8;
      b[k][group] = decode(static_cast<uint16_t>(request.words[4 + i]));
      b[k + 1][group] = decode(static_cast<uint16_t>(request.words[4 + i] >> 16));
    }
    for (int i = 0; i < 4; ++i) sums[group + i / 2 * 8][pair + i % 2] = request.sums[i];
  }
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 16; ++k)
      for (int column = 0; column < 8; ++column) sums[row][column] += a[row][k] * b[k][column];
  for (int lane = 0; lane < kWarp; ++lane) {
    const int group = lane / 4, pair = lane % 4 * 2;
    for (int i = 0; i < 4; ++i)
      warp[lane].request.out[i] = bit_cast<uint32_t>(sums[group + i / 2 * 8][pair + i % 2]);
  }
}

void serve_shuffle(Thread* warp, uint32_t mask) {
  std::array<uint64_t, kWarp> values;
  for (int lane = 0; lane < kWarp; ++lane)
    if ((mask >> lane & 1) != 0) values[lane] = warp[lane].request.value;
  for (int lane = 0; lane < kWarp; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    Request& request = warp[lane].request;
    block.subject = &warp[lane];
    const int width = request.width, operand = request.operand;
    if (width < 1 || width > kWarp || (width & (width - 1)) != 0)
      fault("shuffles with width %d, which is not a power of two up to 32", width);
    const int begin = lane / width * width;
    int from = lane;
    switch (static_cast<Shuffle>(request.variant)) {
      case Shuffle::index: from = begin + (operand & (width - 1)); break;
      case Shuffle::up: from = lane - operand < begin ? lane : lane - operand; break;
      case Shuffle::down: from = lane + operand >= begin + width ? lane : lane + operand; break;
      case Shuffle::exclusive: from = (lane ^ operand) >= begin + width ? lane : lane ^ operand;
    }
    if ((mask >> from & 1) == 0) fault("shuffles from lane %d, which takes no part", from);
    request.value = values[from];
  }
}

Request& new_request(Operation operation, uint32_t mask, int variant) {
  Request& request = block.running->request;
  request.operation = operation;
  request.mask = mask;
  request.variant = variant;
  return request;
}

}  // namespace

void load_matrices(int count, bool transposed, uint32_t address, uint32_t* out) {
  Request& request =
      new_request(Operation::load_matrices, 0xffffffffu, transposed ? -count : count);
  request.words[0] = address;
  suspend(State::collective);
  std::copy_n(request.out, count, out);
}

void multiply_tiles(Format format, const uint32_t* a, const uint32_t* b, const float* c, float* d) {
  Request& request =
      new_request(Operation::multiply_tiles, 0xffffffffu, static_cast<int>(format));
  std::copy_n(a, 4, request.words);
  std::copy_n(b, 2, request.words + 4);
  std::copy_n(c, 4, request.sums);
  suspend(State::collective);
  for (int i = 0; i < 4; ++i) d[i] = bit_cast<float>(request.out[i]);
}

uint64_t shuffle(Shuffle kind, uint32_t mask, uint64_t value, int operand, int width) {
  Request& request = new_request(Operation::shuffle, mask, static_cast<int>(kind));
  request.value = value;
  request.operand = operand;
  request.width = width;
  suspend(State::collective);
  return request.value;
}

void warp_barrier(uint32_t mask) {
  new_request(Operation::warp_barrier, mask, 0);
  suspend(State::collective);
}

void serve_warp(Thread* warp, uint32_t mask) {
  const Request& request = warp[__builtin_ctz(mask)].request;
  switch (request.operation) {
    case Operation::load_matrices: return serve_load_matrices(warp);
    case Operation::multiply_tiles:
      ++counts.mma;
      return static_cast<Format>(request.variant) == Format::f16
                 ? multiply(warp, half_to_float)
                 : multiply(warp, bfloat16_to_float);
    case Operation::shuffle: return serve_shuffle(warp, mask);
    case Operation::warp_barrier:
      // Of a part of the warp it orders less than the marks can tell.
      if (mask == 0xffffffffu) warp_barrier_passed(warp[0].warp());
  }
}

// Words that lie in the same bank are served one after the other, unless they are the same word.
void count_pass(int line, const uint32_t* addresses, int lanes, int bytes) {
  uint32_t words[kBanks][kWarp];
  int used[kBanks] = {};
  const int words_each = std::max(1, bytes / 4);
  int most = 1;
  for (int lane = 0; lane < lanes; ++lane) {
    for (int i = 0; i < words_each; ++i) {
      const uint32_t word = addresses[lane] / 4 + i, bank = word % kBanks;
      if (std::find(words[bank], words[bank] + used[bank], word) == words[bank] + used[bank]) {
        words[bank][used[bank]++] = word;
        most = std::max(most, used[bank]);
      }
    }
  }
  if (most == 1) return;
  counts.conflicts += most - 1;
  conflicts_at[line] += most - 1;
}

// The n-th access that each lane made at a line counts as one instruction of the warp. Wide ones
// are served in parts of 128 bytes.
void count_bank_conflicts(Thread* warp, int lanes) {
  struct Item {
    int line, turn, lane;
    bool write;
    int bytes;
    uint32_t address;
    bool same_instruction(const Item& other) const {
      return line == other.line && turn == other.turn && write == other.write &&
             bytes == other.bytes;
    }
  };
  static std::vector<Item> items;
  items.clear();
  for (int lane = 0; lane < lanes; ++lane) {
    std::map<std::pair<int, bool>, int> turns;
    for (const Access& access : warp[lane].accesses)
      items.push_back({access.line, turns[{access.line, access.write}]++, lane, access.write,
                       access.bytes, access.address});
    warp[lane].accesses.clear();
  }
  std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return std::tie(a.line, a.turn, a.write, a.bytes, a.lane) <
           std::tie(b.line, b.turn, b.write, b.bytes, b.lane);
  });
  for (size_t i = 0; i < items.size();) {
    const Item& first = items[i];
    const int part = std::min(kWarp, 128 / std::max(4, first.bytes));
    uint32_t addresses[kWarp];
    int count = 0;
    const int group = first.lane / part;
    for (; i < items.size() && first.same_instruction(items[i]) && items[i].lane / part == group;
         ++i)
      addresses[count++] = items[i].address;
    count_pass(first.line, addresses, count, first.bytes);
  }
}

}  // namespace emu
