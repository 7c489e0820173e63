/* Own fds of the library are closed fds for the program in every way to make a call: system calls by
 * their number, other names of the C library's functions, ranges, and copies onto them. */
#include "../c/check.h"
#include <dirent.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>

int __close(int), __dup2(int, int);
ssize_t __read(int, void *, size_t), __write(int, const void *, size_t), __send(int, const void *, size_t, int);
int __poll(struct pollfd *, nfds_t, int), __select(int, fd_set *, fd_set *, fd_set *, struct timeval *);
int __poll_chk(struct pollfd *, nfds_t, int, size_t);
ssize_t __read_chk(int, void *, size_t, size_t), __recv_chk(int, void *, size_t, size_t, int);

static int set, counter, ends[2], free_fd;

static void by_number(int fd)
{
	char bytes[16] = {0};
	struct iovec part = {bytes, 8};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	struct epoll_event event = {.events = EPOLLIN};
	struct pollfd entry = {fd, POLLIN, 0};
	struct timespec now = {0, 0};
	socklen_t size = sizeof bytes;
	fd_set asked;
	int value;

	FAILS(syscall(SYS_close, fd), EBADF);
	FAILS(syscall(SYS_read, fd, bytes, 8), EBADF);
	FAILS(syscall(SYS_write, fd, bytes, 8), EBADF);
	FAILS(syscall(SYS_readv, fd, &part, 1), EBADF);
	FAILS(syscall(SYS_writev, fd, &part, 1), EBADF);
	FAILS(syscall(SYS_dup, fd), EBADF);
	FAILS(syscall(SYS_dup3, fd, free_fd, O_CLOEXEC), EBADF);
	FAILS(syscall(SYS_fcntl, fd, F_GETFD), EBADF);
	FAILS(syscall(SYS_fcntl, fd, F_SETFD, 0), EBADF);
	FAILS(syscall(SYS_fcntl, fd, F_DUPFD, 0), EBADF);
	FAILS(syscall(SYS_ioctl, fd, FIONREAD, &value), EBADF);
	FAILS(syscall(SYS_epoll_ctl, set, EPOLL_CTL_ADD, fd, &event), EBADF);
	FAILS(syscall(SYS_epoll_ctl, fd, EPOLL_CTL_ADD, ends[0], &event), EBADF);
	FAILS(syscall(SYS_epoll_pwait, fd, &event, 1, 0, NULL, 8), EBADF);
	FAILS(syscall(SYS_epoll_pwait2, fd, &event, 1, &now, NULL, 8), EBADF);
	CHECK(syscall(SYS_ppoll, &entry, 1, &now, NULL, 8) == 1 && entry.revents == POLLNVAL);
	FD_ZERO(&asked);
	FD_SET(fd, &asked);
	FAILS(syscall(SYS_pselect6, fd + 1, &asked, NULL, NULL, &now, NULL), EBADF);
	FAILS(syscall(SYS_splice, fd, NULL, ends[1], NULL, 1, SPLICE_F_NONBLOCK), EBADF);
	FAILS(syscall(SYS_tee, fd, ends[1], 1, SPLICE_F_NONBLOCK), EBADF);
	FAILS(syscall(SYS_vmsplice, fd, &part, 1, SPLICE_F_NONBLOCK), EBADF);
	FAILS(syscall(SYS_sendfile, ends[1], fd, NULL, 1), EBADF);
	FAILS(syscall(SYS_pwritev2, fd, &part, 1, -1L, -1L, 0), EBADF);
	FAILS(syscall(SYS_shutdown, fd, SHUT_RDWR), EBADF);
	FAILS(syscall(SYS_sendto, fd, bytes, 1, MSG_DONTWAIT, NULL, 0), EBADF);
	FAILS(syscall(SYS_recvfrom, fd, bytes, 1, MSG_DONTWAIT, NULL, NULL), EBADF);
	FAILS(syscall(SYS_sendmsg, fd, &message, MSG_DONTWAIT), EBADF);
	FAILS(syscall(SYS_recvmsg, fd, &message, MSG_DONTWAIT), EBADF);
	FAILS(syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, bytes, &size), EBADF);
	FAILS(syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_REUSEADDR, bytes, 4), EBADF);
	CHECK(syscall(SYS_close_range, fd, fd, 0) == 0);
#ifdef __x86_64__
	FAILS(syscall(SYS_dup2, fd, free_fd), EBADF);
	FAILS(syscall(SYS_dup2, fd, fd), EBADF);
	FAILS(syscall(SYS_epoll_wait, fd, &event, 1, 0), EBADF);
	CHECK(syscall(SYS_poll, &entry, 1, 0) == 1 && entry.revents == POLLNVAL);
	{
		struct timeval at_once = {0, 0};
		FD_SET(fd, &asked);
		FAILS(syscall(SYS_select, fd + 1, &asked, NULL, NULL, &at_once), EBADF);
	}
#endif
}

