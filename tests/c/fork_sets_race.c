/* fork(2) while other threads use, make and close sets that stay with the parent. The child is not
 * blocked by any operation that a thread of the parent was in. */
#include "check.h"
#include <stdatomic.h>
#include <sys/wait.h>

#ifdef KERNEL_ONLY
#define EPOLL_ROTATE 0
#define EFD_IOC_SET_MAXIMUM _IOW('J', 0, uint64_t)
#endif

enum { FORKS = 20, WORKERS = 2 };

static atomic_bool is_over;
/* The permanent members must be in the sets before the first fork. */
static pthread_barrier_t begun;
static int source[2], rotating, common;

static int limited(void)
{
	uint64_t maximum = 4;
	int fd = eventfd(0, EFD_NONBLOCK);
	CHECK(fd >= 0);
	/* The kernel's eventfd has no maximum. */
	ioctl(fd, EFD_IOC_SET_MAXIMUM, &maximum);
	return fd;
}

static void *makes(void *unused)
{
	struct epoll_event event;
	(void)unused;
	pthread_barrier_wait(&begun);
	while (!is_over) {
		int inner = epoll_create1(EPOLL_ROTATE), outer = epoll_create1(0), fd = limited();
		/* A set that is empty at a fork becomes a kernel set, which takes no such members. */
		if (add(inner, fd, EPOLLIN, 1) == 0 && add(outer, inner, EPOLLIN, 2) == 0) {
			CHECK(eventfd_write(fd, 1) == 0);
			CHECK(epoll_wait(outer, &event, 1, -1) == 1 && event.data.u64 == 2);
			CHECK(epoll_ctl(outer, EPOLL_CTL_DEL, inner, NULL) == 0);
			CHECK(add(outer, inner, EPOLLIN, 3) == 0 || errno == EPERM);
		} else {
			CHECK(errno == EPERM);
		}
		CHECK(close(fd) == 0 && close(inner) == 0 && close(outer) == 0);
	}
	return NULL;
}

static void *adds(void *unused)
{
	struct epoll_event event;
	uint64_t value;
	int set = epoll_create1(0), own = limited();
	(void)unused;
	CHECK(add(set, own, EPOLLIN, 0) == 0);
	pthread_barrier_wait(&begun);
	while (!is_over) {
		CHECK(add(set, common, EPOLLIN, 1) == 0);
		eventfd_write(common, 1);
		CHECK(epoll_wait(set, &event, 1, 0) >= 0);
		eventfd_read(common, &value);
		CHECK(epoll_ctl(set, EPOLL_CTL_DEL, common, NULL) == 0);
		/* Leaves the lock of the set to other threads for a moment. */
		usleep(100);
	}
	CHECK(close(set) == 0 && close(own) == 0);
	return NULL;
}

static void *works(void *unused)
{
	struct epoll_event event;
	char byte;
	int set = epoll_create1(0), found;
	(void)unused;
	CHECK(add(set, rotating, EPOLLIN, 1) == 0);
	pthread_barrier_wait(&begun);
	while (!is_over) {
		found = epoll_wait(set, &event, 1, 10);
		CHECK(found >= 0);
		if (found == 1)
			CHECK(read(source[0], &byte, 1) == 1 || errno == EAGAIN);
	}
	CHECK(close(set) == 0);
	return NULL;
}

static void *feeds(void *unused)
{
	(void)unused;
	pthread_barrier_wait(&begun);
	while (!is_over)
		CHECK(write(source[1], "x", 1) == 1 || errno == EAGAIN);
	return NULL;
}

static void child(int set, int above, int line, int counter)
{
	struct epoll_event event;
	int own = epoll_create1(0);
	/* A wait for a lost event ends the process. */
	alarm(200);
	CHECK(write(line, "x", 1) == 1);
	CHECK(epoll_wait(set, &event, 1, -1) == 1 && event.data.u64 == 1);
	CHECK(epoll_wait(above, &event, 1, -1) == 1 && event.data.u64 == 3);
	CHECK(epoll_ctl(above, EPOLL_CTL_DEL, set, NULL) == 0);
	CHECK(add(above, set, EPOLLIN, 3) == 0);
	CHECK(add(own, common, EPOLLIN, 6) == 0 && eventfd_write(counter, 1) == 0);
	CHECK(add(own, counter, EPOLLIN, 4) == 0 && add(own, rotating, EPOLLIN, 5) == 0);
	CHECK(close(own) == 0 && close(set) == 0 && close(above) == 0);
	_exit(0);
}

int main(void)
{
	void *(*const calls[])(void *) = {makes, makes, adds, adds, works, works, feeds};
	enum { THREADS = sizeof calls / sizeof *calls };
	pthread_t threads[THREADS];
	int at, round, status;
	CHECK(pipe2(source, O_NONBLOCK) == 0);
	rotating = epoll_create1(EPOLL_ROTATE), common = limited();
	CHECK(add(rotating, source[0], EPOLLIN, 0) == 0);
	CHECK(pthread_barrier_init(&begun, NULL, THREADS + 1) == 0);
	for (at = 0; at < THREADS; at++)
		CHECK(pthread_create(&threads[at], NULL, calls[at], NULL) == 0);
	pthread_barrier_wait(&begun);
	for (round = 0; round < FORKS; round++) {
		int set = epoll_create1(0), above = epoll_create1(0), counter = limited(), line[2];
		pid_t pid;
		CHECK(pipe(line) == 0);
		CHECK(add(set, line[0], EPOLLIN, 1) == 0 && add(set, counter, EPOLLIN, 2) == 0);
		CHECK(add(above, set, EPOLLIN, 3) == 0);
		sleep_ms(round % 4);
		pid = fork();
		CHECK(pid >= 0);
		if (pid == 0)
			child(set, above, line[1], counter);
		CHECK(waitpid(pid, &status, 0) == pid && status == 0);
		CHECK(close(set) == 0 && close(above) == 0 && close(counter) == 0);
		CHECK(close(line[0]) == 0 && close(line[1]) == 0);
	}
	is_over = 1;
	for (at = 0; at < THREADS; at++)
		CHECK(pthread_join(threads[at], NULL) == 0);
	return 0;
}
