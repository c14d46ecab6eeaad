#include "python/overlay/overlay.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <dirent.h>
#include <linux/fs.h>
#include <string_view>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <vector>

#include "python/overlay/system.h"

namespace chameleon::overlay {

namespace {

constexpr int kMostLinks = 40; // in one path, as in Linux
constexpr mode_t kComplete = S_ISVTX;
constexpr mode_t kUntouchedFolder = S_ISVTX | S_ISGID;
constexpr mode_t kMarks = S_ISVTX | S_ISGID;
constexpr mode_t kOwnerAll = 0700;
constexpr mode_t kUntouchedFile = S_ISVTX | 0600;

int failed(int error) {
  errno = error;
  return -1;
}

bool isUnder(std::string_view path, std::string_view folder) {
  return path.starts_with(folder) &&
         (path.size() == folder.size() || path[folder.size()] == '/');
}

std::string parentOf(const std::string& path) {
  return path.substr(0, path.rfind('/'));
}

// The parts of a path still to go, the next one last.
class Route {
 public:
  explicit Route(std::string_view path) { add(path); }

  void add(std::string_view path) {
    std::vector<std::string> parts;
    for (std::size_t begin = 0; begin < path.size();) {
      const std::size_t end = std::min(path.find('/', begin), path.size());
      if (end > begin) parts.emplace_back(path.substr(begin, end - begin));
      begin = end + 1;
    }
    left_.insert(left_.end(), parts.rbegin(), parts.rend());
  }
  bool isAtEnd() const { return left_.empty(); }
  std::string next() {
    std::string part = std::move(left_.back());
    left_.pop_back();
    return part;
  }
  // What is left, with a slash before each part; "." is none.
  std::string rest() const {
    std::string all;
    for (auto part = left_.rbegin(); part != left_.rend(); ++part) {
      if (*part != ".") all += '/' + *part;
    }
    return all;
  }

