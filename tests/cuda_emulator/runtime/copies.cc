// cp.async: a copy happens at the last moment that the waiting allows, the slowest legal hardware.
#include <cstring>

#include "block.h"

namespace emu {
namespace {

void land(const std::vector<Copy>& group, const Thread& thread) {
  for (const Copy& copy : group) {
    std::memcpy(arena + copy.destination, copy.source, copy.source_bytes);
    std::memset(arena + copy.destination + copy.source_bytes, 0, copy.bytes - copy.source_bytes);
    note_copy_lands(copy.destination, copy.bytes, thread);
  }
}

}  // namespace

void copy_async(uint32_t destination, const char* source, const Region* region, int bytes,
                int source_bytes) {
  Thread& thread = *block.running;
  ++counts.cp_async;
  if (bytes != 4 && bytes != 8 && bytes != 16) fault("cp.async of %d bytes", bytes);
  if (source_bytes < 0 || source_bytes > bytes)
    fault("cp.async reads %d bytes to fill %d", source_bytes, bytes);
  if (region == nullptr || region->space != Space::global)
    fault("cp.async reads from %s, which is not in global memory",
          region == nullptr ? "a variable" : region->name);
  const int64_t offset = source - region->begin;
  if (source_bytes > 0) {
    if (offset < 0 || offset > region->bytes - source_bytes)
      outside(*region, offset, source_bytes, false);
    if (offset % bytes != 0) misaligned(*region, offset, bytes, false);
    global_access(*region, offset, source_bytes, false);
  }
  check_shared_bounds(destination, bytes, bytes, "cp.async");
  note_copy_begins(destination, bytes, thread);
  std::memset(arena + destination, 0xff, bytes);
  thread.accesses.push_back({now.line, true, bytes, destination});
  thread.open_copies.push_back({destination, source, bytes, source_bytes, now.line});
}

void commit_copies() {
  Thread& thread = *block.running;
  thread.groups.push_back(std::move(thread.open_copies));
  thread.open_copies.clear();
}

void wait_copies(int groups_left) {
  Thread& thread = *block.running;
  while (static_cast<int>(thread.groups.size()) > groups_left) {
    land(thread.groups.front(), thread);
    thread.groups.pop_front();
  }
}

void wait_all_copies() {
  commit_copies();
  wait_copies(0);
}

}  // namespace emu
