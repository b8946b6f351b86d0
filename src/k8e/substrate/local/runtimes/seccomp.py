"""The system calls a `container` sandbox may make: an allow list; what is not named fails with EPERM.

Left out on purpose: everything that mounts, loads code into the kernel, reads other processes' memory, changes
clocks or accounting, opens files by handle, and the keyring, bpf, perf, userfaultfd and io_uring interfaces,
which have carried most container escapes of recent years.
"""

from __future__ import annotations

from typing import Any

__all__ = ["profile"]

_ALLOWED = """
_llseek _newselect accept accept4 access alarm arch_prctl bind brk cachestat capget capset chdir chmod chown chown32
chroot clock_getres clock_getres_time64 clock_gettime clock_gettime64 clock_nanosleep clock_nanosleep_time64 close
close_range connect copy_file_range creat dup dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_ctl_old
epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2 execve execveat exit exit_group faccessat
faccessat2 fadvise64 fadvise64_64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchown32 fchownat fcntl fcntl64
fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstat64 fstatat64 fstatfs fstatfs64 fsync
ftruncate ftruncate64 futex futex_requeue futex_time64 futex_wait futex_waitv futex_wake futimesat get_mempolicy
get_robust_list get_thread_area getcpu getcwd getdents getdents64 getegid getegid32 geteuid geteuid32 getgid
getgid32 getgroups getgroups32 getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid
getresgid32 getresuid getresuid32 getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday getuid
getuid32 getxattr inotify_add_watch inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents
io_pgetevents io_pgetevents_time64 io_setup io_submit ioctl ioprio_get ioprio_set ipc kill landlock_add_rule
landlock_create_ruleset landlock_restrict_self lchown lchown32 lgetxattr link linkat listen listxattr llistxattr
lremovexattr lseek lsetxattr lstat lstat64 madvise map_shadow_stack mbind membarrier memfd_create memfd_secret
mincore mkdir mkdirat mknod mknodat mlock mlock2 mlockall mmap mmap2 modify_ldt mprotect mq_getsetattr mq_notify
mq_open mq_timedreceive mq_timedreceive_time64 mq_timedsend mq_timedsend_time64 mq_unlink mremap mseal msgctl msgget
msgrcv msgsnd msync munlock munlockall munmap name_to_handle_at nanosleep newfstatat open openat openat2 pause
pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll ppoll_time64 prctl pread64
preadv preadv2 prlimit64 process_madvise process_mrelease pselect6 pselect6_time64 ptrace pwrite64 pwritev pwritev2
read readahead readlink readlinkat readv recv recvfrom recvmmsg recvmmsg_time64 recvmsg remap_file_pages removexattr
rename renameat renameat2 restart_syscall riscv_flush_icache rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask
rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_sigtimedwait_time64 rt_tgsigqueueinfo
sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler
sched_rr_get_interval sched_rr_get_interval_time64 sched_setaffinity sched_setattr sched_setparam sched_setscheduler
sched_yield seccomp select semctl semget semop semtimedop semtimedop_time64 send sendfile sendfile64 sendmmsg
sendmsg sendto set_mempolicy set_mempolicy_home_node set_robust_list set_thread_area set_tid_address setfsgid
setfsgid32 setfsuid setfsuid32 setgid setgid32 setgroups setgroups32 setitimer setpgid setpriority setregid
setregid32 setresgid setresgid32 setresuid setresuid32 setreuid setreuid32 setrlimit setsid setsockopt setuid
setuid32 setxattr shmat shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4 sigprocmask sigreturn socketcall
socketpair splice stat stat64 statfs statfs64 statx symlink symlinkat sync sync_file_range syncfs sysinfo tee tgkill
time timer_create timer_delete timer_getoverrun timer_gettime timer_gettime64 timer_settime timer_settime64
timerfd_create timerfd_gettime timerfd_gettime64 timerfd_settime timerfd_settime64 times tkill truncate truncate64
ugetrlimit umask uname unlink unlinkat utime utimensat utimensat_time64 utimes vfork vmsplice wait4 waitid waitpid
write writev
""".split()  # noqa: SIM905  # three hundred lines say no more

_EPERM = 1
_ENOSYS = 38
_CLONE_NAMESPACES = 0x7E020000
_AF_VSOCK = 40
_AF_ALG = 38
_PERSONALITIES = (0x0, 0x0008, 0x20000, 0x20008, 0xFFFFFFFF)
_ARCHITECTURES = ["SCMP_ARCH_X86_64"]
_ARCHITECTURES_ARM = ["SCMP_ARCH_AARCH64"]


def _allow(name: str, index: int, value: int, op: str, value_two: int = 0) -> dict[str, Any]:
    argument = {"index": index, "value": value, "valueTwo": value_two, "op": op}
    return {"names": [name], "action": "SCMP_ACT_ALLOW", "args": [argument]}


def _sockets() -> list[dict[str, Any]]:
    """Families below and between vsock (reaches the hypervisor) and alg (a rich kernel parser)."""
    ordinary = _allow("socket", 0, _AF_ALG, "SCMP_CMP_LT")
    netlink_like = {
        "names": ["socket"],
        "action": "SCMP_ACT_ALLOW",
        "args": [{"index": 0, "value": 39, "op": "SCMP_CMP_EQ"}],
    }
    above = _allow("socket", 0, _AF_VSOCK, "SCMP_CMP_GT")
    return [ordinary, netlink_like, above]


def profile(machine: str) -> dict[str, Any]:
    """The OCI `linux.seccomp` object for this machine's architecture."""
    rules: list[dict[str, Any]] = [
        {"names": _ALLOWED, "action": "SCMP_ACT_ALLOW"},
        _allow("clone", 0, _CLONE_NAMESPACES, "SCMP_CMP_MASKED_EQ", 0),
        # clone3 hides its flags behind a pointer; ENOSYS makes libc fall back to clone, which can be judged.
        {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS},
        *(_allow("personality", 0, value, "SCMP_CMP_EQ") for value in _PERSONALITIES),
        *_sockets(),
    ]
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": _EPERM,
        "architectures": _ARCHITECTURES_ARM if machine == "aarch64" else _ARCHITECTURES,
        "syscalls": rules,
    }
