// Shared memory: who wrote and read each byte, and since when. Two threads that touch a byte with
// nothing between them that orders the two, at least one of them writing, are a race.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "block.h"

namespace emu {
namespace {

enum : uint8_t { kUnwritten, kWritten, kPending };

// A mark is the time of an access and who did it: a thread, several lanes of one warp, or several
// warps. Time counts the barriers of the block.
constexpr int kWhoBits = 11;
constexpr uint32_t kWhoMask = (1u << kWhoBits) - 1;
constexpr uint32_t kLanesOf = 1024;  // + warp
constexpr uint32_t kSeveral = kWhoMask;

uint8_t status[kArenaBytes];
uint32_t writer[kArenaBytes], reader[kArenaBytes];
uint32_t time_now, barrier_time, warp_time[kMaxThreads / kWarp];
int used_static, used_dynamic;

uint32_t mark(uint32_t who) { return time_now << kWhoBits | who; }

uint32_t warp_of(uint32_t who) { return who < kLanesOf ? who / kWarp : who - kLanesOf; }

// Does nothing order this mark before what `thread` does now?
bool races(uint32_t marked, const Thread& thread) {
  const uint32_t who = marked & kWhoMask, when = marked >> kWhoBits;
  if (when < barrier_time || who == static_cast<uint32_t>(thread.number)) return false;
  const auto warp = static_cast<uint32_t>(thread.warp());
  return who == kSeveral || warp_of(who) != warp || when >= warp_time[warp];
}

struct Who {
  char text[48];
};

Who name(uint32_t who) {
  Who result;
  const Index size = now.block_size;
  const int i = static_cast<int>(who);
  if (who < kLanesOf)
    snprintf(result.text, sizeof result.text, "thread (%d, %d, %d)", i % size.x,
             i / size.x % size.y, i / size.x / size.y);
  else
    snprintf(result.text, sizeof result.text, who == kSeveral ? "several warps" : "warp %d",
             i - static_cast<int>(kLanesOf));
  return result;
}

struct Place {
  char text[64];
};

Place place(uint32_t address) {
  Place result;
  const bool is_static = address < kStaticBytes;
  snprintf(result.text, sizeof result.text, "byte %d of %s shared memory",
           static_cast<int>(is_static ? address : address - kStaticBytes),
           is_static ? "static" : "dynamic");
  return result;
}

[[noreturn]] void race(const char* verb, uint32_t address, uint32_t marked, const char* earlier) {
  fault("race: %s %s, which %s %s with no barrier in between", verb, place(address).text,
        name(marked & kWhoMask).text, earlier);
}

void check_pending(uint32_t address, const char* verb) {
  if (status[address] == kPending)
    fault("poisoned: %s %s, into which %s copies with cp.async; nobody has waited for that copy",
          verb, place(address).text, name(writer[address] & kWhoMask).text);
}

void check_read(uint32_t address, const Thread& thread) {
  check_pending(address, "reads");
  if (status[address] == kUnwritten)
    fault("poisoned: reads %s, which nothing has written", place(address).text);
  if (races(writer[address], thread)) race("reads", address, writer[address], "wrote");
}

void check_write(uint32_t address, const Thread& thread) {
  check_pending(address, "writes");
  if (status[address] != kUnwritten && races(writer[address], thread))
    race("writes", address, writer[address], "wrote");
  if (reader[address] != 0 && races(reader[address], thread))
    race("writes", address, reader[address], "read");
}

void set_written(uint32_t address, int bytes, const Thread& thread, uint8_t now_is) {
  std::fill_n(writer + address, bytes, mark(static_cast<uint32_t>(thread.number)));
  std::fill_n(status + address, bytes, now_is);
}

void advance_time() {
  if (++time_now >> (32 - kWhoBits) != 0) fault("more barriers than the emulator can count");
}

}  // namespace

void reset_shared(int) {
  std::memset(status, kUnwritten, used_static);
  std::memset(status + kStaticBytes, kUnwritten, used_dynamic);
  std::fill_n(reader, used_static, 0u);
  std::fill_n(reader + kStaticBytes, used_dynamic, 0u);
  std::memset(arena, 0xff, used_static);
  std::memset(arena + kStaticBytes, 0xff, used_dynamic);
  used_static = used_dynamic = 0;
  // Marks of time 0 would look like none.
  time_now = barrier_time = 1;
  std::fill(std::begin(warp_time), std::end(warp_time), 1u);
}

void barrier_passed() {
  advance_time();
  barrier_time = time_now;
}

void warp_barrier_passed(int warp) {
  advance_time();
  warp_time[warp] = time_now;
}

void note_read(uint32_t address, int bytes, const Thread& thread) {
  const uint32_t recent = barrier_time << kWhoBits;
  uint32_t suspicious = 0;
  for (int i = 0; i < bytes; ++i)
    suspicious |= (writer[address + i] >= recent) | (status[address + i] != kWritten);
  if (suspicious != 0)
    for (int i = 0; i < bytes; ++i) check_read(address + i, thread);
  const auto me = static_cast<uint32_t>(thread.number), mine = mark(me);
  const uint32_t lanes = kLanesOf + me / kWarp;
  for (int i = 0; i < bytes; ++i) {
    const uint32_t before = reader[address + i], who = before & kWhoMask;
    const uint32_t together = who == me                       ? me
                              : warp_of(who) == me / kWarp    ? lanes
                                                              : kSeveral;
    reader[address + i] = before < recent ? mine : mark(who == kSeveral ? kSeveral : together);
  }
}

void note_write(uint32_t address, int bytes, const Thread& thread) {
  for (int i = 0; i < bytes; ++i) check_write(address + i, thread);
  set_written(address, bytes, thread, kWritten);
  const int end = static_cast<int>(address) + bytes;
  if (end > kStaticBytes)
    used_dynamic = std::max(used_dynamic, end - kStaticBytes);
  else
    used_static = std::max(used_static, end);
}

void note_copy_begins(uint32_t address, int bytes, const Thread& thread) {
  note_write(address, bytes, thread);
  set_written(address, bytes, thread, kPending);
}

void note_copy_lands(uint32_t address, int bytes, const Thread& thread) {
  set_written(address, bytes, thread, kWritten);
}

void check_shared_bounds(uint32_t address, int bytes, int alignment, const char* what) {
  const int64_t dynamic = int64_t{address} - kStaticBytes;
  if (address % alignment != 0) fault("misaligned: %s at %s", what, place(address).text);
  if (dynamic > dynamic_shared.bytes - bytes || (dynamic < 0 && dynamic > -bytes))
    fault("out of bounds: %s, %d bytes at %s; the block has %lld bytes of dynamic shared memory",
          what, bytes, place(address).text, static_cast<long long>(dynamic_shared.bytes));
}

void shared_access(uint32_t address, int bytes, bool write) {
  Thread& thread = *block.running;
  if (write)
    note_write(address, bytes, thread);
  else
    note_read(address, bytes, thread);
  thread.accesses.push_back({now.line, write, bytes, address});
}

void shared_store(uint32_t address, const uint32_t* words, int count) {
  check_shared_bounds(address, 4 * count, 4 * count, "st.shared");
  shared_access(address, 4 * count, true);
  std::memcpy(arena + address, words, 4 * count);
}

uint32_t shared_address(const char* at, const Region* region) {
  if (region == nullptr || region->space != Space::shared)
    fault("takes the shared address of %s, which is not in shared memory",
          region == nullptr ? "a variable" : region->name);
  const int64_t address = at - arena;
  if (address < 0 || address > kArenaBytes) outside(*region, at - region->begin, 1, false);
  return static_cast<uint32_t>(address);
}

}  // namespace emu
