/*
 * Replays a script of calls by fd in one or more processes and prints what each returned.
 *
 *   replay [--portable] SCRIPT     a step a line: PROCESS CALL A B C D
 *   replay --calls                 prints the names of all calls
 *
 * The processes run in lockstep. One process makes each step, while the others wait on a word that
 * all share, so the log of a script is the same in every run. A timer interrupts calls that would
 * block forever, and they fail with EINTR. The harness itself holds no fd. With UPOLL_REDIRECT, or
 * with --portable, calls that only the preload library sees are left out.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef UPOLL_REDIRECT
#include <upoll.h>
#endif

#define SLOTS 8
#define PROCESSES 4
#define STEPS 256
#define LOG (1 << 20)
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

struct step {
	unsigned process;
	unsigned call;
	unsigned a, b, c, d;
};

/* The state that all processes share. */
struct shared {
	unsigned turn;                /* the step that is to be made; a futex */
	pid_t pids[PROCESSES];        /* 0: not there */
	unsigned parents[PROCESSES];
	unsigned exiting;             /* a process that has ended and was not reaped, plus 1 */
	int status;
	size_t length;
	char log[LOG];
};

static struct shared *shared;
static struct step steps[STEPS];
static unsigned step_count;
static unsigned me;
/* The fds that the steps name by slot. Each process has its own. */
static int fds[SLOTS] = {-1, -1, -1, -1, -1, -1, -1, -1};
static int signalled_fd = -1;
static volatile sig_atomic_t handled;
extern char **environ;

static void say(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	shared->length += vsnprintf(shared->log + shared->length, LOG - shared->length, format, list);
	va_end(list);
	if (shared->length > LOG - 4096)
		shared->length = LOG - 4096;
}

/* The arguments of calls, from the numbers of a step. */

static int slot(unsigned number)
{
	return fds[number % SLOTS];
}

static uint32_t events_of(unsigned number)
{
	static const uint32_t choices[] = {
		EPOLLIN, EPOLLOUT, EPOLLIN | EPOLLOUT, 0, EPOLLIN | EPOLLRDHUP, EPOLLIN | EPOLLEXCLUSIVE,
		EPOLLPRI, EPOLLIN | EPOLLONESHOT, EPOLLIN | EPOLLET, EPOLLIN | EPOLLOUT | EPOLLET,
	};
	return choices[number % COUNT(choices)];
}

static short poll_events_of(unsigned number)
{
	static const short choices[] = {POLLIN, POLLOUT, POLLIN | POLLOUT, 0, POLLPRI, POLLIN | POLLRDHUP};
	return choices[number % COUNT(choices)];
}

static int milliseconds_of(unsigned number)
{
	static const int choices[] = {0, 0, 1, -1};
	return choices[number % COUNT(choices)];
}

static struct timespec *timespec_of(unsigned number, struct timespec *limit)
{
	int milliseconds = milliseconds_of(number);

	if (milliseconds < 0)
		return NULL;
	limit->tv_sec = 0;
	limit->tv_nsec = milliseconds * 1000000L;
	return limit;
}

static uint64_t value_of(unsigned number)
{
	static const uint64_t choices[] = {1, 2, 0, 7, UINT64_MAX - 1, UINT64_MAX};
	return choices[number % COUNT(choices)];
}

static size_t length_of(unsigned number)
{
	static const size_t choices[] = {8, 8, 8, 1, 4, 16, 0, 5000};
	return choices[number % COUNT(choices)];
}

static int nonblock_of(unsigned number, int flag)
{
	return number % 3 != 0 ? flag : 0;
}

/* Stores an fd in a slot. Closes the fd that was there before. */
static long put(unsigned number, int fd)
{
	int *place = &fds[number % SLOTS];
	int saved = errno;

	if (*place >= 0 && fd >= 0 && *place != fd)
		close(*place);
	if (fd >= 0)
		*place = fd;
	errno = saved;
	return fd;
}

static void say_bytes(const char *bytes, long length)
{
	unsigned sum = 0;
	long i;

	for (i = 0; i < length; i++)
		sum = sum * 31 + (unsigned char)bytes[i];
	if (length > 0)
		say(" sum %x", sum);
}

/* The calls. */

