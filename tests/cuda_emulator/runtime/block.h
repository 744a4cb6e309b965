// The block that runs: its threads, what each of them waits for, and what is counted.
#pragma once
#include <deque>
#include <map>
#include <vector>

#include "emulator.h"
#include "fiber.h"

namespace emu {

constexpr int kWarp = 32;
constexpr int kMaxThreads = 1024;

enum class State { runnable, collective, barrier, ended };
enum class Operation { load_matrices, multiply_tiles, shuffle, warp_barrier };

// What a thread hands to its warp; `out` is what it gets back.
struct Request {
  Operation operation;
  uint32_t mask;
  int variant;  // Format, Shuffle, or the number of matrices (negative: transposed)
  uint32_t words[6];
  float sums[4];
  uint64_t value;
  int operand, width;
  uint32_t out[4];
};

struct Copy {
  uint32_t destination;
  const char* source;
  int bytes, source_bytes, line;
};

// A plain access to shared memory, kept until the warp's bank conflicts are counted.
struct Access {
  int line;
  bool write;
  int bytes;
  uint32_t address;
};

struct Thread {
  Context context;
  Index index;
  int number;  // in the block
  int line;
  State state;
  Request request;
  std::vector<Copy> open_copies;
  std::deque<std::vector<Copy>> groups;
  std::vector<Access> accesses;
  int warp() const { return number / kWarp; }
};

struct Counts {
  int64_t ldmatrix, mma, cp_async, barriers, conflicts;
};

struct Block {
  std::vector<Thread> threads;
  Thread* running;  // null while the scheduler runs
  Thread* subject;  // whom a fault of the scheduler is about
  void (*kernel)();
  bool failed;
};

extern Block block;
extern Counts counts;
extern std::map<int, int64_t> conflicts_at;  // line -> extra passes over the banks

// Thrown by a fault once the scheduler has the processor.
struct Failure {};

// A random permutation, given by the seed of the launch.
void shuffle_order(std::vector<int>& order);

// Runs the block that `now` names to its end; `order` lists its warps.
void run_block(std::vector<int>& order);

[[noreturn]] void leave_fiber();

// Gives the processor back until the scheduler makes the thread runnable again.
void suspend(State state);

void reset_shared(int threads);
void barrier_passed();
void warp_barrier_passed(int warp);
void check_shared_bounds(uint32_t address, int bytes, int alignment, const char* what);
void note_read(uint32_t address, int bytes, const Thread& thread);
void note_write(uint32_t address, int bytes, const Thread& thread);
void note_copy_begins(uint32_t address, int bytes, const Thread& thread);
void note_copy_lands(uint32_t address, int bytes, const Thread& thread);

void count_bank_conflicts(Thread* warp, int lanes);
void count_pass(int line, const uint32_t* addresses, int lanes, int bytes);

// Serves the lanes in `mask` of a warp, all of which wait with the same operation.
void serve_warp(Thread* warp, uint32_t mask);

}  // namespace emu
