#include "python/overlay/operations.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <random>
#include <stdio.h>
#include <string_view>

#include "python/overlay/system.h"

namespace chameleon::overlay {

namespace {

int failed(int error) {
  errno = error;
  return -1;
}

bool changes(int flags) {
  return (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC)) != 0;
}

// Where a new name is to be made, for `make`.
template <typename Make>
int makeAt(int folder, const char* path, Make&& make) {
  const Overlay* const overlay = Overlay::instance();
  if (overlay == nullptr) return make(std::string(path));
  const Place place = overlay->find(folder, path, Follow::kNo);
  if (place.outside) return make(place.real);
  if (place.mode != 0) return failed(EEXIST);
  if (overlay->prepareName(place) != 0) return -1;
  return make(overlay->upperPath(place));
}

// Fills in the six X before `suffix_bytes` until `make` finds the name free.
template <typename Make>
int makeTemporary(char* pattern, int suffix_bytes, Make&& make) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789";
  constexpr int kTries = 100;
  char* const begin = pattern + std::strlen(pattern) - 6 -
                      static_cast<std::size_t>(suffix_bytes);
  if (begin < pattern || std::string_view(begin, 6) != "XXXXXX") {
    return failed(EINVAL);
  }
  std::random_device random;
  for (int n = 0; n < kTries; ++n) {
    for (int at = 0; at < 6; ++at)
      begin[at] = kLetters[random() % kLetters.size()];
    const int made = make(pattern);
    if (made >= 0 || errno != EEXIST) return made;
  }
  return failed(EEXIST);
}

} // namespace

Kept::Kept(char* const environment[]) : environment_(environment) {
  const Overlay* const overlay = Overlay::instance();
  if (overlay == nullptr) return;
  const std::string library = overlay->root() + "/libchameleon_overlay.so";
  root_ = "TORCH_CHAMELEON_OVERLAY=" + overlay->root();
  preload_ = "LD_PRELOAD=" + library;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    if (entry.starts_with("TORCH_CHAMELEON_OVERLAY=")) continue;
    if (!entry.starts_with("LD_PRELOAD=")) {
      entries_.push_back(*environment);
    } else if (entry.find(library) != std::string_view::npos) {
      preload_ = entry;
    } else {
      preload_ += ' ';
      preload_ += entry.substr(entry.find('=') + 1);
    }
  }
  entries_.insert(entries_.end(), {root_.data(), preload_.data(), nullptr});
  environment_ = entries_.data();
}

std::string pathOf(int file) {
  return sys::linkTarget("/proc/self/fd/" + std::to_string(file));
}

const char* pathToRun(const char* path, std::string& place) {
  const Overlay* const overlay = Overlay::instance();
  if (overlay == nullptr || path == nullptr || *path == '\0') return path;
  place = overlay->find(AT_FDCWD, path, Follow::kYes).real;
  struct stat given = {};
  struct stat meant = {};
  const bool is_same =
      sys::stat(AT_FDCWD, place.c_str(), &meant, 0) != 0 ||
      (sys::stat(AT_FDCWD, path, &given, 0) == 0 &&
       given.st_ino == meant.st_ino && given.st_dev == meant.st_dev);
  return is_same ? path : place.c_str();
}

bool isLower(int file) {
  const Overlay* const overlay = Overlay::instance();
  if (overlay == nullptr) return false;
  const std::string path = pathOf(file);
  if (!path.starts_with('/') || overlay->isOurs(path)) return false;
  return !overlay->find(path, Follow::kNo).outside;
}

int openAt(int folder, const char* path, int flags, mode_t mode) {
  const auto kernel = [&](int at, const char* real, int with) {
    return static_cast<int>(syscall(SYS_openat, at, real, with, mode));
  };
  const Overlay* const overlay = Overlay::instance();
  if (overlay == nullptr || path == nullptr || *path == '\0') {
    return kernel(folder, path, flags);
  }
  const bool exclusive = (flags & O_CREAT) != 0 && (flags & O_EXCL) != 0;
  Place place = overlay->find(
      folder, path, followUnless(exclusive || (flags & O_NOFOLLOW) != 0));
  if (place.outside || (flags & O_PATH) != 0) {
    return kernel(AT_FDCWD, place.real.c_str(), flags);
  }
  if ((flags & O_TMPFILE) == O_TMPFILE) {
    if (place.mode != 0 && !sys::mayWrite(place.real)) return -1;
    return place.mode == 0
               ? failed(place.error)
               : kernel(AT_FDCWD, overlay->workFolder().c_str(), flags);
  }
  if (!changes(flags)) return kernel(AT_FDCWD, place.real.c_str(), flags);
  if (place.mode == 0) {
    if ((flags & O_CREAT) == 0) return failed(place.error);
    if (place.error != 0 && place.error != ENOENT) return failed(place.error);
    if (overlay->prepareName(place) != 0) return -1;
    mode = rightsOf(S_IFREG, mode);
    return kernel(AT_FDCWD, overlay->upperPath(place).c_str(), flags);
  }
  if (exclusive) return failed(EEXIST);
  const bool writes = (flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC) != 0;
  if (S_ISREG(place.mode) && writes) {
    if (!sys::mayWrite(place.real)) return -1;
    if (overlay->copyUp(place, (flags & O_TRUNC) == 0) != 0) return -1;
  }
  return kernel(AT_FDCWD, place.real.c_str(), flags);
}

