/* Own fds of the library are closed fds for the program: calls on them fail with EBADF. They are at the
 * top of the limit, or of 1024. Without the library they are closed indeed. */
#include "../c/check.h"
#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sendfile.h>

enum { CLOSED = 700 };

static int set, counter, ends[2];

static void *write_later(void *nothing)
{
	uint64_t one = 1;
	sleep_ms(50);
	CHECK(write(counter, &one, 8) == 8);
	return nothing;
}

/* Calls that the kernel or the C library would make with the fd. */
static void by_the_kernel_or_the_c_library(int fd)
{
	char byte[16] = {0}, line[16];
	struct iovec part = {byte, 1};
	struct {
		struct cmsghdr header;
		int fd;
	} right = {{CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}, fd};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	struct mmsghdr messages[2] = {{message, 0}, {message, 0}};
	int pair[2];
	CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
	FAILS(sendmmsg(fd, messages, 2, MSG_DONTWAIT), EBADF);
	FAILS(recvmmsg(fd, messages, 2, MSG_DONTWAIT, NULL), EBADF);
	FAILS(syscall(SYS_sendmmsg, fd, messages, 2, MSG_DONTWAIT), EBADF);

	message.msg_control = &right, message.msg_controllen = sizeof right;
	FAILS(sendmsg(pair[0], &message, MSG_DONTWAIT), EBADF);
	FAILS(syscall(SYS_sendmsg, pair[0], &message, MSG_DONTWAIT), EBADF);
	messages[1].msg_hdr = message;
	CHECK(sendmmsg(pair[0], messages, 2, MSG_DONTWAIT) == 1);
	CHECK(recv(pair[1], line, sizeof line, MSG_DONTWAIT) == 1);
	FAILS(sendmmsg(pair[0], messages + 1, 1, MSG_DONTWAIT), EBADF);
	FAILS(recv(pair[1], line, sizeof line, MSG_DONTWAIT), EAGAIN);
	close(pair[0]), close(pair[1]);

	FAILS(splice(fd, NULL, ends[1], NULL, 1, SPLICE_F_NONBLOCK), EBADF);
	FAILS(splice(ends[0], NULL, fd, NULL, 1, SPLICE_F_NONBLOCK), EBADF);
	FAILS(tee(fd, ends[1], 1, SPLICE_F_NONBLOCK), EBADF);
	FAILS(vmsplice(fd, &part, 1, SPLICE_F_NONBLOCK), EBADF);
	FAILS(sendfile(ends[1], fd, NULL, 1), EBADF);
	FAILS(preadv2(fd, &part, 1, -1, 0), EBADF);
	FAILS(pwritev2(fd, &part, 1, -1, 0), EBADF);
	FAILS(syscall(SYS_preadv2, fd, &part, 1, -1L, -1L, 0), EBADF);
	FAILS(dprintf(fd, "%s", "text"), EBADF);
	errno = 0;
	CHECK(fdopen(fd, "r") == NULL && errno == EBADF);
}

