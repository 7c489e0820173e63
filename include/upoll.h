/* upoll: epoll, poll, select, eventfd, pipes and stream socket pairs in user space.
 *
 * Each function is the one of the C library with its name, less "upoll_": the same arguments, the
 * same results, -1 and the same errno if it fails. What they make stands behind a file descriptor
 * of the kernel, so its number is an ordinary one; a call of the C library on it does not see what
 * these functions do. Descriptors of the kernel may be passed to all of them.
 *
 * All functions may be called from any thread. A pointer that leads nowhere gives EFAULT. None
 * throws, and no exception may pass through one.
 *
 * With UPOLL_REDIRECT defined, the C library's names mean these functions from here on, for what is
 * compiled with it. Include this header after all others then.
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

/* Before all declarations, so that a member of a structure that has such a name is found by it. */
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
#define recv upoll_recv
#define recvfrom upoll_recvfrom
#define recvmsg upoll_recvmsg
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

/* For epoll_create1: sets that watch this one, and threads that wait in it, are woken one at a
 * time, in turn. It watches one source that is not a set. */
#ifndef EPOLL_ROTATE
#define EPOLL_ROTATE 1
#endif

/* For ioctl on an eventfd, with a pointer to uint64_t: writes keep the count below this maximum.
 * SET gives EINVAL if the count is there already. */
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

/* How epoll_pwait1 waits. */
struct epoll_wait_params {
	uint32_t size;                  /* 0, or the size of this structure */
	int clockid;                    /* CLOCK_MONOTONIC or CLOCK_REALTIME */
	const struct timespec *timeout; /* NULL: however long it takes */
	const sigset_t *sigmask;        /* NULL: as it is */
	size_t sigsetsize;              /* 8, if there is a sigmask */
};

int upoll_epoll_create(int size);
int upoll_epoll_create1(int flags);
int upoll_epoll_ctl(int epfd, int op, int fd, struct epoll_event *event);
int upoll_epoll_wait(int epfd, struct epoll_event *events, int maxevents, int timeout);
int upoll_epoll_pwait(int epfd, struct epoll_event *events, int maxevents, int timeout,
		      const sigset_t *sigmask);
int upoll_epoll_pwait2(int epfd, struct epoll_event *events, int maxevents,
		       const struct timespec *timeout, const sigset_t *sigmask);

/* Executes cmds in their order until one fails. Returns how many succeeded; if that is less than
 * ncmds, cmds[that].result says why. -1, and nothing done: EINVAL: flags is not 0, ncmds is not
 * positive or too large, cmds is NULL. EFAULT: cmds cannot be read; if a result cannot be written,
 * the commands were executed all the same. */
int upoll_epoll_ctl_batch(int epfd, int flags, int ncmds, struct epoll_ctl_cmd *cmds);

/* epoll_pwait2 by a clock of choice. In addition, EINVAL: flags is not 0, or the size or the clock
 * is unknown; EFAULT: params cannot be read. */
int upoll_epoll_pwait1(int epfd, int flags, struct epoll_event *events, int maxevents,
		       struct epoll_wait_params *params);

int upoll_eventfd(unsigned int initval, int flags);
int upoll_eventfd_read(int fd, eventfd_t *value);
int upoll_eventfd_write(int fd, eventfd_t value);

int upoll_pipe(int fds[2]);
int upoll_pipe2(int fds[2], int flags);
int upoll_socketpair(int domain, int type, int protocol, int fds[2]);
int upoll_shutdown(int fd, int how);

/* On a socketpair's user-level sockets these know MSG_DONTWAIT, MSG_NOSIGNAL, MSG_PEEK and
 * MSG_WAITALL. With other flags or control messages the kernel serves the socket from then on, if it
 * can be handed over. */
ssize_t upoll_send(int fd, const void *bytes, size_t count, int flags);
ssize_t upoll_sendto(int fd, const void *bytes, size_t count, int flags,
		     const struct sockaddr *to, socklen_t size);
ssize_t upoll_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t upoll_recv(int fd, void *buffer, size_t count, int flags);
ssize_t upoll_recvfrom(int fd, void *buffer, size_t count, int flags, struct sockaddr *from,
		       socklen_t *size);
ssize_t upoll_recvmsg(int fd, struct msghdr *message, int flags);

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

/* Hands what fd stands for over to the kernel, in which it goes on as it is, both ends of a pipe at
 * once: from then on other processes may have it, too, and calls that are not in this header see it.
 * fork does so by itself, and an eventfd with a maximum goes on in parent and child with the one
 * maximum. Call it for every number concerned before posix_spawn, vfork, clone, exec, fdopen and
 * other streams, splice, tee, vmsplice, sendfile, send, recv, O_ASYNC, sending a descriptor
 * (SCM_RIGHTS), and before a number is given to io_uring or aio.
 * EOPNOTSUPP: an eventfd with a maximum, an object of your own, a rotating set, or a set that
 * watches one of these; the child of a fork has a set of its own that watches the same. An object of
 * your own gives EBADF there.
 * EBUSY: called by a signal handler in the midst of a call on it. EPERM, ENOMEM, EMFILE, ENFILE: the
 * kernel does not give what it takes; the object is as it was. */
int upoll_demote(int fd);

int upoll_poll(struct pollfd *fds, nfds_t nfds, int timeout);
int upoll_ppoll(struct pollfd *fds, nfds_t nfds, const struct timespec *timeout,
		const sigset_t *sigmask);
int upoll_select(int nfds, fd_set *readfds, fd_set *writefds, fd_set *exceptfds,
		 struct timeval *timeout);
int upoll_pselect(int nfds, fd_set *readfds, fd_set *writefds, fd_set *exceptfds,
		  const struct timespec *timeout, const sigset_t *sigmask);

/* The C library's functions. poll reads RLIMIT_NOFILE again after them; otherwise calls with up to eight
 * entries, all of them user-level, that do not sleep rely on the limit that was read last. */
int upoll_setrlimit(int resource, const struct rlimit *limit);
int upoll_prlimit(pid_t pid, int resource, const struct rlimit *limit, struct rlimit *before);

/* An object of your own.
 *
 * poll says what is ready now, in bits of <sys/epoll.h>. It is called from any thread, from several
 * at once, with locks of a set held: it must not block, nor call a function of this header. release
 * is called once, when the last number of the object is closed and no call looks at it any more; it
 * may be NULL. */
struct upoll_object_ops {
	size_t size; /* of this structure */
	uint32_t (*poll)(void *context);
	void (*release)(void *context);
};

/* Returns a descriptor that epoll_ctl, poll and select of this header accept; flags is 0 or
 * O_CLOEXEC. EINVAL: an unknown flag or size, or no poll. EMFILE, ENFILE, ENOMEM: there is no number
 * to give; release is not called. */
int upoll_object_create(const struct upoll_object_ops *ops, void *context, int flags);

/* Call this after the object has become ready for something, with what: EPOLLIN, EPOLLOUT, ...; 0
 * if you cannot say. EBADF: fd is not open. EINVAL: it is something else. */
int upoll_object_wake(int fd, uint32_t events);

#ifdef __cplusplus
}
#endif

#endif