static long do_eventfd(struct step *s)
{
	return put(s->a, eventfd(s->b % 4, nonblock_of(s->c, EFD_NONBLOCK) | (s->d % 4 == 0 ? EFD_SEMAPHORE : 0) |
		(s->d % 5 == 0 ? EFD_CLOEXEC : 0) | (s->d % 31 == 30 ? 64 : 0)));
}
static long do_eventfd_read(struct step *s)
{
	eventfd_t value = 99;
	long result = eventfd_read(slot(s->a), &value);

	say(" value %llx", (unsigned long long)value);
	/* For a short read glibc returns -1 without setting errno, and upoll sets EIO. */
	if (result == -1 && errno == EIO)
		errno = 0;
	return result;
}
static long do_eventfd_write(struct step *s) { return eventfd_write(slot(s->a), value_of(s->b)); }
static long do_epoll_create(struct step *s) { return put(s->a, epoll_create((int)(s->b % 4) - 1)); }
static long do_epoll_create1(struct step *s)
{
	static const int choices[] = {0, EPOLL_CLOEXEC, 0, EPOLL_CLOEXEC, 2};
	return put(s->a, epoll_create1(choices[s->b % COUNT(choices)]));
}
static long control(struct step *s, int op)
{
	struct epoll_event event;

	memset(&event, 0, sizeof(event));
	event.events = events_of(s->c);
	event.data.u64 = s->d % 16;
	return epoll_ctl(slot(s->a), op, slot(s->b), s->d % 23 == 22 ? NULL : &event);
}
static long do_epoll_ctl_add(struct step *s) { return control(s, EPOLL_CTL_ADD); }
static long do_epoll_ctl_mod(struct step *s) { return control(s, EPOLL_CTL_MOD); }
static long do_epoll_ctl_del(struct step *s) { return control(s, EPOLL_CTL_DEL); }
static int by_data(const void *left, const void *right)
{
	const struct epoll_event *l = left, *r = right;

	if (l->data.u64 != r->data.u64)
		return l->data.u64 < r->data.u64 ? -1 : 1;
	return l->events < r->events ? -1 : l->events > r->events;
}
/* The order between user-level objects and kernel fds is unspecified, so the report is sorted. */
static long reported(long count, struct epoll_event *events)
{
	long i;

	if (count > 0)
		qsort(events, count, sizeof(*events), by_data);
	for (i = 0; i < count; i++)
		say(" %llu:%x", (unsigned long long)events[i].data.u64, events[i].events);
	return count;
}
static long do_epoll_wait(struct step *s)
{
	struct epoll_event events[32];

	return reported(epoll_wait(slot(s->a), events, s->c % 17 == 16 ? 0 : 32, milliseconds_of(s->b)), events);
}
static long do_epoll_pwait(struct step *s)
{
	struct epoll_event events[32];
	sigset_t mask;

	sigemptyset(&mask);
	return reported(epoll_pwait(slot(s->a), events, 32, milliseconds_of(s->b), &mask), events);
}
static long do_epoll_pwait2(struct step *s)
{
	struct epoll_event events[32];
	struct timespec limit;

	return reported(epoll_pwait2(slot(s->a), events, 32, timespec_of(s->b, &limit), NULL), events);
}
static nfds_t poll_list(struct step *s, struct pollfd *list)
{
	nfds_t count = 0;
	unsigned i;

	for (i = 0; i < SLOTS; i++)
		if (s->a >> i & 1) {
			list[count].fd = fds[i];
			list[count].events = poll_events_of(s->b + (s->c >> i & 1));
			list[count].revents = 0x55;
			count++;
		}
	return count;
}
static long polled(long result, struct pollfd *list, nfds_t count)
{
	nfds_t i;

	for (i = 0; i < count; i++)
		say(" %d:%x", list[i].fd, list[i].revents);
	return result;
}
static long do_poll(struct step *s)
{
	struct pollfd list[SLOTS];
	nfds_t count = poll_list(s, list);

	return polled(poll(list, count, milliseconds_of(s->d)), list, count);
}
static long do_ppoll(struct step *s)
{
	struct pollfd list[SLOTS];
	nfds_t count = poll_list(s, list);
	struct timespec limit;

	return polled(ppoll(list, count, timespec_of(s->d, &limit), NULL), list, count);
}
static int select_sets(struct step *s, fd_set *sets)
{
	int i, highest = -1;

	for (i = 0; i < 3; i++)
		FD_ZERO(&sets[i]);
	for (i = 0; i < SLOTS; i++)
		if ((s->a >> i & 1) && fds[i] >= 0 && fds[i] < FD_SETSIZE) {
			FD_SET(fds[i], &sets[(s->b >> i & 1) ? 0 : 1]);
			if (s->c >> i & 1)
				FD_SET(fds[i], &sets[2]);
			if (fds[i] > highest)
				highest = fds[i];
		}
	return highest + 1;
}
static long selected(long result, fd_set *sets, int n)
{
	int i, fd;

	for (i = 0; i < 3 && result >= 0; i++)
		for (fd = 0; fd < n; fd++)
			if (FD_ISSET(fd, &sets[i]))
				say(" %c%d", "rwx"[i], fd);
	return result;
}
static long do_select(struct step *s)
{
	fd_set sets[3];
	int n = select_sets(s, sets), milliseconds = milliseconds_of(s->d);
	struct timeval limit = {0, milliseconds * 1000};

	return selected(select(n, &sets[0], &sets[1], &sets[2], milliseconds < 0 ? NULL : &limit), sets, n);
}
static long do_pselect(struct step *s)
{
	fd_set sets[3];
	int n = select_sets(s, sets);
	struct timespec limit;

	return selected(pselect(n, &sets[0], &sets[1], &sets[2], timespec_of(s->d, &limit), NULL), sets, n);
}
static long do_read(struct step *s)
{
	char bytes[5000];
	long result = read(slot(s->a), s->c % 29 == 28 ? NULL : bytes, length_of(s->b));

	if (s->c % 29 != 28)
		say_bytes(bytes, result);
	return result;
}
static void fill(char *bytes, struct step *s)
{
	uint64_t value = value_of(s->c);

	memset(bytes, 'a' + s->d % 26, 5000);
	memcpy(bytes, &value, sizeof(value));
}
static long do_write(struct step *s)
{
	char bytes[5000];

	fill(bytes, s);
	return write(slot(s->a), s->d % 29 == 28 ? NULL : bytes, length_of(s->b));
}
static long do_readv(struct step *s)
{
	char bytes[5000];
	struct iovec parts[2] = {{bytes, 4}, {bytes + 4, length_of(s->b)}};
	long result = readv(slot(s->a), parts, s->c % 3);

	say_bytes(bytes, result);
	return result;
}
static long do_writev(struct step *s)
{
	char bytes[5000];
	struct iovec parts[2] = {{bytes, 8}, {bytes, s->d % 2 ? 8 : length_of(s->b)}};

	fill(bytes, s);
	return writev(slot(s->a), parts, s->c % 3);
}
static long do_pread(struct step *s)
{
	char bytes[8];

	return pread(slot(s->a), bytes, 8, 0);
}
static long do_pwrite(struct step *s) { return pwrite(slot(s->a), "12345678", 8, 0); }
static long do_lseek(struct step *s) { return lseek(slot(s->a), 0, SEEK_CUR); }
static long do_fstat(struct step *s)
{
	struct stat status;
	long result = fstat(slot(s->a), &status);

	if (result == 0)
		say(" type %o", status.st_mode & S_IFMT);
	return result;
}
static long do_close(struct step *s)
{
	int fd = slot(s->a);

	if (s->b % 2)
		fds[s->a % SLOTS] = -1;
	return close(fd);
}
static long do_close_range(struct step *s)
{
	unsigned first = 3 + s->a % 12;

	return close_range(first, s->b % 6 == 0 ? ~0U : first + s->b % 4, 0);
}
static long do_dup(struct step *s) { return put(s->b, dup(slot(s->a))); }
static int fd_of(unsigned number) { return number % 2 ? slot(number / 2) : 3 + (int)(number / 2 % 20); }
static long do_dup2(struct step *s) { return put(s->c, dup2(slot(s->a), fd_of(s->b))); }
static long do_dup3(struct step *s)
{
	return put(s->c, dup3(slot(s->a), fd_of(s->b), s->d % 2 ? O_CLOEXEC : 0));
}
static long do_f_getfl(struct step *s) { return fcntl(slot(s->a), F_GETFL); }
static long do_f_setfl(struct step *s) { return fcntl(slot(s->a), F_SETFL, s->b % 3 ? O_NONBLOCK : 0); }
static long do_f_getfd(struct step *s) { return fcntl(slot(s->a), F_GETFD); }
static long do_f_setfd(struct step *s) { return fcntl(slot(s->a), F_SETFD, s->b % 2); }
static long do_f_dupfd(struct step *s) { return put(s->b, fcntl(slot(s->a), F_DUPFD, 3 + s->c % 20)); }
static long do_f_dupfd_cloexec(struct step *s)
{
	return put(s->b, fcntl(slot(s->a), F_DUPFD_CLOEXEC, s->c % 9 == 8 ? -1 : 3 + (int)(s->c % 20)));
}
static long do_fionbio(struct step *s)
{
	int on = s->b % 3 != 0;

	return ioctl(slot(s->a), FIONBIO, &on);
}
static long do_fionread(struct step *s)
{
	int count = -7;
	long result = ioctl(slot(s->a), FIONREAD, &count);

	say(" count %d", count);
	return result;
}
static long do_ioctl_unknown(struct step *s) { return ioctl(slot(s->a), _IO('J', 77), 0); }
static long two(struct step *s, long result, int *ends)
{
	if (result == 0) {
		put(s->a, ends[0]);
		put(s->a % SLOTS == s->b % SLOTS ? s->b + 1 : s->b, ends[1]);
		say(" %d %d", ends[0], ends[1]);
	}
	return result;
}
static long do_pipe(struct step *s)
{
	int ends[2];

	return two(s, pipe(ends), ends);
}
static long do_pipe2(struct step *s)
{
	int ends[2];

	return two(s, pipe2(ends, nonblock_of(s->c, O_NONBLOCK) | (s->d % 3 == 0 ? O_CLOEXEC : 0)), ends);
}
static long do_socketpair(struct step *s)
{
	int ends[2];

	return two(s, socketpair(AF_UNIX, (s->d % 5 == 4 ? SOCK_DGRAM : SOCK_STREAM) | nonblock_of(s->c, SOCK_NONBLOCK), 0,
		ends), ends);
}
static int message_flags(unsigned number)
{
	static const int choices[] = {0, MSG_DONTWAIT, MSG_NOSIGNAL, MSG_DONTWAIT | MSG_NOSIGNAL};
	return choices[number % COUNT(choices)];
}
static long do_send(struct step *s)
{
	char bytes[5000];

	fill(bytes, s);
	return send(slot(s->a), bytes, length_of(s->b), message_flags(s->c));
}
static long do_recv(struct step *s)
{
	char bytes[5000];
	long result = recv(slot(s->a), bytes, length_of(s->b), message_flags(s->c) | (s->d % 4 == 0 ? MSG_PEEK : 0));

	say_bytes(bytes, result);
	return result;
}
static long do_sendto(struct step *s)
{
	char bytes[5000];

	fill(bytes, s);
	return sendto(slot(s->a), bytes, length_of(s->b), message_flags(s->c), NULL, 0);
}
static long do_recvfrom(struct step *s)
{
	char bytes[5000];
	long result = recvfrom(slot(s->a), bytes, length_of(s->b), message_flags(s->c), NULL, NULL);

	say_bytes(bytes, result);
	return result;
}
static long do_sendmsg(struct step *s)
{
	char bytes[5000];
	struct iovec parts[2] = {{bytes, 3}, {bytes, length_of(s->b)}};
	struct msghdr message;

	fill(bytes, s);
	memset(&message, 0, sizeof(message));
	message.msg_iov = parts;
	message.msg_iovlen = s->d % 3;
	return sendmsg(slot(s->a), &message, message_flags(s->c));
}
static long do_recvmsg(struct step *s)
{
	char bytes[5000];
	struct iovec parts[2] = {{bytes, 3}, {bytes + 3, length_of(s->b) % 4097}};
	struct msghdr message;
	long result;

	memset(&message, 0, sizeof(message));
	message.msg_iov = parts;
	message.msg_iovlen = 2;
	result = recvmsg(slot(s->a), &message, message_flags(s->c));
	say_bytes(bytes, result);
	if (result >= 0)
		say(" flags %x", message.msg_flags);
	return result;
}
static long do_shutdown(struct step *s) { return shutdown(slot(s->a), s->b % 4); }
static long do_getsockopt(struct step *s)
{
	int value = -7;
	socklen_t length = sizeof(value);
	long result = getsockopt(slot(s->a), SOL_SOCKET, s->b % 2 ? SO_TYPE : SO_ERROR, &value, &length);

	say(" value %d", value);
	return result;
}
static long do_setsockopt(struct step *s)
{
	struct timeval limit = {0, 3000};

	return setsockopt(slot(s->a), SOL_SOCKET, s->b % 2 ? SO_RCVTIMEO : SO_SNDTIMEO, &limit, sizeof(limit));
}