static void is_not_there(int fd)
{
	char byte[16] = {0};
	struct iovec part = {byte, 1};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	struct epoll_event event = {.events = EPOLLIN};
	struct pollfd polled[2] = {{fd, POLLIN, 0}, {counter, POLLIN, 0}};
	struct timeval now = {0, 0};
	struct stat found;
	fd_set asked;
	socklen_t size = sizeof byte;
	int value;

	FAILS(close(fd), EBADF);
	FAILS(dup(fd), EBADF);
	FAILS(dup2(fd, 650), EBADF);
	FAILS(dup2(fd, fd), EBADF);
	FAILS(dup3(fd, 650, O_CLOEXEC), EBADF);
	FAILS(fcntl(fd, F_DUPFD, 10), EBADF);
	FAILS(fcntl(fd, F_DUPFD_CLOEXEC, 10), EBADF);
	FAILS(fcntl(fd, F_GETFD), EBADF);
	FAILS(fcntl(fd, F_GETFL), EBADF);
	FAILS(fcntl(fd, F_SETFL, O_NONBLOCK), EBADF);
	FAILS(read(fd, byte, 8), EBADF);
	FAILS(write(fd, byte, 8), EBADF);
	FAILS(readv(fd, &part, 1), EBADF);
	FAILS(writev(fd, &part, 1), EBADF);
	FAILS(ioctl(fd, FIONREAD, &value), EBADF);
	FAILS(fstat(fd, &found), EBADF);
	FAILS(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), EBADF);
	FAILS(epoll_ctl(fd, EPOLL_CTL_ADD, ends[0], &event), EBADF);
	FAILS(epoll_wait(fd, &event, 1, 0), EBADF);
	FAILS(shutdown(fd, SHUT_RDWR), EBADF);
	FAILS(send(fd, byte, 1, MSG_DONTWAIT), EBADF);
	FAILS(sendto(fd, byte, 1, MSG_DONTWAIT, NULL, 0), EBADF);
	FAILS(sendmsg(fd, &message, MSG_DONTWAIT), EBADF);
	FAILS(recv(fd, byte, 1, MSG_DONTWAIT), EBADF);
	FAILS(recvmsg(fd, &message, MSG_DONTWAIT), EBADF);
	for (int count = 1; count <= 2; count++) {
		polled[0].revents = 0;
		CHECK(poll(polled, count, 60000) == 1 && polled[0].revents == POLLNVAL);
		CHECK(poll(polled, count, 0) == 1 && polled[0].revents == POLLNVAL);
		CHECK(syscall(SYS_ppoll, polled, count, NULL, NULL, 8) == 1 && polled[0].revents == POLLNVAL);
	}
	FD_ZERO(&asked);
	FD_SET(fd, &asked);
	FAILS(select(fd + 1, &asked, NULL, NULL, &now), EBADF);
	FD_SET(counter, &asked);
	FAILS(select(fd + 1, &asked, NULL, NULL, NULL), EBADF);
	FAILS(syscall(SYS_dup3, fd, 650, 0), EBADF);
	FAILS(getsockopt(fd, SOL_SOCKET, SO_TYPE, byte, &size), EBADF);
	FAILS(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, byte, 4), EBADF);
	by_the_kernel_or_the_c_library(fd);
}

int main(void)
{
	struct epoll_event event;
	struct pollfd fds[2];
	uint64_t value;
	pthread_t thread;
	int own[256], found = 0, folder_fd, top, is_preloaded;
	const char *preloaded = getenv("LD_PRELOAD"), *kinds = getenv("UPOLL_USER");
	struct rlimit limit;
	struct dirent *entry;
	DIR *folder;

	alarm(300);
	/* The inherited fds. */
	CHECK(close_range(3, ~0u, 0) == 0);
	CHECK((set = epoll_create1(0)) >= 0 && (counter = eventfd(0, EFD_NONBLOCK)) >= 0);
	CHECK(pipe(ends) == 0);
	CHECK(add(set, counter, EPOLLIN, 1) == 0 && add(set, ends[0], EPOLLIN, 2) == 0);
	CHECK(epoll_wait(set, &event, 1, 0) == 0);
	fds[0] = (struct pollfd){counter, POLLIN, 0};
	fds[1] = (struct pollfd){ends[0], POLLIN, 0};
	CHECK(pthread_create(&thread, NULL, write_later, NULL) == 0);
	CHECK(poll(fds, 2, 60000) == 1 && fds[0].revents == POLLIN);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(read(counter, &value, 8) == 8);

	CHECK((folder = opendir("/proc/self/fd")) != NULL);
	folder_fd = dirfd(folder);
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	top = limit.rlim_cur < 1024 ? (int)limit.rlim_cur : 1024;
	while ((entry = readdir(folder)) && found < 256) {
		int fd = atoi(entry->d_name);
		if (entry->d_name[0] == '.' || fd <= 2 || fd == set || fd == counter || fd == ends[0] ||
		    fd == ends[1] || fd == folder_fd)
			continue;
		CHECK(fd >= top - 150);
		own[found++] = fd;
	}
	is_preloaded = preloaded != NULL && strstr(preloaded, "libupoll_preload") != NULL;
	CHECK((found > 0) == (is_preloaded && (kinds == NULL || strcmp(kinds, "none") != 0)));
	closedir(folder);
	is_not_there(CLOSED);
	for (int at = 0; at < found; at++)
		is_not_there(own[at]);
	/* The object is unchanged. */
	CHECK(write(counter, &value, 8) == 8);
	CHECK(epoll_wait(set, &event, 1, 60000) == 1 && event.data.u64 == 1);
	return 0;
}
