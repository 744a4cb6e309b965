// Runs a grid block by block, for Python: arguments, order, faults.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "block.h"

namespace emu {

Now now;
char arena[kArenaBytes] __attribute__((aligned(1024)));
Region dynamic_shared;
Counts counts;
std::map<int, int64_t> conflicts_at;

namespace {

struct Argument {
  Region region;
  char* pointer;
  uint64_t bits;
};

Argument* arguments;
char message[1024];
uint32_t random_state;

uint32_t random_below(uint32_t bound) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 17;
  random_state ^= random_state << 5;
  return random_state % bound;
}

}  // namespace

void shuffle_order(std::vector<int>& order) {
  for (size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1], order[random_below(static_cast<uint32_t>(i))]);
}

void fault(const char* format, ...) {
  char sentence[768];
  va_list values;
  va_start(values, format);
  vsnprintf(sentence, sizeof sentence, format, values);
  va_end(values);
  const Thread* subject = block.running != nullptr ? block.running : block.subject;
  const Index& b = now.block;
  if (subject == nullptr) {
    snprintf(message, sizeof message, "block (%d, %d, %d): %s", b.x, b.y, b.z, sentence);
  } else {
    const Index& t = subject->index;
    if (block.running == nullptr) now.line = subject->line;
    snprintf(message, sizeof message, "thread (%d, %d, %d) of block (%d, %d, %d): %s", t.x, t.y,
             t.z, b.x, b.y, b.z, sentence);
  }
  block.failed = true;
  if (block.running == nullptr) throw Failure{};
  leave_fiber();
}

void outside(const Region& region, int64_t offset, int bytes, bool write) {
  fault("out of bounds: %s %d bytes at byte %lld of %s, which has %lld bytes",
        write ? "writes" : "reads", bytes, static_cast<long long>(offset), region.name,
        static_cast<long long>(region.bytes));
}

void misaligned(const Region& region, int64_t offset, int bytes, bool write) {
  fault("misaligned: %s %d bytes at byte %lld of %s", write ? "writes" : "reads", bytes,
        static_cast<long long>(offset), region.name);
}

void global_access(const Region& region, int64_t offset, int bytes, bool write) {
  const uint32_t me = 1 + static_cast<uint32_t>(
                              now.block.x +
                              now.grid_size.x * (now.block.y + now.grid_size.y * now.block.z));
  uint32_t* owners = region.owners + offset;
  for (int i = 0; i < bytes; ++i) {
    if (owners[i] != 0 && owners[i] != me)
      fault("race: %s byte %lld of %s, which another block wrote", write ? "writes" : "reads",
            static_cast<long long>(offset + i), region.name);
    if (write) owners[i] = me;
  }
}

const Region* argument_region(int i) { return &arguments[i].region; }
char* argument_pointer(int i) { return arguments[i].pointer; }
uint64_t argument_bits(int i) { return arguments[i].bits; }

}  // namespace emu

using namespace emu;

// Returns 0, or -1 after a fault: its line and sentence are then in `line` and `text`.
extern "C" int emu_launch(void (*entry)(), const Index* grid, const Index* block_size,
                          int64_t dynamic_bytes, uint32_t seed, int argument_count,
                          emu::Argument* list, Counts* result, int* line, char* text, size_t text_bytes) {
  block.kernel = entry;
  arguments = list;
  block.failed = false;
  counts = {};
  conflicts_at.clear();
  now = {};
  now.grid_size = *grid;
  now.block_size = *block_size;
  dynamic_shared = {arena + kStaticBytes, dynamic_bytes, Space::shared, "dynamic shared memory",
                    nullptr};
  const int threads = block_size->x * block_size->y * block_size->z;
  block.threads.resize(threads);
  block.running = block.subject = nullptr;
  std::vector<int> order((threads + kWarp - 1) / kWarp), blocks(grid->x * grid->y * grid->z);
  std::iota(order.begin(), order.end(), 0);
  std::iota(blocks.begin(), blocks.end(), 0);
  random_state = seed * 2654435769u + 0x9e3779b9u;
  if (random_state == 0) random_state = 1;
  for (int i = 0; i < argument_count; ++i)
    if (list[i].region.begin != nullptr)
      list[i].region.owners =
          static_cast<uint32_t*>(std::calloc(list[i].region.bytes + 1, sizeof(uint32_t)));
  try {
    shuffle_order(blocks);
    for (int b : blocks) {
      now.block = {b % grid->x, b / grid->x % grid->y, b / grid->x / grid->y};
      run_block(order);
    }
  } catch (const Failure&) {
    *line = now.line;
    snprintf(text, text_bytes, "%s", message);
  }
  for (int i = 0; i < argument_count; ++i) std::free(list[i].region.owners);
  *result = counts;
  return block.failed ? -1 : 0;
}

// The bank conflicts of the last launch by line: returns how many lines, fills up to `capacity`.
extern "C" int emu_conflicts(int capacity, int* lines, int64_t* extra) {
  int i = 0;
  for (const auto& [line, count] : conflicts_at) {
    if (i < capacity) lines[i] = line, extra[i] = count;
    ++i;
  }
  return i;
}

void (*emu_host_launch)(const char*, const void*, int) = nullptr;
