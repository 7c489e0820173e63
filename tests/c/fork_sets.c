/* fork(2) and sets: the child has sets with the same fds that watch the same files, whatever these
 * are. The parent keeps its sets. */
#include "check.h"
#include <sys/syscall.h>
#include <sys/wait.h>

#ifndef EFD_IOC_SET_MAXIMUM
#define EFD_IOC_SET_MAXIMUM _IOW('J', 0, uint64_t)
#endif

enum { LINE, COUNTER, OUTER, GONE, SILENT };

static int ready(int set, uint64_t which, uint32_t events, int timeout)
{
	struct epoll_event event;
	return epoll_wait(set, &event, 1, timeout) == 1 && event.data.u64 == which &&
	       event.events == events;
}

static int idle(int set)
{
	struct epoll_event event;
	return epoll_wait(set, &event, 1, 0) == 0;
}

static void joins(pid_t child)
{
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* Checks the events of a set, one at a time. Leaves all members idle. */
static void works(int set, int outer, const int *line, int counter)
{
	char byte;
	uint64_t value;
	CHECK(idle(set));
	CHECK(write(line[1], "x", 1) == 1);
	CHECK(ready(set, LINE, EPOLLIN, 1000) && ready(outer, OUTER, EPOLLIN, 1000));
	CHECK(read(line[0], &byte, 1) == 1);
	CHECK(idle(set) && idle(outer));
	CHECK(eventfd_write(counter, 1) == 0);
	CHECK(ready(set, COUNTER, EPOLLIN, 1000) && ready(outer, OUTER, EPOLLIN, 1000));
	CHECK(eventfd_read(counter, &value) == 0 && value == 1);
	CHECK(idle(set) && idle(outer));
}

#ifndef KERNEL_ONLY
static uint32_t always(void *context)
{
	(void)context;
	return EPOLLIN;
}

/* An embedder's object stays with the parent. In the child the set that watches it has only its
 * other members. */
static void keeps_its_own(void)
{
	struct upoll_object_ops ops = {sizeof ops, always, NULL};
	int set = epoll_create1(0), own = upoll_object_create(&ops, NULL, 0), fds[2];
	pid_t child;
	CHECK(pipe(fds) == 0);
	CHECK(add(set, own, EPOLLIN, 1) == 0 && add(set, fds[0], EPOLLIN, 2) == 0);
	CHECK(ready(set, 1, EPOLLIN, 0));
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		FAILS(add(set, own, EPOLLIN, 1), EBADF);
		CHECK(idle(set));
		CHECK(write(fds[1], "x", 1) == 1);
		CHECK(ready(set, 2, EPOLLIN, 1000));
		_exit(0);
	}
	joins(child);
	CHECK(epoll_ctl(set, EPOLL_CTL_DEL, fds[0], NULL) == 0 && ready(set, 1, EPOLLIN, 0));
	CHECK(close(own) == 0 && idle(set));
}
#endif

int main(void)
{
	uint64_t maximum = 4;
	int line[2], gone[2], done[2], set, outer, copy, counter, reused, silent;
	struct epoll_event event;
	struct pollfd entry;
	char byte;
	pid_t child;

	CHECK(pipe(line) == 0);
	/* Kernel pipes in both variants. */
	CHECK(syscall(SYS_pipe2, gone, 0) == 0 && syscall(SYS_pipe2, done, 0) == 0);
	counter = eventfd(0, EFD_NONBLOCK), silent = eventfd(0, EFD_NONBLOCK);
	/* The kernel's eventfd has no maximum; the rest of the test is the same. */
	ioctl(counter, EFD_IOC_SET_MAXIMUM, &maximum);
	ioctl(silent, EFD_IOC_SET_MAXIMUM, &maximum);
	set = epoll_create1(0), outer = epoll_create1(EPOLL_CLOEXEC), copy = dup(set);
	CHECK(add(set, line[0], EPOLLIN, LINE) == 0);
	CHECK(add(set, counter, EPOLLIN, COUNTER) == 0);
	CHECK(add(set, silent, EPOLLIN | EPOLLONESHOT, SILENT) == 0);
	CHECK(add(outer, set, EPOLLIN, OUTER) == 0);
	/* A oneshot interest that has fired. */
	CHECK(eventfd_write(silent, 1) == 0 && ready(set, SILENT, EPOLLIN, 0) && idle(set));
	/* An interest in a file that lives on under another fd. Its own fd now belongs to a file that
	 * nobody watches. */
	CHECK(add(set, gone[0], EPOLLIN, GONE) == 0);
	reused = gone[0];
	CHECK(dup(reused) > reused && dup2(done[0], reused) == reused);

	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(fcntl(set, F_GETFD) == 0 && fcntl(outer, F_GETFD) == FD_CLOEXEC);
		CHECK(write(done[1], "x", 1) == 1);
		works(set, outer, line, counter);
		works(copy, outer, line, counter);
		CHECK(read(reused, &byte, 1) == 1);
		/* The child can change its sets. */
		FAILS(add(copy, counter, EPOLLIN, 0), EEXIST);
		CHECK(epoll_ctl(outer, EPOLL_CTL_DEL, set, NULL) == 0);
		CHECK(add(outer, set, EPOLLIN, OUTER) == 0);
		event.events = EPOLLIN | EPOLLONESHOT, event.data.u64 = SILENT;
		CHECK(epoll_ctl(set, EPOLL_CTL_MOD, silent, &event) == 0);
		CHECK(ready(copy, SILENT, EPOLLIN, 0) && idle(set));
		/* poll works, too. */
		CHECK(eventfd_write(counter, 1) == 0);
		entry.fd = outer, entry.events = POLLIN;
		CHECK(poll(&entry, 1, 60000) == 1 && entry.revents == POLLIN);
		CHECK(ready(set, COUNTER, EPOLLIN, 0));
		CHECK(eventfd_read(counter, &maximum) == 0);
		/* The grandchild's sets work as well. */
		child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			works(set, outer, line, counter);
			CHECK(close(set) == 0);
			works(copy, outer, line, counter);
			_exit(0);
		}
		joins(child);
		works(set, outer, line, counter);
		_exit(0);
	}
	joins(child);
	works(set, outer, line, counter);
	CHECK(close(set) == 0);
	works(copy, outer, line, counter);
	CHECK(close(copy) == 0 && close(outer) == 0);
#ifndef KERNEL_ONLY
	keeps_its_own();
#endif
	return 0;
}
