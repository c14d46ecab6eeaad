// What each kind of file operation does over the overlay: the C library's
// functions of calls.cpp are these, by their many names.
//
// Parameters and results are those of the C library's *at() functions: -1 and
// errno on failure. Without an overlay in this process all do what the kernel
// does. Thread safety: any thread.
#pragma once

#include <cerrno>
#include <cstdarg>
#include <dlfcn.h>
#include <fcntl.h>
#include <string>
#include <sys/stat.h>
#include <sys/time.h>
#include <vector>

#include "python/overlay/overlay.h"

// The C library's own function of this name.
#define NEXT(name)                                                      \
  ([] {                                                                 \
    static const auto next =                                            \
        reinterpret_cast<decltype(&::name)>(::dlsym(RTLD_NEXT, #name)); \
    return next;                                                        \
  }())

namespace chameleon::overlay {

inline Follow followUnless(bool no) { return no ? Follow::kNo : Follow::kYes; }

// A path as the kernel is to see it, for calls that change nothing.
class Seen {
 public:
  Seen(int folder, const char* path, Follow follow)
      : folder_(folder), path_(path) {
    const Overlay* const overlay = Overlay::instance();
    if (overlay == nullptr || path == nullptr || *path == '\0') return;
    const Place place = overlay->find(folder, path, follow);
    real_ = place.real;
    path_ = real_.c_str();
    is_upper_ = place.upper;
  }
  Seen(const char* path, Follow follow) : Seen(AT_FDCWD, path, follow) {}
  Seen(const Seen&) = delete;
  Seen& operator=(const Seen&) = delete;

  int folder() const { return folder_; }
  const char* path() const { return path_; }
  // Without the overlay's own mark.
  template <typename Mode>
  Mode mode(Mode found) const {
    return is_upper_ ? static_cast<Mode>(found & ~S_ISVTX) : found;
  }

 private:
  const int folder_;
  const char* path_;
  std::string real_;
  bool is_upper_ = false;
};

// The rights to give to what is `there`. The sticky bit is the overlay's:
// folders of the upper tree keep it, and no file of a script's has it.
inline mode_t rightsOf(mode_t there, mode_t wanted) {
  return S_ISDIR(there) ? (wanted & 0777) | S_ISVTX : wanted & ~S_ISVTX;
}

// What is there becomes ours, and can be changed by its path; for calls that
// change a file's bytes, times, rights or owner. Where it cannot, the path is
// null, errno says why, and the kernel is not asked.
class Changed {
 public:
  Changed(int folder, const char* path, Follow follow) {
    const Overlay* const overlay = Overlay::instance();
    if (overlay == nullptr) {
      real_ = path;
      isThere_ = isOutside_ = true;
      return;
    }
    Place place = overlay->find(folder, path, follow);
    isOutside_ = place.outside;
    there_ = place.mode;
    if (place.mode == 0 && !place.outside) {
      errno = place.error;
    } else {
      isThere_ = overlay->copyUp(place) == 0;
    }
    real_ = place.real;
  }
  explicit operator bool() const { return isThere_; }
  const std::string& path() const { return real_; }
  const char* text() const { return real_.c_str(); }
  mode_t mode(mode_t wanted) const {
    return isOutside_ ? wanted : rightsOf(there_, wanted);
  }

 private:
  std::string real_;
  bool isThere_ = false;
  bool isOutside_ = false;
  mode_t there_ = 0;
};

// The environment of a program that is started. It keeps this library, whatever
// the one who starts it leaves out.
class Kept {
 public:
  explicit Kept(char* const environment[]);
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

  char* const* environment() const { return environment_; }

 private:
  char* const* environment_;
  std::string root_;
  std::string preload_;
  std::vector<char*> entries_;
};

// An open file's own path, as the kernel has it.
std::string pathOf(int file);

// A path for a program or library, which see by what path they are run: as it
// is given where the kernel finds the same by it, else its place in `place`.
const char* pathToRun(const char* path, std::string& place);

// Whether a descriptor is of a file of the user's, which must not be changed
// through it.
bool isLower(int file);

int openAt(int folder, const char* path, int flags, mode_t mode);
// `rest` has the mode, where the flags ask for one.
int openWith(int folder, const char* path, int flags, std::va_list rest);
// Opens as open() would, so that what the C library itself then opens by the
// place that is returned is there. Empty: errno says why.
std::string placeToOpen(const char* path, int flags, mode_t mode);
// mkstemp() and its like: the six X stand before `suffix_bytes` at the end.
int makeTemporaryFile(char* pattern, int suffix_bytes, int flags);
int makeTemporaryFolder(char* pattern);

int statAt(int folder, const char* path, struct stat* out, int flags);
int accessAt(int folder, const char* path, int mode, int flags);
long readlinkAt(int folder, const char* path, char* out, std::size_t bytes);
char* resolve(const char* path, char* out);

int makeFolderAt(int folder, const char* path, mode_t mode);
int makeNodeAt(int folder, const char* path, mode_t mode, dev_t device);
int makeLinkAt(const char* target, int folder, const char* path);
int removeAt(int folder, const char* path, int flags);
int renameAt(int from_folder, const char* from, int to_folder, const char* to,
             unsigned flags);
int linkAt(int from_folder, const char* from, int to_folder, const char* to,
           int flags);

int chmodAt(int folder, const char* path, mode_t mode, int flags);
int chmodOpen(int file, mode_t mode);
int chownAt(int folder, const char* path, uid_t user, gid_t group,
            Follow follow);
int setTimesAt(int folder, const char* path, const struct timespec* times,
               Follow follow);
int setTimesAt(int folder, const char* path, const struct timeval* times,
               Follow follow);

// Zeros past the end of a file of ours become a hole: a simulated device's
// tensors hold nothing else, and a checkpoint of 80 GB must fill no disk. True:
// done, as if they had been written.
bool leavesHole(int file, const void* data, std::size_t bytes);

} // namespace chameleon::overlay
