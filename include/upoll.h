/* upoll: epoll, poll, select, eventfd, pipes and stream socket pairs in user space.
 *
 * Each function is the one of the C library with its name, less "upoll_": it has the same arguments
 * and results, and fails with -1 and the same errno. The fd of a user-level object is an ordinary
 * one, because the kernel has it open, too. A call of the C library on that fd
 * does not see the user-level object. All functions accept fds of the kernel.
 *
 * All functions may be called from any thread. A pointer to memory that is not mapped fails with
 * EFAULT. No function throws, and no exception may pass through one.
 *
 * With UPOLL_REDIRECT defined, the C library's names mean these functions in the code after this
 * header. Include it after all others then.
 */
#ifndef UPOLL_H
#define UPOLL_H

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* The version of this header. UPOLL_VERSION_NUMBER grows from each version to the next:
 * #if UPOLL_VERSION_NUMBER >= 0x000200 is version 0.2.0 or a later one. */
#define UPOLL_VERSION_MAJOR 0
#define UPOLL_VERSION_MINOR 1
#define UPOLL_VERSION_PATCH 0
#define UPOLL_VERSION_NUMBER 0x000100
#define UPOLL_VERSION "0.1.0"

/* Before all declarations, so that structure members with these names are renamed everywhere. */
#ifdef UPOLL_REDIRECT
#define epoll_create upoll_epoll_create
#define epoll_create1 upoll_epoll_create1
#define epoll_ctl upoll_epoll_ctl
#define epoll_wait upoll_epoll_wait
#define epoll_pwait upoll_epoll_pwait
#define epoll_pwait2 upoll_epoll_pwait2
#define epoll_ctl_batch upoll_epoll_ctl_batch
#define epoll_pwait1 upoll_epoll_pwait1
#define eventfd upoll_eventfd
#define eventfd_read upoll_eventfd_read
#define eventfd_write upoll_eventfd_write
#define pipe upoll_pipe
#define pipe2 upoll_pipe2
#define socketpair upoll_socketpair
#define shutdown upoll_shutdown
#define getsockopt upoll_getsockopt
#define setsockopt upoll_setsockopt
#define send upoll_send
#define sendto upoll_sendto
#define sendmsg upoll_sendmsg
#define sendmmsg upoll_sendmmsg
#define recv upoll_recv
#define recvfrom upoll_recvfrom
#define recvmsg upoll_recvmsg
#define recvmmsg upoll_recvmmsg
#define read upoll_read
#define write upoll_write
#define readv upoll_readv
#define writev upoll_writev
#define close upoll_close
#define close_range upoll_close_range
#define dup upoll_dup
#define dup2 upoll_dup2
#define dup3 upoll_dup3
#define fcntl upoll_fcntl
#define ioctl upoll_ioctl
#define poll upoll_poll
#define ppoll upoll_ppoll
#define select upoll_select
#define pselect upoll_pselect
#define setrlimit upoll_setrlimit
#define prlimit upoll_prlimit
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* For epoll_create1: wakes the sets that watch this one, and the threads that wait in it, one at a
 * time, in turn. The set has at most one member that is not a set. */
#ifndef EPOLL_ROTATE
#define EPOLL_ROTATE 1
#endif

/* For ioctl on an eventfd, with a pointer to uint64_t: writes keep the count below this maximum.
 * SET fails with EINVAL if the count has reached the maximum already. */
#ifndef EFD_IOC_SET_MAXIMUM
#define EFD_IOC_SET_MAXIMUM _IOW('J', 0, uint64_t)
#define EFD_IOC_GET_MAXIMUM _IOR('J', 1, uint64_t)
#endif

/* One change of a batch. */
struct epoll_ctl_cmd {
	int flags;       /* must be 0 */
	int op;          /* these three as for epoll_ctl */
	int fd;
	uint32_t events; /* these two as in struct epoll_event */
	uint64_t data;
	int result;      /* written: 0 or a negative error number */
};

