// An LD_PRELOAD layer between a program and its files.
//
// It numbers every operation that changes something below a folder, from 1 on, in all threads of a
// process. `inject(root, at, how, trace)` begins to count, and makes operation `at` go wrong:
//
//   ENOSPC EIO EACCES   it fails with that error, as do, for ENOSPC, all writes after it: a disk
//                       stays full
//   SHORT               if it is a write, it writes half of what it should
//   KILL                the process is killed before it
//
// With at = 0 nothing goes wrong. `trace`, a file, gets a line for each operation, fields by tabs:
// open PATH | write PATH OFFSET BYTES-IN-HEX | truncate PATH SIZE | fsync PATH | rename FROM TO |
// unlink PATH | mkdir PATH | rmdir PATH. Nothing is really flushed to the disk.

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

namespace {

struct Settings {
    std::string root;
    long at = 0;
    std::string how;
    int trace = -1;
    long count = 0;
};

Settings& settings() {
    static Settings* made = new Settings;
    return *made;
}

template <typename F>
F real(const char* name) {
    return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

std::string absolute(int folder, const char* path) {
    if (path[0] == '/') return path;
    char base[PATH_MAX];
    if (folder == AT_FDCWD) {
        if (!getcwd(base, sizeof base)) return path;
        return std::string(base) + "/" + path;
    }
    std::string link = "/proc/self/fd/" + std::to_string(folder);
    ssize_t length = readlink(link.c_str(), base, sizeof base);
    return length < 0 ? path : std::string(base, length) + "/" + path;
}

std::string of(int file) {
    char name[PATH_MAX];
    std::string link = "/proc/self/fd/" + std::to_string(file);
    ssize_t length = readlink(link.c_str(), name, sizeof name);
    return length < 0 ? "" : std::string(name, length);
}

bool watched(const std::string& path) {
    const std::string& root = settings().root;
    return !root.empty() && path.compare(0, root.size(), root) == 0;
}

enum What { GO_ON, FAIL, SHORT };

// Called before each operation: counts it, and says whether it is to go wrong.
What next(bool writes) {
    Settings& s = settings();
    long number = __atomic_add_fetch(&s.count, 1, __ATOMIC_SEQ_CST);
    if (!s.at || number < s.at) return GO_ON;
    if (number > s.at && !(s.how == "ENOSPC" && writes)) return GO_ON;
    if (s.how == "KILL") {
        if (number == s.at) raise(SIGKILL);
        return GO_ON;
    }
    if (s.how == "SHORT") return writes ? SHORT : GO_ON;
    errno = s.how == "ENOSPC" ? ENOSPC : s.how == "EACCES" ? EACCES : EIO;
    return FAIL;
}

void tell(const std::string& line) {
    int kept = errno;
    if (settings().trace >= 0) {
        std::string whole = line + "\n";
        real<ssize_t (*)(int, const void*, size_t)>("write")(settings().trace, whole.data(), whole.size());
    }
    errno = kept;
}

std::string hex(const void* data, size_t size) {
    static const char digits[] = "0123456789abcdef";
    auto bytes = static_cast<const unsigned char*>(data);
    std::string text;
    text.reserve(2 * size);
    for (size_t i = 0; i < size; ++i) {
        text += digits[bytes[i] >> 4];
        text += digits[bytes[i] & 15];
    }
    return text;
}

void tell_write(const std::string& path, off_t at, const void* data, ssize_t done) {
    if (done > 0 && settings().trace >= 0)
        tell("write\t" + path + "\t" + std::to_string(at) + "\t" + hex(data, done));
}

template <typename Open>
int opened(const std::string& path, int flags, Open open) {
    bool changes = flags & (O_CREAT | O_TRUNC | O_WRONLY | O_RDWR);
    if (!changes || !watched(path)) return open();
    if (next(true) == FAIL) return -1;
    int kept = errno;
    int found = open();
    if (found >= 0) tell((flags & O_TRUNC ? "truncate\t" : "open\t") + path + (flags & O_TRUNC ? "\t0" : ""));
    if (found >= 0) errno = kept;
    return found;
}

template <typename Write>
ssize_t written(int file, const void* data, size_t size, off_t at, Write write) {
    std::string path = of(file);
    if (!watched(path)) return write(size);
    What what = next(true);
    if (what == FAIL) return -1;
    if (at < 0) {
        at = lseek(file, 0, SEEK_CUR);
        if (fcntl(file, F_GETFL) & O_APPEND) at = lseek(file, 0, SEEK_END);
    }
    ssize_t done = write(what == SHORT && size > 1 ? size / 2 : size);
    tell_write(path, at, data, done);
    return done;
}

template <typename Change>
int changed(const std::string& path, const std::string& line, bool writes, Change change) {
    if (!watched(path)) return change();
    if (next(writes) == FAIL) return -1;
    int done = change();
    if (done == 0) tell(line);
    return done;
}

}  // namespace

extern "C" {

void inject(const char* root, long at, const char* how, const char* trace) {
    Settings& s = settings();
    s.at = at;
    s.how = how;
    s.trace = *trace ? open(trace, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
    s.count = 0;
    s.root = root;
}

long injected() { return settings().count; }

int open(const char* path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
    va_end(more);
    return opened(absolute(AT_FDCWD, path), flags, [&] {
        return real<int (*)(const char*, int, ...)>("open")(path, flags, mode);
    });
}

int open64(const char* path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
    va_end(more);
    return opened(absolute(AT_FDCWD, path), flags, [&] {
        return real<int (*)(const char*, int, ...)>("open64")(path, flags, mode);
    });
}

int openat(int folder, const char* path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
    va_end(more);
    return opened(absolute(folder, path), flags, [&] {
        return real<int (*)(int, const char*, int, ...)>("openat")(folder, path, flags, mode);
    });
}

ssize_t write(int file, const void* data, size_t size) {
    return written(file, data, size, -1, [&](size_t n) {
        return real<ssize_t (*)(int, const void*, size_t)>("write")(file, data, n);
    });
}

ssize_t pwrite64(int file, const void* data, size_t size, off64_t at) {
    return written(file, data, size, at, [&](size_t n) {
        return real<ssize_t (*)(int, const void*, size_t, off64_t)>("pwrite64")(file, data, n, at);
    });
}

ssize_t pwrite(int file, const void* data, size_t size, off_t at) {
    return written(file, data, size, at, [&](size_t n) {
        return real<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite")(file, data, n, at);
    });
}

ssize_t writev(int file, const struct iovec* parts, int count) {
    // As one write of its first part: who gets less than asked for asks again.
    for (int i = 0; i < count; ++i)
        if (parts[i].iov_len) return write(file, parts[i].iov_base, parts[i].iov_len);
    return 0;
}

int ftruncate64(int file, off64_t size) {
    std::string path = of(file);
    return changed(path, "truncate\t" + path + "\t" + std::to_string(size), true, [&] {
        return real<int (*)(int, off64_t)>("ftruncate64")(file, size);
    });
}

int ftruncate(int file, off_t size) { return ftruncate64(file, size); }

int fsync(int file) {
    std::string path = of(file);
    return changed(path, "fsync\t" + path, false, [&] { return 0; });
}

int fdatasync(int file) { return fsync(file); }

int rename(const char* from, const char* to) {
    std::string a = absolute(AT_FDCWD, from), b = absolute(AT_FDCWD, to);
    return changed(b, "rename\t" + a + "\t" + b, true, [&] {
        return real<int (*)(const char*, const char*)>("rename")(from, to);
    });
}

int renameat(int f, const char* from, int t, const char* to) {
    std::string a = absolute(f, from), b = absolute(t, to);
    return changed(b, "rename\t" + a + "\t" + b, true, [&] {
        return real<int (*)(int, const char*, int, const char*)>("renameat")(f, from, t, to);
    });
}

int unlink(const char* path) {
    std::string a = absolute(AT_FDCWD, path);
    return changed(a, "unlink\t" + a, false, [&] { return real<int (*)(const char*)>("unlink")(path); });
}

int unlinkat(int folder, const char* path, int flags) {
    std::string a = absolute(folder, path);
    return changed(a, (flags & AT_REMOVEDIR ? "rmdir\t" : "unlink\t") + a, false, [&] {
        return real<int (*)(int, const char*, int)>("unlinkat")(folder, path, flags);
    });
}

int rmdir(const char* path) {
    std::string a = absolute(AT_FDCWD, path);
    return changed(a, "rmdir\t" + a, false, [&] { return real<int (*)(const char*)>("rmdir")(path); });
}

int mkdir(const char* path, mode_t mode) {
    std::string a = absolute(AT_FDCWD, path);
    return changed(a, "mkdir\t" + a, true, [&] {
        return real<int (*)(const char*, mode_t)>("mkdir")(path, mode);
    });
}

}  // extern "C"