int openWith(int folder, const char* path, int flags, std::va_list rest) {
  const bool takes_mode =
      (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
  return openAt(folder, path, flags, takes_mode ? va_arg(rest, mode_t) : 0);
}

std::string placeToOpen(const char* path, int flags, mode_t mode) {
  const Overlay* const overlay = Overlay::instance();
  if (overlay == nullptr || path == nullptr) return path;
  const Place place = overlay->find(AT_FDCWD, path, Follow::kYes);
  // What is no file is opened once: who reads a pipe waits for its writer.
  const bool is_file = place.mode == 0 || S_ISREG(place.mode);
  if (place.outside || !is_file || !changes(flags)) return place.real;
  const int file = openAt(AT_FDCWD, path, flags | O_CLOEXEC, mode);
  if (file < 0) return {};
  const std::string real = pathOf(file);
  sys::close(file);
  return real;
}

int statAt(int folder, const char* path, struct stat* out, int flags) {
  const Seen seen(folder, path, followUnless(flags & AT_SYMLINK_NOFOLLOW));
  const int status = sys::stat(seen.folder(), seen.path(), out, flags);
  if (status == 0) out->st_mode = seen.mode(out->st_mode);
  return status;
}

int accessAt(int folder, const char* path, int mode, int flags) {
  const Seen seen(folder, path, followUnless(flags & AT_SYMLINK_NOFOLLOW));
  if (flags == 0) {
    return static_cast<int>(
        syscall(SYS_faccessat, seen.folder(), seen.path(), mode));
  }
  return NEXT(faccessat)(seen.folder(), seen.path(), mode, flags);
}

long readlinkAt(int folder, const char* path, char* out, std::size_t bytes) {
  const Seen seen(folder, path, Follow::kNo);
  const long got =
      syscall(SYS_readlinkat, seen.folder(), seen.path(), out, bytes);
  const Overlay* const overlay = Overlay::instance();
  if (overlay == nullptr || got <= 0) return got;
  // What /proc says of our files is the upper tree's.
  const std::string target =
      overlay->logical(std::string(out, static_cast<std::size_t>(got)));
  std::memcpy(out, target.data(), target.size());
  return static_cast<long>(target.size());
}

int makeFolderAt(int folder, const char* path, mode_t mode) {
  const Overlay* const overlay = Overlay::instance();
  if (overlay == nullptr) {
    return static_cast<int>(syscall(SYS_mkdirat, folder, path, mode));
  }
  const Place place = overlay->find(folder, path, Follow::kNo);
  return place.outside ? sys::mkdir(place.real, mode)
                       : overlay->makeFolder(place, mode);
}

int removeAt(int folder, const char* path, int flags) {
  const Overlay* const overlay = Overlay::instance();
  if (overlay == nullptr) {
    return static_cast<int>(syscall(SYS_unlinkat, folder, path, flags));
  }
  const Place place = overlay->find(folder, path, Follow::kNo);
  return place.outside ? sys::unlink(place.real, flags)
                       : overlay->remove(place, (flags & AT_REMOVEDIR) != 0);
}

int renameAt(int from_folder, const char* from, int to_folder, const char* to,
             unsigned flags) {
  const Overlay* const overlay = Overlay::instance();
  if (overlay == nullptr) {
    return static_cast<int>(
        syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
  }
  const Place source = overlay->find(from_folder, from, Follow::kNo);
  const Place target = overlay->find(to_folder, to, Follow::kNo);
  if (source.outside && target.outside) {
    return sys::rename(source.real, target.real);
  }
  // As between two file systems: whoever moves files copies then.
  if (source.outside || target.outside) return failed(EXDEV);
  return overlay->rename(source, target, flags);
}

int linkAt(int from_folder, const char* from, int to_folder, const char* to,
           int flags) {
  const Overlay* const overlay = Overlay::instance();
  if (overlay == nullptr) {
    return static_cast<int>(
        syscall(SYS_linkat, from_folder, from, to_folder, to, flags));
  }
  Place source = overlay->find(from_folder, from,
                               followUnless((flags & AT_SYMLINK_FOLLOW) == 0));
  const Place target = overlay->find(to_folder, to, Follow::kNo);
  if (source.outside && target.outside) {
    return sys::link(source.real, target.real);
  }
  if (source.outside || target.outside) return failed(EXDEV);
  return overlay->link(source, target);
}

int makeNodeAt(int folder, const char* path, mode_t mode, dev_t device) {
  mode = rightsOf(S_IFREG, mode);
  return makeAt(folder, path, [&](const std::string& real) {
    return sys::mknod(real, mode, device);
  });
}

int chmodAt(int folder, const char* path, mode_t mode, int flags) {
  const Changed changed(folder, path,
                        followUnless(flags & AT_SYMLINK_NOFOLLOW));
  return changed ? sys::chmod(changed.path(), changed.mode(mode)) : -1;
}

int chmodOpen(int file, mode_t mode) {
  const Overlay* const overlay = Overlay::instance();
  if (isLower(file)) {
    return chmodAt(AT_FDCWD, pathOf(file).c_str(), mode, 0);
  }
  struct stat found = {};
  if (overlay != nullptr && overlay->isOurs(pathOf(file)) &&
      ::fstat(file, &found) == 0) {
    mode = rightsOf(found.st_mode, mode);
  }
  return static_cast<int>(syscall(SYS_fchmod, file, mode));
}

int chownAt(int folder, const char* path, uid_t user, gid_t group,
            Follow follow) {
  const Changed changed(folder, path, follow);
  return changed ? sys::chown(changed.path(), user, group) : -1;
}

int setTimesAt(int folder, const char* path, const struct timespec* times,
               Follow follow) {
  const Changed changed(folder, path, follow);
  return changed ? sys::setTimes(changed.path(), times) : -1;
}

int setTimesAt(int folder, const char* path, const struct timeval* times,
               Follow follow) {
  if (times == nullptr) {
    return setTimesAt(folder, path, static_cast<const timespec*>(nullptr),
                      follow);
  }
  const struct timespec exact[] = {{times[0].tv_sec, times[0].tv_usec * 1000},
                                   {times[1].tv_sec, times[1].tv_usec * 1000}};
  return setTimesAt(folder, path, exact, follow);
}

int makeLinkAt(const char* target, int folder, const char* path) {
  return makeAt(folder, path, [&](const std::string& real) {
    return sys::symlink(target, real);
  });
}

int makeTemporaryFile(char* pattern, int suffix_bytes, int flags) {
  return makeTemporary(pattern, suffix_bytes, [&](const char* path) {
    return openAt(AT_FDCWD, path, O_RDWR | O_CREAT | O_EXCL | flags, 0600);
  });
}

int makeTemporaryFolder(char* pattern) {
  return makeTemporary(pattern, 0, [](const char* path) {
    return makeFolderAt(AT_FDCWD, path, 0700);
  });
}

char* resolve(const char* path, char* out) {
  const Overlay* const overlay = Overlay::instance();
  if (overlay == nullptr || path == nullptr || *path == '\0') {
    return NEXT(realpath)(path, out);
  }
  const Place place = overlay->find(AT_FDCWD, path, Follow::kYes);
  if (place.outside) return NEXT(realpath)(place.real.c_str(), out);
  if (place.mode == 0) {
    errno = place.error;
    return nullptr;
  }
  return out == nullptr ? ::strdup(place.logical.c_str())
                        : std::strcpy(out, place.logical.c_str());
}

bool leavesHole(int file, const void* data, std::size_t bytes) {
  constexpr std::size_t kLeast = 64 << 10;
  const auto* const text = static_cast<const char*>(data);
  if (bytes < kLeast || Overlay::instance() == nullptr || text[0] != 0 ||
      std::memcmp(text, text + 1, bytes - 1) != 0) {
    return false;
  }
  struct stat found = {};
  const long flags = syscall(SYS_fcntl, file, F_GETFL);
  if (flags < 0 || (flags & O_APPEND) != 0 || ::fstat(file, &found) != 0 ||
      !S_ISREG(found.st_mode) || !Overlay::instance()->isOurs(pathOf(file))) {
    return false;
  }
  const off_t at = ::lseek(file, 0, SEEK_CUR);
  const off_t end = at + static_cast<off_t>(bytes);
  return at >= found.st_size && ::ftruncate(file, end) == 0 &&
         ::lseek(file, end, SEEK_SET) == end;
}

} // namespace chameleon::overlay
