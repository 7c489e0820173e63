/* upoll_epoll_fd: a kernel fd shows what a set has. The kernel's own set shows it by its own
 * descriptor. The calls that watch it are those of the C library. */
#include "check.h"
#include <sys/wait.h>

#ifdef UPOLL_REDIRECT
#define OPEN_FD(set) upoll_epoll_fd(set)
#undef poll
#undef close
#else
#define OPEN_FD(set) dup(set)
#endif

static int is_readable(int fd)
{
	struct pollfd entry = {fd, POLLIN | POLLOUT, 0};
	int ready = poll(&entry, 1, 0);
	CHECK(ready == 0 || entry.revents == POLLIN);
	return ready;
}

static int harvest(int set)
{
	struct epoll_event events[4];
	int found = epoll_wait(set, events, 4, 0), all = 0;
	for (; found > 0; found = epoll_wait(set, events, 4, 0))
		all += found;
	CHECK(found == 0);
	return all;
}

/* A set shows the events of an eventfd that is one of its members. */
static void shows(int set, int counter, int fd)
{
	int round;
	for (round = 0; round < 3; round++) {
		CHECK(!is_readable(fd));
		CHECK(eventfd_write(counter, 1) == 0);
		CHECK(is_readable(fd));
		CHECK(harvest(set) == 1);
		CHECK(!is_readable(fd));
	}
}

int main(void)
{
	int set = epoll_create1(EPOLL_CLOEXEC), other = epoll_create1(0);
	int counter = eventfd(0, EFD_NONBLOCK), late, second, status, ends[2];
	int fd = OPEN_FD(set);
	pid_t child;

	/* A set of nothing, and one that gets its member later. */
	CHECK(fd >= 0 && fd != set);
	CHECK(fcntl(fd, F_GETFD) >= 0);
	CHECK(!is_readable(fd));
	CHECK(add(set, counter, EPOLLIN | EPOLLET, 0) == 0);
	shows(set, counter, fd);

	/* One with members of the kernel alone before. */
	CHECK(pipe(ends) == 0);
	CHECK(add(other, ends[0], EPOLLIN | EPOLLET, 0) == 0);
	late = OPEN_FD(other);
	CHECK(late >= 0);
	CHECK(add(other, counter, EPOLLIN | EPOLLET, 0) == 0);
	harvest(other);
	shows(other, counter, late);
	CHECK(write(ends[1], "x", 1) == 1);
	CHECK(is_readable(late));
	CHECK(harvest(other) == 1);
	CHECK(!is_readable(late));
	harvest(set);

	/* Each is one of the program's, which closes it. */
	second = OPEN_FD(set);
	CHECK(second >= 0 && second != fd);
	CHECK(close(second) == 0);
	shows(set, counter, fd);
	harvest(other);

	/* Others share the set from now on, so it is the kernel's. */
	child = fork();
	CHECK(child >= 0);
	if (child == 0)
		_exit(fcntl(fd, F_GETFD) < 0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	harvest(set);
	shows(set, counter, fd);
	harvest(other);
	shows(other, counter, late);

	CHECK(OPEN_FD(-1) == -1 && errno == EBADF);
#ifdef UPOLL_REDIRECT
	FAILS(upoll_epoll_fd(ends[0]), EINVAL);
	FAILS(upoll_epoll_fd(counter), EINVAL);
	/* A set of the C library's. */
#undef epoll_create1
	second = upoll_epoll_fd(epoll_create1(0));
	CHECK(second >= 0 && !is_readable(second));
#endif
	return 0;
}
