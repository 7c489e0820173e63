/* A thread gets an fd table of its own. Its changes do not affect the other threads, and theirs do
 * not affect it. */
#include "../c/check.h"
#include <linux/close_range.h>
#include <sched.h>
#include <sys/syscall.h>

static int counter, set, pipes[2];

static int cut_off(unsigned first, unsigned last)
{
	return (int)syscall(SYS_close_range, first, last, CLOSE_RANGE_UNSHARE);
}

static void use(int counter, int set)
{
	struct epoll_event event;
	uint64_t value = 5;
	CHECK(write(counter, &value, sizeof value) == sizeof value);
	CHECK(epoll_wait(set, &event, 1, 60000) == 1 && event.data.u64 == 1);
	CHECK(read(counter, &value, sizeof value) == sizeof value && value == 5);
	CHECK(epoll_wait(set, &event, 1, 0) == 0);
}

static pthread_barrier_t step;

static void *leaves(void *how)
{
	uint64_t value = 1;
	int fd, other;
	if (how == NULL)
		CHECK(cut_off((unsigned)counter, (unsigned)counter) == 0);
	else
		CHECK(unshare(CLONE_FILES) == 0 && close(counter) == 0);
	FAILS(write(counter, &value, sizeof value), EBADF);
	fd = eventfd(7, EFD_NONBLOCK);
	CHECK(fd >= 0 && dup2(fd, counter) == counter);
	other = epoll_create1(0);
	CHECK(other >= 0 && add(other, fd, EPOLLIN, 2) == 0);
	pthread_barrier_wait(&step);
	/* The other thread has used its own fds. */
	pthread_barrier_wait(&step);
	CHECK(read(counter, &value, sizeof value) == sizeof value && value == 7);
	FAILS(read(fd, &value, sizeof value), EAGAIN);
	CHECK(dup2(pipes[0], set) == set && close(other) == 0);
	pthread_barrier_wait(&step);
	pthread_barrier_wait(&step);
	return NULL;
}

static void apart(void *how)
{
	pthread_t thread;
	counter = eventfd(0, 0), set = epoll_create1(0);
	CHECK(pipe(pipes) == 0 && add(set, counter, EPOLLIN, 1) == 0);
	CHECK(pthread_create(&thread, NULL, leaves, how) == 0);
	pthread_barrier_wait(&step);
	use(counter, set);
	pthread_barrier_wait(&step);
	pthread_barrier_wait(&step);
	use(counter, set);
	pthread_barrier_wait(&step);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(close(counter) == 0 && close(set) == 0);
	CHECK(close(pipes[0]) == 0 && close(pipes[1]) == 0);
}

int main(void)
{
	uint64_t value = 1;
	/* With no other thread. */
	counter = eventfd(0, 0), set = epoll_create1(0);
	CHECK(add(set, counter, EPOLLIN, 1) == 0);
	CHECK(pipe(pipes) == 0 && pipes[0] == set + 1 && pipes[1] == set + 2);
	CHECK(cut_off((unsigned)pipes[0], (unsigned)pipes[1]) == 0);
	use(counter, set);
	FAILS(syscall(SYS_close_range, 0, 1, 64 | CLOSE_RANGE_UNSHARE), EINVAL);
	FAILS(cut_off(2, 1), EINVAL);
	CHECK(cut_off((unsigned)counter, ~0U) == 0);
	FAILS(write(counter, &value, sizeof value), EBADF);
	FAILS(close(set), EBADF);
	CHECK(pthread_barrier_init(&step, NULL, 2) == 0);
	apart(NULL);
	apart(&step);
	return 0;
}
