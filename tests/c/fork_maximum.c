/* fork(2) and eventfds with a maximum: parent and child share one count, and block at its maximum.
 */
#include "check.h"
#include <sys/wait.h>

#ifdef KERNEL_ONLY
#define EFD_IOC_SET_MAXIMUM _IOW('J', 0, uint64_t)
#define EFD_IOC_GET_MAXIMUM _IOR('J', 1, uint64_t)
#endif

static void joins(pid_t child)
{
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static int limited(uint64_t maximum, int flags)
{
	int fd = eventfd(0, flags);
	if (ioctl(fd, EFD_IOC_SET_MAXIMUM, &maximum) == -1 && errno == ENOTTY)
		/* The kernel's eventfd has no maximum. */
		exit(77);
	CHECK(ioctl(fd, EFD_IOC_GET_MAXIMUM, &maximum) == 0);
	return fd;
}

/* Checks that values pass if each process has to wait for the other one. */
static void passes(int fd, int writes, unsigned count)
{
	uint64_t value;
	while (count-- > 0) {
		if (writes)
			CHECK(eventfd_write(fd, 1) == 0);
		else
			CHECK(eventfd_read(fd, &value) == 0 && value == 1);
	}
}

struct waiting {
	int reading, writing, polled, watched, epfd;
};

static void *reads(void *argument)
{
	struct waiting *waiting = argument;
	uint64_t value;
	CHECK(read(waiting->reading, &value, sizeof value) == sizeof value && value == 2);
	return NULL;
}

static void *writes(void *argument)
{
	struct waiting *waiting = argument;
	CHECK(eventfd_write(waiting->writing, 3) == 0);
	return NULL;
}

static void *polls(void *argument)
{
	struct waiting *waiting = argument;
	struct pollfd entry = {waiting->polled, POLLIN, 0};
	CHECK(poll(&entry, 1, 60000) == 1 && entry.revents == POLLIN);
	return NULL;
}

static void *waits(void *argument)
{
	struct waiting *waiting = argument;
	struct epoll_event event;
	CHECK(epoll_wait(waiting->epfd, &event, 1, 60000) == 1);
	CHECK(event.events == EPOLLIN && event.data.u64 == 5);
	return NULL;
}

int main(void)
{
	void *(*const calls[])(void *) = {reads, writes, polls, waits};
	struct waiting waiting;
	struct epoll_event event;
	struct pollfd entry;
	pthread_t threads[4];
	uint64_t value, maximum = 0;
	int at, fd = limited(4, EFD_NONBLOCK), copy = dup(fd);
	int down = limited(3, EFD_SEMAPHORE), up = limited(2, EFD_SEMAPHORE), late;
	pid_t child;

	waiting.reading = limited(4, 0), waiting.writing = limited(4, 0);
	waiting.polled = limited(4, 0), waiting.watched = limited(4, 0);
	waiting.epfd = epoll_create1(0);
	CHECK(eventfd_write(waiting.writing, 3) == 0);
	CHECK(add(waiting.epfd, waiting.watched, EPOLLIN, 5) == 0);
	for (at = 0; at < 4; at++)
		CHECK(pthread_create(&threads[at], NULL, calls[at], &waiting) == 0);
	sleep_ms(100);

	CHECK(eventfd_write(fd, 2) == 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(ioctl(copy, EFD_IOC_GET_MAXIMUM, &maximum) == 0 && maximum == 4);
		FAILS(eventfd_write(copy, 2), EAGAIN);
		CHECK(eventfd_write(fd, 1) == 0);
		entry.fd = fd, entry.events = POLLIN | POLLOUT;
		CHECK(poll(&entry, 1, 0) == 1 && entry.revents == POLLIN);
		/* A set of the child. */
		late = epoll_create1(0);
		CHECK(add(late, fd, EPOLLIN | EPOLLOUT, 1) == 0);
		CHECK(epoll_wait(late, &event, 1, 0) == 1 && event.events == EPOLLIN);
		maximum = 8;
		CHECK(ioctl(fd, EFD_IOC_SET_MAXIMUM, &maximum) == 0);
		CHECK(epoll_wait(late, &event, 1, 0) == 1 && event.events == (EPOLLIN | EPOLLOUT));
		CHECK(fcntl(fd, F_SETFL, 0) == 0);
		CHECK(eventfd_write(waiting.reading, 2) == 0);
		CHECK(eventfd_read(waiting.writing, &value) == 0 && value == 3);
		CHECK(eventfd_write(waiting.polled, 1) == 0);
		CHECK(eventfd_write(waiting.watched, 1) == 0);
		passes(down, 1, 100);
		passes(up, 0, 100);
		CHECK(close(copy) == 0 && dup2(up, copy) == copy);
		/* The grandchild has them too. */
		child = fork();
		if (child == 0) {
			CHECK(eventfd_write(copy, 1) == 0);
			CHECK(close(copy) == 0 && close(down) == 0);
			_exit(0);
		}
		joins(child);
		CHECK(eventfd_read(up, &value) == 0 && value == 1);
		_exit(0);
	}
	passes(down, 0, 100);
	passes(up, 1, 100);
	joins(child);
	for (at = 0; at < 4; at++)
		CHECK(pthread_join(threads[at], NULL) == 0);
	CHECK(eventfd_read(waiting.writing, &value) == 0 && value == 3);
	CHECK(ioctl(fd, EFD_IOC_GET_MAXIMUM, &maximum) == 0 && maximum == 8);
	FAILS(eventfd_write(fd, UINT64_MAX), EINVAL);
	/* The child has changed the flag. */
	CHECK(fcntl(fd, F_GETFL) == O_RDWR);
	CHECK(eventfd_read(copy, &value) == 0 && value == 3);
	/* The set from before the fork is unchanged. */
	CHECK(epoll_wait(waiting.epfd, &event, 1, 0) == 1 && event.data.u64 == 5);
	CHECK(eventfd_read(waiting.watched, &value) == 0 && value == 1);
	CHECK(epoll_wait(waiting.epfd, &event, 1, 0) == 0);
	CHECK(epoll_ctl(waiting.epfd, EPOLL_CTL_DEL, waiting.watched, NULL) == 0);
#ifndef KERNEL_ONLY
	FAILS(upoll_demote(fd), EOPNOTSUPP);
#endif
	CHECK(close(fd) == 0 && close(copy) == 0);
	return 0;
}
