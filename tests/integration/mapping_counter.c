// Counts, from outside, the memory that torch_chameleon takes: loaded before
// libc (LD_PRELOAD), it sees the calls that the extension makes to map memory
// and knows nothing of its book-keeping. It shares no code with the project.
//
// Reserved ranges (mapped without access) hold device memory: what of them
// was made accessible and not given back counts as device bytes. Everything
// that the extension maps with access counts as host bytes.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { kMaxRanges = 65536 };
typedef struct {
  uintptr_t begin, end;
} Range;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static Range committed[kMaxRanges]; // disjoint
static int committed_count;
static Range host[kMaxRanges];
static int host_count;
static uint64_t device_bytes, host_bytes, peak_device_bytes, peak_host_bytes;

static int from_extension(void* caller) {
  Dl_info info;
  return dladdr(caller, &info) && info.dli_fname &&
      strstr(info.dli_fname, "torch_chameleon/_C") != NULL;
}

// Removes [begin, end) from the committed ranges.
static void uncommit(uintptr_t begin, uintptr_t end) {
  for (int i = 0; i < committed_count;) {
    Range* r = &committed[i];
    if (r->end <= begin || r->begin >= end) {
      ++i;
      continue;
    }
    uintptr_t low = r->begin > begin ? r->begin : begin;
    uintptr_t high = r->end < end ? r->end : end;
    device_bytes -= high - low;
    Range left = {r->begin, low}, right = {high, r->end};
    committed[i] = committed[--committed_count];
    if (left.begin < left.end) committed[committed_count++] = left;
    if (right.begin < right.end) committed[committed_count++] = right;
  }
}

static void commit(uintptr_t begin, uintptr_t end) {
  uncommit(begin, end);
  committed[committed_count++] = (Range){begin, end};
  device_bytes += end - begin;
  if (device_bytes > peak_device_bytes) peak_device_bytes = device_bytes;
}

void* mmap(void* address, size_t bytes, int protection, int flags, int file,
           off_t offset) {
  static void* (*real)(void*, size_t, int, int, int, off_t);
  if (!real) real = dlsym(RTLD_NEXT, "mmap");
  void* result = real(address, bytes, protection, flags, file, offset);
  if (result != MAP_FAILED && (protection & PROT_WRITE) &&
      from_extension(__builtin_return_address(0))) {
    pthread_mutex_lock(&mutex);
    host[host_count++] =
        (Range){(uintptr_t)result, (uintptr_t)result + bytes};
    host_bytes += bytes;
    if (host_bytes > peak_host_bytes) peak_host_bytes = host_bytes;
    pthread_mutex_unlock(&mutex);
  }
  return result;
}

int munmap(void* address, size_t bytes) {
  static int (*real)(void*, size_t);
  if (!real) real = dlsym(RTLD_NEXT, "munmap");
  if (from_extension(__builtin_return_address(0))) {
    pthread_mutex_lock(&mutex);
    uncommit((uintptr_t)address, (uintptr_t)address + bytes);
    for (int i = 0; i < host_count; ++i) {
      if (host[i].begin != (uintptr_t)address) continue;
      host_bytes -= host[i].end - host[i].begin;
      host[i] = host[--host_count];
      break;
    }
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
    if (protection & PROT_WRITE) commit(begin, begin + bytes);
    else uncommit(begin, begin + bytes);
    pthread_mutex_unlock(&mutex);
  }
  return real(address, bytes, protection);
}

// For the test, through ctypes.
uint64_t counted_peak_device_bytes(void) { return peak_device_bytes; }
uint64_t counted_peak_host_bytes(void) { return peak_host_bytes; }
