/* A program takes high fds by dup2(2), where the preload has its own fds. The program's files stay
 * at these fds, and polls still sleep. */
#include "../c/check.h"
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/resource.h>
#include <sys/stat.h>

enum { FIRST = 880, FDS = 1024 };

static atomic_int is_over;
static int limit = FDS;

static void *write_later(void *counter)
{
	uint64_t one = 1;
	sleep_ms(50);
	CHECK(write(*(int *)counter, &one, 8) == 8);
	return NULL;
}

/* A poll sleeps that was woken before, and whose own fds have all been moved since. */
static void poll_after_moves(void)
{
	int counter = eventfd(0, EFD_NONBLOCK), ends[2], file = open("/dev/null", O_RDWR);
	struct pollfd fds[2];

	CHECK(counter >= 0 && file >= 0 && pipe(ends) == 0);
	fds[0] = (struct pollfd){counter, POLLIN, 0};
	fds[1] = (struct pollfd){ends[0], POLLIN, 0};
	for (int turn = 0; turn < 3; turn++) {
		uint64_t value;
		pthread_t thread;
		long begun;
		CHECK(pthread_create(&thread, NULL, write_later, &counter) == 0);
		CHECK(poll(fds, 2, 60000) == 1 && fds[0].revents == POLLIN);
		CHECK(pthread_join(thread, NULL) == 0);
		CHECK(read(counter, &value, 8) == 8);
		for (int fd = FIRST; fd < limit; fd++)
			CHECK(dup2(file, fd) == fd);
		begun = cpu_time();
		CHECK(poll(fds, 2, 500) == 0);
		CHECK(cpu_time() - begun < 200);
		for (int fd = FIRST; fd < limit; fd++)
			CHECK(close(fd) == 0);
	}
	close(counter);
	close(ends[0]);
	close(ends[1]);
	close(file);
}

static void *make_sets(void *nothing)
{
	struct epoll_event event;
	uint64_t one = 1;

	while (!is_over) {
		int set = epoll_create1(0), counter = eventfd(0, EFD_NONBLOCK), ends[2];
		CHECK(set >= 0 && counter >= 0 && pipe(ends) == 0);
		CHECK(add(set, ends[0], EPOLLIN, 1) == 0 && add(set, counter, EPOLLIN, 2) == 0);
		CHECK(epoll_wait(set, &event, 1, 0) == 0);
		CHECK(write(counter, &one, 8) == 8);
		CHECK(epoll_wait(set, &event, 1, 60000) == 1 && event.data.u64 == 2);
		close(ends[0]);
		close(ends[1]);
		close(counter);
		close(set);
	}
	return nothing;
}

static int by_number(int fd, int new)
{
#ifdef SYS_dup2
	if (new % 2)
		return (int)syscall(SYS_dup2, fd, new);
#endif
	return (int)syscall(SYS_dup3, fd, new, 0);
}

/* Takes fds by `put`, while other threads make and close sets. */
static void take_and_give_back(int (*put)(int, int))
{
	pthread_t threads[2];
	struct stat own, found;
	struct timespec begun, now;
	int file = open("/dev/null", O_RDWR);

	is_over = 0;
	CHECK(file >= 0 && fstat(file, &own) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_create(&threads[i], NULL, make_sets, NULL) == 0);
	CHECK(clock_gettime(CLOCK_MONOTONIC, &begun) == 0);
	do {
		for (int fd = FIRST; fd < limit; fd++)
			CHECK(put(file, fd) == fd);
		for (int fd = FIRST; fd < limit; fd++)
			CHECK(fstat(fd, &found) == 0 && found.st_rdev == own.st_rdev);
		for (int fd = FIRST; fd < limit; fd++)
			CHECK(close(fd) == 0);
		CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
	} while (now.tv_sec - begun.tv_sec < 4);
	is_over = 1;
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	close(file);
}

int main(void)
{
	struct rlimit limits;

	alarm(300);
	CHECK(getrlimit(RLIMIT_NOFILE, &limits) == 0);
	if (limits.rlim_cur < FDS)
		limit = (int)limits.rlim_cur;
	if (limit < FIRST + 100)
		return 77;
	poll_after_moves();
	take_and_give_back(dup2);
	take_and_give_back(by_number);
	return 0;
}
