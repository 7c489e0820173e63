/* Calls through syscall(2), as in libuv, and calls of fortified programs. */
#include "../c/check.h"
#include <sys/syscall.h>
#include <sys/wait.h>

int __poll_chk(struct pollfd *, nfds_t, int, size_t);
ssize_t __read_chk(int, void *, size_t, size_t);

static void interrupted(int signal)
{
	(void)signal;
}

int __close(int), __dup2(int, int);
ssize_t __read(int, void *, size_t), __write(int, const void *, size_t);
int __poll(struct pollfd *, nfds_t, int), __select(int, fd_set *, fd_set *, fd_set *, struct timeval *);

/* Calls that find what others have put into an object, and leave what others find. */
static void by_number(void)
{
	uint64_t value = 4;
	struct iovec place = {&value, sizeof value};
	int fd = eventfd(0, 0), copy, bytes = 0, ends[2], pair[2];
	char byte = 'x', got = 0;
	struct iovec one = {&got, 1};
	struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1};
	CHECK(eventfd_write(fd, 4) == 0);
	CHECK(syscall(SYS_read, fd, &value, sizeof value) == sizeof value && value == 4);
	CHECK(syscall(SYS_writev, fd, &place, 1) == sizeof value);
	CHECK(eventfd_read(fd, &value) == 0 && value == 4 && eventfd_write(fd, 5) == 0);
	CHECK(syscall(SYS_readv, fd, &place, 1) == sizeof value && value == 5);
	copy = (int)syscall(SYS_dup, fd);
	CHECK(copy >= 0 && eventfd_write(copy, 6) == 0 && close(copy) == 0);
	copy = (int)syscall(SYS_fcntl, fd, F_DUPFD, 0);
	CHECK(copy >= 0 && eventfd_read(copy, &value) == 0 && value == 6 && close(copy) == 0);
	CHECK(syscall(SYS_fcntl, fd, F_SETFL, O_NONBLOCK) == 0);
	FAILS(eventfd_read(fd, &value), EAGAIN);
	CHECK(close(fd) == 0);

	CHECK(syscall(SYS_pipe2, ends, 0) == 0 && write(ends[1], "abc", 3) == 3);
	CHECK(syscall(SYS_ioctl, ends[0], FIONREAD, &bytes) == 0 && bytes == 3);
	CHECK(syscall(SYS_read, ends[0], &got, 1) == 1 && got == 'a');
	CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);

	CHECK(syscall(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	CHECK(syscall(SYS_sendto, pair[0], &byte, 1, 0, NULL, 0) == 1);
	CHECK(recv(pair[1], &got, 1, MSG_DONTWAIT) == 1 && got == 'x');
	CHECK(send(pair[1], "y", 1, 0) == 1);
	CHECK(syscall(SYS_recvfrom, pair[0], &got, 1, MSG_DONTWAIT, NULL, NULL) == 1 && got == 'y');
	got = 'z';
	CHECK(syscall(SYS_sendmsg, pair[0], &message, 0) == 1);
	got = 0;
	CHECK(syscall(SYS_recvmsg, pair[1], &message, MSG_DONTWAIT) == 1 && got == 'z');
	CHECK(syscall(SYS_shutdown, pair[0], SHUT_WR) == 0 && read(pair[1], &got, 1) == 0);
	CHECK(close(pair[0]) == 0 && close(pair[1]) == 0);
}

/* A fortified program that passes too small a buffer is ended. */
static void too_small(int how)
{
	struct pollfd entry = {.events = POLLIN};
	uint64_t value;
	int status;
	pid_t child = fork();
	if (child == 0) {
		int fd = eventfd(1, 0);
		signal(SIGABRT, SIG_DFL);
		close(STDERR_FILENO);
		entry.fd = fd;
		if (how == 0)
			__read_chk(fd, &value, sizeof value, sizeof value - 1);
		else
			__poll_chk(&entry, 1, 0, sizeof entry - 1);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

/* Calls on an eventfd that only the kernel serves, and other names of the C library's functions. */
static void others_names(void)
{
	uint64_t value = 4;
	struct iovec place = {&value, sizeof value};
	struct pollfd entry;
	struct timeval now = {0, 0};
	fd_set in;
	int fd = eventfd(3, EFD_NONBLOCK), copy, status;
	pid_t child;
	CHECK(syscall(SYS_preadv2, fd, &place, 1, -1L, -1L, 0) == sizeof value &&
	      value == 3);
	close(fd);
	fd = eventfd(3, EFD_NONBLOCK);
	CHECK(preadv64v2(fd, &place, 1, -1, 0) == sizeof value && value == 3);
	CHECK(pwritev64v2(fd, &place, 1, -1, 0) == sizeof value);
	value = 0;
	CHECK(read(fd, &value, sizeof value) == sizeof value && value == 3);
	close(fd);
	fd = eventfd(0, EFD_NONBLOCK);
	CHECK(pwritev64v2(fd, &place, 1, -1, 0) == sizeof value);
	CHECK(read(fd, &value, sizeof value) == sizeof value && value == 3);
	close(fd);

	by_number();
	fd = eventfd(0, EFD_NONBLOCK);
	CHECK(__write(fd, &value, sizeof value) == sizeof value);
	entry.fd = fd, entry.events = POLLIN;
	CHECK(__poll(&entry, 1, 0) == 1);
	FD_ZERO(&in);
	FD_SET(fd, &in);
	CHECK(__select(fd + 1, &in, NULL, NULL, &now) == 1);
	copy = open("/dev/null", O_RDONLY);
	CHECK(__dup2(fd, copy) == copy && __close(fd) == 0);
	CHECK(__read(copy, &value, sizeof value) == sizeof value && value == 3);
	FAILS(__read(fd, &value, sizeof value), EBADF);
	close(copy);

	/* The executed program inherits it. */
	fd = eventfd(5, 0);
	child = fork();
	if (child == 0) {
		char text[16];
		char *arguments[] = {"raw_calls", text, NULL};
		close(fd);
		fd = eventfd(5, 0);
		snprintf(text, sizeof text, "%d", fd);
		execveat(AT_FDCWD, "/proc/self/exe", arguments, environ, 0);
		_exit(9);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	close(fd);
}

int main(int count, char **arguments)
{
	struct epoll_event event;
	struct pollfd entry;
	struct timespec limit = {5, 0};
	uint64_t value = 3, mask = 0;
	struct {
		const uint64_t *mask;
		size_t size;
	} with_size = {&mask, sizeof mask};
	fd_set in;
	if (count == 2)
		return eventfd_read(atoi(arguments[1]), &value) != 0 || value != 5;
	int fd = (int)syscall(SYS_eventfd2, 0, EFD_NONBLOCK), again;
	int set = (int)syscall(SYS_epoll_create1, EPOLL_CLOEXEC);
	CHECK(fd >= 0 && set == fd + 1);
	CHECK(add(set, fd, EPOLLIN, 8) == 0);
	CHECK(syscall(SYS_write, fd, &value, sizeof value) == sizeof value);
	CHECK(syscall(SYS_epoll_pwait, set, &event, 1, 1000, NULL, sizeof mask) == 1);
	CHECK(syscall(SYS_epoll_pwait2, set, &event, 1, &limit, NULL, sizeof mask) == 1);
	CHECK(event.data.u64 == 8);
	entry.fd = fd, entry.events = POLLIN;
	CHECK(syscall(SYS_ppoll, &entry, 1, &limit, NULL, sizeof mask) == 1);
	CHECK(limit.tv_sec <= 5 && entry.revents == POLLIN);
	FD_ZERO(&in);
	FD_SET(fd, &in);
	CHECK(syscall(SYS_pselect6, fd + 1, &in, NULL, NULL, &limit, &with_size) == 1);
	CHECK(__poll_chk(&entry, 1, 1000, sizeof entry) == 1);
	value = 0;
	CHECK(__read_chk(fd, &value, sizeof value, sizeof value) == sizeof value && value == 3);
	FAILS(syscall(SYS_read, fd, &value, sizeof value), EAGAIN);

	/* A timeout that has expired is written back. */
	limit.tv_sec = 0, limit.tv_nsec = 20000000;
	CHECK(syscall(SYS_ppoll, &entry, 1, &limit, NULL, sizeof mask) == 0);
	CHECK(limit.tv_sec == 0 && limit.tv_nsec == 0);

	/* The next object gets the fd that this closes. */
	CHECK(syscall(SYS_close, fd) == 0);
	again = open("/dev/null", O_RDWR);
	CHECK(again == fd);
	CHECK(read(again, &value, sizeof value) == 0);
	FAILS(epoll_ctl(set, EPOLL_CTL_DEL, again, NULL), EPERM);
	CHECK(syscall(SYS_dup3, set, again, 0) == again);
	CHECK(epoll_wait(again, &event, 1, 0) == 0);
	CHECK(syscall(SYS_close_range, set, set, 0) == 0);
	FAILS(epoll_wait(set, &event, 1, 0), EBADF);
	FAILS(syscall(SYS_close, -1), EBADF);

	/* A handler that writes an eventfd wakes the thread that it interrupts. */
	signal(SIGALRM, interrupted);
	fd = eventfd(0, 0);
	alarm(1);
	entry.fd = fd;
	FAILS(syscall(SYS_ppoll, &entry, 1, NULL, NULL, sizeof mask), EINTR);
	close(fd), fd = -1;
	others_names();
	too_small(0), too_small(1);
	FAILS(syscall(100000, 1, 2, 3, 4, 5, 6), ENOSYS);
	return 0;
}