 private:
  std::vector<std::string> left_;
};

std::string textOf(const std::string& path) {
  std::string text;
  const int file = sys::openat(AT_FDCWD, path, O_RDONLY);
  if (file < 0) return text;
  char bytes[PATH_MAX];
  for (long got = 0; (got = ::read(file, bytes, sizeof bytes)) > 0;) {
    text.append(bytes, static_cast<std::size_t>(got));
  }
  sys::close(file);
  return text;
}

int writeText(const std::string& path, const std::string& text, mode_t mode) {
  const int file =
      sys::openat(AT_FDCWD, path, O_WRONLY | O_CREAT | O_EXCL, 0600);
  if (file < 0) return -1;
  const bool whole = syscall(SYS_write, file, text.data(), text.size()) ==
                     static_cast<long>(text.size());
  sys::close(file);
  return whole ? sys::chmod(path, mode) : -1;
}

std::vector<std::string> namesIn(const std::string& folder) {
  std::vector<std::string> names;
  const int file = sys::openat(AT_FDCWD, folder, O_RDONLY | O_DIRECTORY);
  if (file < 0) return names;
  alignas(dirent64) char entries[16 << 10];
  for (long got = 0;
       (got = syscall(SYS_getdents64, file, entries, sizeof entries)) > 0;) {
    for (long at = 0; at < got;) {
      const auto* const entry = reinterpret_cast<const dirent64*>(entries + at);
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
      at += entry->d_reclen;
    }
  }
  sys::close(file);
  return names;
}

// Not getenv(): shells have one of their own, which this library would call
// before they are ready.
const char* inEnvironment(std::string_view name) {
  for (char* const* entry = environ; entry != nullptr && *entry != nullptr;
       ++entry) {
    const std::string_view text = *entry;
    if (text.starts_with(name) && text.substr(name.size()).starts_with('=')) {
      return *entry + name.size() + 1;
    }
  }
  return nullptr;
}

int copyBytes(const std::string& from, int to) {
  const int source = sys::openat(AT_FDCWD, from, O_RDONLY);
  if (source < 0) return -1;
  long got = ::ioctl(to, FICLONE, source);
  if (got != 0) {
    while ((got = ::sendfile(to, source, nullptr, 1 << 30)) > 0) {
    }
  }
  const int error = errno;
  sys::close(source);
  return got == 0 ? 0 : failed(error);
}

} // namespace

// The environment is asked before the program begins, which may clear it.
[[gnu::constructor]] static void begin() { Overlay::instance(); }

// One writer at a time, of all processes. Reading needs none: each change shows
// at once, by a rename or a chmod.
class Overlay::Lock {
 public:
  explicit Lock(const Overlay& overlay)
      : file_(sys::openat(AT_FDCWD, overlay.root_ + "/lock", O_RDWR | O_CREAT,
                          0600)) {
    while (::flock(file_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  // A process that was forked meanwhile has the same open file, so that to
  // close it is not enough.
  ~Lock() {
    ::flock(file_, LOCK_UN);
    sys::close(file_);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  const int file_;
};

// A folder on the way down a path.
struct Overlay::Folder {
  std::string logical; // "" for the root
  std::string real;    // "" for the root
  bool upper = true;   // a folder of the upper tree stands for it
  bool complete = false;
};

const Overlay* Overlay::instance() {
  static const Overlay* const overlay = [] {
    const char* const root = inEnvironment("TORCH_CHAMELEON_OVERLAY");
    return root == nullptr ? nullptr : new Overlay(root);
  }();
  return overlay;
}

Overlay::Overlay(std::string root)
    : root_(std::move(root)), upper_(root_ + "/upper") {}

bool Overlay::isOutside(const std::string& logical) const {
  // Files, as in any folder: some keep data sets and checkpoints there.
  if (isUnder(logical, "/dev/shm")) return false;
  return isUnder(logical, "/dev") || isUnder(logical, "/proc") ||
         isUnder(logical, "/sys") || isUnder(logical, root_);
}

bool Overlay::isOurs(const std::string& real) const {
  return isUnder(real, upper_);
}

std::string Overlay::logical(const std::string& real) const {
  if (!isOurs(real)) return real;
  return real.size() == upper_.size() ? "/" : real.substr(upper_.size());
}

std::string Overlay::scratchName() const {
  static std::atomic<unsigned> count{0};
  return workFolder() + "/" + std::to_string(::gettid()) + "." +
         std::to_string(count++);
}

// Where `name` is to be looked for in a folder, and what is there.
void Overlay::lookUp(const Folder& folder, const std::string& name,
                     Place& out) const {
  out = Place();
  out.logical = out.real = folder.logical + '/' + name;
  out.folder = folder.real.empty() ? "/" : folder.real;
  if (folder.upper) {
    const std::string upper = upperPath(out);
    const mode_t mode = sys::modeOf(upper);
    const mode_t marks = mode & kMarks;
    if (S_ISREG(mode) && (mode & S_ISVTX) != 0) {
      out.real = textOf(upper);
    } else if (mode != 0 && !(S_ISDIR(mode) && marks != kComplete)) {
      out.real = upper;
      out.mode = mode;
      out.upper = true;
      return;
    } else if (mode == 0 && folder.complete) {
      out.real = upper;
      out.error = ENOENT;
      return;
    }
  }
  out.mode = sys::modeOf(out.real);
  if (out.mode == 0) out.error = errno;
}

Place Overlay::find(const std::string& absolute, Follow follow) const {
  Route route(absolute);
  if (absolute.ends_with('/')) follow = Follow::kYes;
  Place top;
  top.logical = top.real = top.folder = "/";
  top.mode = S_IFDIR;
  Folder root;
  if ((sys::modeOf(upper_) & kComplete) != 0) {
    top.real = upper_;
    top.upper = root.complete = true;
  }
  Place place = top;
  Folder at = root;
  for (int links = 0; !route.isAtEnd();) {
    const std::string part = route.next();
    if (part == ".") continue;
    if (part == "..") {
      const std::string above = parentOf(at.logical);
      route.add(above);
      at = root;
      place = top;
      continue;
    }
    lookUp(at, part, place);
    if (isOutside(place.logical)) {
      const std::string whole = place.logical + route.rest();
      if (isOutside(whole)) {
        place.outside = true;
        place.logical = place.real = whole;
        return place;
      }
    }
    if (S_ISLNK(place.mode) && (follow == Follow::kYes || !route.isAtEnd())) {
      if (++links > kMostLinks) {
        place.mode = 0;
        place.error = ELOOP;
        place.real += route.rest();
        place.folder.clear();
        return place;
      }
      const std::string target = sys::linkTarget(place.real);
      route.add(target);
      if (target.starts_with('/')) {
        at = root;
        place = top;
      }
      continue;
    }
    if (route.isAtEnd()) break;
    if (!S_ISDIR(place.mode)) {
      if (place.mode != 0) place.error = ENOTDIR;
      place.mode = 0;
      place.real += route.rest();
      place.folder.clear();
      return place;
    }
    const mode_t upper = at.upper ? sys::modeOf(upperPath(place)) : 0;
    at = Folder{.logical = place.logical,
                .real = place.real,
                .upper = upper != 0 && (upper & kMarks) != kUntouchedFolder,
                .complete = (upper & kMarks) == kComplete};
  }
  return place;
}

Place Overlay::find(int folder, const char* path, Follow follow) const {
  // A script that was written here is told the place where it lies.
  if (path[0] == '/') return find(logical(path), follow);
  const std::string base =
      folder == AT_FDCWD
          ? sys::currentFolder()
          : sys::linkTarget("/proc/self/fd/" + std::to_string(folder));
  // A folder's fd that is none fails with the true error, as the path is.
  if (!base.starts_with('/')) {
    Place none;
    none.real = path;
    none.error = EBADF;
    none.outside = true;
    return none;
  }
  return find(logical(base) + '/' + path, follow);
}

// The folders down to `logical` are there in the upper tree.
int Overlay::connect(const std::string& logical) const {
  if (logical.empty()) return 0;
  const std::string upper = upper_ + logical;
  const mode_t mode = sys::modeOf(upper);
  if (mode != 0) {
    return (mode & kMarks) == kUntouchedFolder ? sys::chmod(upper, kOwnerAll)
                                               : 0;
  }
  if (connect(parentOf(logical)) != 0) return -1;
  return sys::mkdir(upper, kOwnerAll);
}

// `upper` stands for the lower file, link or folder.
int Overlay::standIn(const std::string& lower, const std::string& upper) const {
  const mode_t mode = sys::modeOf(lower);
  if (S_ISLNK(mode)) return sys::symlink(sys::linkTarget(lower), upper);
  if (!S_ISDIR(mode)) return writeText(upper, lower, kUntouchedFile);
  if (sys::mkdir(upper, kOwnerAll) != 0) return -1;
  return sys::chmod(upper, kUntouchedFolder | kOwnerAll);
}

int Overlay::complete(const std::string& logical) const {
  const std::string upper = upper_ + logical;
  const mode_t before = sys::modeOf(upper);
  if ((before & kMarks) == kComplete) return 0;
  if (connect(logical) != 0) return -1;
  const std::string lower = logical.empty() ? "/" : logical;
  // Nobody can list it, so only its new names have to be there.
  if (!sys::mayRead(lower)) return errno == EACCES ? 0 : -1;
  for (const std::string& name : namesIn(lower)) {
    const std::string stand_in = upper + '/' + name;
    if (isOutside(logical + '/' + name)) {
      // Named here for readdir() alone.
      if (sys::modeOf(stand_in) == 0 && sys::mkdir(stand_in, kOwnerAll) != 0) {
        return -1;
      }
      continue;
    }
    if (sys::modeOf(stand_in) != 0) continue;
    if (standIn(logical + '/' + name, stand_in) != 0) return -1;
  }
  const mode_t rights = sys::modeOf(lower) & 0777;
  return sys::chmod(upper, rights | kOwnerAll | kComplete);
}

// The same for all folders below, so that the tree can be moved.
int Overlay::completeAll(const std::string& logical) const {
  if (complete(logical) != 0) return -1;
  for (const std::string& name : namesIn(upper_ + logical)) {
    const std::string below = logical + '/' + name;
    if (S_ISDIR(sys::modeOf(upper_ + below)) && completeAll(below) != 0) {
      return -1;
    }
  }
  return 0;
}

int Overlay::copyUp(Place& place, bool bytes_too) const {
  if (place.upper || place.outside) return 0;
  if (!S_ISDIR(place.mode) && !S_ISREG(place.mode) && !S_ISLNK(place.mode)) {
    return failed(EPERM); // a device, a socket or a pipe
  }
  const Lock lock(*this);
  const std::string upper = upperPath(place);
  if (S_ISDIR(place.mode)) {
    const std::string folder = place.logical == "/" ? "" : place.logical;
    if (complete(folder) != 0) return -1;
  } else if (const mode_t mode = sys::modeOf(upper);
             mode == 0 || (S_ISREG(mode) && (mode & S_ISVTX) != 0)) {
    if (connect(parentOf(place.logical)) != 0) return -1;
    if (S_ISLNK(place.mode)) {
      if (sys::symlink(sys::linkTarget(place.real), upper) != 0) return -1;
    } else {
      const std::string copy = scratchName();
      const int file =
          sys::openat(AT_FDCWD, copy, O_WRONLY | O_CREAT | O_EXCL, 0600);
      if (file < 0) return -1;
      const int status = bytes_too ? copyBytes(place.real, file) : 0;
      const int error = errno;
      sys::close(file);
      struct stat was = {};
      if (sys::stat(AT_FDCWD, place.real.c_str(), &was, 0) == 0) {
        const struct timespec times[] = {was.st_atim, was.st_mtim};
        sys::chmod(copy, was.st_mode & 0777);
        sys::setTimes(copy, times);
      }
      if (status != 0) {
        sys::unlink(copy, 0);
        return failed(error);
      }
      if (sys::rename(copy, upper) != 0) return -1;
    }
  }
  place.real = upper;
  place.upper = true;
  return 0;
}

int Overlay::prepareName(const Place& place) const {
  if (place.folder.empty()) return failed(place.error);
  if (!sys::mayWrite(place.folder)) return -1;
  const Lock lock(*this);
  return complete(parentOf(place.logical));
}

int Overlay::makeFolder(const Place& place, mode_t mode) const {
  if (place.mode != 0) return failed(EEXIST);
  if (prepareName(place) != 0) return -1;
  return sys::mkdir(upperPath(place), (mode & 0777) | kComplete);
}

bool Overlay::isEmpty(const Place& place) const {
  return namesIn(place.real).empty();
}

int Overlay::remove(const Place& place, bool folder) const {
  if (place.mode == 0) return failed(place.error);
  if (S_ISDIR(place.mode) != folder) return failed(folder ? ENOTDIR : EISDIR);
  if (folder && !isEmpty(place)) return failed(ENOTEMPTY);
  if (prepareName(place) != 0) return -1;
  return sys::unlink(upperPath(place), folder ? AT_REMOVEDIR : 0);
}

int Overlay::rename(const Place& from, const Place& to, unsigned flags) const {
  if ((flags & ~RENAME_NOREPLACE) != 0) return failed(EINVAL);
  for (const Place& place : {from, to}) {
    if (place.folder.empty()) return failed(place.error);
  }
  if (from.mode == 0) return failed(from.error);
  if (to.mode != 0) {
    if (flags != 0) return failed(EEXIST);
    if (from.logical == to.logical) return 0;
    if (S_ISDIR(to.mode) && !S_ISDIR(from.mode)) return failed(EISDIR);
    if (!S_ISDIR(to.mode) && S_ISDIR(from.mode)) return failed(ENOTDIR);
    if (S_ISDIR(to.mode) && !isEmpty(to)) return failed(ENOTEMPTY);
  }
  if (prepareName(from) != 0 || prepareName(to) != 0) return -1;
  const Lock lock(*this);
  if (S_ISDIR(from.mode) && completeAll(from.logical) != 0) return -1;
  return sys::rename(upperPath(from), upperPath(to));
}

int Overlay::link(Place& from, const Place& to) const {
  if (from.mode == 0) return failed(from.error);
  if (to.folder.empty()) return failed(to.error);
  if (to.mode != 0) return failed(EEXIST);
  if (S_ISDIR(from.mode)) return failed(EPERM);
  if (copyUp(from) != 0 || prepareName(to) != 0) return -1;
  return sys::link(from.real, upperPath(to));
}

} // namespace chameleon::overlay
