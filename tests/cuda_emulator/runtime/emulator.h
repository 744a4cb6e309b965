// What a translated kernel and the runtime agree on. One system thread runs everything: each CUDA
// thread is a fiber, and `now` describes the one that is running.
#pragma once
#include <cstddef>
#include <cstdint>

namespace emu {

enum class Space : int32_t { local, global, shared };

// A piece of memory that an access must stay inside: a kernel argument, an array of one thread,
// or an array in shared memory.
struct Region {
  char* begin;
  int64_t bytes;
  Space space;
  const char* name;
  uint32_t* owners;  // of each byte of global memory: 1 + the block that wrote it, or 0
};

struct Index {
  int x, y, z;
};

struct Now {
  Index thread, block, block_size, grid_size;
  int line;                 // of the CUDA source
  int64_t statements_left;  // until the thread counts as one that never stops
};
extern Now now;

// Shared memory is one arena: static arrays first, the dynamic array behind them.
constexpr int kStaticBytes = 48 << 10;
constexpr int kDynamicBytes = 227 << 10;  // the most that any GPU gives one block
constexpr int kArenaBytes = kStaticBytes + kDynamicBytes;
extern char arena[kArenaBytes];
extern Region dynamic_shared;

// Ends the launch with this sentence; what thread and line it is about is added.
[[noreturn]] void fault(const char* format, ...) __attribute__((format(printf, 1, 2)));
[[noreturn]] void never_stops();
[[noreturn]] void outside(const Region& region, int64_t offset, int bytes, bool write);
[[noreturn]] void misaligned(const Region& region, int64_t offset, int bytes, bool write);

// An access to a kernel argument within its bounds: blocks must not touch what another one wrote.
void global_access(const Region& region, int64_t offset, int bytes, bool write);
// A plain access to shared memory by the running thread: bounds are checked before.
void shared_access(uint32_t address, int bytes, bool write);
// st.shared: the address is the thread's own number, so the bounds are checked here.
void shared_store(uint32_t address, const uint32_t* words, int count);
uint32_t shared_address(const char* at, const Region* region);

void barrier();
void warp_barrier(uint32_t mask);
uint32_t active_mask();

// Copies `source_bytes` and fills up to `bytes` with zeros, when the thread waits for it.
void copy_async(uint32_t destination, const char* source, const Region* region, int bytes,
                int source_bytes);
void commit_copies();
void wait_copies(int groups_left);
void wait_all_copies();

void load_matrices(int count, bool transposed, uint32_t address, uint32_t* out);

enum class Format : int32_t { f16, bf16 };
void multiply_tiles(Format format, const uint32_t* a, const uint32_t* b, const float* c, float* d);

enum class Shuffle : int32_t { index, up, down, exclusive };
uint64_t shuffle(Shuffle kind, uint32_t mask, uint64_t value, int operand, int width);

// The i-th argument of the launch.
const Region* argument_region(int i);
char* argument_pointer(int i);
uint64_t argument_bits(int i);

// Marks the start of a statement.
inline void at(int line) {
  now.line = line;
  if (--now.statements_left < 0) never_stops();
}

inline void check_bounds(const char* at, const Region* region, int bytes, int alignment,
                         bool write) {
  const int64_t offset = at - region->begin;
  if (offset < 0 || offset > region->bytes - bytes) outside(*region, offset, bytes, write);
  // Regions begin aligned, as device allocations do.
  if (offset % alignment != 0) misaligned(*region, offset, bytes, write);
}

inline void check_access(const char* at, const Region* region, int bytes, int alignment,
                         bool write) {
  if (region == nullptr) return;  // a variable of the thread
  check_bounds(at, region, bytes, alignment, write);
  if (region->space == Space::shared)
    shared_access(static_cast<uint32_t>(at - arena), bytes, write);
  else if (region->space == Space::global)
    global_access(*region, at - region->begin, bytes, write);
}

}  // namespace emu

// What launches by host code call, with the name of the kernel; Python sets it.
extern "C" void (*emu_host_launch)(const char* name, const void* arguments, int count);
