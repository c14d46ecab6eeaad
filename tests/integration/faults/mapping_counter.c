// Counts, from outside, the memory that torch_chameleon takes: loaded before
// libc (LD_PRELOAD), it sees the calls that the extension makes to map memory
// and knows nothing of its book-keeping. It shares no code with the project.
//
// Ranges that are reserved (mapped without access) hold both memories: the one
// for host memory is by far the larger. What of them was made accessible and
// not given back counts, and so does what the extension maps with access: that
// is host memory.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { kMaxRanges = 65536 };
static const uint64_t kLeastHostRange = (uint64_t)1 << 38;
typedef struct {
  uintptr_t begin, end;
} Range;
typedef struct {
  Range ranges[kMaxRanges]; // disjoint
  int count;
  uint64_t bytes, peak_bytes;
} Memory;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static Memory device, host;
static Range reserved[kMaxRanges];
static int reserved_count;

static int from_extension(void* caller) {
  Dl_info info;
  return dladdr(caller, &info) && info.dli_fname &&
         strstr(info.dli_fname, "torch_chameleon/_C") != NULL;
}

// Removes [begin, end) from the ranges.
static void take_away(Memory* memory, uintptr_t begin, uintptr_t end) {
  for (int i = 0; i < memory->count;) {
    Range* r = &memory->ranges[i];
    if (r->end <= begin || r->begin >= end) {
      ++i;
      continue;
    }
    uintptr_t low = r->begin > begin ? r->begin : begin;
    uintptr_t high = r->end < end ? r->end : end;
    memory->bytes -= high - low;
    Range left = {r->begin, low}, right = {high, r->end};
    memory->ranges[i] = memory->ranges[--memory->count];
    if (left.begin < left.end) memory->ranges[memory->count++] = left;
    if (right.begin < right.end) memory->ranges[memory->count++] = right;
  }
}

static void add(Memory* memory, uintptr_t begin, uintptr_t end) {
  take_away(memory, begin, end);
  memory->ranges[memory->count++] = (Range){begin, end};
  memory->bytes += end - begin;
  if (memory->bytes > memory->peak_bytes) memory->peak_bytes = memory->bytes;
}

static Memory* memory_at(uintptr_t address) {
  for (int i = 0; i < reserved_count; ++i) {
    const Range r = reserved[i];
    if (r.begin <= address && address < r.end)
      return r.end - r.begin >= kLeastHostRange ? &host : &device;
  }
  return &host;
}

static void gone(uintptr_t begin, uintptr_t end) {
  take_away(&device, begin, end);
  take_away(&host, begin, end);
}

void* mmap(void* address, size_t bytes, int protection, int flags, int file,
           off_t offset) {
  static void* (*real)(void*, size_t, int, int, int, off_t);
  if (!real) real = dlsym(RTLD_NEXT, "mmap");
  void* result = real(address, bytes, protection, flags, file, offset);
  if (result != MAP_FAILED && from_extension(__builtin_return_address(0))) {
    const uintptr_t begin = (uintptr_t)result, end = begin + bytes;
    pthread_mutex_lock(&mutex);
    if (protection & PROT_WRITE)
      add(&host, begin, end);
    else if (flags & MAP_FIXED)
      gone(begin, end);
    else
      reserved[reserved_count++] = (Range){begin, end};
    pthread_mutex_unlock(&mutex);
  }
  return result;
}

int munmap(void* address, size_t bytes) {
  static int (*real)(void*, size_t);
  if (!real) real = dlsym(RTLD_NEXT, "munmap");
  if (from_extension(__builtin_return_address(0))) {
    pthread_mutex_lock(&mutex);
    gone((uintptr_t)address, (uintptr_t)address + bytes);
    pthread_mutex_unlock(&mutex);
  }
  return real(address, bytes);
}

int mprotect(void* address, size_t bytes, int protection) {
  static int (*real)(void*, size_t, int);
  if (!real) real = dlsym(RTLD_NEXT, "mprotect");
  if (from_extension(__builtin_return_address(0))) {
    pthread_mutex_lock(&mutex);
    uintptr_t begin = (uintptr_t)address;
    if (protection & PROT_WRITE)
      add(memory_at(begin), begin, begin + bytes);
    else
      gone(begin, begin + bytes);
    pthread_mutex_unlock(&mutex);
  }
  return real(address, bytes, protection);
}

// For the test, through ctypes.
uint64_t counted_peak_device_bytes(void) { return device.peak_bytes; }
uint64_t counted_peak_host_bytes(void) { return host.peak_bytes; }