static void on_signal(int number)
{
	uint64_t one = 1;
	int saved = errno;

	(void)number;
	handled++;
	if (signalled_fd >= 0 && write(signalled_fd, &one, sizeof(one)) < 0)
		handled += 100;
	errno = saved;
}
static long do_raise(struct step *s)
{
	long result;

	handled = 0;
	signalled_fd = s->b % 2 ? slot(s->a) : -1;
	/* A blocking object might block the handler. */
	if (signalled_fd >= 0 && !(fcntl(signalled_fd, F_GETFL) & O_NONBLOCK))
		signalled_fd = -1;
	result = raise(SIGUSR1);
	say(" handled %d", (int)handled);
	return result;
}
static long do_sigprocmask(struct step *s)
{
	sigset_t mask;

	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR1);
	return sigprocmask(s->a % 2 ? SIG_BLOCK : SIG_UNBLOCK, &mask, NULL);
}

static long do_fork(struct step *s)
{
	unsigned child;
	pid_t pid;

	(void)s;
	for (child = 1; child < PROCESSES && shared->pids[child] != 0; child++)
		;
	if (child == PROCESSES)
		return -2;
	shared->parents[child] = me;
	shared->pids[child] = 1;
	pid = fork();
	if (pid == 0) {
		me = child;
		return -3;
	}
	if (pid < 0) {
		shared->pids[child] = 0;
		return -1;
	}
	shared->pids[child] = pid;
	return child;
}
static long do_exit(struct step *s)
{
	unsigned child;

	if (me == 0)
		return -2;
	for (child = 0; child < PROCESSES; child++)
		if (shared->pids[child] != 0 && shared->parents[child] == me)
			return -3;
	say(" exits\n");
	__atomic_store_n(&shared->exiting, me + 1, __ATOMIC_SEQ_CST);
	_exit((int)(s->a % 100));
}