/* The time limit and signal mask of epoll_pwait1. */
struct epoll_wait_params {
	uint32_t size;                  /* 0, or the size of this structure */
	int clockid;                    /* CLOCK_MONOTONIC or CLOCK_REALTIME */
	const struct timespec *timeout; /* NULL: no time limit */
	const sigset_t *sigmask;        /* NULL: the mask stays unchanged */
	size_t sigsetsize;              /* 8, if there is a sigmask */
};

/* Returns the version of the library that runs, in the format of UPOLL_VERSION. */
const char *upoll_version(void);

int upoll_epoll_create(int size);
int upoll_epoll_create1(int flags);
int upoll_epoll_ctl(int epfd, int op, int fd, struct epoll_event *event);
int upoll_epoll_wait(int epfd, struct epoll_event *events, int maxevents, int timeout);
int upoll_epoll_pwait(int epfd, struct epoll_event *events, int maxevents, int timeout,
		      const sigset_t *sigmask);
int upoll_epoll_pwait2(int epfd, struct epoll_event *events, int maxevents,
		       const struct timespec *timeout, const sigset_t *sigmask);

/* Opens a kernel fd that is readable (POLLIN) while the set has something to report: for
 * poll, epoll_wait and main loops that know nothing of this library. Call upoll_epoll_wait then, until it
 * returns fewer events than there is room for. The caller closes the descriptor, whatever becomes of the set,
 * and does nothing with it but watch it. EBADF: epfd is not open. EINVAL: epfd is no set. EMFILE, ENFILE,
 * ENOMEM, ENOSPC: the kernel has no descriptor or memory for it. */
int upoll_epoll_fd(int epfd);

/* Executes cmds in order until one fails. Returns the number of commands that succeeded. If it is less
 * than ncmds, the result of the next command holds the error. Fails without executing a command:
 * EINVAL: flags is not 0, ncmds is not positive or too large, or cmds is NULL. EFAULT: cmds cannot be
 * read. Also fails with EFAULT if a result cannot be written; the commands were executed then. */
int upoll_epoll_ctl_batch(int epfd, int flags, int ncmds, struct epoll_ctl_cmd *cmds);

/* Like epoll_pwait2, with a choice of clocks. In addition: EINVAL: flags is not 0, or the size or the
 * clock is unknown. EFAULT: params cannot be read. */
int upoll_epoll_pwait1(int epfd, int flags, struct epoll_event *events, int maxevents,
		       struct epoll_wait_params *params);

int upoll_eventfd(unsigned int initval, int flags);
int upoll_eventfd_read(int fd, eventfd_t *value);
int upoll_eventfd_write(int fd, eventfd_t value);

int upoll_pipe(int fds[2]);
int upoll_pipe2(int fds[2], int flags);
int upoll_socketpair(int domain, int type, int protocol, int fds[2]);
int upoll_shutdown(int fd, int how);

/* The C library defines it only with _GNU_SOURCE. */
struct mmsghdr;

/* On user-level sockets these implement MSG_DONTWAIT, MSG_NOSIGNAL, MSG_PEEK and MSG_WAITALL. A call
 * with other flags or control messages demotes the socket (see upoll_demote), if possible, and so do
 * sendmmsg and recvmmsg. */
ssize_t upoll_send(int fd, const void *bytes, size_t count, int flags);
ssize_t upoll_sendto(int fd, const void *bytes, size_t count, int flags,
		     const struct sockaddr *to, socklen_t size);
ssize_t upoll_sendmsg(int fd, const struct msghdr *message, int flags);
int upoll_sendmmsg(int fd, struct mmsghdr *messages, unsigned int count, int flags);
ssize_t upoll_recv(int fd, void *buffer, size_t count, int flags);
ssize_t upoll_recvfrom(int fd, void *buffer, size_t count, int flags, struct sockaddr *from,
		       socklen_t *size);
ssize_t upoll_recvmsg(int fd, struct msghdr *message, int flags);
int upoll_recvmmsg(int fd, struct mmsghdr *messages, unsigned int count, int flags,
		   struct timespec *limit);