static void by_other_names(int fd)
{
	uint64_t value = 1;
	struct epoll_event event;
	struct pollfd entry = {fd, POLLIN, 0};
	struct timeval now = {0, 0};
	struct timespec at_once = {0, 0};
	sigset_t none;
	fd_set asked;

	FAILS(__close(fd), EBADF);
	FAILS(__dup2(fd, free_fd), EBADF);
	FAILS(__read(fd, &value, 8), EBADF);
	FAILS(__write(fd, &value, 8), EBADF);
	FAILS(__send(fd, &value, 8, MSG_DONTWAIT), EBADF);
	FAILS(__read_chk(fd, &value, 8, 8), EBADF);
	FAILS(__recv_chk(fd, &value, 8, 8, MSG_DONTWAIT), EBADF);
	FAILS(eventfd_read(fd, &value), EBADF);
	FAILS(eventfd_write(fd, 1), EBADF);
	CHECK(__poll(&entry, 1, 0) == 1 && entry.revents == POLLNVAL);
	CHECK(__poll_chk(&entry, 1, 0, sizeof entry) == 1 && entry.revents == POLLNVAL);
	sigemptyset(&none);
	CHECK(ppoll(&entry, 1, &at_once, &none) == 1 && entry.revents == POLLNVAL);
	FD_ZERO(&asked);
	FD_SET(fd, &asked);
	FAILS(__select(fd + 1, &asked, NULL, NULL, &now), EBADF);
	FD_SET(fd, &asked);
	FAILS(pselect(fd + 1, NULL, &asked, NULL, &at_once, &none), EBADF);
	FAILS(epoll_pwait(fd, &event, 1, 0, &none), EBADF);
	FAILS(epoll_pwait2(fd, &event, 1, &at_once, &none), EBADF);
	FAILS(fcntl(fd, F_SETFD, 0), EBADF);
	CHECK(close_range((unsigned)fd, (unsigned)fd, 0) == 0);
	CHECK(close_range((unsigned)fd, (unsigned)fd, CLOSE_RANGE_CLOEXEC) == 0);
}

static void *write_later(void *nothing)
{
	uint64_t one = 1;
	sleep_ms(30);
	CHECK(write(counter, &one, 8) == 8);
	return nothing;
}

/* Waits asleep, in the set and in a poll. */
static void still_works(void)
{
	struct epoll_event event;
	struct pollfd both[] = {{counter, POLLIN, 0}, {ends[0], POLLIN, 0}};
	pthread_t thread;
	uint64_t value;
	int turn;

	for (turn = 0; turn < 2; turn++) {
		CHECK(pthread_create(&thread, NULL, write_later, NULL) == 0);
		if (turn == 0)
			CHECK(epoll_wait(set, &event, 1, -1) == 1 && event.data.u64 == 1);
		else
			CHECK(poll(both, 2, -1) == 1 && both[0].revents == POLLIN);
		CHECK(pthread_join(thread, NULL) == 0);
		CHECK(read(counter, &value, 8) == 8 && value == 1);
	}
}

static int find(int *own, int most)
{
	DIR *folder = opendir("/proc/self/fd");
	struct dirent *entry;
	int found = 0;

	CHECK(folder != NULL);
	while ((entry = readdir(folder)) && found < most) {
		int fd = atoi(entry->d_name);
		if (entry->d_name[0] != '.' && fd > 2 && fd != set && fd != counter && fd != ends[0] &&
		    fd != ends[1] && fd != dirfd(folder))
			own[found++] = fd;
	}
	closedir(folder);
	return found;
}

int main(void)
{
	int own[256], moved[256], found, at, file;
	struct stat was, is;
	const char *preloaded = getenv("LD_PRELOAD"), *kinds = getenv("UPOLL_USER");

	alarm(300);
	CHECK(close_range(3, ~0u, 0) == 0);
	CHECK((set = epoll_create1(0)) >= 0 && (counter = eventfd(0, EFD_NONBLOCK)) >= 0);
	CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
	CHECK(add(set, counter, EPOLLIN, 1) == 0 && add(set, ends[0], EPOLLIN, 2) == 0);
	still_works();
	free_fd = 500;
	found = find(own, 256);
	CHECK((found > 0) == (preloaded != NULL && strstr(preloaded, "libupoll_preload") != NULL &&
			      (kinds == NULL || strcmp(kinds, "none") != 0)));
	/* A closed fd is one in each variant. */
	own[found++] = 501;
	for (at = 0; at < found; at++) {
		by_number(own[at]);
		by_other_names(own[at]);
	}
	still_works();

	/* The program takes each of these fds, in each way, and keeps it. */
	file = open("/dev/zero", O_RDWR);
	CHECK(file >= 0 && fstat(file, &was) == 0);
	for (at = 0; at < found; at++) {
		int to = own[at], made;
		switch (at % 4) {
		case 0:
			made = __dup2(file, to);
			break;
		case 1:
			made = dup3(file, to, O_CLOEXEC);
			break;
		case 2:
			made = (int)syscall(SYS_dup3, file, to, 0);
			break;
		default:
			/* A user-level object. */
			made = dup2(counter, to);
		}
		CHECK(made == to);
		still_works();
	}
	for (at = 0; at < found; at++) {
		uint64_t value = 3;
		if (at % 4 == 3)
			CHECK(write(own[at], &value, 8) == 8 && read(counter, &value, 8) == 8 && value == 3);
		else
			CHECK(fstat(own[at], &is) == 0 && is.st_rdev == was.st_rdev);
		CHECK(close(own[at]) == 0);
		FAILS(close(own[at]), EBADF);
	}
	/* They lie elsewhere now. */
	at = found, found = find(moved, 256);
	CHECK(found >= 1);
	while (found-- > 0)
		CHECK(moved[found] == file || (by_number(moved[found]), 1));
	still_works();
	return at < 1;
}