#ifndef UPOLL_REDIRECT
static long do_vfork(struct step *s)
{
	uint64_t one = 1;
	int status = 0;
	pid_t pid = vfork();

	if (pid == 0) {
		if (s->b % 2)
			_exit(write(slot(s->a), &one, sizeof(one)) == 8 ? 1 : 2);
		_exit(close(slot(s->a)) == 0 ? 3 : 4);
	}
	waitpid(pid, &status, 0);
	return status;
}
static long do_posix_spawn(struct step *s)
{
	char *arguments[] = {"true", NULL};
	int status = 0;
	pid_t pid;

	(void)s;
	if (posix_spawn(&pid, "/bin/true", NULL, NULL, arguments, environ) != 0)
		return -1;
	waitpid(pid, &status, 0);
	return status;
}
static long do_send_fd(struct step *s)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	char byte = 'f';
	struct iovec part = {&byte, 1};
	struct msghdr message;
	struct cmsghdr *header;
	int fd = slot(s->b);

	memset(&message, 0, sizeof(message));
	memset(&control, 0, sizeof(control));
	message.msg_iov = &part;
	message.msg_iovlen = 1;
	message.msg_control = &control;
	message.msg_controllen = sizeof(control.room);
	header = CMSG_FIRSTHDR(&message);
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = s->d % 7 == 6 ? 3 : CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	return sendmsg(slot(s->a), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}
static long do_recv_fd(struct step *s)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	char bytes[16];
	struct iovec part = {bytes, sizeof(bytes)};
	struct msghdr message;
	struct cmsghdr *header;
	long result;
	int fd;

	memset(&message, 0, sizeof(message));
	message.msg_iov = &part;
	message.msg_iovlen = 1;
	message.msg_control = &control;
	message.msg_controllen = sizeof(control.room);
	result = recvmsg(slot(s->a), &message, MSG_DONTWAIT | (s->c % 2 ? MSG_CMSG_CLOEXEC : 0));
	if (result < 0)
		return result;
	say(" flags %x", message.msg_flags);
	header = CMSG_FIRSTHDR(&message);
	if (header && header->cmsg_type == SCM_RIGHTS) {
		memcpy(&fd, CMSG_DATA(header), sizeof(fd));
		say(" fd %d", fd);
		put(s->b, fd);
	}
	return result;
}
static long do_splice(struct step *s)
{
	return splice(slot(s->a), NULL, slot(s->b), NULL, length_of(s->c), SPLICE_F_NONBLOCK);
}
static long do_tee(struct step *s) { return tee(slot(s->a), slot(s->b), length_of(s->c), SPLICE_F_NONBLOCK); }
static long do_open(struct step *s) { return put(s->a, open(s->b % 2 ? "/dev/null" : "/", O_RDONLY | O_CLOEXEC)); }
static long do_syscall_close(struct step *s)
{
	int fd = slot(s->a);

	fds[s->a % SLOTS] = -1;
	return syscall(SYS_close, fd);
}
static long do_syscall_eventfd2(struct step *s)
{
	return put(s->a, (int)syscall(SYS_eventfd2, s->b % 4, nonblock_of(s->c, EFD_NONBLOCK)));
}
static long do_syscall_epoll_wait(struct step *s)
{
	struct epoll_event events[32];

	return reported(syscall(SYS_epoll_wait, slot(s->a), events, 32, milliseconds_of(s->b)), events);
}
static long do_syscall_ppoll(struct step *s)
{
	struct pollfd list[SLOTS];
	nfds_t count = poll_list(s, list);
	struct timespec limit;

	return polled(syscall(SYS_ppoll, list, count, timespec_of(s->d, &limit), NULL, 8), list, count);
}
#else
#define do_vfork NULL
#define do_posix_spawn NULL
#define do_send_fd NULL
#define do_recv_fd NULL
#define do_splice NULL
#define do_tee NULL
#define do_open NULL
#define do_syscall_close NULL
#define do_syscall_eventfd2 NULL
#define do_syscall_epoll_wait NULL
#define do_syscall_ppoll NULL
#endif