/* Only the kernel implements options: setsockopt demotes a user-level socket (see upoll_demote), and so
 * does getsockopt for SO_ERROR, SO_SNDBUF and SO_MEMINFO. */
int upoll_getsockopt(int fd, int level, int option, void *value, socklen_t *size);
int upoll_setsockopt(int fd, int level, int option, const void *value, socklen_t size);

ssize_t upoll_read(int fd, void *buf, size_t count);
ssize_t upoll_write(int fd, const void *buf, size_t count);
ssize_t upoll_readv(int fd, const struct iovec *iov, int iovcnt);
ssize_t upoll_writev(int fd, const struct iovec *iov, int iovcnt);

int upoll_close(int fd);
int upoll_close_range(unsigned int first, unsigned int last, int flags);
int upoll_dup(int fd);
int upoll_dup2(int oldfd, int newfd);
int upoll_dup3(int oldfd, int newfd, int flags);
int upoll_fcntl(int fd, int cmd, ...);
int upoll_ioctl(int fd, unsigned long request, ...);

/* Demotes the object behind fd, and the other end of a pipe or socketpair: the kernel serves it from
 * then on, with the state that it has. Afterwards other processes may share it, and calls that are
 * not in this header see it.
 *
 * fork demotes objects by itself. An eventfd with a maximum is not demoted: parent and child share
 * it and its maximum. Demote every fd before it is used by posix_spawn, vfork, clone, exec, fdopen
 * and other streams, splice, tee, vmsplice, sendfile, send, recv, O_ASYNC, SCM_RIGHTS, io_uring or
 * aio.
 *
 * EOPNOTSUPP: fd is an eventfd with a maximum, an object of your own, a rotating set, or a set that
 * watches one of these. After fork the child has a set of its own that watches the same. An object
 * of your own fails with EBADF there.
 * EBUSY: a signal handler that has interrupted a call on the object called this.
 * EPERM, ENOMEM, EMFILE, ENFILE: the kernel refuses the new objects. The object is unchanged. */
int upoll_demote(int fd);

int upoll_poll(struct pollfd *fds, nfds_t nfds, int timeout);
int upoll_ppoll(struct pollfd *fds, nfds_t nfds, const struct timespec *timeout,
		const sigset_t *sigmask);
int upoll_select(int nfds, fd_set *readfds, fd_set *writefds, fd_set *exceptfds,
		 struct timeval *timeout);
int upoll_pselect(int nfds, fd_set *readfds, fd_set *writefds, fd_set *exceptfds,
		  const struct timespec *timeout, const sigset_t *sigmask);

/* Call the C library's functions. The next poll reads RLIMIT_NOFILE again. Without these, a poll that
 * does not sleep, of at most eight entries that are all user-level, uses the limit read last. */
int upoll_setrlimit(int resource, const struct rlimit *limit);
int upoll_prlimit(pid_t pid, int resource, const struct rlimit *limit, struct rlimit *before);

/* An object of your own.
 *
 * poll returns the events that are ready, in bits of <sys/epoll.h>. Any thread may call it, several at
 * once, with locks of a set held: it must not block, nor call a function of this header. release is
 * called once, when the last fd of the object is closed and no call uses it any more. release may be
 * NULL. */
struct upoll_object_ops {
	size_t size; /* of this structure */
	uint32_t (*poll)(void *context);
	void (*release)(void *context);
};

/* Returns an fd that epoll_ctl, poll and select of this header accept. flags is 0 or O_CLOEXEC.
 * EINVAL: an unknown flag or size, or poll is NULL. EMFILE, ENFILE, ENOMEM: no fd or memory is left.
 * release is not called if this fails. */
int upoll_object_create(const struct upoll_object_ops *ops, void *context, int flags);

/* Wakes the waiters of the object. Call this after it has become ready, with its new events: EPOLLIN,
 * EPOLLOUT, ..., or 0 if they are unknown. EBADF: fd is not open. EINVAL: fd is not an object of your
 * own. */
int upoll_object_wake(int fd, uint32_t events);

#ifdef __cplusplus
}
#endif

#endif