static const struct {
	const char *name;
	long (*make)(struct step *);
	int is_portable;
} calls[] = {
#define CALL(name) {#name, do_##name, 1}
#define PRELOAD(name) {#name, do_##name, 0}
	CALL(eventfd), CALL(eventfd_read), CALL(eventfd_write), CALL(epoll_create), CALL(epoll_create1),
	CALL(epoll_ctl_add), CALL(epoll_ctl_mod), CALL(epoll_ctl_del), CALL(epoll_wait), CALL(epoll_pwait),
	CALL(epoll_pwait2), CALL(poll), CALL(ppoll), CALL(select), CALL(pselect), CALL(read), CALL(write),
	CALL(readv), CALL(writev), PRELOAD(pread), PRELOAD(pwrite), PRELOAD(lseek), CALL(fstat), CALL(close),
	CALL(close_range), CALL(dup), CALL(dup2), CALL(dup3), CALL(f_getfl), CALL(f_setfl), CALL(f_getfd),
	CALL(f_setfd), CALL(f_dupfd), CALL(f_dupfd_cloexec), CALL(fionbio), CALL(fionread), CALL(ioctl_unknown),
	CALL(pipe), CALL(pipe2), CALL(socketpair), CALL(send), CALL(recv), CALL(sendto), CALL(recvfrom),
	CALL(sendmsg), CALL(recvmsg), CALL(shutdown), CALL(getsockopt), CALL(setsockopt), CALL(raise),
	CALL(sigprocmask), CALL(fork), CALL(exit), PRELOAD(vfork), PRELOAD(posix_spawn), PRELOAD(send_fd),
	PRELOAD(recv_fd), PRELOAD(splice), PRELOAD(tee), PRELOAD(open), PRELOAD(syscall_close),
	PRELOAD(syscall_eventfd2), PRELOAD(syscall_epoll_wait), PRELOAD(syscall_ppoll),
};

static void on_alarm(int number)
{
	(void)number;
}

/* Interrupts blocking calls periodically while a step runs. */
static void set_alarm(int is_on)
{
	struct itimerval timer;

	memset(&timer, 0, sizeof(timer));
	if (is_on)
		timer.it_value.tv_usec = timer.it_interval.tv_usec = 25000;
	setitimer(ITIMER_REAL, &timer, NULL);
}

static void futex(int operation, unsigned value)
{
	struct timespec limit = {0, 20000000};

	syscall(SYS_futex, &shared->turn, operation, value, operation == FUTEX_WAIT ? &limit : NULL, NULL, 0);
}

/* Reaps a child of this process that ended in a step, so that all its fds are closed. */
static void reap(void)
{
	unsigned exiting = __atomic_load_n(&shared->exiting, __ATOMIC_SEQ_CST);
	int status = 0;

	if (exiting == 0 || shared->parents[exiting - 1] != me)
		return;
	while (waitpid(shared->pids[exiting - 1], &status, 0) < 0 && errno == EINTR)
		;
	say("  status %x\n", status);
	shared->pids[exiting - 1] = 0;
	__atomic_store_n(&shared->exiting, 0, __ATOMIC_SEQ_CST);
	__atomic_add_fetch(&shared->turn, 1, __ATOMIC_SEQ_CST);
	futex(FUTEX_WAKE, PROCESSES);
}

static void make(struct step *step, unsigned position, int portable_only)
{
	long result;
	unsigned process = me;

	if (!calls[step->call].make || (portable_only && !calls[step->call].is_portable))
		return;
	say("%u process %u %s %u %u %u %u:", position, me, calls[step->call].name, step->a, step->b, step->c, step->d);
	set_alarm(1);
	errno = 0;
	result = calls[step->call].make(step);
	if (process != me)
		return; /* the child of a fork; its parent says the rest */
	set_alarm(0);
	say(" = %ld%s%s\n", result, result == -1 ? " " : "", result == -1 ? strerrorname_np(errno) : "");
}

static void run(int portable_only)
{
	/* The last step of this process, or of the process that it was forked from. */
	unsigned taken = UINT32_MAX;
	unsigned turn, process;

	for (;;) {
		reap();
		turn = __atomic_load_n(&shared->turn, __ATOMIC_SEQ_CST);
		if (turn >= step_count)
			break;
		process = steps[turn].process;
		if (shared->pids[process] == 0)
			process = 0; /* nobody else is there for it */
		if (process != me || turn == taken || __atomic_load_n(&shared->exiting, __ATOMIC_SEQ_CST) != 0) {
			futex(FUTEX_WAIT, turn);
			continue;
		}
		taken = turn;
		make(&steps[turn], turn, portable_only);
		if (process != me)
			continue;
		__atomic_add_fetch(&shared->turn, 1, __ATOMIC_SEQ_CST);
		futex(FUTEX_WAKE, PROCESSES);
	}
}

static int load(const char *path)
{
	FILE *file = fopen(path, "re");
	char name[32];
	struct step step;

	if (!file)
		return 1;
	while (step_count < STEPS && fscanf(file, "%u %31s %u %u %u %u", &step.process, name, &step.a, &step.b, &step.c,
		&step.d) == 6) {
		step.process %= PROCESSES;
		for (step.call = 0; step.call < COUNT(calls) && strcmp(calls[step.call].name, name) != 0; step.call++)
			;
		if (step.call == COUNT(calls))
			return 1;
		steps[step_count++] = step;
	}
	return !feof(file) || fclose(file) != 0;
}

int main(int argc, char **argv)
{
	struct sigaction action;
	int portable_only = argc > 2 && strcmp(argv[1], "--portable") == 0;
	size_t i;

#ifdef UPOLL_REDIRECT
	portable_only = 1;
#endif
	if (argc > 1 && strcmp(argv[1], "--calls") == 0) {
		for (i = 0; i < COUNT(calls); i++)
			puts(calls[i].name);
		return 0;
	}
	if (argc < 2 || load(argv[argc - 1]) != 0) {
		fprintf(stderr, "replay: no script that can be read\n");
		return 2;
	}
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		return 2;
	shared->pids[0] = getpid();
	memset(&action, 0, sizeof(action));
	action.sa_handler = on_alarm;
	sigaction(SIGALRM, &action, NULL);
	action.sa_handler = on_signal;
	sigaction(SIGUSR1, &action, NULL);
	signal(SIGPIPE, SIG_IGN);
	run(portable_only);
	if (me != 0)
		_exit(0);
	for (i = 1; i < PROCESSES; i++)
		if (shared->pids[i] != 0 && shared->parents[i] == 0)
			waitpid(shared->pids[i], NULL, 0);
	/* The steps close or replace stdio's fd only if they name it, and they do not. */
	fwrite(shared->log, 1, shared->length, stdout);
	return fflush(stdout) != 0;
}
